//! Nodes that wait for a second run, conditions on that run, and the events that end the wait.

use super::*;
use crate::policy::fixture::{NOW, PolicyFixture};
use crate::policy::journal_state::JournalState;
use crate::policy::{action_policy, journal_events};
use model::action::ActionKind;
use model::finding_class::{FindingClass, join_class_names};
use model::journal::{JOURNAL_FORMAT, JournalEntry, JournalEvent};
use model::verdict::{Evidence, Outcome};

const HOUR: i64 = 3_600;

/// One node of a rack 9 % below its level, found by an audit ten minutes ago.
fn world() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(2, 18);
    world.run.profile = "audit".to_owned();
    world.policy.again_hours = 4.0;
    world.accuse("d0n0", "nvlink-low", Outcome::Degraded, 0.91);
    world
}

/// Records the events of a run, as the gate does.
fn noted(world: &mut PolicyFixture) -> Vec<JournalEvent> {
    let mut events = journal_events::collect_events(&world.situation(), &world.policy);
    let plan = action_policy::propose_actions(&world.situation(), &world.policy);
    events.extend(journal_events::collect_suspicions(&world.situation(), &plan));
    for event in &events {
        let (format, event) = (JOURNAL_FORMAT.to_owned(), event.clone());
        world.ledger.apply(&JournalEntry {
            format,
            seq: 1,
            stamp: world.now.clone(),
            epoch: 7,
            event,
        });
    }
    events
}

/// The next run, this many hours later.
fn later(world: &mut PolicyFixture, hours: i64) {
    world.run.id = format!("run2+{hours}h");
    world.run.created_unix += hours * HOUR;
    world.now.unix += hours * HOUR;
}

#[test]
fn a_node_found_slow_by_two_runs_is_drained() {
    let mut world = world();
    assert!(
        world.why("d0n0").contains("this run is the first to find it"),
        "{}",
        world.why("d0n0")
    );
    let recorded = noted(&mut world);
    assert!(matches!(recorded.as_slice(), [JournalEvent::Suspected { .. }]), "{recorded:?}");
    // A repetition of the same run adds no evidence.
    assert!(noted(&mut world).is_empty());
    later(&mut world, 3);
    assert!(world.why("d0n0").contains("run run2 was the first"), "{}", world.why("d0n0"));
    assert!(noted(&mut world).is_empty(), "the first stays the first");
    later(&mut world, 1);
    assert_eq!(world.proposed(), ["drain d0n0"]);
}

#[test]
fn pending_confirmations_are_machine_readable_and_use_no_budget() {
    let plan = world().plan();
    let waits = plan.withheld.iter().find(|it| it.what == "d0n0").expect("d0n0");
    let again = waits.again.as_ref().expect("what is awaited");
    assert_eq!(
        (again.first.as_str(), join_class_names(&again.classes)),
        ("run2", "nvlink-low".to_owned())
    );
    assert_eq!(again.from, format_rfc3339(NOW - 600 + 4 * HOUR));
    assert!(!waits.budget);
}

/// A change of a suspected node and its second run, and whether it leads to a drain.
type SecondRunCase = (&'static str, fn(&mut PolicyFixture), bool);

#[test]
fn only_a_recent_finding_of_the_same_class_and_boot_is_confirmed() {
    let cases: [SecondRunCase; 6] = [
        ("the same", |_| {}, true),
        ("another class", |w| w.verdicts.findings[0].class = FindingClass::HostLinkLow, false),
        ("booted since", |w| w.node("d0n0").booted = Some(NOW), false),
        ("eight days later", |w| later(w, 8 * 24), false),
        ("no second measurement", |w| w.verdicts.findings[0].confirmed = false, false),
        ("hours that are over", |w| w.policy.again_hours = 30.0, false),
    ];
    for (what, change, drains) in cases {
        let mut world = world();
        noted(&mut world);
        later(&mut world, 24);
        change(&mut world);
        assert_eq!(!world.plan().actions.is_empty(), drains, "{what}");
    }
}

#[test]
fn a_pass_in_between_ends_it_and_a_run_that_did_not_see_does_not() {
    for (outcome, drains) in [(Outcome::Pass, false), (Outcome::Unknown, true)] {
        let mut world = world();
        noted(&mut world);
        let mut between = world.clone();
        later(&mut between, 24);
        between.verdicts.findings.clear();
        between.verdicts.nodes[0].outcome = outcome;
        let recorded = noted(&mut between);
        let is_cleared = matches!(recorded.as_slice(), [JournalEvent::Cleared { .. }]);
        assert_eq!(is_cleared, outcome == Outcome::Pass, "{recorded:?}");
        world.ledger = between.ledger;
        later(&mut world, 48);
        assert_eq!(!world.plan().actions.is_empty(), drains, "{outcome}");
    }
}

#[test]
fn a_loss_without_a_transient_explanation_is_drained_immediately() {
    type SuspicionCase = (&'static str, fn(&mut PolicyFixture));
    let cases: [SuspicionCase; 7] = [
        ("it cannot be used", |w| w.accuse("d0n0", "data-corruption", Outcome::Failed, 1.0)),
        ("the driver reports it", |w| {
            w.accuse("d0n0", "nvlink-inactive", Outcome::Degraded, 17.0 / 18.0);
            // The error is in one output, and no second measurement repeats it.
            w.verdicts.findings[1].confirmed = false;
        }),
        ("the judge merged the driver's report", |w| {
            w.verdicts.findings[0].evidence.push(Evidence {
                file: "raw/nodes/d0n0/nvidia-smi-nvlink.7-0.txt".to_owned(),
                testcase: None,
                detail: "GPU d0n0:2: 17 of 18 NVLinks are active; inactive: 5".to_owned(),
                class: Some(FindingClass::NvlinkInactive),
            });
        }),
        ("a deep loss", |w| w.verdicts.findings[0].ratio = Some(0.5)),
        ("a burn-in", |w| w.run.profile = "burn-in".to_owned()),
        ("not configured", |w| w.policy.again_hours = 0.0),
        ("it takes no work yet", |w| {
            *w = w.clone().on_kubernetes();
            w.state("d0n0", &["IDLE", "UNVERIFIED"]);
        }),
    ];
    for (what, change) in cases {
        let mut world = world();
        change(&mut world);
        assert_eq!(world.proposed(), ["drain d0n0"], "{what}");
    }
}

#[test]
fn a_mark_needs_no_second_run_because_it_takes_nothing_out() {
    let mut world = world();
    world.policy.soft = action_policy::SoftFaults::Relabel;
    assert_eq!(world.plan().actions[0].kind, ActionKind::Relabel);
}

#[test]
fn a_slow_rack_is_not_a_first_observation_of_its_nodes() {
    let mut world = world();
    for node in ["d0n1", "d0n2"] {
        world.accuse(node, "nvlink-low", Outcome::Degraded, 0.93);
    }
    assert!(world.why("d0n0").starts_with("frozen"), "{}", world.why("d0n0"));
    assert!(noted(&mut world).is_empty());
}

#[test]
fn a_drain_ends_the_suspicion_it_rests_on() {
    let mut ledger = JournalState::default();
    let own = crate::policy::fixture::drain(
        &PolicyFixture::with_blocks(1, 2).fleet,
        "d0n0",
        "nvlink-low",
        0.9,
        crate::policy::fixture::stamp(60),
    );
    let mut world = world();
    noted(&mut world);
    std::mem::swap(&mut ledger, &mut world.ledger);
    assert_eq!(ledger.suspicions.len(), 1);
    let write = |ledger: &mut JournalState, event| {
        let format = JOURNAL_FORMAT.to_owned();
        let entry = JournalEntry {
            format,
            seq: 9,
            stamp: crate::policy::fixture::stamp(0),
            epoch: 8,
            event,
        };
        ledger.apply(&entry);
    };
    write(
        &mut ledger,
        JournalEvent::Intent {
            id: own.id.clone(),
            run: own.run.clone(),
            action: Box::new(own.action.clone()),
            change: Box::default(),
            before: Box::new(own.before.clone()),
        },
    );
    let result = model::action::ActionResult::Done;
    write(&mut ledger, JournalEvent::Outcome { id: own.id, result, detail: String::new() });
    assert!(ledger.suspicions.is_empty() && ledger.drains.len() == 1);
}

#[test]
fn words_that_only_sound_like_the_driver_are_none_of_its() {
    let mut world = world();
    world.verdicts.findings[0].evidence.push(Evidence {
        file: "raw/nodes/d0n0/nvbandwidth.3-0.txt".to_owned(),
        testcase: None,
        detail: "17 of 18 NVLinks are active, the driver reports".to_owned(),
        class: None,
    });
    assert!(world.plan().actions.is_empty());
    assert!(world.why("d0n0").contains("may be transient"), "{}", world.why("d0n0"));
}
