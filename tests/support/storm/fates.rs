//! Faults of processes and disks: kills, hangs, a full file system, a wrong clock.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Prefixes of a log's lines about planned faults, as opposed to actual ones.
pub(crate) const AHEAD: &str = "ahead: ";

/// Faults of one command's processes, in addition to the scheduler's.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// The coordinator gets this signal after this time.
    Signalled(Signal, Duration),
    /// One of its workers or tools is killed.
    WorkerKilled(Duration),
    /// One of them hangs for this long.
    WorkerHangs(Duration, Duration),
    /// No file may grow beyond this many KiB; a process that exceeds it is killed at the write.
    Cut(u32),
    /// The disk has room for this many bytes.
    Full(usize),
    /// The clock is wrong by this many seconds.
    Skewed(i64),
}

/// A process that may get signals. Held by a pidfd: its number may belong to another process by
/// the time of the signal.
#[derive(Clone, Debug)]
pub(crate) struct Victim {
    pid: u32,
    held: Arc<OwnedFd>,
}

impl Victim {
    /// The process of this number; `None` if it has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let held = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Self { pid, held: Arc::new(held) })
    }

    /// Its number, as long as it has one.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// True if it runs: an ended, unreaped process does not.
    pub(crate) fn is_there(&self) -> bool {
        state(self.pid).is_some_and(|state| state != 'Z')
    }

    /// Sends a signal; an ended process ignores it.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&*self.held, signal);
    }
}

fn parents() -> Vec<(u32, u32)> {
    let stat = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in brackets may contain any character.
        let parent = text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some((pid, parent))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(stat).collect()
}

/// All descendants of this process.
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

/// The state of a process, as `ps` prints it; `None` if it has ended.
fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// True if this process or a descendant has work to do, or waits for a disk: on a busy machine it
/// may have to wait for a processor.
pub(crate) fn is_at_work(pid: u32) -> bool {
    let mut all = descendants(pid);
    all.push(pid);
    all.into_iter().any(|pid| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let ids = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(state).any(|state| matches!(state, 'R' | 'D'))
    })
}

/// State and wait channel of this process and its descendants, one line each.
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

/// Processes with this folder among their arguments or in their environment.
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

/// libfaketime for multi-threaded programs, where this machine has it.
pub(crate) fn faketime() -> Option<PathBuf> {
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    let file =
        |folder: &str| PathBuf::from(format!("/usr/lib/{folder}/faketime/libfaketimeMT.so.1"));
    folders.into_iter().map(file).find(|file| file.is_file())
}

/// A small file system, unmounted when it is dropped.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn succeeds(words: &[&str]) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|it| it.status.success())
}

impl Disk {
    /// A file system of some megabytes at this folder; `None` where that is not allowed.
    pub(crate) fn at(folder: &Path) -> Option<Self> {
        let place = folder.display().to_string();
        let is_there = succeeds(&["mount", "-t", "tmpfs", "-o", "size=24m", "chaos", &place]);
        is_there.then(|| Self(folder.to_owned()))
    }

    /// Leaves this many bytes free.
    pub(crate) fn fill(&self, left: usize) {
        let file = self.0.join("filler");
        let _ = fs::write(&file, vec![0; 32 << 20]);
        let length = fs::metadata(&file).map_or(0, |it| it.len());
        let shorter = length.saturating_sub(left as u64);
        if let Ok(file) = fs::OpenOptions::new().write(true).open(&file) {
            let _ = file.set_len(shorter);
        }
    }

    /// Frees all of them.
    pub(crate) fn free(&self) {
        let _ = fs::remove_file(self.0.join("filler"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        succeeds(&["umount", "--lazy", &self.0.display().to_string()]);
    }
}

/// True if a command with this end met the limit of its disk or its clock.
pub(crate) fn is_met(fate: &Fate, ended: Option<ExitStatus>, errors: &str) -> bool {
    match fate {
        // SIGXFSZ, or a write that reports EFBIG.
        Fate::Cut(_) => {
            ended.and_then(|it| it.signal()) == Some(25) || errors.contains("os error 27")
        }
        Fate::Full(_) => errors.contains("os error 28"),
        Fate::Skewed(_) => faketime().is_some(),
        Fate::Signalled(..) | Fate::WorkerKilled(_) | Fate::WorkerHangs(..) => false,
    }
}

/// Injects the faults of a command into its processes: the planned ones that found a process.
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

/// Actual faults of an episode, by the lines of its log. A fault planned after the end of its
/// command does not count.
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
        "concurrently",
        "by hand",
        "other parts break",
    ];
    // `Lost` is not `LostAnswer`; some of the names are two words.
    let has = |line: &String, word: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        if word.contains(' ') { line.contains(word) } else { words.any(|it| it == word) }
    };
    let is_met = |line: &&String| !line.starts_with(AHEAD);
    let befell = |word: &&&str| story.iter().filter(is_met).any(|line| has(line, word));
    WORDS.iter().filter(befell).copied().collect()
}
