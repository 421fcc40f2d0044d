//! Every measured cell in the direction of the data, for `matrix.csv` and the
//! pictures, with what it was compared with and how it came out.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::arrange::Domain;
use super::fabric::Fabric;
use super::island;
use super::island::Island;
use super::ledger::Ledger;
use super::peel::LowPair;
use super::testcase;
use super::testcase::Shape;
use crate::thresholds::Conditions;
use model::cell::Cell;
use model::finding_class::FindingClass;
use model::id::GpuId;
use model::id::NodeName;
use model::measurement::Matrix;
use model::measurement::Measurement;
use model::recording::Recording;
use model::unit::Unit;
use model::verdict::Direction;
use model::verdict::Outcome;

/// A cell closer to its reference than this is as expected.
const LINE: f64 = super::peel::LINE;

/// What a cell is compared with, and who is guilty.
struct Scale<'j> {
    domain: &'j Domain<'j>,
    islands: &'j [(Island<'j>, Fabric)],
    /// What was found.
    ledger: &'j Ledger,
    /// Per island: GPU to its place.
    places: Vec<BTreeMap<&'j GpuId, usize>>,
}

/// One end of a pair: the GPU, and where it stands among those compared.
#[derive(PartialEq)]
struct End {
    gpu: GpuId,
    place: Option<(usize, usize)>,
}

/// Adds all cells of a domain.
pub(super) fn cells(
    domain: &Domain<'_>,
    islands: &[(Island<'_>, Fabric)],
    ledger: &Ledger,
    cells: &mut Vec<Cell>,
) {
    let places = islands.iter().map(|(i, _)| i.gpus.iter().zip(0..).collect()).collect();
    let scale = Scale { domain, islands, ledger, places };
    // Runs of other nodes are no further readings of these.
    let mut readings: BTreeMap<(Vec<NodeName>, String), u32> = BTreeMap::new();
    let own = domain.own.iter().flat_map(|(node, rs)| rs.iter().map(move |r| (Some(node), *r)));
    let across = domain.across.iter().map(|r| (None, *r));
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
            scale.matrix(node, recording, matrix, name, *reading, cells);
            *reading += 1;
        }
    }
}

impl Scale<'_> {
    fn matrix(
        &self,
        node: Option<&NodeName>,
        recording: &Recording,
        matrix: &Matrix,
        name: &str,
        reading: u32,
        cells: &mut Vec<Cell>,
    ) {
        let shape = testcase::shape(name);
        let testcase: Arc<str> = Arc::from(name);
        let unit = matrix.unit.unwrap_or(Unit::GigabytesPerSecond);
        let blank = Cell {
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
            let label = island::labels(self.domain, recording, node);
            let expected = self.expected_of_pairs(name, recording);
            let ends = island::ends_of(matrix, shape, |text| {
                let gpu = label(text)?;
                Some(End { place: self.place(&gpu), gpu })
            });
            island::pairs_of(matrix, shape, &ends, |src, dst, value| {
                let cell = Cell {
                    src_node: Some(src.gpu.node.clone()),
                    src_gpu: Some(src.gpu.gpu),
                    dst_node: Some(dst.gpu.node.clone()),
                    dst_gpu: Some(dst.gpu.gpu),
                    value,
                    ..blank.clone()
                };
                cells.push(compare(cell, expected, self.is_guilty(src, dst)));
            });
            return;
        }
        let Some(node) = node else { return };
        let conditions = Conditions::new(name, island::buffer_bytes(recording));
        let expected = self.domain.platform.and_then(|p| p.expectation(&conditions).ok());
        let expected = expected.and_then(|e| e.value.map(|value| (value, e.tolerance)));
        // A square of numbers that are no bandwidth of the fabric keeps its rows.
        let is_square = shape == Shape::Other && 1 < matrix.rows.len();
        for (label, row) in matrix.rows.iter().zip(&matrix.cells) {
            for (col, value) in matrix.cols.iter().zip(row) {
                let Ok(gpu) = col.parse::<u32>() else { continue };
                let mut cell = Cell { value: *value, ..blank.clone() };
                if is_square {
                    cell.src_node = Some(node.clone());
                    cell.src_gpu = label.parse().ok();
                }
                let to_gpu = match shape {
                    Shape::Host(d) | Shape::LoadedHost(d) | Shape::Fan(d) => {
                        matches!(d, Direction::H2d | Direction::Rx)
                    }
                    _ => true,
                };
                // Host memory has a node and no GPU; a fan's other end is everybody.
                let host = shape.is_host().then(|| node.clone());
                if to_gpu {
                    (cell.dst_node, cell.dst_gpu) = (Some(node.clone()), Some(gpu));
                    cell.src_node = cell.src_node.or(host);
                } else {
                    (cell.src_node, cell.src_gpu, cell.dst_node) =
                        (Some(node.clone()), Some(gpu), host);
                }
                let guilty = self.host_guilty(node, gpu, shape);
                // Only tests that are judged can be low.
                let expected = expected.filter(|_| unit.is_bandwidth());
                cells.push(compare(cell, expected, guilty));
            }
        }
    }

    /// What the platform expects of pairs in a test: value and tolerance. An
    /// island's own level is no expectation: who agrees with himself is not
    /// thereby right.
    fn expected_of_pairs(&self, testcase: &str, recording: &Recording) -> Option<(f64, f64)> {
        let platform = self.domain.platform?;
        let conditions = Conditions::new(testcase, island::buffer_bytes(recording));
        let e = platform.expectation(&conditions).ok()?;
        let bandwidth = e.unit == Unit::GigabytesPerSecond;
        e.value.filter(|_| bandwidth).map(|value| (value, e.tolerance))
    }

    /// The island a GPU is in, and its place there.
    fn place(&self, gpu: &GpuId) -> Option<(usize, usize)> {
        self.places.iter().enumerate().find_map(|(i, places)| Some((i, *places.get(gpu)?)))
    }

    /// Whether a finding explains that a cell between these ends is low.
    fn is_guilty(&self, src: &End, dst: &End) -> bool {
        let (Some((island, s)), Some((other, d))) = (src.place, dst.place) else { return false };
        if island != other {
            return false;
        }
        let fabric = &self.islands[island].1;
        let cut = !fabric.active[s] || !fabric.active[d];
        let ends = [&fabric.peeled, &fabric.both_ways]
            .iter()
            .any(|p| p.blames(s, Direction::Tx) || p.blames(d, Direction::Rx));
        let is_pair =
            |p: &LowPair| (p.src, p.dst) == (s, d) || (p.both_ways && (p.dst, p.src) == (s, d));
        cut || ends
            || fabric.peeled.pairs.iter().any(is_pair)
            || fabric.level.is_some_and(|l| l.low)
    }

    fn host_guilty(&self, node: &NodeName, gpu: u32, shape: Shape) -> bool {
        shape.is_host()
            && self.ledger.of_node(node).any(|f| {
                f.class == FindingClass::HostLinkLow
                    && f.locus.node.as_ref() == Some(node)
                    && f.locus.gpu.is_none_or(|g| g == gpu)
            })
    }
}

/// Fills in ratio and outcome.
pub(super) fn compare(mut cell: Cell, reference: Option<(f64, f64)>, guilty: bool) -> Cell {
    let expected = reference.map(|(value, _)| value);
    let line = reference.map_or(LINE, |(_, tolerance)| tolerance.max(LINE));
    cell.expected = expected.map(super::finding::fine);
    cell.ratio = match (cell.value, expected) {
        (Some(value), Some(expected)) if 0.0 < expected => {
            Some(super::finding::round(value / expected))
        }
        _ => None,
    };
    cell.outcome = match (cell.value, cell.ratio) {
        (None, _) | (_, None) => Outcome::Unknown,
        (Some(_), Some(ratio)) if guilty && ratio < 1.0 - LINE => Outcome::Degraded,
        (Some(_), Some(ratio)) if 1.0 - line <= ratio => Outcome::Pass,
        // Low, and nothing says whose fault it is.
        (Some(_), Some(_)) => Outcome::Unknown,
    };
    cell
}
