//! What a GPU says of itself, through its driver.
//!
//! Types only; part of the document in `node_facts`. Everything is optional:
//! what is absent was not said, and the document's `missing` says why. Numbers
//! carry their unit in their name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::throttle_reason::ThrottleReason;

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuFacts {
    /// Its index, as the driver counts.
    pub index: u32,
    /// Its UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Serial number of its board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Architecture: `ampere`, `hopper`, `blackwell`, or `architecture 11`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Part number of its board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board_part_number: Option<String>,
    /// Version of its VBIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vbios: Option<String>,
    /// Version of the firmware of its system processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gsp_firmware: Option<String>,
    /// PCI address as the kernel writes it: `0000:3b:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// Its number within the node or baseboard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_id: Option<u32>,
    /// NUMA node of the processor it is attached to, from sysfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Size of its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Its membership of an NVLink fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricFacts>,
    /// Where it sits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformFacts>,
    /// NVLinks it has, up or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_count: Option<u32>,
    /// Bandwidth mode of its NVLinks, the driver's number (Blackwell and newer).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_mode: Option<u32>,
    /// Whether that is the fastest it has; links that are slower on purpose are
    /// not broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_mode_is_best: Option<bool>,
    /// Each of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvlinkFacts>,
    /// Its link to a processor in the same package.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub c2c: Option<C2cFacts>,
    /// Its PCI Express link.
    pub pcie: PcieFacts,
    /// Error correction of its memory.
    pub ecc: EccFacts,
    /// Rows of memory replaced by spare ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remapped_rows: Option<RemappedRows>,
    /// Pages of memory no longer used (architectures before Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_pages: Option<RetiredPages>,
    /// Xid errors in the kernel's log; absent where the log could not be read,
    /// empty where it names none. The log begins some time after boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xids: Option<Vec<XidSummary>>,
    /// What the driver asks for: `none`, `reset`, `reboot`, `drain peer-to-peer`,
    /// `drain and reset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<String>,
    /// Clocks.
    pub clocks: ClockFacts,
    /// Power.
    pub power: PowerFacts,
    /// Temperature of the GPU, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u64>,
    /// What holds the clocks down now; empty is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<String>>")]
    pub throttled_by: Option<Vec<ThrottleReason>>,
    /// Whether it is divided into instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// Whether it will be, after the next reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_pending: Option<bool>,
    /// Whether the driver keeps it initialised without users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// Processes that compute on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<ProcessFacts>>,
}

/// A GPU's membership of an NVLink fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FabricFacts {
    /// How far registration is.
    pub state: FabricState,
    /// How it ended: `success` or the driver's error; said in state `completed`
    /// only, since it means nothing before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// ClusterUUID in lower case. All zeros: no fabric beyond this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// CliqueId.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<u32>,
    /// Its health, where the driver tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<FabricHealth>,
    /// The call that answered.
    pub source: String,
}

/// Whether a ClusterUUID is that of no fabric: a GPU that is not registered shows zeros,
/// and so does every other one. An empty text names none either.
pub fn is_null_cluster_uuid(uuid: &str) -> bool {
    uuid.bytes().all(|byte| matches!(byte, b'0' | b'-'))
}

impl FabricFacts {
    /// Whether the fabric reaches beyond this node: a ClusterUUID that is not all
    /// zeros.
    pub fn is_multi_node(&self) -> bool {
        self.cluster_uuid.as_ref().is_some_and(|uuid| !is_null_cluster_uuid(uuid))
    }

    /// What the driver says is wrong, in words; none where it says nothing is, or
    /// does not say.
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
                "route recovery in progress (ask again later)",
            ),
            (
                health.access_timeout_recovery,
                HealthCondition::Yes,
                "access time-out recovery in progress (ask again later)",
            ),
            (health.partition_assigned, HealthCondition::No, "no partition assigned"),
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

/// How far a GPU's registration with its fabric is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// Registered.
    Completed,
    /// Not yet.
    InProgress,
    /// Not begun.
    NotStarted,
    /// This GPU has no fabric, or hides it: with a single GPU exposed, machines
    /// with a fabric say this too.
    NotSupported,
    /// A number that this version does not know.
    #[default]
    Unknown,
}

impl FabricState {
    /// In words, as `nvidia-smi` says it.
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

/// A condition that is met, not met, or that nobody knows of.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum HealthCondition {
    /// It is met.
    Yes,
    /// It is not met.
    No,
    /// The driver does not say.
    #[default]
    Unknown,
}

impl HealthCondition {
    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// The health of a GPU's fabric: the driver's mask, and what it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FabricHealth {
    /// The mask itself.
    pub mask: u32,
    /// Bandwidth is below what it should be.
    pub degraded_bandwidth: HealthCondition,
    /// A route is being recovered: ask again later.
    pub route_recovery: HealthCondition,
    /// A route is unhealthy.
    pub route_unhealthy: HealthCondition,
    /// Recovery from an access time-out is under way: ask again later.
    pub access_timeout_recovery: HealthCondition,
    /// What is configured wrongly; `none` where nothing is, absent where the
    /// driver does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incorrect_configuration: Option<String>,
    /// The GPU is assigned to a partition (newer drivers).
    pub partition_assigned: HealthCondition,
    /// `healthy`, `unhealthy`, `limited capacity`; absent where the driver does
    /// not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// Where a GPU sits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlatformFacts {
    /// Serial number of the chassis (the rack).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chassis_serial: Option<String>,
    /// Slot in the chassis, switches counted.
    pub slot: u8,
    /// Tray among the compute trays.
    pub tray: u8,
    /// Node within the tray.
    pub host: u8,
    /// What is at the other end of its NVLinks, the driver's number.
    pub peer_type: u8,
    /// Its number within the node.
    pub module: u8,
}

/// One NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NvlinkFacts {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LinkState>,
    /// Its version, by the header's table of the driver's numbers: `4.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The driver's number for it (`nvmlNvlinkVersion_t`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_number: Option<u64>,
    /// Line rate per direction in megabytes per second, as the driver says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbyte_s: Option<u64>,
    /// What is at its other end: `gpu`, `switch`, `npu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_kind: Option<String>,
    /// PCI address of its other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_pci_address: Option<String>,
    /// The link's number at its other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_link: Option<u64>,
    /// Error counters, by the driver's names for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// The call that the counters are from; which one means something depends on
    /// the architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors_source: Option<String>,
}

/// State of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// Up.
    Active,
    /// Down.
    Inactive,
    /// Asleep to save power, and up when needed.
    Sleep,
    /// A state that this version does not know, by its number.
    Other(u64),
}

/// The link between a GPU and a processor in the same package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct C2cFacts {
    /// Whether it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<C2cLink>,
}

/// One link between a GPU and a processor in the same package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct C2cLink {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// What it can carry, in megabytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_max_mbyte_s: Option<u64>,
    /// Error counters, by the driver's names for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

/// A GPU's PCI Express link. At rest it runs below what it can.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PcieFacts {
    /// Generation now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// The highest that GPU and machine have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation_max: Option<u32>,
    /// Lanes now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// The most lanes that GPU and machine have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width_max: Option<u32>,
    /// Packets sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replays: Option<u64>,
}

/// Error correction of a GPU's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EccFacts {
    /// Whether it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether it will be, after the next restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_pending: Option<bool>,
    /// Errors corrected since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected_since_load: Option<u64>,
    /// Errors not corrected since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected_since_load: Option<u64>,
    /// Errors corrected in the GPU's life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected_in_life: Option<u64>,
    /// Errors not corrected in the GPU's life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected_in_life: Option<u64>,
}

/// Rows of memory replaced by spare ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RemappedRows {
    /// Because of correctable errors.
    pub corrected: u32,
    /// Because of uncorrectable errors.
    pub uncorrected: u32,
    /// More will be, at the next reset.
    pub pending: bool,
    /// A replacement failed.
    pub failed: bool,
}

/// Pages of memory no longer used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetiredPages {
    /// Because of several errors of one bit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single_bit: Option<u64>,
    /// Because of an error of two bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub double_bit: Option<u64>,
    /// More will be, at the next restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
}

/// An Xid error in the kernel's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct XidSummary {
    /// Its number.
    pub xid: u32,
    /// How often the log names it.
    pub count: u32,
    /// When last, in seconds after boot.
    pub last_seconds_after_boot: u64,
    /// What it said last.
    pub message: String,
}

/// A GPU's clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClockFacts {
    /// Of its processors, now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Of its processors, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_max_mhz: Option<u32>,
    /// Of its memory, now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Of its memory, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max_mhz: Option<u32>,
}

/// A GPU's power.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PowerFacts {
    /// What it draws, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draw_mw: Option<u64>,
    /// What it may draw, all limits taken together, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_mw: Option<u64>,
    /// What it may draw by default, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_default_mw: Option<u64>,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProcessFacts {
    /// Its number, as this machine counts.
    pub pid: u32,
    /// Its name, where this machine shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// GPU memory it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}
