//! Running jobs: each is a child process in a separate process group with a separate log.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::super::lease::LeaseTerm;
use super::super::{clock, lease};
use super::state::{JOB_VARIABLE, StartedJob, WatchState};
use engine::policy::schedule::MeasurementJob;
use engine::policy::schedule::attempts::elapsed_s;
use model::raw_result::ProcessEnding;
use model::text::clean;
use model::watch::{JobOutcome, WatchEvent, WatchJob};
use node::exec::background::BackgroundProcess;

/// The folder of job logs in the state folder.
pub const LOG_FOLDER: &str = "watch";

/// Maximum length of a log that is reported per tick; the rest follows with the next
/// tick.
const MAX_LOG_READ_BYTES: u64 = 64 * 1024;

/// Maximum number of such reads after a job's end; the rest is only in its log.
const MAX_FINAL_READS: usize = 256;

/// Maximum length of a reported log line.
const MAX_LINE_BYTES: usize = 2_000;

/// A finished job and how it ended.
#[derive(Debug)]
pub struct FinishedJob {
    job: String,
    ending: ProcessEnding,
}

#[derive(Debug)]
struct RunningJob {
    started: StartedJob,
    /// Offset up to which the log was reported.
    emitted_bytes: u64,
    /// The start of an incomplete line.
    partial_line: Vec<u8>,
}

/// All running jobs.
#[derive(Debug)]
pub struct JobRunner {
    folder: PathBuf,
    max_logs: usize,
    running: BTreeMap<String, RunningJob>,
    count: u64,
    end: watch::Sender<bool>,
    grace: watch::Sender<Duration>,
    done: mpsc::UnboundedReceiver<FinishedJob>,
    done_sender: mpsc::UnboundedSender<FinishedJob>,
}

impl JobRunner {
    /// A runner without jobs.
    pub fn new(folder: &Path, max_logs: usize) -> Self {
        let (done_sender, done) = mpsc::unbounded_channel();
        Self {
            folder: folder.join(LOG_FOLDER),
            max_logs,
            running: BTreeMap::new(),
            count: 0,
            end: watch::Sender::new(false),
            grace: watch::Sender::new(Duration::ZERO),
            done,
            done_sender,
        }
    }

    /// Whether no job runs.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Starts a job and returns the event to report. The job is written to the state
    /// before it runs. Must be called inside a tokio runtime.
    pub fn start(
        &mut self,
        job: MeasurementJob,
        command: Vec<String>,
        term: Option<&LeaseTerm>,
        state: &mut WatchState,
    ) -> WatchEvent {
        let now = clock::now();
        self.count += 1;
        let name = format!("{}-{}-{}-{}", job.profile, now.unix, std::process::id(), self.count);
        let log = self.folder.join(format!("{name}.log"));
        let shown = log.display().to_string();
        let line = describe_job(&job, &name, &command, &shown);
        let started = StartedJob {
            job: name.clone(),
            domain: job.domain,
            profile: job.profile.as_str().to_owned(),
            cause: job.cause,
            why: job.why,
            nodes: job.nodes,
            partners: job.partners,
            command,
            log: shown,
            at: now,
        };
        let folder = self.folder.parent().unwrap_or(&self.folder).to_owned();
        state.jobs.push(started.clone());
        let begun = state
            .write(&folder)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                self.create_log(&log).map_err(|error| format!("{}: {error}", log.display()))
            })
            .and_then(|file| {
                let mut env = BTreeMap::from([(JOB_VARIABLE.to_owned(), name.clone())]);
                env.extend(term.map(|term| (lease::TERM_VARIABLE.to_owned(), term.to_string())));
                BackgroundProcess::start(&started.command, &env, &file)
                    .map_err(|error| error.to_string())
            });
        let attended = match begun {
            Ok(attended) => attended,
            Err(why) => {
                state.jobs.retain(|it| it.job != name);
                let (now, nodes) = (clock::now(), &started.nodes);
                state.attempts.record_end(&started.domain, started.cause, nodes, None, &now);
                return WatchEvent::Trouble {
                    what: format!("job {name} cannot be started: {why}"),
                };
            }
        };
        let (end, grace, done) =
            (self.end.subscribe(), self.grace.subscribe(), self.done_sender.clone());
        tokio::spawn(supervise(attended, end, grace, name.clone(), done));
        self.running
            .insert(name, RunningJob { started, emitted_bytes: 0, partial_line: Vec::new() });
        WatchEvent::Started(line)
    }

    /// Creates a log and removes the oldest ones.
    fn create_log(&self, path: &Path) -> std::io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        let mut logs = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_log = entry.path().extension().is_some_and(|it| it == "log");
            let is_running = |one: &RunningJob| Path::new(&one.started.log) == entry.path();
            // Another process may have just removed it.
            let Ok(about) = entry.metadata() else { continue };
            if is_log && !self.running.values().any(is_running) {
                logs.push((about.modified()?, entry.path()));
            }
        }
        logs.sort();
        let too_many = (logs.len() + 1).saturating_sub(self.max_logs.max(1));
        for (_, old) in logs.into_iter().take(too_many) {
            match fs::remove_file(old) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        File::create(path)
    }

    /// Waits for the next finished job; forever if none runs.
    pub async fn next_finished(&mut self) -> FinishedJob {
        match self.done.recv().await {
            Some(ended) => ended,
            // Unreachable: this struct holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Removes a job; if `counts`, records the attempt.
    pub fn conclude(
        &mut self,
        ended: FinishedJob,
        state: &mut WatchState,
        counts: bool,
    ) -> (WatchEvent, JobOutcome, Option<u8>) {
        let FinishedJob { job, ending } = ended;
        let code = match ending {
            ProcessEnding::Exited { code } => u8::try_from(code).ok(),
            _ => None,
        };
        let outcome = JobOutcome::from_exit_code(code);
        state.jobs.retain(|it| it.job != job);
        let Some(RunningJob { started, .. }) = self.running.remove(&job) else {
            let what = format!("job {job} has ended, but it was not registered");
            return (WatchEvent::Trouble { what }, outcome, code);
        };
        let now = clock::now();
        if counts {
            state.attempts.record_end(&started.domain, started.cause, &started.nodes, code, &now);
        }
        let StartedJob { domain, profile, cause, why, nodes, partners, command, log, at, .. } =
            started;
        let nodes = nodes.into_keys().collect();
        let job = WatchJob { job, profile, domain, nodes, partners, cause, why, command, log };
        #[expect(clippy::cast_precision_loss, reason = "a job takes far fewer than 2^52 seconds")]
        let seconds = elapsed_s(&at, &now) as f64;
        (WatchEvent::Ended { job, code, outcome, seconds }, outcome, code)
    }

    /// Requests all running jobs to end within this time.
    pub fn stop_all(&mut self, grace: Duration) {
        self.grace.send_replace(grace);
        self.end.send_replace(true);
    }

    /// Reports the rest of a finished job's output, with an unterminated last line.
    pub fn emit_final_lines(&mut self, ended: &FinishedJob, tell: &mut dyn FnMut(WatchEvent)) {
        let Some(one) = self.running.get_mut(&ended.job) else { return };
        for _ in 0..MAX_FINAL_READS {
            match one.emit_log(&ended.job, tell) {
                Ok(MAX_LOG_READ_BYTES..) => {}
                // If the log cannot be read, operators can still open it.
                Ok(_) | Err(_) => break,
            }
        }
        emit_line(&ended.job, &one.partial_line, tell);
    }

    /// Reports new output of the jobs.
    pub fn emit_lines(&mut self, tell: &mut dyn FnMut(WatchEvent)) {
        for (name, one) in &mut self.running {
            // If the log cannot be read, operators can still open it.
            let _ = one.emit_log(name, tell);
        }
    }
}

impl RunningJob {
    /// Reports one chunk of the log; returns its length in bytes.
    fn emit_log(&mut self, name: &str, tell: &mut dyn FnMut(WatchEvent)) -> std::io::Result<u64> {
        let mut file = File::open(&self.started.log)?;
        file.seek(SeekFrom::Start(self.emitted_bytes))?;
        let count = file.take(MAX_LOG_READ_BYTES).read_to_end(&mut self.partial_line)?;
        self.emitted_bytes += count as u64;
        while let Some(end) = self.partial_line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial_line.drain(..=end).collect();
            emit_line(name, &line, tell);
        }
        // Bounds the memory for a line that never ends.
        if MAX_LOG_READ_BYTES <= self.partial_line.len() as u64 {
            self.partial_line.clear();
        }
        Ok(count as u64)
    }
}

/// Reports a log line unless it is blank.
fn emit_line(job: &str, line: &[u8], tell: &mut dyn FnMut(WatchEvent)) {
    let line = clean(&String::from_utf8_lossy(line));
    let line: String = line.chars().take(MAX_LINE_BYTES).collect();
    if !line.trim().is_empty() {
        tell(WatchEvent::LogLine { job: job.to_owned(), line });
    }
}

async fn supervise(
    attended: BackgroundProcess,
    end: watch::Receiver<bool>,
    grace: watch::Receiver<Duration>,
    job: String,
    done: mpsc::UnboundedSender<FinishedJob>,
) {
    let ending = attended.wait_or_stop(end, &grace).await;
    // An error means that the receiver is gone.
    let _ = done.send(FinishedJob { job, ending });
}

/// A job in the form that events use.
pub fn describe_job(job: &MeasurementJob, name: &str, command: &[String], log: &str) -> WatchJob {
    WatchJob {
        job: name.to_owned(),
        profile: job.profile.as_str().to_owned(),
        domain: job.domain.clone(),
        nodes: job.nodes.keys().cloned().collect(),
        partners: job.partners.clone(),
        cause: job.cause,
        why: job.why.clone(),
        command: command.to_vec(),
        log: log.to_owned(),
    }
}
