//! What the gate writes down before, while and after it acts: one line each of
//! `journal.jsonl` (`fabricgate.journal/1`).
//!
//! The journal holds intentions and what was seen; the truth about a node is
//! the scheduler's. `act::ledger` folds lines into what they mean.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::{Action, ActionResult};
use super::eviction::NodeEviction;
use super::finding_class::FindingClass;
use super::id::NodeName;
use super::node_update::NodeUpdate;
use super::scheduler_snapshot::SchedulerNode;

/// The format of a line.
pub const JOURNAL_FORMAT: &str = "fabricgate.journal/1";

/// A moment, by two clocks: that of the wall may jump, that of the machine's
/// uptime counts only within one boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockStamp {
    /// By the wall's clock, RFC 3339.
    pub at: String,
    /// The same in seconds since 1970.
    pub unix: i64,
    /// The boot of the machine that wrote it, as the kernel names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Seconds since that boot, suspend included.
    #[serde(default)]
    pub uptime_s: f64,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalEntry {
    /// `fabricgate.journal/1`.
    pub format: String,
    /// Its number, from 1 and without gaps.
    pub seq: u64,
    /// When.
    #[serde(flatten)]
    pub stamp: ClockStamp,
    /// Which turn of which gate wrote it: every gate that takes the lock counts
    /// one on.
    pub epoch: u64,
    /// What.
    #[serde(flatten)]
    pub event: JournalEvent,
}

/// What is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JournalEvent {
    /// A gate took its turn.
    Opened {
        /// The machine.
        host: String,
        /// The process there.
        pid: u32,
        /// The version of fabricgate.
        version: String,
    },
    /// An action is about to be tried.
    Intent {
        /// Its name: the run, the node, the kind and the turn make it.
        id: String,
        /// The run that asks for it.
        run: String,
        /// The action. Boxed: most lines are far smaller.
        action: Box<Action>,
        /// What will be written.
        change: Box<NodeUpdate>,
        /// The node as it was read right before.
        before: Box<SchedulerNode>,
    },
    /// How it ended.
    Outcome {
        /// Which intent.
        id: String,
        /// How.
        result: ActionResult,
        /// What the scheduler showed or said.
        detail: String,
    },
    /// Our condition beside an action that is done: noted where the server did not take
    /// it, and where it did later.
    Condition {
        /// The intent.
        id: String,
        /// The node.
        node: NodeName,
        /// It shows.
        shown: bool,
    },
    /// A node that we drained passed a whole run.
    Clean {
        /// The node.
        node: NodeName,
        /// The run.
        run: String,
        /// When that run was made, in seconds since 1970.
        measured: i64,
        /// The boot in which it was measured, as the node's kernel names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
    },
    /// A node that we drained was measured again and did not pass: what it passed
    /// before counts no more.
    Relapsed {
        /// The node.
        node: NodeName,
        /// The run.
        run: String,
        /// When that run was made, in seconds since 1970.
        measured: i64,
    },
    /// A run found that a node in service works below its level. It is drained where
    /// a later run says so again.
    Suspected {
        /// The node.
        node: NodeName,
        /// The run.
        run: String,
        /// When that run was made, in seconds since 1970.
        measured: i64,
        /// The boot in which it was measured, as the node's kernel names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
        /// Classes of what was found.
        classes: Vec<FindingClass>,
    },
    /// A later run found that node well: what was suspected counts no more.
    Cleared {
        /// The node.
        node: NodeName,
        /// The run.
        run: String,
        /// When that run was made, in seconds since 1970.
        measured: i64,
    },
    /// Somebody took our drain away. It is respected.
    Undone {
        /// The node.
        node: NodeName,
        /// The intent that was undone.
        id: String,
        /// How it looks now.
        detail: String,
    },
    /// The scheduler lost our drain, and no person took it away. It is made again.
    Lost {
        /// The node.
        node: NodeName,
        /// The intent that was lost.
        id: String,
        /// How that is known.
        detail: String,
    },
    /// The scheduler no longer knows a node that we drained.
    Absent {
        /// The node.
        node: NodeName,
    },
    /// It knows that node again.
    Present {
        /// The node.
        node: NodeName,
    },
    /// A person says that a node is gone for good: it counts no more.
    Forgotten {
        /// The node.
        node: NodeName,
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// A person takes a drain of our form over that this journal did not know.
    Adopted {
        /// The run that its reason names.
        run: String,
        /// The drain, as the node shows it.
        action: Box<Action>,
        /// The node as it was read.
        before: Box<SchedulerNode>,
        /// When the reason was written, in seconds since 1970, where the scheduler says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set: Option<i64>,
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// When the scheduler's controller started, in its own words: noted where it changed.
    Controller {
        /// The moment.
        started: String,
    },
    /// A person says that the processes of a machine are gone: what they held is ended.
    Gone {
        /// The machine.
        host: String,
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// Nothing but releases from here on, until a person resets it.
    Tripped {
        /// Why.
        why: String,
        /// The run at hand.
        run: String,
    },
    /// A person put the breaker back.
    Reset {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// A person asked that nothing be drained or measured for a while.
    Paused {
        /// Who.
        by: String,
        /// Why.
        why: String,
        /// For how many seconds.
        for_s: u64,
        /// When it ends, RFC 3339.
        until: String,
    },
    /// A person ended that early.
    Resumed {
        /// Who.
        by: String,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Nodes are about to be held for measuring: a reservation or a job of this
    /// name will exist from here on, unless it cannot be made.
    Holding {
        /// Its name.
        name: String,
        /// What it is.
        kind: HoldKind,
        /// Which nodes.
        nodes: Vec<NodeName>,
        /// Those among them that we had drained, with their reasons, and that are
        /// drained again when the hold ends.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drained: Vec<(NodeName, String)>,
        /// The machine and process that need it.
        host: String,
        /// The process there.
        pid: u32,
    },
    /// An earlier version was about to ask pods of a node that we drained to leave. Read
    /// and shown, not written any more.
    Evicting {
        /// The node.
        node: NodeName,
        /// Which, `namespace/name`.
        pods: Vec<String>,
    },
    /// What became of that. Read and shown, not written any more.
    Evicted {
        /// Pod by pod.
        eviction: NodeEviction,
    },
    /// It is gone again, or never came to be.
    Freed {
        /// Its name.
        name: String,
        /// How.
        detail: String,
    },
}

/// What holds nodes for measuring.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// A job of the scheduler.
    Job,
    /// A reservation.
    Reservation,
    /// Pods, and what they need, all with the label of their run.
    Pods,
}
