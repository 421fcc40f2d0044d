//! One table: labels, cells, and the statistics under it.

use super::text;
use super::text::OutputLine;
use model::measurement::MeasurementMatrix;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;
use model::unit::Unit;

/// Cells are rounded to two decimals; the total is the sum of the unrounded numbers.
const ROUNDING: f64 = 0.005;

/// A line such as `Total NAME VALUE UNIT`.
#[derive(Debug, PartialEq)]
pub(super) struct NvloomStatistic<'a> {
    pub(super) name: &'a str,
    pub(super) of_total: bool,
    value: Option<f64>,
    unit: Option<Unit>,
}

impl<'a> NvloomStatistic<'a> {
    /// The statistic in this line, if it is one.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let kind = words.next()?;
        let (kind, old) = match kind.strip_suffix("BW") {
            Some(kind) => (kind, true),
            None => (kind, false),
        };
        if !matches!(kind, "Min" | "Avg" | "Max" | "Total") {
            return None;
        }
        let name = words.next()?;
        let value = words.next()?;
        let unit = match words.next() {
            Some("GB/s") => Some(Unit::GigabytesPerSecond),
            Some("ns") => Some(Unit::Nanoseconds),
            // 1.0.0 prints no unit; all its tests are in GB/s.
            None if old => Some(Unit::GigabytesPerSecond),
            _ => None,
        };
        let number = text::parse_number(value);
        if number.is_none() && value != "N/A" {
            return None;
        }
        Some(Self { name, of_total: kind == "Total", value: number, unit })
    }
}

/// The maximum number of lost cells that one output keeps as empty: a line of labels and a cell
/// below it take few bytes and expand to many cells.
const MOST_LOST: usize = 4 << 20;

/// A table while it is read.
#[derive(Debug)]
pub(super) struct NvloomTable {
    testcase: String,
    columns: Option<Vec<String>>,
    rows: NvloomTableRows,
    total: Option<f64>,
    unit: Option<Unit>,
    ended: bool,
    /// A blank line in place of the labels: racks without a name.
    blank: bool,
    pub(super) elided: bool,
    /// The number of cells lost in this table and the previous ones.
    pub(super) lost: usize,
}

impl NvloomTable {
    pub(super) fn new(testcase: &str, lost: usize) -> Self {
        Self {
            testcase: testcase.to_owned(),
            columns: None,
            rows: Vec::new(),
            total: None,
            unit: None,
            ended: false,
            blank: false,
            elided: false,
            lost,
        }
    }

    /// Adds a line of the test.
    pub(super) fn add_line(
        &mut self,
        line: &OutputLine<'_>,
        cut: bool,
        problems: &mut Vec<OutputProblem>,
    ) {
        if let Some(statistic) = NvloomStatistic::parse(line.trimmed()) {
            self.ended = true;
            if statistic.of_total && !cut {
                (self.total, self.unit) = (statistic.value, statistic.unit);
            }
            return;
        }
        if line.trimmed().is_empty() {
            self.blank |= self.columns.is_none();
            return;
        }
        if self.ended {
            return;
        }
        let mut words = split_cells(line.text);
        let Some(columns) = self.columns.as_ref().map(Vec::len) else {
            self.add_labels(line, words, problems);
            return;
        };
        if columns + 1 < words.len() && words.last().is_some_and(|word| word.is_empty()) {
            words.pop();
        }
        let like_cells = words.iter().skip(1).filter(|word| parse_cell(word).is_ok()).count();
        if words.len() < 2 || like_cells * 2 < words.len() - 1 {
            // A log line of another process.
            return;
        }
        self.add_row(&words, columns, line.number, cut, problems);
    }

    /// The first line under `Running`: the column labels.
    fn add_labels(
        &mut self,
        line: &OutputLine<'_>,
        mut words: Vec<&str>,
        problems: &mut Vec<OutputProblem>,
    ) {
        let indented = line.text.starts_with(char::is_whitespace);
        let whole = |word: &&str| text::parse_integer(word).is_some();
        // Cells have decimals or are `N/A`; a line without either is not a row.
        let labels = words.iter().all(|word| parse_cell(word).is_err() || whole(word));
        if labels && (indented || words.iter().all(whole)) {
            if words.first().is_some_and(|word| word.is_empty()) {
                words.remove(0);
            }
            self.columns = Some(words.into_iter().map(clean).collect());
            return;
        }
        let numbers = words.iter().skip(1).filter(|word| parse_cell(word).is_ok()).count();
        if words.len() < 2 || numbers + 1 < words.len() {
            return;
        }
        if self.blank {
            // The labels are the racks' serial numbers, which can be empty.
            self.columns = Some(vec![String::new(); words.len() - 1]);
            self.add_row(&words, words.len() - 1, line.number, false, problems);
        } else {
            let detail = "a row without column labels above it";
            let problem =
                OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(line.number);
            problems.push(problem.in_test(Some(&self.testcase)));
            self.ended = true;
        }
    }

    fn add_row(
        &mut self,
        words: &[&str],
        columns: usize,
        number: u32,
        cut: bool,
        problems: &mut Vec<OutputProblem>,
    ) {
        let mut problem = |kind, detail: String| {
            problems.push(
                OutputProblem::new(kind, detail).at_line(number).in_test(Some(&self.testcase)),
            );
        };
        let label = clean(words[0]);
        let mut cells = &words[1..];
        // A tab follows every cell, so the last cell of a truncated line may be incomplete.
        if cut {
            cells = &cells[..cells.len() - 1];
            problem(OutputProblemKind::Truncated, format!("the text ends inside row {label}"));
        }
        if columns < cells.len() {
            let detail = format!("row {label} has {} cells for {columns} columns", cells.len());
            problem(OutputProblemKind::Unrecognised, detail);
            return;
        }
        if cells.len() < columns && !cut {
            let detail = format!("row {label} has {} of {columns} cells", cells.len());
            problem(OutputProblemKind::Truncated, detail);
        }
        self.lost += columns - cells.len();
        if MOST_LOST < self.lost {
            return;
        }
        let mut row = vec![None; columns];
        for (place, word) in row.iter_mut().zip(cells) {
            match parse_cell(word) {
                Ok(value) => *place = value,
                Err(()) => {
                    let detail = format!("row {label}: {:?} is not a number", clean(word));
                    problem(OutputProblemKind::Unrecognised, detail);
                }
            }
        }
        self.rows.push((label, row));
    }

    /// The matrix; `None` without rows.
    pub(super) fn finish(
        self,
        run: u32,
        problems: &mut Vec<OutputProblem>,
    ) -> Option<MeasurementMatrix> {
        let mut problem = |kind, detail: &str| {
            problems.push(OutputProblem::new(kind, detail).in_test(Some(&self.testcase)));
        };
        let columns = self.columns?;
        let mut rows = self.rows;
        if self.elided {
            problem(OutputProblemKind::Truncated, "a part of the table was cut out by hand");
        }
        if rows.is_empty() {
            return None;
        }
        if is_square(&self.testcase) {
            let read = rows.len();
            // A header alone does not justify a square of empty cells.
            if columns.len() <= read * 2 {
                rows = square_rows(rows, &columns);
            }
            if read != columns.len() {
                problem(OutputProblemKind::Truncated, "the table has fewer rows than columns");
            }
        }
        if !self.ended {
            problem(OutputProblemKind::Truncated, "the statistics under the table are missing");
        }
        let numbers = || rows.iter().flat_map(|(_, row)| row.iter().flatten());
        let sum: f64 = numbers().sum();
        #[expect(clippy::cast_precision_loss, reason = "a table has far fewer than 2^52 cells")]
        let slack = ROUNDING * (numbers().count() as f64 + 1.0) + 1e-9 * sum.abs();
        if self.total.is_some_and(|total| slack < (total - sum).abs()) {
            problem(OutputProblemKind::Inconsistent, "the total is not the sum of the cells");
        }
        let (rows, cells) = rows.into_iter().unzip();
        Some(MeasurementMatrix {
            run,
            testcase: Some(self.testcase),
            unit: self.unit,
            rows,
            cols: columns,
            cells,
            sum: self.total,
            coefficient_of_variation: None,
        })
    }
}

/// Whether the test's table has a row for every column.
fn is_square(testcase: &str) -> bool {
    let pairs = testcase.contains("_to_")
        && (testcase.contains("_unidir_") || testcase.contains("_bidir_"));
    testcase.starts_with("latency_") || (pairs && !testcase.starts_with("gpu_to_rack_"))
}

type NvloomTableRows = Vec<(String, Vec<Option<f64>>)>;

/// The rows in column order, with missing rows empty. Rows under other labels stay unchanged.
fn square_rows(rows: NvloomTableRows, columns: &[String]) -> NvloomTableRows {
    let fits = |label: &String| columns.contains(label);
    let distinct: std::collections::BTreeSet<&String> = rows.iter().map(|(l, _)| l).collect();
    if distinct.len() < rows.len() || !rows.iter().all(|(label, _)| fits(label)) {
        return rows;
    }
    columns
        .iter()
        .map(|label| {
            let row = rows.iter().find(|(known, _)| known == label).map(|(_, row)| row.clone());
            (label.clone(), row.unwrap_or_else(|| vec![None; columns.len()]))
        })
        .collect()
}

/// The cells of a line: between tabs, or between blanks if a copy lost its tabs. The bars between
/// racks are not cells.
fn split_cells(text: &str) -> Vec<&str> {
    let bar = |word: &&str| *word != "|";
    if text.contains('\t') {
        text.split('\t').map(str::trim).filter(bar).collect()
    } else {
        text.split_whitespace().filter(bar).collect()
    }
}

/// Parses a cell: a number or `N/A`, optionally followed by `;(3-7)`.
fn parse_cell(word: &str) -> Result<Option<f64>, ()> {
    let value = word.split_once(";(").map_or(word, |(value, _)| value);
    if value == "N/A" {
        return Ok(None);
    }
    text::parse_number(value).map(Some).ok_or(())
}
