//! `nvidia-imex-ctl`: the IMEX domain as the queried node reports it, as text (`-N`) or JSON (`-N
//! -j`), and the single token of `-q`.
//!
//! States are stored as printed; letters of the text table are expanded to the names in the JSON.
//! This module does not decide which row counts: a peer's own row may come from the configuration,
//! so the row of the queried node is recorded if the tool marks it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::lenient_json::JsonDocument;
use super::text::OutputLine;
use super::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput, lenient_json, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::{ImexNode, ImexStatus};

/// The output of `-q`, from the list in NVIDIA's DCGM (`DcgmImexManager`).
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

/// The meaning of the table's letters if the legend is missing.
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

/// Node numbers are below this; a domain is one rack of 18 nodes, 72 at most. Lists are searched
/// linearly, so a forged file must not make them long.
const MOST_NODES: u32 = 1024;

const LEGEND: &str = "Connectivity Table Legend:";
const TABLE: &str = "Nodes From\\To";
const STATE: &str = "Domain State:";

/// The confidence that this is `nvidia-imex-ctl`.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    let mut nodes = 0;
    let mut state = 0;
    for line in &input.lines {
        let text = line.trimmed();
        if text.starts_with(LEGEND) || text.starts_with(TABLE) {
            return CERTAIN;
        }
        nodes += usize::from(split_node_line(text).is_some());
        state += usize::from(text.starts_with(STATE));
    }
    if 0 < nodes && 0 < state {
        CERTAIN
    } else if 0 < nodes || 0 < state {
        LIKELY
    } else if find_document(input).is_some() {
        CERTAIN
    } else if find_daemon_state(input).is_some() {
        POSSIBLE
    } else {
        0
    }
}

/// Reads the domain.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::NvidiaImexCtl);
    if let Some(document) = find_document(input) {
        read_json(&document, &mut parsed);
        if document.is_followed(&input.plain_text(), is_domain) {
            parsed.problems.push(document.extra_document_problem());
        }
    } else if let Some(state) = find_daemon_state(input) {
        // The state of one daemon, not of a domain.
        parsed.facts.parameters.insert("imex.daemon_state".to_owned(), state.to_owned());
        parsed.complete = true;
        return parsed;
    } else {
        ImexTextReader::read(input, &mut parsed);
    }
    if parsed.facts.imex.as_ref().is_none_or(|i| i.status.is_none()) {
        note_truncation(&mut parsed, "the state of the domain is missing", None);
    }
    parsed.complete = !parsed.has_problem(OutputProblemKind::Truncated)
        && !parsed.has_problem(OutputProblemKind::Unrecognised);
    parsed
}

fn note_truncation(parsed: &mut ParseOutput, detail: impl Into<String>, line: Option<u32>) {
    let mut problem = OutputProblem::new(OutputProblemKind::Truncated, detail);
    problem.line = line;
    parsed.problems.push(problem);
}

/// The token of `-q`, if the file holds nothing else: a single token may come from any tool.
fn find_daemon_state<'a>(input: &ParserInput<'a>) -> Option<&'a str> {
    let mut filled = input.lines.iter().filter(|line| !line.stderr && !line.text.trim().is_empty());
    let word = filled.next()?.text.trim();
    (filled.next().is_none() && DAEMON_STATES.contains(&word)).then_some(word)
}

/// The JSON of `-N -j`. Its `nodes` is an object of objects, unlike the lists of that name that
/// schedulers print.
fn find_document(input: &ParserInput<'_>) -> Option<JsonDocument> {
    if !input.text.contains("\"nodes\"") {
        return None;
    }
    lenient_json::find_document_where(&input.plain_text(), is_domain)
}

fn is_domain(map: &Map<String, Value>) -> bool {
    let is_node = |node: &Value| {
        node.as_object().is_some_and(|n| n.contains_key("status") || n.contains_key("host"))
    };
    let nodes = map.get("nodes").and_then(Value::as_object);
    nodes.is_some_and(|nodes| {
        let numbered = nodes.keys().all(|k| text::parse_integer(k).is_some());
        let state = map.get("status").and_then(Value::as_str);
        numbered
            && (nodes.values().any(is_node)
                || state.is_some_and(|s| matches!(s, "UP" | "DEGRADED" | "DOWN")))
    })
}

/// Reads the document of `-N -j`. The order of its nodes has no meaning, and their numbers may have
/// gaps.
fn read_json(document: &JsonDocument, parsed: &mut ParseOutput) {
    let empty = Map::new();
    let root = document.value.as_object().unwrap_or(&empty);
    let mut imex = ImexStatus {
        status: string_field(root, "status"),
        timestamp: string_field(root, "timestamp"),
        nodes: Vec::new(),
    };
    let nodes = root.get("nodes").and_then(Value::as_object).unwrap_or(&empty);
    for (key, node) in nodes {
        let Some((index, node)) = parse_index(key).zip(node.as_object()) else {
            let detail = format!("node {} cannot be read", clean(key));
            parsed.problems.push(OutputProblem::new(OutputProblemKind::Unrecognised, detail));
            continue;
        };
        let mut connections = BTreeMap::new();
        for (peer, connection) in
            node.get("connections").and_then(Value::as_object).unwrap_or(&empty)
        {
            let status = connection.as_object().and_then(|c| string_field(c, "status"));
            match parse_index_and_status(peer, status) {
                Some((peer, status)) => {
                    connections.insert(peer, status);
                }
                None => {
                    let peer = clean(peer);
                    note_truncation(parsed, format!("node {index} to {peer}: no state"), None);
                }
            }
        }
        let status = string_field(node, "status");
        if status.is_none() {
            note_truncation(parsed, format!("node {index} has no state"), None);
        }
        imex.nodes.push(ImexNode {
            index,
            host: string_field(node, "host"),
            host_name: string_field(node, "hostName"),
            status,
            version: string_field(node, "version"),
            connections,
        });
    }
    imex.nodes.sort_by_key(|n| n.index);
    if let Some(stop) = &document.stopped {
        let detail = format!("the JSON stops where {} is expected", stop.expected);
        note_truncation(parsed, detail, Some(stop.line));
    }
    parsed.facts.imex = Some(imex);
}

fn string_field(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).map(clean).filter(|t| !t.is_empty())
}

fn parse_index(word: &str) -> Option<u32> {
    text::parse_integer(word).and_then(|n| u32::try_from(n).ok()).filter(|n| *n < MOST_NODES)
}

fn parse_index_and_status(word: &str, status: Option<String>) -> Option<(u32, String)> {
    parse_index(word).zip(status)
}

/// `Node #3   - 10.0.0.3   - READY   - Version: 580.1   - Hostname: n3`; the queried node has stars
/// around its address instead of the dashes.
fn split_node_line(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("Node #")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    Some((parse_index(number)?, rest))
}

/// The node of one line, and whether it is the queried one. An unavailable node has an empty
/// version; releases before 580 print neither version nor name.
fn read_node(index: u32, rest: &str) -> (ImexNode, bool) {
    let local = rest.trim_start().starts_with('*');
    let mut node = ImexNode { index, ..ImexNode::default() };
    let non_empty = |text: &str| Some(clean(text)).filter(|t| !t.is_empty());
    let fields = rest.trim().trim_start_matches(['-', '*']);
    for field in fields.split(" - ") {
        let field = field.trim_matches(|c: char| c.is_whitespace() || c == '*');
        if let Some(version) = field.strip_prefix("Version:") {
            node.version = non_empty(version);
        } else if let Some(name) = field.strip_prefix("Hostname:") {
            node.host_name = non_empty(name);
        } else if node.host.is_none() {
            node.host = non_empty(field);
        } else if node.status.is_none() {
            node.status = non_empty(field).filter(|_| !field.contains('\u{fffd}'));
        }
    }
    (node, local)
}

/// `READY`, `WAITING_FOR_PEERS`: one token in capitals.
fn is_state(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
}

/// The parser state of the `-N` text.
#[derive(Default)]
struct ImexTextReader {
    imex: ImexStatus,
    legend: BTreeMap<String, String>,
    in_legend: bool,
    columns: Option<Vec<u32>>,
    in_table: bool,
    local: Option<u32>,
}

impl ImexTextReader {
    fn read(input: &ParserInput<'_>, parsed: &mut ParseOutput) {
        let mut listing = Self::default();
        for line in &input.lines {
            listing.read_line(line, parsed);
        }
        listing.finish(parsed);
    }

    fn read_line(&mut self, line: &OutputLine<'_>, parsed: &mut ParseOutput) {
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
        } else if let Some((index, rest)) = split_node_line(text) {
            self.add_node(index, rest, line, parsed);
        } else if let Some(heading) = text.strip_prefix(TABLE) {
            self.read_heading(heading, line, parsed);
        } else if let Some(state) = text.strip_prefix(STATE) {
            self.in_table = false;
            // More lines may follow if another output comes directly after this one.
            self.imex.status = state.split_whitespace().next().map(clean).filter(|s| is_state(s));
        } else if line.is_elision() {
            note_truncation(parsed, "lines were left out here", Some(line.number));
        } else if self.in_legend && text.contains(" - ") {
            self.read_legend(text);
        } else if is_timestamp(text) {
            self.imex.timestamp = Some(clean(text));
        } else if self.in_table && !text.is_empty() {
            self.read_row(text, line, parsed);
        } else if self.imex.status.is_none() && is_failure(text) {
            let problem = OutputProblem::new(OutputProblemKind::Error, clean(text));
            parsed.problems.push(problem.at_line(line.number));
        }
    }

    fn add_node(
        &mut self,
        index: u32,
        rest: &str,
        line: &OutputLine<'_>,
        parsed: &mut ParseOutput,
    ) {
        let (node, local) = read_node(index, rest);
        if node.status.is_none() {
            note_truncation(parsed, format!("node {index} has no state"), Some(line.number));
        }
        if local {
            self.local = Some(index);
        }
        if self.imex.nodes.iter().any(|n| n.index == index) {
            let detail = format!("node {index} is listed twice");
            parsed.problems.push(
                OutputProblem::new(OutputProblemKind::Inconsistent, detail).at_line(line.number),
            );
        } else {
            self.imex.nodes.push(node);
        }
    }

    /// `C - Connected - Ready for operation`, `!V! - Version mismatch, ...`.
    fn read_legend(&mut self, text: &str) {
        let Some((letter, meaning)) = text.split_once(" - ") else { return };
        let letter = letter.trim();
        let name = meaning.split([',', '.']).next().unwrap_or_default();
        let name = name.split(" - ").next().unwrap_or_default();
        let words: Vec<String> = name.split_whitespace().map(str::to_ascii_uppercase).collect();
        if !letter.is_empty() && letter.chars().count() <= 3 && !words.is_empty() {
            self.legend.insert(clean(letter), clean(&words.join("_")));
        }
    }

    fn read_heading(&mut self, heading: &str, line: &OutputLine<'_>, parsed: &mut ParseOutput) {
        self.in_legend = false;
        let words = heading.split_whitespace().map(|w| parse_index(w.trim_matches('*')));
        let columns: Option<Vec<u32>> = words.collect();
        let columns = columns.filter(|c| c.len() <= MOST_NODES as usize);
        if columns.is_none() {
            let detail = "the columns of the table cannot be read";
            note_truncation(parsed, detail, Some(line.number));
        }
        self.columns = Some(columns.unwrap_or_default());
        self.in_table = true;
    }

    /// One row of the table: this node's view of every other node.
    fn read_row(&mut self, text: &str, line: &OutputLine<'_>, parsed: &mut ParseOutput) {
        let columns = self.columns.as_deref().unwrap_or_default();
        let mut words = text.split_whitespace();
        let from = words.next().and_then(|w| parse_index(w.trim_matches('*')));
        let Some(from) = from else {
            // Other text was printed into the table.
            return;
        };
        let cells: Vec<&str> = words.collect();
        if cells.len() != columns.len() {
            let detail = format!(
                "row {from} has {} cells, the table has {} columns",
                cells.len(),
                columns.len()
            );
            note_truncation(parsed, detail, Some(line.number));
        }
        let mut connections = BTreeMap::new();
        for (to, letter) in columns.iter().zip(cells) {
            match self.letter_meaning(letter) {
                Some(state) => {
                    connections.insert(*to, state);
                }
                None => {
                    let letter = clean(letter);
                    let detail = format!("{from} to {to}: {letter} is not in the legend");
                    let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
                    parsed.problems.push(problem.at_line(line.number));
                }
            }
        }
        match self.imex.nodes.iter_mut().find(|n| n.index == from) {
            Some(node) => node.connections = connections,
            None => {
                note_truncation(
                    parsed,
                    format!("row {from} does not belong to a listed node"),
                    Some(line.number),
                );
                self.imex.nodes.push(ImexNode { index: from, connections, ..ImexNode::default() });
            }
        }
    }

    /// The meaning of a table letter, from this file's own legend first.
    fn letter_meaning(&self, letter: &str) -> Option<String> {
        let known = || LETTERS.iter().find(|(l, _)| *l == letter).map(|(_, s)| (*s).to_owned());
        self.legend.get(letter).cloned().or_else(known)
    }

    /// Checks that nodes and table name each other.
    fn finish(self, parsed: &mut ParseOutput) {
        match &self.columns {
            None if !self.imex.nodes.is_empty() => {
                note_truncation(parsed, "the table of connections is missing", None);
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
                    note_truncation(parsed, detail, None);
                }
                if let Some(other) =
                    columns.iter().find(|c| self.imex.nodes.iter().all(|n| n.index != **c))
                {
                    let detail = format!("node {other} is in the table and not in the list");
                    note_truncation(parsed, detail, None);
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

/// Whether the tool reports that its query failed. Its messages are undocumented, so only their
/// beginnings are matched.
fn is_failure(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["error", "failed to", "unable to", "cannot "].iter().any(|w| text.starts_with(w))
}

#[cfg(test)]
mod tests;
