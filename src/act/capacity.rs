//! What segments and unavailable nodes leave schedulable, and what the next
//! drain costs.
//!
//! Pure arithmetic. Nodes fail independently of each other here, which is
//! optimistic: trays share power, coolant and switches.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

/// The segments that a site's jobs ask for: nodes of a segment, and the share of
/// nodes that such jobs use. Shares need not sum to one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Mix(pub BTreeMap<u32, f64>);

/// Expected schedulable nodes of a domain of `nodes`, of which `out` are out for
/// certain and the others with this probability, for segments of this size.
pub fn usable(nodes: u32, out: u32, segment: u32, unavailable: f64) -> f64 {
    let _ = (nodes, out, segment, unavailable);
    f64::NAN
}

/// What draining one more node costs, in expected schedulable nodes, over the
/// site's mix.
pub fn price(nodes: u32, out: u32, mix: &Mix, unavailable: f64) -> f64 {
    let _ = (nodes, out, mix, unavailable);
    f64::NAN
}

/// From how many nodes on a gang loses more by a degraded node in it than the
/// node's drain costs: `price * (1 - degradation) / (exposed * degradation)`.
pub fn break_even(price: f64, degradation: f64, exposed: f64) -> f64 {
    price * (1.0 - degradation) / (exposed * degradation)
}
