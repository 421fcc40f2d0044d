//! What a burn-in came to: complete sweeps repeated under load, first against
//! last, and whether each node may be accepted (`fabricgate.acceptance/1`).
//!
//! Plain values, for the acceptance file. `judge::endurance` fills them in, a
//! report shows them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::certificate::TestMinimum;
use super::comparison::{PartComparison, RunComparison};
use super::id::{DomainName, NodeName};
use super::signature::Signature;
use super::verdict::Outcome;

/// The format of `acceptance.json`.
pub const ACCEPTANCE_FORMAT: &str = "fabricgate.acceptance/1";

/// Whether something is accepted. The order is the order of severity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AcceptanceOutcome {
    /// All that was asked for was measured, and is as expected from the first
    /// round to the last.
    Pass,
    /// Nobody can say yet: too little was measured, or it got slower under load.
    Unknown,
    /// It is not as it must be.
    Fail,
}

impl AcceptanceOutcome {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Unknown => "unknown",
            Self::Fail => "fail",
        }
    }

    /// What a verdict of one round comes to.
    pub fn from_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Pass => Self::Pass,
            Outcome::Unknown => Self::Unknown,
            Outcome::Degraded | Outcome::Failed => Self::Fail,
        }
    }
}

/// How far a burn-in came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BurnInState {
    /// It is under way, or was ended without notice.
    Running,
    /// It was interrupted and can be gone on with.
    Partial,
    /// A stop rule ended it.
    Complete,
}

/// Why no further round was begun.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StopRule {
    /// As many rounds as asked for were held.
    Rounds,
    /// The hours asked for are over.
    Hours,
    /// As many rounds in a row as asked for were clean.
    CleanRounds,
    /// The next round would not fit into the hours there are.
    Budget,
    /// Wrong data, a GPU that is gone, a node that cannot be used: going on with
    /// it is pointless or does harm.
    HardFault,
    /// A GPU is held back by its temperature.
    TooHot,
    /// The measurement or something common to many is in doubt.
    Frozen,
    /// The node could not be reached any more.
    Lost,
    /// The node booted, between two rounds or in the midst of one.
    Rebooted,
    /// It has other GPUs than in the round before.
    OtherMachine,
    /// A person ended it.
    Interrupted,
}

impl StopRule {
    /// The name used in documents.
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

/// What ended it, or took a node out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BurnInStop {
    /// The rule.
    pub rule: StopRule,
    /// After which round, from 1; 0 is before the first.
    pub after_round: u32,
    /// Why, in one sentence.
    pub why: String,
}

/// What a burn-in was asked to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BurnInRequest {
    /// Rounds to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// Hours to go on for, where no number of rounds is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<f64>,
    /// Hours that it may take in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_hours: Option<f64>,
    /// Rounds in a row after which it may end early when all of them are clean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_rounds: Option<u32>,
    /// Minutes of load between rounds.
    pub soak_minutes: f64,
    /// A part that lost more than this share from the first round to the last is
    /// not accepted without a person's word.
    pub drift: f64,
    /// Seed of the first round; every further one has the next.
    pub seed: u64,
}

/// One node in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRound {
    /// The node.
    pub node: NodeName,
    /// How it came out.
    pub outcome: Outcome,
    /// Why, in one sentence.
    pub reason: String,
    /// The boot it was measured in, where its worker told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// UUIDs of its GPUs, in order of index, where its worker told them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// It booted while it was measured: its worker told two boots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebooted: bool,
}

/// One complete sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BurnInRound {
    /// Its number, from 1.
    pub round: u32,
    /// Its run.
    pub run: String,
    /// The seed of its plan.
    pub seed: u64,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it ended; absent while it is under way, or where it was ended without
    /// notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Minutes that it was at work, without those between an interruption and
    /// being gone on with.
    #[serde(default)]
    pub minutes: f64,
    /// Its verdict; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Minutes of load before it.
    #[serde(default)]
    pub soaked_minutes: f64,
    /// It was held again without the nodes that were lost in it: where a node is
    /// only unknown here, that says nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set_aside: bool,
    /// Digest of the claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_digest: Option<String>,
    /// Digest of the expectations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds_digest: Option<String>,
    /// Every node that took part, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeRound>,
}

/// Load between two rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SoakRecord {
    /// The round it followed.
    pub after_round: u32,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// Minutes that load really ran.
    pub minutes: f64,
    /// How often every probe was run on every node.
    pub passes: u32,
    /// The probes.
    pub probes: Vec<String>,
    /// Simulated nodes do not heat up with time: one pass stood for the minutes
    /// that were asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// Nodes on which nothing of it ran to its end, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_on: BTreeMap<NodeName, String>,
    /// What was found meanwhile, by node: wrong data, errors, GPUs that are gone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<NodeName, String>,
}

/// What a burn-in says of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeAcceptance {
    /// The node.
    pub node: NodeName,
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Whether it is accepted.
    pub accepted: AcceptanceOutcome,
    /// Why, in one sentence.
    pub reason: String,
    /// Rounds that count for it: those since it was last another machine, without
    /// those that were set aside.
    pub rounds: u32,
    /// Those of them that it passed.
    pub passed: u32,
    /// After which round it began anew, and why: what it was before proves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anew: Option<BurnInStop>,
    /// What took it out before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<BurnInStop>,
    /// The least that was measured in any round, by test.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub minima: Vec<TestMinimum>,
    /// The smallest degradation that every round would have seen, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
    /// The part of it that lost most from the first round to the last, where that
    /// is more than noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<PartComparison>,
}

/// A burn-in (`fabricgate.acceptance/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Acceptance {
    /// `fabricgate.acceptance/1`.
    pub format: String,
    /// Its id, as a run has one.
    pub id: String,
    /// When it was begun, RFC 3339.
    pub created: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// How far it came.
    pub state: BurnInState,
    /// Nodes were measured: not simulated, and no stored run.
    pub real: bool,
    /// Where the measurements come from, for people.
    pub source: String,
    /// Version of fabricgate.
    pub version: String,
    /// What was asked for.
    pub asked: BurnInRequest,
    /// Whether everything is accepted: the worst of the nodes.
    pub accepted: AcceptanceOutcome,
    /// What ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<BurnInStop>,
    /// The rounds, in order.
    pub rounds: Vec<BurnInRound>,
    /// The load between them, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub soaks: Vec<SoakRecord>,
    /// Every node, in order of name.
    pub nodes: Vec<NodeAcceptance>,
    /// The first round against the last, without nodes that began anew in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<RunComparison>,
    /// Nodes that began anew: their first round since against the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub since_anew: Vec<RunComparison>,
    /// Versions of drivers and tools, by name: each that an output named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, Vec<String>>,
    /// Digest of the expectations; of the last round, where they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thresholds_digest: Option<String>,
    /// What else a reader should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Who vouches for it, over the document without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}
