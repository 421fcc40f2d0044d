//! The confirm stage: whoever is suspected is measured again, later, against
//! partners that are cleared.
//!
//! Whom to suspect is the judge's word, whom to pair with whom is the plan's.
//! Here is only when.

use std::collections::BTreeMap;
use std::time::Duration;

use super::readings::RunReadings;
use super::rounds::RoundRunner;
use super::run_judgement::RunJudgeInput;
use super::worker::wait_for_stop;
use super::{SweepRequest, cross_domain_pairs, run_judgement};
use engine::plan::{ConfirmationSuspect, Plan, PlanRequest, lint};
use engine::{judge, plan};

/// How suspicions are confirmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfirmSettings {
    /// Whether they are.
    pub enabled: bool,
    /// How long to wait until a passing cause would be gone.
    pub wait: Duration,
}

/// What to measure again; `None` where nobody is suspected, or nobody is left
/// to measure a suspect against.
pub(super) fn plan_confirmation(sweep: &SweepRequest<'_>, measured: &RunReadings) -> Option<Plan> {
    if !sweep.confirm.enabled {
        return None;
    }
    let run = RunJudgeInput {
        claims: sweep.claims,
        plan: sweep.plan,
        confirm: None,
        results: measured.results(),
        recordings: Vec::new(),
        catalogue: sweep.catalogue,
        thresholds_digest: sweep.thresholds_digest,
        platform: sweep.platform,
    };
    let plan =
        plan_suspects(&run, sweep.request, measured).filter(|plan| !plan.rounds.is_empty())?;
    match lint::lint_plan(&plan, sweep.claims).first() {
        None => Some(plan),
        // Suspicions that are not confirmed stay what they are.
        Some(wrong) => {
            sweep
                .progress
                .print_line(&format!("not confirming: the plan breaks its own rules: {wrong}"));
            None
        }
    }
}

/// The plan that measures suspects again; `run` is what it was raised from, without
/// recordings.
pub(super) fn plan_suspects(
    run: &RunJudgeInput<'_>,
    request: &PlanRequest<'_>,
    measured: &RunReadings,
) -> Option<Plan> {
    let judgement = run_judgement::judge_recordings(run, measured.recordings(), false);
    let suspects = judge::confirm::find_suspects(&judgement);
    let probes: BTreeMap<&str, &str> = measured
        .results()
        .iter()
        .filter_map(|r| Some((r.stdout.as_deref()?, r.probe.as_str())))
        .collect();
    let mut suspects: Vec<ConfirmationSuspect> = suspects
        .into_iter()
        .map(|suspect| {
            let named = suspect.files.iter().filter_map(|file| probes.get(file.as_str()));
            ConfirmationSuspect {
                node: suspect.node,
                peer: suspect.peer,
                rail: suspect.rail,
                gpus: suspect.gpus,
                probes: named.map(|name| (*name).to_owned()).collect(),
            }
        })
        .collect();
    let results = measured.results();
    suspects.extend(cross_domain_pairs::find_suspects(
        run.claims,
        run.plan,
        results,
        &judgement.unusable,
    ));
    if suspects.is_empty() {
        return None;
    }
    let cleared = judge::confirm::find_cleared_nodes(&judgement, measured.recordings());
    // Other partners than before where there are any.
    let seed = run.plan.seed.wrapping_add(1);
    Some(plan::plan_confirmation(run.plan, request, &suspects, &cleared, seed))
}

/// Waits, unless somebody ends the run.
pub(super) async fn wait_for_confirmation(
    sweep: &SweepRequest<'_>,
    plan: &Plan,
    runner: &RoundRunner<'_>,
) {
    let nodes = plan.nodes().len();
    let wait = sweep.confirm.wait;
    sweep.progress.print_line(&format!(
        "confirming: {} steps on {nodes} nodes, in {:.0} s, when a passing cause is gone",
        plan.steps().count(),
        wait.as_secs_f64()
    ));
    let mut stop = runner.stop.clone();
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = wait_for_stop(&mut stop) => {}
    }
}
