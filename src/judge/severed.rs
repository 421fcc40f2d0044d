//! Who is cut off: GPUs that reach nobody, nodes that are not in the domain
//! they are claimed to be in, fabrics that fall into parts.
//!
//! What `membership` sees as groups gets its meaning here. Whoever is cut off
//! leaves the comparison of bandwidths; that is `peel`'s work.

use super::fabric::Fabric;
use super::fabric::evidence;
use super::finding::finding;
use super::finding::of_domain;
use super::finding::of_gpu;
use super::finding::of_node;
use super::island::Island;
use super::island::PairReading;
use super::membership::Reach;
use super::robust;
use crate::model::unit::Unit;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;

/// Class of a domain whose nodes do not reach each other at all.
pub(super) const NO_MULTI_NODE: &str = "multi-node-nvlink-off";

/// Nodes and GPUs that do not reach the others at fabric speed.
pub(super) fn judge(island: &Island<'_>, out: &mut Fabric) {
    // Where pairs do not share one path class, a slow pair is no cut.
    if !island.is_uniform() || island.directed.is_empty() {
        return;
    }
    let reach = Reach::of(island);
    let nodes: Vec<Vec<usize>> = island.nodes().into_values().collect();
    let isolated = isolated_gpus(island, &reach, &nodes, out);
    if island.node.is_some() {
        let gpus: Vec<Vec<usize>> =
            (0..island.gpus.len()).filter(|g| !isolated.contains(g)).map(|g| vec![g]).collect();
        split_node(island, &reach, &gpus, out);
    } else {
        let members: Vec<Vec<usize>> = nodes
            .iter()
            .map(|gpus| gpus.iter().copied().filter(|g| !isolated.contains(g)).collect())
            .filter(|gpus: &Vec<usize>| !gpus.is_empty())
            .collect();
        split_domain(island, &reach, &members, out);
    }
}

/// GPUs that reach nobody although their neighbours do.
fn isolated_gpus(
    island: &Island<'_>,
    reach: &Reach,
    nodes: &[Vec<usize>],
    out: &mut Fabric,
) -> Vec<usize> {
    let all: Vec<usize> = (0..island.gpus.len()).collect();
    let alone: Vec<usize> = all
        .iter()
        .copied()
        .filter(|gpu| matches!(reach.between(&[*gpu], &all), (0, measured) if 2 < measured))
        .collect();
    let mut isolated = Vec::new();
    for gpus in nodes {
        let here: Vec<usize> = gpus.iter().copied().filter(|g| alone.contains(g)).collect();
        let measured = gpus.iter().filter(|g| 0 < reach.between(&[**g], &all).1).count();
        if here.is_empty() {
            continue;
        }
        if here.len() == measured && 1 < measured {
            // All of them: the fabric of the node is not there at all.
            let node = &island.gpus[gpus[0]].node;
            let (value, level) = typical(island, &here);
            let rule = "no-path: every pair of the node reads below 30 % of the fabric's level";
            let said = format!(
                "no two GPUs of {node} reach each other at NVLink speed ({value:.1} of {level:.1} GB/s): \
                 the fabric is not configured, or traffic runs over PCIe"
            );
            let found = finding(
                Outcome::Failed,
                "fabric-not-configured",
                of_node(&island.domain, node),
                rule,
            );
            let found = evidence(
                island,
                found.numbers(value, level, Unit::GigabytesPerSecond).saying(said),
            );
            out.findings.push(found);
        } else {
            for gpu in &here {
                let id = &island.gpus[*gpu];
                let (value, level) = typical(island, &[*gpu]);
                let rule = "no-path: every pair of this GPU reads below 30 % of the fabric's level";
                let said = format!(
                    "GPU {id} reaches no other GPU at NVLink speed ({value:.1} of {level:.1} GB/s); the others do"
                );
                let found =
                    finding(Outcome::Failed, "nvlink-absent", of_gpu(&island.domain, id), rule);
                let found = evidence(
                    island,
                    found.numbers(value, level, Unit::GigabytesPerSecond).saying(said),
                );
                out.findings.push(found);
            }
        }
        for gpu in here {
            out.active[gpu] = false;
            isolated.push(gpu);
        }
    }
    isolated
}

/// A node whose GPUs form several groups.
fn split_node(island: &Island<'_>, reach: &Reach, gpus: &[Vec<usize>], out: &mut Fabric) {
    let sets = reach.connected(gpus);
    let Some(node) = island.node.as_ref().filter(|_| 1 < sets.len()) else { return };
    let groups = sets.iter().map(|set| {
        let names: Vec<String> =
            set.iter().map(|at| island.gpus[gpus[*at][0]].gpu.to_string()).collect();
        names.join(",")
    });
    let groups = groups.collect::<Vec<_>>().join(" | ");
    let said = format!("the GPUs of {node} reach each other only inside the groups {groups}");
    let rule = "no-path: pairs between the groups read below 30 % of the fabric's level";
    let found =
        finding(Outcome::Failed, "split-node", of_node(&island.domain, node), rule).saying(said);
    out.findings.push(evidence(island, found));
    for set in sets.iter().skip(1) {
        for at in set {
            out.active[gpus[*at][0]] = false;
        }
    }
}

/// Nodes that are not in the domain they are claimed to be in.
fn split_domain(island: &Island<'_>, reach: &Reach, members: &[Vec<usize>], out: &mut Fabric) {
    let sets = reach.connected(members);
    let Some(main) = sets.first().filter(|_| 1 < sets.len()) else { return };
    let node = |at: usize| &island.gpus[members[at][0]].node;
    let measured: usize = sets.iter().map(Vec::len).sum();
    let rule = "membership: pairs across nodes read below 30 % of the fabric's level";
    if main.len() == 1 {
        let said = format!(
            "no two nodes of {} reach each other at NVLink speed, while the GPUs inside a node may: \
             NVLink between nodes is off, or none of the {measured} nodes is a member",
            island.domain
        );
        let locus = of_domain(LocusKind::Domain, &island.domain);
        let found = finding(Outcome::Failed, NO_MULTI_NODE, locus, rule).saying(said);
        out.findings.push(evidence(island, found));
        out.unknown.extend(members.iter().map(|gpus| {
            (
                format!("node {}", island.gpus[gpus[0]].node),
                "no node of its domain reaches another".to_owned(),
            )
        }));
        return;
    }
    let groups = sets
        .iter()
        .map(|set| set.iter().map(|at| node(*at).as_str()).collect::<Vec<_>>().join(","));
    let groups = groups.collect::<Vec<_>>().join(" | ");
    let majority = measured < main.len() * 2;
    if !majority {
        let said = format!(
            "{} is split: its nodes reach each other only inside the groups {groups}; \
             which of them is the claimed domain cannot be told",
            island.domain
        );
        let locus = of_domain(LocusKind::Domain, &island.domain);
        let found = finding(Outcome::Failed, "split-domain", locus, rule).saying(said);
        out.findings.push(evidence(island, found));
        for set in &sets {
            for at in set {
                let why = format!(
                    "{} is split and it is not known which part is the domain",
                    island.domain
                );
                out.unknown.push((format!("node {}", node(*at)), why));
            }
        }
    }
    let inside: Vec<usize> = main.iter().flat_map(|at| members[*at].iter().copied()).collect();
    for set in sets.iter().skip(1) {
        for at in set {
            let gpus = &members[*at];
            for gpu in gpus {
                out.active[*gpu] = false;
            }
            if !majority {
                continue;
            }
            let (value, level) = typical_between(island, gpus, &inside);
            let others = set.len() - 1;
            let with = if others == 0 {
                String::new()
            } else {
                format!(" (it reaches {others} other such nodes)")
            };
            let said = format!(
                "{} does not reach the other nodes of {} at NVLink speed ({value:.1} of {level:.1} GB/s){with}: \
                 it is not a member of the claimed domain",
                node(*at),
                island.domain
            );
            let found =
                finding(Outcome::Failed, "wrong-domain", of_node(&island.domain, node(*at)), rule);
            let found = found.numbers(value, level, Unit::GigabytesPerSecond).saying(said);
            out.findings.push(evidence(island, found));
        }
    }
}

/// Median of what these GPUs read with anybody, and the level of the island.
fn typical(island: &Island<'_>, gpus: &[usize]) -> (f64, f64) {
    let all: Vec<usize> = (0..island.gpus.len()).collect();
    typical_between(island, gpus, &all)
}

fn typical_between(island: &Island<'_>, some: &[usize], others: &[usize]) -> (f64, f64) {
    let between = |r: &&PairReading| {
        (some.contains(&r.src) && others.contains(&r.dst))
            || (some.contains(&r.dst) && others.contains(&r.src))
    };
    let mut values: Vec<f64> = island.directed.iter().filter(between).map(|r| r.value).collect();
    let expected =
        (0..island.groups.len()).find_map(|g| island.expected_level(g)).map(|(value, _)| value);
    let mut all: Vec<f64> = island.directed.iter().map(|r| r.value).collect();
    let upper = robust::quantile(&mut all, 0.9).unwrap_or(0.0);
    (robust::median(&mut values).unwrap_or(0.0), expected.unwrap_or(upper))
}
