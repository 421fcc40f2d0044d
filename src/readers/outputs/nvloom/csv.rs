//! The CSV of `csv_pattern`: one copy or latency per line, with its result last.
//!
//! Lines with one `measurement_id` ran concurrently. Lines of one kind form a matrix named
//! `csv_pattern_ID_COMMENT` with one column, with a row for each line labelled
//! `source->destination`, as in the tool's bisect tests; for a latency these are the rank whose
//! memory is read and the rank that reads. A line without a result is input, not a result.

use std::collections::BTreeMap;

use super::text;
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput};
use model::text::clean;
use model::unit::Unit;

/// Fields of an input line, and of one with its result.
const INPUT_FIELDS: usize = 11;
const FIELDS: usize = 12;

/// Whether this is the header that the tool writes.
pub(super) fn is_header(text: &str) -> bool {
    let mut fields = text.split(',').map(str::trim);
    fields.next() == Some("measurement_id") && fields.next() == Some("bandwidth/latency")
}

#[derive(Debug)]
struct NvloomCsvEntry {
    /// The fields that must match for two lines to share a matrix.
    group: Vec<String>,
    name: String,
    unit: Unit,
    label: String,
    value: Option<f64>,
}

#[derive(Debug)]
pub(super) struct NvloomCsvRows {
    line: u32,
    entries: Vec<NvloomCsvEntry>,
    without_result: usize,
    damaged: usize,
    ended: bool,
}

impl NvloomCsvRows {
    pub(super) fn new(line: u32) -> Self {
        Self { line, entries: Vec::new(), without_result: 0, damaged: 0, ended: false }
    }

    /// Adds a line if it is a row. `cut`: the text ends in it.
    pub(super) fn add_line(&mut self, text: &str, cut: bool) -> bool {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let known = fields.get(1).is_some_and(|kind| {
            kind.eq_ignore_ascii_case("bandwidth") || kind.eq_ignore_ascii_case("latency")
        });
        if self.ended || !known {
            self.ended |= text.is_empty();
            return false;
        }
        if fields.len() == INPUT_FIELDS
            || (fields.len() == FIELDS && (cut || fields[11].is_empty()))
        {
            self.without_result += 1;
            return true;
        }
        let ids =
            [fields[0], fields.get(2).copied().unwrap_or(""), fields.get(3).copied().unwrap_or("")];
        if fields.len() != FIELDS || ids.iter().any(|id| text::parse_integer(id).is_none()) {
            self.damaged += 1;
            return true;
        }
        let value = text::parse_number(fields[11]);
        if value.is_none() && !matches!(fields[11], "inf" | "nan" | "-nan") {
            self.damaged += 1;
        }
        let latency = fields[1].eq_ignore_ascii_case("latency");
        let mut group: Vec<String> = fields[4..11].iter().map(|f| (*f).to_owned()).collect();
        group.extend([fields[0].to_owned(), fields[1].to_ascii_lowercase()]);
        let comment = if fields[10].is_empty() { "" } else { "_" };
        self.entries.push(NvloomCsvEntry {
            group,
            name: clean(&format!("csv_pattern_{}{comment}{}", fields[0], fields[10])),
            unit: if latency { Unit::Nanoseconds } else { Unit::GigabytesPerSecond },
            label: format!("{}->{}", fields[2], fields[3]),
            value,
        });
        true
    }

    pub(super) fn finish(self, runs: &mut BTreeMap<String, u32>, parsed: &mut ParseOutput) {
        let mut problem = |kind, detail: String| {
            let problem = OutputProblem::new(kind, detail).at_line(self.line);
            parsed.problems.push(problem.in_test(Some("csv_pattern")));
        };
        if 0 < self.without_result || self.entries.is_empty() {
            let detail = format!("{} lines have no result", self.without_result);
            problem(OutputProblemKind::Truncated, detail);
        }
        if 0 < self.damaged {
            problem(
                OutputProblemKind::Unrecognised,
                format!("{} lines cannot be read", self.damaged),
            );
        }
        let mut entries = self.entries.into_iter().peekable();
        while let Some(first) = entries.next() {
            let mut rows = vec![first.label];
            let mut cells = vec![vec![first.value]];
            while let Some(next) = entries.next_if(|next| next.group == first.group) {
                rows.push(next.label);
                cells.push(vec![next.value]);
            }
            let run = runs.entry(first.name.clone()).or_default();
            parsed.measurements.push(Measurement::Matrix(MeasurementMatrix {
                run: *run,
                testcase: Some(first.name),
                unit: Some(first.unit),
                rows,
                cols: vec!["result".to_owned()],
                cells,
                sum: None,
                coefficient_of_variation: None,
            }));
            *run += 1;
        }
    }
}
