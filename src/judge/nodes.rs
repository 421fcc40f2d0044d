//! The verdict of every node, and of the whole case.
//!
//! A node is degraded or failed by findings about itself or its parts. What is
//! wrong with a domain, a plane or the instrument keeps a node from passing
//! and says nothing against it. A slow pair has two ends and either may be it.

use super::arrange::Domain;
use super::ledger::Ledger;
use crate::model::id::NodeName;
use crate::model::verdict::Finding;
use crate::model::verdict::LocusKind;
use crate::model::verdict::NodeVerdict;
use crate::model::verdict::Outcome;
use crate::model::verdict::Unknown;

/// The verdicts of all nodes of these domains, in order of name.
pub(super) fn verdicts(domains: &[Domain<'_>], ledger: &Ledger) -> Vec<NodeVerdict> {
    let mut nodes: Vec<NodeVerdict> =
        domains.iter().flat_map(|d| d.nodes.iter().map(|n| verdict(d, n, ledger))).collect();
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    nodes
}

/// The nodes of which nothing is known, as things that are not known.
pub(super) fn unknown(nodes: &[NodeVerdict]) -> Vec<Unknown> {
    let unknown = nodes.iter().filter(|n| n.outcome == Outcome::Unknown);
    unknown.map(|n| Unknown { what: format!("node {}", n.node), why: n.reason.clone() }).collect()
}

/// Whether a finding is about this node or a part of it alone.
fn is_against(finding: &Finding, domain: &Domain<'_>, node: &NodeName) -> bool {
    let kind = matches!(
        finding.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Rail
    );
    let inside = finding.locus.kind == LocusKind::Pair && is_inside(finding, node);
    (kind || inside)
        && finding.locus.node.as_ref() == Some(node)
        && finding.locus.domain.as_ref() == Some(&domain.name)
}

/// The far end of a pair sits in this node: `node:gpu`, or the node itself.
fn is_inside(finding: &Finding, node: &NodeName) -> bool {
    let peer = finding.locus.peer.as_deref().unwrap_or("");
    peer == node.as_str() || peer.rsplit_once(':').is_some_and(|(n, _)| n == node.as_str())
}

fn verdict(domain: &Domain<'_>, node: &NodeName, ledger: &Ledger) -> NodeVerdict {
    let detectable = ledger.detectable.get(node).copied().map(super::finding::round);
    let say = |outcome, reason: String| NodeVerdict {
        node: node.clone(),
        domain: Some(domain.name.clone()),
        outcome,
        reason,
        detectable,
    };
    let against: Vec<&Finding> =
        ledger.findings.iter().filter(|f| is_against(f, domain, node)).collect();
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
    let explained = ledger.findings.iter().any(|f| is_part(f) && in_domain(f, domain));
    let touched = |f: &&Finding| touches(f, domain, node) && !(explained && is_collective(f));
    if let Some(finding) = ledger.findings.iter().find(touched) {
        return say(Outcome::Unknown, format!("nothing against it, but {}", finding.summary));
    }
    match ledger.compared.get(node) {
        Some(true) => say(Outcome::Pass, "everything measured is as expected".to_owned()),
        Some(false) => say(Outcome::Unknown, "its level was compared with nothing".to_owned()),
        None => say(Outcome::Unknown, "nothing was measured".to_owned()),
    }
}

/// A collective is as fast as its slowest member: where a part of the domain is
/// found guilty, a low collective says nothing of the others.
fn is_collective(finding: &Finding) -> bool {
    finding.class.starts_with("collective-")
}

fn in_domain(finding: &Finding, domain: &Domain<'_>) -> bool {
    finding.locus.domain.as_ref() == Some(&domain.name)
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
fn touches(finding: &Finding, domain: &Domain<'_>, node: &NodeName) -> bool {
    match finding.locus.kind {
        LocusKind::Domain | LocusKind::Plane | LocusKind::Instrument => in_domain(finding, domain),
        // A pair over the network has an end in another domain.
        LocusKind::Pair => finding.locus.node.as_ref() == Some(node) || is_inside(finding, node),
        _ => false,
    }
}

/// The worst of all parts; nothing at all is unknown.
pub(super) fn overall(nodes: &[NodeVerdict], ledger: &Ledger) -> Outcome {
    let parts = nodes.iter().map(|n| n.outcome).chain(ledger.findings.iter().map(|f| f.outcome));
    let unknown = (!ledger.unknown.is_empty()).then_some(Outcome::Unknown);
    parts.chain(unknown).max().unwrap_or(Outcome::Unknown)
}
