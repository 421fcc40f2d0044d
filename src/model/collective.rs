//! The document of the native NCCL probe, one per node.
//!
//! Types only: `probe::collective` writes it, `measure::collective` reads it. Tests carry their
//! nccl-tests names, and algbw and busbw follow its PERFORMANCE.md, so that both tools share
//! expectations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::{DriverTelemetry, ProbeProblem, ProbedRank};

/// Format name of [`CollectiveDocument`].
pub const COLLECTIVE_FORMAT: &str = "fabricgate.collective/1";

/// The result of one execution on one node (`fabricgate.collective/1`). With several nodes each
/// node prints one document on its own line; only the first has points, and each has the problems
/// of its own ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectiveDocument {
    /// `fabricgate.collective/1`.
    pub format: String,
    /// The version of fabricgate that measured.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// CUDA version of the driver, `13.0`.
    pub cuda: Option<String>,
    /// Version of NCCL, `2.28.3`.
    pub nccl: Option<String>,
    /// Path of the loaded library.
    pub library: Option<String>,
    /// All ranks, those of other nodes included.
    pub ranks: Vec<ProbedRank>,
    /// Transports that NCCL logged: `MNNVL`, `NVLS`, `P2P/CUMEM`, `NET/IB`, ...
    pub transports: Vec<String>,
    /// Algorithms that NCCL logged, by test: `all_reduce_perf` to `NVLS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<(String, String)>,
    /// The requested transport, where one was requested; a different one is a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asserted: Option<String>,
    /// Variables that were set for NCCL.
    pub environment: std::collections::BTreeMap<String, String>,
    /// The measured tests.
    pub tests: Vec<CollectiveTest>,
    /// Driver telemetry before and after the tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<DriverTelemetry>,
    /// Errors of this node's ranks.
    pub problems: Vec<ProbeProblem>,
    /// True if every requested test was measured.
    pub complete: bool,
}

/// One reading of a collective over message sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectiveTest {
    /// Name in nccl-tests: `all_reduce_perf`.
    pub testcase: String,
    /// Number of the reading, from 0.
    pub reading: u32,
    /// Data type of the elements: `float`.
    pub datatype: String,
    /// One per size, in the order measured.
    pub points: Vec<CollectivePoint>,
}

/// The result for one message size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectivePoint {
    /// Bytes, as nccl-tests counts them for this collective.
    pub bytes: u64,
    /// Number of timed iterations.
    pub iterations: u32,
    /// Time of one operation, the mean over all ranks, in microseconds.
    pub time_us: f64,
    /// Time of the slowest rank, in microseconds.
    pub slowest_us: f64,
    /// Bytes divided by time, in GB/s.
    pub algbw: f64,
    /// Bus bandwidth by the published factor, in GB/s.
    pub busbw: f64,
    /// Wrong elements among the checked ones; null where none were checked.
    pub wrong: Option<u64>,
    /// Elements checked, over all ranks.
    pub checked: u64,
}
