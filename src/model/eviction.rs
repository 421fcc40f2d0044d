//! The evictions of pods from drained nodes by earlier versions, with the result and reason for
//! each pod.
//!
//! Read from their journals; pods are no longer evicted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::NodeName;

/// The actual or proposed evictions from one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeEviction {
    /// The drained node.
    pub node: NodeName,
    /// Why no pod on the node was evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its pods that hold GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodEviction>,
}

/// The eviction of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodEviction {
    /// `namespace/name`.
    pub pod: String,
    /// Result of the eviction.
    pub result: EvictionResult,
    /// The reason, or the answer of the API server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The result of an eviction request.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EvictionResult {
    /// Proposed, not requested (dry run).
    Proposed,
    /// The pod is gone.
    Gone,
    /// The pod is terminating.
    Ending,
    /// The pod is exempt and was not evicted.
    Kept,
    /// The request was refused or failed, and the pod stays.
    Left,
    /// The outcome of the request is unknown.
    Unknown,
}
