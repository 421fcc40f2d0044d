//! The best-connected set of k parts: the one whose weakest pair is strongest, and among those the
//! one with the largest sum. Exact if the search finishes within its steps; otherwise the best set
//! found so far, with a bound on any other.
//!
//! Strengths are integers (millionths), so the same matrix gives the same set on every machine. A
//! missing reading connects nothing: two parts without a reading are never in one set.

use std::collections::BTreeSet;

/// Steps of one search. A choice among 18 parts (a rack of nodes) needs at most C(19, 9) = 92,378
/// steps: its sets have that many prefixes.
const MAX_STEPS: u64 = 200_000;

/// Strengths of pairs among n parts, in millionths; `None` if not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairStrengths {
    n: usize,
    pairs: Vec<Option<u64>>,
}

impl PairStrengths {
    /// The strengths that `of` returns for every pair `a < b`.
    pub fn new(n: usize, of: impl Fn(usize, usize) -> Option<f64>) -> Self {
        let mut pairs = vec![None; n * n];
        for a in 0..n {
            for b in a + 1..n {
                let strength = of(a, b).and_then(to_millionths);
                pairs[a * n + b] = strength;
                pairs[b * n + a] = strength;
            }
        }
        Self { n, pairs }
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.n
    }

    /// The strength of a pair, in millionths.
    pub fn pair(&self, a: usize, b: usize) -> Option<u64> {
        self.pairs[a * self.n + b]
    }

    /// The weakest pair of a set; `None` if it has no pair or one was not measured.
    pub fn weakest(&self, set: &[usize]) -> Option<(usize, usize, u64)> {
        let mut weakest: Option<(usize, usize, u64)> = None;
        for (at, a) in set.iter().enumerate() {
            for b in &set[at + 1..] {
                let strength = self.pair(*a, *b)?;
                if weakest.is_none_or(|(_, _, known)| strength < known) {
                    weakest = Some((*a, *b, strength));
                }
            }
        }
        weakest
    }

    fn sum(&self, set: &[usize]) -> u64 {
        let pairs = set
            .iter()
            .enumerate()
            .flat_map(|(at, a)| set[at + 1..].iter().map(|b| self.pair(*a, *b).unwrap_or(0)));
        pairs.sum()
    }
}

fn to_millionths(value: f64) -> Option<u64> {
    /// The largest accepted reading, in GB/s.
    const MOST: f64 = 1e12;
    let scaled = (value * 1e6).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e12")]
    (0.0..=MOST).contains(&scaled).then_some(scaled as u64)
}

/// The selected set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestSubset {
    /// The parts, in order.
    pub set: Vec<usize>,
    /// Its weakest pair; `None` for a set of one.
    pub weakest: Option<(usize, usize, u64)>,
    /// The sum over its pairs.
    pub sum: u64,
    /// No other set has a stronger weakest pair, or an equal one and a larger sum.
    pub is_exact: bool,
    /// Upper bound on the weakest pair of any set.
    pub weakest_bound: u64,
    /// Upper bound on the sum of any set whose weakest pair is as strong.
    pub sum_bound: u64,
}

/// The best-connected set of `k`; `None` if the search found no `k` parts that were all measured
/// with each other.
pub fn find_best(strengths: &PairStrengths, k: usize) -> Option<BestSubset> {
    find_best_within(strengths, k, MAX_STEPS)
}

/// [`find_best`] with this step limit for each search.
pub(super) fn find_best_within(
    strengths: &PairStrengths,
    k: usize,
    steps: u64,
) -> Option<BestSubset> {
    if k == 0 || strengths.n < k {
        return None;
    }
    if k == 1 {
        return find_best_single(strengths);
    }
    let all: BTreeSet<u64> = strengths.pairs.iter().flatten().copied().collect();
    let levels: Vec<u64> = all.into_iter().collect();
    // The highest level at which the number of connected parts does not rule out a set.
    let allowed = levels.partition_point(|level| !prune_to_core(strengths, *level, k).is_empty());
    let bound = *levels.get(allowed.checked_sub(1)?)?;
    let mut is_exact = true;
    let mut found: Option<Vec<usize>> = None;
    // Sets at one level are also sets at every lower one.
    let (mut low, mut high) = (0, allowed);
    let mut weakest_bound = bound;
    while low < high {
        let middle = usize::midpoint(low, high);
        let mut search = SubsetSearch::new(strengths, levels[middle], k, steps);
        match search.find_any() {
            Some(set) => {
                // The set may be better than required.
                let (_, _, has) = strengths.weakest(&set)?;
                low = levels.partition_point(|level| *level <= has);
                found = Some(set);
            }
            None => {
                high = middle;
                if search.is_exhausted() {
                    is_exact = false;
                } else {
                    weakest_bound = weakest_bound.min(levels[middle.saturating_sub(1)]);
                }
            }
        }
    }
    let found = found?;
    let (_, _, level) = strengths.weakest(&found)?;
    if is_exact {
        weakest_bound = level;
    }
    let mut search = SubsetSearch::new(strengths, level, k, steps);
    let set = search.find_richest(found);
    is_exact &= !search.is_exhausted();
    let sum = strengths.sum(&set);
    Some(BestSubset {
        weakest: strengths.weakest(&set),
        sum,
        is_exact,
        weakest_bound,
        sum_bound: if search.is_exhausted() { search.sum_bound() } else { sum },
        set,
    })
}

/// Among single parts: the one with the strongest weakest connection to all others, then with the
/// largest sum; parts with a missing reading come last.
fn find_best_single(strengths: &PairStrengths) -> Option<BestSubset> {
    let rank = |a: usize| {
        let mut weakest = Some(u64::MAX);
        let mut sum = 0;
        for b in (0..strengths.n).filter(|b| *b != a) {
            let strength = strengths.pair(a, b);
            weakest = weakest.zip(strength).map(|(known, it)| known.min(it));
            sum += strength.unwrap_or(0);
        }
        (weakest, sum)
    };
    let best = (0..strengths.n).max_by_key(|a| (rank(*a), std::cmp::Reverse(*a)))?;
    Some(BestSubset {
        set: vec![best],
        weakest: None,
        sum: 0,
        is_exact: true,
        weakest_bound: 0,
        sum_bound: 0,
    })
}

/// The parts that can be in a set of `k` at this level: each reaches the level with `k - 1` others
/// of the result, because a set requires it of all its pairs.
fn prune_to_core(strengths: &PairStrengths, level: u64, k: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..strengths.n).collect();
    loop {
        let has_enough = |a: &usize| {
            let near = |b: &&usize| *b != a && strengths.pair(*a, **b).is_some_and(|s| level <= s);
            k - 1 <= left.iter().filter(near).count()
        };
        let kept: Vec<usize> = left.iter().copied().filter(has_enough).collect();
        if kept.len() == left.len() {
            return if kept.len() < k { Vec::new() } else { kept };
        }
        left = kept;
    }
}

/// A search among sets in which every pair reaches a level.
struct SubsetSearch<'s> {
    strengths: &'s PairStrengths,
    level: u64,
    k: usize,
    steps_left: u64,
    /// The best set so far with its sum.
    richest: Option<(Vec<usize>, u64)>,
    /// The best set comes from this search, and is the first of equal sets.
    is_first: bool,
    core: Vec<usize>,
}

impl<'s> SubsetSearch<'s> {
    fn new(strengths: &'s PairStrengths, level: u64, k: usize, steps: u64) -> Self {
        let core = prune_to_core(strengths, level, k);
        Self { strengths, level, k, steps_left: steps, richest: None, is_first: false, core }
    }

    fn is_exhausted(&self) -> bool {
        self.steps_left == 0
    }

    fn is_connected(&self, a: usize, b: usize) -> bool {
        self.strengths.pair(a, b).is_some_and(|strength| self.level <= strength)
    }

    fn find_any(&mut self) -> Option<Vec<usize>> {
        let core = std::mem::take(&mut self.core);
        let mut set = Vec::new();
        self.extend(&mut set, &core).then_some(set)
    }

    fn extend(&mut self, set: &mut Vec<usize>, candidates: &[usize]) -> bool {
        if set.len() == self.k {
            return true;
        }
        if self.steps_left == 0 || self.count_colours(candidates) < self.k - set.len() {
            return false;
        }
        for (at, next) in candidates.iter().enumerate() {
            if set.len() + candidates.len() - at < self.k || self.steps_left == 0 {
                return false;
            }
            self.steps_left -= 1;
            set.push(*next);
            let near: Vec<usize> = candidates[at + 1..]
                .iter()
                .copied()
                .filter(|it| self.is_connected(*next, *it))
                .collect();
            if self.extend(set, &near) {
                return true;
            }
            set.pop();
        }
        false
    }

    /// A number of colours that suffices so that no connected parts share a colour: no clique is
    /// larger.
    fn count_colours(&self, parts: &[usize]) -> usize {
        let mut classes: Vec<Vec<usize>> = Vec::new();
        for part in parts {
            match classes.iter_mut().find(|c| !c.iter().any(|it| self.is_connected(*part, *it))) {
                Some(class) => class.push(*part),
                None => classes.push(vec![*part]),
            }
        }
        classes.len()
    }

    /// The set with the largest sum, first in order among equals; `known` is one candidate.
    fn find_richest(&mut self, known: Vec<usize>) -> Vec<usize> {
        let sum = self.strengths.sum(&known);
        self.richest = Some((known, sum));
        self.is_first = false;
        let core = self.core.clone();
        self.improve(&mut Vec::new(), 0, &core);
        self.richest.take().map(|(set, _)| set).unwrap_or_default()
    }

    fn improve(&mut self, set: &mut Vec<usize>, sum: u64, candidates: &[usize]) {
        let best = self.richest.as_ref().map_or(0, |(_, sum)| *sum);
        if set.len() == self.k {
            // The initial set has no position in the search order.
            if best < sum || (best == sum && !self.is_first) {
                self.richest = Some((set.clone(), sum));
                self.is_first = true;
            }
            return;
        }
        if candidates.len() < self.k - set.len() {
            return;
        }
        let most = sum + self.max_gain(set, candidates, self.k - set.len());
        if most < best || (most == best && self.is_first) {
            return;
        }
        for (at, next) in candidates.iter().enumerate() {
            if self.steps_left == 0 || set.len() + candidates.len() - at < self.k {
                return;
            }
            self.steps_left -= 1;
            let more: u64 = set.iter().map(|it| self.strengths.pair(*it, *next).unwrap_or(0)).sum();
            let near: Vec<usize> = candidates[at + 1..]
                .iter()
                .copied()
                .filter(|it| self.is_connected(*next, *it))
                .collect();
            set.push(*next);
            self.improve(set, sum + more, &near);
            set.pop();
        }
    }

    /// An upper bound on the sum that `more` of these candidates can add: each contributes its
    /// strengths to the set, and half of its strongest to other candidates (a pair is counted at
    /// both of its ends).
    fn max_gain(&self, set: &[usize], candidates: &[usize], more: usize) -> u64 {
        let mut gains: Vec<u64> = candidates
            .iter()
            .map(|a| {
                let own: u64 = set.iter().map(|b| self.strengths.pair(*a, *b).unwrap_or(0)).sum();
                let near = candidates.iter().filter(|b| *b != a && self.is_connected(*a, **b));
                let mut others: Vec<u64> =
                    near.map(|b| self.strengths.pair(*a, *b).unwrap_or(0)).collect();
                others.sort_unstable_by(|a, b| b.cmp(a));
                2 * own + others.iter().take(more - 1).sum::<u64>()
            })
            .collect();
        gains.sort_unstable_by(|a, b| b.cmp(a));
        gains.iter().take(more).sum::<u64>().div_ceil(2)
    }

    fn sum_bound(&self) -> u64 {
        self.max_gain(&[], &self.core, self.k)
    }
}

/// The best other set, found by leaving out one part at a time. `None` if no other set exists, or
/// if a search did not finish.
pub fn find_next(strengths: &PairStrengths, chosen: &BestSubset) -> Option<BestSubset> {
    let k = chosen.set.len();
    let mut next: Option<BestSubset> = None;
    for without in &chosen.set {
        let left: Vec<usize> = (0..strengths.n).filter(|it| it != without).collect();
        let fewer = PairStrengths::restrict(strengths, &left);
        let Some(other) = find_best(&fewer, k) else { continue };
        if !other.is_exact {
            return None;
        }
        let set: Vec<usize> = other.set.iter().map(|at| left[*at]).collect();
        let weakest = other.weakest.map(|(a, b, strength)| (left[a], left[b], strength));
        let other = BestSubset { set, weakest, ..other };
        let rank =
            |it: &BestSubset| (it.weakest.map(|w| w.2), it.sum, std::cmp::Reverse(it.set.clone()));
        if next.as_ref().is_none_or(|known| rank(known) < rank(&other)) {
            next = Some(other);
        }
    }
    next
}

impl PairStrengths {
    /// The strengths among some of the parts.
    fn restrict(&self, parts: &[usize]) -> Self {
        let pairs = parts.iter().flat_map(|a| parts.iter().map(|b| self.pair(*a, *b))).collect();
        Self { n: parts.len(), pairs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every set of k of n, in order.
    fn sets(n: usize, k: usize) -> Vec<Vec<usize>> {
        let is_set = |bits: &u32| bits.count_ones() as usize == k;
        let mut sets: Vec<Vec<usize>> = (0..1_u32 << n)
            .filter(is_set)
            .map(|bits| (0..n).filter(|at| bits >> at & 1 == 1).collect())
            .collect();
        sets.sort();
        sets
    }

    fn by_force(strengths: &PairStrengths, k: usize) -> Option<Vec<usize>> {
        let mut best: Option<(u64, u64, Vec<usize>)> = None;
        for set in sets(strengths.count(), k) {
            let Some((_, _, weakest)) = strengths.weakest(&set) else { continue };
            let sum = strengths.sum(&set);
            if best.as_ref().is_none_or(|(w, s, _)| (*w, *s) < (weakest, sum)) {
                best = Some((weakest, sum, set));
            }
        }
        best.map(|(_, _, set)| set)
    }

    /// Matrices with few distinct strengths, so that ties are common, and with gaps.
    fn matrices() -> impl Strategy<Value = PairStrengths> {
        (2_usize..9).prop_flat_map(|n| {
            let cell = prop_oneof![1 => Just(None), 6 => (1_u64..5).prop_map(Some)];
            prop::collection::vec(cell, n * n).prop_map(move |cells| {
                PairStrengths::new(n, |a, b| {
                    cells[a * n + b].map(|it| f64::from(u32::try_from(it).expect("small")))
                })
            })
        })
    }

    proptest! {
        #[test]
        fn the_best_set_is_the_one_that_trying_all_finds(strengths in matrices(), k in 2_usize..7) {
            let chosen = find_best(&strengths, k);
            prop_assert_eq!(chosen.as_ref().map(|it| it.set.clone()), by_force(&strengths, k));
            prop_assert!(chosen.is_none_or(|it| it.is_exact));
        }

        #[test]
        fn a_search_that_gives_up_gives_a_set_below_its_bounds(
            strengths in matrices(), k in 2_usize..6, steps in 0_u64..12,
        ) {
            let exact = find_best(&strengths, k);
            let Some(short) = find_best_within(&strengths, k, steps) else { return Ok(()) };
            let exact = exact.expect("a long search finds the result of a short one");
            let (_, _, weakest) = exact.weakest.expect("two or more");
            prop_assert!(weakest <= short.weakest_bound, "{:?} {:?}", exact, short);
            let (_, _, own) = short.weakest.expect("two or more");
            prop_assert!(own <= weakest && strengths.weakest(&short.set).is_some());
            if own == weakest {
                prop_assert!(exact.sum <= short.sum_bound, "{:?} {:?}", exact, short);
            }
            if short.is_exact {
                prop_assert_eq!(short.set, exact.set);
            }
        }

        #[test]
        fn the_next_set_is_the_best_of_all_others(strengths in matrices(), k in 2_usize..6) {
            let Some(chosen) = find_best(&strengths, k) else { return Ok(()) };
            let rank = |set: &Vec<usize>| {
                strengths.weakest(set).map(|(_, _, weakest)| (weakest, strengths.sum(set)))
            };
            let others = sets(strengths.count(), k);
            let others = others.iter().filter(|set| **set != chosen.set).filter_map(rank).max();
            let next = find_next(&strengths, &chosen);
            prop_assert_eq!(next.map(|it| (it.weakest.expect("pairs").2, it.sum)), others);
        }
    }

    #[test]
    fn unmeasured_pairs_connect_no_parts() {
        let strengths = PairStrengths::new(3, |a, b| ((a, b) != (0, 1)).then_some(1.0));
        assert_eq!(find_best(&strengths, 2).expect("a pair").set, [0, 2]);
        assert_eq!(find_best(&strengths, 3), None, "0 and 1 were not measured with each other");
        assert_eq!(find_best(&strengths, 4), None, "there are three");
    }

    #[test]
    fn a_rack_of_gpus_with_readings_that_all_differ_is_chosen_from_with_a_bound() {
        // Noise as in readings: all values differ, and none is far from the others.
        let strengths = PairStrengths::new(72, |a, b| {
            let mixed = (a * 7919 + b * 104_729) % 9973;
            Some(0.98 + f64::from(u32::try_from(mixed).expect("small")) * 2e-6)
        });
        let chosen = find_best_within(&strengths, 16, 200).expect("all are measured");
        let (_, _, weakest) = chosen.weakest.expect("pairs");
        assert_eq!(chosen.set.len(), 16);
        assert!(weakest <= chosen.weakest_bound && chosen.sum <= chosen.sum_bound);
        assert!(980_000 <= weakest, "{weakest}");
    }
}
