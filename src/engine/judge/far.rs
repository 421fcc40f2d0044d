//! Round trips over the network that take another way than the others. A remark:
//! latency convicts nobody.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::rails::Rail;
use super::rails::ordered;
use model::stats;

/// Fewer round trips have no usual one.
const FEWEST: usize = 6;

/// A round trip this many times the usual one, and this many microseconds more,
/// takes another way; less is scheduling.
const FAR: (f64, f64) = (2.0, 20.0);

/// Round trips that are far longer than the others of their rail.
pub(super) fn judge(rail: &Rail<'_>, ledger: &mut Ledger) {
    let mut values: Vec<f64> = rail.latencies.iter().map(|(.., us)| *us).collect();
    let Some(usual) = stats::median(&mut values).filter(|_| FEWEST <= values.len()) else {
        return;
    };
    let mut far: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (a, b, us) in &rail.latencies {
        if usual * FAR.0 < *us && usual + FAR.1 < *us {
            let longest = far.entry(ordered(*a, *b)).or_insert(*us);
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
        rail.over(),
        some.join(", ")
    ));
}
