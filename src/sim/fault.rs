//! Faults of simulated hardware and of the tools on it.
//!
//! Faults are data: `fabric` applies them to the fabric, `invocation` to a tool's run. Nodes in the
//! wrong domain and split domains are not faults but differences between reality and claim.

use serde::Deserialize;

/// A fault. GPUs have names `node:slot`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SimFault {
    /// A GPU lost NVLinks.
    LostLinks {
        /// Name of the GPU.
        gpu: String,
        /// Number of lost links.
        #[serde(default = "default_count")]
        count: u32,
        /// Index of the first lost link; the others follow it.
        #[serde(default)]
        first: u32,
        /// Failed direction.
        #[serde(default)]
        direction: SimLinkDirection,
    },
    /// A GPU is up without any NVLink.
    GpuParked {
        /// Name of the GPU.
        gpu: String,
    },
    /// A GPU is missing.
    GpuMissing {
        /// Name of the GPU.
        gpu: String,
    },
    /// A GPU was replaced by another one. The new GPU has no fault.
    GpuSwapped {
        /// Name of the GPU.
        gpu: String,
    },
    /// Switch planes of a domain are out: one plane, or a whole switch tray.
    PlaneOut {
        /// Name of the real domain.
        domain: String,
        /// Number of planes.
        #[serde(default = "default_count")]
        count: u32,
        /// Index of the first plane.
        #[serde(default)]
        first: u32,
    },
    /// Switch planes are out for the GPUs of one node.
    PlaneOutForNode {
        /// Name of the node.
        node: String,
        /// Number of planes.
        #[serde(default = "default_count")]
        count: u32,
        /// Index of the first plane.
        #[serde(default)]
        first: u32,
    },
    /// Two GPUs are slow only with each other.
    SlowPair {
        /// Name of one GPU.
        a: String,
        /// Name of the other GPU.
        b: String,
        /// Remaining share of the rate.
        share: f64,
        /// Whether only the direction from a to b is slow.
        #[serde(default)]
        one_way: bool,
    },
    /// The host link of a GPU has half (0.5) or a quarter (0.25) of its width or generation.
    HostLink {
        /// Name of the GPU.
        gpu: String,
        /// Remaining share of the rate.
        share: f64,
        /// Slow direction.
        #[serde(default)]
        direction: HostLinkDirection,
    },
    /// All links of a node are up, but copies use none of them.
    FabricDown {
        /// Name of the node.
        node: String,
    },
    /// Everything on a node is slower.
    PowerCap {
        /// Name of the node.
        node: String,
        /// Remaining share of every rate.
        share: f64,
    },
    /// A GPU delivers wrong data.
    Corrupt {
        /// Name of the GPU.
        gpu: String,
    },
    /// A tool fails with a CUDA error on a node.
    ToolError {
        /// Name of the node.
        node: String,
        /// Name of the failing test; the first one if absent.
        testcase: Option<String>,
        /// Name of the CUDA error.
        #[serde(default = "default_error")]
        error: String,
    },
    /// The output of a tool ends early.
    Truncated {
        /// Name of a node or a claimed domain.
        scope: String,
        /// Name of the tool as in recordings: `nvbandwidth`, `all_reduce_perf`.
        tool: String,
        /// Remaining share of the output.
        #[serde(default = "default_share")]
        share: f64,
    },
    /// A tool waives these tests on a node.
    Waived {
        /// Name of the node.
        node: String,
        /// Names of the tests.
        tests: Vec<String>,
    },
    /// nvidia-smi shows an inactive link, but copies have the full rate.
    ShownInactive {
        /// Name of the GPU.
        gpu: String,
        /// Index of the link.
        link: u32,
    },
    /// The driver of these nodes reports the clique of another domain.
    CliqueShown {
        /// The nodes, as a folded list.
        nodes: String,
        /// Name of the real domain whose clique is reported.
        like: String,
    },
    /// The IMEX daemon of a node is not reachable.
    ImexPeerMissing {
        /// Name of the node.
        node: String,
    },
    /// Collectives silently use the NICs.
    CollectiveFallback {
        /// Name of a claimed domain, or of a node.
        scope: String,
    },
    /// A setting of NCCL applies to every job here, as in `/etc/nccl.conf`.
    NcclSetting {
        /// Name of a claimed domain, or of a node.
        scope: String,
        /// The variable: `NCCL_MNNVL_ENABLE`, `NCCL_NVLS_ENABLE`, `NCCL_ALGO`.
        name: String,
        /// Value of the variable.
        value: String,
    },
    /// A disturbance slowed the copies of a node during the measurement, and was gone when
    /// collectives ran.
    DisturbedCopies {
        /// Name of the node.
        node: String,
        /// Remaining share of the rate of its copies.
        share: f64,
    },
    /// Cells that the tool did not fill in.
    MissingCells {
        /// Name of a node or a claimed domain.
        scope: String,
        /// Share of missing cells.
        share: f64,
    },
    /// Readings of a GPU dip.
    Dips {
        /// Name of the GPU.
        gpu: String,
        /// Share of readings that dip.
        rate: f64,
        /// Smallest and largest dip, as a share of the reading.
        #[serde(default = "default_depth")]
        depth: [f64; 2],
    },
    /// A GPU gets slower from one reading to the next, as it heats up.
    Drift {
        /// Name of the GPU.
        gpu: String,
        /// Share of the rate lost with each reading.
        share: f64,
    },
    /// A NIC of a node is slow: a rate class down is 0.5.
    RailRate {
        /// Name of the node.
        node: String,
        /// Index of the rail, from 0.
        rail: usize,
        /// Remaining share of the rate.
        share: f64,
        /// Slow direction.
        #[serde(default)]
        direction: SimLinkDirection,
    },
    /// A NIC of a node has no link.
    RailDown {
        /// Name of the node.
        node: String,
        /// Index of the rail, from 0.
        rail: usize,
    },
    /// The path between two nodes loses packets, on every rail.
    PairLoss {
        /// Name of one node.
        a: String,
        /// Name of the other node.
        b: String,
        /// Remaining share of the rate.
        share: f64,
    },
    /// A leaf lost uplinks.
    LeafUplink {
        /// Name of the leaf.
        leaf: String,
        /// Remaining share of its uplinks.
        share: f64,
    },
    /// A foreign process uses the GPUs of a node.
    Busy {
        /// Name of the node.
        node: String,
        /// The process name in nvidia-smi.
        #[serde(default = "default_program")]
        process: String,
    },
    /// A node is unreachable.
    Unreachable {
        /// Name of the node.
        node: String,
    },
    /// A tool never ends on a node.
    ToolHangs {
        /// Name of the node.
        node: String,
        /// Name of the tool.
        tool: String,
    },
    /// A tool is not installed on a node.
    ToolMissing {
        /// Name of the node.
        node: String,
        /// Name of the tool; `nccl-tests` stands for all its programs.
        tool: String,
    },
    /// A tool prints more than the capture limit.
    ToolFloods {
        /// Name of the node.
        node: String,
        /// Name of the tool.
        tool: String,
    },
    /// A tool prints output that no parser recognizes.
    ToolGarbage {
        /// Name of the node.
        node: String,
        /// Name of the tool.
        tool: String,
    },
}

/// A fault that is absent at the start: it appears with time, or with heat.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayedFault {
    /// It is active from this round of a burn-in on, counted from 1.
    #[serde(default)]
    pub from_round: u32,
    /// It is inactive from this round on.
    #[serde(default)]
    pub until_round: Option<u32>,
    /// It is active after this many minutes of GPU load.
    #[serde(default)]
    pub soaked_minutes: f64,
    /// Whether it is active only while that load runs.
    #[serde(default)]
    pub while_soaking: bool,
    /// The fault.
    pub fault: SimFault,
}

/// Progress of a burn-in, for delayed faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BurnInAge {
    /// Current round, from 1; 0 outside of a burn-in.
    pub round: u32,
    /// Minutes of load before it.
    pub soaked_minutes: f64,
    /// Whether the load runs now.
    pub soaking: bool,
}

impl BurnInAge {
    /// Parses `2:10`, or `2:10:soaking` while the load runs.
    pub fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let round = parts.next()?.parse().ok()?;
        let soaked_minutes = parts.next()?.parse().ok()?;
        let soaking = match parts.next() {
            None => false,
            Some("soaking") => true,
            Some(_) => return None,
        };
        Some(Self { round, soaked_minutes, soaking })
    }
}

impl DelayedFault {
    /// True if the fault is active at this age.
    pub fn is_active(&self, age: BurnInAge) -> bool {
        self.from_round <= age.round
            && self.until_round.is_none_or(|end| age.round < end)
            && self.soaked_minutes <= age.soaked_minutes
            && (!self.while_soaking || age.soaking)
    }
}

/// Direction of a fabric link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimLinkDirection {
    /// Both directions.
    #[default]
    Both,
    /// Out of the GPU.
    Tx,
    /// Into the GPU.
    Rx,
}

/// Direction of a host link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostLinkDirection {
    /// Both directions.
    #[default]
    Both,
    /// Host to device.
    H2d,
    /// Device to host.
    D2h,
}

fn default_count() -> u32 {
    1
}

fn default_share() -> f64 {
    0.5
}

fn default_error() -> String {
    "CUDA_ERROR_ECC_UNCORRECTABLE".to_owned()
}

fn default_program() -> String {
    "python3".to_owned()
}

fn default_depth() -> [f64; 2] {
    [0.05, 0.40]
}
