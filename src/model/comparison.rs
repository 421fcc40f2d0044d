//! Two measurements of the same parts held against each other: before and after a
//! repair, first and last of a burn-in.
//!
//! Plain values; who compares is the judge, who shows is a report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::NodeName;
use super::trend::{FabricPart, RunChange};
use super::unit::Unit;
use super::verdict::Outcome;

/// How a part came out of the second measurement, against the first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonOutcome {
    /// More than the noise of both explains.
    Better,
    /// Within the noise of both.
    Same,
    /// Less than the noise of both explains.
    Worse,
    /// Only the first measurement has it: nothing is known of it now.
    OnlyBefore,
    /// Only the second measurement has it.
    OnlyAfter,
}

/// One part in one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartComparison {
    /// Which part.
    pub part: FabricPart,
    /// The test.
    pub testcase: String,
    /// The unit of values.
    pub unit: Unit,
    /// What the first measurement showed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<f64>,
    /// What the second showed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
    /// What must be there, where a platform says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// The change as a share of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<f64>,
    /// Changes below this share are noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// What that comes to.
    pub difference: ComparisonOutcome,
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunComparison {
    /// Id of the first run.
    pub before: String,
    /// When it was made, RFC 3339.
    pub before_created: String,
    /// Id of the second run.
    pub after: String,
    /// When it was made, RFC 3339.
    pub after_created: String,
    /// By part and test, what changed most first.
    pub parts: Vec<PartComparison>,
}

/// The format of [`Repairs`].
pub const COMPARISON_FORMAT: &str = "fabricgate.comparison/1";

/// What a run shows of nodes that were repaired before (`comparison.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RepairReport {
    /// `fabricgate.comparison/1`.
    pub format: String,
    /// By node, in order of name.
    pub nodes: Vec<NodeRepair>,
    /// Nodes of which no earlier run tells, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<UncomparedNode>,
}

/// What changed on one node since a run before its repair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRepair {
    /// The node.
    pub node: NodeName,
    /// How it came out then.
    pub before: Outcome,
    /// Why, in one sentence.
    pub before_reason: String,
    /// How it comes out now.
    pub after: Outcome,
    /// What the repair changed, in sentences, what matters most first.
    pub says: Vec<String>,
    /// Its hardware, software and place, as far as both runs tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<RunChange>,
    /// Its readings.
    pub comparison: RunComparison,
}

/// A node that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncomparedNode {
    /// The node.
    pub node: NodeName,
    /// Why not.
    pub why: String,
}
