//! Cables, leaves and racks.

use super::*;
use model::source_report::NicReport;

/// Four nodes with two rails each; `moved` changes the other end of a cable.
fn ends(kind: SourceKind, moved: &[(u32, u32, &str, u32)]) -> SourceReport {
    let mut report = SourceReport::new(kind, place(kind));
    for number in 1..=4 {
        for rail in 0..2 {
            let (mut leaf, mut port) = (format!("leaf{rail}"), number);
            if let Some((_, _, to, at)) = moved.iter().find(|m| (m.0, m.1) == (number, rail)) {
                (leaf, port) = ((*to).to_owned(), *at);
            }
            // Switches spell their ports in several ways.
            let name = if kind == SourceKind::Cabling { "Ethernet1" } else { "Eth1" };
            report.node_mut(&node(number)).nics.push(NicReport {
                device: Some(format!("mlx5_{rail}")),
                rail: (kind == SourceKind::Cabling).then(|| format!("rail{rail}")),
                leaf: Some(leaf),
                port: Some(format!("{name}/{port}")),
                ..NicReport::default()
            });
        }
    }
    report
}

fn seen(moved: &[(u32, u32, &str, u32)]) -> Claims {
    let domain = blocks(SourceKind::ClaimsFile, &[("d", nodes(1, 4))]);
    let cabling = ends(SourceKind::Cabling, &[]);
    reconciled(vec![domain, cabling, ends(SourceKind::Neighbours, moved)])
}

#[test]
fn correct_cables_give_no_disagreement() {
    assert_eq!(seen(&[]).disagreements, []);
}

#[test]
fn two_hosts_at_each_others_ports_are_swapped_on_both_rails() {
    let moved = [(1, 0, "leaf0", 2), (2, 0, "leaf0", 1), (1, 1, "leaf1", 2), (2, 1, "leaf1", 1)];
    let claims = seen(&moved);
    let disagreement = only(&claims, "hosts-swapped");
    assert_eq!(
        (disagreement.severity, &disagreement.nodes),
        (DisagreementSeverity::Contradiction, &nodes(1, 2))
    );
    assert!(disagreement.summary.contains("2 cable pairs"), "{}", disagreement.summary);
    assert!(disagreement.sides.iter().any(|side| side.basis == ClaimBasis::Reported));
}

#[test]
fn rails_of_one_host_can_be_swapped_too() {
    let claims = seen(&[(3, 0, "leaf1", 3), (3, 1, "leaf0", 3)]);
    assert_eq!(only(&claims, "rails-swapped").nodes, [node(3)]);
}

#[test]
fn one_end_elsewhere_is_one_cable_and_a_whole_leaf_its_name() {
    let claims = seen(&[(3, 0, "leaf9", 3)]);
    assert_eq!(only(&claims, "leaf-against-neighbour").nodes, [node(3)]);
    let all: Vec<(u32, u32, &str, u32)> = (1..=4).map(|n| (n, 0, "leaf9", n)).collect();
    let claims = seen(&all);
    assert_eq!(only(&claims, "leaf-mislabelled").nodes, nodes(1, 4));
}

#[test]
fn a_tree_that_puts_a_node_under_another_leaf_is_a_doubt() {
    let domain = blocks(SourceKind::ClaimsFile, &[("d", nodes(1, 6))]);
    let leaf = |kind, first: Vec<NodeName>, second: Vec<NodeName>| {
        let mut report = SourceReport::new(kind, "x");
        report.groups.push(NodeGroup::new(NodeGroupKind::Leaf, "switch", "s1", first));
        report.groups.push(NodeGroup::new(NodeGroupKind::Leaf, "switch", "s2", second));
        report
    };
    let slurm = leaf(SourceKind::SlurmTopology, nodes(1, 3), nodes(4, 6));
    let same = leaf(SourceKind::Cabling, nodes(1, 3), nodes(4, 6));
    assert_eq!(reconciled(vec![domain.clone(), slurm.clone(), same]).disagreements, []);
    let other: Vec<NodeName> = nodes(4, 6).into_iter().chain([node(3)]).collect();
    let cabling = leaf(SourceKind::Cabling, nodes(1, 2), other);
    let claims = reconciled(vec![domain, slurm, cabling]);
    let disagreement = only(&claims, "leaves-disagree");
    assert_eq!(
        (disagreement.severity, disagreement.nodes.as_slice()),
        (DisagreementSeverity::Doubt, &[node(3)][..])
    );
}

fn racked(kind: SourceKind, list: &[(u32, &str, &str)]) -> SourceReport {
    let mut report = SourceReport::new(kind, place(kind));
    for (number, rack, slot) in list {
        let words = report.node_mut(&node(*number));
        words.rack = Some((*rack).to_owned());
        words.slot = Some((*slot).to_owned()).filter(|slot| !slot.is_empty());
    }
    report
}

#[test]
fn racks_are_compared_by_their_nodes_and_not_by_name() {
    let cabling = racked(SourceKind::Cabling, &[(1, "R7", "1"), (2, "R7", "2"), (3, "R7", "3")]);
    let own = |third: &str, slot: &str| {
        let list = [(1, "SN123", "10"), (2, "SN123", "11"), (3, third, slot)];
        racked(SourceKind::NodeFacts, &list)
    };
    assert_eq!(reconciled(vec![cabling.clone(), own("SN123", "12")]).disagreements, []);
    let claims = reconciled(vec![cabling.clone(), own("SN999", "12")]);
    assert_eq!(only(&claims, "rack-disagrees").nodes, [node(3)]);
    let claims = reconciled(vec![cabling, own("SN123", "17")]);
    assert_eq!(only(&claims, "slot-disagrees").nodes, [node(3)]);
}

#[test]
fn two_nodes_in_one_slot_and_a_domain_in_two_racks_are_reported() {
    let claims = reconciled(vec![racked(SourceKind::Cabling, &[(1, "R7", "1"), (2, "R7", "1")])]);
    assert_eq!(only(&claims, "slot-taken").nodes, nodes(1, 2));
    let mut domain = blocks(SourceKind::ClaimsFile, &[("d", nodes(1, 3))]);
    let places = racked(SourceKind::Cabling, &[(1, "R7", ""), (2, "R7", ""), (3, "R8", "")]);
    domain.groups[0].platform = Some("gb200-nvl72".to_owned());
    let claims = reconciled(vec![domain.clone(), places.clone()]);
    assert_eq!(only(&claims, "rack-against-domain").nodes, [node(3)]);
    domain.groups[0].platform = Some("hgx-h100".to_owned());
    assert_eq!(reconciled(vec![domain, places]).disagreements, []);
}

#[test]
fn switch_trays_do_not_make_slots_disagree() {
    let slot = |tray: u32| if tray <= 8 { tray } else { tray + 9 };
    let of = |kind, slots: &dyn Fn(u32) -> u32| {
        let mut report = SourceReport::new(kind, place(kind));
        for number in 1..=18 {
            let words = report.node_mut(&node(number));
            (words.rack, words.slot) = (Some("r".to_owned()), Some(slots(number).to_string()));
        }
        report
    };
    let cabling = || of(SourceKind::Cabling, &|tray| tray);
    let claims = reconciled(vec![cabling(), of(SourceKind::NodeFacts, &slot)]);
    assert_eq!(claims.disagreements, []);
    let swapped = |tray: u32| {
        slot(match tray {
            2 => 3,
            3 => 2,
            other => other,
        })
    };
    let claims = reconciled(vec![cabling(), of(SourceKind::NodeFacts, &swapped)]);
    assert_eq!(only(&claims, "slot-disagrees").nodes, nodes(2, 3));
}
