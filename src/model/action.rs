//! The proposed reaction to verdicts: a plan for an operator to review, and the result of
//! carrying it out.
//!
//! A plan is a value. Neither this file nor the planner changes a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::finding_class::FindingClass;
use super::id::{DomainName, NodeName};
use super::kubernetes_node::GpuCordon;
use super::verdict::{Outcome, RatioReference};

/// The kind of change that is proposed for one node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Let running jobs finish and start no new ones.
    Drain,
    /// Keep the node in service and mark it as degraded.
    Relabel,
    /// Return a node to service that fabricgate drained.
    Release,
    /// Mark the node as passed, with an expiry time.
    Certify,
}

/// The mark on a node: in its features and in its machine-readable field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct VerdictMark {
    /// The verdict it reports.
    pub outcome: Outcome,
    /// The class of the worst finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FindingClass>,
    /// Id of the run with this verdict.
    pub run: String,
    /// Time of that run, RFC 3339.
    pub at: String,
    /// Expiry time, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The NVLink domain in which the node was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Kernel boot id of the node when it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// One proposed action, for one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// The kind of change.
    pub kind: ActionKind,
    /// The node to change.
    pub node: NodeName,
    /// Its claimed NVLink domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Its leaf switch, which has its own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The command that carries it out, one element per argument.
    pub command: Vec<String>,
    /// The drain reason; empty for other actions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The mark that is written on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<VerdictMark>,
    /// The single GPU that an earlier version took out of service instead of the node
    /// (Kubernetes). Read from its journals and plans, and no longer written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<GpuCordon>,
    /// Ids of the findings that justify the action.
    pub findings: Vec<String>,
    /// The measured value of the worst finding, as a share of its reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The reference of that share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of: Option<RatioReference>,
    /// Schedulable nodes that the action costs, where computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// The reason, in one sentence.
    pub why: String,
}

impl Action {
    /// An action with only its kind and node set.
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

/// An action that was considered and is not proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WithheldAction {
    /// The finding or node it is about.
    pub what: String,
    /// Why no action is proposed.
    pub why: String,
    /// The action is due, but a budget, a freeze or the circuit breaker forbids it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub budget: bool,
    /// A drain that waits for confirmation by another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<PendingConfirmation>,
    /// No second, independent measurement has confirmed the finding.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

impl WithheldAction {
    /// A withheld action whose reason is not a budget.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), budget: false, again: None, unconfirmed: false }
    }
}

/// The confirmation that a drain waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PendingConfirmation {
    /// Id of the run with the first finding; it may be the current run.
    pub first: String,
    /// Classes of findings, one of which another run has to find again.
    pub classes: Vec<FindingClass>,
    /// Earliest time of a run that counts as confirmation, RFC 3339.
    pub from: String,
}

/// The result of an action that was started.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ActionResult {
    /// The scheduler reports the new state.
    Done,
    /// The node was already in this state; nothing was written.
    Already,
    /// Another client changed the node in the meantime; its change stays.
    Superseded,
    /// The precondition no longer held; nothing was written.
    Refused,
    /// The scheduler did not carry it out.
    Failed,
    /// Whether it was carried out is not known yet; the next run checks again.
    Unknown,
}

/// The result of one action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionRecord {
    /// The kind of the action.
    pub kind: ActionKind,
    /// The node it was for.
    pub node: NodeName,
    /// The result.
    pub result: ActionResult,
    /// What the scheduler reported.
    pub detail: String,
    /// Time of the result, RFC 3339.
    pub at: String,
}

/// Everything proposed for one set of verdicts (`fabricgate.actions/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActionPlan {
    /// `fabricgate.actions/1`.
    pub format: String,
    /// Whether the plan is only displayed and not carried out.
    pub dry_run: bool,
    /// Whether the measurements come from a simulated fabric instead of hardware.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// Why all drains and relabels are frozen, where they are: a tripped breaker, a common cause,
    /// an instrument in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<String>,
    /// The proposed actions, in order of node.
    pub actions: Vec<Action>,
    /// Actions that are not proposed, with the reasons.
    pub withheld: Vec<WithheldAction>,
    /// The results, where the plan was carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<ActionRecord>,
}

impl ActionPlan {
    /// A dry-run plan of only these actions.
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

/// Format name in `actions.json`.
pub const ACTIONS_FORMAT: &str = "fabricgate.actions/1";
