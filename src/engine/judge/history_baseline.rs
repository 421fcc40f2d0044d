//! A part against its own history: still within the range of the fleet, but clearly lower than it
//! was.
//!
//! History only adds a reference. It lowers no expectation: other rules find a part that was always
//! slow. Where another reference decided, history either agrees or stays out of the finding.

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding::{domain_locus, format_rate, new_finding, node_locus, round};
use super::finding_set::FindingSet;
use super::host_index::HostIndex;
use super::level::SMALLEST_FLEET;
use super::run_summary::{FEWEST_RUNS, RunSummary};
use super::{peel, run_summary};
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::id::{DomainName, NodeName};
use model::part_history::{PartHistory, PartReading, PartTestKey, UsualLevel};
use model::stats;
use model::text::format_percent;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// With fewer parts, an island has no common loss.
const FEWEST_PARTS: usize = 4;

/// If this share of parts or islands is equally lower, the cause is shared.
const NEARLY_ALL: f64 = 0.75;

/// A part that reads lower than usual.
#[derive(Clone, Debug)]
struct BaselineDrop<'h> {
    part: PartTestKey,
    usual: &'h UsualLevel,
    now: f64,
    /// The current reading divided by the usual one.
    ratio: f64,
    /// The loss that exceeds chance.
    line: f64,
}

/// Compares the parts with their own history.
pub(super) fn judge(
    domains: &[DomainRecordings<'_>],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    claims: &Claims,
    recordings: &[ToolRecording],
    history: &PartHistory,
    ledger: &mut FindingSet,
) {
    if history.is_empty() {
        return;
    }
    let run = run_summary::summarize_case(domains, judged, claims, recordings);
    let taken = RecordingsByNode::new(recordings);
    let node_domains: BTreeMap<&NodeName, &DomainName> =
        domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (n, &d.name))).collect();
    // Parts that share a fabric or a rail rise and fall together.
    let mut groups: BTreeMap<BaselineGroup<'_>, Vec<BaselineDrop<'_>>> = BTreeMap::new();
    let inside = judged.iter().flatten().map(|(island, _)| island);
    let alone: BTreeSet<&NodeName> = inside.filter_map(|island| island.node.as_ref()).collect();
    for (part, reading) in &run {
        let Some(usual) = history.usual.get(part) else { continue };
        let group = BaselineGroup {
            domain: node_domains.get(&part.node).copied().filter(|_| part.gpu.is_some()),
            node: Some(&part.node).filter(|n| part.gpu.is_some() && alone.contains(n)).cloned(),
            rail: part.rail.clone(),
            network: part.gpu.is_none(),
            platform: part.platform.clone(),
        };
        groups.entry(group).or_default().push(compare_with_usual(part, reading, usual));
    }
    note_incomparable_runs(&run, history, &groups, ledger);
    let mut common: Vec<(BaselineGroup<'_>, BaselineDrop<'_>)> = Vec::new();
    for (group, all) in groups {
        let mut ratios: Vec<f64> = all.iter().map(|l| l.ratio).collect();
        let parts: BTreeSet<(&NodeName, Option<u32>)> =
            all.iter().map(|l| (&l.part.node, l.part.gpu)).collect();
        let middle = stats::median(&mut ratios).filter(|_| FEWEST_PARTS <= parts.len());
        let fell = all.iter().filter(|l| l.ratio < 1.0 - l.line).count();
        #[expect(clippy::cast_precision_loss, reason = "counts of parts")]
        let most = NEARLY_ALL * all.len() as f64 <= fell as f64;
        let together = middle.filter(|_| most);
        if let Some(middle) = together {
            let distance = |l: &&BaselineDrop<'_>| (l.ratio - middle).abs();
            let typical = all.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
            common.push((group.clone(), typical.expect("a group has parts").clone()));
        }
        // In addition to the common loss, some parts lost more.
        let shift = together.unwrap_or(1.0);
        let mut worst: BTreeMap<(NodeName, Option<u32>, Option<String>), BaselineDrop<'_>> =
            BTreeMap::new();
        for lower in all.into_iter().filter(|l| l.ratio / shift < 1.0 - l.line) {
            let key = (lower.part.node.clone(), lower.part.gpu, lower.part.rail.clone());
            let known = worst.entry(key).or_insert_with(|| lower.clone());
            if lower.ratio < known.ratio {
                *known = lower;
            }
        }
        for lower in worst.into_values() {
            report_part(group.domain, &lower, &taken, ledger);
        }
    }
    report_whole_fabrics(&common, judged, &taken, ledger);
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BaselineGroup<'d> {
    domain: Option<&'d DomainName>,
    /// The node, if the fabric lies inside it.
    node: Option<NodeName>,
    rail: Option<String>,
    network: bool,
    platform: Option<String>,
}

fn compare_with_usual<'h>(
    part: &PartTestKey,
    reading: &PartReading,
    usual: &'h UsualLevel,
) -> BaselineDrop<'h> {
    #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
    let runs = usual.count as f64;
    // The expected deviation of a further run from the median of the earlier ones.
    let between = usual.spread.unwrap_or(0.0).powi(2).max(usual.error.powi(2));
    let error = (reading.error.powi(2) + between * (1.0 + 1.0 / runs)).sqrt();
    BaselineDrop {
        part: part.clone(),
        usual,
        now: reading.value,
        ratio: reading.value / usual.median,
        line: peel::MIN_EFFECT.max(peel::SIGNIFICANCE_Z * error),
    }
}

/// Notes once that earlier runs under another driver or platform are not a reference.
fn note_incomparable_runs(
    run: &RunSummary,
    history: &PartHistory,
    groups: &BTreeMap<BaselineGroup<'_>, Vec<BaselineDrop<'_>>>,
    ledger: &mut FindingSet,
) {
    if !groups.is_empty() {
        return;
    }
    let of = |parts: &mut dyn Iterator<Item = &PartTestKey>| -> String {
        let named: BTreeSet<String> = parts
            .map(|part| {
                let driver = part.driver.as_deref().unwrap_or("not named");
                format!("{}, driver {driver}", part.platform.as_deref().unwrap_or("no platform"))
            })
            .collect();
        named.into_iter().take(3).collect::<Vec<_>>().join("; ")
    };
    ledger.notes.push(format!(
        "no part could be compared with its own history: this run has {}; earlier runs have {}",
        of(&mut run.keys()),
        of(&mut history.usual.keys())
    ));
}

/// Describes the period that a reference covers.
fn describe_period(usual: &UsualLevel) -> String {
    let day = |when: &str| when.get(..10).unwrap_or(when).to_owned();
    match usual.count {
        1 => format!("its own run of {}", day(&usual.last)),
        count if day(&usual.first) == day(&usual.last) => {
            format!("its own {count} runs of {}", day(&usual.last))
        }
        count => format!("its own {count} runs of {} to {}", day(&usual.first), day(&usual.last)),
    }
}

fn drop_rule(lower: &BaselineDrop<'_>) -> FindingRule {
    let driver = lower
        .part
        .driver
        .as_deref()
        .map_or(", driver not named".to_owned(), |driver| format!(" and driver {driver}"));
    RuleKind::OwnHistory.with_terms(format!(
        "more than max({}, 5 standard errors) = {} below the median of earlier runs of the same \
         platform{driver}; the fleet and the expectation did not decide",
        format_percent(peel::MIN_EFFECT),
        format_percent(lower.line)
    ))
}

/// The outcome: few earlier runs do not show whether the part or those runs were unusual.
fn drop_outcome(usual: &UsualLevel) -> Outcome {
    if usual.count < FEWEST_RUNS { Outcome::Unknown } else { Outcome::Degraded }
}

fn explain_open(usual: &UsualLevel) -> &'static str {
    match usual.count < FEWEST_RUNS {
        true => "; so few earlier runs may themselves be unusual: run it a third time",
        false => "",
    }
}

fn describe_drop(lower: &BaselineDrop<'_>) -> String {
    format!(
        "{} {} GB/s, usually {} in {}",
        lower.part.testcase,
        format_rate(lower.now),
        format_rate(lower.usual.median),
        describe_period(lower.usual)
    )
}

/// Another reference decided; the part's history agrees.
fn add_agreement(found: &mut Finding, lower: &BaselineDrop<'_>) {
    if found.class == FindingClass::BelowOwnHistory || found.rule.history_agrees {
        return;
    }
    found.rule.history_agrees = true;
    let file = found.evidence.first().map_or(String::new(), |e| e.file.clone());
    *found = found.clone().with_evidence(&file, Some(&lower.part.testcase), describe_drop(lower));
}

/// Reports a part that is below its own history and has no other finding.
fn report_part(
    domain: Option<&DomainName>,
    lower: &BaselineDrop<'_>,
    taken: &RecordingsByNode<'_>,
    ledger: &mut FindingSet,
) {
    let PartTestKey { node, gpu, rail, .. } = &lower.part;
    let against = |f: &Finding| {
        f.locus.node.as_ref() == Some(node)
            && (f.locus.gpu.is_none() || f.locus.gpu == *gpu)
            && f.locus.rail == *rail
            && f.locus.kind != LocusKind::Pair
            && f.deciding_share().is_some()
            && f.class != FindingClass::BelowOwnHistory
    };
    let detail = describe_drop(lower);
    let mut is_known = false;
    ledger.update_of_node(node, |found| {
        if against(found) {
            is_known = true;
            add_agreement(found, lower);
        }
    });
    if is_known {
        return;
    }
    let what = match (gpu, rail) {
        (Some(gpu), _) => format!("GPU {node}:{gpu}"),
        (None, Some(rail)) => format!("{node} over {rail}"),
        (None, None) => node.to_string(),
    };
    let kind = if gpu.is_some() { LocusKind::Gpu } else { LocusKind::Rail };
    let locus = Locus {
        kind,
        domain: domain.cloned(),
        node: Some(node.clone()),
        gpu: *gpu,
        rail: rail.clone(),
        ..Locus::new(kind)
    };
    let summary = format!(
        "{what} reads {} GB/s ({}), {} below the {} of {}, while it is within the range of the \
         others{}",
        format_rate(lower.now),
        lower.part.testcase,
        format_percent(1.0 - lower.ratio),
        format_rate(lower.usual.median),
        describe_period(lower.usual),
        explain_open(lower.usual)
    );
    let found = new_finding(
        drop_outcome(lower.usual),
        FindingClass::BelowOwnHistory,
        locus,
        drop_rule(lower),
    )
    .with_own_history(lower.now, lower.usual.median)
    .with_summary(summary.clone());
    let found = Finding { detectable: Some(round(lower.line)), ..found };
    if found.outcome == Outcome::Unknown {
        ledger.add_doubt(node, summary);
    }
    ledger.add(with_files(found, &lower.part, taken, &detail));
}

/// The recordings of a run, by participating node: in a fleet-wide loss, each part looks up its
/// own.
struct RecordingsByNode<'r> {
    recordings: &'r [ToolRecording],
    by_node: HostIndex<Vec<usize>>,
}

impl<'r> RecordingsByNode<'r> {
    fn new(recordings: &'r [ToolRecording]) -> Self {
        let mut by_name: BTreeMap<NodeName, Vec<usize>> = BTreeMap::new();
        for (at, recording) in recordings.iter().enumerate() {
            let names: BTreeSet<NodeName> = match &recording.scope {
                RecordingScope::Node(node) => [node.clone()].into(),
                RecordingScope::Pair(a, b) => [a.clone(), b.clone()].into(),
                RecordingScope::Domain(_) => {
                    let ranks = recording.parsed.facts.ranks.iter();
                    ranks.map(|rank| NodeName::from(rank.host.as_str())).collect()
                }
            };
            names.into_iter().for_each(|name| by_name.entry(name).or_default().push(at));
        }
        let mut by_node = HostIndex::default();
        by_name.into_iter().for_each(|(name, all)| by_node.add(&name, all));
        Self { recordings, by_node }
    }

    /// The recordings that a node took part in, in order.
    fn recordings_of(&self, node: &NodeName) -> impl Iterator<Item = &'r ToolRecording> {
        let places: BTreeSet<usize> =
            self.by_node.find_candidates(node.as_str()).flatten().copied().collect();
        places.into_iter().map(|at| &self.recordings[at])
    }
}

fn with_files(
    mut found: Finding,
    part: &PartTestKey,
    taken: &RecordingsByNode<'_>,
    detail: &str,
) -> Finding {
    let has = |r: &&ToolRecording| {
        r.parsed.measurements.iter().any(|m| m.testcase() == Some(&part.testcase))
    };
    for recording in taken.recordings_of(&part.node).filter(has).take(4) {
        found = found.with_evidence(&recording.file, Some(&part.testcase), detail);
    }
    found
}

/// Reports fabrics that are lower as a whole: no single part is at fault; if several are equally
/// lower, the cause is the instrument or the fleet.
fn report_whole_fabrics(
    common: &[(BaselineGroup<'_>, BaselineDrop<'_>)],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    taken: &RecordingsByNode<'_>,
    ledger: &mut FindingSet,
) {
    let all = judged.iter().flatten().filter(|(island, _)| !island.directed.is_empty()).count();
    let fabrics: Vec<&(BaselineGroup<'_>, BaselineDrop<'_>)> =
        common.iter().filter(|(g, _)| !g.network).collect();
    let everywhere = SMALLEST_FLEET <= fabrics.len() && fabrics.len() * 4 >= all * 3;
    let explanation = "the cause is a change since then (clocks, power limits, firmware, the \
                       tool) or the measurement: repeat the test with the tool and settings used \
                       then";
    if everywhere {
        let (group, lower) = fabrics[0];
        let summary = format!(
            "{} of {all} fabrics of {} read {} less than in {}: they share one cause; \
             {explanation}",
            fabrics.len(),
            group.platform.as_deref().unwrap_or("no platform"),
            format_percent(1.0 - lower.ratio),
            describe_period(lower.usual)
        );
        let locus = Locus { peer: group.platform.clone(), ..Locus::new(LocusKind::Instrument) };
        let found =
            new_finding(Outcome::Unknown, FindingClass::BelowOwnHistory, locus, drop_rule(lower))
                .with_own_history(lower.now, lower.usual.median)
                .with_summary(summary);
        ledger.add(with_files(found, &lower.part, taken, "a typical part"));
    }
    for (group, lower) in common.iter().filter(|(g, _)| g.network || !everywhere) {
        let locus = match (group.domain, &group.node) {
            (Some(domain), Some(node)) => node_locus(domain, node),
            (Some(domain), None) => domain_locus(LocusKind::Domain, domain),
            (None, _) => Locus { rail: group.rail.clone(), ..Locus::new(LocusKind::Instrument) },
        };
        // Another reference already reports this level as low.
        let is_level = |f: &Finding| {
            let whole = f.locus.gpu.is_none() && f.locus.kind != LocusKind::Pair;
            whole
                && f.deciding_share().is_some()
                && (f.locus.domain.as_ref(), &f.locus.node, &f.locus.rail)
                    == (group.domain, &group.node, &group.rail)
        };
        // A whole rail lies in no domain; there are few of those.
        let mut is_known = false;
        let mut joins = |found: &mut Finding| {
            if !is_known && is_level(found) {
                is_known = true;
                add_agreement(found, lower);
            }
        };
        match group.domain {
            Some(domain) => ledger.update_of_domain(domain, &mut joins),
            None => ledger.update(&mut joins),
        }
        if is_known {
            continue;
        }
        let what = match (&group.node, group.domain) {
            (Some(node), _) => format!("all of {node}"),
            (None, Some(domain)) => format!("all of {domain}"),
            (None, None) => "all ends of the network".to_owned(),
        };
        let summary = format!(
            "{what} reads {} less than in {} ({} of {} GB/s): {explanation}",
            format_percent(1.0 - lower.ratio),
            describe_period(lower.usual),
            format_rate(lower.now),
            format_rate(lower.usual.median)
        );
        let is_part = group.node.is_some();
        let outcome = if is_part || group.domain.is_some() {
            drop_outcome(lower.usual)
        } else {
            Outcome::Unknown
        };
        let found = new_finding(outcome, FindingClass::BelowOwnHistory, locus, drop_rule(lower))
            .with_own_history(lower.now, lower.usual.median)
            .with_summary(summary.clone());
        if let Some(node) = group.node.as_ref().filter(|_| found.outcome == Outcome::Unknown) {
            ledger.add_doubt(node, summary);
        }
        ledger.add(with_files(found, &lower.part, taken, "a typical part"));
    }
}
