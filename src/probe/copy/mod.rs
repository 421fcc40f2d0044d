//! Our own copy-engine probe: what nvbandwidth's `_ce` tests measure, with
//! nothing but the driver.
//!
//! Runs in a child process (`probe::said`), because a call into a driver can
//! hang and cannot be given up. Says numbers and problems; what a number should
//! be it does not know.

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
