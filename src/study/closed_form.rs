//! Closed-form rates of false blames that are too rare to count in simulations.
//!
//! Computed from the study's noise (normal, and dips) and the judge's rules, for racks of 18 nodes
//! with 4 GPUs. Each is an upper bound if readings and the two measurements are independent: paths
//! with more readings than assumed here are cleared more often. A lasting cause, such as a hot
//! rack, is not noise and not included.

use statrs::distribution::{ContinuousCDF, Normal};

use super::world::DIPS;
use engine::judge::sequential_test;
use engine::judge::sequential_test::SequentialDecision;
use model::stats;

/// Sweeps per year: 100 racks (7,200 GPUs), one sweep per day.
const SWEEPS: f64 = 100.0 * 365.0;

/// Partner nodes of a GPU: in the fast stage, and in the second measurement.
const PARTNERS: [u32; 2] = [17, 3];

const GPUS: usize = 72;

/// The judge's rules for ends and pairs (`judge::peel`): minimum effect, standard errors of a
/// median, the chance of any low pair, and the maximum spread of three low readings.
const MIN_EFFECT: f64 = 0.028;
const SIGNIFICANCE_Z: f64 = 5.0;
const FAMILY_ERROR: f64 = 1e-3;
const AGREEMENT: [f64; 2] = [0.006, 5.0];

/// Maximum readings of a pair.
const MOST_READINGS: f64 = 5.0;

/// Expected numbers at one noise level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClosedFormOdds {
    /// GPUs blamed falsely per year.
    pub blamed_gpus: f64,
    /// Pairs of GPUs blamed falsely per year, or one of their ends instead.
    pub blamed_pairs: f64,
    /// Pairs suspected per sweep, before the second measurement.
    pub suspected_pairs: f64,
}

impl ClosedFormOdds {
    /// At this relative standard deviation of a reading.
    pub fn from_sigma(sigma: f64) -> Self {
        let low_chances = PARTNERS.map(|partners| {
            let error = stats::median_error(sigma, partners as usize);
            stats::median_chance(
                low_reading_chance(sigma, MIN_EFFECT.max(SIGNIFICANCE_Z * error)),
                partners,
            )
        });
        let ends = 2.0 * GPUS as f64;
        let cells = GPUS * PARTNERS[0] as usize;
        let line = MIN_EFFECT.max(stats::family_z(cells, FAMILY_ERROR) * sigma);
        let dip = low_reading_chance(sigma, line);
        // Low in all readings: the sequential test takes three readings of one direction, which
        // agree; or more, if they spread too far.
        let (three, more) = (dip.powi(3) * dip_agreement_chance(sigma), dip.powi(4));
        let suspected_pairs = cells as f64 * (three + more);
        // Either the same pair is low again, or one of its ends is low with other partners.
        let again = 2.0 * (three + more) + 4.0 * repeated_end_chance(sigma);
        Self {
            blamed_gpus: SWEEPS * ends * low_chances[0] * low_chances[1],
            blamed_pairs: SWEEPS * suspected_pairs * again,
            suspected_pairs,
        }
    }
}

/// Chance that a healthy reading is low by this much.
fn low_reading_chance(sigma: f64, line: f64) -> f64 {
    let (rate, _) = DIPS;
    let noise = if sigma <= 0.0 { 0.0 } else { Normal::standard().cdf(-line / sigma) };
    // Upper bound: counts every dip, although the shallowest ones are too small.
    (noise + rate).min(1.0)
}

/// Chance that one direction of a healthy end is low with two of the three partners of the second
/// measurement. One low reading does not decide: for a low median, two of at most five must be low.
fn repeated_end_chance(sigma: f64) -> f64 {
    let partners = PARTNERS[1];
    let line = MIN_EFFECT.max(SIGNIFICANCE_Z * stats::median_error(sigma, partners as usize));
    let one = low_reading_chance(sigma, line);
    let is_read_again =
        sequential_test::decide_path(&[1.0 - line], sigma) == SequentialDecision::Undecided;
    let pairs = MOST_READINGS * (MOST_READINGS - 1.0) / 2.0;
    let cell = if is_read_again { (pairs * one.powi(2)).min(one) } else { one };
    stats::median_chance(cell, partners)
}

/// Chance that three dips have the same depth within their noise: the range of three uniform
/// values.
fn dip_agreement_chance(sigma: f64) -> f64 {
    let (_, [least, most]) = DIPS;
    let near = (AGREEMENT[0].max(AGREEMENT[1] * sigma) / (most - least)).min(1.0);
    3.0 * near.powi(2) - 2.0 * near.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_noise_makes_more_false_blames() {
        let odds = [0.001, 0.003, 0.01, 0.02, 0.03].map(ClosedFormOdds::from_sigma);
        for two in odds.windows(2) {
            assert!(two[0].blamed_gpus < two[1].blamed_gpus * (1.0 + 1e-9), "{two:?}");
            assert!(two[0].blamed_pairs < two[1].blamed_pairs, "{two:?}");
        }
    }

    #[test]
    fn false_blames_stay_within_the_target() {
        for sigma in [0.001, 0.003, 0.01] {
            let odds = ClosedFormOdds::from_sigma(sigma);
            assert!(odds.blamed_gpus + odds.blamed_pairs < 1e-6, "{sigma}: {odds:?}");
        }
    }

    #[test]
    fn three_dips_agree_as_often_as_computed() {
        let mut dice = 1_u64;
        let mut next = || {
            // Knuth's linear congruential generator (MMIX).
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (dice >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (_, [least, most]) = DIPS;
        let mut agreed = 0;
        for _ in 0..200_000 {
            let three = [next(), next(), next()].map(|share| least + (most - least) * share);
            let high = three.iter().copied().fold(f64::MIN, f64::max);
            let low = three.iter().copied().fold(f64::MAX, f64::min);
            agreed += u32::from(high - low <= 5.0 * 0.01);
        }
        let counted = f64::from(agreed) / 200_000.0;
        assert!(
            (counted / dip_agreement_chance(0.01) - 1.0).abs() < 0.05,
            "{counted} {}",
            dip_agreement_chance(0.01)
        );
    }

    #[test]
    fn the_odds_are_those_of_simulated_medians() {
        // Uses a noise level at which events are countable: the median of 17 healthy readings is
        // below a line of one standard deviation.
        let mut low_ones = 0;
        let noise = sim::noise::SimNoise { sigma: 0.03, dip_rate: DIPS.0, dip_depth: DIPS.1 };
        let key = sim::noise::NoiseKey::from_seed(5);
        for sweep in 0..40_000 {
            let mut all: Vec<f64> =
                (0..17).map(|at| noise.factor(key.with_part(sweep).with_part(at))).collect();
            low_ones += u32::from(stats::median(&mut all).expect("values") < 0.985);
        }
        let computed = stats::median_chance(low_reading_chance(0.03, 0.015), 17);
        let counted = f64::from(low_ones) / 40_000.0;
        assert!((counted / computed - 1.0).abs() < 0.1, "{counted} {computed}");
    }
}
