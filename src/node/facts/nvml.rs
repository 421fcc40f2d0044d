//! Implements the queries with the driver's NVML library; one query is one call.
//!
//! Without a driver, loading returns an error that explains it. `ffi::nvml` contains the calls that
//! the wrapper crate lacks or whose answers it loses. This module neither stores nor interprets
//! answers.

use std::ffi::OsStr;
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, RetirementCause, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::gpu_library::{
    GpuLibrary, GpuNumber, GpuQuery, GpuQueryError, GpuQueryResult, GpuText, GpuValue, LinkNumber,
    MachineQuery, ProcessValue,
};
use crate::ffi::nvml as ffi;
use crate::ffi::nvml::{FabricInfoVersion, NvmlCallError};

/// Return codes without a name in the wrapper crate (nvml.h).
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const NOT_FOUND: u32 = 6;
const FUNCTION_NOT_FOUND: u32 = 13;
const GPU_IS_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// Why the library cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlLoadError {
    /// The library does not exist.
    #[error(
        "no NVIDIA driver found: {what}; install the driver (`nvidia-smi` must work), or name \
         its library with --nvml"
    )]
    NoLibrary {
        /// Error of the loader.
        what: String,
    },
    /// The library exists, but the kernel module is not loaded.
    #[error(
        "the NVIDIA driver is installed but not loaded; load it (`modprobe nvidia`) and check for \
         its messages in `dmesg`"
    )]
    NotLoaded,
    /// The library and the kernel module have different versions.
    #[error(
        "the NVIDIA driver was updated while it ran: its library and its kernel module have \
         different versions; reload the module or reboot"
    )]
    Mismatch,
    /// Any other failure.
    #[error("the NVIDIA driver's library does not start: {what}")]
    Other {
        /// Error of the library.
        what: String,
    },
}

/// The driver's library, loaded and initialized.
#[derive(Debug)]
pub struct NvmlLibrary {
    nvml: Nvml,
}

impl NvmlLibrary {
    /// Loads the library at this path, or the one that the loader finds.
    pub fn load(path: Option<&Path>) -> Result<Self, NvmlLoadError> {
        let mut builder = Nvml::builder();
        let path: Option<&OsStr> = path.map(Path::as_os_str);
        if let Some(path) = path {
            builder.lib_path(path);
        }
        match builder.init() {
            Ok(nvml) => Ok(Self { nvml }),
            Err(NvmlError::LibloadingError(error)) => {
                Err(NvmlLoadError::NoLibrary { what: error.to_string() })
            }
            Err(NvmlError::DriverNotLoaded) => Err(NvmlLoadError::NotLoaded),
            Err(NvmlError::LibRmVersionMismatch) => Err(NvmlLoadError::Mismatch),
            Err(NvmlError::LibraryNotFound) => Err(NvmlLoadError::NoLibrary {
                what: "the library found no kernel driver".to_owned(),
            }),
            Err(error) => Err(NvmlLoadError::Other { what: error.to_string() }),
        }
    }

    fn read_text(device: &Device<'_>, text: GpuText) -> Result<String, NvmlError> {
        match text {
            GpuText::Uuid => device.uuid(),
            GpuText::Serial => device.serial(),
            GpuText::Product => device.name(),
            GpuText::BoardPartNumber => device.board_part_number(),
            GpuText::Vbios => device.vbios_version(),
            GpuText::GspFirmware => device.gsp_firmware_version(),
            GpuText::PciAddress => device.pci_info().map(|pci| pci.bus_id),
        }
    }

    fn read_number(device: &Device<'_>, number: GpuNumber) -> Result<u64, GpuQueryError> {
        let ecc = |kind, counter| device.total_ecc_errors(kind, counter);
        let retired = |cause| device.retired_pages(cause).map(|pages| count(pages.len()));
        let found: Result<u64, NvmlError> = match number {
            GpuNumber::Architecture => return Ok(ffi::architecture(device)?.into()),
            GpuNumber::ModuleId => return Ok(ffi::module_id(device)?.into()),
            GpuNumber::LinkMode => return Ok(ffi::link_mode(device)?.0.into()),
            GpuNumber::LinkModeIsBest => return Ok(ffi::link_mode(device)?.1.into()),
            GpuNumber::C2cEnabled => return Ok(ffi::c2c_enabled(device)?.into()),
            GpuNumber::MemoryBytes => device.memory_info().map(|memory| memory.total),
            GpuNumber::PcieGeneration => device.current_pcie_link_gen().map(u64::from),
            GpuNumber::PcieGenerationMax => device.max_pcie_link_gen().map(u64::from),
            GpuNumber::PcieWidth => device.current_pcie_link_width().map(u64::from),
            GpuNumber::PcieWidthMax => device.max_pcie_link_width().map(u64::from),
            GpuNumber::PcieReplays => device.pcie_replay_counter().map(u64::from),
            GpuNumber::EccEnabled => {
                device.is_ecc_enabled().map(|ecc| ecc.currently_enabled.into())
            }
            GpuNumber::EccPending => device.is_ecc_enabled().map(|ecc| ecc.pending_enabled.into()),
            GpuNumber::EccCorrectedSinceLoad => ecc(MemoryError::Corrected, EccCounter::Volatile),
            GpuNumber::EccUncorrectedSinceLoad => {
                ecc(MemoryError::Uncorrected, EccCounter::Volatile)
            }
            GpuNumber::EccCorrectedInLife => ecc(MemoryError::Corrected, EccCounter::Aggregate),
            GpuNumber::EccUncorrectedInLife => ecc(MemoryError::Uncorrected, EccCounter::Aggregate),
            GpuNumber::RetiredSingleBit => retired(RetirementCause::MultipleSingleBitEccErrors),
            GpuNumber::RetiredDoubleBit => retired(RetirementCause::DoubleBitEccError),
            GpuNumber::RetiredPending => device.are_pages_pending_retired().map(u64::from),
            GpuNumber::ClockSm => device.clock_info(Clock::SM).map(u64::from),
            GpuNumber::ClockSmMax => device.max_clock_info(Clock::SM).map(u64::from),
            GpuNumber::ClockMemory => device.clock_info(Clock::Memory).map(u64::from),
            GpuNumber::ClockMemoryMax => device.max_clock_info(Clock::Memory).map(u64::from),
            GpuNumber::PowerDraw => device.power_usage().map(u64::from),
            GpuNumber::PowerLimit => device.enforced_power_limit().map(u64::from),
            GpuNumber::PowerLimitDefault => device.power_management_limit_default().map(u64::from),
            GpuNumber::Temperature => device.temperature(TemperatureSensor::Gpu).map(u64::from),
            // The wrapper's call drops bits that it does not know.
            GpuNumber::Throttling => return Ok(ffi::throttle_reasons(device)?),
            GpuNumber::Mig => device.mig_mode().map(|mode| mode.current.into()),
            GpuNumber::MigPending => device.mig_mode().map(|mode| mode.pending.into()),
            GpuNumber::Persistence => device.is_in_persistent_mode().map(u64::from),
        };
        found.map_err(GpuQueryError::from)
    }

    fn read_link(device: &Device<'_>, link: u32, number: LinkNumber) -> GpuQueryResult {
        let nvlink = device.link_wrapper_for(link);
        Ok(GpuValue::Number(match number {
            LinkNumber::State => ffi::link_state(device, link)?.into(),
            LinkNumber::Version => nvlink.version()?.into(),
            LinkNumber::RemoteKind => ffi::link_remote_kind(device, link)?.into(),
            LinkNumber::Errors(counter) => ffi::link_errors(device, link, counter)?,
            LinkNumber::RemoteAddress => {
                return Ok(GpuValue::Text(nvlink.remote_pci_info()?.bus_id));
            }
        }))
    }

    fn read_processes(device: &Device<'_>) -> GpuQueryResult {
        let found = device.running_compute_processes()?;
        let processes = found.into_iter().map(|process| ProcessValue {
            pid: process.pid,
            memory_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        });
        Ok(GpuValue::Processes(processes.collect()))
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

impl GpuLibrary for NvmlLibrary {
    fn query_machine(&self, query: MachineQuery) -> GpuQueryResult {
        Ok(match query {
            MachineQuery::DriverVersion => GpuValue::Text(self.nvml.sys_driver_version()?),
            MachineQuery::LibraryVersion => GpuValue::Text(self.nvml.sys_nvml_version()?),
            MachineQuery::GpuCount => GpuValue::Number(self.nvml.device_count()?.into()),
            MachineQuery::CudaVersion => {
                let version = self.nvml.sys_cuda_driver_version()?;
                GpuValue::Number(
                    u64::try_from(version).map_err(|_| negative_number_error(version))?,
                )
            }
        })
    }

    fn query_gpu(&self, gpu: u32, query: GpuQuery) -> GpuQueryResult {
        let device = &self.nvml.device_by_index(gpu)?;
        match query {
            GpuQuery::Text(text) => Ok(GpuValue::Text(Self::read_text(device, text)?)),
            GpuQuery::Number(number) => Ok(GpuValue::Number(Self::read_number(device, number)?)),
            GpuQuery::Link(link, number) => Self::read_link(device, link, number),
            GpuQuery::Field { id, scope } => {
                let answers = ffi::fields(device, &[(id, scope)])?;
                let first = answers.into_iter().next().unwrap_or(Err(NvmlCallError::Unreadable))?;
                Ok(GpuValue::Number(first))
            }
            GpuQuery::FabricThird => {
                Ok(GpuValue::Fabric(ffi::fabric(device, FabricInfoVersion::V3)?))
            }
            GpuQuery::FabricSecond => {
                Ok(GpuValue::Fabric(ffi::fabric(device, FabricInfoVersion::V2)?))
            }
            GpuQuery::FabricFirst => {
                Ok(GpuValue::Fabric(ffi::fabric(device, FabricInfoVersion::V1)?))
            }
            GpuQuery::Platform => Ok(GpuValue::Platform(ffi::platform(device, 2)?)),
            GpuQuery::PlatformFirst => Ok(GpuValue::Platform(ffi::platform(device, 1)?)),
            GpuQuery::Processes => Self::read_processes(device),
            GpuQuery::RemappedRows => Ok(GpuValue::Rows(ffi::remapped_rows(device)?)),
        }
    }
}

fn negative_number_error(number: i32) -> GpuQueryError {
    GpuQueryError::Unreadable(format!("version {number}"))
}

impl From<NvmlCallError> for GpuQueryError {
    fn from(error: NvmlCallError) -> Self {
        match error {
            NvmlCallError::MissingSymbol => Self::MissingSymbol,
            NvmlCallError::Refused(code) => error_from_code(code),
            NvmlCallError::Unreadable => {
                Self::Unreadable("a value of an unexpected type".to_owned())
            }
        }
    }
}

impl From<NvmlError> for GpuQueryError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::FailedToLoadSymbol(_) => Self::MissingSymbol,
            NvmlError::Utf8Error(_) => Self::Unreadable("invalid UTF-8".to_owned()),
            // The wrapper also returns this for enum values that it does not know; callers that
            // must distinguish them use `ffi`.
            NvmlError::UnexpectedVariant(code) => error_from_code(code),
            NvmlError::NotSupported => Self::NotSupported,
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::NotFound => Self::NotFound,
            NvmlError::FunctionNotFound => Self::MissingSymbol,
            NvmlError::GpuLost => Self::GpuLost,
            NvmlError::ResetRequired => Self::ResetRequired,
            other => Self::Failed(other.to_string()),
        }
    }
}

fn error_from_code(code: u32) -> GpuQueryError {
    match code {
        NOT_SUPPORTED => GpuQueryError::NotSupported,
        NO_PERMISSION => GpuQueryError::NoPermission,
        NOT_FOUND => GpuQueryError::NotFound,
        FUNCTION_NOT_FOUND => GpuQueryError::MissingSymbol,
        GPU_IS_LOST => GpuQueryError::GpuLost,
        RESET_REQUIRED => GpuQueryError::ResetRequired,
        ARGUMENT_VERSION_MISMATCH => GpuQueryError::OtherVersion,
        code => GpuQueryError::Failed(super::nvml_names::return_code_name(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_reported_with_the_remedy() {
        let error =
            NvmlLibrary::load(Some(Path::new("/no/such/libnvidia-ml.so"))).expect_err("none");
        assert!(matches!(error, NvmlLoadError::NoLibrary { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("no NVIDIA driver found"), "{message}");
        assert!(message.contains("/no/such/libnvidia-ml.so"), "{message}");
    }

    #[test]
    fn a_library_that_is_not_nvml_is_an_error() {
        // glibc always exists and has none of the symbols.
        let error = NvmlLibrary::load(Some(Path::new("libc.so.6"))).expect_err("no NVML");
        assert!(matches!(error, NvmlLoadError::Other { .. }), "{error:?}");
    }

    #[test]
    fn a_missing_symbol_is_an_old_driver_and_not_a_failure_of_the_gpu() {
        let by_wrapper = NvmlError::FailedToLoadSymbol("undefined symbol".to_owned());
        assert_eq!(GpuQueryError::from(by_wrapper), GpuQueryError::MissingSymbol);
        assert_eq!(GpuQueryError::from(NvmlCallError::MissingSymbol), GpuQueryError::MissingSymbol);
        assert_eq!(GpuQueryError::from(NvmlCallError::Refused(13)), GpuQueryError::MissingSymbol);
    }

    #[test]
    fn codes_unknown_to_the_wrapper_are_distinguished() {
        assert_eq!(
            GpuQueryError::from(NvmlError::UnexpectedVariant(25)),
            GpuQueryError::OtherVersion
        );
        assert_eq!(GpuQueryError::from(NvmlCallError::Refused(25)), GpuQueryError::OtherVersion);
        assert_eq!(GpuQueryError::from(NvmlCallError::Refused(3)), GpuQueryError::NotSupported);
        assert_eq!(GpuQueryError::from(NvmlError::NotSupported), GpuQueryError::NotSupported);
    }
}
