//! Numbers that nccl-tests would measure on a simulated fabric.
//!
//! A collective is as fast as its slowest member: one GPU with a lost link slows all. Its time is a
//! startup that grows with the ranks, plus bytes over bandwidth, which gives the typical saturating
//! curve.

use std::collections::BTreeMap;

use super::fabric::{CopyRoute, GpuIndex, SimFabric, SimNode};
use super::fault::SimFault;
use super::invocation::{ToolInvocation, cuda_error_text};
use super::tool_config::NcclTestsLayout;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCollective {
    /// `all_reduce_perf`
    AllReduce,
    /// `all_gather_perf`
    AllGather,
    /// `reduce_scatter_perf`
    ReduceScatter,
    /// `alltoall_perf`
    AllToAll,
    /// `broadcast_perf`
    Broadcast,
    /// `reduce_perf`
    Reduce,
    /// `sendrecv_perf`
    SendRecv,
}

impl SimCollective {
    /// The collective of the program with this name.
    pub fn from_program(program: &str) -> Option<Self> {
        Some(match program {
            "all_reduce_perf" => Self::AllReduce,
            "all_gather_perf" => Self::AllGather,
            "reduce_scatter_perf" => Self::ReduceScatter,
            "alltoall_perf" => Self::AllToAll,
            "broadcast_perf" => Self::Broadcast,
            "reduce_perf" => Self::Reduce,
            "sendrecv_perf" => Self::SendRecv,
            _ => return None,
        })
    }

    /// busbw over algbw with `n` ranks (nccl-tests, doc/PERFORMANCE.md).
    pub fn factor(self, n: f64) -> f64 {
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
        }
    }

    /// The reduction and root in the printed row.
    pub fn redop_and_root(self) -> (&'static str, i32) {
        match self {
            Self::AllReduce | Self::ReduceScatter => ("sum", -1),
            Self::Reduce => ("sum", 0),
            Self::Broadcast => ("none", 0),
            Self::AllGather | Self::AllToAll | Self::SendRecv => ("none", -1),
        }
    }

    /// The elements per call, and the bytes of the whole operation, for a message of at most this
    /// many bytes: whole elements, and parts of whole 16 bytes if every rank has a part
    /// (nccl-tests, `GetCollByteCount`). Small messages become empty in that case.
    pub fn message_counts(self, bytes: u64, ranks: usize) -> (u64, u64) {
        let (elements, ranks) = (bytes / 4, ranks.max(1) as u64);
        match self {
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => {
                let part = elements / ranks / 4 * 4;
                (part, part * ranks * 4)
            }
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => {
                (elements, elements * 4)
            }
        }
    }

    /// True if the tool cannot check its in-place run.
    fn unchecked_in_place(self) -> bool {
        matches!(self, Self::AllToAll | Self::SendRecv)
    }
}

/// Transport of a collective's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCollectiveTransport {
    /// NVLink, within a node or across the nodes of a domain.
    NvLink,
    /// PCIe within a node.
    Pcie,
    /// RDMA over the NICs between nodes.
    Nic,
    /// TCP over the NICs between nodes.
    Socket,
}

/// One half of a row: out of place or in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimCollectiveHalf {
    /// Time in microseconds.
    pub time: f64,
    /// Algorithm bandwidth in GB/s.
    pub algbw: f64,
    /// Bus bandwidth in GB/s.
    pub busbw: f64,
    /// Wrong elements; `None` if not checked.
    pub wrong: Option<u64>,
}

/// One row, for one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimCollectiveRow {
    /// Bytes of the whole operation.
    pub bytes: u64,
    /// Four-byte elements per call: of one rank's part, if each rank has one.
    pub count: u64,
    /// Out of place and in place.
    pub halves: [SimCollectiveHalf; 2],
}

/// One run of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct SimCollectiveRun {
    /// Name of the program.
    pub program: String,
    /// Its collective operation.
    pub collective: SimCollective,
    /// The GPU of each rank.
    pub gpus: Vec<GpuIndex>,
    /// GPUs per process (`-g`).
    pub gpus_per_process: usize,
    /// Smallest and largest size in bytes.
    pub bytes: [u64; 2],
    /// One row per size.
    pub rows: Vec<SimCollectiveRow>,
    /// Output layout of the program.
    pub version: NcclTestsLayout,
    /// Host and text of a failure.
    pub failure: Option<(String, String)>,
}

impl SimCollectiveRun {
    /// Halves with wrong data.
    pub fn out_of_bounds(&self) -> usize {
        self.halves().filter(|half| half.wrong.is_some_and(|wrong| 0 < wrong)).count()
    }

    /// Mean bus bandwidth of all halves in GB/s.
    pub fn average_bus_bandwidth(&self) -> f64 {
        let (sum, count) = self.halves().fold((0.0, 0.0), |(s, n), h| (s + h.busbw, n + 1.0));
        if count == 0.0 { 0.0 } else { sum / count }
    }

    /// Process of every rank, and the rank's index in it. Ranks of a process are consecutive.
    pub fn processes(&self, fabric: &SimFabric) -> Vec<(usize, usize)> {
        let mut on_node = BTreeMap::new();
        let each = self.gpus_per_process.max(1);
        let number = |gpu: &GpuIndex| {
            let next: &mut usize = on_node.entry(fabric.gpus[*gpu].node).or_default();
            *next += 1;
            // Process IDs of simulated nodes start here, with gaps for other processes.
            (21_000 + (*next - 1) / each * 3, (*next - 1) % each)
        };
        self.gpus.iter().map(number).collect()
    }

    fn halves(&self) -> impl Iterator<Item = &SimCollectiveHalf> {
        self.rows.iter().flat_map(|row| &row.halves)
    }
}

impl ToolInvocation<'_> {
    /// Runs one program of nccl-tests over these GPUs; `None` if no program has this name.
    pub fn run_collective(
        &self,
        program: &str,
        bytes: [u64; 2],
        gpus: Vec<GpuIndex>,
    ) -> Option<SimCollectiveRun> {
        let collective = SimCollective::from_program(program)?;
        let failure = match gpus.is_empty() {
            true => Some(self.no_device_error()),
            false => self.collective_failure(&gpus),
        };
        let bus = match gpus.is_empty() {
            true => 0.0,
            false => self.bus_bandwidth(collective, &gpus),
        };
        let mut rows = Vec::new();
        let mut size = bytes[0];
        while size <= bytes[1] && failure.is_none() && !gpus.is_empty() {
            rows.push(self.collective_row(program, collective, &gpus, size, bus));
            match size.checked_mul(2) {
                Some(next) => size = next,
                None => break,
            }
        }
        let version = self.scenario.tools.nccl_tests;
        let program = program.to_owned();
        Some(SimCollectiveRun {
            program,
            collective,
            gpus,
            gpus_per_process: 1,
            bytes,
            rows,
            version,
            failure,
        })
    }

    /// The host and text of the failure to count GPUs, if a driver finds none.
    fn no_device_error(&self) -> (String, String) {
        let host = self.first_host_without_gpu().map_or(self.scope, |(host, _)| host);
        let what = cuda_error_text("CUDA_ERROR_NO_DEVICE");
        (host.to_owned(), format!("Test CUDA failure common.cu:1013 '{what}'"))
    }

    pub(super) fn collective_row(
        &self,
        program: &str,
        collective: SimCollective,
        gpus: &[GpuIndex],
        bytes: u64,
        bus: f64,
    ) -> SimCollectiveRow {
        let (count, whole) = collective.message_counts(bytes, gpus.len());
        let (ranks, size) = (gpus.len() as f64, whole as f64);
        let factor = collective.factor(ranks);
        let wires = self.transport(gpus);
        let wrong = gpus.iter().any(|gpu| self.fabric.gpus[*gpu].corrupt);
        let halves = [0_u64, 1].map(|place| {
            let key = self.key(program).with_part(bytes).with_part(place);
            let start = 9.0 + 3.4 * f64::from(gpus.len().ilog2());
            // GB/s is 1,000 bytes per microsecond. Small messages never fill the pipeline and so do
            // not wait for it.
            let full = self.fabric.node_of(gpus[0]).hardware.filling;
            let filling = full * (size / (size + full)) * f64::from(gpus.len().ilog2());
            let transfer = match factor == 0.0 {
                true => 0.0,
                false => (size + filling) * factor / (bus * 1e3),
            };
            let time = (start + transfer)
                / self.read_members(key, gpus, |gpu| self.member_share(gpu, wires));
            let algbw = size / time / 1e3;
            let checked = place == 0 || !collective.unchecked_in_place();
            let amount = if wrong && 0 < count { count / 1000 + 1 } else { 0 };
            SimCollectiveHalf {
                time,
                algbw,
                busbw: algbw * factor,
                wrong: checked.then_some(amount),
            }
        });
        SimCollectiveRow { bytes: whole, count, halves }
    }

    /// Bus bandwidth of large messages in GB/s.
    pub(super) fn bus_bandwidth(&self, collective: SimCollective, gpus: &[GpuIndex]) -> f64 {
        let fabric = self.fabric;
        let hardware = fabric.node_of(gpus[0]).hardware;
        let wires = self.transport(gpus);
        let all = wires != SimCollectiveTransport::NvLink;
        let hosts = u32::try_from(self.node_names(gpus).len()).unwrap_or(u32::MAX);
        if all && 1 < hosts {
            // Every node sends and receives once around the ring, over all NICs.
            let mut nodes: Vec<usize> = gpus.iter().map(|gpu| fabric.gpus[*gpu].node).collect();
            nodes.dedup();
            let power = |node: usize| fabric.nodes[node].power;
            return match wires {
                SimCollectiveTransport::Socket => fabric.network.socket_ring_rate(&nodes, power),
                _ => fabric.network.ring_rate(&nodes, power),
            };
        }
        let rate = match collective {
            _ if all => hardware.pcie_peer * 0.6,
            // NCCL uses a ring for up to four GPUs, and reduction in the switch for more.
            SimCollective::AllReduce if self.uses_switch_reduction(gpus) => hardware.all_reduce,
            SimCollective::AllReduce if 4 < gpus.len() && !hardware.multicast() => {
                hardware.all_reduce
            }
            SimCollective::AllToAll => hardware.ring * 0.96,
            _ => hardware.ring,
        };
        rate * gpus.iter().map(|gpu| self.member_share(*gpu, wires)).fold(1.0, f64::min)
    }

    /// Share of the full rate that faults leave to one member. All wait for the slowest, so faults
    /// on two members do not add up.
    fn member_share(&self, gpu: GpuIndex, wires: SimCollectiveTransport) -> f64 {
        let power = self.fabric.node_of(gpu).power;
        match wires {
            SimCollectiveTransport::NvLink => self.fabric.link_share(gpu) * power,
            SimCollectiveTransport::Pcie
            | SimCollectiveTransport::Nic
            | SimCollectiveTransport::Socket => power,
        }
    }

    /// True if the switch reduces: for more than four GPUs, if it is able to and no setting
    /// disables it.
    pub fn uses_switch_reduction(&self, gpus: &[GpuIndex]) -> bool {
        let ring =
            self.nccl_variable("NCCL_ALGO").is_some_and(|algo| algo.eq_ignore_ascii_case("ring"));
        self.can_reduce(gpus) && !ring
    }

    /// True if NCCL finds multicast in the switch.
    pub fn can_reduce(&self, gpus: &[GpuIndex]) -> bool {
        4 < gpus.len()
            && self.nccl_variable("NCCL_NVLS_ENABLE") != Some("0")
            && self.transport(gpus) == SimCollectiveTransport::NvLink
            && self.fabric.node_of(gpus[0]).hardware.multicast()
    }

    /// Transport of a collective over these GPUs.
    pub fn transport(&self, gpus: &[GpuIndex]) -> SimCollectiveTransport {
        let (fabric, first) = (self.fabric, gpus[0]);
        let fallback = self.scenario.faults.iter().any(
            |fault| matches!(fault, SimFault::CollectiveFallback { scope } if scope == self.scope),
        );
        let is_set = |name: &str, value: &str| self.nccl_variable(name) == Some(value);
        let off_fabric = fallback
            || is_set("NCCL_MNNVL_ENABLE", "0")
            || gpus.iter().any(|gpu| fabric.route(first, *gpu) == CopyRoute::Nic)
            || gpus.iter().any(|gpu| fabric.link_share(*gpu) == 0.0);
        let several = gpus.iter().any(|gpu| fabric.gpus[*gpu].node != fabric.gpus[first].node);
        // NCCL_MNNVL_ENABLE only affects several nodes.
        let here = fallback
            || gpus
                .iter()
                .any(|gpu| fabric.link_share(*gpu) == 0.0 || !fabric.node_of(*gpu).fabric_up);
        match (several, off_fabric) {
            (true, true) if is_set("NCCL_IB_DISABLE", "1") => SimCollectiveTransport::Socket,
            (true, true) => SimCollectiveTransport::Nic,
            (false, _) if here => SimCollectiveTransport::Pcie,
            _ => SimCollectiveTransport::NvLink,
        }
    }

    fn is_here(&self, node: &str, gpus: &[GpuIndex]) -> bool {
        self.node_names(gpus).contains(&node)
    }

    pub(super) fn collective_failure(&self, gpus: &[GpuIndex]) -> Option<(String, String)> {
        for fault in &self.scenario.faults {
            if let SimFault::ToolError { node, testcase: None, error } = fault
                && self.is_here(node, gpus)
            {
                let what = cuda_error_text(error);
                return Some((node.clone(), format!("Test CUDA failure common.cu:303 '{what}'")));
            }
        }
        let alone = self.node_names(gpus).len() < 2;
        // Memory is imported only if NVLink joins the nodes and no setting of NCCL disables it.
        let is_off = self.nccl_variable("NCCL_MNNVL_ENABLE") == Some("0");
        let lacks = |node: &&SimNode| {
            !node.reachable || (!node.imex && node.hardware.spans_nodes && !is_off)
        };
        let missing = gpus.iter().map(|gpu| self.fabric.node_of(*gpu)).find(lacks)?;
        (!alone).then(|| {
            let what = "unhandled cuda error / import of a fabric handle failed";
            (missing.name.clone(), format!("Test NCCL failure common.cu:961 '{what}'"))
        })
    }
}
