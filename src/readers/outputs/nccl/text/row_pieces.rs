//! Torn rows: joins pieces that fit, and reports the rest.

use super::super::collective;
use super::super::header::{NcclRowReading, NcclTableLayout};
use super::{NcclTextReader, NcclTextStage, PendingNcclRow};
use crate::outputs::text;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;

impl NcclTextReader {
    /// Appends the next piece to a row, unless it exceeds the missing part.
    pub(super) fn join_piece(
        &mut self,
        mut pending: PendingNcclRow,
        words: &[&str],
        line: u32,
    ) -> bool {
        let lacking = self.layout.as_ref().map_or(0, |layout| {
            let have: Vec<&str> = pending.words.iter().map(String::as_str).collect();
            layout.missing_words(&have)
        });
        if lacking < words.len() {
            self.pending = Some(pending);
            self.flush();
            return self.note_orphan(words.len(), line);
        }
        let mut words = words;
        if self.open_line == Some(line) && (words.len() < lacking || !is_last_word_whole(words)) {
            words = &words[..words.len() - 1];
        }
        pending.words.extend(words.iter().map(|w| (*w).to_owned()));
        pending.aligned = pending.words.len();
        let joined: Vec<&str> = pending.words.iter().map(String::as_str).collect();
        match self.layout.as_ref().map(|layout| layout.read_row(&joined, pending.line, false)) {
            Some(NcclRowReading::Whole(row)) => self.push_row(row),
            _ => self.pending = Some(pending),
        }
        true
    }

    /// Stops waiting for the rest of a row.
    pub(super) fn flush(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let words = &pending.words[..pending.aligned.min(pending.words.len())];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let size = words.first().copied().unwrap_or_default();
        let detail = format!("the row of {} bytes stops early", clean(size));
        let problem =
            OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(pending.line);
        let reading =
            self.layout.as_ref().map(|layout| layout.read_row(&words, pending.line, false));
        self.with_run(|run| run.problems.push(problem));
        if let Some(NcclRowReading::Part(Some(row))) = reading {
            self.push_row(row);
        }
    }

    /// Values without the beginning of their row.
    pub(super) fn note_orphan(&mut self, words: usize, line: u32) -> bool {
        let inside = self.run.is_some()
            && (NcclTextStage::Header..=NcclTextStage::Rows).contains(&self.stage);
        let (half, both) = self.layout.as_ref().map_or((0, 0), NcclTableLayout::piece_lengths);
        if !inside || (words != half && words != both) {
            return false;
        }
        let detail = "a piece of a row without its beginning";
        let problem = OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(line);
        self.with_run(|run| run.problems.push(problem));
        true
    }

    /// A row whose size, count or type is damaged.
    pub(super) fn note_damaged_row(&mut self, words: &[&str], values: usize, line: u32) -> bool {
        const LEAST: usize = 4;
        let inside = self.run.is_some()
            && (NcclTextStage::Header..=NcclTextStage::Rows).contains(&self.stage);
        let (_, both) = self.layout.as_ref().map_or((0, 0), NcclTableLayout::piece_lengths);
        let typed = words.iter().take(6).any(|w| collective::element_size(w).is_some());
        let like = (typed && LEAST <= values) || (0 < both && both <= values);
        if !inside || !like {
            return false;
        }
        let detail = "a row whose size, count or type cannot be read";
        let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(line);
        self.flush();
        self.with_run(|run| run.problems.push(problem));
        true
    }
}

/// Whether the last of these tokens cannot be the beginning of a longer one: a count of 0, `N/A`,
/// or a number with its exponent.
pub(super) fn is_last_word_whole(words: &[&str]) -> bool {
    let exponent = |word: &str| {
        word.rsplit_once(['+', '-']).is_some_and(|(mantissa, digits)| {
            mantissa.ends_with('e') && digits.len() == 2 && text::parse_integer(digits).is_some()
        })
    };
    words.last().is_some_and(|word| matches!(*word, "0" | "N/A") || exponent(word))
}
