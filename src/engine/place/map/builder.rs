//! Builds the map: the measurements of every claimed domain, node, GPU and rail.

use std::collections::{BTreeMap, BTreeSet};

use super::run_index::RunIndex;
use super::{
    DomainBasis, MapDomain, MapGpu, MapInput, MapMember, MapOrigin, MapRail, MapRailEnd,
    MeasuredReach, VerifiedMap,
};
use crate::place::strength_matrix::StrengthMatrix;
use crate::policy::{device, topology_proposal};
use model::claims::{ClaimedDomain, Claims, SourceSummary};
use model::gpu_facts::is_null_cluster_uuid;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::source_report::{ClaimBasis as SaidBasis, FabricReport, SourceKind};
use model::tool_recording::RecordingScope;
use model::verdict::{Finding, LocusKind, Outcome};
use readers::claims::slurm::BLOCK_SIZES;
use readers::claims::slurm::partitions::partition_of_topology;

/// The CliqueId of a GPU that the fabric assigned to no clique; see `judge::state`.
const NO_CLIQUE: &str = "32766";

pub(super) fn build_map(source: &MapInput<'_>) -> VerifiedMap {
    let run = source.run;
    let ground = RunIndex::new(source);
    let mut members = build_members(&ground);
    let mut domains: Vec<MapDomain> =
        run.claims.domains.iter().flat_map(|domain| split_domain(domain, &ground)).collect();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    move_misplaced_nodes(source, &mut domains);
    let mut homes: BTreeMap<&NodeName, &MapDomain> = BTreeMap::new();
    for domain in &domains {
        domain.nodes().into_iter().for_each(|node| _ = homes.entry(node).or_insert(domain));
    }
    let names: BTreeSet<&str> = domains.iter().map(|domain| domain.name.as_str()).collect();
    for (node, member) in &mut members {
        let own = homes.get(node).copied();
        member.domain = own.map(|own| own.name.clone());
        let claimed = member.claimed.as_ref();
        member.is_misplaced = own.is_some_and(|own| Some(&own.claimed) != claimed);
        // Nodes that are alone, or in a part without a majority.
        member.is_apart = !member.is_misplaced
            && own.is_some_and(|own| {
                own.basis == DomainBasis::Measured && own.name != own.claimed.as_str()
            })
            && claimed.is_some_and(|claimed| names.contains(claimed.as_str()));
    }
    set_worst_ratios(&run.cells, &mut members);
    let origin = MapOrigin {
        id: run.info.id.clone(),
        created: run.info.created.clone(),
        profile: run.info.profile.clone(),
        version: run.info.version.clone(),
        thresholds_digest: run.verdicts.thresholds_digest.clone(),
        is_complete: source.is_complete,
        is_simulated: source.is_simulated,
    };
    let leaves = run.claims.leaves.iter().map(|leaf| (leaf.name.clone(), leaf.nodes.clone()));
    VerifiedMap {
        run: origin,
        outcome: run.verdicts.outcome,
        domains,
        members,
        rails: build_rails(source),
        leaves: leaves.collect(),
        matrix: StrengthMatrix::from_cells(&run.cells),
        partitions: partition_topologies(&run.claims),
        block_sizes: block_sizes(&run.claims),
    }
}

/// The topologies that partitions name; `None` if no source of the run reports partitions.
fn partition_topologies(claims: &Claims) -> Option<BTreeMap<String, String>> {
    let is_read = |it: &&SourceSummary| {
        it.source.kind == SourceKind::SlurmPartitions && it.unread_problem().is_none()
    };
    let read: Vec<&SourceSummary> = claims.sources.iter().filter(is_read).collect();
    let settings = read.iter().flat_map(|it| &it.settings);
    let named = settings.filter_map(|(key, value)| partition_of_topology(key).zip(Some(value)));
    let named = named.map(|(partition, topology)| (partition.to_owned(), topology.clone()));
    (!read.is_empty()).then(|| named.collect())
}

/// The sizes of all levels of blocks, if a source reports several.
fn block_sizes(claims: &Claims) -> Vec<usize> {
    let setting = claims.sources.iter().find_map(|it| it.settings.get(BLOCK_SIZES));
    let sizes = setting.iter().flat_map(|sizes| sizes.split(','));
    // One unreadable size makes the list unusable.
    sizes.map(|size| size.parse().ok()).collect::<Option<_>>().unwrap_or_default()
}

/// The measured form of a claimed domain: itself, or its parts.
fn split_domain(domain: &ClaimedDomain, ground: &RunIndex<'_>) -> Vec<MapDomain> {
    let source = ground.source;
    let platform = domain.platform.as_deref().and_then(|name| source.catalogue.platform(name));
    let of =
        |name: String, measured: BTreeSet<NodeName>, unmeasured: BTreeSet<NodeName>| MapDomain {
            basis: if measured.is_empty() { DomainBasis::Claimed } else { DomainBasis::Measured },
            name,
            claimed: domain.name.clone(),
            measured,
            unmeasured,
            platform: domain.platform.clone(),
            gpus_per_node: domain.gpus_per_node,
            nvlinks: platform.and_then(|it| it.nvlink.as_ref()).map(|it| it.links),
        };
    let is_servers = platform.is_some_and(|platform| !platform.spans_nodes());
    if is_servers || domain.nodes.len() == 1 {
        // NVLink stays inside a node: each node is its own domain.
        let one = |node: &NodeName| {
            let name = match domain.nodes.len() {
                1 => domain.name.to_string(),
                _ => node.to_string(),
            };
            let own = BTreeSet::from([node.clone()]);
            let was_measured = ground.measured_inside.contains(node);
            let (measured, not) =
                if was_measured { (own, BTreeSet::new()) } else { (BTreeSet::new(), own) };
            of(name, measured, not)
        };
        return domain.nodes.iter().map(one).collect();
    }
    let is_own = |name: &str| {
        let rest = name.strip_prefix(domain.name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || is_part_suffix(rest))
    };
    let within = |nodes: &[NodeName]| nodes.iter().all(|node| domain.nodes.contains(node));
    let mut groups: Vec<BTreeSet<NodeName>> = ground
        .measured_report
        .groups
        .iter()
        .filter(|group| is_own(&group.name) && within(&group.nodes))
        .map(|group| group.nodes.iter().cloned().collect())
        .collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group.first().cloned()));
    let met: BTreeSet<&NodeName> = groups.iter().flatten().collect();
    let unmet: BTreeSet<NodeName> =
        domain.nodes.iter().filter(|node| !met.contains(node)).cloned().collect();
    let has_main = groups.first().is_some_and(|first| met.len() < 2 * first.len());
    let mut parts: Vec<MapDomain> = Vec::new();
    if !has_main && (!unmet.is_empty() || groups.is_empty()) {
        parts.push(of(domain.name.to_string(), BTreeSet::new(), unmet.clone()));
    }
    for (number, group) in (1..).zip(groups) {
        let is_main = has_main && number == 1;
        let name =
            if is_main { domain.name.to_string() } else { format!("{}.part{number}", domain.name) };
        // A node that was not measured with others stays at its claimed place.
        let unmeasured = if is_main { unmet.clone() } else { BTreeSet::new() };
        parts.push(of(name, group, unmeasured));
    }
    parts
}

/// `.part2`, the suffix that `inventory::measured` gives to parts.
fn is_part_suffix(rest: &str) -> bool {
    rest.strip_prefix(".part").is_some_and(|n| n.parse::<u32>().is_ok())
}

/// Moves nodes that are confirmed in another domain to that domain.
fn move_misplaced_nodes(source: &MapInput<'_>, domains: &mut Vec<MapDomain>) {
    let (moves, _) = topology_proposal::asked(&source.run.verdicts, &source.run.claims);
    for (node, home) in moves {
        if !domains.iter().any(|domain| domain.name == home) {
            continue;
        }
        for domain in domains.iter_mut() {
            domain.measured.remove(&node);
            domain.unmeasured.remove(&node);
            if domain.name == home {
                domain.measured.insert(node.clone());
            }
        }
        domains.retain(|domain| !domain.nodes().is_empty());
    }
}

fn is_between_gpus(cell: &MeasuredCell) -> bool {
    cell.rail.is_none()
        && cell.value.is_some()
        && cell.src_gpu.is_some()
        && cell.dst_gpu.is_some()
        && cell.src_node != cell.dst_node
}

/// Every claimed node and every node with a verdict.
fn build_members(ground: &RunIndex<'_>) -> BTreeMap<NodeName, MapMember> {
    let source = ground.source;
    let run = source.run;
    let claimed = run.claims.domains.iter().flat_map(|domain| &domain.nodes);
    let judged = run.verdicts.nodes.iter().map(|verdict| &verdict.node);
    let nodes: BTreeSet<&NodeName> = claimed.chain(judged).collect();
    let inside = &ground.measured_inside;
    let across: BTreeSet<&NodeName> = run
        .cells
        .iter()
        .filter(|cell| is_between_gpus(cell))
        .flat_map(|cell| [&cell.src_node, &cell.dst_node].into_iter().flatten())
        .collect();
    let uuids = collect_uuids(source);
    let mut members = BTreeMap::new();
    for node in nodes {
        let verdict = ground.verdicts.get(node).copied();
        let own = ground.claim_index.domain_of(node);
        let is_alone = own.is_none_or(|own| {
            let platform = own.platform.as_deref().and_then(|p| source.catalogue.platform(p));
            own.nodes.len() == 1 || platform.is_some_and(|platform| !platform.spans_nodes())
        });
        let reach = if across.contains(node) || (is_alone && inside.contains(node)) {
            MeasuredReach::Across
        } else if inside.contains(node) {
            MeasuredReach::Inside
        } else {
            MeasuredReach::Nothing
        };
        let findings = ground.findings_about(node);
        let mut gpus: BTreeMap<u32, MapGpu> = BTreeMap::new();
        for (gpu, uuid) in uuids.get(node).into_iter().flatten() {
            gpus.entry(*gpu).or_default().uuid = Some(uuid.clone());
        }
        for finding in findings {
            for index in finding_gpus(finding, node) {
                let gpu = gpus.entry(index).or_default();
                gpu.classes.insert(finding.class.clone());
                // A slow pair blames neither of its two parts.
                if finding.locus.kind != LocusKind::Pair {
                    gpu.outcome = gpu.outcome.max(Some(finding.outcome));
                }
            }
        }
        mark_confirmed_gpus(findings, &mut gpus);
        let known_uuids: BTreeMap<u32, &str> =
            gpus.iter().filter_map(|(index, gpu)| Some((*index, gpu.uuid.as_deref()?))).collect();
        let count = own.and_then(|own| own.gpus_per_node);
        let device = device::of_findings(node, findings, &known_uuids, count);
        let machine = ground.machines.get(node);
        members.insert(
            node.clone(),
            MapMember {
                claimed: own.map(|own| own.name.clone()),
                domain: None,
                reach,
                is_misplaced: false,
                is_apart: false,
                outcome: verdict.map_or(Outcome::Unknown, |verdict| verdict.outcome),
                reason: verdict.map_or_else(
                    || "it was not judged".to_owned(),
                    |verdict| verdict.reason.clone(),
                ),
                findings: findings.iter().map(|finding| finding.id.clone()).collect(),
                classes: findings.iter().map(|finding| finding.class.clone()).collect(),
                worst: None,
                detectable: verdict.and_then(|verdict| verdict.detectable),
                cliques: node_cliques(ground, node),
                gpus,
                rails: build_rail_ends(ground, node, verdict.map(|verdict| verdict.outcome)),
                leaf: ground.claim_index.leaf_of(node).map(str::to_owned),
                boot_id: machine.and_then(|machine| machine.environment.boot_id.clone()),
                device,
            },
        );
    }
    members
}

fn mark_confirmed_gpus(findings: &[&Finding], gpus: &mut BTreeMap<u32, MapGpu>) {
    for finding in findings.iter().filter(|it| it.confirmed && Outcome::Degraded <= it.outcome) {
        let locus = &finding.locus;
        let is_one = matches!(locus.kind, LocusKind::Gpu | LocusKind::Direction);
        if let Some(index) = locus.gpu.filter(|_| is_one && locus.peer.is_none()) {
            gpus.entry(index).or_default().is_confirmed = true;
        }
    }
}

/// The node in `node` or `node:gpu`.
pub(super) fn peer_node(peer: &str) -> &str {
    match peer.rsplit_once(':') {
        Some((node, gpu)) if gpu.parse::<u32>().is_ok() => node,
        _ => peer,
    }
}

fn finding_gpus(finding: &Finding, node: &NodeName) -> Vec<u32> {
    let own = finding.locus.gpu.filter(|_| finding.locus.node.as_ref() == Some(node));
    let peer = finding.locus.peer.as_deref().filter(|peer| peer_node(peer) == node.as_str());
    let peer = peer.and_then(|peer| peer.rsplit_once(':')?.1.parse().ok());
    own.into_iter().chain(peer).collect()
}

/// UUIDs of GPUs by node and index, from workers and single-node outputs.
fn collect_uuids(source: &MapInput<'_>) -> BTreeMap<NodeName, BTreeMap<u32, String>> {
    let mut uuids: BTreeMap<NodeName, BTreeMap<u32, String>> = BTreeMap::new();
    for recording in source.recordings {
        let RecordingScope::Node(node) = &recording.scope else { continue };
        let facts = &recording.parsed.facts;
        let devices = facts.devices.iter().map(|device| (device.index, &device.uuid));
        let links = facts.nvlinks.iter().map(|gpu| (gpu.gpu, &gpu.uuid));
        let fabric = facts.fabric.iter().map(|gpu| (gpu.gpu, &gpu.uuid));
        for (index, uuid) in devices.chain(links).chain(fabric) {
            if let Some(uuid) = uuid.as_deref().filter(|uuid| is_uuid(uuid)) {
                uuids.entry(node.clone()).or_default().insert(index, uuid.to_owned());
            }
        }
    }
    // The driver's own line, from the node's last worker: the GPU may have been replaced.
    for machine in source.machines {
        for line in &machine.environment.gpus {
            let mut words = line.split(',').map(str::trim);
            let (Some(index), Some(uuid)) = (words.next(), words.next()) else { continue };
            if let (Ok(index), true) = (index.parse(), is_uuid(uuid)) {
                uuids.entry(machine.node.clone()).or_default().insert(index, uuid.to_owned());
            }
        }
    }
    uuids
}

fn is_uuid(text: &str) -> bool {
    text.starts_with("GPU-")
        && text.len() < 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The cliques that a node's drivers report: from outputs of the run, else from the claims.
fn node_cliques(ground: &RunIndex<'_>, node: &NodeName) -> BTreeSet<String> {
    let mut cliques = BTreeSet::new();
    for recording in ground.node_recordings.get(node).into_iter().flatten() {
        for gpu in &recording.parsed.facts.fabric {
            let is_attached =
                gpu.state.as_deref().is_some_and(|state| state.eq_ignore_ascii_case("completed"));
            let identity = gpu.cluster_uuid.as_deref().zip(gpu.clique_id.as_deref());
            cliques.extend(
                identity.filter(|_| is_attached).and_then(|(uuid, id)| clique_name(uuid, id)),
            );
        }
    }
    if cliques.is_empty() {
        let identity = ground.source.run.claims.nodes.get(node);
        let identity = identity.into_iter().flat_map(|identity| &identity.fabric);
        let reported = identity.filter(|fabric| fabric.basis == Some(SaidBasis::Reported));
        let words = |fabric: &FabricReport| {
            clique_name(fabric.cluster_uuid.as_deref()?, fabric.clique_id.as_deref()?)
        };
        cliques.extend(reported.filter_map(words));
    }
    cliques
}

/// `<ClusterUUID>.<CliqueId>`, if it names a fabric.
fn clique_name(uuid: &str, id: &str) -> Option<String> {
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let names_one =
        !is_null_cluster_uuid(uuid) && is_plain(uuid) && is_plain(id) && id != NO_CLIQUE;
    names_one.then(|| format!("{}.{id}", uuid.to_ascii_lowercase()))
}

/// The claimed and the measured rails.
fn build_rails(source: &MapInput<'_>) -> BTreeMap<String, MapRail> {
    let run = source.run;
    let mut rails: BTreeMap<String, MapRail> = BTreeMap::new();
    for claimed in &run.claims.rails {
        let rail = rails.entry(claimed.name.clone()).or_default();
        rail.rdma.clone_from(&claimed.rdma);
        rail.device.clone_from(&claimed.device);
    }
    for name in run.cells.iter().filter_map(|cell| cell.rail.as_ref()) {
        rails.entry(name.clone()).or_default();
    }
    for finding in &run.verdicts.findings {
        if let Some(rail) = finding.locus.rail.as_ref().and_then(|name| rails.get_mut(name)) {
            rail.classes.insert(finding.class.clone());
        }
    }
    rails
}

/// A node's ends of rails, with the result of their measurements.
fn build_rail_ends(
    ground: &RunIndex<'_>,
    node: &NodeName,
    outcome: Option<Outcome>,
) -> BTreeMap<String, MapRailEnd> {
    // For a node that is unknown or failed, an end without findings may simply lack a comparison.
    let was_compared = matches!(outcome, Some(Outcome::Pass | Outcome::Degraded));
    let run = ground.source.run;
    let mut ends: BTreeMap<String, MapRailEnd> = BTreeMap::new();
    let mut seen: BTreeMap<&String, bool> = BTreeMap::new();
    for cell in ground.rail_cells.get(node).into_iter().flatten() {
        let Some(rail) = &cell.rail else { continue };
        // One path over it at the expected rate shows that the end is healthy; without an
        // expectation the judge compares nodes with each other.
        *seen.entry(rail).or_default() |=
            cell.outcome == Outcome::Pass || (cell.value.is_some() && was_compared);
    }
    for rail in run.claims.rails.iter().map(|rail| &rail.name).chain(seen.keys().copied()) {
        let measured = seen.get(rail).copied().unwrap_or(false);
        let all = ground.findings_about(node).iter().chain(&ground.larger_findings);
        let blamed = all.filter(|finding| finding.locus.rail.as_ref() == Some(rail));
        let floor = if measured { Outcome::Pass } else { Outcome::Unknown };
        let outcome = blamed.map(|finding| finding.outcome).max().unwrap_or(floor).max(floor);
        ends.insert(rail.clone(), MapRailEnd { outcome });
    }
    ends
}

/// The worst cell of every GPU and node within its domain.
fn set_worst_ratios(cells: &[MeasuredCell], members: &mut BTreeMap<NodeName, MapMember>) {
    type WorstCellKey<'c> = (&'c str, &'c NodeName, Option<u32>, &'c NodeName, Option<u32>);
    let mut best: BTreeMap<WorstCellKey<'_>, f64> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.rail.is_none() && cell.unit.is_bandwidth()) {
        let (Some(from), Some(to), Some(ratio)) = (&cell.src_node, &cell.dst_node, cell.ratio)
        else {
            continue;
        };
        let home = |node: &NodeName| members.get(node).and_then(|member| member.domain.as_ref());
        if from != to && home(from) != home(to) {
            continue;
        }
        let key = (&*cell.testcase, from, cell.src_gpu, to, cell.dst_gpu);
        let best = best.entry(key).or_insert(ratio);
        *best = best.max(ratio);
    }
    let lower = |known: &mut Option<f64>, ratio: f64| {
        *known = Some(known.map_or(ratio, |known| known.min(ratio)));
    };
    for ((_, from, src, to, dst), ratio) in best {
        for (node, gpu) in [(from, src), (to, dst)] {
            let Some(member) = members.get_mut(node) else { continue };
            lower(&mut member.worst, ratio);
            if let Some(gpu) = gpu {
                lower(&mut member.gpus.entry(gpu).or_default().worst, ratio);
            }
        }
    }
}
