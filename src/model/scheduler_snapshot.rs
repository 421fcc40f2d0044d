//! What a scheduler says of its nodes at one moment, as far as acting needs it.
//!
//! Plain values, as they were told. What a state means for us is
//! `act::standing`'s to say; asking is `gate`'s work.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::NodeName;
use super::kubernetes_node::KubernetesNode;

/// One node as its scheduler describes it. What it does not say is absent or
/// empty: older Slurms leave keys out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerNode {
    /// Its name.
    pub name: NodeName,
    /// Words of its state in Slurm's long form: `IDLE`, `DRAIN`,
    /// `NOT_RESPONDING`. Words that are not known here stay as they are. A
    /// Kubernetes node is told in the same words where they mean the same, and
    /// in some of its own (`act::standing`).
    pub state: Vec<String>,
    /// Why it is in that state, as somebody or Slurm itself wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who wrote the reason last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_by: Option<String>,
    /// When, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_at: Option<i64>,
    /// When the machine booted, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<i64>,
    /// The cloud instance that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Features it could have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub available_features: Vec<String>,
    /// Features it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active_features: Vec<String>,
    /// A free field for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// A free field for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub extra: String,
    /// The reservation that holds it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Its place in topologies where it was set by hand: `topology:unit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Words of the state that a pending reboot leads to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after_reboot: Vec<String>,
    /// CPUs that jobs hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_cpus: Option<u32>,
    /// Partitions it is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<String>,
    /// The kernel's boot id, where the scheduler tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// What only Kubernetes says; absent on Slurm. Boxed: Slurm has many nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Box<KubernetesNode>>,
}

impl SchedulerNode {
    /// A node of which nothing but its name and state is known.
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

    /// Whether its state has this word.
    pub fn has_state(&self, word: &str) -> bool {
        self.state.iter().any(|own| own == word)
    }
}

/// What a scheduler answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerSnapshot {
    /// Every node it told of. A node that was asked for and is not here is not
    /// known to the scheduler, which is not the same as drained or healthy.
    pub nodes: BTreeMap<NodeName, SchedulerNode>,
    /// What of the answer could not be read, each with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}
