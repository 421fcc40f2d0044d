//! The tests of nvbandwidth: names, copies and headlines.
//!
//! Names, order and descriptions are the tool's interface, taken from its sources v0.2 to v0.8.

use super::fabric::SimCopyEngine;
use super::tool_config::NvbandwidthLayout;

/// The quantity that one test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCaseKind {
    /// Between the host and each GPU.
    Host {
        /// The data moves from host to device.
        to_device: bool,
        /// Whether the other direction is busy too.
        bidirectional: bool,
        /// Whether all GPUs copy concurrently.
        all: bool,
    },
    /// Each GPU with every other GPU.
    Pairs {
        /// Whether the row's GPU reads.
        read: bool,
        /// Whether both directions run concurrently.
        bidirectional: bool,
    },
    /// All GPUs to one, or one to all.
    Star {
        /// Whether the copies are reads.
        read: bool,
        /// The test's name is "all to one". A read reverses this, see [`SimCase::is_inbound`].
        to_one: bool,
    },
    /// Each GPU with every other GPU, with all disjoint pairs of a round concurrently.
    PairsConcurrent {
        /// Whether the row's GPU reads.
        read: bool,
    },
    /// Latency of a small copy between host and each GPU.
    CopyLatency,
    /// Latency of a small copy from each GPU to every other GPU.
    PeerCopyLatency,
    /// Latency from each GPU to host memory.
    HostLatency,
    /// Latency from each GPU to every other GPU.
    PeerLatency,
    /// Copies within each GPU.
    Local,
    /// Multicast from one GPU to all.
    Broadcast,
    /// Multicast from all GPUs to all: one number.
    BroadcastAll,
    /// Half of the ranks to the other half, concurrently.
    Bisect,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimCase {
    /// Name of the test.
    pub name: &'static str,
    /// Quantity that it measures.
    pub kind: SimCaseKind,
    /// Engine that copies.
    pub engine: SimCopyEngine,
}

const fn host(name: &'static str, engine: SimCopyEngine, flags: [bool; 3]) -> SimCase {
    let [to_device, bidirectional, all] = flags;
    SimCase { name, kind: SimCaseKind::Host { to_device, bidirectional, all }, engine }
}

const fn pairs(
    name: &'static str,
    engine: SimCopyEngine,
    read: bool,
    bidirectional: bool,
) -> SimCase {
    SimCase { name, kind: SimCaseKind::Pairs { read, bidirectional }, engine }
}

const fn star(name: &'static str, engine: SimCopyEngine, read: bool, to_one: bool) -> SimCase {
    SimCase { name, kind: SimCaseKind::Star { read, to_one }, engine }
}

const CE: SimCopyEngine = SimCopyEngine::Copy;
const SM: SimCopyEngine = SimCopyEngine::Kernel;

/// The tests of one node, in execution order.
const NODE: &[SimCase] = &[
    host("host_to_device_memcpy_ce", CE, [true, false, false]),
    host("device_to_host_memcpy_ce", CE, [false, false, false]),
    host("host_to_device_bidirectional_memcpy_ce", CE, [true, true, false]),
    host("device_to_host_bidirectional_memcpy_ce", CE, [false, true, false]),
    pairs("device_to_device_memcpy_read_ce", CE, true, false),
    pairs("device_to_device_memcpy_write_ce", CE, false, false),
    pairs("device_to_device_bidirectional_memcpy_read_ce", CE, true, true),
    pairs("device_to_device_bidirectional_memcpy_write_ce", CE, false, true),
    host("all_to_host_memcpy_ce", CE, [false, false, true]),
    host("all_to_host_bidirectional_memcpy_ce", CE, [false, true, true]),
    host("host_to_all_memcpy_ce", CE, [true, false, true]),
    host("host_to_all_bidirectional_memcpy_ce", CE, [true, true, true]),
    star("all_to_one_write_ce", CE, false, true),
    star("all_to_one_read_ce", CE, true, true),
    star("one_to_all_write_ce", CE, false, false),
    star("one_to_all_read_ce", CE, true, false),
    host("host_to_device_memcpy_sm", SM, [true, false, false]),
    host("device_to_host_memcpy_sm", SM, [false, false, false]),
    host("host_to_device_bidirectional_memcpy_sm", SM, [true, true, false]),
    host("device_to_host_bidirectional_memcpy_sm", SM, [false, true, false]),
    pairs("device_to_device_memcpy_read_sm", SM, true, false),
    pairs("device_to_device_memcpy_write_sm", SM, false, false),
    pairs("device_to_device_bidirectional_memcpy_read_sm", SM, true, true),
    pairs("device_to_device_bidirectional_memcpy_write_sm", SM, false, true),
    host("all_to_host_memcpy_sm", SM, [false, false, true]),
    host("all_to_host_bidirectional_memcpy_sm", SM, [false, true, true]),
    host("host_to_all_memcpy_sm", SM, [true, false, true]),
    host("host_to_all_bidirectional_memcpy_sm", SM, [true, true, true]),
    star("all_to_one_write_sm", SM, false, true),
    star("all_to_one_read_sm", SM, true, true),
    star("one_to_all_write_sm", SM, false, false),
    star("one_to_all_read_sm", SM, true, false),
    SimCase { name: "host_device_latency_sm", kind: SimCaseKind::HostLatency, engine: SM },
    SimCase { name: "device_to_device_latency_sm", kind: SimCaseKind::PeerLatency, engine: SM },
    SimCase { name: "device_local_copy", kind: SimCaseKind::Local, engine: CE },
];

/// The tests across nodes, in execution order.
const MULTINODE: &[SimCase] = &[
    pairs("multinode_device_to_device_memcpy_read_ce", CE, true, false),
    pairs("multinode_device_to_device_memcpy_write_ce", CE, false, false),
    pairs("multinode_device_to_device_bidirectional_memcpy_read_ce", CE, true, true),
    pairs("multinode_device_to_device_bidirectional_memcpy_write_ce", CE, false, true),
    pairs("multinode_device_to_device_memcpy_read_sm", SM, true, false),
    pairs("multinode_device_to_device_memcpy_write_sm", SM, false, false),
    pairs("multinode_device_to_device_bidirectional_memcpy_read_sm", SM, true, true),
    pairs("multinode_device_to_device_bidirectional_memcpy_write_sm", SM, false, true),
    star("multinode_device_to_device_all_to_one_write_sm", SM, false, true),
    star("multinode_device_to_device_all_from_one_read_sm", SM, true, false),
    SimCase {
        name: "multinode_device_to_device_broadcast_one_to_all_sm",
        kind: SimCaseKind::Broadcast,
        engine: SM,
    },
    SimCase {
        name: "multinode_device_to_device_broadcast_all_to_all_sm",
        kind: SimCaseKind::BroadcastAll,
        engine: SM,
    },
    SimCase { name: "multinode_bisect_write_ce", kind: SimCaseKind::Bisect, engine: CE },
];

/// The tests that only fabricgate's native copy probe has.
const NATIVE: &[SimCase] = &[
    SimCase {
        name: "device_to_device_concurrent_memcpy_read_ce",
        kind: SimCaseKind::PairsConcurrent { read: true },
        engine: CE,
    },
    SimCase {
        name: "device_to_device_concurrent_memcpy_write_ce",
        kind: SimCaseKind::PairsConcurrent { read: false },
        engine: CE,
    },
    SimCase { name: "host_to_device_latency_ce", kind: SimCaseKind::CopyLatency, engine: CE },
    SimCase { name: "device_to_host_latency_ce", kind: SimCaseKind::CopyLatency, engine: CE },
    SimCase { name: "device_to_device_latency_ce", kind: SimCaseKind::PeerCopyLatency, engine: CE },
];

/// A test of the native copy probe: those of nvbandwidth with copy engines, and some more.
pub fn native_case(name: &str) -> Option<&'static SimCase> {
    let shared = NODE.iter().chain(MULTINODE).filter(|case| case.engine == CE);
    shared.chain(NATIVE).find(|case| case.name == name)
}

/// The tests of a version, in execution order.
pub fn cases_of_version(version: NvbandwidthLayout, multinode: bool) -> Vec<&'static SimCase> {
    let node = NODE.iter().filter(move |case| match case.kind {
        SimCaseKind::HostLatency | SimCaseKind::PeerLatency => NvbandwidthLayout::V0_5 <= version,
        SimCaseKind::Local => NvbandwidthLayout::V0_8 <= version,
        SimCaseKind::Host { bidirectional, all, .. }
            if case.engine == SM && bidirectional && !all =>
        {
            NvbandwidthLayout::V0_5 <= version
        }
        _ => true,
    });
    let across = MULTINODE.iter().filter(move |_| multinode && NvbandwidthLayout::V0_8 <= version);
    node.chain(across).collect()
}

impl SimCase {
    /// True if the data of a fan goes to the single GPU. On one node, a read "all to one" means
    /// that all read from it (nvbandwidth's sources, v0.8); across nodes the corresponding tests
    /// are named "all from one".
    pub fn is_inbound(&self) -> bool {
        match self.kind {
            SimCaseKind::Star { read, to_one } => to_one != (read && !self.is_multinode()),
            _ => false,
        }
    }

    /// True if it runs across nodes.
    pub fn is_multinode(&self) -> bool {
        self.name.starts_with("multinode_")
    }

    /// True if its numbers are times.
    pub fn is_latency(&self) -> bool {
        matches!(
            self.kind,
            SimCaseKind::HostLatency
                | SimCaseKind::PeerLatency
                | SimCaseKind::CopyLatency
                | SimCaseKind::PeerCopyLatency
        )
    }

    /// True if it needs two GPUs.
    pub fn needs_peer(&self) -> bool {
        !matches!(
            self.kind,
            SimCaseKind::Host { .. }
                | SimCaseKind::HostLatency
                | SimCaseKind::CopyLatency
                | SimCaseKind::Local
        )
    }

    /// The headline of its matrix; `part` is the part of a three-part test.
    pub fn description(&self, version: NvbandwidthLayout, part: &str) -> String {
        let engine = if self.engine == CE { "CE" } else { "SM" };
        match self.kind {
            SimCaseKind::Host { bidirectional: true, .. } => {
                format!("memcpy {engine} CPU(row) <-> GPU(column) bandwidth (GB/s)")
            }
            SimCaseKind::Host { to_device, .. } => {
                let arrow = if to_device { "->" } else { "<-" };
                format!("memcpy {engine} CPU(row) {arrow} GPU(column) bandwidth (GB/s)")
            }
            SimCaseKind::Pairs { bidirectional: true, .. } => {
                // The multi-node tests print CPU where they mean a GPU.
                let row = if self.is_multinode() { "CPU" } else { "GPU" };
                let part = if part.is_empty() { String::new() } else { format!(" {part}") };
                format!("memcpy {engine} {row}(row) <-> GPU(column){part} bandwidth (GB/s)")
            }
            SimCaseKind::Pairs { read, .. } => {
                // The arrow is not the direction of the data.
                let arrow = if read { "->" } else { "<-" };
                format!("memcpy {engine} GPU(row) {arrow} GPU(column) bandwidth (GB/s)")
            }
            SimCaseKind::Star { read, to_one } => {
                self.star_description(version, engine, read, to_one)
            }
            // nvbandwidth has no such tests, and so no text for them.
            SimCaseKind::PairsConcurrent { .. }
            | SimCaseKind::CopyLatency
            | SimCaseKind::PeerCopyLatency => String::new(),
            SimCaseKind::HostLatency => {
                "memory latency SM CPU(row) <-> GPU(column) (ns)".to_owned()
            }
            SimCaseKind::PeerLatency => {
                "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)".to_owned()
            }
            SimCaseKind::Local => "memcpy local GPU(column) bandwidth (GB/s)".to_owned(),
            SimCaseKind::Broadcast => {
                "multicast SM GPU(column) -> All Gpus total bandwidth (GB/s)".to_owned()
            }
            SimCaseKind::BroadcastAll => {
                "multicast SM All -> All Gpus total bandwidth (GB/s)".to_owned()
            }
            SimCaseKind::Bisect => "Bisect benchmarking, simultaneous write CE BW".to_owned(),
        }
    }

    fn star_description(
        &self,
        version: NvbandwidthLayout,
        engine: &str,
        read: bool,
        to_one: bool,
    ) -> String {
        if self.is_multinode() || version < NvbandwidthLayout::V0_5 {
            let arrow = if read { "<-" } else { "->" };
            return match to_one || self.is_multinode() {
                true => {
                    format!("memcpy {engine} All Gpus {arrow} GPU(column) total bandwidth (GB/s)")
                }
                false => {
                    format!("memcpy {engine} GPU(column) {arrow} All GPUs total bandwidth (GB/s)")
                }
            };
        }
        let arrow = if read == to_one { "->" } else { "<-" };
        format!("memcpy {engine} GPU(row) {arrow} GPU(column) bandwidth (GB/s)")
    }
}
