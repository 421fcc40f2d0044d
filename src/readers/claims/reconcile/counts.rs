//! What nodes of one domain must have alike: how many GPUs and NICs, of which
//! product, under which driver.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::domains;
use super::view::View;
use super::words::disagreement;
use super::words::listed;
use super::words::some;
use crate::claims::reading::is_rdma_device;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement::Side;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;
use model::said::Family;
use model::said::NicSaid;
use model::said::NodeSaid;
use model::said::SourceKind;

/// Who says a number first: an expectation, or a source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// A person, of every node.
    Person,
    /// Who claims this domain.
    Domain(usize),
    /// A source.
    Source(usize),
}

/// How a source knows what it says of a node.
fn basis(view: &View<'_>, source: usize) -> Basis {
    match view.said[source].source.kind {
        SourceKind::NodeFacts => Basis::Reported,
        _ => Basis::Asserted,
    }
}

/// Schedulers first: they say what a node should have; then the node itself.
fn weight(kind: SourceKind) -> u8 {
    match kind {
        SourceKind::SlurmNodes | SourceKind::KubernetesNodes | SourceKind::Cabling => 0,
        SourceKind::NodeFacts => 2,
        _ => 1,
    }
}

/// Every source's number of each node, those of schedulers first.
fn numbers<'s>(
    view: &View<'s>,
    of: impl Fn(SourceKind, &NodeSaid) -> Option<u32>,
) -> BTreeMap<&'s NodeName, Vec<(usize, u32)>> {
    let mut numbers: BTreeMap<&NodeName, Vec<(usize, u32)>> = BTreeMap::new();
    for (source, node, said) in view.node_words() {
        if let Some(number) = of(view.said[source].source.kind, said) {
            numbers.entry(node).or_default().push((source, number));
        }
    }
    for said in numbers.values_mut() {
        said.sort_by_key(|(source, _)| weight(view.said[*source].source.kind));
    }
    numbers
}

/// What a check of numbers is called and about.
struct Counted {
    class: DisagreementClass,
    what: &'static str,
    /// A kind of source that may count more than is asked for.
    counts_more: Option<SourceKind>,
    remedy: &'static str,
}

/// Holds each node's numbers against the first that anybody expects or says.
fn against_first(
    view: &View<'_>,
    counted: &Counted,
    numbers: &BTreeMap<&NodeName, Vec<(usize, u32)>>,
    expected: impl Fn(&NodeName) -> Option<(Who, u32)>,
    found: &mut Vec<Disagreement>,
) {
    // Sources of a kind are one voice: every node's own facts may be a source.
    type Key = (Option<usize>, Who, SourceKind, u32, SourceKind, u32);
    let mut wrong: BTreeMap<Key, (Vec<&NodeName>, Who, usize)> = BTreeMap::new();
    for (node, said) in numbers {
        let first = expected(node).or_else(|| said.first().map(|(s, n)| (Who::Source(*s), *n)));
        let Some((who, right)) = first else { continue };
        for (source, number) in said.iter().filter(|(_, number)| *number != right) {
            let kind = |source: usize| view.said[source].source.kind;
            if right < *number && counted.counts_more == Some(kind(*source)) {
                continue;
            }
            let (voice, first_kind) = match who {
                Who::Source(first) => (Who::Source(0), kind(first)),
                other => (other, kind(*source)),
            };
            let key = (view.placed.of(node), voice, first_kind, right, kind(*source), *number);
            wrong.entry(key).or_insert((Vec::new(), who, *source)).0.push(node);
        }
    }
    for ((domain, _, _, right, kind, number), (nodes, who, source)) in wrong {
        let names = listed(nodes.iter().copied());
        let what = counted.what;
        let by = match who {
            Who::Person => "by what is expected of every node".to_owned(),
            Who::Domain(at) => format!("by the claim of {}", view.domain(at)),
            Who::Source(at) => format!("by {}", view.said[at].source.kind.words()),
        };
        let summary = format!("{names}: {right} {what} {by}, {number} by {}", kind.words());
        let mut told = disagreement(counted.class.clone(), Severity::Contradiction, summary)
            .about(nodes)
            .remedy(counted.remedy);
        let side: Option<Side> = match who {
            Who::Person => None,
            Who::Domain(at) => view.claim(at, format!("{right} {what} per node")),
            Who::Source(at) => {
                Some(view.source(at, None, basis(view, at), format!("{right} {what}")))
            }
        };
        if let Some(side) = side {
            told = told.side(side);
        }
        told =
            told.side(view.source(source, None, basis(view, source), format!("{number} {what}")));
        found.push(domain.into_iter().fold(told, |told, at| told.in_domain(view.domain(at))));
    }
}

/// The group that claims this domain says so many GPUs.
fn claimed_gpus(view: &View<'_>, domain: usize) -> Option<u32> {
    let (grouping, set) = view.placed.origin[domain]?;
    // 0 says to measure the network only.
    domains::claimed_gpus(view.groupings[grouping].sets[set].groups[0].1).filter(|gpus| 0 < *gpus)
}

/// `gpu-count`: GPUs per node, expected or said.
pub(super) fn gpus(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let counted = Counted {
        class: DisagreementClass::GpuCount,
        what: "GPUs",
        counts_more: None,
        remedy: "look for a GPU that fell off the bus, or correct the number that is configured",
    };
    let expected = |node: &NodeName| {
        let domain = view.placed.of(node)?;
        let claimed = claimed_gpus(view, domain).map(|gpus| (Who::Domain(domain), gpus));
        claimed.or_else(|| view.rules.gpus_per_node.map(|gpus| (Who::Person, gpus)))
    };
    // A framework counts what it was given of a node, a communicator what is in it.
    let counts = |kind: SourceKind| kind.family() != Family::Frameworks;
    // A node on purpose without GPUs in the claim is no mistake either.
    let numbers = numbers(view, |kind, said| said.gpus.filter(|_| counts(kind)));
    against_first(view, &counted, &numbers, expected, found);
    // Where every source says so of a node, only its neighbours show that one is
    // missing. Nodes without any are there for something else.
    let told: BTreeSet<NodeName> =
        found.iter().filter(|d| d.class == counted.class).flat_map(|d| d.nodes.clone()).collect();
    let own = |kind: SourceKind, said: &NodeSaid| {
        said.gpus.filter(|gpus| counts(kind) && 0 < *gpus).map(|gpus| gpus.to_string())
    };
    for one in mixed(view, own) {
        let rare = one.1.split_last().map_or(&[][..], |(_, rare)| rare);
        let mut nodes = rare.iter().flat_map(|(_, nodes)| nodes);
        if nodes.all(|(node, _)| !told.contains(*node)) {
            let words = ("GPU count", counted.remedy);
            found.extend(tell_mixed(view, counted.class.clone(), Severity::Doubt, &one, words));
        }
    }
}

/// `nic-count`: NICs of the compute network per node.
pub(super) fn nics(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let counted = Counted {
        class: DisagreementClass::NicCount,
        what: "NICs",
        counts_more: Some(SourceKind::NodeFacts),
        remedy: "look for a NIC that is down or was left out, or correct the number that is expected",
    };
    let expected = |node: &NodeName| {
        view.placed.of(node)?;
        view.rules.nics_per_node.map(|nics| (Who::Person, nics))
    };
    // Neighbours tell the ends that answer, which may be some. A node names the NICs of all
    // its networks: where some do RDMA, those that do not are of another.
    let numbers = numbers(view, |kind, said| {
        let all = said.nics.len();
        let is_rdma = |nic: &&NicSaid| nic.device.as_deref().is_some_and(is_rdma_device);
        let count = match kind {
            SourceKind::Cabling => all,
            SourceKind::NodeFacts => {
                let rdma = said.nics.iter().filter(is_rdma).count();
                if rdma == 0 { all } else { rdma }
            }
            _ => 0,
        };
        u32::try_from(count).ok().filter(|nics| 0 < *nics)
    });
    against_first(view, &counted, &numbers, expected, found);
}

/// Spellings of one product: GPU feature discovery writes dashes for blanks, and
/// names the slice where GPUs are cut (`...-MIG-1g.10gb`) or shared.
fn spelled(product: &str) -> String {
    let product = product.trim().to_lowercase().replace(['-', '_'], " ");
    let product = product.split(" mig ").next().unwrap_or_default();
    product.strip_suffix(" shared").unwrap_or(product).to_owned()
}

/// Values of the nodes of one domain, each with its nodes and a source; the
/// rarest first.
type Shares<'s> = Vec<(String, Vec<(&'s NodeName, usize)>)>;

/// Values of the nodes of each domain by kind of source, minority first.
fn mixed<'s>(
    view: &View<'s>,
    of: impl Fn(SourceKind, &NodeSaid) -> Option<String>,
) -> Vec<(usize, Shares<'s>)> {
    type Values<'s> = BTreeMap<String, Vec<(&'s NodeName, usize)>>;
    let mut values: BTreeMap<(usize, SourceKind), Values<'s>> = BTreeMap::new();
    for (source, node, said) in view.node_words() {
        let kind = view.said[source].source.kind;
        if let (Some(domain), Some(value)) = (view.placed.of(node), of(kind, said)) {
            let nodes = values.entry((domain, kind)).or_default().entry(value).or_default();
            nodes.push((node, source));
        }
    }
    let several = values.into_iter().filter(|(_, values)| 1 < values.len());
    several
        .map(|((domain, _), values)| {
            let mut values: Vec<_> = values.into_iter().collect();
            values.sort_by_key(|(_, nodes)| nodes.len());
            (domain, values)
        })
        .collect()
}

fn tell_mixed(
    view: &View<'_>,
    class: DisagreementClass,
    severity: Severity,
    (domain, values): &(usize, Shares<'_>),
    (what, remedy): (&str, &str),
) -> Option<Disagreement> {
    let (most, others) = values.split_last()?;
    let nodes: Vec<&NodeName> =
        others.iter().flat_map(|(_, nodes)| nodes.iter().map(|(node, _)| *node)).collect();
    let summary = format!(
        "{} has several {what}s: {} {} {}, most have {}",
        view.domain(*domain),
        listed(nodes.iter().copied()),
        if nodes.len() == 1 { "has" } else { "have" },
        some(others.iter().map(|(value, _)| value)),
        most.0
    );
    let mut told =
        disagreement(class, severity, summary).in_domain(view.domain(*domain)).about(nodes);
    for (value, nodes) in values.iter().rev().take(4) {
        let source = nodes[0].1;
        let says = format!("{}: {value}", listed(nodes.iter().map(|(node, _)| *node)));
        told = told.side(view.source(source, None, basis(view, source), says));
    }
    Some(told.remedy(remedy))
}

/// `product-mixed` and `driver-mixed`: nodes of one domain are not alike.
pub(super) fn alike(view: &View<'_>, found: &mut Vec<Disagreement>) {
    for one in mixed(view, |_, said| said.product.as_deref().map(spelled)) {
        let rack = view.spans_nodes(one.0) == Some(true);
        let severity = if rack { Severity::Contradiction } else { Severity::Doubt };
        let words = ("product", "GPUs of two kinds share no NVLink domain: correct the claim");
        found.extend(tell_mixed(view, DisagreementClass::ProductMixed, severity, &one, words));
    }
    for one in mixed(view, |_, said| said.driver.clone()) {
        let words =
            ("driver", "bring the nodes of a domain to one driver before they are compared");
        found.extend(tell_mixed(
            view,
            DisagreementClass::DriverMixed,
            Severity::Doubt,
            &one,
            words,
        ));
    }
}

/// `product-against-claim`: the platform that a domain claims, or another
/// source's product, is not the one of its GPUs.
pub(super) fn products(view: &View<'_>, found: &mut Vec<Disagreement>) {
    type Key = (Option<usize>, String, SourceKind, String);
    let mut wrong: BTreeMap<Key, (Vec<&NodeName>, Option<usize>, usize)> = BTreeMap::new();
    let mut first: BTreeMap<&NodeName, (usize, String)> = BTreeMap::new();
    for (source, node, said) in view.node_words() {
        let domain = view.placed.of(node);
        let gpus = domain.and_then(|at| view.placed.domains[at].gpus_per_node).or(said.gpus);
        let platform =
            said.product.as_deref().and_then(|name| (view.rules.platform_of)(name, gpus));
        let Some(platform) = platform else { continue };
        let claimed = domain.and_then(|at| {
            let (grouping, set) = view.placed.origin[at]?;
            view.groupings[grouping].sets[set].groups[0].1.platform.clone()
        });
        let (other, right) = match claimed {
            Some(claimed) => (None, claimed),
            None => match first.get(node) {
                Some((other, right)) => (Some(*other), right.clone()),
                None => {
                    first.insert(node, (source, platform));
                    continue;
                }
            },
        };
        if platform != right {
            let key = (domain, right, view.said[source].source.kind, platform);
            wrong.entry(key).or_insert((Vec::new(), other, source)).0.push(node);
        }
    }
    for ((domain, right, kind, platform), (nodes, other, source)) in wrong {
        let names = listed(nodes.iter().copied());
        let by = match other {
            Some(other) => view.said[other].source.kind.words().to_owned(),
            None => "its claim".to_owned(),
        };
        let summary = format!("{names}: {right} by {by}, GPUs of {platform} by {}", kind.words());
        let mut told =
            disagreement(DisagreementClass::ProductAgainstClaim, Severity::Contradiction, summary)
                .about(nodes)
                .remedy("correct the claim: every expectation follows from the platform");
        let side = match other {
            Some(other) => Some(view.source(other, None, basis(view, other), right.clone())),
            None => domain.and_then(|at| view.claim(at, format!("platform {right}"))),
        };
        if let Some(side) = side {
            told = told.side(side);
        }
        told = told.side(view.source(source, None, basis(view, source), platform));
        found.push(domain.into_iter().fold(told, |told, at| told.in_domain(view.domain(at))));
    }
}
