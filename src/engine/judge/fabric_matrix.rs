//! Every measured cell in the direction of the data, with its reference and result, for
//! `matrix.csv` and the heat maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding_set::FindingSet;
use super::peel::LowPair;
use super::testcase::CellShape;
use super::{fabric_group, testcase};
use crate::thresholds::MeasurementConditions;
use model::finding_class::FindingClass;
use model::id::{GpuId, NodeName};
use model::measured_cell::MeasuredCell;
use model::measurement::{Measurement, MeasurementMatrix};
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use model::verdict::{Direction, Outcome};

/// A cell closer to its reference than this is as expected.
const MIN_EFFECT: f64 = super::peel::MIN_EFFECT;

/// The references for cells, and the blamed parts.
struct CellReference<'j> {
    domain: &'j DomainRecordings<'j>,
    islands: &'j [(FabricGroup<'j>, FabricJudgement)],
    ledger: &'j FindingSet,
    /// Per island: the index of each GPU.
    positions: Vec<BTreeMap<&'j GpuId, usize>>,
}

/// One end of a pair: the GPU, and its index among the compared GPUs.
#[derive(PartialEq)]
struct FabricCellEnd {
    gpu: GpuId,
    position: Option<(usize, usize)>,
}

pub(super) fn add_cells(
    domain: &DomainRecordings<'_>,
    islands: &[(FabricGroup<'_>, FabricJudgement)],
    ledger: &FindingSet,
    cells: &mut Vec<MeasuredCell>,
) {
    let places = islands.iter().map(|(i, _)| i.gpus.iter().zip(0..).collect()).collect();
    let scale = CellReference { domain, islands, ledger, positions: places };
    // Runs of other nodes are not repeated readings of these.
    let mut readings: BTreeMap<(Vec<NodeName>, String), u32> = BTreeMap::new();
    let own =
        domain.per_node.iter().flat_map(|(node, rs)| rs.iter().map(move |r| (Some(node), *r)));
    let across = domain.across_nodes.iter().map(|r| (None, *r));
    for (node, recording) in own.chain(across) {
        let members = || domain.gpus_of_ranks(&recording.parsed).into_values().map(|g| g.node);
        let place: Vec<NodeName> = match node {
            Some(node) => vec![node.clone()],
            None => members().collect::<BTreeSet<_>>().into_iter().collect(),
        };
        for measurement in &recording.parsed.measurements {
            let Measurement::Matrix(matrix) = measurement else { continue };
            let Some(name) = matrix.testcase.as_deref() else { continue };
            let reading = readings.entry((place.clone(), name.to_owned())).or_insert(0);
            scale.add_matrix(node, recording, matrix, name, *reading, cells);
            *reading += 1;
        }
    }
}

impl CellReference<'_> {
    fn add_matrix(
        &self,
        node: Option<&NodeName>,
        recording: &ToolRecording,
        matrix: &MeasurementMatrix,
        name: &str,
        reading: u32,
        cells: &mut Vec<MeasuredCell>,
    ) {
        let shape = testcase::shape_of(name);
        let testcase: Arc<str> = Arc::from(name);
        let unit = matrix.unit.unwrap_or(Unit::GigabytesPerSecond);
        let blank = MeasuredCell {
            domain: Some(self.domain.name.clone()),
            stage: recording.stage,
            testcase: testcase.clone(),
            src_node: None,
            src_gpu: None,
            dst_node: None,
            dst_gpu: None,
            rail: recording.rail.clone(),
            reading,
            value: None,
            unit,
            expected: None,
            ratio: None,
            outcome: Outcome::Unknown,
        };
        if shape.is_pair() {
            let label = fabric_group::gpu_label_resolver(self.domain, recording, node);
            let expected = self.expected_of_pairs(name, recording);
            let ends = fabric_group::matrix_ends(matrix, shape, |text| {
                let gpu = label(text)?;
                Some(FabricCellEnd { position: self.find_position(&gpu), gpu })
            });
            fabric_group::for_each_pair(matrix, shape, &ends, |src, dst, value| {
                let cell = MeasuredCell {
                    src_node: Some(src.gpu.node.clone()),
                    src_gpu: Some(src.gpu.gpu),
                    dst_node: Some(dst.gpu.node.clone()),
                    dst_gpu: Some(dst.gpu.gpu),
                    value,
                    ..blank.clone()
                };
                cells.push(compare_cell(cell, expected, self.is_blamed(src, dst)));
            });
            return;
        }
        let Some(node) = node else { return };
        let conditions = MeasurementConditions::new(name, fabric_group::buffer_bytes(recording));
        let expected = self.domain.platform.and_then(|p| p.expectation(&conditions).ok());
        let expected = expected.and_then(|e| e.value.map(|value| (value, e.tolerance)));
        // A matrix that does not hold fabric bandwidth keeps its rows.
        let is_square = shape == CellShape::Other && 1 < matrix.rows.len();
        for (label, row) in matrix.rows.iter().zip(&matrix.cells) {
            for (col, value) in matrix.cols.iter().zip(row) {
                let Ok(gpu) = col.parse::<u32>() else { continue };
                let mut cell = MeasuredCell { value: *value, ..blank.clone() };
                if is_square {
                    cell.src_node = Some(node.clone());
                    cell.src_gpu = label.parse().ok();
                }
                let to_gpu = match shape {
                    CellShape::Host(d) | CellShape::LoadedHost(d) | CellShape::Fan(d) => {
                        matches!(d, Direction::H2d | Direction::Rx)
                    }
                    _ => true,
                };
                // Host memory has a node and no GPU; a fan's other end is all GPUs.
                let host = shape.is_host().then(|| node.clone());
                if to_gpu {
                    (cell.dst_node, cell.dst_gpu) = (Some(node.clone()), Some(gpu));
                    cell.src_node = cell.src_node.or(host);
                } else {
                    (cell.src_node, cell.src_gpu, cell.dst_node) =
                        (Some(node.clone()), Some(gpu), host);
                }
                let is_blamed = self.is_host_blamed(node, gpu, shape);
                // Only judged tests can be low.
                let expected = expected.filter(|_| unit.is_bandwidth());
                cells.push(compare_cell(cell, expected, is_blamed));
            }
        }
    }

    /// The platform's expectation for pairs in a test: value and tolerance. An island's own level
    /// is not an expectation: agreeing with itself does not make it correct.
    fn expected_of_pairs(&self, testcase: &str, recording: &ToolRecording) -> Option<(f64, f64)> {
        let platform = self.domain.platform?;
        let conditions =
            MeasurementConditions::new(testcase, fabric_group::buffer_bytes(recording));
        let e = platform.expectation(&conditions).ok()?;
        let bandwidth = e.unit == Unit::GigabytesPerSecond;
        e.value.filter(|_| bandwidth).map(|value| (value, e.tolerance))
    }

    /// The island of a GPU, and its index there.
    fn find_position(&self, gpu: &GpuId) -> Option<(usize, usize)> {
        self.positions.iter().enumerate().find_map(|(i, places)| Some((i, *places.get(gpu)?)))
    }

    /// Whether a finding explains that a cell between these ends is low.
    fn is_blamed(&self, src: &FabricCellEnd, dst: &FabricCellEnd) -> bool {
        let (Some((island, s)), Some((other, d))) = (src.position, dst.position) else {
            return false;
        };
        if island != other {
            return false;
        }
        let fabric = &self.islands[island].1;
        let cut = !fabric.active[s] || !fabric.active[d];
        let ends = [&fabric.peeled, &fabric.both_ways]
            .iter()
            .any(|p| p.is_blamed(s, Direction::Tx) || p.is_blamed(d, Direction::Rx));
        let is_pair =
            |p: &LowPair| (p.src, p.dst) == (s, d) || (p.both_ways && (p.dst, p.src) == (s, d));
        cut || ends
            || fabric.peeled.pairs.iter().any(is_pair)
            || fabric.level.is_some_and(|l| l.low)
    }

    fn is_host_blamed(&self, node: &NodeName, gpu: u32, shape: CellShape) -> bool {
        shape.is_host()
            && self.ledger.findings_of_node(node).any(|f| {
                f.class == FindingClass::HostLinkLow
                    && f.locus.node.as_ref() == Some(node)
                    && f.locus.gpu.is_none_or(|g| g == gpu)
            })
    }
}

pub(super) fn compare_cell(
    mut cell: MeasuredCell,
    reference: Option<(f64, f64)>,
    is_blamed: bool,
) -> MeasuredCell {
    let expected = reference.map(|(value, _)| value);
    let line = reference.map_or(MIN_EFFECT, |(_, tolerance)| tolerance.max(MIN_EFFECT));
    cell.expected = expected.map(super::finding::round_fine);
    cell.ratio = match (cell.value, expected) {
        (Some(value), Some(expected)) if 0.0 < expected => {
            Some(super::finding::round(value / expected))
        }
        _ => None,
    };
    cell.outcome = match (cell.value, cell.ratio) {
        (None, _) | (_, None) => Outcome::Unknown,
        (Some(_), Some(ratio)) if is_blamed && ratio < 1.0 - MIN_EFFECT => Outcome::Degraded,
        (Some(_), Some(ratio)) if 1.0 - line <= ratio => Outcome::Pass,
        // Low, and no finding explains it.
        (Some(_), Some(_)) => Outcome::Unknown,
    };
    cell
}
