//! Missing and extra nodes: nodes that only one side knows, and group sizes that do not match.
//!
//! Only a source that was read completely can lack a node.

use std::collections::{BTreeMap, BTreeSet};

use super::context::{ReconcileContext, is_complete, is_rack};
use super::messages::{count_of, is_or_are, list_nodes, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroupKind, SourceFamily, SourceKind, SourceReport};

/// Sources with all nodes of a scheduler.
const SCHEDULERS: [SourceKind; 3] =
    [SourceKind::SlurmNodes, SourceKind::Sinfo, SourceKind::KubernetesNodes];

/// The nodes of a scheduler, by its family; `None` if it could not be read completely.
fn scheduled_nodes<'s>(
    view: &ReconcileContext<'s>,
) -> BTreeMap<SourceFamily, (usize, BTreeSet<&'s NodeName>)> {
    let mut families: BTreeMap<SourceFamily, (usize, BTreeSet<&NodeName>)> = BTreeMap::new();
    let mut cut: BTreeSet<SourceFamily> = BTreeSet::new();
    for (at, report) in view.sources(&SCHEDULERS).filter(|(_, report)| !report.nodes.is_empty()) {
        let family = report.source.kind.family();
        if !is_complete(report) {
            cut.insert(family);
        }
        families.entry(family).or_insert((at, BTreeSet::new())).1.extend(report.nodes.keys());
    }
    families.retain(|family, _| !cut.contains(family));
    families
}

/// `unknown-to-scheduler`: a topology contains nodes that its scheduler lacks.
pub(super) fn check_unknown_nodes(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let scheduled = scheduled_nodes(view);
    if scheduled.is_empty() {
        return;
    }
    let everywhere: BTreeSet<&NodeName> =
        scheduled.values().flat_map(|(_, nodes)| nodes.iter().copied()).collect();
    for grouping in view.groupings {
        if !matches!(
            grouping.kind,
            NodeGroupKind::Domain | NodeGroupKind::Imex | NodeGroupKind::Leaf
        ) {
            continue;
        }
        let family = grouping.source.family();
        // A scheduler's topology is compared with its own nodes, a file with those of any
        // scheduler.
        let (witness, known) = match scheduled.get(&family) {
            Some((at, nodes)) => (*at, nodes),
            None if matches!(
                family,
                SourceFamily::File | SourceFamily::Cabling | SourceFamily::Frameworks
            ) =>
            {
                let first = scheduled.values().next().map_or(0, |(at, _)| *at);
                (first, &everywhere)
            }
            None => continue,
        };
        let mut unknown: BTreeMap<usize, Vec<&NodeName>> = BTreeMap::new();
        for (node, set) in grouping.set_by_node.iter().filter(|(node, _)| !known.contains(*node)) {
            unknown.entry(*set).or_default().push(node);
        }
        let Some((first, _)) = unknown.first_key_value() else { continue };
        // A list with less than half of them is not meant to be complete.
        let unlisted: usize = unknown.values().map(Vec::len).sum();
        if grouping.set_by_node.len() <= 2 * unlisted {
            continue;
        }
        let nodes: Vec<&NodeName> = unknown.values().flatten().copied().collect();
        let source = &view.reports[witness].source;
        let names = list_nodes(nodes.iter().copied());
        let summary = format!(
            "{} contains {names}, but {} {} no such node{}",
            grouping.source.label(),
            source.kind.label(),
            if source.kind == SourceKind::Sinfo { "knows" } else { "know" },
            if nodes.len() == 1 { "" } else { "s" }
        );
        let statement = format!("{names} in {} {}", grouping.noun(), grouping.sets[*first].name);
        let lacks = format!("{}, without {names}", count_of(known.len(), "node"));
        let disagreement = new_disagreement(
            DisagreementClass::UnknownToScheduler,
            DisagreementSeverity::Doubt,
            summary,
        )
        .with_nodes(nodes.iter().copied())
        .with_side(grouping.to_side(view.reports, *first, statement))
        .with_side(view.source_side(witness, None, ClaimBasis::Asserted, lacks))
        .with_remedy(
            "correct a misspelt name, or add the nodes; Slurm hides nodes in state FUTURE",
        );
        let domain = nodes.first().and_then(|node| view.domain_of(node));
        found.push(domain.into_iter().fold(disagreement, Disagreement::in_domain));
    }
}

/// `in-no-domain`: a scheduler's GPU nodes that no claim places. Without any claimed domain,
/// `no-domain-claimed`.
pub(super) fn check_unplaced_nodes(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    if view.placement.origin.iter().any(Option::is_none) {
        found.push(describe_no_domain_claimed(view));
        return;
    }
    if view.placement.domains.is_empty() {
        return;
    }
    let servers = server_nodes(view);
    for (at, report) in view.sources(&SCHEDULERS) {
        // If some nodes have reported GPUs or a fabric, the others have none.
        let mut all = report.nodes.values();
        let counted = all.any(|node| node.gpus.is_some() || !node.fabric.is_empty());
        let has_gpus = |report: &SourceReport, node: &NodeName| {
            let gpus = report.nodes.get(node).and_then(|node| node.gpus);
            gpus.map_or(!counted, |gpus| 0 < gpus)
        };
        let nodes: Vec<&NodeName> = report
            .nodes
            .keys()
            .filter(|node| view.placement.domain_of(node).is_none() && has_gpus(report, node))
            .collect();
        if nodes.is_empty() {
            continue;
        }
        let (servers, others): (Vec<&NodeName>, Vec<&NodeName>) =
            nodes.into_iter().partition(|node| servers.contains(node));
        for (nodes, is_server) in [(others, false), (servers, true)] {
            if !nodes.is_empty() {
                found.push(describe_unplaced_nodes(view, at, &nodes, is_server));
            }
        }
    }
}

/// Nodes outside every claimed domain whose platform has no NVLink between nodes: blocks of racks
/// omit servers on purpose.
fn server_nodes<'s>(view: &ReconcileContext<'s>) -> BTreeSet<&'s NodeName> {
    let claimed: BTreeSet<&str> =
        view.placement.domains.iter().filter_map(|d| d.platform.as_deref()).collect();
    let mut of: BTreeMap<&NodeName, bool> = BTreeMap::new();
    for (_, node, node_report) in view.node_reports() {
        let platform = node_report
            .product
            .as_deref()
            .and_then(|name| (view.rules.platform_of)(name, node_report.gpus));
        if let Some(platform) = platform {
            let is_server = !is_rack(&platform) && !claimed.contains(platform.as_str());
            *of.entry(node).or_insert(true) &= is_server;
        }
    }
    of.into_iter().filter(|(_, is_server)| *is_server).map(|(node, _)| node).collect()
}

fn describe_unplaced_nodes(
    view: &ReconcileContext<'_>,
    source: usize,
    nodes: &[&NodeName],
    is_server: bool,
) -> Disagreement {
    let names = list_nodes(nodes.iter().copied());
    let listing = format!(
        "{names} {} among the {} but in no claimed domain",
        is_or_are(nodes.len()),
        view.reports[source].source.kind.label()
    );
    let (severity, why, remedy) = if is_server {
        (
            DisagreementSeverity::Note,
            "servers without NVLink between them, which are not measured with these domains",
            "to measure them too, claim each as a domain in a claims file",
        )
    } else {
        (
            DisagreementSeverity::Doubt,
            "no measurement across these nodes takes place",
            "add them to their block or domain, or exclude them explicitly with a claims file",
        )
    };
    let disagreement =
        new_disagreement(DisagreementClass::InNoDomain, severity, format!("{listing}: {why}"))
            .with_nodes(nodes.iter().copied())
            .with_side(view.source_side(
                source,
                None,
                ClaimBasis::Asserted,
                format!("lists {names}"),
            ))
            .with_remedy(remedy);
    let without = format!("{} without them", count_of(view.placement.domains.len(), "domain"));
    view.claim_side(0, without).into_iter().fold(disagreement, Disagreement::with_side)
}

fn describe_no_domain_claimed(view: &ReconcileContext<'_>) -> Disagreement {
    let domains = &view.placement.domains;
    let racks = domains.iter().filter(|d| d.platform.as_deref().is_some_and(is_rack)).count();
    let severity =
        if racks == 0 { DisagreementSeverity::Note } else { DisagreementSeverity::Doubt };
    let more = if racks == 0 {
        ""
    } else {
        ", although their platform has NVLink between nodes: traffic across nodes is not measured"
    };
    let summary = format!(
        "no source claims a domain: each of {} is measured by itself{more}",
        count_of(domains.len(), "node")
    );
    let disagreement = new_disagreement(DisagreementClass::NoDomainClaimed, severity, summary)
        .with_remedy("claim domains in a topology file, by the clique label or in claims.toml");
    let mut disagreement = if racks == 0 {
        disagreement
    } else {
        disagreement.with_nodes(domains.iter().flat_map(|d| &d.nodes))
    };
    for (at, report) in view.sources(&SCHEDULERS) {
        disagreement = disagreement.with_side(view.source_side(
            at,
            None,
            ClaimBasis::Asserted,
            format!("{} and no domain", count_of(report.nodes.len(), "node")),
        ));
    }
    disagreement
}

/// `node-missing`: another grouping has most of a domain and lacks some of it.
pub(super) fn check_missing_nodes(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (at, grouping) in view.groupings.iter().enumerate() {
        let whole = grouping
            .sets
            .iter()
            .flat_map(|set| &set.groups)
            .all(|(source, _)| is_complete(&view.reports[*source]));
        // A job has only some nodes, and another check reports missing labels.
        let partial =
            matches!(grouping.source.family(), SourceFamily::Frameworks | SourceFamily::Nodes);
        // An override concerns single nodes.
        let single = grouping.source == SourceKind::SlurmNodes;
        if grouping.kind != NodeGroupKind::Domain || grouping.cliques || partial || single || !whole
        {
            continue;
        }
        for (domain, claimed) in view.placement.domains.iter().enumerate() {
            let Some((origin, _)) = view.placement.origin[domain] else { continue };
            let same = super::grouping_conflicts::is_slurm_topology(grouping.source)
                && super::grouping_conflicts::is_slurm_topology(view.groupings[origin].source);
            if origin == at || same {
                continue;
            }
            let (present, missing): (Vec<&NodeName>, Vec<&NodeName>) =
                claimed.nodes.iter().partition(|node| grouping.set_by_node.contains_key(node));
            if missing.is_empty() || present.len() <= missing.len() {
                continue;
            }
            let names = list_nodes(missing.iter().copied());
            let (noun, label) = (grouping.noun(), grouping.source.label());
            let domain_name = &claimed.name;
            let summary = format!(
                "{names} {} claimed in {domain_name}, but {label} has {} in no {noun}, unlike {} \
                 others of {domain_name}",
                is_or_are(missing.len()),
                if missing.len() == 1 { "it" } else { "them" },
                present.len()
            );
            let set = grouping.set_by_node[present[0]];
            let statement =
                format!("{} in {noun} {}", list_nodes(present), grouping.sets[set].name);
            let disagreement = new_disagreement(
                DisagreementClass::NodeMissing,
                DisagreementSeverity::Doubt,
                summary,
            )
            .in_domain(&claimed.name)
            .with_nodes(missing)
            .with_side(grouping.to_side(view.reports, set, statement))
            .with_remedy("add the node there, or remove it from the claim");
            let claim = view.claim_side(domain, format!("{names} in {}", claimed.name));
            found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
        }
    }
}

/// `node-extra`: a later source has more nodes in a domain than its claim.
pub(super) fn check_extra_nodes(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (domain, claimed) in view.placement.domains.iter().enumerate() {
        let Some((origin, set)) = view.placement.origin[domain] else { continue };
        let grouping = &view.groupings[origin];
        let Some((home, others)) = view.home_domain(domain) else { continue };
        let names = list_nodes(&claimed.nodes);
        let summary = format!(
            "{} has {names} in one {} with {others} nodes of {}, whose claim does not contain {}",
            grouping.source.label(),
            grouping.noun(),
            view.domain_name(home),
            if claimed.nodes.len() == 1 { "it" } else { "them" }
        );
        let statement = format!("{names} in {} {}", grouping.noun(), grouping.sets[set].name);
        let disagreement =
            new_disagreement(DisagreementClass::NodeExtra, DisagreementSeverity::Doubt, summary)
                .in_domain(view.domain_name(home))
                .with_nodes(&claimed.nodes)
                .with_side(grouping.to_side(view.reports, set, statement))
                .with_remedy("add the nodes to the claim, or correct the other source");
        let size = count_of(view.placement.domains[home].nodes.len(), "node");
        let claim = view.claim_side(home, format!("{size} are {}", view.domain_name(home)));
        found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
    }
}

/// `domain-size`: the number of nodes in a group differs from its stated size.
pub(super) fn check_domain_sizes(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings {
        // `imex` reports the requested size of a ComputeDomain.
        if !matches!(
            grouping.kind,
            NodeGroupKind::Domain | NodeGroupKind::Leaf | NodeGroupKind::Rack
        ) {
            continue;
        }
        let mut wrong: BTreeMap<(u32, bool), Vec<usize>> = BTreeMap::new();
        for (at, set) in grouping.sets.iter().enumerate() {
            let Some(size) = set.groups.iter().find_map(|(_, group)| group.size) else { continue };
            let counted = set.named_nodes().len();
            let fewer = counted < size as usize;
            // Slurm schedules by its block size; more nodes are spares, and an empty block is a
            // reserved place.
            let fits = if grouping.scheme == "block" { !fewer } else { counted == size as usize };
            if 0 < size && 0 < counted && !fits {
                wrong.entry((size, fewer)).or_default().push(at);
            }
        }
        for ((size, fewer), sets) in wrong {
            let few = sets.iter().take(3).map(|at| {
                let set = &grouping.sets[*at];
                format!("{} ({})", set.name, set.named_nodes().len())
            });
            let few: Vec<String> = few.collect();
            let more = if sets.len() <= few.len() { "" } else { " and others" };
            let summary = format!(
                "{} of {} should have {size} nodes and {} {}: {}{more}",
                count_of(sets.len(), grouping.noun()),
                grouping.source.label(),
                if sets.len() == 1 { "has" } else { "have" },
                if fewer { "fewer" } else { "more" },
                few.join(", ")
            );
            let statement =
                format!("size {size}, {} named", grouping.sets[sets[0]].named_nodes().len());
            let disagreement = new_disagreement(
                DisagreementClass::DomainSize,
                DisagreementSeverity::Doubt,
                summary,
            )
            .with_side(grouping.to_side(view.reports, sets[0], statement))
            .with_remedy(if fewer {
                "check for omitted nodes"
            } else {
                "correct the size or the list"
            });
            let one = grouping.sets[sets[0]].nodes.first().and_then(|node| view.domain_of(node));
            found.push(one.into_iter().fold(disagreement, Disagreement::in_domain));
        }
    }
}
