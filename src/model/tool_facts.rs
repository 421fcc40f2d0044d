//! Facts about machines in tool outputs, apart from measurements.
//!
//! Every field is optional: absent means that the output does not contain it. Nothing here is
//! derived or judged.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::DriverTelemetry;

/// The facts in one output about the machine it ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolFacts {
    /// Driver version, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CUDA version of the driver API, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_driver: Option<String>,
    /// CUDA runtime version, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_runtime: Option<String>,
    /// NCCL version, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// Host names, in the order first seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Devices listed in the output.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<ToolDevice>,
    /// Ranks of a multi-process run, with host and device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<ToolRank>,
    /// NVLinks per GPU (`nvidia-smi nvlink`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<GpuLinks>,
    /// Fabric state per GPU (`nvidia-smi -q`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fabric: Vec<GpuFabric>,
    /// Connection types between devices (`nvidia-smi topo -m`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<SmiTopology>,
    /// IMEX domain (`nvidia-imex-ctl`), as one node reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex: Option<ImexStatus>,
    /// Results of diagnostics (`dcgmi diag`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<DcgmDiagnostic>,
    /// Transports that NCCL logged (`MNNVL`, `NVLS`, `NET/IB`, ...), without duplicates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transports: Vec<String>,
    /// Driver telemetry of a native probe, by reporting node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub around: BTreeMap<String, DriverTelemetry>,
    /// Other parameters in the output, under the tool's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// One GPU as an output lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolDevice {
    /// Device index on its host.
    pub index: u32,
    /// Product name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// PCI bus id, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// UUID of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its host, where the output contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// NUMA node of the GPU, if the measured host memory is known to be on another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_numa_node: Option<u32>,
}

/// One process of a multi-process run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolRank {
    /// Number of the rank.
    pub rank: u32,
    /// Name of its host.
    pub host: String,
    /// Its device index on that host.
    pub device: u32,
    /// Product name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// PCI bus id, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// Index of the nccl-tests group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
}

/// The NVLinks of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuLinks {
    /// Index of the GPU.
    pub gpu: u32,
    /// UUID of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Product name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the tool reports all links as inactive.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all_inactive: bool,
    /// Links listed in the output.
    pub links: Vec<ToolNvlink>,
}

/// One NVLink in the output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolNvlink {
    /// Number of the link.
    pub link: u32,
    /// Whether it is up; `None` when only counters were printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Line rate per direction in GB/s, as the driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Error counters, under the tool's names; `None` = not supported.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, Option<u64>>,
}

/// The fabric block of one GPU. Strings as printed; `N/A` stays `N/A`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuFabric {
    /// GPU index in the order printed.
    pub gpu: u32,
    /// PCI bus id, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// UUID of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Product name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `Completed`, `In Progress`, `Not Started`, `N/A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `Success`, an NVML error text, `N/A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Clique id, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<String>,
    /// Cluster UUID, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// The entries of the health block.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub health: BTreeMap<String, String>,
}

/// The matrix of `nvidia-smi topo -m`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SmiTopology {
    /// Column labels: GPUs and NICs.
    pub columns: Vec<String>,
    /// Rows, one per device.
    pub rows: Vec<SmiTopologyRow>,
    /// `NIC0` to `mlx5_0`, from the legend.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nics: BTreeMap<String, String>,
}

/// One row of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SmiTopologyRow {
    /// Name of the device.
    pub device: String,
    /// Connection types, one per column; `X` on the diagonal.
    pub connections: Vec<String>,
    /// CPU affinity column, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_affinity: Option<String>,
    /// NUMA affinity column, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_affinity: Option<String>,
}

/// An IMEX domain as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexStatus {
    /// Domain state: `UP`, `DEGRADED`, `DOWN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Time of the query, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Members of the domain.
    pub nodes: Vec<ImexNode>,
}

/// One member of an IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexNode {
    /// Index of the member.
    pub index: u32,
    /// Address of the member, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Hostname, where printed and not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// State: `READY`, `UNAVAILABLE`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Version of IMEX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Connection state to each peer: peer index to state (`CONNECTED`, ...).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub connections: BTreeMap<u32, String>,
}

/// One result of a diagnostic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DcgmDiagnostic {
    /// Category: `Deployment`, `Hardware`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Name of the test.
    pub test: String,
    /// GPU index; `None` for a result of the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Status in lower case: `pass`, `fail`, `warn`, `skip`, or as printed.
    pub status: String,
    /// Further messages of the test.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
}

impl ToolFacts {
    /// Adds a hostname, unless it is already present.
    pub fn add_host(&mut self, host: &str) {
        if !host.is_empty() && !self.hosts.iter().any(|h| h == host) {
            self.hosts.push(host.to_owned());
        }
    }

    /// Adds a transport, unless it is already present.
    pub fn add_transport(&mut self, transport: &str) {
        if !self.transports.iter().any(|t| t == transport) {
            self.transports.push(transport.to_owned());
        }
    }
}
