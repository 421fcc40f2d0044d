//! Nodes that something holds for a sweep: where workers run, and why nothing
//! runs elsewhere.
//!
//! Pure values. What holds nodes, `gate` makes and ends.

use std::collections::BTreeMap;

use model::id::NodeName;

/// Where a worker of a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerTarget {
    /// In this job of Slurm.
    Job(String),
    /// Beside Slurm, on a node that is drained.
    Unallocated,
    /// In this pod.
    Pod {
        /// Its name.
        name: String,
        /// Its address, where the cluster says one.
        address: Option<String>,
    },
}

/// The nodes that are held for a sweep, and why others are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldNodes {
    /// Where workers run.
    pub targets: BTreeMap<NodeName, WorkerTarget>,
    /// Why a node is left out.
    pub skipped: BTreeMap<NodeName, String>,
}
