//! What the judge says: outcomes, findings, nodes, and what is not known.
//!
//! These types are `verdicts.json` (`fabricgate.verdicts/1`). A finding names
//! its evidence: the measurement, the expectation, the rule, the file, and the
//! smallest degradation this sweep could have seen.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::finding_class::FindingClass;
use super::finding_rule::FindingRule;
use super::id::{DomainName, NodeName};
use super::unit::Unit;
use super::unknown_subject::UnknownSubject;

/// How a part came out. The order is the order of severity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything that had to be measured was, completely, and is as expected.
    Pass,
    /// Not measured, not complete, not verified, or nothing to compare with.
    Unknown,
    /// It works, below what it must deliver.
    Degraded,
    /// It cannot be used as claimed.
    Failed,
}

impl Outcome {
    /// The name used in documents.
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

/// What kind of part a finding is about.
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
    /// One rail.
    Rail,
    /// One leaf switch.
    Leaf,
    /// One switch plane.
    Plane,
    /// A whole domain.
    Domain,
    /// The measurement itself.
    Instrument,
}

impl LocusKind {
    /// The name used in documents.
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

/// Which way the data moved, seen from the part that is blamed.
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
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
            Self::H2d => "h2d",
            Self::D2h => "d2h",
        }
    }
}

/// The part a finding is about. What does not apply is absent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Locus {
    /// What kind of part.
    pub kind: LocusKind,
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Its GPU, by index on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The other end of a pair, as `node` or `node:gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Its rail or NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Its leaf switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The direction, where only one is concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
}

impl Locus {
    /// A part of this kind, nothing else said yet.
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
    /// The file it came from.
    pub file: String,
    /// The test, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub testcase: Option<String>,
    /// What was seen there, in words and numbers.
    pub detail: String,
    /// The class of the finding that it was evidence of, where that explains this one
    /// and is part of it, such as `nvlink-inactive` of an `nvlink-low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FindingClass>,
}

/// One thing that is not as it must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable for the same locus and class, so that runs can be compared.
    pub id: String,
    /// How bad.
    pub outcome: Outcome,
    /// What it is, such as `nvlink-low`.
    pub class: FindingClass,
    /// Whose it is.
    pub locus: Locus,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// What the platform must show here, where its thresholds have a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// The median of its peers, where it was found by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<f64>,
    /// What the part itself showed before, where it was found by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<f64>,
    /// The unit of all of these.
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
    /// Whether a second, independent measurement agreed.
    pub confirmed: bool,
    /// The smallest relative degradation this sweep could have seen here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// It is low and steady, and was so in the first reading already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_first_reading: bool,
    /// The rule that decided.
    #[schemars(with = "String")]
    pub rule: FindingRule,
    /// One sentence for a person.
    pub summary: String,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// A finding with nothing measured, said or cited yet, and not confirmed.
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

    /// The ratio by which it was found, and what it is of.
    pub fn deciding_ratio(&self) -> Option<(f64, RatioReference)> {
        let of = |ratio: Option<f64>, of| ratio.map(|ratio| (ratio, of));
        of(self.ratio_to_peers, RatioReference::Peers)
            .or_else(|| of(self.ratio_to_own, RatioReference::Own))
            .or_else(|| of(self.ratio, RatioReference::Expected))
    }

    /// The same without what it is of.
    pub fn deciding_share(&self) -> Option<f64> {
        self.deciding_ratio().map(|(ratio, _)| ratio)
    }
}

/// What a ratio is of.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RatioReference {
    /// The platform's number.
    Expected,
    /// The median of the peers.
    Peers,
    /// What the part itself showed before.
    Own,
}

impl RatioReference {
    /// What stands before its number.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Peers => "peers' median",
            Self::Own => "own level before",
        }
    }

    /// What a ratio is of, in a sentence.
    pub fn label(self) -> &'static str {
        match self {
            Self::Expected => "what is expected",
            Self::Peers => "the peers' median",
            Self::Own => "its own level before",
        }
    }
}

/// Across which boundaries of its claim a node was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredScope {
    /// Links inside the node were measured.
    pub inside: bool,
    /// The nodes of its NVLink domain that it was measured with, as a host list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The nodes that it was measured with over the scale-out network, as a host list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The rails of the network that it was measured over, where they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<String>,
}

/// One node's verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeVerdict {
    /// The node.
    pub node: NodeName,
    /// Its domain, where one is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// How it came out.
    pub outcome: Outcome,
    /// Why, in one sentence.
    pub reason: String,
    /// The id of the finding that keeps it from passing, where that is about something
    /// larger than the node, or a pair, and nothing is held against the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<String>,
    /// The smallest relative degradation this sweep could have seen here, in every part
    /// that was measured, rails of the scale-out network included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// The smallest loss of all parts together that this sweep could have seen here: the
    /// expectation alone shows what everything compared has lost alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable_together: Option<f64>,
    /// The same inside its domain alone, where a rail could have hidden more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_detectable: Option<f64>,
    /// Across which boundaries it was measured; absent where nothing of it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<MeasuredScope>,
}

/// Something that is not known, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct UnknownEntry {
    /// What is not known.
    #[schemars(with = "String")]
    pub what: UnknownSubject,
    /// Why not.
    pub why: String,
}

/// Everything the judge says about one set of measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdicts {
    /// `fabricgate.verdicts/1`.
    pub format: String,
    /// A simulated fabric answered: no hardware was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The platform, where all parts share one.
    pub platform: Option<String>,
    /// Digest of the expectations in force.
    pub thresholds_digest: String,
    /// The worst of the parts.
    pub outcome: Outcome,
    /// What is not as it must be, worst first.
    pub findings: Vec<Finding>,
    /// Every node, in order of name.
    pub nodes: Vec<NodeVerdict>,
    /// What is not known, and why.
    pub unknown: Vec<UnknownEntry>,
    /// Remarks that change no outcome: single dips, a level above expectation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Verdicts {
    /// This outcome, and nothing that it is of.
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

    /// The findings that name a node, of each such node, worst first.
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

/// The format of `verdicts.json`.
pub const VERDICTS_FORMAT: &str = "fabricgate.verdicts/1";
