//! Invariants for every input, even a damaged one.

use std::collections::HashSet;

use model::measurement::Measurement;
use model::parse_output::{ParseDocument, ParseOutput};
use readers::outputs::text::decode;
use serde_json::Value;

/// Checks a parser's result for an input. `stands` requires that every number occurs in the input
/// as it is: the tool's parser adds and converts nothing.
pub(crate) fn check(bytes: &[u8], parsed: &ParseOutput, stands: bool) {
    let text = decode(bytes);
    for measurement in &parsed.measurements {
        fits(measurement);
        for value in numbers(measurement) {
            assert!(value.is_finite(), "{value} in {measurement:?}");
        }
    }
    if stands {
        let printed = printed(&text);
        for value in parsed.measurements.iter().flat_map(numbers) {
            assert!(printed.contains(&bits(value)), "{value:?} does not stand in the input");
        }
    }
    let last = text.lines().count() + 1;
    for problem in &parsed.problems {
        let line = problem.line.map_or(1, |line| usize::try_from(line).expect("a line number"));
        assert!((1..=last).contains(&line), "line {line} of {last}: {problem:?}");
        assert!(!problem.detail.is_empty(), "{problem:?}");
    }
    survives_json(parsed);
}

/// Cells are as many as rows and columns state.
fn fits(measurement: &Measurement) {
    if let Measurement::Matrix(matrix) = measurement {
        assert_eq!(matrix.cells.len(), matrix.rows.len(), "{matrix:?}");
        let width = matrix.cols.len();
        assert!(matrix.cells.iter().all(|row| row.len() == width), "{matrix:?}");
    }
}

/// Every number of a measurement.
fn numbers(measurement: &Measurement) -> Vec<f64> {
    match measurement {
        Measurement::Matrix(m) => {
            let cells = m.numbers().map(|(_, _, value)| value);
            cells.chain(m.sum).chain(m.coefficient_of_variation).collect()
        }
        Measurement::Series(s) => {
            let of_point = s.points.iter().flat_map(|p| {
                let times = [p.time_us, p.min_us, p.max_us, p.p99_us];
                let rates = [p.algbw, p.busbw, p.wrong, p.peak, p.msgrate];
                #[expect(clippy::cast_precision_loss, reason = "compared as the same f64")]
                let wholes = [Some(p.bytes as f64), p.iterations.map(|n| n as f64)];
                times.into_iter().chain(rates).chain(wholes).flatten()
            });
            of_point.chain(s.average_busbw).collect()
        }
        Measurement::Scalar(s) => vec![s.value],
    }
}

/// The same for 0 and -0.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

/// Every number in a text: the longest runs that are numbers, and their parts only where the run
/// as a whole is not a number.
fn printed(text: &str) -> HashSet<u64> {
    let mut found = HashSet::new();
    let mut add = |word: &str| {
        let value = word.parse::<f64>().ok().filter(|v| v.is_finite());
        found.extend(value.map(bits));
        value.is_some()
    };
    let belongs = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    for run in text.split(|c| !belongs(c)).filter(|run| !run.is_empty()) {
        if add(run) {
            continue;
        }
        // `3->7`, `-----12`, `1024e`: the numbers in it are separate.
        for part in run.split(|c: char| !c.is_ascii_digit() && c != '.') {
            add(part);
        }
    }
    found
}

/// A document read back is the same, and no part of it can control a terminal.
fn survives_json(parsed: &ParseOutput) {
    let document = ParseDocument::new("input".to_owned(), parsed.clone());
    let text = serde_json::to_string(&document).expect("a document is plain data");
    let back: ParseDocument = serde_json::from_str(&text).expect("a document can be read back");
    let back = ParseOutput {
        tool: back.tool,
        tool_version: back.tool_version,
        complete: back.complete,
        measurements: back.measurements,
        facts: back.facts,
        problems: back.problems,
    };
    assert_eq!(back, *parsed);
    no_control(&serde_json::from_str(&text).expect("JSON"));
}

fn no_control(value: &Value) {
    let clean = |text: &str| assert!(!text.chars().any(char::is_control), "{text:?}");
    match value {
        Value::String(text) => clean(text),
        Value::Array(items) => items.iter().for_each(no_control),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            clean(key);
            no_control(value);
        }),
        _ => {}
    }
}
