//! IMEX domains (ComputeDomains) against the NVLink domains they lie in.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::view::View;
use super::words::count;
use super::words::disagreement;
use super::words::listed;
use super::words::some;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;
use model::said::GroupKind;
use model::said::NodeSaid;
use model::said::SourceKind;

/// `imex-beyond-domain`: one IMEX domain over several NVLink domains.
pub(super) fn larger_than_domain(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings.iter().filter(|g| g.kind == GroupKind::Imex) {
        for (at, set) in grouping.sets.iter().enumerate() {
            let mut domains: BTreeMap<usize, Vec<&NodeName>> = BTreeMap::new();
            for node in &set.nodes {
                if let Some(domain) = view.placed.of(node) {
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
            let names = some(domains.keys().map(|at| view.domain(*at).as_str()));
            let summary = format!(
                "{} {} spans {} NVLink domains ({names}): its nodes can import each other's memory only inside \
                 one of them",
                grouping.noun(),
                set.name,
                domains.len()
            );
            let says = format!("{} in one {}", count(set.nodes.len(), "node"), grouping.noun());
            let mut told =
                disagreement(DisagreementClass::ImexBeyondDomain, Severity::Contradiction, summary)
                    .about(nodes)
                    .side(grouping.side(view.said, at, says))
                    .remedy("place such a job inside one domain, by the clique label or the block");
            for (domain, nodes) in domains.iter().take(4) {
                let says = format!("{} in {}", listed(nodes.iter().copied()), view.domain(*domain));
                told = view.claim(*domain, says).into_iter().fold(told, Disagreement::side);
            }
            found.push(match main {
                Some(main) => told.in_domain(view.domain(main)),
                None => told,
            });
        }
    }
}

/// `imex-size`: a ComputeDomain asked for more nodes than it has.
pub(super) fn sizes(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for grouping in view.groupings.iter().filter(|g| g.kind == GroupKind::Imex) {
        for (at, set) in grouping.sets.iter().enumerate() {
            let Some(size) = set.groups.iter().find_map(|(_, group)| group.size) else { continue };
            let named = set.named();
            let counted = named.len();
            // 0 is the default of the field and asks for nothing.
            if size == 0 || counted == size as usize {
                continue;
            }
            let noun = grouping.noun();
            let summary = format!("{noun} {} asks for {size} nodes and lists {counted}", set.name);
            let says = format!("{size} nodes asked for, {counted} listed");
            let told = disagreement(DisagreementClass::ImexSize, Severity::Doubt, summary)
                .about(named)
                .side(grouping.side(view.said, at, says))
                .remedy("look for nodes whose IMEX daemon did not join; the field is deprecated and may be old");
            let domain = set.nodes.first().and_then(|node| view.domain_of(node));
            found.push(domain.into_iter().fold(told, Disagreement::in_domain));
        }
    }
}

/// Whether a ComputeDomain says that a node is ready.
fn is_ready(node: &NodeSaid) -> bool {
    let last = |word: &String| {
        word.rsplit([' ', ':', '=']).next().is_some_and(|word| word.eq_ignore_ascii_case("ready"))
    };
    // As a mark, it is `Ready, <clique or none>`.
    let mut marks = node.marks.iter().filter(|(mark, _)| mark.starts_with("ComputeDomain"));
    node.state.iter().any(last) || marks.any(|(_, value)| value.split(',').next() == Some("Ready"))
}

/// `ready-without-clique`: a ComputeDomain is ready on a node that is in no
/// clique: it fell back to no fabric, and its pods start all the same.
pub(super) fn ready_without_clique(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for (source, said) in view.sources(&[SourceKind::ComputeDomains]) {
        for group in said.groups.iter().filter(|group| group.kind == GroupKind::Imex) {
            let empty = |node: &&NodeName| {
                said.nodes.get(*node).is_some_and(|node| {
                    let named =
                        |id: &Option<String>| id.as_deref().is_some_and(|id| !id.is_empty());
                    is_ready(node) && !node.fabric.iter().any(|f| named(&f.clique_id))
                })
            };
            let nodes: BTreeSet<&NodeName> = group.nodes.iter().filter(empty).collect();
            let Some(first) = nodes.first() else { continue };
            let names = listed(nodes.iter().copied());
            let summary = format!(
                "{} {} is ready on {names} without a clique: it fell back to no fabric, and its pods start \
                 all the same",
                group.scheme, group.name
            );
            let at = group.at.as_deref();
            let says = format!("{names} ready, cliqueID empty");
            let mut told = disagreement(
                DisagreementClass::ReadyWithoutClique,
                Severity::Contradiction,
                summary,
            )
            .about(nodes.iter().copied())
            .side(view.source(source, at, group.basis.clone(), says))
            .remedy(
                "look at the fabric state of these nodes; ready means only that the daemon runs",
            );
            let label = view.labels.get(first).or_else(|| view.drivers.get(first));
            if let Some(word) = label.and_then(|words| words.first()) {
                let clique = word.1.clique().unwrap_or_else(|| "no fabric".to_owned());
                told = told.side(view.word(*word, format!("{first} in {clique}")));
            }
            if let Some(domain) = view.placed.of(first) {
                told = told.in_domain(view.domain(domain));
                let says = format!("{names} in {}", view.domain(domain));
                told = view.claim(domain, says).into_iter().fold(told, Disagreement::side);
            }
            found.push(told);
        }
    }
}

/// `imex-against-clique`: the clique in a ComputeDomain's status is not the one
/// the node is labelled with.
pub(super) fn status_against_label(view: &View<'_>, found: &mut Vec<Disagreement>) {
    use super::identity::usable;
    type Words = (String, String);
    let mut differ: BTreeMap<(usize, Words), Vec<&NodeName>> = BTreeMap::new();
    for (source, said) in view.sources(&[SourceKind::ComputeDomains]) {
        for (node, words) in &said.nodes {
            let Some(own) = words.fabric.iter().find_map(usable) else { continue };
            let elsewhere = view.labels.get(node).into_iter().flatten();
            let mut others =
                elsewhere.filter(|(at, _)| *at != source).filter_map(|(_, f)| usable(f));
            if let Some(other) = others.next().filter(|other| *other != own) {
                differ.entry((source, (own, other))).or_default().push(node);
            }
        }
    }
    for ((source, (own, other)), nodes) in differ {
        let names = listed(nodes.iter().copied());
        let summary = format!(
            "{names}: the ComputeDomain's status says clique {own}, the node's label {other}"
        );
        let mut told = disagreement(DisagreementClass::ImexAgainstClique, Severity::Contradiction, summary)
            .about(nodes.iter().copied())
            .side(view.source(source, None, Basis::Asserted, format!("{names} in {own}")))
            .remedy("both are read once and kept: restart the plugin and the daemon after a change of partitions");
        if let Some(word) = view.labels.get(nodes[0]).and_then(|w| w.iter().find(|w| w.0 != source))
        {
            told = told.side(view.word(*word, format!("{names} in {other}")));
        }
        let domain = view.domain_of(nodes[0]);
        found.push(domain.into_iter().fold(told, Disagreement::in_domain));
    }
}
