//! The standing gate: looks, decides what is due, and runs the same commands
//! for it that a person would type.
//!
//! What is due, `act::due` says; what is done about a node, the turn of the gate
//! says that a command ends with. One instance at a time starts anything: by a
//! lock in the state folder, and by a Lease where there is one.

mod door;
pub mod http;
pub mod jobs;
pub mod look;
pub mod monitor;
pub mod pokes;
pub mod state;
pub mod vitals;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use self::jobs::Jobs;
use self::look::{Look, Looked};
use self::state::State;
use self::vitals::Vitals;
use super::lease::keeper::{Keeper, Standing};
use super::lease::{Term, keeper};
use super::scheduler::Scheduler;
use super::stamp;
use crate::store::signing::Trust;
use engine::policy::action_policy::Policy;
use engine::policy::schedule::{MeasurementJob, ScheduleSettings};
use model::claims::Claims;
use model::watch::{JobOutcome, WatchEvent};

/// How often it is seen to that we still may, and what jobs have printed.
const TICK: Duration = Duration::from_secs(1);

/// How long several changes of nodes are waited for, so that one look serves
/// them all: a rack joins within seconds.
const DEBOUNCE: Duration = Duration::from_secs(2);

/// A look may take a quarter of the time at most, however many changes ask for
/// one: fleets of thousands take seconds to read.
const LOOK_SHARE: u32 = 4;

/// What claims are, asked in a thread of its own: sources may take long.
pub type AskClaims = Arc<dyn Fn() -> Result<Claims, String> + Send + Sync>;

/// Who writes under a term.
pub type Writer<'a> = &'a dyn Fn(&Term) -> Box<dyn Scheduler>;

/// How patient the loop is.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// How often it looks where nothing asks for it.
    pub interval: Duration,
    /// How often sources are asked what they claim.
    pub claims: Duration,
    /// How long jobs may take to conclude when they are told to end.
    pub conclude: Duration,
    /// How many logs of jobs are kept.
    pub logs: usize,
}

/// What is watched, and how.
#[expect(missing_debug_implementations, reason = "it lends whom to ask and to tell")]
pub struct Watch<'a> {
    /// The gate's state folder.
    pub folder: PathBuf,
    /// Who is asked how nodes stand.
    pub scheduler: &'a dyn Scheduler,
    /// Who is asked what is claimed.
    pub claims: AskClaims,
    /// What is due when.
    pub settings: ScheduleSettings,
    /// The rules of the gate: what marks are called, how much may be spent.
    pub policy: &'a Policy,
    /// Whose certificates count.
    pub trust: &'a Trust,
    /// A node whose certificate has expired takes no new pods.
    pub taints: bool,
    /// Who writes under a term, where writing needs one.
    pub writer: Option<Writer<'a>>,
    /// How patient it is.
    pub pace: Pace,
    /// What is started for a job, before the profile: this program.
    pub program: Vec<String>,
    /// What follows the profile, before the nodes.
    pub arguments: Vec<String>,
    /// Start jobs; without it, only say which.
    pub apply: bool,
    /// One decision and its jobs, and no more.
    pub once: bool,
    /// The Lease, where there is one.
    pub lease: Option<keeper::Wanted>,
    /// Changes of nodes that ask for a look.
    pub pokes: Option<mpsc::Receiver<()>>,
    /// Turns true where it is to end.
    pub stop: watch::Receiver<bool>,
    /// Numbers for whoever asks.
    pub vitals: Arc<Vitals>,
    /// Whom to tell.
    pub tell: &'a mut dyn FnMut(WatchEvent),
}

/// Why the watch ended where it was not told to.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The state folder cannot be used.
    #[error("{}: {why}", folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        why: String,
    },
    /// Another instance is at work, and only one decision was asked for.
    #[error("another instance is at work: {0}")]
    Taken(String),
    /// Nobody says who is at work, and only one decision was asked for.
    #[error("it is not known whether another instance is at work: {0}")]
    Untold(String),
    /// Nobody could be asked, and only one decision was asked for.
    #[error("nothing could be decided: {0}")]
    Unknown(String),
}

/// How a time at work ended.
enum Over {
    /// It was told to.
    Stopped,
    /// It may not be at work any more.
    Lost(String),
    /// What was asked for is done, with this exit code.
    Done(u8),
    /// What runs cannot be written down any more.
    Failed(WatchError),
}

/// Watches until it is told to end; the exit code of whoever asked for one
/// decision, else that of success.
pub async fn watch(mut watch: Watch<'_>) -> Result<u8, WatchError> {
    (watch.tell)(WatchEvent::Began {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scheduler: watch.scheduler.name(),
        apply: watch.apply,
    });
    if !watch.apply {
        return only_looking(&mut watch).await;
    }
    let failed = |why: std::io::Error| WatchError::Folder {
        folder: PathBuf::from("the Lease"),
        why: why.to_string(),
    };
    let keeper = watch.lease.clone().map(Keeper::start).transpose().map_err(failed)?;
    let patience = watch.lease.as_ref().map(|it| it.duration + 2 * it.renew);
    let result = loop {
        let Some((lock, term)) = may_work(&mut watch, keeper.as_ref(), patience).await? else {
            break 0;
        };
        (watch.tell)(WatchEvent::Leading { term: term.as_ref().map(Term::to_string) });
        watch.vitals.leads(true);
        let over = at_work(&mut watch, keeper.as_ref(), term.as_ref()).await?;
        watch.vitals.leads(false);
        drop(lock);
        match over {
            Over::Stopped => break 0,
            Over::Done(code) => break code,
            Over::Lost(why) => (watch.tell)(WatchEvent::Lost { why }),
            Over::Failed(error) => return Err(error),
        }
    };
    if let Some(keeper) = keeper {
        keeper.release();
    }
    Ok(result)
}

/// Decides again and again, and starts nothing.
async fn only_looking(watch: &mut Watch<'_>) -> Result<u8, WatchError> {
    watch.vitals.waits(true);
    let mut look = Look::default();
    loop {
        let state = State::read(&watch.folder).map_err(|why| folder(watch, why))?;
        let looked = look.look(watch, &state).await;
        match looked {
            Err(why) if watch.once => return Err(WatchError::Unknown(why)),
            Err(what) => (watch.tell)(WatchEvent::Trouble { what }),
            Ok(Looked { due, news, wrong }) => {
                for job in due.jobs.iter().filter(|_| news) {
                    let line = jobs::line(job, "", &command(watch, job), "");
                    (watch.tell)(WatchEvent::Due(line));
                }
                look.put_right(watch, wrong, None).await;
            }
        }
        if watch.once {
            return Ok(0);
        }
        tokio::select! {
            () = sleep(watch.pace.interval) => {}
            () = poked(&mut watch.pokes) => sleep(DEBOUNCE).await,
            () = stopped(&mut watch.stop) => return Ok(0),
        }
    }
}

/// The term to work under, where there is a Lease; or why not yet, and whether somebody is
/// known to work.
fn under(standing: Option<&Standing>) -> Result<Option<Term>, (String, bool)> {
    let Some(standing) = standing else { return Ok(None) };
    match (standing.held(), standing) {
        (Some(term), _) => Ok(Some(term.clone())),
        (None, Standing::Waiting { why, knows }) => Err((format!("the Lease: {why}"), *knows)),
        (None, Standing::Held { .. }) => Err(("the Lease is to be renewed".to_owned(), false)),
    }
}

/// Waits until this instance is the one at work; `None` where it is to end.
async fn may_work(
    watch: &mut Watch<'_>,
    keeper: Option<&Keeper>,
    patience: Option<Duration>,
) -> Result<Option<(state::Lock, Option<Term>)>, WatchError> {
    let began = Instant::now();
    let mut told = None;
    loop {
        if *watch.stop.borrow() {
            return Ok(None);
        }
        watch.vitals.turned();
        let standing = || keeper.map(|it| it.standing.borrow().clone());
        let (why, knows) = match under(standing().as_ref()) {
            Err(waits) => waits,
            Ok(_) => {
                let lock = state::lock(&watch.folder).map_err(|why| folder(watch, why))?;
                // Taking the lock may have taken longer than the Lease lasts.
                match (lock, under(standing().as_ref())) {
                    (Ok(lock), Ok(term)) => return Ok(Some((lock, term))),
                    (Ok(_), Err(waits)) => waits,
                    (Err(who), _) => {
                        (format!("{}: {who} is at work here", watch.folder.display()), true)
                    }
                }
            }
        };
        watch.vitals.waits(knows);
        if watch.once && patience.is_none_or(|patience| patience <= began.elapsed()) {
            return Err(if knows { WatchError::Taken(why) } else { WatchError::Untold(why) });
        }
        if told.as_ref() != Some(&why) {
            (watch.tell)(WatchEvent::Waiting { why: why.clone() });
            told = Some(why);
        }
        tokio::select! {
            () = sleep(TICK) => {}
            () = stopped(&mut watch.stop) => return Ok(None),
        }
    }
}

/// Looks, decides and starts until it is told to end or may no more.
async fn at_work(
    watch: &mut Watch<'_>,
    keeper: Option<&Keeper>,
    term: Option<&Term>,
) -> Result<Over, WatchError> {
    let mut state = State::read(&watch.folder).map_err(|why| folder(watch, why))?;
    for note in state.take_over(watch.pace.conclude).await {
        (watch.tell)(WatchEvent::Trouble { what: note });
    }
    state.write(&watch.folder).map_err(|why| folder(watch, why))?;
    let mut jobs = Jobs::new(&watch.folder, watch.pace.logs);
    let mut look = Look::default();
    let mut next = Instant::now();
    let mut worst = JobOutcome::Passed;
    let mut worst_code = 0;
    let mut has_decided = false;
    let over = 'work: loop {
        watch.vitals.turned();
        let is_held = |keeper: &Keeper| keeper.standing.borrow().held() == term;
        if let Some(why) = keeper.filter(|it| !is_held(it)).map(why_lost) {
            break Over::Lost(why);
        }
        if next <= Instant::now() && !(watch.once && has_decided) {
            let began = Instant::now();
            let looked = tokio::select! {
                looked = look.look(watch, &state) => looked,
                () = lost(keeper, term) => continue,
            };
            watch.vitals.turned();
            let has_looked = began.elapsed();
            next = Instant::now() + watch.pace.interval.max(has_looked * LOOK_SHARE);
            match looked {
                Err(why) if watch.once => break Over::Lost(why),
                Err(what) => (watch.tell)(WatchEvent::Trouble { what }),
                Ok(Looked { due, wrong, .. }) => {
                    has_decided = true;
                    look.put_right(watch, wrong, term).await;
                    for job in due.jobs {
                        if *watch.stop.borrow() {
                            break;
                        }
                        let command = command(watch, &job);
                        let started = jobs.start(job, command, term, &mut state);
                        if let Err(why) = state.write(&watch.folder) {
                            break 'work Over::Failed(folder(watch, why));
                        }
                        watch.vitals.began(&started, &state);
                        if matches!(started, WatchEvent::Trouble { .. }) {
                            (worst, worst_code) = (JobOutcome::Killed, exit_of(JobOutcome::Killed));
                        }
                        (watch.tell)(started);
                    }
                }
            }
        }
        if watch.once && has_decided && jobs.is_empty() {
            break Over::Done(worst_code);
        }
        tokio::select! {
            () = sleep(TICK) => {}
            () = stopped(&mut watch.stop) => break Over::Stopped,
            () = poked(&mut watch.pokes) => next = next.min(soon(&look)),
            ended = jobs.next() => {
                jobs.tell_last(&ended, watch.tell);
                let (event, outcome, code) = jobs.conclude(ended, &mut state, true);
                if worst.severity() < outcome.severity() {
                    (worst, worst_code) = (outcome, code.unwrap_or(exit_of(outcome)));
                }
                watch.vitals.ended(&event, &state, stamp::stamp().unix);
                (watch.tell)(event);
                if let Err(why) = state.write(&watch.folder) {
                    break Over::Failed(folder(watch, why));
                }
                next = next.min(soon(&look));
            }
        }
        jobs.tell_lines(watch.tell);
    };
    if !jobs.is_empty() {
        let why = match &over {
            Over::Lost(why) => why.clone(),
            Over::Failed(error) => error.to_string(),
            Over::Stopped | Over::Done(_) => "told to end".to_owned(),
        };
        (watch.tell)(WatchEvent::Stopping { why });
    }
    // Ended by us: nothing is held against their nodes.
    jobs.end(watch.pace.conclude);
    while !jobs.is_empty() {
        let ended = tokio::select! {
            ended = jobs.next() => ended,
            () = sleep(TICK) => {
                watch.vitals.turned();
                jobs.tell_lines(watch.tell);
                continue;
            }
        };
        jobs.tell_last(&ended, watch.tell);
        let (event, ..) = jobs.conclude(ended, &mut state, false);
        watch.vitals.ended(&event, &state, stamp::stamp().unix);
        (watch.tell)(event);
    }
    match (state.write(&watch.folder), over) {
        (_, Over::Failed(error)) => Err(error),
        (Err(why), _) => Err(folder(watch, why)),
        (Ok(()), Over::Lost(why)) if watch.once => Err(WatchError::Unknown(why)),
        (Ok(()), over) => Ok(over),
    }
}

/// The earliest moment of the next look.
fn soon(look: &Look) -> Instant {
    Instant::now() + DEBOUNCE.max(look.took() * LOOK_SHARE)
}

/// The exit code where a job had none.
fn exit_of(outcome: JobOutcome) -> u8 {
    match outcome {
        JobOutcome::Killed => 5,
        _ => 1,
    }
}

/// Partners that a command takes by itself at most.
const MOST_PARTNERS: usize = 5;

/// The command of a job. Names are given one by one: whoever reads them may
/// know other lists than we fold.
fn command(watch: &Watch<'_>, job: &MeasurementJob) -> Vec<String> {
    let mut words = watch.program.clone();
    words.push(job.profile.as_str().to_owned());
    words.extend(watch.arguments.iter().cloned());
    // The command takes partners where those of the job do not cross what is claimed of
    // it, and no more than a job may have.
    let room = watch.settings.nodes.saturating_sub(job.all_nodes().len());
    if room < MOST_PARTNERS {
        words.extend(["--partners".to_owned(), room.to_string()]);
    }
    words.push("--".to_owned());
    words.extend(job.all_nodes().into_iter().map(String::from));
    words
}

fn why_lost(keeper: &Keeper) -> String {
    match &*keeper.standing.borrow() {
        Standing::Waiting { why, .. } => format!("the Lease: {why}"),
        Standing::Held { term, .. } => {
            format!("the Lease was not renewed in time, or its term is {term}")
        }
    }
}

/// Waits until the Lease is lost; for ever where there is none.
async fn lost(keeper: Option<&Keeper>, term: Option<&Term>) {
    match keeper {
        None => std::future::pending().await,
        Some(keeper) => {
            while keeper.standing.borrow().held() == term {
                sleep(TICK).await;
            }
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Nobody is left who could stop it.
        std::future::pending::<()>().await;
    }
}

async fn poked(pokes: &mut Option<mpsc::Receiver<()>>) {
    let Some(channel) = pokes else { return std::future::pending().await };
    if channel.recv().await.is_none() {
        *pokes = None;
        std::future::pending::<()>().await;
    }
}

fn folder(watch: &Watch<'_>, why: impl std::fmt::Display) -> WatchError {
    WatchError::Folder { folder: watch.folder.clone(), why: why.to_string() }
}

/// The present moment, for those beside the loop.
fn now_s() -> f64 {
    stamp::stamp().uptime_s
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
