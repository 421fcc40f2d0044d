//! Counts, products and drivers.

use super::*;
use model::source_report::NicReport;

fn with(gpus: &[u32]) -> Vec<SourceReport> {
    let mut own = SourceReport::new(SourceKind::NodeFacts, "facts");
    for (at, gpus) in (1..).zip(gpus) {
        own.node_mut(&node(at)).gpus = Some(*gpus);
    }
    let last = u32::try_from(gpus.len()).expect("few");
    vec![blocks(SourceKind::SlurmTopology, &[("b", nodes(1, last))]), own]
}

#[test]
fn missing_gpus_are_reported_against_the_claim_the_expectation_or_the_scheduler() {
    let mut claimed = with(&[4, 4, 3]);
    claimed[0].groups[0].gpus_per_node = Some(4);
    let claims = reconciled(claimed);
    let disagreement = only(&claims, "gpu-count");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &vec![node(3)])
    );
    assert_eq!(
        (disagreement.sides.len(), disagreement.sides[1].basis.clone()),
        (2, ClaimBasis::Reported)
    );

    let expected = ReconcileRules { gpus_per_node: Some(4), ..rules() };
    let claims = reconcile_reports(with(&[4, 4, 3]), &expected);
    assert!(only(&claims, "gpu-count").summary.contains("by the expectation for every node"));

    let mut scheduled = with(&[4, 4, 3]);
    let mut slurm = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    nodes(1, 3).iter().for_each(|node| slurm.node_mut(node).gpus = Some(4));
    scheduled.push(slurm);
    let claims = reconciled(scheduled);
    assert_eq!(only(&claims, "gpu-count").nodes, [node(3)]);
    assert_eq!(reconciled(with(&[4, 4, 4])).disagreements, []);
}

#[test]
fn nics_are_counted_against_the_expectation_and_the_cables() {
    let nics = |kind, count: usize| {
        let mut report = SourceReport::new(kind, "x");
        for at in 0..count {
            let device = Some(format!("mlx5_{at}"));
            report.node_mut(&node(1)).nics.push(NicReport { device, ..NicReport::default() });
        }
        report
    };
    let block = || blocks(SourceKind::ClaimsFile, &[("d", nodes(1, 2))]);
    let rules = ReconcileRules { nics_per_node: Some(4), ..rules() };
    let claims = reconcile_reports(vec![block(), nics(SourceKind::NodeFacts, 3)], &rules);
    assert_eq!(only(&claims, "nic-count").nodes, [node(1)]);
    let both = vec![block(), nics(SourceKind::Cabling, 4), nics(SourceKind::NodeFacts, 3)];
    let claims = reconciled(both);
    assert_eq!(only(&claims, "nic-count").sides.len(), 2);
    let some = vec![block(), nics(SourceKind::Cabling, 4), nics(SourceKind::Neighbours, 3)];
    assert_eq!(reconciled(some).disagreements, []);
}

#[test]
fn a_foreign_product_or_driver_in_a_domain_is_the_minority() {
    let mut all = with(&[4, 4, 4]);
    for (at, node) in nodes(1, 3).iter().enumerate() {
        let words = all[1].node_mut(node);
        words.product = Some(if at == 2 { "NVIDIA H100" } else { "NVIDIA GB200" }.to_owned());
        words.driver = Some(if at == 1 { "570.1" } else { "580.1" }.to_owned());
    }
    let claims = reconciled(all);
    assert_eq!(
        classes(&claims),
        [
            ("driver-mixed", DisagreementSeverity::Doubt),
            ("product-mixed", DisagreementSeverity::Doubt)
        ]
    );
    assert_eq!(claims.disagreements[0].nodes, [node(2)]);
    assert_eq!(claims.disagreements[1].nodes, [node(3)]);
}

#[test]
fn a_platform_that_contradicts_its_products_is_reported() {
    let mut all = with(&[4, 4]);
    all[0].groups[0].platform = Some("hgx-h100".to_owned());
    for node in nodes(1, 2) {
        all[1].node_mut(&node).product = Some("NVIDIA GB200".to_owned());
    }
    let claims = reconciled(all);
    let disagreement = only(&claims, "product-against-claim");
    assert_eq!((disagreement.nodes.len(), disagreement.sides.len()), (2, 2));
}

#[test]
fn a_node_has_nics_of_other_networks_too() {
    let mut cabling = SourceReport::new(SourceKind::Cabling, "cables.csv");
    let mut own = SourceReport::new(SourceKind::NodeFacts, "facts");
    let nic = |device: String| NicReport { device: Some(device), ..NicReport::default() };
    for at in 0..8 {
        cabling.node_mut(&node(1)).nics.push(nic(format!("mlx5_{at}")));
        own.node_mut(&node(1)).nics.push(nic(format!("mlx5_{at}")));
    }
    for device in ["mlx5_8", "mlx5_9", "eth0"] {
        own.node_mut(&node(1)).nics.push(nic(device.to_owned()));
    }
    let block = || blocks(SourceKind::ClaimsFile, &[("d", nodes(1, 2))]);
    assert_eq!(reconciled(vec![block(), cabling.clone(), own.clone()]).disagreements, []);
    let rules = ReconcileRules { nics_per_node: Some(8), ..rules() };
    assert_eq!(reconcile_reports(vec![block(), own.clone()], &rules).disagreements, []);
    own.node_mut(&node(1)).nics.drain(..3);
    assert_eq!(only(&reconciled(vec![block(), cabling, own]), "nic-count").nodes, [node(1)]);
}

#[test]
fn gpus_assigned_to_a_framework_are_not_those_of_the_node() {
    for kind in [SourceKind::Ray, SourceKind::NcclTopology] {
        let mut given = SourceReport::new(kind, "given");
        nodes(1, 2).iter().for_each(|node| given.node_mut(node).gpus = Some(2));
        let mut all = with(&[4, 4, 4]);
        all.push(given);
        assert_eq!(reconciled(all).disagreements, [], "{kind:?}");
    }
}
