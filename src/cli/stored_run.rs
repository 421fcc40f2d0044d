//! Reads a stored run as the value that reports render.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::cli::expectations;
use crate::cli::runtime::parallel_map;
use crate::cli::stdout::note;
use crate::exit::CommandError;
use control::launch::{Launcher, WorkerProgram};
use control::store::run_reader::StoredRun;
use control::store::{RecordError, RunState, run_reader};
use control::sweep;
use control::sweep::run_judgement::RunJudgeInput;
use control::sweep::step_outputs;
use engine::judge::Judgement;
use engine::place::map::{MapInput, VerifiedMap};
use engine::plan::{Plan, PlanStep};
use engine::policy::action_policy;
use model::part_history::PartHistory;
use model::raw_result::RawResult;
use model::run::Run;
use model::tool_call::ToolBackend;
use model::tool_recording::ToolRecording;
use sim::scenario_tools::ScenarioTools;

/// Opens a run folder; prints a note if the run is partial.
pub fn open_run(path: &Path) -> Result<StoredRun, CommandError> {
    let stored = run_reader::open_run(path).map_err(record_error)?;
    let path_text = path.display();
    match stored.record.state {
        RunState::Complete => {}
        RunState::Partial => note(&format!("{path_text}: this run was interrupted and is partial")),
        RunState::Running => {
            note(&format!("{path_text}: this run is still running or was killed, and is partial"));
        }
    }
    Ok(stored)
}

/// Opens a run folder without a note about a partial run.
pub fn open_run_quietly(path: &Path) -> Result<StoredRun, CommandError> {
    run_reader::open_run(path).map_err(record_error)
}

/// The exit code of an error while reading a run folder: a missing file is a failure of the
/// environment, an invalid one is the user's.
pub fn record_error(error: RecordError) -> CommandError {
    match error {
        RecordError::Io { .. } => CommandError::environment(error),
        _ => CommandError::usage(error),
    }
}

/// The simulated tools of a scenario that runs in this process.
pub(crate) fn simulated_tools(
    launcher: &Launcher,
    program: &WorkerProgram,
) -> Result<Option<Arc<dyn ToolBackend>>, CommandError> {
    let Launcher::Sim { scenario: path, workers: false } = launcher else { return Ok(None) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| record_error(RecordError::Io { path: path.clone(), source }))?;
    let tools = ScenarioTools::from_text(&text, program.age.as_deref())
        .map_err(|why| record_error(RecordError::Malformed { path: path.clone(), line: 1, why }))?;
    Ok(Some(Arc::new(tools)))
}

/// The run with its stored verdicts. A run that was never judged, or was resumed since, is judged
/// now.
pub fn read_run(stored: &StoredRun) -> Result<Run, CommandError> {
    let is_over = stored.record.state != RunState::Running;
    let verdicts = stored.verdicts().map_err(record_error)?;
    let actions = stored.actions().map_err(record_error)?;
    let (Some(verdicts), Some(actions), true) = (verdicts, actions, is_over) else {
        let in_force = expectations::load_thresholds(&[])?;
        let results = stored.results().map_err(record_error)?;
        let recordings = stored.recordings_for(&results).map_err(record_error)?;
        return Ok(rejudge_run(stored, &results, recordings, &in_force, &PartHistory::default()));
    };
    Ok(Run {
        info: stored.record.info.clone(),
        claims: stored.claims.clone(),
        cells: stored.cells().map_err(record_error)?,
        verdicts,
        actions: Some(actions),
    })
}

/// Judges the run again with these expectations and the history.
pub fn rejudge_run(
    stored: &StoredRun,
    results: &[RawResult],
    recordings: Vec<ToolRecording>,
    in_force: &expectations::ActiveThresholds,
    history: &PartHistory,
) -> Run {
    let run = RunJudgeInput {
        claims: &stored.claims,
        plan: &stored.plan,
        confirm: stored.confirm.as_ref(),
        results,
        recordings,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform: stored.record.platform.as_deref(),
    };
    let Judgement { claims, cells, mut verdicts, .. } = sweep::judge_run(run, history);
    verdicts.simulated = stored.record.info.simulated;
    let coverage = sweep::plan_coverage(&stored.plan, &stored.record.launcher, results);
    let record = &stored.record;
    let evidence_run =
        sweep::evidence_run(&record.info, &record.launcher, record.state == RunState::Complete);
    let actions = action_policy::propose_from_verdicts(
        &verdicts,
        &stored.claims,
        &record.policy,
        Some(coverage),
        &evidence_run,
    );
    let info = stored.record.info.clone();
    Run { info, claims, cells, verdicts, actions: Some(actions) }
}

/// Parses the stored raw outputs again, several concurrently.
pub fn reparse_outputs(
    stored: &StoredRun,
    results: &[RawResult],
) -> Result<Vec<ToolRecording>, CommandError> {
    let plans = || std::iter::once(&stored.plan).chain(&stored.confirm);
    let steps: BTreeMap<usize, &PlanStep> =
        plans().flat_map(Plan::steps).map(|step| (step.step, step)).collect();
    let read = parallel_map(results, |result| -> Result<Option<ToolRecording>, RecordError> {
        let (Some(name), Some(step)) = (&result.stdout, steps.get(&result.step)) else {
            return Ok(None);
        };
        let stdout = stored.read_raw(name)?;
        let stderr =
            result.stderr.as_deref().map_or(Ok(Vec::new()), |name| stored.read_raw(name))?;
        Ok(step_outputs::read_output(step, result, &stdout, &stderr))
    });
    read.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>().map_err(record_error)
}

/// Runs to accept in addition to complete runs on hardware.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct MapTrustArgs {
    /// Accept an interrupted run: what it did not reach is unknown.
    #[arg(long)]
    even_if_partial: bool,
    /// Accept a run of simulated hardware; the output is marked as simulated.
    #[arg(long)]
    even_if_simulated: bool,
}

/// The map of a stored run; an error if the run is partial or simulated and not accepted as such.
pub(crate) fn open_verified_map(
    path: &Path,
    trust: MapTrustArgs,
) -> Result<VerifiedMap, CommandError> {
    let stored = open_run_quietly(path)?;
    let is_complete = stored.record.state == RunState::Complete;
    let is_simulated = stored.record.info.simulated;
    let run_name = path.display();
    if !is_complete && !trust.even_if_partial {
        return Err(CommandError::Usage(format!(
            "{run_name}: this run was interrupted; --resume finishes it, --even-if-partial \
             accepts it as it is"
        )));
    }
    if is_simulated && !trust.even_if_simulated {
        return Err(CommandError::Usage(format!(
            "{run_name}: this run measured no hardware; --even-if-simulated accepts it and marks \
             the output as simulated"
        )));
    }
    let run = read_run(&stored)?;
    let machines = stored.machines().map_err(record_error)?;
    let recordings = stored.recordings().map_err(record_error)?;
    let in_force = expectations::load_thresholds(&[])?;
    Ok(VerifiedMap::from_run(&MapInput {
        run: &run,
        is_complete,
        is_simulated,
        machines: &machines,
        recordings: &recordings,
        catalogue: &in_force.catalogue,
    }))
}
