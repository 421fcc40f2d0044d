//! Which nodes belong in another block, by the measurements of a run.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::class_actions::MeasuredGroups;
use model::action::WithheldAction;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::verdict::{LocusKind, Verdicts};

/// Slurm's name for the one topology of a `topology.conf`.
pub(super) const OF_CONF: &str = "default";

/// The block that the verdicts ask for, by node. A node moves only if a confirmed finding shows
/// that it is not in its claimed domain, and a run measured it with nodes of one other domain and
/// with none of its own. A node outside one domain is not necessarily inside another.
pub fn asked(verdicts: &Verdicts, fleet: &Claims) -> (BTreeMap<NodeName, String>, Vec<NotMoved>) {
    let mut moves: BTreeMap<NodeName, String> = BTreeMap::new();
    let mut withheld = Vec::new();
    let met = MeasuredGroups::from_claims(fleet);
    for finding in
        verdicts.findings.iter().filter(|finding| finding.class == FindingClass::WrongDomain)
    {
        let locus = &finding.locus;
        let node = locus.node.as_ref().filter(|_| locus.kind == LocusKind::Node);
        match place(node, finding.confirmed, &met) {
            Ok((node, domain)) => {
                moves.insert(node.clone(), domain.to_string());
            }
            Err(why) => withheld.push(NotMoved {
                node: node.cloned(),
                withheld: WithheldAction::new(locus.to_string(), why),
            }),
        }
    }
    (moves, withheld)
}

/// A finding about a wrong domain that moves no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMoved {
    /// The node in the wrong domain, if known.
    pub node: Option<NodeName>,
    /// The finding's subject, and why it moves nothing.
    pub withheld: WithheldAction,
}

/// The domain in which a misplaced node was measured.
fn place<'f>(
    node: Option<&'f NodeName>,
    confirmed: bool,
    met: &MeasuredGroups<'f>,
) -> Result<(&'f NodeName, &'f DomainName), String> {
    let node = node.ok_or("it is unknown which of the two nodes is in the wrong domain")?;
    if !confirmed {
        return Err("no second measurement confirmed it".to_owned());
    }
    let at_home = |it: &NodeName| it != node && met.is_home_of(node, it);
    let seen = met.groups_elsewhere(node).into_iter();
    let seen = seen.filter(|(assertion, _)| !assertion.group.nodes.iter().any(at_home));
    let seen: BTreeSet<&DomainName> = seen.map(|(_, domain)| &domain.name).collect();
    match Vec::from_iter(seen).as_slice() {
        [domain] => Ok((node, *domain)),
        [] => {
            Err("no run measured it with nodes of another domain, so its block is unknown"
                .to_owned())
        }
        several => {
            let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(format!("it was measured with nodes of several domains: {}", names.join(", ")))
        }
    }
}
