//! The parts that the documents of all GPU probes have in common, from the output of the processes.
//!
//! Pure. Equal lines of several processes appear once.

use std::collections::BTreeMap;

use super::SupervisorOutput;
use super::child_output::ChildOutput;
use crate::probes::protocol::ProbeMessage;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::{ProbeProblem, ProbedGpu, ProbedRank};

/// What the processes reported, apart from numbers and notes.
#[derive(Debug, Default)]
pub(super) struct CommonReport {
    /// CUDA version of the driver.
    pub(super) cuda: Option<String>,
    /// Version and path of the first process's NCCL.
    pub(super) nccl: Option<(String, String)>,
    pub(super) gpus: Vec<ProbedGpu>,
    /// All ranks, in order.
    pub(super) ranks: Vec<ProbedRank>,
    pub(super) problems: Vec<ProbeProblem>,
}

impl SupervisorOutput {
    pub(super) fn messages(&self) -> impl Iterator<Item = &ProbeMessage> {
        self.children.iter().flat_map(|child| &child.messages)
    }

    pub(super) fn common_report(&self) -> CommonReport {
        let mut report = CommonReport::default();
        let mut ranks: BTreeMap<u32, ProbedRank> = BTreeMap::new();
        for message in self.messages() {
            match message {
                ProbeMessage::Driver { cuda } => report.cuda = Some(cuda.clone()),
                ProbeMessage::Nccl { version, library } => {
                    report.nccl.get_or_insert_with(|| (version.clone(), library.clone()));
                }
                ProbeMessage::Gpu(gpu) => {
                    if !report.gpus.iter().any(|it| it.index == gpu.index) {
                        report.gpus.push(gpu.clone());
                    }
                }
                ProbeMessage::Rank(rank) => {
                    ranks.entry(rank.rank).or_insert_with(|| rank.clone());
                }
                ProbeMessage::Problem(problem) => {
                    if !report.problems.contains(problem) {
                        report.problems.push(problem.clone());
                    }
                }
                ProbeMessage::Test(_)
                | ProbeMessage::Cell(_)
                | ProbeMessage::Point { .. }
                | ProbeMessage::Note { .. }
                | ProbeMessage::End => {}
            }
        }
        report.ranks = ranks.into_values().collect();
        report
    }

    /// The problems that follow from the ends of processes, each cause once.
    pub(super) fn exit_problems(&self) -> Vec<ProbeProblem> {
        let mut problems: Vec<ProbeProblem> =
            self.children.iter().filter_map(ChildOutput::exit_problem).collect();
        if let Some(why) = &self.exchange_failure {
            let class = ProbeProblemClass::Unanswered;
            problems.push(ProbeProblem::new(OutputProblemKind::Error, class, why.clone()));
        }
        if self.interrupted.is_some() {
            // Report it once, not once per process.
            let mut seen = false;
            problems.retain(|it| {
                it.class != ProbeProblemClass::Interrupted || !std::mem::replace(&mut seen, true)
            });
        }
        problems
    }

    /// True if all processes reported the end and no problem contradicts it. Wrong data also counts
    /// as measured.
    pub(super) fn is_complete(&self, problems: &[ProbeProblem]) -> bool {
        let lacks = |it: &ProbeProblem| {
            !matches!(it.kind, OutputProblemKind::Waived | OutputProblemKind::Corrupt)
        };
        !self.children.is_empty()
            && self.children.iter().all(ChildOutput::is_complete)
            && !problems.iter().any(lacks)
    }
}
