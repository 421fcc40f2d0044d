//! The journal on disk: one writer at a time, every line forced to disk before
//! what it announces is done.
//!
//! It keeps the lock that makes its process the one gate of this state folder.
//! What lines mean, `act::ledger` says. Nothing here asks a scheduler.

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

/// The file of lines.
pub const JOURNAL_FILE: &str = "journal.jsonl";
/// The file that says who is at work.
pub const LOCK_FILE: &str = "lock";

/// How long a gate waits for another one to end its turn: a dry run's reader
/// or a turn without drains is over by then, and a person still waits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it looks.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The gate's state folder, open for one turn.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    /// Held, not used: the lock is given back when it is closed, however the
    /// process ends.
    _lock: File,
    /// How long the file is, as far as its lines are forced to disk.
    synced_len: u64,
    /// Something behind that may be half a line of ours.
    has_torn_line: bool,
    state: JournalState,
    notes: Vec<String>,
}

/// Why the journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Another gate is at work.
    #[error("{}: {who} is at work here", path.display())]
    Locked {
        /// The state folder.
        path: PathBuf,
        /// Who it says it is.
        who: String,
    },
    /// Somebody wrote to it, or moved it away, while it was ours.
    #[error("{}: {why}; nothing more is written to it in this turn", path.display())]
    Disturbed {
        /// The file.
        path: PathBuf,
        /// What was seen.
        why: String,
    },
    /// A line is not what it should be.
    #[error(
        "{}:{line}: {why}; nothing was done: put back what was changed there, or a copy from before",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A newer program wrote it.
    #[error(
        "{}:{line}: written by a newer fabricgate ({found}); this one reads up to {JOURNAL_FORMAT}",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its format.
        found: String,
    },
}

impl Journal {
    /// Takes the next turn: locks the folder, reads what is there, cuts off a
    /// line that was torn, and writes down who we are.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        Self::open_with_timeout(folder, LOCK_TIMEOUT)
    }

    /// The same for whoever can come again: nobody is waited for.
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
                "{}: its last line was torn when it was written; {lost} bytes are cut off",
                path.display()
            ));
        }
        if is_new {
            // The name of a new file is durable only when its folder is.
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
            why: format!("a line of it is of turn {last}, after which there is none"),
        })?;
        journal.append_lines(epoch, vec![opened])?;
        Ok(journal)
    }

    /// Writes one line and forces it to disk. After an error nothing of it is
    /// there, and what it announces must not be done.
    pub fn append(&mut self, event: JournalEvent) -> Result<(), JournalError> {
        self.append_all(vec![event])
    }

    /// The same for many lines, which are forced to disk together.
    pub fn append_all(&mut self, events: Vec<JournalEvent>) -> Result<(), JournalError> {
        self.append_lines(self.state.epoch, events)
    }

    /// The same in a turn that lies behind `last`, where that was taken by a journal that
    /// knew more than this one: no number of a turn is used twice.
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
            // Where even this fails, the next line tries again.
            let _ = self.truncate_torn_line();
            return Err(self.io_error(source));
        }
        self.synced_len += lines.len() as u64;
        for entry in &entries {
            self.state.apply(entry);
        }
        Ok(())
    }

    /// Cuts off what lies behind the last whole line.
    fn truncate_torn_line(&mut self) -> io::Result<()> {
        self.file.set_len(self.synced_len)?;
        self.file.seek(io::SeekFrom::End(0))?;
        self.file.sync_all()?;
        self.has_torn_line = false;
        Ok(())
    }

    /// The lock keeps other gates out, not people: a file that was moved away,
    /// or that somebody wrote to, is no longer what our turn rests on.
    fn check_undisturbed(&self) -> Result<(), JournalError> {
        let own = self.file.metadata().map_err(|source| self.io_error(source))?;
        let disturbed =
            |why: &str| JournalError::Disturbed { path: self.path.clone(), why: why.to_owned() };
        match fs::metadata(&self.path) {
            Ok(there) if there.ino() == own.ino() && there.dev() == own.dev() => {}
            Ok(_) => return Err(disturbed("another file was put in its place")),
            Err(_) => return Err(disturbed("it was moved or removed")),
        }
        if own.len() < self.synced_len || (!self.has_torn_line && self.synced_len < own.len()) {
            return Err(disturbed("somebody else wrote to it"));
        }
        Ok(())
    }

    /// The present moment, never before the last line's.
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

    /// What all lines so far amount to.
    pub fn state(&self) -> &JournalState {
        &self.state
    }

    /// The turn that this is.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// The state folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a person should hear of it: a line that was cut off, a clock that
    /// went backwards.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// What a journal amounts to, for whoever only looks; nothing is locked, and
/// where there is none it is empty.
pub fn read_state(folder: &Path) -> Result<JournalState, JournalError> {
    let mut ledger = JournalState::default();
    for_each_entry(folder, &mut |entry| ledger.apply(&entry))?;
    Ok(ledger)
}

/// All whole lines of a journal, oldest first.
pub fn read_entries(folder: &Path) -> Result<Vec<JournalEntry>, JournalError> {
    let mut entries = Vec::new();
    for_each_entry(folder, &mut |entry| entries.push(entry))?;
    Ok(entries)
}

/// Reads the whole lines of a journal, where there is one.
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

/// The sum of all whole lines, and how many bytes they are. A last line without
/// its end was being written when its program was ended: what it announces was
/// never begun.
fn sum_lines(path: &Path, bytes: &[u8]) -> Result<(JournalState, usize), JournalError> {
    let mut ledger = JournalState::default();
    let whole = parse_lines(path, bytes, &mut |entry| ledger.apply(&entry))?;
    Ok((ledger, whole))
}

/// Takes all whole lines, and gives how many bytes they are.
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
                "its number is {}, expected {number}: lines are missing or were added",
                entry.seq
            );
            return Err(JournalError::Malformed { path: path.to_owned(), line, why });
        }
        take(entry);
    }
    Ok(whole)
}

/// What the reader complains of, without a place of its own: what it read is one
/// line, and which one is told already.
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
        malformed(format!("no {JOURNAL_FORMAT} line: {}", describe_parse_error(&error)))
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

/// A moment that is not before the last one, and a word where the wall's clock
/// says otherwise. The uptime is left as it is: within one boot it is right.
fn clamp_to_monotonic(now: ClockStamp, last: Option<&ClockStamp>) -> (ClockStamp, Option<String>) {
    let Some(last) = last.filter(|last| now.unix < last.unix) else { return (now, None) };
    let note = format!(
        "the clock says {}, and the journal's last line was written at {}: the clock was set back, \
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

/// Waits for the folder and writes down who has it.
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
                // Whoever removed the file gave its name to another lock.
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

/// Who we are, for whoever finds the folder taken. A full disk does not keep
/// anybody from his turn here: the journal itself will say so.
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
