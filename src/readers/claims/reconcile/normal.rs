//! What sources say, brought to one form before it is weighed.
//!
//! Sources tell a clique as a group, as the identity of a node, or as both;
//! here each becomes both. Nothing is dropped and nothing is judged.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::identity;
use model::id::NodeName;
use model::said::Basis;
use model::said::FabricSaid;
use model::said::Group;
use model::said::GroupKind;
use model::said::Said;
use model::said::SourceKind;

/// The scheme of groups that are cliques.
pub(super) const CLIQUE: &str = "clique";
/// The scheme of leaves that are read off the cables of single nodes.
const CABLES: &str = "leaf";

/// Brings all sources to one form.
pub(super) fn normalise(said: &mut [Said]) {
    let yaml =
        said.iter().any(|s| s.source.kind == SourceKind::SlurmTopologyYaml && !s.groups.is_empty());
    for source in said {
        // With a topology.yaml, Slurm does not read topology.conf
        // (topology.yaml(5)).
        if yaml && source.source.kind == SourceKind::SlurmTopologyConf && !source.groups.is_empty()
        {
            source.groups.iter_mut().for_each(|group| group.in_force = false);
            let note = "there is a topology.yaml too: Slurm does not read this file";
            source.notes.push(note.to_owned());
        }
        lower_case(source);
        identities(source);
        cliques(source);
        leaves(source);
    }
}

/// Whether this group is a clique, whatever its source calls it.
pub(super) fn is_clique(group: &Group) -> bool {
    group.kind == GroupKind::Domain
        && group.scheme.contains(CLIQUE)
        && identity::clique(&group.name).is_some()
}

fn lower_case(said: &mut Said) {
    for fabric in said.nodes.values_mut().flat_map(|node| &mut node.fabric) {
        if let Some(uuid) = &mut fabric.cluster_uuid {
            uuid.make_ascii_lowercase();
        }
        // A node's own driver reports; whoever else names an identity has it
        // from somewhere.
        let reports = said.source.kind == SourceKind::NodeFacts;
        let basis = if reports { Basis::Reported } else { Basis::Asserted };
        fabric.basis.get_or_insert(basis);
    }
    for group in said.groups.iter_mut().filter(|group| is_clique(group)) {
        group.name.make_ascii_lowercase();
    }
}

/// Members of clique groups have that identity.
fn identities(said: &mut Said) {
    for group in said.groups.iter().filter(|group| group.in_force && is_clique(group)) {
        let Some((uuid, id)) = identity::clique(&group.name) else { continue };
        for node in &group.nodes {
            let fabric = &mut said.nodes.entry(node.clone()).or_default().fabric;
            if fabric.is_empty() {
                fabric.push(FabricSaid {
                    cluster_uuid: Some(uuid.to_owned()),
                    clique_id: Some(id.to_owned()),
                    basis: Some(group.basis.clone()),
                    at: group.at.clone(),
                    ..FabricSaid::default()
                });
            }
        }
    }
}

/// Nodes whose GPUs all have one identity are in that clique.
fn cliques(said: &mut Said) {
    if said.groups.iter().any(is_clique) {
        return;
    }
    let mut cliques: BTreeMap<String, (Vec<NodeName>, &FabricSaid)> = BTreeMap::new();
    for (node, said) in &said.nodes {
        let shown: Option<BTreeSet<String>> = said.fabric.iter().map(identity::usable).collect();
        let Some(only) = shown.filter(|cliques| cliques.len() == 1) else { continue };
        for clique in only {
            cliques.entry(clique).or_insert((Vec::new(), &said.fabric[0])).0.push(node.clone());
        }
    }
    let groups: Vec<Group> = cliques
        .into_iter()
        .map(|(name, (nodes, first))| Group {
            basis: first.basis.clone().unwrap_or(Basis::Asserted),
            at: first.at.clone(),
            ..Group::of(GroupKind::Domain, CLIQUE, name, nodes)
        })
        .collect();
    said.groups.extend(groups);
}

/// Leaves that only the cables of single nodes tell.
fn leaves(said: &mut Said) {
    let tells = matches!(said.source.kind, SourceKind::Cabling | SourceKind::Neighbours);
    if !tells || said.groups.iter().any(|group| group.kind == GroupKind::Leaf) {
        return;
    }
    let mut leaves: BTreeMap<(&str, Option<&str>), Vec<NodeName>> = BTreeMap::new();
    for (node, said) in &said.nodes {
        for nic in &said.nics {
            let Some(leaf) = nic.leaf.as_deref() else { continue };
            let rail = nic.rail.as_deref().or(nic.device.as_deref());
            let nodes = leaves.entry((leaf, rail)).or_default();
            if nodes.last() != Some(node) {
                nodes.push(node.clone());
            }
        }
    }
    let basis = match said.source.kind {
        SourceKind::Cabling => Basis::Asserted,
        _ => Basis::Reported,
    };
    let groups: Vec<Group> = leaves
        .into_iter()
        .map(|((leaf, rail), nodes)| Group {
            rail: rail.map(str::to_owned),
            basis: basis.clone(),
            ..Group::of(GroupKind::Leaf, CABLES, leaf, nodes)
        })
        .collect();
    said.groups.extend(groups);
}
