//! Compares two measurements of the same parts, reading by reading: before and after a repair,
//! first and last round of a burn-in.
//!
//! Pure. It reports every change that exceeds the noise of both runs, however small; the verdicts
//! judge whether a part is good enough.

use std::collections::BTreeMap;

use super::peel;
use model::comparison::{ComparisonOutcome, PartComparison, RunComparison};
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::measurement::Measurement;
use model::stats;
use model::tool_recording::{CONFIRM_STAGE, RecordingScope, ToolRecording};
use model::trend::{FabricPart, FabricPartKind};
use model::unit::Unit;
use model::verdict::Direction;

/// Smaller changes are noise, however many readings a part has: the typical difference between
/// medians of two runs of one tool on one healthy machine, which the scatter inside a run does not
/// show. Copy engines scatter by 0.1 to 0.3 %.
const FLOOR: f64 = 0.005;

/// The same for collectives and the scale-out network, which scatter by 1 to 3 % and have few
/// readings per run.
const COARSE_FLOOR: f64 = 0.02;

/// Fewer parts of one kind do not show how much such parts change between runs.
const MIN_SAME_CLASS: usize = 8;

/// One run in a comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonSide<'a> {
    /// Its run ID.
    pub run: &'a str,
    /// Its creation time, RFC 3339.
    pub created: &'a str,
    /// The measured cells.
    pub cells: &'a [MeasuredCell],
    /// The outputs, used for collectives.
    pub recordings: &'a [ToolRecording],
}

/// The unit of comparison: one part in one test.
type ComparisonKey = (FabricPart, String);

#[derive(Clone, Debug)]
struct PartLevel {
    value: f64,
    error: f64,
    unit: Unit,
    expected: Option<f64>,
}

/// Compares two runs, limited to the parts that `keep` accepts.
pub fn compare_runs(
    before: &ComparisonSide<'_>,
    after: &ComparisonSide<'_>,
    keep: &dyn Fn(&FabricPart) -> bool,
) -> RunComparison {
    let (then, now) = (part_levels(before, keep), part_levels(after, keep));
    let usual = typical_changes(&then, &now);
    let mut parts: Vec<PartComparison> = Vec::new();
    for (key, was) in &then {
        let is = now.get(key).filter(|is| is.unit == was.unit);
        parts.push(compare_part(key, Some(was), is, usual.get(&part_class(key)).copied()));
    }
    for (key, is) in &now {
        if then.get(key).is_none_or(|was| was.unit != is.unit) {
            parts.push(compare_part(key, None, Some(is), None));
        }
    }
    parts.sort_by(|a, b| {
        let size = |it: &PartComparison| it.change.map_or(-1.0, f64::abs);
        let class =
            |it: &PartComparison| (it.difference == ComparisonOutcome::Same, it.change.is_none());
        class(a)
            .cmp(&class(b))
            .then(size(b).total_cmp(&size(a)))
            .then_with(|| (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase)))
    });
    RunComparison {
        before: before.run.to_owned(),
        before_created: before.created.to_owned(),
        after: after.run.to_owned(),
        after_created: after.created.to_owned(),
        parts,
    }
}

/// Whether a part belongs to this node, or has an end there.
pub fn concerns_node(part: &FabricPart, node: &NodeName) -> bool {
    let peer = part.peer.as_deref().map(|peer| peer.rsplit_once(':').map_or(peer, |(n, _)| n));
    part.node.as_ref() == Some(node) || peer == Some(node.as_str())
}

/// One line of the comparison.
fn compare_part(
    (part, testcase): &ComparisonKey,
    was: Option<&PartLevel>,
    is: Option<&PartLevel>,
    usual: Option<f64>,
) -> PartComparison {
    let unit = was.or(is).map_or(Unit::GigabytesPerSecond, |level| level.unit);
    let mut held = PartComparison {
        part: part.clone(),
        testcase: testcase.clone(),
        unit,
        before: was.map(|level| level.value),
        after: is.map(|level| level.value),
        expected: is.or(was).and_then(|level| level.expected),
        change: None,
        noise: None,
        difference: if was.is_some() {
            ComparisonOutcome::OnlyBefore
        } else {
            ComparisonOutcome::OnlyAfter
        },
    };
    if let (Some(was), Some(is)) = (was, is) {
        let change = is.value / was.value - 1.0;
        let floor = if is_coarse(part) { COARSE_FLOOR } else { FLOOR };
        let scatter = peel::SIGNIFICANCE_Z * (was.error.powi(2) + is.error.powi(2)).sqrt();
        // The changes of similar parts are better evidence than the scatter of readings, which is
        // only assumed for cells with one reading.
        let noise = floor.max(usual.unwrap_or(scatter));
        // A lower time is better.
        let gained = if unit.is_bandwidth() { change } else { -change };
        held.change = Some(change);
        held.noise = Some(noise);
        held.difference = match change.abs() <= noise {
            true => ComparisonOutcome::Same,
            false if 0.0 < gained => ComparisonOutcome::Better,
            false => ComparisonOutcome::Worse,
        };
    }
    held
}

fn is_coarse(part: &FabricPart) -> bool {
    part.rail.is_some()
        || matches!(part.kind, FabricPartKind::Node | FabricPartKind::Domain | FabricPartKind::Rail)
}

/// Parts that are measured in the same way.
type PartClass = (FabricPartKind, Option<Direction>, String);

fn part_class((part, testcase): &ComparisonKey) -> PartClass {
    (part.kind, part.direction, testcase.clone())
}

/// The typical change of unaffected parts between the two runs: five robust standard deviations of
/// the changes around their median. A common shift is not noise, so the median is subtracted; a few
/// parts that changed individually do not widen it.
fn typical_changes(
    then: &BTreeMap<ComparisonKey, PartLevel>,
    now: &BTreeMap<ComparisonKey, PartLevel>,
) -> BTreeMap<PartClass, f64> {
    let mut changes: BTreeMap<PartClass, Vec<f64>> = BTreeMap::new();
    for (key, was) in then {
        let Some(is) = now.get(key).filter(|is| is.unit == was.unit) else { continue };
        changes.entry(part_class(key)).or_default().push(is.value / was.value);
    }
    let usual = changes.into_iter().filter_map(|(key, mut ratios)| {
        let all = ratios.clone();
        let middle = stats::median(&mut ratios).filter(|m| 0.0 < *m)?;
        // Not `stats::spread`: its lower half covers the parts that may have changed, and a node of
        // four GPUs would hide behind the spread that it causes.
        let mut away: Vec<f64> = all.iter().map(|ratio| (ratio / middle - 1.0).abs()).collect();
        let spread = stats::median(&mut away)? * stats::MAD_TO_SIGMA;
        (MIN_SAME_CLASS <= all.len()).then_some((key, peel::SIGNIFICANCE_Z * spread))
    });
    usual.collect()
}

/// Readings of one part, by its partner.
type PartReadings = BTreeMap<(Option<NodeName>, Option<u32>), Vec<f64>>;

fn part_levels(
    side: &ComparisonSide<'_>,
    keep: &dyn Fn(&FabricPart) -> bool,
) -> BTreeMap<ComparisonKey, PartLevel> {
    let mut all: BTreeMap<ComparisonKey, (PartReadings, Unit, Vec<f64>)> = BTreeMap::new();
    for cell in side.cells.iter().filter(|cell| cell.stage != Some(CONFIRM_STAGE)) {
        let Some(value) = cell.value.filter(|value| value.is_finite() && 0.0 < *value) else {
            continue;
        };
        for (part, partner) in cell_parts(cell) {
            if !keep(&part) {
                continue;
            }
            let key = (part, cell.testcase.to_string());
            let entry =
                all.entry(key).or_insert_with(|| (PartReadings::new(), cell.unit, Vec::new()));
            if entry.1 == cell.unit {
                entry.0.entry(partner).or_default().push(value);
                entry.2.extend(cell.expected);
            }
        }
    }
    let sigmas = estimate_sigmas(&all);
    let mut levels: BTreeMap<ComparisonKey, PartLevel> = BTreeMap::new();
    for (key, (numbers, unit, mut expected)) in all {
        let readings = numbers.values().map(Vec::len).sum();
        let mut middles: Vec<f64> =
            numbers.into_values().filter_map(|mut values| stats::median(&mut values)).collect();
        let sigma = sigmas.get(&part_class(&key)).copied().unwrap_or(peel::ASSUMED_SIGMA);
        if let Some(value) = stats::median(&mut middles) {
            let error = stats::median_error(sigma, readings);
            let expected = stats::median(&mut expected);
            levels.insert(key, PartLevel { value, error, unit, expected });
        }
    }
    add_collectives(side.recordings, keep, &mut levels);
    levels
}

/// The relative standard deviation of one reading of similarly measured parts: from repeated
/// readings, or from the differences between a part's partners if no reading was repeated.
fn estimate_sigmas(
    all: &BTreeMap<ComparisonKey, (PartReadings, Unit, Vec<f64>)>,
) -> BTreeMap<PartClass, f64> {
    let mut groups: BTreeMap<PartClass, Vec<&PartReadings>> = BTreeMap::new();
    for (key, (numbers, ..)) in all {
        groups.entry(part_class(key)).or_default().push(numbers);
    }
    let of = |parts: &[&PartReadings]| {
        let repeated = stats::repeat_sigma(
            parts.iter().flat_map(|numbers| numbers.values()).map(Vec::as_slice),
        );
        repeated.or_else(|| {
            let mut spreads: Vec<f64> = parts
                .iter()
                .filter_map(|numbers| {
                    let values: Vec<f64> = numbers.values().flatten().copied().collect();
                    let middle = stats::median(&mut values.clone()).filter(|m| 0.0 < *m)?;
                    let relative: Vec<f64> = values.iter().map(|value| value / middle).collect();
                    stats::spread(&relative, 1.0).filter(|_| 4 <= values.len())
                })
                .collect();
            stats::median(&mut spreads)
        })
    };
    groups.into_iter().filter_map(|(key, parts)| Some((key, of(&parts)?))).collect()
}

/// The end of a cell: its node and GPU, as far as the cell names them.
type CellPartner = (Option<NodeName>, Option<u32>);

/// The parts that a cell measures, each with its partner.
fn cell_parts(cell: &MeasuredCell) -> Vec<(FabricPart, CellPartner)> {
    let part = |kind, node: &Option<NodeName>, gpu, direction| FabricPart {
        kind,
        domain: cell.domain.clone(),
        node: node.clone(),
        gpu,
        peer: None,
        rail: cell.rail.clone(),
        direction: Some(direction),
    };
    let from = (cell.src_node.clone(), cell.src_gpu);
    let to = (cell.dst_node.clone(), cell.dst_gpu);
    match (cell.src_gpu, cell.dst_gpu) {
        // A copy inside one GPU is not a path and has no direction.
        (Some(_), Some(_)) if from == to => {
            let own = part(FabricPartKind::Gpu, &cell.src_node, cell.src_gpu, Direction::Tx);
            vec![(FabricPart { direction: None, ..own }, to)]
        }
        (Some(gpu), Some(other)) => vec![
            (part(FabricPartKind::Gpu, &cell.src_node, Some(gpu), Direction::Tx), to),
            (part(FabricPartKind::Gpu, &cell.dst_node, Some(other), Direction::Rx), from),
        ],
        (Some(gpu), None) => {
            vec![(part(FabricPartKind::Gpu, &cell.src_node, Some(gpu), Direction::D2h), to)]
        }
        (None, Some(gpu)) => {
            vec![(part(FabricPartKind::Gpu, &cell.dst_node, Some(gpu), Direction::H2d), from)]
        }
        (None, None) if cell.src_node.is_some() && cell.dst_node.is_some() => vec![
            (part(FabricPartKind::Rail, &cell.src_node, None, Direction::Tx), to),
            (part(FabricPartKind::Rail, &cell.dst_node, None, Direction::Rx), from),
        ],
        (None, None) => Vec::new(),
    }
}

/// Adds collective results: the best of the largest messages, as in the judge.
fn add_collectives(
    recordings: &[ToolRecording],
    keep: &dyn Fn(&FabricPart) -> bool,
    levels: &mut BTreeMap<ComparisonKey, PartLevel>,
) {
    let mut best: BTreeMap<ComparisonKey, (f64, Unit)> = BTreeMap::new();
    for recording in recordings.iter().filter(|it| it.stage != Some(CONFIRM_STAGE)) {
        let (kind, node, domain) = match &recording.scope {
            RecordingScope::Node(node) => (FabricPartKind::Node, Some(node.clone()), None),
            RecordingScope::Domain(domain) => (FabricPartKind::Domain, None, Some(domain.clone())),
            RecordingScope::Pair(..) => continue,
        };
        let part =
            FabricPart { kind, domain, node, gpu: None, peer: None, rail: None, direction: None };
        if !keep(&part) {
            continue;
        }
        for measurement in &recording.parsed.measurements {
            let Measurement::Series(series) = measurement else { continue };
            let Some(name) = series.testcase.as_deref() else { continue };
            let unit = series.unit.unwrap_or(Unit::GigabytesPerSecond);
            if !unit.is_bandwidth() {
                continue;
            }
            let largest = series.points.iter().map(|point| point.bytes).max();
            let top = series.points.iter().filter(|point| Some(point.bytes) == largest);
            let value = top.filter_map(|point| point.busbw).fold(0.0, f64::max);
            if 0.0 < value {
                let key = (part.clone(), name.to_owned());
                let known = best.entry(key).or_insert((value, unit));
                known.0 = known.0.max(value);
            }
        }
    }
    for (key, (value, unit)) in best {
        // A run contributes one number: the floor covers the scatter of such numbers.
        let error = peel::ASSUMED_SIGMA;
        levels.entry(key).or_insert(PartLevel { value, error, unit, expected: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::verdict::Outcome;

    /// Every GPU of four nodes with every other, twice, each read by `value`.
    fn cells(value: &dyn Fn(u32, u32, u32) -> f64) -> Vec<MeasuredCell> {
        let mut cells = Vec::new();
        for (src, dst, reading) in
            (0..16).flat_map(|a| (0..16).flat_map(move |b| (0..2).map(move |r| (a, b, r))))
        {
            if src == dst {
                continue;
            }
            cells.push(MeasuredCell {
                domain: Some("d".into()),
                stage: Some(5),
                testcase: "copies".into(),
                src_node: Some(format!("n{}", src / 4).into()),
                src_gpu: Some(src % 4),
                dst_node: Some(format!("n{}", dst / 4).into()),
                dst_gpu: Some(dst % 4),
                rail: None,
                reading,
                value: Some(value(src, dst, reading)),
                unit: Unit::GigabytesPerSecond,
                expected: Some(400.0),
                ratio: None,
                outcome: Outcome::Pass,
            });
        }
        cells
    }

    /// Scatter of some 0.2 % that differs from cell to cell and run to run.
    fn noise(seed: u32, src: u32, dst: u32, reading: u32) -> f64 {
        let mixed = [seed, src, dst, reading].iter().fold(7_u64, |at, it| {
            (at ^ u64::from(*it)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        });
        let unit = f64::from(u32::try_from(mixed >> 40).unwrap_or(0)) / f64::from(1_u32 << 24);
        1.0 + 0.004 * (unit - 0.5)
    }

    fn side(cells: &[MeasuredCell]) -> ComparisonSide<'_> {
        ComparisonSide { run: "r", created: "2026-11-22T00:00:00Z", cells, recordings: &[] }
    }

    fn parts_with(comparison: &RunComparison, difference: ComparisonOutcome) -> Vec<(String, u32)> {
        let parts = comparison.parts.iter().filter(|it| it.difference == difference);
        let mut parts: Vec<(String, u32)> = parts
            .map(|it| {
                (
                    it.part.node.as_ref().map_or(String::new(), ToString::to_string),
                    it.part.gpu.unwrap_or(9),
                )
            })
            .collect();
        parts.sort();
        parts.dedup();
        parts
    }

    #[test]
    fn a_part_that_lost_little_is_found_and_its_partners_are_not() {
        let before = cells(&|a, b, r| 400.0 * noise(1, a, b, r));
        // GPU 6 is n1:2; 2 % is below every level that is judged.
        let after = cells(&|a, b, r| {
            let share = if a == 6 || b == 6 { 0.98 } else { 1.0 };
            400.0 * share * noise(2, a, b, r)
        });
        let all = compare_runs(&side(&before), &side(&after), &|_| true);
        assert_eq!(parts_with(&all, ComparisonOutcome::Worse), [("n1".to_owned(), 2)]);
        assert_eq!(parts_with(&all, ComparisonOutcome::Better), []);
        assert_eq!(all.parts.len(), 32);
        assert_eq!(all.parts[0].part.gpu, Some(2), "what changed most comes first");
        let back =
            compare_runs(&side(&after), &side(&before), &|part| concerns_node(part, &"n1".into()));
        assert_eq!(parts_with(&back, ComparisonOutcome::Better), [("n1".to_owned(), 2)]);
        assert_eq!(back.parts.len(), 8);
    }

    #[test]
    fn two_runs_without_a_change_are_the_same() {
        for seed in 0..20 {
            let before = cells(&|a, b, r| 400.0 * noise(2 * seed, a, b, r));
            let after = cells(&|a, b, r| 400.0 * noise(2 * seed + 1, a, b, r));
            let all = compare_runs(&side(&before), &side(&after), &|_| true);
            assert!(all.parts.iter().all(|it| it.difference == ComparisonOutcome::Same), "{seed}");
        }
    }

    #[test]
    fn parts_in_only_one_run_are_not_a_change() {
        let before = cells(&|a, b, r| 400.0 * noise(1, a, b, r));
        let after: Vec<MeasuredCell> = before
            .iter()
            .filter(|cell| cell.src_gpu != Some(3) && cell.dst_gpu != Some(3))
            .cloned()
            .collect();
        let all = compare_runs(&side(&before), &side(&after), &|_| true);
        assert_eq!(parts_with(&all, ComparisonOutcome::OnlyBefore).len(), 4);
        assert!(all.parts.iter().all(|it| it.difference != ComparisonOutcome::Worse));
    }
}
