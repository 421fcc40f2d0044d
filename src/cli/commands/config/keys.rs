//! Every key of the configuration, from its schema: as a list, a page, a document.
//!
//! No I/O: takes a schema, returns texts.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::exit::CommandError;

/// The format of `config keys --json`.
pub const KEYS_FORMAT: &str = "fabricgate.config-keys/1";

/// All keys, or the requested ones.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysDocument {
    /// `fabricgate.config-keys/1`.
    format: &'static str,
    /// The keys, in the order of the page.
    keys: Vec<ConfigKey>,
}

/// One key, or a section of keys.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConfigKey {
    /// Path of the key: `watch.backoff.first_s`; `[]` is an entry of a list.
    pub key: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: String,
    /// Meaning of the key.
    pub meaning: String,
    /// The default, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Whether `default` is a sentence instead of a value.
    #[serde(skip)]
    is_sentence: bool,
    /// Whether the key is required in its section.
    pub required: bool,
    /// The allowed values, with their meaning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ConfigKeyChoice>,
    /// Whether the key is a section.
    pub section: bool,
}

/// An allowed value.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConfigKeyChoice {
    /// The value.
    pub value: String,
    /// Meaning of the value.
    pub meaning: String,
}

/// The document of `config keys --json`.
pub fn keys_document(keys: Vec<ConfigKey>) -> KeysDocument {
    KeysDocument { format: KEYS_FORMAT, keys }
}

/// All keys of a schema, in its order.
pub fn list_keys(schema: &Value) -> Vec<ConfigKey> {
    let mut keys = Vec::new();
    walk_schema("", schema, &mut keys);
    keys
}

/// The key of this name and the keys below it.
pub fn keys_below(keys: Vec<ConfigKey>, name: &str) -> Result<Vec<ConfigKey>, CommandError> {
    let sections: Vec<String> =
        keys.iter().filter(|key| !key.key.contains('.')).map(|key| key.key.clone()).collect();
    let inside = format!("{name}.");
    let chosen: Vec<ConfigKey> =
        keys.into_iter().filter(|it| it.key == name || it.key.starts_with(&inside)).collect();
    if chosen.is_empty() {
        let known = sections.join(", ");
        let text =
            format!("KEY {name:?}: no such key; expected one of these or a key below: {known}");
        return Err(CommandError::Usage(text));
    }
    Ok(chosen)
}

fn walk_schema(place: &str, schema: &Value, keys: &mut Vec<ConfigKey>) {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(properties) = schema["properties"].as_object() else { return };
    // A section's own keys precede its subsections, as TOML requires.
    let (sections, own): (Vec<_>, Vec<_>) =
        properties.iter().partition(|(_, it)| has_keys(it) || has_keys(&it["items"]));
    for (name, schema) in own.into_iter().chain(sections) {
        let path = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        let is_required = required.iter().any(|it| it == name);
        keys.push(build_key(path.clone(), schema, is_required));
        walk_schema(&path, schema, keys);
        walk_schema(&format!("{path}[]"), &schema["items"], keys);
    }
}

fn has_keys(schema: &Value) -> bool {
    schema["properties"].is_object()
}

fn build_key(key: String, schema: &Value, is_required: bool) -> ConfigKey {
    let text = schema["description"].as_str().unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut meaning, mut default, mut required) = (text.clone(), None, is_required);
    let mut is_sentence = false;
    if let Some((before, after)) = text.split_once("Default: ") {
        meaning = before.trim_end().to_owned();
        default = Some(after.trim_end_matches('.').to_owned());
    } else if let Some((before, after)) = text.split_once("Required.") {
        meaning = format!("{before}{}", after.trim_start()).trim_end().to_owned();
        required = true;
    } else if let Some((before, after)) = text.split_once("Without it, ") {
        meaning = before.trim_end().to_owned();
        default = Some(format!("without it, {}", after.trim_end_matches('.')));
        is_sentence = true;
    }
    let section = has_keys(schema);
    if let (None, Some(value), false) = (&default, schema.get("default"), section) {
        default = Some(format!("`{}`", to_toml(value)));
    }
    let choices = list_choices(schema);
    ConfigKey {
        key,
        kind: describe_kind(schema),
        meaning,
        default,
        is_sentence,
        required,
        choices,
        section,
    }
}

/// A default in TOML syntax.
fn to_toml(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let inside: Vec<String> =
                map.iter().map(|(key, value)| format!("{key} = {}", to_toml(value))).collect();
            if inside.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", inside.join(", ")) }
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(to_toml).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn describe_kind(schema: &Value) -> String {
    if has_keys(schema) {
        return "section".to_owned();
    }
    if let Some(ways) = schema["anyOf"].as_array() {
        return ways.iter().map(describe_kind).collect::<Vec<_>>().join(" or ");
    }
    let values = ["additionalProperties", "patternProperties"].map(|name| &schema[name]);
    match schema["type"].as_str() {
        Some("array") if has_keys(&schema["items"]) => "list of tables".to_owned(),
        Some("array") if !list_choices(schema).is_empty() => "list of words".to_owned(),
        Some("array") => format!("list of {}s", describe_kind(&schema["items"])),
        _ if !list_choices(schema).is_empty() => "one of".to_owned(),
        Some("object") => match values {
            [value, _] if value["type"].is_string() => {
                format!("table of {}s", describe_kind(value))
            }
            [_, patterns] if patterns.is_object() => {
                let first = patterns.as_object().and_then(|it| it.values().next());
                format!(
                    "table of {}",
                    first.map_or_else(String::new, |it| format!("{}s", describe_kind(it)))
                )
            }
            _ => "table".to_owned(),
        },
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    }
}

/// The allowed values; for a list, those of its entries.
fn list_choices(schema: &Value) -> Vec<ConfigKeyChoice> {
    let choice = |it: &Value| {
        let value = it["const"].as_str()?.to_owned();
        let meaning = it["description"].as_str().unwrap_or_default();
        let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(ConfigKeyChoice { value, meaning })
    };
    let one_of = schema["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut all: Vec<ConfigKeyChoice> = one_of.iter().filter_map(choice).collect();
    for group in one_of.iter().chain([schema, &schema["items"]]) {
        let words = group["enum"].as_array().map(Vec::as_slice).unwrap_or_default();
        let bare = |it: &Value| {
            Some(ConfigKeyChoice { value: it.as_str()?.to_owned(), meaning: String::new() })
        };
        all.extend(words.iter().filter_map(bare));
    }
    if all.is_empty() && schema["items"].is_object() {
        all = list_choices(&schema["items"]);
    }
    all
}

/// The default of a key, or `required`.
fn default_text(key: &ConfigKey) -> &str {
    match &key.default {
        Some(default) => default,
        None if key.required => "required",
        None => "",
    }
}

/// The keys for a terminal.
pub fn render_list(keys: &[ConfigKey]) -> String {
    let mut text = String::new();
    for it in keys {
        if it.section {
            let _ = writeln!(text, "\n[{}]\n    {}", it.key, it.meaning);
            continue;
        }
        let absent = default_text(it).replace('`', "");
        let absent = match (it.required, absent.as_str()) {
            (_, "") => String::new(),
            (true, _) => ", required".to_owned(),
            (false, text) if it.is_sentence => format!("; {text}"),
            (false, text) => format!(", default {text}"),
        };
        let _ = writeln!(text, "{}  ({}{absent})\n    {}", it.key, it.kind, it.meaning);
        for choice in &it.choices {
            let _ = writeln!(text, "      {:<16} {}", quote(&choice.value), choice.meaning);
        }
    }
    text.trim_start().to_owned()
}

fn quote(word: &str) -> String {
    format!("\"{word}\"")
}

/// The keys as a page of the documentation.
pub fn render_page(keys: &[ConfigKey]) -> String {
    let mut text = String::from(
        "# Every key of the configuration\n\n\
         Generated from the code by `fabricgate config keys --markdown`; a test compares the two. \
         The file is TOML. Only `claims`, or\n`[sources]`, is required. An unknown key is an \
         error with its line and column, and relative paths are relative to the file.\n\n\
         \x20   fabricgate config check fabricgate.toml     \
         # its effect and warnings; 2: a mistake, with its line\n\
         \x20   fabricgate config keys watch                \
         # this page for a terminal, or a part of it\n\
         \x20   fabricgate config schema                    # the JSON Schema, for editors\n\n\
         An editor that uses [taplo](https://taplo.tamasfe.dev) completes and checks a file \
         that begins with a line `#:schema config.schema.json`, where that\nfile is the output of \
         the last command \
         ([reports/schema/config.schema.json](../reports/schema/config.schema.json)).\n",
    );
    let mut group: Option<String> = None;
    for it in keys {
        let (place, name) = it.key.rsplit_once('.').unwrap_or(("", &it.key));
        if it.section {
            let _ = writeln!(text, "\n## `[{}]`\n\n{}", it.key, escape_cell(&it.meaning));
            if let Some(default) = &it.default {
                let _ = writeln!(text, "{}", escape_cell(&to_sentence(default)));
            }
            group = None;
            continue;
        }
        if group.as_deref() != Some(place) {
            if group.is_none() && place.is_empty() {
                text.push_str("\n## Outside of sections\n");
            } else if place.ends_with("[]") {
                let _ = writeln!(text, "\n### An entry of `{}`", place.trim_end_matches("[]"));
            }
            text.push_str("\n| key | type | default | meaning |\n|---|---|---|---|\n");
            group = Some(place.to_owned());
        }
        let words: Vec<String> = it
            .choices
            .iter()
            .map(|choice| match choice.meaning.trim_end_matches('.') {
                "" => format!("`{}`", quote(&choice.value)),
                meaning => format!("`{}`: {meaning}", quote(&choice.value)),
            })
            .collect();
        let words =
            if words.is_empty() { String::new() } else { format!(" {}.", words.join("; ")) };
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | {}{} |",
            it.kind,
            escape_cell(default_text(it)),
            escape_cell(&it.meaning),
            escape_cell(&words)
        );
    }
    text
}

fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A section's default, as a sentence.
fn to_sentence(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    #[test]
    fn every_key_has_a_meaning_and_a_default() {
        let keys = list_keys(&config::json_schema());
        assert!(120 < keys.len(), "the keys are found: {}", keys.len());
        let undocumented: Vec<&str> = keys
            .iter()
            .filter(|it| it.meaning.len() < 4 && it.default.is_none())
            .map(|it| it.key.as_str())
            .collect();
        assert!(undocumented.is_empty(), "keys without a doc comment: {undocumented:?}");
        let has_default = |it: &ConfigKey| {
            let text = it.meaning.to_lowercase();
            ["default", "without", "absent"].iter().any(|word| text.contains(word))
        };
        let open: Vec<&str> = keys
            .iter()
            .filter(|it| !it.section && !it.required && it.default.is_none() && !has_default(it))
            .map(|it| it.key.as_str())
            .collect();
        assert!(open.is_empty(), "keys without a documented default: {open:?}");
    }

    #[test]
    fn the_published_page_and_schema_are_those_of_the_code() {
        let schema = config::json_schema();
        let mut pretty = serde_json::to_string_pretty(&schema).expect("json");
        pretty.push('\n');
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let made = [
            ("docs/configuration.md", render_page(&list_keys(&schema))),
            ("reports/schema/config.schema.json", pretty),
        ];
        for (name, made) in made {
            let path = root.join(name);
            if std::env::var_os("UPDATE_REPORTS").is_some() {
                std::fs::write(&path, &made).expect("the folder is writable");
            }
            let published = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(published == made, "{name} is old; run with UPDATE_REPORTS=1");
        }
    }

    #[test]
    fn a_key_has_its_type_its_default_and_its_values() {
        let keys = list_keys(&config::json_schema());
        let key = |name: &str| keys.iter().find(|it| it.key == name).expect("a key");
        let interval = key("watch.interval_s");
        assert_eq!((interval.kind.as_str(), interval.default.as_deref()), ("number", Some("60")));
        assert!(key("launcher.kind").required && !key("launcher.parallel").required);
        let words: Vec<&str> =
            key("policy.soft").choices.iter().map(|it| it.value.as_str()).collect();
        assert_eq!(words, ["price", "drain", "relabel"]);
        assert_eq!(key("policy.per_domain").default.as_deref(), Some("`2`"));
        assert_eq!(key("claims").kind, "string or list of strings");
        assert_eq!(key("launcher.kubernetes.rdma").kind, "table of integers");
        assert!(key("launcher.kubernetes.tolerations[].key").meaning.contains("taint"));
        let watch = keys_below(keys.clone(), "watch").expect("there");
        assert!(watch.iter().all(|it| it.key.starts_with("watch")) && 10 < watch.len());
        let why = keys_below(keys, "wacht").expect_err("not there").to_string();
        assert!(why.contains("\"wacht\"") && why.contains("watch"), "{why}");
    }
}
