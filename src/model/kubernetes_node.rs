//! What only a Kubernetes cluster says of a node, and what only there can be
//! written: taints, a condition, labels and annotations of ours.
//!
//! Plain values, as they were told. The names are `interop`'s: nobody else's
//! prefix is ever written.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The prefix of everything of ours on a node.
pub const FABRICGATE_PREFIX: &str = "fabricgate.io/";
/// The taint of a node that is below what it must deliver; its value is the
/// class of the finding. `NoSchedule` is a drain, `PreferNoSchedule` a mark.
pub const DEGRADED: &str = "fabricgate.io/degraded";
/// The taint with which a node joins: nothing is known of it yet.
pub const UNVERIFIED: &str = "fabricgate.io/unverified";
/// The annotation with the reason of our drain, in the words of `act::reason`.
pub const REASON: &str = "fabricgate.io/reason";
/// The annotation beside it that says which gate drained: another gate's journal
/// may have the same run, class and turn.
pub const GATE: &str = "fabricgate.io/gate";
/// The annotation with the one GPU that an earlier version took out instead of the node,
/// as [`DeviceMark`] is written. Read, and not written any more.
pub const DEVICE: &str = "fabricgate.io/device";
/// The label with the domain in which a node was verified.
pub const VERIFIED_DOMAIN: &str = "fabricgate.io/verified-domain";
/// The label with the verdict: `pass`, `degraded`, `failed`.
pub const VERDICT: &str = "fabricgate.io/verdict";
/// The annotation with what is certified, as JSON.
pub const CERTIFICATE: &str = "fabricgate.io/certificate";
/// The label of everything that a run created: its id.
pub const RUN: &str = "fabricgate.io/run";
/// The type of our condition.
pub const CONDITION: &str = "GpuFabricVerified";
/// Keeps new pods away that do not tolerate it.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// Asks the scheduler to look elsewhere first.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// What the cluster says of a node, besides its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KubernetesNode {
    /// The object's uid: another node of the same name has another.
    pub uid: String,
    /// The object's version when it was read (`metadata.resourceVersion`).
    pub version: String,
    /// Every taint, whoever wrote it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`: somebody cordoned it. We never do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Labels with our prefix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations with our prefix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Our condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<FabricNodeCondition>,
    /// Marks with which somebody asks to leave it alone, or is at work on it:
    /// each in words, with the label, annotation or taint that says so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_alone: Vec<String>,
    /// The gangs whose pods run on it: jobs that stand still as a whole when one
    /// of their nodes goes. Empty where pods were not read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub gangs: BTreeSet<String>,
    /// Slinky runs Slurm's daemon on it, so Slurm has a say too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slinky: bool,
}

/// A taint.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Its effect. A taint is the same where key and effect are.
    pub effect: String,
}

/// A condition of ours.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct FabricNodeCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word for programs, CamelCase.
    pub reason: String,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What is written on a node, besides its state. What is not named stays.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(default)]
pub struct KubernetesNodeUpdate {
    /// Taints of ours by key and effect; without a value the taint is taken away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintEdit>,
    /// Labels of ours; `None` takes one away.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations of ours; `None` takes one away.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, Option<String>>,
    /// Our condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<FabricNodeCondition>,
}

/// One GPU of a node that an earlier version took out while the node stayed in service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GpuCordon {
    /// How.
    pub way: GpuCordonMethod,
    /// Its index on the node, for people.
    pub index: u32,
    /// Its UUID, by which whoever gives it to pods knows it.
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
    /// HAMi's annotation.
    Hami,
}

impl GpuCordonMethod {
    /// Its name, as our annotation spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TaintRule => "taint-rule",
            Self::Hami => "hami",
        }
    }
}

impl GpuCordon {
    /// What our annotation says (how, index and UUID); anybody may write there.
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

/// Whether this can be the UUID of a GPU, and so be a part of a name.
pub fn is_uuid(text: &str) -> bool {
    const LONGEST: usize = 64;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.starts_with("GPU-")
        && text.len() <= LONGEST
        && text.chars().all(fits)
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

impl KubernetesNode {
    /// The GPU that our annotation names as taken out.
    pub fn cordoned_gpu(&self) -> Option<GpuCordon> {
        self.annotations.get(DEVICE).and_then(|text| GpuCordon::from_annotation(text))
    }
}

/// A taint that is set or taken away.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct TaintEdit {
    /// Its key.
    pub key: String,
    /// Its effect.
    pub effect: String,
    /// Its value (which may be empty); `None` takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}
