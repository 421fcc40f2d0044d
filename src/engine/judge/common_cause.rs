//! One cause for many findings: islands that are all low by the same share have one shared cause,
//! or the measurement itself is wrong.
//!
//! Works on findings about levels; it measures nothing and blames no node.

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding::new_finding;
use super::finding_set::FindingSet;
use super::{fabric, level, node_verdicts, peel};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::{DomainName, NodeName};
use model::stats;
use model::text::format_percent;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// If this share of all islands of a platform is equally low, the cause is shared.
const NEARLY_ALL: f64 = 0.75;

/// Closer shares count as equal: half the loss of one link of 18.
const SAME_SHARE: f64 = peel::MIN_EFFECT;

/// Replaces findings about equally low islands with one finding.
pub(super) fn judge(
    domains: &[DomainRecordings<'_>],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    ledger: &mut FindingSet,
) {
    let mut platforms: BTreeMap<&str, Vec<(&FabricGroup<'_>, &FabricJudgement)>> = BTreeMap::new();
    for (island, fabric) in judged.iter().flatten() {
        if let Some(platform) = island.platform.filter(|_| fabric.level.is_some()) {
            platforms.entry(&platform.name).or_default().push((island, fabric));
        }
    }
    for (platform, islands) in platforms {
        let mut levels: BTreeMap<(Option<&DomainName>, Option<&NodeName>), &Finding> =
            BTreeMap::new();
        for f in ledger.findings().filter(|f| f.rule.kind == RuleKind::Level) {
            if matches!(f.locus.kind, LocusKind::Node | LocusKind::Plane | LocusKind::Domain) {
                levels.entry((f.locus.domain.as_ref(), f.locus.node.as_ref())).or_insert(f);
            }
        }
        let about = |island: &FabricGroup<'_>| {
            levels.get(&(Some(&island.domain), island.node.as_ref())).copied()
        };
        let low: Vec<(&FabricGroup<'_>, Finding)> =
            islands.iter().filter_map(|(i, _)| Some((*i, about(i)?.clone()))).collect();
        #[expect(clippy::cast_precision_loss, reason = "counts of islands")]
        let most = NEARLY_ALL * islands.len() as f64 <= low.len() as f64;
        let mut ratios: Vec<f64> = low.iter().filter_map(|(_, f)| f.deciding_share()).collect();
        let Some(middle) = stats::median(&mut ratios) else { continue };
        let alike = ratios.iter().all(|r| (r - middle).abs() < SAME_SHARE);
        if low.len() < level::SMALLEST_FLEET || !most || !alike {
            continue;
        }
        let typical = &low[0].1;
        let what = if low[0].0.node.is_some() { "nodes" } else { "domains" };
        let links = fabric::missing_links_of_group(low[0].0, middle)
            .map_or(String::new(), |links| {
                format!(" ({links} missing on each would have the same effect)")
            });
        let summary = format!(
            "{} of {} {what} of {platform} are equally low, by {}{links}: one shared cause, not \
             separate faults. Clocks, a power limit, a driver, a wrong expectation, or the \
             measurement: repeat the test with another tool or version, or on one of them after a \
             reset",
            low.len(),
            islands.len(),
            format_percent(1.0 - middle)
        );
        let rule = RuleKind::CommonCause.with_terms(format!(
            "at least {} of all {what} of a platform are below the expectation by the same share \
             (within {})",
            format_percent(NEARLY_ALL),
            format_percent(SAME_SHARE)
        ));
        let locus = Locus { peer: Some(platform.to_owned()), ..Locus::new(LocusKind::Instrument) };
        let found = new_finding(Outcome::Unknown, FindingClass::AllLowAlike, locus, &rule)
            .with_summary(summary);
        let mut found = found.with_numbers_of(typical);
        match found.ratio_to_peers {
            Some(_) => found.ratio_to_peers = Some(middle),
            None => found.ratio = Some(middle),
        }
        for (_, one) in low.iter().take(6) {
            found.evidence.extend(one.evidence.first().cloned().map(|mut evidence| {
                evidence.detail = format!("{} ({})", evidence.detail, one.locus);
                evidence
            }));
        }
        let merged: BTreeSet<String> = low.iter().map(|(_, f)| f.id.clone()).collect();
        ledger.take(|f| merged.contains(&f.id));
        let why = node_verdicts::no_pass_reason(&found.summary);
        let by_name: BTreeMap<&DomainName, &DomainRecordings<'_>> =
            domains.iter().rev().map(|d| (&d.name, d)).collect();
        for (island, _) in &low {
            let all = by_name.get(&island.domain).into_iter().flat_map(|d| &d.nodes);
            for node in all.filter(|n| island.node.as_ref().is_none_or(|own| own == *n)) {
                ledger.add_doubt(node, why.clone());
            }
        }
        ledger.add(found);
    }
}
