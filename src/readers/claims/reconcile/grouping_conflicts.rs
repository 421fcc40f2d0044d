//! Compares groupings: blocks with cliques, files with schedulers, and a grouping with itself.
//!
//! The measured domains are compared with every other grouping of the same nodes. The minority is
//! named, with the domain it belongs to where the other side knows one.

use std::collections::{BTreeMap, BTreeSet};

use super::context::{MAX_DOMAIN_NODES, ReconcileContext};
use super::grouping_comparison::{GroupingComparison, StrayNodes, compare_groupings};
use super::groupings::Grouping;
use super::messages::{count_of, is_or_are, list_nodes, list_some, new_disagreement};
use super::{cliques, identity};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{NodeGroupKind, SourceFamily, SourceKind};

/// Whether this is one of Slurm's own views of its topology; a separate check compares those.
pub(super) fn is_slurm_topology(kind: SourceKind) -> bool {
    matches!(
        kind,
        SourceKind::SlurmTopology
            | SourceKind::SlurmTopologyYaml
            | SourceKind::SlurmTopologyConf
            | SourceKind::SlurmNodes
    )
}

/// Compares the measured domains with every other grouping.
pub(super) fn check_domains_against_groups(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    let stale = cliques::stale_label_nodes(view);
    for (at, grouping) in view.groupings.iter().enumerate() {
        if grouping.kind != NodeGroupKind::Domain {
            continue;
        }
        // A label that contradicts the driver is reported as a separate cause.
        let outdated = grouping.cliques && !grouping.is_reported();
        let nodes =
            grouping.set_by_node.keys().copied().filter(|n| !outdated || !stale.contains(n));
        let ours = |node: &NodeName| {
            let domain = view.placement.domain_of(node)?;
            let origin = view.placement.origin[domain]?.0;
            let own = origin == at
                || is_slurm_topology(view.groupings[origin].source)
                    && is_slurm_topology(grouping.source);
            (!own).then_some(domain)
        };
        let comparison =
            compare_groupings(nodes, ours, |node| grouping.set_by_node.get(node).copied());
        for strays in &comparison.strays {
            if grouping.cliques {
                report_clique_strays(view, grouping, &comparison, strays, found);
            } else {
                report_group_strays(view, grouping, &comparison, strays, found);
            }
        }
        for (set, domains) in comparison.joined_sets() {
            // The remainder of a group whose majority is in another domain is reported as
            // `node-extra`, and no source claims it separately.
            let is_rest =
                |at: &usize| view.home_domain(*at).is_some_and(|(home, _)| domains.contains(&home));
            let domains: Vec<usize> = domains.iter().copied().filter(|at| !is_rest(at)).collect();
            if domains.len() < 2 {
                continue;
            }
            let disagreement = if grouping.cliques {
                describe_merged_cliques(view, grouping, set, &domains)
            } else {
                describe_nested_domains(view, grouping, set, &domains)
            };
            found.push(disagreement);
        }
    }
}

/// `split-clique` where the cliques share a ClusterUUID, else `block-against-clique`.
fn report_clique_strays(
    view: &ReconcileContext<'_>,
    grouping: &Grouping<'_>,
    comparison: &GroupingComparison<'_>,
    strays: &StrayNodes<'_>,
    found: &mut Vec<Disagreement>,
) {
    let uuid = |set: usize| identity::parse_clique(grouping.sets[set].name).map(|(uuid, _)| uuid);
    let first = strays.main.or_else(|| strays.elsewhere.keys().next().copied());
    let whole = first.and_then(uuid);
    let (split, foreign): (BTreeMap<_, _>, BTreeMap<_, _>) =
        strays.elsewhere.iter().partition(|(set, _)| uuid(**set) == whole);
    let domain = view.domain_name(strays.set);
    // Without a main clique, one foreign clique makes all of them foreign.
    let (split, foreign) = match strays.main {
        None if !foreign.is_empty() => (BTreeMap::new(), strays.elsewhere.iter().collect()),
        _ => (split, foreign),
    };
    for (class, parts) in
        [(DisagreementClass::SplitClique, split), (DisagreementClass::BlockAgainstClique, foreign)]
    {
        if parts.is_empty() {
            continue;
        }
        let nodes: Vec<&NodeName> = parts.values().flat_map(|n| n.iter().copied()).collect();
        let names = parts.keys().map(|set| grouping.sets[**set].name);
        let summary = match strays.main {
            Some(main) => format!(
                "{} of {domain} {} in clique {}, most of {domain} is in {}{}",
                list_nodes(nodes.iter().copied()),
                is_or_are(nodes.len()),
                list_some(names),
                grouping.sets[main].name,
                describe_home(view, comparison, parts.keys().map(|set| **set), strays.set)
            ),
            None => format!(
                "{domain} spans {} cliques, none with most of its nodes: {}",
                strays.elsewhere.len(),
                list_some(names)
            ),
        };
        let remedy = if class == DisagreementClass::SplitClique {
            "one ClusterUUID with several CliqueIds is a partitioned fabric: tools that group by \
             the UUID alone see one domain; align the claim with the partitions, or remove the \
             partitions"
        } else {
            "find out how these nodes are cabled (fabricgate node facts), then correct the claim"
        };
        let disagreement = new_disagreement(class, DisagreementSeverity::Contradiction, summary)
            .in_domain(domain)
            .with_nodes(nodes)
            .with_remedy(remedy);
        found.push(add_stray_sides(view, grouping, strays, disagreement));
    }
}

/// `domains-disagree`: two claims, neither of which is a clique.
fn report_group_strays(
    view: &ReconcileContext<'_>,
    grouping: &Grouping<'_>,
    comparison: &GroupingComparison<'_>,
    strays: &StrayNodes<'_>,
    found: &mut Vec<Disagreement>,
) {
    let domain = view.domain_name(strays.set);
    let nodes: Vec<&NodeName> = strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
    let names = list_some(strays.elsewhere.keys().map(|set| grouping.sets[*set].name));
    let noun = grouping.noun();
    // Sets within the domain are a finer division, not a different one.
    let inside = |set: &usize| {
        let members = &grouping.sets[*set].nodes;
        members.iter().all(|node| view.placement.domain_of(node).is_none_or(|at| at == strays.set))
    };
    let is_finer = strays.elsewhere.keys().chain(&strays.main).all(inside);
    let severity = match is_finer {
        // A level below domains is finer on purpose.
        true if noun.contains("sub-domain") => DisagreementSeverity::Note,
        // Nodes that do not reach each other contradict every grouping level.
        true if grouping.source == SourceKind::MeasuredRun => DisagreementSeverity::Contradiction,
        true => DisagreementSeverity::Doubt,
        false => DisagreementSeverity::Contradiction,
    };
    let summary = match strays.main {
        Some(main) => format!(
            "{} of {domain} {} in {noun} {names} by {}, most of {domain} is in {}{}",
            list_nodes(nodes.iter().copied()),
            is_or_are(nodes.len()),
            grouping.source.label(),
            grouping.sets[main].name,
            describe_home(view, comparison, strays.elsewhere.keys().copied(), strays.set)
        ),
        None => format!(
            "{domain} is several {noun}s by {}, none with most of its nodes: {names}",
            grouping.source.label()
        ),
    };
    // A source that copied the ClusterUUID from the driver repeats the clique's claim.
    let repeats = strays.elsewhere.iter().all(|(set, nodes)| {
        let uuid = identity::find_uuid(grouping.sets[*set].name).map(str::to_owned);
        uuid.is_some() && nodes.iter().all(|node| view.cluster_uuids(node).any(|own| own == uuid))
    });
    let class = if repeats {
        DisagreementClass::BlockAgainstClique
    } else {
        DisagreementClass::DomainsDisagree
    };
    let disagreement =
        new_disagreement(class, severity, summary).in_domain(domain).with_nodes(nodes).with_remedy(
            "query the nodes themselves (fabricgate node facts), then correct the wrong side",
        );
    found.push(add_stray_sides(view, grouping, strays, disagreement));
}

/// The main domain of these sets, if it is not this one.
fn describe_home(
    view: &ReconcileContext<'_>,
    comparison: &GroupingComparison<'_>,
    sets: impl Iterator<Item = usize>,
    not: usize,
) -> String {
    let homes = sets.filter_map(|set| comparison.mains.get(&set)).flatten();
    let homes: BTreeSet<&str> =
        homes.filter(|at| **at != not).map(|at| view.domain_name(*at).as_str()).collect();
    if homes.is_empty() { String::new() } else { format!(", together with {}", list_some(homes)) }
}

fn add_stray_sides(
    view: &ReconcileContext<'_>,
    grouping: &Grouping<'_>,
    strays: &StrayNodes<'_>,
    disagreement: Disagreement,
) -> Disagreement {
    let domain = &view.placement.domains[strays.set];
    let whole = format!("{} are {}", count_of(domain.nodes.len(), "node"), domain.name);
    let disagreement =
        view.claim_side(strays.set, whole).into_iter().fold(disagreement, Disagreement::with_side);
    let parts = strays.elsewhere.iter().map(|(set, nodes)| {
        let nodes = list_nodes(nodes.iter().copied());
        let statement = format!("{nodes} in {} {}", grouping.noun(), grouping.sets[*set].name);
        grouping.to_side(view.reports, *set, statement)
    });
    parts.take(6).fold(disagreement, Disagreement::with_side)
}

/// `merged-cliques`: one clique over several claimed domains.
fn describe_merged_cliques(
    view: &ReconcileContext<'_>,
    grouping: &Grouping<'_>,
    set: usize,
    domains: &[usize],
) -> Disagreement {
    let clique = &grouping.sets[set];
    let is_default =
        identity::parse_clique(clique.name).is_some_and(|(_, id)| id == identity::DEFAULT_CLIQUE);
    // A site may claim several blocks inside one fabric on purpose.
    let too_large = MAX_DOMAIN_NODES < clique.nodes.len();
    let severity = if is_default || too_large {
        DisagreementSeverity::Contradiction
    } else {
        DisagreementSeverity::Doubt
    };
    let names: Vec<&str> = domains.iter().map(|at| view.domain_name(*at).as_str()).collect();
    let why = match (too_large, is_default) {
        (true, _) => {
            format!(", {} nodes, more than one NVLink domain can have", clique.nodes.len())
        }
        (false, true) => ", with the default CliqueId that separate racks share".to_owned(),
        (false, false) => String::new(),
    };
    let summary = format!(
        "{} are claimed separately but are all in clique \
            {}{why}",
        list_some(&names),
        clique.name
    );
    let largest = domains.iter().max_by_key(|at| view.placement.domains[**at].nodes.len());
    let others = domains.iter().filter(|at| Some(at) != largest.as_ref());
    let nodes: Vec<&NodeName> = others
        .flat_map(|at| &view.placement.domains[*at].nodes)
        .filter(|node| grouping.set_by_node.get(node) == Some(&set))
        .collect();
    let disagreement = new_disagreement(DisagreementClass::MergedCliques, severity, summary)
        .with_nodes(nodes)
        .with_remedy(
            "measure a copy between one node of each (fabricgate audit): either they are one \
             domain, or tools that group by clique merge nodes that cannot reach each other",
        );
    let disagreement = largest
        .into_iter()
        .fold(disagreement, |disagreement, at| disagreement.in_domain(view.domain_name(*at)));
    add_joined_sides(view, grouping, set, domains, disagreement)
}

/// `domains-nested`: several domains are one group of another source.
fn describe_nested_domains(
    view: &ReconcileContext<'_>,
    grouping: &Grouping<'_>,
    set: usize,
    domains: &[usize],
) -> Disagreement {
    let names: Vec<&str> = domains.iter().map(|at| view.domain_name(*at).as_str()).collect();
    // A framework acts on it: it places its jobs as if all nodes were reachable.
    let acts = grouping.source.family() == SourceFamily::Frameworks;
    let racks = domains.iter().any(|at| view.spans_nodes(*at) == Some(true));
    let in_reach = view.share_a_clique(grouping.sets[set].nodes.iter().copied());
    let severity = if acts && racks && !in_reach {
        DisagreementSeverity::Contradiction
    } else {
        DisagreementSeverity::Note
    };
    let summary = format!(
        "{} are claimed separately but are one {} {} by {}",
        list_some(&names),
        grouping.noun(),
        grouping.sets[set].name,
        grouping.source.label()
    );
    let disagreement = new_disagreement(DisagreementClass::DomainsNested, severity, summary)
        .in_domain(view.domain_name(domains[0]))
        .with_remedy("not a fault if the group is larger than an NVLink domain on purpose");
    add_joined_sides(view, grouping, set, domains, disagreement)
}

fn add_joined_sides(
    view: &ReconcileContext<'_>,
    grouping: &Grouping<'_>,
    set: usize,
    domains: &[usize],
    disagreement: Disagreement,
) -> Disagreement {
    let all = count_of(grouping.sets[set].nodes.len(), "node");
    let statement = format!("{all} in {} {}", grouping.noun(), grouping.sets[set].name);
    let disagreement = disagreement.with_side(grouping.to_side(view.reports, set, statement));
    let claims = domains.iter().take(4).filter_map(|at| {
        let nodes = count_of(view.placement.domains[*at].nodes.len(), "node");
        view.claim_side(*at, format!("{nodes} are {}", view.domain_name(*at)))
    });
    claims.fold(disagreement, Disagreement::with_side)
}

/// `split-clique`, as a remark: a ClusterUUID with several CliqueIds that no claimed domain
/// mixes.
pub(super) fn check_split_fabrics(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings.iter().filter(|g| g.cliques) {
        let mut fabrics: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, set) in grouping.sets.iter().enumerate() {
            if let Some((uuid, _)) = identity::parse_clique(set.name) {
                fabrics.entry(uuid).or_default().push(at);
            }
        }
        for (uuid, sets) in fabrics.iter().filter(|(_, sets)| 1 < sets.len()) {
            let nodes = || sets.iter().flat_map(|set| grouping.sets[*set].nodes.iter().copied());
            let mixed = nodes().filter_map(|node| {
                Some((view.placement.domain_of(node)?, grouping.set_by_node.get(node)?))
            });
            let mixed: BTreeSet<(usize, &usize)> = mixed.collect();
            let domains: BTreeSet<usize> = mixed.iter().map(|(domain, _)| *domain).collect();
            if domains.len() < mixed.len() {
                continue;
            }
            let names = list_some(sets.iter().map(|set| grouping.sets[*set].name));
            let summary = format!(
                "the fabric {uuid} is partitioned into {} cliques: tools that group by \
                 ClusterUUID alone see one domain of {}",
                sets.len(),
                count_of(nodes().count(), "node")
            );
            let statement = format!("cliques {names}");
            found.push(
                new_disagreement(
                    DisagreementClass::SplitClique,
                    DisagreementSeverity::Note,
                    summary,
                )
                .with_side(grouping.to_side(view.reports, sets[0], statement))
                .with_remedy("group by ClusterUUID and CliqueId together"),
            );
        }
    }
}

/// `node-in-two-domains`: one grouping has a node in two of its sets.
pub(super) fn check_nodes_in_two_domains(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    for grouping in view.groupings.iter().filter(|g| g.kind == NodeGroupKind::Domain) {
        let mut pairs: BTreeMap<(usize, usize), Vec<&NodeName>> = BTreeMap::new();
        for (node, first, second) in &grouping.nodes_in_two_sets {
            pairs.entry((*first, *second)).or_default().push(node);
        }
        for ((first, second), nodes) in pairs {
            let (a, b) = (grouping.sets[first].name, grouping.sets[second].name);
            let names = list_nodes(nodes.iter().copied());
            let noun = grouping.noun();
            let summary = format!(
                "{names} {} in two {noun}s by {}: {a} and {b}",
                is_or_are(nodes.len()),
                grouping.source.label()
            );
            let disagreement = new_disagreement(
                DisagreementClass::NodeInTwoDomains,
                DisagreementSeverity::Contradiction,
                summary,
            )
            .with_nodes(nodes.iter().copied())
            .with_side(grouping.to_side(view.reports, first, format!("{names} in {noun} {a}")))
            .with_side(grouping.to_side(view.reports, second, format!("{names} in {noun} {b}")))
            .with_remedy("a node belongs to one place: correct the source");
            let domain = nodes.first().and_then(|node| view.domain_of(node));
            found.push(domain.into_iter().fold(disagreement, Disagreement::in_domain));
        }
    }
}
