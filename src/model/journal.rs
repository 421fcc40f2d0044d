//! The journal of the gate: an entry before, during and after every action, one line each of
//! `journal.jsonl` (`fabricgate.journal/1`).
//!
//! The journal holds intents and observations; the scheduler is the source of truth about a node.
//! `act::ledger` folds the lines into the current state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::{Action, ActionResult};
use super::eviction::NodeEviction;
use super::finding_class::FindingClass;
use super::id::NodeName;
use super::node_update::NodeUpdate;
use super::scheduler_snapshot::SchedulerNode;

/// Format name of a line.
pub const JOURNAL_FORMAT: &str = "fabricgate.journal/1";

/// A point in time on two clocks: the wall clock may jump, and the uptime counts only within one
/// boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockStamp {
    /// Wall clock, RFC 3339.
    pub at: String,
    /// Wall clock, in seconds since 1970.
    pub unix: i64,
    /// Kernel boot id of the machine that wrote the entry.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Seconds since boot, suspend included.
    #[serde(default)]
    pub uptime_s: f64,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalEntry {
    /// `fabricgate.journal/1`.
    pub format: String,
    /// Sequence number, from 1 and without gaps.
    pub seq: u64,
    /// When the entry was written.
    #[serde(flatten)]
    pub stamp: ClockStamp,
    /// The epoch of the writing gate: every gate that takes the lock increments it.
    pub epoch: u64,
    /// The recorded event.
    #[serde(flatten)]
    pub event: JournalEvent,
}

/// The events that the journal records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JournalEvent {
    /// A gate took the lock.
    Opened {
        /// Hostname of the gate's machine.
        host: String,
        /// Process id on that machine.
        pid: u32,
        /// Version of fabricgate.
        version: String,
    },
    /// An action is about to be carried out.
    Intent {
        /// Id of the intent, made of run, node, kind and epoch.
        id: String,
        /// The run that requested it.
        run: String,
        /// The action. Boxed: most entries are far smaller.
        action: Box<Action>,
        /// The change about to be written.
        change: Box<NodeUpdate>,
        /// The node as it was read immediately before.
        before: Box<SchedulerNode>,
    },
    /// The result of an intent.
    Outcome {
        /// Id of the intent.
        id: String,
        /// The result.
        result: ActionResult,
        /// What the scheduler reported.
        detail: String,
    },
    /// Whether the node shows fabricgate's condition after a completed action: recorded when the
    /// server rejected it, and when it accepted it later.
    Condition {
        /// Id of the intent.
        id: String,
        /// The affected node.
        node: NodeName,
        /// Whether the node shows the condition.
        shown: bool,
    },
    /// A node drained by fabricgate passed a complete run.
    Clean {
        /// The drained node.
        node: NodeName,
        /// Id of the run.
        run: String,
        /// Time of that run, in seconds since 1970.
        measured: i64,
        /// Kernel boot id of the node during the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
    },
    /// A node drained by fabricgate was measured again and did not pass: earlier passes no longer
    /// count.
    Relapsed {
        /// The drained node.
        node: NodeName,
        /// Id of the run.
        run: String,
        /// Time of that run, in seconds since 1970.
        measured: i64,
    },
    /// A run found a node in service below its expected level. The node is drained if a later run
    /// confirms it.
    Suspected {
        /// The suspected node.
        node: NodeName,
        /// Id of the run.
        run: String,
        /// Time of that run, in seconds since 1970.
        measured: i64,
        /// Kernel boot id of the node during the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
        /// Classes of the findings.
        classes: Vec<FindingClass>,
    },
    /// A later run cleared the node: the suspicion no longer counts.
    Cleared {
        /// The cleared node.
        node: NodeName,
        /// Id of the run.
        run: String,
        /// Time of that run, in seconds since 1970.
        measured: i64,
    },
    /// Another client removed fabricgate's drain; the removal is respected.
    Undone {
        /// The affected node.
        node: NodeName,
        /// Id of the intent that was undone.
        id: String,
        /// The present state of the node.
        detail: String,
    },
    /// The scheduler lost fabricgate's drain without a manual change. The drain is repeated.
    Lost {
        /// The affected node.
        node: NodeName,
        /// Id of the intent that was lost.
        id: String,
        /// The evidence for the loss.
        detail: String,
    },
    /// A node drained by fabricgate is no longer known to the scheduler.
    Absent {
        /// The missing node.
        node: NodeName,
    },
    /// The missing node is known to the scheduler again.
    Present {
        /// The returned node.
        node: NodeName,
    },
    /// An operator declared a node permanently gone: it no longer counts.
    Forgotten {
        /// The removed node.
        node: NodeName,
        /// The operator.
        by: String,
        /// The given reason.
        why: String,
    },
    /// An operator adopted a drain in fabricgate's format that this journal did not contain.
    Adopted {
        /// The run named in its reason.
        run: String,
        /// The drain, as the node shows it.
        action: Box<Action>,
        /// The node as it was read.
        before: Box<SchedulerNode>,
        /// Time at which the reason was set, in seconds since 1970, where the scheduler reports
        /// it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set: Option<i64>,
        /// The operator.
        by: String,
        /// The given reason.
        why: String,
    },
    /// The start time of the scheduler's controller, recorded when it changed.
    Controller {
        /// The start time, as the controller reports it.
        started: String,
    },
    /// An operator declared the processes of a machine gone: their holds have ended.
    Gone {
        /// Hostname of the machine.
        host: String,
        /// The operator.
        by: String,
        /// The given reason.
        why: String,
    },
    /// The breaker tripped: only releases are allowed until an operator resets it.
    Tripped {
        /// Why it tripped.
        why: String,
        /// Id of the current run.
        run: String,
    },
    /// An operator reset the breaker.
    Reset {
        /// The operator.
        by: String,
        /// The given reason.
        why: String,
    },
    /// An operator paused draining and measuring.
    Paused {
        /// The operator.
        by: String,
        /// The given reason.
        why: String,
        /// Length of the pause, in seconds.
        for_s: u64,
        /// End of the pause, RFC 3339.
        until: String,
    },
    /// An operator ended the pause early.
    Resumed {
        /// The operator.
        by: String,
        /// The given reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Nodes are about to be held for measuring: a reservation or a job of this name exists from
    /// here on, unless its creation fails.
    Holding {
        /// Name of the hold.
        name: String,
        /// Kind of the hold.
        kind: HoldKind,
        /// The held nodes.
        nodes: Vec<NodeName>,
        /// Held nodes that fabricgate had drained, with their reasons; they are drained again
        /// when the hold ends.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drained: Vec<(NodeName, String)>,
        /// Hostname of the machine whose process needs the hold.
        host: String,
        /// Process id on that machine.
        pid: u32,
    },
    /// An earlier version was about to evict pods from a drained node. Read and displayed, and no
    /// longer written.
    Evicting {
        /// The drained node.
        node: NodeName,
        /// The pods, `namespace/name`.
        pods: Vec<String>,
    },
    /// The result of that eviction. Read and displayed, and no longer written.
    Evicted {
        /// The result per pod.
        eviction: NodeEviction,
    },
    /// The hold is released, or was never created.
    Freed {
        /// Name of the hold.
        name: String,
        /// How it was released.
        detail: String,
    },
}

/// The kinds of holds on nodes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// A scheduler job.
    Job,
    /// A scheduler reservation.
    Reservation,
    /// Pods and the objects they need, all with the label of their run.
    Pods,
}
