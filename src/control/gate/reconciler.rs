//! One turn of the gate: concludes open intents, reads the scheduler, records changes by
//! others, decides, and executes.
//!
//! The decisions come from `engine::policy`. Without [`ReconcileInput::apply`] the turn
//! reads and decides the same way, but writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tokio::sync::watch;

use super::allocation::OrphanCleanup;
use super::executor::Executor;
use super::journal::{Journal, JournalError};
use super::scheduler::{Scheduler, SchedulerError};
use super::{
    allocation, certificates, clock, drain_restore, executor, journal, mark_reassertion, recovery,
};
use crate::gate::gate_event::{GateEvent, LostDrainOutcome};
use crate::gate::scheduler::SchedulerTimeouts;
use crate::launch::kubernetes::KubernetesLauncher;
use crate::launch::slurm::SlurmPrograms;
use crate::store::document_signature::SignatureTrust;
use engine::policy::action_policy::Policy;
use engine::policy::journal_state::JournalState;
use engine::policy::situation::{EvidenceRun, PlanCoverage, Situation};
use engine::policy::{
    action_policy, budget, device, journal_events, lost_drains, node_state, stale_journal,
};
use model::action::{ActionPlan, ActionRecord};
use model::claims::Claims;
use model::id::NodeName;
use model::journal::{JOURNAL_FORMAT, JournalEntry, JournalEvent};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::verdict::Verdicts;
use model::{hostlist, text};

/// From this many nodes on, all nodes are requested: the list of names would be longer
/// than the answer.
const MAX_NODES_BY_NAME: usize = 500;

/// Problems of one answer that are logged individually.
const MAX_REPORTED_PROBLEMS: usize = 5;

/// Inputs of a turn.
#[expect(missing_debug_implementations, reason = "a callback has no Debug")]
pub struct ReconcileInput<'a> {
    /// The gate's state folder.
    pub folder: &'a Path,
    /// The scheduler that is read and changed.
    pub scheduler: &'a dyn Scheduler,
    /// Slurm's commands if measurements run in Slurm: they free the allocations of a dead
    /// process.
    pub programs: Option<&'a SlurmPrograms>,
    /// The pod configuration if measurements run in pods: pods of a dead process are
    /// deleted.
    pub pods: Option<&'a KubernetesLauncher>,
    /// Timeouts of scheduler calls.
    pub timeouts: SchedulerTimeouts,
    /// The site's limits on actions.
    pub policy: &'a Policy,
    /// The verdicts of the run.
    pub verdicts: &'a Verdicts,
    /// The claims about the whole fleet.
    pub fleet: &'a Claims,
    /// The part of the measurement plan that has results.
    pub coverage: Option<PlanCoverage>,
    /// The run that the verdicts come from.
    pub run: &'a EvidenceRun,
    /// Driver version by node, if reported.
    pub drivers: &'a BTreeMap<NodeName, String>,
    /// The boot id of each node during the run, if its worker reported one.
    pub boots: &'a BTreeMap<NodeName, String>,
    /// Signers whose certificates are accepted.
    pub trust: &'a SignatureTrust,
    /// Carry out the plan; otherwise a dry run.
    pub apply: bool,
    /// Becomes true when no further action may begin.
    pub stop: watch::Receiver<bool>,
    /// Receives the events of the turn.
    pub log: &'a mut dyn FnMut(&GateEvent),
}

/// Result of a turn.
#[derive(Clone, Debug)]
pub struct ReconcileOutcome {
    /// The proposed actions and, if executed, their results.
    pub plan: ActionPlan,
    /// Intents of earlier turns that this turn concluded.
    pub recovered: Vec<ActionRecord>,
    /// The journal's state after the turn.
    pub journal_state: JournalState,
    /// The nodes before this turn changed them.
    pub live: SchedulerSnapshot,
    /// The rest of each budget, as sentences.
    pub budgets: Vec<String>,
}

/// A turn that could not start or complete.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The journal cannot be written, so no action is allowed.
    #[error("the gate's journal: {0}")]
    Journal(#[from] JournalError),
    /// The scheduler did not answer.
    #[error("{name}: {error}")]
    Scheduler {
        /// The scheduler's kind and address.
        name: String,
        /// The scheduler's error.
        error: SchedulerError,
    },
}

/// Runs one turn.
pub async fn reconcile_nodes(turn: ReconcileInput<'_>) -> Result<ReconcileOutcome, ReconcileError> {
    if turn.apply { apply_actions(turn).await } else { run_dry(turn).await }
}

/// Reads and decides without writing anything.
async fn run_dry(mut turn: ReconcileInput<'_>) -> Result<ReconcileOutcome, ReconcileError> {
    let mut ledger = journal::read_state(turn.folder)?;
    let live = read_nodes(&turn, &ledger).await?;
    report_problems(&mut turn, &live);
    // Applies the event in memory only.
    let take = |ledger: &mut JournalState, event: JournalEvent| {
        let (seq, epoch) = (ledger.lines + 1, ledger.epoch);
        let format = JOURNAL_FORMAT.to_owned();
        ledger.apply(&JournalEntry { format, seq, stamp: clock::now(), epoch, event });
    };
    if lost_drains::has_undrained(&live, &ledger)
        && let Ok(Some(started)) = turn.scheduler.read_start_time().await
    {
        take(&mut ledger, JournalEvent::Controller { started });
    }
    let lost = lost_drains::find_lost_drains(&live, &ledger, &turn.policy.marks).lost;
    if !lost.is_empty() {
        let nodes = hostlist::fold(lost.keys().map(NodeName::as_str));
        let who = drain_restore::drain_store_name(turn.scheduler);
        let outcome = LostDrainOutcome::WouldRestore;
        (turn.log)(&GateEvent::DrainsLost { store: who, nodes, outcome });
    }
    report_unrecorded(&mut turn, &live, &ledger);
    report_single_gpu_marks(&mut turn, &live);
    let controls = certified_nodes(&mut turn, &live);
    for event in decide(&turn, &live, &ledger, &controls, |it| {
        journal_events::collect_events(it, turn.policy)
    }) {
        take(&mut ledger, event);
    }
    let plan = decide(&turn, &live, &ledger, &controls, |it| {
        action_policy::propose_actions(it, turn.policy)
    });
    let budgets =
        budget::describe_remaining(&ledger, Some(&live), turn.fleet, turn.policy, &clock::now());
    Ok(ReconcileOutcome { plan, recovered: Vec::new(), journal_state: ledger, live, budgets })
}

/// Reads, decides and executes; every action is journaled first.
async fn apply_actions(mut turn: ReconcileInput<'_>) -> Result<ReconcileOutcome, ReconcileError> {
    let mut journal = Journal::open(turn.folder)?;
    report_journal_notes(&mut turn, &journal);
    allocation::clean_up_orphans(OrphanCleanup {
        journal: &mut journal,
        scheduler: turn.scheduler,
        programs: turn.programs,
        pods: turn.pods,
        timeouts: turn.timeouts,
        gone_host: None,
        log: &mut *turn.log,
    })
    .await?;
    let in_flight = turn.timeouts.in_flight;
    let mut recovered =
        recovery::recover_intents(build_executor(&mut turn, &mut journal), in_flight).await?;
    let mut live = read_nodes(&turn, journal.state()).await?;
    let vanished =
        drain_restore::detect_lost_drains(&mut build_executor(&mut turn, &mut journal), &live)
            .await?;
    // Before any drain is restored: an older copy of the journal lacks later releases.
    let why = stale_journal::explain_stale(&live, journal.state(), &turn.run.id)
        .or_else(|| vanished.explain_trip());
    if let Some(why) = why.filter(|_| journal.state().breaker.is_none()) {
        let last = stale_journal::last_turn(&live, journal.state());
        journal
            .append_after_epoch(last, JournalEvent::Tripped { why, run: turn.run.id.clone() })?;
    }
    if !vanished.lost.is_empty() {
        let now = clock::now();
        let over = budget::explain_overrun(journal.state(), &live, turn.fleet, turn.policy, &now);
        let kept = turn.timeouts.persist;
        let carrier = build_executor(&mut turn, &mut journal);
        recovered.extend(
            drain_restore::restore_drains(carrier, &vanished, over.as_deref(), kept).await?,
        );
        live = read_nodes(&turn, journal.state()).await?;
    }
    report_unrecorded(&mut turn, &live, journal.state());
    report_single_gpu_marks(&mut turn, &live);
    let again =
        mark_reassertion::reassert_marks(turn.scheduler, &live, journal.state(), turn.policy).await;
    if !again.is_empty() {
        journal.append_all(mark_reassertion::condition_events(&again, journal.state()))?;
        report_reasserted(&mut turn, &again);
        live = read_nodes(&turn, journal.state()).await?;
    }
    report_problems(&mut turn, &live);
    let controls = certified_nodes(&mut turn, &live);
    for event in decide(&turn, &live, journal.state(), &controls, |it| {
        journal_events::collect_events(it, turn.policy)
    }) {
        journal.append(event)?;
    }
    if journal.state().breaker.is_none()
        && let Some(why) = decide(&turn, &live, journal.state(), &controls, |it| {
            budget::explain_trip(it, turn.policy)
        })
    {
        journal.append(JournalEvent::Tripped { why, run: turn.run.id.clone() })?;
    }
    let mut plan = decide(&turn, &live, journal.state(), &controls, |it| {
        action_policy::propose_actions(it, turn.policy)
    });
    plan.dry_run = false;
    for event in decide(&turn, &live, journal.state(), &controls, |it| {
        journal_events::collect_suspicions(it, &plan)
    }) {
        journal.append(event)?;
    }
    let (run, kept) = (turn.run.id.clone(), turn.timeouts.persist);
    plan.records =
        executor::execute_plan_within(build_executor(&mut turn, &mut journal), &run, &plan, kept)
            .await?;
    let why = format!("run {run} found it at fault");
    let faults = certificates::faulty_nodes(&plan.records);
    certificates::void_all(turn.folder, faults, &why, &mut *turn.log);
    let ledger = journal.state().clone();
    let budgets =
        budget::describe_remaining(&ledger, Some(&live), turn.fleet, turn.policy, &clock::now());
    Ok(ReconcileOutcome { plan, recovered, journal_state: ledger, live, budgets })
}

/// Logs GPUs that an earlier version took out individually.
fn report_single_gpu_marks(turn: &mut ReconcileInput<'_>, live: &SchedulerSnapshot) {
    for line in live.nodes.values().filter_map(device::left_out) {
        (turn.log)(&GateEvent::SingleGpuMark(line));
    }
}

/// Logs drains in fabricgate's format that the journal does not know; they count in every
/// budget.
fn report_unrecorded(
    turn: &mut ReconcileInput<'_>,
    live: &SchedulerSnapshot,
    ledger: &JournalState,
) {
    for node in node_state::unrecorded_drains(live, ledger) {
        let why = node_state::describe_unrecorded(node);
        (turn.log)(&GateEvent::UnrecordedDrain { node: node.name.to_string(), why });
    }
}

/// Logs restored marks, grouped by result.
fn report_reasserted(turn: &mut ReconcileInput<'_>, again: &[mark_reassertion::ReassertResult]) {
    let mut by_detail: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in again {
        by_detail.entry(&it.detail).or_default().push(it.node.as_str());
    }
    for (detail, nodes) in by_detail {
        let nodes = hostlist::fold(nodes);
        (turn.log)(&GateEvent::MarksRestored { nodes, detail: detail.to_owned() });
    }
}

fn build_executor<'c>(turn: &'c mut ReconcileInput<'_>, journal: &'c mut Journal) -> Executor<'c> {
    Executor {
        scheduler: turn.scheduler,
        journal,
        names: &turn.policy.marks,
        settle: turn.timeouts.settle,
        log: &mut *turn.log,
        stop: turn.stop.clone(),
    }
}

/// Reads every node that this turn may concern. Slurm: all nodes, because any drain in
/// fabricgate's format counts in the budgets, recorded or not.
async fn read_nodes(
    turn: &ReconcileInput<'_>,
    ledger: &JournalState,
) -> Result<SchedulerSnapshot, ReconcileError> {
    let claimed = turn.fleet.domains.iter().flat_map(|domain| &domain.nodes);
    let recorded = ledger.drains.keys().chain(ledger.marks.keys());
    // Claims come from other sources: a name that Slurm would expand as a list must not
    // make the request for all other nodes fail.
    let nodes: BTreeSet<&NodeName> =
        claimed.chain(recorded).filter(|node| node.is_one_node()).collect();
    let is_by_name = nodes.len() < MAX_NODES_BY_NAME && turn.scheduler.has_conditional_writes();
    let nodes: Vec<NodeName> =
        if is_by_name { nodes.into_iter().cloned().collect() } else { Vec::new() };
    turn.scheduler
        .read_nodes(&nodes)
        .await
        .map_err(|error| ReconcileError::Scheduler { name: turn.scheduler.name(), error })
}

/// Evaluates a decision on the current situation.
fn decide<T>(
    turn: &ReconcileInput<'_>,
    live: &SchedulerSnapshot,
    ledger: &JournalState,
    controls: &BTreeSet<NodeName>,
    decision: impl FnOnce(&Situation<'_>) -> T,
) -> T {
    decision(&Situation {
        verdicts: turn.verdicts,
        fleet: turn.fleet,
        coverage: turn.coverage,
        run: turn.run,
        live: Some(live),
        ledger,
        controls,
        drivers: turn.drivers,
        now: &clock::now(),
        boots: turn.boots,
    })
}

/// Nodes that passed within the last day.
fn certified_nodes(turn: &mut ReconcileInput<'_>, live: &SchedulerSnapshot) -> BTreeSet<NodeName> {
    let (controls, troubles) =
        certificates::valid_nodes(turn.folder, live, turn.trust, &clock::now());
    for trouble in troubles {
        (turn.log)(&GateEvent::CertificateIgnored { why: trouble.to_string() });
    }
    controls
}

/// Logs the unreadable parts of the scheduler's answer; no action concerns the nodes in
/// them.
fn report_problems(turn: &mut ReconcileInput<'_>, live: &SchedulerSnapshot) {
    for trouble in live.troubles.iter().take(MAX_REPORTED_PROBLEMS) {
        (turn.log)(&GateEvent::AnswerUnreadable { why: text::clean(trouble) });
    }
    if MAX_REPORTED_PROBLEMS < live.troubles.len() {
        let count = live.troubles.len() - MAX_REPORTED_PROBLEMS;
        (turn.log)(&GateEvent::AnswerUnreadableMore { count });
    }
}

/// Logs the journal's notes about its own file.
fn report_journal_notes(turn: &mut ReconcileInput<'_>, journal: &Journal) {
    for note in journal.notes() {
        (turn.log)(&GateEvent::JournalNote(note.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture;
    use super::super::fixture::FakeScheduler;
    use super::*;
    use model::action::{ActionKind, ActionResult};
    use model::claims::ClaimedDomain;
    use model::kubernetes_node::KubernetesNode;
    use model::scheduler_snapshot::SchedulerNode;
    use model::verdict::Outcome;

    /// A dry run over this fleet, with its log messages.
    fn dry_run_messages(fake: &FakeScheduler, fleet: &Claims) -> (ReconcileOutcome, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let verdicts = Verdicts::empty(Outcome::Pass);
        let (_stopper, stop) = watch::channel(false);
        let mut lines = Vec::new();
        let turned = fixture::block_on(reconcile_nodes(ReconcileInput {
            folder: folder.path(),
            scheduler: fake,
            programs: None,
            pods: None,
            timeouts: SchedulerTimeouts {
                limit: Duration::from_secs(1),
                settle: Duration::from_millis(50),
                persist: Duration::ZERO,
                in_flight: Duration::ZERO,
            },
            policy: &Policy::default(),
            verdicts: &verdicts,
            fleet,
            coverage: None,
            run: &EvidenceRun::default(),
            drivers: &BTreeMap::new(),
            boots: &BTreeMap::new(),
            trust: &SignatureTrust::default(),
            apply: false,
            stop,
            log: &mut |event| lines.push(event.to_string()),
        }))
        .expect("a turn");
        (turned, lines)
    }

    #[test]
    fn defect_7_the_next_turn_writes_a_first_condition_that_the_server_refused() {
        let kinds = [ActionKind::Certify, ActionKind::Drain];
        for kind in kinds {
            let fake = FakeScheduler::with_nodes(1);
            let uid = "uid".to_owned();
            let object = Box::new(KubernetesNode { uid, ..KubernetesNode::default() });
            fake.put(SchedulerNode { kubernetes: Some(object), ..fake.node("n1") });
            let (folder, mut journal) = fixture::journal();
            let (_stopper, stop) = watch::channel(false);
            let names = Policy::default().marks;
            let log = &mut |_: &GateEvent| {};
            let settle = Duration::from_millis(10);
            let carrier = Executor {
                scheduler: &fake,
                journal: &mut journal,
                names: &names,
                settle,
                log,
                stop,
            };
            let plan = fixture::plan(vec![fixture::action(kind, "n1")]);
            let records = fixture::block_on(executor::execute_plan_within(
                carrier,
                "r1",
                &plan,
                Duration::ZERO,
            ));
            assert_eq!(records.expect("written")[0].result, ActionResult::Done);
            drop(journal);
            let condition = || fake.node("n1").kubernetes.expect("one").condition;
            assert_eq!(condition(), None, "it was refused");
            // The condition stays missing while the server refuses it.
            reconcile_folder(&fake, folder.path());
            assert_eq!(condition(), None);
            fake.takes_conditions.set(true);
            reconcile_folder(&fake, folder.path());
            assert!(condition().is_some(), "{kind:?}");
            // A condition that another writer removes now stays removed.
            let mut node = fake.node("n1");
            node.kubernetes.as_mut().expect("one").condition = None;
            fake.put(node);
            reconcile_folder(&fake, folder.path());
            assert_eq!(condition(), None, "{kind:?}");
        }
    }

    /// An applied turn with an empty fleet on this state folder.
    fn reconcile_folder(fake: &FakeScheduler, folder: &Path) {
        let (verdicts, fleet) = (Verdicts::empty(Outcome::Pass), Claims::default());
        let (_stopper, stop) = watch::channel(false);
        fixture::block_on(reconcile_nodes(ReconcileInput {
            folder,
            scheduler: fake,
            programs: None,
            pods: None,
            timeouts: SchedulerTimeouts {
                limit: Duration::from_secs(1),
                settle: Duration::from_millis(50),
                persist: Duration::ZERO,
                in_flight: Duration::ZERO,
            },
            policy: &Policy::default(),
            verdicts: &verdicts,
            fleet: &fleet,
            coverage: None,
            run: &EvidenceRun::default(),
            drivers: &BTreeMap::new(),
            boots: &BTreeMap::new(),
            trust: &SignatureTrust::default(),
            apply: true,
            stop,
            log: &mut |_| {},
        }))
        .expect("a turn");
    }

    #[test]
    fn a_claimed_name_that_is_a_list_does_not_block_the_request_for_other_nodes() {
        let fake = FakeScheduler::with_nodes(2);
        let domain = ClaimedDomain {
            name: "d1".into(),
            nodes: ["n1", "n[1-9]", "ALL", "n2"].map(NodeName::from).to_vec(),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        let fleet = Claims { domains: vec![domain], ..Claims::default() };
        let (turned, lines) = dry_run_messages(&fake, &fleet);
        assert_eq!(turned.live.nodes.len(), 2, "{lines:?}");
    }

    #[test]
    fn unreadable_nodes_are_reported_with_a_limit() {
        let fake = FakeScheduler::with_nodes(1);
        fake.troubles.borrow_mut().extend((0..7).map(|at| format!("nodes[{at}]: no name")));
        let (turned, lines) = dry_run_messages(&fake, &Claims::default());
        assert_eq!(lines.len(), MAX_REPORTED_PROBLEMS + 1, "{lines:?}");
        assert_eq!(lines[0], "not read: nodes[0]: no name");
        assert_eq!(lines[MAX_REPORTED_PROBLEMS], "and 2 more");
        assert_eq!(turned.budgets.len(), 5, "{:?}", turned.budgets);
    }
}
