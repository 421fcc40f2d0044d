//! Cleared nodes as partners of suspects: nearest first, then least used.
//!
//! Names and counts only. A large failure has thousands of suspects, and each lookup examines only
//! the first few candidates.

use std::collections::{BTreeMap, BTreeSet};

use model::id::{DomainName, NodeName};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PartnerGroup {
    /// A leaf, by its index.
    Leaf(usize),
    Domain(DomainName),
}

/// Candidate nodes in order of use: number of uses, and index.
type PartnerQueue = BTreeSet<(usize, usize)>;

#[derive(Debug, Default)]
struct ProbePartners {
    near: BTreeMap<PartnerGroup, PartnerQueue>,
    all: PartnerQueue,
}

#[derive(Debug)]
pub(super) struct PartnerPool {
    /// In random order.
    nodes: Vec<NodeName>,
    /// How often each node is a partner already.
    used: Vec<usize>,
    /// The nodes on which each probe can run, with the location of each.
    pools: BTreeMap<String, (ProbePartners, Vec<Option<PartnerGroup>>)>,
}

impl PartnerPool {
    /// A pool of these nodes; the order breaks ties.
    pub(super) fn new(nodes: Vec<NodeName>) -> Self {
        Self { used: vec![0; nodes.len()], nodes, pools: BTreeMap::new() }
    }

    /// Creates the pool of a probe if it does not exist. `near` returns a node's location, or
    /// `None` for a node that cannot be a partner.
    pub(super) fn add_probe(
        &mut self,
        probe: &str,
        near: impl Fn(&NodeName) -> Option<PartnerGroup>,
    ) {
        if self.pools.contains_key(probe) {
            return;
        }
        let places: Vec<Option<PartnerGroup>> = self.nodes.iter().map(near).collect();
        let mut pool = ProbePartners::default();
        for (at, place) in places.iter().enumerate() {
            if let Some(place) = place {
                pool.near.entry(place.clone()).or_default().insert((self.used[at], at));
                pool.all.insert((self.used[at], at));
            }
        }
        self.pools.insert(probe.to_owned(), (pool, places));
    }

    /// Chooses partners: near ones first, and others if `too` is set; among them those that were
    /// not `met`, and among these the least used.
    pub(super) fn choose(
        &mut self,
        probe: &str,
        (near, too): (Option<PartnerGroup>, bool),
        met: &BTreeSet<&NodeName>,
        wanted: usize,
    ) -> Vec<NodeName> {
        let Some((pool, _)) = self.pools.get(probe) else { return Vec::new() };
        let queues = [near.and_then(|near| pool.near.get(&near)), too.then_some(&pool.all)];
        let mut chosen: Vec<usize> = Vec::new();
        for queue in queues.into_iter().flatten() {
            let mut again = Vec::new();
            for (_, at) in queue {
                if wanted <= chosen.len() {
                    break;
                }
                if met.contains(&self.nodes[*at]) {
                    again.push(*at);
                } else if !chosen.contains(at) {
                    chosen.push(*at);
                }
            }
            // A near node that was used before comes before far ones.
            let left = wanted.saturating_sub(chosen.len());
            again.retain(|at| !chosen.contains(at));
            chosen.extend(again.into_iter().take(left));
        }
        for at in &chosen {
            self.mark_used(*at);
        }
        chosen.into_iter().map(|at| self.nodes[at].clone()).collect()
    }

    fn mark_used(&mut self, at: usize) {
        let before = self.used[at];
        self.used[at] += 1;
        for (pool, places) in self.pools.values_mut() {
            let Some(place) = &places[at] else { continue };
            let near = pool.near.get_mut(place);
            for queue in near.into_iter().chain([&mut pool.all]) {
                queue.remove(&(before, at));
                queue.insert((before + 1, at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The reference implementation: sorts all candidates for each suspect.
        #[test]
        fn the_first_of_all_are_chosen(
            leaves in proptest::collection::vec(0usize..4, 1..12),
            requests in proptest::collection::vec((0usize..5, any::<u16>(), any::<bool>()), 1..20),
            wanted in 1usize..5,
        ) {
            let name = |at: usize| NodeName::from(format!("n{at}"));
            let nodes: Vec<NodeName> = (0..leaves.len()).map(name).collect();
            let leaf = |node: &NodeName| leaves[nodes.iter().position(|n| n == node).expect("known")];
            let mut good = PartnerPool::new(nodes.clone());
            let mut used = vec![0; nodes.len()];
            for (home, met, too) in requests {
                let met: BTreeSet<&NodeName> =
                    nodes.iter().enumerate().filter(|(at, _)| met >> at & 1 == 1).map(|(_, n)| n).collect();
                let mut all: Vec<usize> =
                    (0..nodes.len()).filter(|at| too || leaves[*at] == home).collect();
                all.sort_by_key(|at| (leaves[*at] != home, met.contains(&nodes[*at]), used[*at], *at));
                all.truncate(wanted);
                all.iter().for_each(|at| used[*at] += 1);
                good.add_probe("p", |node| Some(PartnerGroup::Leaf(leaf(node))));
                let chosen = good.choose("p", (Some(PartnerGroup::Leaf(home)), too), &met, wanted);
                prop_assert_eq!(chosen, all.into_iter().map(name).collect::<Vec<_>>());
            }
        }
    }
}
