//! The common parts of the native GPU probes' documents, apart from the numbers: the GPUs used,
//! errors, and driver telemetry.
//!
//! Types only. `probe` writes them, `measure` reads them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node_facts::MissingFact;
use super::parse_output::OutputProblemKind;
use super::probe_problem_class::ProbeProblemClass;
use super::throttle_reason::ThrottleReason;

/// A GPU in the order of the probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProbedGpu {
    /// Index on the node in PCI bus order, as in NVML and nvidia-smi.
    pub index: u32,
    /// Product name of the GPU.
    pub name: Option<String>,
    /// UUID, `GPU-...`.
    pub uuid: Option<String>,
    /// PCI address, `0000:3b:00.0`.
    pub bus_id: Option<String>,
    /// NUMA node of the host memory in the measurement; absent where the system does not report
    /// it.
    pub numa_node: Option<u32>,
    /// NUMA node of the GPU, if this process may not use its CPUs: the host memory is on another
    /// node, and host copies may be slower for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_numa_node: Option<u32>,
    /// Memory size, in bytes.
    pub memory_bytes: Option<u64>,
}

/// A GPU among those of all participating nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbedRank {
    /// Rank among all GPUs.
    pub rank: u32,
    /// Name of its node.
    pub node: String,
    /// Index on that node.
    pub gpu: u32,
    /// PCI address, `0000:3b:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// Product name of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An error, or a reason for a missing measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeProblem {
    /// Kind of the problem. Only [`OutputProblemKind::Corrupt`] counts against a GPU; every other
    /// kind leaves the missing measurements unknown.
    pub kind: OutputProblemKind,
    /// Machine-readable class: `no-driver`, `no-imex-channel`, `wrong-data`, ...
    pub class: ProbeProblemClass,
    /// The problem and its remedy, in one or two sentences.
    pub detail: String,
    /// Name of the test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub testcase: Option<String>,
    /// The affected node, where it differs from the reporting one.
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
    /// A problem of this kind and class without a location.
    pub fn new(
        kind: OutputProblemKind,
        class: ProbeProblemClass,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            class,
            detail: detail.into(),
            testcase: None,
            node: None,
            gpu: None,
            code: None,
        }
    }
}

/// Driver telemetry before, during and after a probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriverTelemetry {
    /// Number of samples per GPU during the probe.
    pub samples: u32,
    /// Telemetry, one entry per GPU.
    pub gpus: Vec<GpuTelemetry>,
    /// Values that the driver did not report, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingFact>,
}

/// Driver telemetry of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuTelemetry {
    /// Index on the node.
    pub index: u32,
    /// UUID, `GPU-...`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// State before the probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<GpuTelemetrySample>,
    /// Extremes during the probe: the highest clocks, power, temperature, PCIe generation and
    /// width, and every throttle reason that occurred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_load: Option<GpuTelemetrySample>,
    /// State after the probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<GpuTelemetrySample>,
    /// Error counters of links that increased during the probe: link, counter, increase.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub link_errors: BTreeMap<u32, BTreeMap<String, u64>>,
    /// Increase of the PCIe replay counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_replays: Option<u64>,
    /// Foreign compute processes on the GPU, by the driver's process id. In a container only
    /// those from before the probe.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<u32>,
}

/// The state of one GPU at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuTelemetrySample {
    /// SM clock, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Memory clock, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Power draw, in W.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// GPU temperature, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// PCIe generation of the link. An idle link below its maximum is normal: idle links slow
    /// down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation: Option<u32>,
    /// PCIe lanes of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// Throttle reasons, under the names of node facts: `software power cap`, ... The reason
    /// "idle" is omitted under load.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub throttled: Vec<ThrottleReason>,
}
