//! The parts of a node that only Kubernetes has: taints, a condition, and fabricgate's labels and
//! annotations.
//!
//! Plain values, as the API server returned them. `interop` fixes the names: fabricgate writes
//! only under its own prefix.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prefix of every key that fabricgate writes on a node.
pub const FABRICGATE_PREFIX: &str = "fabricgate.io/";
/// The taint of a degraded node; its value is the class of the finding. Effect `NoSchedule` is a
/// drain, `PreferNoSchedule` a mark.
pub const DEGRADED: &str = "fabricgate.io/degraded";
/// The taint with which a node joins: it has not been verified yet.
pub const UNVERIFIED: &str = "fabricgate.io/unverified";
/// The annotation with the reason of fabricgate's drain, in the format of `act::reason`.
pub const REASON: &str = "fabricgate.io/reason";
/// The annotation that names the gate behind the drain: another gate's journal may have the same
/// run, class and epoch.
pub const GATE: &str = "fabricgate.io/gate";
/// The annotation with the one GPU that an earlier version took out of service instead of the
/// node. Read, and no longer written.
pub const DEVICE: &str = "fabricgate.io/device";
/// The label with the domain in which a node was verified.
pub const VERIFIED_DOMAIN: &str = "fabricgate.io/verified-domain";
/// The label with the verdict: `pass`, `degraded`, `failed`.
pub const VERDICT: &str = "fabricgate.io/verdict";
/// The annotation with the certified content, as JSON.
pub const CERTIFICATE: &str = "fabricgate.io/certificate";
/// The label with the run id, on every object that a run created.
pub const RUN: &str = "fabricgate.io/run";
/// The type of fabricgate's node condition.
pub const CONDITION: &str = "GpuFabricVerified";
/// The effect that keeps pods without a matching toleration away.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// The effect that makes the scheduler prefer other nodes.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// Everything the cluster reports about a node, except its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KubernetesNode {
    /// The object's uid: a re-created node of the same name has another one.
    pub uid: String,
    /// The object's `metadata.resourceVersion` when it was read.
    pub version: String,
    /// All taints, those of other clients included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`: another client cordoned the node. Fabricgate never does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Labels with fabricgate's prefix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations with fabricgate's prefix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Fabricgate's condition, where it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<FabricNodeCondition>,
    /// Marks by which another client asks to leave the node alone or reserves it: each as text,
    /// with the label, annotation or taint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_alone: Vec<String>,
    /// The gangs with pods on the node: jobs that stop as a whole when one of their nodes leaves.
    /// Empty where pods were not read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub gangs: BTreeSet<String>,
    /// Whether Slinky runs slurmd on the node, so that Slurm manages it as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slinky: bool,
}

/// A taint of a node.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Taint {
    /// Key of the taint.
    pub key: String,
    /// Its value; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Its effect. Key and effect identify a taint.
    pub effect: String,
}

/// The status of fabricgate's node condition.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct FabricNodeCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A machine-readable reason in CamelCase.
    pub reason: String,
    /// The message, one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A change of a node, except its state. Unnamed entries stay.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(default)]
pub struct KubernetesNodeUpdate {
    /// Changes of fabricgate's taints by key and effect; an edit without a value removes the
    /// taint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintEdit>,
    /// Changes of fabricgate's labels; `None` removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Changes of fabricgate's annotations; `None` removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, Option<String>>,
    /// The new condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<FabricNodeCondition>,
}

/// One GPU that an earlier version took out of service while its node stayed in service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GpuCordon {
    /// The method that keeps pods off the GPU.
    pub way: GpuCordonMethod,
    /// Its index on the node, for display.
    pub index: u32,
    /// Its UUID, the key of the device plugin.
    pub uuid: String,
}

/// How one GPU was kept from new pods.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum GpuCordonMethod {
    /// A `DeviceTaintRule` of dynamic resource allocation.
    TaintRule,
    /// HAMi's annotation `hami.io/device-cordon`.
    Hami,
}

impl GpuCordonMethod {
    /// The name in policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TaintRule => "taint-rule",
            Self::Hami => "hami",
        }
    }
}

impl GpuCordon {
    /// Parses the value of the annotation [`DEVICE`]: method, index and UUID. Other clients may
    /// write it, so the content is not trusted.
    pub fn from_annotation(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let way = match parts.next()? {
            "taint-rule" => GpuCordonMethod::TaintRule,
            "hami" => GpuCordonMethod::Hami,
            _ => return None,
        };
        let (index, uuid) = (parts.next()?.parse().ok()?, parts.next()?);
        is_uuid(uuid).then(|| Self { way, index, uuid: uuid.to_owned() })
    }
}

/// Whether this is a valid GPU UUID and therefore safe as part of a name.
pub fn is_uuid(text: &str) -> bool {
    const LONGEST: usize = 64;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.starts_with("GPU-")
        && text.len() <= LONGEST
        && text.chars().all(fits)
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

impl KubernetesNode {
    /// The GPU that the annotation [`DEVICE`] names as taken out of service.
    pub fn cordoned_gpu(&self) -> Option<GpuCordon> {
        self.annotations.get(DEVICE).and_then(|text| GpuCordon::from_annotation(text))
    }
}

/// A taint to set or remove.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct TaintEdit {
    /// Key of the taint.
    pub key: String,
    /// Effect of the taint.
    pub effect: String,
    /// Its value (which may be empty); `None` removes the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}
