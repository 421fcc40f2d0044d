//! The result of a burn-in: complete sweeps repeated under load, the first compared with the
//! last, and whether each node is accepted (`fabricgate.acceptance/1`).
//!
//! Plain values for the acceptance file. `judge::endurance` fills them in and a report renders
//! them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::certificate::TestMinimum;
use super::comparison::{PartComparison, RunComparison};
use super::id::{DomainName, NodeName};
use super::signature::Signature;
use super::verdict::Outcome;

/// Format name in `acceptance.json`.
pub const ACCEPTANCE_FORMAT: &str = "fabricgate.acceptance/1";

/// Whether a node or a whole burn-in is accepted. The order is the order of severity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AcceptanceOutcome {
    /// Every requested round was measured and met the expectation from first to last.
    Pass,
    /// Undecided: too little was measured, or the node got slower under load.
    Unknown,
    /// A measurement is below the expectation or shows a fault.
    Fail,
}

impl AcceptanceOutcome {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Unknown => "unknown",
            Self::Fail => "fail",
        }
    }

    /// The acceptance that follows from the verdict of one round.
    pub fn from_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Pass => Self::Pass,
            Outcome::Unknown => Self::Unknown,
            Outcome::Degraded | Outcome::Failed => Self::Fail,
        }
    }
}

/// Progress of a burn-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BurnInState {
    /// Still running, or killed without a chance to record its end.
    Running,
    /// Interrupted; it can be resumed.
    Partial,
    /// Ended by a stop rule.
    Complete,
}

/// Why the burn-in started no further round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StopRule {
    /// The requested number of rounds is complete.
    Rounds,
    /// The requested hours have passed.
    Hours,
    /// The requested number of consecutive clean rounds is complete.
    CleanRounds,
    /// The next round does not fit into the remaining hours.
    Budget,
    /// Wrong data, a lost GPU or an unusable node: continuing is pointless or harmful.
    HardFault,
    /// A GPU throttles because of its temperature.
    TooHot,
    /// The measurement is in doubt, or many nodes have a common cause.
    Frozen,
    /// The node stopped responding.
    Lost,
    /// The node rebooted, between two rounds or during one.
    Rebooted,
    /// The node has other GPUs than in the round before.
    OtherMachine,
    /// The operator interrupted it.
    Interrupted,
}

impl StopRule {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rounds => "rounds",
            Self::Hours => "hours",
            Self::CleanRounds => "clean_rounds",
            Self::Budget => "budget",
            Self::HardFault => "hard_fault",
            Self::TooHot => "too_hot",
            Self::Frozen => "frozen",
            Self::Lost => "lost",
            Self::Rebooted => "rebooted",
            Self::OtherMachine => "other_machine",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What ended the burn-in, or removed a node from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BurnInStop {
    /// The rule that applied.
    pub rule: StopRule,
    /// The last complete round, from 1; 0 is before the first.
    pub after_round: u32,
    /// The reason, in one sentence.
    pub why: String,
}

/// The requested limits and settings of a burn-in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BurnInRequest {
    /// Number of rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// Duration in hours, where no number of rounds is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<f64>,
    /// Upper limit for the whole burn-in, in hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_hours: Option<f64>,
    /// Consecutive clean rounds after which the burn-in ends early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_rounds: Option<u32>,
    /// Minutes of load between rounds.
    pub soak_minutes: f64,
    /// A part that lost more than this share from the first round to the last is not accepted
    /// automatically: an operator has to decide.
    pub drift: f64,
    /// Seed of the first round; each further round adds one.
    pub seed: u64,
}

/// The result of one node in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRound {
    /// The measured node.
    pub node: NodeName,
    /// Its verdict in this round.
    pub outcome: Outcome,
    /// The reason for the verdict, in one sentence.
    pub reason: String,
    /// Boot id of the node during the round, where its worker reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// UUIDs of its GPUs in order of index, where its worker reported them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// The node rebooted during the round: its worker reported two boot ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebooted: bool,
}

/// One complete sweep of a burn-in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BurnInRound {
    /// Number of the round, from 1.
    pub round: u32,
    /// Id of its run.
    pub run: String,
    /// Seed of its plan.
    pub seed: u64,
    /// Start time, RFC 3339.
    pub began: String,
    /// End time, RFC 3339; absent while the round runs, or when it was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Minutes of work, without the pause between an interruption and the resumption.
    #[serde(default)]
    pub minutes: f64,
    /// Verdict of the round; absent until the round ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Minutes of load before the round.
    #[serde(default)]
    pub soaked_minutes: f64,
    /// The round was repeated without the nodes that were lost in it. A node that is only unknown
    /// here is not judged by this round.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set_aside: bool,
    /// Digest of the claims in this round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_digest: Option<String>,
    /// Digest of the expectations in this round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds_digest: Option<String>,
    /// Every node that took part, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeRound>,
}

/// A period of load between two rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SoakRecord {
    /// The round before it.
    pub after_round: u32,
    /// Start time, RFC 3339.
    pub began: String,
    /// Minutes for which load actually ran.
    pub minutes: f64,
    /// How often each probe ran on each node.
    pub passes: u32,
    /// The probes that made the load.
    pub probes: Vec<String>,
    /// Simulated nodes do not heat up over time: one pass stands for the requested minutes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// Nodes on which no load probe completed, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_on: BTreeMap<NodeName, String>,
    /// Faults found under load, by node: wrong data, errors, lost GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<NodeName, String>,
}

/// The acceptance of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeAcceptance {
    /// The judged node.
    pub node: NodeName,
    /// Its claimed NVLink domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The decision for this node.
    pub accepted: AcceptanceOutcome,
    /// The reason for the decision, in one sentence.
    pub reason: String,
    /// Rounds that count: those since the machine last changed, without the repeated ones.
    pub rounds: u32,
    /// How many of the counted rounds it passed.
    pub passed: u32,
    /// The round after which the count restarted, and why: earlier rounds prove nothing about the
    /// present machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anew: Option<BurnInStop>,
    /// Why the node left the burn-in early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<BurnInStop>,
    /// The lowest value over all rounds, by test.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub minima: Vec<TestMinimum>,
    /// The smallest degradation that every round would have detected, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// The part of the node that lost most from the first round to the last, where the loss
    /// exceeds the noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<PartComparison>,
}

/// The document of a burn-in (`fabricgate.acceptance/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Acceptance {
    /// `fabricgate.acceptance/1`.
    pub format: String,
    /// Id of the burn-in, in the form of a run id.
    pub id: String,
    /// Start time, RFC 3339.
    pub created: String,
    /// End time, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Progress of the burn-in.
    pub state: BurnInState,
    /// True if real nodes were measured: neither simulated nor read from a stored run.
    pub real: bool,
    /// Where the measurements come from, for readers.
    pub source: String,
    /// Version of fabricgate that wrote it.
    pub version: String,
    /// The requested limits and settings.
    pub asked: BurnInRequest,
    /// The worst decision of all nodes.
    pub accepted: AcceptanceOutcome,
    /// The rule that ended the burn-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<BurnInStop>,
    /// All rounds, in order.
    pub rounds: Vec<BurnInRound>,
    /// The load between the rounds, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub soaks: Vec<SoakRecord>,
    /// Every node, in order of name.
    pub nodes: Vec<NodeAcceptance>,
    /// The first round compared with the last, without nodes whose count restarted in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<RunComparison>,
    /// For nodes whose count restarted: their first counted round compared with the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub since_anew: Vec<RunComparison>,
    /// Versions of drivers and tools by name, every version that an output named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, Vec<String>>,
    /// Digest of the expectations; that of the last round, where they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds_digest: Option<String>,
    /// Remarks for the reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Signature over the document without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}
