//! nvbandwidth's JSON output, `-j` from v0.5 and `--format json` later.
//!
//! Source: `json_output.cpp`, v0.5 to v0.8. The object is printed once, when the process ends, with
//! sorted keys; cells are strings with six significant digits, `sum` has full precision. Unknown
//! keys are ignored.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::header::NvbandwidthHeadItem;
use super::{errors, header, table, testcases};
use crate::outputs::facts_builder::FactsBuilder;
use crate::outputs::lenient_json::JsonDocument;
use crate::outputs::text::OutputLine;
use crate::outputs::{ParserInput, lenient_json, text};
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;

const ROOT: &str = "nvbandwidth";

/// Whether the root key appears anywhere in this text.
pub(super) fn is_named_in(text: &str) -> bool {
    const KEY: &str = "\"nvbandwidth\"";
    text.match_indices(KEY).any(|(at, _)| text[at + KEY.len()..].trim_start().starts_with(':'))
}

/// Reads the JSON outputs in a file; `None` without any.
pub(super) fn parse(input: &ParserInput<'_>) -> Option<ParseOutput> {
    if !is_named_in(input.text) {
        return None;
    }
    let documents: Vec<JsonDocument> =
        candidate_texts(input).iter().flat_map(|text| find_documents(text)).collect();
    if documents.is_empty() {
        return None;
    }
    let mut reader = NvbandwidthJsonReader {
        parsed: ParseOutput::for_tool(Tool::Nvbandwidth),
        roster: FactsBuilder::default(),
        run: 0,
        names: BTreeSet::new(),
        lost: 0,
        measured: false,
    };
    reader.parsed.complete = true;
    for document in &documents {
        reader.read_document(document);
    }
    reader.read_lines_around(&input.lines);
    let mut parsed = reader.parsed;
    parsed.complete &= reader.measured;
    Some(parsed)
}

/// The texts to search: the file, or its remainder without launcher prefixes and standard error,
/// one text per process.
fn candidate_texts<'a>(input: &ParserInput<'a>) -> Vec<Cow<'a, str>> {
    fn joined<'l, 'a: 'l>(lines: impl Iterator<Item = &'l OutputLine<'a>>) -> String {
        lines.filter(|l| !l.stderr).flat_map(|l| [l.text, "\n"]).collect()
    }
    if lenient_json::find_document(input.text, &[ROOT]).is_some() {
        return vec![Cow::Borrowed(input.text)];
    }
    match super::split_streams(&input.lines, |line| line.text.contains("\"nvbandwidth\"")) {
        Some(streams) => {
            streams.into_iter().map(|stream| joined(stream.into_iter()).into()).collect()
        }
        None => vec![joined(input.lines.iter()).into()],
    }
}

/// A text without its non-JSON lines: other ranks and libraries print at any time.
fn drop_noise(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| is_json_line(line.trim())).collect()
}

/// Every document in the text. One that broke off before a complete one counts.
fn find_documents(text: &str) -> Vec<JsonDocument> {
    let mut documents = Vec::new();
    let mut rest = text;
    while let Some(document) = lenient_json::find_document(rest, &[ROOT]) {
        let (before, after) = split_around_line(rest, document.line);
        if document.stopped.is_some() {
            documents.push(without_noise(rest, &document).unwrap_or(document));
            break;
        }
        documents.extend(lenient_json::find_document(before, &[ROOT]));
        documents.push(document);
        rest = after;
    }
    if documents.is_empty() {
        documents.extend(lenient_json::find_document(&drop_noise(text), &[ROOT]));
    }
    documents
}

/// The text before and after a line, counted from 1.
fn split_around_line(text: &str, line: u32) -> (&str, &str) {
    let mut ends = text.match_indices('\n').map(|(at, _)| at + 1);
    let skip = usize::try_from(line.saturating_sub(2)).unwrap_or(usize::MAX);
    let start = if line < 2 { 0 } else { ends.nth(skip).unwrap_or(text.len()) };
    let end = ends.next().unwrap_or(text.len());
    (&text[..start], &text[end..])
}

/// The document again, without the non-JSON lines inside it. `None` if that does not help.
fn without_noise(text: &str, broken: &JsonDocument) -> Option<JsonDocument> {
    if broken.stopped.as_ref().is_none_or(|stop| stop.at_end) {
        return None;
    }
    lenient_json::find_document(&drop_noise(text), &[ROOT])
        .filter(|document| document.stopped.is_none())
}

/// Whether a line can belong to the object: the writer puts every key, every bracket and every
/// short array on its own line.
fn is_json_line(line: &str) -> bool {
    let array = line.strip_prefix('[').map(str::trim_start);
    line.starts_with(['"', '{', '}', ']'])
        || array.is_some_and(|rest| rest.is_empty() || rest.starts_with(['"', ']', '[', '{', '-']))
        || ["true", "false", "null"].iter().any(|word| line.trim_end_matches(',') == *word)
        || text::parse_number(line.trim_end_matches(',')).is_some()
}

struct NvbandwidthJsonReader {
    parsed: ParseOutput,
    roster: FactsBuilder,
    run: u32,
    /// Tests with a matrix in this run.
    names: BTreeSet<String>,
    /// The number of cells missing from matrices so far.
    lost: usize,
    measured: bool,
}

impl NvbandwidthJsonReader {
    fn push_problem(
        &mut self,
        kind: OutputProblemKind,
        test: Option<&str>,
        detail: impl Into<String>,
    ) {
        self.parsed.problems.push(OutputProblem::new(kind, detail).in_test(test));
    }

    fn read_document(&mut self, document: &JsonDocument) {
        let empty = Map::new();
        let root = document.value.get(ROOT).and_then(Value::as_object).unwrap_or(&empty);
        if !self.names.is_empty() {
            self.run += 1;
            self.names.clear();
        }
        self.read_head(root);
        let tests = root.get("testcases").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        // If the text broke off, only the last test can be cut.
        let whole = tests.len() - usize::from(document.stopped.is_some() && !tests.is_empty());
        let mut states: BTreeMap<String, NvbandwidthTestStatus> = BTreeMap::new();
        for (at, test) in tests.iter().enumerate() {
            let name = test.get("name").and_then(Value::as_str).map(clean);
            let state = self.read_test(test, name.as_deref(), whole <= at);
            if let Some(name) = name {
                states.insert(name, state);
            }
        }
        // A failed test appears twice: first as running, then with an error.
        let running: Vec<&str> = states
            .iter()
            .filter(|(_, state)| **state == NvbandwidthTestStatus::Running)
            .map(|(name, _)| name.as_str())
            .collect();
        for name in &running {
            self.push_problem(
                OutputProblemKind::Truncated,
                Some(name),
                "the test started and did not end",
            );
        }
        if states.values().any(|state| {
            matches!(state, NvbandwidthTestStatus::Running | NvbandwidthTestStatus::Failed)
        }) {
            self.parsed.complete = false;
        }
        if let Some(message) = root.get("error").and_then(Value::as_str) {
            let mut problem = errors::failure_from_message(message).problem;
            problem.testcase = running.last().map(|name| (*name).to_owned());
            self.parsed.problems.push(problem);
            self.parsed.complete = false;
        } else if tests.is_empty() && document.stopped.is_none() {
            self.push_problem(OutputProblemKind::Truncated, None, "the object holds no tests");
        }
        if let Some(stop) = &document.stopped {
            let detail = format!("the JSON breaks off: {} was expected", stop.expected);
            let problem =
                OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(stop.line);
            self.parsed.problems.push(problem);
            self.parsed.complete = false;
        }
    }

    fn read_head(&mut self, root: &Map<String, Value>) {
        let text = |key: &str| match root.get(key) {
            Some(Value::String(text)) => Some(clean(text)),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        if self.parsed.tool_version.is_none() {
            self.parsed.tool_version = text("version").and_then(|v| header::parse_version(&v));
        }
        let facts = &mut self.parsed.facts;
        for (place, key) in [
            (&mut facts.cuda_runtime, "CUDA Runtime Version"),
            (&mut facts.cuda_driver, "CUDA Driver Version"),
            (&mut facts.driver, "Driver Version"),
        ] {
            if place.is_none() {
                *place = text(key).filter(|t| !t.is_empty());
            }
        }
        for key in ["git_version", "warning"] {
            header::keep_parameter(facts, key, &text(key).unwrap_or_default());
        }
        if let Some(host) = text("Hostname").filter(|host| errors::is_host(host)) {
            self.roster.add_host(facts, &host);
        }
        let listed = root.get("GPU Device list").and_then(Value::as_array);
        for entry in listed.into_iter().flatten().filter_map(Value::as_str) {
            match header::parse_listed_device(entry) {
                Some(NvbandwidthHeadItem::Device(device)) => self.roster.add_device(facts, device),
                Some(NvbandwidthHeadItem::Rank(rank)) => {
                    let moved = header::add_rank(&mut self.roster, facts, &rank);
                    self.parsed.problems.extend(moved);
                }
                _ => {}
            }
        }
        let shared =
            root.get("warning").and_then(Value::as_str).and_then(errors::parse_oversubscription);
        self.parsed.problems.extend(shared);
    }

    /// One entry. `is_cut`: the text may have broken off inside it.
    fn read_test(
        &mut self,
        test: &Value,
        name: Option<&str>,
        is_cut: bool,
    ) -> NvbandwidthTestStatus {
        let Some(name) = name else {
            if is_cut {
                self.push_problem(OutputProblemKind::Truncated, None, "the last test is cut off");
            } else {
                self.push_problem(OutputProblemKind::Unrecognised, None, "a test without a name");
            }
            return NvbandwidthTestStatus::Other;
        };
        let name = clean(name);
        let status = test.get("status").and_then(Value::as_str).unwrap_or("");
        let matrix = test.get("bandwidth_matrix").and_then(Value::as_array);
        if let Some(message) = test.get("error").and_then(Value::as_str) {
            let problem = errors::failure_from_message(message).problem.in_test(Some(&name));
            self.parsed.problems.push(problem);
        }
        match status.to_ascii_lowercase().as_str() {
            "waived" => {
                let detail = "the tool reports that this test does not apply here";
                self.push_problem(OutputProblemKind::Waived, Some(&name), detail);
                return NvbandwidthTestStatus::Other;
            }
            "running" if matrix.is_none() => return NvbandwidthTestStatus::Running,
            // `ERROR` marks a name without a test; no test had started.
            "error" | "not found" | "failed" => {
                let detail = format!("status {status}; the JSON gives no reason");
                self.push_problem(OutputProblemKind::Error, Some(&name), detail);
                let never_ran = status == "ERROR" || status == "Not Found";
                return if never_ran {
                    NvbandwidthTestStatus::Other
                } else {
                    NvbandwidthTestStatus::Failed
                };
            }
            "passed" | "running" => {}
            _ if is_cut => {
                self.push_problem(
                    OutputProblemKind::Truncated,
                    Some(&name),
                    "this test is cut off",
                );
                return NvbandwidthTestStatus::Other;
            }
            _ => {
                let detail = format!("unknown status {:?}", clean(status));
                self.push_problem(OutputProblemKind::Unrecognised, Some(&name), detail);
            }
        }
        let Some(matrix) = matrix else {
            self.push_problem(OutputProblemKind::Truncated, Some(&name), "the matrix is missing");
            self.parsed.complete = false;
            return NvbandwidthTestStatus::Other;
        };
        // The sum is the last key: without it, the matrix may also be truncated.
        if is_cut && test.get("sum").is_none() {
            self.push_problem(OutputProblemKind::Truncated, Some(&name), "this test is cut off");
            return NvbandwidthTestStatus::Other;
        }
        self.read_matrices(&name, test, matrix);
        NvbandwidthTestStatus::Passed
    }

    /// The matrix of a test, or the three that bidirectional tests append to each other since v0.6;
    /// `sum` belongs to the last one.
    fn read_matrices(&mut self, name: &str, test: &Value, matrix: &[Value]) {
        let title = test.get("bandwidth_description").and_then(Value::as_str);
        let sum = test.get("sum").and_then(Value::as_f64);
        if sum.is_none() {
            self.push_problem(OutputProblemKind::Truncated, Some(name), "the sum is missing");
            self.parsed.complete = false;
        }
        let width = matrix.iter().filter_map(Value::as_array).map(Vec::len).max().unwrap_or(0);
        let length = |row: &Value| row.as_array().map_or(0, Vec::len);
        let missing: usize = matrix.iter().map(|row| width - length(row)).sum();
        if 0 < missing {
            let detail = format!("{missing} cells of this matrix are missing");
            self.push_problem(OutputProblemKind::Truncated, Some(name), detail);
            self.parsed.complete = false;
        }
        self.lost += missing;
        if table::MOST_LOST < self.lost {
            return;
        }
        let NvbandwidthJsonGrid { mut cells, unreadable } = parse_grid(matrix, width);
        if 0 < unreadable {
            let detail = format!("{unreadable} cells cannot be read");
            self.push_problem(OutputProblemKind::Unrecognised, Some(name), detail);
            self.parsed.complete = false;
        }
        if !self.names.insert(name.to_owned()) {
            self.run += 1;
            self.names.clear();
            self.names.insert(name.to_owned());
        }
        if testcases::has_parts(name) && cells.len() != width && cells.len() != 3 * width {
            let detail =
                format!("{} rows of {width} cells are neither one matrix nor three", cells.len());
            self.push_problem(OutputProblemKind::Unrecognised, Some(name), detail);
            self.parsed.complete = false;
            return;
        }
        let is_whole = missing == 0 && unreadable == 0;
        let is_split = testcases::has_parts(name) && 0 < width && cells.len() == 3 * width;
        if !is_split {
            self.push_matrix(name.to_owned(), title, cells, sum, is_whole);
            return;
        }
        for (part, suffix) in testcases::part_suffixes(name).into_iter().enumerate() {
            let rest = cells.split_off(width.min(cells.len()));
            let sum = sum.filter(|_| part == 2);
            self.push_matrix(format!("{name}{suffix}"), title, cells, sum, is_whole);
            cells = rest;
        }
    }

    fn push_matrix(
        &mut self,
        name: String,
        title: Option<&str>,
        mut cells: Vec<Vec<Option<f64>>>,
        sum: Option<f64>,
        is_whole: bool,
    ) {
        if testcases::is_pairwise(&name) {
            table::clear_unmeasured_diagonal(cells.iter_mut());
        }
        if let Some(sum) = sum
            && is_whole
            && let Some(computed) = table::sum_deviation(
                cells.iter().flatten().flatten().copied(),
                sum,
                significant_error,
            )
        {
            let detail = format!("the cells add up to {computed:.2}, sum is {sum:.2}");
            self.push_problem(OutputProblemKind::Inconsistent, Some(&name), detail);
        }
        let labels = |count: usize| (0..count).map(|i| i.to_string()).collect();
        let width = cells.first().map_or(0, Vec::len);
        self.measured = true;
        self.parsed.measurements.push(Measurement::Matrix(MeasurementMatrix {
            run: self.run,
            unit: testcases::testcase_unit(Some(&name), title),
            testcase: Some(name),
            rows: labels(cells.len()),
            cols: labels(width),
            cells,
            sum,
            coefficient_of_variation: None,
        }));
    }

    /// Failures that other programs report around the object.
    fn read_lines_around(&mut self, lines: &[OutputLine<'_>]) {
        let outside = lines.iter().filter(|l| !l.text.trim_start().starts_with(['"', '{', '}']));
        for failure in outside.filter_map(errors::parse_failure) {
            self.parsed.problems.push(failure.problem);
            self.parsed.complete = false;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvbandwidthTestStatus {
    Passed,
    Running,
    Failed,
    Other,
}

/// The maximum rounding error of a cell: six significant digits, the default of a C++ stream.
fn significant_error(value: f64) -> f64 {
    5e-6 * value.abs()
}

struct NvbandwidthJsonGrid {
    cells: Vec<Vec<Option<f64>>>,
    unreadable: usize,
}

fn parse_grid(matrix: &[Value], width: usize) -> NvbandwidthJsonGrid {
    let mut grid = NvbandwidthJsonGrid { cells: Vec::with_capacity(matrix.len()), unreadable: 0 };
    for row in matrix {
        let row = row.as_array().map_or(&[][..], Vec::as_slice);
        let mut cells: Vec<Option<f64>> = Vec::with_capacity(width);
        for cell in row {
            let value = match cell {
                Value::String(text) if text.trim() == "N/A" => {
                    cells.push(None);
                    continue;
                }
                Value::String(text) => text::parse_number(text.trim()),
                other => other.as_f64(),
            };
            grid.unreadable += usize::from(value.is_none());
            cells.push(value);
        }
        cells.resize(width, None);
        grid.cells.push(cells);
    }
    grid
}
