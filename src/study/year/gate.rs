//! The gate of the year: executes the decisions of `engine::policy` on a scheduler that never
//! fails.
//!
//! This module decides nothing. Journal, budgets, breaker, releases and undos are the policy's;
//! failures of the scheduler are the subject of another study (docs/reliability.md).

use std::collections::{BTreeMap, BTreeSet};

use engine::policy::action_policy::Policy;
use engine::policy::journal_state::JournalState;
use engine::policy::situation::{EvidenceRun, Situation};
use engine::policy::{action_policy, budget, journal_events, repeat_confirmation};
use model::action::{Action, ActionKind, ActionPlan, ActionResult};
use model::claims::Claims;
use model::id::NodeName;
use model::journal::{ClockStamp, JOURNAL_FORMAT, JournalEntry, JournalEvent};
use model::node_update::NodeUpdate;
use model::profile::Profile;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::time_format::format_rfc3339;
use model::verdict::Verdicts;

/// Start of the year, in seconds since 1970.
pub(super) const YEAR_START_UNIX: i64 = 1_767_225_600;

/// A certificate of the last day makes a node a control.
const CONTROL_S: i64 = 86_400;

#[derive(Debug)]
pub(super) struct YearGate {
    policy: Policy,
    ledger: JournalState,
    live: SchedulerSnapshot,
    /// Time of each node's last certificate or return.
    certified: BTreeMap<NodeName, i64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct YearRun<'a> {
    pub(super) profile: Profile,
    pub(super) verdicts: &'a Verdicts,
    pub(super) drivers: &'a BTreeMap<NodeName, String>,
    /// Start and end in seconds since the start of the year.
    pub(super) from_s: f64,
    pub(super) to_s: f64,
}

#[derive(Debug)]
pub(super) struct YearGateOutcome {
    pub(super) plan: ActionPlan,
    pub(super) tripped: bool,
}

impl YearGate {
    pub(super) fn new(policy: Policy, fleet: &Claims) -> Self {
        let nodes = fleet.domains.iter().flat_map(|domain| &domain.nodes);
        let idle = |node: &NodeName| {
            let live = SchedulerNode {
                booted: Some(YEAR_START_UNIX - 90_000),
                allocated_cpus: Some(0),
                ..SchedulerNode::new(node.clone(), &["IDLE"])
            };
            (node.clone(), live)
        };
        let live = SchedulerSnapshot { nodes: nodes.map(idle).collect(), troubles: Vec::new() };
        Self { policy, ledger: JournalState::default(), live, certified: BTreeMap::new() }
    }

    /// True if an audit may measure a node: in service and idle.
    pub(super) fn is_in_service(&self, node: &NodeName) -> bool {
        self.live.nodes.get(node).is_some_and(|live| !live.has_state("DRAIN"))
    }

    /// An operator drains a node for an unrelated reason.
    pub(super) fn drain_manually(&mut self, node: &NodeName) {
        let Some(live) = self.live.nodes.get_mut(node).filter(|live| !live.has_state("DRAIN"))
        else {
            return;
        };
        live.state.push("DRAIN".to_owned());
        live.reason = Some("maintenance".to_owned());
        live.reason_by = Some("operator".to_owned());
    }

    pub(super) fn resume_manually(&mut self, node: &NodeName) {
        let theirs = |live: &&mut SchedulerNode| {
            live.reason.as_deref().is_some_and(|it| it == "maintenance")
        };
        if let Some(live) = self.live.nodes.get_mut(node).filter(theirs) {
            live.state.retain(|word| word != "DRAIN");
            live.reason = None;
            live.reason_by = None;
        }
    }

    /// Nodes that one run found slow, and that wait for another run.
    pub(super) fn suspected_nodes(&self, at_s: f64) -> impl Iterator<Item = &NodeName> {
        let open =
            move |suspicion| repeat_confirmation::is_open(suspicion, &self.policy, to_unix(at_s));
        self.ledger.suspicions.iter().filter(move |(_, it)| open(it)).map(|(node, _)| node)
    }

    /// A node reboots, as after a repair.
    pub(super) fn boot_node(&mut self, node: &NodeName, at_s: f64) {
        if let Some(live) = self.live.nodes.get_mut(node) {
            live.booted = Some(to_unix(at_s));
        }
    }

    /// An operator resets a tripped breaker.
    pub(super) fn reset_breaker(&mut self, at_s: f64) {
        if self.ledger.breaker.is_some() {
            let event = JournalEvent::Reset { by: "operator".to_owned(), why: "looked".to_owned() };
            self.append_event(event, at_s);
        }
    }

    /// Takes a turn, like `control::gate::reconciler`.
    pub(super) fn reconcile(&mut self, fleet: &Claims, ran: YearRun<'_>) -> YearGateOutcome {
        let now = to_stamp(ran.to_s);
        self.ledger.epoch += 1;
        let opened =
            JournalEvent::Opened { host: "gate".to_owned(), pid: 1, version: String::new() };
        self.append_event(opened, ran.to_s);
        let run = to_run_seen(ran);
        let controls: BTreeSet<NodeName> = self
            .certified
            .iter()
            .filter(|(_, at)| now.unix - **at < CONTROL_S)
            .map(|(node, _)| node.clone())
            .collect();
        let events = journal_events::collect_events(
            &build_situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &self.policy,
        );
        for event in events {
            self.append_event(event, ran.to_s);
        }
        let trip = budget::explain_trip(
            &build_situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &self.policy,
        );
        let tripped = trip.is_some();
        if let Some(why) = trip {
            self.append_event(JournalEvent::Tripped { why, run: run.id.clone() }, ran.to_s);
        }
        let plan = action_policy::propose_actions(
            &build_situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &self.policy,
        );
        let suspicions = journal_events::collect_suspicions(
            &build_situation(fleet, &self.ledger, &self.live, &controls, &run, ran, &now),
            &plan,
        );
        for event in suspicions {
            self.append_event(event, ran.to_s);
        }
        for action in &plan.actions {
            self.execute(action, &run, ran.to_s);
        }
        YearGateOutcome { plan, tripped }
    }

    /// Journal, scheduler, journal.
    fn execute(&mut self, action: &Action, run: &EvidenceRun, at_s: f64) {
        let Some(before) = self.live.nodes.get(&action.node).cloned() else { return };
        let id = format!("{} {} {:?} {}", run.id, action.node, action.kind, self.ledger.epoch);
        let intent = JournalEvent::Intent {
            id: id.clone(),
            run: run.id.clone(),
            action: Box::new(action.clone()),
            change: Box::new(NodeUpdate::default()),
            before: Box::new(before),
        };
        self.append_event(intent, at_s);
        if let Some(live) = self.live.nodes.get_mut(&action.node) {
            match action.kind {
                ActionKind::Drain => {
                    live.state.push("DRAIN".to_owned());
                    live.reason = Some(action.reason.clone());
                    live.reason_at = Some(to_unix(at_s));
                }
                ActionKind::Release => {
                    live.state.retain(|word| word != "DRAIN");
                    live.reason = None;
                    live.reason_at = None;
                }
                // This study ignores labels and certificates on a node.
                ActionKind::Relabel | ActionKind::Certify => {}
            }
        }
        if matches!(action.kind, ActionKind::Release | ActionKind::Certify) {
            self.certified.insert(action.node.clone(), to_unix(at_s));
        } else {
            self.certified.remove(&action.node);
        }
        self.append_event(
            JournalEvent::Outcome { id, result: ActionResult::Done, detail: String::new() },
            at_s,
        );
    }

    fn append_event(&mut self, event: JournalEvent, at_s: f64) {
        let (seq, epoch) = (self.ledger.lines + 1, self.ledger.epoch);
        let format = JOURNAL_FORMAT.to_owned();
        self.ledger.apply(&JournalEntry { format, seq, stamp: to_stamp(at_s), epoch, event });
    }
}

/// A moment of the year, in seconds since 1970.
#[expect(clippy::cast_possible_truncation, reason = "seconds of a year")]
pub(super) fn to_unix(at_s: f64) -> i64 {
    YEAR_START_UNIX + at_s as i64
}

fn to_stamp(at_s: f64) -> ClockStamp {
    let unix = to_unix(at_s);
    ClockStamp { at: format_rfc3339(unix), unix, boot: "gate".to_owned(), uptime_s: at_s }
}

/// The run as the gate sees it.
fn to_run_seen(ran: YearRun<'_>) -> EvidenceRun {
    let created_unix = to_unix(ran.from_s);
    EvidenceRun {
        id: format!("{}-{}", ran.profile, created_unix - YEAR_START_UNIX),
        profile: ran.profile.as_str().to_owned(),
        created: format_rfc3339(created_unix),
        created_unix,
        complete: true,
        real: true,
        simulated: false,
        unsigned: None,
        unsure: BTreeMap::new(),
    }
}

fn build_situation<'a>(
    fleet: &'a Claims,
    ledger: &'a JournalState,
    live: &'a SchedulerSnapshot,
    controls: &'a BTreeSet<NodeName>,
    run: &'a EvidenceRun,
    ran: YearRun<'a>,
    now: &'a ClockStamp,
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
