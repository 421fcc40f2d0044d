//! Compares two groupings of the same nodes.
//!
//! Only nodes in both count. Only the minority is named: if one of eighteen nodes differs, that
//! node is reported.

use std::collections::BTreeMap;

use model::id::NodeName;

/// The nodes of one set that another grouping separates from the rest.
pub(super) struct StrayNodes<'n> {
    pub(super) set: usize,
    /// The set of the other grouping with most of the nodes, if there is one.
    pub(super) main: Option<usize>,
    /// The sets of the remaining nodes (of all nodes without a main set).
    pub(super) elsewhere: BTreeMap<usize, Vec<&'n NodeName>>,
}

/// The result of comparing two groupings.
#[derive(Default)]
pub(super) struct GroupingComparison<'n> {
    /// Sets whose nodes are in several sets of the other grouping.
    pub(super) strays: Vec<StrayNodes<'n>>,
    /// Sets of the other grouping, with the sets for which they are the main one.
    pub(super) mains: BTreeMap<usize, Vec<usize>>,
}

impl GroupingComparison<'_> {
    /// Sets of the other grouping that are the main one of several sets.
    pub(super) fn joined_sets(&self) -> impl Iterator<Item = (usize, &[usize])> {
        self.mains.iter().filter(|(_, sets)| 1 < sets.len()).map(|(main, sets)| (*main, &sets[..]))
    }
}

/// Compares: `a` and `b` return the set of a node.
pub(super) fn compare_groupings<'n>(
    nodes: impl Iterator<Item = &'n NodeName>,
    a: impl Fn(&NodeName) -> Option<usize>,
    b: impl Fn(&NodeName) -> Option<usize>,
) -> GroupingComparison<'n> {
    let mut places: BTreeMap<usize, BTreeMap<usize, Vec<&'n NodeName>>> = BTreeMap::new();
    for node in nodes {
        if let (Some(a), Some(b)) = (a(node), b(node)) {
            places.entry(a).or_default().entry(b).or_default().push(node);
        }
    }
    let mut comparison = GroupingComparison::default();
    for (set, mut elsewhere) in places {
        let all: usize = elsewhere.values().map(Vec::len).sum();
        let most = elsewhere.iter().max_by_key(|(_, nodes)| nodes.len());
        let main = most.filter(|(_, nodes)| all < 2 * nodes.len()).map(|(main, _)| *main);
        if let Some(main) = main {
            comparison.mains.entry(main).or_default().push(set);
            elsewhere.remove(&main);
        }
        if !elsewhere.is_empty() {
            comparison.strays.push(StrayNodes { set, main, elsewhere });
        }
    }
    comparison
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(a: &[(&str, usize)], b: &[(&str, usize)]) -> (Vec<(usize, usize)>, Vec<usize>) {
        let map = |list: &[(&str, usize)]| -> BTreeMap<NodeName, usize> {
            list.iter().map(|(node, set)| (NodeName::from(*node), *set)).collect()
        };
        let (a, b) = (map(a), map(b));
        let all = a.keys();
        let found = compare_groupings(all, |n| a.get(n).copied(), |n| b.get(n).copied());
        let strays = found
            .strays
            .iter()
            .map(|s| (s.set, s.elsewhere.values().map(Vec::len).sum()))
            .collect();
        (strays, found.joined_sets().map(|(set, _)| set).collect())
    }

    #[test]
    fn the_minority_is_named_and_equal_groupings_give_nothing() {
        let one = [("n1", 0), ("n2", 0), ("n3", 0), ("n4", 1)];
        assert_eq!(compared(&one, &one), (vec![], vec![]));
        let other = [("n1", 5), ("n2", 5), ("n3", 6), ("n4", 6)];
        assert_eq!(compared(&one, &other), (vec![(0, 1)], vec![]));
    }

    #[test]
    fn halves_have_no_main_and_a_union_joins() {
        let four = [("n1", 0), ("n2", 0), ("n3", 0), ("n4", 0)];
        let halves = [("n1", 0), ("n2", 0), ("n3", 1), ("n4", 1)];
        assert_eq!(compared(&four, &halves), (vec![(0, 4)], vec![]));
        assert_eq!(compared(&halves, &four), (vec![], vec![0]));
    }
}
