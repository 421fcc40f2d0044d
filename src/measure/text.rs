//! Tool output as lines, with the noise around it taken away.
//!
//! Launchers and copy-and-paste wrap outputs: MPI tags, `srun -l` labels,
//! kubectl prefixes, colours, foreign line ends, quote marks. This file strips
//! those and nothing else; what a line means is for the parsers. It never
//! joins digits that were apart: a byte that is no text becomes U+FFFD, so a
//! damaged number stops being a number.

use std::borrow::Cow;

/// One line without its wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Line number in the file, from 1.
    pub number: u32,
    /// The text, right-trimmed; leading blanks are kept.
    pub text: &'a str,
    /// Task or rank that a launcher put in front, when one did.
    pub label: Option<u32>,
    /// The launcher says that this came from standard error.
    pub stderr: bool,
}

impl Line<'_> {
    /// The words of the line.
    pub fn words(&self) -> std::str::SplitWhitespace<'_> {
        self.text.split_whitespace()
    }

    /// The text without blanks around it.
    pub fn trimmed(&self) -> &str {
        self.text.trim()
    }

    /// Whether a person cut something out here: `...`, `[...]`, an ellipsis.
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

/// Bytes as text: UTF-8 or what is left of it, UTF-16 where a byte order mark
/// says so, line ends as `\n`, colours gone, other control characters replaced.
pub fn decode(bytes: &[u8]) -> String {
    let text: Cow<'_, str> = match bytes {
        [0xff, 0xfe, rest @ ..] if rest.len() % 2 == 0 => utf16(rest, u16::from_le_bytes).into(),
        [0xfe, 0xff, rest @ ..] if rest.len() % 2 == 0 => utf16(rest, u16::from_be_bytes).into(),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest),
        _ => String::from_utf8_lossy(bytes),
    };
    normalise(&text)
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&units)
}

/// Line ends become `\n`, escape sequences go, control characters that are not
/// blanks become U+FFFD.
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

/// The lines of a decoded text, without launchers' prefixes.
pub fn lines(text: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = text
        .split('\n')
        .zip(1u32..)
        .map(|(text, number)| {
            let mut line = Line { number, text: text.trim_end(), label: None, stderr: false };
            strip_mpi_tag(&mut line);
            strip_kubectl_prefix(&mut line);
            line
        })
        .collect();
    if lines.last().is_some_and(|l| l.text.is_empty()) {
        lines.pop();
    }
    strip_labels(&mut lines);
    lines
}

/// Open MPI: `[1,0]<stdout>:`, with or without blanks or a date in front, and
/// `[prterun-host-12@1,0]<stderr>: ` of later releases.
fn strip_mpi_tag<'a>(line: &mut Line<'a>) {
    const FURTHEST: usize = 160;
    let mut cut = line.text.len().min(FURTHEST);
    while !line.text.is_char_boundary(cut) {
        cut -= 1;
    }
    let head = &line.text[..cut];
    for (tag, stderr) in [("]<stdout>:", false), ("]<stderr>:", true)] {
        let Some(at) = head.find(tag) else { continue };
        let Some(open) = head[..at].rfind('[') else { continue };
        let inside = &head[open + 1..at];
        let rank = inside.rsplit(',').next().and_then(|r| r.trim().parse().ok());
        if rank.is_none() {
            continue;
        }
        line.label = rank;
        line.stderr = stderr;
        let rest = &line.text[at + tag.len()..];
        // PRRTE puts one blank after the colon; a matrix row keeps its own.
        line.text =
            if inside.contains('@') { rest.strip_prefix(' ').unwrap_or(rest) } else { rest };
        return;
    }
}

/// kubectl `--prefix`: `[pod/NAME/CONTAINER] `.
fn strip_kubectl_prefix(line: &mut Line<'_>) {
    if let Some(rest) = line.text.trim_start().strip_prefix("[pod/")
        && let Some(end) = rest.find("] ")
    {
        line.text = &rest[end + 2..];
    }
}

/// `srun -l` (`0: `, padded) and Intel MPI `-l` (`[0] `): only where most
/// lines carry one, since single lines may look so by themselves.
fn strip_labels(lines: &mut [Line<'_>]) {
    fn srun(text: &str) -> Option<(u32, &str)> {
        let (label, rest) = text.trim_start().split_once(':')?;
        let rank = all_digits(label)?;
        Some((rank, rest.strip_prefix(' ').unwrap_or(rest)))
    }
    fn intel(text: &str) -> Option<(u32, &str)> {
        let (label, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
        Some((all_digits(label)?, rest.strip_prefix(' ').unwrap_or(rest)))
    }
    for style in [srun as fn(&str) -> Option<(u32, &str)>, intel] {
        let filled = lines.iter().filter(|l| !l.text.trim().is_empty());
        let (with, all) = filled.fold((0usize, 0usize), |(with, all), l| {
            (with + usize::from(style(l.text).is_some()), all + 1)
        });
        if with < 2 || with * 2 <= all {
            continue;
        }
        for line in lines.iter_mut() {
            if let Some((rank, rest)) = style(line.text) {
                line.label = Some(rank);
                line.text = rest;
            }
        }
        return;
    }
}

fn all_digits(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A finite, plain decimal number: digits, at most one point, an optional
/// exponent, an optional minus. Nothing else: no `inf`, no `nan`, no `+`.
pub fn number(word: &str) -> Option<f64> {
    let body = word.strip_prefix('-').unwrap_or(word);
    let first = body.bytes().next()?;
    let plain =
        body.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !plain || !first.is_ascii_digit() {
        return None;
    }
    word.parse::<f64>().ok().filter(|v| v.is_finite())
}

/// A plain non-negative integer.
pub fn integer(word: &str) -> Option<u64> {
    let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| word.parse().ok()).flatten()
}

/// A name or a fact from a file, safe to show: no control characters, blanks
/// folded, at most 200 characters.
pub fn clean(text: &str) -> String {
    const LONGEST: usize = 200;
    let mut out = String::with_capacity(text.len().min(LONGEST));
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().filter(|c| !c.is_control() && *c != '\u{fffd}'));
    }
    if let Some((at, _)) = out.char_indices().nth(LONGEST) {
        out.truncate(at);
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &str) -> Vec<String> {
        lines(&decode(input.as_bytes())).iter().map(|l| l.text.to_owned()).collect()
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
        assert_eq!(number(damaged.trim()), None);
    }

    #[test]
    fn mpi_tags_give_rank_and_stream() {
        let text = decode(
            b"   [1,12]<stderr>:boom\n[prterun-host-7@1,3]<stdout>:  0 1\n[1,0]<stdout>: 0  2",
        );
        let got = lines(&text);
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
        assert_eq!(number("8.38861e+06"), Some(8_388_610.0));
        assert_eq!(number("-1"), Some(-1.0));
        for word in ["inf", "nan", "N/A", "1e999", "+1", ".5", "1_0", "", "-", "0x1f", "1.2.3"] {
            assert_eq!(number(word), None, "{word}");
        }
    }

    #[test]
    fn shown_text_has_no_control_characters_and_an_end() {
        assert_eq!(clean("a\u{0}b\t c\n"), "ab c");
        assert_eq!(clean(&"x".repeat(500)).chars().count(), 201);
    }
}
