//! Selects what is measured: domains, leaves and rails from the source with the highest priority.
//!
//! Sources form layers in order of priority; each layer adds the nodes that earlier layers did
//! not place. This is not a decision about which source is right.

use std::collections::{BTreeMap, BTreeSet};

use super::ReconcileRules;
use super::groupings::{Grouping, family_rank, kind_rank};
use super::identity::PlainNames;
use model::claims::{ClaimedDomain, ClaimedLeaf, ClaimedRail};
use model::id::{DomainName, NodeName};
use model::source_report::{
    ClaimBasis, NodeGroup, NodeGroupKind, NodeReport, SourceFamily, SourceKind, SourceReport,
};

/// The domains to measure, and their sources.
pub(super) struct DomainPlacement<'s> {
    pub(super) domains: Vec<ClaimedDomain>,
    /// For each, its grouping and the set in it; `None` where no domain is claimed and every node
    /// is measured by itself.
    pub(super) origin: Vec<Option<(usize, usize)>>,
    pub(super) domain_by_node: BTreeMap<&'s NodeName, usize>,
}

impl DomainPlacement<'_> {
    pub(super) fn domain_of(&self, node: &NodeName) -> Option<usize> {
        self.domain_by_node.get(node).copied()
    }
}

/// Places the domains layer by layer.
pub(super) fn place_domains<'s>(
    reports: &'s [SourceReport],
    groupings: &[Grouping<'s>],
    rules: &ReconcileRules<'_>,
) -> DomainPlacement<'s> {
    let mut placed = DomainPlacement {
        domains: Vec::new(),
        origin: Vec::new(),
        domain_by_node: BTreeMap::new(),
    };
    let mut names = PlainNames::default();
    let counts = rules.order.as_slice();
    let of_slurm = groupings.iter().filter(|g| g.source.family() == SourceFamily::Slurm);
    let switches: BTreeSet<&str> = of_slurm
        .filter(|g| matches!(g.kind, NodeGroupKind::Leaf | NodeGroupKind::Switch))
        .flat_map(|g| g.sets.iter().map(|set| set.name))
        .collect();
    for (at, grouping) in groupings.iter().enumerate() {
        let counted = family_rank(counts, grouping.source.family()).is_some();
        if grouping.kind != NodeGroupKind::Domain || !counted {
            continue;
        }
        for (set, members) in grouping.sets.iter().enumerate() {
            // `Topology=` of a node names units of any topology.
            if grouping.source == SourceKind::SlurmNodes && switches.contains(members.name) {
                continue;
            }
            let nodes: Vec<&NodeName> = members
                .nodes
                .iter()
                .copied()
                .filter(|n| !placed.domain_by_node.contains_key(n))
                .collect();
            if nodes.is_empty() {
                continue;
            }
            for node in &nodes {
                placed.domain_by_node.insert(node, placed.domains.len());
            }
            let group = members.groups[0].1;
            placed.domains.push(ClaimedDomain {
                name: DomainName::from(names.assign(&group.name)),
                nodes: nodes.into_iter().cloned().collect(),
                platform: group.platform.clone(),
                gpus_per_node: claimed_gpus(group).or(rules.gpus_per_node),
                nic: group.nic.clone(),
            });
            placed.origin.push(Some((at, set)));
        }
    }
    if placed.domains.is_empty() {
        place_single_nodes(reports, rules, &mut names, &mut placed);
    }
    let witnesses = NodeReportsByKind::new(reports);
    for domain in &mut placed.domains {
        if domain.gpus_per_node.is_none() {
            let gpus = |node: &NodeReport| node.gpus;
            let agreed = witnesses.unanimous_values(&domain.nodes, gpus).next();
            domain.gpus_per_node = agreed.or_else(|| witnesses.majority_value(&domain.nodes, gpus));
        }
        if domain.platform.is_none() {
            let gpus = domain.gpus_per_node;
            let platform = |node: &NodeReport| {
                let product = node.product.as_deref()?;
                // The nominal number: a lost GPU does not change the platform.
                Some((rules.platform_of)(product, gpus.or(node.gpus)))
            };
            // Slurm's `gpu:h100` does not identify a platform; other sources may.
            domain.platform = witnesses.unanimous_values(&domain.nodes, platform).flatten().next();
        }
    }
    placed
}

/// Claimed GPUs per node. A node's own report is its present number, not the nominal one.
pub(super) fn claimed_gpus(group: &NodeGroup) -> Option<u32> {
    group
        .gpus_per_node
        .filter(|_| !matches!(group.basis, ClaimBasis::Reported | ClaimBasis::Measured))
}

/// Without a claimed domain, every node with GPUs is a domain of its own: its GPUs must reach
/// each other.
fn place_single_nodes<'s>(
    reports: &'s [SourceReport],
    rules: &ReconcileRules<'_>,
    names: &mut PlainNames,
    placed: &mut DomainPlacement<'s>,
) {
    let counted = |s: &&SourceReport| family_rank(&rules.order, s.source.kind.family()).is_some();
    for (node, node_report) in reports.iter().filter(counted).flat_map(|report| &report.nodes) {
        if node_report.gpus.is_none_or(|gpus| gpus == 0) || placed.domain_by_node.contains_key(node)
        {
            continue;
        }
        place_single_node(node, rules, names, placed);
    }
    // A topology of leaves contains only the names of nodes. That is sufficient for a platform
    // whose NVLink ends at the node.
    if !(rules.ends_at_node)(None) {
        return;
    }
    let groups = reports.iter().filter(counted).flat_map(|report| &report.groups);
    for node in groups.filter(|group| group.kind == NodeGroupKind::Leaf).flat_map(|it| &it.nodes) {
        if !placed.domain_by_node.contains_key(node) {
            place_single_node(node, rules, names, placed);
        }
    }
}

fn place_single_node<'s>(
    node: &'s NodeName,
    rules: &ReconcileRules<'_>,
    names: &mut PlainNames,
    placed: &mut DomainPlacement<'s>,
) {
    placed.domain_by_node.insert(node, placed.domains.len());
    placed.origin.push(None);
    placed.domains.push(ClaimedDomain {
        name: DomainName::from(names.assign(node.as_str())),
        nodes: vec![node.clone()],
        platform: None,
        gpus_per_node: rules.gpus_per_node,
        nic: None,
    });
}

/// Reports about single nodes, by kind of source. Schedulers precede the nodes themselves: a node
/// that lost a GPU reports one less, but the expectation is the nominal number.
struct NodeReportsByKind<'s> {
    kinds: Vec<BTreeMap<&'s NodeName, &'s NodeReport>>,
}

impl<'s> NodeReportsByKind<'s> {
    fn new(reports: &'s [SourceReport]) -> Self {
        let mut kinds: BTreeMap<(bool, SourceKind), BTreeMap<&NodeName, &NodeReport>> =
            BTreeMap::new();
        for source in reports {
            let kind = source.source.kind;
            let nodes = kinds.entry((kind == SourceKind::NodeFacts, kind)).or_default();
            for (name, node) in &source.nodes {
                nodes.entry(name).or_insert(node);
            }
        }
        Self { kinds: kinds.into_values().collect() }
    }

    /// The common value of all reporting nodes, for each kind of source that has one.
    fn unanimous_values<T: PartialEq>(
        &self,
        nodes: &[NodeName],
        of: impl Fn(&NodeReport) -> Option<T>,
    ) -> impl Iterator<Item = T> {
        self.kinds.iter().filter_map(move |kind| {
            let mut values = nodes.iter().filter_map(|node| of(kind.get(node)?));
            let first = values.next()?;
            values.all(|next| next == first).then_some(first)
        })
    }

    /// The value of most of these nodes, from the first kind of source where more than half of
    /// the reporting nodes agree: one lost GPU does not change the platform of a rack.
    fn majority_value<T: Ord>(
        &self,
        nodes: &[NodeName],
        of: impl Fn(&NodeReport) -> Option<T>,
    ) -> Option<T> {
        self.kinds.iter().find_map(|kind| {
            let mut values: BTreeMap<T, usize> = BTreeMap::new();
            for value in nodes.iter().filter_map(|node| of(kind.get(node)?)) {
                *values.entry(value).or_default() += 1;
            }
            let all: usize = values.values().sum();
            values.into_iter().find(|(_, nodes)| all < 2 * nodes).map(|(value, _)| value)
        })
    }
}

/// Places the leaves layer by layer. If a source has leaves per rail (or a node under several
/// leaves without rails), a node has one leaf per rail: nodes with the same leaves on all rails
/// then form one leaf here, named after the leaf of their first rail.
pub(super) fn build_leaves<'s>(
    groupings: &[Grouping<'s>],
    placed: &DomainPlacement<'s>,
    rules: &ReconcileRules<'_>,
) -> Vec<ClaimedLeaf> {
    let mut leaves = Vec::new();
    let mut names = PlainNames::default();
    let mut taken: BTreeSet<&NodeName> = BTreeSet::new();
    for grouping in groupings {
        let counted = family_rank(&rules.order, grouping.source.family()).is_some();
        if grouping.kind != NodeGroupKind::Leaf || !counted {
            continue;
        }
        for (name, nodes) in disjoint_leaves(grouping) {
            let free = |node: &&NodeName| {
                placed.domain_by_node.contains_key(node) && !taken.contains(node)
            };
            let nodes: Vec<&NodeName> = nodes.into_iter().filter(free).collect();
            if !nodes.is_empty() {
                taken.extend(&nodes);
                let nodes = nodes.into_iter().cloned().collect();
                leaves.push(ClaimedLeaf { name: names.assign(name), nodes });
            }
        }
    }
    leaves
}

/// The leaves of a grouping, made disjoint: every node is in one.
pub(super) fn disjoint_leaves<'s>(grouping: &Grouping<'s>) -> Vec<(&'s str, Vec<&'s NodeName>)> {
    let has_rails =
        grouping.sets.iter().flat_map(|set| &set.groups).any(|(_, group)| group.rail.is_some());
    if !has_rails && grouping.nodes_in_two_sets.is_empty() {
        return grouping.sets.iter().map(|set| (set.name, set.nodes.clone())).collect();
    }
    let mut cables: BTreeMap<&NodeName, BTreeSet<(Option<&str>, &str)>> = BTreeMap::new();
    let mut order: Vec<&NodeName> = Vec::new();
    for group in grouping.sets.iter().flat_map(|set| &set.groups).map(|(_, group)| *group) {
        for node in &group.nodes {
            let own = cables.entry(node).or_insert_with(|| {
                order.push(node);
                BTreeSet::new()
            });
            own.insert((group_rail(group), &group.name));
        }
    }
    let mut units: Vec<(&str, Vec<&NodeName>)> = Vec::new();
    let mut known: BTreeMap<&BTreeSet<(Option<&str>, &str)>, usize> = BTreeMap::new();
    for node in order {
        let own = &cables[node];
        let Some((_, first)) = own.first() else { continue };
        let at = *known.entry(own).or_insert_with(|| {
            units.push((*first, Vec::new()));
            units.len() - 1
        });
        units[at].1.push(node);
    }
    units
}

fn group_rail(group: &NodeGroup) -> Option<&str> {
    group.rail.as_deref()
}

/// The rails of the source with the highest priority that has any.
pub(super) fn build_rails(
    reports: &[SourceReport],
    rules: &ReconcileRules<'_>,
) -> Vec<ClaimedRail> {
    let rank = |report: &&SourceReport| {
        let kind = report.source.kind;
        family_rank(&rules.order, kind.family()).map(|family| (family, kind_rank(kind)))
    };
    let with_rails = reports.iter().filter(|s| !s.rails.is_empty() && rank(s).is_some());
    with_rails.min_by_key(|s| rank(s)).map(|s| s.rails.clone()).unwrap_or_default()
}
