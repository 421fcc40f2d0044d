//! Whose fault a low cell is: collect acquittals, then peel.
//!
//! A reading is `min(tx of the source, rx of the destination, path)`, so a
//! good one clears both ends and a low one accuses neither. Each end is judged
//! by the median over its partners that are not blamed; the lowest is blamed,
//! its row or column leaves, and everything is compared again. What is low
//! afterwards belongs to a pair.

use std::collections::BTreeSet;

use super::island::PairReading;
use super::met::Cells;
use super::met::Met;
use super::robust;
use crate::model::verdict::Direction;

/// Effects below this are inside the natural spread of healthy fabrics: half
/// the loss of one link of 18. They are reported, never blamed.
pub(super) const LINE: f64 = 0.028;

/// A median this many standard errors low is no chance.
pub(super) const ERRORS: f64 = 5.0;

/// Further standard errors for a fault of the printed size to be seen 999
/// times in 1,000: Phi^-1(0.999).
pub(super) const POWER: f64 = 3.09;

/// Relative spread assumed where an island is too small to show its own:
/// generous for copy engines (0.1 to 0.3 % seen), usual for NCCL and NICs.
pub(super) const ASSUMED_SIGMA: f64 = 0.01;

/// No instrument here repeats better than this.
pub(super) const LEAST_SIGMA: f64 = 0.000_5;

/// Islands of up to this many GPUs, or of this many nodes, are first compared with
/// their upper end: one bad GPU of four touches half of all cells, three of eight two
/// thirds, and so does a node whose GPUs are all bad in the cells between nodes.
const SMALL: usize = 8;

/// Where that upper end is. With four bad of eight a fifth of all cells is good.
pub(super) const UPPER: f64 = 0.85;

/// How many standard deviations above the middle that is: Phi^-1(0.85).
pub(super) const UPPER_Z: f64 = 1.04;

/// Chance that any innocent pair of an island looks low.
const FAMILY_ERROR: f64 = 1e-3;

/// Ends that get slower step by step are blamed a few in each turn.
const TURNS: usize = 16;

/// The rule behind a pair that may be slow.
pub(super) const DOUBT: &str = "pair: fewer than three readings that agree tell no slow pair from dips, unless they \
                                are deeper than dips go";

/// How an end's partners are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statistic {
    /// Their median: all pairs share one path class.
    Median,
    /// The best of them: path classes differ and are not known, so one good
    /// reading acquits.
    Best,
}

/// One end in one direction, blamed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Blame {
    pub(super) gpu: usize,
    pub(super) direction: Direction,
    /// Over partners that are not blamed themselves, relative to the level.
    pub(super) ratio: f64,
    pub(super) partners: usize,
    pub(super) detectable: f64,
}

/// Two ends that are slow only with each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LowPair {
    pub(super) src: usize,
    pub(super) dst: usize,
    /// Both directions are low.
    pub(super) both_ways: bool,
    pub(super) ratio: f64,
    pub(super) readings: usize,
    /// How far apart the three readings are that agree best; all, of fewer.
    pub(super) span: f64,
}

/// What peeling gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Peeled {
    pub(super) blames: Vec<Blame>,
    pub(super) pairs: Vec<LowPair>,
    /// Pairs of which readings agree too well for dips, and are too few to
    /// exclude them.
    pub(super) doubted: Vec<LowPair>,
    /// Cells that are low with too few readings to tell a dip from a fault.
    pub(super) dips: Vec<LowPair>,
    /// Level of each group without the blamed.
    pub(super) levels: Vec<f64>,
    /// Relative standard deviation of one reading.
    pub(super) sigma: f64,
    /// Smallest degradation that would have been seen, per GPU; `None` where
    /// the GPU was not measured.
    pub(super) detectable: Vec<Option<f64>>,
}

impl Peeled {
    /// Whether this end is blamed.
    pub(super) fn blames(&self, gpu: usize, direction: Direction) -> bool {
        // They are in the order of their ends.
        let from = self.blames.partition_point(|b| b.gpu < gpu);
        let own = self.blames[from..].iter().take_while(|b| b.gpu == gpu);
        own.into_iter().any(|b| b.direction == direction)
    }
}

/// Readings between numbered ends: GPUs of an island, or nodes on a rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'r> {
    /// How many ends there are.
    pub(super) ends: usize,
    /// On how many nodes: those of one are often bad together.
    pub(super) nodes: usize,
    /// How many groups the readings come in.
    pub(super) groups: usize,
    pub(super) readings: &'r [PairReading],
    /// Ends that take part: those that are cut off are judged elsewhere.
    pub(super) active: &'r [bool],
    /// The levels to begin with, where something else than the readings tells.
    pub(super) start: Option<&'r [f64]>,
}

/// Peels a field of readings.
pub(super) fn peel(field: &Field<'_>, statistic: Statistic) -> Peeled {
    let (n, active) = (field.ends, field.active);
    let mut readings: Vec<PairReading> =
        field.readings.iter().copied().filter(|r| active[r.src] && active[r.dst]).collect();
    readings.sort_by_key(|r| (r.src, r.dst));
    let mut out = Peeled { detectable: vec![None; n], ..Peeled::default() };
    let mut blamed = Blamed::none(n);
    // Levels depend on who is blamed and the other way round: mostly a few turns do.
    for turn in 1..=TURNS {
        let told = field.start.filter(|_| turn == 1);
        let few = n <= SMALL || (1 < field.nodes && field.nodes <= SMALL);
        let first = turn == 1 && few && told.is_none();
        let upper = first.then_some(UPPER);
        out.levels =
            told.map_or_else(|| levels(field.groups, &readings, &blamed, upper), <[f64]>::to_vec);
        let mut cells = Cells::new(n, &readings, &out.levels);
        out.sigma = sigma(&cells, n);
        if first {
            // Noise alone lifts the upper end by so much.
            let noise = UPPER_Z * out.sigma;
            out.levels.iter_mut().for_each(|level| *level *= 1.0 - noise);
            cells = Cells::new(n, &readings, &out.levels);
        }
        let before = blamed.clone();
        blamed = blame(&cells, n, out.sigma, statistic);
        let settled = before == blamed && !first && told.is_none();
        out.blames = describe(&cells, &blamed, out.sigma, n, statistic);
        out.detectable = detectable(&cells, &blamed, out.sigma, n, statistic);
        // Where it never settles, pairs are looked at all the same.
        if settled || turn == TURNS {
            low_pairs(&cells, &blamed, statistic, &mut out);
            break;
        }
    }
    out
}

/// Ends taken out of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Blamed {
    tx: Vec<bool>,
    rx: Vec<bool>,
}

impl Blamed {
    fn none(n: usize) -> Self {
        Self { tx: vec![false; n], rx: vec![false; n] }
    }

    fn clears(&self, src: usize, dst: usize) -> bool {
        !self.tx[src] && !self.rx[dst]
    }
}

/// The level of each group among ends that are not blamed: the median, or the
/// quantile `upper`.
fn levels(
    groups: usize,
    readings: &[PairReading],
    blamed: &Blamed,
    upper: Option<f64>,
) -> Vec<f64> {
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); groups];
    // One vote for each pair, however often it was read.
    for pair in readings.chunk_by(|a, b| (a.src, a.dst) == (b.src, b.dst)) {
        if blamed.clears(pair[0].src, pair[0].dst) {
            for (group, mut own) in by_group(pair) {
                values[group].extend(robust::median(&mut own));
            }
        }
    }
    let level = |v: &mut Vec<f64>| match upper {
        Some(q) => robust::quantile(v, q),
        None => robust::median(v),
    };
    let positive = |level: Option<f64>| level.filter(|l| 0.0 < *l).unwrap_or(f64::INFINITY);
    values.iter_mut().map(|v| positive(level(v))).collect()
}

/// The readings of one pair, group by group.
fn by_group(pair: &[PairReading]) -> Vec<(usize, Vec<f64>)> {
    let mut groups: Vec<(usize, Vec<f64>)> = Vec::new();
    for r in pair {
        match groups.iter_mut().find(|(group, _)| *group == r.group) {
            Some((_, own)) => own.push(r.value),
            None => groups.push((r.group, vec![r.value])),
        }
    }
    groups
}

/// Relative spread of one reading: what is left when every end has its own
/// rate. With few readings per end the fit swallows noise; scale it back.
fn sigma(cells: &Cells, n: usize) -> f64 {
    let ends = Ends::of(cells, n, &Blamed::none(n), Statistic::Median);
    let mut residuals = Vec::with_capacity(cells.readings());
    let used = ends.tx.iter().chain(&ends.rx).flatten().count();
    for cell in cells.all() {
        let (Some(tx), Some(rx)) = (ends.tx[cell.src], ends.rx[cell.dst]) else { continue };
        let fit = tx.min(rx);
        if 0.0 < fit {
            residuals.extend(cells.of(cell).iter().map(|r| r / fit));
        }
    }
    let free = residuals.len().saturating_sub(used);
    if residuals.len() < 12 || free * 4 < residuals.len() {
        return ASSUMED_SIGMA;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of readings")]
    let swallowed = (residuals.len() as f64 / free as f64).sqrt();
    let spread = robust::spread(&residuals, 1.0).unwrap_or(ASSUMED_SIGMA);
    (spread * swallowed).max(LEAST_SIGMA)
}

/// Level of every end, by direction.
struct Ends {
    tx: Vec<Option<f64>>,
    rx: Vec<Option<f64>>,
}

impl Ends {
    fn of(cells: &Cells, n: usize, blamed: &Blamed, statistic: Statistic) -> Self {
        Self {
            tx: (0..n).map(|end| tx(cells, end, blamed, statistic)).collect(),
            rx: (0..n).map(|end| rx(cells, end, blamed, statistic)).collect(),
        }
    }
}

/// What an end sends to those who are not blamed for receiving.
fn tx(cells: &Cells, end: usize, blamed: &Blamed, statistic: Statistic) -> Option<f64> {
    let partners = cells.sent(end).iter().filter(|c| c.dst != end && !blamed.rx[c.dst]);
    sum_up(partners.map(|c| c.ratio).collect(), statistic)
}

/// What an end receives from those who are not blamed for sending.
fn rx(cells: &Cells, end: usize, blamed: &Blamed, statistic: Statistic) -> Option<f64> {
    let partners = cells.received(end).filter(|c| c.src != end && !blamed.tx[c.src]);
    sum_up(partners.map(|c| c.ratio).collect(), statistic)
}

fn sum_up(mut values: Vec<f64>, statistic: Statistic) -> Option<f64> {
    match statistic {
        // Of two partners one good reading acquits.
        Statistic::Median if values.len() == 2 => values.into_iter().reduce(f64::max),
        Statistic::Median => robust::median(&mut values),
        Statistic::Best => values.into_iter().reduce(f64::max),
    }
}

/// How many partners, and how many readings, stand behind an end.
fn support(cells: &Cells, blamed: &Blamed, gpu: usize, direction: Direction) -> (usize, usize) {
    let count =
        |(partners, readings): (usize, usize), cell: &Met| (partners + 1, readings + cell.readings);
    match direction {
        Direction::Rx => {
            let from = cells.received(gpu).filter(|c| c.src != gpu && !blamed.tx[c.src]);
            from.fold((0, 0), count)
        }
        _ => {
            let to = cells.sent(gpu).iter().filter(|c| c.dst != gpu && !blamed.rx[c.dst]);
            to.fold((0, 0), count)
        }
    }
}

/// Standard error of an end's statistic.
fn error(sigma: f64, readings: usize, statistic: Statistic) -> f64 {
    match statistic {
        Statistic::Median => robust::median_error(sigma, readings),
        Statistic::Best => sigma,
    }
}

/// Blames the lowest end until none is low. Only partners of the one that was
/// blamed last are looked at again: of thousands of ends each has a few.
fn blame(cells: &Cells, n: usize, sigma: f64, statistic: Statistic) -> Blamed {
    let mut blamed = Blamed::none(n);
    // What an end shows in a direction, where it is low enough to be blamed.
    let low = |blamed: &Blamed, gpu: usize, direction: Direction| {
        let (already, value) = match direction {
            Direction::Rx => (blamed.rx[gpu], rx(cells, gpu, blamed, statistic)),
            _ => (blamed.tx[gpu], tx(cells, gpu, blamed, statistic)),
        };
        let value = value.filter(|_| !already)?;
        let (partners, readings) = support(cells, blamed, gpu, direction);
        // One partner cannot tell whose fault it is.
        if partners < 2 {
            return None;
        }
        let line = LINE.max(ERRORS * error(sigma, readings, statistic));
        (value < 1.0 - line).then_some(value)
    };
    const BOTH: [Direction; 2] = [Direction::Tx, Direction::Rx];
    let mut lows: Vec<[Option<f64>; 2]> = vec![[None; 2]; n];
    // Ends that are low, the lowest first: shares are positive, and their bits in order.
    let mut order: BTreeSet<(u64, usize, usize)> = BTreeSet::new();
    let key = |share: f64, gpu: usize, way: usize| (share.max(0.0).to_bits(), gpu, way);
    let mut put = |gpu: usize, way: usize, now: Option<f64>| {
        if let Some(before) = lows[gpu][way] {
            order.remove(&key(before, gpu, way));
        }
        lows[gpu][way] = now;
        order.extend(now.map(|now| key(now, gpu, way)));
        order.first().map(|(_, gpu, way)| (*gpu, *way))
    };
    let mut worst = None;
    for gpu in 0..n {
        for (way, direction) in BOTH.into_iter().enumerate() {
            worst = put(gpu, way, low(&blamed, gpu, direction));
        }
    }
    while let Some((gpu, way)) = worst {
        let partners: Vec<usize> = match BOTH[way] {
            Direction::Rx => {
                blamed.rx[gpu] = true;
                cells.received(gpu).map(|cell| cell.src).collect()
            }
            _ => {
                blamed.tx[gpu] = true;
                cells.sent(gpu).iter().map(|cell| cell.dst).collect()
            }
        };
        worst = put(gpu, way, None);
        for partner in partners {
            let now = low(&blamed, partner, BOTH[1 - way]);
            worst = put(partner, 1 - way, now);
        }
    }
    blamed
}

fn describe(
    cells: &Cells,
    blamed: &Blamed,
    sigma: f64,
    n: usize,
    statistic: Statistic,
) -> Vec<Blame> {
    let ends = Ends::of(cells, n, blamed, statistic);
    let mut blames = Vec::new();
    for gpu in 0..n {
        let both = [
            (Direction::Tx, ends.tx[gpu], blamed.tx[gpu]),
            (Direction::Rx, ends.rx[gpu], blamed.rx[gpu]),
        ];
        for (direction, ratio, is_blamed) in both {
            let Some(ratio) = ratio.filter(|_| is_blamed) else { continue };
            let (partners, readings) = support(cells, blamed, gpu, direction);
            let se = error(sigma, readings, statistic);
            blames.push(Blame { gpu, direction, ratio, partners, detectable: smallest(se) });
        }
    }
    blames
}

/// The smallest degradation that the rule sees with 99.9 % power.
pub(super) fn smallest(se: f64) -> f64 {
    LINE.max(ERRORS * se) + POWER * se
}

fn detectable(
    cells: &Cells,
    blamed: &Blamed,
    sigma: f64,
    n: usize,
    statistic: Statistic,
) -> Vec<Option<f64>> {
    (0..n)
        .map(|gpu| {
            let ends = [Direction::Tx, Direction::Rx].map(|d| support(cells, blamed, gpu, d));
            if ends.iter().any(|(partners, _)| *partners < 2) {
                return None;
            }
            let worst = ends
                .iter()
                .map(|(_, readings)| error(sigma, *readings, statistic))
                .fold(0.0, f64::max);
            Some(smallest(worst))
        })
        .collect()
}

/// What is low between ends that are not blamed: pairs where the readings
/// agree, dips where they are too few to tell.
fn low_pairs(cells: &Cells, blamed: &Blamed, statistic: Statistic, out: &mut Peeled) {
    // Where path classes differ, a slow pair is a path class, not a fault.
    if statistic == Statistic::Best {
        return;
    }
    let sigma = out.sigma;
    let measured = cells.all().len();
    let line = LINE.max(robust::family_z(measured, FAMILY_ERROR) * sigma);
    let low = |src: usize, dst: usize| {
        let readings = cells.of(cells.between(src, dst)?);
        let usable = blamed.clears(src, dst);
        // One good reading acquits the pair in this direction.
        let best = readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        usable.then_some((best < 1.0 - line, readings))
    };
    let met: BTreeSet<(usize, usize)> = cells
        .all()
        .iter()
        .filter(|c| c.src != c.dst)
        .map(|c| (c.src.min(c.dst), c.src.max(c.dst)))
        .collect();
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
        let ratio = robust::median(&mut found).unwrap_or(1.0);
        let pair = LowPair { src, dst, both_ways: from.len() == 2, ratio, readings, span };
        match word(readings, span, ratio, sigma) {
            Word::Fault => out.pairs.push(pair),
            Word::Doubt => out.doubted.push(pair),
            Word::Dip => out.dips.push(pair),
        }
    }
}

/// How far apart the three readings are that agree best; all, of fewer.
pub(super) fn span(readings: &mut [f64]) -> f64 {
    readings.sort_by(f64::total_cmp);
    let few = readings.len().clamp(1, 3);
    let gaps = readings.windows(few).map(|some| some[few - 1] - some[0]);
    gaps.fold(f64::INFINITY, f64::min)
}

/// What low readings of one pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A slow pair.
    Fault,
    /// A slow pair or dips: another reading would tell.
    Doubt,
    /// A dip, as healthy pairs have them.
    Dip,
}

/// Whether low readings of one pair, all that there are, are a fault or dips.
/// Healthy readings dip by 5 to 40 % about once in 200, so four in a row are no
/// dips, and three none that agree (`docs/study.md`: fewer than 1e-6 a year).
/// Two that agree are as rare as slow pairs are: they convict nobody. What is
/// deeper than dips go needs no second reading.
pub(super) fn word(readings: usize, span: f64, ratio: f64, sigma: f64) -> Word {
    const DEEPEST_DIP: f64 = 0.55;
    const AGREEMENT: f64 = 0.006;
    // The range of two and of three good readings, 999 times in 1,000.
    const TWO: f64 = 4.0;
    const THREE: f64 = 5.0;
    let agree = |sigmas: f64| span <= AGREEMENT.max(sigmas * sigma);
    match readings {
        0 => Word::Dip,
        _ if ratio < DEEPEST_DIP => Word::Fault,
        1 => Word::Dip,
        2 if agree(TWO) => Word::Doubt,
        2 => Word::Dip,
        3 if !agree(THREE) => Word::Doubt,
        _ => Word::Fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(readings: &[f64]) -> Word {
        let mut readings = readings.to_vec();
        let span = span(&mut readings);
        let ratio = robust::median(&mut readings).unwrap_or(1.0);
        word(readings.len(), span, ratio, 0.003)
    }

    #[test]
    fn two_dips_of_one_depth_convict_nobody_and_a_third_reading_does() {
        for (readings, expected) in [
            (&[0.8][..], Word::Dip),
            (&[0.8, 0.8], Word::Doubt),
            (&[0.8, 0.7], Word::Dip),
            (&[0.8, 0.8, 0.801], Word::Fault),
            (&[0.8, 0.8, 0.7], Word::Doubt),
            (&[0.8, 0.7, 0.9, 0.65], Word::Fault),
            (&[0.5], Word::Fault),
            (&[0.5, 0.52], Word::Fault),
            (&[], Word::Dip),
        ] {
            assert_eq!(said(readings), expected, "{readings:?}");
        }
    }

    #[test]
    fn where_ends_get_slower_step_by_step_all_that_are_low_and_the_slow_pair_are_found() {
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
        let field = Field {
            ends: 20,
            nodes: 20,
            groups: 1,
            readings: &readings,
            active: &active,
            start: None,
        };
        let peeled = peel(&field, Statistic::Median);
        let blamed: Vec<usize> = (0..20).filter(|end| peeled.blames(*end, Direction::Tx)).collect();
        assert_eq!(blamed, (8..20).collect::<Vec<_>>());
        let pairs: Vec<_> = peeled.pairs.iter().map(|p| (p.src, p.dst, p.both_ways)).collect();
        assert_eq!(pairs, [(0, 1, true)]);
    }

    #[test]
    fn the_span_is_that_of_the_three_that_agree_best() {
        assert!((span(&mut [0.9, 0.6, 0.61, 0.62]) - 0.02).abs() < 1e-12);
        assert!((span(&mut [0.9, 0.6]) - 0.3).abs() < 1e-12);
        assert!(span(&mut [0.9]).abs() < 1e-12);
    }
}
