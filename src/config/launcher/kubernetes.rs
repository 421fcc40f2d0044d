//! `[launcher.kubernetes]` of the configuration: the pods that measure nodes.
//!
//! Checks the text of the section and opens nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::launcher::parse_name;
use crate::config::{ConfigMistake, parse_duration};
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
    #[schemars(with = "Option<String>")]
    context: Option<Spanned<String>>,
    /// The namespace of all created objects. Default: `fabricgate`.
    #[schemars(with = "Option<String>")]
    namespace: Option<Spanned<String>>,
    /// The image, which must contain fabricgate and the tools that probes run. Required.
    #[schemars(with = "Option<String>")]
    image: Option<Spanned<String>>,
    /// The image pull secret. Default: none.
    #[schemars(with = "Option<String>")]
    pull_secret: Option<Spanned<String>>,
    /// The image pull policy. Default: as Kubernetes does.
    pull_policy: Option<PullPolicy>,
    /// The service account of the pods; its token is not mounted. Default: the namespace's.
    #[schemars(with = "Option<String>")]
    service_account: Option<Spanned<String>>,
    /// Whether pods use the node's network, and so its RDMA devices. Default: false.
    host_network: bool,
    /// How GPUs are requested. Default: `device-plugin`.
    gpus: GpuRequestMode,
    /// The device plugin's resource name for GPUs. Default: `nvidia.com/gpu`.
    #[schemars(with = "Option<String>")]
    resource: Option<Spanned<String>>,
    /// The device class of the claims. Default: `gpu.nvidia.com`.
    #[schemars(with = "Option<String>")]
    device_class: Option<Spanned<String>>,
    /// GPUs of a node without a claimed number, 0 (none) to 1024. Default: as many as it offers.
    #[schemars(with = "Option<u32>")]
    gpus_per_node: Option<Spanned<u32>>,
    /// Further resources that every pod requests, with their number, 1 to 1024. Default: none.
    #[schemars(with = "BTreeMap<String, u32>")]
    rdma: BTreeMap<Spanned<String>, Spanned<u32>>,
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
    #[schemars(with = "Option<Vec<String>>")]
    capabilities: Option<Vec<Spanned<String>>>,
    /// The size of `/dev/shm`, as a Kubernetes quantity. Default: `16Gi`.
    #[schemars(with = "Option<String>")]
    shm: Option<Spanned<String>>,
    /// The priority class, preferably one with `preemptionPolicy: Never`. Default: the cluster's.
    #[schemars(with = "Option<String>")]
    priority_class: Option<Spanned<String>>,
    /// How to treat nodes with GPU pods; not `reserve`. Default: `skip`.
    #[schemars(with = "Option<BusyNodePolicy>")]
    busy: Option<Spanned<BusyNodePolicy>>,
    /// Seconds to wait for busy nodes. Default: 3600.
    #[schemars(with = "Option<f64>")]
    wait_s: Option<Spanned<f64>>,
    /// Seconds until a pod must run, including the image pull, from 1. Default: 600.
    #[schemars(with = "Option<f64>")]
    start_s: Option<Spanned<f64>>,
    /// Longest lifetime of a pod in seconds, from 1. Default: twice the planned time, at least 10
    /// minutes.
    #[schemars(with = "Option<f64>")]
    deadline_s: Option<Spanned<f64>>,
}

impl LauncherKubernetesSection {
    /// The settings of pods; the section itself is at `at`.
    pub(crate) fn into_kubernetes(
        self,
        at: usize,
        base: &Path,
    ) -> Result<KubernetesLauncher, ConfigMistake> {
        let usual = KubernetesLauncher::default();
        let Some(image) = parse_name("image", self.image.as_ref())? else {
            let message = "launcher of kind \"kubernetes\": expected image = \"REGISTRY/NAME:TAG\" \
                           in [launcher.kubernetes], with fabricgate and the tools in it";
            return Err((at, message.to_owned()));
        };
        for (key, count) in &self.rdma {
            check_resource("rdma", key)?;
            check_count(key.get_ref(), count)?;
        }
        if let Some(key) = &self.resource {
            check_resource("resource", key)?;
        }
        for key in self.env.keys() {
            check_variable(key)?;
        }
        for toleration in &self.tolerations {
            check_toleration(toleration)?;
        }
        for capability in self.capabilities.iter().flatten() {
            parse_name("capabilities", Some(capability))?;
        }
        if let Some(gpus) = &self.gpus_per_node
            && *gpus.get_ref() != 0
        {
            check_count("gpus_per_node", gpus)?;
        }
        if let Some(busy) = &self.busy
            && *busy.get_ref() == BusyNodePolicy::Reserve
        {
            let message = "busy \"reserve\", expected \"skip\" or \"wait\": Kubernetes has no \
                           reservations";
            return Err((busy.span().start, message.to_owned()));
        }
        let some_seconds = |key: &str, value: &Option<Spanned<f64>>| match value {
            None => Ok(None),
            Some(value) => match parse_duration(key, value)?.as_secs() {
                0 => Err((value.span().start, format!("{key} 0, expected 1 second or more"))),
                seconds => Ok(Some(seconds)),
            },
        };
        Ok(KubernetesLauncher {
            kubeconfig: self.kubeconfig.map(|file| base.join(file)),
            context: parse_name("context", self.context.as_ref())?,
            namespace: parse_label("namespace", self.namespace.as_ref())?
                .unwrap_or(usual.namespace),
            image,
            pull_secret: parse_dns_name("pull_secret", self.pull_secret.as_ref())?,
            pull_policy: self.pull_policy,
            service_account: parse_dns_name("service_account", self.service_account.as_ref())?,
            host_network: self.host_network,
            gpus: self.gpus,
            resource: self.resource.map_or(usual.resource, Spanned::into_inner),
            device_class: parse_dns_name("device_class", self.device_class.as_ref())?
                .unwrap_or(usual.device_class),
            gpus_per_node: self.gpus_per_node.map(Spanned::into_inner),
            rdma: strip_spans(self.rdma, Spanned::into_inner),
            compute_domain: self.compute_domain,
            ranks: self.ranks,
            env: strip_spans(self.env, |value| value),
            tolerations: self.tolerations.into_iter().map(Spanned::into_inner).collect(),
            cordoned: self.cordoned,
            privileged: self.privileged,
            capabilities: match self.capabilities {
                Some(all) => all.into_iter().map(Spanned::into_inner).collect(),
                None => usual.capabilities,
            },
            shm: parse_quantity("shm", self.shm.as_ref())?.unwrap_or(usual.shm),
            priority_class: parse_dns_name("priority_class", self.priority_class.as_ref())?,
            busy: self.busy.map_or(usual.busy, Spanned::into_inner),
            wait_s: match &self.wait_s {
                Some(seconds) => parse_duration("wait_s", seconds)?.as_secs(),
                None => usual.wait_s,
            },
            start_s: some_seconds("start_s", &self.start_s)?.unwrap_or(usual.start_s),
            deadline_s: some_seconds("deadline_s", &self.deadline_s)?,
        })
    }
}

fn strip_spans<V, W>(map: BTreeMap<Spanned<String>, V>, value: fn(V) -> W) -> BTreeMap<String, W> {
    map.into_iter().map(|(key, it)| (key.into_inner(), value(it))).collect()
}

fn check_count(key: &str, count: &Spanned<u32>) -> Result<(), ConfigMistake> {
    if (1..=MAX_RESOURCE_COUNT).contains(count.get_ref()) {
        return Ok(());
    }
    Err((
        count.span().start,
        format!("{key} {}, expected 1 to {MAX_RESOURCE_COUNT}", count.get_ref()),
    ))
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
fn parse_label(
    key: &str,
    value: Option<&Spanned<String>>,
) -> Result<Option<String>, ConfigMistake> {
    parse_checked(key, value, is_label, "lower-case letters, digits and dashes, 63 at most")
}

/// The name of most objects (RFC 1123 subdomain).
fn parse_dns_name(
    key: &str,
    value: Option<&Spanned<String>>,
) -> Result<Option<String>, ConfigMistake> {
    let is_name = |text: &str| text.len() <= 253 && text.split('.').all(is_label);
    parse_checked(
        key,
        value,
        is_name,
        "the name of an object: lower-case letters, digits, dashes, dots",
    )
}

/// A Kubernetes quantity: a number with an optional suffix.
fn parse_quantity(
    key: &str,
    value: Option<&Spanned<String>>,
) -> Result<Option<String>, ConfigMistake> {
    const SUFFIXES: &[&str] = &["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    let is_size = |text: &str| {
        let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
        digits.len() < text.len() && SUFFIXES.contains(&digits)
    };
    parse_checked(key, value, is_size, "a size such as \"16Gi\"")
}

fn parse_checked(
    key: &str,
    value: Option<&Spanned<String>>,
    is_good: impl Fn(&str) -> bool,
    expected: &str,
) -> Result<Option<String>, ConfigMistake> {
    let Some(value) = value else { return Ok(None) };
    let text = value.get_ref();
    if is_good(text) {
        return Ok(Some(text.clone()));
    }
    Err((value.span().start, format!("{key} {text:?}, expected {expected}")))
}

/// The name of an extended resource: a domain, a slash, a name.
fn check_resource(key: &str, value: &Spanned<String>) -> Result<(), ConfigMistake> {
    let text = value.get_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_resource = text.split_once('/').is_some_and(|(domain, name)| {
        domain.split('.').all(is_label) && !name.is_empty() && name.chars().all(plain)
    });
    if is_resource {
        return Ok(());
    }
    let message = format!("{key} {text:?}, expected a resource such as \"nvidia.com/gpu\"");
    Err((value.span().start, message))
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
