//! One change of a node's entry in the scheduler. Nodes with the same change share one value, so
//! that one call serves them all.
//!
//! A value. `act` decides whether it may be made, `gate` makes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kubernetes_node::KubernetesNodeUpdate;

/// The fields to write. A field that is `None` stays unchanged.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct NodeUpdate {
    /// The new state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeStateChange>,
    /// All available features: Slurm replaces the list and does not merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_features: Option<Vec<String>>,
    /// All active features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_features: Option<Vec<String>>,
    /// The free field for programs (`Extra`); empty clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
    /// The free field for operators (`Comment`); empty clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// What only Kubernetes has. The taint and the reason of a drain are not in
    /// here: they follow from `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesNodeUpdate>,
}

/// A change of a node's state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "to", rename_all = "snake_case")]
pub enum NodeStateChange {
    /// Let running jobs finish and start no new ones.
    Drain {
        /// The drain reason.
        reason: String,
    },
    /// Return the node to service.
    Resume,
}

impl NodeUpdate {
    /// A drain with this reason.
    pub fn drain(reason: impl Into<String>) -> Self {
        let state = Some(NodeStateChange::Drain { reason: reason.into() });
        Self { state, ..Self::default() }
    }

    /// Whether the update changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
