//! The second measurement: decides which findings a later measurement with cleared partners
//! confirms.
//!
//! Pure: takes two verdicts and the second readings, returns one verdict. A finding whose paths
//! were read again is confirmed if they are as low as before, and becomes unknown if they are
//! normal. A finding whose paths were not read again stays, with a note in its summary.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::{ConfirmScope, traits_of};
use super::confirm_coverage::{ConfirmCoverage, has_numbers, nodes_of};
use super::confirm_readings::{ConfirmReadings, ConfirmResult, LowestReading};
use super::finding::{format_rate, new_finding};
use super::host_index::HostIndex;
use super::node_verdicts::FindingsByLocus;
use super::{JudgeInput, Judgement, node_verdicts, rail_readings};
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::id::NodeName;
use model::text::format_percent;
use model::tool_recording::{CONFIRM_STAGE, ToolRecording};
use model::verdict::{
    Evidence, Finding, Locus, LocusKind, NodeVerdict, Outcome, UnknownEntry, Verdicts,
};

#[cfg(test)]
thread_local! {
    /// Counts comparisons of two findings, or of a finding with a recording.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A part to measure again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfirmSuspect {
    /// The node, or one end of a pair.
    pub node: NodeName,
    /// The other end, if a pair of nodes is suspect and neither end alone.
    pub peer: Option<NodeName>,
    /// The suspicion comes from the scale-out network, not from inside a domain.
    pub network: bool,
    /// The rail, if the finding names one.
    pub rail: Option<String>,
    /// The GPUs at both ends, if the path between two GPUs is suspect.
    pub gpus: Option<(u32, u32)>,
    /// The files that support the suspicion.
    pub files: BTreeSet<String>,
}

impl ConfirmSuspect {
    /// Whether this node is the suspect, or one end of it.
    pub fn involves(&self, node: &NodeName) -> bool {
        self.node == *node || self.peer.as_ref() == Some(node)
    }
}

/// The parts to measure again, without duplicates, in order.
pub fn find_suspects(judgement: &Judgement) -> Vec<ConfirmSuspect> {
    type SuspectKey = (NodeName, Option<NodeName>, bool, Option<String>, Option<(u32, u32)>);
    let mut found: BTreeMap<SuspectKey, BTreeSet<String>> = BTreeMap::new();
    let worth = judgement.verdicts.findings.iter().filter(|f| is_suspicion(f));
    for finding in worth.filter(|f| !f.confirmed) {
        let Some(node) = finding.locus.node.clone() else { continue };
        let peer = peer_node(finding).filter(|peer| *peer != node);
        let (network, rail) = (is_of_network(finding), finding.locus.rail.clone());
        let gpus = finding.locus.gpu.zip(peer_end(finding).and_then(|(_, gpu)| gpu));
        let files = finding.evidence.iter().map(|e| e.file.clone());
        found.entry((node, peer, network, rail, gpus)).or_default().extend(files);
    }
    let suspect = |((node, peer, network, rail, gpus), files)| ConfirmSuspect {
        node,
        peer,
        network,
        rail,
        gpus,
        files,
    };
    found.into_iter().map(suspect).collect()
}

/// Measured nodes that no finding names: suitable partners.
pub fn find_cleared_nodes(
    judgement: &Judgement,
    recordings: &[ToolRecording],
) -> BTreeSet<NodeName> {
    let named: BTreeSet<NodeName> = judgement
        .verdicts
        .findings
        .iter()
        .flat_map(|f| f.locus.node.iter().cloned().chain(peer_node(f)))
        .collect();
    let good = judgement.verdicts.nodes.iter().filter(|n| n.outcome <= Outcome::Unknown);
    let good = good.map(|n| &n.node).filter(|n| !named.contains(*n));
    let with_numbers = recordings.iter().filter(|r| has_numbers(r));
    let mut measured: HostIndex<()> = HostIndex::default();
    with_numbers.flat_map(nodes_of).for_each(|node| measured.add(&node, ()));
    good.filter(|node| measured.has_candidate(node.as_str())).cloned().collect()
}

/// The recordings that the second verdict uses: the whole confirm stage, plus earlier ones in which
/// no suspect took part.
pub fn select_confirm_recordings(
    recordings: &[ToolRecording],
    suspects: &[ConfirmSuspect],
) -> Vec<ToolRecording> {
    // Suspects by rail; the key `None` holds the suspects inside domains.
    let mut named: BTreeMap<Option<Option<String>>, HostIndex<()>> = BTreeMap::new();
    for suspect in suspects {
        let here = named.entry(suspect.network.then(|| suspect.rail.clone())).or_default();
        std::iter::once(&suspect.node).chain(&suspect.peer).for_each(|node| here.add(node, ()));
    }
    let is_tainted = |recording: &ToolRecording| {
        let network = rail_readings::is_of_network(recording);
        let here = named.get(&network.then(|| rail_readings::rail_of(recording)));
        here.is_some_and(|here| {
            nodes_of(recording).iter().any(|node| here.has_candidate(node.as_str()))
        })
    };
    let kept = recordings.iter().filter(|r| r.stage == Some(CONFIRM_STAGE) || !is_tainted(r));
    kept.cloned().collect()
}

/// Whether a finding of the first verdict is about the same part as this one of the second.
fn is_known_part(known: &FindingsByLocus<'_>, found: &Finding) -> bool {
    // Reports about any node of a domain settle whether its nodes reach each other.
    let domain =
        found.locus.domain.as_ref().filter(|_| found.class == FindingClass::MultiNodeNvlinkOff);
    let of_domain = domain.into_iter().flat_map(|domain| known.findings_of_domain(domain));
    let mut all = find_candidates(known, found).into_iter().chain(of_domain);
    all.any(|f| is_same_part(f, found))
}

/// The first verdict, revised by the second measurement. `second` is the verdict on the recordings
/// of [`select_confirm_recordings`]; `again` is the case with the recordings of the confirm stage
/// alone.
pub fn apply_confirmation(
    judged: &Judgement,
    second: &Verdicts,
    again: &JudgeInput<'_>,
) -> Verdicts {
    let first = &judged.verdicts;
    // In a large failure there are as many findings as nodes: each is compared with those that name
    // the same nodes, never with all.
    let later = FindingsByLocus::new(&second.findings);
    let nodes_later: BTreeMap<&NodeName, &NodeVerdict> =
        second.nodes.iter().map(|it| (&it.node, it)).collect();
    let coverage = ConfirmCoverage::new(again.recordings);
    let suspected = first.findings.iter().filter(|f| is_suspicion(f));
    let suspected = suspected.map(|finding| (is_of_network(finding), finding));
    let claimed = JudgeInput { claims: &judged.claims, ..*again };
    let again = ConfirmReadings::new(&claimed, &judged.levels, suspected);
    let mut kept_ones = UniqueFindings::default();
    // The result for each finding that changed.
    let mut dropped: Vec<(&Finding, usize)> = Vec::new();
    let mut resolved: Vec<&Finding> = Vec::new();
    for finding in &first.findings {
        let mut kept = finding.clone();
        if !is_suspicion(finding) {
            // No finding exists to confirm.
            kept_ones.add(kept);
            continue;
        }
        let seen: Vec<&Finding> = find_candidates(&later, finding)
            .into_iter()
            .filter(|f| Outcome::Unknown < f.outcome && is_same_part(finding, f))
            .collect();
        let partners = coverage.partner_count(finding);
        if let Some(same) = seen.iter().find(|f| f.locus.kind == finding.locus.kind) {
            add_confirmation(&mut kept, same);
        } else if finding.locus.kind == LocusKind::Pair && !seen.is_empty() {
            // The pair was low because of one of its ends.
            resolved.push(finding);
            for end in seen {
                let mut end = end.clone();
                end.confirmed = true;
                end.evidence.extend(finding.evidence.iter().cloned());
                kept_ones.add(end);
            }
            continue;
        } else if let Some(part) = seen.first() {
            add_confirmation(&mut kept, part);
        } else if is_unreached(finding)
            && find_candidates(&later, finding)
                .into_iter()
                .any(|f| is_unreached(f) && is_same_part(finding, f))
            && are_healthy_with_others(finding, &again)
        {
            confirm_unreached(&mut kept, partners);
        } else {
            match assess_finding(finding, &again, &coverage) {
                ConfirmResult::Low(read) => {
                    let ends = find_low_ends(finding, &again, &nodes_later);
                    if !ends.is_empty() {
                        resolved.push(finding);
                        ends.into_iter().for_each(|end| kept_ones.add(end));
                        continue;
                    }
                    confirm_low(&mut kept, &read);
                }
                ConfirmResult::Healthy => {
                    if let Some(least) = hidden_loss(finding, &nodes_later) {
                        // Fewer partners detect less: a missing finding clears no node here.
                        let least = format_percent(least);
                        kept.summary += &format!(
                            "; the second measurement, with {partners} partners, could only \
                             detect {least} or more"
                        );
                    } else {
                        kept.outcome = Outcome::Unknown;
                        kept.rule = not_confirmed_rule(partners);
                        kept.summary += &format!("; {}", not_confirmed_rule(partners));
                        dropped.push((finding, partners));
                    }
                }
                ConfirmResult::Inconclusive(read) => {
                    let (value, level) = (format_rate(read.value), format_rate(read.level));
                    kept.summary += &format!(
                        "; read again at {value} of {level} GB/s, which neither confirms nor \
                         excludes it"
                    );
                }
                ConfirmResult::NotRead
                    if 0 < partners && are_healthy_with_others(finding, &again) =>
                {
                    kept.summary += &format!(
                        "; both read normally later with {partners} other partners, and their own \
                         path was not read again"
                    );
                }
                ConfirmResult::NotRead => kept.summary += "; its path was not read again",
            }
        }
        kept_ones.add(kept);
    }
    let UniqueFindings { findings, positions: places } = kept_ones;
    let mut out = Verdicts { findings, ..first.clone() };
    let known = FindingsByLocus::new(&out.findings);
    let new = second.findings.iter().filter(|found| {
        Outcome::Unknown < found.outcome
            && !places.contains_key(&found.id)
            && !is_known_part(&known, found)
    });
    let note = |found: &Finding| format!("found only in the second measurement: {}", found.summary);
    out.notes.extend(new.map(note));
    let (fell, rested) = (group_by_node(dropped, |it| it.0), group_by_node(resolved, |it| *it));
    let after = |before: &NodeVerdict| {
        let all = |ends: Option<&Vec<_>>| ends.cloned().unwrap_or_default();
        let node = &before.node;
        let about = known.findings_about(&[node], before.domain.as_ref());
        let rested = all(rested.get(node));
        let later = nodes_later.get(node).copied();
        if let Some(verdict) = revise_unreached_verdict((before, later), &about, &rested, &coverage)
        {
            return verdict;
        }
        revise_verdict(before, &about, fell.get(node).and_then(|it| it.first()), &rested)
    };
    out.nodes = first.nodes.iter().map(after).collect();
    let stale: BTreeSet<UnknownEntry> =
        node_verdicts::list_unknown_nodes(&first.nodes).into_iter().collect();
    out.unknown.retain(|unknown| !stale.contains(unknown));
    out.outcome = node_verdicts::worst_outcome(&out.nodes, &out.findings, &out.unknown);
    out.unknown.extend(node_verdicts::list_unknown_nodes(&out.nodes));
    out.findings
        .sort_by(|a, b| node_verdicts::severity_key(a).cmp(&node_verdicts::severity_key(b)));
    out
}

#[derive(Debug, Default)]
struct UniqueFindings {
    findings: Vec<Finding>,
    /// The index of each ID.
    positions: BTreeMap<String, usize>,
}

impl UniqueFindings {
    /// Adds a finding, or merges its evidence into the one with the same ID.
    fn add(&mut self, finding: Finding) {
        if let Some(at) = self.positions.get(&finding.id) {
            add_confirmation(&mut self.findings[*at], &finding);
            return;
        }
        self.positions.insert(finding.id.clone(), self.findings.len());
        self.findings.push(finding);
    }
}

/// The findings that could match this one: about its nodes, or about a whole domain.
fn find_candidates<'f>(about: &FindingsByLocus<'f>, finding: &Finding) -> Vec<&'f Finding> {
    let peer = peer_node(finding);
    let ends: Vec<&NodeName> = finding.locus.node.iter().chain(&peer).collect();
    about.findings_about(&ends, finding.locus.domain.as_ref())
}

/// Groups items by the nodes that their findings name.
fn group_by_node<T: Clone>(
    items: Vec<T>,
    finding: impl Fn(&T) -> &Finding,
) -> BTreeMap<NodeName, Vec<T>> {
    let mut by_end: BTreeMap<NodeName, Vec<T>> = BTreeMap::new();
    for it in items {
        let found = finding(&it);
        let ends: BTreeSet<NodeName> =
            found.locus.node.iter().cloned().chain(peer_node(found)).collect();
        for end in ends {
            by_end.entry(end).or_default().push(it.clone());
        }
    }
    by_end
}

/// The rule for a finding that the second measurement did not confirm.
fn not_confirmed_rule(partners: usize) -> FindingRule {
    match partners {
        // Inside a node the second measurement involves no other node.
        0 => RuleKind::NotConfirmed.with_terms("a second measurement"),
        partners => RuleKind::NotConfirmed.with_terms(format!("{partners} partners")),
    }
}

/// The smallest loss that the second measurement could detect on this node, if the finding's own
/// loss is smaller. A pair that reads normally the second time counts as clear.
fn hidden_loss(finding: &Finding, second: &BTreeMap<&NodeName, &NodeVerdict>) -> Option<f64> {
    if finding.locus.kind == LocusKind::Pair {
        return None;
    }
    let loss = 1.0 - finding.deciding_share()?;
    let node = second.get(finding.locus.node.as_ref()?)?;
    let inside = node.fabric_detectable.filter(|_| !is_of_network(finding));
    inside.or(node.detectable).filter(|least| loss < *least)
}

/// A node's verdict after findings about it changed. `about` holds those that name the node or its
/// domain; `fell` is the first of them that was not confirmed; `resolved` holds its pairs that one
/// end explains.
fn revise_verdict(
    before: &NodeVerdict,
    about: &[&Finding],
    fell: Option<&(&Finding, usize)>,
    resolved: &[&Finding],
) -> NodeVerdict {
    let mut verdict = before.clone();
    let against = about.iter().filter(|f| node_verdicts::blames(f, &before.node));
    let worst = against.filter(|f| Outcome::Unknown < f.outcome);
    let worst = worst.reduce(|worst, next| if worst.outcome < next.outcome { next } else { worst });
    // A doubt of another kind stands, independent of the pair.
    let rested = |f: &&Finding| before.kept_by.as_ref() == Some(&f.id);
    if let Some(worst) = worst {
        verdict.outcome = worst.outcome;
        if before.outcome != worst.outcome || fell.is_some() {
            verdict.reason = format!("{}: {}", worst.class, worst.summary);
            verdict.kept_by = None;
        }
    } else if let Some((finding, partners)) =
        fell.filter(|(f, _)| Outcome::Unknown < before.outcome || rested(f))
    {
        verdict.outcome = Outcome::Unknown;
        verdict.reason = format!("{}: {}", not_confirmed_rule(*partners), finding.summary);
        verdict.kept_by = None;
    } else if resolved.iter().any(rested) {
        let touching = about
            .iter()
            .find(|f| node_verdicts::blocks_pass(f, before.domain.as_ref(), &before.node));
        verdict.kept_by = touching.map(|finding| finding.id.clone());
        (verdict.outcome, verdict.reason) = match touching {
            Some(finding) => (Outcome::Unknown, node_verdicts::no_pass_reason(&finding.summary)),
            None => (Outcome::Pass, node_verdicts::AS_EXPECTED.to_owned()),
        };
    }
    verdict
}

/// The verdict of an end of a pair that had no connection because of the other end: only its later
/// readings count, and it passes only if it was read again.
fn revise_unreached_verdict(
    (before, later): (&NodeVerdict, Option<&NodeVerdict>),
    about: &[&Finding],
    resolved: &[&Finding],
    coverage: &ConfirmCoverage,
) -> Option<NodeVerdict> {
    let finding =
        resolved.iter().find(|f| is_unreached(f) && before.kept_by.as_ref() == Some(&f.id))?;
    if about.iter().any(|f| node_verdicts::blames(f, &before.node)) {
        return None;
    }
    let read = later.filter(|_| coverage.has_node(&before.node, finding));
    Some(read.filter(|later| later.outcome == Outcome::Pass).unwrap_or(before).clone())
}

/// A pair had no connection again, and both its ends reached other nodes.
fn confirm_unreached(kept: &mut Finding, partners: usize) {
    kept.outcome = Outcome::Failed;
    kept.confirmed = true;
    kept.rule = RuleKind::Path
        .with_terms("no connection in two measurements, and each end reached others in the second");
    kept.summary = format!(
        "{}; the second measurement found none either, and both reached {partners} other partners",
        kept.summary
    );
}

fn add_confirmation(kept: &mut Finding, seen: &Finding) {
    kept.confirmed = true;
    for evidence in &seen.evidence {
        if !kept.evidence.contains(evidence) {
            kept.evidence.push(evidence.clone());
        }
    }
}

/// Whether a second measurement can test this finding.
fn is_suspicion(finding: &Finding) -> bool {
    is_confirmable(finding) && (Outcome::Unknown < finding.outcome || is_unreached(finding))
}

/// Whether it is a pair without a connection, where either end may be the cause.
fn is_unreached(finding: &Finding) -> bool {
    finding.class == FindingClass::NicUnreachable && finding.locus.kind == LocusKind::Pair
}

/// The result for the paths of a finding: the same GPUs, rail and direction. Findings without a
/// rate, and findings about whole levels, need only a measurement of the same nodes.
fn assess_finding(
    finding: &Finding,
    again: &ConfirmReadings<'_>,
    coverage: &ConfirmCoverage,
) -> ConfirmResult {
    let is_level =
        finding.locus.kind == LocusKind::Node && finding.class != FindingClass::WrongDomain;
    let has_rate =
        traits_of(&finding.class).has_rate && finding.deciding_share().is_some() && !is_level;
    match has_rate {
        true => again.assess(finding, is_of_network(finding)),
        false if coverage.has_part(finding) => ConfirmResult::Healthy,
        false => ConfirmResult::NotRead,
    }
}

/// Whether both ends of a pair read normally with every other node they measured again.
fn are_healthy_with_others(finding: &Finding, again: &ConfirmReadings<'_>) -> bool {
    let near = finding.locus.node.clone().map(|node| (node, finding.locus.gpu));
    let Some((near, far)) = near.zip(peer_end(finding)) else { return false };
    let over = (is_of_network(finding), finding.locus.rail.as_ref());
    [(&near, &far), (&far, &near)]
        .into_iter()
        .all(|((node, gpu), (other, _))| again.is_healthy_with_others((node, *gpu), other, over))
}

/// The same paths were as low again, compared with the level of the first measurement.
fn confirm_low(kept: &mut Finding, read: &LowestReading) {
    let numbers = format!("{} of {} GB/s", format_rate(read.value), format_rate(read.level));
    kept.confirmed = true;
    kept.summary = format!("{}; read again at {numbers}", kept.summary);
    kept.evidence.push(Evidence {
        file: read.file.clone(),
        testcase: Some(read.testcase.clone()),
        detail: format!("read again: {numbers}"),
        class: None,
    });
}

/// The ends of a low network path that are as low with unsuspected partners: each becomes its own
/// finding, and explains the path.
fn find_low_ends(
    pair: &Finding,
    again: &ConfirmReadings<'_>,
    nodes: &BTreeMap<&NodeName, &NodeVerdict>,
) -> Vec<Finding> {
    if pair.class != FindingClass::PathLow {
        return Vec::new();
    }
    let ends = pair.locus.node.iter().cloned().chain(peer_node(pair));
    let low = ends.filter_map(|node| {
        let domain = nodes.get(&node).and_then(|verdict| verdict.domain.clone());
        let rail = pair.locus.rail.clone();
        let locus = Locus { domain, node: Some(node.clone()), rail, ..Locus::new(LocusKind::Rail) };
        let rule = RuleKind::Endpoint.with_terms(
            "the median over unsuspected partners lies as far \
                                                  below the level of the first measurement as the \
                    path did that raised the suspicion",
        );
        let end = new_finding(pair.outcome, FindingClass::NicLow, locus, rule);
        let end = Finding { ratio_to_peers: pair.deciding_share(), ..end };
        let ConfirmResult::Low(read) = again.assess(&end, true) else { return None };
        let over = end.locus.rail.as_ref().map_or(String::new(), |rail| format!(" over {rail}"));
        let summary = format!(
            "{node}{over}: its rate is {} of {} GB/s ({}), {} low with other partners, as with the \
             first partner",
            format_rate(read.value),
            format_rate(read.level),
            read.testcase,
            format_percent(1.0 - read.value / read.level)
        );
        let is_same = pair.evidence.iter().any(|it| it.testcase.as_ref() == Some(&read.testcase));
        let expected = pair.expected.filter(|_| is_same);
        let end = end.with_peer_level(read.value, read.level, expected).with_summary(summary);
        let end = end.with_evidence(&read.file, Some(&read.testcase), "read again");
        let evidence = end.evidence.iter().chain(&pair.evidence).cloned().collect();
        Some(Finding { confirmed: true, evidence, ..end })
    });
    low.collect()
}

pub(super) fn is_of_network(finding: &Finding) -> bool {
    // Wrong data counts for the place of its evidence.
    let tcp = || finding.evidence.iter().any(|e| e.testcase.as_deref() == Some("tcp_throughput"));
    match traits_of(&finding.class).confirmed_over {
        Some(ConfirmScope::Network) => true,
        Some(ConfirmScope::Data) => tcp(),
        Some(ConfirmScope::Fabric | ConfirmScope::Domain) | None => false,
    }
}

/// Whether another measurement with partners can confirm this.
fn is_confirmable(finding: &Finding) -> bool {
    let kind = finding.locus.kind;
    let part = matches!(
        kind,
        LocusKind::Gpu
            | LocusKind::Node
            | LocusKind::Pair
            | LocusKind::Direction
            | LocusKind::Tray
            | LocusKind::Rail
    );
    part && traits_of(&finding.class).confirmed_over.is_some()
}

pub(super) fn peer_node(finding: &Finding) -> Option<NodeName> {
    peer_end(finding).map(|(node, _)| node)
}

/// The far end of a pair: `node:gpu`, or the node itself.
fn peer_end(finding: &Finding) -> Option<(NodeName, Option<u32>)> {
    let peer = finding.locus.peer.as_deref().filter(|_| finding.locus.kind == LocusKind::Pair)?;
    let gpu = peer.rsplit_once(':').and_then(|(node, gpu)| Some((node, gpu.parse().ok()?)));
    Some(gpu.map_or((NodeName::from(peer), None), |(node, gpu)| (node.into(), Some(gpu))))
}

/// Whether two findings concern the same part, or the second a piece of the first.
fn is_same_part(first: &Finding, second: &Finding) -> bool {
    #[cfg(test)]
    COMPARISONS.set(COMPARISONS.get() + 1);
    let again = |found: &Finding| traits_of(&found.class).confirmed_over;
    if again(first) != again(second) && first.class != second.class {
        return false;
    }
    let (a, b) = (&first.locus, &second.locus);
    if a.rail != b.rail {
        return false;
    }
    // If the run measured no other nodes together, the node's pairs are all the data.
    let all_out = second.class == FindingClass::MultiNodeNvlinkOff && a.domain == b.domain;
    if all_out && a.kind == LocusKind::Node {
        return true;
    }
    let ends = |f: &Finding| -> BTreeSet<String> {
        let gpu = f.locus.gpu.map_or(String::new(), |gpu| format!(":{gpu}"));
        let own = f.locus.node.as_ref().map(|n| format!("{n}{gpu}"));
        own.into_iter().chain(f.locus.peer.clone()).collect()
    };
    match (a.kind, b.kind) {
        (LocusKind::Pair, LocusKind::Pair) => ends(first) == ends(second),
        (LocusKind::Pair, _) => {
            let of = |node: &NodeName| {
                a.node.as_ref() == Some(node) || peer_node(first).as_ref() == Some(node)
            };
            let gpu = b.gpu.is_none() || a.gpu.is_none() || ends(second).is_subset(&ends(first));
            b.node.as_ref().is_some_and(of) && gpu
        }
        // One of its pairs is not the whole part.
        (_, LocusKind::Pair) => false,
        _ => {
            a.node.is_some()
                && a.node == b.node
                && (a.gpu.is_none() || b.gpu.is_none() || a.gpu == b.gpu)
        }
    }
}
