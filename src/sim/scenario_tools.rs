//! Answers for a scenario's tools within the calling process: without workers and child processes,
//! so that a fleet of ten thousand nodes fits on one machine.
//!
//! Native probes need a worker and are not supported here.

use super::fabric::SimFabric;
use super::fault::BurnInAge;
use super::invocation::ToolInvocation;
use super::noise::NoiseKey;
use super::render::SimToolOutput;
use super::scenario::Scenario;
use super::tool_dispatch::SimToolReply;
use super::{misbehaviour, tool_dispatch};
use model::raw_result::ProcessEnding;
use model::tool_call::{ToolBackend, ToolCall, ToolOutput};

/// A scenario and its fabric, built once for all readings.
#[derive(Debug)]
pub struct ScenarioTools {
    scenario: Scenario,
    fabric: SimFabric,
}

impl ScenarioTools {
    /// Parses a scenario. `age` is the progress of a burn-in.
    pub fn from_text(text: &str, age: Option<&str>) -> Result<Self, String> {
        let scenario = Scenario::parse(text).map_err(|error| error.to_string())?;
        Self::new(scenario.at_age(age.and_then(BurnInAge::parse).unwrap_or_default()))
    }

    /// Builds the fabric of a scenario.
    pub fn new(scenario: Scenario) -> Result<Self, String> {
        let fabric = SimFabric::build(&scenario)?;
        Ok(Self { scenario, fabric })
    }
}

impl ToolBackend for ScenarioTools {
    fn run_tool(&self, call: &ToolCall<'_>) -> Result<ToolOutput, String> {
        let [first, ..] = call.nodes else { return Err("the step names no node".to_owned()) };
        let refused = call
            .nodes
            .iter()
            .find_map(|node| misbehaviour::refuse_worker(&self.scenario, node.as_str()));
        if let Some(why) = refused {
            return Err(why);
        }
        let (environment, command) = tool_dispatch::split_environment(call.argv);
        let Some((name, args)) = command.split_first() else {
            return Err("the step has no command".to_owned());
        };
        // The noise key by step and reading, as in simulated workers.
        let key =
            NoiseKey::from_seed(0).with_name(&format!("{}.{}", call.step, call.reading)).value();
        let bench = ToolInvocation {
            scenario: &self.scenario,
            fabric: &self.fabric,
            scope: first.as_str(),
            spans_domain: self.fabric.node(first.as_str()).is_err(),
            seed: self.scenario.seed,
            reading: u32::try_from(key >> 32).unwrap_or(call.reading),
            prior_readings: call.reading,
            job: None,
        };
        tool_dispatch::call_tool(&bench, name, args, &environment)
            .map(to_tool_answer)
            .ok_or_else(|| format!("{name} is answered by workers only: leave out workers = false"))
    }
}

fn to_tool_answer(reply: SimToolReply) -> ToolOutput {
    let ended = |answer: SimToolOutput| ToolOutput {
        ending: ProcessEnding::Exited { code: i32::from(answer.code) },
        stdout: answer.stdout.into_bytes(),
        stderr: answer.stderr.into_bytes(),
    };
    match reply {
        // A server exists whenever its client runs.
        SimToolReply::Prints(answer)
        | SimToolReply::Serves { answer, .. }
        | SimToolReply::Connects { answer, .. } => ended(answer),
        SimToolReply::Hangs => {
            ToolOutput { ending: ProcessEnding::TimedOut, stdout: Vec::new(), stderr: Vec::new() }
        }
        SimToolReply::Floods => {
            let line = misbehaviour::FLOOD_LINE;
            ended(SimToolOutput::success(line.repeat(misbehaviour::FLOOD / line.len())))
        }
    }
}
