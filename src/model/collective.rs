//! What our own NCCL probe prints: one document per node.
//!
//! Types only. `probe::collective` writes it, `measure::collective` reads it.
//! Tests are called what nccl-tests calls them, and algbw and busbw are those of
//! its PERFORMANCE.md, so that expectations are shared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::{DriverTelemetry, ProbeProblem, ProbedRank};

/// The format of a [`CollectiveDocument`].
pub const COLLECTIVE_FORMAT: &str = "fabricgate.collective/1";

/// The result of one execution on one node (`fabricgate.collective/1`). Where
/// several nodes took part each prints one, on a line of its own; only the first
/// has points, and each has the problems of its own ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectiveDocument {
    /// `fabricgate.collective/1`.
    pub format: String,
    /// The version of fabricgate that measured.
    pub version: String,
    /// The node.
    pub node: String,
    /// CUDA version of the driver, `13.0`.
    pub cuda: Option<String>,
    /// NCCL's version, `2.28.3`.
    pub nccl: Option<String>,
    /// The library that was loaded.
    pub library: Option<String>,
    /// All ranks, also those of other nodes.
    pub ranks: Vec<ProbedRank>,
    /// What NCCL said that it uses: `MNNVL`, `NVLS`, `P2P/CUMEM`, `NET/IB`, ...
    pub transports: Vec<String>,
    /// Algorithms it said, by test: `all_reduce_perf` to `NVLS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<(String, String)>,
    /// The path that was asked for, where one was: another one is a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asserted: Option<String>,
    /// Variables that were set for NCCL.
    pub environment: std::collections::BTreeMap<String, String>,
    /// What was measured.
    pub tests: Vec<CollectiveTest>,
    /// What the driver said around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<DriverTelemetry>,
    /// What went wrong.
    pub problems: Vec<ProbeProblem>,
    /// Everything that was asked for was measured.
    pub complete: bool,
}

/// One collective over message sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectiveTest {
    /// nccl-tests' name: `all_reduce_perf`.
    pub testcase: String,
    /// Which reading, from 0.
    pub reading: u32,
    /// `float`.
    pub datatype: String,
    /// One per size, in the order measured.
    pub points: Vec<CollectivePoint>,
}

/// One message size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CollectivePoint {
    /// Bytes, as nccl-tests counts them for this collective.
    pub bytes: u64,
    /// Iterations that were timed.
    pub iterations: u32,
    /// Time of one operation, the mean of all ranks, in microseconds.
    pub time_us: f64,
    /// Time of the slowest rank.
    pub slowest_us: f64,
    /// Bytes over time, in GB/s.
    pub algbw: f64,
    /// By the published factor, in GB/s.
    pub busbw: f64,
    /// Wrong elements among those that were checked; null where none was.
    pub wrong: Option<u64>,
    /// Elements that were checked, over all ranks.
    pub checked: u64,
}
