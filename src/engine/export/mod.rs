//! The verified map for other systems: measurement results in the formats that schedulers,
//! operators and frameworks read.
//!
//! Pure: takes a run, returns bytes, one file per system. Every export names its run, is
//! deterministic for a run, and marks unmeasured parts as unknown. Nothing here changes a cluster
//! or opens a file.

mod allocation;
mod cli_filter;
mod device_taints;
mod hami;
mod kai;
mod kueue;
pub mod labels;
mod map_document;
mod nccl;
mod ranks;
mod ray;
mod selection;
mod slurm_topology;
mod topograph;
mod yaml;

#[cfg(test)]
mod kubernetes_tests;

pub mod documents {
    //! fabricgate's own JSON documents, for schema checks.
    pub use super::map_document::{MAP_FORMAT, MapDocument};
    pub use super::nccl::{ENVIRONMENT_FORMAT, EnvironmentDocument};
    pub use super::ranks::{RANKS_FORMAT, RanksDocument};
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::place::map::VerifiedMap;
use model::id::NodeName;

/// A system that a map can be exported to.
#[derive(Clone, Copy, Debug)]
pub struct ExportTarget {
    /// Its name on the command line.
    pub name: &'static str,
    /// A short description of the output.
    pub about: &'static str,
    /// The options that it reads; others are refused. Names as on the command line, without dashes.
    pub takes: &'static [&'static str],
    /// Writes the export.
    pub write: fn(&VerifiedMap, &ExportOptions) -> Result<ExportOutput, ExportRefusal>,
}

/// Every target, ordered by name. One file each.
pub const TARGETS: &[ExportTarget] = &[
    device_taints::TARGET,
    hami::TARGET,
    kai::TARGET,
    labels::TARGET,
    kueue::TARGET,
    map_document::TARGET,
    nccl::TARGET,
    ranks::TARGET,
    ray::TARGET,
    cli_filter::TARGET,
    slurm_topology::TARGET,
    topograph::TARGET,
];

/// The target of this name.
pub fn find_target(name: &str) -> Option<&'static ExportTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The options of an export in addition to the map. Options that were not given are absent;
/// [`Target::takes`] lists those that a target reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportOptions {
    /// Only these nodes.
    pub nodes: Option<BTreeSet<NodeName>>,
    /// Only this domain.
    pub domain: Option<String>,
    /// The text of `kubectl get resourceslices -o json`.
    pub slices: Option<String>,
    /// The effect of taints: `None` or `NoSchedule`.
    pub effect: Option<String>,
    /// HAMi's own scores, as node objects or by node name.
    pub hami: Option<String>,
    /// The selected form of a target, by its name.
    pub form: Option<String>,
    /// The text of a file of the other system, to be changed instead of created.
    pub from: Option<String>,
    /// The placement of degraded nodes.
    pub degraded: DegradedPlacement,
    /// The base block size.
    pub block_size: Option<u32>,
    /// The name of the topology.
    pub topology: Option<String>,
    /// The filter refuses impossible requests instead of only advising.
    pub enforce: bool,
    /// Tensor-parallel ranks.
    pub tp: Option<u32>,
    /// Pipeline-parallel stages.
    pub pp: Option<u32>,
    /// GPUs that a job uses on each node.
    pub gpus_per_node: Option<u32>,
}

/// The placement of degraded or failed nodes in a topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DegradedPlacement {
    /// They stay in their block, with a comment: removing nodes is the task of a drain, and a block
    /// that gets smaller can hold users' jobs forever.
    #[default]
    Keep,
    /// They form their own block.
    OwnBlock,
    /// They are in no block.
    LeaveOut,
}

/// One file of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFile {
    /// Its name, for a folder with several files.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

impl ExportFile {
    /// A file of text.
    pub fn text(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), bytes: text.into().into_bytes() }
    }
}

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportOutput {
    /// The files, the main one first: it goes to standard output.
    pub files: Vec<ExportFile>,
    /// Notes for the operator before use, for standard error.
    pub remarks: Vec<String>,
}

impl ExportOutput {
    /// One file without notes.
    pub fn from_file(file: ExportFile) -> Self {
        Self { files: vec![file], remarks: Vec::new() }
    }
}

/// Why a map cannot be exported: the request, and the expected input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExportRefusal(pub String);

/// Returns a refusal.
pub fn refuse<T>(why: impl Into<String>) -> Result<T, ExportRefusal> {
    Err(ExportRefusal(why.into()))
}
