//! Cabling as TOML: `[[node]]` with `[[node.nic]]`, and `[[leaf]]`.
//!
//! Only the shape is read here; what it says is held against each other by
//! `entries`.

use std::fmt;

use serde::Deserialize;
use serde::de;
use toml::Spanned;

use super::entries::Entries;
use super::entries::Entry;
use crate::claims::reading::complain;
use crate::claims::reading::plain;
use model::said::ProblemKind;
use model::said::Said;
use model::span::LineEnds;
use model::span::TextError;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    node: Vec<Spanned<Node>>,
    #[serde(default)]
    leaf: Vec<Spanned<Leaf>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    rack: Option<Word>,
    slot: Option<Word>,
    #[serde(default)]
    nic: Vec<Spanned<Nic>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nic {
    device: Option<Word>,
    rail: Option<Word>,
    leaf: Option<Word>,
    port: Option<Word>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Leaf {
    name: Word,
    rail: Option<Word>,
    nodes: Option<String>,
}

/// A name or a number: slots, rails and ports are often numbered.
#[derive(Debug)]
struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Word;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a whole number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Word, E> {
                match plain(text) {
                    word if word.is_empty() => Err(E::custom("empty, expected a name")),
                    word => Ok(Word(word)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Whether the text has nodes in TOML. `claims.toml` has leaves and rails too,
/// but always a domain.
pub(super) fn recognises(text: &str) -> bool {
    let has =
        |table: &str| text.lines().any(|line| line.trim().replace(' ', "").starts_with(table));
    (has("[[node]]") || has("[[node.nic]]")) && !has("[[domain]]")
}

/// Reads the document.
pub(super) fn read(said: &mut Said, text: &str) {
    let file: File = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            let TextError { file, line, column, message } =
                TextError::toml(&said.source.place, text, &error);
            let at = format!("{file}:{line}:{column}");
            complain(said, ProblemKind::Malformed, at, plain(&message));
            return;
        }
    };
    let lines = LineEnds::of(text);
    let mut entries = Entries::new(said);
    for leaf in file.leaf {
        let line = lines.line(leaf.span().start);
        let leaf = leaf.into_inner();
        let rail = leaf.rail.map(|word| word.0);
        entries.add_leaf(line, &leaf.name.0, rail, leaf.nodes.as_deref());
    }
    for node in file.node {
        let line = lines.line(node.span().start);
        let node = node.into_inner();
        let whole = Entry {
            line,
            nodes: node.name,
            rack: node.rack.map(|word| word.0),
            slot: node.slot.map(|word| word.0),
            ..Entry::default()
        };
        if node.nic.is_empty() || whole.rack.is_some() || whole.slot.is_some() {
            entries.add(&whole);
        }
        for nic in node.nic {
            let line = lines.line(nic.span().start);
            let nic = nic.into_inner();
            entries.add(&Entry {
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
