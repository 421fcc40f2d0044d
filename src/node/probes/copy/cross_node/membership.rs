//! Membership of a cross-node measurement: members, their GPUs by rank, and the remaining ones.
//!
//! Pure. All processes receive the same shares of an exchange, so all derive the same membership
//! from them and plan the same rounds.

use std::collections::{BTreeMap, BTreeSet};

use super::handshake::{PeerHello, PeerHelloGpu, PeerReport};
use super::pairs::GpuFlow;
use crate::probes::task::CopyTask;
use model::exchange::{ExchangeReply, ExchangeShare};
use model::probe_report::ProbedRank;

/// The members after the first exchange.
#[derive(Clone, Debug)]
pub(super) struct ProbeMembership {
    pub(super) me: usize,
    names: Vec<String>,
    /// Lost members, with the reason.
    gone: BTreeMap<usize, String>,
    pub(super) ranks: Vec<ProbedRank>,
    /// Member and memory of each rank.
    gpus: Vec<(usize, PeerHelloGpu)>,
    /// Ranks that cannot be measured, with the reason.
    lost: BTreeMap<u32, String>,
    /// Pairs of a rank and a rank whose memory it cannot access.
    unreachable: BTreeSet<(u32, u32)>,
}

/// Changes from one exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MembershipUpdate {
    /// Reports of the remaining members.
    pub(super) reports: BTreeMap<usize, PeerReport>,
    /// Newly lost members, with the reason.
    pub(super) gone: Vec<(usize, String)>,
    /// Newly lost ranks of others, with the reason.
    pub(super) lost: Vec<(u32, String)>,
}

impl ProbeMembership {
    /// Builds the membership from the first exchange.
    pub(super) fn from_answer(answer: &ExchangeReply, task: &CopyTask) -> Self {
        let names = answer.shares.iter().map(|share| share.member.clone()).collect();
        let mut membership = Self {
            me: answer.me,
            names,
            gone: BTreeMap::new(),
            ranks: Vec::new(),
            gpus: Vec::new(),
            lost: BTreeMap::new(),
            unreachable: BTreeSet::new(),
        };
        for (member, share) in answer.shares.iter().enumerate() {
            let introduction =
                share_value(share).and_then(|value| PeerHello::from_value(value, task));
            match introduction {
                Ok(hello) => hello.gpus.into_iter().for_each(|gpu| membership.add_gpu(member, gpu)),
                Err(why) => {
                    membership.gone.insert(member, why);
                }
            }
        }
        membership
    }

    fn add_gpu(&mut self, member: usize, gpu: PeerHelloGpu) {
        let rank = u32::try_from(self.ranks.len()).expect("an exchange holds fewer GPUs");
        if let Err(why) = &gpu.memory {
            self.lost.insert(rank, why.clone());
        }
        self.ranks.push(ProbedRank {
            rank,
            node: self.names[member].clone(),
            gpu: gpu.gpu,
            bus_id: gpu.bus_id.clone(),
            name: gpu.name.clone(),
        });
        self.gpus.push((member, gpu));
    }

    /// Applies the answer of an exchange.
    pub(super) fn apply_answer(&mut self, answer: &ExchangeReply) -> MembershipUpdate {
        let mut update = MembershipUpdate::default();
        for (member, share) in answer.shares.iter().enumerate() {
            if self.gone.contains_key(&member) {
                continue;
            }
            match share_value(share).and_then(PeerReport::from_value) {
                Ok(report) => {
                    self.apply_report(member, &report, &mut update.lost);
                    update.reports.insert(member, report);
                }
                Err(why) => {
                    self.gone.insert(member, why.clone());
                    update.gone.push((member, why));
                }
            }
        }
        update
    }

    fn apply_report(
        &mut self,
        member: usize,
        report: &PeerReport,
        newly_lost: &mut Vec<(u32, String)>,
    ) {
        for (rank, why) in &report.lost {
            // A member only reports its own GPUs.
            if self.member_of(*rank) == Some(member) && !self.lost.contains_key(rank) {
                self.lost.insert(*rank, why.clone());
                newly_lost.extend((member != self.me).then(|| (*rank, why.clone())));
            }
        }
        let own = report.unreached.iter().filter(|(by, _)| self.member_of(*by) == Some(member));
        let own: Vec<(u32, u32)> = own.copied().collect();
        self.unreachable.extend(own);
    }

    pub(super) fn member_name(&self, member: usize) -> &str {
        self.names.get(member).map_or("?", String::as_str)
    }

    /// All lost members, with the reason.
    pub(super) fn gone_members(&self) -> &BTreeMap<usize, String> {
        &self.gone
    }

    pub(super) fn member_of(&self, rank: u32) -> Option<usize> {
        self.gpus.get(usize::try_from(rank).ok()?).map(|(member, _)| *member)
    }

    /// True if a rank is a GPU of this process.
    pub(super) fn is_local(&self, rank: u32) -> bool {
        self.member_of(rank) == Some(self.me)
    }

    /// A rank's entry in its member's introduction.
    pub(super) fn gpu_of(&self, rank: u32) -> Option<&PeerHelloGpu> {
        self.gpus.get(usize::try_from(rank).ok()?).map(|(_, gpu)| gpu)
    }

    pub(super) fn local_ranks(&self) -> impl Iterator<Item = &ProbedRank> {
        self.ranks.iter().filter(|rank| self.is_local(rank.rank))
    }

    /// Label of a rank in messages: node and GPU.
    pub(super) fn rank_label(&self, rank: u32) -> String {
        let known = self.ranks.get(usize::try_from(rank).unwrap_or(usize::MAX));
        known.map_or_else(|| format!("rank {rank}"), |it| format!("{}:{}", it.node, it.gpu))
    }

    /// True if a rank can be measured.
    pub(super) fn is_active(&self, rank: u32) -> bool {
        let member = self.member_of(rank);
        member.is_some_and(|it| !self.gone.contains_key(&it)) && !self.lost.contains_key(&rank)
    }

    /// True if a copy can be measured.
    pub(super) fn can_copy(&self, flow: &GpuFlow) -> bool {
        self.is_active(flow.from)
            && self.is_active(flow.to)
            && !self.unreachable.contains(&(flow.issuer, flow.passive_rank()))
    }
}

/// The value of a share, or why it is missing.
fn share_value(share: &ExchangeShare) -> Result<&serde_json::Value, String> {
    match (&share.gone, &share.value) {
        (Some(why), _) => Err(why.clone()),
        (None, Some(value)) => Ok(value),
        (None, None) => Err("it sent no value".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::handshake::FabricMemoryOffer;
    use super::super::handshake::tests::task;
    use super::super::pairs::{CrossNodeTest, plan_rounds};
    use super::*;

    fn share(member: &str, value: Value) -> ExchangeShare {
        ExchangeShare { member: member.to_owned(), value: Some(value), gone: None }
    }

    fn gone(member: &str, why: &str) -> ExchangeShare {
        ExchangeShare { member: member.to_owned(), value: None, gone: Some(why.to_owned()) }
    }

    fn hello(gpus: &[(u32, bool)]) -> Value {
        let gpu = |(gpu, good): &(u32, bool)| PeerHelloGpu {
            gpu: *gpu,
            bus_id: Some(format!("0000:{gpu:02x}:00.0")),
            name: None,
            memory: if *good {
                Ok(FabricMemoryOffer::new([0; 64], 4 << 20, 2 << 20))
            } else {
                Err("cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800)".to_owned())
            },
        };
        PeerHello::new(&task(), gpus.iter().map(gpu).collect()).to_value()
    }

    fn answer(number: u64, shares: Vec<ExchangeShare>) -> ExchangeReply {
        ExchangeReply { number, me: 0, shares, waited_s: 0.0 }
    }

    fn membership() -> ProbeMembership {
        let shares = vec![
            share("n0", hello(&[(0, true), (1, true)])),
            gone("n1", "killed"),
            share("n2", hello(&[(0, true), (1, false)])),
            share("n3", Value::from("nonsense")),
        ];
        ProbeMembership::from_answer(&answer(0, shares), &task())
    }

    #[test]
    fn ranks_number_the_gpus_of_the_remaining_members() {
        let membership = membership();
        let places: Vec<String> = (0..4).map(|rank| membership.rank_label(rank)).collect();
        assert_eq!(places, ["n0:0", "n0:1", "n2:0", "n2:1"]);
        assert_eq!(membership.gone_members().keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(membership.local_ranks().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1]);
        assert!(membership.is_active(2) && !membership.is_active(3) && !membership.is_active(9));
    }

    #[test]
    fn reports_of_a_member_exclude_only_its_own_pairs() {
        let mut membership = membership();
        let across = task().across.expect("across");
        let of = |rank: u32| if rank < 2 { 0 } else { 2 };
        let all = plan_rounds(CrossNodeTest::Bisect, across, &membership.ranks, of).concat();
        let left = |membership: &ProbeMembership| -> Vec<(u32, u32)> {
            all.iter()
                .filter(|flow| membership.can_copy(flow))
                .map(|flow| (flow.from, flow.to))
                .collect()
        };
        assert_eq!(left(&membership), [(0, 2), (2, 0)], "rank 3 has no memory");
        let reply = |report: PeerReport| {
            answer(
                1,
                vec![
                    share("n0", PeerReport::default().to_value()),
                    gone("n1", "killed"),
                    share("n2", report.to_value()),
                    share("n3", PeerReport::default().to_value()),
                ],
            )
        };
        // Rank 2 cannot access rank 0; rank 0 can access rank 2. A member only reports its own
        // ranks.
        let sent = PeerReport { unreached: vec![(2, 0), (0, 2)], ..PeerReport::default() };
        let update = membership.apply_answer(&reply(sent));
        assert_eq!(left(&membership), [(0, 2)]);
        assert!(update.gone.is_empty() && update.reports.contains_key(&2));
        let lost = BTreeMap::from([(2, "Xid 79".to_owned()), (0, "a lie".to_owned())]);
        let sent = PeerReport { lost, ..PeerReport::default() };
        let update = membership.apply_answer(&reply(sent.clone()));
        assert_eq!(update.lost, [(2, "Xid 79".to_owned())]);
        assert!(left(&membership).is_empty() && membership.is_active(0));
        assert!(membership.apply_answer(&reply(sent)).lost.is_empty(), "reported once");
    }

    #[test]
    fn a_lost_member_is_reported_once_with_its_reason() {
        let mut membership = membership();
        let shares = [share("n0", PeerReport::default().to_value()), gone("n2", "no")];
        let mut all = vec![shares[0].clone(), gone("n1", "killed"), gone("n2", "timed out")];
        all.push(gone("n3", "x"));
        let update = membership.apply_answer(&answer(1, all.clone()));
        assert_eq!(update.gone, [(2, "timed out".to_owned())]);
        assert!(membership.apply_answer(&answer(2, all)).gone.is_empty());
        assert!(!membership.is_active(2));
    }
}
