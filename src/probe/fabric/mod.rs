//! What sharing of GPU memory this node allows: between processes, and over
//! the fabric. A question with an exact answer, not a measurement.
//!
//! Runs in child processes (`probe::said`), like the copy probe.

pub(in crate::probe) mod channel;
pub(in crate::probe) mod memory;
pub mod task;
pub(in crate::probe) mod trouble;

use std::io;

use super::said::Line;
use super::said::Mouth;
use crate::model::parsed::ProblemKind;
use crate::model::probed::ProbeProblem;
use task::Task;

/// Tries, and says what comes of it. An error is that nobody listens.
pub fn explore(task: &Task, mouth: &mut Mouth<'_>) -> io::Result<()> {
    let what = format!("nothing can explore {} bytes yet", task.bytes);
    mouth.say(&Line::Problem(ProbeProblem::new(ProblemKind::Error, "not-built", what)))
}
