//! What segments and unavailable nodes leave schedulable, what the next drain
//! costs, and whether a node is worth that drain.
//!
//! Pure arithmetic, exact. Where only an unavailability is given, nodes fail
//! independently of each other, which is optimistic: trays share power, coolant
//! and switches. [`Outages::observed`] takes what a site has seen instead.
//! A question without an answer (a segment of no nodes, an unavailability that
//! is none, an empty mix) is answered with NaN, which is below no ceiling:
//! compare so that a comparison that fails refuses.

mod block_levels;
mod job_packing;
mod outages;
mod segment_mix;
mod segment_ranking;
mod survey;

pub use block_levels::{AggregatedBlock, BlockLevel, JobsOfShape};
pub use job_packing::{BlockSizes, BlockSizesError, JobFit, JobShape, SegmentPlacement};
pub use outages::{OutageSharesError, Outages};
pub use segment_mix::{SegmentMix, SegmentMixError};
pub use segment_ranking::{SegmentRanking, find_crossings, rank_segments};
pub use survey::{
    BlockOutlook, BlockSurvey, CAPACITY_FORMAT, CapacityBlock, CapacityQuestion, CapacitySurvey,
    MixOutlook, OutageAssumption, RankedSegment, SegmentOutlook, format_percent, survey_capacity,
    usual_segments,
};

/// Expected schedulable nodes of a domain of `nodes`, of which `out` are out for
/// certain and the others with this probability, for segments of this size.
pub fn usable_nodes(nodes: u32, out: u32, segment: u32, unavailable: f64) -> f64 {
    match Outages::from_unavailability(nodes.saturating_sub(out), unavailable) {
        Some(outages) => outages.usable(segment),
        None => f64::NAN,
    }
}

/// What draining one more node costs, in expected schedulable nodes, over the
/// site's mix. Nothing where no node is left to drain.
pub fn drain_price(nodes: u32, out: u32, mix: &SegmentMix, unavailable: f64) -> f64 {
    match Outages::from_unavailability(nodes.saturating_sub(out), unavailable) {
        Some(outages) => outages.mixed_price(mix),
        None => f64::NAN,
    }
}

/// From how many nodes on a gang loses more by a degraded node in it than the
/// node's drain costs: `price * (1 - degradation) / (exposed * degradation)`.
pub fn break_even(price: f64, degradation: f64, exposed: f64) -> f64 {
    price * (1.0 - degradation) / (exposed * degradation)
}

#[cfg(test)]
mod tests;
