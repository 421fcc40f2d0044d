//! Extracts Kubernetes objects from text: one object, a list, several documents, JSON or YAML.
//! From a truncated text it extracts the complete objects.
//!
//! Independent of the kind of object.

use std::fmt;

use serde::de;
use serde::de::DeserializeSeed;
use serde_json::{Map, Value};

use crate::claims::reader_util::sanitize_text;
use model::source_report::{SourceProblem, SourceProblemKind};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct KubernetesObject {
    /// Its kind, or the kind of its list where it has none.
    pub(super) kind: String,
    /// Its API group, without the version; empty for core objects.
    pub(super) group: String,
    pub(super) map: Map<String, Value>,
}

impl KubernetesObject {
    fn new(map: Map<String, Value>, list: &Map<String, Value>) -> Self {
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        // Servers omit kind and version of the items in a typed list.
        let listed = list.get("kind").and_then(Value::as_str).and_then(|k| k.strip_suffix("List"));
        let kind = text("kind").or(listed).unwrap_or_default().to_owned();
        let version = text("apiVersion")
            .or_else(|| list.get("apiVersion").and_then(Value::as_str))
            .unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group).to_owned();
        Self { kind, group, map }
    }

    pub(super) fn name(&self) -> Option<&str> {
        text_at(&self.map, &["metadata", "name"]).filter(|name| !sanitize_text(name).is_empty())
    }
}

#[derive(Debug, Default)]
pub(super) struct KubernetesObjectList {
    pub(super) objects: Vec<KubernetesObject>,
    /// Whether the text contains a list, even an empty one.
    is_list: bool,
    /// The continue token, where a server returned only a part of the list.
    pub(super) continue_token: Option<String>,
    pub(super) problems: Vec<SourceProblem>,
}

/// The problem of a file with only a part of a server's list: the rest cannot be requested.
pub(super) fn truncated_list_problem(place: &str) -> SourceProblem {
    SourceProblem {
        kind: SourceProblemKind::Incomplete,
        at: Some(place.to_owned()),
        message: "only a part of the list (metadata.continue is set), expected the complete \
                  list, as `kubectl get -o json` returns it"
            .to_owned(),
    }
}

/// Parses all objects of a text. `place` is its name in messages.
pub(super) fn read(place: &str, text: &str) -> KubernetesObjectList {
    let text = text.trim_start_matches('\u{feff}');
    let is_json = text.trim_start().starts_with(['{', '[']);
    let mut found = if is_json { parse_json(place, text) } else { parse_yaml(place, text) };
    if found.objects.is_empty() && found.problems.is_empty() && !found.is_list {
        found.problems.push(SourceProblem {
            kind: SourceProblemKind::Malformed,
            at: Some(place.to_owned()),
            message: "expected Kubernetes objects, as `kubectl get -o json` returns \
                them"
                .to_owned(),
        });
    }
    found
}

fn parse_json(place: &str, text: &str) -> KubernetesObjectList {
    let mut found = KubernetesObjectList::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    while reader.end().is_err() {
        let mut document = ObjectDocument::default();
        let read = DocumentSeed(&mut document).deserialize(&mut reader);
        document.into_objects(&mut found);
        if let Err(error) = read {
            let kind = if error.is_eof() {
                SourceProblemKind::Incomplete
            } else {
                SourceProblemKind::Malformed
            };
            found.problems.push(SourceProblem {
                kind,
                at: Some(format!("{place}:{}:{}", error.line(), error.column())),
                message: message_without_position(&error.to_string()),
            });
            break;
        }
    }
    found
}

/// Removes the position, which serde_json repeats at the end of its message.
fn message_without_position(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    format!("invalid JSON: {message}")
}

fn parse_yaml(place: &str, text: &str) -> KubernetesObjectList {
    let mut found = KubernetesObjectList::default();
    // The parser's default limits allow only some hundred nodes with their labels. A valid text
    // has fewer elements than bytes; the limits for aliases stay.
    let most = text.len().max(250_000);
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: most.saturating_mul(2),
            max_nodes: most,
            max_documents: most,
            max_total_scalar_bytes: most,
        },
    };
    match serde_saphyr::from_multiple_with_options::<Value>(text, options) {
        Ok(documents) => {
            for value in documents {
                let mut document = ObjectDocument::default();
                document.set_value(value);
                document.into_objects(&mut found);
            }
        }
        Err(error) => {
            let at = error.location().filter(|at| 0 < at.line());
            let at = at.map_or_else(
                || place.to_owned(),
                |at| format!("{place}:{}:{}", at.line(), at.column()),
            );
            let message = error.without_snippet().to_string();
            found.problems.push(SourceProblem {
                kind: SourceProblemKind::Malformed,
                at: Some(at),
                message: format!("invalid YAML: {}", message.trim().replace('\n', ", ")),
            });
        }
    }
    found
}

#[derive(Debug, Default)]
struct ObjectDocument {
    /// The fields, without `items`.
    map: Map<String, Value>,
    /// The elements of `items`, or of a top-level array.
    items: Option<Vec<Map<String, Value>>>,
}

impl ObjectDocument {
    fn set_value(&mut self, value: Value) {
        match value {
            Value::Object(mut map) => {
                if let Some(Value::Array(items)) = map.remove("items") {
                    self.items
                        .get_or_insert_default()
                        .extend(items.into_iter().filter_map(into_map));
                }
                self.map = map;
            }
            Value::Array(items) => {
                self.items.get_or_insert_default().extend(items.into_iter().filter_map(into_map));
            }
            _ => {}
        }
    }

    fn into_objects(self, found: &mut KubernetesObjectList) {
        let Some(items) = self.items else {
            if !self.map.is_empty() {
                found.objects.push(KubernetesObject::new(self.map, &Map::new()));
            }
            return;
        };
        found.is_list = true;
        let more = text_at(&self.map, &["metadata", "continue"]).filter(|more| !more.is_empty());
        found.continue_token = more.map(ToOwned::to_owned).or(found.continue_token.take());
        found.objects.extend(items.into_iter().map(|item| KubernetesObject::new(item, &self.map)));
    }
}

fn into_map(value: Value) -> Option<Map<String, Value>> {
    if let Value::Object(map) = value { Some(map) } else { None }
}

/// Parses one document into an existing value, so that an error in the middle of a list keeps the
/// elements before it.
struct DocumentSeed<'d>(&'d mut ObjectDocument);

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> de::Visitor<'de> for DocumentSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list of objects")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        // A truncated object is dropped: it may lack arbitrary fields.
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if key == "items" {
                self.0.map.clone_from(&map);
                access.next_value_seed(ItemsSeed(self.0))?;
            } else {
                let value = access.next_value()?;
                map.insert(key, value);
            }
        }
        self.0.map = map;
        Ok(())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, access: A) -> Result<(), A::Error> {
        ItemsSeed(self.0).visit_seq(access)
    }
}

/// Parses the elements of a list one by one.
struct ItemsSeed<'d>(&'d mut ObjectDocument);

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> de::Visitor<'de> for ItemsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    // Go serialises an empty list as null.
    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.0.items.get_or_insert_default();
        Ok(())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let items = self.0.items.get_or_insert_default();
        while let Some(value) = access.next_element::<Value>()? {
            items.extend(into_map(value));
        }
        Ok(())
    }
}

/// The value at a path of keys.
pub(super) fn value_at<'v>(map: &'v Map<String, Value>, path: &[&str]) -> Option<&'v Value> {
    let (first, rest) = path.split_first()?;
    let value = map.get(*first)?;
    if rest.is_empty() { Some(value) } else { value_at(value.as_object()?, rest) }
}

/// The text at a path of keys.
pub(super) fn text_at<'v>(map: &'v Map<String, Value>, path: &[&str]) -> Option<&'v str> {
    value_at(map, path)?.as_str()
}

/// The list at a path of keys; empty where there is none.
pub(super) fn list_at<'v>(map: &'v Map<String, Value>, path: &[&str]) -> &'v [Value] {
    value_at(map, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
