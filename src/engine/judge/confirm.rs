//! The second look: which findings another measurement, later and with cleared
//! partners, agrees with.
//!
//! Pure: two verdicts and what was measured again in, one verdict out. A finding
//! whose own paths were read again is confirmed where they are as low as before, and
//! becomes unknown where they are fine; one whose paths were not read again stays as it
//! was, and says so.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Case;
use super::Judgement;
use super::again::Again;
use super::again::Lowest;
use super::again::Reread;
use super::class::Path;
use super::class::traits;
use super::finding::finding;
use super::finding::rate;
use super::looks::Looks;
use super::looks::has_numbers;
use super::looks::nodes_of;
use super::nodes;
use super::nodes::About;
use super::rails;
use super::roster::Roster;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::recording::CONFIRM_STAGE;
use model::recording::Recording;
use model::rule::FindingRule;
use model::rule::RuleKind;
use model::text::percent;
use model::verdict::Evidence;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;
use model::verdict::NodeVerdict;
use model::verdict::Outcome;
use model::verdict::Unknown;
use model::verdict::Verdicts;

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
    /// The GPUs at both ends, where the path between two is suspected.
    pub gpus: Option<(u32, u32)>,
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
    type Part = (NodeName, Option<NodeName>, bool, Option<String>, Option<(u32, u32)>);
    let mut found: BTreeMap<Part, BTreeSet<String>> = BTreeMap::new();
    let worth = judgement.verdicts.findings.iter().filter(|f| is_suspicion(f));
    for finding in worth.filter(|f| !f.confirmed) {
        let Some(node) = finding.locus.node.clone() else { continue };
        let peer = peer_node(finding).filter(|peer| *peer != node);
        let (network, rail) = (is_of_network(finding), finding.locus.rail.clone());
        let gpus = finding.locus.gpu.zip(peer_end(finding).and_then(|(_, gpu)| gpu));
        let files = finding.evidence.iter().map(|e| e.file.clone());
        found.entry((node, peer, network, rail, gpus)).or_default().extend(files);
    }
    let suspect = |((node, peer, network, rail, gpus), files)| Suspect {
        node,
        peer,
        network,
        rail,
        gpus,
        files,
    };
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
/// [`second_case`]; `again` is the case with the recordings of the confirm stage alone.
pub fn confirm(judged: &Judgement, second: &Verdicts, again: &Case<'_>) -> Verdicts {
    let first = &judged.verdicts;
    // On a bad day there are as many findings as nodes: each is held against those that
    // name the same nodes, and never against all.
    let later = About::of(&second.findings);
    let nodes_later: BTreeMap<&NodeName, &NodeVerdict> =
        second.nodes.iter().map(|it| (&it.node, it)).collect();
    let looks = Looks::of(again.recordings);
    let suspected = first.findings.iter().filter(|f| is_suspicion(f));
    let suspected = suspected.map(|finding| (is_of_network(finding), finding));
    let claimed = Case { claims: &judged.claims, ..*again };
    let again = Again::of(&claimed, &judged.levels, suspected);
    let mut kept_ones = Kept::default();
    // What became of each finding that did not stay as it was.
    let mut dropped: Vec<(&Finding, usize)> = Vec::new();
    let mut resolved: Vec<&Finding> = Vec::new();
    for finding in &first.findings {
        let mut kept = finding.clone();
        if !is_suspicion(finding) {
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
        } else if is_unreached(finding)
            && alike(&later, finding).into_iter().any(|f| is_unreached(f) && is_same(finding, f))
            && are_fine_with_others(finding, &again)
        {
            cut_again(&mut kept, partners);
        } else {
            match reread(finding, &again, &looks) {
                Reread::Low(read) => {
                    let ends = low_ends(finding, &again, &nodes_later);
                    if !ends.is_empty() {
                        resolved.push(finding);
                        ends.into_iter().for_each(|end| kept_ones.add(end));
                        continue;
                    }
                    low_again(&mut kept, &read);
                }
                Reread::Fine => {
                    if let Some(least) = hidden(finding, &nodes_later) {
                        // Fewer partners see less: not seen again clears nobody here.
                        kept.summary = format!(
                            "{}; the second look, with {partners} partners, would have seen {} or more only",
                            kept.summary,
                            percent(least)
                        );
                    } else {
                        kept.outcome = Outcome::Unknown;
                        kept.rule = not_confirmed(partners);
                        kept.summary = format!("{}; {}", kept.summary, not_confirmed(partners));
                        dropped.push((finding, partners));
                    }
                }
                Reread::Open(read) => {
                    kept.summary = format!(
                        "{}; read again at {} of {} GB/s, which neither confirms nor excludes it",
                        kept.summary,
                        rate(read.value),
                        rate(read.level)
                    );
                }
                Reread::Not if 0 < partners && are_fine_with_others(finding, &again) => {
                    kept.summary = format!(
                        "{}; both were fine later, with {partners} other partners, and their own path was not read again",
                        kept.summary
                    );
                }
                Reread::Not => {
                    kept.summary = format!("{}; its path was not read again", kept.summary);
                }
            }
        }
        kept_ones.add(kept);
    }
    let Kept { findings, places } = kept_ones;
    let mut out = Verdicts { findings, ..first.clone() };
    let known = About::of(&out.findings);
    for found in second.findings.iter().filter(|found| Outcome::Unknown < found.outcome) {
        // That nobody of a domain reaches another is known by what was said of any node there.
        let all =
            found.locus.domain.as_ref().filter(|_| found.class == FindingClass::MultiNodeNvlinkOff);
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
        let rested = all(rested.get(node));
        let later = nodes_later.get(node).copied();
        if let Some(verdict) = of_unreached((before, later), &about, &rested, &looks) {
            return verdict;
        }
        verdict(before, &about, fell.get(node).and_then(|it| it.first()), &rested)
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
fn not_confirmed(partners: usize) -> FindingRule {
    match partners {
        // Inside a node the second look has no other node in it.
        0 => RuleKind::NotConfirmed.with("a second measurement"),
        partners => RuleKind::NotConfirmed.with(format!("{partners} partners")),
    }
}

/// The smallest loss that the second look could have seen on this node, where
/// the finding's own is smaller. A pair was seen once only; where it is fine
/// the second time, nothing more is held against it.
fn hidden(finding: &Finding, second: &BTreeMap<&NodeName, &NodeVerdict>) -> Option<f64> {
    if finding.locus.kind == LocusKind::Pair {
        return None;
    }
    let loss = 1.0 - finding.share()?;
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
        verdict.reason = format!("{}: {}", not_confirmed(*partners), finding.summary);
        verdict.kept_by = None;
    } else if resolved.iter().any(rested) {
        let touching =
            about.iter().find(|f| nodes::touches(f, before.domain.as_ref(), &before.node));
        verdict.kept_by = touching.map(|finding| finding.id.clone());
        (verdict.outcome, verdict.reason) = match touching {
            Some(finding) => (Outcome::Unknown, nodes::but(&finding.summary)),
            None => (Outcome::Pass, nodes::AS_EXPECTED.to_owned()),
        };
    }
    verdict
}

/// The verdict of an end of a pair that had no connection because of the other end: it
/// shows nothing but what it showed later, and passes only if it was read again.
fn of_unreached(
    (before, later): (&NodeVerdict, Option<&NodeVerdict>),
    about: &[&Finding],
    resolved: &[&Finding],
    looks: &Looks,
) -> Option<NodeVerdict> {
    let finding =
        resolved.iter().find(|f| is_unreached(f) && before.kept_by.as_ref() == Some(&f.id))?;
    if about.iter().any(|f| nodes::accuses(f, &before.node)) {
        return None;
    }
    let read = later.filter(|_| looks.was_read(&before.node, finding));
    Some(read.filter(|later| later.outcome == Outcome::Pass).unwrap_or(before).clone())
}

/// A pair had no connection again, and both its ends had others.
fn cut_again(kept: &mut Finding, partners: usize) {
    kept.outcome = Outcome::Failed;
    kept.confirmed = true;
    kept.rule = RuleKind::Path
        .with("no connection in two measurements, and each end had others in the second");
    kept.summary = format!(
        "{}; later they had none again, and both reached {partners} other partners",
        kept.summary
    );
}

fn agree(kept: &mut Finding, seen: &Finding) {
    kept.confirmed = true;
    for evidence in &seen.evidence {
        if !kept.evidence.contains(evidence) {
            kept.evidence.push(evidence.clone());
        }
    }
}

/// Whether a finding is one that a second look is for.
fn is_suspicion(finding: &Finding) -> bool {
    can_be_seen_again(finding) && (Outcome::Unknown < finding.outcome || is_unreached(finding))
}

/// Whether it is a pair without a connection, of which either end may be the cause.
fn is_unreached(finding: &Finding) -> bool {
    finding.class == FindingClass::NicUnreachable && finding.locus.kind == LocusKind::Pair
}

/// What became of the paths of a finding: the same GPUs, rail and direction. Of what has
/// no rate, and of whole levels, a measurement of the same nodes is all there is.
fn reread(finding: &Finding, again: &Again<'_>, looks: &Looks) -> Reread {
    let is_level =
        finding.locus.kind == LocusKind::Node && finding.class != FindingClass::WrongDomain;
    let has_rate = traits(&finding.class).has_rate && finding.share().is_some() && !is_level;
    match has_rate {
        true => again.read(finding, is_of_network(finding)),
        false if looks.was_read_again(finding) => Reread::Fine,
        false => Reread::Not,
    }
}

/// Whether both ends of a pair were as they should be with all others they met again.
fn are_fine_with_others(finding: &Finding, again: &Again<'_>) -> bool {
    let near = finding.locus.node.clone().map(|node| (node, finding.locus.gpu));
    let Some((near, far)) = near.zip(peer_end(finding)) else { return false };
    let over = (is_of_network(finding), finding.locus.rail.as_ref());
    [(&near, &far), (&far, &near)]
        .into_iter()
        .all(|((node, gpu), (other, _))| again.is_fine_with_others((node, *gpu), other, over))
}

/// The same paths were as low again, against the level of the first measurement.
fn low_again(kept: &mut Finding, read: &Lowest) {
    let numbers = format!("{} of {} GB/s", rate(read.value), rate(read.level));
    kept.confirmed = true;
    kept.summary = format!("{}; read again at {numbers}", kept.summary);
    kept.evidence.push(Evidence {
        file: read.file.clone(),
        testcase: Some(read.testcase.clone()),
        detail: format!("read again: {numbers}"),
        class: None,
    });
}

/// The ends of a low path over the network that are as low with partners that are not
/// suspected: each is found by itself, and the path was the sight of them.
fn low_ends(
    pair: &Finding,
    again: &Again<'_>,
    nodes: &BTreeMap<&NodeName, &NodeVerdict>,
) -> Vec<Finding> {
    if pair.class != FindingClass::PathLow {
        return Vec::new();
    }
    let ends = pair.locus.node.iter().cloned().chain(peer_node(pair));
    let low = ends.filter_map(|node| {
        let domain = nodes.get(&node).and_then(|verdict| verdict.domain.clone());
        let rail = pair.locus.rail.clone();
        let locus =
            Locus { domain, node: Some(node.clone()), rail, ..Locus::of(LocusKind::Rail) };
        let rule = RuleKind::Endpoint.with("the median over partners that are not suspected lies as far below the level of the \
                    first measurement as the path did that raised the suspicion");
        let end = finding(pair.outcome, FindingClass::NicLow, locus, rule);
        let end = Finding { ratio_to_peers: pair.share(), ..end };
        let Reread::Low(read) = again.read(&end, true) else { return None };
        let over = end.locus.rail.as_ref().map_or(String::new(), |rail| format!(" over {rail}"));
        let said = format!(
            "{node}{over}: its rate is {} of {} GB/s ({}), {} low with other partners, as it was with the one before",
            rate(read.value),
            rate(read.level),
            read.testcase,
            percent(1.0 - read.value / read.level)
        );
        let is_same = pair.evidence.iter().any(|it| it.testcase.as_ref() == Some(&read.testcase));
        let expected = pair.expected.filter(|_| is_same);
        let end = end.below_peers(read.value, read.level, expected).saying(said);
        let end = end.because(&read.file, Some(&read.testcase), "read again");
        let evidence = end.evidence.iter().chain(&pair.evidence).cloned().collect();
        Some(Finding { confirmed: true, evidence, ..end })
    });
    low.collect()
}

pub(super) fn is_of_network(finding: &Finding) -> bool {
    // Wrong data was seen where its evidence was.
    let tcp = || finding.evidence.iter().any(|e| e.testcase.as_deref() == Some("tcp_throughput"));
    match traits(&finding.class).again {
        Some(Path::Network) => true,
        Some(Path::Data) => tcp(),
        Some(Path::Fabric | Path::Domain) | None => false,
    }
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
    part && traits(&finding.class).again.is_some()
}

/// The node at the far end of a pair.
pub(super) fn peer_node(finding: &Finding) -> Option<NodeName> {
    peer_end(finding).map(|(node, _)| node)
}

/// The far end of a pair: `node:gpu`, or the node itself.
fn peer_end(finding: &Finding) -> Option<(NodeName, Option<u32>)> {
    let peer = finding.locus.peer.as_deref().filter(|_| finding.locus.kind == LocusKind::Pair)?;
    let gpu = peer.rsplit_once(':').and_then(|(node, gpu)| Some((node, gpu.parse().ok()?)));
    Some(gpu.map_or((NodeName::from(peer), None), |(node, gpu)| (node.into(), Some(gpu))))
}

/// Whether two findings tell of the same part, or the second of a part of it.
fn is_same(first: &Finding, second: &Finding) -> bool {
    #[cfg(test)]
    LOOKED.set(LOOKED.get() + 1);
    let again = |found: &Finding| traits(&found.class).again;
    if again(first) != again(second) && first.class != second.class {
        return false;
    }
    let (a, b) = (&first.locus, &second.locus);
    if a.rail != b.rail {
        return false;
    }
    // Where nobody else was measured together, the node's pairs are all there are.
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
        // One pair of it is not the part.
        (_, LocusKind::Pair) => false,
        _ => {
            a.node.is_some()
                && a.node == b.node
                && (a.gpu.is_none() || b.gpu.is_none() || a.gpu == b.gpu)
        }
    }
}
