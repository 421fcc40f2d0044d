//! What a plan costs in time, as far as the probes' own estimates tell.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::{PlanRound, PlanStep};
use model::id::NodeName;

/// All readings of a step that are always taken, in seconds.
pub(super) fn estimate_step(step: &PlanStep) -> f64 {
    step.estimate_s * f64::from(step.readings)
}

/// From the start of a round to the end of its last step, in seconds, with
/// this many steps at the same time.
pub fn estimate_round(round: &PlanRound, parallel: usize) -> f64 {
    let places = parallel.clamp(1, round.steps.len().max(1));
    let mut free: BinaryHeap<Reverse<OrderedSeconds>> =
        vec![Reverse(OrderedSeconds(0.0)); places].into();
    for step in &round.steps {
        // Whoever is free first takes it.
        if let Some(mut first) = free.peek_mut() {
            first.0.0 += estimate_step(step);
        }
    }
    free.into_iter().map(|Reverse(OrderedSeconds(end))| end).fold(0.0, f64::max)
}

/// Seconds from the start of a round.
#[derive(Clone, Copy, Debug)]
struct OrderedSeconds(f64);

impl PartialEq for OrderedSeconds {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrderedSeconds {}

impl PartialOrd for OrderedSeconds {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedSeconds {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The whole of some rounds: from start to end, and taken from all nodes
/// together, both in seconds.
pub(super) fn estimate_all(rounds: &[PlanRound], parallel: usize) -> (f64, f64) {
    let elapsed = rounds.iter().map(|round| estimate_round(round, parallel)).sum();
    let taken = rounds.iter().map(estimate_node_seconds).sum();
    (elapsed, taken)
}

/// What a round takes from its nodes together. A node on several rails is
/// taken as long as the slowest of them.
fn estimate_node_seconds(round: &PlanRound) -> f64 {
    let mut places: HashMap<&NodeName, usize> = HashMap::new();
    // In the order in which they are named: sums of fractions depend on it.
    let mut taken: Vec<f64> = Vec::new();
    for (step, node) in round.steps.iter().flat_map(|s| s.nodes.iter().map(move |n| (s, n))) {
        let at = *places.entry(node).or_insert(taken.len());
        if at == taken.len() {
            taken.push(0.0);
        }
        taken[at] = taken[at].max(estimate_step(step));
    }
    taken.into_iter().sum()
}
