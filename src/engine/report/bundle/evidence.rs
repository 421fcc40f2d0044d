//! What speaks against a node and what speaks for it: findings, and cells by how the
//! judge marked them.

use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, Outcome, UnknownEntry};

use super::BundleCase;

/// One end of a cell: a node, and its GPU where it is one's.
pub(super) type EvidenceEnd = (NodeName, Option<u32>);

/// What was said of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeEvidence {
    /// Its verdict.
    pub(super) verdict: Option<NodeVerdict>,
    /// Findings whose part is this node, or in it.
    pub(super) against: Vec<Finding>,
    /// Findings about something larger that it belongs to.
    pub(super) larger: Vec<Finding>,
    /// What is not known of it.
    pub(super) unknown: Vec<UnknownEntry>,
    /// Cells of it that are not as expected: indices into the run's.
    pub(super) convict: Vec<usize>,
    /// Cells of it that are.
    pub(super) fine: Vec<usize>,
}

impl NodeEvidence {
    pub(super) fn from_case(case: &BundleCase) -> Self {
        let verdicts = &case.run.verdicts;
        let node = &case.node;
        let verdict = verdicts.nodes.iter().find(|it| it.node == *node).cloned();
        let domain = case.run.claims.domain_of(node).map(|it| &it.name);
        let leaf = case.run.claims.leaf_of(node).map(|it| it.name.as_str());
        let (against, others): (Vec<&Finding>, Vec<&Finding>) =
            verdicts.findings.iter().partition(|finding| accuses(&finding.locus, node));
        let is_larger = |finding: &&&Finding| {
            let locus = &finding.locus;
            let at_domain = domain.is_some() && locus.domain.as_ref() == domain;
            let at_leaf = leaf.is_some() && locus.leaf.as_deref() == leaf;
            locus.node.is_none() && (at_domain || at_leaf || locus.kind == LocusKind::Instrument)
        };
        let named = |text: &str| name_tokens(text).any(|word| node.matches_host(word));
        let mut sides = Self {
            verdict,
            against: against.into_iter().cloned().collect(),
            larger: others.iter().filter(is_larger).map(|it| (*it).clone()).collect(),
            unknown: verdicts
                .unknown
                .iter()
                .filter(|it| named(&it.what.to_string()))
                .cloned()
                .collect(),
            convict: Vec::new(),
            fine: Vec::new(),
        };
        for (at, cell) in case.run.cells.iter().enumerate() {
            if !touches(cell, node) {
                continue;
            }
            match cell.outcome {
                Outcome::Degraded | Outcome::Failed => sides.convict.push(at),
                Outcome::Pass => sides.fine.push(at),
                Outcome::Unknown => {}
            }
        }
        sides
    }

    /// GPUs that are blamed, in order; empty where the whole node is, or nothing.
    pub(super) fn blamed_gpus(&self) -> Vec<u32> {
        let mut gpus: Vec<u32> = self.against.iter().filter_map(|it| it.locus.gpu).collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus
    }

    /// Whether an end belongs to what is blamed: a blamed GPU, or the node where no
    /// single GPU is.
    pub(super) fn blames(&self, node: &NodeName, end: &EvidenceEnd) -> bool {
        let gpus = self.blamed_gpus();
        end.0 == *node && (gpus.is_empty() || end.1.is_some_and(|gpu| gpus.contains(&gpu)))
    }
}

/// Whether a finding's part is this node or in it.
fn accuses(locus: &Locus, node: &NodeName) -> bool {
    let peer = locus.peer.as_deref().map(|peer| peer.split_once(':').map_or(peer, |it| it.0));
    locus.node.as_ref() == Some(node) || peer == Some(node.as_str())
}

/// The words of a sentence that may be names of nodes, GPUs behind them cut off.
fn name_tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')))
}

/// Whether a cell has an end on this node.
pub(super) fn touches(cell: &MeasuredCell, node: &NodeName) -> bool {
    cell.src_node.as_ref() == Some(node) || cell.dst_node.as_ref() == Some(node)
}

/// Both ends of a cell, where both have a node.
pub(super) fn cell_ends(cell: &MeasuredCell) -> Option<(EvidenceEnd, EvidenceEnd)> {
    let src = (cell.src_node.clone()?, cell.src_gpu);
    let dst = (cell.dst_node.clone()?, cell.dst_gpu);
    Some((src, dst))
}
