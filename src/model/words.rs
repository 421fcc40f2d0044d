//! Words as one line that a POSIX shell reads back as the same words.

/// The line. `KEY=value` keeps its key outside the quotes, as people write it.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let bare =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_./,@%+-".contains(c));
    if !word.is_empty() && bare(word) {
        return word.to_owned();
    }
    if let Some((key, value)) = word.split_once('=')
        && key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    {
        return format!("{key}={}", if bare(value) { value.to_owned() } else { around(value) });
    }
    around(word)
}

/// Quotes around a text: double ones where nothing inside them is special.
fn around(text: &str) -> String {
    // `!` is special inside double quotes in an interactive bash.
    if !text.contains(['"', '\\', '$', '`', '!']) {
        return format!("\"{text}\"");
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(word: &str) -> String {
        line(&[word.to_owned()])
    }

    #[test]
    fn plain_words_stay_and_the_rest_is_quoted() {
        assert_eq!(one("NodeName=node0001"), "NodeName=node0001");
        assert_eq!(
            one("Reason=fabricgate:ab12:nvlink-low"),
            "Reason=\"fabricgate:ab12:nvlink-low\""
        );
        assert_eq!(one("a b"), "\"a b\"");
        assert_eq!(one(""), "\"\"");
        assert_eq!(one("it's"), "\"it's\"");
        assert_eq!(one("it's $1"), r"'it'\''s $1'");
        assert_eq!(one("X=$(rm)"), "X='$(rm)'");
        assert_eq!(one("a:`b`"), "'a:`b`'");
    }
}
