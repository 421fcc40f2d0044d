//! Tests with hand-written sources: every class of disagreement, and a consistent fleet without
//! any.

mod cables;
mod cliques;
mod counts;
mod diffs;
mod groups;
mod imex;
mod membership;
mod nvlink_reach;
mod ranks;

use super::*;
use model::disagreement::DisagreementSeverity;
use model::id::NodeName;
use model::source_report::{ClaimBasis, FabricReport, NodeGroup, NodeGroupKind, SourceKind};

pub(super) const UUID: &str = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31";
pub(super) const OTHER: &str = "0a0a0a0a-c8aa-45e1-9e07-e1e51be99c31";
pub(super) const ZERO: &str = "00000000-0000-0000-0000-000000000000";

pub(super) fn nodes(from: u32, to: u32) -> Vec<NodeName> {
    (from..=to).map(node).collect()
}

pub(super) fn node(number: u32) -> NodeName {
    NodeName::from(format!("n{number:02}"))
}

pub(super) fn blocks(kind: SourceKind, list: &[(&str, Vec<NodeName>)]) -> SourceReport {
    let mut report = SourceReport::new(kind, place(kind));
    for (name, nodes) in list {
        report.groups.push(NodeGroup::new(NodeGroupKind::Domain, "block", *name, nodes.clone()));
    }
    report
}

fn place(kind: SourceKind) -> String {
    kind.label().replace(' ', "-").to_lowercase()
}

pub(super) fn label(uuid: &str, id: u32) -> FabricReport {
    FabricReport {
        cluster_uuid: Some(uuid.to_owned()),
        clique_id: Some(id.to_string()),
        basis: Some(ClaimBasis::Asserted),
        at: Some("label nvidia.com/gpu.clique".to_owned()),
        ..FabricReport::default()
    }
}

/// Kubernetes nodes with these cliques on their labels.
pub(super) fn labelled(list: &[(&str, u32, Vec<NodeName>)]) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::KubernetesNodes, "nodes.json");
    for (uuid, id, nodes) in list {
        for node in nodes {
            report.node_mut(node).fabric.push(label(uuid, *id));
            report.node_mut(node).state.push("Ready".to_owned());
        }
    }
    report
}

/// One GPU as its driver reports it.
pub(super) fn gpu(index: u32, uuid: &str, id: u32, state: &str) -> FabricReport {
    FabricReport {
        gpu: Some(index),
        state: Some(state.to_owned()),
        basis: Some(ClaimBasis::Reported),
        at: None,
        ..label(uuid, id)
    }
}

/// The facts of these nodes, each in a separate file.
pub(super) fn facts(list: &[(&str, u32, Vec<NodeName>)]) -> Vec<SourceReport> {
    let mut all = Vec::new();
    for (uuid, id, nodes) in list {
        for node in nodes {
            let mut report = SourceReport::new(SourceKind::NodeFacts, format!("{node}.json"));
            report.node_mut(node).fabric =
                (0..4).map(|index| gpu(index, uuid, *id, "completed")).collect();
            all.push(report);
        }
    }
    all
}

/// GB200 if the product contains it, likewise H100.
pub(super) fn platform_of(product: &str, _gpus: Option<u32>) -> Option<String> {
    let known = [("GB200", "gb200-nvl72"), ("H100", "hgx-h100")];
    known.iter().find(|(part, _)| product.contains(part)).map(|(_, name)| (*name).to_owned())
}

pub(super) fn rules<'r>() -> ReconcileRules<'r> {
    ReconcileRules {
        order: vec![],
        gpus_per_node: None,
        nics_per_node: None,
        platform_of: &platform_of,
        ends_at_node: &|_| false,
    }
}

pub(super) fn reconciled(reports: Vec<SourceReport>) -> Claims {
    reconcile_reports(reports, &rules())
}

/// Class and severity of everything found.
pub(super) fn classes(claims: &Claims) -> Vec<(&str, DisagreementSeverity)> {
    claims.disagreements.iter().map(|d| (d.class.as_str(), d.severity)).collect()
}

/// The only disagreement, of this class.
pub(super) fn only<'c>(claims: &'c Claims, class: &str) -> &'c Disagreement {
    let [one] = claims.disagreements.as_slice() else { panic!("{:#?}", claims.disagreements) };
    assert_eq!(one.class.as_str(), class, "{one:#?}");
    assert!(!one.summary.is_empty() && one.remedy.is_some(), "{one:#?}");
    assert!(!one.sides.is_empty(), "{one:#?}");
    one
}

/// Two racks of 18 as every source reports them without a disagreement.
pub(super) fn healthy() -> Vec<SourceReport> {
    let racks = [("block01", nodes(1, 18)), ("block02", nodes(19, 36))];
    let cliques = [(UUID, 1, nodes(1, 18)), (OTHER, 2, nodes(19, 36))];
    let mut file = blocks(SourceKind::SlurmTopologyYaml, &racks);
    let mut live = blocks(SourceKind::SlurmTopology, &racks);
    for group in file.groups.iter_mut().chain(&mut live.groups) {
        group.size = Some(16);
    }
    let mut slurm = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    let mut kubernetes = labelled(&cliques);
    for node in nodes(1, 36) {
        for report in [&mut slurm, &mut kubernetes] {
            report.node_mut(&node).gpus = Some(4);
            report.node_mut(&node).state = vec!["IDLE".to_owned()];
        }
        kubernetes.node_mut(&node).product = Some("NVIDIA-GB200".to_owned());
    }
    let mut all = vec![file, live, slurm, kubernetes];
    for mut report in facts(&cliques) {
        for node in report.nodes.values_mut() {
            node.gpus = Some(4);
            node.product = Some("NVIDIA GB200".to_owned());
            node.driver = Some("580.1".to_owned());
        }
        all.push(report);
    }
    all
}

#[test]
fn a_healthy_fleet_has_no_disagreement_in_any_order_of_families() {
    let claims = reconciled(healthy());
    assert_eq!(claims.disagreements, [], "{:#?}", claims.disagreements);
    let names: Vec<&str> = claims.domains.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["block01", "block02"]);
    assert_eq!(claims.domains[0].nodes, nodes(1, 18));
    assert_eq!(claims.domains[0].platform.as_deref(), Some("gb200-nvl72"));
    assert_eq!(claims.domains[0].gpus_per_node, Some(4));
    assert_eq!(claims.sources.len(), 4 + 36);
    for family in [SourceFamily::Kubernetes, SourceFamily::Nodes] {
        let rules = ReconcileRules { order: vec![family, SourceFamily::Slurm], ..rules() };
        let claims = reconcile_reports(healthy(), &rules);
        assert_eq!(claims.disagreements, [], "{family:?}: {:#?}", claims.disagreements);
        let mut names: Vec<&str> = claims.domains.iter().map(|d| d.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, [format!("{OTHER}.2"), format!("{UUID}.1")]);
    }
}

#[test]
fn the_order_of_the_sources_changes_nothing_but_their_numbers() {
    let one = reconciled(healthy());
    let mut turned = healthy();
    turned.reverse();
    let other = reconciled(turned);
    assert_eq!((&one.domains, &one.leaves), (&other.domains, &other.leaves));
    assert_eq!(one.disagreements, other.disagreements);
}
