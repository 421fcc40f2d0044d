//! Scale estimators, among them Qn, which needs no centre.

use super::median;

/// Factor that makes Qn consistent for the standard deviation of a normal distribution (Rousseeuw
/// and Croux 1993, Alternatives to the Median Absolute Deviation, section 3).
const QN: f64 = 2.2219;

/// Corrections for 2 to 9 values (Croux and Rousseeuw 1992, Time-efficient
/// algorithms for two highly robust estimators of scale).
const QN_SMALL: [f64; 8] = [0.399, 0.994, 0.512, 0.844, 0.611, 0.857, 0.669, 0.872];

/// Robust standard deviation from the distances of all pairs of values; `None` of fewer than two.
/// Up to half of the values may be arbitrary. Unlike the median absolute deviation it has an
/// efficiency of 82 % for normal values and does not assume symmetry.
pub fn qn(values: &[f64]) -> Option<f64> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mut distances: Vec<f64> = values
        .iter()
        .enumerate()
        .flat_map(|(at, one)| values[at + 1..].iter().map(move |other| (one - other).abs()))
        .collect();
    let half = n / 2 + 1;
    let (_, kth, _) = distances.select_nth_unstable_by(half * (half - 1) / 2 - 1, f64::total_cmp);
    Some(*kth * QN * correction(n))
}

#[expect(clippy::cast_precision_loss, reason = "a count of values")]
fn correction(n: usize) -> f64 {
    match (QN_SMALL.get(n - 2), n % 2) {
        (Some(small), _) => *small,
        (None, 1) => n as f64 / (n as f64 + 1.4),
        (None, _) => n as f64 / (n as f64 + 3.8),
    }
}

/// Median absolute deviation from the median, scaled to a standard deviation.
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(&mut values.to_vec())?;
    deviation(values.iter().map(|value| (value - centre).abs()))
}

/// The same for the values below the median only: disturbances lower measurements.
pub fn lower_mad(values: &[f64]) -> Option<f64> {
    let centre = median(&mut values.to_vec())?;
    deviation(values.iter().filter(|value| **value < centre).map(|value| centre - value))
}

fn deviation(distances: impl Iterator<Item = f64>) -> Option<f64> {
    Some(median(&mut distances.collect::<Vec<_>>())? * super::MAD_TO_SIGMA)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::normal_sampler::NormalSampler;
    use super::*;

    /// All pairs, sorted, by the literal definition in the paper.
    fn naive(values: &[f64]) -> f64 {
        let mut all = Vec::new();
        for i in 0..values.len() {
            for j in 0..i {
                all.push((values[i] - values[j]).abs());
            }
        }
        all.sort_by(f64::total_cmp);
        let h = values.len() / 2 + 1;
        let k = h * (h - 1) / 2;
        all[k - 1] * 2.2219
    }

    #[test]
    fn qn_of_normal_values_is_their_standard_deviation_at_every_count() {
        let mut normals = NormalSampler::new(3);
        for n in [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 18, 71] {
            let rounds = if n < 20 { 20_000 } else { 2_000 };
            let total: f64 =
                (0..rounds).map(|_| qn(&normals.take(n)).expect("enough values")).sum();
            let mean = total / f64::from(rounds);
            assert!((mean - 1.0).abs() < 0.02, "{n}: {mean}");
        }
    }

    #[test]
    fn qn_is_steadier_than_the_median_deviation() {
        // Efficiencies of 82 and 37 % (Rousseeuw and Croux 1993, table 2).
        let mut normals = NormalSampler::new(5);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..1_000 {
            let values = normals.take(100);
            a.push(qn(&values).expect("values"));
            b.push(mad(&values).expect("values"));
        }
        let variance = |v: &[f64]| {
            let mean = v.iter().sum::<f64>() / 1_000.0;
            v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1_000.0 / mean.powi(2)
        };
        let gain = variance(&b) / variance(&a);
        assert!((1.7..2.8).contains(&gain), "{gain}");
    }

    #[test]
    fn half_of_the_values_may_be_anything() {
        let mut values = NormalSampler::new(7).take(21);
        let calm = qn(&values).expect("values");
        for value in &mut values[..10] {
            *value -= 1e6;
        }
        assert!(qn(&values).expect("values") < 4.0 * calm);
        assert_eq!((qn(&[1.0]), mad(&[]), lower_mad(&[1.0])), (None, None, None));
    }

    #[test]
    fn the_lower_half_shows_what_pulls_down() {
        let values = [1.00, 1.01, 1.02, 1.03, 0.95, 0.90, 0.99];
        assert!(mad(&values).expect("values") < lower_mad(&values).expect("values"));
        // By hand: the median is 1, below it are 0.01, 0.05 and 0.1.
        assert!((lower_mad(&values).expect("values") - 0.05 * 1.482_602_218).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn spreads_follow_scale_and_not_place_or_order(
            values in prop::collection::vec(-100.0..100.0f64, 2..60),
            scale in 0.01..100.0f64, shift in -100.0..100.0f64, turn in 0usize..60
        ) {
            let mut moved: Vec<f64> = values.iter().map(|v| v * scale + shift).collect();
            let by = turn % moved.len();
            moved.rotate_left(by);
            for spread in [qn, mad, lower_mad] {
                match (spread(&values), spread(&moved)) {
                    (Some(before), Some(after)) => {
                        prop_assert!((after - before * scale).abs() < 1e-6 * (1.0 + after));
                    }
                    // All equal except for rounding: the lower half may be empty.
                    (before, after) => {
                        prop_assert!(before.or(after).unwrap_or(0.0) < 1e-6);
                    }
                }
            }
        }

        #[test]
        fn qn_is_the_order_statistic_of_the_paper(
            values in prop::collection::vec(-10.0..10.0f64, 2..40)
        ) {
            let computed = qn(&values).expect("values");
            prop_assert!((computed - naive(&values) * correction(values.len())).abs() < 1e-12);
        }
    }
}
