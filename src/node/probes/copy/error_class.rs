//! Classifies errors of the driver: the class, and a sentence with the remedy. Pure.
//!
//! No error has the kind `corrupt`: an error leaves its measurement unknown, and blames no
//! component.

use crate::ffi::cuda::{CudaCallError, code};
use crate::ffi::dynamic_library::LibraryLoadError;
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;

/// The step in which the error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyCallStep {
    /// Initializing the driver, before any GPU.
    Start,
    /// Opening a GPU with this compute mode, if it is known.
    Open(Option<i32>),
    HostMemory,
    GpuMemory,
    Peers,
    /// All later steps.
    Copy,
}

/// `CU_COMPUTEMODE_PROHIBITED` and `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const PROHIBITED: i32 = 2;
const EXCLUSIVE: i32 = 3;

/// Classifies a failure to load the driver's library.
pub(crate) fn classify_load_error(error: &LibraryLoadError) -> ProbeProblem {
    let (class, advice) = match error {
        LibraryLoadError::NotFound { .. } => (
            "no-driver",
            "install NVIDIA's driver, or give the container its libraries (capability `compute`)",
        ),
        LibraryLoadError::WrongLibrary { .. } => {
            ("foreign-library", "use the driver's libcuda.so.1")
        }
    };
    ProbeProblem::new(OutputProblemKind::Error, class, format!("{error}; {advice}"))
}

/// Classifies an error that occurred "while `doing`".
pub(crate) fn classify_error(
    error: &CudaCallError,
    step: CopyCallStep,
    doing: &str,
) -> ProbeProblem {
    let (class, meaning) = explain_error(error, step);
    let detail = format!("{meaning} ({error}, while {doing})");
    let mut problem = ProbeProblem::new(OutputProblemKind::Error, class, detail);
    problem.code = match error {
        CudaCallError::Failed { name, .. } => Some(name.clone()),
        CudaCallError::Missing { call } => Some((*call).to_owned()),
    };
    problem
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

fn explain_error(error: &CudaCallError, step: CopyCallStep) -> (&'static str, &'static str) {
    let Some(code) = error.code() else {
        return ("driver-too-old", "the driver is too old: a newer one has this call");
    };
    match (code, step) {
        (code::STUB_LIBRARY, _) => (
            "stub-library",
            "the CUDA toolkit's stub was loaded instead of the driver's library: remove \
             `lib64/stubs` from the library path",
        ),
        (code::NO_DEVICE, _) => (
            "no-device",
            "the driver reports no GPU to this process: none exists, none is assigned to it, or \
             MIG is on without an instance",
        ),
        (code::SYSTEM_NOT_READY, _) => (
            "system-not-ready",
            "the NVSwitch fabric is not initialized: nvidia-fabricmanager must run, in the \
             driver's version",
        ),
        (code::SYSTEM_DRIVER_MISMATCH | code::COMPAT_NOT_SUPPORTED, _) => (
            "driver-mismatch",
            "the driver's library and its kernel module have different versions: reload the \
             module, reboot, or remove the forward compatibility package",
        ),
        (code::DEVICE_UNAVAILABLE | code::INVALID_DEVICE, CopyCallStep::Open(Some(PROHIBITED))) => {
            (
                "prohibited-mode",
                "the GPU's compute mode refuses all processes (`nvidia-smi -c 0` resets it)",
            )
        }
        (code::DEVICE_UNAVAILABLE | code::INVALID_DEVICE, CopyCallStep::Open(Some(EXCLUSIVE))) => (
            "exclusive-mode",
            "the GPU is in exclusive mode and another process has it (`nvidia-smi -c 0` resets it)",
        ),
        (code::DEVICE_UNAVAILABLE, _) | (code::INVALID_DEVICE, CopyCallStep::Open(_)) => (
            "gpu-unavailable",
            "the GPU is not available: another process holds it exclusively, or it needs a reset",
        ),
        (code::OUT_OF_MEMORY, CopyCallStep::HostMemory) => {
            ("no-host-memory", "not enough host memory can be pinned")
        }
        (code::OUT_OF_MEMORY, _) => ("no-memory", "not enough memory on the GPU"),
        (code::ECC_UNCORRECTABLE, _) => {
            ("gpu-memory-error", "the GPU found an uncorrectable error in its memory")
        }
        (code::NVLINK_UNCORRECTABLE | code::CONTAINED, _) => (
            "nvlink-error",
            "the driver found an uncorrectable error on NVLink or in a peer's memory; \
             the kernel log has the Xid",
        ),
        (code::PEER_ACCESS_UNSUPPORTED | code::TOO_MANY_PEERS, _) => {
            ("no-peer-access", "the driver does not let these GPUs access each other's memory")
        }
        (code::NOT_PERMITTED, _) => ("not-permitted", "the driver does not permit it"),
        (code::NOT_SUPPORTED, _) => ("not-supported", "the driver does not support it here"),
        (code::DEINITIALIZED, _) => ("driver-ended", "the driver is shutting down"),
        (code::NOT_INITIALIZED | code::OPERATING_SYSTEM | code::UNKNOWN, CopyCallStep::Start) => (
            "driver-failed",
            "the driver does not initialize: is its kernel module loaded, and do /dev/nvidiactl \
             and /dev/nvidia-uvm exist?",
        ),
        _ if is_sticky(error) => (
            "gpu-lost",
            "the GPU does not answer any more, which is the usual effect of an Xid: see the \
             kernel log",
        ),
        _ => ("cuda-error", "the driver returned an error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32) -> CudaCallError {
        CudaCallError::Failed { call: "cuSomething", code, name: code::result_name(code) }
    }

    fn class(code: i32, step: CopyCallStep) -> String {
        classify_error(&failed(code), step, "trying").class
    }

    #[test]
    fn no_driver_error_blames_a_gpu() {
        for code in 1..1000 {
            for step in [
                CopyCallStep::Start,
                CopyCallStep::Open(Some(2)),
                CopyCallStep::HostMemory,
                CopyCallStep::Copy,
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
        assert_eq!(class(34, CopyCallStep::Start), "stub-library");
        assert_eq!(class(100, CopyCallStep::Start), "no-device");
        assert_eq!(class(999, CopyCallStep::Start), "driver-failed");
        assert_eq!(class(999, CopyCallStep::Copy), "gpu-lost");
        assert_eq!(class(719, CopyCallStep::Copy), "gpu-lost");
        assert_eq!(class(802, CopyCallStep::Open(None)), "system-not-ready");
        assert_eq!(class(803, CopyCallStep::Start), "driver-mismatch");
        assert_eq!(class(46, CopyCallStep::Open(Some(3))), "exclusive-mode");
        assert_eq!(class(46, CopyCallStep::Open(Some(2))), "prohibited-mode");
        assert_eq!(class(46, CopyCallStep::Open(Some(0))), "gpu-unavailable");
        assert_eq!(class(101, CopyCallStep::Open(Some(3))), "exclusive-mode");
        assert_eq!(class(101, CopyCallStep::Open(None)), "gpu-unavailable");
        assert_eq!(class(101, CopyCallStep::Copy), "gpu-lost");
        assert_eq!(class(2, CopyCallStep::HostMemory), "no-host-memory");
        assert_eq!(class(2, CopyCallStep::GpuMemory), "no-memory");
        assert_eq!(class(214, CopyCallStep::Copy), "gpu-memory-error");
        assert_eq!(class(220, CopyCallStep::Copy), "nvlink-error");
        assert_eq!(class(711, CopyCallStep::Peers), "no-peer-access");
        assert_eq!(class(1, CopyCallStep::Copy), "cuda-error");
    }

    #[test]
    fn a_problem_contains_the_meaning_the_driver_error_and_the_step() {
        let problem =
            classify_error(&failed(2), CopyCallStep::GpuMemory, "taking 512 MiB on GPU 3");
        assert_eq!(
            problem.detail,
            "not enough memory on the GPU (cuSomething: CUDA_ERROR_OUT_OF_MEMORY (2), \
             while taking 512 MiB on GPU 3)"
        );
        assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
        let old = classify_error(
            &CudaCallError::Missing { call: "cuMemCreate" },
            CopyCallStep::Copy,
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
        let missing = classify_load_error(&LibraryLoadError::NotFound { tried, said: message });
        assert_eq!(missing.class.as_str(), "no-driver");
        assert!(missing.detail.starts_with("libcuda.so.1 cannot be opened"), "{missing:?}");
        let foreign = LibraryLoadError::WrongLibrary {
            path: "/lib/x.so".into(),
            symbol: "cuInit".to_owned(),
        };
        assert_eq!(classify_load_error(&foreign).class, "foreign-library");
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
