//! The time that a plan takes, estimated from the probes' own figures.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::{PlanRound, PlanStep};
use model::id::NodeName;

/// The fixed readings of a step, in seconds.
pub(super) fn estimate_step(step: &PlanStep) -> f64 {
    step.estimate_s * f64::from(step.readings)
}

/// Time from the start of a round to the end of its last step, in seconds, with this many
/// concurrent steps.
pub fn estimate_round(round: &PlanRound, parallel: usize) -> f64 {
    let places = parallel.clamp(1, round.steps.len().max(1));
    let mut free: BinaryHeap<Reverse<OrderedSeconds>> =
        vec![Reverse(OrderedSeconds(0.0)); places].into();
    for step in &round.steps {
        // The first free slot takes the next step.
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

/// The total of several rounds: elapsed time, and node time summed over all nodes, both in seconds.
pub(super) fn estimate_all(rounds: &[PlanRound], parallel: usize) -> (f64, f64) {
    let elapsed = rounds.iter().map(|round| estimate_round(round, parallel)).sum();
    let taken = rounds.iter().map(estimate_node_seconds).sum();
    (elapsed, taken)
}

/// The node time of a round. A node on several rails is busy as long as its slowest rail.
fn estimate_node_seconds(round: &PlanRound) -> f64 {
    let mut places: HashMap<&NodeName, usize> = HashMap::new();
    // In listed order: the sum of fractions depends on it.
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
