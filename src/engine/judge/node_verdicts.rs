//! The verdict of every node, and of the whole case.
//!
//! A node is degraded or failed by findings about itself or its parts. What is
//! wrong with a domain, a plane or the instrument keeps a node from passing
//! and says nothing against it. A slow pair has two ends and either may be it.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::traits_of;
use super::domain_recordings::DomainRecordings;
use super::finding_set::{FindingSet, LocusIndex, MeasuredBoundaries};
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::text::format_percent;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, Outcome, UnknownEntry};

/// The verdicts of all nodes of these domains, in order of name.
pub(super) fn judge_nodes(
    domains: &[DomainRecordings<'_>],
    ledger: &FindingSet,
) -> Vec<NodeVerdict> {
    let about = FindingsByLocus::new(ledger.findings());
    let mut nodes: Vec<NodeVerdict> = Vec::new();
    for domain in domains {
        let explained = about.findings_of_domain(&domain.name).any(is_part);
        nodes.extend(domain.nodes.iter().map(|node| {
            let findings = about.findings_about(&[node], Some(&domain.name));
            judge_node(domain, node, (&findings, explained), ledger)
        }));
    }
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    nodes
}

/// The nodes of which nothing is known, as things that are not known.
pub(super) fn list_unknown_nodes(nodes: &[NodeVerdict]) -> Vec<UnknownEntry> {
    let unknown = nodes.iter().filter(|n| n.outcome == Outcome::Unknown);
    unknown
        .map(|n| UnknownEntry { what: UnknownSubject::node(&n.node), why: n.reason.clone() })
        .collect()
}

/// Whether a finding is about this node or a part of it alone.
pub(super) fn accuses(finding: &Finding, node: &NodeName) -> bool {
    let kind = matches!(
        finding.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Rail
    );
    let inside = finding.locus.kind == LocusKind::Pair && is_far_end_in(finding, node);
    (kind || inside) && finding.locus.node.as_ref() == Some(node)
}

fn is_against(finding: &Finding, domain: &DomainRecordings<'_>, node: &NodeName) -> bool {
    accuses(finding, node) && finding.locus.domain.as_ref() == Some(&domain.name)
}

/// Worst first; the locus and the class break ties.
pub(super) fn severity_key(
    finding: &Finding,
) -> (std::cmp::Reverse<Outcome>, &Locus, &FindingClass) {
    (std::cmp::Reverse(finding.outcome), &finding.locus, &finding.class)
}

/// Why a node passes.
pub(super) const AS_EXPECTED: &str = "everything measured is as expected";

/// The same, and which part could have hidden most, where that is a rail.
fn pass_reason(inside: Option<f64>, over: Option<&(Option<String>, f64)>) -> String {
    match over {
        Some((Some(rail), most)) if inside.is_some_and(|inside| inside < *most) => {
            format!(
                "{AS_EXPECTED}; {} and more would have been seen over {rail}",
                format_percent(*most)
            )
        }
        Some((None, most)) if inside.is_some_and(|inside| inside < *most) => {
            format!(
                "{AS_EXPECTED}; {} and more would have been seen over the network",
                format_percent(*most)
            )
        }
        _ => AS_EXPECTED.to_owned(),
    }
}

/// Why a node does not pass because of something larger, or of a pair.
pub(super) fn no_pass_reason(summary: &str) -> String {
    format!("nothing against it, but {summary}")
}

/// The far end of a pair sits in this node: `node:gpu`, or the node itself.
fn is_far_end_in(finding: &Finding, node: &NodeName) -> bool {
    let peer = finding.locus.peer.as_deref().unwrap_or("");
    peer == node.as_str() || peer.rsplit_once(':').is_some_and(|(n, _)| n == node.as_str())
}

/// Findings by what they name: few of all concern a node or its domain as a whole.
#[derive(Debug, Default)]
pub(super) struct FindingsByLocus<'f> {
    findings: Vec<&'f Finding>,
    locus_index: LocusIndex,
    /// Those of a domain that are about nobody in it alone.
    domain_wide: BTreeMap<&'f DomainName, Vec<usize>>,
}

impl<'f> FindingsByLocus<'f> {
    pub(super) fn new(findings: impl IntoIterator<Item = &'f Finding>) -> Self {
        let mut about = Self::default();
        for finding in findings {
            let at = about.findings.len();
            about.locus_index.add(at, &finding.locus);
            if let Some(domain) = finding.locus.domain.as_ref().filter(|_| is_domain_wide(finding))
            {
                about.domain_wide.entry(domain).or_default().push(at);
            }
            about.findings.push(finding);
        }
        about
    }

    /// Those that name any of these nodes, and those about a domain as a whole, in the
    /// order they were found.
    pub(super) fn findings_about(
        &self,
        nodes: &[&NodeName],
        domain: Option<&DomainName>,
    ) -> Vec<&'f Finding> {
        let named = nodes.iter().map(|node| self.locus_index.of_node(node.as_str()));
        let there = domain.and_then(|it| self.domain_wide.get(it)).map(Vec::as_slice);
        let all: BTreeSet<usize> = named.chain(there).flatten().copied().collect();
        all.into_iter().map(|at| self.findings[at]).collect()
    }

    /// Those that name a domain as theirs.
    pub(super) fn findings_of_domain(
        &self,
        domain: &DomainName,
    ) -> impl Iterator<Item = &'f Finding> {
        self.locus_index.of_domain(domain).iter().map(|at| self.findings[*at])
    }
}

/// Whether a finding is about a domain, or its measurement, and no node of it alone.
fn is_domain_wide(finding: &Finding) -> bool {
    let kind = finding.locus.kind;
    matches!(kind, LocusKind::Domain | LocusKind::Plane | LocusKind::Instrument)
        || finding.locus.node.is_none()
}

/// The verdict of a node, from the findings that name it or are about its domain as a
/// whole; `explained` says whether a part of the domain is found guilty.
fn judge_node(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    (findings, explained): (&[&Finding], bool),
    ledger: &FindingSet,
) -> NodeVerdict {
    let inside = ledger.detectable.get(node).copied();
    let over = ledger.detectable_over_rails.get(node);
    let detectable = inside.into_iter().chain(over.map(|(_, most)| *most)).reduce(f64::max);
    let round = super::finding::round;
    let (inside, detectable) = (inside.map(round), detectable.map(round));
    let say = |outcome, reason: String| NodeVerdict {
        node: node.clone(),
        domain: Some(domain.name.clone()),
        outcome,
        reason,
        kept_by: None,
        detectable,
        detectable_together: ledger
            .detectable_overall
            .get(node)
            .copied()
            .map(super::finding::round),
        fabric_detectable: inside.filter(|_| inside != detectable),
        scope: ledger.measured_boundaries.get(node).map(MeasuredBoundaries::to_scope),
    };
    let against: Vec<&Finding> =
        findings.iter().copied().filter(|f| is_against(f, domain, node)).collect();
    let worst = against
        .iter()
        .copied()
        .filter(|f| Outcome::Unknown < f.outcome)
        .reduce(|worst, next| if worst.outcome < next.outcome { next } else { worst });
    if let Some(worst) = worst {
        let more = against.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
        return say(worst.outcome, format!("{}: {}{more}", worst.class, worst.summary));
    }
    if let Some(reasons) = ledger.doubts.get(node) {
        let more = reasons.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
        return say(Outcome::Unknown, format!("{}{more}", reasons[0]));
    }
    if let Some(doubt) = domain.doubts.first() {
        return say(Outcome::Unknown, doubt.why.clone());
    }
    let touched = |f: &&&Finding| {
        blocks_pass(f, Some(&domain.name), node) && !(explained && is_collective(f))
    };
    let kept = |by: &Finding| NodeVerdict {
        kept_by: Some(by.id.clone()),
        ..say(Outcome::Unknown, no_pass_reason(&by.summary))
    };
    match (ledger.compared.get(node), findings.iter().find(touched)) {
        (Some(true), Some(finding)) => kept(finding),
        (Some(true), None) => say(Outcome::Pass, pass_reason(inside, over)),
        // A pair without a connection is why.
        (None, Some(finding)) if finding.locus.kind == LocusKind::Pair => kept(finding),
        (Some(false), _) => say(Outcome::Unknown, "its level was compared with nothing".to_owned()),
        (None, _) => say(Outcome::Unknown, "nothing was measured".to_owned()),
    }
}

/// A collective is as fast as its slowest member: where a part of the domain is
/// found guilty, a low collective says nothing of the others.
fn is_collective(finding: &Finding) -> bool {
    traits_of(&finding.class).is_collective
}

/// A finding about a part of a node, or a node, that is guilty of something.
fn is_part(finding: &Finding) -> bool {
    let part = matches!(
        finding.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Pair
    );
    part && Outcome::Unknown < finding.outcome
}

/// Whether a finding about something larger, or a pair, keeps this node from passing.
pub(super) fn blocks_pass(finding: &Finding, domain: Option<&DomainName>, node: &NodeName) -> bool {
    // Who has, or may have, more neighbours than claimed works as claimed; how
    // far readings scatter is in what a node could have hidden.
    if traits_of(&finding.class).lets_pass {
        return false;
    }
    match finding.locus.kind {
        LocusKind::Domain | LocusKind::Plane | LocusKind::Instrument => {
            let is_anothers = finding.locus.node.as_ref().is_some_and(|own| own != node);
            domain.is_some() && finding.locus.domain.as_ref() == domain && !is_anothers
        }
        // A pair over the network has an end in another domain.
        LocusKind::Pair => {
            finding.locus.node.as_ref() == Some(node) || is_far_end_in(finding, node)
        }
        _ => false,
    }
}

/// The worst of all parts; nothing at all is unknown.
pub(super) fn worst_outcome<'f>(
    nodes: &[NodeVerdict],
    findings: impl IntoIterator<Item = &'f Finding>,
    unknown: &[UnknownEntry],
) -> Outcome {
    let parts = nodes.iter().map(|n| n.outcome).chain(findings.into_iter().map(|f| f.outcome));
    let unknown = (!unknown.is_empty()).then_some(Outcome::Unknown);
    parts.chain(unknown).max().unwrap_or(Outcome::Unknown)
}
