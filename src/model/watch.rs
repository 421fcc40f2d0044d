//! What the standing gate tells of itself, one JSON document a line
//! (`fabricgate.watch/1`).
//!
//! Values only: nothing here decides anything.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};

/// The format of a line.
pub const WATCH_FORMAT: &str = "fabricgate.watch/1";

/// Why nodes are measured, most urgent first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DueReason {
    /// It joined with the start-up taint.
    Unverified,
    /// We drained it, and it changed, rested, or passed once.
    Repaired,
    /// Its certificate counts no more.
    Expired,
    /// It never had one.
    Missing,
    /// Its certificate ends soon.
    Expiring,
    /// It was not looked at for long.
    Audit,
}

impl DueReason {
    /// Its name in documents.
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

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchLine {
    /// `fabricgate.watch/1`.
    pub format: String,
    /// When, RFC 3339.
    pub at: String,
    /// What.
    #[serde(flatten)]
    pub event: WatchEvent,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WatchEvent {
    /// The watch began.
    Began {
        /// The version of fabricgate.
        version: String,
        /// The scheduler, and how it is reached.
        scheduler: String,
        /// Jobs are started; without it, only told.
        apply: bool,
    },
    /// Another instance is at work, and this one waits for its end.
    Waiting {
        /// Who it is.
        why: String,
    },
    /// This instance is the one at work.
    Leading {
        /// Its term, where there is a Lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        term: Option<String>,
    },
    /// It is no more.
    Lost {
        /// Why.
        why: String,
    },
    /// What was seen and decided, where it differs from the last time.
    Looked {
        /// Nodes that the scheduler tells of.
        nodes: usize,
        /// Nodes in claimed domains.
        claimed: usize,
        /// Nodes whose certificate counts.
        certified: usize,
        /// Drains of ours that stand.
        drained: usize,
        /// The breaker has tripped: since when and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        breaker: Option<String>,
        /// A person asked that nothing be drained or measured: until when and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paused: Option<String>,
        /// Nodes that are not measured now, by why.
        not_due: Vec<DeferredNodes>,
    },
    /// Nodes are to be measured.
    Due(WatchJob),
    /// A job was started.
    Started(WatchJob),
    /// A job printed a line.
    Said {
        /// Which.
        job: String,
        /// What.
        line: String,
    },
    /// A job has ended.
    Ended {
        /// Which.
        #[serde(flatten)]
        job: WatchJob,
        /// Its exit code; absent where it was ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<u8>,
        /// What that means.
        outcome: JobOutcome,
        /// How long it took.
        seconds: f64,
    },
    /// What nodes carry counts no more and is taken off, or is not as our
    /// record has it and is said again.
    Marks {
        /// The nodes.
        nodes: Vec<NodeName>,
        /// Why.
        why: String,
        /// What became of it; absent where it was only told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<String>,
    },
    /// Something did not work; it is tried again.
    Trouble {
        /// What.
        what: String,
    },
    /// The watch was told to end and waits for its jobs.
    Stopping {
        /// Why.
        why: String,
    },
}

/// Nodes that are not measured, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeferredNodes {
    /// Why.
    pub why: String,
    /// The nodes, as a host list.
    pub nodes: String,
    /// How many.
    pub count: usize,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchJob {
    /// Its name; empty where nothing was started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// The profile.
    pub profile: String,
    /// The domain.
    pub domain: DomainName,
    /// The nodes it is for.
    pub nodes: Vec<NodeName>,
    /// Idle nodes that are measured with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partners: Vec<NodeName>,
    /// The most urgent of its causes.
    pub cause: DueReason,
    /// Why, in one sentence.
    pub why: String,
    /// The command.
    pub command: Vec<String>,
    /// The file with what it prints; empty where nothing was started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
}

/// How a job ended, by its exit code.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Everything was as expected (0).
    Passed,
    /// Something is degraded or failed (3).
    Closed,
    /// Something is unknown, nothing worse (4).
    Inconclusive,
    /// A scheduler, tool or node was out of reach (5).
    Unreachable,
    /// A budget refused something, or something was done in part (6).
    Refused,
    /// The command or its configuration is wrong (2), or there is a bug (1).
    Broken,
    /// It was ended by a signal.
    Killed,
}

impl JobOutcome {
    /// What an exit code means.
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

    /// How bad it is, beside others: not knowing is worse than knowing of a
    /// fault only where nobody could be asked.
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

    /// Its name in documents.
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
