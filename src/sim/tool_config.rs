//! The tools of a scenario with their versions and formats, and the recorded outputs.

use serde::Deserialize;

/// The tools of a scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimToolConfig {
    /// Version of nvbandwidth.
    pub nvbandwidth: NvbandwidthLayout,
    /// Its output format.
    pub nvbandwidth_format: SimToolFormat,
    /// Tests to run on each node; empty for all.
    pub node_tests: Vec<String>,
    /// Tests to run across a domain.
    pub domain_tests: Vec<String>,
    /// Version of nccl-tests.
    pub nccl_tests: NcclTestsLayout,
    /// Output format of nccl-tests.
    pub nccl_format: SimToolFormat,
    /// Whether to record with `NCCL_DEBUG=INFO`.
    pub nccl_debug: bool,
    /// Programs of nccl-tests to run.
    pub collectives: Vec<String>,
    /// Smallest and largest message in bytes.
    pub bytes: [u64; 2],
    /// Output format of nvidia-imex-ctl.
    pub imex_format: SimToolFormat,
    /// Behaviour of a copy between GPUs without a common fabric.
    pub cross_domain: CrossDomainCopy,
    /// Whether two GPUs only use planes that are up at both ends. Otherwise each end is limited
    /// separately.
    pub shared_planes: bool,
    /// Outputs to record.
    pub record: Vec<RecordedTool>,
    /// Tools that are missing on all nodes; `nccl-tests` stands for all its programs.
    pub missing: Vec<String>,
}

impl Default for SimToolConfig {
    fn default() -> Self {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        Self {
            nvbandwidth: NvbandwidthLayout::V0_8,
            nvbandwidth_format: SimToolFormat::Text,
            node_tests: Vec::new(),
            domain_tests: names(&[
                "multinode_device_to_device_memcpy_read_ce",
                "multinode_device_to_device_memcpy_write_ce",
            ]),
            nccl_tests: NcclTestsLayout::V2_17,
            nccl_format: SimToolFormat::Text,
            nccl_debug: false,
            collectives: names(&["all_reduce_perf"]),
            bytes: [8, 16 << 30],
            imex_format: SimToolFormat::Text,
            cross_domain: CrossDomainCopy::Nic,
            shared_planes: true,
            record: vec![
                RecordedTool::Nvbandwidth,
                RecordedTool::NvlinkStatus,
                RecordedTool::NvbandwidthDomain,
                RecordedTool::Collectives,
                RecordedTool::Imex,
            ],
            missing: Vec::new(),
        }
    }
}

/// A layout of nvbandwidth's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum NvbandwidthLayout {
    /// The layout of v0.2.
    #[serde(rename = "0.2")]
    V0_2,
    /// The layout of v0.5.
    #[serde(rename = "0.5")]
    V0_5,
    /// The layout of v0.6.
    #[serde(rename = "0.6")]
    V0_6,
    /// The layout of v0.8.
    #[serde(rename = "0.8")]
    V0_8,
    /// The layout of v0.10.
    #[serde(rename = "0.10")]
    V0_10,
}

impl NvbandwidthLayout {
    /// True if the JSON format of this version is known: v0.2 had none, and no sample of v0.10 is
    /// known.
    pub fn has_json(self) -> bool {
        matches!(self, Self::V0_5 | Self::V0_6 | Self::V0_8)
    }
}

/// A layout of nccl-tests' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum NcclTestsLayout {
    /// The layout of 2.13.
    #[serde(rename = "2.13")]
    V2_13,
    /// The layout of 2.17 and later.
    #[serde(rename = "2.17")]
    V2_17,
}

/// Output format of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimToolFormat {
    /// Plain text.
    Text,
    /// JSON or another structured format.
    Json,
}

/// Behaviour of a copy between GPUs without a common fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CrossDomainCopy {
    /// It runs at the rate of a NIC.
    Nic,
    /// The import of the handle fails and the run ends.
    Error,
}

/// A kind of output to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedTool {
    /// nvbandwidth on each node.
    Nvbandwidth,
    /// nvbandwidth across each claimed domain of several nodes.
    NvbandwidthDomain,
    /// nvbandwidth over one node of each of two claimed domains, for every pair of domains.
    NvbandwidthBetween,
    /// nccl-tests across each claimed domain.
    Collectives,
    /// p2pBandwidthLatencyTest on each node.
    P2p,
    /// `nvidia-smi nvlink -s` on each node.
    NvlinkStatus,
    /// `nvidia-smi topo -m` on each node.
    Topo,
    /// `nvidia-smi -q` on each node.
    Query,
    /// `nvidia-imex-ctl -N` across each claimed domain of several nodes.
    Imex,
    /// `ib_write_bw` of each node's first NIC.
    IbWriteBw,
}
