//! Detection of a slow loss over many sweeps: one-sided cumulative sum (Page 1954, Continuous
//! inspection schemes).

/// Accumulates how far readings lie below the baseline, less an allowance, and raises an alarm
/// when the sum is too large to be chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cusum {
    /// The allowance: half the relevant shift, in standard deviations.
    pub allowance: f64,
    /// The alarm limit of the sum, in standard deviations.
    pub limit: f64,
    sum: f64,
}

impl Cusum {
    /// One false alarm in 90,000 readings; detects the loss of one of 18 links at 1 % noise in
    /// 1.6 readings.
    pub const STEPS: Self = Self { allowance: 1.0, limit: 4.88, sum: 0.0 };

    /// The same false alarm rate; detects a drift of one standard deviation in 19 readings.
    pub const DRIFTS: Self = Self { allowance: 0.5, limit: 9.55, sum: 0.0 };

    /// A chart with an empty sum.
    pub fn new(allowance: f64, limit: f64) -> Self {
        Self { allowance, limit, sum: 0.0 }
    }

    /// Adds a reading, as its deviation from the baseline in standard deviations; true on an
    /// alarm. A NaN adds nothing.
    pub fn add(&mut self, deviation: f64) -> bool {
        let sum = self.sum - deviation - self.allowance;
        if !sum.is_nan() {
            self.sum = sum.max(0.0);
        }
        self.limit < self.sum
    }

    /// The accumulated sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::normal_sampler::NormalSampler;
    use super::*;

    /// Mean number of readings until an alarm.
    fn run_length(start: Cusum, shift: f64, runs: u32, seed: u64) -> f64 {
        let mut normals = NormalSampler::new(seed);
        let mut readings = 0u64;
        for _ in 0..runs {
            let mut cusum = start;
            loop {
                readings += 1;
                if cusum.add(normals.next_normal() - shift) {
                    break;
                }
            }
        }
        readings as f64 / f64::from(runs)
    }

    /// Siegmund 1985, Sequential Analysis, (2.56): the random walk, with its limit shifted by the
    /// overshoot.
    fn siegmund(cusum: Cusum, shift: f64) -> f64 {
        let (drift, limit) = (shift - cusum.allowance, cusum.limit + 1.166);
        ((-2.0 * drift * limit).exp() + 2.0 * drift * limit - 1.0) / (2.0 * drift * drift)
    }

    #[test]
    fn mean_run_lengths_are_those_of_published_tables() {
        // Montgomery, Statistical Quality Control, table 9.3: k = 1/2, two-sided; a one-sided
        // chart runs twice as long without a shift.
        for (limit, shift, published) in
            [(4.0, 0.0, 2.0 * 168.0), (4.0, 1.0, 8.38), (5.0, 1.0, 10.4), (5.0, 2.0, 4.01)]
        {
            let mean = run_length(Cusum::new(0.5, limit), shift, 8_000, 3);
            assert!((mean / published - 1.0).abs() < 0.04, "{limit} {shift}: {mean}");
        }
    }

    #[test]
    fn the_two_in_use_are_silent_and_quick_as_designed() {
        for cusum in [Cusum::STEPS, Cusum::DRIFTS] {
            let silent = siegmund(cusum, 0.0);
            assert!((80_000.0..100_000.0).contains(&silent), "{silent}");
        }
        // 17 of 18 links at a noise of 1 % is 5.56 standard deviations.
        for (cusum, shift, readings) in
            [(Cusum::STEPS, 5.56, 1.6), (Cusum::STEPS, 2.0, 5.6), (Cusum::DRIFTS, 1.0, 19.5)]
        {
            let mean = run_length(cusum, shift, 4_000, 5);
            assert!((mean / readings - 1.0).abs() < 0.05, "{shift}: {mean}");
        }
        // The formula and the simulation are independent of each other.
        let small = Cusum::new(1.0, 2.0);
        let (mean, formula) = (run_length(small, 0.0, 8_000, 7), siegmund(small, 0.0));
        assert!((mean / formula - 1.0).abs() < 0.08, "{mean} {formula}");
    }

    proptest! {
        #[test]
        fn only_what_is_lower_can_bring_an_alarm_nearer(
            values in prop::collection::vec(-6.0..6.0f64, 1..50), lower in 0.0..3.0f64
        ) {
            let (mut high, mut low) = (Cusum::STEPS, Cusum::STEPS);
            for value in values {
                let (early, late) = (low.add(value - lower), high.add(value));
                prop_assert!(high.sum() <= low.sum() && (early || !late));
            }
            let before = high;
            prop_assert!(!high.add(f64::NAN) || before.limit < before.sum());
            prop_assert_eq!(before, high);
        }
    }
}
