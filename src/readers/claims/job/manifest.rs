//! Manifests: YAML and JSON with the environment of containers (`env` lists of name and value,
//! mappings such as `env_vars`), and the commands in them.
//!
//! Values that the cluster fills in (`valueFrom`, ConfigMaps) are unknown.

use serde_json::{Map, Value};

use super::script;
use super::settings::{JobSettingsCollector, RepeatPolicy, mentions};
use crate::claims::reader_util::{first_line, push_note, push_problem};
use model::source_report::SourceProblemKind;
use model::text_error::LineIndex;

/// Whether a text is a document and not a script: it starts with a brace, a document marker, a
/// list entry, or `key:`.
pub(super) fn is_manifest(text: &str) -> bool {
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

pub(super) fn read(settings: &mut JobSettingsCollector<'_>, text: &str) {
    let place = settings.report.source.place.clone();
    let documents: Vec<Value> = if text.trim_start().starts_with(['{', '[']) {
        match serde_json::from_str(text) {
            Ok(value) => vec![value],
            Err(error) => {
                let at = format!("{place}:{}:{}", error.line(), error.column());
                push_problem(settings.report, SourceProblemKind::Malformed, at, first_line(&error));
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
                push_problem(settings.report, SourceProblemKind::Malformed, at, message);
                return;
            }
        }
    };
    let mut found =
        LineFinder { text, lines: LineIndex::new(text), from: [0; LOOKUP_SLOTS], misses: 0 };
    // Depth first and in the order of the text, without recursion.
    let mut left: Vec<&Value> = documents.iter().rev().collect();
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items.iter().rev()),
            Value::Object(object) => {
                read_mapping(settings, &mut found, object);
                left.extend(object.values().rev());
            }
            // A command, or a complete script.
            Value::String(command) if mentions(command, &["="]) => {
                let first = command.lines().find(|line| mentions(line, &["="])).unwrap_or_default();
                let before =
                    command.find(first).map_or(0, |at| command[..at].matches('\n').count());
                let line =
                    found.line_of(first.trim(), LOOKUP_SLOTS - 1).saturating_sub(before).max(1);
                script::read(settings, command, line);
            }
            _ => {}
        }
    }
}

/// Limit for failed searches of a name: each one scans the whole text.
const MAX_MISSES: usize = 20;

/// Names that are searched individually, and one slot for commands.
const LOOKUP_SLOTS: usize = super::settings::VARIABLES.len() + super::settings::POD_KEYS.len() + 1;

/// Finds the lines of names, each after the previous one: the YAML and JSON parsers do not keep
/// positions.
struct LineFinder<'t> {
    text: &'t str,
    lines: LineIndex,
    from: [usize; LOOKUP_SLOTS],
    misses: usize,
}

impl LineFinder<'_> {
    fn line_of(&mut self, word: &str, slot: usize) -> usize {
        let from = self.from[slot];
        if MAX_MISSES < self.misses {
            return self.lines.line_at(from);
        }
        let found = self.text.get(from..).and_then(|rest| rest.find(word)).map(|at| from + at);
        match found {
            Some(at) => self.from[slot] = at + word.len(),
            None => self.misses += 1,
        }
        self.lines.line_at(found.unwrap_or(from))
    }

    fn line_of_name(&mut self, name: &str) -> usize {
        let names = super::settings::VARIABLES.iter().chain(&super::settings::POD_KEYS);
        let slot = names.take_while(|known| **known != name).count();
        self.line_of(name, slot.min(LOOKUP_SLOTS - 1))
    }
}

fn read_mapping(
    settings: &mut JobSettingsCollector<'_>,
    found: &mut LineFinder<'_>,
    object: &Map<String, Value>,
) {
    let is_option = |name: &&'static str| name.starts_with('-');
    if let Some(name) = object.get("name").and_then(Value::as_str)
        && let Some(name) = JobSettingsCollector::known_name(name).filter(|name| !is_option(name))
    {
        let line = found.line_of_name(name);
        if let Some(value) = object.get("value").and_then(scalar) {
            settings.set(name, &value, line, RepeatPolicy::Differs);
        } else if object.contains_key("valueFrom") {
            let note = format!("{name} is filled in by the cluster (line {line})");
            push_note(settings.report, note);
        }
    }
    for (key, value) in object {
        let Some(name) = JobSettingsCollector::known_name(key).filter(|name| !is_option(name))
        else {
            continue;
        };
        let line = found.line_of_name(name);
        if let Some(value) = scalar(value) {
            settings.set(name, &value, line, RepeatPolicy::Differs);
        }
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}
