//! Statements about a node, and about something that it belongs to.

use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, UnknownEntry};

use super::BundleCase;

#[derive(Clone, Debug)]
pub(super) struct NodeEvidence {
    pub(super) verdict: Option<NodeVerdict>,
    /// Findings about this node or a part of it.
    pub(super) against: Vec<Finding>,
    /// Findings about something larger that contains it.
    pub(super) larger: Vec<Finding>,
    /// Unknowns about it.
    pub(super) unknown: Vec<UnknownEntry>,
    pub(super) notes: Vec<String>,
}

impl NodeEvidence {
    pub(super) fn from_case(case: &BundleCase) -> Self {
        let verdicts = &case.run.verdicts;
        let node = &case.node;
        let verdict = verdicts.nodes.iter().find(|it| it.node == *node).cloned();
        let domain = case.run.claims.domain_of(node).map(|it| &it.name);
        let leaf = case.run.claims.leaf_of(node).map(|it| it.name.as_str());
        let (against, others): (Vec<&Finding>, Vec<&Finding>) =
            verdicts.findings.iter().partition(|finding| blames(&finding.locus, node));
        let is_larger = |finding: &&&Finding| {
            let locus = &finding.locus;
            let at_domain = domain.is_some() && locus.domain.as_ref() == domain;
            let at_leaf = leaf.is_some() && locus.leaf.as_deref() == leaf;
            locus.node.is_none() && (at_domain || at_leaf || locus.kind == LocusKind::Instrument)
        };
        let named = |text: &str| name_tokens(text).any(|word| node.matches_host(word));
        Self {
            verdict,
            against: against.into_iter().cloned().collect(),
            larger: others.iter().filter(is_larger).map(|it| (*it).clone()).collect(),
            unknown: verdicts
                .unknown
                .iter()
                .filter(|it| named(&it.what.to_string()))
                .cloned()
                .collect(),
            notes: verdicts.notes.iter().filter(|it| named(it)).cloned().collect(),
        }
    }
}

/// Whether a finding's part is this node or in it.
fn blames(locus: &Locus, node: &NodeName) -> bool {
    let peer = locus.peer.as_deref().map(|peer| peer.split_once(':').map_or(peer, |it| it.0));
    locus.node.as_ref() == Some(node) || peer == Some(node.as_str())
}

/// The tokens of a sentence that may be names of nodes, without a GPU suffix.
fn name_tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')))
}

/// Whether a cell has an end on this node.
pub(super) fn touches(cell: &MeasuredCell, node: &NodeName) -> bool {
    cell.src_node.as_ref() == Some(node) || cell.dst_node.as_ref() == Some(node)
}
