//! Carries an action plan out: writes down what is meant, reads the nodes once
//! more, changes what still may be changed, looks whether it shows, and writes
//! down how it ended.
//!
//! It decides nothing that `act` decides, and puts as many nodes into one call
//! as get the same change. Between the reading and the change somebody else may
//! write, for some milliseconds: Slurm has no compare-and-set. Kubernetes has, and
//! is told what was seen.

mod confirmation;
mod messages;
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

/// How long a change may take to show, where nobody says otherwise: Slurm's
/// own MessageTimeout, after which whatever was told has been heard.
pub const DEFAULT_SETTLE_TIME: Duration = Duration::from_secs(10);

/// A change of state that slurmctld acknowledged is lost when it is killed
/// before it is on its disk: within 1 s always, and where it is told something
/// all the time, 4.0 to 4.2 s later (26.05, observed).
pub const DEFAULT_PERSIST_TIME: Duration = Duration::from_secs(6);

/// After a plain refusal nothing is expected to show; what was done of a list
/// in part shows at once.
const REFUSAL_SETTLE_TIME: Duration = Duration::from_secs(1);

/// Groups that are begun side by side where nodes are written one by one. Between
/// two such lots a stop is heeded.
const MAX_CONCURRENT_GROUPS: usize = 256;

/// How old the last reading of nodes may be when they are changed: in that time somebody
/// else may write, and Slurm has no compare-and-set.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(1);

/// How many different errors of one lot are told right away; each has its record.
const MAX_REPORTED_ERRORS: usize = 5;

/// How often nodes that somebody else keeps changing are looked at anew.
const MAX_REREADS: usize = 3;

/// How a plan is carried out.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct Executor<'a> {
    /// Who is told.
    pub scheduler: &'a dyn Scheduler,
    /// Where it is written down.
    pub journal: &'a mut Journal,
    /// The site's names for what is said on nodes.
    pub names: &'a MarkNames,
    /// How long a change may take to show; [`SETTLE`] is a good choice.
    pub settle: Duration,
    /// Whom to tell how far it is.
    pub log: &'a mut dyn FnMut(&str),
    /// Turns true where nothing more is to be begun. What was begun is still
    /// looked at and written down.
    pub stop: watch::Receiver<bool>,
}

/// Carries out what a run asks for. Every action has a record, in the order of
/// the plan, also those that were not tried.
///
/// An error means that the journal could not be written; whatever had been
/// begun until then is open there, and the next turn looks at it.
pub async fn execute_plan(
    carrier: Executor<'_>,
    run: &str,
    plan: &ActionPlan,
) -> Result<Vec<ActionRecord>, JournalError> {
    execute_plan_within(carrier, run, plan, DEFAULT_PERSIST_TIME).await
}

/// The same with a scheduler that takes so long to keep what it acknowledged.
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

/// What gives nodes back or only says something comes first; then drains, the
/// worst first, and those of one domain together.
fn compare_priority(a: &Action, b: &Action) -> Ordering {
    let rank = |action: &Action| match action.kind {
        ActionKind::Release => 0,
        ActionKind::Certify => 1,
        ActionKind::Relabel => 2,
        ActionKind::Drain => 3,
    };
    let outcome = |action: &Action| action.mark.as_ref().map(|mark| mark.outcome);
    // What was not measured at all is worse than any share.
    let ratio = |action: &Action| action.ratio.unwrap_or(0.0);
    rank(a)
        .cmp(&rank(b))
        .then_with(|| outcome(b).cmp(&outcome(a)))
        .then_with(|| ratio(a).total_cmp(&ratio(b)))
        .then_with(|| a.domain.cmp(&b.domain))
        .then_with(|| a.node.cmp(&b.node))
}

/// An action and its place in the plan.
#[derive(Clone, Copy)]
struct PlannedAction<'p> {
    at: usize,
    action: &'p Action,
}

/// An action that may be tried now.
struct ReadyAction<'p> {
    item: PlannedAction<'p>,
    before: SchedulerNode,
}

/// Actions that write the same.
struct UpdateGroup<'p> {
    change: NodeUpdate,
    ready: Vec<ReadyAction<'p>>,
}

impl UpdateGroup<'_> {
    /// What is told to the scheduler: the nodes, the change, and how the nodes
    /// were when it was decided.
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

/// An action that was begun: its intent is in the journal.
struct StartedAction<'p> {
    item: PlannedAction<'p>,
    id: String,
    change: NodeUpdate,
    before: SchedulerNode,
    /// It was seen on the node.
    was_observed: bool,
}

/// A plan while it is carried out.
struct PlanExecution<'a, 'p> {
    executor: Executor<'a>,
    run: &'p str,
    persist_time: Duration,
    /// How old a reading may be when nodes are changed by it.
    max_snapshot_age: Duration,
    /// By place in the plan.
    records: BTreeMap<usize, ActionRecord>,
    /// Changes of state that show, or were acknowledged, and may yet be lost.
    pending: Vec<StartedAction<'p>>,
    /// When the last change was made.
    last_change: Instant,
    /// Why nothing more is tried: the scheduler does not answer.
    scheduler_failure: Option<String>,
    /// When the controller started, before anything was changed.
    controller_start: Option<String>,
    /// Nodes whose state was changed, or may have been, and of which that is not written
    /// down yet.
    unjournaled: BTreeMap<NodeName, ActionKind>,
}

impl<'p> PlanExecution<'_, 'p> {
    /// Everything that the plan says.
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

    /// When the controller started, written down where that is news.
    async fn record_controller_start(&mut self) -> Result<Option<String>, JournalError> {
        let started = self.executor.scheduler.read_start_time().await.ok().flatten();
        write_controller_start(self.executor.journal, started.as_ref())?;
        Ok(started)
    }

    /// Tells what was done and could not be written down: the disk is full, say.
    fn report_unjournaled(&mut self) {
        for told in messages::describe_unjournaled(&self.unjournaled) {
            (self.executor.log)(&told);
        }
    }

    /// What of the plan can be meant: a plan may come from a file.
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
                _ if !seen.insert((action.kind, &action.node)) => "the plan names it twice",
                _ if is_both => "the plan would both drain it and give it back",
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

    /// Writes a record; the last word on an action.
    fn record_result(&mut self, item: PlannedAction<'_>, result: ActionResult, detail: &str) {
        let Action { kind, node, .. } = item.action;
        let (kind, node, at) = (*kind, node.clone(), clock::now().at);
        let detail = text::clean(detail);
        self.records.insert(item.at, ActionRecord { kind, node, result, detail, at });
    }

    /// Why nothing more is begun.
    fn halt_reason(&self) -> Option<String> {
        let stopped = || self.executor.stop.borrow().then(|| "asked to stop".to_owned());
        self.scheduler_failure.clone().or_else(stopped)
    }

    /// Carries out actions of one kind, group by group.
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
                    // Time has passed since these were read.
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
                "somebody else keeps changing the node",
            );
        }
        Ok(())
    }

    /// Reads nodes and groups what may be done to them now; everything else is
    /// settled. The group of the first action comes first.
    async fn group_actions(&mut self, items: Vec<PlannedAction<'p>>) -> Vec<UpdateGroup<'p>> {
        if items.is_empty() {
            return Vec::new();
        }
        let live = match self.halt_reason() {
            Some(why) => Err(format!("not tried: {why}")),
            None => {
                let nodes: Vec<NodeName> = items.iter().map(|it| it.action.node.clone()).collect();
                self.executor.scheduler.read_nodes(&nodes).await.map_err(|error| {
                    let why = format!("the scheduler does not say how the node is: {error}");
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

    /// What is to be written for this action now, or why nothing is.
    fn decide_update(
        &self,
        action: &Action,
        live: &SchedulerSnapshot,
    ) -> Result<(NodeUpdate, SchedulerNode), (ActionResult, String)> {
        let Some(node) = live.nodes.get(&action.node) else {
            let trouble = live.troubles.first().map(|it| format!(" ({it})")).unwrap_or_default();
            let why = format!("the scheduler does not know this node{trouble}");
            return Err((ActionResult::Refused, why));
        };
        let journal = &*self.executor.journal;
        let state = permit_state_change(action, node, journal.state(), self.run, journal.epoch())?;
        let said = |mark| marks::change_beside_action(action.kind, node, mark, self.executor.names);
        let said = action.mark.as_ref().map(said);
        let mut change = NodeUpdate { state, ..said.unwrap_or_default() };
        add_gate_annotation(&mut change, node, journal.state());
        if change.is_empty() {
            let unsaid = |mark| marks::explain_unwritable(node, mark, self.executor.names);
            let unsaid = action.mark.as_ref().map(unsaid).unwrap_or_default();
            return Err(match unsaid.first() {
                Some(why) if action.kind != ActionKind::Drain => {
                    (ActionResult::Refused, why.clone())
                }
                _ => (ActionResult::Already, describe_node(node)),
            });
        }
        Ok((change, node.clone()))
    }

    /// Makes the changes of these groups side by side, each on all its nodes,
    /// looks, and writes down how it ended, except for what may yet be lost.
    async fn apply_groups(&mut self, groups: Vec<UpdateGroup<'p>>) -> Result<(), JournalError> {
        if let Some(why) = self.halt_reason() {
            for ready in groups.into_iter().flat_map(|group| group.ready) {
                self.record_result(ready.item, ActionResult::Refused, &format!("not tried: {why}"));
            }
            return Ok(());
        }
        for told in messages::describe_start(&groups) {
            (self.executor.log)(&told);
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
        let said = join_updates(changes).await;
        self.last_change = Instant::now();
        if scheduler.has_conditional_writes() {
            // What shows may be a part of it: a right to the rest may be missing.
            let told: BTreeSet<&str> =
                said.iter().filter_map(|it| Some(it.as_ref().err()?.message.as_str())).collect();
            for message in told.into_iter().take(MAX_REPORTED_ERRORS) {
                (self.executor.log)(&format!(
                    "not all of it was written: {}",
                    text::clean(message)
                ));
            }
        }
        let is_refused = |said: &Result<(), SchedulerError>| {
            said.as_ref().is_err_and(|error| error.kind != SourceProblemKind::Unreachable)
        };
        let patience = match said.iter().all(is_refused) {
            true => self.executor.settle.min(REFUSAL_SETTLE_TIME),
            false => self.executor.settle,
        };
        let (begun, call): (Vec<StartedAction<'p>>, Vec<usize>) = begun.into_iter().unzip();
        let seen = self.poll_nodes(&begun, patience, ObservationGoal::Applied).await;
        let mut concluded = Vec::new();
        for (mut begun, call) in begun.into_iter().zip(call) {
            let said = &said[call];
            let (result, detail) = match seen.change_observation(&begun) {
                Some(ChangeObservation::Applied(detail)) => (ActionResult::Done, detail),
                Some(ChangeObservation::Overwritten(detail)) => (ActionResult::Superseded, detail),
                Some(ChangeObservation::Missing(_))
                    if said.is_ok() && begun.change.state.is_some() =>
                {
                    // Acknowledged and not there: it may have been lost.
                    self.pending.push(begun);
                    continue;
                }
                missing => explain_missing_change(missing.as_ref(), said, &seen),
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

    /// Writes down what is about to be done; each with the place of its group.
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

    /// The action with what is really written.
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
        let untold =
            |(begun, ..): &(StartedAction<'_>, ActionResult, String)| JournalEvent::Condition {
                id: begun.id.clone(),
                node: begun.item.action.node.clone(),
                shown: false,
            };
        let untold = concluded.iter().filter(is_untold).map(untold);
        self.executor.journal.append_all(concluded.iter().map(outcome).chain(untold).collect())?;
        for (begun, result, detail) in concluded {
            self.unjournaled.remove(&begun.item.action.node);
            self.record_result(begun.item, result, &detail);
        }
        Ok(())
    }
}

/// Waits for all of these; each has its answer in its place.
async fn join_updates<T>(mut calls: Vec<SchedulerFuture<'_, T>>) -> Vec<Result<T, SchedulerError>> {
    let mut answers: Vec<Option<Result<T, SchedulerError>>> = calls.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (call, answer) in calls.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(said) = call.as_mut().poll(context)
            {
                *answer = Some(said);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Writes down when the controller started, where that is news.
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

/// The name of an intent.
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
