//! What the fabric probe is asked for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A fabric probe's work, as it is handed to each of its two processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricTask {
    /// The driver's library, where it is not the one that the system finds.
    pub cuda: Option<PathBuf>,
    /// The root that proc, sys and dev are below.
    pub root: PathBuf,
    /// What the node is called.
    pub node: String,
    /// Bytes that are shared.
    pub bytes: u64,
}
