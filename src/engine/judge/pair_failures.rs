//! Failed two-node runs: identifies the failing end.
//!
//! A failed run blames neither end. A node that fails with nearly all its partners, while they
//! succeed with others, explains the failures; the remaining failures stay unknown for both ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// With fewer partners, the failing end is ambiguous.
const FEWEST: usize = 2;

/// If this share of its partners fails, the end is the cause: one run in four may succeed before
/// the fault, or after it.
const NEARLY_ALL: f64 = 0.75;

/// Pairs by their two ends, the lower one first.
pub(super) type FailurePairs<N> = BTreeSet<(N, N)>;

/// The ends that explain the failing pairs. `good` holds pairs that succeeded, `working` further
/// ends that succeeded elsewhere.
pub(super) fn attribute<N: Ord + Clone>(
    good: &FailurePairs<N>,
    failed: &FailurePairs<N>,
    working: &BTreeSet<N>,
) -> BTreeSet<N> {
    let through: BTreeSet<&N> =
        good.difference(failed).flat_map(|(a, b)| [a, b]).chain(working).collect();
    let pairs = good
        .difference(failed)
        .map(|pair| (pair, false))
        .chain(failed.iter().map(|pair| (pair, true)));
    // The partners of each end, and whether it fails with them.
    let mut met: BTreeMap<&N, Vec<(&N, bool)>> = BTreeMap::new();
    for ((a, b), has_failed) in pairs {
        met.entry(a).or_default().push((b, has_failed));
        met.entry(b).or_default().push((a, has_failed));
    }
    // A failure with a partner that succeeds with none carries no information about an end.
    let is_informative = |partner: &N, has_failed: bool| !has_failed || through.contains(partner);
    let count = |with: &[(&N, bool)]| {
        let informative =
            with.iter().filter(|(partner, has_failed)| is_informative(partner, *has_failed));
        informative.fold((0, 0), |(failing, all), (_, has_failed)| {
            (failing + usize::from(*has_failed), all + 1)
        })
    };
    let mut counts: BTreeMap<&N, (usize, usize)> =
        met.iter().map(|(end, with)| (*end, count(with))).collect();
    #[expect(clippy::cast_precision_loss, reason = "counts of partners")]
    let is_suspect = |(failing, partners): (usize, usize)| {
        FEWEST <= failing && NEARLY_ALL <= failing as f64 / partners as f64
    };
    // Suspects, ordered by failures, most last.
    let mut suspects: BTreeSet<(usize, Reverse<&N>)> = counts
        .iter()
        .filter(|(_, count)| is_suspect(**count))
        .map(|(end, (failing, _))| (*failing, Reverse(*end)))
        .collect();
    let mut found: BTreeSet<N> = BTreeSet::new();
    while let Some((_, Reverse(end))) = suspects.pop_last() {
        found.insert(end.clone());
        for (other, has_failed) in met.get(end).into_iter().flatten() {
            let is_open = !found.contains(*other) && is_informative(end, *has_failed);
            let Some(count) = counts.get_mut(other).filter(|_| is_open) else { continue };
            suspects.remove(&(count.0, Reverse(*other)));
            *count = (count.0 - usize::from(*has_failed), count.1 - 1);
            if is_suspect(*count) {
                suspects.insert((count.0, Reverse(*other)));
            }
        }
    }
    let all = met;
    // If most ends are blamed, the cause lies above them.
    if found.len() * 2 < all.len() { found } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(n: u32, fails: impl Fn(u32, u32) -> bool) -> (FailurePairs<u32>, FailurePairs<u32>) {
        let all = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        all.partition(|(a, b)| !fails(*a, *b))
    }

    #[test]
    fn an_end_that_fails_with_all_partners_explains_all_failures() {
        let (good, failed) = pairs(18, |a, b| a == 3 || b == 3 || a == 7 || b == 7);
        assert_eq!(attribute(&good, &failed, &[].into()), [3, 7].into());
        let (good, failed) = pairs(18, |a, b| (a, b) == (2, 9));
        assert_eq!(attribute(&good, &failed, &[].into()), [].into());
    }

    #[test]
    fn two_halves_blame_no_end() {
        let (good, failed) = pairs(18, |a, b| (a < 9) != (b < 9));
        assert_eq!(attribute(&good, &failed, &[].into()), [].into());
        let (good, failed) = pairs(4, |_, _| true);
        assert_eq!(attribute(&good, &failed, &[].into()), [].into());
    }

    #[test]
    fn partners_without_a_successful_run_blame_no_end() {
        // Three that were measured only with each other: each fails with both others.
        let ring: FailurePairs<u32> = [(0, 1), (0, 2), (1, 2)].into();
        let good: FailurePairs<u32> = (3..9).map(|end| (end, end + 1)).collect();
        assert_eq!(attribute(&good, &ring, &[].into()), [].into());
        // One that fails with two, which succeed elsewhere.
        let star: FailurePairs<u32> = [(0, 1), (0, 2)].into();
        assert_eq!(attribute(&good, &star, &[].into()), [].into());
        assert_eq!(attribute(&good, &star, &[1, 2].into()), [0].into());
        // An end with good runs whose other partners are all broken is healthy.
        let (mut good, failed) = pairs(9, |a, b| a < 3 || b < 3);
        good.retain(|(a, b)| *a != 8 && *b != 8 || (*a, *b) == (7, 8));
        assert_eq!(attribute(&good, &failed, &[].into()), [0, 1, 2].into());
    }
}
