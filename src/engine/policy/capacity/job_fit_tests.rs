//! Job counts compared with a search over all placements of small clusters, and with the jobs that
//! a real Slurm 26.05.5 started.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn levels(sizes: &[u32]) -> BlockSizes {
    BlockSizes::from_sizes(sizes).expect("sizes")
}

fn shape(nodes: u32, segment: u32, placing: SegmentPlacement) -> JobShape {
    JobShape { nodes, segment: Some(segment), placing }
}

fn plain(nodes: u32) -> JobShape {
    JobShape { nodes, segment: None, placing: SegmentPlacement::Anywhere }
}

/// The rules again, written for a search, without any of the code above.
struct SearchRules {
    sizes: Vec<u32>,
}

impl SearchRules {
    /// Base blocks of the smallest level with at least this many nodes.
    fn unit(&self, nodes: u32) -> Option<usize> {
        self.sizes.iter().find(|size| nodes <= **size).map(|size| (size / self.sizes[0]) as usize)
    }

    /// Whether one piece may take these nodes from blocks with this many free nodes.
    fn allows(&self, free: &[u32], piece: &[u32]) -> bool {
        let nodes: u32 = piece.iter().sum();
        let used: Vec<usize> = (0..piece.len()).filter(|at| 0 < piece[*at]).collect();
        let unit = self.unit(nodes);
        if let Some(unit) = unit
            && used.iter().any(|at| at / unit != used[0] / unit)
        {
            return false;
        }
        // The largest size below the smallest doubled base that holds it.
        let mut doubled = self.sizes[0];
        while doubled < nodes {
            doubled *= 2;
        }
        let lower = self.sizes.iter().rev().find(|size| **size < doubled);
        let lower = lower.copied().unwrap_or(self.sizes[0]);
        let width = (lower / self.sizes[0]) as usize;
        let parts: BTreeSet<usize> = used.iter().map(|at| at / width).collect();
        let most = nodes.div_ceil(lower) as usize;
        if unit.is_none() {
            // Complete aggregates of the largest size must have enough nodes by themselves.
            let mut complete: Vec<u32> =
                free.chunks_exact(width).map(|blocks| blocks.iter().sum()).collect();
            complete.sort_unstable();
            let largest: u32 = complete.iter().rev().take(most).sum();
            if largest < nodes {
                return false;
            }
        }
        parts.len() <= most
    }

    /// Every way to take this many nodes as one piece.
    fn ways(&self, free: &[u32], nodes: u32) -> Vec<Vec<u32>> {
        fn walk(free: &[u32], rest: u32, so_far: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
            let Some((first, others)) = free.split_first() else {
                if rest == 0 {
                    found.push(so_far.clone());
                }
                return;
            };
            for part in 0..=rest.min(*first) {
                so_far.push(part);
                walk(others, rest - part, so_far, found);
                so_far.pop();
            }
        }
        let mut found = Vec::new();
        walk(free, nodes, &mut Vec::new(), &mut found);
        found.retain(|piece| self.allows(free, piece));
        found
    }

    /// Every state after one more job.
    fn after_one(&self, free: &[u32], shape: JobShape) -> BTreeSet<Vec<u32>> {
        let segment = shape.segment.unwrap_or(shape.nodes).min(shape.nodes);
        let count = shape.nodes / segment;
        let spread = matches!(
            shape.placing,
            SegmentPlacement::Spread | SegmentPlacement::ConsolidatedAndSpread
        );
        let unit = match shape.placing {
            _ if count == 1 => None,
            SegmentPlacement::Consolidated => self.unit(shape.nodes),
            SegmentPlacement::ConsolidatedAndSpread => {
                self.unit(segment.div_ceil(self.sizes[0]) * self.sizes[0] * count)
            }
            SegmentPlacement::Anywhere | SegmentPlacement::Spread => None,
        };
        // Nodes left, blocks that the job uses, and its aggregate.
        let mut states = BTreeSet::from([(free.to_vec(), vec![false; free.len()])]);
        for _ in 0..count {
            let mut next = BTreeSet::new();
            for (free, has) in &states {
                let is_closed = |at: usize| spread && count != 1 && has[at];
                let open: Vec<u32> =
                    (0..free.len()).map(|at| if is_closed(at) { 0 } else { free[at] }).collect();
                for way in self.ways(&open, segment) {
                    let used: Vec<usize> = (0..way.len()).filter(|at| 0 < way[*at]).collect();
                    let mut has = has.clone();
                    used.iter().for_each(|at| has[*at] = true);
                    let mut whole = (0..has.len()).filter(|at| has[*at]);
                    if let (Some(unit), Some(first)) = (unit, whole.next())
                        && whole.any(|at| at / unit != first / unit)
                    {
                        continue;
                    }
                    let left = free.iter().zip(&way).map(|(free, part)| free - part).collect();
                    next.insert((left, has));
                }
            }
            states = next;
        }
        states.into_iter().map(|(free, _)| free).collect()
    }

    fn most(&self, free: &[u32], shape: JobShape) -> u32 {
        let mut states = BTreeSet::from([free.to_vec()]);
        let mut jobs = 0;
        loop {
            states = states.iter().flat_map(|free| self.after_one(free, shape)).collect();
            if states.is_empty() {
                return jobs;
            }
            jobs += 1;
        }
    }
}

fn placings() -> impl Strategy<Value = SegmentPlacement> {
    prop_oneof![
        Just(SegmentPlacement::Anywhere),
        Just(SegmentPlacement::Consolidated),
        Just(SegmentPlacement::Spread),
        Just(SegmentPlacement::ConsolidatedAndSpread),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_count_differs_from_a_search_over_all_placements(
        base in 1_u32..4,
        doublings in proptest::collection::btree_set(1_u32..4, 0..3),
        up in proptest::collection::vec(0_u32..5, 1..6),
        segment in 1_u32..9,
        count in 1_u32..4,
        placing in placings(),
    ) {
        let mut sizes = vec![base];
        sizes.extend(doublings.iter().map(|by| base << by));
        let shape = shape(segment * count, segment, placing);
        let fit = levels(&sizes).count_jobs(&up, shape);
        let most = SearchRules { sizes: sizes.clone() }.most(&up, shape);
        prop_assert!(fit.at_least <= most && most <= fit.at_most, "{fit:?}, found {most}");
        let is_whole = segment <= base;
        let is_doubling = sizes.iter().zip(sizes.iter().skip(1)).all(|(a, b)| a * 2 == *b)
            && segment <= sizes[sizes.len() - 1];
        let is_spread = matches!(placing, SegmentPlacement::Spread | SegmentPlacement::ConsolidatedAndSpread);
        if is_whole || count == 1 && is_doubling || is_doubling && !is_spread {
            prop_assert_eq!(fit, JobFit { at_least: most, at_most: most });
        }
        // A single job is never missed: a job that Slurm would start now is not counted as waiting.
        if count == 1 {
            prop_assert_eq!(fit.at_least == 0, most == 0);
        }
    }

    #[test]
    fn more_nodes_never_leave_room_for_fewer_exact_jobs(
        up in proptest::collection::vec(0_u32..19, 1..12),
        at in 0_usize..12,
        segment in 1_u32..19,
        count in 1_u32..9,
        placing in placings(),
    ) {
        let levels = levels(&[18, 36, 72]);
        let shape = shape(segment * count, segment, placing);
        let mut fewer = up.clone();
        let at = at % up.len();
        fewer[at] = fewer[at].saturating_sub(1);
        let (all, less) = (levels.count_jobs(&up, shape), levels.count_jobs(&fewer, shape));
        prop_assert!(less.at_least <= all.at_least && all.at_least <= less.at_least + 1);
    }
}

/// The answers of `sbatch --test-only` of Slurm 26.05.5 for blocks of 4 nodes.
#[test]
fn one_job_fits_where_a_real_slurm_starts_it() {
    let (whole, nine) = (vec![4; 8], vec![4; 9]);
    let drained = vec![3; 8];
    let some = vec![3, 4, 3, 4, 3, 4, 4, 4];
    let by = |nodes, segment, placing| shape(nodes, segment, placing);
    use SegmentPlacement::{Anywhere, Consolidated, ConsolidatedAndSpread, Spread};
    let cases: &[(&[u32], &[u32], JobShape, bool)] = &[
        (&[4, 8, 16], &nine, plain(32), true),
        // The last aggregate is incomplete and does not count.
        (&[4, 8, 16], &nine, plain(33), false),
        (&[4, 8, 16], &nine, plain(18), true),
        (&[4, 8, 16], &nine, by(36, 18, Anywhere), false),
        (&[4, 8, 16], &nine, by(36, 12, Anywhere), false),
        (&[4, 8, 16], &nine, by(36, 4, Anywhere), true),
        (&[4, 8, 16], &nine, by(36, 4, Consolidated), true),
        (&[4, 16], &nine, plain(8), true),
        // As many lower blocks as it would fill, and no more.
        (&[4, 16], &drained, plain(8), false),
        (&[4, 16], &drained, plain(6), true),
        (&[4, 16], &drained, plain(7), false),
        (&[4, 16], &drained, plain(9), true),
        (&[4, 16], &drained, plain(12), false),
        (&[4, 16], &drained, plain(24), true),
        (&[4, 16], &drained, by(24, 6, Anywhere), true),
        (&[4, 8], &whole, by(24, 6, Spread), true),
        (&[4, 8], &whole, by(30, 6, Anywhere), false),
        (&[4, 8], &whole, by(16, 2, ConsolidatedAndSpread), true),
        (&[4, 8], &whole, by(16, 1, Spread), false),
        (&[4, 8], &some, by(8, 4, Consolidated), true),
        (&[4, 8], &some, plain(16), false),
        (&[4, 8], &some, plain(20), true),
        (&[4, 8], &some, plain(24), false),
        (&[4, 8], &some, plain(28), true),
        (&[4, 8], &some, by(28, 7, Consolidated), true),
        (&[4, 8], &some, by(12, 6, Consolidated), true),
    ];
    for (sizes, up, shape, fits) in cases {
        let jobs = levels(sizes).count_jobs(up, *shape);
        assert_eq!(0 < jobs.at_least, *fits, "{sizes:?} {up:?} {shape:?}: {jobs:?}");
    }
}

#[test]
fn racks_of_eighteen_are_counted_on_every_level() {
    let levels = levels(&[18, 36, 72]);
    let exactly = JobFit::exactly;
    let (whole, out) = (vec![18; 8], vec![18, 17, 18, 18, 16, 18, 18, 18]);
    for (nodes, with_all, with_out) in [(18, 8, 6), (36, 4, 2), (72, 2, 0)] {
        assert_eq!(levels.count_jobs(&whole, plain(nodes)), exactly(with_all), "{nodes}");
        assert_eq!(levels.count_jobs(&out, plain(nodes)), exactly(with_out), "{nodes}");
    }
    // Segments of 18 leave the two incomplete racks unused.
    assert_eq!(levels.count_jobs(&out, shape(72, 18, SegmentPlacement::Anywhere)), exactly(1));
    assert_eq!(levels.count_jobs(&out, shape(72, 18, SegmentPlacement::Consolidated)), exactly(0));
    assert_eq!(levels.count_jobs(&out, shape(64, 16, SegmentPlacement::Consolidated)), exactly(2));
    assert_eq!(levels.count_jobs(&out, shape(72, 9, SegmentPlacement::Spread)), exactly(1));
    assert_eq!(
        levels.count_jobs(&out, shape(32, 8, SegmentPlacement::ConsolidatedAndSpread)),
        exactly(4)
    );
}

#[test]
fn sizes_that_slurm_refuses_are_refused() {
    for (sizes, message) in [
        (&[][..], "base block size first"),
        (&[0, 4][..], "base block size first"),
        (&[4, 12][..], "12 is not 4 times a power of two"),
        (&[16, 8][..], "8 is not 16 times"),
    ] {
        let error = BlockSizes::from_sizes(sizes).expect_err("refused").to_string();
        assert!(error.contains(message), "{error}");
    }
    let sizes: Vec<_> = levels(&[4, 16]).sizes().collect();
    assert_eq!(sizes, [(4, 1), (16, 4)]);
    assert_eq!(BlockSizes::from_first_block(0), None);
    let sizes: Vec<_> = BlockSizes::from_first_block(18).expect("levels").sizes().collect();
    assert_eq!(sizes.last(), Some(&(288, 16)));
}

#[test]
fn shapes_that_no_job_can_have_fit_nowhere() {
    let levels = levels(&[4, 8]);
    for shape in
        [plain(0), shape(6, 4, SegmentPlacement::Anywhere), shape(4, 0, SegmentPlacement::Spread)]
    {
        assert_eq!(levels.count_jobs(&[4; 4], shape), JobFit::default(), "{shape:?}");
    }
    assert_eq!(levels.count_jobs(&[], plain(4)), JobFit::default());
    // No effect if all nodes fit in one segment.
    assert_eq!(
        levels.count_jobs(&[4; 4], shape(3, 4, SegmentPlacement::Spread)),
        JobFit::exactly(4)
    );
}
