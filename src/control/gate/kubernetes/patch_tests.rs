//! Tests of the patches for one node.

use super::*;
use model::kubernetes_node::{KubernetesNodeUpdate, UNVERIFIED};

const OURS: &str = "fabricgate:nvlink-low:r1 e7";

fn drain(reason: &str) -> NodeUpdate {
    NodeUpdate::drain(reason)
}

fn marks_update(marks: KubernetesNodeUpdate) -> NodeUpdate {
    NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() }
}

/// A node with other owners' taints, one of them with an unknown field.
fn node() -> Value {
    json!({
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7",
            "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"unschedulable": true, "taints": [
            {"key": "nvidia.com/gpu", "effect": "NoSchedule", "newField": 1},
            {"key": "x", "value": "y", "effect": "NoExecute",
                "timeAdded": "2026-01-01T00:00:00Z"},
        ]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn built_patch(change: &NodeUpdate, node: &Value) -> Option<Value> {
    NodePatchEdits::from_update(change).expect("good").build_patch(node).expect("good")
}

#[test]
fn a_drain_writes_taint_and_reason_and_keeps_the_order_of_other_taints() {
    let patch = built_patch(&drain(OURS), &node()).expect("a patch");
    let mut taints = node()["spec"]["taints"].as_array().expect("a list").clone();
    taints.push(json!({"key": DEGRADED, "effect": "NoSchedule", "value": "nvlink-low"}));
    let expected = json!({
        "metadata": {"uid": "u1", "resourceVersion": "7", "annotations": {REASON: OURS}},
        "spec": {"taints": taints},
    });
    assert_eq!(patch, expected);
}

#[test]
fn existing_values_are_not_sent_and_a_release_removes_both() {
    let mut drained = node();
    let patch = built_patch(&drain(OURS), &drained).expect("a patch");
    drained["spec"]["taints"] = patch["spec"]["taints"].clone();
    drained["metadata"]["annotations"][REASON] = json!(OURS);
    assert_eq!(built_patch(&drain(OURS), &drained), None);
    let resume = NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() };
    let patch = built_patch(&resume, &drained).expect("a patch");
    assert_eq!(patch["spec"]["taints"], node()["spec"]["taints"]);
    assert_eq!(patch["metadata"]["annotations"], json!({REASON: null}));
    assert_eq!(built_patch(&resume, &node()), None);
    let bare = json!({"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"}});
    assert_eq!(built_patch(&resume, &bare), None);
}

#[test]
fn marks_replace_fabricgates_in_place_and_keep_effects_separate() {
    let mut tainted = node();
    tainted["spec"]["taints"] = json!([
        {"key": UNVERIFIED, "effect": "NoSchedule"},
        {"key": DEGRADED, "effect": "PreferNoSchedule", "value": "old"},
        {"key": "x", "effect": "NoSchedule"},
    ]);
    let edit = |key: &str, effect: &str, value: Option<&str>| TaintEdit {
        key: key.to_owned(),
        effect: effect.to_owned(),
        value: value.map(str::to_owned),
    };
    let change = marks_update(KubernetesNodeUpdate {
        taints: vec![
            edit(UNVERIFIED, "NoSchedule", None),
            edit(DEGRADED, "PreferNoSchedule", Some("new")),
        ],
        labels: [("fabricgate.io/verdict".to_owned(), Some("degraded".to_owned()))].into(),
        ..KubernetesNodeUpdate::default()
    });
    let patch = built_patch(&change, &tainted).expect("a patch");
    let expected = json!([
        {"key": DEGRADED, "effect": "PreferNoSchedule", "value": "new"},
        {"key": "x", "effect": "NoSchedule"},
    ]);
    assert_eq!(patch["spec"]["taints"], expected);
    assert_eq!(patch["metadata"]["labels"], json!({"fabricgate.io/verdict": "degraded"}));
    assert!(patch["metadata"].get("annotations").is_none());
}

#[test]
fn no_field_of_another_owner_and_no_eviction_is_ever_requested() {
    let label = |key: &str, value: &str| KubernetesNodeUpdate {
        labels: [(key.to_owned(), Some(value.to_owned()))].into(),
        ..KubernetesNodeUpdate::default()
    };
    let annotation = |key: &str| KubernetesNodeUpdate {
        annotations: [(key.to_owned(), None)].into(),
        ..KubernetesNodeUpdate::default()
    };
    let taint = |key: &str, effect: &str, value: &str| KubernetesNodeUpdate {
        taints: vec![TaintEdit {
            key: key.to_owned(),
            effect: effect.to_owned(),
            value: Some(value.to_owned()),
        }],
        ..KubernetesNodeUpdate::default()
    };
    assert!(
        NodePatchEdits::from_update(&marks_update(label("fabricgate.io/verdict", "pass"))).is_ok()
    );
    for bad in [
        label("nvidia.com/gpu.clique", "x"),
        label("fabricgate.io/", "x"),
        label("fabricgate.io.evil/x", "x"),
        label("xfabricgate.io/x", "x"),
        label("fabricgate.io/a/b", "x"),
        label("fabricgate.io/verdict", "not valid!"),
        annotation("dgxc.nvidia.com/x"),
        annotation(REASON),
        taint("nvidia.com/gpu", "NoSchedule", ""),
        taint("fabricgate.io/degraded", "NoSchedule", "x"),
        taint("fabricgate.io/degraded", "NoExecute", "x"),
        taint("fabricgate.io/degraded", "PreferNoSchedule", "a b"),
    ] {
        assert!(NodePatchEdits::from_update(&marks_update(bad.clone())).is_err(), "{bad:?}");
    }
    let of_slurm = NodeUpdate { extra: Some("{}".to_owned()), ..NodeUpdate::default() };
    assert!(NodePatchEdits::from_update(&of_slurm).is_err());
}

#[test]
fn the_last_check_refuses_a_patch_of_another_owners_field() {
    let before = node()["spec"]["taints"].as_array().expect("a list").clone();
    let patch = |change: &dyn Fn(&mut Value)| {
        let mut patch = built_patch(&drain(OURS), &node()).expect("a patch");
        change(&mut patch);
        check_patch(&patch, &before)
    };
    assert_eq!(patch(&|_| {}), Ok(()));
    let all: [&dyn Fn(&mut Value); 11] = [
        &|it| it["spec"]["unschedulable"] = json!(true),
        &|it| it["status"] = json!({}),
        &|it| it["metadata"]["finalizers"] = json!([]),
        &|it| it["metadata"]["labels"] = json!({"nvidia.com/gpu.present": "true"}),
        &|it| it["metadata"]["annotations"]["c"] = Value::Null,
        &|it| it["metadata"]["uid"] = Value::Null,
        &|it| drop(it["metadata"].as_object_mut().expect("a map").remove("resourceVersion")),
        &|it| drop(it["spec"]["taints"].as_array_mut().expect("a list").remove(0)),
        &|it| it["spec"]["taints"].as_array_mut().expect("a list").swap(0, 1),
        &|it| drop(it["spec"]["taints"][0].as_object_mut().expect("a map").remove("newField")),
        &|it| it["spec"]["taints"][2]["effect"] = json!("NoExecute"),
    ];
    for (at, change) in all.iter().enumerate() {
        assert!(patch(change).is_err(), "{at}");
    }
}

#[test]
fn a_condition_keeps_its_time_until_its_status_changes() {
    let edits = |status: &str, message: &str| {
        let condition = FabricNodeCondition {
            status: status.to_owned(),
            reason: "Measured".to_owned(),
            message: message.to_owned(),
        };
        let edits =
            KubernetesNodeUpdate { condition: Some(condition), ..KubernetesNodeUpdate::default() };
        NodePatchEdits::from_update(&marks_update(edits)).expect("good")
    };
    let (then, now) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let mut object = node();
    let first = edits("True", "a").build_status_patch(&object, then).expect("a patch");
    let written = &first["status"]["conditions"][0];
    assert_eq!(written["lastTransitionTime"], then);
    assert_eq!(first["metadata"]["uid"], "u1");
    object["status"]["conditions"].as_array_mut().expect("a list").push(written.clone());
    assert_eq!(edits("True", "a").build_status_patch(&object, now), None);
    let moment = |patch: Option<Value>| {
        let written = &patch.expect("a patch")["status"]["conditions"][0];
        (written["lastTransitionTime"].clone(), written["lastHeartbeatTime"].clone())
    };
    assert_eq!(
        moment(edits("True", "b").build_status_patch(&object, now)),
        (json!(then), json!(now))
    );
    assert_eq!(
        moment(edits("False", "b").build_status_patch(&object, now)),
        (json!(now), json!(now))
    );
}

#[test]
fn a_condition_is_bound_to_the_version_read_so_that_a_late_one_is_refused() {
    let condition = FabricNodeCondition {
        status: "False".to_owned(),
        reason: "NvlinkLow".to_owned(),
        message: "degraded".to_owned(),
    };
    let change =
        marks_update(KubernetesNodeUpdate { condition: Some(condition), ..Default::default() });
    let edits = NodePatchEdits::from_update(&change).expect("good");
    let patch = edits.build_status_patch(&node(), "2026-11-23T20:18:20Z").expect("a patch");
    assert_eq!(patch["metadata"], json!({"uid": "u1", "resourceVersion": "7"}));
}

#[test]
fn any_class_becomes_the_value_of_a_taint() {
    let long = "x".repeat(80);
    for reason in [OURS, "fabricgate:-:r1 e1", "psu", &format!("fabricgate:{long}:r1 e1")] {
        let patch = built_patch(&drain(reason), &node()).expect("a patch");
        let value = patch["spec"]["taints"][2]["value"].as_str().expect("a value");
        assert!(!value.is_empty() && is_label_value(value), "{reason}: {value}");
    }
}
