//! Manifests: YAML and JSON with the environment of containers (`env` lists of
//! name and value, mappings such as `env_vars`), and the commands in them.
//!
//! What a cluster would fill in (`valueFrom`, ConfigMaps) is not known.

use serde_json::Map;
use serde_json::Value;

use super::script;
use super::settings::Again;
use super::settings::Settings;
use super::settings::mentions;
use crate::claims::reading::complain;
use crate::claims::reading::first_line;
use crate::claims::reading::remark;
use model::said::ProblemKind;
use model::span::LineEnds;

/// Whether a text is a document rather than a script: it opens with a brace, a
/// document mark, a list entry, or `key:`.
pub(super) fn looks_like(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_end);
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let Some(first) = lines.find(|line| !is_comment(line)) else { return false };
    let first = first.trim_start_matches('\u{feff}');
    if first.starts_with(['{', '[']) || first == "---" || first.starts_with("- ") {
        return true;
    }
    let key = first.split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
    key.is_some_and(|(key, _)| {
        let is_key =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '"');
        !key.is_empty() && key.chars().all(is_key)
    })
}

/// Reads all documents.
pub(super) fn read(settings: &mut Settings<'_>, text: &str) {
    let place = settings.said.source.place.clone();
    let documents: Vec<Value> = if text.trim_start().starts_with(['{', '[']) {
        match serde_json::from_str(text) {
            Ok(value) => vec![value],
            Err(error) => {
                let at = format!("{place}:{}:{}", error.line(), error.column());
                complain(settings.said, ProblemKind::Malformed, at, first_line(&error));
                return;
            }
        }
    } else {
        match serde_saphyr::from_multiple(text) {
            Ok(documents) => documents,
            Err(error) => {
                let (at, twice) = match error.location().map(|at| (at.line(), at.column())) {
                    Some((line, column)) => (
                        format!("{place}:{line}:{column}"),
                        format!("line {line} column {column}: "),
                    ),
                    None => (place, String::new()),
                };
                let message = first_line(&error).replacen("error: ", "", 1).replacen(&twice, "", 1);
                complain(settings.said, ProblemKind::Malformed, at, message);
                return;
            }
        }
    };
    let mut found = Finder { text, lines: LineEnds::of(text), from: [0; NAMES], misses: 0 };
    // Depth first and in the order of the text, without recursion.
    let mut left: Vec<&Value> = documents.iter().rev().collect();
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items.iter().rev()),
            Value::Object(object) => {
                mapping(settings, &mut found, object);
                left.extend(object.values().rev());
            }
            // A command, or a whole script.
            Value::String(command) if mentions(command, &["="]) => {
                let first = command.lines().find(|line| mentions(line, &["="])).unwrap_or_default();
                let before =
                    command.find(first).map_or(0, |at| command[..at].matches('\n').count());
                let line = found.line_of(first.trim(), NAMES - 1).saturating_sub(before).max(1);
                script::read(settings, command, line);
            }
            _ => {}
        }
    }
}

/// How often a name may be looked for in vain: each time costs the whole text.
const MOST_MISSES: usize = 20;

/// Names that are looked up on their own, and one place for commands.
const NAMES: usize = super::settings::VARIABLES.len() + super::settings::KEYS.len() + 1;

/// Finds the lines of names, each further than the one before: the readers of
/// YAML and JSON do not keep them.
struct Finder<'t> {
    text: &'t str,
    lines: LineEnds,
    from: [usize; NAMES],
    misses: usize,
}

impl Finder<'_> {
    fn line_of(&mut self, word: &str, slot: usize) -> usize {
        let from = self.from[slot];
        if MOST_MISSES < self.misses {
            return self.lines.line(from);
        }
        let found = self.text.get(from..).and_then(|rest| rest.find(word)).map(|at| from + at);
        match found {
            Some(at) => self.from[slot] = at + word.len(),
            None => self.misses += 1,
        }
        self.lines.line(found.unwrap_or(from))
    }

    fn line_of_name(&mut self, name: &str) -> usize {
        let names = super::settings::VARIABLES.iter().chain(&super::settings::KEYS);
        let slot = names.take_while(|known| **known != name).count();
        self.line_of(name, slot.min(NAMES - 1))
    }
}

/// What one mapping sets.
fn mapping(settings: &mut Settings<'_>, found: &mut Finder<'_>, object: &Map<String, Value>) {
    let is_option = |name: &&'static str| name.starts_with('-');
    if let Some(name) = object.get("name").and_then(Value::as_str)
        && let Some(name) = Settings::known(name).filter(|name| !is_option(name))
    {
        let line = found.line_of_name(name);
        if let Some(value) = object.get("value").and_then(scalar) {
            settings.set(name, &value, line, Again::Differs);
        } else if object.contains_key("valueFrom") {
            let note = format!("{name} is filled in by the cluster (line {line})");
            remark(settings.said, note);
        }
    }
    for (key, value) in object {
        let Some(name) = Settings::known(key).filter(|name| !is_option(name)) else { continue };
        let line = found.line_of_name(name);
        if let Some(value) = scalar(value) {
            settings.set(name, &value, line, Again::Differs);
        }
    }
}

/// A single value as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}
