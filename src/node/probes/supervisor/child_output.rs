//! Output of a child process, and the problem that follows from its end.
//!
//! Pure: starts, ends and awaits no process.

use crate::probes::protocol::ProbeMessage;
use model::exchange::EXCHANGE_PREFIX;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Maximum messages of one child. The largest known output, all tests of 72 GPUs with each other
/// and several readings, has some ten thousand.
pub const MAX_MESSAGES: usize = 1 << 20;

/// Maximum foreign lines to keep: a library may print any text.
const MAX_UNPARSED: usize = 4_096;

/// Maximum characters of the last output to report.
const MAX_TAIL_CHARS: usize = 300;

/// The output of one child, and how it ended.
#[derive(Clone, Debug, Default)]
pub struct ChildOutput {
    /// Name in messages: `GPU 3`; empty if it is the only one.
    pub name: String,
    /// Its GPU, if it has exactly one.
    pub gpu: Option<u32>,
    /// Its messages.
    pub messages: Vec<ProbeMessage>,
    /// Other lines of its output, verbatim.
    pub unparsed: Vec<String>,
    /// Number of messages that were lost.
    pub dropped: u64,
    /// The last announced step.
    pub current_step: Option<String>,
    /// Lines of libraries on standard error, each once.
    pub nccl_lines: Vec<String>,
    /// The last other lines on standard error.
    pub stderr_tail: Vec<String>,
    /// How it ended; absent while it runs.
    pub exit: Option<ChildExitReason>,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildExitReason {
    /// It exited with code 0.
    Success,
    /// It exited with this code.
    Failed(i32),
    /// A signal ended it: a crash, or a kill from outside.
    Signaled(i32),
    /// It was killed after this many seconds of silence.
    Hung(f64),
    /// It was killed at the time limit of the whole probe, in seconds.
    TimedOut(f64),
    /// The exchange continued without it, for this reason.
    Excluded(String),
    /// The probe was ended from outside, in this way.
    Interrupted(&'static str),
    /// It did not start, for this reason.
    NotStarted(String),
    /// It violated the protocol.
    ProtocolViolation(String),
}

/// The kind of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildLineKind<'l> {
    /// A request for an exchange, as JSON.
    ExchangeAsk(&'l [u8]),
    /// A message, or a foreign line.
    Consumed,
    /// There are too many messages.
    Overflow,
}

impl ChildOutput {
    /// Output of a child without any line yet.
    pub fn new(name: &str, gpu: Option<u32>) -> Self {
        Self { name: name.to_owned(), gpu, ..Self::default() }
    }

    /// Handles a line of its standard output.
    pub fn push_line<'l>(&mut self, line: &'l [u8]) -> ChildLineKind<'l> {
        if let Some(ask) = line.strip_prefix(EXCHANGE_PREFIX.as_bytes()) {
            return ChildLineKind::ExchangeAsk(ask);
        }
        match serde_json::from_slice(line) {
            Ok(_) if MAX_MESSAGES <= self.messages.len() => {
                self.dropped += 1;
                return ChildLineKind::Overflow;
            }
            Ok(message) => self.messages.push(message),
            // A line with the prefix of a message that does not parse was truncated, or has another
            // version.
            Err(_) if line.starts_with(b"{\"type\"") => self.dropped += 1,
            Err(_) if self.unparsed.len() < MAX_UNPARSED => {
                self.unparsed.push(String::from_utf8_lossy(line).into_owned());
            }
            Err(_) => {}
        }
        ChildLineKind::Consumed
    }

    /// True if it reported the end and exited with code 0.
    pub fn is_complete(&self) -> bool {
        self.exit == Some(ChildExitReason::Success)
            && self.dropped == 0
            && self.messages.contains(&ProbeMessage::End)
    }

    /// The problems that it reported.
    pub fn problems(&self) -> impl Iterator<Item = &ProbeProblem> {
        self.messages.iter().filter_map(|line| match line {
            ProbeMessage::Problem(problem) => Some(problem),
            _ => None,
        })
    }

    /// The problem that follows from its end; `None` if it succeeded.
    pub fn exit_problem(&self) -> Option<ProbeProblem> {
        self.problem_for(self.exit.as_ref()?)
    }

    /// The problem that follows from this end.
    pub fn problem_for(&self, fate: &ChildExitReason) -> Option<ProbeProblem> {
        use OutputProblemKind::{Error, Truncated};
        let doing = self.current_step.as_deref().map(clean).filter(|doing| !doing.is_empty());
        let during = doing.map(|doing| format!(" in: {doing}")).unwrap_or_default();
        let subject = if self.name.is_empty() { "the probe's process" } else { &self.name };
        let tail = self.tail_text();
        let (kind, class, detail) = match fate {
            ChildExitReason::Success if self.dropped != 0 => {
                let lost = self.dropped;
                (
                    Truncated,
                    ProbeProblemClass::Unreadable,
                    format!("{subject}: {lost} lines are unreadable"),
                )
            }
            // A child that gives up reports the reason first.
            ChildExitReason::Success
                if self.messages.contains(&ProbeMessage::End)
                    || self.problems().next().is_some() =>
            {
                return None;
            }
            ChildExitReason::Success => {
                (Truncated, ProbeProblemClass::CutShort, format!("{subject} ended early{tail}"))
            }
            ChildExitReason::Failed(code) => {
                let detail = format!("{subject} failed with exit code {code}{during}{tail}");
                (Error, ProbeProblemClass::ChildDied, detail)
            }
            ChildExitReason::Signaled(signal) => {
                let name = signal_name(*signal);
                let detail = format!("{subject} was killed by {name}{during}{tail}");
                (Error, ProbeProblemClass::ChildDied, detail)
            }
            ChildExitReason::Hung(silent_s) => {
                let detail = format!(
                    "{subject} was silent for {silent_s:.0} s{during}: the call hangs, and the \
                     process was killed. The kernel log shows a hanging driver (dmesg, NVRM)"
                );
                (Error, ProbeProblemClass::Hung, detail)
            }
            ChildExitReason::TimedOut(limit_s) => {
                let detail = format!(
                    "{subject} was killed after {limit_s:.0} s, the limit of the whole \
                     probe{during}"
                );
                (Truncated, ProbeProblemClass::OutOfTime, detail)
            }
            ChildExitReason::Excluded(why) => {
                (Error, ProbeProblemClass::LeftBehind, format!("{subject}: {}{during}", clean(why)))
            }
            ChildExitReason::Interrupted(how) => (
                Truncated,
                ProbeProblemClass::Interrupted,
                format!("{subject} was killed because the probe was {how}"),
            ),
            ChildExitReason::NotStarted(why) => (
                Error,
                ProbeProblemClass::NotStarted,
                format!("{subject} did not start: {}", clean(why)),
            ),
            ChildExitReason::ProtocolViolation(why) => {
                (Error, ProbeProblemClass::Unreadable, format!("{subject}: {}", clean(why)))
            }
        };
        let mut problem = ProbeProblem::new(kind, class, detail);
        problem.gpu = self.gpu;
        Some(problem)
    }

    /// The last lines of its standard error, as text.
    fn tail_text(&self) -> String {
        let tail = self.stderr_tail.join(" ");
        let skip = tail.chars().count().saturating_sub(MAX_TAIL_CHARS);
        let tail: String = tail.chars().skip(skip).collect();
        if tail.is_empty() { tail } else { format!("; last output: {tail}") }
    }
}

/// External text on one line, without terminal control characters.
pub fn clean(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control() || c == '\u{fffd}');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn signal_name(number: i32) -> String {
    // signal(7): the signals of crashes and operators.
    let name = match number {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    format!("{name} ({number})")
}
