//! Cliques: labels of a node, compared with the state of its GPUs.
//!
//! A label is written once and stays for weeks; the driver reports the present state. GPU feature
//! discovery omits the label where the GPUs of a node disagree or are not attached, so a missing
//! label among labelled nodes is significant, too.

use std::collections::{BTreeMap, BTreeSet};

use super::context::{ReconcileContext, SourcedFabricReport};
use super::identity;
use super::identity::usable_clique;
use super::messages::{count_of, is_or_are, list_nodes, list_some, new_disagreement};
use crate::claims::reader_util::is_zero_uuid;
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::SourceKind;

/// Nodes with the same cause, and the reports of the first.
struct CliqueMismatch<'s> {
    nodes: Vec<&'s NodeName>,
    label: Option<SourcedFabricReport<'s>>,
    driver: Option<SourcedFabricReport<'s>>,
}

/// Causes by domain and the two values.
type CliqueMismatches<'s> = BTreeMap<(Option<usize>, String, String), CliqueMismatch<'s>>;

fn add_mismatch<'s>(
    causes: &mut CliqueMismatches<'s>,
    key: (Option<usize>, String, String),
    node: &'s NodeName,
    label: Option<SourcedFabricReport<'s>>,
    driver: Option<SourcedFabricReport<'s>>,
) {
    causes
        .entry(key)
        .or_insert(CliqueMismatch { nodes: Vec::new(), label, driver })
        .nodes
        .push(node);
}

fn describe_mismatch(
    view: &ReconcileContext<'_>,
    class: DisagreementClass,
    severity: DisagreementSeverity,
    domain: Option<usize>,
    cause: &CliqueMismatch<'_>,
    (label, driver, summary): (String, String, String),
) -> Disagreement {
    let mut disagreement =
        new_disagreement(class, severity, summary).with_nodes(cause.nodes.iter().copied());
    if let Some(domain) = domain {
        disagreement = disagreement.in_domain(view.domain_name(domain));
    }
    if let Some(word) = cause.label {
        disagreement = disagreement.with_side(view.fabric_side(word, label));
    }
    if let Some(word) = cause.driver {
        disagreement = disagreement.with_side(view.fabric_side(word, driver));
    }
    disagreement
}

/// The cliques of a node's GPUs, and the number of GPUs without one.
fn distinct_cliques(words: &[SourcedFabricReport<'_>]) -> (BTreeSet<String>, usize) {
    let cliques = words.iter().filter_map(|(_, fabric)| usable_clique(fabric)).collect();
    (cliques, words.iter().filter(|(_, fabric)| usable_clique(fabric).is_none()).count())
}

/// The first report with this clique, or else any other.
fn find_clique_report<'s>(
    words: &[SourcedFabricReport<'s>],
    clique: Option<&str>,
) -> Option<SourcedFabricReport<'s>> {
    words.iter().copied().find(|(_, fabric)| usable_clique(fabric).as_deref() == clique)
}

/// Nodes whose label differs from the clique of all their GPUs: groups derived from the label are
/// not a second cause.
pub(super) fn stale_label_nodes<'s>(view: &ReconcileContext<'s>) -> BTreeSet<&'s NodeName> {
    let mut stale = BTreeSet::new();
    for (node, labels) in &view.labels {
        let Some((cliques, _)) = view.drivers.get(node).map(|words| distinct_cliques(words)) else {
            continue;
        };
        let labelled = labels.iter().filter_map(|(_, fabric)| usable_clique(fabric));
        if !cliques.is_empty() && labelled.into_iter().any(|label| !cliques.contains(&label)) {
            stale.insert(*node);
        }
    }
    stale
}

/// `stale-label` and `label-without-all-gpus`: the label against the driver.
pub(super) fn check_labels_against_drivers(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    let mut stale = CliqueMismatches::new();
    let mut partly = CliqueMismatches::new();
    for (node, labels) in &view.labels {
        let Some(words) = view.drivers.get(node) else { continue };
        let (cliques, without) = distinct_cliques(words);
        for label in labels {
            let Some(labelled) = usable_clique(label.1) else { continue };
            let domain = view.placement.domain_of(node);
            let others: Vec<&String> = cliques.iter().filter(|c| **c != labelled).collect();
            if without == 0 && cliques.len() == 1 {
                if let [other] = others[..] {
                    let key = (domain, labelled, other.clone());
                    add_mismatch(
                        &mut stale,
                        key,
                        node,
                        Some(*label),
                        find_clique_report(words, Some(other)),
                    );
                }
            } else {
                let all = words.len();
                let detail = match (without, others.is_empty()) {
                    (0, _) => format!("GPUs in several cliques, also {}", list_some(&others)),
                    (_, true) => format!("{without} of {all} GPUs not attached to a fabric"),
                    (_, false) => {
                        format!(
                            "{without} of {all} GPUs without a clique, others in {}",
                            list_some(&others)
                        )
                    }
                };
                let witness = if 0 < without { None } else { others.first().map(|c| c.as_str()) };
                let key = (domain, labelled, detail);
                add_mismatch(
                    &mut partly,
                    key,
                    node,
                    Some(*label),
                    find_clique_report(words, witness),
                );
            }
        }
    }
    for ((domain, labelled, other), cause) in &stale {
        let (names, number) = (list_nodes(cause.nodes.iter().copied()), cause.nodes.len());
        let summary = format!(
            "{names} {} labelled clique {labelled}, but the driver reports {other}: the label is \
            stale",
            is_or_are(number)
        );
        let words = (format!("clique {labelled}"), format!("clique {other}"), summary);
        let disagreement = describe_mismatch(
            view,
            DisagreementClass::StaleLabel,
            DisagreementSeverity::Contradiction,
            *domain,
            cause,
            words,
        );
        found.push(disagreement.with_remedy(
            "let GPU feature discovery or the DRA driver rewrite the label, and check for a \
             changed partition or a moved tray",
        ));
    }
    for ((domain, labelled, detail), cause) in &partly {
        let names = list_nodes(cause.nodes.iter().copied());
        let summary =
            format!("{names} has the label of clique {labelled}, but its driver reports {detail}");
        let words = (format!("clique {labelled} for the whole node"), detail.clone(), summary);
        let class = DisagreementClass::LabelWithoutAllGpus;
        let disagreement = describe_mismatch(
            view,
            class,
            DisagreementSeverity::Contradiction,
            *domain,
            cause,
            words,
        );
        found.push(disagreement.with_remedy(
            "check the fabric state of every GPU there, and the fabric manager; jobs must not \
             select the node by its label until all GPUs are attached",
        ));
    }
}

/// `gpus-in-two-cliques`: the driver of one node reports several cliques.
pub(super) fn check_mixed_gpus(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (node, words) in &view.drivers {
        let (cliques, _) = distinct_cliques(words);
        if cliques.len() < 2 {
            continue;
        }
        let summary =
            format!("the GPUs of {node} are in {} cliques: {}", cliques.len(), list_some(&cliques));
        let mut disagreement = new_disagreement(
            DisagreementClass::GpusInTwoCliques,
            DisagreementSeverity::Contradiction,
            summary,
        )
        .with_nodes([*node]);
        for clique in &cliques {
            let gpus: Vec<String> = words
                .iter()
                .filter(|(_, fabric)| usable_clique(fabric).as_ref() == Some(clique))
                .filter_map(|(_, fabric)| fabric.gpu.map(|gpu| gpu.to_string()))
                .collect();
            if let Some(word) = find_clique_report(words, Some(clique)) {
                disagreement = disagreement.with_side(
                    view.fabric_side(word, format!("GPU {} in {clique}", gpus.join(", "))),
                );
            }
        }
        if let Some(domain) = view.domain_of(node) {
            disagreement = disagreement.in_domain(domain);
        }
        let remedy = "check the partitions of the fabric manager: all GPUs of a node must be in the same \
            one";
        found.push(disagreement.with_remedy(remedy));
    }
}

/// `sentinel-clique`: an identity that stands for no fabric, or that every rack may have.
pub(super) fn check_sentinel_cliques(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let mut zero = CliqueMismatches::new();
    // By kind of source: three reports about the same nodes are one remark.
    let mut default: BTreeMap<SourceKind, (BTreeSet<&NodeName>, SourcedFabricReport<'_>)> =
        BTreeMap::new();
    let words = view.labels.iter().map(|word| (true, word));
    for (is_label, (node, words)) in words.chain(view.drivers.iter().map(|word| (false, word))) {
        let domain = view.placement.domain_of(node);
        // Within a server a zero UUID is normal: it has no multi-node fabric.
        let in_rack = domain.is_some_and(|at| view.spans_nodes(at) == Some(true));
        for word in words {
            let uuid = word.1.cluster_uuid.as_deref().unwrap_or("");
            let kind = view.reports[word.0].source.kind;
            let name = kind.label().to_owned();
            let has_default = word.1.clique_id.as_deref() == Some(identity::DEFAULT_CLIQUE);
            if is_zero_uuid(uuid) && (is_label || (in_rack && identity::is_attached(word.1))) {
                add_mismatch(&mut zero, (domain, name, String::new()), node, Some(*word), None);
                break;
            }
            if has_default && !uuid.is_empty() {
                default.entry(kind).or_insert((BTreeSet::new(), *word)).0.insert(node);
            }
        }
    }
    for ((domain, name, _), cause) in &zero {
        let nodes = list_nodes(cause.nodes.iter().copied());
        let summary = format!(
            "{name}: {nodes} {} in the clique of an all-zero ClusterUUID, which is not a fabric: \
             it was not configured when the value was read",
            is_or_are(cause.nodes.len())
        );
        let words = ("an all-zero ClusterUUID".to_owned(), String::new(), summary);
        let disagreement = describe_mismatch(
            view,
            DisagreementClass::SentinelClique,
            DisagreementSeverity::Contradiction,
            *domain,
            cause,
            words,
        );
        found
            .push(disagreement.with_remedy(
                "do not group by this value; check the fabric manager of these nodes",
            ));
    }
    let nodes: BTreeSet<&NodeName> =
        default.values().flat_map(|(nodes, _)| nodes.iter().copied()).collect();
    if nodes.is_empty() {
        return;
    }
    let summary = format!(
        "{} {} CliqueId {}, the default: grouping by CliqueId alone merges separate racks into \
         one domain",
        list_nodes(nodes.iter().copied()),
        if nodes.len() == 1 { "has" } else { "have" },
        identity::DEFAULT_CLIQUE
    );
    let disagreement =
        new_disagreement(DisagreementClass::SentinelClique, DisagreementSeverity::Note, summary)
            .with_nodes(nodes)
            .with_remedy("group by ClusterUUID and CliqueId together");
    let sides = default.values().map(|(nodes, word)| {
        let statement = format!(
            "CliqueId {} on {}",
            identity::DEFAULT_CLIQUE,
            list_nodes(nodes.iter().copied())
        );
        view.fabric_side(*word, statement)
    });
    found.push(sides.fold(disagreement, Disagreement::with_side));
}

/// `label-missing`: most of a domain is labelled, and some nodes are not.
pub(super) fn check_missing_labels(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for (source, report) in view.sources(&[SourceKind::KubernetesNodes]) {
        let labelled = |node: &NodeName| {
            report
                .nodes
                .get(node)
                .map(|node_report| node_report.fabric.iter().any(|f| usable_clique(f).is_some()))
        };
        for (at, domain) in view.placement.domains.iter().enumerate() {
            let known: Vec<(&NodeName, bool)> =
                domain.nodes.iter().filter_map(|n| Some((n, labelled(n)?))).collect();
            let without: Vec<&NodeName> =
                known.iter().filter(|(_, has)| !has).map(|(node, _)| *node).collect();
            // Labels with zeros are reported as `sentinel-clique`.
            let without: Vec<&NodeName> =
                without.into_iter().filter(|node| !view.labels.contains_key(node)).collect();
            if without.is_empty() || known.len() <= 2 * without.len() {
                continue;
            }
            let summary = format!(
                "{} of {} {} no clique label, {} others of it have one: a node whose GPUs \
                 disagree or are not attached to the fabric gets none",
                list_nodes(without.iter().copied()),
                domain.name,
                if without.len() == 1 { "has" } else { "have" },
                known.len() - without.len()
            );
            let label = Some("label nvidia.com/gpu.clique");
            let statement = format!("no clique for {}", list_nodes(without.iter().copied()));
            let basis = model::source_report::ClaimBasis::Asserted;
            let disagreement = new_disagreement(
                DisagreementClass::LabelMissing,
                DisagreementSeverity::Doubt,
                summary,
            )
            .in_domain(&domain.name)
            .with_nodes(without)
            .with_side(view.source_side(source, label, basis, statement))
            .with_remedy("query the driver of these nodes (fabricgate node facts)");
            let claim = view
                .claim_side(at, format!("{} in one domain", count_of(domain.nodes.len(), "node")));
            found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
        }
    }
}

/// `fabric-not-attached`: claimed in a domain of several nodes, but the driver reports GPUs that
/// are not attached to a fabric.
pub(super) fn check_unattached_fabric(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let mut causes = CliqueMismatches::new();
    for (node, words) in &view.drivers {
        let Some(domain) = view.placement.domain_of(node) else { continue };
        let labelled = view
            .labels
            .get(node)
            .is_some_and(|l| l.iter().any(|(_, f)| usable_clique(f).is_some()));
        if labelled || view.spans_nodes(domain) != Some(true) {
            continue;
        }
        let off: Vec<&SourcedFabricReport<'_>> =
            words.iter().filter(|(_, fabric)| !identity::is_attached(fabric)).collect();
        if let Some(first) = off.first() {
            let state = first.1.state.clone().unwrap_or_default();
            let detail = format!("{} of {} GPUs: fabric {state}", off.len(), words.len());
            add_mismatch(
                &mut causes,
                (Some(domain), detail, String::new()),
                node,
                None,
                Some(**first),
            );
        }
    }
    for ((domain, detail, _), cause) in &causes {
        let Some(at) = *domain else { continue };
        let summary = format!(
            "{} {} claimed in {}, but the driver reports: {detail}",
            list_nodes(cause.nodes.iter().copied()),
            is_or_are(cause.nodes.len()),
            view.domain_name(at)
        );
        let words = (String::new(), detail.clone(), summary);
        let disagreement = describe_mismatch(
            view,
            DisagreementClass::FabricNotAttached,
            DisagreementSeverity::Contradiction,
            *domain,
            cause,
            words,
        );
        let claim = view.claim_side(at, format!("they are part of {}", view.domain_name(at)));
        let disagreement =
            disagreement.with_remedy("check the fabric manager and the fabric state of these GPUs");
        found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
    }
}
