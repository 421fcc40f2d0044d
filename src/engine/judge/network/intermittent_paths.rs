//! Paths at full rate in some readings and far below it in others, with too few readings each to
//! estimate a spread: a storm of pauses, or errors on a link. One such reading is a dip, as on
//! healthy paths; too many at one end, or in both directions at one moment, are not. None of this
//! makes a node slow.

use std::collections::{BTreeMap, BTreeSet};

use super::super::finding::new_finding;
use super::super::finding_set::FindingSet;
use super::super::rail_readings::{RailReadings, order_pair};
use super::super::{gpu_stability, peel};
use super::FAMILY_ERROR;
use super::rail_levels::RailLevels;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::text::format_percent;
use model::verdict::{Locus, LocusKind, Outcome};

/// A reading this far below the best of its cell is not at full rate.
const MIN_DROP: f64 = 0.12;

/// Noise never separates readings of one cell by this many standard deviations.
const NOISE_Z: f64 = 6.0;

/// Cells with fewer readings carry no information; with more, they have their own spread.
const READINGS_PER_PATH: std::ops::Range<usize> = 2..5;

/// Healthy readings dip about once in this many; the prior weighs as much as this many readings of
/// the sweep.
const DIP_PRIOR_WEIGHT: f64 = 200.0;

/// The number of paths needed to attribute the problem to their common end.
const FEWEST_PATHS: usize = 3;

#[derive(Debug, Default)]
struct IntermittentPath {
    readings: usize,
    low: usize,
    /// The number of moments at which both directions were low.
    both_ways: usize,
    lowest: f64,
}

/// How often readings are low over all rails, where paths have few readings.
#[derive(Debug, Default)]
pub(super) struct DipRate {
    paths: usize,
    readings: usize,
    low: usize,
}

impl DipRate {
    pub(super) fn from_rails(rails: &[RailReadings<'_>], levels: &[RailLevels]) -> Self {
        let mut dips = Self::default();
        for (rail, levels) in rails.iter().zip(levels) {
            let sigma = levels.repeat_sigma.unwrap_or(peel::ASSUMED_SIGMA);
            let paths = collect_paths(rail, MIN_DROP.max(NOISE_Z * sigma));
            let (readings, low) = sum_readings(paths.values());
            dips.paths += paths.len();
            dips.readings += readings;
            dips.low += low;
        }
        dips
    }

    /// The probability that a reading dips, from all readings except these.
    fn probability(&self, (readings, low): (usize, usize)) -> f64 {
        let [readings, low] =
            [self.readings.saturating_sub(readings), self.low.saturating_sub(low)];
        (to_f64(low) + 1.0) / (to_f64(readings) + DIP_PRIOR_WEIGHT)
    }
}

/// Judges the paths of a rail that have few readings. `sigma` is the noise of one reading.
pub(super) fn judge(
    rail: &RailReadings<'_>,
    dips: &DipRate,
    sigma: f64,
    at: impl Fn(LocusKind, &NodeName) -> Locus,
    ledger: &mut FindingSet,
) {
    let paths = collect_paths(rail, MIN_DROP.max(NOISE_Z * sigma));
    let mut of_end: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (a, b) in paths.keys() {
        of_end.entry(*a).or_default().push((*a, *b));
        of_end.entry(*b).or_default().push((*a, *b));
    }
    // Each path, or its two ends.
    let is_rare = |chance: f64| chance * to_f64(dips.paths) < FAMILY_ERROR;
    let mut reported: BTreeSet<(usize, usize)> = BTreeSet::new();
    for (end, own) in &of_end {
        let bad: Vec<_> = own.iter().copied().filter(|path| 0 < paths[path].low).collect();
        // Nearly all of its paths, as for failed runs (`pair_failures`).
        if bad.len() < FEWEST_PATHS || bad.len() * 4 < own.len() * 3 {
            continue;
        }
        let mine = sum_readings(own.iter().map(|path| &paths[path]));
        let each = dips.probability(mine) * to_f64(mine.0) / to_f64(own.len());
        let choices = 2.0_f64.powf(to_f64(own.len()));
        if is_rare(choices * each.powf(to_f64(bad.len()))) {
            let locus = at(LocusKind::Rail, &rail.nodes[*end]);
            report_paths(rail, &paths, &bad, locus, ledger);
            reported.extend(bad);
        }
    }
    for (ends, path) in paths.iter().filter(|(ends, _)| !reported.contains(ends)) {
        let each = dips.probability((path.readings, path.low));
        if 0 < path.both_ways && is_rare(to_f64(path.readings) / 2.0 * each * each) {
            let peer = Some(rail.nodes[ends.1].to_string());
            let locus = Locus { peer, ..at(LocusKind::Pair, &rail.nodes[ends.0]) };
            report_paths(rail, &paths, &[*ends], locus, ledger);
        }
    }
}

/// Every pair with few readings.
fn collect_paths(rail: &RailReadings<'_>, far: f64) -> BTreeMap<(usize, usize), IntermittentPath> {
    let mut paths: BTreeMap<(usize, usize), IntermittentPath> = BTreeMap::new();
    // The number of directions in which a pair was low in a test at a moment.
    let mut moments: BTreeMap<((usize, usize), usize, usize), usize> = BTreeMap::new();
    let cells =
        rail.cells().into_iter().filter(|(_, values)| READINGS_PER_PATH.contains(&values.len()));
    for ((src, dst, group), values) in cells {
        let best = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let path = paths
            .entry(order_pair(src, dst))
            .or_insert(IntermittentPath { lowest: 1.0, ..IntermittentPath::default() });
        path.readings += values.len();
        for (moment, value) in values.iter().enumerate() {
            if *value < best * (1.0 - far) {
                path.low += 1;
                path.lowest = path.lowest.min(value / best);
                *moments.entry((order_pair(src, dst), group, moment)).or_default() += 1;
            }
        }
    }
    for ((ends, ..), ways) in moments {
        paths.entry(ends).or_default().both_ways += usize::from(1 < ways);
    }
    paths
}

fn sum_readings<'p>(paths: impl Iterator<Item = &'p IntermittentPath>) -> (usize, usize) {
    paths.fold((0, 0), |(readings, low), path| (readings + path.readings, low + path.low))
}

fn report_paths(
    rail: &RailReadings<'_>,
    paths: &BTreeMap<(usize, usize), IntermittentPath>,
    bad: &[(usize, usize)],
    locus: Locus,
    ledger: &mut FindingSet,
) {
    let Some(node) = locus.node.clone() else { return };
    let what = match &locus.peer {
        Some(peer) => format!("{node} and {peer}{}", rail.sentence_suffix()),
        None => format!("{node}{} with {} partners", rail.sentence_suffix(), bad.len()),
    };
    let (readings, low) = sum_readings(bad.iter().map(|path| &paths[path]));
    let lowest = bad.iter().map(|path| paths[path].lowest).fold(1.0, f64::min);
    let summary = format!(
        "{what}: {low} of {readings} readings are up to {} below the best of the same path: \
         unstable, possibly because of pauses or errors on a link, or other traffic; this concerns \
         spread, not level; check the ports' counters",
        format_percent(1.0 - lowest)
    );
    let rule = RuleKind::Spread.with_terms(
        "more readings of an end, or of both directions at one moment, are far below the best of \
         their path than dips explain in all but one of 1,000 sweeps",
    );
    let peer = locus.peer.as_deref().map(NodeName::from);
    let mut found = new_finding(Outcome::Unknown, FindingClass::Unstable, locus, rule)
        .with_summary(summary.clone());
    for (a, b) in bad {
        for file in rail.files_of(*a, *b).iter().take(2) {
            found = found.with_evidence(file, None, "readings far apart");
        }
    }
    found.evidence.truncate(gpu_stability::MAX_EVIDENCE);
    for end in std::iter::once(&node).chain(&peer) {
        ledger.add_doubt(end, summary.clone());
    }
    ledger.add(found);
}

#[expect(clippy::cast_precision_loss, reason = "a count")]
fn to_f64(n: usize) -> f64 {
    n as f64
}
