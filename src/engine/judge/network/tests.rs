//! How often sweeps of healthy nodes report a pair, and how often a slow one is reported. The rates
//! are generated: a level, and noise with a normal or an exponential left tail.

use super::super::rail_readings::{RailGroup, RailReadings};
use super::{peel_rail, rail_levels};
use crate::judge::fabric_group::PairReading;
use model::stats::normal_sampler::NormalSampler;

const NODES: usize = 8;

/// The left tail of the noise, one standard deviation wide.
#[derive(Clone, Copy, Debug)]
enum NoiseShape {
    Normal,
    Exponential,
}

fn noise(normals: &mut NormalSampler, tail: NoiseShape) -> f64 {
    match tail {
        NoiseShape::Normal => normals.next_normal(),
        // Half the sum of two squares is exponential.
        NoiseShape::Exponential => {
            1.0 - (normals.next_normal().powi(2) + normals.next_normal().powi(2)) / 2.0
        }
    }
}

/// The pairs in which a sweep of all pairs, three readings each, reports an end or the path as
/// slow.
fn named_pairs(
    normals: &mut NormalSampler,
    tail: NoiseShape,
    sigma: f64,
    slow: Option<(usize, usize)>,
) -> Vec<[usize; 2]> {
    let mut rail = RailReadings::default();
    rail.nodes = (0..NODES).map(|n| format!("n{n}").into()).collect();
    rail.groups.push(RailGroup {
        testcase: "ib_write_bw".into(),
        settings: String::new(),
        nic: None,
        crosses_leaves: false,
        bytes: None,
    });
    for src in 0..NODES {
        for dst in (0..NODES).filter(|dst| *dst != src) {
            let is_slow = slow.is_some_and(|(a, b)| [(a, b), (b, a)].contains(&(src, dst)));
            let level = 49.0 * if is_slow { 0.9 } else { 1.0 };
            for _ in 0..3 {
                let value = level * (1.0 + sigma * noise(normals, tail));
                rail.readings.push(PairReading { src, dst, group: 0, value });
            }
        }
    }
    let levels = rail_levels::estimate_levels(std::slice::from_ref(&rail)).pop().expect("one rail");
    let many = rail.cells().len();
    let (peeled, pairs, _) = peel_rail(&rail, &levels.by_group, levels.repeat_sigma, many);
    let ends = peeled.blames.iter().map(|blame| [blame.gpu; 2]);
    let low = pairs.cells.iter().filter(|cell| cell.low).map(|cell| [cell.src, cell.dst]);
    ends.chain(low).collect()
}

#[test]
fn healthy_sweeps_name_a_pair_less_than_once_in_a_thousand() {
    const SWEEPS: u32 = 500;
    for tail in [NoiseShape::Normal, NoiseShape::Exponential] {
        let mut wrong = 0;
        for (seed, sigma) in [(3, 0.01), (5, 0.03)] {
            let mut normals = NormalSampler::new(seed);
            for _ in 0..SWEEPS {
                wrong += u32::from(!named_pairs(&mut normals, tail, sigma, None).is_empty());
            }
        }
        // This many sweeps report one pair wrongly on average, and more than three with a
        // probability of 2 %.
        assert!(wrong <= 3, "{tail:?}: {wrong} of {}", 2 * SWEEPS);
    }
}

#[test]
fn a_pair_that_is_a_tenth_slower_is_named() {
    const SWEEPS: u32 = 100;
    for tail in [NoiseShape::Normal, NoiseShape::Exponential] {
        let mut normals = NormalSampler::new(7);
        let mut found = 0;
        for _ in 0..SWEEPS {
            let mut named = named_pairs(&mut normals, tail, 0.01, Some((2, 5)));
            named.sort_unstable();
            found += u32::from(named == [[2, 5], [5, 2]]);
        }
        assert!(99 <= found, "{tail:?}: {found}");
    }
}
