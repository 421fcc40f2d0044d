//! fabricgate's TCP probe, `fabricgate node probe tcp`: one JSON document (`fabricgate.tcp/1`) per
//! run, with readings in both directions.
//!
//! The testcases are fabricgate's own: `tcp_throughput` (a matrix of the two nodes per reading,
//! from row to column) and `tcp_latency` (median round trip). The bytes of a stream are counted at
//! both ends; if the counts differ, the received data differs from the sent data. This module knows
//! no expectations.

use serde_json::Value;

use super::{CERTAIN, ParserConfidence, ParserInput, lenient_json};
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text;
use model::unit::Unit;

/// The supported format.
pub const FORMAT: &str = "fabricgate.tcp/1";

/// The common prefix of all versions of the format.
const FAMILY: &str = "fabricgate.tcp/";

/// Name of the throughput test.
pub const THROUGHPUT: &str = "tcp_throughput";

/// Name of the latency test.
pub const LATENCY: &str = "tcp_latency";

/// More readings than this cannot come from a probe.
const MOST_READINGS: usize = 10_000;

/// Whether this probe wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    if input.text.contains("\"fabricgate.tcp/") { CERTAIN } else { 0 }
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::FabricgateTcp);
    let mut plain = input.plain_text();
    // A number at the end of the output may have lost digits.
    if !input.text.ends_with('\n') {
        plain.pop();
    }
    let has_format = |map: &serde_json::Map<String, Value>| {
        map.get("format").and_then(Value::as_str).is_some_and(|f| f.starts_with(FAMILY))
    };
    let Some(document) = lenient_json::find_document_where(&plain, has_format) else {
        let what = "the document breaks off before its first field";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, what));
        return parsed;
    };
    let value = &document.value;
    if let Some(format) = value["format"].as_str().filter(|f| *f != FORMAT) {
        let what = format!("format {}, this version reads {FORMAT}", text::clean(format));
        let problem =
            OutputProblem::new(OutputProblemKind::Unrecognised, what).at_line(document.line);
        parsed.problems.push(problem);
        return parsed;
    }
    if let Some(stop) = &document.stopped {
        let what = format!("the document breaks off, {} was expected", stop.expected);
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, what).at_line(stop.line));
    }
    let behind = plain.get(document.end..).unwrap_or_default();
    let is_alone = !behind.contains("\"fabricgate.tcp/");
    if !is_alone {
        parsed.problems.push(document.extra_document_problem());
    }
    parsed.tool_version = value["version"].as_str().map(text::clean);
    let whole = document.stopped.is_none();
    read_document(value, document.line, whole, &mut parsed);
    parsed.complete = whole && is_alone && value["complete"].as_bool() == Some(true);
    if whole && !parsed.complete && parsed.problems.is_empty() {
        let what = "the probe reports that it did not finish";
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, what).at_line(document.line));
    }
    parsed
}

fn read_document(value: &Value, line: u32, whole: bool, parsed: &mut ParseOutput) {
    let node = |end: &str| {
        let name = text::clean(value[end]["node"].as_str()?);
        (!name.is_empty()).then_some(name)
    };
    let ends = node("source").zip(node("destination")).filter(|(from, to)| from != to);
    for key in ["rail", "streams", "seconds", "warmup_s"] {
        keep_fact(parsed, key, &value[key]);
    }
    for (end, prefix) in [("source", "source"), ("destination", "destination")] {
        keep_fact(parsed, &format!("{prefix}_device"), &value[end]["device"]);
        keep_fact(parsed, &format!("{prefix}_address"), &value[end]["address"]);
    }
    for text in value["problems"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let text = text::clean(text);
        let problem =
            OutputProblem::new(problem_kind(&text), text).at_line(line).in_test(Some(THROUGHPUT));
        parsed.problems.push(problem);
    }
    let Some((from, to)) = ends else {
        if whole {
            let what = "the document does not name two nodes";
            parsed
                .problems
                .push(OutputProblem::new(OutputProblemKind::Unrecognised, what).at_line(line));
        }
        return;
    };
    parsed.facts.add_host(&from);
    parsed.facts.add_host(&to);
    let unit = match value["unit"].as_str() {
        Some("GB/s") => Some(Unit::GigabytesPerSecond),
        Some("Gb/s") => Some(Unit::GigabitsPerSecond),
        _ => None,
    };
    let matrix = |run: u32, testcase: &str, unit, there, back| {
        Measurement::Matrix(MeasurementMatrix {
            run,
            testcase: Some(testcase.to_owned()),
            unit,
            rows: vec![from.clone(), to.clone()],
            cols: vec![from.clone(), to.clone()],
            cells: vec![vec![None, there], vec![back, None]],
            sum: None,
            coefficient_of_variation: None,
        })
    };
    let mut retransmits = Some(0u64);
    let readings = value["readings"].as_array().into_iter().flatten().take(MOST_READINGS);
    for (run, reading) in (0u32..).zip(readings) {
        let mut way = |way: &str| {
            let stream = &reading[way];
            let more = stream["retransmits"].as_u64();
            retransmits = retransmits.zip(more).and_then(|(a, b)| a.checked_add(b));
            stream_rate(stream, run, way, line, whole, &mut parsed.problems)
        };
        let (there, back) = (way("forward"), way("reverse"));
        if there.is_some() || back.is_some() {
            parsed.measurements.push(matrix(run, THROUGHPUT, unit, there, back));
        }
    }
    if let Some(count) = retransmits.filter(|_| whole && !parsed.measurements.is_empty()) {
        parsed.facts.parameters.insert("retransmits".to_owned(), count.to_string());
    }
    if whole && parsed.measurements.is_empty() && parsed.problems.is_empty() {
        let what = "the document holds no reading";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, what).at_line(line));
    }
    let median = finite_number(&value["latency"]["median_us"]);
    if let Some(median) = median.filter(|us| 0.0 < *us) {
        let latency = matrix(0, LATENCY, Some(Unit::Microseconds), Some(median), Some(median));
        parsed.measurements.push(latency);
    }
}

/// The rate of one stream, if both ends counted the same bytes.
fn stream_rate(
    stream: &Value,
    run: u32,
    way: &str,
    line: u32,
    whole: bool,
    problems: &mut Vec<OutputProblem>,
) -> Option<f64> {
    // An unmeasured direction is null or absent.
    if stream.is_null() {
        return None;
    }
    let place = |problem: OutputProblem| problem.in_test(Some(THROUGHPUT)).at_line(line);
    let counts = stream["sent_bytes"].as_u64().zip(stream["received_bytes"].as_u64());
    let Some((sent, received)) = counts else {
        if whole {
            let what = format!("reading {run} {way}: the bytes were not counted at both ends");
            problems.push(place(OutputProblem::new(OutputProblemKind::Unverified, what)));
        }
        return None;
    };
    if sent != received {
        let what =
            format!("reading {run} {way}: {sent} bytes were sent and {received} were received");
        problems.push(place(OutputProblem::new(OutputProblemKind::Corrupt, what)));
        return None;
    }
    let rate = finite_number(&stream["rate"]).filter(|rate| 0.0 < *rate);
    if rate.is_none() && whole {
        let what = format!("reading {run} {way}: no byte was counted after the warm-up");
        problems.push(place(OutputProblem::new(OutputProblemKind::Error, what)));
    }
    rate
}

fn finite_number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|v| v.is_finite())
}

/// Classifies a problem by the probe's own text.
fn problem_kind(problem: &str) -> OutputProblemKind {
    let problem = problem.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| problem.contains(word));
    if has(&["corrupt", "pattern", "byte counts", "bytes differ", "checksum"]) {
        OutputProblemKind::Corrupt
    } else if has(&["truncated", "cut short", "interrupted", "incomplete"]) {
        OutputProblemKind::Truncated
    } else {
        OutputProblemKind::Error
    }
}

/// Stores a non-empty field as a fact.
fn keep_fact(parsed: &mut ParseOutput, key: &str, value: &Value) {
    let text = match value {
        Value::String(text) => text::clean(text),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if !text.is_empty() {
        parsed.facts.parameters.insert(key.to_owned(), text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn stream(bytes: u64, rate: f64) -> Value {
        json!({"sent_bytes": bytes, "received_bytes": bytes, "seconds": 1.0, "rate": rate,
               "retransmits": 2})
    }

    fn document(rates: &[(f64, f64)]) -> Value {
        let readings: Vec<Value> = rates
            .iter()
            .enumerate()
            .map(|(at, (forward, reverse))| {
                json!({"reading": at, "forward": stream(1000, *forward),
                       "reverse": stream(900, *reverse)})
            })
            .collect();
        json!({"format": FORMAT, "version": "0.1.0",
            "source": {"node": "a", "address": "192.0.2.1", "device": "eth1"},
            "destination": {"node": "b", "address": "192.0.2.2", "device": null},
            "rail": "rail0", "streams": 4, "seconds": 1.0, "warmup_s": 0.2, "unit": "GB/s",
            "complete": true, "readings": readings,
            "latency": {"samples": 200, "min_us": 20.0, "median_us": 31.5, "p99_us": 90.0},
            "problems": []})
    }

    fn read_text(text: &str) -> ParseOutput {
        crate::outputs::parse_output(text.as_bytes())
    }

    fn cells(parsed: &ParseOutput, testcase: &str) -> Vec<(u32, Vec<Vec<Option<f64>>>)> {
        let ours = parsed.measurements.iter().filter_map(|m| match m {
            Measurement::Matrix(m) if m.testcase.as_deref() == Some(testcase) => {
                Some((m.run, m.cells.clone()))
            }
            _ => None,
        });
        ours.collect()
    }

    #[test]
    fn a_document_is_a_matrix_per_reading_and_one_of_latency() {
        for text in [
            document(&[(0.0118, 0.0117), (0.0119, 0.0116)]).to_string(),
            serde_json::to_string_pretty(&document(&[(0.0118, 0.0117), (0.0119, 0.0116)]))
                .expect("text"),
        ] {
            let parsed = read_text(&text);
            assert_eq!(parsed.tool, Some(Tool::FabricgateTcp));
            assert_eq!(parsed.tool_version.as_deref(), Some("0.1.0"));
            assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
            assert_eq!(
                cells(&parsed, THROUGHPUT),
                [
                    (0, vec![vec![None, Some(0.0118)], vec![Some(0.0117), None]]),
                    (1, vec![vec![None, Some(0.0119)], vec![Some(0.0116), None]]),
                ]
            );
            assert_eq!(
                cells(&parsed, LATENCY),
                [(0, vec![vec![None, Some(31.5)], vec![Some(31.5), None]])]
            );
            assert_eq!(parsed.facts.hosts, ["a", "b"]);
            let parameter = |key: &str| parsed.facts.parameters.get(key).map(String::as_str);
            assert_eq!(parameter("rail"), Some("rail0"));
            assert_eq!(parameter("streams"), Some("4"));
            assert_eq!(parameter("source_device"), Some("eth1"));
            assert_eq!(parameter("destination_device"), None);
            assert_eq!(parameter("retransmits"), Some("8"));
        }
    }

    #[test]
    fn a_second_document_is_reported_and_not_ignored() {
        let one = document(&[(0.5, 0.4)]).to_string();
        let parsed = read_text(&format!("{one}\n{one}\n"));
        assert!(parsed.has_problem(OutputProblemKind::Unrecognised) && !parsed.complete);
        assert_eq!(cells(&parsed, THROUGHPUT).len(), 1);
    }

    #[test]
    fn impossible_retransmit_counts_are_not_kept() {
        let mut value = document(&[(0.5, 0.4)]);
        value["readings"][0]["forward"]["retransmits"] = json!(u64::MAX);
        let parsed = read_text(&value.to_string());
        assert_eq!(parsed.facts.parameters.get("retransmits"), None);
        assert_eq!(cells(&parsed, THROUGHPUT).len(), 1, "the rates stand");
    }

    #[test]
    fn lost_bytes_are_corrupt_and_give_no_number() {
        let mut value = document(&[(0.5, 0.4)]);
        value["readings"][0]["forward"]["received_bytes"] = json!(999);
        let parsed = read_text(&value.to_string());
        assert!(parsed.has_problem(OutputProblemKind::Corrupt));
        assert_eq!(cells(&parsed, THROUGHPUT)[0].1[0][1], None);
        assert_eq!(cells(&parsed, THROUGHPUT)[0].1[1][0], Some(0.4));
    }

    #[test]
    fn problems_are_classified_by_the_probes_text() {
        for (problem, expected) in [
            ("stream 3: pattern differs at byte 7", OutputProblemKind::Corrupt),
            ("connection refused", OutputProblemKind::Error),
            ("interrupted", OutputProblemKind::Truncated),
        ] {
            let mut value = document(&[]);
            (value["problems"], value["complete"]) = (json!([problem]), json!(false));
            let parsed = read_text(&value.to_string());
            assert!(parsed.has_problem(expected) && !parsed.complete, "{problem}");
        }
    }

    #[test]
    fn another_version_is_refused_and_an_empty_one_is_not_complete() {
        let mut value = document(&[(1.0, 1.0)]);
        value["format"] = json!("fabricgate.tcp/2");
        let parsed = read_text(&value.to_string());
        assert!(
            parsed.has_problem(OutputProblemKind::Unrecognised) && parsed.measurements.is_empty()
        );
        value["format"] = json!(FORMAT);
        value["complete"] = json!(false);
        let parsed = read_text(&value.to_string());
        assert!(parsed.has_problem(OutputProblemKind::Truncated) && !parsed.complete);
    }

    proptest! {
        #[test]
        fn a_cut_output_is_truncated_and_every_number_is_in_its_text(
            rates in prop::collection::vec((0.001..90.0f64, 0.001..90.0f64), 1..5),
            at in 0.0..1.0f64,
        ) {
            let text = document(&rates).to_string();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss,
                     clippy::cast_precision_loss, reason = "a place in a short text")]
            let cut = &text[..(text.len() as f64 * at) as usize];
            let parsed = read_text(cut);
            prop_assert!(!parsed.complete && !parsed.problems.is_empty());
            let known: Vec<f64> = rates.iter().flat_map(|(a, b)| [*a, *b]).chain([31.5]).collect();
            for measurement in &parsed.measurements {
                let Measurement::Matrix(matrix) = measurement else { panic!("a matrix") };
                for (_, _, value) in matrix.numbers() {
                    prop_assert!(known.contains(&value), "{value} was never printed");
                }
            }
            let whole = read_text(&text);
            prop_assert_eq!(cells(&whole, THROUGHPUT).len(), rates.len());
            prop_assert!(whole.complete);
        }
    }
}
