//! This run held against an earlier one, part by part: what a repair or a
//! burn-in changed. Who compares is the judge; the sentences are those that a
//! terminal shows too.

use std::collections::BTreeMap;

use serde::Serialize;

use super::history::part_name;
use super::{LONGEST, clip_text};
use crate::report::comparison::describe_repair;
use crate::report::plain_text::{clip, count_noun, format_amount, unit_name};
use model::comparison::{
    ComparisonOutcome, NodeRepair, PartComparison, RepairReport, RunComparison,
};
use model::run::Run;
use model::text::format_percent;

/// Parts that are listed; the rest are counted.
const ROWS: usize = 200;

/// Parts of one repaired node that are listed: its GPUs both ways, in some tests.
const ROWS_OF_ONE: usize = 40;

/// Repaired nodes that are told one by one: a rack and its spares.
const NODES: usize = 100;

/// Nodes that could not be compared and are told one by one.
const WITHOUT: usize = 20;

/// Changes of one node's hardware, software and place that are listed.
const CHANGES: usize = 40;

/// What repairs changed.
#[derive(Serialize)]
pub(super) struct RepairsText {
    count: usize,
    nodes: Vec<RepairText>,
    more: usize,
    without: Vec<String>,
    without_more: usize,
}

/// What the repair of one node changed.
#[derive(Serialize)]
struct RepairText {
    node: String,
    domain: Option<usize>,
    /// Its line among the nodes.
    anchor: Option<String>,
    before: &'static str,
    after: &'static str,
    /// Why it was as it was.
    reason: String,
    says: Vec<String>,
    changes: Vec<String>,
    changes_more: usize,
    comparison: ComparisonText,
}

/// What the page says of repairs: node after node. `index` are the domains that can be
/// chosen, `anchors` the lines of nodes.
pub(super) fn build_repairs(
    repairs: &RepairReport,
    run: &Run,
    index: &BTreeMap<&str, usize>,
    anchors: &BTreeMap<String, String>,
) -> RepairsText {
    let one = |it: &NodeRepair| {
        let domain = run.claims.domain_of(&it.node).map(|domain| domain.name.as_str());
        let change =
            |what: &str, before: &str, after: &str| format!("{what}: {before}, now {after}");
        let changes = it.changes.iter().take(CHANGES);
        RepairText {
            node: clip_text(it.node.as_str()),
            domain: domain.and_then(|name| index.get(name)).copied(),
            anchor: anchors.get(it.node.as_str()).cloned(),
            before: it.before.as_str(),
            after: it.after.as_str(),
            reason: clip(&it.before_reason, LONGEST),
            says: describe_repair(it),
            changes: changes
                .map(|c| clip(&change(&c.what, &c.before, &c.after), LONGEST))
                .collect(),
            changes_more: it.changes.len().saturating_sub(CHANGES),
            comparison: build_limited_comparison(&it.comparison, ROWS_OF_ONE),
        }
    };
    let without = repairs.without.iter().take(WITHOUT);
    RepairsText {
        count: repairs.nodes.len() + repairs.without.len(),
        nodes: repairs.nodes.iter().take(NODES).map(one).collect(),
        more: repairs.nodes.len().saturating_sub(NODES),
        without: without
            .map(|it| clip(&format!("{}: not compared: {}", it.node, it.why), LONGEST))
            .collect(),
        without_more: repairs.without.len().saturating_sub(WITHOUT),
    }
}

/// A comparison in words.
#[derive(Serialize)]
pub(super) struct ComparisonText {
    before: String,
    counts: Vec<String>,
    rows: Vec<HtmlComparisonRow>,
    /// Parts that are the same within the noise, and not listed.
    same: usize,
    more: usize,
}

#[derive(Serialize)]
struct HtmlComparisonRow {
    part: String,
    test: String,
    before: String,
    after: String,
    unit: &'static str,
    change: String,
    noise: String,
    /// The outcome whose colour fits.
    tone: &'static str,
    word: &'static str,
}

fn difference_word(difference: ComparisonOutcome) -> (&'static str, &'static str) {
    match difference {
        ComparisonOutcome::Better => ("pass", "better"),
        ComparisonOutcome::Same => ("pass", "same"),
        ComparisonOutcome::Worse => ("degraded", "worse"),
        // What nobody measured again is not known to be repaired.
        ComparisonOutcome::OnlyBefore => ("unknown", "not measured now"),
        ComparisonOutcome::OnlyAfter => ("unknown", "not measured then"),
    }
}

/// What the page says of a comparison: what differs, the largest first.
pub(super) fn build_comparison(comparison: &RunComparison) -> ComparisonText {
    build_limited_comparison(comparison, ROWS)
}

/// The same with so many rows at most.
fn build_limited_comparison(comparison: &RunComparison, most: usize) -> ComparisonText {
    let of = |d: ComparisonOutcome| comparison.parts.iter().filter(|p| p.difference == d).count();
    let all = [
        ComparisonOutcome::Worse,
        ComparisonOutcome::OnlyBefore,
        ComparisonOutcome::Better,
        ComparisonOutcome::Same,
        ComparisonOutcome::OnlyAfter,
    ];
    let counts = all.map(|d| (of(d), difference_word(d).1)).into_iter().filter(|(n, _)| 0 < *n);
    let different: Vec<&PartComparison> =
        comparison.parts.iter().filter(|p| p.difference != ComparisonOutcome::Same).collect();
    ComparisonText {
        before: format!(
            "{}, {}",
            clip_text(&comparison.before),
            clip_text(&comparison.before_created)
        ),
        counts: counts
            .map(|(n, word)| format!("{} {word}", count_noun(n, "part", "parts")))
            .collect(),
        rows: different.iter().take(most).map(|part| build_row(part)).collect(),
        same: of(ComparisonOutcome::Same),
        more: different.len().saturating_sub(most),
    }
}

fn build_row(part: &PartComparison) -> HtmlComparisonRow {
    let value =
        |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format_amount(v, Some(part.unit)));
    let (tone, word) = difference_word(part.difference);
    HtmlComparisonRow {
        part: part_name(&part.part),
        test: clip_text(&part.testcase),
        before: value(part.before),
        after: value(part.after),
        unit: unit_name(Some(part.unit)),
        change: part.change.map_or_else(
            || "–".to_owned(),
            |c| {
                if c < 0.0 {
                    format!("−{}", format_percent(-c))
                } else {
                    format!("+{}", format_percent(c))
                }
            },
        ),
        noise: part.noise.map_or_else(|| "–".to_owned(), format_percent),
        tone,
        word,
    }
}
