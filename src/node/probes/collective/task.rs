//! Parameters of an NCCL probe.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The work of one rank, as passed to its process. The first exchange determines its rank and the
/// number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveTask {
    /// The driver's library; absent to use the one that the loader finds.
    pub cuda: Option<PathBuf>,
    /// NCCL; absent to search for it.
    pub nccl: Option<PathBuf>,
    /// Name of the node.
    pub node: String,
    /// Index of this rank's GPU on the node.
    pub gpu: u32,
    /// The tests, by nccl-tests' names, in execution order.
    pub tests: Vec<String>,
    /// Readings per size.
    pub readings: u32,
    /// Smallest message in bytes.
    pub least_bytes: u64,
    /// Largest message in bytes.
    pub most_bytes: u64,
    /// Factor from one size to the next.
    pub factor: u64,
    /// Operations per reading.
    pub iterations: u32,
    /// Warm-up operations before each reading.
    pub warmup: u32,
    /// How long to wait for the other ranks to start, in seconds.
    pub patience_s: u64,
}
