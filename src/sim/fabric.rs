//! Physics of a scenario: how fast data moves between two places.
//!
//! A directed copy gets the minimum of its source's send rate, its destination's receive rate, and
//! the capacity of the path between them. This layer has no noise and no tools.

use std::collections::BTreeMap;

use super::fault::{HostLinkDirection, SimFault, SimLinkDirection};
use super::network::SimNetwork;
use super::platform::Hardware;
use super::scenario::{ExpandedDomain, Scenario};
use model::hostlist;

/// Index of a GPU in [`SimFabric::gpus`].
pub type GpuIndex = usize;

/// All simulated hardware, with its faults.
#[derive(Clone, Debug)]
pub struct SimFabric {
    /// All nodes, by domain and in the order of their lists.
    pub nodes: Vec<SimNode>,
    /// All GPUs.
    pub gpus: Vec<SimGpu>,
    /// The claimed domains.
    pub claims: Vec<ExpandedDomain>,
    /// The network between nodes.
    pub network: SimNetwork,
    /// Index of every node by its name.
    by_name: BTreeMap<String, usize>,
    /// Remaining share of the rate between two GPUs.
    pairs: BTreeMap<(GpuIndex, GpuIndex), f64>,
    shared_planes: bool,
}

/// A node.
#[derive(Clone, Debug)]
pub struct SimNode {
    /// Name of the node.
    pub name: String,
    /// Number of its real domain.
    pub domain: usize,
    /// Its hardware.
    pub hardware: &'static Hardware,
    /// Present GPUs in CUDA's order.
    pub gpus: Vec<GpuIndex>,
    /// Whether its links are up and the fabric is configured.
    pub fabric_up: bool,
    /// Number of the domain whose clique its driver reports.
    pub clique: usize,
    /// Whether its IMEX daemon is reachable.
    pub imex: bool,
    /// Remaining share of all its rates.
    pub power: f64,
    /// Remaining share of the rate of its copies between GPUs.
    pub copies: f64,
    /// Whether it is reachable.
    pub reachable: bool,
    /// A program that uses its GPUs.
    pub process: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct SimGpu {
    /// Index of its node.
    pub node: usize,
    /// Its slot, which equals its CUDA index if no earlier GPU is missing.
    pub slot: u32,
    /// Links that it can send on, one bit each.
    pub tx: u64,
    /// Links that it can receive on, one bit each.
    pub rx: u64,
    /// Links that nvidia-smi shows as active, one bit each.
    pub shown: u64,
    /// Remaining share of the host link, host to device and device to host.
    pub host: [f64; 2],
    /// Whether it delivers wrong data.
    pub corrupt: bool,
    /// Whether it is present.
    pub present: bool,
    /// Share of readings that dip, and the smallest and largest dip.
    pub dips: Option<(f64, [f64; 2])>,
    /// Share of the rate lost with each reading.
    pub drift: f64,
    /// Whether it replaces another GPU.
    pub swapped: bool,
}

/// Path of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRoute {
    /// This many links that both ends can use.
    NvLink(u32),
    /// PCIe within the node.
    Pcie,
    /// NICs between nodes.
    Nic,
}

/// The engine that moves the data; each gets a different share of the link rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCopyEngine {
    /// The copy engine.
    Copy,
    /// An SM kernel.
    Kernel,
    /// The copies of p2pBandwidthLatencyTest.
    Peer,
}

impl SimCopyEngine {
    fn share(self, hardware: &Hardware) -> f64 {
        match self {
            Self::Copy => hardware.copy_engine,
            Self::Kernel => hardware.kernel,
            Self::Peer => hardware.peer_copy,
        }
    }
}

impl SimFabric {
    /// Builds the fabric of a scenario with its faults.
    pub fn build(scenario: &Scenario) -> Result<Self, String> {
        let real = scenario.real_domains()?;
        let mut fabric = Self {
            nodes: Vec::new(),
            gpus: Vec::new(),
            claims: scenario.claimed_domains()?,
            network: SimNetwork::default(),
            by_name: BTreeMap::new(),
            pairs: BTreeMap::new(),
            shared_planes: scenario.tools.shared_planes,
        };
        for (domain, group) in real.iter().enumerate() {
            for name in &group.nodes {
                fabric.add_node(name, domain, group);
            }
        }
        fabric.network = SimNetwork::build(scenario, &fabric.nodes)?;
        for (number, fault) in scenario.faults.iter().enumerate() {
            fabric.apply_fault(fault, &real).map_err(|why| scenario.fault_error(number, &why))?;
        }
        // Checks delayed faults now, so that a typo does not end a burn-in after hours.
        for (number, later) in scenario.later.iter().enumerate() {
            let applied = fabric.clone().apply_fault(&later.fault, &real);
            applied.map_err(|why| scenario.delayed_fault_error(number, &why))?;
        }
        for node in 0..fabric.nodes.len() {
            let gpus = &fabric.gpus;
            fabric.nodes[node].gpus.retain(|gpu| gpus[*gpu].present);
        }
        Ok(fabric)
    }

    fn add_node(&mut self, name: &str, domain: usize, group: &ExpandedDomain) {
        let hardware = group.hardware;
        let (node, first) = (self.nodes.len(), self.gpus.len());
        let all = hardware.all_links();
        self.by_name.insert(name.to_owned(), node);
        self.gpus.extend((0..group.gpus).map(|slot| SimGpu {
            node,
            slot,
            tx: all,
            rx: all,
            shown: all,
            host: [1.0; 2],
            corrupt: false,
            present: true,
            dips: None,
            drift: 0.0,
            swapped: false,
        }));
        self.nodes.push(SimNode {
            name: name.to_owned(),
            domain,
            hardware,
            gpus: (first..self.gpus.len()).collect(),
            fabric_up: true,
            clique: domain,
            imex: true,
            power: 1.0,
            copies: 1.0,
            reachable: true,
            process: None,
        });
    }

    /// The index of the node of this name.
    pub fn node(&self, name: &str) -> Result<usize, String> {
        self.by_name.get(name).copied().ok_or_else(|| format!("no node `{name}`"))
    }

    /// The GPU with the name `node:slot`.
    pub fn gpu(&self, name: &str) -> Result<GpuIndex, String> {
        let wrong = || format!("no GPU `{name}`: expected node:slot, such as node0001:2");
        let (node, slot) = name.rsplit_once(':').ok_or_else(wrong)?;
        let node = self.node(node)?;
        let wanted: u32 = slot.parse().map_err(|_| wrong())?;
        let own = &self.nodes[node].gpus;
        own.iter().copied().find(|gpu| self.gpus[*gpu].slot == wanted).ok_or_else(|| {
            let slots: Vec<String> =
                own.iter().map(|gpu| self.gpus[*gpu].slot.to_string()).collect();
            let at = if slots.is_empty() { "" } else { ", in slots " };
            let (node, count, slots) = (&self.nodes[node].name, own.len(), slots.join(", "));
            format!("no GPU `{name}`: {node} has {count}{at}{slots}")
        })
    }

    /// GPUs of a claim's nodes, or of one node: the ranks of a run.
    pub fn gpus_of<'a>(&self, nodes: impl IntoIterator<Item = &'a String>) -> Vec<GpuIndex> {
        nodes
            .into_iter()
            .filter_map(|name| self.node(name).ok())
            .flat_map(|node| self.nodes[node].gpus.iter().copied())
            .collect()
    }

    /// The claimed multi-node domain that contains all of these nodes.
    pub fn claim_of<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n str>,
    ) -> Option<&ExpandedDomain> {
        let nodes: Vec<&str> = nodes.into_iter().collect();
        let holds = |claim: &&ExpandedDomain| {
            nodes.iter().all(|node| claim.nodes.iter().any(|it| it == node))
        };
        let several = self.claims.iter().filter(|claim| 1 < claim.nodes.len() && 1 < nodes.len());
        several.into_iter().find(holds)
    }

    /// The node of a GPU.
    pub fn node_of(&self, gpu: GpuIndex) -> &SimNode {
        &self.nodes[self.gpus[gpu].node]
    }

    /// The CUDA index of this GPU: its position among the present ones.
    pub fn cuda_index(&self, gpu: GpuIndex) -> u32 {
        let before = self.node_of(gpu).gpus.iter().take_while(|other| **other != gpu).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// The path of a copy from one GPU to another.
    pub fn route(&self, from: GpuIndex, to: GpuIndex) -> CopyRoute {
        let (source, sink) = (self.node_of(from), self.node_of(to));
        let same_node = self.gpus[from].node == self.gpus[to].node;
        let without = if same_node { CopyRoute::Pcie } else { CopyRoute::Nic };
        let one_fabric = same_node || (source.domain == sink.domain && source.hardware.spans_nodes);
        if !one_fabric || !source.fabric_up || !sink.fabric_up {
            return without;
        }
        let (tx, rx) = (self.gpus[from].tx, self.gpus[to].rx);
        let links = match self.shared_planes {
            true => (tx & rx).count_ones(),
            false => tx.count_ones().min(rx.count_ones()),
        };
        if links == 0 { without } else { CopyRoute::NvLink(links) }
    }

    /// GB/s from one GPU to another, without noise.
    pub fn copy_rate(&self, from: GpuIndex, to: GpuIndex, engine: SimCopyEngine) -> f64 {
        let hardware = self.node_of(from).hardware;
        let rate = match self.route(from, to) {
            CopyRoute::NvLink(links) => {
                f64::from(links) * hardware.link_rate * engine.share(hardware)
            }
            CopyRoute::Pcie => hardware.pcie_peer,
            CopyRoute::Nic => {
                let rail = self.gpus[from].slot as usize;
                self.network.gpu_rate(self.gpus[from].node, self.gpus[to].node, rail)
            }
        };
        let pair = self.pairs.get(&(from, to)).copied().unwrap_or(1.0);
        let copies = self.node_of(from).copies.min(self.node_of(to).copies);
        rate * pair * copies * self.node_of(from).power.min(self.node_of(to).power)
    }

    /// GB/s between host memory and a GPU of the same node, without noise.
    pub fn host_copy_rate(&self, gpu: GpuIndex, to_device: bool) -> f64 {
        let node = self.node_of(gpu);
        let (rate, way) = match to_device {
            true => (node.hardware.h2d, 0),
            false => (node.hardware.d2h, 1),
        };
        rate * self.gpus[gpu].host[way] * node.power
    }

    /// Share of its links that a GPU can use in both directions, for collectives.
    pub fn link_share(&self, gpu: GpuIndex) -> f64 {
        let state = &self.gpus[gpu];
        let up = state.tx.count_ones().min(state.rx.count_ones());
        f64::from(up) / f64::from(self.node_of(gpu).hardware.links)
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind of fault")]
    fn apply_fault(&mut self, fault: &SimFault, real: &[ExpandedDomain]) -> Result<(), String> {
        match fault {
            SimFault::LostLinks { gpu, count, first, direction } => {
                let gpu = self.gpu(gpu)?;
                let lost = self.plane_bits(gpu, *first, *count)?;
                self.remove_links(gpu, lost, *direction);
            }
            SimFault::GpuParked { gpu } => {
                let gpu = self.gpu(gpu)?;
                self.remove_links(gpu, u64::MAX, SimLinkDirection::Both);
            }
            SimFault::GpuMissing { gpu } => {
                let gpu = self.gpu(gpu)?;
                self.gpus[gpu].present = false;
            }
            SimFault::GpuSwapped { gpu } => {
                let gpu = self.gpu(gpu)?;
                self.gpus[gpu].swapped = true;
            }
            SimFault::PlaneOut { domain, count, first } => {
                let group = real
                    .iter()
                    .find(|group| group.name == *domain)
                    .ok_or_else(|| format!("no [[domain]] `{domain}`"))?;
                self.remove_planes(&group.nodes, *first, *count)?;
            }
            SimFault::PlaneOutForNode { node, count, first } => {
                self.remove_planes(std::slice::from_ref(node), *first, *count)?;
            }
            SimFault::SlowPair { a, b, share, one_way } => {
                let (a, b) = (self.gpu(a)?, self.gpu(b)?);
                let share = check_share(*share)?;
                let back = (!one_way).then_some((b, a));
                for pair in [(a, b)].into_iter().chain(back) {
                    let left = self.pairs.entry(pair).or_insert(1.0);
                    *left = left.min(share);
                }
            }
            SimFault::HostLink { gpu, share, direction } => {
                let gpu = self.gpu(gpu)?;
                let share = check_share(*share)?;
                let host = &mut self.gpus[gpu].host;
                if *direction != HostLinkDirection::D2h {
                    host[0] = host[0].min(share);
                }
                if *direction != HostLinkDirection::H2d {
                    host[1] = host[1].min(share);
                }
            }
            SimFault::FabricDown { node } => {
                let node = self.node(node)?;
                self.nodes[node].fabric_up = false;
            }
            SimFault::PowerCap { node, share } => {
                let node = self.node(node)?;
                self.nodes[node].power = self.nodes[node].power.min(check_share(*share)?);
            }
            SimFault::Corrupt { gpu } => {
                let gpu = self.gpu(gpu)?;
                self.gpus[gpu].corrupt = true;
            }
            SimFault::ShownInactive { gpu, link } => {
                let gpu = self.gpu(gpu)?;
                let hidden = self.plane_bits(gpu, *link, 1)?;
                self.gpus[gpu].shown &= !hidden;
            }
            SimFault::CliqueShown { nodes, like } => {
                let like = real.iter().position(|group| group.name == *like);
                let like = like.ok_or("like: no [[domain]] of this name")?;
                for node in hostlist::expand(nodes).map_err(|why| why.to_string())? {
                    let node = self.node(&node)?;
                    self.nodes[node].clique = like;
                }
            }
            SimFault::ImexPeerMissing { node } => {
                let node = self.node(node)?;
                let hardware = self.nodes[node].hardware;
                if !hardware.spans_nodes {
                    return Err(format!("nodes of {} have no IMEX", hardware.platform));
                }
                self.nodes[node].imex = false;
            }
            SimFault::Dips { gpu, rate, depth } => {
                let gpu = self.gpu(gpu)?;
                self.gpus[gpu].dips = Some((*rate, *depth));
            }
            SimFault::Drift { gpu, share } => {
                let gpu = self.gpu(gpu)?;
                self.gpus[gpu].drift = self.gpus[gpu].drift.max(check_share(*share)?);
            }
            SimFault::RailRate { node, rail, share, direction } => {
                let node = self.node(node)?;
                self.network.slow_rail(node, *rail, check_share(*share)?, *direction)?;
            }
            SimFault::RailDown { node, rail } => {
                let node = self.node(node)?;
                self.network.slow_rail(node, *rail, 0.0, SimLinkDirection::Both)?;
            }
            SimFault::PairLoss { a, b, share } => {
                let (a, b) = (self.node(a)?, self.node(b)?);
                self.network.add_loss(a, b, check_share(*share)?);
            }
            SimFault::LeafUplink { leaf, share } => {
                self.network.lose_uplinks(leaf, check_share(*share)?)?;
            }
            SimFault::Busy { node, process } => {
                let node = self.node(node)?;
                self.nodes[node].process = Some(process.clone());
            }
            SimFault::Unreachable { node } => {
                let node = self.node(node)?;
                self.nodes[node].reachable = false;
                self.nodes[node].imex = false;
            }
            // These faults concern tools, not hardware; only their names are checked.
            SimFault::ToolError { node, .. }
            | SimFault::Waived { node, .. }
            | SimFault::ToolHangs { node, .. }
            | SimFault::ToolMissing { node, .. }
            | SimFault::ToolFloods { node, .. }
            | SimFault::ToolGarbage { node, .. } => {
                self.node(node)?;
            }
            SimFault::DisturbedCopies { node, share } => {
                let node = self.node(node)?;
                self.nodes[node].copies = self.nodes[node].copies.min(check_share(*share)?);
            }
            SimFault::Truncated { scope, .. }
            | SimFault::NcclSetting { scope, .. }
            | SimFault::CollectiveFallback { scope }
            | SimFault::MissingCells { scope, .. } => {
                let claimed = self.claims.iter().any(|claim| claim.name == *scope);
                if !claimed && self.node(scope).is_err() {
                    return Err(format!("no claimed domain and no node `{scope}`"));
                }
            }
        }
        Ok(())
    }

    /// The bits of `count` links of a GPU from `first` on.
    fn plane_bits(&self, gpu: GpuIndex, first: u32, count: u32) -> Result<u64, String> {
        let links = self.node_of(gpu).hardware.links;
        if count == 0 || links < first.saturating_add(count) {
            return Err(format!(
                "links {first} to {} of {links}",
                u64::from(first) + u64::from(count)
            ));
        }
        Ok((first..first + count).map(|link| 1_u64 << link).sum())
    }

    fn remove_links(&mut self, gpu: GpuIndex, links: u64, direction: SimLinkDirection) {
        let gpu = &mut self.gpus[gpu];
        if direction != SimLinkDirection::Rx {
            gpu.tx &= !links;
        }
        if direction != SimLinkDirection::Tx {
            gpu.rx &= !links;
        }
        // A link that fails in one direction stays trained, so nvidia-smi still shows it.
        if direction == SimLinkDirection::Both {
            gpu.shown &= !links;
        }
    }

    fn remove_planes(&mut self, nodes: &[String], first: u32, count: u32) -> Result<(), String> {
        for name in nodes {
            let node = self.node(name)?;
            for gpu in self.nodes[node].gpus.clone() {
                let lost = self.plane_bits(gpu, first, count)?;
                self.remove_links(gpu, lost, SimLinkDirection::Both);
            }
        }
        Ok(())
    }
}

fn check_share(share: f64) -> Result<f64, String> {
    match (0.0..=1.0).contains(&share) {
        true => Ok(share),
        false => Err(format!("share = {share}: expected 0 to 1")),
    }
}
