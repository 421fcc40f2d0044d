//! Tests of the nvbandwidth parser. The outputs are rendered here, in the tool's layouts, with
//! generated numbers and host names.

mod failures;
mod json;
mod missing_lines;
mod noise;
mod properties;
mod render;
mod text;

use crate::outputs;
use crate::outputs::fixture::matrices;
use model::measurement::MeasurementMatrix;
use model::parse_output::{OutputProblemKind, ParseOutput, Tool};

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::Nvbandwidth), "{text}");
    parsed
}

fn matrix<'a>(parsed: &'a ParseOutput, name: &str) -> &'a MeasurementMatrix {
    let found = matrices(parsed).into_iter().find(|m| m.testcase.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("no {name} in {parsed:#?}"))
}

fn names(parsed: &ParseOutput) -> Vec<&str> {
    matrices(parsed).into_iter().map(|m| m.testcase.as_deref().unwrap_or("?")).collect()
}

/// The problems as (kind, test).
fn problems(parsed: &ParseOutput) -> Vec<(OutputProblemKind, Option<&str>)> {
    parsed.problems.iter().map(|p| (p.kind, p.testcase.as_deref())).collect()
}
