//! Document of fabricgate's native NCCL probe on a simulated node.
//!
//! The first node's document contains the numbers, like the real one's; a failed run reports its
//! failure on all nodes.

use std::collections::BTreeMap;

use super::NativeProbeSite;
use crate::collective::{SimCollective, SimCollectiveTransport};
use crate::fabric::GpuIndex;
use crate::invocation::ToolInvocation;
use model::collective::{COLLECTIVE_FORMAT, CollectiveDocument, CollectivePoint, CollectiveTest};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Maximum sizes of a plausible sweep.
const MOST_SIZES: usize = 100;

/// Parameters of the probe.
#[derive(Clone, Debug)]
pub struct SimCollectiveRequest<'a> {
    /// The tests, by nccl-tests' names.
    pub tests: &'a [String],
    /// Readings per size.
    pub readings: u32,
    /// Smallest and largest message in bytes.
    pub bytes: [u64; 2],
    /// Factor from one size to the next.
    pub factor: u64,
    /// Operations per reading.
    pub iterations: u32,
    /// The required path, by its transport name.
    pub asserted: Option<&'a str>,
}

/// Builds the document of this node.
pub fn build_document(
    place: &NativeProbeSite<'_>,
    request: &SimCollectiveRequest<'_>,
) -> CollectiveDocument {
    let gpus = place.all_gpus();
    let mut document = CollectiveDocument {
        format: COLLECTIVE_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: place.node.to_owned(),
        cuda: place.cuda_version(),
        nccl: Some("2.28.3".to_owned()),
        library: Some("libnccl.so.2".to_owned()),
        ranks: place.probed_ranks(),
        transports: Vec::new(),
        algorithms: Vec::new(),
        asserted: request.asserted.map(path_name),
        environment: nccl_variables(place),
        tests: Vec::new(),
        around: Some(place.driver_telemetry()),
        problems: Vec::new(),
        complete: true,
    };
    if gpus.is_empty() {
        let what = "the driver reports no GPU";
        document.problems.push(ProbeProblem::new(
            OutputProblemKind::Error,
            ProbeProblemClass::NoDevice,
            what,
        ));
    } else {
        place.with_invocation(0, |bench| fill_paths(bench, &gpus, request, &mut document));
        for name in request.tests {
            run_test(place, name, &gpus, request, &mut document);
        }
    }
    let lacks = |it: &ProbeProblem| {
        !matches!(it.kind, OutputProblemKind::Waived | OutputProblemKind::Corrupt)
    };
    document.complete = !document.problems.iter().any(lacks);
    document
}

/// The probe's name for a transport's path.
fn path_name(transport: &str) -> String {
    let name = transport.strip_prefix("NET/").unwrap_or(transport);
    name.split('/').next().unwrap_or(name).to_ascii_lowercase()
}

fn nccl_variables(place: &NativeProbeSite<'_>) -> BTreeMap<String, String> {
    let own = place.environment.iter().filter(|(name, _)| name.starts_with("NCCL_"));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Fills in the transports from NCCL's log.
fn fill_paths(
    bench: &ToolInvocation<'_>,
    gpus: &[GpuIndex],
    request: &SimCollectiveRequest<'_>,
    document: &mut CollectiveDocument,
) {
    let several = 1 < bench.node_names(gpus).len();
    let names: &[&str] = match (bench.transport(gpus), several) {
        (SimCollectiveTransport::NvLink, true) => &["MNNVL", "P2P/MNNVL"],
        (SimCollectiveTransport::NvLink, false) => &["P2P/CUMEM"],
        (SimCollectiveTransport::Pcie, _) => &["SHM"],
        (SimCollectiveTransport::Nic, _) => &["NET/IB"],
        (SimCollectiveTransport::Socket, _) => &["NET/Socket"],
    };
    document.transports = names.iter().map(|name| (*name).to_owned()).collect();
    if bench.can_reduce(gpus) {
        document.transports.insert(0, "NVLS".to_owned());
    }
    for name in request.tests {
        let switch = bench.uses_switch_reduction(gpus);
        let algorithm = match SimCollective::from_program(name) {
            Some(
                SimCollective::AllReduce | SimCollective::AllGather | SimCollective::ReduceScatter,
            ) => Some(if switch { "NVLS" } else { "RING" }),
            Some(SimCollective::Broadcast | SimCollective::Reduce) => Some("RING"),
            Some(SimCollective::AllToAll | SimCollective::SendRecv) | None => None,
        };
        document.algorithms.extend(algorithm.map(|it| (name.clone(), it.to_owned())));
    }
    let taken = |path: &str| document.transports.iter().any(|t| t.eq_ignore_ascii_case(path));
    if let Some(path) = request.asserted.filter(|path| !taken(path)) {
        let what =
            format!("{path} was requested, but NCCL uses {}", document.transports.join(", "));
        document.problems.push(ProbeProblem::new(
            OutputProblemKind::Error,
            ProbeProblemClass::AnotherPath,
            what,
        ));
    }
}

fn run_test(
    place: &NativeProbeSite<'_>,
    name: &str,
    gpus: &[GpuIndex],
    request: &SimCollectiveRequest<'_>,
    document: &mut CollectiveDocument,
) {
    let problem = |kind, class: ProbeProblemClass, what: &str| ProbeProblem {
        testcase: Some(name.to_owned()),
        ..ProbeProblem::new(kind, class, what)
    };
    let Some(collective) = SimCollective::from_program(name) else {
        let what = format!("no test has the name {name}");
        document.problems.push(problem(
            OutputProblemKind::Error,
            ProbeProblemClass::UnknownTest,
            &what,
        ));
        return;
    };
    if let Some((node, what)) = place.with_invocation(0, |bench| bench.collective_failure(gpus)) {
        let reported = problem(OutputProblemKind::Error, ProbeProblemClass::NcclError, &what);
        document.problems.push(ProbeProblem { node: Some(node), ..reported });
        return;
    }
    let first = place.is_here(gpus[0]);
    let wrong = |gpu: &&GpuIndex| place.fabric.gpus[**gpu].corrupt && place.is_here(**gpu);
    for gpu in gpus.iter().filter(wrong) {
        let what = "elements differ from the expected result";
        let reported = problem(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, what);
        document
            .problems
            .push(ProbeProblem { gpu: Some(place.fabric.cuda_index(*gpu)), ..reported });
    }
    if !first {
        return;
    }
    for reading in 0..request.readings {
        let points = place.with_invocation(reading, |bench| {
            let bus = bench.bus_bandwidth(collective, gpus);
            // If every rank's part is empty, nothing can be timed.
            let sizes = sweep_sizes(request).into_iter();
            sizes
                .filter(|bytes| 0 < collective.message_counts(*bytes, gpus.len()).0)
                .map(|bytes| {
                    measure_point(bench, name, collective, gpus, bytes, bus, request.iterations)
                })
                .collect()
        });
        let (testcase, datatype) = (name.to_owned(), "float".to_owned());
        document.tests.push(CollectiveTest { testcase, reading, datatype, points });
    }
}

fn measure_point(
    bench: &ToolInvocation<'_>,
    name: &str,
    collective: SimCollective,
    gpus: &[GpuIndex],
    bytes: u64,
    bus: f64,
    iterations: u32,
) -> CollectivePoint {
    let row = bench.collective_row(name, collective, gpus, bytes, bus);
    let half = row.halves[0];
    // A single rank sends nothing over any link.
    let busbw = if gpus.len() < 2 { 0.0 } else { half.busbw };
    CollectivePoint {
        bytes: row.bytes,
        iterations,
        time_us: half.time,
        slowest_us: half.time * 1.01,
        algbw: half.algbw,
        busbw,
        wrong: half.wrong,
        checked: row.count * gpus.len() as u64,
    }
}

fn sweep_sizes(request: &SimCollectiveRequest<'_>) -> Vec<u64> {
    let [least, most] = request.bytes;
    let next = |size: &u64| size.checked_mul(request.factor.max(2));
    let all = std::iter::successors(Some(least.max(4)), next);
    all.take_while(|size| *size <= most).take(MOST_SIZES).collect()
}
