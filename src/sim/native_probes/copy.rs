//! Document of fabricgate's native copy-engine probe on a simulated node.
//!
//! Unlike nvbandwidth, the probe keeps partial results: an error, a peer whose memory cannot be
//! imported, and wrong data cause empty cells and a problem, and the other cells remain.

use super::NativeProbeSite;
use crate::cases::{SimCase, SimCaseKind};
use crate::fabric::{CopyRoute, GpuIndex};
use crate::fault::SimFault;
use crate::invocation::SimMatrix;
use crate::tool_config::NvbandwidthLayout;
use crate::{cases, invocation};
use model::copy::{COPY_FORMAT, CopyDocument, CopyTest};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Parameters of the probe.
#[derive(Clone, Debug)]
pub struct SimCopyRequest<'a> {
    /// The tests, by nvbandwidth's names.
    pub tests: &'a [String],
    /// Readings per cell.
    pub readings: u32,
    /// Bytes of one copy.
    pub buffer_bytes: u64,
    /// Copies per reading.
    pub copies: u32,
    /// Warm-up copies before each reading.
    pub warmup: u32,
    /// Whether nodes measure only GPU i with GPU i of each other.
    pub lane: bool,
}

/// Builds the document of this node.
pub fn build_document(place: &NativeProbeSite<'_>, request: &SimCopyRequest<'_>) -> CopyDocument {
    let mut document = CopyDocument {
        format: COPY_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: place.node.to_owned(),
        cuda: place.cuda_version(),
        buffer_bytes: request.buffer_bytes,
        copies: request.copies,
        warmup: request.warmup,
        warmup_ms: 0,
        gpus: place.probed_gpus(),
        ranks: if place.nodes.is_empty() { Vec::new() } else { place.probed_ranks() },
        tests: Vec::new(),
        around: Some(place.driver_telemetry()),
        problems: Vec::new(),
        complete: true,
    };
    if document.gpus.is_empty() {
        let what = "the driver reports no GPU".to_owned();
        document.problems.push(ProbeProblem::new(
            OutputProblemKind::Error,
            ProbeProblemClass::NoDevice,
            what,
        ));
    } else {
        for name in request.tests {
            if run_test(place, request, name, &mut document) == SimCopyFlow::Stop {
                break;
            }
        }
    }
    // Wrong data also counts as measured.
    let lacks = |it: &ProbeProblem| {
        !matches!(it.kind, OutputProblemKind::Waived | OutputProblemKind::Corrupt)
    };
    document.complete = !document.problems.iter().any(lacks);
    document
}

/// Whether measuring can continue after a test.
#[derive(PartialEq, Eq)]
enum SimCopyFlow {
    Continue,
    Stop,
}

fn run_test(
    place: &NativeProbeSite<'_>,
    request: &SimCopyRequest<'_>,
    name: &str,
    document: &mut CopyDocument,
) -> SimCopyFlow {
    let problems = &mut document.problems;
    let problem = |kind, class: ProbeProblemClass, what: String| ProbeProblem {
        testcase: Some(name.to_owned()),
        ..ProbeProblem::new(kind, class, what)
    };
    let known =
        cases::native_case(name).filter(|case| case.is_multinode() != place.nodes.is_empty());
    let Some(case) = known else {
        let what = format!("no test has the name {name} here");
        problems.push(problem(OutputProblemKind::Error, ProbeProblemClass::UnknownTest, what));
        return SimCopyFlow::Continue;
    };
    let gpus = place.all_gpus();
    if case.needs_peer() && gpus.len() < 2 {
        let what = "it needs a pair of GPUs, but only one exists".to_owned();
        problems.push(problem(OutputProblemKind::Waived, ProbeProblemClass::OneGpu, what));
        return SimCopyFlow::Continue;
    }
    if let Some((error, node)) = find_tool_error(place, name) {
        let what = format!("{} ({error}, while copying)", invocation::cuda_error_text(error));
        problems.push(ProbeProblem {
            code: Some(error.to_owned()),
            node: Some(node.to_owned()),
            ..problem(OutputProblemKind::Error, ProbeProblemClass::CudaError, what)
        });
        // The error destroyed the context of this process.
        if node == place.node {
            return SimCopyFlow::Stop;
        }
    }
    let missing = |gpu: GpuIndex| {
        let node = place.fabric.node_of(gpu);
        find_tool_error(place, name).is_some_and(|(_, at)| at == node.name)
            || (case.is_multinode() && !node.imex)
    };
    let mut without: Vec<&str> = Vec::new();
    for gpu in gpus.iter().filter(|gpu| case.is_multinode() && !place.fabric.node_of(**gpu).imex) {
        let node = place.fabric.node_of(*gpu).name.as_str();
        if !without.contains(&node) {
            without.push(node);
            let what = format!("{node} cannot allocate memory that others may import");
            problems.push(ProbeProblem {
                code: Some("CUDA_ERROR_NOT_PERMITTED".to_owned()),
                node: Some(node.to_owned()),
                ..problem(OutputProblemKind::Error, ProbeProblemClass::NoImexChannel, what)
            });
        }
    }
    let holes = SimCopyGaps { place, case, asked: request, gpus: &gpus };
    let mut foreign: Vec<(&str, &str)> = Vec::new();
    for (at, other) in holes.cells() {
        let [row, col] = [at, other].map(|gpu| place.fabric.node_of(gpu).name.as_str());
        let import = holes.is_foreign(at, other) && place.is_here(at) && !missing(at);
        if import && !missing(other) && !foreign.contains(&(row, col)) {
            foreign.push((row, col));
            let what = format!("the memory of {col} cannot be imported on {row}: another fabric");
            problems.push(ProbeProblem {
                code: Some("CUDA_ERROR_INVALID_HANDLE".to_owned()),
                ..problem(OutputProblemKind::Error, ProbeProblemClass::OtherFabric, what)
            });
        }
    }
    let mut reported: Vec<u32> = Vec::new();
    for (at, other) in holes.cells().filter(|(at, other)| holes.is_corrupt(*at, *other)) {
        let (by, end) = (place.fabric.cuda_index(at), place.fabric.cuda_index(other));
        // One entry per copying GPU, which is not necessarily the faulty one.
        if place.is_here(at) && !reported.contains(&by) {
            reported.push(by);
            let what = format!("4096 words arrived wrong, copied by GPU {by}, with GPU {end}");
            let problem = problem(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, what);
            problems.push(ProbeProblem { gpu: Some(by), ..problem });
        }
    }
    add_rows(place, request, &holes, &missing, document);
    SimCopyFlow::Continue
}

/// The error that a fault causes in this test, and its node.
fn find_tool_error<'p>(place: &'p NativeProbeSite<'_>, test: &str) -> Option<(&'p str, &'p str)> {
    place.scenario.faults.iter().find_map(|fault| match fault {
        SimFault::ToolError { node, testcase, error }
            if (node == place.node || place.nodes.contains(node))
                && testcase.as_ref().is_none_or(|name| name == test) =>
        {
            Some((error.as_str(), node.as_str()))
        }
        _ => None,
    })
}

/// Empty cells and their causes.
struct SimCopyGaps<'h> {
    place: &'h NativeProbeSite<'h>,
    case: &'h SimCase,
    asked: &'h SimCopyRequest<'h>,
    gpus: &'h [GpuIndex],
}

impl SimCopyGaps<'_> {
    /// The ends of all cells: the copying GPU, and the other one.
    fn cells(&self) -> impl Iterator<Item = (GpuIndex, GpuIndex)> {
        let count = self.gpus.len();
        let bisect = self.case.kind == SimCaseKind::Bisect;
        let alone = !self.case.needs_peer() || matches!(self.case.kind, SimCaseKind::Star { .. });
        let partner = move |at: usize, other: usize| match (bisect, alone) {
            (true, _) => other == (at + count / 2) % count,
            (_, true) => other == at,
            _ => other != at,
        };
        let lane = self.asked.lane;
        let all = (0..count).flat_map(move |at| (0..count).map(move |other| (at, other)));
        let gpus = self.gpus;
        all.filter(move |(at, other)| partner(*at, *other))
            .map(move |(at, other)| (gpus[at], gpus[other]))
            .filter(move |(at, other)| !lane || self.is_lane(*at, *other))
    }

    fn is_lane(&self, at: GpuIndex, other: GpuIndex) -> bool {
        let fabric = self.place.fabric;
        fabric.cuda_index(at) == fabric.cuda_index(other)
            && fabric.gpus[at].node != fabric.gpus[other].node
    }

    /// True if the memory belongs to another fabric and cannot be imported.
    fn is_foreign(&self, at: GpuIndex, other: GpuIndex) -> bool {
        self.case.is_multinode()
            && at != other
            && self.place.fabric.route(at, other) == CopyRoute::Nic
    }

    fn is_corrupt(&self, at: GpuIndex, other: GpuIndex) -> bool {
        let gpus = &self.place.fabric.gpus;
        !self.case.is_latency() && (gpus[at].corrupt || gpus[other].corrupt)
    }
}

/// Adds the numbers of this node's rows.
fn add_rows(
    place: &NativeProbeSite<'_>,
    request: &SimCopyRequest<'_>,
    holes: &SimCopyGaps<'_>,
    missing: &dyn Fn(GpuIndex) -> bool,
    document: &mut CopyDocument,
) {
    let (gpus, case) = (holes.gpus, holes.case);
    let labels: Vec<String> = (0..gpus.len())
        .map(|rank| match place.nodes.is_empty() {
            true => place.fabric.cuda_index(gpus[rank]).to_string(),
            false => rank.to_string(),
        })
        .collect();
    let good: Vec<(GpuIndex, GpuIndex)> = holes
        .cells()
        .filter(|(at, other)| {
            let gone = missing(*at) || missing(*other);
            !gone && !holes.is_foreign(*at, *other) && !holes.is_corrupt(*at, *other)
        })
        .collect();
    let readings: Vec<Vec<SimMatrix>> = (0..request.readings)
        .map(|reading| {
            place.with_invocation(reading, |b| b.measure_case(NvbandwidthLayout::V0_8, case, gpus))
        })
        .collect();
    for (part, table) in readings.first().into_iter().flatten().enumerate() {
        let is_pairs = table.cells.len() == gpus.len() * gpus.len();
        let ends = |row: usize, col: usize| match (case.kind, is_pairs) {
            (SimCaseKind::Bisect, _) => (gpus[row], gpus[(row + gpus.len() / 2) % gpus.len()]),
            (_, true) => (gpus[row], gpus[col]),
            (_, false) => (gpus[col], gpus[col]),
        };
        let rows = table.cells.len() / table.columns.max(1);
        let own: Vec<usize> = (0..rows).filter(|row| place.is_here(ends(*row, 0).0)).collect();
        let own = if is_pairs || case.kind == SimCaseKind::Bisect { own } else { vec![0] };
        let row_label = |row: usize| match case.kind {
            SimCaseKind::Bisect => {
                format!("{}->{}", labels[row], labels[(row + gpus.len() / 2) % gpus.len()])
            }
            _ if is_pairs => labels[row].clone(),
            _ => "0".to_owned(),
        };
        let cols =
            if case.kind == SimCaseKind::Bisect { vec!["0".to_owned()] } else { labels.clone() };
        let cell = |tables: &[SimMatrix], row: usize, col: usize| {
            let value = tables.get(part)?.cells.get(row * table.columns + col).copied()??;
            good.contains(&ends(row, col)).then_some(value)
        };
        let reading = |tables: &Vec<SimMatrix>| -> Vec<Vec<Option<f64>>> {
            let row = |row: &usize| (0..cols.len()).map(|col| cell(tables, *row, col)).collect();
            own.iter().map(row).collect()
        };
        document.tests.push(CopyTest {
            testcase: table.key.clone(),
            unit: if case.is_latency() { "us" } else { "GB/s" }.to_owned(),
            rows: own.iter().map(|row| row_label(*row)).collect(),
            cols: cols.clone(),
            readings: readings.iter().map(reading).collect(),
        });
    }
}
