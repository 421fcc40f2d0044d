//! A simulated fabric that answers in this process, in the place of nodes: no
//! worker and no tool is started, so that a fleet of ten thousand fits on a desk.
//!
//! What comes back are the outputs of the simulated tools, read and judged as
//! any others. Probes of our own need a worker and are not answered here.

use std::path::Path;

use super::fill;
use super::fill::End;
use super::fill::Filling;
use super::step::Reading;
use super::step::blank;
use super::worker::Outcome;
use crate::exec::Stream;
use crate::model::id::NodeName;
use crate::model::raw::Ending;
use crate::model::raw::RawResult;
use crate::record::RecordError;
use crate::sim::bench::Bench;
use crate::sim::fabric::Fabric;
use crate::sim::fault::Age;
use crate::sim::noise::Key;
use crate::sim::render::Answer;
use crate::sim::scenario::Scenario;
use crate::sim::tool;
use crate::sim::tool::Reply;
use crate::sim::unwell;

/// A scenario and what is built of it, once for all readings.
#[derive(Debug)]
pub(super) struct Played {
    scenario: Scenario,
    fabric: Fabric,
}

impl Played {
    /// Reads a scenario. A burn-in says how far it has come.
    pub(super) fn open(path: &Path, age: Option<&str>) -> Result<Self, RecordError> {
        let wrong = |why: String| RecordError::Malformed { path: path.to_owned(), line: 1, why };
        let text = std::fs::read_to_string(path)
            .map_err(|source| RecordError::Io { path: path.to_owned(), source })?;
        let scenario = Scenario::read(&text).map_err(|error| wrong(error.to_string()))?;
        let scenario = scenario.at(age.and_then(Age::read).unwrap_or_default());
        Self::of(scenario).map_err(wrong)
    }

    /// The fabric of a scenario.
    pub(super) fn of(scenario: Scenario) -> Result<Self, String> {
        let fabric = Fabric::build(&scenario)?;
        Ok(Self { scenario, fabric })
    }

    /// What a reading would have printed.
    pub(super) fn answer(&self, what: &Reading<'_>) -> (RawResult, Outcome) {
        let mut result = blank(what.step, what.reading, what.step.argv.to_vec());
        let outcome = match self.reply(what, &mut result.argv) {
            Ok(reply) => outcome(reply, what.capture),
            Err(why) => Outcome::not_started(why),
        };
        result.ending = outcome.ending.clone();
        result.stdout_dropped = outcome.stdout.dropped;
        (result, outcome)
    }

    fn reply(&self, what: &Reading<'_>, argv: &mut Vec<String>) -> Result<Reply, String> {
        let step = what.step;
        let [first, others @ ..] = step.nodes.as_slice() else {
            return Err("the step names no node".to_owned());
        };
        let refused = |node: &NodeName| unwell::refuse_worker(&self.scenario, node.as_str());
        if let Some(why) = step.nodes.iter().find_map(refused) {
            return Err(why);
        }
        let end = |node| End { node, environment: None };
        *argv = fill::command(
            &step.argv,
            &Filling {
                own: end(first),
                peer: others.first().map(end),
                rail: what.rail,
                port: what.port,
            },
        )?;
        let (environment, command) = tool::environment(argv);
        let Some((name, args)) = command.split_first() else {
            return Err("the step has no command".to_owned());
        };
        // As simulated workers number readings, by step and reading.
        let key = Key::of(0).named(&format!("{}.{}", step.step, what.reading)).value();
        let bench = Bench {
            scenario: &self.scenario,
            fabric: &self.fabric,
            scope: first.as_str(),
            across: self.fabric.node(first.as_str()).is_err(),
            seed: self.scenario.seed,
            reading: u32::try_from(key >> 32).unwrap_or(what.reading),
            before: what.reading,
            job: None,
        };
        tool::call(&bench, name, args, &environment)
            .ok_or_else(|| format!("{name} is answered by workers only: leave out workers = false"))
    }
}

fn outcome(reply: Reply, capture: usize) -> Outcome {
    let ended = |answer: Answer| Outcome {
        ending: Ending::Exited { code: i32::from(answer.code) },
        stdout: kept(answer.stdout.into_bytes(), capture),
        stderr: kept(answer.stderr.into_bytes(), capture),
        ..Outcome::not_started(String::new())
    };
    match reply {
        // A server is there whenever its client is.
        Reply::Says(answer) | Reply::Serves { answer, .. } | Reply::Calls { answer, .. } => {
            ended(answer)
        }
        Reply::Hangs => Outcome { ending: Ending::TimedOut, ..Outcome::not_started(String::new()) },
        Reply::Floods => {
            let line = unwell::FLOOD_LINE;
            ended(Answer::of(line.repeat(unwell::FLOOD / line.len())))
        }
    }
}

/// As much of an output as is kept of any.
fn kept(mut bytes: Vec<u8>, capture: usize) -> Stream {
    let dropped = bytes.len().saturating_sub(capture);
    bytes.truncate(capture);
    Stream { bytes, dropped: dropped as u64 }
}
