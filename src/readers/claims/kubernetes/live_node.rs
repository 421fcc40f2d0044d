//! A Kubernetes node as whoever acts on it needs to know it: a state in words, our
//! own marks on it, and what others ask for or are doing there.
//!
//! Pure. Where it matters, what is not known is taken for what keeps hands off: a
//! node without a word about its readiness is not ready, and one whose pods were
//! not read is not idle.
//!
//! Sources of the taints: Kubernetes' well-known labels, annotations and taints
//! (`node.kubernetes.io`, cloud providers); cluster-autoscaler's and Karpenter's
//! constants; medik8s; node-readiness-controller; NVIDIA NVSentinel's
//! fault-quarantine.

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

/// The word of a node whose pods could not be read: it may be in use.
pub const PODS_UNREAD: &str = "PODS_UNREAD";

/// Words that pods decide, and nothing that a node object says.
const POD_STATES: [&str; 3] = ["IDLE", "ALLOCATED", PODS_UNREAD];

/// The taint that follows from `spec.unschedulable`.
const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Keys, or what keys begin with, of taints by which others say that the node is
/// out, and not whom it is for.
const OUT_TAINTS: &[&str] = &[
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/",
    // A start-up taint: some agent is not there yet.
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/unregistered",
];

/// What keys begin with of taints that go when a condition of the node is true:
/// node-readiness-controller's. The condition may be ours, so nobody waits here
/// until they are gone.
const READINESS_TAINT_PREFIX: &str = "readiness.k8s.io/";

/// The same of those who are about to repair it or to take it away: they are at
/// work on it.
const REPAIR_TAINTS: &[(&str, &str)] = &[
    ("node.kubernetes.io/out-of-service", "somebody declared it out of service"),
    ("medik8s.io/", "medik8s is at work"),
    ("remediation.medik8s.io/", "medik8s is at work"),
    ("ToBeDeletedByClusterAutoscaler", "the cluster autoscaler removes it"),
    ("karpenter.sh/disrupt", "Karpenter removes it"),
    ("AggregatedNodeHealth", "NVSentinel has it in quarantine"),
    ("nvsentinel.dgxc.nvidia.com/", "NVSentinel has it in quarantine"),
    ("dgxc.nvidia.com/nvsentinel", "NVSentinel has it in quarantine"),
];

/// Annotations by which others say that they are at work.
const REPAIR_ANNOTATIONS: &[(&str, &str)] = &[
    (QUARANTINE_ANNOTATION, "NVSentinel has it in quarantine"),
    ("remediation.medik8s.io/", "medik8s is at work"),
    ("weave.works/kured-reboot-in-progress", "kured reboots it"),
];

/// What NVSentinel keeps of the event for which it put a node in quarantine.
const QUARANTINE_ANNOTATION: &str = "quarantineHealthEvent";

/// NVSentinel writes all its annotations in a dry run too, with one that says so.
const DRY_RUN_SUFFIX: &str = "DryRun";

/// The conditions in which Slinky's operator tells of Slurm's states.
const SLINKY_CONDITIONS: &str = "SlurmNodeState";

/// What runs on nodes, as far as it was read.
#[derive(Clone, Copy, Debug)]
pub enum PodsByNode<'a> {
    /// Pods were read; who is not here has none with GPUs.
    Known(&'a BTreeMap<NodeName, NodePods>),
    /// They could not be read, or were not asked for.
    Unknown,
}

/// A node as it is told to whoever decides. `None` for an object without a name.
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
    let told = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    node.boot_id = info.and_then(|info| told(&info.boot_id));
    let provider = object.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    let machine = || info.and_then(|info| told(&info.system_uuid));
    node.instance = provider.and_then(told).or_else(machine);
    node.kubernetes = Some(Box::new(seen));
    Some(node)
}

/// The words of a state that the node object itself decides, without those that
/// follow from pods.
pub fn own_states(node: &SchedulerNode) -> Vec<&str> {
    node.state.iter().map(String::as_str).filter(|word| !POD_STATES.contains(word)).collect()
}

/// Whether a taint is one by which somebody says that the node is out.
pub fn is_out_taint(taint: &Taint) -> bool {
    let begins = |known: &&str| taint.key.starts_with(*known);
    taint.effect != PREFER_NO_SCHEDULE
        && taint.key != CORDON_TAINT
        && (OUT_TAINTS.iter().any(begins)
            || REPAIR_TAINTS.iter().any(|(known, _)| begins(known))
            // What network and storage agents call the taint that waits for them.
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
    let ours = |words: &BTreeMap<String, String>| {
        let own = words.iter().filter(|(key, _)| key.starts_with(FABRICGATE_PREFIX));
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let condition = find_condition(object, CONDITION).map(|it| FabricNodeCondition {
        status: it.status.clone(),
        reason: it.reason.clone().unwrap_or_default(),
        message: it.message.clone().unwrap_or_default(),
    });
    let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
    let slurm_told =
        conditions.into_iter().flatten().any(|it| it.type_.starts_with(SLINKY_CONDITIONS));
    KubernetesNode {
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
        labels: ours(labels),
        annotations: ours(annotations),
        condition,
        left_alone: hands_off_reasons(labels, annotations, &taints),
        gangs: BTreeSet::new(),
        slinky: slurm_told
            || node_marks::is_slinky_node(labels, annotations)
            || taints.iter().any(|taint| node_marks::is_slinky_key(&taint.key)),
        taints,
    }
}

fn find_condition<'a>(object: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Its state. `busy` says whether pods there hold GPUs, where that is known.
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
    // The taint of a node that is not ready follows from that.
    let says_more = |taint: &Taint| is_out_taint(taint) && (is_ready || !is_readiness_taint(taint));
    if seen.taints.iter().any(says_more) {
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

/// Who asks that it be left alone, or is at work on it.
fn hands_off_reasons(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    taints: &[Taint],
) -> Vec<String> {
    let mut told = node_marks::opt_outs(labels);
    told.extend(node_marks::active_repairer(labels));
    let is_event = |key: &String| key.starts_with(QUARANTINE_ANNOTATION);
    let is_rehearsed = annotations.keys().any(|key| is_event(key) && key.contains(DRY_RUN_SUFFIX));
    for (key, value) in annotations {
        let found = REPAIR_ANNOTATIONS.iter().find(|(known, _)| key.starts_with(known));
        if let Some((_, who)) = found
            && !value.is_empty()
            && !(is_rehearsed && is_event(key))
        {
            told.push(format!("{who}: annotation {}", sanitize_text(key)));
        }
    }
    for taint in taints {
        if let Some((_, who)) = REPAIR_TAINTS.iter().find(|(known, _)| taint.key.starts_with(known))
        {
            told.push(format!(
                "{who}: taint {}:{}",
                sanitize_text(&taint.key),
                sanitize_text(&taint.effect)
            ));
        }
    }
    told
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
