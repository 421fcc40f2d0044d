//! Simpler rules on the same readings.
//!
//! The rules with one number per part get the best possible input: the median of all readings of a
//! part, and the exact rate of a healthy pair. Only the retest takes readings of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::instrument::{PairSample, SimInstrument};
use super::sweep::StudySweep;
use super::world::StudyWorld;
use engine::plan::PlanStep;
use model::id::NodeName;
use model::stats;

/// Minimum share of the expected rate, for the fixed floor and for a retest.
const FLOOR_SHARE: f64 = 0.90;

/// Retest steps have numbers from here on, so that their noise is independent.
const FIRST_RETEST_STEP: usize = 1_000_000;

/// The rules in table order.
pub const BASELINES: [&str; 5] =
    ["floor 90 %", "-10 % of median", "Tukey 1.5", "Tukey 3", "retest"];

/// The parts that each rule blames, and the number of readings of its retests.
pub(super) fn accuse_parts(
    world: StudyWorld,
    expected: f64,
    swept: &StudySweep,
    instrument: &SimInstrument<'_>,
) -> ([BTreeSet<usize>; 5], u64) {
    let units = part_medians(&swept.samples);
    let below = |line: f64| {
        units.iter().filter(|(_, value)| **value < line).map(|(unit, _)| *unit).collect()
    };
    let mut values: Vec<f64> = units.values().copied().collect();
    let median = stats::median(&mut values).unwrap_or(0.0);
    let quartiles = [0.25, 0.75].map(|q| stats::quantile(&mut values, q).unwrap_or(0.0));
    let fence = |times: f64| quartiles[0] - times * (quartiles[1] - quartiles[0]);
    let (retest, readings) = retest_low_pairs(world, expected * FLOOR_SHARE, swept, instrument);
    let blamed = [
        below(expected * FLOOR_SHARE),
        below(median * FLOOR_SHARE),
        below(fence(1.5)),
        below(fence(3.0)),
        retest,
    ];
    (blamed, readings)
}

/// The median of all readings of each part, in both directions.
fn part_medians(samples: &[PairSample]) -> BTreeMap<usize, f64> {
    let mut all: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        for end in [sample.src, sample.dst] {
            all.entry(end).or_default().push(sample.value);
        }
    }
    all.into_iter()
        .filter_map(|(unit, mut values)| Some((unit, stats::median(&mut values)?)))
        .collect()
}

/// Retests both ends of every pair that is low in the first matching, with a node that passed. A
/// part that is low again is blamed.
fn retest_low_pairs(
    world: StudyWorld,
    line: f64,
    swept: &StudySweep,
    instrument: &SimInstrument<'_>,
) -> (BTreeSet<usize>, u64) {
    let node_of = |unit: usize| match world {
        StudyWorld::Domain => instrument.fabric.gpus[unit].node,
        StudyWorld::Fleet => unit,
    };
    let low = |samples: &[PairSample]| -> BTreeSet<usize> {
        samples.iter().filter(|s| s.value < line).flat_map(|s| [s.src, s.dst]).collect()
    };
    let failed = low(&swept.matching);
    let suspects: BTreeSet<usize> = failed.iter().map(|unit| node_of(*unit)).collect();
    let passed: Vec<usize> =
        (0..instrument.fabric.nodes.len()).filter(|node| !suspects.contains(node)).collect();
    if passed.is_empty() {
        return (failed, 0);
    }
    let name = |node: usize| NodeName::from(instrument.fabric.nodes[node].name.as_str());
    let (mut again, mut readings) = (BTreeSet::new(), 0);
    for (at, suspect) in suspects.iter().enumerate() {
        let nodes = vec![name(*suspect), name(passed[at % passed.len()])];
        for model in &swept.models {
            let step =
                PlanStep { step: FIRST_RETEST_STEP + at, nodes: nodes.clone(), ..model.clone() };
            again.extend(low(&instrument.samples(&step, 0)));
            readings += 1;
        }
    }
    (failed.intersection(&again).copied().collect(), readings)
}
