//! An index of the claims by node: its domain and its leaves.
//!
//! Built once per decision: with thousands of suspects, searching all claims for each would be
//! quadratic.

use std::collections::{BTreeMap, BTreeSet};

use model::claims::{ClaimedDomain, Claims};
use model::id::{DomainName, NodeName};

#[derive(Debug, Default)]
pub(super) struct ClaimIndex<'a> {
    /// The domain that claims each node; the first, if there are several.
    domain_by_node: BTreeMap<&'a NodeName, &'a ClaimedDomain>,
    /// The leaf that claims each node; the first, if there are several.
    leaf_by_node: BTreeMap<&'a NodeName, &'a str>,
    /// All leaves that a node is attached to, by the claimed topology and by its NICs.
    leaves: BTreeMap<&'a NodeName, BTreeSet<&'a str>>,
    domains: BTreeMap<&'a DomainName, &'a ClaimedDomain>,
}

impl<'a> ClaimIndex<'a> {
    pub(super) fn from_claims(claims: &'a Claims) -> Self {
        let mut places = Self::default();
        for domain in &claims.domains {
            places.domains.entry(&domain.name).or_insert(domain);
            for node in &domain.nodes {
                places.domain_by_node.entry(node).or_insert(domain);
            }
        }
        for (leaf, node) in claims.leaves.iter().flat_map(|l| l.nodes.iter().map(move |n| (l, n))) {
            places.leaf_by_node.entry(node).or_insert(&leaf.name);
            places.leaves.entry(node).or_default().insert(&leaf.name);
        }
        for (node, nic) in claims.nodes.iter().flat_map(|(n, s)| s.nics.iter().map(move |i| (n, i)))
        {
            if let Some(leaf) = &nic.leaf {
                places.leaves.entry(node).or_default().insert(leaf);
            }
        }
        places
    }

    /// How many nodes the domains claim.
    pub(super) fn node_count(&self) -> usize {
        self.domain_by_node.len()
    }

    pub(super) fn domain(&self, name: &DomainName) -> Option<&'a ClaimedDomain> {
        self.domains.get(name).copied()
    }

    pub(super) fn domain_of(&self, node: &NodeName) -> Option<&'a ClaimedDomain> {
        self.domain_by_node.get(node).copied()
    }

    pub(super) fn leaf_of(&self, node: &NodeName) -> Option<&'a str> {
        self.leaf_by_node.get(node).copied()
    }

    pub(super) fn leaves(&self, node: &NodeName) -> BTreeSet<&'a str> {
        self.leaves.get(node).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::source_report::NicReport;
    use readers::claims::claims_file;

    #[test]
    fn a_node_is_where_the_first_claim_puts_it_and_hangs_on_all_its_leaves() {
        let mut claims = claims_file::parse(
            "claims.toml",
            "[[domain]]\nname = \"a\"\nnodes = \"n[1-3]\"\n[[domain]]\nname = \"b\"\nnodes = \"m[1-2]\"\n\
             [[leaf]]\nname = \"l1\"\nnodes = \"n[1-2]\"\n[[leaf]]\nname = \"l2\"\nnodes = \"n3,m1\"\n",
        )
        .unwrap_or_else(|error| panic!("{error}"));
        // One file cannot claim this, several sources together can.
        claims.domains[1].nodes.push("n1".into());
        claims.leaves[1].nodes.push("n1".into());
        let nic = NicReport { leaf: Some("l3".to_owned()), ..NicReport::default() };
        claims.nodes.entry("n1".into()).or_default().nics.push(nic);
        let places = ClaimIndex::from_claims(&claims);
        assert_eq!(places.node_count(), 5);
        for node in ["n1", "n2", "n3", "m1", "m2", "nobody"].map(NodeName::from) {
            let name = |it: &ClaimedDomain| it.name.clone();
            assert_eq!(places.domain_of(&node).map(name), claims.domain_of(&node).map(name));
            let leaf = claims.leaf_of(&node).map(|leaf| leaf.name.as_str());
            assert_eq!(places.leaf_of(&node), leaf, "{node}");
        }
        assert_eq!(places.leaves(&"n1".into()), ["l1", "l2", "l3"].into());
        assert!(places.leaves(&"m2".into()).is_empty());
        assert_eq!(places.domain(&"b".into()).map(|it| it.nodes.len()), Some(3));
    }
}
