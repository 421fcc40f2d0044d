//! The measured connection strength between any two GPUs.
//!
//! For several readings of one copy, the best counts: chance lowers readings and does not raise
//! them. For several tests of one path the worst counts, and for both directions the worse. An
//! unmeasured pair has no entry, which differs from zero: it connects nothing and blames no part.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use model::id::{GpuId, NodeName};
use model::measured_cell::MeasuredCell;
use model::unit::Unit;

/// The scale of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StrengthScale {
    /// Shares of the platform's expected link rate.
    #[default]
    Share,
    /// GB/s of the test with the most pairs: the expected link rate is unknown.
    GigabytesPerSecond,
}

/// Measured strengths of ordered pairs of GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StrengthMatrix {
    /// The scale of the numbers.
    pub scale: StrengthScale,
    /// The tests behind the numbers.
    pub testcases: BTreeSet<String>,
    directed: BTreeMap<(GpuId, GpuId), f64>,
}

/// The best reading of every test, by ordered pair.
type BestReadings<'c> = BTreeMap<&'c str, BTreeMap<(GpuId, GpuId), f64>>;

impl StrengthMatrix {
    /// Builds the matrix from these cells and ignores cells other than GPU-to-GPU copies.
    pub fn from_cells(cells: &[MeasuredCell]) -> Self {
        let share = best_readings(cells, |cell| cell.ratio);
        if !share.is_empty() {
            return Self::from_best_readings(StrengthScale::Share, share);
        }
        let rates = best_readings(cells, |cell| {
            cell.value.filter(|_| cell.unit == Unit::GigabytesPerSecond)
        });
        // Rates of different tests (for example unidirectional and bidirectional) are not
        // comparable.
        let most =
            rates.iter().max_by_key(|(name, pairs)| (pairs.len(), std::cmp::Reverse(**name)));
        let most = most.map(|(name, pairs)| (*name, pairs.clone()));
        Self::from_best_readings(StrengthScale::GigabytesPerSecond, most.into_iter().collect())
    }

    fn from_best_readings(scale: StrengthScale, best: BestReadings<'_>) -> Self {
        let testcases = best.keys().map(|name| (*name).to_owned()).collect();
        let mut directed: BTreeMap<(GpuId, GpuId), f64> = BTreeMap::new();
        for (pair, value) in best.into_values().flatten() {
            let way = directed.entry(pair).or_insert(value);
            *way = way.min(value);
        }
        Self { scale, testcases, directed }
    }

    /// The strength in one direction.
    pub fn directed(&self, from: &GpuId, to: &GpuId) -> Option<f64> {
        self.directed.get(&(from.clone(), to.clone())).copied()
    }

    /// The worse of the two directions; `None` unless both were measured.
    pub fn weaker_direction(&self, a: &GpuId, b: &GpuId) -> Option<f64> {
        Some(self.directed(a, b)?.min(self.directed(b, a)?))
    }

    /// Every ordered pair that was measured.
    pub fn directed_pairs(&self) -> impl Iterator<Item = (&GpuId, &GpuId, f64)> {
        self.directed.iter().map(|((from, to), value)| (from, to, *value))
    }

    /// The GPUs that were measured with another GPU, in order.
    pub fn gpus(&self) -> BTreeSet<&GpuId> {
        self.directed.keys().flat_map(|(from, to)| [from, to]).collect()
    }

    /// The connection strength of nodes: the worst over all measured pairs of GPUs between two
    /// nodes.
    pub fn node_strengths(&self) -> BTreeMap<(NodeName, NodeName), f64> {
        let mut worst: BTreeMap<(NodeName, NodeName), f64> = BTreeMap::new();
        for (from, to, value) in self.directed_pairs() {
            if from.node != to.node {
                let pair = worst.entry((from.node.clone(), to.node.clone())).or_insert(value);
                *pair = pair.min(value);
            }
        }
        worst
    }
}

fn best_readings(
    cells: &[MeasuredCell],
    of: impl Fn(&MeasuredCell) -> Option<f64>,
) -> BestReadings<'_> {
    let mut best: BestReadings<'_> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.rail.is_none() && cell.unit.is_bandwidth()) {
        let end = |node: &Option<NodeName>, gpu: Option<u32>| Some(GpuId::new(node.clone()?, gpu?));
        let ends = end(&cell.src_node, cell.src_gpu).zip(end(&cell.dst_node, cell.dst_gpu));
        let (Some((from, to)), Some(value)) = (ends, of(cell)) else { continue };
        // A copy from a GPU to itself measures memory, not a link.
        if from != to && value.is_finite() {
            let known = best.entry(&cell.testcase).or_default().entry((from, to)).or_insert(value);
            *known = known.max(value);
        }
    }
    best
}
