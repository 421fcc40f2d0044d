//! The output of a step: its place inside the run folder, and its content about the nodes and tests
//! that were ordered.
//!
//! `raw/` has the layout of a folder of recorded outputs, so it can be judged as one. No files are
//! touched here.

use super::output_scope;
use super::worker::OrderOutcome;
use engine::plan::PlanStep;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::probe::ProbeScope;
use model::raw_result::{ProcessEnding, RawResult};
use model::tool_recording::{RecordingScope, ToolRecording};

/// The part that the numbers of a step describe.
pub fn recording_scope(step: &PlanStep) -> Option<RecordingScope> {
    match (step.scope, step.nodes.as_slice(), &step.domain) {
        (ProbeScope::Node, [node], _) => Some(RecordingScope::Node(node.clone())),
        (ProbeScope::Rail, [first, second], _) => {
            Some(RecordingScope::Pair(first.clone(), second.clone()))
        }
        (ProbeScope::Pair | ProbeScope::Domain, _, Some(domain)) => {
            Some(RecordingScope::Domain(domain.clone()))
        }
        _ => None,
    }
}

/// Names the files of a result whose process was started.
pub(super) fn set_file_names(step: &PlanStep, result: &mut RawResult, outcome: &OrderOutcome) {
    let started = !matches!(
        result.ending,
        ProcessEnding::Missing { .. }
            | ProcessEnding::NotStarted { .. }
            | ProcessEnding::Busy { .. }
    );
    let place = match recording_scope(step) {
        Some(RecordingScope::Node(node)) => format!("nodes/{node}"),
        Some(RecordingScope::Domain(domain)) => format!("domains/{domain}"),
        Some(RecordingScope::Pair(first, second)) => format!("pairs/{first}/{second}"),
        None => format!("steps/{}", step.step),
    };
    let rail = step.rail.as_ref().map_or(String::new(), |rail| format!("{}.", to_file_name(rail)));
    let file = format!("{}.{rail}{}-{}.txt", result.probe, result.step, result.reading);
    if started {
        result.stdout = Some(format!("raw/{place}/{file}"));
    }
    if !outcome.stderr.bytes.is_empty() {
        result.stderr = Some(format!("stderr/{place}/{file}"));
    }
}

/// A name that is safe in a file name.
fn to_file_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    name.chars().map(|c| if fits(c) { c } else { '_' }).collect()
}

/// Parses the output of a step; `None` if there is nothing to parse. The output of a tool that
/// failed is never complete, even if it appears so, and an interrupted reading is repeated, not
/// parsed.
pub fn read_output(
    step: &PlanStep,
    result: &RawResult,
    stdout: &[u8],
    stderr: &[u8],
) -> Option<ToolRecording> {
    let file = result.stdout.clone()?;
    if result.ending == ProcessEnding::Interrupted {
        return None;
    }
    let gap = result.gap_reason();
    // Without a tool, messages of the shell are not errors of the tool.
    let stderr = if result.ending.is_unreachable() { &[] } else { stderr };
    let sent: Vec<(&str, usize)> = step
        .nodes
        .iter()
        .zip(&result.sent)
        .map(|(node, bytes)| (node.as_str(), usize::try_from(*bytes).unwrap_or(usize::MAX)))
        .collect();
    let mut parsed = readers::outputs::parse_expected(
        &output_scope::expected_tools(step),
        stdout,
        &sent,
        stderr,
    );
    output_scope::restrict_to_order(step, &mut parsed);
    let is_blank = stdout.iter().all(u8::is_ascii_whitespace);
    if gap.is_some() && is_blank && parsed.tool.is_none() {
        return None;
    }
    if result.ending == ProcessEnding::TimedOut {
        // It waited for a missing daemon, as under DRA: the states printed before that are not the
        // state of the domain.
        parsed.facts.imex = None;
    }
    if let Some(why) = gap {
        parsed.complete = false;
        if !parsed.has_problem(OutputProblemKind::Error)
            && !parsed.has_problem(OutputProblemKind::Corrupt)
        {
            parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, why));
        }
    }
    let (rail, stage) = (result.rail.clone(), Some(result.stage));
    let nodes = step.nodes.clone();
    Some(ToolRecording { scope: recording_scope(step)?, file, rail, stage, nodes, parsed })
}
