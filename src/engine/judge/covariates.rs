//! One cause for some nodes: low nodes that share a property that the others lack.
//!
//! Before it blames parts, the judge checks for shared properties: driver, VBIOS, firmware, tool
//! version, product, leaf, rack, position. A covariate explains a set of low nodes if it splits the
//! fleet into groups that are low as a whole or not at all, and explains most of the variance
//! between nodes. A loss that it explains is not a fault of a node.

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::{FabricGroup, pair_matrices};
use super::finding::new_finding;
use super::finding_set::FindingSet;
use super::level::SMALLEST_FLEET;
use super::{node_verdicts, peel};
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::{DomainName, NodeName};
use model::stats;
use model::text::format_percent;
use model::verdict::{Direction, Finding, Locus, LocusKind, Outcome};

/// A covariate must explain this share of the variance between nodes.
const MIN_EXPLAINED_VARIANCE: f64 = 0.8;

/// A group counts as low if this share of it is low.
const NEARLY_ALL: f64 = 0.8;

/// A property that nodes can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Covariate {
    Driver,
    Vbios,
    Firmware,
    ToolVersion,
    Product,
    Leaf,
    Rack,
    Position,
}

impl Covariate {
    const ALL: [Self; 8] = [
        Self::Driver,
        Self::Vbios,
        Self::Firmware,
        Self::ToolVersion,
        Self::Product,
        Self::Leaf,
        Self::Rack,
        Self::Position,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Vbios => "VBIOS",
            Self::Firmware => "GSP firmware",
            Self::ToolVersion => "tool version",
            Self::Product => "product",
            Self::Leaf => "leaf",
            Self::Rack => "rack",
            Self::Position => "position in the rack",
        }
    }

    /// The smallest group that rules out coincidence: software often changes a rate, a position
    /// alone seldom does.
    fn min_nodes(self) -> usize {
        match self {
            Self::Driver | Self::Vbios | Self::Firmware | Self::ToolVersion | Self::Product => 2,
            Self::Leaf | Self::Rack | Self::Position => 3,
        }
    }
}

/// One node compared with the others of its platform.
struct CovariateSample<'a> {
    domain: &'a DomainName,
    node: &'a NodeName,
    /// Its level divided by the level of its fleet, or of its domain.
    ratio: f64,
    /// It reaches its platform's expectation.
    meets: bool,
    covariates: BTreeMap<Covariate, String>,
}

/// Withdraws findings about nodes that one covariate explains.
pub(super) fn judge(
    domains: &[DomainRecordings<'_>],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    claims: &Claims,
    ledger: &mut FindingSet,
) {
    let mut platforms: BTreeMap<&str, Vec<CovariateSample<'_>>> = BTreeMap::new();
    for (domain, islands) in domains.iter().zip(judged) {
        for (island, fabric) in islands {
            let Some(platform) = island.platform else { continue };
            platforms
                .entry(&platform.name)
                .or_default()
                .extend(collect_samples(domain, island, fabric, claims));
        }
    }
    for (platform, units) in platforms {
        let low: Vec<bool> = units
            .iter()
            .map(|unit| ledger.findings_of_node(unit.node).any(|f| is_low(f, unit)))
            .collect();
        let count = low.iter().filter(|low| **low).count();
        if units.len() < 2 * SMALLEST_FLEET || count < 2 || count == units.len() {
            continue;
        }
        let explained = Covariate::ALL.iter().find_map(|covariate| {
            explained_variance(*covariate, &units, &low).map(|share| (*covariate, share))
        });
        if let Some((covariate, share)) = explained {
            withdraw_findings(platform, &units, &low, (covariate, share), ledger);
        }
    }
}

/// Whether a finding reports a whole node as low.
fn is_low(found: &Finding, unit: &CovariateSample<'_>) -> bool {
    found.class == FindingClass::NvlinkLow
        && found.outcome == Outcome::Degraded
        && matches!(found.locus.kind, LocusKind::Node | LocusKind::Tray)
        && found.locus.node.as_ref() == Some(unit.node)
        && found.locus.domain.as_ref() == Some(unit.domain)
}

/// The nodes of an island: a node's own island has one, a rack has many.
fn collect_samples<'a>(
    domain: &'a DomainRecordings<'_>,
    island: &FabricGroup<'_>,
    fabric: &FabricJudgement,
    claims: &Claims,
) -> Vec<CovariateSample<'a>> {
    let Some(level) = fabric.level else { return Vec::new() };
    let here = island.gpus_by_node();
    let mut units = Vec::new();
    for (at, node) in domain.nodes.iter().enumerate() {
        let Some(gpus) = here.get(node) else { continue };
        let ratio = match island.node {
            Some(_) => Some(level.ratio),
            None => {
                let ways = [Direction::Tx, Direction::Rx];
                let shown =
                    gpus.iter().flat_map(|g| ways.map(|way| fabric.peeled.end_level(*g, way)));
                stats::median(&mut shown.flatten().map(|it| it.ratio).collect::<Vec<_>>())
            }
        };
        let Some(ratio) = ratio else { continue };
        let has = node_covariates(domain, node, at, claims);
        units.push(CovariateSample {
            domain: &domain.name,
            node,
            ratio,
            meets: level.meets,
            covariates: has,
        });
    }
    units
}

fn node_covariates(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    at: usize,
    claims: &Claims,
) -> BTreeMap<Covariate, String> {
    let own = || domain.per_node.get(node).into_iter().flatten();
    let joined = |values: BTreeSet<&str>| {
        let all: Vec<&str> = values.into_iter().collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let drivers = own().filter_map(|r| r.parsed.facts.driver.as_deref()).collect();
    // `gpu3.vbios`, as stored for `nvidia-smi -q`.
    let of_gpus = |what: &str| {
        let named = own().flat_map(|r| &r.parsed.facts.parameters);
        let is_key = |name: &str| {
            let own = name.strip_prefix("gpu").and_then(|rest| rest.split_once('.'));
            own.is_some_and(|(_, own)| own == what)
        };
        joined(named.filter(|(name, _)| is_key(name)).map(|(_, value)| value.as_str()).collect())
    };
    let measuring = own().filter(|r| !pair_matrices(r).is_empty());
    let versions = measuring.filter_map(|r| r.parsed.tool_version.as_deref()).collect();
    let devices = own().flat_map(|r| &r.parsed.facts.devices);
    let products = devices.filter_map(|device| device.name.as_deref()).collect();
    let leaf = claims.leaves.iter().find(|leaf| leaf.nodes.contains(node));
    let spans = 1 < domain.nodes.len();
    let all = [
        (Covariate::Driver, joined(drivers)),
        (Covariate::Vbios, of_gpus("vbios")),
        (Covariate::Firmware, of_gpus("gsp_firmware")),
        (Covariate::ToolVersion, joined(versions)),
        (Covariate::Product, joined(products)),
        (Covariate::Leaf, leaf.map(|leaf| leaf.name.to_string())),
        (Covariate::Rack, spans.then(|| domain.name.to_string())),
        (Covariate::Position, spans.then(|| (at + 1).to_string())),
    ];
    all.into_iter().filter_map(|(covariate, value)| Some((covariate, value?))).collect()
}

/// The share of the variance that a covariate explains, if it explains the low nodes.
fn explained_variance(
    covariate: Covariate,
    units: &[CovariateSample<'_>],
    low: &[bool],
) -> Option<f64> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        groups.entry(unit.covariates.get(&covariate)?).or_default().push(at);
    }
    if groups.len() < 2 {
        return None;
    }
    for members in groups.values() {
        let count = members.iter().filter(|at| low[**at]).count();
        #[expect(clippy::cast_precision_loss, reason = "counts of nodes")]
        let most = NEARLY_ALL * members.len() as f64 <= count as f64;
        if 0 < count && (!most || members.len() < covariate.min_nodes()) {
            return None;
        }
        let mut ratios: Vec<f64> = members.iter().map(|at| units[*at].ratio).collect();
        let middle = stats::median(&mut ratios)?;
        // If members differ by as much as a fault, one cause does not explain them.
        let own = members.iter().filter(|at| low[**at]);
        if own.into_iter().any(|at| (units[*at].ratio - middle).abs() >= peel::MIN_EFFECT / 2.0) {
            return None;
        }
    }
    let ratios: Vec<f64> = units.iter().map(|unit| unit.ratio).collect();
    let all = sum_of_squares(&ratios);
    let within: f64 = groups
        .values()
        .map(|members| {
            sum_of_squares(&members.iter().map(|at| units[*at].ratio).collect::<Vec<_>>())
        })
        .sum();
    let share = if 0.0 < all { 1.0 - within / all } else { 0.0 };
    (MIN_EXPLAINED_VARIANCE <= share).then_some(share)
}

/// Sum of the squared distances from the mean.
fn sum_of_squares(values: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of nodes")]
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// Turns the findings about low nodes into one note, or one finding of outcome unknown.
fn withdraw_findings(
    platform: &str,
    units: &[CovariateSample<'_>],
    low: &[bool],
    (covariate, share): (Covariate, f64),
    ledger: &mut FindingSet,
) {
    let mut taken: Vec<Finding> = Vec::new();
    let mut values: BTreeSet<&str> = BTreeSet::new();
    let lows: Vec<&CovariateSample<'_>> =
        units.iter().zip(low).filter(|(_, low)| **low).map(|(unit, _)| unit).collect();
    for unit in &lows {
        taken.extend(ledger.take_of_node(unit.node, |f| is_low(f, unit)));
        values.extend(unit.covariates.get(&covariate).map(String::as_str));
    }
    let mut ratios: Vec<f64> = lows.iter().map(|unit| unit.ratio).collect();
    let middle = stats::median(&mut ratios).unwrap_or(1.0);
    let values = values.into_iter().collect::<Vec<_>>().join(" and ");
    let what = covariate.as_str();
    let summary = format!(
        "{} of {} nodes of {platform} are {} lower than the others, and exactly those have {what} \
         {values}: that explains {} of the variance between nodes; one cause, not separate faults",
        lows.len(),
        units.len(),
        format_percent(1.0 - middle),
        format_percent(share)
    );
    if lows.iter().all(|unit| unit.meets) {
        ledger.notes.push(format!("{summary}; they reach the expectation of {platform}"));
        return;
    }
    let rule = RuleKind::CommonCause.with_terms(format!(
        "one property of nodes explains at least {} of the variance, and its groups are low as a \
         whole or not at all",
        format_percent(MIN_EXPLAINED_VARIANCE)
    ));
    let peer = Some(format!("{what} {values}"));
    let locus = Locus { peer, ..Locus::new(LocusKind::Instrument) };
    let mut found = new_finding(Outcome::Unknown, FindingClass::AllLowAlike, locus, &rule)
        .with_summary(format!("{summary}; repeat the test on one of them with another {what}"));
    if let Some(typical) = taken.first() {
        found = found.with_numbers_of(typical);
    }
    found.evidence.extend(taken.iter().take(6).filter_map(|one| one.evidence.first().cloned()));
    let why = node_verdicts::no_pass_reason(&found.summary);
    for unit in lows.iter().filter(|unit| !unit.meets) {
        ledger.add_doubt(unit.node, why.clone());
    }
    ledger.add(found);
}
