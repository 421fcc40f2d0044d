//! Collectives: a second instrument for a whole node or domain.
//!
//! One number cannot say whose fault it is, so a low collective is a finding
//! about the domain (or the one node it ran on), never about its members. An
//! expectation holds for a message size, a number of ranks, an algorithm and a
//! transport; where none fits, nothing is said about the level.

use super::arrange::Domain;
use super::finding::finding;
use super::finding::of_domain;
use super::finding::of_node;
use super::finding::percent;
use super::ledger::Ledger;
use crate::model::id::NodeName;
use crate::model::measurement::Measurement;
use crate::model::measurement::Series;
use crate::model::parsed::Tool;
use crate::model::recording::Recording;
use crate::model::unit::Unit;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;
use crate::thresholds::CollectiveExpectation;

/// A collective repeats within some percent; closer than this is no fault.
const LINE: f64 = 0.05;

/// Below this share another transport carried it: NICs instead of NVLink read
/// about a tenth, a ring instead of the switch's reduction about 0.8.
const FALLBACK: f64 = 0.5;

/// Judges the collectives of a domain.
pub(super) fn judge(domain: &Domain<'_>, ledger: &mut Ledger) {
    let own = domain.own.iter().flat_map(|(node, rs)| rs.iter().map(move |r| (Some(node), *r)));
    let across = domain.across.iter().map(|r| (None, *r));
    for (node, recording) in own.chain(across) {
        if recording.parsed.tool != Some(Tool::NcclTests) {
            continue;
        }
        for measurement in &recording.parsed.measurements {
            if let Measurement::Series(series) = measurement {
                judge_series(domain, node, recording, series, ledger);
            }
        }
    }
}

/// How many ranks took part, when the output says so.
pub(super) fn ranks(recording: &Recording) -> Option<u32> {
    recording.parsed.facts.ranks.iter().map(|r| r.rank + 1).max()
}

/// Bus bandwidth at the largest size: the mean of both placements.
fn at_largest(series: &Series) -> Option<(u64, f64)> {
    let bytes = series.points.iter().filter(|p| p.busbw.is_some()).map(|p| p.bytes).max()?;
    let values: Vec<f64> =
        series.points.iter().filter(|p| p.bytes == bytes).filter_map(|p| p.busbw).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of placements")]
    let count = values.len() as f64;
    Some((bytes, values.iter().sum::<f64>() / count))
}

fn judge_series(
    domain: &Domain<'_>,
    node: Option<&NodeName>,
    recording: &Recording,
    series: &Series,
    ledger: &mut Ledger,
) {
    let Some((bytes, busbw)) = at_largest(series) else { return };
    let ranks = ranks(recording);
    // With one rank the factor is 0: no measurement of any fabric.
    if ranks == Some(1) || busbw == 0.0 {
        return;
    }
    let whom: Vec<NodeName> = match node {
        Some(node) => vec![node.clone()],
        None => {
            let mut nodes: Vec<NodeName> =
                domain.gpus_of_ranks(&recording.parsed).into_values().map(|g| g.node).collect();
            nodes.dedup();
            nodes
        }
    };
    whom.iter().for_each(|node| ledger.measure(node));
    let testcase = series.testcase.as_deref().unwrap_or("collective");
    let what = format!(
        "{testcase}, {} ranks, {} MiB",
        ranks.map_or("?".to_owned(), |r| r.to_string()),
        bytes >> 20
    );
    let Some(expected) = expectation(domain, testcase, ranks, bytes) else {
        ledger.notes.push(format!(
            "{what} in {}: {busbw:.1} GB/s; nothing is known to compare it with",
            recording.file
        ));
        return;
    };
    whom.iter().for_each(|node| ledger.compare(node));
    let ratio = busbw / expected.busbw;
    let line = LINE.max(expected.tolerance);
    let under_floor = expected.floor.is_some_and(|f| busbw < f);
    if 1.0 - line <= ratio && !under_floor {
        return;
    }
    let locus = node
        .map_or_else(|| of_domain(LocusKind::Domain, &domain.name), |n| of_node(&domain.name, n));
    let class = if ratio < FALLBACK { "collective-fallback" } else { "collective-low" };
    let transports = recording.parsed.facts.transports.join(", ");
    let path =
        if transports.is_empty() { String::new() } else { format!("; NCCL names {transports}") };
    let hint = if ratio < FALLBACK {
        format!(": {} ({}) did not carry it", expected.transport, expected.algorithm)
    } else {
        String::new()
    };
    let said = format!(
        "{what}: busbw {busbw:.1} of {:.1} GB/s, {} low{hint}{path}",
        expected.busbw,
        percent(1.0 - ratio)
    );
    let rule = format!(
        "collective: more than {} below {:.1} GB/s ({}, {}, {} to {} ranks, at least {} MiB; {})",
        percent(line),
        expected.busbw,
        expected.algorithm,
        expected.transport,
        expected.min_ranks,
        expected.max_ranks,
        expected.min_bytes >> 20,
        expected.source
    );
    let found = finding(Outcome::Degraded, class, locus, &rule)
        .numbers(busbw, expected.busbw, Unit::GigabytesPerSecond)
        .saying(said)
        .because(
            &recording.file,
            Some(testcase),
            format!("busbw {busbw:.2} GB/s at {bytes} bytes"),
        );
    ledger.find(found);
}

/// The expectation that holds for this run. Where several do (one per
/// algorithm), the lowest: the output rarely says which algorithm ran.
fn expectation<'d>(
    domain: &'d Domain<'_>,
    testcase: &str,
    ranks: Option<u32>,
    bytes: u64,
) -> Option<&'d CollectiveExpectation> {
    let ranks = ranks?;
    let fits = |c: &&CollectiveExpectation| {
        c.testcase == testcase
            && c.min_bytes <= bytes
            && (c.min_ranks..=c.max_ranks).contains(&ranks)
    };
    domain.platform?.collectives.iter().filter(fits).min_by(|a, b| a.busbw.total_cmp(&b.busbw))
}
