//! Telling people on standard error how far a sweep is, one line a step.

use std::io::Write;

use crate::model::raw::RawResult;
use crate::model::recording::Recording;

/// Whether and to whom progress is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Lines on standard error.
    Lines,
    /// Nothing.
    Silent,
}

impl Progress {
    /// A step ended, the `done`th of `all`.
    pub fn step(self, done: usize, all: usize, result: &RawResult, recording: Option<&Recording>) {
        self.say(&line(done, all, result, recording));
    }

    /// Something people should know while they wait.
    pub fn say(self, text: &str) {
        if self == Self::Lines {
            // Nobody listening is no reason to stop measuring.
            let _ = writeln!(anstream::stderr().lock(), "{text}");
        }
    }
}

fn line(done: usize, all: usize, result: &RawResult, recording: Option<&Recording>) -> String {
    let width = all.to_string().len();
    let how = match (result.gap(), recording) {
        (Some(why), _) => why,
        (None, Some(recording)) if recording.parsed.complete => "complete".to_owned(),
        (None, Some(recording)) => match recording.parsed.problems.first() {
            Some(problem) => format!("incomplete, {}: {}", problem.kind.as_str(), problem.detail),
            None => "incomplete".to_owned(),
        },
        (None, None) => "nothing to read".to_owned(),
    };
    let (node, probe, seconds) = (result.place(), &result.probe, result.duration_s);
    format!("[{done:>width$}/{all}] {node} {probe}: {seconds:.1} s, {how}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::raw::Ending;
    use crate::model::raw::RESULT_FORMAT;

    #[test]
    fn a_line_says_where_what_how_long_and_how_it_ended() {
        let result = RawResult {
            format: RESULT_FORMAT.to_owned(),
            step: 2,
            stage: 1,
            domain: None,
            nodes: vec!["node0003".into()],
            rail: None,
            probe: "nvbandwidth".to_owned(),
            reading: 0,
            argv: Vec::new(),
            ending: Ending::Exited { code: 1 },
            started: String::new(),
            duration_s: 12.06,
            stdout: None,
            stderr: None,
            stdout_dropped: 0,
            stderr_dropped: 0,
            complaint: Some("no device".to_owned()),
            load: None,
            gpus: Vec::new(),
        };
        assert_eq!(
            line(3, 18, &result, None),
            "[ 3/18] node0003 nvbandwidth: 12.1 s, exit code 1; its last words: no device"
        );
    }
}
