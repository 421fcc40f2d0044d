//! `topo_rank`, by which a framework orders nodes.
//!
//! Ray drops resources of value 0, so such a node loses its rank; two nodes with the same rank
//! caused NCCL's "Duplicate GPU" (NeMo-RL, pull request 3178). A rank defines an order, not a
//! place.

use std::collections::{BTreeMap, BTreeSet};

use super::context::ReconcileContext;
use super::messages::{is_or_are, list_nodes, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, SourceReport};

/// Parses a rank; Ray writes whole numbers as `7.0`.
fn parse_rank(text: &str) -> Option<u64> {
    let text = text.trim();
    let whole = text.split_once('.').filter(|(_, rest)| rest.bytes().all(|b| b == b'0'));
    whole.map_or(text, |(whole, _)| whole).parse().ok()
}

fn ranked_sources<'s>(
    view: &ReconcileContext<'s>,
) -> impl Iterator<Item = (usize, &'s SourceReport)> {
    let reports: &'s [SourceReport] = view.reports;
    reports
        .iter()
        .enumerate()
        .filter(|(_, s)| s.nodes.values().any(|node| node.topo_rank.is_some()))
}

fn describe_rank_problem(
    view: &ReconcileContext<'_>,
    source: usize,
    class: DisagreementClass,
    severity: DisagreementSeverity,
    nodes: &[&NodeName],
    (summary, statement): (String, String),
) -> Disagreement {
    let disagreement = new_disagreement(class, severity, summary)
        .with_nodes(nodes.iter().copied())
        .with_side(view.source_side(source, Some("topo_rank"), ClaimBasis::Asserted, statement))
        .with_remedy("give every node a unique rank above 0, ascending within each domain");
    // In one domain only if all of them are.
    let domains: BTreeSet<Option<usize>> =
        nodes.iter().map(|node| view.placement.domain_of(node)).collect();
    match domains.first() {
        Some(Some(at)) if domains.len() == 1 => disagreement.in_domain(view.domain_name(*at)),
        _ => disagreement,
    }
}

/// `topo-rank-duplicate`: two nodes with the same rank.
pub(super) fn check_duplicate_ranks(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (source, report) in ranked_sources(view) {
        let mut ranks: BTreeMap<u64, Vec<&NodeName>> = BTreeMap::new();
        for (node, node_report) in &report.nodes {
            if let Some(rank) =
                node_report.topo_rank.as_deref().and_then(parse_rank).filter(|rank| 0 < *rank)
            {
                ranks.entry(rank).or_default().push(node);
            }
        }
        ranks.retain(|_, nodes| 1 < nodes.len());
        if ranks.is_empty() {
            continue;
        }
        let nodes: Vec<&NodeName> = ranks.values().flatten().copied().collect();
        let pairs = ranks
            .iter()
            .map(|(rank, nodes)| format!("{rank} on {}", list_nodes(nodes.iter().copied())));
        let pairs = list_some(pairs);
        let summary = format!(
            "topo_rank is not unique by {}: {pairs}; ranks of a job collide",
            report.source.kind.label()
        );
        let severity = DisagreementSeverity::Contradiction;
        found.push(describe_rank_problem(
            view,
            source,
            DisagreementClass::TopoRankDuplicate,
            severity,
            &nodes,
            (summary, pairs),
        ));
    }
}

/// `topo-rank-unusable`: 0 or not a number; `topo-rank-missing`: absent, where other nodes have
/// one.
pub(super) fn check_unusable_ranks(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (source, report) in ranked_sources(view) {
        let mut bad: Vec<(&NodeName, &str)> = Vec::new();
        let mut missing: Vec<&NodeName> = Vec::new();
        for (node, node_report) in &report.nodes {
            match node_report.topo_rank.as_deref() {
                // A head node without GPUs runs no rank.
                None if node_report.gpus.is_some_and(|gpus| 0 < gpus) => missing.push(node),
                None => {}
                Some(text) if parse_rank(text).is_none_or(|rank| rank == 0) => {
                    bad.push((node, text));
                }
                Some(_) => {}
            }
        }
        let label = report.source.kind.label();
        if !bad.is_empty() {
            let statement = list_some(bad.iter().map(|(node, text)| format!("{text:?} on {node}")));
            let nodes: Vec<&NodeName> = bad.iter().map(|(node, _)| *node).collect();
            let summary = format!(
                "topo_rank of {} {} no rank by {label}: {statement}; Ray drops a 0, and a \
                non-numeric value has no order",
                list_nodes(nodes.iter().copied()),
                is_or_are(nodes.len())
            );
            let severity = DisagreementSeverity::Contradiction;
            found.push(describe_rank_problem(
                view,
                source,
                DisagreementClass::TopoRankUnusable,
                severity,
                &nodes,
                (summary, statement),
            ));
        }
        if !missing.is_empty() {
            let names = list_nodes(missing.iter().copied());
            let summary = format!(
                "{names} {} no topo_rank by {label}, but others have one: Ray silently drops a 0",
                if missing.len() == 1 { "has" } else { "have" }
            );
            let texts = (summary, format!("no topo_rank for {names}"));
            found.push(describe_rank_problem(
                view,
                source,
                DisagreementClass::TopoRankMissing,
                DisagreementSeverity::Doubt,
                &missing,
                texts,
            ));
        }
    }
}

/// Domains that are split into several pieces in this order, and the nodes outside the largest
/// piece.
fn find_split_domains<'s>(
    ranks: &[(u64, usize, &'s NodeName)],
) -> (BTreeSet<usize>, Vec<&'s NodeName>) {
    let mut runs: Vec<(usize, Vec<&NodeName>)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut torn = BTreeSet::new();
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, domain, node) in ranks {
        *sizes.entry(*domain).or_default() += 1;
        match runs.last_mut() {
            Some((last, nodes)) if last == domain => nodes.push(node),
            _ => {
                if !seen.insert(*domain) {
                    torn.insert(*domain);
                }
                runs.push((*domain, vec![node]));
            }
        }
    }
    let mut apart = Vec::new();
    // A few nodes between two larger pieces of another domain only interrupt it; its pieces are
    // in the right place.
    let mut merged: Vec<(usize, Vec<&NodeName>)> = Vec::new();
    for run in runs {
        if let [.., (before, larger), (_, few)] = &merged[..]
            && *before == run.0
            && few.len() < larger.len().min(run.1.len())
        {
            apart.extend(merged.pop().map(|(_, few)| few).into_iter().flatten());
            if let Some((_, larger)) = merged.last_mut() {
                larger.extend(run.1);
            }
        } else {
            merged.push(run);
        }
    }
    // A piece with most of its domain is in the right place.
    let is_most = |domain: &usize, nodes: &[&NodeName]| sizes[domain] < 2 * nodes.len();
    let others = merged.into_iter().filter(|(domain, nodes)| !is_most(domain, nodes));
    apart.extend(others.flat_map(|(_, nodes)| nodes));
    (torn, apart)
}

/// `topo-rank-order`: domains that interleave, or an order within a domain that differs from the
/// claim.
pub(super) fn check_rank_order(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (source, report) in ranked_sources(view) {
        let mut ranks: Vec<(u64, usize, &NodeName)> = Vec::new();
        for (node, node_report) in &report.nodes {
            if let (Some(rank), Some(domain)) = (
                node_report.topo_rank.as_deref().and_then(parse_rank),
                view.placement.domain_of(node),
            ) {
                ranks.push((rank, domain, node));
            }
        }
        ranks.sort_unstable();
        let (torn, nodes) = find_split_domains(&ranks);
        let label = report.source.kind.label();
        if let Some(torn_first) = torn.first().copied() {
            let names = list_some(torn.iter().map(|at| view.domain_name(*at).as_str()));
            let summary = format!(
                "in the order of topo_rank by {label}, {names} {} in several pieces, because of \
                 the ranks of {}: adjacent ranks are not adjacent in NVLink",
                if torn.len() == 1 { "comes" } else { "come" },
                list_nodes(nodes.iter().copied())
            );
            let statement =
                format!("{} separated from their domain", list_nodes(nodes.iter().copied()));
            let disagreement = describe_rank_problem(
                view,
                source,
                DisagreementClass::TopoRankOrder,
                DisagreementSeverity::Doubt,
                &nodes,
                (summary, statement),
            );
            let statement = format!("{} is one domain", view.domain_name(torn_first));
            let claim = view.claim_side(torn_first, statement);
            found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
        }
        let by_node: BTreeMap<&NodeName, u64> =
            ranks.iter().map(|(rank, _, node)| (*node, *rank)).collect();
        let ranked: BTreeSet<usize> = ranks.iter().map(|(_, domain, _)| *domain).collect();
        let turned: Vec<usize> = ranked
            .into_iter()
            .filter(|at| !torn.contains(at))
            .filter(|at| {
                let nodes = &view.placement.domains[*at].nodes;
                let ranks: Vec<u64> =
                    nodes.iter().filter_map(|n| by_node.get(n).copied()).collect();
                !ranks.is_sorted()
            })
            .collect();
        if !turned.is_empty() {
            let names = list_some(turned.iter().map(|at| view.domain_name(*at).as_str()));
            let nodes: Vec<&NodeName> =
                turned.iter().flat_map(|at| &view.placement.domains[*at].nodes).collect();
            let summary = format!(
                "topo_rank by {label} does not follow the order in which the nodes of {names} are \
                claimed"
            );
            let statement = "another order within the domain".to_owned();
            found.push(describe_rank_problem(
                view,
                source,
                DisagreementClass::TopoRankOrder,
                DisagreementSeverity::Note,
                &nodes,
                (summary, statement),
            ));
        }
    }
}
