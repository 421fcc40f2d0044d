//! Native NCCL probe: measures like nccl-tests, using only NCCL and the driver, without MPI.
//!
//! Runs in child processes, one per GPU (`probes::protocol`). It reports numbers and problems, and
//! does not judge them.
//!
//! One process is one rank. The first exchange collects the participants and numbers the ranks, the
//! second distributes NCCL's unique ID, the third reports the connected ranks, and one follows
//! after every message size. A rank reports its failure in the next exchange, so that all ranks end
//! at the same point.

pub mod failure;
pub mod formula;
pub mod nccl_library;
pub mod nccl_path;
mod nccl_rank;
pub mod pattern;
pub mod rank_list;
mod sweep;

use std::io;

use failure::{NcclProbeFailure, clean};

use super::protocol::{ExchangeError, ProbeEmitter, ProbeMessage};
use crate::probes::task::CollectiveTask;
use model::probe_report::ProbeProblem;

/// Measures and reports the results. Returns an error if the output is closed.
///
/// Emits [`ProbeMessage::End`] if everything requested was measured, and a problem otherwise.
pub fn measure(task: &CollectiveTask, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
    match sweep::run_sweep(task, emitter) {
        Ok(true) => emitter.emit(&ProbeMessage::End),
        Ok(false) | Err(RankStop::Reported) => Ok(()),
        Err(RankStop::OutputClosed(error)) => Err(error),
    }
}

/// Why a rank ends early.
#[derive(Debug)]
enum RankStop {
    /// It cannot continue, and has reported the reason.
    Reported,
    OutputClosed(io::Error),
}

impl From<io::Error> for RankStop {
    fn from(error: io::Error) -> Self {
        Self::OutputClosed(error)
    }
}

impl From<ExchangeError> for RankStop {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Failed(error) => Self::OutputClosed(error),
            other => Self::OutputClosed(io::Error::other(other)),
        }
    }
}

/// Converts a failure of this rank to a problem.
fn rank_problem(task: &CollectiveTask, failure: &NcclProbeFailure) -> ProbeProblem {
    let mut problem = failure.to_problem();
    problem.gpu = Some(task.gpu);
    problem.detail = clean(&format!("GPU {}: {}", task.gpu, problem.detail));
    problem
}
