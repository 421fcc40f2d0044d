//! A stored run in the place of nodes: every step is answered with what was
//! printed then, so that the whole pipeline can be run again on a desk.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Mutex;

use super::step::blank;
use super::worker::Outcome;
use crate::exec::Stream;
use crate::model::id::NodeName;
use crate::model::raw::Ending;
use crate::model::raw::RawResult;
use crate::plan::CONFIRM_STAGE;
use crate::plan::Step;
use crate::record::RecordError;
use crate::record::stored;

/// What tells readings apart: probe, nodes, rail, and whether it confirms.
type Key = (String, Vec<NodeName>, Option<String>, bool);

/// The readings of a stored run. Each answers once, in the order of its step.
#[derive(Debug)]
pub(super) struct Stored {
    run: stored::Stored,
    readings: Mutex<BTreeMap<Key, VecDeque<RawResult>>>,
}

impl Stored {
    /// Opens a run. Its outputs stay on disk until they are asked for.
    pub(super) fn open(run: &std::path::Path) -> Result<Self, RecordError> {
        let run = stored::open(run)?;
        let mut results = run.results()?;
        // One that was taken again after an interruption stands at the end.
        results.sort_by_key(|result| (result.step, result.reading));
        let mut readings: BTreeMap<Key, VecDeque<_>> = BTreeMap::new();
        for result in results {
            let key = (
                result.probe.clone(),
                result.nodes.clone(),
                result.rail.clone(),
                result.stage == CONFIRM_STAGE,
            );
            readings.entry(key).or_default().push_back(result);
        }
        Ok(Self { run, readings: Mutex::new(readings) })
    }

    /// The answer to a reading of a step.
    pub(super) fn answer(&self, step: &Step, reading: u32) -> (RawResult, Outcome) {
        let not_started = |why: String| {
            let ending = Ending::NotStarted { why: why.clone() };
            let result = RawResult { ending, ..blank(step, reading, step.argv.to_vec()) };
            (result, Outcome::not_started(why))
        };
        let Some(then) = self.next(step) else {
            return not_started("the stored run has no such reading".to_owned());
        };
        let bytes = |name: &Option<String>| match name {
            Some(name) => self.run.raw(name),
            None => Ok(Vec::new()),
        };
        let (stdout, stderr) = match (bytes(&then.stdout), bytes(&then.stderr)) {
            (Ok(stdout), Ok(stderr)) => (stdout, stderr),
            (Err(error), _) | (_, Err(error)) => return not_started(error.to_string()),
        };
        let outcome = Outcome {
            ending: then.ending.clone(),
            duration: then.duration_s,
            stdout: Stream { bytes: stdout, dropped: then.stdout_dropped },
            stderr: Stream { bytes: stderr, dropped: then.stderr_dropped },
            load: then.load,
            gpus: then.gpus.clone(),
            complaint: then.complaint.clone(),
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

    fn next(&self, step: &Step) -> Option<RawResult> {
        let key = (
            step.probe.clone(),
            step.nodes.clone(),
            step.rail.clone(),
            step.stage == CONFIRM_STAGE,
        );
        let mut readings = self.readings.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        readings.get_mut(&key)?.pop_front()
    }
}
