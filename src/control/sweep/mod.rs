//! The shell that drives the pipeline: runs a plan's rounds through workers,
//! reads, judges, confirms, proposes, and keeps everything in a run folder.
//!
//! It reads the clock, starts processes through `exec`, and decides nothing
//! that a stage decides.

mod cross_domain_pairs;
pub mod gaps;
pub mod progress;
pub mod run_judgement;
pub mod step_outputs;

mod confirm_stage;
mod fallback;
#[cfg(test)]
mod false_outputs_tests;
#[cfg(test)]
mod false_reports_tests;
#[cfg(test)]
mod fixture;
mod local_tools;
mod multi_node;
mod output_budget;
mod output_scope;
mod placeholders;
mod readings;
mod replay;
mod rounds;
mod run_writer;
pub mod signals;
mod step;
mod worker;
mod worker_pool;

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
use crate::store::run_folder::RunFolder;
use crate::store::run_reader::StoredRun;
use crate::store::{ClaimsRecord, RecordError, RunRecord, RunState, file, run_reader};
use engine::plan;
use engine::plan::{Plan, PlanRequest};
use engine::policy::action_policy;
use engine::policy::action_policy::Policy;
use engine::policy::situation::EvidenceRun;
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::run::{Run, RunInfo};
use model::tool_call::ToolBackend;

use output_budget::OutputBudget;
use readings::RunReadings;
use rounds::{ReadingBackend, RoundRunner, RoundsEnd};
use run_judgement::RunJudgeInput;
use run_writer::RunWriter;
use signals::StopSignals;
use worker_pool::{NoReachableNode, WorkerPool};

pub use confirm_stage::ConfirmSettings;
pub use progress::SweepProgress;
pub use run_judgement::{judge_run, judge_run_with_history, plan_coverage};

/// The present moment, RFC 3339 with milliseconds.
#[expect(clippy::disallowed_methods, reason = "the coordinator is where the clock is read")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A moment as documents show it.
pub fn format_timestamp(moment: jiff::Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// A run as decisions know it.
pub fn evidence_run(info: &RunInfo, launcher: &Launcher, complete: bool) -> EvidenceRun {
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
pub struct SweepRequest<'a> {
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
    pub connect_timeout: Duration,
    /// How suspicions are confirmed.
    pub confirm: &'a ConfirmSettings,
    /// The expectations.
    pub catalogue: &'a PlatformCatalogue,
    /// Their digest.
    pub thresholds_digest: &'a str,
    /// The platform a person named.
    pub platform: Option<&'a str>,
    /// What may be proposed.
    pub policy: &'a Policy,
    /// Where the run goes.
    pub run_location: RunLocation<'a>,
    /// Whom to tell how far it is.
    pub progress: SweepProgress,
    /// Run the plan again and again; `None` runs it once.
    pub repeat: Option<LoadRepeat>,
}

/// How often a plan of load is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRepeat {
    /// Until so much time is over. A pass that was begun is ended.
    pub duration: Duration,
}

/// Where a run goes.
#[derive(Clone, Copy, Debug)]
pub enum RunLocation<'a> {
    /// Into a new folder in this one.
    New(&'a Path),
    /// On in the folder of a run that did not come to its end.
    Resume(&'a StoredRun),
}

/// A sweep that was carried out, wholly or in part.
#[derive(Debug)]
pub struct SweepResult {
    /// Everything a report shows.
    pub run: Run,
    /// Its folder.
    pub folder: RunFolder,
    /// It was interrupted.
    pub partial: bool,
    /// Some tool or node could not be reached.
    pub out_of_reach: bool,
    /// How often the plan was run to its end.
    pub passes: u32,
    /// How long its rounds took.
    pub took: Duration,
}

impl SweepResult {
    /// A run that was carried out before.
    pub fn from_earlier_run(run: Run, folder: RunFolder) -> Self {
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
    Locked {
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
    ReplaySource(#[source] RecordError),
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
pub fn run_sweep(sweep: &SweepRequest<'_>) -> Result<SweepResult, SweepError> {
    // Before anything is written: without answers there is no run.
    let answers = match sweep.launcher {
        Launcher::Replay { run } => {
            Some(replay::ReplayedRun::open(run).map(ReadingBackend::from_stored_run))
        }
        _ => sweep.tools.clone().map(|tools| Ok(ReadingBackend::Tools(tools))),
    };
    let answers = answers.transpose().map_err(SweepError::ReplaySource)?;
    let OpenRun { folder, mut measured, confirm: confirming, _lock } = open_run(sweep)?;
    let mut record = RunRecord {
        format: store::RUN_FORMAT.to_owned(),
        info: sweep.info.clone(),
        state: RunState::Running,
        ended: None,
        resumed: Vec::new(),
        seed: sweep.plan.seed,
        launcher: sweep.launcher.clone(),
        platform: sweep.platform.map(str::to_owned),
        policy: sweep.policy.clone(),
        fleet: sweep.fleet.domains.iter().map(|d| d.nodes.len()).sum(),
        // When and where they were read is no part of what is measured.
        claims_digest: store::json_digest(&(
            &sweep.claims.domains,
            &sweep.claims.leaves,
            &sweep.claims.rails,
        )),
        thresholds_digest: sweep.thresholds_digest.to_owned(),
    };
    match sweep.run_location {
        RunLocation::New(_) => {
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
        RunLocation::Resume(stored) => {
            record.info = stored.record.info.clone();
            record.resumed = stored.record.resumed.clone();
            record.resumed.push(format_timestamp(now()));
        }
    }
    folder.write_json(file::RUN, &record)?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SweepError::Runtime)?;
    let keeper = RunWriter::start(folder.clone());
    let taken = runtime.block_on(async {
        let mut signals = StopSignals::listen();
        let (stop, stopped) = watch::channel(false);
        let place = (&folder, &keeper);
        let mut rounds = std::pin::pin!(run_all_rounds(
            sweep,
            place,
            answers,
            stopped,
            &mut measured,
            confirming
        ));
        let mut asked = false;
        loop {
            tokio::select! {
                ended = &mut rounds => break ended.map(Some),
                name = signals.next() => {
                    if asked {
                        sweep.progress.print_line("killing what runs; what was measured is kept");
                        break Ok(None);
                    }
                    asked = true;
                    let text = "ending what runs, keeping what was measured; once more kills";
                    sweep.progress.print_line(&format!("{name}: {text}"));
                    stop.send_replace(true);
                }
            }
        }
    });
    sweep.progress.finish();
    // Workers that were not let go die with their sessions.
    drop(runtime);
    keeper.finish()?;
    let Some(SweepRounds {
        confirm,
        interrupted,
        repeated,
        passes,
        took,
        no_reachable_node: unreached,
    }) = taken?
    else {
        // The order of the last readings is the disk's to tell.
        let reached = RunProgress::read_from_disk(&folder)?;
        return finish_run(sweep, folder, record, reached);
    };
    let plan = repeated.map_or(Cow::Borrowed(sweep.plan), Cow::Owned);
    let reached = RunProgress { plan, measured, confirm, partial: interrupted };
    let done = finish_run(sweep, folder, record, reached)?;
    match unreached {
        Some(unreached) => Err(SweepError::Unreachable { why: unreached.to_string() }),
        None => Ok(SweepResult { passes, took, ..done }),
    }
}

/// A run folder that is ours, and what an earlier attempt left in it.
#[derive(Debug)]
struct OpenRun {
    folder: RunFolder,
    measured: RunReadings,
    confirm: Option<Plan>,
    _lock: File,
}

/// Takes the folder. Until it is ours another process may be writing there.
fn open_run(sweep: &SweepRequest<'_>) -> Result<OpenRun, SweepError> {
    let folder = match sweep.run_location {
        RunLocation::New(runs) => RunFolder::create(runs, &sweep.info.id)?,
        RunLocation::Resume(stored) => RunFolder::open(stored.path()),
    };
    let path = || folder.path().to_owned();
    let Some(lock) = folder.lock()? else {
        return Err(SweepError::Locked { path: path() });
    };
    let (mut measured, mut confirm) = (RunReadings::default(), None);
    if matches!(sweep.run_location, RunLocation::Resume(_)) {
        // Whoever had it may have gone on with it since it was looked at.
        let stored = run_reader::open_run(folder.path())?;
        if stored.record.state == RunState::Complete {
            return Err(SweepError::Complete { path: path() });
        }
        folder.truncate_torn_line(file::MACHINES)?;
        folder.truncate_torn_line(file::RESULTS)?;
        folder.truncate_torn_line(file::MEASUREMENTS)?;
        measured = RunReadings::from_earlier_attempt(stored.results()?, stored.recordings()?);
        confirm = stored.confirm;
    }
    Ok(OpenRun { folder, measured, confirm, _lock: lock })
}

/// What all rounds together were.
#[derive(Debug)]
struct SweepRounds {
    confirm: Option<Plan>,
    interrupted: bool,
    /// The plan with all of its passes, where it was run again.
    repeated: Option<Plan>,
    passes: u32,
    took: Duration,
    /// Why nothing was run: no node answered.
    no_reachable_node: Option<NoReachableNode>,
}

impl SweepRounds {
    /// Ended before anything was run.
    fn empty(confirm: Option<Plan>, no_reachable_node: Option<NoReachableNode>) -> Self {
        let (passes, took) = (0, Duration::ZERO);
        Self { confirm, interrupted: true, repeated: None, passes, took, no_reachable_node }
    }
}

/// The rounds of the plan, and those that confirm what they raised.
async fn run_all_rounds(
    sweep: &SweepRequest<'_>,
    (folder, keeper): (&RunFolder, &RunWriter),
    answers: Option<ReadingBackend>,
    stop: watch::Receiver<bool>,
    measured: &mut RunReadings,
    mut confirm: Option<Plan>,
) -> Result<SweepRounds, RecordError> {
    let mut machines = Vec::new();
    let mut unreached = None;
    let source = match answers {
        Some(answers) => answers,
        None => {
            let nodes = sweep.plan.nodes().into_iter().cloned();
            let start =
                WorkerPool::start(sweep.launcher, sweep.program, sweep.connect_timeout, nodes);
            let mut stopped = stop.clone();
            tokio::select! {
                fleet = start => {
                    unreached = fleet.explain_unreachable().await;
                    // Said in one sentence at the end, where it is all there is to say.
                    for remark in fleet.start_remarks().await.iter().filter(|_| unreached.is_none()) {
                        sweep.progress.print_line(remark);
                    }
                    sweep.progress.set_unreachable(fleet.nodes_without_worker().await);
                    machines = fleet.machines().await;
                    folder.append(file::MACHINES, &machines)?;
                    ReadingBackend::Live(fleet)
                }
                () = worker::wait_for_stop(&mut stopped) => {
                    return Ok(SweepRounds::empty(confirm, None));
                }
            }
        }
    };
    let silent = SweepProgress::silent();
    let runner = RoundRunner {
        source,
        claims: sweep.claims,
        writer: keeper,
        progress: if unreached.is_some() { &silent } else { &sweep.progress },
        stop,
        ports: AtomicUsize::new(0),
        missing_tools: Arc::default(),
        output_budget: Mutex::new(OutputBudget::new(
            folder.path(),
            sweep.claims.domains.iter().map(|it| it.nodes.len()).sum(),
        )),
    };
    let start = Instant::now();
    let mut ran = runner.run_plan(sweep.plan, measured).await;
    if unreached.is_some() {
        // Nothing ran; the folder has the reason of each step, and can be gone on with.
        return Ok(SweepRounds::empty(confirm, unreached));
    }
    let mut passes = u32::from(ran == RoundsEnd::Complete);
    let mut repeated = None;
    if let Some(again) = sweep.repeat.filter(|_| ran == RoundsEnd::Complete) {
        let (mut whole, mut pass) = (sweep.plan.clone(), sweep.plan.clone());
        // What runs nowhere is no load, however often it is tried.
        while start.elapsed() < again.duration
            && ran == RoundsEnd::Complete
            && measured.has_successful_reading(&pass)
        {
            pass = plan::repeat_soak(sweep.plan, &whole);
            whole.rounds.extend(pass.rounds.iter().cloned());
            // On disk before it runs: a step without a plan is nobody's.
            folder.write_plan(file::PLAN, &whole)?;
            ran = runner.run_plan(&pass, measured).await;
            passes += u32::from(ran == RoundsEnd::Complete);
        }
        repeated = Some(whole);
    }
    let took = start.elapsed();
    if ran == RoundsEnd::Complete && confirm.is_none() && sweep.repeat.is_none() {
        confirm = confirm_stage::plan_confirmation(sweep, measured);
        if let Some(plan) = &confirm {
            // On disk before it runs: a run that is resumed goes on with it.
            folder.write_plan(file::CONFIRM, plan)?;
        }
    }
    if let Some(plan) = confirm.as_ref().filter(|_| ran == RoundsEnd::Complete) {
        if measured.has_none_of(plan.steps()) {
            confirm_stage::wait_for_confirmation(sweep, plan, &runner).await;
        }
        ran = runner.run_plan(plan, measured).await;
    }
    if let ReadingBackend::Live(fleet) = &runner.source {
        // A worker that was started again may have found another machine.
        let mut again = fleet.machines().await;
        again.retain(|machine| !machines.contains(machine));
        folder.append(file::MACHINES, &again)?;
        fleet.shut_down().await;
    }
    // Told to stop when nothing was left to do, it is whole all the same.
    let interrupted = ran == RoundsEnd::Interrupted;
    Ok(SweepRounds { confirm, interrupted, repeated, passes, took, no_reachable_node: None })
}

/// How far a run came.
#[derive(Debug)]
struct RunProgress<'p> {
    plan: Cow<'p, Plan>,
    confirm: Option<Plan>,
    measured: RunReadings,
    partial: bool,
}

impl RunProgress<'static> {
    /// As the disk tells it of a run that was ended where it was: a plan that is run
    /// again and again has grown there.
    fn read_from_disk(folder: &RunFolder) -> Result<Self, RecordError> {
        let stored = run_reader::open_run(folder.path())?;
        let measured = RunReadings::from_earlier_attempt(stored.results()?, stored.recordings()?);
        let (plan, confirm) = (Cow::Owned(stored.plan), stored.confirm);
        Ok(Self { plan, confirm, measured, partial: true })
    }
}

/// Judges, proposes, and closes the folder.
fn finish_run(
    sweep: &SweepRequest<'_>,
    folder: RunFolder,
    mut record: RunRecord,
    reached: RunProgress<'_>,
) -> Result<SweepResult, SweepError> {
    let RunProgress { plan, confirm, measured, partial } = reached;
    let (results, recordings) = measured.into_parts();
    let mut judgement = judge_run(RunJudgeInput {
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
    let coverage = plan_coverage(&plan, sweep.launcher, &results);
    let seen = evidence_run(&record.info, &record.launcher, !partial);
    let actions = action_policy::propose_from_verdicts(
        &judgement.verdicts,
        sweep.fleet,
        sweep.policy,
        Some(coverage),
        &seen,
    );
    folder.write_json(file::ACTIONS, &actions)?;
    record.state = if partial { RunState::Partial } else { RunState::Complete };
    record.ended = Some(format_timestamp(now()));
    folder.write_json(file::RUN, &record)?;

    let out_of_reach = results.iter().any(|r| run_judgement::is_out_of_reach(r, sweep.launcher));
    Ok(SweepResult {
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
        let results = [fixture::result(0, 0, fixture::EXITED_WELL)];
        let folder = fixture::write_run(dir.path(), &fixture::plan(&[0, 1]), &results);
        let reached = RunProgress::read_from_disk(&folder).expect("readable");
        assert_eq!(reached.plan.steps().count(), 2);
        assert_eq!((reached.measured.results().len(), reached.partial), (1, true));
    }
}
