//! Persistent state of the watch: attempts and started jobs. Also the lock that makes one
//! instance of a state folder the active one.
//!
//! Budgets, drains and the breaker are in the journal instead.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use rustix::fs::FlockOperation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::clock;
use crate::store::run_folder::{create_folder, open_options, replace_file};
use engine::policy::schedule::attempts::MeasurementAttempts;
use engine::policy::schedule::{DueReason, RunningMeasurement};
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::text::clean;
use node::exec::background;

/// Name of the state file.
pub const STATE_FILE: &str = "watch.json";
/// Name of the lock file.
pub const LOCK_FILE: &str = "watch.lock";
/// Environment variable that marks all processes of a job.
pub const JOB_VARIABLE: &str = "FABRICGATE_WATCH_JOB";

/// Format of the state file.
pub const STATE_FORMAT: &str = "fabricgate.watch-state/1";

/// State of the watch across restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchState {
    /// `fabricgate.watch-state/1`.
    pub format: String,
    /// The host on which the jobs run.
    pub host: String,
    /// Attempted measurements.
    #[serde(default)]
    pub attempts: MeasurementAttempts,
    /// Running jobs; each is written here before it starts.
    #[serde(default)]
    pub jobs: Vec<StartedJob>,
}

/// A job that was started or is about to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartedJob {
    /// The job's name.
    pub job: String,
    /// The domain that it measures.
    pub domain: DomainName,
    /// The profile that it runs.
    pub profile: String,
    /// Why it is due.
    pub cause: DueReason,
    /// Why it is due, as text.
    pub why: String,
    /// The due nodes, each with the key of its want: an unchanged key after the job means that
    /// the job changed nothing.
    pub nodes: BTreeMap<NodeName, String>,
    /// Idle nodes of the domain that are measured as partners.
    pub partners: Vec<NodeName>,
    /// The command line.
    pub command: Vec<String>,
    /// Path of the job's log.
    pub log: String,
    /// When it was started.
    pub at: ClockStamp,
}

impl StartedJob {
    /// The domain and all nodes of the job.
    pub fn to_running_measurement(&self) -> RunningMeasurement {
        let nodes = self.nodes.keys().chain(&self.partners).cloned().collect();
        RunningMeasurement { domain: self.domain.clone(), nodes }
    }
}

impl WatchState {
    /// Reads the state; empty if there is no file.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(STATE_FILE);
        let empty = || Self {
            format: STATE_FORMAT.to_owned(),
            host: clock::host_name(),
            ..Self::default()
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(empty()),
            Err(error) => return Err(error),
        };
        let wrong = |why: String| {
            let path = path.display();
            let text = format!("{path}: {why}; move it away to start without earlier attempts");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let state: Self = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("unreadable: {error}")))?;
        if state.format != STATE_FORMAT {
            return Err(wrong(format!(
                "its format is {:?}, expected {STATE_FORMAT}",
                clean(&state.format)
            )));
        }
        Ok(state)
    }

    /// Writes the state atomically.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        create_folder(folder)?;
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        replace_file(&folder.join(STATE_FILE), &bytes)
    }

    /// Ends jobs left by a previous instance and counts them as attempted, so that
    /// nothing is started twice. The next turn frees their allocations.
    pub async fn take_over(&mut self, grace: Duration) -> Vec<String> {
        let now = clock::now();
        self.attempts.clamp_future(&now);
        let mut notes = Vec::new();
        let here = clock::host_name();
        for job in std::mem::take(&mut self.jobs) {
            let mut note = format!("job {} was left by a previous instance", job.job);
            if self.host == here {
                match background::end_marked_processes(JOB_VARIABLE, &job.job, grace).await {
                    Ok(0) => note.push_str("; none of its processes runs any more"),
                    Ok(count) => {
                        let _ = write!(note, "; {count} of its processes were ended");
                    }
                    Err(error) => {
                        let _ = write!(note, "; its processes cannot be listed: {error}");
                    }
                }
            } else {
                let _ = write!(
                    note,
                    " on another machine ({}); its nodes are busy while it runs there, but it \
                     does not change them any more",
                    clean(&self.host)
                );
            }
            self.attempts.record_end(&job.domain, job.cause, &job.nodes, None, &now);
            notes.push(note);
        }
        self.host = here;
        notes
    }
}

/// Why this process must not write, if the watch started it: another instance has taken
/// over and does not list the job. An instance cannot end jobs on another host, so the
/// jobs check this themselves.
pub fn explain_disowned(folder: &Path) -> Option<String> {
    let job = std::env::var(JOB_VARIABLE).ok().filter(|job| !job.is_empty())?;
    explain_disowned_job(folder, &job)
}

fn explain_disowned_job(folder: &Path, job: &str) -> Option<String> {
    match WatchState::read(folder) {
        Ok(state) if state.jobs.iter().any(|it| it.job == job) => None,
        Ok(_) => Some(format!(
            "job {} is not a job of the active watch any more: nothing is written",
            clean(job)
        )),
        Err(error) => Some(format!("{error}: unknown whether the watch still needs this")),
    }
}

/// The lock of a state folder; released however the process ends.
#[derive(Debug)]
pub struct WatchLock(#[expect(dead_code, reason = "held, not used")] File);

/// Takes the lock of the folder; the inner `Err` names the holder.
pub fn lock_folder(folder: &Path) -> io::Result<Result<WatchLock, String>> {
    create_folder(folder)?;
    let path = folder.join(LOCK_FILE);
    let mut file = open_options().create(true).truncate(false).read(true).write(true).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut who = String::new();
            // The holder writes its name right after it takes the lock.
            let _ = file.take(200).read_to_string(&mut who);
            let who = clean(who.trim());
            return Ok(Err(if who.is_empty() { "another instance".to_owned() } else { who }));
        }
        Err(error) => return Err(error.into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "process {} on {}", std::process::id(), clock::host_name())?;
    Ok(Ok(WatchLock(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_taken_over_may_not_write_on_any_host() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = StartedJob {
            job: "admit-1".to_owned(),
            domain: "d1".into(),
            profile: "admit".to_owned(),
            cause: DueReason::Missing,
            why: String::new(),
            nodes: BTreeMap::new(),
            partners: Vec::new(),
            command: Vec::new(),
            log: String::new(),
            at: clock::now(),
        };
        let host = "another-machine".to_owned();
        let format = STATE_FORMAT.to_owned();
        let mut state = WatchState { format, host, jobs: vec![started], ..WatchState::default() };
        state.write(folder.path()).expect("written");
        assert_eq!(explain_disowned_job(folder.path(), "admit-1"), None);
        assert!(explain_disowned_job(folder.path(), "admit-2").is_some());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let taking = state.take_over(Duration::ZERO);
        let notes = runtime.expect("a runtime").block_on(taking);
        assert!(notes[0].contains("on another machine (another-machine)"), "{notes:?}");
        state.write(folder.path()).expect("written");
        assert!(explain_disowned_job(folder.path(), "admit-1").is_some());
        fs::write(folder.path().join(STATE_FILE), "{").expect("written");
        assert!(explain_disowned_job(folder.path(), "admit-1").is_some(), "unknown");
    }
}
