//! The state of a GPU as its driver reports it.
//!
//! Types only; part of the document in `node_facts`. Every field is optional: an absent field was
//! not reported, and the document's `missing` gives the reason. Names of numeric fields carry the
//! unit.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::throttle_reason::ThrottleReason;

/// One GPU, as its driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuFacts {
    /// Device index in the driver's order.
    pub index: u32,
    /// UUID of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Serial number of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Product name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Architecture: `ampere`, `hopper`, `blackwell`, or `architecture 11`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Part number of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board_part_number: Option<String>,
    /// Version of the VBIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vbios: Option<String>,
    /// Version of the GSP firmware (GPU system processor).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gsp_firmware: Option<String>,
    /// PCI address as the kernel writes it: `0000:3b:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// Module id within the node or baseboard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_id: Option<u32>,
    /// NUMA node of the CPU it is attached to, from sysfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Size of the GPU memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Its registration with an NVLink fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricFacts>,
    /// Its location in the rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformFacts>,
    /// Number of NVLinks, active or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_count: Option<u32>,
    /// Bandwidth mode of the NVLinks, as the driver's number (Blackwell and newer).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_mode: Option<u32>,
    /// Whether this is the fastest mode; links in a reduced mode are not faulty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_mode_is_best: Option<bool>,
    /// The NVLinks, one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvlinkFacts>,
    /// Its link to a CPU in the same package.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub c2c: Option<C2cFacts>,
    /// Its PCI Express link.
    pub pcie: PcieFacts,
    /// ECC state of its memory.
    pub ecc: EccFacts,
    /// Memory rows remapped to spare rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remapped_rows: Option<RemappedRows>,
    /// Retired memory pages (architectures before Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_pages: Option<RetiredPages>,
    /// Xid errors in the kernel log; absent where the log is unreadable, empty where it has none.
    /// The log begins some time after boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xids: Option<Vec<XidSummary>>,
    /// The recovery action that the driver requests: `none`, `reset`, `reboot`, `drain
    /// peer-to-peer`, `drain and reset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<String>,
    /// Current and maximum clocks.
    pub clocks: ClockFacts,
    /// Power draw and limits.
    pub power: PowerFacts,
    /// GPU temperature, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u64>,
    /// The active throttle reasons; empty if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<String>>")]
    pub throttled_by: Option<Vec<ThrottleReason>>,
    /// Whether MIG mode is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// Whether MIG mode will be enabled after the next reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_pending: Option<bool>,
    /// Whether persistence mode is enabled: the driver keeps the GPU initialised without clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// Compute processes on the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<ProcessFacts>>,
}

/// A GPU's registration with an NVLink fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FabricFacts {
    /// Progress of the registration.
    pub state: FabricState,
    /// Result of the registration: `success` or the driver's error; set only in state
    /// `completed`, because it is undefined before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// ClusterUUID in lower case. All zeros: no fabric beyond this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// CliqueId of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<u32>,
    /// Health of the fabric, where the driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<FabricHealth>,
    /// The driver call that returned it.
    pub source: String,
}

/// Whether a ClusterUUID stands for no fabric: every unregistered GPU reports zeros. An empty
/// text counts as well.
pub fn is_null_cluster_uuid(uuid: &str) -> bool {
    uuid.bytes().all(|byte| matches!(byte, b'0' | b'-'))
}

impl FabricFacts {
    /// Whether the fabric spans more than this node: the ClusterUUID is not all zeros.
    pub fn is_multi_node(&self) -> bool {
        self.cluster_uuid.as_ref().is_some_and(|uuid| !is_null_cluster_uuid(uuid))
    }

    /// The health problems that the driver reports, as text; empty where it reports none or no
    /// health at all.
    pub fn health_problems(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(status) = self.status.as_ref().filter(|status| *status != "success") {
            words.push(format!("registration ended with: {status}"));
        }
        let Some(health) = &self.health else { return words };
        let conditions = [
            (health.degraded_bandwidth, HealthCondition::Yes, "degraded bandwidth"),
            (health.route_unhealthy, HealthCondition::Yes, "unhealthy route"),
            (
                health.route_recovery,
                HealthCondition::Yes,
                "route recovery in progress (query again later)",
            ),
            (
                health.access_timeout_recovery,
                HealthCondition::Yes,
                "access timeout recovery in progress (query again later)",
            ),
            (health.partition_assigned, HealthCondition::No, "no partition assigned"),
            (
                health.fabric_manager_connected,
                HealthCondition::No,
                "not connected to the global fabric manager",
            ),
        ];
        let bad = conditions.iter().filter(|(found, bad, _)| found == bad);
        words.extend(bad.map(|(_, _, what)| (*what).to_owned()));
        if let Some(wrong) = health.incorrect_configuration.as_ref().filter(|it| *it != "none") {
            words.push(format!("incorrect configuration: {wrong}"));
        }
        if let Some(summary) = health.summary.as_ref().filter(|summary| *summary != "healthy") {
            words.push(format!("summary: {summary}"));
        }
        words
    }
}

/// Progress of a GPU's registration with its fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// The GPU is registered.
    Completed,
    /// Registration is in progress.
    InProgress,
    /// Registration has not started.
    NotStarted,
    /// The GPU has no fabric, or hides it: machines with a fabric report this too when a single
    /// GPU is exposed.
    NotSupported,
    /// A value unknown to this version.
    #[default]
    Unknown,
}

impl FabricState {
    /// The name that `nvidia-smi` prints.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::InProgress => "in progress",
            Self::NotStarted => "not started",
            Self::NotSupported => "not supported",
            Self::Unknown => "unknown",
        }
    }
}

/// A condition that is met, not met or unknown.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum HealthCondition {
    /// The condition is met.
    Yes,
    /// The condition is not met.
    No,
    /// The driver does not report it.
    #[default]
    Unknown,
}

impl HealthCondition {
    /// The name in text: `yes`, `no` or `unknown`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// The health of a GPU's fabric: the driver's mask and its decoded fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FabricHealth {
    /// The raw mask.
    pub mask: u32,
    /// The bandwidth is degraded.
    pub degraded_bandwidth: HealthCondition,
    /// Route recovery is in progress: query again later.
    pub route_recovery: HealthCondition,
    /// A route is unhealthy.
    pub route_unhealthy: HealthCondition,
    /// Recovery from an access timeout is in progress: query again later.
    pub access_timeout_recovery: HealthCondition,
    /// The incorrect configuration; `none` where there is none, absent where the driver does not
    /// report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incorrect_configuration: Option<String>,
    /// The GPU is assigned to a partition (newer drivers).
    pub partition_assigned: HealthCondition,
    /// The GPU is connected to the global fabric manager (newer drivers).
    #[serde(default)]
    pub fabric_manager_connected: HealthCondition,
    /// `healthy`, `unhealthy`, `limited capacity`; absent where the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// The location of a GPU in its rack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlatformFacts {
    /// Serial number of the chassis (the rack).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chassis_serial: Option<String>,
    /// Slot in the chassis, switch slots counted.
    pub slot: u8,
    /// Index of the tray among the compute trays.
    pub tray: u8,
    /// Index of the node within the tray.
    pub host: u8,
    /// Type of the peer at the other end of the NVLinks, as the driver's number.
    pub peer_type: u8,
    /// Index of the GPU module within the node.
    pub module: u8,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NvlinkFacts {
    /// Link number on the GPU.
    pub link: u32,
    /// State of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LinkState>,
    /// NVLink version, from the header's table of the driver's numbers: `4.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// NVLink version, as the driver's number (`nvmlNvlinkVersion_t`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_number: Option<u64>,
    /// Line rate per direction as reported by the driver, in megabytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbyte_s: Option<u64>,
    /// Kind of the remote device: `gpu`, `switch`, `npu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_kind: Option<String>,
    /// PCI address of the remote device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_pci_address: Option<String>,
    /// Link number on the remote device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_link: Option<u64>,
    /// Error counters, under the driver's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// The driver call behind the counters; the architecture decides which call is meaningful.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors_source: Option<String>,
}

/// The state of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// The link is up.
    Active,
    /// The link is down.
    Inactive,
    /// The link sleeps to save power and wakes on demand.
    Sleep,
    /// The link is up, and the driver does not use it for traffic.
    TrafficDisabled,
    /// A state unknown to this version, by its number.
    Other(u64),
}

/// The link between a GPU and a CPU in the same package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct C2cFacts {
    /// Whether the link is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The links, one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<C2cLink>,
}

/// One link between a GPU and a CPU in the same package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct C2cLink {
    /// Link number on the GPU.
    pub link: u32,
    /// Whether the link is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Maximum rate, in megabytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_max_mbyte_s: Option<u64>,
    /// Error counters, under the driver's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

/// A GPU's PCI Express link. An idle link runs below its maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PcieFacts {
    /// Current generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// The highest generation that both GPU and machine support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation_max: Option<u32>,
    /// Current number of lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// The highest number of lanes that both GPU and machine support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width_max: Option<u32>,
    /// Number of replayed packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replays: Option<u64>,
}

/// The ECC state of a GPU's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EccFacts {
    /// Whether ECC is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether ECC will be enabled after the next reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_pending: Option<bool>,
    /// Corrected errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected_since_load: Option<u64>,
    /// Uncorrected errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected_since_load: Option<u64>,
    /// Corrected errors over the GPU's lifetime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected_in_life: Option<u64>,
    /// Uncorrected errors over the GPU's lifetime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected_in_life: Option<u64>,
}

/// Memory rows remapped to spare rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RemappedRows {
    /// Rows remapped because of correctable errors.
    pub corrected: u32,
    /// Rows remapped because of uncorrectable errors.
    pub uncorrected: u32,
    /// More rows are remapped at the next reset.
    pub pending: bool,
    /// A remapping failed.
    pub failed: bool,
}

/// Retired memory pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetiredPages {
    /// Pages retired because of repeated single-bit errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single_bit: Option<u64>,
    /// Pages retired because of a double-bit error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub double_bit: Option<u64>,
    /// More pages are retired at the next reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
}

/// The occurrences of one Xid error in the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct XidSummary {
    /// The Xid number.
    pub xid: u32,
    /// Number of occurrences in the log.
    pub count: u32,
    /// Time of the last occurrence, in seconds since boot.
    pub last_seconds_after_boot: u64,
    /// Message of the last occurrence.
    pub message: String,
}

/// The clocks of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClockFacts {
    /// Current SM clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Maximum SM clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_max_mhz: Option<u32>,
    /// Current memory clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Maximum memory clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max_mhz: Option<u32>,
}

/// Power draw and limits of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PowerFacts {
    /// Current draw, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draw_mw: Option<u64>,
    /// The effective power limit, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_mw: Option<u64>,
    /// The default power limit, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_default_mw: Option<u64>,
}

/// A compute process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessFacts {
    /// Its process id on this machine.
    pub pid: u32,
    /// Its name, where visible on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// GPU memory it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}
