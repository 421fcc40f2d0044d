//! The scheduler's view of its nodes at one point in time, as far as actions need it.
//!
//! Plain values, as the scheduler returned them. `act::standing` interprets the state; `gate`
//! queries it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::NodeName;
use super::kubernetes_node::KubernetesNode;

/// One node as its scheduler describes it. Fields that the scheduler does not return are absent
/// or empty: older Slurm versions omit keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerNode {
    /// Name of the node.
    pub name: NodeName,
    /// Flags of its state in Slurm's long form: `IDLE`, `DRAIN`, `NOT_RESPONDING`. Unknown flags
    /// are kept. A Kubernetes node uses the same flags where the meaning is the same, and some
    /// additional ones (`act::standing`).
    pub state: Vec<String>,
    /// The reason for its state, set by Slurm or by a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// User who last set the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_by: Option<String>,
    /// When the reason was set, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_at: Option<i64>,
    /// When the machine booted, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<i64>,
    /// Id of the cloud instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Features that can be activated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub available_features: Vec<String>,
    /// Active features.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active_features: Vec<String>,
    /// The free field for operators.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// The free field for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub extra: String,
    /// The reservation that currently holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Its position in topologies, where set manually: `topology:unit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Flags of its state after a pending reboot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after_reboot: Vec<String>,
    /// CPUs allocated to jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_cpus: Option<u32>,
    /// Partitions that contain it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// Kernel boot id, where the scheduler reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Fields that exist only in Kubernetes; absent on Slurm. Boxed, because Slurm has many
    /// nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Box<KubernetesNode>>,
}

impl SchedulerNode {
    /// A node with only its name and state.
    pub fn new(name: impl Into<NodeName>, state: &[&str]) -> Self {
        Self {
            name: name.into(),
            state: state.iter().map(|word| (*word).to_owned()).collect(),
            reason: None,
            reason_by: None,
            reason_at: None,
            booted: None,
            instance: None,
            available_features: Vec::new(),
            active_features: Vec::new(),
            comment: String::new(),
            extra: String::new(),
            reservation: None,
            topology: None,
            after_reboot: Vec::new(),
            allocated_cpus: None,
            partitions: Vec::new(),
            boot_id: None,
            kubernetes: None,
        }
    }

    /// Whether its state has this flag.
    pub fn has_state(&self, word: &str) -> bool {
        self.state.iter().any(|own| own == word)
    }
}

/// The answer of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerSnapshot {
    /// Every returned node. A requested node that is missing here is unknown to the scheduler,
    /// which means neither drained nor healthy.
    pub nodes: BTreeMap<NodeName, SchedulerNode>,
    /// Unreadable parts of the answer, each with its location.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}
