//! The common parts of the documents of fabricgate's GPU probes: their place in an output, and the
//! fields in addition to their numbers.
//!
//! Each participating node prints one document, one per line. A truncated document keeps its
//! complete parts; one of an unknown version, or a second one of the same node, is a problem and is
//! ignored. `copy` and `collective` read the numbers.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::lenient_json::JsonDocument;
use super::{ParserInput, lenient_json};
use model::id::NodeName;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput};
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::{
    DriverTelemetry, GpuTelemetrySample, ProbeProblem, ProbedGpu, ProbedRank,
};
use model::text;
use model::throttle_reason::ThrottleReason;
use model::tool_facts::{ToolDevice, ToolRank};

/// More documents than any measurement has nodes.
const MOST_DOCUMENTS: usize = 10_000;

/// A larger number is not a rank.
const MOST_RANKS: u32 = 1_000_000;

#[derive(Debug)]
pub(super) struct ProbeDocument {
    /// The node; empty if the document does not name it.
    pub(super) node: String,
    pub(super) value: Value,
    /// The line on which it begins.
    pub(super) line: u32,
    pub(super) whole: bool,
}

impl ProbeDocument {
    /// The node's name to begin a sentence with.
    pub(super) fn node_name(&self) -> &str {
        if self.node.is_empty() { "a node" } else { &self.node }
    }

    /// A list of the document; empty if absent.
    pub(super) fn list(&self, key: &str) -> &[Value] {
        self.value[key].as_array().map_or(&[], Vec::as_slice)
    }
}

/// The parts of one output that were read.
#[derive(Debug)]
pub(super) struct ProbeDocumentReader {
    pub(super) parsed: ParseOutput,
    /// The participating GPUs, by rank.
    pub(super) ranks: BTreeMap<u32, ProbedRank>,
    /// Problems already recorded: a forged document may have millions.
    noted: HashSet<OutputProblem>,
    /// No problem was found so far.
    is_sound: bool,
}

impl ProbeDocumentReader {
    /// Reads all documents of a format in an output: `family` is the prefix that all its versions
    /// share. Enters the common parts; the caller reads the numbers.
    pub(super) fn open(
        input: &ParserInput<'_>,
        family: &str,
        format: &str,
        parsed: ParseOutput,
    ) -> (Self, Vec<ProbeDocument>) {
        let (ranks, noted) = (BTreeMap::new(), HashSet::new());
        let mut reader = Self { parsed, ranks, noted, is_sound: true };
        let mut pages = Vec::new();
        let documents = find_documents(input, family);
        if documents.is_empty() {
            let what = "the document breaks off before its first field";
            reader.note_unexpected(OutputProblemKind::Truncated, what.to_owned(), None);
        }
        for found in documents {
            reader.add_document(found, format, &mut pages);
        }
        reader.read_members(&pages);
        (reader, pages)
    }

    pub(super) fn close(mut self, pages: &[ProbeDocument]) -> ParseOutput {
        self.parsed.complete = self.is_sound
            && !pages.is_empty()
            && pages.iter().all(|page| page.value["complete"] == Value::Bool(true));
        if self.parsed.problems.is_empty() && !self.parsed.complete {
            let page = pages.iter().find(|page| page.value["complete"] != Value::Bool(true));
            let name = page.map_or("a node", ProbeDocument::node_name);
            let what = format!("{name}: the probe reports that it did not measure everything");
            self.note_unexpected(OutputProblemKind::Truncated, what, page);
        }
        self.parsed
    }

    /// Records an unexpected or missing part of a document: the output is not complete.
    pub(super) fn note_unexpected(
        &mut self,
        kind: OutputProblemKind,
        what: String,
        page: Option<&ProbeDocument>,
    ) {
        self.is_sound = false;
        self.note(OutputProblem::new(kind, what), page);
    }

    /// The same for one test.
    pub(super) fn note_unexpected_in_test(
        &mut self,
        test: &str,
        kind: OutputProblemKind,
        what: String,
        page: &ProbeDocument,
    ) {
        self.is_sound = false;
        self.note(OutputProblem::new(kind, what).in_test(Some(test)), Some(page));
    }

    /// Records a problem in a document, or one that it reports.
    pub(super) fn note(&mut self, problem: OutputProblem, page: Option<&ProbeDocument>) {
        let host = page.map(|page| page.node.clone()).filter(|node| !node.is_empty());
        let problem = OutputProblem { host: problem.host.clone().or(host), ..problem };
        let problem = match page {
            Some(page) => problem.at_line(page.line),
            None => problem,
        };
        if self.noted.insert(problem.clone()) {
            self.parsed.problems.push(problem);
        }
    }

    /// Stores a field as a fact; a difference between nodes is a problem.
    pub(super) fn keep_fact(&mut self, key: &str, page: &ProbeDocument) {
        let text = match &page.value[key] {
            Value::String(text) => text::clean(text),
            Value::Number(number) => number.to_string(),
            _ => return,
        };
        if text.is_empty() {
            return;
        }
        let known = self.parsed.facts.parameters.entry(key.to_owned()).or_insert(text.clone());
        if *known != text {
            let what =
                format!("{}: {key} is {text}, and {known} on another node", page.node_name());
            self.note(OutputProblem::new(OutputProblemKind::Inconsistent, what), Some(page));
        }
    }

    fn add_document(&mut self, found: FoundDocument, format: &str, pages: &mut Vec<ProbeDocument>) {
        let Some(JsonDocument { value, stopped, .. }) = found.document else {
            let what = "a document breaks off before its first field".to_owned();
            self.is_sound = false;
            let problem =
                OutputProblem::new(OutputProblemKind::Truncated, what).at_line(found.line);
            self.note(OutputProblem { host: found.sender, ..problem }, None);
            return;
        };
        let node = value["node"].as_str().map(text::clean).unwrap_or_default();
        if let Some(sender) =
            found.sender.filter(|it| !NodeName::from(it.as_str()).matches_host(&node))
        {
            // A node reports for itself only.
            let named = if node.is_empty() { "no node" } else { &node };
            let what = format!("{sender} sent a document that names {named}; it is not read");
            self.is_sound = false;
            let problem =
                OutputProblem::new(OutputProblemKind::Inconsistent, what).at_line(found.line);
            self.note(OutputProblem { host: Some(sender), ..problem }, None);
            return;
        }
        let page = ProbeDocument { node, value, line: found.line, whole: stopped.is_none() };
        if let Some(other) = page.value["format"].as_str().filter(|other| *other != format) {
            let what = format!("format {}, this version reads {format}", text::clean(other));
            self.note_unexpected(OutputProblemKind::Unrecognised, what, Some(&page));
            return;
        }
        if let Some(stop) = stopped {
            let what = format!("the document breaks off, {} was expected", stop.expected);
            self.note_unexpected(OutputProblemKind::Truncated, what, Some(&page));
        }
        if found.more {
            let what = "more text follows the document on its line and is not read".to_owned();
            self.note_unexpected(OutputProblemKind::Unrecognised, what, Some(&page));
        }
        if page.node.is_empty() && page.whole {
            let what = "the document does not name its node".to_owned();
            self.note_unexpected(OutputProblemKind::Unrecognised, what, Some(&page));
        }
        if let Some(first) = pages.iter().find(|known| known.node == page.node) {
            let what = format!(
                "{} printed two documents, in line {} and here; only the first is read",
                page.node_name(),
                first.line
            );
            self.note_unexpected(OutputProblemKind::Inconsistent, what, Some(&page));
            return;
        }
        let version = page.value["version"].as_str().map(text::clean);
        let facts = &mut self.parsed.facts;
        self.parsed.tool_version = self.parsed.tool_version.take().or(version);
        facts.add_host(&page.node);
        let cuda = page.value["cuda"].as_str().map(text::clean);
        facts.cuda_driver = facts.cuda_driver.take().or(cuda);
        for gpu in self.read_items::<ProbedGpu>(&page, "gpus") {
            let clean = |field: Option<String>| field.map(|text| text::clean(&text));
            self.parsed.facts.devices.push(ToolDevice {
                index: gpu.index,
                name: clean(gpu.name),
                bus_id: clean(gpu.bus_id),
                uuid: clean(gpu.uuid),
                host: Some(page.node.clone()).filter(|node| !node.is_empty()),
                unreachable_numa_node: gpu.unreachable_numa_node,
            });
        }
        self.read_telemetry(&page);
        self.read_problems(&page);
        pages.push(page);
    }

    /// The readable items of a list. In a truncated document the last one may be cut too, which is
    /// not a separate problem.
    pub(super) fn read_items<T: DeserializeOwned>(
        &mut self,
        page: &ProbeDocument,
        key: &str,
    ) -> Vec<T> {
        let mut items = Vec::new();
        for item in page.list(key) {
            match serde_json::from_value(item.clone()) {
                Ok(item) => items.push(item),
                Err(_) if !page.whole => {}
                Err(error) => {
                    let what = format!("{key}: {}", text::clean(&error.to_string()));
                    self.note_unexpected(OutputProblemKind::Unrecognised, what, Some(page));
                }
            }
        }
        items
    }

    /// The driver telemetry around the probe. It is separate from the numbers: a partial record is
    /// of no use.
    fn read_telemetry(&mut self, page: &ProbeDocument) {
        let value = &page.value["around"];
        if value.is_null() || !page.whole {
            return;
        }
        match serde_json::from_value::<DriverTelemetry>(value.clone()) {
            Ok(mut around) => {
                clean_telemetry(&mut around);
                self.parsed.facts.around.insert(page.node.clone(), around);
            }
            Err(error) => {
                let what = format!("around: {}", text::clean(&error.to_string()));
                self.note_unexpected(OutputProblemKind::Unrecognised, what, Some(page));
            }
        }
    }

    /// Reads the problems that the probe itself reports.
    fn read_problems(&mut self, page: &ProbeDocument) {
        for item in page.list("problems") {
            let Ok(entry) = serde_json::from_value::<ProbeProblem>(item.clone()) else {
                if page.whole {
                    // A kind of a later version must not hide the rest.
                    let what = match item["detail"].as_str() {
                        Some(detail) => text::clean(detail),
                        None => "a problem that cannot be read".to_owned(),
                    };
                    self.note_unexpected(OutputProblemKind::Error, what, Some(page));
                }
                continue;
            };
            let (class, detail) = (text::clean(entry.class.as_str()), text::clean(&entry.detail));
            let what = match (class.is_empty(), detail.is_empty()) {
                (true, true) => "a problem without a text".to_owned(),
                (true, false) => detail,
                (false, true) => class.clone(),
                (false, false) => format!("{class}: {detail}"),
            };
            let clean = |field: Option<String>| {
                field.map(|text| text::clean(&text)).filter(|text| !text.is_empty())
            };
            let problem = OutputProblem {
                testcase: clean(entry.testcase),
                host: clean(entry.node),
                gpu: entry.gpu,
                code: clean(entry.code),
                class: (!class.is_empty()).then(|| ProbeProblemClass::from_name(&class)),
                ..OutputProblem::new(entry.kind, what)
            };
            self.note(problem, Some(page));
        }
    }

    /// Reads the participants. If documents disagree, the owner of a number is unknown.
    fn read_members(&mut self, pages: &[ProbeDocument]) {
        // A node's entries for its own ranks come first.
        let listed: Vec<Vec<ProbedRank>> =
            pages.iter().map(|page| self.read_items::<ProbedRank>(page, "ranks")).collect();
        let is_own = |page: &ProbeDocument, rank: &ProbedRank| text::clean(&rank.node) == page.node;
        let own = pages.iter().zip(&listed).map(|(page, ranks)| (page, ranks, true));
        let others = pages.iter().zip(&listed).map(|(page, ranks)| (page, ranks, false));
        for (page, ranks, own) in own.chain(others) {
            for rank in ranks.iter().filter(|rank| is_own(page, rank) == own) {
                let mut rank = rank.clone();
                rank.node = text::clean(&rank.node);
                rank.bus_id = rank.bus_id.map(|text| text::clean(&text));
                rank.name = rank.name.map(|text| text::clean(&text));
                let number = rank.rank;
                if MOST_RANKS < number || rank.node.is_empty() {
                    let what = format!("{number} is not a valid rank");
                    self.note_unexpected(OutputProblemKind::Unrecognised, what, Some(page));
                    continue;
                }
                let known = self.ranks.entry(number).or_insert_with(|| rank.clone());
                if (&known.node, known.gpu) != (&rank.node, rank.gpu) {
                    let what = format!(
                        "rank {number} is GPU {}:{} here and {}:{} in another document",
                        rank.node, rank.gpu, known.node, known.gpu
                    );
                    self.note_unexpected(OutputProblemKind::Inconsistent, what, Some(page));
                }
            }
        }
        let printed: BTreeSet<&str> = pages.iter().map(|page| page.node.as_str()).collect();
        let mut missing = BTreeSet::new();
        for rank in self.ranks.values() {
            self.parsed.facts.ranks.push(ToolRank {
                rank: rank.rank,
                host: rank.node.clone(),
                device: rank.gpu,
                name: rank.name.clone(),
                bus_id: rank.bus_id.clone(),
                group: None,
            });
            if !printed.contains(rank.node.as_str()) {
                missing.insert(rank.node.clone());
            }
        }
        for node in missing {
            let what = format!("{node} took part and printed no document");
            self.is_sound = false;
            let problem = OutputProblem::new(OutputProblemKind::Truncated, what);
            self.note(OutputProblem { host: Some(node), ..problem }, None);
        }
        let mut places: BTreeMap<(&str, u32), u32> = BTreeMap::new();
        for rank in self.ranks.values() {
            places.entry((&rank.node, rank.gpu)).or_insert(rank.rank);
        }
        for problem in &mut self.parsed.problems {
            let place = problem.host.as_deref().zip(problem.gpu);
            problem.rank = place.and_then(|place| places.get(&place).copied());
        }
    }

    /// Whether a row belongs to this node: its first rank is one of the node's, or no ranks are
    /// known.
    pub(super) fn is_own_row(&self, page: &ProbeDocument, label: &str) -> bool {
        let first = label.split("->").next().and_then(|part| part.trim().parse::<u32>().ok());
        let rank = first.and_then(|rank| self.ranks.get(&rank));
        rank.is_none_or(|rank| rank.node == page.node)
    }

    /// Whether a label of a matrix is valid: a rank, or two of them (`0->4`), if ranks are known.
    pub(super) fn is_rank_label(&self, label: &str) -> bool {
        let known = |part: &str| {
            part.trim().parse::<u32>().is_ok_and(|rank| self.ranks.contains_key(&rank))
        };
        self.ranks.is_empty() || label.split("->").all(known)
    }

    /// Whether a document identifies its numbers: by its own GPU indices if it is the only
    /// document, else by ranks without a contradiction.
    pub(super) fn identifies_ranks(&self, page: &ProbeDocument, alone: bool) -> bool {
        let own: Vec<ProbedRank> = page
            .list("ranks")
            .iter()
            .filter_map(|rank| serde_json::from_value(rank.clone()).ok())
            .collect();
        let agreed = |rank: &ProbedRank| {
            self.ranks
                .get(&rank.rank)
                .is_some_and(|known| known.gpu == rank.gpu && known.node == text::clean(&rank.node))
        };
        (alone && self.ranks.is_empty()) || (!own.is_empty() && own.iter().all(agreed))
    }
}

/// Removes control characters from foreign text.
fn clean_telemetry(around: &mut DriverTelemetry) {
    let tidy = |word: &mut String| *word = text::clean(word);
    for gpu in &mut around.gpus {
        gpu.uuid.iter_mut().for_each(tidy);
        for GpuTelemetrySample { throttled, .. } in
            [&mut gpu.before, &mut gpu.under_load, &mut gpu.after].into_iter().flatten()
        {
            for reason in throttled {
                *reason = ThrottleReason::parse(&text::clean(&reason.to_string()));
            }
        }
        for counters in gpu.link_errors.values_mut() {
            let own = std::mem::take(counters);
            counters.extend(own.into_iter().map(|(name, count)| (text::clean(&name), count)));
        }
    }
    for missing in &mut around.missing {
        missing.what = text::clean(&missing.what);
        missing.why = text::clean(&missing.why);
    }
}

/// A place in the output where a document begins.
struct FoundDocument {
    line: u32,
    /// The node that sent it, if known.
    sender: Option<String>,
    /// The document as far as it goes; `None` if even its format is unreadable.
    document: Option<JsonDocument>,
    /// More text of this format follows it on its line.
    more: bool,
}

/// All documents of a format. They begin on their own line; a document that starts with a brace
/// ends where the next one begins.
fn find_documents(input: &ParserInput<'_>, family: &str) -> Vec<FoundDocument> {
    let plain = input.plain_text();
    let sender = |line: u32| {
        if !input.by_connection {
            return None;
        }
        let at = usize::try_from(line).ok()?.checked_sub(1)?;
        input.lines.get(at)?.host.map(text::clean)
    };
    let mut chunks: Vec<(u32, &str)> = Vec::new();
    let mut start = 0;
    let (mut first, mut number, mut at) = (1, 1, 0);
    for line in plain.split_inclusive('\n') {
        if line.starts_with('{') && start < at {
            chunks.push((first, &plain[start..at]));
            (start, first) = (at, number);
        }
        at += line.len();
        number += 1;
    }
    chunks.push((first, &plain[start..]));
    let chunks = chunks.into_iter().filter(|(_, chunk)| chunk.contains(family));
    let found =
        chunks.take(MOST_DOCUMENTS).map(|(first, chunk)| parse_document(first, chunk, family));
    found.map(|found| FoundDocument { sender: sender(found.line), ..found }).collect()
}

/// The document in this part of an output.
fn parse_document(first: u32, chunk: &str, family: &str) -> FoundDocument {
    // A number at the end of a text may have lost digits; a line end after it comes from the next
    // document, or from the terminal.
    let chunk = chunk.trim_end();
    let has_format = |map: &serde_json::Map<String, Value>| {
        map.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with(family))
    };
    let found = lenient_json::find_document_where(chunk, has_format);
    let broken = found.as_ref().filter(|document| document.stopped.is_some());
    let found = match broken.map(|document| chunk[..document.end].trim_end()) {
        // The text after the break belongs to another document; the number before it may be
        // truncated.
        Some(before) => lenient_json::find_document_where(before, has_format),
        None => found,
    };
    let line = first + found.as_ref().map_or(0, |document| document.line.saturating_sub(1));
    let whole = found.as_ref().filter(|document| document.stopped.is_none());
    let more = whole.is_some_and(|document| chunk[document.end..].contains(family));
    FoundDocument { line, sender: None, document: found, more }
}
