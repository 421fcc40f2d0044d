//! Runs of two that failed: which of the two it is.
//!
//! A run that fails accuses neither end. Whoever fails with nearly all its
//! partners, while they get through to others, explains the failures; what is
//! left over stays unknown for both.

use std::cmp::Reverse;
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
    let pairs = good
        .difference(failed)
        .map(|pair| (pair, false))
        .chain(failed.iter().map(|pair| (pair, true)));
    // Of each end its partners, and with how many of those that are not found it fails.
    let mut met: BTreeMap<&N, Vec<(&N, bool)>> = BTreeMap::new();
    for ((a, b), has_failed) in pairs {
        met.entry(a).or_default().push((b, has_failed));
        met.entry(b).or_default().push((a, has_failed));
    }
    let failing = |with: &[(&N, bool)]| with.iter().filter(|(_, has_failed)| *has_failed).count();
    let mut counts: BTreeMap<&N, (usize, usize)> =
        met.iter().map(|(end, with)| (*end, (failing(with), with.len()))).collect();
    #[expect(clippy::cast_precision_loss, reason = "counts of partners")]
    let is_suspect = |(failing, partners): (usize, usize)| {
        FEWEST <= failing && NEARLY_ALL <= failing as f64 / partners as f64
    };
    // Suspects, the one that fails with most others last.
    let mut suspects: BTreeSet<(usize, Reverse<&N>)> = counts
        .iter()
        .filter(|(_, count)| is_suspect(**count))
        .map(|(end, (failing, _))| (*failing, Reverse(*end)))
        .collect();
    let mut found: BTreeSet<N> = BTreeSet::new();
    while let Some((_, Reverse(end))) = suspects.pop_last() {
        found.insert(end.clone());
        for (other, has_failed) in met.get(end).into_iter().flatten() {
            let Some(count) = counts.get_mut(other).filter(|_| !found.contains(*other)) else {
                continue;
            };
            suspects.remove(&(count.0, Reverse(*other)));
            *count = (count.0 - usize::from(*has_failed), count.1 - 1);
            if is_suspect(*count) {
                suspects.insert((count.0, Reverse(*other)));
            }
        }
    }
    let all = met;
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
