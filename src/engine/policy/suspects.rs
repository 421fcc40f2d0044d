//! Groups findings by the node that they blame.
//!
//! Pure. A finding about a domain, plane, leaf, rail, pair or the instrument blames no node:
//! the nodes there are affected by the fault and do not cause it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use model::action::WithheldAction;
use model::claim_index::ClaimIndex;
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::verdict::{Finding, LocusKind, Outcome, Verdicts};

/// A node and the findings that blame it, worst first.
#[derive(Debug)]
pub(super) struct SuspectNode<'a> {
    pub node: &'a NodeName,
    /// The domain that claims it.
    pub domain: Option<&'a DomainName>,
    /// The findings against it; never empty.
    pub findings: Vec<&'a Finding>,
}

/// Groups findings by the node that they blame, the worst node first; findings that blame no node
/// are withheld.
pub(super) fn collect_suspects<'a>(
    verdicts: &'a Verdicts,
    claim_index: &ClaimIndex<'a>,
    withheld: &mut Vec<WithheldAction>,
) -> Vec<SuspectNode<'a>> {
    let mut by_node: BTreeMap<&NodeName, Vec<&Finding>> = BTreeMap::new();
    for finding in &verdicts.findings {
        if !matches!(finding.outcome, Outcome::Degraded | Outcome::Failed) {
            continue;
        }
        match accused_node(finding) {
            Ok(node) => by_node.entry(node).or_default().push(finding),
            Err(why) => {
                let what = format!("{} ({})", finding.locus, finding.class);
                withheld.push(WithheldAction::new(what, why));
            }
        }
    }
    let mut suspects: Vec<SuspectNode<'a>> = by_node
        .into_iter()
        .map(|(node, mut findings)| {
            findings.sort_by(|a, b| compare_severity(a, b));
            let domain = claim_index.domain_name_of(node);
            SuspectNode { node, domain, findings }
        })
        .collect();
    // The worst nodes are first to use the budget; names break ties.
    suspects
        .sort_by(|a, b| compare_severity(a.findings[0], b.findings[0]).then(a.node.cmp(b.node)));
    suspects
}

/// The worse of two findings comes first.
fn compare_severity(a: &Finding, b: &Finding) -> Ordering {
    let ratio = |f: &Finding| f.deciding_share().unwrap_or(0.0);
    b.outcome.cmp(&a.outcome).then(ratio(a).total_cmp(&ratio(b))).then_with(|| a.id.cmp(&b.id))
}

/// The node that a finding blames, or why it blames none.
pub(super) fn accused_node(finding: &Finding) -> Result<&NodeName, &'static str> {
    if finding.class == FindingClass::StaleClique {
        return Err(
            "the node is in its claimed domain and only its clique is stale; a drain does not \
             correct a label",
        );
    }
    match finding.locus.kind {
        LocusKind::Node | LocusKind::Gpu | LocusKind::Direction | LocusKind::Tray => {
            finding.locus.node.as_ref().ok_or("the finding names no node")
        }
        LocusKind::Pair => Err("either end of a pair may be faulty; a drain would be a guess"),
        // A node's own port of a rail belongs to the node; the rail as such is shared.
        LocusKind::Rail if finding.locus.node.is_some() => {
            finding.locus.node.as_ref().ok_or("the finding names no node")
        }
        LocusKind::Rail | LocusKind::Leaf | LocusKind::Plane | LocusKind::Domain => {
            Err("a shared part is faulty; draining the affected nodes repairs nothing")
        }
        LocusKind::Instrument => Err("the measurement itself is in doubt"),
    }
}
