//! Tests peeling with readings of known rates.

use super::*;
use model::verdict::Direction;

fn classify(readings: &[f64]) -> PairClassification {
    let mut readings = readings.to_vec();
    let span = span(&mut readings);
    let ratio = stats::median(&mut readings).unwrap_or(1.0);
    classify_pair(readings.len(), span, ratio, 0.003)
}

#[test]
fn two_dips_of_one_depth_blame_no_pair_and_a_third_reading_does() {
    for (readings, expected) in [
        (&[0.8][..], PairClassification::Dip),
        (&[0.8, 0.8], PairClassification::Doubt),
        (&[0.8, 0.7], PairClassification::Dip),
        (&[0.8, 0.8, 0.801], PairClassification::Fault),
        (&[0.8, 0.8, 0.7], PairClassification::Doubt),
        (&[0.8, 0.7, 0.9, 0.65], PairClassification::Fault),
        (&[0.5], PairClassification::Fault),
        (&[0.5, 0.52], PairClassification::Fault),
        (&[], PairClassification::Dip),
    ] {
        assert_eq!(classify(readings), expected, "{readings:?}");
    }
}

#[test]
fn ends_that_are_slower_step_by_step_and_a_slow_pair_are_all_found() {
    let rate = |end: usize| 1.0 - 0.015 * end as f64;
    let ways = (0..20).flat_map(|src| (0..20).map(move |dst| (src, dst)));
    let readings: Vec<PairReading> = ways
        .filter(|(src, dst)| src != dst)
        .map(|(src, dst)| {
            let value = if src + dst == 1 { 0.3 } else { rate(src).min(rate(dst)) };
            PairReading { src, dst, group: 0, value }
        })
        .collect();
    let active = [true; 20];
    let field = PairReadings {
        ends: 20,
        nodes: 20,
        classes: &[0],
        readings: &readings,
        active: &active,
        start_levels: None,
    };
    let peeled = peel_readings(&field, PartnerStatistic::Median);
    let blamed: Vec<usize> = (0..20).filter(|end| peeled.is_blamed(*end, Direction::Tx)).collect();
    // The ends differ so much that the threshold is the one for different parts, 4 %.
    assert_eq!(blamed, (11..20).collect::<Vec<_>>());
    let pairs: Vec<_> = peeled.pairs.iter().map(|p| (p.src, p.dst, p.both_ways)).collect();
    assert_eq!(pairs, [(0, 1, true)]);
}

#[test]
fn the_span_is_that_of_the_three_that_agree_best() {
    assert!((span(&mut [0.9, 0.6, 0.61, 0.62]) - 0.02).abs() < 1e-12);
    assert!((span(&mut [0.9, 0.6]) - 0.3).abs() < 1e-12);
    assert!(span(&mut [0.9]).abs() < 1e-12);
}

/// A set of 8 to 16 ends, up to half of them slow, each measured with all or a few others, one to
/// three times. Returns the readings and the capacity of each end.
fn field(seed: u64, sigma: f64) -> (Vec<PairReading>, Vec<[f64; 2]>) {
    let mut normals = stats::normal_sampler::NormalSampler::new(seed);
    let mut uniform = |below: usize| {
        let bits = normals.next_normal().to_bits() >> 4;
        usize::try_from(bits % below as u64).expect("less than a usize")
    };
    let n = 8 + 2 * uniform(5);
    let slow = 1 + uniform(n / 2);
    let depth = [0.5, 16.0 / 18.0, 17.0 / 18.0][uniform(3)];
    let partners = if uniform(2) == 0 { n - 1 } else { 3 + uniform(3) };
    let count = 1 + uniform(3);
    let mut rates = vec![[1.0_f64; 2]; n];
    let mut order: Vec<usize> = (0..n).collect();
    for at in (1..n).rev() {
        order.swap(at, uniform(at + 1));
    }
    let ways = uniform(3);
    for end in &order[..slow] {
        rates[*end] = [if ways == 1 { 1.0 } else { depth }, if ways == 2 { 1.0 } else { depth }];
    }
    let mut readings = Vec::new();
    for src in 0..n {
        // Adjacent ends on a shuffled ring: few partners, and slow ends share them.
        for step in 1..=partners.min(n - 1) {
            let (a, b) = (order[src], order[(src + step) % n]);
            for (src, dst) in [(a, b), (b, a)] {
                for _ in 0..count {
                    let noise = 1.0 + sigma * normals.next_normal();
                    let value = rates[src][0].min(rates[dst][1]) * noise;
                    readings.push(PairReading { src, dst, group: 0, value });
                }
            }
        }
    }
    (readings, rates)
}

/// The number of an end's partners that are not slow on their side.
fn good_partners(
    readings: &[PairReading],
    rates: &[[f64; 2]],
    (end, way): (usize, usize),
) -> usize {
    let ends = |r: &PairReading| if way == 0 { (r.src, r.dst) } else { (r.dst, r.src) };
    let partners = readings.iter().map(ends).filter(|(own, _)| *own == end).map(|(_, it)| it);
    let partners: std::collections::BTreeSet<usize> = partners.collect();
    partners.into_iter().filter(|it| 0.99 <= rates[*it][1 - way]).count()
}

#[test]
fn slow_ends_among_good_ones_are_found_and_no_other_is_blamed() {
    let (mut blamed, mut findable, mut missed) = (0, 0, 0);
    for seed in 0..600 {
        for sigma in [0.001, 0.003, 0.01] {
            let (readings, rates) = field(seed, sigma);
            let n = rates.len();
            let active = vec![true; n];
            let field = PairReadings {
                ends: n,
                nodes: n,
                classes: &[0],
                readings: &readings,
                active: &active,
                start_levels: None,
            };
            let peeled = peel_readings(&field, PartnerStatistic::Median);
            for blame in &peeled.blames {
                let way = usize::from(blame.direction == Direction::Rx);
                assert!(
                    rates[blame.gpu][way] < 0.99,
                    "seed {seed}, sigma {sigma}: {blame:?} of {rates:?}"
                );
                assert!(blame.ratio < 1.0 - MIN_EFFECT && 2 <= blame.partners, "{blame:?}");
                blamed += 1;
            }
            let rates_of = &rates;
            for (end, rates) in rates_of.iter().enumerate() {
                let ways = [Direction::Tx, Direction::Rx];
                // Every slow end with at least three good partners and a loss of at least the
                // declared size is found.
                let Some(least) = peeled.detectable[end] else { continue };
                for way in (0..2).filter(|way| rates[*way] <= 1.0 - least) {
                    if 3 <= good_partners(&readings, rates_of, (end, way)) {
                        findable += 1;
                        missed += usize::from(!peeled.is_blamed(end, ways[way]));
                    }
                }
            }
        }
    }
    assert!(
        2_000 < findable && missed * 100 < findable,
        "{blamed} blamed, {missed} of {findable} missed"
    );
}

#[test]
fn an_end_with_a_good_cell_is_not_blamed_among_many_disturbed_readings() {
    // One reading of each pair; three of ten are a fifth low, whichever the pair.
    for seed in 0..300 {
        let mut normals = stats::normal_sampler::NormalSampler::new(10_000 + seed);
        let mut readings = Vec::new();
        for (src, dst) in (0..8).flat_map(|src| (0..8).map(move |dst| (src, dst))) {
            if src != dst {
                let disturbed = (normals.next_normal().abs() * 1e6) % 10.0 < 3.0;
                let share = if disturbed { 0.8 } else { 1.0 };
                let value = share * (1.0 + 0.005 * normals.next_normal());
                readings.push(PairReading { src, dst, group: 0, value });
            }
        }
        let active = [true; 8];
        let field = PairReadings {
            ends: 8,
            nodes: 8,
            classes: &[0],
            readings: &readings,
            active: &active,
            start_levels: None,
        };
        let blames = peel_readings(&field, PartnerStatistic::Median).blames;
        for blame in blames {
            let own = |r: &&PairReading| match blame.direction {
                Direction::Tx => r.src == blame.gpu,
                _ => r.dst == blame.gpu,
            };
            let best = readings.iter().filter(own).map(|r| r.value).fold(0.0, f64::max);
            assert!(best < 0.95, "seed {seed}: {blame:?}, its best reading is {best}");
        }
    }
}

#[test]
fn a_loss_of_the_declared_size_is_found_where_parts_differ() {
    // Each GPU has its own offset, and so does each pair of places: a copy gets the combined loss
    // of its two ends, or the capacity of the slower one.
    for is_least in [false, true] {
        declared_and_found(is_least);
    }
}

fn declared_and_found(is_least: bool) {
    let (mut found, mut all, mut declared) = (0, 0, 0.0);
    for seed in 0..800 {
        let mut normals = stats::normal_sampler::NormalSampler::new(1 + seed);
        let offsets = normals.take(8);
        let places = normals.take(64);
        let mut noise = normals.take(8 * 8 * 3).into_iter();
        let mut read = |loss: f64| {
            let mut readings = Vec::new();
            for (src, dst) in (0..8).flat_map(|src| (0..8).map(move |dst| (src, dst))) {
                if src == dst {
                    continue;
                }
                for _ in 0..3 {
                    let own = |end: usize| {
                        let lost = if end == 3 { 1.0 - loss } else { 1.0 };
                        lost * (1.0 + 0.006 * offsets[end])
                    };
                    let level = match is_least {
                        true => own(src).min(own(dst)),
                        false => own(src) * own(dst),
                    };
                    let noise = 0.003 * noise.next().unwrap_or(0.0);
                    let value = level * (1.0 + 0.003 * places[src * 8 + dst] + noise);
                    readings.push(PairReading { src, dst, group: 0, value });
                }
            }
            readings
        };
        let peeled = |readings: &[PairReading]| {
            let active = [true; 8];
            let field = PairReadings {
                ends: 8,
                nodes: 1,
                classes: &[0],
                readings,
                active: &active,
                start_levels: None,
            };
            peel_readings(&field, PartnerStatistic::Median)
        };
        let healthy = peeled(&read(0.0));
        assert_eq!(healthy.blames, [], "seed {seed}");
        let loss = healthy.detectable[3].expect("it was measured");
        declared += loss / 800.0;
        all += 1;
        let peeled = peeled(&read(loss));
        found += usize::from(peeled.blames.iter().any(|b| b.gpu == 3));
    }
    assert!(all * 99 <= found * 100, "{found} of {all}, declared {declared}");
}
