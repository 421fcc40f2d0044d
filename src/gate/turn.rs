//! One turn of the gate: concludes what was left open, asks the scheduler,
//! notes what others did, decides, and carries out.
//!
//! What is decided, `act` decides. Without [`Turn::apply`] the same is read and
//! decided, and nothing is written anywhere.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::watch;

use super::carry;
use super::carry::Carrier;
use super::certificates;
use super::hold;
use super::hold::Cleaning;
use super::journal;
use super::journal::Journal;
use super::journal::JournalError;
use super::reassert;
use super::recover;
use super::remake;
use super::scheduler::Scheduler;
use super::scheduler::SchedulerError;
use super::stamp;
use crate::act::budget;
use crate::act::device;
use crate::act::ledger::Ledger;
use crate::act::notice;
use crate::act::older;
use crate::act::policy;
use crate::act::policy::Policy;
use crate::act::situation::Coverage;
use crate::act::situation::RunSeen;
use crate::act::situation::Situation;
use crate::act::standing;
use crate::act::vanished;
use crate::gate::pace::Pace;
use crate::launch::kubernetes::Kubernetes;
use crate::launch::slurm::Programs;
use crate::model::action::ActionPlan;
use crate::model::action::ActionRecord;
use crate::model::claims::Claims;
use crate::model::hostlist;
use crate::model::id::NodeName;
use crate::model::journal::Entry;
use crate::model::journal::Event;
use crate::model::journal::JOURNAL_FORMAT;
use crate::model::live::Live;
use crate::model::text;
use crate::model::verdict::Verdicts;
use crate::record::signing::Trust;

/// From this many nodes on, all are asked for: their names would make a longer
/// question than the answer is.
const MANY: usize = 500;

/// Most troubles of one answer that are told one by one.
const TROUBLES: usize = 5;

/// What a turn is taken for.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct Turn<'a> {
    /// The gate's state folder.
    pub folder: &'a Path,
    /// Who is asked and told.
    pub scheduler: &'a dyn Scheduler,
    /// Slurm's programs where they measure: what a dead process held is freed
    /// through them.
    pub programs: Option<&'a Programs>,
    /// How pods are wanted where they measure: what a dead process left behind is
    /// deleted.
    pub pods: Option<&'a Kubernetes>,
    /// How patiently.
    pub pace: Pace,
    /// What may be done.
    pub policy: &'a Policy,
    /// What the judge says.
    pub verdicts: &'a Verdicts,
    /// What is claimed of the whole fleet.
    pub fleet: &'a Claims,
    /// How much of the plan came back.
    pub coverage: Option<Coverage>,
    /// The run.
    pub run: &'a RunSeen,
    /// Version of the driver by node, as far as outputs named it.
    pub drivers: &'a BTreeMap<NodeName, String>,
    /// The boot in which the run measured each node, as far as workers told it.
    pub boots: &'a BTreeMap<NodeName, String>,
    /// Whose certificates count.
    pub trust: &'a Trust,
    /// Carry it out.
    pub apply: bool,
    /// Turns true where nothing more is to be begun.
    pub stop: watch::Receiver<bool>,
    /// Whom to tell how far it is.
    pub say: &'a mut dyn FnMut(&str),
}

/// What a turn came to.
#[derive(Clone, Debug)]
pub struct Turned {
    /// What is proposed, and, where it was carried out, what became of it.
    pub plan: ActionPlan,
    /// What was left open by an earlier turn and is concluded now.
    pub recovered: Vec<ActionRecord>,
    /// The record as it stands now.
    pub ledger: Ledger,
    /// The nodes as they were before anything was done.
    pub live: Live,
    /// What is left of each budget, in sentences.
    pub budgets: Vec<String>,
}

/// Why a turn could not be taken, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// The record cannot be kept, so nothing may be done.
    #[error("the gate's journal: {0}")]
    Journal(#[from] JournalError),
    /// The scheduler does not answer.
    #[error("{name}: {error}")]
    Scheduler {
        /// Who.
        name: String,
        /// What it said.
        error: SchedulerError,
    },
}

/// Takes a turn.
pub async fn turn(turn: Turn<'_>) -> Result<Turned, TurnError> {
    if turn.apply { acting(turn).await } else { looking(turn).await }
}

/// Reads and decides; writes nothing.
async fn looking(mut turn: Turn<'_>) -> Result<Turned, TurnError> {
    let mut ledger = journal::look(turn.folder)?;
    let live = read(&turn, &ledger).await?;
    say_troubles(&mut turn, &live);
    // As if it had been written down.
    let take = |ledger: &mut Ledger, event: Event| {
        let (seq, epoch) = (ledger.lines + 1, ledger.epoch);
        let format = JOURNAL_FORMAT.to_owned();
        ledger.take(&Entry { format, seq, stamp: stamp::stamp(), epoch, event });
    };
    if vanished::is_any(&live, &ledger)
        && let Ok(Some(started)) = turn.scheduler.started().await
    {
        take(&mut ledger, Event::Controller { started });
    }
    let lost = vanished::vanished(&live, &ledger, &turn.policy.marks).lost;
    if !lost.is_empty() {
        let nodes = hostlist::fold(lost.keys().map(NodeName::as_str));
        let who = remake::who(turn.scheduler);
        (turn.say)(&format!("{who} lost our drain of {nodes}: it would be made again"));
    }
    tell_unrecorded(&mut turn, &live, &ledger);
    tell_left_out(&mut turn, &live);
    let controls = controls(&mut turn, &live);
    for event in decided(&turn, &live, &ledger, &controls, |it| notice::events(it, turn.policy)) {
        take(&mut ledger, event);
    }
    let plan = decided(&turn, &live, &ledger, &controls, |it| policy::propose(it, turn.policy));
    let budgets = budget::left(&ledger, Some(&live), turn.fleet, turn.policy, &stamp::stamp());
    Ok(Turned { plan, recovered: Vec::new(), ledger, live, budgets })
}

/// Reads, decides and carries out, with everything written down first.
async fn acting(mut turn: Turn<'_>) -> Result<Turned, TurnError> {
    let mut journal = Journal::open(turn.folder)?;
    say_notes(&mut turn, &journal);
    hold::clean(Cleaning {
        journal: &mut journal,
        scheduler: turn.scheduler,
        programs: turn.programs,
        pods: turn.pods,
        pace: turn.pace,
        gone: None,
        say: &mut *turn.say,
    })
    .await?;
    let in_flight = turn.pace.in_flight;
    let mut recovered = recover::recover(carrier(&mut turn, &mut journal), in_flight).await?;
    let mut live = read(&turn, journal.ledger()).await?;
    let vanished = remake::looked(&mut carrier(&mut turn, &mut journal), &live).await?;
    // Before anything is made again: an older journal does not know what was released.
    let why = older::why(&live, journal.ledger(), &turn.run.id).or_else(|| vanished.trip());
    if let Some(why) = why.filter(|_| journal.ledger().breaker.is_none()) {
        let last = older::last_turn(&live, journal.ledger());
        journal.write_beyond(last, Event::Tripped { why, run: turn.run.id.clone() })?;
    }
    if !vanished.lost.is_empty() {
        let now = stamp::stamp();
        let over = budget::over(journal.ledger(), &live, turn.fleet, turn.policy, &now);
        let kept = turn.pace.kept;
        let carrier = carrier(&mut turn, &mut journal);
        recovered.extend(remake::remake(carrier, &vanished, over.as_deref(), kept).await?);
        live = read(&turn, journal.ledger()).await?;
    }
    tell_unrecorded(&mut turn, &live, journal.ledger());
    tell_left_out(&mut turn, &live);
    let again = reassert::reassert(turn.scheduler, &live, journal.ledger(), turn.policy).await;
    if !again.is_empty() {
        journal.write_all(reassert::noted(&again, journal.ledger()))?;
        say_again(&mut turn, &again);
        live = read(&turn, journal.ledger()).await?;
    }
    say_troubles(&mut turn, &live);
    let controls = controls(&mut turn, &live);
    for event in
        decided(&turn, &live, journal.ledger(), &controls, |it| notice::events(it, turn.policy))
    {
        journal.write(event)?;
    }
    if journal.ledger().breaker.is_none()
        && let Some(why) =
            decided(&turn, &live, journal.ledger(), &controls, |it| budget::trip(it, turn.policy))
    {
        journal.write(Event::Tripped { why, run: turn.run.id.clone() })?;
    }
    let mut plan =
        decided(&turn, &live, journal.ledger(), &controls, |it| policy::propose(it, turn.policy));
    plan.dry_run = false;
    for event in
        decided(&turn, &live, journal.ledger(), &controls, |it| notice::suspicions(it, &plan))
    {
        journal.write(event)?;
    }
    let (run, kept) = (turn.run.id.clone(), turn.pace.kept);
    plan.records = carry::carry_within(carrier(&mut turn, &mut journal), &run, &plan, kept).await?;
    let why = format!("run {run} found it at fault");
    let faults = certificates::at_fault(&plan.records);
    certificates::void_all(turn.folder, faults, &why, &mut *turn.say);
    let ledger = journal.ledger().clone();
    let budgets = budget::left(&ledger, Some(&live), turn.fleet, turn.policy, &stamp::stamp());
    Ok(Turned { plan, recovered, ledger, live, budgets })
}

/// Tells of GPUs that an earlier version took out alone.
fn tell_left_out(turn: &mut Turn<'_>, live: &Live) {
    for told in live.nodes.values().filter_map(device::left_out) {
        (turn.say)(&told);
    }
}

/// Tells of drains of our form that nothing here knows of: they are in every budget.
fn tell_unrecorded(turn: &mut Turn<'_>, live: &Live, ledger: &Ledger) {
    for node in standing::unrecorded(live, ledger) {
        let why = standing::unrecorded_in_words(node);
        (turn.say)(&format!("{}: {why}; until then it counts in the budgets", node.name));
    }
}

/// Tells of marks that were put right, nodes of one result together.
fn say_again(turn: &mut Turn<'_>, again: &[reassert::Reasserted]) {
    let mut by_detail: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in again {
        by_detail.entry(&it.detail).or_default().push(it.node.as_str());
    }
    for (detail, nodes) in by_detail {
        let nodes = hostlist::fold(nodes);
        (turn.say)(&format!(
            "marks of {nodes}, which were not as recorded or count no more: {detail}"
        ));
    }
}

fn carrier<'c>(turn: &'c mut Turn<'_>, journal: &'c mut Journal) -> Carrier<'c> {
    Carrier {
        scheduler: turn.scheduler,
        journal,
        names: &turn.policy.marks,
        settle: turn.pace.settle,
        say: &mut *turn.say,
        stop: turn.stop.clone(),
    }
}

/// What the scheduler says of every node that this turn may concern. Of Slurm, of all: a
/// drain in our form counts in the budgets wherever it is, and nobody may know of it.
async fn read(turn: &Turn<'_>, ledger: &Ledger) -> Result<Live, TurnError> {
    let claimed = turn.fleet.domains.iter().flat_map(|domain| &domain.nodes);
    let ours = ledger.drains.keys().chain(ledger.marks.keys());
    // Claims are others' words: one name that Slurm would take for a list must not
    // keep it from being asked for all others.
    let nodes: BTreeSet<&NodeName> =
        claimed.chain(ours).filter(|node| node.is_one_node()).collect();
    let is_by_name = nodes.len() < MANY && turn.scheduler.writes_as_seen();
    let nodes: Vec<NodeName> =
        if is_by_name { nodes.into_iter().cloned().collect() } else { Vec::new() };
    turn.scheduler
        .read(&nodes)
        .await
        .map_err(|error| TurnError::Scheduler { name: turn.scheduler.name(), error })
}

/// What a decision makes of the situation.
fn decided<T>(
    turn: &Turn<'_>,
    live: &Live,
    ledger: &Ledger,
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
        now: &stamp::stamp(),
        boots: turn.boots,
    })
}

/// Nodes that passed within the last day.
fn controls(turn: &mut Turn<'_>, live: &Live) -> BTreeSet<NodeName> {
    let (controls, troubles) = certificates::valid(turn.folder, live, turn.trust, &stamp::stamp());
    for trouble in troubles {
        (turn.say)(&format!("no certificate: {trouble}"));
    }
    controls
}

/// Tells what of the scheduler's answer could not be read: the nodes there are
/// not known, and nothing is done about them.
fn say_troubles(turn: &mut Turn<'_>, live: &Live) {
    for trouble in live.troubles.iter().take(TROUBLES) {
        (turn.say)(&format!("not read: {}", text::clean(trouble)));
    }
    if TROUBLES < live.troubles.len() {
        (turn.say)(&format!("and {} more", live.troubles.len() - TROUBLES));
    }
}

/// Tells what the journal noticed about itself when it was opened.
fn say_notes(turn: &mut Turn<'_>, journal: &Journal) {
    for note in journal.notes() {
        (turn.say)(note);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture;
    use super::super::fixture::Fake;
    use super::*;
    use crate::model::action::ActionKind;
    use crate::model::action::ActionResult;
    use crate::model::claims::ClaimedDomain;
    use crate::model::kubernetes_node::KubernetesNode;
    use crate::model::live::LiveNode;
    use crate::model::verdict::Outcome;

    /// A dry run over this fleet, and what it told.
    fn looked(fake: &Fake, fleet: &Claims) -> (Turned, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let verdicts = Verdicts::empty(Outcome::Pass);
        let (_stopper, stop) = watch::channel(false);
        let mut told = Vec::new();
        let turned = fixture::now(turn(Turn {
            folder: folder.path(),
            scheduler: fake,
            programs: None,
            pods: None,
            pace: Pace {
                limit: Duration::from_secs(1),
                settle: Duration::from_millis(50),
                kept: Duration::ZERO,
                in_flight: Duration::ZERO,
            },
            policy: &Policy::default(),
            verdicts: &verdicts,
            fleet,
            coverage: None,
            run: &RunSeen::default(),
            drivers: &BTreeMap::new(),
            boots: &BTreeMap::new(),
            trust: &Trust::default(),
            apply: false,
            stop,
            say: &mut |text| told.push(text.to_owned()),
        }))
        .expect("a turn");
        (turned, told)
    }

    #[test]
    fn defect_7_a_first_condition_that_the_server_never_took_is_said_again_by_the_next_turn() {
        let kinds = [ActionKind::Certify, ActionKind::Drain];
        for kind in kinds {
            let fake = Fake::of(1);
            let uid = "uid".to_owned();
            let object = Box::new(KubernetesNode { uid, ..KubernetesNode::default() });
            fake.put(LiveNode { kubernetes: Some(object), ..fake.node("n1") });
            let (folder, mut journal) = fixture::journal();
            let (_stopper, stop) = watch::channel(false);
            let names = Policy::default().marks;
            let say = &mut |_: &str| {};
            let settle = Duration::from_millis(10);
            let carrier = Carrier {
                scheduler: &fake,
                journal: &mut journal,
                names: &names,
                settle,
                say,
                stop,
            };
            let plan = fixture::plan(vec![fixture::action(kind, "n1")]);
            let records = fixture::now(carry::carry_within(carrier, "r1", &plan, Duration::ZERO));
            assert_eq!(records.expect("written")[0].result, ActionResult::Done);
            drop(journal);
            let condition = || fake.node("n1").kubernetes.expect("one").condition;
            assert_eq!(condition(), None, "it was not taken");
            // It stays so as long as the server does not take it.
            taken(&fake, folder.path());
            assert_eq!(condition(), None);
            fake.takes_conditions.set(true);
            taken(&fake, folder.path());
            assert!(condition().is_some(), "{kind:?}");
            // Who takes it away now is respected.
            let mut node = fake.node("n1");
            node.kubernetes.as_mut().expect("one").condition = None;
            fake.put(node);
            taken(&fake, folder.path());
            assert_eq!(condition(), None, "{kind:?}");
        }
    }

    /// A turn over no fleet, with what is journaled in this folder.
    fn taken(fake: &Fake, folder: &Path) {
        let (verdicts, fleet) = (Verdicts::empty(Outcome::Pass), Claims::default());
        let (_stopper, stop) = watch::channel(false);
        fixture::now(turn(Turn {
            folder,
            scheduler: fake,
            programs: None,
            pods: None,
            pace: Pace {
                limit: Duration::from_secs(1),
                settle: Duration::from_millis(50),
                kept: Duration::ZERO,
                in_flight: Duration::ZERO,
            },
            policy: &Policy::default(),
            verdicts: &verdicts,
            fleet: &fleet,
            coverage: None,
            run: &RunSeen::default(),
            drivers: &BTreeMap::new(),
            boots: &BTreeMap::new(),
            trust: &Trust::default(),
            apply: true,
            stop,
            say: &mut |_| {},
        }))
        .expect("a turn");
    }

    #[test]
    fn a_claimed_name_that_is_not_one_node_s_keeps_nobody_from_being_asked_for() {
        let fake = Fake::of(2);
        let domain = ClaimedDomain {
            name: "d1".into(),
            nodes: ["n1", "n[1-9]", "ALL", "n2"].map(NodeName::from).to_vec(),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        let fleet = Claims { domains: vec![domain], ..Claims::default() };
        let (turned, told) = looked(&fake, &fleet);
        assert_eq!(turned.live.nodes.len(), 2, "{told:?}");
    }

    #[test]
    fn what_could_not_be_read_is_told_and_budgets_are_said() {
        let fake = Fake::of(1);
        fake.troubles.borrow_mut().extend((0..7).map(|at| format!("nodes[{at}]: no name")));
        let (turned, told) = looked(&fake, &Claims::default());
        assert_eq!(told.len(), TROUBLES + 1, "{told:?}");
        assert_eq!(told[0], "not read: nodes[0]: no name");
        assert_eq!(told[TROUBLES], "and 2 more");
        assert_eq!(turned.budgets.len(), 5, "{:?}", turned.budgets);
    }
}
