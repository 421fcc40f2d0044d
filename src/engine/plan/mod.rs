//! Plans which probes run where, and at what cost, before any of them runs.
//!
//! Pure: takes claims, probes and a profile, returns one [`Plan`]. A plan never changes after it
//! was made; parts of it that did not run appear as unknown.

pub mod audit_selection;
mod command;
mod confirmation;
pub mod cost;
mod coverage;
mod defaults;
pub mod leaf;
pub mod lint;
mod packed_rounds;
mod partner_pool;
pub mod partners;
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

/// One probe in one place: one or more consecutive readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// Its number in the plan, from 0.
    pub step: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// Name of the probe.
    pub probe: String,
    /// The scope of the probe: distinguishes a pair in a domain from the ends of a rail.
    pub scope: ProbeScope,
    /// The domain, if all nodes belong to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The nodes that take part. The first runs the command; the second of a
    /// pair serves.
    pub nodes: Vec<NodeName>,
    /// The rail, if one is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The lane of a GPU-level round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<u32>,
    /// The minimum number of readings.
    #[serde(deserialize_with = "limits::deserialize_readings")]
    pub readings: u32,
    /// The maximum number of readings, taken while the previous ones do not decide.
    #[serde(deserialize_with = "limits::deserialize_readings")]
    pub most_readings: u32,
    /// The parser for its output.
    pub parser: Tool,
    /// The tool's command. Values that only the nodes know remain placeholders.
    pub argv: SharedArgv,
    /// The command of the serving side, with the same placeholders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<ProbeServer>,
    /// Whether every participating node runs the command (`model::exchange`).
    #[serde(default, rename = "together", skip_serializing_if = "std::ops::Not::not")]
    pub on_all_nodes: bool,
    /// The command to run if the tool is missing, with the same placeholders.
    #[serde(default, rename = "otherwise", skip_serializing_if = "Option::is_none")]
    pub fallback: Option<ProbeFallback>,
    /// Whether it must not start while another process uses the GPUs.
    #[serde(default)]
    pub idle_gpus: bool,
    /// Estimated time of one reading, in seconds.
    pub estimate_s: f64,
    /// Timeout of one reading, in seconds.
    pub timeout_s: f64,
}

impl PlanStep {
    /// Where it runs, formatted for messages.
    pub fn location(&self) -> String {
        raw_result::format_location(&self.nodes)
    }
}

/// Steps that run concurrently. The next round starts when all have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanRound {
    /// Its number in the plan, from 0.
    pub round: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// Description for messages: `node rounds of block01, lane 0`.
    pub what: String,
    /// The steps of this round.
    #[serde(deserialize_with = "command::deserialize_steps")]
    pub steps: Vec<PlanStep>,
}

/// A probe that does not run on some nodes, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedProbe {
    /// Name of the probe.
    pub probe: String,
    /// The affected nodes: all nodes of a domain, or all that would take part.
    pub nodes: Vec<NodeName>,
    /// The reason.
    pub why: String,
    /// Whether the probe does not apply there, so that no coverage is missing.
    pub not_applicable: bool,
}

/// The complete plan of a run (`fabricgate.plan/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// `fabricgate.plan/1`.
    pub format: String,
    /// The profile it was made for.
    pub profile: String,
    /// The seed it was made with.
    pub seed: u64,
    /// How many steps run concurrently.
    pub parallel: usize,
    /// The limits it respects.
    #[serde(default)]
    pub limits: PlanLimits,
    /// The rounds, in the order they run.
    pub rounds: Vec<PlanRound>,
    /// Whether pairs are sampled on purpose: pairs that no round names are then not a gap.
    #[serde(default)]
    pub sampled: bool,
    /// Skipped probes.
    pub skipped: Vec<SkippedProbe>,
    /// Estimated time from start to end, in seconds.
    pub estimate_s: f64,
    /// Estimated node time summed over all nodes, in seconds.
    pub node_seconds: f64,
}

impl Plan {
    /// The plan of these rounds, which are already numbered. Pairs that none of them names are not
    /// a gap unless the caller changes `sampled`.
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

    /// The nodes that take part in any step, ordered by name.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.steps().flat_map(|step| &step.nodes).collect()
    }
}

/// The limits of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlanLimits {
    /// Rounds of node pairs of a domain in the fast sweep; if absent, all pairs up to `fast_nodes`
    /// nodes, else `sampled_matchings`.
    pub matchings: Option<usize>,
    /// Number of nodes of a domain up to which the fast sweep has all node pairs.
    pub fast_nodes: usize,
    /// Number of matchings for sampled domains.
    pub sampled_matchings: usize,
    /// Number of nodes of a domain or leaf, and number of leaves, up to which a complete sweep has
    /// all pairs: a plan grows with the nodes, not with their pairs.
    pub complete_nodes: usize,
    /// Hosts of a leaf that send across leaves concurrently, on each rail.
    pub cross_leaf: usize,
    /// Cleared partners that a suspect is measured against.
    pub partners: usize,
}

impl Default for PlanLimits {
    /// A full sweep of a rack of 18 trays takes a few seconds of traffic; eight matchings of five
    /// readings find everything that a tournament finds except single pairs. Two hosts of a leaf
    /// concurrently disturb 5 % of pairs on a healthy fabric with one flow each, eight hosts 20 %.
    /// Two of three partners decide, and one of them may be bad itself (simulations of a fleet with
    /// known faults).
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

/// The input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The claims; the plan covers every claimed node.
    pub claims: &'a Claims,
    /// The profile.
    pub profile: Profile,
    /// The probes, in their order within a stage.
    pub probes: &'a [&'a Probe],
    /// The number of readings of each measuring probe; state is read once.
    pub readings: u32,
    /// The maximum number of readings, while the previous ones do not decide.
    pub most_readings: u32,
    /// How many steps run concurrently.
    pub parallel: usize,
    /// Seed for all random choices.
    pub seed: u64,
    /// The domains whose platform joins nodes by NVLink.
    pub nvlink_across: &'a BTreeSet<DomainName>,
    /// The limits of the plan.
    pub limits: PlanLimits,
}
