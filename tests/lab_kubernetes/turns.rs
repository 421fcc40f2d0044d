//! Turns of the gate over a plan, on nodes of one test, and the state of those nodes before and
//! after: shared by the fault-injection tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::gate::executor::Executor;
use control::gate::gate_event::GateEvent;
use control::gate::journal::Journal;
use control::gate::kubernetes::KubernetesScheduler as Gate;
use control::gate::scheduler::Scheduler;
use control::gate::{executor, recovery};
use control::sources::kubernetes::KubernetesClientConfig;
use control::sources::kubernetes::connection::{ResponseReadLimit, connect};
use engine::policy::journal_state::JournalState;
use engine::policy::marks::MarkNames;
use kube::Client;
use kube::core::Request;
use model::action::{Action, ActionKind, ActionPlan, ActionRecord, ActionResult};
use model::id::NodeName;
use model::journal::JournalEvent;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;
use serde_json::{Value, json};

use super::lab::Lab;
pub(super) use super::proposals::plan;
use super::{lab, proposals};

pub(super) const CLASS: &str = "nvlink-low";
pub(super) const NODES: &str = "/api/v1/nodes";

/// Time limit of one request; short, since some are never answered.
const LIMIT: Duration = Duration::from_secs(6);

/// Time within which a change must be visible.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// The client configuration of a kubeconfig.
pub(super) fn through(kubeconfig: &Path) -> KubernetesClientConfig {
    KubernetesClientConfig { kubeconfig: Some(kubeconfig.to_owned()), context: None, limit: LIMIT }
}

/// The server as its administrator sees it, without injected faults. A client lives no longer
/// than its runtime, so each request has its own.
pub(super) struct Admin(PathBuf);

impl Admin {
    pub(super) fn of(kubeconfig: &Path) -> Self {
        Self(kubeconfig.to_owned())
    }

    async fn client(&self) -> Client {
        connect(&through(&self.0), ResponseReadLimit::Bounded).await.expect("a way").client
    }

    async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> Option<Value> {
        let request = axum::http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind).body(body.to_string().into_bytes());
        match self.client().await.request(request.expect("a request")).await {
            Ok(value) => Some(value),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    pub(super) async fn create(&self, path: &str, object: &Value) {
        self.send("POST", path, "application/json", object).await.expect("created");
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        self.send("GET", path, "application/json", &Value::Null).await.expect("an answer")
    }

    /// The same for a server that may be down.
    pub(super) async fn try_get(&self, path: &str) -> Option<Value> {
        let client = connect(&through(&self.0), ResponseReadLimit::Bounded).await.ok()?.client;
        let request = axum::http::Request::builder().uri(path).body(Vec::new());
        client.request(request.expect("a request")).await.ok()
    }

    /// A patch that may find no server.
    pub(super) async fn try_patch(&self, path: &str, patch: &Value) -> Option<Value> {
        let client = connect(&through(&self.0), ResponseReadLimit::Bounded).await.ok()?.client;
        let request = axum::http::Request::builder().method("PATCH").uri(path);
        let request = request.header("content-type", "application/merge-patch+json");
        let request = request.body(patch.to_string().into_bytes()).expect("a request");
        client.request(request).await.ok()
    }

    pub(super) async fn delete(&self, path: &str) {
        self.send("DELETE", path, "application/json", &json!({})).await;
    }

    pub(super) async fn patch(&self, path: &str, patch: &Value) {
        self.send("PATCH", path, "application/merge-patch+json", patch).await.expect("patched");
    }

    pub(super) async fn node(&self, name: &str) -> Value {
        let request = Request::new(NODES).get(name, &Default::default()).expect("a request");
        self.client().await.request(request).await.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A ready node in service, with foreign marks on it.
    pub(super) async fn make(&self, name: &str) {
        // A failed earlier test left it.
        self.delete(&format!("{NODES}/{name}")).await;
        self.create(NODES, &object(name)).await;
        // Admission adds a taint that a controller would remove.
        let path = format!("{NODES}/{name}");
        self.patch(&path, &json!({"spec": {"taints": foreign_taints()}})).await;
        let status = json!({"status": {"nodeInfo": node_info(),
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "ExampleHealthy", "status": "True", "reason": "Tested",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        self.patch(&format!("{path}/status"), &status).await;
    }
}

pub(super) fn object(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
        "labels": {"example.com/rack": "r1"}, "annotations": {"example.com/note": "a person's"}},
        "spec": {"taints": foreign_taints()}})
}

fn foreign_taints() -> Value {
    json!([{"key": "example.com/busy", "value": "no", "effect": "PreferNoSchedule"}])
}

fn node_info() -> Value {
    json!({"machineID": "m", "systemUUID": "s", "bootID": "boot-1", "kernelVersion": "6",
        "osImage": "o", "containerRuntimeVersion": "c", "kubeletVersion": "v1.36.4",
        "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"})
}

/// The content of a node without times and versions: fabricgate's fields and foreign ones.
pub(super) fn content(node: &Value) -> Value {
    let conditions: BTreeMap<String, Value> = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| {
            let kind = it["type"].as_str().unwrap_or_default().to_owned();
            (kind, json!([it["status"], it["reason"], it["message"]]))
        })
        .collect();
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.sort_by_key(|taint| taint["key"].to_string());
    json!({"uid": node["metadata"]["uid"], "labels": node["metadata"]["labels"],
        "annotations": node["metadata"]["annotations"], "taints": taints,
        "unschedulable": node["spec"]["unschedulable"], "conditions": conditions})
}

/// The foreign content of a node: fabricgate may never change it.
pub(super) fn foreign(node: &Value) -> Value {
    let mut state = content(node);
    for map in ["labels", "annotations"] {
        if let Some(map) = state[map].as_object_mut() {
            map.retain(|key, _| !key.starts_with("fabricgate.io/"));
        }
    }
    if let Some(taints) = state["taints"].as_array_mut() {
        taints
            .retain(|it| !it["key"].as_str().is_some_and(|key| key.starts_with("fabricgate.io/")));
    }
    if let Some(conditions) = state["conditions"].as_object_mut() {
        conditions.remove("GpuFabricVerified");
    }
    state
}

/// The reason of fabricgate's drain: taint and annotation, both or neither.
pub(super) fn drained(node: &Value) -> Option<String> {
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let ours = |it: &Value| it["key"] == "fabricgate.io/degraded" && it["effect"] == "NoSchedule";
    let has_taint = taints.iter().any(ours);
    let reason = node["metadata"]["annotations"]["fabricgate.io/reason"].as_str();
    assert_eq!(has_taint, reason.is_some(), "half a drain: {node}");
    reason.map(str::to_owned)
}

pub(super) fn action(kind: ActionKind, node: &str) -> Action {
    proposals::action(kind, node, CLASS)
}

/// One turn: open intents first, and then the plan.
pub(super) fn turn(state: &Path, gate: &Gate, plan: &ActionPlan) -> Vec<ActionRecord> {
    turn_of("r1", state, gate, plan)
}

/// The same for another run.
pub(super) fn turn_of(
    run: &str,
    state: &Path,
    gate: &Gate,
    plan: &ActionPlan,
) -> Vec<ActionRecord> {
    let mut journal = Journal::open(state).expect("a turn");
    let names = MarkNames::default();
    let (_sender, stop) = tokio::sync::watch::channel(false);
    // No reader: only the server's state counts.
    let mut log = |_: &GateEvent| {};
    let carrier = Executor {
        scheduler: gate,
        journal: &mut journal,
        names: &names,
        settle: SETTLE,
        log: &mut log,
        stop: stop.clone(),
    };
    now(recovery::recover_intents(carrier, Duration::ZERO)).expect("written");
    let carrier = Executor {
        scheduler: gate,
        journal: &mut journal,
        names: &names,
        settle: SETTLE,
        log: &mut log,
        stop,
    };
    now(executor::execute_plan_within(carrier, run, plan, Duration::ZERO)).expect("written")
}

pub(super) fn results(records: &[ActionRecord]) -> Vec<ActionResult> {
    records.iter().map(|it| it.result).collect()
}

pub(super) fn own(ledger: &JournalState) -> Vec<&str> {
    ledger.drains.keys().map(NodeName::as_str).collect()
}

pub(super) fn seen(gate: &Gate, name: &str) -> SchedulerNode {
    let name = NodeName::from(name);
    let mut live = now(gate.read_nodes(std::slice::from_ref(&name))).expect("read");
    live.nodes.remove(&name).expect("the node")
}

/// A node that an earlier turn of this state folder drained.
pub(super) fn drained_before(state: &Path, admin: &Admin, gate: &Gate, name: &str) {
    let reason = format!("fabricgate:{CLASS}:r0 e1");
    let before = Box::new(seen(gate, name));
    let mut taints = foreign_taints();
    let ours = json!({"key": "fabricgate.io/degraded", "value": CLASS, "effect": "NoSchedule"});
    taints.as_array_mut().expect("a list").push(ours);
    let patch = json!({"metadata": {"annotations": {"fabricgate.io/reason": reason}},
        "spec": {"taints": taints}});
    now(admin.patch(&format!("{NODES}/{name}"), &patch));
    let mut journal = Journal::open(state).expect("a turn");
    let id = format!("r0/{name}/drain/e1");
    let state = Some(NodeStateChange::Drain { reason: reason.clone() });
    let intent = JournalEvent::Intent {
        id: id.clone(),
        run: "r0".to_owned(),
        action: Box::new(Action { reason, ..action(ActionKind::Drain, name) }),
        change: Box::new(NodeUpdate { state, ..NodeUpdate::default() }),
        before,
    };
    let outcome = JournalEvent::Outcome { id, result: ActionResult::Done, detail: String::new() };
    journal.append_all(vec![intent, outcome]).expect("written");
}

/// The administrator's kubeconfig of the lab, which is locked as long as this lives.
pub(super) struct Laboratory {
    kubeconfig: PathBuf,
    _lab: Lab,
}

impl std::ops::Deref for Laboratory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.kubeconfig
    }
}

/// The lab; `None` where it is missing.
pub(super) fn laboratory() -> Option<Laboratory> {
    let lab = lab::lab()?;
    Some(Laboratory { kubeconfig: lab.kubeconfig("admin"), _lab: lab })
}
