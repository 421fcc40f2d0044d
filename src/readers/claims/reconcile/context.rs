//! What checks look at: every source, its groupings, and what is measured.

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

/// Smallest number of GPUs behind `nvl` in the name of a platform whose NVLink
/// domain is larger than a node: NVL36 is the smallest such rack, NVL8 and the
/// bridges of H100 NVL are inside nodes.
const MIN_RACK_GPUS: u32 = 36;

/// The largest NVLink domain in use: 18 nodes of 4 GPUs (GB200 and GB300 NVL72).
pub(super) const MAX_DOMAIN_NODES: usize = 18;

/// What one source says of the fabric of a node.
pub(super) type SourcedFabricReport<'s> = (usize, &'s FabricReport);

/// Everything there is to look at.
pub(super) struct ReconcileContext<'s> {
    pub(super) reports: &'s [SourceReport],
    pub(super) groupings: &'s [Grouping<'s>],
    pub(super) placement: &'s DomainPlacement<'s>,
    pub(super) rules: &'s ReconcileRules<'s>,
    /// Cliques that labels and files give nodes.
    pub(super) labels: BTreeMap<&'s NodeName, Vec<SourcedFabricReport<'s>>>,
    /// What drivers report, GPU by GPU.
    pub(super) drivers: BTreeMap<&'s NodeName, Vec<SourcedFabricReport<'s>>>,
    /// By domain, whether GPUs of different nodes share NVLink there: asked for every node.
    spans: Vec<Option<bool>>,
}

impl<'s> ReconcileContext<'s> {
    /// Looks at these.
    pub(super) fn new(
        said: &'s [SourceReport],
        groupings: &'s [Grouping<'s>],
        placed: &'s DomainPlacement<'s>,
        rules: &'s ReconcileRules<'s>,
    ) -> Self {
        let mut labels: BTreeMap<&NodeName, Vec<SourcedFabricReport<'_>>> = BTreeMap::new();
        let mut drivers: BTreeMap<&NodeName, Vec<SourcedFabricReport<'_>>> = BTreeMap::new();
        for (at, source) in said.iter().enumerate() {
            for (node, fabric) in
                source.nodes.iter().flat_map(|(n, s)| s.fabric.iter().map(move |f| (n, f)))
            {
                let reported =
                    matches!(fabric.basis, Some(ClaimBasis::Reported | ClaimBasis::Measured));
                // Who knows a ClusterUUID only names no clique, unless it says there is none.
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
            Self { reports: said, groupings, placement: placed, rules, labels, drivers, spans };
        view.spans = (0..placed.domains.len()).map(|at| view.compute_spans_nodes(at)).collect();
        view
    }

    /// The name of a domain.
    pub(super) fn domain_name(&self, at: usize) -> &'s DomainName {
        &self.placement.domains[at].name
    }

    /// The name of the domain of a node.
    pub(super) fn domain_of(&self, node: &NodeName) -> Option<&'s DomainName> {
        self.placement.domain_of(node).map(|at| self.domain_name(at))
    }

    /// Where a domain is what is left over of a group: the domain that has the
    /// most of that group's other nodes, and how many.
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

    /// The ClusterUUIDs of the cliques that labels and drivers give a node.
    pub(super) fn cluster_uuids(&self, node: &NodeName) -> impl Iterator<Item = Option<String>> {
        let words = self.labels.get(node).into_iter().chain(self.drivers.get(node)).flatten();
        words.map(|(_, fabric)| {
            let clique = super::identity::usable_clique(fabric)?;
            super::identity::parse_clique(&clique).map(|(uuid, _)| uuid.to_owned())
        })
    }

    /// Whether labels and drivers have all of these nodes in one clique that one
    /// rack can be: then they are in reach of each other, whatever blocks a site
    /// made of them.
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

    /// Who claims a domain says this.
    pub(super) fn claim_side(
        &self,
        domain: usize,
        says: impl Into<String>,
    ) -> Option<DisagreementSide> {
        let (grouping, set) = self.placement.origin[domain]?;
        Some(self.groupings[grouping].to_side(self.reports, set, says))
    }

    /// A source says this, here.
    pub(super) fn source_side(
        &self,
        source: usize,
        at: Option<&str>,
        basis: ClaimBasis,
        says: impl Into<String>,
    ) -> DisagreementSide {
        build_side(self.reports, source, at.map(str::to_owned), basis, says)
    }

    /// A word about a fabric, as a side.
    pub(super) fn fabric_side(
        &self,
        (source, fabric): SourcedFabricReport<'_>,
        says: impl Into<String>,
    ) -> DisagreementSide {
        let basis = fabric.basis.clone().unwrap_or(ClaimBasis::Asserted);
        self.source_side(source, fabric.at.as_deref(), basis, says)
    }

    /// Whether GPUs of different nodes share NVLink in this domain, as its
    /// platform or its size and cliques tell; `None` where nothing does.
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
        let said: &'s [SourceReport] = self.reports;
        let kinds = kinds.to_vec();
        said.iter().enumerate().filter(move |(_, s)| kinds.contains(&s.source.kind))
    }

    /// Everything said of single nodes.
    pub(super) fn node_reports(
        &self,
    ) -> impl Iterator<Item = (usize, &'s NodeName, &'s NodeReport)> {
        let said: &'s [SourceReport] = self.reports;
        said.iter().enumerate().flat_map(|(at, s)| s.nodes.iter().map(move |(n, w)| (at, n, w)))
    }
}

/// Whether a platform of this name is a rack whose nodes share NVLink.
pub(super) fn is_rack(platform: &str) -> bool {
    let gpus = platform.rsplit_once("nvl").map(|(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().unwrap_or(0)
    });
    gpus.is_some_and(|gpus| MIN_RACK_GPUS <= gpus)
}

/// Whether a source could be read to its end, so that what it does not name is
/// not there.
pub(super) fn is_complete(said: &SourceReport) -> bool {
    let cut = [
        SourceProblemKind::Missing,
        SourceProblemKind::Unreachable,
        SourceProblemKind::Denied,
        SourceProblemKind::Malformed,
        SourceProblemKind::Incomplete,
    ];
    // A label with nonsense in it costs that label, never its node.
    let by_label = |kind| {
        said.source.kind == SourceKind::KubernetesNodes && kind == SourceProblemKind::Malformed
    };
    said.problems.iter().all(|p| !cut.contains(&p.kind) || by_label(p.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_are_told_from_servers_by_the_name_of_the_platform() {
        for rack in ["gb200-nvl72", "gb300-nvl72", "gb200-nvl36x2"] {
            assert!(is_rack(rack), "{rack}");
        }
        for server in ["hgx-h100", "h100-nvl", "hgx-b200", "gb200-nvl4", "gh200"] {
            assert!(!is_rack(server), "{server}");
        }
    }
}
