//! The location of an error in a text file, for messages.
//!
//! Text and offsets in, one error out. No file is opened here.

/// An error at one location of one file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct TextError {
    /// Name of the file, for messages.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The error, and what was expected.
    pub message: String,
}

impl TextError {
    /// An error at this byte offset of `text`.
    pub fn new(file: &str, text: &str, offset: usize, message: impl Into<String>) -> Self {
        let (line, column) = line_column(text, offset);
        Self { file: file.to_owned(), line, column, message: message.into() }
    }

    /// A TOML parse error, at its location.
    pub fn from_toml(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let offset = error.span().map_or(0, |span| span.start);
        Self::new(file, text, offset, error.message().trim().replace('\n', ", "))
    }
}

/// Line and column of a byte offset, both from 1.
pub fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (line, before[start..].chars().count() + 1)
}

/// The ends of lines, so that a long file is scanned only once.
#[derive(Clone, Debug)]
pub struct LineIndex(Vec<usize>);

impl LineIndex {
    /// Indexes the lines of a text.
    pub fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line of a byte offset, from 1.
    pub fn line_at(&self, offset: usize) -> usize {
        self.0.partition_point(|end| *end < offset) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let text = "ab\nçd\n";
        assert_eq!(line_column(text, 0), (1, 1));
        assert_eq!(line_column(text, text.find('d').expect("it is there")), (2, 2));
        assert_eq!(line_column(text, 999), (3, 1));
        let ends = LineIndex::new(text);
        for offset in 0..=text.len() {
            assert_eq!(ends.line_at(offset), line_column(text, offset).0, "{offset}");
        }
    }
}
