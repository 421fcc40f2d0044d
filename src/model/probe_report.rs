//! What our own GPU probes say beside their numbers: the GPUs they used, what
//! went wrong, and what the driver said around the measurement.
//!
//! Types only. `probe` writes them, `measure` reads them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node_facts::MissingFact;
use super::parse_output::OutputProblemKind;
use super::throttle_reason::ThrottleReason;

/// A GPU as the probe saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProbedGpu {
    /// Its number on the node, in the order of the PCI bus, as NVML and
    /// nvidia-smi count.
    pub index: u32,
    /// Product name.
    pub name: Option<String>,
    /// `GPU-...`.
    pub uuid: Option<String>,
    /// PCI address, `0000:3b:00.0`.
    pub bus_id: Option<String>,
    /// NUMA node of the host memory it was measured with; absent where the
    /// system does not tell.
    pub numa_node: Option<u32>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// A GPU among those of all nodes that take part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbedRank {
    /// Its number among all.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// Its number on that node.
    pub gpu: u32,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// Product name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Something that went wrong, or that kept a number from being measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeProblem {
    /// What kind. Only [`ProblemKind::Corrupt`] speaks against a GPU; everything
    /// else leaves what was not measured unknown.
    pub kind: OutputProblemKind,
    /// The class, for machines: `no-driver`, `no-imex-channel`, `wrong-data`, ...
    pub class: String,
    /// What happened and what to do, one sentence or two, for people.
    pub detail: String,
    /// The test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub testcase: Option<String>,
    /// The node, where it is not the one that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The GPU on that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The library's name for the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl ProbeProblem {
    /// A problem of this kind and class, its place unknown so far.
    pub fn new(kind: OutputProblemKind, class: &str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            class: class.to_owned(),
            detail: detail.into(),
            testcase: None,
            node: None,
            gpu: None,
            code: None,
        }
    }
}

/// What the driver said before, while and after a probe ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriverTelemetry {
    /// How often each GPU was asked while the probe ran.
    pub samples: u32,
    /// Per GPU.
    pub gpus: Vec<GpuTelemetry>,
    /// What it would not say, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingFact>,
}

/// What the driver said of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuTelemetry {
    /// Its number on the node.
    pub index: u32,
    /// `GPU-...`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Before the probe began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<GpuTelemetrySample>,
    /// While it ran: the highest clocks, power, temperature, PCIe generation and
    /// width, and every reason to throttle that was ever given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_load: Option<GpuTelemetrySample>,
    /// After it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<GpuTelemetrySample>,
    /// Error counters of links that grew meanwhile: link, then counter, then by
    /// how much.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub link_errors: BTreeMap<u32, BTreeMap<String, u64>>,
    /// By how much the counter of PCIe replays grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_replays: Option<u64>,
    /// Processes of others that computed on it, by the driver's number. In a
    /// container only those that were there before the probe began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<u32>,
}

/// What one GPU did at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuTelemetrySample {
    /// Clock of the multiprocessors, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Power, in W.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Temperature, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// PCIe generation of its link. Below the greatest at rest is normal: links
    /// slow down when nobody uses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation: Option<u32>,
    /// PCIe lanes of its link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// Why it ran slower than it could, in the words of node facts: `software
    /// power cap`, ... That it had nothing to do is left out under load.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub throttled: Vec<ThrottleReason>,
}
