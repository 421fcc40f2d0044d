//! A server that hangs, or is killed and restarted, in the middle of a turn: a cluster for these
//! tests alone.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::gate::journal;
use control::gate::kubernetes::KubernetesScheduler as Gate;
use control::gate::scheduler::Scheduler;
use model::action::ActionResult::*;
use model::action::{ActionKind, ActionResult};
use model::source_report::SourceProblemKind;
use rustix::process::{Pid, Signal, kill_process};

use super::lab;
use super::proxy::{InjectedFault, Proxy};
use super::turns::{
    Admin, action, content, drained, foreign, now, own, plan, results, through, turn,
};

/// The server's process, which can be stopped and restarted.
#[derive(Clone)]
pub(super) struct Process {
    folder: PathBuf,
    argv: Vec<String>,
}

impl Process {
    pub(super) fn of(folder: &Path) -> Self {
        let mut process = Self { folder: folder.to_owned(), argv: Vec::new() };
        let line = fs::read(format!("/proc/{}/cmdline", process.number())).expect("its words");
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        process.argv = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        process
    }

    fn number(&self) -> i32 {
        let pids = fs::read_to_string(self.folder.join("pids")).expect("the lab's processes");
        let is_it = |pid: &&str| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            comm.trim() == "kube-apiserver"
        };
        let pid = pids.lines().rev().find(is_it).expect("an API server");
        pid.parse().expect("a number")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.number()).expect("a pid"), signal).expect("signalled");
    }

    /// Kills it, and waits until its port is free; the store stays.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
        // Its arguments leave /proc before its sockets are closed, and a server that starts
        // meanwhile finds the port taken and ends.
        while TcpListener::bind(("127.0.0.1", self.port())).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn port(&self) -> u16 {
        let at = self.argv.iter().position(|word| word == "--secure-port").expect("its port");
        self.argv[at + 1].parse().expect("a number")
    }

    /// Starts it with its arguments, on the same port.
    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    pub(super) fn start(&self, gate: &Gate) {
        let log = fs::File::create(self.folder.join("kube-apiserver-again.log")).expect("a log");
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("the API server");
        let pids = self.folder.join("pids");
        let text = fs::read_to_string(&pids).expect("the lab's processes");
        fs::write(&pids, format!("{text}{}\n", child.id())).expect("written");
        // It ends with its lab.
        drop(child);
        self.answers(gate);
    }

    fn answers(&self, gate: &Gate) {
        for _ in 0..600 {
            if now(gate.read_nodes(&[])).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("the API server does not come back");
    }
}

/// The result of a drain whose first patch met this outage.
fn drain(
    proxy: &Proxy,
    gate: &Gate,
    state: &Path,
    node: &str,
    met: impl Fn() + Send + 'static,
) -> ActionResult {
    let is_over = Arc::new(AtomicBool::new(false));
    proxy.inject(move |call| {
        if call.is_patch() && !is_over.swap(true, Ordering::Relaxed) {
            met();
        }
        InjectedFault::Fine
    });
    let records = turn(state, gate, &plan(vec![action(ActionKind::Drain, node)]));
    assert_eq!(records.len(), 1, "{records:?}");
    results(&records)[0]
}

#[test]
fn a_server_that_hangs_or_is_killed_in_the_middle_leaves_nothing_half_done() {
    let Some(lab) = lab::own_lab(&[]) else { return };
    let kubeconfig = lab.kubeconfig("admin");
    let folder = tempfile::tempdir().expect("a folder");
    let proxy = Proxy::to(&kubeconfig, folder.path());
    let admin = Admin::of(&kubeconfig);
    let plain = Gate::new(through(&kubeconfig));
    let server = Process::of(&lab.folder);
    for (name, hangs) in [("outage-hung", true), ("outage-killed", false)] {
        now(admin.make(name));
        let before = now(admin.node(name));
        let state = folder.path().join(name);
        let gate = Gate::new(through(&folder.path().join("admin.proxy.kubeconfig")));
        let at_hand = server.clone();
        let result = drain(&proxy, &gate, &state, name, move || {
            if hangs { at_hand.signal(Signal::STOP) } else { at_hand.kill() }
        });
        assert_eq!(result, Unknown, "{name}: unknown without the server");
        let ledger = journal::read_state(&state).expect("a journal");
        assert_eq!(ledger.open_intents.len(), 1, "{name}: {ledger:?}");
        // While it is down nothing is read, and nothing concluded.
        let error = now(plain.read_nodes(&[name.into()])).expect_err("gone");
        assert_eq!(error.kind, SourceProblemKind::Unreachable, "{name}: {error}");
        if hangs {
            // It may now process requests from before the hang.
            server.signal(Signal::CONT);
            server.answers(&plain);
            proxy.quiet();
        } else {
            server.start(&plain);
        }
        let seen = now(admin.node(name));
        assert_eq!(foreign(&seen), foreign(&before), "{name}");
        let was_drained = drained(&seen);
        assert!(was_drained.is_some() || content(&seen) == content(&before), "{name}: {seen}");

        let again = plan(vec![action(ActionKind::Drain, name)]);
        turn(&state, &plain, &again);
        let (node, ledger) =
            (now(admin.node(name)), journal::read_state(&state).expect("a journal"));
        assert_eq!(own(&ledger), [name], "{ledger:?}");
        assert!(ledger.open_intents.is_empty(), "{name}: {ledger:?}");
        let written = ledger.drains[&name.into()].action.reason.clone();
        assert_eq!(drained(&node), Some(written.clone()), "{name}");
        assert!(was_drained.is_none_or(|was| was == written), "{name}: drained twice");
        assert_eq!(foreign(&node), foreign(&before), "{name}");
        turn(&state, &plain, &again);
        assert_eq!(content(&now(admin.node(name))), content(&node), "{name}");
        now(admin.delete(&format!("/api/v1/nodes/{name}")));
    }
}
