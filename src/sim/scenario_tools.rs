//! The tools of a scenario, answered in the calling process: no worker and no tool is
//! started, so that a fleet of ten thousand nodes needs one machine.
//!
//! Native probes need a worker and are not answered here.

use super::bench::Bench;
use super::fabric::Fabric;
use super::fault::Age;
use super::noise::Key;
use super::render::Answer;
use super::scenario::Scenario;
use super::tool;
use super::tool::Reply;
use super::unwell;
use model::raw::Ending;
use model::tool_call::AnswerTools;
use model::tool_call::ToolAnswer;
use model::tool_call::ToolCall;

/// A scenario and its fabric, built once for all readings.
#[derive(Debug)]
pub struct ScenarioTools {
    scenario: Scenario,
    fabric: Fabric,
}

impl ScenarioTools {
    /// Reads the text of a scenario. `age` is how far a burn-in has come.
    pub fn from_text(text: &str, age: Option<&str>) -> Result<Self, String> {
        let scenario = Scenario::read(text).map_err(|error| error.to_string())?;
        Self::new(scenario.at(age.and_then(Age::read).unwrap_or_default()))
    }

    /// Builds the fabric of a scenario.
    pub fn new(scenario: Scenario) -> Result<Self, String> {
        let fabric = Fabric::build(&scenario)?;
        Ok(Self { scenario, fabric })
    }
}

impl AnswerTools for ScenarioTools {
    fn answer(&self, call: &ToolCall<'_>) -> Result<ToolAnswer, String> {
        let [first, ..] = call.nodes else { return Err("the step names no node".to_owned()) };
        let refused =
            call.nodes.iter().find_map(|node| unwell::refuse_worker(&self.scenario, node.as_str()));
        if let Some(why) = refused {
            return Err(why);
        }
        let (environment, command) = tool::environment(call.argv);
        let Some((name, args)) = command.split_first() else {
            return Err("the step has no command".to_owned());
        };
        // As simulated workers number readings, by step and reading.
        let key = Key::of(0).named(&format!("{}.{}", call.step, call.reading)).value();
        let bench = Bench {
            scenario: &self.scenario,
            fabric: &self.fabric,
            scope: first.as_str(),
            across: self.fabric.node(first.as_str()).is_err(),
            seed: self.scenario.seed,
            reading: u32::try_from(key >> 32).unwrap_or(call.reading),
            before: call.reading,
            job: None,
        };
        tool::call(&bench, name, args, &environment)
            .map(answer)
            .ok_or_else(|| format!("{name} is answered by workers only: leave out workers = false"))
    }
}

fn answer(reply: Reply) -> ToolAnswer {
    let ended = |answer: Answer| ToolAnswer {
        ending: Ending::Exited { code: i32::from(answer.code) },
        stdout: answer.stdout.into_bytes(),
        stderr: answer.stderr.into_bytes(),
    };
    match reply {
        // A server is there whenever its client is.
        Reply::Says(answer) | Reply::Serves { answer, .. } | Reply::Calls { answer, .. } => {
            ended(answer)
        }
        Reply::Hangs => {
            ToolAnswer { ending: Ending::TimedOut, stdout: Vec::new(), stderr: Vec::new() }
        }
        Reply::Floods => {
            let line = unwell::FLOOD_LINE;
            ended(Answer::of(line.repeat(unwell::FLOOD / line.len())))
        }
    }
}
