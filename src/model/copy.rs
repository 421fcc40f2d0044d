//! The document of the native copy-engine probe, one per node.
//!
//! Types only: `probe::copy` writes it, `measure::copy` reads it. Tests have the names and the
//! meaning of nvbandwidth, so that both tools share expectations and matrices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::{DriverTelemetry, ProbeProblem, ProbedGpu, ProbedRank};

/// Format name of [`CopyDocument`].
pub const COPY_FORMAT: &str = "fabricgate.copy/1";

/// The result of one execution on one node (`fabricgate.copy/1`). With several nodes each node
/// prints one document on its own line, with the rows of its own GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CopyDocument {
    /// `fabricgate.copy/1`.
    pub format: String,
    /// The version of fabricgate that measured.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// CUDA version of the driver, `13.0`.
    pub cuda: Option<String>,
    /// Size of one copy, in bytes.
    pub buffer_bytes: u64,
    /// Copies per measured number.
    pub copies: u32,
    /// Warm-up copies before them.
    pub warmup: u32,
    /// The least time of copies before those, in milliseconds.
    #[serde(default)]
    pub warmup_ms: u32,
    /// The GPUs of this node.
    pub gpus: Vec<ProbedGpu>,
    /// The GPUs of all nodes, where several measured together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<ProbedRank>,
    /// The measured tests.
    pub tests: Vec<CopyTest>,
    /// Driver telemetry before and after the tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<DriverTelemetry>,
    /// Errors of this node.
    pub problems: Vec<ProbeProblem>,
    /// True if every requested test was measured.
    pub complete: bool,
}

/// The readings of one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CopyTest {
    /// Name in nvbandwidth.
    pub testcase: String,
    /// `GB/s` (1e9 bytes a second) or `us`.
    pub unit: String,
    /// Row labels: GPU numbers, ranks, or `0` where there is one row.
    pub rows: Vec<String>,
    /// Column labels, in the same form.
    pub cols: Vec<String>,
    /// Reading, then row, then column; null where nothing was measured.
    pub readings: Vec<Vec<Vec<Option<f64>>>>,
}
