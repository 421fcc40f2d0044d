//! Changes between two points in time.

use super::super::diff::{ClaimsChangeKind, changed_facts, diff_claims};
use super::*;
use model::claims::ClaimedRail;
use model::source_report::NodeReport;

fn kinds(old: &Claims, new: &Claims) -> Vec<(ClaimsChangeKind, String)> {
    diff_claims(old, new).into_iter().map(|change| (change.kind, change.text)).collect()
}

#[test]
fn equal_claims_have_no_changes_at_any_time() {
    let old = reconciled(healthy());
    let mut new = old.clone();
    for read in &mut new.sources {
        read.source.read_at = Some("2026-11-21T10:00:00Z".to_owned());
    }
    assert_eq!(diff_claims(&old, &new), []);
}

#[test]
fn added_removed_and_moved_nodes_are_reported_with_their_domains() {
    let of =
        |list: &[(&str, Vec<NodeName>)]| reconciled(vec![blocks(SourceKind::ClaimsFile, list)]);
    let old = of(&[("a", nodes(1, 4)), ("b", nodes(5, 8)), ("c", nodes(9, 9))]);
    let moved: Vec<NodeName> = nodes(5, 7).into_iter().chain([node(4)]).collect();
    let new = of(&[("a", nodes(1, 3)), ("b", moved), ("d", nodes(10, 11))]);
    let changes = kinds(&old, &new);
    assert_eq!(
        changes,
        [
            (ClaimsChangeKind::DomainAppeared, "d is newly claimed: n[10-11]".to_owned()),
            (ClaimsChangeKind::DomainVanished, "c is no longer claimed; it had n09".to_owned()),
            (ClaimsChangeKind::NodesMoved, "n04 moved from a to b".to_owned()),
            (ClaimsChangeKind::NodesLost, "b lost n08".to_owned()),
        ]
    );
}

#[test]
fn a_rail_with_another_device_is_reported_with_both() {
    let on = |device: &str| {
        let device = Some(device.to_owned());
        let rail = ClaimedRail { name: "r0".to_owned(), device, network: None, rdma: None };
        Claims { rails: vec![rail], ..Claims::default() }
    };
    let statement = "rails: r0 (eth1) before, r0 (eth2) now".to_owned();
    assert_eq!(kinds(&on("eth1"), &on("eth2")), [(ClaimsChangeKind::NetworkChanged, statement)]);
}

#[test]
fn reboots_drivers_sources_and_disagreements_are_reported_once_for_many_nodes() {
    let old = healthy();
    let mut new = healthy();
    new.retain(|report| report.source.kind != SourceKind::SlurmNodes);
    for report in new.iter_mut().filter(|report| report.source.kind == SourceKind::NodeFacts) {
        for (name, node) in &mut report.nodes {
            node.driver = Some("590.1".to_owned());
            if name.as_str() <= "n02" {
                node.boot_id = Some(format!("boot-{name}"));
            }
            if name.as_str() == "n03" {
                node.gpus = Some(3);
            }
        }
    }
    let changes = kinds(&reconciled(old), &reconciled(new));
    let seen: Vec<&str> = changes.iter().map(|(_, statement)| statement.as_str()).collect();
    assert_eq!(seen.len(), 5, "{seen:#?}");
    assert_eq!(seen[0], "n[01-02] are rebooted or replaced");
    assert_eq!(seen[1], "n[01-36]: driver 580.1 before, 590.1 now");
    assert_eq!(seen[2], "n03: number of GPUs 4 before, 3 now");
    assert!(changes.iter().any(|(kind, _)| *kind == ClaimsChangeKind::SourceVanished));
    assert!(seen[4].starts_with("new: gpu-count (contradiction): n03"), "{}", seen[4]);
}

#[test]
fn a_drain_is_not_a_change_of_the_node() {
    let was = NodeReport { state: vec!["IDLE".to_owned()], gpus: Some(4), ..NodeReport::default() };
    let drained = NodeReport { state: vec!["IDLE".to_owned(), "DRAIN".to_owned()], ..was.clone() };
    assert_eq!(changed_facts(&was, &drained), []);
    let fewer = NodeReport { gpus: Some(3), product: Some("GB200".to_owned()), ..drained };
    let change = |what, before: &str, after: &str| (what, before.to_owned(), after.to_owned());
    assert_eq!(
        changed_facts(&was, &fewer),
        [change("product", "not reported", "GB200"), change("number of GPUs", "4", "3")]
    );
}
