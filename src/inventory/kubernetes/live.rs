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

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::core::v1::NodeCondition;

use super::marks;
use super::pods::OnNode;
use crate::inventory::reading::plain;
use crate::model::id::NodeName;
use crate::model::kubernetes_node::CONDITION;
use crate::model::kubernetes_node::Condition;
use crate::model::kubernetes_node::DEGRADED;
use crate::model::kubernetes_node::KubernetesNode;
use crate::model::kubernetes_node::NO_SCHEDULE;
use crate::model::kubernetes_node::PREFER_NO_SCHEDULE;
use crate::model::kubernetes_node::PREFIX;
use crate::model::kubernetes_node::REASON;
use crate::model::kubernetes_node::Taint;
use crate::model::kubernetes_node::UNVERIFIED;
use crate::model::live::LiveNode;

/// The word of a node whose pods could not be read: it may be in use.
pub const PODS_UNREAD: &str = "PODS_UNREAD";

/// Words that pods decide, and nothing that a node object says.
const OF_PODS: [&str; 3] = ["IDLE", "ALLOCATED", PODS_UNREAD];

/// The taint that follows from `spec.unschedulable`.
const CORDON: &str = "node.kubernetes.io/unschedulable";

/// Keys, or what keys begin with, of taints by which others say that the node is
/// out, and not whom it is for.
const OUT: &[&str] = &[
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
const AWAITED: &str = "readiness.k8s.io/";

/// The same of those who are about to repair it or to take it away: they are at
/// work on it.
const AT_WORK: &[(&str, &str)] = &[
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
const AT_WORK_BY_ANNOTATION: &[(&str, &str)] = &[
    (QUARANTINE, "NVSentinel has it in quarantine"),
    ("remediation.medik8s.io/", "medik8s is at work"),
    ("weave.works/kured-reboot-in-progress", "kured reboots it"),
];

/// What NVSentinel keeps of the event for which it put a node in quarantine.
const QUARANTINE: &str = "quarantineHealthEvent";

/// NVSentinel writes all its annotations in a dry run too, with one that says so.
const REHEARSED: &str = "DryRun";

/// The conditions in which Slinky's operator tells of Slurm's states.
const SLINKY_CONDITIONS: &str = "SlurmNodeState";

/// What runs on nodes, as far as it was read.
#[derive(Clone, Copy, Debug)]
pub enum Pods<'a> {
    /// Pods were read; who is not here has none with GPUs.
    Read(&'a BTreeMap<NodeName, OnNode>),
    /// They could not be read, or were not asked for.
    Unknown,
}

/// A node as it is told to whoever decides. `None` for an object without a name.
pub fn node(object: &Node, pods: Pods<'_>) -> Option<LiveNode> {
    let name = object.metadata.name.as_deref().filter(|name| !name.is_empty())?;
    let name = NodeName::from(name);
    let on_node = match pods {
        Pods::Read(pods) => Some(pods.get(&name)),
        Pods::Unknown => None,
    };
    let mut seen = seen(object);
    if let Some(Some(on_node)) = on_node {
        seen.gangs.clone_from(&on_node.gangs);
        seen.slinky |= on_node.slinky;
    }
    let mut node = LiveNode::new(name, &[]);
    let busy = on_node.map(|on_node| on_node.is_some_and(|it| !it.gpu_pods.is_empty()));
    node.state = state(object, &seen, busy);
    if node.is("DRAIN") {
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
pub fn lasting(node: &LiveNode) -> Vec<&str> {
    node.state.iter().map(String::as_str).filter(|word| !OF_PODS.contains(word)).collect()
}

/// Whether a taint is one by which somebody says that the node is out.
pub fn means_out(taint: &Taint) -> bool {
    let begins = |known: &&str| taint.key.starts_with(*known);
    taint.effect != PREFER_NO_SCHEDULE
        && taint.key != CORDON
        && (OUT.iter().any(begins)
            || AT_WORK.iter().any(|(known, _)| begins(known))
            // What network and storage agents call the taint that waits for them.
            || taint.key.ends_with("-not-ready"))
}

fn seen(object: &Node) -> KubernetesNode {
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
        let own = words.iter().filter(|(key, _)| key.starts_with(PREFIX));
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let condition = condition(object, CONDITION).map(|it| Condition {
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
        left_alone: left_alone(labels, annotations, &taints),
        gangs: BTreeSet::new(),
        slinky: slurm_told
            || marks::slinky(labels, annotations)
            || taints.iter().any(|taint| marks::is_slinky(&taint.key)),
        taints,
    }
}

fn condition<'a>(object: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Its state. `busy` says whether pods there hold GPUs, where that is known.
fn state(object: &Node, seen: &KubernetesNode, busy: Option<bool>) -> Vec<String> {
    let mut words = Vec::new();
    if object.metadata.deletion_timestamp.is_some() {
        words.push("DELETING");
    }
    let is_ready = condition(object, "Ready").is_some_and(|it| it.status == "True");
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
    if seen.cordoned || seen.taints.iter().any(|taint| taint.key == CORDON) {
        words.push("CORDONED");
    }
    // The taint of a node that is not ready follows from that.
    let says_more = |taint: &Taint| means_out(taint) && (is_ready || !of_readiness(taint));
    if seen.taints.iter().any(says_more) {
        words.push("TAINTED");
    }
    let is_awaited = |it: &Taint| it.key.starts_with(AWAITED) && it.effect != PREFER_NO_SCHEDULE;
    if seen.taints.iter().any(is_awaited) {
        words.push("AWAITED");
    }
    let nothing = BTreeMap::new();
    let labels = object.metadata.labels.as_ref().unwrap_or(&nothing);
    if marks::tested(labels).is_some() || marks::in_compute_domain(labels).is_some() {
        words.push("TESTING");
    }
    words.into_iter().map(str::to_owned).collect()
}

fn of_readiness(taint: &Taint) -> bool {
    matches!(taint.key.as_str(), "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
}

/// Who asks that it be left alone, or is at work on it.
fn left_alone(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    taints: &[Taint],
) -> Vec<String> {
    let mut told = marks::opt_outs(labels);
    told.extend(marks::repaired(labels));
    let is_event = |key: &String| key.starts_with(QUARANTINE);
    let is_rehearsed = annotations.keys().any(|key| is_event(key) && key.contains(REHEARSED));
    for (key, value) in annotations {
        let found = AT_WORK_BY_ANNOTATION.iter().find(|(known, _)| key.starts_with(known));
        if let Some((_, who)) = found
            && !value.is_empty()
            && !(is_rehearsed && is_event(key))
        {
            told.push(format!("{who}: annotation {}", plain(key)));
        }
    }
    for taint in taints {
        if let Some((_, who)) = AT_WORK.iter().find(|(known, _)| taint.key.starts_with(known)) {
            told.push(format!("{who}: taint {}:{}", plain(&taint.key), plain(&taint.effect)));
        }
    }
    told
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
