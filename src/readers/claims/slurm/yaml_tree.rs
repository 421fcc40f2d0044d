//! A YAML document as a tree of values with positions, parsed up to the first error.
//!
//! `serde` would return all or nothing; the values before an error are needed too, so the tree is
//! built from the parser's events. It is limited in depth and size, and an alias shares its value
//! instead of copying it: a short text cannot become a large tree. The readers interpret the
//! values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use serde_saphyr::granit_parser::{Event, Marker, Parser, ScalarStyle};

/// Deeper than any topology; needed because trees are dropped recursively.
const MAX_DEPTH: usize = 48;

/// Limit for values of one document: a hundred thousand nodes listed one by one need a hundred
/// thousand.
const MAX_VALUES: usize = 1_000_000;

/// A value and its position (line and column from 1).
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: YamlValue,
    pub(super) line: usize,
    pub(super) column: usize,
    /// Nesting depth below this value.
    depth: usize,
}

#[derive(Debug)]
pub(super) enum YamlValue {
    /// Empty, or `null`.
    Null,
    /// Text, as written; the reader decides whether it is a number.
    Text(String),
    List(Vec<Rc<YamlNode>>),
    /// Keys and values, in order.
    Map(Vec<(String, Rc<YamlNode>)>),
}

impl YamlNode {
    /// The value of a key; the last one of duplicates.
    pub(super) fn get(&self, key: &str) -> Option<&Rc<Self>> {
        let YamlValue::Map(entries) = &self.value else { return None };
        entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let YamlValue::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The items of a list. Slurm accepts a single value in place of a list of one.
    pub(super) fn items(self: &Rc<Self>) -> Vec<Rc<Self>> {
        match &self.value {
            YamlValue::Null => Vec::new(),
            YamlValue::List(items) => items.clone(),
            YamlValue::Text(_) | YamlValue::Map(_) => vec![Rc::clone(self)],
        }
    }

    /// The name of the kind, for messages.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.value {
            YamlValue::Null => "nothing",
            YamlValue::Text(_) => "a single value",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "keys and values",
        }
    }
}

/// A remark about a position in the document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct YamlRemark {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) message: String,
}

/// The result of parsing a text.
#[derive(Debug, Default)]
pub(super) struct YamlDocument {
    /// The root value, complete, or, after an error, the complete items of the outermost list.
    pub(super) root: Option<Rc<YamlNode>>,
    /// The error that ended the parsing.
    pub(super) error: Option<YamlRemark>,
    pub(super) duplicate_keys: Vec<YamlRemark>,
    /// More documents follow, which are ignored.
    pub(super) has_more: bool,
}

/// An unclosed list or map.
struct OpenYamlCollection {
    value: YamlValue,
    key: Option<String>,
    anchor: usize,
    line: usize,
    column: usize,
    deepest: usize,
}

/// Limit for keys of one map. Every new one is compared with all before it.
const MAX_KEYS: usize = 200;

/// Parses the first document of a text.
pub(super) fn read(text: &str) -> YamlDocument {
    let mut builder = YamlTreeBuilder::default();
    let mut parser = Parser::new_from_str(text);
    let mut document = YamlDocument::default();
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                document.error = Some(remark_at(*error.marker(), error.info()));
                break;
            }
        };
        let done = builder.root.is_some();
        match event {
            Event::DocumentStart(..) if done => {
                document.has_more = true;
                break;
            }
            _ if done => {}
            event => {
                if let Err(stopped) =
                    builder.handle_event(event, span.start, &mut document.duplicate_keys)
                {
                    document.error = Some(stopped);
                    break;
                }
            }
        }
    }
    document.root = builder.finish();
    document
}

fn remark_at(at: Marker, message: impl Into<String>) -> YamlRemark {
    YamlRemark { line: at.line().max(1), column: at.col() + 1, message: message.into() }
}

#[derive(Default)]
struct YamlTreeBuilder {
    open: Vec<OpenYamlCollection>,
    anchors: HashMap<usize, Rc<YamlNode>>,
    root: Option<Rc<YamlNode>>,
    values: usize,
}

impl YamlTreeBuilder {
    fn handle_event(
        &mut self,
        event: Event<'_>,
        at: Marker,
        twice: &mut Vec<YamlRemark>,
    ) -> Result<(), YamlRemark> {
        self.values += 1;
        if MAX_VALUES < self.values {
            return Err(remark_at(at, format!("more than {MAX_VALUES} values")));
        }
        match event {
            Event::SequenceStart(_, anchor, _) => {
                self.open_collection(YamlValue::List(Vec::new()), anchor, at)
            }
            Event::MappingStart(_, anchor, _) => {
                self.open_collection(YamlValue::Map(Vec::new()), anchor, at)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenYamlCollection { value, anchor, line, column, deepest, .. }) => {
                    let node = YamlNode { value, line, column, depth: deepest + 1 };
                    self.insert_node(Rc::new(node), anchor, at, twice)
                }
                None => Ok(()),
            },
            Event::Scalar(text, style, anchor, _) => {
                let (line, column) = (at.line().max(1), at.col() + 1);
                let value = parse_scalar(text, style);
                self.insert_node(
                    Rc::new(YamlNode { value, line, column, depth: 1 }),
                    anchor,
                    at,
                    twice,
                )
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => {
                    let node = Rc::clone(node);
                    self.insert_node(node, 0, at, twice)
                }
                None => Err(remark_at(at, "this alias refers to a value that contains it")),
            },
            _ => Ok(()),
        }
    }

    fn open_collection(
        &mut self,
        value: YamlValue,
        anchor: usize,
        at: Marker,
    ) -> Result<(), YamlRemark> {
        if MAX_DEPTH <= self.open.len() {
            return Err(remark_at(at, format!("values nested deeper than {MAX_DEPTH} levels")));
        }
        let (line, column) = (at.line().max(1), at.col() + 1);
        self.open.push(OpenYamlCollection { value, key: None, anchor, line, column, deepest: 0 });
        Ok(())
    }

    /// Inserts a complete value into the open collection.
    fn insert_node(
        &mut self,
        node: Rc<YamlNode>,
        anchor: usize,
        at: Marker,
        twice: &mut Vec<YamlRemark>,
    ) -> Result<(), YamlRemark> {
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        // An alias is as deep as its value.
        if MAX_DEPTH < self.open.len() + node.depth {
            return Err(remark_at(at, format!("values nested deeper than {MAX_DEPTH} levels")));
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.deepest = parent.deepest.max(node.depth);
        match &mut parent.value {
            YamlValue::List(items) => items.push(node),
            YamlValue::Map(entries) => match parent.key.take() {
                Some(key) => entries.push((key, node)),
                None => {
                    let key = match &node.value {
                        YamlValue::Text(text) => text.clone(),
                        YamlValue::Null => String::new(),
                        YamlValue::List(_) | YamlValue::Map(_) => {
                            return Err(remark_at(at, "a key must be a single value"));
                        }
                    };
                    if entries.iter().any(|(other, _)| *other == key) {
                        let message = format!("key {key} is given twice; the last one counts");
                        twice.push(remark_at(at, message));
                    }
                    if MAX_KEYS <= entries.len() {
                        return Err(remark_at(at, format!("more than {MAX_KEYS} keys")));
                    }
                    parent.key = Some(key);
                }
            },
            YamlValue::Null | YamlValue::Text(_) => {}
        }
        Ok(())
    }

    /// The tree; for a truncated list, its complete items.
    fn finish(mut self) -> Option<Rc<YamlNode>> {
        if self.root.is_some() || self.open.is_empty() {
            return self.root;
        }
        let outermost = self.open.swap_remove(0);
        let OpenYamlCollection { value, line, column, deepest, .. } = outermost;
        matches!(value, YamlValue::List(_))
            .then(|| Rc::new(YamlNode { value, line, column, depth: deepest + 1 }))
    }
}

/// A scalar: `null` and its variants count only without quotes.
fn parse_scalar(text: Cow<'_, str>, style: ScalarStyle) -> YamlValue {
    let is_plain = style == ScalarStyle::Plain;
    if is_plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL") {
        return YamlValue::Null;
    }
    YamlValue::Text(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(node: &YamlNode) -> String {
        match &node.value {
            YamlValue::Null => "-".to_owned(),
            YamlValue::Text(text) => format!("{text:?}@{}:{}", node.line, node.column),
            YamlValue::List(items) => {
                format!("[{}]", items.iter().map(|n| render(n)).collect::<Vec<_>>().join(" "))
            }
            YamlValue::Map(entries) => {
                let entry =
                    |(key, value): &(String, Rc<YamlNode>)| format!("{key}={}", render(value));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
            }
        }
    }

    fn tree(text: &str) -> String {
        render(&read(text).root.expect("a tree"))
    }

    #[test]
    fn values_have_positions() {
        assert_eq!(
            tree("%YAML 1.1\n---\n- a: 1\n  b: [x, 'null', null]\n- ~\n...\n"),
            r#"[{a="1"@3:6 b=["x"@4:7 "null"@4:10 -]} -]"#
        );
        assert_eq!(tree("a: \"é\"\r\nb: c\r\n"), r#"{a="é"@1:4 b="c"@2:4}"#);
    }

    #[test]
    fn complete_values_before_a_mistake_stay() {
        let document = read("- a: 1\n- b: 2\n- c: [1, 2\n- d: 4\n");
        assert_eq!(
            render(document.root.as_deref().expect("a list")),
            r#"[{a="1"@1:6} {b="2"@2:6}]"#
        );
        let stopped = document.error.expect("it stops");
        assert!((3..=5).contains(&stopped.line), "{stopped:?}");
        let document = read("a:\n\tb: 2\n");
        assert_eq!(document.error.expect("a tab").line, 2);
        assert!(document.root.is_none());
    }

    #[test]
    fn aliases_share_and_bombs_stay_small() {
        assert_eq!(tree("- &x [1]\n- *x\n"), r#"[["1"@1:7] ["1"@1:7]]"#);
        let mut bomb = "- &a0 [x]\n".to_owned();
        for level in 1..60 {
            let refs = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("- &a{level} [{refs}]\n"));
        }
        let document = read(&bomb);
        assert!(document.error.expect("too deep").message.contains("48"));
        assert!(read("- &a [*a]\n").error.is_some());
        assert!(read("*gone\n").error.is_some());
    }

    #[test]
    fn depth_and_size_are_limited() {
        assert!(read(&"[".repeat(100_000)).error.is_some());
        assert!(read(&"- ".repeat(5_000)).error.is_some());
        let wide = format!("[{}]", "a,".repeat(MAX_VALUES));
        assert!(read(&wide).error.expect("too many").message.contains("values"));
    }

    #[test]
    fn keys_given_twice_are_remarked() {
        let document = read("a: 1\nb: 2\na: 3\n");
        assert_eq!(document.duplicate_keys[0].line, 3);
        let root = document.root.expect("a map");
        assert_eq!(root.get("a").and_then(|node| node.text()), Some("3"));
        assert!(root.get("c").is_none());
    }

    #[test]
    fn only_the_first_document_is_read() {
        let document = read("a: 1\n---\nb: 2\n");
        assert!(document.has_more && document.error.is_none());
        assert!(read("").root.is_none_or(|root| matches!(root.value, YamlValue::Null)));
    }
}
