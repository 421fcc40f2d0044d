//! One child process of a probe.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::child_output::{ChildExitReason, ChildLineKind, ChildOutput, clean};
use super::stderr_tail::StderrTail;
use super::{ProbeChildSpec, SupervisorSpec};
use crate::exec::guard;
use crate::exec::session::{ProcessSession, SessionInput, SessionOutput, SessionProcess};
use model::raw_result::ProcessEnding;

/// Time limit for writing an answer to a child.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the child's output may stay open after the child ended, and how long the child may take
/// to end after it was killed: a process that hangs inside the kernel cannot be killed.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// An event from a child's reader task.
#[derive(Debug)]
pub(super) enum ChildEvent {
    /// A line of the child with this index.
    Line(usize, Vec<u8>),
    /// No more lines follow; the reason if the output failed.
    Closed(usize, Option<String>),
}

#[derive(Debug)]
pub(super) struct ProbeChild {
    output: ChildOutput,
    input: Option<SessionInput>,
    process: Option<SessionProcess>,
    stderr: Arc<Mutex<StderrTail>>,
    /// Number of chunks on standard error at the last check.
    stderr_chunks: u64,
    /// True while the child waits for the answer to an exchange.
    pub(super) is_waiting: bool,
    last_activity: Instant,
    /// True once the child's output has ended.
    is_closed: bool,
    /// Why it was killed, and when.
    killed: Option<(ChildExitReason, Instant)>,
    /// How it ended, and when that was noticed.
    ended: Option<(ProcessEnding, Instant)>,
}

impl ProbeChild {
    /// Starts the child with this index.
    pub(super) fn spawn(
        work: &SupervisorSpec,
        part: &ProbeChildSpec,
        at: usize,
        events: &mpsc::Sender<ChildEvent>,
    ) -> Self {
        let mut child = Self {
            output: ChildOutput::new(&part.name, part.gpu),
            input: None,
            process: None,
            stderr: Arc::default(),
            stderr_chunks: 0,
            is_waiting: false,
            last_activity: Instant::now(),
            is_closed: false,
            killed: None,
            ended: None,
        };
        let mut argv = vec![work.executable.display().to_string()];
        argv.extend_from_slice(&part.args);
        let (stderr_sender, chunks) = mpsc::channel(16);
        let argv = guard::guarded_command(&work.executable, &argv);
        match ProcessSession::start_with_stderr(&argv, &part.env, Some(stderr_sender)) {
            Err(error) => child.output.exit = Some(ChildExitReason::NotStarted(error.to_string())),
            Ok(ProcessSession { input, output, process }) => {
                tokio::spawn(read_stdout(output, at, events.clone()));
                tokio::spawn(read_stderr(chunks, Arc::clone(&child.stderr)));
                child.input = Some(input);
                child.process = Some(process);
            }
        }
        child
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(SessionProcess::pid)
    }

    /// True if it has not ended yet.
    pub(super) fn is_open(&self) -> bool {
        self.output.exit.is_none()
    }

    /// Why the child no longer participates, for the messages to the other members.
    pub(super) fn exit_text(&self) -> Option<String> {
        let fate = self.output.exit.as_ref().or(self.killed.as_ref().map(|(fate, _)| fate))?;
        // A problem that the child reported is a better reason.
        let own = self.output.problems().last().map(|problem| problem.detail.clone());
        let reason = match fate {
            ChildExitReason::Success => own,
            _ => self.output.problem_for(fate).map(|problem| problem.detail),
        };
        Some(clean(&reason.unwrap_or_else(|| "its process has ended".to_owned())))
    }

    pub(super) fn push_line<'l>(&mut self, line: &'l [u8]) -> ChildLineKind<'l> {
        self.last_activity = Instant::now();
        self.output.push_line(line)
    }

    /// Records that the output has ended; kills the child if reading it failed.
    pub(super) fn mark_closed(&mut self, why: Option<String>) {
        self.is_closed = true;
        if let Some(why) = why {
            self.kill(ChildExitReason::ProtocolViolation(why));
        }
    }

    /// Returns its announced step, if it is new.
    pub(super) fn poll_step(&mut self) -> Option<&str> {
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.chunks == self.stderr_chunks {
            return None;
        }
        self.stderr_chunks = tail.chunks;
        self.last_activity = Instant::now();
        if tail.current_step == self.output.current_step {
            return None;
        }
        self.output.current_step.clone_from(&tail.current_step);
        self.output.current_step.as_deref()
    }

    /// Kills the child if it has printed nothing for too long.
    pub(super) fn check_silence(&mut self, most: Duration) {
        let silent = self.last_activity.elapsed();
        if !self.is_waiting && most < silent {
            self.kill(ChildExitReason::Hung(silent.as_secs_f64()));
        }
    }

    pub(super) fn kill(&mut self, fate: ChildExitReason) {
        if self.output.exit.is_some() || self.killed.is_some() || self.ended.is_some() {
            return;
        }
        if let Some(process) = &self.process {
            process.kill();
        }
        self.killed = Some((fate, Instant::now()));
    }

    pub(super) fn close_input(&mut self) {
        self.input = None;
        self.is_waiting = false;
        self.last_activity = Instant::now();
    }

    pub(super) async fn send_answer(&mut self, line: &[u8]) {
        self.is_waiting = false;
        self.last_activity = Instant::now();
        let Some(input) = &mut self.input else { return };
        match timeout(READ_TIMEOUT, input.send(line)).await {
            // The supervisor notices an ended child when its output closes.
            Ok(_) => {}
            Err(_) => self.kill(ChildExitReason::ProtocolViolation(
                "it does not read the answer to its request".to_owned(),
            )),
        }
    }

    /// Checks whether it has ended, and classifies the end.
    pub(super) async fn poll_exit(&mut self) {
        if self.output.exit.is_some() {
            return;
        }
        let Some(process) = &mut self.process else { return };
        if self.ended.is_none()
            && let Ok(ending) = timeout(Duration::ZERO, process.wait()).await
        {
            self.ended = Some((ending, Instant::now()));
        }
        let is_over = match (&self.ended, &self.killed) {
            (Some((_, since)), _) => self.is_closed || EXIT_GRACE < since.elapsed(),
            (None, Some((_, since))) => EXIT_GRACE < since.elapsed(),
            (None, None) => false,
        };
        if !is_over {
            return;
        }
        if self.ended.is_some() {
            // Also reads its last output.
            process.end(Duration::ZERO).await;
        }
        let _ = self.poll_step();
        {
            let mut stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            stderr.close();
            self.output.nccl_lines = std::mem::take(&mut stderr.nccl_lines);
            self.output.stderr_tail = std::mem::take(&mut stderr.tail).into();
        }
        let killed = self.killed.take().map(|(fate, _)| fate);
        let ending = self.ended.as_ref().map(|(ending, _)| ending);
        self.output.exit = Some(match (killed, ending) {
            (Some(fate), _) => fate,
            (None, Some(ProcessEnding::Exited { code: 0 })) => ChildExitReason::Success,
            (None, Some(ProcessEnding::Exited { code })) => ChildExitReason::Failed(*code),
            (None, Some(ProcessEnding::Signalled { signal })) => ChildExitReason::Signaled(*signal),
            (None, other) => ChildExitReason::NotStarted(format!("unexpected end: {other:?}")),
        });
        self.process = None;
    }

    pub(super) fn into_output(self) -> ChildOutput {
        self.output
    }
}

async fn read_stderr(mut chunks: mpsc::Receiver<Vec<u8>>, tail: Arc<Mutex<StderrTail>>) {
    while let Some(piece) = chunks.recv().await {
        tail.lock().unwrap_or_else(PoisonError::into_inner).push(&piece);
    }
}

async fn read_stdout(mut output: SessionOutput, at: usize, events: mpsc::Sender<ChildEvent>) {
    loop {
        let event = match output.next_line().await {
            Ok(Some(line)) => ChildEvent::Line(at, line),
            Ok(None) => ChildEvent::Closed(at, None),
            Err(error) => {
                ChildEvent::Closed(at, Some(format!("its output is unreadable: {error}")))
            }
        };
        let last = matches!(event, ChildEvent::Closed(..));
        if events.send(event).await.is_err() || last {
            return;
        }
    }
}
