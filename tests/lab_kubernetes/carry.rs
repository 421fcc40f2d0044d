//! Plans applied to nodes of a real cluster, with the journal that records them.

use std::path::Path;
use std::time::Duration;

use control::gate::executor::Executor;
use control::gate::gate_event::GateEvent;
use control::gate::journal::Journal;
use control::gate::kubernetes::KubernetesScheduler;
use control::gate::scheduler::Scheduler;
use control::gate::{executor, journal, recovery};
use engine::policy::marks::MarkNames;
use model::action::{Action, ActionKind, ActionPlan, ActionRecord, ActionResult};
use model::journal::JournalEvent;
use model::kubernetes_node::{DEGRADED, REASON, UNVERIFIED};
use model::node_update::{NodeStateChange, NodeUpdate};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::changes::{NODES, add, named, of_others, own_condition, plain_node, remove, version};
use super::lab::{Lab, lab};
use super::turns;
use super::turns::plan;

pub(super) fn action(kind: ActionKind, node: &str) -> Action {
    let mut action = turns::action(kind, node);
    if let Some(mark) = &mut action.mark {
        mark.boot_id = Some(format!("boot-{node}"));
        mark.domain = Some("rack-a".into());
    }
    action
}

/// One turn with this plan: it first concludes the intents that an earlier turn left open.
async fn carried(lab: &Lab, folder: &Path, plan: &ActionPlan) -> Vec<(String, ActionResult)> {
    let gate = KubernetesScheduler::new(lab.asks_as("admin"));
    let mut journal = Journal::open(folder).expect("a journal");
    let recovered = recovered(&gate, &mut journal).await;
    assert!(recovered.is_empty(), "{recovered:?}");
    drop(journal);
    results(&records(lab, folder, "r1", plan).await)
}

/// Results of this plan of a run, in its own turn.
pub(super) async fn records(
    lab: &Lab,
    folder: &Path,
    run: &str,
    plan: &ActionPlan,
) -> Vec<ActionRecord> {
    let gate = KubernetesScheduler::new(lab.asks_as("admin"));
    let mut journal = Journal::open(folder).expect("a journal");
    let (_stopper, stop) = watch::channel(false);
    let (names, mut log) = (MarkNames::default(), |_: &GateEvent| {});
    let carrier = Executor {
        scheduler: &gate,
        journal: &mut journal,
        names: &names,
        settle: Duration::from_secs(3),
        log: &mut log,
        stop,
    };
    executor::execute_plan_within(carrier, run, plan, Duration::ZERO).await.expect("a journal")
}

async fn recovered(gate: &KubernetesScheduler, journal: &mut Journal) -> Vec<ActionRecord> {
    let (_stopper, stop) = watch::channel(false);
    let (names, mut log) = (MarkNames::default(), |_: &GateEvent| {});
    let carrier = Executor {
        scheduler: gate,
        journal,
        names: &names,
        settle: Duration::from_secs(3),
        log: &mut log,
        stop,
    };
    recovery::recover_intents(carrier, Duration::ZERO).await.expect("a journal")
}

fn results(records: &[ActionRecord]) -> Vec<(String, ActionResult)> {
    records.iter().map(|it| (it.node.to_string(), it.result)).collect()
}

fn alike(names: &[&str], result: ActionResult) -> Vec<(String, ActionResult)> {
    names.iter().map(|name| ((*name).to_owned(), result)).collect()
}

#[tokio::test]
async fn a_plan_is_carried_out_once_and_the_second_time_changes_nothing() {
    let Some(lab) = lab() else { return };
    let server = lab.admin().await;
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["cry-bad", "cry-worse", "cry-soft", "cry-new"];
    for name in names {
        let mut node = plain_node(name);
        if name == "cry-new" {
            node["spec"]["taints"] = json!([{"key": UNVERIFIED, "effect": "NoSchedule"},
                {"key": "nvidia.com/gpu", "effect": "NoSchedule"}]);
        }
        add(&server, &node).await;
    }
    let whole = plan(vec![
        action(ActionKind::Drain, "cry-bad"),
        action(ActionKind::Drain, "cry-worse"),
        action(ActionKind::Relabel, "cry-soft"),
        action(ActionKind::Certify, "cry-new"),
    ]);
    let mut others = Vec::new();
    for name in names {
        others.push(of_others(&server.node(name).await));
    }
    assert_eq!(carried(&lab, folder.path(), &whole).await, alike(&names, ActionResult::Done));
    let mut nodes: Vec<Value> = Vec::new();
    for (name, others) in names.iter().zip(&others) {
        let node = server.node(name).await;
        assert_eq!(&of_others(&node), others, "{name}");
        nodes.push(node);
    }
    let taints = |node: &Value| node["spec"]["taints"].to_string();
    let ledger = journal::read_state(folder.path()).expect("a journal");
    for (name, node) in names.iter().zip(&nodes).take(2) {
        assert!(taints(node).contains(DEGRADED), "{node}");
        let written = &ledger.drains[&(*name).into()].action.reason;
        assert_eq!(node["metadata"]["annotations"][REASON], written.as_str());
        assert_eq!(own_condition(node).expect("a condition")["status"], "False");
    }
    assert!(taints(&nodes[2]).contains("PreferNoSchedule"), "{}", nodes[2]);
    assert!(!taints(&nodes[3]).contains("fabricgate"), "{}", nodes[3]);
    assert_eq!(own_condition(&nodes[3]).expect("a condition")["status"], "True");
    assert_eq!(nodes[3]["metadata"]["labels"]["fabricgate.io/verified-domain"], "rack-a");
    assert!(ledger.open_intents.is_empty());

    assert_eq!(carried(&lab, folder.path(), &whole).await, alike(&names, ActionResult::Already));
    for (name, node) in names.iter().zip(&nodes) {
        assert_eq!(version(&server.node(name).await), version(node), "{name}");
    }

    // An operator cordons a node that fabricgate drained, another removes fabricgate's taint.
    let cordon = json!({"spec": {"unschedulable": true}});
    server.merge(&format!("{NODES}/cry-bad"), &cordon).await;
    server.merge(&format!("{NODES}/cry-worse"), &json!({"spec": {"taints": null}})).await;
    let back = plan(vec![
        action(ActionKind::Release, "cry-bad"),
        action(ActionKind::Release, "cry-worse"),
    ]);
    let results = carried(&lab, folder.path(), &back).await;
    let expected = [
        ("cry-bad".to_owned(), ActionResult::Done),
        ("cry-worse".to_owned(), ActionResult::Already),
    ];
    assert_eq!(results, expected);
    let node = server.node("cry-bad").await;
    assert_eq!(node["spec"]["unschedulable"], true, "the cordon is hers");
    assert!(!taints(&node).contains(DEGRADED), "{node}");
    remove(&server, &names.map(str::to_owned)).await;
}

#[tokio::test]
async fn an_intent_that_a_crash_left_open_is_concluded_from_the_nodes() {
    let Some(lab) = lab() else { return };
    let server = lab.admin().await;
    let gate = KubernetesScheduler::new(lab.asks_as("admin"));
    let names = ["crc-done", "crc-never", "crc-other", "crc-taken"].map(str::to_owned);
    for name in &names {
        add(&server, &plain_node(name)).await;
    }
    let live = gate.read_nodes(&named(&names)).await.expect("an answer");
    let folder = tempfile::tempdir().expect("a folder");
    let reason = "fabricgate:nvlink-low:r1 e1".to_owned();
    let change = NodeUpdate {
        state: Some(NodeStateChange::Drain { reason: reason.clone() }),
        ..NodeUpdate::default()
    };
    let mut journal = Journal::open(folder.path()).expect("a journal");
    let intents = live.nodes.values().map(|before| JournalEvent::Intent {
        id: format!("r1/{}/drain/e1", before.name),
        run: "r1".to_owned(),
        action: Box::new(Action {
            reason: reason.clone(),
            ..action(ActionKind::Drain, before.name.as_str())
        }),
        change: Box::new(change.clone()),
        before: Box::new(before.clone()),
    });
    journal.append_all(intents.collect()).expect("written");
    drop(journal);
    // One was written before the crash, one never; the third node's object is new, and an
    // operator drained the fourth.
    gate.update_nodes(&named(&names[..1]), &change).await.expect("drained");
    add(&server, &plain_node(&names[2])).await;
    let byhand = json!([{"key": DEGRADED, "value": "x", "effect": "NoSchedule"}]);
    server.merge(&format!("{NODES}/crc-taken"), &json!({"spec": {"taints": byhand}})).await;

    let mut journal = Journal::open(folder.path()).expect("a journal");
    let found = results(&recovered(&gate, &mut journal).await);
    let expected = [
        ("crc-done".to_owned(), ActionResult::Done),
        ("crc-never".to_owned(), ActionResult::Refused),
        ("crc-other".to_owned(), ActionResult::Superseded),
        ("crc-taken".to_owned(), ActionResult::Superseded),
    ];
    assert_eq!(found, expected);
    assert!(journal.state().open_intents.is_empty());
    remove(&server, &names).await;
}
