//! Making findings: ids, loci, and the words around numbers.

use std::fmt::Write;

use sha2::Digest;
use sha2::Sha256;

use model::finding_class::FindingClass;
use model::id::DomainName;
use model::id::GpuId;
use model::id::NodeName;
use model::rule::FindingRule;
use model::unit::Unit;
use model::verdict::Evidence;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;
use model::verdict::Outcome;

/// A finding with nothing measured yet. Offline there is no second look, so
/// it is not confirmed.
pub(super) fn finding(
    outcome: Outcome,
    class: FindingClass,
    locus: Locus,
    rule: impl Into<FindingRule>,
) -> Finding {
    Finding { rule: rule.into(), ..Finding::new(id(&class, &locus), outcome, class, locus) }
}

/// The same for the same class and locus, so that runs can be compared.
fn id(class: &FindingClass, locus: &Locus) -> String {
    let domain = locus.domain.as_ref().map_or("", DomainName::as_str);
    let digest = Sha256::digest(format!("{class}\n{domain}\n{locus}"));
    let mut id = String::from("fg-");
    for byte in digest.iter().take(5) {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

impl Finding {
    /// The same finding with a number and what the platform must show; the ratio follows
    /// from them.
    pub(super) fn numbers(mut self, measured: f64, expected: f64, unit: Unit) -> Self {
        self.measured = Some(fine(measured));
        self.expected = Some(fine(expected));
        self.unit = Some(unit);
        self.ratio = ratio(measured, expected);
        self
    }

    /// The same finding with a rate that was held against what others show; `expected` is
    /// what the platform must show there, where that is known.
    pub(super) fn below_peers(mut self, measured: f64, peers: f64, expected: Option<f64>) -> Self {
        self.measured = Some(fine(measured));
        self.unit = Some(Unit::GigabytesPerSecond);
        self.peers = Some(fine(peers));
        self.ratio_to_peers = ratio(measured, peers);
        self.expected = expected.map(fine);
        self.ratio = expected.and_then(|expected| ratio(measured, expected));
        self
    }

    /// The same finding with a rate that was held against one of these.
    pub(super) fn below(self, measured: f64, reference: Reference) -> Self {
        match reference {
            Reference::Expected(value) => self.numbers(measured, value, Unit::GigabytesPerSecond),
            Reference::Peers { level, expected } => self.below_peers(measured, level, expected),
        }
    }

    /// The same finding with a rate that was held against what the part showed before.
    pub(super) fn below_own(mut self, measured: f64, own: f64) -> Self {
        self.measured = Some(fine(measured));
        self.unit = Some(Unit::GigabytesPerSecond);
        self.own = Some(fine(own));
        self.ratio_to_own = ratio(measured, own);
        self
    }

    /// The same finding with the numbers of another one.
    pub(super) fn numbers_of(self, other: &Finding) -> Self {
        Self {
            measured: other.measured,
            expected: other.expected,
            peers: other.peers,
            own: other.own,
            unit: other.unit,
            ratio: other.ratio,
            ratio_to_peers: other.ratio_to_peers,
            ratio_to_own: other.ratio_to_own,
            ..self
        }
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

/// What a rate was held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reference {
    /// What the platform must show.
    Expected(f64),
    /// What others show.
    Peers {
        level: f64,
        /// What the platform must show there, where that is known.
        expected: Option<f64>,
    },
}

impl Reference {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::Expected(value) | Self::Peers { level: value, .. } => value,
        }
    }
}

fn ratio(measured: f64, reference: f64) -> Option<f64> {
    (0.0 < reference).then(|| round(measured / reference))
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
