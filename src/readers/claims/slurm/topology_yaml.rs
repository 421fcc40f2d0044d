//! Slurm's `topology.yaml` (25.05 and later), and what `scontrol show
//! topoconf` prints of it: several topologies, of which one is the default and
//! partitions may use others.
//!
//! Slurm refuses a file with one mistake whole. Here each topology stands for
//! itself, so that what the others claim can still be tested.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::rc::Rc;

use super::blocks::Block;
use super::blocks::Blocks;
use super::listed::Listed;
use super::listed::Spot;
use super::listed::some;
use super::listed::without_mark;
use super::tree::Switch;
use super::tree::Tree;
use super::yaml;
use super::yaml::Node;
use super::yaml::Value;
use crate::claims::reading::bounded;
use model::said::Basis;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;

/// Kinds of topologies that Slurm has (26.05).
const KINDS: [&str; 5] = ["block", "tree", "flat", "ring", "torus3d"];

/// Whether a text looks like one: a line that begins a topology. A mistake
/// further on does not make it something else.
pub fn recognises(text: &str) -> bool {
    let is_key = |line: &str| {
        // Keys of an item stand right below its dash, not deeper.
        if line.starts_with("    ") {
            return false;
        }
        let line = line.trim_start().trim_start_matches('-').trim_start();
        let line = line.trim_start_matches(['[', '{', '"', '\'']);
        line.strip_prefix("topology")
            .is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':'))
    };
    let begins = |line: &str| {
        let line = line.trim();
        line.is_empty() || line.starts_with(['#', '%']) || line.starts_with("---") || line == "-"
    };
    let rest: Vec<&str> = without_mark(text).lines().skip_while(|line| begins(line)).collect();
    let is_list = rest.first().is_some_and(|line| line.trim_start().starts_with(['-', '[']));
    rest.first().is_some_and(|line| is_key(line))
        || (is_list && rest.iter().take(200).any(|line| is_key(line)))
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> Said {
    let mut said = Said::nothing(SourceKind::SlurmTopologyYaml, place);
    let document = yaml::read(without_mark(text));
    for remark in document.twice {
        let at = Spot::at(place, remark.line, remark.column).to_string();
        said.trouble(ProblemKind::Contradictory, at, remark.message);
    }
    if let Some(remark) = document.stopped {
        let at = Spot::at(place, remark.line, remark.column).to_string();
        let message = format!("{}; Slurm refuses the whole file", remark.message);
        said.trouble(ProblemKind::Malformed, at, message);
    }
    if document.has_more {
        said.notes.push("only the first document of the file is read, as Slurm does".to_owned());
    }
    let Some(root) = document.root else {
        if said.problems.is_empty() {
            said.trouble(ProblemKind::Incomplete, None, "the file is empty");
        }
        return bounded(said);
    };
    let mut file = File { place, said, listed: Listed::new() };
    file.topologies(&root);
    bounded(file.said)
}

struct File<'p> {
    place: &'p str,
    said: Said,
    listed: Listed,
}

/// One topology, as far as its own keys go.
struct Topology {
    name: String,
    is_default: bool,
    kind: &'static str,
    config: Rc<Node>,
}

impl File<'_> {
    fn spot(&self, node: &Node) -> Spot<'_> {
        Spot::at(self.place, node.line, node.column)
    }

    fn at(&self, node: &Node) -> String {
        self.spot(node).to_string()
    }

    fn trouble(&mut self, kind: ProblemKind, node: &Node, message: impl Into<String>) {
        let at = self.at(node);
        self.said.trouble(kind, at, message);
    }

    fn topologies(&mut self, root: &Rc<Node>) {
        if matches!(root.value, Value::Text(_)) {
            self.trouble(ProblemKind::Malformed, root, "a list of topologies is expected");
            return;
        }
        let items = root.items();
        if items.is_empty() && self.said.problems.is_empty() {
            self.trouble(ProblemKind::Incomplete, root, "no topology is defined");
        }
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        let mut default: Option<String> = None;
        let mut read: Vec<Topology> = Vec::new();
        for item in &items {
            // The name is registered before anything else can be wrong, so that
            // a broken default stays the default.
            let Some(name) = self.name(item) else { continue };
            if let Some(first) = seen.get(&name) {
                let message = format!(
                    "topology {name} is defined twice; Slurm refuses that, the first is used \
                     ({first})"
                );
                self.trouble(ProblemKind::Contradictory, item, message);
                continue;
            }
            seen.insert(name.clone(), self.at(item));
            let mut is_default = self.flag(item, "cluster_default");
            if is_default {
                match &default {
                    Some(first) => {
                        let message = format!(
                            "topologies {first} and {name} are both cluster_default; the first \
                             one counts"
                        );
                        self.trouble(ProblemKind::Contradictory, item, message);
                        is_default = false;
                    }
                    None => default = Some(name.clone()),
                }
            }
            if let Some((kind, config)) = self.kind(item, &name) {
                read.push(Topology { name, is_default, kind, config });
            }
        }
        if default.is_none()
            && let Some(first) = read.first_mut()
        {
            first.is_default = true;
            self.said.notes.push(format!(
                "no topology is cluster_default; the first one, {}, is taken for it",
                first.name
            ));
        }
        for topology in read {
            self.topology(&topology);
        }
    }

    fn name(&mut self, item: &Rc<Node>) -> Option<String> {
        let Value::Map(_) = item.value else {
            let message = format!("a topology is expected, found {}", item.kind());
            self.trouble(ProblemKind::Malformed, item, message);
            return None;
        };
        match item.get("topology").and_then(|node| node.text()) {
            Some(name) if !name.trim().is_empty() => Some(name.to_owned()),
            _ => {
                let message = "a topology without a name (`topology: NAME`); it is skipped";
                self.trouble(ProblemKind::Incomplete, item, message);
                None
            }
        }
    }

    fn flag(&mut self, item: &Node, key: &str) -> bool {
        let Some(node) = item.get(key).cloned() else { return false };
        match truth(&node) {
            Some(flag) => flag,
            None => {
                let message = format!("{key}: true or false is expected");
                self.trouble(ProblemKind::Malformed, &node, message);
                false
            }
        }
    }

    /// The one kind of a topology. Empty ones count for nothing: that is how
    /// `scontrol show topoconf` writes all kinds that a topology is not of.
    fn kind(&mut self, item: &Rc<Node>, name: &str) -> Option<(&'static str, Rc<Node>)> {
        let found: Vec<(&'static str, Rc<Node>)> = KINDS
            .iter()
            .filter_map(|kind| Some((*kind, Rc::clone(item.get(kind)?))))
            .filter(|(kind, config)| claims_something(kind, config))
            .collect();
        let Value::Map(entries) = &item.value else { return None };
        let unknown: Vec<&str> = entries
            .iter()
            .map(|(key, _)| key.as_str())
            .filter(|key| !KINDS.contains(key) && !["topology", "cluster_default"].contains(key))
            .collect();
        match found.as_slice() {
            [one] => {
                if !unknown.is_empty() {
                    let unknown = some(unknown);
                    self.said.notes.push(format!("topology {name}: unknown keys: {unknown}"));
                }
                Some(one.clone())
            }
            [] if !unknown.is_empty() => {
                let unknown = some(unknown);
                self.said
                    .notes
                    .push(format!("topology {name}: no kind that is known ({unknown}); skipped"));
                None
            }
            [] => {
                let message = format!("topology {name}: no kind is given (block, tree or flat)");
                self.trouble(ProblemKind::Incomplete, item, message);
                None
            }
            several => {
                let kinds = some(several.iter().map(|(kind, _)| *kind));
                let message = format!(
                    "topology {name} is of several kinds ({kinds}); Slurm refuses that, it is \
                     skipped"
                );
                self.trouble(ProblemKind::Contradictory, item, message);
                None
            }
        }
    }

    fn topology(&mut self, topology: &Topology) {
        let is_default = if topology.is_default { ", the cluster's default" } else { "" };
        match topology.kind {
            "block" => self.block(topology),
            "tree" => self.tree(topology),
            "flat" => self
                .said
                .notes
                .push(format!("topology {}{is_default}: flat, it claims nothing", topology.name)),
            kind => self.said.notes.push(format!(
                "topology {}{is_default}: {kind} topologies are not read",
                topology.name
            )),
        }
    }

    fn block(&mut self, topology: &Topology) {
        let config = &topology.config;
        let (sizes, sizes_at) = self.sizes(config, &topology.name);
        let Some(entries) = self.list(config, "blocks", &topology.name) else { return };
        let mut blocks = Vec::new();
        for entry in entries {
            let Some((name, at)) = self.named(&entry, "block", &topology.name) else { continue };
            let nodes = self.nodes(&entry, "nodes");
            blocks.push(Block { name, nodes, size: None, basis: Basis::Asserted, at });
        }
        let sizes_at = sizes_at.or_else(|| Some(self.at(config)));
        Blocks { topology: Some(&topology.name), in_force: topology.is_default, sizes, sizes_at }
            .say(&mut self.said, blocks);
    }

    fn tree(&mut self, topology: &Topology) {
        let Some(entries) = self.list(&topology.config, "switches", &topology.name) else {
            return;
        };
        let mut switches = Vec::new();
        for entry in entries {
            let Some((name, at)) = self.named(&entry, "switch", &topology.name) else { continue };
            let nodes = self.nodes(&entry, "nodes");
            let mut below = self.names(&entry, "children");
            let has_both = nodes.as_ref().is_none_or(|nodes| !nodes.is_empty())
                && below.as_ref().is_none_or(|below| !below.is_empty());
            if has_both {
                let message = format!(
                    "switch {name} has both nodes and children; Slurm ignores the children"
                );
                self.trouble(ProblemKind::Contradictory, &entry, message);
                below = Some(Vec::new());
            }
            switches.push(Switch { name, nodes, below, at });
        }
        Tree { topology: Some(&topology.name), in_force: topology.is_default }
            .say(&mut self.said, switches);
    }

    /// The entries of a list that a topology must have.
    fn list(&mut self, config: &Rc<Node>, key: &str, topology: &str) -> Option<Vec<Rc<Node>>> {
        let Some(list) = config.get(key) else {
            let message = format!("topology {topology}: {key} is missing");
            self.trouble(ProblemKind::Incomplete, config, message);
            return None;
        };
        if let Value::Text(_) = list.value {
            let message = format!(
                "topology {topology}: {key} must be a list; Slurm refuses that, it is skipped"
            );
            self.trouble(ProblemKind::Malformed, list, message);
            return None;
        }
        Some(list.items())
    }

    /// Name and place of an entry.
    fn named(&mut self, entry: &Rc<Node>, key: &str, topology: &str) -> Option<(String, String)> {
        let name = entry.get(key);
        match name.and_then(|node| node.text()).filter(|name| !name.trim().is_empty()) {
            Some(text) => {
                let text = text.to_owned();
                let at = self.at(name.unwrap_or(entry));
                Some((text, at))
            }
            None => {
                let message = format!("topology {topology}: a {key} without a name is skipped");
                self.trouble(ProblemKind::Incomplete, entry, message);
                None
            }
        }
    }

    /// The names that a host list, or a list of them, stands for.
    fn names(&mut self, entry: &Node, key: &str) -> Option<Vec<String>> {
        let Some(node) = entry.get(key).cloned() else { return Some(Vec::new()) };
        let mut names = Vec::new();
        for item in node.items() {
            let Some(list) = item.text() else {
                let message = format!("{key}: a host list is expected, found {}", item.kind());
                self.trouble(ProblemKind::Malformed, &item, message);
                return None;
            };
            let spot = Spot::at(self.place, item.line, item.column);
            names.extend(self.listed.names(&mut self.said, spot, list)?);
        }
        let mut seen = HashSet::new();
        let count = names.len();
        names.retain(|name| seen.insert(name.clone()));
        if names.len() < count {
            let at = self.at(entry);
            self.said.notes.push(format!("{at}: {key} name some more than once"));
        }
        Some(names)
    }

    fn nodes(&mut self, entry: &Node, key: &str) -> Option<Vec<model::id::NodeName>> {
        Some(self.names(entry, key)?.into_iter().map(Into::into).collect())
    }

    fn sizes(&mut self, config: &Rc<Node>, topology: &str) -> (Vec<u32>, Option<String>) {
        let Some(node) = config.get("block_sizes").cloned() else { return (Vec::new(), None) };
        let at = self.at(&node);
        let mut sizes = Vec::new();
        for item in node.items() {
            // `18,36` in one text is not what Slurm reads either.
            match item.text().and_then(|text| text.trim().parse().ok()) {
                Some(size) => sizes.push(size),
                None => {
                    let message =
                        format!("topology {topology}: block_sizes must be numbers of nodes");
                    self.trouble(ProblemKind::Malformed, &item, message);
                }
            }
        }
        (sizes, Some(at))
    }
}

/// Whether a kind is there with anything in it.
fn claims_something(kind: &str, config: &Node) -> bool {
    match &config.value {
        Value::Nothing => false,
        Value::Text(_) => kind != "flat" || truth(config) != Some(false),
        Value::List(items) => !items.is_empty(),
        Value::Map(entries) => !entries.is_empty(),
    }
}

/// What Slurm takes for true and false.
fn truth(node: &Node) -> Option<bool> {
    match node.text()?.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
#[path = "topology_yaml_tests.rs"]
mod tests;
