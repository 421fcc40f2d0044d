//! Nodes reached through pods: how a site wants them, and the words that start
//! a worker in one.
//!
//! Pure. What is sent to the API server is in [`manifest`]; which pods there are,
//! and whether they run, is `gate::pods`' to find out.

pub mod manifest;
pub mod pod_ranks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::slurm::BusyNodePolicy;
use model::kubernetes_node::{DEGRADED, NO_SCHEDULE, Taint, UNVERIFIED};

/// The container in which workers run; a pod has no other of ours.
pub const CONTAINER: &str = "worker";

/// The taint of a cordoned node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// How GPUs are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuRequestMode {
    /// As an extended resource: the device plugin's.
    #[default]
    DevicePlugin,
    /// With a claim of dynamic resource allocation, for all devices of a class.
    Claim,
}

/// Whether a ComputeDomain joins the pods of a claimed domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeDomainMode {
    /// Where the cluster has them and one of the nodes is in a clique.
    #[default]
    Auto,
    /// Never: NVLink between nodes cannot be measured then.
    Never,
    /// Always: a cluster without them is an error.
    Always,
}

/// How `mpirun` in a pod reaches the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RankLaunchMode {
    /// It does not: tools across nodes are left out.
    #[default]
    None,
    /// By the names of the nodes: pods on the host's network, and ssh there.
    Names,
    /// By the addresses of the pods: an image that runs sshd.
    Addresses,
}

/// When images are pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Each time.
    Always,
    /// Where the node does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// A toleration, as a pod has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key; without one every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its value; without one every value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its effect; without one every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

impl Toleration {
    /// Of every taint with this key and effect.
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

/// How pods are used to reach nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubernetesLauncher {
    /// The kubeconfig of the account that creates pods; without it, the environment's or
    /// the pod's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Where the pods are made.
    pub namespace: String,
    /// The image, with fabricgate and the tools in it.
    pub image: String,
    /// The secret with which it is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret: Option<String>,
    /// When it is pulled, where not as Kubernetes does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// The account of the pods. They are given no token of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Pods have the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// How GPUs are asked for.
    pub gpus: GpuRequestMode,
    /// The resource of the device plugin.
    pub resource: String,
    /// The class of devices that is claimed.
    pub device_class: String,
    /// GPUs of a node, where the claims do not say; where nobody does, as many as
    /// the node offers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<u32>,
    /// Further resources that a pod asks for, such as RDMA devices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rdma: BTreeMap<String, u32>,
    /// Whether ComputeDomains are made.
    pub compute_domain: ComputeDomainMode,
    /// How ranks of tools that run on several nodes are started.
    pub ranks: RankLaunchMode,
    /// Variables of the pods; `{node}` in a value is the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What is tolerated besides our own taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Measure cordoned nodes too.
    #[serde(default)]
    pub cordoned: bool,
    /// The container is privileged.
    #[serde(default)]
    pub privileged: bool,
    /// Capabilities that it is given. RDMA pins memory, which needs IPC_LOCK.
    pub capabilities: Vec<String>,
    /// The size of `/dev/shm`, as Kubernetes writes sizes; NCCL needs more than
    /// the 64 MiB of container runtimes.
    pub shm: String,
    /// The priority class. One that preempts would end others' work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// What is done about busy nodes.
    pub busy: BusyNodePolicy,
    /// For how many seconds at most they are waited for.
    pub wait_s: u64,
    /// How many seconds a pod may take to run, its image included.
    pub start_s: u64,
    /// How many seconds a pod may live; where absent, it follows from what is
    /// planned.
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

    /// The first of these taints that would keep our pods away.
    pub fn repelled_by<'t>(&self, taints: &'t [Taint]) -> Option<&'t Taint> {
        let tolerated = self.all_tolerations();
        taints.iter().find(|taint| {
            let repels = taint.effect == NO_SCHEDULE || taint.effect == "NoExecute";
            repels && !tolerated.iter().any(|it| it.tolerates(taint))
        })
    }

    /// What to start here so that `argv` runs in a pod: a process that passes on
    /// what is said on either side.
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
    fn our_pods_tolerate_our_taints_and_nobody_elses() {
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
    fn what_a_site_tolerates_is_as_narrow_as_it_says() {
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
    fn a_worker_is_reached_through_a_process_of_ours() {
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
