//! Judges a live or a stored run: the verdicts, the confirm stage applied to them, and an
//! unknown for every planned reading that is missing.
//!
//! Pure. The same run under the same expectations gives the same verdicts,
//! whenever and wherever it is judged.

use std::collections::{BTreeMap, BTreeSet};

use super::{cross_domain_pairs, gaps};
use crate::launch::Launcher;
use engine::judge;
use engine::judge::{JudgeInput, Judgement};
use engine::plan::{Plan, PlanStep};
use engine::policy::situation::PlanCoverage;
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::id::NodeName;
use model::part_history::PartHistory;
use model::raw_result::{ProcessEnding, RawResult};
use model::tool_recording::{CONFIRM_STAGE, ToolRecording};

/// The input of [`judge_run`].
#[derive(Debug)]
pub struct RunJudgeInput<'a> {
    /// The claims about its nodes.
    pub claims: &'a Claims,
    /// The plan.
    pub plan: &'a Plan,
    /// The plan of the confirm stage, if there were suspicions.
    pub confirm: Option<&'a Plan>,
    /// The result of every reading.
    pub results: &'a [RawResult],
    /// The parsed outputs.
    pub recordings: Vec<ToolRecording>,
    /// The expectations.
    pub catalogue: &'a PlatformCatalogue,
    /// The digest of the expectations.
    pub thresholds_digest: &'a str,
    /// The platform that the operator named.
    pub platform: Option<&'a str>,
}

/// Judges a run, with the readings of earlier runs among the references. The order in
/// which steps ended makes no difference.
pub fn judge_run(mut run: RunJudgeInput<'_>, history: &PartHistory) -> Judgement {
    // First measurements, then those of the confirm stage.
    let mut all = std::mem::take(&mut run.recordings);
    let is_confirmation = |recording: &ToolRecording| recording.stage == Some(CONFIRM_STAGE);
    all.sort_by(|a, b| {
        (is_confirmation(a), &a.scope, &a.file).cmp(&(is_confirmation(b), &b.scope, &b.file))
    });
    let (first, second) =
        all.split_at(all.partition_point(|recording| !is_confirmation(recording)));
    let mut judgement = judge::judge_run(&judge_input(&run, first, true), history);
    if run.confirm.is_some() {
        let suspects = judge::confirm::find_suspects(&judgement);
        let confirmed = judge_recordings(
            &run,
            &judge::confirm::select_confirm_recordings(&all, &suspects),
            true,
        );
        let confirm_input = judge_input(&run, second, false);
        judgement.verdicts =
            judge::confirm::apply_confirmation(&judgement, &confirmed.verdicts, &confirm_input);
        judgement
            .cells
            .extend(confirmed.cells.into_iter().filter(|c| c.stage == Some(CONFIRM_STAGE)));
    }
    let gaps = gaps::find_gaps(run.plan, run.results, &all, &judgement.verdicts);
    gaps::apply_gaps(&mut judgement.verdicts, run.claims, &gaps);
    cross_domain_pairs::clear_nodes(&run, &all, &judgement.unusable, &mut judgement.verdicts);
    judgement
}

/// Judges some of the recordings of a run.
pub(super) fn judge_recordings(
    run: &RunJudgeInput<'_>,
    recordings: &[ToolRecording],
    cells: bool,
) -> Judgement {
    judge::judge_without_history(&judge_input(run, recordings, cells))
}

fn judge_input<'a>(
    run: &RunJudgeInput<'a>,
    recordings: &'a [ToolRecording],
    cells: bool,
) -> JudgeInput<'a> {
    JudgeInput {
        claims: run.claims,
        recordings,
        catalogue: run.catalogue,
        thresholds_digest: run.thresholds_digest,
        platform: run.platform,
        cells,
        sampled: run.plan.sampled,
    }
}

/// Whether a reading failed because the node or the tool could not be reached.
pub(super) fn is_out_of_reach(result: &RawResult, launcher: &Launcher) -> bool {
    let unconnected = match result.ending {
        ProcessEnding::Exited { code } => launcher.is_connect_failure(code),
        _ => false,
    };
    unconnected || result.ending.is_unreachable()
}

/// How much of the plan came back: tools that ran to their end, well or not. Readings beyond the
/// planned ones do not compensate for missing ones. The node with the most missing readings is left
/// out if others remain: one node alone does not put a sweep in doubt.
pub fn plan_coverage(plan: &Plan, launcher: &Launcher, results: &[RawResult]) -> PlanCoverage {
    let came = |result: &&RawResult| {
        let ended =
            matches!(result.ending, ProcessEnding::Exited { .. } | ProcessEnding::Signalled { .. });
        ended && !is_out_of_reach(result, launcher)
    };
    let came: BTreeSet<(usize, u32)> =
        results.iter().filter(came).map(|r| (r.step, r.reading)).collect();
    let returned = |step: &PlanStep| came.range((step.step, 0)..(step.step, step.readings)).count();
    let mut missing: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for step in plan.steps() {
        let lost = step.readings as usize - returned(step);
        for node in step.nodes.iter().filter(|_| 0 < lost) {
            *missing.entry(node).or_default() += lost;
        }
    }
    let worst = missing.into_iter().max_by_key(|(_, lost)| *lost).map(|(node, _)| node);
    let of = |all: &dyn Fn(&&PlanStep) -> bool| {
        let steps = || plan.steps().filter(|step| all(step));
        let planned = steps().map(|step| step.readings as usize).sum();
        PlanCoverage { planned, returned: steps().map(returned).sum() }
    };
    let without = of(&|step| worst.is_none_or(|node| !step.nodes.contains(node)));
    if without.planned == 0 { of(&|_| true) } else { without }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::fixture::EXITED_WELL;

    #[test]
    fn readings_beyond_the_plan_do_not_replace_missing_ones() {
        let unreached = || ProcessEnding::not_started("not reached");
        let results = [
            fixture::result(0, 0, EXITED_WELL),
            fixture::result(0, 1, EXITED_WELL),
            fixture::result(0, 2, EXITED_WELL),
            fixture::result(1, 0, EXITED_WELL),
            fixture::result(1, 1, unreached()),
        ];
        let covered = plan_coverage(&fixture::plan(&[0, 1]), &Launcher::Local, &results);
        assert_eq!(covered, PlanCoverage { planned: 4, returned: 3 });
    }

    #[test]
    fn one_silent_node_does_not_put_a_sweep_in_doubt() {
        let mut plan = fixture::plan(&[0, 1, 2]);
        for (step, node) in plan.rounds.iter_mut().flat_map(|r| &mut r.steps).zip(["a", "b", "c"]) {
            step.nodes = vec![node.into()];
        }
        let hung = || ProcessEnding::TimedOut;
        let results = |second: ProcessEnding| {
            [(0, EXITED_WELL), (1, second), (2, hung())]
                .map(|(step, ending)| fixture::result(step, 0, ending))
        };
        let of = |second| plan_coverage(&plan, &Launcher::Local, &results(second));
        // Two readings of each step are planned.
        assert_eq!(of(EXITED_WELL), PlanCoverage { planned: 4, returned: 2 });
        assert_eq!(of(hung()), PlanCoverage { planned: 4, returned: 1 });
    }
}
