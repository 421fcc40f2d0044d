//! Drains again what a scheduler lost: a controller that started without its state, or on
//! which a node was removed and made again, or a store of Kubernetes that was restored.
//!
//! What was lost, `act::vanished` says. The drain is the one that stood, with its own reason,
//! run and findings; it was in the budgets all the time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::carry;
use super::carry::{Carrier, note_start};
use super::journal::JournalError;
use super::scheduler::Scheduler;
use engine::policy::lost_drains;
use engine::policy::lost_drains::LostDrains;
use model::action::{Action, ActionPlan, ActionRecord};
use model::hostlist;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::text::clean;

/// What became of our drains that nodes do not show. The start of the controller is
/// asked for where one is gone, and written down.
pub async fn looked(
    carrier: &mut Carrier<'_>,
    live: &SchedulerSnapshot,
) -> Result<LostDrains, JournalError> {
    if !lost_drains::has_undrained(live, carrier.journal.ledger()) {
        return Ok(LostDrains::default());
    }
    let started = carrier.scheduler.started().await.ok().flatten();
    note_start(carrier.journal, started.as_ref())?;
    Ok(lost_drains::find_lost_drains(live, carrier.journal.ledger(), carrier.names))
}

/// Drains the lost ones again. Where the breaker has tripped, or more is out than may be
/// (`over`), nothing is done and that is told.
pub async fn remake(
    carrier: Carrier<'_>,
    vanished: &LostDrains,
    over: Option<&str>,
    kept: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    let Carrier { scheduler, journal, names, settle, say, stop } = carrier;
    if vanished.lost.is_empty() {
        return Ok(Vec::new());
    }
    let list = clean(&hostlist::fold(vanished.lost.keys().map(NodeName::as_str)));
    let halted = match (&journal.ledger().breaker, over) {
        (Some(_), _) => Some("the breaker has tripped".to_owned()),
        (None, Some(over)) => Some(format!("budget: {over}")),
        (None, None) => None,
    };
    let who = who(scheduler);
    if let Some(why) = halted {
        say(&format!("{who} lost our drain of {list}, and it is not made again: {why}"));
        return Ok(Vec::new());
    }
    say(&format!("{who} lost our drain of {list}; draining again"));
    let mut by_run: BTreeMap<String, Vec<Action>> = BTreeMap::new();
    let mut events = Vec::new();
    for (node, how) in &vanished.lost {
        let Some(drain) = journal.ledger().drains.get(node) else { continue };
        let (node, id, detail) = (node.clone(), drain.id.clone(), how.clone());
        events.push(JournalEvent::Lost { node, id, detail });
        let action = Action { command: Vec::new(), ..drain.action.clone() };
        by_run.entry(drain.run.clone()).or_default().push(action);
    }
    journal.write_all(events)?;
    let mut records = Vec::new();
    for (run, actions) in by_run {
        let plan = ActionPlan { dry_run: false, ..ActionPlan::from_actions(actions) };
        let carrier = Carrier {
            scheduler,
            journal: &mut *journal,
            names,
            settle,
            say: &mut *say,
            stop: stop.clone(),
        };
        records.extend(carry::carry_within(carrier, &run, &plan, kept).await?);
    }
    Ok(records)
}

/// Who loses drains.
pub(super) fn who(scheduler: &dyn Scheduler) -> &'static str {
    if scheduler.writes_as_seen() { "the cluster's store" } else { "the controller" }
}

#[cfg(test)]
#[path = "remake_tests.rs"]
mod tests;
