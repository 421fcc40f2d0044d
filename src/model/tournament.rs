//! Pairing of nodes or GPUs: rounds in which no item has two partners.
//!
//! Numbers only; the caller maps them to nodes or GPUs. The circle method keeps one item fixed
//! and rotates the others, so that n items (n even) meet each other in n - 1 rounds, which is the
//! minimum. With n odd, one place is empty and one item idles in each of n rounds.

use super::seeded_rng::SeededRng;

/// Indices of two different items.
pub type IndexPair = (usize, usize);

/// A complete tournament of `n` items: every pair exactly once. The seed determines the place of
/// each item in the circle and the order of the rounds.
pub fn make_rounds(n: usize, seed: u64) -> Vec<Vec<IndexPair>> {
    make_matchings(n, usize::MAX, seed)
}

/// `k` matchings with distinct partners: the first rounds of the tournament with this seed. Fewer
/// if there are not enough partners. The remaining rounds are not generated: for ten thousand
/// nodes they are fifty million pairs.
pub fn make_matchings(n: usize, k: usize, seed: u64) -> Vec<Vec<IndexPair>> {
    if n < 2 {
        return Vec::new();
    }
    let places = n + n % 2;
    let mut chance = SeededRng::new(seed, "tournament");
    let mut label: Vec<usize> = (0..n).collect();
    chance.shuffle(&mut label);
    let turning = places - 1;
    let mut order: Vec<usize> = (0..turning).collect();
    chance.shuffle(&mut order);
    order
        .into_iter()
        .take(k)
        .map(|round| {
            let fixed = (turning, round);
            let turned =
                (1..places / 2).map(|k| ((round + k) % turning, (round + turning - k) % turning));
            std::iter::once(fixed)
                .chain(turned)
                // The last place is empty where the number is odd.
                .filter_map(|(a, b)| Some((*label.get(a)?, *label.get(b)?)))
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn ordered<T: Ord>((a, b): (T, T)) -> (T, T) {
        if b < a { (b, a) } else { (a, b) }
    }

    proptest! {
        #[test]
        fn every_pair_meets_exactly_once_in_the_fewest_rounds(n in 0usize..90, seed: u64) {
            let rounds = make_rounds(n, seed);
            let expected = match n { 0 | 1 => 0, n if n % 2 == 0 => n - 1, n => n };
            prop_assert_eq!(rounds.len(), expected);
            let mut met = BTreeSet::new();
            for round in &rounds {
                prop_assert_eq!(round.len(), n / 2);
                let mut busy = BTreeSet::new();
                for (a, b) in round {
                    prop_assert!(a != b && *a < n && *b < n);
                    prop_assert!(busy.insert(*a) && busy.insert(*b), "twice in a round");
                    prop_assert!(met.insert(ordered((*a, *b))), "met twice");
                }
            }
            prop_assert_eq!(met.len(), n * n.saturating_sub(1) / 2);
        }

        #[test]
        fn matchings_have_distinct_partners(n in 2usize..60, k in 1usize..12, seed: u64) {
            let matchings = make_matchings(n, k, seed);
            prop_assert_eq!(matchings.len(), k.min(n - 1 + n % 2));
            let mut partners: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
            for (a, b) in matchings.iter().flatten() {
                prop_assert!(partners.entry(*a).or_default().insert(*b));
                prop_assert!(partners.entry(*b).or_default().insert(*a));
            }
        }

        #[test]
        fn a_seed_always_gives_the_same_rounds(n in 0usize..40, seed: u64) {
            prop_assert_eq!(make_rounds(n, seed), make_rounds(n, seed));
        }
    }

    #[test]
    fn another_seed_gives_other_partners() {
        assert_ne!(make_matchings(18, 1, 1), make_matchings(18, 1, 2));
    }

    #[test]
    fn a_board_of_8_gpus_takes_7_rounds() {
        assert_eq!(make_rounds(8, 3).len(), 7);
    }
}
