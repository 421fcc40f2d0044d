//! `nvidia-imex-ctl`: the IMEX domain as the queried node sees it, as text
//! (`-N`) or JSON (`-N -j`), and the one word of `-q`.
//!
//! States are kept as printed; letters of the text table are spelt out as the
//! JSON spells them. Which row counts is not decided here: a peer's own row can
//! be made up from the configuration, so the row of the queried node is named
//! where the tool marks it.

use std::collections::BTreeMap;

use serde_json::Map;
use serde_json::Value;

use super::CERTAIN;
use super::Confidence;
use super::Input;
use super::LIKELY;
use super::POSSIBLE;
use super::json;
use super::json::Document;
use super::text;
use super::text::Line;
use model::facts::Imex;
use model::facts::ImexNode;
use model::parsed::Parsed;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::parsed::Tool;
use model::text::clean;

/// What `-q` prints, from the list in NVIDIA's DCGM (`DcgmImexManager`).
const DAEMON_STATES: &[&str] = &[
    "INITIALIZING",
    "STARTING_AUTH_SERVER",
    "WAITING_FOR_PEERS",
    "WAITING_FOR_RECOVERY",
    "INIT_GPU",
    "READY",
    "SHUTTING_DOWN",
    "UNAVAILABLE",
];

/// What the letters of the table mean where the legend was cut off.
const LETTERS: &[(&str, &str)] = &[
    ("I", "INVALID"),
    ("N", "NEVER_CONNECTED"),
    ("R", "RECOVERING"),
    ("D", "DISCONNECTED"),
    ("A", "AUTHENTICATING"),
    ("C", "CONNECTED"),
    ("!V!", "VERSION_MISMATCH"),
    ("!M!", "NODE_MAP_MISMATCH"),
];

/// Node numbers are below this; a domain is one rack of 18 nodes, 72 at most.
/// Lists are searched in order, so a made-up file must not make them long.
const MOST_NODES: u32 = 1024;

const LEGEND: &str = "Connectivity Table Legend:";
const TABLE: &str = "Nodes From\\To";
const STATE: &str = "Domain State:";

/// How sure it is that this is `nvidia-imex-ctl`.
pub fn recognises(input: &Input<'_>) -> Confidence {
    let mut nodes = 0;
    let mut state = 0;
    for line in &input.lines {
        let text = line.trimmed();
        if text.starts_with(LEGEND) || text.starts_with(TABLE) {
            return CERTAIN;
        }
        nodes += usize::from(node_line(text).is_some());
        state += usize::from(text.starts_with(STATE));
    }
    if 0 < nodes && 0 < state {
        CERTAIN
    } else if 0 < nodes || 0 < state {
        LIKELY
    } else if document(input).is_some() {
        CERTAIN
    } else if daemon_state(input).is_some() {
        POSSIBLE
    } else {
        0
    }
}

/// Reads the domain.
pub fn parse(input: &Input<'_>) -> Parsed {
    let mut parsed = Parsed::of(Tool::NvidiaImexCtl);
    if let Some(document) = document(input) {
        read_json(&document, &mut parsed);
        if document.is_followed(&input.plain(), is_domain) {
            parsed.problems.push(document.another());
        }
    } else if let Some(state) = daemon_state(input) {
        // One daemon's state, not a domain's.
        parsed.facts.parameters.insert("imex.daemon_state".to_owned(), state.to_owned());
        parsed.complete = true;
        return parsed;
    } else {
        Listing::read(input, &mut parsed);
    }
    if parsed.facts.imex.as_ref().is_none_or(|i| i.status.is_none()) {
        truncated(&mut parsed, "the state of the domain is missing", None);
    }
    parsed.complete = !parsed.has(ProblemKind::Truncated) && !parsed.has(ProblemKind::Unrecognised);
    parsed
}

fn truncated(parsed: &mut Parsed, detail: impl Into<String>, line: Option<u32>) {
    let mut problem = Problem::new(ProblemKind::Truncated, detail);
    problem.line = line;
    parsed.problems.push(problem);
}

/// The word of `-q`, where the file is nothing else: one word alone could be
/// anybody's.
fn daemon_state<'a>(input: &Input<'a>) -> Option<&'a str> {
    let mut filled = input.lines.iter().filter(|line| !line.stderr && !line.text.trim().is_empty());
    let word = filled.next()?.text.trim();
    (filled.next().is_none() && DAEMON_STATES.contains(&word)).then_some(word)
}

/// The JSON of `-N -j`. Its `nodes` is an object of objects, unlike the lists
/// of that name that schedulers print.
fn document(input: &Input<'_>) -> Option<Document> {
    if !input.text.contains("\"nodes\"") {
        return None;
    }
    json::find_where(&input.plain(), is_domain)
}

fn is_domain(map: &Map<String, Value>) -> bool {
    let is_node = |node: &Value| {
        node.as_object().is_some_and(|n| n.contains_key("status") || n.contains_key("host"))
    };
    let nodes = map.get("nodes").and_then(Value::as_object);
    nodes.is_some_and(|nodes| {
        let numbered = nodes.keys().all(|k| text::integer(k).is_some());
        let state = map.get("status").and_then(Value::as_str);
        numbered
            && (nodes.values().any(is_node)
                || state.is_some_and(|s| matches!(s, "UP" | "DEGRADED" | "DOWN")))
    })
}

/// Reads the document of `-N -j`. Its nodes stand in no order that means
/// anything, and their numbers may have gaps.
fn read_json(document: &Document, parsed: &mut Parsed) {
    let empty = Map::new();
    let root = document.value.as_object().unwrap_or(&empty);
    let mut imex = Imex {
        status: string(root, "status"),
        timestamp: string(root, "timestamp"),
        nodes: Vec::new(),
    };
    let nodes = root.get("nodes").and_then(Value::as_object).unwrap_or(&empty);
    for (key, node) in nodes {
        let Some((index, node)) = index(key).zip(node.as_object()) else {
            let detail = format!("node {} cannot be read", clean(key));
            parsed.problems.push(Problem::new(ProblemKind::Unrecognised, detail));
            continue;
        };
        let mut connections = BTreeMap::new();
        for (peer, connection) in
            node.get("connections").and_then(Value::as_object).unwrap_or(&empty)
        {
            let status = connection.as_object().and_then(|c| string(c, "status"));
            match index_and(peer, status) {
                Some((peer, status)) => {
                    connections.insert(peer, status);
                }
                None => {
                    let peer = clean(peer);
                    truncated(parsed, format!("node {index} to {peer}: no state"), None);
                }
            }
        }
        let status = string(node, "status");
        if status.is_none() {
            truncated(parsed, format!("node {index} has no state"), None);
        }
        imex.nodes.push(ImexNode {
            index,
            host: string(node, "host"),
            host_name: string(node, "hostName"),
            status,
            version: string(node, "version"),
            connections,
        });
    }
    imex.nodes.sort_by_key(|n| n.index);
    if let Some(stop) = &document.stopped {
        let detail = format!("the JSON stops where {} is expected", stop.expected);
        truncated(parsed, detail, Some(stop.line));
    }
    parsed.facts.imex = Some(imex);
}

fn string(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).map(clean).filter(|t| !t.is_empty())
}

/// The number of a node.
fn index(word: &str) -> Option<u32> {
    text::integer(word).and_then(|n| u32::try_from(n).ok()).filter(|n| *n < MOST_NODES)
}

fn index_and(word: &str, status: Option<String>) -> Option<(u32, String)> {
    index(word).zip(status)
}

/// `Node #3   - 10.0.0.3   - READY   - Version: 580.1   - Hostname: n3`; the
/// queried node has stars around its address in place of the dashes.
fn node_line(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("Node #")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    Some((index(number)?, rest))
}

/// The node of one line, and whether it is the queried one. An unavailable node
/// has an empty version; releases before 580 print neither version nor name.
fn read_node(index: u32, rest: &str) -> (ImexNode, bool) {
    let local = rest.trim_start().starts_with('*');
    let mut node = ImexNode { index, ..ImexNode::default() };
    let said = |text: &str| Some(clean(text)).filter(|t| !t.is_empty());
    let fields = rest.trim().trim_start_matches(['-', '*']);
    for field in fields.split(" - ") {
        let field = field.trim_matches(|c: char| c.is_whitespace() || c == '*');
        if let Some(version) = field.strip_prefix("Version:") {
            node.version = said(version);
        } else if let Some(name) = field.strip_prefix("Hostname:") {
            node.host_name = said(name);
        } else if node.host.is_none() {
            node.host = said(field);
        } else if node.status.is_none() {
            node.status = said(field).filter(|_| !field.contains('\u{fffd}'));
        }
    }
    (node, local)
}

/// `READY`, `WAITING_FOR_PEERS`: one word in capitals.
fn is_state(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
}

/// The text of `-N` as far as it was read.
#[derive(Default)]
struct Listing {
    imex: Imex,
    legend: BTreeMap<String, String>,
    in_legend: bool,
    /// Columns of the table.
    columns: Option<Vec<u32>>,
    in_table: bool,
    local: Option<u32>,
}

impl Listing {
    /// Reads the whole text.
    fn read(input: &Input<'_>, parsed: &mut Parsed) {
        let mut listing = Self::default();
        for line in &input.lines {
            listing.line(line, parsed);
        }
        listing.finish(parsed);
    }

    fn line(&mut self, line: &Line<'_>, parsed: &mut Parsed) {
        let text = line.trimmed();
        if text.starts_with(LEGEND) {
            self.in_legend = true;
        } else if text == "Nodes:" {
            self.in_legend = false;
            // `-n` prints the domain again after each change: the last one counts.
            if self.imex.status.is_some() {
                let legend = std::mem::take(&mut self.legend);
                let timestamp = self.imex.timestamp.take();
                *self = Self { legend, ..Self::default() };
                self.imex.timestamp = timestamp;
            }
        } else if let Some((index, rest)) = node_line(text) {
            self.node(index, rest, line, parsed);
        } else if let Some(heading) = text.strip_prefix(TABLE) {
            self.heading(heading, line, parsed);
        } else if let Some(state) = text.strip_prefix(STATE) {
            self.in_table = false;
            // More may stand behind it where another output follows at once.
            self.imex.status = state.split_whitespace().next().map(clean).filter(|s| is_state(s));
        } else if line.is_elision() {
            truncated(parsed, "lines were left out here", Some(line.number));
        } else if self.in_legend && text.contains(" - ") {
            self.legend(text);
        } else if is_timestamp(text) {
            self.imex.timestamp = Some(clean(text));
        } else if self.in_table && !text.is_empty() {
            self.row(text, line, parsed);
        } else if self.imex.status.is_none() && is_failure(text) {
            let problem = Problem::new(ProblemKind::Error, clean(text));
            parsed.problems.push(problem.at(line.number));
        }
    }

    fn node(&mut self, index: u32, rest: &str, line: &Line<'_>, parsed: &mut Parsed) {
        let (node, local) = read_node(index, rest);
        if node.status.is_none() {
            truncated(parsed, format!("node {index} has no state"), Some(line.number));
        }
        if local {
            self.local = Some(index);
        }
        if self.imex.nodes.iter().any(|n| n.index == index) {
            let detail = format!("node {index} is listed twice");
            parsed.problems.push(Problem::new(ProblemKind::Inconsistent, detail).at(line.number));
        } else {
            self.imex.nodes.push(node);
        }
    }

    /// `C - Connected - Ready for operation`, `!V! - Version mismatch, ...`.
    fn legend(&mut self, text: &str) {
        let Some((letter, meaning)) = text.split_once(" - ") else { return };
        let letter = letter.trim();
        let name = meaning.split([',', '.']).next().unwrap_or_default();
        let name = name.split(" - ").next().unwrap_or_default();
        let words: Vec<String> = name.split_whitespace().map(str::to_ascii_uppercase).collect();
        if !letter.is_empty() && letter.chars().count() <= 3 && !words.is_empty() {
            self.legend.insert(clean(letter), clean(&words.join("_")));
        }
    }

    fn heading(&mut self, heading: &str, line: &Line<'_>, parsed: &mut Parsed) {
        self.in_legend = false;
        let words = heading.split_whitespace().map(|w| index(w.trim_matches('*')));
        let columns: Option<Vec<u32>> = words.collect();
        let columns = columns.filter(|c| c.len() <= MOST_NODES as usize);
        if columns.is_none() {
            let detail = "the columns of the table cannot be read";
            truncated(parsed, detail, Some(line.number));
        }
        self.columns = Some(columns.unwrap_or_default());
        self.in_table = true;
    }

    /// One row of the table: what this node says of every other.
    fn row(&mut self, text: &str, line: &Line<'_>, parsed: &mut Parsed) {
        let columns = self.columns.as_deref().unwrap_or_default();
        let mut words = text.split_whitespace();
        let from = words.next().and_then(|w| index(w.trim_matches('*')));
        let Some(from) = from else {
            // Something else was printed into the table.
            return;
        };
        let cells: Vec<&str> = words.collect();
        if cells.len() != columns.len() {
            let detail = format!(
                "row {from} has {} cells, the table has {} columns",
                cells.len(),
                columns.len()
            );
            truncated(parsed, detail, Some(line.number));
        }
        let mut connections = BTreeMap::new();
        for (to, letter) in columns.iter().zip(cells) {
            match self.meaning(letter) {
                Some(state) => {
                    connections.insert(*to, state);
                }
                None => {
                    let letter = clean(letter);
                    let detail = format!("{from} to {to}: {letter} is in no legend");
                    let problem = Problem::new(ProblemKind::Unrecognised, detail);
                    parsed.problems.push(problem.at(line.number));
                }
            }
        }
        match self.imex.nodes.iter_mut().find(|n| n.index == from) {
            Some(node) => node.connections = connections,
            None => {
                truncated(parsed, format!("row {from} is of no listed node"), Some(line.number));
                self.imex.nodes.push(ImexNode { index: from, connections, ..ImexNode::default() });
            }
        }
    }

    /// What a letter of the table means, by this file's own legend first.
    fn meaning(&self, letter: &str) -> Option<String> {
        let known = || LETTERS.iter().find(|(l, _)| *l == letter).map(|(_, s)| (*s).to_owned());
        self.legend.get(letter).cloned().or_else(known)
    }

    /// Nodes and table must name each other.
    fn finish(self, parsed: &mut Parsed) {
        match &self.columns {
            None if !self.imex.nodes.is_empty() => {
                truncated(parsed, "the table of connections is missing", None);
            }
            Some(columns) => {
                let absent: Vec<String> = self
                    .imex
                    .nodes
                    .iter()
                    .filter(|n| n.connections.is_empty() || !columns.contains(&n.index))
                    .map(|n| n.index.to_string())
                    .collect();
                if !absent.is_empty() {
                    let detail = format!("the table lacks node {}", absent.join(", "));
                    truncated(parsed, detail, None);
                }
                if let Some(other) =
                    columns.iter().find(|c| self.imex.nodes.iter().all(|n| n.index != **c))
                {
                    let detail = format!("node {other} is in the table and not in the list");
                    truncated(parsed, detail, None);
                }
            }
            None => {}
        }
        if let Some(local) = self.local {
            parsed.facts.parameters.insert("imex.local_node".to_owned(), local.to_string());
        }
        parsed.facts.imex = Some(self.imex);
    }
}

/// `3/25/2025 10:39:43.659`.
fn is_timestamp(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.matches('/').count() == 2
        && text.matches(':').count() == 2
        && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'/' | b':' | b'.' | b' '))
}

/// Whether the tool says that it could not ask. Its sentences are not
/// documented, so their openings are all that is known.
fn is_failure(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["error", "failed to", "unable to", "cannot "].iter().any(|w| text.starts_with(w))
}

#[cfg(test)]
mod tests;
