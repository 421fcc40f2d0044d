//! What running one step of a plan gave: the raw result, before any reading.
//!
//! The bytes themselves lie in files next to this record. Nothing here says
//! whether the numbers in them are good.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};

/// How a process ended, or why there was none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum ProcessEnding {
    /// It ended by itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// A signal from elsewhere ended it.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// It ran past its time limit and was ended.
    TimedOut,
    /// The whole run was interrupted and it was ended.
    Interrupted,
    /// There is no such executable.
    Missing {
        /// The name that was looked for.
        program: String,
    },
    /// It was not started because somebody uses the node.
    Busy {
        /// Who.
        why: String,
    },
    /// Of several nodes that ran it together, some did not, or not to a good end;
    /// what the others printed is kept.
    Partly {
        /// Which, and why.
        why: String,
    },
    /// It could not be started, or the node could not be reached.
    NotStarted {
        /// Why.
        why: String,
        /// Of several nodes, the one that could not be reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    },
}

impl ProcessEnding {
    /// It could not be started.
    pub fn not_started(why: impl Into<String>) -> Self {
        Self::NotStarted { why: why.into(), node: None }
    }

    /// Whether the tool ended by itself and says that all went well.
    pub fn is_success(&self) -> bool {
        *self == Self::Exited { code: 0 }
    }

    /// Whether the tool or the node was out of reach, which is a matter of the
    /// environment. 127 and 126 are what shells, `env` and ssh give for a
    /// command that is not there or cannot be executed (POSIX, "Exit Status
    /// for Commands").
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::NotStarted { .. } | Self::Exited { code: 126 | 127 }
        )
    }
}

impl fmt::Display for ProcessEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code: 0 } => f.write_str("ended well"),
            Self::Exited { code: 127 } => f.write_str("exit code 127: the tool was not found"),
            Self::Exited { code: 126 } => f.write_str("exit code 126: it cannot be executed"),
            Self::Exited { code } => write!(f, "exit code {code}"),
            Self::Signalled { signal } => write!(f, "killed by signal {signal}"),
            Self::TimedOut => f.write_str("ran past its time limit and was ended"),
            Self::Interrupted => f.write_str("the run was interrupted"),
            Self::Missing { program } => write!(f, "{program}: not found"),
            Self::Busy { why } | Self::Partly { why } | Self::NotStarted { why, .. } => {
                f.write_str(why)
            }
        }
    }
}

/// The result of one reading of one step (`fabricgate.result/1`, a line of
/// `results.jsonl`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RawResult {
    /// `fabricgate.result/1`.
    pub format: String,
    /// The step's number in the plan.
    pub step: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// The domain, where all nodes are of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The nodes that took part; the first ran the command, or all of them did.
    pub nodes: Vec<NodeName>,
    /// The rail, where one is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The probe.
    pub probe: String,
    /// Which reading of it, from 0.
    pub reading: u32,
    /// What was really started, launcher included; where several nodes ran it, by
    /// the first of them.
    pub argv: Vec<String>,
    /// How it ended.
    pub ending: ProcessEnding,
    /// When it started, RFC 3339.
    pub started: String,
    /// How long it ran, in seconds.
    pub duration_s: f64,
    /// Its standard output, as a path inside the run folder; absent where no
    /// process was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Its standard error, likewise; absent also where it printed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Where every node ran it: bytes of standard output that each of `nodes` sent, in
    /// their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<u64>,
    /// Bytes of standard output beyond what is kept.
    #[serde(default)]
    pub stdout_dropped: u64,
    /// Bytes of standard error beyond what is kept.
    #[serde(default)]
    pub stderr_dropped: u64,
    /// Why its output is not, or not wholly, in the run folder, where it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
    /// The last line of standard error that says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
    /// Load average of the first node afterwards, over a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// One line per GPU of the first node afterwards: index, UUID, clocks,
    /// temperature, power, VBIOS, as the driver's tool prints them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

/// The format of a line of `results.jsonl`.
pub const RESULT_FORMAT: &str = "fabricgate.result/1";

impl RawResult {
    /// Where it ran, for people: a node, or two, or how many.
    pub fn location(&self) -> String {
        format_location(&self.nodes)
    }

    /// Why nothing, or not everything, may be read from this result; `None`
    /// where the tool ended well and all of its output was kept.
    pub fn gap_reason(&self) -> Option<String> {
        let mut why = if self.ending.is_success() {
            if self.stdout_dropped == 0 {
                return None;
            }
            let more = format!("printed {} bytes more than are kept", self.stdout_dropped);
            self.not_kept.as_ref().map_or(more.clone(), |why| format!("{more}: {why}"))
        } else {
            self.ending.to_string()
        };
        if let Some(complaint) = &self.complaint
            && !self.ending.is_success()
        {
            why.push_str("; its last words: ");
            why.push_str(complaint);
        }
        Some(why)
    }
}

/// Nodes for people: one, a pair, or the first and how many.
pub fn format_location(nodes: &[NodeName]) -> String {
    match nodes {
        [] => "no node".to_owned(),
        [one] => one.to_string(),
        [one, other] => format!("{one} and {other}"),
        [first, rest @ ..] => format!("{first} and {} others", rest.len()),
    }
}
