//! From verdicts to an action plan, inside a blast-radius budget.
//!
//! Pure. A node is proposed for a drain only where a finding names it as the
//! part at fault. Findings about a domain, plane, leaf, rail, pair or the
//! instrument never drain anybody: the nodes there are the ones that suffer.
//! Unknown never acts. Whatever is not proposed is listed with its reason.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::budget::Budget;
use super::capacity::Mix;
use super::classes;
use super::classes::Accusation;
use super::grounds;
use super::instrument;
use super::instrument::Doubt;
use super::ledger::Ledger;
use super::ledger::OwnDrain;
use super::reason;
use super::release;
use super::situation::Coverage;
use super::situation::Now;
use super::situation::RunSeen;
use super::situation::Situation;
use super::standing;
use super::suspects;
use super::suspects::Suspect;
use super::worth::Prices;
use super::worth::Worth;
use crate::measure::text::clean;
use crate::model::action::ACTIONS_FORMAT;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::action::ActionPlan;
use crate::model::action::Mark;
use crate::model::action::Withheld;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::model::live::LiveNode;
use crate::model::verdict::Finding;
use crate::model::verdict::Outcome;
use crate::model::verdict::Verdicts;

/// What may be done. The defaults are deliberately small (algorithms, sections 5
/// and 6); a limit that is left out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Most nodes of one domain that are drained by us at a time.
    pub per_domain: usize,
    /// Most nodes on one leaf switch, likewise.
    pub per_leaf: usize,
    /// Share of all claimed nodes that may be drained within an hour; at least
    /// one node, unless it is 0.
    pub per_hour: f64,
    /// Share of all claimed nodes that may be out by us at a time; at least one
    /// node, unless it is 0.
    pub outstanding: f64,
    /// Share of all claimed nodes that may be marked within an hour and stay in
    /// service; at least two nodes, unless it is 0. Marking takes nothing out of
    /// service, so more is allowed than of drains.
    pub relabels_per_hour: f64,
    /// Most that one drain may cost, in expected schedulable nodes. Without it
    /// the price stops no drain of a hard fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_ceiling: Option<f64>,
    /// This many suspects in one domain are a common cause, not bad nodes.
    pub freeze_domain: usize,
    /// This share of all claimed nodes, likewise. In a small fleet it still
    /// takes `freeze_domain` suspects.
    pub freeze_fleet: f64,
    /// When more than this share of the nodes that were certified within the day
    /// fail, and at least two, the sweep is in doubt and not the nodes.
    pub freeze_controls: f64,
    /// Propose what no second measurement has confirmed yet, in a plan that is
    /// only read.
    pub propose_unconfirmed: bool,
    /// Only what a second, independent measurement confirmed is carried out.
    pub confirmed: bool,
    /// Hours after which a run proposes nothing any more: the time that a
    /// certificate counts.
    pub evidence_hours: f64,
    /// Days for which a person's undo stands against the same evidence.
    pub acknowledged_days: f64,
    /// Runs of a simulated fabric act on a scheduler. For laboratories.
    pub simulated: bool,
    /// What is done about nodes that work below what they must deliver.
    pub soft: SoftFaults,
    /// Classes of findings that are shown and never act: how a new rule is tried.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub shadow: BTreeSet<String>,
    /// Share of a job's step that waits for the fabric, as 0 to 1.
    pub exposed: f64,
    /// Nodes of the largest job that may be put on a node. Without it the nodes
    /// of its largest partition, or all that are claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_gang: Option<usize>,
    /// Share of nodes that are out of service at any time, as 0 to 1.
    pub unavailable: f64,
    /// The segments that jobs ask for, as nodes of a segment and the share of
    /// nodes that such jobs use. Without it no drain has a price.
    #[serde(skip_serializing_if = "is_unsaid")]
    pub mix: Mix,
}

fn is_unsaid(mix: &Mix) -> bool {
    mix.0.is_empty()
}

/// What is done about nodes that work below what they must deliver.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SoftFaults {
    /// Drain them where that costs less than it saves, else mark them.
    #[default]
    Price,
    /// Always drain them.
    Drain,
    /// Never drain them, mark them.
    Relabel,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            per_domain: 2,
            per_leaf: 2,
            per_hour: 0.01,
            outstanding: 0.03,
            relabels_per_hour: 0.05,
            price_ceiling: None,
            freeze_domain: 3,
            freeze_fleet: 0.05,
            freeze_controls: 0.1,
            propose_unconfirmed: true,
            confirmed: true,
            evidence_hours: 24.0,
            acknowledged_days: 7.0,
            simulated: false,
            soft: SoftFaults::Price,
            shadow: BTreeSet::new(),
            exposed: 0.3,
            largest_gang: None,
            unavailable: 0.01,
            mix: Mix::default(),
        }
    }
}

impl Policy {
    /// Whether every limit is in its range; else which is not, and what was
    /// expected.
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
            ("evidence_hours", Some(self.evidence_hours)),
            ("acknowledged_days", Some(self.acknowledged_days)),
            ("price_ceiling", self.price_ceiling),
        ];
        let is_wrong = |value: f64| !value.is_finite() || value < 0.0;
        for (name, value) in positive {
            if let Some(value) = value.filter(|value| is_wrong(*value)) {
                return Err(format!("{name} {value}, expected a number from 0 on"));
            }
        }
        if self.exposed <= 0.0 {
            return Err("exposed 0, expected more than 0: jobs that never wait lose nothing".into());
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

/// What verdicts alone ask for: nobody was asked how the nodes stand, and
/// nothing is known of earlier actions. A plan to read, not to carry out.
pub fn of_verdicts(
    verdicts: &Verdicts,
    fleet: &Claims,
    policy: &Policy,
    coverage: Option<Coverage>,
    run: &RunSeen,
) -> ActionPlan {
    let situation = Situation {
        verdicts,
        fleet,
        coverage,
        run,
        live: None,
        ledger: &Ledger::default(),
        controls: &BTreeSet::new(),
        drivers: &BTreeMap::new(),
        now: &Now::default(),
    };
    propose(&situation, policy)
}

/// Proposes actions. Nothing is carried out by this.
pub fn propose(situation: &Situation<'_>, policy: &Policy) -> ActionPlan {
    let mut withheld = Vec::new();
    let suspects = suspects::of(situation.verdicts, situation.fleet, &mut withheld);
    let doubt = instrument::doubt(situation, policy, &suspects);
    let frozen = tripped(situation)
        .or_else(|| grounds::unusable(situation, policy))
        .or_else(|| doubt.everywhere.as_ref().map(|cause| cause.why.clone()));
    let mut desk = Desk {
        situation,
        policy,
        frozen: frozen.as_deref(),
        doubt: &doubt,
        budget: Budget::of(situation, policy),
        prices: Prices::of(situation, policy),
    };
    let mut actions = Vec::new();
    for suspect in &suspects {
        match desk.decide(suspect) {
            Ok(action) => actions.push(action),
            Err(why) => withheld.push(Withheld { what: suspect.node.to_string(), why }),
        }
    }
    returned(situation, policy, &mut actions, &mut withheld);
    actions.sort_by(|a, b| (&a.node, a.kind).cmp(&(&b.node, b.kind)));
    ActionPlan {
        format: ACTIONS_FORMAT.to_owned(),
        dry_run: true,
        frozen,
        actions,
        withheld,
        records: Vec::new(),
    }
}

/// Releases and certificates beside the drains: no breaker and no freeze stops
/// them. A node that something is taken from in the same plan gets none.
fn returned(
    situation: &Situation<'_>,
    policy: &Policy,
    actions: &mut Vec<Action>,
    withheld: &mut Vec<Withheld>,
) {
    let (releases, kept) = release::propose(situation, policy);
    let taken: BTreeSet<NodeName> = actions.iter().map(|action| action.node.clone()).collect();
    withheld.extend(kept);
    for release in releases {
        if taken.contains(&release.node) {
            let why = "the same run accuses it".to_owned();
            withheld.push(Withheld { what: release.node.to_string(), why });
        } else {
            actions.push(release);
        }
    }
}

fn tripped(situation: &Situation<'_>) -> Option<String> {
    let breaker = situation.ledger.breaker.as_ref()?;
    Some(format!(
        "the breaker tripped at {} ({}; run {}); nothing but releases until a person resets it",
        clean(&breaker.stamp.at),
        clean(&breaker.why),
        clean(&breaker.run)
    ))
}

/// Where the suspects are decided on, one after the other, worst first.
struct Desk<'a> {
    situation: &'a Situation<'a>,
    policy: &'a Policy,
    frozen: Option<&'a str>,
    doubt: &'a Doubt,
    budget: Budget<'a>,
    prices: Prices<'a>,
}

impl<'a> Desk<'a> {
    /// What is proposed for a suspect, or why nothing is.
    fn decide(&mut self, suspect: &Suspect<'_>) -> Result<Action, String> {
        let live = self.standing(suspect)?;
        let findings = self.acting(suspect)?;
        if let Some(live) = live
            && let Some(why) = grounds::acknowledged(self.situation, self.policy, live, &findings)
        {
            return Err(why);
        }
        let accused = classes::accusation(&findings).ok_or("nothing is held against it")?;
        let is_hard = matches!(accused, Accusation::Hard(_));
        if let Some(why) = grounds::unfinished(self.situation, is_hard) {
            return Err(why);
        }
        let price = self.prices.price(suspect.domain);
        let (kind, because) = match accused {
            Accusation::Hard(_) => (ActionKind::Drain, None),
            Accusation::Elsewhere(_) => (ActionKind::Relabel, Some(self.elsewhere(suspect)?)),
            Accusation::Soft(found) => match self.prices.weigh(suspect.node, found, price) {
                Worth::Drain(why) => (ActionKind::Drain, price.map(|_| why)),
                Worth::Mark(why) => (ActionKind::Relabel, Some(why)),
            },
        };
        let found = accused.finding();
        if kind == ActionKind::Drain {
            self.budget.drain(suspect.node, suspect.domain, price).map_err(|full| {
                let swap = if full.of_domain { self.swap(suspect, found) } else { None };
                full.why + &swap.unwrap_or_default()
            })?;
            self.budget.spend_drain(suspect.node, suspect.domain);
            self.prices.drained(suspect.node, suspect.domain);
        } else {
            if grounds::is_marked(self.situation, suspect.node, found) {
                return Err(format!("it is marked {} ({}) already", found.outcome, found.class));
            }
            self.budget.relabel().map_err(|full| full.why)?;
            self.budget.spend_relabel();
        }
        Ok(self.action(kind, suspect, &findings, found, price, because, live))
    }

    /// The node as its scheduler shows it, or why it is left alone.
    fn standing(&self, suspect: &Suspect<'_>) -> Result<Option<&'a LiveNode>, String> {
        if let Some(why) = self.frozen {
            return Err(format!("frozen: {why}"));
        }
        if let Some(why) = suspect.domain.and_then(|domain| self.doubt.domains.get(domain)) {
            return Err(format!("frozen: {why}"));
        }
        if suspect.domain.is_none() {
            let why = "no domain claims this node, so the scheduler may know it by another name";
            return Err(why.to_owned());
        }
        if let Some(why) = not_drainable(suspect.node) {
            return Err(why);
        }
        let said = self.situation.fleet.nodes.get(suspect.node);
        if let Some(marks) = said.map(|said| &said.opt_out).filter(|marks| !marks.is_empty()) {
            let marks: Vec<String> = marks.iter().map(|mark| clean(mark)).collect();
            return Err(format!("somebody asks that it be left alone: {}", marks.join(", ")));
        }
        let Some(live) = self.situation.live else { return Ok(None) };
        let Some(node) = live.nodes.get(suspect.node) else {
            return Err("the scheduler does not know it".to_owned());
        };
        let refusal = standing::may_not_drain(node, self.situation.ledger)
            .or_else(|| grounds::overtaken(self.situation, node));
        refusal.map_or(Ok(Some(node)), Err)
    }

    /// The findings about a suspect that may act.
    fn acting<'f>(&self, suspect: &Suspect<'f>) -> Result<Vec<&'f Finding>, String> {
        let is_shown = |f: &&Finding| !self.policy.shadow.contains(&f.class);
        let open: Vec<&Finding> = suspect.findings.iter().copied().filter(is_shown).collect();
        let Some(worst) = open.first() else {
            let class = &suspect.findings[0].class;
            return Err(format!("the policy only shows findings of this class ({class})"));
        };
        if self.situation.live.is_some() && self.policy.confirmed {
            let sure = classes::sure(&open);
            if sure.is_empty() {
                return Err(format!(
                    "suspect, not confirmed by a second, independent measurement: {}",
                    worst.class
                ));
            }
            return Ok(sure);
        }
        let is_confirmed = open.iter().any(|f| f.confirmed);
        if self.situation.live.is_none() && !is_confirmed && !self.policy.propose_unconfirmed {
            return Err("not confirmed by a second, independent measurement".to_owned());
        }
        Ok(open)
    }

    /// Where a node of another domain was measured to belong.
    fn elsewhere(&self, suspect: &Suspect<'_>) -> Result<String, String> {
        let reached = classes::reached(suspect.node, self.situation.fleet);
        reached.map(|place| format!("it reaches {place}")).ok_or_else(|| {
            "it is not in the domain it is claimed to be in, and no measurement shows which other \
             domain it reaches; a drain would destroy what a correct label keeps"
                .to_owned()
        })
    }

    /// The milder drain of ours that could make room for this one.
    fn swap(&self, suspect: &Suspect<'_>, found: &Finding) -> Option<String> {
        let fleet = self.situation.fleet;
        let here = self.situation.ledger.drains.iter().filter(|(node, own)| {
            let domain = fleet.domain_of(node).map(|d| &d.name).or(own.action.domain.as_ref());
            domain == suspect.domain
        });
        let severity = |own: &OwnDrain| {
            let outcome = own.action.mark.as_ref().map_or(Outcome::Failed, |mark| mark.outcome);
            (outcome, own.action.ratio.unwrap_or(0.0))
        };
        let milder = |a: (Outcome, f64), b: (Outcome, f64)| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1));
        let (node, mildest) = here.min_by(|a, b| milder(severity(a.1), severity(b.1)))?;
        let own = (found.outcome, found.ratio.unwrap_or(0.0));
        milder(severity(mildest), own).is_lt().then(|| {
            let ratio = mildest.action.ratio.map(|r| format!(", at {:.1} %", r * 100.0));
            format!(
                "; it is worse than {node} ({}{}), which is drained: to give that one back instead \
                 would make room for it",
                clean(&mildest.action.reason),
                ratio.unwrap_or_default()
            )
        })
    }

    /// The action itself.
    #[expect(clippy::too_many_arguments, reason = "all that was decided, in one place")]
    fn action(
        &self,
        kind: ActionKind,
        suspect: &Suspect<'_>,
        findings: &[&Finding],
        found: &Finding,
        price: Option<f64>,
        because: Option<String>,
        live: Option<&LiveNode>,
    ) -> Action {
        let run = self.situation.run;
        let mut why = format!("{} {}: {}", found.locus, found.outcome, found.summary);
        if 1 < findings.len() {
            why.push_str(&format!(" (and {} more)", findings.len() - 1));
        }
        if !findings.iter().any(|f| f.confirmed) {
            why.push_str("; not confirmed by a second measurement yet");
        }
        for more in because.into_iter().chain(live.and_then(standing::remark)) {
            why.push_str(&format!("; {more}"));
        }
        let (reason, command) = if kind == ActionKind::Drain {
            let reason = reason::write(&run.id, &found.class, self.situation.ledger.epoch);
            let command = ["scontrol", "update"].map(str::to_owned).into_iter().chain([
                format!("NodeName={}", suspect.node),
                "State=DRAIN".to_owned(),
                format!("Reason={reason}"),
            ]);
            (reason.clone(), command.collect())
        } else {
            // Which words a mark takes, the site's names and the node say.
            (String::new(), Vec::new())
        };
        let leaf = self.situation.fleet.leaf_of(suspect.node).map(|leaf| leaf.name.clone());
        Action {
            kind,
            node: suspect.node.clone(),
            domain: suspect.domain.cloned(),
            leaf,
            command,
            reason,
            mark: Some(Mark {
                outcome: found.outcome,
                class: Some(found.class.clone()),
                run: run.id.clone(),
                at: run.created.clone(),
                expires: None,
            }),
            findings: findings.iter().map(|f| f.id.clone()).collect(),
            ratio: found.ratio,
            price,
            why,
        }
    }
}

/// Names that `scontrol` would not read as exactly this one node. Its host
/// lists know brackets, commas and functions, and `ALL` drains the cluster.
fn not_drainable(node: &NodeName) -> Option<String> {
    let name = node.as_str();
    let plain = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if plain && !name.eq_ignore_ascii_case("all") {
        return None;
    }
    Some(format!("{name:?} would not be read as the name of one node"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
