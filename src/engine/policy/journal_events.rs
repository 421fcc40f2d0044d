//! Events about earlier actions of fabricgate that follow from the scheduler's state and a run: a
//! user removed a drain, a drained node passed or failed again; and nodes that were suspected to be
//! slow and no longer are.
//!
//! Pure: it returns the events for the journal; `gate` writes them.

use super::action_policy::Policy;
use super::journal_state::OwnDrain;
use super::situation::SchedulerKind;
use super::situation::Situation;
use super::{
    evidence_checks, lost_drains, release, repeat_confirmation, restored_store, stale_journal,
};
use model::action::ActionPlan;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::Outcome;

/// Events to record before decisions are made, each once.
pub fn collect_events(situation: &Situation<'_>, policy: &Policy) -> Vec<JournalEvent> {
    let mut events = presence_events(situation);
    let vanished = situation
        .live
        .map(|live| lost_drains::find_lost_drains(live, situation.ledger, &policy.marks))
        .unwrap_or_default();
    for (node, drain) in &situation.ledger.drains {
        // A drain lost by the scheduler is repeated; no user undid it.
        if vanished.lost.contains_key(node) && !is_restored_and_passes(situation, policy, node) {
            continue;
        }
        if let Some(event) = release_event(situation, node, drain) {
            events.push(event);
            continue;
        }
        match undo_event(situation, policy, node, drain) {
            Some(event) => events.push(event),
            None => events.extend(clean_run_event(situation, policy, node, drain)),
        }
    }
    let verdicts = &situation.verdicts.nodes;
    for verdict in verdicts.iter().filter(|it| it.outcome == Outcome::Pass) {
        let Some(suspicion) = situation.ledger.suspicions.get(&verdict.node) else { continue };
        if repeat_confirmation::can_clear(situation, policy, suspicion) {
            events.push(JournalEvent::Cleared {
                node: verdict.node.clone(),
                run: situation.run.id.clone(),
                measured: situation.run.created_unix,
            });
        }
    }
    events
}

/// Nodes that a plan leaves in service until a second run confirms the first finding of this one.
pub fn collect_suspicions(situation: &Situation<'_>, plan: &ActionPlan) -> Vec<JournalEvent> {
    let run = situation.run;
    let first = plan.withheld.iter().filter_map(|withheld| {
        let again = withheld.again.as_ref().filter(|again| again.first == run.id)?;
        let node = NodeName::from(withheld.what.as_str());
        let known = situation.ledger.suspicions.get(&node);
        known.is_none_or(|suspicion| suspicion.run != run.id).then(|| JournalEvent::Suspected {
            boot_id: situation.boots.get(&node).cloned(),
            node,
            run: run.id.clone(),
            measured: run.created_unix,
            classes: again.classes.clone(),
        })
    });
    first.collect()
}

/// A drain that a later turn released, which this older journal does not contain.
fn release_event(
    situation: &Situation<'_>,
    node: &NodeName,
    drain: &OwnDrain,
) -> Option<JournalEvent> {
    let live = lost_drains::find_undrained(situation.live?, situation.ledger, node, drain)?;
    let newer = stale_journal::newer_mark(live, situation.ledger)?;
    let why = format!("the drain is missing, and the node carries a mark of run {}", newer.run);
    Some(JournalEvent::Forgotten { node: node.clone(), by: "fabricgate".to_owned(), why })
}

/// After a store was restored, a full run that passes ends a drain that was not repeated.
fn is_restored_and_passes(situation: &Situation<'_>, policy: &Policy, node: &NodeName) -> bool {
    let live = situation.live.and_then(|live| live.nodes.get(node));
    live.is_some_and(|live| SchedulerKind::from_node(live) == SchedulerKind::Kubernetes)
        && has_passed(situation, policy, node)
}

/// A drain that another party removed or took over.
fn undo_event(
    situation: &Situation<'_>,
    policy: &Policy,
    node: &NodeName,
    drain: &OwnDrain,
) -> Option<JournalEvent> {
    let live = lost_drains::find_undrained(situation.live?, situation.ledger, node, drain)?;
    // The drain stays recorded until a run shows the node's state again.
    if restored_store::is_before_drain(live, drain, situation.ledger)
        && !has_passed(situation, policy, node)
    {
        return None;
    }
    let (node, id, detail) = (node.clone(), drain.id.clone(), describe_node(live));
    Some(JournalEvent::Undone { node, id, detail })
}

/// Drained nodes that appeared in or disappeared from the scheduler. If a part of its answer
/// could not be read, a missing node may still exist.
fn presence_events(situation: &Situation<'_>) -> Vec<JournalEvent> {
    let ledger = situation.ledger;
    let Some(live) = situation.live else { return Vec::new() };
    let change = |node: &NodeName| {
        let (is_there, was_gone) =
            (live.nodes.contains_key(node), ledger.absent_nodes.contains_key(node));
        match (is_there, was_gone) {
            (false, false) if live.troubles.is_empty() => {
                Some(JournalEvent::Absent { node: node.clone() })
            }
            (true, true) => Some(JournalEvent::Present { node: node.clone() }),
            _ => None,
        }
    };
    ledger.drains.keys().filter_map(change).collect()
}

/// Whether this is a full run that the node passed.
fn has_passed(situation: &Situation<'_>, policy: &Policy, node: &NodeName) -> bool {
    let mut nodes = situation.verdicts.nodes.iter();
    let passed = nodes.any(|it| it.node == *node && it.outcome == Outcome::Pass);
    passed && release::is_full_run(situation.run, policy)
}

fn describe_node(live: &SchedulerNode) -> String {
    let words: Vec<String> = live.state.iter().map(|word| clean(word)).collect();
    let state = words.join("+");
    let reason = live.reason.as_deref().map(clean).filter(|reason| !reason.is_empty());
    let by = live.reason_by.as_deref().map(|by| format!(" by {}", clean(by))).unwrap_or_default();
    match reason {
        Some(reason) => format!("it is {state}, its reason \"{reason}\"{by}"),
        None => format!("it is {state}, without a reason"),
    }
}

/// A full run that the drained node passed: complete, of real nodes, and under a profile that
/// measures everything.
fn clean_run_event(
    situation: &Situation<'_>,
    policy: &Policy,
    node: &NodeName,
    drain: &OwnDrain,
) -> Option<JournalEvent> {
    let run = situation.run;
    // An audit covers only idle nodes, and an admission only quick tests.
    let is_whole = release::is_full_run(run, policy);
    let begun = evidence_checks::moment_unix(&drain.stamp, situation.now);
    let is_later = begun < run.created_unix && run.id != drain.run;
    let is_noted = drain.clean.iter().any(|clean| clean.run == run.id);
    let verdict = situation.verdicts.nodes.iter().find(|verdict| verdict.node == *node)?;
    // A measurement from before a boot does not apply to the node after it.
    let live = situation.live.and_then(|live| live.nodes.get(node));
    let is_of_before =
        live.is_some_and(|live| evidence_checks::explain_other_boot(situation, live).is_some());
    let boot_id = situation.boots.get(node).cloned();
    let (node, run_id, measured) = (node.clone(), run.id.clone(), run.created_unix);
    match verdict.outcome {
        Outcome::Pass => (is_whole && is_later && !is_noted && !is_of_before)
            .then_some(JournalEvent::Clean { node, run: run_id, measured, boot_id }),
        // The clean runs before an intermittent fault returns do not cure it.
        Outcome::Degraded | Outcome::Failed => {
            let counts = is_later && release::is_eligible_run(run, policy);
            let had_passed = drain.clean.iter().any(|clean| clean.measured <= measured);
            (counts && had_passed).then_some(JournalEvent::Relapsed { node, run: run_id, measured })
        }
        Outcome::Unknown => None,
    }
}

#[cfg(test)]
#[path = "journal_events_tests.rs"]
mod tests;
