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
mod kueue;
pub mod labels;
mod nccl;
mod ranks;
mod ray;
mod slurm_topology;
mod topograph;
mod yaml;

#[cfg(test)]
mod kubernetes_tests;

pub mod documents {
    //! fabricgate's own JSON documents, for schema checks.
    pub use super::nccl::{ENVIRONMENT_FORMAT, EnvironmentDocument};
    pub use super::ranks::{RANKS_FORMAT, RanksDocument};
    pub use super::{MAP_FORMAT, MapDocument};
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::place::map::{MapDomain, MapMember, VerifiedMap};
use model::hostlist;
use model::id::NodeName;
use model::text::clean;

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
    kueue::KAI_TARGET,
    labels::TARGET,
    kueue::TARGET,
    MAP_TARGET,
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
/// [`ExportTarget::takes`] lists those that a target reads.
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
    /// Whether the filter refuses impossible requests instead of only advising.
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

/// The format of the document.
pub const MAP_FORMAT: &str = "fabricgate.map/1";

const MAP_TARGET: ExportTarget = ExportTarget {
    name: "map",
    about: "the whole verified map as one JSON document",
    takes: &[],
    write: write_map,
};

/// The map as a document (`fabricgate.map/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct MapDocument<'a> {
    /// `fabricgate.map/1`.
    format: &'static str,
    /// The tool version and run behind it, and warnings before use.
    note: Vec<String>,
    #[serde(flatten)]
    map: &'a VerifiedMap,
}

fn write_map(map: &VerifiedMap, _options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let document = MapDocument { format: MAP_FORMAT, note: map.header_lines(), map };
    let mut bytes = serde_json::to_vec_pretty(&document).expect("values of the map are plain data");
    bytes.push(b'\n');
    Ok(ExportOutput::from_file(ExportFile { name: "map.json".to_owned(), bytes }))
}

/// The map members that the options select, in order; all members without a selection.
fn select_members<'m>(
    map: &'m VerifiedMap,
    options: &ExportOptions,
) -> Result<Vec<(&'m NodeName, &'m MapMember)>, ExportRefusal> {
    if let Some(nodes) = &options.nodes {
        check_known(map, nodes)?;
    }
    let selected = options.domain.as_deref().map(|name| find_domain(map, name)).transpose()?;
    let is_asked = |(node, member): &(&NodeName, &MapMember)| {
        let by_name = options.nodes.as_ref().is_none_or(|nodes| nodes.contains(*node));
        let by_domain =
            selected.is_none_or(|it| member.domain.as_deref() == Some(it.name.as_str()));
        by_name && by_domain
    };
    Ok(map.members.iter().filter(is_asked).collect())
}

/// Refuses unknown names: if one were ignored, a mistyped node would silently keep its old labels.
fn check_known(map: &VerifiedMap, nodes: &BTreeSet<NodeName>) -> Result<(), ExportRefusal> {
    let unknown: Vec<&str> =
        nodes.iter().filter(|it| !map.members.contains_key(*it)).map(NodeName::as_str).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    refuse(format!("--nodes: the run has no {}", clean(&hostlist::fold(unknown))))
}

fn find_domain<'m>(map: &'m VerifiedMap, name: &str) -> Result<&'m MapDomain, ExportRefusal> {
    match map.domain(name) {
        Some(domain) => Ok(domain),
        None => refuse(format!("--domain {}: the run has {}", clean(name), list_domains(map))),
    }
}

fn list_domains(map: &VerifiedMap) -> String {
    let names: Vec<&str> = map.domains.iter().map(|domain| domain.name.as_str()).collect();
    clean(&names.join(", "))
}
