//! The budgets for nodes taken out of service (per domain, per leaf, per hour, outstanding in all)
//! with the price of each drain; and the conditions that trip the breaker.
//!
//! Pure: the amount spent comes from the journal, the time from the caller.

use std::collections::{BTreeMap, BTreeSet};

use super::action_policy::Policy;
use super::journal_state::{JournalState, OwnDrain};
use super::situation::Situation;
use super::{evidence_checks, freeze, node_state, restored_store, suspects};
use model::action::{Action, ActionKind};
use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::NicReport;
use model::text::clean;

const HOUR_S: f64 = 3_600.0;

/// `HOUR_S` in seconds of the scheduler's clock.
const HOUR_UNIX: i64 = 3_600;

/// A drained node that is missing from the scheduler for longer no longer counts against a
/// budget, in seconds.
const ABSENT_S: f64 = 3.0 * 86_400.0;

/// Most domains or leaves that one sentence names.
const MAX_LISTED: usize = 6;

/// What is spent of each budget, and the limits.
#[derive(Debug)]
pub(super) struct DrainBudget<'a> {
    policy: &'a Policy,
    claim_index: &'a ClaimIndex<'a>,
    fleet: usize,
    domains: BTreeMap<DomainName, usize>,
    leaves: BTreeMap<String, usize>,
    /// The gangs that run on each node, as its scheduler reports them.
    running: BTreeMap<&'a NodeName, BTreeSet<String>>,
    gangs: BTreeMap<String, usize>,
    hour: usize,
    outstanding: usize,
    relabels: usize,
    /// Nodes with a counted drain by fabricgate that is missing from a restored scheduler
    /// store.
    lost: BTreeSet<NodeName>,
}

#[derive(Debug)]
pub(super) struct BudgetExhaustion {
    /// The reason, with numbers.
    pub why: String,
    /// Whether the domain's budget is the exhausted one: releasing another of its drains could
    /// help.
    pub is_domain_budget: bool,
}

impl<'a> DrainBudget<'a> {
    /// Counts what earlier runs left: drains that are or may be in force, and actions started
    /// in the last hour.
    pub(super) fn from_situation(
        situation: &Situation<'a>,
        places: &'a ClaimIndex<'a>,
        policy: &'a Policy,
    ) -> Self {
        let ledger = situation.ledger;
        let mut budget = Self::from_journal(ledger, situation.live, places, policy, situation.now);
        let live = situation.live.map(|live| &live.nodes);
        let nodes = live.into_iter().flatten();
        budget.running = nodes.map(|(name, node)| (name, gangs_of(node))).collect();
        let open = ledger.open_intents.iter().map(|open| &open.action);
        let open = open.filter(|action| action.kind == ActionKind::Drain).map(|it| &it.node);
        let unrecorded = situation.live.map(|live| node_state::unrecorded_drains(live, ledger));
        let unrecorded = unrecorded.iter().flatten().map(|node| &node.name);
        let out: BTreeSet<&NodeName> = open.chain(ledger.drains.keys()).chain(unrecorded).collect();
        for node in out {
            budget.spend_gangs(node);
        }
        let is_lost = |(node, drain): &(&NodeName, &OwnDrain)| {
            let now = live.and_then(|live| live.get(node));
            now.is_some_and(|now| restored_store::is_before_drain(now, drain, ledger))
        };
        let lost = situation.ledger.drains.iter().filter(is_lost);
        budget.lost = lost.map(|(node, _)| node.clone()).collect();
        budget
    }

    /// Counts what this journal has spent, and drains on nodes in fabricgate's form that the
    /// journal does not contain.
    fn from_journal(
        ledger: &JournalState,
        live: Option<&SchedulerSnapshot>,
        places: &'a ClaimIndex<'a>,
        policy: &'a Policy,
        now: &ClockStamp,
    ) -> Self {
        let mut budget = Self {
            policy,
            fleet: places.node_count(),
            claim_index: places,
            domains: BTreeMap::new(),
            leaves: BTreeMap::new(),
            running: BTreeMap::new(),
            gangs: BTreeMap::new(),
            hour: 0,
            outstanding: 0,
            relabels: 0,
            lost: BTreeSet::new(),
        };
        // An intent without a recorded result may have been carried out.
        let open = ledger.open_intents.iter().map(|open| &open.action);
        let open = open.filter(|action| action.kind == ActionKind::Drain);
        let standing = ledger.drains.values().map(|own| &own.action);
        let out: BTreeMap<&NodeName, &Action> =
            open.chain(standing).map(|action| (&action.node, action)).collect();
        let is_shown = |node: &NodeName| live.is_some_and(|live| live.nodes.contains_key(node));
        let is_absent = |node: &NodeName| {
            let since = ledger.absent_nodes.get(node);
            !is_shown(node) && since.is_some_and(|since| !is_recent(since, now, ABSENT_S))
        };
        let unrecorded =
            live.map(|live| node_state::unrecorded_drains(live, ledger)).unwrap_or_default();
        let unrecorded = unrecorded.into_iter().filter(|node| !out.contains_key(&node.name));
        let mut recent = 0;
        for node in unrecorded {
            budget.spend(
                budget.claim_index.domain_of(&node.name).map(|d| &d.name),
                budget.claim_index.leaves_of(&node.name),
            );
            let is_recent = |at: i64| now.unix.saturating_sub(at) < HOUR_UNIX;
            recent += usize::from(node.reason_at.is_some_and(is_recent));
        }
        for (node, then) in out.iter().filter(|(node, _)| !is_absent(node)) {
            // The domain claimed at the time is the fallback, because a run may cover only a part
            // of the fleet.
            let domain = budget.claim_index.domain_of(node).map(|d| &d.name);
            let hangs = budget.claim_index.leaves_of(node);
            let then_on = then.leaf.iter().map(String::as_str);
            let hangs = if hangs.is_empty() { then_on.collect() } else { hangs };
            budget.spend(domain.or(then.domain.as_ref()), hangs);
        }
        (budget.hour, budget.relabels) = count_within_hour(ledger, now);
        budget.hour += recent;
        budget
    }

    /// Names a budget that is exceeded. The hourly budgets are left out: they recover by
    /// themselves.
    fn explain_overrun(&self) -> Option<String> {
        let policy = self.policy;
        let most = self.share_of_fleet(policy.outstanding, 1);
        if most < self.outstanding {
            return Some(format!("{} drains are outstanding (limit {most})", self.outstanding));
        }
        let domain = self.domains.iter().find(|(_, spent)| policy.per_domain < **spent);
        if let Some((name, spent)) = domain {
            return Some(format!(
                "{spent} of {} (limit {})",
                clean(name.as_str()),
                policy.per_domain
            ));
        }
        let leaf = self.leaves.iter().find(|(_, spent)| policy.per_leaf < **spent);
        leaf.map(|(name, spent)| {
            format!("{spent} on leaf {} (limit {})", clean(name), policy.per_leaf)
        })
    }

    fn describe_remaining(&self) -> Vec<String> {
        let policy = self.policy;
        let of_fleet = |what: &str, share: f64, least: usize, spent: usize| {
            let most = self.share_of_fleet(share, least);
            let left = most.saturating_sub(spent);
            format!(
                "{what}: {left} of {most} left ({} of {} nodes)",
                format_percent(share),
                self.fleet
            )
        };
        let domains: BTreeMap<&str, usize> =
            self.domains.iter().map(|(name, spent)| (name.as_str(), *spent)).collect();
        vec![
            of_fleet("drains within the hour", policy.per_hour, 1, self.hour),
            of_fleet("drains at a time", policy.outstanding, 1, self.outstanding),
            describe_each("domain", policy.per_domain, &domains),
            describe_each("leaf", policy.per_leaf, &self.leaves),
            of_fleet("marks within the hour", policy.relabels_per_hour, 2, self.relabels),
        ]
    }

    /// Checks whether one more drain fits, the limits in their order (algorithms, section 6.3).
    pub(super) fn check_drain(
        &self,
        node: &NodeName,
        domain: Option<&DomainName>,
        price: Option<f64>,
    ) -> Result<(), BudgetExhaustion> {
        let policy = self.policy;
        let full = |of_domain: bool, why: String| {
            Err(BudgetExhaustion { why, is_domain_budget: of_domain })
        };
        // A repeated drain does not count against itself.
        let own = usize::from(self.lost.contains(node));
        let in_domain = domain.and_then(|d| self.domains.get(d)).copied().unwrap_or(0);
        let in_domain = in_domain.saturating_sub(own);
        if policy.per_domain <= in_domain {
            let name = domain.map_or("no domain", |d| d.as_str());
            let most = policy.per_domain;
            return full(
                true,
                format!(
                    "budget: {in_domain} nodes of {name} are drained or proposed (limit {most})"
                ),
            );
        }
        for leaf in self.claim_index.leaves_of(node) {
            let there = self.leaves.get(leaf).copied().unwrap_or(0).saturating_sub(own);
            if policy.per_leaf <= there {
                let most = policy.per_leaf;
                return full(
                    false,
                    format!(
                        "budget: {there} nodes on leaf {leaf} are drained or proposed (limit {most})"
                    ),
                );
            }
        }
        for gang in self.running.get(node).into_iter().flatten() {
            let there = self.gangs.get(gang).copied().unwrap_or(0).saturating_sub(own);
            if policy.per_gang <= there {
                let (gang, most) = (clean(gang), policy.per_gang);
                return full(
                    false,
                    format!(
                        "budget: {there} nodes of {gang}, which runs on it, are drained or \
                         proposed (limit {most})"
                    ),
                );
            }
        }
        let most = self.share_of_fleet(policy.per_hour, 1);
        if most <= self.hour {
            return full(
                false,
                format!(
                    "budget: {} drains were started within the hour or are proposed (limit {most}: \
                     {} of {} nodes)",
                    self.hour,
                    format_percent(policy.per_hour),
                    self.fleet
                ),
            );
        }
        let most = self.share_of_fleet(policy.outstanding, 1);
        let outstanding = self.outstanding.saturating_sub(own);
        if most <= outstanding {
            return full(
                false,
                format!(
                    "budget: {outstanding} drains by fabricgate are outstanding or proposed (limit \
                     {most}: {} of {} nodes)",
                    format_percent(policy.outstanding),
                    self.fleet
                ),
            );
        }
        if let Some((price, most)) = price.zip(policy.price_ceiling)
            // A NaN price exceeds every limit.
            && (price.is_nan() || most < price)
        {
            return full(
                false,
                format!("budget: this drain costs {price:.2} schedulable nodes (limit {most:.2})"),
            );
        }
        Ok(())
    }

    /// Checks whether one more mark fits.
    pub(super) fn check_relabel(&self) -> Result<(), BudgetExhaustion> {
        let most = self.share_of_fleet(self.policy.relabels_per_hour, 2);
        if self.relabels < most {
            return Ok(());
        }
        let why = format!(
            "budget: {} nodes were marked within the hour or are proposed (limit {most}: {} of {} \
             nodes)",
            self.relabels,
            format_percent(self.policy.relabels_per_hour),
            self.fleet
        );
        Err(BudgetExhaustion { why, is_domain_budget: false })
    }

    /// Charges a drain to all budgets.
    pub(super) fn spend_drain(&mut self, node: &NodeName, domain: Option<&DomainName>) {
        self.spend(domain, self.claim_index.leaves_of(node));
        self.spend_gangs(node);
        self.hour += 1;
    }

    fn spend_gangs(&mut self, node: &NodeName) {
        for gang in self.running.get(node).into_iter().flatten() {
            *self.gangs.entry(gang.clone()).or_default() += 1;
        }
    }

    /// Charges a mark to its budget.
    pub(super) fn spend_relabel(&mut self) {
        self.relabels += 1;
    }

    fn spend(&mut self, domain: Option<&DomainName>, leaves: BTreeSet<&str>) {
        self.outstanding += 1;
        if let Some(domain) = domain {
            *self.domains.entry(domain.clone()).or_default() += 1;
        }
        for leaf in leaves {
            *self.leaves.entry(leaf.to_owned()).or_default() += 1;
        }
    }

    /// A share of the fleet in nodes, at least `least`; 0 if the share is 0.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "shares of a fleet are far below 2^52 and never negative"
    )]
    fn share_of_fleet(&self, share: f64, least: usize) -> usize {
        if share <= 0.0 {
            return 0;
        }
        ((self.fleet as f64 * share).floor() as usize).max(least)
    }
}

/// What is left of every budget, as sentences for users.
pub fn describe_remaining(
    ledger: &JournalState,
    live: Option<&SchedulerSnapshot>,
    fleet: &Claims,
    policy: &Policy,
    now: &ClockStamp,
) -> Vec<String> {
    let places = ClaimIndex::from_claims(fleet);
    DrainBudget::from_journal(ledger, live, &places, policy, now).describe_remaining()
}

/// Why lost drains are not repeated: more nodes are out than the limits allow.
pub fn explain_overrun(
    ledger: &JournalState,
    live: &SchedulerSnapshot,
    fleet: &Claims,
    policy: &Policy,
    now: &ClockStamp,
) -> Option<String> {
    let places = ClaimIndex::from_claims(fleet);
    DrainBudget::from_journal(ledger, Some(live), &places, policy, now).explain_overrun()
}

/// A fleet-wide budget, in nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetShare {
    /// The budget's name in JSON and metrics.
    pub name: &'static str,
    /// Nodes left.
    pub left: usize,
    /// The limit.
    pub limit: usize,
}

/// The fleet-wide budgets for a fleet of `fleet` nodes after what this journal has spent.
pub fn budget_shares(
    ledger: &JournalState,
    fleet: usize,
    policy: &Policy,
    now: &ClockStamp,
) -> [BudgetShare; 3] {
    let nowhere = ClaimIndex::default();
    let mut budget = DrainBudget::from_journal(ledger, None, &nowhere, policy, now);
    budget.fleet = fleet;
    let of = |name, share: f64, least, spent| {
        let limit = budget.share_of_fleet(share, least);
        BudgetShare { name, left: limit.saturating_sub(spent), limit }
    };
    [
        of("drains_within_hour", policy.per_hour, 1, budget.hour),
        of("drains_at_a_time", policy.outstanding, 1, budget.outstanding),
        of("marks_within_hour", policy.relabels_per_hour, 2, budget.relabels),
    ]
}

/// Counts the drains and the marks that were started within the hour.
pub fn count_within_hour(ledger: &JournalState, now: &ClockStamp) -> (usize, usize) {
    let recent = ledger.spent.iter().filter(|spent| is_recent(&spent.stamp, now, HOUR_S));
    recent.fold((0, 0), |(drains, marks), spent| match spent.action.kind {
        ActionKind::Drain => (drains + 1, marks),
        ActionKind::Relabel => (drains, marks + 1),
        ActionKind::Release | ActionKind::Certify => (drains, marks),
    })
}

/// One sentence about the room left in each domain or leaf.
fn describe_each(what: &str, most: usize, spent: &BTreeMap<impl AsRef<str>, usize>) -> String {
    let full = spent.iter().filter(|(_, spent)| most <= **spent);
    let full: Vec<String> = full.map(|(name, _)| clean(name.as_ref())).collect();
    let shown = full[..full.len().min(MAX_LISTED)].join(", ");
    let left = match full.len() {
        0 => "all have some left".to_owned(),
        few if few <= MAX_LISTED => format!("none left in {shown}"),
        many => format!("none left in {shown} and {} more", many - MAX_LISTED),
    };
    format!("drains in each {what}: at most {most} at a time, {left}")
}

/// Why the breaker must trip and stay tripped until a user resets it; `None` if there is no reason,
/// or if it has already tripped. A problem of one run (steps that did not return) stops only that
/// run's plan.
pub fn explain_trip(situation: &Situation<'_>, policy: &Policy) -> Option<String> {
    let is_ours = situation.live.is_some() && situation.ledger.breaker.is_none();
    if !is_ours || evidence_checks::explain_unusable(situation, policy).is_some() {
        return None;
    }
    let places = ClaimIndex::from_claims(situation.fleet);
    let suspects = suspects::collect_suspects(situation.verdicts, &places, &mut Vec::new());
    let doubt = freeze::find_freeze(situation, &places, policy, &suspects);
    doubt.everywhere.filter(|cause| cause.is_lasting).map(|cause| cause.why)
}

/// The nodes attached to a leaf, by the claimed topology and by their NICs.
pub(super) fn nodes_under_leaf<'c>(claims: &'c Claims, leaf: &str) -> BTreeSet<&'c NodeName> {
    let claimed = claims.leaves.iter().filter(|it| it.name == leaf).flat_map(|it| &it.nodes);
    let hangs = |nics: &[NicReport]| nics.iter().any(|nic| nic.leaf.as_deref() == Some(leaf));
    let by_nics =
        claims.nodes.iter().filter(|(_, report)| hangs(&report.nics)).map(|(node, _)| node);
    claimed.chain(by_nics).collect()
}

/// The gangs that run on a node. Nodes whose pods could not be read count as one gang, so that
/// they are drained one by one.
fn gangs_of(node: &SchedulerNode) -> BTreeSet<String> {
    if !node_state::is_use_known(node) {
        return ["the nodes whose pods could not be read".to_owned()].into();
    }
    let gangs = node.kubernetes.iter().flat_map(|it| &it.gangs);
    gangs.map(|gang| format!("gang {gang}")).collect()
}

/// Whether a time is less than `window_s` seconds ago. Within one boot the uptime decides;
/// otherwise the wall clock does, and a time in its future counts as recent, because the clock was
/// set back.
pub(super) fn is_recent(stamp: &ClockStamp, now: &ClockStamp, window_s: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "moments are far below 2^52 seconds")]
    let age = if !stamp.boot.is_empty() && stamp.boot == now.boot {
        now.uptime_s - stamp.uptime_s
    } else {
        now.unix.saturating_sub(stamp.unix) as f64
    };
    // NaN counts as recent.
    age.is_nan() || age < window_s
}

fn format_percent(share: f64) -> String {
    format!("{} %", (share * 1_000.0).round() / 10.0)
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
