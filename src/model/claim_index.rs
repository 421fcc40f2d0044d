//! Claims by node: its domain and its leaves.
//!
//! Built once per decision: in a large outage a decision concerns thousands of nodes, and
//! [`Claims::domain_of`] searches all domains for each.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::claims::{ClaimedDomain, ClaimedLeaf, Claims};
use super::id::{DomainName, NodeName};
use super::source_report::NodeReport;

/// The claims of a fleet, by node. If several domains or leaves claim a node, the first counts.
#[derive(Debug, Default)]
pub struct ClaimIndex<'a> {
    domains: HashMap<&'a DomainName, &'a ClaimedDomain>,
    domain_by_node: HashMap<&'a NodeName, &'a ClaimedDomain>,
    leaves: &'a [ClaimedLeaf],
    /// Positions in `leaves`.
    leaves_by_node: HashMap<&'a NodeName, Vec<usize>>,
    reports: Option<&'a BTreeMap<NodeName, NodeReport>>,
}

impl<'a> ClaimIndex<'a> {
    /// The index of these claims.
    pub fn from_claims(claims: &'a Claims) -> Self {
        let mut index =
            Self { leaves: &claims.leaves, reports: Some(&claims.nodes), ..Self::default() };
        for domain in &claims.domains {
            index.domains.entry(&domain.name).or_insert(domain);
            for node in &domain.nodes {
                index.domain_by_node.entry(node).or_insert(domain);
            }
        }
        for (at, leaf) in claims.leaves.iter().enumerate() {
            for node in &leaf.nodes {
                index.leaves_by_node.entry(node).or_default().push(at);
            }
        }
        index
    }

    /// The number of nodes that domains claim.
    pub fn node_count(&self) -> usize {
        self.domain_by_node.len()
    }

    /// The domain of this name.
    pub fn domain(&self, name: &DomainName) -> Option<&'a ClaimedDomain> {
        self.domains.get(name).copied()
    }

    /// The domain that claims a node.
    pub fn domain_of(&self, node: &NodeName) -> Option<&'a ClaimedDomain> {
        self.domain_by_node.get(node).copied()
    }

    /// The name of the domain that claims a node.
    pub fn domain_name_of(&self, node: &NodeName) -> Option<&'a DomainName> {
        self.domain_of(node).map(|domain| &domain.name)
    }

    /// Whether domains claim both nodes, and not the same one.
    pub fn is_cross_domain(&self, a: &NodeName, b: &NodeName) -> bool {
        self.domain_name_of(a).zip(self.domain_name_of(b)).is_some_and(|(a, b)| a != b)
    }

    /// The name of the leaf that claims a node.
    pub fn leaf_of(&self, node: &NodeName) -> Option<&'a str> {
        self.leaf_position_of(node).map(|at| self.leaves[at].name.as_str())
    }

    /// The position of that leaf in [`Claims::leaves`].
    pub fn leaf_position_of(&self, node: &NodeName) -> Option<usize> {
        self.leaves_by_node.get(node)?.first().copied()
    }

    /// All leaves of a node: as claimed, and by its NICs.
    pub fn leaves_of(&self, node: &NodeName) -> BTreeSet<&'a str> {
        let claimed = self.leaves_by_node.get(node).into_iter().flatten();
        let claimed = claimed.map(|at| self.leaves[*at].name.as_str());
        let report = self.reports.and_then(|reports| reports.get(node));
        let nics = report.into_iter().flat_map(|report| &report.nics);
        claimed.chain(nics.filter_map(|nic| nic.leaf.as_deref())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_report::NicReport;

    #[test]
    fn the_first_claim_of_a_node_counts_and_all_its_leaves_are_listed() {
        let domain = |name: &str, nodes: &[&str]| ClaimedDomain {
            name: name.into(),
            nodes: nodes.iter().map(|node| NodeName::from(*node)).collect(),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        let leaf = |name: &str, nodes: &[&str]| ClaimedLeaf {
            name: name.to_owned(),
            nodes: nodes.iter().map(|node| NodeName::from(*node)).collect(),
        };
        // A claims file never claims a node twice; several sources together may.
        let mut claims = Claims {
            domains: vec![domain("a", &["n1", "n2", "n3"]), domain("b", &["m1", "m2", "n1"])],
            leaves: vec![leaf("l1", &["n1", "n2"]), leaf("l2", &["n3", "m1", "n1"])],
            ..Claims::default()
        };
        let nic = NicReport { leaf: Some("l3".to_owned()), ..NicReport::default() };
        claims.nodes.entry("n1".into()).or_default().nics.push(nic);
        let index = ClaimIndex::from_claims(&claims);
        assert_eq!(index.node_count(), 5);
        for node in ["n1", "n2", "n3", "m1", "m2", "unclaimed"].map(NodeName::from) {
            let name = |it: &ClaimedDomain| it.name.clone();
            assert_eq!(index.domain_of(&node).map(name), claims.domain_of(&node).map(name));
            let leaf = claims.leaf_of(&node).map(|leaf| leaf.name.as_str());
            assert_eq!(index.leaf_of(&node), leaf, "{node}");
        }
        assert_eq!(index.leaves_of(&"n1".into()), ["l1", "l2", "l3"].into());
        assert!(index.leaves_of(&"m2".into()).is_empty());
        assert!(index.is_cross_domain(&"n1".into(), &"m1".into()));
        assert!(!index.is_cross_domain(&"n1".into(), &"unclaimed".into()));
        assert_eq!(index.domain(&"b".into()).map(|it| it.nodes.len()), Some(3));
    }
}
