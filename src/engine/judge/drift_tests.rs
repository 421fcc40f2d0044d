//! The charts' false alarm rate, their detection delay, and the lifetime of a baseline.

use super::*;
use model::id::NodeName;
use model::stats::normal_sampler::NormalSampler;
use model::trend::{FabricPart, FabricPartKind};
use model::unit::Unit;

/// Mean number of readings until a false alarm: the sum as a Markov chain over `states` classes
/// (Brook and Evans 1972, An approach to the probability distribution of cusum run length,
/// Biometrika 59).
fn run_length(allowance: f64, limit: f64, shift: f64, states: usize) -> f64 {
    let width = 2.0 * limit / (2.0 * states as f64 - 1.0);
    let below = |x: f64| standard_normal().cdf(x + allowance - shift);
    // (I - Q) L = 1, where Q holds the transition probabilities between classes.
    let mut rows: Vec<Vec<f64>> = (0..states)
        .map(|from| {
            let mut row: Vec<f64> = (0..states)
                .map(|to| {
                    let off = (to as f64 - from as f64) * width;
                    let low = if to == 0 { 0.0 } else { below(off - width / 2.0) };
                    let way = below(off + width / 2.0) - low;
                    f64::from(u8::from(from == to)) - way
                })
                .collect();
            row.push(1.0);
            row
        })
        .collect();
    for pivot in 0..states {
        let scale = rows[pivot][pivot];
        rows[pivot].iter_mut().for_each(|x| *x /= scale);
        let above = rows[pivot].clone();
        for (at, row) in rows.iter_mut().enumerate() {
            let factor = row[pivot];
            if at != pivot && factor != 0.0 {
                row.iter_mut().zip(&above).skip(pivot).for_each(|(x, a)| *x -= factor * a);
            }
        }
    }
    rows[0][states]
}

fn at(n: usize, value: f64) -> TrendPoint {
    TrendPoint {
        run: format!("r{n:04}"),
        at: format!("2026-01-01T00:{:02}:{:02}Z", n / 60, n % 60),
        at_unix: i64::try_from(n).expect("few points"),
        value,
        error: None,
        expected: None,
        outcome: Some(Outcome::Pass),
    }
}

fn series(values: impl IntoIterator<Item = f64>) -> Trend {
    Trend {
        part: FabricPart {
            kind: FabricPartKind::Gpu,
            domain: None,
            node: Some(NodeName::from("n1")),
            gpu: Some(0),
            peer: None,
            rail: None,
            direction: None,
        },
        testcase: "t".to_owned(),
        unit: Unit::GigabytesPerSecond,
        points: values.into_iter().enumerate().map(|(n, value)| at(n, value)).collect(),
        baseline: None,
        alarms: Vec::new(),
        changes: Vec::new(),
    }
}

/// Readings at this level with this noise.
fn noisy(normals: &mut NormalSampler, level: f64, sigma: f64, count: usize) -> Vec<f64> {
    (0..count).map(|_| level * (1.0 + sigma * normals.next_normal())).collect()
}

fn assessed(mut trend: Trend) -> Trend {
    assess(&mut trend);
    trend
}

fn changed(run: usize, kind: RunChangeKind, what: &str) -> RunChange {
    RunChange {
        run: at(run, 0.0).run,
        at: at(run, 0.0).at,
        node: Some(NodeName::from("n1")),
        kind,
        what: what.to_owned(),
        before: "a".to_owned(),
        after: "b".to_owned(),
    }
}

#[test]
fn each_chart_has_the_stated_false_alarm_rate() {
    // Published: k = 1/2, one side (Montgomery, table 9.3, both sides doubled).
    for (limit, published) in [(4.0, 336.0), (5.0, 930.0)] {
        let length = run_length(0.5, limit, 0.0, 100);
        assert!((length / published - 1.0).abs() < 0.01, "{limit}: {length}");
    }
    // The mean number of readings of a healthy part between two false alarms of one fast or slow
    // chart, from its sum as a Markov chain (Brook and Evans 1972).
    let stated = [84_300.0, 84_300.0, 89_300.0, 89_300.0];
    for (chart, stated) in CusumChart::all().iter().zip(stated) {
        let Cusum { allowance, limit, .. } = chart.fresh;
        let length = run_length(allowance, limit, 0.0, 120);
        assert!((length / stated - 1.0).abs() < 0.01, "{chart:?}: {length}");
    }
}

#[test]
fn readings_against_a_learnt_baseline_are_standard_normal_and_independent() {
    let mut normals = NormalSampler::new(11);
    let (mut all, mut products, mut far) = (Vec::new(), 0.0, 0);
    for _ in 0..1_500 {
        let mut reference = DriftReference::default();
        let mut before = None;
        for _ in 0..40 {
            let value = 100.0 + normals.next_normal();
            if reference.has_enough() {
                let out = reference.standardize(value).expect("enough");
                products += before.replace(out).map_or(0.0, |before| before * out);
                far += usize::from(3.0 < out.abs());
                all.push(out);
            }
            reference.learn(value);
        }
    }
    let count = all.len() as f64;
    let mean = all.iter().sum::<f64>() / count;
    let deviation = (all.iter().map(|x| x * x).sum::<f64>() / count).sqrt();
    // 48,000 of them: 4 standard errors are 0.018 of a mean, 0.013 of a deviation.
    assert!(mean.abs() < 0.018, "{mean}");
    assert!((deviation - 1.0).abs() < 0.02, "{deviation}");
    assert!((products / count).abs() < 0.018, "{}", products / count);
    let expected = 0.0027 * count;
    assert!((far as f64 - expected).abs() < 5.0 * expected.sqrt(), "{far} of {expected}");
}

#[test]
fn a_learnt_baseline_has_the_false_alarm_rate_of_a_known_one() {
    // 90,000 readings take too long; a lower limit follows the same law.
    let mut normals = NormalSampler::new(12);
    let known = run_length(1.0, 2.0, 0.0, 100);
    let (runs, mut readings) = (1_500, 0u32);
    for _ in 0..runs {
        let mut reference = DriftReference::default();
        let mut chart = Cusum::new(1.0, 2.0);
        loop {
            let value = 100.0 + normals.next_normal();
            if let Some(out) = reference.standardize(value).filter(|_| reference.has_enough()) {
                readings += 1;
                if chart.add(out) {
                    break;
                }
            }
            reference.learn(value);
        }
    }
    let learnt = f64::from(readings) / f64::from(runs);
    // The mean of 1,500 run lengths is known to 2.6 %.
    assert!((learnt / known - 1.0).abs() < 0.08, "learnt {learnt}, known {known}");
}

#[test]
fn healthy_parts_raise_no_more_alarms_than_four_charts_allow() {
    let mut normals = NormalSampler::new(13);
    let (parts, length) = (300, 300);
    let alarms: usize = (0..parts)
        .map(|_| assessed(series(noisy(&mut normals, 750.0, 0.01, length))).alarms.len())
        .sum();
    // Four charts, 90,000 readings: 4 alarms are expected, and more than 11 occur with a
    // probability of 1 in 1,000.
    assert!(alarms <= 11, "{alarms}");
}

#[test]
fn the_loss_of_one_link_of_18_raises_an_alarm_within_two_runs() {
    let mut normals = NormalSampler::new(14);
    let (mut late, mut shifts, mut dated, tries) = (Vec::new(), Vec::new(), 0, 200);
    for _ in 0..tries {
        let mut values = noisy(&mut normals, 750.0, 0.01, 30);
        values.extend(noisy(&mut normals, 750.0 * 17.0 / 18.0, 0.01, 8));
        let trend = assessed(series(values));
        let Some(alarm) = trend.alarms.iter().find(|alarm| "r0030" <= alarm.run.as_str()) else {
            panic!("never: {:?}", trend.alarms);
        };
        let run: usize = alarm.run[1..].parse().expect("a number");
        late.push(run - 29);
        shifts.push(alarm.shift);
        dated += usize::from(alarm.since == "r0030");
        assert_eq!(alarm.chart, "fast");
    }
    let middle = stats::median(&mut shifts).expect("some");
    assert!((middle + 1.0 / 18.0).abs() < 0.005, "{middle}");
    assert!(tries * 7 < dated * 10, "dated back to the right run: {dated} of {tries}");
    let mean = late.iter().sum::<usize>() as f64 / late.len() as f64;
    // 1.6 with a known baseline.
    assert!((1.4..2.2).contains(&mean), "{mean}");
}

#[test]
fn a_drift_raises_an_alarm_before_it_reaches_an_action_threshold() {
    let mut normals = NormalSampler::new(15);
    let (mut found, mut shares, tries) = (0, Vec::new(), 60);
    for _ in 0..tries {
        // 0.05 % less with every run, at 0.5 % noise: 2 % after 40 runs.
        let mut values = noisy(&mut normals, 750.0, 0.005, 40);
        let falling = noisy(&mut normals, 750.0, 0.005, 60);
        values.extend(falling.iter().enumerate().map(|(n, v)| v * (1.0 - 0.0005 * n as f64)));
        let trend = assessed(series(values));
        if let Some(alarm) = trend.alarms.iter().find(|a| a.shift < 0.0) {
            found += 1;
            let run: f64 = alarm.run[1..].parse().expect("a number");
            shares.push((run - 40.0) * 0.0005);
        }
    }
    assert!(tries - 3 <= found, "{found}");
    let middle = stats::median(&mut shares).expect("some");
    assert!(middle < 0.02, "{middle}");
}

#[test]
fn too_few_points_form_no_baseline_and_raise_no_alarm() {
    let mut normals = NormalSampler::new(16);
    let mut values = noisy(&mut normals, 750.0, 0.003, FEWEST - 1);
    values.push(400.0);
    let trend = assessed(series(values));
    assert!(trend.alarms.is_empty());
    // The eighth is an outlier, and part of the baseline by now.
    assert_eq!(trend.baseline.map(|b| b.count), Some(FEWEST));
}

#[test]
fn points_with_findings_stay_out_of_the_baseline_and_recovery_ends_the_alarm() {
    let mut normals = NormalSampler::new(17);
    let mut values = noisy(&mut normals, 750.0, 0.003, 20);
    values.extend(noisy(&mut normals, 708.0, 0.003, 20));
    values.extend(noisy(&mut normals, 750.0, 0.003, 10));
    values.extend(noisy(&mut normals, 708.0, 0.003, 3));
    let mut trend = series(values);
    for (n, point) in trend.points.iter_mut().enumerate() {
        if (20..40).contains(&n) || 50 <= n {
            point.outcome = Some(Outcome::Degraded);
        }
    }
    assess(&mut trend);
    let alarms: Vec<&str> = trend.alarms.iter().map(|a| a.run.as_str()).collect();
    assert_eq!(alarms, ["r0020", "r0050"], "one alarm per departure from the baseline");
    let standing: Vec<bool> = trend.alarms.iter().map(|a| a.stands).collect();
    assert_eq!(standing, [false, true], "the first alarm ended with the recovery");
    assert_eq!(trend.open_alarm().expect("an open alarm").alarm, trend.alarms[1]);
    let baseline = trend.baseline.expect("thirty good points");
    assert!((baseline.mean - 750.0).abs() < 2.0, "{baseline:?}");
    assert_eq!(baseline.count, 30 - 2, "recovered readings count from the third on");
}

#[test]
fn a_new_level_without_findings_becomes_the_baseline() {
    let mut normals = NormalSampler::new(18);
    let mut values = noisy(&mut normals, 750.0, 0.003, 30);
    values.extend(noisy(&mut normals, 735.0, 0.003, 15));
    values.extend(noisy(&mut normals, 720.0, 0.003, 5));
    let trend = assessed(series(values));
    let alarms: Vec<(usize, bool)> = trend
        .alarms
        .iter()
        .map(|a| (a.since[1..].parse().expect("a number"), a.shift < -0.01))
        .collect();
    let near = |at: usize| at - 1..=at + 1;
    let [(first, true), (second, true)] = alarms.as_slice() else { panic!("{:?}", trend.alarms) };
    assert!(near(30).contains(first) && near(45).contains(second), "{:?}", trend.alarms);
    assert_eq!(trend.alarms.iter().filter(|a| a.stands).count(), 1, "{:?}", trend.alarms);
    let up = assessed(series([vec![700.0; 10], vec![740.0; 3]].concat()));
    assert!(up.alarms.len() == 1 && 0.05 < up.alarms[0].shift, "{:?}", up.alarms);
    assert!(up.alarms[0].stands && up.open_alarm().is_none(), "a higher bandwidth is not worse");
    let slower = Trend { unit: Unit::Microseconds, ..up };
    assert!(slower.open_alarm().is_some(), "a higher latency is worse");
}

#[test]
fn a_new_driver_starts_a_new_baseline_and_its_step_is_an_alarm() {
    let mut normals = NormalSampler::new(19);
    let mut values = noisy(&mut normals, 750.0, 0.003, 20);
    values.extend(noisy(&mut normals, 720.0, 0.003, 12));
    let mut trend = series(values);
    trend.changes = vec![changed(20, RunChangeKind::Driver, "driver")];
    let mut early = trend.clone();
    assess(&mut trend);
    let alarms: Vec<&str> = trend.alarms.iter().map(|a| a.since.as_str()).collect();
    assert_eq!(alarms, ["r0020"], "{:?}", trend.alarms);
    assert!(trend.open_alarm().is_none(), "the new level is the baseline now");
    let baseline = trend.baseline.expect("twelve points");
    assert_eq!((baseline.since.as_str(), baseline.count), ("r0020", 12));
    // With too few readings under the new driver, no baseline exists.
    early.points.truncate(25);
    assert_eq!(assessed(early.clone()).baseline, None);
    // A boot, or a newer fabricgate, does not mean other hardware.
    for (kind, what) in [(RunChangeKind::Boot, "boot"), (RunChangeKind::Tool, OWN_TOOL)] {
        early.changes = vec![changed(20, kind, what)];
        assert_eq!(assessed(early.clone()).baseline.expect("the old one").since, "r0000");
    }
}

#[test]
fn a_small_step_in_unusually_quiet_readings_raises_no_alarm() {
    let mut values = vec![750.0; 30];
    values.extend([748.5; 30]);
    let trend = assessed(series(values));
    // 0.2 % less, permanently: less than half the smallest scatter of healthy parts.
    assert!(trend.alarms.is_empty(), "{:?}", trend.alarms);
    assert_eq!(assessed(series([0.0; 30])).alarms, []);
    assert_eq!(assessed(series([])).baseline, None);
    let broken = assessed(series([f64::NAN; 30]));
    assert!(broken.alarms.is_empty() && broken.baseline.is_none());
}

#[test]
fn a_missing_reading_during_an_alarm_does_not_enter_the_baseline() {
    let mut normals = NormalSampler::new(20);
    let mut values = noisy(&mut normals, 750.0, 0.003, 20);
    // The loss is so small that the alarm needs more than one reading.
    values.extend((0..40).map(|n| if n % 2 == 1 { f64::NAN } else { 735.0 }));
    let trend = assessed(series(values));
    let [alarm] = trend.alarms.as_slice() else { panic!("{:?}", trend.alarms) };
    assert!(alarm.shift < -0.005, "{alarm:?}");
    let baseline = trend.baseline.expect("the new level");
    assert!((baseline.mean - 735.0).abs() < 1.0, "{baseline:?}");
}

#[test]
fn a_recorded_alarm_ends_when_a_later_one_starts() {
    let mut normals = NormalSampler::new(21);
    let mut values = noisy(&mut normals, 750.0, 0.003, 30);
    values.extend(noisy(&mut normals, 708.0, 0.003, 3));
    let mut trend = series(values);
    let old = assessed(trend.clone()).alarms.pop().expect("an alarm");
    trend.alarms = vec![TrendAlarm { run: "thinned".to_owned(), stands: true, ..old }];
    assess_since(&mut trend, 5);
    let standing: Vec<bool> = trend.alarms.iter().map(|a| a.stands).collect();
    assert_eq!(standing, [false, true], "{:?}", trend.alarms);
}
