//! From verdicts to an action plan, inside a blast-radius budget.
//!
//! Pure. A node is proposed for a drain only if a finding blames that node. Findings about a
//! domain, plane, leaf, rail, pair or the instrument never drain a node: those nodes are
//! affected by the fault and do not cause it. Unknown never acts. Every node that is not
//! proposed is listed with its reason.

pub mod removed;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::capacity::SegmentMix;
use super::drain::{DrainPlanner, DrainRefusal};
use super::journal_state::JournalState;
use super::marks::MarkNames;
use super::situation::{EvidenceRun, PlanCoverage, Situation};
use super::{evidence_checks, freeze, pause, release, repeat_confirmation, suspects};
use model::action::{Action, ActionPlan, WithheldAction};
use model::certificate::VoidPolicy;
use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::text::clean;
use model::verdict::Verdicts;

/// Limits on what the gate may do. The defaults are deliberately small (algorithms, sections 5
/// and 6); a limit that is left out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Most nodes of one domain that fabricgate may have drained at a time.
    pub per_domain: usize,
    /// Most nodes on one leaf switch that fabricgate may have drained at a time.
    pub per_leaf: usize,
    /// Most nodes of one gang of pods that fabricgate drains while the gang runs on them: a
    /// gang stops as a whole when one of its nodes goes away.
    pub per_gang: usize,
    /// Share of all claimed nodes that may be drained within an hour; at least one node, unless
    /// the share is 0.
    pub per_hour: f64,
    /// Share of all claimed nodes that fabricgate may have out of service at a time; at least
    /// one node, unless the share is 0.
    pub outstanding: f64,
    /// Share of all claimed nodes that may be marked within an hour while they stay in service;
    /// at least two nodes, unless the share is 0. A mark takes no node out of service, so the
    /// limit is higher than that for drains.
    pub relabels_per_hour: f64,
    /// Highest price of one drain, in expected schedulable nodes. Without it the price stops no
    /// drain of a hard fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_ceiling: Option<f64>,
    /// This many suspects in one domain point to a common cause, not to bad nodes.
    pub freeze_domain: usize,
    /// This share of all claimed nodes as suspects points to a common cause. In a small fleet
    /// it still takes `freeze_domain` suspects.
    pub freeze_fleet: f64,
    /// When more than this share of the nodes that were certified within the day fail, and at
    /// least two do, the sweep is in doubt and not the nodes.
    pub freeze_controls: f64,
    /// Propose actions that no second measurement has confirmed yet, in a plan that is only
    /// displayed.
    pub propose_unconfirmed: bool,
    /// Carry out only actions that a second, independent measurement confirmed.
    pub confirmed: bool,
    /// Hours after which a later run must confirm that a node in service works below its level
    /// before the node is drained; 0 drains it on the first run. No second run is needed for a
    /// node that cannot be used, for a fault that the driver also reports, for a loss of more
    /// than 40 % and for a burn-in.
    pub again_hours: f64,
    /// Days for which the first of these two runs counts.
    pub again_days: f64,
    /// Hours after which a run no longer proposes anything.
    pub evidence_hours: f64,
    /// Days for which a user's undo holds against the same evidence.
    pub acknowledged_days: f64,
    /// Let runs of a simulated fabric act on a scheduler. For laboratories.
    pub simulated: bool,
    /// What to do about nodes that work below the rate they must deliver.
    pub soft: SoftFaults,
    /// Classes of findings that are displayed and never act, for trying a new rule. Default:
    /// none.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub shadow: BTreeSet<FindingClass>,
    /// Share of a job's step that waits for the fabric, 0 to 1.
    pub exposed: f64,
    /// Largest job, in nodes, that can be scheduled on a node. Default: the nodes of its
    /// largest partition, or all claimed nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_gang: Option<usize>,
    /// Share of nodes that are out of service at any time, 0 to 1.
    pub unavailable: f64,
    /// The segments that jobs request: nodes of a segment, and the share of nodes that such
    /// jobs use. Without it no drain has a price.
    #[serde(skip_serializing_if = "is_unsaid")]
    pub mix: SegmentMix,
    /// Complete runs under `recertify` or `burn-in` that a node drained by fabricgate must pass
    /// before it is released.
    pub clean_sweeps: u32,
    /// Least hours between two of these runs: an intermittent fault can pass several runs in a
    /// row. A run that was made sooner does not count.
    pub clean_hours: f64,
    /// Days that a pass counts. A week is fabricgate's choice: no vendor publishes a figure for
    /// fabric, and a week lets a fleet be measured in turns.
    pub certificate_days: u32,
    /// Days that a pass under `admit` counts; `admit` leaves out the tournament. Default: 1, or
    /// `certificate_days` if that is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_days_admit: Option<u32>,
    /// Days that a pass under `recertify` counts. Default: `certificate_days`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_days_recertify: Option<u32>,
    /// Days that a pass under `burn-in` counts. Default: `certificate_days`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_days_burn_in: Option<u32>,
    /// Events that void a certificate before its end, in addition to a change of GPUs, which
    /// always does.
    #[serde(skip_serializing_if = "VoidPolicy::is_all")]
    pub certificate_void: VoidPolicy,
    /// Which gate handles Kubernetes nodes that Slurm's daemon runs on.
    pub slinky: SlinkyOwner,
    /// The site's names for the marks on nodes.
    pub marks: MarkNames,
}

fn is_unsaid(mix: &SegmentMix) -> bool {
    mix.0.is_empty()
}

/// What to do about nodes that work below the rate they must deliver.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SoftFaults {
    /// Drain them if a drain costs less than it saves, else mark them.
    #[default]
    Price,
    /// Always drain them.
    Drain,
    /// Never drain them; mark them.
    Relabel,
}

/// Which gate handles the nodes of a Slinky cluster, where both control planes could take them
/// out of service.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SlinkyOwner {
    /// The Slurm gate; the Kubernetes gate leaves these nodes alone.
    #[default]
    Slurm,
    /// The Kubernetes gate. The Slurm gate must then not be configured for them.
    Kubernetes,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            per_domain: 2,
            per_leaf: 2,
            per_gang: 1,
            per_hour: 0.01,
            outstanding: 0.03,
            relabels_per_hour: 0.05,
            price_ceiling: None,
            freeze_domain: 3,
            freeze_fleet: 0.05,
            freeze_controls: 0.1,
            propose_unconfirmed: true,
            confirmed: true,
            again_hours: 4.0,
            again_days: 7.0,
            evidence_hours: 24.0,
            acknowledged_days: 7.0,
            simulated: false,
            soft: SoftFaults::Price,
            shadow: BTreeSet::new(),
            exposed: 0.3,
            largest_gang: None,
            unavailable: 0.01,
            mix: SegmentMix::default(),
            clean_sweeps: 2,
            clean_hours: 1.0,
            certificate_days: 7,
            certificate_days_admit: None,
            certificate_days_recertify: None,
            certificate_days_burn_in: None,
            certificate_void: VoidPolicy::default(),
            slinky: SlinkyOwner::Slurm,
            marks: MarkNames::default(),
        }
    }
}

impl Policy {
    /// Checks that every limit is in its range; the error names the limit and the expected
    /// range.
    pub fn check(&self) -> Result<(), String> {
        let shares = [
            ("per_hour", self.per_hour),
            ("outstanding", self.outstanding),
            ("relabels_per_hour", self.relabels_per_hour),
            ("freeze_fleet", self.freeze_fleet),
            ("freeze_controls", self.freeze_controls),
            ("exposed", self.exposed),
            ("unavailable", self.unavailable),
        ];
        if let Some((name, value)) = shares.iter().find(|(_, v)| !(0.0..=1.0).contains(v)) {
            return Err(format!("{name} {value}, expected 0 to 1"));
        }
        let positive = [
            ("again_hours", Some(self.again_hours)),
            ("again_days", Some(self.again_days)),
            ("evidence_hours", Some(self.evidence_hours)),
            ("acknowledged_days", Some(self.acknowledged_days)),
            ("clean_hours", Some(self.clean_hours)),
            ("price_ceiling", self.price_ceiling),
        ];
        let is_wrong = |value: f64| !value.is_finite() || value < 0.0;
        for (name, value) in positive {
            if let Some(value) = value.filter(|value| is_wrong(*value)) {
                return Err(format!("{name} {value}, expected 0 or more"));
            }
        }
        let [from, until] = repeat_confirmation::confirmation_ages_s(self);
        if until < from {
            return Err(format!(
                "again_hours {} is longer than again_days {}: no second run could be in time, \
                 and slow nodes would never be drained",
                self.again_hours, self.again_days
            ));
        }
        if self.exposed <= 0.0 {
            return Err("exposed 0, expected more than 0: jobs that never wait lose nothing".into());
        }
        self.mix.check().map_err(|error| format!("mix: {error}"))?;
        self.marks.check().map_err(|error| format!("marks: {error}"))?;
        if self.clean_sweeps == 0 {
            return Err("clean_sweeps 0, expected at least 1: a release needs evidence".into());
        }
        if self.freeze_domain == 0 {
            return Err("freeze_domain 0, expected at least 1".to_owned());
        }
        if self.largest_gang == Some(0) {
            return Err("largest_gang 0, expected at least 1 node".to_owned());
        }
        Ok(())
    }
}

/// The actions that verdicts alone justify, without scheduler state and earlier actions. For
/// display, not for execution.
pub fn propose_from_verdicts(
    verdicts: &Verdicts,
    fleet: &Claims,
    policy: &Policy,
    coverage: Option<PlanCoverage>,
    run: &EvidenceRun,
) -> ActionPlan {
    let situation = Situation {
        verdicts,
        fleet,
        coverage,
        run,
        live: None,
        ledger: &JournalState::default(),
        controls: &BTreeSet::new(),
        drivers: &BTreeMap::new(),
        now: &ClockStamp::default(),
        boots: &BTreeMap::new(),
    };
    propose_actions(&situation, policy)
}

/// Proposes actions and carries out none.
pub fn propose_actions(situation: &Situation<'_>, policy: &Policy) -> ActionPlan {
    let mut withheld = Vec::new();
    let places = ClaimIndex::from_claims(situation.fleet);
    let suspects = suspects::collect_suspects(situation.verdicts, &places, &mut withheld);
    let doubt = freeze::find_freeze(situation, &places, policy, &suspects);
    let unusable = evidence_checks::explain_unusable(situation, policy);
    let paused = || pause::active_pause(situation.ledger, situation.now).map(pause::describe_pause);
    let frozen = explain_tripped(situation)
        .or_else(paused)
        .or_else(|| doubt.everywhere.as_ref().map(|cause| cause.why.clone()));
    let mut desk = DrainPlanner::new(
        situation,
        &places,
        policy,
        unusable.as_deref(),
        frozen.as_deref(),
        &doubt,
    );
    let mut actions = Vec::new();
    for suspect in &suspects {
        match desk.decide(suspect) {
            Ok(action) => actions.push(action),
            Err(DrainRefusal {
                why,
                is_budget: budget,
                pending_confirmation: again,
                is_unconfirmed: unconfirmed,
            }) => {
                let what = suspect.node.to_string();
                withheld.push(WithheldAction { what, why, budget, again, unconfirmed });
            }
        }
    }
    propose_returns(situation, policy, &mut actions, &mut withheld);
    actions.sort_by(|a, b| (&a.node, a.kind).cmp(&(&b.node, b.kind)));
    let simulated = situation.run.simulated;
    ActionPlan {
        simulated,
        frozen: frozen.or(unusable),
        withheld,
        ..ActionPlan::from_actions(actions)
    }
}

/// Adds releases and certificates to the drains; no breaker and no freeze stops them. A node
/// that the same plan drains or marks gets neither.
fn propose_returns(
    situation: &Situation<'_>,
    policy: &Policy,
    actions: &mut Vec<Action>,
    withheld: &mut Vec<WithheldAction>,
) {
    let (releases, kept) = release::propose_releases(situation, policy);
    let taken: BTreeSet<NodeName> = actions.iter().map(|action| action.node.clone()).collect();
    withheld.extend(kept);
    for release in releases {
        if taken.contains(&release.node) {
            let why = "the same run blames it".to_owned();
            withheld.push(WithheldAction::new(release.node.as_str(), why));
        } else {
            actions.push(release);
        }
    }
}

fn explain_tripped(situation: &Situation<'_>) -> Option<String> {
    let breaker = situation.ledger.breaker.as_ref()?;
    Some(format!(
        "the breaker tripped at {} ({}; run {}); only releases until a user resets it",
        clean(&breaker.stamp.at),
        clean(&breaker.why),
        clean(&breaker.run)
    ))
}

#[cfg(test)]
#[path = "action_policy_tests.rs"]
mod tests;
