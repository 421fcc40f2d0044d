//! Detects copies between sources. A copy repeats a claim and does not confirm it.
//!
//! Only provable copies count: a name that contains a ClusterUUID, or the same names with the
//! same nodes in a place that is known to be filled from the other source. Two equal lists may be
//! independent.

use std::collections::{BTreeMap, BTreeSet};

use super::{identity, normal_form};
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::source_report::{ClaimBasis, NodeGroup, NodeGroupKind, SourceKind, SourceReport};

/// Marks groups that were copied from another source.
pub(super) fn mark_copies(reports: &mut [SourceReport]) {
    let files = [SourceKind::SlurmTopologyYaml, SourceKind::SlurmTopologyConf];
    let slurm = [SourceKind::SlurmTopology, files[0], files[1]];
    let of_files = index_domains(reports, &files);
    let of_slurm = index_domains(reports, &slurm);
    for source in reports {
        let kind = source.source.kind;
        let place = source.source.place.clone();
        for group in &mut source.groups {
            if group.basis != ClaimBasis::Asserted || group.kind != NodeGroupKind::Domain {
                continue;
            }
            let key = (group.name.clone(), member_set(group));
            let from =
                if !normal_form::is_clique(group) && identity::find_uuid(&group.name).is_some() {
                    Some("the driver: its name contains a ClusterUUID".to_owned())
                } else if kind == SourceKind::SlurmTopology {
                    // The controller read its file.
                    of_files.get(&key).map(|file| format!("Slurm topology file ({file})"))
                } else if group.scheme.to_lowercase().contains("slinky") {
                    let slurm = of_slurm.get(&key).filter(|from| **from != place);
                    slurm.map(|from| format!("Slurm ({from})"))
                } else {
                    None
                };
            if let Some(from) = from {
                group.basis = ClaimBasis::Copied { from };
            }
        }
    }
}

fn member_set(group: &NodeGroup) -> BTreeSet<NodeName> {
    group.nodes.iter().cloned().collect()
}

/// Domains of these kinds of sources by name and nodes, with their location.
fn index_domains(
    reports: &[SourceReport],
    kinds: &[SourceKind],
) -> BTreeMap<(String, BTreeSet<NodeName>), String> {
    let sources = reports.iter().filter(|report| kinds.contains(&report.source.kind));
    sources
        .flat_map(|report| {
            let groups =
                report.groups.iter().filter(|g| g.kind == NodeGroupKind::Domain && g.in_force);
            groups.map(|g| ((g.name.clone(), member_set(g)), report.source.place.clone()))
        })
        .collect()
}

/// The sources that confirm a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corroboration {
    /// Sources with independent knowledge, by their index in [`Claims::sources`].
    pub independent: Vec<usize>,
    /// Sources that copied it from another.
    pub copied: Vec<usize>,
}

/// For every measured domain, the sources with all of its nodes in one group. Drivers of single
/// nodes count as one source if they agree.
pub fn find_corroboration(claims: &Claims) -> BTreeMap<DomainName, Corroboration> {
    let mut groups: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
    for (at, assertion) in claims.assertions.iter().enumerate() {
        let group = &assertion.group;
        if group.kind == NodeGroupKind::Domain && group.in_force {
            group.nodes.iter().for_each(|node| groups.entry(node).or_default().push(at));
        }
    }
    let mut all = BTreeMap::new();
    for domain in &claims.domains {
        // Groups with the same kind of source and name are one: each node's facts may be a
        // separate source.
        let mut covered: BTreeMap<(SourceKind, &str), (BTreeSet<&NodeName>, usize)> =
            BTreeMap::new();
        for node in &domain.nodes {
            for at in groups.get(node).into_iter().flatten() {
                let assertion = &claims.assertions[*at];
                let kind = claims.sources[assertion.source].source.kind;
                let key = (kind, assertion.group.name.as_str());
                covered.entry(key).or_insert((BTreeSet::new(), *at)).0.insert(node);
            }
        }
        let mut corroboration = Corroboration::default();
        for (nodes, at) in covered.into_values() {
            let assertion = &claims.assertions[at];
            if nodes.len() < domain.nodes.len() {
                continue;
            }
            let list = match assertion.group.basis {
                ClaimBasis::Copied { .. } => &mut corroboration.copied,
                _ => &mut corroboration.independent,
            };
            if !list.contains(&assertion.source) {
                list.push(assertion.source);
            }
        }
        corroboration.independent.sort_unstable();
        corroboration.copied.sort_unstable();
        all.insert(domain.name.clone(), corroboration);
    }
    all
}
