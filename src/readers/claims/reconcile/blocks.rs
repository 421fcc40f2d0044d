//! Groupings against each other: blocks against cliques, files against
//! schedulers, and a grouping against itself.
//!
//! What is measured is compared with every other way of grouping the same
//! nodes. The minority is named, and its home where the other side knows one.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::cliques;
use super::compare::Comparison;
use super::compare::Strays;
use super::compare::compare;
use super::groupings::Grouping;
use super::identity;
use super::view::LARGEST_DOMAIN;
use super::view::View;
use super::words::count;
use super::words::disagreement;
use super::words::is;
use super::words::listed;
use super::words::some;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Family;
use model::said::GroupKind;
use model::said::SourceKind;

/// Whether this is one of Slurm's own views of its topology; they are held
/// against each other apart.
pub(super) fn is_slurm_topology(kind: SourceKind) -> bool {
    matches!(
        kind,
        SourceKind::SlurmTopology
            | SourceKind::SlurmTopologyYaml
            | SourceKind::SlurmTopologyConf
            | SourceKind::SlurmNodes
    )
}

/// What is measured against every other grouping.
pub(super) fn domains_against_groups(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let stale = cliques::stale_nodes(view);
    for (at, grouping) in view.groupings.iter().enumerate() {
        if grouping.kind != GroupKind::Domain {
            continue;
        }
        // A label that its driver contradicts is one cause, told as such.
        let outdated = grouping.cliques && !grouping.is_reported();
        let nodes = grouping.of.keys().copied().filter(|n| !outdated || !stale.contains(n));
        let ours = |node: &NodeName| {
            let domain = view.placed.of(node)?;
            let origin = view.placed.origin[domain]?.0;
            let own = origin == at
                || is_slurm_topology(view.groupings[origin].source)
                    && is_slurm_topology(grouping.source);
            (!own).then_some(domain)
        };
        let comparison = compare(nodes, ours, |node| grouping.of.get(node).copied());
        for strays in &comparison.strays {
            if grouping.cliques {
                clique_strays(view, grouping, &comparison, strays, found);
            } else {
                group_strays(view, grouping, &comparison, strays, found);
            }
        }
        for (set, domains) in comparison.joined() {
            // What is left over of a group that another domain has most of is
            // told as `node-extra`, and claimed apart by nobody.
            let is_rest =
                |at: &usize| view.home(*at).is_some_and(|(home, _)| domains.contains(&home));
            let domains: Vec<usize> = domains.iter().copied().filter(|at| !is_rest(at)).collect();
            if domains.len() < 2 {
                continue;
            }
            let told = if grouping.cliques {
                merged(view, grouping, set, &domains)
            } else {
                nested(view, grouping, set, &domains)
            };
            found.push(told);
        }
    }
}

/// `split-clique` where the cliques share a ClusterUUID, else
/// `block-against-clique`.
fn clique_strays(
    view: &View<'_>,
    grouping: &Grouping<'_>,
    comparison: &Comparison<'_>,
    strays: &Strays<'_>,
    found: &mut Vec<Disagreement>,
) {
    let uuid = |set: usize| identity::clique(grouping.sets[set].name).map(|(uuid, _)| uuid);
    let first = strays.main.or_else(|| strays.elsewhere.keys().next().copied());
    let whole = first.and_then(uuid);
    let (split, foreign): (BTreeMap<_, _>, BTreeMap<_, _>) =
        strays.elsewhere.iter().partition(|(set, _)| uuid(**set) == whole);
    let domain = view.domain(strays.set);
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
                listed(nodes.iter().copied()),
                is(nodes.len()),
                some(names),
                grouping.sets[main].name,
                home(view, comparison, parts.keys().map(|set| **set), strays.set)
            ),
            None => format!(
                "{domain} spans {} cliques and none holds most of its nodes: {}",
                strays.elsewhere.len(),
                some(names)
            ),
        };
        let remedy = if class == DisagreementClass::SplitClique {
            "one ClusterUUID with several CliqueIds is a partitioned fabric: what keys on the UUID alone sees \
             one domain; make the claim follow the partitions, or undo them"
        } else {
            "find out where these nodes are cabled (fabricgate node facts), then correct the claim"
        };
        let told = disagreement(class, Severity::Contradiction, summary)
            .in_domain(domain)
            .about(nodes)
            .remedy(remedy);
        found.push(sides(view, grouping, strays, told));
    }
}

/// `domains-disagree`: two claims that are no cliques.
fn group_strays(
    view: &View<'_>,
    grouping: &Grouping<'_>,
    comparison: &Comparison<'_>,
    strays: &Strays<'_>,
    found: &mut Vec<Disagreement>,
) {
    let domain = view.domain(strays.set);
    let nodes: Vec<&NodeName> = strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
    let names = some(strays.elsewhere.keys().map(|set| grouping.sets[*set].name));
    let noun = grouping.noun();
    // Parts that lie inside the domain are a finer map, not another one.
    let inside = |set: &usize| {
        let members = &grouping.sets[*set].nodes;
        members.iter().all(|node| view.placed.of(node).is_none_or(|at| at == strays.set))
    };
    let is_finer = strays.elsewhere.keys().chain(&strays.main).all(inside);
    let severity = match is_finer {
        // A level below domains is finer on purpose.
        true if noun.contains("sub-domain") => Severity::Note,
        // What does not reach each other is no level of anything.
        true if grouping.source == SourceKind::MeasuredRun => Severity::Contradiction,
        true => Severity::Doubt,
        false => Severity::Contradiction,
    };
    let summary = match strays.main {
        Some(main) => format!(
            "{} of {domain} {} in {noun} {names} by {}, most of {domain} is in {}{}",
            listed(nodes.iter().copied()),
            is(nodes.len()),
            grouping.source.words(),
            grouping.sets[main].name,
            home(view, comparison, strays.elsewhere.keys().copied(), strays.set)
        ),
        None => format!(
            "{domain} is several {noun}s by {}, none with most of its nodes: {names}",
            grouping.source.words()
        ),
    };
    // Who took the ClusterUUID over from the driver repeats what its clique says.
    let repeats = strays.elsewhere.iter().all(|(set, nodes)| {
        let uuid = identity::uuid_in(grouping.sets[*set].name).map(str::to_owned);
        uuid.is_some() && nodes.iter().all(|node| view.cluster_uuids(node).any(|own| own == uuid))
    });
    let class = if repeats {
        DisagreementClass::BlockAgainstClique
    } else {
        DisagreementClass::DomainsDisagree
    };
    let told = disagreement(class, severity, summary).in_domain(domain).about(nodes).remedy(
        "ask the nodes themselves (fabricgate node facts), then correct the side that is wrong",
    );
    found.push(sides(view, grouping, strays, told));
}

/// Whose these sets are mainly, where that is another domain than this one.
fn home(
    view: &View<'_>,
    comparison: &Comparison<'_>,
    sets: impl Iterator<Item = usize>,
    not: usize,
) -> String {
    let homes = sets.filter_map(|set| comparison.mains.get(&set)).flatten();
    let homes: BTreeSet<&str> =
        homes.filter(|at| **at != not).map(|at| view.domain(*at).as_str()).collect();
    if homes.is_empty() { String::new() } else { format!(", and that is where {} is", some(homes)) }
}

fn sides(
    view: &View<'_>,
    grouping: &Grouping<'_>,
    strays: &Strays<'_>,
    told: Disagreement,
) -> Disagreement {
    let domain = &view.placed.domains[strays.set];
    let whole = format!("{} are {}", count(domain.nodes.len(), "node"), domain.name);
    let told = view.claim(strays.set, whole).into_iter().fold(told, Disagreement::side);
    let parts = strays.elsewhere.iter().map(|(set, nodes)| {
        let nodes = listed(nodes.iter().copied());
        let says = format!("{nodes} in {} {}", grouping.noun(), grouping.sets[*set].name);
        grouping.side(view.said, *set, says)
    });
    parts.take(6).fold(told, Disagreement::side)
}

/// `merged-cliques`: one clique over several claimed domains.
fn merged(view: &View<'_>, grouping: &Grouping<'_>, set: usize, domains: &[usize]) -> Disagreement {
    let clique = &grouping.sets[set];
    let is_default =
        identity::clique(clique.name).is_some_and(|(_, id)| id == identity::DEFAULT_CLIQUE);
    // A site may claim several blocks inside one fabric on purpose.
    let too_large = LARGEST_DOMAIN < clique.nodes.len();
    let severity = if is_default || too_large { Severity::Contradiction } else { Severity::Doubt };
    let names: Vec<&str> = domains.iter().map(|at| view.domain(*at).as_str()).collect();
    let why = match (too_large, is_default) {
        (true, _) => {
            format!(", {} nodes, more than one NVLink domain can have", clique.nodes.len())
        }
        (false, true) => ", with the default CliqueId that racks share which never met".to_owned(),
        (false, false) => String::new(),
    };
    let summary =
        format!("{} are claimed apart and all in clique {}{why}", some(&names), clique.name);
    let largest = domains.iter().max_by_key(|at| view.placed.domains[**at].nodes.len());
    let others = domains.iter().filter(|at| Some(at) != largest.as_ref());
    let nodes: Vec<&NodeName> = others
        .flat_map(|at| &view.placed.domains[*at].nodes)
        .filter(|node| grouping.of.get(node) == Some(&set))
        .collect();
    let told = disagreement(DisagreementClass::MergedCliques, severity, summary).about(nodes).remedy(
        "copy between one node of each (fabricgate audit): either they are one domain, or what keys on the \
         clique merges what cannot reach each other",
    );
    let told = largest.into_iter().fold(told, |told, at| told.in_domain(view.domain(*at)));
    joined_sides(view, grouping, set, domains, told)
}

/// `domains-nested`: several domains are one group of another source.
fn nested(view: &View<'_>, grouping: &Grouping<'_>, set: usize, domains: &[usize]) -> Disagreement {
    let names: Vec<&str> = domains.iter().map(|at| view.domain(*at).as_str()).collect();
    // A framework acts on it: its jobs are placed as if all were in reach.
    let acts = grouping.source.family() == Family::Frameworks;
    let racks = domains.iter().any(|at| view.spans_nodes(*at) == Some(true));
    let in_reach = view.share_a_clique(grouping.sets[set].nodes.iter().copied());
    let severity =
        if acts && racks && !in_reach { Severity::Contradiction } else { Severity::Note };
    let summary = format!(
        "{} are claimed apart and are one {} {} by {}",
        some(&names),
        grouping.noun(),
        grouping.sets[set].name,
        grouping.source.words()
    );
    let told = disagreement(DisagreementClass::DomainsNested, severity, summary)
        .in_domain(view.domain(domains[0]))
        .remedy("no fault where the group is larger than an NVLink domain on purpose");
    joined_sides(view, grouping, set, domains, told)
}

fn joined_sides(
    view: &View<'_>,
    grouping: &Grouping<'_>,
    set: usize,
    domains: &[usize],
    told: Disagreement,
) -> Disagreement {
    let all = count(grouping.sets[set].nodes.len(), "node");
    let says = format!("{all} in {} {}", grouping.noun(), grouping.sets[set].name);
    let told = told.side(grouping.side(view.said, set, says));
    let claims = domains.iter().take(4).filter_map(|at| {
        let nodes = count(view.placed.domains[*at].nodes.len(), "node");
        view.claim(*at, format!("{nodes} are {}", view.domain(*at)))
    });
    claims.fold(told, Disagreement::side)
}

/// `split-clique`, as a remark: a ClusterUUID with several CliqueIds that no
/// claimed domain mixes.
pub(super) fn split_fabrics(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings.iter().filter(|g| g.cliques) {
        let mut fabrics: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, set) in grouping.sets.iter().enumerate() {
            if let Some((uuid, _)) = identity::clique(set.name) {
                fabrics.entry(uuid).or_default().push(at);
            }
        }
        for (uuid, sets) in fabrics.iter().filter(|(_, sets)| 1 < sets.len()) {
            let nodes = || sets.iter().flat_map(|set| grouping.sets[*set].nodes.iter().copied());
            let mixed =
                nodes().filter_map(|node| Some((view.placed.of(node)?, grouping.of.get(node)?)));
            let mixed: BTreeSet<(usize, &usize)> = mixed.collect();
            let domains: BTreeSet<usize> = mixed.iter().map(|(domain, _)| *domain).collect();
            if domains.len() < mixed.len() {
                continue;
            }
            let names = some(sets.iter().map(|set| grouping.sets[*set].name));
            let summary = format!(
                "the fabric {uuid} is partitioned into {} cliques: what keys on the ClusterUUID alone sees \
                 one domain of {}",
                sets.len(),
                count(nodes().count(), "node")
            );
            let says = format!("cliques {names}");
            found.push(
                disagreement(DisagreementClass::SplitClique, Severity::Note, summary)
                    .side(grouping.side(view.said, sets[0], says))
                    .remedy("key on ClusterUUID and CliqueId together"),
            );
        }
    }
}

/// `node-in-two-domains`: one grouping has a node in two of its sets.
pub(super) fn twice(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings.iter().filter(|g| g.kind == GroupKind::Domain) {
        let mut pairs: BTreeMap<(usize, usize), Vec<&NodeName>> = BTreeMap::new();
        for (node, first, second) in &grouping.twice {
            pairs.entry((*first, *second)).or_default().push(node);
        }
        for ((first, second), nodes) in pairs {
            let (a, b) = (grouping.sets[first].name, grouping.sets[second].name);
            let names = listed(nodes.iter().copied());
            let noun = grouping.noun();
            let summary = format!(
                "{names} {} in two {noun}s by {}: {a} and {b}",
                is(nodes.len()),
                grouping.source.words()
            );
            let told =
                disagreement(DisagreementClass::NodeInTwoDomains, Severity::Contradiction, summary)
                    .about(nodes.iter().copied())
                    .side(grouping.side(view.said, first, format!("{names} in {noun} {a}")))
                    .side(grouping.side(view.said, second, format!("{names} in {noun} {b}")))
                    .remedy("a node has one place: correct the source");
            let domain = nodes.first().and_then(|node| view.domain_of(node));
            found.push(domain.into_iter().fold(told, Disagreement::in_domain));
        }
    }
}
