//! Values as YAML in block style, in key order: for version control and diffs.
//!
//! A text is double-quoted if a parser might read it as another type.

use serde_json::Value;

use model::text::is_control_or_invisible;

pub(super) fn render_document(value: &Value) -> String {
    let mut out = String::new();
    write_block(value, 0, &mut out);
    out
}

/// Several documents after these comment lines.
pub(super) fn render_documents(comment: &str, values: &[Value]) -> String {
    let mut out = comment.to_owned();
    for value in values {
        out.push_str("---\n");
        out.push_str(&render_document(value));
    }
    out
}

fn write_block(value: &Value, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                out.push_str(&format!("{pad}{}:", format_scalar(&Value::from(key.as_str()))));
                write_after_key(value, depth, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inside = String::new();
                write_block(item, depth + 1, &mut inside);
                // The first line of an item follows its dash.
                let item = inside.strip_prefix(&"  ".repeat(depth + 1)).unwrap_or(&inside);
                out.push_str(&format!("{pad}- {item}"));
            }
        }
        other => out.push_str(&format!("{pad}{}\n", format_scalar(other))),
    }
}

/// A value after its key.
fn write_after_key(value: &Value, depth: usize, out: &mut String) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_nested {
        out.push('\n');
        write_block(value, depth + 1, out);
    } else {
        out.push_str(&format!(" {}\n", format_scalar(value)));
    }
}

fn format_scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        // JSON strings are YAML double-quoted strings (YAML 1.2.2, section 1.3), except for
        // characters that YAML does not consider printable (section 5.1).
        other => other.to_string().chars().map(escape_char).collect(),
    }
}

/// A character inside double quotes that is valid in YAML and safe on a terminal.
fn escape_char(c: char) -> String {
    if !is_control_or_invisible(c) {
        return c.to_string();
    }
    match u32::from(c) {
        code if code <= 0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// Whether a text needs no quotes: a token that begins with a letter and is neither a boolean nor
/// null.
fn is_plain(text: &str) -> bool {
    const TAKEN: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(inside)
        && !TAKEN.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_values_are_read_back_equal() {
        let value = json!({
            "kind": "X", "none": null, "list": [{"a": 1, "b": [true, "true"]}, "x: y", [1, [2]]],
            "empty": {}, "also": [], "texts": ["\u{9b}1m\u{202e}\u{feff}\u{e0041}\u{7f}", "on", "1", "- a", "# b", "a\nb", "ü\"\\", "", "y", "1e3"],
            "fabricgate.io/run": "2026", "nested": {"deep": {"deeper": "node-1"}},
        });
        let text = render_document(&value);
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read, value, "{text}");
        assert!(!text.chars().any(|c| c != '\n' && is_control_or_invisible(c)), "{text:?}");
    }
}
