//! IMEX domains (ComputeDomains), compared with their NVLink domains.

use std::collections::{BTreeMap, BTreeSet};

use super::context::ReconcileContext;
use super::messages::{count_of, list_nodes, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroupKind, NodeReport, SourceKind};

/// `imex-beyond-domain`: one IMEX domain over several NVLink domains.
pub(super) fn check_domain_span(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings.iter().filter(|g| g.kind == NodeGroupKind::Imex) {
        for (at, set) in grouping.sets.iter().enumerate() {
            let mut domains: BTreeMap<usize, Vec<&NodeName>> = BTreeMap::new();
            for node in &set.nodes {
                if let Some(domain) = view.placement.domain_of(node) {
                    domains.entry(domain).or_default().push(node);
                }
            }
            if domains.len() < 2 {
                continue;
            }
            let main = domains.iter().max_by_key(|(_, nodes)| nodes.len()).map(|(at, _)| *at);
            let minority = domains.iter().filter(|(at, _)| Some(**at) != main);
            let nodes: Vec<&NodeName> =
                minority.flat_map(|(_, nodes)| nodes.iter().copied()).collect();
            let names = list_some(domains.keys().map(|at| view.domain_name(*at).as_str()));
            let summary = format!(
                "{} {} spans {} NVLink domains ({names}): its nodes can import each other's \
                 memory only within one of them",
                grouping.noun(),
                set.name,
                domains.len()
            );
            let statement =
                format!("{} in one {}", count_of(set.nodes.len(), "node"), grouping.noun());
            let mut disagreement = new_disagreement(
                DisagreementClass::ImexBeyondDomain,
                DisagreementSeverity::Contradiction,
                summary,
            )
            .with_nodes(nodes)
            .with_side(grouping.to_side(view.reports, at, statement))
            .with_remedy("place such a job in a single domain, by the clique label or the block");
            for (domain, nodes) in domains.iter().take(4) {
                let statement = format!(
                    "{} in {}",
                    list_nodes(nodes.iter().copied()),
                    view.domain_name(*domain)
                );
                disagreement = view
                    .claim_side(*domain, statement)
                    .into_iter()
                    .fold(disagreement, Disagreement::with_side);
            }
            found.push(match main {
                Some(main) => disagreement.in_domain(view.domain_name(main)),
                None => disagreement,
            });
        }
    }
}

/// `imex-size`: a ComputeDomain requests more nodes than it has.
pub(super) fn check_compute_domain_sizes(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    for grouping in view.groupings.iter().filter(|g| g.kind == NodeGroupKind::Imex) {
        for (at, set) in grouping.sets.iter().enumerate() {
            let Some(size) = set.groups.iter().find_map(|(_, group)| group.size) else { continue };
            let named = set.named_nodes();
            let counted = named.len();
            // 0 is the default of the field and requests nothing.
            if size == 0 || counted == size as usize {
                continue;
            }
            let noun = grouping.noun();
            let summary = format!("{noun} {} requests {size} nodes and lists {counted}", set.name);
            let statement = format!("{size} nodes requested, {counted} listed");
            let disagreement =
                new_disagreement(DisagreementClass::ImexSize, DisagreementSeverity::Doubt, summary)
                    .with_nodes(named)
                    .with_side(grouping.to_side(view.reports, at, statement))
                    .with_remedy(
                        "check for nodes whose IMEX daemon did not join; the field is \
                    deprecated and may be outdated",
                    );
            let domain = set.nodes.first().and_then(|node| view.domain_of(node));
            found.push(domain.into_iter().fold(disagreement, Disagreement::in_domain));
        }
    }
}

/// Whether a ComputeDomain reports the node as ready.
fn is_ready(node: &NodeReport) -> bool {
    let last = |word: &String| {
        word.rsplit([' ', ':', '=']).next().is_some_and(|word| word.eq_ignore_ascii_case("ready"))
    };
    // The mark has the form `Ready, <clique or none>`.
    let mut marks = node.marks.iter().filter(|(mark, _)| mark.starts_with("ComputeDomain"));
    node.state.iter().any(last) || marks.any(|(_, value)| value.split(',').next() == Some("Ready"))
}

/// `ready-without-clique`: a ComputeDomain is ready on a node without a clique: it fell back to
/// no fabric, but its pods start anyway.
pub(super) fn check_ready_without_clique(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    for (source, report) in view.sources(&[SourceKind::ComputeDomains]) {
        for group in report.groups.iter().filter(|group| group.kind == NodeGroupKind::Imex) {
            let empty = |node: &&NodeName| {
                report.nodes.get(*node).is_some_and(|node| {
                    let named =
                        |id: &Option<String>| id.as_deref().is_some_and(|id| !id.is_empty());
                    is_ready(node) && !node.fabric.iter().any(|f| named(&f.clique_id))
                })
            };
            let nodes: BTreeSet<&NodeName> = group.nodes.iter().filter(empty).collect();
            let Some(first) = nodes.first() else { continue };
            let names = list_nodes(nodes.iter().copied());
            let summary = format!(
                "{} {} is ready on {names} without a clique: it fell back to no fabric, but its \
                 pods start anyway",
                group.scheme, group.name
            );
            let at = group.at.as_deref();
            let statement = format!("{names} ready, cliqueID empty");
            let mut disagreement = new_disagreement(
                DisagreementClass::ReadyWithoutClique,
                DisagreementSeverity::Contradiction,
                summary,
            )
            .with_nodes(nodes.iter().copied())
            .with_side(view.source_side(source, at, group.basis.clone(), statement))
            .with_remedy(
                "check the fabric state of these nodes; ready only means that the daemon runs",
            );
            let label = view.labels.get(first).or_else(|| view.drivers.get(first));
            if let Some(word) = label.and_then(|words| words.first()) {
                let clique = word.1.clique().unwrap_or_else(|| "no fabric".to_owned());
                disagreement =
                    disagreement.with_side(view.fabric_side(*word, format!("{first} in {clique}")));
            }
            if let Some(domain) = view.placement.domain_of(first) {
                disagreement = disagreement.in_domain(view.domain_name(domain));
                let statement = format!("{names} in {}", view.domain_name(domain));
                disagreement = view
                    .claim_side(domain, statement)
                    .into_iter()
                    .fold(disagreement, Disagreement::with_side);
            }
            found.push(disagreement);
        }
    }
}

/// `imex-against-clique`: the clique in a ComputeDomain's status differs from the node's label.
pub(super) fn check_status_against_label(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    use super::identity::usable_clique;
    type CliqueNamePair = (String, String);
    let mut differ: BTreeMap<(usize, CliqueNamePair), Vec<&NodeName>> = BTreeMap::new();
    for (source, report) in view.sources(&[SourceKind::ComputeDomains]) {
        for (node, words) in &report.nodes {
            let Some(own) = words.fabric.iter().find_map(usable_clique) else { continue };
            let elsewhere = view.labels.get(node).into_iter().flatten();
            let mut others =
                elsewhere.filter(|(at, _)| *at != source).filter_map(|(_, f)| usable_clique(f));
            if let Some(other) = others.next().filter(|other| *other != own) {
                differ.entry((source, (own, other))).or_default().push(node);
            }
        }
    }
    for ((source, (own, other)), nodes) in differ {
        let names = list_nodes(nodes.iter().copied());
        let summary = format!(
            "{names}: clique {own} in the ComputeDomain's status, {other} in the node's label"
        );
        let mut disagreement = new_disagreement(
            DisagreementClass::ImexAgainstClique,
            DisagreementSeverity::Contradiction,
            summary,
        )
        .with_nodes(nodes.iter().copied())
        .with_side(view.source_side(
            source,
            None,
            ClaimBasis::Asserted,
            format!("{names} in {own}"),
        ))
        .with_remedy(
            "both values are read once and cached: restart the plugin and the \
                daemon after a change of partitions",
        );
        if let Some(word) = view.labels.get(nodes[0]).and_then(|w| w.iter().find(|w| w.0 != source))
        {
            disagreement =
                disagreement.with_side(view.fabric_side(*word, format!("{names} in {other}")));
        }
        let domain = view.domain_of(nodes[0]);
        found.push(domain.into_iter().fold(disagreement, Disagreement::in_domain));
    }
}
