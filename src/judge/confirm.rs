//! The second look: which findings another measurement, later and with cleared
//! partners, agrees with.
//!
//! Pure: two verdicts and what was measured again in, one verdict out. A finding
//! that was looked at again and not seen becomes unknown; one that could not be
//! looked at again stays as it was.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Judgement;
use super::finding::percent;
use super::nodes;
use super::rails;
use super::roster::Roster;
use crate::model::id::NodeName;
use crate::model::measurement::Measurement;
use crate::model::recording::Recording;
use crate::model::recording::Scope;
use crate::model::verdict::Finding;
use crate::model::verdict::LocusKind;
use crate::model::verdict::NodeVerdict;
use crate::model::verdict::Outcome;
use crate::model::verdict::Unknown;
use crate::model::verdict::Verdicts;
use crate::plan::CONFIRM_STAGE;

/// Classes that a measurement with other partners can show again, by what
/// they are measured over. Others are states, counts, or of something larger.
const FAMILIES: &[&[&str]] = &[
    &["nvlink-low", "p2p-low", "pcie-p2p-low", "nvlink-absent"],
    &["wrong-domain", "tool-error", "multi-node-nvlink-off"],
    &["nic-low", "path-low", "nic-unreachable"],
    &["data-corruption"],
];

/// A part that deserves a second look.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspect {
    /// The node, or one end of a pair.
    pub node: NodeName,
    /// The other end, where a pair of nodes is suspected and neither end.
    pub peer: Option<NodeName>,
    /// It was seen over the scale-out network, not inside a domain.
    pub network: bool,
    /// The rail, where one was named.
    pub rail: Option<String>,
    /// The files the suspicion rests on.
    pub files: BTreeSet<String>,
}

impl Suspect {
    /// Whether this node is the suspect, or one end of it.
    pub fn names(&self, node: &NodeName) -> bool {
        self.node == *node || self.peer.as_ref() == Some(node)
    }
}

/// The parts that deserve a second look, each once, in order.
pub fn suspects(judgement: &Judgement) -> Vec<Suspect> {
    let mut found: Vec<Suspect> = Vec::new();
    let worth = judgement.verdicts.findings.iter().filter(|f| Outcome::Unknown < f.outcome);
    for finding in worth.filter(|f| !f.confirmed && can_be_seen_again(f)) {
        let Some(node) = finding.locus.node.clone() else { continue };
        let peer = peer_node(finding).filter(|peer| *peer != node);
        let (network, rail) = (is_of_network(finding), finding.locus.rail.clone());
        let files = finding.evidence.iter().map(|e| e.file.clone());
        let same = |s: &&mut Suspect| {
            (&s.node, &s.peer, s.network, &s.rail) == (&node, &peer, network, &rail)
        };
        match found.iter_mut().find(same) {
            Some(known) => known.files.extend(files),
            None => {
                let files = files.collect();
                found.push(Suspect { node, peer, network, rail, files });
            }
        }
    }
    found.sort();
    found
}

/// The nodes that were measured and that no finding names: good partners.
pub fn cleared(judgement: &Judgement, recordings: &[Recording]) -> BTreeSet<NodeName> {
    let named: BTreeSet<NodeName> = judgement
        .verdicts
        .findings
        .iter()
        .flat_map(|f| f.locus.node.iter().cloned().chain(peer_node(f)))
        .collect();
    let good = judgement.verdicts.nodes.iter().filter(|n| n.outcome <= Outcome::Unknown);
    let good = good.map(|n| &n.node).filter(|n| !named.contains(*n));
    let with_numbers = recordings.iter().filter(|r| has_numbers(r));
    let mut measured: Roster<()> = Roster::default();
    with_numbers.flat_map(nodes_of).for_each(|node| measured.add(&node, ()));
    good.filter(|node| measured.has(node.as_str())).cloned().collect()
}

/// What the second look is judged from: everything of the confirm stage, and of
/// before what no suspect took part in.
pub fn second_case(recordings: &[Recording], suspects: &[Suspect]) -> Vec<Recording> {
    // Suspects by rail, and those that are not of the network.
    let mut named: BTreeMap<Option<Option<String>>, Roster<()>> = BTreeMap::new();
    for suspect in suspects {
        let here = named.entry(suspect.network.then(|| suspect.rail.clone())).or_default();
        std::iter::once(&suspect.node).chain(&suspect.peer).for_each(|node| here.add(node, ()));
    }
    let is_tainted = |recording: &Recording| {
        let network = rails::is_of_network(recording);
        let here = named.get(&network.then(|| rails::rail_of(recording)));
        here.is_some_and(|here| nodes_of(recording).iter().any(|node| here.has(node.as_str())))
    };
    let kept = recordings.iter().filter(|r| r.stage == Some(CONFIRM_STAGE) || !is_tainted(r));
    kept.cloned().collect()
}

/// The first verdict after the second look. `second` is the judge's word on
/// [`second_case`]; `again` are the recordings of the confirm stage.
pub fn confirm(first: &Verdicts, second: &Verdicts, again: &[&Recording]) -> Verdicts {
    let mut out = first.clone();
    out.findings.clear();
    // What became of each finding that did not stay as it was.
    let mut dropped: Vec<(&Finding, usize)> = Vec::new();
    let mut resolved: Vec<&Finding> = Vec::new();
    for finding in &first.findings {
        let mut kept = finding.clone();
        let seen = second.findings.iter().filter(|f| Outcome::Unknown < f.outcome);
        let seen: Vec<&Finding> = seen.filter(|f| is_same(finding, f)).collect();
        let partners = partners(finding, again);
        if !can_be_seen_again(finding) || finding.outcome <= Outcome::Unknown {
            // Nothing to be seen again.
        } else if let Some(same) = seen.iter().find(|f| f.locus.kind == finding.locus.kind) {
            agree(&mut kept, same);
        } else if finding.locus.kind == LocusKind::Pair && !seen.is_empty() {
            // The pair was the sight of one of its ends.
            resolved.push(finding);
            for end in seen {
                let mut end = end.clone();
                end.confirmed = true;
                end.evidence.extend(finding.evidence.iter().cloned());
                add(&mut out.findings, end);
            }
            continue;
        } else if let Some(part) = seen.first() {
            agree(&mut kept, part);
        } else if let Some(least) = hidden(finding, second) {
            // Fewer partners see less: not seen again is no acquittal here.
            kept.summary = format!(
                "{}; the second look, with {partners} partners, would have seen {} or more only",
                kept.summary,
                percent(least)
            );
        } else if was_read_again(finding, again) {
            kept.outcome = Outcome::Unknown;
            kept.rule = not_confirmed(partners);
            kept.summary = format!("{}; {}", kept.summary, not_confirmed(partners));
            dropped.push((finding, partners));
        } else if finding.locus.kind == LocusKind::Pair && 0 < partners {
            kept.summary =
                format!("{}; both were fine later, with {partners} other partners", kept.summary);
        }
        add(&mut out.findings, kept);
    }
    for found in &second.findings {
        let known = out.findings.iter().any(|f| f.id == found.id || is_same(f, found));
        if !known && Outcome::Unknown < found.outcome {
            out.notes.push(format!("seen in the second look only: {}", found.summary));
        }
    }
    out.nodes =
        first.nodes.iter().map(|n| verdict(n, &out.findings, &dropped, &resolved)).collect();
    let stale: BTreeSet<Unknown> = nodes::unknown(&first.nodes).into_iter().collect();
    out.unknown.retain(|unknown| !stale.contains(unknown));
    out.outcome = nodes::worst(&out.nodes, &out.findings, &out.unknown);
    out.unknown.extend(nodes::unknown(&out.nodes));
    out.findings.sort_by(|a, b| nodes::by_severity(a).cmp(&nodes::by_severity(b)));
    out
}

/// What becomes of a finding that was looked at again and not seen.
fn not_confirmed(partners: usize) -> String {
    match partners {
        // Inside a node the second look has no other node in it.
        0 => "not confirmed by a second measurement".to_owned(),
        partners => format!("not confirmed by {partners} partners"),
    }
}

/// The smallest loss that the second look could have seen on this node, where
/// the finding's own is smaller. A pair was seen once only; where it is fine
/// the second time, nothing more is held against it.
fn hidden(finding: &Finding, second: &Verdicts) -> Option<f64> {
    if finding.locus.kind == LocusKind::Pair {
        return None;
    }
    let loss = 1.0 - finding.ratio?;
    let node = second.nodes.iter().find(|n| Some(&n.node) == finding.locus.node.as_ref())?;
    node.detectable.filter(|least| loss < *least)
}

/// A node's verdict, where findings about it changed.
fn verdict(
    before: &NodeVerdict,
    findings: &[Finding],
    dropped: &[(&Finding, usize)],
    resolved: &[&Finding],
) -> NodeVerdict {
    let mut verdict = before.clone();
    let names = |f: &Finding| {
        f.locus.node.as_ref() == Some(&before.node) || peer_node(f).as_ref() == Some(&before.node)
    };
    let against: Vec<&Finding> =
        findings.iter().filter(|f| nodes::accuses(f, &before.node)).collect();
    let worst = against.iter().filter(|f| Outcome::Unknown < f.outcome);
    let worst = worst.reduce(|worst, next| if worst.outcome < next.outcome { next } else { worst });
    let fell = dropped.iter().find(|(f, _)| names(f));
    // A doubt of another kind stands, whatever became of the pair.
    let rested = |f: &&Finding| before.reason == nodes::but(&f.summary);
    if let Some(worst) = worst {
        verdict.outcome = worst.outcome;
        if before.outcome != worst.outcome || fell.is_some() {
            verdict.reason = format!("{}: {}", worst.class, worst.summary);
        }
    } else if let Some((finding, partners)) =
        fell.filter(|(f, _)| Outcome::Unknown < before.outcome || rested(f))
    {
        verdict.outcome = Outcome::Unknown;
        verdict.reason = format!("{}: {}", not_confirmed(*partners), finding.summary);
    } else if resolved.iter().any(|f| names(f) && rested(f)) {
        let touching =
            findings.iter().find(|f| nodes::touches(f, before.domain.as_ref(), &before.node));
        (verdict.outcome, verdict.reason) = match touching {
            Some(finding) => (Outcome::Unknown, nodes::but(&finding.summary)),
            None => (Outcome::Pass, nodes::AS_EXPECTED.to_owned()),
        };
    }
    verdict
}

fn agree(kept: &mut Finding, seen: &Finding) {
    kept.confirmed = true;
    for evidence in &seen.evidence {
        if !kept.evidence.contains(evidence) {
            kept.evidence.push(evidence.clone());
        }
    }
}

fn add(findings: &mut Vec<Finding>, finding: Finding) {
    match findings.iter_mut().find(|f| f.id == finding.id) {
        Some(known) => agree(known, &finding),
        None => findings.push(finding),
    }
}

fn family(class: &str) -> Option<&'static [&'static str]> {
    FAMILIES.iter().copied().find(|family| family.contains(&class))
}

fn is_of_network(finding: &Finding) -> bool {
    let class = finding.class.as_str();
    // Wrong data was seen where its evidence was.
    let tcp = || finding.evidence.iter().any(|e| e.testcase.as_deref() == Some("tcp_throughput"));
    FAMILIES[2].contains(&class) || (class == "data-corruption" && tcp())
}

/// Whether another measurement with partners can show this again.
fn can_be_seen_again(finding: &Finding) -> bool {
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
    part && family(&finding.class).is_some()
}

/// The node at the far end of a pair: `node:gpu`, or the node itself.
fn peer_node(finding: &Finding) -> Option<NodeName> {
    let peer = finding.locus.peer.as_deref().filter(|_| finding.locus.kind == LocusKind::Pair)?;
    let gpu = peer.rsplit_once(':').filter(|(_, gpu)| gpu.parse::<u32>().is_ok());
    Some(NodeName::from(gpu.map_or(peer, |(node, _)| node)))
}

/// Whether two findings tell of the same part, or the second of a part of it.
fn is_same(first: &Finding, second: &Finding) -> bool {
    if family(&first.class) != family(&second.class) && first.class != second.class {
        return false;
    }
    let (a, b) = (&first.locus, &second.locus);
    if a.rail != b.rail {
        return false;
    }
    // Where nobody else was measured together, the node's pairs are all there are.
    let all_out = second.class == "multi-node-nvlink-off" && a.domain == b.domain;
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
        // One pair of it is not the part.
        (_, LocusKind::Pair) => false,
        _ => {
            a.node.is_some()
                && a.node == b.node
                && (a.gpu.is_none() || b.gpu.is_none() || a.gpu == b.gpu)
        }
    }
}

/// Recordings of the second look that could have shown a finding.
fn fitting<'r>(finding: &Finding, again: &[&'r Recording]) -> Vec<&'r Recording> {
    let network = is_of_network(finding);
    let fits = |r: &&Recording| {
        rails::is_of_network(r) == network
            && (!network || rails::rail_of(r) == finding.locus.rail)
            && has_numbers(r)
    };
    again.iter().copied().filter(fits).collect()
}

/// Whether the same part was measured in the second look: a node with somebody,
/// a pair of nodes together.
fn was_read_again(finding: &Finding, again: &[&Recording]) -> bool {
    let Some(node) = &finding.locus.node else { return false };
    let peer = peer_node(finding);
    fitting(finding, again)
        .iter()
        .any(|r| took_part(r, node) && peer.as_ref().is_none_or(|peer| took_part(r, peer)))
}

/// With how many other nodes the part was measured in the second look: of a
/// pair, the fewest of its ends.
fn partners(finding: &Finding, again: &[&Recording]) -> usize {
    let fitting = fitting(finding, again);
    let ends: Vec<NodeName> =
        finding.locus.node.iter().cloned().chain(peer_node(finding)).collect();
    let of = |end: &NodeName| {
        let met = fitting.iter().filter(|r| took_part(r, end)).flat_map(|r| nodes_of(r));
        let met: BTreeSet<NodeName> =
            met.filter(|n| !ends.iter().any(|e| e.matches_host(n.as_str()))).collect();
        met.len()
    };
    ends.iter().map(of).min().unwrap_or(0)
}

/// The nodes of a recording, as its tool or the sweep names them.
fn nodes_of(recording: &Recording) -> BTreeSet<NodeName> {
    let facts = &recording.parsed.facts;
    let own: Vec<NodeName> = match &recording.scope {
        Scope::Node(node) => vec![node.clone()],
        Scope::Pair(a, b) => vec![a.clone(), b.clone()],
        Scope::Domain(_) if !recording.nodes.is_empty() => recording.nodes.clone(),
        Scope::Domain(_) => {
            let hosts = facts.ranks.iter().map(|r| r.host.as_str());
            hosts.chain(facts.hosts.iter().map(String::as_str)).map(NodeName::from).collect()
        }
    };
    own.into_iter().collect()
}

fn took_part(recording: &Recording, node: &NodeName) -> bool {
    nodes_of(recording).iter().any(|n| n.matches_host(node.as_str()))
}

fn has_numbers(recording: &Recording) -> bool {
    recording.parsed.measurements.iter().any(|m| match m {
        Measurement::Matrix(matrix) => matrix.numbers().next().is_some(),
        Measurement::Series(series) => !series.points.is_empty(),
        Measurement::Scalar(_) => true,
    })
}
