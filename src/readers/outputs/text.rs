//! Tool output as lines, without surrounding noise.
//!
//! Launchers and copy-and-paste wrap outputs: colours, foreign line ends, non-ASCII blanks, and the
//! prefixes that `line_prefix` removes. Only these are removed; the parsers interpret the lines.
//! Separate digits are never joined: an invalid byte becomes U+FFFD, so a damaged number is no
//! longer a number.

mod json_strings;
mod line_prefix;

use std::borrow::Cow;

/// One line without its wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine<'a> {
    /// Line number in the file, from 1.
    pub number: u32,
    /// The text, right-trimmed; leading blanks are kept.
    pub text: &'a str,
    /// Task or rank that a launcher put in front, if any.
    pub label: Option<u32>,
    /// The launcher marked the line as standard error.
    pub stderr: bool,
    /// The host that a launcher put in front, if any.
    pub host: Option<&'a str>,
}

impl OutputLine<'_> {
    /// The tokens of the line.
    pub fn split_words(&self) -> std::str::SplitWhitespace<'_> {
        self.text.split_whitespace()
    }

    /// The text without surrounding blanks.
    pub fn trimmed(&self) -> &str {
        self.text.trim()
    }

    /// Whether a user cut text out here: `...`, `[...]`, an ellipsis.
    pub fn is_elision(&self) -> bool {
        matches!(
            self.trimmed(),
            "..."
                | "...."
                | "....."
                | "[...]"
                | "[…]"
                | "…"
                | "(...)"
                | "<...>"
                | "[snip]"
                | "<snip>"
        )
    }
}

/// Decodes bytes as text: lossy UTF-8, or UTF-16 with a byte order mark; line ends become `\n`,
/// colours are removed, other control characters are replaced.
pub fn decode(bytes: &[u8]) -> String {
    let text: Cow<'_, str> = match bytes {
        [0xff, 0xfe, rest @ ..] if rest.len() % 2 == 0 => {
            decode_utf16(rest, u16::from_le_bytes).into()
        }
        [0xfe, 0xff, rest @ ..] if rest.len() % 2 == 0 => {
            decode_utf16(rest, u16::from_be_bytes).into()
        }
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest),
        _ => String::from_utf8_lossy(bytes),
    };
    json_strings::unquote(normalise(&text))
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&units)
}

/// Converts line ends to `\n`, removes escape sequences, and replaces control characters other than
/// blanks with U+FFFD.
fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                // "\r\n", "\r\r\n" and "\n\r" are one line end each.
                while chars.peek() == Some(&'\r') {
                    chars.next();
                }
                if chars.peek() == Some(&'\n') {
                    chars.next();
                    out.push('\n');
                } else if !out.ends_with('\n') {
                    out.push('\n');
                }
            }
            '\u{1b}' => skip_escape(&mut chars),
            '\n' | '\t' => out.push(c),
            // A byte order mark of an appended file.
            '\u{feff}' if out.is_empty() || out.ends_with('\n') => {}
            // Web pages and word processors separate columns with these.
            c if c.is_whitespace() && !c.is_ascii() && !c.is_control() => out.push(' '),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Skips the rest of an ANSI escape sequence.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            // CSI: parameters and intermediates up to one final byte.
            while let Some(&c) = chars.peek() {
                if !('\u{20}'..='\u{7e}').contains(&c) {
                    break;
                }
                chars.next();
                if ('\u{40}'..='\u{7e}').contains(&c) {
                    break;
                }
            }
        }
        Some(']') => {
            // OSC: up to BEL or the string terminator, on one line.
            while let Some(&c) = chars.peek() {
                if c == '\n' {
                    break;
                }
                chars.next();
                if c == '\u{7}' {
                    break;
                }
                if c == '\u{1b}' {
                    if chars.peek() == Some(&'\\') {
                        chars.next();
                    }
                    break;
                }
            }
        }
        Some('(' | ')') => {
            chars.next();
            chars.next();
        }
        _ => {}
    }
}

/// The lines of a decoded text, without launcher prefixes.
pub fn split_lines(text: &str) -> Vec<OutputLine<'_>> {
    let mut lines: Vec<OutputLine<'_>> = text
        .split('\n')
        .zip(1u32..)
        .map(|(text, number)| OutputLine {
            number,
            text: text.trim_end(),
            label: None,
            stderr: false,
            host: None,
        })
        .collect();
    if lines.last().is_some_and(|l| l.text.is_empty()) {
        lines.pop();
    }
    line_prefix::strip_prefixes(&mut lines);
    lines
}

/// Parses a finite, plain decimal number: digits, at most one point, an optional exponent, an
/// optional minus. Rejects `inf`, `nan` and `+`.
pub fn parse_number(word: &str) -> Option<f64> {
    let body = word.strip_prefix('-').unwrap_or(word);
    let first = body.bytes().next()?;
    let plain =
        body.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !plain || !first.is_ascii_digit() {
        return None;
    }
    word.parse::<f64>().ok().filter(|v| v.is_finite())
}

/// Parses a plain non-negative integer.
pub fn parse_integer(word: &str) -> Option<u64> {
    let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| word.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &str) -> Vec<String> {
        split_lines(&decode(input.as_bytes())).iter().map(|l| l.text.to_owned()).collect()
    }

    #[test]
    fn foreign_line_ends_are_line_ends() {
        for end in ["\n", "\r\n", "\r\r\n", "\r", "\n\r"] {
            assert_eq!(texts(&format!("a{end}b{end}")), ["a", "b"], "{end:?}");
        }
    }

    #[test]
    fn colours_go_and_damage_never_joins_digits() {
        assert_eq!(texts("\u{1b}[4mGPU0\u{1b}[0m"), ["GPU0"]);
        let damaged = decode(b"27\x006.07");
        assert_eq!(parse_number(damaged.trim()), None);
    }

    #[test]
    fn blanks_of_web_pages_are_blanks_and_a_mark_inside_a_number_is_damage() {
        assert_eq!(texts("a\u{a0}\u{a0}b\u{202f}c"), ["a  b c"]);
        assert_eq!(texts("\u{feff}a\n\u{feff}b"), ["a", "b"]);
        assert_eq!(parse_number("1\u{feff}2"), None);
    }

    #[test]
    fn mpi_tags_give_rank_and_stream() {
        let text = decode(
            b"   [1,12]<stderr>:boom\n[prterun-host-7@1,3]<stdout>:  0 1\n[1,0]<stdout>: 0  2",
        );
        let got = split_lines(&text);
        assert_eq!((got[0].text, got[0].label, got[0].stderr), ("boom", Some(12), true));
        assert_eq!((got[1].text, got[1].label), (" 0 1", Some(3)));
        assert_eq!((got[2].text, got[2].label), (" 0  2", Some(0)));
    }

    #[test]
    fn srun_labels_are_stripped_only_where_most_lines_have_one() {
        assert_eq!(texts(" 0: a\n 1: b\n10:   c"), ["a", "b", "  c"]);
        assert_eq!(texts("12: x\nplain\nplain"), ["12: x", "plain", "plain"]);
    }

    #[test]
    fn only_plain_finite_numbers_are_numbers() {
        assert_eq!(parse_number("8.38861e+06"), Some(8_388_610.0));
        assert_eq!(parse_number("-1"), Some(-1.0));
        for word in ["inf", "nan", "N/A", "1e999", "+1", ".5", "1_0", "", "-", "0x1f", "1.2.3"] {
            assert_eq!(parse_number(word), None, "{word}");
        }
    }
}
