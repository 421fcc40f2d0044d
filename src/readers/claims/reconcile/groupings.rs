//! Groups laid out as groupings: all groups of one kind that one kind of
//! source makes in one way, so that two ways of grouping can be compared.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::identity;
use super::normal;
use crate::claims::reading::is_zero;
use model::disagreement::Side;
use model::id::NodeName;
use model::said::Basis;
use model::said::Family;
use model::said::Group;
use model::said::GroupKind;
use model::said::Said;
use model::said::SourceKind;

/// One set of nodes, with every group that says so: the driver of each node
/// may be a source of its own.
pub(super) struct Set<'s> {
    pub(super) name: &'s str,
    pub(super) nodes: Vec<&'s NodeName>,
    /// The sources by index, and their groups.
    pub(super) groups: Vec<(usize, &'s Group)>,
}

impl<'s> Set<'s> {
    /// Every node that its groups name, those that the grouping has in another
    /// set, or has from another source, included.
    pub(super) fn named(&self) -> BTreeSet<&'s NodeName> {
        self.groups.iter().flat_map(|(_, group)| &group.nodes).collect()
    }
}

/// One way of grouping.
pub(super) struct Grouping<'s> {
    pub(super) kind: GroupKind,
    pub(super) source: SourceKind,
    pub(super) scheme: &'s str,
    pub(super) sets: Vec<Set<'s>>,
    /// The set of every node; the first where it is in several.
    pub(super) of: BTreeMap<&'s NodeName, usize>,
    /// Nodes that are in a second set of another name.
    pub(super) twice: Vec<(&'s NodeName, usize, usize)>,
    /// Its sets are cliques.
    pub(super) cliques: bool,
    rank: (usize, u8, bool),
}

impl Grouping<'_> {
    /// What the source calls one such group.
    pub(super) fn noun(&self) -> &str {
        if self.cliques { normal::CLIQUE } else { self.scheme }
    }

    /// Whether its sets are told by the driver itself.
    pub(super) fn is_reported(&self) -> bool {
        let mut bases = self.sets.iter().flat_map(|set| &set.groups).map(|(_, g)| &g.basis);
        bases.all(|basis| matches!(basis, Basis::Reported | Basis::Measured))
    }

    /// One side of a disagreement: this set says this.
    pub(super) fn side(&self, said: &[Said], set: usize, says: impl Into<String>) -> Side {
        let (source, group) = self.sets[set].groups[0];
        side(said, source, group.at.clone(), group.basis.clone(), says)
    }
}

/// One side of a disagreement.
pub(super) fn side(
    said: &[Said],
    source: usize,
    at: Option<String>,
    basis: Basis,
    says: impl Into<String>,
) -> Side {
    Side { source: said[source].source.clone(), at, basis, says: says.into() }
}

/// Where a family stands in the order; `None` where it does not count.
pub(super) fn family_rank(order: &[Family], family: Family) -> Option<usize> {
    let order = if order.is_empty() { &Family::ALL[..] } else { order };
    order.iter().position(|f| *f == family)
}

/// Where a kind of source stands in its family: what is in force first.
pub(super) fn kind_rank(kind: SourceKind) -> u8 {
    match kind {
        SourceKind::ClaimsFile | SourceKind::SlurmTopology | SourceKind::KubernetesNodes => 0,
        SourceKind::Scenario | SourceKind::SlurmTopologyYaml | SourceKind::NodeFacts => 1,
        SourceKind::Unrecognised | SourceKind::SlurmTopologyConf | SourceKind::ComputeDomains => 2,
        SourceKind::SlurmNodes | SourceKind::KubernetesTopologies => 3,
        _ => 4,
    }
}

/// All ways of grouping that are in force, the weightiest first.
pub(super) fn groupings<'s>(said: &'s [Said], order: &[Family]) -> Vec<Grouping<'s>> {
    type Key<'s> = (GroupKind, SourceKind, bool, &'s str, Option<&'s str>);
    let mut found: Vec<Grouping<'s>> = Vec::new();
    let mut known: BTreeMap<Key<'s>, usize> = BTreeMap::new();
    // A clique has one name everywhere; a block of that name in another
    // file is another block.
    let mut named: BTreeMap<(usize, &'s str, Option<usize>), usize> = BTreeMap::new();
    for (source, one) in said.iter().enumerate() {
        for group in one.groups.iter().filter(|group| group.in_force) {
            let cliques = normal::is_clique(group);
            // A zero UUID is the absence of a clique, not one that all share.
            if cliques && identity::clique(&group.name).is_some_and(|(u, _)| is_zero(u)) {
                continue;
            }
            let scheme = if cliques { normal::CLIQUE } else { group.scheme.as_str() };
            let kind = one.source.kind;
            let key = (group.kind, kind, cliques, scheme, group.topology.as_deref());
            let at = *known.entry(key).or_insert_with(|| {
                let family = family_rank(order, kind.family()).unwrap_or(usize::MAX);
                found.push(Grouping {
                    kind: group.kind,
                    source: kind,
                    scheme,
                    sets: Vec::new(),
                    of: BTreeMap::new(),
                    twice: Vec::new(),
                    cliques,
                    rank: (family, kind_rank(kind), !cliques),
                });
                found.len() - 1
            });
            let grouping = &mut found[at];
            let place = (!cliques).then_some(source);
            let set = *named.entry((at, group.name.as_str(), place)).or_insert_with(|| {
                grouping.sets.push(Set { name: &group.name, nodes: vec![], groups: vec![] });
                grouping.sets.len() - 1
            });
            grouping.sets[set].groups.push((source, group));
            for node in &group.nodes {
                match grouping.of.get(node) {
                    None => {
                        grouping.of.insert(node, set);
                        grouping.sets[set].nodes.push(node);
                    }
                    Some(first) if *first != set => {
                        if grouping.sets[*first].name != grouping.sets[set].name {
                            grouping.twice.push((node, *first, set));
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
