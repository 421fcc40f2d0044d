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
use super::nodes::About;
use super::rails;
use super::roster::Roster;
use super::severed::NO_MULTI_NODE as ALL_OUT;
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

#[cfg(test)]
thread_local! {
    /// How often two findings, or a finding and a recording, were held against each other.
    pub(super) static LOOKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

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
    type Part = (NodeName, Option<NodeName>, bool, Option<String>);
    let mut found: BTreeMap<Part, BTreeSet<String>> = BTreeMap::new();
    let worth = judgement.verdicts.findings.iter().filter(|f| Outcome::Unknown < f.outcome);
    for finding in worth.filter(|f| !f.confirmed && can_be_seen_again(f)) {
        let Some(node) = finding.locus.node.clone() else { continue };
        let peer = peer_node(finding).filter(|peer| *peer != node);
        let (network, rail) = (is_of_network(finding), finding.locus.rail.clone());
        let files = finding.evidence.iter().map(|e| e.file.clone());
        found.entry((node, peer, network, rail)).or_default().extend(files);
    }
    let suspect =
        |((node, peer, network, rail), files)| Suspect { node, peer, network, rail, files };
    found.into_iter().map(suspect).collect()
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
    // On a bad day there are as many findings as nodes: each is held against those that
    // name the same nodes, and never against all.
    let later = About::of(&second.findings);
    let nodes_later: BTreeMap<&NodeName, &NodeVerdict> =
        second.nodes.iter().map(|it| (&it.node, it)).collect();
    let looks = Looks::of(again);
    let mut kept_ones = Kept::default();
    // What became of each finding that did not stay as it was.
    let mut dropped: Vec<(&Finding, usize)> = Vec::new();
    let mut resolved: Vec<&Finding> = Vec::new();
    for finding in &first.findings {
        let mut kept = finding.clone();
        if !can_be_seen_again(finding) || finding.outcome <= Outcome::Unknown {
            // Nothing to be seen again.
            kept_ones.add(kept);
            continue;
        }
        let seen: Vec<&Finding> = alike(&later, finding)
            .into_iter()
            .filter(|f| Outcome::Unknown < f.outcome && is_same(finding, f))
            .collect();
        let partners = looks.partners(finding);
        if let Some(same) = seen.iter().find(|f| f.locus.kind == finding.locus.kind) {
            agree(&mut kept, same);
        } else if finding.locus.kind == LocusKind::Pair && !seen.is_empty() {
            // The pair was the sight of one of its ends.
            resolved.push(finding);
            for end in seen {
                let mut end = end.clone();
                end.confirmed = true;
                end.evidence.extend(finding.evidence.iter().cloned());
                kept_ones.add(end);
            }
            continue;
        } else if let Some(part) = seen.first() {
            agree(&mut kept, part);
        } else if let Some(least) = hidden(finding, &nodes_later) {
            // Fewer partners see less: not seen again is no acquittal here.
            kept.summary = format!(
                "{}; the second look, with {partners} partners, would have seen {} or more only",
                kept.summary,
                percent(least)
            );
        } else if looks.was_read_again(finding) {
            kept.outcome = Outcome::Unknown;
            kept.rule = not_confirmed(partners);
            kept.summary = format!("{}; {}", kept.summary, not_confirmed(partners));
            dropped.push((finding, partners));
        } else if finding.locus.kind == LocusKind::Pair && 0 < partners {
            kept.summary =
                format!("{}; both were fine later, with {partners} other partners", kept.summary);
        }
        kept_ones.add(kept);
    }
    let Kept { findings, places } = kept_ones;
    let mut out = Verdicts { findings, ..first.clone() };
    let known = About::of(&out.findings);
    for found in second.findings.iter().filter(|found| Outcome::Unknown < found.outcome) {
        // That nobody of a domain reaches another is known by what was said of any node there.
        let all = found.locus.domain.as_ref().filter(|_| found.class == ALL_OUT);
        let there = all.into_iter().flat_map(|domain| known.of_domain(domain));
        let is_known = places.contains_key(&found.id)
            || alike(&known, found).into_iter().chain(there).any(|f| is_same(f, found));
        if !is_known {
            out.notes.push(format!("seen in the second look only: {}", found.summary));
        }
    }
    let (fell, rested) = (by_end(dropped, |it| it.0), by_end(resolved, |it| *it));
    let after = |before: &NodeVerdict| {
        let all = |ends: Option<&Vec<_>>| ends.cloned().unwrap_or_default();
        let node = &before.node;
        let about = known.any(&[node], before.domain.as_ref());
        verdict(before, &about, fell.get(node).and_then(|it| it.first()), &all(rested.get(node)))
    };
    let nodes: Vec<NodeVerdict> = first.nodes.iter().map(after).collect();
    out.nodes = nodes;
    let stale: BTreeSet<Unknown> = nodes::unknown(&first.nodes).into_iter().collect();
    out.unknown.retain(|unknown| !stale.contains(unknown));
    out.outcome = nodes::worst(&out.nodes, &out.findings, &out.unknown);
    out.unknown.extend(nodes::unknown(&out.nodes));
    out.findings.sort_by(|a, b| nodes::by_severity(a).cmp(&nodes::by_severity(b)));
    out
}

/// Findings, each id once.
#[derive(Debug, Default)]
struct Kept {
    findings: Vec<Finding>,
    /// Where each is.
    places: BTreeMap<String, usize>,
}

impl Kept {
    /// Adds one, or its evidence to the one of its id.
    fn add(&mut self, finding: Finding) {
        if let Some(at) = self.places.get(&finding.id) {
            agree(&mut self.findings[*at], &finding);
            return;
        }
        self.places.insert(finding.id.clone(), self.findings.len());
        self.findings.push(finding);
    }
}

/// The findings that could be the same as this one: of its nodes, or of a domain as a
/// whole.
fn alike<'f>(about: &About<'f>, finding: &Finding) -> Vec<&'f Finding> {
    let peer = peer_node(finding);
    let ends: Vec<&NodeName> = finding.locus.node.iter().chain(&peer).collect();
    about.any(&ends, finding.locus.domain.as_ref())
}

/// What is told of findings, by the nodes that these name.
fn by_end<T: Clone>(told: Vec<T>, finding: impl Fn(&T) -> &Finding) -> BTreeMap<NodeName, Vec<T>> {
    let mut by_end: BTreeMap<NodeName, Vec<T>> = BTreeMap::new();
    for it in told {
        let found = finding(&it);
        let ends: BTreeSet<NodeName> =
            found.locus.node.iter().cloned().chain(peer_node(found)).collect();
        for end in ends {
            by_end.entry(end).or_default().push(it.clone());
        }
    }
    by_end
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
fn hidden(finding: &Finding, second: &BTreeMap<&NodeName, &NodeVerdict>) -> Option<f64> {
    if finding.locus.kind == LocusKind::Pair {
        return None;
    }
    let loss = 1.0 - finding.ratio?;
    let node = second.get(finding.locus.node.as_ref()?)?;
    let inside = node.fabric_detectable.filter(|_| !is_of_network(finding));
    inside.or(node.detectable).filter(|least| loss < *least)
}

/// A node's verdict, where findings about it changed. `about` are those that name it or
/// its domain; `fell` is the first about it that was not seen again, `resolved` are the
/// pairs of it that were the sight of one end.
fn verdict(
    before: &NodeVerdict,
    about: &[&Finding],
    fell: Option<&(&Finding, usize)>,
    resolved: &[&Finding],
) -> NodeVerdict {
    let mut verdict = before.clone();
    let against = about.iter().filter(|f| nodes::accuses(f, &before.node));
    let worst = against.filter(|f| Outcome::Unknown < f.outcome);
    let worst = worst.reduce(|worst, next| if worst.outcome < next.outcome { next } else { worst });
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
    } else if resolved.iter().any(rested) {
        let touching =
            about.iter().find(|f| nodes::touches(f, before.domain.as_ref(), &before.node));
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
    #[cfg(test)]
    LOOKED.set(LOOKED.get() + 1);
    if family(&first.class) != family(&second.class) && first.class != second.class {
        return false;
    }
    let (a, b) = (&first.locus, &second.locus);
    if a.rail != b.rail {
        return false;
    }
    // Where nobody else was measured together, the node's pairs are all there are.
    let all_out = second.class == ALL_OUT && a.domain == b.domain;
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

/// One recording of the second look that holds numbers.
#[derive(Debug)]
struct Look {
    network: bool,
    rail: Option<String>,
    nodes: BTreeSet<NodeName>,
}

impl Look {
    /// Whether it could have shown a finding.
    fn fits(&self, finding: &Finding) -> bool {
        #[cfg(test)]
        LOOKED.set(LOOKED.get() + 1);
        let network = is_of_network(finding);
        self.network == network && (!network || self.rail == finding.locus.rail)
    }
}

/// The recordings of the second look, by the nodes that took part.
#[derive(Debug)]
struct Looks {
    all: Vec<Look>,
    of: Roster<Vec<usize>>,
}

impl Looks {
    fn of(again: &[&Recording]) -> Self {
        let look = |r: &&Recording| Look {
            network: rails::is_of_network(r),
            rail: rails::rail_of(r),
            nodes: nodes_of(r),
        };
        let all: Vec<Look> = again.iter().filter(|r| has_numbers(r)).map(look).collect();
        let mut by_node: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
        for (at, node) in
            all.iter().enumerate().flat_map(|(at, l)| l.nodes.iter().map(move |n| (at, n)))
        {
            by_node.entry(node).or_default().push(at);
        }
        let mut of = Roster::default();
        by_node.into_iter().for_each(|(node, at)| of.add(node, at));
        Self { all, of }
    }

    /// Those in which a node took part and that could have shown a finding.
    fn with<'l>(&'l self, node: &NodeName, finding: &'l Finding) -> impl Iterator<Item = &'l Look> {
        let places: BTreeSet<usize> = self.of.alike(node.as_str()).flatten().copied().collect();
        places.into_iter().map(|at| &self.all[at]).filter(|look| look.fits(finding))
    }

    /// Whether the same part was measured again: a node with somebody, a pair of
    /// nodes together.
    fn was_read_again(&self, finding: &Finding) -> bool {
        let Some(node) = &finding.locus.node else { return false };
        let peer = peer_node(finding);
        let took_part =
            |look: &Look, node: &NodeName| look.nodes.iter().any(|n| n.matches_host(node.as_str()));
        self.with(node, finding).any(|look| peer.as_ref().is_none_or(|peer| took_part(look, peer)))
    }

    /// With how many other nodes the part was measured again: of a pair, the fewest of
    /// its ends.
    fn partners(&self, finding: &Finding) -> usize {
        let ends: Vec<NodeName> =
            finding.locus.node.iter().cloned().chain(peer_node(finding)).collect();
        let of = |end: &NodeName| {
            let met: BTreeSet<&NodeName> = self
                .with(end, finding)
                .flat_map(|look| &look.nodes)
                .filter(|n| !ends.iter().any(|e| e.matches_host(n.as_str())))
                .collect();
            met.len()
        };
        ends.iter().map(of).min().unwrap_or(0)
    }
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

fn has_numbers(recording: &Recording) -> bool {
    recording.parsed.measurements.iter().any(|m| match m {
        Measurement::Matrix(matrix) => matrix.numbers().next().is_some(),
        Measurement::Series(series) => !series.points.is_empty(),
        Measurement::Scalar(_) => true,
    })
}
