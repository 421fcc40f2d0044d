//! Slurm's `topology.yaml` (25.05 and later), and the output of `scontrol show topoconf`: several
//! topologies, of which one is the default and partitions may use others.
//!
//! Slurm rejects a file with one mistake as a whole. Here each topology is parsed separately, so
//! that the claims of the others can still be tested.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use super::blocks::{SlurmBlock, SlurmBlockTopology};
use super::host_list_budget::{HostListBudget, SlurmTextPosition, list_some, strip_bom};
use super::switch_tree::{SlurmSwitch, SlurmSwitchTree};
use super::yaml_tree;
use super::yaml_tree::{YamlNode, YamlValue};
use crate::claims::reader_util::limit_notes;
use model::source_report::{ClaimBasis, SourceKind, SourceProblemKind, SourceReport};

/// Kinds of topologies in Slurm (26.05).
const KINDS: [&str; 5] = ["block", "tree", "flat", "ring", "torus3d"];

/// Whether a text is a `topology.yaml`: it has a line that begins a topology. A later mistake
/// does not change that.
pub fn recognises(text: &str) -> bool {
    let is_key = |line: &str| {
        // Keys of an item align with the text after its dash.
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
    let rest: Vec<&str> = strip_bom(text).lines().skip_while(|line| begins(line)).collect();
    let is_list = rest.first().is_some_and(|line| line.trim_start().starts_with(['-', '[']));
    rest.first().is_some_and(|line| is_key(line))
        || (is_list && rest.iter().take(200).any(|line| is_key(line)))
}

/// Parses the file. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmTopologyYaml, place);
    let document = yaml_tree::read(strip_bom(text));
    for remark in document.duplicate_keys {
        let at = SlurmTextPosition::new(place, remark.line, remark.column).to_string();
        report.push_problem(SourceProblemKind::Contradictory, at, remark.message);
    }
    if let Some(remark) = document.error {
        let at = SlurmTextPosition::new(place, remark.line, remark.column).to_string();
        let message = format!("{}; Slurm rejects the whole file", remark.message);
        report.push_problem(SourceProblemKind::Malformed, at, message);
    }
    if document.has_more {
        report.notes.push("only the first document of the file is read, as Slurm does".to_owned());
    }
    let Some(root) = document.root else {
        if report.problems.is_empty() {
            report.push_problem(SourceProblemKind::Incomplete, None, "the file is empty");
        }
        return limit_notes(report);
    };
    let mut file = TopologyYamlReader { place, report, host_lists: HostListBudget::new() };
    file.read_topologies(&root);
    limit_notes(file.report)
}

struct TopologyYamlReader<'p> {
    place: &'p str,
    report: SourceReport,
    host_lists: HostListBudget,
}

/// One topology, parsed from its own keys.
struct YamlTopology {
    name: String,
    is_default: bool,
    kind: &'static str,
    config: Rc<YamlNode>,
}

impl TopologyYamlReader<'_> {
    fn position(&self, node: &YamlNode) -> SlurmTextPosition<'_> {
        SlurmTextPosition::new(self.place, node.line, node.column)
    }

    fn location(&self, node: &YamlNode) -> String {
        self.position(node).to_string()
    }

    fn push_problem(
        &mut self,
        kind: SourceProblemKind,
        node: &YamlNode,
        message: impl Into<String>,
    ) {
        let at = self.location(node);
        self.report.push_problem(kind, at, message);
    }

    fn read_topologies(&mut self, root: &Rc<YamlNode>) {
        if matches!(root.value, YamlValue::Text(_)) {
            self.push_problem(
                SourceProblemKind::Malformed,
                root,
                "a list of topologies is expected",
            );
            return;
        }
        let items = root.items();
        if items.is_empty() && self.report.problems.is_empty() {
            self.push_problem(SourceProblemKind::Incomplete, root, "no topology is defined");
        }
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        let mut default: Option<String> = None;
        let mut read: Vec<YamlTopology> = Vec::new();
        for item in &items {
            // The name is registered before any further error, so that a broken default stays the
            // default.
            let Some(name) = self.read_name(item) else { continue };
            if let Some(first) = seen.get(&name) {
                let message = format!(
                    "topology {name} is defined twice; Slurm rejects that, the first one is used \
                     ({first})"
                );
                self.push_problem(SourceProblemKind::Contradictory, item, message);
                continue;
            }
            seen.insert(name.clone(), self.location(item));
            let mut is_default = self.read_flag(item, "cluster_default");
            if is_default {
                match &default {
                    Some(first) => {
                        let message = format!(
                            "topologies {first} and {name} are both cluster_default; the first \
                             one counts"
                        );
                        self.push_problem(SourceProblemKind::Contradictory, item, message);
                        is_default = false;
                    }
                    None => default = Some(name.clone()),
                }
            }
            if let Some((kind, config)) = self.read_kind(item, &name) {
                read.push(YamlTopology { name, is_default, kind, config });
            }
        }
        if default.is_none()
            && let Some(first) = read.first_mut()
        {
            first.is_default = true;
            self.report.notes.push(format!(
                "no topology is cluster_default; the first one, {}, is used as the default",
                first.name
            ));
        }
        for topology in read {
            self.read_topology(&topology);
        }
    }

    fn read_name(&mut self, item: &Rc<YamlNode>) -> Option<String> {
        let YamlValue::Map(_) = item.value else {
            let message = format!("expected a topology, found {}", item.kind_name());
            self.push_problem(SourceProblemKind::Malformed, item, message);
            return None;
        };
        match item.get("topology").and_then(|node| node.text()) {
            Some(name) if !name.trim().is_empty() => Some(name.to_owned()),
            _ => {
                let message = "a topology without a name (`topology: NAME`); it is skipped";
                self.push_problem(SourceProblemKind::Incomplete, item, message);
                None
            }
        }
    }

    fn read_flag(&mut self, item: &YamlNode, key: &str) -> bool {
        let Some(node) = item.get(key).cloned() else { return false };
        match parse_bool(&node) {
            Some(flag) => flag,
            None => {
                let message = format!("{key}: expected true or false");
                self.push_problem(SourceProblemKind::Malformed, &node, message);
                false
            }
        }
    }

    /// The single kind of a topology. Empty kinds do not count: `scontrol show topoconf` writes
    /// every other kind that way.
    fn read_kind(
        &mut self,
        item: &Rc<YamlNode>,
        name: &str,
    ) -> Option<(&'static str, Rc<YamlNode>)> {
        let found: Vec<(&'static str, Rc<YamlNode>)> = KINDS
            .iter()
            .filter_map(|kind| Some((*kind, Rc::clone(item.get(kind)?))))
            .filter(|(kind, config)| has_content(kind, config))
            .collect();
        let YamlValue::Map(entries) = &item.value else { return None };
        let unknown: Vec<&str> = entries
            .iter()
            .map(|(key, _)| key.as_str())
            .filter(|key| !KINDS.contains(key) && !["topology", "cluster_default"].contains(key))
            .collect();
        match found.as_slice() {
            [one] => {
                if !unknown.is_empty() {
                    let unknown = list_some(unknown);
                    self.report.notes.push(format!("topology {name}: unknown keys: {unknown}"));
                }
                Some(one.clone())
            }
            [] if !unknown.is_empty() => {
                let unknown = list_some(unknown);
                self.report
                    .notes
                    .push(format!("topology {name}: no known kind ({unknown}); skipped"));
                None
            }
            [] => {
                let message = format!("topology {name}: no kind is given (block, tree or flat)");
                self.push_problem(SourceProblemKind::Incomplete, item, message);
                None
            }
            several => {
                let kinds = list_some(several.iter().map(|(kind, _)| *kind));
                let message = format!(
                    "topology {name} has several kinds ({kinds}); Slurm rejects that, it is skipped"
                );
                self.push_problem(SourceProblemKind::Contradictory, item, message);
                None
            }
        }
    }

    fn read_topology(&mut self, topology: &YamlTopology) {
        let is_default = if topology.is_default { ", the cluster's default" } else { "" };
        match topology.kind {
            "block" => self.read_block(topology),
            "tree" => self.read_tree(topology),
            "flat" => self
                .report
                .notes
                .push(format!("topology {}{is_default}: flat, it makes no claim", topology.name)),
            kind => self.report.notes.push(format!(
                "topology {}{is_default}: {kind} topologies are ignored",
                topology.name
            )),
        }
    }

    fn read_block(&mut self, topology: &YamlTopology) {
        let config = &topology.config;
        let (sizes, sizes_at) = self.read_sizes(config, &topology.name);
        let Some(entries) = self.read_list(config, "blocks", &topology.name) else { return };
        let mut blocks = Vec::new();
        for entry in entries {
            let Some((name, at)) = self.read_named_entry(&entry, "block", &topology.name) else {
                continue;
            };
            let nodes = self.read_nodes(&entry, "nodes");
            blocks.push(SlurmBlock { name, nodes, size: None, basis: ClaimBasis::Asserted, at });
        }
        let sizes_at = sizes_at.or_else(|| Some(self.location(config)));
        SlurmBlockTopology {
            topology: Some(&topology.name),
            in_force: topology.is_default,
            sizes,
            sizes_at,
        }
        .add_to_report(&mut self.report, blocks);
    }

    fn read_tree(&mut self, topology: &YamlTopology) {
        let Some(entries) = self.read_list(&topology.config, "switches", &topology.name) else {
            return;
        };
        let mut switches = Vec::new();
        for entry in entries {
            let Some((name, at)) = self.read_named_entry(&entry, "switch", &topology.name) else {
                continue;
            };
            let nodes = self.read_nodes(&entry, "nodes");
            let mut below = self.read_names(&entry, "children");
            let has_both = nodes.as_ref().is_none_or(|nodes| !nodes.is_empty())
                && below.as_ref().is_none_or(|below| !below.is_empty());
            if has_both {
                let message = format!(
                    "switch {name} has both nodes and children; Slurm ignores the children"
                );
                self.push_problem(SourceProblemKind::Contradictory, &entry, message);
                below = Some(Vec::new());
            }
            switches.push(SlurmSwitch { name, nodes, below, at });
        }
        SlurmSwitchTree { topology: Some(&topology.name), in_force: topology.is_default }
            .add_to_report(&mut self.report, switches);
    }

    /// The entries of a required list of a topology.
    fn read_list(
        &mut self,
        config: &Rc<YamlNode>,
        key: &str,
        topology: &str,
    ) -> Option<Vec<Rc<YamlNode>>> {
        let Some(list) = config.get(key) else {
            let message = format!("topology {topology}: {key} is missing");
            self.push_problem(SourceProblemKind::Incomplete, config, message);
            return None;
        };
        if let YamlValue::Text(_) = list.value {
            let message = format!(
                "topology {topology}: {key} must be a list; Slurm rejects that, it is skipped"
            );
            self.push_problem(SourceProblemKind::Malformed, list, message);
            return None;
        }
        Some(list.items())
    }

    /// Name and location of an entry.
    fn read_named_entry(
        &mut self,
        entry: &Rc<YamlNode>,
        key: &str,
        topology: &str,
    ) -> Option<(String, String)> {
        let name = entry.get(key);
        match name.and_then(|node| node.text()).filter(|name| !name.trim().is_empty()) {
            Some(text) => {
                let text = text.to_owned();
                let at = self.location(name.unwrap_or(entry));
                Some((text, at))
            }
            None => {
                let message = format!("topology {topology}: a {key} without a name is skipped");
                self.push_problem(SourceProblemKind::Incomplete, entry, message);
                None
            }
        }
    }

    /// The names in a host list, or in a list of them.
    fn read_names(&mut self, entry: &YamlNode, key: &str) -> Option<Vec<String>> {
        let Some(node) = entry.get(key).cloned() else { return Some(Vec::new()) };
        let mut names = Vec::new();
        for item in node.items() {
            let Some(list) = item.text() else {
                let message = format!("{key}: expected a host list, found {}", item.kind_name());
                self.push_problem(SourceProblemKind::Malformed, &item, message);
                return None;
            };
            let spot = SlurmTextPosition::new(self.place, item.line, item.column);
            names.extend(self.host_lists.expand_names(&mut self.report, spot, list)?);
        }
        let mut seen = HashSet::new();
        let count = names.len();
        names.retain(|name| seen.insert(name.clone()));
        if names.len() < count {
            let at = self.location(entry);
            self.report.notes.push(format!("{at}: {key} contain duplicates"));
        }
        Some(names)
    }

    fn read_nodes(&mut self, entry: &YamlNode, key: &str) -> Option<Vec<model::id::NodeName>> {
        Some(self.read_names(entry, key)?.into_iter().map(Into::into).collect())
    }

    fn read_sizes(&mut self, config: &Rc<YamlNode>, topology: &str) -> (Vec<u32>, Option<String>) {
        let Some(node) = config.get("block_sizes").cloned() else { return (Vec::new(), None) };
        let at = self.location(&node);
        let mut sizes = Vec::new();
        for item in node.items() {
            // Slurm does not accept `18,36` as one text either.
            match item.text().and_then(|text| text.trim().parse().ok()) {
                Some(size) => sizes.push(size),
                None => {
                    let message =
                        format!("topology {topology}: block_sizes must be numbers of nodes");
                    self.push_problem(SourceProblemKind::Malformed, &item, message);
                }
            }
        }
        (sizes, Some(at))
    }
}

/// Whether a kind is present and not empty.
fn has_content(kind: &str, config: &YamlNode) -> bool {
    match &config.value {
        YamlValue::Null => false,
        YamlValue::Text(_) => kind != "flat" || parse_bool(config) != Some(false),
        YamlValue::List(items) => !items.is_empty(),
        YamlValue::Map(entries) => !entries.is_empty(),
    }
}

/// Slurm's notations for true and false.
fn parse_bool(node: &YamlNode) -> Option<bool> {
    match node.text()?.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
#[path = "topology_yaml_tests.rs"]
mod tests;
