//! The GPU library as something to ask: questions, answers, refusals.
//!
//! There are two libraries: the driver's own (`nvml`) and one that was recorded
//! (`recorded`). A question is asked one at a time and may be refused by itself;
//! what an answer means is up to who asks.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::ffi::nvml::{
    NvmlFabricInfo as FabricValue, NvmlPlatformInfo as PlatformValue, NvmlRemappedRows as RowsValue,
};

/// Something that can be asked about GPUs.
pub trait GpuLibrary {
    /// Asks about the machine.
    fn query_machine(&self, question: MachineQuery) -> GpuQueryResult;

    /// Asks about one GPU, by its index.
    fn query_gpu(&self, gpu: u32, question: GpuQuery) -> GpuQueryResult;
}

/// What comes of a question.
pub type GpuQueryResult = Result<GpuValue, GpuQueryError>;

/// Questions about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineQuery {
    /// Version of the driver.
    DriverVersion,
    /// Version of the library.
    LibraryVersion,
    /// Newest CUDA, as 1000 times major and 10 times minor.
    CudaVersion,
    /// How many GPUs there are.
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

/// Questions about one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuQuery {
    /// A line of text about it.
    Text(GpuText),
    /// A number about it.
    Number(GpuNumber),
    /// A number about one of its links.
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
    /// Fabric information of the call that came first.
    FabricFirst,
    /// Where it sits, as the second version of the structure says.
    Platform,
    /// The same of the first version.
    PlatformFirst,
    /// Rows of its memory that were replaced.
    RemappedRows,
    /// Processes that compute on it.
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

/// Declares questions that differ in nothing but their name.
macro_rules! questions {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident => $words:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$each])* $variant,)*
        }

        impl $name {
            /// What is asked for, in words.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $words,)*
                }
            }
        }
    };
}

questions! {
    /// Lines of text about a GPU.
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
        /// Version of the firmware of the system processor.
        GspFirmware => "gsp firmware version",
        /// PCI address, as NVML writes it.
        PciAddress => "pci address",
    }
}

questions! {
    /// Numbers about a GPU.
    GpuNumber {
        /// `NVML_DEVICE_ARCH_*`.
        Architecture => "architecture",
        /// Its number within the node or baseboard.
        ModuleId => "module id",
        /// Bandwidth mode of its NVLinks.
        LinkMode => "NVLink bandwidth mode",
        /// Whether that is the fastest.
        LinkModeIsBest => "NVLink bandwidth mode is best",
        /// Size of its memory in bytes.
        MemoryBytes => "memory size",
        /// Whether its link to a processor in the same package is in use.
        C2cEnabled => "c2c mode",
        /// PCI Express generation.
        PcieGeneration => "pcie generation",
        /// The highest PCI Express generation.
        PcieGenerationMax => "highest pcie generation",
        /// PCI Express lanes.
        PcieWidth => "pcie width",
        /// The most PCI Express lanes.
        PcieWidthMax => "highest pcie width",
        /// Packets sent again over PCI Express.
        PcieReplays => "pcie replay counter",
        /// Whether error correction is on.
        EccEnabled => "ecc mode",
        /// Whether error correction will be on.
        EccPending => "pending ecc mode",
        /// Errors corrected since the driver was loaded.
        EccCorrectedSinceLoad => "corrected ecc errors since load",
        /// Errors not corrected since the driver was loaded.
        EccUncorrectedSinceLoad => "uncorrected ecc errors since load",
        /// Errors corrected in its life.
        EccCorrectedInLife => "corrected ecc errors in life",
        /// Errors not corrected in its life.
        EccUncorrectedInLife => "uncorrected ecc errors in life",
        /// Pages retired for several errors of one bit.
        RetiredSingleBit => "pages retired for single-bit errors",
        /// Pages retired for an error of two bits.
        RetiredDoubleBit => "pages retired for double-bit errors",
        /// Whether pages will be retired.
        RetiredPending => "pending page retirement",
        /// Clock of its processors.
        ClockSm => "sm clock",
        /// Highest clock of its processors.
        ClockSmMax => "highest sm clock",
        /// Clock of its memory.
        ClockMemory => "memory clock",
        /// Highest clock of its memory.
        ClockMemoryMax => "highest memory clock",
        /// Power it draws.
        PowerDraw => "power draw",
        /// Limit of its power.
        PowerLimit => "power limit",
        /// Default limit of its power.
        PowerLimitDefault => "default power limit",
        /// Temperature.
        Temperature => "temperature",
        /// What holds its clocks down, as bits.
        Throttling => "throttle reasons",
        /// Whether it is divided.
        Mig => "mig mode",
        /// Whether it will be divided.
        MigPending => "pending mig mode",
        /// Whether the driver keeps it initialised.
        Persistence => "persistence mode",
    }
}

/// Numbers about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNumber {
    /// Whether it is up.
    State,
    /// `NVML_NVLINK_VERSION_*`.
    Version,
    /// `NVML_NVLINK_DEVICE_TYPE_*`.
    RemoteKind,
    /// PCI address of its other end, a line of text.
    RemoteAddress,
    /// The error counter of this number, `NVML_NVLINK_ERROR_*`.
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

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuValue {
    /// A number; 0 and 1 where it is yes or no.
    Number(u64),
    /// A line of text.
    Text(String),
    /// Fabric information.
    Fabric(FabricValue),
    /// Where the GPU sits.
    Platform(PlatformValue),
    /// Rows of memory that were replaced.
    Rows(RowsValue),
    /// Processes.
    Processes(Vec<ProcessValue>),
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessValue {
    /// Its number.
    pub pid: u32,
    /// Memory it holds, where the library knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum GpuQueryError {
    /// The GPU does not have it. Normal, and no sign of a fault.
    #[error("not supported by this GPU")]
    NotSupported,
    /// The library is older than the question.
    #[error("this driver is too old to say")]
    MissingSymbol,
    /// We may not ask.
    #[error("no permission")]
    NoPermission,
    /// There is no such thing.
    #[error("not there")]
    NotFound,
    /// The library does not know this version of a structure.
    #[error("this driver knows another version of the answer only")]
    OtherVersion,
    /// The GPU is gone.
    #[error("the GPU is lost (fell off the bus)")]
    GpuLost,
    /// The GPU answers nothing before it is reset.
    #[error("the GPU must be reset first")]
    ResetRequired,
    /// The answer cannot be understood.
    #[error("the answer cannot be understood: {0}")]
    Unreadable(String),
    /// Any other return code of the library.
    #[error("the driver's library says: {0}")]
    Failed(String),
}
