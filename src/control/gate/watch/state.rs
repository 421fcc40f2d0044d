//! What outlives the watch: attempts, and the jobs that were started. And the
//! lock that makes one instance of a state folder the one at work.
//!
//! Budgets, drains and the breaker are not in here: they are the journal's.

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

/// The file.
pub const STATE_FILE: &str = "watch.json";
/// The lock.
pub const LOCK_FILE: &str = "watch.lock";
/// The variable that marks everything that a job started.
pub const JOB_VARIABLE: &str = "FABRICGATE_WATCH_JOB";

/// The format of the file.
pub const STATE_FORMAT: &str = "fabricgate.watch-state/1";

/// What is written down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchState {
    /// `fabricgate.watch-state/1`.
    pub format: String,
    /// The machine on which jobs run.
    pub host: String,
    /// What was tried.
    #[serde(default)]
    pub attempts: MeasurementAttempts,
    /// What runs, written before it is started.
    #[serde(default)]
    pub jobs: Vec<StartedJob>,
}

/// A job that was, or is about to be, started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartedJob {
    /// Its name.
    pub job: String,
    /// The domain.
    pub domain: DomainName,
    /// The profile.
    pub profile: String,
    /// Why.
    pub cause: DueReason,
    /// Why, in words.
    pub why: String,
    /// The nodes it is for, with what they want.
    pub nodes: BTreeMap<NodeName, String>,
    /// The others.
    pub partners: Vec<NodeName>,
    /// The command.
    pub command: Vec<String>,
    /// Its log.
    pub log: String,
    /// When.
    pub at: ClockStamp,
}

impl StartedJob {
    /// Every node of it.
    pub fn to_running_measurement(&self) -> RunningMeasurement {
        let nodes = self.nodes.keys().chain(&self.partners).cloned().collect();
        RunningMeasurement { domain: self.domain.clone(), nodes }
    }
}

impl WatchState {
    /// What is on disk; nothing, where there is none.
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
            let text = format!("{path}: {why}; move it away to begin without what was tried");
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

    /// Writes it, whole or not at all.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        create_folder(folder)?;
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        replace_file(&folder.join(STATE_FILE), &bytes)
    }

    /// Ends what an instance that is gone left running, and takes its jobs for
    /// tried: nothing is started twice. What they held, the next turn frees.
    pub async fn take_over(&mut self, grace: Duration) -> Vec<String> {
        let now = clock::now();
        self.attempts.clamp_future(&now);
        let mut notes = Vec::new();
        let here = clock::host_name();
        for job in std::mem::take(&mut self.jobs) {
            let mut note = format!("job {} was left by an instance that is gone", job.job);
            if self.host == here {
                match background::end_marked_processes(JOB_VARIABLE, &job.job, grace).await {
                    Ok(0) => note.push_str("; nothing of it runs any more"),
                    Ok(count) => {
                        let _ = write!(note, "; {count} processes of it were ended");
                    }
                    Err(error) => {
                        let _ = write!(note, "; what runs cannot be told: {error}");
                    }
                }
            } else {
                let _ = write!(
                    note,
                    " on another machine ({}); its nodes are busy while it runs there, and it \
                     changes none any more",
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

/// Why we must write nothing, where the watch started us: another instance has
/// taken over, and no longer knows of us. It cannot end what runs on another
/// machine; what runs there asks.
pub fn explain_disowned(folder: &Path) -> Option<String> {
    let job = std::env::var(JOB_VARIABLE).ok().filter(|job| !job.is_empty())?;
    explain_disowned_job(folder, &job)
}

fn explain_disowned_job(folder: &Path, job: &str) -> Option<String> {
    match WatchState::read(folder) {
        Ok(state) if state.jobs.iter().any(|it| it.job == job) => None,
        Ok(_) => Some(format!(
            "job {} is no job of the watch at work any more: nothing is written",
            clean(job)
        )),
        Err(error) => Some(format!("{error}: nobody knows whether the watch still wants this")),
    }
}

/// The lock of a state folder. It is given back however the process ends.
#[derive(Debug)]
pub struct WatchLock(#[expect(dead_code, reason = "held, not used")] File);

/// Takes the lock of the folder; `Err` inside says who has it.
pub fn lock_folder(folder: &Path) -> io::Result<Result<WatchLock, String>> {
    create_folder(folder)?;
    let path = folder.join(LOCK_FILE);
    let mut file = open_options().create(true).truncate(false).read(true).write(true).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut who = String::new();
            // Whoever has it writes its name right after.
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
    fn a_job_that_was_taken_over_may_write_nothing_wherever_it_runs() {
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
        assert!(explain_disowned_job(folder.path(), "admit-1").is_some(), "nobody knows");
    }
}
