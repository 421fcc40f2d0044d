//! The facts of a node: `fabricgate node facts` (`docs/node-facts.md`).
//!
//! Types only. Every field is optional: an absent field was not reported, and `missing` gives the
//! reason. Names of numeric fields carry the unit. Facts contain no judgement.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gpu_facts::GpuFacts;

/// Format name of the document.
pub const NODE_FACTS_FORMAT: &str = "fabricgate.node-facts/1";

/// The facts of a node, as collected on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeFacts {
    /// `fabricgate.node-facts/1`.
    pub format: String,
    /// The version of fabricgate that wrote it.
    pub fabricgate: String,
    /// Hostname of the node, as the node reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Kernel boot id, which changes at every boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Kernel release of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Product name of the machine, from its firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Version of the system firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_firmware: Option<String>,
    /// The NVIDIA driver; absent where it did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverFacts>,
    /// The GPUs; absent where the driver did not report them, empty where the node has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<GpuFacts>>,
    /// Network interfaces, by device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicFacts>,
    /// Switch ports to which the network interfaces are cabled, from LLDP and InfiniBand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<NicNeighbour>,
    /// IMEX: memory sharing between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex: Option<ImexFacts>,
    /// Facts that could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingFact>,
}

/// Versions of the NVIDIA driver stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriverFacts {
    /// Version of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Version of NVML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml_version: Option<String>,
    /// The newest supported CUDA version: `13.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
}

/// One network interface of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NicFacts {
    /// Device name: `mlx5_0` with RDMA, else the network device.
    pub device: String,
    /// Whether `device` is an RDMA device.
    pub rdma: bool,
    /// Port number of that device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Its network devices: `ib0`, `eth1`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<String>,
    /// `InfiniBand` or `Ethernet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<String>,
    /// `active`, `down`, `init`, ..., in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `linkup`, `polling`, ..., in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_state: Option<String>,
    /// Line rate in megabits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbit_s: Option<u64>,
    /// Port GUID, 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_guid: Option<String>,
    /// Node GUID, 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_guid: Option<String>,
    /// MAC address of its first network device, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Version of the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Board id (PSID) or part number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// NUMA node of the CPU it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI address of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// PCI addresses of the bridges from the root complex to the device, and of the device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pci_path: Vec<String>,
    /// Current speed of the PCI Express link, in the kernel's notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_speed: Option<String>,
    /// Maximum speed of the PCI Express link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_speed_max: Option<String>,
    /// Current number of PCI Express lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// Maximum number of PCI Express lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u32>,
    /// PCI distance to each GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuDistance>,
    /// Error counters since the driver was loaded, under the kernel's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
}

/// The PCI distance of a GPU to a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuDistance {
    /// Index of the GPU.
    pub gpu: u32,
    /// The distance.
    pub relation: PciDistance,
}

/// The distance of two PCI devices, in increasing order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PciDistance {
    /// Behind the same PCI Express switch.
    SameSwitch,
    /// Behind the same host bridge.
    SameRoot,
    /// On the same NUMA node.
    SameNuma,
    /// On different NUMA nodes.
    OtherNuma,
    /// The machine does not report it.
    Unknown,
}

impl PciDistance {
    /// The name in text output.
    pub fn label(self) -> &'static str {
        match self {
            Self::SameSwitch => "same switch",
            Self::SameRoot => "same root",
            Self::SameNuma => "same NUMA node",
            Self::OtherNuma => "other NUMA node",
            Self::Unknown => "unknown",
        }
    }
}

/// The switch port that a network interface is cabled to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NicNeighbour {
    /// Network interface of this node.
    pub device: String,
    /// Port of that device, where it is not the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_port: Option<u32>,
    /// Name of the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// Port of that switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

impl NicNeighbour {
    /// Whether this neighbour is connected to the interface.
    pub fn is_attached_to(&self, nic: &NicFacts) -> bool {
        let is_port = self.device_port.unwrap_or(1) == nic.port.unwrap_or(1);
        (self.device == nic.device && is_port) || nic.net_devices.contains(&self.device)
    }
}

/// IMEX state: memory sharing between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexFacts {
    /// State of the domain: `UP`, `DEGRADED`, `DOWN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_state: Option<String>,
    /// The nodes of the domain as this node sees them, with their state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ImexPeer>,
    /// Whether the driver supports channels (`/proc/devices`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels_offered: Option<bool>,
    /// The existing channels (`/dev/nvidia-caps-imex-channels`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<u32>>,
}

/// A node of an IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexPeer {
    /// Hostname or address.
    pub host: String,
    /// State of the node in the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A fact that could not be read. A fact that a GPU does not support is normal and not a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MissingFact {
    /// Name of the fact.
    pub what: String,
    /// The affected GPUs, for a fact about GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// The affected links, for a fact about links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<u32>,
    /// The reason.
    pub why: String,
}

/// One line of a file with the facts of many nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFactsLine {
    /// The name under which the collector addressed the node.
    pub node: String,
    /// The facts of the node.
    pub facts: NodeFacts,
}
