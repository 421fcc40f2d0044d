//! What tool outputs tell about machines, apart from measurements.
//!
//! Every field is optional: absent means the output did not say. Nothing here
//! is derived or judged.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::probe_report::DriverTelemetry;

/// What one output tells about the machine it ran on.
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
    /// Devices the output lists.
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
    /// IMEX domain (`nvidia-imex-ctl`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex: Option<ImexStatus>,
    /// Diagnostics (`dcgmi diag`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<DcgmDiagnostic>,
    /// Transport NCCL says it used (`MNNVL`, `NVLS`, `NET/IB`, ...), each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transports: Vec<String>,
    /// What the driver said around a probe of our own, by the node that says so.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub around: BTreeMap<String, DriverTelemetry>,
    /// Anything else worth keeping, by the tool's own name for it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// One GPU as an output lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolDevice {
    /// Index on its host.
    pub index: u32,
    /// Product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// PCI bus id, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// GPU UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Host it sits in, where the output says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// One process of a multi-process run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolRank {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its device index on that host.
    pub device: u32,
    /// Product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// PCI bus id, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// nccl-tests group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
}

/// The NVLinks of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuLinks {
    /// GPU index.
    pub gpu: u32,
    /// GPU UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tool says that all links are inactive.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all_inactive: bool,
    /// The links listed.
    pub links: Vec<ToolNvlink>,
}

/// One NVLink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolNvlink {
    /// Link number.
    pub link: u32,
    /// Whether it is up; `None` when only counters were printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Line rate per direction in GB/s, as the driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Error counters by the tool's name for them; `None` = not supported.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, Option<u64>>,
}

/// The fabric block of one GPU. Strings as printed; `N/A` stays `N/A`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuFabric {
    /// GPU index in the order printed.
    pub gpu: u32,
    /// PCI bus id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
    /// GPU UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `Completed`, `In Progress`, `Not Started`, `N/A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `Success`, an NVML error text, `N/A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Clique id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<String>,
    /// Cluster UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// The health block, key by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub health: BTreeMap<String, String>,
}

/// `nvidia-smi topo -m`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SmiTopology {
    /// Column labels (GPUs, NICs).
    pub columns: Vec<String>,
    /// One row per device.
    pub rows: Vec<SmiTopologyRow>,
    /// `NIC0` to `mlx5_0`, from the legend.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nics: BTreeMap<String, String>,
}

/// One row of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SmiTopologyRow {
    /// The device.
    pub device: String,
    /// Connection types, one per column; `X` for itself.
    pub connections: Vec<String>,
    /// CPU affinity, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_affinity: Option<String>,
    /// NUMA affinity, as printed.
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
    /// When it was asked, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// The members.
    pub nodes: Vec<ImexNode>,
}

/// One member of an IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexNode {
    /// Its number.
    pub index: u32,
    /// Its address, as printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its host name, where printed and not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// `READY`, `UNAVAILABLE`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// IMEX version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Connection state to each peer: peer number to state (`CONNECTED`, ...).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub connections: BTreeMap<u32, String>,
}

/// One result of a diagnostic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DcgmDiagnostic {
    /// Category (`Deployment`, `Hardware`, ...).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Test name.
    pub test: String,
    /// GPU index; `None` when it concerns the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Status in lower case: `pass`, `fail`, `warn`, `skip`, or as printed.
    pub status: String,
    /// What it says besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
}

impl ToolFacts {
    /// Remembers a host name, once.
    pub fn add_host(&mut self, host: &str) {
        if !host.is_empty() && !self.hosts.iter().any(|h| h == host) {
            self.hosts.push(host.to_owned());
        }
    }

    /// Remembers a transport, once.
    pub fn add_transport(&mut self, transport: &str) {
        if !self.transports.iter().any(|t| t == transport) {
            self.transports.push(transport.to_owned());
        }
    }
}
