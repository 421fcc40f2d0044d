//! Classifies errors of the driver, for all GPU probes: the class, and a sentence with the remedy.
//! Pure.
//!
//! No error has the kind `corrupt`: an error leaves its measurement unknown, and blames no
//! component.

use crate::ffi::cuda::{CudaCallError, code};
use crate::ffi::dynamic_library::LibraryLoadError;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// The step in which the error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCallStep {
    /// Initializing the driver, before any GPU.
    Start {
        /// The driver's kernel module is loaded.
        is_module_loaded: bool,
    },
    /// Opening a GPU with this compute mode, if it is known.
    Open(Option<i32>),
    /// Allocating host memory.
    HostMemory,
    /// Allocating memory on the GPU.
    GpuMemory,
    /// Enabling access to the memory of another GPU.
    Peers,
    /// All later steps.
    Copy,
}

/// `CU_COMPUTEMODE_PROHIBITED` and `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const PROHIBITED: i32 = 2;
pub(crate) const EXCLUSIVE: i32 = 3;

/// Classifies a failure to load the driver's library.
pub(crate) fn classify_load_error(error: &LibraryLoadError) -> ProbeProblem {
    let (class, advice) = match error {
        LibraryLoadError::NotFound { .. } => (
            ProbeProblemClass::NoDriver,
            "install NVIDIA's driver, or give the container its libraries (capability `compute`)",
        ),
        LibraryLoadError::WrongLibrary { .. } => {
            (ProbeProblemClass::ForeignLibrary, "use the driver's libcuda.so.1")
        }
    };
    ProbeProblem::new(OutputProblemKind::Error, class, format!("{error}; {advice}"))
}

/// Classifies an error that occurred "while `doing`".
pub(crate) fn classify_error(
    error: &CudaCallError,
    step: DriverCallStep,
    doing: &str,
) -> ProbeProblem {
    let (class, meaning) = explain_error(error, step);
    let detail = format!("{meaning} ({error}, while {doing})");
    let mut problem = ProbeProblem::new(OutputProblemKind::Error, class, detail);
    problem.code = Some(error_name(error));
    problem
}

/// The driver's name of the error, or the name of the call that it lacks.
pub(crate) fn error_name(error: &CudaCallError) -> String {
    match error {
        CudaCallError::Failed { name, .. } => name.clone(),
        CudaCallError::Missing { call } => (*call).to_owned(),
    }
}

/// True if the context can no longer be used after this error (`cuda.h` documents this for these
/// results; a GPU that fell off the bus, Xid 79, usually returns `UNKNOWN`).
pub(crate) fn is_sticky(error: &CudaCallError) -> bool {
    let lasting = [
        code::DEINITIALIZED,
        code::INVALID_DEVICE,
        code::ECC_UNCORRECTABLE,
        code::NVLINK_UNCORRECTABLE,
        code::CONTAINED,
        code::ILLEGAL_ADDRESS,
        code::CONTEXT_IS_DESTROYED,
        code::HARDWARE_STACK_ERROR,
        code::LAUNCH_FAILED,
        code::SYSTEM_NOT_READY,
        code::MPS_CLIENT_TERMINATED,
        code::UNKNOWN,
    ];
    error.code().is_some_and(|code| lasting.contains(&code))
}

/// True if the driver lacks an optional feature.
pub(crate) fn is_unsupported(error: &CudaCallError) -> bool {
    match error.code() {
        None => true,
        Some(code) => code == code::NOT_SUPPORTED,
    }
}

/// The class of an error, and its meaning with the remedy.
pub(crate) fn explain_error(
    error: &CudaCallError,
    step: DriverCallStep,
) -> (ProbeProblemClass, &'static str) {
    let Some(code) = error.code() else {
        return (
            ProbeProblemClass::DriverTooOld,
            "the driver is too old: a newer one has this call",
        );
    };
    match (code, step) {
        (code::STUB_LIBRARY, _) => (
            ProbeProblemClass::StubLibrary,
            "the CUDA toolkit's stub was loaded instead of the driver's library: remove \
             `lib64/stubs` from the library path",
        ),
        // The real library returns this code without a kernel module, too (535.261.03).
        (code::NO_DEVICE, DriverCallStep::Start { is_module_loaded: false }) => (
            ProbeProblemClass::DriverFailed,
            "the driver's kernel module is not loaded: `modprobe nvidia`, and see the kernel log",
        ),
        (code::NO_DEVICE, _) => (
            ProbeProblemClass::NoDevice,
            "the driver reports no GPU to this process: none exists, none is assigned to it, or \
             MIG is on without an instance",
        ),
        (code::SYSTEM_NOT_READY, _) => (
            ProbeProblemClass::SystemNotReady,
            "the NVSwitch fabric is not initialized: nvidia-fabricmanager must run, in the \
             driver's version",
        ),
        (code::SYSTEM_DRIVER_MISMATCH | code::COMPAT_NOT_SUPPORTED, _) => (
            ProbeProblemClass::DriverMismatch,
            "the driver's library and its kernel module have different versions: reload the \
             module, reboot, or remove the forward compatibility package",
        ),
        (
            code::DEVICE_UNAVAILABLE | code::INVALID_DEVICE,
            DriverCallStep::Open(Some(PROHIBITED)),
        ) => (
            ProbeProblemClass::ProhibitedMode,
            "the GPU's compute mode refuses all processes (`nvidia-smi -c 0` resets it)",
        ),
        (
            code::DEVICE_UNAVAILABLE | code::INVALID_DEVICE,
            DriverCallStep::Open(Some(EXCLUSIVE)),
        ) => (
            ProbeProblemClass::ExclusiveMode,
            "the GPU is in exclusive mode and another process has it (`nvidia-smi -c 0` resets it)",
        ),
        (code::DEVICE_UNAVAILABLE, _) | (code::INVALID_DEVICE, DriverCallStep::Open(_)) => (
            ProbeProblemClass::GpuUnavailable,
            "the GPU is not available: another process holds it exclusively, or it needs a reset",
        ),
        (code::OUT_OF_MEMORY, DriverCallStep::HostMemory) => {
            (ProbeProblemClass::NoHostMemory, "not enough host memory can be pinned")
        }
        (code::OUT_OF_MEMORY, _) => (ProbeProblemClass::NoMemory, "not enough memory on the GPU"),
        (code::ECC_UNCORRECTABLE, _) => (
            ProbeProblemClass::GpuMemoryError,
            "the GPU found an uncorrectable error in its memory",
        ),
        (code::NVLINK_UNCORRECTABLE | code::CONTAINED, _) => (
            ProbeProblemClass::NvlinkError,
            "the driver found an uncorrectable error on NVLink or in a peer's memory; \
             the kernel log has the Xid",
        ),
        (code::PEER_ACCESS_UNSUPPORTED | code::TOO_MANY_PEERS, _) => (
            ProbeProblemClass::NoPeerAccess,
            "the driver does not let these GPUs access each other's memory",
        ),
        (code::MPS_CONNECTION_FAILED..=code::MPS_CLIENT_TERMINATED, _) => (
            ProbeProblemClass::Mps,
            "the CUDA multi-process service (MPS) refuses this process: stop \
             nvidia-cuda-mps-control for the measurement",
        ),
        (code::NOT_PERMITTED, _) => {
            (ProbeProblemClass::NotPermitted, "the driver does not permit it")
        }
        (code::NOT_SUPPORTED, _) => {
            (ProbeProblemClass::NotSupported, "the driver does not support it here")
        }
        (code::DEINITIALIZED, _) => (ProbeProblemClass::DriverEnded, "the driver is shutting down"),
        (
            code::NOT_INITIALIZED | code::OPERATING_SYSTEM | code::UNKNOWN,
            DriverCallStep::Start { .. },
        ) => (
            ProbeProblemClass::DriverFailed,
            "the driver does not initialize: is its kernel module loaded, and do /dev/nvidiactl \
             and /dev/nvidia-uvm exist?",
        ),
        _ if is_sticky(error) => (
            ProbeProblemClass::GpuLost,
            "the GPU does not answer any more, which is the usual effect of an Xid: see the \
             kernel log",
        ),
        _ => (ProbeProblemClass::CudaError, "the driver returned an error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: DriverCallStep = DriverCallStep::Start { is_module_loaded: true };

    fn failed(code: i32) -> CudaCallError {
        CudaCallError::Failed { call: "cuSomething", code, name: code::result_name(code) }
    }

    fn class(code: i32, step: DriverCallStep) -> String {
        classify_error(&failed(code), step, "trying").class.to_string()
    }

    #[test]
    fn no_driver_error_blames_a_gpu() {
        for code in 1..1000 {
            for step in [
                START,
                DriverCallStep::Open(Some(2)),
                DriverCallStep::HostMemory,
                DriverCallStep::Copy,
            ] {
                assert_eq!(
                    classify_error(&failed(code), step, "trying").kind,
                    OutputProblemKind::Error
                );
            }
        }
    }

    #[test]
    fn distinct_causes_have_distinct_classes() {
        assert_eq!(class(34, START), "stub-library");
        assert_eq!(class(100, START), "no-device");
        let without_module = DriverCallStep::Start { is_module_loaded: false };
        assert_eq!(class(100, without_module), "driver-failed");
        for code in 805..=810 {
            assert_eq!(class(code, DriverCallStep::Copy), "mps");
        }
        assert_eq!(class(999, START), "driver-failed");
        assert_eq!(class(999, DriverCallStep::Copy), "gpu-lost");
        assert_eq!(class(719, DriverCallStep::Copy), "gpu-lost");
        assert_eq!(class(802, DriverCallStep::Open(None)), "system-not-ready");
        assert_eq!(class(803, START), "driver-mismatch");
        assert_eq!(class(46, DriverCallStep::Open(Some(3))), "exclusive-mode");
        assert_eq!(class(46, DriverCallStep::Open(Some(2))), "prohibited-mode");
        assert_eq!(class(46, DriverCallStep::Open(Some(0))), "gpu-unavailable");
        assert_eq!(class(101, DriverCallStep::Open(Some(3))), "exclusive-mode");
        assert_eq!(class(101, DriverCallStep::Open(None)), "gpu-unavailable");
        assert_eq!(class(101, DriverCallStep::Copy), "gpu-lost");
        assert_eq!(class(2, DriverCallStep::HostMemory), "no-host-memory");
        assert_eq!(class(2, DriverCallStep::GpuMemory), "no-memory");
        assert_eq!(class(214, DriverCallStep::Copy), "gpu-memory-error");
        assert_eq!(class(220, DriverCallStep::Copy), "nvlink-error");
        assert_eq!(class(711, DriverCallStep::Peers), "no-peer-access");
        assert_eq!(class(1, DriverCallStep::Copy), "cuda-error");
    }

    #[test]
    fn a_problem_contains_the_meaning_the_driver_error_and_the_step() {
        let problem =
            classify_error(&failed(2), DriverCallStep::GpuMemory, "taking 512 MiB on GPU 3");
        assert_eq!(
            problem.detail,
            "not enough memory on the GPU (cuSomething: CUDA_ERROR_OUT_OF_MEMORY (2), \
             while taking 512 MiB on GPU 3)"
        );
        assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
        let old = classify_error(
            &CudaCallError::Missing { call: "cuMemCreate" },
            DriverCallStep::Copy,
            "trying",
        );
        assert_eq!(
            (old.class.as_str(), old.code.as_deref()),
            ("driver-too-old", Some("cuMemCreate"))
        );
    }

    #[test]
    fn a_missing_library_is_distinguished_from_a_wrong_one() {
        let tried = vec!["libcuda.so.1".to_owned()];
        let message = "no such file".to_owned();
        let missing = classify_load_error(&LibraryLoadError::NotFound { tried, message });
        assert_eq!(missing.class.as_str(), "no-driver");
        assert!(missing.detail.starts_with("libcuda.so.1 cannot be opened"), "{missing:?}");
        let foreign = LibraryLoadError::WrongLibrary {
            path: "/lib/x.so".into(),
            symbol: "cuInit".to_owned(),
        };
        assert_eq!(classify_load_error(&foreign).class.as_str(), "foreign-library");
    }

    #[test]
    fn a_refusal_is_not_a_sticky_error() {
        for code in [1, 2, 400, 704, 800, 801] {
            assert!(!is_sticky(&failed(code)), "{code}");
        }
        assert!(is_sticky(&failed(719)) && is_sticky(&failed(214)) && is_sticky(&failed(999)));
        assert!(is_unsupported(&failed(801)));
        assert!(is_unsupported(&CudaCallError::Missing { call: "cuStreamWaitValue32_v2" }));
        assert!(!is_unsupported(&failed(1)));
    }
}
