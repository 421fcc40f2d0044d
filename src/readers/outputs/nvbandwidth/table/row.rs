//! The cells of one printed row, token by token, before their table decides which are reliable.

use crate::outputs::text;

/// The cells of a line while they are read.
#[derive(Debug, Default)]
pub(super) struct NvbandwidthRowCells {
    pub(super) cells: Vec<Option<f64>>,
    /// Indices of tokens that are neither numbers nor `N/A`.
    pub(super) unreadable: Vec<usize>,
    /// The number of them that the tool cannot have printed.
    pub(super) damaged: usize,
    /// The cells were split by position, so each has its column.
    pub(super) is_aligned: bool,
    /// Tokens that do not even look like damaged numbers.
    pub(super) foreign: usize,
}

impl NvbandwidthRowCells {
    pub(super) fn with_capacity(cells: usize) -> Self {
        Self { cells: Vec::with_capacity(cells), ..Self::default() }
    }

    pub(super) fn push(&mut self, word: &str) {
        let value = parse_cell(word);
        if value.is_none() && word != "N/A" {
            self.unreadable.push(self.cells.len());
            if !is_not_finite(word) {
                self.damaged += 1;
                self.foreign += usize::from(!looks_like_cell(word));
            }
        }
        self.cells.push(value);
    }

    /// Keeps this many cells, from the left.
    pub(super) fn truncate(&mut self, cells: usize) {
        self.cells.truncate(cells);
        self.unreadable.retain(|at| *at < cells);
    }
}

/// A count of problems, and the line of the first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProblemCount {
    pub(super) number: usize,
    pub(super) line: u32,
}

impl ProblemCount {
    pub(super) fn add(&mut self, number: usize, line: u32) {
        if self.number == 0 {
            self.line = line;
        }
        self.number += number;
    }
}

/// Whether a token is at a number's place, readable or not.
fn looks_like_cell(word: &str) -> bool {
    word.contains('.') && word.bytes().any(|b| b.is_ascii_digit())
}

/// Tokens that a C++ stream prints for non-finite numbers.
fn is_not_finite(word: &str) -> bool {
    matches!(word.trim_start_matches('-'), "nan" | "inf" | "NaN")
}

/// A cell's number: digits, a point, two digits. The tool prints no sign, no exponent and always
/// two decimals, so any other form is damaged.
fn parse_cell(word: &str) -> Option<f64> {
    let is_plain = word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text::parse_number(word).filter(|_| is_plain && has_two_decimals(word))
}

/// Whether all of a number's digits are present.
pub(in crate::outputs::nvbandwidth) fn has_two_decimals(word: &str) -> bool {
    word.rsplit_once('.').is_some_and(|(_, decimals)| decimals.len() == 2)
}
