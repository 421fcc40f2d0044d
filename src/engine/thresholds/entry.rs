//! The `[test.*]` tables and `[[collective]]` items of a threshold file.
//!
//! Reads an entry key by key, resolves `like`, and computes the level from the links. `file`
//! handles the rest of the file.

use std::collections::BTreeMap;
use std::ops::Range;

use super::fault::{ThresholdFault, suggest_name};
use super::file::LinkBundle;
use super::toml_reader::{ThresholdReader, ThresholdTable};
use super::{CollectiveExpectation, Expectation, TestPath, ThresholdConfidence, testcase};
use model::unit::Unit;

/// No test exceeds the rate of its links; the margin covers rounding.
const MAX_EFFICIENCY: f64 = 1.05;
/// A tolerance above one half makes the number meaningless.
const MAX_TOLERANCE: f64 = 0.5;
/// The maximum bandwidth or latency in any unit.
pub(super) const MAX_VALUE: f64 = 1e7;

const TEST_KEYS: &[&str] = &[
    "like",
    "path",
    "unit",
    "min_bytes",
    "value",
    "efficiency",
    "tolerance",
    "tolerance_small_buffer",
    "floor",
    "floor_ratio",
    "derivation",
    "confidence",
    "source",
];

const COLLECTIVE_KEYS: &[&str] = &[
    "test",
    "min_bytes",
    "ranks",
    "algorithm",
    "transport",
    "busbw",
    "tolerance",
    "floor",
    "floor_ratio",
    "confidence",
    "source",
];

const UNITS: &[(&str, Unit)] = &[
    ("GB/s", Unit::GigabytesPerSecond),
    ("Gb/s", Unit::GigabitsPerSecond),
    ("us", Unit::Microseconds),
    ("ns", Unit::Nanoseconds),
];

/// Shared data of the entries of one file.
pub(super) struct EntryContext<'e> {
    /// The links that an efficiency refers to.
    pub(super) links: &'e BTreeMap<TestPath, LinkBundle>,
    /// The file changes an existing platform, or starts from one.
    pub(super) is_site_file: bool,
    pub(super) pair_path: TestPath,
    /// The file name for messages.
    pub(super) origin: &'e str,
}

/// The keys of one `[test.*]` table, with those of `like` filled in.
#[derive(Clone, Debug, Default)]
struct TestEntry {
    path: Option<TestPath>,
    unit: Option<Unit>,
    min_bytes: Option<u64>,
    value: Option<f64>,
    efficiency: Option<f64>,
    tolerance: Option<f64>,
    tolerance_small_buffer: Option<f64>,
    floor: Option<f64>,
    floor_ratio: Option<f64>,
    derivation: Option<String>,
    confidence: Option<ThresholdConfidence>,
    source: Option<String>,
}

impl EntryContext<'_> {
    /// The tests, each with its place in the file.
    pub(super) fn read_tests<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        top: &ThresholdTable<'_, 't>,
    ) -> (BTreeMap<String, Expectation>, BTreeMap<String, ThresholdFault>) {
        let mut expectations = BTreeMap::new();
        let mut places = BTreeMap::new();
        let Some(tests) = reader.table(top, "test") else { return (expectations, places) };
        for (key, value) in tests.table {
            let name = key.get_ref().as_ref();
            let Some(section) = reader.as_table(value, name) else { continue };
            reader.check_keys(&section, TEST_KEYS);
            let mut entry = TestEntry::default();
            if let Some(at) = section.get("like")
                && let Some(other) = reader.as_string(at, "like")
            {
                let Some(filled) = self.resolve_like(reader, &tests, &other, at.span()) else {
                    continue;
                };
                entry = filled;
            }
            entry.fill(reader, &section);
            if let Some(made) = self.read_expectation(reader, &section, name, &entry) {
                places.insert(name.to_owned(), reader.make_fault(key.span(), String::new()));
                expectations.insert(name.to_owned(), made);
            }
        }
        (expectations, places)
    }

    /// The entry that `like` refers to. One step only: a chain of references is harder to read than
    /// the numbers it saves.
    fn resolve_like<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        tests: &ThresholdTable<'_, 't>,
        other: &str,
        span: Range<usize>,
    ) -> Option<TestEntry> {
        let Some(value) = tests.get(other) else {
            let names = tests.table.iter().map(|(key, _)| key.get_ref().as_ref());
            let help = suggest_name(other, names).map(|name| format!("did you mean `{name}`?"));
            reader.push_fault(span, format!("this file has no [test.{other}]")).help = help;
            return None;
        };
        let section = ThresholdTable { table: value.get_ref().as_table()?, span: value.span() };
        if section.get("like").is_some() {
            reader.push_fault(span, format!("[test.{other}] itself uses `like`"));
            return None;
        }
        let mut entry = TestEntry::default();
        // Its own faults are reported at its place.
        let before = reader.faults.len();
        entry.fill(reader, &section);
        reader.faults.truncate(before);
        Some(entry)
    }

    fn read_expectation<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        section: &ThresholdTable<'_, 't>,
        name: &str,
        entry: &TestEntry,
    ) -> Option<Expectation> {
        let before = reader.faults.len();
        let Some(path) = entry.path.or_else(|| testcase::test_path(name, self.pair_path)) else {
            reader.push_missing(section, "path", "the name does not show which path the test uses");
            return None;
        };
        let level = self.compute_level(reader, section, name, entry, path);
        if entry.floor.is_some() && entry.floor_ratio.is_some() {
            reader.push_fault(
                key_span(section, "floor"),
                "`floor` and `floor_ratio` exclude each other",
            );
        }
        let given = ["value", "efficiency", "floor"].iter().any(|key| section.get(key).is_some());
        if level.is_none() && entry.floor.is_none() && !given {
            reader.push_missing(
                section,
                "value",
                "give a value, an efficiency, or at least a floor",
            );
        }
        if entry.tolerance.is_none() && section.get("tolerance").is_none() && level.is_some() {
            reader.push_missing(section, "tolerance", "such as 0.05 for 5 % below the value");
        }
        let (confidence, source) = self.read_provenance(reader, section, entry);
        if before < reader.faults.len() {
            return None;
        }
        let (value, derivation) = match level {
            Some((value, derivation)) => (Some(value), derivation),
            None => (None, "a floor only, no level is known".to_owned()),
        };
        let derivation = entry.derivation.clone().unwrap_or(derivation);
        Some(Expectation {
            testcase: name.to_owned(),
            path,
            unit: entry.unit.unwrap_or(Unit::GigabytesPerSecond),
            min_bytes: entry.min_bytes.unwrap_or_else(|| testcase::min_bytes(name)),
            value,
            tolerance: entry.tolerance.unwrap_or(0.0),
            tolerance_small_buffer: entry.tolerance_small_buffer,
            floor: entry.floor.or_else(|| Some(round_hundredths(value? * entry.floor_ratio?))),
            derivation,
            confidence: confidence?,
            source: source?,
            origin: self.origin.to_owned(),
        })
    }

    /// The expected level and its derivation.
    fn compute_level<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        section: &ThresholdTable<'_, 't>,
        name: &str,
        entry: &TestEntry,
        path: TestPath,
    ) -> Option<(f64, String)> {
        match (entry.value, entry.efficiency) {
            (Some(_), Some(_)) => {
                reader.push_fault(
                    key_span(section, "value"),
                    "`value` and `efficiency` exclude each other",
                );
                None
            }
            (Some(value), None) => Some((value, "as reported".to_owned())),
            (None, Some(efficiency)) => {
                let unit = entry.unit.unwrap_or(Unit::GigabytesPerSecond);
                if unit != Unit::GigabytesPerSecond {
                    let message = format!("`efficiency` makes a level in GB/s, not in {unit}");
                    reader.push_fault(key_span(section, "unit"), message).help =
                        Some("leave `unit` out, or state a `value`".to_owned());
                    return None;
                }
                let Some(links) = self.links.get(&path) else {
                    let message = format!("`efficiency` needs [link.{}]", path.as_str());
                    reader.push_fault(key_span(section, "efficiency"), message).help =
                        Some("or state a `value`".to_owned());
                    return None;
                };
                let both = testcase::sums_directions(name);
                let directions = if both { 2.0 } else { 1.0 };
                let value = directions * f64::from(links.count) * links.rate * efficiency;
                let derivation = format!(
                    "{}{} {} x {} GB/s x {efficiency}",
                    if both { "2 directions x " } else { "" },
                    links.count,
                    if links.count == 1 { "link" } else { "links" },
                    links.rate,
                );
                Some((round_hundredths(value), derivation))
            }
            (None, None) => None,
        }
    }

    /// The source of a number. In a file that changes a platform, the default is the site itself.
    fn read_provenance<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        section: &ThresholdTable<'_, 't>,
        entry: &TestEntry,
    ) -> (Option<ThresholdConfidence>, Option<String>) {
        if entry.source.is_none() && section.get("source").is_none() {
            reader.push_missing(section, "source", "every number needs a source");
        }
        let default = self.is_site_file.then_some(ThresholdConfidence::Site);
        if entry.confidence.is_none() && default.is_none() && section.get("confidence").is_none() {
            reader.push_missing(section, "confidence", "states how reliable the number is");
        }
        (entry.confidence.or(default), entry.source.clone())
    }

    pub(super) fn read_collectives<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        top: &ThresholdTable<'_, 't>,
    ) -> Vec<CollectiveExpectation> {
        let mut collectives: Vec<CollectiveExpectation> = Vec::new();
        let Some(value) = top.get("collective") else { return collectives };
        let Some(items) = value.get_ref().as_array() else {
            reader.push_fault(value.span(), "collectives are written as [[collective]]");
            return collectives;
        };
        for item in items.iter() {
            let Some(section) = reader.as_table(item, "collective") else { continue };
            let Some(made) = self.read_collective(reader, &section) else { continue };
            if collectives.iter().any(|other| has_same_conditions(other, &made)) {
                reader.push_fault(
                    key_span(&section, "test"),
                    format!("{} appears twice under the same conditions", made.testcase),
                );
            }
            collectives.push(made);
        }
        collectives
    }

    fn read_collective<'t>(
        &self,
        reader: &mut ThresholdReader<'t>,
        section: &ThresholdTable<'_, 't>,
    ) -> Option<CollectiveExpectation> {
        let before = reader.faults.len();
        reader.check_keys(section, COLLECTIVE_KEYS);
        for key in ["test", "min_bytes", "ranks", "algorithm", "transport", "busbw", "tolerance"] {
            if section.get(key).is_none() {
                reader.push_missing(
                    section,
                    key,
                    "an expectation of a collective states all its conditions",
                );
            }
        }
        let names: Vec<(&str, &str)> =
            testcase::COLLECTIVES.iter().map(|name| (*name, *name)).collect();
        let test = reader.choice(section, "test", &names);
        let min_bytes = reader.bytes(section, "min_bytes");
        let ranks = read_ranks(reader, section);
        let algorithm = reader.string(section, "algorithm");
        let transport = reader.string(section, "transport");
        let busbw = reader.number(section, "busbw", 0.001, MAX_VALUE);
        let mut entry = TestEntry::default();
        entry.fill_common(reader, section);
        if entry.floor.is_some() && entry.floor_ratio.is_some() {
            reader.push_fault(
                key_span(section, "floor"),
                "`floor` and `floor_ratio` exclude each other",
            );
        }
        let (confidence, source) = self.read_provenance(reader, section, &entry);
        if before < reader.faults.len() {
            return None;
        }
        let (min_ranks, max_ranks) = ranks?;
        let busbw = busbw?;
        Some(CollectiveExpectation {
            testcase: test?.to_owned(),
            min_bytes: min_bytes?,
            min_ranks,
            max_ranks,
            algorithm: algorithm?,
            transport: transport?,
            busbw,
            tolerance: entry.tolerance?,
            floor: entry.floor.or_else(|| Some(round_hundredths(busbw * entry.floor_ratio?))),
            confidence: confidence?,
            source: source?,
            origin: self.origin.to_owned(),
        })
    }
}

impl TestEntry {
    /// Reads every key of this table.
    fn fill<'t>(&mut self, reader: &mut ThresholdReader<'t>, section: &ThresholdTable<'_, 't>) {
        let paths: Vec<(&str, TestPath)> = TestPath::ALL.iter().map(|p| (p.as_str(), *p)).collect();
        self.path = reader.choice(section, "path", &paths).or(self.path);
        self.unit = reader.choice(section, "unit", UNITS).or(self.unit);
        if section.get("min_bytes").is_some() {
            self.min_bytes = reader.bytes(section, "min_bytes");
        }
        if section.get("value").is_some() || section.get("efficiency").is_some() {
            self.value = reader.number(section, "value", 0.001, MAX_VALUE);
            self.efficiency = reader.number(section, "efficiency", 0.001, MAX_EFFICIENCY);
            self.derivation = None;
        }
        self.derivation = reader.string(section, "derivation").or(self.derivation.take());
        let small = reader.number(section, "tolerance_small_buffer", 0.0, MAX_TOLERANCE);
        self.tolerance_small_buffer = small.or(self.tolerance_small_buffer);
        self.fill_common(reader, section);
    }

    /// The keys that tests and collectives share.
    fn fill_common<'t>(
        &mut self,
        reader: &mut ThresholdReader<'t>,
        section: &ThresholdTable<'_, 't>,
    ) {
        let tolerance = reader.number(section, "tolerance", 0.0, MAX_TOLERANCE);
        self.tolerance = tolerance.or(self.tolerance);
        if section.get("floor").is_some() || section.get("floor_ratio").is_some() {
            self.floor = reader.number(section, "floor", 0.001, MAX_VALUE);
            self.floor_ratio = reader.number(section, "floor_ratio", 0.001, 1.0);
        }
        let names: Vec<(&str, ThresholdConfidence)> =
            ThresholdConfidence::ALL.iter().map(|c| (c.as_str(), *c)).collect();
        self.confidence = reader.choice(section, "confidence", &names).or(self.confidence);
        self.source = reader.string(section, "source").or(self.source.take());
    }
}

/// `ranks = 8`, or `ranks = [16, 64]` for a range.
fn read_ranks<'t>(
    reader: &mut ThresholdReader<'t>,
    section: &ThresholdTable<'_, 't>,
) -> Option<(u32, u32)> {
    const MOST: u32 = 1_000_000;
    let value = section.get("ranks")?;
    let Some(items) = value.get_ref().as_array() else {
        return reader.as_integer(value, "ranks", 2, MOST).map(|ranks| (ranks, ranks));
    };
    let ends: Vec<u32> =
        items.iter().filter_map(|item| reader.as_integer(item, "ranks", 2, MOST)).collect();
    match ends[..] {
        [low, high] if low <= high => Some((low, high)),
        _ => {
            reader.push_fault(value.span(), "`ranks` is a number or a range of two").help =
                Some("such as 8 or [16, 64]".to_owned());
            None
        }
    }
}

/// Whether two expectations apply to exactly the same runs.
pub(super) fn has_same_conditions(a: &CollectiveExpectation, b: &CollectiveExpectation) -> bool {
    (&a.testcase, a.min_bytes, a.min_ranks, a.max_ranks, &a.algorithm, &a.transport)
        == (&b.testcase, b.min_bytes, b.min_ranks, b.max_ranks, &b.algorithm, &b.transport)
}

fn key_span(section: &ThresholdTable<'_, '_>, key: &str) -> Range<usize> {
    section.get(key).map_or_else(|| section.span.clone(), toml::Spanned::span)
}

/// Two decimals, as the tools print: products have no more precision than that.
fn round_hundredths(value: f64) -> f64 {
    // A lab's links carry a hundredth of a GB/s: keep four significant digits.
    let finest = if value.abs() < 1.0 { 1e6 } else { 100.0 };
    (value * finest).round() / finest
}
