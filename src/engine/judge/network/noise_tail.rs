//! What noise alone makes of healthy paths: how low all readings of a path, or an end
//! with most partners, may be by chance in a sweep of many.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::FAMILY_ERROR;
use model::stats;

/// Fewer repeated cells than this show no noise of their own.
const FEWEST_STEPS: usize = 4;

/// Where the noise is an assumption, it is as good as one from so many cells.
const ASSUMED_SAMPLES: f64 = 100.0;

/// How far down noise reaches. Readings are disturbed downwards, so its tail is taken to
/// be exponential, as heavy as one that all moments describe can be.
#[derive(Debug)]
pub(super) struct NoiseTail {
    /// The mean step from the second lowest to the lowest reading of a cell: of an
    /// exponential tail that is its scale, however many readings there are.
    scale: f64,
    /// From how many cells it was told.
    samples: f64,
    /// How many cells the sweep has over all rails.
    pub(super) cells: usize,
    /// What was asked for before: thousands of ends have few numbers of partners.
    end_cache: RefCell<BTreeMap<(usize, usize), f64>>,
}

impl NoiseTail {
    pub(super) fn new(
        values: &BTreeMap<(usize, usize, usize), Vec<f64>>,
        sigma: f64,
        cells: usize,
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
            return Self {
                scale: sigma,
                samples: ASSUMED_SAMPLES,
                cells,
                end_cache: RefCell::default(),
            };
        }
        // Dips are no noise: of exponential steps one in 256 goes beyond this.
        let most = stats::median(&mut steps).map_or(f64::INFINITY, |middle| middle * 8.0);
        steps.retain(|step| *step <= most);
        let told = to_f64(steps.len());
        let scale = (steps.iter().sum::<f64>() / told).max(sigma);
        Self { scale, samples: told, cells, end_cache: RefCell::default() }
    }

    /// How far all readings of any cell are low by noise alone, in all but one of 1,000
    /// sweeps. A reading is below the level by x with the chance exp(-x / scale) / 2; the
    /// scale is known from so many steps only, which widens the tail (as Student's t
    /// does that of a normal reading).
    pub(super) fn deepest_cell(&self, readings: usize) -> f64 {
        let readings = to_f64(readings.max(1));
        // Cells, and pairs of them both ways.
        let tests = 2.0 * to_f64(self.cells);
        let chance = FAMILY_ERROR / tests;
        let rest = (chance.ln() + readings * std::f64::consts::LN_2).min(0.0);
        let told = self.samples;
        self.scale * told / readings * ((-rest / told).exp() - 1.0)
    }

    /// How far an end is low by noise alone, in all but one of 1,000 sweeps: the median
    /// over its partners, of the medians of so many readings.
    pub(super) fn deepest_end(&self, partners: usize, readings: usize) -> f64 {
        let mut known = self.end_cache.borrow_mut();
        *known.entry((partners, readings)).or_insert_with(|| self.compute_end(partners, readings))
    }

    fn compute_end(&self, partners: usize, readings: usize) -> f64 {
        let odd = |n: usize| u32::try_from((n.max(1) - 1) / 2 * 2 + 1).unwrap_or(u32::MAX);
        let chance = |x: f64| {
            let cell = stats::median_chance((-x).exp() / 2.0, odd(readings));
            // Of two partners the better one counts.
            if partners == 2 { cell * cell } else { stats::median_chance(cell, odd(partners)) }
        };
        let (wanted, mut steps) = (FAMILY_ERROR / to_f64(self.cells), (0.0, 64.0));
        for _ in 0..40 {
            let middle = f64::midpoint(steps.0, steps.1);
            if chance(middle) < wanted { steps.1 = middle } else { steps.0 = middle }
        }
        let rest = -wanted.ln();
        self.scale * steps.1 * ((rest / self.samples).exp() - 1.0) * self.samples / rest
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of cells")]
fn to_f64(n: usize) -> f64 {
    n as f64
}
