//! A better topology file, as a proposal that a person reads: which node should
//! be in which block, what the file would be, and what is wrong with it.
//!
//! Pure: texts in, texts out. Nobody writes it for a person: putting the file in
//! place is the site's work. A node is only ever put into a block, never taken out
//! of all: that holds users' jobs for good, where a drain lets them wait.

mod faults;
mod moving;

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;
use similar::TextDiff;

pub use faults::Fault;
pub use faults::FaultKind;
pub use moving::NotMoved;
pub use moving::asked;

use crate::inventory::slurm::block_places;
use crate::inventory::slurm::block_places::BlockPlace;
use crate::inventory::slurm::topology_conf;
use crate::inventory::slurm::topology_yaml;
use crate::model::hostlist;
use crate::model::id::NodeName;
use crate::model::said::Group;
use crate::model::said::GroupKind;
use crate::model::said::Said;
use crate::model::text::clean;

/// Blocks by name, with their nodes.
pub type Blocks = BTreeMap<String, BTreeSet<NodeName>>;

/// How a topology file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `topology.yaml`, from 25.05 on.
    Yaml,
    /// `topology.conf`.
    Conf,
}

impl Form {
    /// What a text is; nothing where it is neither.
    pub fn of(text: &str) -> Option<Self> {
        if topology_yaml::recognises(text) {
            Some(Self::Yaml)
        } else {
            topology_conf::recognises(text).then_some(Self::Conf)
        }
    }

    /// The name that Slurm looks for.
    pub fn file(self) -> &'static str {
        match self {
            Self::Yaml => "topology.yaml",
            Self::Conf => "topology.conf",
        }
    }

    fn read(self, text: &str) -> Said {
        match self {
            Self::Yaml => topology_yaml::read(self.file(), text),
            Self::Conf => {
                let mut closed = |_: &str| Err("includes are not opened here".to_owned());
                topology_conf::read(self.file(), text, &mut closed)
            }
        }
    }

    fn places(self, text: &str) -> Vec<BlockPlace> {
        match self {
            Self::Yaml => block_places::in_yaml(text),
            Self::Conf => block_places::in_conf(text).0,
        }
    }
}

/// A version of Slurm, as far as topologies depend on it.
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
    /// The first that reads `topology.yaml` and takes blocks below their size.
    const WITH_YAML: Self = Self { year: 25, month: 5 };

    /// The version in what `scontrol --version` prints: `slurm-wlm 26.05.5`.
    pub fn read(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let mut numbers = word.split('.').map(|number| number.parse().ok());
            Some(Self { year: numbers.next()??, month: numbers.next()?? })
        })
    }

    /// Whether it has what 25.05 brought.
    pub fn has_yaml(self) -> bool {
        Self::WITH_YAML <= self
    }
}

/// What is wanted of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The topology, where the file can hold several; otherwise the cluster's
    /// default.
    pub topology: Option<String>,
    /// Nodes, and the block that each belongs in.
    pub moves: BTreeMap<NodeName, String>,
}

/// What is known of the cluster beside the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// The version of the controller. Where it is not known, the strictest is
    /// taken for it.
    pub version: Option<SlurmVersion>,
    /// Every node that the scheduler knows; empty where it was not asked.
    pub nodes: BTreeSet<NodeName>,
}

/// A node that changes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// The node.
    pub node: NodeName,
    /// The block or blocks that hold it today.
    pub from: Vec<String>,
    /// The block that it belongs in.
    pub to: String,
}

/// The format of a proposal as JSON.
pub const TOPOLOGY_FORMAT: &str = "fabricgate.topology/1";

/// A better file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Proposal {
    /// `fabricgate.topology/1`.
    pub format: &'static str,
    /// How it is written.
    pub form: Form,
    /// The topology that changes, where the file names it.
    pub topology: Option<String>,
    /// Who goes where. Empty where everybody is there already.
    pub moved: Vec<Moved>,
    /// What changes, as a unified diff.
    pub diff: String,
    /// What is wrong with the result.
    pub faults: Vec<Fault>,
    /// What is not wrong and should be known before it is taken.
    pub remarks: Vec<String>,
    /// The file that is proposed.
    #[serde(skip)]
    pub after: String,
    /// The blocks of the topology as proposed.
    #[serde(skip)]
    pub blocks: Blocks,
}

impl Proposal {
    /// Whether it differs from the file.
    pub fn is_change(&self) -> bool {
        !self.moved.is_empty()
    }

    /// What forbids to put it in place.
    pub fn in_the_way(&self) -> Vec<&Fault> {
        self.faults.iter().filter(|fault| fault.forbids).collect()
    }
}

/// Why no file is proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// The file with these nodes in these blocks and every other letter as it is;
/// refused where that is not a change of single host lists.
pub fn propose(text: &str, wanted: &Wanted, ground: &Ground) -> Result<Proposal, Refused> {
    let Some(form) = Form::of(text) else {
        return refused("this is neither a topology.yaml nor a topology.conf");
    };
    if form == Form::Conf
        && let Some(include) = block_places::in_conf(text).1.first()
    {
        return refused(format!(
            "it includes another file ({}), whose blocks would have to be changed with it",
            clean(include)
        ));
    }
    let said = form.read(text);
    let topology = chosen(form, &said, wanted.topology.as_deref())?;
    let before = blocks(&said, topology.as_deref());
    let (blocks, moved) = moved(&before, &wanted.moves)?;
    let edits = edits(form, text, topology.as_deref(), &before, &blocks)?;
    let mut after = text.to_owned();
    for (range, list) in edits.into_iter().rev() {
        after.replace_range(range, &list);
    }
    let result = form.read(&after);
    as_meant(&said, &result, topology.as_deref(), &blocks)?;
    let today = faults::of(form, text, &said, ground);
    let mut faults = faults::against(&today, faults::of(form, &after, &result, ground), ground);
    faults.sort();
    let diff = TextDiff::from_lines(text, &after);
    let diff = diff.unified_diff().header(form.file(), form.file()).to_string();
    let mut remarks: Vec<String> =
        result.notes.iter().filter(|note| !said.notes.contains(note)).cloned().collect();
    let own = groups(&result).filter(|group| group.topology == topology);
    let base = own.filter_map(|group| usize::try_from(group.size?).ok()).max();
    remarks.extend(shrunk(&before, &blocks, base));
    Ok(Proposal {
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
fn groups(said: &Said) -> impl Iterator<Item = &Group> {
    said.groups.iter().filter(|group| group.kind == GroupKind::Domain)
}

/// The blocks of one topology.
fn blocks(said: &Said, topology: Option<&str>) -> Blocks {
    let own = groups(said).filter(|group| group.topology.as_deref() == topology);
    own.map(|group| (group.name.clone(), group.nodes.iter().cloned().collect())).collect()
}

/// The topology that is meant.
fn chosen(form: Form, said: &Said, wanted: Option<&str>) -> Result<Option<String>, Refused> {
    let has = |group: &Group| match wanted {
        Some(name) => group.topology.as_deref() == Some(name),
        None => group.in_force,
    };
    match (groups(said).find(|group| has(group)), wanted, form) {
        (_, Some(name), Form::Conf) if name != moving::OF_CONF => refused(format!(
            "a topology.conf has one topology, which Slurm calls {}; there is no {}",
            moving::OF_CONF,
            clean(name)
        )),
        (None, Some(name), Form::Yaml) => {
            refused(format!("it has no topology of blocks that is called {}", clean(name)))
        }
        (None, _, _) => match said.problems.first() {
            Some(problem) => refused(format!("its blocks cannot be read: {problem}")),
            None => refused("its default topology has no blocks; another one must be named"),
        },
        (Some(group), _, _) => Ok(group.topology.clone()),
    }
}

/// The blocks after the moves, and who changes its place.
fn moved(
    before: &Blocks,
    moves: &BTreeMap<NodeName, String>,
) -> Result<(Blocks, Vec<Moved>), Refused> {
    let mut blocks = before.clone();
    let mut moved = Vec::new();
    for (node, to) in moves {
        let (shown, name) = (clean(node.as_str()), clean(to));
        if !hostlist::is_name(node.as_str()) {
            return refused(format!("{shown} is no name of one node"));
        }
        if !before.contains_key(to) {
            let known: Vec<&str> = before.keys().map(String::as_str).collect();
            let known = clean(&known.join(", "));
            return refused(format!("there is no block {name} for {shown} (there are {known})"));
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
        moved.push(Moved { node: node.clone(), from, to: to.clone() });
    }
    let emptied = blocks.iter().find(|(name, nodes)| nodes.is_empty() && !before[*name].is_empty());
    match emptied {
        Some((name, _)) => refused(format!(
            "block {} would be left without a node; whether it should go is a person's to say",
            clean(name)
        )),
        None => Ok((blocks, moved)),
    }
}

/// The host lists that change, in order of place.
fn edits(
    form: Form,
    text: &str,
    topology: Option<&str>,
    before: &Blocks,
    after: &Blocks,
) -> Result<Vec<(std::ops::Range<usize>, String)>, Refused> {
    let places = form.places(text);
    let mut edits = Vec::new();
    for (name, nodes) in after.iter().filter(|(name, nodes)| before[*name] != **nodes) {
        let own: Vec<&BlockPlace> = places
            .iter()
            .filter(|place| place.topology.as_deref() == topology && place.block == *name)
            .collect();
        let [place] = own.as_slice() else {
            return refused(format!("block {} is written in {} places", clean(name), own.len()));
        };
        let range = place.list.clone().map_err(|why| {
            let at = format!("{}:{}", form.file(), place.line);
            Refused(format!("block {} ({at}) cannot be changed alone: {why}", clean(name)))
        })?;
        edits.push((range, hostlist::fold(nodes.iter().map(NodeName::as_str))));
    }
    edits.sort_by_key(|(range, _)| range.start);
    if edits.windows(2).any(|pair| pair[1].0.start < pair[0].0.end) {
        return refused("two blocks share one host list, and changing one would change both");
    }
    Ok(edits)
}

/// The edited text, read anew, says what was meant, and of all else what it
/// said before.
fn as_meant(
    said: &Said,
    result: &Said,
    topology: Option<&str>,
    blocks: &Blocks,
) -> Result<(), Refused> {
    let told = |said: &Said| -> Vec<(Option<String>, String, BTreeSet<NodeName>, bool)> {
        let told = groups(said).map(|group| {
            let own = group.topology.as_deref() == topology;
            let nodes = match blocks.get(&group.name) {
                Some(meant) if own => meant.clone(),
                _ => group.nodes.iter().cloned().collect(),
            };
            (group.topology.clone(), group.name.clone(), nodes, group.in_force)
        });
        told.collect()
    };
    let is_meant = told(said) == told(result) && self::blocks(result, topology) == *blocks;
    let others = |said: &Said| -> Vec<Group> {
        let others = said.groups.iter().filter(|group| group.kind != GroupKind::Domain);
        others.map(|group| Group { at: None, ..group.clone() }).collect()
    };
    if is_meant && others(said) == others(result) {
        Ok(())
    } else {
        refused("the change would mean something else than was meant; it is a person's to make")
    }
}

/// What follows for jobs where the largest block gets smaller. Jobs above the
/// base size take several blocks anyway.
fn shrunk(before: &Blocks, after: &Blocks, base: Option<usize>) -> Option<String> {
    let largest = |blocks: &Blocks| blocks.values().map(BTreeSet::len).max().unwrap_or(0);
    let (before, after) = (largest(before), largest(after));
    (after < before && base.is_none_or(|base| after < base)).then(|| {
        format!(
            "no block has more than {after} nodes then ({before} today): pending jobs that need \
             more in one block are held for good (BadConstraints, priority 0), and new ones \
             refused"
        )
    })
}

#[cfg(test)]
mod tests;
