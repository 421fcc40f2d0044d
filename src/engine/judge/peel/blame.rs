//! Blame: the ends that a cell clears, the low ends, and the released ends.

use std::collections::{BTreeMap, BTreeSet};

use super::super::pair_matrix::{PairCell, PairMatrix};
use super::{
    ASSUMED_SIGMA, EndBlame, EndLevel, LEAST_SIGMA, MIN_EFFECT, POWER_Z, PartnerStatistic,
    SIGNIFICANCE_Z,
};
use model::stats;
use model::verdict::Direction;

/// Standard deviations of healthy ends between an end and its blame.
const PART_SPREAD_Z: f64 = 4.0;

/// Differences between healthy parts never raise the threshold above this: GPUs of one kind differ
/// by up to 0.6 %, and one link of 18 is 5.6 %.
const MAX_PART_SPREAD: f64 = 0.04;

/// Probability that any cell of a low end clears it.
const CLEARING_ERROR: f64 = 1e-3;

/// Probability that a part's surplus over the others hides a loss of the declared size.
const HIDDEN_LOSS_CHANCE: f64 = 4e-3;

/// Published spread of healthy GPUs of one kind (0.1 to 0.6 %): weighted like this many measured
/// parts.
const PUBLISHED_SPREAD: f64 = 0.005;
const PUBLISHED_WEIGHT: f64 = 4.0;

/// Fewer ends do not define a spread.
const FEWEST_ENDS: usize = 6;

/// An end stays blamed only with this many unblamed partners: one partner does not show which of
/// the two is slow.
const FEWEST_PARTNERS: usize = 2;

const DIRECTIONS: [Direction; 2] = [Direction::Tx, Direction::Rx];

/// Ends removed from the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlamedEnds {
    /// Per end: [transmit, receive].
    ends: Vec<[bool; 2]>,
}

impl BlamedEnds {
    pub(super) fn none(n: usize) -> Self {
        Self { ends: vec![[false; 2]; n] }
    }

    pub(super) fn clears(&self, src: usize, dst: usize) -> bool {
        !self.ends[src][0] && !self.ends[dst][1]
    }
}

/// The cells of an end in one direction (0: sent, 1: received), each with its partner.
fn cells_of(
    cells: &PairMatrix,
    end: usize,
    way: usize,
) -> impl Iterator<Item = (usize, &PairCell)> {
    let sent = (way == 0).then(|| cells.row(end).iter().map(|c| (c.dst, c)));
    let received = (way == 1).then(|| cells.column(end).map(|c| (c.src, c)));
    let own = sent.into_iter().flatten().chain(received.into_iter().flatten());
    own.filter(move |(partner, _)| *partner != end)
}

/// Cells whose partners are not blamed for their side.
fn usable_cells<'c>(
    cells: &'c PairMatrix,
    blamed: &'c BlamedEnds,
    end: usize,
    way: usize,
) -> impl Iterator<Item = &'c PairCell> {
    let good = move |(partner, _): &(usize, &PairCell)| !blamed.ends[*partner][1 - way];
    cells_of(cells, end, way).filter(good).map(|(_, cell)| cell)
}

/// An end's level over its usable partners.
#[derive(Clone, Copy, Debug)]
struct EndObservation {
    ratio: f64,
    partners: usize,
    readings: usize,
}

fn observe_end(
    cells: &PairMatrix,
    blamed: &BlamedEnds,
    (end, way): (usize, usize),
    statistic: PartnerStatistic,
) -> Option<EndObservation> {
    let mut readings = 0;
    let own = usable_cells(cells, blamed, end, way).inspect(|cell| readings += cell.readings);
    let mut ratios: Vec<f64> = own.map(|cell| cell.ratio).collect();
    let partners = ratios.len();
    let ratio = match statistic {
        // With two partners, one good reading clears.
        PartnerStatistic::Median if partners == 2 => ratios.into_iter().reduce(f64::max),
        PartnerStatistic::Median => stats::median(&mut ratios),
        PartnerStatistic::Max => ratios.into_iter().reduce(f64::max),
    };
    Some(EndObservation { ratio: ratio?, partners, readings })
}

/// Relative standard deviation of one reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoiseSpread {
    /// Of all readings, the worse of the two halves.
    pub(super) sigma: f64,
    /// Of readings above their ends' levels. Disturbances reduce a reading, so this bounds how far
    /// a slow end can read too high.
    upper: f64,
}

/// The spread of one reading: the residual after fitting one rate per end. With few readings per
/// end the fit absorbs noise; the result is scaled back.
pub(super) fn estimate_spread(cells: &PairMatrix, blamed: &BlamedEnds) -> NoiseSpread {
    const ASSUMED: NoiseSpread = NoiseSpread { sigma: ASSUMED_SIGMA, upper: ASSUMED_SIGMA };
    let of = |way| -> Vec<Option<f64>> {
        let ratio =
            |end| Some(observe_end(cells, blamed, (end, way), PartnerStatistic::Median)?.ratio);
        (0..cells.end_count()).map(ratio).collect()
    };
    let (tx, rx) = (of(0), of(1));
    let mut residuals = Vec::with_capacity(cells.reading_count());
    let used = tx.iter().chain(&rx).flatten().count();
    for cell in cells.cells().iter().filter(|c| blamed.clears(c.src, c.dst)) {
        let (Some(tx), Some(rx)) = (tx[cell.src], rx[cell.dst]) else { continue };
        let fit = tx.min(rx);
        if 0.0 < fit {
            residuals.extend(cells.readings_of(cell).iter().map(|r| r / fit));
        }
    }
    let free = residuals.len().saturating_sub(used);
    if residuals.len() < 12 || free * 4 < residuals.len() {
        return ASSUMED;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of readings")]
    let taken = (residuals.len() as f64 / free as f64).sqrt();
    let of = |spread: Option<f64>| (spread.unwrap_or(ASSUMED_SIGMA) * taken).max(LEAST_SIGMA);
    let sigma = of(stats::spread(&residuals, 1.0));
    let mut above: Vec<f64> = residuals.iter().map(|r| r - 1.0).filter(|r| 0.0 < *r).collect();
    let upper = stats::median(&mut above).map(|middle| middle * stats::MAD_TO_SIGMA);
    NoiseSpread { sigma, upper: of(upper).min(sigma) }
}

/// The spread between healthy ends, without noise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartSpread {
    /// Relative standard deviation.
    pub(super) sigma: f64,
    /// The possible surplus of a part over its partners: a loss of that size stays undetected.
    hidden: f64,
}

impl PartSpread {
    /// `free` is the number of parts behind the spread, minus one. A few parts estimate it poorly,
    /// so the published spread for GPUs of one kind is weighted in, and the factor comes from
    /// Student's distribution.
    fn new(sigma: f64, free: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a count of parts")]
        let free = free as f64;
        let all = free + PUBLISHED_WEIGHT;
        let squares = free * sigma.powi(2) + PUBLISHED_WEIGHT * PUBLISHED_SPREAD.powi(2);
        Self { sigma, hidden: stats::student_z(all, HIDDEN_LOSS_CHANCE) * (squares / all).sqrt() }
    }
}

/// How ends are judged in one turn.
pub(super) struct BlameRule<'c> {
    cells: &'c PairMatrix,
    /// The path class of each group.
    classes: &'c [u8],
    spread: NoiseSpread,
    statistic: PartnerStatistic,
    /// Ends that a cell clears, per direction.
    cleared: Vec<[bool; 2]>,
}

impl<'c> BlameRule<'c> {
    /// `classes` holds the path class of each group.
    pub(super) fn new(
        cells: &'c PairMatrix,
        classes: &'c [u8],
        spread: NoiseSpread,
        statistic: PartnerStatistic,
    ) -> Self {
        let mut rule = Self { cells, classes, spread, statistic, cleared: Vec::new() };
        rule.cleared = rule.find_cleared();
        rule
    }

    /// Standard error of an end's statistic.
    fn standard_error(&self, readings: usize) -> f64 {
        match self.statistic {
            PartnerStatistic::Median => stats::median_error(self.spread.sigma, readings),
            PartnerStatistic::Max => self.spread.sigma,
        }
    }

    /// The loss from which an end is blamed.
    fn blame_line(&self, readings: usize, parts: f64) -> f64 {
        let of_parts = (PART_SPREAD_Z * parts).min(MAX_PART_SPREAD);
        MIN_EFFECT.max(SIGNIFICANCE_Z * self.standard_error(readings)).max(of_parts)
    }

    /// The smallest loss of an end that is detected at least 99 times in 100, including the end's
    /// possible surplus over the others.
    fn smallest_detectable(&self, readings: usize, parts: PartSpread) -> f64 {
        let noise = POWER_Z * self.standard_error(readings);
        self.blame_line(readings, parts.sigma) + (noise.powi(2) + parts.hidden.powi(2)).sqrt()
    }

    /// With slow partners, an end's median reflects its partners; one good cell with any of them
    /// shows that the end is not slow. A cell clears its two ends if it exceeds the threshold by
    /// more than the noise of the highest of that many cells. An end that is measured over several
    /// path classes needs one such cell of each.
    fn find_cleared(&self) -> Vec<[bool; 2]> {
        let mut factors: BTreeMap<usize, f64> = BTreeMap::new();
        let mut cleared = vec![[false; 2]; self.cells.end_count()];
        for (end, cleared) in cleared.iter_mut().enumerate() {
            for (way, cleared) in cleared.iter_mut().enumerate() {
                let own = || cells_of(self.cells, end, way).map(|(_, cell)| cell);
                let count = own().count();
                let z =
                    *factors.entry(count).or_insert_with(|| stats::family_z(count, CLEARING_ERROR));
                *cleared = self.has_of_each_class(own(), |cell| {
                    let noise = z * stats::median_error(self.spread.sigma, cell.readings);
                    1.0 - MIN_EFFECT + noise <= cell.ratio
                });
            }
        }
        cleared
    }

    /// An end's level over unblamed partners.
    fn observe(&self, blamed: &BlamedEnds, end: (usize, usize)) -> Option<EndObservation> {
        observe_end(self.cells, blamed, end, self.statistic)
    }

    /// The low ends, and the spread of the others.
    pub(super) fn find_blamed(&self) -> (BlamedEnds, PartSpread) {
        let mut blamed = BlamedEnds::none(self.cells.end_count());
        let mut kept_free = self.cleared.clone();
        self.blame_lowest(&mut blamed, &kept_free);
        let parts = self.estimate_part_spread(&blamed);
        // A released end is a partner again, which can make another end low: each end is released
        // only once, so the loop terminates.
        while self.release(&mut blamed, &mut kept_free, parts.sigma) {
            self.blame_lowest(&mut blamed, &kept_free);
        }
        let parts = self.estimate_part_spread(&blamed);
        (blamed, parts)
    }

    /// An end's level, if it is low enough to be blamed.
    fn observe_low(
        &self,
        blamed: &BlamedEnds,
        end: (usize, usize),
        parts: f64,
    ) -> Option<EndObservation> {
        let is_low = |seen: &EndObservation| {
            FEWEST_PARTNERS <= seen.partners
                && seen.ratio < 1.0 - self.blame_line(seen.readings, parts)
        };
        self.observe(blamed, end).filter(is_low)
    }

    /// Blames the lowest end until none is low. Only partners of the last blamed end are evaluated
    /// again: in a set of thousands, each end has a few.
    fn blame_lowest(&self, blamed: &mut BlamedEnds, free: &[[bool; 2]]) {
        let n = free.len();
        let low = |blamed: &BlamedEnds, end: usize, way: usize| {
            let may = !blamed.ends[end][way] && !free[end][way];
            Some(may.then(|| self.observe_low(blamed, (end, way), 0.0)).flatten()?.ratio)
        };
        let mut lows: Vec<[Option<f64>; 2]> = vec![[None; 2]; n];
        // Low ends, the lowest first: shares are positive, so their bit patterns sort in order.
        let mut order: BTreeSet<(u64, usize, usize)> = BTreeSet::new();
        let key = |share: f64, end: usize, way: usize| (share.max(0.0).to_bits(), end, way);
        let mut put = |end: usize, way: usize, now: Option<f64>| {
            if let Some(before) = lows[end][way] {
                order.remove(&key(before, end, way));
            }
            lows[end][way] = now;
            order.extend(now.map(|now| key(now, end, way)));
            order.first().map(|(_, end, way)| (*end, *way))
        };
        let mut worst = None;
        for end in 0..n {
            for way in 0..2 {
                worst = put(end, way, low(blamed, end, way));
            }
        }
        while let Some((end, way)) = worst {
            blamed.ends[end][way] = true;
            worst = put(end, way, None);
            let partners: Vec<usize> = cells_of(self.cells, end, way).map(|(p, _)| p).collect();
            for partner in partners {
                let now = low(blamed, partner, 1 - way);
                worst = put(partner, 1 - way, now);
            }
        }
    }

    /// Releases all blamed ends that are not low with the remaining partners in one step, so the
    /// result does not depend on the order of names. One good partner is enough.
    fn release(&self, blamed: &mut BlamedEnds, free: &mut [[bool; 2]], parts: f64) -> bool {
        let mut good = Vec::new();
        for (end, own) in blamed.ends.iter().enumerate() {
            for way in (0..2).filter(|way| own[*way]) {
                let is_good = |seen: &EndObservation| {
                    1.0 - self.blame_line(seen.readings, parts) <= seen.ratio
                        || self.is_uneven(blamed, (end, way), seen, parts)
                };
                good.extend(self.observe(blamed, (end, way)).filter(is_good).map(|_| (end, way)));
            }
        }
        for (end, way) in &good {
            blamed.ends[*end][*way] = false;
            free[*end][*way] = true;
        }
        !good.is_empty()
    }

    /// Whether an end has, in each path class, a good cell that noise does not explain if the end
    /// is as slow as observed: with healthy partners, a slow end has a single level.
    fn is_uneven(
        &self,
        blamed: &BlamedEnds,
        (end, way): (usize, usize),
        seen: &EndObservation,
        parts: f64,
    ) -> bool {
        let z = stats::family_z(seen.partners, CLEARING_ERROR);
        self.has_of_each_class(usable_cells(self.cells, blamed, end, way), |cell| {
            let error = stats::median_error(self.spread.upper, cell.readings);
            let parts = parts.min(MAX_PART_SPREAD / PART_SPREAD_Z);
            let noise = z * (error.powi(2) + parts.powi(2)).sqrt();
            1.0 - MIN_EFFECT <= cell.ratio && noise < cell.ratio - seen.ratio
        })
    }

    /// Whether a cell of each path class meets the condition.
    fn has_of_each_class<'m>(
        &self,
        cells: impl Iterator<Item = &'m PairCell>,
        is_good: impl Fn(&PairCell) -> bool,
    ) -> bool {
        let mut seen: BTreeMap<u8, bool> = BTreeMap::new();
        for cell in cells {
            let class = self.classes.get(cell.group).copied().unwrap_or(0);
            *seen.entry(class).or_default() |= is_good(cell);
        }
        !seen.is_empty() && seen.values().all(|good| *good)
    }

    /// The spread between unblamed ends, without noise. A part's surplus over its partners does not
    /// appear in readings, so only the lower half estimates the spread. An end that is far lower
    /// with some partners than with others is excluded.
    fn estimate_part_spread(&self, blamed: &BlamedEnds) -> PartSpread {
        let mut squares = 0.0;
        let mut ratios = Vec::new();
        for (end, own) in blamed.ends.iter().enumerate() {
            for way in (0..2).filter(|way| !own[*way]) {
                let uneven = |seen: &EndObservation| {
                    seen.ratio < 1.0 - MAX_PART_SPREAD
                        && self.is_uneven(blamed, (end, way), seen, 0.0)
                };
                if let Some(seen) = self.observe(blamed, (end, way)).filter(|it| !uneven(it)) {
                    squares += self.standard_error(seen.readings).powi(2);
                    ratios.push(seen.ratio);
                }
            }
        }
        let Some(middle) = stats::median(&mut ratios).filter(|_| FEWEST_ENDS <= ratios.len())
        else {
            return PartSpread::default();
        };
        let below = ratios.iter().filter(|ratio| **ratio < middle).map(|ratio| middle - ratio);
        // A GPU's transmit and receive rates vary together: they count as one part. The median
        // comes from the same parts, which costs one degree of freedom.
        let free = (ratios.len() / 4).saturating_sub(1).max(1);
        #[expect(clippy::cast_precision_loss, reason = "counts of ends")]
        let (noise, spread) = (
            squares / ratios.len() as f64,
            below.map(|it| it * it).sum::<f64>() / (2 * free) as f64,
        );
        PartSpread::new((spread - noise).max(0.0).sqrt(), free)
    }

    /// The level of every end, per direction.
    pub(super) fn end_levels(&self, blamed: &BlamedEnds) -> Vec<[Option<EndLevel>; 2]> {
        let of = |end| {
            let seen = self.observe(blamed, end)?;
            Some(EndLevel { ratio: seen.ratio, error: self.standard_error(seen.readings) })
        };
        (0..self.cells.end_count()).map(|end| [of((end, 0)), of((end, 1))]).collect()
    }

    /// The blames with their numbers, and the undecidable ends.
    pub(super) fn list_blames(
        &self,
        blamed: &BlamedEnds,
        parts: PartSpread,
    ) -> (Vec<EndBlame>, Vec<(usize, Direction)>) {
        let (mut blames, mut unclear) = (Vec::new(), Vec::new());
        for (gpu, own) in blamed.ends.iter().enumerate() {
            for way in (0..2).filter(|way| own[*way]) {
                let direction = DIRECTIONS[way];
                match self.observe_low(blamed, (gpu, way), parts.sigma) {
                    Some(EndObservation { ratio, partners, readings }) => {
                        let detectable = self.smallest_detectable(readings, parts);
                        blames.push(EndBlame { gpu, direction, ratio, partners, detectable });
                    }
                    None => unclear.push((gpu, direction)),
                }
            }
        }
        (blames, unclear)
    }

    /// The smallest detectable loss of each end; `None` with too few partners. An end's surplus
    /// over the level is lost undetected.
    pub(super) fn detectable_losses(
        &self,
        blamed: &BlamedEnds,
        parts: PartSpread,
    ) -> Vec<Option<f64>> {
        let of = |end| {
            let seen = self.observe(blamed, end).filter(|it| FEWEST_PARTNERS <= it.partners)?;
            Some(self.smallest_detectable(seen.readings, parts) + (seen.ratio - 1.0).max(0.0))
        };
        let both = |end| Some(f64::max(of((end, 0))?, of((end, 1))?));
        (0..self.cells.end_count()).map(both).collect()
    }
}
