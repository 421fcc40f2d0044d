//! Starts processes; no other code does.
//!
//! Every process gets its own process group, a time limit, and bounded buffers for its output. When
//! the time limit expires, the whole group gets SIGTERM and then SIGKILL. This module does not
//! interpret the command or its output.

pub mod background;
pub mod child_environment;
pub mod executable;
pub mod guard;
mod line_filter;
pub mod open_file_limit;
pub mod session;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use model::raw_result::ProcessEnding;
use model::worker_protocol::EnvironmentAccess;

pub use line_filter::LineExchange;
use line_filter::LineFilter;

/// Time between SIGTERM and SIGKILL of a group.
const GRACE: Duration = Duration::from_secs(3);

/// How long pipes may stay open after the process ended: a grandchild that holds them open must not
/// hold up the sweep.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes to keep of each stream. The largest known output is nccl-tests' JSON with every iteration
/// of 1,440 ranks, 40 MB.
pub const CAPTURE: usize = 64 * 1024 * 1024;

/// A command to run.
#[derive(Clone, Debug)]
pub struct ProcessRequest {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Time limit.
    pub limit: Duration,
    /// Bytes to keep of each stream.
    pub capture: usize,
}

/// Environment and supervision of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessContext {
    /// Variables to set in addition to the inherited ones.
    pub env: BTreeMap<String, String>,
    /// This program's executable: the process is started through its [`guard`], so that it does not
    /// outlive fabricgate. The thread that starts it must live as long as fabricgate does.
    pub guard: Option<PathBuf>,
    /// How much of fabricgate's environment the process inherits.
    pub trust: EnvironmentAccess,
}

/// An event of a running process.
#[derive(Clone, Copy, Debug)]
pub enum ProcessEvent<'a> {
    /// The process started and leads this process group.
    Started {
        /// The process ID, which is also the group ID.
        group: i32,
    },
    /// The process wrote this to standard output, kept or not.
    Stdout(&'a [u8]),
}

/// Captured output of a stream.
#[derive(Debug, Default)]
pub struct CapturedStream {
    /// The kept start of the output.
    pub bytes: Vec<u8>,
    /// Bytes dropped after that.
    pub dropped: u64,
}

/// A process that ran and ended.
#[derive(Debug)]
pub struct FinishedProcess {
    /// How the process ended.
    pub ending: ProcessEnding,
    /// Captured standard output.
    pub stdout: CapturedStream,
    /// Captured standard error.
    pub stderr: CapturedStream,
    /// Time from start to end.
    pub duration: Duration,
}

/// Why a process did not start.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The argument list is empty.
    #[error("no program to start")]
    Empty,
    /// No such executable exists at this path or on PATH.
    #[error("{program}: not found")]
    Missing {
        /// Name of the program.
        program: String,
    },
    /// The operating system refused to start it.
    #[error("{program} cannot be started")]
    Refused {
        /// Name of the program.
        program: String,
        /// Error from the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// Runs a site program, such as a scheduler's command, to its end. Setting `stop` to true ends it
/// early.
pub async fn run(
    request: &ProcessRequest,
    stop: watch::Receiver<bool>,
) -> Result<FinishedProcess, ExecError> {
    let setting = ProcessContext { trust: EnvironmentAccess::Site, ..ProcessContext::default() };
    run_observed(request, &setting, stop, &mut |_| {}).await
}

/// Runs a process to its end in this context, and reports events while it runs. Setting `stop` to
/// true ends it early. Afterwards no process of its group is left.
pub async fn run_observed(
    request: &ProcessRequest,
    setting: &ProcessContext,
    stop: watch::Receiver<bool>,
    seen: &mut (dyn FnMut(ProcessEvent<'_>) + Send),
) -> Result<FinishedProcess, ExecError> {
    run_exchange(request, setting, stop, seen, None).await
}

/// Like [`run_observed`], with a line exchange.
pub async fn run_exchange(
    request: &ProcessRequest,
    setting: &ProcessContext,
    mut stop: watch::Receiver<bool>,
    seen: &mut (dyn FnMut(ProcessEvent<'_>) + Send),
    exchange: Option<LineExchange<'_>>,
) -> Result<FinishedProcess, ExecError> {
    let Some(program) = request.argv.first() else {
        return Err(ExecError::Empty);
    };
    let guarded = match &setting.guard {
        None => request.argv.clone(),
        Some(guard) => {
            // Behind the guard, a missing tool and a tool that ends with the same exit code would
            // look alike.
            if executable::find_program(program, setting.env.get("PATH")).is_none() {
                return Err(ExecError::Missing { program: program.clone() });
            }
            guard::guarded_command(guard, &request.argv)
        }
    };
    let mut command = build_command(&guarded, &setting.env, setting.trust)?;
    command.stdin(if exchange.is_some() { Stdio::piped() } else { Stdio::null() });
    let start = Instant::now();
    let mut child = command.spawn().map_err(|source| start_error(program, source))?;
    let group = process_group(&child);
    if let Some(group) = group {
        seen(ProcessEvent::Started { group: group.as_raw_nonzero().get() });
    }

    let mut stdout = CapturedStream::default();
    let mut stderr = CapturedStream::default();
    let most = request.capture;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let input = child.stdin.take();
    let (mut filter, lines) = match exchange {
        Some(exchange) => (
            Some(LineFilter::new(exchange.prefix, exchange.max_line_bytes, exchange.on_line)),
            Some(exchange.input),
        ),
        None => (None, None),
    };
    let ending = {
        let mut drained = pin!(async {
            let printed = |bytes: &[u8]| {
                seen(ProcessEvent::Stdout(bytes));
                match &mut filter {
                    Some(filter) => filter.filter(bytes, &mut |bytes| stdout.append(bytes, most)),
                    None => stdout.append(bytes, most),
                }
            };
            tokio::join!(
                drain_pipe(out, printed),
                drain_pipe(err, |bytes| stderr.append(bytes, most))
            )
        });
        let mut writer = pin!(async {
            if let Some(lines) = lines {
                line_filter::write_input(input, lines).await;
            }
        });
        let (mut open, mut is_writing) = (true, true);
        let mut limit = pin!(sleep(request.limit));
        let ending = loop {
            tokio::select! {
                _ = &mut drained, if open => open = false,
                // A process that never reads its input must not block the others.
                () = &mut writer, if is_writing => is_writing = false,
                status = child.wait() => break ending_from_status(status),
                () = &mut limit => break ProcessEnding::TimedOut,
                () = wait_for_stop(&mut stop) => break ProcessEnding::Interrupted,
            }
        };
        if matches!(ending, ProcessEnding::TimedOut | ProcessEnding::Interrupted) {
            end_group(&mut child, group, &mut drained, &mut open).await;
        }
        if open && timeout(LINGER, &mut drained).await.is_err() {
            signal_group(group, Signal::KILL);
            // A process that left the group may still hold the pipe; keep what was read up to now.
            let _ = timeout(LINGER, &mut drained).await;
        }
        ending
    };
    if let Some(mut filter) = filter {
        filter.flush(&mut |bytes| stdout.append(bytes, most));
    }
    // Also ends the processes of the group that closed their output.
    signal_group(group, Signal::KILL);
    Ok(FinishedProcess { ending, stdout, stderr, duration: start.elapsed() })
}

/// Builds a command with its own process group and piped output.
fn build_command(
    argv: &[String],
    env: &BTreeMap<String, String>,
    confidence: EnvironmentAccess,
) -> Result<Command, ExecError> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(ExecError::Empty);
    };
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts processes")]
    let mut command = Command::new(program);
    child_environment::apply_environment(&mut command, confidence, env);
    open_file_limit::restore_limit(&mut command);
    command
        .args(arguments)
        .envs(env)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

/// The reason why the system did not start this program.
fn start_error(program: &str, source: std::io::Error) -> ExecError {
    let program = program.to_owned();
    match source.kind() {
        std::io::ErrorKind::NotFound => ExecError::Missing { program },
        _ => ExecError::Refused { program, source },
    }
}

/// The group that a child leads; known until the child is reaped.
fn process_group(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Ends a group: SIGTERM, a grace period, SIGKILL.
async fn end_group<D: Future>(
    child: &mut Child,
    group: Option<Pid>,
    drained: &mut std::pin::Pin<&mut D>,
    open: &mut bool,
) {
    signal_group(group, Signal::TERM);
    let mut grace = pin!(sleep(GRACE));
    loop {
        tokio::select! {
            _ = &mut *drained, if *open => *open = false,
            _ = child.wait() => break,
            () = &mut grace => break,
        }
    }
    signal_group(group, Signal::KILL);
    let _ = kill_and_wait(child).await;
}

/// Kills a process, even one that left its group, and waits until it ends; `None` if it does not. A
/// process that hangs in a driver cannot be killed before the driver returns, and must not block
/// the caller.
async fn kill_and_wait(child: &mut Child) -> Option<std::io::Result<ExitStatus>> {
    // It may have ended already.
    let _ = child.start_kill();
    timeout(GRACE, child.wait()).await.ok()
}

/// Sends a signal to a group, which may have ended already.
fn signal_group(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

fn ending_from_status(status: std::io::Result<ExitStatus>) -> ProcessEnding {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ProcessEnding::Exited { code },
            (None, Some(signal)) => ProcessEnding::Signalled { signal },
            (None, None) => ProcessEnding::not_started(format!("unexpected status: {status}")),
        },
        Err(error) => ProcessEnding::not_started(format!("waiting for it failed: {error}")),
    }
}

async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The sender is gone, so no stop request can arrive.
        std::future::pending::<()>().await;
    }
}

impl CapturedStream {
    /// Keeps the start: memory must not grow with the output of a process.
    fn append(&mut self, bytes: &[u8], most: usize) {
        let kept = bytes.len().min(most.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(&bytes[..kept]);
        self.dropped += (bytes.len() - kept) as u64;
    }
}

/// Reads a pipe to its end: a writer must never block on a full pipe.
async fn drain_pipe(pipe: Option<impl AsyncRead + Unpin>, mut printed: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => printed(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_now(
        argv: &[&str],
        limit: Duration,
        capture: usize,
    ) -> Result<FinishedProcess, ExecError> {
        let argv = argv.iter().map(|w| (*w).to_owned()).collect();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (_sender, stop) = watch::channel(false);
        runtime.block_on(run(&ProcessRequest { argv, limit, capture }, stop))
    }

    fn shell(script: &str, limit_ms: u64) -> FinishedProcess {
        run_now(&["sh", "-c", script], Duration::from_millis(limit_ms), CAPTURE).expect("started")
    }

    #[test]
    fn both_streams_and_the_exit_code_are_returned() {
        let got = shell("echo out; echo err >&2; exit 3", 10_000);
        assert_eq!(got.ending, ProcessEnding::Exited { code: 3 });
        assert_eq!(
            (got.stdout.bytes.as_slice(), got.stderr.bytes.as_slice()),
            (&b"out\n"[..], &b"err\n"[..])
        );
    }

    #[test]
    fn a_signal_is_not_an_exit_code() {
        assert_eq!(shell("kill -9 $$", 10_000).ending, ProcessEnding::Signalled { signal: 9 });
    }

    #[test]
    fn a_missing_program_is_a_distinct_error() {
        let got = run_now(&["no-such-tool-here"], Duration::from_secs(1), CAPTURE);
        assert!(matches!(got, Err(ExecError::Missing { .. })), "{got:?}");
    }

    #[test]
    fn a_timeout_ends_the_grandchildren_too_and_keeps_the_output() {
        let got = shell("echo begun; sleep 30 & wait", 300);
        assert_eq!(got.ending, ProcessEnding::TimedOut);
        assert_eq!(got.stdout.bytes, b"begun\n");
        // The pipe closes only when the grandchild is gone as well.
        assert!(got.duration < Duration::from_secs(3), "{:?}", got.duration);
    }

    #[test]
    fn a_process_that_ignores_term_is_killed() {
        let got = shell("trap '' TERM; while :; do sleep 1; done", 200);
        assert_eq!(got.ending, ProcessEnding::TimedOut);
        assert!(got.duration < GRACE + Duration::from_secs(3), "{:?}", got.duration);
    }

    /// Joins the group of its parent's parent and thereby leaves its own.
    const DESERTS: &str = "setpgrp(0, getpgrp(getppid)) or die; $SIG{TERM} = 'IGNORE'; \
                           $| = 1; print \"$$\\n\"; sleep 120";

    #[test]
    fn a_process_that_left_its_group_is_ended_too() {
        let limit = Duration::from_millis(1_500);
        let got = run_now(&["perl", "-e", DESERTS], limit, CAPTURE).expect("started");
        assert_eq!(got.ending, ProcessEnding::TimedOut);
        assert!(got.duration < limit + GRACE + Duration::from_secs(10), "{:?}", got.duration);
        let number = String::from_utf8(got.stdout.bytes).expect("digits");
        let number = number.trim().parse().ok().and_then(Pid::from_raw).expect("its process ID");
        assert!(rustix::process::test_kill_process(number).is_err(), "it is still running");
    }

    #[test]
    fn dropped_output_is_counted() {
        let script = "dd if=/dev/zero bs=65536 count=64 2>/dev/null";
        let got = run_now(&["sh", "-c", script], Duration::from_secs(20), 1000).expect("started");
        assert_eq!(got.ending, ProcessEnding::Exited { code: 0 });
        assert_eq!(got.stdout.bytes.len(), 1000);
        assert_eq!(got.stdout.dropped, 64 * 65_536 - 1000);
    }

    /// Runs a shell with a line exchange that echoes each separated line back to it.
    fn run_talk(script: &str, limit_ms: u64) -> (FinishedProcess, Vec<String>) {
        let argv = ["sh", "-c", script].map(str::to_owned).into();
        let limit = Duration::from_millis(limit_ms);
        let request = ProcessRequest { argv, limit, capture: CAPTURE };
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let mut lines = Vec::new();
        let mut take = |line: &[u8]| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            sender.send([line, b"\n"].concat()).is_ok()
        };
        let exchange = LineExchange {
            prefix: "ask ",
            max_line_bytes: 1 << 20,
            on_line: &mut take,
            input: receiver,
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (_sender, stop) = watch::channel(false);
        let setting = ProcessContext::default();
        let finished = runtime.block_on(async {
            run_exchange(&request, &setting, stop, &mut |_| {}, Some(exchange)).await
        });
        let finished = finished.expect("started");
        (finished, lines)
    }

    #[test]
    fn exchanged_lines_are_not_output() {
        let script = "echo a; echo ask 1; read x; echo \"got $x\"; echo ask 2; read x; exit $x";
        let (got, lines) = run_talk(script, 20_000);
        assert_eq!(
            (got.ending, lines),
            (ProcessEnding::Exited { code: 2 }, vec!["1".into(), "2".into()])
        );
        assert_eq!(got.stdout.bytes, b"a\ngot 1\n");
    }

    #[test]
    fn a_process_that_does_not_read_is_ended_in_time() {
        // More than a pipe holds.
        let script = "printf 'ask %0400000d\\n' 1; echo ask 2; echo begun; sleep 60";
        let (got, lines) = run_talk(script, 1_500);
        assert_eq!((got.ending, lines.len()), (ProcessEnding::TimedOut, 2));
        assert_eq!(got.stdout.bytes, b"begun\n");
    }

    #[test]
    fn a_grandchild_that_holds_the_pipe_does_not_delay_the_caller() {
        let got = shell("sleep 30 & echo done", 60_000);
        assert_eq!(got.ending, ProcessEnding::Exited { code: 0 });
        assert!(got.duration < LINGER + LINGER + Duration::from_secs(2), "{:?}", got.duration);
    }
}
