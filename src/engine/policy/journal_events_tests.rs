//! Journal events about fabricgate's drains.

use super::*;
use crate::policy::fixture::{NOW, PolicyFixture, stamp};
use crate::policy::journal_state::{CleanRun, OpenAllocation, OpenIntent, UndoneDrain};
use model::journal::HoldKind;
use model::node_update::NodeUpdate;

/// A case's name, and its change of the fixture.
type JournalEventCase = (&'static str, fn(&mut PolicyFixture));

const NODE: &str = "d0n0";

/// One drain by fabricgate from yesterday, and a run that did not measure the node.
fn world() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(1, 4);
    world.drained(NODE, "nvlink-low", 0.9, 80_000);
    world.verdicts.nodes.retain(|verdict| verdict.node.as_str() != NODE);
    world
}

/// [`world`] with a run that the node passed.
fn passed() -> PolicyFixture {
    let mut world = world();
    world.verdicts.nodes = PolicyFixture::with_blocks(1, 4).verdicts.nodes;
    world
}

fn noted(world: &PolicyFixture) -> Vec<JournalEvent> {
    collect_events(&world.situation(), &world.policy)
}

#[test]
fn a_drain_that_stands_is_nothing_to_note() {
    let mut world = world();
    assert!(noted(&world).is_empty());
    let reason = world.node(NODE).reason.clone().expect("ours");
    for behind in [" : Not responding", " : reboot issued", " looking into it, bob"] {
        world.node(NODE).reason = Some(format!("{reason}{behind}"));
        assert!(noted(&world).is_empty(), "{behind}");
    }
    world.state(NODE, &["MIXED", "DRAIN"]);
    assert!(noted(&world).is_empty());
    world.state(NODE, &["DOWN", "DRAIN", "NOT_RESPONDING"]);
    assert!(noted(&world).is_empty());
}

#[test]
fn a_removed_or_replaced_drain_is_recorded_as_undone() {
    let cases: [(&[&str], Option<&str>, &str); 7] = [
        (&["IDLE"], None, "it is IDLE, without a reason"),
        (&["MIXED"], None, "it is MIXED"),
        (&["IDLE", "NOT_RESPONDING"], None, "NOT_RESPONDING"),
        (&["IDLE"], Some("fabricgate:nvlink-low:run1 e3"), "it is IDLE"),
        (&["IDLE", "DRAIN"], Some("bob: mine now"), "bob: mine now"),
        (&["IDLE", "DRAIN"], Some("fabricgate:nvlink-low:run9 e4"), "run9"),
        (&["IDLE", "DRAIN"], None, "without a reason"),
    ];
    for (state, reason, detail) in cases {
        let mut world = world();
        world.state(NODE, state).reason = reason.map(str::to_owned);
        let events = noted(&world);
        let [JournalEvent::Undone { node, id, detail: text }] = events.as_slice() else {
            panic!("{state:?} {reason:?}: {events:?}")
        };
        assert_eq!((node.as_str(), id.as_str()), (NODE, "run1/d0n0/drain"));
        assert!(text.contains(detail), "{text}");
    }
}

#[test]
fn transient_states_and_own_actions_are_not_an_undo() {
    let states: [&[&str]; 8] = [
        &["UNKNOWN"],
        &["UNKNOWN", "DRAIN"],
        &["IDLE", "REBOOT_REQUESTED"],
        &["DOWN", "REBOOT_ISSUED"],
        &["IDLE", "CLOUD", "POWERED_DOWN"],
        &["FUTURE"],
        &["IDLE", "BRAND_NEW"],
        &[],
    ];
    for state in states {
        let mut world = world();
        world.state(NODE, state).reason = None;
        assert!(noted(&world).is_empty(), "{state:?}");
    }
    let undone = || {
        let mut world = world();
        world.state(NODE, &["IDLE"]).reason = None;
        assert_eq!(noted(&world).len(), 1);
        world
    };
    let mut absent = undone();
    absent.live.as_mut().expect("asked").nodes.clear();
    assert_eq!(
        noted(&absent),
        [JournalEvent::Absent { node: NODE.into() }],
        "not known is not undone"
    );
    let mut unasked = undone();
    unasked.live = None;
    assert!(noted(&unasked).is_empty());
    let mut held = undone();
    let hold = OpenAllocation {
        kind: HoldKind::Reservation,
        stamp: stamp(60),
        nodes: vec![NODE.into()],
        drained: vec![(NODE.into(), "fabricgate:nvlink-low:run1 e3".to_owned())],
        host: String::new(),
        pid: 1,
    };
    held.ledger.allocations.insert("hold".to_owned(), hold);
    assert!(noted(&held).is_empty(), "fabricgate holds it");
    let mut releasing = undone();
    let own = releasing.ledger.drains[&NodeName::from(NODE)].clone();
    releasing.ledger.open_intents.push_back(OpenIntent {
        is_late: false,
        id: "run2/d0n0/release".to_owned(),
        stamp: stamp(60),
        epoch: 2,
        run: "run2".to_owned(),
        action: own.action.clone(),
        change: NodeUpdate::default(),
        before: own.before.clone(),
    });
    assert!(noted(&releasing).is_empty(), "fabricgate's release may be the cause");
    let mut known = undone();
    let own = known.ledger.drains[&NodeName::from(NODE)].clone();
    known.ledger.undone_drains.insert(NODE.into(), UndoneDrain { stamp: stamp(60), drain: own });
    assert!(noted(&known).is_empty(), "noted before");
}

#[test]
fn a_whole_run_that_a_drained_node_passed_is_noted_once() {
    let world = passed();
    let clean = JournalEvent::Clean {
        node: NODE.into(),
        run: "run2".to_owned(),
        measured: NOW - 600,
        boot_id: None,
    };
    assert_eq!(noted(&world), [clean]);
    let changes: [JournalEventCase; 8] = [
        ("not complete", |w| w.run.complete = false),
        ("simulated", |w| w.run.real = false),
        ("an audit", |w| w.run.profile = "audit".to_owned()),
        ("of before the drain", |w| w.run.created_unix = NOW - 80_000),
        ("the run it was drained for", |w| w.run.id = "run1".to_owned()),
        ("another boot", |w| w.node(NODE).booted = Some(NOW - 60)),
        ("not passed", |w| w.accuse(NODE, "nvlink-low", Outcome::Unknown, 1.0)),
        ("noted before", |w| {
            let own = w.ledger.drains.values_mut().next().expect("one");
            own.clean.push(CleanRun { run: "run2".to_owned(), measured: NOW - 600, boot_id: None });
        }),
    ];
    for (name, change) in changes {
        let mut world = passed();
        change(&mut world);
        assert!(noted(&world).is_empty(), "{name}");
    }
    let mut lab = passed();
    lab.run.real = false;
    lab.policy.simulated = true;
    assert_eq!(noted(&lab).len(), 1);
    // A user removed the drain and the node passed: the drain is not fabricgate's any more.
    let mut undone = passed();
    undone.state(NODE, &["IDLE"]).reason = None;
    assert!(matches!(noted(&undone).as_slice(), [JournalEvent::Undone { .. }]));
}

#[test]
fn on_kubernetes_a_clean_run_counts_for_the_boot_that_the_node_shows() {
    let mut world = passed().on_kubernetes();
    let noted_boot = |world: &PolicyFixture| match noted(world).as_slice() {
        [JournalEvent::Clean { boot_id, .. }] => boot_id.clone(),
        none => {
            assert!(none.is_empty(), "{none:?}");
            None
        }
    };
    assert_eq!(noted_boot(&world), Some(format!("boot-{NODE}")));
    world.node(NODE).boot_id = Some("another".to_owned());
    assert_eq!(noted_boot(&world), None);
    world.node(NODE).boot_id = Some(format!("boot-{NODE}"));
    world.boots.clear();
    assert_eq!(noted_boot(&world), None, "its boot is unknown");
}

#[test]
fn on_kubernetes_a_taint_or_a_reason_that_was_taken_away_is_an_undo_and_a_cordon_is_none() {
    let stands = |change: fn(&mut PolicyFixture)| {
        let mut world = world().on_kubernetes();
        change(&mut world);
        noted(&world).is_empty()
    };
    assert!(stands(|_| ()));
    assert!(stands(|w| w.node(NODE).state.push("CORDONED".to_owned())));
    assert!(stands(|w| w.node(NODE).state = ["NOT_READY", "DRAIN"].map(str::to_owned).to_vec()));
    assert!(stands(|w| w.node(NODE).state = vec!["DELETING".to_owned()]));
    assert!(!stands(|w| w.node(NODE).state = vec!["IDLE".to_owned()]));
    assert!(!stands(|w| w.node(NODE).state = ["IDLE", "CORDONED"].map(str::to_owned).to_vec()));
    assert!(!stands(|w| w.node(NODE).reason = None));
    assert!(!stands(|w| w.node(NODE).reason = Some("bob: mine now".to_owned())));
}
