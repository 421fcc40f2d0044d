//! Physics of the scale-out network: NICs, rails, leaves, uplinks.
//!
//! A node has one NIC per rail, and rail k of one node connects to rail k of the others. A directed
//! flow over a rail gets the minimum of the source NIC's rate, the destination NIC's rate, and the
//! capacity of the path: within a leaf the path has no limit; between leaves it is the total of
//! either leaf's uplinks on that rail. A lossy path leaves its flows a share of that. Each tool is
//! computed alone, so concurrent pairs do not slow each other here.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::fabric::SimNode;
use super::fault::SimLinkDirection;
use super::platform::Hardware;
use super::scenario::Scenario;
use model::hostlist;

/// TCP's share of a line rate: frames of 1,500 bytes carry 1,448 bytes and take 1,538 on the wire
/// (Ethernet, IPv4, TCP with timestamps). Simulated hosts have enough CPU for it.
const TCP_EFFICIENCY: f64 = 1448.0 / 1538.0;

/// Rate without any NIC link, in GB/s: the management network, 10 Gb/s.
const MANAGEMENT_RATE: f64 = 1.25;

/// Round trips in microseconds: through one leaf, and through leaves and spine.
const ROUND_TRIP_US: [f64; 2] = [10.0, 14.0];

/// `[network]` of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimNetworkSection {
    /// NICs per node.
    pub rails: Option<usize>,
    /// Line rate of a NIC in GB/s.
    pub rate: Option<f64>,
    /// Nodes per leaf, in the order of the domains; the leaves are named `leaf1`, `leaf2` and so
    /// on.
    pub leaf_nodes: Option<usize>,
    /// Uplinks of a leaf on each rail, each with the rate of a NIC. By default one per node, so
    /// nothing is oversubscribed.
    pub uplinks: Option<u32>,
}

/// `[[leaf]]` of a scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimLeafSection {
    /// Name of the leaf.
    pub name: String,
    /// Folded list of its nodes.
    pub nodes: String,
    /// Its uplinks on each rail.
    pub uplinks: Option<u32>,
}

/// A leaf.
#[derive(Clone, Debug, PartialEq)]
pub struct SimLeaf {
    /// Name of the leaf.
    pub name: String,
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// Uplinks on each rail; a fraction after faults.
    pub uplinks: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct SimNodeNics {
    /// Line rate of each NIC in GB/s.
    rate: f64,
    /// RDMA's rate in GB/s.
    rdma: f64,
    /// Remaining share of sending and receiving, by rail.
    shares: Vec<[f64; 2]>,
    leaf: Option<usize>,
}

/// The network of a scenario, with its faults. Nodes have their index in the fabric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimNetwork {
    /// The leaves.
    pub leaves: Vec<SimLeaf>,
    /// Whether the scenario describes its network, so that it is also claimed.
    pub is_described: bool,
    nics: Vec<SimNodeNics>,
    losses: BTreeMap<(usize, usize), f64>,
}

/// The name of a rail.
pub fn rail_name(rail: usize) -> String {
    format!("rail{rail}")
}

/// The RDMA device of a rail.
pub fn device_name(rail: usize) -> String {
    format!("mlx5_{rail}")
}

/// The rail that a name, a device, or a number refers to: `rail3`, `mlx5_3`, `eth3`, `3`.
pub fn parse_rail(word: &str) -> Option<usize> {
    let digits = word.bytes().rev().take_while(u8::is_ascii_digit).count();
    word[word.len() - digits..].parse().ok()
}

impl SimNetwork {
    /// Builds the network of a scenario without its faults.
    pub fn build(scenario: &Scenario, nodes: &[SimNode]) -> Result<Self, String> {
        let lines = &scenario.lines;
        let wrong = |why: &str| Err(lines.error_at("", why));
        let settings = scenario.network.clone().unwrap_or_default();
        if settings.rails.is_some_and(|rails| !(1..=64).contains(&rails)) {
            return wrong("network.rails: expected 1 to 64");
        }
        if settings.rate.is_some_and(|rate| !(0.0 < rate && rate <= 10_000.0)) {
            return wrong("network.rate: expected GB/s, above 0");
        }
        let nics = |hardware: &Hardware| SimNodeNics {
            rate: settings.rate.unwrap_or(hardware.rail_rate),
            rdma: hardware.nic / hardware.rail_rate,
            shares: vec![[1.0; 2]; settings.rails.unwrap_or(hardware.rails)],
            leaf: None,
        };
        let mut network = Self {
            leaves: Vec::new(),
            is_described: scenario.network.is_some() || !scenario.leaves.is_empty(),
            nics: nodes.iter().map(|node| nics(node.hardware)).collect(),
            losses: BTreeMap::new(),
        };
        let index: BTreeMap<&str, usize> =
            nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
        for (number, leaf) in scenario.leaves.iter().enumerate() {
            let wrong = |why: String| {
                let name = format!("[[leaf]] `{}`", leaf.name);
                lines.error_at_named(&format!("leaf/{number}"), &name, &why)
            };
            let names = hostlist::expand(&leaf.nodes).map_err(|why| wrong(why.to_string()))?;
            network
                .add_leaf(&index, &leaf.name, names, leaf.uplinks.or(settings.uplinks))
                .map_err(wrong)?;
        }
        match settings.leaf_nodes {
            None => {}
            Some(0) => return wrong("network.leaf_nodes = 0: expected at least 1"),
            Some(_) if !scenario.leaves.is_empty() => {
                return wrong("network.leaf_nodes and [[leaf]]: expected one of them");
            }
            Some(size) => {
                for (number, part) in nodes.chunks(size).enumerate() {
                    let names = part.iter().map(|node| node.name.clone()).collect();
                    let name = format!("leaf{}", number + 1);
                    network.add_leaf(&index, &name, names, settings.uplinks)?;
                }
            }
        }
        Ok(network)
    }

    fn add_leaf(
        &mut self,
        index: &BTreeMap<&str, usize>,
        name: &str,
        nodes: Vec<String>,
        uplinks: Option<u32>,
    ) -> Result<(), String> {
        if self.leaves.iter().any(|leaf| leaf.name == name) {
            return Err("the name is taken".to_owned());
        }
        for node in &nodes {
            let at = *index.get(node.as_str()).ok_or_else(|| format!("no node `{node}`"))?;
            if self.nics[at].leaf.replace(self.leaves.len()).is_some() {
                return Err(format!("{node} is in two leaves"));
            }
        }
        let uplinks = uplinks.map_or(nodes.len() as f64, f64::from);
        self.leaves.push(SimLeaf { name: name.to_owned(), nodes, uplinks });
        Ok(())
    }

    /// Reduces a NIC's rate to a share.
    pub fn slow_rail(
        &mut self,
        node: usize,
        rail: usize,
        share: f64,
        direction: SimLinkDirection,
    ) -> Result<(), String> {
        let rails = self.nics[node].shares.len();
        let ways = self.nics[node]
            .shares
            .get_mut(rail)
            .ok_or_else(|| format!("rail {rail} of {rails}, counted from 0"))?;
        if direction != SimLinkDirection::Rx {
            ways[0] = ways[0].min(share);
        }
        if direction != SimLinkDirection::Tx {
            ways[1] = ways[1].min(share);
        }
        Ok(())
    }

    /// Adds packet loss to the path between two nodes.
    pub fn add_loss(&mut self, a: usize, b: usize, share: f64) {
        let left = self.losses.entry((a.min(b), a.max(b))).or_insert(1.0);
        *left = left.min(share);
    }

    /// Reduces a leaf's uplinks to a share.
    pub fn lose_uplinks(&mut self, leaf: &str, share: f64) -> Result<(), String> {
        let found = self.leaves.iter_mut().find(|known| known.name == leaf);
        found.ok_or_else(|| format!("no leaf `{leaf}`"))?.uplinks *= share;
        Ok(())
    }

    /// Number of NICs of a node.
    pub fn rail_count(&self, node: usize) -> usize {
        self.nics[node].shares.len()
    }

    /// Maximum number of NICs of any node.
    pub fn most_rails(&self) -> usize {
        self.nics.iter().map(|nics| nics.shares.len()).max().unwrap_or(0)
    }

    /// True if a node's NIC has a link.
    pub fn is_up(&self, node: usize, rail: usize) -> bool {
        self.nics[node].shares.get(rail).is_some_and(|ways| 0.0 < ways[0].max(ways[1]))
    }

    /// Share of the rate that losses leave between two nodes.
    pub fn loss(&self, from: usize, to: usize) -> f64 {
        self.losses.get(&(from.min(to), from.max(to))).copied().unwrap_or(1.0)
    }

    /// True if a flow between two nodes leaves its leaf. Nodes without a leaf are on one switch.
    pub fn leaves_leaf(&self, from: usize, to: usize) -> bool {
        self.nics[from].leaf != self.nics[to].leaf
    }

    /// Microseconds from one node to another and back.
    pub fn round_trip_us(&self, from: usize, to: usize) -> f64 {
        ROUND_TRIP_US[usize::from(self.leaves_leaf(from, to))]
    }

    /// Line rate in GB/s from one node to another over a rail; 0 without a link.
    pub fn line_rate(&self, from: usize, to: usize, rail: usize) -> f64 {
        let (source, sink) = (&self.nics[from], &self.nics[to]);
        let (Some(tx), Some(rx)) = (source.shares.get(rail), sink.shares.get(rail)) else {
            return 0.0;
        };
        let mut rate = (source.rate * tx[0]).min(sink.rate * rx[1]);
        if self.leaves_leaf(from, to) {
            for leaf in [source.leaf, sink.leaf].into_iter().flatten() {
                rate = rate.min(self.leaves[leaf].uplinks * source.rate);
            }
        }
        rate * self.loss(from, to)
    }

    /// RDMA rate in GB/s from one node to another over a rail.
    pub fn rdma_rate(&self, from: usize, to: usize, rail: usize) -> f64 {
        self.line_rate(from, to, rail) * self.nics[from].rdma
    }

    /// RDMA rate in GB/s from a node's NIC to a healthy partner.
    pub fn rdma_rate_alone(&self, node: usize, rail: usize) -> f64 {
        let nics = &self.nics[node];
        nics.shares.get(rail).map_or(0.0, |ways| nics.rate * ways[0] * nics.rdma)
    }

    /// TCP rate in GB/s from one node to another over a rail.
    pub fn tcp_rate(&self, from: usize, to: usize, rail: usize) -> f64 {
        self.line_rate(from, to, rail) * TCP_EFFICIENCY
    }

    /// Rate in GB/s of a GPU's traffic between two nodes. It uses the rail of its slot; if that has
    /// no link, it shares another one.
    pub fn gpu_rate(&self, from: usize, to: usize, slot: usize) -> f64 {
        let rails = self.rail_count(from).min(self.rail_count(to)).max(1);
        let own = self.rdma_rate(from, to, slot % rails);
        if 0.0 < own {
            return own;
        }
        let others = (1..rails).map(|step| self.rdma_rate(from, to, (slot + step) % rails));
        others.into_iter().find(|rate| 0.0 < *rate).map_or(MANAGEMENT_RATE, |rate| rate / 2.0)
    }

    /// Rate in GB/s of rings through these nodes, over all rails. Data is split into equal parts,
    /// one per rail, so the slowest hop limits all. `power` is the share of its hops that a node
    /// can use.
    pub fn ring_rate(&self, nodes: &[usize], power: impl Fn(usize) -> f64) -> f64 {
        let rails = nodes.iter().map(|node| self.rail_count(*node)).min().unwrap_or(0);
        let after = nodes.iter().cycle().skip(1);
        let hop = |from: usize, to: usize| {
            let line = (0..rails).map(|rail| self.gpu_rate(from, to, rail));
            line.fold(f64::INFINITY, f64::min) * power(from).min(power(to))
        };
        let hops = nodes.iter().zip(after).map(|(from, to)| hop(*from, *to));
        let slowest = hops.fold(f64::INFINITY, f64::min);
        if slowest.is_finite() { slowest * rails as f64 } else { 0.0 }
    }

    /// Like [`Self::ring_rate`], over TCP.
    pub fn socket_ring_rate(&self, nodes: &[usize], power: impl Fn(usize) -> f64) -> f64 {
        let share = nodes.first().map_or(1.0, |node| TCP_EFFICIENCY / self.nics[*node].rdma);
        // One CPU core moves the bytes of one channel: sockets reach about half of TCP's possible
        // rate.
        self.ring_rate(nodes, power) * share / 2.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::{SimCopyEngine, SimFabric};

    /// Four HGX nodes behind two leaves.
    fn fabric(more: &str) -> SimFabric {
        let text = format!(
            "title = \"t\"\n[[domain]]\nnodes = \"n[1-4]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
             [[leaf]]\nname = \"a\"\nnodes = \"n[1-2]\"\n\
             [[leaf]]\nname = \"b\"\nnodes = \"n[3-4]\"\nuplinks = 1\n{more}"
        );
        SimFabric::build(&Scenario::parse(&text).expect("good")).expect("a fabric")
    }

    fn fault(kind: &str, more: &str) -> SimNetwork {
        fabric(&format!("[[fault]]\nkind = \"{kind}\"\n{more}")).network
    }

    #[test]
    fn a_healthy_rail_delivers_what_its_platform_does() {
        let network = fabric("").network;
        assert!((network.rdma_rate(0, 1, 7) - 48.6).abs() < 1e-9);
        assert!((network.ring_rate(&[0, 1, 2, 3], |_| 1.0) - 8.0 * 48.6).abs() < 1e-9);
        assert!(network.leaves_leaf(1, 2) && !network.leaves_leaf(2, 3));
        assert!(network.round_trip_us(0, 1) < network.round_trip_us(0, 2));
    }

    #[test]
    fn a_slow_direction_of_a_nic_slows_only_what_runs_that_way() {
        let network = fault("rail-rate", "node=\"n2\"\nrail=3\nshare=0.5\ndirection=\"tx\"\n");
        assert!((network.line_rate(1, 0, 3) - 25.0).abs() < 1e-9);
        assert!((network.line_rate(0, 1, 3) - 50.0).abs() < 1e-9);
        assert!((network.line_rate(1, 0, 2) - 50.0).abs() < 1e-9);
        // A ring waits for its slowest hop on every rail.
        assert!((network.ring_rate(&[0, 1], |_| 1.0) - 8.0 * 24.3).abs() < 1e-9);
    }

    #[test]
    fn gpus_of_a_rail_without_link_share_anothers() {
        let network = fault("rail-down", "node=\"n2\"\nrail=3\n");
        assert!(!network.is_up(1, 3) && network.is_up(0, 3));
        assert_eq!(network.line_rate(0, 1, 3), 0.0);
        assert!((network.gpu_rate(0, 1, 3) - 24.3).abs() < 1e-9);
    }

    #[test]
    fn a_lossy_path_is_slow_both_ways_and_no_other_is() {
        let network = fault("pair-loss", "a=\"n4\"\nb=\"n1\"\nshare=0.3\n");
        assert!((network.line_rate(0, 3, 0) - 15.0).abs() < 1e-9);
        assert!((network.line_rate(3, 0, 0) - 15.0).abs() < 1e-9);
        assert!((network.line_rate(0, 2, 0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn uplinks_limit_only_what_leaves_the_leaf() {
        let network = fault("leaf-uplink", "leaf=\"b\"\nshare=0.5\n");
        assert!((network.line_rate(0, 3, 0) - 25.0).abs() < 1e-9);
        assert!((network.line_rate(2, 3, 0) - 50.0).abs() < 1e-9);
        assert!((network.line_rate(0, 1, 0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_copy_between_nodes_takes_the_rail_of_its_gpu() {
        let slow = "[[fault]]\nkind=\"rail-rate\"\nnode=\"n1\"\nrail=2\nshare=0.5\n";
        let fabric = fabric(slow);
        assert!((fabric.copy_rate(2, 8, SimCopyEngine::Copy) - 24.3).abs() < 1e-9);
        assert!((fabric.copy_rate(1, 8, SimCopyEngine::Copy) - 48.6).abs() < 1e-9);
    }

    #[test]
    fn names_without_an_object_are_refused() {
        let refused = |more: &str| {
            let text = format!(
                "title=\"t\"\n[[domain]]\nnodes=\"n[1-2]\"\nplatform=\"hgx-h100\"\nper_node=true\n{more}"
            );
            let built = Scenario::parse(&text).map_err(|e| e.to_string());
            let built = built.and_then(|scenario| SimFabric::build(&scenario).map(|_| ()));
            built.expect_err(more)
        };
        let rail = "[[fault]]\nkind=\"rail-rate\"\nnode=\"n1\"\nrail=8\nshare=0.5\n";
        assert!(refused(rail).ends_with(": fault 1: rail 8 of 8, counted from 0"));
        let leaf = "[[fault]]\nkind=\"leaf-uplink\"\nleaf=\"x\"\nshare=0.5\n";
        assert!(refused(leaf).ends_with(": fault 1: no leaf `x`"));
        let twice = "[network]\nleaf_nodes=1\n[[leaf]]\nname=\"a\"\nnodes=\"n1\"\n";
        assert!(refused(twice).contains("expected one of them"));
        assert!(refused("[[leaf]]\nname=\"a\"\nnodes=\"n9\"\n").contains("no node `n9`"));
        assert!(refused("[network]\nrails=0\n").contains("network.rails"));
        let tool = "[[fault]]\nkind=\"tool-hangs\"\nnode=\"n1\"\ntool=\"nvband\"\n";
        assert!(refused(tool).contains("no tool `nvband`"));
        let imex = "[[fault]]\nkind=\"imex-peer-missing\"\nnode=\"n1\"\n";
        assert!(refused(imex).contains("have no IMEX"));
    }

    #[test]
    fn a_rail_has_several_names() {
        for word in ["rail3", "mlx5_3", "eth3", "3"] {
            assert_eq!(parse_rail(word), Some(3), "{word}");
        }
        assert_eq!(parse_rail("-"), None);
    }

    proptest! {
        #[test]
        fn no_fault_makes_a_flow_faster_or_touches_what_does_not_cross_it(
            node in 0_usize..4, apart in 1_usize..4, rail in 0_usize..8, share in 0.0_f64..=1.0,
            kind in 0_usize..3,
        ) {
            let other = (node + apart) % 4;
            let (a, b) = (node + 1, other + 1);
            let more = match kind {
                0 => format!("kind=\"rail-rate\"\nnode=\"n{a}\"\nrail={rail}\nshare={share:?}\n"),
                1 => format!("kind=\"pair-loss\"\na=\"n{a}\"\nb=\"n{b}\"\nshare={share:?}\n"),
                _ => format!("kind=\"leaf-uplink\"\nleaf=\"a\"\nshare={share:?}\n"),
            };
            let healthy = fabric("").network;
            let broken = fabric(&format!("[[fault]]\n{more}")).network;
            for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
                for on in 0..8 {
                    let (before, now) = (healthy.line_rate(from, to, on), broken.line_rate(from, to, on));
                    let touched = match kind {
                        0 => on == rail && (from == node || to == node),
                        1 => [from, to] == [node, other] || [from, to] == [other, node],
                        _ => healthy.leaves_leaf(from, to),
                    };
                    prop_assert!(now <= before && (touched || now == before));
                    // A share of a node's NIC is the upper bound of its flows.
                    prop_assert!(kind != 0 || !touched || now <= share * 50.0 + 1e-9);
                }
            }
        }
    }
}
