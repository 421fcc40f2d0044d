//! Intents that a crash left open, and how the next turn concludes them.

use tokio::sync::watch;

use super::super::certificates::CertificateSigning;
use super::super::fixture::{FakeScheduler, action, block_on, certificate, journal};
use super::super::journal::Journal;
use super::*;
use crate::gate::gate_event::GateEvent;
use crate::store::document_signature::SignatureTrust;
use engine::policy::marks::MarkNames;
use model::action::{Action, ActionKind};
use model::kubernetes_node::{GpuCordon, GpuCordonMethod};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;

const DRAIN: &str = "fabricgate:nvlink-low:r1 e1";

fn drain() -> NodeUpdate {
    let state = Some(NodeStateChange::Drain { reason: DRAIN.to_owned() });
    NodeUpdate { state, ..NodeUpdate::default() }
}

fn resume() -> NodeUpdate {
    NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() }
}

fn intent(id: &str, action: Action, change: NodeUpdate, before: SchedulerNode) -> JournalEvent {
    JournalEvent::Intent {
        id: id.to_owned(),
        run: "r1".to_owned(),
        action: Box::new(Action { reason: DRAIN.to_owned(), ..action }),
        change: Box::new(change),
        before: Box::new(before),
    }
}

fn recover_now(fake: &FakeScheduler, journal: &mut Journal) -> Vec<ActionRecord> {
    let (_sender, stop) = watch::channel(false);
    let carrier = Executor {
        scheduler: fake,
        journal,
        names: &MarkNames::default(),
        settle: Duration::from_millis(50),
        log: &mut |_| {},
        stop,
    };
    let (soon, no_time) = (Duration::from_millis(5), Duration::ZERO);
    block_on(recover_intents_after(carrier, soon, no_time)).expect("the journal can be written")
}

fn idle(name: &str) -> SchedulerNode {
    SchedulerNode::new(name, &["IDLE"])
}

#[test]
fn an_intent_of_an_earlier_version_for_one_gpu_is_concluded_without_a_change() {
    let (_folder, mut journal) = journal();
    let device = GpuCordon { way: GpuCordonMethod::TaintRule, index: 2, uuid: "GPU-2a".to_owned() };
    let begun = Action { device: Some(device), ..action(ActionKind::Drain, "n1") };
    journal.append(intent("a", begun, drain(), idle("n1"))).expect("written");
    let fake = FakeScheduler::with_nodes(1);
    let records = recover_now(&fake, &mut journal);
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(record.result, ActionResult::Superseded);
    assert!(record.detail.contains("GPU 2 (GPU-2a, taint-rule)"), "{}", record.detail);
    assert!(journal.state().open_intents.is_empty() && journal.state().drains.is_empty());
    assert!(fake.changed_nodes().is_empty(), "nothing was written");
    assert!(recover_now(&fake, &mut journal).is_empty(), "and it is concluded once");
}

#[test]
fn every_open_intent_is_concluded_by_the_state_of_its_node() {
    let fake = FakeScheduler::with_nodes(4);
    fake.put(FakeScheduler::drained_node("n1", DRAIN));
    fake.put(FakeScheduler::drained_node("n3", "operator's"));
    fake.put(FakeScheduler::drained_node("n5", DRAIN));
    let (_folder, mut journal) = journal();
    let begun =
        |id: &str, node: &str| intent(id, action(ActionKind::Drain, node), drain(), idle(node));
    let release = |id: &str, node: &str| {
        intent(
            id,
            action(ActionKind::Release, node),
            resume(),
            FakeScheduler::drained_node(node, DRAIN),
        )
    };
    let all = vec![
        begun("a", "n1"),
        begun("b", "n2"),
        begun("c", "n3"),
        release("d", "n4"),
        release("e", "n5"),
        begun("f", "n6"),
    ];
    journal.append_all(all).expect("written");
    let records = recover_now(&fake, &mut journal);
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
    assert!(fake.changed_nodes().is_empty(), "no node is changed");
    let ledger = journal.state();
    let drains: Vec<&str> = ledger.drains.keys().map(NodeName::as_str).collect();
    assert_eq!(drains, ["n1"]);
    assert_eq!(ledger.drains[&NodeName::from("n1")].action.reason, DRAIN);
    let spent: Vec<&str> = ledger.spent.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(spent, ["a", "b", "c", "f"], "they may have been visible for a while");

    // A second turn changes and writes nothing.
    let lines = ledger.lines;
    let again = recover_now(&fake, &mut journal);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0].result, ActionResult::Unknown);
    assert_eq!(journal.state().lines, lines);
}

#[test]
fn a_change_in_transit_is_visible_at_the_second_reading() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    journal
        .append(intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1")))
        .expect("written");
    fake.foreign_changes
        .borrow_mut()
        .extend([Vec::new(), vec![FakeScheduler::drained_node("n1", DRAIN)]]);
    let records = recover_now(&fake, &mut journal);
    assert_eq!(records[0].result, ActionResult::Done, "{records:?}");
}

#[test]
fn with_a_silent_scheduler_every_intent_stays_open_and_nothing_is_written() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    journal
        .append(intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1")))
        .expect("written");
    let lines = journal.state().lines;
    fake.silent.set(true);
    let records = recover_now(&fake, &mut journal);
    assert_eq!(records[0].result, ActionResult::Unknown);
    assert_eq!((journal.state().open_intents.len(), journal.state().lines), (1, lines));
    // After its next answer, the intents are concluded.
    fake.silent.set(false);
    assert_eq!(recover_now(&fake, &mut journal)[0].result, ActionResult::Refused);
    assert!(recover_now(&fake, &mut journal).is_empty());
}

#[test]
fn written_marks_are_found_and_unwritten_ones_are_dropped() {
    let fake = FakeScheduler::with_nodes(3);
    let extra = |extra: &str| NodeUpdate { extra: Some(extra.to_owned()), ..NodeUpdate::default() };
    let (_folder, mut journal) = journal();
    let all = ["n1", "n2", "n3"]
        .map(|node| intent(node, action(ActionKind::Certify, node), extra("ours"), idle(node)));
    journal.append_all(all.to_vec()).expect("written");
    fake.put(SchedulerNode { extra: "ours".to_owned(), ..idle("n1") });
    fake.put(SchedulerNode { extra: "hers".to_owned(), ..idle("n3") });
    let results: Vec<ActionResult> =
        recover_now(&fake, &mut journal).iter().map(|it| it.result).collect();
    let expected = [ActionResult::Done, ActionResult::Refused, ActionResult::Superseded];
    assert_eq!(results, expected);
    assert!(journal.state().marks.contains_key(&NodeName::from("n1")));
}

#[test]
fn a_node_that_is_gone_for_long_is_dropped() {
    assert_eq!(conclude_intent(None, None, YOUNG_INTENT_S - 1.0, 0.0).0, ActionResult::Unknown);
    assert_eq!(conclude_intent(None, None, YOUNG_INTENT_S + 1.0, 0.0).0, ActionResult::Refused);
    let unread = conclude_intent(None, Some("nodes[3]: no name"), YOUNG_INTENT_S + 1.0, 0.0);
    assert_eq!(unread.0, ActionResult::Unknown, "it may be the one that was not read");
}

#[test]
fn an_unanswered_change_is_not_dropped_by_the_next_turn() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    let late = JournalEvent::Outcome {
        id: "a".to_owned(),
        result: ActionResult::Unknown,
        detail: String::new(),
    };
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.append_all(vec![begun, late]).expect("written");
    let recover = |journal: &mut Journal| {
        let (_sender, stop) = watch::channel(false);
        let settle = Duration::from_secs(60);
        let names = MarkNames::default();
        let log = &mut |_: &GateEvent| {};
        let carrier = Executor { scheduler: &fake, journal, names: &names, settle, log, stop };
        block_on(recover_intents_after(carrier, Duration::ZERO, Duration::ZERO)).expect("written")
            [0]
        .result
    };
    assert_eq!(recover(&mut journal), ActionResult::Unknown);
    assert_eq!(journal.state().spent.len(), 1);
    fake.put(FakeScheduler::drained_node("n1", DRAIN));
    assert_eq!(recover(&mut journal), ActionResult::Done);
}

#[test]
fn a_node_found_drained_loses_its_certificate() {
    let fake = FakeScheduler::with_nodes(0);
    fake.put(FakeScheduler::drained_node("n1", DRAIN));
    let (folder, mut journal) = journal();
    let trust = SignatureTrust::default();
    let seal = CertificateSigning { key: Ok(None), trust: &trust };
    certificates::export_certificates(folder.path(), vec![certificate("n1")], Vec::new(), &seal)
        .expect("kept");
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.append(begun).expect("written");
    recover_now(&fake, &mut journal);
    let read = certificates::read_certificate(folder.path(), &"n1".into()).expect("readable");
    assert!(read.expect("there").voided.is_some());
}

#[test]
fn defect_2_of_security_a_change_of_a_killed_sender_counts_until_it_can_no_longer_land() {
    let fake = FakeScheduler::with_nodes(2);
    let (_folder, mut journal) = journal();
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.append(begun).expect("written");
    let recover = |journal: &mut Journal, in_flight: Duration| {
        let (_sender, stop) = watch::channel(false);
        let (names, settle) = (MarkNames::default(), Duration::ZERO);
        let log = &mut |_: &GateEvent| {};
        let carrier = Executor { scheduler: &fake, journal, names: &names, settle, log, stop };
        block_on(recover_intents_after(carrier, Duration::ZERO, in_flight)).expect("written")[0]
            .clone()
    };
    let record = recover(&mut journal, DEFAULT_IN_FLIGHT_TIME);
    assert_eq!(record.result, ActionResult::Unknown, "{record:?}");
    assert!(record.detail.contains("may still be applied"), "{record:?}");
    assert_eq!((journal.state().open_intents.len(), journal.state().spent.len()), (1, 1));
    // An operator drains the node meanwhile: fabricgate's change may still overwrite it.
    fake.put(FakeScheduler::drained_node("n1", "psu: swap"));
    let record = recover(&mut journal, DEFAULT_IN_FLIGHT_TIME);
    assert_eq!(record.result, ActionResult::Unknown, "{record:?}");
    assert_eq!((journal.state().open_intents.len(), journal.state().spent.len()), (1, 1));
    // It is applied, and counts as fabricgate's.
    fake.put(FakeScheduler::drained_node("n1", DRAIN));
    assert_eq!(recover(&mut journal, DEFAULT_IN_FLIGHT_TIME).result, ActionResult::Done);
    assert!(journal.state().drains.contains_key(&NodeName::from("n1")));
}

#[test]
fn an_intent_of_a_dead_sender_is_superseded_when_it_can_no_longer_land() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    let begun = intent("a", action(ActionKind::Drain, "n1"), drain(), idle("n1"));
    journal.append(begun).expect("written");
    fake.put(FakeScheduler::drained_node("n1", "psu: swap"));
    assert_eq!(recover_now(&fake, &mut journal)[0].result, ActionResult::Superseded);
    assert!(journal.state().open_intents.is_empty());
}
