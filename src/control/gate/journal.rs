//! The journal on disk: a single writer, and every line is synced to disk before the
//! action it announces begins.
//!
//! The journal holds the lock that makes its process the only gate of this state folder.
//! `engine::policy::journal_state` interprets the lines. This module never calls a
//! scheduler.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use serde::Deserialize;

use super::{clock, file_permissions};
use crate::store::run_folder::parent_folder;
use engine::policy::journal_state::JournalState;
use model::journal::{ClockStamp, JOURNAL_FORMAT, JournalEntry, JournalEvent};
use model::text;

/// Name of the journal file in the state folder.
pub const JOURNAL_FILE: &str = "journal.jsonl";
/// Name of the lock file; it names the process that holds the lock.
pub const LOCK_FILE: &str = "lock";

/// How long a gate waits for another gate to end its turn. A dry run, or a turn without
/// drains, ends within this time, and an operator is still willing to wait for it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between attempts to take the lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The gate's state folder, locked for one turn.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    /// Held for its lock only: the kernel releases the lock when the file is closed,
    /// however the process ends.
    _lock: File,
    /// Length in bytes of the part of the file that is synced to disk.
    synced_len: u64,
    /// The file may end in a partial line of this process.
    has_torn_line: bool,
    state: JournalState,
    notes: Vec<String>,
}

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another gate holds the lock.
    #[error("{}: {who} holds the lock", path.display())]
    Locked {
        /// The state folder.
        path: PathBuf,
        /// The holder, as named in the lock file.
        who: String,
    },
    /// Another process wrote to the journal or moved it while this process held the lock.
    #[error("{}: {why}; nothing more is written to it in this turn", path.display())]
    Disturbed {
        /// The journal file.
        path: PathBuf,
        /// The change that was detected.
        why: String,
    },
    /// A line cannot be parsed or is out of sequence.
    #[error(
        "{}:{line}: {why}; nothing was done: undo the edit, or restore an earlier copy",
        path.display()
    )]
    Malformed {
        /// The journal file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The defect.
        why: String,
    },
    /// A newer version of fabricgate wrote the line.
    #[error(
        "{}:{line}: written by a newer fabricgate ({found}); this one reads up to {JOURNAL_FORMAT}",
        path.display()
    )]
    Newer {
        /// The journal file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The format that the line declares.
        found: String,
    },
}

impl Journal {
    /// Starts the next turn: locks the folder, reads the journal, cuts off a torn last
    /// line, and records this process.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        Self::open_with_timeout(folder, LOCK_TIMEOUT)
    }

    /// Like `open`, but fails immediately if the folder is locked. For callers that retry
    /// later.
    pub fn open_without_waiting(folder: &Path) -> Result<Self, JournalError> {
        Self::open_with_timeout(folder, Duration::ZERO)
    }

    fn open_with_timeout(folder: &Path, patience: Duration) -> Result<Self, JournalError> {
        create_folder(folder)?;
        let lock = lock_folder(folder, patience)?;
        let path = folder.join(JOURNAL_FILE);
        let failed = |source| JournalError::Io { path: path.clone(), source };
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        options.create(true).read(true).append(true).mode(0o600);
        let mut file = file_permissions::open_private(&mut options, &path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let (ledger, whole) = sum_lines(&path, &bytes)?;
        let mut journal = Self {
            folder: folder.to_owned(),
            path: path.clone(),
            file,
            _lock: lock,
            synced_len: whole as u64,
            has_torn_line: whole < bytes.len(),
            state: ledger,
            notes: Vec::new(),
        };
        if journal.has_torn_line {
            let lost = bytes.len() - whole;
            journal.notes.push(format!(
                "{}: the last line is incomplete; its {lost} bytes were cut off",
                path.display()
            ));
        }
        if is_new {
            // The name of a new file is durable only after its folder is synced.
            sync_folder(folder)?;
        }
        let opened = JournalEvent::Opened {
            host: clock::host_name(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let last = journal.state.epoch;
        let epoch = last.checked_add(1).ok_or_else(|| JournalError::Malformed {
            path: path.clone(),
            line: usize::try_from(journal.state.lines).unwrap_or(usize::MAX),
            why: format!("a line has the highest possible epoch, {last}"),
        })?;
        journal.append_lines(epoch, vec![opened])?;
        Ok(journal)
    }

    /// Appends one line and syncs it to disk. After an error, none of the line is in the
    /// file, and the caller must not do the action that it announces.
    pub fn append(&mut self, event: JournalEvent) -> Result<(), JournalError> {
        self.append_all(vec![event])
    }

    /// Like `append` for several lines, with a single sync.
    pub fn append_all(&mut self, events: Vec<JournalEvent>) -> Result<(), JournalError> {
        self.append_lines(self.state.epoch, events)
    }

    /// Like `append`, but in an epoch after `last`, which a more complete journal already used:
    /// no epoch number is used twice.
    pub fn append_after_epoch(
        &mut self,
        last: Option<u64>,
        event: JournalEvent,
    ) -> Result<(), JournalError> {
        let epoch = last.and_then(|last| last.checked_add(1)).unwrap_or_default();
        self.append_lines(epoch.max(self.state.epoch), vec![event])
    }

    fn append_lines(&mut self, epoch: u64, events: Vec<JournalEvent>) -> Result<(), JournalError> {
        if events.is_empty() {
            return Ok(());
        }
        let stamp = self.next_stamp();
        let entries: Vec<JournalEntry> = (self.state.lines + 1..)
            .zip(events)
            .map(|(seq, event)| JournalEntry {
                format: JOURNAL_FORMAT.to_owned(),
                seq,
                stamp: stamp.clone(),
                epoch,
                event,
            })
            .collect();
        let mut lines = Vec::new();
        for entry in &entries {
            serde_json::to_writer(&mut lines, entry)
                .map_err(|error| self.io_error(error.into()))?;
            lines.push(b'\n');
        }
        self.check_undisturbed()?;
        if self.has_torn_line {
            self.truncate_torn_line().map_err(|source| self.io_error(source))?;
        }
        let written = self.file.write_all(&lines).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            self.has_torn_line = true;
            // If this also fails, the next append retries it.
            let _ = self.truncate_torn_line();
            return Err(self.io_error(source));
        }
        self.synced_len += lines.len() as u64;
        for entry in &entries {
            self.state.apply(entry);
        }
        Ok(())
    }

    /// Cuts off everything after the last complete line.
    fn truncate_torn_line(&mut self) -> io::Result<()> {
        self.file.set_len(self.synced_len)?;
        self.file.seek(io::SeekFrom::End(0))?;
        self.file.sync_all()?;
        self.has_torn_line = false;
        Ok(())
    }

    /// The lock excludes other gates, but not operators: after another process moves the file or
    /// writes to it, this turn can no longer rely on it.
    fn check_undisturbed(&self) -> Result<(), JournalError> {
        let own = self.file.metadata().map_err(|source| self.io_error(source))?;
        let disturbed =
            |why: &str| JournalError::Disturbed { path: self.path.clone(), why: why.to_owned() };
        match fs::metadata(&self.path) {
            Ok(there) if there.ino() == own.ino() && there.dev() == own.dev() => {}
            Ok(_) => return Err(disturbed("another file replaced it")),
            Err(_) => return Err(disturbed("it was moved or removed")),
        }
        if own.len() < self.synced_len || (!self.has_torn_line && self.synced_len < own.len()) {
            return Err(disturbed("another process wrote to it"));
        }
        Ok(())
    }

    /// The current time, never earlier than that of the last line.
    fn next_stamp(&mut self) -> ClockStamp {
        let (stamp, note) = clamp_to_monotonic(clock::now(), self.state.last.as_ref());
        if let Some(note) = note
            && !self.notes.contains(&note)
        {
            self.notes.push(note);
        }
        stamp
    }

    fn io_error(&self, source: io::Error) -> JournalError {
        JournalError::Io { path: self.path.clone(), source }
    }

    /// The state after all lines so far.
    pub fn state(&self) -> &JournalState {
        &self.state
    }

    /// The number of the current turn.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// The state folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Notes for the operator: a torn line was cut off, the clock went backwards.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The state of a journal, for read-only callers. Takes no lock; empty if there is no
/// journal.
pub fn read_state(folder: &Path) -> Result<JournalState, JournalError> {
    let mut ledger = JournalState::default();
    for_each_entry(folder, &mut |entry| ledger.apply(&entry))?;
    Ok(ledger)
}

/// All complete lines of a journal, oldest first.
pub fn read_entries(folder: &Path) -> Result<Vec<JournalEntry>, JournalError> {
    let mut entries = Vec::new();
    for_each_entry(folder, &mut |entry| entries.push(entry))?;
    Ok(entries)
}

/// Reads the complete lines of a journal, if one exists.
fn for_each_entry(folder: &Path, take: &mut dyn FnMut(JournalEntry)) -> Result<(), JournalError> {
    let path = folder.join(JOURNAL_FILE);
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file_permissions::open_private(OpenOptions::new().read(true), &path)?
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => parse_lines(&path, &bytes, take).map(drop),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(JournalError::Io { path, source }),
    }
}

/// The state after all complete lines, and their length in bytes. A last line without a
/// newline was cut off by the end of its process, so the action that it announces never
/// began.
fn sum_lines(path: &Path, bytes: &[u8]) -> Result<(JournalState, usize), JournalError> {
    let mut ledger = JournalState::default();
    let whole = parse_lines(path, bytes, &mut |entry| ledger.apply(&entry))?;
    Ok((ledger, whole))
}

/// Passes each complete line to `take` and returns their length in bytes.
fn parse_lines(
    path: &Path,
    bytes: &[u8],
    take: &mut dyn FnMut(JournalEntry),
) -> Result<usize, JournalError> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
    for ((line, number), bytes) in (1..).zip(1..).zip(lines) {
        let entry = parse_entry(path, line, bytes)?;
        if entry.seq != number {
            let why = format!(
                "sequence number {}, expected {number}: lines are missing or were added",
                entry.seq
            );
            return Err(JournalError::Malformed { path: path.to_owned(), line, why });
        }
        take(entry);
    }
    Ok(whole)
}

/// The parser's message without its position: the input is one line, and the caller
/// already names its number.
fn describe_parse_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let bare = text.strip_suffix(&place).unwrap_or(&text);
    match error.line() {
        1 => format!("{bare} (column {})", error.column()),
        _ => bare.to_owned(),
    }
}

#[derive(Deserialize)]
struct JournalFormatHeader {
    format: String,
}

fn parse_entry(path: &Path, line: usize, bytes: &[u8]) -> Result<JournalEntry, JournalError> {
    let malformed = |why: String| JournalError::Malformed { path: path.to_owned(), line, why };
    let no_line = |error: serde_json::Error| {
        malformed(format!("not a {JOURNAL_FORMAT} line: {}", describe_parse_error(&error)))
    };
    let JournalFormatHeader { format } = serde_json::from_slice(bytes).map_err(no_line)?;
    if format != JOURNAL_FORMAT {
        let (kind, known) = parse_version(JOURNAL_FORMAT);
        let (found_kind, found) = parse_version(&format);
        return Err(if found_kind == kind && known < found {
            JournalError::Newer { path: path.to_owned(), line, found: text::clean(&format) }
        } else {
            malformed(format!("format {format:?}, expected {JOURNAL_FORMAT:?}"))
        });
    }
    serde_json::from_slice(bytes).map_err(no_line)
}

fn parse_version(format: &str) -> (&str, Option<u32>) {
    match format.rsplit_once('/') {
        Some((kind, version)) => (kind, version.parse().ok()),
        None => (format, None),
    }
}

/// A time that is not before the last one, with a note if the wall clock went backwards.
/// The uptime stays unchanged: within one boot it is correct.
fn clamp_to_monotonic(now: ClockStamp, last: Option<&ClockStamp>) -> (ClockStamp, Option<String>) {
    let Some(last) = last.filter(|last| now.unix < last.unix) else { return (now, None) };
    let note = format!(
        "the clock reads {}, but the journal's last line is from {}: the clock was set back, \
         or was wrong then; new lines keep the later time",
        now.at, last.at
    );
    (ClockStamp { at: last.at.clone(), unix: last.unix, ..now }, Some(note))
}

fn create_folder(folder: &Path) -> Result<(), JournalError> {
    if folder.is_dir() {
        let failed = |source| JournalError::Io { path: folder.to_owned(), source };
        return file_permissions::check_folder(folder).map_err(failed);
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|source| JournalError::Io { path: folder.to_owned(), source })?;
    sync_folder(parent_folder(folder))
}

fn sync_folder(folder: &Path) -> Result<(), JournalError> {
    let forced = File::open(folder).and_then(|it| it.sync_all());
    forced.map_err(|source| JournalError::Io { path: folder.to_owned(), source })
}

/// Waits for the lock and records its holder.
fn lock_folder(folder: &Path, patience: Duration) -> Result<File, JournalError> {
    let path = folder.join(LOCK_FILE);
    let failed = |source| JournalError::Io { path: path.clone(), source };
    let start = Instant::now();
    loop {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let mut file = file_permissions::open_private(&mut options, &path).map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // If the file was removed, its name may belong to another lock now.
                let own = file.metadata().map_err(failed)?;
                if fs::metadata(&path).is_ok_and(|it| it.ino() == own.ino()) {
                    write_lock_owner(&mut file).map_err(failed)?;
                    return Ok(file);
                }
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                if patience <= start.elapsed() {
                    let mut who = String::new();
                    let _ = file.read_to_string(&mut who);
                    let who = match text::clean(&who) {
                        who if who.is_empty() => "another process".to_owned(),
                        who => who,
                    };
                    return Err(JournalError::Locked { path: folder.to_owned(), who });
                }
            }
            Err(error) => return Err(failed(error.into())),
        }
        std::thread::sleep(LOCK_POLL_INTERVAL);
    }
}

/// Records this process in the lock file, for gates that find the folder locked. A full
/// disk is no error here: the journal itself reports it.
fn write_lock_owner(file: &mut File) -> io::Result<()> {
    let (host, since) = (clock::host_name(), clock::now().at);
    file.set_len(0)?;
    file.rewind()?;
    let signed = format!("process {} on {host} (since {since})\n", std::process::id());
    let _ = file.write_all(signed.as_bytes());
    Ok(())
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
