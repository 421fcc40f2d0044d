//! Drains on a controller that loses its state.

use tokio::sync::watch;

use super::super::fixture::{FakeScheduler, action, block_on, journal, plan};
use super::super::journal::Journal;
use super::*;
use crate::gate::gate_event::GateEvent;
use engine::policy::marks::MarkNames;
use model::action::{ActionKind, ActionResult};
use model::kubernetes_node::KubernetesNode;
use model::scheduler_snapshot::SchedulerNode;

const SETTLE: Duration = Duration::from_millis(100);

fn with_executor<T>(
    fake: &FakeScheduler,
    journal: &mut Journal,
    does: impl AsyncFnOnce(Executor<'_>) -> T,
) -> T {
    let (_sender, stop) = watch::channel(false);
    let names = MarkNames::default();
    let log = &mut |_: &GateEvent| {};
    let scheduler = fake;
    block_on(does(Executor { scheduler, journal, names: &names, settle: SETTLE, log, stop }))
}

fn drained_journal(fake: &FakeScheduler) -> (tempfile::TempDir, Journal) {
    let (folder, mut journal) = journal();
    let both = plan(["n1", "n2"].map(|node| action(ActionKind::Drain, node)).to_vec());
    let kept = Duration::ZERO;
    let records = with_executor(fake, &mut journal, async |it| {
        executor::execute_plan_within(it, "r1", &both, kept).await
    });
    let records = records.expect("written");
    assert!(records.iter().all(|it| it.result == ActionResult::Done), "{records:?}");
    fake.calls.borrow_mut().clear();
    (folder, journal)
}

fn restore(fake: &FakeScheduler, journal: &mut Journal, over: Option<&str>) -> Vec<ActionRecord> {
    let live = SchedulerSnapshot { nodes: fake.nodes.borrow().clone(), troubles: Vec::new() };
    let vanished =
        with_executor(fake, journal, async |mut it| detect_lost_drains(&mut it, &live).await);
    let vanished = vanished.expect("written");
    let kept = Duration::ZERO;
    let records =
        with_executor(fake, journal, async |it| restore_drains(it, &vanished, over, kept).await);
    records.expect("written")
}

#[test]
fn defect_2_a_drain_that_a_controller_lost_is_restored_unchanged() {
    let fake = FakeScheduler::with_nodes(2);
    fake.controller_starts.borrow_mut().push_back("monday".to_owned());
    let (_folder, mut journal) = drained_journal(&fake);
    assert_eq!(journal.state().controller.as_deref(), Some("monday"));
    let reason = fake.node("n1").reason;
    *fake.controller_starts.borrow_mut() = ["tuesday".to_owned()].into();
    fake.put(SchedulerNode::new("n1", &["IDLE"]));
    fake.put(SchedulerNode::new("n2", &["IDLE"]));
    // An operator undid one of them: fabricgate's entry stays.
    let details = &journal.state().drain_details[&NodeName::from("n2")];
    let extra = details.extra.clone().expect("written");
    fake.put(SchedulerNode { extra, ..SchedulerNode::new("n2", &["IDLE"]) });
    let records = restore(&fake, &mut journal, None);
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((records[0].node.as_str(), records[0].result), ("n1", ActionResult::Done));
    assert_eq!(fake.node("n1").reason, reason, "it is the same drain");
    assert_eq!(fake.node("n2").state, ["IDLE"]);
    let ledger = journal.state();
    assert_eq!((ledger.drains.len(), ledger.open_intents.len()), (2, 0));
    assert_eq!(ledger.controller.as_deref(), Some("tuesday"));
    // Only once.
    fake.calls.borrow_mut().clear();
    assert!(restore(&fake, &mut journal, None).is_empty());
    assert!(fake.changed_nodes().is_empty());
}

#[test]
fn lost_drains_are_not_restored_if_the_breaker_tripped_or_too_many_nodes_are_out() {
    let fake = FakeScheduler::with_nodes(2);
    let (_folder, mut journal) = drained_journal(&fake);
    fake.put(SchedulerNode::new("n1", &["IDLE"]));
    assert!(restore(&fake, &mut journal, Some("3 drains are outstanding (limit 2)")).is_empty());
    let tripped = JournalEvent::Tripped { why: "x".to_owned(), run: "r2".to_owned() };
    journal.append(tripped).expect("written");
    assert!(restore(&fake, &mut journal, None).is_empty());
    assert!(fake.changed_nodes().is_empty());
    assert_eq!(journal.state().drains.len(), 2, "they still count");
}

#[test]
fn defect_1_a_drain_that_a_restored_store_lost_is_restored_immediately_and_unchanged() {
    let fake = FakeScheduler::with_nodes(2);
    for name in ["n1", "n2"] {
        fake.put(kubernetes_node(fake.node(name), "5"));
    }
    let (_folder, mut journal) = drained_journal(&fake);
    let reason = fake.node("n1").reason;
    // An operator undid the other one: the node was written since.
    fake.put(kubernetes_node(SchedulerNode::new("n1", &["IDLE"]), "5"));
    fake.put(kubernetes_node(SchedulerNode::new("n2", &["IDLE"]), "9"));
    let records = restore(&fake, &mut journal, None);
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((records[0].node.as_str(), records[0].result), ("n1", ActionResult::Done));
    assert_eq!(fake.node("n1").reason, reason, "it is the same drain");
    assert_eq!(fake.node("n2").state, ["IDLE"]);
    let ledger = journal.state();
    assert_eq!((ledger.drains.len(), ledger.open_intents.len()), (2, 0));
    fake.calls.borrow_mut().clear();
    assert!(restore(&fake, &mut journal, None).is_empty());
    assert!(fake.changed_nodes().is_empty());
}

/// A node at this version of its object.
fn kubernetes_node(node: SchedulerNode, version: &str) -> SchedulerNode {
    let (uid, version) = (format!("uid-{}", node.name), version.to_owned());
    let object = KubernetesNode { uid, version, ..KubernetesNode::default() };
    SchedulerNode { kubernetes: Some(Box::new(object)), ..node }
}
