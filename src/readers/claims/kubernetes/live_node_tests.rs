//! Tests of the nodes that actions work on.

use serde_json::{Value, json};

use super::*;

fn object(change: impl FnOnce(&mut Value)) -> Node {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"},
        "spec": {"providerID": "cloud:///a/n1"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"bootID": "b1", "systemUUID": "s1", "architecture": "",
                "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": ""},
        },
    });
    change(&mut object);
    serde_json::from_value(object).expect("a node")
}

fn idle(change: impl FnOnce(&mut Value)) -> SchedulerNode {
    to_live_node(&object(change), PodsByNode::Known(&BTreeMap::new())).expect("a name")
}

fn tainted(key: &str, effect: &str) -> SchedulerNode {
    idle(|it| it["spec"]["taints"] = json!([{"key": key, "effect": effect}]))
}

#[test]
fn a_ready_node_without_pods_is_idle_and_known_by_boot_and_machine() {
    let seen = idle(|_| {});
    assert_eq!(seen.state, ["IDLE"]);
    assert_eq!(seen.boot_id.as_deref(), Some("b1"));
    assert_eq!(seen.instance.as_deref(), Some("cloud:///a/n1"));
    let of_cluster = seen.kubernetes.expect("Kubernetes");
    assert_eq!((of_cluster.uid.as_str(), of_cluster.version.as_str()), ("u1", "7"));
    assert_eq!(idle(|it| it["spec"] = json!({})).instance.as_deref(), Some("s1"));
}

#[test]
fn a_node_whose_pods_were_not_read_is_never_idle() {
    let unread = to_live_node(&object(|_| {}), PodsByNode::Unknown).expect("a name");
    assert_eq!(unread.state, [PODS_UNREAD]);
    let held = NodePods { gpu_pods: ["a/b".to_owned()].into(), ..NodePods::default() };
    let pods = BTreeMap::from([(NodeName::from("n1"), held)]);
    let seen = to_live_node(&object(|_| {}), PodsByNode::Known(&pods)).expect("a name");
    assert_eq!(seen.state, ["ALLOCATED"]);
    assert_eq!(own_states(&seen), own_states(&unread));
}

#[test]
fn false_or_missing_readiness_is_not_ready() {
    for conditions in [
        json!([{"type": "Ready", "status": "False"}]),
        json!([{"type": "Ready", "status": "Unknown"}]),
        json!([]),
    ] {
        let seen = idle(|it| it["status"]["conditions"] = conditions.clone());
        assert_eq!(seen.state, ["NOT_READY"], "{conditions}");
    }
    let gone = idle(|it| {
        it["status"] = json!({});
        it["spec"]["taints"] =
            json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
    });
    assert_eq!(gone.state, ["NOT_READY"], "the taint adds no further state");
}

#[test]
fn a_drain_is_the_fabricgate_taint_and_its_reason_counts_only_with_it() {
    let annotated = |taints: Value| {
        idle(|it| {
            it["metadata"]["annotations"] = json!({"fabricgate.io/reason": "fabricgate:x:r1 e1"});
            it["spec"]["taints"] = taints;
        })
    };
    let drained = annotated(json!([{"key": DEGRADED, "value": "x", "effect": "NoSchedule"}]));
    assert_eq!(drained.state, ["IDLE", "DRAIN"]);
    assert_eq!(drained.reason.as_deref(), Some("fabricgate:x:r1 e1"));
    let marked = annotated(json!([{"key": DEGRADED, "value": "x", "effect": "PreferNoSchedule"}]));
    assert_eq!((marked.state, marked.reason), (vec!["IDLE".to_owned()], None));
    assert_eq!(tainted(DEGRADED, "NoSchedule").reason, None);
    assert_eq!(tainted(UNVERIFIED, "NoSchedule").state, ["IDLE", "UNVERIFIED"]);
}

#[test]
fn out_of_service_taints_differ_from_dedication_taints() {
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.kubernetes.io/memory-pressure",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "medik8s.io/drain",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/unregistered",
        "AggregatedNodeHealth",
        "node.cilium.io/agent-not-ready",
    ] {
        assert_eq!(tainted(key, "NoSchedule").state, ["IDLE", "TAINTED"], "{key}");
    }
    // It may wait for fabricgate's condition.
    let awaited = tainted("readiness.k8s.io/gpu-fabric", "NoSchedule");
    assert_eq!(awaited.state, ["IDLE", "AWAITED"]);
    for (key, effect) in [
        ("nvidia.com/gpu", "NoSchedule"),
        ("dedicated", "NoExecute"),
        ("fabricgate.io/degraded", "PreferNoSchedule"),
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
        ("readiness.k8s.io/gpu-fabric", "PreferNoSchedule"),
    ] {
        assert_eq!(tainted(key, effect).state, ["IDLE"], "{key}");
    }
    assert_eq!(
        tainted("node.kubernetes.io/unschedulable", "NoSchedule").state,
        ["IDLE", "CORDONED"]
    );
    assert_eq!(idle(|it| it["spec"]["unschedulable"] = json!(true)).state, ["IDLE", "CORDONED"]);
}

#[test]
fn opt_outs_and_repairs_are_reported_with_their_mark() {
    let left = |change: &dyn Fn(&mut Value)| {
        idle(change).kubernetes.expect("a Kubernetes node").left_alone
    };
    let labelled = left(&|it| {
        it["metadata"]["labels"] = json!({
            "remediation.medik8s.io/exclude-from-remediation": "true",
            "nvsentinel.dgxc.nvidia.com/managed": "true",
            "dgxc.nvidia.com/nvsentinel-state": "draining",
        });
    });
    assert_eq!(
        labelled,
        [
            "label remediation.medik8s.io/exclude-from-remediation=true",
            "NVSentinel is at work: label dgxc.nvidia.com/nvsentinel-state=draining",
        ]
    );
    let quarantined = json!({"quarantineHealthEvent": "{}", "quarantineHealthEventIsCordoned": ""});
    let reasons = left(&|it| it["metadata"]["annotations"] = quarantined.clone());
    assert_eq!(reasons, ["NVSentinel has it in quarantine: annotation quarantineHealthEvent"]);
    let rehearsed = json!({"quarantineHealthEvent": "{}", "quarantineHealthEventDryRun": "True"});
    assert!(left(&|it| it["metadata"]["annotations"] = rehearsed.clone()).is_empty());
    let taint = json!([{"key": "medik8s.io/drain", "effect": "NoSchedule"}]);
    let reasons = left(&|it| it["spec"]["taints"] = taint.clone());
    assert_eq!(reasons, ["medik8s is at work: taint medik8s.io/drain:NoSchedule"]);
}

#[test]
fn other_testers_compute_domains_and_deletion_are_reasons() {
    for labels in [
        json!({"autopilot.ibm.com/gpuhealth": "TESTING"}),
        json!({"resource.nvidia.com/computeDomain": "u9"}),
    ] {
        let seen = idle(|it| it["metadata"]["labels"] = labels.clone());
        assert_eq!(seen.state, ["IDLE", "TESTING"], "{labels}");
    }
    let leaving = idle(|it| it["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    assert_eq!(leaving.state, ["DELETING", "IDLE"]);
    let slinky = idle(|it| {
        it["metadata"]["annotations"] = json!({"topology.slinky.slurm.net/spec": "topo-switch:s2"});
    });
    assert!(slinky.kubernetes.expect("a Kubernetes node").slinky);
}
