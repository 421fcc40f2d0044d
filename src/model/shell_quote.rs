//! Formats arguments as one line that a POSIX shell parses back into the same arguments.

use std::fmt::Write as _;

/// The line. `KEY=value` keeps its key outside the quotes, as is usual in shells.
pub fn join_quoted(words: &[String]) -> String {
    words.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" ")
}

fn quote_word(word: &str) -> String {
    let bare =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_./,@%+-".contains(c));
    if !word.is_empty() && bare(word) {
        return word.to_owned();
    }
    if let Some((key, value)) = word.split_once('=')
        && key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    {
        return format!(
            "{key}={}",
            if bare(value) { value.to_owned() } else { quote_plain(value) }
        );
    }
    quote_plain(word)
}

/// Characters that a terminal interprets or hides: control characters, and those that change the
/// direction of text.
fn is_unsafe_to_show(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `$'...'`, which bash, zsh and ksh parse exactly.
fn quote_ansi_c(text: &str) -> String {
    let mut out = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if is_unsafe_to_show(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Octal has a fixed length; `\x` would swallow digits.
                    let _ = write!(out, "\\{byte:03o}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

/// Quotes a text: with double quotes where it contains none of their special characters.
fn quote_plain(text: &str) -> String {
    if text.contains(is_unsafe_to_show) {
        return quote_ansi_c(text);
    }
    // `!` is special inside double quotes in an interactive bash.
    if !text.contains(['"', '\\', '$', '`', '!']) {
        return format!("\"{text}\"");
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quote_one(word: &str) -> String {
        join_quoted(&[word.to_owned()])
    }

    #[test]
    fn plain_arguments_stay_and_the_rest_is_quoted() {
        assert_eq!(quote_one("NodeName=node0001"), "NodeName=node0001");
        assert_eq!(
            quote_one("Reason=fabricgate:nvlink-low:ab12"),
            "Reason=\"fabricgate:nvlink-low:ab12\""
        );
        assert_eq!(quote_one("a b"), "\"a b\"");
        assert_eq!(quote_one(""), "\"\"");
        assert_eq!(quote_one("it's"), "\"it's\"");
        assert_eq!(quote_one("a\u{1b}[1m\nb'\u{202e}"), "$'a\\033[1m\\012b\\'\\342\\200\\256'");
        assert_eq!(quote_one("it's $1"), r"'it'\''s $1'");
        assert_eq!(quote_one("X=$(rm)"), "X='$(rm)'");
        assert_eq!(quote_one("a:`b`"), "'a:`b`'");
    }
}
