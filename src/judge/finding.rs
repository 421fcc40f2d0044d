//! Making findings: ids, loci, and the words around numbers.

use std::fmt::Write;

use sha2::Digest;
use sha2::Sha256;

use crate::model::id::DomainName;
use crate::model::id::GpuId;
use crate::model::id::NodeName;
use crate::model::unit::Unit;
use crate::model::verdict::Evidence;
use crate::model::verdict::Finding;
use crate::model::verdict::Locus;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;

/// A finding with nothing measured yet. Offline there is no second look, so
/// it is not confirmed.
pub(super) fn finding(outcome: Outcome, class: &str, locus: Locus, rule: &str) -> Finding {
    Finding { rule: rule.to_owned(), ..Finding::new(id(class, &locus), outcome, class, locus) }
}

/// The same for the same class and locus, so that runs can be compared.
fn id(class: &str, locus: &Locus) -> String {
    let domain = locus.domain.as_ref().map_or("", DomainName::as_str);
    let digest = Sha256::digest(format!("{class}\n{domain}\n{locus}"));
    let mut id = String::from("fg-");
    for byte in digest.iter().take(5) {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

impl Finding {
    /// The same finding with these numbers; the ratio follows from them.
    pub(super) fn numbers(mut self, measured: f64, expected: f64, unit: Unit) -> Self {
        self.measured = Some(fine(measured));
        self.expected = Some(fine(expected));
        self.unit = Some(unit);
        if 0.0 < expected {
            self.ratio = Some(round(measured / expected));
        }
        self
    }

    /// The same finding, said in one sentence.
    pub(super) fn saying(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    /// The same finding with one more piece of evidence.
    pub(super) fn because(
        mut self,
        file: &str,
        testcase: Option<&str>,
        detail: impl Into<String>,
    ) -> Self {
        self.evidence.push(Evidence {
            file: file.to_owned(),
            testcase: testcase.map(str::to_owned),
            detail: detail.into(),
            class: None,
        });
        self
    }
}

/// Four decimals of what a port carries, and more where that is little.
pub(super) fn fine(value: f64) -> f64 {
    if value.abs() < 1.0 { (value * 1e6).round() / 1e6 } else { round(value) }
}

/// A rate in GB/s as it stands in sentences.
pub(super) fn rate(value: f64) -> String {
    match value.abs() {
        size if 10.0 <= size => format!("{value:.1}"),
        size if 1.0 <= size => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Four decimals: beyond that is noise, and documents stay readable.
pub(super) fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// A part of a domain.
pub(super) fn of_domain(kind: LocusKind, domain: &DomainName) -> Locus {
    Locus { domain: Some(domain.clone()), ..Locus::of(kind) }
}

/// A node.
pub(super) fn of_node(domain: &DomainName, node: &NodeName) -> Locus {
    Locus { node: Some(node.clone()), ..of_domain(LocusKind::Node, domain) }
}

/// A GPU.
pub(super) fn of_gpu(domain: &DomainName, gpu: &GpuId) -> Locus {
    Locus { kind: LocusKind::Gpu, gpu: Some(gpu.gpu), ..of_node(domain, &gpu.node) }
}

/// A share as a percentage with one decimal.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
