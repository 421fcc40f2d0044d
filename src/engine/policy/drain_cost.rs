//! Whether a node that works below its expected rate is worth a drain: the drain's cost in
//! schedulable nodes against the loss of the largest job that has the node in it.
//!
//! Pure. If the site has not configured the segments that its jobs request, the price is
//! unknown, and only the plain budgets limit drains.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::action_policy::{Policy, SoftFaults};
use super::situation::Situation;
use super::{capacity, node_state};
use model::claim_index::ClaimIndex;
use model::id::{DomainName, NodeName};
use model::verdict::Finding;

/// The decision about a soft fault.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DrainTradeoff {
    /// Drain it, for this reason.
    Drain(String),
    /// Leave it in service and mark it, for this reason.
    Mark(String),
}

/// The nodes of each domain that take jobs, from which the price of a drain follows.
#[derive(Debug)]
pub(super) struct DrainPrices<'a> {
    situation: &'a Situation<'a>,
    policy: &'a Policy,
    claim_index: &'a ClaimIndex<'a>,
    proposed: BTreeMap<DomainName, BTreeSet<NodeName>>,
    /// Results so far by domain and number of proposed drains, so that equal cases are calculated
    /// once.
    cache: RefCell<BTreeMap<(DomainName, usize), Option<f64>>>,
    /// How many nodes each partition has.
    partitions: OnceCell<BTreeMap<&'a str, usize>>,
}

impl<'a> DrainPrices<'a> {
    /// Prices before any drain is proposed.
    pub(super) fn new(
        situation: &'a Situation<'a>,
        claim_index: &'a ClaimIndex<'a>,
        policy: &'a Policy,
    ) -> Self {
        let (proposed, cache) = (BTreeMap::new(), RefCell::default());
        Self { situation, policy, claim_index, proposed, cache, partitions: OnceCell::new() }
    }

    pub(super) fn claim_index(&self) -> &'a ClaimIndex<'a> {
        self.claim_index
    }

    /// Counts a node as out from now on.
    pub(super) fn mark_drained(&mut self, node: &NodeName, domain: Option<&DomainName>) {
        if let Some(domain) = domain {
            self.proposed.entry(domain.clone()).or_default().insert(node.clone());
        }
    }

    /// Schedulable nodes that one more drain of this domain costs, if known. A node that the
    /// scheduler does not know takes no jobs.
    pub(super) fn price(&self, domain: Option<&DomainName>) -> Option<f64> {
        // Without the segments that jobs request there is no price.
        let name = domain.filter(|_| !self.policy.mix.0.is_empty())?;
        let key = (name.clone(), self.proposed.get(name).map_or(0, BTreeSet::len));
        if let Some(price) = self.cache.borrow().get(&key) {
            return *price;
        }
        let price = self.compute_price(name);
        self.cache.borrow_mut().insert(key, price);
        price
    }

    fn compute_price(&self, name: &DomainName) -> Option<f64> {
        let domain = self.claim_index.domain(name)?;
        let nodes: BTreeSet<&NodeName> = domain.nodes.iter().collect();
        let proposed = self.proposed.get(name);
        let is_out = |node: &&&NodeName| {
            let live = self.situation.live.map(|live| live.nodes.get(**node));
            proposed.is_some_and(|out| out.contains(**node))
                || live.is_some_and(|live| live.is_none_or(node_state::is_out))
        };
        let out = u32::try_from(nodes.iter().filter(is_out).count()).ok()?;
        let nodes = u32::try_from(nodes.len()).ok()?;
        let price = capacity::drain_price(nodes, out, &self.policy.mix, self.policy.unavailable);
        price.is_finite().then_some(price)
    }

    /// The largest gang that may include this node.
    fn largest_gang(&self, node: &NodeName) -> usize {
        if let Some(nodes) = self.policy.largest_gang {
            return nodes;
        }
        let Some(live) = self.situation.live else { return self.claim_index.node_count() };
        let partitions = self.partitions.get_or_init(|| {
            let mut sizes = BTreeMap::new();
            for node in live.nodes.values() {
                let own: BTreeSet<&str> = node.partitions.iter().map(String::as_str).collect();
                own.into_iter().for_each(|name| *sizes.entry(name).or_default() += 1);
            }
            sizes
        });
        let own = live.nodes.get(node).map(|node| node.partitions.as_slice()).unwrap_or_default();
        let sizes = own.iter().filter_map(|name| partitions.get(name.as_str()));
        sizes.max().copied().unwrap_or_else(|| self.claim_index.node_count())
    }

    /// Whether a soft fault is worth a drain at this price.
    pub(super) fn weigh(
        &self,
        node: &NodeName,
        found: &Finding,
        price: Option<f64>,
    ) -> DrainTradeoff {
        match self.policy.soft {
            SoftFaults::Drain => {
                return DrainTradeoff::Drain("the policy drains soft faults".to_owned());
            }
            SoftFaults::Relabel => {
                return DrainTradeoff::Mark("the policy marks soft faults".to_owned());
            }
            SoftFaults::Price => {}
        }
        let Some(price) = price else {
            return DrainTradeoff::Drain("the cost of the drain is unknown".to_owned());
        };
        let Some(ratio) = found.deciding_share().filter(|ratio| ratio.is_finite()) else {
            return DrainTradeoff::Drain(format!(
                "the drain costs {price:.2} schedulable nodes; the loss is unknown"
            ));
        };
        let lost = (1.0 - ratio).clamp(0.0, 1.0);
        let gang = self.largest_gang(node);
        if lost <= 0.0 {
            return DrainTradeoff::Mark(format!(
                "the drain costs {price:.2} schedulable nodes, and its level costs jobs nothing"
            ));
        }
        let from = capacity::break_even(price, lost, self.policy.exposed);
        #[expect(clippy::cast_precision_loss, reason = "gangs have far fewer than 2^52 nodes")]
        let pays = from <= gang as f64;
        let why = format!(
            "the drain costs {price:.2} schedulable nodes and pays for jobs of {} nodes or more; \
             the largest has {gang}",
            if from.is_finite() { format!("{:.0}", from.max(1.0).ceil()) } else { "no".to_owned() }
        );
        // A NaN price never pays.
        if pays { DrainTradeoff::Drain(why) } else { DrainTradeoff::Mark(why) }
    }
}

#[cfg(test)]
#[path = "drain_cost_tests.rs"]
mod tests;
