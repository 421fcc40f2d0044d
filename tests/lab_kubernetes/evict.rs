//! Pods that leave nodes which we drained, on a real server with its disruption
//! controller: who goes, who stays and why, and who is nobody's business.
//!
//! There is no kubelet: a pod that was told to end is ended by this test.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use control::gate::journal;
use control::gate::journal::Journal;
use control::gate::kubernetes::evict::{Asking, Emptying};
use control::gate::kubernetes::{Fence, evict};
use control::gate::scheduler::{Answer, Scheduler, SchedulerError};
use control::sources::kubernetes::connection::{ResponseReadLimit, connect};
use engine::policy::drain_reason;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use model::action::{Action, ActionKind, ActionResult};
use model::eviction::{EvictionResult, NodeEviction};
use model::id::NodeName;
use model::journal::JournalEvent;
use model::kubernetes_node::{KubernetesNode, REASON, Taint};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::lab;

const CLASS: &str = "nvlink-low";

/// Nodes that are objects and no more.
const NODES: [&str; 4] = ["evict-1", "evict-2", "evict-3", "evict-4"];

fn pods_of(team: &str) -> String {
    format!("/api/v1/namespaces/{team}/pods")
}

/// Nodes as they are on the server, as far as pods that leave need it.
struct Nodes(Client);

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nodes")
    }
}

/// The term of somebody who lost it.
#[derive(Debug)]
struct Over;

impl Fence for Over {
    fn holds<'a>(&'a self) -> Answer<'a, ()> {
        let error = SchedulerError::new(SourceProblemKind::Contradictory, "another has the term");
        Box::pin(async { Err(error) })
    }
}

impl Scheduler for Nodes {
    fn name(&self) -> String {
        "nodes".to_owned()
    }

    fn read<'a>(&'a self, nodes: &'a [NodeName]) -> Answer<'a, SchedulerSnapshot> {
        Box::pin(async move {
            let api: Api<Node> = Api::all(self.0.clone());
            let mut live = SchedulerSnapshot::default();
            for name in nodes {
                let node = api.get_opt(name.as_str()).await.map_err(|error| {
                    SchedulerError::new(SourceProblemKind::Unreachable, error.to_string())
                })?;
                let Some(node) = node else { continue };
                live.nodes.insert(name.clone(), as_live(name, &node));
            }
            Ok(live)
        })
    }

    fn change<'a>(&'a self, _: &'a [NodeName], _: &'a NodeUpdate) -> Answer<'a, ()> {
        Box::pin(async { Err(SchedulerError::new(SourceProblemKind::Denied, "it only reads")) })
    }

    fn words(&self, _: &[NodeName], _: &NodeUpdate) -> Vec<Vec<String>> {
        Vec::new()
    }
}

fn as_live(name: &NodeName, node: &Node) -> SchedulerNode {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints: Vec<Taint> = taints
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        })
        .collect();
    let mut live = SchedulerNode::new(name.clone(), &["ALLOCATED", "DRAIN"]);
    live.reason =
        node.metadata.annotations.iter().flatten().find(|it| it.0 == REASON).map(|it| it.1.clone());
    let uid = node.metadata.uid.clone().unwrap_or_default();
    live.kubernetes = Some(Box::new(KubernetesNode { uid, taints, ..KubernetesNode::default() }));
    live
}

fn drained(node: &str, reason: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node, "annotations": {REASON: reason}},
        "spec": {"taints": [{"key": "fabricgate.io/degraded", "value": CLASS,
            "effect": "NoSchedule"}]}})
}

/// Pods of a node, each with a controller, ready.
struct Pods<'a> {
    server: &'a lab::Server,
    team: &'a str,
    owner: String,
}

impl Pods<'_> {
    async fn run(&self, node: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": self.team, "name": name, "labels": {"app": name},
                "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
                    "uid": self.owner, "controller": true}]},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30, "containers": [
                {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
        change(&mut pod);
        let pods = pods_of(self.team);
        self.server.create(&pods, &pod).await;
        let ready =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        self.server.status(&format!("{pods}/{name}"), &ready).await;
    }

    /// A budget, once the cluster knows what it allows: nothing.
    async fn budget(&self, name: &str, app: &str) {
        let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", self.team);
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name}, "spec": {"minAvailable": 1,
                "selector": {"matchLabels": {"app": app}}}});
        self.server.create(&budgets, &budget).await;
        lab::wait_for(&format!("the budget {name} counts its pod"), async || {
            let budget = self.server.get(&format!("{budgets}/{name}")).await.expect("a budget");
            let status = &budget["status"];
            let is_known = status["currentHealthy"] == 1 && status["disruptionsAllowed"] == 0;
            if is_known { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    }
}

/// A journal with a drain of ours on each of these nodes.
fn journal_with(folder: &Path, nodes: &[&str], reason: &str) {
    let mut journal = Journal::open(folder).expect("a journal");
    for node in nodes {
        let id = format!("run1/{node}/drain");
        let action = Action { reason: reason.to_owned(), ..Action::new(ActionKind::Drain, *node) };
        let before = Box::new(SchedulerNode::new(*node, &["ALLOCATED"]));
        let intent = JournalEvent::Intent {
            id: id.clone(),
            run: "run1".to_owned(),
            action: Box::new(action),
            change: Box::default(),
            before,
        };
        let outcome =
            JournalEvent::Outcome { id, result: ActionResult::Done, detail: "it shows".to_owned() };
        journal.write_all(vec![intent, outcome]).expect("written");
    }
}

/// What a kubelet does with pods of a team that were told to end.
async fn end_what_ends(client: Client, team: String) {
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, &team);
    loop {
        let pods = api.list(&kube::api::ListParams::default()).await.expect("pods");
        for pod in pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let now =
                kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            let name = pod.metadata.name.as_deref().expect("a name");
            let _ = api.delete(name, &now).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// `pod: result` of a node, with the detail of those that stay.
fn of(evictions: &[NodeEviction], node: &str) -> BTreeMap<String, (EvictionResult, String)> {
    let eviction = evictions.iter().find(|it| it.node.as_str() == node).expect("the node");
    let pods = eviction.pods.iter();
    let name = |pod: &str| pod.split_once('/').expect("a namespace").1.to_owned();
    pods.map(|pod| (name(&pod.pod), (pod.result, pod.detail.clone()))).collect()
}

#[tokio::test]
async fn pods_leave_drained_nodes_and_budgets_hold_them() {
    use EvictionResult::*;
    let Some(lab) = lab::lab() else { return };
    let server = lab.admin().await;
    // As the gate asks: an answer of 429 comes back at once.
    let access = connect(&lab.asks_as("admin"), ResponseReadLimit::Bounded).await.expect("a way");
    let client = access.client;
    let reason = drain_reason::format_reason("run1", CLASS, 1);
    let team = lab.namespace("team").await;
    for node in NODES {
        // A test that failed before has left it.
        server.delete(&format!("/api/v1/nodes/{node}")).await;
    }
    for node in ["evict-1", "evict-2"] {
        server.create("/api/v1/nodes", &drained(node, &reason)).await;
    }
    // Of this one somebody took the drain away; to this one nobody did anything.
    server.create("/api/v1/nodes", &json!({"metadata": {"name": "evict-3"}})).await;
    server.create("/api/v1/nodes", &drained("evict-4", "a person's own words")).await;
    let owner = json!({"metadata": {"name": "owner", "namespace": team}});
    let configs = &format!("/api/v1/namespaces/{team}/configmaps");
    server.create(configs, &owner).await;
    let owner = server.get(&format!("{configs}/owner")).await.expect("the owner");
    let pods = Pods {
        server: &server,
        team: &team,
        owner: owner["metadata"]["uid"].as_str().expect("a uid").to_owned(),
    };
    pods.run("evict-1", "goes", |_| {}).await;
    pods.run("evict-1", "held", |_| {}).await;
    pods.run("evict-1", "twice", |_| {}).await;
    pods.run("evict-1", "alone", |pod| pod["metadata"]["ownerReferences"] = json!([])).await;
    pods.run("evict-1", "plain", |pod| pod["spec"]["containers"][0]["resources"] = json!({})).await;
    pods.run("evict-1", "stubborn", |pod| {
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    })
    .await;
    pods.run("evict-2", "also", |_| {}).await;
    pods.run("evict-3", "stays", |_| {}).await;
    pods.run("evict-4", "stays-too", |_| {}).await;
    for budget in [("held", "held"), ("twice-a", "twice"), ("twice-b", "twice")] {
        pods.budget(budget.0, budget.1).await;
    }

    let folder = tempfile::tempdir().expect("a folder");
    journal_with(folder.path(), &["evict-1", "evict-2", "evict-3", "evict-4", "evict-5"], &reason);
    let nodes = Nodes(client.clone());
    let asking = Asking { client: &client, scheduler: &nodes, fence: None };

    // A dry run lists and asks nobody.
    let ledger = journal::look(folder.path()).expect("a ledger");
    let proposed =
        evict::look(asking, &ledger, &BTreeMap::from([("evict-3".into(), CLASS.to_owned())])).await;
    let one = of(&proposed, "evict-1");
    assert_eq!(one["goes"].0, Proposed);
    assert_eq!(one["held"].0, Proposed);
    assert_eq!(one["alone"].0, Kept);
    assert!(!one.contains_key("plain"), "{one:?}");
    let untouched = server.get(&format!("{}/goes", pods_of(&team))).await.expect("the pod");
    assert!(untouched["metadata"]["deletionTimestamp"].is_null());

    // Whose term is over asks nobody either.
    let mut journal = Journal::open(folder.path()).expect("a journal");
    let (_stopper, stop) = watch::channel(false);
    let refused = evict::empty(Emptying {
        asking: Asking { fence: Some(&Over), ..asking },
        journal: &mut journal,
        patience: Duration::ZERO,
        stop,
        say: &mut |text| panic!("{text}"),
    })
    .await
    .expect("the journal");
    let one = of(&refused, "evict-1");
    assert_eq!(one["goes"].0, Left, "{one:?}");
    assert!(one["goes"].1.contains("it was not asked: another has the term"), "{one:?}");
    drop(journal);

    let kubelet = tokio::spawn(end_what_ends(client.clone(), team.clone()));
    let mut journal = Journal::open(folder.path()).expect("a journal");
    let (_stopper, stop) = watch::channel(false);
    let mut told = Vec::new();
    let evictions = evict::empty(Emptying {
        asking,
        journal: &mut journal,
        patience: Duration::from_secs(8),
        stop,
        say: &mut |text| told.push(text.to_owned()),
    })
    .await
    .expect("the journal");
    kubelet.abort();
    drop(journal);

    let one = of(&evictions, "evict-1");
    assert_eq!(one["goes"].0, Gone, "{one:?}");
    assert_eq!(one["held"].0, Left, "{one:?}");
    assert!(one["held"].1.contains("budget held needs 1"), "{one:?}");
    assert_eq!(one["twice"].0, Left, "{one:?}");
    assert!(one["twice"].1.contains("more than one disruption budget"), "{one:?}");
    assert!(one["alone"].1.contains("no controller"), "{one:?}");
    assert!(one["stubborn"].1.contains("tolerates"), "{one:?}");
    assert_eq!(of(&evictions, "evict-2")["also"].0, Gone);
    for (node, why) in [
        ("evict-3", "does not show our drain"),
        ("evict-4", "does not show our drain"),
        ("evict-5", "does not know it"),
    ] {
        let refused = evictions.iter().find(|it| it.node.as_str() == node).expect("the node");
        assert!(refused.refused.as_deref().is_some_and(|said| said.contains(why)), "{refused:?}");
    }
    let words = format!("{team}/goes was told to end");
    assert!(told.iter().any(|line| line.contains(&words)), "{told:?}");

    // What was done is written down, before and after.
    let written = std::fs::read_to_string(folder.path().join("journal.jsonl")).expect("a journal");
    for event in ["\"event\":\"evicting\",\"node\":\"evict-1\"", "\"event\":\"evicted\""] {
        assert!(written.contains(event), "{written}");
    }
    // Whoever stays was not touched.
    for name in ["held", "twice", "alone", "plain", "stubborn", "stays", "stays-too"] {
        let pod = server.get(&format!("{}/{name}", pods_of(&team))).await.expect("the pod");
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    server.delete(&format!("/api/v1/namespaces/{team}")).await;
    for node in NODES {
        server.delete(&format!("/api/v1/nodes/{node}")).await;
    }
}
