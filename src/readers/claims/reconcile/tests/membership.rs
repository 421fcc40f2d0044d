//! Missing, extra and marked nodes.

use super::*;
use model::source_report::SourceProblemKind;

fn scheduler(list: Vec<NodeName>) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    for node in list {
        report.node_mut(&node).gpus = Some(4);
    }
    report
}

fn block(last: u32) -> SourceReport {
    blocks(SourceKind::SlurmTopology, &[("b", nodes(1, last))])
}

#[test]
fn a_node_unknown_to_its_scheduler_is_reported() {
    let claims = reconciled(vec![block(5), scheduler(nodes(1, 4))]);
    let disagreement = only(&claims, "unknown-to-scheduler");
    assert_eq!(
        (disagreement.severity, disagreement.nodes.as_slice()),
        (DisagreementSeverity::Doubt, &[node(5)][..])
    );
    assert_eq!(disagreement.sides.len(), 2);
}

#[test]
fn a_partly_read_scheduler_lacks_no_node() {
    let mut cut = scheduler(nodes(1, 4));
    cut.push_problem(SourceProblemKind::Incomplete, None, "it stops early");
    assert_eq!(reconciled(vec![block(5), cut]).disagreements, []);
}

#[test]
fn a_short_list_is_not_a_complete_one() {
    assert_eq!(reconciled(vec![block(5), scheduler(nodes(1, 2))]).disagreements, []);
}

#[test]
fn nodes_without_gpus_are_identified_by_the_fabric_of_the_others() {
    let mut kubernetes = labelled(&[(UUID, 1, nodes(1, 4))]);
    kubernetes.node_mut(&"control".into()).state.push("Ready".to_owned());
    assert_eq!(reconciled(vec![kubernetes]).disagreements, []);
}

#[test]
fn gpu_nodes_in_no_domain_are_reported_and_login_nodes_are_not() {
    let mut all = scheduler(nodes(1, 6));
    all.node_mut(&"login".into()).gpus = Some(0);
    all.node_mut(&"build".into()).state.push("IDLE".to_owned());
    let claims = reconciled(vec![block(4), all]);
    let disagreement = only(&claims, "in-no-domain");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Doubt, &nodes(5, 6))
    );
}

#[test]
fn a_node_that_another_map_lacks_is_missing_and_one_that_it_adds_is_extra() {
    let file = blocks(SourceKind::ClaimsFile, &[("a", nodes(1, 5))]);
    let claims = reconciled(vec![file, block(4)]);
    let disagreement = only(&claims, "node-missing");
    assert_eq!((disagreement.nodes.as_slice(), disagreement.sides.len()), (&[node(5)][..], 2));

    let file = blocks(SourceKind::ClaimsFile, &[("a", nodes(1, 4))]);
    let claims = reconciled(vec![file, block(5)]);
    let disagreement = only(&claims, "node-extra");
    assert_eq!(disagreement.nodes, [node(5)]);
    assert_eq!(disagreement.domain.as_ref().map(|d| d.as_str()), Some("a"));
    assert_eq!(claims.domains[1].nodes, [node(5)]);
}

#[test]
fn a_block_below_its_size_is_reported_once_and_spare_nodes_are_not() {
    let mut slurm = blocks(
        SourceKind::SlurmTopology,
        &[("a", nodes(1, 18)), ("b", nodes(19, 33)), ("c", nodes(37, 51)), ("spare", vec![])],
    );
    slurm.groups.iter_mut().for_each(|group| group.size = Some(16));
    let claims = reconciled(vec![slurm]);
    let disagreement = only(&claims, "domain-size");
    assert!(disagreement.summary.contains("b (15), c (15)"), "{}", disagreement.summary);
}

#[test]
fn marks_of_other_tools_are_notes_by_mark() {
    let mut slurm = scheduler(nodes(1, 4));
    slurm.node_mut(&node(1)).opt_out = vec!["label nvsentinel managed=false".to_owned()];
    slurm.node_mut(&node(2)).state = vec!["IDLE".to_owned(), "DRAIN".to_owned()];
    slurm.node_mut(&node(2)).reason = Some("NHC: disk".to_owned());
    slurm.node_mut(&node(3)).state = vec!["IDLE+DRAIN".to_owned()];
    slurm.node_mut(&node(3)).reason = Some("NHC: disk".to_owned());
    slurm.node_mut(&node(4)).state = vec!["ALLOCATED".to_owned(), "PLANNED".to_owned()];
    let claims = reconciled(vec![block(4), slurm]);
    assert_eq!(
        classes(&claims),
        [
            ("opted-out", DisagreementSeverity::Note),
            ("out-of-service", DisagreementSeverity::Note),
            ("out-of-service", DisagreementSeverity::Note)
        ]
    );
    assert!(claims.disagreements[1].summary.contains("NHC: disk"));
    let cordoned = {
        let mut report = labelled(&[(UUID, 1, nodes(1, 4))]);
        report.node_mut(&node(4)).state = vec!["Ready".to_owned(), "SchedulingDisabled".to_owned()];
        reconciled(vec![report])
    };
    assert_eq!(only(&cordoned, "out-of-service").nodes, [node(4)]);
}
