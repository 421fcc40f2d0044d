//! fabricgate's copy-engine probe, `fabricgate node probe copy`: one JSON document
//! (`fabricgate.copy/1`) per node and line.
//!
//! Test cases have nvbandwidth's names and semantics: the row issues the copy. If several nodes
//! measured together, their documents are parts of one matrix per test and reading, with ranks as
//! labels. A document has the rows of its own node's ranks; a cell that two documents claim belongs
//! to neither. This module knows no expectations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::probe_documents::{ProbeDocument, ProbeDocumentReader};
use super::{CERTAIN, ParserConfidence, ParserInput};
use model::copy::COPY_FORMAT;
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{OutputProblemKind, ParseOutput, Tool};
use model::text;
use model::unit::Unit;

/// The common prefix of all versions of the format.
const FAMILY: &str = "fabricgate.copy/";

/// More readings than this cannot come from a probe.
const MOST_READINGS: usize = 10_000;

/// More cells than this cannot come from a probe: the largest domain has 576 GPUs.
const MOST_CELLS: usize = 2_000_000;

/// The same for all tests together: labels without numbers take few bytes and expand to many cells.
const MOST_CELLS_OF_ALL: usize = 4 * MOST_CELLS;

/// Whether this probe wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    if input.text.contains("\"fabricgate.copy/") { CERTAIN } else { 0 }
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let parsed = ParseOutput::for_tool(Tool::FabricgateCopy);
    let (mut reader, pages) = ProbeDocumentReader::open(input, FAMILY, COPY_FORMAT, parsed);
    let mut tests = CopyTestSet::default();
    for page in &pages {
        for key in ["buffer_bytes", "copies", "warmup"] {
            reader.keep_fact(key, page);
        }
        if page.list("tests").is_empty() {
            continue;
        }
        if !reader.identifies_ranks(page, pages.len() == 1) {
            let what = format!("{}: its numbers name no node", page.node_name());
            reader.note_unexpected(OutputProblemKind::Unrecognised, what, Some(page));
            continue;
        }
        let mut own = BTreeSet::new();
        for test in page.list("tests") {
            add_test(&mut reader, page, test, &mut own, &mut tests);
        }
    }
    let mut spare = MOST_CELLS_OF_ALL;
    for test in tests.all {
        test.push_matrices(&mut reader, &mut spare);
    }
    reader.close(&pages)
}

struct MergedCopyTest {
    testcase: String,
    unit: Unit,
    rows: LabelIndex,
    cols: LabelIndex,
    /// Reading, then row and column by index; `None` if two documents claim the cell.
    cells: Vec<BTreeMap<(usize, usize), Option<f64>>>,
}

/// Tests in the order first seen, by index.
#[derive(Default)]
struct CopyTestSet {
    all: Vec<MergedCopyTest>,
    positions: BTreeMap<String, usize>,
}

impl CopyTestSet {
    /// The test of this name: the known one, or a new one in this unit.
    fn get_or_insert(&mut self, name: &str, unit: Unit) -> &mut MergedCopyTest {
        let at = *self.positions.entry(name.to_owned()).or_insert_with(|| {
            let (rows, cols) = Default::default();
            let testcase = name.to_owned();
            self.all.push(MergedCopyTest { testcase, unit, rows, cols, cells: Vec::new() });
            self.all.len() - 1
        });
        &mut self.all[at]
    }
}

/// Labels in the order first seen, with their index.
#[derive(Default)]
struct LabelIndex {
    names: Vec<String>,
    positions: BTreeMap<String, usize>,
}

impl LabelIndex {
    fn position(&mut self, name: &str) -> usize {
        *self.positions.entry(name.to_owned()).or_insert_with(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    /// Indices in the order of the ranks that the labels begin with.
    fn rank_order(&self) -> Vec<usize> {
        let number = |name: &str| name.split("->").next().and_then(|n| n.parse::<u32>().ok());
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        if self.names.iter().all(|name| number(name).is_some()) {
            order.sort_by_key(|place| number(&self.names[*place]));
        }
        order
    }
}

/// Adds one test of one document.
fn add_test(
    reader: &mut ProbeDocumentReader,
    page: &ProbeDocument,
    test: &Value,
    own: &mut BTreeSet<String>,
    tests: &mut CopyTestSet,
) {
    let name = test["testcase"].as_str().map(text::clean).filter(|name| !name.is_empty());
    let words = |key: &str| -> Option<Vec<String>> {
        let labels = test[key].as_array()?.iter();
        labels.map(|label| label.as_str().map(text::clean).filter(|l| !l.is_empty())).collect()
    };
    let (Some(name), Some(rows), Some(cols)) = (name, words("rows"), words("cols")) else {
        if page.whole {
            let what = "a test without its name, rows or columns".to_owned();
            reader.note_unexpected(OutputProblemKind::Unrecognised, what, Some(page));
        }
        return;
    };
    let refuse = |reader: &mut ProbeDocumentReader, kind, what: String| {
        let what = format!("{}: {what}", page.node_name());
        reader.note_unexpected_in_test(&name, kind, what, page);
    };
    let unit = match test["unit"].as_str() {
        Some("GB/s") => Unit::GigabytesPerSecond,
        Some("us") => Unit::Microseconds,
        None if !page.whole => return,
        other => {
            let what =
                other.map_or("no unit".to_owned(), |unit| format!("unit {}", text::clean(unit)));
            return refuse(reader, OutputProblemKind::Unrecognised, what);
        }
    };
    if !own.insert(name.clone()) {
        return refuse(reader, OutputProblemKind::Inconsistent, "it appears twice".to_owned());
    }
    let doubled = |labels: &[String]| labels.iter().collect::<BTreeSet<_>>().len() < labels.len();
    if doubled(&rows) || doubled(&cols) {
        return refuse(
            reader,
            OutputProblemKind::Inconsistent,
            "a row or a column appears twice".to_owned(),
        );
    }
    let unknown: Vec<&String> =
        rows.iter().chain(&cols).filter(|label| !reader.is_rank_label(label)).collect();
    if let Some(label) = unknown.first() {
        let what = format!("{label} is not a participating rank");
        return refuse(reader, OutputProblemKind::Inconsistent, what);
    }
    if let Some(label) = rows.iter().find(|label| !reader.is_own_row(page, label)) {
        let what = format!("row {label} belongs to another node");
        return refuse(reader, OutputProblemKind::Inconsistent, what);
    }
    let merged = tests.get_or_insert(&name, unit);
    if merged.unit != unit {
        let what = format!("it is in {unit}, and in {} on another node", merged.unit);
        return refuse(reader, OutputProblemKind::Inconsistent, what);
    }
    let more = |labels: &LabelIndex, new: &[String]| {
        labels.names.len() + new.iter().filter(|name| !labels.positions.contains_key(*name)).count()
    };
    if MOST_CELLS < more(&merged.rows, &rows).saturating_mul(more(&merged.cols, &cols)) {
        return refuse(
            reader,
            OutputProblemKind::Unrecognised,
            "more cells than any fabric has".to_owned(),
        );
    }
    let rows: Vec<usize> = rows.iter().map(|label| merged.rows.position(label)).collect();
    let cols: Vec<usize> = cols.iter().map(|label| merged.cols.position(label)).collect();
    let readings = test["readings"].as_array().map_or(&[][..], Vec::as_slice);
    for (number, reading) in readings.iter().take(MOST_READINGS).enumerate() {
        let table = reading.as_array().map_or(&[][..], Vec::as_slice);
        let wide = |row: &Value| row.as_array().is_some_and(|cells| cells.len() == cols.len());
        if page.whole && !(table.len() == rows.len() && table.iter().all(wide)) {
            let what = format!("reading {number} does not match its rows and columns");
            refuse(reader, OutputProblemKind::Unrecognised, what);
            continue;
        }
        while merged.cells.len() <= number {
            merged.cells.push(BTreeMap::new());
        }
        for (row, cells) in rows.iter().zip(table) {
            for (col, cell) in cols.iter().zip(cells.as_array().into_iter().flatten()) {
                if cell.is_null() {
                    continue;
                }
                let value = cell.as_f64().filter(|value| value.is_finite() && 0.0 < *value);
                let Some(value) = value else {
                    let what =
                        format!("{} in reading {number} is not a rate or time", clean_value(cell));
                    refuse(reader, OutputProblemKind::Unrecognised, what);
                    continue;
                };
                let known = merged.cells[number].insert((*row, *col), Some(value));
                if known.is_some() {
                    merged.cells[number].insert((*row, *col), None);
                    let (row, col) = (&merged.rows.names[*row], &merged.cols.names[*col]);
                    let what = format!("another document claims row {row}, column {col} too");
                    refuse(reader, OutputProblemKind::Inconsistent, what);
                }
            }
        }
    }
}

fn clean_value(value: &Value) -> String {
    text::clean(&value.to_string())
}

impl MergedCopyTest {
    /// Enters one matrix per reading.
    fn push_matrices(self, reader: &mut ProbeDocumentReader, spare: &mut usize) {
        let (rows, cols) = (self.rows.rank_order(), self.cols.rank_order());
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let names = |labels: &LabelIndex, order: &[usize]| -> Vec<String> {
            order.iter().map(|place| labels.names[*place].clone()).collect()
        };
        // A test that began and has no number was not measured.
        let nothing = [BTreeMap::new()];
        let readings = if self.cells.is_empty() { &nothing[..] } else { &self.cells };
        let cells = readings.len().saturating_mul(rows.len()).saturating_mul(cols.len());
        if MOST_CELLS.min(*spare) < cells {
            let what = format!("{}: more cells than any probe measures", self.testcase);
            reader.note_unexpected(OutputProblemKind::Unrecognised, what, None);
            return;
        }
        *spare -= cells;
        for (run, reading) in (0u32..).zip(readings) {
            let cell = |row: usize, col: usize| reading.get(&(row, col)).copied().flatten();
            let cells =
                rows.iter().map(|row| cols.iter().map(|col| cell(*row, *col)).collect()).collect();
            reader.parsed.measurements.push(Measurement::Matrix(MeasurementMatrix {
                run,
                testcase: Some(self.testcase.clone()),
                unit: Some(self.unit),
                rows: names(&self.rows, &rows),
                cols: names(&self.cols, &cols),
                cells,
                sum: None,
                coefficient_of_variation: None,
            }));
        }
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
