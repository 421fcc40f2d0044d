//! A live or a stored run, judged: the judge's word, what the confirm stage
//! made of it, and an unknown for everything that did not come back.
//!
//! Pure. The same run under the same expectations gives the same verdicts,
//! whenever and wherever it is judged.

use std::collections::BTreeMap;

use super::apart;
use super::gaps;
use crate::act::situation::Coverage;
use crate::judge;
use crate::judge::Case;
use crate::judge::Judgement;
use crate::launch::Launcher;
use crate::model::claims::Claims;
use crate::model::history::History;
use crate::model::raw::Ending;
use crate::model::raw::RawResult;
use crate::model::recording::Recording;
use crate::plan::CONFIRM_STAGE;
use crate::plan::Plan;
use crate::thresholds::Catalogue;

/// What a stored or a live run is judged from.
#[derive(Debug)]
pub struct Judged<'a> {
    /// What was claimed of the nodes it covers.
    pub claims: &'a Claims,
    /// What was planned.
    pub plan: &'a Plan,
    /// What was planned to confirm suspicions, where there were any.
    pub confirm: Option<&'a Plan>,
    /// What was run.
    pub results: &'a [RawResult],
    /// What was read.
    pub recordings: Vec<Recording>,
    /// The expectations.
    pub catalogue: &'a Catalogue,
    /// Their digest.
    pub thresholds_digest: &'a str,
    /// The platform a person named.
    pub platform: Option<&'a str>,
}

/// The judge's word. The order in which steps ended makes no difference.
pub fn judged(run: Judged<'_>) -> Judgement {
    judged_against(run, &History::default())
}

/// The same with what parts showed in earlier runs among the references.
pub fn judged_against(mut run: Judged<'_>, history: &History) -> Judgement {
    // The first look, then the second.
    let mut all = std::mem::take(&mut run.recordings);
    let is_again = |recording: &Recording| recording.stage == Some(CONFIRM_STAGE);
    all.sort_by(|a, b| (is_again(a), &a.scope, &a.file).cmp(&(is_again(b), &b.scope, &b.file)));
    let (first, again) = all.split_at(all.partition_point(|recording| !is_again(recording)));
    let mut judgement = judge::judge_against(&case(&run, first, true), history);
    if run.confirm.is_some() {
        let suspects = judge::confirm::suspects(&judgement);
        let second = judge_these(&run, &judge::confirm::second_case(&all, &suspects), true);
        let again = case(&run, again, false);
        judgement.verdicts = judge::confirm::confirm(&judgement, &second.verdicts, &again);
        judgement.cells.extend(second.cells.into_iter().filter(|c| c.stage == Some(CONFIRM_STAGE)));
    }
    let gaps = gaps::of_run(run.plan, run.results, &all);
    gaps::close(&mut judgement.verdicts, run.claims, &gaps);
    apart::settle(&run, &all, &mut judgement.verdicts);
    judgement
}

/// The judge's word on some of the recordings of a run.
pub(super) fn judge_these(run: &Judged<'_>, recordings: &[Recording], cells: bool) -> Judgement {
    judge::judge(&case(run, recordings, cells))
}

fn case<'a>(run: &Judged<'a>, recordings: &'a [Recording], cells: bool) -> Case<'a> {
    Case {
        claims: run.claims,
        recordings,
        catalogue: run.catalogue,
        thresholds_digest: run.thresholds_digest,
        platform: run.platform,
        cells,
        sampled: run.plan.sampled,
    }
}

/// Whether a reading says more of the environment than of the node's fabric.
pub(super) fn is_out_of_reach(result: &RawResult, launcher: &Launcher) -> bool {
    let unconnected = match result.ending {
        Ending::Exited { code } => launcher.is_connect_failure(code),
        _ => false,
    };
    unconnected || result.ending.is_out_of_reach()
}

/// How much of the plan came back: tools that ran to their end, well or not.
/// Readings beyond the planned ones make up for none of those.
pub fn coverage(plan: &Plan, launcher: &Launcher, results: &[RawResult]) -> Coverage {
    let planned: BTreeMap<usize, u32> = plan.steps().map(|s| (s.step, s.readings)).collect();
    let returned = results
        .iter()
        .filter(|r| planned.get(&r.step).is_some_and(|readings| r.reading < *readings))
        .filter(|r| {
            let ended = matches!(r.ending, Ending::Exited { .. } | Ending::Signalled { .. });
            ended && !is_out_of_reach(r, launcher)
        })
        .count();
    Coverage { planned: planned.values().map(|readings| *readings as usize).sum(), returned }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::fixture;
    use crate::coordinator::fixture::WELL;

    #[test]
    fn readings_beyond_the_plan_make_up_for_none_that_is_missing() {
        let unreached = || Ending::NotStarted { why: "not reached".to_owned() };
        let results = [
            fixture::result(0, 0, WELL),
            fixture::result(0, 1, WELL),
            fixture::result(0, 2, WELL),
            fixture::result(1, 0, WELL),
            fixture::result(1, 1, unreached()),
        ];
        let covered = coverage(&fixture::plan(&[0, 1]), &Launcher::Local, &results);
        assert_eq!(covered, Coverage { planned: 4, returned: 3 });
    }
}
