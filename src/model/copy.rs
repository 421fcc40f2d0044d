//! What our own copy-engine probe prints: one document per node.
//!
//! Types only. `probe::copy` writes it, `measure::copy` reads it. Tests are
//! called what nvbandwidth calls them and mean the same, so that expectations
//! and matrices are shared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::{DriverTelemetry, ProbeProblem, ProbedGpu, ProbedRank};

/// The format of a [`CopyDocument`].
pub const COPY_FORMAT: &str = "fabricgate.copy/1";

/// The result of one execution on one node (`fabricgate.copy/1`). Where several
/// nodes measured together each prints one, on a line of its own, with the rows
/// of its own GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CopyDocument {
    /// `fabricgate.copy/1`.
    pub format: String,
    /// The version of fabricgate that measured.
    pub version: String,
    /// The node.
    pub node: String,
    /// CUDA version of the driver, `13.0`.
    pub cuda: Option<String>,
    /// Bytes of one copy.
    pub buffer_bytes: u64,
    /// Copies that one number is taken over.
    pub copies: u32,
    /// Copies before them.
    pub warmup: u32,
    /// The GPUs of this node.
    pub gpus: Vec<ProbedGpu>,
    /// The GPUs of all nodes, where several measured together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<ProbedRank>,
    /// What was measured.
    pub tests: Vec<CopyTest>,
    /// What the driver said around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<DriverTelemetry>,
    /// What went wrong.
    pub problems: Vec<ProbeProblem>,
    /// Everything that was asked for was measured.
    pub complete: bool,
}

/// The readings of one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CopyTest {
    /// nvbandwidth's name.
    pub testcase: String,
    /// `GB/s` (1e9 bytes a second) or `us`.
    pub unit: String,
    /// Row labels: GPU numbers, ranks, or `0` where there is one row.
    pub rows: Vec<String>,
    /// Column labels, likewise.
    pub cols: Vec<String>,
    /// Reading, then row, then column; null where nothing was measured.
    pub readings: Vec<Vec<Vec<Option<f64>>>>,
}
