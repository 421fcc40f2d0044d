//! The objects for the API server that a measurement needs: pods, claims of their GPUs,
//! ComputeDomains. All have fabricgate's label and that of their run.
//!
//! Pure: values in, objects out.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{CONTAINER, GpuRequestMode, KubernetesLauncher};
use crate::launch::NODE;
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::kubernetes_node::{DEGRADED, RUN};

/// The label of every object that fabricgate creates, with its value.
pub const MANAGED_LABEL: (&str, &str) = ("app.kubernetes.io/name", "fabricgate");
/// The annotation with the process that needs an object.
pub const OWNER_ANNOTATION: &str = "fabricgate.io/held-by";
/// The annotation with the time after which no run needs the object, in seconds since
/// 1970.
pub const UNTIL_ANNOTATION: &str = "fabricgate.io/until";
/// The annotation with the node that a pod measures: a node name may be too long for a label.
pub const NODE_ANNOTATION: &str = "fabricgate.io/node";

/// The grace period of a pod, in seconds. Its worker has ended by then: only a waiting process is
/// left.
pub const GRACE_S: u32 = 5;

/// Annotations that ask descheduler and autoscaler not to evict this pod: an eviction would
/// invalidate the measurement.
const NO_EVICTION_ANNOTATIONS: [(&str, &str); 2] = [
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
];

/// The properties that all objects of one run share.
#[derive(Clone, Debug)]
pub struct ManifestOwner<'a> {
    /// The id of the run.
    pub run: &'a str,
    /// The host name of the coordinator.
    pub host: &'a str,
    /// The process id of the coordinator.
    pub pid: u32,
    /// When the run requested the object.
    pub stamp: &'a ClockStamp,
    /// The time after which no run needs the object, in seconds since 1970.
    pub until: i64,
}

/// The properties of one pod.
#[derive(Clone, Debug)]
pub struct WorkerPodSpec<'a> {
    /// The node to measure.
    pub node: &'a NodeName,
    /// The path of fabricgate in the image.
    pub worker: &'a str,
    /// The number of requested GPUs, with a device plugin.
    pub gpus: u32,
    /// The template of its claim of GPUs, with dynamic resource allocation.
    pub gpu_claim: Option<&'a str>,
    /// The template of its claim of a channel, if it is in a ComputeDomain.
    pub channel: Option<&'a str>,
    /// The maximum number of seconds that it lives.
    pub deadline_s: u64,
    /// The number of seconds without a worker after which it ends by itself.
    pub idle_s: u64,
}

/// The label selector of a run's objects.
pub fn run_selector(run: &str) -> String {
    format!("{},{RUN}={run}", managed_selector())
}

/// The label selector of all objects of fabricgate.
pub fn managed_selector() -> String {
    format!("{}={}", MANAGED_LABEL.0, MANAGED_LABEL.1)
}

/// The object name of a run for a node or a domain: legal for every node name, and always the same
/// for the same arguments.
pub fn object_name(run: &str, of: &str) -> String {
    let digest = Sha256::digest(of.as_bytes());
    let short: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("fabricgate-{run}-{short}")
}

/// The name of the pod on a node.
pub fn pod_name(run: &str, node: &NodeName) -> String {
    object_name(run, &format!("node {node}"))
}

/// The name of a domain's ComputeDomain.
pub fn compute_domain_name(run: &str, domain: &DomainName) -> String {
    object_name(run, &format!("domain {domain}"))
}

/// The template with which pods claim a channel of a ComputeDomain of this name.
pub fn channel_name(compute_domain: &str) -> String {
    format!("{compute_domain}-channel")
}

/// The template with which a run's pods claim their GPUs.
pub fn gpu_claim_name(run: &str) -> String {
    object_name(run, "gpus")
}

impl ManifestOwner<'_> {
    fn run_labels(&self) -> Value {
        json!({MANAGED_LABEL.0: MANAGED_LABEL.1, RUN: self.run})
    }

    /// The coordinator's process, as written on an object.
    pub fn owner_annotation(&self) -> String {
        json!({"host": self.host, "pid": self.pid, "stamp": self.stamp}).to_string()
    }

    fn build_metadata(&self, name: &str, namespace: &str) -> Value {
        json!({
            "name": name,
            "namespace": namespace,
            "labels": self.run_labels(),
            "annotations": {OWNER_ANNOTATION: self.owner_annotation(), UNTIL_ANNOTATION: self.until.to_string()},
        })
    }

    /// The ComputeDomain that joins this many pods.
    pub fn build_compute_domain(
        &self,
        kubernetes: &KubernetesLauncher,
        version: &str,
        domain: &DomainName,
        pods: usize,
    ) -> Value {
        let name = compute_domain_name(self.run, domain);
        json!({
            "apiVersion": format!("resource.nvidia.com/{version}"),
            "kind": "ComputeDomain",
            "metadata": self.build_metadata(&name, &kubernetes.namespace),
            "spec": {
                "numNodes": pods,
                "channel": {"resourceClaimTemplate": {"name": channel_name(&name)}},
            },
        })
    }

    /// The template of a claim for all GPUs of a node. `v1beta1` has the fields of the request one
    /// level higher than later versions.
    pub fn build_gpu_claim(&self, kubernetes: &KubernetesLauncher, version: &str) -> Value {
        let exactly = json!({
            "deviceClassName": kubernetes.device_class,
            "allocationMode": "All",
            // A GPU that the gate took out is measured too; otherwise it could never return.
            "tolerations": [{"key": DEGRADED, "operator": "Exists"}],
        });
        let request = if version == "v1beta1" {
            let mut request = exactly;
            request["name"] = "gpus".into();
            request
        } else {
            json!({"name": "gpus", "exactly": exactly})
        };
        let name = gpu_claim_name(self.run);
        json!({
            "apiVersion": format!("resource.k8s.io/{version}"),
            "kind": "ResourceClaimTemplate",
            "metadata": self.build_metadata(&name, &kubernetes.namespace),
            "spec": {
                "metadata": {"labels": self.run_labels()},
                "spec": {"devices": {"requests": [request]}},
            },
        })
    }

    /// The pod on a node.
    pub fn build_pod(
        &self,
        kubernetes: &KubernetesLauncher,
        worker_pod: &WorkerPodSpec<'_>,
    ) -> Value {
        let name = pod_name(self.run, worker_pod.node);
        let mut metadata = self.build_metadata(&name, &kubernetes.namespace);
        metadata["annotations"][NODE_ANNOTATION] = worker_pod.node.as_str().into();
        for (key, value) in NO_EVICTION_ANNOTATIONS {
            metadata["annotations"][key] = value.into();
        }
        // Matches the node's own name, not its host name label, which users may change; and not
        // `nodeName`, which would bypass the scheduler and with it the assignment of devices.
        let pinned = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [worker_pod.node.as_str()]},
            ]}],
        }}});
        let mut spec = json!({
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "activeDeadlineSeconds": worker_pod.deadline_s,
            "terminationGracePeriodSeconds": GRACE_S,
            "affinity": pinned,
            "tolerations": build_tolerations(kubernetes),
            "containers": [build_container(kubernetes, worker_pod)],
            "volumes": [{"name": "shm",
                "emptyDir": {"medium": "Memory", "sizeLimit": kubernetes.shm}}],
        });
        let claims: Vec<Value> = pod_claims(worker_pod)
            .map(|(name, template)| json!({"name": name, "resourceClaimTemplateName": template}))
            .collect();
        if !claims.is_empty() {
            spec["resourceClaims"] = claims.into();
        }
        if kubernetes.host_network {
            spec["hostNetwork"] = true.into();
            spec["dnsPolicy"] = "ClusterFirstWithHostNet".into();
        }
        if let Some(secret) = &kubernetes.pull_secret {
            spec["imagePullSecrets"] = json!([{"name": secret}]);
        }
        if let Some(account) = &kubernetes.service_account {
            spec["serviceAccountName"] = account.as_str().into();
        }
        if let Some(class) = &kubernetes.priority_class {
            spec["priorityClassName"] = class.as_str().into();
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }
}

/// The claims of a pod: the name in the pod, and the template of each.
fn pod_claims<'w>(worker_pod: &WorkerPodSpec<'w>) -> impl Iterator<Item = (&'static str, &'w str)> {
    let gpus = worker_pod.gpu_claim.map(|template| ("gpus", template));
    let channel = worker_pod.channel.map(|template| ("compute-domain", template));
    gpus.into_iter().chain(channel)
}

fn build_container(kubernetes: &KubernetesLauncher, worker_pod: &WorkerPodSpec<'_>) -> Value {
    // A second before the kubelet would end it, so that the pod counts as succeeded.
    let waits = worker_pod.deadline_s.saturating_sub(1).max(1).to_string();
    let idle = worker_pod.idle_s.to_string();
    let command =
        [worker_pod.worker, "node", "wait", "--seconds", waits.as_str(), "--idle", idle.as_str()];
    let env: Vec<Value> = kubernetes
        .env
        .iter()
        .map(|(name, value)| {
            let value = value.replace(NODE, worker_pod.node.as_str());
            json!({"name": name, "value": value})
        })
        .collect();
    let mut counted: Map<String, Value> =
        kubernetes.rdma.iter().map(|(name, n)| (name.clone(), n.to_string().into())).collect();
    if kubernetes.gpus == GpuRequestMode::DevicePlugin && 0 < worker_pod.gpus {
        counted.insert(kubernetes.resource.clone(), worker_pod.gpus.to_string().into());
    }
    let mut resources = json!({"limits": counted});
    let claims: Vec<Value> =
        pod_claims(worker_pod).map(|(name, _)| json!({"name": name})).collect();
    if !claims.is_empty() {
        resources["claims"] = claims.into();
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": kubernetes.image,
        "command": command,
        "env": env,
        "resources": resources,
        "securityContext": {
            "privileged": kubernetes.privileged,
            "capabilities": {"add": kubernetes.capabilities},
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    });
    if let Some(policy) = kubernetes.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}

fn build_tolerations(kubernetes: &KubernetesLauncher) -> Value {
    let one = |it: &super::Toleration| {
        let operator = if it.value.is_some() { "Equal" } else { "Exists" };
        let mut toleration = json!({"operator": operator});
        for (key, value) in [("key", &it.key), ("value", &it.value), ("effect", &it.effect)] {
            if let Some(value) = value {
                toleration[key] = value.as_str().into();
            }
        }
        toleration
    };
    kubernetes.all_tolerations().iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> ClockStamp {
        ClockStamp { boot: "b".to_owned(), uptime_s: 7.5, ..ClockStamp::default() }
    }

    fn origin(stamp: &ClockStamp) -> ManifestOwner<'_> {
        ManifestOwner { run: "20261121-065544-3f9a1c", host: "head", pid: 4, stamp, until: 99 }
    }

    fn worker_pod(node: &NodeName) -> WorkerPodSpec<'_> {
        WorkerPodSpec {
            node,
            worker: "/opt/fabricgate",
            gpus: 4,
            gpu_claim: None,
            channel: None,
            deadline_s: 600,
            idle_s: 60,
        }
    }

    #[test]
    fn names_are_legal_for_every_node_name() {
        for node in ["n1", "Rack_7.node-0001.very-long.example.com", &"x".repeat(253)] {
            let name = pod_name("20261121-065544-3f9a1c", &node.into());
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.len() <= 63 && name.chars().all(legal), "{name}");
            assert_eq!(name, pod_name("20261121-065544-3f9a1c", &node.into()));
        }
        assert_ne!(pod_name("r", &"n1".into()), pod_name("r", &"n2".into()));
        assert_ne!(object_name("r", "node n1"), compute_domain_name("r", &"n1".into()));
    }

    #[test]
    fn a_pod_is_pinned_marked_and_given_no_token() {
        let (node, stamp) = (NodeName::from("n1"), stamp());
        let env = [("FABRICGATE_SIM_NODE".to_owned(), "{node}".to_owned())];
        let kubernetes = KubernetesLauncher {
            image: "r/fabricgate:1".to_owned(),
            rdma: [("rdma/hca".to_owned(), 1)].into(),
            env: env.into(),
            ..KubernetesLauncher::default()
        };
        let pod = origin(&stamp).build_pod(&kubernetes, &worker_pod(&node));
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["nodeName"], Value::Null);
        let term = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"][0];
        assert_eq!(term["matchFields"][0]["values"], json!(["n1"]));
        assert_eq!(term["matchFields"][0]["key"], "metadata.name");
        let tolerated = spec["tolerations"].as_array().expect("a list");
        assert_eq!(tolerated.len(), 2, "{tolerated:?}");
        let container = &spec["containers"][0];
        let limits = json!({"nvidia.com/gpu": "4", "rdma/hca": "1"});
        assert_eq!(container["resources"], json!({"limits": limits}));
        assert_eq!(container["env"][0]["value"], "n1");
        assert_eq!(container["command"][4], "599");
        assert_eq!(pod["metadata"]["labels"][RUN], "20261121-065544-3f9a1c");
        let owner = pod["metadata"]["annotations"][OWNER_ANNOTATION].as_str().expect("text");
        assert_eq!(owner, origin(&stamp).owner_annotation());
        assert_eq!(spec.get("hostNetwork"), None);
    }

    #[test]
    fn claims_take_the_place_of_counted_gpus() {
        let (node, stamp) = (NodeName::from("n1"), stamp());
        let kubernetes =
            KubernetesLauncher { gpus: GpuRequestMode::Claim, ..KubernetesLauncher::default() };
        let worker_pod =
            WorkerPodSpec { gpu_claim: Some("g"), channel: Some("c"), ..worker_pod(&node) };
        let pod = origin(&stamp).build_pod(&kubernetes, &worker_pod);
        let resources = &pod["spec"]["containers"][0]["resources"];
        let names = json!([{"name": "gpus"}, {"name": "compute-domain"}]);
        assert_eq!(resources, &json!({"limits": {}, "claims": names}));
        assert_eq!(pod["spec"]["resourceClaims"][1]["resourceClaimTemplateName"], "c");

        let newer = origin(&stamp).build_gpu_claim(&kubernetes, "v1");
        let request = &newer["spec"]["spec"]["devices"]["requests"][0];
        assert_eq!(request["exactly"]["allocationMode"], "All");
        let older = origin(&stamp).build_gpu_claim(&kubernetes, "v1beta1");
        let request = &older["spec"]["spec"]["devices"]["requests"][0];
        assert_eq!(request["allocationMode"], "All");
        assert_eq!(newer["spec"]["metadata"]["labels"], newer["metadata"]["labels"]);
    }

    #[test]
    fn a_compute_domain_names_the_template_that_pods_wait_for() {
        let stamp = stamp();
        let domain = DomainName::from("rack 1");
        let made = origin(&stamp).build_compute_domain(
            &KubernetesLauncher::default(),
            "v1beta1",
            &domain,
            18,
        );
        let name = made["metadata"]["name"].as_str().expect("text");
        let template = &made["spec"]["channel"]["resourceClaimTemplate"]["name"];
        assert_eq!(template, &json!(channel_name(name)));
        assert_eq!(made["spec"]["numNodes"], 18);
    }
}
