//! Whether a cluster's store is an older copy than the one that had our drain.
//!
//! Pure. A person who takes a drain away leaves what else we wrote beside it, and makes
//! the node's version a newer one. An etcd that was restored has the node as it was before.

use super::extra;
use super::ledger::Ledger;
use super::ledger::OwnDrain;
use crate::model::change::Change;
use crate::model::kubernetes_node::CERTIFICATE;
use crate::model::kubernetes_node::KubernetesNode;
use crate::model::live::LiveNode;

/// Whether the node is as it was before this drain. Another node of the same name is not.
pub(super) fn is_before(now: &LiveNode, drain: &OwnDrain) -> bool {
    let both = drain.before.kubernetes.as_deref().zip(now.kubernetes.as_deref());
    let Some((was, is)) = both.filter(|(was, is)| was.uid == is.uid) else { return false };
    is_older(was, is) || has_marks_of_then(was, is, drain)
}

/// The version of an object only grows within one store.
fn is_older(was: &KubernetesNode, is: &KubernetesNode) -> bool {
    let version = |node: &KubernetesNode| node.version.parse::<u64>().ok();
    version(was).zip(version(is)).is_some_and(|(was, is)| is <= was)
}

/// Whether what the drain wrote beside its taint is as it was before. Where nothing stood
/// there, a person may have taken it away; our condition stays then, which no tool removes.
fn has_marks_of_then(was: &KubernetesNode, is: &KubernetesNode, drain: &OwnDrain) -> bool {
    let Some(mark) = &drain.action.mark else { return false };
    let said = |node: &KubernetesNode| node.annotations.get(CERTIFICATE).cloned();
    let is_of_drain = |text: &String| extra::entry_says(text, mark);
    match said(was) {
        Some(text) => !is_of_drain(&text) && said(is).as_ref() == Some(&text),
        None => said(is).is_none() && was.condition.is_none() && is.condition.is_none(),
    }
}

/// What is said again on a node whose drain the store lost: nothing that would tell no
/// longer that it did.
pub(super) fn kept(change: Change, now: &LiveNode, ledger: &Ledger) -> Change {
    let Some(drain) = ledger.drains.get(&now.name).filter(|drain| is_before(now, drain)) else {
        return change;
    };
    let was = drain.before.kubernetes.as_ref();
    if !was.is_some_and(|was| was.annotations.contains_key(CERTIFICATE)) {
        return Change::default();
    }
    let mut change = change;
    if let Some(marks) = &mut change.kubernetes {
        marks.annotations.remove(CERTIFICATE);
        if *marks == Default::default() {
            change.kubernetes = None;
        }
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::fixture::World;
    use crate::act::fixture::written;
    use crate::act::marks;
    use crate::act::notice;
    use crate::model::action::ActionKind;
    use crate::model::journal::Event;
    use crate::model::kubernetes_node::Condition;
    use crate::model::verdict::Outcome;

    const NODE: &str = "d0n0";

    /// One node that we drained yesterday, with its marks, and what it was before: one
    /// that had passed, or one of which nothing had been said.
    fn drained(had_passed: bool) -> World {
        let mut world = World::of(1, 4).on_kubernetes();
        world.verdicts.nodes.retain(|verdict| verdict.node.as_str() != NODE);
        if had_passed {
            let mut mark = world.drained(NODE, "nvlink-low", 0.5, 80_000).action.mark.expect("one");
            mark.outcome = Outcome::Pass;
            mark.class = None;
            mark.run = "run0".to_owned();
            *world.state(NODE, &["IDLE"]) = {
                let node = world.state(NODE, &["IDLE"]).clone();
                let change =
                    marks::of_action(ActionKind::Certify, &node, &mark, &world.policy.marks);
                written(&node, &change)
            };
        }
        world.object(NODE).version = "100".to_owned();
        world.node(NODE).reason = None;
        let before = world.node(NODE).clone();
        let own = world.drained(NODE, "nvlink-low", 0.5, 80_000);
        let mark = own.action.mark.clone().expect("one");
        let change = marks::of_action(ActionKind::Drain, &before, &mark, &world.policy.marks);
        let mut node = written(&before, &change);
        node.state = vec!["IDLE".to_owned(), "DRAIN".to_owned()];
        node.reason = Some(own.action.reason.clone());
        node.kubernetes.as_mut().expect("one").version = "110".to_owned();
        *world.node(NODE) = node;
        world.ledger.marks.insert(NODE.into(), mark);
        let own = world.ledger.drains.get_mut(&NODE.into()).expect("ours");
        own.before = before;
        world
    }

    /// The node as an older store has it, at this version.
    fn restored(world: &mut World, version: &str) {
        let before = world.ledger.drains[&NODE.into()].before.clone();
        *world.node(NODE) = before;
        world.object(NODE).version = version.to_owned();
    }

    fn is_undone(world: &World) -> bool {
        let events = notice::events(&world.situation(), &world.policy);
        events.iter().any(|event| matches!(event, Event::Undone { .. }))
    }

    #[test]
    fn a_drain_that_a_restored_store_lost_was_not_undone_by_a_person() {
        for had_passed in [true, false] {
            // As it was, and after heartbeats or a bumped revision.
            for version in ["100", "99", "5000"] {
                let mut world = drained(had_passed);
                assert!(!is_undone(&world));
                restored(&mut world, version);
                assert!(!is_undone(&world), "had passed: {had_passed}, version {version}");
            }
        }
    }

    #[test]
    fn what_a_restored_store_lost_is_drained_again_by_the_next_run_that_finds_it() {
        for had_passed in [true, false] {
            let mut world = drained(had_passed);
            restored(&mut world, "5000");
            world.verdicts.nodes = World::of(1, 4).verdicts.nodes;
            world.accuse(NODE, "nvlink-low", Outcome::Degraded, 0.5);
            assert_eq!(world.proposed(), [format!("drain {NODE}")], "{:#?}", world.plan());
        }
    }

    #[test]
    fn what_a_restored_store_lost_is_not_counted_against_itself_but_against_others() {
        let mut world = drained(true);
        restored(&mut world, "5000");
        world.verdicts.nodes = World::of(1, 4).verdicts.nodes;
        // One at a time, here and in all.
        world.policy.outstanding = 0.0001;
        world.policy.per_domain = 1;
        world.accuse("d0n1", "nvlink-low", Outcome::Degraded, 0.5);
        assert!(world.why("d0n1").contains("budget"), "{}", world.why("d0n1"));
        world.accuse(NODE, "nvlink-low", Outcome::Degraded, 0.4);
        assert_eq!(world.proposed(), [format!("drain {NODE}")], "{:#?}", world.plan());
    }

    #[test]
    fn whoever_takes_our_drain_away_has_undone_it_whatever_else_they_take() {
        type Edit = fn(&mut KubernetesNode);
        let edits: [Edit; 4] = [
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
            }
        }
    }

    #[test]
    fn another_node_of_the_same_name_is_no_older_store() {
        let mut world = drained(false);
        restored(&mut world, "50");
        world.object(NODE).uid = "another".to_owned();
        assert!(is_undone(&world));
    }

    #[test]
    fn a_whole_run_that_passes_ends_a_drain_that_the_store_lost() {
        let mut world = drained(true);
        restored(&mut world, "5000");
        world.verdicts.nodes = World::of(1, 4).verdicts.nodes;
        assert!(is_undone(&world));
    }

    #[test]
    fn what_is_said_again_leaves_what_tells_that_the_store_is_older() {
        for had_passed in [true, false] {
            let mut world = drained(had_passed);
            restored(&mut world, "5000");
            let live = world.live.clone().expect("asked");
            for (_, change) in marks::forgotten(&live, &world.ledger, &world.policy, &world.now) {
                *world.node(NODE) = written(&world.node(NODE).clone(), &change);
            }
            assert!(!is_undone(&world), "{had_passed}");
            // It no longer claims a pass all the same.
            let status = |it: &Condition| it.status.clone();
            let condition = world.object(NODE).condition.as_ref().map(status);
            assert_eq!(condition.as_deref(), had_passed.then_some("False"));
        }
    }
}
