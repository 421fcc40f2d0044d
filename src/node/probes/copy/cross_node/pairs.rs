//! Schedule of GPU pairs: the rounds of a cross-node test.
//!
//! Pure. No GPU has two partners in a round. In one-directional tests, a GPU either sends or
//! receives in a round, as if its pair were alone; in the bisection it does both, because the test
//! measures that.

use model::probe_report::ProbedRank;
use model::tournament;

use crate::probes::task::CrossNodePairs;

/// The starting round does not matter, so it is fixed.
const SEED: u64 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrossNodeTest {
    /// `multinode_device_to_device_memcpy_write_ce`.
    Write,
    /// `multinode_device_to_device_memcpy_read_ce`.
    Read,
    /// `multinode_bisect_write_ce`.
    Bisect,
}

impl CrossNodeTest {
    /// The test of this name, if it runs across nodes.
    pub(super) fn from_testcase(testcase: &str) -> Option<Self> {
        match testcase {
            "multinode_device_to_device_memcpy_write_ce" => Some(Self::Write),
            "multinode_device_to_device_memcpy_read_ce" => Some(Self::Read),
            "multinode_bisect_write_ce" => Some(Self::Bisect),
            _ => None,
        }
    }
}

/// A copy between two GPUs, by their ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GpuFlow {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The copying GPU: the source for a write, the destination for a read.
    pub(super) issuer: u32,
}

impl GpuFlow {
    fn new(kind: CrossNodeTest, from: u32, to: u32) -> Self {
        let issuer = if kind == CrossNodeTest::Read { to } else { from };
        Self { from, to, issuer }
    }

    /// The end that does not copy; the other one must be able to access its memory.
    pub(super) fn passive_rank(self) -> u32 {
        if self.issuer == self.from { self.to } else { self.from }
    }

    /// Row and column of its number. A row is the copying GPU; a row of the bisection names both
    /// ends in the direction of the data.
    pub(super) fn labels(self, kind: CrossNodeTest) -> (String, String) {
        match kind {
            CrossNodeTest::Write | CrossNodeTest::Read => {
                (self.issuer.to_string(), self.passive_rank().to_string())
            }
            CrossNodeTest::Bisect => (format!("{}->{}", self.from, self.to), "0".to_owned()),
        }
    }
}

/// The rounds of a test. `member` returns the member of a rank.
pub(super) fn plan_rounds(
    kind: CrossNodeTest,
    across: CrossNodePairs,
    ranks: &[ProbedRank],
    member: impl Fn(u32) -> usize,
) -> Vec<Vec<GpuFlow>> {
    let schedule: Vec<Vec<(u32, u32)>> = match across {
        CrossNodePairs::All => {
            let rounds = tournament::make_rounds(ranks.len(), SEED).into_iter();
            rounds
                .map(|round| round.iter().map(|(a, b)| (ranks[*a].rank, ranks[*b].rank)).collect())
                .collect()
        }
        CrossNodePairs::Lane => lane_rounds(ranks, member),
    };
    let both = |pairs: &[(u32, u32)]| {
        let mut pairs: Vec<(u32, u32)> =
            pairs.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
        pairs.sort_unstable();
        let there = pairs.iter().map(|(a, b)| GpuFlow::new(kind, *a, *b));
        let back = pairs.iter().map(|(a, b)| GpuFlow::new(kind, *b, *a));
        (there.collect::<Vec<_>>(), back.collect::<Vec<_>>())
    };
    let halves = schedule.iter().filter(|round| !round.is_empty()).flat_map(|round| {
        let (there, back) = both(round);
        match kind {
            CrossNodeTest::Bisect => vec![[there, back].concat()],
            CrossNodeTest::Write | CrossNodeTest::Read => vec![there, back],
        }
    });
    halves.collect()
}

/// Pairs GPU i of one node with GPU i of another, node by node.
fn lane_rounds(ranks: &[ProbedRank], member: impl Fn(u32) -> usize) -> Vec<Vec<(u32, u32)>> {
    let mut members: Vec<usize> = ranks.iter().map(|rank| member(rank.rank)).collect();
    members.sort_unstable();
    members.dedup();
    let of = |which: usize| -> Vec<&ProbedRank> {
        ranks.iter().filter(|rank| member(rank.rank) == members[which]).collect()
    };
    let lane_pairs = |round: &Vec<(usize, usize)>| {
        let mut pairs = Vec::new();
        for (a, b) in round {
            for one in of(*a) {
                let twin = of(*b).into_iter().find(|other| other.gpu == one.gpu);
                pairs.extend(twin.map(|other| (one.rank, other.rank)));
            }
        }
        pairs
    };
    tournament::make_rounds(members.len(), SEED).iter().map(lane_pairs).collect()
}

/// GPUs without a counterpart on any other node.
pub(super) fn unpaired_gpus(
    ranks: &[ProbedRank],
    member: impl Fn(u32) -> usize,
) -> Vec<&ProbedRank> {
    let alone = |rank: &&ProbedRank| {
        let twin =
            |other: &ProbedRank| other.gpu == rank.gpu && member(other.rank) != member(rank.rank);
        !ranks.iter().any(twin)
    };
    ranks.iter().filter(alone).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ranks(nodes: u32, gpus: u32) -> Vec<ProbedRank> {
        let rank = |rank| ProbedRank {
            rank,
            node: format!("n{}", rank / gpus),
            gpu: rank % gpus,
            ..ProbedRank::default()
        };
        (0..nodes * gpus).map(rank).collect()
    }

    fn node_of(gpus: u32) -> impl Fn(u32) -> usize + Copy {
        move |rank| (rank / gpus) as usize
    }

    #[test]
    fn every_ordered_pair_is_copied_once_and_no_gpu_has_two_partners() {
        for (nodes, gpus) in [(2, 1), (2, 4), (3, 3), (1, 2)] {
            let all = ranks(nodes, gpus);
            for kind in [CrossNodeTest::Write, CrossNodeTest::Read] {
                let rounds = plan_rounds(kind, CrossNodePairs::All, &all, node_of(gpus));
                let mut seen = BTreeSet::new();
                for round in &rounds {
                    let mut busy = BTreeSet::new();
                    for flow in round {
                        assert!(busy.insert(flow.from) && busy.insert(flow.to), "{round:?}");
                        assert!(seen.insert((flow.from, flow.to)));
                    }
                }
                let n = (nodes * gpus) as usize;
                assert_eq!(seen.len(), n * (n - 1));
            }
        }
    }

    #[test]
    fn a_lane_is_one_round_in_both_directions() {
        let rounds =
            plan_rounds(CrossNodeTest::Bisect, CrossNodePairs::Lane, &ranks(2, 4), node_of(4));
        assert_eq!(rounds.len(), 1);
        let mut labels: Vec<String> =
            rounds[0].iter().map(|flow| flow.labels(CrossNodeTest::Bisect).0).collect();
        labels.sort();
        assert_eq!(labels, ["0->4", "1->5", "2->6", "3->7", "4->0", "5->1", "6->2", "7->3"]);
        assert!(rounds[0].iter().all(|flow| flow.issuer == flow.from));
    }

    #[test]
    fn lanes_pair_gpus_by_index_and_not_by_position() {
        let mut all = ranks(2, 2);
        // The second node lacks GPU 0, and has GPUs 1 and 2.
        (all[2].gpu, all[3].gpu) = (1, 2);
        let rounds = plan_rounds(CrossNodeTest::Bisect, CrossNodePairs::Lane, &all, node_of(2));
        let ends: Vec<(u32, u32)> = rounds[0].iter().map(|flow| (flow.from, flow.to)).collect();
        assert_eq!(ends, [(1, 2), (2, 1)]);
        let alone: Vec<u32> =
            unpaired_gpus(&all, node_of(2)).iter().map(|rank| rank.rank).collect();
        assert_eq!(alone, [0, 3]);
    }

    #[test]
    fn the_row_issues_the_copy_and_a_read_pulls() {
        let write = GpuFlow::new(CrossNodeTest::Write, 1, 6);
        assert_eq!(write.labels(CrossNodeTest::Write), ("1".to_owned(), "6".to_owned()));
        let read = GpuFlow::new(CrossNodeTest::Read, 1, 6);
        assert_eq!((read.issuer, read.passive_rank()), (6, 1));
        assert_eq!(read.labels(CrossNodeTest::Read), ("6".to_owned(), "1".to_owned()));
    }

    #[test]
    fn a_single_node_has_no_rounds() {
        assert!(
            plan_rounds(CrossNodeTest::Write, CrossNodePairs::All, &ranks(1, 1), node_of(1))
                .is_empty()
        );
        assert!(
            plan_rounds(CrossNodeTest::Bisect, CrossNodePairs::Lane, &ranks(1, 4), node_of(4))
                .is_empty()
        );
        assert!(
            plan_rounds(CrossNodeTest::Bisect, CrossNodePairs::Lane, &[], node_of(1)).is_empty()
        );
    }
}
