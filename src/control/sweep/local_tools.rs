//! Readings that this process answers instead of nodes: placeholders are filled and outputs are
//! kept like those of nodes.

use super::placeholders;
use super::placeholders::{PlaceholderEnd, PlaceholderValues};
use super::step::{ReadingRequest, blank_result};
use super::worker::OrderOutcome;
use model::raw_result::RawResult;
use model::tool_call::{ToolBackend, ToolCall};
use node::exec::CapturedStream;

/// Takes a reading from these tools.
pub(super) fn take_local_reading(
    what: &ReadingRequest<'_>,
    tools: &dyn ToolBackend,
) -> (RawResult, OrderOutcome) {
    let mut result = blank_result(what.step, what.reading, what.step.argv.to_vec());
    let outcome = run_tool(what, tools, &mut result.argv).unwrap_or_else(OrderOutcome::not_started);
    result.ending = outcome.ending.clone();
    result.stdout_dropped = outcome.stdout.dropped;
    (result, outcome)
}

fn run_tool(
    what: &ReadingRequest<'_>,
    tools: &dyn ToolBackend,
    argv: &mut Vec<String>,
) -> Result<OrderOutcome, String> {
    let step = what.step;
    let [first, others @ ..] = step.nodes.as_slice() else {
        return Err("the step names no node".to_owned());
    };
    let end = |node| PlaceholderEnd { node, environment: None };
    *argv = placeholders::fill_command(
        &step.argv,
        &PlaceholderValues {
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
    Ok(OrderOutcome {
        ending: answer.ending,
        stdout: truncate_output(answer.stdout, what.capture),
        stderr: truncate_output(answer.stderr, what.capture),
        ..OrderOutcome::not_started(String::new())
    })
}

/// The part of an output that is kept, as for every output.
fn truncate_output(mut bytes: Vec<u8>, capture: usize) -> CapturedStream {
    let dropped = bytes.len().saturating_sub(capture);
    bytes.truncate(capture);
    CapturedStream { bytes, dropped: dropped as u64 }
}
