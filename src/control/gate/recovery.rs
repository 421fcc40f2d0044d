//! After a crash: what was meant and never concluded is looked at, and either
//! concluded, left to whoever changed the node since, or dropped.
//!
//! Nothing is undone here that a person could have done, and nothing is done
//! again: that is for the turn at hand to propose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::sleep;

use super::clock::age_s;
use super::executor::Executor;
use super::journal::JournalError;
use super::verification::{ChangeObservation, is_condition_missing, verify_change};
use super::{certificates, clock};
use engine::policy::device;
use engine::policy::journal_state::OpenIntent;
use model::action::{Action, ActionKind, ActionRecord, ActionResult};
use model::id::NodeName;
use model::journal::JournalEvent;
use model::text;

/// What was told to a scheduler right before a crash may still be on its way:
/// a program that was started for it outlives ours.
const IN_TRANSIT: Duration = Duration::from_secs(1);

/// An intent younger than this is worth a second look, and one of a node that
/// the scheduler does not know is kept; in seconds.
const YOUNG_INTENT_S: f64 = 600.0;

/// How many times as long as a change usually takes to show one is waited for that
/// nobody answered: a controller that hangs does later what it was told.
const LATE_FACTOR: f64 = 3.0;

/// Why a certificate is void that a crash left valid.
const VOID_REASON: &str = "an earlier turn found it at fault";

/// How long a change may still be carried out whose sender is gone, where nobody says
/// otherwise: a link that stalls or a controller that hangs delivers it a minute later.
pub const DEFAULT_IN_FLIGHT_TIME: Duration = Duration::from_secs(90);

/// Concludes every intent that is open. To be called first in every turn.
/// What cannot be told yet stays open, and nothing is written about it: an intent that
/// does not show may still be `in_flight`, whatever else its node shows.
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
    // Whoever was killed between a drain and its certificate.
    let drained: Vec<NodeName> = carrier.journal.state().drains.keys().cloned().collect();
    certificates::void_all(carrier.journal.folder(), &drained, VOID_REASON, carrier.log);
    let open = carrier.journal.state().open_intents.clone();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    (carrier.log)(&format!("looking at {} actions that were begun and not concluded", open.len()));
    let now = clock::now();
    let mut found: BTreeMap<String, (ActionResult, String)> =
        open.iter().filter_map(|it| Some((it.id.clone(), of_one_gpu(&it.action)?))).collect();
    let mut untold: BTreeSet<String> = BTreeSet::new();
    for look in 0..2 {
        // Whoever was not done yet is looked at twice before that is said.
        let looked: Vec<&OpenIntent> = open
            .iter()
            .filter(|it| found.get(&it.id).is_none_or(|(said, _)| *said == ActionResult::Refused))
            .collect();
        if looked.is_empty()
            || (0 < look && looked.iter().all(|it| YOUNG_INTENT_S < age_s(&it.stamp, &now)))
        {
            break;
        }
        if 0 < look {
            sleep(on_its_way).await;
        }
        let mut nodes: Vec<NodeName> = looked.iter().map(|it| it.action.node.clone()).collect();
        nodes.sort();
        nodes.dedup();
        match carrier.scheduler.read_nodes(&nodes).await {
            Ok(live) => {
                for open in looked {
                    let node = live.nodes.get(&open.action.node);
                    if node.is_some_and(|node| is_condition_missing(node, &open.change)) {
                        untold.insert(open.id.clone());
                    }
                    let sight = node.map(|node| verify_change(node, &open.before, &open.change));
                    let unread = live.troubles.first().map(String::as_str);
                    let times = if open.is_late { LATE_FACTOR } else { 0.0 };
                    let late_s = times * carrier.settle.as_secs_f64();
                    let late_s = late_s.max(in_flight.as_secs_f64());
                    let end = conclude_intent(sight, unread, age_s(&open.stamp, &now), late_s);
                    found.insert(open.id.clone(), end);
                }
            }
            Err(error) => {
                let why = format!("the scheduler does not say how the node is: {error}");
                for open in looked {
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
        if result == ActionResult::Done && untold.contains(&open.id) {
            events.push(JournalEvent::Condition { id: open.id, node: of_node, shown: false });
        }
    }
    carrier.journal.append_all(events)?;
    let faults = certificates::faulty_nodes(&records);
    certificates::void_all(carrier.journal.folder(), faults, VOID_REASON, carrier.log);
    Ok(records)
}

/// How an intent of an earlier version ends that was to take out one GPU alone: whatever
/// became of it, nothing here would go on with it.
fn of_one_gpu(action: &Action) -> Option<(ActionResult, String)> {
    let mark = action.device.as_ref().filter(|_| action.kind == ActionKind::Drain)?;
    let why = format!(
        "an earlier version began to take out {} alone, which this one neither does nor takes back",
        device::describe_cordon(mark)
    );
    Some((ActionResult::Superseded, why))
}

/// How an intent ended, by what its node shows. Where something of the answer
/// was not read, who is missing there may be known to the scheduler.
fn conclude_intent(
    sight: Option<ChangeObservation>,
    unread: Option<&str>,
    age: f64,
    late_s: f64,
) -> (ActionResult, String) {
    match (sight, unread) {
        (Some(ChangeObservation::Applied(now)), _) => {
            (ActionResult::Done, format!("found after a restart: {now}"))
        }
        // It would be written over what stands there.
        (Some(ChangeObservation::Overwritten(now)), _) if age < late_s => (
            ActionResult::Unknown,
            format!("somebody else changed it since, and ours may yet be done: {now}"),
        ),
        (Some(ChangeObservation::Overwritten(now)), _) => {
            (ActionResult::Superseded, format!("somebody else changed it since: {now}"))
        }
        (Some(ChangeObservation::Missing(now)), _) if age < late_s => (
            ActionResult::Unknown,
            format!("its sender is gone or heard nothing, and it may yet be done: {now}"),
        ),
        (Some(ChangeObservation::Missing(now)), _) => {
            (ActionResult::Refused, format!("never carried out: {now}"))
        }
        (None, Some(why)) => (ActionResult::Unknown, format!("the node could not be read: {why}")),
        (None, None) if age <= YOUNG_INTENT_S => {
            (ActionResult::Unknown, "the scheduler does not know the node now".to_owned())
        }
        (None, None) => {
            let why = "dropped: the scheduler no longer knows the node".to_owned();
            (ActionResult::Refused, why)
        }
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
