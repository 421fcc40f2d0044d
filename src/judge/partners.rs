//! Runs of two that failed: which of the two it is.
//!
//! A run that fails accuses neither end. Whoever fails with nearly all its
//! partners, while they get through to others, explains the failures; what is
//! left over stays unknown for both.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// Fewer partners than this cannot tell whose fault it is.
const FEWEST: usize = 2;

/// This share of its partners is nearly all: one run in four may have got
/// through before the fault, or after it.
const NEARLY_ALL: f64 = 0.75;

/// Pairs by their two ends, the lower one first.
pub(super) type Pairs<N> = BTreeSet<(N, N)>;

/// The ends that explain the failing pairs. `good` holds pairs that got through.
pub(super) fn culprits<N: Ord + Clone>(good: &Pairs<N>, failed: &Pairs<N>) -> BTreeSet<N> {
    let all: BTreeSet<&N> = good.union(failed).flat_map(|(a, b)| [a, b]).collect();
    let mut found: BTreeSet<N> = BTreeSet::new();
    loop {
        let mut counts: BTreeMap<&N, (usize, usize)> = BTreeMap::new();
        for (pair, has_failed) in
            good.difference(failed).map(|p| (p, false)).chain(failed.iter().map(|p| (p, true)))
        {
            for (end, other) in [(&pair.0, &pair.1), (&pair.1, &pair.0)] {
                if !found.contains(other) {
                    let count = counts.entry(end).or_default();
                    *count = (count.0 + usize::from(has_failed), count.1 + 1);
                }
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of partners")]
        let is_suspect = |(failing, partners): (usize, usize)| {
            FEWEST <= failing && NEARLY_ALL <= failing as f64 / partners as f64
        };
        let worst = counts
            .into_iter()
            .filter(|(end, count)| !found.contains(*end) && is_suspect(*count))
            .max_by_key(|(end, (failing, _))| (*failing, std::cmp::Reverse(*end)));
        let Some((end, _)) = worst else { break };
        found.insert(end.clone());
    }
    // Where most are guilty, something above them is.
    if found.len() * 2 < all.len() { found } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(n: u32, fails: impl Fn(u32, u32) -> bool) -> (Pairs<u32>, Pairs<u32>) {
        let all = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        all.partition(|(a, b)| !fails(*a, *b))
    }

    #[test]
    fn who_fails_with_everybody_explains_all_failures() {
        let (good, failed) = pairs(18, |a, b| a == 3 || b == 3 || a == 7 || b == 7);
        assert_eq!(culprits(&good, &failed), [3, 7].into());
        let (good, failed) = pairs(18, |a, b| (a, b) == (2, 9));
        assert_eq!(culprits(&good, &failed), [].into());
    }

    #[test]
    fn two_halves_accuse_nobody() {
        let (good, failed) = pairs(18, |a, b| (a < 9) != (b < 9));
        assert_eq!(culprits(&good, &failed), [].into());
        let (good, failed) = pairs(4, |_, _| true);
        assert_eq!(culprits(&good, &failed), [].into());
    }
}
