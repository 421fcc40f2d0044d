//! Spread and trend over the scale-out network, separate from level: a path, or all paths of an
//! end, whose readings scatter is unstable; one whose readings fall steadily drifts. Neither makes
//! it slow, and neither triggers an action.
//!
//! A path has few readings, and healthy paths dip: a single reading proves nothing here.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{new_finding, round};
use super::finding_set::FindingSet;
use super::gpu_stability::{Instability, StabilityLimits};
use super::rail_readings::{RailReadings, order_pair};
use super::{gpu_stability, peel};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::stats;
use model::text::format_percent;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// With fewer, one dip is at least a quarter of the readings.
const FEWEST_READINGS: usize = 5;

/// One direction in one test is not enough: two dips of five readings would suffice.
const FEWEST_CELLS: usize = 2;

/// Paths needed to attribute an instability to their common end.
const FEWEST_PATHS: usize = 3;

/// A spread this many times the noise belongs to the path.
const SPREAD_FACTOR: f64 = 4.0;

/// The interquartile range of normal noise, in standard deviations.
const QUARTILE_RANGE_Z: f64 = 1.35;

/// NICs and TCP repeat within 1 to 3 %: from this spread on, the network is noisy.
const NOISY_SPREAD: f64 = 0.045;

/// The stability of one path over all its directions and tests.
struct PathStability {
    ends: (usize, usize),
    /// The interquartile range in its second quietest direction.
    spread: f64,
    /// The best of its cells per reading, relative to their median.
    trend: Vec<f64>,
    /// Its best readings, relative to the level.
    peak: f64,
    /// Its median readings, relative to the level.
    middle: f64,
}

/// Judges the stability of the paths of a rail. `sigma` is the noise of one reading here, and
/// whether repeated readings measured it; `at` makes a locus at one of its nodes.
pub(super) fn judge(
    rail: &RailReadings<'_>,
    levels: &[f64],
    (sigma, repeated): (f64, bool),
    at: impl Fn(LocusKind, &NodeName) -> Locus,
    ledger: &mut FindingSet,
) {
    let paths = collect_paths(rail, levels);
    // The noise of one reading is estimated over all paths, so a few readings of each suffice.
    let read: BTreeSet<_> = rail.readings.iter().map(|r| order_pair(r.src, r.dst)).collect();
    if NOISY_SPREAD < sigma && repeated && FEWEST_PATHS <= read.len() {
        report_noisy(rail, sigma, ledger);
        return;
    }
    let mut falls: Vec<f64> =
        paths.iter().map(|p| gpu_stability::relative_fall(&p.trend)).collect();
    // A change in all paths comes from the network or the environment.
    let common = stats::median(&mut falls).filter(|_| 2 * FEWEST_PATHS <= paths.len());
    let common = common.unwrap_or(0.0);
    // The difference of two readings.
    let fall = peel::MIN_EFFECT.max(peel::SIGNIFICANCE_Z * std::f64::consts::SQRT_2 * sigma);
    let limits = StabilityLimits {
        common,
        fall,
        // A drop in the last reading alone is not a trend.
        fall_before_last: Some(fall / 2.0),
        noise: sigma,
        spread: gpu_stability::NOTEWORTHY.max(SPREAD_FACTOR * QUARTILE_RANGE_Z * sigma),
    };
    let kinds: Vec<Option<Instability>> =
        paths.iter().map(|p| limits.classify(&p.trend, p.spread)).collect();
    let mut reported: BTreeSet<usize> = BTreeSet::new();
    let mut of_end = vec![Vec::new(); rail.nodes.len()];
    for (number, path) in paths.iter().enumerate() {
        of_end[path.ends.0].push(number);
        of_end[path.ends.1].push(number);
    }
    for (end, own) in of_end.iter().enumerate() {
        let own = || own.iter().copied();
        for kind in [Instability::Falls, Instability::Scatters] {
            let bad: Vec<usize> = own().filter(|p| kinds[*p] == Some(kind)).collect();
            // Three of four of its paths, as for failed runs (`pair_failures`).
            if FEWEST_PATHS <= bad.len() && own().count() * 3 <= bad.len() * 4 {
                let locus = at(LocusKind::Rail, &rail.nodes[end]);
                let worst = bad.iter().map(|p| &paths[*p]).collect::<Vec<_>>();
                add_finding(rail, &worst, kind, locus, ledger);
                reported.extend(bad);
            }
        }
    }
    for (number, path) in paths.iter().enumerate().filter(|(number, _)| !reported.contains(number))
    {
        let (a, b) = path.ends;
        match kinds[number] {
            Some(kind) => {
                let peer = Some(rail.nodes[b].to_string());
                let locus = Locus { peer, ..at(LocusKind::Pair, &rail.nodes[a]) };
                add_finding(rail, &[path], kind, locus, ledger);
            }
            None if path.middle < 1.0 - peel::MIN_EFFECT => note_first_reading(rail, path, ledger),
            None => {}
        }
    }
}

/// The stability of every path with enough readings.
fn collect_paths(rail: &RailReadings<'_>, levels: &[f64]) -> Vec<PathStability> {
    let mut cells: BTreeMap<(usize, usize, usize), Vec<f64>> = BTreeMap::new();
    for r in &rail.readings {
        if levels[r.group].is_finite() && 0.0 < levels[r.group] {
            cells.entry((r.src, r.dst, r.group)).or_default().push(r.value / levels[r.group]);
        }
    }
    let mut by_path: BTreeMap<(usize, usize), Vec<Vec<f64>>> = BTreeMap::new();
    for ((src, dst, _), values) in cells {
        if FEWEST_READINGS <= values.len() {
            by_path.entry(order_pair(src, dst)).or_default().push(values);
        }
    }
    by_path.into_iter().filter_map(|(ends, cells)| summarize_path(ends, &cells)).collect()
}

fn summarize_path(ends: (usize, usize), cells: &[Vec<f64>]) -> Option<PathStability> {
    if cells.len() < FEWEST_CELLS {
        return None;
    }
    let middles: Option<Vec<f64>> = cells
        .iter()
        .map(|values| stats::median(&mut values.clone()).filter(|m| 0.0 < *m))
        .collect();
    let middles = middles?;
    let mut spreads: Vec<f64> = cells
        .iter()
        .zip(&middles)
        .filter_map(|(values, middle)| {
            let at = |q| stats::quantile(&mut values.clone(), q);
            Some((at(0.75)? - at(0.25)?) / middle)
        })
        .collect();
    spreads.sort_by(f64::total_cmp);
    let spread = *spreads.get(spreads.len().checked_sub(1)? / 2)?;
    let readings = cells.iter().map(Vec::len).min()?;
    // Dips only reduce a reading: the best of several at the same moment has none.
    let at = |k: usize| {
        let shares = cells.iter().zip(&middles).map(|(values, middle)| values[k] / middle);
        shares.fold(f64::NEG_INFINITY, f64::max)
    };
    let bests = cells.iter().map(|v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    let peak = stats::median(&mut bests.collect::<Vec<_>>())?;
    let middle = stats::median(&mut middles.clone())?;
    Some(PathStability { ends, spread, trend: (0..readings).map(at).collect(), peak, middle })
}

/// Enters a finding that limits a node to unknown. If the best readings are normal, the finding
/// also explains a low level.
fn add_finding(
    rail: &RailReadings<'_>,
    paths: &[&PathStability],
    kind: Instability,
    locus: Locus,
    ledger: &mut FindingSet,
) {
    let node = locus.node.clone().expect("a path has nodes");
    let what = match &locus.peer {
        Some(peer) => format!("{node} and {peer}{}", rail.sentence_suffix()),
        None => format!("{node}{} with {} partners", rail.sentence_suffix(), paths.len()),
    };
    let (class, summary, rule, ratio) = match kind {
        Instability::Falls => {
            let mut falls: Vec<f64> =
                paths.iter().map(|p| gpu_stability::relative_fall(&p.trend)).collect();
            let fall = stats::median(&mut falls).unwrap_or(0.0);
            let readings = paths.iter().map(|p| p.trend.len()).min().unwrap_or(0);
            (
                FindingClass::Drifting,
                format!(
                    "{what} fell by {} from the first to the last of {readings} readings: it \
                     drifts, possibly because of heat or growing congestion; its level is not yet \
                     conclusive; take more readings after a pause",
                    format_percent(fall)
                ),
                RuleKind::Trend.with_terms(
                    "all directions of a path fall from the first reading to the last by more than \
                     5 standard errors beyond what other paths do, and never rise between",
                ),
                Some(round(1.0 - fall)),
            )
        }
        Instability::Scatters => {
            let mut spreads: Vec<f64> = paths.iter().map(|p| p.spread).collect();
            let spread = stats::median(&mut spreads).unwrap_or(0.0);
            (
                FindingClass::Unstable,
                format!(
                    "{what}: the middle half of the readings spans {}: unstable, possibly because \
                     of errors on a link or other traffic; this concerns spread, not level; check \
                     the ports' error counters",
                    format_percent(spread)
                ),
                RuleKind::Spread.with_terms(
                    "the middle half of the readings of a path is more than 4 times as wide as the \
                     noise of the rail makes it, in both directions",
                ),
                None,
            )
        }
    };
    let mut found = new_finding(Outcome::Unknown, class, locus, rule).with_summary(summary);
    found.ratio_to_own = ratio;
    for path in paths {
        let trend: Vec<String> = path.trend.iter().take(8).map(|t| format!("{t:.3}")).collect();
        for file in rail.files_of(path.ends.0, path.ends.1).iter().take(2) {
            let detail = format!("readings over their middle: {}", trend.join(", "));
            found = found.with_evidence(file, None, detail);
        }
    }
    let locus = found.locus.clone();
    let explained = |f: &Finding| {
        let level = f.class == FindingClass::NicLow || f.class == FindingClass::PathLow;
        let same =
            (&f.locus.node, &f.locus.peer, f.locus.kind) == (&locus.node, &locus.peer, locus.kind);
        // Its pairs were low for the same reason.
        let part = locus.kind == LocusKind::Rail
            && (f.locus.node.as_ref() == Some(&node)
                || f.locus.peer.as_deref() == Some(node.as_str()));
        level && f.locus.rail == locus.rail && (same || part)
    };
    if paths.iter().all(|path| 1.0 - peel::MIN_EFFECT <= path.peak) {
        gpu_stability::absorb_explained(&mut found, &node, explained, ledger);
    }
    found.evidence.truncate(gpu_stability::MAX_EVIDENCE);
    let peer = found.locus.peer.as_deref().map(NodeName::from);
    for end in std::iter::once(&node).chain(&peer) {
        ledger.add_doubt(end, found.summary.clone());
    }
    ledger.add(found);
}

/// Notes that a low and steady level was present from the first reading on.
fn note_first_reading(rail: &RailReadings<'_>, path: &PathStability, ledger: &mut FindingSet) {
    let ends = [&rail.nodes[path.ends.0], &rail.nodes[path.ends.1]];
    let is_level = |f: &Finding| {
        let here =
            f.locus.rail == rail.name && f.locus.node.as_ref().is_some_and(|n| ends.contains(&n));
        let pair = f.locus.peer.as_deref();
        here && match f.class {
            FindingClass::NicLow => true,
            FindingClass::PathLow => {
                pair.is_some_and(|peer| ends.iter().any(|e| e.as_str() == peer))
            }
            _ => false,
        }
    };
    for end in ends {
        ledger.update_of_node(end, |found| {
            if is_level(found) {
                gpu_stability::add_from_first_reading(found);
            }
        });
    }
}

/// Reports a network on which no path repeats.
fn report_noisy(rail: &RailReadings<'_>, sigma: f64, ledger: &mut FindingSet) {
    let summary = format!(
        "the network{} scatters everywhere: the same path repeats only within {}, NICs usually \
         within 1 to 3 %; this alone is not a fault: the cause may be other traffic or the \
         instrument; measure one pair alone on idle nodes",
        rail.sentence_suffix(),
        format_percent(sigma)
    );
    let rule = RuleKind::Spread.with_terms(format!(
        "the standard deviation of one reading is above {} for the rail as a whole",
        format_percent(NOISY_SPREAD)
    ));
    let locus = Locus { rail: rail.name.clone(), ..Locus::new(LocusKind::Instrument) };
    let mut found = new_finding(Outcome::Unknown, FindingClass::NoisyEverywhere, locus, &rule)
        .with_summary(summary);
    for file in rail.files.values().flatten().take(4) {
        found = found.with_evidence(file, None, "a path of it");
    }
    ledger.add(found);
}
