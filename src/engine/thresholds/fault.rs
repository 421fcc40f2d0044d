//! A fault in a threshold file, with its position.
//!
//! A fault is printed as `file:line:column: message`, the offending line and a caret under the
//! offending part. This module does not know the meaning of keys.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use model::text::edit_distance;

/// The maximum length of a printed excerpt; a longer line is cut.
const LONGEST_EXCERPT: usize = 160;

/// One fault in a file (or, from `lint`, one warning).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThresholdFault {
    /// The file name for messages.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The message, in lower case and without a full stop.
    pub message: String,
    /// The suggested fix, if one is known.
    pub help: Option<String>,
    /// The offending line.
    #[serde(skip)]
    pub excerpt: String,
    /// The number of characters that the fault covers.
    #[serde(skip)]
    pub width: usize,
}

impl ThresholdFault {
    /// A fault at this byte range of `text`.
    pub fn new(file: &str, text: &str, span: Range<usize>, message: String) -> Self {
        let start = floor_boundary(text, span.start);
        let end = floor_boundary(text, span.end.max(start));
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let before = text[line_start..start].chars().count();
        let line = text[line_start..line_end].trim_end();
        let width = text[start..end.min(line_end).max(start)].trim_end().chars().count();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            file: file.to_owned(),
            line: number(text[..start].matches('\n').count() + 1),
            column: number(before + 1),
            message,
            help: None,
            excerpt: line
                .chars()
                .take(LONGEST_EXCERPT)
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect(),
            width: width.max(1),
        }
    }
}

impl fmt::Display for ThresholdFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        let number = self.line.to_string();
        let margin = number.len();
        writeln!(f, " {number} | {}", self.excerpt)?;
        let column = usize::try_from(self.column).unwrap_or(1) - 1;
        let room = self.excerpt.chars().count().saturating_sub(column).max(1);
        let carets = "^".repeat(self.width.min(room));
        write!(
            f,
            " {:margin$} | {:indent$}{carets}",
            "",
            "",
            indent = column.min(LONGEST_EXCERPT)
        )?;
        match &self.help {
            Some(help) => write!(f, " {help}"),
            None => Ok(()),
        }
    }
}

/// The last character boundary at or before `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The candidate closest to `word`: within a third of its length in edits, so an unrelated word has
/// no suggestion.
pub fn suggest_name<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    /// No key or name is longer.
    const LONGEST: usize = 100;
    let length = word.chars().count();
    if LONGEST < length {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= (length / 3).max(1))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_gets_a_suggestion_and_an_unrelated_name_gets_none() {
        let keys = ["tolerance", "source", "floor", "floor_ratio"];
        assert_eq!(suggest_name("tolerence", keys), Some("tolerance"));
        assert_eq!(suggest_name("flor", keys), Some("floor"));
        assert_eq!(suggest_name("bandwidth", keys), None);
    }

    #[test]
    fn the_caret_marks_the_part_after_wide_characters_and_at_the_end() {
        let text = "a = \"Größe\" # x\nb = nope\n";
        let at = text.find("nope").expect("the text contains it");
        let fault = ThresholdFault::new("f", text, at..at + 4, "no value".to_owned());
        assert_eq!((fault.line, fault.column, fault.width), (2, 5, 4));
        let end =
            ThresholdFault::new("f", text, text.len() + 9..text.len() + 12, "ends".to_owned());
        assert_eq!((end.line, end.column), (3, 1));
        let inside = ThresholdFault::new("f", text, 8..8, "inside a character".to_owned());
        assert_eq!(inside.line, 1);
    }
}
