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

mod bench;
pub mod failure;
pub mod formula;
pub mod library;
pub mod path;
pub mod pattern;
pub mod roll;
mod sweep;
pub mod task;

use std::io;

use super::said::ExchangeError;
use super::said::Line;
use super::said::Mouth;
use failure::Failure;
use failure::clean;
use model::probed::ProbeProblem;
use task::Task;

/// Measures, and says what comes of it. An error is that nobody listens.
///
/// [`Line::End`] is said where everything that was asked for was measured; a
/// problem is said where it was not.
pub fn measure(task: &Task, mouth: &mut Mouth<'_>) -> io::Result<()> {
    match sweep::run(task, mouth) {
        Ok(true) => mouth.say(&Line::End),
        Ok(false) | Err(Stop::Said) => Ok(()),
        Err(Stop::Lost(error)) => Err(error),
    }
}

/// Why a rank ends before it is done.
#[derive(Debug)]
enum Stop {
    /// It cannot go on, and said so.
    Said,
    /// Nobody listens.
    Lost(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl From<ExchangeError> for Stop {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Failed(error) => Self::Lost(error),
            other => Self::Lost(io::Error::other(other)),
        }
    }
}

/// The problem that a failure of this rank is.
fn own(task: &Task, failure: &Failure) -> ProbeProblem {
    let mut problem = failure.problem();
    problem.gpu = Some(task.gpu);
    problem.detail = clean(&format!("GPU {}: {}", task.gpu, problem.detail));
    problem
}
