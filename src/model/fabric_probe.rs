//! What our own fabric probe prints: which ways of sharing GPU memory a node
//! allows, step by step.
//!
//! Types only. `probe::fabric` says the steps, `probe::attend` writes the
//! document. Nothing in it is a measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::{ProbeProblem, ProbedGpu};

/// The format of a [`FabricProbeDocument`].
pub const FABRIC_PROBE_FORMAT: &str = "fabricgate.fabric/1";

/// The result of one execution on one node (`fabricgate.fabric/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FabricProbeDocument {
    /// `fabricgate.fabric/1`.
    pub format: String,
    /// The version of fabricgate that tried.
    pub version: String,
    /// The node.
    pub node: String,
    /// CUDA version of the driver, `13.0`.
    pub cuda: Option<String>,
    /// Bytes that were shared.
    pub bytes: u64,
    /// The GPUs of this node.
    pub gpus: Vec<ProbedGpu>,
    /// What was tried and how it went, in the order it was tried.
    pub steps: Vec<FabricStep>,
    /// What went wrong.
    pub problems: Vec<ProbeProblem>,
    /// Everything was tried, and everything worked.
    pub complete: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FabricStep {
    /// The step: `fabric-create`, `ipc-open`, `imex-channels`, ...
    pub step: String,
    /// The GPU; absent where it is about the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// `ok`, what the driver said instead, what the system shows, or why the step
    /// was not tried. Where two processes saw different things, both.
    pub said: String,
}
