//! Intents that a crash left open, and what the next turn makes of them.

use tokio::sync::watch;

use super::super::certificates::Seal;
use super::super::fixture::Fake;
use super::super::fixture::action;
use super::super::fixture::certificate;
use super::super::fixture::journal;
use super::super::fixture::now;
use super::super::journal::Journal;
use super::*;
use crate::act::marks::MarkNames;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::kubernetes_node::DeviceMark;
use crate::model::kubernetes_node::DeviceWay;
use crate::model::live::LiveNode;
use crate::record::signing::Trust;

const DRAIN: &str = "fabricgate:nvlink-low:r1 e1";

fn drain() -> Change {
    let state = Some(StateChange::Drain { reason: DRAIN.to_owned() });
    Change { state, ..Change::default() }
}

fn resume() -> Change {
    Change { state: Some(StateChange::Resume), ..Change::default() }
}

fn intent(id: &str, action: Action, change: Change, before: LiveNode) -> Event {
    Event::Intent {
        id: id.to_owned(),
        run: "r1".to_owned(),
        action: Box::new(Action { reason: DRAIN.to_owned(), ..action }),
        change: Box::new(change),
        before: Box::new(before),
    }
}

fn recovered(fake: &Fake, journal: &mut Journal) -> Vec<ActionRecord> {
    let (_sender, stop) = watch::channel(false);
    let carrier = Carrier {
        scheduler: fake,
        journal,
        names: &MarkNames::default(),
        settle: Duration::from_millis(50),
        say: &mut |_| {},
        stop,
    };
    let (soon, no_time) = (Duration::from_millis(5), Duration::ZERO);
    now(recover_after(carrier, soon, no_time)).expect("the journal can be written")
}

fn idle(name: &str) -> LiveNode {
    LiveNode::new(name, &["IDLE"])
}

#[test]
fn one_gpu_that_an_earlier_version_began_to_take_out_is_concluded_and_nothing_is_done() {
    let (_folder, mut journal) = journal();
    let device = DeviceMark { way: DeviceWay::TaintRule, index: 2, uuid: "GPU-2a".to_owned() };
    let begun = Action { device: Some(device), ..action(ActionKind::Drain, "n1") };
    journal.write(intent("a", begun, drain(), idle("n1"))).expect("written");
    let fake = Fake::of(1);
    let records = recovered(&fake, &mut journal);
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(record.result, ActionResult::Superseded);
    assert!(record.detail.contains("GPU 2 (GPU-2a, taint-rule)"), "{}", record.detail);
    assert!(journal.ledger().open.is_empty() && journal.ledger().drains.is_empty());
    assert!(fake.changed().is_empty(), "nothing was written");
    assert!(recovered(&fake, &mut journal).is_empty(), "and it is concluded once");
}

#[test]
fn every_open_intent_ends_as_its_node_shows() {
    let fake = Fake::of(4);
    fake.put(Fake::drained("n1", DRAIN));
    fake.put(Fake::drained("n3", "somebody's"));
    fake.put(Fake::drained("n5", DRAIN));
    let (_folder, mut journal) = journal();
    let begun =
        |id: &str, node: &str| intent(id, action(ActionKind::Drain, node), drain(), idle(node));
    let release = |id: &str, node: &str| {
        intent(id, action(ActionKind::Release, node), resume(), Fake::drained(node, DRAIN))
    };
    let all = vec![
        begun("a", "n1"),
        begun("b", "n2"),
        begun("c", "n3"),
        release("d", "n4"),
        release("e", "n5"),
        begun("f", "n6"),
    ];
    journal.write_all(all).expect("written");
    let records = recovered(&fake, &mut journal);
    let results: Vec<(&str, ActionResult)> =
        records.iter().map(|it| (it.node.as_str(), it.result)).collect();
    let expected = [
        ("n1", ActionResult::Done),
        ("n2", ActionResult::Refused),
        ("n3", ActionResult::Superseded),
        ("n4", ActionResult::Done),
        ("n5", ActionResult::Refused),
        ("n6", ActionResult::Unknown),
    ];
    assert_eq!(results, expected, "{records:?}");
    assert!(records[0].detail.contains("found after a restart"), "{records:?}");
    assert!(records[1].detail.contains("never carried out"), "{records:?}");
    assert!(fake.changed().is_empty(), "nothing is done to anybody");
    let ledger = journal.ledger();
    let drains: Vec<&str> = ledger.drains.keys().map(NodeName::as_str).collect();
    assert_eq!(drains, ["n1"]);
    assert_eq!(ledger.drains[&NodeName::from("n1")].action.reason, DRAIN);
    let spent: Vec<&str> = ledger.spent.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(spent, ["a", "b", "c", "f"], "whether they were there for a while, nobody knows");

    // A second time nothing is changed and nothing is written.
    let lines = ledger.lines;
    let again = recovered(&fake, &mut journal);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0].result, ActionResult::Unknown);
    assert_eq!(journal.ledger().lines, lines);
}

#[test]
fn what_was_on_its_way_is_seen_at_the_second_look() {
    let fake = Fake::of(1);
    let (_folder, mut journal) = journal();
    journal
        .write(intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1")))
        .expect("written");
    fake.others.borrow_mut().extend([Vec::new(), vec![Fake::drained("n1", DRAIN)]]);
    let records = recovered(&fake, &mut journal);
    assert_eq!(records[0].result, ActionResult::Done, "{records:?}");
}

#[test]
fn with_a_silent_scheduler_all_stays_open_and_nothing_is_written() {
    let fake = Fake::of(1);
    let (_folder, mut journal) = journal();
    journal
        .write(intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1")))
        .expect("written");
    let lines = journal.ledger().lines;
    fake.silent.set(true);
    let records = recovered(&fake, &mut journal);
    assert_eq!(records[0].result, ActionResult::Unknown);
    assert_eq!((journal.ledger().open.len(), journal.ledger().lines), (1, lines));
    // When it answers again, it is concluded.
    fake.silent.set(false);
    assert_eq!(recovered(&fake, &mut journal)[0].result, ActionResult::Refused);
    assert!(recovered(&fake, &mut journal).is_empty());
}

#[test]
fn marks_that_were_written_are_found_and_those_that_were_not_are_dropped() {
    let fake = Fake::of(3);
    let extra = |extra: &str| Change { extra: Some(extra.to_owned()), ..Change::default() };
    let (_folder, mut journal) = journal();
    let all = ["n1", "n2", "n3"]
        .map(|node| intent(node, action(ActionKind::Certify, node), extra("ours"), idle(node)));
    journal.write_all(all.to_vec()).expect("written");
    fake.put(LiveNode { extra: "ours".to_owned(), ..idle("n1") });
    fake.put(LiveNode { extra: "hers".to_owned(), ..idle("n3") });
    let results: Vec<ActionResult> =
        recovered(&fake, &mut journal).iter().map(|it| it.result).collect();
    let expected = [ActionResult::Done, ActionResult::Refused, ActionResult::Superseded];
    assert_eq!(results, expected);
    assert!(journal.ledger().marks.contains_key(&NodeName::from("n1")));
}

#[test]
fn a_node_that_is_gone_for_long_is_dropped() {
    assert_eq!(concluded(None, None, YOUNG - 1.0, 0.0).0, ActionResult::Unknown);
    assert_eq!(concluded(None, None, YOUNG + 1.0, 0.0).0, ActionResult::Refused);
    let unread = concluded(None, Some("nodes[3]: no name"), YOUNG + 1.0, 0.0);
    assert_eq!(unread.0, ActionResult::Unknown, "it may be the one that was not read");
}

#[test]
fn what_nobody_answered_is_not_dropped_by_the_next_turn() {
    let fake = Fake::of(1);
    let (_folder, mut journal) = journal();
    let late =
        Event::Outcome { id: "a".to_owned(), result: ActionResult::Unknown, detail: String::new() };
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.write_all(vec![begun, late]).expect("written");
    let looked = |journal: &mut Journal| {
        let (_sender, stop) = watch::channel(false);
        let settle = Duration::from_secs(60);
        let names = MarkNames::default();
        let say = &mut |_: &str| {};
        let carrier = Carrier { scheduler: &fake, journal, names: &names, settle, say, stop };
        now(recover_after(carrier, Duration::ZERO, Duration::ZERO)).expect("written")[0].result
    };
    assert_eq!(looked(&mut journal), ActionResult::Unknown);
    assert_eq!(journal.ledger().spent.len(), 1);
    fake.put(Fake::drained("n1", DRAIN));
    assert_eq!(looked(&mut journal), ActionResult::Done);
}

#[test]
fn what_is_found_to_be_drained_is_certified_no_more() {
    let fake = Fake::of(0);
    fake.put(Fake::drained("n1", DRAIN));
    let (folder, mut journal) = journal();
    let trust = Trust::default();
    let seal = Seal { key: Ok(None), trust: &trust };
    certificates::keep(folder.path(), vec![certificate("n1")], Vec::new(), &seal).expect("kept");
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.write(begun).expect("written");
    recovered(&fake, &mut journal);
    let read = certificates::read(folder.path(), &"n1".into()).expect("readable");
    assert!(read.expect("there").voided.is_some());
}

#[test]
fn defect_2_of_security_what_a_killed_sender_sent_may_land_later_and_is_paid_for_until_then() {
    let fake = Fake::of(2);
    let (_folder, mut journal) = journal();
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.write(begun).expect("written");
    let looked = |journal: &mut Journal, in_flight: Duration| {
        let (_sender, stop) = watch::channel(false);
        let (names, settle) = (MarkNames::default(), Duration::ZERO);
        let say = &mut |_: &str| {};
        let carrier = Carrier { scheduler: &fake, journal, names: &names, settle, say, stop };
        now(recover_after(carrier, Duration::ZERO, in_flight)).expect("written")[0].clone()
    };
    let record = looked(&mut journal, IN_FLIGHT);
    assert_eq!(record.result, ActionResult::Unknown, "{record:?}");
    assert!(record.detail.contains("may yet be done"), "{record:?}");
    assert_eq!((journal.ledger().open.len(), journal.ledger().spent.len()), (1, 1));
    // A person drains the node meanwhile: it may still land, over theirs.
    fake.put(Fake::drained("n1", "psu: swap"));
    let record = looked(&mut journal, IN_FLIGHT);
    assert_eq!(record.result, ActionResult::Unknown, "{record:?}");
    assert_eq!((journal.ledger().open.len(), journal.ledger().spent.len()), (1, 1));
    // It lands, and is ours.
    fake.put(Fake::drained("n1", DRAIN));
    assert_eq!(looked(&mut journal, IN_FLIGHT).result, ActionResult::Done);
    assert!(journal.ledger().drains.contains_key(&NodeName::from("n1")));
}

#[test]
fn an_intent_of_a_dead_sender_is_left_to_others_when_it_can_land_no_more() {
    let fake = Fake::of(1);
    let (_folder, mut journal) = journal();
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.write(begun).expect("written");
    fake.put(Fake::drained("n1", "psu: swap"));
    assert_eq!(recovered(&fake, &mut journal)[0].result, ActionResult::Superseded);
    assert!(journal.ledger().open.is_empty());
}
