//! Isolation: GPUs that reach no other GPU, nodes outside their claimed domain, fabrics that fall
//! into parts.
//!
//! This module interprets the groups that `membership` finds. Isolated parts leave the comparison
//! of bandwidths, which `peel` does.

use std::collections::BTreeSet;

use super::fabric::{FabricJudgement, add_evidence};
use super::fabric_group::{FabricGroup, PairReading};
use super::finding::{RateReference, domain_locus, gpu_locus, new_finding, node_locus};
use super::membership::{ConnectedParts, ReachabilityMatrix};
use super::output_participants;
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::id::NodeName;
use model::stats;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// Reports nodes and GPUs that do not reach the others at fabric speed.
pub(super) fn judge(island: &FabricGroup<'_>, out: &mut FabricJudgement) {
    // If pairs do not share one path class, a slow pair is not a split.
    if !island.is_uniform() || (island.directed.is_empty() && island.cut_nodes.is_empty()) {
        return;
    }
    let reach = ReachabilityMatrix::from_group(island);
    let nodes: Vec<Vec<usize>> = island.gpus_by_node().into_values().collect();
    let isolated = find_isolated_gpus(island, &reach, &nodes, out);
    if island.node.is_some() {
        let gpus: Vec<Vec<usize>> =
            (0..island.gpus.len()).filter(|g| !isolated.contains(g)).map(|g| vec![g]).collect();
        judge_split_node(island, &reach, &gpus, out);
    } else {
        let members: Vec<Vec<usize>> = nodes
            .iter()
            .map(|gpus| gpus.iter().copied().filter(|g| !isolated.contains(g)).collect())
            .filter(|gpus: &Vec<usize>| !gpus.is_empty())
            .collect();
        judge_split_domain(island, &reach, &members, out);
    }
}

/// GPUs that reach no other GPU while the rest of the node does.
fn find_isolated_gpus(
    island: &FabricGroup<'_>,
    reach: &ReachabilityMatrix,
    nodes: &[Vec<usize>],
    out: &mut FabricJudgement,
) -> Vec<usize> {
    let all: Vec<usize> = (0..island.gpus.len()).collect();
    let alone: Vec<usize> = all
        .iter()
        .copied()
        .filter(|gpu| matches!(reach.count_between(&[*gpu], &all), (0, measured) if 2 < measured))
        .collect();
    let mut isolated = Vec::new();
    for gpus in nodes {
        let here: Vec<usize> = gpus.iter().copied().filter(|g| alone.contains(g)).collect();
        let measured = gpus.iter().filter(|g| 0 < reach.count_between(&[**g], &all).1).count();
        // Without readings inside the node, its internal fabric is unknown.
        let inside = reach.count_between(gpus, gpus).1;
        if here.is_empty() || (here.len() == measured && 1 < measured && inside == 0) {
            continue;
        }
        if here.len() == measured && 1 < measured {
            // All of them: the node has no working fabric.
            let node = &island.gpus[gpus[0]].node;
            let (value, held) = typical_reading(island, &here);
            let level = held.value();
            let rule = RuleKind::NoPath
                .with_terms("every pair of the node reads below 30 % of the fabric's level");
            let summary = format!(
                "no two GPUs of {node} reach each other at NVLink speed ({value:.1} of {level:.1} \
                 GB/s): the fabric is not configured, or traffic runs over PCIe: check its State \
                 (nvidia-smi -q, Fabric)"
            );
            let found = new_finding(
                Outcome::Failed,
                FindingClass::FabricNotConfigured,
                node_locus(&island.domain, node),
                rule,
            );
            let found =
                add_evidence(island, found.with_reference(value, held).with_summary(summary));
            add_finding(island, node, found, (&here, level), out);
        } else {
            for gpu in &here {
                let id = &island.gpus[*gpu];
                let (value, held) = typical_reading(island, &[*gpu]);
                let level = held.value();
                let rule = RuleKind::NoPath
                    .with_terms("every pair of this GPU reads below 30 % of the fabric's level");
                let summary = format!(
                    "GPU {id} reaches no other GPU at NVLink speed ({value:.1} of {level:.1} \
                     GB/s); the others do"
                );
                let found = new_finding(
                    Outcome::Failed,
                    FindingClass::NvlinkAbsent,
                    gpu_locus(&island.domain, id),
                    rule,
                );
                let found =
                    add_evidence(island, found.with_reference(value, held).with_summary(summary));
                add_finding(island, &id.node, found, (&[*gpu], level), out);
            }
        }
        for gpu in here {
            out.active[gpu] = false;
            isolated.push(gpu);
        }
    }
    isolated
}

fn judge_split_node(
    island: &FabricGroup<'_>,
    reach: &ReachabilityMatrix,
    gpus: &[Vec<usize>],
    out: &mut FabricJudgement,
) {
    let ConnectedParts { sets, cut } = reach.find_connected(gpus);
    let is_cut = !cut.is_empty() && 1 < sets.len();
    let Some(node) = island.node.as_ref().filter(|_| is_cut) else { return };
    let groups = sets.iter().map(|set| {
        let names: Vec<String> =
            set.iter().map(|at| island.gpus[gpus[*at][0]].gpu.to_string()).collect();
        names.join(",")
    });
    let groups = groups.collect::<Vec<_>>().join(" | ");
    let summary = format!("the GPUs of {node} reach each other only inside the groups {groups}");
    let rule = RuleKind::NoPath
        .with_terms("pairs between the groups read below 30 % of the fabric's level");
    let found = new_finding(
        Outcome::Failed,
        FindingClass::SplitNode,
        node_locus(&island.domain, node),
        rule,
    )
    .with_summary(summary);
    out.findings.push(add_evidence(island, found));
    for set in sets.iter().skip(1) {
        detach_part(set.iter().map(|at| gpus[*at][0]).collect(), out);
    }
}

/// These GPUs are compared with each other and no longer with the rest of the island.
fn detach_part(part: Vec<usize>, out: &mut FabricJudgement) {
    part.iter().for_each(|gpu| out.active[*gpu] = false);
    out.parts.push(part);
}

/// Reports nodes outside their claimed domain.
fn judge_split_domain(
    island: &FabricGroup<'_>,
    reach: &ReachabilityMatrix,
    members: &[Vec<usize>],
    out: &mut FabricJudgement,
) {
    let connected = reach.find_connected(members);
    let (sets, cut) = (&connected.sets, &connected.cut);
    // If pairs were sampled, sets that were never measured together are not a split.
    let Some(main) = sets.first().filter(|_| !cut.is_empty() && 1 < sets.len()) else { return };
    let node = |at: usize| &island.gpus[members[at][0]].node;
    let measured: usize = sets.iter().map(Vec::len).sum();
    if main.len() == 1 {
        let summary = format!(
            "no two nodes of {} reach each other at NVLink speed, while the GPUs inside a node \
             may: NVLink between nodes is off, or none of the {measured} nodes is a member: their \
             cliques (nvidia-smi -q) and IMEX peers (nvidia-imex-ctl -N) show which",
            island.domain
        );
        let locus = domain_locus(LocusKind::Domain, &island.domain);
        let found = new_finding(Outcome::Failed, FindingClass::MultiNodeNvlinkOff, locus, RULE)
            .with_summary(summary);
        out.findings.push(add_evidence(island, found));
        out.unknown.extend(members.iter().map(|gpus| {
            (
                UnknownSubject::node(&island.gpus[gpus[0]].node),
                "no node of its domain reaches another".to_owned(),
            )
        }));
        members.iter().for_each(|gpus| detach_part(gpus.clone(), out));
        return;
    }
    let majority = is_claimed_domain(main.len(), measured, island.nodes_claimed);
    let split = |a: &Vec<usize>, b: &Vec<usize>| {
        let ends = |(x, y): &&(usize, usize)| {
            (a.contains(x) && b.contains(y)) || (a.contains(y) && b.contains(x))
        };
        1 < cut.iter().filter(ends).count()
    };
    let is_split =
        sets.iter().enumerate().any(|(at, a)| sets[at + 1..].iter().any(|b| split(a, b)));
    if !majority && is_split {
        report_split_domain(island, sets, node, out);
    }
    let inside: Vec<usize> = main.iter().flat_map(|at| members[*at].iter().copied()).collect();
    // Two partners are enough to blame a set; one may be the cause itself.
    let is_outside = |set: &Vec<usize>| majority && 1 < connected.unreached_parts(set, main).len();
    for set in sets.iter().skip(1).filter(|set| is_outside(set)) {
        for at in set {
            report_non_member(island, node(*at), &members[*at], &inside, set.len() - 1, out);
        }
    }
    for (a, b) in cut {
        let set_of = |at: &usize| sets.iter().find(|set| set.contains(at));
        let is_reported =
            [a, b].into_iter().filter_map(set_of).any(is_outside) || (!majority && is_split);
        if !is_reported {
            report_unreached_nodes(island, [node(*a), node(*b)], [&members[*a], &members[*b]], out);
        }
    }
    for set in sets.iter().skip(1).filter(|set| is_outside(set) || !majority && is_split) {
        detach_part(set.iter().flat_map(|at| members[*at].iter().copied()).collect(), out);
    }
}

/// If most claimed nodes were not measured, a part with this many times the nodes of all other
/// parts is the claimed domain.
const FAR_MORE: usize = 3;

/// Whether the largest measured part is the claimed domain: it has most of the claimed nodes, or
/// far more than all other parts. A small majority of a sample may be the smaller part of the
/// claim.
fn is_claimed_domain(nodes: usize, measured: usize, claimed: usize) -> bool {
    claimed < nodes * 2 || (measured - nodes) * FAR_MORE <= nodes
}

/// The rule behind all membership findings.
const RULE: FindingRule = FindingRule::fixed(
    RuleKind::Membership,
    "pairs across nodes read below 30 % of the fabric's level, or cannot \
     import each other's memory",
);

/// Neither part of the domain provably holds most of its nodes.
fn report_split_domain<'i>(
    island: &'i FabricGroup<'_>,
    sets: &[Vec<usize>],
    node: impl Fn(usize) -> &'i NodeName,
    out: &mut FabricJudgement,
) {
    let groups = sets
        .iter()
        .map(|set| set.iter().map(|at| node(*at).as_str()).collect::<Vec<_>>().join(","));
    let groups = groups.collect::<Vec<_>>().join(" | ");
    let summary = format!(
        "{} is split: its nodes reach each other only inside the groups {groups}; \
         copies cannot show which of them is the claimed domain: check their cliques (nvidia-smi \
         -q)",
        island.domain
    );
    let locus = domain_locus(LocusKind::Domain, &island.domain);
    let found =
        new_finding(Outcome::Failed, FindingClass::SplitDomain, locus, RULE).with_summary(summary);
    out.findings.push(add_evidence(island, found));
    for at in sets.iter().flatten() {
        let why = format!(
            "{} is split, and the part that is the domain is unknown: check their cliques",
            island.domain
        );
        out.unknown.push((UnknownSubject::node(node(*at)), why));
    }
}

/// A node that does not reach the connected nodes.
fn report_non_member(
    island: &FabricGroup<'_>,
    node: &NodeName,
    gpus: &[usize],
    inside: &[usize],
    others: usize,
    out: &mut FabricJudgement,
) {
    let (value, held) = typical_reading_between(island, gpus, inside);
    let level = held.value();
    let with = if others == 0 {
        String::new()
    } else {
        format!(" (it reaches {others} other such nodes)")
    };
    let domain = &island.domain;
    let summary = match value {
        Some(value) => format!(
            "{node} does not reach the other nodes of {domain} at NVLink speed ({value:.1} of \
             {level:.1} GB/s){with}: it is not a member of the claimed domain"
        ),
        None => format!(
            "{node} and the other nodes of {domain} cannot import each other's memory{with}: \
             it belongs to another clique or IMEX domain and is not a member of the claimed \
             domain; its clique (nvidia-smi -q) and its peers (nvidia-imex-ctl -N) show which"
        ),
    };
    let found =
        new_finding(Outcome::Failed, FindingClass::WrongDomain, node_locus(domain, node), RULE);
    let found = found.with_reference(value.unwrap_or(0.0), held).with_summary(summary);
    let found = add_evidence(island, found);
    // Two-node runs that failed to import each other's memory have two nodes each.
    match island.cut_nodes.iter().any(|(a, b)| a == node || b == node) {
        true => out.findings.push(found),
        false => add_finding(island, node, found, (gpus, level), out),
    }
}

/// Enters a finding of a node whose GPUs are far below a level, checked against the nodes that took
/// part in its evidence.
fn add_finding(
    island: &FabricGroup<'_>,
    node: &NodeName,
    found: Finding,
    (gpus, level): (&[usize], f64),
    out: &mut FabricJudgement,
) {
    let is_low = |r: &PairReading| {
        let end = gpus.contains(&r.src) || gpus.contains(&r.dst);
        end && r.value < level / 2.0
    };
    let readings = (island.directed.as_slice(), island.directed_runs.as_slice());
    let others = match island.node {
        Some(_) => BTreeSet::new(),
        None => output_participants::participants_of_readings(island, node, readings, is_low),
    };
    let found = if others.is_empty() {
        found
    } else {
        output_participants::widen_to_participants(found, &others)
    };
    if found.outcome == Outcome::Unknown {
        out.unknown.push((UnknownSubject::node(node), found.summary.clone()));
    }
    out.findings.push(found);
}

/// Two nodes that do not reach each other, with too few partners to show which one is at fault.
fn report_unreached_nodes(
    island: &FabricGroup<'_>,
    [a, b]: [&NodeName; 2],
    [here, there]: [&[usize]; 2],
    out: &mut FabricJudgement,
) {
    let (value, held) = typical_reading_between(island, here, there);
    let level = held.value();
    let how = value.map_or_else(
        || "cannot import each other's memory".to_owned(),
        |v| format!("do not reach each other at NVLink speed ({v:.1} of {level:.1} GB/s)"),
    );
    let summary = format!(
        "{a} and {b} {how}; which of them is not in {} is unknown: run each with a third node of \
         it",
        island.domain
    );
    let locus =
        Locus { kind: LocusKind::Pair, peer: Some(b.to_string()), ..node_locus(&island.domain, a) };
    let found = new_finding(Outcome::Failed, FindingClass::WrongDomain, locus, RULE);
    let found = found.with_reference(value.unwrap_or(0.0), held).with_summary(summary);
    out.findings.push(add_evidence(island, found));
    // These cells belong to another path; inside each node the fabric is healthy.
    out.unreached_nodes.push((a.clone(), b.clone()));
}

/// Median of these GPUs' readings with any partner, and the level of the island.
fn typical_reading(island: &FabricGroup<'_>, gpus: &[usize]) -> (f64, RateReference) {
    let all: Vec<usize> = (0..island.gpus.len()).collect();
    let (value, level) = typical_reading_between(island, gpus, &all);
    (value.unwrap_or(0.0), level)
}

/// The same between two sets; `None` without readings.
fn typical_reading_between(
    island: &FabricGroup<'_>,
    some: &[usize],
    others: &[usize],
) -> (Option<f64>, RateReference) {
    let between = |r: &&PairReading| {
        (some.contains(&r.src) && others.contains(&r.dst))
            || (some.contains(&r.dst) && others.contains(&r.src))
    };
    let mut values: Vec<f64> = island.directed.iter().filter(between).map(|r| r.value).collect();
    let expected = (0..island.reading_groups.len())
        .find_map(|g| island.expected_level(g))
        .map(|(value, _)| value);
    let mut all: Vec<f64> = island.directed.iter().map(|r| r.value).collect();
    let upper = stats::quantile(&mut all, 0.9).unwrap_or(0.0);
    let level = RateReference::Peers { level: upper, expected: None };
    (stats::median(&mut values), expected.map_or(level, RateReference::Expected))
}
