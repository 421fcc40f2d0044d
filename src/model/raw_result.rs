//! The raw result of running one step of a plan, before any parsing.
//!
//! The output bytes are in files next to this record. Nothing here judges the numbers in them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};

/// How a process ended, or why it was not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum ProcessEnding {
    /// It exited.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// It was killed by a signal from outside fabricgate.
    Signalled {
        /// The signal number.
        signal: i32,
    },
    /// It exceeded its time limit and was killed.
    TimedOut,
    /// The whole run was interrupted and the process was killed.
    Interrupted,
    /// The executable was not found.
    Missing {
        /// The name that was searched for.
        program: String,
    },
    /// It was not started because the node is in use.
    Busy {
        /// The job or process that uses the node.
        why: String,
    },
    /// Some of several nodes that ran it together failed or did not run it; the output of the
    /// others is kept.
    Partly {
        /// The failed nodes, with the reasons.
        why: String,
    },
    /// It could not be started, or the node was unreachable.
    NotStarted {
        /// The reason.
        why: String,
        /// The unreachable node, among several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    },
}

impl ProcessEnding {
    /// An ending for a process that could not be started.
    pub fn not_started(why: impl Into<String>) -> Self {
        Self::NotStarted { why: why.into(), node: None }
    }

    /// Whether the tool exited and reported success.
    pub fn is_success(&self) -> bool {
        *self == Self::Exited { code: 0 }
    }

    /// Whether the tool or the node was unavailable, which is an environment problem. Shells,
    /// `env` and ssh return 127 and 126 for a command that does not exist or cannot be executed
    /// (POSIX, "Exit Status for Commands").
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
            Self::Exited { code: 0 } => f.write_str("succeeded"),
            Self::Exited { code: 127 } => f.write_str("exit code 127: the tool was not found"),
            Self::Exited { code: 126 } => f.write_str("exit code 126: the tool cannot be executed"),
            Self::Exited { code } => write!(f, "exit code {code}"),
            Self::Signalled { signal } => write!(f, "killed by signal {signal}"),
            Self::TimedOut => f.write_str("exceeded its time limit and was killed"),
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
    /// Index of the step in the plan.
    pub step: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// The domain, where all nodes belong to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The participating nodes; the first ran the command, or all of them did.
    pub nodes: Vec<NodeName>,
    /// The rail of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Name of the probe.
    pub probe: String,
    /// Number of the reading, from 0.
    pub reading: u32,
    /// The command that was started, launcher included; with several nodes, the command of the
    /// first.
    pub argv: Vec<String>,
    /// How the process ended.
    pub ending: ProcessEnding,
    /// Start time, RFC 3339.
    pub started: String,
    /// Duration, in seconds.
    pub duration_s: f64,
    /// Path of its standard output within the run folder; absent where no process was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Path of its standard error; absent also where it printed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Where every node ran it: bytes of standard output from each of `nodes`, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<u64>,
    /// Bytes of standard output beyond the size limit.
    #[serde(default)]
    pub stdout_dropped: u64,
    /// Bytes of standard error beyond the size limit.
    #[serde(default)]
    pub stderr_dropped: u64,
    /// Why its output is missing or incomplete in the run folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
    /// The last non-empty line of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
    /// One-minute load average of the first node after the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// The GPUs of the first node after the step, one line each: index, UUID, clocks,
    /// temperature, power, VBIOS, as nvidia-smi prints them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

/// Format name of a line of `results.jsonl`.
pub const RESULT_FORMAT: &str = "fabricgate.result/1";

impl RawResult {
    /// Where it ran, for messages: a node, a pair, or the number of nodes.
    pub fn location(&self) -> String {
        format_location(&self.nodes)
    }

    /// Why the result is unusable or incomplete; `None` where the tool succeeded and all of its
    /// output was kept.
    pub fn gap_reason(&self) -> Option<String> {
        let mut why = if self.ending.is_success() {
            if self.stdout_dropped == 0 {
                return None;
            }
            let more = format!("printed {} bytes beyond the size limit", self.stdout_dropped);
            self.not_kept.as_ref().map_or(more.clone(), |why| format!("{more}: {why}"))
        } else {
            self.ending.to_string()
        };
        if let Some(complaint) = &self.complaint
            && !self.ending.is_success()
        {
            why.push_str("; last line on stderr: ");
            why.push_str(complaint);
        }
        Some(why)
    }
}

/// Nodes in text: one, a pair, or the first and the number of others.
pub fn format_location(nodes: &[NodeName]) -> String {
    match nodes {
        [] => "no node".to_owned(),
        [one] => one.to_string(),
        [one, other] => format!("{one} and {other}"),
        [first, rest @ ..] => format!("{first} and {} others", rest.len()),
    }
}
