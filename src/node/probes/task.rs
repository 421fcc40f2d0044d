//! Parameters of the GPU probes, as a supervisor passes them to its processes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The work of a copy probe, as passed to its process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyTask {
    /// The driver's library; absent to use the one that the loader finds.
    pub cuda: Option<PathBuf>,
    /// The folder that contains proc and sys.
    pub root: PathBuf,
    /// Name of the node.
    pub node: String,
    /// Indices of the GPUs on the node; empty for all.
    pub gpus: Vec<u32>,
    /// The tests, by nvbandwidth's names, in execution order.
    pub tests: Vec<String>,
    /// Readings per cell.
    pub readings: u32,
    /// Bytes of one copy. nvbandwidth's default is 512 MiB.
    pub buffer_bytes: u64,
    /// Copies per reading. nvbandwidth's default is 16.
    pub copies: u32,
    /// Warm-up copies before each reading, held with it. nvbandwidth has 4.
    pub warmup: u32,
    /// The least time of copies before those, so that clocks are up, in milliseconds.
    pub warmup_ms: u32,
    /// Which pairs of nodes to measure, if several measure together.
    pub across: Option<CrossNodePairs>,
}

/// Pairs of a measurement over several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrossNodePairs {
    /// GPU i of one node with GPU i of the other, all concurrently, in both directions.
    Lane,
    /// Every ordered pair of GPUs, including pairs within a node.
    All,
}

/// The work of a fabric probe, as passed to each of its two processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricTask {
    /// The driver's library; absent to use the one that the loader finds.
    pub cuda: Option<PathBuf>,
    /// The folder that contains proc, sys and dev.
    pub root: PathBuf,
    /// Name of the node.
    pub node: String,
    /// Bytes to share.
    pub bytes: u64,
}

/// The work of one rank, as passed to its process. The first exchange determines its rank and the
/// number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveTask {
    /// The driver's library; absent to use the one that the loader finds.
    pub cuda: Option<PathBuf>,
    /// The folder that contains proc and sys.
    pub root: PathBuf,
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
