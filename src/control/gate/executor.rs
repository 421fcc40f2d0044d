//! Executes an action plan: writes the intents, reads the nodes again, applies the
//! changes that are still allowed, waits until they are visible, and writes the outcomes.
//!
//! The decisions come from `engine::policy`. Nodes with the same change share one call.
//! Between the reading and the change another writer has a window of some milliseconds:
//! Slurm has no compare-and-set. Kubernetes has one, and gets the state as it was read.

mod confirmation;
mod events;
mod preconditions;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::clock;
use super::journal::{Journal, JournalError};
use super::scheduler::{Scheduler, SchedulerError, SchedulerFuture};
use super::verification::{ChangeObservation, describe_node};
use crate::gate::gate_event::GateEvent;
use confirmation::{NodeObservations, ObservationGoal, explain_missing_change};
use engine::policy::marks;
use engine::policy::marks::MarkNames;
use model::action::{Action, ActionKind, ActionPlan, ActionRecord, ActionResult};
use model::id::NodeName;
use model::journal::JournalEvent;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use model::text;
use preconditions::{add_gate_annotation, permit_state_change};

/// Default time for a change to become visible: Slurm's MessageTimeout, after which every
/// request was received.
pub const DEFAULT_SETTLE_TIME: Duration = Duration::from_secs(10);

/// A state change that slurmctld acknowledged is lost if slurmctld is killed before it
/// saves its state: within 1 s if idle, 4.0 to 4.2 s later under constant updates (26.05,
/// observed).
pub const DEFAULT_PERSIST_TIME: Duration = Duration::from_secs(6);

/// Settle time after a refusal: no change is expected, and a partly applied list is
/// visible immediately.
const REFUSAL_SETTLE_TIME: Duration = Duration::from_secs(1);

/// Groups that start concurrently if nodes are written one by one. A stop request takes
/// effect between two such batches.
const MAX_CONCURRENT_GROUPS: usize = 256;

/// Maximum age of the reading that a change is based on: another writer may change nodes
/// meanwhile, and Slurm has no compare-and-set.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(1);

/// Distinct errors of one batch that are logged immediately; each action also has its
/// record.
const MAX_REPORTED_ERRORS: usize = 5;

/// How often to read nodes again that other writers keep changing.
const MAX_REREADS: usize = 3;

/// Everything needed to execute a plan.
#[expect(missing_debug_implementations, reason = "a callback has no Debug")]
pub struct Executor<'a> {
    /// The scheduler that is changed.
    pub scheduler: &'a dyn Scheduler,
    /// The journal of intents and outcomes.
    pub journal: &'a mut Journal,
    /// The site's names for labels, taints and features on nodes.
    pub names: &'a MarkNames,
    /// Time for a change to become visible; see [`DEFAULT_SETTLE_TIME`].
    pub settle: Duration,
    /// Receives the events of the execution.
    pub log: &'a mut dyn FnMut(&GateEvent),
    /// Becomes true when no further action may begin. Actions in progress are still
    /// checked and journaled.
    pub stop: watch::Receiver<bool>,
}

/// Executes the plan of a run. Every action gets a record, in plan order, including those
/// not tried.
///
/// An error means that the journal could not be written. Actions begun before it have
/// open intents there, and the next turn checks them.
pub async fn execute_plan(
    carrier: Executor<'_>,
    run: &str,
    plan: &ActionPlan,
) -> Result<Vec<ActionRecord>, JournalError> {
    execute_plan_within(carrier, run, plan, DEFAULT_PERSIST_TIME).await
}

/// Like `execute_plan`, with the time that the scheduler needs to persist a change.
pub async fn execute_plan_within(
    carrier: Executor<'_>,
    run: &str,
    plan: &ActionPlan,
    kept: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    execute_plan_timed(carrier, run, plan, kept, MAX_SNAPSHOT_AGE).await
}

async fn execute_plan_timed(
    carrier: Executor<'_>,
    run: &str,
    plan: &ActionPlan,
    kept: Duration,
    slow: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    let mut turn = PlanExecution {
        executor: carrier,
        run,
        persist_time: kept,
        max_snapshot_age: slow,
        records: BTreeMap::new(),
        pending: Vec::new(),
        last_change: Instant::now(),
        scheduler_failure: None,
        controller_start: None,
        unjournaled: BTreeMap::new(),
    };
    let done = turn.run_plan(plan).await;
    if done.is_err() {
        turn.report_unjournaled();
    }
    done?;
    Ok(turn.records.into_values().collect())
}

/// Releases and marks first, then drains, the worst nodes first and those of one domain
/// together.
fn compare_priority(a: &Action, b: &Action) -> Ordering {
    let rank = |action: &Action| match action.kind {
        ActionKind::Release => 0,
        ActionKind::Certify => 1,
        ActionKind::Relabel => 2,
        ActionKind::Drain => 3,
    };
    let outcome = |action: &Action| action.mark.as_ref().map(|mark| mark.outcome);
    // A node without any measurement ranks below every ratio.
    let ratio = |action: &Action| action.ratio.unwrap_or(0.0);
    rank(a)
        .cmp(&rank(b))
        .then_with(|| outcome(b).cmp(&outcome(a)))
        .then_with(|| ratio(a).total_cmp(&ratio(b)))
        .then_with(|| a.domain.cmp(&b.domain))
        .then_with(|| a.node.cmp(&b.node))
}

/// An action with its index in the plan.
#[derive(Clone, Copy)]
struct PlannedAction<'p> {
    at: usize,
    action: &'p Action,
}

/// An action whose preconditions hold now.
struct ReadyAction<'p> {
    item: PlannedAction<'p>,
    before: SchedulerNode,
}

/// Actions with the same change.
struct UpdateGroup<'p> {
    change: NodeUpdate,
    ready: Vec<ReadyAction<'p>>,
}

impl UpdateGroup<'_> {
    /// Arguments of the scheduler call: the nodes, the change, and the nodes as they were
    /// when it was decided.
    fn update_call(&self) -> (Vec<NodeName>, NodeUpdate, SchedulerSnapshot) {
        let nodes = self.ready.iter().map(|it| it.item.action.node.clone()).collect();
        let seen = self.ready.iter().map(|it| (it.before.name.clone(), it.before.clone()));
        (
            nodes,
            self.change.clone(),
            SchedulerSnapshot { nodes: seen.collect(), troubles: Vec::new() },
        )
    }
}

/// An action that began: its intent is in the journal.
struct StartedAction<'p> {
    item: PlannedAction<'p>,
    id: String,
    change: NodeUpdate,
    before: SchedulerNode,
    /// The change was visible on the node at least once.
    was_observed: bool,
}

/// State of a plan's execution.
struct PlanExecution<'a, 'p> {
    executor: Executor<'a>,
    run: &'p str,
    persist_time: Duration,
    /// Maximum age of the reading that a change is based on.
    max_snapshot_age: Duration,
    /// By index in the plan.
    records: BTreeMap<usize, ActionRecord>,
    /// State changes that are visible or acknowledged, but not yet persisted by the
    /// scheduler.
    pending: Vec<StartedAction<'p>>,
    last_change: Instant,
    /// Why no further action is tried: the scheduler does not answer.
    scheduler_failure: Option<String>,
    /// Controller start time before the first change.
    controller_start: Option<String>,
    /// Nodes whose state was or may have been changed, without an outcome in the journal
    /// yet.
    unjournaled: BTreeMap<NodeName, ActionKind>,
}

impl<'p> PlanExecution<'_, 'p> {
    async fn run_plan(&mut self, plan: &'p ActionPlan) -> Result<(), JournalError> {
        let mut todo = self.valid_actions(plan);
        todo.sort_by(|a, b| compare_priority(a.action, b.action));
        if todo.iter().any(|item| item.action.kind == ActionKind::Drain) {
            self.controller_start = self.record_controller_start().await?;
        }
        while let Some(PlannedAction { action: Action { kind, .. }, .. }) = todo.first() {
            let kind = *kind;
            let end = todo.iter().position(|item| item.action.kind != kind).unwrap_or(todo.len());
            let later = todo.split_off(end);
            self.run_stage(std::mem::replace(&mut todo, later)).await?;
        }
        self.confirm_changes().await
    }

    /// Reads the controller's start time and journals it if it is new.
    async fn record_controller_start(&mut self) -> Result<Option<String>, JournalError> {
        let started = self.executor.scheduler.read_start_time().await.ok().flatten();
        write_controller_start(self.executor.journal, started.as_ref())?;
        Ok(started)
    }

    /// Logs changes without a journaled outcome, for example because the disk is full.
    fn report_unjournaled(&mut self) {
        for event in events::unjournaled_outcomes(&self.unjournaled) {
            (self.executor.log)(&event);
        }
    }

    /// Actions that are consistent with each other; a plan may come from an edited file.
    fn valid_actions(&mut self, plan: &'p ActionPlan) -> Vec<PlannedAction<'p>> {
        let mut kinds: BTreeMap<&NodeName, BTreeSet<ActionKind>> = BTreeMap::new();
        for action in &plan.actions {
            kinds.entry(&action.node).or_default().insert(action.kind);
        }
        let mut seen = BTreeSet::new();
        let mut items = Vec::new();
        for (at, action) in plan.actions.iter().enumerate() {
            let item = PlannedAction { at, action };
            let own = &kinds[&action.node];
            let is_both = own.contains(&ActionKind::Drain) && own.contains(&ActionKind::Release);
            let takes = matches!(action.kind, ActionKind::Drain | ActionKind::Relabel);
            let why = match &plan.frozen {
                _ if !seen.insert((action.kind, &action.node)) => "the plan lists it twice",
                _ if is_both => "the plan would both drain and release it",
                Some(_) if takes => "the plan is frozen",
                _ => {
                    items.push(item);
                    continue;
                }
            };
            self.record_result(item, ActionResult::Refused, why);
        }
        items
    }

    /// Sets the final record of an action.
    fn record_result(&mut self, item: PlannedAction<'_>, result: ActionResult, detail: &str) {
        let Action { kind, node, .. } = item.action;
        let (kind, node, at) = (*kind, node.clone(), clock::now().at);
        let detail = text::clean(detail);
        self.records.insert(item.at, ActionRecord { kind, node, result, detail, at });
    }

    /// Why no further action may begin.
    fn halt_reason(&self) -> Option<String> {
        let stopped = || self.executor.stop.borrow().then(|| "asked to stop".to_owned());
        self.scheduler_failure.clone().or_else(stopped)
    }

    /// Executes actions of one kind, group by group.
    async fn run_stage(&mut self, mut waiting: Vec<PlannedAction<'p>>) -> Result<(), JournalError> {
        for _ in 0..MAX_REREADS {
            let mut read = Instant::now();
            let groups = self.group_actions(std::mem::take(&mut waiting)).await;
            if self.executor.scheduler.has_conditional_writes() {
                let mut groups = groups;
                while !groups.is_empty() {
                    let later = groups.split_off(groups.len().min(MAX_CONCURRENT_GROUPS));
                    self.apply_groups(std::mem::replace(&mut groups, later)).await?;
                }
                return Ok(());
            }
            for (at, mut group) in groups.into_iter().enumerate() {
                if 0 < at || self.max_snapshot_age < read.elapsed() {
                    // The reading is out of date by now.
                    read = Instant::now();
                    let items = group.ready.iter().map(|ready| ready.item).collect();
                    let mut same = None;
                    for now in self.group_actions(items).await {
                        if now.change == group.change {
                            same = Some(now);
                        } else {
                            waiting.extend(now.ready.iter().map(|ready| ready.item));
                        }
                    }
                    match same {
                        Some(now) => group = now,
                        None => continue,
                    }
                }
                self.apply_groups(vec![group]).await?;
            }
            if waiting.is_empty() {
                return Ok(());
            }
        }
        for item in waiting {
            self.record_result(
                item,
                ActionResult::Refused,
                "another writer keeps changing the node",
            );
        }
        Ok(())
    }

    /// Reads nodes and groups the actions that are allowed now; the others get their
    /// record. The group of the first action comes first.
    async fn group_actions(&mut self, items: Vec<PlannedAction<'p>>) -> Vec<UpdateGroup<'p>> {
        if items.is_empty() {
            return Vec::new();
        }
        let live = match self.halt_reason() {
            Some(why) => Err(format!("not tried: {why}")),
            None => {
                let nodes: Vec<NodeName> = items.iter().map(|it| it.action.node.clone()).collect();
                self.executor.scheduler.read_nodes(&nodes).await.map_err(|error| {
                    let why = format!("the scheduler did not report the node's state: {error}");
                    self.scheduler_failure = Some(why.clone());
                    format!("not tried: {why}")
                })
            }
        };
        let live = match live {
            Ok(live) => live,
            Err(why) => {
                for item in items {
                    self.record_result(item, ActionResult::Refused, &why);
                }
                return Vec::new();
            }
        };
        let mut groups: Vec<UpdateGroup<'p>> = Vec::new();
        let mut places: BTreeMap<NodeUpdate, usize> = BTreeMap::new();
        for item in items {
            match self.decide_update(item.action, &live) {
                Err((result, why)) => self.record_result(item, result, &why),
                Ok((change, before)) => {
                    let place = *places.entry(change.clone()).or_insert_with(|| {
                        groups.push(UpdateGroup { change, ready: Vec::new() });
                        groups.len() - 1
                    });
                    groups[place].ready.push(ReadyAction { item, before });
                }
            }
        }
        groups
    }

    /// The change to write for this action now, or why none is written.
    fn decide_update(
        &self,
        action: &Action,
        live: &SchedulerSnapshot,
    ) -> Result<(NodeUpdate, SchedulerNode), (ActionResult, String)> {
        let Some(node) = live.nodes.get(&action.node) else {
            let trouble = live.troubles.first().map(|it| format!(" ({it})")).unwrap_or_default();
            let why = format!("the scheduler does not list this node{trouble}");
            return Err((ActionResult::Refused, why));
        };
        let journal = &*self.executor.journal;
        let state = permit_state_change(action, node, journal.state(), self.run, journal.epoch())?;
        let marks =
            |mark| marks::change_beside_action(action.kind, node, mark, self.executor.names);
        let marks = action.mark.as_ref().map(marks);
        let mut change = NodeUpdate { state, ..marks.unwrap_or_default() };
        add_gate_annotation(&mut change, node, journal.state());
        if change.is_empty() {
            let unwritable = |mark| marks::explain_unwritable(node, mark, self.executor.names);
            let unwritable = action.mark.as_ref().map(unwritable).unwrap_or_default();
            return Err(match unwritable.first() {
                Some(why) if action.kind != ActionKind::Drain => {
                    (ActionResult::Refused, why.clone())
                }
                _ => (ActionResult::Already, describe_node(node)),
            });
        }
        Ok((change, node.clone()))
    }

    /// Applies these groups concurrently, each to all its nodes, checks the nodes, and
    /// journals the outcomes. Changes that may still be lost stay pending.
    async fn apply_groups(&mut self, groups: Vec<UpdateGroup<'p>>) -> Result<(), JournalError> {
        if let Some(why) = self.halt_reason() {
            for ready in groups.into_iter().flat_map(|group| group.ready) {
                self.record_result(ready.item, ActionResult::Refused, &format!("not tried: {why}"));
            }
            return Ok(());
        }
        for event in events::started_updates(&groups) {
            (self.executor.log)(&event);
        }
        let calls: Vec<(Vec<NodeName>, NodeUpdate, SchedulerSnapshot)> =
            groups.iter().map(UpdateGroup::update_call).collect();
        let begun = self.write_intents(groups)?;
        let changed = begun.iter().filter(|(begun, _)| begun.change.state.is_some());
        let changed = changed.map(|(it, _)| (it.item.action.node.clone(), it.item.action.kind));
        self.unjournaled.extend(changed);
        let scheduler = self.executor.scheduler;
        let changes = calls
            .iter()
            .map(|(nodes, change, seen)| scheduler.update_nodes_if_unchanged(nodes, change, seen))
            .collect();
        let results = join_updates(changes).await;
        self.last_change = Instant::now();
        if scheduler.has_conditional_writes() {
            // Even visible changes may be incomplete, for lack of a permission.
            let messages: BTreeSet<&str> =
                results.iter().filter_map(|it| Some(it.as_ref().err()?.message.as_str())).collect();
            for message in messages.into_iter().take(MAX_REPORTED_ERRORS) {
                (self.executor.log)(&GateEvent::UpdateIncomplete { why: text::clean(message) });
            }
        }
        let is_refused = |result: &Result<(), SchedulerError>| {
            result.as_ref().is_err_and(|error| error.kind != SourceProblemKind::Unreachable)
        };
        let patience = match results.iter().all(is_refused) {
            true => self.executor.settle.min(REFUSAL_SETTLE_TIME),
            false => self.executor.settle,
        };
        let (begun, call): (Vec<StartedAction<'p>>, Vec<usize>) = begun.into_iter().unzip();
        let seen = self.poll_nodes(&begun, patience, ObservationGoal::Applied).await;
        let mut concluded = Vec::new();
        for (mut begun, call) in begun.into_iter().zip(call) {
            let answer = &results[call];
            let (result, detail) = match seen.change_observation(&begun) {
                Some(ChangeObservation::Applied(detail)) => (ActionResult::Done, detail),
                Some(ChangeObservation::Overwritten(detail)) => (ActionResult::Superseded, detail),
                Some(ChangeObservation::Missing(_))
                    if answer.is_ok() && begun.change.state.is_some() =>
                {
                    // Acknowledged but not visible: it may have been lost.
                    self.pending.push(begun);
                    continue;
                }
                missing => explain_missing_change(missing.as_ref(), answer, &seen),
            };
            if result == ActionResult::Done && begun.change.state.is_some() {
                begun.was_observed = true;
                self.pending.push(begun);
            } else {
                concluded.push((begun, result, detail));
            }
        }
        if let Some(error) = &seen.scheduler_failure {
            self.scheduler_failure = Some(format!("the scheduler stopped answering: {error}"));
        }
        self.conclude_actions(concluded, &seen)
    }

    /// Journals the intents; each comes with the index of its group.
    fn write_intents(
        &mut self,
        groups: Vec<UpdateGroup<'p>>,
    ) -> Result<Vec<(StartedAction<'p>, usize)>, JournalError> {
        let epoch = self.executor.journal.epoch();
        let mut events = Vec::new();
        let mut begun = Vec::new();
        for (at, UpdateGroup { change, ready }) in groups.into_iter().enumerate() {
            for ReadyAction { item, before } in ready {
                let id = intent_id(self.run, item.action, epoch);
                events.push(JournalEvent::Intent {
                    id: id.clone(),
                    run: self.run.to_owned(),
                    action: Box::new(self.with_written_values(item.action, &change)),
                    change: Box::new(change.clone()),
                    before: Box::new(before.clone()),
                });
                let change = change.clone();
                begun.push((StartedAction { item, id, change, before, was_observed: false }, at));
            }
        }
        self.executor.journal.append_all(events)?;
        Ok(begun)
    }

    /// The action with the command and reason that are actually written.
    fn with_written_values(&self, action: &Action, change: &NodeUpdate) -> Action {
        let mut action = action.clone();
        let calls =
            self.executor.scheduler.command_lines(std::slice::from_ref(&action.node), change);
        action.command = calls.join(&"&&".to_owned());
        if let Some(NodeStateChange::Drain { reason }) = &change.state {
            action.reason.clone_from(reason);
        }
        action
    }

    fn conclude_actions(
        &mut self,
        concluded: Vec<(StartedAction<'p>, ActionResult, String)>,
        seen: &NodeObservations,
    ) -> Result<(), JournalError> {
        let outcome = |(begun, result, detail): &(StartedAction<'_>, ActionResult, String)| {
            JournalEvent::Outcome {
                id: begun.id.clone(),
                result: *result,
                detail: text::clean(detail),
            }
        };
        let is_untold = |(begun, result, _): &&(StartedAction<'_>, ActionResult, String)| {
            *result == ActionResult::Done && seen.is_condition_missing(begun)
        };
        let missing =
            |(begun, ..): &(StartedAction<'_>, ActionResult, String)| JournalEvent::Condition {
                id: begun.id.clone(),
                node: begun.item.action.node.clone(),
                shown: false,
            };
        let missing = concluded.iter().filter(is_untold).map(missing);
        self.executor.journal.append_all(concluded.iter().map(outcome).chain(missing).collect())?;
        for (begun, result, detail) in concluded {
            self.unjournaled.remove(&begun.item.action.node);
            self.record_result(begun.item, result, &detail);
        }
        Ok(())
    }
}

/// Awaits all futures; results keep their order.
async fn join_updates<T>(mut calls: Vec<SchedulerFuture<'_, T>>) -> Vec<Result<T, SchedulerError>> {
    let mut answers: Vec<Option<Result<T, SchedulerError>>> = calls.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (call, answer) in calls.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(result) = call.as_mut().poll(context)
            {
                *answer = Some(result);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Journals the controller's start time if it is new.
pub(super) fn write_controller_start(
    journal: &mut Journal,
    started: Option<&String>,
) -> Result<(), JournalError> {
    match started {
        Some(started) if journal.state().controller.as_ref() != Some(started) => {
            journal.append(JournalEvent::Controller { started: started.clone() })
        }
        _ => Ok(()),
    }
}

/// The intent's id: unique per run, node, kind and turn.
fn intent_id(run: &str, action: &Action, epoch: u64) -> String {
    let kind = match action.kind {
        ActionKind::Drain => "drain",
        ActionKind::Relabel => "relabel",
        ActionKind::Release => "release",
        ActionKind::Certify => "certify",
    };
    format!("{run}/{}/{kind}/e{epoch}", action.node)
}

#[cfg(test)]
#[path = "executor_tests.rs"]
mod tests;
