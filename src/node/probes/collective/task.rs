//! What a NCCL probe is asked for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The work of one rank, as it is handed to its process. Which rank of how many
/// it is comes out of the first exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveTask {
    /// The driver's library, where it is not the one that the system finds.
    pub cuda: Option<PathBuf>,
    /// NCCL, where it is not the one that is found.
    pub nccl: Option<PathBuf>,
    /// What the node is called.
    pub node: String,
    /// The GPU of this rank, by its number on the node.
    pub gpu: u32,
    /// The tests, by nccl-tests' names, in the order they run.
    pub tests: Vec<String>,
    /// Numbers taken of each size.
    pub readings: u32,
    /// The smallest message, in bytes.
    pub least_bytes: u64,
    /// The largest.
    pub most_bytes: u64,
    /// From one size to the next.
    pub factor: u64,
    /// Operations that one number is taken over.
    pub iterations: u32,
    /// Operations before them.
    pub warmup: u32,
    /// How long the others may take to come, in seconds.
    pub patience_s: u64,
}
