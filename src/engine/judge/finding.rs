//! Making findings: ids, loci, and the words around numbers.

use std::fmt::Write;

use sha2::{Digest, Sha256};

pub(super) use model::finding::{RateReference, round, round_fine};
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::{DomainName, GpuId, NodeName};
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// A finding with nothing measured yet. Offline there is no second look, so
/// it is not confirmed.
pub(super) fn new_finding(
    outcome: Outcome,
    class: FindingClass,
    locus: Locus,
    rule: impl Into<FindingRule>,
) -> Finding {
    Finding { rule: rule.into(), ..Finding::new(finding_id(&class, &locus), outcome, class, locus) }
}

/// The same for the same class and locus, so that runs can be compared.
fn finding_id(class: &FindingClass, locus: &Locus) -> String {
    let domain = locus.domain.as_ref().map_or("", DomainName::as_str);
    let digest = Sha256::digest(format!("{class}\n{domain}\n{locus}"));
    let mut id = String::from("fg-");
    for byte in digest.iter().take(5) {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// A rate in GB/s as it stands in sentences.
pub(super) fn format_rate(value: f64) -> String {
    match value.abs() {
        size if 10.0 <= size => format!("{value:.1}"),
        size if 1.0 <= size => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A part of a domain.
pub(super) fn domain_locus(kind: LocusKind, domain: &DomainName) -> Locus {
    Locus { domain: Some(domain.clone()), ..Locus::new(kind) }
}

/// A node.
pub(super) fn node_locus(domain: &DomainName, node: &NodeName) -> Locus {
    Locus { node: Some(node.clone()), ..domain_locus(LocusKind::Node, domain) }
}

/// A GPU.
pub(super) fn gpu_locus(domain: &DomainName, gpu: &GpuId) -> Locus {
    Locus { kind: LocusKind::Gpu, gpu: Some(gpu.gpu), ..node_locus(domain, &gpu.node) }
}
