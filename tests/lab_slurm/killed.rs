//! The gate killed in the middle of its work, on a real Slurm: a turn of the library at every
//! step, and the program at some.

use std::fs;
use std::path::Path;

use control::gate::journal;
use control::gate::journal::Journal;
use control::gate::scontrol::ScontrolScheduler;
use engine::policy::journal_state::JournalState;
use model::action::{Action, ActionKind, ActionPlan, ActionResult};
use model::journal::JournalEvent;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;

use super::carry::{PATIENCE, action, drains, own, plan, program, tidy, turn};
use super::changes::seen;
use super::gate::{expect, newest, with_faults};
use super::hold::{ProgramOutput, fabricgate, furnish, site};
use super::*;

/// The folder of a turn that runs in another process of these tests.
const CHILD: &str = "FABRICGATE_LAB_KILLED";

/// The process that is killed: one turn over the content of its folder.
#[test]
fn the_turn_that_is_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = Path::new(&folder);
    let text = fs::read_to_string(folder.join("plan.json")).expect("a plan");
    let plan: ActionPlan = serde_json::from_str(&text).expect("a plan");
    let argv = vec![folder.join("scontrol").display().to_string()];
    let scontrol = ScontrolScheduler { argv, limit: PATIENCE, remote_shell: Some(false) };
    // This controller forgets nothing: it is never killed.
    let records = turn(&folder.join("state"), &scontrol, &plan, Duration::ZERO);
    let text = serde_json::to_string(&records).expect("plain data");
    fs::write(folder.join("records.json"), text).expect("written");
}

/// The point at which a turn is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Never,
    /// Before this call, which is then never made.
    Before(usize),
    /// Before this call, which continues without the turn.
    Orphan(usize),
    /// After this call, before the turn sees its answer.
    After(usize),
}

impl Kill {
    /// Arms the next call of this number to kill its caller.
    fn arm(self, folder: &Path) {
        let (how, at) = match self {
            Self::Never => ("Never", 0),
            Self::Before(at) => ("Before", at),
            Self::Orphan(at) => ("Orphan", at),
            Self::After(at) => ("After", at),
        };
        fs::write(folder.join("kill"), format!("{how} {at}\n")).expect("written");
        let _ = fs::remove_file(folder.join("calls"));
    }
}

/// A program in front of `scontrol` that kills its parent, which is the turn, where armed. Pings
/// change nothing and are not counted; every other call is.
fn killer(folder: &Path, run: &str) -> Vec<String> {
    let here = folder.display();
    let script = format!(
        "#!/bin/sh\nhere='{here}'\ncase \"$*\" in *ping) exec '{run}' scontrol \"$@\" ;; esac\n\
         echo \"$*\" >>\"$here/calls\"\nn=$(wc -l <\"$here/calls\")\n\
         read -r how at <\"$here/kill\"\n[ $n = $at ] || how=Never\n\
         [ $how != Before ] || {{ kill -KILL $PPID; exit 1; }}\n\
         echo \"$*\" >>\"$here/made\"\n[ $how != Orphan ] || kill -KILL $PPID\n\
         '{run}' scontrol \"$@\"\nrc=$?\necho \"$*\" >>\"$here/over\"\n\
         [ $how != After ] || kill -KILL $PPID\nexit $rc\n"
    );
    program(folder, &script)
}

fn lines(folder: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Number of completed calls with this text about this node.
fn made_calls(folder: &Path, node: &str, what: &str) -> usize {
    let is = |line: &&String| line.contains(node) && line.contains(what);
    lines(folder, "made").iter().filter(is).count()
}

/// Waits for the call that continues without the turn.
fn finished(lab: &Lab, folder: &Path) {
    lab.wait_for("the call", || lines(folder, "over").len() == lines(folder, "made").len());
}

fn live(lab: &Lab) -> BTreeMap<NodeName, SchedulerNode> {
    let scontrol = ScontrolScheduler {
        argv: lab.argv(&["scontrol"]),
        limit: PATIENCE,
        remote_shell: Some(false),
    };
    seen(&scontrol, &[]).nodes
}

/// Each node is untouched, or carries fabricgate's mark and is in the journal.
fn accounted(
    before: &BTreeMap<NodeName, SchedulerNode>,
    after: &BTreeMap<NodeName, SchedulerNode>,
    ledger: &JournalState,
    run: &str,
    kill: Kill,
) {
    for (name, node) in after {
        let is_same = node_state(node) == node_state(&before[name]);
        let is_open = ledger.open_intents.iter().any(|open| open.action.node == *name);
        let is_said = ledger.marks.get(name).is_some_and(|mark| mark.run == run);
        assert!(is_same || is_open || is_said, "{kill:?}: {name}: {node:?}: {ledger:?}");
    }
}

/// A gate whose turns are processes that can be killed.
struct Killed<'l> {
    lab: &'l Lab,
    folder: tempfile::TempDir,
}

impl<'l> Killed<'l> {
    fn new(lab: &'l Lab, plan: &ActionPlan) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        killer(folder.path(), &lab.run);
        let text = serde_json::to_string(plan).expect("plain data");
        fs::write(folder.path().join("plan.json"), text).expect("written");
        Self { lab, folder }
    }

    /// One turn; true if it completed, and the number of its calls.
    fn turn(&self, kill: Kill) -> (bool, Vec<String>) {
        let here = self.folder.path();
        kill.arm(here);
        let _ = fs::remove_file(here.join("records.json"));
        let program =
            exec::executable::current_executable().expect("these tests").display().to_string();
        let child = format!("{CHILD}={}", here.display());
        let test = "killed::the_turn_that_is_killed";
        let argv = ["env", &child, &program, "--exact", test, "--nocapture"].map(str::to_owned);
        let limit = Duration::from_secs(120);
        let request = ProcessRequest { argv: argv.to_vec(), limit, capture: exec::CAPTURE };
        let (_sender, stop) = tokio::sync::watch::channel(false);
        let finished = now(exec::run(&request, stop)).expect("these tests");
        let stderr = String::from_utf8_lossy(&finished.stderr.bytes);
        match finished.ending {
            ProcessEnding::Exited { code: 0 } => {}
            ProcessEnding::Signalled { signal: 9 } => assert_ne!(kill, Kill::Never, "{stderr}"),
            other => panic!("{kill:?}: {other}: {stderr}"),
        }
        (here.join("records.json").is_file(), lines(here, "calls"))
    }

    fn ledger(&self) -> JournalState {
        journal::read_state(&self.folder.path().join("state")).expect("a journal")
    }

    fn calls_made(&self, node: &str, what: &str) -> usize {
        made_calls(self.folder.path(), node, what)
    }
}

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        tidy(self.lab);
    }
}

/// The fields of a node that a gate could have changed.
fn node_state(
    node: &SchedulerNode,
) -> (Vec<String>, Option<String>, String, Vec<String>, Vec<String>) {
    let SchedulerNode { state, reason, extra, active_features, available_features, .. } =
        node.clone();
    (state, reason, extra, active_features, available_features)
}

/// A node that an earlier turn drained, as that turn recorded it.
fn drained_before(killed: &Killed<'_>, name: &str) {
    let reason = "fabricgate:nvlink-low:r0 e1".to_owned();
    let node = format!("NodeName={name}");
    let why = format!("Reason={reason}");
    killed.lab.run(&["scontrol", "update", &node, "State=DRAIN", &why]);
    let mut journal = Journal::open(&killed.folder.path().join("state")).expect("a turn");
    let id = format!("r0/{name}/drain/e1");
    let state = Some(NodeStateChange::Drain { reason: reason.clone() });
    let intent = JournalEvent::Intent {
        id: id.clone(),
        run: "r0".to_owned(),
        action: Box::new(Action { reason, ..action(ActionKind::Drain, name, "nvlink-low") }),
        change: Box::new(NodeUpdate { state, ..NodeUpdate::default() }),
        before: Box::new(SchedulerNode::new(name, &["IDLE"])),
    };
    let outcome = JournalEvent::Outcome { id, result: ActionResult::Done, detail: String::new() };
    journal.append_all(vec![intent, outcome]).expect("written");
}

/// Kills a turn at one point and lets the next ones complete; true if it was killed.
fn killed_at(lab: &Lab, plan: &ActionPlan, kill: Kill) -> (bool, usize) {
    let killed = Killed::new(lab, plan);
    drained_before(&killed, "node0004");
    let before = live(lab);
    let (ended, calls) = killed.turn(kill);
    if !ended {
        finished(lab, killed.folder.path());
        accounted(&before, &live(lab), &killed.ledger(), "r1", kill);
    }
    let (ended_now, _) = killed.turn(Kill::Never);
    assert!(ended_now, "{kill:?}");
    let (after, ledger) = (live(lab), killed.ledger());
    assert!(ledger.open_intents.is_empty(), "{kill:?}: {ledger:?}");
    assert_eq!(own(&ledger), ["node0001", "node0002"], "{kill:?}");
    // One of before, two of now, and possibly one that the killed turn sent.
    assert!((3..=5).contains(&ledger.spent.len()), "{kill:?}: {:?}", ledger.spent);
    for name in ["node0001", "node0002"] {
        let node = &after[&NodeName::from(name)];
        let own = &ledger.drains[&node.name].action.reason;
        assert!(node.has_state("DRAIN"), "{kill:?}: {node:?}");
        assert_eq!(node.reason.as_ref(), Some(own), "{kill:?}");
    }
    assert!(!after[&NodeName::from("node0004")].has_state("DRAIN"), "{kill:?}");
    for node in after.values().filter(|node| NodeName::from("node0004") < node.name) {
        assert_eq!(node_state(node), node_state(&before[&node.name]), "{kill:?}: {}", node.name);
    }
    assert!(after[&NodeName::from("node0003")].extra.contains("r1"), "{kill:?}");
    assert_eq!(
        killed.calls_made("0001", "DRAIN"),
        1,
        "{kill:?}: {:?}",
        lines(killed.folder.path(), "made")
    );
    assert_eq!(
        killed.calls_made("0004", "RESUME"),
        1,
        "{kill:?}: {:?}",
        lines(killed.folder.path(), "made")
    );
    // Another turn changes nothing, and records that it ran.
    let lines = ledger.lines;
    let (ended_again, calls_again) = killed.turn(Kill::Never);
    assert!(ended_again && calls_again.iter().all(|it| !it.contains("update")), "{calls_again:?}");
    assert_eq!(killed.ledger().lines, lines + 1, "{kill:?}");
    assert_eq!(own(&killed.ledger()), ["node0001", "node0002"]);
    (!ended, calls.len())
}

#[test]
fn a_turn_that_is_killed_at_any_step_leaves_nothing_half_done() {
    let Some(lab) = lab() else { return };
    let mut all = drains(&["node0001", "node0002"]);
    all.push(action(ActionKind::Certify, "node0003", ""));
    all.push(action(ActionKind::Release, "node0004", ""));
    let all = plan(all);
    let (was_killed, calls) = killed_at(&lab, &all, Kill::Never);
    assert!(!was_killed && 9 <= calls, "{calls} calls");
    for at in 1..=calls {
        let all_ways = [Kill::Before(at), Kill::Orphan(at), Kill::After(at)];
        // The steps and the journal at each of them do not depend on the version: each step is
        // tested in two ways, one on each. All three on both take four minutes.
        let way = (at + usize::from(lab.has_yaml())) % 3;
        let every = std::env::var_os(EVERY_WAY).is_some();
        for kill in if every { &all_ways[..] } else { &all_ways[way..][..1] } {
            let (was_killed, _) = killed_at(&lab, &all, *kill);
            assert!(was_killed, "{kill:?}");
        }
    }
}

/// If set, every step is tested in all three ways.
const EVERY_WAY: &str = "FABRICGATE_LAB_EVERY_WAY";

/// The node whose fault the stored run found.
const BAD: &str = "node0030";

/// A stored run, and a gate whose calls can kill the program.
struct Stored<'l> {
    lab: &'l Lab,
    site: tempfile::TempDir,
    run: String,
}

impl<'l> Stored<'l> {
    fn new(lab: &'l Lab) -> Self {
        furnish(lab, &with_faults(&[BAD]));
        // An update that a killed turn may have sent counts in the hour: room for one more.
        let site = site(lab, "", "[policy]\nper_hour = 0.25\n");
        expect(&fabricgate(&site, &["audit", "node[0027-0034]"]), 3);
        let run = newest(&site.path().join("runs"));
        // Only the gate goes through it: the measurement is over.
        let own = killer(site.path(), &lab.run);
        let config = site.path().join("fabricgate.toml");
        let text = fs::read_to_string(&config).expect("a configuration");
        let (launcher, gate) = text.split_once("[gate]").expect("a gate");
        let plain = format!("scontrol = [{:?}, \"scontrol\"]", lab.run);
        assert!(gate.contains(&plain), "{gate}");
        let gate = gate.replace(&plain, &format!("scontrol = {own:?}"));
        fs::write(&config, format!("{launcher}[gate]{gate}")).expect("written");
        Self { lab, site, run }
    }

    /// Runs the program; its result, and the calls of its gate.
    fn run_with(&self, kill: Kill, arguments: &[&str]) -> (ProgramOutput, Vec<String>) {
        kill.arm(self.site.path());
        let output = fabricgate(&self.site, arguments);
        (output, lines(self.site.path(), "calls"))
    }

    fn apply(&self, kill: Kill) -> (ProgramOutput, Vec<String>) {
        self.run_with(kill, &["apply", &self.run, "--apply"])
    }

    fn ledger(&self) -> JournalState {
        journal::read_state(&self.site.path().join("gate")).expect("a journal")
    }

    /// Applies the run for the first time, is killed there, and completes; true if it was killed,
    /// and the calls until then.
    fn killed_at(&self, kill: Kill) -> (bool, Vec<String>) {
        let (lab, here) = (self.lab, self.site.path());
        let _ = fs::remove_dir_all(here.join("gate"));
        for name in ["made", "over"] {
            let _ = fs::remove_file(here.join(name));
        }
        tidy(lab);
        let before = live(lab);
        let (told_first, calls) = self.apply(kill);
        let was_killed = told_first.code.is_none();
        if was_killed {
            finished(lab, here);
            let id = self.run.rsplit('/').next().expect("a name");
            accounted(&before, &live(lab), &self.ledger(), id, kill);
        } else {
            expect(&told_first, 0);
        }
        let (recovered, calls_to_recover) = self.run_with(Kill::Never, &["gate", "recover"]);
        expect(&recovered, 0);
        assert!(self.ledger().open_intents.is_empty(), "{kill:?}: {:?}", self.ledger());
        let drained = |it: &String| it.contains("DRAIN");
        assert!(!calls_to_recover.iter().any(drained), "{kill:?}: {calls_to_recover:?}");
        expect(&self.apply(Kill::Never).0, 0);
        let (after, ledger) = (live(lab), self.ledger());
        let all: Vec<&str> =
            after.values().filter(|it| it.has_state("DRAIN")).map(|it| it.name.as_str()).collect();
        assert_eq!((all, own(&ledger)), (vec![BAD], vec![BAD]), "{kill:?}");
        let bad = NodeName::from(BAD);
        assert_eq!(after[&bad].reason.as_ref(), Some(&ledger.drains[&bad].action.reason));
        // One, and possibly one that the killed turn sent.
        assert!((1..=2).contains(&ledger.spent.len()), "{kill:?}: {ledger:?}");
        assert!(ledger.open_intents.is_empty(), "{kill:?}: {ledger:?}");
        assert_eq!(made_calls(here, BAD, "DRAIN"), 1, "{kill:?}: {:?}", lines(here, "made"));
        // Another turn sends nothing.
        let (again, calls_again) = self.apply(Kill::Never);
        expect(&again, 0);
        assert!(calls_again.iter().all(|it| !it.contains("update")), "{calls_again:?}");
        for (name, node) in &live(lab) {
            assert_eq!(node_state(node), node_state(&after[name]), "{kill:?}: {name}");
        }
        (was_killed, calls)
    }
}

impl Drop for Stored<'_> {
    fn drop(&mut self) {
        tidy(self.lab);
    }
}

/// A sample, since each takes four runs of the program; the test above covers every step.
#[test]
fn a_killed_apply_is_concluded_and_drains_no_node_twice() {
    let Some(lab) = lab() else { return };
    let stored = Stored::new(&lab);
    let (was_killed, calls) = stored.killed_at(Kill::Never);
    assert!(!was_killed);
    let drain = calls.iter().position(|it| it.contains("State=DRAIN"));
    let drain = drain.unwrap_or_else(|| panic!("{calls:?}")) + 1;
    assert!(1 < drain && drain < calls.len(), "{calls:?}");
    for kill in [
        Kill::After(1),
        Kill::Before(drain),
        Kill::Orphan(drain),
        Kill::After(drain),
        Kill::Before(calls.len()),
    ] {
        let (was_killed, _) = stored.killed_at(kill);
        assert!(was_killed, "{kill:?}");
    }
}
