//! Lines of `Key=Value` entries, as in Slurm's configuration files and answers.
//!
//! Text in, entries and positions out; the readers interpret the keys.

/// A line, joined with its backslash continuations, without its comment.
#[derive(Debug, Default)]
pub(super) struct ConfigLine {
    text: String,
    /// Start of each joined piece: offset in `text`, line and column in the file.
    pieces: Vec<(usize, usize, usize)>,
    /// The comment after `#`, if any.
    pub(super) comment: Option<String>,
}

impl ConfigLine {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Line and column, from 1, of this offset.
    pub(super) fn position(&self, offset: usize) -> (usize, usize) {
        let piece = self.pieces.iter().rev().find(|(start, _, _)| *start <= offset);
        let (start, line, column) = piece.copied().unwrap_or((0, 1, 1));
        let characters = self.text.get(start..offset).map_or(0, |text| text.chars().count());
        (line, column + characters)
    }

    /// Its first line in the file.
    pub(super) fn line_number(&self) -> usize {
        self.pieces.first().map_or(1, |(_, line, _)| *line)
    }

    /// Whether it contains only blanks (a comment aside).
    pub(super) fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }
}

/// The lines of a configuration file. `#` starts a comment, also after values, unless a backslash
/// precedes it; a backslash at the end joins the next line.
pub(super) fn read_lines(text: &str) -> Vec<ConfigLine> {
    let mut lines = Vec::new();
    let mut open: Option<ConfigLine> = None;
    for (number, raw) in text.lines().enumerate() {
        let (content, comment) = split_comment(raw);
        let (content, goes_on) = match content.trim_end().strip_suffix('\\') {
            Some(before) if comment.is_none() => (before, true),
            _ => (content, false),
        };
        let mut line = open.take().unwrap_or_default();
        line.pieces.push((line.text.len(), number + 1, 1));
        line.text.push_str(content);
        if let Some(comment) = comment {
            line.comment = Some(comment.to_owned());
        }
        if goes_on {
            open = Some(line);
        } else {
            lines.push(line);
        }
    }
    lines.extend(open);
    lines
}

/// Splits a line into text and comment.
fn split_comment(line: &str) -> (&str, Option<&str>) {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if c == '#' && !escaped {
            return (&line[..at], Some(&line[at + 1..]));
        }
        escaped = c == '\\' && !escaped;
    }
    (line, None)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyValueEntry<'l> {
    pub(super) key: &'l str,
    pub(super) value: &'l str,
    /// Offset of the value in its line.
    pub(super) offset: usize,
}

impl KeyValueEntry<'_> {
    /// Whether this is its key; Slurm's keys are case-insensitive.
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }
}

/// The words of a line: entries, and words that are not entries (with their offset). As in Slurm,
/// blanks around `=` are allowed, and values may be quoted.
pub(super) fn parse_entries(line: &str) -> (Vec<KeyValueEntry<'_>>, Vec<(usize, &str)>) {
    let mut found = Vec::new();
    let mut strange = Vec::new();
    let mut at = 0;
    while let Some(start) = next_non_blank(line, at) {
        let end = word_end(line, start);
        let word = &line[start..end];
        let (key, mut value_at) = match word.find('=') {
            Some(equals) => (&word[..equals], start + equals + 1),
            None => match next_non_blank(line, end) {
                Some(after) if line[after..].starts_with('=') => (word, after + 1),
                _ => {
                    strange.push((start, word));
                    at = end;
                    continue;
                }
            },
        };
        let is_set_off = line[value_at..].starts_with(char::is_whitespace);
        if let Some(after) = next_non_blank(line, value_at).filter(|_| is_set_off) {
            // `Nodes= BlockSize=18`: an empty value, then the next entry.
            let following = &line[after..word_end(line, after)];
            let then = next_non_blank(line, word_end(line, after));
            let is_entry =
                following.contains('=') || then.is_some_and(|then| line[then..].starts_with('='));
            if !is_entry {
                value_at = after;
            }
        }
        let (offset, value, end) = parse_value(line, value_at);
        if key.is_empty() {
            strange.push((start, word));
        } else {
            found.push(KeyValueEntry { key, value, offset });
        }
        at = end;
    }
    (found, strange)
}

/// The value that begins here, with its offset and its end.
fn parse_value(line: &str, start: usize) -> (usize, &str, usize) {
    if let Some(inside) = line[start..].strip_prefix('"')
        && let Some(length) = inside.find('"')
    {
        return (start + 1, &inside[..length], start + length + 2);
    }
    let end = word_end(line, start);
    (start, &line[start..end], end)
}

fn next_non_blank(line: &str, from: usize) -> Option<usize> {
    line[from..].find(|c: char| !c.is_whitespace()).map(|offset| from + offset)
}

fn word_end(line: &str, from: usize) -> usize {
    line[from..].find(char::is_whitespace).map_or(line.len(), |length| from + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(line: &str) -> Vec<(&str, &str)> {
        parse_entries(line).0.into_iter().map(|e| (e.key, e.value)).collect()
    }

    #[test]
    fn words_are_read_as_slurm_reads_them() {
        assert_eq!(pairs("A=1 b=x[1-2],y\tC="), [("A", "1"), ("b", "x[1-2],y"), ("C", "")]);
        assert_eq!(pairs("A = 1  B =2 C= 3"), [("A", "1"), ("B", "2"), ("C", "3")]);
        assert_eq!(pairs("Nodes= BlockSize=18"), [("Nodes", ""), ("BlockSize", "18")]);
        assert_eq!(pairs("A=\"b c\" D=e"), [("A", "b c"), ("D", "e")]);
        assert_eq!(parse_entries("A=1 what B=2").1, [(4, "what")]);
        assert_eq!(parse_entries("=1").1, [(0, "=1")]);
    }

    #[test]
    fn comments_end_lines_and_backslashes_join_them() {
        let text = "A=1 # one\n#B=2\nC=3 \\\n  D=4 \\ \nE=5\n\nF=a\\#b\\";
        let lines = read_lines(text);
        let texts: Vec<&str> = lines.iter().map(ConfigLine::text).collect();
        assert_eq!(texts, ["A=1 ", "", "C=3   D=4 E=5", "", "F=a\\#b"]);
        assert_eq!(lines[0].comment.as_deref(), Some(" one"));
        assert_eq!(lines[1].comment.as_deref(), Some("B=2"));
        assert_eq!(lines[2].position(4), (4, 1));
        let d = lines[2].text().find('D').expect("it is there");
        assert_eq!(lines[2].position(d), (4, 3));
        assert_eq!(lines[2].position(lines[2].text().len()), (5, 4));
        assert_eq!(lines[2].line_number(), 3);
    }

    proptest! {
        #[test]
        fn any_line_is_read_to_its_end(line in "[ab=\"\\\\# \\t]{0,20}|\\PC{0,12}") {
            let (found, strange) = parse_entries(&line);
            for entry in found {
                prop_assert_eq!(line.get(entry.offset..entry.offset + entry.value.len()), Some(entry.value));
            }
            prop_assert!(strange.iter().all(|(at, word)| line[*at..].starts_with(word)));
            for line in read_lines(&line) {
                prop_assert!(1 <= line.position(line.text().len()).1);
            }
        }
    }
}
