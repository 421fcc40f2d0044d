//! Comparison of two measurements of the same parts: before and after a repair, or first and last
//! round of a burn-in.
//!
//! Plain values: the judge compares, a report renders.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::NodeName;
use super::trend::{FabricPart, RunChange};
use super::unit::Unit;
use super::verdict::Outcome;

/// The result of the second measurement relative to the first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonOutcome {
    /// Better by more than the noise of both.
    Better,
    /// Within the noise of both.
    Same,
    /// Worse by more than the noise of both.
    Worse,
    /// Only the first measurement has it: its present state is unknown.
    OnlyBefore,
    /// Only the second measurement has it.
    OnlyAfter,
}

/// One part in one test, before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartComparison {
    /// The compared part.
    pub part: FabricPart,
    /// Name of the test.
    pub testcase: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Value of the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<f64>,
    /// Value of the second measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    /// The expected value, where the platform has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// The change as a share of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<f64>,
    /// Changes below this share are noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// Result of the comparison.
    pub difference: ComparisonOutcome,
}

/// Two runs, compared part by part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunComparison {
    /// Id of the first run.
    pub before: String,
    /// Time of the first run, RFC 3339.
    pub before_created: String,
    /// Id of the second run.
    pub after: String,
    /// Time of the second run, RFC 3339.
    pub after_created: String,
    /// Comparisons by part and test, largest change first.
    pub parts: Vec<PartComparison>,
}

/// Format name of [`RepairReport`].
pub const COMPARISON_FORMAT: &str = "fabricgate.comparison/1";

/// Comparison of repaired nodes with earlier runs (`comparison.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RepairReport {
    /// `fabricgate.comparison/1`.
    pub format: String,
    /// By node, in order of name.
    pub nodes: Vec<NodeRepair>,
    /// Nodes without an earlier run to compare with, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<UncomparedNode>,
}

/// The changes of one node since a run before its repair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRepair {
    /// The repaired node.
    pub node: NodeName,
    /// Its verdict before the repair.
    pub before: Outcome,
    /// The reason for that verdict, in one sentence.
    pub before_reason: String,
    /// Its verdict now.
    pub after: Outcome,
    /// The effects of the repair in sentences, most important first.
    #[serde(rename = "says")]
    pub text: Vec<String>,
    /// Changes of its hardware, software and location, as far as both runs report them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<RunChange>,
    /// The comparison of its readings.
    pub comparison: RunComparison,
}

/// A node that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncomparedNode {
    /// Name of the node.
    pub node: NodeName,
    /// The reason.
    pub why: String,
}
