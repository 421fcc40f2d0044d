//! CUDA errors: the driver's name, the runtime's name, and the texts that tools and NCCL print
//! for the same error.
//!
//! Names and texts are those of CUDA's headers `cuda.h` and `driver_types.h` and of
//! `cudaGetErrorString`.

/// One error, under the names of both driver and runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CudaError {
    /// The context or the driver could not be initialised.
    NotInitialized,
    /// GPU or host memory is exhausted.
    OutOfMemory,
    /// No GPU is present.
    NoDevice,
    /// Another process holds the GPU, or its compute mode forbids the use.
    DeviceUnavailable,
    /// No GPU has this number.
    InvalidDevice,
    /// Memory mapping failed.
    MapFailed,
    /// Uncorrectable ECC error in GPU memory.
    EccUncorrectable,
    /// Uncorrectable NVLink error.
    NvlinkUncorrectable,
    /// The two GPUs cannot reach each other.
    PeerAccessUnsupported,
    /// The handle belongs to another process or another fabric.
    InvalidHandle,
    /// A kernel accessed an illegal address.
    IllegalAddress,
    /// A kernel failed for a reason unknown to the driver.
    LaunchFailed,
    /// A kernel exceeded its time limit.
    LaunchTimeout,
    /// The stack of a kernel is corrupted.
    HardwareStackError,
    /// A failed access over a link or to memory, which the driver contained.
    Contained,
    /// Another device of the machine failed.
    ExternalDevice,
    /// The operation requires a permission.
    NotPermitted,
    /// The operation is not supported on this system.
    NotSupported,
    /// The fabric or its services are not up yet.
    SystemNotReady,
    /// The driver version does not match the system's.
    SystemDriverMismatch,
    /// The driver is older than the runtime.
    InsufficientDriver,
    /// Any other error.
    Unknown,
}

use CudaError as E;

/// Each error: the driver's name (if any), the runtime's name, and texts.
const CUDA_ERRORS: &[(CudaError, &str, &str, &[&str])] = &[
    (
        E::NotInitialized,
        "NOT_INITIALIZED",
        "cudaErrorInitializationError",
        &["initialization error"],
    ),
    (E::OutOfMemory, "OUT_OF_MEMORY", "cudaErrorMemoryAllocation", &["out of memory"]),
    (
        E::NoDevice,
        "NO_DEVICE",
        "cudaErrorNoDevice",
        &["no CUDA-capable device is detected", "no CUDA-capable device"],
    ),
    (
        E::DeviceUnavailable,
        "DEVICE_UNAVAILABLE",
        "cudaErrorDevicesUnavailable",
        &[
            "CUDA-capable device(s) is/are busy or unavailable",
            "all CUDA-capable devices are busy or unavailable",
        ],
    ),
    (E::InvalidDevice, "INVALID_DEVICE", "cudaErrorInvalidDevice", &["invalid device ordinal"]),
    (
        E::MapFailed,
        "MAP_FAILED",
        "cudaErrorMapBufferObjectFailed",
        &["mapping of buffer object failed"],
    ),
    (
        E::EccUncorrectable,
        "ECC_UNCORRECTABLE",
        "cudaErrorECCUncorrectable",
        &["uncorrectable ECC error encountered"],
    ),
    (
        E::NvlinkUncorrectable,
        "NVLINK_UNCORRECTABLE",
        "cudaErrorNvlinkUncorrectable",
        &[
            "uncorrectable NVLink error detected during the execution",
            "uncorrectable NVLink error detected",
        ],
    ),
    (
        E::PeerAccessUnsupported,
        "PEER_ACCESS_UNSUPPORTED",
        "cudaErrorPeerAccessUnsupported",
        &["peer access is not supported between these two devices"],
    ),
    (
        E::InvalidHandle,
        "INVALID_HANDLE",
        "cudaErrorInvalidResourceHandle",
        &["invalid resource handle"],
    ),
    (
        E::IllegalAddress,
        "ILLEGAL_ADDRESS",
        "cudaErrorIllegalAddress",
        &["an illegal memory access was encountered"],
    ),
    (E::LaunchFailed, "LAUNCH_FAILED", "cudaErrorLaunchFailure", &["unspecified launch failure"]),
    (
        E::LaunchTimeout,
        "LAUNCH_TIMEOUT",
        "cudaErrorLaunchTimeout",
        &["the launch timed out and was terminated"],
    ),
    (
        E::HardwareStackError,
        "HARDWARE_STACK_ERROR",
        "cudaErrorHardwareStackError",
        &["hardware stack error"],
    ),
    (
        E::Contained,
        "CONTAINED",
        "cudaErrorContained",
        &["Invalid access of peer GPU memory over nvlink or a hardware error"],
    ),
    (
        E::ExternalDevice,
        "EXTERNAL_DEVICE",
        "cudaErrorExternalDevice",
        &["an async error has occurred in external entity outside of CUDA"],
    ),
    (E::NotPermitted, "NOT_PERMITTED", "cudaErrorNotPermitted", &["operation not permitted"]),
    (E::NotSupported, "NOT_SUPPORTED", "cudaErrorNotSupported", &["operation not supported"]),
    (
        E::SystemNotReady,
        "SYSTEM_NOT_READY",
        "cudaErrorSystemNotReady",
        &["system not yet initialized"],
    ),
    (
        E::SystemDriverMismatch,
        "SYSTEM_DRIVER_MISMATCH",
        "cudaErrorSystemDriverMismatch",
        &["system has unsupported display driver / cuda driver combination"],
    ),
    (
        E::InsufficientDriver,
        "",
        "cudaErrorInsufficientDriver",
        &["CUDA driver version is insufficient for CUDA runtime version"],
    ),
    (E::Unknown, "UNKNOWN", "cudaErrorUnknown", &["unknown error"]),
];

/// Prefix of the driver's error names.
const DRIVER_PREFIX: &str = "CUDA_ERROR_";

impl CudaError {
    /// The error with this driver or runtime name.
    pub fn from_name(name: &str) -> Option<Self> {
        let is_it = |driver: &str, runtime: &str| {
            let own = name.strip_prefix(DRIVER_PREFIX).filter(|rest| !rest.is_empty());
            name == runtime || own == Some(driver)
        };
        CUDA_ERRORS.iter().find(|(_, driver, runtime, _)| is_it(driver, runtime)).map(|it| it.0)
    }

    /// The error whose text the message begins with. A message in which the text continues with
    /// more words is a different error.
    pub fn from_message(message: &str) -> Option<Self> {
        let message = message.trim();
        let is_whole = |text: &&str| {
            let start = message.get(..text.len()).filter(|it| it.eq_ignore_ascii_case(text));
            let rest = start.map(|_| message[text.len()..].trim_start());
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        };
        CUDA_ERRORS.iter().find(|(.., texts)| texts.iter().any(is_whole)).map(|it| it.0)
    }

    /// Name in the CUDA runtime.
    pub fn runtime_name(self) -> &'static str {
        CUDA_ERRORS.iter().find(|it| it.0 == self).map_or("cudaErrorUnknown", |it| it.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_known_by_each_of_its_names_and_texts() {
        for (error, driver, runtime, texts) in CUDA_ERRORS {
            assert_eq!(
                (CudaError::from_name(runtime), error.runtime_name()),
                (Some(*error), *runtime)
            );
            if !driver.is_empty() {
                assert_eq!(CudaError::from_name(&format!("{DRIVER_PREFIX}{driver}")), Some(*error));
            }
            for text in *texts {
                for message in
                    [(*text).to_owned(), format!("{text} (run with x)"), format!("{text}'")]
                {
                    assert_eq!(CudaError::from_message(&message), Some(*error), "{message}");
                }
            }
        }
        for name in ["", "CUDA_ERROR_", "CUDA_ERROR_OTHER", "cudaError", "ncclSystemError"] {
            assert_eq!(CudaError::from_name(name), None);
        }
        assert_eq!(
            CudaError::from_message("operation not permitted when stream is capturing"),
            None
        );
        assert_eq!(CudaError::from_message("\u{e9}"), None);
    }
}
