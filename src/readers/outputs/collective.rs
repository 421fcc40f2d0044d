//! fabricgate's NCCL probe, `fabricgate node probe collective`: one JSON document
//! (`fabricgate.collective/1`) per node and line.
//!
//! Tests have nccl-tests' names, and algbw and busbw follow its formulas. Only the first node's
//! document has numbers; all have the problems of their own ranks. Wrong elements are corrupt data,
//! however fast they arrived. This module knows no expectations.

use std::collections::BTreeSet;

use serde_json::Value;

use super::probe_documents::{ProbeDocument, ProbeDocumentReader};
use super::{CERTAIN, ParserConfidence, ParserInput, nccl};
use model::collective::{COLLECTIVE_FORMAT, CollectivePoint};
use model::measurement::{Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text;
use model::unit::Unit;

/// The common prefix of all versions of the format.
const FAMILY: &str = "fabricgate.collective/";

/// Allowed deviation of algbw from bytes over time, and of busbw from algbw: numbers are rounded,
/// and each rank has its own clock.
const SLACK: f64 = 0.02;

/// Whether this probe wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    if input.text.contains("\"fabricgate.collective/") { CERTAIN } else { 0 }
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let parsed = ParseOutput::for_tool(Tool::FabricgateCollective);
    let (mut reader, pages) = ProbeDocumentReader::open(input, FAMILY, COLLECTIVE_FORMAT, parsed);
    let mut algorithms: BTreeSet<String> = BTreeSet::new();
    for page in &pages {
        for key in ["library", "asserted"] {
            reader.keep_fact(key, page);
        }
        let nccl = page.value["nccl"].as_str().map(text::clean);
        let facts = &mut reader.parsed.facts;
        facts.nccl = facts.nccl.take().or(nccl);
        for transport in page.list("transports").iter().filter_map(Value::as_str) {
            facts.add_transport(&text::clean(transport));
        }
        for (name, value) in page.value["environment"].as_object().into_iter().flatten() {
            // Only variables that steer NCCL; the rest is irrelevant.
            if let Some(value) = value.as_str().filter(|_| name.starts_with("NCCL_")) {
                let (name, value) = (text::clean(name), text::clean(value));
                facts.parameters.entry(name).or_insert(value);
            }
        }
        for (_, algorithm) in reader.read_items::<(String, String)>(page, "algorithms") {
            algorithms.insert(text::clean(&algorithm));
        }
    }
    if !algorithms.is_empty() {
        let list = algorithms.into_iter().collect::<Vec<_>>().join(",");
        reader.parsed.facts.parameters.insert("algorithms".to_owned(), list);
    }
    let mut seen: BTreeSet<(String, u32)> = BTreeSet::new();
    let mut measured = pages.iter().filter(|page| !page.list("tests").is_empty());
    if let Some(page) = measured.next() {
        for test in page.list("tests") {
            add_test(&mut reader, page, test, &mut seen);
        }
    }
    for page in measured {
        let what =
            format!("{} has numbers too; only the first document's are read", page.node_name());
        reader.note_unexpected(OutputProblemKind::Inconsistent, what, Some(page));
    }
    note_unchecked_or_wrong(&mut reader);
    reader.close(&pages)
}

fn add_test(
    reader: &mut ProbeDocumentReader,
    page: &ProbeDocument,
    test: &Value,
    seen: &mut BTreeSet<(String, u32)>,
) {
    let name = test["testcase"].as_str().map(text::clean).filter(|name| !name.is_empty());
    let run = test["reading"].as_u64().and_then(|run| u32::try_from(run).ok());
    let (Some(name), Some(run)) = (name, run) else {
        if page.whole {
            let what = "a test without its name or its reading".to_owned();
            reader.note_unexpected(OutputProblemKind::Unrecognised, what, Some(page));
        }
        return;
    };
    if !seen.insert((name.clone(), run)) {
        let what = format!("reading {run} appears twice; only the first is read");
        reader.note_unexpected_in_test(&name, OutputProblemKind::Inconsistent, what, page);
        return;
    }
    let mut points = Vec::new();
    for item in test["points"].as_array().into_iter().flatten() {
        let point = match serde_json::from_value::<CollectivePoint>(item.clone()) {
            Ok(point) => point,
            Err(_) if !page.whole => continue,
            Err(error) => {
                let what = format!("a point: {}", text::clean(&error.to_string()));
                reader.note_unexpected_in_test(&name, OutputProblemKind::Unrecognised, what, page);
                continue;
            }
        };
        if !is_possible(&point) {
            let what =
                format!("{} bytes: an operation cannot take {} us", point.bytes, point.time_us);
            reader.note_unexpected_in_test(&name, OutputProblemKind::Unrecognised, what, page);
            continue;
        }
        if let Some(what) = find_contradiction(&name, &point, reader.ranks.len()) {
            reader.note_unexpected_in_test(&name, OutputProblemKind::Inconsistent, what, page);
        }
        points.push(SeriesPoint {
            bytes: point.bytes,
            placement: None,
            time_us: Some(point.time_us),
            algbw: Some(point.algbw),
            busbw: Some(point.busbw),
            #[expect(clippy::cast_precision_loss, reason = "a count, as nccl-tests prints it")]
            wrong: point.wrong.map(|wrong| wrong as f64),
            iterations: Some(u64::from(point.iterations)),
            ..SeriesPoint::default()
        });
    }
    if points.is_empty() {
        if page.whole && page.list("problems").is_empty() {
            let what = format!("reading {run} has no point");
            reader.note_unexpected_in_test(&name, OutputProblemKind::Truncated, what, page);
        }
        return;
    }
    reader.parsed.measurements.push(Measurement::Series(MeasurementSeries {
        run,
        testcase: Some(name),
        unit: Some(Unit::GigabytesPerSecond),
        points,
        // The probe prints no average, and this reader computes none.
        average_busbw: None,
    }));
}

fn is_possible(point: &CollectivePoint) -> bool {
    let rate = |value: f64| value.is_finite() && 0.0 <= value;
    point.time_us.is_finite() && 0.0 < point.time_us && rate(point.algbw) && rate(point.busbw)
}

/// The contradiction within a point, if any: algbw is bytes over time, busbw is algbw times the
/// factor of the collective.
fn find_contradiction(name: &str, point: &CollectivePoint, ranks: usize) -> Option<String> {
    #[expect(clippy::cast_precision_loss, reason = "sizes of messages")]
    // GB/s equals 1,000 bytes per microsecond.
    let algbw = point.bytes as f64 / point.time_us / 1e3;
    let off = |is: f64, must: f64| SLACK * must.max(1e-3) < (is - must).abs();
    if off(point.algbw, algbw) {
        let bytes = point.bytes;
        return Some(format!("{bytes} bytes: algbw {} is not size over time", point.algbw));
    }
    // One rank sends no data over any link, whatever its factor.
    let ranks = u32::try_from(ranks).ok().filter(|ranks| 1 < *ranks)?;
    let factor = nccl::collective::busbw_factor(name, ranks)?;
    off(point.busbw, point.algbw * factor).then(|| {
        let (bytes, busbw) = (point.bytes, point.busbw);
        format!("{bytes} bytes: busbw {busbw} is not algbw times {factor:.3}")
    })
}

/// Records wrong elements and unverified data as problems: each test once, and wrong elements only
/// if no rank reports them itself with their place.
fn note_unchecked_or_wrong(reader: &mut ProbeDocumentReader) {
    let mut found: Vec<OutputProblem> = Vec::new();
    let mut named: BTreeSet<String> = BTreeSet::new();
    let corrupt = |problem: &&OutputProblem| problem.kind == OutputProblemKind::Corrupt;
    let reported: BTreeSet<&str> = reader
        .parsed
        .problems
        .iter()
        .filter(corrupt)
        .filter_map(|problem| problem.testcase.as_deref())
        .collect();
    for measurement in &reader.parsed.measurements {
        let Measurement::Series(series) = measurement else { continue };
        let Some(name) = series.testcase.as_deref() else { continue };
        let wrong: f64 = series.points.iter().filter_map(|point| point.wrong).sum();
        let unchecked = series.points.iter().any(|point| point.wrong.is_none());
        if 0.0 < wrong && !reported.contains(name) && named.insert(format!("{name} wrong")) {
            let what = format!("{wrong} wrong elements");
            found.push(OutputProblem::new(OutputProblemKind::Corrupt, what).in_test(Some(name)));
        }
        if unchecked && named.insert(format!("{name} unchecked")) {
            let what = "the data of some sizes was not verified";
            found.push(OutputProblem::new(OutputProblemKind::Unverified, what).in_test(Some(name)));
        }
    }
    found.into_iter().for_each(|problem| reader.note(problem, None));
}

#[cfg(test)]
#[path = "collective_tests.rs"]
mod tests;
