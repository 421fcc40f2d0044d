//! How much may be taken out of service: per domain, per leaf, per hour,
//! outstanding in all, and at which price; and when to stop altogether.
//!
//! Pure: what was spent comes from the ledger, the time from the caller.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::grounds;
use super::instrument;
use super::ledger::Ledger;
use super::ledger::OwnDrain;
use super::places::Places;
use super::policy::Policy;
use super::put_back;
use super::situation::Situation;
use super::standing;
use super::suspects;
use model::action::Action;
use model::action::ActionKind;
use model::claims::Claims;
use model::id::DomainName;
use model::id::NodeName;
use model::journal::Stamp;
use model::live::Live;
use model::live::LiveNode;
use model::said::NicSaid;
use model::text::clean;

/// The hour of the hourly budgets, in seconds.
const HOUR_S: f64 = 3_600.0;

/// The same of the scheduler's clock.
const HOUR_UNIX: i64 = 3_600;

/// A drained node that the scheduler has not known for longer takes nothing out of a
/// budget, in seconds.
const ABSENT_S: f64 = 3.0 * 86_400.0;

/// Most domains or leaves that are named in one sentence.
const SHOWN: usize = 6;

/// What is left to spend, and what was.
#[derive(Debug)]
pub(super) struct Budget<'a> {
    policy: &'a Policy,
    places: &'a Places<'a>,
    fleet: usize,
    domains: BTreeMap<DomainName, usize>,
    leaves: BTreeMap<String, usize>,
    /// The gangs that run on each node, as its scheduler shows them.
    running: BTreeMap<&'a NodeName, BTreeSet<String>>,
    gangs: BTreeMap<String, usize>,
    hour: usize,
    outstanding: usize,
    relabels: usize,
    /// Nodes with a drain of ours that is counted and that a restored store lost.
    lost: BTreeSet<NodeName>,
}

/// A budget that is used up.
#[derive(Debug)]
pub(super) struct Exhausted {
    /// In numbers.
    pub why: String,
    /// It is that of the domain: another of its drains could be given back.
    pub of_domain: bool,
}

impl<'a> Budget<'a> {
    /// What earlier turns left: drains that stand or may stand, and what was
    /// begun in the last hour.
    pub(super) fn of(
        situation: &Situation<'a>,
        places: &'a Places<'a>,
        policy: &'a Policy,
    ) -> Self {
        let ledger = situation.ledger;
        let mut budget = Self::after(ledger, situation.live, places, policy, situation.now);
        let live = situation.live.map(|live| &live.nodes);
        let nodes = live.into_iter().flatten();
        budget.running = nodes.map(|(name, node)| (name, gangs(node))).collect();
        let open = ledger.open.iter().map(|open| &open.action);
        let open = open.filter(|action| action.kind == ActionKind::Drain).map(|it| &it.node);
        let unrecorded = situation.live.map(|live| standing::unrecorded(live, ledger));
        let unrecorded = unrecorded.iter().flatten().map(|node| &node.name);
        let out: BTreeSet<&NodeName> = open.chain(ledger.drains.keys()).chain(unrecorded).collect();
        for node in out {
            budget.take_gangs(node);
        }
        let is_lost = |(node, drain): &(&NodeName, &OwnDrain)| {
            let now = live.and_then(|live| live.get(node));
            now.is_some_and(|now| put_back::is_before(now, drain, ledger))
        };
        let lost = situation.ledger.drains.iter().filter(is_lost);
        budget.lost = lost.map(|(node, _)| node.clone()).collect();
        budget
    }

    /// What this ledger has spent, and what nodes show in our form without its knowing.
    fn after(
        ledger: &Ledger,
        live: Option<&Live>,
        places: &'a Places<'a>,
        policy: &'a Policy,
        now: &Stamp,
    ) -> Self {
        let mut budget = Self {
            policy,
            fleet: places.size(),
            places,
            domains: BTreeMap::new(),
            leaves: BTreeMap::new(),
            running: BTreeMap::new(),
            gangs: BTreeMap::new(),
            hour: 0,
            outstanding: 0,
            relabels: 0,
            lost: BTreeSet::new(),
        };
        // An intent that nobody concluded may have been carried out.
        let open = ledger.open.iter().map(|open| &open.action);
        let open = open.filter(|action| action.kind == ActionKind::Drain);
        let standing = ledger.drains.values().map(|own| &own.action);
        let out: BTreeMap<&NodeName, &Action> =
            open.chain(standing).map(|action| (&action.node, action)).collect();
        let is_shown = |node: &NodeName| live.is_some_and(|live| live.nodes.contains_key(node));
        let is_absent = |node: &NodeName| {
            let since = ledger.absent.get(node);
            !is_shown(node) && since.is_some_and(|since| !is_recent(since, now, ABSENT_S))
        };
        let unrecorded = live.map(|live| standing::unrecorded(live, ledger)).unwrap_or_default();
        let unrecorded = unrecorded.into_iter().filter(|node| !out.contains_key(&node.name));
        let mut recent = 0;
        for node in unrecorded {
            budget.take(
                budget.places.domain_of(&node.name).map(|d| &d.name),
                budget.places.leaves(&node.name),
            );
            let is_recent = |at: i64| now.unix.saturating_sub(at) < HOUR_UNIX;
            recent += usize::from(node.reason_at.is_some_and(is_recent));
        }
        for (node, then) in out.iter().filter(|(node, _)| !is_absent(node)) {
            // As it was claimed then, where nobody claims it any more: a run may
            // be of a part of the fleet.
            let domain = budget.places.domain_of(node).map(|d| &d.name);
            let hangs = budget.places.leaves(node);
            let then_on = then.leaf.iter().map(String::as_str);
            let hangs = if hangs.is_empty() { then_on.collect() } else { hangs };
            budget.take(domain.or(then.domain.as_ref()), hangs);
        }
        (budget.hour, budget.relabels) = within_hour(ledger, now);
        budget.hour += recent;
        budget
    }

    /// What is spent beyond its limit; an hour goes by.
    fn over(&self) -> Option<String> {
        let policy = self.policy;
        let most = self.share(policy.outstanding, 1);
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

    /// What is left, a sentence for each limit.
    fn left(&self) -> Vec<String> {
        let policy = self.policy;
        let of_fleet = |what: &str, share: f64, least: usize, spent: usize| {
            let most = self.share(share, least);
            let left = most.saturating_sub(spent);
            format!("{what}: {left} of {most} left ({} of {} nodes)", percent(share), self.fleet)
        };
        let domains: BTreeMap<&str, usize> =
            self.domains.iter().map(|(name, spent)| (name.as_str(), *spent)).collect();
        vec![
            of_fleet("drains within the hour", policy.per_hour, 1, self.hour),
            of_fleet("drains at a time", policy.outstanding, 1, self.outstanding),
            of_each("domain", policy.per_domain, &domains),
            of_each("leaf", policy.per_leaf, &self.leaves),
            of_fleet("marks within the hour", policy.relabels_per_hour, 2, self.relabels),
        ]
    }

    /// Whether one more drain fits, the limits in their order (algorithms,
    /// section 6.3).
    pub(super) fn drain(
        &self,
        node: &NodeName,
        domain: Option<&DomainName>,
        price: Option<f64>,
    ) -> Result<(), Exhausted> {
        let policy = self.policy;
        let full = |of_domain: bool, why: String| Err(Exhausted { why, of_domain });
        // A drain that is made again is not counted against itself.
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
        for leaf in self.places.leaves(node) {
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
        let most = self.share(policy.per_hour, 1);
        if most <= self.hour {
            return full(
                false,
                format!(
                    "budget: {} drains were begun within the hour or are proposed (limit {most}: {} of {} nodes)",
                    self.hour,
                    percent(policy.per_hour),
                    self.fleet
                ),
            );
        }
        let most = self.share(policy.outstanding, 1);
        let outstanding = self.outstanding.saturating_sub(own);
        if most <= outstanding {
            return full(
                false,
                format!(
                    "budget: {outstanding} drains of ours are outstanding or proposed (limit {most}: {} of {} nodes)",
                    percent(policy.outstanding),
                    self.fleet
                ),
            );
        }
        if let Some((price, most)) = price.zip(policy.price_ceiling)
            // A price that is no number is over every limit.
            && (price.is_nan() || most < price)
        {
            return full(
                false,
                format!("budget: this drain costs {price:.2} schedulable nodes (limit {most:.2})"),
            );
        }
        Ok(())
    }

    /// Whether one more mark fits.
    pub(super) fn relabel(&self) -> Result<(), Exhausted> {
        let most = self.share(self.policy.relabels_per_hour, 2);
        if self.relabels < most {
            return Ok(());
        }
        let why = format!(
            "budget: {} nodes were marked within the hour or are to be (limit {most}: {} of {} nodes)",
            self.relabels,
            percent(self.policy.relabels_per_hour),
            self.fleet
        );
        Err(Exhausted { why, of_domain: false })
    }

    /// Takes a drain from all budgets.
    pub(super) fn spend_drain(&mut self, node: &NodeName, domain: Option<&DomainName>) {
        self.take(domain, self.places.leaves(node));
        self.take_gangs(node);
        self.hour += 1;
    }

    fn take_gangs(&mut self, node: &NodeName) {
        for gang in self.running.get(node).into_iter().flatten() {
            *self.gangs.entry(gang.clone()).or_default() += 1;
        }
    }

    /// Takes a mark from its budget.
    pub(super) fn spend_relabel(&mut self) {
        self.relabels += 1;
    }

    fn take(&mut self, domain: Option<&DomainName>, leaves: BTreeSet<&str>) {
        self.outstanding += 1;
        if let Some(domain) = domain {
            *self.domains.entry(domain.clone()).or_default() += 1;
        }
        for leaf in leaves {
            *self.leaves.entry(leaf.to_owned()).or_default() += 1;
        }
    }

    /// A share of the fleet in nodes, at least so many; none where none is meant.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "shares of a fleet are far below 2^52 and never negative"
    )]
    fn share(&self, share: f64, least: usize) -> usize {
        if share <= 0.0 {
            return 0;
        }
        ((self.fleet as f64 * share).floor() as usize).max(least)
    }
}

/// What is left of every budget after what this ledger has and nodes show, for people.
pub fn left(
    ledger: &Ledger,
    live: Option<&Live>,
    fleet: &Claims,
    policy: &Policy,
    now: &Stamp,
) -> Vec<String> {
    let places = Places::of(fleet);
    Budget::after(ledger, live, &places, policy, now).left()
}

/// Why no drain of ours that was lost is made again: more is out than may be.
pub fn over(
    ledger: &Ledger,
    live: &Live,
    fleet: &Claims,
    policy: &Policy,
    now: &Stamp,
) -> Option<String> {
    let places = Places::of(fleet);
    Budget::after(ledger, Some(live), &places, policy, now).over()
}

/// A budget that is a share of the fleet, in nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which, as programs spell it.
    pub name: &'static str,
    /// What is left.
    pub left: usize,
    /// What it is in all.
    pub limit: usize,
}

/// The budgets of a fleet of so many nodes after what this ledger has, in numbers.
pub fn shares(ledger: &Ledger, fleet: usize, policy: &Policy, now: &Stamp) -> [Share; 3] {
    let nowhere = Places::default();
    let mut budget = Budget::after(ledger, None, &nowhere, policy, now);
    budget.fleet = fleet;
    let of = |name, share: f64, least, spent| {
        let limit = budget.share(share, least);
        Share { name, left: limit.saturating_sub(spent), limit }
    };
    [
        of("drains_within_hour", policy.per_hour, 1, budget.hour),
        of("drains_at_a_time", policy.outstanding, 1, budget.outstanding),
        of("marks_within_hour", policy.relabels_per_hour, 2, budget.relabels),
    ]
}

/// How many drains and how many marks were begun within the hour.
pub fn within_hour(ledger: &Ledger, now: &Stamp) -> (usize, usize) {
    let recent = ledger.spent.iter().filter(|spent| is_recent(&spent.stamp, now, HOUR_S));
    recent.fold((0, 0), |(drains, marks), spent| match spent.action.kind {
        ActionKind::Drain => (drains + 1, marks),
        ActionKind::Relabel => (drains, marks + 1),
        ActionKind::Release | ActionKind::Certify => (drains, marks),
    })
}

/// Whether there is room in each domain or leaf, for people.
fn of_each(what: &str, most: usize, spent: &BTreeMap<impl AsRef<str>, usize>) -> String {
    let full = spent.iter().filter(|(_, spent)| most <= **spent);
    let full: Vec<String> = full.map(|(name, _)| clean(name.as_ref())).collect();
    let shown = full[..full.len().min(SHOWN)].join(", ");
    let left = match full.len() {
        0 => "all have some left".to_owned(),
        few if few <= SHOWN => format!("none left in {shown}"),
        many => format!("none left in {shown} and {} more", many - SHOWN),
    };
    format!("drains in each {what}: at most {most} at a time, {left}")
}

/// Why the breaker must trip and stay tripped until a person resets it; `None`
/// where it must not, or is already. What is wrong with one run alone (steps
/// that did not come back) stops that run's plan and nothing after it.
pub fn trip(situation: &Situation<'_>, policy: &Policy) -> Option<String> {
    let is_ours = situation.live.is_some() && situation.ledger.breaker.is_none();
    if !is_ours || grounds::unusable(situation, policy).is_some() {
        return None;
    }
    let suspects = suspects::of(situation.verdicts, situation.fleet, &mut Vec::new());
    let places = Places::of(situation.fleet);
    let doubt = instrument::doubt(situation, &places, policy, &suspects);
    doubt.everywhere.filter(|cause| cause.lasting).map(|cause| cause.why)
}

/// The nodes that hang on a leaf: as claimed, and by their NICs.
pub(super) fn under<'c>(claims: &'c Claims, leaf: &str) -> BTreeSet<&'c NodeName> {
    let claimed = claims.leaves.iter().filter(|it| it.name == leaf).flat_map(|it| &it.nodes);
    let hangs = |nics: &[NicSaid]| nics.iter().any(|nic| nic.leaf.as_deref() == Some(leaf));
    let by_nics = claims.nodes.iter().filter(|(_, said)| hangs(&said.nics)).map(|(node, _)| node);
    claimed.chain(by_nics).collect()
}

/// The gangs that run on a node. Nodes whose pods were not read are one gang for
/// all we know, so that they go one by one.
fn gangs(node: &LiveNode) -> BTreeSet<String> {
    if !standing::is_use_known(node) {
        return ["the nodes whose pods could not be read".to_owned()].into();
    }
    let gangs = node.kubernetes.iter().flat_map(|it| &it.gangs);
    gangs.map(|gang| format!("gang {gang}")).collect()
}

/// Whether something happened within this many seconds. Within one boot the
/// uptime says so; else the wall's clock, and what lies in its future is taken
/// for recent: the clock was put back.
pub(super) fn is_recent(stamp: &Stamp, now: &Stamp, window_s: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "moments are far below 2^52 seconds")]
    let age = if !stamp.boot.is_empty() && stamp.boot == now.boot {
        now.uptime_s - stamp.uptime_s
    } else {
        now.unix.saturating_sub(stamp.unix) as f64
    };
    // No number is recent too.
    age.is_nan() || age < window_s
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1_000.0).round() / 10.0)
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
