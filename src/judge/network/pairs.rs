//! The pairs of a rail whose ends are not blamed: each held against the level of its
//! group, and the levels taken from those that are not low.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::super::peel;
use super::super::peel::Peeled;
use super::super::rails::Rail;
use super::super::rails::ordered;
use super::super::robust;
use super::FAMILY_ERROR;
use super::FEW_CELLS;
use super::FEWEST_CELLS;
use crate::model::verdict::Direction;

/// Fewer repeated cells than this show no noise of their own.
const FEWEST_STEPS: usize = 4;

/// One direction of one pair in one group.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) group: usize,
    /// Relative to the level.
    pub(super) median: f64,
    /// Its best reading.
    best: f64,
    pub(super) readings: Vec<f64>,
    pub(super) low: bool,
}

/// Every pair of ends that are not blamed.
pub(super) struct Pairs {
    pub(super) cells: Vec<Cell>,
    pub(super) levels: Vec<f64>,
    pub(super) sigma: f64,
}

impl Pairs {
    /// `many` is how many cells the sweep has over all rails.
    pub(super) fn of(
        rail: &Rail<'_>,
        peeled: &Peeled,
        start: &[f64],
        sigma: f64,
        many: usize,
    ) -> Self {
        let is_blamed =
            |src, dst| peeled.blames(src, Direction::Tx) || peeled.blames(dst, Direction::Rx);
        let mut values = rail.cells();
        values.retain(|(src, dst, _), _| !is_blamed(*src, *dst));
        let noise = Noise::of(&values, sigma, many);
        let mut pairs = Self { cells: Vec::new(), levels: start.to_vec(), sigma };
        // Who is low depends on the level, and the level on who is low.
        for _ in 0..5 {
            let low: Vec<bool> = pairs.cells.iter().map(|c| c.low).collect();
            pairs.compare(&values, &noise);
            pairs.relevel();
            let settled = low.iter().copied().eq(pairs.cells.iter().map(|c| c.low));
            if settled {
                break;
            }
        }
        pairs
    }

    /// Compares every cell with the level of its group: one is low where all its
    /// readings are, as one good reading shows that ends and path can do more.
    fn compare(&mut self, values: &BTreeMap<(usize, usize, usize), Vec<f64>>, noise: &Noise) {
        let cell = |((src, dst, group), values): (&(usize, usize, usize), &Vec<f64>)| {
            let level = self.levels[*group];
            let readings: Vec<f64> = values.iter().map(|v| v / level).collect();
            let median = robust::median(&mut readings.clone()).unwrap_or(1.0);
            let best = readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            Cell { src: *src, dst: *dst, group: *group, median, best, readings, low: false }
        };
        let mut cells: Vec<Cell> = values.iter().map(cell).collect();
        // Where most pairs can be bad, only the good ones show their spread.
        let few = cells.len() < FEW_CELLS;
        let shown = cells.iter().map(|c| c.median).filter(|m| !few || 1.0 - peel::LINE <= *m);
        let shown: Vec<f64> = shown.collect();
        let middle = robust::median(&mut shown.clone()).unwrap_or(1.0);
        let spread = robust::spread(&shown, middle).filter(|_| FEWEST_CELLS <= shown.len());
        let between = spread.unwrap_or(0.0) * robust::family_z(noise.many, FAMILY_ERROR);
        let line =
            |readings: usize| 1.0 - peel::LINE.max(noise.deepest(readings)).max(between);
        // A fault that is the same both ways is told from twice the readings.
        let mut ways: BTreeMap<(usize, usize, usize), Vec<&Cell>> = BTreeMap::new();
        for cell in cells.iter().filter(|c| c.best < 1.0 - peel::LINE) {
            let (a, b) = ordered(cell.src, cell.dst);
            ways.entry((a, b, cell.group)).or_default().push(cell);
        }
        let both_low: BTreeSet<(usize, usize, usize)> = ways
            .into_iter()
            .filter(|(_, ways)| {
                let best = ways.iter().map(|c| c.best).fold(f64::NEG_INFINITY, f64::max);
                let count = ways.iter().map(|c| c.readings.len()).sum();
                ways.len() == 2 && best < line(count)
            })
            .map(|(pair, _)| pair)
            .collect();
        for cell in &mut cells {
            let (a, b) = ordered(cell.src, cell.dst);
            cell.low = cell.best < line(cell.readings.len())
                || both_low.contains(&(a, b, cell.group));
        }
        self.cells = cells;
    }

    /// Takes the levels from the cells that are not low, one vote each.
    fn relevel(&mut self) {
        for (group, level) in self.levels.iter_mut().enumerate() {
            let good = self.cells.iter().filter(|c| c.group == group && !c.low);
            let mut values: Vec<f64> = good.map(|c| c.median * *level).collect();
            if let Some(middle) = robust::median(&mut values).filter(|m| 0.0 < *m) {
                *level = middle;
            }
        }
    }

    /// The cells of every end that has any.
    pub(super) fn by_end(&self) -> BTreeMap<usize, Vec<&Cell>> {
        let mut by_end: BTreeMap<usize, Vec<&Cell>> = BTreeMap::new();
        for cell in &self.cells {
            by_end.entry(cell.src).or_default().push(cell);
            by_end.entry(cell.dst).or_default().push(cell);
        }
        by_end
    }
}

/// How far down noise reaches. Readings are disturbed downwards, so its tail is taken to
/// be exponential, as heavy as one that all moments describe can be.
struct Noise {
    /// The mean step from the second lowest to the lowest reading of a cell: of an
    /// exponential tail that is its scale, however many readings there are.
    scale: f64,
    /// From how many cells it was told.
    told: f64,
    many: usize,
}

impl Noise {
    fn of(
        values: &BTreeMap<(usize, usize, usize), Vec<f64>>,
        sigma: f64,
        many: usize,
    ) -> Self {
        let step = |values: &Vec<f64>| {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let (lowest, second) = (sorted.first()?, sorted.get(1)?);
            let middle = sorted[sorted.len() / 2];
            (0.0 < middle).then(|| (second - lowest) / middle)
        };
        let mut steps: Vec<f64> = values.values().filter_map(step).collect();
        // Of cells that were chosen to be read again the noise is not that of all.
        if steps.len() * 2 < values.len() || steps.len() < FEWEST_STEPS {
            return Self { scale: sigma, told: count(values.len()), many };
        }
        // Dips are no noise: of exponential steps one in 256 goes beyond this.
        let most = robust::median(&mut steps).map_or(f64::INFINITY, |middle| middle * 8.0);
        steps.retain(|step| *step <= most);
        let told = count(steps.len());
        let scale = (steps.iter().sum::<f64>() / told).max(sigma);
        Self { scale, told, many }
    }

    /// How far all readings of any cell are low by noise alone, in all but one of 1,000
    /// sweeps. A reading is below the level by x with the chance exp(-x / scale) / 2; the
    /// scale is known from so many steps only, which widens the tail (as Student's t
    /// does that of a normal reading).
    fn deepest(&self, readings: usize) -> f64 {
        let readings = count(readings.max(1));
        // Cells, and pairs of them both ways.
        let tests = 2.0 * count(self.many);
        let chance = FAMILY_ERROR / tests;
        let rest = (chance.ln() + readings * std::f64::consts::LN_2).min(0.0);
        let told = self.told.max(1.0);
        self.scale * told / readings * ((-rest / told).exp() - 1.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of cells")]
fn count(n: usize) -> f64 {
    n as f64
}

/// With how many partners besides `peer` an end is fine.
pub(super) fn good_partners(
    by_end: &BTreeMap<usize, Vec<&Cell>>,
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
