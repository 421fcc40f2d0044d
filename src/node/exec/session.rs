//! Long-running process with line-based input and output.
//!
//! The process leads its own group, which is killed when the session is dropped. The three parts of
//! a [`ProcessSession`] can move to different tasks. This module does not interpret the lines.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::open_file_limit::SessionSlot;
use super::{
    ExecError, GRACE, LINGER, build_command, ending_from_status, kill_and_wait, process_group,
    signal_group, start_error,
};
use model::raw_result::ProcessEnding;
use model::worker_protocol::{EnvironmentAccess, LONGEST_LINE};

/// Bytes to keep of standard error: its end, which contains the reason of a failure.
const STDERR_TAIL_BYTES: usize = 16 * 1024;

/// A process with its input and output. Take it apart to write and read in different tasks; the
/// process dies when its [`SessionProcess`] is dropped.
#[derive(Debug)]
pub struct ProcessSession {
    /// Writes to the process's standard input.
    pub input: SessionInput,
    /// Reads the process's standard output.
    pub output: SessionOutput,
    /// Handle of the process.
    pub process: SessionProcess,
}

impl ProcessSession {
    /// Starts a process with these additional variables. Must be called inside a tokio runtime.
    pub fn start(argv: &[String], env: &BTreeMap<String, String>) -> Result<Self, ExecError> {
        Self::start_trusted(argv, env, EnvironmentAccess::None, None)
    }

    /// Like [`Self::start`], and also forwards standard error in pieces. A slow receiver slows down
    /// the process.
    pub fn start_with_stderr(
        argv: &[String],
        env: &BTreeMap<String, String>,
        ear: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Result<Self, ExecError> {
        Self::start_trusted(argv, env, EnvironmentAccess::None, ear)
    }

    /// Like [`Self::start_with_stderr`], with a chosen part of fabricgate's environment.
    pub fn start_trusted(
        argv: &[String],
        env: &BTreeMap<String, String>,
        confidence: EnvironmentAccess,
        ear: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Result<Self, ExecError> {
        let program = argv.first().map_or("", String::as_str);
        let slot =
            SessionSlot::acquire().map_err(|full| start_error(program, io::Error::other(full)))?;
        let mut command = build_command(argv, env, confidence)?;
        command.stdin(Stdio::piped());
        let mut child = command.spawn().map_err(|source| start_error(program, source))?;
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let listening =
            child.stderr.take().map(|pipe| tokio::spawn(keep_tail(pipe, Arc::clone(&tail), ear)));
        Ok(Self {
            input: SessionInput { pipe: child.stdin.take() },
            output: SessionOutput {
                pipe: child.stdout.take().map(BufReader::new),
                line: Vec::new(),
            },
            process: SessionProcess {
                group: process_group(&child),
                child,
                tail,
                stderr_reader: listening,
                ending: None,
                _slot: slot,
            },
        })
    }

    /// Sends a line; the line end is added.
    pub async fn send(&mut self, line: &[u8]) -> io::Result<()> {
        self.input.send(line).await
    }

    /// The next line without its end; `None` at the end of the output. Cancel safe.
    pub async fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.output.next_line().await
    }

    /// The end of its standard error.
    pub fn stderr_tail(&self) -> String {
        self.process.stderr_tail()
    }

    /// Closes its input, waits up to `grace` for it to end, then ends it.
    pub async fn end(self, grace: Duration) -> ProcessEnding {
        let Self { input, output, mut process } = self;
        drop(input);
        // Unread output must not keep the process from ending.
        let drained = tokio::spawn(output.discard());
        let ending = process.end(grace).await;
        drained.abort();
        ending
    }
}

/// The writing end of a session.
#[derive(Debug)]
pub struct SessionInput {
    pipe: Option<ChildStdin>,
}

impl SessionInput {
    /// Sends a line; the line end is added.
    pub async fn send(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        pipe.write_all(line).await?;
        pipe.write_all(b"\n").await?;
        pipe.flush().await
    }

    /// Closes the input: no more lines follow.
    pub fn close(&mut self) {
        self.pipe = None;
    }
}

/// The reading end of a session.
#[derive(Debug)]
pub struct SessionOutput {
    pipe: Option<BufReader<ChildStdout>>,
    line: Vec<u8>,
}

impl SessionOutput {
    /// The next line without its end; `None` at the end of the output. A line longer than
    /// [`LONGEST_LINE`] is an error. Cancel safe.
    pub async fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(pipe) = &mut self.pipe else { return Ok(None) };
            let ready = pipe.fill_buf().await?;
            if ready.is_empty() {
                self.pipe = None;
                let rest = std::mem::take(&mut self.line);
                return Ok(Some(rest).filter(|line| !line.is_empty()));
            }
            let end = ready.iter().position(|byte| *byte == b'\n');
            self.line.extend_from_slice(&ready[..end.unwrap_or(ready.len())]);
            let used = end.map_or(ready.len(), |end| end + 1);
            pipe.consume(used);
            if LONGEST_LINE < self.line.len() {
                let why = format!("a line of more than {LONGEST_LINE} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }

    async fn discard(self) {
        let Some(mut pipe) = self.pipe else { return };
        let mut buffer = vec![0u8; 64 * 1024];
        while matches!(pipe.read(&mut buffer).await, Ok(count) if count != 0) {}
    }
}

/// The process of a session. Dropping it kills its whole group.
#[derive(Debug)]
pub struct SessionProcess {
    child: Child,
    group: Option<Pid>,
    tail: Arc<Mutex<VecDeque<u8>>>,
    /// Task that reads standard error to its end.
    stderr_reader: Option<JoinHandle<()>>,
    ending: Option<ProcessEnding>,
    /// Reserves the session's open files.
    _slot: SessionSlot,
}

impl SessionProcess {
    /// The end of its standard error.
    pub fn stderr_tail(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (start, rest) = tail.as_slices();
        String::from_utf8_lossy(&[start, rest].concat()).into_owned()
    }

    /// The process ID, until the process is reaped.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills its group immediately. [`SessionProcess::wait`] returns how it ended.
    pub fn kill(&self) {
        if self.ending.is_none() {
            signal_group(self.group, Signal::KILL);
        }
    }

    /// Waits until it ends by itself. Cancel safe.
    pub async fn wait(&mut self) -> ProcessEnding {
        if let Some(ending) = &self.ending {
            return ending.clone();
        }
        let ending = ending_from_status(self.child.wait().await);
        self.ending = Some(ending.clone());
        ending
    }

    /// Waits up to `grace` for it to end by itself (close its input first), then sends SIGTERM to
    /// its group, then SIGKILL.
    pub async fn end(&mut self, grace: Duration) -> ProcessEnding {
        let mut ending = timeout(grace, self.wait()).await.ok();
        if ending.is_none() {
            signal_group(self.group, Signal::TERM);
            ending = timeout(GRACE, self.wait()).await.ok();
        }
        signal_group(self.group.take(), Signal::KILL);
        let ending = match ending {
            Some(ending) => ending,
            None => kill_and_wait(&mut self.child)
                .await
                .map_or(ProcessEnding::TimedOut, ending_from_status),
        };
        self.ending = Some(ending.clone());
        // The last output may still be in the pipe.
        if let Some(mut listening) = self.stderr_reader.take() {
            let _ = timeout(LINGER, &mut listening).await;
        }
        ending
    }
}

impl Drop for SessionProcess {
    fn drop(&mut self) {
        if self.ending.is_none() {
            signal_group(self.group, Signal::KILL);
        }
    }
}

/// Reads a pipe to its end and keeps the last part.
async fn keep_tail(
    mut pipe: ChildStderr,
    tail: Arc<Mutex<VecDeque<u8>>>,
    ear: Option<mpsc::Sender<Vec<u8>>>,
) {
    let mut buffer = vec![0u8; 8 * 1024];
    while let Ok(count) = pipe.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        {
            let mut tail = tail.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            tail.extend(&buffer[..count]);
            let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
            tail.drain(..excess);
        }
        if let Some(ear) = &ear {
            // A dropped receiver is not a reason to stop reading.
            let _ = ear.send(buffer[..count].to_vec()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn shell(script: &str) -> ProcessSession {
        let argv = ["sh", "-c", script].map(str::to_owned);
        let env = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
        ProcessSession::start(&argv, &env).expect("a shell")
    }

    #[test]
    fn lines_are_exchanged_and_variables_are_added() {
        now(async {
            let mut session = shell("while read x; do echo \"$GREETING $x\"; done; printf last");
            for word in ["a", "b"] {
                session.send(word.as_bytes()).await.expect("sent");
                let line = session.next_line().await.expect("read").expect("a line");
                assert_eq!(line, format!("hello {word}").as_bytes());
            }
            session.input.close();
            assert!(session.send(b"c").await.is_err());
            assert_eq!(session.next_line().await.expect("read"), Some(b"last".to_vec()));
            assert_eq!(session.next_line().await.expect("read"), None);
            assert_eq!(session.end(GRACE).await, ProcessEnding::Exited { code: 0 });
        });
    }

    #[test]
    fn the_end_of_standard_error_is_kept() {
        now(async {
            let script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo why >&2; exit 7";
            let mut session = shell(script);
            assert_eq!(session.process.wait().await, ProcessEnding::Exited { code: 7 });
            // The pipe may be read a little later than the process is reaped.
            while !session.stderr_tail().ends_with("why\n") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(session.stderr_tail().len(), STDERR_TAIL_BYTES);
        });
    }

    #[test]
    fn a_line_without_end_is_refused() {
        now(async {
            let mut session = shell("head -c 3000000 /dev/zero");
            let error = session.next_line().await.expect_err("too long");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        });
    }

    #[test]
    fn a_process_that_ignores_the_end_of_its_input_is_ended() {
        now(async {
            let session = shell("trap '' TERM; echo begun; while :; do sleep 1; done");
            let ending = session.end(Duration::from_millis(50)).await;
            assert_eq!(ending, ProcessEnding::Signalled { signal: 9 });
        });
    }

    #[test]
    fn dropping_a_session_kills_all_of_its_group() {
        now(async {
            let mut session = shell("sleep 60 & echo $!; wait");
            let line = session.next_line().await.expect("read").expect("a line");
            let pid = String::from_utf8(line).expect("digits").parse().expect("a number");
            let pid = Pid::from_raw(pid).expect("a process");
            drop(session);
            while is_running(pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// True if the process is neither gone nor an unreaped zombie.
    fn is_running(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn a_missing_program_is_a_distinct_error() {
        now(async {
            let argv = ["no-such-tool-here".to_owned()];
            let got = ProcessSession::start(&argv, &BTreeMap::new());
            assert!(matches!(got, Err(ExecError::Missing { .. })), "{got:?}");
        });
    }
}
