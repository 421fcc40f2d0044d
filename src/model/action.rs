//! What should be done about verdicts: a plan that a person reads first, and
//! what became of it.
//!
//! A plan is a value. Nothing in this file, or in whoever makes a plan,
//! changes a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::finding_class::FindingClass;
use super::id::{DomainName, NodeName};
use super::kubernetes_node::GpuCordon;
use super::verdict::{Outcome, RatioReference};

/// What is proposed for one node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Let running jobs end, start no new ones.
    Drain,
    /// Leave it in service and say on it that it is below what it must deliver.
    Relabel,
    /// Give back a node that we drained ourselves.
    Release,
    /// Say on it that it passed, and until when that counts.
    Certify,
}

/// What is said on a node: in its features and its field for programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct VerdictMark {
    /// The verdict.
    pub outcome: Outcome,
    /// The class of the worst finding, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FindingClass>,
    /// The run that says so.
    pub run: String,
    /// When that run was made, RFC 3339.
    pub at: String,
    /// Until when it counts, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The domain in which it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The boot in which it was measured, as its kernel names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// One proposed action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// What to do.
    pub kind: ActionKind,
    /// To which node.
    pub node: NodeName,
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Its leaf switch, which has a budget of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The command that would do it, argument by argument.
    pub command: Vec<String>,
    /// The reason that is written beside a drain; empty for other actions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What is said on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<VerdictMark>,
    /// The one GPU that an earlier version took out instead of the whole node (Kubernetes). Read
    /// from its journals and plans; no action has one any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<GpuCordon>,
    /// The findings it rests on.
    pub findings: Vec<String>,
    /// What the worst of them measured, as a share of what it was found by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// What that is a share of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of: Option<RatioReference>,
    /// Schedulable nodes that it costs, where that was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Why, in one sentence.
    pub why: String,
}

impl Action {
    /// An action of which nothing more is said yet.
    pub fn new(kind: ActionKind, node: impl Into<NodeName>) -> Self {
        Self {
            kind,
            node: node.into(),
            domain: None,
            leaf: None,
            command: Vec::new(),
            reason: String::new(),
            mark: None,
            device: None,
            findings: Vec::new(),
            ratio: None,
            ratio_of: None,
            price: None,
            why: String::new(),
        }
    }
}

/// Something that could have been proposed and was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WithheldAction {
    /// The finding or node.
    pub what: String,
    /// Why nothing is proposed for it.
    pub why: String,
    /// It would be done, and a budget, a freeze or the breaker forbids it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub budget: bool,
    /// It would be drained, and another run has to say the same first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<PendingConfirmation>,
    /// No second, independent measurement has confirmed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

impl WithheldAction {
    /// Something that is not proposed, for a reason that is not a budget.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), budget: false, again: None, unconfirmed: false }
    }
}

/// What another run has to say again before a node is drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PendingConfirmation {
    /// The run that said so first. It may be the one at hand.
    pub first: String,
    /// Classes of findings, one of which has to be found again.
    pub classes: Vec<FindingClass>,
    /// A run that was made from then on counts, RFC 3339.
    pub from: String,
}

/// How an action that was begun ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ActionResult {
    /// The scheduler shows it.
    Done,
    /// It was so already; nothing was written.
    Already,
    /// Somebody else changed the node in the meantime; it is left to them.
    Superseded,
    /// The precondition no longer held; nothing was written.
    Refused,
    /// The scheduler did not do it.
    Failed,
    /// Nobody can tell yet whether it was done; the next run looks again.
    Unknown,
}

/// What became of one action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionRecord {
    /// Which.
    pub kind: ActionKind,
    /// On which node.
    pub node: NodeName,
    /// How it ended.
    pub result: ActionResult,
    /// What the scheduler showed or said.
    pub detail: String,
    /// When, RFC 3339.
    pub at: String,
}

/// Everything proposed for one set of verdicts (`fabricgate.actions/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActionPlan {
    /// `fabricgate.actions/1`.
    pub format: String,
    /// Nothing is carried out.
    pub dry_run: bool,
    /// A simulated fabric answered: no hardware was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// What stops all drains and relabels, where something does: a tripped
    /// breaker, a common cause, an instrument in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<String>,
    /// What is proposed, in order of node.
    pub actions: Vec<Action>,
    /// What is not, and why.
    pub withheld: Vec<WithheldAction>,
    /// What became of it, where it was carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<ActionRecord>,
}

impl ActionPlan {
    /// These actions, shown and not carried out, and nothing beside them.
    pub fn from_actions(actions: Vec<Action>) -> Self {
        Self {
            format: ACTIONS_FORMAT.to_owned(),
            dry_run: true,
            simulated: false,
            frozen: None,
            actions,
            withheld: Vec::new(),
            records: Vec::new(),
        }
    }
}

/// The format of `actions.json`.
pub const ACTIONS_FORMAT: &str = "fabricgate.actions/1";
