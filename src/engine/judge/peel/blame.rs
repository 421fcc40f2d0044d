//! Blame: which ends a cell clears, which are low, and which are released again.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::super::met::Cells;
use super::super::met::Met;
use super::ASSUMED_SIGMA;
use super::Blame;
use super::ERRORS;
use super::LEAST_SIGMA;
use super::LINE;
use super::POWER;
use super::Shown;
use super::Statistic;
use model::stats;
use model::verdict::Direction;

/// So many standard deviations of healthy ends lie between an end and its blame.
const PARTS: f64 = 4.0;

/// Differences between healthy parts never lift the line above this: GPUs of one kind
/// differ by up to 0.6 %, and one link of 18 is 5.6 %.
const MOST_OF_PARTS: f64 = 0.04;

/// Chance that any cell of an end that is low clears it.
const CLEARING_ERROR: f64 = 1e-3;

/// Chance that what a part has above the others hides a loss of the declared size.
const PARTS_ERROR: f64 = 4e-3;

/// Healthy GPUs of one kind differ by 0.1 to 0.6 %: counted like so many parts that were
/// measured.
const PUBLISHED_SPREAD: f64 = 0.005;
const PUBLISHED_WEIGHT: f64 = 4.0;

/// Fewer ends than this show no spread of their own.
const FEWEST_ENDS: usize = 6;

/// An end keeps its blame only beside this many partners that are not blamed: one
/// partner cannot tell which of the two is slow.
const FEWEST_PARTNERS: usize = 2;

const BOTH: [Direction; 2] = [Direction::Tx, Direction::Rx];

/// Ends taken out of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blamed {
    /// Per end: what it sends, what it receives.
    ends: Vec<[bool; 2]>,
}

impl Blamed {
    pub(super) fn none(n: usize) -> Self {
        Self { ends: vec![[false; 2]; n] }
    }

    pub(super) fn clears(&self, src: usize, dst: usize) -> bool {
        !self.ends[src][0] && !self.ends[dst][1]
    }
}

/// The cells of an end in one direction (0: sent, 1: received), each with its partner.
fn cells_of(cells: &Cells, end: usize, way: usize) -> impl Iterator<Item = (usize, &Met)> {
    let sent = (way == 0).then(|| cells.sent(end).iter().map(|c| (c.dst, c)));
    let received = (way == 1).then(|| cells.received(end).map(|c| (c.src, c)));
    let own = sent.into_iter().flatten().chain(received.into_iter().flatten());
    own.filter(move |(partner, _)| *partner != end)
}

/// Those with partners that are not blamed for their side of the cell.
fn usable<'c>(
    cells: &'c Cells,
    blamed: &'c Blamed,
    end: usize,
    way: usize,
) -> impl Iterator<Item = &'c Met> {
    let good = move |(partner, _): &(usize, &Met)| !blamed.ends[*partner][1 - way];
    cells_of(cells, end, way).filter(good).map(|(_, cell)| cell)
}

/// What an end shows over its usable partners.
#[derive(Clone, Copy, Debug)]
struct Seen {
    ratio: f64,
    partners: usize,
    readings: usize,
}

fn see(
    cells: &Cells,
    blamed: &Blamed,
    (end, way): (usize, usize),
    statistic: Statistic,
) -> Option<Seen> {
    let mut readings = 0;
    let own = usable(cells, blamed, end, way).inspect(|cell| readings += cell.readings);
    let mut ratios: Vec<f64> = own.map(|cell| cell.ratio).collect();
    let partners = ratios.len();
    let ratio = match statistic {
        // Of two partners one good reading clears.
        Statistic::Median if partners == 2 => ratios.into_iter().reduce(f64::max),
        Statistic::Median => stats::median(&mut ratios),
        Statistic::Best => ratios.into_iter().reduce(f64::max),
    };
    Some(Seen { ratio: ratio?, partners, readings })
}

/// Relative standard deviation of one reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Of all readings, the worse of the two halves.
    pub(super) sigma: f64,
    /// Of those above what their ends show. What disturbs a reading makes it lower, so
    /// this is what a slow end can show too much.
    upper: f64,
}

/// The spread of one reading: what is left when every end has its own
/// rate. With few readings per end the fit takes noise away; scale it back.
pub(super) fn spread(cells: &Cells, blamed: &Blamed) -> Spread {
    const ASSUMED: Spread = Spread { sigma: ASSUMED_SIGMA, upper: ASSUMED_SIGMA };
    let of = |way| -> Vec<Option<f64>> {
        let ratio = |end| Some(see(cells, blamed, (end, way), Statistic::Median)?.ratio);
        (0..cells.ends()).map(ratio).collect()
    };
    let (tx, rx) = (of(0), of(1));
    let mut residuals = Vec::with_capacity(cells.readings());
    let used = tx.iter().chain(&rx).flatten().count();
    for cell in cells.all().iter().filter(|c| blamed.clears(c.src, c.dst)) {
        let (Some(tx), Some(rx)) = (tx[cell.src], rx[cell.dst]) else { continue };
        let fit = tx.min(rx);
        if 0.0 < fit {
            residuals.extend(cells.of(cell).iter().map(|r| r / fit));
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
    Spread { sigma, upper: of(upper).min(sigma) }
}

/// How healthy ends differ, noise taken out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// Relative standard deviation.
    pub(super) sigma: f64,
    /// What a part may be able to do above its partners, so that as much is lost unseen.
    hidden: f64,
}

impl Parts {
    /// `free` is how many parts showed the spread, less one. A few parts show it badly: what
    /// is published of GPUs of one kind counts beside them, and the factor is that of
    /// Student's distribution.
    fn new(sigma: f64, free: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a count of parts")]
        let free = free as f64;
        let all = free + PUBLISHED_WEIGHT;
        let squares = free * sigma.powi(2) + PUBLISHED_WEIGHT * PUBLISHED_SPREAD.powi(2);
        Self { sigma, hidden: stats::student_z(all, PARTS_ERROR) * (squares / all).sqrt() }
    }
}

/// How ends are judged in one turn.
pub(super) struct Rule<'c> {
    cells: &'c Cells,
    /// The class of path of each group.
    classes: &'c [u8],
    spread: Spread,
    statistic: Statistic,
    /// Ends that a cell clears, per direction.
    cleared: Vec<[bool; 2]>,
}

impl<'c> Rule<'c> {
    /// `classes` are the classes of path, by group.
    pub(super) fn new(
        cells: &'c Cells,
        classes: &'c [u8],
        spread: Spread,
        statistic: Statistic,
    ) -> Self {
        let mut rule = Self { cells, classes, spread, statistic, cleared: Vec::new() };
        rule.cleared = rule.clear();
        rule
    }

    /// Standard error of an end's statistic.
    fn error(&self, readings: usize) -> f64 {
        match self.statistic {
            Statistic::Median => stats::median_error(self.spread.sigma, readings),
            Statistic::Best => self.spread.sigma,
        }
    }

    /// How far below its level an end is blamed.
    fn line(&self, readings: usize, parts: f64) -> f64 {
        let of_parts = (PARTS * parts).min(MOST_OF_PARTS);
        LINE.max(ERRORS * self.error(readings)).max(of_parts)
    }

    /// The smallest loss of an end that is seen 99 times in 100 or more, whatever this
    /// end may be able to do above the others.
    fn smallest(&self, readings: usize, parts: Parts) -> f64 {
        let noise = POWER * self.error(readings);
        self.line(readings, parts.sigma) + (noise.powi(2) + parts.hidden.powi(2)).sqrt()
    }

    /// An end whose partners are slow shows what they are; one good cell with any of
    /// them shows that the end is not slow. A cell clears its two ends where it is above
    /// the line by more than the noise of the highest of as many cells. An end that is
    /// measured over several classes of path is cleared by one cell of each.
    fn clear(&self) -> Vec<[bool; 2]> {
        let mut factors: BTreeMap<usize, f64> = BTreeMap::new();
        let mut cleared = vec![[false; 2]; self.cells.ends()];
        for (end, cleared) in cleared.iter_mut().enumerate() {
            for (way, cleared) in cleared.iter_mut().enumerate() {
                let own = || cells_of(self.cells, end, way).map(|(_, cell)| cell);
                let count = own().count();
                let z =
                    *factors.entry(count).or_insert_with(|| stats::family_z(count, CLEARING_ERROR));
                *cleared = self.has_of_each_class(own(), |cell| {
                    let noise = z * stats::median_error(self.spread.sigma, cell.readings);
                    1.0 - LINE + noise <= cell.ratio
                });
            }
        }
        cleared
    }

    /// What an end shows over partners that are not blamed.
    fn see(&self, blamed: &Blamed, end: (usize, usize)) -> Option<Seen> {
        see(self.cells, blamed, end, self.statistic)
    }

    /// The ends that are low, and the spread of the others.
    pub(super) fn blame(&self) -> (Blamed, Parts) {
        let mut blamed = Blamed::none(self.cells.ends());
        let mut kept_free = self.cleared.clone();
        self.peel(&mut blamed, &kept_free);
        let parts = self.parts(&blamed);
        // A released end is a partner again, which can make another one low: each end is
        // released once, so this ends.
        while self.release(&mut blamed, &mut kept_free, parts.sigma) {
            self.peel(&mut blamed, &kept_free);
        }
        let parts = self.parts(&blamed);
        (blamed, parts)
    }

    /// What an end shows, where it is low enough to be blamed.
    fn low(&self, blamed: &Blamed, end: (usize, usize), parts: f64) -> Option<Seen> {
        let is_low = |seen: &Seen| {
            FEWEST_PARTNERS <= seen.partners && seen.ratio < 1.0 - self.line(seen.readings, parts)
        };
        self.see(blamed, end).filter(is_low)
    }

    /// Blames the lowest end until none is low. Only partners of the one that was
    /// blamed last are looked at again: of thousands of ends each has a few.
    fn peel(&self, blamed: &mut Blamed, free: &[[bool; 2]]) {
        let n = free.len();
        let low = |blamed: &Blamed, end: usize, way: usize| {
            let may = !blamed.ends[end][way] && !free[end][way];
            Some(may.then(|| self.low(blamed, (end, way), 0.0)).flatten()?.ratio)
        };
        let mut lows: Vec<[Option<f64>; 2]> = vec![[None; 2]; n];
        // Ends that are low, the lowest first: shares are positive, and their bits in order.
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

    /// Releases the blamed ends that are not low with the partners that are left, all at
    /// once, so that no order of names decides. One good partner is enough.
    fn release(&self, blamed: &mut Blamed, free: &mut [[bool; 2]], parts: f64) -> bool {
        let mut good = Vec::new();
        for (end, own) in blamed.ends.iter().enumerate() {
            for way in (0..2).filter(|way| own[*way]) {
                let is_good = |seen: &Seen| {
                    1.0 - self.line(seen.readings, parts) <= seen.ratio
                        || self.is_uneven(blamed, (end, way), seen, parts)
                };
                good.extend(self.see(blamed, (end, way)).filter(is_good).map(|_| (end, way)));
            }
        }
        for (end, way) in &good {
            blamed.ends[*end][*way] = false;
            free[*end][*way] = true;
        }
        !good.is_empty()
    }

    /// Whether an end has a good cell, of each class of path, that noise does not explain
    /// if the end is as slow as was seen: with partners that are not slow, a slow end shows
    /// one level.
    fn is_uneven(
        &self,
        blamed: &Blamed,
        (end, way): (usize, usize),
        seen: &Seen,
        parts: f64,
    ) -> bool {
        let z = stats::family_z(seen.partners, CLEARING_ERROR);
        self.has_of_each_class(usable(self.cells, blamed, end, way), |cell| {
            let error = stats::median_error(self.spread.upper, cell.readings);
            let parts = parts.min(MOST_OF_PARTS / PARTS);
            let noise = z * (error.powi(2) + parts.powi(2)).sqrt();
            1.0 - LINE <= cell.ratio && noise < cell.ratio - seen.ratio
        })
    }

    /// Whether a cell of each class of path is as asked.
    fn has_of_each_class<'m>(
        &self,
        cells: impl Iterator<Item = &'m Met>,
        is_good: impl Fn(&Met) -> bool,
    ) -> bool {
        let mut seen: BTreeMap<u8, bool> = BTreeMap::new();
        for cell in cells {
            let class = self.classes.get(cell.group).copied().unwrap_or(0);
            *seen.entry(class).or_default() |= is_good(cell);
        }
        !seen.is_empty() && seen.values().all(|good| *good)
    }

    /// How the ends that are not blamed differ, noise taken out. What a part can do more
    /// than its partners does not show, so only the lower half says how far parts differ. An
    /// end that is far lower with some partners than with others is not one of them.
    fn parts(&self, blamed: &Blamed) -> Parts {
        let mut squares = 0.0;
        let mut ratios = Vec::new();
        for (end, own) in blamed.ends.iter().enumerate() {
            for way in (0..2).filter(|way| !own[*way]) {
                let uneven = |seen: &Seen| {
                    seen.ratio < 1.0 - MOST_OF_PARTS
                        && self.is_uneven(blamed, (end, way), seen, 0.0)
                };
                if let Some(seen) = self.see(blamed, (end, way)).filter(|it| !uneven(it)) {
                    squares += self.error(seen.readings).powi(2);
                    ratios.push(seen.ratio);
                }
            }
        }
        let Some(middle) = stats::median(&mut ratios).filter(|_| FEWEST_ENDS <= ratios.len())
        else {
            return Parts::default();
        };
        let below = ratios.iter().filter(|ratio| **ratio < middle).map(|ratio| middle - ratio);
        // What a GPU sends and what it receives differ alike: they are one part. The middle
        // is taken from the same parts, which costs one.
        let free = (ratios.len() / 4).saturating_sub(1).max(1);
        #[expect(clippy::cast_precision_loss, reason = "counts of ends")]
        let (noise, spread) = (
            squares / ratios.len() as f64,
            below.map(|it| it * it).sum::<f64>() / (2 * free) as f64,
        );
        Parts::new((spread - noise).max(0.0).sqrt(), free)
    }

    /// What every end shows, per direction.
    pub(super) fn shown(&self, blamed: &Blamed) -> Vec<[Option<Shown>; 2]> {
        let of = |end| {
            let seen = self.see(blamed, end)?;
            Some(Shown { ratio: seen.ratio, error: self.error(seen.readings) })
        };
        (0..self.cells.ends()).map(|end| [of((end, 0)), of((end, 1))]).collect()
    }

    /// The blames with their numbers, and the ends of which nothing can be told.
    pub(super) fn describe(
        &self,
        blamed: &Blamed,
        parts: Parts,
    ) -> (Vec<Blame>, Vec<(usize, Direction)>) {
        let (mut blames, mut unclear) = (Vec::new(), Vec::new());
        for (gpu, own) in blamed.ends.iter().enumerate() {
            for way in (0..2).filter(|way| own[*way]) {
                let direction = BOTH[way];
                match self.low(blamed, (gpu, way), parts.sigma) {
                    Some(Seen { ratio, partners, readings }) => {
                        let detectable = self.smallest(readings, parts);
                        blames.push(Blame { gpu, direction, ratio, partners, detectable });
                    }
                    None => unclear.push((gpu, direction)),
                }
            }
        }
        (blames, unclear)
    }

    /// The smallest loss of each end that would have been seen; `None` of one that met
    /// too few partners. What an end shows above the level is lost unseen.
    pub(super) fn detectable(&self, blamed: &Blamed, parts: Parts) -> Vec<Option<f64>> {
        let of = |end| {
            let seen = self.see(blamed, end).filter(|it| FEWEST_PARTNERS <= it.partners)?;
            Some(self.smallest(seen.readings, parts) + (seen.ratio - 1.0).max(0.0))
        };
        let both = |end| Some(f64::max(of((end, 0))?, of((end, 1))?));
        (0..self.cells.ends()).map(both).collect()
    }
}
