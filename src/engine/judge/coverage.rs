//! Required measurements that are missing: nodes, GPUs, pairs.
//!
//! A gap is attributed to as few parts as possible (one unmeasured GPU does not make all its
//! partners unknown). A gap never counts against a part, with one exception: a complete output that
//! lists fewer GPUs than the node must have shows that GPUs are missing.

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::{FabricGroup, pair_matrices};
use super::finding::{new_finding, node_locus};
use super::finding_set::FindingSet;
use super::{collective, testcase};
use crate::thresholds::Platform;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::limits;
use model::measurement::Measurement;
use model::parse_output::{OutputProblemKind, Tool};
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::Outcome;

/// Reports nodes and GPUs of a domain that were measured partly or not at all.
pub(super) fn judge(domain: &DomainRecordings<'_>, ledger: &mut FindingSet) {
    let by_network = domain.nodes.iter().any(|node| ledger.compared.contains_key(node));
    if domain.per_node.is_empty() && domain.across_nodes.is_empty() && !by_network {
        ledger.add_unknown(UnknownSubject::domain(&domain.name), "nothing was measured");
    }
    record_measured_partners(domain, ledger);
    for node in &domain.nodes {
        // No GPU is claimed: only the network can be measured.
        if domain.gpus_per_node == Some(0) {
            continue;
        }
        let own = domain.per_node.get(node);
        let measured = own.is_some_and(|rs| rs.iter().any(|r| has_bandwidth(r)));
        if !measured {
            ledger.add_doubt(node, "its own links were not measured");
        } else {
            ledger.mark_measured(node);
            ledger.measured_boundaries.entry(node.clone()).or_default().inside = true;
        }
        report_blank_host_copies(domain, node, ledger);
        if let Some(must) = domain.gpus_per_node {
            judge_gpu_count(domain, node, must, ledger);
        }
        let met =
            ledger.measured_boundaries.get(node).is_some_and(|crossed| !crossed.domain.is_empty());
        if domain.claims_partners() && !met {
            ledger.add_doubt(node, explain_no_partner(domain));
        }
        if measured
            && let Some(platform) = domain.platform
            && needs_gpu_to_gpu(domain, platform, node)
            && !met
            && !own.is_some_and(|rs| rs.iter().any(|r| has_gpu_to_gpu(r)))
        {
            ledger.add_doubt(
                node,
                format!(
                    "nothing was measured between its GPUs, which a pass on {} requires: run the \
                     device_to_device tests of nvbandwidth, p2pBandwidthLatencyTest or \
                     all_reduce_perf on it",
                    platform.name
                ),
            );
        }
    }
    // A domain with no nodes left: another domain claims each of its hosts.
    for node in find_unclaimed_hosts(domain).into_iter().filter(|_| !domain.nodes.is_empty()) {
        ledger.add_unknown(
            UnknownSubject::Node(node),
            format!("it took part in a run across {}, which does not claim it", domain.name),
        );
    }
}

/// Records which nodes were measured together across the domain.
fn record_measured_partners(domain: &DomainRecordings<'_>, ledger: &mut FindingSet) {
    let members: BTreeSet<&NodeName> = domain.nodes.iter().collect();
    for recording in domain.across_nodes.iter().filter(|recording| has_numbers(recording)) {
        let ranks = domain.gpus_of_ranks(&recording.parsed).into_values();
        let nodes: BTreeSet<NodeName> =
            ranks.map(|gpu| gpu.node).filter(|node| members.contains(node)).collect();
        for node in &nodes {
            let others = nodes.iter().filter(|other| *other != node);
            let crossed = ledger.measured_boundaries.entry(node.clone()).or_default();
            for other in others {
                if !crossed.domain.contains(other) {
                    crossed.domain.insert(other.clone());
                }
            }
        }
    }
}

/// Why a node that was measured with no other node of its domain cannot pass.
fn explain_no_partner(domain: &DomainRecordings<'_>) -> String {
    let name = &domain.name;
    match (domain.nodes.len(), domain.left_out) {
        (1, others) => format!(
            "not measured across {name}: none of its {others} other claimed nodes took part"
        ),
        _ => {
            format!("not measured across {name}: no measurement with another of its nodes")
        }
    }
}

/// Copies between host memory and a GPU for which a test printed no number in any reading.
fn report_blank_host_copies(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    ledger: &mut FindingSet,
) {
    let mut read: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for recording in domain.per_node.get(node).into_iter().flatten() {
        for measurement in &recording.parsed.measurements {
            let Measurement::Matrix(matrix) = measurement else { continue };
            let name = matrix.testcase.as_deref().unwrap_or("");
            if !testcase::shape_of(name).is_host() {
                continue;
            }
            for (col, label) in matrix.cols.iter().enumerate() {
                let seen = matrix.cells.iter().any(|row| row.get(col).copied().flatten().is_some());
                *read.entry((name, label)).or_default() |= seen;
            }
        }
    }
    for ((name, gpu), _) in read.into_iter().filter(|(_, seen)| !seen) {
        ledger.add_doubt(node, format!("{name} of GPU {node}:{gpu} was not measured"));
    }
}

/// Hosts in a run across the domain that its claim does not list.
fn find_unclaimed_hosts(domain: &DomainRecordings<'_>) -> BTreeSet<NodeName> {
    let hosts =
        domain.across_nodes.iter().flat_map(|r| domain.gpus_of_ranks(&r.parsed).into_values());
    hosts.map(|gpu| gpu.node).filter(|node| !domain.nodes.contains(node)).collect()
}

fn has_numbers(recording: &ToolRecording) -> bool {
    recording.parsed.measurements.iter().any(|m| match m {
        Measurement::Matrix(matrix) => matrix.numbers().next().is_some(),
        Measurement::Series(series) => !series.points.is_empty(),
        Measurement::Scalar(_) => true,
    })
}

/// Whether a recording holds a bandwidth of the node's internal links.
fn has_bandwidth(recording: &ToolRecording) -> bool {
    // GPUs inside a node do not reach each other over a NIC.
    !matches!(recording.parsed.tool, Some(Tool::Perftest | Tool::FabricgateTcp | Tool::Iperf3))
        && recording.parsed.measurements.iter().any(|m| match m {
            Measurement::Matrix(matrix) => {
                matrix.unit.is_none_or(Unit::is_bandwidth) && matrix.numbers().next().is_some()
            }
            // With one rank, busbw is 0: no link was measured.
            Measurement::Series(series) => {
                series.points.iter().any(|p| p.busbw.or(p.algbw).is_some_and(|bw| 0.0 < bw))
            }
            Measurement::Scalar(_) => false,
        })
}

/// Whether this node needs a GPU-to-GPU measurement to pass: it has several GPUs, and its platform
/// connects them by NVLink or states an expectation for them. Cards without peer access have no
/// link to measure.
fn needs_gpu_to_gpu(domain: &DomainRecordings<'_>, platform: &Platform, node: &NodeName) -> bool {
    let listed =
        || domain.per_node.get(node).into_iter().flatten().filter_map(|r| count_gpus_in(r)).max();
    let several = domain.gpus_per_node.or_else(listed).is_some_and(|gpus| 1 < gpus);
    several && platform.joins_gpus()
}

/// Whether a recording of one node holds a GPU-to-GPU rate: of pairs, or of a collective that did
/// not use the network.
fn has_gpu_to_gpu(recording: &ToolRecording) -> bool {
    let pairs = pair_matrices(recording);
    pairs.into_iter().any(|(matrix, ..)| matrix.numbers().next().is_some())
        || collective::collect_results(recording).iter().any(|ran| !ran.is_over_network())
}

/// Compares the GPU count in a node's complete outputs with the expected count.
fn judge_gpu_count(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    must: u32,
    ledger: &mut FindingSet,
) {
    for recording in domain.per_node.get(node).into_iter().flatten() {
        let Some(has) = count_gpus_in(recording) else { continue };
        if has < must {
            let summary = format!("{node} lists {has} of {must} GPUs");
            let rule = RuleKind::Inventory
                .with_terms("a complete output lists fewer GPUs than the node must have");
            let found = new_finding(
                Outcome::Failed,
                FindingClass::GpuMissing,
                node_locus(&domain.name, node),
                rule,
            )
            .with_numbers(f64::from(has), f64::from(must), Unit::Count)
            .with_summary(summary.clone());
            ledger.add(found.with_evidence(&recording.file, None, summary));
        } else if must < has {
            ledger.add_doubt(node, format!("it lists {has} GPUs, the claim states {must}"));
        }
    }
}

/// The number of GPUs in an output that lists all GPUs of its node.
fn count_gpus_in(recording: &ToolRecording) -> Option<u32> {
    let parsed = &recording.parsed;
    let cut = parsed.has_problem(OutputProblemKind::Truncated)
        || parsed.has_problem(OutputProblemKind::Error);
    let facts = &parsed.facts;
    let whole = !parsed.has_problem(OutputProblemKind::Truncated);
    let count = match parsed.tool? {
        Tool::Nvbandwidth | Tool::P2pBandwidthLatencyTest | Tool::FabricgateCopy if !cut => {
            let widest = parsed.measurements.iter().filter_map(|m| match m {
                Measurement::Matrix(matrix) => Some(matrix.cols.len()),
                _ => None,
            });
            widest.max().unwrap_or(0).max(facts.devices.len())
        }
        Tool::NvidiaSmiTopo if !cut => {
            let rows = facts.topology.iter().flat_map(|t| &t.rows);
            rows.filter(|row| row.device.starts_with("GPU")).count()
        }
        // The caller selected one GPU; a GPU that does not answer has an error instead.
        Tool::NvidiaSmiNvlink if whole && 1 < facts.nvlinks.len() => facts.nvlinks.len(),
        Tool::NvidiaSmiQ if whole => facts.devices.len().max(facts.fabric.len()),
        _ => 0,
    };
    u32::try_from(count).ok().filter(|n| 0 < *n)
}

/// Pairs of an island that were not read, attributed to as few GPUs as possible. If pairs were
/// `sampled`, only pairs that a test selected had to be read, and every GPU needed at least one
/// reading.
pub(super) fn judge_pairs(
    island: &FabricGroup<'_>,
    fabric: &FabricJudgement,
    sampled: bool,
    ledger: &mut FindingSet,
) {
    for (node, count) in &island.left_out {
        let why = format!(
            "{count} of its GPUs were not judged: one table holds {} GPUs",
            limits::MAX_GPUS_IN_TABLE
        );
        ledger.add_doubt(node, why);
    }
    let n = island.gpus.len();
    let measured = !island.directed.is_empty() || !island.both_ways.is_empty();
    if !measured || n < 2 {
        return;
    }
    let mut read = vec![false; n * n];
    for r in &island.directed {
        read[r.src * n + r.dst] = true;
    }
    if island.directed.is_empty() {
        for r in &island.both_ways {
            read[r.src * n + r.dst] = true;
            read[r.dst * n + r.src] = true;
        }
    }
    let met = read.clone();
    // The GPUs whose pairs were required: all, or those that a test selected.
    let mut required = vec![!sampled; n * n];
    if sampled {
        let holes = island.holes.iter().map(|(src, dst)| src * n + dst);
        let named: Vec<usize> = holes.chain((0..n * n).filter(|at| read[*at])).collect();
        for at in named {
            (required[at], required[at % n * n + at / n]) = (true, true);
        }
        let any: Vec<bool> = (0..n)
            .map(|gpu| (0..n).any(|other| read[gpu * n + other] || read[other * n + gpu]))
            .collect();
        for src in 0..n {
            for dst in 0..n {
                read[src * n + dst] |= any[src] && any[dst];
            }
        }
    }
    for (src, dst) in &island.holes {
        read[src * n + dst] = false;
    }
    let missing = |gpu: usize, left: &[bool]| {
        let others = (0..n).filter(|o| *o != gpu && left[*o]);
        others.filter(|o| !read[gpu * n + o] || !read[o * n + gpu]).count()
    };
    // Isolated GPUs already have a finding.
    let mut left: Vec<bool> = fabric.active.clone();
    if island.node.is_none() {
        let active = left.iter().filter(|it| **it).count();
        let all = active * active.saturating_sub(1);
        let pairs = (0..n).flat_map(|s| (0..n).map(move |d| (s, d)));
        let pairs = pairs.filter(|(s, d)| s != d && left[*s] && left[*d]);
        let blank = pairs.filter(|(s, d)| !read[s * n + d]).count();
        if 0 < blank {
            let why = format!("{blank} of its {all} ordered pairs of GPUs were not measured");
            ledger.add_unknown(UnknownSubject::domain(&island.domain), why);
        }
    }
    let members = left.iter().filter(|l| **l).count();
    // A pair that no test selected does not split a group.
    let joined = |a: usize, b: usize| {
        let ways = [a * n + b, b * n + a];
        ways.iter().any(|at| met[*at]) || ways.iter().all(|at| !required[*at])
    };
    exclude_unmeasured_sets(island, joined, &mut left, ledger);
    loop {
        let remaining = left.iter().filter(|l| **l).count();
        let holes_of: Vec<usize> =
            (0..n).map(|gpu| if left[gpu] { missing(gpu, &left) } else { 0 }).collect();
        let Some(holes) = holes_of.iter().copied().max().filter(|holes| 0 < *holes) else { break };
        // If several GPUs miss equally many pairs, the cause is ambiguous.
        let worst: Vec<usize> = (0..n).filter(|gpu| holes_of[*gpu] == holes).collect();
        for gpu in &worst {
            let gpu = *gpu;
            let asked_of = |left: &[bool]| {
                (0..n).filter(|o| *o != gpu && left[*o] && required[gpu * n + o]).count()
            };
            let id = &island.gpus[gpu];
            let why = if holes + 1 == remaining {
                format!("GPU {id} was not measured")
            } else {
                let all = if sampled { asked_of(&fabric.active) } else { members - 1 };
                let holes = missing(gpu, &fabric.active);
                format!("GPU {id} was not measured with {holes} of its {all} partners")
            };
            ledger.add_doubt(&id.node, why);
            // With few gaps either end may be the cause: both stay unknown.
            let most = if sampled { asked_of(&left) } else { remaining };
            if most <= holes * 2 {
                continue;
            }
            for other in (0..n).filter(|o| left[*o] && !worst.contains(o)) {
                if !read[gpu * n + other] || !read[other * n + gpu] {
                    let other = &island.gpus[other];
                    ledger.add_doubt(
                        &other.node,
                        format!("GPU {other} was not measured with GPU {id}"),
                    );
                }
            }
        }
        worst.iter().for_each(|gpu| left[*gpu] = false);
    }
}

/// Removes sets of GPUs that were measured among themselves and never with the rest: a split,
/// independent of how gaps are attributed. The set with most of the nodes stays; if none has most,
/// all are in doubt.
fn exclude_unmeasured_sets(
    island: &FabricGroup<'_>,
    joined: impl Fn(usize, usize) -> bool,
    left: &mut [bool],
    ledger: &mut FindingSet,
) {
    let mut free: Vec<usize> = (0..left.len()).filter(|gpu| left[*gpu]).collect();
    let mut sets: Vec<Vec<usize>> = Vec::new();
    while let Some(first) = free.pop() {
        let (mut set, mut at) = (vec![first], 0);
        while let Some(gpu) = set.get(at).copied() {
            let (with, without) = free.into_iter().partition(|other| joined(gpu, *other));
            set.extend::<Vec<usize>>(with);
            free = without;
            at += 1;
        }
        sets.push(set);
    }
    // In a domain a part has several nodes: a single node counts as unmeasured.
    let within = island.node.is_some();
    let nodes_of = |set: &Vec<usize>| -> BTreeSet<&NodeName> {
        set.iter().map(|gpu| &island.gpus[*gpu].node).collect()
    };
    let size = |set: &Vec<usize>| if within { set.len() } else { nodes_of(set).len() };
    sets.retain(|set| 1 < size(set));
    if sets.len() < 2 {
        return;
    }
    sets.sort_by_key(|set| set.iter().min().copied());
    let all: usize = sets.iter().map(size).sum();
    let names = |set: &Vec<usize>| match within {
        true => {
            let mut gpus: Vec<u32> = set.iter().map(|gpu| island.gpus[*gpu].gpu).collect();
            gpus.sort_unstable();
            gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
        }
        false => nodes_of(set).into_iter().map(NodeName::as_str).collect::<Vec<_>>().join(","),
    };
    let groups = sets.iter().map(names).collect::<Vec<_>>().join(" | ");
    let place = island.node.as_ref().map_or(island.domain.to_string(), ToString::to_string);
    let why = format!(
        "{place} was measured only inside the groups {groups} and never between them: whether they \
         form one fabric is unknown; check their cliques (nvidia-smi -q) and IMEX peers \
         (nvidia-imex-ctl -N)"
    );
    for set in sets.iter().filter(|set| size(set) * 2 <= all) {
        nodes_of(set).into_iter().for_each(|node| ledger.add_doubt(node, why.clone()));
        set.iter().for_each(|gpu| left[*gpu] = false);
    }
    ledger.add_unknown(UnknownSubject::domain(&island.domain), why);
}
