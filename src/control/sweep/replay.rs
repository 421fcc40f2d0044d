//! A stored run instead of nodes: every step gets its stored output, so that the whole pipeline
//! runs again without nodes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use super::step::blank_result;
use super::worker::OrderOutcome;
use crate::store::{RecordError, run_reader};
use engine::plan::PlanStep;
use model::id::NodeName;
use model::raw_result::{ProcessEnding, RawResult};
use model::tool_recording::CONFIRM_STAGE;
use node::exec::CapturedStream;

/// The key of a reading: probe, nodes, rail, and whether it confirms.
type ReplayKey = (String, Vec<NodeName>, Option<String>, bool);

/// The readings of one stored step, by their number.
type ReplayReadings = BTreeMap<u32, RawResult>;

/// The readings of a stored run. Each is used once.
#[derive(Debug)]
pub(super) struct ReplayedRun {
    run: run_reader::StoredRun,
    steps: Mutex<ReplaySteps>,
}

/// Stored steps and the steps that they answer.
#[derive(Debug, Default)]
struct ReplaySteps {
    /// Stored steps without an assignment, in order.
    unassigned: BTreeMap<ReplayKey, VecDeque<ReplayReadings>>,
    /// The remaining readings of the assigned stored steps, by step number.
    assigned: BTreeMap<usize, ReplayReadings>,
}

impl ReplayedRun {
    /// Opens a run. Its outputs stay on disk until they are needed.
    pub(super) fn open(run: &std::path::Path) -> Result<Self, RecordError> {
        let run = run_reader::open_run(run)?;
        // A reading that was repeated after an interruption is at the end.
        let mut steps: BTreeMap<usize, (ReplayKey, ReplayReadings)> = BTreeMap::new();
        for result in run.results()? {
            let key = || {
                let (nodes, rail) = (result.nodes.clone(), result.rail.clone());
                (result.probe.clone(), nodes, rail, result.stage == CONFIRM_STAGE)
            };
            let (_, readings) =
                steps.entry(result.step).or_insert_with(|| (key(), ReplayReadings::new()));
            readings.insert(result.reading, result);
        }
        let mut left: BTreeMap<ReplayKey, VecDeque<ReplayReadings>> = BTreeMap::new();
        for (key, readings) in steps.into_values() {
            left.entry(key).or_default().push_back(readings);
        }
        Ok(Self {
            run,
            steps: Mutex::new(ReplaySteps { unassigned: left, ..ReplaySteps::default() }),
        })
    }

    /// The stored answer to a reading of a step.
    pub(super) fn replay_reading(
        &self,
        step: &PlanStep,
        reading: u32,
    ) -> (RawResult, OrderOutcome) {
        let not_started = |why: String| {
            let ending = ProcessEnding::not_started(why.clone());
            let result = RawResult { ending, ..blank_result(step, reading, step.argv.to_vec()) };
            (result, OrderOutcome::not_started(why))
        };
        let Some(then) = self.next_result(step, reading) else {
            return not_started("the stored run has no such reading".to_owned());
        };
        let bytes = |name: &Option<String>| match name {
            Some(name) => self.run.read_raw(name),
            None => Ok(Vec::new()),
        };
        let (stdout, stderr) = match (bytes(&then.stdout), bytes(&then.stderr)) {
            (Ok(stdout), Ok(stderr)) => (stdout, stderr),
            (Err(error), _) | (_, Err(error)) => return not_started(error.to_string()),
        };
        let outcome = OrderOutcome {
            ending: then.ending.clone(),
            duration: then.duration_s,
            stdout: CapturedStream { bytes: stdout, dropped: then.stdout_dropped },
            stderr: CapturedStream { bytes: stderr, dropped: then.stderr_dropped },
            load: then.load,
            gpus: then.gpus.clone(),
            complaint: then.complaint.clone(),
            sent: then.sent.clone(),
        };
        let result = RawResult {
            step: step.step,
            stage: step.stage,
            reading,
            stdout: None,
            stderr: None,
            ..then
        };
        (result, outcome)
    }

    /// The same reading of the assigned stored step: skipped readings, such as those after a hang,
    /// do not answer another step.
    fn next_result(&self, step: &PlanStep, reading: u32) -> Option<RawResult> {
        let mut steps = self.steps.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ReplaySteps { unassigned: left, assigned: taken } = &mut *steps;
        let readings = match taken.entry(step.step) {
            Entry::Occupied(taken) => taken.into_mut(),
            Entry::Vacant(free) => {
                let (nodes, rail) = (step.nodes.clone(), step.rail.clone());
                let key = (step.probe.clone(), nodes, rail, step.stage == CONFIRM_STAGE);
                free.insert(left.get_mut(&key)?.pop_front()?)
            }
        };
        readings.remove(&reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::fixture::EXITED_WELL;

    #[test]
    fn a_skipped_stored_reading_answers_no_other_step() {
        let dir = tempfile::tempdir().expect("a folder");
        let not_tried = || ProcessEnding::not_started("not tried: reading 1 hung");
        let results = [
            (0, 0, ProcessEnding::TimedOut),
            (0, 1, not_tried()),
            (1, 0, EXITED_WELL),
            (1, 1, EXITED_WELL),
        ]
        .map(|(step, reading, ending)| RawResult {
            stdout: None,
            ..fixture::result(step, reading, ending)
        });
        let folder = fixture::write_run(dir.path(), &fixture::plan(&[0, 1]), &results);
        let stored = ReplayedRun::open(folder.path()).expect("a run");
        // Both steps are the same probe on the same node. After the first reading, which hung, the
        // second is not requested.
        let answer = |step, reading| stored.replay_reading(&fixture::step(step), reading).0.ending;
        assert_eq!(answer(0, 0), ProcessEnding::TimedOut);
        assert_eq!((answer(1, 0), answer(1, 1)), (EXITED_WELL, EXITED_WELL));
        let ProcessEnding::NotStarted { why, .. } = answer(1, 2) else { panic!("a reading") };
        assert_eq!(why, "the stored run has no such reading");
    }
}
