//! Which pods may be asked to leave, and which stay.

use serde_json::{Value, json};

use super::*;
use crate::policy::fixture::{drain, stamp};
use model::claims::Claims;
use model::kubernetes_node::{KubernetesNode, RUN};

const CLASS: &str = "nvlink-low";

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut text = json!({
        "metadata": {"namespace": "team", "name": "train-0", "uid": "u1", "labels": {},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train",
                "uid": "o", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": "Running"},
    });
    change(&mut text);
    serde_json::from_value(text).expect("a pod")
}

fn chosen(change: impl FnOnce(&mut Value)) -> Choice {
    choose([&pod(change)], CLASS)
}

fn kept(change: impl FnOnce(&mut Value)) -> String {
    let choice = chosen(change);
    assert!(choice.go.is_empty() && choice.ending.is_empty(), "{choice:?}");
    choice.stay.into_iter().map(|(pod, why)| format!("{pod}: {why}")).collect()
}

#[test]
fn a_pod_that_holds_gpus_and_comes_back_elsewhere_goes() {
    let choice = chosen(|_| {});
    assert_eq!(choice.go.len(), 1);
    assert_eq!((choice.go[0].shown().as_str(), choice.go[0].uid.as_str()), ("team/train-0", "u1"));
    assert!(choice.stay.is_empty());
}

#[test]
fn what_holds_no_gpu_ended_or_is_ours_is_nobodys_business() {
    let nothing = Choice::default();
    assert_eq!(chosen(|pod| pod["spec"]["containers"][0]["resources"] = json!({})), nothing);
    assert_eq!(chosen(|pod| pod["status"]["phase"] = json!("Succeeded")), nothing);
    assert_eq!(chosen(|pod| pod["metadata"]["labels"] = json!({RUN: "r"})), nothing);
}

#[test]
fn a_pod_that_ends_already_is_not_asked_again() {
    let choice = chosen(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    assert!(choice.go.is_empty());
    assert_eq!(choice.ending.len(), 1);
}

#[test]
fn whatever_eviction_is_not_meant_for_stays_with_its_reason() {
    let owner = |kind: &str, api: &str| json!([{"apiVersion": api, "kind": kind, "name": "x", "uid": "o", "controller": true}]);
    let said = kept(|pod| pod["metadata"]["namespace"] = json!("kube-system"));
    assert!(said.contains("cluster itself"), "{said}");
    let said = kept(|pod| {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    });
    assert!(said.contains("static pod"), "{said}");
    let said = kept(|pod| pod["metadata"]["ownerReferences"] = owner("Node", "v1"));
    assert!(said.contains("static pod"), "{said}");
    let said = kept(|pod| pod["metadata"]["ownerReferences"] = owner("DaemonSet", "apps/v1"));
    assert!(said.contains("DaemonSet"), "{said}");
    let slurmd = json!({"nodeset.slinky.slurm.net/pod-name": "w-0"});
    let said = kept(|pod| pod["metadata"]["labels"] = slurmd);
    assert!(said.contains("Slurm"), "{said}");
    let said = kept(|pod| pod["metadata"]["ownerReferences"] = json!([]));
    assert!(said.contains("no controller"), "{said}");
    let said = kept(|pod| pod["metadata"]["uid"] = Value::Null);
    assert!(said.contains("which pod"), "{said}");
}

#[test]
fn a_pod_that_tolerates_our_taint_would_come_back_and_stays() {
    let with = |toleration: Value| chosen(|pod| pod["spec"]["tolerations"] = json!([toleration]));
    for tolerated in [
        json!({"operator": "Exists"}),
        json!({"operator": "Exists", "effect": "NoSchedule"}),
        json!({"key": DEGRADED, "operator": "Exists"}),
        json!({"key": DEGRADED, "value": CLASS}),
        json!({"key": DEGRADED, "operator": "Equal", "value": CLASS, "effect": "NoSchedule"}),
    ] {
        assert_eq!(with(tolerated.clone()).stay.len(), 1, "{tolerated}");
    }
    for other in [
        json!({"key": "nvidia.com/gpu", "operator": "Exists"}),
        json!({"key": DEGRADED, "value": "another"}),
        json!({"key": DEGRADED, "operator": "Exists", "effect": "NoExecute"}),
    ] {
        assert_eq!(with(other.clone()).go.len(), 1, "{other}");
    }
}

/// A node that shows our drain, and the ledger that knows it.
fn ours() -> (SchedulerNode, JournalState) {
    let own = drain(&Claims::default(), "n1", CLASS, 0.9, stamp(60));
    let mut node = SchedulerNode::new("n1", &["ALLOCATED", "DRAIN"]);
    node.reason = Some(own.action.reason.clone());
    let mut ledger = JournalState::default();
    ledger.drains.insert("n1".into(), own);
    node.kubernetes = Some(Box::new(KubernetesNode {
        uid: "machine".to_owned(),
        taints: vec![Taint {
            key: DEGRADED.to_owned(),
            value: CLASS.to_owned(),
            effect: NO_SCHEDULE.to_owned(),
        }],
        ..KubernetesNode::default()
    }));
    (node, ledger)
}

#[test]
fn pods_leave_only_where_our_own_drain_is_shown() {
    let (node, ledger) = ours();
    assert!(drained(&node, &ledger).is_ok());
    let refused = |change: &dyn Fn(&mut SchedulerNode)| {
        let mut node = node.clone();
        change(&mut node);
        drained(&node, &ledger).expect_err("refused")
    };
    let kubernetes = |node: &mut SchedulerNode, change: &dyn Fn(&mut KubernetesNode)| {
        change(node.kubernetes.as_deref_mut().expect("a node of Kubernetes"));
    };
    assert!(refused(&|node| node.reason = None).contains("does not show"));
    assert!(refused(&|node| node.reason = Some("broken fan".to_owned())).contains("does not show"));
    assert!(refused(&|node| kubernetes(node, &|it| it.taints.clear())).contains("does not show"));
    let soft = |it: &mut KubernetesNode| it.taints[0].effect = "PreferNoSchedule".to_owned();
    assert!(refused(&|node| kubernetes(node, &soft)).contains("does not show"));
    let kept = |it: &mut KubernetesNode| it.left_alone.push("label x".to_owned());
    assert!(refused(&|node| kubernetes(node, &kept)).contains("left alone"));
    assert!(
        drained(&node, &JournalState::default())
            .expect_err("refused")
            .contains("not drained by us")
    );
}

#[test]
fn another_node_of_the_same_name_keeps_its_pods() {
    let (node, mut ledger) = ours();
    let before = &mut ledger.drains.get_mut(&node.name).expect("our drain").before;
    let then = KubernetesNode { uid: "before".to_owned(), ..KubernetesNode::default() };
    before.kubernetes = Some(Box::new(then));
    assert!(drained(&node, &ledger).expect_err("refused").contains("another node"));
}
