//! Builds findings: IDs, loci, and number formats.

use std::fmt::Write;

use sha2::{Digest, Sha256};

pub(super) use model::finding::{RateReference, round, round_fine};
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::{DomainName, GpuId, NodeName};
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// A new finding without numbers. Offline there is no second measurement, so it is not confirmed.
pub(super) fn new_finding(
    outcome: Outcome,
    class: FindingClass,
    locus: Locus,
    rule: impl Into<FindingRule>,
) -> Finding {
    Finding { rule: rule.into(), ..Finding::new(finding_id(&class, &locus), outcome, class, locus) }
}

/// An ID that depends only on class and locus, so that runs can be compared.
fn finding_id(class: &FindingClass, locus: &Locus) -> String {
    let domain = locus.domain.as_ref().map_or("", DomainName::as_str);
    let digest = Sha256::digest(format!("{class}\n{domain}\n{locus}"));
    let mut id = String::from("fg-");
    for byte in digest.iter().take(5) {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// Formats a rate in GB/s for sentences.
pub(super) fn format_rate(value: f64) -> String {
    match value.abs() {
        size if 10.0 <= size => format!("{value:.1}"),
        size if 1.0 <= size => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

pub(super) fn domain_locus(kind: LocusKind, domain: &DomainName) -> Locus {
    Locus { domain: Some(domain.clone()), ..Locus::new(kind) }
}

pub(super) fn node_locus(domain: &DomainName, node: &NodeName) -> Locus {
    Locus { node: Some(node.clone()), ..domain_locus(LocusKind::Node, domain) }
}

pub(super) fn gpu_locus(domain: &DomainName, gpu: &GpuId) -> Locus {
    Locus { kind: LocusKind::Gpu, gpu: Some(gpu.gpu), ..node_locus(domain, &gpu.node) }
}
