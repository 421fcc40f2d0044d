//! The result of the judge: outcomes, findings, verdicts of nodes, and unknowns.
//!
//! These types are `verdicts.json` (`fabricgate.verdicts/1`). A finding names its evidence: the
//! measurement, the expectation, the rule, the file, and the smallest degradation that the sweep
//! would have detected.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::finding_class::FindingClass;
use super::finding_rule::FindingRule;
use super::id::{DomainName, NodeName};
use super::unit::Unit;
use super::unknown_subject::UnknownSubject;

/// The outcome for a part. The order is the order of severity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every required measurement is complete and meets its expectation.
    Pass,
    /// Not measured, incomplete, unverified, or without a reference.
    Unknown,
    /// It works, but below its expectation.
    Degraded,
    /// It is not usable as claimed.
    Failed,
}

impl Outcome {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The kind of part that a finding is about.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LocusKind {
    /// One GPU, both directions.
    Gpu,
    /// One node.
    Node,
    /// Two GPUs (or nodes) that are slow only with each other.
    Pair,
    /// One direction of one GPU.
    Direction,
    /// A compute tray of a rack-scale domain.
    Tray,
    /// One rail of the scale-out network.
    Rail,
    /// One leaf switch.
    Leaf,
    /// One NVLink switch plane.
    Plane,
    /// A whole domain.
    Domain,
    /// The measurement itself.
    Instrument,
}

impl LocusKind {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Node => "node",
            Self::Pair => "pair",
            Self::Direction => "direction",
            Self::Tray => "tray",
            Self::Rail => "rail",
            Self::Leaf => "leaf",
            Self::Plane => "plane",
            Self::Domain => "domain",
            Self::Instrument => "instrument",
        }
    }
}

/// The direction of the data, seen from the faulty part.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Out of the GPU, over the fabric.
    Tx,
    /// Into the GPU, over the fabric.
    Rx,
    /// From host memory to the GPU.
    H2d,
    /// From the GPU to host memory.
    D2h,
}

impl Direction {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
            Self::H2d => "h2d",
            Self::D2h => "d2h",
        }
    }
}

/// The part that a finding is about. Fields that do not apply are absent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Locus {
    /// Kind of the part.
    pub kind: LocusKind,
    /// Its claimed domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Name of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// GPU index on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The other end of a pair, as `node` or `node:gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Name of its rail or NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Name of its leaf switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The affected direction, where it is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
}

impl Locus {
    /// A part of this kind, with no other field set.
    pub fn new(kind: LocusKind) -> Self {
        Self {
            kind,
            domain: None,
            node: None,
            gpu: None,
            peer: None,
            rail: None,
            leaf: None,
            direction: None,
        }
    }
}

impl fmt::Display for Locus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.as_str())?;
        match (&self.node, self.gpu) {
            (Some(node), Some(gpu)) => write!(f, " {node}:{gpu}")?,
            (Some(node), None) => write!(f, " {node}")?,
            (None, _) if self.leaf.is_some() => {
                write!(f, " {}", self.leaf.as_deref().unwrap_or_default())?;
            }
            (None, _) => {
                if let Some(domain) = &self.domain {
                    write!(f, " {domain}")?;
                }
            }
        }
        if let Some(peer) = &self.peer {
            write!(f, " - {peer}")?;
        }
        if let Some(rail) = &self.rail {
            write!(f, " rail {rail}")?;
        }
        if let Some(direction) = self.direction {
            write!(f, " {}", direction.as_str())?;
        }
        Ok(())
    }
}

/// One piece of evidence behind a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The file with the evidence.
    pub file: String,
    /// Name of the test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub testcase: Option<String>,
    /// The observation, with its numbers.
    pub detail: String,
    /// The class of another finding that explains this one and was merged into it, such as
    /// `nvlink-inactive` into an `nvlink-low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FindingClass>,
}

/// One fault or doubt, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable for the same locus and class, so that runs are comparable.
    pub id: String,
    /// Severity of the finding.
    pub outcome: Outcome,
    /// Class of the finding, such as `nvlink-low`.
    pub class: FindingClass,
    /// The affected part.
    pub locus: Locus,
    /// The measured value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The platform's expectation, where its thresholds contain one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// The median of its peers, where they are the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<f64>,
    /// The earlier level of the part, where it is the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<f64>,
    /// The unit of these values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// measured / expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// measured / peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_peers: Option<f64>,
    /// measured / own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_own: Option<f64>,
    /// Whether a second, independent measurement confirmed it.
    pub confirmed: bool,
    /// The smallest relative degradation that this sweep would have detected here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// The value is low and steady since the first reading.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_first_reading: bool,
    /// The rule that decided.
    #[schemars(with = "String")]
    pub rule: FindingRule,
    /// The finding in one sentence.
    pub summary: String,
    /// The evidence behind the finding.
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// An unconfirmed finding without numbers, summary and evidence.
    pub fn new(id: impl Into<String>, outcome: Outcome, class: FindingClass, locus: Locus) -> Self {
        Self {
            id: id.into(),
            outcome,
            class,
            locus,
            measured: None,
            expected: None,
            peers: None,
            own: None,
            unit: None,
            ratio: None,
            ratio_to_peers: None,
            ratio_to_own: None,
            confirmed: false,
            detectable: None,
            from_first_reading: false,
            rule: FindingRule::default(),
            summary: String::new(),
            evidence: Vec::new(),
        }
    }

    /// The ratio that decided the finding, and its reference.
    pub fn deciding_ratio(&self) -> Option<(f64, RatioReference)> {
        let of = |ratio: Option<f64>, of| ratio.map(|ratio| (ratio, of));
        of(self.ratio_to_peers, RatioReference::Peers)
            .or_else(|| of(self.ratio_to_own, RatioReference::Own))
            .or_else(|| of(self.ratio, RatioReference::Expected))
    }

    /// The ratio that decided the finding, without its reference.
    pub fn deciding_share(&self) -> Option<f64> {
        self.deciding_ratio().map(|(ratio, _)| ratio)
    }
}

/// The reference of a ratio.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RatioReference {
    /// The expectation of the platform.
    Expected,
    /// The median of the peers.
    Peers,
    /// The earlier level of the same part.
    Own,
}

impl RatioReference {
    /// The label in front of the reference value.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Peers => "peers' median",
            Self::Own => "own earlier level",
        }
    }

    /// The reference of a ratio, within a sentence.
    pub fn label(self) -> &'static str {
        match self {
            Self::Expected => "the expectation",
            Self::Peers => "the peers' median",
            Self::Own => "its own earlier level",
        }
    }
}

/// The claimed boundaries across which a node was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredScope {
    /// Links inside the node were measured.
    pub inside: bool,
    /// Nodes of its NVLink domain that were measured with it, as a host list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Nodes that were measured with it over the scale-out network, as a host list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Named rails over which it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<String>,
}

/// The verdict of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeVerdict {
    /// Name of the node.
    pub node: NodeName,
    /// Its claimed domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Outcome of the node.
    pub outcome: Outcome,
    /// The reason for the outcome, in one sentence.
    pub reason: String,
    /// Id of the finding that keeps the node from passing, where it concerns a pair or something
    /// larger than the node, and the node itself has no finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<String>,
    /// The smallest relative degradation that this sweep would have detected here, over every
    /// measured part, rails of the scale-out network included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// The smallest common loss of all parts that this sweep would have detected here: only the
    /// expectation reveals a loss that all compared parts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable_together: Option<f64>,
    /// The same within the domain only, where the limit of a rail is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_detectable: Option<f64>,
    /// The boundaries across which it was measured; absent if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<MeasuredScope>,
}

/// An unknown, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct UnknownEntry {
    /// The subject.
    #[schemars(with = "String")]
    pub what: UnknownSubject,
    /// The reason.
    pub why: String,
}

/// All results of the judge for one set of measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdicts {
    /// `fabricgate.verdicts/1`.
    pub format: String,
    /// The measurements come from a simulated fabric, not from hardware.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The platform, where all parts have the same.
    pub platform: Option<String>,
    /// Digest of the expectations used.
    pub thresholds_digest: String,
    /// The worst outcome of the parts.
    pub outcome: Outcome,
    /// All findings, worst first.
    pub findings: Vec<Finding>,
    /// Every node, in order of name.
    pub nodes: Vec<NodeVerdict>,
    /// All unknowns, with the reasons.
    pub unknown: Vec<UnknownEntry>,
    /// Remarks that do not change an outcome: single dips, a level above expectation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Verdicts {
    /// Verdicts with only an outcome.
    pub fn empty(outcome: Outcome) -> Self {
        Self {
            format: VERDICTS_FORMAT.to_owned(),
            simulated: false,
            platform: None,
            thresholds_digest: String::new(),
            outcome,
            findings: Vec::new(),
            nodes: Vec::new(),
            unknown: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The findings of each affected node, worst first.
    pub fn findings_by_node(&self) -> BTreeMap<&NodeName, Vec<&Finding>> {
        let mut named: BTreeMap<&NodeName, Vec<&Finding>> = BTreeMap::new();
        for finding in &self.findings {
            if let Some(node) = &finding.locus.node {
                named.entry(node).or_default().push(finding);
            }
        }
        named
    }
}

/// Format name in `verdicts.json`.
pub const VERDICTS_FORMAT: &str = "fabricgate.verdicts/1";
