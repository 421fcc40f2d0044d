//! The input of the checks: every source, its groupings, and the domains to measure.

use std::collections::{BTreeMap, BTreeSet};

use super::ReconcileRules;
use super::domains::DomainPlacement;
use super::groupings::{Grouping, build_side};
use crate::claims::reader_util::is_zero_uuid;
use model::disagreement::DisagreementSide;
use model::id::{DomainName, NodeName};
use model::source_report::{
    ClaimBasis, FabricReport, NodeReport, SourceKind, SourceProblemKind, SourceReport,
};

/// Smallest number after `nvl` in the name of a platform whose NVLink domain is larger than a
/// node: NVL36 is the smallest such rack, NVL8 and the bridges of H100 NVL are within a node.
const MIN_RACK_GPUS: u32 = 36;

/// The largest NVLink domain in use: 18 nodes of 4 GPUs (GB200 and GB300 NVL72).
pub(super) const MAX_DOMAIN_NODES: usize = 18;

/// One source's report about the fabric of a node.
pub(super) type SourcedFabricReport<'s> = (usize, &'s FabricReport);

/// The common input of all checks.
pub(super) struct ReconcileContext<'s> {
    pub(super) reports: &'s [SourceReport],
    pub(super) groupings: &'s [Grouping<'s>],
    pub(super) placement: &'s DomainPlacement<'s>,
    pub(super) rules: &'s ReconcileRules<'s>,
    /// Cliques of nodes according to labels and files.
    pub(super) labels: BTreeMap<&'s NodeName, Vec<SourcedFabricReport<'s>>>,
    /// Cliques according to drivers, GPU by GPU.
    pub(super) drivers: BTreeMap<&'s NodeName, Vec<SourcedFabricReport<'s>>>,
    /// By domain, whether GPUs of different nodes share NVLink there; cached because checks need
    /// it for every node.
    spans: Vec<Option<bool>>,
}

impl<'s> ReconcileContext<'s> {
    /// Collects the input from the sources.
    pub(super) fn new(
        reports: &'s [SourceReport],
        groupings: &'s [Grouping<'s>],
        placed: &'s DomainPlacement<'s>,
        rules: &'s ReconcileRules<'s>,
    ) -> Self {
        let mut labels: BTreeMap<&NodeName, Vec<SourcedFabricReport<'_>>> = BTreeMap::new();
        let mut drivers: BTreeMap<&NodeName, Vec<SourcedFabricReport<'_>>> = BTreeMap::new();
        for (at, source) in reports.iter().enumerate() {
            for (node, fabric) in
                source.nodes.iter().flat_map(|(n, s)| s.fabric.iter().map(move |f| (n, f)))
            {
                let reported =
                    matches!(fabric.basis, Some(ClaimBasis::Reported | ClaimBasis::Measured));
                // A ClusterUUID without CliqueId does not identify a clique, unless it stands for
                // no fabric.
                let names = fabric.clique_id.as_deref().is_some_and(|id| !id.is_empty());
                let denies = fabric.state.is_some()
                    || fabric.cluster_uuid.as_deref().is_some_and(is_zero_uuid);
                if reported && (names || denies) {
                    drivers.entry(node).or_default().push((at, fabric));
                } else if !reported && names {
                    labels.entry(node).or_default().push((at, fabric));
                }
            }
        }
        let spans = Vec::new();
        let mut view =
            Self { reports, groupings, placement: placed, rules, labels, drivers, spans };
        view.spans = (0..placed.domains.len()).map(|at| view.compute_spans_nodes(at)).collect();
        view
    }

    pub(super) fn domain_name(&self, at: usize) -> &'s DomainName {
        &self.placement.domains[at].name
    }

    /// The name of the domain of a node.
    pub(super) fn domain_of(&self, node: &NodeName) -> Option<&'s DomainName> {
        self.placement.domain_of(node).map(|at| self.domain_name(at))
    }

    /// For a domain that is the remainder of a group: the domain with most of that group's other
    /// nodes, and their number.
    pub(super) fn home_domain(&self, domain: usize) -> Option<(usize, usize)> {
        let (grouping, set) = self.placement.origin[domain]?;
        let mut homes: BTreeMap<usize, usize> = BTreeMap::new();
        let nodes = &self.groupings[grouping].sets[set].nodes;
        for home in nodes.iter().filter_map(|node| self.placement.domain_of(node)) {
            *homes.entry(home).or_default() += 1;
        }
        homes.remove(&domain);
        homes.into_iter().max_by_key(|(_, others)| *others)
    }

    /// The ClusterUUIDs in a node's cliques, from labels and drivers.
    pub(super) fn cluster_uuids(&self, node: &NodeName) -> impl Iterator<Item = Option<String>> {
        let words = self.labels.get(node).into_iter().chain(self.drivers.get(node)).flatten();
        words.map(|(_, fabric)| {
            let clique = super::identity::usable_clique(fabric)?;
            super::identity::parse_clique(&clique).map(|(uuid, _)| uuid.to_owned())
        })
    }

    /// Whether labels and drivers place all of these nodes in one clique that can be a single
    /// rack: then they reach each other, regardless of the site's blocks.
    pub(super) fn share_a_clique<'n>(&self, nodes: impl IntoIterator<Item = &'n NodeName>) -> bool {
        let mut cliques: BTreeSet<String> = BTreeSet::new();
        let mut all = 0;
        for node in nodes {
            all += 1;
            let words = self.labels.get(node).into_iter().chain(self.drivers.get(node)).flatten();
            let own: Vec<String> =
                words.filter_map(|(_, fabric)| super::identity::usable_clique(fabric)).collect();
            if own.is_empty() {
                return false;
            }
            cliques.extend(own);
        }
        let is_default = |name: &String| {
            super::identity::parse_clique(name)
                .is_none_or(|(_, id)| id == super::identity::DEFAULT_CLIQUE)
        };
        all <= MAX_DOMAIN_NODES && cliques.len() == 1 && !cliques.iter().any(is_default)
    }

    /// The side of the source that claims a domain.
    pub(super) fn claim_side(
        &self,
        domain: usize,
        statement: impl Into<String>,
    ) -> Option<DisagreementSide> {
        let (grouping, set) = self.placement.origin[domain]?;
        Some(self.groupings[grouping].to_side(self.reports, set, statement))
    }

    /// The side of a source, with a location.
    pub(super) fn source_side(
        &self,
        source: usize,
        at: Option<&str>,
        basis: ClaimBasis,
        statement: impl Into<String>,
    ) -> DisagreementSide {
        build_side(self.reports, source, at.map(str::to_owned), basis, statement)
    }

    /// A report about a fabric, as a side.
    pub(super) fn fabric_side(
        &self,
        (source, fabric): SourcedFabricReport<'_>,
        statement: impl Into<String>,
    ) -> DisagreementSide {
        let basis = fabric.basis.clone().unwrap_or(ClaimBasis::Asserted);
        self.source_side(source, fabric.at.as_deref(), basis, statement)
    }

    /// Whether GPUs of different nodes share NVLink in this domain, by its platform or its size
    /// and cliques; `None` if unknown.
    pub(super) fn spans_nodes(&self, domain: usize) -> Option<bool> {
        self.spans[domain]
    }

    fn compute_spans_nodes(&self, domain: usize) -> Option<bool> {
        let domain = &self.placement.domains[domain];
        if let Some(platform) = &domain.platform {
            return Some(is_rack(platform));
        }
        let attached = |node: &NodeName| {
            let words = self.labels.get(node).into_iter().chain(self.drivers.get(node)).flatten();
            words.into_iter().any(|(_, fabric)| super::identity::usable_clique(fabric).is_some())
        };
        (1 < domain.nodes.len() && domain.nodes.iter().any(attached)).then_some(true)
    }

    /// The sources of these kinds with their indexes.
    pub(super) fn sources(
        &self,
        kinds: &[SourceKind],
    ) -> impl Iterator<Item = (usize, &'s SourceReport)> {
        let reports: &'s [SourceReport] = self.reports;
        let kinds = kinds.to_vec();
        reports.iter().enumerate().filter(move |(_, s)| kinds.contains(&s.source.kind))
    }

    /// Every report about a single node.
    pub(super) fn node_reports(
        &self,
    ) -> impl Iterator<Item = (usize, &'s NodeName, &'s NodeReport)> {
        let reports: &'s [SourceReport] = self.reports;
        reports.iter().enumerate().flat_map(|(at, s)| s.nodes.iter().map(move |(n, w)| (at, n, w)))
    }
}

/// Whether this platform name is a rack whose nodes share NVLink.
pub(super) fn is_rack(platform: &str) -> bool {
    let gpus = platform.rsplit_once("nvl").map(|(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().unwrap_or(0)
    });
    gpus.is_some_and(|gpus| MIN_RACK_GPUS <= gpus)
}

/// Whether a source was read completely, so that a missing node does not exist in it.
pub(super) fn is_complete(report: &SourceReport) -> bool {
    let cut = [
        SourceProblemKind::Missing,
        SourceProblemKind::Unreachable,
        SourceProblemKind::Denied,
        SourceProblemKind::Malformed,
        SourceProblemKind::Incomplete,
    ];
    // An invalid label is dropped alone, its node is kept.
    let by_label = |kind| {
        report.source.kind == SourceKind::KubernetesNodes && kind == SourceProblemKind::Malformed
    };
    report.problems.iter().all(|p| !cut.contains(&p.kind) || by_label(p.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_name_distinguishes_racks_from_servers() {
        for rack in ["gb200-nvl72", "gb300-nvl72", "gb200-nvl36x2"] {
            assert!(is_rack(rack), "{rack}");
        }
        for server in ["hgx-h100", "h100-nvl", "hgx-b200", "gb200-nvl4", "gh200"] {
            assert!(!is_rack(server), "{server}");
        }
    }
}
