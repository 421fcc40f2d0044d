//! One change of what a scheduler says of a node: the same for as many nodes
//! as get the same, so that one call serves them all.
//!
//! A value. Whether it may be made is `act`'s to say, making it is `gate`'s.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kubernetes_node::KubernetesNodeUpdate;

/// What is written. What is `None` stays as it is.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct NodeUpdate {
    /// The state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeStateChange>,
    /// Features it could have, all of them: Slurm replaces, it does not merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_features: Option<Vec<String>>,
    /// Features it has, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_features: Option<Vec<String>>,
    /// The free field for programs; empty clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
    /// The free field for people; empty clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// What only Kubernetes has. The taint and the reason of a drain are not in
    /// here: they follow from `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesNodeUpdate>,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "to", rename_all = "snake_case")]
pub enum NodeStateChange {
    /// Let running jobs end, start no new ones.
    Drain {
        /// The reason that is written.
        reason: String,
    },
    /// Back into service.
    Resume,
}

impl NodeUpdate {
    /// Let running jobs end and start no new ones, for this reason.
    pub fn drain(reason: impl Into<String>) -> Self {
        let state = Some(NodeStateChange::Drain { reason: reason.into() });
        Self { state, ..Self::default() }
    }

    /// Whether nothing is written at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
