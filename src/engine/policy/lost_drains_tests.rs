//! Tells apart drains that a user removed and drains that were lost.

use super::*;
use crate::policy::action_policy::Policy;
use crate::policy::fixture::PolicyFixture;
use crate::policy::journal_state::DrainDetails;
use crate::policy::{budget, journal_events};
use model::journal::JournalEvent;

/// Two drains by fabricgate with its `Extra` entries, under one controller.
fn world() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(2, 4);
    for node in ["d0n0", "d1n0"] {
        let own = world.drained(node, "nvlink-low", 0.9, 600);
        let mark = own.action.mark.expect("a mark");
        let names = &world.policy.marks;
        let change = crate::policy::marks::mark_change(
            world.live.as_ref().expect("asked").nodes.get(&NodeName::from(node)).expect("a node"),
            &mark,
            names,
        );
        let (extra, features) = (change.extra.expect("written"), change.available_features);
        let live = world.node(node);
        live.extra.clone_from(&extra);
        live.available_features = features.clone().expect("written");
        live.active_features = features.expect("written");
        let under = DrainDetails {
            controller: Some("monday".to_owned()),
            extra: Some(extra),
            ..DrainDetails::default()
        };
        world.ledger.drain_details.insert(node.into(), under);
        world.ledger.marks.insert(node.into(), mark);
    }
    world.ledger.controller = Some("monday".to_owned());
    world
}

/// As after `State=RESUME`.
fn resume(world: &mut PolicyFixture, node: &str) {
    world.state(node, &["IDLE"]).reason = None;
}

/// As after a start without its state.
fn forget(world: &mut PolicyFixture, node: &str) {
    resume(world, node);
    let live = world.node(node);
    (live.extra, live.available_features, live.active_features) = Default::default();
}

fn seen(world: &PolicyFixture) -> (Vec<String>, Vec<String>) {
    let all = find_lost_drains(
        world.live.as_ref().expect("asked"),
        &world.ledger,
        &Policy::default().marks,
    );
    let names = |nodes: Vec<&NodeName>| nodes.into_iter().map(ToString::to_string).collect();
    (names(all.lost.keys().collect()), names(all.unclear.iter().collect()))
}

fn undone(world: &PolicyFixture) -> Vec<String> {
    let events = journal_events::collect_events(&world.situation(), &world.policy);
    let of = |event: &JournalEvent| match event {
        JournalEvent::Undone { node, .. } => Some(node.to_string()),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

#[test]
fn defect_2_a_drain_lost_by_a_controller_is_not_an_undo() {
    let mut world = world();
    assert_eq!(seen(&world), (vec![], vec![]));
    forget(&mut world, "d0n0");
    world.ledger.controller = Some("tuesday".to_owned());
    assert_eq!(seen(&world).0, ["d0n0"]);
    assert_eq!(undone(&world), Vec::<String>::new());
    // The same without a known start time of the controller.
    world.ledger.controller = None;
    assert_eq!(seen(&world).0, ["d0n0"]);
    // A node that was removed and created again, without a restart of the controller.
    world.ledger.controller = Some("monday".to_owned());
    assert_eq!(seen(&world).0, ["d0n0"]);
    // Slurm's own reason is not a user's.
    world.state("d0n0", &["DOWN", "NOT_RESPONDING"]).reason = Some("Not responding".to_owned());
    assert_eq!((seen(&world).0, undone(&world)), (vec!["d0n0".to_owned()], vec![]));
    forget(&mut world, "d0n0");
    // A user who clears the rest may keep the features.
    world.node("d0n0").available_features = vec!["fabric_degraded".to_owned()];
    assert_eq!((seen(&world).0, undone(&world)), (vec![], vec!["d0n0".to_owned()]));
}

#[test]
fn defect_2_a_removed_drain_is_an_undo_despite_a_controller_restart() {
    for controller in [None, Some("monday"), Some("tuesday")] {
        let mut world = world();
        world.ledger.controller = controller.map(str::to_owned);
        resume(&mut world, "d0n0");
        assert_eq!(seen(&world), (vec![], vec![]), "{controller:?}");
        assert_eq!(undone(&world), ["d0n0"], "{controller:?}");
        // Other text replaces fabricgate's entry, and another reason replaces that of its drain.
        world.node("d0n0").extra = "ask jo".to_owned();
        assert_eq!(undone(&world), ["d0n0"], "{controller:?}");
        forget(&mut world, "d0n0");
        world.state("d0n0", &["IDLE", "DRAIN"]).reason = Some("psu".to_owned());
        assert_eq!(undone(&world), ["d0n0"], "{controller:?}");
    }
}

#[test]
fn defect_2_an_entry_of_before_the_drain_is_lost_with_it() {
    let mut world = world();
    let before = r#"{"fabricgate":{"v":1,"outcome":"pass","run":"run0","at":"x"}}"#;
    world.ledger.drains.get_mut(&NodeName::from("d0n0")).expect("one").before.extra =
        before.to_owned();
    resume(&mut world, "d0n0");
    world.node("d0n0").extra = before.to_owned();
    world.ledger.controller = Some("tuesday".to_owned());
    assert_eq!(seen(&world).0, ["d0n0"]);
}

#[test]
fn defect_2_all_drains_vanishing_without_a_trace_trip_the_breaker() {
    let mut world = world();
    for node in ["d0n0", "d1n0"] {
        forget(&mut world, node);
        world.ledger.drain_details.get_mut(&NodeName::from(node)).expect("one").extra = None;
    }
    assert_eq!(seen(&world), (vec![], vec![]), "the controller has not started since");
    world.ledger.controller = Some("tuesday".to_owned());
    assert_eq!(seen(&world).1, ["d0n0", "d1n0"]);
    let live = world.live.as_ref().expect("asked");
    let why = find_lost_drains(live, &world.ledger, &world.policy.marks)
        .explain_trip()
        .expect("a reason");
    assert!(why.contains("d0n0,d1n0 disappeared together"), "{why}");
    // A user wrote one of the two.
    let reason = world.ledger.drains[&NodeName::from("d1n0")].action.reason.clone();
    world.state("d1n0", &["IDLE", "DRAIN"]).reason = Some(reason);
    assert_eq!(seen(&world), (vec![], vec![]));
}

#[test]
fn a_lost_drain_stays_in_the_budgets() {
    let mut world = world();
    world.policy.per_domain = 1;
    let left = |world: &PolicyFixture| {
        budget::describe_remaining(
            &world.ledger,
            world.live.as_ref(),
            &world.fleet,
            &world.policy,
            &world.now,
        )
    };
    let before = left(&world);
    forget(&mut world, "d0n0");
    assert_eq!(left(&world), before);
}
