//! The verdict of every node, and of the whole case.
//!
//! Findings about a node or its parts make it degraded or failed. A fault of a domain, a plane or
//! the instrument keeps a node from passing and does not count against it. A slow pair has two
//! ends, and either may be the cause.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::traits_of;
use super::domain_recordings::DomainRecordings;
use super::finding_set::{FindingSet, LocusIndex, MeasuredBoundaries};
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::text::format_percent;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, Outcome, UnknownEntry};

/// The verdicts of all nodes of these domains, ordered by name.
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

/// Lists nodes without a known state as unknown subjects.
pub(super) fn list_unknown_nodes(nodes: &[NodeVerdict]) -> Vec<UnknownEntry> {
    let unknown = nodes.iter().filter(|n| n.outcome == Outcome::Unknown);
    unknown
        .map(|n| UnknownEntry { what: UnknownSubject::node(&n.node), why: n.reason.clone() })
        .collect()
}

/// Whether a finding blames this node, or a part of it, alone.
pub(super) fn blames(finding: &Finding, node: &NodeName) -> bool {
    let kind = matches!(
        finding.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Rail
    );
    let inside = finding.locus.kind == LocusKind::Pair && is_far_end_in(finding, node);
    (kind || inside) && finding.locus.node.as_ref() == Some(node)
}

fn is_against(finding: &Finding, domain: &DomainRecordings<'_>, node: &NodeName) -> bool {
    blames(finding, node) && finding.locus.domain.as_ref() == Some(&domain.name)
}

/// Worst first; the locus and the class break ties.
pub(super) fn severity_key(
    finding: &Finding,
) -> (std::cmp::Reverse<Outcome>, &Locus, &FindingClass) {
    (std::cmp::Reverse(finding.outcome), &finding.locus, &finding.class)
}

/// The reason of a passing node.
pub(super) const AS_EXPECTED: &str = "everything measured is as expected";

/// The same, plus the rail that could hide the largest loss.
fn pass_reason(inside: Option<f64>, over: Option<&(Option<String>, f64)>) -> String {
    match over {
        Some((Some(rail), most)) if inside.is_some_and(|inside| inside < *most) => {
            format!(
                "{AS_EXPECTED}; a loss of {} or more over {rail} would be detected",
                format_percent(*most)
            )
        }
        Some((None, most)) if inside.is_some_and(|inside| inside < *most) => {
            format!(
                "{AS_EXPECTED}; a loss of {} or more over the network would be detected",
                format_percent(*most)
            )
        }
        _ => AS_EXPECTED.to_owned(),
    }
}

/// Why a node does not pass because of a larger part, or of a pair.
pub(super) fn no_pass_reason(summary: &str) -> String {
    format!("no finding against this node, but {summary}")
}

/// Whether the far end of a pair (`node:gpu`, or the node itself) is in this node.
fn is_far_end_in(finding: &Finding, node: &NodeName) -> bool {
    let peer = finding.locus.peer.as_deref().unwrap_or("");
    peer == node.as_str() || peer.rsplit_once(':').is_some_and(|(n, _)| n == node.as_str())
}

/// Findings indexed by their locus: only few concern one node, or its domain as a whole.
#[derive(Debug, Default)]
pub(super) struct FindingsByLocus<'f> {
    findings: Vec<&'f Finding>,
    locus_index: LocusIndex,
    /// Findings of a domain that blame none of its nodes alone.
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

    /// Findings that name any of these nodes, and those about a whole domain, in the order they
    /// were found.
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

    pub(super) fn findings_of_domain(
        &self,
        domain: &DomainName,
    ) -> impl Iterator<Item = &'f Finding> {
        self.locus_index.of_domain(domain).iter().map(|at| self.findings[*at])
    }
}

/// Whether a finding concerns a domain, or its measurement, and no single node.
fn is_domain_wide(finding: &Finding) -> bool {
    let kind = finding.locus.kind;
    matches!(kind, LocusKind::Domain | LocusKind::Plane | LocusKind::Instrument)
        || finding.locus.node.is_none()
}

/// The verdict of a node, from the findings that name it or concern its whole domain; `explained`
/// means that part of the domain has its own finding.
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
    let verdict_with = |outcome, reason: String| NodeVerdict {
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
        return verdict_with(worst.outcome, format!("{}: {}{more}", worst.class, worst.summary));
    }
    if let Some(reasons) = ledger.doubts.get(node) {
        let more = reasons.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
        return verdict_with(Outcome::Unknown, format!("{}{more}", reasons[0]));
    }
    if let Some(doubt) = domain.doubts.first() {
        return verdict_with(Outcome::Unknown, doubt.why.clone());
    }
    let blocks = |f: &&&Finding| {
        blocks_pass(f, Some(&domain.name), node) && !(explained && is_collective(f))
    };
    let kept = |by: &Finding| NodeVerdict {
        kept_by: Some(by.id.clone()),
        ..verdict_with(Outcome::Unknown, no_pass_reason(&by.summary))
    };
    match (ledger.compared.get(node), findings.iter().find(blocks)) {
        (Some(true), Some(finding)) => kept(finding),
        (Some(true), None) => verdict_with(Outcome::Pass, pass_reason(inside, over)),
        // A pair without a connection is the reason.
        (None, Some(finding)) if finding.locus.kind == LocusKind::Pair => kept(finding),
        (Some(false), _) => verdict_with(Outcome::Unknown, "its level had no reference".to_owned()),
        (None, _) => verdict_with(Outcome::Unknown, "nothing was measured".to_owned()),
    }
}

/// A collective is as fast as its slowest member: once a part of the domain has a finding, a low
/// collective carries no information about the others.
fn is_collective(finding: &Finding) -> bool {
    traits_of(&finding.class).is_collective
}

/// A finding that blames a node, or a part of one.
fn is_part(finding: &Finding) -> bool {
    let part = matches!(
        finding.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Pair
    );
    part && Outcome::Unknown < finding.outcome
}

/// Whether a finding about a larger part, or a pair, keeps this node from passing.
pub(super) fn blocks_pass(finding: &Finding, domain: Option<&DomainName>, node: &NodeName) -> bool {
    // A node with more reachable peers than claimed works as claimed; the scatter of readings is
    // part of the node's detection limit.
    if traits_of(&finding.class).lets_pass {
        return false;
    }
    match finding.locus.kind {
        LocusKind::Domain | LocusKind::Plane | LocusKind::Instrument => {
            let is_of_other_node = finding.locus.node.as_ref().is_some_and(|own| own != node);
            domain.is_some() && finding.locus.domain.as_ref() == domain && !is_of_other_node
        }
        // A pair over the network has an end in another domain.
        LocusKind::Pair => {
            finding.locus.node.as_ref() == Some(node) || is_far_end_in(finding, node)
        }
        _ => false,
    }
}

/// The worst outcome of all parts; unknown for no parts.
pub(super) fn worst_outcome<'f>(
    nodes: &[NodeVerdict],
    findings: impl IntoIterator<Item = &'f Finding>,
    unknown: &[UnknownEntry],
) -> Outcome {
    let parts = nodes.iter().map(|n| n.outcome).chain(findings.into_iter().map(|f| f.outcome));
    let unknown = (!unknown.is_empty()).then_some(Outcome::Unknown);
    parts.chain(unknown).max().unwrap_or(Outcome::Unknown)
}
