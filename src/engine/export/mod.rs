//! The verified map for other systems: what was measured, in the words that
//! schedulers, operators and frameworks read.
//!
//! Pure: a run in, bytes out, one file per system. Every export names the run it
//! came from, is the same for the same run, and says of what was not measured that
//! it is not known. Nothing here changes a cluster or opens a file.

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
    //! What is written as JSON of our own, for whoever checks its schemas.
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

/// A system that a map can be written for.
#[derive(Clone, Copy, Debug)]
pub struct ExportTarget {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is written, in a few words.
    pub about: &'static str,
    /// The options that it reads; others are refused. Names as on the command line,
    /// without dashes.
    pub takes: &'static [&'static str],
    /// Writes it.
    pub write: fn(&VerifiedMap, &ExportOptions) -> Result<ExportOutput, ExportRefusal>,
}

/// Every target, in order of name. One file each.
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

/// What a target may be asked beside the map. What was not asked is absent; which
/// targets read what is theirs to say ([`Target::takes`]).
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
    /// HAMi's own scores, as node objects or by name of node.
    pub hami: Option<String>,
    /// Which of a target's forms, by the word it gives it.
    pub form: Option<String>,
    /// The text of a file of the other system, to be changed instead of written anew.
    pub from: Option<String>,
    /// Where degraded nodes go.
    pub degraded: DegradedPlacement,
    /// The base block size.
    pub block_size: Option<u32>,
    /// The name of the topology.
    pub topology: Option<String>,
    /// A filter refuses what cannot be, and does not only advise.
    pub enforce: bool,
    /// Tensor-parallel ranks.
    pub tp: Option<u32>,
    /// Pipeline-parallel stages.
    pub pp: Option<u32>,
    /// GPUs that a job uses on each node.
    pub gpus_per_node: Option<u32>,
}

/// Where nodes that are degraded or failed go in a topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DegradedPlacement {
    /// They stay in their block, with a comment: gating is a drain's business, and a
    /// block that gets smaller can hold users' jobs for good.
    #[default]
    Keep,
    /// They are a block of their own.
    OwnBlock,
    /// They are in no block.
    LeaveOut,
}

/// One file of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFile {
    /// Its name, for a folder of several.
    pub name: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

impl ExportFile {
    /// A file of text.
    pub fn text(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), bytes: text.into().into_bytes() }
    }
}

/// What a target made of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportOutput {
    /// The files, the main one first: it is what goes to standard output.
    pub files: Vec<ExportFile>,
    /// What a person should know before using them, for standard error.
    pub remarks: Vec<String>,
}

impl ExportOutput {
    /// One file and nothing to remark.
    pub fn from_file(file: ExportFile) -> Self {
        Self { files: vec![file], remarks: Vec::new() }
    }
}

/// Why a map cannot be written for a target: what is asked, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExportRefusal(pub String);

/// Ends with a refusal.
pub fn refuse<T>(why: impl Into<String>) -> Result<T, ExportRefusal> {
    Err(ExportRefusal(why.into()))
}
