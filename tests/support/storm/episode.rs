//! One episode: a site, commands of the real program in sequence and concurrently, and injected
//! faults; then a phase without faults, and its result.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use super::dice::Dice;
use super::fates::{AHEAD, Disk, Fate, Victim};
use super::hand::Edit;
use super::model::{DRAIN, History, Limits, What};
use super::site::Fleet;
use super::world::{Domains, InjectedFault, World};
use super::{fates, journal, runs, site};

/// Longest time without work for all processes of a command; after it the command counts as hung.
/// Time in which a busy machine does not schedule them does not count.
const PATIENCE: Duration = Duration::from_secs(180);

/// Longest time on a machine of any load.
const AT_MOST: Duration = Duration::from_secs(1_800);

/// Number of read-only commands between the others.
const READER: u32 = 9_999;

/// Poll interval.
const LOOK: Duration = Duration::from_secs(1);

/// A command and its injected faults.
#[derive(Debug)]
struct Step {
    words: Vec<String>,
    fate: Option<Fate>,
    /// Nodes have workers, which start tools; without them the program simulates the fabric
    /// itself, many times faster.
    has_workers: bool,
}

/// A site during an episode.
pub(crate) struct Episode {
    dice: Dice,
    /// Dice for later additions, so that a seed stays the same episode otherwise.
    later: Dice,
    /// Copies of the journal, and the content that a restored copy replaced.
    copies: Vec<Vec<u8>>,
    earlier: Vec<Vec<journal::Line>>,
    /// Outside the site, whose disk may be full.
    folder: tempfile::TempDir,
    site: PathBuf,
    world: Box<dyn World>,
    domains: Domains,
    fleet: Fleet,
    limits: Limits,
    policy: String,
    commands: u32,
    disk: Option<Disk>,
    /// Time of the last write in the inspected run folders.
    readable: BTreeMap<PathBuf, Option<SystemTime>>,
    /// Commands and their results, for the log of a failure.
    story: Vec<String>,
    broken: Vec<String>,
    done: Done,
}

/// Actions of the gate in an episode: without actions its invariants hold trivially.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// Drains that were sent.
    pub(crate) drains: usize,
    /// Releases that were sent.
    pub(crate) releases: usize,
    /// fabricgate's drains that a person removed, according to the journal.
    pub(crate) undone: usize,
    /// Intents that a later turn had to conclude, or that were not applied.
    pub(crate) refused: usize,
    /// Breakers that had tripped at the end.
    pub(crate) tripped: usize,
}

/// The result of an episode.
pub(crate) struct Ended {
    pub(crate) story: Vec<String>,
    pub(crate) broken: Vec<String>,
    /// Injected faults, by name, for counting.
    pub(crate) faults: Vec<&'static str>,
    /// Actions of the gate.
    pub(crate) done: Done,
}

impl Episode {
    /// The episode of this seed, in the world that is made for its folders.
    pub(crate) fn new(
        seed: u64,
        domains: Domains,
        world: impl FnOnce(&Path, &Path) -> Box<dyn World>,
    ) -> Self {
        let mut dice = Dice::new(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let site = folder.path().join("site");
        fs::create_dir(&site).expect("a folder");
        let disk = if dice.once_in(4) { Disk::at(&site) } else { None };
        site::furnish(&site, &domains);
        let world = world(folder.path(), &site);
        let fleet = Fleet::any(&domains, &mut dice);
        // From separate dice, so that a seed stays the same episode.
        let waits = Dice::new(!seed).once_in(4);
        let (limits, policy) = site::policy(&domains, waits, &mut dice);
        let (story, broken) = (Vec::new(), Vec::new());
        Self {
            dice,
            later: Dice::new(seed ^ 0x1a7e_1a7e),
            copies: Vec::new(),
            earlier: Vec::new(),
            folder,
            site,
            world,
            domains,
            fleet,
            limits,
            policy,
            commands: 0,
            disk,
            readable: BTreeMap::new(),
            story,
            broken,
            done: Done::default(),
        }
    }

    /// Runs the whole episode.
    pub(crate) fn play(mut self) -> Ended {
        self.tell(format!("{:?}, {}", self.limits, self.policy.replace('\n', "; ")));
        for _ in 0..self.dice.below(4) {
            self.by_hand();
        }
        for _ in 0..2 + self.dice.below(3) {
            self.step();
        }
        self.fair();
        let faults = fates::befell(&self.story);
        let broken = std::mem::take(&mut self.broken);
        if !broken.is_empty() {
            let journal = fs::read_to_string(self.site.join("gate/journal.jsonl"));
            self.story.push(journal.unwrap_or_default());
            if std::env::var_os("FABRICGATE_CHAOS_KEEP").is_some() {
                self.disk = None;
                let story = self.folder.path().join("story");
                fs::write(story, self.story.join("\n")).expect("written");
                self.folder.disable_cleanup(true);
            }
        }
        Ended { story: self.story, broken, faults, done: self.done }
    }

    fn tell(&mut self, what: String) {
        self.story.push(what);
    }

    fn by_hand(&mut self) {
        let node = site::node(&self.domains, &mut self.dice);
        let edit = Edit::any(&mut self.dice);
        self.world.edit(&node, &edit);
        self.tell(format!("by hand: {node} {edit:?}"));
    }

    /// State is lost, or restored from a copy.
    fn loses_state(&mut self) {
        let file = self.site.join("gate/journal.jsonl");
        if self.later.once_in(6) && self.world.forgets() {
            self.tell("the scheduler lost its state".to_owned());
        }
        if self.later.once_in(2) && !self.copies.is_empty() {
            // No copy could contain updates in flight.
            self.world.quiet();
            let copy = self.later.pick(&self.copies).clone();
            let now = fs::read(&file).unwrap_or_default();
            if copy.len() < now.len() && self.world.restored() {
                self.earlier.push(journal::read(&now).0);
                fs::write(&file, &copy).expect("written");
                self.tell(format!("the journal put back: {} of {} bytes", copy.len(), now.len()));
            }
        }
        let now = fs::read(&file).unwrap_or_default();
        // A torn line is not a copy: an operator copies whole files.
        if now.ends_with(b"\n") && self.copies.last() != Some(&now) {
            self.copies.push(now);
        }
    }

    /// One random event.
    fn step(&mut self) {
        self.loses_state();
        if self.dice.once_in(3) {
            self.by_hand();
        }
        if self.dice.once_in(5) {
            self.fleet.breaks(&mut self.dice);
            self.tell("other parts break".to_owned());
        }
        let besides: Vec<String> =
            (0..self.dice.below(3)).map(|_| site::unwell(&self.domains, &mut self.dice)).collect();
        let besides = if self.dice.once_in(2) { besides } else { Vec::new() };
        if !besides.is_empty() {
            self.tell(format!("unwell: {besides:?}"));
        }
        let scenario = self.fleet.scenario(&besides);
        fs::write(self.site.join("fleet.toml"), scenario).expect("written");
        let fault = self.inject();
        self.tell(format!("{AHEAD}{fault:?}"));
        self.world.expect(fault);
        let mut steps = vec![self.command()];
        if self.dice.once_in(4) {
            steps.push(self.command());
            self.tell("concurrently:".to_owned());
        }
        self.run(steps);
        for met in self.world.met() {
            self.tell(format!("met: {met}"));
        }
        // A read-only command queries the scheduler as well.
        self.world.expect(BTreeMap::new());
        self.readable();
    }

    fn inject(&mut self) -> BTreeMap<usize, InjectedFault> {
        let count = self.dice.below(4);
        let questions = self.world.questions();
        let mut all: BTreeMap<usize, InjectedFault> = (0..count)
            .map(|_| {
                (1 + self.dice.below(questions), InjectedFault::any(&self.domains, &mut self.dice))
            })
            .collect();
        let later = &mut self.later;
        if self.world.is_late() && later.once_in(2) {
            let at = 1 + later.below(questions);
            let fault = match later.below(2) {
                0 => {
                    let most = self.world.latest().as_millis();
                    let most = usize::try_from(most).expect("a short time");
                    InjectedFault::Late(Duration::from_millis(later.below(most) as u64))
                }
                _ => {
                    let time = Duration::from_millis(later.below(1_200) as u64);
                    let edits = [Edit::Resume, Edit::Resume, Edit::Drain("psu: bob"), Edit::Append];
                    InjectedFault::HandAfter(time, later.pick(&edits).clone())
                }
            };
            all.insert(at, fault);
        }
        all
    }

    fn command(&mut self) -> Step {
        let runs = runs::folders(&self.site.join("runs"));
        let run = (!runs.is_empty()).then(|| self.dice.pick(&runs).display().to_string());
        let words: Vec<&str> = match (self.dice.below(12), &run) {
            (0, Some(run)) => vec!["recertify", "--apply", "--resume", run],
            (1..=4, Some(run)) => vec!["apply", "--apply", run],
            (5, Some(_)) => vec!["gate", "recover"],
            (6, Some(_)) => vec!["watch", "--once", "--apply"],
            (7..=8, _) => vec!["recertify", "--all", "--apply"],
            (9, _) => vec!["admit", "--apply"],
            _ => vec!["audit", "--apply"],
        };
        let words = words.into_iter().map(str::to_owned).collect();
        let fate = if self.dice.once_in(2) { Some(self.fate()) } else { None };
        let is_of_workers = matches!(fate, Some(Fate::WorkerKilled(_) | Fate::WorkerHangs(..)));
        let has_workers = self.dice.once_in(3) || is_of_workers;
        Step { words, fate, has_workers }
    }

    fn fate(&mut self) -> Fate {
        let dice = &mut self.dice;
        let soon = Duration::from_millis(20 + dice.below(2_500) as u64);
        match dice.below(10) {
            0..=2 => Fate::Signalled(Signal::KILL, soon),
            3 => Fate::Signalled(*dice.pick(&[Signal::INT, Signal::TERM]), soon),
            4 => Fate::WorkerKilled(soon),
            5 => Fate::WorkerHangs(soon, Duration::from_millis(200 + dice.below(2_000) as u64)),
            6 => Fate::Cut(1 + u32::try_from(dice.below(64)).expect("a small number")),
            7 => Fate::Full(dice.below(200_000)),
            _ => Fate::Skewed(*dice.pick(&[-86_400, -3_600, -30, 30, 3_600, 86_400])),
        }
    }

    /// Runs these concurrently, and injects their faults.
    fn run(&mut self, steps: Vec<Step>) {
        let full = steps.iter().find_map(|it| match it.fate {
            Some(Fate::Full(left)) => Some(left),
            _ => None,
        });
        let mut children = Vec::new();
        for step in steps {
            let command = self.commands + 1;
            self.commands = command;
            let child = self.start(command, &step);
            let Step { words, fate, .. } = step;
            // Not yet reaped: its number belongs to it, dead or alive.
            let victim = Victim::of(child.id()).expect("a child process");
            self.world.begins(command, victim.clone());
            children.push((command, words, fate, child, victim));
        }
        if let (Some(left), Some(disk)) = (full, &self.disk) {
            disk.fill(left);
        }
        let befall: Vec<_> = children
            .iter()
            .filter_map(|(_, _, fate, _, victim)| Some((fate.clone()?, victim.clone())))
            .map(|(fate, victim)| {
                let dice = self.dice.below(1_000);
                std::thread::spawn(move || fates::befall(fate, &victim, dice))
            })
            .collect();
        for (command, words, fate, mut child, victim) in children {
            let ended = self.ended(&mut child, &victim);
            self.world.over(command);
            let errors = fs::read_to_string(self.output(command, "stderr")).unwrap_or_default();
            self.tell(format!("{AHEAD}{command}: {words:?} {fate:?}: {ended:?}\n{errors}"));
            if let Some(fate) = fate.filter(|fate| fates::is_met(fate, ended, &errors)) {
                self.tell(format!("met: {fate:?}"));
            }
            self.documented(command, &words, ended, &errors);
        }
        for fate in befall {
            if let Some(fate) = fate.join().expect("fate") {
                self.tell(format!("met: {fate:?}"));
            }
        }
        if let Some(disk) = &self.disk {
            disk.free();
        }
    }

    fn output(&self, command: u32, what: &str) -> PathBuf {
        self.folder.path().join(format!("{what}-{command}"))
    }

    /// The configuration of the command of this number.
    fn configured(&self, has_workers: bool, command: u32) -> String {
        let gate = self.world.gate(&self.site, command);
        site::configuration(&self.site, has_workers, &gate, &self.policy, command)
    }

    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn start(&self, command: u32, step: &Step) -> Child {
        let Step { words, fate, has_workers } = step;
        let config = self.configured(*has_workers || self.world.needs_workers(), command);
        let mut program = match fate {
            Some(Fate::Cut(most)) => {
                let mut shell = Command::new("bash");
                let limited = format!("ulimit -f {most}; exec \"$0\" \"$@\"");
                shell.args(["-c", &limited]).arg(program());
                shell
            }
            _ => Command::new(program()),
        };
        program.args(words).args(["--config", &config, "--no-progress"]);
        program.current_dir(&self.site).env_remove("FABRICGATE_CONFIG").env("NO_COLOR", "1");
        // So that its leftovers are found.
        program.env("FABRICGATE_CHAOS_SITE", &self.site);
        if let (Some(Fate::Skewed(seconds)), Some(library)) = (fate, fates::faketime()) {
            program.env("LD_PRELOAD", library).env("FAKETIME", format!("{seconds:+}"));
            program.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let file = |what| File::create(self.output(command, what)).expect("a file");
        program.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        program.spawn().expect("the program")
    }

    fn ended(&mut self, child: &mut Child, victim: &Victim) -> Option<ExitStatus> {
        let begun = Instant::now();
        let (mut looked, mut idle) = (begun, Duration::ZERO);
        while idle < PATIENCE && begun.elapsed() < AT_MOST {
            if let Some(status) = child.try_wait().expect("a child") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
            if LOOK < looked.elapsed() {
                idle += if fates::is_at_work(victim.pid()) { Duration::ZERO } else { LOOK };
                looked = Instant::now();
            }
        }
        self.tell(fates::account(victim.pid()));
        let _ = child.kill();
        let _ = child.wait();
        None
    }

    /// Ends with a documented code, or killed.
    fn documented(
        &mut self,
        command: u32,
        words: &[String],
        ended: Option<ExitStatus>,
        errors: &str,
    ) {
        let Some(status) = ended else {
            self.broken.push(format!("{command}: {words:?} hangs"));
            return;
        };
        let is_known = match (status.code(), status.signal()) {
            (Some(code), _) => matches!(code, 0 | 2..=6 | 130 | 143),
            // A process that SIGXFSZ ends counts as killed too.
            (_, Some(signal)) => matches!(signal, 2 | 9 | 15 | 25),
            _ => false,
        };
        if !is_known || errors.contains("panicked") {
            self.broken.push(format!("{command}: {words:?}: {status}: {errors}"));
        }
    }

    /// Every run folder can be read, the journal too, and `gate status` answers.
    fn readable(&mut self) {
        self.broken.extend(runs::torn(&self.site));
        for folder in runs::folders(&self.site.join("runs")) {
            let written = runs::written(&folder);
            if self.readable.insert(folder.clone(), written) == Some(written) {
                continue;
            }
            // A run that ended before its file was written is not a run. This is checked first:
            // children of a killed `watch` continue to write.
            let is_run = folder.join("run.json").is_file();
            let output = self.asked(&["report", &folder.display().to_string(), "--format", "json"]);
            if output.is_none_or(|code| code == 1 || is_run && code == 2) {
                self.broken.push(format!("{} cannot be read: {output:?}", folder.display()));
            }
        }
        // With a separate number: no command has read this answer.
        let config = self.configured(false, READER);
        let status = self.asked(&["gate", "status", "--json", "--config", &config]);
        if status != Some(0) {
            self.broken.push(format!("gate status ends with {status:?}"));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn asked(&self, words: &[&str]) -> Option<i32> {
        let output = Command::new(program()).args(words).current_dir(&self.site).output();
        output.expect("the program").status.code()
    }

    /// Without faults: open intents are concluded, the breaker is reset, and the fleet measured
    /// until nothing changes any more.
    fn fair(&mut self) {
        self.world.expect(BTreeMap::new());
        self.world.mend();
        fs::write(self.site.join("fleet.toml"), self.fleet.scenario(&[])).expect("written");
        let plain = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            vec![Step { words, fate: None, has_workers: false }]
        };
        self.world.quiet();
        self.tell("without faults".to_owned());
        // A change of a killed sender stays open as long as it may arrive.
        let begun = Instant::now();
        let longest = self.world.in_flight() + Duration::from_secs(5);
        while begun.elapsed() < longest {
            self.run(plain(&["gate", "recover"]));
            let stdout =
                fs::read_to_string(self.output(self.commands, "stdout")).unwrap_or_default();
            let stderr =
                fs::read_to_string(self.output(self.commands, "stderr")).unwrap_or_default();
            if !(stdout + &stderr).contains("may still be applied") {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        for _ in 0..self.limits.clean_sweeps + 2 {
            self.run(plain(&["gate", "reset", "--why", "the storm is over"]));
            self.run(plain(&["recertify", "--all", "--apply"]));
        }
        self.readable();
        self.assert_no_process_left();
        let history = self.history();
        self.broken.extend(history.broken());
        self.done = done(&history);
        // By its own output: the names of runs are times, of clocks that may be wrong.
        let stderr = fs::read_to_string(self.output(self.commands, "stderr")).unwrap_or_default();
        match stderr.split("run folder runs/").nth(1) {
            Some(run) => self.broken.extend(history.unsettled(run.trim())),
            None => self.broken.push(format!("nothing was measured without faults: {stderr}")),
        }
    }

    fn history(&mut self) -> History {
        let bytes = fs::read(self.site.join("gate/journal.jsonl")).unwrap_or_default();
        let (lines, broken) = journal::read(&bytes);
        self.broken.extend(broken);
        History {
            begin: self.world.begin(),
            log: self.world.log(),
            journal: lines,
            earlier: self.earlier.clone(),
            runs: runs::read(&self.site.join("runs")),
            domains: site::places(&self.domains),
            limits: self.limits,
        }
    }

    /// No process of the commands is left, however they ended.
    fn assert_no_process_left(&mut self) {
        let begun = Instant::now();
        loop {
            let left = fates::of_site(&self.site);
            if left.is_empty() {
                return;
            }
            if Duration::from_secs(15) < begun.elapsed() {
                let words = |pid: &u32| {
                    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    String::from_utf8_lossy(&bytes).replace('\0', " ")
                };
                let left: Vec<String> = left.iter().map(words).collect();
                self.broken.push(format!("left running: {left:?}"));
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Counts the gate's actions.
fn done(history: &History) -> Done {
    let mut done = Done { tripped: usize::from(history.is_tripped()), ..Done::default() };
    for entry in &history.log {
        if let What::Sent { nodes, order, .. } = &entry.what {
            let is_release = order.unset.iter().any(|it| it == DRAIN);
            done.drains += if order.set.contains_key(DRAIN) { nodes.len() } else { 0 };
            done.releases += if is_release { nodes.len() } else { 0 };
        }
    }
    for line in &history.journal {
        done.undone += usize::from(line.event == "undone");
        done.refused += usize::from(line.result == "refused");
    }
    done
}

/// The program under test.
fn program() -> PathBuf {
    let named = std::env::var_os("FABRICGATE_CHAOS_BINARY");
    named.map_or(Path::new(env!("CARGO_BIN_EXE_fabricgate")).to_owned(), PathBuf::from)
}
