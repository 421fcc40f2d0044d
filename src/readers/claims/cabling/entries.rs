//! The entries of a cabling file, held against each other and put together by
//! node, leaf and rack.
//!
//! Knows neither CSV nor TOML.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::claims::reading::complain;
use crate::claims::reading::is_rdma_device;
use crate::claims::reading::plain;
use crate::claims::reading::quoted;
use model::claims::ClaimedRail;
use model::hostlist;
use model::id::NodeName;
use model::said::Basis;
use model::said::Group;
use model::said::GroupKind;
use model::said::NicSaid;
use model::said::ProblemKind;
use model::said::Said;

/// The most nodes that all entries together may name: host lists are short to
/// write. The largest clusters have a few ten thousand nodes with ten NICs each.
const MOST: usize = 1_000_000;

/// One entry: where some nodes are, and one of their NICs.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// Line.
    pub(super) line: usize,
    /// Its nodes, as a host list.
    pub(super) nodes: String,
    /// Rack.
    pub(super) rack: Option<String>,
    /// Slot in the rack.
    pub(super) slot: Option<String>,
    /// Device on the node.
    pub(super) device: Option<String>,
    /// Rail.
    pub(super) rail: Option<String>,
    /// Leaf switch.
    pub(super) leaf: Option<String>,
    /// Port of the leaf.
    pub(super) port: Option<String>,
}

/// A word and the line it stands in.
type Told = (String, usize);

/// Everything said of one leaf.
#[derive(Debug, Default)]
struct Leaf {
    line: usize,
    nodes: Vec<NodeName>,
    known: BTreeSet<NodeName>,
    rails: BTreeSet<String>,
    /// A cable to it names no rail.
    without_rail: bool,
    /// The rail that its own entry names.
    own_rail: Option<String>,
    /// Its own entry lists its nodes.
    has_list: bool,
}

/// Collects entries.
pub(super) struct Entries<'s> {
    said: &'s mut Said,
    left: usize,
    racks: BTreeMap<NodeName, Told>,
    slots: BTreeMap<NodeName, Told>,
    rails: BTreeMap<(NodeName, String), usize>,
    devices: BTreeMap<(NodeName, String), usize>,
    ports: BTreeMap<(String, String), (NodeName, usize)>,
    leaves: BTreeMap<String, Leaf>,
    order: Vec<String>,
}

impl<'s> Entries<'s> {
    pub(super) fn new(said: &'s mut Said) -> Self {
        Self {
            said,
            left: MOST,
            racks: BTreeMap::new(),
            slots: BTreeMap::new(),
            rails: BTreeMap::new(),
            devices: BTreeMap::new(),
            ports: BTreeMap::new(),
            leaves: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    /// Adds a problem of this line.
    pub(super) fn complain(&mut self, kind: ProblemKind, line: usize, message: impl Into<String>) {
        let at = self.place(line);
        complain(self.said, kind, at, message);
    }

    /// Adds a remark.
    pub(super) fn note(&mut self, note: String) {
        self.said.notes.push(note);
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.said.source.place)
    }

    /// The nodes of a host list, or none and a problem.
    fn expanded(&mut self, line: usize, list: &str) -> Vec<NodeName> {
        let names = match hostlist::expand(list) {
            Ok(names) => names,
            Err(error) => {
                let list = quoted(list);
                let message =
                    format!("column node: {list}: {error}, expected a name or a host list");
                self.complain(ProblemKind::Malformed, line, message);
                return Vec::new();
            }
        };
        if self.left < names.len() {
            if 0 < self.left {
                let message =
                    format!("more than {MOST} nodes by name, expected fewer; the rest is not read");
                self.complain(ProblemKind::Unsupported, line, message);
            }
            self.left = 0;
            return Vec::new();
        }
        self.left -= names.len();
        names.into_iter().map(NodeName::from).collect()
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, entry: &Entry) {
        let line = entry.line;
        let nodes = self.expanded(line, &entry.nodes);
        let Some(first) = nodes.first().cloned() else { return };
        let is_one = nodes.len() == 1;
        let has_nic = entry.device.is_some()
            || entry.rail.is_some()
            || entry.leaf.is_some()
            || entry.port.is_some();
        if !has_nic && entry.rack.is_none() && entry.slot.is_none() {
            let message = format!("nothing is said of {first}, expected at least one other column");
            self.complain(ProblemKind::Incomplete, line, message);
        }
        let mut port = entry.port.as_ref();
        if port.is_some() && entry.leaf.is_none() {
            let message = "column port: a port without a leaf, expected the switch it is of";
            self.complain(ProblemKind::Malformed, line, message);
            port = None;
        }
        let mut slot = entry.slot.as_ref();
        for (column, value) in [("slot", &mut slot), ("port", &mut port)] {
            if let Some(value) = value.take_if(|_| !is_one) {
                let message = format!(
                    "column {column}: {} for {} nodes, expected one node a line where it is given",
                    quoted(value),
                    nodes.len()
                );
                self.complain(ProblemKind::Contradictory, line, message);
            }
        }
        for node in nodes {
            // A node is listed even where nothing else is known of it.
            self.said.node(&node);
            if let Some(rack) = &entry.rack {
                self.sits("rack", line, &node, rack);
            }
            if let Some(slot) = slot {
                self.sits("slot", line, &node, slot);
            }
            if has_nic {
                self.nic(entry, port, &node);
            }
        }
    }

    /// Notes the rack or slot of a node; the first word stands.
    fn sits(&mut self, what: &str, line: usize, node: &NodeName, word: &str) {
        let known = if what == "rack" { &mut self.racks } else { &mut self.slots };
        let (first, before) =
            known.entry(node.clone()).or_insert_with(|| (word.to_owned(), line)).clone();
        if first != word {
            let message = format!(
                "column {what}: node {node} is in {what} {} here and in {what} {} in line {before}",
                quoted(word),
                quoted(&first)
            );
            self.complain(ProblemKind::Contradictory, line, message);
            return;
        }
        let said = self.said.node(node);
        *(if what == "rack" { &mut said.rack } else { &mut said.slot }) = Some(first);
    }

    fn nic(&mut self, entry: &Entry, port: Option<&String>, node: &NodeName) {
        let line = entry.line;
        for (what, word) in [("rail", &entry.rail), ("device", &entry.device)] {
            let Some(word) = word else { continue };
            let known = if what == "rail" { &mut self.rails } else { &mut self.devices };
            if let Some(before) = known.insert((node.clone(), word.clone()), line) {
                let message = format!(
                    "column {what}: node {node} has {what} {} here and in line {before}, \
                     expected each once",
                    quoted(word)
                );
                self.complain(ProblemKind::Contradictory, line, message);
            }
        }
        if let (Some(leaf), Some(port)) = (&entry.leaf, port) {
            let here = (node.clone(), line);
            if let Some((other, before)) = self.ports.insert((leaf.clone(), port.clone()), here) {
                let message = format!(
                    "column port: port {} of leaf {} goes to {node} here and to {other} in line \
                     {before}, expected one cable a port",
                    quoted(port),
                    quoted(leaf)
                );
                self.complain(ProblemKind::Contradictory, line, message);
            }
        }
        if let Some(name) = &entry.leaf {
            let leaf = self.leaf(name, line);
            match &entry.rail {
                Some(rail) => _ = leaf.rails.insert(rail.clone()),
                None => leaf.without_rail = true,
            }
            let has_list = leaf.has_list;
            let is_new = leaf.known.insert(node.clone());
            if is_new {
                leaf.nodes.push(node.clone());
            }
            if has_list && is_new {
                let message = format!(
                    "column leaf: node {node} is cabled to leaf {}, whose list of nodes lacks it",
                    quoted(name)
                );
                self.complain(ProblemKind::Contradictory, line, message);
            }
        }
        let nic = NicSaid {
            device: entry.device.clone(),
            rail: entry.rail.clone(),
            leaf: entry.leaf.clone(),
            port: port.cloned(),
            basis: Some(Basis::Asserted),
            at: Some(self.place(line)),
            ..NicSaid::default()
        };
        self.said.node(node).nics.push(nic);
    }

    fn leaf(&mut self, name: &str, line: usize) -> &mut Leaf {
        if !self.leaves.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.leaves.entry(name.to_owned()).or_insert_with(|| Leaf { line, ..Leaf::default() })
    }

    /// Adds a leaf of its own entry, with the rail it serves and its nodes where
    /// they are listed. These come before all cables.
    pub(super) fn add_leaf(
        &mut self,
        line: usize,
        name: &str,
        rail: Option<String>,
        list: Option<&str>,
    ) {
        if let Some(known) = self.leaves.get(name) {
            let before = known.line;
            let message = format!("leaf {} is already described in line {before}", quoted(name));
            self.complain(ProblemKind::Contradictory, line, message);
            return;
        }
        let nodes = list.map(|list| self.expanded(line, list));
        let leaf = self.leaf(name, line);
        leaf.own_rail = rail;
        leaf.has_list = nodes.is_some();
        for node in nodes.into_iter().flatten() {
            if leaf.known.insert(node.clone()) {
                leaf.nodes.push(node);
            }
        }
        for node in self.leaves.get(name).map(|leaf| leaf.nodes.clone()).unwrap_or_default() {
            self.said.node(&node);
        }
    }

    /// Puts leaves, racks and rails together.
    pub(super) fn finish(mut self) {
        for name in std::mem::take(&mut self.order) {
            let Some(leaf) = self.leaves.remove(&name) else { continue };
            let at = self.place(leaf.line);
            let mut group = Group::of(GroupKind::Leaf, "leaf", plain(&name), leaf.nodes);
            group.rail = match (leaf.own_rail, leaf.rails.len()) {
                (Some(own), _) => {
                    if let Some(other) = leaf.rails.iter().find(|rail| **rail != own) {
                        let message = format!(
                            "leaf {} serves rail {}, and a cable of rail {} goes to it",
                            quoted(&name),
                            quoted(&own),
                            quoted(other)
                        );
                        complain(self.said, ProblemKind::Contradictory, at.clone(), message);
                    }
                    Some(own)
                }
                // A leaf whose cables do not all name the one rail may serve
                // several.
                (None, 1) if !leaf.without_rail => leaf.rails.into_iter().next(),
                _ => None,
            };
            group.at = Some(at);
            self.said.groups.push(group);
        }
        let mut racks: BTreeMap<String, (usize, Vec<NodeName>)> = BTreeMap::new();
        for (node, (rack, line)) in std::mem::take(&mut self.racks) {
            racks.entry(rack).or_insert((line, Vec::new())).1.push(node);
        }
        for (rack, (line, nodes)) in racks {
            let mut group = Group::of(GroupKind::Rack, "rack", rack, nodes);
            group.at = Some(self.place(line));
            self.said.groups.push(group);
        }
        self.common_rails();
    }

    /// Rails that every cabled node has one end of, on the same device.
    fn common_rails(&mut self) {
        let cabled: Vec<&Vec<NicSaid>> =
            self.said.nodes.values().map(|node| &node.nics).filter(|n| !n.is_empty()).collect();
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
        self.said.rails = rails;
    }
}
