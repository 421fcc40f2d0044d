//! What the parsers found wrong with an output, turned into outcomes.
//!
//! Wrong data is failed. An error of the hardware's own libraries that names
//! a part is failed for that part. Everything else (a missing tool, a cut log,
//! a waived test, data nobody checked) is unknown: it says something of the
//! run, nothing of the fabric.

use std::collections::BTreeSet;

use super::arrange::Domain;
use super::finding::finding;
use super::finding::of_domain;
use super::finding::of_node;
use super::ledger::Ledger;
use super::partners;
use super::partners::Pairs;
use super::testcase;
use model::cuda_error::CudaError;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::parsed::Tool;
use model::recording::Recording;
use model::rule::RuleKind;
use model::subject::UnknownSubject;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;
use model::verdict::Outcome;

/// Errors of CUDA that a part of the fabric causes, whatever program ran. Others (out of
/// memory, a driver that does not fit, bad arguments) say something of the run.
const HARDWARE: &[CudaError] = &[
    CudaError::NoDevice,
    CudaError::DeviceUnavailable,
    CudaError::EccUncorrectable,
    CudaError::NvlinkUncorrectable,
    CudaError::HardwareStackError,
    CudaError::Contained,
    CudaError::SystemNotReady,
    CudaError::ExternalDevice,
];

/// Those that a part causes where the program only copies. A collective library can cause
/// them itself: its kernels wait for each other and its handles are many.
const OF_COPIES: &[CudaError] = &[
    CudaError::IllegalAddress,
    CudaError::LaunchFailed,
    CudaError::LaunchTimeout,
    CudaError::MapFailed,
    CudaError::PeerAccessUnsupported,
    CudaError::InvalidHandle,
    CudaError::NotPermitted,
    CudaError::Unknown,
];

/// The same of NVML.
const NVML: &[&str] = &["NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"];

/// What our own copy probe calls memory that cannot be imported although both
/// sides are permitted to share: the two are on different fabrics.
const OTHER_FABRIC: &str = "other-fabric";

/// Turns the problems of every recording of a domain into outcomes.
pub(super) fn judge(domain: &Domain<'_>, ledger: &mut Ledger) {
    for (node, recordings) in &domain.own {
        let alone: BTreeSet<u32> = recordings.iter().flat_map(|r| corrupt_alone(r)).collect();
        for recording in recordings {
            on_node(domain, node, recording, &alone, ledger);
        }
    }
    let (pairs, culprits) = runs_of_two(domain);
    for recording in &domain.across {
        match pairs.iter().find(|run| std::ptr::eq(run.recording, *recording)) {
            Some(run) if run.failed => of_two(domain, run, &culprits, ledger),
            _ if explained(domain, recording, &culprits, ledger) => {}
            _ => across(domain, recording, ledger),
        }
    }
}

/// The nodes whose own outputs show that they cannot run anything.
fn broken(domain: &Domain<'_>) -> BTreeSet<NodeName> {
    let is_broken = |recording: &&Recording| {
        let mut problems = recording.parsed.problems.iter();
        problems.any(|p| p.kind == ProblemKind::Error && outcome(p, recording) == Outcome::Failed)
    };
    let own = domain.own.iter().filter(|(_, own)| own.iter().any(is_broken));
    own.map(|(node, _)| node.clone()).collect()
}

/// Whether a run of many nodes failed with one that fails by itself, or with nearly all
/// its partners: then it says nothing of the others. Wrong data is judged by itself.
fn explained(
    domain: &Domain<'_>,
    recording: &Recording,
    culprits: &BTreeSet<NodeName>,
    ledger: &mut Ledger,
) -> bool {
    let parsed = &recording.parsed;
    let problems: Vec<&Problem> =
        parsed.problems.iter().filter(|p| !is_normal(p, domain, recording)).collect();
    let ends = |p: &&Problem| matches!(p.kind, ProblemKind::Error | ProblemKind::Truncated);
    let members = members(domain, recording);
    let here: Vec<&NodeName> = members.iter().filter(|node| culprits.contains(*node)).collect();
    let failed = !problems.is_empty() || !parsed.complete;
    if here.is_empty() || !failed || parsed.tool.is_none() || !problems.iter().all(ends) {
        return false;
    }
    let incomplete = Problem::new(ProblemKind::Truncated, "the output is not complete");
    let problem = problems.first().copied().unwrap_or(&incomplete);
    for node in here {
        doubt(node, problem, recording, ledger);
    }
    true
}

/// Our own probes keep what they could measure and say exactly what kept them
/// from the rest.
fn is_own(recording: &Recording) -> bool {
    matches!(recording.parsed.tool, Some(Tool::FabricgateCopy | Tool::FabricgateCollective))
}

/// GPUs that our own copy probe saw wrong data of with no other GPU in between:
/// in copies with the host, or inside one GPU.
fn corrupt_alone(recording: &Recording) -> impl Iterator<Item = u32> + '_ {
    let is_alone = |p: &&Problem| {
        let shape = p.testcase.as_deref().map(testcase::shape);
        p.kind == ProblemKind::Corrupt
            && shape.is_some_and(|s| s.is_host() || s == testcase::Shape::Local)
    };
    let own = recording.parsed.tool == Some(Tool::FabricgateCopy);
    recording.parsed.problems.iter().filter(move |_| own).filter(is_alone).filter_map(|p| p.gpu)
}

/// The GPU that wrong data on one node is to be blamed on. Our own probe names
/// the GPU that copied; between two GPUs it may be the other one. A collective
/// is wrong everywhere when one member is.
fn corrupt_gpu(problem: &Problem, recording: &Recording, alone: &BTreeSet<u32>) -> Option<u32> {
    if !is_own(recording) {
        return problem.gpu;
    }
    match alone.len() {
        // Whoever is wrong by itself explains what others got from it.
        1 => alone.first().copied(),
        _ => problem.gpu.filter(|gpu| alone.contains(gpu)),
    }
}

/// A run of two nodes of a domain.
struct RunOfTwo<'a> {
    recording: &'a Recording,
    ends: (NodeName, NodeName),
    failed: bool,
}

/// The runs of two nodes, and the nodes that explain those that failed.
fn runs_of_two<'a>(domain: &Domain<'a>) -> (Vec<RunOfTwo<'a>>, BTreeSet<NodeName>) {
    let broken = broken(domain);
    if domain.nodes.len() < 3 {
        return (Vec::new(), broken);
    }
    let mut runs = Vec::new();
    for recording in &domain.across {
        let Ok([a, b]) = <[NodeName; 2]>::try_from(members(domain, recording)) else { continue };
        let parsed = &recording.parsed;
        let failed = parsed.problems.iter().any(|p| !is_normal(p, domain, recording))
            || !parsed.complete
            || parsed.tool.is_none();
        runs.push(RunOfTwo { recording, ends: (a, b), failed });
    }
    let of = |wanted: bool| -> Pairs<NodeName> {
        let known = |(a, b): &(NodeName, NodeName)| broken.contains(a) || broken.contains(b);
        let some = runs.iter().filter(|r| r.failed == wanted && !known(&r.ends));
        some.map(|r| r.ends.clone()).collect()
    };
    let mut culprits = partners::culprits(&of(false), &of(true), &BTreeSet::new());
    culprits.extend(broken);
    (runs, culprits)
}

/// A failed run of two nodes: it accuses neither, unless one of them fails with
/// nearly all its partners.
fn of_two(
    domain: &Domain<'_>,
    run: &RunOfTwo<'_>,
    culprits: &BTreeSet<NodeName>,
    ledger: &mut Ledger,
) {
    let (recording, (a, b)) = (run.recording, &run.ends);
    let guilty: Vec<&NodeName> = [a, b].into_iter().filter(|n| culprits.contains(*n)).collect();
    let incomplete = Problem::new(ProblemKind::Truncated, "the output is not complete");
    let problems = &recording.parsed.problems;
    let problems = if problems.is_empty() { std::slice::from_ref(&incomplete) } else { problems };
    for problem in problems.iter().filter(|p| !is_normal(p, domain, recording)) {
        let bad = outcome(problem, recording) == Outcome::Failed;
        let said = |node: &NodeName| format!("{node}: {}", problem.detail);
        if problem.kind == ProblemKind::Corrupt {
            let named = match is_own(recording) {
                // Who copied need not be who is wrong.
                true => guilty.first().filter(|_| guilty.len() == 1).map(|node| (*node).clone()),
                false => node_of(domain, recording, problem),
            };
            let locus = match named {
                Some(node) => of_node(&domain.name, &node),
                None => Locus {
                    kind: LocusKind::Pair,
                    peer: Some(b.to_string()),
                    ..of_node(&domain.name, a)
                },
            };
            ledger.find(failed(problem, locus, recording, &said(a)));
        } else if is_import_error(problem) && domain.spans_nodes() {
            // Who reaches whom is told from all such runs together.
        } else if guilty.is_empty() {
            let test = problem.testcase.as_deref().unwrap_or("a test");
            let what = format!("{test} of {a} and {b} in {}", recording.file);
            ledger.unknown(
                UnknownSubject::Other(what),
                format!("{}: {}", problem.kind.as_str(), problem.detail),
            );
            [a, b].into_iter().for_each(|node| doubt(node, problem, recording, ledger));
        } else {
            for node in &guilty {
                if bad {
                    let said = format!("{}; so it does with nearly all partners", said(node));
                    let locus = of_node(&domain.name, node);
                    ledger.find(failed(problem, locus, recording, &said));
                } else {
                    doubt(node, problem, recording, ledger);
                }
            }
        }
    }
}

/// An error of importing memory of another node: the two are not in one
/// clique or IMEX domain. CUDA says 400 or 800.
fn is_import_error(problem: &Problem) -> bool {
    if let Some(class) = &problem.class {
        return problem.kind == ProblemKind::Error && class == OTHER_FABRIC;
    }
    let code = problem.code.as_deref().unwrap_or("");
    let error = CudaError::named(code);
    problem.kind == ProblemKind::Error
        && matches!(error, Some(CudaError::InvalidHandle | CudaError::NotPermitted))
}

/// Pairs of nodes between which memory could not be imported.
pub(super) fn not_importable(domain: &Domain<'_>) -> Vec<(NodeName, NodeName)> {
    let (runs, _) = runs_of_two(domain);
    let failed =
        runs.into_iter().filter(|r| r.recording.parsed.problems.iter().any(is_import_error));
    failed.map(|run| run.ends).collect()
}

fn on_node(
    domain: &Domain<'_>,
    node: &NodeName,
    recording: &Recording,
    alone: &BTreeSet<u32>,
    ledger: &mut Ledger,
) {
    let parsed = &recording.parsed;
    if parsed.tool.is_none() {
        let why = parsed.problems.first().map_or("not recognised", |p| p.detail.as_str());
        ledger.unknown(UnknownSubject::Other(recording.file.clone()), why);
        ledger.doubt(node, format!("{} could not be read: {why}", recording.file));
        return;
    }
    for problem in &parsed.problems {
        // nvidia-smi and dcgmi report states, which `state` judges with their GPU.
        let is_state = matches!(
            parsed.tool,
            Some(Tool::NvidiaSmiNvlink | Tool::DcgmDiag | Tool::NvidiaImexCtl)
        ) && problem.kind == ProblemKind::Error;
        if is_state {
            continue;
        }
        match outcome(problem, recording) {
            Outcome::Failed => {
                let gpu = match problem.kind {
                    ProblemKind::Corrupt => corrupt_gpu(problem, recording, alone),
                    _ => problem.gpu,
                };
                let locus = match gpu {
                    Some(gpu) => Locus {
                        kind: LocusKind::Gpu,
                        gpu: Some(gpu),
                        ..of_node(&domain.name, node)
                    },
                    None => of_node(&domain.name, node),
                };
                ledger.find(failed(
                    problem,
                    locus,
                    recording,
                    &format!("{node}: {}", problem.detail),
                ));
            }
            _ if is_normal(problem, domain, recording) => {}
            _ => doubt(node, problem, recording, ledger),
        }
    }
    if !parsed.complete && parsed.problems.is_empty() {
        ledger.doubt(node, format!("{} is not complete", recording.file));
    }
}

fn across(domain: &Domain<'_>, recording: &Recording, ledger: &mut Ledger) {
    let parsed = &recording.parsed;
    if parsed.tool.is_none() {
        let why = parsed.problems.first().map_or("not recognised", |p| p.detail.as_str());
        ledger.unknown(UnknownSubject::Other(recording.file.clone()), why);
    }
    let bad: Vec<&Problem> =
        parsed.problems.iter().filter(|p| outcome(p, recording) == Outcome::Failed).collect();
    let blamed: BTreeSet<NodeName> = bad
        .iter()
        .filter(|p| p.kind == ProblemKind::Error)
        .filter_map(|p| node_of(domain, recording, p))
        .collect();
    let corrupt: BTreeSet<NodeName> =
        bad.iter().filter_map(|p| node_of(domain, recording, p)).collect();
    // Of our own probe every rank says what it saw, whoever is the cause.
    let shared =
        is_own(recording) && (1 < corrupt.len() || parsed.tool == Some(Tool::FabricgateCollective));
    for problem in &parsed.problems {
        let node = node_of(domain, recording, problem);
        match (outcome(problem, recording), node.filter(|_| !shared)) {
            // Errors spread from the first to all ranks: only where a single
            // host reports one is it that host's.
            (Outcome::Failed, Some(node))
                if problem.kind == ProblemKind::Corrupt || blamed.len() == 1 =>
            {
                let said = format!("{node}: {}", problem.detail);
                ledger.find(failed(problem, of_node(&domain.name, &node), recording, &said));
            }
            (Outcome::Failed, _) => {
                let said = format!("{}: {}", domain.name, problem.detail);
                let locus = of_domain(LocusKind::Domain, &domain.name);
                ledger.find(failed(problem, locus, recording, &said));
            }
            (_, _) if is_normal(problem, domain, recording) => {}
            (_, _) => {
                let node = node_of(domain, recording, problem);
                ledger.unknown(
                    UnknownSubject::Other(format!(
                        "{} in {}",
                        problem.testcase.as_deref().unwrap_or("a test"),
                        recording.file
                    )),
                    format!("{}: {}", problem.kind.as_str(), problem.detail),
                );
                let all = || members(domain, recording);
                for node in node.map_or_else(all, |n| vec![n]) {
                    doubt(&node, problem, recording, ledger);
                }
            }
        }
    }
    if !parsed.complete && parsed.problems.is_empty() {
        ledger.unknown(UnknownSubject::Other(recording.file.clone()), "the output is not complete");
        for node in members(domain, recording) {
            ledger.doubt(&node, format!("{} is not complete", recording.file));
        }
    }
}

/// The nodes that took part in a run: those of its step, else those that it names; all
/// of the domain where neither says.
fn members(domain: &Domain<'_>, recording: &Recording) -> Vec<NodeName> {
    let named = || domain.gpus_of_ranks(&recording.parsed).into_values().map(|g| g.node).collect();
    let nodes: BTreeSet<NodeName> = match recording.nodes.as_slice() {
        [] => named(),
        planned => planned.iter().cloned().collect(),
    };
    let known: Vec<NodeName> = domain.nodes.iter().filter(|n| nodes.contains(n)).cloned().collect();
    if known.is_empty() { domain.nodes.clone() } else { known }
}

/// The node a problem names, by host or by rank.
fn node_of(domain: &Domain<'_>, recording: &Recording, problem: &Problem) -> Option<NodeName> {
    let by_host = problem.host.as_deref().map(|h| domain.node_of_host(h));
    let by_rank =
        || domain.gpus_of_ranks(&recording.parsed).get(&problem.rank?).map(|g| g.node.clone());
    let took_part = |n: &NodeName| recording.nodes.is_empty() || recording.nodes.contains(n);
    by_host.or_else(by_rank).filter(|n| domain.nodes.contains(n) && took_part(n))
}

/// Failed where the fabric did it, unknown otherwise. Our own probes go on after
/// an error and measure what can be measured: that is evidence, the error is
/// none.
fn outcome(problem: &Problem, recording: &Recording) -> Outcome {
    match problem.kind {
        ProblemKind::Corrupt => Outcome::Failed,
        ProblemKind::Error if !is_own(recording) => {
            let code = problem.code.as_deref().unwrap_or("");
            let copies = recording.parsed.tool != Some(Tool::NcclTests);
            let is_fabric = |error: CudaError| {
                HARDWARE.contains(&error) || (copies && OF_COPIES.contains(&error))
            };
            let fails = NVML.contains(&code) || CudaError::named(code).is_some_and(is_fabric);
            if fails { Outcome::Failed } else { Outcome::Unknown }
        }
        _ => Outcome::Unknown,
    }
}

/// Waived because there is nothing to test: pairs on a node with one GPU, and
/// tests across nodes that were started on one node.
fn is_normal(problem: &Problem, domain: &Domain<'_>, recording: &Recording) -> bool {
    if problem.kind != ProblemKind::Waived {
        return false;
    }
    let shown = recording.parsed.facts.devices.len();
    let one_gpu = domain.gpus_per_node.map_or(shown == 1, |gpus| gpus == 1);
    let Some(name) = problem.testcase.as_deref() else { return one_gpu };
    let needs_peers = matches!(
        testcase::shape(name),
        testcase::Shape::RowToColumn
            | testcase::Shape::ColumnToRow
            | testcase::Shape::BothWays
            | testcase::Shape::Fan(_)
    ) || name.starts_with("device_to_device_");
    name.starts_with("multinode_") || (needs_peers && one_gpu)
}

fn doubt(node: &NodeName, problem: &Problem, recording: &Recording, ledger: &mut Ledger) {
    let test = problem.testcase.as_deref().map_or(String::new(), |t| format!("{t} "));
    ledger.doubt(
        node,
        format!("{test}{} in {}: {}", problem.kind.as_str(), recording.file, problem.detail),
    );
}

fn failed(problem: &Problem, locus: Locus, recording: &Recording, said: &str) -> Finding {
    let (class, rule) = match problem.kind {
        ProblemKind::Corrupt => (
            FindingClass::DataCorruption,
            RuleKind::Data.with("the tool found wrong data; a fast wrong copy is a hard fault"),
        ),
        _ => (
            FindingClass::ToolError,
            RuleKind::Error.with("the GPU's own libraries report that it cannot be used"),
        ),
    };
    let at = problem.line.map_or(String::new(), |line| format!("line {line}: "));
    finding(Outcome::Failed, class, locus, rule).saying(said).because(
        &recording.file,
        problem.testcase.as_deref(),
        format!("{at}{}", problem.detail),
    )
}
