//! Whether the journal is an older copy of the one of this cluster's gate: nodes carry marks of
//! turns and runs that it does not contain.
//!
//! Pure. Budgets do not count missing entries, and the next turns would reuse numbers.

use super::journal_state::JournalState;
use super::{marks, node_state};
use model::action::VerdictMark;
use model::hostlist;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::kubernetes_node::GATE;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
use model::time_format::{DAY_S, format_rfc3339};

/// A turn this far ahead cannot exist: its number is a mistake or a forgery.
const FARTHEST: u64 = 1_000_000;

/// Why the journal is not the newest one of this cluster's gate. The current run may be missing
/// in it.
pub fn explain_stale(live: &SchedulerSnapshot, ledger: &JournalState, run: &str) -> Option<String> {
    let first = ledger.first.as_ref()?;
    let ahead =
        |node: &&SchedulerNode| is_ahead(node, ledger, first) || has_newer_mark(node, ledger, run);
    let nodes: Vec<&NodeName> = live.nodes.values().filter(ahead).map(|node| &node.name).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "the journal, in turn {}, does not contain marks on {} of a later turn: an older \
             copy of it was restored, or another gate with its own state folder runs here",
            ledger.epoch,
            clean(&hostlist::fold(nodes.into_iter().map(NodeName::as_str)))
        )
    })
}

/// The last turn in a mark that this journal does not contain: the next one counts on from
/// there, so that no number is used twice.
pub fn last_turn(live: &SchedulerSnapshot, ledger: &JournalState) -> Option<u64> {
    let turns = node_state::unrecorded_drains(live, ledger);
    let turns = turns.into_iter().filter_map(|node| node_state::own_reason(node)?.epoch);
    turns.filter(|turn| turn.saturating_sub(ledger.epoch) < FARTHEST).max()
}

/// Whether its drain belongs to a turn that the journal has not reached, or reached after the drain
/// was made.
fn is_ahead(node: &SchedulerNode, ledger: &JournalState, first: &ClockStamp) -> bool {
    let Some(reason) = node_state::own_reason(node).filter(|_| node_state::has_drain(node)) else {
        return false;
    };
    let is_unknown = node_state::is_unrecorded_drain(node, ledger)
        && !ledger.has_recent_intent(&node.name, &reason.run);
    if !is_unknown || is_before(&reason.run, first) || was_accepted(node.reason_at, ledger) {
        return false;
    }
    if let Some(seen) = node.kubernetes.as_ref() {
        return seen.annotations.get(GATE).is_some_and(|gate| *gate == ledger.gate);
    }
    let Some(turn) = reason.epoch else { return false };
    match node.reason_at {
        _ if ledger.epoch < turn => true,
        Some(at) => ledger.turns.get(&turn).is_some_and(|began| at < *began),
        None => turn == ledger.epoch,
    }
}

/// Whether its mark is newer, belongs to another run than the current one, and was not accepted
/// since.
fn has_newer_mark(node: &SchedulerNode, ledger: &JournalState, run: &str) -> bool {
    let Some(newer) = newer_mark(node, ledger).filter(|newer| newer.run != run) else {
        return false;
    };
    let reset = ledger.reset.as_ref().and_then(|reset| to_second(&reset.at));
    reset.is_none_or(|reset| to_second(&newer.at).is_some_and(|at| reset < at))
}

/// fabricgate's last mark on this node, if it is of a newer run than the journal's last mark
/// and the journal never acted on that run. On Kubernetes annotation and condition must agree:
/// one alone may have been edited.
pub(super) fn newer_mark(node: &SchedulerNode, ledger: &JournalState) -> Option<VerdictMark> {
    let first = ledger.first.as_ref()?;
    let newest = marks::read_any_mark(node)?;
    let known = ledger.marks.get(&node.name).map_or(&first.at, |mark| &mark.at);
    let is_newer =
        to_second(known).zip(to_second(&newest.at)).is_some_and(|(known, at)| known < at);
    (is_newer && !ledger.has_recent_intent(&node.name, &newest.run)).then_some(newest)
}

/// RFC 3339 in UTC to the second: text order is time order.
fn to_second(text: &str) -> Option<String> {
    text.get(..19).map(str::to_owned)
}

/// Whether a run was made before this journal was started, by more than evidence counts:
/// another gate acted on it.
fn is_before(run: &str, first: &ClockStamp) -> bool {
    let day: String = format_rfc3339(first.unix.saturating_sub(DAY_S))
        .chars()
        .take(10)
        .filter(|c| *c != '-')
        .collect();
    let of_run = run.get(..8).filter(|day| day.chars().all(|c| c.is_ascii_digit()));
    of_run.is_some_and(|of_run| of_run < day.as_str())
}

/// Whether a user has reset the breaker since.
fn was_accepted(made: Option<i64>, ledger: &JournalState) -> bool {
    let reset = ledger.reset.as_ref();
    reset.is_some_and(|reset| made.is_none_or(|made| made <= reset.unix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fixture::{NOW, PolicyFixture, stamp, written};
    use crate::policy::journal_state::RecentIntent;
    use crate::policy::{budget, journal_events};
    use model::action::ActionKind;
    use model::journal::JournalEvent;
    use model::kubernetes_node::CERTIFICATE;
    use model::verdict::Outcome;

    /// A journal in its seventh turn, and a node whose drain has fabricgate's form and is not in
    /// the journal.
    fn world(reason: &str, ago: i64) -> PolicyFixture {
        let mut world = PolicyFixture::with_blocks(2, 9);
        let began = stamp(100_000);
        world.ledger.first = Some(ClockStamp { at: format_rfc3339(began.unix), ..began });
        for turn in 1..=7 {
            world
                .ledger
                .turns
                .insert(turn, NOW - 7_000 + 1_000 * i64::try_from(turn).expect("few"));
        }
        world.ledger.known_intents.insert("run1/d9n9/drain/e1".to_owned());
        let node = world.state("d0n1", &["IDLE", "DRAIN"]);
        (node.reason, node.reason_at) = (Some(reason.to_owned()), Some(NOW - ago));
        world
    }

    fn tripped(world: &PolicyFixture) -> Option<String> {
        budget::explain_trip(&world.situation(), &world.policy)
    }

    const RUN: &str = "20261118-110000-abcdef";

    #[test]
    fn defect_3_of_security_a_mark_of_a_later_turn_trips_the_breaker() {
        let why = tripped(&world(&format!("fabricgate:{RUN}:nvlink-low e8"), 60)).expect("trips");
        assert!(why.contains("d0n1") && why.contains("an older copy"), "{why}");
        // Its number was reused since: the mark is older than the turn.
        let used = world(&format!("fabricgate:{RUN}:nvlink-low e5"), 3_000);
        assert!(tripped(&used).is_some());
        assert_eq!(last_turn(used.live.as_ref().expect("asked"), &used.ledger), Some(5));
    }

    #[test]
    fn known_marks_and_marks_from_before_the_journal_trip_nothing() {
        // A turn that the journal reached before the drain: another gate's drain.
        let other = world(&format!("fabricgate:{RUN}:nvlink-low e3"), 60);
        assert_eq!(tripped(&other), None);
        // A run that is older than the journal.
        assert_eq!(tripped(&world("fabricgate:20250101-000000-aaaaaa:nvlink-low e9", 60)), None);
        // An intent whose drain took effect after its timeout.
        let mut late = world(&format!("fabricgate:{RUN}:nvlink-low e6"), 60);
        assert!(tripped(&late).is_none());
        late.node("d0n1").reason_at = Some(NOW - 3_000);
        assert!(tripped(&late).is_some());
        let meant = RecentIntent { run: RUN.to_owned(), reason: String::new() };
        late.ledger.recent_intents.insert("d0n1".into(), [meant].into());
        assert_eq!(tripped(&late), None);
        // A user has inspected it and reset the breaker.
        let mut seen = world(&format!("fabricgate:{RUN}:nvlink-low e8"), 60);
        seen.ledger.reset = Some(stamp(30));
        assert_eq!(tripped(&seen), None);
        seen.node("d0n1").reason_at = Some(NOW - 10);
        assert!(tripped(&seen).is_some(), "one more since");
    }

    #[test]
    fn defect_3_of_security_marks_of_a_later_run_trip_the_breaker() {
        let entry = |at: &str| {
            let extra = format!(
                "{{\"fabricgate\":{{\"v\":1,\"outcome\":\"pass\",\"run\":\"{RUN}\",\"at\":\"{at}\"}}}}"
            );
            let mut world = world("psu", 60);
            world.node("d0n2").extra = extra;
            world
        };
        let later = format_rfc3339(NOW - 600);
        let mut world = entry(&later);
        assert!(tripped(&world).expect("trips").contains("d0n2"));
        let meant = RecentIntent { run: RUN.to_owned(), reason: String::new() };
        world.ledger.recent_intents.insert("d0n2".into(), [meant].into());
        assert_eq!(tripped(&world), None, "it acted on that run");
        assert_eq!(tripped(&entry(&format_rfc3339(NOW - 200_000))), None, "of before the journal");
    }

    /// A node that this journal drained and a later turn released: on both control planes, with the
    /// later journal's marks.
    fn given_back(is_kubernetes: bool) -> PolicyFixture {
        let mut world = PolicyFixture::with_blocks(2, 9);
        if is_kubernetes {
            world = world.on_kubernetes();
        }
        let began = stamp(100_000);
        world.ledger.first = Some(ClockStamp { at: format_rfc3339(began.unix), ..began });
        let mut mark = world.drained("d0n2", "nvlink-low", 0.5, 7_000).action.mark.expect("one");
        mark.at = format_rfc3339(NOW - 7_000);
        world.ledger.marks.insert("d0n2".into(), mark.clone());
        world.state("d0n2", &["IDLE"]).reason = None;
        let later = VerdictMark {
            outcome: Outcome::Pass,
            class: None,
            run: RUN.to_owned(),
            at: format_rfc3339(NOW - 600),
            ..mark
        };
        let node = world.node("d0n2").clone();
        let change =
            marks::change_beside_action(ActionKind::Certify, &node, &later, &world.policy.marks);
        *world.node("d0n2") = match is_kubernetes {
            true => written(&node, &change),
            false => SchedulerNode {
                extra: change.extra.expect("words"),
                available_features: change.available_features.expect("features"),
                active_features: change.active_features.expect("features"),
                ..node
            },
        };
        world
    }

    fn said_again(world: &PolicyFixture) -> usize {
        let live = world.live.as_ref().expect("asked");
        marks::find_lost_marks(live, &world.ledger, &world.policy, &world.now).len()
    }

    fn is_undone(world: &PolicyFixture) -> bool {
        let events = journal_events::collect_events(&world.situation(), &world.policy);
        events.iter().any(|event| matches!(event, JournalEvent::Undone { .. }))
    }

    #[test]
    fn defect_12_an_older_journal_from_before_a_release_trips_and_writes_nothing_over() {
        for is_kubernetes in [false, true] {
            let mut world = given_back(is_kubernetes);
            assert!(tripped(&world).expect("trips").contains("d0n2"), "{is_kubernetes}");
            assert_eq!(said_again(&world), 0, "{is_kubernetes}: the newer marks stay");
            assert!(!is_undone(&world), "{is_kubernetes}: the later turns gave it back");
            let events = journal_events::collect_events(&world.situation(), &world.policy);
            let is_it = |it: &JournalEvent| matches!(it, JournalEvent::Forgotten { .. });
            assert!(events.iter().any(is_it), "{is_kubernetes}: it is in no budget: {events:?}");
            // A user has inspected it and reset the breaker: the marks stay.
            world.ledger.reset = Some(ClockStamp { at: format_rfc3339(NOW - 30), ..stamp(30) });
            assert_eq!(tripped(&world), None, "{is_kubernetes}");
            assert_eq!(said_again(&world), 0, "{is_kubernetes}");
            assert!(!is_undone(&world), "{is_kubernetes}");
            // A user who removes a drain leaves the drain's mark.
            let old = world.ledger.marks[&"d0n2".into()].clone();
            let node = world.node("d0n2").clone();
            let change = marks::mark_change(&node, &old, &world.policy.marks);
            *world.node("d0n2") = match is_kubernetes {
                true => written(&node, &change),
                false => SchedulerNode { extra: change.extra.expect("words"), ..node },
            };
            assert!(is_undone(&world), "{is_kubernetes}");
        }
    }

    #[test]
    fn defect_12_an_edit_is_no_older_journal_and_is_written_over() {
        type LiveNodeChange = fn(&mut SchedulerNode);
        let edits: [LiveNodeChange; 3] = [
            // A newer certificate alone, or with a label: the condition decides.
            |it| it.kubernetes.as_mut().expect("one").condition = None,
            |it| {
                let condition = it.kubernetes.as_mut().expect("one").condition.as_mut();
                condition.expect("one").message = "nvlink-low".to_owned();
            },
            |it| drop(it.kubernetes.as_mut().expect("one").annotations.remove(CERTIFICATE)),
        ];
        for edit in edits {
            let mut world = given_back(true);
            edit(world.node("d0n2"));
            assert_eq!(tripped(&world), None);
            assert_eq!(said_again(&world), 1);
            assert!(is_undone(&world));
        }
        // A run that this journal acted on is not a later journal's.
        let mut world = given_back(true);
        let meant = RecentIntent { run: RUN.to_owned(), reason: String::new() };
        world.ledger.recent_intents.insert("d0n2".into(), [meant].into());
        assert_eq!(tripped(&world), None);
        assert_eq!(said_again(&world), 1);
    }

    #[test]
    fn defect_2_of_security_what_the_journal_does_not_know_is_in_every_budget() {
        let mut world = world(&format!("fabricgate:{RUN}:nvlink-low e3"), 60);
        world.policy.per_domain = 1;
        let left = |world: &PolicyFixture| {
            let live = world.live.as_ref();
            budget::describe_remaining(&world.ledger, live, &world.fleet, &world.policy, &world.now)
                .join("; ")
        };
        let remaining = left(&world);
        assert!(remaining.contains("none left in d0"), "{remaining}");
        assert!(remaining.contains("drains within the hour: 17 of 18"), "{remaining}");
        assert!(remaining.contains("drains at a time: 17 of 18"), "{remaining}");
        world.node("d0n1").reason_at = Some(NOW - 4_000);
        assert!(left(&world).contains("drains within the hour: 18 of 18"), "{}", left(&world));
        // Drains by other users are in no budget.
        world.node("d0n1").reason = Some("psu".to_owned());
        assert!(left(&world).contains("drains at a time: 18 of 18"));
    }

    #[test]
    fn defect_3_a_node_that_is_gone_for_days_is_in_no_budget() {
        let mut world = PolicyFixture::with_blocks(1, 9);
        world.drained("d0n0", "nvlink-low", 0.9, 900_000);
        let left = |world: &PolicyFixture| {
            let live = world.live.as_ref();
            budget::describe_remaining(&world.ledger, live, &world.fleet, &world.policy, &world.now)
                .join("; ")
        };
        world.live.as_mut().expect("asked").nodes.remove(&NodeName::from("d0n0"));
        world.ledger.absent_nodes.insert("d0n0".into(), stamp(2 * DAY_S));
        assert!(left(&world).contains("drains at a time: 8 of 9"), "{}", left(&world));
        world.ledger.absent_nodes.insert("d0n0".into(), stamp(4 * DAY_S));
        assert!(left(&world).contains("drains at a time: 9 of 9"), "{}", left(&world));
    }
}
