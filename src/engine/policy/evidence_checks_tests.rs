//! How long a run and an undo count.

use crate::policy::action_policy::SlinkyOwner;
use crate::policy::fixture::{NOW, PolicyFixture, drain, finding, stamp};
use crate::policy::journal_state::{OpenAllocation, OpenIntent, UndoneDrain};
use model::id::NodeName;
use model::journal::HoldKind;
use model::node_update::NodeUpdate;
use model::verdict::Outcome;

/// A case's name, and its change of the fixture.
type EvidenceCheckCase = (&'static str, fn(&mut PolicyFixture));

fn world() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(4, 18);
    world.accuse("d0n0", "nvlink-low", Outcome::Degraded, 0.9);
    world
}

#[test]
fn old_future_and_simulated_runs_act_on_no_node() {
    assert_eq!(world().proposed(), ["drain d0n0"]);
    for (change, why) in [
        (
            (|w: &mut PolicyFixture| w.run.created_unix = NOW - 24 * 3_600 - 60)
                as fn(&mut PolicyFixture),
            "the run is 24 hours old",
        ),
        (|w| w.run.created_unix = NOW + 301, "a clock has jumped"),
        (|w| w.run.created_unix = 0, "the time of the run is unknown"),
        (|w| w.run.real = false, "simulated fabric"),
    ] {
        let mut world = world();
        change(&mut world);
        assert!(world.why("d0n0").contains(why), "{}", world.why("d0n0"));
        let plan = world.plan();
        assert!(plan.frozen.is_some_and(|frozen| frozen.contains(why)));
        assert!(plan.withheld.iter().all(|w| !w.budget), "no budget forbids it");
        // A plan that is only displayed follows from verdicts alone.
        world.live = None;
        assert_eq!(world.proposed(), ["drain d0n0"]);
    }
    let mut lab = world();
    lab.run.real = false;
    lab.policy.simulated = true;
    assert_eq!(lab.proposed(), ["drain d0n0"]);
    let mut edge = world();
    edge.run.created_unix = NOW - 24 * 3_600;
    assert_eq!(edge.proposed(), ["drain d0n0"]);
}

#[test]
fn a_node_that_booted_since_is_measured_first() {
    let mut world = world();
    world.node("d0n0").booted = Some(world.run.created_unix);
    assert_eq!(world.proposed(), ["drain d0n0"]);
    world.node("d0n0").booted = Some(world.run.created_unix + 1);
    assert!(world.why("d0n0").contains("booted since"));
    world.node("d0n0").booted = None;
    assert_eq!(world.proposed(), ["drain d0n0"]);
}

#[test]
fn half_a_run_drains_for_hard_faults_only() {
    let mut world = world();
    world.run.complete = false;
    assert!(world.why("d0n0").contains("incomplete run"));
    world.accuse("d1n0", "nvlink-absent", Outcome::Failed, 0.0);
    assert_eq!(world.proposed(), ["drain d1n0"]);
}

#[test]
fn actions_in_progress_come_first() {
    let mut open = world();
    let own = drain(&open.fleet, "d0n0", "nvlink-low", 0.9, stamp(60));
    open.ledger.open_intents.push_back(OpenIntent {
        is_late: false,
        id: own.id,
        stamp: own.stamp,
        epoch: own.epoch,
        run: own.run,
        action: own.action,
        change: NodeUpdate::default(),
        before: own.before,
    });
    assert!(open.why("d0n0").contains("not concluded"));
    let mut held = world();
    let hold = |drained: Vec<(NodeName, String)>| OpenAllocation {
        kind: HoldKind::Reservation,
        stamp: stamp(60),
        nodes: vec![NodeName::from("d0n0")],
        drained,
        host: String::new(),
        pid: 1,
    };
    held.ledger.allocations.insert("hold1".to_owned(), hold(Vec::new()));
    assert_eq!(held.proposed(), ["drain d0n0"]);
    let ours = vec![(NodeName::from("d0n0"), String::new())];
    held.ledger.allocations.insert("hold1".to_owned(), hold(ours));
    assert!(held.why("d0n0").contains("held for measuring (hold1)"));
}

/// A drain of `d0n0` for `nvlink-low` at 90 % that a user removed this many seconds ago.
fn undone(ago: i64) -> PolicyFixture {
    let mut world = world();
    let drain = drain(&world.fleet, "d0n0", "nvlink-low", 0.9, stamp(ago + 600));
    let node = NodeName::from("d0n0");
    world.ledger.undone_drains.insert(node, UndoneDrain { stamp: stamp(ago), drain });
    world
}

#[test]
fn an_undo_stands_against_the_same_evidence() {
    let world = undone(3_600);
    let why = world.why("d0n0");
    assert!(
        why.contains("undone manually, observed at 3600 s ago; the evidence is the same"),
        "{why}"
    );
    for ratio in [0.95, 0.9, 0.88, 0.8721] {
        let mut same = undone(3_600);
        same.verdicts.findings[0].ratio = Some(ratio);
        assert!(same.proposed().is_empty(), "{ratio}");
    }
    // The same part measured by two probes does not add a class.
    let mut known = undone(3_600);
    known.accuse("d0n0", "p2p-low", Outcome::Degraded, 0.9);
    let also = finding("d0n0", "p2p-low", Outcome::Degraded, 0.9).id;
    let old = known.ledger.undone_drains.values_mut().next().expect("one");
    old.drain.action.findings.push(also);
    assert!(known.proposed().is_empty());
    // The same run that was undone.
    let mut same_run = undone(3_600);
    same_run.run.id = "run1".to_owned();
    same_run.accuse("d0n0", "nic-low", Outcome::Degraded, 0.5);
    assert!(same_run.proposed().is_empty());
}

#[test]
fn new_evidence_acts_again() {
    let changes: [EvidenceCheckCase; 5] = [
        ("clearly lower", |w| w.verdicts.findings[0].ratio = Some(0.87)),
        ("another class", |w| w.accuse("d0n0", "nic-low", Outcome::Degraded, 0.95)),
        ("worse", |w| w.verdicts.findings[0].outcome = Outcome::Failed),
        ("another boot", |w| w.node("d0n0").booted = Some(NOW - 40_000)),
        ("another machine", |w| {
            let old = w.ledger.undone_drains.values_mut().next().expect("one");
            old.drain.before.instance = Some("i-1".to_owned());
            w.node("d0n0").instance = Some("i-2".to_owned());
        }),
    ];
    for (name, change) in changes {
        let mut world = undone(3_600);
        change(&mut world);
        assert_eq!(world.proposed(), ["drain d0n0"], "{name}");
    }
}

#[test]
fn an_undo_lapses_after_its_days_for_a_newer_run() {
    let week = 7 * 86_400;
    assert!(undone(week - 1).proposed().is_empty());
    assert_eq!(undone(week).proposed(), ["drain d0n0"]);
    let mut older = undone(week);
    older.policy.evidence_hours = 1_000.0;
    older.run.created_unix = NOW - week - 1;
    older.node("d0n0").booted = None;
    assert!(older.proposed().is_empty(), "the run is of before the undo");
    let mut forgiving = undone(3_600);
    forgiving.policy.acknowledged_days = 0.0;
    assert_eq!(forgiving.proposed(), ["drain d0n0"]);
}

#[test]
fn a_boot_that_is_named_counts_by_its_name_and_not_by_the_clock() {
    let named = || world().on_kubernetes();
    assert_eq!(named().proposed(), ["drain d0n0"]);
    // The clocks of the two machines differ arbitrarily.
    let mut skewed = named();
    skewed.node("d0n0").booted = Some(NOW + 9_000);
    assert_eq!(skewed.proposed(), ["drain d0n0"]);
    let mut other = named();
    other.node("d0n0").boot_id = Some("boot-of-today\u{1b}".to_owned());
    let why = other.why("d0n0");
    assert!(
        why.contains("it has booted since it was measured (present boot boot-of-today"),
        "{why}"
    );
    assert!(why.contains("measured boot boot-d0n0") && !why.contains('\u{1b}'), "{why}");
    // If the run does not name it, it is unknown, unless times decide.
    let mut no_boot = named();
    no_boot.boots.clear();
    assert!(no_boot.why("d0n0").contains("does not name the boot"), "{}", no_boot.why("d0n0"));
    no_boot.node("d0n0").booted = Some(NOW - 90_000);
    assert_eq!(no_boot.proposed(), ["drain d0n0"]);
    no_boot.node("d0n0").booted = Some(NOW - 60);
    assert!(no_boot.why("d0n0").contains("booted since it was measured"));
    // Slurm names no boot, so the run's boot is of no use.
    let mut slurm = world();
    slurm.boots.insert("d0n0".into(), "b".to_owned());
    assert_eq!(slurm.proposed(), ["drain d0n0"]);
}

#[test]
fn an_undo_is_of_the_machine_and_the_boot_that_it_was_made_on() {
    let undone = |change: fn(&mut PolicyFixture)| {
        let mut world = world().on_kubernetes();
        let mut own = drain(&world.fleet, "d0n0", "nvlink-low", 0.9, stamp(7_200));
        own.before = world.node("d0n0").clone();
        let undone = UndoneDrain { stamp: stamp(3_600), drain: own };
        world.ledger.undone_drains.insert("d0n0".into(), undone);
        change(&mut world);
        world
    };
    assert!(undone(|_| ()).why("d0n0").contains("undone manually"));
    let booted = undone(|world| {
        world.node("d0n0").boot_id = Some("b-2".to_owned());
        world.boots.insert("d0n0".into(), "b-2".to_owned());
    });
    assert_eq!(booted.proposed(), ["drain d0n0"]);
    let rejoined = undone(|world| world.object("d0n0").uid = "another".to_owned());
    assert_eq!(rejoined.proposed(), ["drain d0n0"]);
}

#[test]
fn a_node_of_slinky_is_left_to_the_one_gate_that_has_it() {
    let mut world = world().on_kubernetes();
    world.object("d0n0").slinky = true;
    assert!(world.why("d0n0").contains("left to the gate of Slurm"), "{}", world.why("d0n0"));
    world.policy.slinky = SlinkyOwner::Kubernetes;
    assert_eq!(world.proposed(), ["drain d0n0"]);
}
