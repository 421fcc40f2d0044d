//! The readings of a run so far, indexed by step.
//!
//! Pure. Parsed numbers only: the outputs are on disk.

use std::collections::{BTreeMap, BTreeSet};

use engine::plan::{Plan, PlanStep};
use model::raw_result::{ProcessEnding, RawResult};
use model::tool_recording::ToolRecording;

/// The readings so far, including those before an interruption.
#[derive(Debug, Default)]
pub(super) struct RunReadings {
    results: Vec<RawResult>,
    recordings: Vec<ToolRecording>,
    /// By step and reading.
    positions: BTreeMap<(usize, u32), ReadingPosition>,
}

/// The positions of a reading in the two lists.
#[derive(Clone, Copy, Debug)]
struct ReadingPosition {
    result: usize,
    recording: Option<usize>,
}

impl RunReadings {
    /// The readings of an earlier attempt.
    pub(super) fn from_earlier_attempt(
        results: Vec<RawResult>,
        recordings: Vec<ToolRecording>,
    ) -> Self {
        let mut measured = Self::default();
        let mut read: BTreeMap<String, ToolRecording> =
            recordings.into_iter().map(|recording| (recording.file.clone(), recording)).collect();
        for result in results {
            let recording = result.stdout.as_ref().and_then(|file| read.remove(file));
            measured.insert(result, recording);
        }
        measured
    }

    /// Adds a reading; a repeated one replaces the earlier one.
    pub(super) fn insert(&mut self, result: RawResult, recording: Option<ToolRecording>) {
        let key = (result.step, result.reading);
        let known = self.positions.get(&key).copied();
        let at = match (recording, known.and_then(|place| place.recording)) {
            (Some(recording), Some(at)) => {
                self.recordings[at] = recording;
                Some(at)
            }
            (Some(recording), None) => {
                self.recordings.push(recording);
                Some(self.recordings.len() - 1)
            }
            (None, Some(at)) => {
                self.remove_recording(at);
                None
            }
            (None, None) => None,
        };
        let place = match known {
            Some(place) => {
                self.results[place.result] = result;
                ReadingPosition { recording: at, ..place }
            }
            None => {
                self.results.push(result);
                ReadingPosition { result: self.results.len() - 1, recording: at }
            }
        };
        self.positions.insert(key, place);
    }

    /// Removes a recording from the list; later ones move up.
    fn remove_recording(&mut self, at: usize) {
        self.recordings.remove(at);
        for place in self.positions.values_mut() {
            place.recording = match place.recording {
                Some(other) if other == at => None,
                Some(other) if at < other => Some(other - 1),
                other => other,
            };
        }
    }

    /// The readings that are not taken again. An interrupted one, or one that never started because
    /// the node or its tool was unreachable or busy, is worth another attempt, except after a tool
    /// that hung.
    pub(super) fn finished_readings(&self) -> BTreeSet<(usize, u32)> {
        let hung = self.hung_steps();
        let is_over = |result: &RawResult| match &result.ending {
            ProcessEnding::Interrupted | ProcessEnding::Busy { .. } => false,
            ending => !ending.is_unreachable() || hung.contains_key(&result.step),
        };
        self.results.iter().filter(|r| is_over(r)).map(|r| (r.step, r.reading)).collect()
    }

    /// The steps whose tool hung, with the first such reading.
    pub(super) fn hung_steps(&self) -> BTreeMap<usize, u32> {
        let mut hung = BTreeMap::new();
        for result in self.results.iter().filter(|r| r.ending == ProcessEnding::TimedOut) {
            let first = hung.entry(result.step).or_insert(result.reading);
            *first = result.reading.min(*first);
        }
        hung
    }

    /// The recordings of a step before this reading, in order of readings.
    pub(super) fn recordings_before(&self, step: &PlanStep, reading: u32) -> Vec<&ToolRecording> {
        let places = self.positions.range((step.step, 0)..(step.step, reading));
        places.filter_map(|(_, place)| self.recordings.get(place.recording?)).collect()
    }

    /// Whether any reading of a plan succeeded.
    pub(super) fn has_successful_reading(&self, plan: &Plan) -> bool {
        plan.steps().any(|step| {
            let mut places = self.positions.range((step.step, 0)..=(step.step, u32::MAX));
            places.any(|(_, place)| {
                matches!(self.results[place.result].ending, ProcessEnding::Exited { code: 0 })
            })
        })
    }

    /// Whether none of these steps has a reading.
    pub(super) fn has_none_of<'a>(&self, mut steps: impl Iterator<Item = &'a PlanStep>) -> bool {
        steps.all(|s| self.positions.range((s.step, 0)..=(s.step, u32::MAX)).next().is_none())
    }

    /// The readings, in the order in which they were first taken.
    pub(super) fn results(&self) -> &[RawResult] {
        &self.results
    }

    pub(super) fn recordings(&self) -> &[ToolRecording] {
        &self.recordings
    }

    pub(super) fn into_parts(self) -> (Vec<RawResult>, Vec<ToolRecording>) {
        (self.results, self.recordings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture::{EXITED_WELL, result, step};
    use model::tool_recording::RecordingScope;

    fn recording(number: usize, reading: u32) -> ToolRecording {
        let file = format!("raw/{number}-{reading}");
        ToolRecording::new(
            RecordingScope::Node("n1".into()),
            &file,
            readers::outputs::parse_output(b""),
        )
    }

    fn unreachable_ending() -> ProcessEnding {
        ProcessEnding::not_started("not reached")
    }

    #[test]
    fn readings_that_never_ran_are_repeated_and_failed_ones_are_not() {
        let mut measured = RunReadings::default();
        let endings = [
            EXITED_WELL,
            ProcessEnding::Exited { code: 1 },
            ProcessEnding::Signalled { signal: 9 },
            ProcessEnding::TimedOut,
            ProcessEnding::Interrupted,
            unreachable_ending(),
            ProcessEnding::Busy { why: "a job".to_owned() },
            ProcessEnding::Missing { program: "x".to_owned() },
            ProcessEnding::Exited { code: 127 },
        ];
        for (number, ending) in endings.into_iter().enumerate() {
            measured.insert(result(number, 0, ending), None);
        }
        let taken: Vec<usize> =
            measured.finished_readings().into_iter().map(|(step, _)| step).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
    }

    #[test]
    fn no_reading_is_repeated_after_a_tool_that_hung() {
        let mut measured = RunReadings::default();
        measured.insert(result(4, 1, ProcessEnding::TimedOut), None);
        measured.insert(result(4, 2, unreachable_ending()), None);
        assert_eq!(measured.finished_readings(), BTreeSet::from([(4, 1), (4, 2)]));
        assert_eq!(measured.hung_steps(), BTreeMap::from([(4, 1)]));
    }

    #[test]
    fn a_repeated_reading_replaces_the_earlier_one() {
        let mut measured = RunReadings::from_earlier_attempt(
            vec![
                result(1, 0, EXITED_WELL),
                result(2, 0, ProcessEnding::Interrupted),
                result(3, 0, EXITED_WELL),
            ],
            vec![recording(3, 0), recording(2, 0), recording(1, 0)],
        );
        let files = |measured: &RunReadings, number| -> Vec<String> {
            measured.recordings_before(&step(number), 9).iter().map(|r| r.file.clone()).collect()
        };
        assert_eq!(files(&measured, 3), ["raw/3-0"]);
        measured.insert(result(2, 0, EXITED_WELL), None);
        assert!(files(&measured, 2).is_empty(), "the old output is removed");
        assert_eq!((files(&measured, 1).len(), files(&measured, 3).len()), (1, 1));
        assert_eq!((measured.results().len(), measured.recordings().len()), (3, 2));
        measured.insert(result(2, 0, EXITED_WELL), Some(recording(2, 0)));
        assert_eq!(files(&measured, 2), ["raw/2-0"]);
    }

    #[test]
    fn only_earlier_readings_decide_whether_a_reading_is_needed() {
        let mut measured = RunReadings::default();
        for reading in [2, 0, 1] {
            measured.insert(result(5, reading, EXITED_WELL), Some(recording(5, reading)));
        }
        let before = |reading| measured.recordings_before(&step(5), reading).len();
        assert_eq!([before(0), before(1), before(2), before(3)], [0, 1, 2, 3]);
        let files: Vec<&str> =
            measured.recordings_before(&step(5), 3).into_iter().map(|r| r.file.as_str()).collect();
        assert_eq!(files, ["raw/5-0", "raw/5-1", "raw/5-2"]);
        assert!(measured.has_none_of([step(4), step(6)].iter()));
        assert!(!measured.has_none_of([step(4), step(5)].iter()));
    }
}
