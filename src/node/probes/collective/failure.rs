//! Failures of a rank and their problem classes.
//!
//! This module only classifies. None of these failures blames a GPU; only wrong data does (see
//! `pattern`), and that is a result, not a failure.

use std::time::Duration;

use super::nccl_library::NcclLibraryError;
use crate::ffi::cuda::CudaCallError;
use crate::ffi::dynamic_library::LibraryLoadError;
use crate::ffi::nccl::{NcclError, code as nccl};
use crate::probes::driver_error::{self, DriverCallStep};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Why a rank cannot continue.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NcclProbeFailure {
    /// The driver's library cannot be loaded.
    #[error("no NVIDIA driver found: {0}")]
    Driver(LibraryLoadError),
    /// NCCL cannot be loaded.
    #[error(transparent)]
    Library(#[from] NcclLibraryError),
    /// The driver reports no GPUs.
    #[error("{}", .0.detail)]
    Gpus(Box<ProbeProblem>),
    /// The requested GPU does not exist.
    #[error("no GPU {asked}: {seen} GPUs are visible to this process")]
    NoGpu {
        /// Requested index on the node.
        asked: u32,
        /// Number of visible GPUs.
        seen: usize,
    },
    /// A CUDA call failed.
    #[error("{} ({error})", driver_error::explain_error(error, *step).1)]
    Cuda {
        /// The error of the driver.
        error: CudaCallError,
        /// The step in which it occurred.
        step: DriverCallStep,
    },
    /// An NCCL call or operation failed.
    #[error("{}", nccl_text(.0))]
    Nccl(#[from] NcclError),
    /// An operation did not end in time.
    #[error("{what} did not end within {:.0} s", .waited.as_secs_f64())]
    Timeout {
        /// The operation.
        what: String,
        /// Time waited.
        waited: Duration,
    },
}

impl NcclProbeFailure {
    /// True if another rank may be the cause.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Nccl(error) => matches!(error.code(), Some(nccl::REMOTE_ERROR | nccl::TIMEOUT)),
            _ => false,
        }
    }

    /// Converts it to a problem.
    pub fn to_problem(&self) -> ProbeProblem {
        let (class, code) = match self {
            Self::Driver(error) => return driver_error::classify_load_error(error),
            Self::Library(_) => (ProbeProblemClass::NoNccl, None),
            Self::Gpus(problem) => return problem.as_ref().clone(),
            Self::NoGpu { .. } => (ProbeProblemClass::NoSuchGpu, None),
            Self::Cuda { error, step } => {
                (driver_error::explain_error(error, *step).0, Some(driver_error::error_name(error)))
            }
            Self::Nccl(error) => (nccl_class(error), error.code().map(nccl::result_name)),
            Self::Timeout { .. } => (ProbeProblemClass::TimeOut, None),
        };
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Error, class, clean(&self.to_string()));
        problem.code = code;
        problem
    }
}

impl From<CudaCallError> for NcclProbeFailure {
    fn from(error: CudaCallError) -> Self {
        Self::Cuda { error, step: DriverCallStep::Copy }
    }
}

fn nccl_class(error: &NcclError) -> ProbeProblemClass {
    match error.code() {
        None => ProbeProblemClass::NcclTooOld,
        Some(nccl::UNHANDLED_CUDA_ERROR) => ProbeProblemClass::NcclCudaError,
        Some(nccl::SYSTEM_ERROR) => ProbeProblemClass::NcclSystemError,
        Some(nccl::INVALID_ARGUMENT | nccl::INVALID_USAGE) => ProbeProblemClass::NcclRefused,
        Some(nccl::REMOTE_ERROR) => ProbeProblemClass::NcclRemoteError,
        Some(nccl::TIMEOUT) => ProbeProblemClass::TimeOut,
        Some(_) => ProbeProblemClass::NcclError,
    }
}

fn nccl_text(error: &NcclError) -> String {
    let hint = match nccl_class(error) {
        ProbeProblemClass::NcclSystemError => {
            "; a network, a device or an IMEX channel that NCCL needs does not work on this node"
        }
        ProbeProblemClass::NcclRemoteError => {
            "; another rank has ended, or the network to it failed"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// External text without control characters, which could move a terminal's cursor.
pub fn clean(text: &str) -> String {
    let words: Vec<&str> = text.split(|c: char| c.is_control() || c == ' ').collect();
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::cuda::code as cuda;

    fn nccl(code: i32) -> NcclProbeFailure {
        let message = "a\u{1b}[31m text\nof NCCL".to_owned();
        NcclError::Failed { call: "ncclAllReduce", code, name: nccl::result_name(code), message }
            .into()
    }

    #[test]
    fn every_error_of_nccl_has_a_class_and_none_is_wrong_data() {
        let classes = [
            (nccl::UNHANDLED_CUDA_ERROR, "nccl-cuda-error"),
            (nccl::SYSTEM_ERROR, "nccl-system-error"),
            (nccl::INTERNAL_ERROR, "nccl-error"),
            (nccl::INVALID_USAGE, "nccl-refused"),
            (nccl::REMOTE_ERROR, "nccl-remote-error"),
            (nccl::TIMEOUT, "time-out"),
            (77, "nccl-error"),
        ];
        for (code, class) in classes {
            let problem = nccl(code).to_problem();
            assert_eq!((problem.class.as_str(), problem.kind), (class, OutputProblemKind::Error));
            assert!(!problem.detail.contains(char::is_control), "{:?}", problem.detail);
            assert_eq!(problem.code, Some(nccl::result_name(code)));
        }
    }

    #[test]
    fn driver_errors_have_distinct_classes() {
        let failed = |code| {
            let name = cuda::result_name(code);
            NcclProbeFailure::from(CudaCallError::Failed { call: "cuMemAlloc_v2", code, name })
                .to_problem()
        };
        let problem = failed(cuda::OUT_OF_MEMORY);
        assert_eq!(problem.class.as_str(), "no-memory");
        assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(failed(cuda::SYSTEM_NOT_READY).class.as_str(), "system-not-ready");
        assert_eq!(failed(cuda::LAUNCH_FAILED).class.as_str(), "gpu-lost");
        let missing =
            NcclProbeFailure::from(CudaCallError::Missing { call: "cuCtxSetCurrent" }).to_problem();
        assert_eq!(
            (missing.class.as_str(), missing.code.as_deref()),
            ("driver-too-old", Some("cuCtxSetCurrent"))
        );
    }

    #[test]
    fn only_timeouts_and_remote_errors_may_have_another_rank_as_cause() {
        let late =
            NcclProbeFailure::Timeout { what: "x".to_owned(), waited: Duration::from_secs(5) };
        assert!(late.is_timeout() && nccl(nccl::REMOTE_ERROR).is_timeout());
        assert!(!nccl(nccl::SYSTEM_ERROR).is_timeout());
        assert_eq!(late.to_problem().detail, "x did not end within 5 s");
    }
}
