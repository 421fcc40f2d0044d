//! Pairs nodes over the scale-out network.
//!
//! Disjoint hosts do not imply disjoint paths: on a healthy fabric without oversubscription, 63 %
//! of pairs read below 95 % if all hosts send across leaves concurrently over one flow each, 5 % if
//! two hosts of each leaf do. So nodes are paired inside their leaf first, and few hosts of a leaf
//! send across leaves at the same time. The sweep never runs a full tournament over the fabric.

use std::collections::BTreeMap;

use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::id::NodeName;
use model::seeded_rng::SeededRng;
use model::tournament;
use model::tournament::IndexPair;

/// The leaves of the nodes 0..n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafMap {
    /// The name and the nodes of each leaf.
    groups: Vec<(String, Vec<usize>)>,
    leaf_by_node: Vec<usize>,
}

/// The rounds, and where they are incomplete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeafRounds {
    /// Pairs of nodes per round.
    pub rounds: Vec<Vec<IndexPair>>,
    /// The nodes that are sampled although a complete sweep was requested, and why.
    pub notes: Vec<(Vec<usize>, String)>,
}

impl LeafMap {
    /// The claimed leaves of these nodes. Without any claim, all nodes form one leaf. If only some
    /// nodes have a claimed leaf, each of the others counts as its own leaf.
    pub fn from_claims(claims: &Claims, nodes: &[NodeName]) -> Self {
        if claims.leaves.is_empty() {
            let all = (0..nodes.len()).collect();
            return Self {
                groups: vec![("the fabric".to_owned(), all)],
                leaf_by_node: vec![0; nodes.len()],
            };
        }
        let claim_index = ClaimIndex::from_claims(claims);
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        let mut of = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            let group = match claim_index.leaf_of(node) {
                Some(leaf) => *known.entry(leaf).or_insert_with(|| {
                    groups.push((leaf.to_owned(), Vec::new()));
                    groups.len() - 1
                }),
                None => {
                    groups.push((format!("the unclaimed leaf of {node}"), Vec::new()));
                    groups.len() - 1
                }
            };
            groups[group].1.push(at);
            of.push(group);
        }
        Self { groups, leaf_by_node: of }
    }

    /// Whether two nodes are on different leaves.
    pub fn is_cross_leaf(&self, (a, b): IndexPair) -> bool {
        self.leaf_by_node[a] != self.leaf_by_node[b]
    }

    /// The leaf index of a node.
    pub(super) fn leaf_of(&self, node: usize) -> usize {
        self.leaf_by_node[node]
    }

    /// One partner for every node, inside its leaf if possible. Remaining nodes of different leaves
    /// are paired with each other; a last node without a partner gets its own round.
    pub fn make_matching(&self, seed: u64) -> LeafRounds {
        let mut chance = SeededRng::new(seed, "leaf matching");
        let mut first = Vec::new();
        let mut left = Vec::new();
        for (_, nodes) in &self.groups {
            let mut nodes = nodes.clone();
            chance.shuffle(&mut nodes);
            let (pairs, rest) = nodes.as_chunks::<2>();
            first.extend(pairs.iter().map(|[a, b]| (*a, *b)));
            left.extend(rest);
        }
        // At most one node per leaf remains, which respects any limit.
        chance.shuffle(&mut left);
        let (pairs, rest) = left.as_chunks::<2>();
        first.extend(pairs.iter().map(|[a, b]| (*a, *b)));
        let mut rounds = Vec::new();
        if !first.is_empty() {
            rounds.push(first);
        }
        if let [last] = rest {
            let near = self.groups[self.leaf_by_node[*last]].1.iter().find(|node| *node != last);
            let far = (0..self.leaf_by_node.len()).find(|node| node != last);
            if let Some(partner) = near.copied().or(far) {
                rounds.push(vec![(*last, partner)]);
            }
        }
        LeafRounds { rounds, notes: Vec::new() }
    }

    /// Every pair inside every leaf, all leaves concurrently; then every pair of leaves, by
    /// `across` hosts of each at a time. A leaf of more than `complete` nodes is sampled with
    /// `matchings` rounds: a tournament of a thousand nodes takes half an hour and finds thousands
    /// of dips. The same applies to more than `complete` leaves.
    pub fn make_complete(
        &self,
        seed: u64,
        across: usize,
        complete: usize,
        matchings: usize,
    ) -> LeafRounds {
        let mut swept = LeafRounds::default();
        for (name, nodes) in &self.groups {
            let seed = SeededRng::new(seed, name).next_u64();
            let rounds = if nodes.len() <= complete {
                tournament::make_rounds(nodes.len(), seed)
            } else {
                let why = format!(
                    "{name} has {} nodes, more than {complete}: each is paired with {matchings} \
                     others, not all",
                    nodes.len()
                );
                swept.notes.push((nodes.clone(), why));
                tournament::make_matchings(nodes.len(), matchings, seed)
            };
            for (at, round) in rounds.into_iter().enumerate() {
                if swept.rounds.len() <= at {
                    swept.rounds.push(Vec::new());
                }
                swept.rounds[at].extend(round.into_iter().map(|(a, b)| (nodes[a], nodes[b])));
            }
        }
        let leaves = self.groups.len();
        let most = if leaves <= complete { usize::MAX } else { matchings };
        if leaves > complete {
            let why = format!(
                "there are {leaves} leaves, more than {complete}: each is paired with {matchings} \
                 others, not all"
            );
            swept.notes.push(((0..self.leaf_by_node.len()).collect(), why));
        }
        let met =
            tournament::make_matchings(leaves, most, SeededRng::new(seed, "leaves").next_u64());
        for (at, round) in met.into_iter().enumerate() {
            let mut pairs = Vec::new();
            for (a, b) in round {
                let (a, b) = (&self.groups[a].1, &self.groups[b].1);
                // Other hosts in every round, so that no single host represents its leaf.
                let hosts = across.max(1).min(a.len()).min(b.len());
                let turn = |leaf: &[usize], host| leaf[(at * hosts + host) % leaf.len()];
                pairs.extend((0..hosts).map(|host| (turn(a, host), turn(b, host))));
            }
            swept.rounds.push(pairs);
        }
        swept
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use model::claims::ClaimedLeaf;

    /// Leaves of these sizes; the first `free` nodes belong to no leaf.
    fn leaves(sizes: &[usize], free: usize) -> LeafMap {
        let name = |at: usize| NodeName::from(format!("n{at:04}"));
        let nodes: Vec<NodeName> = (0..sizes.iter().sum::<usize>() + free).map(name).collect();
        let mut from = free;
        let mut claims = Claims::default();
        for (at, size) in sizes.iter().enumerate() {
            let nodes = nodes[from..from + size].to_vec();
            claims.leaves.push(ClaimedLeaf { name: format!("leaf{at}"), nodes });
            from += size;
        }
        LeafMap::from_claims(&claims, &nodes)
    }

    fn check(leaves: &LeafMap, rounds: &[Vec<IndexPair>], limit: usize) {
        for round in rounds {
            let mut busy = BTreeSet::new();
            let mut across: BTreeMap<usize, usize> = BTreeMap::new();
            for (a, b) in round {
                assert!(a != b && busy.insert(*a) && busy.insert(*b), "twice in {round:?}");
                if leaves.is_cross_leaf((*a, *b)) {
                    *across.entry(leaves.leaf_of(*a)).or_default() += 1;
                    *across.entry(leaves.leaf_of(*b)).or_default() += 1;
                }
            }
            assert!(across.values().all(|hosts| *hosts <= limit), "{across:?} leave their leaf");
        }
    }

    proptest! {
        #[test]
        fn a_matching_reaches_every_node_and_prefers_the_leaf(
            sizes in proptest::collection::vec(1usize..9, 1..7), free in 0usize..3, seed: u64
        ) {
            let leaves = leaves(&sizes, free);
            let swept = leaves.make_matching(seed);
            check(&leaves, &swept.rounds, 1);
            let met: BTreeSet<usize> =
                swept.rounds.iter().flatten().flat_map(|(a, b)| [*a, *b]).collect();
            let all = leaves.leaf_by_node.len();
            prop_assert_eq!(met.len(), if all < 2 { 0 } else { all });
            let across = swept.rounds.iter().flatten().filter(|p| leaves.is_cross_leaf(**p)).count();
            // One of each odd leaf, and the last without any partner.
            let odd = free + sizes.iter().filter(|n| *n % 2 == 1).count();
            prop_assert!(across <= odd / 2 + 1);
        }

        #[test]
        fn a_complete_sweep_has_every_pair_of_a_leaf_and_every_pair_of_leaves(
            sizes in proptest::collection::vec(1usize..9, 1..7), limit in 1usize..4, seed: u64
        ) {
            let leaves = leaves(&sizes, 0);
            let swept = leaves.make_complete(seed, limit, 8, 2);
            check(&leaves, &swept.rounds, limit);
            prop_assert!(swept.notes.is_empty());
            let mut inside = BTreeSet::new();
            let mut across = BTreeSet::new();
            for (a, b) in swept.rounds.iter().flatten() {
                if leaves.is_cross_leaf((*a, *b)) {
                    let (a, b) = (leaves.leaf_of(*a), leaves.leaf_of(*b));
                    across.insert((a.min(b), a.max(b)));
                } else {
                    prop_assert!(inside.insert((*a.min(b), *a.max(b))), "met twice");
                }
            }
            prop_assert_eq!(inside.len(), sizes.iter().map(|n| n * (n - 1) / 2).sum::<usize>());
            prop_assert_eq!(across.len(), sizes.len() * (sizes.len() - 1) / 2);
            // All leaves are swept concurrently.
            let longest = sizes.iter().map(|n| n - 1 + n % 2).max().unwrap_or(0);
            prop_assert!(swept.rounds.len() <= longest + sizes.len());
        }
    }

    #[test]
    fn a_large_leaf_is_sampled_with_a_note() {
        let leaves = leaves(&[200, 4], 0);
        let swept = leaves.make_complete(1, 2, 128, 8);
        // Eight rounds of both leaves, and one for the pair of them.
        assert_eq!(swept.rounds.len(), 8 + 1);
        assert_eq!(swept.notes.len(), 1);
        let (nodes, why) = &swept.notes[0];
        assert!(nodes.len() == 200 && why.contains("leaf0 has 200 nodes"), "{why}");
    }

    #[test]
    fn many_leaves_are_sampled_with_a_note() {
        let swept = leaves(&[4; 200], 0).make_complete(1, 2, 128, 8);
        // Three rounds inside leaves, eight of leaves with others.
        assert_eq!(swept.rounds.len(), 3 + 8);
        assert_eq!(swept.notes.len(), 1);
        let (nodes, why) = &swept.notes[0];
        assert!(nodes.len() == 800 && why.contains("there are 200 leaves"), "{why}");
        // Each node without a claimed leaf is its own leaf, however many there are.
        let swept = leaves(&[4], 1_000).make_complete(1, 2, 128, 8);
        assert_eq!(swept.rounds.iter().map(Vec::len).sum::<usize>(), 6 + 8 * 500);
    }

    #[test]
    fn a_node_that_two_leaves_claim_is_of_the_first() {
        let nodes: Vec<NodeName> = (0..4).map(|n| NodeName::from(format!("n{n}"))).collect();
        let mut claims = Claims::default();
        for (name, of) in [("a", &nodes[..2]), ("b", &nodes[1..])] {
            claims.leaves.push(ClaimedLeaf { name: name.to_owned(), nodes: of.to_vec() });
        }
        let leaves = LeafMap::from_claims(&claims, &nodes);
        assert!(
            !leaves.is_cross_leaf((0, 1))
                && leaves.is_cross_leaf((1, 2))
                && !leaves.is_cross_leaf((2, 3))
        );
    }

    #[test]
    fn without_leaves_all_nodes_share_one_leaf() {
        let nodes: Vec<NodeName> = (0..5).map(|n| NodeName::from(format!("n{n}"))).collect();
        let leaves = LeafMap::from_claims(&Claims::default(), &nodes);
        assert_eq!(leaves.groups.len(), 1);
        assert_eq!(leaves.make_complete(1, 2, 128, 8).rounds.len(), 5);
        let matching = leaves.make_matching(1).rounds;
        assert_eq!(matching.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
