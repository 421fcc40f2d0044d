//! Where suspects are decided on, one after the other and the worst first: what
//! is proposed for a node, or why nothing is.
//!
//! Pure. First comes what forbids it for the node, then what its findings ask
//! for, and last what stops whatever would be done: a freeze, a budget.

use std::cell::OnceCell;

use super::again;
use super::budget::Budget;
use super::classes;
use super::classes::Accusation;
use super::classes::Met;
use super::grounds;
use super::instrument::Doubt;
use super::ledger::OwnDrain;
use super::marks;
use super::places::Places;
use super::plane::Plane;
use super::policy::Policy;
use super::reason;
use super::situation::Situation;
use super::standing;
use super::suspects::Suspect;
use super::words;
use super::worth::Prices;
use super::worth::Worth;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::action::Again;
use crate::model::action::Mark;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::live::LiveNode;
use crate::model::text::clean;
use crate::model::verdict::Finding;
use crate::model::verdict::Outcome;

/// Why nothing is proposed for a node.
#[derive(Debug)]
pub(super) struct Refusal {
    /// In words.
    pub why: String,
    /// It would be done, but for a freeze or a budget.
    pub budget: bool,
    /// It would be done, where another run said the same.
    pub again: Option<Again>,
    /// No second measurement has confirmed it.
    pub unconfirmed: bool,
}

impl Refusal {
    /// For a freeze or a budget.
    fn of_budget(why: String) -> Self {
        Self { budget: true, ..Self::from(why) }
    }
}

impl Refusal {
    /// No second measurement has confirmed it.
    fn unconfirmed(why: String) -> Self {
        Self { unconfirmed: true, ..Self::from(why) }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, budget: false, again: None, unconfirmed: false }
    }
}

/// Where the suspects are decided on.
#[derive(Debug)]
pub(super) struct Desk<'a> {
    situation: &'a Situation<'a>,
    policy: &'a Policy,
    unusable: Option<&'a str>,
    frozen: Option<&'a str>,
    doubt: &'a Doubt,
    budget: Budget<'a>,
    prices: Prices<'a>,
    /// Who was measured with whom. Made where a node in a wrong domain asks for it.
    met: OnceCell<Met<'a>>,
}

/// What is to be done to a suspect, before anybody asks whether it may be now.
struct Verdict<'f> {
    kind: ActionKind,
    /// The finding that decides.
    found: &'f Finding,
    /// All that act.
    findings: Vec<&'f Finding>,
    price: Option<f64>,
    because: Option<String>,
}

impl<'a> Desk<'a> {
    /// With nothing decided yet.
    pub(super) fn of(
        situation: &'a Situation<'a>,
        places: &'a Places<'a>,
        policy: &'a Policy,
        unusable: Option<&'a str>,
        frozen: Option<&'a str>,
        doubt: &'a Doubt,
    ) -> Self {
        let budget = Budget::of(situation, places, policy);
        let prices = Prices::of(situation, places, policy);
        let met = OnceCell::new();
        Self { situation, policy, unusable, frozen, doubt, budget, prices, met }
    }

    /// What is proposed for a suspect, or why nothing is.
    pub(super) fn decide(&mut self, suspect: &Suspect<'_>) -> Result<Action, Refusal> {
        if let Some(why) = self.unusable {
            return Err(why.to_owned().into());
        }
        let live = self.standing(suspect)?;
        let verdict = match self.verdict(suspect, live) {
            // What a common cause makes slow is no first sight of a slow node.
            Err(refusal) if refusal.again.is_some() => {
                return Err(self.unfrozen(suspect).err().unwrap_or(refusal));
            }
            verdict => verdict?,
        };
        self.afford(suspect, &verdict)?;
        Ok(self.action(suspect, &verdict, live))
    }

    /// What its findings ask for.
    fn verdict<'f>(
        &self,
        suspect: &Suspect<'f>,
        live: Option<&LiveNode>,
    ) -> Result<Verdict<'f>, Refusal> {
        let findings = self.acting(suspect)?;
        if let Some(why) = live
            .and_then(|live| grounds::acknowledged(self.situation, self.policy, live, &findings))
        {
            return Err(why.into());
        }
        let accused = classes::accusation(&findings);
        let accused = accused.ok_or_else(|| "nothing is held against it".to_owned())?;
        let is_hard = matches!(accused, Accusation::Hard(_));
        if let Some(why) = grounds::unfinished(self.situation, is_hard) {
            return Err(why.into());
        }
        // Nothing more is lost with a node that takes nothing yet.
        let is_out = live.is_some_and(standing::is_unverified);
        let price = self.prices.price(suspect.domain);
        let price = price.map(|price| if is_out { 0.0 } else { price });
        let (kind, because) = match accused {
            Accusation::Hard(_) => (ActionKind::Drain, None),
            Accusation::Elsewhere(_) => (ActionKind::Relabel, Some(self.elsewhere(suspect)?)),
            Accusation::Soft(found) => match self.prices.weigh(suspect.node, found, price) {
                Worth::Drain(why) => (ActionKind::Drain, Some(why)),
                Worth::Mark(why) => {
                    // Where a milder one is out, the two may change places.
                    let swap = self.swap(suspect, found).unwrap_or_default();
                    (ActionKind::Relabel, Some(why + &swap))
                }
            },
        };
        let found = accused.finding();
        if kind == ActionKind::Relabel && grounds::is_marked(self.situation, suspect.node, found) {
            return Err(format!("it is marked {} ({}) already", found.outcome, found.class).into());
        }
        let is_soft_drain = matches!(accused, Accusation::Soft(_)) && kind == ActionKind::Drain;
        if let Some(live) = live.filter(|_| is_soft_drain && !is_out)
            && let Some((why, again)) =
                again::awaited(self.situation, self.policy, live, &findings, &suspect.findings)
        {
            return Err(Refusal { again: Some(again), ..Refusal::from(why) });
        }
        Ok(Verdict { kind, found, findings, price, because })
    }

    /// That nothing is frozen, here or everywhere.
    fn unfrozen(&self, suspect: &Suspect<'_>) -> Result<(), Refusal> {
        let of_domain = suspect.domain.and_then(|domain| self.doubt.domains.get(domain));
        let why = self.frozen.or(of_domain.map(String::as_str));
        why.map_or(Ok(()), |why| Err(Refusal::of_budget(format!("frozen: {why}"))))
    }

    /// Takes what is to be done out of the budgets, unless something stops it.
    fn afford(&mut self, suspect: &Suspect<'_>, verdict: &Verdict<'_>) -> Result<(), Refusal> {
        self.unfrozen(suspect)?;
        if verdict.kind == ActionKind::Relabel {
            self.budget.relabel().map_err(|full| Refusal::of_budget(full.why))?;
            self.budget.spend_relabel();
            return Ok(());
        }
        let room = self.budget.drain(suspect.node, suspect.domain, verdict.price);
        room.map_err(|full| {
            let swap = if full.of_domain { self.swap(suspect, verdict.found) } else { None };
            Refusal::of_budget(full.why + &swap.unwrap_or_default())
        })?;
        self.budget.spend_drain(suspect.node, suspect.domain);
        self.prices.drained(suspect.node, suspect.domain);
        Ok(())
    }

    /// The node as its scheduler shows it, or why it is left alone.
    fn standing(&self, suspect: &Suspect<'_>) -> Result<Option<&'a LiveNode>, String> {
        if suspect.domain.is_none() {
            let why = "no domain claims this node, so the scheduler may know it by another name";
            return Err(why.to_owned());
        }
        if !suspect.node.is_one_node() {
            return Err(standing::not_one(suspect.node));
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
            .or_else(|| grounds::is_slurms(node, self.policy))
            .or_else(|| grounds::overtaken(self.situation, node));
        refusal.map_or(Ok(Some(node)), Err)
    }

    /// The findings about a suspect that may act.
    fn acting<'f>(&self, suspect: &Suspect<'f>) -> Result<Vec<&'f Finding>, Refusal> {
        let is_shown = |f: &&Finding| !self.policy.shadow.contains(&f.class);
        let open: Vec<&Finding> = suspect.findings.iter().copied().filter(is_shown).collect();
        let Some(worst) = open.first() else {
            let class = &suspect.findings[0].class;
            return Err(format!("the policy only shows findings of this class ({class})").into());
        };
        if self.situation.live.is_some() && self.policy.confirmed {
            let sure = classes::sure(&open);
            if sure.is_empty() {
                return Err(Refusal::unconfirmed(format!(
                    "suspect, not confirmed by a second, independent measurement: {}",
                    worst.class
                )));
            }
            return Ok(sure);
        }
        let is_confirmed = open.iter().any(|f| f.confirmed);
        if self.situation.live.is_none() && !is_confirmed && !self.policy.propose_unconfirmed {
            let why = "not confirmed by a second, independent measurement";
            return Err(Refusal::unconfirmed(why.to_owned()));
        }
        Ok(open)
    }

    /// Where a node of another domain was measured to belong.
    fn elsewhere(&self, suspect: &Suspect<'_>) -> Result<String, String> {
        let fleet = self.situation.fleet;
        let met = self.met.get_or_init(|| Met::of(fleet));
        let reached = classes::reached(suspect.node, fleet, met);
        reached.map(|place| format!("it reaches {place}")).ok_or_else(|| {
            "it is not in the domain it is claimed to be in, and no measurement shows which other \
             domain it reaches; a drain would destroy what a correct label keeps"
                .to_owned()
        })
    }

    /// The milder drain of ours that could make room for this one.
    fn swap(&self, suspect: &Suspect<'_>, found: &Finding) -> Option<String> {
        let places = self.prices.places();
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
        let own = (found.outcome, found.share().unwrap_or(0.0));
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
    fn action(
        &self,
        suspect: &Suspect<'_>,
        verdict: &Verdict<'_>,
        live: Option<&LiveNode>,
    ) -> Action {
        let Verdict { kind, found, findings, price, because } = verdict;
        let run = self.situation.run;
        let mut why = format!("{} {}: {}", found.locus, found.outcome, found.summary);
        if 1 < findings.len() {
            why.push_str(&format!(" (and {} more)", findings.len() - 1));
        }
        if !findings.iter().any(|f| f.confirmed) {
            why.push_str("; not confirmed by a second measurement yet");
        }
        for more in because.clone().into_iter().chain(live.and_then(standing::remark)) {
            why.push_str(&format!("; {more}"));
        }
        let mark = Mark {
            outcome: found.outcome,
            class: Some(found.class.clone()),
            run: run.id.clone(),
            at: run.created.clone(),
            expires: None,
            boot_id: None,
            domain: None,
        };
        let mark = match live {
            Some(live) => marks::placed(mark, self.situation, live, suspect.domain),
            None => mark,
        };
        // Which words a mark takes, only the node as it is can say.
        let said = |live| marks::of_action(*kind, live, &mark, &self.policy.marks);
        let mut change = live.map(said).unwrap_or_default();
        let mut reason = String::new();
        let plane = live.map_or(Plane::Slurm, Plane::of);
        if *kind == ActionKind::Drain {
            reason = reason::write(&run.id, found.class.as_str(), self.situation.ledger.epoch);
            let state = Some(StateChange::Drain { reason: reason.clone() });
            // Slurm's words for what is said beside a drain are as long as whatever
            // others keep in the same field.
            let kubernetes = change.kubernetes.take();
            change = Change { state, kubernetes, ..Change::default() };
        }
        let command = words::line(suspect.node, &change, plane);
        let leaf = self.prices.places().leaf_of(suspect.node).map(str::to_owned);
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
            ratio: found.share(),
            ratio_of: found.found_by().map(|(_, of)| of),
            price: *price,
            why,
        }
    }
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
