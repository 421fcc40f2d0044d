//! Groupings against each other.

use super::*;

fn rack(cliques: &[(&str, u32, Vec<NodeName>)]) -> Claims {
    let slurm = blocks(SourceKind::SlurmTopology, &[("block01", nodes(1, 18))]);
    reconciled(vec![slurm, labelled(cliques)])
}

#[test]
fn one_uuid_with_two_cliques_in_a_block_is_split_and_names_the_minority() {
    let claims = rack(&[(UUID, 1, nodes(1, 16)), (UUID, 2, nodes(17, 18))]);
    let disagreement = only(&claims, "split-clique");
    assert_eq!(disagreement.severity, DisagreementSeverity::Contradiction);
    assert_eq!(disagreement.nodes, nodes(17, 18));
    assert_eq!(disagreement.domain.as_ref().map(|d| d.as_str()), Some("block01"));
    let sources: Vec<SourceKind> = disagreement.sides.iter().map(|side| side.source.kind).collect();
    assert_eq!(sources, [SourceKind::SlurmTopology, SourceKind::KubernetesNodes]);
    assert!(disagreement.sides[1].text.contains("n[17-18]"), "{disagreement:#?}");

    let claims = rack(&[(UUID, 1, nodes(1, 9)), (UUID, 2, nodes(10, 18))]);
    let disagreement = only(&claims, "split-clique");
    assert_eq!(disagreement.nodes.len(), 18);
    assert!(disagreement.summary.contains("none with most"), "{}", disagreement.summary);
}

#[test]
fn a_partitioned_fabric_whose_parts_are_claimed_apart_is_a_note() {
    let cliques = [(UUID, 1, nodes(1, 9)), (UUID, 2, nodes(10, 18))];
    let claims = reconciled(vec![labelled(&cliques)]);
    assert_eq!(only(&claims, "split-clique").severity, DisagreementSeverity::Note);
}

#[test]
fn a_node_of_another_clique_is_named_with_its_main_domain() {
    let slurm =
        blocks(SourceKind::SlurmTopology, &[("block01", nodes(1, 18)), ("block02", nodes(19, 36))]);
    let mut second = nodes(19, 36);
    second.push(node(7));
    let first: Vec<NodeName> = nodes(1, 18).into_iter().filter(|n| *n != node(7)).collect();
    let claims = reconciled(vec![slurm, labelled(&[(UUID, 1, first), (OTHER, 1, second)])]);
    let disagreement = only(&claims, "block-against-clique");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &vec![node(7)])
    );
    assert!(disagreement.summary.contains("together with block02"), "{}", disagreement.summary);
}

#[test]
fn a_difference_in_label_and_driver_is_reported_once_with_three_sides() {
    let slurm = blocks(SourceKind::SlurmTopology, &[("block01", nodes(1, 4))]);
    let cliques = [(UUID, 1, nodes(1, 3)), (OTHER, 1, nodes(4, 4))];
    let mut all = vec![slurm, labelled(&cliques)];
    all.extend(facts(&cliques));
    let claims = reconciled(all);
    let disagreement = only(&claims, "block-against-clique");
    assert_eq!((disagreement.nodes.as_slice(), disagreement.sides.len()), (&[node(4)][..], 3));
}

#[test]
fn one_clique_over_two_blocks_is_a_doubt_and_the_default_or_too_many_nodes_worse() {
    let halves = || {
        let list = [("block01", nodes(1, 9)), ("block02", nodes(10, 18))];
        blocks(SourceKind::SlurmTopology, &list)
    };
    let claims = reconciled(vec![halves(), labelled(&[(UUID, 1, nodes(1, 18))])]);
    assert_eq!(only(&claims, "merged-cliques").severity, DisagreementSeverity::Doubt);

    let claims = reconciled(vec![halves(), labelled(&[(UUID, 32766, nodes(1, 18))])]);
    assert_eq!(
        classes(&claims),
        [
            ("merged-cliques", DisagreementSeverity::Contradiction),
            ("sentinel-clique", DisagreementSeverity::Note)
        ]
    );
    assert!(claims.disagreements[0].summary.contains("default"), "{claims:#?}");

    let racks = [("block01", nodes(1, 18)), ("block02", nodes(19, 36))];
    let slurm = blocks(SourceKind::SlurmTopology, &racks);
    let claims = reconciled(vec![slurm, labelled(&[(UUID, 1, nodes(1, 36))])]);
    let disagreement = only(&claims, "merged-cliques");
    assert_eq!(
        (disagreement.severity, disagreement.nodes.len()),
        (DisagreementSeverity::Contradiction, 18)
    );
}

#[test]
fn a_node_in_two_blocks_of_one_source_is_reported_with_both() {
    let slurm =
        blocks(SourceKind::SlurmTopology, &[("block01", nodes(1, 4)), ("block02", nodes(4, 8))]);
    let claims = reconciled(vec![slurm]);
    let disagreement = only(&claims, "node-in-two-domains");
    assert_eq!((disagreement.nodes.as_slice(), disagreement.sides.len()), (&[node(4)][..], 2));
    assert_eq!(claims.domains[1].nodes, nodes(5, 8));
}

#[test]
fn two_claims_without_cliques_disagree_or_nest() {
    let file = blocks(SourceKind::ClaimsFile, &[("a", nodes(1, 8)), ("b", nodes(9, 16))]);
    let swapped: Vec<NodeName> = nodes(1, 7).into_iter().chain([node(9)]).collect();
    let rest: Vec<NodeName> = nodes(10, 16).into_iter().chain([node(8)]).collect();
    let slurm = blocks(SourceKind::SlurmTopology, &[("x", swapped), ("y", rest)]);
    let claims = reconciled(vec![file.clone(), slurm]);
    assert_eq!(
        classes(&claims),
        [("domains-disagree", DisagreementSeverity::Contradiction); 2],
        "{:#?}",
        claims.disagreements
    );
    assert_eq!(claims.disagreements[0].nodes, [node(8)]);
    assert_eq!(claims.disagreements[1].nodes, [node(9)]);

    let coarse = blocks(SourceKind::SlurmTopology, &[("pod", nodes(1, 16))]);
    let claims = reconciled(vec![file, coarse]);
    assert_eq!(only(&claims, "domains-nested").severity, DisagreementSeverity::Note);
}

#[test]
fn a_file_not_in_force_is_reported_with_the_nodes_that_differ() {
    let file = blocks(SourceKind::SlurmTopologyYaml, &[("b1", nodes(1, 3)), ("b2", nodes(4, 8))]);
    let live = blocks(SourceKind::SlurmTopology, &[("b1", nodes(1, 4)), ("b2", nodes(5, 8))]);
    let claims = reconciled(vec![file.clone(), live.clone()]);
    let disagreement = only(&claims, "file-not-in-force");
    assert_eq!(disagreement.nodes, [node(4)]);
    assert_eq!(disagreement.sides[0].text, "n04 in block b2");
    assert_eq!(disagreement.sides[1].text, "n04 in block b1");

    // If the node's own setting explains it, that is the cause.
    let mut own = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    for node in nodes(1, 8) {
        own.node_mut(&node).state.push("IDLE".to_owned());
    }
    own.groups.push(NodeGroup::new(NodeGroupKind::Domain, "block", "b1", vec![node(4)]));
    let claims = reconciled(vec![file, live, own]);
    let disagreement = only(&claims, "topology-override");
    assert_eq!(
        (disagreement.severity, disagreement.nodes.as_slice()),
        (DisagreementSeverity::Doubt, &[node(4)][..])
    );
}

#[test]
fn rack_blocks_need_the_imex_plugin_and_servers_do_not() {
    let with = |product: &str, switch: &str| {
        let slurm = blocks(SourceKind::SlurmTopology, &[("b", nodes(1, 2))]);
        let mut own = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
        for node in nodes(1, 2) {
            own.node_mut(&node).product = Some(product.to_owned());
        }
        let mut config = SourceReport::new(SourceKind::SlurmConfig, "config");
        config.settings.insert("SwitchType".to_owned(), switch.to_owned());
        reconciled(vec![slurm, own, config])
    };
    let claims = with("NVIDIA GB200", "(null)");
    assert_eq!(only(&claims, "imex-plugin-unset").severity, DisagreementSeverity::Note);
    assert_eq!(with("NVIDIA GB200", "switch/nvidia_imex").disagreements, []);
    assert_eq!(with("NVIDIA H100", "(null)").disagreements, []);
}

#[test]
fn units_of_several_topologies_are_compared_with_their_own() {
    let mut file =
        blocks(SourceKind::SlurmTopologyYaml, &[("b1", nodes(1, 2)), ("b2", nodes(3, 4))]);
    file.groups.iter_mut().for_each(|group| group.topology = Some("topo-block".to_owned()));
    let live = blocks(SourceKind::SlurmTopology, &[("b1", nodes(1, 2)), ("b2", nodes(3, 5))]);
    let mut own = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
    nodes(1, 5).iter().for_each(|node| own.node_mut(node).state.push("IDLE".to_owned()));
    for (topology, unit) in [("topo-block", "b2"), ("topo-switch", "s2")] {
        let mut group = NodeGroup::new(NodeGroupKind::Domain, "node topology", unit, vec![node(5)]);
        group.topology = Some(topology.to_owned());
        own.groups.push(group);
    }
    let claims = reconciled(vec![file, live, own]);
    let disagreement = only(&claims, "topology-override");
    assert!(disagreement.summary.contains("block b2"), "{}", disagreement.summary);
}
