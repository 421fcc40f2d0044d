//! A restored store, and users who remove fabricgate's marks.

use super::*;
use crate::policy::action_policy::Policy;
use crate::policy::fixture::{PolicyFixture, written};
use crate::policy::marks::MarkNames;
use crate::policy::{journal_events, lost_drains, marks};
use model::action::{ActionKind, ActionResult};
use model::journal::{JournalEntry, JournalEvent};
use model::kubernetes_node::FabricNodeCondition;
use model::verdict::Outcome;

const NODE: &str = "d0n0";

/// One node that fabricgate drained yesterday, with its marks and its earlier state: it had passed,
/// or had no mark.
fn drained(had_passed: bool) -> PolicyFixture {
    drained_under(had_passed, Policy::default().marks)
}

/// [`drained`] for a site that writes these marks.
fn drained_under(had_passed: bool, names: MarkNames) -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(1, 4).on_kubernetes();
    world.policy.marks = names;
    world.verdicts.nodes.retain(|verdict| verdict.node.as_str() != NODE);
    if had_passed {
        let mut mark = world.drained(NODE, "nvlink-low", 0.5, 80_000).action.mark.expect("one");
        mark.outcome = Outcome::Pass;
        mark.class = None;
        mark.run = "run0".to_owned();
        *world.state(NODE, &["IDLE"]) = {
            let node = world.state(NODE, &["IDLE"]).clone();
            let change =
                marks::change_beside_action(ActionKind::Certify, &node, &mark, &world.policy.marks);
            written(&node, &change)
        };
    }
    world.object(NODE).version = "100".to_owned();
    world.node(NODE).reason = None;
    let before = world.node(NODE).clone();
    let own = world.drained(NODE, "nvlink-low", 0.5, 80_000);
    let mark = own.action.mark.clone().expect("one");
    let change =
        marks::change_beside_action(ActionKind::Drain, &before, &mark, &world.policy.marks);
    let mut node = written(&before, &change);
    node.state = vec!["IDLE".to_owned(), "DRAIN".to_owned()];
    node.reason = Some(own.action.reason.clone());
    node.kubernetes.as_mut().expect("one").version = "110".to_owned();
    *world.node(NODE) = node;
    world.ledger.spent.clear();
    let change = Box::new(change);
    let (id, run, action) = (own.id.clone(), own.run.clone(), Box::new(own.action.clone()));
    let intent =
        JournalEvent::Intent { id: id.clone(), run, action, change, before: Box::new(before) };
    let (result, detail) = (ActionResult::Done, String::new());
    for event in [intent, JournalEvent::Outcome { id, result, detail }] {
        let (format, seq) = (String::new(), world.ledger.lines + 1);
        let stamp = own.stamp.clone();
        world.ledger.apply(&JournalEntry { format, seq, stamp, epoch: own.epoch, event });
    }
    world
}

/// The node as an older store has it, at this version.
fn restored(world: &mut PolicyFixture, version: &str) {
    let before = world.ledger.drains[&NODE.into()].before.clone();
    *world.node(NODE) = before;
    world.object(NODE).version = version.to_owned();
}

/// Drains that must be repeated immediately.
fn lost(world: &PolicyFixture) -> Vec<String> {
    let live = world.live.as_ref().expect("asked");
    let lost = lost_drains::find_lost_drains(live, &world.ledger, &world.policy.marks).lost;
    lost.keys().map(ToString::to_string).collect()
}

fn is_undone(world: &PolicyFixture) -> bool {
    let events = journal_events::collect_events(&world.situation(), &world.policy);
    events.iter().any(|event| matches!(event, JournalEvent::Undone { .. }))
}

#[test]
fn a_drain_lost_by_a_restored_store_is_not_an_undo() {
    for had_passed in [true, false] {
        // The same version, and versions after heartbeats or a bumped revision.
        for version in ["100", "99", "5000"] {
            let mut world = drained(had_passed);
            assert!(!is_undone(&world));
            assert_eq!(lost(&world), [""; 0]);
            restored(&mut world, version);
            assert!(!is_undone(&world), "had passed: {had_passed}, version {version}");
            assert_eq!(lost(&world), [NODE], "had passed: {had_passed}, version {version}");
        }
    }
}

#[test]
fn a_drain_lost_by_a_restored_store_is_repeated_by_the_next_run_with_the_finding() {
    for had_passed in [true, false] {
        let mut world = drained(had_passed);
        restored(&mut world, "5000");
        world.verdicts.nodes = PolicyFixture::with_blocks(1, 4).verdicts.nodes;
        world.accuse(NODE, "nvlink-low", Outcome::Degraded, 0.5);
        assert_eq!(world.proposed(), [format!("drain {NODE}")], "{:#?}", world.plan());
    }
}

#[test]
fn a_drain_lost_by_a_restored_store_counts_against_others_only() {
    let mut world = drained(true);
    restored(&mut world, "5000");
    world.verdicts.nodes = PolicyFixture::with_blocks(1, 4).verdicts.nodes;
    // One at a time, here and in all.
    world.policy.outstanding = 0.0001;
    world.policy.per_domain = 1;
    world.accuse("d0n1", "nvlink-low", Outcome::Degraded, 0.5);
    assert!(world.why("d0n1").contains("budget"), "{}", world.why("d0n1"));
    world.accuse(NODE, "nvlink-low", Outcome::Degraded, 0.4);
    assert_eq!(world.proposed(), [format!("drain {NODE}")], "{:#?}", world.plan());
}

#[test]
fn removing_the_drain_is_an_undo_regardless_of_other_removals() {
    type KubernetesNodeChange = fn(&mut KubernetesNode);
    let edits: [KubernetesNodeChange; 4] = [
        |_| {},
        |it| it.annotations.clear(),
        |it| it.labels.clear(),
        |it| {
            it.annotations.clear();
            it.labels.clear();
        },
    ];
    for had_passed in [true, false] {
        for edit in edits {
            let mut world = drained(had_passed);
            world.state(NODE, &["IDLE"]).reason = None;
            let object = world.object(NODE);
            object.version = "120".to_owned();
            object.taints.clear();
            edit(object);
            assert!(is_undone(&world), "{had_passed}");
            assert_eq!(lost(&world), [""; 0], "{had_passed}");
        }
    }
}

#[test]
fn another_node_of_the_same_name_is_no_older_store() {
    let mut world = drained(false);
    restored(&mut world, "50");
    world.object(NODE).uid = "another".to_owned();
    assert!(is_undone(&world));
    assert_eq!(lost(&world), [""; 0]);
}

#[test]
fn a_whole_run_that_passes_ends_a_drain_that_the_store_lost() {
    let mut world = drained(true);
    restored(&mut world, "5000");
    world.verdicts.nodes = PolicyFixture::with_blocks(1, 4).verdicts.nodes;
    assert!(is_undone(&world));
}

#[test]
fn a_repeated_drain_keeps_the_evidence_of_an_older_store() {
    for had_passed in [true, false] {
        let mut world = drained(had_passed);
        restored(&mut world, "5000");
        let live = world.live.clone().expect("asked");
        for (_, change) in marks::find_lost_marks(&live, &world.ledger, &world.policy, &world.now) {
            *world.node(NODE) = written(&world.node(NODE).clone(), &change);
        }
        assert!(!is_undone(&world), "{had_passed}");
        // The condition no longer claims a pass.
        let status = |it: &FabricNodeCondition| it.status.clone();
        let condition = world.object(NODE).condition.as_ref().map(status);
        assert_eq!(condition.as_deref(), had_passed.then_some("False"));
    }
}

/// Removes everything that `kubectl` can remove: taints, labels and annotations.
fn cleared(world: &mut PolicyFixture) {
    world.state(NODE, &["IDLE"]).reason = None;
    let object = world.object(NODE);
    object.version = "120".to_owned();
    object.taints.clear();
    object.annotations.clear();
    object.labels.clear();
}

#[test]
fn defect_1_without_contrary_evidence_a_removal_is_an_undo() {
    let all = Policy::default().marks;
    // The site writes no condition.
    let mut world = drained_under(false, MarkNames { condition: false, ..all.clone() });
    cleared(&mut world);
    assert!(is_undone(&world));
    assert_eq!(lost(&world), [""; 0]);
    // The site writes no certificate: the earlier one stays through a drain.
    let mut world = drained_under(true, MarkNames { extra: false, ..all.clone() });
    let certificate = r#"{"v":1,"outcome":"pass","run":"run0","at":""}"#.to_owned();
    let before = world.ledger.drains.get_mut(&NODE.into()).expect("ours");
    let before = before.before.kubernetes.as_mut().expect("one");
    before.annotations.insert(CERTIFICATE.to_owned(), certificate.clone());
    cleared(&mut world);
    world.object(NODE).annotations.insert(CERTIFICATE.to_owned(), certificate);
    assert!(is_undone(&world));
    assert_eq!(lost(&world), [""; 0]);
    // The drain comes from another journal: the marks that it wrote are unknown.
    let mut world = drained(false);
    let own = world.ledger.drains[&NODE.into()].clone();
    let (action, before) = (Box::new(own.action), Box::new(own.before));
    let (by, why) = (String::new(), String::new());
    let event = JournalEvent::Adopted { run: own.run, action, before, set: None, by, why };
    let (format, stamp) = (String::new(), own.stamp);
    world.ledger.apply(&JournalEntry { format, seq: 3, stamp, epoch: own.epoch, event });
    cleared(&mut world);
    world.object(NODE).condition = None;
    assert!(is_undone(&world));
    assert_eq!(lost(&world), [""; 0]);
}

#[test]
fn defect_1_a_remaining_reason_shows_a_user_s_removal() {
    let mut world = drained(false);
    let reason = world.node(NODE).reason.clone();
    cleared(&mut world);
    world.object(NODE).condition = None;
    world.node(NODE).reason = reason;
    assert!(is_undone(&world));
    assert_eq!(lost(&world), [""; 0]);
}

#[test]
fn a_drain_lost_by_a_restored_store_waits_while_others_keep_pods_away() {
    let mut world = drained(true);
    restored(&mut world, "99");
    world.state(NODE, &["IDLE", "CORDONED"]);
    assert_eq!(lost(&world), [""; 0]);
    assert!(!is_undone(&world));
}
