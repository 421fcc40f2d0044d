//! Brings the reports of sources into a common form.
//!
//! Sources represent a clique as a group, as the identity of a node, or as both; here each
//! becomes both. Nothing is dropped and nothing is judged.

use std::collections::{BTreeMap, BTreeSet};

use super::identity;
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, FabricReport, NodeGroup, NodeGroupKind, SourceKind, SourceReport,
};

/// Scheme of groups that are cliques.
pub(super) const CLIQUE_SCHEME: &str = "clique";
/// Scheme of leaves that are derived from the cables of single nodes.
const CABLE_LEAF_SCHEME: &str = "leaf";

/// Brings all reports into the common form.
pub(super) fn normalise_reports(reports: &mut [SourceReport]) {
    let yaml = reports
        .iter()
        .any(|s| s.source.kind == SourceKind::SlurmTopologyYaml && !s.groups.is_empty());
    for source in reports {
        // With a topology.yaml, Slurm does not read topology.conf (topology.yaml(5)).
        if yaml && source.source.kind == SourceKind::SlurmTopologyConf && !source.groups.is_empty()
        {
            source.groups.iter_mut().for_each(|group| group.in_force = false);
            let note = "a topology.yaml also exists: Slurm does not read this file";
            source.notes.push(note.to_owned());
        }
        lowercase_identities(source);
        add_identities(source);
        add_cliques(source);
        add_leaves(source);
    }
}

/// Whether this group is a clique, under any scheme of its source.
pub(super) fn is_clique(group: &NodeGroup) -> bool {
    group.kind == NodeGroupKind::Domain
        && group.scheme.contains(CLIQUE_SCHEME)
        && identity::parse_clique(&group.name).is_some()
}

fn lowercase_identities(report: &mut SourceReport) {
    for fabric in report.nodes.values_mut().flat_map(|node| &mut node.fabric) {
        if let Some(uuid) = &mut fabric.cluster_uuid {
            uuid.make_ascii_lowercase();
        }
        // A node's own driver reports it; every other source copied the identity.
        let is_driver = report.source.kind == SourceKind::NodeFacts;
        let basis = if is_driver { ClaimBasis::Reported } else { ClaimBasis::Asserted };
        fabric.basis.get_or_insert(basis);
    }
    for group in report.groups.iter_mut().filter(|group| is_clique(group)) {
        group.name.make_ascii_lowercase();
    }
}

/// Adds the identity to members of clique groups.
fn add_identities(report: &mut SourceReport) {
    for group in report.groups.iter().filter(|group| group.in_force && is_clique(group)) {
        let Some((uuid, id)) = identity::parse_clique(&group.name) else { continue };
        for node in &group.nodes {
            let fabric = &mut report.nodes.entry(node.clone()).or_default().fabric;
            if fabric.is_empty() {
                fabric.push(FabricReport {
                    cluster_uuid: Some(uuid.to_owned()),
                    clique_id: Some(id.to_owned()),
                    basis: Some(group.basis.clone()),
                    at: group.at.clone(),
                    ..FabricReport::default()
                });
            }
        }
    }
}

/// Adds clique groups of nodes whose GPUs all have one identity.
fn add_cliques(report: &mut SourceReport) {
    if report.groups.iter().any(is_clique) {
        return;
    }
    let mut cliques: BTreeMap<String, (Vec<NodeName>, &FabricReport)> = BTreeMap::new();
    for (node, node_report) in &report.nodes {
        let identities: Option<BTreeSet<String>> =
            node_report.fabric.iter().map(identity::usable_clique).collect();
        let Some(only) = identities.filter(|cliques| cliques.len() == 1) else { continue };
        for clique in only {
            cliques
                .entry(clique)
                .or_insert((Vec::new(), &node_report.fabric[0]))
                .0
                .push(node.clone());
        }
    }
    let groups: Vec<NodeGroup> = cliques
        .into_iter()
        .map(|(name, (nodes, first))| NodeGroup {
            basis: first.basis.clone().unwrap_or(ClaimBasis::Asserted),
            at: first.at.clone(),
            ..NodeGroup::new(NodeGroupKind::Domain, CLIQUE_SCHEME, name, nodes)
        })
        .collect();
    report.groups.extend(groups);
}

/// Adds leaves that only the cables of single nodes contain.
fn add_leaves(report: &mut SourceReport) {
    let has_cables = matches!(report.source.kind, SourceKind::Cabling | SourceKind::Neighbours);
    if !has_cables || report.groups.iter().any(|group| group.kind == NodeGroupKind::Leaf) {
        return;
    }
    let mut leaves: BTreeMap<(&str, Option<&str>), Vec<NodeName>> = BTreeMap::new();
    for (node, node_report) in &report.nodes {
        for nic in &node_report.nics {
            let Some(leaf) = nic.leaf.as_deref() else { continue };
            let rail = nic.rail.as_deref().or(nic.device.as_deref());
            let nodes = leaves.entry((leaf, rail)).or_default();
            if nodes.last() != Some(node) {
                nodes.push(node.clone());
            }
        }
    }
    let basis = match report.source.kind {
        SourceKind::Cabling => ClaimBasis::Asserted,
        _ => ClaimBasis::Reported,
    };
    let groups: Vec<NodeGroup> = leaves
        .into_iter()
        .map(|((leaf, rail), nodes)| NodeGroup {
            rail: rail.map(str::to_owned),
            basis: basis.clone(),
            ..NodeGroup::new(NodeGroupKind::Leaf, CABLE_LEAF_SCHEME, leaf, nodes)
        })
        .collect();
    report.groups.extend(groups);
}
