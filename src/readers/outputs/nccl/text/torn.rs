//! Rows that were torn: pieces that are joined where they fit, and what remains of the rest.

use super::super::collective;
use super::super::header::Layout;
use super::super::header::Reading;
use super::Pending;
use super::Reader;
use super::Stage;
use crate::outputs::text;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::text::clean;

impl Reader {
    /// Joins the next piece to a row, where it is not more than the row lacks.
    pub(super) fn join(&mut self, mut pending: Pending, words: &[&str], line: u32) -> bool {
        let lacking = self.layout.as_ref().map_or(0, |layout| {
            let have: Vec<&str> = pending.words.iter().map(String::as_str).collect();
            layout.lacking(&have)
        });
        if lacking < words.len() {
            self.pending = Some(pending);
            self.flush();
            return self.orphan(words.len(), line);
        }
        let mut words = words;
        if self.open_line == Some(line) && (words.len() < lacking || !cannot_go_on(words)) {
            words = &words[..words.len() - 1];
        }
        pending.words.extend(words.iter().map(|w| (*w).to_owned()));
        pending.placed = pending.words.len();
        let joined: Vec<&str> = pending.words.iter().map(String::as_str).collect();
        match self.layout.as_ref().map(|layout| layout.read(&joined, pending.line, false)) {
            Some(Reading::Whole(row)) => self.push(row),
            _ => self.pending = Some(pending),
        }
        true
    }

    /// Gives up waiting for the rest of a row.
    pub(super) fn flush(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let words = &pending.words[..pending.placed.min(pending.words.len())];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let size = words.first().copied().unwrap_or_default();
        let detail = format!("the row of {} bytes stops early", clean(size));
        let problem = Problem::new(ProblemKind::Truncated, detail).at(pending.line);
        let reading = self.layout.as_ref().map(|layout| layout.read(&words, pending.line, false));
        self.with_run(|run| run.problems.push(problem));
        if let Some(Reading::Part(Some(row))) = reading {
            self.push(row);
        }
    }

    /// Values without the beginning of their row.
    pub(super) fn orphan(&mut self, words: usize, line: u32) -> bool {
        let inside = self.run.is_some() && (Stage::Header..=Stage::Rows).contains(&self.stage);
        let (half, both) = self.layout.as_ref().map_or((0, 0), Layout::piece_lengths);
        if !inside || (words != half && words != both) {
            return false;
        }
        let detail = "a piece of a row without its beginning";
        let problem = Problem::new(ProblemKind::Truncated, detail).at(line);
        self.with_run(|run| run.problems.push(problem));
        true
    }

    /// A row whose size, count or type is damaged.
    pub(super) fn damaged_row(&mut self, words: &[&str], values: usize, line: u32) -> bool {
        const LEAST: usize = 4;
        let inside = self.run.is_some() && (Stage::Header..=Stage::Rows).contains(&self.stage);
        let (_, both) = self.layout.as_ref().map_or((0, 0), Layout::piece_lengths);
        let typed = words.iter().take(6).any(|w| collective::element_size(w).is_some());
        let like = (typed && LEAST <= values) || (0 < both && both <= values);
        if !inside || !like {
            return false;
        }
        let detail = "a row whose size, count or type cannot be read";
        let problem = Problem::new(ProblemKind::Unrecognised, detail).at(line);
        self.flush();
        self.with_run(|run| run.problems.push(problem));
        true
    }
}

/// Whether the last of these words cannot be the beginning of a longer one: a
/// count of 0, `N/A`, or a number that has its exponent.
pub(super) fn cannot_go_on(words: &[&str]) -> bool {
    let exponent = |word: &str| {
        word.rsplit_once(['+', '-']).is_some_and(|(mantissa, digits)| {
            mantissa.ends_with('e') && digits.len() == 2 && text::integer(digits).is_some()
        })
    };
    words.last().is_some_and(|word| matches!(*word, "0" | "N/A") || exponent(word))
}
