//! `[launcher.kubernetes]` of the configuration: the pods that measure nodes.
//!
//! Checks the text of the section and opens nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{BoundedCount, BoundedNumber, OneWord, Seconds, read_checked};
use control::launch::kubernetes::{
    ComputeDomainMode, GpuRequestMode, KubernetesLauncher, PullPolicy, RankLaunchMode, Toleration,
};
use control::launch::slurm::BusyNodePolicy;

/// More of one resource than any node has.
const MAX_RESOURCE_COUNT: u32 = 1_024;

/// `[launcher.kubernetes]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LauncherKubernetesSection {
    /// The kubeconfig of the account that creates pods. Default: the environment's, or the pod's
    /// service account.
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig. Default: its current context.
    context: Option<OneWord>,
    /// The namespace of all created objects. Default: `fabricgate`.
    #[serde(deserialize_with = "read_label")]
    namespace: Option<String>,
    /// The image, which must contain fabricgate and the tools that probes run. Required.
    image: Option<OneWord>,
    /// The image pull secret. Default: none.
    #[serde(deserialize_with = "read_dns_name")]
    pull_secret: Option<String>,
    /// The image pull policy. Default: as Kubernetes does.
    pull_policy: Option<PullPolicy>,
    /// The service account of the pods; its token is not mounted. Default: the namespace's.
    #[serde(deserialize_with = "read_dns_name")]
    service_account: Option<String>,
    /// Whether pods use the node's network, and so its RDMA devices. Default: false.
    host_network: bool,
    /// How GPUs are requested. Default: `device-plugin`.
    gpus: GpuRequestMode,
    /// The device plugin's resource name for GPUs. Default: `nvidia.com/gpu`.
    #[serde(deserialize_with = "read_resource")]
    resource: Option<String>,
    /// The device class of the claims. Default: `gpu.nvidia.com`.
    #[serde(deserialize_with = "read_dns_name")]
    device_class: Option<String>,
    /// GPUs of a node without a claimed number, 0 (none) to 1024. Default: as many as it offers.
    gpus_per_node: Option<BoundedCount<0, MAX_RESOURCE_COUNT>>,
    /// Further resources that every pod requests, with their number, 1 to 1024. Default: none.
    #[schemars(with = "BTreeMap<String, BoundedCount<1, MAX_RESOURCE_COUNT>>")]
    rdma: BTreeMap<Spanned<String>, BoundedCount<1, MAX_RESOURCE_COUNT>>,
    /// Whether to create ComputeDomains. Default: `auto`.
    compute_domain: ComputeDomainMode,
    /// How `mpirun` reaches the other pods. Default: `none`.
    ranks: RankLaunchMode,
    /// Environment variables of the pods; `{node}` in a value is replaced by the node's name. They
    /// are stored with the run, so they must not contain secrets. Default: none.
    #[schemars(with = "BTreeMap<String, String>")]
    env: BTreeMap<Spanned<String>, String>,
    /// Tolerations in addition to fabricgate's own taints. Default: none.
    #[schemars(with = "Vec<Toleration>")]
    tolerations: Vec<Spanned<Toleration>>,
    /// Whether to measure cordoned nodes as well. Default: false.
    cordoned: bool,
    /// Whether the container is privileged. Default: false.
    privileged: bool,
    /// Its capabilities. Default: `["IPC_LOCK"]`, because RDMA pins memory.
    capabilities: Option<Vec<OneWord>>,
    /// The size of `/dev/shm`, as a Kubernetes quantity. Default: `16Gi`.
    #[serde(deserialize_with = "read_quantity")]
    shm: Option<String>,
    /// The priority class, preferably one with `preemptionPolicy: Never`. Default: the cluster's.
    #[serde(deserialize_with = "read_dns_name")]
    priority_class: Option<String>,
    /// How to treat nodes with GPU pods; not `reserve`. Default: `skip`.
    #[serde(deserialize_with = "read_busy")]
    busy: Option<BusyNodePolicy>,
    /// Seconds to wait for busy nodes. Default: 3600.
    wait_s: Option<Seconds>,
    /// Seconds until a pod must run, including the image pull, from 1. Default: 600.
    start_s: Option<BoundedNumber<1_000, 86_400_000>>,
    /// Longest lifetime of a pod in seconds, from 1. Default: twice the planned time, at least 10
    /// minutes.
    deadline_s: Option<BoundedNumber<1_000, 86_400_000>>,
}

impl LauncherKubernetesSection {
    /// The settings of pods; the section itself is at `at`.
    pub(crate) fn into_kubernetes(
        self,
        at: usize,
        base: &Path,
    ) -> Result<KubernetesLauncher, ConfigMistake> {
        let usual = KubernetesLauncher::default();
        let Some(image) = self.image else {
            let message = "launcher of kind \"kubernetes\": expected image = \"REGISTRY/NAME:TAG\" \
                           in [launcher.kubernetes], with fabricgate and the tools in it";
            return Err((at, message.to_owned()));
        };
        for key in self.rdma.keys() {
            check_resource("rdma", key)?;
        }
        for key in self.env.keys() {
            check_variable(key)?;
        }
        for toleration in &self.tolerations {
            check_toleration(toleration)?;
        }
        let words = |all: Vec<OneWord>| all.into_iter().map(OneWord::into_text).collect();
        let whole = |seconds: BoundedNumber<1_000, 86_400_000>| seconds.duration().as_secs();
        Ok(KubernetesLauncher {
            kubeconfig: self.kubeconfig.map(|file| base.join(file)),
            context: self.context.map(OneWord::into_text),
            namespace: self.namespace.unwrap_or(usual.namespace),
            image: image.into_text(),
            pull_secret: self.pull_secret,
            pull_policy: self.pull_policy,
            service_account: self.service_account,
            host_network: self.host_network,
            gpus: self.gpus,
            resource: self.resource.unwrap_or(usual.resource),
            device_class: self.device_class.unwrap_or(usual.device_class),
            gpus_per_node: self.gpus_per_node.map(BoundedCount::get),
            rdma: strip_spans(self.rdma, BoundedCount::get),
            compute_domain: self.compute_domain,
            ranks: self.ranks,
            env: strip_spans(self.env, |value| value),
            tolerations: self.tolerations.into_iter().map(Spanned::into_inner).collect(),
            cordoned: self.cordoned,
            privileged: self.privileged,
            capabilities: self.capabilities.map_or(usual.capabilities, words),
            shm: self.shm.unwrap_or(usual.shm),
            priority_class: self.priority_class,
            busy: self.busy.unwrap_or(usual.busy),
            wait_s: self.wait_s.map_or(usual.wait_s, |it| it.duration().as_secs()),
            start_s: self.start_s.map_or(usual.start_s, whole),
            deadline_s: self.deadline_s.map(whole),
        })
    }
}

fn strip_spans<V, W>(map: BTreeMap<Spanned<String>, V>, value: fn(V) -> W) -> BTreeMap<String, W> {
    map.into_iter().map(|(key, it)| (key.into_inner(), value(it))).collect()
}

/// Lower-case letters, digits and dashes, without a dash at either end.
fn is_label(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= 63
        && text.chars().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The name of a namespace (RFC 1123 label).
fn read_label<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let expected = "lower-case letters, digits and dashes, 63 at most";
    read_checked(from, is_label, expected).map(Some)
}

/// The name of most objects (RFC 1123 subdomain).
fn read_dns_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let is_name = |text: &str| text.len() <= 253 && text.split('.').all(is_label);
    let expected = "the name of an object: lower-case letters, digits, dashes, dots";
    read_checked(from, is_name, expected).map(Some)
}

/// A size, as Kubernetes writes it: a number, and an optional suffix.
fn read_quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    const SUFFIXES: &[&str] = &["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    let is_size = |text: &str| {
        let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
        digits.len() < text.len() && SUFFIXES.contains(&digits)
    };
    read_checked(from, is_size, "a size such as \"16Gi\"").map(Some)
}

fn read_busy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BusyNodePolicy>, D::Error> {
    match BusyNodePolicy::deserialize(from)? {
        BusyNodePolicy::Reserve => Err(D::Error::custom(
            "\"reserve\", expected \"skip\" or \"wait\": Kubernetes has no reservations",
        )),
        busy => Ok(Some(busy)),
    }
}

/// An example of an extended resource, for messages.
const RESOURCE: &str = "a resource such as \"nvidia.com/gpu\"";

fn read_resource<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    read_checked(from, is_resource, RESOURCE).map(Some)
}

/// The name of an extended resource: a domain, a slash, a name.
fn is_resource(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.split_once('/').is_some_and(|(domain, name)| {
        domain.split('.').all(is_label) && !name.is_empty() && name.chars().all(plain)
    })
}

fn check_resource(key: &str, value: &Spanned<String>) -> Result<(), ConfigMistake> {
    let text = value.get_ref();
    match is_resource(text) {
        true => Ok(()),
        false => Err((value.span().start, format!("{key} {text:?}, expected {RESOURCE}"))),
    }
}

/// The name of an environment variable, in POSIX form.
fn check_variable(value: &Spanned<String>) -> Result<(), ConfigMistake> {
    let text = value.get_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.chars().all(plain) && text.chars().next().is_some_and(|c| !c.is_ascii_digit()) {
        return Ok(());
    }
    Err((value.span().start, format!("env {text:?}, expected the name of a variable")))
}

/// Checks that a toleration names a taint, so that none tolerates everything by mistake.
fn check_toleration(toleration: &Spanned<Toleration>) -> Result<(), ConfigMistake> {
    const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let (at, it) = (toleration.span().start, toleration.get_ref());
    if it.key.is_none() && it.value.is_some() {
        let message = "tolerations: a value without a key, expected key = \"...\" with it";
        return Err((at, message.to_owned()));
    }
    if it.key.as_deref() == Some("") {
        let message = "tolerations: key is empty; without a key every taint is tolerated";
        return Err((at, message.to_owned()));
    }
    if let Some(effect) = it.effect.as_deref()
        && !EFFECTS.contains(&effect)
    {
        let message =
            format!("tolerations: effect {effect:?}, expected one of: {}", EFFECTS.join(", "));
        return Err((at, message));
    }
    Ok(())
}
