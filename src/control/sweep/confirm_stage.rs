//! The confirm stage: suspects are measured again, later, against cleared partners.
//!
//! The judge names the suspects and the plan pairs them; this module decides when.

use std::collections::BTreeMap;
use std::time::Duration;

use super::progress::SweepEvent;
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
    /// Whether suspicions are measured again.
    pub enabled: bool,
    /// How long to wait for transient causes to pass.
    pub wait: Duration,
}

/// The plan that measures suspects again; `None` without suspects, or without partners
/// for them.
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
        // Suspicions that are not confirmed stay findings.
        Some(error) => {
            sweep.progress.report(SweepEvent::ConfirmationRefused(error));
            None
        }
    }
}

/// The plan that measures suspects again; `run` is the run that raised the suspicions,
/// without its recordings.
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
    // Another seed chooses other partners if possible.
    let seed = run.plan.seed.wrapping_add(1);
    Some(plan::plan_confirmation(run.plan, request, &suspects, &cleared, seed))
}

/// Waits for transient causes to pass, or until the run is stopped.
pub(super) async fn wait_for_confirmation(
    sweep: &SweepRequest<'_>,
    plan: &Plan,
    runner: &RoundRunner<'_>,
) {
    let wait = sweep.confirm.wait;
    sweep.progress.report(SweepEvent::ConfirmationPlanned { plan, wait });
    let mut stop = runner.stop.clone();
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = wait_for_stop(&mut stop) => {}
    }
}
