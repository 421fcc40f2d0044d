//! Restores drains that a scheduler lost: a Slurm controller that started without its
//! state, a node that was deleted and recreated, or a Kubernetes store restored from a
//! backup.
//!
//! `engine::policy::lost_drains` detects them. A restored drain keeps its reason, run and
//! findings; it stays in the budgets all the time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::executor;
use super::executor::{Executor, write_controller_start};
use super::journal::JournalError;
use super::scheduler::Scheduler;
use crate::gate::gate_event::{GateEvent, LostDrainOutcome};
use engine::policy::lost_drains;
use engine::policy::lost_drains::LostDrains;
use model::action::{Action, ActionPlan, ActionRecord};
use model::hostlist;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::text::clean;

/// Checks fabricgate drains that the nodes do not show. If there are any, reads and journals the
/// controller's start time.
pub async fn detect_lost_drains(
    carrier: &mut Executor<'_>,
    live: &SchedulerSnapshot,
) -> Result<LostDrains, JournalError> {
    if !lost_drains::has_undrained(live, carrier.journal.state()) {
        return Ok(LostDrains::default());
    }
    let started = carrier.scheduler.read_start_time().await.ok().flatten();
    write_controller_start(carrier.journal, started.as_ref())?;
    Ok(lost_drains::find_lost_drains(live, carrier.journal.state(), carrier.names))
}

/// Restores the lost drains. If the breaker has tripped, or too many nodes are out
/// (`over`), it only logs them.
pub async fn restore_drains(
    carrier: Executor<'_>,
    vanished: &LostDrains,
    over: Option<&str>,
    kept: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    let Executor { scheduler, journal, names, settle, log, stop } = carrier;
    if vanished.lost.is_empty() {
        return Ok(Vec::new());
    }
    let list = clean(&hostlist::fold(vanished.lost.keys().map(NodeName::as_str)));
    let halted = match (&journal.state().breaker, over) {
        (Some(_), _) => Some("the breaker has tripped".to_owned()),
        (None, Some(over)) => Some(format!("budget: {over}")),
        (None, None) => None,
    };
    let who = drain_store_name(scheduler);
    if let Some(why) = halted {
        let outcome = LostDrainOutcome::NotRestored { why };
        log(&GateEvent::DrainsLost { store: who, nodes: list, outcome });
        return Ok(Vec::new());
    }
    let outcome = LostDrainOutcome::Restoring;
    log(&GateEvent::DrainsLost { store: who, nodes: list, outcome });
    let mut by_run: BTreeMap<String, Vec<Action>> = BTreeMap::new();
    let mut events = Vec::new();
    for (node, how) in &vanished.lost {
        let Some(drain) = journal.state().drains.get(node) else { continue };
        let (node, id, detail) = (node.clone(), drain.id.clone(), how.clone());
        events.push(JournalEvent::Lost { node, id, detail });
        let action = Action { command: Vec::new(), ..drain.action.clone() };
        by_run.entry(drain.run.clone()).or_default().push(action);
    }
    journal.append_all(events)?;
    let mut records = Vec::new();
    for (run, actions) in by_run {
        let plan = ActionPlan { dry_run: false, ..ActionPlan::from_actions(actions) };
        let carrier = Executor {
            scheduler,
            journal: &mut *journal,
            names,
            settle,
            log: &mut *log,
            stop: stop.clone(),
        };
        records.extend(executor::execute_plan_within(carrier, &run, &plan, kept).await?);
    }
    Ok(records)
}

/// The component that lost the drains.
pub(super) fn drain_store_name(scheduler: &dyn Scheduler) -> &'static str {
    if scheduler.has_conditional_writes() { "the cluster's store" } else { "the controller" }
}

#[cfg(test)]
#[path = "drain_restore_tests.rs"]
mod tests;
