//! Rails that are low as a whole: below the expectation of their NIC class, or far below the other
//! rails of their kind. The loss does not count against a node, and no node passes.

use super::super::finding::{format_rate, new_finding};
use super::super::finding_set::FindingSet;
use super::super::node_verdicts;
use super::super::rail_readings::{RailReadings, ReadingsByEnd};
use super::rail_levels::SiblingLevels;
use super::{NodeDomains, expected_rate, min_effect, rail_levels, with_files};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::text::format_percent;
use model::unit::Unit;
use model::verdict::{Finding, LocusKind, Outcome};

/// Whether the whole rail is below its NIC class's expectation; returns why its nodes cannot pass
/// then.
pub(super) fn judge(
    node_domains: &NodeDomains<'_>,
    (rail, by_end): (&RailReadings<'_>, &ReadingsByEnd<'_>),
    levels: &[f64],
    siblings: &[SiblingLevels],
    ledger: &mut FindingSet,
) -> Option<String> {
    let mut worst: Option<(f64, usize, f64, f64)> = None;
    for (at, group) in rail.groups.iter().enumerate() {
        // Pairs that a leaf explains are removed already.
        if rail.readings.iter().all(|r| r.group != at) {
            continue;
        }
        let Some((value, tolerance)) = expected_rate(group) else { continue };
        let ratio = levels[at] / value;
        let low = ratio.is_finite() && ratio < 1.0 - min_effect(tolerance);
        if low && worst.is_none_or(|(w, ..)| ratio < w) {
            worst = Some((ratio, at, value, tolerance));
        }
    }
    let Some((ratio, at, value, tolerance)) = worst else {
        return judge_against_siblings(node_domains, (rail, by_end), levels, siblings, ledger);
    };
    let nodes: Vec<&NodeName> = rail.nodes.iter().collect();
    let group = &rail.groups[at];
    let class = group.nic.map_or("", |nic| nic.name.as_str());
    let summary = format!(
        "the network{} is {} low everywhere: {} of {} GB/s ({}), expected of {class}; the cause is \
         slower NICs than claimed, or other traffic: measure one pair alone, and check the rate of \
         its ports",
        rail.sentence_suffix(),
        format_percent(1.0 - ratio),
        format_rate(levels[at]),
        format_rate(value),
        group.testcase
    );
    let source = group.nic.and_then(|nic| nic.expectation(&group.conditions()).ok());
    let rule = RuleKind::NetworkLevel.with_terms(format!(
        "the median of all pairs that are not blamed against the expectation (tolerance {}; {})",
        format_percent(tolerance),
        source.map_or("", |e| e.source.as_str())
    ));
    let locus = node_domains.locus_between(LocusKind::Domain, &nodes, rail);
    let found = new_finding(Outcome::Degraded, FindingClass::NetworkLow, locus, &rule)
        .with_numbers(levels[at], value, Unit::GigabytesPerSecond)
        .with_summary(summary);
    Some(report_low_rail((rail, by_end), found, &group.testcase, ledger))
}

/// A rail far below the others of its kind: returns why its nodes cannot pass. Without a NIC class
/// it may be slower by design, so its state is unknown.
fn judge_against_siblings(
    node_domains: &NodeDomains<'_>,
    (rail, by_end): (&RailReadings<'_>, &ReadingsByEnd<'_>),
    levels: &[f64],
    siblings: &[SiblingLevels],
    ledger: &mut FindingSet,
) -> Option<String> {
    let far = |at: &usize| {
        let read = rail.readings.iter().any(|r| r.group == *at);
        let reference = siblings[*at].reference().filter(|_| read)?;
        let ratio = levels[*at] / reference;
        (ratio < 1.0 - rail_levels::SIBLING_TOLERANCE).then_some((ratio, *at, reference))
    };
    let all = (0..rail.groups.len()).filter_map(|at| far(&at));
    let (ratio, at, reference) = all.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let group = &rail.groups[at];
    let others = siblings[at].levels.len();
    let summary = format!(
        "the network{} is {} below {others} other rails: {} of {} GB/s ({}); each pair has a slow \
         end, or the whole rail is slow; measure each node with more partners",
        rail.sentence_suffix(),
        format_percent(1.0 - ratio),
        format_rate(levels[at]),
        format_rate(reference),
        group.testcase
    );
    let rule = RuleKind::Rails.with_terms(format!(
        "the level of the rail lies more than {} below most others of its kind",
        format_percent(rail_levels::SIBLING_TOLERANCE)
    ));
    let nodes: Vec<&NodeName> = rail.nodes.iter().collect();
    let outcome = if group.nic.is_some() { Outcome::Degraded } else { Outcome::Unknown };
    let locus = node_domains.locus_between(LocusKind::Domain, &nodes, rail);
    let found = new_finding(outcome, FindingClass::NetworkLow, locus, &rule)
        .with_peer_level(levels[at], reference, expected_rate(group).map(|(value, _)| value))
        .with_summary(summary);
    Some(report_low_rail((rail, by_end), found, &group.testcase, ledger))
}

/// Enters a finding about a whole rail, with some of its files; returns why its nodes cannot pass.
fn report_low_rail(
    (rail, by_end): (&RailReadings<'_>, &ReadingsByEnd<'_>),
    found: Finding,
    testcase: &str,
    ledger: &mut FindingSet,
) -> String {
    let why = node_verdicts::no_pass_reason(&found.summary);
    let pairs = rail.files.keys().copied().take(4);
    let with_pair = |found, pair| with_files(found, (rail, by_end), pair, testcase);
    ledger.add(pairs.fold(found, with_pair));
    why
}
