//! The cables of an InfiniBand fabric: adapters, switches and their links, checked for
//! consistency and combined into leaves and the switches above.
//!
//! Independent of the input format. A cable may be listed at either end, or at both.

use std::collections::{BTreeMap, BTreeSet};

use super::node_description;
use crate::claims::reader_util::{push_problem, quote_text, sanitize_text};
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, NicReport, NodeGroup, NodeGroupKind, SourceProblemKind, SourceReport,
};

/// Limit for memberships of nodes in switches above leaves: their number is the product of nodes
/// and spines.
const MAX_MEMBERSHIPS: usize = 1_000_000;

/// Limit for names in the message about adapters without a host.
const MAX_NAMED_ADAPTERS: usize = 5;

#[derive(Clone, Debug, Default)]
pub(super) struct IbAdapterPort {
    /// Identifier of the adapter in its source: a GUID, a description.
    pub(super) id: String,
    pub(super) port: u32,
    pub(super) description: String,
    pub(super) guid: Option<String>,
    pub(super) rate: Option<u64>,
    /// Link state, where present.
    pub(super) state: Option<String>,
    pub(super) line: usize,
}

#[derive(Debug)]
struct IbSwitch {
    description: String,
    line: usize,
    peers: BTreeSet<String>,
}

type IbSwitchPort = (String, u32);

/// The fabric, as far as the source describes it.
#[derive(Debug, Default)]
pub(super) struct IbFabric {
    switches: BTreeMap<String, IbSwitch>,
    cables: BTreeMap<IbSwitchPort, IbAdapterPort>,
    /// The switch port at the other end of each adapter port.
    adapter_ports: BTreeMap<(String, u32), IbSwitchPort>,
    /// Adapters, cabled or uncabled.
    adapters: BTreeMap<String, IbAdapterPort>,
}

impl IbFabric {
    /// Adds a switch, identified by its key in the source.
    pub(super) fn add_switch(&mut self, key: &str, description: &str, line: usize) {
        self.switches.entry(key.to_owned()).or_insert_with(|| IbSwitch {
            description: description.to_owned(),
            line,
            peers: BTreeSet::new(),
        });
    }

    /// Adds a cable between two known switches.
    pub(super) fn add_trunk(&mut self, a: &str, b: &str) {
        for (here, there) in [(a, b), (b, a)] {
            if let Some(switch) = self.switches.get_mut(here) {
                switch.peers.insert(there.to_owned());
            }
        }
    }

    /// Adds an adapter, cabled or uncabled.
    pub(super) fn add_adapter(&mut self, end: IbAdapterPort) {
        self.adapters.entry(end.id.clone()).or_insert(end);
    }

    /// Adds a cable between a port of a switch and one of an adapter.
    pub(super) fn add_cable(
        &mut self,
        report: &mut SourceReport,
        switch: &str,
        port: u32,
        end: IbAdapterPort,
    ) {
        let at = format!("{}:{}", report.source.place, end.line);
        let name = quote_text(&end.description);
        let here = (switch.to_owned(), port);
        let known = self
            .adapter_ports
            .entry((end.id.clone(), end.port))
            .or_insert_with(|| here.clone())
            .clone();
        if known != here {
            let message = format!(
                "port {} of {name} is cabled to port {port} of {} here and to port {} of {} \
                 before: two adapters have the same name, or a record is wrong",
                end.port,
                self.display_name(switch),
                known.1,
                self.display_name(&known.0)
            );
            push_problem(report, SourceProblemKind::Contradictory, at.clone(), message);
        }
        self.adapters.entry(end.id.clone()).or_insert_with(|| end.clone());
        let switch_label = self.display_name(switch);
        match self.cables.get_mut(&here) {
            Some(known) if known.id == end.id && known.port == end.port => {
                known.guid = known.guid.take().or(end.guid);
                known.rate = known.rate.or(end.rate);
                known.state = known.state.take().or(end.state);
            }
            Some(known) => {
                let message = format!(
                    "port {port} of {switch_label} is cabled to {name} here and to {} on line {}",
                    quote_text(&known.description),
                    known.line
                );
                push_problem(report, SourceProblemKind::Contradictory, at, message);
            }
            None => _ = self.cables.insert(here, end),
        }
    }

    fn display_name(&self, switch: &str) -> String {
        quote_text(&self.switches.get(switch).map_or(switch.to_owned(), |s| s.description.clone()))
    }

    /// Names of switches by key; duplicate names get the key appended.
    fn display_names(&self) -> BTreeMap<&str, String> {
        let called = |s: &IbSwitch| node_description::parse_switch_name(&s.description);
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        for switch in self.switches.values() {
            *count.entry(called(switch)).or_default() += 1;
        }
        let named = |(key, switch): (&'_ String, &IbSwitch)| match called(switch) {
            name if name.is_empty() || count.get(&name).is_some_and(|n| 1 < *n) => {
                sanitize_text(&format!("{name} ({key})"))
            }
            name => name,
        };
        self.switches.iter().map(|entry| (entry.0.as_str(), named(entry))).collect()
    }

    /// Adds the claims of all cables.
    pub(super) fn add_to_report(&self, report: &mut SourceReport) {
        let place = report.source.place.clone();
        if self.cables.is_empty() {
            let message = "no adapter is cabled to a switch, expected links";
            push_problem(report, SourceProblemKind::Incomplete, place.clone(), message);
        }
        let names = self.display_names();
        let mut leaves: BTreeMap<&str, Vec<NodeName>> = BTreeMap::new();
        let mut nameless: BTreeSet<String> = BTreeSet::new();
        let mut seen: BTreeMap<(NodeName, String), &IbAdapterPort> = BTreeMap::new();
        for ((switch, port), end) in &self.cables {
            let (node, device) = match node_description::parse_adapter_owner(&end.description) {
                node_description::AdapterOwner::Host(node, device) => (node, device),
                node_description::AdapterOwner::Aggregation => continue,
                node_description::AdapterOwner::Nameless => {
                    leaves.entry(switch).or_default();
                    nameless.insert(sanitize_text(end.guid.as_deref().unwrap_or(&end.id)));
                    continue;
                }
            };
            // NCCL's notation for ports of adapters with several.
            let device =
                device.map(|d| if end.port <= 1 { d } else { format!("{d}:{}", end.port) });
            let at = format!("{place}:{}", end.line);
            if let Some(device) = &device
                && let Some(other) = seen.insert((node.clone(), device.clone()), end)
                && other.id != end.id
            {
                let message = format!(
                    "two adapters are named {} {device} ({} and {}): two machines have the same \
                     name, or a description is outdated",
                    node,
                    sanitize_text(&other.id),
                    sanitize_text(&end.id)
                );
                push_problem(report, SourceProblemKind::Contradictory, at.clone(), message);
            }
            leaves.entry(switch).or_default().push(node.clone());
            report.node_mut(&node).nics.push(NicReport {
                device,
                leaf: Some(names.get(switch.as_str()).unwrap_or(switch).clone()),
                port: Some(port.to_string()),
                guid: end.guid.clone(),
                state: end.state.clone(),
                rate_mbit_s: end.rate,
                basis: Some(ClaimBasis::Reported),
                at: Some(at),
                ..NicReport::default()
            });
        }
        for nodes in leaves.values_mut() {
            // Each leaf once, in the order of ports: a node may have several cables.
            let mut known = BTreeSet::new();
            nodes.retain(|node| known.insert(node.clone()));
        }
        self.add_uncabled_adapters(report);
        if !nameless.is_empty() {
            let some: Vec<&str> =
                nameless.iter().map(String::as_str).take(MAX_NAMED_ADAPTERS).collect();
            let message = format!(
                "{} cabled adapters have descriptions without a host (such as {}), expected \
                 \"HOST DEVICE\" as rdma-ndd sets it",
                nameless.len(),
                some.join(", ")
            );
            push_problem(report, SourceProblemKind::Incomplete, place, message);
        }
        self.add_groups(report, &names, leaves);
    }

    /// Adds adapters of hosts without any cable.
    fn add_uncabled_adapters(&self, report: &mut SourceReport) {
        let cabled: BTreeSet<&str> = self.adapter_ports.keys().map(|(id, _)| id.as_str()).collect();
        for (id, end) in &self.adapters {
            if cabled.contains(id.as_str()) {
                continue;
            }
            let node_description::AdapterOwner::Host(node, device) =
                node_description::parse_adapter_owner(&end.description)
            else {
                continue;
            };
            let at = format!("{}:{}", report.source.place, end.line);
            report.node_mut(&node).nics.push(NicReport {
                device,
                guid: end.guid.clone(),
                state: end.state.clone(),
                basis: Some(ClaimBasis::Reported),
                at: Some(at),
                ..NicReport::default()
            });
        }
    }

    /// Leaves, and above them switches by their distance from the nearest leaf.
    fn add_groups(
        &self,
        report: &mut SourceReport,
        names: &BTreeMap<&str, String>,
        leaves: BTreeMap<&str, Vec<NodeName>>,
    ) {
        let mut levels: BTreeMap<&str, usize> = leaves.keys().map(|key| (*key, 0)).collect();
        let mut tiers: Vec<Vec<&str>> = vec![levels.keys().copied().collect()];
        while let Some(tier) = tiers.last().filter(|tier| !tier.is_empty()) {
            let level = tiers.len();
            let mut next = Vec::new();
            for key in tier {
                for above in self.switches.get(*key).into_iter().flat_map(|s| &s.peers) {
                    if !levels.contains_key(above.as_str()) {
                        levels.insert(above, level);
                        next.push(above.as_str());
                    }
                }
            }
            tiers.push(next);
        }
        let at_level = |key: &str, level: Option<usize>| -> Vec<&str> {
            let next = self.switches.get(key).into_iter().flat_map(|s| &s.peers);
            next.map(String::as_str)
                .filter(|k| level.is_some() && levels.get(k).copied() == level)
                .collect()
        };
        let mut left = MAX_MEMBERSHIPS;
        let mut below: BTreeMap<&str, Vec<NodeName>> = leaves;
        for (level, tier) in tiers.iter().enumerate() {
            for key in tier {
                if 0 < level {
                    let mut nodes = BTreeSet::new();
                    let lower =
                        if 0 < left { at_level(key, level.checked_sub(1)) } else { Vec::new() };
                    for lower in lower {
                        nodes.extend(below.get(lower).into_iter().flatten().cloned());
                    }
                    if left < nodes.len() {
                        nodes.clear();
                        left = 0;
                    }
                    left -= nodes.len();
                    below.insert(key, nodes.into_iter().collect());
                }
                let Some(switch) = self.switches.get(*key) else { continue };
                let kind = if level == 0 { NodeGroupKind::Leaf } else { NodeGroupKind::Switch };
                let name = |key: &str| names.get(key).cloned().unwrap_or_default();
                let nodes = below.get(key).cloned().unwrap_or_default();
                let mut group = NodeGroup::new(kind, "switch", name(key), nodes);
                group.above = at_level(key, Some(level + 1)).into_iter().map(name).collect();
                group.basis = ClaimBasis::Reported;
                group.at = Some(format!("{}:{}", report.source.place, switch.line));
                report.groups.push(group);
            }
        }
        if left == 0 {
            report.notes.push(format!(
                "more than {MAX_MEMBERSHIPS} memberships of nodes in switches above leaves; some \
                are omitted"
            ));
        }
    }
}
