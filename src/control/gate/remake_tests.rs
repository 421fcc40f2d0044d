//! A controller that loses its state, and the drains that were on it.

use tokio::sync::watch;

use super::super::fixture::{Fake, action, journal, now, plan};
use super::super::journal::Journal;
use super::*;
use engine::policy::marks::MarkNames;
use model::action::{ActionKind, ActionResult};
use model::kubernetes_node::KubernetesNode;
use model::scheduler_snapshot::SchedulerNode;

const SETTLE: Duration = Duration::from_millis(100);

fn with<T>(fake: &Fake, journal: &mut Journal, does: impl AsyncFnOnce(Carrier<'_>) -> T) -> T {
    let (_sender, stop) = watch::channel(false);
    let names = MarkNames::default();
    let say = &mut |_: &str| {};
    let scheduler = fake;
    now(does(Carrier { scheduler, journal, names: &names, settle: SETTLE, say, stop }))
}

/// Two drained nodes.
fn drained(fake: &Fake) -> (tempfile::TempDir, Journal) {
    let (folder, mut journal) = journal();
    let both = plan(["n1", "n2"].map(|node| action(ActionKind::Drain, node)).to_vec());
    let kept = Duration::ZERO;
    let records =
        with(fake, &mut journal, async |it| carry::carry_within(it, "r1", &both, kept).await);
    let records = records.expect("written");
    assert!(records.iter().all(|it| it.result == ActionResult::Done), "{records:?}");
    fake.calls.borrow_mut().clear();
    (folder, journal)
}

fn made_again(fake: &Fake, journal: &mut Journal, over: Option<&str>) -> Vec<ActionRecord> {
    let live = SchedulerSnapshot { nodes: fake.nodes.borrow().clone(), troubles: Vec::new() };
    let vanished = with(fake, journal, async |mut it| looked(&mut it, &live).await);
    let vanished = vanished.expect("written");
    let kept = Duration::ZERO;
    let records = with(fake, journal, async |it| remake(it, &vanished, over, kept).await);
    records.expect("written")
}

#[test]
fn defect_2_a_drain_that_a_controller_lost_is_made_again_as_it_was() {
    let fake = Fake::of(2);
    fake.starts.borrow_mut().push_back("monday".to_owned());
    let (_folder, mut journal) = drained(&fake);
    assert_eq!(journal.ledger().controller.as_deref(), Some("monday"));
    let reason = fake.node("n1").reason;
    *fake.starts.borrow_mut() = ["tuesday".to_owned()].into();
    fake.put(SchedulerNode::new("n1", &["IDLE"]));
    fake.put(SchedulerNode::new("n2", &["IDLE"]));
    // A person took one of them away: our words stay.
    let said =
        journal.ledger().drain_details[&NodeName::from("n2")].extra.clone().expect("written");
    fake.put(SchedulerNode { extra: said, ..SchedulerNode::new("n2", &["IDLE"]) });
    let records = made_again(&fake, &mut journal, None);
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((records[0].node.as_str(), records[0].result), ("n1", ActionResult::Done));
    assert_eq!(fake.node("n1").reason, reason, "it is the same drain");
    assert_eq!(fake.node("n2").state, ["IDLE"]);
    let ledger = journal.ledger();
    assert_eq!((ledger.drains.len(), ledger.open_intents.len()), (2, 0));
    assert_eq!(ledger.controller.as_deref(), Some("tuesday"));
    // Once.
    fake.calls.borrow_mut().clear();
    assert!(made_again(&fake, &mut journal, None).is_empty());
    assert!(fake.changed().is_empty());
}

#[test]
fn what_was_lost_stays_in_service_where_too_much_is_out_or_the_breaker_tripped() {
    let fake = Fake::of(2);
    let (_folder, mut journal) = drained(&fake);
    fake.put(SchedulerNode::new("n1", &["IDLE"]));
    assert!(made_again(&fake, &mut journal, Some("3 drains are outstanding (limit 2)")).is_empty());
    let tripped = JournalEvent::Tripped { why: "x".to_owned(), run: "r2".to_owned() };
    journal.write(tripped).expect("written");
    assert!(made_again(&fake, &mut journal, None).is_empty());
    assert!(fake.changed().is_empty());
    assert_eq!(journal.ledger().drains.len(), 2, "they are ours all the same");
}

#[test]
fn defect_1_a_drain_that_a_restored_store_lost_is_made_again_at_once_as_it_was() {
    let fake = Fake::of(2);
    for name in ["n1", "n2"] {
        fake.put(on_kubernetes(fake.node(name), "5"));
    }
    let (_folder, mut journal) = drained(&fake);
    let reason = fake.node("n1").reason;
    // A person took the other one away: the node was written since.
    fake.put(on_kubernetes(SchedulerNode::new("n1", &["IDLE"]), "5"));
    fake.put(on_kubernetes(SchedulerNode::new("n2", &["IDLE"]), "9"));
    let records = made_again(&fake, &mut journal, None);
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((records[0].node.as_str(), records[0].result), ("n1", ActionResult::Done));
    assert_eq!(fake.node("n1").reason, reason, "it is the same drain");
    assert_eq!(fake.node("n2").state, ["IDLE"]);
    let ledger = journal.ledger();
    assert_eq!((ledger.drains.len(), ledger.open_intents.len()), (2, 0));
    fake.calls.borrow_mut().clear();
    assert!(made_again(&fake, &mut journal, None).is_empty());
    assert!(fake.changed().is_empty());
}

/// A node at this version of its object.
fn on_kubernetes(node: SchedulerNode, version: &str) -> SchedulerNode {
    let (uid, version) = (format!("uid-{}", node.name), version.to_owned());
    let object = KubernetesNode { uid, version, ..KubernetesNode::default() };
    SchedulerNode { kubernetes: Some(Box::new(object)), ..node }
}
