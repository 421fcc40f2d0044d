//! Arranges groups as groupings: all groups of one kind with the same scheme from one kind of
//! source, so that two groupings can be compared.

use std::collections::{BTreeMap, BTreeSet};

use super::{identity, normal_form};
use crate::claims::reader_util::is_zero_uuid;
use model::disagreement::DisagreementSide;
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, NodeGroup, NodeGroupKind, SourceFamily, SourceKind, SourceReport,
};

/// One set of nodes, with all its groups: the driver of each node may be a separate source.
pub(super) struct GroupingSet<'s> {
    pub(super) name: &'s str,
    pub(super) nodes: Vec<&'s NodeName>,
    /// The sources by index, and their groups.
    pub(super) groups: Vec<(usize, &'s NodeGroup)>,
}

impl<'s> GroupingSet<'s> {
    /// Every node named by its groups, including those that the grouping places in another set or
    /// takes from another source.
    pub(super) fn named_nodes(&self) -> BTreeSet<&'s NodeName> {
        self.groups.iter().flat_map(|(_, group)| &group.nodes).collect()
    }
}

pub(super) struct Grouping<'s> {
    pub(super) kind: NodeGroupKind,
    pub(super) source: SourceKind,
    pub(super) scheme: &'s str,
    pub(super) sets: Vec<GroupingSet<'s>>,
    /// The set of every node; the first where it is in several.
    pub(super) set_by_node: BTreeMap<&'s NodeName, usize>,
    /// Nodes that are also in a second set with another name.
    pub(super) nodes_in_two_sets: Vec<(&'s NodeName, usize, usize)>,
    pub(super) cliques: bool,
    rank: (usize, u8, bool),
}

impl Grouping<'_> {
    /// The source's term for one such group.
    pub(super) fn noun(&self) -> &str {
        if self.cliques { normal_form::CLIQUE_SCHEME } else { self.scheme }
    }

    /// Whether the driver itself reports its sets.
    pub(super) fn is_reported(&self) -> bool {
        let mut bases = self.sets.iter().flat_map(|set| &set.groups).map(|(_, g)| &g.basis);
        bases.all(|basis| matches!(basis, ClaimBasis::Reported | ClaimBasis::Measured))
    }

    /// One side of a disagreement: the statement of this set.
    pub(super) fn to_side(
        &self,
        reports: &[SourceReport],
        set: usize,
        statement: impl Into<String>,
    ) -> DisagreementSide {
        let (source, group) = self.sets[set].groups[0];
        build_side(reports, source, group.at.clone(), group.basis.clone(), statement)
    }
}

pub(super) fn build_side(
    reports: &[SourceReport],
    source: usize,
    at: Option<String>,
    basis: ClaimBasis,
    statement: impl Into<String>,
) -> DisagreementSide {
    DisagreementSide { source: reports[source].source.clone(), at, basis, text: statement.into() }
}

/// Rank of a family in the order; `None` if it does not count.
pub(super) fn family_rank(order: &[SourceFamily], family: SourceFamily) -> Option<usize> {
    let order = if order.is_empty() { &SourceFamily::ALL[..] } else { order };
    order.iter().position(|f| *f == family)
}

/// Rank of a kind of source in its family: sources in force first.
pub(super) fn kind_rank(kind: SourceKind) -> u8 {
    match kind {
        SourceKind::ClaimsFile | SourceKind::SlurmTopology | SourceKind::KubernetesNodes => 0,
        SourceKind::Scenario | SourceKind::SlurmTopologyYaml | SourceKind::NodeFacts => 1,
        SourceKind::Unrecognised | SourceKind::SlurmTopologyConf | SourceKind::ComputeDomains => 2,
        SourceKind::SlurmNodes | SourceKind::KubernetesTopologies => 3,
        _ => 4,
    }
}

/// All groupings in force, highest priority first.
pub(super) fn build_groupings<'s>(
    reports: &'s [SourceReport],
    order: &[SourceFamily],
) -> Vec<Grouping<'s>> {
    type GroupingKey<'s> = (NodeGroupKind, SourceKind, bool, &'s str, Option<&'s str>);
    let mut found: Vec<Grouping<'s>> = Vec::new();
    let mut known: BTreeMap<GroupingKey<'s>, usize> = BTreeMap::new();
    // The name of a clique is global; a block of the same name in another file is a different
    // block.
    let mut named: BTreeMap<(usize, &'s str, Option<usize>), usize> = BTreeMap::new();
    for (source, one) in reports.iter().enumerate() {
        for group in one.groups.iter().filter(|group| group.in_force) {
            let cliques = normal_form::is_clique(group);
            // A zero UUID means no clique; it is not a clique that all share.
            if cliques && identity::parse_clique(&group.name).is_some_and(|(u, _)| is_zero_uuid(u))
            {
                continue;
            }
            let scheme = if cliques { normal_form::CLIQUE_SCHEME } else { group.scheme.as_str() };
            let kind = one.source.kind;
            let key = (group.kind, kind, cliques, scheme, group.topology.as_deref());
            let at = *known.entry(key).or_insert_with(|| {
                let family = family_rank(order, kind.family()).unwrap_or(usize::MAX);
                found.push(Grouping {
                    kind: group.kind,
                    source: kind,
                    scheme,
                    sets: Vec::new(),
                    set_by_node: BTreeMap::new(),
                    nodes_in_two_sets: Vec::new(),
                    cliques,
                    rank: (family, kind_rank(kind), !cliques),
                });
                found.len() - 1
            });
            let grouping = &mut found[at];
            let place = (!cliques).then_some(source);
            let set = *named.entry((at, group.name.as_str(), place)).or_insert_with(|| {
                grouping.sets.push(GroupingSet {
                    name: &group.name,
                    nodes: vec![],
                    groups: vec![],
                });
                grouping.sets.len() - 1
            });
            grouping.sets[set].groups.push((source, group));
            for node in &group.nodes {
                match grouping.set_by_node.get(node) {
                    None => {
                        grouping.set_by_node.insert(node, set);
                        grouping.sets[set].nodes.push(node);
                    }
                    Some(first) if *first != set => {
                        if grouping.sets[*first].name != grouping.sets[set].name {
                            grouping.nodes_in_two_sets.push((node, *first, set));
                        }
                    }
                    Some(_) => {}
                }
            }
        }
    }
    found.sort_by_key(|grouping| grouping.rank);
    found
}
