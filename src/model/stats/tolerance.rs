//! Tolerance limits: how far below the mean of `n` healthy readings a limit must be, so that a
//! given share of all healthy readings lies above it with a given confidence.

use statrs::distribution::{ContinuousCDF, Normal};
use statrs::function::gamma::ln_gamma;

/// Steps of the integral; its error is far below the precision of any table.
const STEPS: u32 = 1_000;

/// One-sided tolerance factor, exact: the mean minus this many standard deviations is below a
/// share `coverage` of the population with probability `confidence`. It is the quantile of a
/// non-central t over sqrt(n) (Owen 1968, A survey of properties and applications of the
/// noncentral t-distribution). `None` for fewer than two readings or for shares outside (0, 1).
pub fn tolerance_factor(readings: u32, coverage: f64, confidence: f64) -> Option<f64> {
    let is_share = |share: f64| 0.0 < share && share < 1.0;
    if readings < 2 || !is_share(coverage) || !is_share(confidence) {
        return None;
    }
    let (mut low, mut high) = (-1e3, 1e3);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if coverage_probability(readings, coverage, middle) < confidence {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(f64::midpoint(low, high))
}

/// The probability that a factor reaches the coverage. Given the observed standard deviation s,
/// the mean decides: Phi(sqrt(n) (k s - z)); s follows a chi distribution.
fn coverage_probability(readings: u32, coverage: f64, factor: f64) -> f64 {
    let normal = Normal::standard();
    let (n, z) = (f64::from(readings), normal.inverse_cdf(coverage));
    let freedom = n - 1.0;
    let log_scale =
        std::f64::consts::LN_2 + freedom / 2.0 * (freedom / 2.0).ln() - ln_gamma(freedom / 2.0);
    let density = |s: f64| {
        let log = log_scale + (freedom - 1.0) * s.ln() - freedom * s * s / 2.0;
        if s <= 0.0 && 1.0 < freedom { 0.0 } else { log.exp() }
    };
    // The density is negligible beyond 12 standard errors.
    let width = 12.0 / (2.0 * freedom).sqrt();
    let (from, to) = ((1.0 - width).max(1e-12), 1.0 + width);
    let step = (to - from) / f64::from(STEPS);
    let sum: f64 = (0..=STEPS)
        .map(|at| {
            // Simpson's rule.
            let weight = match (at, at % 2) {
                (0 | STEPS, _) => 1.0,
                (_, 1) => 4.0,
                _ => 2.0,
            };
            let s = from + step * f64::from(at);
            weight * density(s) * normal.cdf(n.sqrt() * (factor * s - z))
        })
        .sum();
    sum * step / 3.0
}

/// The same in Natrella's closed form (Experimental Statistics, 1963, section 2-5.2): slightly
/// lower, with normal quantiles only. `None` for too few readings.
pub fn tolerance_factor_closed(readings: u32, coverage: f64, confidence: f64) -> Option<f64> {
    let normal = Normal::standard();
    let n = f64::from(readings.max(2));
    let (z, g) = (normal.inverse_cdf(coverage), normal.inverse_cdf(confidence));
    let a = 1.0 - g * g / (2.0 * (n - 1.0));
    let b = z * z - g * g / n;
    let root = z * z - a * b;
    (0.0 < a && 0.0 <= root).then(|| (z + root.sqrt()) / a)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::normal_sampler::NormalSampler;
    use super::*;

    #[test]
    fn factors_are_those_of_published_tables() {
        // Odeh and Owen 1980, as in the NIST handbook 7.2.6.3.
        for (n, coverage, confidence, factor) in [
            (10, 0.90, 0.95, 2.355),
            (10, 0.99, 0.95, 3.981),
            (20, 0.95, 0.95, 2.396),
            (50, 0.95, 0.95, 2.065),
            (43, 0.90, 0.99, 1.873),
        ] {
            let computed = tolerance_factor(n, coverage, confidence).expect("a factor");
            assert!((computed - factor).abs() < 1.5e-3, "{n}: {computed}");
        }
        for (n, exact, closed) in [(17, 4.47, 4.44), (71, 3.64, 3.63), (200, 3.40, 3.39)] {
            let computed = tolerance_factor(n, 0.999, 0.95).expect("a factor");
            assert!((computed - exact).abs() < 5e-3, "{n}: {computed}");
            let computed = tolerance_factor_closed(n, 0.999, 0.95).expect("a factor");
            assert!((computed - closed).abs() < 5e-3, "{n}: {computed}");
        }
        assert_eq!(tolerance_factor(1, 0.9, 0.9), None);
        assert_eq!(tolerance_factor(9, 1.0, 0.9), None);
        assert_eq!(tolerance_factor_closed(2, 0.999, 0.95), None);
    }

    #[test]
    fn a_simulated_limit_has_its_stated_coverage() {
        let (n, coverage, confidence) = (17, 0.999, 0.95);
        let factor = tolerance_factor(n, coverage, confidence).expect("a factor");
        let (mut normals, z) = (NormalSampler::new(11), Normal::standard().inverse_cdf(coverage));
        let rounds = 20_000;
        let covered = (0..rounds).filter(|_| {
            let values = normals.take(17);
            let mean = values.iter().sum::<f64>() / 17.0;
            let sd = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 16.0).sqrt();
            mean - factor * sd <= -z
        });
        let share = covered.count() as f64 / f64::from(rounds);
        assert!((share - confidence).abs() < 0.006, "{share}");
    }

    proptest! {
        // Every case is half a million steps of integrals.
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn more_coverage_and_confidence_need_more_and_readings_less(
            n in 5u32..150, coverage in 0.6..0.99f64, confidence in 0.6..0.99f64
        ) {
            let of = |n, c, g| tolerance_factor(n, c, g).expect("a factor");
            let factor = of(n, coverage, confidence);
            prop_assert!(factor < of(n, coverage + 0.005, confidence));
            prop_assert!(factor < of(n, coverage, confidence + 0.005));
            prop_assert!(of(n + 20, coverage, confidence) < factor);
            prop_assert!(Normal::standard().inverse_cdf(coverage) < factor);
        }
    }
}
