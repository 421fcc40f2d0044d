//! Selection of domains, leaves and rails to measure.

use super::*;
use crate::claims::claims_file;
use model::claims::ClaimedRail;
use model::source_report::NicReport;

#[test]
fn a_claims_file_alone_is_measured_as_it_is_written() {
    let text = "[[domain]]\nname = \"b2\"\nnodes = \"n[03-04]\"\nplatform = \"hgx-h100\"\n\
        gpus_per_node = 0\nnic = \"ndr400\"\n[[domain]]\nname = \"b1\"\nnodes = [\"n02\", \"n01\"]\n\
        [[leaf]]\nname = \"l2\"\nnodes = \"n[02-03]\"\n[[leaf]]\nname = \"l1\"\nnodes = \"n04\"\n\
        [[rail]]\nname = \"r\"\nrdma = \"mlx5_0\"\n";
    let parsed = claims_file::parse("c.toml", text).expect("good");
    let claims = reconciled(vec![claims_file::to_report("c.toml", &parsed)]);
    assert_eq!(claims.domains, parsed.domains);
    assert_eq!(claims.leaves, parsed.leaves);
    assert_eq!(claims.rails, parsed.rails);
    assert!(claims.nodes.is_empty() && claims.disagreements.is_empty());
    assert_eq!(claims.sources[0].source.place, "c.toml");
    assert_eq!(claims.assertions.len(), 4);
}

#[test]
fn the_first_family_of_the_order_sets_the_domains_and_others_add_nodes() {
    let slurm = blocks(SourceKind::SlurmTopology, &[("block 1/left", nodes(1, 4))]);
    let kubernetes = labelled(&[(UUID, 1, nodes(1, 4)), (OTHER, 1, nodes(5, 6))]);
    let names = |order: Vec<SourceFamily>| -> Vec<(String, usize)> {
        let rules = ReconcileRules { order, ..rules() };
        let claims = reconcile_reports(vec![kubernetes.clone(), slurm.clone()], &rules);
        claims.domains.iter().map(|d| (d.name.to_string(), d.nodes.len())).collect()
    };
    let (one, other) = (format!("{UUID}.1"), format!("{OTHER}.1"));
    assert_eq!(names(vec![]), [("block-1-left".to_owned(), 4), (other.clone(), 2)]);
    assert_eq!(names(vec![SourceFamily::Kubernetes]), [(other, 2), (one, 4)]);
    assert_eq!(names(vec![SourceFamily::Slurm]), [("block-1-left".to_owned(), 4)]);
}

#[test]
fn groups_not_in_force_or_without_nodes_are_not_measured() {
    let mut report = blocks(
        SourceKind::SlurmTopologyYaml,
        &[("old", nodes(1, 4)), ("spare", vec![]), ("new", nodes(3, 6))],
    );
    report.groups[0].in_force = false;
    let claims = reconciled(vec![report]);
    let names: Vec<&str> = claims.domains.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["new"]);
    assert_eq!(claims.assertions.len(), 3);
}

#[test]
fn slurm_does_not_read_its_old_file_next_to_the_new_one() {
    let old = blocks(SourceKind::SlurmTopologyConf, &[("b1", nodes(1, 2)), ("b2", nodes(3, 4))]);
    let new = blocks(SourceKind::SlurmTopologyYaml, &[("b1", nodes(1, 4))]);
    let claims = reconciled(vec![old, new]);
    assert_eq!(claims.domains.len(), 1);
    assert_eq!(claims.disagreements, []);
    assert!(claims.sources[0].notes[0].contains("topology.yaml"));
}

#[test]
fn gpus_and_platform_come_from_the_nodes_if_all_reports_agree() {
    let block = || blocks(SourceKind::SlurmTopology, &[("b", nodes(1, 2))]);
    let mut slurm = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    slurm.node_mut(&node(1)).gpus = Some(8);
    slurm.node_mut(&node(2)).gpus = Some(8);
    slurm.node_mut(&node(1)).product = Some("NVIDIA H100 80GB HBM3".to_owned());
    // A GPU that fell off the bus does not change the expectation.
    let mut own = SourceReport::new(SourceKind::NodeFacts, "n01.json");
    own.node_mut(&node(1)).gpus = Some(7);
    let claims = reconciled(vec![own, block(), slurm.clone()]);
    assert_eq!(claims.domains[0].gpus_per_node, Some(8));
    assert_eq!(claims.domains[0].platform.as_deref(), Some("hgx-h100"));
    slurm.node_mut(&node(2)).gpus = Some(4);
    let claims = reconciled(vec![block(), slurm]);
    assert_eq!(claims.domains[0].gpus_per_node, None);
}

#[test]
fn without_any_claimed_domain_every_node_with_gpus_is_one_with_a_note() {
    let mut slurm = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    slurm.node_mut(&node(1)).gpus = Some(8);
    slurm.node_mut(&node(2)).gpus = Some(8);
    slurm.node_mut(&"login".into()).gpus = Some(0);
    slurm.node_mut(&"build".into()).state.push("IDLE".to_owned());
    slurm.groups.push(NodeGroup::new(NodeGroupKind::Leaf, "switch", "s1", nodes(1, 2)));
    let claims = reconciled(vec![slurm.clone()]);
    let names: Vec<&str> = claims.domains.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["n01", "n02"]);
    assert_eq!(claims.leaves[0].nodes, nodes(1, 2));
    assert_eq!(only(&claims, "no-domain-claimed").severity, DisagreementSeverity::Note);
    slurm.node_mut(&node(1)).product = Some("NVIDIA GB200".to_owned());
    let claims = reconciled(vec![slurm]);
    assert_eq!(only(&claims, "no-domain-claimed").severity, DisagreementSeverity::Doubt);
}

#[test]
fn a_zero_uuid_makes_no_domain() {
    let kubernetes = labelled(&[(ZERO, 1, nodes(1, 4))]);
    assert!(reconciled(vec![kubernetes]).domains.is_empty());
}

#[test]
fn rail_optimised_leaves_are_sets_of_nodes_with_the_same_leaves() {
    let mut report = SourceReport::new(SourceKind::Cabling, "cables.csv");
    for number in 1..=4 {
        for rail in 0..2 {
            let pod = if number < 3 { "a" } else { "b" };
            report.node_mut(&node(number)).nics.push(NicReport {
                rail: Some(format!("rail{rail}")),
                leaf: Some(format!("{pod}{rail}")),
                ..NicReport::default()
            });
        }
    }
    let rail = ClaimedRail {
        name: "rail0".to_owned(),
        device: None,
        network: None,
        rdma: Some("mlx5_0".to_owned()),
    };
    report.rails.push(rail.clone());
    let domain = blocks(SourceKind::ClaimsFile, &[("d", nodes(1, 4))]);
    let claims = reconciled(vec![report, domain]);
    let leaves: Vec<(&str, &[NodeName])> =
        claims.leaves.iter().map(|leaf| (leaf.name.as_str(), leaf.nodes.as_slice())).collect();
    assert_eq!(leaves, [("a0", &nodes(1, 2)[..]), ("b0", &nodes(3, 4)[..])]);
    assert_eq!(claims.rails, [rail]);
    assert_eq!(claims.disagreements, []);
}

#[test]
fn copies_are_reported_and_do_not_corroborate() {
    let block = || vec![("block01", nodes(1, 4))];
    let file = blocks(SourceKind::SlurmTopologyYaml, &block());
    let live = blocks(SourceKind::SlurmTopology, &block());
    let mut kubernetes = labelled(&[(UUID, 1, nodes(1, 4))]);
    let topograph = NodeGroup::new(
        NodeGroupKind::Domain,
        "accelerator.topograph.run/domain",
        format!("{UUID}.1"),
        nodes(1, 4),
    );
    let slinky = NodeGroup::new(
        NodeGroupKind::Domain,
        "topology.slinky.slurm.net/spec",
        "block01",
        nodes(1, 4),
    );
    let own = NodeGroup::new(NodeGroupKind::Domain, "example.com/rack", "r7", nodes(1, 4));
    kubernetes.groups.extend([topograph, slinky, own]);
    let claims = reconciled(vec![file, live, kubernetes]);
    assert_eq!(claims.disagreements, []);
    let copied: Vec<&str> = claims
        .assertions
        .iter()
        .filter(|a| matches!(a.group.basis, ClaimBasis::Copied { .. }))
        .map(|a| a.group.scheme.as_str())
        .collect();
    assert_eq!(
        copied,
        ["block", "accelerator.topograph.run/domain", "topology.slinky.slurm.net/spec"]
    );
    let sources = &copies::find_corroboration(&claims)[&claims.domains[0].name];
    assert_eq!(
        (sources.independent.as_slice(), sources.copied.as_slice()),
        (&[0, 2][..], &[1, 2][..])
    );
}
