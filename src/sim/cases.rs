//! The tests of nvbandwidth: their names, what they copy, how they describe it.
//!
//! Names, order and descriptions are the tool's interface, established from
//! its sources v0.2 to v0.8.

use super::fabric::Engine;
use super::tooling::Nvbandwidth;

/// What one test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Between host and each GPU: to the device, with the other direction
    /// busy, with all GPUs at once.
    Host {
        /// Host to device.
        to_device: bool,
        /// The other direction is busy.
        bidirectional: bool,
        /// All GPUs at once.
        all: bool,
    },
    /// Each GPU with each other.
    Pairs {
        /// The row's GPU reads.
        read: bool,
        /// Both directions at once.
        bidirectional: bool,
    },
    /// All GPUs to one, or one to all.
    Star {
        /// The copies are reads.
        read: bool,
        /// Its name says all to one. A read turns that around, see [`Case::arrives`].
        to_one: bool,
    },
    /// Each GPU with each other, all disjoint pairs of a round at once.
    PairsAtOnce {
        /// The row's GPU reads.
        read: bool,
    },
    /// Latency of a small copy between host and each GPU.
    CopyLatency,
    /// Latency of a small copy from each GPU to each other.
    PeerCopyLatency,
    /// Latency from each GPU to host memory.
    HostLatency,
    /// Latency from each GPU to each other.
    PeerLatency,
    /// Inside each GPU.
    Local,
    /// One GPU to all by multicast.
    Broadcast,
    /// Everybody to everybody by multicast: one number.
    BroadcastAll,
    /// Half the ranks to the other half at once.
    Bisect,
}

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it measures.
    pub kind: Kind,
    /// Who copies.
    pub engine: Engine,
}

const fn host(name: &'static str, engine: Engine, flags: [bool; 3]) -> Case {
    let [to_device, bidirectional, all] = flags;
    Case { name, kind: Kind::Host { to_device, bidirectional, all }, engine }
}

const fn pairs(name: &'static str, engine: Engine, read: bool, bidirectional: bool) -> Case {
    Case { name, kind: Kind::Pairs { read, bidirectional }, engine }
}

const fn star(name: &'static str, engine: Engine, read: bool, to_one: bool) -> Case {
    Case { name, kind: Kind::Star { read, to_one }, engine }
}

const CE: Engine = Engine::Copy;
const SM: Engine = Engine::Kernel;

/// The tests of one node, in the order they run.
const NODE: &[Case] = &[
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
    Case { name: "host_device_latency_sm", kind: Kind::HostLatency, engine: SM },
    Case { name: "device_to_device_latency_sm", kind: Kind::PeerLatency, engine: SM },
    Case { name: "device_local_copy", kind: Kind::Local, engine: CE },
];

/// The tests across nodes, in the order they run.
const MULTINODE: &[Case] = &[
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
    Case {
        name: "multinode_device_to_device_broadcast_one_to_all_sm",
        kind: Kind::Broadcast,
        engine: SM,
    },
    Case {
        name: "multinode_device_to_device_broadcast_all_to_all_sm",
        kind: Kind::BroadcastAll,
        engine: SM,
    },
    Case { name: "multinode_bisect_write_ce", kind: Kind::Bisect, engine: CE },
];

/// The tests that only our own copy probe has.
const OWN: &[Case] = &[
    Case {
        name: "device_to_device_concurrent_memcpy_read_ce",
        kind: Kind::PairsAtOnce { read: true },
        engine: CE,
    },
    Case {
        name: "device_to_device_concurrent_memcpy_write_ce",
        kind: Kind::PairsAtOnce { read: false },
        engine: CE,
    },
    Case { name: "host_to_device_latency_ce", kind: Kind::CopyLatency, engine: CE },
    Case { name: "device_to_host_latency_ce", kind: Kind::CopyLatency, engine: CE },
    Case { name: "device_to_device_latency_ce", kind: Kind::PeerCopyLatency, engine: CE },
];

/// A test of our own copy probe: those of nvbandwidth that copy engines do, and
/// some more.
pub fn own(name: &str) -> Option<&'static Case> {
    let shared = NODE.iter().chain(MULTINODE).filter(|case| case.engine == CE);
    shared.chain(OWN).find(|case| case.name == name)
}

/// The tests a version knows, in the order they run.
pub fn list(version: Nvbandwidth, multinode: bool) -> Vec<&'static Case> {
    let node = NODE.iter().filter(move |case| match case.kind {
        Kind::HostLatency | Kind::PeerLatency => Nvbandwidth::V0_5 <= version,
        Kind::Local => Nvbandwidth::V0_8 <= version,
        Kind::Host { bidirectional, all, .. } if case.engine == SM && bidirectional && !all => {
            Nvbandwidth::V0_5 <= version
        }
        _ => true,
    });
    let across = MULTINODE.iter().filter(move |_| multinode && Nvbandwidth::V0_8 <= version);
    node.chain(across).collect()
}

impl Case {
    /// Whether the data of a fan goes to the one. On one node a read of "all to
    /// one" is all reading from the one (nvbandwidth's sources, v0.8); across nodes
    /// such tests are called "all from one".
    pub fn arrives(&self) -> bool {
        match self.kind {
            Kind::Star { read, to_one } => to_one != (read && !self.is_multinode()),
            _ => false,
        }
    }

    /// Whether it runs across nodes.
    pub fn is_multinode(&self) -> bool {
        self.name.starts_with("multinode_")
    }

    /// Whether its numbers are times.
    pub fn is_latency(&self) -> bool {
        matches!(
            self.kind,
            Kind::HostLatency | Kind::PeerLatency | Kind::CopyLatency | Kind::PeerCopyLatency
        )
    }

    /// Whether it needs two GPUs.
    pub fn needs_peer(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Host { .. } | Kind::HostLatency | Kind::CopyLatency | Kind::Local
        )
    }

    /// The headline of its matrix; `part` is the part of a three-part test.
    pub fn description(&self, version: Nvbandwidth, part: &str) -> String {
        let engine = if self.engine == CE { "CE" } else { "SM" };
        match self.kind {
            Kind::Host { bidirectional: true, .. } => {
                format!("memcpy {engine} CPU(row) <-> GPU(column) bandwidth (GB/s)")
            }
            Kind::Host { to_device, .. } => {
                let arrow = if to_device { "->" } else { "<-" };
                format!("memcpy {engine} CPU(row) {arrow} GPU(column) bandwidth (GB/s)")
            }
            Kind::Pairs { bidirectional: true, .. } => {
                // The multi-node tests say CPU where they mean a GPU.
                let row = if self.is_multinode() { "CPU" } else { "GPU" };
                let part = if part.is_empty() { String::new() } else { format!(" {part}") };
                format!("memcpy {engine} {row}(row) <-> GPU(column){part} bandwidth (GB/s)")
            }
            Kind::Pairs { read, .. } => {
                // The arrow is not the direction of the data.
                let arrow = if read { "->" } else { "<-" };
                format!("memcpy {engine} GPU(row) {arrow} GPU(column) bandwidth (GB/s)")
            }
            Kind::Star { read, to_one } => self.star_description(version, engine, read, to_one),
            // nvbandwidth has no such tests, and so no words for them.
            Kind::PairsAtOnce { .. } | Kind::CopyLatency | Kind::PeerCopyLatency => String::new(),
            Kind::HostLatency => "memory latency SM CPU(row) <-> GPU(column) (ns)".to_owned(),
            Kind::PeerLatency => {
                "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)".to_owned()
            }
            Kind::Local => "memcpy local GPU(column) bandwidth (GB/s)".to_owned(),
            Kind::Broadcast => {
                "multicast SM GPU(column) -> All Gpus total bandwidth (GB/s)".to_owned()
            }
            Kind::BroadcastAll => "multicast SM All -> All Gpus total bandwidth (GB/s)".to_owned(),
            Kind::Bisect => "Bisect benchmarking, simultaneous write CE BW".to_owned(),
        }
    }

    fn star_description(
        &self,
        version: Nvbandwidth,
        engine: &str,
        read: bool,
        to_one: bool,
    ) -> String {
        if self.is_multinode() || version < Nvbandwidth::V0_5 {
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
