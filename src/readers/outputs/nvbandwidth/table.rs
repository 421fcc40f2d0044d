//! One printed matrix: title, column labels, rows, and its problems.
//!
//! Source: `PeerValueMatrix` of v0.1 to v0.8. Cells are right-aligned in 10 characters and always
//! have two decimals; row labels are the row's number or, for the bisection test, `rank->peer`. A
//! cell that may have lost digits is not a number.

mod row;

use std::collections::BTreeMap;

use super::testcases;
use crate::outputs::text;
use crate::outputs::text::OutputLine;
use model::measurement::MeasurementMatrix;
use model::parse_output::{OutputProblem, OutputProblemKind};
pub(super) use row::has_two_decimals;
use row::{NvbandwidthRowCells, ProblemCount};

/// Characters per cell (`setw(10)`).
const CELL: usize = 10;

/// The largest row number that is accepted after a gap: the largest announced NVLink domain has 576
/// GPUs.
const MOST_ROWS: usize = 4096;

/// The maximum number of lost cells that one output keeps as empty: those of a domain of 576 GPUs a
/// dozen times. A line of labels and a cell below it take few bytes and expand to many cells.
pub(super) const MOST_LOST: usize = 4 << 20;

/// A matrix while its lines are read.
#[derive(Debug)]
pub(super) struct NvbandwidthTable<'a> {
    /// The line before the column labels.
    title: Option<&'a str>,
    columns: Option<Vec<&'a str>>,
    /// A user cut columns out.
    is_elided: bool,
    /// Width of the row labels and length of a line, if the column labels are aligned as the tool
    /// prints them.
    layout: Option<(usize, usize)>,
    rows: Vec<NvbandwidthTableRow<'a>>,
    /// The expected number of the next row.
    next: usize,
    /// Its first line.
    pub line: u32,
    /// Cells lost in previous tables.
    lost_before: usize,
    /// Cells left empty because a piece is missing.
    cut: ProblemCount,
    /// Cells or rows that are present and unreadable.
    unreadable: ProblemCount,
    /// Rows that were repeated with other numbers.
    contested: usize,
}

/// A row as printed, or a placeholder for a missing one.
#[derive(Debug)]
struct NvbandwidthTableRow<'a> {
    label: String,
    cells: Vec<Option<f64>>,
    text: &'a str,
    /// Number of tokens in the row.
    count: usize,
    is_printed: bool,
}

/// A line split into label and cells.
#[derive(Debug)]
struct NvbandwidthRowSplit<'a> {
    label: String,
    index: usize,
    cells: RowCellText<'a>,
}

#[derive(Debug)]
enum RowCellText<'a> {
    /// Tokens between blanks.
    Words(&'a str),
    /// A cell every [`CELL`] characters.
    Aligned(&'a str),
}

/// The role of a line in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableLineKind {
    /// The next row, or a later one.
    Row,
    /// The first row of another table whose header was lost.
    Restart,
    No,
}

/// Whether this is the line above a matrix.
pub(super) fn is_description(text: &str) -> bool {
    text.contains("(column)")
        || text.contains("(row)")
        || ["(GB/s)", "(ns)", "(us)"].iter().any(|unit| text.trim_end().ends_with(unit))
        || text.starts_with("Bisect benchmarking")
}

/// The column labels on this line: 0, 1, 2 and on. If a user cut columns out, the rest must still
/// increase.
pub(super) fn parse_column_labels(text: &str) -> Option<(Vec<&str>, bool)> {
    let mut labels = Vec::new();
    let mut elided = false;
    let mut next = 0;
    for word in text.split_whitespace() {
        if is_ellipsis(word) {
            elided = true;
            continue;
        }
        let number = text::parse_integer(word)?;
        if number < next || (number != next && !elided) {
            return None;
        }
        next = number + 1;
        labels.push(word);
    }
    (!labels.is_empty()).then_some((labels, elided))
}

fn is_ellipsis(word: &str) -> bool {
    matches!(word, "..." | "…" | "[...]")
}

/// The label at the start of a row, its number, and the cells after it. Removes padding inside
/// `36-> 0`.
fn split_row_label(text: &str) -> Option<(String, usize, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let index = text[..digits].parse::<usize>().ok()?;
    if 1 < digits && text.starts_with('0') {
        return None;
    }
    let rest = &text[digits..];
    if let Some(peer) = rest.strip_prefix("->") {
        let peer = peer.trim_start();
        let width = peer.bytes().take_while(u8::is_ascii_digit).count();
        let cells = &peer[width..];
        let fits = 0 < width && (cells.is_empty() || cells.starts_with(char::is_whitespace));
        return fits.then(|| (format!("{index}->{}", &peer[..width]), index, cells));
    }
    let is_whole = rest.is_empty() || rest.starts_with(char::is_whitespace);
    is_whole.then(|| (text[..digits].to_owned(), index, rest))
}

impl<'a> NvbandwidthTable<'a> {
    pub(super) fn new(
        title: Option<&'a str>,
        columns: Option<(Vec<&'a str>, bool)>,
        line: &OutputLine<'a>,
        lost_before: usize,
    ) -> Self {
        let (columns, is_elided) = match columns {
            Some((columns, elided)) => (Some(columns), elided),
            None => (None, false),
        };
        let width = columns.as_ref().map_or(0, Vec::len) * CELL;
        let length = line.text.len();
        let layout =
            (0 < width && width < length && line.text.is_ascii()).then(|| (length - width, length));
        Self {
            title,
            columns,
            is_elided,
            layout,
            rows: Vec::new(),
            next: 0,
            line: line.number,
            lost_before,
            cut: ProblemCount::default(),
            unreadable: ProblemCount::default(),
            contested: 0,
        }
    }

    /// The number of lost cells so far, including previous tables.
    pub(super) fn lost_cells(&self) -> usize {
        self.lost_before + self.cut.number
    }

    /// The title, if printed.
    pub(super) fn title(&self) -> Option<&'a str> {
        self.title
    }

    /// Whether only column labels were read so far.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a line if it is a row. `is_last` means that the file ends on this line without a line
    /// end: its last number may have lost digits.
    pub(super) fn add_line(&mut self, line: &OutputLine<'a>, is_last: bool) -> TableLineKind {
        let Some(split) = self.split_row(line.text) else { return TableLineKind::No };
        let width = self.columns.as_ref().map_or(0, Vec::len);
        let mut row = NvbandwidthRowCells::with_capacity(width);
        match split.cells {
            RowCellText::Words(cells) => {
                for word in cells.split_whitespace() {
                    if !is_ellipsis(word) {
                        row.push(word);
                    } else if !self.is_elided {
                        // The columns of the remaining cells are unknown.
                        break;
                    }
                }
            }
            RowCellText::Aligned(cells) => {
                row.is_aligned = true;
                for at in (0..cells.len()).step_by(CELL) {
                    row.push(cells[at..at + CELL].trim_start());
                }
            }
        }
        if row.cells.is_empty() || row.cells.len() < row.foreign * 2 {
            return TableLineKind::No;
        }
        // Without column labels the rows determine their number; see `finish`.
        let count = row.cells.len();
        let width = if self.columns.is_some() { width } else { count };
        let is_short = count < width;
        // The rest of a row that a line end broke can look like a row.
        if is_short && !self.is_in_place(line.text, &split) {
            return TableLineKind::No;
        }
        if is_short {
            row.truncate(self.count_cells_in_place(line.text, &split, is_last));
        }
        let lost = width.saturating_sub(row.cells.len());
        if MOST_LOST < self.lost_cells() + lost {
            // The problem reports missing cells without the number of affected rows.
            self.cut.add(lost, line.number);
            return TableLineKind::No;
        }
        if !self.make_room(&split, width, line.number) {
            return TableLineKind::No;
        }
        let place = if self.is_elided {
            self.rows.iter().position(|row| row.label == split.label)
        } else {
            Some(split.index)
        };
        let place = place.unwrap_or(self.rows.len());
        if let Some(known) = self.rows.get_mut(place).filter(|row| row.is_printed) {
            if known.text != line.text {
                if split.index == 0 && !is_short && 1 < self.next {
                    return TableLineKind::Restart;
                }
                // Two rows with this number: the correct one is ambiguous.
                known.cells.fill(None);
                self.contested += 1;
            }
            self.unreadable.add(1, line.number);
            return TableLineKind::Row;
        }
        self.settle_row(&mut row, width, is_last, line.number);
        row.cells.resize(width, None);
        let printed = NvbandwidthTableRow {
            label: split.label,
            cells: row.cells,
            text: line.text,
            count,
            is_printed: true,
        };
        match self.rows.get_mut(place) {
            Some(lost) => {
                // It comes late; it was counted as missing before.
                self.cut.number = self.cut.number.saturating_sub(lost.cells.len());
                *lost = printed;
            }
            None => self.rows.push(printed),
        }
        self.next = self.next.max(split.index + 1);
        TableLineKind::Row
    }

    /// Label and cells of a row. The tool right-aligns cells in ten characters, so a line as long
    /// as the column labels is split by position, which separates even adjoining numbers; any other
    /// line is split at blanks.
    fn split_row(&self, text: &'a str) -> Option<NvbandwidthRowSplit<'a>> {
        if let Some((label_width, length)) = self.layout
            && text.len() >= length
            && text.is_ascii()
        {
            let (label, cells) = text.split_at(text.len() + label_width - length);
            // Before v0.5 labels are not padded, and label 10 shifts its row.
            let is_aligned = label.len() == label_width
                || (label_width == 1 && label.bytes().all(|b| b.is_ascii_digit()));
            let is_aligned = is_aligned
                && (0..cells.len())
                    .step_by(CELL)
                    .all(|at| !cells[at..at + CELL].trim_start().contains(char::is_whitespace));
            if is_aligned && let Some((label, index, "")) = split_row_label(label.trim_start()) {
                return Some(NvbandwidthRowSplit {
                    label,
                    index,
                    cells: RowCellText::Aligned(cells),
                });
            }
        }
        let (label, index, cells) = split_row_label(text.trim_start())?;
        cells.starts_with(char::is_whitespace).then_some(NvbandwidthRowSplit {
            label,
            index,
            cells: RowCellText::Words(cells),
        })
    }

    /// Whether the first cell of a row is at this table's position. In tables with folded blanks
    /// only the order of the rows decides.
    fn is_in_place(&self, text: &str, split: &NvbandwidthRowSplit<'_>) -> bool {
        let Some((label_width, _)) = self.layout else { return split.index == self.next };
        let RowCellText::Words(cells) = split.cells else { return true };
        let blanks = cells.len() - cells.trim_start().len();
        let word = cells.split_whitespace().next().map_or(0, str::len);
        text.len() - cells.len() + blanks + word == label_width + CELL
    }

    /// The number of cells in an incomplete row that are at their column's position. The missing
    /// part may be in the middle: only the position on the line, or the end of the file, shows it.
    fn count_cells_in_place(
        &self,
        text: &str,
        split: &NvbandwidthRowSplit<'_>,
        is_last: bool,
    ) -> usize {
        let RowCellText::Words(cells) = split.cells else { return usize::MAX };
        let is_shortened = self.is_elided || cells.split_whitespace().any(is_ellipsis);
        let Some((label_width, _)) = self.layout else {
            return if is_last || is_shortened { usize::MAX } else { 0 };
        };
        if is_shortened {
            return usize::MAX;
        }
        // Before v0.5 the label of row 10 shifts its row.
        let start = label_width.max(text.len() - cells.len());
        let mut at = text.len() - cells.len();
        let mut placed = 0;
        for word in cells.split_whitespace() {
            at += text[at..].find(word).unwrap_or(0) + word.len();
            if at != start + (placed + 1) * CELL {
                break;
            }
            placed += 1;
        }
        placed
    }

    /// Keeps the reliable numbers of a row, and counts the others.
    fn settle_row(
        &mut self,
        row: &mut NvbandwidthRowCells,
        width: usize,
        is_last: bool,
        line: u32,
    ) {
        if width < row.cells.len() {
            // A number was split: the grouping of its tokens is ambiguous.
            self.unreadable.add(1, line);
            row.cells.clear();
            return;
        }
        let is_short = row.cells.len() < width;
        // The last number may be truncated.
        let is_cut = (is_short || is_last)
            && row.unreadable.last().is_some_and(|at| at + 1 == row.cells.len());
        if is_cut {
            row.cells.pop();
            row.unreadable.retain(|at| *at < row.cells.len());
        }
        // An extra token combined with a missing cell looks like one unreadable cell, and shifts
        // the rest. The position of the following cells is known only if the line has its full
        // length, or if its blanks were folded and the tool can have printed that token.
        let is_folded = self.layout.is_none() && self.columns.is_some() && row.damaged == 0;
        let is_shifted = is_short || is_last || !(row.is_aligned || is_folded);
        if is_shifted && let Some(first) = row.unreadable.first() {
            row.cells.truncate(*first);
            row.unreadable.truncate(1);
        }
        if row.cells.len() < width && (is_short || is_cut) {
            self.cut.add(width - row.cells.len(), line);
        }
        if !row.unreadable.is_empty() {
            self.unreadable.add(row.unreadable.len(), line);
        }
    }

    /// Adds slots for a row and for those lost before it. False if the number is too large for a
    /// row.
    fn make_room(&mut self, split: &NvbandwidthRowSplit<'_>, width: usize, line: u32) -> bool {
        if self.is_elided || split.index <= self.next {
            return true;
        }
        let most = if split.label.contains("->") { MOST_ROWS } else { width.min(MOST_ROWS) };
        let lost = (split.index - self.rows.len().min(split.index)).saturating_mul(width);
        if most <= split.index || MOST_LOST < self.lost_cells() + lost {
            return false;
        }
        self.pad_rows(split.index, width, line);
        true
    }

    fn pad_rows(&mut self, rows: usize, width: usize, line: u32) {
        for lost in self.rows.len()..rows {
            self.cut.add(width, line);
            if MOST_LOST < self.lost_cells() {
                continue;
            }
            self.rows.push(NvbandwidthTableRow {
                label: lost.to_string(),
                cells: vec![None; width],
                text: "",
                count: 0,
                is_printed: false,
            });
        }
    }

    /// The number of columns: the number of labels, else the most frequent number of tokens per
    /// row.
    fn column_count(&self) -> usize {
        if let Some(columns) = &self.columns {
            return columns.len();
        }
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.is_printed) {
            *counts.entry(row.count).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, rows)| *rows).map_or(0, |(count, _)| count)
    }

    fn cells(&self) -> impl Iterator<Item = f64> + '_ {
        self.rows.iter().flat_map(|row| &row.cells).flatten().copied()
    }

    /// Whether every cell of this matrix can be compared with its sum.
    fn is_whole(&self) -> bool {
        self.cut.number == 0 && self.unreadable.number == 0 && !self.is_elided
    }

    /// Whether all cells are readable and add up to this sum.
    pub(super) fn adds_up_to(&self, sum: f64) -> bool {
        self.is_whole() && sum_deviation(self.cells(), sum, text_rounding_error).is_none()
    }

    pub(super) fn finish(
        mut self,
        run: u32,
        testcase: Option<String>,
        sum: Option<f64>,
    ) -> (MeasurementMatrix, Vec<OutputProblem>) {
        let name = testcase.as_deref();
        let width = self.column_count();
        let pairwise = name.map_or_else(
            || self.title.is_some_and(|t| t.contains("GPU(row)")) && 1 < self.rows.len(),
            testcases::is_pairwise,
        );
        if pairwise && !self.is_elided {
            self.pad_rows(width, width, self.line);
        }
        for row in &mut self.rows {
            if row.is_printed && self.columns.is_none() && row.count != width {
                row.cells.clear();
                self.unreadable.add(1, self.line);
            }
            row.cells.resize(width, None);
        }
        if 1 < self.contested {
            // Two tables run into each other; the rest may belong to either.
            for row in &mut self.rows {
                row.cells.fill(None);
            }
        }
        if pairwise && !self.is_elided {
            clear_unmeasured_diagonal(self.rows.iter_mut().map(|row| &mut row.cells));
        }
        let mut problems = Vec::new();
        let mut report = |kind, line, detail: String| {
            problems.push(OutputProblem::new(kind, detail).in_test(name).at_line(line));
        };
        if self.columns.is_none() {
            let detail = "the column labels are missing; columns are counted from 0";
            report(OutputProblemKind::Truncated, self.line, detail.to_owned());
        }
        if self.is_elided {
            let detail = "columns were cut out of this matrix";
            report(OutputProblemKind::Truncated, self.line, detail.to_owned());
        }
        if 0 < self.cut.number {
            let detail = format!("{} cells of this matrix are missing", self.cut.number);
            report(OutputProblemKind::Truncated, self.cut.line, detail);
        }
        if 0 < self.unreadable.number {
            let detail = format!("{} cells or rows cannot be read", self.unreadable.number);
            report(OutputProblemKind::Unrecognised, self.unreadable.line, detail);
        }
        if let Some(sum) = sum
            && self.is_whole()
            && let Some(computed) = sum_deviation(self.cells(), sum, text_rounding_error)
        {
            let detail = format!("the cells add up to {computed:.2}, SUM is {sum:.2}");
            report(OutputProblemKind::Inconsistent, self.line, detail);
        }
        let cols = match self.columns {
            Some(columns) => columns.into_iter().map(str::to_owned).collect(),
            None => (0..width).map(|column| column.to_string()).collect(),
        };
        let (labels, cells) = self.rows.into_iter().map(|row| (row.label, row.cells)).unzip();
        let matrix = MeasurementMatrix {
            run,
            unit: testcases::testcase_unit(name, self.title),
            testcase,
            rows: labels,
            cols,
            cells,
            sum,
            coefficient_of_variation: None,
        };
        (matrix, problems)
    }
}

/// v0.1 prints 0.00 for a GPU with itself, which it does not measure.
pub(super) fn clear_unmeasured_diagonal<'a>(rows: impl Iterator<Item = &'a mut Vec<Option<f64>>>) {
    for (i, row) in rows.enumerate() {
        if let Some(cell) = row.get_mut(i)
            && *cell == Some(0.0)
        {
            *cell = None;
        }
    }
}

/// The maximum rounding error of a text cell: two decimals.
fn text_rounding_error(_: f64) -> f64 {
    0.005
}

/// The sum of the cells, if it differs from `sum` beyond their rounding (`error` per cell): the
/// tool adds unrounded numbers.
pub(super) fn sum_deviation(
    cells: impl Iterator<Item = f64>,
    sum: f64,
    error: impl Fn(f64) -> f64,
) -> Option<f64> {
    let (mut total, mut slack) = (0.0, 0.011);
    for value in cells {
        total += value;
        slack += error(value);
    }
    let slack = slack + 1e-9 * sum.abs();
    ((total - sum).abs() > slack).then_some(total)
}
