//! The level of every group of a rail before anybody is blamed.
//!
//! One pair has one vote, however often it was read: suspects are read several times,
//! and would set their own level. Where most pairs of a rail have a bad end, other rails
//! of its kind tell what it must show.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::super::peel;
use super::super::rails::Group;
use super::super::rails::Rail;
use super::super::rails::ordered;
use super::expected;
use super::line_of;
use super::repeat_sigma;
use model::stats;

/// Up to this many pairs, a bad node and a bad pair can be most of a matching:
/// the level is looked for at the upper end, as with small islands.
const FEW_PAIRS: usize = 28;

/// Rails of one kind differ by sockets, cables and distance, as ports do by queue pairs
/// and memory (8 %); a rate class down is half.
pub(super) const APART: f64 = 0.12;

/// What is known of the levels of a rail.
#[derive(Debug)]
pub(super) struct Levels {
    /// Of each group.
    pub(super) start: Vec<f64>,
    /// Relative standard deviation of one reading, where enough were repeated.
    pub(super) repeated: Option<f64>,
    /// What other rails show, for each group.
    pub(super) siblings: Vec<Siblings>,
}

/// The levels of a test on other rails of the same kind, one each.
#[derive(Clone, Debug, Default)]
pub(super) struct Siblings {
    /// In order.
    pub(super) levels: Vec<f64>,
}

impl Siblings {
    /// What most of them show; one other rail does not tell which of two is right.
    pub(super) fn reference(&self) -> Option<f64> {
        let last = self.levels.len().checked_sub(1).filter(|last| 0 < *last)?;
        Some(self.levels[last / 2])
    }

    /// Whether they show that this is no less than it must be.
    pub(super) fn agrees(&self, value: f64) -> bool {
        let reference = self.reference().or_else(|| self.levels.first().copied());
        reference.is_some_and(|reference| reference * (1.0 - APART) <= value)
    }
}

/// The levels of all rails.
pub(super) fn of(rails: &[Rail<'_>]) -> Vec<Levels> {
    let votes: Vec<Votes> = rails.iter().map(Votes::of).collect();
    let none = Siblings::default();
    let own: Vec<Vec<f64>> = rails
        .iter()
        .zip(&votes)
        .map(|(rail, votes)| {
            (0..rail.groups.len()).map(|group| votes.level(rail, group, &none)).collect()
        })
        .collect();
    let siblings = |here: usize, group: &Group<'_>| {
        let mut levels = Vec::new();
        for (at, rail) in rails.iter().enumerate().filter(|(at, _)| *at != here) {
            let is_same = |it: &Group<'_>| it.crosses == group.crosses && it.is_of_kind(group);
            let same = rail.groups.iter().position(is_same);
            levels.extend(same.map(|same| own[at][same]).filter(|level| level.is_finite()));
        }
        levels.sort_by(f64::total_cmp);
        Siblings { levels }
    };
    let all = rails.iter().zip(votes).enumerate();
    all.map(|(at, (rail, votes))| {
        let siblings: Vec<Siblings> = rail.groups.iter().map(|group| siblings(at, group)).collect();
        let start =
            siblings.iter().enumerate().map(|(group, others)| votes.level(rail, group, others));
        Levels { start: start.collect(), repeated: votes.repeated, siblings }
    })
    .collect()
}

/// What the cells of a rail say of its levels: each its median.
struct Votes {
    of_group: Vec<Vec<f64>>,
    /// How many readings a cell of each group has.
    readings: Vec<usize>,
    /// How many pairs of nodes each group has.
    pairs: Vec<usize>,
    repeated: Option<f64>,
}

impl Votes {
    fn of(rail: &Rail<'_>) -> Self {
        let groups = rail.groups.len();
        let mut of_group = vec![Vec::new(); groups];
        let mut counts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut pairs = vec![BTreeSet::new(); groups];
        for ((src, dst, group), mut values) in rail.cells() {
            counts.entry(group).or_default().push(values.len());
            pairs[group].insert(ordered(src, dst));
            of_group[group].extend(stats::median(&mut values));
        }
        let middle = |group: usize| {
            let counts = counts.get_mut(&group)?;
            counts.sort_unstable();
            counts.get(counts.len() / 2).copied()
        };
        let readings = (0..groups).map(middle).map(|count| count.unwrap_or(1)).collect();
        let pairs = pairs.iter().map(BTreeSet::len).collect();
        Self { of_group, readings, pairs, repeated: repeat_sigma(rail) }
    }

    /// The level of a group.
    fn level(&self, rail: &Rail<'_>, group: usize, others: &Siblings) -> f64 {
        let votes = &self.of_group[group];
        let from = |line: f64| {
            let mut good: Vec<f64> = votes.iter().copied().filter(|v| line <= *v).collect();
            stats::median(&mut good)
        };
        if let Some((value, tolerance)) = expected(&rail.groups[group]) {
            // Who reaches what the class must show says what is normal here.
            if let Some(level) = from(value * (1.0 - line_of(tolerance))) {
                return level;
            }
            // Two nodes that are low have no others to be compared with.
            if self.pairs[group] == 1 {
                return value;
            }
        }
        let own = if self.pairs[group] <= FEW_PAIRS {
            let sigma = self.repeated.unwrap_or(peel::ASSUMED_SIGMA);
            let noise = 1.0 - peel::UPPER_Z * stats::median_error(sigma, self.readings[group]);
            stats::quantile(&mut votes.clone(), peel::UPPER).map(|upper| upper * noise)
        } else {
            stats::median(&mut votes.clone())
        };
        let own = own.filter(|l| 0.0 < *l).unwrap_or(f64::INFINITY);
        match others.reference() {
            Some(reference) if own < reference * (1.0 - APART) => {
                let alone = || if self.pairs[group] == 1 { reference } else { own };
                from(reference * (1.0 - APART)).unwrap_or_else(alone)
            }
            _ => own,
        }
    }
}
