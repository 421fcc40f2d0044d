//! Safe display of text, similarity of names, and shares as percentages.

/// Control characters, line separators, and the invisible format characters
/// that reorder or hide text (UAX #9 explicit formatting, zero width, tags).
pub fn is_control_or_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{fffe}'
                | '\u{ffff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// A name or a fact from a file, safe to display: without [`is_control_or_invisible`] characters,
/// blanks folded, at most 200 characters.
pub fn clean(text: &str) -> String {
    const LONGEST: usize = 200;
    let mut out = String::with_capacity(text.len().min(LONGEST));
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        // A log line may contain a single word of a million characters.
        out.extend(
            word.chars()
                .filter(|c| !is_control_or_invisible(*c) && *c != '\u{fffd}')
                .take(LONGEST + 1),
        );
        if 4 * LONGEST < out.len() {
            break;
        }
    }
    if let Some((at, _)) = out.char_indices().nth(LONGEST) {
        out.truncate(at);
        out.push('…');
    }
    out
}

/// The number of edits between two words: characters changed, inserted or deleted (Levenshtein
/// 1966).
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A share as a percentage with one decimal.
pub fn format_percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "not a number".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_has_no_control_characters_and_an_end() {
        assert_eq!(clean("a\u{0}b\t c\n"), "ab c");
        assert_eq!(clean("n\u{202e}1\u{200b}\u{9b}2"), "n12");
        assert_eq!(clean(&"x".repeat(500)).chars().count(), 201);
    }

    #[test]
    fn edits_are_counted_in_characters() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "äb"), 2);
    }
}
