//! Putting single tests into as few rounds as they need.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Step;

/// What a round has taken of its nodes.
#[derive(Debug, Default)]
struct Taken {
    steps: Vec<Step>,
    /// The nodes, for each rail.
    busy: BTreeSet<(Option<String>, String)>,
    /// Hosts that talk across leaves, for each rail and leaf.
    across: BTreeMap<(Option<String>, usize), usize>,
}

/// Rounds of these steps, in their order as far as possible. A node is in one
/// step of a round, over rails in one of each rail. `leaves` gives the leaves
/// of the two ends where a step goes from one leaf to another; `limit` hosts
/// of a leaf do so at the same time.
pub(super) fn pack(
    steps: Vec<Step>,
    limit: usize,
    leaves: impl Fn(&Step) -> Option<(usize, usize)>,
) -> Vec<Vec<Step>> {
    let mut rounds: Vec<Taken> = Vec::new();
    for step in steps {
        let ends = leaves(&step).map(|(a, b)| [a, b]).into_iter().flatten();
        let ends: Vec<(Option<String>, usize)> =
            ends.map(|leaf| (step.rail.clone(), leaf)).collect();
        let nodes: Vec<(Option<String>, String)> =
            step.nodes.iter().map(|node| (step.rail.clone(), node.to_string())).collect();
        let fits = |round: &Taken| {
            nodes.iter().all(|node| !round.busy.contains(node))
                && ends.iter().all(|end| round.across.get(end).copied().unwrap_or(0) < limit.max(1))
        };
        let at = rounds.iter().position(fits).unwrap_or_else(|| {
            rounds.push(Taken::default());
            rounds.len() - 1
        });
        let round = &mut rounds[at];
        round.busy.extend(nodes);
        for end in ends {
            *round.across.entry(end).or_default() += 1;
        }
        round.steps.push(step);
    }
    rounds.into_iter().map(|round| round.steps).collect()
}
