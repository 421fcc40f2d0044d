//! The driver's own library: every question becomes one NVML call.
//!
//! Works without a driver in that it says so. Calls that the wrapper does not
//! have, or whose answers it loses, are in `ffi::nvml`. Nothing here is kept or
//! interpreted.

use std::ffi::OsStr;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enum_wrappers::device::EccCounter;
use nvml_wrapper::enum_wrappers::device::MemoryError;
use nvml_wrapper::enum_wrappers::device::RetirementCause;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use super::library::Answer;
use super::library::GpuLibrary;
use super::library::LinkNumber;
use super::library::MachineQuestion;
use super::library::Number;
use super::library::ProcessValue;
use super::library::Question;
use super::library::Refusal;
use super::library::Text;
use super::library::Value;
use crate::ffi::nvml as ffi;
use crate::ffi::nvml::CallError;
use crate::ffi::nvml::FabricVersion;

/// Return codes that the wrapper has no names for (nvml.h).
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const NOT_FOUND: u32 = 6;
const FUNCTION_NOT_FOUND: u32 = 13;
const GPU_IS_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// Why there is no library to ask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDriver {
    /// No such library.
    #[error(
        "there is no NVIDIA driver: {what}; install the driver (`nvidia-smi` must work), or name \
         its library with --nvml"
    )]
    NoLibrary {
        /// What the loader says.
        what: String,
    },
    /// The library is there, and the kernel module is not.
    #[error(
        "the NVIDIA driver is installed and not loaded; load it (`modprobe nvidia`) and look for \
         its messages in `dmesg`"
    )]
    NotLoaded,
    /// Library and kernel module are of different versions.
    #[error(
        "the NVIDIA driver was updated while it ran: its library and its kernel module are of \
         different versions; reload the module or reboot"
    )]
    Mismatch,
    /// Something else.
    #[error("the NVIDIA driver's library does not start: {what}")]
    Other {
        /// What it says.
        what: String,
    },
}

/// The driver's library, loaded and initialised.
#[derive(Debug)]
pub struct NvmlLibrary {
    nvml: Nvml,
}

impl NvmlLibrary {
    /// Loads it: this one, or the one that the system finds.
    pub fn load(path: Option<&Path>) -> Result<Self, NoDriver> {
        let mut builder = Nvml::builder();
        let path: Option<&OsStr> = path.map(Path::as_os_str);
        if let Some(path) = path {
            builder.lib_path(path);
        }
        match builder.init() {
            Ok(nvml) => Ok(Self { nvml }),
            Err(NvmlError::LibloadingError(error)) => {
                Err(NoDriver::NoLibrary { what: error.to_string() })
            }
            Err(NvmlError::DriverNotLoaded) => Err(NoDriver::NotLoaded),
            Err(NvmlError::LibRmVersionMismatch) => Err(NoDriver::Mismatch),
            Err(NvmlError::LibraryNotFound) => {
                Err(NoDriver::NoLibrary { what: "the library found no kernel driver".to_owned() })
            }
            Err(error) => Err(NoDriver::Other { what: error.to_string() }),
        }
    }

    fn text(device: &Device<'_>, text: Text) -> Result<String, NvmlError> {
        match text {
            Text::Uuid => device.uuid(),
            Text::Serial => device.serial(),
            Text::Product => device.name(),
            Text::BoardPartNumber => device.board_part_number(),
            Text::Vbios => device.vbios_version(),
            Text::GspFirmware => device.gsp_firmware_version(),
            Text::PciAddress => device.pci_info().map(|pci| pci.bus_id),
        }
    }

    fn number(device: &Device<'_>, number: Number) -> Result<u64, Refusal> {
        let ecc = |kind, counter| device.total_ecc_errors(kind, counter);
        let retired = |cause| device.retired_pages(cause).map(|pages| count(pages.len()));
        let found: Result<u64, NvmlError> = match number {
            Number::Architecture => return Ok(ffi::architecture(device)?.into()),
            Number::ModuleId => return Ok(ffi::module_id(device)?.into()),
            Number::LinkMode => return Ok(ffi::link_mode(device)?.0.into()),
            Number::LinkModeIsBest => return Ok(ffi::link_mode(device)?.1.into()),
            Number::C2cEnabled => return Ok(ffi::c2c_enabled(device)?.into()),
            Number::MemoryBytes => device.memory_info().map(|memory| memory.total),
            Number::PcieGeneration => device.current_pcie_link_gen().map(u64::from),
            Number::PcieGenerationMax => device.max_pcie_link_gen().map(u64::from),
            Number::PcieWidth => device.current_pcie_link_width().map(u64::from),
            Number::PcieWidthMax => device.max_pcie_link_width().map(u64::from),
            Number::PcieReplays => device.pcie_replay_counter().map(u64::from),
            Number::EccEnabled => device.is_ecc_enabled().map(|ecc| ecc.currently_enabled.into()),
            Number::EccPending => device.is_ecc_enabled().map(|ecc| ecc.pending_enabled.into()),
            Number::EccCorrectedSinceLoad => ecc(MemoryError::Corrected, EccCounter::Volatile),
            Number::EccUncorrectedSinceLoad => ecc(MemoryError::Uncorrected, EccCounter::Volatile),
            Number::EccCorrectedInLife => ecc(MemoryError::Corrected, EccCounter::Aggregate),
            Number::EccUncorrectedInLife => ecc(MemoryError::Uncorrected, EccCounter::Aggregate),
            Number::RetiredSingleBit => retired(RetirementCause::MultipleSingleBitEccErrors),
            Number::RetiredDoubleBit => retired(RetirementCause::DoubleBitEccError),
            Number::RetiredPending => device.are_pages_pending_retired().map(u64::from),
            Number::ClockSm => device.clock_info(Clock::SM).map(u64::from),
            Number::ClockSmMax => device.max_clock_info(Clock::SM).map(u64::from),
            Number::ClockMemory => device.clock_info(Clock::Memory).map(u64::from),
            Number::ClockMemoryMax => device.max_clock_info(Clock::Memory).map(u64::from),
            Number::PowerDraw => device.power_usage().map(u64::from),
            Number::PowerLimit => device.enforced_power_limit().map(u64::from),
            Number::PowerLimitDefault => device.power_management_limit_default().map(u64::from),
            Number::Temperature => device.temperature(TemperatureSensor::Gpu).map(u64::from),
            Number::Throttling => device.current_throttle_reasons().map(|reasons| reasons.bits()),
            Number::Mig => device.mig_mode().map(|mode| mode.current.into()),
            Number::MigPending => device.mig_mode().map(|mode| mode.pending.into()),
            Number::Persistence => device.is_in_persistent_mode().map(u64::from),
        };
        found.map_err(Refusal::from)
    }

    fn link(device: &Device<'_>, link: u32, number: LinkNumber) -> Answer {
        let nvlink = device.link_wrapper_for(link);
        Ok(Value::Number(match number {
            LinkNumber::State => ffi::link_state(device, link)?.into(),
            LinkNumber::Version => nvlink.version()?.into(),
            LinkNumber::RemoteKind => ffi::link_remote_kind(device, link)?.into(),
            LinkNumber::Errors(counter) => ffi::link_errors(device, link, counter)?,
            LinkNumber::RemoteAddress => {
                return Ok(Value::Text(nvlink.remote_pci_info()?.bus_id));
            }
        }))
    }

    fn processes(device: &Device<'_>) -> Answer {
        let found = device.running_compute_processes()?;
        let processes = found.into_iter().map(|process| ProcessValue {
            pid: process.pid,
            memory_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        });
        Ok(Value::Processes(processes.collect()))
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

impl GpuLibrary for NvmlLibrary {
    fn of_machine(&self, question: MachineQuestion) -> Answer {
        Ok(match question {
            MachineQuestion::DriverVersion => Value::Text(self.nvml.sys_driver_version()?),
            MachineQuestion::LibraryVersion => Value::Text(self.nvml.sys_nvml_version()?),
            MachineQuestion::GpuCount => Value::Number(self.nvml.device_count()?.into()),
            MachineQuestion::CudaVersion => {
                let version = self.nvml.sys_cuda_driver_version()?;
                Value::Number(u64::try_from(version).map_err(|_| negative(version))?)
            }
        })
    }

    fn of_gpu(&self, gpu: u32, question: Question) -> Answer {
        let device = &self.nvml.device_by_index(gpu)?;
        match question {
            Question::Text(text) => Ok(Value::Text(Self::text(device, text)?)),
            Question::Number(number) => Ok(Value::Number(Self::number(device, number)?)),
            Question::Link(link, number) => Self::link(device, link, number),
            Question::Field { id, scope } => {
                let answers = ffi::fields(device, &[(id, scope)])?;
                let first = answers.into_iter().next().unwrap_or(Err(CallError::Unreadable))?;
                Ok(Value::Number(first))
            }
            Question::FabricThird => Ok(Value::Fabric(ffi::fabric(device, FabricVersion::Third)?)),
            Question::FabricSecond => {
                Ok(Value::Fabric(ffi::fabric(device, FabricVersion::Second)?))
            }
            Question::FabricFirst => Ok(Value::Fabric(ffi::fabric(device, FabricVersion::First)?)),
            Question::Platform => Ok(Value::Platform(ffi::platform(device, 2)?)),
            Question::PlatformFirst => Ok(Value::Platform(ffi::platform(device, 1)?)),
            Question::Processes => Self::processes(device),
            Question::RemappedRows => Ok(Value::Rows(ffi::remapped_rows(device)?)),
        }
    }
}

fn negative(number: i32) -> Refusal {
    Refusal::Unreadable(format!("a version of {number}"))
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        match error {
            CallError::MissingSymbol => Self::MissingSymbol,
            CallError::Refused(code) => refusal(code),
            CallError::Unreadable => Self::Unreadable("a value of an unexpected type".to_owned()),
        }
    }
}

impl From<NvmlError> for Refusal {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::FailedToLoadSymbol(_) => Self::MissingSymbol,
            NvmlError::Utf8Error(_) => Self::Unreadable("text that is none".to_owned()),
            // Also what the wrapper makes of enum values that it does not know;
            // whoever must tell them apart asks through `ffi`.
            NvmlError::UnexpectedVariant(code) => refusal(code),
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

/// What a return code means.
fn refusal(code: u32) -> Refusal {
    match code {
        NOT_SUPPORTED => Refusal::NotSupported,
        NO_PERMISSION => Refusal::NoPermission,
        NOT_FOUND => Refusal::NotFound,
        FUNCTION_NOT_FOUND => Refusal::MissingSymbol,
        GPU_IS_LOST => Refusal::GpuLost,
        RESET_REQUIRED => Refusal::ResetRequired,
        ARGUMENT_VERSION_MISMATCH => Refusal::OtherVersion,
        code => Refusal::Failed(super::codes::words(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_said_with_what_to_do() {
        let error =
            NvmlLibrary::load(Some(Path::new("/no/such/libnvidia-ml.so"))).expect_err("none");
        assert!(matches!(error, NoDriver::NoLibrary { .. }), "{error:?}");
        let words = error.to_string();
        assert!(words.contains("there is no NVIDIA driver"), "{words}");
        assert!(words.contains("/no/such/libnvidia-ml.so"), "{words}");
    }

    #[test]
    fn a_library_that_is_no_nvml_is_no_panic() {
        // glibc is always there, and has none of the symbols.
        let error = NvmlLibrary::load(Some(Path::new("libc.so.6"))).expect_err("no NVML");
        assert!(matches!(error, NoDriver::Other { .. }), "{error:?}");
    }

    #[test]
    fn a_missing_symbol_is_an_old_driver_and_no_failure_of_the_gpu() {
        let by_wrapper = NvmlError::FailedToLoadSymbol("undefined symbol".to_owned());
        assert_eq!(Refusal::from(by_wrapper), Refusal::MissingSymbol);
        assert_eq!(Refusal::from(CallError::MissingSymbol), Refusal::MissingSymbol);
        assert_eq!(Refusal::from(CallError::Refused(13)), Refusal::MissingSymbol);
    }

    #[test]
    fn codes_that_the_wrapper_does_not_know_are_told_apart() {
        assert_eq!(Refusal::from(NvmlError::UnexpectedVariant(25)), Refusal::OtherVersion);
        assert_eq!(Refusal::from(CallError::Refused(25)), Refusal::OtherVersion);
        assert_eq!(Refusal::from(CallError::Refused(3)), Refusal::NotSupported);
        assert_eq!(Refusal::from(NvmlError::NotSupported), Refusal::NotSupported);
    }
}
