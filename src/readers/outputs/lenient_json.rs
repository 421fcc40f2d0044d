//! A JSON reader for outputs that are not valid JSON.
//!
//! Tools print JSON between log lines, write a bare `inf` or `nan`, and are killed half-way. This
//! reader finds the object in the noise, keeps the complete parts, and reports where it stopped. It
//! never fails and never recurses deeper than [`DEEPEST`].

use serde_json::{Map, Number, Value};

use model::parse_output::{OutputProblem, OutputProblemKind};

/// No tool's output has deeper nesting.
const DEEPEST: usize = 64;

/// The maximum number of passes over the text while looking for the object: garbage made of braces
/// must not take more than linear time.
const MOST_PASSES: usize = 8;

/// The result of reading.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonDocument {
    /// The value, as far as it could be read.
    pub value: Value,
    /// Why reading stopped early, with the line; `None` for a complete object.
    pub stopped: Option<JsonStop>,
    /// A number was `inf` or `nan` and became null.
    pub not_finite: bool,
    /// Line on which the object opens, from 1.
    pub line: u32,
    /// The byte offset at which the object ended, or reading stopped.
    pub end: usize,
}

/// The place at which reading stopped, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonStop {
    /// Line, from 1.
    pub line: u32,
    /// The token that was expected there.
    pub expected: &'static str,
    /// The text ended (otherwise it continued with an unexpected token).
    pub at_end: bool,
}

/// The first object in `text` that has one of `keys` at its top level. A complete object wins over
/// a broken one.
pub fn find_document(text: &str, keys: &[&str]) -> Option<JsonDocument> {
    find_document_where(text, |map| keys.iter().any(|key| map.contains_key(*key)))
}

impl JsonDocument {
    /// Whether another object that satisfies `wanted` follows this one in the same text.
    pub fn is_followed(&self, text: &str, wanted: impl Fn(&Map<String, Value>) -> bool) -> bool {
        let behind = text.get(self.end..).unwrap_or_default();
        self.stopped.is_none() && find_document_where(behind, wanted).is_some()
    }

    /// The problem to report if [another document](Self::is_followed) follows.
    pub fn extra_document_problem(&self) -> OutputProblem {
        let what = "another document follows this one and is not read";
        OutputProblem::new(OutputProblemKind::Unrecognised, what).at_line(self.line)
    }
}

/// The first object in `text` whose top level satisfies `wanted`. A complete object wins over a
/// broken one.
pub fn find_document_where(
    text: &str,
    wanted: impl Fn(&Map<String, Value>) -> bool,
) -> Option<JsonDocument> {
    let mut broken: Option<JsonDocument> = None;
    let mut from = 0;
    let mut budget = text.len() * MOST_PASSES;
    while 0 < budget {
        let Some(at) = text[from..].find('{').map(|i| from + i) else { break };
        let mut reader = JsonReader {
            bytes: text.as_bytes(),
            text,
            at,
            depth: 0,
            stop: None,
            not_finite: false,
        };
        let value = reader.read_value();
        budget = budget.saturating_sub((reader.at - at).max(1));
        if let Value::Object(map) = &value
            && wanted(map)
        {
            let line = line_number(text, at);
            let end = reader.stop.map_or(reader.at, |(at, _)| at).min(text.len());
            let stopped = reader.stop.map(|(at, expected)| JsonStop {
                line: line_number(text, at),
                expected,
                at_end: text[at.min(text.len())..].trim().is_empty(),
            });
            let document =
                JsonDocument { value, stopped, not_finite: reader.not_finite, line, end };
            if document.stopped.is_none() {
                return Some(document);
            }
            broken.get_or_insert(document);
        }
        // Inside a complete object no new top-level object can start.
        from = if reader.stop.is_none() { reader.at.max(at + 1) } else { at + 1 };
    }
    broken
}

fn line_number(text: &str, at: usize) -> u32 {
    let newlines = text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count();
    u32::try_from(newlines).unwrap_or(u32::MAX - 1) + 1
}

struct JsonReader<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
    depth: usize,
    stop: Option<(usize, &'static str)>,
    not_finite: bool,
}

impl JsonReader<'_> {
    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn fail(&mut self, expected: &'static str) {
        self.stop.get_or_insert((self.at, expected));
    }

    /// Reads one value; `Null` and a stop if it is missing.
    fn read_value(&mut self) -> Value {
        self.skip_blanks();
        match self.peek() {
            Some(b'{') => self.read_nested(Self::read_object),
            Some(b'[') => self.read_nested(Self::array),
            Some(b'"') => self.string().map_or(Value::Null, Value::String),
            Some(_) => self.word(),
            None => {
                self.fail("a value");
                Value::Null
            }
        }
    }

    fn read_nested(&mut self, read: fn(&mut Self) -> Value) -> Value {
        if self.depth == DEEPEST {
            self.fail("less nesting");
            return Value::Null;
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn read_object(&mut self) -> Value {
        let mut map = Map::new();
        self.at += 1;
        self.skip_blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Value::Object(map);
        }
        loop {
            self.skip_blanks();
            if self.peek() != Some(b'"') {
                self.fail("a key in quotes");
                break;
            }
            let Some(key) = self.string() else { break };
            self.skip_blanks();
            if self.peek() != Some(b':') {
                self.fail("a colon");
                break;
            }
            self.at += 1;
            let value = self.read_value();
            // A value that broke off is kept only if it has content.
            if self.stop.is_none() || value.is_object() || value.is_array() {
                map.insert(key, value);
            }
            if self.stop.is_some() || !self.goes_on(b'}', "a comma or }") {
                break;
            }
        }
        Value::Object(map)
    }

    fn array(&mut self) -> Value {
        let mut items = Vec::new();
        self.at += 1;
        self.skip_blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Value::Array(items);
        }
        loop {
            let value = self.read_value();
            if self.stop.is_none() || value.is_object() || value.is_array() {
                items.push(value);
            }
            if self.stop.is_some() || !self.goes_on(b']', "a comma or ]") {
                break;
            }
        }
        Value::Array(items)
    }

    /// After a member: true at a comma, false at the end or at a break.
    fn goes_on(&mut self, close: u8, expected: &'static str) -> bool {
        self.skip_blanks();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                true
            }
            Some(b) if b == close => {
                self.at += 1;
                false
            }
            _ => {
                self.fail(expected);
                false
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let start = self.at;
        let mut end = start + 1;
        loop {
            match self.bytes.get(end) {
                Some(b'\\') => end += 2,
                Some(b'"') => break,
                Some(_) => end += 1,
                None => {
                    self.at = self.bytes.len();
                    self.fail("the end of a string");
                    return None;
                }
            }
        }
        self.at = end + 1;
        let raw = self.text.get(start..=end)?;
        // serde_json refuses raw tabs and newlines inside strings; tools print them.
        if let Ok(text) = serde_json::from_str::<String>(raw) {
            return Some(text);
        }
        let inner = &raw[1..raw.len() - 1];
        let escaped = inner.replace('\t', "\\t").replace('\n', "\\n");
        Some(serde_json::from_str(&format!("\"{escaped}\"")).unwrap_or_else(|_| inner.to_owned()))
    }

    fn word(&mut self) -> Value {
        let start = self.at;
        while self
            .peek()
            .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        {
            self.at += 1;
        }
        let word = &self.text[start..self.at];
        match word {
            "true" => return Value::Bool(true),
            "false" => return Value::Bool(false),
            "null" => return Value::Null,
            "inf" | "-inf" | "nan" | "-nan" | "NaN" | "Infinity" | "-Infinity" => {
                self.not_finite = true;
                return Value::Null;
            }
            _ => {}
        }
        // A number at the very end of the text may have lost digits.
        if self.at == self.bytes.len() {
            self.fail("the end of a number");
            return Value::Null;
        }
        if let Ok(whole) = word.parse::<u64>() {
            return Value::Number(whole.into());
        }
        let number = super::text::parse_number(word).and_then(Number::from_f64);
        match number {
            Some(number) => Value::Number(number),
            None => {
                self.at = start;
                self.fail("a value");
                Value::Null
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_found_between_log_lines_with_braces() {
        let text = "WARNING: {\nWARNING: {{}}}}\n{ \"a\" : [1, \"x\"] }\nWARNING: }{";
        let found = find_document(text, &["a"]).expect("an object");
        assert_eq!(found.value, serde_json::json!({"a": [1, "x"]}));
        assert_eq!((found.stopped, found.line), (None, 3));
    }

    #[test]
    fn complete_values_before_the_cut_are_kept_and_a_cut_number_is_not() {
        let found = find_document("{\"a\": 1, \"b\": [1.5, 2, 3", &["a"]).expect("an object");
        assert_eq!(found.value, serde_json::json!({"a": 1, "b": [1.5, 2]}));
        assert!(found.stopped.expect("it stopped").at_end);
    }

    #[test]
    fn bare_inf_and_nan_become_null_and_are_reported() {
        let found =
            find_document("{\"a\": inf, \"b\": -nan, \"c\": 2.5}", &["a"]).expect("an object");
        assert_eq!(found.value, serde_json::json!({"a": null, "b": null, "c": 2.5}));
        assert!(found.not_finite && found.stopped.is_none());
    }

    #[test]
    fn deep_nesting_and_many_braces_end_in_time() {
        let deep = "[".repeat(100_000);
        assert!(find_document(&format!("{{\"a\": {deep}"), &["a"]).is_some());
        assert_eq!(find_document(&"{".repeat(100_000), &["a"]), None);
    }

    #[test]
    fn a_raw_tab_inside_a_string_is_read() {
        let found = find_document("{\"a\": \"x\ty\"}", &["a"]).expect("an object");
        assert_eq!(found.value, serde_json::json!({"a": "x\ty"}));
    }
}
