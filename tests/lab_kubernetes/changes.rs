//! Nodes of a real cluster, read and changed by the gate's back end next to operators and
//! controllers. `meanwhile` tests concurrent changes.

use std::collections::BTreeSet;
use std::time::Duration;

use control::gate::kubernetes::KubernetesScheduler;
use control::gate::scheduler::{Scheduler, SchedulerError};
use kube::core::Request;
use kube::core::params::DeleteParams;
use model::id::NodeName;
use model::kubernetes_node::{
    CERTIFICATE, CONDITION, DEGRADED, FABRICGATE_PREFIX, FabricNodeCondition, KubernetesNodeUpdate,
    REASON, TaintEdit, UNVERIFIED, VERDICT,
};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use serde_json::{Value, json};

use super::lab::{Lab, Server, lab, wait_for};

pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const OURS: &str = "fabricgate:nvlink-low:r1 e1";

/// Labels and annotations of a cluster's operators: fabricgate never changes them.
fn operators_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
    "metadata": {"name": name,
        "labels": {"nvidia.com/gpu.present": "true", "team": "ml"},
        "annotations": {"note": "hands off"}},
    "spec": {"providerID": format!("lab:///{name}"), "unschedulable": true, "taints": [
        {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
        {"key": "dedicated", "value": "ml", "effect": "NoExecute",
            "timeAdded": "2026-01-01T00:00:00Z"},
        {"key": UNVERIFIED, "effect": "NoSchedule"},
    ]}})
}

pub(super) fn plain_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"providerID": format!("lab:///{name}")}})
}

pub(super) fn status(boot: &str) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "Lab", "message": "set by a test",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({
        "capacity": {"cpu": "8", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "4"},
        "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "4"},
        "nodeInfo": {"bootID": boot, "architecture": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
            "operatingSystem": "", "osImage": "", "systemUUID": format!("s-{boot}")},
        "conditions": [condition("Ready", "True"), condition("MemoryPressure", "False"),
            condition("DiskPressure", "False"), condition("PIDPressure", "False"),
            condition("GPUReady", "True")],
    })
}

/// A node that is ready, as soon as the controllers have seen that.
pub(super) async fn add(server: &Server, node: &Value) {
    let name = node["metadata"]["name"].as_str().expect("a name");
    let path = format!("{NODES}/{name}");
    server.delete(&path).await;
    server.create(NODES, node).await;
    server.status(&path, &status(&format!("boot-{name}"))).await;
    server.wait_until_ready(&[name.to_owned()]).await;
}

pub(super) async fn add_plain(server: &Server, names: &[String]) {
    for name in names {
        add(server, &plain_node(name)).await;
    }
}

pub(super) async fn remove(server: &Server, names: &[String]) {
    for name in names {
        server.delete(&format!("{NODES}/{name}")).await;
    }
}

pub(super) fn gate(lab: &Lab) -> KubernetesScheduler {
    KubernetesScheduler::new(lab.asks_as("admin"))
}

pub(super) fn named(names: &[String]) -> Vec<NodeName> {
    names.iter().map(|name| NodeName::from(name.as_str())).collect()
}

pub(super) async fn read(gate: &KubernetesScheduler, names: &[String]) -> SchedulerSnapshot {
    gate.read_nodes(&named(names)).await.expect("an answer")
}

pub(super) async fn one(gate: &KubernetesScheduler, name: &str) -> SchedulerNode {
    let live = read(gate, &[name.to_owned()]).await;
    live.nodes.get(&NodeName::from(name)).expect("the node").clone()
}

pub(super) fn drain() -> NodeUpdate {
    NodeUpdate::drain(OURS)
}

pub(super) fn resume() -> NodeUpdate {
    NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() }
}

fn condition(status: &str, message: &str) -> FabricNodeCondition {
    FabricNodeCondition {
        status: status.to_owned(),
        reason: "Measured".to_owned(),
        message: message.to_owned(),
    }
}

fn edit(key: &str, effect: &str, value: Option<&str>) -> TaintEdit {
    TaintEdit { key: key.to_owned(), effect: effect.to_owned(), value: value.map(str::to_owned) }
}

fn marks(marks: KubernetesNodeUpdate) -> NodeUpdate {
    NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() }
}

/// The update after a pass.
pub(super) fn certify(message: &str) -> NodeUpdate {
    marks(KubernetesNodeUpdate {
        taints: vec![
            edit(UNVERIFIED, "NoSchedule", None),
            edit(DEGRADED, "PreferNoSchedule", None),
        ],
        labels: [(VERDICT.to_owned(), Some("pass".to_owned()))].into(),
        annotations: [(CERTIFICATE.to_owned(), Some("{\"v\":1}".to_owned()))].into(),
        condition: Some(condition("True", message)),
    })
}

/// A node without fabricgate's fields, and without the fields that every write changes.
pub(super) fn of_others(node: &Value) -> Value {
    let mut node = node.clone();
    for field in ["resourceVersion", "managedFields", "generation"] {
        node["metadata"].as_object_mut().expect("a map").remove(field);
    }
    // Empty and absent are the same.
    for words in ["labels", "annotations"] {
        let mut own = node["metadata"][words].take();
        if let Some(words) = own.as_object_mut() {
            words.retain(|key, _| !key.starts_with(FABRICGATE_PREFIX));
        }
        node["metadata"][words] = if own.is_null() { json!({}) } else { own };
    }
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let is_ours =
        |it: &Value| it["key"].as_str().is_some_and(|key| key.starts_with(FABRICGATE_PREFIX));
    node["spec"]["taints"] = taints.into_iter().filter(|it| !is_ours(it)).collect();
    let conditions = node["status"]["conditions"].as_array_mut().expect("conditions");
    conditions.retain(|it| it["type"] != CONDITION);
    node
}

pub(super) fn version(node: &Value) -> String {
    node["metadata"]["resourceVersion"].as_str().expect("a version").to_owned()
}

pub(super) fn own_condition(node: &Value) -> Option<Value> {
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    conditions.iter().find(|it| it["type"] == CONDITION).cloned()
}

fn pod(name: &str, node: Option<&str>, resource: &str) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"tolerations": [{"operator": "Exists"}], "containers": [
            {"name": "c", "image": "none", "resources": {"limits": {resource: "1"}}}]}});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn remove_pod(server: &Server, name: &str) {
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let request = Request::new(PODS).delete(name, &now).expect("a request");
    let _: Result<Value, kube::Error> = server.0.request(request).await;
}

#[tokio::test]
async fn the_reading_matches_the_objects() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let names = ["chr-idle", "chr-used", "chr-ended", "chr-cpu", "chr-silent"].map(str::to_owned);
    add_plain(&server, &names).await;
    add(&server, &operators_node("chr-owned")).await;
    let silent = json!({"conditions": [{"type": "Ready", "status": "Unknown"}]});
    server.status(&format!("{NODES}/chr-silent"), &silent).await;
    for (name, node, resource) in [
        ("chr-gpu", Some("chr-used"), "nvidia.com/gpu"),
        ("chr-done", Some("chr-ended"), "nvidia.com/gpu"),
        ("chr-small", Some("chr-cpu"), "cpu"),
    ] {
        remove_pod(&server, name).await;
        server.create(PODS, &pod(name, node, resource)).await;
    }
    server.status(&format!("{PODS}/chr-done"), &json!({"phase": "Succeeded"})).await;

    let asked: Vec<String> = names.iter().cloned().chain(["chr-owned".to_owned()]).collect();
    // The controllers add their own taints to a silent node.
    let live = wait_for("the silent node is tainted", async || {
        let live = read(&gate, &asked).await;
        let silent = &live.nodes[&NodeName::from("chr-silent")];
        let taints = &silent.kubernetes.as_ref().expect("reported").taints;
        let is_told = taints.iter().any(|it| it.key == "node.kubernetes.io/unreachable");
        if is_told { Ok(live) } else { Err(format!("{taints:?}")) }
    })
    .await;
    assert_eq!(live.troubles, Vec::<String>::new());
    let state = |name: &str| live.nodes[&NodeName::from(name)].state.join("+");
    assert_eq!(state("chr-idle"), "IDLE");
    assert_eq!(state("chr-used"), "ALLOCATED");
    assert_eq!(state("chr-ended"), "IDLE");
    assert_eq!(state("chr-cpu"), "IDLE");
    assert_eq!(state("chr-silent"), "NOT_READY");
    assert_eq!(state("chr-owned"), "IDLE+UNVERIFIED+CORDONED");
    let owned = &live.nodes[&NodeName::from("chr-owned")];
    assert_eq!(owned.boot_id.as_deref(), Some("boot-chr-owned"));
    assert_eq!(owned.instance.as_deref(), Some("lab:///chr-owned"));
    let context = owned.kubernetes.as_ref().expect("reported");
    let object = server.node("chr-owned").await;
    assert_eq!(object["metadata"]["uid"], context.uid.as_str());
    assert!(context.cordoned && context.left_alone.is_empty() && context.labels.is_empty());
    let keys: Vec<&str> = context.taints.iter().map(|it| it.key.as_str()).collect();
    let as_stored = object["spec"]["taints"].as_array().expect("taints").iter();
    assert_eq!(keys, as_stored.map(|it| it["key"].as_str().expect("a key")).collect::<Vec<_>>());

    // A reading of all nodes reports the same, and an unknown node is absent. Between two
    // readings the controllers may add another taint to the silent node.
    wait_for("a reading of all nodes agrees", async || {
        let (all, some) =
            (gate.read_nodes(&[]).await.expect("an answer"), read(&gate, &asked).await);
        let other = asked.iter().map(|name| NodeName::from(name.as_str()));
        let other: Vec<_> = other.filter(|name| all.nodes[name] != some.nodes[name]).collect();
        if other.is_empty() { Ok(()) } else { Err(format!("{other:?}")) }
    })
    .await;
    let strange = ["chr-idle", "chr-unknown", "Not_A_Name", "../pods"].map(str::to_owned);
    assert_eq!(read(&gate, &strange).await.nodes.len(), 1);
    for name in ["chr-gpu", "chr-done", "chr-small"] {
        remove_pod(&server, name).await;
    }
    remove(&server, &asked).await;
}

#[tokio::test]
async fn a_drain_its_release_and_marks_leave_an_operators_node_as_it_was() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let name = "chg-owned";
    let names = [name.to_owned()];
    add(&server, &operators_node(name)).await;
    // The controllers answer the cordon with a taint.
    wait_for("the cordon has its taint", async || {
        let node = server.node(name).await;
        let taints = node["spec"]["taints"].to_string();
        let is_there = taints.contains("node.kubernetes.io/unschedulable");
        if is_there { Ok(()) } else { Err(taints) }
    })
    .await;
    let before = server.node(name).await;
    let others = of_others(&before);
    let nodes = named(&names);
    let unchanged = async |change: &NodeUpdate| {
        let then = version(&server.node(name).await);
        gate.update_nodes(&nodes, change).await.expect("nothing to do");
        assert_eq!(version(&server.node(name).await), then, "{change:?}");
    };

    gate.update_nodes(&nodes, &drain()).await.expect("drained");
    let drained = server.node(name).await;
    assert_eq!(of_others(&drained), others);
    let taints = drained["spec"]["taints"].as_array().expect("taints");
    let ours = json!({"key": DEGRADED, "value": "nvlink-low", "effect": "NoSchedule"});
    assert_eq!(taints.last(), Some(&ours));
    assert_eq!(drained["metadata"]["annotations"][REASON], OURS);
    let live = one(&gate, name).await;
    assert!(live.has_state("DRAIN") && live.reason.as_deref() == Some(OURS), "{live:?}");
    unchanged(&drain()).await;

    let soft = marks(KubernetesNodeUpdate {
        taints: vec![edit(DEGRADED, "PreferNoSchedule", Some("nvlink-low"))],
        labels: [(VERDICT.to_owned(), Some("degraded".to_owned()))].into(),
        condition: Some(condition("False", "nvlink-low")),
        ..KubernetesNodeUpdate::default()
    });
    gate.update_nodes(&nodes, &soft).await.expect("marked");
    assert_eq!(of_others(&server.node(name).await), others);
    assert_eq!(server.node(name).await["metadata"]["labels"][VERDICT], "degraded");
    unchanged(&soft).await;

    gate.update_nodes(&nodes, &resume()).await.expect("given back");
    let given_back = server.node(name).await;
    assert_eq!(of_others(&given_back), others);
    assert!(given_back["metadata"]["annotations"].get(REASON).is_none());
    unchanged(&resume()).await;

    gate.update_nodes(&nodes, &certify("a")).await.expect("certified");
    let certified = server.node(name).await;
    assert_eq!(of_others(&certified), others);
    let left = certified["spec"]["taints"].to_string();
    assert!(!left.contains(FABRICGATE_PREFIX), "{left}");
    let first = own_condition(&certified).expect("a condition");
    assert_eq!((&first["status"], &first["message"]), (&json!("True"), &json!("a")));
    unchanged(&certify("a")).await;

    // A new message keeps the time of the status; a new status does not.
    server
        .status(
            &format!("{NODES}/{name}"),
            &json!({"conditions": [{"type": CONDITION,
        "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        )
        .await;
    gate.update_nodes(&nodes, &certify("b")).await.expect("certified");
    let then = own_condition(&server.node(name).await).expect("a condition");
    assert_eq!(then["lastTransitionTime"], "2026-01-01T00:00:00Z");
    assert_eq!(then["message"], "b");
    assert_eq!(of_others(&server.node(name).await), others);
    remove(&server, &names).await;
}

#[tokio::test]
async fn a_taint_with_fabricgates_key_but_another_reason_is_not_lifted() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let mut node = plain_node("chg-byhand");
    node["spec"]["taints"] = json!([{"key": DEGRADED, "value": "x", "effect": "NoSchedule"}]);
    add(&server, &node).await;
    let before = server.node("chg-byhand").await;
    for change in [resume(), drain()] {
        let error = gate.update_nodes(&["chg-byhand".into()], &change).await.expect_err("refused");
        assert_eq!(error.kind, SourceProblemKind::Contradictory, "{error}");
        assert!(error.message.contains("nothing was written"), "{error}");
    }
    assert_eq!(server.node("chg-byhand").await, before);
    remove(&server, &["chg-byhand".to_owned()]).await;
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLE: &str = "lab-changes";

/// Gives the gate's group exactly these rights, and waits until they are in force.
async fn allow(server: &Server, rules: &Value) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole",
        "metadata": {"name": ROLE}, "rules": rules});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "gate"}]});
    forbid(server).await;
    server.create(&format!("{RBAC}/clusterroles"), &role).await;
    server.create(&format!("{RBAC}/clusterrolebindings"), &binding).await;
}

async fn forbid(server: &Server) {
    server.delete(&format!("{RBAC}/clusterrolebindings/{ROLE}")).await;
    server.delete(&format!("{RBAC}/clusterroles/{ROLE}")).await;
}

/// Waits until the user `gate` may, or may not, do this.
async fn settled(gate: &Server, verb: &str, resource: &str, subresource: &str, may: bool) {
    let review = json!({"apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes":
            {"verb": verb, "resource": resource, "subresource": subresource}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    wait_for(&format!("{verb} {resource}/{subresource} is {may}"), async || {
        let answer = gate.create(path, &review).await;
        if answer["status"]["allowed"] == json!(may) { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn each_right_that_is_missing_is_named_and_nothing_half_done_is_hidden() {
    let Some(lab) = lab() else { return };
    let server = lab.admin().await;
    let as_gate = Server::of(&lab.kubeconfig("gate")).await;
    let names: Vec<String> = (0..2).map(|it| format!("chb-{it}")).collect();
    let rights = [
        ("get", "nodes", ""),
        ("list", "nodes", ""),
        ("patch", "nodes", ""),
        ("patch", "nodes", "status"),
        ("list", "pods", ""),
    ];
    for missing in 0..=rights.len() {
        add_plain(&server, &names).await;
        let given: BTreeSet<usize> = (0..rights.len()).filter(|it| *it != missing).collect();
        let rules: Vec<Value> = given
            .iter()
            .map(|it| {
                let (verb, resource, part) = rights[*it];
                let part = if part.is_empty() { String::new() } else { format!("/{part}") };
                json!({"apiGroups": [""], "resources": [format!("{resource}{part}")],
                    "verbs": [verb]})
            })
            .collect();
        allow(&server, &json!(rules)).await;
        for (at, (verb, resource, part)) in rights.iter().enumerate() {
            settled(&as_gate, verb, resource, part, given.contains(&at)).await;
        }
        // As the gate does it, on a client without other rights.
        let gate = KubernetesScheduler::new(lab.asks_as("gate"));
        let few = gate.read_nodes(&named(&names)).await;
        let all = gate.read_nodes(&[]).await;
        let change = NodeUpdate { kubernetes: certify("a").kubernetes, ..drain() };
        let written = gate.update_nodes(&named(&names), &change).await;
        let now = server.node(&names[0]).await;
        let is_drained = now["metadata"]["annotations"].get(REASON).is_some();
        let denied = |denial: &SchedulerError| {
            assert_eq!(denial.kind, SourceProblemKind::Denied, "{denial}");
            assert!(denial.message.contains("no permission for that (403)"), "{denial}");
        };
        match rights.get(missing) {
            Some(("get", ..)) => {
                denied(&few.expect_err("no get"));
                all.expect("a list");
                denied(&written.expect_err("no get"));
                assert!(!is_drained);
            }
            Some(("list", "nodes", _)) => {
                few.expect("single nodes");
                denied(&all.expect_err("no list"));
                written.expect("written");
                assert!(is_drained);
            }
            Some(("list", ..)) => {
                for live in [few.expect("nodes"), all.expect("nodes")] {
                    assert!(live.troubles[0].contains("pods were not read"), "{:?}", live.troubles);
                    let node = &live.nodes[&NodeName::from(names[0].as_str())];
                    assert_eq!(node.state, ["PODS_UNREAD"]);
                }
                written.expect("written");
                assert!(is_drained);
            }
            Some(("patch", _, "")) => {
                few.expect("nodes");
                denied(&written.expect_err("no patch"));
                assert!(!is_drained && own_condition(&now).is_none());
            }
            Some(("patch", ..)) => {
                let error = written.expect_err("no patch of the status");
                denied(&error);
                let words = "its condition is not written, all else is";
                assert!(error.message.contains(words), "{error}");
                assert!(is_drained && own_condition(&now).is_none());
            }
            _ => {
                assert_eq!(few.expect("nodes").troubles, Vec::<String>::new());
                all.expect("nodes");
                written.expect("written");
                assert!(is_drained && own_condition(&now).is_some());
            }
        }
    }
    forbid(&server).await;
    let expired = KubernetesScheduler::new(lab.asks_as("expired"));
    let error = expired.update_nodes(&named(&names), &drain()).await.expect_err("an unknown node");
    assert_eq!(error.kind, SourceProblemKind::Denied, "{error}");
    assert!(error.message.contains("expired token?"), "{error}");
    remove(&server, &names).await;
}

#[tokio::test]
async fn an_unreachable_server_is_reported_as_unknown() {
    let Some(lab) = lab() else { return };
    // A cluster whose server never existed.
    let text = std::fs::read_to_string(lab.kubeconfig("admin")).expect("a kubeconfig");
    let address = text.lines().find(|line| line.contains("server:")).expect("a server");
    let from = address.find("https://127.0.0.1:").expect("an address") + "https://127.0.0.1:".len();
    let port: String = address[from..].chars().take_while(char::is_ascii_digit).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("away.kubeconfig");
    std::fs::write(&file, text.replace(&format!(":{port}\""), ":1\"")).expect("written");
    let mut server = lab.asks_as("admin");
    (server.kubeconfig, server.limit) = (Some(file), Duration::from_secs(1));
    let gate = KubernetesScheduler::new(server);
    let names: Vec<NodeName> = (0..40).map(|it| NodeName::from(format!("n{it}"))).collect();
    for error in [
        gate.read_nodes(&names[..2]).await.expect_err("away"),
        gate.read_nodes(&[]).await.expect_err("away"),
        gate.update_nodes(&names, &drain()).await.expect_err("away"),
    ] {
        assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
    }
}
