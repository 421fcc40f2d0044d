//! Assumptions of jobs and frameworks, compared with the claims.

use std::collections::BTreeMap;

use super::context::ReconcileContext;
use super::messages::{count_of, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, JobAssumption};

/// The key by which a launcher groups Ray nodes of one domain (NeMo-RL `ray.sub`).
const NVLINK_DOMAIN: &str = "nvlink_domain";

/// The nodes of each domain that an assumption concerns: those of its job, or all nodes where the
/// job names none.
fn belief_domains<'v>(
    view: &'v ReconcileContext<'_>,
    belief: &'v JobAssumption,
) -> BTreeMap<usize, Vec<&'v NodeName>> {
    if belief.nodes.is_empty() {
        let all = view.placement.domains.iter().enumerate();
        return all.map(|(at, domain)| (at, domain.nodes.iter().collect())).collect();
    }
    let mut domains: BTreeMap<usize, Vec<&NodeName>> = BTreeMap::new();
    for node in &belief.nodes {
        if let Some(domain) = view.placement.domain_of(node) {
            domains.entry(domain).or_default().push(node);
        }
    }
    domains
}

/// Whether an assumption is a group of nodes that another check reports: most of it in one
/// rack-scale domain, so that only the few other nodes are wrong, or all of it in one clique that
/// a site divided into several blocks.
fn is_reported_as_group(
    view: &ReconcileContext<'_>,
    belief: &JobAssumption,
    parts: &BTreeMap<usize, Vec<&NodeName>>,
) -> bool {
    let all: usize = parts.values().map(Vec::len).sum();
    let most = |(at, nodes): (&usize, &Vec<&NodeName>)| {
        all < 2 * nodes.len() && nodes.len() < all && view.spans_nodes(*at) == Some(true)
    };
    let in_reach = || !belief.nodes.is_empty() && view.share_a_clique(&belief.nodes);
    belief.subject.contains(NVLINK_DOMAIN) && (parts.iter().any(most) || in_reach())
}

/// `belief-beyond-domain`: more ranks in one domain than it has GPUs.
pub(super) fn check_ranks_per_domain(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (source, belief) in all_beliefs(view) {
        let Some(ranks) = belief.ranks_per_domain.filter(|ranks| 1 < *ranks) else { continue };
        let mut small: Vec<(usize, usize)> = Vec::new();
        let mut known = 0;
        let parts = belief_domains(view, belief);
        if is_reported_as_group(view, belief, &parts) {
            continue;
        }
        for (at, nodes) in parts {
            let domain = &view.placement.domains[at];
            let Some(gpus) = domain.gpus_per_node.filter(|gpus| 0 < *gpus) else { continue };
            // GPUs of different nodes of a server platform share no NVLink domain.
            let together = if view.spans_nodes(at) == Some(false) { 1 } else { nodes.len() };
            known += 1;
            let gpus = together * gpus as usize;
            if gpus < ranks as usize {
                small.push((at, gpus));
            }
        }
        let Some((worst, gpus)) = small.iter().min_by_key(|(_, gpus)| *gpus) else { continue };
        // A job without node names may be placed where it fits.
        let certain = !belief.nodes.is_empty() || small.len() == known;
        let servers = small.iter().all(|(at, _)| view.spans_nodes(*at) == Some(false));
        let severity = match certain {
            // Launchers put the leaf switch under this key on servers.
            _ if servers && belief.subject.contains(NVLINK_DOMAIN) => DisagreementSeverity::Note,
            true => DisagreementSeverity::Contradiction,
            false => DisagreementSeverity::Doubt,
        };
        let names = list_some(small.iter().map(|(at, _)| view.domain_name(*at).as_str()));
        let of_job = if belief.nodes.is_empty() { "" } else { " for its nodes" };
        let summary = format!(
            "{} expects {ranks} ranks in one NVLink domain, but {names} {} at most {}{of_job}: \
             ranks beyond that are not reachable over NVLink",
            belief.subject,
            if small.len() == 1 { "has" } else { "have" },
            count_of(*gpus, "GPU")
        );
        let mut disagreement =
            new_disagreement(DisagreementClass::BeliefBeyondDomain, severity, summary)
                .in_domain(view.domain_name(*worst))
                .with_nodes(&belief.nodes)
                .with_side(view.source_side(
                    source,
                    belief.at.as_deref(),
                    ClaimBasis::Asserted,
                    belief.text.clone(),
                ))
                .with_remedy(
                    "set it to the number of GPUs in the smallest domain of the allocation, \
                or request whole segments",
                );
        let claim = view.claim_side(
            *worst,
            format!("{} in {}{of_job}", count_of(*gpus, "GPU"), view.domain_name(*worst)),
        );
        disagreement = claim.into_iter().fold(disagreement, Disagreement::with_side);
        found.push(disagreement);
    }
}

/// `belief-multi-node-nvlink`: a job expects NVLink between nodes where no domain has it, or does
/// not use it where domains have it.
pub(super) fn check_multi_node_nvlink(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (source, belief) in all_beliefs(view) {
        let wanted = belief.multi_node_nvlink.filter(|_| !belief.subject.contains(NVLINK_DOMAIN));
        let Some(wanted) = wanted else { continue };
        let here = belief_domains(view, belief);
        let spans: Vec<Option<bool>> = here.keys().map(|at| view.spans_nodes(*at)).collect();
        let has = |nodes: &Vec<&NodeName>| 1 < nodes.len();
        let (severity, expectation) = match wanted {
            true if !spans.is_empty() && spans.iter().all(|spans| *spans == Some(false)) => (
                DisagreementSeverity::Contradiction,
                "expects NVLink between nodes, but no claimed domain here has it",
            ),
            false if here.iter().any(|(at, n)| has(n) && view.spans_nodes(*at) == Some(true)) => (
                DisagreementSeverity::Note,
                "does not use NVLink between nodes, but claimed domains here have it",
            ),
            _ => continue,
        };
        let Some(first) = here.keys().next() else { continue };
        let disagreement = new_disagreement(
            DisagreementClass::BeliefMultiNodeNvlink,
            severity,
            format!("{} {expectation}", belief.subject),
        )
        .with_nodes(&belief.nodes)
        .with_side(view.source_side(
            source,
            belief.at.as_deref(),
            ClaimBasis::Asserted,
            belief.text.clone(),
        ))
        .with_remedy("set it according to the platform of these nodes");
        let claim = view.claim_side(*first, format!("{} as claimed", view.domain_name(*first)));
        found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
    }
}

fn all_beliefs<'v>(
    view: &'v ReconcileContext<'_>,
) -> impl Iterator<Item = (usize, &'v JobAssumption)> {
    view.reports
        .iter()
        .enumerate()
        .flat_map(|(at, report)| report.beliefs.iter().map(move |b| (at, b)))
}
