//! Long-running background processes that write their output to a file. Stopping one sends SIGTERM
//! first and gives it time to finish.
//!
//! Output goes to a file and not to a pipe, so that the process can still write after fabricgate
//! dies. If fabricgate dies, such processes keep running. The next fabricgate process finds them by
//! a variable in their environment, because the kernel reuses process IDs.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, Signal};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{
    ExecError, build_command, ending_from_status, kill_and_wait, process_group, signal_group,
    start_error,
};
use model::raw_result::ProcessEnding;
use model::worker_protocol::EnvironmentAccess;

/// Interval between checks of a process that was asked to end.
const POLL: Duration = Duration::from_millis(100);

/// A process that writes to a file. Dropping it kills the process.
#[derive(Debug)]
pub struct BackgroundProcess {
    child: Child,
    group: Option<Pid>,
}

impl BackgroundProcess {
    /// Starts a process in its own process group. Must be called inside a tokio runtime.
    pub fn start(
        argv: &[String],
        env: &BTreeMap<String, String>,
        log: &File,
    ) -> Result<Self, ExecError> {
        let program = argv.first().map_or("", String::as_str);
        let copy = || log.try_clone().map_err(|source| start_error(program, source));
        let mut command = build_command(argv, env, EnvironmentAccess::Whole)?;
        command.stdin(Stdio::null()).stdout(Stdio::from(copy()?)).stderr(Stdio::from(copy()?));
        let child = command.spawn().map_err(|source| start_error(program, source))?;
        let group = process_group(&child);
        Ok(Self { child, group })
    }

    /// The process ID, which is also its group ID.
    pub fn pid(&self) -> Option<i32> {
        self.group.map(|group| group.as_raw_nonzero().get())
    }

    /// Waits for the process to end. When `end` turns true, asks it to end, and kills its group if
    /// it is still running after the `grace` in effect then.
    pub async fn wait_or_stop(
        mut self,
        mut end: watch::Receiver<bool>,
        grace: &watch::Receiver<Duration>,
    ) -> ProcessEnding {
        let stop_requested = async {
            if end.wait_for(|end| *end).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            status = self.child.wait() => {
                signal_group(self.group, Signal::KILL);
                return ending_from_status(status);
            }
            () = stop_requested => {}
        }
        signal_group(self.group, Signal::TERM);
        let grace = *grace.borrow();
        let status = timeout(grace, self.child.wait()).await;
        signal_group(self.group, Signal::KILL);
        match status {
            Ok(status) => ending_from_status(status),
            Err(_) => kill_and_wait(&mut self.child)
                .await
                .map_or(ProcessEnding::TimedOut, ending_from_status),
        }
    }
}

/// Asks every process with this variable to end, and kills those still running after `grace`.
/// Returns their number.
///
/// Only the oldest process is asked: its children end with it, and a tool that is killed under its
/// parent would look like a fault.
pub async fn end_marked_processes(name: &str, value: &str, grace: Duration) -> io::Result<usize> {
    let found = find_marked_processes(name, value)?;
    let Some(first) = found.first() else { return Ok(0) };
    let _ = rustix::process::kill_process(*first, Signal::TERM);
    let mut waited = Duration::ZERO;
    while waited < grace && !find_marked_processes(name, value)?.is_empty() {
        sleep(POLL).await;
        waited += POLL;
    }
    for left in find_marked_processes(name, value)? {
        let _ = rustix::process::kill_process(left, Signal::KILL);
    }
    Ok(found.len())
}

/// This user's processes with this variable, oldest first.
pub fn find_marked_processes(name: &str, value: &str) -> io::Result<Vec<Pid>> {
    let wanted = format!("{name}={value}");
    let mut found: Vec<(u64, Pid)> = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else { continue };
        let Some(pid) = Pid::from_raw(pid) else { continue };
        // The environment of other users' processes is unreadable; those are not fabricgate's.
        let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|it| it == wanted.as_bytes()) {
            found.push((start_ticks(pid), pid));
        }
    }
    found.sort_by_key(|(began, pid)| (*began, pid.as_raw_nonzero()));
    Ok(found.into_iter().map(|(_, pid)| pid).collect())
}

/// Start time of a process in ticks since boot (`proc(5)`, field 22 of stat).
fn start_ticks(pid: Pid) -> u64 {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = fs::read_to_string(path).unwrap_or_default();
    // The name in parentheses may contain any character, so count fields after it.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().nth(19).and_then(|it| it.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn grace(seconds: u64) -> watch::Receiver<Duration> {
        watch::channel(Duration::from_secs(seconds)).1
    }

    fn shell(script: &str, mark: &str) -> (BackgroundProcess, tempfile::NamedTempFile) {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let argv = ["sh", "-c", script].map(str::to_owned);
        let env = BTreeMap::from([("FABRICGATE_TEST".to_owned(), mark.to_owned())]);
        let attended = BackgroundProcess::start(&argv, &env, log.as_file()).expect("started");
        (attended, log)
    }

    #[test]
    fn both_streams_go_to_the_file_and_the_exit_code_is_returned() {
        now(async {
            let (process, log) = shell("echo out; echo err >&2; exit 4", "a");
            let (_sender, end) = watch::channel(false);
            let ending = process.wait_or_stop(end, &grace(1)).await;
            assert_eq!(ending, ProcessEnding::Exited { code: 4 });
            let text = fs::read_to_string(log.path()).expect("a log");
            assert_eq!(text, "out\nerr\n");
        });
    }

    #[test]
    fn a_process_may_finish_after_the_request_and_is_killed_otherwise() {
        now(async {
            let script = "trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done";
            for (script, expected) in [
                (script, ProcessEnding::Exited { code: 6 }),
                (
                    "trap '' TERM; echo ready; while :; do sleep 0.05; done",
                    ProcessEnding::Signalled { signal: 9 },
                ),
            ] {
                let (attended, log) = shell(script, "b");
                while fs::read(log.path()).expect("a log").is_empty() {
                    sleep(POLL).await;
                }
                let (_ender, end) = watch::channel(true);
                let seconds = if expected == (ProcessEnding::Exited { code: 6 }) { 30 } else { 1 };
                assert_eq!(attended.wait_or_stop(end, &grace(seconds)).await, expected);
            }
        });
    }

    #[test]
    fn processes_of_a_dead_owner_are_found_by_their_mark_and_ended() {
        now(async {
            let mark = format!("left-{}", std::process::id());
            let (process, _log) = shell("sleep 1000 & sleep 1000", &mark);
            while find_marked_processes("FABRICGATE_TEST", &mark).expect("/proc").len() < 2 {
                sleep(POLL).await;
            }
            let (_sender, end) = watch::channel(false);
            // A parent that reaps, as init would.
            let reaped = tokio::spawn(async move { process.wait_or_stop(end, &grace(1)).await });
            let count =
                end_marked_processes("FABRICGATE_TEST", &mark, Duration::from_secs(2)).await;
            assert!(2 <= count.expect("/proc"));
            reaped.await.expect("reaped");
            sleep(POLL).await;
            assert_eq!(find_marked_processes("FABRICGATE_TEST", &mark).expect("/proc"), []);
            assert_eq!(
                end_marked_processes("FABRICGATE_TEST", &mark, Duration::ZERO)
                    .await
                    .expect("/proc"),
                0
            );
        });
    }
}
