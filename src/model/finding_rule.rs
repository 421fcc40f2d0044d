//! The rule that decided a finding: its kind, and its terms as text.
//!
//! Documents carry the text. One table of prefixes parses a stored text; a rule of another
//! version with an unknown prefix is kept as it is.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kind of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// A job's assumption about its domain.
    Belief,
    /// A level above what the links can carry.
    Ceiling,
    /// Sources that contradict each other.
    Claims,
    /// ClusterUUID and CliqueId against the claim.
    Clique,
    /// The bus bandwidth of a collective against the expectation.
    Collective,
    /// Parts that are low alike.
    CommonCause,
    /// Wrong data after a transfer.
    Data,
    /// A hardware test of dcgmi.
    Diagnostic,
    /// A part is low with most of its partners.
    Endpoint,
    /// An error that the libraries of the GPU report.
    Error,
    /// Registration and health of the fabric as the driver reports them.
    FabricState,
    /// A rate below the floor of the platform.
    Floor,
    /// Copies between host memory and a GPU.
    HostCopy,
    /// The state of the IMEX domain.
    Imex,
    /// GPUs that a complete output does not list.
    Inventory,
    /// The level between leaves against the level inside them.
    Leaf,
    /// The level of a node or domain over NVLink.
    Level,
    /// NVLinks that the driver reports inactive or slow.
    Links,
    /// Nodes that do not reach each other at NVLink speed.
    Membership,
    /// The level of a rail, or of the network, against the expectation.
    NetworkLevel,
    /// One NIC, measured in isolation.
    Nic,
    /// GPUs of one node that do not reach each other.
    NoPath,
    /// A second measurement did not confirm it.
    NotConfirmed,
    /// What earlier runs of the same part showed.
    OwnHistory,
    /// Two GPUs are low only with each other.
    Pair,
    /// Two nodes are low only with each other, or a collective takes another path.
    Path,
    /// The level of a rail against the other rails.
    Rails,
    /// Pairs of nodes without a connection.
    Reach,
    /// A collective against the copies between its members.
    SecondInstrument,
    /// One tool against another tool.
    SecondTool,
    /// Readings with a large spread.
    Spread,
    /// A slow pair that identifies neither end as the cause.
    Suspicion,
    /// Readings that decline over time.
    Trend,
    /// A rule of another version, or no rule.
    #[default]
    Other,
}

/// The prefix of each kind's text; a prefix that contains another one precedes it.
const PREFIXES: [(RuleKind, &str); 33] = [
    (RuleKind::Belief, "belief: "),
    (RuleKind::Ceiling, "ceiling: "),
    (RuleKind::Claims, "claims: "),
    (RuleKind::Clique, "clique: "),
    (RuleKind::Collective, "collective: "),
    (RuleKind::CommonCause, "common cause: "),
    (RuleKind::Data, "data: "),
    (RuleKind::Diagnostic, "diagnostic: "),
    (RuleKind::Endpoint, "endpoint: "),
    (RuleKind::Error, "error: "),
    (RuleKind::FabricState, "fabric: "),
    (RuleKind::Floor, "floor: "),
    (RuleKind::HostCopy, "host copy: "),
    (RuleKind::Imex, "imex: "),
    (RuleKind::Inventory, "inventory: "),
    (RuleKind::Leaf, "leaf: "),
    (RuleKind::Level, "level: the median of all pairs against "),
    (RuleKind::NetworkLevel, "level: "),
    (RuleKind::Links, "links: "),
    (RuleKind::Membership, "membership: "),
    (RuleKind::Nic, "nic: "),
    (RuleKind::NoPath, "no-path: "),
    (RuleKind::NotConfirmed, "not confirmed by "),
    (RuleKind::OwnHistory, "own history: "),
    (RuleKind::Pair, "pair: "),
    (RuleKind::Path, "path: "),
    (RuleKind::Rails, "rails: "),
    (RuleKind::Reach, "reach: "),
    (RuleKind::SecondInstrument, "second instrument: "),
    (RuleKind::SecondTool, "second tool: "),
    (RuleKind::Spread, "spread: "),
    (RuleKind::Suspicion, "suspicion: "),
    (RuleKind::Trend, "trend: "),
];

/// The suffix for a finding that the history of the part confirms.
const HISTORY_SUFFIX: &str = "; its own history agrees";

impl RuleKind {
    fn prefix(self) -> &'static str {
        PREFIXES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, text)| text)
    }

    /// A rule of this kind with these terms.
    pub fn with_terms(self, terms: impl Into<Cow<'static, str>>) -> FindingRule {
        FindingRule { kind: self, terms: terms.into(), history_agrees: false }
    }
}

/// The rule that decided a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindingRule {
    /// The kind of the rule.
    pub kind: RuleKind,
    /// Its terms as text, without the prefix of its kind.
    pub terms: Cow<'static, str>,
    /// The earlier measurements of the part confirm it.
    pub history_agrees: bool,
}

impl FindingRule {
    /// A rule with constant terms.
    pub const fn fixed(kind: RuleKind, terms: &'static str) -> Self {
        Self { kind, terms: Cow::Borrowed(terms), history_agrees: false }
    }

    /// Parses a stored text.
    pub fn parse(text: &str) -> Self {
        let (text, history_agrees) =
            text.strip_suffix(HISTORY_SUFFIX).map_or((text, false), |text| (text, true));
        let known =
            PREFIXES.iter().find_map(|(kind, start)| Some((*kind, text.strip_prefix(start)?)));
        let (kind, terms) = known.unwrap_or((RuleKind::Other, text));
        Self { kind, terms: Cow::Owned(terms.to_owned()), history_agrees }
    }
}

impl From<&FindingRule> for FindingRule {
    fn from(rule: &FindingRule) -> Self {
        rule.clone()
    }
}

impl fmt::Display for FindingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.history_agrees { HISTORY_SUFFIX } else { "" };
        write!(f, "{}{}{end}", self.kind.prefix(), self.terms)
    }
}

impl Serialize for FindingRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FindingRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_back_as_the_kind_that_it_was_written_as() {
        for (kind, _) in PREFIXES {
            for history_agrees in [false, true] {
                let rule =
                    FindingRule { history_agrees, ..kind.with_terms("more than 2 %; of x: y") };
                let text = serde_json::to_string(&rule).expect("a text");
                assert_eq!(
                    serde_json::from_str::<FindingRule>(&text).expect("a rule"),
                    rule,
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn the_rule_of_another_version_is_kept() {
        for text in ["", "endpoint", "weighed: by 3", "weighed; its own history agrees"] {
            let rule = FindingRule::parse(text);
            assert_eq!((rule.kind, rule.to_string().as_str()), (RuleKind::Other, text));
        }
    }
}
