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
use crate::plan::Step;
use crate::record::RecordError;
use crate::record::stored;

/// What tells readings apart: probe, nodes, rail, and whether it confirms.
type Key = (String, Vec<NodeName>, Option<String>, bool);

/// The readings of a stored run. Each answers once, in the order it was taken.
#[derive(Debug)]
pub(super) struct Stored {
    readings: Mutex<BTreeMap<Key, VecDeque<(RawResult, Vec<u8>, Vec<u8>)>>>,
}

impl Stored {
    /// Reads all outputs of a run.
    pub(super) fn open(run: &std::path::Path) -> Result<Self, RecordError> {
        let run = stored::open(run)?;
        let mut readings: BTreeMap<Key, VecDeque<_>> = BTreeMap::new();
        for result in run.results()? {
            let bytes = |name: &Option<String>| match name {
                Some(name) => run.raw(name),
                None => Ok(Vec::new()),
            };
            let (stdout, stderr) = (bytes(&result.stdout)?, bytes(&result.stderr)?);
            let key = (
                result.probe.clone(),
                result.nodes.clone(),
                result.rail.clone(),
                result.stage == CONFIRM,
            );
            readings.entry(key).or_default().push_back((result, stdout, stderr));
        }
        Ok(Self { readings: Mutex::new(readings) })
    }

    /// The answer to a reading of a step.
    pub(super) fn answer(&self, step: &Step, reading: u32) -> (RawResult, Outcome) {
        let key =
            (step.probe.clone(), step.nodes.clone(), step.rail.clone(), step.stage == CONFIRM);
        let mut readings = self.readings.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some((then, stdout, stderr)) = readings.get_mut(&key).and_then(VecDeque::pop_front)
        else {
            let why = "the stored run has no such reading".to_owned();
            let outcome = Outcome::not_started(why.clone());
            let ending = Ending::NotStarted { why };
            return (RawResult { ending, ..blank(step, reading, step.argv.clone()) }, outcome);
        };
        let outcome = Outcome {
            ending: then.ending.clone(),
            duration: then.duration_s,
            stdout: Stream { bytes: stdout, dropped: then.stdout_dropped },
            stderr: Stream { bytes: stderr, dropped: then.stderr_dropped },
            load: then.load,
            gpus: then.gpus.clone(),
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
}

/// The stage that repeats what raised a suspicion.
pub(super) const CONFIRM: u8 = 3;
