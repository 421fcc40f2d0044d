//! What should be done about verdicts: a plan that a person reads first.
//!
//! A plan is a value. Nothing in this file, or in whoever makes a plan,
//! changes a cluster.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::id::NodeName;

/// What is proposed for one node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Let running jobs end, start no new ones.
    Drain,
}

/// One proposed action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// What to do.
    pub kind: ActionKind,
    /// To which node.
    pub node: NodeName,
    /// The command that would do it, argument by argument.
    pub command: Vec<String>,
    /// The findings it rests on.
    pub findings: Vec<String>,
    /// Why, in one sentence.
    pub why: String,
}

/// Something that could have been proposed and was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Withheld {
    /// The finding or node.
    pub what: String,
    /// Why nothing is proposed for it.
    pub why: String,
}

/// Everything proposed for one set of verdicts (`fabricgate.actions/1`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionPlan {
    /// `fabricgate.actions/1`.
    pub format: String,
    /// Nothing is carried out.
    pub dry_run: bool,
    /// What is proposed, in order of node.
    pub actions: Vec<Action>,
    /// What is not, and why.
    pub withheld: Vec<Withheld>,
}

/// The format of `actions.json`.
pub const ACTIONS_FORMAT: &str = "fabricgate.actions/1";
