//! The file that `-J` writes.
//!
//! One object per run, on one line; a killed run leaves a broken one. Its `env` holds the caller's
//! whole environment, secrets included: that key is never read, and its content never leaves the
//! file.

use serde_json::{Map, Value};

use super::collective::RankCount;
use super::output_builder::NcclOutputBuilder;
use super::rounded_number::RoundedNumber;
use super::run::{DataCheck, NcclFooter, NcclRow, NcclRowHalf, NcclRun};
use super::{collective, debug_log};
use crate::outputs::lenient_json;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text;
use model::tool_facts::ToolRank;

/// Decimals of every number in the file (`%lf`).
const DECIMALS: i32 = 6;

/// The maximum number of passes over the text while looking for objects.
const MOST_PASSES: usize = 8;

/// Whether a text may hold such a file. Cheap: parses no JSON.
pub(super) fn is_likely(text: &str) -> bool {
    text.contains('{')
        && (text.contains("\"bus_bw\"")
            || (text.contains("\"nccl_version\"") && text.contains("\"start_time\"")))
}

pub(super) fn read_runs(text: &str) -> NcclOutputBuilder {
    let mut out = NcclOutputBuilder::default();
    let mut at = 0;
    let mut budget = text.len().saturating_mul(MOST_PASSES);
    while let Some(start) = text[at..].find('{').map(|i| at + i) {
        let end = object_end(text, start);
        if budget < end - start {
            break;
        }
        budget -= end - start;
        let found = lenient_json::find_document_where(&text[start..end], is_document);
        let Some(document) = found else {
            at = start + 1;
            continue;
        };
        let line = line_number(text, start) + document.line - 1;
        if let Value::Object(map) = &document.value {
            read_run(map, line, document.stopped.is_some(), document.not_finite, &mut out);
        }
        at = end;
    }
    out
}

fn is_document(map: &Map<String, Value>) -> bool {
    let results = || map.get("results").is_some_and(Value::is_array);
    let config = || map.get("config").is_some_and(|c| c.get("nthreads").is_some());
    let head = || ["start_time", "args", "env"].iter().all(|key| map.contains_key(*key));
    map.contains_key("nccl_version")
        || head()
        || config()
        || (map.contains_key("out_of_bounds") && results())
}

/// The end of an object: its closing brace, the start of the next file (a killed run has no closing
/// brace), or the end of the text.
fn object_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0usize, start);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at),
            b'{' if start < at && begins_document(&text[at..]) => return at,
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    // An unclosed string may hide the next file; its version key appears only outside of strings,
    // since quotes inside of them are escaped.
    let next = text[start + 1..].match_indices("{\"version\":").next();
    next.map_or(text.len(), |(at, _)| start + 1 + at)
}

fn begins_document(text: &str) -> bool {
    text[1..]
        .trim_start()
        .strip_prefix("\"version\"")
        .is_some_and(|r| r.trim_start().starts_with(':'))
}

/// The offset of a string's closing quote, or the end.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'"' => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

fn line_number(text: &str, at: usize) -> u32 {
    let lines = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
    u32::try_from(lines).unwrap_or(u32::MAX - 1).saturating_add(1)
}

fn read_run(
    map: &Map<String, Value>,
    line: u32,
    stopped: bool,
    not_finite: bool,
    out: &mut NcclOutputBuilder,
) {
    let mut run = NcclRun { line, redop_column: true, modern: true, ..NcclRun::default() };
    let version = map.get("version").and_then(Value::as_u64);
    if let Some(version) = version {
        let version = version.to_string();
        out.facts.parameters.entry("json_version".to_owned()).or_insert(version);
    }
    if let Some(code) = map.get("nccl_version").and_then(Value::as_u64) {
        debug_log::note_version_code(code, &mut out.facts);
    }
    run.name = map
        .get("args")
        .and_then(|args| args.get(0))
        .and_then(Value::as_str)
        .and_then(collective::find_program)
        .map(|collective| collective.name.to_owned());
    if let Some(config) = map.get("config") {
        read_config(config, &mut run, out);
    }
    let rows = map.get("results").and_then(Value::as_array);
    for value in rows.into_iter().flatten() {
        if let Some(row) = parse_row(value, line, &mut run) {
            run.rows.push(row);
        } else {
            let detail = "a result whose size or bandwidths are missing";
            run.problems
                .push(OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(line));
        }
    }
    if not_finite || run.halves().any(|(.., half)| !half.is_readable()) {
        let detail = "a time or bandwidth is not a finite number";
        run.problems
            .push(OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(line));
    }
    run.out_of_bounds = map.get("out_of_bounds").map(|v| parse_footer(v, &["count"], 0, line));
    // Releases before 2.17.9 misspell the key in both places.
    let average = ["average_bus_bandwidth", "average_bus_bandwidith"];
    run.average = average
        .iter()
        .find_map(|key| map.get(*key))
        .map(|v| parse_footer(v, &["bandwidth", "bandwidith"], DECIMALS, line));
    let errors = map.get("errors").and_then(Value::as_array);
    for error in errors.into_iter().flatten().filter_map(Value::as_str) {
        let error = text::clean(error);
        if !error.is_empty() {
            run.problems.push(OutputProblem::new(OutputProblemKind::Error, error).at_line(line));
        }
    }
    let ended =
        map.contains_key("end_time") && run.average.is_some() && run.out_of_bounds.is_some();
    if stopped || !ended {
        let detail = match run.rows.last() {
            Some(row) => format!("the file stops after {} bytes, before its end", row.bytes),
            None => "the file stops before its first result".to_owned(),
        };
        run.unfinished =
            Some(OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(line));
    }
    out.runs.push(run);
}

/// The names of these parameters in the text output.
const PARAMETER_NAMES: [(&str, &str); 12] = [
    ("nthreads", "nThread"),
    ("ngpus", "nGpus"),
    ("minimum_bytes", "minBytes"),
    ("maximum_bytes", "maxBytes"),
    ("warmup_iters", "warmup iters"),
    ("iterations", "iters"),
    ("aggregated_iterations", "agg iters"),
    ("validation", "validation"),
    ("graph", "graph"),
    ("per_iter_timing", "per_iter_timing"),
    ("blocking_collectives", "blocking_collectives"),
    ("parallel_init", "parallel_init"),
];

fn read_config(config: &Value, run: &mut NcclRun, out: &mut NcclOutputBuilder) {
    let mut named = std::collections::BTreeMap::new();
    let plain = |value: &Value| match value {
        Value::Number(n) => Some(n.to_string()),
        Value::String(s) => Some(text::clean(s)),
        _ => None,
    };
    for (key, name) in PARAMETER_NAMES {
        if let Some(value) = config.get(key).and_then(plain) {
            named.insert(name.to_owned(), value);
        }
    }
    for (key, kind) in [("step_factor", "factor"), ("step_bytes", "bytes")] {
        if let Some(step) = config.get(key).and_then(Value::as_u64) {
            named.insert("step".to_owned(), format!("{step}({kind})"));
        }
    }
    out.parameters.push((out.runs.len(), named));
    let number = |key: &str| config.get(key).and_then(Value::as_u64);
    run.validation = number("validation").map(|v| v != 0);
    let devices = config.get("devices").and_then(Value::as_array);
    for rank in devices.into_iter().flatten().filter_map(parse_rank) {
        out.note_rank(&rank);
        run.ranks.push(rank);
    }
    // One entry per process, independent of its number of threads and GPUs.
    let group = run.ranks.first().and_then(|r| r.group);
    let processes = run.ranks.iter().filter(|r| r.group == group).count() as u64;
    let each = number("nthreads").zip(number("ngpus")).and_then(|(t, g)| t.checked_mul(g));
    let count = each.and_then(|each| u32::try_from(each.checked_mul(processes)?).ok());
    if let Some(count) = count.filter(|count| 0 < *count) {
        run.rank_count = RankCount { exact: Some(count), at_least: count };
    }
}

fn parse_rank(value: &Value) -> Option<ToolRank> {
    let number =
        |key: &str| value.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let string = |key: &str| {
        value.get(key).and_then(Value::as_str).map(text::clean).filter(|s| !s.is_empty())
    };
    Some(ToolRank {
        rank: number("rank")?,
        host: string("hostname")?,
        device: number("device")?,
        name: string("device_info"),
        bus_id: string("device_hex"),
        group: number("group"),
    })
}

fn parse_row(value: &Value, line: u32, run: &mut NcclRun) -> Option<NcclRow> {
    let string = |key: &str| value.get(key).and_then(Value::as_str).map(str::trim);
    let iterations = value.get("actual_iterations").and_then(Value::as_u64);
    let mut row = NcclRow {
        line,
        bytes: value.get("size")?.as_u64()?,
        count: value.get("count").and_then(Value::as_u64).unwrap_or(0),
        type_name: string("type").unwrap_or_default().to_owned(),
        redop: string("redop").filter(|name| !name.is_empty()).map(text::clean),
        root: string("root").and_then(|root| root.parse().ok()),
        ..NcclRow::default()
    };
    for (i, key) in ["out_of_place", "in_place"].iter().enumerate() {
        let Some(half) = value.get(*key).filter(|half| half.is_object()) else { continue };
        run.cpu_time |= half.get("cpu_time").is_some();
        let statistics = value.get(format!("{key}_per_iter"));
        row.halves[i] = Some(NcclRowHalf { iterations, ..parse_half(half, statistics) });
    }
    row.halves.iter().any(Option::is_some).then_some(row)
}

fn parse_half(value: &Value, statistics: Option<&Value>) -> NcclRowHalf {
    let number = |key: &str| value.get(key).and_then(Value::as_f64);
    let printed = |key: &str| number(key).map(|v| RoundedNumber::with_decimals(v, DECIMALS));
    let statistic = |key: &str| statistics.and_then(|s| s.get(key)).and_then(Value::as_f64);
    let check = match value.get("nwrong") {
        Some(Value::Null) => DataCheck::NotDone,
        Some(wrong) => wrong.as_f64().map_or(DataCheck::Unreadable, DataCheck::Wrong),
        None => DataCheck::Absent,
    };
    NcclRowHalf {
        time: printed("time").or_else(|| printed("cpu_time")),
        algbw: printed("alg_bw"),
        busbw: printed("bus_bw"),
        check,
        is_untimed: false,
        iterations: None,
        min_us: statistic("min_us"),
        max_us: statistic("max_us"),
        p99_us: statistic("p99_us"),
    }
}

fn parse_footer(value: &Value, keys: &[&str], decimals: i32, line: u32) -> NcclFooter {
    let number = keys.iter().find_map(|key| value.get(*key)).and_then(Value::as_f64);
    let okay = match value.get("okay") {
        Some(Value::String(word)) if word == "true" => Some(true),
        Some(Value::String(word)) if word == "false" => Some(false),
        Some(Value::Bool(okay)) => Some(*okay),
        _ => None,
    };
    NcclFooter {
        value: number.map(|n| RoundedNumber::with_decimals(n, decimals)),
        okay,
        line,
        at_end: false,
    }
}
