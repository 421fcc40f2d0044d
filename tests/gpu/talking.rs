//! Child processes of a probe that exchange data, each on its own machine, and the board between
//! them.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use model::exchange::{EXCHANGE_PREFIX, ExchangeReply, ExchangeRequest};
use model::probe_report::ProbeProblem;
use node::probes::exchange_group::ExchangeGroup;
use node::probes::protocol::{ProbeMatrixCell, ProbeMessage};

use crate::stub::Machine;

/// Time limit of all processes; after it a test reports a hang.
const HANGS: Duration = Duration::from_secs(120);

/// One process: its name, its machine, and its task.
pub(crate) struct Talker {
    pub(crate) name: String,
    pub(crate) machine: Machine,
    /// The hidden command.
    pub(crate) command: &'static str,
    /// Its task, in JSON, where `{cuda}` stands for the library's path and `{root}` for its
    /// folder.
    pub(crate) task: String,
}

/// Output of a process.
#[derive(Debug, Default)]
pub(crate) struct ProbeOutput {
    pub(crate) lines: Vec<ProbeMessage>,
    /// Its progress messages.
    pub(crate) progress: String,
    pub(crate) code: Option<i32>,
}

impl ProbeOutput {
    /// The number of a cell, in its first reading.
    pub(crate) fn value(&self, testcase: &str, row: &str, col: &str) -> Option<f64> {
        self.cells(testcase)
            .into_iter()
            .find(|it| it.row == row && it.col == col)
            .map(|it| it.value)
    }

    pub(crate) fn cells(&self, testcase: &str) -> Vec<&ProbeMatrixCell> {
        let cells = self.lines.iter().filter_map(|line| match line {
            ProbeMessage::Cell(cell) if cell.testcase == testcase => Some(cell),
            _ => None,
        });
        cells.collect()
    }

    pub(crate) fn problems(&self) -> Vec<&ProbeProblem> {
        let problems = self.lines.iter().filter_map(|line| match line {
            ProbeMessage::Problem(problem) => Some(problem),
            _ => None,
        });
        problems.collect()
    }

    pub(crate) fn classes(&self) -> Vec<&str> {
        self.problems().iter().map(|problem| problem.class.as_str()).collect()
    }

    pub(crate) fn note(&self, wanted: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| match line {
            ProbeMessage::Note { name, value } if name == wanted => Some(value.as_str()),
            _ => None,
        })
    }

    /// It reports that all requested cases were measured.
    pub(crate) fn is_whole(&self) -> bool {
        self.lines.last() == Some(&ProbeMessage::End)
    }
}

struct Running {
    child: Child,
    input: Option<ChildStdin>,
    message: ProbeOutput,
    progress: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves no process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs all of them until they end, with a board between them.
pub(crate) fn talk(talkers: &[Talker]) -> Vec<ProbeOutput> {
    let (send_line, lines) = mpsc::channel();
    let mut running: Vec<Running> =
        (0..).zip(talkers).map(|(at, talker)| start(at, talker, send_line.clone())).collect();
    drop(send_line);
    let mut board = ExchangeGroup::new(talkers.iter().map(|it| it.name.clone()).collect());
    let began = Instant::now();
    let mut left = running.len();
    while 0 < left {
        let now = began.elapsed();
        let progress: Vec<String> = running.iter().map(|it| text(&it.progress)).collect();
        assert!(now < HANGS, "they hang: {progress:?}");
        let wait =
            board.next_deadline().map_or(Duration::from_secs(1), |due| due.saturating_sub(now));
        let answers = match lines.recv_timeout(wait.min(Duration::from_secs(1))) {
            Ok((at, Some(line))) => match line.strip_prefix(EXCHANGE_PREFIX) {
                Some(text) => {
                    let ask: ExchangeRequest = serde_json::from_str(text).expect("an exchange");
                    board.ask(at, ask, began.elapsed())
                }
                None => {
                    let line =
                        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
                    running[at].message.lines.push(line);
                    Vec::new()
                }
            },
            Ok((at, None)) => {
                left -= 1;
                board.remove(at, "its process ended")
            }
            Err(_) => {
                let late = board.expire(began.elapsed());
                for at in late.gone {
                    let _ = running[at].child.kill();
                }
                late.answers
            }
        };
        send(&mut running, answers);
    }
    running
        .into_iter()
        .map(|mut it| {
            it.input = None;
            let status = it.child.wait().expect("a child");
            let mut progress = std::mem::take(&mut it.message);
            progress.code = status.code();
            progress.progress = text(&it.progress);
            progress
        })
        .collect()
}

fn send(running: &mut [Running], answers: Vec<(usize, ExchangeReply)>) {
    for (at, answer) in answers {
        let text = serde_json::to_string(&answer).expect("plain data");
        if let Some(input) = &mut running[at].input {
            // The process may have died meanwhile.
            let _ = writeln!(input, "{text}").and_then(|()| input.flush());
        }
    }
}

fn text(path: &PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn start(at: usize, talker: &Talker, send_line: mpsc::Sender<(usize, Option<String>)>) -> Running {
    let folder = tempfile::tempdir().expect("a folder");
    let variables = talker.machine.clone().write(folder.path());
    let library = |name: &str| {
        let found = variables.iter().find(|(it, _)| *it == name);
        found.map(|(_, path)| path.display().to_string()).unwrap_or_default()
    };
    let root = folder.path().join("root");
    crate::load_module(&root);
    let task = talker.task.replace("{cuda}", &library("FABRICGATE_CUDA"));
    let task = task.replace("{root}", &root.display().to_string());
    let progress = folder.path().join("progress");
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
        .args(["node", talker.command, "--task", &task])
        .envs(variables)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&progress).expect("a file"))
        .spawn()
        .expect("started");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    std::thread::spawn(move || {
        for line in output.lines() {
            let Ok(line) = line else { break };
            if send_line.send((at, Some(line))).is_err() {
                return;
            }
        }
        let _ = send_line.send((at, None));
    });
    let input = child.stdin.take();
    Running { child, input, message: ProbeOutput::default(), progress, _folder: folder }
}
