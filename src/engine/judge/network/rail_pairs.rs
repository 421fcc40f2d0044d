//! The pairs of a rail with unblamed ends: each is compared with the level of its group, and the
//! levels come from those that are not low.

use std::collections::{BTreeMap, BTreeSet};

use super::super::peel;
use super::super::peel::PeelResult;
use super::super::rail_readings::{RailReadings, order_pair};
use super::noise_tail::NoiseTail;
use super::{FAMILY_ERROR, FEW_CELLS, FEWEST_CELLS};
use model::stats;
use model::verdict::Direction;

/// One direction of one pair in one group.
#[derive(Clone, Debug)]
pub(super) struct RailPairCell {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) group: usize,
    /// Relative to the level.
    pub(super) median: f64,
    best: f64,
    pub(super) readings: Vec<f64>,
    pub(super) low: bool,
}

/// Every pair of unblamed ends.
pub(super) struct RailPairs {
    pub(super) cells: Vec<RailPairCell>,
    pub(super) levels: Vec<f64>,
    pub(super) sigma: f64,
}

impl RailPairs {
    pub(super) fn new(
        rail: &RailReadings<'_>,
        peeled: &PeelResult,
        start: &[f64],
        sigma: f64,
        noise: &NoiseTail,
    ) -> Self {
        let is_blamed =
            |src, dst| peeled.is_blamed(src, Direction::Tx) || peeled.is_blamed(dst, Direction::Rx);
        let mut values = rail.cells();
        values.retain(|(src, dst, _), _| !is_blamed(*src, *dst));
        let mut pairs = Self { cells: Vec::new(), levels: start.to_vec(), sigma };
        // Low cells depend on the level, and the level on the low cells.
        for _ in 0..5 {
            let low: Vec<bool> = pairs.cells.iter().map(|c| c.low).collect();
            pairs.compare(&values, noise);
            pairs.update_levels();
            let settled = low.iter().copied().eq(pairs.cells.iter().map(|c| c.low));
            if settled {
                break;
            }
        }
        pairs
    }

    /// Compares every cell with the level of its group: a cell is low if all its readings are,
    /// since one good reading shows that ends and path can do more.
    fn compare(&mut self, values: &BTreeMap<(usize, usize, usize), Vec<f64>>, noise: &NoiseTail) {
        let cell = |((src, dst, group), values): (&(usize, usize, usize), &Vec<f64>)| {
            let level = self.levels[*group];
            let readings: Vec<f64> = values.iter().map(|v| v / level).collect();
            let median = stats::median(&mut readings.clone()).unwrap_or(1.0);
            let best = readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            RailPairCell { src: *src, dst: *dst, group: *group, median, best, readings, low: false }
        };
        let mut cells: Vec<RailPairCell> = values.iter().map(cell).collect();
        // If most pairs may be bad, only the good ones define the spread.
        let few = cells.len() < FEW_CELLS;
        let medians =
            cells.iter().map(|c| c.median).filter(|m| !few || 1.0 - peel::MIN_EFFECT <= *m);
        let medians: Vec<f64> = medians.collect();
        let middle = stats::median(&mut medians.clone()).unwrap_or(1.0);
        let spread = stats::spread(&medians, middle).filter(|_| FEWEST_CELLS <= medians.len());
        let between = spread.unwrap_or(0.0) * stats::family_z(noise.cells, FAMILY_ERROR);
        // The median shows the state of a path; the best reading excludes noise.
        let line = 1.0 - peel::MIN_EFFECT.max(between);
        let beyond = |best: f64, readings: usize| {
            best < 1.0 - (peel::MIN_EFFECT / 2.0).max(noise.deepest_cell(readings))
        };
        // A fault that is equal in both directions has twice the readings.
        let mut ways: BTreeMap<(usize, usize, usize), Vec<&RailPairCell>> = BTreeMap::new();
        for cell in cells.iter().filter(|c| c.median < line) {
            let (a, b) = order_pair(cell.src, cell.dst);
            ways.entry((a, b, cell.group)).or_default().push(cell);
        }
        let both_low: BTreeSet<(usize, usize, usize)> = ways
            .into_iter()
            .filter(|(_, ways)| {
                let best = ways.iter().map(|c| c.best).fold(f64::NEG_INFINITY, f64::max);
                let count = ways.iter().map(|c| c.readings.len()).sum();
                ways.len() == 2 && beyond(best, count)
            })
            .map(|(pair, _)| pair)
            .collect();
        for cell in &mut cells {
            let (a, b) = order_pair(cell.src, cell.dst);
            cell.low = both_low.contains(&(a, b, cell.group))
                || (cell.median < line && beyond(cell.best, cell.readings.len()));
        }
        self.cells = cells;
    }

    /// Updates the levels from the cells that are not low, one vote each.
    fn update_levels(&mut self) {
        for (group, level) in self.levels.iter_mut().enumerate() {
            let good = self.cells.iter().filter(|c| c.group == group && !c.low);
            let mut values: Vec<f64> = good.map(|c| c.median * *level).collect();
            if let Some(middle) = stats::median(&mut values).filter(|m| 0.0 < *m) {
                *level = middle;
            }
        }
    }

    /// The cells of every end that has any.
    pub(super) fn by_end(&self) -> BTreeMap<usize, Vec<&RailPairCell>> {
        let mut by_end: BTreeMap<usize, Vec<&RailPairCell>> = BTreeMap::new();
        for cell in &self.cells {
            by_end.entry(cell.src).or_default().push(cell);
            by_end.entry(cell.dst).or_default().push(cell);
        }
        by_end
    }
}

/// The number of partners other than `peer` with which an end reads normally.
pub(super) fn count_good_partners(
    by_end: &BTreeMap<usize, Vec<&RailPairCell>>,
    end: usize,
    peer: usize,
) -> usize {
    let mut partners: BTreeMap<usize, bool> = BTreeMap::new();
    for cell in by_end.get(&end).into_iter().flatten() {
        let other = if cell.src == end { cell.dst } else { cell.src };
        *partners.entry(other).or_insert(true) &= !cell.low;
    }
    partners.into_iter().filter(|(other, good)| *other != peer && *good).count()
}
