//! The policy that an operator installs, on a real server: it admits the gate's writes on a node
//! and refuses every other change of it.

use super::deploy::{Asker, MERGE, STRATEGIC};
use serde_json::{Value, json};
use std::time::Duration;

/// A node with foreign labels, annotations, taints and conditions.
pub(super) async fn make_node(admin: &Asker, name: &str) {
    let _ = admin.delete(&format!("/api/v1/nodes/{name}")).await;
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name,
            "labels": {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name},
            "annotations": {"example.com/owner": "an-operator"}, "finalizers": ["example.com/kept"]},
        "spec": {"providerID": format!("lab:///{name}"), "taints": [
            {"key": "example.com/theirs", "value": "a", "effect": "NoSchedule"},
            {"key": "fabricgate.io/unverified", "effect": "NoSchedule"}]}});
    admin.post("/api/v1/nodes", &node).await.expect("a node");
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "Kubelet",
        "message": "", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let status = json!({"status": {"capacity": {"cpu": "8", "nvidia.com/gpu": "4"},
        "allocatable": {"cpu": "8", "nvidia.com/gpu": "3"},
        "conditions": [condition("Ready", "True"), condition("DiskPressure", "False"), condition("Theirs", "True")]}});
    admin.patch(&format!("/api/v1/nodes/{name}/status"), MERGE, &status).await.expect("a status");
    let unkept = json!({"metadata": {"finalizers": null}});
    admin.patch(&format!("/api/v1/nodes/{name}"), MERGE, &unkept).await.expect("no finalizer");
}

fn ours(value: &str, effect: &str) -> Value {
    json!({"key": "fabricgate.io/degraded", "value": value, "effect": effect})
}

/// The gate's writes, in their usual order.
fn admitted(others: &[Value]) -> Vec<(&'static str, &'static str, Value)> {
    let with = |ours: &[Value]| -> Value { others.iter().chain(ours).cloned().collect() };
    let unverified = json!({"key": "fabricgate.io/unverified", "effect": "NoSchedule"});
    let condition = |status: &str, reason: &str| {
        json!({"status": {"conditions": [
        {"type": "GpuFabricVerified", "status": status, "reason": reason, "message": "said",
         "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    vec![
        // A drain: the taint and its reason in one patch, the start-up taint stays.
        (
            "",
            MERGE,
            json!({"metadata": {"annotations": {"fabricgate.io/reason": "fabricgate:nvlink-low:r e1"}},
            "spec": {"taints": with(&[unverified, ours("nvlink-low", "NoSchedule")])}}),
        ),
        ("/status", STRATEGIC, condition("False", "Degraded")),
        // Its release, and the start-up taint goes with it.
        (
            "",
            MERGE,
            json!({"metadata": {"annotations": {"fabricgate.io/reason": null}}, "spec": {"taints": with(&[])}}),
        ),
        // A mark.
        (
            "",
            MERGE,
            json!({"metadata": {"labels": {"fabricgate.io/verdict": "degraded"}},
            "spec": {"taints": with(&[ours("nvlink-low", "PreferNoSchedule")])}}),
        ),
        // A certificate.
        (
            "",
            MERGE,
            json!({"metadata": {"labels": {"fabricgate.io/verdict": "pass", "fabricgate.io/verified-domain": "d1"},
            "annotations": {"fabricgate.io/certificate": "{}"}}, "spec": {"taints": with(&[])}}),
        ),
        ("/status", STRATEGIC, condition("True", "Verified")),
        // The certificate's end.
        (
            "",
            MERGE,
            json!({"metadata": {"labels": {"fabricgate.io/verdict": null, "fabricgate.io/verified-domain": null},
            "annotations": {"fabricgate.io/certificate": null}}}),
        ),
        (
            "/status",
            STRATEGIC,
            json!({"status": {"conditions": [{"type": "GpuFabricVerified", "$patch": "delete"}]}}),
        ),
        // Nothing at all.
        ("", MERGE, json!({})),
    ]
}

/// Writes that it never makes: a patch, and a part of the refusal.
fn refused(others: &[Value]) -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let with = |more: &[Value]| -> Value { others.iter().chain(more).cloned().collect() };
    let without =
        |key: &str| -> Value { others.iter().filter(|it| it["key"] != key).cloned().collect() };
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let notes = |notes: Value| json!({"metadata": {"annotations": notes}});
    let taints = |taints: Value| json!({"spec": {"taints": taints}});
    let conditions = |conditions: Value| json!({"status": {"conditions": conditions}});
    let mut changed: Vec<Value> = others.to_vec();
    changed[0]["value"] = "b".into();
    let mut weaker: Vec<Value> = others.to_vec();
    weaker[0]["effect"] = "PreferNoSchedule".into();
    let only_labels = "writes labels of fabricgate.io/ only";
    let only_notes = "writes annotations of fabricgate.io/ only";
    let only_taints = "writes taints of fabricgate.io/ only";
    let only_condition = "writes the condition GpuFabricVerified only";
    let only_spec = "writes taints only, and never unschedulable";
    vec![
        ("", MERGE, json!({"spec": {"unschedulable": true}}), only_spec),
        ("", STRATEGIC, json!({"spec": {"unschedulable": true}}), only_spec),
        (
            "",
            MERGE,
            json!({"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
            only_spec,
        ),
        ("", MERGE, labels(json!({"nvidia.com/gpu.present": "false"})), only_labels),
        ("", MERGE, labels(json!({"nvidia.com/gpu.clique": "x.1"})), only_labels),
        ("", MERGE, labels(json!({"nvidia.com/gpu.present": null})), only_labels),
        ("", MERGE, labels(json!({"fabricgate.iox/verdict": "pass"})), only_labels),
        ("", MERGE, labels(json!({"fabricgate.io": "pass"})), only_labels),
        ("", MERGE, labels(Value::Null), only_labels),
        ("", MERGE, notes(json!({"example.com/owner": "us"})), only_notes),
        ("", MERGE, notes(json!({"example.com/owner": null})), only_notes),
        ("", MERGE, notes(json!({"example.com/new": "x"})), only_notes),
        (
            "",
            MERGE,
            json!({"metadata": {"finalizers": ["example.com/kept"]}}),
            "no owners and no finalizers",
        ),
        (
            "",
            MERGE,
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
            "name": "p", "uid": "u"}]}}),
            "no owners and no finalizers",
        ),
        ("", MERGE, taints(json!([])), only_taints),
        ("", MERGE, taints(Value::Null), only_taints),
        ("", MERGE, taints(without("example.com/theirs")), only_taints),
        ("", MERGE, taints(json!(changed)), only_taints),
        ("", MERGE, taints(json!(weaker)), only_taints),
        (
            "",
            MERGE,
            taints(with(&[json!({"key": "example.com/new", "effect": "NoSchedule"})])),
            only_taints,
        ),
        (
            "",
            MERGE,
            taints(with(&[
                json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}),
            ])),
            only_taints,
        ),
        ("", MERGE, taints(with(&[ours("x", "NoExecute")])), "no taints that evict"),
        ("", STRATEGIC, taints(with(&[ours("x", "NoExecute")])), "no taints that evict"),
        (
            "/status",
            STRATEGIC,
            conditions(json!([{"type": "Ready", "status": "False"}])),
            only_condition,
        ),
        (
            "/status",
            STRATEGIC,
            conditions(json!([{"type": "Theirs", "$patch": "delete"}])),
            only_condition,
        ),
        (
            "/status",
            STRATEGIC,
            conditions(json!([{"type": "GPUReady", "status": "True"}])),
            only_condition,
        ),
        // The trap: a merge patch replaces the whole list, and Ready with it.
        (
            "/status",
            MERGE,
            conditions(json!([{"type": "GpuFabricVerified", "status": "True"}])),
            only_condition,
        ),
        (
            "/status",
            MERGE,
            json!({"status": {"capacity": {"nvidia.com/gpu": "0"}}}),
            "conditions only",
        ),
        ("/status", MERGE, json!({"status": {"allocatable": null}}), "conditions only"),
        (
            "/status",
            MERGE,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
            "conditions only",
        ),
        // Labels pass through the status as well.
        ("/status", MERGE, labels(json!({"nvidia.com/gpu.present": "false"})), only_labels),
        (
            "/status",
            MERGE,
            labels(json!({"fabricgate.io/verdict": "pass"})),
            "no labels and annotations through the status",
        ),
        (
            "/status",
            MERGE,
            notes(json!({"fabricgate.io/certificate": "{}"})),
            "no labels and annotations through the status",
        ),
    ]
}

#[tokio::test]
async fn the_policy_admits_the_gates_writes_and_refuses_every_other_change() {
    let Some(admin) = Asker::admin().await else { return };
    admin.install().await;
    let gate = admin.account("fabricgate", "fabricgate-gate").await;
    make_node(&admin, "policy").await;
    let node = "/api/v1/nodes/policy";
    // In force a moment after it is made.
    let cordon = json!({"spec": {"unschedulable": true}});
    let mut in_force = false;
    for _ in 0..100 {
        let tried = gate.patch(&format!("{node}?dryRun=All"), MERGE, &cordon).await;
        in_force = matches!(&tried, Err((422, words)) if words.contains("unschedulable"));
        if in_force {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(in_force, "the policy never came into force");

    let others = |read: &Value| -> Vec<Value> {
        let taints = read["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints
            .into_iter()
            .filter(|it| !it["key"].as_str().expect("a key").starts_with("fabricgate.io/"))
            .collect()
    };
    let before = settled(&admin, node).await;
    for (at, kind, mut patch) in admitted(&others(&before)) {
        // As the gate does: of this object, as it was read.
        let read = admin.get(node).await.expect("the node");
        if at.is_empty() {
            patch["metadata"]["uid"] = read["metadata"]["uid"].clone();
            patch["metadata"]["resourceVersion"] = read["metadata"]["resourceVersion"].clone();
        }
        let answer = gate.patch(&format!("{node}{at}?fieldManager=fabricgate"), kind, &patch).await;
        assert!(answer.is_ok(), "{at} {patch}: {answer:?}");
    }
    let after = admin.get(node).await.expect("the node");
    assert_eq!(others(&after), others(&before));
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(after["metadata"]["annotations"], before["metadata"]["annotations"]);
    assert_eq!(after["status"], before["status"]);

    // Not a dry run: a refused change must not be stored either.
    let version = after["metadata"]["resourceVersion"].clone();
    for (at, kind, patch, words) in refused(&others(&after)) {
        let answer = gate.patch(&format!("{node}{at}"), kind, &patch).await;
        assert!(
            matches!(&answer, Err((422, answer)) if answer.contains(words)),
            "{at} {patch}: {answer:?}"
        );
    }
    let still = admin.get(node).await.expect("the node");
    assert_eq!(still["metadata"]["resourceVersion"], version, "something was written");
    // A person may do all of it, and the policy restricts no other account. Changes that the
    // server itself forbids (such as a changed providerID) are not among these.
    for (at, kind, patch, _) in refused(&others(&after)) {
        let answer = admin.patch(&format!("{node}{at}?dryRun=All"), kind, &patch).await;
        assert!(answer.is_ok(), "{at} {patch}: {answer:?}");
    }
    admin.delete(node).await.expect("a node less");
}

/// The node once the controllers have finished with it.
async fn settled(admin: &Asker, node: &str) -> Value {
    let mut read = admin.get(node).await.expect("the node");
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let again = admin.get(node).await.expect("the node");
        if again["metadata"]["resourceVersion"] == read["metadata"]["resourceVersion"] {
            break;
        }
        read = again;
    }
    read
}
