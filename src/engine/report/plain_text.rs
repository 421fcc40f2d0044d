//! Text and numbers for display.
//!
//! Names and details come from files from outside. Characters that would control a terminal or
//! reorder a line are displayed as an escape instead. No layout here, and no markup.

use std::borrow::Cow;
use std::fmt::Write as _;

use model::text::is_control_or_invisible;
use model::unit::Unit;
use model::verdict::Locus;

/// `text` with all invisible and control characters escaped (`\x1b`, `
/// `, `\u{202e}`), so that it stays on its line and cannot mislead.
pub fn to_plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control_or_invisible) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if !is_control_or_invisible(c) => out.push(c),
            c if c.is_ascii() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(out)
}

/// Text of several lines for a terminal: control characters are escaped except line ends, tabs, and
/// the colours of reports (SGR: `ESC [` numbers `m`).
pub fn to_plain_lines(text: &str) -> Cow<'_, str> {
    let is_meant = |c: char| matches!(c, '\n' | '\t');
    if !text.chars().any(|c| is_control_or_invisible(c) && !is_meant(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| is_control_or_invisible(c) && !is_meant(c)) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let length = match colour_length(from) {
            Some(length) => {
                out.push_str(&from[..length]);
                length
            }
            None => {
                let length = from.chars().next().map_or(0, char::len_utf8);
                out.push_str(&to_plain(&from[..length]));
                length
            }
        };
        rest = &from[length..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The length of the colour sequence at the beginning of a text, if there is one.
fn colour_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    body[end..].starts_with('m').then_some(end + 3)
}

/// A JSON document with all control characters escaped, including those that JSON need not escape
/// (RFC 8259, section 7, requires that for U+0000 to U+001F only): it is safe to print.
pub fn to_plain_json(document: &str) -> Cow<'_, str> {
    // Line ends and blanks between values are not part of a text.
    let is_meant = |c: char| matches!(c, '\n' | '\t' | '\r');
    // Documents may have gigabytes, in pieces that nearly all need no escape.
    if document.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')) {
        return Cow::Borrowed(document);
    }
    if !document.chars().any(|c| is_control_or_invisible(c) && !is_meant(c)) {
        return Cow::Borrowed(document);
    }
    let mut out = String::with_capacity(document.len() + 64);
    for c in document.chars() {
        if is_control_or_invisible(c) && !is_meant(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// `text` after [`to_plain`], cut to `most` characters with an ellipsis.
pub(super) fn clip(text: &str, most: usize) -> String {
    let text = to_plain(text);
    if text.chars().count() <= most {
        return text.into_owned();
    }
    let mut out: String = text.chars().take(most.saturating_sub(1)).collect();
    out.push('…');
    out
}

/// A measured number with about four significant digits.
pub(super) fn format_number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "not a number".to_owned()
    } else if 1e7 <= size || (size < 1e-4 && 0.0 < size) {
        format!("{value:.3e}")
    } else if 100.0 <= size {
        format!("{value:.1}")
    } else if 10.0 <= size {
        format!("{value:.2}")
    } else if 0.1 <= size || size == 0.0 {
        format!("{value:.3}")
    } else if 0.01 <= size {
        format!("{value:.5}")
    } else if 1e-3 <= size {
        format!("{value:.6}")
    } else {
        format!("{value:.7}")
    }
}

/// A number in the form of its unit: counts have no decimals.
pub(super) fn format_amount(value: f64, unit: Option<Unit>) -> String {
    match unit {
        Some(Unit::Count) if value.fract() == 0.0 && value.abs() < 1e7 => format!("{value:.0}"),
        _ => format_number(value),
    }
}

/// The name of a unit, if it adds to the number.
pub(super) fn unit_name(unit: Option<Unit>) -> &'static str {
    unit.filter(|u| *u != Unit::Count).map_or("", Unit::as_str)
}

/// A number with its unit, if it has one.
pub(super) fn format_quantity(value: f64, unit: Option<Unit>) -> String {
    match unit {
        Some(Unit::Count) | None => format_amount(value, unit),
        Some(unit) => format!("{} {unit}", format_number(value)),
    }
}

/// `text` with paths below the run's source relative to it: the report names the source already,
/// and the line has no room to repeat it.
pub(super) fn relative_to_source<'t>(text: &'t str, source: &str) -> Cow<'t, str> {
    let source = source.trim_end_matches('/');
    if source.len() < 2 || source.contains(' ') {
        return Cow::Borrowed(text);
    }
    let folder = format!("{source}/");
    if text.contains(&folder) { Cow::Owned(text.replace(&folder, "")) } else { text.into() }
}

/// A rail as users write it: most are called `rail3` and need no prefix.
pub(super) fn rail_name(rail: &str) -> String {
    let name = clip(rail, 40);
    if name.starts_with("rail") { name } else { format!("rail {name}") }
}

/// The place of a finding for display. In documents and ids it is the locus itself.
pub(super) fn locus_place(locus: &Locus) -> String {
    let text = locus.to_string();
    match &locus.rail {
        Some(rail) if rail.starts_with("rail") => text.replacen(" rail rail", " rail", 1),
        _ => text,
    }
}

/// For example `1 node`, `18 nodes`.
pub(super) fn count_noun(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The first `most` names, and the number of further ones. Names that contain commas are separated
/// by semicolons.
pub(super) fn list_names<T: AsRef<str>>(names: &[T], most: usize) -> String {
    let shown: Vec<Cow<'_, str>> = names.iter().take(most).map(|n| to_plain(n.as_ref())).collect();
    let has_commas = shown.iter().any(|name| name.contains(", "));
    let mut out = shown.join(if has_commas { "; " } else { ", " });
    if most < names.len() {
        let _ = write!(out, " and {} more", names.len() - most);
    }
    out
}

/// Breaks `text` at spaces so that no line exceeds `width`, if its tokens fit. Longer tokens are
/// cut.
pub(super) fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        let chars: Vec<char> = word.chars().collect();
        if 0 < used && width < used + 1 + chars.len() {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if 0 < used {
            line.push(' ');
            used += 1;
        }
        for c in chars {
            if used == width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += 1;
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::verdict::LocusKind;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(to_plain("node0001"), "node0001");
        assert_eq!(
            to_plain("a\x1b[31mb\r\nc\u{202e}d\u{9b}"),
            "a\\x1b[31mb\\r\\nc\\u{202e}d\\u{9b}"
        );
        assert_eq!(to_plain("größe 節点"), "größe 節点");
    }

    #[test]
    fn lines_keep_their_ends_and_colours_and_nothing_else_that_steers() {
        assert_eq!(to_plain_lines("a\n\tb"), "a\n\tb");
        let red = "\u{1b}[1;31mred\u{1b}[0m\n";
        assert_eq!(to_plain_lines(&format!("é{red}\u{7}")), format!("é{red}\\x07"));
        assert_eq!(
            to_plain_lines("\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}1m"),
            "\\x1b[2J\\x1b]0;t\\x07\\u{9b}1m"
        );
        assert_eq!(to_plain_lines("\u{1b}[31"), "\\x1b[31");
    }

    #[test]
    fn an_escaped_document_is_printable_and_equal() {
        let value = serde_json::json!({"a\u{202e}": ["\u{9b}2J", "\u{e0041}", "é\n"], "b": 1.5});
        let document = serde_json::to_string_pretty(&value).expect("plain data");
        let shown = to_plain_json(&document);
        assert!(shown.chars().all(|c| c == '\n' || !is_control_or_invisible(c)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }

    #[test]
    fn numbers_keep_their_significant_digits() {
        assert_eq!(format_number(728.123), "728.1");
        assert_eq!(format_number(54.321), "54.32");
        assert_eq!(format_number(1.0), "1.000");
        assert_eq!(format_number(0.0), "0.000");
        assert_eq!(format_number(f64::NAN), "not a number");
        assert_eq!(format_number(1e300), "1.000e300");
        // A lab's link, in GB/s.
        assert_eq!(format_number(0.023_871), "0.02387");
        assert_eq!(format_number(0.002_388), "0.002388");
        assert_eq!(format_number(0.000_238_8), "0.0002388");
        assert_eq!(format_number(0.000_023_88), "2.388e-5");
    }

    #[test]
    fn counts_have_no_decimals_and_no_unit() {
        assert_eq!(format_quantity(17.0, Some(Unit::Count)), "17");
        assert_eq!(format_quantity(17.0, Some(Unit::GigabytesPerSecond)), "17.00 GB/s");
        assert_eq!(unit_name(Some(Unit::Count)), "");
    }

    #[test]
    fn a_list_of_names_is_unambiguous() {
        assert_eq!(list_names(&["a", "b", "c"], 2), "a, b and 1 more");
        assert_eq!(list_names(&["a and b, rail 0", "c"], 2), "a and b, rail 0; c");
    }

    #[test]
    fn a_rail_is_not_called_a_rail_twice() {
        assert_eq!(
            (rail_name("rail3"), rail_name("mlx5_0")),
            ("rail3".into(), "rail mlx5_0".into())
        );
        let mut locus = Locus::new(LocusKind::Rail);
        locus.node = Some("h3".into());
        locus.rail = Some("rail2".to_owned());
        assert_eq!(locus_place(&locus), "rail h3 rail2");
        locus.rail = Some("a".to_owned());
        assert_eq!(locus_place(&locus), "rail h3 rail a");
    }

    #[test]
    fn paths_below_the_source_are_relative_to_it() {
        assert_eq!(
            relative_to_source("cut in /a/b/nodes/n1/x.txt: end", "/a/b/"),
            "cut in nodes/n1/x.txt: end"
        );
        for source in ["", "/", "/a/b c", "/a/bb"] {
            assert_eq!(relative_to_source("/a/b/nodes/n1", source), "/a/b/nodes/n1", "{source}");
        }
    }

    #[test]
    fn wrapped_lines_keep_to_the_width_and_lose_no_word() {
        let text = "one two three four a_word_that_is_longer_than_any_line five";
        let lines = wrap_text(text, 12);
        assert!(lines.iter().all(|l| l.chars().count() <= 12), "{lines:?}");
        let joined: String = lines.concat().replace(' ', "");
        assert_eq!(joined, text.replace(' ', ""));
    }
}
