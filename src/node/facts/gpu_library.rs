//! Query interface of a GPU library: queries, answers, refusals.
//!
//! Two libraries implement it: the driver's (`nvml`) and a recording (`recorded`). A library can
//! refuse each query separately; the caller interprets the answer.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::ffi::nvml::{
    NvmlFabricInfo as FabricValue, NvmlPlatformInfo as PlatformValue, NvmlRemappedRows as RowsValue,
};

/// A library that answers queries about GPUs.
pub trait GpuLibrary {
    /// Queries a fact about the machine.
    fn query_machine(&self, query: MachineQuery) -> GpuQueryResult;

    /// Queries a fact about one GPU, by its index.
    fn query_gpu(&self, gpu: u32, query: GpuQuery) -> GpuQueryResult;
}

/// Answer to a query, or the refusal.
pub type GpuQueryResult = Result<GpuValue, GpuQueryError>;

/// Queries about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineQuery {
    /// Version of the driver.
    DriverVersion,
    /// Version of the library.
    LibraryVersion,
    /// Newest supported CUDA version, as 1000 × major + 10 × minor.
    CudaVersion,
    /// Number of GPUs.
    GpuCount,
}

impl fmt::Display for MachineQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DriverVersion => "driver version",
            Self::LibraryVersion => "library version",
            Self::CudaVersion => "cuda version",
            Self::GpuCount => "gpu count",
        })
    }
}

/// Queries about one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuQuery {
    /// A text property.
    Text(GpuText),
    /// A numeric property.
    Number(GpuNumber),
    /// A numeric property of one of its links.
    Link(u32, LinkNumber),
    /// A field value of one of its links or parts.
    Field {
        /// `NVML_FI_*`, outside of 251 to 273.
        id: u32,
        /// The link or part.
        scope: u32,
    },
    /// Fabric information with health mask and summary.
    FabricThird,
    /// Fabric information with health mask.
    FabricSecond,
    /// Fabric information from the original call, without health.
    FabricFirst,
    /// Position of the GPU, second version of the structure.
    Platform,
    /// Position of the GPU, first version of the structure.
    PlatformFirst,
    /// Remapped rows of its memory.
    RemappedRows,
    /// Compute processes on it.
    Processes,
}

impl fmt::Display for GpuQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text.as_str()),
            Self::Number(number) => f.write_str(number.as_str()),
            Self::Link(link, number) => write!(f, "link {link} {number}"),
            Self::Field { id, scope } => write!(f, "field {id} scope {scope}"),
            Self::FabricThird => f.write_str("fabric v3"),
            Self::FabricSecond => f.write_str("fabric v2"),
            Self::FabricFirst => f.write_str("fabric v1"),
            Self::Platform => f.write_str("platform v2"),
            Self::PlatformFirst => f.write_str("platform v1"),
            Self::RemappedRows => f.write_str("remapped rows"),
            Self::Processes => f.write_str("processes"),
        }
    }
}

/// Declares queries that differ only in their name.
macro_rules! questions {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident => $words:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$each])* $variant,)*
        }

        impl $name {
            /// Name of the query in reports.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $words,)*
                }
            }
        }
    };
}

questions! {
    /// Text properties of a GPU.
    GpuText {
        /// UUID.
        Uuid => "uuid",
        /// Serial number of the board.
        Serial => "serial number",
        /// Product name.
        Product => "product name",
        /// Part number of the board.
        BoardPartNumber => "board part number",
        /// Version of the VBIOS.
        Vbios => "vbios version",
        /// Version of the GSP firmware.
        GspFirmware => "gsp firmware version",
        /// PCI address, as NVML writes it.
        PciAddress => "pci address",
    }
}

questions! {
    /// Numeric properties of a GPU.
    GpuNumber {
        /// `NVML_DEVICE_ARCH_*`.
        Architecture => "architecture",
        /// Number of the GPU within the node or baseboard.
        ModuleId => "module id",
        /// Bandwidth mode of its NVLinks.
        LinkMode => "NVLink bandwidth mode",
        /// Whether the current mode is the fastest.
        LinkModeIsBest => "NVLink bandwidth mode is best",
        /// Size of its memory in bytes.
        MemoryBytes => "memory size",
        /// Whether the C2C link to a processor in the same package is in use.
        C2cEnabled => "c2c mode",
        /// PCI Express generation.
        PcieGeneration => "pcie generation",
        /// The highest PCI Express generation.
        PcieGenerationMax => "highest pcie generation",
        /// PCI Express lanes.
        PcieWidth => "pcie width",
        /// Maximum PCI Express lanes.
        PcieWidthMax => "highest pcie width",
        /// PCI Express replays (packets sent again).
        PcieReplays => "pcie replay counter",
        /// Whether error correction is on.
        EccEnabled => "ecc mode",
        /// Whether error correction is on after the next reset.
        EccPending => "pending ecc mode",
        /// Errors corrected since the driver was loaded.
        EccCorrectedSinceLoad => "corrected ecc errors since load",
        /// Errors not corrected since the driver was loaded.
        EccUncorrectedSinceLoad => "uncorrected ecc errors since load",
        /// Errors corrected over the GPU's lifetime.
        EccCorrectedInLife => "corrected ecc errors in life",
        /// Errors not corrected over the GPU's lifetime.
        EccUncorrectedInLife => "uncorrected ecc errors in life",
        /// Pages retired after repeated single-bit errors.
        RetiredSingleBit => "pages retired for single-bit errors",
        /// Pages retired after a double-bit error.
        RetiredDoubleBit => "pages retired for double-bit errors",
        /// Whether a page retirement is pending.
        RetiredPending => "pending page retirement",
        /// SM clock in MHz.
        ClockSm => "sm clock",
        /// Maximum SM clock in MHz.
        ClockSmMax => "highest sm clock",
        /// Memory clock in MHz.
        ClockMemory => "memory clock",
        /// Maximum memory clock in MHz.
        ClockMemoryMax => "highest memory clock",
        /// Power draw in mW.
        PowerDraw => "power draw",
        /// Power limit in mW.
        PowerLimit => "power limit",
        /// Default power limit in mW.
        PowerLimitDefault => "default power limit",
        /// Temperature in degrees Celsius.
        Temperature => "temperature",
        /// Throttle reasons, as a bit mask.
        Throttling => "throttle reasons",
        /// Whether MIG is on.
        Mig => "mig mode",
        /// Whether MIG is on after the next reset.
        MigPending => "pending mig mode",
        /// Persistence mode: whether the driver keeps the GPU initialized.
        Persistence => "persistence mode",
    }
}

/// Numeric properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNumber {
    /// Whether it is up.
    State,
    /// `NVML_NVLINK_VERSION_*`.
    Version,
    /// `NVML_NVLINK_DEVICE_TYPE_*`.
    RemoteKind,
    /// PCI address of its other end; the answer is text.
    RemoteAddress,
    /// The error counter with this number, `NVML_NVLINK_ERROR_*`.
    Errors(u32),
}

impl fmt::Display for LinkNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => f.write_str("state"),
            Self::Version => f.write_str("version"),
            Self::RemoteKind => f.write_str("remote kind"),
            Self::RemoteAddress => f.write_str("remote address"),
            Self::Errors(counter) => write!(f, "errors {counter}"),
        }
    }
}

/// Answer to a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuValue {
    /// A number; 0 or 1 for a boolean.
    Number(u64),
    /// A line of text.
    Text(String),
    /// Fabric information.
    Fabric(FabricValue),
    /// Position of the GPU.
    Platform(PlatformValue),
    /// Remapped rows.
    Rows(RowsValue),
    /// Compute processes.
    Processes(Vec<ProcessValue>),
}

/// A compute process on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessValue {
    /// Process ID in the driver's PID namespace.
    pub pid: u32,
    /// GPU memory in bytes, if the library reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Why a query has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum GpuQueryError {
    /// The GPU does not have this property. Normal, and not a sign of a fault.
    #[error("not supported by this GPU")]
    NotSupported,
    /// The library is older than the query.
    #[error("this driver is too old to report it")]
    MissingSymbol,
    /// This process lacks the permission.
    #[error("no permission")]
    NoPermission,
    /// The queried object does not exist.
    #[error("not found")]
    NotFound,
    /// The library does not support this version of the structure.
    #[error("this driver supports only another version of the answer")]
    OtherVersion,
    /// The GPU is lost.
    #[error("the GPU is lost (fell off the bus)")]
    GpuLost,
    /// The GPU answers no query before a reset.
    #[error("the GPU must be reset first")]
    ResetRequired,
    /// The answer is not plausible or not parseable.
    #[error("unreadable answer: {0}")]
    Unreadable(String),
    /// Any other return code of the library.
    #[error("the driver's library reports: {0}")]
    Failed(String),
}
