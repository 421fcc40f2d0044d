//! A Kubernetes node in the form that actions need: its state as flags, fabricgate's marks, and
//! requests or activities of other clients.
//!
//! Pure. Missing information counts as a reason not to act: a node without a Ready condition is
//! not ready, and one whose pods were not read is not idle.
//!
//! Sources of the taints: Kubernetes' well-known labels, annotations and taints
//! (`node.kubernetes.io`, cloud providers); cluster-autoscaler's and Karpenter's constants;
//! medik8s; node-readiness-controller; NVIDIA NVSentinel's fault-quarantine.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, NodeCondition};

use super::node_marks;
use super::pods::NodePods;
use crate::claims::reader_util::sanitize_text;
use model::id::NodeName;
use model::kubernetes_node::{
    CONDITION, DEGRADED, FABRICGATE_PREFIX, FabricNodeCondition, KubernetesNode, NO_SCHEDULE,
    PREFER_NO_SCHEDULE, REASON, Taint, UNVERIFIED,
};
use model::scheduler_snapshot::SchedulerNode;

/// State flag of a node whose pods could not be read: it may be in use.
pub const PODS_UNREAD: &str = "PODS_UNREAD";

/// State flags that depend on pods and not on the node object.
const POD_STATES: [&str; 3] = ["IDLE", "ALLOCATED", PODS_UNREAD];

/// The taint that follows from `spec.unschedulable`.
const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Keys, or prefixes of keys, of taints that take a node out of service, in contrast to taints
/// that dedicate a node to certain users.
const OUT_TAINTS: &[&str] = &[
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/",
    // A start-up taint: an agent is not running yet.
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/unregistered",
];

/// Prefix of node-readiness-controller's taints, which it removes when a condition of the node is
/// true. The condition may be fabricgate's, so these taints do not defer a measurement.
const READINESS_TAINT_PREFIX: &str = "readiness.k8s.io/";

/// The same for clients that are repairing or about to remove the node.
const REPAIR_TAINTS: &[(&str, &str)] = &[
    ("node.kubernetes.io/out-of-service", "declared out of service"),
    ("medik8s.io/", "medik8s is at work"),
    ("remediation.medik8s.io/", "medik8s is at work"),
    ("ToBeDeletedByClusterAutoscaler", "the cluster autoscaler removes it"),
    ("karpenter.sh/disrupt", "Karpenter removes it"),
    ("AggregatedNodeHealth", "NVSentinel has it in quarantine"),
    ("nvsentinel.dgxc.nvidia.com/", "NVSentinel has it in quarantine"),
    ("dgxc.nvidia.com/nvsentinel", "NVSentinel has it in quarantine"),
];

/// Annotations that mark an operation in progress by another client.
const REPAIR_ANNOTATIONS: &[(&str, &str)] = &[
    (QUARANTINE_ANNOTATION, "NVSentinel has it in quarantine"),
    ("remediation.medik8s.io/", "medik8s is at work"),
    ("weave.works/kured-reboot-in-progress", "kured reboots it"),
];

/// The event for which NVSentinel quarantined a node.
const QUARANTINE_ANNOTATION: &str = "quarantineHealthEvent";

/// In a dry run NVSentinel writes all its annotations, too, and marks it with this suffix.
const DRY_RUN_SUFFIX: &str = "DryRun";

/// Conditions in which Slinky's operator reports Slurm's states.
const SLINKY_CONDITIONS: &str = "SlurmNodeState";

/// The pods on nodes, as far as they were read.
#[derive(Clone, Copy, Debug)]
pub enum PodsByNode<'a> {
    /// The pods were read; a missing node has no pods with GPUs.
    Known(&'a BTreeMap<NodeName, NodePods>),
    /// The pods could not be read, or were not requested.
    Unknown,
}

/// The scheduler's view of a node. `None` for an object without a name.
pub fn to_live_node(object: &Node, pods: PodsByNode<'_>) -> Option<SchedulerNode> {
    let name = object.metadata.name.as_deref().filter(|name| !name.is_empty())?;
    let name = NodeName::from(name);
    let on_node = match pods {
        PodsByNode::Known(pods) => Some(pods.get(&name)),
        PodsByNode::Unknown => None,
    };
    let mut seen = kubernetes_node(object);
    if let Some(Some(on_node)) = on_node {
        seen.gangs.clone_from(&on_node.gangs);
        seen.slinky |= on_node.slinky;
    }
    let mut node = SchedulerNode::new(name, &[]);
    let busy = on_node.map(|on_node| on_node.is_some_and(|it| !it.gpu_pods.is_empty()));
    node.state = state_words(object, &seen, busy);
    if node.has_state("DRAIN") {
        node.reason = seen.annotations.get(REASON).cloned();
    }
    let info = object.status.as_ref().and_then(|status| status.node_info.as_ref());
    let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    node.boot_id = info.and_then(|info| non_empty(&info.boot_id));
    let provider = object.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    let machine = || info.and_then(|info| non_empty(&info.system_uuid));
    node.instance = provider.and_then(non_empty).or_else(machine);
    node.kubernetes = Some(Box::new(seen));
    Some(node)
}

/// The state flags that follow from the node object itself, without those that follow from pods.
pub fn own_states(node: &SchedulerNode) -> Vec<&str> {
    node.state.iter().map(String::as_str).filter(|word| !POD_STATES.contains(word)).collect()
}

/// Whether the taint takes the node out of service.
pub fn is_out_taint(taint: &Taint) -> bool {
    let begins = |known: &&str| taint.key.starts_with(*known);
    taint.effect != PREFER_NO_SCHEDULE
        && taint.key != CORDON_TAINT
        && (OUT_TAINTS.iter().any(begins)
            || REPAIR_TAINTS.iter().any(|(known, _)| begins(known))
            // The usual suffix of start-up taints of network and storage agents.
            || taint.key.ends_with("-not-ready"))
}

fn kubernetes_node(object: &Node) -> KubernetesNode {
    let nothing = BTreeMap::new();
    let meta = &object.metadata;
    let (labels, annotations) =
        (meta.labels.as_ref().unwrap_or(&nothing), meta.annotations.as_ref().unwrap_or(&nothing));
    let spec = object.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let taints: Vec<Taint> = taints
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        })
        .collect();
    let own = |words: &BTreeMap<String, String>| {
        let own = words.iter().filter(|(key, _)| key.starts_with(FABRICGATE_PREFIX));
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let condition = find_condition(object, CONDITION).map(|it| FabricNodeCondition {
        status: it.status.clone(),
        reason: it.reason.clone().unwrap_or_default(),
        message: it.message.clone().unwrap_or_default(),
    });
    let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
    let has_slurm_state =
        conditions.into_iter().flatten().any(|it| it.type_.starts_with(SLINKY_CONDITIONS));
    KubernetesNode {
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
        labels: own(labels),
        annotations: own(annotations),
        condition,
        left_alone: hands_off_reasons(labels, annotations, &taints),
        gangs: BTreeSet::new(),
        slinky: has_slurm_state
            || node_marks::is_slinky_node(labels, annotations)
            || taints.iter().any(|taint| node_marks::is_slinky_key(&taint.key)),
        taints,
    }
}

fn find_condition<'a>(object: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// The state flags. `busy`: whether pods on the node hold GPUs, if known.
fn state_words(object: &Node, seen: &KubernetesNode, busy: Option<bool>) -> Vec<String> {
    let mut words = Vec::new();
    if object.metadata.deletion_timestamp.is_some() {
        words.push("DELETING");
    }
    let is_ready = find_condition(object, "Ready").is_some_and(|it| it.status == "True");
    match busy {
        Some(true) => words.push("ALLOCATED"),
        None => words.push(PODS_UNREAD),
        Some(false) if is_ready => words.push("IDLE"),
        Some(false) => {}
    }
    if !is_ready {
        words.push("NOT_READY");
    }
    let has =
        |key: &str, effect: &str| seen.taints.iter().any(|it| it.key == key && it.effect == effect);
    if has(DEGRADED, NO_SCHEDULE) {
        words.push("DRAIN");
    }
    if has(UNVERIFIED, NO_SCHEDULE) || has(UNVERIFIED, "NoExecute") {
        words.push("UNVERIFIED");
    }
    if seen.cordoned || seen.taints.iter().any(|taint| taint.key == CORDON_TAINT) {
        words.push("CORDONED");
    }
    // The taint of a node that is not ready follows from its state.
    let adds_state =
        |taint: &Taint| is_out_taint(taint) && (is_ready || !is_readiness_taint(taint));
    if seen.taints.iter().any(adds_state) {
        words.push("TAINTED");
    }
    let is_awaited =
        |it: &Taint| it.key.starts_with(READINESS_TAINT_PREFIX) && it.effect != PREFER_NO_SCHEDULE;
    if seen.taints.iter().any(is_awaited) {
        words.push("AWAITED");
    }
    let nothing = BTreeMap::new();
    let labels = object.metadata.labels.as_ref().unwrap_or(&nothing);
    if node_marks::active_tester(labels).is_some()
        || node_marks::compute_domain_uid(labels).is_some()
    {
        words.push("TESTING");
    }
    words.into_iter().map(str::to_owned).collect()
}

fn is_readiness_taint(taint: &Taint) -> bool {
    matches!(taint.key.as_str(), "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
}

/// Requests to leave the node alone, and operations of other clients on it.
fn hands_off_reasons(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    taints: &[Taint],
) -> Vec<String> {
    let mut reasons = node_marks::opt_outs(labels);
    reasons.extend(node_marks::active_repairer(labels));
    let is_event = |key: &String| key.starts_with(QUARANTINE_ANNOTATION);
    let is_rehearsed = annotations.keys().any(|key| is_event(key) && key.contains(DRY_RUN_SUFFIX));
    for (key, value) in annotations {
        let found = REPAIR_ANNOTATIONS.iter().find(|(known, _)| key.starts_with(known));
        if let Some((_, operation)) = found
            && !value.is_empty()
            && !(is_rehearsed && is_event(key))
        {
            reasons.push(format!("{operation}: annotation {}", sanitize_text(key)));
        }
    }
    for taint in taints {
        if let Some((_, operation)) =
            REPAIR_TAINTS.iter().find(|(known, _)| taint.key.starts_with(known))
        {
            reasons.push(format!(
                "{operation}: taint {}:{}",
                sanitize_text(&taint.key),
                sanitize_text(&taint.effect)
            ));
        }
    }
    reasons
}

#[cfg(test)]
#[path = "live_node_tests.rs"]
mod tests;
