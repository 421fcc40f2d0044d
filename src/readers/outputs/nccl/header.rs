//! The columns of one nccl-tests table, and the rows under them.
//!
//! The columns changed in almost every release, so they are read from the header line: leading
//! columns, then the out-of-place half and the in-place half with the same names, then trailing
//! columns. A row is a list of tokens here; `text` finds the tokens among a log's lines.

use super::collective;
use super::rounded_number::{NumberRange, RoundedNumber};
use super::run::{DataCheck, NcclRow, NcclRowHalf};
use crate::outputs::text;
use model::measurement::BufferPlacement;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NcclColumn {
    Time,
    AlgBw,
    BusBw,
    /// Number of wrong elements (2.13 and later).
    Wrong,
    /// Largest relative difference (before 2.13): not a count.
    Difference,
    Shortest,
    Longest,
    P99,
    Iterations,
    /// Date and time: two tokens.
    Timestamp,
    Other,
}

impl NcclColumn {
    fn from_name(name: &str) -> Self {
        match name {
            "time" | "cputime" => Self::Time,
            "algbw" => Self::AlgBw,
            "busbw" => Self::BusBw,
            "#wrong" | "wrong" => Self::Wrong,
            "error" | "res" => Self::Difference,
            "i_min" => Self::Shortest,
            "i_max" => Self::Longest,
            "i_p99" => Self::P99,
            "#iters" | "iters" => Self::Iterations,
            "timestamp" => Self::Timestamp,
            _ => Self::Other,
        }
    }

    fn word_count(self) -> usize {
        if self == Self::Timestamp { 2 } else { 1 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NcclTableLayout {
    /// The table has a redop column.
    pub(super) redop: bool,
    /// The table has a root column.
    pub(super) root: bool,
    /// The time column is CPU time; bandwidth still uses elapsed time.
    pub(super) cpu_time: bool,
    /// The first release prints milliseconds. They are dropped, since a printed number is never
    /// converted.
    pub(super) milliseconds: bool,
    leading: usize,
    half: Vec<NcclColumn>,
    halves: usize,
    trailing: Vec<NcclColumn>,
}

/// The result of reading a row's tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NcclRowReading {
    /// All columns are present.
    Whole(NcclRow),
    /// The row stops early; its complete part, if it has a complete half.
    Part(Option<NcclRow>),
    /// Some tokens belong to no column, so a half may be shifted: only the plausible halves remain.
    Long(NcclRow),
}

impl NcclTableLayout {
    /// The layout of a header line; `None` for any other line.
    pub(super) fn from_header(words: &[&str]) -> Option<Self> {
        let start = |names: [&str; 3]| words.windows(3).position(|w| w == names).map(|at| at + 3);
        let modern = start(["size", "count", "type"]);
        let first_release = modern.is_none();
        let start = modern.or_else(|| start(["bytes", "N", "type"]))?;
        let names = &words[start..];
        let is_time = |name: &&str| matches!(*name, "time" | "cputime");
        let first = names.iter().position(is_time)?;
        let second = names[first + 1..].iter().position(is_time).map(|at| first + 1 + at);
        let end = second.map_or(names.len(), |second| second + (second - first));
        let half: Vec<NcclColumn> = names[first..second.unwrap_or(names.len())]
            .iter()
            .map(|name| NcclColumn::from_name(name))
            .collect();
        if !half.contains(&NcclColumn::AlgBw) || !half.contains(&NcclColumn::BusBw) {
            return None;
        }
        // If the halves differ, a name is lost and the columns are ambiguous.
        let names_of_half = |at: usize| names.get(at..at + half.len());
        let rest = names.get(end..).unwrap_or(&[]);
        let more = rest.iter().any(|name| {
            let column = NcclColumn::from_name(name);
            matches!(
                column,
                NcclColumn::Wrong | NcclColumn::Difference | NcclColumn::AlgBw | NcclColumn::BusBw
            )
        });
        let differ = second.is_some_and(|second| names_of_half(first) != names_of_half(second));
        if more || differ {
            return None;
        }
        let redop = names[..first].iter().any(|name| matches!(*name, "redop" | "op"));
        let root = names[..first].contains(&"root");
        Some(Self {
            redop,
            root,
            cpu_time: names[first] == "cputime",
            milliseconds: first_release,
            leading: first - usize::from(redop) - usize::from(root),
            half,
            halves: if second.is_some() { 2 } else { 1 },
            trailing: rest.iter().map(|name| NcclColumn::from_name(name)).collect(),
        })
    }

    /// The layout of a row without a header, if its number of tokens allows only one: 3 + redop +
    /// root + 2 x (time algbw busbw check).
    pub(super) fn from_row(words: &[&str]) -> Option<Self> {
        let named = words.get(3).is_some_and(|w| is_redop(w));
        let (redop, root) = match (words.len(), named) {
            (11, false) => (false, false),
            (12, true) => (true, false),
            (12, false) => (false, true),
            (13, true) => (true, true),
            _ => return None,
        };
        // `%g` never prints 0e+00: that is the largest difference of old releases.
        let check = if words.last().is_some_and(|w| *w == "0e+00") || !(redop && root) {
            NcclColumn::Difference
        } else {
            NcclColumn::Wrong
        };
        let half = vec![NcclColumn::Time, NcclColumn::AlgBw, NcclColumn::BusBw, check];
        let layout = Self {
            redop,
            root,
            cpu_time: false,
            milliseconds: false,
            leading: 0,
            half,
            halves: 2,
            trailing: Vec::new(),
        };
        match layout.read_row(words, 0, false) {
            NcclRowReading::Whole(row)
                if row.halves.iter().flatten().all(NcclRowHalf::is_readable) =>
            {
                Some(layout)
            }
            _ => None,
        }
    }

    /// Number of tokens after a row's leading columns.
    fn value_count(&self) -> usize {
        self.half.len() * self.halves
    }

    /// Number of tokens in one half, and in all halves.
    pub(super) fn piece_lengths(&self) -> (usize, usize) {
        (self.half.len(), self.value_count())
    }

    /// The maximum number of tokens that a row with this beginning still lacks.
    pub(super) fn missing_words(&self, words: &[&str]) -> usize {
        let redop = usize::from(self.redop && words.get(3).is_none_or(|w| is_redop(w)));
        let lead = 3 + redop + usize::from(self.root) + self.leading;
        let trailing: usize = self.trailing.iter().map(|c| c.word_count()).sum();
        (lead + self.value_count() + trailing).saturating_sub(words.len())
    }

    /// Reads the tokens of a row, from its size on. `gap`: the row leaves the out-of-place half
    /// blank (a trace replay measures in place only).
    pub(super) fn read_row(&self, words: &[&str], line: u32, gap: bool) -> NcclRowReading {
        let Some(mut row) = read_leading(words, line) else { return NcclRowReading::Part(None) };
        let mut at = 3;
        if self.redop && words.get(at).is_some_and(|w| is_redop(w)) {
            row.redop = Some(words[at].to_owned());
            at += 1;
        }
        if self.root
            && let Some(root) = words.get(at).and_then(|w| w.parse::<i64>().ok())
        {
            row.root = Some(root);
            at += 1;
        }
        let values = words.get(at + self.leading..).unwrap_or(&[]);
        let length = self.half.len();
        let placements = match (gap, self.halves) {
            (true, 2) => &[BufferPlacement::InPlace][..],
            (_, 1) => &[BufferPlacement::OutOfPlace],
            _ => &[BufferPlacement::OutOfPlace, BufferPlacement::InPlace],
        };
        for (i, placement) in placements.iter().enumerate() {
            let words = values.get(i * length..).unwrap_or(&[]);
            let half = self.read_half(&words[..words.len().min(length)]);
            row.halves[usize::from(*placement == BufferPlacement::InPlace)] = half;
        }
        let read = length * placements.len();
        let trailing: usize = self.trailing.iter().map(|column| column.word_count()).sum();
        if values.len() != read && values.len() != read + trailing {
            for half in &mut row.halves {
                *half = half.take().filter(|half| self.is_plausible(half, row.bytes));
            }
            let left = row.halves.iter().flatten().count();
            if left < placements.len() && read <= values.len() {
                return match (values.len() < read + trailing, left) {
                    (false, _) => NcclRowReading::Long(row),
                    (true, 0) => NcclRowReading::Part(None),
                    (true, _) => NcclRowReading::Part(Some(row)),
                };
            }
        }
        if read <= values.len() {
            self.read_trailing(&values[read..], &mut row);
            NcclRowReading::Whole(row)
        } else if row.halves.iter().all(Option::is_none) {
            NcclRowReading::Part(None)
        } else {
            NcclRowReading::Part(Some(row))
        }
    }

    /// Whether a half of a row with missing tokens is plausible: a token lost before it shifts a
    /// time into a bandwidth column.
    fn is_plausible(&self, half: &NcclRowHalf, bytes: u64) -> bool {
        /// The largest factor of any test between sizes, or from algbw to busbw.
        const MOST: f64 = 2.2;
        let (Some(algbw), Some(busbw)) = (half.algbw, half.busbw) else { return false };
        let time = match half.time {
            Some(time) => time.range(),
            None if half.is_untimed => NumberRange::ANY,
            None => return false,
        };
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bytes")]
        let expected = NumberRange::from_value(bytes as f64 / 1e3).divide(time);
        let expected = NumberRange { low: expected.low / MOST, high: expected.high * MOST };
        (self.cpu_time || expected.overlaps(algbw.range()))
            && busbw.range().low <= algbw.range().high * MOST
            && half.check != DataCheck::Unreadable
    }

    /// One half; `None` if it stops before its bandwidths.
    fn read_half(&self, words: &[&str]) -> Option<NcclRowHalf> {
        let needed =
            self.half.iter().rposition(|c| matches!(c, NcclColumn::AlgBw | NcclColumn::BusBw))?;
        if words.len() <= needed {
            return None;
        }
        let mut half = NcclRowHalf::default();
        for (column, word) in self.half.iter().zip(words) {
            let number = RoundedNumber::parse(word);
            let plain = number.map(|n| n.value);
            match column {
                NcclColumn::Time if self.milliseconds => half.is_untimed = number.is_some(),
                NcclColumn::Time => half.time = number,
                NcclColumn::AlgBw => half.algbw = number,
                NcclColumn::BusBw => half.busbw = number,
                NcclColumn::Wrong | NcclColumn::Difference if *word == "N/A" => {
                    half.check = DataCheck::NotDone;
                }
                // A count has no decimals (`%g` of a whole number).
                NcclColumn::Wrong => {
                    let count = plain.filter(|count| count.fract() == 0.0);
                    half.check = count.map_or(DataCheck::Unreadable, DataCheck::Wrong);
                }
                // `%.0e` always prints an exponent.
                NcclColumn::Difference => {
                    let difference = plain.filter(|_| *word == "0" || word.contains('e'));
                    half.check = difference.map_or(DataCheck::Unreadable, DataCheck::Difference);
                }
                NcclColumn::Shortest => half.min_us = plain,
                NcclColumn::Longest => half.max_us = plain,
                NcclColumn::P99 => half.p99_us = plain,
                NcclColumn::Iterations => half.iterations = text::parse_integer(word),
                NcclColumn::Timestamp | NcclColumn::Other => {}
            }
        }
        Some(half)
    }

    /// Reads the columns after both halves.
    fn read_trailing(&self, words: &[&str], row: &mut NcclRow) {
        let mut at = 0;
        for column in &self.trailing {
            if *column == NcclColumn::Iterations {
                let iterations = words.get(at).and_then(|w| text::parse_integer(w));
                for half in row.halves.iter_mut().flatten() {
                    half.iterations = iterations;
                }
            }
            at += column.word_count();
        }
    }
}

/// Whether this token is a reduction name (a blank redop leaves a number here).
fn is_redop(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !matches!(word, "inf" | "nan" | "N")
}

/// Reads size, count and type.
fn read_leading(words: &[&str], line: u32) -> Option<NcclRow> {
    let [size, count, kind, ..] = words else { return None };
    collective::element_size(kind)?;
    Some(NcclRow {
        line,
        bytes: text::parse_integer(size)?,
        // Users shorten large counts to 2.7e+08; such a count is ignored.
        count: text::parse_integer(count).or_else(|| text::parse_number(count).map(|_| 0))?,
        type_name: (*kind).to_owned(),
        ..NcclRow::default()
    })
}

/// The start of a row among these tokens: two integers and an element type, after at most a few
/// prefixed tokens.
pub(super) fn row_start(words: &[&str]) -> Option<usize> {
    const FURTHEST: usize = 4;
    (0..=FURTHEST).find(|&at| {
        let row = words.get(at..).and_then(|words| read_leading(words, 0));
        // The token before a row may also be the first part of its size.
        row.is_some_and(|row| at == 0 || !row.is_smaller_than_its_elements())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(header: &str) -> NcclTableLayout {
        let words: Vec<&str> = header.split_whitespace().collect();
        NcclTableLayout::from_header(&words).expect("a header")
    }

    fn read(header: &str, row: &str) -> NcclRowReading {
        layout(header).read_row(&row.split_whitespace().collect::<Vec<_>>(), 1, false)
    }

    const MODERN: &str =
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";

    #[test]
    fn per_iteration_timestamp_and_iteration_columns_are_found_by_name() {
        let header = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 \
                      i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp #iters";
        let row = "4096 1024 float sum -1 20.00 0.20 0.36 0 18.10 25.00 24.90 3.10 21.00 0.20 0.34 \
                   2 19.10 26.00 25.90 4.10 2026-01-02 03:04:05 20";
        let NcclRowReading::Whole(row) = read(header, row) else { panic!("a whole row") };
        let half = row.halves[1].as_ref().expect("a half");
        assert_eq!(half.check, DataCheck::Wrong(2.0));
        assert_eq!((half.min_us, half.max_us, half.p99_us), (Some(19.1), Some(26.0), Some(25.9)));
        assert_eq!(half.iterations, Some(20));
    }

    #[test]
    fn a_blank_redop_is_not_the_root() {
        let row = "4096 128 float -1 20.00 0.20 0.18 0 21.00 0.20 0.17 N/A";
        let NcclRowReading::Whole(row) = read(MODERN, row) else { panic!("a whole row") };
        assert_eq!((row.redop, row.root), (None, Some(-1)));
        assert_eq!(row.halves[1].as_ref().map(|h| h.check), Some(DataCheck::NotDone));
    }

    #[test]
    fn a_row_that_stops_keeps_the_half_that_is_whole() {
        let NcclRowReading::Part(Some(row)) =
            read(MODERN, "4096 1024 float sum -1 20.0 0.20 0.36 0 21.0")
        else {
            panic!("a part of a row")
        };
        assert!(row.halves[0].is_some() && row.halves[1].is_none());
        assert_eq!(read(MODERN, "4096 1024 float sum -1 20.0"), NcclRowReading::Part(None));
    }

    #[test]
    fn a_lone_row_gives_its_layout_only_where_one_fits() {
        let of = |row: &str| NcclTableLayout::from_row(&row.split_whitespace().collect::<Vec<_>>());
        let modern = of("64 16 float sum -1 9.0 0.01 0.01 0 9.0 0.01 0.01 0").expect("a layout");
        assert_eq!(modern, layout(MODERN));
        let old = of("64 16 float 0 9.0 0.01 0.01 0e+00 9.0 0.01 0.01 0e+00").expect("a layout");
        assert!(old.root && !old.redop);
        assert_eq!(of("64 16 float sum -1 9.0 0.01 0.01 0"), None);
    }

    #[test]
    fn unknown_columns_do_not_shift_the_others() {
        let header = "# size count type redop root time algbw busbw #wrong #bitdiff time algbw \
                      busbw #wrong #bitdiff impl algo proto";
        let row = "4096 1024 float sum -1 20.0 0.20 0.36 0 0 21.0 0.20 0.34 0 0 N/A RING LL";
        let NcclRowReading::Whole(row) = read(header, row) else { panic!("a whole row") };
        assert_eq!(row.halves[1].as_ref().and_then(|h| h.busbw).map(|b| b.value), Some(0.34));
    }
}
