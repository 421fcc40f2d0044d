//! The watch: observes the cluster, decides which measurements are due, and runs the same
//! commands for them that an operator would run.
//!
//! `engine::policy::schedule` decides which measurements are due; the gate turn at the
//! end of each command acts on the nodes. Only one instance at a time starts jobs,
//! ensured by a lock in the state folder and optionally by a Lease.

mod connection_limit;
pub mod http;
pub mod jobs;
pub mod monitor;
pub mod node_events;
pub mod observation;
pub mod self_metrics;
pub mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use self::jobs::JobRunner;
use self::observation::{WatchObservation, WatchObserver};
use self::self_metrics::WatchMetrics;
use self::state::WatchState;
use super::clock;
use super::lease::leader_elector::{LeaderElector, LeadershipStatus};
use super::lease::{LeaseTerm, leader_elector};
use super::scheduler::Scheduler;
use crate::store::document_signature::SignatureTrust;
use engine::policy::action_policy::Policy;
use engine::policy::schedule::{MeasurementJob, ScheduleSettings};
use model::claims::Claims;
use model::watch::{JobOutcome, WatchEvent};

/// Interval for checking leadership and the jobs' logs.
const TICK: Duration = Duration::from_secs(1);

/// Delay that collects several node changes into one observation: a rack joins within
/// seconds.
const DEBOUNCE: Duration = Duration::from_secs(2);

/// Observations take at most a quarter of the time, whatever the number of changes:
/// fleets of thousands of nodes take seconds to read.
const OBSERVATION_SHARE: u32 = 4;

/// Reads the claims; runs in a separate thread, because sources may be slow.
pub type ClaimsFetcher = Arc<dyn Fn() -> Result<Claims, String> + Send + Sync>;

/// Creates a scheduler client that writes under a term.
pub type SchedulerWriterFactory<'a> = &'a dyn Fn(&LeaseTerm) -> Box<dyn Scheduler>;

/// Intervals and limits of the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchIntervals {
    /// Time between observations without node changes.
    pub interval: Duration,
    /// Time between readings of the claims.
    pub claims_refresh: Duration,
    /// Time for jobs to end after a stop request.
    pub job_grace: Duration,
    /// Number of job logs to keep.
    pub max_logs: usize,
}

/// Inputs of the watch.
#[expect(missing_debug_implementations, reason = "callbacks have no Debug")]
pub struct WatchLoop<'a> {
    /// The gate's state folder.
    pub folder: PathBuf,
    /// The scheduler to read.
    pub scheduler: &'a dyn Scheduler,
    /// Reads the claims.
    pub fetch_claims: ClaimsFetcher,
    /// When measurements are due.
    pub settings: ScheduleSettings,
    /// The gate's policy: names of marks, and budgets.
    pub policy: &'a Policy,
    /// Signers whose certificates are accepted.
    pub trust: &'a SignatureTrust,
    /// Keep new pods off nodes with an expired certificate, by a taint.
    pub taints: bool,
    /// Creates a client that writes under a term, if writes need one.
    pub writer: Option<SchedulerWriterFactory<'a>>,
    /// Intervals and limits.
    pub intervals: WatchIntervals,
    /// The command before the profile: this program.
    pub program: Vec<String>,
    /// The arguments between the profile and the nodes.
    pub arguments: Vec<String>,
    /// Start jobs; otherwise only report them.
    pub apply: bool,
    /// Make one decision, run its jobs, and exit.
    pub once: bool,
    /// The Lease, if one is configured.
    pub lease: Option<leader_elector::LeaderElectionConfig>,
    /// Node changes that trigger an observation.
    pub node_changes: Option<mpsc::Receiver<()>>,
    /// Becomes true when the watch must end.
    pub stop: watch::Receiver<bool>,
    /// Metrics of the watch.
    pub metrics: Arc<WatchMetrics>,
    /// Receives the events.
    pub emit: &'a mut dyn FnMut(WatchEvent),
}

/// The watch ended without a stop request.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The state folder is unusable.
    #[error("{}: {why}", folder.display())]
    Folder {
        /// The folder, or the Lease.
        folder: PathBuf,
        /// The error.
        why: String,
    },
    /// `once` was requested while another instance is active.
    #[error("another instance is active: {0}")]
    Locked(String),
    /// `once` was requested, but the active instance cannot be determined.
    #[error("cannot determine whether another instance is active: {0}")]
    LeaderUnknown(String),
    /// `once` was requested, but an input could not be read.
    #[error("nothing could be decided: {0}")]
    ObservationFailed(String),
}

/// How a period of leadership ended.
enum WatchEnd {
    /// By a stop request.
    Stopped,
    /// Leadership was lost.
    LostLeadership(String),
    /// The `once` run is complete, with this exit code.
    Done(u8),
    /// The state of running jobs cannot be written.
    Failed(WatchError),
}

/// Watches until a stop request. Returns the exit code: with `once` that of the jobs,
/// otherwise 0.
pub async fn run_watch(mut watch: WatchLoop<'_>) -> Result<u8, WatchError> {
    (watch.emit)(WatchEvent::Began {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scheduler: watch.scheduler.name(),
        apply: watch.apply,
    });
    if !watch.apply {
        return run_observe_only(&mut watch).await;
    }
    let failed = |why: std::io::Error| WatchError::Folder {
        folder: PathBuf::from("the Lease"),
        why: why.to_string(),
    };
    let keeper = watch.lease.clone().map(LeaderElector::start).transpose().map_err(failed)?;
    let patience = watch.lease.as_ref().map(|it| it.duration + 2 * it.renew);
    let result = loop {
        let Some((lock, term)) = wait_for_leadership(&mut watch, keeper.as_ref(), patience).await?
        else {
            break 0;
        };
        (watch.emit)(WatchEvent::Leading { term: term.as_ref().map(LeaseTerm::to_string) });
        watch.metrics.set_leading(true);
        let over = run_as_leader(&mut watch, keeper.as_ref(), term.as_ref()).await?;
        watch.metrics.set_leading(false);
        drop(lock);
        match over {
            WatchEnd::Stopped => break 0,
            WatchEnd::Done(code) => break code,
            WatchEnd::LostLeadership(why) => (watch.emit)(WatchEvent::Lost { why }),
            WatchEnd::Failed(error) => return Err(error),
        }
    };
    if let Some(keeper) = keeper {
        keeper.release();
    }
    Ok(result)
}

/// Decides repeatedly without starting any job.
async fn run_observe_only(watch: &mut WatchLoop<'_>) -> Result<u8, WatchError> {
    watch.metrics.set_standby(true);
    let mut observer = WatchObserver::default();
    loop {
        let state = WatchState::read(&watch.folder).map_err(|why| folder_error(watch, why))?;
        let observed = observer.observe(watch, &state).await;
        match observed {
            Err(why) if watch.once => return Err(WatchError::ObservationFailed(why)),
            Err(what) => (watch.emit)(WatchEvent::Trouble { what }),
            Ok(WatchObservation { due, is_changed: news, corrections: wrong }) => {
                for job in due.jobs.iter().filter(|_| news) {
                    let line = jobs::describe_job(job, "", &job_command(watch, job), "");
                    (watch.emit)(WatchEvent::Due(line));
                }
                observer.apply_corrections(watch, wrong, None).await;
            }
        }
        if watch.once {
            return Ok(0);
        }
        tokio::select! {
            () = sleep(watch.intervals.interval) => {}
            () = wait_for_node_change(&mut watch.node_changes) => sleep(DEBOUNCE).await,
            () = wait_for_stop(&mut watch.stop) => return Ok(0),
        }
    }
}

/// The term to work under, if there is a Lease. The error explains the wait, and whether
/// another instance is known to be active.
fn working_term(standing: Option<&LeadershipStatus>) -> Result<Option<LeaseTerm>, (String, bool)> {
    let Some(standing) = standing else { return Ok(None) };
    match (standing.current_term(), standing) {
        (Some(term), _) => Ok(Some(term.clone())),
        (None, LeadershipStatus::Waiting { why, is_confirmed: knows }) => {
            Err((format!("the Lease: {why}"), *knows))
        }
        (None, LeadershipStatus::Leading { .. }) => {
            Err(("the Lease is due for renewal".to_owned(), false))
        }
    }
}

/// Waits until this instance is the active one; `None` on a stop request.
async fn wait_for_leadership(
    watch: &mut WatchLoop<'_>,
    keeper: Option<&LeaderElector>,
    patience: Option<Duration>,
) -> Result<Option<(state::WatchLock, Option<LeaseTerm>)>, WatchError> {
    let began = Instant::now();
    let mut reported = None;
    loop {
        if *watch.stop.borrow() {
            return Ok(None);
        }
        watch.metrics.record_turn();
        let standing = || keeper.map(|it| it.status.borrow().clone());
        let (why, knows) = match working_term(standing().as_ref()) {
            Err(waits) => waits,
            Ok(_) => {
                let lock =
                    state::lock_folder(&watch.folder).map_err(|why| folder_error(watch, why))?;
                // The Lease may have expired while the lock was taken.
                match (lock, working_term(standing().as_ref())) {
                    (Ok(lock), Ok(term)) => return Ok(Some((lock, term))),
                    (Ok(_), Err(waits)) => waits,
                    (Err(who), _) => {
                        (format!("{}: {who} holds the lock", watch.folder.display()), true)
                    }
                }
            }
        };
        watch.metrics.set_standby(knows);
        if watch.once && patience.is_none_or(|patience| patience <= began.elapsed()) {
            return Err(if knows {
                WatchError::Locked(why)
            } else {
                WatchError::LeaderUnknown(why)
            });
        }
        if reported.as_ref() != Some(&why) {
            (watch.emit)(WatchEvent::Waiting { why: why.clone() });
            reported = Some(why);
        }
        tokio::select! {
            () = sleep(TICK) => {}
            () = wait_for_stop(&mut watch.stop) => return Ok(None),
        }
    }
}

/// Observes, decides and starts jobs until a stop request or loss of leadership.
async fn run_as_leader(
    watch: &mut WatchLoop<'_>,
    keeper: Option<&LeaderElector>,
    term: Option<&LeaseTerm>,
) -> Result<WatchEnd, WatchError> {
    let mut state = WatchState::read(&watch.folder).map_err(|why| folder_error(watch, why))?;
    for note in state.take_over(watch.intervals.job_grace).await {
        (watch.emit)(WatchEvent::Trouble { what: note });
    }
    state.write(&watch.folder).map_err(|why| folder_error(watch, why))?;
    let mut jobs = JobRunner::new(&watch.folder, watch.intervals.max_logs);
    let mut observer = WatchObserver::default();
    let mut next = Instant::now();
    let mut worst = JobOutcome::Passed;
    let mut worst_code = 0;
    let mut has_decided = false;
    let over = 'work: loop {
        watch.metrics.record_turn();
        let is_held = |keeper: &LeaderElector| keeper.status.borrow().current_term() == term;
        if let Some(why) = keeper.filter(|it| !is_held(it)).map(explain_lost_leadership) {
            break WatchEnd::LostLeadership(why);
        }
        if next <= Instant::now() && !(watch.once && has_decided) {
            let began = Instant::now();
            let observed = tokio::select! {
                observed = observer.observe(watch, &state) => observed,
                () = wait_until_lost(keeper, term) => continue,
            };
            watch.metrics.record_turn();
            let has_looked = began.elapsed();
            next = Instant::now() + watch.intervals.interval.max(has_looked * OBSERVATION_SHARE);
            match observed {
                Err(why) if watch.once => break WatchEnd::LostLeadership(why),
                Err(what) => (watch.emit)(WatchEvent::Trouble { what }),
                Ok(WatchObservation { due, corrections: wrong, .. }) => {
                    has_decided = true;
                    observer.apply_corrections(watch, wrong, term).await;
                    for job in due.jobs {
                        if *watch.stop.borrow() {
                            break;
                        }
                        let command = job_command(watch, &job);
                        let started = jobs.start(job, command, term, &mut state);
                        if let Err(why) = state.write(&watch.folder) {
                            break 'work WatchEnd::Failed(folder_error(watch, why));
                        }
                        watch.metrics.record_job_start(&started, &state);
                        if matches!(started, WatchEvent::Trouble { .. }) {
                            (worst, worst_code) =
                                (JobOutcome::Killed, exit_code(JobOutcome::Killed));
                        }
                        (watch.emit)(started);
                    }
                }
            }
        }
        if watch.once && has_decided && jobs.is_empty() {
            break WatchEnd::Done(worst_code);
        }
        tokio::select! {
            () = sleep(TICK) => {}
            () = wait_for_stop(&mut watch.stop) => break WatchEnd::Stopped,
            () = wait_for_node_change(&mut watch.node_changes) => {
                next = next.min(next_observation_time(&observer));
            },
            ended = jobs.next_finished() => {
                jobs.emit_final_lines(&ended, watch.emit);
                let (event, outcome, code) = jobs.conclude(ended, &mut state, true);
                if worst.severity() < outcome.severity() {
                    (worst, worst_code) = (outcome, code.unwrap_or(exit_code(outcome)));
                }
                watch.metrics.record_job_end(&event, &state, clock::now().unix);
                (watch.emit)(event);
                if let Err(why) = state.write(&watch.folder) {
                    break WatchEnd::Failed(folder_error(watch, why));
                }
                next = next.min(next_observation_time(&observer));
            }
        }
        jobs.emit_lines(watch.emit);
    };
    if !jobs.is_empty() {
        let why = match &over {
            WatchEnd::LostLeadership(why) => why.clone(),
            WatchEnd::Failed(error) => error.to_string(),
            WatchEnd::Stopped | WatchEnd::Done(_) => "stop requested".to_owned(),
        };
        (watch.emit)(WatchEvent::Stopping { why });
    }
    // Stopped by the watch itself, so the jobs do not count against their nodes.
    jobs.stop_all(watch.intervals.job_grace);
    while !jobs.is_empty() {
        let ended = tokio::select! {
            ended = jobs.next_finished() => ended,
            () = sleep(TICK) => {
                watch.metrics.record_turn();
                jobs.emit_lines(watch.emit);
                continue;
            }
        };
        jobs.emit_final_lines(&ended, watch.emit);
        let (event, ..) = jobs.conclude(ended, &mut state, false);
        watch.metrics.record_job_end(&event, &state, clock::now().unix);
        (watch.emit)(event);
    }
    match (state.write(&watch.folder), over) {
        (_, WatchEnd::Failed(error)) => Err(error),
        (Err(why), _) => Err(folder_error(watch, why)),
        (Ok(()), WatchEnd::LostLeadership(why)) if watch.once => {
            Err(WatchError::ObservationFailed(why))
        }
        (Ok(()), over) => Ok(over),
    }
}

/// The earliest time of the next observation.
fn next_observation_time(observer: &WatchObserver) -> Instant {
    Instant::now() + DEBOUNCE.max(observer.last_duration() * OBSERVATION_SHARE)
}

/// Exit code for a job without one.
fn exit_code(outcome: JobOutcome) -> u8 {
    match outcome {
        JobOutcome::Killed => 5,
        _ => 1,
    }
}

/// Maximum number of partners that a command chooses by default.
const MAX_PARTNERS: usize = 5;

/// The command of a job. Nodes are separate arguments, because another reader's host list
/// syntax may differ.
fn job_command(watch: &WatchLoop<'_>, job: &MeasurementJob) -> Vec<String> {
    let mut words = watch.program.clone();
    words.push(job.profile.as_str().to_owned());
    words.extend(watch.arguments.iter().cloned());
    // The command adds partners if the job's partners do not cover the claims, but stays
    // within the job's node limit.
    let room = watch.settings.nodes.saturating_sub(job.all_nodes().len());
    if room < MAX_PARTNERS {
        words.extend(["--partners".to_owned(), room.to_string()]);
    }
    words.push("--".to_owned());
    words.extend(job.all_nodes().into_iter().map(String::from));
    words
}

fn explain_lost_leadership(keeper: &LeaderElector) -> String {
    match &*keeper.status.borrow() {
        LeadershipStatus::Waiting { why, .. } => format!("the Lease: {why}"),
        LeadershipStatus::Leading { term, .. } => {
            format!("the Lease was not renewed in time, or its term is {term}")
        }
    }
}

/// Waits until the Lease is lost; without a Lease, forever.
async fn wait_until_lost(keeper: Option<&LeaderElector>, term: Option<&LeaseTerm>) {
    match keeper {
        None => std::future::pending().await,
        Some(keeper) => {
            while keeper.status.borrow().current_term() == term {
                sleep(TICK).await;
            }
        }
    }
}

async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // All senders are dropped, so no stop request can arrive.
        std::future::pending::<()>().await;
    }
}

async fn wait_for_node_change(pokes: &mut Option<mpsc::Receiver<()>>) {
    let Some(channel) = pokes else { return std::future::pending().await };
    if channel.recv().await.is_none() {
        *pokes = None;
        std::future::pending::<()>().await;
    }
}

fn folder_error(watch: &WatchLoop<'_>, why: impl std::fmt::Display) -> WatchError {
    WatchError::Folder { folder: watch.folder.clone(), why: why.to_string() }
}

/// Current uptime, for the submodules.
fn uptime_s() -> f64 {
    clock::now().uptime_s
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
