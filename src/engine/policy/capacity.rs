//! What segments and unavailable nodes leave schedulable, what the next drain
//! costs, and whether a node is worth that drain.
//!
//! Pure arithmetic, exact. Where only an unavailability is given, nodes fail
//! independently of each other, which is optimistic: trays share power, coolant
//! and switches. [`Outages::observed`] takes what a site has seen instead.
//! A question without an answer (a segment of no nodes, an unavailability that
//! is none, an empty mix) is answered with NaN, which is below no ceiling:
//! compare so that a comparison that fails refuses.

mod advice;
mod levelled;
mod levels;
mod mix;
mod outages;
mod survey;

pub use advice::Ranking;
pub use advice::crossings;
pub use advice::rank;
pub use levelled::Aggregate;
pub use levelled::JobsOfShape;
pub use levelled::Level;
pub use levels::Fit;
pub use levels::Levels;
pub use levels::LevelsError;
pub use levels::Placing;
pub use levels::Shape;
pub use mix::Mix;
pub use mix::MixError;
pub use outages::ObservedError;
pub use outages::Outages;
pub use survey::Assumption;
pub use survey::Block;
pub use survey::CAPACITY_FORMAT;
pub use survey::Left;
pub use survey::Mixed;
pub use survey::Outlook;
pub use survey::Question;
pub use survey::Ranked;
pub use survey::Survey;
pub use survey::Surveyed;
pub use survey::percent;
pub use survey::survey;
pub use survey::usual_segments;

/// Expected schedulable nodes of a domain of `nodes`, of which `out` are out for
/// certain and the others with this probability, for segments of this size.
pub fn usable(nodes: u32, out: u32, segment: u32, unavailable: f64) -> f64 {
    match Outages::independent(nodes.saturating_sub(out), unavailable) {
        Some(outages) => outages.usable(segment),
        None => f64::NAN,
    }
}

/// What draining one more node costs, in expected schedulable nodes, over the
/// site's mix. Nothing where no node is left to drain.
pub fn price(nodes: u32, out: u32, mix: &Mix, unavailable: f64) -> f64 {
    match Outages::independent(nodes.saturating_sub(out), unavailable) {
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
