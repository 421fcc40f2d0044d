//! The gate of the year: what `act` decides, carried out on a scheduler that
//! always does what it is told.
//!
//! Nothing is decided here. Journal, budgets, breaker, releases and undos are
//! `act`'s own; a scheduler that fails is another study (docs/reliability.md).

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::act::again;
use crate::act::budget;
use crate::act::ledger::Ledger;
use crate::act::notice;
use crate::act::policy;
use crate::act::policy::Policy;
use crate::act::situation::RunSeen;
use crate::act::situation::Situation;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::action::ActionPlan;
use crate::model::action::ActionResult;
use crate::model::change::Change;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::model::journal::Entry;
use crate::model::journal::Event;
use crate::model::journal::JOURNAL_FORMAT;
use crate::model::journal::Stamp;
use crate::model::live::Live;
use crate::model::live::LiveNode;
use crate::model::moment::rfc3339;
use crate::model::profile::Profile;
use crate::model::verdict::Verdicts;

/// When the year begins, in seconds since 1970.
pub(super) const BEGIN: i64 = 1_767_225_600;

/// A certificate of the last day makes a node a control.
const CONTROL_S: i64 = 86_400;

/// The gate.
#[derive(Debug)]
pub(super) struct Gate {
    policy: Policy,
    ledger: Ledger,
    live: Live,
    /// When each node was last certified or given back.
    certified: BTreeMap<NodeName, i64>,
}

/// A run that the gate is to act on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran<'a> {
    pub(super) profile: Profile,
    pub(super) verdicts: &'a Verdicts,
    pub(super) drivers: &'a BTreeMap<NodeName, String>,
    /// When it began and ended, in seconds since the year began.
    pub(super) from_s: f64,
    pub(super) to_s: f64,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) struct Turned {
    pub(super) plan: ActionPlan,
    pub(super) tripped: bool,
}

impl Gate {
    pub(super) fn of(policy: Policy, fleet: &Claims) -> Self {
        let nodes = fleet.domains.iter().flat_map(|domain| &domain.nodes);
        let idle = |node: &NodeName| {
            let live = LiveNode {
                booted: Some(BEGIN - 90_000),
                allocated_cpus: Some(0),
                ..LiveNode::new(node.clone(), &["IDLE"])
            };
            (node.clone(), live)
        };
        let live = Live { nodes: nodes.map(idle).collect(), troubles: Vec::new() };
        Self { policy, ledger: Ledger::default(), live, certified: BTreeMap::new() }
    }

    /// Whether a node may be measured by an audit: in service and idle.
    pub(super) fn is_in_service(&self, node: &NodeName) -> bool {
        self.live.nodes.get(node).is_some_and(|live| !live.is("DRAIN"))
    }

    /// A person drains a node for a reason of his own.
    pub(super) fn drain_by_hand(&mut self, node: &NodeName) {
        let Some(live) = self.live.nodes.get_mut(node).filter(|live| !live.is("DRAIN")) else {
            return;
        };
        live.state.push("DRAIN".to_owned());
        live.reason = Some("maintenance".to_owned());
        live.reason_by = Some("operator".to_owned());
    }

    /// The same person gives it back.
    pub(super) fn resume_by_hand(&mut self, node: &NodeName) {
        let theirs =
            |live: &&mut LiveNode| live.reason.as_deref().is_some_and(|it| it == "maintenance");
        if let Some(live) = self.live.nodes.get_mut(node).filter(theirs) {
            live.state.retain(|word| word != "DRAIN");
            live.reason = None;
            live.reason_by = None;
        }
    }

    /// Nodes that one run found slow, and that wait for another.
    pub(super) fn suspected(&self, at_s: f64) -> impl Iterator<Item = &NodeName> {
        let open = move |suspicion| again::is_open(suspicion, &self.policy, unix(at_s));
        self.ledger.suspected.iter().filter(move |(_, it)| open(it)).map(|(node, _)| node)
    }

    /// A node boots, as after a repair.
    pub(super) fn boot(&mut self, node: &NodeName, at_s: f64) {
        if let Some(live) = self.live.nodes.get_mut(node) {
            live.booted = Some(unix(at_s));
        }
    }

    /// A person puts a tripped breaker back.
    pub(super) fn reset(&mut self, at_s: f64) {
        if self.ledger.breaker.is_some() {
            let event = Event::Reset { by: "operator".to_owned(), why: "looked".to_owned() };
            self.note(event, at_s);
        }
    }

    /// Takes a turn, as `gate::turn` does.
    pub(super) fn turn(&mut self, fleet: &Claims, ran: Ran<'_>) -> Turned {
        let now = stamp(ran.to_s);
        self.ledger.epoch += 1;
        let opened = Event::Opened { host: "gate".to_owned(), pid: 1, version: String::new() };
        self.note(opened, ran.to_s);
        let run = seen(ran);
        let controls: BTreeSet<NodeName> = self
            .certified
            .iter()
            .filter(|(_, at)| now.unix - **at < CONTROL_S)
            .map(|(node, _)| node.clone())
            .collect();
        let events = notice::events(
            &situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &self.policy,
        );
        for event in events {
            self.note(event, ran.to_s);
        }
        let trip = budget::trip(
            &situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &self.policy,
        );
        let tripped = trip.is_some();
        if let Some(why) = trip {
            self.note(Event::Tripped { why, run: run.id.clone() }, ran.to_s);
        }
        let plan = policy::propose(
            &situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &self.policy,
        );
        let suspicions = notice::suspicions(
            &situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &plan,
        );
        for event in suspicions {
            self.note(event, ran.to_s);
        }
        for action in &plan.actions {
            self.carry(action, &run, ran.to_s);
        }
        Turned { plan, tripped }
    }

    /// Journal, scheduler, journal.
    fn carry(&mut self, action: &Action, run: &RunSeen, at_s: f64) {
        let Some(before) = self.live.nodes.get(&action.node).cloned() else { return };
        let id = format!("{} {} {:?} {}", run.id, action.node, action.kind, self.ledger.epoch);
        let intent = Event::Intent {
            id: id.clone(),
            run: run.id.clone(),
            action: Box::new(action.clone()),
            change: Box::new(Change::default()),
            before: Box::new(before),
        };
        self.note(intent, at_s);
        if let Some(live) = self.live.nodes.get_mut(&action.node) {
            match action.kind {
                ActionKind::Drain => {
                    live.state.push("DRAIN".to_owned());
                    live.reason = Some(action.reason.clone());
                    live.reason_at = Some(unix(at_s));
                }
                ActionKind::Release => {
                    live.state.retain(|word| word != "DRAIN");
                    live.reason = None;
                    live.reason_at = None;
                }
                // What is said beside a node's state is not looked at in this study.
                ActionKind::Relabel | ActionKind::Certify => {}
            }
        }
        if matches!(action.kind, ActionKind::Release | ActionKind::Certify) {
            self.certified.insert(action.node.clone(), unix(at_s));
        } else {
            self.certified.remove(&action.node);
        }
        self.note(Event::Outcome { id, result: ActionResult::Done, detail: String::new() }, at_s);
    }

    fn note(&mut self, event: Event, at_s: f64) {
        let (seq, epoch) = (self.ledger.lines + 1, self.ledger.epoch);
        let format = JOURNAL_FORMAT.to_owned();
        self.ledger.take(&Entry { format, seq, stamp: stamp(at_s), epoch, event });
    }
}

/// A moment of the year, in seconds since 1970.
#[expect(clippy::cast_possible_truncation, reason = "seconds of a year")]
pub(super) fn unix(at_s: f64) -> i64 {
    BEGIN + at_s as i64
}

fn stamp(at_s: f64) -> Stamp {
    let unix = unix(at_s);
    Stamp { at: rfc3339(unix), unix, boot: "gate".to_owned(), uptime_s: at_s }
}

/// The run as the gate sees it.
fn seen(ran: Ran<'_>) -> RunSeen {
    let created_unix = unix(ran.from_s);
    RunSeen {
        id: format!("{}-{}", ran.profile, created_unix - BEGIN),
        profile: ran.profile.as_str().to_owned(),
        created: rfc3339(created_unix),
        created_unix,
        complete: true,
        real: true,
        simulated: false,
        unsealed: None,
        unsure: BTreeMap::new(),
    }
}

/// What a decision rests on.
fn situation<'a>(
    fleet: &'a Claims,
    ledger: &'a Ledger,
    live: &'a Live,
    controls: &'a BTreeSet<NodeName>,
    run: &'a RunSeen,
    ran: Ran<'a>,
    now: &'a Stamp,
) -> Situation<'a> {
    static NO_BOOTS: BTreeMap<NodeName, String> = BTreeMap::new();
    Situation {
        verdicts: ran.verdicts,
        fleet,
        coverage: None,
        run,
        live: Some(live),
        ledger,
        controls,
        drivers: ran.drivers,
        boots: &NO_BOOTS,
        now,
    }
}
