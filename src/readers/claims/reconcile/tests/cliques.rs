//! Labels against drivers.

use super::*;

/// A block of four, its labels, and its drivers.
fn block(
    label: &[(&str, u32, Vec<NodeName>)],
    driver: &[(&str, u32, Vec<NodeName>)],
) -> Vec<SourceReport> {
    let mut all = vec![blocks(SourceKind::SlurmTopology, &[("b", nodes(1, 4))]), labelled(label)];
    all.extend(facts(driver));
    all
}

#[test]
fn a_stale_label_is_one_cause_and_not_also_a_node_in_the_wrong_block() {
    let label = [(UUID, 1, nodes(1, 3)), (OTHER, 1, nodes(4, 4))];
    let claims = reconciled(block(&label, &[(UUID, 1, nodes(1, 4))]));
    let disagreement = only(&claims, "stale-label");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &vec![node(4)])
    );
    assert_eq!(disagreement.sides[0].at.as_deref(), Some("label nvidia.com/gpu.clique"));
    assert_eq!(disagreement.sides[1].basis, ClaimBasis::Reported);
}

#[test]
fn a_whole_rack_that_was_partitioned_anew_is_one_disagreement() {
    let claims = reconciled(block(&[(UUID, 1, nodes(1, 4))], &[(UUID, 2, nodes(1, 4))]));
    assert_eq!(only(&claims, "stale-label").nodes, nodes(1, 4));
}

#[test]
fn a_label_without_all_gpus_attached_gives_their_number() {
    let mut all = block(&[(UUID, 1, nodes(1, 4))], &[(UUID, 1, nodes(1, 4))]);
    let last = all.last_mut().expect("facts");
    last.node_mut(&node(4)).fabric[2] = gpu(2, ZERO, 0, "in progress");
    let claims = reconciled(all);
    let disagreement = only(&claims, "label-without-all-gpus");
    assert_eq!(disagreement.nodes, [node(4)]);
    assert!(
        disagreement.summary.contains("1 of 4 GPUs not attached to a fabric"),
        "{}",
        disagreement.summary
    );
    assert_eq!(disagreement.sides.len(), 2);
}

#[test]
fn gpus_of_one_node_in_two_cliques_contradict_the_label_and_each_other() {
    let mut all = block(&[(UUID, 1, nodes(1, 4))], &[(UUID, 1, nodes(1, 4))]);
    all.last_mut().expect("facts").node_mut(&node(4)).fabric[3] = gpu(3, UUID, 2, "completed");
    let claims = reconciled(all);
    assert_eq!(
        classes(&claims),
        [
            ("gpus-in-two-cliques", DisagreementSeverity::Contradiction),
            ("label-without-all-gpus", DisagreementSeverity::Contradiction)
        ]
    );
    assert_eq!(claims.disagreements[0].sides[1].text, format!("GPU 3 in {UUID}.2"));
}

#[test]
fn a_zero_uuid_is_not_a_clique_and_is_normal_inside_a_server() {
    let label = [(UUID, 1, nodes(1, 3)), (ZERO, 0, nodes(4, 4))];
    let claims = reconciled(block(&label, &[]));
    let disagreement = only(&claims, "sentinel-clique");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &vec![node(4)])
    );

    let mut server = blocks(SourceKind::ClaimsFile, &[("pod", nodes(1, 4))]);
    server.groups[0].platform = Some("hgx-h100".to_owned());
    let mut all = vec![server];
    all.extend(facts(&[(ZERO, 0, nodes(1, 4))]));
    assert_eq!(reconciled(all).disagreements, []);
}

#[test]
fn the_default_clique_id_is_one_note_for_the_fleet() {
    let claims =
        reconciled(vec![labelled(&[(UUID, 32766, nodes(1, 4)), (OTHER, 32766, nodes(5, 8))])]);
    let disagreement = only(&claims, "sentinel-clique");
    assert_eq!((disagreement.severity, disagreement.nodes.len()), (DisagreementSeverity::Note, 8));
}

#[test]
fn a_label_that_is_missing_among_others_is_a_doubt() {
    let mut kubernetes = labelled(&[(UUID, 1, nodes(1, 3))]);
    kubernetes.node_mut(&node(4)).state.push("Ready".to_owned());
    let slurm = || blocks(SourceKind::SlurmTopology, &[("b", nodes(1, 4))]);
    let claims = reconciled(vec![slurm(), kubernetes]);
    let disagreement = only(&claims, "label-missing");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Doubt, &vec![node(4)])
    );
    // A cluster without any label does not count as a rack.
    let mut bare = SourceReport::new(SourceKind::KubernetesNodes, "nodes.json");
    nodes(1, 4).iter().for_each(|node| bare.node_mut(node).state.push("Ready".to_owned()));
    assert_eq!(reconciled(vec![slurm(), bare]).disagreements, []);
}

#[test]
fn an_unattached_driver_contradicts_the_block() {
    let mut block = blocks(SourceKind::SlurmTopology, &[("b", nodes(1, 4))]);
    block.groups[0].platform = Some("gb200-nvl72".to_owned());
    let mut all = vec![block.clone()];
    all.extend(facts(&[(UUID, 1, nodes(1, 4))]));
    all.last_mut().expect("facts").node_mut(&node(4)).fabric =
        (0..4).map(|index| gpu(index, ZERO, 0, "not started")).collect();
    let claims = reconciled(all.clone());
    assert_eq!(only(&claims, "fabric-not-attached").nodes, [node(4)]);
    all[0].groups[0].platform = Some("hgx-h100".to_owned());
    assert!(
        reconciled(all).disagreements.iter().all(|d| d.class.as_str() != "fabric-not-attached")
    );
}

#[test]
fn a_cluster_uuid_alone_contradicts_no_label() {
    let mut uuids = SourceReport::new(SourceKind::NodeFacts, "uuids.txt");
    for node in nodes(1, 4) {
        let word = FabricReport { clique_id: None, state: None, gpu: None, ..gpu(0, UUID, 1, "") };
        uuids.node_mut(&node).fabric.push(word);
    }
    for driver in [&[][..], &[(UUID, 1, nodes(1, 4))]] {
        let mut all = block(&[(UUID, 1, nodes(1, 4))], driver);
        all.push(uuids.clone());
        assert_eq!(reconciled(all).disagreements, []);
    }
}
