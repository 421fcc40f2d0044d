//! Carries an action plan out: writes down what is meant, reads the nodes once
//! more, changes what still may be changed, looks whether it shows, and writes
//! down how it ended.
//!
//! It decides nothing that `act` decides, and puts as many nodes into one call
//! as get the same change. Between the reading and the change somebody else may
//! write, for some milliseconds: Slurm has no compare-and-set. Kubernetes has, and
//! is told what was seen.

mod confirm;
mod still;
mod told;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::journal::Journal;
use super::journal::JournalError;
use super::scheduler::Answer;
use super::scheduler::Scheduler;
use super::scheduler::SchedulerError;
use super::sight::Sight;
use super::sight::words;
use super::stamp;
use crate::act::marks;
use crate::act::marks::MarkNames;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::action::ActionPlan;
use crate::model::action::ActionRecord;
use crate::model::action::ActionResult;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::id::NodeName;
use crate::model::journal::Event;
use crate::model::live::Live;
use crate::model::live::LiveNode;
use crate::model::said::ProblemKind;
use crate::model::text;
use confirm::Seen;
use confirm::Until;
use confirm::not_there;
use still::sign;
use still::state;

/// How long a change may take to show, where nobody says otherwise: Slurm's
/// own MessageTimeout, after which whatever was told has been heard.
pub const SETTLE: Duration = Duration::from_secs(10);

/// A change of state that slurmctld acknowledged is lost when it is killed
/// before it is on its disk: within 1 s always, and where it is told something
/// all the time, 4.0 to 4.2 s later (26.05, observed).
pub const KEPT: Duration = Duration::from_secs(6);

/// After a plain refusal nothing is expected to show; what was done of a list
/// in part shows at once.
const REFUSED: Duration = Duration::from_secs(1);

/// Groups that are begun side by side where nodes are written one by one. Between
/// two such lots a stop is heeded.
const AT_ONCE: usize = 256;

/// How old the last reading of nodes may be when they are changed: in that time somebody
/// else may write, and Slurm has no compare-and-set.
const SLOW: Duration = Duration::from_secs(1);

/// How many different errors of one lot are told right away; each has its record.
const TOLD: usize = 5;

/// How often nodes that somebody else keeps changing are looked at anew.
const ROUNDS: usize = 3;

/// How a plan is carried out.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct Carrier<'a> {
    /// Who is told.
    pub scheduler: &'a dyn Scheduler,
    /// Where it is written down.
    pub journal: &'a mut Journal,
    /// The site's names for what is said on nodes.
    pub names: &'a MarkNames,
    /// How long a change may take to show; [`SETTLE`] is a good choice.
    pub settle: Duration,
    /// Whom to tell how far it is.
    pub say: &'a mut dyn FnMut(&str),
    /// Turns true where nothing more is to be begun. What was begun is still
    /// looked at and written down.
    pub stop: watch::Receiver<bool>,
}

/// Carries out what a run asks for. Every action has a record, in the order of
/// the plan, also those that were not tried.
///
/// An error means that the journal could not be written; whatever had been
/// begun until then is open there, and the next turn looks at it.
pub async fn carry(
    carrier: Carrier<'_>,
    run: &str,
    plan: &ActionPlan,
) -> Result<Vec<ActionRecord>, JournalError> {
    carry_within(carrier, run, plan, KEPT).await
}

/// The same with a scheduler that takes so long to keep what it acknowledged.
pub async fn carry_within(
    carrier: Carrier<'_>,
    run: &str,
    plan: &ActionPlan,
    kept: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    carry_timed(carrier, run, plan, kept, SLOW).await
}

async fn carry_timed(
    carrier: Carrier<'_>,
    run: &str,
    plan: &ActionPlan,
    kept: Duration,
    slow: Duration,
) -> Result<Vec<ActionRecord>, JournalError> {
    let mut turn = Turn {
        carrier,
        run,
        kept,
        slow,
        records: BTreeMap::new(),
        pending: Vec::new(),
        changed: Instant::now(),
        silent: None,
        controller: None,
        unwritten: BTreeMap::new(),
    };
    let done = turn.all(plan).await;
    if done.is_err() {
        turn.tell_unwritten();
    }
    done?;
    Ok(turn.records.into_values().collect())
}

/// What gives nodes back or only says something comes first; then drains, the
/// worst first, and those of one domain together.
fn first(a: &Action, b: &Action) -> Ordering {
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
struct Item<'p> {
    at: usize,
    action: &'p Action,
}

/// An action that may be tried now.
struct Ready<'p> {
    item: Item<'p>,
    before: LiveNode,
}

/// Actions that write the same.
struct Group<'p> {
    change: Change,
    ready: Vec<Ready<'p>>,
}

impl Group<'_> {
    /// What is told to the scheduler: the nodes, the change, and how the nodes
    /// were when it was decided.
    fn call(&self) -> (Vec<NodeName>, Change, Live) {
        let nodes = self.ready.iter().map(|it| it.item.action.node.clone()).collect();
        let seen = self.ready.iter().map(|it| (it.before.name.clone(), it.before.clone()));
        (nodes, self.change.clone(), Live { nodes: seen.collect(), troubles: Vec::new() })
    }
}

/// An action that was begun: its intent is in the journal.
struct Begun<'p> {
    item: Item<'p>,
    id: String,
    change: Change,
    before: LiveNode,
    /// It was seen on the node.
    was_shown: bool,
}

/// A plan while it is carried out.
struct Turn<'a, 'p> {
    carrier: Carrier<'a>,
    run: &'p str,
    kept: Duration,
    /// How old a reading may be when nodes are changed by it.
    slow: Duration,
    /// By place in the plan.
    records: BTreeMap<usize, ActionRecord>,
    /// Changes of state that show, or were acknowledged, and may yet be lost.
    pending: Vec<Begun<'p>>,
    /// When the last change was made.
    changed: Instant,
    /// Why nothing more is tried: the scheduler does not answer.
    silent: Option<String>,
    /// When the controller started, before anything was changed.
    controller: Option<String>,
    /// Nodes whose state was changed, or may have been, and of which that is not written
    /// down yet.
    unwritten: BTreeMap<NodeName, ActionKind>,
}

impl<'p> Turn<'_, 'p> {
    /// Everything that the plan says.
    async fn all(&mut self, plan: &'p ActionPlan) -> Result<(), JournalError> {
        let mut todo = self.sane(plan);
        todo.sort_by(|a, b| first(a.action, b.action));
        if todo.iter().any(|item| item.action.kind == ActionKind::Drain) {
            self.controller = self.started().await?;
        }
        while let Some(Item { action: Action { kind, .. }, .. }) = todo.first() {
            let kind = *kind;
            let end = todo.iter().position(|item| item.action.kind != kind).unwrap_or(todo.len());
            let later = todo.split_off(end);
            self.stage(std::mem::replace(&mut todo, later)).await?;
        }
        self.confirm().await
    }

    /// When the controller started, written down where that is news.
    async fn started(&mut self) -> Result<Option<String>, JournalError> {
        let started = self.carrier.scheduler.started().await.ok().flatten();
        note_start(self.carrier.journal, started.as_ref())?;
        Ok(started)
    }

    /// Tells what was done and could not be written down: the disk is full, say.
    fn tell_unwritten(&mut self) {
        for told in told::unwritten(&self.unwritten) {
            (self.carrier.say)(&told);
        }
    }

    /// What of the plan can be meant: a plan may come from a file.
    fn sane(&mut self, plan: &'p ActionPlan) -> Vec<Item<'p>> {
        let mut kinds: BTreeMap<&NodeName, BTreeSet<ActionKind>> = BTreeMap::new();
        for action in &plan.actions {
            kinds.entry(&action.node).or_default().insert(action.kind);
        }
        let mut seen = BTreeSet::new();
        let mut items = Vec::new();
        for (at, action) in plan.actions.iter().enumerate() {
            let item = Item { at, action };
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
            self.settle(item, ActionResult::Refused, why);
        }
        items
    }

    /// Writes a record; the last word on an action.
    fn settle(&mut self, item: Item<'_>, result: ActionResult, detail: &str) {
        let Action { kind, node, .. } = item.action;
        let (kind, node, at) = (*kind, node.clone(), stamp::stamp().at);
        let detail = text::clean(detail);
        self.records.insert(item.at, ActionRecord { kind, node, result, detail, at });
    }

    /// Why nothing more is begun.
    fn halted(&self) -> Option<String> {
        let stopped = || self.carrier.stop.borrow().then(|| "asked to stop".to_owned());
        self.silent.clone().or_else(stopped)
    }

    /// Carries out actions of one kind, group by group.
    async fn stage(&mut self, mut waiting: Vec<Item<'p>>) -> Result<(), JournalError> {
        for _ in 0..ROUNDS {
            let mut read = Instant::now();
            let groups = self.groups(std::mem::take(&mut waiting)).await;
            if self.carrier.scheduler.writes_as_seen() {
                let mut groups = groups;
                while !groups.is_empty() {
                    let later = groups.split_off(groups.len().min(AT_ONCE));
                    self.act(std::mem::replace(&mut groups, later)).await?;
                }
                return Ok(());
            }
            for (at, mut group) in groups.into_iter().enumerate() {
                if 0 < at || self.slow < read.elapsed() {
                    // Time has passed since these were read.
                    read = Instant::now();
                    let items = group.ready.iter().map(|ready| ready.item).collect();
                    let mut same = None;
                    for now in self.groups(items).await {
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
                self.act(vec![group]).await?;
            }
            if waiting.is_empty() {
                return Ok(());
            }
        }
        for item in waiting {
            self.settle(item, ActionResult::Refused, "somebody else keeps changing the node");
        }
        Ok(())
    }

    /// Reads nodes and groups what may be done to them now; everything else is
    /// settled. The group of the first action comes first.
    async fn groups(&mut self, items: Vec<Item<'p>>) -> Vec<Group<'p>> {
        if items.is_empty() {
            return Vec::new();
        }
        let live = match self.halted() {
            Some(why) => Err(format!("not tried: {why}")),
            None => {
                let nodes: Vec<NodeName> = items.iter().map(|it| it.action.node.clone()).collect();
                self.carrier.scheduler.read(&nodes).await.map_err(|error| {
                    let why = format!("the scheduler does not say how the node is: {error}");
                    self.silent = Some(why.clone());
                    format!("not tried: {why}")
                })
            }
        };
        let live = match live {
            Ok(live) => live,
            Err(why) => {
                for item in items {
                    self.settle(item, ActionResult::Refused, &why);
                }
                return Vec::new();
            }
        };
        let mut groups: Vec<Group<'p>> = Vec::new();
        let mut places: BTreeMap<Change, usize> = BTreeMap::new();
        for item in items {
            match self.decide(item.action, &live) {
                Err((result, why)) => self.settle(item, result, &why),
                Ok((change, before)) => {
                    let place = *places.entry(change.clone()).or_insert_with(|| {
                        groups.push(Group { change, ready: Vec::new() });
                        groups.len() - 1
                    });
                    groups[place].ready.push(Ready { item, before });
                }
            }
        }
        groups
    }

    /// What is to be written for this action now, or why nothing is.
    fn decide(
        &self,
        action: &Action,
        live: &Live,
    ) -> Result<(Change, LiveNode), (ActionResult, String)> {
        let Some(node) = live.nodes.get(&action.node) else {
            let trouble = live.troubles.first().map(|it| format!(" ({it})")).unwrap_or_default();
            let why = format!("the scheduler does not know this node{trouble}");
            return Err((ActionResult::Refused, why));
        };
        let journal = &*self.carrier.journal;
        let state = state(action, node, journal.ledger(), self.run, journal.epoch())?;
        let said = |mark| marks::of_action(action.kind, node, mark, self.carrier.names);
        let said = action.mark.as_ref().map(said);
        let mut change = Change { state, ..said.unwrap_or_default() };
        sign(&mut change, node, journal.ledger());
        if change.is_nothing() {
            let unsaid = |mark| marks::unsaid(node, mark, self.carrier.names);
            let unsaid = action.mark.as_ref().map(unsaid).unwrap_or_default();
            return Err(match unsaid.first() {
                Some(why) if action.kind != ActionKind::Drain => {
                    (ActionResult::Refused, why.clone())
                }
                _ => (ActionResult::Already, words(node)),
            });
        }
        Ok((change, node.clone()))
    }

    /// Makes the changes of these groups side by side, each on all its nodes,
    /// looks, and writes down how it ended, except for what may yet be lost.
    async fn act(&mut self, groups: Vec<Group<'p>>) -> Result<(), JournalError> {
        if let Some(why) = self.halted() {
            for ready in groups.into_iter().flat_map(|group| group.ready) {
                self.settle(ready.item, ActionResult::Refused, &format!("not tried: {why}"));
            }
            return Ok(());
        }
        for told in told::announced(&groups) {
            (self.carrier.say)(&told);
        }
        let calls: Vec<(Vec<NodeName>, Change, Live)> = groups.iter().map(Group::call).collect();
        let begun = self.begin(groups)?;
        let changed = begun.iter().filter(|(begun, _)| begun.change.state.is_some());
        let changed = changed.map(|(it, _)| (it.item.action.node.clone(), it.item.action.kind));
        self.unwritten.extend(changed);
        let scheduler = self.carrier.scheduler;
        let changes = calls
            .iter()
            .map(|(nodes, change, seen)| scheduler.change_as_seen(nodes, change, seen))
            .collect();
        let said = side_by_side(changes).await;
        self.changed = Instant::now();
        if scheduler.writes_as_seen() {
            // What shows may be a part of it: a right to the rest may be missing.
            let told: BTreeSet<&str> =
                said.iter().filter_map(|it| Some(it.as_ref().err()?.message.as_str())).collect();
            for message in told.into_iter().take(TOLD) {
                (self.carrier.say)(&format!("not all of it was written: {}", text::clean(message)));
            }
        }
        let is_refused = |said: &Result<(), SchedulerError>| {
            said.as_ref().is_err_and(|error| error.kind != ProblemKind::Unreachable)
        };
        let patience = match said.iter().all(is_refused) {
            true => self.carrier.settle.min(REFUSED),
            false => self.carrier.settle,
        };
        let (begun, call): (Vec<Begun<'p>>, Vec<usize>) = begun.into_iter().unzip();
        let seen = self.observe(&begun, patience, Until::Shown).await;
        let mut concluded = Vec::new();
        for (mut begun, call) in begun.into_iter().zip(call) {
            let said = &said[call];
            let (result, detail) = match seen.of(&begun) {
                Some(Sight::Shows(detail)) => (ActionResult::Done, detail),
                Some(Sight::Foreign(detail)) => (ActionResult::Superseded, detail),
                Some(Sight::NotThere(_)) if said.is_ok() && begun.change.state.is_some() => {
                    // Acknowledged and not there: it may have been lost.
                    self.pending.push(begun);
                    continue;
                }
                missing => not_there(missing.as_ref(), said, &seen),
            };
            if result == ActionResult::Done && begun.change.state.is_some() {
                begun.was_shown = true;
                self.pending.push(begun);
            } else {
                concluded.push((begun, result, detail));
            }
        }
        if let Some(error) = &seen.silent {
            self.silent = Some(format!("the scheduler stopped answering: {error}"));
        }
        self.conclude(concluded, &seen)
    }

    /// Writes down what is about to be done; each with the place of its group.
    fn begin(&mut self, groups: Vec<Group<'p>>) -> Result<Vec<(Begun<'p>, usize)>, JournalError> {
        let epoch = self.carrier.journal.epoch();
        let mut events = Vec::new();
        let mut begun = Vec::new();
        for (at, Group { change, ready }) in groups.into_iter().enumerate() {
            for Ready { item, before } in ready {
                let id = id(self.run, item.action, epoch);
                events.push(Event::Intent {
                    id: id.clone(),
                    run: self.run.to_owned(),
                    action: Box::new(self.written(item.action, &change)),
                    change: Box::new(change.clone()),
                    before: Box::new(before.clone()),
                });
                let change = change.clone();
                begun.push((Begun { item, id, change, before, was_shown: false }, at));
            }
        }
        self.carrier.journal.write_all(events)?;
        Ok(begun)
    }

    /// The action with what is really written.
    fn written(&self, action: &Action, change: &Change) -> Action {
        let mut action = action.clone();
        let calls = self.carrier.scheduler.words(std::slice::from_ref(&action.node), change);
        action.command = calls.join(&"&&".to_owned());
        if let Some(StateChange::Drain { reason }) = &change.state {
            action.reason.clone_from(reason);
        }
        action
    }

    fn conclude(
        &mut self,
        concluded: Vec<(Begun<'p>, ActionResult, String)>,
        seen: &Seen,
    ) -> Result<(), JournalError> {
        let outcome = |(begun, result, detail): &(Begun<'_>, ActionResult, String)| {
            Event::Outcome { id: begun.id.clone(), result: *result, detail: text::clean(detail) }
        };
        let is_untold = |(begun, result, _): &&(Begun<'_>, ActionResult, String)| {
            *result == ActionResult::Done && seen.is_untold(begun)
        };
        let untold = |(begun, ..): &(Begun<'_>, ActionResult, String)| Event::Condition {
            id: begun.id.clone(),
            node: begun.item.action.node.clone(),
            shown: false,
        };
        let untold = concluded.iter().filter(is_untold).map(untold);
        self.carrier.journal.write_all(concluded.iter().map(outcome).chain(untold).collect())?;
        for (begun, result, detail) in concluded {
            self.unwritten.remove(&begun.item.action.node);
            self.settle(begun.item, result, &detail);
        }
        Ok(())
    }
}

/// Waits for all of these; each has its answer in its place.
async fn side_by_side<T>(mut calls: Vec<Answer<'_, T>>) -> Vec<Result<T, SchedulerError>> {
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
pub(super) fn note_start(
    journal: &mut Journal,
    started: Option<&String>,
) -> Result<(), JournalError> {
    match started {
        Some(started) if journal.ledger().controller.as_ref() != Some(started) => {
            journal.write(Event::Controller { started: started.clone() })
        }
        _ => Ok(()),
    }
}

/// The name of an intent.
fn id(run: &str, action: &Action, epoch: u64) -> String {
    let kind = match action.kind {
        ActionKind::Drain => "drain",
        ActionKind::Relabel => "relabel",
        ActionKind::Release => "release",
        ActionKind::Certify => "certify",
    };
    format!("{run}/{}/{kind}/e{epoch}", action.node)
}

#[cfg(test)]
#[path = "carry_tests.rs"]
mod tests;
