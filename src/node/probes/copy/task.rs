//! What a copy probe is asked for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A copy probe's work, as it is handed to its process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyTask {
    /// The driver's library, where it is not the one that the system finds.
    pub cuda: Option<PathBuf>,
    /// The root that proc and sys are below.
    pub root: PathBuf,
    /// What the node is called.
    pub node: String,
    /// The GPUs to measure, by their number on the node; all when empty.
    pub gpus: Vec<u32>,
    /// The tests, by nvbandwidth's names, in the order they run.
    pub tests: Vec<String>,
    /// Numbers taken of each cell.
    pub readings: u32,
    /// Bytes of one copy. nvbandwidth's default is 512 MiB.
    pub buffer_bytes: u64,
    /// Copies that one number is taken over. nvbandwidth's default is 16.
    pub copies: u32,
    /// Copies before them.
    pub warmup: u32,
    /// Which pairs of nodes are measured, where several measure together.
    pub across: Option<CrossNodePairs>,
}

/// How several nodes measure together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrossNodePairs {
    /// GPU i of one node with GPU i of the other, all at once, both ways.
    Lane,
    /// Every ordered pair of GPUs, also those inside a node.
    All,
}
