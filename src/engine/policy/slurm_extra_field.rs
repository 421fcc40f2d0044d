//! fabricgate's entry in a node's field `Extra`: one key of a JSON object that may hold keys of
//! others. On Kubernetes it is an annotation of its own.
//!
//! Text in, text out. Keys of others keep their order and their values letter by letter, except
//! for blanks between them; a text that is not a JSON object belongs to others as a whole.

use std::fmt;
use std::fmt::Write as _;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use model::action::VerdictMark;
use model::finding_class::FindingClass;
use model::id::DomainName;
use model::text::clean;
use model::verdict::Outcome;

const KEY: &str = "fabricgate";

/// The version of the value's format.
const VERSION: u32 = 1;

/// Longest text that is written. Linux takes 128 KiB in one argument (`MAX_ARG_STRLEN`), over
/// ssh that is the whole command, and a list of nodes may take half of it.
const LONGEST: usize = 32 * 1024;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ExtraFieldEntry {
    v: u32,
    outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<FindingClass>,
    run: String,
    at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domain: Option<DomainName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
}

impl ExtraFieldEntry {
    fn from_mark(mark: &VerdictMark) -> Self {
        Self {
            v: VERSION,
            outcome: mark.outcome,
            class: mark.class.clone(),
            run: mark.run.clone(),
            at: mark.at.clone(),
            expires: mark.expires.clone(),
            domain: mark.domain.clone(),
            boot_id: mark.boot_id.clone(),
        }
    }

    /// The mark of the entry, safe to display.
    fn to_mark(&self) -> Option<VerdictMark> {
        (self.v == VERSION).then(|| VerdictMark {
            outcome: self.outcome,
            class: self.class.as_ref().map(|it| FindingClass::from_name(&clean(it.as_str()))),
            run: clean(&self.run),
            at: clean(&self.at),
            expires: self.expires.as_deref().map(clean),
            domain: self.domain.as_ref().map(|domain| DomainName::from(clean(domain.as_str()))),
            boot_id: self.boot_id.as_deref().map(clean),
        })
    }
}

/// The keys of an object in order, with their values as written. A map would merge duplicate
/// keys, and change numbers.
struct ExtraFieldKeys(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for ExtraFieldKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ExtraFieldVisitor;
        impl<'de> Visitor<'de> for ExtraFieldVisitor {
            type Value = ExtraFieldKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ExtraFieldKeys, A::Error> {
                let mut keys = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    keys.push(entry);
                }
                Ok(ExtraFieldKeys(keys))
            }
        }
        deserializer.deserialize_map(ExtraFieldVisitor)
    }
}

/// The keys of a field; `None` if it is not an object.
pub(super) fn parse_keys(extra: &str) -> Option<Vec<(String, Box<RawValue>)>> {
    if extra.trim().is_empty() {
        return Some(Vec::new());
    }
    serde_json::from_str::<ExtraFieldKeys>(extra).ok().map(|keys| keys.0)
}

/// fabricgate's mark in the field, safe to display; `None` if it is missing or cannot be read.
pub(super) fn read_mark(extra: &str) -> Option<VerdictMark> {
    let found = parse_keys(extra)?;
    let (_, raw) = found.iter().find(|(key, _)| key == KEY)?;
    read_entry(raw.get())
}

/// The entry alone, as the text of an annotation.
pub(super) fn format_entry(mark: &VerdictMark) -> String {
    // JSON leaves some control characters unescaped; terminals interpret them.
    to_json(&ExtraFieldEntry::from_mark(mark)).chars().fold(String::new(), |mut text, c| {
        if c.is_control() {
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
        text
    })
}

/// The mark of an entry, safe to display; `None` if it is not an entry.
pub(super) fn read_entry(text: &str) -> Option<VerdictMark> {
    serde_json::from_str::<ExtraFieldEntry>(text).ok()?.to_mark()
}

/// Whether an entry has the contents of this mark, in any spelling.
pub(super) fn is_entry_of(text: &str, mark: &VerdictMark) -> bool {
    serde_json::from_str::<ExtraFieldEntry>(text)
        .is_ok_and(|entry| entry == ExtraFieldEntry::from_mark(mark))
}

/// Whether the field has an entry of fabricgate, readable or not.
pub(super) fn has_entry(extra: &str) -> bool {
    parse_keys(extra).is_some_and(|found| found.iter().any(|(key, _)| key == KEY))
}

/// The field with an entry for this mark: `Ok(None)` if it already has it, and an error message if
/// the field must not be written.
pub(super) fn with_entry(extra: &str, mark: &VerdictMark) -> Result<Option<String>, String> {
    let Some(found) = parse_keys(extra) else {
        return Err(format!(
            "its Extra field is not a JSON object and is left unchanged: {}",
            clean(extra)
        ));
    };
    let mut own = found.iter().filter(|(key, _)| key == KEY).map(|(_, raw)| raw.get());
    if own.next().is_some_and(|raw| is_entry_of(raw, mark)) && own.next().is_none() {
        return Ok(None);
    }
    let entry = to_json(KEY) + ":" + &format_entry(mark);
    let mut parts = Vec::with_capacity(found.len() + 1);
    let mut is_written = false;
    for (key, raw) in &found {
        if key != KEY {
            parts.push(to_json(key) + ":" + &compact(raw.get()));
        } else if !is_written {
            parts.push(entry.clone());
            is_written = true;
        }
    }
    if !is_written {
        parts.push(entry);
    }
    let text = format!("{{{}}}", parts.join(","));
    // Legal in JSON, but not sent to a scheduler: terminals would interpret it.
    if text.contains(char::is_control) {
        return Err(format!(
            "its Extra field holds control characters and is left unchanged: {}",
            clean(extra)
        ));
    }
    if LONGEST < text.len() {
        return Err(format!(
            "its Extra field would have {} bytes and is left unchanged",
            text.len()
        ));
    }
    Ok(Some(text))
}

/// A JSON value without the blanks between its parts, for a field of one line.
pub(super) fn compact(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let (mut inside, mut escaped) = (false, false);
    for c in raw.chars() {
        if inside || !c.is_ascii_whitespace() {
            text.push(c);
        }
        inside ^= c == '"' && !escaped;
        escaped = inside && c == '\\' && !escaped;
    }
    text
}

fn to_json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("texts and numbers are JSON")
}
