//! What was heard of a child process, and what its end means.
//!
//! Pure: nothing here starts, ends or waits for anything.

use crate::probes::said::Line;
use model::exchange::PREFIX;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// Lines of one child that are kept. The largest known, all tests of 72 GPUs
/// against each other with several readings, are some ten thousand.
pub const MOST_LINES: usize = 1 << 20;

/// Lines kept that are none of ours: a library may print what it likes.
const MOST_STRANGE: usize = 4_096;

/// Characters that are told of what a process printed last.
const LAST_WORDS: usize = 300;

/// What one child said, and how it ended.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// What people call it: `GPU 3`; empty where it is the only one.
    pub name: String,
    /// The GPU that it is about, where it is about one.
    pub gpu: Option<u32>,
    /// What it said.
    pub lines: Vec<Line>,
    /// What was on its output besides, in whatever words.
    pub strange: Vec<String>,
    /// Lines that could not be kept.
    pub lost: u64,
    /// What it was about to do when it was last heard of.
    pub doing: Option<String>,
    /// What libraries said on its standard error, every line once.
    pub chatter: Vec<String>,
    /// What else came there last.
    pub words: Vec<String>,
    /// How it ended; absent while it runs.
    pub fate: Option<Fate>,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// By itself, and well.
    Ended,
    /// By itself, with this exit code.
    Failed(i32),
    /// A signal ended it: a crash, or somebody.
    Died(i32),
    /// It said nothing for this many seconds and was ended.
    Hung(f64),
    /// The whole probe was given this many seconds, which are over.
    OutOfTime(f64),
    /// The exchange went on without it, for this reason.
    Left(String),
    /// The probe was ended from outside, in this way.
    Interrupted(&'static str),
    /// It was not started.
    NotStarted(String),
    /// What it says cannot be followed.
    Babbled(String),
}

/// What a line of a child is.
#[derive(Clone, Debug, PartialEq)]
pub enum Word<'l> {
    /// An exchange is asked for, in this document.
    Asks(&'l [u8]),
    /// It was kept, or is none of ours.
    Said,
    /// There is no end to it.
    TooMuch,
}

impl Heard {
    /// Nothing heard yet of a child.
    pub fn of(name: &str, gpu: Option<u32>) -> Self {
        Self { name: name.to_owned(), gpu, ..Self::default() }
    }

    /// Takes a line of its standard output.
    pub fn take<'l>(&mut self, line: &'l [u8]) -> Word<'l> {
        if let Some(ask) = line.strip_prefix(PREFIX.as_bytes()) {
            return Word::Asks(ask);
        }
        match serde_json::from_slice(line) {
            Ok(_) if MOST_LINES <= self.lines.len() => {
                self.lost += 1;
                return Word::TooMuch;
            }
            Ok(said) => self.lines.push(said),
            // What begins like one of ours and is none was torn or is of another
            // version.
            Err(_) if line.starts_with(b"{\"type\"") => self.lost += 1,
            Err(_) if self.strange.len() < MOST_STRANGE => {
                self.strange.push(String::from_utf8_lossy(line).into_owned());
            }
            Err(_) => {}
        }
        Word::Said
    }

    /// Whether it said that everything was measured, and ended well.
    pub fn is_whole(&self) -> bool {
        self.fate == Some(Fate::Ended) && self.lost == 0 && self.lines.contains(&Line::End)
    }

    /// The problems that it told of.
    pub fn told(&self) -> impl Iterator<Item = &ProbeProblem> {
        self.lines.iter().filter_map(|line| match line {
            Line::Problem(problem) => Some(problem),
            _ => None,
        })
    }

    /// What its end keeps from being known; nothing where it ended well.
    pub fn problem(&self) -> Option<ProbeProblem> {
        self.problem_of(self.fate.as_ref()?)
    }

    /// What this end would keep from being known.
    pub fn problem_of(&self, fate: &Fate) -> Option<ProbeProblem> {
        use ProblemKind::Error;
        use ProblemKind::Truncated;
        let doing = self.doing.as_deref().map(clean).filter(|doing| !doing.is_empty());
        let during = doing.map(|doing| format!(" in: {doing}")).unwrap_or_default();
        let who = if self.name.is_empty() { "the probe's process" } else { &self.name };
        let words = self.last_words();
        let (kind, class, detail) = match fate {
            Fate::Ended if self.lost != 0 => {
                let lost = self.lost;
                (Truncated, "unreadable", format!("{who}: {lost} lines could not be understood"))
            }
            // Whoever gives up says why before.
            Fate::Ended if self.lines.contains(&Line::End) || self.told().next().is_some() => {
                return None;
            }
            Fate::Ended => (Truncated, "cut-short", format!("{who} ended before its time{words}")),
            Fate::Failed(code) => {
                let detail = format!("{who} failed with exit code {code}{during}{words}");
                (Error, "child-died", detail)
            }
            Fate::Died(signal) => {
                let name = signal_name(*signal);
                let detail = format!("{who} was ended by {name}{during}{words}");
                (Error, "child-died", detail)
            }
            Fate::Hung(silent_s) => {
                let detail = format!(
                    "{who} said nothing for {silent_s:.0} s{during}: the call hangs, and the \
                     process was ended. A driver that hangs shows in the kernel log (dmesg, NVRM)"
                );
                (Error, "hung", detail)
            }
            Fate::OutOfTime(limit_s) => {
                let detail = format!(
                    "{who} was ended after {limit_s:.0} s, the limit of the whole probe{during}"
                );
                (Truncated, "out-of-time", detail)
            }
            Fate::Left(why) => (Error, "left-behind", format!("{who}: {}{during}", clean(why))),
            Fate::Interrupted(how) => {
                (Truncated, "interrupted", format!("{who} was ended, since the probe was {how}"))
            }
            Fate::NotStarted(why) => {
                (Error, "not-started", format!("{who} was not started: {}", clean(why)))
            }
            Fate::Babbled(why) => (Error, "unreadable", format!("{who}: {}", clean(why))),
        };
        let mut problem = ProbeProblem::new(kind, class, detail);
        problem.gpu = self.gpu;
        Some(problem)
    }

    /// What it said on its standard error last.
    fn last_words(&self) -> String {
        let said = self.words.join(" ");
        let skip = said.chars().count().saturating_sub(LAST_WORDS);
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
