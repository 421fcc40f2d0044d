//! Commands as a person can paste them into a POSIX shell.
//!
//! Nothing here runs one.

use std::fmt::Write as _;

use super::plain::plain;

/// The command on one line, each argument quoted where it must be. An argument
/// that holds control characters is written as `$'...'`, which bash, zsh and
/// ksh read back exactly.
pub(super) fn line(command: &[String]) -> String {
    command.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" ")
}

fn quoted(argument: &str) -> String {
    // Brackets (host lists) are quoted too: zsh refuses a pattern without a match.
    let bare = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(bare) {
        argument.to_owned()
    } else if plain(argument) == argument {
        format!("'{}'", argument.replace('\'', "'\\''"))
    } else {
        let mut out = String::from("$'");
        for c in argument.chars() {
            match c {
                '\'' => out.push_str("\\'"),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                c if plain(c.encode_utf8(&mut [0; 4])) == c.to_string() => out.push(c),
                c => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        // Octal has a fixed length; `\x` would swallow digits.
                        let _ = write!(out, "\\{byte:03o}");
                    }
                }
            }
        }
        out.push('\'');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&str]) -> String {
        line(&parts.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(
            of(&["scontrol", "update", "NodeName=node0007", "Reason=fabricgate: low"]),
            "scontrol update NodeName=node0007 'Reason=fabricgate: low'"
        );
        assert_eq!(of(&["it's", ""]), "'it'\\''s' ''");
        assert_eq!(of(&["node[01-18]", "$(reboot)"]), "'node[01-18]' '$(reboot)'");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(of(&["a\x1b[1m\nb'\u{202e}"]), "$'a\\033[1m\\nb\\'\\342\\200\\256'");
    }
}
