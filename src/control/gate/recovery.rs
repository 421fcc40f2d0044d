//! Recovery after a crash: every intent without an outcome is checked against its node.
//! It is then concluded, left to the writer that changed the node since, or dropped.
//!
//! Recovery never undoes a change that an operator could have made and never repeats an
//! action; the current turn proposes it again if it is still needed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::sleep;

use super::clock::age_s;
use super::executor::Executor;
use super::journal::JournalError;
use super::verification::{ChangeObservation, is_condition_missing, verify_change};
use super::{certificates, clock};
use crate::gate::gate_event::GateEvent;
use engine::policy::device;
use engine::policy::journal_state::OpenIntent;
use model::action::{Action, ActionKind, ActionRecord, ActionResult};
use model::id::NodeName;
use model::journal::JournalEvent;
use model::text;

/// A request sent right before a crash may still be in transit: a child process started
/// to send it outlives the gate.
const IN_TRANSIT: Duration = Duration::from_secs(1);

/// In seconds. A younger intent is checked a second time, and is kept if the scheduler
/// does not know its node.
const YOUNG_INTENT_S: f64 = 600.0;

/// Multiple of the usual settle time to wait for a change that was never answered: a
/// controller that hangs applies a request later.
const LATE_FACTOR: f64 = 3.0;

/// Void reason of certificates that a crash left valid.
const VOID_REASON: &str = "an earlier turn found it faulty";

/// Default for how long a change may still be applied after its sender is gone: a stalled
/// link or a hung controller can deliver it a minute later.
pub const DEFAULT_IN_FLIGHT_TIME: Duration = Duration::from_secs(90);

/// Concludes every open intent. Call it first in every turn. An intent that cannot be
/// decided yet stays open, without a journal line: a change that is not visible may still
/// be `in_flight`, whatever else the node shows.
pub async fn recover_intents(
    carrier: Executor<'_>,
    in_flight: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    recover_intents_after(carrier, IN_TRANSIT, in_flight).await
}

async fn recover_intents_after(
    carrier: Executor<'_>,
    on_its_way: Duration,
    in_flight: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    // The process may have been killed between a drain and voiding the certificate.
    let drained: Vec<NodeName> = carrier.journal.state().drains.keys().cloned().collect();
    certificates::void_all(carrier.journal.folder(), &drained, VOID_REASON, carrier.log);
    let open = carrier.journal.state().open_intents.clone();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    (carrier.log)(&GateEvent::OpenActions { count: open.len() });
    let now = clock::now();
    let mut found: BTreeMap<String, (ActionResult, String)> =
        open.iter().filter_map(|it| Some((it.id.clone(), of_one_gpu(&it.action)?))).collect();
    let mut without_condition: BTreeSet<String> = BTreeSet::new();
    for attempt in 0..2 {
        // Two readings must agree before an intent counts as not done.
        let checked: Vec<&OpenIntent> = open
            .iter()
            .filter(|it| {
                found.get(&it.id).is_none_or(|(result, _)| *result == ActionResult::Refused)
            })
            .collect();
        if checked.is_empty()
            || (0 < attempt && checked.iter().all(|it| YOUNG_INTENT_S < age_s(&it.stamp, &now)))
        {
            break;
        }
        if 0 < attempt {
            sleep(on_its_way).await;
        }
        let mut nodes: Vec<NodeName> = checked.iter().map(|it| it.action.node.clone()).collect();
        nodes.sort();
        nodes.dedup();
        match carrier.scheduler.read_nodes(&nodes).await {
            Ok(live) => {
                for open in checked {
                    let node = live.nodes.get(&open.action.node);
                    if node.is_some_and(|node| is_condition_missing(node, &open.change)) {
                        without_condition.insert(open.id.clone());
                    }
                    let observation =
                        node.map(|node| verify_change(node, &open.before, &open.change));
                    let unread = live.troubles.first().map(String::as_str);
                    let times = if open.is_late { LATE_FACTOR } else { 0.0 };
                    let late_s = times * carrier.settle.as_secs_f64();
                    let late_s = late_s.max(in_flight.as_secs_f64());
                    let end =
                        conclude_intent(observation, unread, age_s(&open.stamp, &now), late_s);
                    found.insert(open.id.clone(), end);
                }
            }
            Err(error) => {
                let why = format!("the scheduler did not report the node's state: {error}");
                for open in checked {
                    found.insert(open.id.clone(), (ActionResult::Unknown, why.clone()));
                }
            }
        }
    }
    let mut events = Vec::new();
    let mut records = Vec::new();
    for open in open {
        let Some((result, detail)) = found.remove(&open.id) else { continue };
        let detail = text::clean(&detail);
        let (kind, node, at) = (open.action.kind, open.action.node, now.at.clone());
        let of_node = node.clone();
        records.push(ActionRecord { kind, node, result, detail: detail.clone(), at });
        if result != ActionResult::Unknown {
            events.push(JournalEvent::Outcome { id: open.id.clone(), result, detail });
        }
        if result == ActionResult::Done && without_condition.contains(&open.id) {
            events.push(JournalEvent::Condition { id: open.id, node: of_node, shown: false });
        }
    }
    carrier.journal.append_all(events)?;
    let faults = certificates::faulty_nodes(&records);
    certificates::void_all(carrier.journal.folder(), faults, VOID_REASON, carrier.log);
    Ok(records)
}

/// Outcome of an intent of an earlier version that takes out a single GPU. This version
/// never continues such an action, whatever its result was.
fn of_one_gpu(action: &Action) -> Option<(ActionResult, String)> {
    let mark = action.device.as_ref().filter(|_| action.kind == ActionKind::Drain)?;
    let why = format!(
        "an earlier version began to take out only {}; this one neither does that nor undoes it",
        device::describe_cordon(mark)
    );
    Some((ActionResult::Superseded, why))
}

/// Outcome of an intent, from its node's current state. If a part of the answer was
/// unreadable, a missing node may still be known to the scheduler.
fn conclude_intent(
    observation: Option<ChangeObservation>,
    unread: Option<&str>,
    age: f64,
    late_s: f64,
) -> (ActionResult, String) {
    match (observation, unread) {
        (Some(ChangeObservation::Applied(now)), _) => {
            (ActionResult::Done, format!("found after a restart: {now}"))
        }
        // A late write would overwrite the current content.
        (Some(ChangeObservation::Overwritten(now)), _) if age < late_s => (
            ActionResult::Unknown,
            format!("another writer changed it; fabricgate's change may still be applied: {now}"),
        ),
        (Some(ChangeObservation::Overwritten(now)), _) => {
            (ActionResult::Superseded, format!("another writer changed it since: {now}"))
        }
        (Some(ChangeObservation::Missing(now)), _) if age < late_s => (
            ActionResult::Unknown,
            format!("its sender is gone or got no answer, and it may still be applied: {now}"),
        ),
        (Some(ChangeObservation::Missing(now)), _) => {
            (ActionResult::Refused, format!("never carried out: {now}"))
        }
        (None, Some(why)) => (ActionResult::Unknown, format!("the node could not be read: {why}")),
        (None, None) if age <= YOUNG_INTENT_S => {
            (ActionResult::Unknown, "the scheduler does not list the node".to_owned())
        }
        (None, None) => {
            let why = "dropped: the scheduler no longer lists the node".to_owned();
            (ActionResult::Refused, why)
        }
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
