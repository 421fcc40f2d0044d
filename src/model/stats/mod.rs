//! Order statistics that are robust against a few bad readings.
//!
//! The noise of fabric measurements has its tail on the left (disturbances lower a reading), so
//! spreads are computed from medians, and the larger of the two halves counts. Pure functions
//! over slices.

mod cusum;
mod multiple_testing;
pub mod normal_sampler;
mod robust_scale;
mod tolerance;

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};
use statrs::function::beta::beta_reg;

pub use cusum::Cusum;
pub use multiple_testing::{benjamini_hochberg, holm};
pub use robust_scale::{lower_mad, mad, qn};
pub use tolerance::{tolerance_factor, tolerance_factor_closed};

/// Scales a median absolute deviation to the standard deviation of a normal
/// distribution: 1 / Phi^-1(3/4) (Rousseeuw and Croux 1993).
pub const MAD_TO_SIGMA: f64 = 1.482_602_218_505_602;

/// Efficiency loss of a median against a mean: sqrt(pi / 2).
const MEDIAN_PENALTY: f64 = 1.253_314_137_315_500_3;

/// The median; `None` of an empty slice. Reorders the slice.
pub fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let (middle, odd) = (values.len() / 2, values.len() % 2 == 1);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if odd {
        return Some(upper);
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(f64::midpoint(lower, upper))
}

/// The median; `None` of an empty slice. Sorts the slice, so that its first value is the lowest.
pub fn sort_median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, *values.get(middle)?)),
        _ => values.get(middle).copied(),
    }
}

/// The value below which a share `q` of the values lies (nearest rank). Reorders the slice.
pub fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank within the slice"
    )]
    let rank = ((last as f64) * q.clamp(0.0, 1.0)).round() as usize;
    let (_, value, _) = values.select_nth_unstable_by(rank.min(last), f64::total_cmp);
    Some(*value)
}

/// Robust standard deviation around `centre`: from the median absolute
/// deviation of all values, or of the lower half, whichever is larger.
pub fn spread(values: &[f64], centre: f64) -> Option<f64> {
    let mut all: Vec<f64> = values.iter().map(|v| (v - centre).abs()).collect();
    let mut lower: Vec<f64> = values.iter().filter(|v| **v < centre).map(|v| centre - v).collect();
    // Quantised values tie with the centre: they count in the lower half, which would otherwise
    // consist of a single bad value.
    lower.resize(lower.len().max(values.len() / 2), 0.0);
    let all = median(&mut all)?;
    let lower = median(&mut lower).unwrap_or(0.0);
    Some(all.max(lower) * MAD_TO_SIGMA)
}

/// Mean range of 2, 3, ... readings of a standard normal distribution (Tippett
/// 1925; the constant d2 of control charts).
const MEAN_RANGE: [f64; 9] = [1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078];

/// The ratio of mean to median range of 3 to 5 readings: the distribution is skewed to the right.
const RANGE_LEAN: f64 = 1.05;

/// Fewer repeated cells than this do not give an estimate.
const FEWEST_REPEATED: usize = 4;

/// Relative standard deviation of one reading, from cells with repeated readings: their median
/// range, which is robust against dips in fewer than half of the cells. `None` if too few cells
/// were repeated.
pub fn repeat_sigma<'v>(cells: impl Iterator<Item = &'v [f64]>) -> Option<f64> {
    let relative = |values: &'v [f64]| {
        let values = &values[..values.len().min(MEAN_RANGE.len() + 1)];
        let middle = median(&mut values.to_vec()).filter(|m| 0.0 < *m)?;
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let usual = MEAN_RANGE.get(values.len().checked_sub(2)?)?;
        Some((highest - lowest) / middle / usual * RANGE_LEAN)
    };
    let mut all = 0;
    let mut sigmas: Vec<f64> = cells.inspect(|_| all += 1).filter_map(relative).collect();
    let chosen = sigmas.len() * 2 < all;
    if sigmas.len() < FEWEST_REPEATED || chosen { None } else { median(&mut sigmas) }
}

/// Standard error of a median of `count` values with this standard deviation.
pub fn median_error(sigma: f64, count: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of readings")]
    let n = count.max(1) as f64;
    // A median of one or two values is their mean: no penalty.
    let penalty = if count <= 2 { 1.0 } else { MEDIAN_PENALTY };
    penalty * sigma / n.sqrt()
}

/// The probability that the median of an odd count of independent readings has a property that
/// each reading has with probability `each`: that more than half of them have it (David and
/// Nagaraja 2003, Order Statistics, section 2.1).
pub fn median_chance(each: f64, count: u32) -> f64 {
    let half = f64::from(count / 2 + 1);
    if each <= 0.0 { 0.0 } else { beta_reg(half, half, each.min(1.0)) }
}

/// The limit, in standard deviations, that any of `tests` normal readings crosses with
/// probability `family_error` (Bonferroni).
pub fn family_z(tests: usize, family_error: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of cells")]
    let each = family_error / (tests.max(1) as f64);
    Normal::standard().inverse_cdf(1.0 - each)
}

/// The value that Student's distribution exceeds with this probability, in standard deviations.
pub fn student_z(freedom: f64, chance: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - chance))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_median_of_even_count_is_the_middle_of_two() {
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn one_wild_value_does_not_widen_the_spread() {
        let mut values = vec![1.0; 50];
        for (i, v) in values.iter_mut().enumerate() {
            *v += if i % 2 == 0 { 0.001 } else { -0.001 };
        }
        let calm = spread(&values, 1.0).expect("values");
        values.push(0.2);
        let wild = spread(&values, 1.0).expect("values");
        assert!((calm - 0.001_482_6).abs() < 1e-6);
        assert!((wild - calm).abs() < 1e-6);
    }

    #[test]
    fn one_value_below_many_equal_ones_is_no_spread() {
        let mut values = vec![1.0; 29];
        values.push(0.5);
        assert_eq!(spread(&values, 1.0), Some(0.0));
        // Without ties, the lower half is everything below the centre.
        assert_eq!(spread(&[0.7, 0.9, 1.1, 1.2], 1.0), Some(0.2 * MAD_TO_SIGMA));
    }

    #[test]
    fn the_spread_of_repeated_readings_survives_a_dip() {
        let cells: Vec<[f64; 3]> = (0..9)
            .map(|at| {
                let dip = if at == 4 { 0.3 } else { 0.0 };
                [100.0 - dip * 100.0, 101.693, 100.5]
            })
            .collect();
        let sigma = repeat_sigma(cells.iter().map(<[f64; 3]>::as_slice)).expect("repeated");
        assert!((sigma - 0.0104).abs() < 2e-4, "{sigma}");
        assert_eq!(repeat_sigma([[1.0].as_slice(); 9].into_iter()), None);
        // Four cells that dipped and were repeated are not representative of the other forty.
        let once = [[1.0]; 40];
        let dipped = [[1.0, 0.7]; 4];
        let chosen = once.iter().map(<[f64; 1]>::as_slice);
        assert_eq!(repeat_sigma(chosen.chain(dipped.iter().map(<[f64; 2]>::as_slice))), None);
    }

    #[test]
    fn student_z_agrees_with_the_published_table() {
        for (freedom, z) in [(2.0, 9.925), (7.0, 3.499), (30.0, 2.750)] {
            assert!((student_z(freedom, 5e-3) - z).abs() < 2e-3, "{freedom}");
        }
    }

    #[test]
    fn family_z_agrees_with_the_published_table() {
        // facts of the design: z for family error 1e-3 over 153, 2,556 and
        // 523,776 cells is 4.4, 4.9 and 5.9.
        for (cells, z) in [(153, 4.4), (2_556, 4.9), (523_776, 5.9)] {
            assert!((family_z(cells, 1e-3) - z).abs() < 0.06, "{cells}");
        }
    }

    #[test]
    fn the_error_of_a_median_is_that_of_its_distribution_or_a_little_more() {
        // Variance of a median of n normal values, by its own distribution:
        // E x^2 is twice the integral of x P(|median| > x).
        let exact = |n: u32| {
            let beyond = |x: f64| 2.0 * median_chance(Normal::standard().cdf(-x), n);
            let sum: f64 =
                (0..8_000).map(|at| (f64::from(at) + 0.5) * 1e-3).map(|x| x * beyond(x)).sum();
            (2.0 * sum * 1e-3).sqrt()
        };
        // Hojo 1931: 0.4487, 0.2868, 0.1661; and kappa(17) of the design.
        for (n, published) in
            [(3, 0.4487_f64.sqrt()), (5, 0.5356), (9, 0.1661_f64.sqrt()), (17, 0.30)]
        {
            let error = exact(n);
            assert!((error - published).abs() < 2e-3, "{n}: {error}");
            // The approximation in use holds for many readings and is conservative.
            let used = median_error(1.0, n as usize);
            assert!(error <= used && used < error * 1.085, "{n}: {used} {error}");
        }
    }

    proptest! {
        #[test]
        fn a_median_is_low_when_more_than_half_are(each in 0.0..1.0f64, half in 0u32..9) {
            // The binomial sum, term by term.
            let n = 2 * half + 1;
            let choose = |k: u32| (0..k).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1));
            let term = |k: u32| {
                choose(k) * each.powf(f64::from(k)) * (1.0 - each).powf(f64::from(n - k))
            };
            let sum: f64 = (half + 1..=n).map(term).sum();
            prop_assert!((median_chance(each, n) - sum).abs() < 1e-9, "{sum}");
        }

        #[test]
        fn a_median_and_a_spread_follow_scale_and_place(
            values in prop::collection::vec(-100.0..100.0f64, 1..60),
            scale in 0.01..100.0f64, shift in -100.0..100.0f64
        ) {
            let moved: Vec<f64> = values.iter().rev().map(|v| v * scale + shift).collect();
            let [before, after] =
                [&values, &moved].map(|v| median(&mut v.clone()).expect("values"));
            prop_assert!((after - (before * scale + shift)).abs() < 1e-6);
            let [before, after] =
                [(&values, before), (&moved, after)].map(|(v, m)| spread(v, m).expect("values"));
            prop_assert!((after - before * scale).abs() < 1e-5 * (1.0 + after));
        }

        #[test]
        fn a_median_lies_between_the_extremes(mut values in prop::collection::vec(-1e6..1e6f64, 1..200)) {
            let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            let m = median(&mut values).expect("values");
            prop_assert!(low <= m && m <= high);
            let below = values.iter().filter(|v| **v < m).count();
            let above = values.iter().filter(|v| m < **v).count();
            prop_assert!(below * 2 <= values.len() && above * 2 <= values.len());
        }
    }
}
