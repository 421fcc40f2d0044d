//! One square table: its header, its rows, and missing parts.
//!
//! Cells are assigned to columns by their order in the row. If a row has fewer cells than the
//! header has labels, the position on the line decides; if that is ambiguous, the row stays empty.

use super::text;
use super::text::OutputLine;
use model::measurement::MeasurementMatrix;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;
use model::unit::Unit;

/// The maximum distance between the end of a cell and the end of its label: rows are shifted one
/// blank to the right. A cell shifted by a lost neighbour is off by two or more.
const FURTHEST: usize = 1;

/// A table with more GPUs than any node has does not come from this tool; the maximum in one NVIDIA
/// node is sixteen (HGX-2).
pub(super) const MOST_COLUMNS: usize = 128;

/// The text above the row labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum P2pCorner {
    /// `D\D`.
    Devices,
    /// `GPU`: latency by the GPU's clock.
    Gpu,
    /// `CPU`: latency by the CPU's clock.
    Cpu,
}

#[derive(Debug)]
pub(super) struct P2pTableHeader<'a> {
    pub(super) corner: P2pCorner,
    labels: Vec<&'a str>,
    ends: Vec<usize>,
    elided: bool,
}

impl<'a> P2pTableHeader<'a> {
    /// The header in this line, if it is one.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut words = PositionedWords::new(text);
        let corner = match words.next()?.0 {
            "D\\D" | "D\\\\D" => P2pCorner::Devices,
            "GPU" => P2pCorner::Gpu,
            "CPU" => P2pCorner::Cpu,
            _ => return None,
        };
        let mut header = Self { corner, labels: Vec::new(), ends: Vec::new(), elided: false };
        for (word, end) in words {
            if is_gap(word) {
                header.elided = true;
                continue;
            }
            let known = header.labels.contains(&word);
            if text::parse_integer(word).is_none() || known || header.labels.len() == MOST_COLUMNS {
                return None;
            }
            header.labels.push(word);
            header.ends.push(end);
        }
        (!header.labels.is_empty()).then_some(header)
    }
}

/// A table while it is read.
#[derive(Debug)]
pub(super) struct P2pTable {
    pub(super) testcase: Option<String>,
    unit: Option<Unit>,
    labels: Vec<String>,
    ends: Vec<usize>,
    rows: Vec<Option<Vec<Option<f64>>>>,
    /// Part of it was cut out by hand.
    pub(super) elided: bool,
    last: Option<usize>,
    /// Rows of another table, whose header was lost, follow below.
    is_over: bool,
    line: u32,
}

impl P2pTable {
    pub(super) fn new(
        testcase: Option<String>,
        unit: Option<Unit>,
        header: &P2pTableHeader<'_>,
        line: u32,
    ) -> Self {
        Self {
            testcase,
            unit,
            labels: header.labels.iter().map(|label| (*label).to_owned()).collect(),
            ends: header.ends.clone(),
            rows: vec![None; header.labels.len()],
            elided: header.elided,
            last: None,
            is_over: false,
            line,
        }
    }

    /// Adds a line if it is a row. `cut`: the text ends in it.
    pub(super) fn add_line(
        &mut self,
        line: &OutputLine<'_>,
        cut: bool,
        problems: &mut Vec<OutputProblem>,
    ) {
        let mut words = PositionedWords::new(line.text);
        let Some((label, _)) = words.next() else { return };
        let Some(index) = self.labels.iter().position(|known| known == label) else { return };
        let mut words: Vec<(&str, usize)> = words.collect();
        let all = words.len();
        words.retain(|(word, _)| !is_gap(word));
        self.elided |= words.len() < all;
        let like_cells =
            words.iter().filter(|(word, _)| parse_cell(word) != P2pCell::Damaged).count();
        if words.is_empty() || (words.len() != self.labels.len() && like_cells * 2 < words.len()) {
            // A log line that begins with a number.
            return;
        }
        // Rows come in order, and connections have no decimals: any other line belongs to the next
        // table.
        let connects = self.unit == Some(Unit::Count);
        let foreign = connects && words.iter().any(|(word, _)| word.contains('.'));
        if self.is_over || foreign || self.last.is_some_and(|last| index < last) {
            if !self.is_over {
                let detail = "rows of another table, whose title and labels are missing";
                let problem =
                    OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(line.number);
                problems.push(problem);
            }
            self.is_over = true;
            return;
        }
        self.last = Some(index);
        let mut problem = |kind, detail: String| {
            let problem = OutputProblem::new(kind, detail).at_line(line.number);
            problems.push(problem.in_test(self.testcase.as_deref()));
        };
        if cut && has_lost_digits(&words) {
            words.pop();
            problem(OutputProblemKind::Truncated, format!("the text ends inside row {label}"));
            if words.is_empty() {
                return;
            }
        }
        let placed = if cut && words.len() < self.ends.len() {
            // The text ends here, so the present cells are the beginning of the row.
            Some((0..words.len()).collect())
        } else {
            assign_columns(&words, &self.ends)
        };
        let Some(places) = placed else {
            let (have, want) = (words.len(), self.ends.len());
            let detail = format!("row {label} has {have} cells for {want} columns");
            problem(OutputProblemKind::Unrecognised, detail);
            return;
        };
        if places.len() < self.ends.len() && !self.elided {
            let (have, want) = (places.len(), self.ends.len());
            problem(
                OutputProblemKind::Truncated,
                format!("row {label} has {have} of {want} cells"),
            );
        }
        let mut row = vec![None; self.labels.len()];
        for ((word, _), place) in words.iter().zip(places) {
            match parse_cell(word) {
                P2pCell::Number(value) => row[place] = Some(value),
                P2pCell::Nothing => {}
                P2pCell::Damaged => {
                    let column = &self.labels[place];
                    let detail =
                        format!("row {label}, column {column}: {:?} is not a number", clean(word));
                    problem(OutputProblemKind::Unrecognised, detail);
                }
            }
        }
        match &self.rows[index] {
            None => self.rows[index] = Some(row),
            Some(first) if *first == row => {}
            Some(_) => {
                let detail = format!("row {label} appears twice, with different numbers");
                problem(OutputProblemKind::Inconsistent, detail);
            }
        }
    }

    /// The matrix; `None` without rows.
    pub(super) fn finish(
        self,
        run: u32,
        problems: &mut Vec<OutputProblem>,
    ) -> Option<MeasurementMatrix> {
        let (read, all) = (self.rows.iter().flatten().count(), self.rows.len());
        if read < all || self.elided {
            let detail = if read < all {
                format!("{read} of {all} rows")
            } else {
                "part of the table was cut out by hand".to_owned()
            };
            let problem =
                OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(self.line);
            problems.push(problem.in_test(self.testcase.as_deref()));
        }
        if read == 0 {
            return None;
        }
        Some(MeasurementMatrix {
            run,
            testcase: self.testcase,
            unit: self.unit,
            cells: self.rows.into_iter().map(|row| row.unwrap_or(vec![None; all])).collect(),
            rows: self.labels.clone(),
            cols: self.labels,
            sum: None,
            coefficient_of_variation: None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum P2pCell {
    Number(f64),
    Nothing,
    Damaged,
}

fn parse_cell(word: &str) -> P2pCell {
    match word {
        "N/A" | "n/a" | "NA" | "-" | "--" | "---" | "–" | "—" | "―" | "x" | "X" | "*" => {
            P2pCell::Nothing
        }
        _ => text::parse_number(word).map_or(P2pCell::Damaged, P2pCell::Number),
    }
}

fn is_gap(word: &str) -> bool {
    matches!(word, "..." | ".." | "…" | "....")
}

/// Whether the last of these cells may have lost digits at the end of the text: the tool prints two
/// decimals, so a cell with fewer than the others is truncated.
fn has_lost_digits(words: &[(&str, usize)]) -> bool {
    let decimals = |word: &str| word.split_once('.').map_or(0, |(_, tail)| tail.len());
    let Some(((last, _), others)) = words.split_last() else { return false };
    match others.first() {
        Some((first, _)) => decimals(last) < decimals(first),
        None => decimals(last) < 2,
    }
}

/// The column of each cell: by order if all cells are present, else by the label that ends at the
/// same position.
fn assign_columns(words: &[(&str, usize)], ends: &[usize]) -> Option<Vec<usize>> {
    if words.len() == ends.len() {
        return Some((0..ends.len()).collect());
    }
    if ends.len() < words.len() {
        // Remarks after the last cell are not cells.
        let (cells, remarks) = words.split_at(ends.len());
        let plain = remarks.iter().all(|(word, _)| parse_cell(word) == P2pCell::Damaged);
        let whole = cells.iter().all(|(word, _)| parse_cell(word) != P2pCell::Damaged);
        return (plain && whole).then(|| (0..ends.len()).collect());
    }
    let mut places: Vec<usize> = Vec::with_capacity(words.len());
    for (_, end) in words {
        let nearest = (0..ends.len()).min_by_key(|&i| ends[i].abs_diff(*end))?;
        let in_order = places.last().is_none_or(|last| *last < nearest);
        if FURTHEST < ends[nearest].abs_diff(*end) || !in_order {
            return None;
        }
        places.push(nearest);
    }
    Some(places)
}

/// The tokens of a line, each with the screen column of its end.
struct PositionedWords<'a> {
    text: &'a str,
    chars: std::iter::Peekable<std::str::CharIndices<'a>>,
    column: usize,
}

impl<'a> PositionedWords<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, chars: text.char_indices().peekable(), column: 0 }
    }

    fn advance(&mut self, c: char) {
        // The connectivity table has a tab after its row labels.
        self.column = if c == '\t' { (self.column / 8 + 1) * 8 } else { self.column + 1 };
    }
}

impl<'a> Iterator for PositionedWords<'a> {
    type Item = (&'a str, usize);

    fn next(&mut self) -> Option<Self::Item> {
        while let Some((_, c)) = self.chars.next_if(|(_, c)| c.is_whitespace()) {
            self.advance(c);
        }
        let (start, _) = *self.chars.peek()?;
        let mut end = start;
        while let Some((at, c)) = self.chars.next_if(|(_, c)| !c.is_whitespace()) {
            self.advance(c);
            end = at + c.len_utf8();
        }
        Some((&self.text[start..end], self.column))
    }
}
