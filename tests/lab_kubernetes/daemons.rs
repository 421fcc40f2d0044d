//! Programs of a lab that are killed and hung, and a keeper that restarts them, as a kubelet does
//! with static pods: also one that ended by itself, such as an API server that finds no store at
//! its start.
//!
//! Only for a test's own lab: other users would be disturbed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::storm::fates::Victim;

/// Poll interval of the keeper.
const LOOK: Duration = Duration::from_millis(50);

/// Minimum time between starts of a program that ends repeatedly.
const BREATH: Duration = Duration::from_secs(1);

/// The programs of a lab in which nodes are objects and no pod runs.
const NAMES: [&str; 2] = ["kube-apiserver", "etcd"];

#[derive(Debug)]
struct Daemon {
    name: &'static str,
    argv: Vec<String>,
    process: Victim,
    started: Instant,
    /// Killed, and not restarted until then.
    away: Option<Instant>,
    /// Stopped, and continued then.
    hung: Option<Instant>,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    daemons: Vec<Daemon>,
    is_over: bool,
}

/// The programs of a lab, and the thread that keeps them running.
#[derive(Clone, Debug)]
pub(super) struct Daemons(Arc<Mutex<State>>);

/// The keeper; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    daemons: Daemons,
    keeper: Option<JoinHandle<()>>,
}

/// True if this process runs this program: it may have ended, be a zombie, or its number may
/// belong to another process.
fn runs(pid: u32, name: &str) -> bool {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    comm.trim() == name && !matches!(state, None | Some('Z' | 'X'))
}

/// A copy of a folder, without the preallocated space of its files.
#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn copied(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    let done = command.args(["-a", "--sparse=always"]).arg(from).arg(to).status();
    assert!(done.expect("cp").success(), "{} was not copied", from.display());
}

impl Daemon {
    fn of(folder: &Path, name: &'static str) -> Self {
        let pids = fs::read_to_string(folder.join("pids")).expect("the lab's processes");
        let mut pids = pids.lines().filter_map(|line| line.parse().ok());
        let pid = pids.find(|pid| runs(*pid, name)).unwrap_or_else(|| panic!("no {name} runs"));
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("its words");
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let argv = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let process = Victim::of(pid).expect("it runs");
        Self { name, argv, process, started: Instant::now(), away: None, hung: None }
    }

    fn runs(&self) -> bool {
        runs(self.process.pid(), self.name)
    }

    /// Starts it with its arguments.
    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn start(&mut self, folder: &Path) {
        let log = folder.join(format!("{}-again.log", self.name));
        let log = fs::OpenOptions::new().create(true).append(true).open(log).expect("a log");
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().expect("a program of the lab");
        let before = self.process.pid().to_string();
        self.process = Victim::of(child.id()).expect("a child process");
        self.started = Instant::now();
        // It replaces the old one, whose number `down` must not find.
        let (pids, new) = (folder.join("pids"), folder.join("pids.new"));
        let text = fs::read_to_string(&pids).expect("the lab's processes");
        let number = child.id().to_string();
        let lines = text.lines().map(|line| if line == before { number.as_str() } else { line });
        fs::write(&new, lines.map(|line| format!("{line}\n")).collect::<String>())
            .expect("written");
        fs::rename(new, pids).expect("renamed");
        // It ends with its lab; the wait frees its number then.
        std::thread::spawn(move || child.wait());
    }

    fn data(&self) -> PathBuf {
        let mut words = self.argv.iter().skip_while(|word| *word != "--data-dir");
        PathBuf::from(words.nth(1).expect("a folder of data"))
    }

    fn kept(&mut self, folder: &Path) {
        let now = Instant::now();
        if self.hung.is_some_and(|until| until <= now) {
            self.hung = None;
            self.process.signal(Signal::CONT);
        }
        if self.away.is_some_and(|until| now < until) || self.runs() {
            return;
        }
        if self.away.take().is_some() || self.started + BREATH < now {
            self.start(folder);
        }
    }
}

impl Daemons {
    /// The programs of the lab in this folder, kept running from now on.
    pub(super) fn kept(folder: &Path) -> Kept {
        let daemons = NAMES.map(|name| Daemon::of(folder, name)).into();
        let state = State { folder: folder.to_owned(), daemons, is_over: false };
        let daemons = Self(Arc::new(Mutex::new(state)));
        let own = daemons.clone();
        let keeper = std::thread::spawn(move || {
            loop {
                let mut state = own.state();
                if state.is_over {
                    return;
                }
                let State { folder, daemons, .. } = &mut *state;
                for daemon in daemons {
                    daemon.kept(folder);
                }
                drop(state);
                std::thread::sleep(LOOK);
            }
        });
        Kept { daemons, keeper: Some(keeper) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Kills one of them, and keeps it down for this long.
    pub(super) fn crash(&self, which: usize, away: Duration) {
        let daemon = &mut self.state().daemons[which % NAMES.len()];
        daemon.process.signal(Signal::KILL);
        daemon.away = Some(Instant::now() + away);
        daemon.hung = None;
    }

    /// Hangs one of them for this long.
    pub(super) fn hang(&self, which: usize, time: Duration) {
        let daemon = &mut self.state().daemons[which % NAMES.len()];
        daemon.process.signal(Signal::STOP);
        daemon.hung = Some(Instant::now() + time);
    }

    /// Copies the store at one moment.
    pub(super) fn copy(&self, to: &Path) {
        let state = self.state();
        let store = state.daemons.iter().find(|it| it.name == "etcd").expect("a store");
        store.process.signal(Signal::STOP);
        copied(&store.data(), to);
        if store.hung.is_none() {
            store.process.signal(Signal::CONT);
        }
    }

    /// Starts the store with this copy, and restarts the API server.
    pub(super) fn put_back(&self, from: &Path) {
        let mut state = self.state();
        let begun = Instant::now();
        for daemon in &mut state.daemons {
            daemon.process.signal(Signal::KILL);
            (daemon.away, daemon.hung) = (Some(begun), None);
            while daemon.runs() {
                assert!(begun.elapsed() < Duration::from_secs(30), "{} stays", daemon.name);
                std::thread::sleep(LOOK);
            }
        }
        let store = state.daemons.iter().find(|it| it.name == "etcd").expect("a store").data();
        fs::remove_dir_all(&store).expect("removed");
        copied(from, &store);
    }

    /// Brings back every hung or missing program immediately.
    pub(super) fn calm(&self) {
        for daemon in &mut self.state().daemons {
            let now = Some(Instant::now());
            daemon.hung = daemon.hung.and(now);
            daemon.away = daemon.away.and(now);
        }
    }

    /// The last lines of their logs, to explain a missing answer.
    pub(super) fn last_words(&self) -> String {
        let state = self.state();
        let words = |daemon: &Daemon| {
            let files = ["", "-again"].map(|it| format!("{}{it}.log", daemon.name));
            let ends = files.map(|file| {
                let text = fs::read_to_string(state.folder.join(&file)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                format!("{file}:\n{}\n", lines[lines.len().saturating_sub(10)..].join("\n"))
            });
            format!("{} runs: {}\n{}", daemon.name, daemon.runs(), ends.concat())
        };
        state.daemons.iter().map(words).collect()
    }
}

impl std::ops::Deref for Kept {
    type Target = Daemons;

    fn deref(&self) -> &Daemons {
        &self.daemons
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.daemons.calm();
        self.daemons.state().is_over = true;
        if let Some(keeper) = self.keeper.take() {
            // It contains no message that a user could act on.
            let _ = keeper.join();
        }
    }
}
