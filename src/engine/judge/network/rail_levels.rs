//! The level of every group of a rail before any end is blamed.
//!
//! One pair has one vote, independent of its number of readings: suspects are read several times,
//! and would set their own level. If most pairs of a rail have a bad end, the other rails of its
//! kind provide the level.

use std::collections::{BTreeMap, BTreeSet};

use super::super::peel;
use super::super::rail_readings::{RailGroup, RailReadings, order_pair};
use super::{expected_rate, min_effect, repeat_sigma};
use model::stats;

/// Up to this many pairs, a bad node and a bad pair can be most of a matching: the level is taken
/// from the upper end, as with small islands.
const FEW_PAIRS: usize = 28;

/// Rails of one kind differ by sockets, cables and distance, as ports do by queue pairs and memory
/// (8 %); the next lower rate class is half.
pub(super) const SIBLING_TOLERANCE: f64 = 0.12;

#[derive(Debug)]
pub(super) struct RailLevels {
    pub(super) by_group: Vec<f64>,
    /// Relative standard deviation of one reading, if enough readings were repeated.
    pub(super) repeat_sigma: Option<f64>,
    /// The levels of other rails, for each group.
    pub(super) siblings: Vec<SiblingLevels>,
}

/// The levels of a test on other rails of the same kind, one each.
#[derive(Clone, Debug, Default)]
pub(super) struct SiblingLevels {
    /// Ascending.
    pub(super) levels: Vec<f64>,
}

impl SiblingLevels {
    /// The level of most of them; a single other rail does not show which of two is right.
    pub(super) fn reference(&self) -> Option<f64> {
        let last = self.levels.len().checked_sub(1).filter(|last| 0 < *last)?;
        Some(self.levels[last / 2])
    }

    /// Whether they confirm that this value is not low.
    pub(super) fn confirms(&self, value: f64) -> bool {
        let reference = self.reference().or_else(|| self.levels.first().copied());
        reference.is_some_and(|reference| reference * (1.0 - SIBLING_TOLERANCE) <= value)
    }
}

pub(super) fn estimate_levels(rails: &[RailReadings<'_>]) -> Vec<RailLevels> {
    let votes: Vec<LevelVotes> = rails.iter().map(LevelVotes::from_rail).collect();
    let none = SiblingLevels::default();
    let own: Vec<Vec<f64>> = rails
        .iter()
        .zip(&votes)
        .map(|(rail, votes)| {
            (0..rail.groups.len()).map(|group| votes.group_level(rail, group, &none)).collect()
        })
        .collect();
    let siblings = |here: usize, group: &RailGroup<'_>| {
        let mut levels = Vec::new();
        for (at, rail) in rails.iter().enumerate().filter(|(at, _)| *at != here) {
            let is_same = |it: &RailGroup<'_>| {
                it.crosses_leaves == group.crosses_leaves && it.is_same_kind(group)
            };
            let same = rail.groups.iter().position(is_same);
            levels.extend(same.map(|same| own[at][same]).filter(|level| level.is_finite()));
        }
        levels.sort_by(f64::total_cmp);
        SiblingLevels { levels }
    };
    let all = rails.iter().zip(votes).enumerate();
    all.map(|(at, (rail, votes))| {
        let siblings: Vec<SiblingLevels> =
            rail.groups.iter().map(|group| siblings(at, group)).collect();
        let start = siblings
            .iter()
            .enumerate()
            .map(|(group, others)| votes.group_level(rail, group, others));
        RailLevels { by_group: start.collect(), repeat_sigma: votes.repeat_sigma, siblings }
    })
    .collect()
}

/// The votes of a rail's cells on its levels: each casts its median.
struct LevelVotes {
    by_group: Vec<Vec<f64>>,
    /// The number of readings per cell in each group.
    readings: Vec<usize>,
    /// The number of node pairs in each group.
    pairs: Vec<usize>,
    repeat_sigma: Option<f64>,
}

impl LevelVotes {
    fn from_rail(rail: &RailReadings<'_>) -> Self {
        let groups = rail.groups.len();
        let mut by_group = vec![Vec::new(); groups];
        let mut counts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut pairs = vec![BTreeSet::new(); groups];
        for ((src, dst, group), mut values) in rail.cells() {
            counts.entry(group).or_default().push(values.len());
            pairs[group].insert(order_pair(src, dst));
            by_group[group].extend(stats::median(&mut values));
        }
        let middle = |group: usize| {
            let counts = counts.get_mut(&group)?;
            counts.sort_unstable();
            counts.get(counts.len() / 2).copied()
        };
        let readings = (0..groups).map(middle).map(|count| count.unwrap_or(1)).collect();
        let pairs = pairs.iter().map(BTreeSet::len).collect();
        Self { by_group, readings, pairs, repeat_sigma: repeat_sigma(rail) }
    }

    fn group_level(&self, rail: &RailReadings<'_>, group: usize, others: &SiblingLevels) -> f64 {
        let votes = &self.by_group[group];
        let from = |line: f64| {
            let mut good: Vec<f64> = votes.iter().copied().filter(|v| line <= *v).collect();
            stats::median(&mut good)
        };
        if let Some((value, tolerance)) = expected_rate(&rail.groups[group]) {
            // Cells that reach the class expectation define the normal level here.
            if let Some(level) = from(value * (1.0 - min_effect(tolerance))) {
                return level;
            }
            // Two low nodes have no others to compare with.
            if self.pairs[group] == 1 {
                return value;
            }
        }
        let own = if self.pairs[group] <= FEW_PAIRS {
            let sigma = self.repeat_sigma.unwrap_or(peel::ASSUMED_SIGMA);
            let noise =
                1.0 - peel::UPPER_QUANTILE_Z * stats::median_error(sigma, self.readings[group]);
            stats::quantile(&mut votes.clone(), peel::UPPER_QUANTILE).map(|upper| upper * noise)
        } else {
            stats::median(&mut votes.clone())
        };
        let own = own.filter(|l| 0.0 < *l).unwrap_or(f64::INFINITY);
        match others.reference() {
            Some(reference) if own < reference * (1.0 - SIBLING_TOLERANCE) => {
                let alone = || if self.pairs[group] == 1 { reference } else { own };
                from(reference * (1.0 - SIBLING_TOLERANCE)).unwrap_or_else(alone)
            }
            _ => own,
        }
    }
}
