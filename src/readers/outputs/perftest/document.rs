//! The file of `--out_json`: one test, the result of its last size.
//!
//! Until 2022 the strings were unquoted and the commas wrong, so the file was not valid JSON; it
//! has always had one `key: value` per line.

use std::collections::BTreeMap;

use serde_json::Value;

use super::banner::{PerftestBanner, PerftestQuantity};
use super::{banner, text};
use crate::outputs::lenient_json;
use model::measurement::{Measurement, MeasurementScalar, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::unit::Unit;

/// The number of leading bytes to search for its first fields.
const HEAD: usize = 2_000;

/// Whether this text is such a file.
pub(super) fn is_document(text: &str) -> bool {
    let text = text.trim_start();
    if !text.starts_with('{') {
        return false;
    }
    let end = text.char_indices().nth(HEAD).map_or(text.len(), |(at, _)| at);
    let head = &text[..end];
    let names = head.match_indices("test").map(|(at, word)| {
        let value = head[at + word.len()..].trim_start_matches(['"', ' ', ':']);
        value.split(['"', ',', '\n']).next().unwrap_or("")
    });
    head.contains("test_info")
        && names.into_iter().any(|name| PerftestBanner::parse(name).is_some())
}

pub(super) fn parse(text: &str) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::Perftest);
    let (fields, whole) = read_fields(text);
    let banner = fields.get("test").and_then(|name| PerftestBanner::parse(name)).map(|banner| {
        let raw = fields.get("Connection_type").is_some_and(|kind| kind == "RawEth");
        banner.with_raw_ethernet(raw)
    });
    for (key, value) in &fields {
        if let Some(key) = banner::option_key(key) {
            parsed.facts.parameters.insert(key.to_owned(), clean(value));
        }
    }
    let value = |key: &str| fields.get(key).and_then(|word| text::parse_number(word));
    let count = |key: &str| fields.get(key).and_then(|word| text::parse_integer(word));
    let latency = banner.as_ref().and_then(PerftestBanner::quantity)
        == Some(PerftestQuantity::Latency)
        || ["t_avg", "t_min", "avg_lat"].iter().any(|key| fields.contains_key(*key));
    let seen = if latency { PerftestQuantity::Latency } else { PerftestQuantity::Bandwidth };
    let testcase = banner.map(|banner| banner.testcase(Some(seen)));
    // The file does not state whether bandwidth is in MiB/s or in Gb/s.
    let unit = latency.then_some(Unit::Microseconds);
    if let Some(bytes) = count("MsgSize") {
        let point = SeriesPoint {
            bytes,
            iterations: count("n_iterations"),
            peak: value("BW_peak"),
            algbw: value("BW_average"),
            msgrate: value("MsgRate"),
            time_us: value("t_avg"),
            min_us: value("t_min"),
            max_us: value("t_max"),
            p99_us: value("percentile_99"),
            ..SeriesPoint::default()
        };
        parsed.measurements.push(Measurement::Series(MeasurementSeries {
            run: 0,
            testcase,
            unit,
            points: vec![point],
            average_busbw: None,
        }));
    } else if let Some(value) = value("bw_avg").or(value("avg_lat")).or(value("t_avg")) {
        // `--output` keeps one number and leaves the size out.
        let scalar = MeasurementScalar { run: 0, testcase, unit, value };
        parsed.measurements.push(Measurement::Scalar(scalar));
    }
    if !whole || parsed.measurements.is_empty() {
        let detail = if whole { "the file holds no result" } else { "the file stops early" };
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, detail));
    }
    parsed.complete = parsed.problems.is_empty();
    parsed
}

/// All fields of the two blocks by name, and whether the file is complete.
fn read_fields(text: &str) -> (BTreeMap<String, String>, bool) {
    if let Some(document) = lenient_json::find_document(text, &["test_info"])
        && document.stopped.is_none()
    {
        let mut fields = BTreeMap::new();
        for block in ["test_info", "results"] {
            let Some(block) = document.value.get(block).and_then(Value::as_object) else {
                continue;
            };
            for (key, value) in block {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                fields.insert(key.clone(), value);
            }
        }
        return (fields, true);
    }
    let mut fields = BTreeMap::new();
    let mut depth = 0usize;
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        depth = depth + line.matches('{').count() - line.matches('}').count().min(depth);
        let (key, value) = split_field(line);
        // A value on the last line can have lost digits.
        if !key.is_empty() && !value.is_empty() && value != "{" && at + 1 < lines.len() {
            fields.entry(key).or_insert(value);
        }
    }
    (fields, depth == 0)
}

/// `"key": "value",` or `key: value,` without quotes and comma.
fn split_field(line: &str) -> (String, String) {
    let (key, value) = line.split_once(':').unwrap_or(("", ""));
    let bare = |text: &str| text.trim().trim_end_matches(',').trim().trim_matches('"').to_owned();
    (bare(key), bare(value))
}
