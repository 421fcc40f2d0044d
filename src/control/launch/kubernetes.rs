//! Nodes reached through pods: the settings of a site, and the command that starts a worker in a
//! pod.
//!
//! Pure. [`manifest`] builds the objects for the API server; `gate::pod_allocation` creates the
//! pods and checks their state.

pub mod manifest;
pub mod pod_ranks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::slurm::BusyNodePolicy;
use model::kubernetes_node::{DEGRADED, NO_SCHEDULE, Taint, UNVERIFIED};

/// The container in which workers run; a pod has no other fabricgate container.
pub const CONTAINER: &str = "worker";

/// The taint of a cordoned node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// How pods request GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuRequestMode {
    /// As an extended resource of the device plugin.
    #[default]
    DevicePlugin,
    /// With a claim of dynamic resource allocation, for all devices of a class.
    Claim,
}

/// Whether a ComputeDomain joins the pods of a claimed domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeDomainMode {
    /// If the cluster supports ComputeDomains and a node is in a clique.
    #[default]
    Auto,
    /// Never: then NVLink between nodes cannot be measured.
    Never,
    /// Always: a cluster without ComputeDomains is an error.
    Always,
}

/// How `mpirun` in a pod reaches the other pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RankLaunchMode {
    /// It does not: tools that run on several nodes are left out.
    #[default]
    None,
    /// By the names of the nodes: pods use the host network, and ssh runs there.
    Names,
    /// By the addresses of the pods: the image runs sshd.
    Addresses,
}

/// When images are pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// For every pod.
    Always,
    /// If the image is missing on the node.
    IfNotPresent,
    /// Never.
    Never,
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Toleration {
    /// The key of the taint; if absent, every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The value of the taint; if absent, every value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The effect of the taint; if absent, every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

impl Toleration {
    /// A toleration of every taint with this key and effect.
    fn for_taint(key: &str, effect: &str) -> Self {
        Self { key: Some(key.to_owned()), value: None, effect: Some(effect.to_owned()) }
    }

    /// Whether it tolerates this taint.
    fn tolerates(&self, taint: &Taint) -> bool {
        let is = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|it| it == has);
        is(&self.key, &taint.key)
            && is(&self.value, &taint.value)
            && is(&self.effect, &taint.effect)
    }
}

/// How fabricgate uses pods to reach nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubernetesLauncher {
    /// The kubeconfig of the account that creates pods; if absent, that of the environment or the
    /// pod's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The namespace of the pods.
    pub namespace: String,
    /// The image, which contains fabricgate and the tools.
    pub image: String,
    /// The secret for pulling the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret: Option<String>,
    /// When the image is pulled; if absent, the default of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// The service account of the pods. They get no token for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Pods use the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// How pods request GPUs.
    pub gpus: GpuRequestMode,
    /// The resource name of the device plugin.
    pub resource: String,
    /// The class of the claimed devices.
    pub device_class: String,
    /// GPUs of a node if the claims do not report a number; if absent, as many as the node offers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<u32>,
    /// Further resources that a pod requests, such as RDMA devices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rdma: BTreeMap<String, u32>,
    /// Whether fabricgate creates ComputeDomains.
    pub compute_domain: ComputeDomainMode,
    /// How the ranks of tools that run on several nodes start.
    pub ranks: RankLaunchMode,
    /// Environment variables of the pods; `{node}` in a value is the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Tolerations in addition to those of fabricgate's taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Measure cordoned nodes too.
    #[serde(default)]
    pub cordoned: bool,
    /// The container is privileged.
    #[serde(default)]
    pub privileged: bool,
    /// Capabilities of the container. RDMA pins memory, which needs IPC_LOCK.
    pub capabilities: Vec<String>,
    /// The size of `/dev/shm`, in Kubernetes notation; NCCL needs more than the 64 MiB of container
    /// runtimes.
    pub shm: String,
    /// The priority class. A preempting one would end other users' jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// The policy for busy nodes.
    pub busy: BusyNodePolicy,
    /// The maximum number of seconds to wait for busy nodes.
    pub wait_s: u64,
    /// The maximum number of seconds until a pod runs, including pulling its image.
    pub start_s: u64,
    /// The maximum number of seconds that a pod lives; if absent, derived from the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<u64>,
}

impl Default for KubernetesLauncher {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: "fabricgate".to_owned(),
            image: String::new(),
            pull_secret: None,
            pull_policy: None,
            service_account: None,
            host_network: false,
            gpus: GpuRequestMode::default(),
            resource: "nvidia.com/gpu".to_owned(),
            device_class: "gpu.nvidia.com".to_owned(),
            gpus_per_node: None,
            rdma: BTreeMap::new(),
            compute_domain: ComputeDomainMode::default(),
            ranks: RankLaunchMode::default(),
            env: BTreeMap::new(),
            tolerations: Vec::new(),
            cordoned: false,
            privileged: false,
            capabilities: vec!["IPC_LOCK".to_owned()],
            shm: "16Gi".to_owned(),
            priority_class: None,
            busy: BusyNodePolicy::default(),
            wait_s: 3_600,
            start_s: 600,
            deadline_s: None,
        }
    }
}

impl KubernetesLauncher {
    /// The tolerations of the pods: fabricgate's taints and those of the site.
    pub fn all_tolerations(&self) -> Vec<Toleration> {
        let mut all = vec![
            Toleration::for_taint(DEGRADED, NO_SCHEDULE),
            Toleration::for_taint(UNVERIFIED, NO_SCHEDULE),
        ];
        if self.cordoned {
            all.push(Toleration::for_taint(UNSCHEDULABLE, NO_SCHEDULE));
        }
        all.extend(self.tolerations.iter().cloned());
        all
    }

    /// The first of these taints that would keep fabricgate's pods away.
    pub fn repelled_by<'t>(&self, taints: &'t [Taint]) -> Option<&'t Taint> {
        let tolerated = self.all_tolerations();
        taints.iter().find(|taint| {
            let repels = taint.effect == NO_SCHEDULE || taint.effect == "NoExecute";
            repels && !tolerated.iter().any(|it| it.tolerates(taint))
        })
    }

    /// The local command that runs `argv` in a pod: a process that forwards standard input and
    /// output.
    pub fn attach_argv(&self, here: &str, pod: &str, argv: &[String]) -> Vec<String> {
        let mut words: Vec<String> =
            [here, "node", "attach", "--namespace", &self.namespace, "--pod", pod]
                .map(str::to_owned)
                .to_vec();
        words.extend(["--container".to_owned(), CONTAINER.to_owned()]);
        if let Some(path) = &self.kubeconfig {
            words.extend(["--kubeconfig".to_owned(), path.display().to_string()]);
        }
        if let Some(context) = &self.context {
            words.extend(["--context".to_owned(), context.clone()]);
        }
        words.push("--".to_owned());
        words.extend_from_slice(argv);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() }
    }

    #[test]
    fn pods_tolerate_only_taints_of_fabricgate() {
        let kubernetes = KubernetesLauncher::default();
        let ours = [
            taint(DEGRADED, "nvlink", NO_SCHEDULE),
            taint(UNVERIFIED, "", NO_SCHEDULE),
            taint("site/soft", "", "PreferNoSchedule"),
        ];
        assert_eq!(kubernetes.repelled_by(&ours), None);
        for theirs in [
            taint(UNSCHEDULABLE, "", NO_SCHEDULE),
            taint(DEGRADED, "nvlink", "NoExecute"),
            taint("nvidia.com/gpu", "", NO_SCHEDULE),
        ] {
            let taints = [ours[0].clone(), theirs.clone()];
            assert_eq!(kubernetes.repelled_by(&taints), Some(&theirs), "{theirs:?}");
        }
    }

    #[test]
    fn a_configured_toleration_is_as_narrow_as_written() {
        let gpu =
            Toleration { value: Some("present".to_owned()), ..Toleration::for_taint("gpu", "") };
        let gpu = Toleration { effect: None, ..gpu };
        let kubernetes = KubernetesLauncher {
            tolerations: vec![gpu],
            cordoned: true,
            ..KubernetesLauncher::default()
        };
        let fine = [taint("gpu", "present", "NoExecute"), taint(UNSCHEDULABLE, "", NO_SCHEDULE)];
        assert_eq!(kubernetes.repelled_by(&fine), None);
        assert!(kubernetes.repelled_by(&[taint("gpu", "reserved", NO_SCHEDULE)]).is_some());
    }

    #[test]
    fn a_worker_is_reached_through_node_attach() {
        let kubernetes = KubernetesLauncher {
            kubeconfig: Some("/etc/prober".into()),
            context: Some("lab".to_owned()),
            ..KubernetesLauncher::default()
        };
        let argv = ["fabricgate", "node", "worker"].map(str::to_owned);
        assert_eq!(
            kubernetes.attach_argv("/bin/fg", "p", &argv).join(" "),
            "/bin/fg node attach --namespace fabricgate --pod p --container worker \
             --kubeconfig /etc/prober --context lab -- fabricgate node worker"
        );
    }
}
