//! What was heard of a child process, and what its end means.
//!
//! Pure: nothing here starts, ends or waits for anything.

use crate::probes::protocol::ProbeMessage;
use model::exchange::EXCHANGE_PREFIX;
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;

/// Lines of one child that are kept. The largest known, all tests of 72 GPUs
/// against each other with several readings, are some ten thousand.
pub const MAX_MESSAGES: usize = 1 << 20;

/// Lines kept that are none of ours: a library may print what it likes.
const MAX_UNPARSED: usize = 4_096;

/// Characters that are told of what a process printed last.
const MAX_TAIL_CHARS: usize = 300;

/// What one child said, and how it ended.
#[derive(Clone, Debug, Default)]
pub struct ChildOutput {
    /// What people call it: `GPU 3`; empty where it is the only one.
    pub name: String,
    /// The GPU that it is about, where it is about one.
    pub gpu: Option<u32>,
    /// What it said.
    pub messages: Vec<ProbeMessage>,
    /// What was on its output besides, in whatever words.
    pub unparsed: Vec<String>,
    /// Lines that could not be kept.
    pub dropped: u64,
    /// What it was about to do when it was last heard of.
    pub current_step: Option<String>,
    /// What libraries said on its standard error, every line once.
    pub nccl_lines: Vec<String>,
    /// What else came there last.
    pub stderr_tail: Vec<String>,
    /// How it ended; absent while it runs.
    pub exit: Option<ChildExitReason>,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildExitReason {
    /// By itself, and well.
    Success,
    /// By itself, with this exit code.
    Failed(i32),
    /// A signal ended it: a crash, or somebody.
    Signaled(i32),
    /// It said nothing for this many seconds and was ended.
    Hung(f64),
    /// The whole probe was given this many seconds, which are over.
    TimedOut(f64),
    /// The exchange went on without it, for this reason.
    Excluded(String),
    /// The probe was ended from outside, in this way.
    Interrupted(&'static str),
    /// It was not started.
    NotStarted(String),
    /// What it says cannot be followed.
    ProtocolViolation(String),
}

/// What a line of a child is.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildLineKind<'l> {
    /// An exchange is asked for, in this document.
    ExchangeAsk(&'l [u8]),
    /// It was kept, or is none of ours.
    Consumed,
    /// There is no end to it.
    Overflow,
}

impl ChildOutput {
    /// Nothing heard yet of a child.
    pub fn new(name: &str, gpu: Option<u32>) -> Self {
        Self { name: name.to_owned(), gpu, ..Self::default() }
    }

    /// Takes a line of its standard output.
    pub fn push_line<'l>(&mut self, line: &'l [u8]) -> ChildLineKind<'l> {
        if let Some(ask) = line.strip_prefix(EXCHANGE_PREFIX.as_bytes()) {
            return ChildLineKind::ExchangeAsk(ask);
        }
        match serde_json::from_slice(line) {
            Ok(_) if MAX_MESSAGES <= self.messages.len() => {
                self.dropped += 1;
                return ChildLineKind::Overflow;
            }
            Ok(said) => self.messages.push(said),
            // What begins like one of ours and is none was torn or is of another
            // version.
            Err(_) if line.starts_with(b"{\"type\"") => self.dropped += 1,
            Err(_) if self.unparsed.len() < MAX_UNPARSED => {
                self.unparsed.push(String::from_utf8_lossy(line).into_owned());
            }
            Err(_) => {}
        }
        ChildLineKind::Consumed
    }

    /// Whether it said that everything was measured, and ended well.
    pub fn is_complete(&self) -> bool {
        self.exit == Some(ChildExitReason::Success)
            && self.dropped == 0
            && self.messages.contains(&ProbeMessage::End)
    }

    /// The problems that it told of.
    pub fn problems(&self) -> impl Iterator<Item = &ProbeProblem> {
        self.messages.iter().filter_map(|line| match line {
            ProbeMessage::Problem(problem) => Some(problem),
            _ => None,
        })
    }

    /// What its end keeps from being known; nothing where it ended well.
    pub fn exit_problem(&self) -> Option<ProbeProblem> {
        self.problem_for(self.exit.as_ref()?)
    }

    /// What this end would keep from being known.
    pub fn problem_for(&self, fate: &ChildExitReason) -> Option<ProbeProblem> {
        use OutputProblemKind::{Error, Truncated};
        let doing = self.current_step.as_deref().map(clean).filter(|doing| !doing.is_empty());
        let during = doing.map(|doing| format!(" in: {doing}")).unwrap_or_default();
        let who = if self.name.is_empty() { "the probe's process" } else { &self.name };
        let words = self.tail_text();
        let (kind, class, detail) = match fate {
            ChildExitReason::Success if self.dropped != 0 => {
                let lost = self.dropped;
                (Truncated, "unreadable", format!("{who}: {lost} lines could not be understood"))
            }
            // Whoever gives up says why before.
            ChildExitReason::Success
                if self.messages.contains(&ProbeMessage::End)
                    || self.problems().next().is_some() =>
            {
                return None;
            }
            ChildExitReason::Success => {
                (Truncated, "cut-short", format!("{who} ended before its time{words}"))
            }
            ChildExitReason::Failed(code) => {
                let detail = format!("{who} failed with exit code {code}{during}{words}");
                (Error, "child-died", detail)
            }
            ChildExitReason::Signaled(signal) => {
                let name = signal_name(*signal);
                let detail = format!("{who} was ended by {name}{during}{words}");
                (Error, "child-died", detail)
            }
            ChildExitReason::Hung(silent_s) => {
                let detail = format!(
                    "{who} said nothing for {silent_s:.0} s{during}: the call hangs, and the \
                     process was ended. A driver that hangs shows in the kernel log (dmesg, NVRM)"
                );
                (Error, "hung", detail)
            }
            ChildExitReason::TimedOut(limit_s) => {
                let detail = format!(
                    "{who} was ended after {limit_s:.0} s, the limit of the whole probe{during}"
                );
                (Truncated, "out-of-time", detail)
            }
            ChildExitReason::Excluded(why) => {
                (Error, "left-behind", format!("{who}: {}{during}", clean(why)))
            }
            ChildExitReason::Interrupted(how) => {
                (Truncated, "interrupted", format!("{who} was ended, since the probe was {how}"))
            }
            ChildExitReason::NotStarted(why) => {
                (Error, "not-started", format!("{who} was not started: {}", clean(why)))
            }
            ChildExitReason::ProtocolViolation(why) => {
                (Error, "unreadable", format!("{who}: {}", clean(why)))
            }
        };
        let mut problem = ProbeProblem::new(kind, class, detail);
        problem.gpu = self.gpu;
        Some(problem)
    }

    /// What it said on its standard error last.
    fn tail_text(&self) -> String {
        let said = self.stderr_tail.join(" ");
        let skip = said.chars().count().saturating_sub(MAX_TAIL_CHARS);
        let said: String = said.chars().skip(skip).collect();
        if said.is_empty() { said } else { format!("; it said last: {said}") }
    }
}

/// Text from outside on one line, without what steers terminals.
pub fn clean(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control() || c == '\u{fffd}');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A signal as people know it.
fn signal_name(number: i32) -> String {
    // signal(7): those that a crash or an operator sends.
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
