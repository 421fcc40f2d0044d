//! Who is missing and who is extra: nodes that only one side knows, and sizes
//! that do not fit.
//!
//! Only a source that was read to its end can lack a node.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::view::View;
use super::view::is_rack;
use super::view::is_whole;
use super::words::count;
use super::words::disagreement;
use super::words::is;
use super::words::listed;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;
use model::said::Family;
use model::said::GroupKind;
use model::said::Said;
use model::said::SourceKind;

/// Lists of all nodes of a scheduler.
const SCHEDULERS: [SourceKind; 3] =
    [SourceKind::SlurmNodes, SourceKind::Sinfo, SourceKind::KubernetesNodes];

/// The nodes of a scheduler, by its family; nothing where it could not be read
/// to its end.
fn scheduled<'s>(view: &View<'s>) -> BTreeMap<Family, (usize, BTreeSet<&'s NodeName>)> {
    let mut families: BTreeMap<Family, (usize, BTreeSet<&NodeName>)> = BTreeMap::new();
    let mut cut: BTreeSet<Family> = BTreeSet::new();
    for (at, said) in view.sources(&SCHEDULERS).filter(|(_, said)| !said.nodes.is_empty()) {
        let family = said.source.kind.family();
        if !is_whole(said) {
            cut.insert(family);
        }
        families.entry(family).or_insert((at, BTreeSet::new())).1.extend(said.nodes.keys());
    }
    families.retain(|family, _| !cut.contains(family));
    families
}

/// `unknown-to-scheduler`: a topology names nodes that its scheduler lacks.
pub(super) fn unknown_to_scheduler(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let scheduled = scheduled(view);
    if scheduled.is_empty() {
        return;
    }
    let everywhere: BTreeSet<&NodeName> =
        scheduled.values().flat_map(|(_, nodes)| nodes.iter().copied()).collect();
    for grouping in view.groupings {
        if !matches!(grouping.kind, GroupKind::Domain | GroupKind::Imex | GroupKind::Leaf) {
            continue;
        }
        let family = grouping.source.family();
        // A scheduler's map is held against its own nodes; a file against those
        // of any scheduler.
        let (witness, known) = match scheduled.get(&family) {
            Some((at, nodes)) => (*at, nodes),
            None if matches!(family, Family::File | Family::Cabling | Family::Frameworks) => {
                let first = scheduled.values().next().map_or(0, |(at, _)| *at);
                (first, &everywhere)
            }
            None => continue,
        };
        let mut unknown: BTreeMap<usize, Vec<&NodeName>> = BTreeMap::new();
        for (node, set) in grouping.of.iter().filter(|(node, _)| !known.contains(*node)) {
            unknown.entry(*set).or_default().push(node);
        }
        let Some((first, _)) = unknown.first_key_value() else { continue };
        // A list of less than half of them was never meant to hold all.
        let unlisted: usize = unknown.values().map(Vec::len).sum();
        if grouping.of.len() <= 2 * unlisted {
            continue;
        }
        let nodes: Vec<&NodeName> = unknown.values().flatten().copied().collect();
        let source = &view.said[witness].source;
        let names = listed(nodes.iter().copied());
        let summary = format!(
            "{} names {names}, and {} {} no such node{}",
            grouping.source.words(),
            source.kind.words(),
            if source.kind == SourceKind::Sinfo { "knows" } else { "know" },
            if nodes.len() == 1 { "" } else { "s" }
        );
        let says = format!("{names} in {} {}", grouping.noun(), grouping.sets[*first].name);
        let lacks = format!("{}, {names} not among them", count(known.len(), "node"));
        let told = disagreement(DisagreementClass::UnknownToScheduler, Severity::Doubt, summary)
            .about(nodes.iter().copied())
            .side(grouping.side(view.said, *first, says))
            .side(view.source(witness, None, Basis::Asserted, lacks))
            .remedy("correct a misspelt name, or add the nodes; Slurm hides nodes in state FUTURE");
        let domain = nodes.first().and_then(|node| view.domain_of(node));
        found.push(domain.into_iter().fold(told, Disagreement::in_domain));
    }
}

/// `in-no-domain`: a scheduler's GPU nodes that no claim places. Where nobody
/// claims any domain, `no-domain-claimed`.
pub(super) fn in_no_domain(view: &View<'_>, found: &mut Vec<Disagreement>) {
    if view.placed.origin.iter().any(Option::is_none) {
        found.push(no_domain_claimed(view));
        return;
    }
    if view.placed.domains.is_empty() {
        return;
    }
    let servers = servers(view);
    for (at, said) in view.sources(&SCHEDULERS) {
        // Where some nodes are said to have GPUs or a fabric, the others have none.
        let mut all = said.nodes.values();
        let counted = all.any(|node| node.gpus.is_some() || !node.fabric.is_empty());
        let has_gpus = |said: &Said, node: &NodeName| {
            let gpus = said.nodes.get(node).and_then(|node| node.gpus);
            gpus.map_or(!counted, |gpus| 0 < gpus)
        };
        let nodes: Vec<&NodeName> = said
            .nodes
            .keys()
            .filter(|node| view.placed.of(node).is_none() && has_gpus(said, node))
            .collect();
        if nodes.is_empty() {
            continue;
        }
        let (servers, others): (Vec<&NodeName>, Vec<&NodeName>) =
            nodes.into_iter().partition(|node| servers.contains(node));
        for (nodes, is_server) in [(others, false), (servers, true)] {
            if !nodes.is_empty() {
                found.push(unplaced(view, at, &nodes, is_server));
            }
        }
    }
}

/// Nodes whose platform has no NVLink between nodes and is in no claimed domain:
/// blocks of racks leave servers out for good reason.
fn servers<'s>(view: &View<'s>) -> BTreeSet<&'s NodeName> {
    let claimed: BTreeSet<&str> =
        view.placed.domains.iter().filter_map(|d| d.platform.as_deref()).collect();
    let mut of: BTreeMap<&NodeName, bool> = BTreeMap::new();
    for (_, node, said) in view.node_words() {
        let platform =
            said.product.as_deref().and_then(|name| (view.rules.platform_of)(name, said.gpus));
        if let Some(platform) = platform {
            let is_server = !is_rack(&platform) && !claimed.contains(platform.as_str());
            *of.entry(node).or_insert(true) &= is_server;
        }
    }
    of.into_iter().filter(|(_, is_server)| *is_server).map(|(node, _)| node).collect()
}

fn unplaced(view: &View<'_>, source: usize, nodes: &[&NodeName], is_server: bool) -> Disagreement {
    let names = listed(nodes.iter().copied());
    let listing = format!(
        "{names} {} among the {} and in no claimed domain",
        is(nodes.len()),
        view.said[source].source.kind.words()
    );
    let (severity, why, remedy) = if is_server {
        (
            Severity::Note,
            "servers without NVLink between them, which are not measured with these domains",
            "to measure them too, name each as a domain in a claims file",
        )
    } else {
        (
            Severity::Doubt,
            "nothing across nodes is measured there",
            "add them to their block or domain, or leave them out on purpose with a claims file",
        )
    };
    let told = disagreement(DisagreementClass::InNoDomain, severity, format!("{listing}: {why}"))
        .about(nodes.iter().copied())
        .side(view.source(source, None, Basis::Asserted, format!("lists {names}")))
        .remedy(remedy);
    let without = format!("{} without them", count(view.placed.domains.len(), "domain"));
    view.claim(0, without).into_iter().fold(told, Disagreement::side)
}

fn no_domain_claimed(view: &View<'_>) -> Disagreement {
    let domains = &view.placed.domains;
    let racks = domains.iter().filter(|d| d.platform.as_deref().is_some_and(is_rack)).count();
    let severity = if racks == 0 { Severity::Note } else { Severity::Doubt };
    let more = if racks == 0 {
        ""
    } else {
        ", though their platform has NVLink between nodes: what runs across nodes is not measured"
    };
    let summary = format!(
        "no source claims a domain: each of {} is measured for itself{more}",
        count(domains.len(), "node")
    );
    let told = disagreement(DisagreementClass::NoDomainClaimed, severity, summary)
        .remedy("claim domains in a topology file, by the clique label or in claims.toml");
    let mut told =
        if racks == 0 { told } else { told.about(domains.iter().flat_map(|d| &d.nodes)) };
    for (at, said) in view.sources(&SCHEDULERS) {
        told = told.side(view.source(
            at,
            None,
            Basis::Asserted,
            format!("{} and no domain", count(said.nodes.len(), "node")),
        ));
    }
    told
}

/// `node-missing`: another grouping has most of a domain and lacks some of it.
pub(super) fn missing(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (at, grouping) in view.groupings.iter().enumerate() {
        let whole = grouping
            .sets
            .iter()
            .flat_map(|set| &set.groups)
            .all(|(source, _)| is_whole(&view.said[*source]));
        // A job has some nodes, and labels that are missing are told apart.
        let partial = matches!(grouping.source.family(), Family::Frameworks | Family::Nodes);
        // An override names single nodes.
        let single = grouping.source == SourceKind::SlurmNodes;
        if grouping.kind != GroupKind::Domain || grouping.cliques || partial || single || !whole {
            continue;
        }
        for (domain, claimed) in view.placed.domains.iter().enumerate() {
            let Some((origin, _)) = view.placed.origin[domain] else { continue };
            let same = super::blocks::is_slurm_topology(grouping.source)
                && super::blocks::is_slurm_topology(view.groupings[origin].source);
            if origin == at || same {
                continue;
            }
            let (there, missing): (Vec<&NodeName>, Vec<&NodeName>) =
                claimed.nodes.iter().partition(|node| grouping.of.contains_key(node));
            if missing.is_empty() || there.len() <= missing.len() {
                continue;
            }
            let names = listed(missing.iter().copied());
            let (noun, who) = (grouping.noun(), grouping.source.words());
            let domain_name = &claimed.name;
            let summary = format!(
                "{names} {} claimed in {domain_name}, and {who} has {} in no {noun}, unlike {} others of \
                 {domain_name}",
                is(missing.len()),
                if missing.len() == 1 { "it" } else { "them" },
                there.len()
            );
            let set = grouping.of[there[0]];
            let says = format!("{} in {noun} {}", listed(there), grouping.sets[set].name);
            let told = disagreement(DisagreementClass::NodeMissing, Severity::Doubt, summary)
                .in_domain(&claimed.name)
                .about(missing)
                .side(grouping.side(view.said, set, says))
                .remedy("add the node there, or take it out of the claim");
            let claim = view.claim(domain, format!("{names} in {}", claimed.name));
            found.push(claim.into_iter().fold(told, Disagreement::side));
        }
    }
}

/// `node-extra`: a later source has more nodes in a domain than its claim.
pub(super) fn extra(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (domain, claimed) in view.placed.domains.iter().enumerate() {
        let Some((origin, set)) = view.placed.origin[domain] else { continue };
        let grouping = &view.groupings[origin];
        let Some((home, others)) = view.home(domain) else { continue };
        let names = listed(&claimed.nodes);
        let summary = format!(
            "{} has {names} in one {} with {others} nodes of {}, whose claim does not name {}",
            grouping.source.words(),
            grouping.noun(),
            view.domain(home),
            if claimed.nodes.len() == 1 { "it" } else { "them" }
        );
        let says = format!("{names} in {} {}", grouping.noun(), grouping.sets[set].name);
        let told = disagreement(DisagreementClass::NodeExtra, Severity::Doubt, summary)
            .in_domain(view.domain(home))
            .about(&claimed.nodes)
            .side(grouping.side(view.said, set, says))
            .remedy("add the nodes to the claim, or correct the other source");
        let size = count(view.placed.domains[home].nodes.len(), "node");
        let claim = view.claim(home, format!("{size} are {}", view.domain(home)));
        found.push(claim.into_iter().fold(told, Disagreement::side));
    }
}

/// `domain-size`: a group has another number of nodes than it says.
pub(super) fn sizes(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings {
        // What a ComputeDomain asks for is told in `imex`.
        if !matches!(grouping.kind, GroupKind::Domain | GroupKind::Leaf | GroupKind::Rack) {
            continue;
        }
        let mut wrong: BTreeMap<(u32, bool), Vec<usize>> = BTreeMap::new();
        for (at, set) in grouping.sets.iter().enumerate() {
            let Some(size) = set.groups.iter().find_map(|(_, group)| group.size) else { continue };
            let counted = set.named().len();
            let fewer = counted < size as usize;
            // Slurm's block size is what it schedules by; more are spare, and
            // an empty block is a place kept free.
            let fits = if grouping.scheme == "block" { !fewer } else { counted == size as usize };
            if 0 < size && 0 < counted && !fits {
                wrong.entry((size, fewer)).or_default().push(at);
            }
        }
        for ((size, fewer), sets) in wrong {
            let few = sets.iter().take(3).map(|at| {
                let set = &grouping.sets[*at];
                format!("{} ({})", set.name, set.named().len())
            });
            let few: Vec<String> = few.collect();
            let more = if sets.len() <= few.len() { "" } else { " and others" };
            let summary = format!(
                "{} of {} should have {size} nodes and {} {}: {}{more}",
                count(sets.len(), grouping.noun()),
                grouping.source.words(),
                if sets.len() == 1 { "has" } else { "have" },
                if fewer { "fewer" } else { "more" },
                few.join(", ")
            );
            let says = format!("size {size}, {} named", grouping.sets[sets[0]].named().len());
            let told = disagreement(DisagreementClass::DomainSize, Severity::Doubt, summary)
                .side(grouping.side(view.said, sets[0], says))
                .remedy(if fewer {
                    "look for nodes that were left out"
                } else {
                    "correct the size or the list"
                });
            let one = grouping.sets[sets[0]].nodes.first().and_then(|node| view.domain_of(node));
            found.push(one.into_iter().fold(told, Disagreement::in_domain));
        }
    }
}
