//! The nodes that segments and unavailable nodes leave schedulable, the cost of the next drain, and
//! whether a node is worth that drain.
//!
//! Exact arithmetic, without I/O. If only an unavailability is given, nodes fail independently of
//! each other, which is optimistic: trays share power, coolant and switches.
//! [`Outages::from_observation`] takes a site's observations instead. A question without an answer
//! (a segment of 0 nodes, an unavailability outside 0 to 1, an empty mix) gives NaN, which is below
//! no ceiling: write comparisons so that a false one refuses.

mod block_levels;
mod job_fit;
mod outages;
mod segment_mix;
mod segment_rank;
mod survey;

pub use block_levels::{AggregatedBlock, BlockLevel, JobsOfShape};
pub use job_fit::{BlockSizes, BlockSizesError, JobFit, JobShape, SegmentPlacement};
pub use outages::{OutageSharesError, Outages};
pub use segment_mix::{SegmentMix, SegmentMixError};
pub use segment_rank::{SegmentRanking, find_crossings, rank_segments};
pub use survey::{
    BlockOutlook, BlockSurvey, CAPACITY_FORMAT, CapacityBlock, CapacityQuestion, CapacitySurvey,
    MixOutlook, OutageAssumption, RankedSegment, SegmentOutlook, format_percent, survey_capacity,
    usual_segments,
};

/// Expected schedulable nodes of a domain of `nodes`, for segments of this size; `out` nodes
/// are certainly out, each of the others with the probability `unavailable`.
pub fn usable_nodes(nodes: u32, out: u32, segment: u32, unavailable: f64) -> f64 {
    match Outages::from_unavailability(nodes.saturating_sub(out), unavailable) {
        Some(outages) => outages.usable(segment),
        None => f64::NAN,
    }
}

/// The cost of draining one more node, in expected schedulable nodes, over the site's mix; 0 if
/// no node is left to drain.
pub fn drain_price(nodes: u32, out: u32, mix: &SegmentMix, unavailable: f64) -> f64 {
    match Outages::from_unavailability(nodes.saturating_sub(out), unavailable) {
        Some(outages) => outages.mixed_price(mix),
        None => f64::NAN,
    }
}

/// The gang size in nodes from which a degraded node costs a gang more than the node's drain
/// costs: `price * (1 - degradation) / (exposed * degradation)`.
pub fn break_even(price: f64, degradation: f64, exposed: f64) -> f64 {
    price * (1.0 - degradation) / (exposed * degradation)
}

#[cfg(test)]
mod tests;
