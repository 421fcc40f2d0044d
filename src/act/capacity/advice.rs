//! Which segments leave the most nodes, and what to do about one more suspect.

use super::Outages;
use super::loss;
use super::usable;

/// Segments of a domain in the order of what they leave.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Segments and expected usable nodes, most first. Where two leave as many,
    /// the larger one is first: it is worth more to a job.
    pub order: Vec<(u32, f64)>,
}

impl Ranking {
    /// What leaves the most.
    pub fn best(&self) -> Option<(u32, f64)> {
        self.order.first().copied()
    }

    /// What leaves the most of the others.
    pub fn runner_up(&self) -> Option<(u32, f64)> {
        self.order.get(1).copied()
    }
}

/// Differences in nodes that are none.
const EQUAL: f64 = 1e-9;

/// Ranks those of `segments` that have at least this many nodes and fit. Small
/// segments leave more, so that the question is only one among those that are
/// large enough for a job.
pub fn rank(outages: &Outages, segments: &[u32], at_least: u32) -> Ranking {
    let fit = |segment: &u32| at_least.max(1) <= *segment && *segment <= outages.nodes();
    let mut sizes: Vec<u32> = segments.iter().copied().filter(fit).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    let mut order: Vec<(u32, f64)> = Vec::new();
    for segment in sizes {
        let leaves = outages.usable(segment);
        let at = order.iter().position(|(_, other)| *other + EQUAL < leaves);
        order.insert(at.unwrap_or(order.len()), (segment, leaves));
    }
    Ranking { order }
}

/// The unavailabilities, up to one half, at which two segments leave as many
/// nodes and change places, in order.
pub fn crossings(nodes: u32, out: u32, one: u32, other: u32) -> Vec<f64> {
    /// Steps up to one half: finer than the distance of two changes of place
    /// in any domain of up to 72 nodes.
    const STEPS: u32 = 500;
    let ahead =
        |unavailable| usable(nodes, out, one, unavailable) - usable(nodes, out, other, unavailable);
    let mut found = Vec::new();
    let mut last: Option<(f64, f64)> = None;
    for step in 0..=STEPS {
        let at = f64::from(step) / f64::from(2 * STEPS);
        let here = ahead(at);
        // Neither is ahead, or nothing is known: no side to change.
        if here.is_nan() || here.abs() <= EQUAL {
            continue;
        }
        if let Some((before, side)) = last
            && (side < 0.0) != (here < 0.0)
        {
            found.push(between(before, at, side, &ahead));
        }
        last = Some((at, here));
    }
    found
}

/// Where a function that has this sign at `low` changes it.
fn between(mut low: f64, mut high: f64, side: f64, of: &impl Fn(f64) -> f64) -> f64 {
    // Forty halvings of a thousandth are below what a number can hold.
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if (of(middle) < 0.0) == (side < 0.0) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// What can be done about a suspect that a gang runs on, where a milder one is
/// drained already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Drain it too.
    Drain,
    /// Drain it, and give back the mildest of those that are out.
    Swap,
    /// Leave it in service, and say so on it.
    Keep,
}

/// What each of the remedies costs, in nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One more drain.
    pub drain: f64,
    /// The mildest back in the gang; nothing where none is out that could be
    /// given back.
    pub swap: Option<f64>,
    /// The suspect stays in the gang.
    pub keep: f64,
}

impl Costs {
    /// Of a drain at this price, for gangs of this many nodes: what the suspect
    /// and the mildest of those drained have lost of their rate, and the share of
    /// a step that waits for it.
    pub fn of(price: f64, gang: f64, suspect: f64, mildest: Option<f64>, exposed: f64) -> Self {
        Self {
            drain: price,
            swap: mildest.map(|mildest| loss(gang, mildest, exposed)),
            keep: loss(gang, suspect, exposed),
        }
    }

    /// The cheapest; nothing where a price is not known. What costs the same is
    /// decided for what changes less: keep, then swap, then drain.
    pub fn cheapest(&self) -> Option<(Remedy, f64)> {
        let mut best = (Remedy::Keep, self.keep);
        if self.keep.is_nan() || self.drain.is_nan() || self.swap.is_some_and(f64::is_nan) {
            return None;
        }
        for (remedy, cost) in [(Remedy::Swap, self.swap), (Remedy::Drain, Some(self.drain))] {
            if let Some(cost) = cost.filter(|cost| *cost < best.1) {
                best = (remedy, cost);
            }
        }
        Some(best)
    }
}
