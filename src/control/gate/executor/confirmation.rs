//! Confirms changes: first until they are visible, then once more when they can no longer
//! be lost.
//!
//! [`verify_change`] compares node and change; the scheduler's acknowledgement has no
//! influence on that.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{PlanExecution, StartedAction, permit_state_change};
use crate::gate::gate_event::GateEvent;
use crate::gate::journal::JournalError;
use crate::gate::scheduler::SchedulerError;
use crate::gate::verification;
use crate::gate::verification::{ChangeObservation, verify_change};
use engine::policy::node_state;
use model::action::ActionResult;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use model::{hostlist, text};

/// First and longest interval between readings of a node.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl<'p> PlanExecution<'_, 'p> {
    /// Reads nodes until each shows the change or a conflicting one, or until the
    /// timeout.
    pub(super) async fn poll_nodes(
        &self,
        begun: &[StartedAction<'p>],
        patience: Duration,
        until: ObservationGoal,
    ) -> NodeObservations {
        let deadline = Instant::now() + patience;
        let mut seen = NodeObservations::default();
        let mut pause = POLL_INTERVALS.0;
        loop {
            let is_open = |begun: &&StartedAction<'_>| match seen.nodes.get(&begun.item.action.node)
            {
                Some((ChangeObservation::Missing(_), node)) => {
                    until == ObservationGoal::Applied || node_state::is_transient(node)
                }
                Some(_) => false,
                None => true,
            };
            let open: Vec<&StartedAction<'p>> = begun.iter().filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            let nodes: Vec<NodeName> = open.iter().map(|it| it.item.action.node.clone()).collect();
            match self.executor.scheduler.read_nodes(&nodes).await {
                Ok(live) => {
                    seen.scheduler_failure = None;
                    seen.unread = live.troubles.first().cloned();
                    for begun in open {
                        let name = &begun.item.action.node;
                        match live.nodes.get(name) {
                            Some(node) => {
                                let observation = verify_change(node, &begun.before, &begun.change);
                                seen.nodes.insert(name.clone(), (observation, node.clone()));
                            }
                            None => {
                                seen.nodes.remove(name);
                            }
                        }
                    }
                }
                Err(error) => seen.scheduler_failure = Some(error),
            }
            if deadline <= Instant::now() {
                break;
            }
            sleep(pause.min(deadline - Instant::now())).await;
            pause = (2 * pause).min(POLL_INTERVALS.1);
        }
        seen
    }

    /// Reads state changes again when they can no longer be lost. A lost change is
    /// repeated once.
    pub(super) async fn confirm_changes(&mut self) -> Result<(), JournalError> {
        // Scheduler results of the repeated changes, by intent.
        let mut again: BTreeMap<String, Result<(), SchedulerError>> = BTreeMap::new();
        loop {
            let pending = std::mem::take(&mut self.pending);
            if pending.is_empty() {
                return Ok(());
            }
            if !self.persist_time.is_zero() {
                (self.executor.log)(&GateEvent::UpdatesPersisting);
            }
            sleep_until(self.last_change + self.persist_time).await;
            let seen =
                self.poll_nodes(&pending, self.executor.settle, ObservationGoal::Settled).await;
            let is_lost = |begun: &StartedAction<'_>| {
                matches!(seen.change_observation(begun), Some(ChangeObservation::Missing(_)))
            };
            let controller = match pending.iter().any(is_lost) {
                true => self.record_controller_start().await?,
                false => None,
            };
            let mut undone = Vec::new();
            let mut concluded = Vec::new();
            let mut lost: BTreeMap<NodeUpdate, Vec<StartedAction<'p>>> = BTreeMap::new();
            for begun in pending {
                let second = again.get(&begun.id);
                let (result, detail) = match seen.change_observation(&begun) {
                    _ if seen.scheduler_failure.is_some() => {
                        let last = explain_missing_change(None, &Ok(()), &seen);
                        (ActionResult::Unknown, last.1)
                    }
                    Some(ChangeObservation::Applied(detail)) if second.is_some() => {
                        (ActionResult::Done, format!("{detail}; repeated after it was lost"))
                    }
                    Some(ChangeObservation::Applied(detail)) => (ActionResult::Done, detail),
                    Some(ChangeObservation::Overwritten(detail)) => {
                        (ActionResult::Superseded, detail)
                    }
                    Some(ChangeObservation::Missing(detail))
                        if self.was_undone(&begun, &seen, controller.as_ref()) =>
                    {
                        undone.push((begun, detail));
                        continue;
                    }
                    Some(ChangeObservation::Missing(detail)) => {
                        match (second, self.explain_no_repeat(&begun, &seen)) {
                            (Some(Ok(())), _) => (
                                ActionResult::Failed,
                                format!("acknowledged twice but not visible: {detail}"),
                            ),
                            // After a timeout the scheduler may still apply it.
                            (Some(answer), _) => explain_missing_change(
                                Some(&ChangeObservation::Missing(detail)),
                                answer,
                                &seen,
                            ),
                            (None, Some(why)) => {
                                (ActionResult::Failed, format!("lost, {detail}: {why}"))
                            }
                            (None, None) => {
                                lost.entry(begun.change.clone()).or_default().push(begun);
                                continue;
                            }
                        }
                    }
                    None => (ActionResult::Unknown, "the scheduler no longer lists it".to_owned()),
                };
                concluded.push((begun, result, detail));
            }
            self.conclude_actions(concluded, &seen)?;
            self.record_undone(undone)?;
            for (change, lost) in lost {
                let nodes: Vec<NodeName> =
                    lost.iter().map(|it| it.item.action.node.clone()).collect();
                let list = hostlist::fold(nodes.iter().map(NodeName::as_str));
                (self.executor.log)(&GateEvent::UpdateLost { nodes: list });
                // The intent stays open in the journal meanwhile.
                let now = seen.to_snapshot(&nodes);
                let result =
                    self.executor.scheduler.update_nodes_if_unchanged(&nodes, &change, &now).await;
                again.extend(lost.iter().map(|it| (it.id.clone(), result.clone())));
                self.last_change = Instant::now();
                self.pending.extend(lost);
            }
        }
    }

    /// Whether an operator removed the drain that was just made: the controller loses
    /// state only in a restart, and an operator's RESUME keeps fabricgate's entry in
    /// Extra.
    fn was_undone(
        &self,
        begun: &StartedAction<'_>,
        seen: &NodeObservations,
        controller: Option<&String>,
    ) -> bool {
        let is_drain = matches!(begun.change.state, Some(NodeStateChange::Drain { .. }));
        let Some((_, node)) = seen.nodes.get(&begun.item.action.node).filter(|_| is_drain) else {
            return false;
        };
        let extra = begun.change.extra.as_ref();
        if extra.is_some_and(|extra| *extra == node.extra) {
            return true;
        }
        let is_same = self.controller_start.as_ref().zip(controller).map(|(then, now)| then == now);
        begun.was_observed && is_same.unwrap_or(extra.is_none())
    }

    /// Journals drains that an operator undid right after they were made. They are
    /// respected like any other undo.
    fn record_undone(
        &mut self,
        undone: Vec<(StartedAction<'p>, String)>,
    ) -> Result<(), JournalError> {
        let mut events = Vec::new();
        for (begun, now) in &undone {
            let detail = format!("it was visible, then removed: {now}");
            let (node, id) = (begun.item.action.node.clone(), begun.id.clone());
            let (result, detail) = (ActionResult::Done, text::clean(&detail));
            events.push(JournalEvent::Outcome { id: id.clone(), result, detail: detail.clone() });
            events.push(JournalEvent::Undone { node, id, detail });
        }
        self.executor.journal.append_all(events)?;
        for (begun, now) in undone {
            self.unjournaled.remove(&begun.item.action.node);
            let detail = format!("undone by hand immediately, which is respected: {now}");
            self.record_result(begun.item, ActionResult::Superseded, &detail);
        }
        Ok(())
    }

    /// Why a lost change must not be repeated.
    fn explain_no_repeat(
        &self,
        begun: &StartedAction<'_>,
        seen: &NodeObservations,
    ) -> Option<String> {
        let (_, node) = seen.nodes.get(&begun.item.action.node)?;
        let journal = &*self.executor.journal;
        let state = permit_state_change(
            begun.item.action,
            node,
            journal.state(),
            self.run,
            journal.epoch(),
        );
        match state {
            Ok(state) if state == begun.change.state => None,
            Ok(_) => Some("the node has changed since".to_owned()),
            Err((_, why)) => Some(why),
        }
    }
}

/// When polling of a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObservationGoal {
    /// Polls until the change is visible: it may still arrive.
    Applied,
    /// The change is visible or lost by now. Polls only nodes in a transient state: after
    /// a restart of the controller, a node's state is meaningless for some seconds.
    Settled,
}

/// The last reading of each node.
#[derive(Debug, Default)]
pub(super) struct NodeObservations {
    nodes: BTreeMap<NodeName, (ChangeObservation, SchedulerNode)>,
    /// Set if the last reading failed.
    pub(super) scheduler_failure: Option<SchedulerError>,
    /// The unreadable part of the last answer: a node missing there may still be known to
    /// the scheduler.
    unread: Option<String>,
}

impl NodeObservations {
    /// The last reading of these nodes.
    fn to_snapshot(&self, nodes: &[NodeName]) -> SchedulerSnapshot {
        let node = |name: &NodeName| Some((name.clone(), self.nodes.get(name)?.1.clone()));
        SchedulerSnapshot { nodes: nodes.iter().filter_map(node).collect(), troubles: Vec::new() }
    }

    /// Whether the server did not apply the condition of the change.
    pub(super) fn is_condition_missing(&self, begun: &StartedAction<'_>) -> bool {
        let seen = self.nodes.get(&begun.item.action.node);
        seen.is_some_and(|(_, node)| verification::is_condition_missing(node, &begun.change))
    }

    pub(super) fn change_observation(
        &self,
        begun: &StartedAction<'_>,
    ) -> Option<ChangeObservation> {
        self.nodes.get(&begun.item.action.node).map(|(observation, _)| observation.clone())
    }
}

/// The outcome of an action whose change is not visible.
pub(super) fn explain_missing_change(
    last: Option<&ChangeObservation>,
    answer: &Result<(), SchedulerError>,
    seen: &NodeObservations,
) -> (ActionResult, String) {
    let now = match last {
        Some(ChangeObservation::Missing(now)) => now.as_str(),
        _ => "the scheduler does not list the node",
    };
    match (answer, seen.scheduler_failure.as_ref()) {
        (Err(refusal), Some(error)) => (
            ActionResult::Unknown,
            format!("{refusal}; then the check of the node failed: {error}"),
        ),
        (Ok(()), Some(error)) => (
            ActionResult::Unknown,
            format!("acknowledged; then the check of the node failed: {error}"),
        ),
        // After a timeout the scheduler may still apply it.
        (Err(refusal), None) if refusal.kind == SourceProblemKind::Unreachable => {
            (ActionResult::Unknown, format!("{refusal}; not visible yet: {now}"))
        }
        (Err(refusal), None) => match &seen.unread {
            Some(unread) if last.is_none() => {
                (ActionResult::Unknown, format!("{refusal}; then it could not be read: {unread}"))
            }
            _ => (ActionResult::Failed, format!("{refusal}; not visible: {now}")),
        },
        (Ok(()), None) if last.is_none() => (ActionResult::Unknown, now.to_owned()),
        (Ok(()), None) => (ActionResult::Failed, format!("acknowledged but not visible: {now}")),
    }
}
