//! Nodes of ours as a scheduler shows them, beside what the journal has.

use super::*;
use crate::policy::fixture::World;
use crate::policy::ledger::CleanRun;
use crate::policy::ledger::Hold;
use crate::policy::ledger::UndoneDrain;
use model::journal::HoldKind;

const NODE: &str = "d0n1";
const OURS: &str = "fabricgate:nvlink-low:run1 e3";

/// A world in which we drained a node, which the scheduler shows in this state.
fn shown(state: &[&str], reason: Option<&str>) -> World {
    let mut world = World::of(1, 4);
    world.drained(NODE, "nvlink-low", 0.9, 20_000);
    let node = world.node(NODE);
    node.state = state.iter().map(|word| (*word).to_owned()).collect();
    node.reason = reason.map(str::to_owned);
    world
}

fn of(world: &World) -> Vec<Row> {
    let situation = world.situation();
    rows(situation.ledger, situation.live, &world.policy, situation.now)
}

fn one(world: &World) -> Row {
    let all = of(world);
    let [row] = all.as_slice() else { panic!("{all:?}") };
    row.clone()
}

/// Defect 8 of the operator's review.
#[test]
fn what_the_scheduler_shows_is_told_and_not_what_the_journal_last_knew() {
    let drained = one(&shown(&["IDLE", "DRAIN"], Some(OURS)));
    assert_eq!((drained.standing, &drained.at_odds), (Standing::Drained, &None));
    assert_eq!(drained.state.as_deref(), Some("IDLE+DRAIN"));
    assert_eq!(
        (drained.class.as_deref(), drained.clean, drained.clean_wanted),
        (Some("nvlink-low"), 0, 2)
    );
    assert!(
        drained.next.starts_with("repair, then `fabricgate recertify d0n1"),
        "{}",
        drained.next
    );

    for (state, reason, standing, says) in [
        (&["IDLE"][..], None, Standing::InService, "is not there"),
        // 24.11 keeps the reason of a drain that was lifted.
        (&["IDLE"], Some(OURS), Standing::InService, "is not there"),
        (&["IDLE", "DRAIN"], Some("rma INC4712 bob"), Standing::TakenOver, "rma INC4712 bob"),
        (&["IDLE", "DRAIN"], Some("fabricgate:x:run9 e1"), Standing::TakenOver, "our form"),
        (
            &["IDLE", "DRAIN"],
            Some("fabricgate:nvlink-low:run1 e3, bob looks"),
            Standing::Appended,
            "a person should look",
        ),
    ] {
        let row = one(&shown(state, reason));
        assert_eq!(row.standing, standing, "{state:?} {reason:?}");
        let odds = row.at_odds.expect("it differs");
        assert!(odds.contains(says), "{odds}");
        assert!(row.standing.is_at_odds());
    }
    // What Slurm appends by itself is no difference.
    let lost = "fabricgate:nvlink-low:run1 e3 : Not responding";
    assert_eq!(one(&shown(&["DOWN", "DRAIN"], Some(lost))).standing, Standing::Drained);
}

#[test]
fn a_node_that_is_gone_differs_and_one_that_could_not_be_read_is_unknown() {
    let mut world = shown(&["IDLE", "DRAIN"], Some(OURS));
    let live = world.live.as_mut().expect("asked");
    live.nodes.remove(&NodeName::from(NODE));
    assert_eq!(one(&world).standing, Standing::Gone);
    world.live.as_mut().expect("asked").troubles.push("nodes[1]: no name".to_owned());
    assert_eq!(one(&world).standing, Standing::Unknown);
    world.live = None;
    let row = one(&world);
    assert_eq!((row.standing, &row.state, &row.at_odds), (Standing::Unknown, &None, &None));
    assert!(row.since.is_some(), "the journal has it");
}

#[test]
fn a_drain_that_we_lifted_to_measure_is_no_difference() {
    let mut world = shown(&["IDLE", "MAINTENANCE"], None);
    let hold = Hold {
        kind: HoldKind::Reservation,
        stamp: Stamp::default(),
        nodes: vec![NODE.into()],
        drained: vec![(NODE.into(), OURS.to_owned())],
        host: "h".to_owned(),
        pid: 7,
    };
    world.ledger.holds.insert("fabricgate-r-maint".to_owned(), hold);
    let row = one(&world);
    assert_eq!((row.standing, row.at_odds), (Standing::Measured, None));
    assert_eq!(row.next, "it is drained again when fabricgate-r-maint ends");
}

#[test]
fn what_differs_comes_first_and_marks_that_are_not_ours_are_told() {
    let mut world = shown(&["IDLE", "DRAIN"], Some(OURS));
    for (node, reason) in [("d0n2", Some(OURS)), ("d0n3", Some("fabricgate:x:run9 e1"))] {
        let it = world.node(node);
        it.state = vec!["IDLE".to_owned(), "DRAIN".to_owned()];
        it.reason = reason.map(str::to_owned);
    }
    world.drained("d0n0", "nvlink-low", 0.9, 20_000);
    let gone = world.ledger.drains.remove(&NodeName::from("d0n0")).expect("a drain");
    world.ledger.undone.insert("d0n0".into(), UndoneDrain { stamp: Stamp::default(), drain: gone });
    world.node("d0n0").state = vec!["IDLE".to_owned()];
    world.node("d0n0").reason = None;
    let rows = of(&world);
    let told: Vec<(&str, Standing)> =
        rows.iter().map(|row| (row.node.as_str(), row.standing)).collect();
    assert_eq!(
        told,
        [
            ("d0n2", Standing::Unrecorded),
            ("d0n3", Standing::Unrecorded),
            (NODE, Standing::Drained),
            ("d0n0", Standing::Undone)
        ]
    );
}

#[test]
fn the_next_step_goes_by_the_clean_runs_that_count() {
    let mut world = shown(&["IDLE", "DRAIN"], Some(OURS));
    let now = world.situation().now.unix;
    let mut next = |measured: &[i64]| {
        let drain = world.ledger.drains.get_mut(&NodeName::from(NODE)).expect("a drain");
        let run = |at: &i64| CleanRun { run: format!("r{at}"), measured: *at, boot_id: None };
        drain.clean = measured.iter().map(run).collect();
        let row = one(&world);
        (row.clean, row.next)
    };
    let (clean, told) = next(&[now - 60]);
    assert_eq!(clean, 1);
    assert!(told.starts_with("a clean run: the next counts from"), "{told}");
    assert!(next(&[now - 4_000]).1.starts_with("`fabricgate recertify"));
    assert_eq!(next(&[now - 4_000, now - 3_900]).0, 1, "too close together");
    assert!(next(&[now - 8_000, now - 3_900]).1.starts_with("the next turn gives it back"));
}
