//! Decides on suspects one after another, the worst first: the action proposed for a node, or
//! the reason for none.
//!
//! Pure. The order: conditions of the node that forbid an action, then its findings, and last
//! the limits on every action (freeze, budget).

use std::cell::OnceCell;

use super::action_policy::Policy;
use super::budget::DrainBudget;
use super::class_actions::{Accusation, MeasuredGroups};
use super::drain_cost::{DrainPrices, DrainTradeoff};
use super::freeze::DrainFreeze;
use super::journal_state::OwnDrain;
use super::situation::SchedulerKind;
use super::situation::Situation;
use super::suspects::SuspectNode;
use super::{
    class_actions, command_line, drain_reason, evidence_checks, marks, node_state,
    repeat_confirmation,
};
use model::action::{Action, ActionKind, PendingConfirmation, VerdictMark};
use model::claim_index::ClaimIndex;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::{Finding, Outcome};

/// Why no action is proposed for a node.
#[derive(Debug)]
pub(super) struct DrainRefusal {
    pub why: String,
    /// Only a freeze or a budget prevents the action.
    pub is_budget: bool,
    /// Only a second run that agrees is missing.
    pub pending_confirmation: Option<PendingConfirmation>,
    /// No second measurement has confirmed the finding.
    pub is_unconfirmed: bool,
}

impl DrainRefusal {
    /// Refused by a freeze or a budget.
    fn from_budget(why: String) -> Self {
        Self { is_budget: true, ..Self::from(why) }
    }
}

impl DrainRefusal {
    /// Refused because no second measurement has confirmed the finding.
    fn unconfirmed(why: String) -> Self {
        Self { is_unconfirmed: true, ..Self::from(why) }
    }
}

impl From<String> for DrainRefusal {
    fn from(why: String) -> Self {
        Self { why, is_budget: false, pending_confirmation: None, is_unconfirmed: false }
    }
}

#[derive(Debug)]
pub(super) struct DrainPlanner<'a> {
    situation: &'a Situation<'a>,
    policy: &'a Policy,
    unusable: Option<&'a str>,
    frozen: Option<&'a str>,
    freeze: &'a DrainFreeze,
    budget: DrainBudget<'a>,
    prices: DrainPrices<'a>,
    /// Which nodes were measured together. Built when a node in a wrong domain needs it.
    measured_groups: OnceCell<MeasuredGroups<'a>>,
}

/// The action for a suspect, before freezes and budgets are checked.
struct DrainVerdict<'f> {
    kind: ActionKind,
    deciding_finding: &'f Finding,
    findings: Vec<&'f Finding>,
    price: Option<f64>,
    explanation: Option<String>,
}

impl<'a> DrainPlanner<'a> {
    pub(super) fn new(
        situation: &'a Situation<'a>,
        places: &'a ClaimIndex<'a>,
        policy: &'a Policy,
        unusable: Option<&'a str>,
        frozen: Option<&'a str>,
        freeze: &'a DrainFreeze,
    ) -> Self {
        let budget = DrainBudget::from_situation(situation, places, policy);
        let prices = DrainPrices::new(situation, places, policy);
        let measured_groups = OnceCell::new();
        Self { situation, policy, unusable, frozen, freeze, budget, prices, measured_groups }
    }

    /// The action proposed for a suspect, or the reason for none.
    pub(super) fn decide(&mut self, suspect: &SuspectNode<'_>) -> Result<Action, DrainRefusal> {
        if let Some(why) = self.unusable {
            return Err(why.to_owned().into());
        }
        let live = self.check_node_state(suspect)?;
        let verdict = match self.assess(suspect, live) {
            // A common freeze explains slowness better than the first observation of one node.
            Err(refusal) if refusal.pending_confirmation.is_some() => {
                return Err(self.check_freeze(suspect).err().unwrap_or(refusal));
            }
            verdict => verdict?,
        };
        self.charge_budget(suspect, &verdict)?;
        Ok(self.build_action(suspect, &verdict, live))
    }

    fn assess<'f>(
        &self,
        suspect: &SuspectNode<'f>,
        live: Option<&SchedulerNode>,
    ) -> Result<DrainVerdict<'f>, DrainRefusal> {
        let findings = self.acting_findings(suspect)?;
        if let Some(why) = live.and_then(|live| {
            evidence_checks::explain_acknowledged(self.situation, self.policy, live, &findings)
        }) {
            return Err(why.into());
        }
        let decisive = class_actions::worst_accusation(&findings);
        let decisive = decisive.ok_or_else(|| "no finding blames it".to_owned())?;
        let is_hard = matches!(decisive, Accusation::Hard(_));
        if let Some(why) = evidence_checks::explain_unfinished(self.situation, is_hard) {
            return Err(why.into());
        }
        // A node that takes no work yet costs no capacity when it is drained.
        let is_out = live.is_some_and(node_state::is_unverified);
        let price = self.prices.price(suspect.domain);
        let price = price.map(|price| if is_out { 0.0 } else { price });
        let (kind, because) = match decisive {
            Accusation::Hard(_) => (ActionKind::Drain, None),
            Accusation::Elsewhere(_) => {
                (ActionKind::Relabel, Some(self.describe_other_domain(suspect)?))
            }
            Accusation::Soft(found) => match self.prices.weigh(suspect.node, found, price) {
                DrainTradeoff::Drain(why) => (ActionKind::Drain, Some(why)),
                DrainTradeoff::Mark(why) => {
                    // If a milder node is drained, the two may be swapped.
                    let swap = self.suggest_swap(suspect, found).unwrap_or_default();
                    (ActionKind::Relabel, Some(why + &swap))
                }
            },
        };
        let found = decisive.finding();
        if kind == ActionKind::Relabel
            && evidence_checks::is_marked(self.situation, suspect.node, found)
        {
            return Err(format!("it is marked {} ({}) already", found.outcome, found.class).into());
        }
        let is_soft_drain = matches!(decisive, Accusation::Soft(_)) && kind == ActionKind::Drain;
        if let Some(live) = live.filter(|_| is_soft_drain && !is_out)
            && let Some((why, again)) = repeat_confirmation::pending_confirmation(
                self.situation,
                self.policy,
                live,
                &findings,
                &suspect.findings,
            )
        {
            return Err(DrainRefusal {
                pending_confirmation: Some(again),
                ..DrainRefusal::from(why)
            });
        }
        Ok(DrainVerdict { kind, deciding_finding: found, findings, price, explanation: because })
    }

    /// Refuses if this domain or everything is frozen.
    fn check_freeze(&self, suspect: &SuspectNode<'_>) -> Result<(), DrainRefusal> {
        let of_domain = suspect.domain.and_then(|domain| self.freeze.domains.get(domain));
        let why = self.frozen.or(of_domain.map(String::as_str));
        why.map_or(Ok(()), |why| Err(DrainRefusal::from_budget(format!("frozen: {why}"))))
    }

    /// Charges the action to the budgets, unless a limit stops it.
    fn charge_budget(
        &mut self,
        suspect: &SuspectNode<'_>,
        verdict: &DrainVerdict<'_>,
    ) -> Result<(), DrainRefusal> {
        self.check_freeze(suspect)?;
        if verdict.kind == ActionKind::Relabel {
            self.budget.check_relabel().map_err(|full| DrainRefusal::from_budget(full.why))?;
            self.budget.spend_relabel();
            return Ok(());
        }
        let room = self.budget.check_drain(suspect.node, suspect.domain, verdict.price);
        room.map_err(|full| {
            let swap = if full.is_domain_budget {
                self.suggest_swap(suspect, verdict.deciding_finding)
            } else {
                None
            };
            DrainRefusal::from_budget(full.why + &swap.unwrap_or_default())
        })?;
        self.budget.spend_drain(suspect.node, suspect.domain);
        self.prices.mark_drained(suspect.node, suspect.domain);
        Ok(())
    }

    /// The node as its scheduler reports it, or why it is left alone.
    fn check_node_state(
        &self,
        suspect: &SuspectNode<'_>,
    ) -> Result<Option<&'a SchedulerNode>, String> {
        if suspect.domain.is_none() {
            let why = "no domain claims this node, so the scheduler may know it by another name";
            return Err(why.to_owned());
        }
        if !suspect.node.is_one_node() {
            return Err(node_state::explain_not_one_node(suspect.node));
        }
        let claims = self.situation.fleet.nodes.get(suspect.node);
        if let Some(marks) = claims.map(|claims| &claims.opt_out).filter(|marks| !marks.is_empty())
        {
            let marks: Vec<String> = marks.iter().map(|mark| clean(mark)).collect();
            return Err(format!("its marks ask to leave it alone: {}", marks.join(", ")));
        }
        let Some(live) = self.situation.live else { return Ok(None) };
        let Some(node) = live.nodes.get(suspect.node) else {
            return Err("the scheduler does not know it".to_owned());
        };
        let refusal = node_state::explain_no_drain(node, self.situation.ledger)
            .or_else(|| evidence_checks::explain_slurm_owned(node, self.policy))
            .or_else(|| evidence_checks::explain_overtaken(self.situation, node));
        refusal.map_or(Ok(Some(node)), Err)
    }

    /// The findings about a suspect that are allowed to act.
    fn acting_findings<'f>(
        &self,
        suspect: &SuspectNode<'f>,
    ) -> Result<Vec<&'f Finding>, DrainRefusal> {
        let is_shown = |f: &&Finding| !self.policy.shadow.contains(&f.class);
        let open: Vec<&Finding> = suspect.findings.iter().copied().filter(is_shown).collect();
        let Some(worst) = open.first() else {
            let class = &suspect.findings[0].class;
            return Err(format!("the policy only displays findings of this class ({class})").into());
        };
        if self.situation.live.is_some() && self.policy.confirmed {
            let sure = class_actions::confirmed_findings(&open);
            if sure.is_empty() {
                return Err(DrainRefusal::unconfirmed(format!(
                    "suspect, not confirmed by a second, independent measurement: {}",
                    worst.class
                )));
            }
            return Ok(sure);
        }
        let is_confirmed = open.iter().any(|f| f.confirmed);
        if self.situation.live.is_none() && !is_confirmed && !self.policy.propose_unconfirmed {
            let why = "not confirmed by a second, independent measurement";
            return Err(DrainRefusal::unconfirmed(why.to_owned()));
        }
        Ok(open)
    }

    /// The domain that a misplaced node was measured to reach.
    fn describe_other_domain(&self, suspect: &SuspectNode<'_>) -> Result<String, String> {
        let fleet = self.situation.fleet;
        let met = self.measured_groups.get_or_init(|| MeasuredGroups::from_claims(fleet));
        let reached = class_actions::describe_other_domain(suspect.node, fleet, met);
        reached.map(|place| format!("it reaches {place}")).ok_or_else(|| {
            "it is not in its claimed domain, and no measurement shows which other domain it \
             reaches; a corrected label would keep it usable, a drain would not"
                .to_owned()
        })
    }

    /// The milder drain by fabricgate whose release could make room for this one.
    fn suggest_swap(&self, suspect: &SuspectNode<'_>, found: &Finding) -> Option<String> {
        let places = self.prices.claim_index();
        let here = self.situation.ledger.drains.iter().filter(|(node, own)| {
            let domain = places.domain_of(node).map(|d| &d.name).or(own.action.domain.as_ref());
            domain == suspect.domain
        });
        let severity = |own: &OwnDrain| {
            let outcome = own.action.mark.as_ref().map_or(Outcome::Failed, |mark| mark.outcome);
            (outcome, own.action.ratio.unwrap_or(0.0))
        };
        let milder = |a: (Outcome, f64), b: (Outcome, f64)| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1));
        let (node, mildest) = here.min_by(|a, b| milder(severity(a.1), severity(b.1)))?;
        let own = (found.outcome, found.deciding_share().unwrap_or(0.0));
        milder(severity(mildest), own).is_lt().then(|| {
            let ratio = mildest.action.ratio.map(|r| format!(", at {:.1} %", r * 100.0));
            format!(
                "; it is worse than {node} ({}{}), which is drained: releasing that one instead \
                 would make room for it",
                clean(&mildest.action.reason),
                ratio.unwrap_or_default()
            )
        })
    }

    fn build_action(
        &self,
        suspect: &SuspectNode<'_>,
        verdict: &DrainVerdict<'_>,
        live: Option<&SchedulerNode>,
    ) -> Action {
        let DrainVerdict { kind, deciding_finding: found, findings, price, explanation: because } =
            verdict;
        let run = self.situation.run;
        let mut why = format!("{} {}: {}", found.locus, found.outcome, found.summary);
        if 1 < findings.len() {
            why.push_str(&format!(" (and {} more)", findings.len() - 1));
        }
        if !findings.iter().any(|f| f.confirmed) {
            why.push_str("; not confirmed by a second measurement yet");
        }
        for more in because.clone().into_iter().chain(live.and_then(node_state::drain_remark)) {
            why.push_str(&format!("; {more}"));
        }
        let mark = VerdictMark {
            outcome: found.outcome,
            class: Some(found.class.clone()),
            run: run.id.clone(),
            at: run.created.clone(),
            expires: None,
            boot_id: None,
            domain: None,
        };
        let mark = match live {
            Some(live) => marks::with_domain_and_boot(mark, self.situation, live, suspect.domain),
            None => mark,
        };
        // Only the node's present state shows the fields that a mark needs.
        let mark_change =
            |live| marks::change_beside_action(*kind, live, &mark, &self.policy.marks);
        let mut change = live.map(mark_change).unwrap_or_default();
        let mut reason = String::new();
        let plane = live.map_or(SchedulerKind::Slurm, SchedulerKind::from_node);
        if *kind == ActionKind::Drain {
            reason = drain_reason::format_reason(
                &run.id,
                found.class.as_str(),
                self.situation.ledger.epoch,
            );
            let state = Some(NodeStateChange::Drain { reason: reason.clone() });
            // Slurm stores the mark in a field that other programs also write, so its size is not
            // bounded here.
            let kubernetes = change.kubernetes.take();
            change = NodeUpdate { state, kubernetes, ..NodeUpdate::default() };
        }
        let command = command_line::to_command_line(suspect.node, &change, plane);
        let leaf = self.prices.claim_index().leaf_of(suspect.node).map(str::to_owned);
        Action {
            kind: *kind,
            node: suspect.node.clone(),
            domain: suspect.domain.cloned(),
            leaf,
            command,
            reason,
            mark: Some(mark),
            device: None,
            findings: findings.iter().map(|f| f.id.clone()).collect(),
            ratio: found.deciding_share(),
            ratio_of: found.deciding_ratio().map(|(_, of)| of),
            price: *price,
            why,
        }
    }
}

#[cfg(test)]
#[path = "drain_tests.rs"]
mod tests;
