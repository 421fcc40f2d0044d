//! The events of the standing gate, one JSON document per line (`fabricgate.watch/1`).
//!
//! Values only: nothing here makes a decision.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};

/// Format name of a line.
pub const WATCH_FORMAT: &str = "fabricgate.watch/1";

/// Why nodes are due for measuring, most urgent first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DueReason {
    /// The node joined with the start-up taint.
    Unverified,
    /// A node drained by fabricgate has changed, has rested, or has passed once.
    Repaired,
    /// Its certificate is no longer valid.
    Expired,
    /// It has no certificate.
    Missing,
    /// Its certificate expires soon.
    Expiring,
    /// Its last measurement is too old.
    Audit,
}

impl DueReason {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unverified => "unverified",
            Self::Repaired => "repaired",
            Self::Expired => "expired",
            Self::Missing => "missing",
            Self::Expiring => "expiring",
            Self::Audit => "audit",
        }
    }
}

impl fmt::Display for DueReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One line of the event log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchLine {
    /// `fabricgate.watch/1`.
    pub format: String,
    /// Time of the event, RFC 3339.
    pub at: String,
    /// The event itself.
    #[serde(flatten)]
    pub event: WatchEvent,
}

/// The events of the watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WatchEvent {
    /// The watch started.
    Began {
        /// Version of fabricgate.
        version: String,
        /// The scheduler, and how it is accessed.
        scheduler: String,
        /// Jobs are started; otherwise they are only reported.
        apply: bool,
    },
    /// Another instance leads, and this one waits for it to end.
    Waiting {
        /// The leading instance.
        why: String,
    },
    /// This instance leads.
    Leading {
        /// Its term, with a Lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        term: Option<String>,
    },
    /// This instance no longer leads.
    Lost {
        /// The reason.
        why: String,
    },
    /// The observed state and the decisions, logged when they change.
    Looked {
        /// Nodes reported by the scheduler.
        nodes: usize,
        /// Nodes in claimed domains.
        claimed: usize,
        /// Nodes with a valid certificate.
        certified: usize,
        /// Nodes drained by fabricgate.
        drained: usize,
        /// Since when and why the breaker is tripped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        breaker: Option<String>,
        /// Until when and why an operator paused draining and measuring.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paused: Option<String>,
        /// Nodes that are not measured now, by reason.
        not_due: Vec<DeferredNodes>,
    },
    /// Nodes are due for measuring.
    Due(WatchJob),
    /// A job was started.
    Started(WatchJob),
    /// A job printed a line.
    #[serde(rename = "said")]
    LogLine {
        /// Name of the job.
        job: String,
        /// The printed line.
        line: String,
    },
    /// A job has ended.
    Ended {
        /// The ended job.
        #[serde(flatten)]
        job: WatchJob,
        /// Its exit code; absent if it was killed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<u8>,
        /// Meaning of the exit code.
        outcome: JobOutcome,
        /// Duration of the job.
        seconds: f64,
    },
    /// Marks on nodes were removed because they are no longer valid, or rewritten because they
    /// differ from the record.
    Marks {
        /// The affected nodes.
        nodes: Vec<NodeName>,
        /// The reason.
        why: String,
        /// The result; absent where the change was only reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<String>,
    },
    /// An operation failed and is retried.
    Trouble {
        /// Description of the failure.
        what: String,
    },
    /// The watch received a stop request and waits for its jobs.
    Stopping {
        /// The reason.
        why: String,
    },
}

/// Nodes that are not measured, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeferredNodes {
    /// The reason.
    pub why: String,
    /// The nodes, as a host list.
    pub nodes: String,
    /// Number of nodes.
    pub count: usize,
}

/// A measuring job of the watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchJob {
    /// Name of the job; empty where none was started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// Profile of the sweep.
    pub profile: String,
    /// The measured domain.
    pub domain: DomainName,
    /// The nodes that are due.
    pub nodes: Vec<NodeName>,
    /// Idle nodes that serve as measuring partners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partners: Vec<NodeName>,
    /// The most urgent reason.
    pub cause: DueReason,
    /// The reason, in one sentence.
    pub why: String,
    /// Command line of the job.
    pub command: Vec<String>,
    /// The file with its output; empty where none was started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
}

/// How a job ended, by its exit code.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Every node passed (0).
    Passed,
    /// A node is degraded or failed (3).
    Closed,
    /// A node is unknown, none is worse (4).
    Inconclusive,
    /// A scheduler, tool or node was unreachable (5).
    Unreachable,
    /// A budget refused an action, or an action is incomplete (6).
    Refused,
    /// The command or its configuration is wrong (2), or there is a bug (1).
    Broken,
    /// It was ended by a signal.
    Killed,
}

impl JobOutcome {
    /// The meaning of an exit code.
    pub fn from_exit_code(code: Option<u8>) -> Self {
        match code {
            Some(0) => Self::Passed,
            Some(3) => Self::Closed,
            Some(4) => Self::Inconclusive,
            Some(5) => Self::Unreachable,
            Some(6) => Self::Refused,
            Some(_) => Self::Broken,
            None => Self::Killed,
        }
    }

    /// Severity relative to other outcomes: unknown is better than a known fault, unless the
    /// nodes or the scheduler could not be queried.
    pub fn severity(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Inconclusive => 1,
            Self::Closed => 2,
            Self::Refused => 3,
            Self::Unreachable | Self::Killed => 4,
            Self::Broken => 5,
        }
    }

    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Closed => "closed",
            Self::Inconclusive => "inconclusive",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Killed => "killed",
        }
    }
}
