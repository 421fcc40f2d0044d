//! `topo_rank`, by which a framework puts nodes in order.
//!
//! Ray drops resources of value 0, so such a node loses its rank; two nodes of
//! one rank were seen to end in NCCL's "Duplicate GPU" (NeMo-RL, pull request
//! 3178). A rank says an order, not a place.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::view::View;
use super::words::disagreement;
use super::words::is;
use super::words::listed;
use super::words::some;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;
use model::said::Said;

/// A rank as it is written; Ray writes whole numbers as `7.0`.
fn rank(text: &str) -> Option<u64> {
    let text = text.trim();
    let whole = text.split_once('.').filter(|(_, rest)| rest.bytes().all(|b| b == b'0'));
    whole.map_or(text, |(whole, _)| whole).parse().ok()
}

/// The sources that give ranks.
fn ranked<'s>(view: &View<'s>) -> impl Iterator<Item = (usize, &'s Said)> {
    let said: &'s [Said] = view.said;
    said.iter().enumerate().filter(|(_, s)| s.nodes.values().any(|node| node.topo_rank.is_some()))
}

fn tell(
    view: &View<'_>,
    source: usize,
    class: DisagreementClass,
    severity: Severity,
    nodes: &[&NodeName],
    (summary, says): (String, String),
) -> Disagreement {
    let told = disagreement(class, severity, summary)
        .about(nodes.iter().copied())
        .side(view.source(source, Some("topo_rank"), Basis::Asserted, says))
        .remedy("give every node a rank of its own above 0, ascending along each domain");
    // In one domain only where all of them are.
    let domains: BTreeSet<Option<usize>> = nodes.iter().map(|node| view.placed.of(node)).collect();
    match domains.first() {
        Some(Some(at)) if domains.len() == 1 => told.in_domain(view.domain(*at)),
        _ => told,
    }
}

/// `topo-rank-duplicate`: two nodes of one rank.
pub(super) fn duplicates(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (source, said) in ranked(view) {
        let mut ranks: BTreeMap<u64, Vec<&NodeName>> = BTreeMap::new();
        for (node, words) in &said.nodes {
            if let Some(rank) = words.topo_rank.as_deref().and_then(rank).filter(|rank| 0 < *rank) {
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
            .map(|(rank, nodes)| format!("{rank} on {}", listed(nodes.iter().copied())));
        let pairs = some(pairs);
        let summary = format!(
            "topo_rank is not unique by {}: {pairs}; ranks of a job fall onto each other",
            said.source.kind.words()
        );
        let severity = Severity::Contradiction;
        found.push(tell(
            view,
            source,
            DisagreementClass::TopoRankDuplicate,
            severity,
            &nodes,
            (summary, pairs),
        ));
    }
}

/// `topo-rank-unusable`: 0 or no number; `topo-rank-missing`: none, where
/// others have one.
pub(super) fn unusable(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (source, said) in ranked(view) {
        let mut bad: Vec<(&NodeName, &str)> = Vec::new();
        let mut missing: Vec<&NodeName> = Vec::new();
        for (node, words) in &said.nodes {
            match words.topo_rank.as_deref() {
                // A head without GPUs runs no rank.
                None if words.gpus.is_some_and(|gpus| 0 < gpus) => missing.push(node),
                None => {}
                Some(text) if rank(text).is_none_or(|rank| rank == 0) => bad.push((node, text)),
                Some(_) => {}
            }
        }
        let who = said.source.kind.words();
        if !bad.is_empty() {
            let says = some(bad.iter().map(|(node, text)| format!("{text:?} on {node}")));
            let nodes: Vec<&NodeName> = bad.iter().map(|(node, _)| *node).collect();
            let summary = format!(
                "topo_rank of {} {} no rank by {who}: {says}; Ray drops a 0, and what is no number has no order",
                listed(nodes.iter().copied()),
                is(nodes.len())
            );
            let severity = Severity::Contradiction;
            found.push(tell(
                view,
                source,
                DisagreementClass::TopoRankUnusable,
                severity,
                &nodes,
                (summary, says),
            ));
        }
        if !missing.is_empty() {
            let names = listed(missing.iter().copied());
            let summary = format!(
                "{names} {} no topo_rank by {who}, others have one: a 0 is dropped without a word",
                if missing.len() == 1 { "has" } else { "have" }
            );
            let words = (summary, format!("no topo_rank for {names}"));
            found.push(tell(
                view,
                source,
                DisagreementClass::TopoRankMissing,
                Severity::Doubt,
                &missing,
                words,
            ));
        }
    }
}

/// Domains that come in several pieces in this order, and the nodes that are
/// apart from the piece with most of theirs.
fn pieces<'s>(ranks: &[(u64, usize, &'s NodeName)]) -> (BTreeSet<usize>, Vec<&'s NodeName>) {
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
    // A few nodes between two larger pieces of another domain interrupt it; its
    // pieces are where they belong.
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
    // A piece with most of its domain is where that domain is.
    let is_most = |domain: &usize, nodes: &[&NodeName]| sizes[domain] < 2 * nodes.len();
    let others = merged.into_iter().filter(|(domain, nodes)| !is_most(domain, nodes));
    apart.extend(others.flat_map(|(_, nodes)| nodes));
    (torn, apart)
}

/// `topo-rank-order`: domains that take turns, or an order within a domain that
/// is not the claim's.
pub(super) fn order(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (source, said) in ranked(view) {
        let mut ranks: Vec<(u64, usize, &NodeName)> = Vec::new();
        for (node, words) in &said.nodes {
            if let (Some(rank), Some(domain)) =
                (words.topo_rank.as_deref().and_then(rank), view.placed.of(node))
            {
                ranks.push((rank, domain, node));
            }
        }
        ranks.sort_unstable();
        let (torn, nodes) = pieces(&ranks);
        let who = said.source.kind.words();
        if let Some(torn_first) = torn.first().copied() {
            let names = some(torn.iter().map(|at| view.domain(*at).as_str()));
            let summary = format!(
                "in the order of topo_rank by {who}, {names} {} in several pieces, by the ranks of {}: neighbours \
                 in rank are not neighbours in NVLink",
                if torn.len() == 1 { "comes" } else { "come" },
                listed(nodes.iter().copied())
            );
            let says = format!("{} apart from their domain", listed(nodes.iter().copied()));
            let told = tell(
                view,
                source,
                DisagreementClass::TopoRankOrder,
                Severity::Doubt,
                &nodes,
                (summary, says),
            );
            let says = format!("{} is one domain", view.domain(torn_first));
            let claim = view.claim(torn_first, says);
            found.push(claim.into_iter().fold(told, Disagreement::side));
        }
        let by_node: BTreeMap<&NodeName, u64> =
            ranks.iter().map(|(rank, _, node)| (*node, *rank)).collect();
        let ranked: BTreeSet<usize> = ranks.iter().map(|(_, domain, _)| *domain).collect();
        let turned: Vec<usize> = ranked
            .into_iter()
            .filter(|at| !torn.contains(at))
            .filter(|at| {
                let nodes = &view.placed.domains[*at].nodes;
                let ranks: Vec<u64> =
                    nodes.iter().filter_map(|n| by_node.get(n).copied()).collect();
                !ranks.is_sorted()
            })
            .collect();
        if !turned.is_empty() {
            let names = some(turned.iter().map(|at| view.domain(*at).as_str()));
            let nodes: Vec<&NodeName> =
                turned.iter().flat_map(|at| &view.placed.domains[*at].nodes).collect();
            let summary = format!(
                "topo_rank by {who} does not follow the order in which the nodes of {names} are claimed"
            );
            let says = "another order within the domain".to_owned();
            found.push(tell(
                view,
                source,
                DisagreementClass::TopoRankOrder,
                Severity::Note,
                &nodes,
                (summary, says),
            ));
        }
    }
}
