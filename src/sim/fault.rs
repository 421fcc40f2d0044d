//! What can be wrong with simulated hardware, and with the tools on it.
//!
//! Faults are data: what each does to the fabric is in `fabric`, what it does
//! to a tool's run in `bench`. Nodes in the wrong domain and split domains are
//! no faults but differences between what is and what is claimed.

use serde::Deserialize;

/// One fault. GPUs are named `node:slot`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SimFault {
    /// A GPU lost NVLinks.
    LostLinks {
        /// Which GPU.
        gpu: String,
        /// How many links.
        #[serde(default = "default_count")]
        count: u32,
        /// The first one lost; the following ones go with it.
        #[serde(default)]
        first: u32,
        /// Which direction.
        #[serde(default)]
        direction: SimLinkDirection,
    },
    /// A GPU is up without any NVLink.
    GpuParked {
        /// Which GPU.
        gpu: String,
    },
    /// A GPU is not there.
    GpuMissing {
        /// Which GPU.
        gpu: String,
    },
    /// No fault of what runs: a GPU was put in the place of another.
    GpuSwapped {
        /// Which GPU.
        gpu: String,
    },
    /// Switch planes of a domain are out: one plane, or a whole switch tray.
    PlaneOut {
        /// The domain, as it really is.
        domain: String,
        /// How many planes.
        #[serde(default = "default_count")]
        count: u32,
        /// The first one.
        #[serde(default)]
        first: u32,
    },
    /// Switch planes are out for the GPUs of one node.
    PlaneOutForNode {
        /// Which node.
        node: String,
        /// How many planes.
        #[serde(default = "default_count")]
        count: u32,
        /// The first one.
        #[serde(default)]
        first: u32,
    },
    /// Two GPUs are slow only with each other.
    SlowPair {
        /// One GPU.
        a: String,
        /// The other.
        b: String,
        /// What is left of the rate.
        share: f64,
        /// Only from a to b.
        #[serde(default)]
        one_way: bool,
    },
    /// The host link of a GPU has half its width or generation (0.5), or a
    /// quarter (0.25).
    HostLink {
        /// Which GPU.
        gpu: String,
        /// What is left of the rate.
        share: f64,
        /// Which direction.
        #[serde(default)]
        direction: HostLinkDirection,
    },
    /// All links of a node are up and none is used.
    FabricDown {
        /// Which node.
        node: String,
    },
    /// Everything on a node is slower.
    PowerCap {
        /// Which node.
        node: String,
        /// What is left of every rate.
        share: f64,
    },
    /// A GPU delivers wrong data.
    Corrupt {
        /// Which GPU.
        gpu: String,
    },
    /// A tool fails with a CUDA error on a node.
    ToolError {
        /// Which node.
        node: String,
        /// In which test; the first that runs when absent.
        testcase: Option<String>,
        /// Name of the error.
        #[serde(default = "default_error")]
        error: String,
    },
    /// The output of a tool ends early.
    Truncated {
        /// On this node or across this claimed domain.
        scope: String,
        /// The tool, by the name of its recording: `nvbandwidth`, `all_reduce_perf`.
        tool: String,
        /// What is left of the output.
        #[serde(default = "default_share")]
        share: f64,
    },
    /// A tool waives these tests on a node.
    Waived {
        /// Which node.
        node: String,
        /// The tests.
        tests: Vec<String>,
    },
    /// nvidia-smi shows a link inactive that copies do not miss.
    ShownInactive {
        /// Which GPU.
        gpu: String,
        /// Which link.
        link: u32,
    },
    /// The driver of these nodes names the clique of another domain.
    CliqueShown {
        /// Which nodes, as a folded list.
        nodes: String,
        /// The domain, as it really is, whose clique it names.
        like: String,
    },
    /// The IMEX daemon of a node is not reachable.
    ImexPeerMissing {
        /// Which node.
        node: String,
    },
    /// Collectives silently take the NICs.
    CollectiveFallback {
        /// The domain as claimed, or a node.
        scope: String,
    },
    /// NCCL is told something for every job here, as by `/etc/nccl.conf`.
    NcclSetting {
        /// The domain as claimed, or a node.
        scope: String,
        /// The variable: `NCCL_MNNVL_ENABLE`, `NCCL_NVLS_ENABLE`, `NCCL_ALGO`.
        name: String,
        /// Its value.
        value: String,
    },
    /// Something slowed the copies of a node while they were measured, and was
    /// gone when collectives ran.
    DisturbedCopies {
        /// Which node.
        node: String,
        /// What is left of the rate of its copies.
        share: f64,
    },
    /// Cells the tool did not fill in.
    MissingCells {
        /// On this node or across this claimed domain.
        scope: String,
        /// Share of the cells.
        share: f64,
    },
    /// Readings of a GPU dip.
    Dips {
        /// Which GPU.
        gpu: String,
        /// Share of readings that dip.
        rate: f64,
        /// Smallest and largest dip.
        #[serde(default = "default_depth")]
        depth: [f64; 2],
    },
    /// A GPU gets slower from one reading to the next, as it heats up.
    Drift {
        /// Which GPU.
        gpu: String,
        /// Share of the rate lost with each reading.
        share: f64,
    },
    /// A NIC of a node is slow: a rate class down is 0.5.
    RailRate {
        /// Which node.
        node: String,
        /// Which rail, from 0.
        rail: usize,
        /// What is left of the rate.
        share: f64,
        /// Which direction.
        #[serde(default)]
        direction: SimLinkDirection,
    },
    /// A NIC of a node has no link.
    RailDown {
        /// Which node.
        node: String,
        /// Which rail, from 0.
        rail: usize,
    },
    /// The path between two nodes loses packets, on every rail.
    PairLoss {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// What is left of the rate.
        share: f64,
    },
    /// A leaf lost uplinks.
    LeafUplink {
        /// Which leaf.
        leaf: String,
        /// Which share of its uplinks is left.
        share: f64,
    },
    /// Somebody's process uses the GPUs of a node.
    Busy {
        /// Which node.
        node: String,
        /// The program, as nvidia-smi shows it.
        #[serde(default = "default_program")]
        process: String,
    },
    /// A node cannot be reached.
    Unreachable {
        /// Which node.
        node: String,
    },
    /// A tool never ends on a node.
    ToolHangs {
        /// Which node.
        node: String,
        /// Which tool.
        tool: String,
    },
    /// A tool is not installed on a node.
    ToolMissing {
        /// Which node.
        node: String,
        /// Which tool; `nccl-tests` are all its programs.
        tool: String,
    },
    /// A tool prints more than anybody can keep.
    ToolFloods {
        /// Which node.
        node: String,
        /// Which tool.
        tool: String,
    },
    /// A tool prints what no parser knows.
    ToolGarbage {
        /// Which node.
        node: String,
        /// Which tool.
        tool: String,
    },
}

/// A fault that is not there from the beginning: it comes with time, or with
/// heat.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayedFault {
    /// It shows from this round of a burn-in on, counted from 1.
    #[serde(default)]
    pub from_round: u32,
    /// It shows no more from this round on.
    #[serde(default)]
    pub until_round: Option<u32>,
    /// It shows where the GPUs were under load for so many minutes before.
    #[serde(default)]
    pub soaked_minutes: f64,
    /// It shows while that load runs, and not afterwards.
    #[serde(default)]
    pub while_soaking: bool,
    /// What is wrong then.
    pub fault: SimFault,
}

/// How far a burn-in has come, for what comes with time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BurnInAge {
    /// The round, from 1; 0 is none.
    pub round: u32,
    /// Minutes of load before it.
    pub soaked_minutes: f64,
    /// The load runs now.
    pub soaking: bool,
}

impl BurnInAge {
    /// As one word: `2:10`, and `2:10:soaking` while the load runs.
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
    /// Whether it shows at this age.
    pub fn is_active(&self, age: BurnInAge) -> bool {
        self.from_round <= age.round
            && self.until_round.is_none_or(|end| age.round < end)
            && self.soaked_minutes <= age.soaked_minutes
            && (!self.while_soaking || age.soaking)
    }
}

/// Which way of a fabric link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimLinkDirection {
    /// Both.
    #[default]
    Both,
    /// Out of the GPU.
    Tx,
    /// Into the GPU.
    Rx,
}

/// Which way of a host link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostLinkDirection {
    /// Both.
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
