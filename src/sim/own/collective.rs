//! What our own NCCL probe says on a simulated node.
//!
//! The first node's document has the numbers, as the real one's does; a run
//! that fails says so on all.

use std::collections::BTreeMap;

use super::Place;
use crate::bench::Bench;
use crate::collective::Collective;
use crate::collective::Wires;
use crate::fabric::GpuIndex;
use model::collective::COLLECTIVE_FORMAT;
use model::collective::CollectiveDocument;
use model::collective::CollectivePoint;
use model::collective::CollectiveTest;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// Sizes beyond this many are no sweep.
const MOST_SIZES: usize = 100;

/// What the probe is asked.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The tests, by nccl-tests' names.
    pub tests: &'a [String],
    /// Numbers taken of each size.
    pub readings: u32,
    /// The smallest and the largest message, in bytes.
    pub bytes: [u64; 2],
    /// From one size to the next.
    pub factor: u64,
    /// Operations that one number is taken over.
    pub iterations: u32,
    /// The path that must be taken, as transports are called.
    pub asserted: Option<&'a str>,
}

/// The document of this node.
pub fn document(place: &Place<'_>, asked: &Asked<'_>) -> CollectiveDocument {
    let gpus = place.all();
    let mut document = CollectiveDocument {
        format: COLLECTIVE_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: place.node.to_owned(),
        cuda: place.cuda(),
        nccl: Some("2.28.3".to_owned()),
        library: Some("libnccl.so.2".to_owned()),
        ranks: place.ranks(),
        transports: Vec::new(),
        algorithms: Vec::new(),
        asserted: asked.asserted.map(asserted),
        environment: steered(place),
        tests: Vec::new(),
        around: Some(place.around()),
        problems: Vec::new(),
        complete: true,
    };
    if gpus.is_empty() {
        let what = "the driver shows no GPU";
        document.problems.push(ProbeProblem::new(ProblemKind::Error, "no-device", what));
    } else {
        place.with_bench(0, |bench| paths(bench, &gpus, asked, &mut document));
        for name in asked.tests {
            run(place, name, &gpus, asked, &mut document);
        }
    }
    let lacks = |it: &ProbeProblem| !matches!(it.kind, ProblemKind::Waived | ProblemKind::Corrupt);
    document.complete = !document.problems.iter().any(lacks);
    document
}

/// How the probe calls the path of a transport.
fn asserted(transport: &str) -> String {
    let name = transport.strip_prefix("NET/").unwrap_or(transport);
    name.split('/').next().unwrap_or(name).to_ascii_lowercase()
}

fn steered(place: &Place<'_>) -> BTreeMap<String, String> {
    let own = place.environment.iter().filter(|(name, _)| name.starts_with("NCCL_"));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What NCCL says that it uses.
fn paths(
    bench: &Bench<'_>,
    gpus: &[GpuIndex],
    asked: &Asked<'_>,
    document: &mut CollectiveDocument,
) {
    let several = 1 < bench.node_names(gpus).len();
    let names: &[&str] = match (bench.wires(gpus), several) {
        (Wires::NvLink, true) => &["MNNVL", "P2P/MNNVL"],
        (Wires::NvLink, false) => &["P2P/CUMEM"],
        (Wires::Pcie, _) => &["SHM"],
        (Wires::Nic, _) => &["NET/IB"],
        (Wires::Socket, _) => &["NET/Socket"],
    };
    document.transports = names.iter().map(|name| (*name).to_owned()).collect();
    if bench.can_reduce(gpus) {
        document.transports.insert(0, "NVLS".to_owned());
    }
    for name in asked.tests {
        let switch = bench.reduces(gpus);
        let algorithm = match Collective::of(name) {
            Some(Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter) => {
                Some(if switch { "NVLS" } else { "RING" })
            }
            Some(Collective::Broadcast | Collective::Reduce) => Some("RING"),
            Some(Collective::AllToAll | Collective::SendRecv) | None => None,
        };
        document.algorithms.extend(algorithm.map(|it| (name.clone(), it.to_owned())));
    }
    let taken = |path: &str| document.transports.iter().any(|t| t.eq_ignore_ascii_case(path));
    if let Some(path) = asked.asserted.filter(|path| !taken(path)) {
        let what =
            format!("{path} was asked for, and NCCL names {}", document.transports.join(", "));
        document.problems.push(ProbeProblem::new(ProblemKind::Error, "another-path", what));
    }
}

fn run(
    place: &Place<'_>,
    name: &str,
    gpus: &[GpuIndex],
    asked: &Asked<'_>,
    document: &mut CollectiveDocument,
) {
    let problem = |kind, class: &str, what: &str| ProbeProblem {
        testcase: Some(name.to_owned()),
        ..ProbeProblem::new(kind, class, what)
    };
    let Some(collective) = Collective::of(name) else {
        let what = format!("there is no test {name}");
        document.problems.push(problem(ProblemKind::Error, "unknown-test", &what));
        return;
    };
    if let Some((node, what)) = place.with_bench(0, |bench| bench.collective_failure(gpus)) {
        let told = problem(ProblemKind::Error, "nccl-error", &what);
        document.problems.push(ProbeProblem { node: Some(node), ..told });
        return;
    }
    let first = place.is_here(gpus[0]);
    let wrong = |gpu: &&GpuIndex| place.fabric.gpus[**gpu].corrupt && place.is_here(**gpu);
    for gpu in gpus.iter().filter(wrong) {
        let what = "elements are not what the operation makes of the input";
        let told = problem(ProblemKind::Corrupt, "wrong-data", what);
        document.problems.push(ProbeProblem { gpu: Some(place.fabric.device(*gpu)), ..told });
    }
    if !first {
        return;
    }
    for reading in 0..asked.readings {
        let points = place.with_bench(reading, |bench| {
            let bus = bench.bus_bandwidth(collective, gpus);
            // Where every rank's part comes to nothing there is nothing to time.
            let sizes = sizes(asked).into_iter();
            sizes
                .filter(|bytes| 0 < collective.counted(*bytes, gpus.len()).0)
                .map(|bytes| point(bench, name, collective, gpus, bytes, bus, asked.iterations))
                .collect()
        });
        let (testcase, datatype) = (name.to_owned(), "float".to_owned());
        document.tests.push(CollectiveTest { testcase, reading, datatype, points });
    }
}

fn point(
    bench: &Bench<'_>,
    name: &str,
    collective: Collective,
    gpus: &[GpuIndex],
    bytes: u64,
    bus: f64,
    iterations: u32,
) -> CollectivePoint {
    let row = bench.row(name, collective, gpus, bytes, bus);
    let half = row.halves[0];
    // One rank sends nothing over any link.
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

fn sizes(asked: &Asked<'_>) -> Vec<u64> {
    let [least, most] = asked.bytes;
    let next = |size: &u64| size.checked_mul(asked.factor.max(2));
    let all = std::iter::successors(Some(least.max(4)), next);
    all.take_while(|size| *size <= most).take(MOST_SIZES).collect()
}
