//! Cabling as TOML: `[[node]]` with `[[node.nic]]`, and `[[leaf]]`.
//!
//! Parses the document only; `builder` checks the entries against each other.

use std::fmt;

use serde::{Deserialize, de};
use toml::Spanned;

use super::builder::{CablingBuilder, CablingEntry};
use crate::claims::reader_util::{push_problem, sanitize_text};
use model::source_report::{SourceProblemKind, SourceReport};
use model::text_error::{LineIndex, TextError};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CablingFile {
    #[serde(default)]
    node: Vec<Spanned<CablingNodeEntry>>,
    #[serde(default)]
    leaf: Vec<Spanned<CablingLeafEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CablingNodeEntry {
    name: String,
    rack: Option<TextOrNumber>,
    slot: Option<TextOrNumber>,
    #[serde(default)]
    nic: Vec<Spanned<CablingNicEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CablingNicEntry {
    device: Option<TextOrNumber>,
    rail: Option<TextOrNumber>,
    leaf: Option<TextOrNumber>,
    port: Option<TextOrNumber>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CablingLeafEntry {
    name: TextOrNumber,
    rail: Option<TextOrNumber>,
    nodes: Option<String>,
}

/// A name or a number: slots, rails and ports are often numbered.
#[derive(Debug)]
struct TextOrNumber(String);

impl<'de> Deserialize<'de> for TextOrNumber {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumberVisitor;
        impl de::Visitor<'_> for TextOrNumberVisitor {
            type Value = TextOrNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a whole number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TextOrNumber, E> {
                match sanitize_text(text) {
                    word if word.is_empty() => Err(E::custom("empty, expected a name")),
                    word => Ok(TextOrNumber(word)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber(number.to_string()))
            }
        }
        deserializer.deserialize_any(TextOrNumberVisitor)
    }
}

/// Whether the text is TOML with nodes. `claims.toml` has leaves and rails too, but always a
/// domain.
pub(super) fn recognises(text: &str) -> bool {
    let has =
        |table: &str| text.lines().any(|line| line.trim().replace(' ', "").starts_with(table));
    (has("[[node]]") || has("[[node.nic]]")) && !has("[[domain]]")
}

pub(super) fn read(report: &mut SourceReport, text: &str) {
    let file: CablingFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            let TextError { file, line, column, message } =
                TextError::from_toml(&report.source.place, text, &error);
            let at = format!("{file}:{line}:{column}");
            push_problem(report, SourceProblemKind::Malformed, at, sanitize_text(&message));
            return;
        }
    };
    let lines = LineIndex::new(text);
    let mut entries = CablingBuilder::new(report);
    for leaf in file.leaf {
        let line = lines.line_at(leaf.span().start);
        let leaf = leaf.into_inner();
        let rail = leaf.rail.map(|word| word.0);
        entries.add_leaf(line, &leaf.name.0, rail, leaf.nodes.as_deref());
    }
    for node in file.node {
        let line = lines.line_at(node.span().start);
        let node = node.into_inner();
        let whole = CablingEntry {
            line,
            nodes: node.name,
            rack: node.rack.map(|word| word.0),
            slot: node.slot.map(|word| word.0),
            ..CablingEntry::default()
        };
        if node.nic.is_empty() || whole.rack.is_some() || whole.slot.is_some() {
            entries.add_entry(&whole);
        }
        for nic in node.nic {
            let line = lines.line_at(nic.span().start);
            let nic = nic.into_inner();
            entries.add_entry(&CablingEntry {
                line,
                nodes: whole.nodes.clone(),
                rack: None,
                slot: None,
                device: nic.device.map(|word| word.0),
                rail: nic.rail.map(|word| word.0),
                leaf: nic.leaf.map(|word| word.0),
                port: nic.port.map(|word| word.0),
            });
        }
    }
    entries.finish();
}
