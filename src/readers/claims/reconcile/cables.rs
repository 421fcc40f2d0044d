//! Documented cables, compared with the detected neighbours.
//!
//! Swapped cables do not change the bandwidth of an idle network; only the name of the neighbour
//! reveals them.

use std::collections::{BTreeMap, BTreeSet};

use super::context::ReconcileContext;
use super::domains::disjoint_leaves;
use super::grouping_comparison::compare_groupings;
use super::groupings::Grouping;
use super::messages::{count_of, list_nodes, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NicReport, NodeGroupKind, SourceKind};

/// One end whose documented and detected cable differ.
struct CablePair<'s> {
    node: &'s NodeName,
    plan: (usize, &'s NicReport),
    observed: (usize, &'s NicReport),
}

fn is_same_leaf(one: &str, other: &str) -> bool {
    let (one, other) = (one.to_lowercase(), other.to_lowercase());
    NodeName::from(one).matches_host(&other)
}

/// Port names have long and short forms: `Ethernet1/7`, `Eth1/7`, `swp7`.
fn is_same_port(one: &str, other: &str) -> bool {
    let digits = |port: &str| -> Vec<String> {
        let parts = port.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
        parts.map(|part| part.trim_start_matches('0').to_owned()).collect()
    };
    let (a, b) = (digits(one), digits(other));
    one.eq_ignore_ascii_case(other) || (!a.is_empty() && a == b)
}

fn port_key(nic: &NicReport) -> Option<(String, String)> {
    let leaf = nic.leaf.as_deref()?.to_lowercase();
    let leaf = leaf.split('.').next().unwrap_or_default().to_owned();
    let port = nic.port.as_deref()?;
    let digits: Vec<&str> =
        port.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
    Some((leaf, digits.join("/")))
}

fn describe_port(nic: &NicReport) -> String {
    let leaf = nic.leaf.as_deref().unwrap_or("?");
    match &nic.port {
        Some(port) => format!("leaf {leaf} port {port}"),
        None => format!("leaf {leaf}"),
    }
}

/// Every end that both sources know, and whether they agree.
fn cable_pairs<'s>(view: &ReconcileContext<'s>) -> Vec<(CablePair<'s>, bool)> {
    let mut plans: BTreeMap<&NodeName, Vec<(usize, &NicReport)>> = BTreeMap::new();
    let mut sights: BTreeMap<&NodeName, Vec<(usize, &NicReport)>> = BTreeMap::new();
    for (source, node, node_report) in view.node_reports() {
        let kind = view.reports[source].source.kind;
        let of = match kind {
            SourceKind::Cabling => &mut plans,
            SourceKind::Neighbours | SourceKind::NodeFacts => &mut sights,
            _ => continue,
        };
        let cabled = node_report.nics.iter().filter(|nic| nic.leaf.is_some());
        of.entry(node).or_default().extend(cabled.map(|nic| (source, nic)));
    }
    let mut pairs = Vec::new();
    for (node, plan) in &plans {
        let Some(seen) = sights.get(node) else { continue };
        for own in plan {
            let equal = |of: fn(&NicReport) -> Option<&String>| {
                let wanted = of(own.1)?;
                seen.iter().find(|(_, nic)| of(nic).is_some_and(|o| o.eq_ignore_ascii_case(wanted)))
            };
            let by_guid = equal(|nic| nic.guid.as_ref());
            let sight = by_guid
                .or_else(|| equal(|nic| nic.device.as_ref()))
                .or_else(|| equal(|nic| nic.rail.as_ref()));
            let Some(sight) = sight else { continue };
            let leaf = |nic: &NicReport| nic.leaf.clone().unwrap_or_default();
            let ports = own.1.port.as_deref().zip(sight.1.port.as_deref());
            let agree = is_same_leaf(&leaf(own.1), &leaf(sight.1))
                && ports.is_none_or(|(one, other)| is_same_port(one, other));
            pairs.push((CablePair { node, plan: *own, observed: *sight }, agree));
        }
    }
    pairs
}

fn add_cable_sides(
    view: &ReconcileContext<'_>,
    cable: &CablePair<'_>,
    disagreement: Disagreement,
) -> Disagreement {
    let nic = cable.plan.1;
    let what = nic.device.as_deref().or(nic.rail.as_deref()).unwrap_or("its NIC");
    let word = |(source, nic): (usize, &NicReport), or: ClaimBasis| {
        let basis = nic.basis.clone().unwrap_or(or);
        let statement = format!("{} {what} at {}", cable.node, describe_port(nic));
        view.source_side(source, nic.at.as_deref(), basis, statement)
    };
    disagreement
        .with_side(word(cable.plan, ClaimBasis::Asserted))
        .with_side(word(cable.observed, ClaimBasis::Reported))
}

/// `hosts-swapped`, `rails-swapped`, `leaf-mislabelled` and `leaf-against-neighbour`.
pub(super) fn check_neighbours(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let pairs = cable_pairs(view);
    let wrong: Vec<&CablePair<'_>> =
        pairs.iter().filter(|(_, agree)| !agree).map(|(c, _)| c).collect();
    let mut by_plan: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (at, cable) in wrong.iter().enumerate() {
        if let Some(place) = port_key(cable.plan.1) {
            by_plan.insert(place, at);
        }
    }
    let mut reported = BTreeSet::new();
    let mut swapped: BTreeMap<(&NodeName, &NodeName), Vec<usize>> = BTreeMap::new();
    for (at, cable) in wrong.iter().enumerate() {
        let Some(other) = port_key(cable.observed.1).and_then(|place| by_plan.get(&place).copied())
        else {
            continue;
        };
        let back = port_key(wrong[other].observed.1) == port_key(cable.plan.1);
        if back && at < other {
            let (a, b) = (cable.node, wrong[other].node);
            let pair = if a < b { (a, b) } else { (b, a) };
            swapped.entry(pair).or_default().extend([at, other]);
            reported.extend([at, other]);
        }
    }
    for ((a, b), cables) in &swapped {
        let ends = count_of(cables.len() / 2, "cable pair");
        let (class, summary) = if a == b {
            (DisagreementClass::RailsSwapped, format!("{a}: {ends} swapped between its own rails"))
        } else {
            (
                DisagreementClass::HostsSwapped,
                format!("{a} and {b}: {ends} swapped, each host is on the other's ports"),
            )
        };
        let one = new_disagreement(class, DisagreementSeverity::Contradiction, summary)
            .with_nodes([*a, *b])
            .with_remedy("swap the cables back, or correct the cabling file");
        found.push(
            cables.iter().take(2).fold(one, |one, at| add_cable_sides(view, wrong[*at], one)),
        );
    }
    let leaf = |nic: &NicReport| nic.leaf.clone().unwrap_or_default();
    let mut healthy: BTreeSet<String> = BTreeSet::new();
    for (cable, _) in
        pairs.iter().filter(|(c, _)| is_same_leaf(&leaf(c.plan.1), &leaf(c.observed.1)))
    {
        healthy.insert(leaf(cable.plan.1));
    }
    let mut moved: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    let mut goals: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (at, cable) in wrong.iter().enumerate() {
        let (from, to) = (leaf(cable.plan.1), leaf(cable.observed.1));
        goals.entry(from.clone()).or_default().insert(to.clone());
        if !reported.contains(&at) {
            moved.entry((from, to)).or_default().push(at);
        }
    }
    for ((from, to), cables) in moved {
        let nodes: BTreeSet<&NodeName> = cables.iter().map(|at| wrong[*at].node).collect();
        let names = list_nodes(nodes.iter().copied());
        // All cables of a leaf are elsewhere: the name of the leaf is wrong.
        let whole = !healthy.contains(&from) && goals[&from].len() == 1 && 1 < nodes.len();
        let (class, summary) = if from == to {
            let summary =
                format!("{names}: on other ports of leaf {from} than in the cabling file");
            (DisagreementClass::LeafAgainstNeighbour, summary)
        } else if whole {
            let summary = format!(
                "all {} detected for leaf {from} are on {to}: the two names are swapped",
                count_of(cables.len(), "cable")
            );
            (DisagreementClass::LeafMislabelled, summary)
        } else {
            let summary = format!("{names}: on leaf {from} in the cabling file, detected on {to}");
            (DisagreementClass::LeafAgainstNeighbour, summary)
        };
        let one = new_disagreement(class, DisagreementSeverity::Contradiction, summary)
            .with_nodes(nodes)
            .with_remedy("check the cable and its label; the neighbour is the actual connection");
        found.push(
            cables.iter().take(2).fold(one, |one, at| add_cable_sides(view, wrong[*at], one)),
        );
    }
}

/// `leaves-disagree`: two sources group nodes into leaves differently.
pub(super) fn check_leaf_groups(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let leaves: Vec<&Grouping<'_>> =
        view.groupings.iter().filter(|g| g.kind == NodeGroupKind::Leaf).collect();
    let Some((first, others)) = leaves.split_first() else { return };
    let seen = |g: &Grouping<'_>| {
        matches!(g.source, SourceKind::Cabling | SourceKind::Neighbours | SourceKind::NodeFacts)
    };
    let slurm = |g: &Grouping<'_>| super::grouping_conflicts::is_slurm_topology(g.source);
    // A cable that differs from the file is a separate cause.
    let of_cables = [
        DisagreementClass::HostsSwapped,
        DisagreementClass::RailsSwapped,
        DisagreementClass::LeafAgainstNeighbour,
    ];
    let reported: BTreeSet<NodeName> = found
        .iter()
        .filter(|one| of_cables.contains(&one.class))
        .flat_map(|one| one.nodes.clone())
        .collect();
    let own = disjoint_leaves(first);
    let place = |units: &[(&str, Vec<&NodeName>)]| -> BTreeMap<NodeName, usize> {
        let all = units.iter().enumerate();
        all.flat_map(|(at, (_, nodes))| nodes.iter().map(move |n| ((*n).clone(), at))).collect()
    };
    let ours = place(&own);
    for other in others {
        // Other checks compare cables with neighbours end by end, and Slurm's file with its
        // controller.
        if (seen(first) && seen(other)) || (slurm(first) && slurm(other)) {
            continue;
        }
        let their = disjoint_leaves(other);
        let theirs = place(&their);
        let comparison =
            compare_groupings(ours.keys(), |n| ours.get(n).copied(), |n| theirs.get(n).copied());
        for strays in &comparison.strays {
            let nodes: Vec<&NodeName> =
                strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
            if nodes.iter().all(|node| reported.contains(*node)) {
                continue;
            }
            let name = own[strays.set].0;
            let elsewhere = list_some(strays.elsewhere.keys().map(|set| their[*set].0));
            let summary = format!(
                "{} under leaf {name} by {}, under {elsewhere} by {}",
                list_nodes(nodes.iter().copied()),
                first.source.label(),
                other.source.label()
            );
            let set = |grouping: &Grouping<'_>, node: &NodeName| grouping.set_by_node[node];
            let one = new_disagreement(
                DisagreementClass::LeavesDisagree,
                DisagreementSeverity::Doubt,
                summary,
            )
            .with_side(first.to_side(view.reports, set(first, nodes[0]), format!("leaf {name}")))
            .with_side(other.to_side(
                view.reports,
                set(other, nodes[0]),
                format!("leaf {elsewhere}"),
            ))
            .with_remedy("query the neighbours of the nodes (LLDP, ibnetdiscover)");
            found.push(one.with_nodes(nodes));
        }
    }
}
