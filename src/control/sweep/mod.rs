//! The shell that drives the pipeline: runs a plan's rounds through workers,
//! reads, judges, confirms, proposes, and keeps everything in a run folder.
//!
//! It reads the clock, starts processes through `exec`, and decides nothing
//! that a stage decides.

mod apart;
pub mod gaps;
pub mod judged;
pub mod outputs;
pub mod progress;

mod answered;
mod confirm;
#[cfg(test)]
mod false_outputs_tests;
#[cfg(test)]
mod false_reports_tests;
mod fill;
#[cfg(test)]
mod fixture;
mod fleet;
mod keep;
mod measured;
mod ordered;
mod otherwise;
mod replay;
mod room;
mod rounds;
pub mod signals;
mod step;
mod together;
mod worker;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::launch::{Launcher, WorkerProgram};
use crate::store;
use crate::store::folder::Folder;
use crate::store::stored::Stored;
use crate::store::{ClaimsRecord, RecordError, RunRecord, State, file, stored};
use engine::plan;
use engine::plan::{Plan, PlanRequest};
use engine::policy::action_policy;
use engine::policy::action_policy::Policy;
use engine::policy::situation::EvidenceRun;
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::run::{Run, RunInfo};
use model::tool_call::ToolBackend;

use fleet::{Fleet, Unreached};
use judged::Judged;
use keep::Keeper;
use measured::Measured;
use room::Room;
use rounds::{Ran, Runner, Source};
use signals::Signals;

pub use confirm::Confirm;
pub use judged::{coverage, judged, judged_against};
pub use progress::Progress;

/// The present moment, RFC 3339 with milliseconds.
#[expect(clippy::disallowed_methods, reason = "the coordinator is where the clock is read")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A moment as documents show it.
pub fn shown(moment: jiff::Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// A run as decisions know it.
pub fn run_seen(info: &RunInfo, launcher: &Launcher, complete: bool) -> EvidenceRun {
    let created: Option<jiff::Timestamp> = info.created.parse().ok();
    EvidenceRun {
        id: info.id.clone(),
        profile: info.profile.clone(),
        created: info.created.clone(),
        created_unix: created.map_or(0, jiff::Timestamp::as_second),
        complete,
        real: !launcher.is_stand_in(),
        simulated: info.simulated,
        unsigned: None,
        unsure: BTreeMap::new(),
    }
}

/// What a sweep is made of.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// What the run is.
    pub info: RunInfo,
    /// What is claimed of the nodes it covers.
    pub claims: &'a Claims,
    /// What is claimed of the whole fleet: the denominator of the budgets.
    pub fleet: &'a Claims,
    /// What to run.
    pub plan: &'a Plan,
    /// What it was made from, and what confirming plans are made from.
    pub request: &'a PlanRequest<'a>,
    /// How to reach nodes.
    pub launcher: &'a Launcher,
    /// What workers are started with.
    pub program: &'a WorkerProgram,
    /// Tools of this process that answer in the place of nodes.
    pub tools: Option<Arc<dyn ToolBackend>>,
    /// How long a worker may take to answer.
    pub connect: Duration,
    /// How suspicions are confirmed.
    pub confirm: &'a Confirm,
    /// The expectations.
    pub catalogue: &'a PlatformCatalogue,
    /// Their digest.
    pub thresholds_digest: &'a str,
    /// The platform a person named.
    pub platform: Option<&'a str>,
    /// What may be proposed.
    pub policy: &'a Policy,
    /// Where the run goes.
    pub place: Place<'a>,
    /// Whom to tell how far it is.
    pub progress: Progress,
    /// Run the plan again and again; `None` runs it once.
    pub again: Option<Again>,
}

/// How often a plan of load is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Again {
    /// Until so much time is over. A pass that was begun is ended.
    pub lasting: Duration,
}

/// Where a run goes.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Into a new folder in this one.
    New(&'a Path),
    /// On in the folder of a run that did not come to its end.
    Resume(&'a Stored),
}

/// A sweep that was carried out, wholly or in part.
#[derive(Debug)]
pub struct Done {
    /// Everything a report shows.
    pub run: Run,
    /// Its folder.
    pub folder: Folder,
    /// It was interrupted.
    pub partial: bool,
    /// Some tool or node could not be reached.
    pub out_of_reach: bool,
    /// How often the plan was run to its end.
    pub passes: u32,
    /// How long its rounds took.
    pub took: Duration,
}

impl Done {
    /// A run that was carried out before.
    pub fn of(run: Run, folder: Folder) -> Self {
        let (partial, out_of_reach) = (false, false);
        Self { run, folder, partial, out_of_reach, passes: 1, took: Duration::ZERO }
    }
}

/// Why a sweep could not be carried out at all.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The run folder cannot be written.
    #[error("the run cannot be recorded")]
    Record(#[from] RecordError),
    /// Another process writes there.
    #[error("{}: another fabricgate is at work on this run", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// There is nothing left to do.
    #[error("{}: this run is complete", path.display())]
    Complete {
        /// The folder.
        path: PathBuf,
    },
    /// The stored run that should answer cannot be read.
    #[error("what should answer in the place of nodes cannot be read")]
    Answers(#[source] RecordError),
    /// No node answered. The run folder is that of a run that can be gone on with.
    #[error("{why}")]
    Unreachable {
        /// Why, and where that is configured.
        why: String,
    },
    /// The runtime cannot be started.
    #[error("the runtime cannot be started")]
    Runtime(#[source] std::io::Error),
}

/// Carries out a sweep. The run folder is made first and tells at every
/// moment how far the run came.
pub fn sweep(sweep: &Sweep<'_>) -> Result<Done, SweepError> {
    // Before anything is written: without answers there is no run.
    let answers = match sweep.launcher {
        Launcher::Replay { run } => Some(replay::Stored::open(run).map(Source::stored)),
        _ => sweep.tools.clone().map(|tools| Ok(Source::Tools(tools))),
    };
    let answers = answers.transpose().map_err(SweepError::Answers)?;
    let Begun { folder, mut measured, confirm: confirming, _lock } = begin(sweep)?;
    let mut record = RunRecord {
        format: store::RUN_FORMAT.to_owned(),
        info: sweep.info.clone(),
        state: State::Running,
        ended: None,
        resumed: Vec::new(),
        seed: sweep.plan.seed,
        launcher: sweep.launcher.clone(),
        platform: sweep.platform.map(str::to_owned),
        policy: sweep.policy.clone(),
        fleet: sweep.fleet.domains.iter().map(|d| d.nodes.len()).sum(),
        // When and where they were read is no part of what is measured.
        claims_digest: store::digest(&(
            &sweep.claims.domains,
            &sweep.claims.leaves,
            &sweep.claims.rails,
        )),
        thresholds_digest: sweep.thresholds_digest.to_owned(),
    };
    match sweep.place {
        Place::New(_) => {
            let format = store::CLAIMS_FORMAT.to_owned();
            let claims = ClaimsRecord { format, claims: sweep.claims.clone(), changes: None };
            folder.write_json(file::CLAIMS, &claims)?;
            if let Launcher::Sim { scenario, .. } = sweep.launcher {
                // The file may be gone, or another, when the run is resumed.
                let text = std::fs::read(scenario)
                    .map_err(|source| RecordError::Io { path: scenario.clone(), source })?;
                folder.write(file::SCENARIO, &text)?;
            }
            folder.write_plan(file::PLAN, sweep.plan)?;
        }
        Place::Resume(stored) => {
            record.info = stored.record.info.clone();
            record.resumed = stored.record.resumed.clone();
            record.resumed.push(shown(now()));
        }
    }
    folder.write_json(file::RUN, &record)?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SweepError::Runtime)?;
    let keeper = Keeper::start(folder.clone());
    let taken = runtime.block_on(async {
        let mut signals = Signals::listen();
        let (stop, stopped) = watch::channel(false);
        let place = (&folder, &keeper);
        let mut rounds =
            std::pin::pin!(all_rounds(sweep, place, answers, stopped, &mut measured, confirming));
        let mut asked = false;
        loop {
            tokio::select! {
                ended = &mut rounds => break ended.map(Some),
                name = signals.next() => {
                    if asked {
                        sweep.progress.say("killing what runs; what was measured is kept");
                        break Ok(None);
                    }
                    asked = true;
                    let text = "ending what runs, keeping what was measured; once more kills";
                    sweep.progress.say(&format!("{name}: {text}"));
                    stop.send_replace(true);
                }
            }
        }
    });
    sweep.progress.end();
    // Workers that were not let go die with their sessions.
    drop(runtime);
    keeper.finish()?;
    let Some(Swept { confirm, interrupted, repeated, passes, took, unreached }) = taken? else {
        // The order of the last readings is the disk's to tell.
        let reached = Reached::on_disk(&folder)?;
        return conclude(sweep, folder, record, reached);
    };
    let plan = repeated.map_or(Cow::Borrowed(sweep.plan), Cow::Owned);
    let reached = Reached { plan, measured, confirm, partial: interrupted };
    let done = conclude(sweep, folder, record, reached)?;
    match unreached {
        Some(unreached) => Err(SweepError::Unreachable { why: unreached.to_string() }),
        None => Ok(Done { passes, took, ..done }),
    }
}

/// A run folder that is ours, and what an earlier attempt left in it.
#[derive(Debug)]
struct Begun {
    folder: Folder,
    measured: Measured,
    confirm: Option<Plan>,
    _lock: File,
}

/// Takes the folder. Until it is ours another process may be writing there.
fn begin(sweep: &Sweep<'_>) -> Result<Begun, SweepError> {
    let folder = match sweep.place {
        Place::New(runs) => Folder::create(runs, &sweep.info.id)?,
        Place::Resume(stored) => Folder::at(stored.path()),
    };
    let path = || folder.path().to_owned();
    let Some(lock) = folder.lock()? else {
        return Err(SweepError::Taken { path: path() });
    };
    let (mut measured, mut confirm) = (Measured::default(), None);
    if matches!(sweep.place, Place::Resume(_)) {
        // Whoever had it may have gone on with it since it was looked at.
        let stored = stored::open(folder.path())?;
        if stored.record.state == State::Complete {
            return Err(SweepError::Complete { path: path() });
        }
        folder.mend(file::MACHINES)?;
        folder.mend(file::RESULTS)?;
        folder.mend(file::MEASUREMENTS)?;
        measured = Measured::before(stored.results()?, stored.recordings()?);
        confirm = stored.confirm;
    }
    Ok(Begun { folder, measured, confirm, _lock: lock })
}

/// What all rounds together were.
#[derive(Debug)]
struct Swept {
    confirm: Option<Plan>,
    interrupted: bool,
    /// The plan with all of its passes, where it was run again.
    repeated: Option<Plan>,
    passes: u32,
    took: Duration,
    /// Why nothing was run: no node answered.
    unreached: Option<Unreached>,
}

impl Swept {
    /// Ended before anything was run.
    fn nothing(confirm: Option<Plan>, unreached: Option<Unreached>) -> Self {
        let (passes, took) = (0, Duration::ZERO);
        Self { confirm, interrupted: true, repeated: None, passes, took, unreached }
    }
}

/// The rounds of the plan, and those that confirm what they raised.
async fn all_rounds(
    sweep: &Sweep<'_>,
    (folder, keeper): (&Folder, &Keeper),
    answers: Option<Source>,
    stop: watch::Receiver<bool>,
    measured: &mut Measured,
    mut confirm: Option<Plan>,
) -> Result<Swept, RecordError> {
    let mut machines = Vec::new();
    let mut unreached = None;
    let source = match answers {
        Some(answers) => answers,
        None => {
            let nodes = sweep.plan.nodes().into_iter().cloned();
            let start = Fleet::start(sweep.launcher, sweep.program, sweep.connect, nodes);
            let mut stopped = stop.clone();
            tokio::select! {
                fleet = start => {
                    unreached = fleet.unreached().await;
                    // Said in one sentence at the end, where it is all there is to say.
                    for remark in fleet.remarks().await.iter().filter(|_| unreached.is_none()) {
                        sweep.progress.say(remark);
                    }
                    sweep.progress.unreached(fleet.without_worker().await);
                    machines = fleet.machines().await;
                    folder.append(file::MACHINES, &machines)?;
                    Source::Live(fleet)
                }
                () = worker::stopped(&mut stopped) => {
                    return Ok(Swept::nothing(confirm, None));
                }
            }
        }
    };
    let silent = Progress::silent();
    let runner = Runner {
        source,
        claims: sweep.claims,
        keeper,
        progress: if unreached.is_some() { &silent } else { &sweep.progress },
        stop,
        ports: AtomicUsize::new(0),
        lacking: Arc::default(),
        room: Mutex::new(Room::new(
            folder.path(),
            sweep.claims.domains.iter().map(|it| it.nodes.len()).sum(),
        )),
    };
    let start = Instant::now();
    let mut ran = runner.run(sweep.plan, measured).await;
    if unreached.is_some() {
        // Nothing ran; the folder has the reason of each step, and can be gone on with.
        return Ok(Swept::nothing(confirm, unreached));
    }
    let mut passes = u32::from(ran == Ran::Whole);
    let mut repeated = None;
    if let Some(again) = sweep.again.filter(|_| ran == Ran::Whole) {
        let (mut whole, mut pass) = (sweep.plan.clone(), sweep.plan.clone());
        // What runs nowhere is no load, however often it is tried.
        while start.elapsed() < again.lasting && ran == Ran::Whole && measured.any_went_well(&pass)
        {
            pass = plan::repeat_soak(sweep.plan, &whole);
            whole.rounds.extend(pass.rounds.iter().cloned());
            // On disk before it runs: a step without a plan is nobody's.
            folder.write_plan(file::PLAN, &whole)?;
            ran = runner.run(&pass, measured).await;
            passes += u32::from(ran == Ran::Whole);
        }
        repeated = Some(whole);
    }
    let took = start.elapsed();
    if ran == Ran::Whole && confirm.is_none() && sweep.again.is_none() {
        confirm = confirm::plan(sweep, measured);
        if let Some(plan) = &confirm {
            // On disk before it runs: a run that is resumed goes on with it.
            folder.write_plan(file::CONFIRM, plan)?;
        }
    }
    if let Some(plan) = confirm.as_ref().filter(|_| ran == Ran::Whole) {
        if measured.has_none_of(plan.steps()) {
            confirm::wait(sweep, plan, &runner).await;
        }
        ran = runner.run(plan, measured).await;
    }
    if let Source::Live(fleet) = &runner.source {
        // A worker that was started again may have found another machine.
        let mut again = fleet.machines().await;
        again.retain(|machine| !machines.contains(machine));
        folder.append(file::MACHINES, &again)?;
        fleet.bye().await;
    }
    // Told to stop when nothing was left to do, it is whole all the same.
    let interrupted = ran == Ran::Ended;
    Ok(Swept { confirm, interrupted, repeated, passes, took, unreached: None })
}

/// How far a run came.
#[derive(Debug)]
struct Reached<'p> {
    plan: Cow<'p, Plan>,
    confirm: Option<Plan>,
    measured: Measured,
    partial: bool,
}

impl Reached<'static> {
    /// As the disk tells it of a run that was ended where it was: a plan that is run
    /// again and again has grown there.
    fn on_disk(folder: &Folder) -> Result<Self, RecordError> {
        let stored = stored::open(folder.path())?;
        let measured = Measured::before(stored.results()?, stored.recordings()?);
        let (plan, confirm) = (Cow::Owned(stored.plan), stored.confirm);
        Ok(Self { plan, confirm, measured, partial: true })
    }
}

/// Judges, proposes, and closes the folder.
fn conclude(
    sweep: &Sweep<'_>,
    folder: Folder,
    mut record: RunRecord,
    reached: Reached<'_>,
) -> Result<Done, SweepError> {
    let Reached { plan, confirm, measured, partial } = reached;
    let (results, recordings) = measured.into_parts();
    let mut judgement = judged(Judged {
        claims: sweep.claims,
        plan: &plan,
        confirm: confirm.as_ref(),
        results: &results,
        recordings,
        catalogue: sweep.catalogue,
        thresholds_digest: sweep.thresholds_digest,
        platform: sweep.platform,
    });
    judgement.verdicts.simulated = record.info.simulated;
    folder.write_json(file::VERDICTS, &judgement.verdicts)?;
    folder.write_lines(file::CELLS, &judgement.cells)?;
    let coverage = coverage(&plan, sweep.launcher, &results);
    let seen = run_seen(&record.info, &record.launcher, !partial);
    let actions = action_policy::propose_from_verdicts(
        &judgement.verdicts,
        sweep.fleet,
        sweep.policy,
        Some(coverage),
        &seen,
    );
    folder.write_json(file::ACTIONS, &actions)?;
    record.state = if partial { State::Partial } else { State::Complete };
    record.ended = Some(shown(now()));
    folder.write_json(file::RUN, &record)?;

    let out_of_reach = results.iter().any(|r| judged::is_out_of_reach(r, sweep.launcher));
    Ok(Done {
        run: Run {
            info: record.info,
            claims: judgement.claims,
            cells: judgement.cells,
            verdicts: judgement.verdicts,
            actions: Some(actions),
        },
        folder,
        partial,
        out_of_reach,
        passes: 0,
        took: Duration::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_ended_where_it_was_is_judged_by_all_that_was_planned() {
        let dir = tempfile::tempdir().expect("a folder");
        // Two passes were planned, and one reading of the first is there.
        let results = [fixture::result(0, 0, fixture::WELL)];
        let folder = fixture::run(dir.path(), &fixture::plan(&[0, 1]), &results);
        let reached = Reached::on_disk(&folder).expect("readable");
        assert_eq!(reached.plan.steps().count(), 2);
        assert_eq!((reached.measured.results().len(), reached.partial), (1, true));
    }
}
