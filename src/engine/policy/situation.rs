//! All inputs of a decision, as one value.
//!
//! The caller fills it in. Unknown inputs are absent; an action that needs one is withheld with
//! that reason.

use std::collections::{BTreeMap, BTreeSet};

use super::journal_state::JournalState;
use model::claims::Claims;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::verdict::Verdicts;

/// How much of the plan returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCoverage {
    /// Planned steps.
    pub planned: usize,
    /// Steps whose tool ran to completion.
    pub returned: usize,
}

/// The run whose verdicts are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvidenceRun {
    /// Its id.
    pub id: String,
    /// Its profile, as commands name it.
    pub profile: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// When it was made, in seconds since 1970.
    pub created_unix: i64,
    /// Whether every step of its plan was tried.
    pub complete: bool,
    /// Whether it measured nodes, not a simulated fabric or a stored run.
    pub real: bool,
    /// Whether a simulated fabric produced the outputs; true for a replay of such a run as well.
    pub simulated: bool,
    /// Why its certificates would not count here: certificates must be signed, and no key is
    /// available.
    pub unsigned: Option<String>,
    /// Nodes that were not the same machine throughout the run, and why.
    pub unsure: BTreeMap<NodeName, String>,
}

/// The inputs of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The judge's verdicts.
    pub verdicts: &'a Verdicts,
    /// The claims of the whole fleet: the denominator of the budgets.
    pub fleet: &'a Claims,
    /// How much of the plan returned, if a plan ran.
    pub coverage: Option<PlanCoverage>,
    /// The current run.
    pub run: &'a EvidenceRun,
    /// The scheduler's present state. Without it the plan follows from verdicts alone and is
    /// not carried out.
    pub live: Option<&'a SchedulerSnapshot>,
    /// The journal's state.
    pub ledger: &'a JournalState,
    /// Nodes with a valid certificate of the last day: the instrument's control group.
    pub controls: &'a BTreeSet<NodeName>,
    /// Driver version by node, as far as outputs named it.
    pub drivers: &'a BTreeMap<NodeName, String>,
    /// The boot in which the run measured each node, as far as workers reported it.
    pub boots: &'a BTreeMap<NodeName, String>,
    /// The present time.
    pub now: &'a ClockStamp,
}

/// The scheduler that places work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Slurm's controller.
    Slurm,
    /// A Kubernetes scheduler.
    Kubernetes,
}

impl SchedulerKind {
    /// The kind of the scheduler that reported this node.
    pub fn from_node(node: &SchedulerNode) -> Self {
        if node.kubernetes.is_some() { Self::Kubernetes } else { Self::Slurm }
    }

    /// Its display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
        }
    }

    /// The display name of its workloads.
    pub fn workload_name(self) -> &'static str {
        match self {
            Self::Slurm => "jobs",
            Self::Kubernetes => "pods",
        }
    }
}
