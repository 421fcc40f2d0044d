//! Drives the pipeline ([`run_sweep`]): runs a plan's rounds through workers, parses,
//! judges, confirms, proposes, and writes everything to a run folder.
//!
//! It reads the clock, starts processes through `exec`, and leaves every decision to its
//! stage.

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
use model::part_history::PartHistory;
use model::run::{Run, RunInfo};
use model::tool_call::ToolBackend;

use output_budget::OutputBudget;
use progress::SweepEvent;
use readings::RunReadings;
use rounds::{ReadingBackend, RoundRunner, RoundsEnd};
use run_judgement::RunJudgeInput;
use run_writer::RunWriter;
use signals::StopSignals;
use worker_pool::{NoReachableNode, WorkerPool};

pub use confirm_stage::ConfirmSettings;
pub use progress::SweepProgress;
pub use run_judgement::{judge_run, plan_coverage};

/// The current time, RFC 3339 with milliseconds.
#[expect(clippy::disallowed_methods, reason = "the coordinator is where the clock is read")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// The serialized form of a time.
pub fn format_timestamp(moment: jiff::Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// The run as evidence for the policy.
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

/// The input of a sweep.
#[derive(Debug)]
pub struct SweepRequest<'a> {
    /// Id, profile and time of the run.
    pub info: RunInfo,
    /// The claims about its nodes.
    pub claims: &'a Claims,
    /// The claims about the whole fleet: the denominator of the budgets.
    pub fleet: &'a Claims,
    /// The plan to run.
    pub plan: &'a Plan,
    /// The request that the plan and its confirmation are made from.
    pub request: &'a PlanRequest<'a>,
    /// How the coordinator reaches nodes.
    pub launcher: &'a Launcher,
    /// The parameters for starting workers.
    pub program: &'a WorkerProgram,
    /// Tools of this process that answer instead of nodes.
    pub tools: Option<Arc<dyn ToolBackend>>,
    /// The maximum time until a worker answers.
    pub connect_timeout: Duration,
    /// How suspicions are confirmed.
    pub confirm: &'a ConfirmSettings,
    /// The expectations.
    pub catalogue: &'a PlatformCatalogue,
    /// The digest of the expectations.
    pub thresholds_digest: &'a str,
    /// The platform that the operator named.
    pub platform: Option<&'a str>,
    /// Limits of the proposed actions.
    pub policy: &'a Policy,
    /// The run folder, new or of an earlier attempt.
    pub run_location: RunLocation<'a>,
    /// Shows the events of the sweep.
    pub progress: SweepProgress,
    /// Repeats the plan; `None` runs it once.
    pub repeat: Option<LoadRepeat>,
}

/// How long to repeat a load plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRepeat {
    /// No pass starts after this time.
    pub duration: Duration,
}

/// The run folder to write.
#[derive(Clone, Copy, Debug)]
pub enum RunLocation<'a> {
    /// A new folder in this one.
    New(&'a Path),
    /// The folder of a run that did not finish.
    Resume(&'a StoredRun),
}

/// The result of a complete or partial sweep.
#[derive(Debug)]
pub struct SweepResult {
    /// All data of a report.
    pub run: Run,
    /// Its folder.
    pub folder: RunFolder,
    /// It was interrupted.
    pub partial: bool,
    /// Some tool or node could not be reached.
    pub out_of_reach: bool,
    /// The number of completed passes of the plan.
    pub passes: u32,
    /// The duration of its rounds.
    pub took: Duration,
}

impl SweepResult {
    /// The result of an earlier run.
    pub fn from_earlier_run(run: Run, folder: RunFolder) -> Self {
        let (partial, out_of_reach) = (false, false);
        Self { run, folder, partial, out_of_reach, passes: 1, took: Duration::ZERO }
    }
}

/// The reason why a sweep cannot run at all.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The run folder cannot be written.
    #[error("the run cannot be recorded")]
    Record(#[from] RecordError),
    /// Another process holds the lock.
    #[error("{}: another fabricgate is at work on this run", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// Every reading is complete.
    #[error("{}: this run is complete", path.display())]
    Complete {
        /// The folder.
        path: PathBuf,
    },
    /// The stored run that should answer cannot be read.
    #[error("the stored run to replay cannot be read")]
    ReplaySource(#[source] RecordError),
    /// No node answered. The run folder can be resumed.
    #[error("{why}")]
    Unreachable {
        /// The reason, and the setting to check.
        why: String,
    },
    /// The runtime cannot be started.
    #[error("the runtime cannot be started")]
    Runtime(#[source] std::io::Error),
}

/// Runs a sweep: open the folder, write the inputs, run the rounds, judge and propose. The
/// run folder is current at every moment, so that an interrupted run can be resumed.
pub fn run_sweep(sweep: &SweepRequest<'_>) -> Result<SweepResult, SweepError> {
    // Opened before anything is written: without a source there is no run.
    let source = match sweep.launcher {
        Launcher::Replay { run } => {
            Some(replay::ReplayedRun::open(run).map(ReadingBackend::from_stored_run))
        }
        _ => sweep.tools.clone().map(|tools| Ok(ReadingBackend::Tools(tools))),
    };
    let source = source.transpose().map_err(SweepError::ReplaySource)?;
    let OpenRun { folder, mut measured, confirm, _lock } = open_run(sweep)?;
    let record = write_inputs(sweep, &folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SweepError::Runtime)?;
    let writer = RunWriter::start(folder.clone());
    let rounds = runtime.block_on(async {
        let mut signals = StopSignals::listen();
        let (stop, stopped) = watch::channel(false);
        let sinks = (&folder, &writer);
        let rounds = run_all_rounds(sweep, sinks, source, stopped, &mut measured, confirm);
        let mut rounds = std::pin::pin!(rounds);
        let mut stop_requested = false;
        loop {
            tokio::select! {
                ended = &mut rounds => break ended.map(Some),
                signal = signals.next() => {
                    if stop_requested {
                        sweep.progress.report(SweepEvent::KillRequested);
                        break Ok(None);
                    }
                    stop_requested = true;
                    sweep.progress.report(SweepEvent::StopRequested { signal });
                    stop.send_replace(true);
                }
            }
        }
    });
    sweep.progress.report(SweepEvent::Ended);
    // Workers that still run end with their sessions.
    drop(runtime);
    writer.finish()?;
    let Some(rounds) = rounds? else {
        // Only the disk has the order of the last readings.
        let reached = RunProgress::read_from_disk(&folder)?;
        return finish_run(sweep, folder, record, reached);
    };
    let plan = rounds.repeated.map_or(Cow::Borrowed(sweep.plan), Cow::Owned);
    let (confirm, partial) = (rounds.confirm, rounds.interrupted);
    let reached = RunProgress { plan, measured, confirm, partial };
    let result = finish_run(sweep, folder, record, reached)?;
    match rounds.no_reachable_node {
        Some(none) => Err(SweepError::Unreachable { why: none.to_string() }),
        None => Ok(SweepResult { passes: rounds.passes, took: rounds.took, ..result }),
    }
}

/// Writes the inputs of the run: record, claims, scenario and plan.
fn write_inputs(sweep: &SweepRequest<'_>, folder: &RunFolder) -> Result<RunRecord, RecordError> {
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
        // Without the time and place at which the claims were read.
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
                // A resumed run may find the file gone or changed.
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
    Ok(record)
}

/// A locked run folder, and the results of an earlier attempt.
#[derive(Debug)]
struct OpenRun {
    folder: RunFolder,
    measured: RunReadings,
    confirm: Option<Plan>,
    _lock: File,
}

/// Creates or opens the folder and locks it: another process may write there.
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
        // Another process may have written to it before this one took the lock.
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

/// The result of all rounds.
#[derive(Debug)]
struct SweepRounds {
    confirm: Option<Plan>,
    interrupted: bool,
    /// The plan with all of its passes, if it was repeated.
    repeated: Option<Plan>,
    passes: u32,
    took: Duration,
    /// No node answered, so nothing ran.
    no_reachable_node: Option<NoReachableNode>,
}

impl SweepRounds {
    fn empty(confirm: Option<Plan>, no_reachable_node: Option<NoReachableNode>) -> Self {
        let (passes, took) = (0, Duration::ZERO);
        Self { confirm, interrupted: true, repeated: None, passes, took, no_reachable_node }
    }
}

/// Runs the rounds of the plan, then those that confirm its suspicions.
async fn run_all_rounds(
    sweep: &SweepRequest<'_>,
    (folder, writer): (&RunFolder, &RunWriter),
    source: Option<ReadingBackend>,
    stop: watch::Receiver<bool>,
    measured: &mut RunReadings,
    mut confirm: Option<Plan>,
) -> Result<SweepRounds, RecordError> {
    let mut machines = Vec::new();
    let mut no_reachable_node = None;
    let source = match source {
        Some(source) => source,
        None => {
            let nodes = sweep.plan.nodes().into_iter().cloned();
            let start =
                WorkerPool::start(sweep.launcher, sweep.program, sweep.connect_timeout, nodes);
            let mut stopped = stop.clone();
            tokio::select! {
                workers = start => {
                    no_reachable_node = workers.explain_unreachable().await;
                    // If no node answers, one sentence at the end replaces the remarks.
                    for remark in workers.start_remarks().await.iter().filter(|_| no_reachable_node.is_none()) {
                        sweep.progress.report(SweepEvent::WorkerRemark(remark));
                    }
                    let missing = workers.nodes_without_worker().await;
                    sweep.progress.report(SweepEvent::WorkersMissing(missing));
                    machines = workers.machines().await;
                    folder.append(file::MACHINES, &machines)?;
                    ReadingBackend::Live(workers)
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
        writer,
        progress: if no_reachable_node.is_some() { &silent } else { &sweep.progress },
        stop,
        ports: AtomicUsize::new(rounds::first_port_offset(folder.path())),
        missing_tools: Arc::default(),
        output_budget: Mutex::new(OutputBudget::new(
            folder.path(),
            sweep.claims.domains.iter().map(|it| it.nodes.len()).sum(),
        )),
    };
    let start = Instant::now();
    let mut end = runner.run_plan(sweep.plan, measured).await;
    if no_reachable_node.is_some() {
        // Nothing ran; the folder has the reason of each step, and can be resumed.
        return Ok(SweepRounds::empty(confirm, no_reachable_node));
    }
    let mut passes = u32::from(end == RoundsEnd::Complete);
    let mut repeated = None;
    if let Some(again) = sweep.repeat.filter(|_| end == RoundsEnd::Complete) {
        let (mut whole, mut pass) = (sweep.plan.clone(), sweep.plan.clone());
        // A plan that runs on no node is not a load: it is not repeated.
        while start.elapsed() < again.duration
            && end == RoundsEnd::Complete
            && measured.has_successful_reading(&pass)
        {
            pass = plan::repeat_soak(sweep.plan, &whole);
            whole.rounds.extend(pass.rounds.iter().cloned());
            // On disk before it runs: every reading belongs to a planned step.
            folder.write_plan(file::PLAN, &whole)?;
            end = runner.run_plan(&pass, measured).await;
            passes += u32::from(end == RoundsEnd::Complete);
        }
        repeated = Some(whole);
    }
    let took = start.elapsed();
    if end == RoundsEnd::Complete && confirm.is_none() && sweep.repeat.is_none() {
        confirm = confirm_stage::plan_confirmation(sweep, measured);
        if let Some(plan) = &confirm {
            // On disk before it runs: a resumed run continues with it.
            folder.write_plan(file::CONFIRM, plan)?;
        }
    }
    if let Some(plan) = confirm.as_ref().filter(|_| end == RoundsEnd::Complete) {
        if measured.has_none_of(plan.steps()) {
            confirm_stage::wait_for_confirmation(sweep, plan, &runner).await;
        }
        end = runner.run_plan(plan, measured).await;
    }
    if let ReadingBackend::Live(workers) = &runner.source {
        // A restarted worker may report another machine.
        let mut again = workers.machines().await;
        again.retain(|machine| !machines.contains(machine));
        folder.append(file::MACHINES, &again)?;
        workers.shut_down().await;
    }
    // A stop request after the last reading leaves the run complete.
    let interrupted = end == RoundsEnd::Interrupted;
    Ok(SweepRounds { confirm, interrupted, repeated, passes, took, no_reachable_node: None })
}

/// The progress of a run.
#[derive(Debug)]
struct RunProgress<'p> {
    plan: Cow<'p, Plan>,
    confirm: Option<Plan>,
    measured: RunReadings,
    partial: bool,
}

impl RunProgress<'static> {
    /// Reads a killed run from its folder: the plan of a repeated run has grown there.
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
    let mut judgement = judge_run(
        RunJudgeInput {
            claims: sweep.claims,
            plan: &plan,
            confirm: confirm.as_ref(),
            results: &results,
            recordings,
            catalogue: sweep.catalogue,
            thresholds_digest: sweep.thresholds_digest,
            platform: sweep.platform,
        },
        &PartHistory::default(),
    );
    judgement.verdicts.simulated = record.info.simulated;
    folder.write_json(file::VERDICTS, &judgement.verdicts)?;
    folder.write_lines(file::CELLS, &judgement.cells)?;
    let coverage = plan_coverage(&plan, sweep.launcher, &results);
    let evidence = evidence_run(&record.info, &record.launcher, !partial);
    let actions = action_policy::propose_from_verdicts(
        &judgement.verdicts,
        sweep.fleet,
        sweep.policy,
        Some(coverage),
        &evidence,
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
    fn an_interrupted_repeated_run_is_judged_by_the_whole_plan() {
        let dir = tempfile::tempdir().expect("a folder");
        // Two passes were planned, and one reading of the first exists.
        let results = [fixture::result(0, 0, fixture::EXITED_WELL)];
        let folder = fixture::write_run(dir.path(), &fixture::plan(&[0, 1]), &results);
        let reached = RunProgress::read_from_disk(&folder).expect("readable");
        assert_eq!(reached.plan.steps().count(), 2);
        assert_eq!((reached.measured.results().len(), reached.partial), (1, true));
    }
}
