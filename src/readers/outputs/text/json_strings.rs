//! Lines inside JSON strings: Ansible results, container engine logs.
//!
//! Each string is converted back to its original line, in place, so that lines keep their numbers.
//! The surrounding text stays unchanged.

use serde_json::Value;

/// Ansible's keys for a list of lines.
const LISTS: [&str; 3] = ["\"stdout_lines\": [", "\"stderr_lines\": [", "\"msg\": ["];

/// Ansible's keys for the same lines in one string.
const WHOLE: [&str; 2] = ["\"stdout\": \"", "\"stderr\": \""];

/// The text with such strings as plain lines.
pub(super) fn unquote(text: String) -> String {
    if LISTS.iter().any(|list| text.contains(list)) {
        return unquote_lists(&text);
    }
    if text.trim_start().starts_with("{\"log\":") {
        return unquote_logs(&text);
    }
    text
}

/// `"stdout_lines": [` or `"stderr_lines": [`, one string per line, `]`.
fn unquote_lists(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        let bare = line.trim();
        if inside {
            let string = bare.strip_suffix(',').unwrap_or(bare);
            match serde_json::from_str::<String>(string) {
                Ok(line) => push_lines(&mut out, &line),
                Err(_) => {
                    inside = !bare.starts_with(']');
                    out.push('\n');
                }
            }
        } else if LISTS.iter().any(|list| bare.ends_with(list)) {
            inside = true;
            out.push('\n');
        } else if WHOLE.iter().any(|whole| bare.starts_with(whole)) {
            // A repetition of the same lines.
            out.push('\n');
        } else {
            out.push_str(line);
        }
    }
    out
}

/// `{"log":"...\n","stream":"stdout","time":"..."}`, one object per line.
fn unquote_logs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match serde_json::from_str::<Value>(line.trim()) {
            Ok(record) if record["log"].is_string() => {
                let log = record["log"].as_str().unwrap_or_default();
                push_lines(&mut out, log);
            }
            _ => out.push_str(line),
        }
    }
    out
}

/// Writes the string as one line, whatever line ends it contains.
fn push_lines(out: &mut String, text: &str) {
    let text = text.strip_suffix('\n').unwrap_or(text);
    out.push_str(&super::normalise(text).replace('\n', " "));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use crate::outputs::text::decode;

    #[test]
    fn strings_become_their_original_lines_with_their_numbers() {
        let ansible = "n1 | SUCCESS => {\n    \"stdout\": \"a\\n\\tb\",\n    \"stdout_lines\": [\n\
                       \x20       \"a\",\n        \"\\tb \\\"c\\\"\"\n    ]\n}\n";
        assert_eq!(decode(ansible.as_bytes()), "n1 | SUCCESS => {\n\n\na\n\tb \"c\"\n\n}\n");
        let both = "n1 | FAILED! => {\n    \"stderr\": \"x\\ny\",\n    \"stderr_lines\": [\n        \"x\",\n\
                    \x20       \"y\"\n    ],\n    \"stdout\": \"\",\n    \"stdout_lines\": []\n}\n";
        let undone = "n1 | FAILED! => {\n\n\nx\ny\n\n\n    \"stdout_lines\": []\n}\n";
        assert_eq!(decode(both.as_bytes()), undone);
        let docker =
            "{\"log\":\"a\\n\",\"stream\":\"stdout\",\"time\":\"t\"}\n{\"log\":\"\\tb\\n\"}\n";
        assert_eq!(decode(docker.as_bytes()), "a\n\tb\n");
    }

    #[test]
    fn other_documents_stay_as_they_are() {
        for text in ["{\"logs\": [\n\"a\"]}\n", "[\n \"a\",\n]\n", "{\"log\": cut\n"] {
            assert_eq!(decode(text.as_bytes()), text);
        }
    }
}
