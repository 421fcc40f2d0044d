//! Checks the entries of a cabling file against each other and combines them by node, leaf and
//! rack.
//!
//! Independent of CSV and TOML.

use std::collections::{BTreeMap, BTreeSet};

use crate::claims::reader_util::{is_rdma_device, push_problem, quote_text, sanitize_text};
use model::claims::ClaimedRail;
use model::hostlist;
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, NicReport, NodeGroup, NodeGroupKind, SourceProblemKind, SourceReport,
};

/// Limit for the nodes in all entries together: host lists are short to write. The largest
/// clusters have a few ten thousand nodes with ten NICs each.
const MAX_NODES: usize = 1_000_000;

/// One entry: the location of some nodes, and one of their NICs.
#[derive(Clone, Debug, Default)]
pub(super) struct CablingEntry {
    pub(super) line: usize,
    /// The nodes, as a host list.
    pub(super) nodes: String,
    pub(super) rack: Option<String>,
    pub(super) slot: Option<String>,
    /// Name of the NIC's device on the node.
    pub(super) device: Option<String>,
    pub(super) rail: Option<String>,
    pub(super) leaf: Option<String>,
    pub(super) port: Option<String>,
}

/// A value and its line number.
type TextAtLine = (String, usize);

#[derive(Debug, Default)]
struct CabledLeaf {
    line: usize,
    nodes: Vec<NodeName>,
    node_set: BTreeSet<NodeName>,
    rails: BTreeSet<String>,
    /// At least one cable to it has no rail.
    without_rail: bool,
    /// The rail in its own entry.
    own_rail: Option<String>,
    /// Its own entry lists its nodes.
    has_list: bool,
}

pub(super) struct CablingBuilder<'s> {
    report: &'s mut SourceReport,
    nodes_left: usize,
    racks: BTreeMap<NodeName, TextAtLine>,
    slots: BTreeMap<NodeName, TextAtLine>,
    rails: BTreeMap<(NodeName, String), usize>,
    devices: BTreeMap<(NodeName, String), usize>,
    ports: BTreeMap<(String, String), (NodeName, usize)>,
    leaves: BTreeMap<String, CabledLeaf>,
    order: Vec<String>,
}

impl<'s> CablingBuilder<'s> {
    pub(super) fn new(report: &'s mut SourceReport) -> Self {
        Self {
            report,
            nodes_left: MAX_NODES,
            racks: BTreeMap::new(),
            slots: BTreeMap::new(),
            rails: BTreeMap::new(),
            devices: BTreeMap::new(),
            ports: BTreeMap::new(),
            leaves: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    /// Adds a problem at this line.
    pub(super) fn push_problem(
        &mut self,
        kind: SourceProblemKind,
        line: usize,
        message: impl Into<String>,
    ) {
        let at = self.location(line);
        push_problem(self.report, kind, at, message);
    }

    pub(super) fn push_note(&mut self, note: String) {
        self.report.notes.push(note);
    }

    fn location(&self, line: usize) -> String {
        format!("{}:{line}", self.report.source.place)
    }

    /// The nodes of a host list; on an error, no node and a problem.
    fn expand_nodes(&mut self, line: usize, list: &str) -> Vec<NodeName> {
        let names = match hostlist::expand(list) {
            Ok(names) => names,
            Err(error) => {
                let list = quote_text(list);
                let message =
                    format!("column node: {list}: {error}, expected a name or a host list");
                self.push_problem(SourceProblemKind::Malformed, line, message);
                return Vec::new();
            }
        };
        if self.nodes_left < names.len() {
            if 0 < self.nodes_left {
                let message = format!(
                    "more than {MAX_NODES} nodes by name, expected fewer; the rest is ignored"
                );
                self.push_problem(SourceProblemKind::Unsupported, line, message);
            }
            self.nodes_left = 0;
            return Vec::new();
        }
        self.nodes_left -= names.len();
        names.into_iter().map(NodeName::from).collect()
    }

    pub(super) fn add_entry(&mut self, entry: &CablingEntry) {
        let line = entry.line;
        let nodes = self.expand_nodes(line, &entry.nodes);
        let Some(first) = nodes.first().cloned() else { return };
        let is_one = nodes.len() == 1;
        let has_nic = entry.device.is_some()
            || entry.rail.is_some()
            || entry.leaf.is_some()
            || entry.port.is_some();
        if !has_nic && entry.rack.is_none() && entry.slot.is_none() {
            let message = format!("only the name of {first}, expected at least one other column");
            self.push_problem(SourceProblemKind::Incomplete, line, message);
        }
        let mut port = entry.port.as_ref();
        if port.is_some() && entry.leaf.is_none() {
            let message = "column port: a port without a leaf, expected the leaf switch";
            self.push_problem(SourceProblemKind::Malformed, line, message);
            port = None;
        }
        let mut slot = entry.slot.as_ref();
        for (column, value) in [("slot", &mut slot), ("port", &mut port)] {
            if let Some(value) = value.take_if(|_| !is_one) {
                let message = format!(
                    "column {column}: {} for {} nodes, expected one node per line where it is set",
                    quote_text(value),
                    nodes.len()
                );
                self.push_problem(SourceProblemKind::Contradictory, line, message);
            }
        }
        for node in nodes {
            // Keeps a node without any other information.
            self.report.node_mut(&node);
            if let Some(rack) = &entry.rack {
                self.set_rack_or_slot("rack", line, &node, rack);
            }
            if let Some(slot) = slot {
                self.set_rack_or_slot("slot", line, &node, slot);
            }
            if has_nic {
                self.add_nic(entry, port, &node);
            }
        }
    }

    /// Records the rack or slot of a node; the first value wins.
    fn set_rack_or_slot(&mut self, what: &str, line: usize, node: &NodeName, word: &str) {
        let known = if what == "rack" { &mut self.racks } else { &mut self.slots };
        let (first, before) =
            known.entry(node.clone()).or_insert_with(|| (word.to_owned(), line)).clone();
        if first != word {
            let message = format!(
                "column {what}: node {node} is in {what} {} here and in {what} {} on line {before}",
                quote_text(word),
                quote_text(&first)
            );
            self.push_problem(SourceProblemKind::Contradictory, line, message);
            return;
        }
        let node_report = self.report.node_mut(node);
        *(if what == "rack" { &mut node_report.rack } else { &mut node_report.slot }) = Some(first);
    }

    fn add_nic(&mut self, entry: &CablingEntry, port: Option<&String>, node: &NodeName) {
        let line = entry.line;
        for (what, word) in [("rail", &entry.rail), ("device", &entry.device)] {
            let Some(word) = word else { continue };
            let known = if what == "rail" { &mut self.rails } else { &mut self.devices };
            if let Some(before) = known.insert((node.clone(), word.clone()), line) {
                let message = format!(
                    "column {what}: node {node} has {what} {} here and on line {before}, \
                     expected each once",
                    quote_text(word)
                );
                self.push_problem(SourceProblemKind::Contradictory, line, message);
            }
        }
        if let (Some(leaf), Some(port)) = (&entry.leaf, port) {
            let here = (node.clone(), line);
            if let Some((other, before)) = self.ports.insert((leaf.clone(), port.clone()), here) {
                let message = format!(
                    "column port: port {} of leaf {} goes to {node} here and to {other} on line \
                     {before}, expected one cable per port",
                    quote_text(port),
                    quote_text(leaf)
                );
                self.push_problem(SourceProblemKind::Contradictory, line, message);
            }
        }
        if let Some(name) = &entry.leaf {
            let leaf = self.leaf_or_insert(name, line);
            match &entry.rail {
                Some(rail) => _ = leaf.rails.insert(rail.clone()),
                None => leaf.without_rail = true,
            }
            let has_list = leaf.has_list;
            let is_new = leaf.node_set.insert(node.clone());
            if is_new {
                leaf.nodes.push(node.clone());
            }
            if has_list && is_new {
                let message = format!(
                    "column leaf: node {node} is cabled to leaf {}, whose list of nodes lacks it",
                    quote_text(name)
                );
                self.push_problem(SourceProblemKind::Contradictory, line, message);
            }
        }
        let nic = NicReport {
            device: entry.device.clone(),
            rail: entry.rail.clone(),
            leaf: entry.leaf.clone(),
            port: port.cloned(),
            basis: Some(ClaimBasis::Asserted),
            at: Some(self.location(line)),
            ..NicReport::default()
        };
        self.report.node_mut(node).nics.push(nic);
    }

    fn leaf_or_insert(&mut self, name: &str, line: usize) -> &mut CabledLeaf {
        if !self.leaves.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.leaves
            .entry(name.to_owned())
            .or_insert_with(|| CabledLeaf { line, ..CabledLeaf::default() })
    }

    /// Adds a leaf from its own entry, with its rail and its list of nodes, if any. Leaves
    /// precede all cables.
    pub(super) fn add_leaf(
        &mut self,
        line: usize,
        name: &str,
        rail: Option<String>,
        list: Option<&str>,
    ) {
        if let Some(known) = self.leaves.get(name) {
            let before = known.line;
            let message =
                format!("leaf {} is already described on line {before}", quote_text(name));
            self.push_problem(SourceProblemKind::Contradictory, line, message);
            return;
        }
        let nodes = list.map(|list| self.expand_nodes(line, list));
        let leaf = self.leaf_or_insert(name, line);
        leaf.own_rail = rail;
        leaf.has_list = nodes.is_some();
        for node in nodes.into_iter().flatten() {
            if leaf.node_set.insert(node.clone()) {
                leaf.nodes.push(node);
            }
        }
        for node in self.leaves.get(name).map(|leaf| leaf.nodes.clone()).unwrap_or_default() {
            self.report.node_mut(&node);
        }
    }

    pub(super) fn finish(mut self) {
        for name in std::mem::take(&mut self.order) {
            let Some(leaf) = self.leaves.remove(&name) else { continue };
            let at = self.location(leaf.line);
            let mut group =
                NodeGroup::new(NodeGroupKind::Leaf, "leaf", sanitize_text(&name), leaf.nodes);
            group.rail = match (leaf.own_rail, leaf.rails.len()) {
                (Some(own), _) => {
                    if let Some(other) = leaf.rails.iter().find(|rail| **rail != own) {
                        let message = format!(
                            "leaf {} serves rail {}, and a cable of rail {} goes to it",
                            quote_text(&name),
                            quote_text(&own),
                            quote_text(other)
                        );
                        push_problem(
                            self.report,
                            SourceProblemKind::Contradictory,
                            at.clone(),
                            message,
                        );
                    }
                    Some(own)
                }
                // A leaf with cables of different rails, or without one, may serve several.
                (None, 1) if !leaf.without_rail => leaf.rails.into_iter().next(),
                _ => None,
            };
            group.at = Some(at);
            self.report.groups.push(group);
        }
        let mut racks: BTreeMap<String, (usize, Vec<NodeName>)> = BTreeMap::new();
        for (node, (rack, line)) in std::mem::take(&mut self.racks) {
            racks.entry(rack).or_insert((line, Vec::new())).1.push(node);
        }
        for (rack, (line, nodes)) in racks {
            let mut group = NodeGroup::new(NodeGroupKind::Rack, "rack", rack, nodes);
            group.at = Some(self.location(line));
            self.report.groups.push(group);
        }
        self.set_common_rails();
    }

    /// Rails to which every cabled node has one link, on the same device.
    fn set_common_rails(&mut self) {
        let cabled: Vec<&Vec<NicReport>> =
            self.report.nodes.values().map(|node| &node.nics).filter(|n| !n.is_empty()).collect();
        let mut seen: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
        for nic in cabled.iter().copied().flatten() {
            if let (Some(rail), Some(device)) = (&nic.rail, &nic.device) {
                let (count, devices) = seen.entry(rail).or_default();
                *count += 1;
                devices.insert(device);
            }
        }
        let mut rails = Vec::new();
        for (rail, (count, devices)) in seen {
            let [device] = devices.iter().copied().collect::<Vec<_>>()[..] else { continue };
            if count == cabled.len() {
                let device = device.to_owned();
                let (device, rdma) = if is_rdma_device(&device) {
                    (None, Some(device))
                } else {
                    (Some(device), None)
                };
                rails.push(ClaimedRail { name: rail.to_owned(), device, network: None, rdma });
            }
        }
        self.report.rails = rails;
    }
}
