//! Our own NCCL probe: what nccl-tests measures, with nothing but NCCL and the
//! driver, and without MPI.
//!
//! Runs in child processes, one per GPU (`probe::said`). Says numbers and
//! problems; what a number should be it does not know.

pub mod task;

use std::io;

use super::said::Line;
use super::said::Mouth;
use crate::model::parsed::ProblemKind;
use crate::model::probed::ProbeProblem;
use task::Task;

/// Measures, and says what comes of it. An error is that nobody listens.
pub fn measure(task: &Task, mouth: &mut Mouth<'_>) -> io::Result<()> {
    let what = format!("nothing can measure {} tests yet", task.tests.len());
    mouth.say(&Line::Problem(ProbeProblem::new(ProblemKind::Error, "not-built", what)))
}
