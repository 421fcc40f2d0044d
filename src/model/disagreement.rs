//! Where two sources contradict each other, or one contradicts itself.
//!
//! Types only. They are found by `inventory::reconcile`; what was measured is
//! held against claims by the judge.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disagreement_class::DisagreementClass;
use super::id::{DomainName, NodeName};
use super::source_report::{ClaimBasis, ClaimSource};

/// One contradiction, with both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disagreement {
    /// What kind, such as `block-against-clique`.
    pub class: DisagreementClass,
    /// How bad.
    pub severity: DisagreementSeverity,
    /// The domain it is about, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The nodes it is about, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// Who says what; one side where a source contradicts itself.
    pub sides: Vec<DisagreementSide>,
    /// One sentence for a person.
    pub summary: String,
    /// What to look at or do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Disagreement {
    /// The same, about this domain.
    pub fn in_domain(mut self, domain: &DomainName) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// The same, about these nodes too.
    pub fn with_nodes<'n>(mut self, nodes: impl IntoIterator<Item = &'n NodeName>) -> Self {
        self.nodes.extend(nodes.into_iter().cloned());
        self.nodes.sort();
        self.nodes.dedup();
        self
    }

    /// The same, with one more side.
    pub fn with_side(mut self, side: DisagreementSide) -> Self {
        if !self.sides.contains(&side) {
            self.sides.push(side);
        }
        self
    }

    /// The same, with what to look at or do.
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// One side of a contradiction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisagreementSide {
    /// Who.
    pub source: ClaimSource,
    /// Where there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How it knows.
    pub basis: ClaimBasis,
    /// What it says.
    pub says: String,
}

/// How bad a contradiction is. The order is the order of severity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DisagreementSeverity {
    /// Worth knowing; nobody need be wrong.
    Note,
    /// Somebody is probably wrong, or a claim cannot be checked.
    Doubt,
    /// They cannot both be right.
    Contradiction,
}

impl DisagreementSeverity {
    /// Its name in documents.
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
