//! Contradictions between two sources, or within one source.
//!
//! Types only. `inventory::reconcile` finds them; the judge compares claims with measurements.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disagreement_class::DisagreementClass;
use super::id::{DomainName, NodeName};
use super::source_report::{ClaimBasis, ClaimSource};

/// One contradiction, with the statements of both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disagreement {
    /// The class, such as `block-against-clique`.
    pub class: DisagreementClass,
    /// Severity of the contradiction.
    pub severity: DisagreementSeverity,
    /// The affected domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The affected nodes, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// The conflicting statements; one side where a source contradicts itself.
    pub sides: Vec<DisagreementSide>,
    /// The contradiction in one sentence.
    pub summary: String,
    /// What to check or change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Disagreement {
    /// Sets the affected domain.
    pub fn in_domain(mut self, domain: &DomainName) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Adds affected nodes.
    pub fn with_nodes<'n>(mut self, nodes: impl IntoIterator<Item = &'n NodeName>) -> Self {
        self.nodes.extend(nodes.into_iter().cloned());
        self.nodes.sort();
        self.nodes.dedup();
        self
    }

    /// Adds one side.
    pub fn with_side(mut self, side: DisagreementSide) -> Self {
        if !self.sides.contains(&side) {
            self.sides.push(side);
        }
        self
    }

    /// Sets the remedy.
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// One side of a contradiction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisagreementSide {
    /// The source.
    pub source: ClaimSource,
    /// Location within the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Basis of the statement.
    pub basis: ClaimBasis,
    /// The statement itself.
    #[serde(rename = "says")]
    pub text: String,
}

/// Severity of a contradiction. The order is the order of severity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DisagreementSeverity {
    /// Informational: both sides can be right.
    Note,
    /// One side is probably wrong, or a claim cannot be checked.
    Doubt,
    /// At most one side is right.
    Contradiction,
}

impl DisagreementSeverity {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Doubt => "doubt",
            Self::Contradiction => "contradiction",
        }
    }
}

impl fmt::Display for DisagreementSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
