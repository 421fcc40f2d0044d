//! The gate killed in the middle of its work, on a real server: a turn of the library at every
//! request, before the server receives it, while it is processed without the client, and after
//! its answer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use control::gate::journal;
use control::gate::kubernetes::KubernetesScheduler as Gate;
use engine::policy::journal_state::JournalState;
use model::action::{ActionKind, ActionPlan};
use node::exec;
use node::exec::ProcessRequest;
use serde_json::Value;

use super::proxy::{Call, InjectedFault, Proxy};
use super::turns::{
    Admin, action, content, drained, drained_before, foreign, laboratory, now, own, plan, through,
    turn,
};

/// The folder of a turn that runs in another process of these tests.
const CHILD: &str = "FABRICGATE_LAB_KILLED";

/// If set, every step is tested in all three ways.
const EVERY_WAY: &str = "FABRICGATE_LAB_EVERY_WAY";

/// Concurrent attempts.
const AT_ONCE: usize = 4;

/// Number that makes names of nodes unique per attempt.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The process that is killed: one turn over the content of its folder.
#[test]
fn the_turn_that_is_killed() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = Path::new(&folder);
    fs::write(folder.join("pid"), std::process::id().to_string()).expect("written");
    let text = fs::read_to_string(folder.join("plan.json")).expect("a plan");
    let plan: ActionPlan = serde_json::from_str(&text).expect("a plan");
    let gate = Gate::new(through(&folder.join("admin.proxy.kubeconfig")));
    let records = turn(&folder.join("state"), &gate, &plan);
    let text = serde_json::to_string(&records).expect("plain data");
    fs::write(folder.join("records.json"), text).expect("written");
}

/// The point at which a turn is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Never,
    /// At this request, which the server never receives.
    Before(usize),
    /// At this request, which the server still processes.
    Orphan(usize),
    /// After this request, before its answer arrives.
    After(usize),
}

fn run(argv: &[&str]) -> exec::FinishedProcess {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let request = ProcessRequest { argv, limit: Duration::from_secs(120), capture: exec::CAPTURE };
    let (_sender, stop) = tokio::sync::watch::channel(false);
    now(exec::run(&request, stop)).expect("a program")
}

/// A gate whose turns are processes that can be killed.
struct Killed {
    folder: tempfile::TempDir,
    proxy: Proxy,
    admin: Admin,
    /// Two to drain, one to certify, one to return, one outside the plan.
    names: Vec<String>,
}

impl Killed {
    fn new(kubeconfig: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let proxy = Proxy::to(kubeconfig, folder.path());
        let admin = Admin::of(kubeconfig);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names: Vec<String> = (1..=5).map(|it| format!("killed-{number}-{it}")).collect();
        for name in &names {
            now(admin.make(name));
        }
        let gate = Gate::new(through(kubeconfig));
        drained_before(&folder.path().join("state"), &admin, &gate, &names[3]);
        let wanted = plan(vec![
            action(ActionKind::Drain, &names[0]),
            action(ActionKind::Drain, &names[1]),
            action(ActionKind::Certify, &names[2]),
            action(ActionKind::Release, &names[3]),
        ]);
        let text = serde_json::to_string(&wanted).expect("plain data");
        fs::write(folder.path().join("plan.json"), text).expect("written");
        Self { folder, proxy, admin, names }
    }

    /// One turn; true if it completed, and its requests.
    fn turn(&self, kill: Kill) -> (bool, Vec<Call>) {
        let here = self.folder.path().to_owned();
        let _ = fs::remove_file(here.join("records.json"));
        let end = move || {
            let pid = fs::read_to_string(here.join("pid")).expect("a pid");
            let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number"));
            let pid = pid.expect("a pid");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        };
        self.proxy.inject(move |call| match kill {
            Kill::Before(at) if at == call.number => {
                end();
                InjectedFault::Lost
            }
            Kill::Orphan(at) if at == call.number => {
                end();
                InjectedFault::Fine
            }
            Kill::After(at) if at == call.number => {
                InjectedFault::LostAnswerThen(Box::new(end.clone()))
            }
            _ => InjectedFault::Fine,
        });
        let this = exec::executable::current_executable().expect("a program").display().to_string();
        let folder = format!("{CHILD}={}", self.folder.path().display());
        let test = "killed::the_turn_that_is_killed";
        run(&["env", &folder, &this, "--exact", test, "--nocapture", "--test-threads", "1"]);
        self.proxy.quiet();
        (self.folder.path().join("records.json").is_file(), self.proxy.asked())
    }

    fn nodes(&self) -> BTreeMap<String, Value> {
        self.names.iter().map(|name| (name.clone(), now(self.admin.node(name)))).collect()
    }

    fn ledger(&self) -> JournalState {
        journal::read_state(&self.folder.path().join("state")).expect("a journal")
    }
}

/// Each node is untouched, or marked and in the journal, and no foreign field was changed.
fn accounted(killed: &Killed, before: &BTreeMap<String, Value>, kill: Kill) {
    let ledger = killed.ledger();
    for (name, node) in killed.nodes() {
        assert_eq!(foreign(&node), foreign(&before[&name]), "{kill:?}: {name}");
        let _whole = drained(&node);
        let is_same = content(&node) == content(&before[&name]);
        let is_open = ledger.open_intents.iter().any(|open| open.action.node.as_str() == name);
        let is_said = ledger.marks.get(&name.as_str().into()).is_some_and(|it| it.run == "r1");
        assert!(is_same || is_open || is_said, "{kill:?}: {name}: {node}: {ledger:?}");
    }
}

/// Kills a turn at one point and lets the next ones complete; true if it was killed, and the
/// number of its requests.
fn killed_at(kubeconfig: &Path, kill: Kill) -> (bool, usize) {
    let killed = Killed::new(kubeconfig);
    let before = killed.nodes();
    let [bad, worse, good, better, other] = &killed.names[..] else { panic!("five nodes") };
    let (ended, calls) = killed.turn(kill);
    let mut received = killed.proxy.received();
    accounted(&killed, &before, kill);
    let (ended_now, _) = killed.turn(Kill::Never);
    assert!(ended_now, "{kill:?}");
    received.extend(killed.proxy.received());
    accounted(&killed, &before, kill);

    let (after, ledger) = (killed.nodes(), killed.ledger());
    assert!(ledger.open_intents.is_empty(), "{kill:?}: {ledger:?}");
    assert_eq!(own(&ledger), [bad.as_str(), worse.as_str()], "{kill:?}");
    // One of before, two of now, and possibly one that the killed turn sent.
    assert!((3..=5).contains(&ledger.spent.len()), "{kill:?}: {:?}", ledger.spent);
    for name in [bad, worse] {
        let written = &ledger.drains[&name.as_str().into()].action.reason;
        assert_eq!(drained(&after[name]).as_ref(), Some(written), "{kill:?}: {name}");
        let drains = received.iter().filter(|it| it.is_of(name) && it.is_patch());
        let drains = drains.filter(|it| it.body.contains("NoSchedule")).count();
        assert_eq!(drains, 1, "{kill:?}: {name} got {drains} drains");
    }
    assert_eq!(drained(&after[better]), None, "{kill:?}");
    assert_eq!(content(&after[other]), content(&before[other]), "{kill:?}");
    let certified = &after[good]["metadata"]["labels"]["fabricgate.io/verdict"];
    assert_eq!(certified, "pass", "{kill:?}: {}", after[good]);

    // Another turn changes nothing, and records that it ran.
    let lines = ledger.lines;
    let (ended_again, calls_again) = killed.turn(Kill::Never);
    assert!(ended_again, "{kill:?}");
    let written: Vec<&Call> = calls_again.iter().filter(|it| it.method != "GET").collect();
    assert!(written.is_empty(), "{kill:?}: {written:?}");
    assert_eq!(killed.ledger().lines, lines + 1, "{kill:?}");
    for (name, node) in killed.nodes() {
        assert_eq!(content(&node), content(&after[&name]), "{kill:?}: {name}");
        now(killed.admin.delete(&format!("/api/v1/nodes/{name}")));
    }
    (!ended, calls.len())
}

#[test]
fn a_turn_that_is_killed_at_any_question_leaves_nothing_half_done() {
    let Some(kubeconfig) = laboratory() else { return };
    let (was_killed, calls) = killed_at(&kubeconfig, Kill::Never);
    assert!(!was_killed && 15 <= calls, "{calls} questions");
    let every = std::env::var_os(EVERY_WAY).is_some();
    let kills = (1..=calls).flat_map(|at| {
        let all_ways = [Kill::Before(at), Kill::Orphan(at), Kill::After(at)];
        let ways = if every { &all_ways[..] } else { &all_ways[at % 3..][..1] };
        ways.to_vec()
    });
    // Each has its own nodes and folder, and waits most of its time.
    let kills = Mutex::new(kills);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = kills.lock().expect("no thread panics here").next();
                    let Some(kill) = next else { return };
                    let (was_killed, _) = killed_at(&kubeconfig, kill);
                    assert!(was_killed, "{kill:?}");
                }
            });
        }
    });
}
