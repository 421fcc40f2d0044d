//! Everything a decision rests on, as one value.
//!
//! The shell fills it in. What is not known is absent, and whatever needs it is
//! then withheld with that as its reason.

use std::collections::{BTreeMap, BTreeSet};

use super::journal_state::JournalState;
use model::claims::Claims;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::verdict::Verdicts;

/// How much of what was planned came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCoverage {
    /// Steps that were planned.
    pub planned: usize,
    /// Steps whose tool ran to its end.
    pub returned: usize,
}

/// The run whose verdicts are at hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvidenceRun {
    /// Its id.
    pub id: String,
    /// Its profile, as commands spell it.
    pub profile: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// The same in seconds since 1970.
    pub created_unix: i64,
    /// Every step of its plan was tried.
    pub complete: bool,
    /// It measured nodes, not a simulated fabric or a stored run.
    pub real: bool,
    /// A simulated fabric answered, also where its run was replayed.
    pub simulated: bool,
    /// Why no certificate of it would count here: certificates must be signed, and
    /// nobody can sign them.
    pub unsigned: Option<String>,
    /// Nodes that were not one machine throughout the run, and why.
    pub unsure: BTreeMap<NodeName, String>,
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What the judge says.
    pub verdicts: &'a Verdicts,
    /// What is claimed of the whole fleet: the denominator of the budgets.
    pub fleet: &'a Claims,
    /// How much of the plan came back, where a plan was run.
    pub coverage: Option<PlanCoverage>,
    /// The run.
    pub run: &'a EvidenceRun,
    /// What the scheduler says now. Without it the plan is what verdicts alone
    /// ask for, and is not to be carried out.
    pub live: Option<&'a SchedulerSnapshot>,
    /// What we did before.
    pub ledger: &'a JournalState,
    /// Nodes with a certificate of the last day that still holds: the
    /// instrument's control group.
    pub controls: &'a BTreeSet<NodeName>,
    /// Version of the driver by node, as far as outputs named it.
    pub drivers: &'a BTreeMap<NodeName, String>,
    /// The boot in which the run measured each node, as far as workers told it.
    pub boots: &'a BTreeMap<NodeName, String>,
    /// The present.
    pub now: &'a ClockStamp,
}
