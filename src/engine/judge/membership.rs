//! Measured reachability: groups of GPUs that are connected at fabric speed.
//!
//! Bandwidth drops sharply at the edge of an NVLink domain (about 770 GB/s inside, 50 across), so a
//! cell far below the level of the island is a different path, not a slow link. This module forms
//! groups and blames no part; `isolation` interprets them.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::{FabricGroup, PairReadingGroup};
use model::id::NodeName;
use model::stats;

/// Below this share of the island's level a cell runs over another path. The slowest link fault
/// that still uses NVLink (9 of 18 links) reads 0.5, the fastest other path (PCIe compared with
/// A100's 12 links) 0.1.
pub(super) const OTHER_PATH: f64 = 0.3;

#[derive(Debug)]
pub(super) struct ReachabilityMatrix {
    /// Share of the level per ordered pair of GPUs, best reading; NaN without a reading.
    best: Vec<f64>,
    n: usize,
}

impl ReachabilityMatrix {
    /// Builds the matrix from the directed readings of this island.
    pub(super) fn from_group(island: &FabricGroup<'_>) -> Self {
        let n = island.gpus.len();
        let levels = full_speed_levels(island);
        let mut best = vec![f64::NAN; n * n];
        for reading in &island.directed {
            let share = reading.value / levels[reading.group];
            let cell = &mut best[reading.src * n + reading.dst];
            *cell = cell.max(share);
        }
        // If its memory cannot be imported, a GPU counts as unreached, whatever the rate.
        for (a, b) in &island.cut_nodes {
            let of = |node: &NodeName| -> Vec<usize> {
                (0..n).filter(|g| island.gpus[*g].node == *node).collect()
            };
            for src in of(a) {
                for dst in of(b) {
                    for at in [src * n + dst, dst * n + src] {
                        best[at] = best[at].max(0.0);
                    }
                }
            }
        }
        Self { best, n }
    }

    /// Whether data moved from `src` to `dst` at fabric speed; `None` without a reading.
    pub(super) fn reaches(&self, src: usize, dst: usize) -> Option<bool> {
        let share = self.best[src * self.n + dst];
        (!share.is_nan()).then_some(OTHER_PATH <= share)
    }

    /// Readings between two sets of GPUs, both directions: the number at fabric speed, and the
    /// total.
    pub(super) fn count_between(&self, some: &[usize], others: &[usize]) -> (usize, usize) {
        let ordered = some.iter().flat_map(|a| others.iter().flat_map(|b| [(*a, *b), (*b, *a)]));
        ordered
            .filter(|(a, b)| a != b)
            .filter_map(|(a, b)| self.reaches(a, b))
            .fold((0, 0), |(good, all), reached| (good + usize::from(reached), all + 1))
    }

    /// Sets of `parts` that reach each other, and the pairs that do not.
    pub(super) fn find_connected(&self, parts: &[Vec<usize>]) -> ConnectedParts {
        let mut cut = Vec::new();
        let mut group: Vec<usize> = (0..parts.len()).collect();
        let mut measured = vec![parts.len() == 1; parts.len()];
        for a in 0..parts.len() {
            for b in a + 1..parts.len() {
                let (good, all) = self.count_between(&parts[a], &parts[b]);
                if all == 0 {
                    continue;
                }
                measured[a] = true;
                measured[b] = true;
                if good * 2 <= all {
                    cut.push((a, b));
                } else if group[a] != group[b] {
                    let (keep, drop) = (group[a], group[b]);
                    for g in &mut group {
                        if *g == drop {
                            *g = keep;
                        }
                    }
                }
            }
        }
        let mut sets: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (part, g) in group.iter().enumerate().filter(|(part, _)| measured[*part]) {
            sets.entry(*g).or_default().push(part);
        }
        let mut sets: Vec<Vec<usize>> = sets.into_values().collect();
        sets.sort_by_key(|set| std::cmp::Reverse(set.len()));
        ConnectedParts { sets, cut }
    }
}

/// Parts of an island by reachability.
#[derive(Debug)]
pub(super) struct ConnectedParts {
    /// Parts that reach each other, directly or through others; the largest set first. A part that
    /// was not measured against any other is in none.
    pub(super) sets: Vec<Vec<usize>>,
    /// Pairs of parts that were measured and do not reach each other.
    pub(super) cut: Vec<(usize, usize)>,
}

impl ConnectedParts {
    /// The parts of `main` that fail to reach at least one part of `set`.
    pub(super) fn unreached_parts(&self, set: &[usize], main: &[usize]) -> BTreeSet<usize> {
        let met = |(a, b): &(usize, usize)| {
            let ends = [(*a, *b), (*b, *a)];
            ends.into_iter().find(|(x, y)| set.contains(x) && main.contains(y)).map(|(_, y)| y)
        };
        self.cut.iter().filter_map(met).collect()
    }
}

/// The nodes of a domain grouped by measured reachability at fabric speed, the largest part first;
/// empty if no two nodes were measured together.
pub(super) fn connected_nodes(island: &FabricGroup<'_>) -> Vec<BTreeSet<NodeName>> {
    let between =
        |r: &super::fabric_group::PairReading| island.reading_groups[r.group].between_nodes;
    if !island.is_uniform() || (!island.directed.iter().any(between) && island.cut_nodes.is_empty())
    {
        return Vec::new();
    }
    let nodes = island.gpus_by_node();
    let members: Vec<Vec<usize>> = nodes.values().cloned().collect();
    let names: Vec<&NodeName> = nodes.keys().copied().collect();
    let sets = ReachabilityMatrix::from_group(island).find_connected(&members).sets;
    sets.into_iter().map(|set| set.into_iter().map(|at| names[at].clone()).collect()).collect()
}

/// The full speed of each group: the maximum of the expectation, the upper end of the readings, and
/// the level inside nodes. A domain that is split everywhere has no other evidence of its own
/// speed.
fn full_speed_levels(island: &FabricGroup<'_>) -> Vec<f64> {
    const UPPER: f64 = 0.9;
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); island.reading_groups.len()];
    for reading in &island.directed {
        values[reading.group].push(reading.value);
    }
    let own: Vec<f64> =
        values.iter_mut().map(|v| stats::quantile(v, UPPER).unwrap_or(0.0)).collect();
    island
        .reading_groups
        .iter()
        .enumerate()
        .map(|(at, key)| {
            let inside = island
                .reading_groups
                .iter()
                .position(|g| *g == PairReadingGroup { between_nodes: false, ..key.clone() })
                .map_or(0.0, |i| own[i]);
            // A host does not indicate the fabric speed of GPUs connected by a bridge or PCIe.
            let expected = island.expected_level(at).filter(|_| island.is_uniform());
            own[at].max(inside).max(expected.map_or(0.0, |(value, _)| value)).max(f64::MIN_POSITIVE)
        })
        .collect()
}
