//! Finds nodes by the names that tools print, efficiently for large fleets.
//!
//! Names only: other modules decide what a node is and where it belongs.

use std::collections::BTreeMap;

use model::id::NodeName;

/// Known nodes, each with its associated value.
#[derive(Clone, Debug)]
pub(super) struct HostIndex<T> {
    nodes: BTreeMap<String, (NodeName, T)>,
}

impl<T> Default for HostIndex<T> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new() }
    }
}

impl<T> HostIndex<T> {
    /// Adds a node if it is not yet known.
    pub(super) fn add(&mut self, node: &NodeName, what: T) {
        self.nodes.entry(node.as_str().to_owned()).or_insert_with(|| (node.clone(), what));
    }

    /// The node that a host name means, and its value: the node of that name, else the only node
    /// that differs solely in a DNS suffix.
    pub(super) fn find(&self, host: &str) -> Option<(&NodeName, &T)> {
        if let Some((node, what)) = self.nodes.get(host) {
            return Some((node, what));
        }
        match self.find_suffixed(host).as_slice() {
            [(node, what)] => Some((node, what)),
            _ => None,
        }
    }

    /// The values of all nodes that a host name could mean.
    pub(super) fn find_candidates(&self, host: &str) -> impl Iterator<Item = &T> {
        self.nodes.get(host).into_iter().chain(self.find_suffixed(host)).map(|(_, what)| what)
    }

    /// Nodes other than the exact match that a host name could mean (`NodeName::matches_host`):
    /// either the host or the node has a suffix.
    fn find_suffixed(&self, host: &str) -> Vec<&(NodeName, T)> {
        let shorter = host.match_indices('.').filter_map(|(dot, _)| self.nodes.get(&host[..dot]));
        let from = format!("{host}.");
        let longer =
            self.nodes.range(from.clone()..).take_while(|(name, _)| name.starts_with(&from));
        shorter.chain(longer.map(|(_, node)| node)).collect()
    }

    /// Whether a host name could mean any node, with or without a suffix.
    pub(super) fn has_candidate(&self, host: &str) -> bool {
        let from = format!("{host}.");
        let after = self.nodes.range(from.clone()..).next();
        self.nodes.contains_key(host)
            || host.match_indices('.').any(|(dot, _)| self.nodes.contains_key(&host[..dot]))
            || after.is_some_and(|(name, _)| name.starts_with(&from))
    }

    /// The node that a host name means, if known.
    pub(super) fn find_name(&self, host: &str) -> Option<&NodeName> {
        self.find(host).map(|(node, _)| node)
    }
}

impl<'n> FromIterator<&'n NodeName> for HostIndex<()> {
    fn from_iter<I: IntoIterator<Item = &'n NodeName>>(nodes: I) -> Self {
        let mut roster = Self::default();
        nodes.into_iter().for_each(|node| roster.add(node, ()));
        roster
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_suffix_is_not_another_node_and_an_ambiguous_name_finds_none() {
        let names = ["a", "b.x", "b.y", "c.x", "d", "d.x", "e-1"].map(NodeName::from);
        let roster: HostIndex<()> = names.iter().collect();
        let known = |host: &str| roster.find_name(host).map(NodeName::as_str);
        assert_eq!(known("a"), Some("a"));
        assert_eq!(known("a.example.org"), Some("a"));
        assert_eq!(known("b"), None, "either may be meant");
        assert_eq!(known("c"), Some("c.x"));
        assert_eq!(known("d"), Some("d"));
        assert_eq!(known("d.x.y"), None, "d and d.x both fit");
        assert_eq!((known("e"), known("ab")), (None, None));
    }

    proptest! {
        #[test]
        fn lookups_match_a_search_of_all_nodes(
            nodes in proptest::collection::btree_set("[ab](\\.[xy]){0,2}", 0..8),
            host in "[ab](\\.[xy]){0,2}",
        ) {
            let nodes: Vec<NodeName> = nodes.into_iter().map(NodeName::from).collect();
            let roster: HostIndex<()> = nodes.iter().collect();
            let exact = nodes.iter().find(|n| n.as_str() == host);
            let alike: Vec<&NodeName> = nodes.iter().filter(|n| n.matches_host(&host)).collect();
            let only = exact.or_else(|| (alike.len() == 1).then(|| alike[0]));
            prop_assert_eq!(roster.find_name(&host), only);
            prop_assert_eq!(roster.has_candidate(&host), !alike.is_empty());
            prop_assert_eq!(roster.find_candidates(&host).count(), alike.len());
        }
    }
}
