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
use super::testcase;
use crate::model::id::NodeName;
use crate::model::parsed::Problem;
use crate::model::parsed::ProblemKind;
use crate::model::parsed::Tool;
use crate::model::recording::Recording;
use crate::model::verdict::Finding;
use crate::model::verdict::Locus;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;

/// CUDA, NVML and NCCL errors that a part of the fabric causes. Others
/// (out of memory, a driver that does not fit, bad arguments) say something
/// of the run. Names from the CUDA driver API and NCCL headers.
const FABRIC_ERRORS: &[&str] = &[
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MAP_FAILED",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    "CUDA_ERROR_INVALID_HANDLE",
    "CUDA_ERROR_NOT_PERMITTED",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_EXTERNAL_DEVICE",
    "CUDA_ERROR_UNKNOWN",
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
];

/// Turns the problems of every recording of a domain into outcomes.
pub(super) fn judge(domain: &Domain<'_>, ledger: &mut Ledger) {
    for (node, recordings) in &domain.own {
        for recording in recordings {
            on_node(domain, node, recording, ledger);
        }
    }
    for recording in &domain.across {
        across(domain, recording, ledger);
    }
}

fn on_node(domain: &Domain<'_>, node: &NodeName, recording: &Recording, ledger: &mut Ledger) {
    let parsed = &recording.parsed;
    if parsed.tool.is_none() {
        let why = parsed.problems.first().map_or("not recognised", |p| p.detail.as_str());
        ledger.unknown(recording.file.clone(), why);
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
        match outcome(problem) {
            Outcome::Failed => {
                let locus = match problem.gpu {
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
        ledger.unknown(recording.file.clone(), why);
    }
    let bad: Vec<&Problem> =
        parsed.problems.iter().filter(|p| outcome(p) == Outcome::Failed).collect();
    let blamed: BTreeSet<NodeName> = bad
        .iter()
        .filter(|p| p.kind == ProblemKind::Error)
        .filter_map(|p| node_of(domain, recording, p))
        .collect();
    for problem in &parsed.problems {
        let node = node_of(domain, recording, problem);
        match (outcome(problem), node) {
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
            (_, node) => {
                ledger.unknown(
                    format!(
                        "{} in {}",
                        problem.testcase.as_deref().unwrap_or("a test"),
                        recording.file
                    ),
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
        ledger.unknown(recording.file.clone(), "the output is not complete");
        for node in members(domain, recording) {
            ledger.doubt(&node, format!("{} is not complete", recording.file));
        }
    }
}

/// The nodes that took part in a run; all of the domain where it does not say.
fn members(domain: &Domain<'_>, recording: &Recording) -> Vec<NodeName> {
    let ranks = domain.gpus_of_ranks(&recording.parsed);
    let nodes: BTreeSet<NodeName> = ranks.into_values().map(|g| g.node).collect();
    let known: Vec<NodeName> = domain.nodes.iter().filter(|n| nodes.contains(n)).cloned().collect();
    if known.is_empty() { domain.nodes.clone() } else { known }
}

/// The node a problem names, by host or by rank.
fn node_of(domain: &Domain<'_>, recording: &Recording, problem: &Problem) -> Option<NodeName> {
    let by_host = problem.host.as_deref().map(|h| domain.node_of_host(h));
    let by_rank =
        || domain.gpus_of_ranks(&recording.parsed).get(&problem.rank?).map(|g| g.node.clone());
    by_host.or_else(by_rank).filter(|n| domain.nodes.contains(n))
}

/// Failed where the fabric did it, unknown otherwise.
fn outcome(problem: &Problem) -> Outcome {
    match problem.kind {
        ProblemKind::Corrupt => Outcome::Failed,
        ProblemKind::Error => {
            let code = problem.code.as_deref().unwrap_or("");
            if FABRIC_ERRORS.contains(&code) { Outcome::Failed } else { Outcome::Unknown }
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
            "data-corruption",
            "data: the tool found wrong data; a fast wrong copy is a hard fault",
        ),
        _ => ("tool-error", "error: the GPU's own libraries report that it cannot be used"),
    };
    let at = problem.line.map_or(String::new(), |line| format!("line {line}: "));
    finding(Outcome::Failed, class, locus, rule).saying(said).because(
        &recording.file,
        problem.testcase.as_deref(),
        format!("{at}{}", problem.detail),
    )
}
