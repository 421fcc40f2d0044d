//! Finds the end that makes a cell low: clear ends, blame the rest, release, repeat.
//!
//! A reading is `min(tx of the source, rx of the destination, path)`, so a good one clears both
//! ends and a low one blames neither. Each end that no cell clears is judged by the median over its
//! unblamed partners; the lowest is blamed, its row or column leaves, and the rest is compared
//! again. Then every blamed end that is not low with the remaining partners is released, until the
//! result is stable. A cell that is still low belongs to a pair.

mod blame;
mod low_pairs;
#[cfg(test)]
mod tests;

use blame::{BlameRule, BlamedEnds};
pub(super) use low_pairs::{PairClassification, classify_pair, span};

use super::fabric_group::PairReading;
use super::pair_matrix::PairMatrix;
use model::finding_rule::{FindingRule, RuleKind};
use model::stats;
use model::verdict::Direction;

/// Smaller effects lie within the natural spread of healthy fabrics: half the loss of one link of
/// 18. They are reported, never blamed.
pub(super) const MIN_EFFECT: f64 = 0.028;

/// A median this many standard errors low is not chance.
pub(super) const SIGNIFICANCE_Z: f64 = 5.0;

/// Additional standard errors so that a fault of the printed size is detected 999 times in 1,000:
/// Phi^-1(0.999).
pub(super) const POWER_Z: f64 = 3.09;

/// Relative spread assumed for an island too small to estimate its own: generous for copy engines
/// (measured: 0.1 to 0.3 %), typical for NCCL and NICs.
pub(super) const ASSUMED_SIGMA: f64 = 0.01;

/// The best repeatability assumed for any instrument.
pub(super) const LEAST_SIGMA: f64 = 0.000_5;

/// Islands of up to this many GPUs, or of this many nodes, are small: most of their parts can be
/// bad individually.
const SMALL_FIELD: usize = 8;

/// The quantile that levels start from: one bad GPU of four affects half of all cells, three of
/// eight two thirds. With half of all GPUs bad, a fifth to a quarter of all cells is good.
pub(super) const UPPER_QUANTILE: f64 = 0.85;

/// `UPPER_QUANTILE` in standard deviations above the median: Phi^-1(0.85).
pub(super) const UPPER_QUANTILE_Z: f64 = 1.04;

/// Ends that get slower step by step are blamed a few per turn.
const MAX_TURNS: usize = 16;

/// The rule behind a pair that may be slow.
pub(super) const DOUBTFUL_PAIR_RULE: FindingRule = FindingRule::fixed(
    RuleKind::Pair,
    "fewer than three readings that agree do not separate a slow pair from dips, unless they \
     are deeper than any dip",
);

/// How an end's partners are summarised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartnerStatistic {
    /// Their median: all pairs share one path class.
    Median,
    /// Their maximum: path classes differ and are unknown, so one good reading clears.
    Max,
}

/// One blamed end in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EndBlame {
    pub(super) gpu: usize,
    pub(super) direction: Direction,
    /// Over unblamed partners, relative to the level.
    pub(super) ratio: f64,
    pub(super) partners: usize,
    pub(super) detectable: f64,
}

/// Two ends that are slow only with each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LowPair {
    pub(super) src: usize,
    pub(super) dst: usize,
    /// Both directions are low.
    pub(super) both_ways: bool,
    pub(super) ratio: f64,
    pub(super) readings: usize,
    /// The spread of the three readings that agree best; of all, if fewer.
    pub(super) span: f64,
}

/// The level of an end in one direction, relative to the group's level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EndLevel {
    pub(super) ratio: f64,
    /// Standard error of the ratio.
    pub(super) error: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PeelResult {
    pub(super) blames: Vec<EndBlame>,
    pub(super) pairs: Vec<LowPair>,
    /// Pairs whose readings agree too well for dips, and are too few to exclude them.
    pub(super) doubtful: Vec<LowPair>,
    /// Low cells with too few readings to separate a dip from a fault.
    pub(super) dips: Vec<LowPair>,
    /// Level of each group without blamed ends.
    pub(super) levels: Vec<f64>,
    /// Ends that are low with every partner, where too few partners are good to show which side is
    /// slow.
    pub(super) unclear: Vec<(usize, Direction)>,
    pub(super) sigma: f64,
    /// The level of every end over unblamed partners, per direction.
    pub(super) end_levels: Vec<[Option<EndLevel>; 2]>,
    /// The smallest detectable degradation per GPU; `None` if the GPU was not measured.
    pub(super) detectable: Vec<Option<f64>>,
}

impl PeelResult {
    pub(super) fn is_blamed(&self, gpu: usize, direction: Direction) -> bool {
        // Ordered by end.
        let from = self.blames.partition_point(|b| b.gpu < gpu);
        let own = self.blames[from..].iter().take_while(|b| b.gpu == gpu);
        own.into_iter().any(|b| b.direction == direction)
    }

    /// The level of an end in a direction over unblamed partners.
    pub(super) fn end_level(&self, gpu: usize, direction: Direction) -> Option<EndLevel> {
        self.end_levels.get(gpu)?[usize::from(direction == Direction::Rx)]
    }
}

/// Readings between numbered ends: GPUs of an island, or nodes on a rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairReadings<'r> {
    pub(super) ends: usize,
    /// The number of nodes: ends of one node are often bad together.
    pub(super) nodes: usize,
    /// The path class of each group of readings: a good reading of one class carries no information
    /// about another class.
    pub(super) classes: &'r [u8],
    pub(super) readings: &'r [PairReading],
    /// Ends that take part: isolated ends are judged elsewhere.
    pub(super) active: &'r [bool],
    /// Initial levels, if another source than the readings provides them.
    pub(super) start_levels: Option<&'r [f64]>,
}

/// Peels a set of readings. If a third of all ends is slow, more than half of all cells are
/// affected, so levels first come from the upper end. In a large set, more than half of all ends
/// are not slow individually: either the others are fast, or all share one cause, and levels are
/// medians.
pub(super) fn peel_readings(field: &PairReadings<'_>, statistic: PartnerStatistic) -> PeelResult {
    let few = field.ends <= SMALL_FIELD || (1 < field.nodes && field.nodes <= SMALL_FIELD);
    let first = peel_from(field, statistic, Some(UPPER_QUANTILE));
    let met = first.end_levels.iter().flatten().flatten().count();
    let blamed = first.blames.len() + first.unclear.len();
    match field.start_levels.is_none() && !few && met < 2 * blamed {
        true => peel_from(field, statistic, None),
        false => first,
    }
}

/// Peels with levels that start from this quantile, or from the median.
fn peel_from(
    field: &PairReadings<'_>,
    statistic: PartnerStatistic,
    upper: Option<f64>,
) -> PeelResult {
    let (n, active) = (field.ends, field.active);
    let mut readings: Vec<PairReading> =
        field.readings.iter().copied().filter(|r| active[r.src] && active[r.dst]).collect();
    readings.sort_by_key(|r| (r.src, r.dst));
    let groups = field.classes.len();
    let mut out = PeelResult { detectable: vec![None; n], ..PeelResult::default() };
    let mut blamed = BlamedEnds::none(n);
    // Levels depend on blame and vice versa: a few turns usually suffice.
    for turn in 1..=MAX_TURNS {
        let given_levels = field.start_levels.filter(|_| turn == 1);
        let first = turn == 1 && given_levels.is_none() && upper.is_some();
        let upper = upper.filter(|_| first);
        out.levels = given_levels
            .map_or_else(|| estimate_levels(groups, &readings, &blamed, upper), <[f64]>::to_vec);
        let mut cells = PairMatrix::new(n, &readings, &out.levels);
        let spread = blame::estimate_spread(&cells, &blamed);
        out.sigma = spread.sigma;
        if first {
            // Noise alone raises the upper end by this much.
            let noise = UPPER_QUANTILE_Z * out.sigma;
            out.levels.iter_mut().for_each(|level| *level *= 1.0 - noise);
            cells = PairMatrix::new(n, &readings, &out.levels);
        }
        let before = blamed.clone();
        let rule = BlameRule::new(&cells, field.classes, spread, statistic);
        let parts;
        (blamed, parts) = rule.find_blamed();
        let settled = before == blamed && !first && given_levels.is_none();
        (out.blames, out.unclear) = rule.list_blames(&blamed, parts);
        out.end_levels = rule.end_levels(&blamed);
        out.detectable = rule.detectable_losses(&blamed, parts);
        // Pairs are judged even if the iteration does not settle.
        if settled || turn == MAX_TURNS {
            low_pairs::find_low_pairs(&cells, &blamed, statistic, &mut out);
            break;
        }
    }
    out
}

/// The level of each group among unblamed ends: the median, or the quantile `upper`. One pair
/// contributes one value, independent of its number of readings.
fn estimate_levels(
    groups: usize,
    readings: &[PairReading],
    blamed: &BlamedEnds,
    upper: Option<f64>,
) -> Vec<f64> {
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); groups];
    for pair in readings.chunk_by(|a, b| (a.src, a.dst) == (b.src, b.dst)) {
        if blamed.clears(pair[0].src, pair[0].dst) {
            for (group, mut own) in split_by_group(pair) {
                values[group].extend(stats::median(&mut own));
            }
        }
    }
    let level = |v: &mut Vec<f64>| match upper {
        Some(q) => stats::quantile(v, q),
        None => stats::median(v),
    };
    let positive = |level: Option<f64>| level.filter(|l| 0.0 < *l).unwrap_or(f64::INFINITY);
    values.iter_mut().map(|v| positive(level(v))).collect()
}

/// The readings of one pair, group by group.
fn split_by_group(pair: &[PairReading]) -> Vec<(usize, Vec<f64>)> {
    let mut groups: Vec<(usize, Vec<f64>)> = Vec::new();
    for r in pair {
        match groups.iter_mut().find(|(group, _)| *group == r.group) {
            Some((_, own)) => own.push(r.value),
            None => groups.push((r.group, vec![r.value])),
        }
    }
    groups
}

/// The smallest degradation detected with 99.9 % power if healthy parts are identical.
pub(super) fn smallest_detectable(se: f64) -> f64 {
    MIN_EFFECT.max(SIGNIFICANCE_Z * se) + POWER_Z * se
}
