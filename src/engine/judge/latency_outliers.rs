//! Network round trips that take a different path than the others. Produces a note only: latency
//! never blames a part.

use std::collections::BTreeMap;

use super::finding_set::FindingSet;
use super::rail_readings::{RailReadings, order_pair};
use model::stats;

/// Fewer round trips do not define a usual value.
const MIN_ROUND_TRIPS: usize = 6;

/// A round trip this many times the usual one, and this many microseconds longer, takes a different
/// path; smaller differences come from scheduling.
const OUTLIER_FACTOR_AND_MICROSECONDS: (f64, f64) = (2.0, 20.0);

/// Reports round trips that are far longer than the others of their rail.
pub(super) fn judge(rail: &RailReadings<'_>, ledger: &mut FindingSet) {
    let mut values: Vec<f64> = rail.latencies.iter().map(|(.., us)| *us).collect();
    let Some(usual) = stats::median(&mut values).filter(|_| MIN_ROUND_TRIPS <= values.len()) else {
        return;
    };
    let mut far: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (a, b, us) in &rail.latencies {
        if usual * OUTLIER_FACTOR_AND_MICROSECONDS.0 < *us
            && usual + OUTLIER_FACTOR_AND_MICROSECONDS.1 < *us
        {
            let longest = far.entry(order_pair(*a, *b)).or_insert(*us);
            *longest = longest.max(*us);
        }
    }
    if far.is_empty() {
        return;
    }
    let some: Vec<String> = far
        .iter()
        .take(3)
        .map(|((a, b), us)| format!("{} and {} {us:.1} us", rail.nodes[*a], rail.nodes[*b]))
        .collect();
    ledger.notes.push(format!(
        "{} pairs{} have round trips far above the usual {usual:.1} us: {}",
        far.len(),
        rail.sentence_suffix(),
        some.join(", ")
    ));
}
