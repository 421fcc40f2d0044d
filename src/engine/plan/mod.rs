//! What will be run where, and what it costs, before anything is run.
//!
//! Pure: claims, probes and a profile in, one [`Plan`] out. A plan is never
//! changed after it was made; whatever of it was not done shows as unknown.

pub mod audit_selection;
mod command;
mod confirmation;
pub mod cost;
mod coverage;
mod defaults;
pub mod leaf;
pub mod lint;
mod partner_pool;
pub mod partners;
mod round_packing;
mod soak;
mod sweep;
pub mod tenants;

#[cfg(test)]
mod confirmation_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod lint_tests;
#[cfg(test)]
mod sweep_tests;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::parse_output::Tool;
use model::probe::{Probe, ProbeFallback, ProbeScope, ProbeServer, SharedArgv};
use model::profile::Profile;
use model::{limits, raw_result};

pub use confirmation::{CONFIRM_PROFILE, ConfirmationSuspect, plan_confirmation};
pub use defaults::{AUDIT_PROBES, default_probes};
pub use soak::{SOAK_PROBES, SOAK_PROFILE, plan_soak, repeat_soak};
pub use sweep::plan_sweep;

/// The format of `plan.json`.
pub const PLAN_FORMAT: &str = "fabricgate.plan/1";

/// One probe in one place: one or several readings, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// Its number in the plan, from 0.
    pub step: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// The probe.
    pub probe: String,
    /// What it measures: it tells a pair of a domain from the ends of a rail.
    pub scope: ProbeScope,
    /// The domain, where all nodes are of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The nodes that take part. The first runs the command; the second of a
    /// pair serves.
    pub nodes: Vec<NodeName>,
    /// The rail, where one is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The lane of a GPU-level round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<u32>,
    /// Readings that are always taken.
    #[serde(deserialize_with = "limits::deserialize_readings")]
    pub readings: u32,
    /// Readings that are taken while the ones before do not decide.
    #[serde(deserialize_with = "limits::deserialize_readings")]
    pub most_readings: u32,
    /// Whose output it must print.
    pub parser: Tool,
    /// The tool's command. What only the nodes can say is still a placeholder.
    pub argv: SharedArgv,
    /// The serving side's, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<ProbeServer>,
    /// Every node that takes part runs the command (`model::exchange`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
    /// What is run where the tool is missing, filled in likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<ProbeFallback>,
    /// It must not start while somebody else uses the GPUs.
    #[serde(default)]
    pub idle_gpus: bool,
    /// How long one reading should take, in seconds.
    pub estimate_s: f64,
    /// When one reading is given up, in seconds.
    pub timeout_s: f64,
}

impl PlanStep {
    /// Where it runs, for people.
    pub fn location(&self) -> String {
        raw_result::format_location(&self.nodes)
    }
}

/// Steps that run at the same time. The next round begins when all have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanRound {
    /// Its number in the plan, from 0.
    pub round: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// What it is, for people: `node rounds of block01, lane 0`.
    pub what: String,
    /// Its steps.
    #[serde(deserialize_with = "command::deserialize_steps")]
    pub steps: Vec<PlanStep>,
}

/// A probe that is not run on a node, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedProbe {
    /// The probe.
    pub probe: String,
    /// Where: all nodes of a domain, or all that would take part.
    pub nodes: Vec<NodeName>,
    /// Why.
    pub why: String,
    /// It does not apply there, so nothing is missing.
    pub not_applicable: bool,
}

/// Everything that will be run (`fabricgate.plan/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// `fabricgate.plan/1`.
    pub format: String,
    /// The profile it was made for.
    pub profile: String,
    /// The seed it was made with.
    pub seed: u64,
    /// How many steps run at the same time.
    pub parallel: usize,
    /// The limits it keeps.
    #[serde(default)]
    pub limits: PlanLimits,
    /// The rounds, in the order they run.
    pub rounds: Vec<PlanRound>,
    /// Pairs are sampled on purpose: those that no round names are no gap.
    #[serde(default)]
    pub sampled: bool,
    /// What is left out.
    pub skipped: Vec<SkippedProbe>,
    /// Estimated time from start to end, in seconds.
    pub estimate_s: f64,
    /// Estimated time taken from all nodes together, in seconds.
    pub node_seconds: f64,
}

impl Plan {
    /// The plan of these rounds, which have their numbers already. Pairs that none of
    /// them names are no gap, unless who plans says so.
    fn from_rounds(
        request: &PlanRequest<'_>,
        profile: &str,
        rounds: Vec<PlanRound>,
        skipped: Vec<SkippedProbe>,
    ) -> Self {
        let (estimate_s, node_seconds) = cost::estimate_all(&rounds, request.parallel);
        Self {
            format: PLAN_FORMAT.to_owned(),
            profile: profile.to_owned(),
            seed: request.seed,
            parallel: request.parallel,
            limits: request.limits,
            rounds,
            sampled: true,
            skipped,
            estimate_s,
            node_seconds,
        }
    }

    /// All steps, in the order they run.
    pub fn steps(&self) -> impl Iterator<Item = &PlanStep> {
        self.rounds.iter().flat_map(|round| &round.steps)
    }

    /// The nodes that have something to do, in order of name.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.steps().flat_map(|step| &step.nodes).collect()
    }
}

/// How far a plan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlanLimits {
    /// Rounds of node pairs of a domain in the fast sweep; where absent all of
    /// them up to `fast_nodes` nodes, else `sampled_matchings`.
    pub matchings: Option<usize>,
    /// Nodes of a domain up to which the fast sweep has all node pairs.
    pub fast_nodes: usize,
    /// Matchings where not everybody meets.
    pub sampled_matchings: usize,
    /// Nodes of a domain, or of a leaf, and leaves up to which a complete sweep is
    /// complete: a plan grows with the nodes, not with their pairs.
    pub complete_nodes: usize,
    /// Hosts of a leaf that talk across leaves at the same time, on each rail.
    pub cross_leaf: usize,
    /// Cleared partners that a suspect is measured against.
    pub partners: usize,
}

impl Default for PlanLimits {
    /// A rack of 18 trays is swept whole in a few seconds of traffic; eight
    /// matchings of five readings find what a tournament finds but single
    /// pairs. Two hosts of a leaf at once disturb 5 % of pairs on a sound
    /// fabric with one flow each, eight hosts 20 %. Two of three partners
    /// convict, and one of them may be bad itself (simulations of a fleet
    /// with known faults).
    fn default() -> Self {
        Self {
            matchings: None,
            fast_nodes: 18,
            sampled_matchings: 8,
            complete_nodes: 128,
            cross_leaf: 2,
            partners: 3,
        }
    }
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The claims; every node of them is planned for.
    pub claims: &'a Claims,
    /// The profile.
    pub profile: Profile,
    /// The probes, in the order they run within a stage.
    pub probes: &'a [&'a Probe],
    /// How often each measuring probe runs; state is read once.
    pub readings: u32,
    /// How often it runs at most, while the readings before do not decide.
    pub most_readings: u32,
    /// How many steps run at the same time.
    pub parallel: usize,
    /// The seed.
    pub seed: u64,
    /// The domains whose platform joins nodes by NVLink.
    pub nvlink_across: &'a BTreeSet<DomainName>,
    /// How far it goes.
    pub limits: PlanLimits,
}
