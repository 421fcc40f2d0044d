//! Slurm through its own program, `scontrol`.
//!
//! What an answer means, `inventory::slurm::live` says.

use std::time::Duration;

use super::scheduler::Answer;
use super::scheduler::Scheduler;
use super::scheduler::SchedulerError;
use crate::model::change::Change;
use crate::model::id::NodeName;
use crate::model::live::Live;
use crate::model::said::ProblemKind;

/// Slurm's controller, reached by a program.
#[derive(Clone, Debug)]
pub struct Scontrol {
    /// The program, with words in front where it is reached through something.
    pub argv: Vec<String>,
    /// How long one call may take. Slurm's own MessageTimeout is 10 s.
    pub limit: Duration,
}

impl Scheduler for Scontrol {
    fn name(&self) -> String {
        "scontrol".to_owned()
    }

    fn read<'a>(&'a self, _nodes: &'a [NodeName]) -> Answer<'a, Live> {
        Box::pin(async { Err(SchedulerError::new(ProblemKind::Unsupported, "not built")) })
    }

    fn change<'a>(&'a self, _nodes: &'a [NodeName], _change: &'a Change) -> Answer<'a, ()> {
        Box::pin(async { Err(SchedulerError::new(ProblemKind::Unsupported, "not built")) })
    }

    fn words(&self, _nodes: &[NodeName], _change: &Change) -> Vec<Vec<String>> {
        Vec::new()
    }
}
