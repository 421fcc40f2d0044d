//! Partners of named nodes: which nodes take part so that the named ones are measured across their
//! domain and over their rails.
//!
//! Names and counts only. Cleared nodes come first, then idle ones without a bad run. They come
//! from all over the pool, since adjacent nodes often share a fault, and in random order, since a
//! fault may follow any other order.

use std::collections::BTreeMap;

use model::id::NodeName;
use model::seeded_rng::SeededRng;

/// Additional partners if one of them is not cleared: two bad ones must not form the majority.
const EXTRA_IF_UNCLEARED: usize = 2;

/// Candidate partners, in claim order.
#[derive(Clone, Debug, Default)]
pub struct PartnerCandidates<'n> {
    /// Known to be healthy, by their last run or a valid certificate.
    pub cleared: Vec<&'n NodeName>,
    /// Neither known healthy nor known bad, and idle according to the sources.
    pub idle: Vec<&'n NodeName>,
}

/// The requested number of partners.
#[derive(Clone, Copy, Debug)]
pub struct PartnerDemand {
    /// The number that the operator requested.
    pub exactly: Option<usize>,
    /// The default: as many as a second measurement of a suspect uses.
    pub usual: usize,
    /// Cleared nodes among the named ones: they serve as partners as well.
    pub cleared_named: usize,
}

/// The partners, each with whether it is cleared. `named` seeds the random order: the same nodes
/// get the same partners.
pub fn choose_partners(
    pool: &PartnerCandidates<'_>,
    wanted: PartnerDemand,
    named: &str,
) -> BTreeMap<NodeName, bool> {
    let count = wanted.exactly.unwrap_or(wanted.usual).saturating_sub(wanted.cleared_named);
    let mut chance = SeededRng::new(0, named);
    let cleared = spread_evenly(&pool.cleared, count, &mut chance);
    let missing = count - cleared.len();
    let more = match (missing, wanted.exactly) {
        (0, _) => 0,
        (_, Some(_)) => missing,
        (_, None) => missing + EXTRA_IF_UNCLEARED,
    };
    let idle = spread_evenly(&pool.idle, more, &mut chance);
    let cleared = cleared.into_iter().map(|node| (node.clone(), true));
    cleared.chain(idle.into_iter().map(|node| (node.clone(), false))).collect()
}

/// This many of the items: one from each of as many equal parts.
fn spread_evenly<'n>(
    nodes: &[&'n NodeName],
    wanted: usize,
    chance: &mut SeededRng,
) -> Vec<&'n NodeName> {
    let count = wanted.min(nodes.len());
    let part = |at: usize| at * nodes.len() / count;
    (0..count)
        .map(|at| {
            let own = &nodes[part(at)..part(at + 1)];
            let pick = chance.next_u64() % own.len() as u64;
            own[usize::try_from(pick).unwrap_or(0)]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(prefix: &str, count: usize) -> Vec<NodeName> {
        (0..count).map(|at| NodeName::from(format!("{prefix}{at}"))).collect()
    }

    proptest! {
        #[test]
        fn cleared_nodes_come_first_and_no_more_are_taken_than_requested(
            cleared in 0usize..20,
            idle in 0usize..20,
            exactly in proptest::option::of(0usize..8),
            cleared_named in 0usize..5,
            named in "[a-z]{1,4}",
        ) {
            let (good, rest) = (names("c", cleared), names("i", idle));
            let pool = PartnerCandidates { cleared: good.iter().collect(), idle: rest.iter().collect() };
            let wanted = PartnerDemand { exactly, usual: 3, cleared_named };
            let taken = choose_partners(&pool, wanted, &named);
            let count = exactly.unwrap_or(3).saturating_sub(cleared_named);
            let is_cleared = |want: bool| taken.values().filter(|it| **it == want).count();
            prop_assert_eq!(is_cleared(true), count.min(cleared));
            let more = if exactly.is_some() || cleared >= count { 0 } else { 2 };
            prop_assert_eq!(is_cleared(false), (count.saturating_sub(cleared) + more).min(idle));
            prop_assert!(taken.iter().all(|(node, it)| node.as_str().starts_with('c') == *it));
        }

        #[test]
        fn partners_come_from_all_over_the_domain(nodes in 6usize..72, named in "[a-z]{1,4}") {
            let all = names("n", nodes);
            let pool = PartnerCandidates { cleared: all.iter().collect(), idle: Vec::new() };
            let taken = choose_partners(&pool, PartnerDemand { exactly: Some(3), usual: 3, cleared_named: 0 }, &named);
            let at = |node: &NodeName| all.iter().position(|it| it == node).expect("of the pool");
            let mut places: Vec<usize> = taken.keys().map(at).collect();
            places.sort_unstable();
            prop_assert!(places[0] < nodes / 3 + 1 && nodes * 2 / 3 - 1 < places[2]);
        }
    }
}
