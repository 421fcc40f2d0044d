//! Whether a path needs another reading: Wald's sequential probability ratio test between full rate
//! and 5 % less.
//!
//! It only decides when to stop reading. The sibling modules judge low parts, from all readings.

use std::collections::{BTreeMap, BTreeSet};

use model::measurement::Measurement;
use model::parse_output::ParseOutput;
use model::stats;
use model::unit::Unit;

/// The loss that the test must distinguish from none: slightly less than one link of 18.
const LOSS: f64 = 0.05;

/// Probability that a healthy path is reported as low.
const ALPHA: f64 = 1e-4;

/// Probability that a low path is reported as healthy.
const BETA: f64 = 1e-3;

/// Upper bound on the weight of one low reading: less than half of ln((1 - beta) / alpha) = 9.2, so
/// that two dips of one depth never decide and a third reading is taken.
const HEAVIEST_AGAINST: f64 = 4.5;

/// Upper bound on the weight of one good reading; one is enough (-ln(beta) = 6.9), since chance
/// never makes a reading too high.
const HEAVIEST_FOR: f64 = 8.0;

/// No path is slower than this; a reading of 0 has no logarithm.
const LEAST_READING: f64 = 1e-6;

/// The best repeatability that this decision assumes for an instrument.
const LEAST_SIGMA: f64 = 0.002;

/// Fewer values do not define a spread.
const FEWEST: usize = 6;

/// Assumed where there are fewer: usual for collectives and NICs.
const ASSUMED_SIGMA: f64 = 0.01;

/// The result of a path's readings so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequentialDecision {
    /// At full rate.
    Healthy,
    /// Below it.
    Low,
    /// Read it again.
    Undecided,
}

/// Decides from a path's readings. They are relative to the reference, in the order they were
/// taken; `sigma` is the relative standard deviation of one.
pub fn decide_path(readings: &[f64], sigma: f64) -> SequentialDecision {
    let sigma = sigma.max(LEAST_SIGMA);
    let (low, healthy) = (((1.0 - BETA) / ALPHA).ln(), (BETA / (1.0 - ALPHA)).ln());
    let mut sum = 0.0_f64;
    for reading in readings {
        // `max` would turn NaN into the smallest reading.
        if !reading.is_finite() {
            continue;
        }
        // Noise multiplies, so readings are compared by their logarithms.
        let level = reading.max(LEAST_READING).ln();
        let (from_full, from_low) = (level, level - (1.0 - LOSS).ln());
        let step = (from_full.powi(2) - from_low.powi(2)) / (2.0 * sigma.powi(2));
        sum += step.clamp(-HEAVIEST_FOR, HEAVIEST_AGAINST);
        if low <= sum {
            return SequentialDecision::Low;
        }
        if sum <= healthy {
            return SequentialDecision::Healthy;
        }
    }
    SequentialDecision::Undecided
}

/// The readings of one path: one direction of one pair in one test.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReadings {
    /// The step of the plan that took them.
    pub step: usize,
    /// The test: readings of one test are comparable.
    pub group: String,
    /// One value per reading, in the order they were taken.
    pub values: Vec<f64>,
}

/// The paths in the outputs of one step, in the order of its readings.
pub fn collect_paths(step: usize, readings: &[&ParseOutput]) -> Vec<PathReadings> {
    let mut paths: BTreeMap<(String, String, String), Vec<f64>> = BTreeMap::new();
    for parsed in readings {
        for measurement in &parsed.measurements {
            let Some(name) = measurement.testcase().map(str::to_owned) else { continue };
            match measurement {
                Measurement::Matrix(matrix) if matrix.unit.is_none_or(Unit::is_bandwidth) => {
                    for (row, col, value) in matrix.numbers() {
                        let (row, col) = (matrix.rows[row].clone(), matrix.cols[col].clone());
                        paths.entry((name.clone(), row, col)).or_default().push(value);
                    }
                }
                Measurement::Scalar(scalar) if scalar.unit.is_some_and(Unit::is_bandwidth) => {
                    let key = (name, String::new(), String::new());
                    paths.entry(key).or_default().push(scalar.value);
                }
                Measurement::Series(series) => {
                    let rates = series.points.iter().filter_map(|p| Some((p.bytes, p.algbw?)));
                    let Some((_, rate)) = rates.max_by_key(|(bytes, _)| *bytes) else { continue };
                    let key = (name, String::new(), String::new());
                    paths.entry(key).or_default().push(rate);
                }
                _ => {}
            }
        }
    }
    let made = paths.into_iter();
    made.map(|((group, ..), values)| PathReadings { step, group, values }).collect()
}

/// The steps of a round that need another reading, in order. The reference is the median of all
/// paths of the round that ran the same test.
pub fn undecided_steps(paths: &[PathReadings]) -> Vec<usize> {
    let mut groups: BTreeMap<&str, Vec<&PathReadings>> = BTreeMap::new();
    for path in paths {
        groups.entry(&path.group).or_default().push(path);
    }
    let mut steps = BTreeSet::new();
    for paths in groups.values() {
        let mut middles: Vec<f64> =
            paths.iter().filter_map(|p| stats::median(&mut p.values.clone())).collect();
        let reference = stats::median(&mut middles).filter(|m| 0.0 < *m);
        // With two paths, the correct one is ambiguous.
        let Some(reference) = reference.filter(|_| 2 < middles.len()) else {
            steps.extend(paths.iter().map(|p| p.step));
            continue;
        };
        let sigma = estimate_sigma(paths, &middles, reference);
        for path in paths {
            let readings: Vec<f64> = path.values.iter().map(|v| v / reference).collect();
            if decide_path(&readings, sigma) == SequentialDecision::Undecided {
                steps.insert(path.step);
            }
        }
    }
    steps.into_iter().collect()
}

/// Relative standard deviation of one reading: from repeated readings if any, else from the spread
/// of the paths.
fn estimate_sigma(paths: &[&PathReadings], middles: &[f64], reference: f64) -> f64 {
    let repeated = stats::repeat_sigma(paths.iter().map(|p| p.values.as_slice()));
    let spread = repeated.or_else(|| {
        let shares: Vec<f64> = middles.iter().map(|m| m / reference).collect();
        if shares.len() < FEWEST { None } else { stats::spread(&shares, 1.0) }
    });
    spread.unwrap_or(ASSUMED_SIGMA).max(LEAST_SIGMA)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use model::stats::normal_sampler::NormalSampler;

    /// Mean number of readings until decided, and the share of wrong decisions.
    fn simulated(sigma: f64, share: f64) -> (f64, f64) {
        const PATHS: u32 = 4_000;
        let mut normals = NormalSampler::new(11);
        let (mut count, mut wrong) = (0u32, 0u32);
        for _ in 0..PATHS {
            let mut readings = Vec::new();
            let decision = loop {
                readings.push(share * (1.0 + sigma * normals.next_normal()));
                match decide_path(&readings, sigma) {
                    SequentialDecision::Undecided => {}
                    decided => break decided,
                }
            };
            count += u32::try_from(readings.len()).expect("few");
            wrong += u32::from((decision == SequentialDecision::Low) != (share < 1.0));
        }
        (f64::from(count) / f64::from(PATHS), f64::from(wrong) / f64::from(PATHS))
    }

    #[test]
    fn mean_reading_counts_match_the_design_and_are_three_for_a_low_path() {
        // Healthy, 17 of 18 links, 3 of 4: the design table, except that the table calls a path low
        // after two readings.
        for (sigma, healthy, one_link, quarter) in [
            (0.005, 1.0, 3.0, 3.0),
            (0.01, 1.1, 3.0, 3.0),
            (0.02, 2.9, 3.6, 3.0),
            (0.03, 5.9, 6.1, 3.0),
            (0.05, 14.9, 14.9, 3.0),
        ] {
            for (share, expected) in [(1.0, healthy), (17.0 / 18.0, one_link), (0.75, quarter)] {
                let (mean, wrong) = simulated(sigma, share);
                // The table is rounded, and its noise has a tail that this test lacks.
                assert!(
                    (mean / expected - 1.0).abs() < 0.12,
                    "sigma {sigma}, share {share}: {mean}, expected {expected}"
                );
                assert!(wrong < 0.004, "sigma {sigma}, share {share}: {wrong} wrong");
            }
        }
    }

    #[test]
    fn non_numbers_decide_nothing() {
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(decide_path(&[none; 9], 0.01), SequentialDecision::Undecided, "{none}");
            assert_eq!(decide_path(&[none, 1.0], 0.01), SequentialDecision::Healthy, "{none}");
        }
    }

    proptest! {
        #[test]
        fn two_readings_never_decide_that_a_path_is_low(
            readings in prop::collection::vec(0.0..1.2f64, 1..3),
            sigma in 0.0..0.1f64,
        ) {
            prop_assert_ne!(decide_path(&readings, sigma), SequentialDecision::Low);
        }

        #[test]
        fn later_readings_do_not_change_a_decision(
            readings in prop::collection::vec(0.5..1.1f64, 1..30),
            more in prop::collection::vec(0.0..2.0f64, 1..5),
            sigma in 0.001..0.1f64,
        ) {
            let before = decide_path(&readings, sigma);
            let all: Vec<f64> = readings.iter().chain(&more).copied().collect();
            let after = decide_path(&all, sigma);
            prop_assert!(before == SequentialDecision::Undecided || after == before);
        }

        #[test]
        fn the_unit_does_not_matter(
            values in prop::collection::vec(prop::collection::vec(0.8..1.1f64, 1..6), 1..12),
            scale in 0.01..1000.0f64,
        ) {
            let paths = |scale: f64| -> Vec<PathReadings> {
                let of = |(step, values): (usize, &Vec<f64>)| PathReadings {
                    step,
                    group: "t".to_owned(),
                    values: values.iter().map(|v| v * scale).collect(),
                };
                values.iter().enumerate().map(of).collect()
            };
            // Powers of two scale without rounding.
            let exact = scale.log2().round().exp2();
            prop_assert_eq!(undecided_steps(&paths(1.0)), undecided_steps(&paths(exact)));
        }
    }

    fn round(values: &[&[f64]]) -> Vec<PathReadings> {
        let of = |(step, values): (usize, &&[f64])| PathReadings {
            step: step + 10,
            group: "t".to_owned(),
            values: values.to_vec(),
        };
        values.iter().enumerate().map(of).collect()
    }

    #[test]
    fn a_quiet_round_needs_one_reading_and_a_low_path_another() {
        let mut first: Vec<[f64; 1]> = (0..9).map(|at| [100.0 + 0.1 * f64::from(at % 3)]).collect();
        let quiet: Vec<&[f64]> = first.iter().map(<[f64; 1]>::as_slice).collect();
        assert_eq!(undecided_steps(&round(&quiet)), Vec::<usize>::new());
        first[4] = [94.4];
        let low: Vec<&[f64]> = first.iter().map(<[f64; 1]>::as_slice).collect();
        assert_eq!(undecided_steps(&round(&low)), [14]);
        let mut again = round(&low);
        again[4].values.push(94.5);
        assert_eq!(undecided_steps(&again), [14], "two dips could be as deep");
        again[4].values.push(94.4);
        assert_eq!(undecided_steps(&again), Vec::<usize>::new());
    }

    #[test]
    fn two_paths_cannot_decide_each_other() {
        assert_eq!(undecided_steps(&round(&[&[100.0, 100.0], &[94.0, 94.0]])), [10, 11]);
        assert_eq!(undecided_steps(&[]), Vec::<usize>::new());
    }

    #[test]
    fn every_direction_of_a_step_is_its_own_path() {
        let text = r#"{"format":"fabricgate.tcp/1","version":"0","source":{"node":"a"},
            "destination":{"node":"b"},"unit":"GB/s","complete":true,"readings":[
            {"reading":0,"forward":{"sent_bytes":1,"received_bytes":1,"rate":2.0},
             "reverse":{"sent_bytes":1,"received_bytes":1,"rate":3.0}}],
            "latency":{"median_us":9.0}}"#;
        let parsed = readers::outputs::parse_output(text.as_bytes());
        let paths = collect_paths(7, &[&parsed, &parsed]);
        let values: Vec<&[f64]> = paths.iter().map(|p| p.values.as_slice()).collect();
        assert_eq!(values, [[2.0, 2.0], [3.0, 3.0]]);
        assert!(paths.iter().all(|p| p.step == 7 && p.group == "tcp_throughput"));
    }
}
