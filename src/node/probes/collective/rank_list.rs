//! The participants: messages of ranks in exchanges, and the rank list derived from them.
//!
//! Pure values. All participants derive the same list from the same answers, so ranks need no
//! coordinator.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ffi::nccl::NcclVersion;
use model::exchange::ExchangeReply;
use model::probe_report::ProbedRank;

/// A process's value in the first exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankIntroduction {
    /// Name of its node.
    pub node: String,
    /// Index of its GPU on the node.
    pub gpu: u32,
    /// Its process ID, by which it finds itself in the answer.
    pub process: u32,
    /// PCI address of the GPU.
    pub bus_id: Option<String>,
    /// Product name of the GPU.
    pub name: Option<String>,
    /// NCCL's version: major, minor, patch.
    pub nccl: (u32, u32, u32),
    /// The largest message that fits into the GPU's memory, in bytes.
    pub largest: u64,
    /// Why it cannot participate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A rank's value in a later exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// The sending rank.
    pub rank: u32,
    /// Payload; null if it has none.
    #[serde(default)]
    pub value: Value,
    /// Why it cannot continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// It failed because of a timeout, so another rank may be the cause.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waited: bool,
}

/// A process that does not participate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentRank {
    /// Name of its node.
    pub node: String,
    /// Index of its GPU, if reported.
    pub gpu: Option<u32>,
    /// Why the process does not participate.
    pub why: String,
}

/// All ranks in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankList {
    /// Rank of this process.
    pub me: u32,
    /// The participants, by rank.
    pub ranks: Vec<RankIntroduction>,
    /// The processes that do not participate.
    pub absent: Vec<AbsentRank>,
}

/// All shares as one list, each with its node and the reason if it is missing. A node that submits
/// one value for all its processes submits a list.
fn flatten_shares(
    answer: &ExchangeReply,
) -> impl Iterator<Item = (&str, Option<&Value>, Option<&str>)> {
    answer.shares.iter().flat_map(|share| {
        let values: Vec<Option<&Value>> = match &share.value {
            Some(Value::Array(values)) => values.iter().map(Some).collect(),
            value => vec![value.as_ref()],
        };
        let (member, gone) = (share.member.as_str(), share.gone.as_deref());
        values.into_iter().map(move |value| (member, value, gone))
    })
}

impl RankList {
    /// Numbers the participants in the order of the answer. `None` if this process is not one of
    /// them.
    pub fn from_answer(answer: &ExchangeReply, mine: &RankIntroduction) -> Option<Self> {
        let (mut ranks, mut absent) = (Vec::new(), Vec::new());
        for (member, value, gone) in flatten_shares(answer) {
            let introduction: Option<RankIntroduction> =
                value.and_then(|value| serde_json::from_value(value.clone()).ok());
            match introduction {
                Some(introduction) => match &introduction.failed {
                    None => ranks.push(introduction),
                    Some(why) => absent.push(AbsentRank {
                        node: introduction.node.clone(),
                        gpu: Some(introduction.gpu),
                        why: why.clone(),
                    }),
                },
                None => absent.push(AbsentRank {
                    node: member.to_owned(),
                    gpu: None,
                    why: gone.unwrap_or("it did not identify itself").to_owned(),
                }),
            }
        }
        let me = ranks.iter().position(|it| it == mine)?;
        Some(Self { me: u32::try_from(me).ok()?, ranks, absent })
    }

    /// Number of ranks.
    pub fn count(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    /// The ranks for documents.
    pub fn probed_ranks(&self) -> impl Iterator<Item = ProbedRank> {
        (0..).zip(&self.ranks).map(|(rank, it)| ProbedRank {
            rank,
            node: it.node.clone(),
            gpu: it.gpu,
            bus_id: it.bus_id.clone(),
            name: it.name.clone(),
        })
    }

    /// True if this process reports problems that concern all ranks: the first of its node does, so
    /// that every node's document contains them exactly once.
    pub fn is_node_leader(&self) -> bool {
        let me = &self.ranks[self.me as usize];
        self.ranks.iter().position(|it| it.node == me.node) == Some(self.me as usize)
    }

    /// Name of a rank: `rank 3 (n2, GPU 1)`.
    pub fn rank_name(&self, rank: u32) -> String {
        match self.ranks.get(rank as usize) {
            Some(it) => format!("rank {rank} ({}, GPU {})", it.node, it.gpu),
            None => format!("rank {rank}"),
        }
    }

    /// The NCCL versions and their nodes, if the ranks have different versions.
    pub fn version_mismatch(&self) -> Option<String> {
        let versions: BTreeSet<_> = self.ranks.iter().map(|it| it.nccl).collect();
        if versions.len() <= 1 {
            return None;
        }
        let groups: Vec<String> = versions
            .into_iter()
            .map(|version| {
                let nodes: BTreeSet<&str> = self
                    .ranks
                    .iter()
                    .filter(|it| it.nccl == version)
                    .map(|it| it.node.as_str())
                    .collect();
                let (major, minor, patch) = version;
                let version = NcclVersion { major, minor, patch };
                format!("{version} on {}", join_first(nodes.into_iter()))
            })
            .collect();
        Some(groups.join(", "))
    }

    /// A GPU that appears twice, which makes NCCL fail with an unclear message, or hang.
    pub fn duplicate_gpu(&self) -> Option<String> {
        let mut seen = BTreeSet::new();
        let twice = self.ranks.iter().find(|it| {
            it.bus_id.as_ref().is_some_and(|bus| !seen.insert((it.node.as_str(), bus.as_str())))
        })?;
        let bus = twice.bus_id.as_deref().unwrap_or_default();
        Some(format!("GPU {} ({bus}) of {}", twice.gpu, twice.node))
    }

    /// The largest message that fits on all ranks, and the rank that limits it.
    pub fn largest_message(&self) -> (u64, u32) {
        let least = (0..).zip(&self.ranks).map(|(rank, it)| (it.largest, rank)).min();
        least.unwrap_or((0, self.me))
    }

    /// The values of all ranks in an exchange, or the failed and missing ranks.
    pub fn read_reports(&self, answer: &ExchangeReply) -> Result<Vec<Value>, RankFailures> {
        let mut reports: Vec<Option<RankReport>> = vec![None; self.ranks.len()];
        let mut gone = Vec::new();
        for (member, value, why) in flatten_shares(answer) {
            let report: Option<RankReport> =
                value.and_then(|value| serde_json::from_value(value.clone()).ok());
            match report {
                Some(report) => {
                    if let Some(place) = reports.get_mut(report.rank as usize) {
                        *place = Some(report);
                    }
                }
                None => gone.extend(why.map(|why| (member, why))),
            }
        }
        let mut trouble = RankFailures::default();
        let mut values = Vec::new();
        for (rank, report) in (0..).zip(reports) {
            match report {
                Some(RankReport { failed: Some(why), waited, .. }) => {
                    let list = if waited { &mut trouble.timed_out } else { &mut trouble.failed };
                    list.push((rank, why));
                }
                Some(report) => values.push(report.value),
                None => {
                    let node = &self.ranks[rank as usize].node;
                    let why = gone.iter().find(|(member, _)| member == node);
                    let why = why.map_or("it ended without a message", |(_, why)| why);
                    trouble.gone.push((rank, why.to_owned()));
                }
            }
        }
        if trouble == RankFailures::default() { Ok(values) } else { Err(trouble) }
    }
}

/// Why a communicator is unusable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFailures {
    /// Ranks on which an operation failed.
    pub failed: Vec<(u32, String)>,
    /// Ranks that timed out.
    pub timed_out: Vec<(u32, String)>,
    /// Ranks that ended.
    pub gone: Vec<(u32, String)>,
}

/// Maximum number of names in a message.
const MAX_NAMED: usize = 6;

/// Joins the first few names, with the number of omitted ones.
pub fn join_first<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let more = names.len().saturating_sub(MAX_NAMED);
    let first = names[..names.len() - more].join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use model::exchange::ExchangeShare;

    fn introduction(node: &str, gpu: u32) -> RankIntroduction {
        RankIntroduction {
            node: node.to_owned(),
            gpu,
            process: 100 + gpu,
            bus_id: Some(format!("0000:0{gpu}:00.0")),
            name: Some("H200".to_owned()),
            nccl: (2, 28, 3),
            largest: 1 << 30,
            failed: None,
        }
    }

    fn share(member: &str, value: Value) -> ExchangeShare {
        ExchangeShare { member: member.to_owned(), value: Some(value), gone: None }
    }

    fn gone(member: &str, why: &str) -> ExchangeShare {
        ExchangeShare { member: member.to_owned(), value: None, gone: Some(why.to_owned()) }
    }

    fn answer(shares: Vec<ExchangeShare>) -> ExchangeReply {
        ExchangeReply { number: 0, me: 0, shares, waited_s: 0.0 }
    }

    fn value(of: &RankIntroduction) -> Value {
        serde_json::to_value(of).expect("plain data")
    }

    fn two_by_two() -> RankList {
        let all: Vec<_> =
            [("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)].map(|(n, g)| introduction(n, g)).into();
        RankList { me: 2, ranks: all, absent: Vec::new() }
    }

    #[test]
    fn ranks_are_numbered_in_the_order_of_the_answer() {
        let all = two_by_two().ranks;
        let one_by_one = all.iter().map(|it| share(&it.node, value(it))).collect();
        let by_node = vec![
            share("n1", json!([value(&all[0]), value(&all[1])])),
            share("n2", json!([value(&all[2]), value(&all[3])])),
        ];
        for shares in [one_by_one, by_node] {
            let rank_list = RankList::from_answer(&answer(shares), &all[3]).expect("it is there");
            assert_eq!((rank_list.me, rank_list.count()), (3, 4));
            assert!(rank_list.absent.is_empty() && !rank_list.is_node_leader());
            assert_eq!(rank_list.rank_name(3), "rank 3 (n2, GPU 1)");
        }
    }

    #[test]
    fn failed_and_lost_processes_have_no_rank() {
        let mine = introduction("n3", 0);
        let failed =
            RankIntroduction { failed: Some("no driver".to_owned()), ..introduction("n1", 2) };
        let shares =
            vec![share("n1", value(&failed)), gone("n2", "it was late"), share("n3", value(&mine))];
        let rank_list = RankList::from_answer(&answer(shares), &mine).expect("it is there");
        assert_eq!((rank_list.me, rank_list.count()), (0, 1));
        assert_eq!(rank_list.absent[0].gpu, Some(2));
        assert_eq!(
            (rank_list.absent[1].node.as_str(), rank_list.absent[1].why.as_str()),
            ("n2", "it was late")
        );
        assert_eq!(
            RankList::from_answer(&answer(vec![share("n1", value(&failed))]), &failed),
            None
        );
    }

    #[test]
    fn different_versions_are_reported_with_their_nodes() {
        let mut rank_list = two_by_two();
        assert_eq!(rank_list.version_mismatch(), None);
        rank_list.ranks[0].nccl = (2, 27, 5);
        rank_list.ranks[1].nccl = (2, 27, 5);
        assert_eq!(rank_list.version_mismatch().as_deref(), Some("2.27.5 on n1, 2.28.3 on n2"));
    }

    #[test]
    fn a_duplicate_gpu_is_named() {
        let mut rank_list = two_by_two();
        assert_eq!(
            rank_list.duplicate_gpu(),
            None,
            "the same address on another node is another GPU"
        );
        rank_list.ranks[3].bus_id = rank_list.ranks[2].bus_id.clone();
        assert_eq!(rank_list.duplicate_gpu().as_deref(), Some("GPU 1 (0000:00:00.0) of n2"));
    }

    #[test]
    fn the_smallest_memory_decides_on_the_largest_message() {
        let mut rank_list = two_by_two();
        rank_list.ranks[1].largest = 1 << 20;
        assert_eq!(rank_list.largest_message(), (1 << 20, 1));
    }

    #[test]
    fn an_exchange_returns_all_values_or_the_failed_ranks() {
        let rank_list = two_by_two();
        let report = |rank: u32| json!({"rank": rank, "value": rank * 10});
        let fine = vec![
            share("n1", json!([report(0), report(1)])),
            share("n2", json!([report(2), report(3)])),
        ];
        assert_eq!(
            rank_list.read_reports(&answer(fine)),
            Ok(vec![json!(0), json!(10), json!(20), json!(30)])
        );
        let failed = json!({"rank": 1, "failed": "out of memory"});
        let waited = json!({"rank": 0, "failed": "no end in 5 s", "waited": true});
        let bad = vec![share("n1", json!([waited, failed])), gone("n2", "exit 9")];
        let trouble = rank_list.read_reports(&answer(bad)).expect_err("failed ranks");
        assert_eq!(trouble.failed, [(1, "out of memory".to_owned())]);
        assert_eq!(trouble.timed_out, [(0, "no end in 5 s".to_owned())]);
        assert_eq!(trouble.gone, [(2, "exit 9".to_owned()), (3, "exit 9".to_owned())]);
    }

    #[test]
    fn only_the_first_of_many_names_are_listed() {
        let names: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        let joined = join_first(names.iter().map(String::as_str));
        assert_eq!(joined, "n0, n1, n2, n3, n4, n5 and 3 more");
        assert_eq!(join_first(["a", "b"].into_iter()), "a, b");
    }
}
