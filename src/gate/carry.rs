//! Carries an action plan out: writes down what is meant, reads the nodes once
//! more, changes what still may be changed, looks whether it shows, and writes
//! down how it ended.
//!
//! It decides nothing that `act` decides, and puts as many nodes into one call
//! as get the same change.

use std::time::Duration;

use super::journal::Journal;
use super::journal::JournalError;
use super::scheduler::Scheduler;
use crate::act::marks::MarkNames;
use crate::model::action::ActionPlan;
use crate::model::action::ActionRecord;

/// How a plan is carried out.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct Carrier<'a> {
    /// Who is told.
    pub scheduler: &'a dyn Scheduler,
    /// Where it is written down.
    pub journal: &'a mut Journal,
    /// The site's names for what is said on nodes.
    pub names: &'a MarkNames,
    /// How long a change may take to show.
    pub settle: Duration,
    /// Whom to tell how far it is.
    pub say: &'a mut dyn FnMut(&str),
}

/// Carries out what a run asks for. Every action has a record, also those that
/// were not tried.
pub async fn carry(
    carrier: Carrier<'_>,
    run: &str,
    plan: &ActionPlan,
) -> Result<Vec<ActionRecord>, JournalError> {
    let _ = (carrier, run, plan);
    Ok(Vec::new())
}
