//! Drained nodes as the scheduler reports them, compared with the journal.

use super::*;
use crate::policy::fixture::PolicyFixture;
use crate::policy::journal_state::{CleanRun, OpenAllocation, UndoneDrain};
use model::journal::HoldKind;

const NODE: &str = "d0n1";
const OURS: &str = "fabricgate:nvlink-low:run1 e3";

/// A fixture with one node that fabricgate drained and that the scheduler reports in this state.
fn drained_in_state(state: &[&str], reason: Option<&str>) -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(1, 4);
    world.drained(NODE, "nvlink-low", 0.9, 20_000);
    let node = world.node(NODE);
    node.state = state.iter().map(|word| (*word).to_owned()).collect();
    node.reason = reason.map(str::to_owned);
    world
}

fn rows_of(world: &PolicyFixture) -> Vec<DrainOverviewRow> {
    let situation = world.situation();
    build_rows(situation.ledger, situation.live, &world.policy, situation.now)
}

fn single_row(world: &PolicyFixture) -> DrainOverviewRow {
    let all = rows_of(world);
    let [row] = all.as_slice() else { panic!("{all:?}") };
    row.clone()
}

/// Defect 8 of the operator's review.
#[test]
fn rows_show_the_scheduler_state_and_not_the_last_journal_state() {
    let drained = single_row(&drained_in_state(&["IDLE", "DRAIN"], Some(OURS)));
    assert_eq!((drained.standing, &drained.at_odds), (DrainStanding::Drained, &None));
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

    for (state, reason, standing, difference) in [
        (&["IDLE"][..], None, DrainStanding::InService, "fabricgate's drain is missing"),
        // Slurm 24.11 keeps the reason of a lifted drain.
        (&["IDLE"], Some(OURS), DrainStanding::InService, "fabricgate's drain is missing"),
        (&["IDLE", "DRAIN"], Some("rma INC4712 bob"), DrainStanding::TakenOver, "rma INC4712 bob"),
        (
            &["IDLE", "DRAIN"],
            Some("fabricgate:x:run9 e1"),
            DrainStanding::TakenOver,
            "fabricgate's form",
        ),
        (
            &["IDLE", "DRAIN"],
            Some("fabricgate:nvlink-low:run1 e3, bob looks"),
            DrainStanding::Appended,
            "a user must inspect it",
        ),
    ] {
        let row = single_row(&drained_in_state(state, reason));
        assert_eq!(row.standing, standing, "{state:?} {reason:?}");
        let odds = row.at_odds.expect("it differs");
        assert!(odds.contains(difference), "{odds}");
        assert!(row.standing.is_at_odds());
    }
    // Text that Slurm appends itself does not count as a difference.
    let lost = "fabricgate:nvlink-low:run1 e3 : Not responding";
    assert_eq!(
        single_row(&drained_in_state(&["DOWN", "DRAIN"], Some(lost))).standing,
        DrainStanding::Drained
    );
}

#[test]
fn a_node_that_is_gone_differs_and_one_that_could_not_be_read_is_unknown() {
    let mut world = drained_in_state(&["IDLE", "DRAIN"], Some(OURS));
    let live = world.live.as_mut().expect("asked");
    live.nodes.remove(&NodeName::from(NODE));
    assert_eq!(single_row(&world).standing, DrainStanding::Gone);
    world.live.as_mut().expect("asked").troubles.push("nodes[1]: no name".to_owned());
    assert_eq!(single_row(&world).standing, DrainStanding::Unknown);
    world.live = None;
    let row = single_row(&world);
    assert_eq!((row.standing, &row.state, &row.at_odds), (DrainStanding::Unknown, &None, &None));
    assert!(row.since.is_some(), "the journal has it");
}

#[test]
fn a_drain_that_we_lifted_to_measure_is_no_difference() {
    let mut world = drained_in_state(&["IDLE", "MAINTENANCE"], None);
    let hold = OpenAllocation {
        kind: HoldKind::Reservation,
        stamp: ClockStamp::default(),
        nodes: vec![NODE.into()],
        drained: vec![(NODE.into(), OURS.to_owned())],
        host: "h".to_owned(),
        pid: 7,
    };
    world.ledger.allocations.insert("fabricgate-r-maint".to_owned(), hold);
    let row = single_row(&world);
    assert_eq!((row.standing, row.at_odds), (DrainStanding::Measured, None));
    assert_eq!(row.next, "it is drained again when fabricgate-r-maint ends");
}

#[test]
fn differences_come_first_and_foreign_marks_are_reported() {
    let mut world = drained_in_state(&["IDLE", "DRAIN"], Some(OURS));
    for (node, reason) in [("d0n2", Some(OURS)), ("d0n3", Some("fabricgate:x:run9 e1"))] {
        let it = world.node(node);
        it.state = vec!["IDLE".to_owned(), "DRAIN".to_owned()];
        it.reason = reason.map(str::to_owned);
    }
    world.drained("d0n0", "nvlink-low", 0.9, 20_000);
    let gone = world.ledger.drains.remove(&NodeName::from("d0n0")).expect("a drain");
    world
        .ledger
        .undone_drains
        .insert("d0n0".into(), UndoneDrain { stamp: ClockStamp::default(), drain: gone });
    world.node("d0n0").state = vec!["IDLE".to_owned()];
    world.node("d0n0").reason = None;
    let rows = rows_of(&world);
    let standings: Vec<(&str, DrainStanding)> =
        rows.iter().map(|row| (row.node.as_str(), row.standing)).collect();
    assert_eq!(
        standings,
        [
            ("d0n2", DrainStanding::Unrecorded),
            ("d0n3", DrainStanding::Unrecorded),
            (NODE, DrainStanding::Drained),
            ("d0n0", DrainStanding::Undone)
        ]
    );
}

#[test]
fn the_next_step_goes_by_the_clean_runs_that_count() {
    let mut world = drained_in_state(&["IDLE", "DRAIN"], Some(OURS));
    let now = world.situation().now.unix;
    let mut next = |measured: &[i64]| {
        let drain = world.ledger.drains.get_mut(&NodeName::from(NODE)).expect("a drain");
        let run = |at: &i64| CleanRun { run: format!("r{at}"), measured: *at, boot_id: None };
        drain.clean = measured.iter().map(run).collect();
        let row = single_row(&world);
        (row.clean, row.next)
    };
    let (clean, next_step) = next(&[now - 60]);
    assert_eq!(clean, 1);
    assert!(next_step.starts_with("a clean run: the next run counts from"), "{next_step}");
    assert!(next(&[now - 4_000]).1.starts_with("`fabricgate recertify"));
    assert_eq!(next(&[now - 4_000, now - 3_900]).0, 1, "too close together");
    assert!(next(&[now - 8_000, now - 3_900]).1.starts_with("the next turn releases it"));
}
