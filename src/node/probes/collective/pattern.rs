//! Test data of the ranks and the expected results: small whole numbers whose sums a `float`
//! represents exactly.
//!
//! Pure arithmetic. Every element depends on its position and its rank, so that data that arrives
//! misplaced, late or twice differs from the expected data.

use super::formula::{CollectiveCounts, NcclCollective};

/// Period of the data in elements: a prime near 2^20, so that no two parts, which are multiples of
/// 16 bytes, start at the same phase.
pub const PERIOD: u64 = 1_048_573;

/// Exclusive upper bound of an element. 97 times the ranks of any cluster is far below 2^24, up to
/// which a `float` represents every whole number.
const BOUND: u64 = 97;

/// Initial contents of receive buffers: a quiet NaN, so that unwritten data never compares as
/// correct.
pub const UNWRITTEN: u32 = 0x7fc0_0000;

/// Number of elements checked per operation and rank: all of messages up to 1 MiB, and windows of
/// about the same total for larger ones.
const MAX_CHECKED: u64 = 256 << 10;

/// Minimum elements of a window.
const LEAST_WINDOW: u64 = 64;

/// The element that a rank sends at this position.
pub fn element(rank: u32, place: u64) -> u16 {
    let place = place % PERIOD;
    // Two rounds of multiply and shift (constants of the 64-bit golden ratio and of MurmurHash3's
    // finalizer) spread adjacent positions and ranks over all values.
    let seed = place ^ (u64::from(rank) << 32);
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    u16::try_from((mixed >> 40) % BOUND).expect("it is below the bound")
}

/// Writes the elements that a rank sends, starting at position 0.
pub fn fill_elements(rank: u32, bytes: &mut [u8]) {
    for (place, four) in (0..).zip(bytes.chunks_exact_mut(4)) {
        four.copy_from_slice(&f32::from(element(rank, place)).to_ne_bytes());
    }
}

/// The element that a rank of `ranks` must receive at a position.
pub fn expected_element(
    collective: NcclCollective,
    counts: CollectiveCounts,
    ranks: u32,
    rank: u32,
    place: u64,
) -> f32 {
    let part = counts.call.max(1);
    let sender = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    match collective {
        NcclCollective::AllReduce => expected_sum(ranks, place),
        NcclCollective::ReduceScatter => expected_sum(ranks, u64::from(rank) * part + place),
        NcclCollective::AllGather => f32::from(element(sender(place / part), place % part)),
        NcclCollective::AllToAll => {
            f32::from(element(sender(place / part), u64::from(rank) * part + place % part))
        }
        NcclCollective::SendReceive => {
            f32::from(element((rank + ranks.max(1) - 1) % ranks.max(1), place))
        }
        NcclCollective::Broadcast => f32::from(element(0, place)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the sum is below 2^24, which a float holds")]
fn expected_sum(ranks: u32, place: u64) -> f32 {
    (0..ranks).map(|rank| u32::from(element(rank, place))).sum::<u32>() as f32
}

/// Elements to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckWindow {
    /// Position of the first element.
    pub from: u64,
    /// Number of elements.
    pub elements: u64,
}

/// The windows to check in a rank's received data: all of it if it is small, else windows at the
/// start, the middle and the end of each rank's part.
pub fn check_windows(collective: NcclCollective, counts: CollectiveCounts) -> Vec<CheckWindow> {
    if counts.receive <= MAX_CHECKED {
        return vec![CheckWindow { from: 0, elements: counts.receive }];
    }
    let part = match collective {
        NcclCollective::AllGather | NcclCollective::AllToAll => counts.call,
        _ => counts.receive,
    };
    let parts = counts.receive / part.max(1);
    let elements = (MAX_CHECKED / (3 * parts)).max(LEAST_WINDOW).min(part);
    let places = [0, (part - elements) / 2, part - elements];
    (0..parts)
        .flat_map(|at| places.map(|place| CheckWindow { from: at * part + place, elements }))
        .collect()
}

/// Maximum bytes of one window.
pub fn largest_window_bytes() -> usize {
    usize::try_from(MAX_CHECKED * 4).expect("a MiB")
}

/// Check result of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CollectiveCheck {
    /// Elements checked.
    pub elements: u64,
    /// Elements with an unexpected value.
    pub wrong: u64,
    /// The first of them: position, value found, value expected.
    pub first: Option<(u64, f32, f32)>,
}

impl CollectiveCheck {
    /// Compares the bytes of a window with the expected data.
    pub fn compare_window(
        &mut self,
        window: CheckWindow,
        bytes: &[u8],
        expected: impl Fn(u64) -> f32,
    ) {
        for (place, four) in (window.from..window.from + window.elements).zip(bytes.chunks_exact(4))
        {
            let four = four.try_into().expect("chunks of four bytes");
            let (found, wanted) = (f32::from_ne_bytes(four), expected(place));
            self.elements += 1;
            // Compare bits and not values: unwritten data is NaN.
            if found.to_bits() != wanted.to_bits() {
                self.wrong += 1;
                self.first.get_or_insert((place, found, wanted));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data that every rank receives, computed from all ranks' data by the definition of the
    /// collective.
    fn received(
        collective: NcclCollective,
        counts: CollectiveCounts,
        ranks: u32,
        rank: u32,
    ) -> Vec<f32> {
        let sent: Vec<Vec<f32>> = (0..ranks)
            .map(|rank| (0..counts.send).map(|at| f32::from(element(rank, at))).collect())
            .collect();
        let part = usize::try_from(counts.call).expect("small");
        let me = rank as usize;
        let total = |at: usize| sent.iter().map(|of| of[at]).sum::<f32>();
        match collective {
            NcclCollective::AllReduce => (0..sent[0].len()).map(total).collect(),
            NcclCollective::AllGather => sent.concat(),
            NcclCollective::ReduceScatter => (me * part..(me + 1) * part).map(total).collect(),
            NcclCollective::AllToAll => {
                sent.iter().flat_map(|of| of[me * part..(me + 1) * part].to_vec()).collect()
            }
            NcclCollective::SendReceive => sent[(me + sent.len() - 1) % sent.len()].clone(),
            NcclCollective::Broadcast => sent[0].clone(),
        }
    }

    #[test]
    fn expected_elements_match_the_definition() {
        for collective in NcclCollective::ALL {
            for ranks in [1, 2, 5] {
                let counts = collective.counts(1_200, ranks).expect("it is enough");
                for rank in 0..ranks {
                    let received = received(collective, counts, ranks, rank);
                    assert_eq!(received.len() as u64, counts.receive, "{collective:?}");
                    for (place, found) in (0..).zip(&received) {
                        let wanted = expected_element(collective, counts, ranks, rank, place);
                        assert_eq!(*found, wanted, "{collective:?} {ranks} {rank} {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn adjacent_elements_and_ranks_differ() {
        let same = |pairs: &dyn Fn(u64) -> (u16, u16)| {
            (0..10_000).map(pairs).filter(|(a, b)| a == b).count()
        };
        // By chance, one in 97 is the same: 103 of 10,000.
        for same in [
            same(&|at| (element(3, at), element(3, at + 1))),
            same(&|at| (element(3, at), element(4, at))),
            same(&|at| (element(0, at), element(0, at + 4096))),
        ] {
            assert!(same < 200, "{same} of 10,000 are the same");
        }
        assert!((0..10_000).all(|at| u64::from(element(7, at)) < BOUND));
    }

    #[test]
    fn small_data_is_checked_completely_and_large_data_in_three_windows_per_part() {
        let small = NcclCollective::AllReduce.counts(4_096, 8).expect("enough");
        let all = check_windows(NcclCollective::AllReduce, small);
        assert_eq!(all, [CheckWindow { from: 0, elements: 1_024 }]);
        let large = NcclCollective::AllGather.counts(1 << 30, 8).expect("enough");
        let some = check_windows(NcclCollective::AllGather, large);
        assert_eq!(some.len(), 24, "three for each of eight ranks");
        assert_eq!(some[0].from, 0);
        let last = some.last().expect("windows");
        assert_eq!(last.from + last.elements, large.receive, "the end is checked");
        let checked: u64 = some.iter().map(|window| window.elements).sum();
        assert!(checked <= MAX_CHECKED, "{checked}");
        assert!(some.windows(2).all(|two| two[0].from + two[0].elements <= two[1].from));
    }

    #[test]
    fn wrong_and_unwritten_elements_are_counted() {
        let mut bytes = vec![0; 40];
        fill_elements(2, &mut bytes);
        bytes[8..12].copy_from_slice(&UNWRITTEN.to_ne_bytes());
        bytes[20..24].copy_from_slice(&500.0f32.to_ne_bytes());
        let mut checked = CollectiveCheck::default();
        let window = CheckWindow { from: 0, elements: 10 };
        checked.compare_window(window, &bytes, |place| f32::from(element(2, place)));
        assert_eq!((checked.elements, checked.wrong), (10, 2));
        let (place, found, _) = checked.first.expect("one is wrong");
        assert!(place == 2 && found.is_nan());
    }
}
