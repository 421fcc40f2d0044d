//! Cliques: what labels say of a node against what its own GPUs say.
//!
//! A label is written once and read for weeks; the driver speaks of now. GPU
//! feature discovery leaves the label out where the GPUs of a node disagree or
//! are not attached, so a label that is missing among others says something too.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::identity;
use super::identity::usable;
use super::view::FabricWord;
use super::view::View;
use super::words::count;
use super::words::disagreement;
use super::words::is;
use super::words::listed;
use super::words::some;
use crate::claims::reading::is_zero;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::SourceKind;

/// Nodes of one cause, with the words of the first.
struct Cause<'s> {
    nodes: Vec<&'s NodeName>,
    label: Option<FabricWord<'s>>,
    driver: Option<FabricWord<'s>>,
}

/// Causes by what is said: domain, and words.
type Causes<'s> = BTreeMap<(Option<usize>, String, String), Cause<'s>>;

fn enter<'s>(
    causes: &mut Causes<'s>,
    key: (Option<usize>, String, String),
    node: &'s NodeName,
    label: Option<FabricWord<'s>>,
    driver: Option<FabricWord<'s>>,
) {
    causes.entry(key).or_insert(Cause { nodes: Vec::new(), label, driver }).nodes.push(node);
}

fn tell(
    view: &View<'_>,
    class: DisagreementClass,
    severity: Severity,
    domain: Option<usize>,
    cause: &Cause<'_>,
    (label, driver, summary): (String, String, String),
) -> Disagreement {
    let mut told = disagreement(class, severity, summary).about(cause.nodes.iter().copied());
    if let Some(domain) = domain {
        told = told.in_domain(view.domain(domain));
    }
    if let Some(word) = cause.label {
        told = told.side(view.word(word, label));
    }
    if let Some(word) = cause.driver {
        told = told.side(view.word(word, driver));
    }
    told
}

/// The cliques that the GPUs of a node are in, and how many of the GPUs are in
/// none.
fn shown(words: &[FabricWord<'_>]) -> (BTreeSet<String>, usize) {
    let cliques = words.iter().filter_map(|(_, fabric)| usable(fabric)).collect();
    (cliques, words.iter().filter(|(_, fabric)| usable(fabric).is_none()).count())
}

/// The first word that names this clique, or any other.
fn naming<'s>(words: &[FabricWord<'s>], clique: Option<&str>) -> Option<FabricWord<'s>> {
    words.iter().copied().find(|(_, fabric)| usable(fabric).as_deref() == clique)
}

/// Nodes whose label names another clique than all their GPUs do: what the
/// label says about groups is then no second cause.
pub(super) fn stale_nodes<'s>(view: &View<'s>) -> BTreeSet<&'s NodeName> {
    let mut stale = BTreeSet::new();
    for (node, labels) in &view.labels {
        let Some((cliques, _)) = view.drivers.get(node).map(|words| shown(words)) else { continue };
        let labelled = labels.iter().filter_map(|(_, fabric)| usable(fabric));
        if !cliques.is_empty() && labelled.into_iter().any(|label| !cliques.contains(&label)) {
            stale.insert(*node);
        }
    }
    stale
}

/// `stale-label` and `label-without-all-gpus`: the label against the driver.
pub(super) fn labels_against_drivers(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let mut stale = Causes::new();
    let mut partly = Causes::new();
    for (node, labels) in &view.labels {
        let Some(words) = view.drivers.get(node) else { continue };
        let (cliques, without) = shown(words);
        for label in labels {
            let Some(labelled) = usable(label.1) else { continue };
            let domain = view.placed.of(node);
            let others: Vec<&String> = cliques.iter().filter(|c| **c != labelled).collect();
            if without == 0 && cliques.len() == 1 {
                if let [other] = others[..] {
                    let key = (domain, labelled, other.clone());
                    enter(&mut stale, key, node, Some(*label), naming(words, Some(other)));
                }
            } else {
                let all = words.len();
                let detail = match (without, others.is_empty()) {
                    (0, _) => format!("GPUs in several cliques, also {}", some(&others)),
                    (_, true) => format!("{without} of {all} GPUs attached to no fabric"),
                    (_, false) => {
                        format!("{without} of {all} GPUs in no clique, others in {}", some(&others))
                    }
                };
                let witness = if 0 < without { None } else { others.first().map(|c| c.as_str()) };
                let key = (domain, labelled, detail);
                enter(&mut partly, key, node, Some(*label), naming(words, witness));
            }
        }
    }
    for ((domain, labelled, other), cause) in &stale {
        let (names, number) = (listed(cause.nodes.iter().copied()), cause.nodes.len());
        let summary = format!(
            "{names} {} labelled clique {labelled}, and the driver there says {other}: the label is stale",
            is(number)
        );
        let words = (format!("clique {labelled}"), format!("clique {other}"), summary);
        let told = tell(
            view,
            DisagreementClass::StaleLabel,
            Severity::Contradiction,
            *domain,
            cause,
            words,
        );
        found.push(told.remedy(
            "let GPU feature discovery or the DRA driver write the label anew, and look for a partition \
             that changed or a tray that moved",
        ));
    }
    for ((domain, labelled, detail), cause) in &partly {
        let names = listed(cause.nodes.iter().copied());
        let summary =
            format!("{names} carries the label of clique {labelled}, and its driver says {detail}");
        let words = (format!("clique {labelled} for the whole node"), detail.clone(), summary);
        let class = DisagreementClass::LabelWithoutAllGpus;
        let told = tell(view, class, Severity::Contradiction, *domain, cause, words);
        found.push(told.remedy(
            "look at the fabric state of every GPU there, and at the fabric manager; jobs must not use the \
             node by its label until all GPUs are attached",
        ));
    }
}

/// `gpus-in-two-cliques`: one driver, several cliques.
pub(super) fn mixed_gpus(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (node, words) in &view.drivers {
        let (cliques, _) = shown(words);
        if cliques.len() < 2 {
            continue;
        }
        let summary =
            format!("the GPUs of {node} are in {} cliques: {}", cliques.len(), some(&cliques));
        let mut told =
            disagreement(DisagreementClass::GpusInTwoCliques, Severity::Contradiction, summary)
                .about([*node]);
        for clique in &cliques {
            let gpus: Vec<String> = words
                .iter()
                .filter(|(_, fabric)| usable(fabric).as_ref() == Some(clique))
                .filter_map(|(_, fabric)| fabric.gpu.map(|gpu| gpu.to_string()))
                .collect();
            if let Some(word) = naming(words, Some(clique)) {
                told = told.side(view.word(word, format!("GPU {} in {clique}", gpus.join(", "))));
            }
        }
        if let Some(domain) = view.domain_of(node) {
            told = told.in_domain(domain);
        }
        let remedy =
            "look at the partitions of the fabric manager: a node must be in one as a whole";
        found.push(told.remedy(remedy));
    }
}

/// `sentinel-clique`: an identity that names no fabric, or that every rack may
/// have.
pub(super) fn sentinels(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let mut zero = Causes::new();
    // By kind of source: the same nodes said three times are one remark.
    let mut default: BTreeMap<SourceKind, (BTreeSet<&NodeName>, FabricWord<'_>)> = BTreeMap::new();
    let words = view.labels.iter().map(|word| (true, word));
    for (is_label, (node, words)) in words.chain(view.drivers.iter().map(|word| (false, word))) {
        let domain = view.placed.of(node);
        // Inside a server a zero UUID is normal: there is no fabric beyond it.
        let in_rack = domain.is_some_and(|at| view.spans_nodes(at) == Some(true));
        for word in words {
            let uuid = word.1.cluster_uuid.as_deref().unwrap_or("");
            let kind = view.said[word.0].source.kind;
            let name = kind.words().to_owned();
            let has_default = word.1.clique_id.as_deref() == Some(identity::DEFAULT_CLIQUE);
            if is_zero(uuid) && (is_label || (in_rack && identity::is_attached(word.1))) {
                enter(&mut zero, (domain, name, String::new()), node, Some(*word), None);
                break;
            }
            if has_default && !uuid.is_empty() {
                default.entry(kind).or_insert((BTreeSet::new(), *word)).0.insert(node);
            }
        }
    }
    for ((domain, name, _), cause) in &zero {
        let nodes = listed(cause.nodes.iter().copied());
        let summary = format!(
            "{name}: {nodes} {} in the clique of a ClusterUUID of zeros, which is no fabric: it was not \
             configured when this was read",
            is(cause.nodes.len())
        );
        let words = ("a ClusterUUID of zeros".to_owned(), String::new(), summary);
        let told = tell(
            view,
            DisagreementClass::SentinelClique,
            Severity::Contradiction,
            *domain,
            cause,
            words,
        );
        found.push(
            told.remedy("do not group by this value; look at the fabric manager of these nodes"),
        );
    }
    let nodes: BTreeSet<&NodeName> =
        default.values().flat_map(|(nodes, _)| nodes.iter().copied()).collect();
    if nodes.is_empty() {
        return;
    }
    let summary = format!(
        "{} {} CliqueId {}, the default: what keys on the CliqueId alone takes racks that never met for one \
         domain",
        listed(nodes.iter().copied()),
        if nodes.len() == 1 { "has" } else { "have" },
        identity::DEFAULT_CLIQUE
    );
    let told = disagreement(DisagreementClass::SentinelClique, Severity::Note, summary)
        .about(nodes)
        .remedy("key on ClusterUUID and CliqueId together");
    let sides = default.values().map(|(nodes, word)| {
        let says =
            format!("CliqueId {} on {}", identity::DEFAULT_CLIQUE, listed(nodes.iter().copied()));
        view.word(*word, says)
    });
    found.push(sides.fold(told, Disagreement::side));
}

/// `label-missing`: most of a domain is labelled, and some nodes are not.
pub(super) fn missing_labels(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (source, said) in view.sources(&[SourceKind::KubernetesNodes]) {
        let labelled = |node: &NodeName| {
            said.nodes.get(node).map(|said| said.fabric.iter().any(|f| usable(f).is_some()))
        };
        for (at, domain) in view.placed.domains.iter().enumerate() {
            let known: Vec<(&NodeName, bool)> =
                domain.nodes.iter().filter_map(|n| Some((n, labelled(n)?))).collect();
            let without: Vec<&NodeName> =
                known.iter().filter(|(_, has)| !has).map(|(node, _)| *node).collect();
            // A label with zeros is told as such.
            let without: Vec<&NodeName> =
                without.into_iter().filter(|node| !view.labels.contains_key(node)).collect();
            if without.is_empty() || known.len() <= 2 * without.len() {
                continue;
            }
            let summary = format!(
                "{} of {} {} no clique label, {} others of it have one: GPUs that disagree or are not \
                 attached to the fabric get none",
                listed(without.iter().copied()),
                domain.name,
                if without.len() == 1 { "has" } else { "have" },
                known.len() - without.len()
            );
            let label = Some("label nvidia.com/gpu.clique");
            let says = format!("no clique for {}", listed(without.iter().copied()));
            let basis = model::said::Basis::Asserted;
            let told = disagreement(DisagreementClass::LabelMissing, Severity::Doubt, summary)
                .in_domain(&domain.name)
                .about(without)
                .side(view.source(source, label, basis, says))
                .remedy("ask the driver of these nodes (fabricgate node facts)");
            let claim =
                view.claim(at, format!("{} in one domain", count(domain.nodes.len(), "node")));
            found.push(claim.into_iter().fold(told, Disagreement::side));
        }
    }
}

/// `fabric-not-attached`: claimed in a domain of several nodes, and its driver
/// says that GPUs are attached to no fabric.
pub(super) fn not_attached(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let mut causes = Causes::new();
    for (node, words) in &view.drivers {
        let Some(domain) = view.placed.of(node) else { continue };
        let labelled =
            view.labels.get(node).is_some_and(|l| l.iter().any(|(_, f)| usable(f).is_some()));
        if labelled || view.spans_nodes(domain) != Some(true) {
            continue;
        }
        let off: Vec<&FabricWord<'_>> =
            words.iter().filter(|(_, fabric)| !identity::is_attached(fabric)).collect();
        if let Some(first) = off.first() {
            let state = first.1.state.clone().unwrap_or_default();
            let detail = format!("{} of {} GPUs: fabric {state}", off.len(), words.len());
            enter(&mut causes, (Some(domain), detail, String::new()), node, None, Some(**first));
        }
    }
    for ((domain, detail, _), cause) in &causes {
        let Some(at) = *domain else { continue };
        let summary = format!(
            "{} {} claimed in {}, and the driver there says: {detail}",
            listed(cause.nodes.iter().copied()),
            is(cause.nodes.len()),
            view.domain(at)
        );
        let words = (String::new(), detail.clone(), summary);
        let told = tell(
            view,
            DisagreementClass::FabricNotAttached,
            Severity::Contradiction,
            *domain,
            cause,
            words,
        );
        let claim = view.claim(at, format!("they are part of {}", view.domain(at)));
        let told = told.remedy("look at the fabric manager and the fabric state of these GPUs");
        found.push(claim.into_iter().fold(told, Disagreement::side));
    }
}
