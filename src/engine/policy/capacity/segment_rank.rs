//! Ranks segments by the nodes that they leave schedulable.

use super::{Outages, usable_nodes};

/// Segments of a domain, ordered by the nodes that they leave.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRanking {
    /// Segments and expected usable nodes, most nodes first. Of two segments that leave the
    /// same number, the larger one is first: it is worth more to a job.
    pub order: Vec<(u32, f64)>,
}

impl SegmentRanking {
    /// The segment that leaves the most.
    pub fn best(&self) -> Option<(u32, f64)> {
        self.order.first().copied()
    }

    /// The segment that leaves the second most.
    pub fn runner_up(&self) -> Option<(u32, f64)> {
        self.order.get(1).copied()
    }
}

/// Differences in nodes below this count as equal.
const EQUAL: f64 = 1e-9;

/// Ranks those of `segments` that have at least `at_least` nodes and fit. Small segments always
/// leave more, so that only segments large enough for a job are compared.
pub fn rank_segments(outages: &Outages, segments: &[u32], at_least: u32) -> SegmentRanking {
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
    SegmentRanking { order }
}

/// The unavailabilities, up to one half and in order, at which two segments leave the same
/// number of nodes and change places.
pub fn find_crossings(nodes: u32, out: u32, one: u32, other: u32) -> Vec<f64> {
    /// Steps up to one half: finer than the distance between two changes in any domain of up to
    /// 72 nodes.
    const STEPS: u32 = 500;
    let ahead = |unavailable| {
        usable_nodes(nodes, out, one, unavailable) - usable_nodes(nodes, out, other, unavailable)
    };
    let mut found = Vec::new();
    let mut last: Option<(f64, f64)> = None;
    for step in 0..=STEPS {
        let at = f64::from(step) / f64::from(2 * STEPS);
        let here = ahead(at);
        // Equal or NaN: neither segment is ahead.
        if here.is_nan() || here.abs() <= EQUAL {
            continue;
        }
        if let Some((before, side)) = last
            && (side < 0.0) != (here < 0.0)
        {
            found.push(find_sign_change(before, at, side, &ahead));
        }
        last = Some((at, here));
    }
    found
}

/// Where a function with the sign `side` at `low` changes its sign.
fn find_sign_change(mut low: f64, mut high: f64, side: f64, of: &impl Fn(f64) -> f64) -> f64 {
    // Forty halvings of a thousandth are below the resolution of an f64.
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if (of(middle) < 0.0) == (side < 0.0) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}
