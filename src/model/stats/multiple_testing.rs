//! Multiple testing: p-values that may be compared with a single level.

/// Adjusted p-values by Holm (1979, A simple sequentially rejective multiple test procedure): the
/// probability of any false rejection is below the level, for every dependence between the tests.
/// For decisions that lead to actions.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let order = order(p);
    let mut adjusted = vec![1.0; p.len()];
    let mut highest = 0.0_f64;
    for (rank, at) in order.iter().enumerate() {
        highest = highest.max(p[*at] * count(p.len() - rank)).min(1.0);
        adjusted[*at] = highest;
    }
    adjusted
}

/// Adjusted p-values by Benjamini and Hochberg (1995, Controlling the false discovery rate): the
/// expected share of false rejections is below the level. For the order of a report, never for
/// actions.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let order = order(p);
    let mut adjusted = vec![1.0; p.len()];
    let mut lowest = 1.0_f64;
    for (rank, at) in order.iter().enumerate().rev() {
        // The last factor must be exactly 1.
        lowest = lowest.min(p[*at] * (count(p.len()) / count(rank + 1)));
        adjusted[*at] = lowest;
    }
    adjusted
}

#[expect(clippy::cast_precision_loss, reason = "a count of tests")]
fn count(n: usize) -> f64 {
    n as f64
}

/// Indices of the tests, smallest p-value first.
fn order(p: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of Benjamini and Hochberg 1995, section 4.
    const PUBLISHED: [f64; 15] = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0000,
    ];

    fn below(adjusted: &[f64]) -> usize {
        adjusted.iter().filter(|p| **p <= 0.05).count()
    }

    #[test]
    fn the_published_example_rejects_what_it_did() {
        assert_eq!(below(&holm(&PUBLISHED)), 3);
        assert_eq!(below(&benjamini_hochberg(&PUBLISHED)), 4);
        assert!(holm(&[]).is_empty() && benjamini_hochberg(&[]).is_empty());
    }

    /// Rejections by the literal definition of the procedures.
    fn naive(p: &[f64], level: f64, holm: bool) -> usize {
        let mut sorted = p.to_vec();
        sorted.sort_by(f64::total_cmp);
        let m = p.len() as f64;
        if holm {
            let ends = (0..p.len()).find(|i| level / (m - *i as f64) < sorted[*i]);
            return ends.unwrap_or(p.len());
        }
        (1..=p.len()).rev().find(|i| sorted[i - 1] <= *i as f64 / m * level).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn adjusted_values_reject_what_the_procedures_do(
            p in prop::collection::vec(0.0..1.0f64, 1..40), level in 0.01..0.5f64
        ) {
            let rejected = |adjusted: Vec<f64>| adjusted.iter().filter(|a| **a <= level).count();
            prop_assert_eq!(rejected(holm(&p)), naive(&p, level, true));
            prop_assert_eq!(rejected(benjamini_hochberg(&p)), naive(&p, level, false));
        }

        #[test]
        fn adjusting_keeps_order_and_place_and_never_helps(
            p in prop::collection::vec(0.0..1.0f64, 1..40), turn in 0usize..40
        ) {
            for adjust in [holm, benjamini_hochberg] {
                let adjusted = adjust(&p);
                for i in 0..p.len() {
                    prop_assert!(p[i] <= adjusted[i] && adjusted[i] <= 1.0);
                    for j in 0..p.len() {
                        prop_assert!(p[j] < p[i] || adjusted[i] <= adjusted[j]);
                    }
                }
                let (mut moved, mut expected) = (p.clone(), adjusted);
                let by = turn % p.len();
                moved.rotate_left(by);
                expected.rotate_left(by);
                prop_assert_eq!(adjust(&moved), expected);
            }
            for (holm, bh) in holm(&p).iter().zip(benjamini_hochberg(&p)) {
                prop_assert!(bh <= *holm);
            }
        }
    }
}
