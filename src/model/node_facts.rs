//! What a node says of itself: `fabricgate node facts` (`docs/node-facts.md`).
//!
//! Types only. Everything is optional: what is absent was not said, and
//! `missing` says why. Numbers carry their unit in their name. Nothing here is
//! judged.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gpu_facts::GpuFacts;

/// The format of the document.
pub const NODE_FACTS_FORMAT: &str = "fabricgate.node-facts/1";

/// Everything a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeFacts {
    /// `fabricgate.node-facts/1`.
    pub format: String,
    /// The version of fabricgate that wrote it.
    pub fabricgate: String,
    /// Its own name for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Boot id: another one after every boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Kernel release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The machine's product name, as its firmware says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Version of the machine's firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_firmware: Option<String>,
    /// The NVIDIA driver; absent where it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverFacts>,
    /// Its GPUs; absent where the driver did not say, empty where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<GpuFacts>>,
    /// Its network interfaces, by device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicFacts>,
    /// What its network interfaces are cabled to, as LLDP and InfiniBand
    /// switches say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<NicNeighbour>,
    /// Memory export between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex: Option<ImexFacts>,
    /// What could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingFact>,
}

/// The NVIDIA driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DriverFacts {
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Version of the management library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml_version: Option<String>,
    /// The newest CUDA it supports: `13.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NicFacts {
    /// Its device: `mlx5_0` where it does RDMA, else the network device.
    pub device: String,
    /// Whether `device` is an RDMA device.
    pub rdma: bool,
    /// The port of that device.
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
    /// Node GUID, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_guid: Option<String>,
    /// MAC address of its first network device, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Version of its firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Its board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// NUMA node of the processor it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// The way from its root complex to it, addresses of bridges included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pci_path: Vec<String>,
    /// Speed of its PCI Express link now, as the kernel says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_speed: Option<String>,
    /// The most it could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_speed_max: Option<String>,
    /// Lanes of its PCI Express link now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// The most there could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u32>,
    /// How near each GPU is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuDistance>,
    /// Error counters since boot, by the kernel's names for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
}

/// How near a GPU is to a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuDistance {
    /// The GPU's index.
    pub gpu: u32,
    /// How near.
    pub relation: PciDistance,
}

/// How near two PCI devices are. The order is that of distance.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PciDistance {
    /// Below one PCI Express switch.
    SameSwitch,
    /// Below one host bridge.
    SameRoot,
    /// At one NUMA node.
    SameNuma,
    /// At different NUMA nodes.
    OtherNuma,
    /// The machine does not say.
    Unknown,
}

impl PciDistance {
    /// In words.
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

/// What a network interface is cabled to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NicNeighbour {
    /// The interface of this node.
    pub device: String,
    /// The port of that device, where it is not the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_port: Option<u32>,
    /// The switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// The port of that switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

impl NicNeighbour {
    /// Whether it is at the other end of this interface.
    pub fn is_attached_to(&self, nic: &NicFacts) -> bool {
        let is_port = self.device_port.unwrap_or(1) == nic.port.unwrap_or(1);
        (self.device == nic.device && is_port) || nic.net_devices.contains(&self.device)
    }
}

/// Memory export between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexFacts {
    /// State of the domain: `UP`, `DEGRADED`, `DOWN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_state: Option<String>,
    /// Its nodes, as this one sees them: name or address, and state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ImexPeer>,
    /// Whether the driver offers channels (`/proc/devices`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels_offered: Option<bool>,
    /// The channels there are (`/dev/nvidia-caps-imex-channels`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<u32>>,
}

/// A node of an IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImexPeer {
    /// Its name or address.
    pub host: String,
    /// Its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// Something that could not be read. That a GPU does not support it is normal,
/// and no sign of a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MissingFact {
    /// What.
    pub what: String,
    /// Of which GPUs, where it is of GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// Of which of their links, where it is of links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<u32>,
    /// Why.
    pub why: String,
}

/// A line of a file that holds what many nodes say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFactsLine {
    /// What the one who asked calls the node.
    pub node: String,
    /// What it says.
    pub facts: NodeFacts,
}
