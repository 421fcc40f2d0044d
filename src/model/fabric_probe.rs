//! The document of the native fabric probe: the ways of sharing GPU memory that a node allows,
//! step by step.
//!
//! Types only. `probe::fabric` performs the steps, `probe::attend` writes the document. It
//! contains no measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::{ProbeProblem, ProbedGpu};

/// Format name of [`FabricProbeDocument`].
pub const FABRIC_PROBE_FORMAT: &str = "fabricgate.fabric/1";

/// The result of one execution on one node (`fabricgate.fabric/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FabricProbeDocument {
    /// `fabricgate.fabric/1`.
    pub format: String,
    /// The version of fabricgate that wrote it.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// CUDA version of the driver, `13.0`.
    pub cuda: Option<String>,
    /// Size of the shared allocation, in bytes.
    pub bytes: u64,
    /// The GPUs of this node.
    pub gpus: Vec<ProbedGpu>,
    /// All steps, in order of execution.
    pub steps: Vec<FabricStep>,
    /// Errors of this node.
    pub problems: Vec<ProbeProblem>,
    /// True if every step was tried and succeeded.
    pub complete: bool,
}

/// One step and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FabricStep {
    /// The step: `fabric-create`, `ipc-open`, `imex-channels`, ...
    pub step: String,
    /// Index of the GPU; absent for a step of the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// `ok`, the driver's error, the observed state of the system, or why the step was skipped.
    /// Both results, where two processes disagree.
    #[serde(rename = "said")]
    pub message: String,
}
