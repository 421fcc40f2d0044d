//! Packs single tests into as few rounds as possible.

use std::collections::{BTreeMap, BTreeSet};

use super::PlanStep;

/// The occupied nodes of a round.
#[derive(Debug, Default)]
struct RoundOccupancy {
    steps: Vec<PlanStep>,
    /// The busy nodes, for each rail.
    busy: BTreeSet<(Option<String>, String)>,
    /// Hosts that send across leaves, for each rail and leaf.
    cross_leaf_hosts: BTreeMap<(Option<String>, usize), usize>,
}

/// Packs these steps into rounds, in order as far as possible. A node is in one step of a round;
/// over rails, in one per rail. `leaves` returns the leaves of the two ends of a step across
/// leaves; at most `limit` hosts of a leaf send across leaves concurrently.
pub(super) fn pack_rounds(
    steps: Vec<PlanStep>,
    limit: usize,
    leaves: impl Fn(&PlanStep) -> Option<(usize, usize)>,
) -> Vec<Vec<PlanStep>> {
    let mut rounds: Vec<RoundOccupancy> = Vec::new();
    // Earlier rounds have no free slot for a node, or for a host that leaves its leaf.
    let mut of_nodes: BTreeMap<(Option<String>, String), usize> = BTreeMap::new();
    let mut of_leaves: BTreeMap<(Option<String>, usize), usize> = BTreeMap::new();
    let limit = limit.max(1);
    for step in steps {
        let ends = leaves(&step).map(|(a, b)| [a, b]).into_iter().flatten();
        let ends: Vec<(Option<String>, usize)> =
            ends.map(|leaf| (step.rail.clone(), leaf)).collect();
        let nodes: Vec<(Option<String>, String)> =
            step.nodes.iter().map(|node| (step.rail.clone(), node.to_string())).collect();
        let fits = |round: &RoundOccupancy| {
            nodes.iter().all(|node| !round.busy.contains(node))
                && ends
                    .iter()
                    .all(|end| round.cross_leaf_hosts.get(end).copied().unwrap_or(0) < limit)
        };
        let first = nodes.iter().filter_map(|node| of_nodes.get(node));
        let first = first.chain(ends.iter().filter_map(|end| of_leaves.get(end))).max();
        let first = first.copied().unwrap_or(0);
        let at = rounds.iter().skip(first).position(fits).map_or(rounds.len(), |at| first + at);
        if at == rounds.len() {
            rounds.push(RoundOccupancy::default());
        }
        let round = &mut rounds[at];
        round.busy.extend(nodes.iter().cloned());
        for end in &ends {
            *round.cross_leaf_hosts.entry(end.clone()).or_default() += 1;
        }
        round.steps.push(step);
        for node in nodes {
            let first = of_nodes.entry(node.clone()).or_default();
            *first += rounds.iter().skip(*first).take_while(|it| it.busy.contains(&node)).count();
        }
        for end in ends {
            let first = of_leaves.entry(end.clone()).or_default();
            let is_full = |it: &&RoundOccupancy| {
                it.cross_leaf_hosts.get(&end).is_some_and(|hosts| limit <= *hosts)
            };
            *first += rounds.iter().skip(*first).take_while(is_full).count();
        }
    }
    rounds.into_iter().map(|round| round.steps).collect()
}
