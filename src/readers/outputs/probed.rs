//! What the documents of our own GPU probes have in common: where they stand in
//! an output, and what they say beside their numbers.
//!
//! Each node that took part prints one document, one a line. A document cut
//! short keeps what was whole in it; one of a version that is not known, or a
//! second one of the same node, is a problem and gives nothing. What the
//! numbers are is read in `copy` and `collective`.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Input;
use super::json;
use super::json::Document;
use model::facts::Device;
use model::facts::Rank;
use model::id::NodeName;
use model::parsed::Parsed;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::probed::Around;
use model::probed::GpuState;
use model::probed::ProbeProblem;
use model::probed::ProbedGpu;
use model::probed::ProbedRank;
use model::text;
use model::throttle::ThrottleReason;

/// More documents than nodes take part in anything.
const MOST_DOCUMENTS: usize = 10_000;

/// A rank beyond this is none.
const MOST_RANKS: u32 = 1_000_000;

/// One node's document.
#[derive(Debug)]
pub(super) struct Page {
    /// The node; empty where it does not say.
    pub(super) node: String,
    /// What it says.
    pub(super) value: Value,
    /// Where it begins.
    pub(super) line: u32,
    /// It is there to its end.
    pub(super) whole: bool,
}

impl Page {
    /// The node as a sentence begins with it.
    pub(super) fn name(&self) -> &str {
        if self.node.is_empty() { "a node" } else { &self.node }
    }

    /// A list of the document; empty where there is none.
    pub(super) fn list(&self, key: &str) -> &[Value] {
        self.value[key].as_array().map_or(&[], Vec::as_slice)
    }
}

/// What is read of one output.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) parsed: Parsed,
    /// GPUs among all that took part.
    pub(super) ranks: BTreeMap<u32, ProbedRank>,
    /// Problems that are noted already: a made-up document may have millions.
    noted: HashSet<Problem>,
    /// Nothing was missing or strange so far.
    sound: bool,
}

impl Reader {
    /// Reads all documents of a format in an output: `FAMILY` is what all its
    /// versions begin with. What they share is entered; their numbers are left
    /// to the caller.
    pub(super) fn open(
        input: &Input<'_>,
        family: &str,
        format: &str,
        parsed: Parsed,
    ) -> (Self, Vec<Page>) {
        let (ranks, noted) = (BTreeMap::new(), HashSet::new());
        let mut reader = Self { parsed, ranks, noted, sound: true };
        let mut pages = Vec::new();
        let documents = documents(input, family);
        if documents.is_empty() {
            let what = "the document breaks off before it says anything";
            reader.strange(ProblemKind::Truncated, what.to_owned(), None);
        }
        for found in documents {
            reader.page(found, format, &mut pages);
        }
        reader.members(&pages);
        (reader, pages)
    }

    /// Ends reading.
    pub(super) fn close(mut self, pages: &[Page]) -> Parsed {
        self.parsed.complete = self.sound
            && !pages.is_empty()
            && pages.iter().all(|page| page.value["complete"] == Value::Bool(true));
        if self.parsed.problems.is_empty() && !self.parsed.complete {
            let page = pages.iter().find(|page| page.value["complete"] != Value::Bool(true));
            let name = page.map_or("a node", Page::name);
            let what = format!("{name}: the probe says that it did not measure everything");
            self.strange(ProblemKind::Truncated, what, page);
        }
        self.parsed
    }

    /// Something that should not be in a document, or is missing in it: the
    /// output is not complete.
    pub(super) fn strange(&mut self, kind: ProblemKind, what: String, page: Option<&Page>) {
        self.sound = false;
        self.note(Problem::new(kind, what), page);
    }

    /// The same of one test.
    pub(super) fn strange_in(&mut self, test: &str, kind: ProblemKind, what: String, page: &Page) {
        self.sound = false;
        self.note(Problem::new(kind, what).in_test(Some(test)), Some(page));
    }

    /// A problem that a document has or tells of.
    pub(super) fn note(&mut self, problem: Problem, page: Option<&Page>) {
        let host = page.map(|page| page.node.clone()).filter(|node| !node.is_empty());
        let problem = Problem { host: problem.host.clone().or(host), ..problem };
        let problem = match page {
            Some(page) => problem.at(page.line),
            None => problem,
        };
        if self.noted.insert(problem.clone()) {
            self.parsed.problems.push(problem);
        }
    }

    /// Keeps a field as a fact; one that differs between nodes is a problem.
    pub(super) fn keep(&mut self, key: &str, page: &Page) {
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
            let what = format!("{}: {key} is {said}, and {known} on another node", page.name());
            self.note(Problem::new(ProblemKind::Inconsistent, what), Some(page));
        }
    }

    fn page(&mut self, found: Found, format: &str, pages: &mut Vec<Page>) {
        let Some(Document { value, stopped, .. }) = found.document else {
            let what = "a document breaks off before it says anything".to_owned();
            self.sound = false;
            let problem = Problem::new(ProblemKind::Truncated, what).at(found.line);
            self.note(Problem { host: found.sender, ..problem }, None);
            return;
        };
        let node = value["node"].as_str().map(text::clean).unwrap_or_default();
        if let Some(sender) =
            found.sender.filter(|it| !NodeName::from(it.as_str()).matches_host(&node))
        {
            // A node speaks for itself and for no other.
            let who = if node.is_empty() { "no node" } else { &node };
            let what = format!("{sender} sent a document that names {who}; it is not read");
            self.sound = false;
            let problem = Problem::new(ProblemKind::Inconsistent, what).at(found.line);
            self.note(Problem { host: Some(sender), ..problem }, None);
            return;
        }
        let page = Page { node, value, line: found.line, whole: stopped.is_none() };
        if let Some(said) = page.value["format"].as_str().filter(|said| *said != format) {
            let what = format!("format {}, this version reads {format}", text::clean(said));
            self.strange(ProblemKind::Unrecognised, what, Some(&page));
            return;
        }
        if let Some(stop) = stopped {
            let what = format!("the document breaks off, {} was expected", stop.expected);
            self.strange(ProblemKind::Truncated, what, Some(&page));
        }
        if found.more {
            let what = "more stands behind the document on its line, and is not read".to_owned();
            self.strange(ProblemKind::Unrecognised, what, Some(&page));
        }
        if page.node.is_empty() && page.whole {
            let what = "the document does not name its node".to_owned();
            self.strange(ProblemKind::Unrecognised, what, Some(&page));
        }
        if let Some(first) = pages.iter().find(|known| known.node == page.node) {
            let what = format!(
                "{} printed two documents, in line {} and here; only the first is read",
                page.name(),
                first.line
            );
            self.strange(ProblemKind::Inconsistent, what, Some(&page));
            return;
        }
        let version = page.value["version"].as_str().map(text::clean);
        let facts = &mut self.parsed.facts;
        self.parsed.tool_version = self.parsed.tool_version.take().or(version);
        facts.add_host(&page.node);
        let cuda = page.value["cuda"].as_str().map(text::clean);
        facts.cuda_driver = facts.cuda_driver.take().or(cuda);
        for gpu in self.each::<ProbedGpu>(&page, "gpus") {
            let word = |said: Option<String>| said.map(|said| text::clean(&said));
            self.parsed.facts.devices.push(Device {
                index: gpu.index,
                name: word(gpu.name),
                bus_id: word(gpu.bus_id),
                uuid: word(gpu.uuid),
                host: Some(page.node.clone()).filter(|node| !node.is_empty()),
            });
        }
        self.around(&page);
        self.told(&page);
        pages.push(page);
    }

    /// The items of a list that can be read. In a document cut short the last
    /// one may be cut too, which is no other problem.
    pub(super) fn each<T: DeserializeOwned>(&mut self, page: &Page, key: &str) -> Vec<T> {
        let mut items = Vec::new();
        for item in page.list(key) {
            match serde_json::from_value(item.clone()) {
                Ok(item) => items.push(item),
                Err(_) if !page.whole => {}
                Err(error) => {
                    let what = format!("{key}: {}", text::clean(&error.to_string()));
                    self.strange(ProblemKind::Unrecognised, what, Some(page));
                }
            }
        }
        items
    }

    /// What the driver said around the probe. It is no part of the numbers:
    /// half of it is of no use.
    fn around(&mut self, page: &Page) {
        let value = &page.value["around"];
        if value.is_null() || !page.whole {
            return;
        }
        match serde_json::from_value::<Around>(value.clone()) {
            Ok(mut around) => {
                clean(&mut around);
                self.parsed.facts.around.insert(page.node.clone(), around);
            }
            Err(error) => {
                let what = format!("around: {}", text::clean(&error.to_string()));
                self.strange(ProblemKind::Unrecognised, what, Some(page));
            }
        }
    }

    /// What the probe itself says went wrong.
    fn told(&mut self, page: &Page) {
        for said in page.list("problems") {
            let Ok(said) = serde_json::from_value::<ProbeProblem>(said.clone()) else {
                if page.whole {
                    // A kind of a later version must not make the rest unheard.
                    let what = match said["detail"].as_str() {
                        Some(detail) => text::clean(detail),
                        None => "a problem that cannot be read".to_owned(),
                    };
                    self.strange(ProblemKind::Error, what, Some(page));
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
            let problem = Problem {
                testcase: word(said.testcase),
                host: word(said.node),
                gpu: said.gpu,
                code: word(said.code),
                class: Some(class).filter(|class| !class.is_empty()),
                ..Problem::new(said.kind, what)
            };
            self.note(problem, Some(page));
        }
    }

    /// Who took part. Documents that disagree make it unknown whose a number is.
    fn members(&mut self, pages: &[Page]) {
        // What a node says of its own ranks comes first.
        let said: Vec<Vec<ProbedRank>> =
            pages.iter().map(|page| self.each::<ProbedRank>(page, "ranks")).collect();
        let is_own = |page: &Page, rank: &ProbedRank| text::clean(&rank.node) == page.node;
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
                    self.strange(ProblemKind::Unrecognised, what, Some(page));
                    continue;
                }
                let known = self.ranks.entry(number).or_insert_with(|| rank.clone());
                if (&known.node, known.gpu) != (&rank.node, rank.gpu) {
                    let what = format!(
                        "rank {number} is GPU {}:{} here and {}:{} in another document",
                        rank.node, rank.gpu, known.node, known.gpu
                    );
                    self.strange(ProblemKind::Inconsistent, what, Some(page));
                }
            }
        }
        let printed: BTreeSet<&str> = pages.iter().map(|page| page.node.as_str()).collect();
        let mut silent = BTreeSet::new();
        for rank in self.ranks.values() {
            self.parsed.facts.ranks.push(Rank {
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
            self.sound = false;
            let problem = Problem::new(ProblemKind::Truncated, what);
            self.note(Problem { host: Some(node), ..problem }, None);
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
    pub(super) fn is_own_row(&self, page: &Page, label: &str) -> bool {
        let first = label.split("->").next().and_then(|part| part.trim().parse::<u32>().ok());
        let rank = first.and_then(|rank| self.ranks.get(&rank));
        rank.is_none_or(|rank| rank.node == page.node)
    }

    /// Whether a label of a matrix can be told: a rank, or two of them
    /// (`0->4`), where ranks are known.
    pub(super) fn is_end(&self, label: &str) -> bool {
        let known = |part: &str| {
            part.trim().parse::<u32>().is_ok_and(|rank| self.ranks.contains_key(&rank))
        };
        self.ranks.is_empty() || label.split("->").all(known)
    }

    /// Whether a document tells whose its numbers are: by the numbers of its
    /// own GPUs where it is alone, by ranks that nobody contradicts otherwise.
    pub(super) fn knows_ends(&self, page: &Page, alone: bool) -> bool {
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
fn clean(around: &mut Around) {
    let tidy = |word: &mut String| *word = text::clean(word);
    for gpu in &mut around.gpus {
        gpu.uuid.iter_mut().for_each(tidy);
        for GpuState { throttled, .. } in
            [&mut gpu.before, &mut gpu.under_load, &mut gpu.after].into_iter().flatten()
        {
            for reason in throttled {
                *reason = ThrottleReason::read(&text::clean(&reason.to_string()));
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
struct Found {
    line: u32,
    /// The node that sent it, where that is known.
    sender: Option<String>,
    /// It, as far as it goes; nothing where that is not even its format.
    document: Option<Document>,
    /// Something else of this format stands behind it on its line.
    more: bool,
}

/// All documents of a format. They begin on a line of their own; what a line
/// that begins with a brace is part of ends where the next one begins.
fn documents(input: &Input<'_>, family: &str) -> Vec<Found> {
    let plain = input.plain();
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
    let found = chunks.take(MOST_DOCUMENTS).map(|(first, chunk)| document(first, chunk, family));
    found.map(|found| Found { sender: sender(found.line), ..found }).collect()
}

/// The document in this part of an output.
fn document(first: u32, chunk: &str, family: &str) -> Found {
    // A number on which a text ends may have lost digits; a line end behind it
    // is the next document's, or the terminal's.
    let chunk = chunk.trim_end();
    let is_ours = |map: &serde_json::Map<String, Value>| {
        map.get("format").and_then(Value::as_str).is_some_and(|said| said.starts_with(family))
    };
    let found = json::find_where(chunk, is_ours);
    let broken = found.as_ref().filter(|document| document.stopped.is_some());
    let found = match broken.map(|document| chunk[..document.end].trim_end()) {
        // What stands behind the break is another's; the number before it may
        // be cut.
        Some(before) => json::find_where(before, is_ours),
        None => found,
    };
    let line = first + found.as_ref().map_or(0, |document| document.line.saturating_sub(1));
    let whole = found.as_ref().filter(|document| document.stopped.is_none());
    let more = whole.is_some_and(|document| chunk[document.end..].contains(family));
    Found { line, sender: None, document: found, more }
}
