//! Turns parser problems into outcomes.
//!
//! Wrong data is failed. An error from the hardware's own libraries that names a part is failed for
//! that part. Everything else (a missing tool, a truncated log, a waived test, unverified data) is
//! unknown: it concerns the run, not the fabric.

use std::collections::BTreeSet;

use super::domain_recordings::DomainRecordings;
use super::finding::{domain_locus, new_finding, node_locus};
use super::finding_set::FindingSet;
use super::pair_failures::FailurePairs;
use super::{pair_failures, testcase};
use model::cuda_error::CudaError;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::parse_output::{OutputProblem, OutputProblemKind, Tool};
use model::probe_problem_class::ProbeProblemClass;
use model::tool_recording::ToolRecording;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// CUDA errors that a part of the fabric causes, in any program. Other errors (out of memory, a
/// mismatched driver, bad arguments) concern the run.
const CUDA_HARDWARE_ERRORS: &[CudaError] = &[
    CudaError::NoDevice,
    CudaError::DeviceUnavailable,
    CudaError::EccUncorrectable,
    CudaError::NvlinkUncorrectable,
    CudaError::HardwareStackError,
    CudaError::Contained,
    CudaError::SystemNotReady,
    CudaError::ExternalDevice,
];

/// Errors that a part causes if the program only copies. A collective library can cause them
/// itself: its kernels wait for each other, and it opens many handles.
const CUDA_COPY_ERRORS: &[CudaError] = &[
    CudaError::IllegalAddress,
    CudaError::LaunchFailed,
    CudaError::LaunchTimeout,
    CudaError::MapFailed,
    CudaError::PeerAccessUnsupported,
    CudaError::InvalidHandle,
    CudaError::NotPermitted,
    CudaError::Unknown,
];

/// The same for NVML.
const NVML_HARDWARE_ERRORS: &[&str] = &["NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"];

pub(super) fn judge(domain: &DomainRecordings<'_>, ledger: &mut FindingSet) {
    for (node, recordings) in &domain.per_node {
        let alone: BTreeSet<u32> = recordings.iter().flat_map(|r| gpus_corrupt_alone(r)).collect();
        for recording in recordings {
            judge_node_output(domain, node, recording, &alone, ledger);
        }
    }
    let (pairs, culprits) = two_node_runs(domain);
    for recording in &domain.across_nodes {
        match pairs.iter().find(|run| std::ptr::eq(run.recording, *recording)) {
            Some(run) if run.failed => judge_two_node_run(domain, run, &culprits, ledger),
            _ if is_explained(domain, recording, &culprits, ledger) => {}
            _ => judge_domain_output(domain, recording, ledger),
        }
    }
}

/// The nodes whose own outputs show that they cannot run any program.
fn find_broken_nodes(domain: &DomainRecordings<'_>) -> BTreeSet<NodeName> {
    let is_broken = |recording: &&ToolRecording| {
        let mut problems = recording.parsed.problems.iter();
        problems.any(|p| {
            p.kind == OutputProblemKind::Error && problem_outcome(p, recording) == Outcome::Failed
        })
    };
    let own = domain.per_node.iter().filter(|(_, own)| own.iter().any(is_broken));
    own.map(|(node, _)| node.clone()).collect()
}

/// Whether a run of many nodes failed because of a node that fails by itself, or with nearly all
/// its partners: then it carries no information about the others. Wrong data is judged separately.
fn is_explained(
    domain: &DomainRecordings<'_>,
    recording: &ToolRecording,
    culprits: &BTreeSet<NodeName>,
    ledger: &mut FindingSet,
) -> bool {
    let parsed = &recording.parsed;
    let problems: Vec<&OutputProblem> =
        parsed.problems.iter().filter(|p| !is_normal(p, domain, recording)).collect();
    let ends = |p: &&OutputProblem| {
        matches!(p.kind, OutputProblemKind::Error | OutputProblemKind::Truncated)
    };
    let members = find_participants(domain, recording);
    let here: Vec<&NodeName> = members.iter().filter(|node| culprits.contains(*node)).collect();
    let failed = !problems.is_empty() || !parsed.complete;
    if here.is_empty() || !failed || parsed.tool.is_none() || !problems.iter().all(ends) {
        return false;
    }
    let incomplete = OutputProblem::new(OutputProblemKind::Truncated, "the output is not complete");
    let problem = problems.first().copied().unwrap_or(&incomplete);
    for node in here {
        add_doubt(node, problem, recording, ledger);
    }
    true
}

/// fabricgate's own probes keep their completed measurements and report exactly why the rest
/// failed.
fn is_native_probe(recording: &ToolRecording) -> bool {
    matches!(recording.parsed.tool, Some(Tool::FabricgateCopy | Tool::FabricgateCollective))
}

/// GPUs for which fabricgate's copy probe found wrong data without another GPU involved: in copies
/// with the host, or inside one GPU.
fn gpus_corrupt_alone(recording: &ToolRecording) -> impl Iterator<Item = u32> + '_ {
    let is_alone = |p: &&OutputProblem| {
        let shape = p.testcase.as_deref().map(testcase::shape_of);
        p.kind == OutputProblemKind::Corrupt
            && shape.is_some_and(|s| s.is_host() || s == testcase::CellShape::Local)
    };
    let own = recording.parsed.tool == Some(Tool::FabricgateCopy);
    recording.parsed.problems.iter().filter(move |_| own).filter(is_alone).filter_map(|p| p.gpu)
}

/// The GPU to blame for wrong data on one node. fabricgate's probe names the GPU that copied;
/// between two GPUs the other one may be the cause. A collective is wrong everywhere if one member
/// is.
fn corrupt_gpu(
    problem: &OutputProblem,
    recording: &ToolRecording,
    alone: &BTreeSet<u32>,
) -> Option<u32> {
    if !is_native_probe(recording) {
        return problem.gpu;
    }
    match alone.len() {
        // A GPU that corrupts data by itself explains the wrong data that others got from it.
        1 => alone.first().copied(),
        _ => problem.gpu.filter(|gpu| alone.contains(gpu)),
    }
}

struct TwoNodeRun<'a> {
    recording: &'a ToolRecording,
    ends: (NodeName, NodeName),
    failed: bool,
}

/// The runs of two nodes, and the nodes that explain the failed runs.
fn two_node_runs<'a>(domain: &DomainRecordings<'a>) -> (Vec<TwoNodeRun<'a>>, BTreeSet<NodeName>) {
    let broken = find_broken_nodes(domain);
    if domain.nodes.len() < 3 {
        return (Vec::new(), broken);
    }
    let mut runs = Vec::new();
    for recording in &domain.across_nodes {
        let Ok([a, b]) = <[NodeName; 2]>::try_from(find_participants(domain, recording)) else {
            continue;
        };
        let parsed = &recording.parsed;
        let failed = parsed.problems.iter().any(|p| !is_normal(p, domain, recording))
            || !parsed.complete
            || parsed.tool.is_none();
        runs.push(TwoNodeRun { recording, ends: (a, b), failed });
    }
    let of = |wanted: bool| -> FailurePairs<NodeName> {
        let known = |(a, b): &(NodeName, NodeName)| broken.contains(a) || broken.contains(b);
        let some = runs.iter().filter(|r| r.failed == wanted && !known(&r.ends));
        some.map(|r| r.ends.clone()).collect()
    };
    let mut culprits = pair_failures::attribute(&of(false), &of(true), &BTreeSet::new());
    culprits.extend(broken);
    (runs, culprits)
}

/// A failed run of two nodes: it blames neither, unless one of them fails with nearly all its
/// partners.
fn judge_two_node_run(
    domain: &DomainRecordings<'_>,
    run: &TwoNodeRun<'_>,
    culprits: &BTreeSet<NodeName>,
    ledger: &mut FindingSet,
) {
    let (recording, (a, b)) = (run.recording, &run.ends);
    let at_fault: Vec<&NodeName> = [a, b].into_iter().filter(|n| culprits.contains(*n)).collect();
    let incomplete = OutputProblem::new(OutputProblemKind::Truncated, "the output is not complete");
    let problems = &recording.parsed.problems;
    let problems = if problems.is_empty() { std::slice::from_ref(&incomplete) } else { problems };
    for problem in problems.iter().filter(|p| !is_normal(p, domain, recording)) {
        let bad = problem_outcome(problem, recording) == Outcome::Failed;
        let describe = |node: &NodeName| format!("{node}: {}", problem.detail);
        if problem.kind == OutputProblemKind::Corrupt {
            let named = match is_native_probe(recording) {
                // The GPU that copied is not necessarily the one at fault.
                true => {
                    at_fault.first().filter(|_| at_fault.len() == 1).map(|node| (*node).clone())
                }
                false => problem_node(domain, recording, problem),
            };
            let locus = match named {
                Some(node) => node_locus(&domain.name, &node),
                None => Locus {
                    kind: LocusKind::Pair,
                    peer: Some(b.to_string()),
                    ..node_locus(&domain.name, a)
                },
            };
            ledger.add(failed_finding(problem, locus, recording, &describe(a)));
        } else if is_import_error(problem) && domain.spans_nodes() {
            // Membership is decided from all such runs together.
        } else if at_fault.is_empty() {
            let test = problem.testcase.as_deref().unwrap_or("a test");
            let what = format!("{test} of {a} and {b} in {}", recording.file);
            ledger.add_unknown(
                UnknownSubject::Other(what),
                format!("{}: {}", problem.kind.as_str(), problem.detail),
            );
            [a, b].into_iter().for_each(|node| add_doubt(node, problem, recording, ledger));
        } else {
            for node in &at_fault {
                if bad {
                    let summary = format!(
                        "{}; the same happens with nearly all its partners",
                        describe(node)
                    );
                    let locus = node_locus(&domain.name, node);
                    ledger.add(failed_finding(problem, locus, recording, &summary));
                } else {
                    add_doubt(node, problem, recording, ledger);
                }
            }
        }
    }
}

/// An error in importing memory of another node: the two are not in one clique or IMEX domain. CUDA
/// reports 400 or 800.
fn is_import_error(problem: &OutputProblem) -> bool {
    if let Some(class) = &problem.class {
        return problem.kind == OutputProblemKind::Error
            && *class == ProbeProblemClass::OtherFabric;
    }
    let code = problem.code.as_deref().unwrap_or("");
    let error = CudaError::from_name(code);
    problem.kind == OutputProblemKind::Error
        && matches!(error, Some(CudaError::InvalidHandle | CudaError::NotPermitted))
}

/// Pairs of nodes that could not import each other's memory.
pub(super) fn find_unimportable_pairs(domain: &DomainRecordings<'_>) -> Vec<(NodeName, NodeName)> {
    let (runs, _) = two_node_runs(domain);
    let failed =
        runs.into_iter().filter(|r| r.recording.parsed.problems.iter().any(is_import_error));
    failed.map(|run| run.ends).collect()
}

fn judge_node_output(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    recording: &ToolRecording,
    alone: &BTreeSet<u32>,
    ledger: &mut FindingSet,
) {
    let parsed = &recording.parsed;
    if parsed.tool.is_none() {
        let why = parsed.problems.first().map_or("not recognised", |p| p.detail.as_str());
        ledger.add_unknown(UnknownSubject::Other(recording.file.clone()), why);
        ledger.add_doubt(node, format!("{} could not be read: {why}", recording.file));
        return;
    }
    for problem in &parsed.problems {
        // nvidia-smi and dcgmi report states; `component_state` judges them together with their
        // GPU.
        let is_state = matches!(
            parsed.tool,
            Some(Tool::NvidiaSmiNvlink | Tool::DcgmDiag | Tool::NvidiaImexCtl)
        ) && problem.kind == OutputProblemKind::Error;
        if is_state {
            continue;
        }
        match problem_outcome(problem, recording) {
            Outcome::Failed => {
                let gpu = match problem.kind {
                    OutputProblemKind::Corrupt => corrupt_gpu(problem, recording, alone),
                    _ => problem.gpu,
                };
                let locus = match gpu {
                    Some(gpu) => Locus {
                        kind: LocusKind::Gpu,
                        gpu: Some(gpu),
                        ..node_locus(&domain.name, node)
                    },
                    None => node_locus(&domain.name, node),
                };
                ledger.add(failed_finding(
                    problem,
                    locus,
                    recording,
                    &format!("{node}: {}", problem.detail),
                ));
            }
            _ if is_normal(problem, domain, recording) => {}
            _ => add_doubt(node, problem, recording, ledger),
        }
    }
    if !parsed.complete && parsed.problems.is_empty() {
        ledger.add_doubt(node, format!("{} is not complete", recording.file));
    }
}

fn judge_domain_output(
    domain: &DomainRecordings<'_>,
    recording: &ToolRecording,
    ledger: &mut FindingSet,
) {
    let parsed = &recording.parsed;
    if parsed.tool.is_none() {
        let why = parsed.problems.first().map_or("not recognised", |p| p.detail.as_str());
        ledger.add_unknown(UnknownSubject::Other(recording.file.clone()), why);
    }
    let bad: Vec<&OutputProblem> = parsed
        .problems
        .iter()
        .filter(|p| problem_outcome(p, recording) == Outcome::Failed)
        .collect();
    let blamed: BTreeSet<NodeName> = bad
        .iter()
        .filter(|p| p.kind == OutputProblemKind::Error)
        .filter_map(|p| problem_node(domain, recording, p))
        .collect();
    let corrupt: BTreeSet<NodeName> =
        bad.iter().filter_map(|p| problem_node(domain, recording, p)).collect();
    // In fabricgate's probe every rank reports its own observation, whatever the cause.
    let shared = is_native_probe(recording)
        && (1 < corrupt.len() || parsed.tool == Some(Tool::FabricgateCollective));
    for problem in &parsed.problems {
        let node = problem_node(domain, recording, problem);
        match (problem_outcome(problem, recording), node.filter(|_| !shared)) {
            // Errors spread from the first rank to all: only an error that a single host reports
            // belongs to that host.
            (Outcome::Failed, Some(node))
                if problem.kind == OutputProblemKind::Corrupt || blamed.len() == 1 =>
            {
                let summary = format!("{node}: {}", problem.detail);
                ledger.add(failed_finding(
                    problem,
                    node_locus(&domain.name, &node),
                    recording,
                    &summary,
                ));
            }
            (Outcome::Failed, _) => {
                let summary = format!("{}: {}", domain.name, problem.detail);
                let locus = domain_locus(LocusKind::Domain, &domain.name);
                ledger.add(failed_finding(problem, locus, recording, &summary));
            }
            (_, _) if is_normal(problem, domain, recording) => {}
            (_, _) => {
                let node = problem_node(domain, recording, problem);
                ledger.add_unknown(
                    UnknownSubject::Other(format!(
                        "{} in {}",
                        problem.testcase.as_deref().unwrap_or("a test"),
                        recording.file
                    )),
                    format!("{}: {}", problem.kind.as_str(), problem.detail),
                );
                let all = || find_participants(domain, recording);
                for node in node.map_or_else(all, |n| vec![n]) {
                    add_doubt(&node, problem, recording, ledger);
                }
            }
        }
    }
    if !parsed.complete && parsed.problems.is_empty() {
        ledger.add_unknown(
            UnknownSubject::Other(recording.file.clone()),
            "the output is not complete",
        );
        for node in find_participants(domain, recording) {
            ledger.add_doubt(&node, format!("{} is not complete", recording.file));
        }
    }
}

/// The nodes that took part in a run: those of its step, else those that it names, else the whole
/// domain.
fn find_participants(domain: &DomainRecordings<'_>, recording: &ToolRecording) -> Vec<NodeName> {
    let named = || domain.gpus_of_ranks(&recording.parsed).into_values().map(|g| g.node).collect();
    let nodes: BTreeSet<NodeName> = match recording.nodes.as_slice() {
        [] => named(),
        planned => planned.iter().cloned().collect(),
    };
    let known: Vec<NodeName> = domain.nodes.iter().filter(|n| nodes.contains(n)).cloned().collect();
    if known.is_empty() { domain.nodes.clone() } else { known }
}

/// The node that a problem names, by host or by rank.
fn problem_node(
    domain: &DomainRecordings<'_>,
    recording: &ToolRecording,
    problem: &OutputProblem,
) -> Option<NodeName> {
    let by_host = problem.host.as_deref().map(|h| domain.node_of_host(h));
    let by_rank =
        || domain.gpus_of_ranks(&recording.parsed).get(&problem.rank?).map(|g| g.node.clone());
    let took_part = |n: &NodeName| recording.nodes.is_empty() || recording.nodes.contains(n);
    by_host.or_else(by_rank).filter(|n| domain.nodes.contains(n) && took_part(n))
}

/// Failed if the fabric caused it, unknown otherwise. fabricgate's probes continue after an error
/// and measure the rest: those measurements are evidence, the error is not.
fn problem_outcome(problem: &OutputProblem, recording: &ToolRecording) -> Outcome {
    match problem.kind {
        OutputProblemKind::Corrupt => Outcome::Failed,
        OutputProblemKind::Error if !is_native_probe(recording) => {
            let code = problem.code.as_deref().unwrap_or("");
            let copies = recording.parsed.tool != Some(Tool::NcclTests);
            let is_fabric = |error: CudaError| {
                CUDA_HARDWARE_ERRORS.contains(&error)
                    || (copies && CUDA_COPY_ERRORS.contains(&error))
            };
            let fails = NVML_HARDWARE_ERRORS.contains(&code)
                || CudaError::from_name(code).is_some_and(is_fabric);
            if fails { Outcome::Failed } else { Outcome::Unknown }
        }
        _ => Outcome::Unknown,
    }
}

/// Waived because nothing can be tested: pairs on a node with one GPU, and cross-node tests that
/// were started on one node.
fn is_normal(
    problem: &OutputProblem,
    domain: &DomainRecordings<'_>,
    recording: &ToolRecording,
) -> bool {
    if problem.kind != OutputProblemKind::Waived {
        return false;
    }
    let listed = recording.parsed.facts.devices.len();
    let one_gpu = domain.gpus_per_node.map_or(listed == 1, |gpus| gpus == 1);
    let Some(name) = problem.testcase.as_deref() else { return one_gpu };
    let needs_peers = matches!(
        testcase::shape_of(name),
        testcase::CellShape::RowToColumn
            | testcase::CellShape::ColumnToRow
            | testcase::CellShape::BothWays
            | testcase::CellShape::Fan(_)
    ) || name.starts_with("device_to_device_");
    name.starts_with("multinode_") || (needs_peers && one_gpu)
}

fn add_doubt(
    node: &NodeName,
    problem: &OutputProblem,
    recording: &ToolRecording,
    ledger: &mut FindingSet,
) {
    let test = problem.testcase.as_deref().map_or(String::new(), |t| format!("{t} "));
    ledger.add_doubt(
        node,
        format!("{test}{} in {}: {}", problem.kind.as_str(), recording.file, problem.detail),
    );
}

fn failed_finding(
    problem: &OutputProblem,
    locus: Locus,
    recording: &ToolRecording,
    summary: &str,
) -> Finding {
    let (class, rule) = match problem.kind {
        OutputProblemKind::Corrupt => (
            FindingClass::DataCorruption,
            RuleKind::Data
                .with_terms("the tool found wrong data; a fast wrong copy is a hard fault"),
        ),
        _ => (
            FindingClass::ToolError,
            RuleKind::Error.with_terms("the GPU's own libraries report that it cannot be used"),
        ),
    };
    let at = problem.line.map_or(String::new(), |line| format!("line {line}: "));
    new_finding(Outcome::Failed, class, locus, rule).with_summary(summary).with_evidence(
        &recording.file,
        problem.testcase.as_deref(),
        format!("{at}{}", problem.detail),
    )
}
