//! Network rates that are higher than the ends of their pairs can reach.
//!
//! A pair is as fast as its slower end. So if an end is fast with several others, those are fast
//! with each other, except for the paths between them. If most of them are not, the rates of that
//! end are wrong and do not define a level for the other pairs.

use std::collections::{BTreeMap, BTreeSet};

use super::super::peel;
use super::super::rail_readings::{RailReadings, order_pair};
use model::stats;

/// The number of pairs among an end's partners that must contradict its rates: one of them may be a
/// slow path.
const FEWEST_PAIRS: usize = 3;

/// No end of a fleet with NICs of one rate reaches this many times the usual rate, so even a fleet
/// with few partners per end contradicts it.
const MIN_FACTOR: f64 = 3.0;

/// An end is high with at least this share of its partners: noise alone raises some.
const MIN_PARTNER_SHARE: (usize, usize) = (2, 3);

/// An end's rates exceed those of its partners by this many standard deviations, of which one is at
/// least `MIN_SIGMA`.
const SIGNIFICANCE_Z: f64 = 4.0;
const MIN_SIGMA: f64 = 0.01;

/// Among more ends, one or two have too few of all pairs to move a level.
const FEW_ENDS: usize = 64;

/// With more such ends, the fleet has NICs of several rates.
const MOST_ENDS: usize = 4;

/// Quantiles of all pairs that may hold the usual rate: the median, or lower if two of six ends
/// read higher with all others.
const USUAL_QUANTILES: [f64; 3] = [0.5, 0.35, 0.2];

/// The excess over the usual rate from which a rate is high: smaller ones move a level by less than
/// a detectable fault.
const MIN_EXCESS: f64 = 2.0 * peel::MIN_EFFECT;

/// Two ends, the lower one first, and the rate between them in GB/s.
type PairRates = BTreeMap<(usize, usize), f64>;

/// An end whose rates are removed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ImplausibleEnd {
    pub(super) end: usize,
    /// Its partners for these rates.
    pub(super) partners: BTreeSet<usize>,
    /// Its rate with them, and the usual rate, in GB/s.
    pub(super) rate: f64,
    pub(super) usual: f64,
}

/// Removes readings that are higher than the partners of their end reach with each other.
pub(super) fn remove_implausible(rail: &mut RailReadings<'_>) -> Vec<ImplausibleEnd> {
    let mut found = Vec::new();
    for (groups, pairs) in rates_by_kind(rail) {
        for above in find_contradicted(&pairs) {
            let is_implausible = |a: usize, b: usize| a == above.end && above.partners.contains(&b);
            rail.readings.retain(|r| {
                !groups.contains(&r.group)
                    || !(is_implausible(r.src, r.dst) || is_implausible(r.dst, r.src))
            });
            found.push(above);
        }
    }
    found
}

/// The maximum rate of each pair over the tests of a kind, and the groups of that kind. Skips kinds
/// with many ends.
fn rates_by_kind(rail: &RailReadings<'_>) -> Vec<(BTreeSet<usize>, PairRates)> {
    let mut kinds: Vec<BTreeSet<usize>> = Vec::new();
    let mut kind_of = Vec::with_capacity(rail.groups.len());
    for (at, group) in rail.groups.iter().enumerate() {
        let same = (0..at).find(|other| rail.groups[*other].is_same_kind(group));
        let kind = same.map_or(kinds.len(), |same| kind_of[same]);
        kind_of.push(kind);
        if same.is_none() {
            kinds.push(BTreeSet::new());
        }
        kinds[kind].insert(at);
    }
    let mut met = vec![vec![false; rail.nodes.len()]; kinds.len()];
    for reading in &rail.readings {
        let met = &mut met[kind_of[reading.group]];
        (met[reading.src], met[reading.dst]) = (true, true);
    }
    let ends = |kind: usize| met[kind].iter().filter(|met| **met).count();
    let few: Vec<bool> = (0..kinds.len()).map(|kind| ends(kind) <= FEW_ENDS).collect();
    let mut kinds: Vec<_> = kinds.into_iter().map(|groups| (groups, PairRates::new())).collect();
    for ((src, dst, group), mut values) in rail.cells_of(|group| few[kind_of[group]]) {
        if let Some(value) = stats::median(&mut values) {
            let most = kinds[kind_of[group]].1.entry(order_pair(src, dst)).or_insert(value);
            *most = value.max(*most);
        }
    }
    kinds
}

/// The ends whose rates most pairs of their partners contradict.
fn find_contradicted(pairs: &PairRates) -> Vec<ImplausibleEnd> {
    let mut found = Vec::new();
    let mut left = pairs.clone();
    let any = |left: &PairRates| {
        let near = USUAL_QUANTILES
            .iter()
            .find_map(|quantile| find_highest(left, *quantile, 1.0 + MIN_EXCESS, is_contradicted));
        near.or_else(|| find_highest(left, 0.5, MIN_FACTOR, are_low_elsewhere))
    };
    while let Some(ends) = any(&left) {
        for above in &ends {
            let is_implausible =
                |a: &usize, b: &usize| *a == above.end && above.partners.contains(b);
            left.retain(|(a, b), _| !(is_implausible(a, b) || is_implausible(b, a)));
        }
        found.extend(ends);
        // With this many ends, one or two errors are not the cause.
        if MOST_ENDS < found.len() {
            return Vec::new();
        }
    }
    found
}

/// The end, or the two ends, with the most partners above this quantile by the factor, among those
/// whose partners contradict them.
fn find_highest(
    pairs: &PairRates,
    quantile: f64,
    times: f64,
    contradict: impl Fn(&BTreeSet<usize>, &BTreeSet<usize>, &PairRates, f64) -> bool,
) -> Option<Vec<ImplausibleEnd>> {
    let mut values: Vec<f64> = pairs.values().copied().collect();
    let usual = stats::quantile(&mut values, quantile)?;
    let line = usual * times;
    let mut partners: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for ((a, b), _) in pairs.iter().filter(|(_, value)| line < **value) {
        partners.entry(*a).or_default().insert(*b);
        partners.entry(*b).or_default().insert(*a);
    }
    let mut met: BTreeMap<usize, usize> = BTreeMap::new();
    pairs
        .keys()
        .for_each(|(a, b)| [a, b].into_iter().for_each(|e| *met.entry(*e).or_default() += 1));
    partners.retain(|end, others| {
        1 < others.len()
            && (MIN_FACTOR <= times
                || met[end] * MIN_PARTNER_SHARE.0 <= others.len() * MIN_PARTNER_SHARE.1)
    });
    let mut ends: Vec<usize> = partners.keys().copied().collect();
    ends.sort_by_key(|end| core::cmp::Reverse(partners[end].len()));
    ends.truncate(MOST_ENDS);
    let alone = ends.iter().map(|end| BTreeSet::from([*end]));
    let two = ends.iter().enumerate();
    let two = two.flat_map(|(n, a)| ends[n + 1..].iter().map(|b| BTreeSet::from([*a, *b])));
    let found = alone.chain(two).find(|ends| {
        let others = ends.iter().flat_map(|end| &partners[end]).copied();
        let others = others.filter(|end| !ends.contains(end)).collect();
        // Noise alone does not move a pair from one line to the other.
        contradict(ends, &others, pairs, f64::midpoint(usual, line))
    })?;
    let above = |end: usize| {
        let partners = partners[&end].clone();
        let own = |other: &usize| pairs.get(&order_pair(end, *other)).copied();
        let rate = stats::median(&mut partners.iter().filter_map(own).collect::<Vec<_>>())?;
        Some(ImplausibleEnd { end, partners, rate, usual })
    };
    Some(found.into_iter().filter_map(above).collect())
}

/// Whether most pairs of these partners, and at least several, lie below the line, and differ less
/// from each other than from the rates of the ends.
fn is_contradicted(
    ends: &BTreeSet<usize>,
    partners: &BTreeSet<usize>,
    pairs: &PairRates,
    line: f64,
) -> bool {
    let with = |ends: &BTreeSet<usize>, own: usize| {
        let rate = |other: &usize| pairs.get(&order_pair(own, *other)).copied();
        ends.iter().filter_map(rate).collect::<Vec<f64>>()
    };
    let mut among: Vec<f64> = partners
        .iter()
        .flat_map(|end| with(&partners.range(end + 1..).copied().collect(), *end))
        .collect();
    let low = among.iter().filter(|value| **value <= line).count();
    if among.len() < FEWEST_PAIRS || 2 * low <= among.len() {
        return false;
    }
    let Some(middle) = stats::median(&mut among) else { return false };
    let sigma =
        stats::spread(&among, middle).map_or(MIN_SIGMA, |sigma| sigma.max(MIN_SIGMA * middle));
    ends.iter().all(|end| {
        let own = stats::median(&mut with(partners, *end));
        own.is_some_and(|own| middle + SIGNIFICANCE_Z * sigma < own)
    })
}

/// Whether several of these partners were measured with other ends, and none of them is above the
/// line there.
fn are_low_elsewhere(
    ends: &BTreeSet<usize>,
    partners: &BTreeSet<usize>,
    pairs: &PairRates,
    line: f64,
) -> bool {
    let others = |end: &usize| {
        let with = |(a, b): &(usize, usize)| {
            [a, b].contains(&end) && !ends.contains(a) && !ends.contains(b)
        };
        pairs
            .iter()
            .filter(move |(pair, _)| with(pair))
            .map(|(_, value)| *value)
            .collect::<Vec<_>>()
    };
    let others: Vec<Vec<f64>> = partners.iter().map(others).collect();
    let low = others.iter().filter(|values| !values.is_empty()).count();
    1 < low && others.iter().flatten().all(|value| *value <= line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::stats::normal_sampler::NormalSampler;

    fn pairs(n: usize, mut value: impl FnMut(usize, usize) -> f64) -> PairRates {
        let all = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        all.map(|(a, b)| ((a, b), value(a, b))).collect()
    }

    fn ends(pairs: &PairRates) -> Vec<usize> {
        let mut ends: Vec<usize> = find_contradicted(pairs).iter().map(|it| it.end).collect();
        ends.sort_unstable();
        ends
    }

    #[test]
    fn rates_that_only_one_or_two_ends_reach_are_removed() {
        for factor in [1.08, 1.2, 8.0] {
            for n in 4..12 {
                let one = pairs(n, |a, b| if a == 3 || b == 3 { factor } else { 1.0 });
                assert_eq!(ends(&one), [3], "{factor} of {n}");
            }
            for n in 6..12 {
                let is_high = |end: usize| [3, 5].contains(&end);
                let two = pairs(n, |a, b| if is_high(a) || is_high(b) { factor } else { 1.0 });
                assert_eq!(ends(&two), [3, 5], "{factor} of {n}");
            }
        }
    }

    /// Of 2,000 fleets each; more than 1 % noise is rare.
    #[test]
    fn noise_alone_removes_almost_nothing() {
        for (noise, most) in [(0.005, 0), (0.01, 0), (0.03, 5)] {
            let mut found = 0;
            for seed in 0..500 {
                let mut normals = NormalSampler::new(seed);
                for n in [4, 6, 8, 12] {
                    found += ends(&pairs(n, |_, _| 1.0 + noise * normals.next_normal())).len();
                }
            }
            assert!(found <= most, "{found} at {noise}");
        }
    }

    /// Every fleet in which a pair is as fast as its slower end, but for slow paths.
    #[test]
    fn rates_that_ends_can_reach_stay() {
        for n in 3..12 {
            for bits in 0_u32..1 << n {
                let rate = |end: usize| if bits & (1 << end) == 0 { 1.0 } else { 0.5 };
                let fleet = pairs(n, |a, b| f64::min(rate(a), rate(b)));
                assert_eq!(ends(&fleet), [0; 0], "{bits:b} of {n}");
                let path = pairs(n, |a, b| {
                    f64::min(rate(a), rate(b)) * if (a, b) == (0, 1) { 0.3 } else { 1.0 }
                });
                assert_eq!(ends(&path), [0; 0], "{bits:b} of {n}, and a path");
            }
        }
        // A ring: each end has two partners.
        let ring = |high: &[usize]| -> PairRates {
            let rate = |n: usize| {
                if high.contains(&n) || high.contains(&((n + 1) % 9)) { 8.0 } else { 1.0 }
            };
            (0..9).map(|n| (order_pair(n, (n + 1) % 9), rate(n))).collect()
        };
        assert_eq!(ends(&ring(&[4])), [4]);
        assert_eq!(ends(&ring(&[])), [0; 0]);
        // Ends without other partners contradict no rate.
        let apart: PairRates = [((0, 1), 8.0), ((2, 3), 1.0), ((4, 5), 1.0), ((6, 7), 1.0)].into();
        assert_eq!(ends(&apart), [0; 0]);
    }
}
