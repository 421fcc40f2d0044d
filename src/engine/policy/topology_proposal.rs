//! A corrected topology file as a proposal for a user to review: the block of each node, the new
//! file, and its faults.
//!
//! Pure: texts in, texts out. fabricgate never installs the file: that is the site's decision. A
//! proposal only moves nodes into blocks and never removes one from all blocks: removal holds
//! users' jobs for good, while a drain lets them wait.

mod faults;
mod node_moves;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use similar::TextDiff;

pub use faults::{Fault, FaultKind};
pub use node_moves::{NotMoved, asked};

use model::hostlist;
use model::id::NodeName;
use model::source_report::{NodeGroup, NodeGroupKind, SourceReport};
use model::text::clean;
use readers::claims::slurm::block_spans::BlockSpan;
use readers::claims::slurm::{block_spans, topology_conf, topology_yaml};

/// Nodes of each Slurm block, by the name of the block.
pub type TopologyBlocks = BTreeMap<String, BTreeSet<NodeName>>;

/// The format of a topology file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TopologyForm {
    /// `topology.yaml`, from Slurm 25.05.
    Yaml,
    /// `topology.conf`.
    Conf,
}

impl TopologyForm {
    /// The format of a text; `None` if it is neither.
    pub fn detect(text: &str) -> Option<Self> {
        if topology_yaml::recognises(text) {
            Some(Self::Yaml)
        } else {
            topology_conf::recognises(text).then_some(Self::Conf)
        }
    }

    /// The file name that Slurm expects.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Yaml => "topology.yaml",
            Self::Conf => "topology.conf",
        }
    }

    fn parse(self, text: &str) -> SourceReport {
        match self {
            Self::Yaml => topology_yaml::read(self.file_name(), text),
            Self::Conf => {
                let mut closed = |_: &str| Err("includes are not read here".to_owned());
                topology_conf::read(self.file_name(), text, &mut closed)
            }
        }
    }

    fn block_places(self, text: &str) -> Vec<BlockSpan> {
        match self {
            Self::Yaml => block_spans::find_in_yaml(text),
            Self::Conf => block_spans::find_in_conf(text).0,
        }
    }
}

/// A version of Slurm, for rules that depend on it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct SlurmVersion {
    /// The year, such as 26.
    pub year: u32,
    /// The month, such as 5.
    pub month: u32,
}

impl SlurmVersion {
    /// The first version that reads `topology.yaml` and accepts blocks below their size.
    const WITH_YAML: Self = Self { year: 25, month: 5 };

    /// The version in the output of `scontrol --version`: `slurm-wlm 26.05.5`.
    pub fn parse(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let mut numbers = word.split('.').map(|number| number.parse().ok());
            Some(Self { year: numbers.next()??, month: numbers.next()?? })
        })
    }

    /// Whether it is 25.05 or later.
    pub fn has_yaml(self) -> bool {
        Self::WITH_YAML <= self
    }
}

/// The requested changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyRequest {
    /// The topology, if the file can hold several; otherwise the cluster's default.
    pub topology: Option<String>,
    /// Nodes, and the block that each belongs in.
    pub moves: BTreeMap<NodeName, String>,
}

/// Facts about the cluster that are not in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyContext {
    /// The version of the controller. If it is unknown, the strictest rules apply.
    pub version: Option<SlurmVersion>,
    /// Every node that the scheduler knows; empty if it was not queried.
    pub nodes: BTreeSet<NodeName>,
}

/// A node that moves to another block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyMove {
    /// The node.
    pub node: NodeName,
    /// The block or blocks that list it today.
    pub from: Vec<String>,
    /// The block that it belongs in.
    pub to: String,
}

/// The format of a proposal as JSON.
pub const TOPOLOGY_FORMAT: &str = "fabricgate.topology/1";

/// The proposed file, with its changes and faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TopologyProposal {
    /// `fabricgate.topology/1`.
    pub format: &'static str,
    /// The format of the file.
    pub form: TopologyForm,
    /// The topology that changes, if the file names it.
    pub topology: Option<String>,
    /// The nodes that move. Empty if all are in their blocks already.
    pub moved: Vec<TopologyMove>,
    /// What changes, as a unified diff.
    pub diff: String,
    /// Faults of the result.
    pub faults: Vec<Fault>,
    /// Remarks to read before the file is installed.
    pub remarks: Vec<String>,
    /// The proposed text of the file.
    #[serde(skip)]
    pub after: String,
    /// The blocks of the topology as proposed.
    #[serde(skip)]
    pub blocks: TopologyBlocks,
}

impl TopologyProposal {
    /// Whether the proposal differs from the file.
    pub fn is_change(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Faults that forbid installing the file.
    pub fn blocking_faults(&self) -> Vec<&Fault> {
        self.faults.iter().filter(|fault| fault.forbids).collect()
    }
}

/// Why no file is proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopologyRefusal(pub String);

fn refuse<T>(why: impl Into<String>) -> Result<T, TopologyRefusal> {
    Err(TopologyRefusal(why.into()))
}

/// The file with these nodes in these blocks and all other text unchanged; refused if that
/// needs more than changes of single host lists.
pub fn propose_topology(
    text: &str,
    wanted: &TopologyRequest,
    ground: &TopologyContext,
) -> Result<TopologyProposal, TopologyRefusal> {
    let Some(form) = TopologyForm::detect(text) else {
        return refuse("the file is neither a topology.yaml nor a topology.conf");
    };
    if form == TopologyForm::Conf
        && let Some(include) = block_spans::find_in_conf(text).1.first()
    {
        return refuse(format!(
            "it includes another file ({}), whose blocks would have to be changed with it",
            clean(include)
        ));
    }
    let document = form.parse(text);
    let topology = choose_topology(form, &document, wanted.topology.as_deref())?;
    let before = topology_blocks(&document, topology.as_deref());
    let (blocks, moved) = apply_moves(&before, &wanted.moves)?;
    let edits = host_list_edits(form, text, topology.as_deref(), &before, &blocks)?;
    let mut after = text.to_owned();
    for (range, list) in edits.into_iter().rev() {
        after.replace_range(range, &list);
    }
    let result = form.parse(&after);
    check_result(&document, &result, topology.as_deref(), &blocks)?;
    let today = faults::find_faults(form, text, &document, ground);
    let mut faults =
        faults::against(&today, faults::find_faults(form, &after, &result, ground), ground);
    faults.sort();
    let diff = TextDiff::from_lines(text, &after);
    let diff = diff.unified_diff().header(form.file_name(), form.file_name()).to_string();
    let mut remarks: Vec<String> =
        result.notes.iter().filter(|note| !document.notes.contains(note)).cloned().collect();
    let own = block_groups(&result).filter(|group| group.topology == topology);
    let base = own.filter_map(|group| usize::try_from(group.size?).ok()).max();
    remarks.extend(describe_shrinkage(&before, &blocks, base));
    Ok(TopologyProposal {
        format: TOPOLOGY_FORMAT,
        form,
        topology,
        diff: if moved.is_empty() { String::new() } else { diff },
        moved,
        faults,
        remarks,
        after,
        blocks,
    })
}

/// The groups of a file that are blocks.
fn block_groups(document: &SourceReport) -> impl Iterator<Item = &NodeGroup> {
    document.groups.iter().filter(|group| group.kind == NodeGroupKind::Domain)
}

fn topology_blocks(document: &SourceReport, topology: Option<&str>) -> TopologyBlocks {
    let own = block_groups(document).filter(|group| group.topology.as_deref() == topology);
    own.map(|group| (group.name.clone(), group.nodes.iter().cloned().collect())).collect()
}

fn choose_topology(
    form: TopologyForm,
    document: &SourceReport,
    wanted: Option<&str>,
) -> Result<Option<String>, TopologyRefusal> {
    let has = |group: &NodeGroup| match wanted {
        Some(name) => group.topology.as_deref() == Some(name),
        None => group.in_force,
    };
    match (block_groups(document).find(|group| has(group)), wanted, form) {
        (_, Some(name), TopologyForm::Conf) if name != node_moves::OF_CONF => refuse(format!(
            "a topology.conf has one topology, which Slurm calls {}; {} does not exist",
            node_moves::OF_CONF,
            clean(name)
        )),
        (None, Some(name), TopologyForm::Yaml) => {
            refuse(format!("the file has no topology of blocks named {}", clean(name)))
        }
        (None, _, _) => match document.problems.first() {
            Some(problem) => refuse(format!("its blocks cannot be read: {problem}")),
            None => refuse("its default topology has no blocks; another one must be named"),
        },
        (Some(group), _, _) => Ok(group.topology.clone()),
    }
}

/// The blocks after the moves, and the nodes that move.
fn apply_moves(
    before: &TopologyBlocks,
    moves: &BTreeMap<NodeName, String>,
) -> Result<(TopologyBlocks, Vec<TopologyMove>), TopologyRefusal> {
    let mut blocks = before.clone();
    let mut moved = Vec::new();
    for (node, to) in moves {
        let (shown, name) = (clean(node.as_str()), clean(to));
        if !hostlist::is_name(node.as_str()) {
            return refuse(format!("{shown} is not the name of one node"));
        }
        if !before.contains_key(to) {
            let known: Vec<&str> = before.keys().map(String::as_str).collect();
            let known = clean(&known.join(", "));
            return refuse(format!("block {name} for {shown} does not exist (blocks: {known})"));
        }
        let holds = |(_, nodes): &(&String, &BTreeSet<NodeName>)| nodes.contains(node);
        let from: Vec<String> =
            before.iter().filter(holds).map(|(block, _)| block.clone()).collect();
        if from == [to.as_str()] {
            continue;
        }
        for (block, nodes) in &mut blocks {
            if block == to {
                nodes.insert(node.clone());
            } else {
                nodes.remove(node);
            }
        }
        moved.push(TopologyMove { node: node.clone(), from, to: to.clone() });
    }
    let emptied = blocks.iter().find(|(name, nodes)| nodes.is_empty() && !before[*name].is_empty());
    match emptied {
        Some((name, _)) => refuse(format!(
            "block {} would be left without a node; a user must decide whether to remove it",
            clean(name)
        )),
        None => Ok((blocks, moved)),
    }
}

/// The host lists to change, in order of place.
fn host_list_edits(
    form: TopologyForm,
    text: &str,
    topology: Option<&str>,
    before: &TopologyBlocks,
    after: &TopologyBlocks,
) -> Result<Vec<(std::ops::Range<usize>, String)>, TopologyRefusal> {
    let places = form.block_places(text);
    let mut edits = Vec::new();
    for (name, nodes) in after.iter().filter(|(name, nodes)| before[*name] != **nodes) {
        let own: Vec<&BlockSpan> = places
            .iter()
            .filter(|place| place.topology.as_deref() == topology && place.block == *name)
            .collect();
        let [place] = own.as_slice() else {
            return refuse(format!("block {} is defined in {} places", clean(name), own.len()));
        };
        let range = place.list.clone().map_err(|why| {
            let at = format!("{}:{}", form.file_name(), place.line);
            TopologyRefusal(format!("block {} ({at}) cannot be changed alone: {why}", clean(name)))
        })?;
        edits.push((range, hostlist::fold(nodes.iter().map(NodeName::as_str))));
    }
    edits.sort_by_key(|(range, _)| range.start);
    if edits.windows(2).any(|pair| pair[1].0.start < pair[0].0.end) {
        return refuse("two blocks share one host list, and changing one would change both");
    }
    Ok(edits)
}

/// Checks the edited text: parsed again, it has the moves and is otherwise unchanged.
fn check_result(
    document: &SourceReport,
    result: &SourceReport,
    topology: Option<&str>,
    blocks: &TopologyBlocks,
) -> Result<(), TopologyRefusal> {
    let listed =
        |document: &SourceReport| -> Vec<(Option<String>, String, BTreeSet<NodeName>, bool)> {
            let listed = block_groups(document).map(|group| {
                let own = group.topology.as_deref() == topology;
                let nodes = match blocks.get(&group.name) {
                    Some(meant) if own => meant.clone(),
                    _ => group.nodes.iter().cloned().collect(),
                };
                (group.topology.clone(), group.name.clone(), nodes, group.in_force)
            });
            listed.collect()
        };
    let is_meant =
        listed(document) == listed(result) && topology_blocks(result, topology) == *blocks;
    let others = |document: &SourceReport| -> Vec<NodeGroup> {
        let others = document.groups.iter().filter(|group| group.kind != NodeGroupKind::Domain);
        others.map(|group| NodeGroup { at: None, ..group.clone() }).collect()
    };
    if is_meant && others(document) == others(result) {
        Ok(())
    } else {
        refuse("the edited file would differ from the requested change; edit it by hand")
    }
}

/// The effect on jobs if the largest block gets smaller. Jobs above the base size take several
/// blocks anyway.
fn describe_shrinkage(
    before: &TopologyBlocks,
    after: &TopologyBlocks,
    base: Option<usize>,
) -> Option<String> {
    let largest = |blocks: &TopologyBlocks| blocks.values().map(BTreeSet::len).max().unwrap_or(0);
    let (before, after) = (largest(before), largest(after));
    (after < before && base.is_none_or(|base| after < base)).then(|| {
        format!(
            "no block has more than {after} nodes then ({before} today): pending jobs that need \
             more in one block are held permanently (BadConstraints, priority 0), and new ones \
             are refused"
        )
    })
}

#[cfg(test)]
mod tests;
