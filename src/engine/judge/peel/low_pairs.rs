//! Pairs that are low while neither end is blamed: slow pairs, doubts, and dips.

use std::collections::BTreeSet;

use super::super::pair_matrix::PairMatrix;
use super::blame::BlamedEnds;
use super::{LowPair, MIN_EFFECT, PartnerStatistic, PeelResult};
use model::stats;
use model::verdict::Direction;

/// Probability that any healthy pair of an island looks low.
const FAMILY_ERROR: f64 = 1e-3;

/// Low cells between unblamed ends: pairs whose readings agree, and dips if the readings are too
/// few to decide.
pub(super) fn find_low_pairs(
    cells: &PairMatrix,
    blamed: &BlamedEnds,
    statistic: PartnerStatistic,
    out: &mut PeelResult,
) {
    // If path classes differ, a slow pair is a path class, not a fault.
    if statistic == PartnerStatistic::Max {
        return;
    }
    let sigma = out.sigma;
    let measured = cells.cells().len();
    let line = MIN_EFFECT.max(stats::family_z(measured, FAMILY_ERROR) * sigma);
    // The expected rate of a pair follows from its ends' rates with others.
    let fit = |src: usize, dst: usize| {
        let ratio = |end, direction| out.end_level(end, direction).map_or(1.0, |level| level.ratio);
        let (tx, rx) = (ratio(src, Direction::Tx), ratio(dst, Direction::Rx));
        tx.min(rx).min(tx * rx).min(1.0)
    };
    let low = |src: usize, dst: usize| {
        let readings = cells.readings_of(cells.cell(src, dst)?);
        let usable = blamed.clears(src, dst);
        // One good reading clears the pair in this direction.
        let best = readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        usable.then_some((best < fit(src, dst) * (1.0 - line), readings))
    };
    let met: BTreeSet<(usize, usize)> = cells
        .cells()
        .iter()
        .filter(|c| c.src != c.dst)
        .map(|c| (c.src.min(c.dst), c.src.max(c.dst)))
        .collect();
    let mut found_pairs: Vec<(PairClassification, LowPair)> = Vec::new();
    for (a, b) in met {
        let ways = [(a, b), (b, a)];
        let seen = ways.map(|(s, d)| low(s, d));
        let mut found: Vec<f64> = Vec::new();
        let mut from: Vec<(usize, usize)> = Vec::new();
        for (way, seen) in ways.iter().zip(&seen) {
            if let Some((true, readings)) = seen {
                found.extend_from_slice(readings);
                from.push(*way);
            }
        }
        let Some((src, dst)) = from.first().copied() else { continue };
        let (readings, span) = (found.len(), span(&mut found));
        let ratio = stats::median(&mut found).unwrap_or(1.0);
        let pair = LowPair { src, dst, both_ways: from.len() == 2, ratio, readings, span };
        found_pairs.push((classify_pair(readings, span, ratio / fit(src, dst), sigma), pair));
    }
    for (classification, pair) in found_pairs {
        match classification {
            PairClassification::Fault => out.pairs.push(pair),
            PairClassification::Doubt => out.doubtful.push(pair),
            PairClassification::Dip => out.dips.push(pair),
        }
    }
}

/// The spread of the three readings that agree best; of all, if fewer.
pub(in crate::judge) fn span(readings: &mut [f64]) -> f64 {
    readings.sort_by(f64::total_cmp);
    let few = readings.len().clamp(1, 3);
    let gaps = readings.windows(few).map(|some| some[few - 1] - some[0]);
    gaps.fold(f64::INFINITY, f64::min)
}

/// The classification of a pair's low readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::judge) enum PairClassification {
    Fault,
    /// A slow pair or dips: another reading decides.
    Doubt,
    /// A dip, as on healthy pairs.
    Dip,
}

/// Whether all the readings of one pair, if low, are a fault or dips. Healthy readings dip by 5 to
/// 40 % about once in 200, so four in a row are not dips, nor are three that agree
/// (`docs/study.md`: fewer than 1e-6 a year). Two that agree are as rare as slow pairs, so they
/// decide nothing. A reading deeper than any dip needs no second reading.
pub(in crate::judge) fn classify_pair(
    readings: usize,
    span: f64,
    ratio: f64,
    sigma: f64,
) -> PairClassification {
    const DEEPEST_DIP: f64 = 0.55;
    const AGREEMENT: f64 = 0.006;
    // The range of two and of three good readings, 999 times in 1,000.
    const TWO: f64 = 4.0;
    const THREE: f64 = 5.0;
    let agree = |sigmas: f64| span <= AGREEMENT.max(sigmas * sigma);
    match readings {
        0 => PairClassification::Dip,
        _ if ratio < DEEPEST_DIP => PairClassification::Fault,
        1 => PairClassification::Dip,
        2 if agree(TWO) => PairClassification::Doubt,
        2 => PairClassification::Dip,
        3 if !agree(THREE) => PairClassification::Doubt,
        _ => PairClassification::Fault,
    }
}
