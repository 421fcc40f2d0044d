//! The effect of noise on healthy paths: how low chance alone can make all readings of a path, or
//! an end with most partners, in a large sweep.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::FAMILY_ERROR;
use model::stats;

/// Fewer repeated cells do not define their own noise.
const FEWEST_STEPS: usize = 4;

/// An assumed noise counts as an estimate from this many cells.
const ASSUMED_SAMPLES: f64 = 100.0;

/// How far down noise reaches. Disturbances reduce readings, so the tail is assumed exponential,
/// the heaviest tail that all moments can still describe.
#[derive(Debug)]
pub(super) struct NoiseTail {
    /// The mean step from the second lowest to the lowest reading of a cell: for an exponential
    /// tail this equals its scale, independent of the number of readings.
    scale: f64,
    /// The number of cells behind the estimate.
    samples: f64,
    /// The number of cells in the sweep over all rails.
    pub(super) cells: usize,
    /// Cached results: thousands of ends share a few partner counts.
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
        // Cells that were selected for a second reading do not represent the noise of all.
        if steps.len() * 2 < values.len() || steps.len() < FEWEST_STEPS {
            return Self {
                scale: sigma,
                samples: ASSUMED_SAMPLES,
                cells,
                end_cache: RefCell::default(),
            };
        }
        // Dips are not noise: of exponential steps, one in 256 exceeds this.
        let most = stats::median(&mut steps).map_or(f64::INFINITY, |middle| middle * 8.0);
        steps.retain(|step| *step <= most);
        let samples = to_f64(steps.len());
        let scale = (steps.iter().sum::<f64>() / samples).max(sigma);
        Self { scale, samples, cells, end_cache: RefCell::default() }
    }

    /// How far noise alone lowers all readings of any cell, in all but one of 1,000 sweeps. A
    /// reading is below the level by x with probability exp(-x / scale) / 2; the scale is estimated
    /// from a limited number of steps, which widens the tail (as Student's t does for a normal
    /// reading).
    pub(super) fn deepest_cell(&self, readings: usize) -> f64 {
        let readings = to_f64(readings.max(1));
        // Cells, and pairs of them in both directions.
        let tests = 2.0 * to_f64(self.cells);
        let chance = FAMILY_ERROR / tests;
        let rest = (chance.ln() + readings * std::f64::consts::LN_2).min(0.0);
        let samples = self.samples;
        self.scale * samples / readings * ((-rest / samples).exp() - 1.0)
    }

    /// How far noise alone lowers an end, in all but one of 1,000 sweeps: the median over its
    /// partners, of the medians of this many readings.
    pub(super) fn deepest_end(&self, partners: usize, readings: usize) -> f64 {
        let mut known = self.end_cache.borrow_mut();
        *known.entry((partners, readings)).or_insert_with(|| self.compute_end(partners, readings))
    }

    fn compute_end(&self, partners: usize, readings: usize) -> f64 {
        let odd = |n: usize| u32::try_from((n.max(1) - 1) / 2 * 2 + 1).unwrap_or(u32::MAX);
        let chance = |x: f64| {
            let cell = stats::median_chance((-x).exp() / 2.0, odd(readings));
            // With two partners the better one counts.
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
