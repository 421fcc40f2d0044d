//! Our own NCCL probe: what nccl-tests measures, with nothing but NCCL and the
//! driver, and without MPI.
//!
//! Runs in child processes, one per GPU (`probe::said`). Says numbers and
//! problems; what a number should be it does not know.
//!
//! One process is one rank. The first exchange tells who is there and numbers
//! the ranks, the second hands NCCL's unique id over, the third tells who is
//! connected, and then there is one after every message size. What fails on one
//! rank is told in the next exchange, so that all end at the same place.

pub mod failure;
pub mod formula;
pub mod nccl_library;
pub mod nccl_path;
mod nccl_rank;
pub mod pattern;
pub mod rank_list;
mod sweep;
pub mod task;

use std::io;

use super::protocol::{ExchangeError, ProbeEmitter, ProbeMessage};
use failure::{NcclProbeFailure, clean};
use model::probe_report::ProbeProblem;
use task::CollectiveTask;

/// Measures, and says what comes of it. An error is that nobody listens.
///
/// [`Line::End`] is said where everything that was asked for was measured; a
/// problem is said where it was not.
pub fn measure(task: &CollectiveTask, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
    match sweep::run_sweep(task, mouth) {
        Ok(true) => mouth.emit(&ProbeMessage::End),
        Ok(false) | Err(RankStop::Reported) => Ok(()),
        Err(RankStop::OutputClosed(error)) => Err(error),
    }
}

/// Why a rank ends before it is done.
#[derive(Debug)]
enum RankStop {
    /// It cannot go on, and said so.
    Reported,
    /// Nobody listens.
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

/// The problem that a failure of this rank is.
fn rank_problem(task: &CollectiveTask, failure: &NcclProbeFailure) -> ProbeProblem {
    let mut problem = failure.to_problem();
    problem.gpu = Some(task.gpu);
    problem.detail = clean(&format!("GPU {}: {}", task.gpu, problem.detail));
    problem
}
