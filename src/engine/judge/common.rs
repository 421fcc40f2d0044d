//! One cause for many: islands that are all low by the same share are no set of
//! faults but one thing above them, or the measurement itself.
//!
//! Works on findings about levels; it measures nothing and blames nobody.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::arrange::Domain;
use super::fabric;
use super::fabric::Fabric;
use super::finding::finding;
use super::island::Island;
use super::ledger::Ledger;
use super::level;
use super::nodes;
use super::peel;
use model::finding_class::FindingClass;
use model::id::DomainName;
use model::id::NodeName;
use model::rule::RuleKind;
use model::stats;
use model::text::percent;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;
use model::verdict::Outcome;

/// This share of all islands of a platform, low alike, is no coincidence.
const NEARLY_ALL: f64 = 0.75;

/// Shares closer than this are the same: half the loss of one link of 18.
const ALIKE: f64 = peel::LINE;

/// Lifts findings about the levels of islands that are low alike.
pub(super) fn judge(
    domains: &[Domain<'_>],
    judged: &[Vec<(Island<'_>, Fabric)>],
    ledger: &mut Ledger,
) {
    let mut platforms: BTreeMap<&str, Vec<(&Island<'_>, &Fabric)>> = BTreeMap::new();
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
        let about = |island: &Island<'_>| {
            levels.get(&(Some(&island.domain), island.node.as_ref())).copied()
        };
        let low: Vec<(&Island<'_>, Finding)> =
            islands.iter().filter_map(|(i, _)| Some((*i, about(i)?.clone()))).collect();
        #[expect(clippy::cast_precision_loss, reason = "counts of islands")]
        let most = NEARLY_ALL * islands.len() as f64 <= low.len() as f64;
        let mut ratios: Vec<f64> = low.iter().filter_map(|(_, f)| f.share()).collect();
        let Some(middle) = stats::median(&mut ratios) else { continue };
        let alike = ratios.iter().all(|r| (r - middle).abs() < ALIKE);
        if low.len() < level::SMALLEST_FLEET || !most || !alike {
            continue;
        }
        let typical = &low[0].1;
        let what = if low[0].0.node.is_some() { "nodes" } else { "domains" };
        let links = fabric::quantised(low[0].0, middle).map_or(String::new(), |links| {
            format!(" ({links} missing in every one of them would do the same)")
        });
        let said = format!(
            "{} of {} {what} of {platform} are low alike, by {}{links}: one cause above them, not as many faults. \
             Clocks, a power limit, a driver, a wrong expectation, or the measurement: the same test with another \
             tool or version, or one of them after a reset, would tell",
            low.len(),
            islands.len(),
            percent(1.0 - middle)
        );
        let rule = RuleKind::CommonCause.with(format!(
            "at least {} of all {what} of a platform below the expectation by the same share (within {})",
            percent(NEARLY_ALL),
            percent(ALIKE)
        ));
        let locus = Locus { peer: Some(platform.to_owned()), ..Locus::of(LocusKind::Instrument) };
        let found = finding(Outcome::Unknown, FindingClass::AllLowAlike, locus, &rule).saying(said);
        let mut found = found.numbers_of(typical);
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
        let gone: BTreeSet<String> = low.iter().map(|(_, f)| f.id.clone()).collect();
        ledger.take(|f| gone.contains(&f.id));
        let why = nodes::but(&found.summary);
        let by_name: BTreeMap<&DomainName, &Domain<'_>> =
            domains.iter().rev().map(|d| (&d.name, d)).collect();
        for (island, _) in &low {
            let all = by_name.get(&island.domain).into_iter().flat_map(|d| &d.nodes);
            for node in all.filter(|n| island.node.as_ref().is_none_or(|own| own == *n)) {
                ledger.doubt(node, why.clone());
            }
        }
        ledger.find(found);
    }
}
