//! Whom repaired nodes are measured against: cleared nodes of their domain, and as
//! few as a second look takes.
//!
//! A partner loses time to somebody else's repair, and one that is not cleared
//! could be the bad end.

use std::collections::BTreeSet;

use super::before::Past;
use crate::act::certificate;
use crate::cli::config::Config;
use crate::coordinator;
use crate::gate::certificates;
use crate::model::claims::ClaimedDomain;
use crate::model::claims::Claims;
use crate::model::id::NodeName;

/// Who takes part, and where nobody does.
#[derive(Debug, Default)]
pub(super) struct Partners {
    pub(super) taken: Vec<NodeName>,
    pub(super) missing: Vec<String>,
}

/// The cleared partners of these nodes, at most so many for each domain.
pub(super) fn partners(
    config: &Config,
    fleet: &Claims,
    named: &BTreeSet<NodeName>,
    past: &Past,
    most: usize,
) -> Partners {
    let mut partners = Partners::default();
    if most == 0 {
        return partners;
    }
    let has = |domain: &&ClaimedDomain| domain.nodes.iter().any(|node| named.contains(node));
    for domain in fleet.domains.iter().filter(has) {
        // A node alone in its domain has nobody there to be measured with.
        let others: Vec<&NodeName> = domain.nodes.iter().collect();
        if others.len() < 2 {
            continue;
        }
        let cleared = |node: &&&NodeName| is_cleared(config, node, past);
        // Cleared ones among those named serve as well as any.
        let own = others.iter().filter(|node| named.contains(**node)).filter(cleared).count();
        let more: Vec<NodeName> = others
            .iter()
            .filter(|node| !named.contains(**node))
            .filter(cleared)
            .take(most.saturating_sub(own))
            .map(|node| (*node).clone())
            .collect();
        if own + more.len() == 0 {
            partners.missing.push(format!(
                "{}: no node of it holds a valid certificate or passed its last run, so its nodes \
                 are measured among themselves; --with-domain takes the others along",
                domain.name
            ));
        }
        partners.taken.extend(more);
    }
    partners
}

/// Whether a node is known to be good: by its last run, or a certificate that
/// counts and that no later run speaks against.
fn is_cleared(config: &Config, node: &NodeName, past: &Past) -> bool {
    match past.passed_last(node) {
        Some(passed) => passed,
        None => has_certificate(config, node),
    }
}

fn has_certificate(config: &Config, node: &NodeName) -> bool {
    let Some(gate) = &config.gate else { return false };
    let now = coordinator::now().as_second();
    match certificates::read(&gate.folder, node) {
        Ok(Some(certificate)) => certificate::spent(&certificate, now).is_none(),
        // One that cannot be read clears nobody.
        Ok(None) | Err(_) => false,
    }
}
