//! Islands: sets of GPUs that must all reach each other over one fabric, and the pair readings
//! taken inside them.
//!
//! In a rack-scale domain the island is the domain; elsewhere it is the node. Readings are stored
//! in the direction in which the data moved, and grouped with comparable ones: same test, same
//! launch (on the node or across nodes), both inside or both between nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::domain_recordings::DomainRecordings;
use super::output_participants::OutputParticipants;
use super::testcase::CellShape;
use super::{output_problems, testcase};
use crate::thresholds::{Expectation, MeasurementConditions, Platform, TestPath};
use model::id::{DomainName, GpuId, NodeName};
use model::limits;
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::Tool;
use model::tool_recording::ToolRecording;
use model::unit::Unit;

/// The conditions under which readings can be compared with each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairReadingGroup {
    pub(super) testcase: Arc<str>,
    /// The tool: two tools are two instruments, even if their tests share a name.
    pub(super) tool: Option<Tool>,
    /// Launched across nodes (the overhead differs from a launch on one node).
    pub(super) across_nodes: bool,
    /// Source and destination sit in different nodes.
    pub(super) between_nodes: bool,
    /// Taken with nvbandwidth's small buffer, which reads lower.
    pub(super) small_buffer: bool,
    /// The buffer size, if the output reports it.
    pub(super) bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PairReading {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) group: usize,
    pub(super) value: f64,
}

/// A file that holds pair readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadingSource {
    /// The node it ran on; `None` when it ran across nodes.
    node: Option<NodeName>,
    /// The nodes that took part, when it ran across nodes.
    members: BTreeSet<NodeName>,
    pub(super) file: String,
}

impl ReadingSource {
    pub(super) fn involves(&self, node: &NodeName) -> bool {
        self.node.as_ref() == Some(node) || self.members.contains(node)
    }
}

/// A set of GPUs that must all reach each other.
#[derive(Debug)]
pub(super) struct FabricGroup<'a> {
    pub(super) domain: DomainName,
    /// Its node; `None` if it spans nodes.
    pub(super) node: Option<NodeName>,
    pub(super) platform: Option<&'a Platform>,
    pub(super) gpus: Vec<GpuId>,
    /// GPUs of each node that exceed the size of one pair table: they are not judged.
    pub(super) left_out: BTreeMap<NodeName, usize>,
    /// How many nodes its domain claims, including nodes that took no part.
    pub(super) nodes_claimed: usize,
    pub(super) reading_groups: Vec<PairReadingGroup>,
    /// Readings of one direction at a time.
    pub(super) directed: Vec<PairReading>,
    /// The run of each directed reading: an index into `run_files`.
    pub(super) directed_runs: Vec<usize>,
    pub(super) run_files: Vec<String>,
    /// Which nodes took part in each run.
    pub(super) run_participants: Vec<OutputParticipants>,
    /// Readings of both directions concurrently; source and destination are interchangeable.
    pub(super) both_ways: Vec<PairReading>,
    /// The run of each of them: an index into `run_files`.
    pub(super) both_ways_runs: Vec<usize>,
    /// Pairs for which a test printed no number in any of its readings.
    pub(super) holes: Vec<(usize, usize)>,
    /// Nodes that could not import each other's memory.
    pub(super) cut_nodes: Vec<(NodeName, NodeName)>,
    /// Files that hold pair readings, for evidence.
    pub(super) files: BTreeMap<Arc<str>, Vec<ReadingSource>>,
}

impl<'a> FabricGroup<'a> {
    /// The expectation for this group's test here.
    pub(super) fn expectation(&self, group: usize) -> Option<&'a Expectation> {
        let group = &self.reading_groups[group];
        self.platform?.expectation(&MeasurementConditions::new(&group.testcase, group.bytes)).ok()
    }

    /// The expectation of a group that states a value for a GPU-to-GPU path.
    pub(super) fn expected_level(&self, group: usize) -> Option<(f64, &'a Expectation)> {
        let e = self.expectation(group)?;
        let between_gpus = matches!(e.path, TestPath::Nvlink | TestPath::Pcie);
        e.value.filter(|_| between_gpus && e.unit == Unit::GigabytesPerSecond).map(|v| (v, e))
    }

    /// How far below the expectation of this group a healthy island may be.
    pub(super) fn tolerance(&self, group: usize, expectation: &Expectation) -> f64 {
        let small_buffer = self.reading_groups[group].small_buffer;
        let small = expectation.tolerance_small_buffer.filter(|_| small_buffer);
        small.map_or(expectation.tolerance, |t| t.max(expectation.tolerance))
    }

    /// The mean number of readings per pair of this group.
    pub(super) fn readings_per_cell(&self, group: usize) -> f64 {
        let own = || self.directed.iter().filter(move |r| r.group == group);
        let cells: BTreeSet<(usize, usize)> = own().map(|r| (r.src, r.dst)).collect();
        #[expect(clippy::cast_precision_loss, reason = "counts of readings")]
        let average = own().count() as f64 / cells.len().max(1) as f64;
        average
    }

    /// The file that holds a GPU's readings of a group: of its own node, or of
    /// the run across nodes.
    pub(super) fn file_of(&self, group: usize, gpu: usize) -> Option<&str> {
        let key = &self.reading_groups[group];
        let node = &self.gpus[gpu].node;
        let sources = self.files.get(&key.testcase)?;
        let mut fitting = sources.iter().filter(|s| s.node.is_none() == key.across_nodes);
        fitting.find(|s| s.involves(node)).map(|s| s.file.as_str())
    }

    /// Whether every pair of GPUs must show the same bandwidth.
    pub(super) fn is_uniform(&self) -> bool {
        self.platform.is_some_and(Platform::is_switched)
    }

    /// Some of its GPUs as a separate island.
    pub(super) fn subset(&self, gpus: &[usize]) -> Self {
        let mut places = vec![None; self.gpus.len()];
        gpus.iter().enumerate().for_each(|(at, gpu)| places[*gpu] = Some(at));
        let moved =
            |r: &PairReading| Some(PairReading { src: places[r.src]?, dst: places[r.dst]?, ..*r });
        let directed = self.directed.iter().zip(&self.directed_runs);
        let (directed, directed_runs) =
            directed.filter_map(|(r, run)| Some((moved(r)?, *run))).unzip();
        let both = self.both_ways.iter().zip(&self.both_ways_runs);
        let (both_ways, both_runs) = both.filter_map(|(r, run)| Some((moved(r)?, *run))).unzip();
        let own: Vec<GpuId> = gpus.iter().map(|gpu| self.gpus[*gpu].clone()).collect();
        let nodes: BTreeSet<&NodeName> = own.iter().map(|id| &id.node).collect();
        let within = |(a, b): &&(NodeName, NodeName)| nodes.contains(a) && nodes.contains(b);
        let holes = self.holes.iter().filter_map(|(a, b)| Some((places[*a]?, places[*b]?)));
        Self {
            domain: self.domain.clone(),
            node: own.first().filter(|_| nodes.len() == 1).map(|id| id.node.clone()),
            platform: self.platform,
            left_out: BTreeMap::new(),
            nodes_claimed: self.nodes_claimed,
            reading_groups: self.reading_groups.clone(),
            directed,
            directed_runs,
            run_files: self.run_files.clone(),
            run_participants: self.run_participants.clone(),
            both_ways,
            both_ways_runs: both_runs,
            holes: holes.collect(),
            cut_nodes: self.cut_nodes.iter().filter(within).cloned().collect(),
            files: self.files.clone(),
            gpus: own,
        }
    }

    pub(super) fn gpus_by_node(&self) -> BTreeMap<&NodeName, Vec<usize>> {
        let mut nodes: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
        for (at, gpu) in self.gpus.iter().enumerate() {
            nodes.entry(&gpu.node).or_default().push(at);
        }
        nodes
    }
}

/// The parts that the rows and columns of a pair matrix stand for. If the row label names both
/// ends, `cols` holds the second end, row by row.
pub(super) fn matrix_ends<T>(
    matrix: &MeasurementMatrix,
    shape: CellShape,
    end: impl Fn(&str) -> Option<T>,
) -> (Vec<Option<T>>, Vec<Option<T>>) {
    if shape == CellShape::LabelledPair {
        let both = matrix.rows.iter().map(|label| match label.split_once("->") {
            Some((from, to)) => (end(from.trim()), end(to.trim())),
            None => (None, None),
        });
        return both.unzip();
    }
    let rows = matrix.rows.iter().map(|label| end(label)).collect();
    let cols = matrix.cols.iter().map(|label| end(label)).collect();
    (rows, cols)
}

/// Iterates over a pair matrix in the direction of the data: calls `take` with source, destination
/// and cell for every pair of different ends.
pub(super) fn for_each_pair<T: PartialEq>(
    matrix: &MeasurementMatrix,
    shape: CellShape,
    (rows, cols): &(Vec<Option<T>>, Vec<Option<T>>),
    mut take: impl FnMut(&T, &T, Option<f64>),
) {
    if shape == CellShape::LabelledPair {
        for ((src, dst), row) in rows.iter().zip(cols).zip(&matrix.cells) {
            if let (Some(src), Some(dst)) = (src, dst) {
                take(src, dst, row.first().copied().flatten());
            }
        }
        return;
    }
    for (row, cells) in rows.iter().zip(&matrix.cells) {
        for (col, cell) in cols.iter().zip(cells) {
            let (Some(row), Some(col)) = (row, col) else { continue };
            if row == col {
                continue;
            }
            if shape == CellShape::ColumnToRow {
                take(col, row, *cell);
            } else {
                take(row, col, *cell);
            }
        }
    }
}

/// Maps a matrix label to its GPU.
pub(super) type GpuLabelResolver<'d> = Box<dyn Fn(&str) -> Option<GpuId> + 'd>;

/// Resolves the labels of this recording's matrices to GPUs.
pub(super) fn gpu_label_resolver<'d>(
    domain: &'d DomainRecordings<'_>,
    recording: &ToolRecording,
    node: Option<&'d NodeName>,
) -> GpuLabelResolver<'d> {
    match node {
        Some(node) => Box::new(move |label| {
            let index = label.parse().ok().filter(|index| *index < limits::MAX_GPUS_PER_NODE)?;
            Some(GpuId::new(node.clone(), index))
        }),
        None => {
            let ranks = domain.gpus_of_ranks(&recording.parsed);
            Box::new(move |label| ranks.get(&label.parse().ok()?).cloned())
        }
    }
}

pub(super) fn fabric_groups<'a>(domain: &DomainRecordings<'a>) -> Vec<FabricGroup<'a>> {
    // Without a platform, pair tests across nodes determine it.
    let pairs_across = domain.across_nodes.iter().any(|r| !pair_matrices(r).is_empty());
    if domain.spans_nodes() || (pairs_across && domain.platform.is_none()) {
        vec![build_fabric_group(domain, None, false)]
    } else {
        domain.nodes.iter().map(|node| build_fabric_group(domain, Some(node), false)).collect()
    }
}

/// The islands of a domain for readings taken while all disjoint pairs of a round copy
/// concurrently. Kept apart, because a part that shares bandwidth unexpectedly reads normally when
/// a pair runs alone.
pub(super) fn concurrent_fabric_groups<'a>(domain: &DomainRecordings<'a>) -> Vec<FabricGroup<'a>> {
    // The remaining rate of pairs that share a root port or a bridge shows the sharing, not a slow
    // part.
    if !domain.platform.is_some_and(Platform::is_switched) {
        return Vec::new();
    }
    let islands = domain.nodes.iter().map(|node| build_fabric_group(domain, Some(node), true));
    islands.filter(|island| !island.directed.is_empty()).collect()
}

/// nvbandwidth's default buffer is 64 MiB up to v0.6 and 512 MiB since.
fn uses_small_buffers(recording: &ToolRecording) -> bool {
    let minor = |version: &str| version.strip_prefix("0.")?.split('.').next()?.parse::<u32>().ok();
    match recording.parsed.tool {
        Some(Tool::Nvbandwidth) => {
            let version = recording.parsed.tool_version.as_deref();
            version.and_then(minor).is_some_and(|minor| minor < 7)
        }
        // fabricgate's probe reports it.
        Some(Tool::FabricgateCopy) => {
            buffer_bytes(recording).is_some_and(|bytes| bytes < LARGE_BUFFER)
        }
        _ => false,
    }
}

/// A fingerprint of a recording's numbers: two runs never read the same rates for all pairs to the
/// last digit. `None` for so few numbers that they can match by chance.
fn fingerprint(recording: &ToolRecording) -> Option<u64> {
    const FEWEST: usize = 6;
    let mut hasher = DefaultHasher::new();
    let mut count = 0;
    for (matrix, ..) in pair_matrices(recording) {
        let (mut numbers, mut first, mut differ) = (0, None, false);
        for (.., value) in matrix.numbers() {
            value.to_bits().hash(&mut hasher);
            differ |= *first.get_or_insert(value) != value;
            numbers += 1;
        }
        count += if differ { numbers } else { 0 };
    }
    (FEWEST <= count).then(|| hasher.finish())
}

/// The buffer size that an output reports.
pub(super) fn buffer_bytes(recording: &ToolRecording) -> Option<u64> {
    recording.parsed.facts.parameters.get("buffer_bytes")?.parse().ok()
}

/// The buffer size behind the expectations: nvbandwidth's 512 MiB.
const LARGE_BUFFER: u64 = 512 << 20;

pub(super) fn pair_matrices(
    recording: &ToolRecording,
) -> Vec<(&MeasurementMatrix, &str, CellShape)> {
    let matrices = recording.parsed.measurements.iter().filter_map(|m| match m {
        Measurement::Matrix(matrix) => Some(matrix),
        _ => None,
    });
    matrices
        .filter_map(|matrix| {
            let name = matrix.testcase.as_deref()?;
            let shape = testcase::shape_of(name);
            (shape.is_pair() && matrix.unit.is_none_or(Unit::is_bandwidth))
                .then_some((matrix, name, shape))
        })
        .collect()
}

fn build_fabric_group<'a>(
    domain: &DomainRecordings<'a>,
    only: Option<&NodeName>,
    at_once: bool,
) -> FabricGroup<'a> {
    let is_included = |node: &NodeName| only.is_none_or(|only| node == only);
    let own = domain.per_node.iter().filter(|(node, _)| is_included(node));
    let own = own.flat_map(|(node, recordings)| recordings.iter().map(move |r| (Some(node), *r)));
    let across = domain.across_nodes.iter().map(|r| (None, *r)).filter(|_| only.is_none());
    let mut recordings: Vec<(Option<&NodeName>, &ToolRecording)> = Vec::new();
    let mut known: BTreeMap<(Option<&NodeName>, u64), Vec<&ToolRecording>> = BTreeMap::new();
    for (node, recording) in own.chain(across) {
        // A copied file counts as one reading.
        if let Some(fingerprint) = fingerprint(recording) {
            let alike = known.entry((node, fingerprint)).or_default();
            if alike.iter().any(|other| pair_matrices(other) == pair_matrices(recording)) {
                continue;
            }
            alike.push(recording);
        }
        recordings.push((node, recording));
    }

    // Expected GPUs are members even without readings, and so is every GPU that a matrix names.
    let mut places: BTreeMap<GpuId, usize> = BTreeMap::new();
    for (node, recording) in &recordings {
        let label = gpu_label_resolver(domain, recording, *node);
        for (matrix, _, shape) in pair_matrices(recording) {
            let (rows, cols) = matrix_ends(matrix, shape, &*label);
            places.extend(rows.into_iter().chain(cols).flatten().map(|gpu| (gpu, 0)));
        }
    }
    let left_out = fit_gpus(domain, is_included, &mut places);
    for (at, place) in places.values_mut().enumerate() {
        *place = at;
    }
    let gpus: Vec<GpuId> = places.keys().cloned().collect();

    let mut groups: Vec<PairReadingGroup> = Vec::new();
    let (mut directed, mut both_ways) = (Vec::new(), Vec::new());
    let (mut directed_runs, mut both_runs) = (Vec::new(), Vec::new());
    let (mut run_files, mut run_took) = (Vec::new(), Vec::new());
    let mut runs: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    let mut blanks: Vec<(usize, usize, usize)> = Vec::new();
    let mut files: BTreeMap<Arc<str>, Vec<ReadingSource>> = BTreeMap::new();
    for (at, (node, recording)) in recordings.into_iter().enumerate() {
        let label = gpu_label_resolver(domain, recording, node);
        let ranks = || domain.gpus_of_ranks(&recording.parsed).into_values().map(|g| g.node);
        let members: BTreeSet<NodeName> =
            if node.is_none() { ranks().collect() } else { BTreeSet::new() };
        let small_buffer = uses_small_buffers(recording);
        let bytes = buffer_bytes(recording);
        for (matrix, name, shape) in pair_matrices(recording) {
            if testcase::is_concurrent(name) != at_once {
                continue;
            }
            let testcase: Arc<str> = Arc::from(name);
            let file = recording.file.clone();
            let source = ReadingSource { node: node.cloned(), members: members.clone(), file };
            let seen_in: &mut Vec<ReadingSource> = files.entry(testcase.clone()).or_default();
            if !seen_in.contains(&source) {
                seen_in.push(source);
            }
            let mut group = |between_nodes| {
                let across = node.is_none();
                let (testcase, tool) = (testcase.clone(), recording.parsed.tool);
                let key = PairReadingGroup {
                    testcase,
                    tool,
                    across_nodes: across,
                    between_nodes,
                    small_buffer,
                    bytes,
                };
                groups.iter().position(|known| *known == key).unwrap_or_else(|| {
                    groups.push(key);
                    groups.len() - 1
                })
            };
            // A group without readings has no level, which affects no other group.
            let group = [group(false), group(true)];
            let run = *runs.entry((at, matrix.run)).or_insert_with(|| {
                run_files.push(recording.file.clone());
                run_took.push(OutputParticipants::from_recording(recording));
                run_files.len() - 1
            });
            let ends = matrix_ends(matrix, shape, |text| places.get(&label(text)?).copied());
            for_each_pair(matrix, shape, &ends, |src, dst, cell| {
                let (src, dst) = (*src, *dst);
                let group = group[usize::from(gpus[src].node != gpus[dst].node)];
                match cell {
                    Some(value) if shape == CellShape::BothWays => {
                        both_ways.push(PairReading { src, dst, group, value });
                        both_runs.push(run);
                    }
                    Some(value) => {
                        directed.push(PairReading { src, dst, group, value });
                        directed_runs.push(run);
                    }
                    None => blanks.push((src, dst, group)),
                }
            });
        }
    }
    let holes = find_holes(&blanks, &groups, directed.iter().chain(&both_ways));
    FabricGroup {
        domain: domain.name.clone(),
        node: only.cloned(),
        platform: domain.platform,
        gpus,
        left_out,
        nodes_claimed: domain.nodes.len() + domain.left_out,
        reading_groups: groups,
        directed,
        directed_runs,
        run_files,
        run_participants: run_took,
        both_ways,
        both_ways_runs: both_runs,
        holes,
        cut_nodes: if only.is_none() {
            output_problems::find_unimportable_pairs(domain)
        } else {
            Vec::new()
        },
        files,
    }
}

/// Adds the expected GPUs up to the capacity of one pair table, and removes the excess: the highest
/// indices first, evenly over the nodes.
fn fit_gpus(
    domain: &DomainRecordings<'_>,
    is_included: impl Fn(&NodeName) -> bool,
    places: &mut BTreeMap<GpuId, usize>,
) -> BTreeMap<NodeName, usize> {
    let most = limits::MAX_GPUS_IN_TABLE;
    let mut left_out: BTreeMap<NodeName, usize> = BTreeMap::new();
    if most < places.len() {
        let mut read: Vec<GpuId> = std::mem::take(places).into_keys().collect();
        read.sort_by(|a, b| (a.gpu, &a.node).cmp(&(b.gpu, &b.node)));
        for gpu in read.split_off(most) {
            *left_out.entry(gpu.node).or_default() += 1;
        }
        places.extend(read.into_iter().map(|gpu| (gpu, 0)));
    }
    for index in 0..domain.gpus_per_node.unwrap_or(0).min(limits::MAX_GPUS_PER_NODE) {
        for node in domain.nodes.iter().filter(|node| is_included(node)) {
            let gpu = GpuId::new(node.clone(), index);
            if places.len() < most {
                places.insert(gpu, 0);
            } else if !places.contains_key(&gpu) {
                *left_out.entry(gpu.node).or_default() += 1;
            }
        }
    }
    left_out
}

/// The pairs that a test left blank in all its readings. A number of another test does not fill the
/// gap: that test had to be measured too.
fn find_holes<'r>(
    blanks: &[(usize, usize, usize)],
    groups: &[PairReadingGroup],
    readings: impl Iterator<Item = &'r PairReading>,
) -> Vec<(usize, usize)> {
    if blanks.is_empty() {
        return Vec::new();
    }
    let test = |group: usize| (&groups[group].testcase, groups[group].across_nodes);
    let filled: BTreeSet<_> = readings.map(|r| (r.src, r.dst, test(r.group))).collect();
    let blank = blanks.iter().filter(|(s, d, group)| !filled.contains(&(*s, *d, test(*group))));
    let holes: BTreeSet<(usize, usize)> = blank.map(|(src, dst, _)| (*src, *dst)).collect();
    holes.into_iter().collect()
}
