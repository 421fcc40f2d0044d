//! What the documents of our own GPU probes have in common: where they stand in
//! an output, and what they say beside their numbers.
//!
//! Each node that took part prints one document, one a line. A document cut
//! short keeps what was whole in it; one of a version that is not known, or a
//! second one of the same node, is a problem and gives nothing. What the
//! numbers are is read in `copy` and `collective`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::lenient_json::JsonDocument;
use super::{ParserInput, lenient_json};
use model::id::NodeName;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput};
use model::probe_report::{
    DriverTelemetry, GpuTelemetrySample, ProbeProblem, ProbedGpu, ProbedRank,
};
use model::text;
use model::throttle_reason::ThrottleReason;
use model::tool_facts::{ToolDevice, ToolRank};

/// More documents than nodes take part in anything.
const MOST_DOCUMENTS: usize = 10_000;

/// A rank beyond this is none.
const MOST_RANKS: u32 = 1_000_000;

/// One node's document.
#[derive(Debug)]
pub(super) struct ProbeDocument {
    /// The node; empty where it does not say.
    pub(super) node: String,
    /// What it says.
    pub(super) value: Value,
    /// Where it begins.
    pub(super) line: u32,
    /// It is there to its end.
    pub(super) whole: bool,
}

impl ProbeDocument {
    /// The node as a sentence begins with it.
    pub(super) fn node_name(&self) -> &str {
        if self.node.is_empty() { "a node" } else { &self.node }
    }

    /// A list of the document; empty where there is none.
    pub(super) fn list(&self, key: &str) -> &[Value] {
        self.value[key].as_array().map_or(&[], Vec::as_slice)
    }
}

/// What is read of one output.
#[derive(Debug)]
pub(super) struct ProbeDocumentReader {
    pub(super) parsed: ParseOutput,
    /// GPUs among all that took part.
    pub(super) ranks: BTreeMap<u32, ProbedRank>,
    /// Problems that are noted already: a made-up document may have millions.
    noted: HashSet<OutputProblem>,
    /// Nothing was missing or strange so far.
    is_sound: bool,
}

impl ProbeDocumentReader {
    /// Reads all documents of a format in an output: `FAMILY` is what all its
    /// versions begin with. What they share is entered; their numbers are left
    /// to the caller.
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
            let what = "the document breaks off before it says anything";
            reader.note_strange(OutputProblemKind::Truncated, what.to_owned(), None);
        }
        for found in documents {
            reader.add_document(found, format, &mut pages);
        }
        reader.read_members(&pages);
        (reader, pages)
    }

    /// Ends reading.
    pub(super) fn close(mut self, pages: &[ProbeDocument]) -> ParseOutput {
        self.parsed.complete = self.is_sound
            && !pages.is_empty()
            && pages.iter().all(|page| page.value["complete"] == Value::Bool(true));
        if self.parsed.problems.is_empty() && !self.parsed.complete {
            let page = pages.iter().find(|page| page.value["complete"] != Value::Bool(true));
            let name = page.map_or("a node", ProbeDocument::node_name);
            let what = format!("{name}: the probe says that it did not measure everything");
            self.note_strange(OutputProblemKind::Truncated, what, page);
        }
        self.parsed
    }

    /// Something that should not be in a document, or is missing in it: the
    /// output is not complete.
    pub(super) fn note_strange(
        &mut self,
        kind: OutputProblemKind,
        what: String,
        page: Option<&ProbeDocument>,
    ) {
        self.is_sound = false;
        self.note(OutputProblem::new(kind, what), page);
    }

    /// The same of one test.
    pub(super) fn note_strange_test(
        &mut self,
        test: &str,
        kind: OutputProblemKind,
        what: String,
        page: &ProbeDocument,
    ) {
        self.is_sound = false;
        self.note(OutputProblem::new(kind, what).in_test(Some(test)), Some(page));
    }

    /// A problem that a document has or tells of.
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

    /// Keeps a field as a fact; one that differs between nodes is a problem.
    pub(super) fn keep_fact(&mut self, key: &str, page: &ProbeDocument) {
        let said = match &page.value[key] {
            Value::String(said) => text::clean(said),
            Value::Number(number) => number.to_string(),
            _ => return,
        };
        if said.is_empty() {
            return;
        }
        let known = self.parsed.facts.parameters.entry(key.to_owned()).or_insert(said.clone());
        if *known != said {
            let what =
                format!("{}: {key} is {said}, and {known} on another node", page.node_name());
            self.note(OutputProblem::new(OutputProblemKind::Inconsistent, what), Some(page));
        }
    }

    fn add_document(&mut self, found: FoundDocument, format: &str, pages: &mut Vec<ProbeDocument>) {
        let Some(JsonDocument { value, stopped, .. }) = found.document else {
            let what = "a document breaks off before it says anything".to_owned();
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
            // A node speaks for itself and for no other.
            let who = if node.is_empty() { "no node" } else { &node };
            let what = format!("{sender} sent a document that names {who}; it is not read");
            self.is_sound = false;
            let problem =
                OutputProblem::new(OutputProblemKind::Inconsistent, what).at_line(found.line);
            self.note(OutputProblem { host: Some(sender), ..problem }, None);
            return;
        }
        let page = ProbeDocument { node, value, line: found.line, whole: stopped.is_none() };
        if let Some(said) = page.value["format"].as_str().filter(|said| *said != format) {
            let what = format!("format {}, this version reads {format}", text::clean(said));
            self.note_strange(OutputProblemKind::Unrecognised, what, Some(&page));
            return;
        }
        if let Some(stop) = stopped {
            let what = format!("the document breaks off, {} was expected", stop.expected);
            self.note_strange(OutputProblemKind::Truncated, what, Some(&page));
        }
        if found.more {
            let what = "more stands behind the document on its line, and is not read".to_owned();
            self.note_strange(OutputProblemKind::Unrecognised, what, Some(&page));
        }
        if page.node.is_empty() && page.whole {
            let what = "the document does not name its node".to_owned();
            self.note_strange(OutputProblemKind::Unrecognised, what, Some(&page));
        }
        if let Some(first) = pages.iter().find(|known| known.node == page.node) {
            let what = format!(
                "{} printed two documents, in line {} and here; only the first is read",
                page.node_name(),
                first.line
            );
            self.note_strange(OutputProblemKind::Inconsistent, what, Some(&page));
            return;
        }
        let version = page.value["version"].as_str().map(text::clean);
        let facts = &mut self.parsed.facts;
        self.parsed.tool_version = self.parsed.tool_version.take().or(version);
        facts.add_host(&page.node);
        let cuda = page.value["cuda"].as_str().map(text::clean);
        facts.cuda_driver = facts.cuda_driver.take().or(cuda);
        for gpu in self.read_items::<ProbedGpu>(&page, "gpus") {
            let word = |said: Option<String>| said.map(|said| text::clean(&said));
            self.parsed.facts.devices.push(ToolDevice {
                index: gpu.index,
                name: word(gpu.name),
                bus_id: word(gpu.bus_id),
                uuid: word(gpu.uuid),
                host: Some(page.node.clone()).filter(|node| !node.is_empty()),
            });
        }
        self.read_telemetry(&page);
        self.read_problems(&page);
        pages.push(page);
    }

    /// The items of a list that can be read. In a document cut short the last
    /// one may be cut too, which is no other problem.
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
                    self.note_strange(OutputProblemKind::Unrecognised, what, Some(page));
                }
            }
        }
        items
    }

    /// What the driver said around the probe. It is no part of the numbers:
    /// half of it is of no use.
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
                self.note_strange(OutputProblemKind::Unrecognised, what, Some(page));
            }
        }
    }

    /// What the probe itself says went wrong.
    fn read_problems(&mut self, page: &ProbeDocument) {
        for said in page.list("problems") {
            let Ok(said) = serde_json::from_value::<ProbeProblem>(said.clone()) else {
                if page.whole {
                    // A kind of a later version must not make the rest unheard.
                    let what = match said["detail"].as_str() {
                        Some(detail) => text::clean(detail),
                        None => "a problem that cannot be read".to_owned(),
                    };
                    self.note_strange(OutputProblemKind::Error, what, Some(page));
                }
                continue;
            };
            let (class, detail) = (text::clean(&said.class), text::clean(&said.detail));
            let what = match (class.is_empty(), detail.is_empty()) {
                (true, true) => "a problem without a word".to_owned(),
                (true, false) => detail,
                (false, true) => class.clone(),
                (false, false) => format!("{class}: {detail}"),
            };
            let word = |said: Option<String>| {
                said.map(|said| text::clean(&said)).filter(|said| !said.is_empty())
            };
            let problem = OutputProblem {
                testcase: word(said.testcase),
                host: word(said.node),
                gpu: said.gpu,
                code: word(said.code),
                class: Some(class).filter(|class| !class.is_empty()),
                ..OutputProblem::new(said.kind, what)
            };
            self.note(problem, Some(page));
        }
    }

    /// Who took part. Documents that disagree make it unknown whose a number is.
    fn read_members(&mut self, pages: &[ProbeDocument]) {
        // What a node says of its own ranks comes first.
        let said: Vec<Vec<ProbedRank>> =
            pages.iter().map(|page| self.read_items::<ProbedRank>(page, "ranks")).collect();
        let is_own = |page: &ProbeDocument, rank: &ProbedRank| text::clean(&rank.node) == page.node;
        let own = pages.iter().zip(&said).map(|(page, ranks)| (page, ranks, true));
        let others = pages.iter().zip(&said).map(|(page, ranks)| (page, ranks, false));
        for (page, ranks, own) in own.chain(others) {
            for rank in ranks.iter().filter(|rank| is_own(page, rank) == own) {
                let mut rank = rank.clone();
                rank.node = text::clean(&rank.node);
                rank.bus_id = rank.bus_id.map(|said| text::clean(&said));
                rank.name = rank.name.map(|said| text::clean(&said));
                let number = rank.rank;
                if MOST_RANKS < number || rank.node.is_empty() {
                    let what = format!("rank {number} cannot be one");
                    self.note_strange(OutputProblemKind::Unrecognised, what, Some(page));
                    continue;
                }
                let known = self.ranks.entry(number).or_insert_with(|| rank.clone());
                if (&known.node, known.gpu) != (&rank.node, rank.gpu) {
                    let what = format!(
                        "rank {number} is GPU {}:{} here and {}:{} in another document",
                        rank.node, rank.gpu, known.node, known.gpu
                    );
                    self.note_strange(OutputProblemKind::Inconsistent, what, Some(page));
                }
            }
        }
        let printed: BTreeSet<&str> = pages.iter().map(|page| page.node.as_str()).collect();
        let mut silent = BTreeSet::new();
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
                silent.insert(rank.node.clone());
            }
        }
        for node in silent {
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

    /// Whether what a row stands for is this node's to say: its first rank is its own,
    /// or no ranks are known.
    pub(super) fn is_own_row(&self, page: &ProbeDocument, label: &str) -> bool {
        let first = label.split("->").next().and_then(|part| part.trim().parse::<u32>().ok());
        let rank = first.and_then(|rank| self.ranks.get(&rank));
        rank.is_none_or(|rank| rank.node == page.node)
    }

    /// Whether a label of a matrix can be told: a rank, or two of them
    /// (`0->4`), where ranks are known.
    pub(super) fn is_rank_label(&self, label: &str) -> bool {
        let known = |part: &str| {
            part.trim().parse::<u32>().is_ok_and(|rank| self.ranks.contains_key(&rank))
        };
        self.ranks.is_empty() || label.split("->").all(known)
    }

    /// Whether a document tells whose its numbers are: by the numbers of its
    /// own GPUs where it is alone, by ranks that nobody contradicts otherwise.
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

/// Words of others, made safe to show.
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
    /// The node that sent it, where that is known.
    sender: Option<String>,
    /// It, as far as it goes; nothing where that is not even its format.
    document: Option<JsonDocument>,
    /// Something else of this format stands behind it on its line.
    more: bool,
}

/// All documents of a format. They begin on a line of their own; what a line
/// that begins with a brace is part of ends where the next one begins.
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
    // A number on which a text ends may have lost digits; a line end behind it
    // is the next document's, or the terminal's.
    let chunk = chunk.trim_end();
    let is_ours = |map: &serde_json::Map<String, Value>| {
        map.get("format").and_then(Value::as_str).is_some_and(|said| said.starts_with(family))
    };
    let found = lenient_json::find_document_where(chunk, is_ours);
    let broken = found.as_ref().filter(|document| document.stopped.is_some());
    let found = match broken.map(|document| chunk[..document.end].trim_end()) {
        // What stands behind the break is another's; the number before it may
        // be cut.
        Some(before) => lenient_json::find_document_where(before, is_ours),
        None => found,
    };
    let line = first + found.as_ref().map_or(0, |document| document.line.saturating_sub(1));
    let whole = found.as_ref().filter(|document| document.stopped.is_none());
    let more = whole.is_some_and(|document| chunk[document.end..].contains(family));
    FoundDocument { line, sender: None, document: found, more }
}
