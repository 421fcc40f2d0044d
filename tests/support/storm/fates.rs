//! What befalls processes and disks: kills, hangs, a file system that is full, a
//! clock that is wrong.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How lines of a story begin that say what may befall somebody, and not what did.
pub(crate) const AHEAD: &str = "ahead: ";

/// What befalls the processes of one command, besides the weather.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// The coordinator gets this signal after so long.
    Signalled(Signal, Duration),
    /// One of its workers or tools is killed.
    WorkerKilled(Duration),
    /// One of them hangs for so long.
    WorkerHangs(Duration, Duration),
    /// No file may grow beyond so many KiB; who tries is killed while he writes.
    Cut(u32),
    /// The disk has room for so many bytes.
    Full(usize),
    /// The clock is wrong by so many seconds.
    Skewed(i64),
}

/// A process that may get signals. Held by more than its number: that may be
/// somebody else's by the time a signal is sent.
#[derive(Clone, Debug)]
pub(crate) struct Victim {
    pid: u32,
    held: Arc<OwnedFd>,
}

impl Victim {
    /// The process of this number; none where it is gone.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let held = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Self { pid, held: Arc::new(held) })
    }

    /// Its number, for as long as it has one.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it runs: who has ended and was not waited for yet does not.
    pub(crate) fn is_there(&self) -> bool {
        state(self.pid).is_some_and(|state| state != 'Z')
    }

    /// Sends a signal; who is gone is gone.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&*self.held, signal);
    }
}

fn parents() -> Vec<(u32, u32)> {
    let stat = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in brackets may hold anything.
        let parent = text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some((pid, parent))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(stat).collect()
}

/// Everybody that this process started, and they in turn.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let parents = parents();
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let own = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

/// The state of a process, as `ps` writes it; nothing where it is gone.
fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Whether this process or one that it started has work to do, or a disk to wait
/// for: on a busy machine it may have to wait for its turn.
pub(crate) fn is_at_work(pid: u32) -> bool {
    let mut all = descendants(pid);
    all.push(pid);
    all.into_iter().any(|pid| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let ids = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(state).any(|state| matches!(state, 'R' | 'D'))
    })
}

/// What this process and those that it started are and wait for, a line for each.
pub(crate) fn account(pid: u32) -> String {
    let mut all = descendants(pid);
    all.insert(0, pid);
    let line = |pid: u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
        let words = read("cmdline").unwrap_or_default().replace('\0', " ");
        let waits = read("wchan").unwrap_or_default();
        format!("{pid} {} {waits}: {words}\n", state(pid).unwrap_or('-'))
    };
    all.into_iter().map(line).collect()
}

/// Processes that have this folder among their words or in their environment.
pub(crate) fn of_site(site: &Path) -> Vec<u32> {
    let site = site.display().to_string();
    let own = std::process::id();
    let is_of = |pid: &u32| {
        ["cmdline", "environ"].iter().any(|file| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(&site)
        })
    };
    parents().into_iter().map(|(pid, _)| pid).filter(|pid| *pid != own).filter(is_of).collect()
}

/// libfaketime for programs of several threads, where this machine has it.
pub(crate) fn faketime() -> Option<PathBuf> {
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    let file =
        |folder: &str| PathBuf::from(format!("/usr/lib/{folder}/faketime/libfaketimeMT.so.1"));
    folders.into_iter().map(file).find(|file| file.is_file())
}

/// A small file system of its own, unmounted when it is dropped.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

#[expect(clippy::disallowed_methods, reason = "a test is no part of the program")]
fn told(words: &[&str]) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|it| it.status.success())
}

impl Disk {
    /// One of some megabytes at this folder; none where that is not allowed.
    pub(crate) fn at(folder: &Path) -> Option<Self> {
        let place = folder.display().to_string();
        let is_there = told(&["mount", "-t", "tmpfs", "-o", "size=24m", "chaos", &place]);
        is_there.then(|| Self(folder.to_owned()))
    }

    /// Leaves so many bytes.
    pub(crate) fn fill(&self, left: usize) {
        let file = self.0.join("filler");
        let _ = fs::write(&file, vec![0; 32 << 20]);
        let length = fs::metadata(&file).map_or(0, |it| it.len());
        let shorter = length.saturating_sub(left as u64);
        if let Ok(file) = fs::OpenOptions::new().write(true).open(&file) {
            let _ = file.set_len(shorter);
        }
    }

    /// Leaves all of them.
    pub(crate) fn free(&self) {
        let _ = fs::remove_file(self.0.join("filler"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        told(&["umount", "--lazy", &self.0.display().to_string()]);
    }
}

/// Whether a command that ended like this met its disk or its clock.
pub(crate) fn is_met(fate: &Fate, ended: Option<ExitStatus>, errors: &str) -> bool {
    match fate {
        // SIGXFSZ, or a write that says EFBIG.
        Fate::Cut(_) => {
            ended.and_then(|it| it.signal()) == Some(25) || errors.contains("os error 27")
        }
        Fate::Full(_) => errors.contains("os error 28"),
        Fate::Skewed(_) => faketime().is_some(),
        Fate::Signalled(..) | Fate::WorkerKilled(_) | Fate::WorkerHangs(..) => false,
    }
}

/// What befalls the processes of a command: the same again where somebody was still
/// there to be met.
pub(crate) fn befall(fate: Fate, victim: &Victim, dice: usize) -> Option<Fate> {
    let one = || {
        let all = descendants(victim.pid());
        (!all.is_empty()).then(|| Victim::of(all[dice % all.len()]))?
    };
    match &fate {
        Fate::Signalled(signal, after) => {
            std::thread::sleep(*after);
            if !victim.is_there() {
                return None;
            }
            victim.signal(*signal);
        }
        Fate::WorkerKilled(after) => {
            std::thread::sleep(*after);
            one()?.signal(Signal::KILL);
        }
        Fate::WorkerHangs(after, long) => {
            std::thread::sleep(*after);
            let one = one()?;
            one.signal(Signal::STOP);
            std::thread::sleep(*long);
            one.signal(Signal::CONT);
        }
        Fate::Cut(_) | Fate::Full(_) | Fate::Skewed(_) => return None,
    }
    Some(fate)
}

/// What befell an episode, by the words of its story. What was ahead of a command that ended
/// before does not count.
pub(crate) fn befell(story: &[String]) -> Vec<&'static str> {
    const WORDS: [&str; 28] = [
        "Late",
        "HandAfter",
        "journal put back",
        "lost its state",
        "KillBefore",
        "KillAfter",
        "Orphan",
        "LostAnswer",
        "Lost",
        "RefusedAfter",
        "Refused",
        "Torn",
        "Slow",
        "Hand",
        "Crash",
        "Hang",
        "KILL",
        "INT",
        "TERM",
        "WorkerKilled",
        "WorkerHangs",
        "Cut",
        "Full",
        "Skewed",
        "unwell",
        "beside each other",
        "by hand",
        "other parts break",
    ];
    // `Lost` is no `LostAnswer`; some of them are two words.
    let has = |line: &String, word: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        if word.contains(' ') { line.contains(word) } else { words.any(|it| it == word) }
    };
    let is_met = |line: &&String| !line.starts_with(AHEAD);
    let befell = |word: &&&str| story.iter().filter(is_met).any(|line| has(line, word));
    WORDS.iter().filter(befell).copied().collect()
}
