//! Plans applied to a real Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use control::gate::executor::Executor;
use control::gate::gate_event::GateEvent;
use control::gate::journal::Journal;
use control::gate::scontrol::ScontrolScheduler;
use control::gate::{executor, journal, recovery};
use engine::policy::journal_state::JournalState;
use engine::policy::marks::MarkNames;
use model::action::{Action, ActionKind, ActionPlan, ActionRecord, ActionResult};
use model::scheduler_snapshot::SchedulerNode;

use super::changes::one;
pub(super) use super::proposals::{action, plan};
use super::*;

/// Longer than the 10 s after which Slurm itself gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// For a controller that hangs; `faults` checks that Slurm's own limit is the same.
const IMPATIENCE: Duration = Duration::from_secs(3);

pub(super) fn drains(names: &[&str]) -> Vec<Action> {
    names.iter().map(|node| action(ActionKind::Drain, node, "nvlink-low")).collect()
}

/// A gate next to a lab: a state folder, and a program in front of `scontrol` that records the
/// updates it sends to the controller.
struct Site<'l> {
    lab: &'l Lab,
    folder: tempfile::TempDir,
    scontrol: ScontrolScheduler,
}

impl<'l> Site<'l> {
    fn new(lab: &'l Lab) -> Self {
        Self::with(lab, "", "")
    }

    /// With shell commands before and after each update, which is the `$n`th.
    fn with(lab: &'l Lab, before: &str, after: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let run = &lab.run;
        let here = folder.path().display();
        let script = format!(
            "#!/bin/sh\nhere='{here}'\nlab() {{ '{run}' \"$@\"; }}\n\
             case \"$*\" in *update*) ;; *) exec '{run}' scontrol \"$@\" ;; esac\n\
             echo \"$*\" >>\"$here/updates\"\nn=$(wc -l <\"$here/updates\")\n\
             {before}\nlab scontrol \"$@\"\nrc=$?\n{after}\nexit $rc\n"
        );
        let scontrol = ScontrolScheduler {
            argv: program(folder.path(), &script),
            limit: PATIENCE,
            remote_shell: Some(false),
        };
        Self { lab, folder, scontrol }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The updates that the controller received.
    fn updates(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("updates")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn carry(&self, plan: &ActionPlan) -> Vec<ActionRecord> {
        turn(&self.state(), &self.scontrol, plan, executor::DEFAULT_PERSIST_TIME)
    }

    fn ledger(&self) -> JournalState {
        journal::read_state(&self.state()).expect("a journal")
    }

    fn node(&self, name: &str) -> SchedulerNode {
        one(
            &ScontrolScheduler {
                argv: self.lab.argv(&["scontrol"]),
                limit: PATIENCE,
                remote_shell: Some(false),
            },
            name,
        )
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        tidy(self.lab);
    }
}

/// Removes the marks on nodes, also after a failed test; Slurm forgets features at a reconfigure.
pub(super) fn tidy(lab: &Lab) {
    lab.finished(&["scontrol", "update", "NodeName=ALL", "Extra="]);
    lab.finished(&["scontrol", "reconfigure"]);
    if !std::thread::panicking() {
        lab.settle();
    }
}

pub(super) fn program(folder: &Path, script: &str) -> Vec<String> {
    let path = folder.join("scontrol");
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    vec![path.display().to_string()]
}

/// One turn: open intents first, and then the plan. Acknowledged updates are checked again when
/// they are `kept`.
pub(super) fn turn(
    state: &Path,
    scontrol: &ScontrolScheduler,
    plan: &ActionPlan,
    kept: Duration,
) -> Vec<ActionRecord> {
    let mut journal = Journal::open(state).expect("a turn");
    let names = MarkNames::default();
    let (_sender, stop) = tokio::sync::watch::channel(false);
    // No reader: only the scheduler's state counts.
    let mut log = |_: &GateEvent| {};
    let carrier = Executor {
        scheduler: scontrol,
        journal: &mut journal,
        names: &names,
        settle: executor::DEFAULT_SETTLE_TIME,
        log: &mut log,
        stop: stop.clone(),
    };
    now(recovery::recover_intents(carrier, Duration::ZERO)).expect("written");
    let carrier = Executor {
        scheduler: scontrol,
        journal: &mut journal,
        names: &names,
        settle: executor::DEFAULT_SETTLE_TIME,
        log: &mut log,
        stop,
    };
    now(executor::execute_plan_within(carrier, "r1", plan, kept)).expect("written")
}

fn results(records: &[ActionRecord]) -> Vec<(&str, ActionResult)> {
    records.iter().map(|it| (it.node.as_str(), it.result)).collect()
}

pub(super) fn own(ledger: &JournalState) -> Vec<&str> {
    ledger.drains.keys().map(NodeName::as_str).collect()
}

#[test]
fn nodes_are_drained_marked_and_given_back_in_few_calls() {
    let Some(lab) = lab() else { return };
    let site = Site::new(&lab);
    let mut all = drains(&["node0001", "node0002", "node0020"]);
    all.push(action(ActionKind::Relabel, "node0003", "pcie-low"));
    all.push(action(ActionKind::Certify, "node0004", ""));
    all.push(action(ActionKind::Certify, "node0021", ""));
    let all = plan(all);
    let records = site.carry(&all);
    assert!(records.iter().all(|it| it.result == ActionResult::Done), "{records:?}");
    let updates = site.updates();
    assert_eq!(updates.len(), 3, "{updates:?}");
    assert!(updates[2].contains("NodeName=node[0001-0002,0020]"), "{updates:?}");
    for name in ["node0001", "node0002", "node0020"] {
        let node = site.node(name);
        assert_eq!(node.state, ["IDLE", "DRAIN"], "{name}");
        assert_eq!(node.reason.as_deref(), Some("fabricgate:nvlink-low:r1 e1"));
    }
    let (worse, good) = (site.node("node0003"), site.node("node0004"));
    for (node, feature) in [(&worse, "fabric_degraded"), (&good, "fabric_verified")] {
        assert_eq!(node.state, ["IDLE"], "{}", node.name);
        assert!(node.active_features.iter().any(|it| it == feature), "{node:?}");
        assert!(node.active_features.iter().any(|it| it == "gb200"), "others' are kept: {node:?}");
        assert!(node.extra.contains("r1"), "{node:?}");
    }
    assert_eq!(own(&site.ledger()), ["node0001", "node0002", "node0020"]);

    // The second time no update is sent.
    let records = site.carry(&all);
    assert!(records.iter().all(|it| it.result == ActionResult::Already), "{records:?}");
    assert_eq!(site.updates().len(), 3);

    let back = ["node0001", "node0002"].map(|it| action(ActionKind::Release, it, "")).to_vec();
    let records = site.carry(&plan(back));
    assert!(records.iter().all(|it| it.result == ActionResult::Done), "{records:?}");
    assert_eq!(site.updates().len(), 4);
    assert_eq!(own(&site.ledger()), ["node0020"]);
    lab.wait_for("the nodes", || site.node("node0001").state == ["IDLE"]);
    assert!(site.node("node0020").has_state("DRAIN"));
    assert_eq!(site.node("node0001").reason, None);
}

#[test]
fn a_node_with_a_job_drains_while_the_job_goes_on() {
    let Some(lab) = lab() else { return };
    let site = Site::new(&lab);
    lab.run(&["sbatch", "-w", "node0006", "-o", "/dev/null", "--wrap", "sleep 300"]);
    lab.wait_for("the job", || lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]).contains("0006"));
    let records = site.carry(&plan(drains(&["node0006"])));
    let jobs = lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]);
    lab.run(&["scancel", "--user=root"]);
    assert_eq!(results(&records), [("node0006", ActionResult::Done)]);
    assert!(records[0].detail.contains("jobs still run"), "{records:?}");
    assert!(jobs.contains("node0006"), "the job was killed");
    lab.wait_for("the end of the job", || site.node("node0006").state == ["IDLE", "DRAIN"]);
}

#[test]
fn a_persons_drain_is_left_alone_at_any_time() {
    let Some(lab) = lab() else { return };
    let hers = "lab scontrol update NodeName=node0009 State=DRAIN Reason='ann: fan'";
    let site = Site::with(&lab, "", &format!("[ $n != 1 ] || {hers}"));
    // Drained after the plan was made, and while it is applied.
    lab.run(&["scontrol", "update", "NodeName=node0008", "State=DRAIN", "Reason=bob: psu"]);
    let mut all = drains(&["node0007", "node0008"]);
    all.push(action(ActionKind::Drain, "node0009", "other"));
    let records = site.carry(&plan(all));
    let (done, theirs) = (ActionResult::Done, ActionResult::Superseded);
    let expected = [("node0007", done), ("node0008", theirs), ("node0009", theirs)];
    assert_eq!(results(&records), expected, "{records:?}");
    assert_eq!(site.updates().len(), 1, "{:?}", site.updates());
    assert_eq!(site.node("node0008").reason.as_deref(), Some("bob: psu"));
    assert_eq!(site.node("node0009").reason.as_deref(), Some("ann: fan"));
    // Neither is returned, even where the drain was fabricgate's before.
    let theirs = "Reason=eve: mine now";
    lab.run(&["scontrol", "update", "NodeName=node0007", "State=DRAIN", theirs]);
    let back = ["node0007", "node0008"].map(|it| action(ActionKind::Release, it, "")).to_vec();
    let records = site.carry(&plan(back));
    let expected = [("node0007", ActionResult::Superseded), ("node0008", ActionResult::Refused)];
    assert_eq!(results(&records), expected, "{records:?}");
    assert_eq!(site.node("node0007").reason.as_deref(), Some("eve: mine now"));
    assert_eq!(site.updates().len(), 1);
}

#[test]
fn a_persons_write_right_after_the_gates_is_not_overwritten() {
    let Some(lab) = lab() else { return };
    let hers = "lab scontrol update NodeName=node0010 State=DRAIN Reason='ann: fan'";
    let site = Site::with(&lab, "", &format!("[ $n != 1 ] || {hers}"));
    let records = site.carry(&plan(drains(&["node0010"])));
    assert_eq!(results(&records), [("node0010", ActionResult::Superseded)], "{records:?}");
    assert_eq!(site.node("node0010").reason.as_deref(), Some("ann: fan"));
    assert_eq!(site.updates().len(), 1);
    // It existed for a moment, and counts.
    assert!(site.ledger().spent.len() == 1 && site.ledger().open_intents.is_empty());
}

#[test]
fn a_reason_that_slurm_edited_is_still_fabricgates() {
    let Some(lab) = lab() else { return };
    let site = Site::new(&lab);
    let all = plan(drains(&["node0011"]));
    site.carry(&all);
    // Slurm's suffix for a node that stops answering; `changes` tests it.
    let edited = "Reason=fabricgate:nvlink-low:r1 e1 : Not responding";
    lab.run(&["scontrol", "update", "NodeName=node0011", edited]);
    assert_eq!(results(&site.carry(&all)), [("node0011", ActionResult::Already)]);
    assert_eq!(own(&site.ledger()), ["node0011"]);
    // An event since: it is not returned without a new reading.
    let back = plan(vec![action(ActionKind::Release, "node0011", "")]);
    let records = site.carry(&back);
    assert_eq!(results(&records), [("node0011", ActionResult::Refused)], "{records:?}");
    assert_eq!(site.updates().len(), 1);
}

#[test]
fn a_node_that_vanishes_from_the_list_takes_no_other_with_it() {
    let Some(lab) = lab() else { return };
    // Between the reading and the change; Slurm then applies the list in part.
    let vanish = "if [ $n = 1 ]; then for word; do shift; case $word in \
                  NodeName=*) word=$word,nosuch ;; esac; set -- \"$@\" \"$word\"; done; fi";
    let site = Site::with(&lab, vanish, "");
    let records = site.carry(&plan(drains(&["node0012", "node0013", "nosuch"])));
    let done = ActionResult::Done;
    let expected = [("node0012", done), ("node0013", done), ("nosuch", ActionResult::Refused)];
    assert_eq!(results(&records), expected, "{records:?}");
    assert!(!site.updates()[0].contains("nosuch"), "an unknown node is not in an update");
    assert_eq!(site.updates().len(), 1, "it is not sent twice");
    assert_eq!(own(&site.ledger()), ["node0012", "node0013"]);
}

#[test]
fn a_user_without_the_right_gets_a_clear_message_and_loses_nothing() {
    let Some(lab) = lab() else { return };
    let alice = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "scontrol"];
    let mut site = Site::new(&lab);
    site.scontrol.argv = lab.argv(&alice);
    let mut all = drains(&["node0014"]);
    all.push(action(ActionKind::Certify, "node0015", ""));
    let records = site.carry(&plan(all));
    for record in &records {
        assert_eq!(record.result, ActionResult::Failed, "{record:?}");
        assert!(record.detail.contains("Invalid user id"), "{record:?}");
    }
    let ledger = site.ledger();
    assert!(ledger.open_intents.is_empty() && ledger.spent.is_empty() && ledger.drains.is_empty());
    assert_eq!(site.node("node0014").state, ["IDLE"]);
}

#[test]
fn a_drain_that_timed_out_and_was_made_later_is_found_done() {
    let Some(lab) = lab() else { return };
    let stop = "if [ $n = 1 ]; then lab sh -c 'kill -STOP $(cat /run/slurmctld/slurmctld.pid)'; \
                setsid '{run}' sh -c 'sleep 5; kill -CONT $(cat /run/slurmctld/slurmctld.pid)' \
                </dev/null >/dev/null 2>&1 & fi";
    let mut site = Site::with(&lab, &stop.replace("{run}", &lab.run), "");
    site.scontrol.limit = IMPATIENCE;
    let records = site.carry(&plan(drains(&["node0016"])));
    assert_eq!(results(&records), [("node0016", ActionResult::Done)], "{records:?}");
    assert_eq!(site.updates().len(), 1, "it is not sent twice");
    assert_eq!(own(&site.ledger()), ["node0016"]);
}

#[test]
fn with_a_controller_that_hangs_for_long_it_stays_open_until_it_can_be_seen() {
    let Some(lab) = lab() else { return };
    let stop = "[ $n != 1 ] || lab sh -c 'kill -STOP $(cat /run/slurmctld/slurmctld.pid)'";
    let mut site = Site::with(&lab, stop, "");
    site.scontrol.limit = IMPATIENCE;
    let mut all = drains(&["node0017"]);
    all.push(action(ActionKind::Drain, "node0018", "other"));
    let all = plan(all);
    let records = site.carry(&all);
    lab.signal("CONT");
    let (unknown, refused) = (ActionResult::Unknown, ActionResult::Refused);
    assert_eq!(results(&records), [("node0017", unknown), ("node0018", refused)], "{records:?}");
    assert_eq!((site.ledger().open_intents.len(), site.ledger().spent.len()), (1, 1));
    // The controller made it when it resumed, and the next turn finds it.
    lab.wait_for("the drain", || site.node("node0017").has_state("DRAIN"));
    let records = site.carry(&all);
    let (already, done) = (ActionResult::Already, ActionResult::Done);
    assert_eq!(results(&records), [("node0017", already), ("node0018", done)], "{records:?}");
    assert_eq!(own(&site.ledger()), ["node0017", "node0018"]);
    let updates = site.updates();
    assert_eq!(updates.iter().filter(|it| it.contains("0017")).count(), 1, "{updates:?}");
}

#[test]
fn a_drain_that_its_controller_forgot_is_made_again() {
    let Some(lab) = lab() else { return };
    let kill = "if [ $n = 1 ]; then lab sh -c 'kill -KILL $(cat /run/slurmctld/slurmctld.pid)'; \
                lab slurmctld; fi";
    let site = Site::with(&lab, "", kill);
    let records = site.carry(&plan(drains(&["node0019"])));
    assert_eq!(results(&records), [("node0019", ActionResult::Done)], "{records:?}");
    let node = site.node("node0019");
    assert!(node.has_state("DRAIN"), "{node:?}");
    assert_eq!(node.reason.as_deref(), Some("fabricgate:nvlink-low:r1 e1"));
    // It may have been saved in time; then it is not sent twice.
    let updates = site.updates().len();
    assert_eq!(updates, if records[0].detail.contains("after it was lost") { 2 } else { 1 });
    assert_eq!(own(&site.ledger()), ["node0019"]);
    assert_eq!(site.ledger().spent.len(), 1, "it counts once");
}

#[test]
fn defect_5_an_undo_within_moments_is_respected() {
    let Some(lab) = lab() else { return };
    let undo = "[ $n != 1 ] || lab scontrol update NodeName=node0019 State=RESUME";
    let site = Site::with(&lab, "", undo);
    let records = site.carry(&plan(drains(&["node0019"])));
    assert_eq!(results(&records), [("node0019", ActionResult::Superseded)], "{records:?}");
    assert_eq!(site.updates().len(), 1, "it is not sent twice");
    assert!(!site.node("node0019").has_state("DRAIN"));
    let ledger = site.ledger();
    assert_eq!(
        (own(&ledger).len(), ledger.undone_drains.len(), ledger.open_intents.len()),
        (0, 1, 0)
    );
    assert!(ledger.controller.is_some(), "its start is known: {ledger:?}");
}
