//! Ids of runs: unique, and chronological when sorted by name.

use jiff::Timestamp;

/// The id of a run that starts at `now`: `20261121-065544-3f9a1c`. `entropy` distinguishes runs of
/// the same second.
pub fn new_run_id(now: Timestamp, entropy: u64) -> String {
    let time = now.strftime("%Y%m%d-%H%M%S");
    // 24 bits: a clash needs thousands of runs in one second, and then creating the existing folder
    // fails instead of overwriting it.
    format!("{time}-{:06x}", mix_bits(entropy) >> 40)
}

/// Spreads the differences of two numbers over all bits (the finaliser of
/// `SplitMix64`; Steele, Lea, Flood, 2014).
fn mix_bits(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_differ_within_a_second() {
        let at = |seconds| Timestamp::from_second(seconds).expect("in range");
        assert!(new_run_id(at(1_795_234_701), 0).starts_with("20261121-041821-"));
        assert!(new_run_id(at(1_795_234_701), 7) < new_run_id(at(1_795_234_702), 1));
        let ids: std::collections::BTreeSet<String> =
            (0..1000).map(|n| new_run_id(at(0), n)).collect();
        assert_eq!(ids.len(), 1000);
    }
}
