//! Readings that are answered in this process, in the place of nodes: placeholders are
//! filled and outputs are kept as those of nodes are.

use super::fill;
use super::fill::{End, Filling};
use super::step::{Reading, blank};
use super::worker::Outcome;
use model::raw_result::RawResult;
use model::tool_call::{ToolBackend, ToolCall};
use node::exec::CapturedStream;

/// Takes a reading from these tools.
pub(super) fn take(what: &Reading<'_>, tools: &dyn ToolBackend) -> (RawResult, Outcome) {
    let mut result = blank(what.step, what.reading, what.step.argv.to_vec());
    let outcome = outcome(what, tools, &mut result.argv).unwrap_or_else(Outcome::not_started);
    result.ending = outcome.ending.clone();
    result.stdout_dropped = outcome.stdout.dropped;
    (result, outcome)
}

fn outcome(
    what: &Reading<'_>,
    tools: &dyn ToolBackend,
    argv: &mut Vec<String>,
) -> Result<Outcome, String> {
    let step = what.step;
    let [first, others @ ..] = step.nodes.as_slice() else {
        return Err("the step names no node".to_owned());
    };
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
    let answer = tools.run_tool(&ToolCall {
        nodes: &step.nodes,
        argv,
        step: step.step,
        reading: what.reading,
    })?;
    Ok(Outcome {
        ending: answer.ending,
        stdout: kept(answer.stdout, what.capture),
        stderr: kept(answer.stderr, what.capture),
        ..Outcome::not_started(String::new())
    })
}

/// As much of an output as is kept of any.
fn kept(mut bytes: Vec<u8>, capture: usize) -> CapturedStream {
    let dropped = bytes.len().saturating_sub(capture);
    bytes.truncate(capture);
    CapturedStream { bytes, dropped: dropped as u64 }
}
