//! How many jobs of one shape fit into blocks of several levels, by the rules of
//! Slurm's topology/block.
//!
//! Documented (topology.yaml(5), Topology Guide, sbatch(1) of 26.05): adjacent base
//! blocks form aggregated blocks of the sizes in `BlockSizes`; a job goes into the
//! smallest level that holds it, into a suitable subset of the next lower blocks;
//! `--segment` places each segment like a job of its own, anywhere;
//! `--spread-segments` keeps two segments of a job out of one base block;
//! `--consolidate-segments` keeps all of them within one aggregated block.
//!
//! Not documented in detail, so taken as Slurm 26.05.5 does it: the subset has no more blocks
//! than the job would fill if all of them were whole; a job above the largest size has the
//! whole topology, and does not start if it needs nodes of an incomplete last aggregate to have
//! enough (though it may be given some); consolidated segments go into the smallest level that
//! holds the job (with both options: its segments in base blocks of their own).
//!
//! The count is exact if a segment fits into a base block and the subset imposes no limit. Otherwise
//! the maximum is a packing problem: jobs are then placed one after another as Slurm does it,
//! and the count comes with an upper bound.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The base block size, and the doublings that make each level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    base: u32,
    doublings: Vec<u32>,
}

/// Why sizes are not valid block sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockSizesError {
    /// The list is empty, or its first size is zero.
    #[error("expected the base block size first, 1 or more")]
    NoBase,
    /// A further size that Slurm refuses.
    #[error("{size} is not {base} times a power of two; Slurm refuses that")]
    Size {
        /// The refused size.
        size: u32,
        /// The base block size.
        base: u32,
    },
}

/// Where the segments of a job may be placed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentPlacement {
    /// Each segment wherever it fits.
    Anywhere,
    /// `--consolidate-segments`: all in one aggregated block.
    Consolidated,
    /// `--spread-segments`: at most one segment in a base block.
    Spread,
    /// Both options.
    ConsolidatedAndSpread,
}

impl SegmentPlacement {
    fn is_consolidated(self) -> bool {
        matches!(self, Self::Consolidated | Self::ConsolidatedAndSpread)
    }

    fn is_spread(self) -> bool {
        matches!(self, Self::Spread | Self::ConsolidatedAndSpread)
    }
}

/// What a job requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobShape {
    /// Nodes of the job.
    pub nodes: u32,
    /// Nodes of each of its segments, if it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u32>,
    /// Where the segments may be placed.
    pub placing: SegmentPlacement,
}

/// Jobs that fit at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobFit {
    /// This many fit, placed one after another.
    pub at_least: u32,
    /// No placement holds more. Equal to `at_least` if the count is exact.
    pub at_most: u32,
}

impl JobFit {
    fn exactly(jobs: u32) -> Self {
        Self { at_least: jobs, at_most: jobs }
    }

    fn plus(self, other: Self) -> Self {
        Self { at_least: self.at_least + other.at_least, at_most: self.at_most + other.at_most }
    }

    fn divided_by(self, pieces: u32) -> Self {
        Self { at_least: self.at_least / pieces, at_most: self.at_most / pieces }
    }
}

/// The placement rule for one piece: a segment, or a job without segments.
#[derive(Clone, Copy, Debug)]
struct PlacementPiece {
    nodes: u32,
    /// Base blocks of the block that must contain it.
    within: usize,
    /// Base blocks of each of the next lower blocks.
    lower: usize,
    /// Most of the lower blocks that it may use.
    most: usize,
    /// The first lower blocks, which must have enough nodes without the others.
    counted: usize,
}

impl PlacementPiece {
    /// Takes one piece from blocks of the next lower level, if they have enough nodes.
    fn take(&self, lower: &mut [u64]) -> bool {
        let mut counted: Vec<u64> = lower.iter().copied().take(self.counted).collect();
        counted.sort_unstable_by(|a, b| b.cmp(a));
        let nodes = u64::from(self.nodes);
        nodes <= counted.iter().take(self.most).sum() && take_nodes(lower, nodes, self.most)
    }
}

impl BlockSizes {
    /// Checks sizes as Slurm does.
    pub fn from_sizes(sizes: &[u32]) -> Result<Self, BlockSizesError> {
        let base = *sizes.first().filter(|base| 0 < **base).ok_or(BlockSizesError::NoBase)?;
        let mut doublings = vec![0];
        for size in sizes {
            if size % base != 0 || !(size / base).is_power_of_two() {
                return Err(BlockSizesError::Size { size: *size, base });
            }
            doublings.push((size / base).ilog2());
        }
        doublings.sort_unstable();
        doublings.dedup();
        Ok(Self { base, doublings })
    }

    /// Slurm's sizes if none are given: five levels above the first block that has nodes.
    pub fn from_first_block(nodes: u32) -> Option<Self> {
        (0 < nodes).then(|| Self { base: nodes, doublings: (0..=4).collect() })
    }

    /// The size of every level, and the number of its base blocks.
    pub fn sizes(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        self.doublings.iter().map(|by| (self.base << by, 1_usize << by))
    }

    /// How often the base block size must double for this many nodes.
    fn doublings_for(&self, nodes: u32) -> u32 {
        nodes.div_ceil(self.base).max(1).next_power_of_two().ilog2()
    }

    /// Base blocks of the smallest level for this many nodes; all base blocks above the largest
    /// level.
    fn smallest_level(&self, nodes: u32, blocks: usize) -> (usize, bool) {
        let least = self.doublings_for(nodes);
        match self.doublings.iter().find(|by| least <= **by) {
            Some(by) => (1 << by, false),
            None => (blocks.max(1), true),
        }
    }

    fn piece(&self, nodes: u32, blocks: usize) -> PlacementPiece {
        let least = self.doublings_for(nodes);
        let below = self.doublings.iter().rev().find(|by| **by < least).copied().unwrap_or(0);
        let (within, is_whole) = self.smallest_level(nodes, blocks);
        let lower = 1_usize << below;
        let needed = u64::from(nodes).div_ceil(u64::from(self.base) << below);
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        let counted = if is_whole { blocks / lower } else { usize::MAX };
        PlacementPiece { nodes, within, lower, most: needed, counted }
    }

    /// Counts the jobs of this shape that fit at the same time into base blocks with these
    /// numbers of nodes, in the order of the topology. A segment that is not smaller than the
    /// job has no effect, as in Slurm; one that does not divide it fits nowhere.
    pub fn count_jobs(&self, up: &[u32], shape: JobShape) -> JobFit {
        let segment = shape.segment.filter(|segment| *segment < shape.nodes);
        let Some(segment) = segment else {
            return match shape.nodes {
                0 => JobFit::default(),
                nodes => count_pieces(up, self.piece(nodes, up.len())),
            };
        };
        if segment == 0 || !shape.nodes.is_multiple_of(segment) {
            return JobFit::default();
        }
        let count = shape.nodes / segment;
        let piece = self.piece(segment, up.len());
        let scope = match (shape.placing.is_consolidated(), shape.placing.is_spread()) {
            (false, _) => up.len(),
            (true, false) => self.smallest_level(shape.nodes, up.len()).0,
            (true, true) => {
                let apart = segment.div_ceil(self.base).saturating_mul(self.base);
                self.smallest_level(apart.saturating_mul(count), up.len()).0
            }
        };
        let of_scope = |up: &[u32]| {
            if !shape.placing.is_spread() {
                count_pieces(up, piece).divided_by(count)
            } else if piece.within == 1 {
                JobFit::exactly(count_spread_jobs(up, segment, count))
            } else {
                let at_most = count_pieces(up, piece).divided_by(count).at_most;
                JobFit { at_least: count_placed_jobs(up, piece, count).min(at_most), at_most }
            }
        };
        up.chunks(scope.max(1)).map(of_scope).fold(JobFit::default(), JobFit::plus)
    }
}

fn sum(up: &[u32]) -> u64 {
    up.iter().copied().map(u64::from).sum()
}

fn to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Counts the pieces that fit at the same time.
fn count_pieces(up: &[u32], piece: PlacementPiece) -> JobFit {
    let of = |group: &[u32]| {
        let mut lower: Vec<u64> = group.chunks(piece.lower).map(sum).collect();
        let nodes = u64::from(piece.nodes);
        if lower.len() <= piece.most && lower.len() <= piece.counted {
            return JobFit::exactly(to_u32(sum(group) / nodes));
        }
        // A place smaller than the remainder that the largest places leave serves no piece.
        let mut largest = lower.clone();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let others: u64 = largest.iter().take(piece.most.saturating_sub(1)).sum();
        let least = nodes.saturating_sub(others).max(1);
        let usable: u64 = lower.iter().filter(|free| least <= **free).sum();
        let mut at_least = 0;
        while piece.take(&mut lower) {
            at_least += 1;
        }
        // A piece that does not fit now does not fit later.
        let at_most = if at_least == 0 { 0 } else { to_u32(usable / nodes).max(at_least) };
        JobFit { at_least, at_most }
    };
    up.chunks(piece.within).map(of).fold(JobFit::default(), JobFit::plus)
}

/// The next place to take nodes from: the smallest with enough nodes, else the largest.
fn best_fit(free: &[u64], wanted: u64) -> Option<usize> {
    let all = free.iter().enumerate().filter(|(_, free)| 0 < **free);
    let fitting = all.clone().filter(|(_, free)| wanted <= **free).min_by_key(|(_, free)| **free);
    fitting.or_else(|| all.max_by_key(|(_, free)| **free)).map(|(at, _)| at)
}

/// Takes nodes from at most `most` places; takes nothing if that is not enough.
fn take_nodes(free: &mut [u64], nodes: u64, most: usize) -> bool {
    let mut taken: Vec<(usize, u64)> = Vec::new();
    let mut rest = nodes;
    while 0 < rest
        && taken.len() < most
        && let Some(at) = best_fit(free, rest)
    {
        let part = rest.min(free[at]);
        free[at] -= part;
        rest -= part;
        taken.push((at, part));
    }
    if 0 < rest {
        for (at, part) in taken {
            free[at] += part;
        }
    }
    rest == 0
}

/// Counts jobs of `count` segments, each segment in a base block that no other segment of its
/// job uses: the number of turns in which every block gives at most one segment.
fn count_spread_jobs(up: &[u32], segment: u32, count: u32) -> u32 {
    let places: Vec<u32> = up.iter().map(|up| up / segment).collect();
    let fit = |jobs: u32| {
        let given: u64 = places.iter().map(|places| u64::from(jobs.min(*places))).sum();
        u64::from(jobs) * u64::from(count) <= given
    };
    let (mut low, mut high) = (0, to_u32(sum(&places) / u64::from(count)));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fit(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Counts the same for segments larger than a base block, placed one after another.
fn count_placed_jobs(up: &[u32], piece: PlacementPiece, count: u32) -> u32 {
    let mut free: Vec<u64> = up.iter().copied().map(u64::from).collect();
    let mut jobs = 0;
    loop {
        let mut after = free.clone();
        let mut touched = vec![false; up.len()];
        for _ in 0..count {
            if !place_segment(&mut after, &mut touched, piece) {
                return jobs;
            }
        }
        free = after;
        jobs += 1;
    }
}

/// Places one segment in base blocks that its job does not use yet.
fn place_segment(free: &mut [u64], touched: &mut [bool], piece: PlacementPiece) -> bool {
    let open = |at: usize| if touched[at] { 0 } else { free[at] };
    let all: Vec<u64> = (0..free.len()).map(open).collect();
    // The group with the fewest nodes that suffice.
    let mut best: Option<(u64, usize)> = None;
    for (at, group) in all.chunks(piece.within).enumerate() {
        let mut lower: Vec<u64> = group.chunks(piece.lower).map(|it| it.iter().sum()).collect();
        let total: u64 = lower.iter().sum();
        if piece.take(&mut lower) && best.is_none_or(|(least, _)| total < least) {
            best = Some((total, at));
        }
    }
    let Some((_, at)) = best else { return false };
    let start = at * piece.within;
    let end = (start + piece.within).min(all.len());
    let before: Vec<u64> = all[start..end].chunks(piece.lower).map(|it| it.iter().sum()).collect();
    let mut after = before.clone();
    piece.take(&mut after);
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        let first = start + index * piece.lower;
        let last = (first + piece.lower).min(end);
        let mut inside: Vec<u64> = all[first..last].to_vec();
        take_nodes(&mut inside, before - after, usize::MAX);
        for (block, left) in (first..last).zip(inside) {
            if left < all[block] {
                free[block] -= all[block] - left;
                touched[block] = true;
            }
        }
    }
    true
}

#[cfg(test)]
#[path = "job_fit_tests.rs"]
mod tests;
