//! Parameters of a fabric probe.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
