//! Which pods earlier versions asked to leave a node that we drained, and which
//! stayed, each with its reason.
//!
//! Read from their journals; no pod is asked any more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::NodeName;

/// What became of the pods of one node, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeEviction {
    /// The node.
    pub node: NodeName,
    /// Why nothing there was asked to leave, where that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its pods that hold GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodEviction>,
}

/// What became of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodEviction {
    /// `namespace/name`.
    pub pod: String,
    /// How it ended.
    pub result: EvictionResult,
    /// Why, or what the server said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// How asking a pod to leave ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EvictionResult {
    /// It would be asked.
    Proposed,
    /// It is gone.
    Gone,
    /// It was told to end, and does.
    Ending,
    /// It is not meant to leave, and was not asked.
    Kept,
    /// It was asked, or would have been, and stays.
    Left,
    /// Nobody can tell whether it was told to end.
    Unknown,
}
