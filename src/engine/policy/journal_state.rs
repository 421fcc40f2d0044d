//! The sum of the journal's lines: outstanding drains, spent budgets, undone drains, open
//! intents.
//!
//! Pure: the same lines give the same state in every process. It holds fabricgate's intents and
//! observations; the present state of a node comes from the scheduler.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::pause::GatePause;
use super::{drain_reason, kubernetes_label};
use model::action::{Action, ActionKind, ActionResult, VerdictMark};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::journal::{ClockStamp, HoldKind, JournalEntry, JournalEvent};
use model::kubernetes_node::CERTIFICATE;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerNode;
use model::time_format::format_rfc3339;

/// The sum of a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalState {
    /// Lines that were read.
    pub lines: u64,
    /// The gate that owns the journal: a digest of its first line.
    pub gate: String,
    /// The last turn.
    pub epoch: u64,
    /// When the last line was written.
    pub last: Option<ClockStamp>,
    /// Set if only releases are allowed: since when and why.
    pub breaker: Option<BreakerTrip>,
    /// The last pause that a user requested, and when.
    pub pause: Option<(ClockStamp, GatePause)>,
    /// Whether a user has ever reset the breaker.
    pub was_reset: bool,
    /// fabricgate's completed drains, neither released nor undone.
    pub drains: BTreeMap<NodeName, OwnDrain>,
    /// Every drain and mark that may have been carried out, oldest first.
    pub spent: Vec<BudgetSpend>,
    /// The intents in `spent`.
    pub spent_ids: BTreeSet<String>,
    /// All intents that are open or were carried out.
    pub known_intents: BTreeSet<String>,
    /// Intents without a result, oldest first. A turn can start thousands, and concludes them
    /// in that order.
    pub open_intents: VecDeque<OpenIntent>,
    /// Drains that a user removed.
    pub undone_drains: BTreeMap<NodeName, UndoneDrain>,
    /// Nodes in service that one run found to work below their level.
    pub suspicions: BTreeMap<NodeName, Suspicion>,
    /// fabricgate's last mark on each node.
    pub marks: BTreeMap<NodeName, VerdictMark>,
    /// The mark before that.
    pub marks_before: BTreeMap<NodeName, VerdictMark>,
    /// Nodes whose API server did not accept the last condition, with its intent.
    pub unacknowledged: BTreeMap<NodeName, String>,
    /// Reservations and jobs that may still exist.
    pub allocations: BTreeMap<String, OpenAllocation>,
    /// When the first line was written.
    pub first: Option<ClockStamp>,
    /// When a user last reset the breaker.
    pub reset: Option<ClockStamp>,
    /// When each of the last turns began, in seconds since 1970.
    pub turns: BTreeMap<u64, i64>,
    /// Recent intents for each node, oldest first, with any result.
    pub recent_intents: BTreeMap<NodeName, VecDeque<RecentIntent>>,
    /// When the scheduler's controller started, as it reports it.
    pub controller: Option<String>,
    /// Facts about each drain in force that are not part of the drain itself.
    pub drain_details: BTreeMap<NodeName, DrainDetails>,
    /// Drained nodes that the scheduler no longer knows, and since when.
    pub absent_nodes: BTreeMap<NodeName, ClockStamp>,
}

/// A recent intent for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentIntent {
    /// The run that requested it.
    pub run: String,
    /// The reason of a drain; empty for other actions.
    pub reason: String,
}

/// Facts that distinguish a drain removed by a user from one lost by a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainDetails {
    /// The start of the controller that had it.
    pub controller: Option<String>,
    /// Slurm's `Extra` field as it was written with the drain.
    pub extra: Option<String>,
    /// A certificate was written with it, on Kubernetes.
    pub certificate: bool,
    /// A condition was written with it, and the server accepted it.
    pub condition: bool,
}

/// Most intents remembered for a node.
const MAX_RECENT_INTENTS: usize = 8;

/// Most turns remembered with their start.
const MAX_TURNS: usize = 10_000;

/// A breaker that tripped.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerTrip {
    /// When.
    pub stamp: ClockStamp,
    /// Why.
    pub why: String,
    /// The run in which it tripped.
    pub run: String,
}

/// A drain by fabricgate in force.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnDrain {
    /// Its intent.
    pub id: String,
    /// The turn that started it, as its reason names it.
    pub epoch: u64,
    /// When it was started.
    pub stamp: ClockStamp,
    /// The run whose evidence it rests on.
    pub run: String,
    /// The action, with findings, class and the reason that was written.
    pub action: Action,
    /// The node right before the drain: its boot and instance identify the machine.
    pub before: SchedulerNode,
    /// Runs that the node passed since, oldest first.
    pub clean: Vec<CleanRun>,
}

/// A run that a drained node passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanRun {
    /// The run.
    pub run: String,
    /// When it was made, in seconds since 1970.
    pub measured: i64,
    /// The boot in which it was measured, if the run reported it.
    pub boot_id: Option<String>,
}

/// A run's first observation that a node works below its level, with no other finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicion {
    /// The run.
    pub run: String,
    /// When it was made, in seconds since 1970.
    pub measured: i64,
    /// The boot in which it was measured, if the run reported it.
    pub boot_id: Option<String>,
    /// Classes of the findings.
    pub classes: Vec<FindingClass>,
}

/// One drain or mark charged to the budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetSpend {
    /// The intent.
    pub id: String,
    /// When.
    pub stamp: ClockStamp,
    /// The action.
    pub action: Action,
}

/// An intent without a recorded result.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenIntent {
    /// Its name.
    pub id: String,
    /// When it was started.
    pub stamp: ClockStamp,
    /// The turn that started it.
    pub epoch: u64,
    /// The run that requested it.
    pub run: String,
    /// The action.
    pub action: Action,
    /// The change to write.
    pub change: NodeUpdate,
    /// The node right before.
    pub before: SchedulerNode,
    /// Whether it was sent and not answered in time: it may still take effect.
    pub is_late: bool,
}

/// A drain by fabricgate that a user removed.
#[derive(Clone, Debug, PartialEq)]
pub struct UndoneDrain {
    /// When that was observed.
    pub stamp: ClockStamp,
    /// The drain before its removal.
    pub drain: OwnDrain,
}

/// A reservation or job that holds nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenAllocation {
    /// The kind of allocation.
    pub kind: HoldKind,
    /// When it was requested.
    pub stamp: ClockStamp,
    /// The nodes it holds.
    pub nodes: Vec<NodeName>,
    /// The held nodes that must be drained again, with their reasons.
    pub drained: Vec<(NodeName, String)>,
    /// The machine of the process that needs it.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl JournalState {
    /// The sum of these lines, in order.
    pub fn from_entries(entries: &[JournalEntry]) -> Self {
        let mut ledger = Self::default();
        for entry in entries {
            ledger.apply(entry);
        }
        ledger
    }

    /// Applies one more line. A line that contradicts earlier lines changes nothing and never
    /// fails.
    pub fn apply(&mut self, entry: &JournalEntry) {
        if self.lines == 0 {
            self.gate = gate_id(entry);
            self.first = Some(entry.stamp.clone());
        }
        self.lines += 1;
        self.turns.entry(entry.epoch).or_insert(entry.stamp.unix);
        if MAX_TURNS < self.turns.len() {
            self.turns.pop_first();
        }
        self.epoch = self.epoch.max(entry.epoch);
        self.last = Some(entry.stamp.clone());
        match &entry.event {
            JournalEvent::Opened { .. }
            | JournalEvent::Evicting { .. }
            | JournalEvent::Evicted { .. } => {}
            JournalEvent::Intent { id, run, action, change, before } => {
                self.begin(OpenIntent {
                    id: id.clone(),
                    stamp: entry.stamp.clone(),
                    epoch: entry.epoch,
                    run: run.clone(),
                    action: (**action).clone(),
                    change: (**change).clone(),
                    before: (**before).clone(),
                    is_late: false,
                });
            }
            JournalEvent::Outcome { id, result, .. } => self.conclude(id, *result),
            JournalEvent::Condition { id, node, shown } => self.record_condition(id, node, *shown),
            JournalEvent::Clean { node, run, measured, boot_id } => {
                let Some(drain) = self.drains.get_mut(node) else { return };
                if drain.clean.iter().all(|clean| clean.run != *run) {
                    let (run, measured, boot_id) = (run.clone(), *measured, boot_id.clone());
                    drain.clean.push(CleanRun { run, measured, boot_id });
                }
            }
            JournalEvent::Relapsed { node, measured, .. } => {
                if let Some(drain) = self.drains.get_mut(node) {
                    drain.clean.retain(|clean| *measured < clean.measured);
                }
            }
            JournalEvent::Suspected { node, run, measured, boot_id, classes } => {
                let (run, measured, boot_id) = (run.clone(), *measured, boot_id.clone());
                let sight = Suspicion { run, measured, boot_id, classes: classes.clone() };
                self.suspicions.insert(node.clone(), sight);
            }
            JournalEvent::Cleared { node, measured, .. } => {
                if self
                    .suspicions
                    .get(node)
                    .is_some_and(|suspicion| suspicion.measured <= *measured)
                {
                    self.suspicions.remove(node);
                }
            }
            // A later drain of the same node stays: only the undone drain is removed.
            JournalEvent::Undone { node, id, .. } => {
                if self.drains.get(node).is_some_and(|drain| drain.id == *id)
                    && let Some(drain) = self.drains.remove(node)
                {
                    let undone = UndoneDrain { stamp: entry.stamp.clone(), drain };
                    self.undone_drains.insert(node.clone(), undone);
                    self.drain_details.remove(node);
                    self.absent_nodes.remove(node);
                }
            }
            // The drain counts as fabricgate's until it is repeated.
            JournalEvent::Lost { .. } | JournalEvent::Gone { .. } => {}
            JournalEvent::Absent { node } => {
                if self.drains.contains_key(node) {
                    self.absent_nodes.entry(node.clone()).or_insert_with(|| entry.stamp.clone());
                }
            }
            JournalEvent::Present { node } => {
                self.absent_nodes.remove(node);
            }
            JournalEvent::Forgotten { node, .. } => self.forget(node),
            JournalEvent::Adopted { run, action, before, set, .. } => {
                self.adopt(entry, run, action, before, *set);
            }
            JournalEvent::Controller { started } => self.controller = Some(started.clone()),
            JournalEvent::Tripped { why, run } => {
                let (why, run) = (why.clone(), run.clone());
                self.breaker = Some(BreakerTrip { stamp: entry.stamp.clone(), why, run });
            }
            JournalEvent::Reset { .. } => {
                self.breaker = None;
                self.was_reset = true;
                self.reset = Some(entry.stamp.clone());
            }
            JournalEvent::Paused { by, why, for_s, until } => {
                let (by, why, until) = (by.clone(), why.clone(), until.clone());
                let pause = GatePause { by, why, for_s: *for_s, until };
                self.pause = Some((entry.stamp.clone(), pause));
            }
            JournalEvent::Resumed { .. } => self.pause = None,
            JournalEvent::Holding { name, kind, nodes, drained, host, pid } => {
                let hold = OpenAllocation {
                    kind: *kind,
                    stamp: entry.stamp.clone(),
                    nodes: nodes.clone(),
                    drained: drained.clone(),
                    host: host.clone(),
                    pid: *pid,
                };
                self.allocations.insert(name.clone(), hold);
            }
            JournalEvent::Freed { name, .. } => {
                self.allocations.remove(name);
            }
        }
    }

    /// Removes all records of a node. Actions started within the hour stay in the budgets.
    fn forget(&mut self, node: &NodeName) {
        self.drains.remove(node);
        self.undone_drains.remove(node);
        self.suspicions.remove(node);
        self.marks.remove(node);
        self.unacknowledged.remove(node);
        self.drain_details.remove(node);
        self.absent_nodes.remove(node);
        for open in self.open_intents.iter().filter(|open| open.action.node == *node) {
            self.known_intents.remove(&open.id);
        }
        self.open_intents.retain(|open| open.action.node != *node);
        for hold in self.allocations.values_mut() {
            hold.nodes.retain(|it| it != node);
            hold.drained.retain(|(it, _)| it != node);
        }
    }

    fn adopt(
        &mut self,
        entry: &JournalEntry,
        run: &str,
        action: &Action,
        before: &SchedulerNode,
        set: Option<i64>,
    ) {
        let node = action.node.clone();
        let id = format!("{run}/{node}/adopted/e{}", entry.epoch);
        // Another machine may have written it, so the uptime of this machine does not apply.
        let at = |unix| ClockStamp { at: format_rfc3339(unix), unix, ..ClockStamp::default() };
        let stamp = set.map_or_else(|| entry.stamp.clone(), at);
        let epoch = drain_reason::parse_reason(&action.reason).and_then(|own| own.epoch);
        if self.spent_ids.insert(id.clone()) {
            let (id, stamp, action) = (id.clone(), stamp.clone(), action.clone());
            self.spent.push(BudgetSpend { id, stamp, action });
        }
        let (run, action, before) = (run.to_owned(), action.clone(), before.clone());
        self.record_intent(&node, &run, &action.reason);
        self.undone_drains.remove(&node);
        self.drain_details.insert(node.clone(), DrainDetails::default());
        let epoch = epoch.unwrap_or(entry.epoch);
        let drain = OwnDrain { id, epoch, stamp, run, action, before, clean: Vec::new() };
        self.drains.insert(node, drain);
    }

    fn record_condition(&mut self, id: &str, node: &NodeName, shown: bool) {
        if shown {
            self.unacknowledged.remove(node);
        } else {
            self.unacknowledged.insert(node.clone(), id.to_owned());
        }
        let is_of_drain = self.drains.get(node).is_some_and(|drain| drain.id == id);
        if let Some(under) = self.drain_details.get_mut(node).filter(|_| is_of_drain) {
            under.condition = shown;
        }
    }

    fn record_intent(&mut self, node: &NodeName, run: &str, reason: &str) {
        let meant = self.recent_intents.entry(node.clone()).or_default();
        meant.push_back(RecentIntent { run: run.to_owned(), reason: reason.to_owned() });
        if MAX_RECENT_INTENTS < meant.len() {
            meant.pop_front();
        }
    }

    /// Whether this run recently had an intent for this node.
    pub fn has_recent_intent(&self, node: &NodeName, run: &str) -> bool {
        self.recent_intents.get(node).is_some_and(|meant| meant.iter().any(|it| it.run == run))
    }

    fn begin(&mut self, open: OpenIntent) {
        // A repeated intent counts once.
        if !self.known_intents.insert(open.id.clone()) {
            return;
        }
        self.record_intent(&open.action.node, &open.run, &open.action.reason);
        let is_paid_for = matches!(open.action.kind, ActionKind::Drain | ActionKind::Relabel);
        if is_paid_for && self.spent_ids.insert(open.id.clone()) {
            let (id, stamp, action) = (open.id.clone(), open.stamp.clone(), open.action.clone());
            self.spent.push(BudgetSpend { id, stamp, action });
        }
        self.open_intents.push_back(open);
    }

    fn conclude(&mut self, id: &str, result: ActionResult) {
        let Some(at) = self.open_intents.iter().position(|open| open.id == id) else { return };
        match result {
            // The result is unknown: it stays open and charged.
            ActionResult::Unknown => self.open_intents[at].is_late = true,
            ActionResult::Done | ActionResult::Already => {
                if let Some(open) = self.open_intents.remove(at) {
                    self.complete(open);
                }
            }
            // It is not in force now, and it is unknown whether it ever was: a user may have
            // changed the node later, or a crashed scheduler may have lost it. It stays charged.
            ActionResult::Superseded | ActionResult::Refused => {
                self.open_intents.remove(at);
                self.known_intents.remove(id);
            }
            // The scheduler itself refused.
            ActionResult::Failed => {
                self.open_intents.remove(at);
                self.known_intents.remove(id);
                if self.spent_ids.remove(id)
                    && let Some(at) = self.spent.iter().rposition(|spent| spent.id == id)
                {
                    self.spent.remove(at);
                }
            }
        }
    }

    fn complete(&mut self, open: OpenIntent) {
        let OpenIntent { id, stamp, epoch, run, action, before, change, .. } = open;
        let node = action.node.clone();
        self.unacknowledged.remove(&node);
        if let Some(mark) = &action.mark {
            let before = self.marks.insert(node.clone(), mark.clone());
            if let Some(before) = before.filter(|before| before != mark) {
                self.marks_before.insert(node.clone(), before);
            }
        }
        match action.kind {
            // An earlier version drained one GPU of the node: the node itself is not drained, so
            // there is nothing to release or to repeat.
            ActionKind::Drain if action.device.is_some() => {}
            ActionKind::Drain => {
                self.undone_drains.remove(&node);
                self.suspicions.remove(&node);
                self.absent_nodes.remove(&node);
                let marks = change.kubernetes.as_ref();
                let certificate = marks.and_then(|it| it.annotations.get(CERTIFICATE));
                let under = DrainDetails {
                    controller: self.controller.clone(),
                    extra: change.extra,
                    certificate: certificate.is_some_and(Option::is_some),
                    condition: marks.is_some_and(|it| it.condition.is_some()),
                };
                self.drain_details.insert(node.clone(), under);
                let drain = OwnDrain { id, epoch, stamp, run, action, before, clean: Vec::new() };
                self.drains.insert(node, drain);
            }
            ActionKind::Release => {
                self.drains.remove(&node);
                self.drain_details.remove(&node);
                self.absent_nodes.remove(&node);
            }
            ActionKind::Relabel | ActionKind::Certify => {}
        }
    }
}

/// The identity of the gate whose journal starts with this line.
fn gate_id(first: &JournalEntry) -> String {
    let ClockStamp { at, boot, .. } = &first.stamp;
    let process = match &first.event {
        JournalEvent::Opened { host, pid, .. } => format!("{host} {pid}"),
        _ => String::new(),
    };
    kubernetes_label::digest(&format!("{at} {boot} {process}"))
}

#[cfg(test)]
#[path = "journal_state_tests.rs"]
mod tests;
