//! Which end makes a cell low: clear ends, blame the rest, release, repeat.
//!
//! A reading is `min(tx of the source, rx of the destination, path)`, so a
//! good one clears both ends and a low one blames neither. Each end that no
//! cell clears is judged by the median over its partners that are not blamed;
//! the lowest is blamed, its row or column leaves, and everything is compared
//! again. After that, every blamed end that is not low with the partners that
//! are left is released, until nothing changes. What is low afterwards belongs
//! to a pair.

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

/// Effects below this are inside the natural spread of healthy fabrics: half
/// the loss of one link of 18. They are reported, never blamed.
pub(super) const MIN_EFFECT: f64 = 0.028;

/// A median this many standard errors low is no chance.
pub(super) const SIGNIFICANCE_Z: f64 = 5.0;

/// Further standard errors for a fault of the printed size to be seen 999
/// times in 1,000: Phi^-1(0.999).
pub(super) const POWER_Z: f64 = 3.09;

/// Relative spread assumed where an island is too small to show its own:
/// generous for copy engines (0.1 to 0.3 % seen), usual for NCCL and NICs.
pub(super) const ASSUMED_SIGMA: f64 = 0.01;

/// No instrument here repeats better than this.
pub(super) const LEAST_SIGMA: f64 = 0.000_5;

/// Islands of up to this many GPUs, or of this many nodes, are small: most of their
/// parts can be bad one by one.
const SMALL_FIELD: usize = 8;

/// Where levels begin: one bad GPU of four touches half of all cells, three of eight two
/// thirds. With half of all bad, a fifth to a quarter of all cells is good.
pub(super) const UPPER_QUANTILE: f64 = 0.85;

/// How many standard deviations above the middle that is: Phi^-1(0.85).
pub(super) const UPPER_QUANTILE_Z: f64 = 1.04;

/// Ends that get slower step by step are blamed a few in each turn.
const MAX_TURNS: usize = 16;

/// The rule behind a pair that may be slow.
pub(super) const DOUBTFUL_PAIR_RULE: FindingRule = FindingRule::fixed(
    RuleKind::Pair,
    "fewer than three readings that agree tell no slow pair from dips, unless they \
                                are deeper than dips go",
);

/// How an end's partners are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartnerStatistic {
    /// Their median: all pairs share one path class.
    Median,
    /// The best of them: path classes differ and are not known, so one good
    /// reading acquits.
    Max,
}

/// One end in one direction, blamed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EndBlame {
    pub(super) gpu: usize,
    pub(super) direction: Direction,
    /// Over partners that are not blamed themselves, relative to the level.
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
    /// How far apart the three readings are that agree best; all, of fewer.
    pub(super) span: f64,
}

/// What an end shows in one direction, relative to the level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EndLevel {
    pub(super) ratio: f64,
    /// Standard error of the ratio.
    pub(super) error: f64,
}

/// What peeling gave.
#[derive(Clone, Debug, Default)]
pub(super) struct PeelResult {
    pub(super) blames: Vec<EndBlame>,
    pub(super) pairs: Vec<LowPair>,
    /// Pairs of which readings agree too well for dips, and are too few to
    /// exclude them.
    pub(super) doubtful: Vec<LowPair>,
    /// Cells that are low with too few readings to tell a dip from a fault.
    pub(super) dips: Vec<LowPair>,
    /// Level of each group without the blamed.
    pub(super) levels: Vec<f64>,
    /// Ends that are low with every partner, where too few partners are good to tell
    /// which of the two is slow.
    pub(super) unclear: Vec<(usize, Direction)>,
    /// Relative standard deviation of one reading.
    pub(super) sigma: f64,
    /// What every end shows over partners that are not blamed, per direction.
    pub(super) end_levels: Vec<[Option<EndLevel>; 2]>,
    /// Smallest degradation that would have been seen, per GPU; `None` where
    /// the GPU was not measured.
    pub(super) detectable: Vec<Option<f64>>,
}

impl PeelResult {
    /// Whether this end is blamed.
    pub(super) fn is_blamed(&self, gpu: usize, direction: Direction) -> bool {
        // They are in the order of their ends.
        let from = self.blames.partition_point(|b| b.gpu < gpu);
        let own = self.blames[from..].iter().take_while(|b| b.gpu == gpu);
        own.into_iter().any(|b| b.direction == direction)
    }

    /// What an end shows in a direction over partners that are not blamed.
    pub(super) fn end_level(&self, gpu: usize, direction: Direction) -> Option<EndLevel> {
        self.end_levels.get(gpu)?[usize::from(direction == Direction::Rx)]
    }
}

/// Readings between numbered ends: GPUs of an island, or nodes on a rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairReadings<'r> {
    /// How many ends there are.
    pub(super) ends: usize,
    /// On how many nodes: those of one are often bad together.
    pub(super) nodes: usize,
    /// The class of path of each group the readings come in: a good reading of one class
    /// says nothing about another one.
    pub(super) classes: &'r [u8],
    pub(super) readings: &'r [PairReading],
    /// Ends that take part: those that are cut off are judged elsewhere.
    pub(super) active: &'r [bool],
    /// The levels to begin with, where something else than the readings tells.
    pub(super) start_levels: Option<&'r [f64]>,
}

/// Peels a field of readings. A third of all ends that is slow touches more than half
/// of all cells, so levels are first taken from the upper end. Of a large field, more
/// than half of all ends are not slow one by one: then the others are fast, or all have
/// one cause, and levels are those in the middle.
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

/// Peels with levels that begin at this quantile, or in the middle.
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
    // Levels depend on who is blamed and the other way round: mostly a few turns do.
    for turn in 1..=MAX_TURNS {
        let told = field.start_levels.filter(|_| turn == 1);
        let first = turn == 1 && told.is_none() && upper.is_some();
        let upper = upper.filter(|_| first);
        out.levels = told
            .map_or_else(|| estimate_levels(groups, &readings, &blamed, upper), <[f64]>::to_vec);
        let mut cells = PairMatrix::new(n, &readings, &out.levels);
        let spread = blame::estimate_spread(&cells, &blamed);
        out.sigma = spread.sigma;
        if first {
            // Noise alone lifts the upper end by so much.
            let noise = UPPER_QUANTILE_Z * out.sigma;
            out.levels.iter_mut().for_each(|level| *level *= 1.0 - noise);
            cells = PairMatrix::new(n, &readings, &out.levels);
        }
        let before = blamed.clone();
        let rule = BlameRule::new(&cells, field.classes, spread, statistic);
        let parts;
        (blamed, parts) = rule.find_blamed();
        let settled = before == blamed && !first && told.is_none();
        (out.blames, out.unclear) = rule.list_blames(&blamed, parts);
        out.end_levels = rule.end_levels(&blamed);
        out.detectable = rule.detectable_losses(&blamed, parts);
        // Where it never settles, pairs are looked at all the same.
        if settled || turn == MAX_TURNS {
            low_pairs::find_low_pairs(&cells, &blamed, statistic, &mut out);
            break;
        }
    }
    out
}

/// The level of each group among ends that are not blamed: the median, or the
/// quantile `upper`. One pair has one value, however often it was read.
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

/// The smallest degradation that is seen with 99.9 % power where parts do not differ.
pub(super) fn smallest_detectable(se: f64) -> f64 {
    MIN_EFFECT.max(SIGNIFICANCE_Z * se) + POWER_Z * se
}
