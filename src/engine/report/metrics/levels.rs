//! How far below expectation the worst part of each node was in a run, by kind of path
//! (`fabricgate.levels/1`): the input for dashboards over time.
//!
//! A number for dashboards, not a verdict: only the judge blames parts. A part counts by the median
//! over its partners, so that a node does not look bad because of one bad partner.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::stats::median;

/// The format of a run's levels.
pub const LEVELS_FORMAT: &str = "fabricgate.levels/1";

/// The path of the data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PathClass {
    /// Inside one GPU's memory.
    Memory,
    /// Between host memory and a GPU of the same node.
    Host,
    /// Between GPUs of one node.
    Inside,
    /// Between GPUs of different nodes.
    Across,
    /// Between ports of different nodes, over the scale-out network.
    Network,
    /// Any of these, as a time instead of a rate.
    Latency,
}

impl PathClass {
    /// Its name in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Host => "host",
            Self::Inside => "inside",
            Self::Across => "across",
            Self::Network => "network",
            Self::Latency => "latency",
        }
    }

    fn from_cell(cell: &MeasuredCell) -> Option<Self> {
        let (from, to) = (cell.src_node.as_ref()?, cell.dst_node.as_ref()?);
        if !cell.unit.is_bandwidth() {
            return Some(Self::Latency);
        }
        Some(match (cell.src_gpu, cell.dst_gpu) {
            _ if cell.rail.is_some() => Self::Network,
            (Some(a), Some(b)) if from == to && a == b => Self::Memory,
            (Some(_), Some(_)) if from == to => Self::Inside,
            (Some(_), Some(_)) => Self::Across,
            (None, None) if from != to => Self::Network,
            (None, None) => return None,
            _ => Self::Host,
        })
    }
}

/// The levels of a run's nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunLevels {
    /// `fabricgate.levels/1`.
    pub format: String,
    /// The worst share of the expected value, by node and kind of path. Absent if it was not
    /// measured, or has no expectation.
    pub nodes: BTreeMap<NodeName, BTreeMap<PathClass, f64>>,
}

/// One end of a path in one test.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LevelEnd<'a> {
    node: &'a NodeName,
    class: PathClass,
    gpu: Option<u32>,
    rail: Option<&'a str>,
    sends: bool,
    testcase: &'a str,
}

/// The levels of these cells.
pub fn compute_levels(cells: &[MeasuredCell]) -> RunLevels {
    // The readings of one path are combined into one number, and so are the partners of one end.
    let mut paths: BTreeMap<(LevelEnd<'_>, &NodeName, Option<u32>), Vec<f64>> = BTreeMap::new();
    for cell in cells {
        let (Some(class), Some(ratio)) = (PathClass::from_cell(cell), cell.ratio) else { continue };
        let (Some(from), Some(to)) = (&cell.src_node, &cell.dst_node) else { continue };
        if !ratio.is_finite() {
            continue;
        }
        let rail = cell.rail.as_deref();
        let end =
            |node, gpu, sends| LevelEnd { node, class, gpu, rail, sends, testcase: &cell.testcase };
        paths.entry((end(from, cell.src_gpu, true), to, cell.dst_gpu)).or_default().push(ratio);
        paths.entry((end(to, cell.dst_gpu, false), from, cell.src_gpu)).or_default().push(ratio);
    }
    let mut ends: BTreeMap<LevelEnd<'_>, Vec<f64>> = BTreeMap::new();
    for ((end, ..), mut readings) in paths {
        if let Some(median) = median(&mut readings) {
            ends.entry(end).or_default().push(median);
        }
    }
    let mut nodes: BTreeMap<NodeName, BTreeMap<PathClass, f64>> = BTreeMap::new();
    for (end, mut partners) in ends {
        let level = match end.class {
            // Both ends belong to the node, so the worst path does too.
            PathClass::Inside | PathClass::Memory | PathClass::Host => {
                partners.iter().copied().reduce(f64::min)
            }
            PathClass::Across | PathClass::Network | PathClass::Latency => median(&mut partners),
        };
        let Some(level) = level else { continue };
        let of_node = nodes.entry(end.node.clone()).or_default();
        of_node.entry(end.class).and_modify(|worst| *worst = worst.min(level)).or_insert(level);
    }
    RunLevels { format: LEVELS_FORMAT.to_owned(), nodes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::unit::Unit;
    use model::verdict::Outcome;

    fn cell(from: (&str, Option<u32>), to: (&str, Option<u32>), ratio: f64) -> MeasuredCell {
        MeasuredCell {
            domain: None,
            stage: None,
            testcase: "t".into(),
            src_node: Some(from.0.into()),
            src_gpu: from.1,
            dst_node: Some(to.0.into()),
            dst_gpu: to.1,
            rail: None,
            reading: 0,
            value: Some(ratio * 100.0),
            unit: Unit::GigabytesPerSecond,
            expected: Some(100.0),
            ratio: Some(ratio),
            outcome: Outcome::Pass,
        }
    }

    fn of(levels: &RunLevels, node: &str, class: PathClass) -> Option<f64> {
        levels.nodes.get(&node.into())?.get(&class).copied()
    }

    #[test]
    fn a_bad_partner_does_not_lower_a_part_that_has_other_partners() {
        let g = Some(0);
        let mut cells = Vec::new();
        for (a, b) in
            [("n1", "n2"), ("n1", "n3"), ("n1", "n4"), ("n2", "n3"), ("n2", "n4"), ("n3", "n4")]
        {
            let ratio = if a == "n1" { 0.5 } else { 1.0 };
            cells.extend([cell((a, g), (b, g), ratio), cell((b, g), (a, g), ratio)]);
        }
        let levels = compute_levels(&cells);
        assert_eq!(of(&levels, "n1", PathClass::Across), Some(0.5));
        for good in ["n2", "n3", "n4"] {
            assert_eq!(of(&levels, good, PathClass::Across), Some(1.0), "{good}");
        }
    }

    #[test]
    fn inside_a_node_the_worst_path_counts_and_one_dip_of_five_readings_does_not() {
        let mut cells = vec![cell(("n", Some(0)), ("n", Some(1)), 0.8)];
        cells.push(cell(("n", None), ("n", Some(1)), 0.9));
        cells.push(cell(("n", Some(1)), ("n", Some(1)), 0.7));
        for (reading, ratio) in [1.0, 0.2, 1.0].into_iter().enumerate() {
            let reading = u32::try_from(reading).expect("few");
            cells.push(MeasuredCell { reading, ..cell(("n", Some(0)), ("n", Some(2)), ratio) });
        }
        let levels = compute_levels(&cells);
        assert_eq!(of(&levels, "n", PathClass::Inside), Some(0.8));
        assert_eq!(of(&levels, "n", PathClass::Host), Some(0.9));
        assert_eq!(of(&levels, "n", PathClass::Memory), Some(0.7));
        assert_eq!(of(&levels, "n", PathClass::Across), None);
    }

    #[test]
    fn unmeasured_and_uncompared_paths_are_absent() {
        let mut none = cell(("n", Some(0)), ("n", Some(1)), 1.0);
        none.ratio = None;
        assert!(compute_levels(&[none]).nodes.is_empty());
    }
}
