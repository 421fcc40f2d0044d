//! Facts about nodes that follow from their pods: which hold GPUs, which belong to fabricgate,
//! and which jobs stop as a whole when one of their nodes leaves.
//!
//! Pure: pods in, facts out. Makes no decision.
//!
//! Sources of the names: Kubernetes' well-known labels (indexed Jobs); JobSet, LeaderWorkerSet,
//! Kueue, Kubeflow's training operator and MPI operator, `KubeRay`, scheduler-plugins'
//! coscheduling, Koordinator, Volcano, KAI (`PodGroupAnnotationForPod`), NVIDIA's DRA driver (the
//! daemons of a `ComputeDomain`), each according to its API reference or its constants.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::claims::reader_util::sanitize_text;
use model::id::NodeName;
use model::kubernetes_node::RUN;

/// The pods on one node, as far as gating needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePods {
    /// Pods of other owners that hold GPUs or may hold some, `namespace/name`.
    pub gpu_pods: BTreeSet<String>,
    /// Pods that a fabricgate run created, `namespace/name`.
    pub own_pods: BTreeSet<String>,
    /// The gangs of the pods with GPUs, `kind namespace/name`. A gang may have only this node and
    /// then does not affect a second one.
    pub gangs: BTreeSet<String>,
    /// One of them runs slurmd for Slinky.
    pub slinky: bool,
}

/// The location of a gang's name.
#[derive(Clone, Copy, Debug)]
enum GangKeyLocation {
    Label,
    Annotation,
}

/// The keys that name a pod's gang, each with the reported kind.
const GANGS: &[(&str, GangKeyLocation, &str)] = &[
    ("JobSet", GangKeyLocation::Label, "jobset.sigs.k8s.io/jobset-name"),
    ("Kueue pod group", GangKeyLocation::Label, "kueue.x-k8s.io/pod-group-name"),
    ("Kueue Workload", GangKeyLocation::Annotation, "kueue.x-k8s.io/workload"),
    // PyTorchJob, TFJob and similar kinds, and MPIJob since v2beta1.
    ("Kubeflow job", GangKeyLocation::Label, "training.kubeflow.org/job-name"),
    ("RayCluster", GangKeyLocation::Label, "ray.io/cluster"),
    ("PodGroup", GangKeyLocation::Label, "scheduling.x-k8s.io/pod-group"),
    ("PodGroup", GangKeyLocation::Label, "pod-group.scheduling.sigs.k8s.io"),
    ("PodGroup", GangKeyLocation::Label, "pod-group.scheduling.sigs.k8s.io/name"),
    ("Koordinator gang", GangKeyLocation::Annotation, "gang.scheduling.koordinator.sh/name"),
    // Volcano; its scheduler also reads the first key.
    ("Volcano PodGroup", GangKeyLocation::Annotation, "scheduling.k8s.io/group-name"),
    ("Volcano PodGroup", GangKeyLocation::Annotation, "scheduling.volcano.sh/group-name"),
    // KAI's key has no prefix.
    ("KAI PodGroup", GangKeyLocation::Annotation, "pod-group-name"),
];

/// A `LeaderWorkerSet`, each of whose groups is a gang.
const LEADER_WORKER_SET: (&str, &str) =
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index");

/// The index of a pod in an indexed Job, which other Jobs lack, and the Job.
const INDEXED_JOB: (&str, &str) =
    ("batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name");

/// UID of the `ComputeDomain` that a daemon pod serves on its node.
const COMPUTE_DOMAIN: &str = "resource.nvidia.com/computeDomain";

/// Prefix of the labels of pods in Slinky's `NodeSet`.
const SLINKY_NODE_SET: &str = "nodeset.slinky.slurm.net/";

/// Owners whose pods form one gang without a label: API group and kinds (all kinds if empty).
const GANG_OWNERS: &[(&str, &[&str])] =
    &[("kubeflow.org", &[]), ("ray.io", &[]), ("batch.volcano.sh", &["Job"])];

/// The pods on every node with a bound pod. Pods without a node, ended pods, and pods without a
/// GPU do not count.
pub fn pods_by_node<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<NodeName, NodePods> {
    let mut nodes: BTreeMap<NodeName, NodePods> = BTreeMap::new();
    for pod in pods {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
            continue;
        };
        if has_ended(pod) {
            continue;
        }
        if let Some(domain) = served_compute_domain(pod) {
            let gang = format!("ComputeDomain {}", sanitize_text(domain));
            nodes.entry(NodeName::from(node)).or_default().gangs.insert(gang);
        }
        if is_slurmd(pod) {
            nodes.entry(NodeName::from(node)).or_default().slinky = true;
        }
        if is_fabricgate_pod(pod) {
            nodes.entry(NodeName::from(node)).or_default().own_pods.insert(qualified_name(pod));
        } else if holds_gpus(pod) {
            let on_node = nodes.entry(NodeName::from(node)).or_default();
            on_node.gpu_pods.insert(qualified_name(pod));
            on_node.gangs.append(&mut gangs(pod));
        }
    }
    nodes
}

/// `namespace/name`, sanitized.
fn qualified_name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    sanitize_text(&format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default()))
}

/// Whether all containers of the pod have ended. A pod under deletion still runs.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether a fabricgate run created the pod.
fn is_fabricgate_pod(pod: &Pod) -> bool {
    pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(RUN))
}

/// Whether a `DaemonSet` owns the pod: after an eviction, the `DaemonSet` creates it again.
fn is_daemon(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "DaemonSet" && api_group(&owner.api_version) == "apps")
}

/// Whether the pod runs slurmd for Slinky: its jobs belong to Slurm and end with the pod.
fn is_slurmd(pod: &Pod) -> bool {
    pod.metadata.labels.iter().flatten().any(|(key, _)| key.starts_with(SLINKY_NODE_SET))
}

/// Whether the pod holds GPUs or may hold some: a resource claim (DRA) can be for any device class,
/// and the pod does not name the class. Claims of daemons do not count: daemons that serve a
/// `ComputeDomain` or read counters have claims, too.
fn holds_gpus(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let requested = containers.clone().any(requests_gpus);
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    requested || (claims && !is_daemon(pod))
}

fn requests_gpus(container: &Container) -> bool {
    let Some(resources) = &container.resources else { return false };
    let amounts = resources.requests.iter().chain(&resources.limits).flatten();
    amounts.into_iter().any(|(resource, quantity)| is_gpu(resource) && is_positive(&quantity.0))
}

/// Whether a resource consists of GPUs: whole ones, shared ones, slices, or whole ones under
/// their model name, as `KubeVirt`'s device plugin registers them.
fn is_gpu(resource: &str) -> bool {
    match resource.split_once('/') {
        Some(("nvidia.com", name)) => {
            name.starts_with("gpu")
                || name.starts_with("mig-")
                || name.starts_with(|first: char| first.is_ascii_uppercase())
        }
        Some(("amd.com", name)) => name.starts_with("gpu"),
        _ => false,
    }
}

/// Whether a quantity is above zero: `0`, `0.0`, `0e3` and `0Ki` are not.
fn is_positive(quantity: &str) -> bool {
    let number = quantity.split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or_default();
    number.contains(|digit: char| matches!(digit, '1'..='9'))
}

/// UID of the `ComputeDomain` that this daemon serves.
fn served_compute_domain(pod: &Pod) -> Option<&str> {
    let uid = pod.metadata.labels.as_ref()?.get(COMPUTE_DOMAIN)?;
    (is_daemon(pod) && !uid.is_empty()).then_some(uid)
}

/// The gangs of a pod, `kind namespace/name`.
fn gangs(pod: &Pod) -> BTreeSet<String> {
    let meta = &pod.metadata;
    let label = |key: &str| meta.labels.as_ref()?.get(key).filter(|value| !value.is_empty());
    let annotation =
        |key: &str| meta.annotations.as_ref()?.get(key).filter(|value| !value.is_empty());
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let called = |kind: &str, name: &str| sanitize_text(&format!("{kind} {namespace}/{name}"));
    let mut gangs = BTreeSet::new();
    for (kind, at, key) in GANGS {
        let found = match at {
            GangKeyLocation::Label => label(key),
            GangKeyLocation::Annotation => annotation(key),
        };
        if let Some(found) = found {
            gangs.insert(called(kind, found));
        }
    }
    let (set, group) = LEADER_WORKER_SET;
    if let Some(set) = label(set) {
        let group = label(group).map_or_else(String::new, |group| format!(" group {group}"));
        gangs.insert(called("LeaderWorkerSet", &format!("{set}{group}")));
    }
    let (index, job) = INDEXED_JOB;
    if (label(index).is_some() || annotation(index).is_some())
        && let Some(job) = label(job).or_else(|| label("job-name"))
    {
        gangs.insert(called("Job", job));
    }
    for owner in meta.owner_references.iter().flatten() {
        let group = api_group(&owner.api_version);
        let known = GANG_OWNERS.iter().find(|(known, _)| *known == group);
        if known.is_some_and(|(_, kinds)| kinds.is_empty() || kinds.contains(&owner.kind.as_str()))
        {
            gangs.insert(called(&owner.kind, &owner.name));
        }
    }
    gangs
}

/// The group of an API version: empty for the core group.
fn api_group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod on `n1` that requests a GPU, with changes.
    fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Pod {
        let mut text = json!({
            "metadata": {"namespace": "team", "name": name, "labels": {}, "annotations": {}},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
            "status": {"phase": "Running"},
        });
        change(&mut text);
        serde_json::from_value(text).expect("a pod")
    }

    fn on_n1(pod: &Pod) -> NodePods {
        pods_by_node([pod]).remove(&NodeName::from("n1")).unwrap_or_default()
    }

    fn gpu_pod_count(change: impl FnOnce(&mut Value)) -> usize {
        on_n1(&pod("p", change)).gpu_pods.len()
    }

    fn gpu_pods_requesting(resource: &str, quantity: &str) -> usize {
        gpu_pod_count(|pod| {
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {resource: quantity}});
        })
    }

    #[test]
    fn a_pod_holds_gpus_under_any_resource_name() {
        for resource in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/GH100_H100_SXM5_80GB",
            "amd.com/gpu",
        ] {
            assert_eq!(gpu_pods_requesting(resource, "1"), 1, "{resource}");
            assert_eq!(gpu_pods_requesting(resource, "0"), 0, "{resource}");
        }
        for resource in ["cpu", "nvidia.com/rdma-vf", "rdma/hca", "example.com/gpu"] {
            assert_eq!(gpu_pods_requesting(resource, "1"), 0, "{resource}");
        }
    }

    #[test]
    fn init_containers_hold_gpus_too() {
        let init = json!([{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]);
        let held = gpu_pod_count(|pod| {
            pod["spec"]["containers"][0]["resources"] = json!({});
            pod["spec"]["initContainers"] = init;
        });
        assert_eq!(held, 1);
    }

    #[test]
    fn a_pod_that_ended_or_has_no_node_holds_nothing() {
        assert_eq!(gpu_pod_count(|pod| pod["status"]["phase"] = json!("Succeeded")), 0);
        assert_eq!(gpu_pod_count(|pod| pod["status"]["phase"] = json!("Failed")), 0);
        assert_eq!(gpu_pod_count(|pod| pod["status"] = json!({})), 1);
        assert_eq!(
            gpu_pod_count(
                |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
            ),
            1
        );
        let waiting = pod("p", |pod| pod["spec"]["nodeName"] = Value::Null);
        assert!(pods_by_node([&waiting]).is_empty());
    }

    #[test]
    fn a_claim_may_hold_gpus_except_in_a_daemon() {
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "eight"}]);
        let claiming = |pod: &mut Value| {
            pod["spec"]["containers"][0]["resources"] = json!({});
            pod["spec"]["resourceClaims"] = claims.clone();
        };
        assert_eq!(gpu_pod_count(claiming), 1);
        let daemon =
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]);
        let owned = |pod: &mut Value| pod["metadata"]["ownerReferences"] = daemon.clone();
        assert_eq!(
            gpu_pod_count(|pod| {
                claiming(pod);
                owned(pod);
            }),
            0
        );
        assert_eq!(gpu_pod_count(owned), 1, "a daemon that requests GPUs holds them");
    }

    #[test]
    fn fabricgate_pods_are_listed_separately() {
        let own = pod("p", |pod| pod["metadata"]["labels"] = json!({RUN: "run1"}));
        let on_node = on_n1(&own);
        assert_eq!(on_node.own_pods, BTreeSet::from(["team/p".to_owned()]));
        assert!(on_node.gpu_pods.is_empty());
    }

    #[test]
    fn every_kind_of_gang_is_known() {
        let of = |labels: Value, annotations: Value, owners: Value| {
            let pod = pod("p", |pod| {
                pod["metadata"]["labels"] = labels;
                pod["metadata"]["annotations"] = annotations;
                pod["metadata"]["ownerReferences"] = owners;
            });
            on_n1(&pod).gangs.into_iter().collect::<Vec<_>>().join(", ")
        };
        let none = || json!({});
        let by_label = [
            ("jobset.sigs.k8s.io/jobset-name", "JobSet team/x"),
            ("kueue.x-k8s.io/pod-group-name", "Kueue pod group team/x"),
            ("training.kubeflow.org/job-name", "Kubeflow job team/x"),
            ("ray.io/cluster", "RayCluster team/x"),
            ("scheduling.x-k8s.io/pod-group", "PodGroup team/x"),
            ("pod-group.scheduling.sigs.k8s.io", "PodGroup team/x"),
            ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet team/x"),
            ("batch.kubernetes.io/job-name", ""),
            ("app", ""),
        ];
        for (key, gang) in by_label {
            assert_eq!(of(json!({key: "x"}), none(), json!([])), gang, "{key}");
        }
        let by_annotation = [
            ("kueue.x-k8s.io/workload", "Kueue Workload team/x"),
            ("scheduling.k8s.io/group-name", "Volcano PodGroup team/x"),
            ("pod-group-name", "KAI PodGroup team/x"),
            ("gang.scheduling.koordinator.sh/name", "Koordinator gang team/x"),
        ];
        for (key, gang) in by_annotation {
            assert_eq!(of(none(), json!({key: "x"}), json!([])), gang, "{key}");
        }
        let group = json!({"leaderworkerset.sigs.k8s.io/name": "serve",
            "leaderworkerset.sigs.k8s.io/group-index": "3"});
        assert_eq!(of(group, none(), json!([])), "LeaderWorkerSet team/serve group 3");
        let indexed = json!({"batch.kubernetes.io/job-name": "train",
            "batch.kubernetes.io/job-completion-index": "0"});
        assert_eq!(of(indexed, none(), json!([])), "Job team/train");
        let owner = json!([{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "mpi",
            "uid": "u"}]);
        assert_eq!(of(none(), none(), owner), "MPIJob team/mpi");
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}]);
        assert_eq!(of(none(), none(), owner), "");
    }

    #[test]
    fn slurmd_pods_are_recognised() {
        let of_slinky = json!({"nodeset.slinky.slurm.net/pod-name": "slurm-worker-0"});
        let daemon = pod("p", |pod| pod["metadata"]["labels"] = of_slinky);
        assert!(on_n1(&daemon).slinky);
        assert!(!on_n1(&pod("p", |_| {})).slinky);
    }

    #[test]
    fn compute_domain_daemons_identify_its_nodes() {
        let daemon = pod("d", |pod| {
            pod["metadata"]["labels"] = json!({COMPUTE_DOMAIN: "uid-1"});
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]);
            pod["spec"]["containers"][0]["resources"] = json!({});
        });
        let on_node = on_n1(&daemon);
        assert_eq!(on_node.gangs, BTreeSet::from(["ComputeDomain uid-1".to_owned()]));
        assert!(on_node.gpu_pods.is_empty());
    }
}
