//! Faults of a topology file: errors that Slurm refuses, and errors that it accepts silently (a
//! node in two blocks, in none, or unknown).
//!
//! Pure. Slurm has no dry run for these files, so this is the only test before a controller reads
//! one.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SlurmVersion, TopologyContext, TopologyForm, block_groups};
use model::hostlist;
use model::id::NodeName;
use model::source_report::SourceReport;

/// The kind of fault.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// This version of Slurm does not read such a file.
    Version,
    /// The file contradicts itself or cannot be read: a host list, a duplicate name, sizes that do
    /// not match, a node in two blocks.
    File,
    /// A node is listed more than once in one block.
    Twice,
    /// A block is smaller than this version of Slurm accepts.
    Small,
    /// A block without nodes.
    Empty,
    /// A node that is unknown to the scheduler.
    Stranger,
    /// A node of the scheduler that is in no block.
    Homeless,
}

/// One fault of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The fault, with its place.
    pub what: String,
    /// Whether it forbids installing the file.
    pub forbids: bool,
    /// Whether the present file has the same fault.
    pub is_old: bool,
}

pub(super) fn find_faults(
    form: TopologyForm,
    text: &str,
    document: &SourceReport,
    ground: &TopologyContext,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |kind, what: String| {
        faults.push(Fault { kind, what, forbids: true, is_old: false });
    };
    let old = ground.version.is_none_or(|version| !version.has_yaml());
    if form == TopologyForm::Yaml && ground.version.is_some_and(|version| !version.has_yaml()) {
        add(FaultKind::Version, "Slurm reads topology.yaml from version 25.05".to_owned());
    }
    for problem in &document.problems {
        add(FaultKind::File, problem.to_string());
    }
    for place in form.block_places(text) {
        let Some(list) = place.list.ok().and_then(|range| text.get(range)) else { continue };
        let names = hostlist::expand(list).unwrap_or_default();
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<&str> =
            names.iter().map(String::as_str).filter(|name| !seen.insert(*name)).collect();
        if !twice.is_empty() {
            let block = &place.block;
            let what = format!("listed more than once in block {block}: {}", list_of(twice));
            add(FaultKind::Twice, what);
        }
    }
    for group in block_groups(document) {
        let (name, count) = (&group.name, group.nodes.len());
        let size = group.size.and_then(|size| usize::try_from(size).ok());
        if count == 0 {
            add(FaultKind::Empty, format!("block {name} has no nodes"));
        } else if let Some(size) = size.filter(|size| old && count < *size) {
            let version = if ground.version.is_none() {
                "the version of Slurm is unknown, and up to 24.11 it"
            } else {
                "Slurm up to 24.11"
            };
            let what = format!(
                "block {name} has {count} nodes, fewer than the base block size {size}: {version} \
                 does not accept that, and does not restart with it"
            );
            add(FaultKind::Small, what);
        }
    }
    let mut topologies: BTreeMap<Option<&str>, BTreeSet<&NodeName>> = BTreeMap::new();
    for group in block_groups(document) {
        topologies.entry(group.topology.as_deref()).or_default().extend(&group.nodes);
    }
    for (topology, nodes) in topologies {
        if ground.nodes.is_empty() {
            continue;
        }
        let begin = topology.map(|name| format!("topology {name}: ")).unwrap_or_default();
        let known: BTreeSet<&NodeName> = ground.nodes.iter().collect();
        for (kind, nodes, what) in [
            (FaultKind::Stranger, &nodes - &known, "in a block and unknown to the scheduler"),
            (FaultKind::Homeless, &known - &nodes, "known to the scheduler and in no block"),
        ] {
            if !nodes.is_empty() {
                let list = list_of(nodes.into_iter().map(NodeName::as_str));
                add(kind, format!("{begin}{what}: {list}"));
            }
        }
    }
    faults
}

/// Faults of the result: which of them the present file has, and which forbid installing it.
///
/// A fault that Slurm accepts today does not forbid the file: nodes in no block (there may be
/// reasons), hidden or future nodes that are not listed, spare blocks.
pub(super) fn against(before: &[Fault], after: Vec<Fault>, ground: &TopologyContext) -> Vec<Fault> {
    let faults = after.into_iter().map(|fault| {
        let is_old = before.contains(&fault);
        let is_bearable = match fault.kind {
            FaultKind::Stranger | FaultKind::Homeless => true,
            // 24.11: "block spare hasn't got nodes", and it does not start.
            FaultKind::Empty => ground.version.is_some_and(SlurmVersion::has_yaml),
            FaultKind::Version | FaultKind::File | FaultKind::Twice | FaultKind::Small => false,
        };
        Fault { forbids: !(is_old && is_bearable), is_old, ..fault }
    });
    faults.collect()
}

/// Names in a remark, cut if there are many.
fn list_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    model::text::clean(&hostlist::fold(names))
}
