//! Properties that nodes of one domain must share: number of GPUs and NICs, product, driver.

use std::collections::{BTreeMap, BTreeSet};

use super::context::ReconcileContext;
use super::domains;
use super::messages::{list_nodes, list_some, new_disagreement};
use crate::claims::reader_util::is_rdma_device;
use model::disagreement::{Disagreement, DisagreementSeverity, DisagreementSide};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NicReport, NodeReport, SourceFamily, SourceKind};

/// The origin of the reference number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ExpectationSource {
    /// The operator, for every node.
    Person,
    /// The claim of this domain.
    Domain(usize),
    Source(usize),
}

/// Basis of a source's report about a node.
fn source_basis(view: &ReconcileContext<'_>, source: usize) -> ClaimBasis {
    match view.reports[source].source.kind {
        SourceKind::NodeFacts => ClaimBasis::Reported,
        _ => ClaimBasis::Asserted,
    }
}

/// Schedulers first, because they state the nominal number; then the node itself.
fn kind_weight(kind: SourceKind) -> u8 {
    match kind {
        SourceKind::SlurmNodes | SourceKind::KubernetesNodes | SourceKind::Cabling => 0,
        SourceKind::NodeFacts => 2,
        _ => 1,
    }
}

/// Every source's number for each node, schedulers first.
fn numbers_by_node<'s>(
    view: &ReconcileContext<'s>,
    of: impl Fn(SourceKind, &NodeReport) -> Option<u32>,
) -> BTreeMap<&'s NodeName, Vec<(usize, u32)>> {
    let mut numbers: BTreeMap<&NodeName, Vec<(usize, u32)>> = BTreeMap::new();
    for (source, node, node_report) in view.node_reports() {
        if let Some(number) = of(view.reports[source].source.kind, node_report) {
            numbers.entry(node).or_default().push((source, number));
        }
    }
    for values in numbers.values_mut() {
        values.sort_by_key(|(source, _)| kind_weight(view.reports[*source].source.kind));
    }
    numbers
}

/// The parameters of a check of numbers.
struct CountCheck {
    class: DisagreementClass,
    what: &'static str,
    /// A kind of source that may count more than the request.
    counts_more: Option<SourceKind>,
    remedy: &'static str,
}

/// Compares each node's numbers with the first expected or reported one.
fn check_counts(
    view: &ReconcileContext<'_>,
    counted: &CountCheck,
    numbers: &BTreeMap<&NodeName, Vec<(usize, u32)>>,
    expected: impl Fn(&NodeName) -> Option<(ExpectationSource, u32)>,
    found: &mut Vec<Disagreement>,
) {
    // Sources of one kind count once: every node's facts may be a separate source.
    type CountMismatchKey = (Option<usize>, ExpectationSource, SourceKind, u32, SourceKind, u32);
    let mut wrong: BTreeMap<CountMismatchKey, (Vec<&NodeName>, ExpectationSource, usize)> =
        BTreeMap::new();
    for (node, values) in numbers {
        let first = expected(node)
            .or_else(|| values.first().map(|(s, n)| (ExpectationSource::Source(*s), *n)));
        let Some((origin, right)) = first else { continue };
        for (source, number) in values.iter().filter(|(_, number)| *number != right) {
            let kind = |source: usize| view.reports[source].source.kind;
            if right < *number && counted.counts_more == Some(kind(*source)) {
                continue;
            }
            let (origin_key, first_kind) = match origin {
                ExpectationSource::Source(first) => (ExpectationSource::Source(0), kind(first)),
                other => (other, kind(*source)),
            };
            let key = (
                view.placement.domain_of(node),
                origin_key,
                first_kind,
                right,
                kind(*source),
                *number,
            );
            wrong.entry(key).or_insert((Vec::new(), origin, *source)).0.push(node);
        }
    }
    for ((domain, _, _, right, kind, number), (nodes, origin, source)) in wrong {
        let names = list_nodes(nodes.iter().copied());
        let what = counted.what;
        let by = match origin {
            ExpectationSource::Person => "by the expectation for every node".to_owned(),
            ExpectationSource::Domain(at) => format!("by the claim of {}", view.domain_name(at)),
            ExpectationSource::Source(at) => format!("by {}", view.reports[at].source.kind.label()),
        };
        let summary = format!("{names}: {right} {what} {by}, {number} by {}", kind.label());
        let mut disagreement =
            new_disagreement(counted.class.clone(), DisagreementSeverity::Contradiction, summary)
                .with_nodes(nodes)
                .with_remedy(counted.remedy);
        let side: Option<DisagreementSide> = match origin {
            ExpectationSource::Person => None,
            ExpectationSource::Domain(at) => {
                view.claim_side(at, format!("{right} {what} per node"))
            }
            ExpectationSource::Source(at) => {
                Some(view.source_side(at, None, source_basis(view, at), format!("{right} {what}")))
            }
        };
        if let Some(side) = side {
            disagreement = disagreement.with_side(side);
        }
        disagreement = disagreement.with_side(view.source_side(
            source,
            None,
            source_basis(view, source),
            format!("{number} {what}"),
        ));
        found.push(
            domain.into_iter().fold(disagreement, |disagreement, at| {
                disagreement.in_domain(view.domain_name(at))
            }),
        );
    }
}

/// The number of GPUs in the claim of this domain.
fn claimed_gpus(view: &ReconcileContext<'_>, domain: usize) -> Option<u32> {
    let (grouping, set) = view.placement.origin[domain]?;
    // 0 requests a measurement of the network only.
    domains::claimed_gpus(view.groupings[grouping].sets[set].groups[0].1).filter(|gpus| 0 < *gpus)
}

/// `gpu-count`: GPUs per node, expected or reported.
pub(super) fn check_gpu_counts(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let counted = CountCheck {
        class: DisagreementClass::GpuCount,
        what: "GPUs",
        counts_more: None,
        remedy: "check for a GPU that fell off the bus, or correct the configured number",
    };
    let expected = |node: &NodeName| {
        let domain = view.placement.domain_of(node)?;
        let claimed =
            claimed_gpus(view, domain).map(|gpus| (ExpectationSource::Domain(domain), gpus));
        claimed.or_else(|| view.rules.gpus_per_node.map(|gpus| (ExpectationSource::Person, gpus)))
    };
    // A framework counts the GPUs assigned to it, a communicator its members.
    let counts = |kind: SourceKind| kind.family() != SourceFamily::Frameworks;
    // A claimed node without GPUs may be intentional.
    let numbers =
        numbers_by_node(view, |kind, node_report| node_report.gpus.filter(|_| counts(kind)));
    check_counts(view, &counted, &numbers, expected, found);
    // If every source agrees about a node, only the other nodes reveal a missing GPU. Nodes
    // without GPUs have another purpose.
    let reported: BTreeSet<NodeName> =
        found.iter().filter(|d| d.class == counted.class).flat_map(|d| d.nodes.clone()).collect();
    let own = |kind: SourceKind, node_report: &NodeReport| {
        node_report.gpus.filter(|gpus| counts(kind) && 0 < *gpus).map(|gpus| gpus.to_string())
    };
    for one in mixed_values(view, own) {
        let rare = one.1.split_last().map_or(&[][..], |(_, rare)| rare);
        let mut nodes = rare.iter().flat_map(|(_, nodes)| nodes);
        if nodes.all(|(node, _)| !reported.contains(*node)) {
            let words = ("GPU count", counted.remedy);
            found.extend(describe_mixed_values(
                view,
                counted.class.clone(),
                DisagreementSeverity::Doubt,
                &one,
                words,
            ));
        }
    }
}

/// `nic-count`: NICs of the compute network per node.
pub(super) fn check_nic_counts(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let counted = CountCheck {
        class: DisagreementClass::NicCount,
        what: "NICs",
        counts_more: Some(SourceKind::NodeFacts),
        remedy: "check for a NIC that is down or missing, or correct the expected number",
    };
    let expected = |node: &NodeName| {
        view.placement.domain_of(node)?;
        view.rules.nics_per_node.map(|nics| (ExpectationSource::Person, nics))
    };
    // Neighbours contain only the ends that respond. A node lists the NICs of all its networks:
    // if some support RDMA, those without it belong to another network.
    let numbers = numbers_by_node(view, |kind, node_report| {
        let all = node_report.nics.len();
        let is_rdma = |nic: &&NicReport| nic.device.as_deref().is_some_and(is_rdma_device);
        let count = match kind {
            SourceKind::Cabling => all,
            SourceKind::NodeFacts => {
                let rdma = node_report.nics.iter().filter(is_rdma).count();
                if rdma == 0 { all } else { rdma }
            }
            _ => 0,
        };
        u32::try_from(count).ok().filter(|nics| 0 < *nics)
    });
    check_counts(view, &counted, &numbers, expected, found);
}

/// Normalises spellings of one product: GPU feature discovery writes dashes for blanks, and
/// appends the slice to MIG-sliced (`...-MIG-1g.10gb`) or shared GPUs.
fn normalise_product(product: &str) -> String {
    let product = product.trim().to_lowercase().replace(['-', '_'], " ");
    let product = product.split(" mig ").next().unwrap_or_default();
    product.strip_suffix(" shared").unwrap_or(product).to_owned()
}

/// Values of the nodes of one domain, each with its nodes and a source; the rarest first.
type ValueShares<'s> = Vec<(String, Vec<(&'s NodeName, usize)>)>;

/// Mixed values of the nodes of each domain by kind of source, minority first.
fn mixed_values<'s>(
    view: &ReconcileContext<'s>,
    of: impl Fn(SourceKind, &NodeReport) -> Option<String>,
) -> Vec<(usize, ValueShares<'s>)> {
    type NodesByValue<'s> = BTreeMap<String, Vec<(&'s NodeName, usize)>>;
    let mut values: BTreeMap<(usize, SourceKind), NodesByValue<'s>> = BTreeMap::new();
    for (source, node, node_report) in view.node_reports() {
        let kind = view.reports[source].source.kind;
        if let (Some(domain), Some(value)) = (view.placement.domain_of(node), of(kind, node_report))
        {
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

fn describe_mixed_values(
    view: &ReconcileContext<'_>,
    class: DisagreementClass,
    severity: DisagreementSeverity,
    (domain, values): &(usize, ValueShares<'_>),
    (what, remedy): (&str, &str),
) -> Option<Disagreement> {
    let (most, others) = values.split_last()?;
    let nodes: Vec<&NodeName> =
        others.iter().flat_map(|(_, nodes)| nodes.iter().map(|(node, _)| *node)).collect();
    let summary = format!(
        "{} has several {what}s: {} {} {}, most have {}",
        view.domain_name(*domain),
        list_nodes(nodes.iter().copied()),
        if nodes.len() == 1 { "has" } else { "have" },
        list_some(others.iter().map(|(value, _)| value)),
        most.0
    );
    let mut disagreement = new_disagreement(class, severity, summary)
        .in_domain(view.domain_name(*domain))
        .with_nodes(nodes);
    for (value, nodes) in values.iter().rev().take(4) {
        let source = nodes[0].1;
        let statement = format!("{}: {value}", list_nodes(nodes.iter().map(|(node, _)| *node)));
        disagreement = disagreement.with_side(view.source_side(
            source,
            None,
            source_basis(view, source),
            statement,
        ));
    }
    Some(disagreement.with_remedy(remedy))
}

/// `product-mixed` and `driver-mixed`: nodes of one domain differ.
pub(super) fn check_uniformity(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    for one in
        mixed_values(view, |_, node_report| node_report.product.as_deref().map(normalise_product))
    {
        let rack = view.spans_nodes(one.0) == Some(true);
        let severity =
            if rack { DisagreementSeverity::Contradiction } else { DisagreementSeverity::Doubt };
        let words = (
            "product",
            "GPUs of different products cannot share an NVLink domain: \
            correct the claim",
        );
        found.extend(describe_mixed_values(
            view,
            DisagreementClass::ProductMixed,
            severity,
            &one,
            words,
        ));
    }
    for one in mixed_values(view, |_, node_report| node_report.driver.clone()) {
        let words =
            ("driver", "install the same driver on all nodes of the domain before comparing them");
        found.extend(describe_mixed_values(
            view,
            DisagreementClass::DriverMixed,
            DisagreementSeverity::Doubt,
            &one,
            words,
        ));
    }
}

/// `product-against-claim`: the GPUs do not match the platform that a domain claims, or another
/// source's product.
pub(super) fn check_products(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    type ProductMismatchKey = (Option<usize>, String, SourceKind, String);
    let mut wrong: BTreeMap<ProductMismatchKey, (Vec<&NodeName>, Option<usize>, usize)> =
        BTreeMap::new();
    let mut first: BTreeMap<&NodeName, (usize, String)> = BTreeMap::new();
    for (source, node, node_report) in view.node_reports() {
        let domain = view.placement.domain_of(node);
        let gpus =
            domain.and_then(|at| view.placement.domains[at].gpus_per_node).or(node_report.gpus);
        let platform =
            node_report.product.as_deref().and_then(|name| (view.rules.platform_of)(name, gpus));
        let Some(platform) = platform else { continue };
        let claimed = domain.and_then(|at| {
            let (grouping, set) = view.placement.origin[at]?;
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
            let key = (domain, right, view.reports[source].source.kind, platform);
            wrong.entry(key).or_insert((Vec::new(), other, source)).0.push(node);
        }
    }
    for ((domain, right, kind, platform), (nodes, other, source)) in wrong {
        let names = list_nodes(nodes.iter().copied());
        let by = match other {
            Some(other) => view.reports[other].source.kind.label().to_owned(),
            None => "its claim".to_owned(),
        };
        let summary = format!("{names}: {right} by {by}, GPUs of {platform} by {}", kind.label());
        let mut disagreement = new_disagreement(
            DisagreementClass::ProductAgainstClaim,
            DisagreementSeverity::Contradiction,
            summary,
        )
        .with_nodes(nodes)
        .with_remedy("correct the claim: all expectations depend on the platform");
        let side = match other {
            Some(other) => {
                Some(view.source_side(other, None, source_basis(view, other), right.clone()))
            }
            None => domain.and_then(|at| view.claim_side(at, format!("platform {right}"))),
        };
        if let Some(side) = side {
            disagreement = disagreement.with_side(side);
        }
        disagreement = disagreement.with_side(view.source_side(
            source,
            None,
            source_basis(view, source),
            platform,
        ));
        found.push(
            domain.into_iter().fold(disagreement, |disagreement, at| {
                disagreement.in_domain(view.domain_name(at))
            }),
        );
    }
}
