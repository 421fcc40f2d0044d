//! Opening the file: its owner, its version, its integrity, and the lock of its writer.

use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::{HistoryError, RunHistory, schema};
use crate::store::run_folder;
use crate::store::run_folder::parent_folder;

/// How long a writer waits for another one. Adding a run takes well under a second; only a rebuild
/// takes longer, and the next addition includes the runs that this one misses.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A file up to this size is checked page by page when it is opened for writing, in a tenth of a
/// second. Damage in a larger file is reported when a query meets it.
const MAX_CHECKED_BYTES: u64 = 256 << 20;

impl RunHistory {
    /// Opens a history for writing, and creates it if it is missing.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(parent) = parent {
            run_folder::create_folder(parent).map_err(|source| io_error(parent, source))?;
        }
        let lock = lock_file(path)?;
        let wrong = |source| explain_sqlite_error(path, source);
        check_regular_file(path)?;
        let mut connection = Connection::open(path).map_err(wrong)?;
        restrict_connection(&connection).map_err(wrong)?;
        connection.busy_timeout(LOCK_TIMEOUT).map_err(wrong)?;
        let mode = if is_remote(path) { "truncate" } else { "wal" };
        let found = read_version(&connection, path)?;
        connection.pragma_update(None, "journal_mode", mode).map_err(wrong)?;
        connection.pragma_update(None, "synchronous", "normal").map_err(wrong)?;
        connection.pragma_update(None, "foreign_keys", true).map_err(wrong)?;
        if found == 0 {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(wrong)?;
            schema::create_tables(&transaction).map_err(wrong)?;
            transaction.commit().map_err(wrong)?;
        } else {
            if fs::metadata(path).is_ok_and(|found| found.len() <= MAX_CHECKED_BYTES) {
                check_integrity(&connection, path)?;
            }
            if found < schema::VERSION {
                let transaction = connection
                    .transaction_with_behavior(TransactionBehavior::Immediate)
                    .map_err(wrong)?;
                schema::upgrade_schema(&transaction, found).map_err(wrong)?;
                transaction.commit().map_err(wrong)?;
            }
        }
        let was = Some(found).filter(|found| (1..schema::VERSION).contains(found));
        Ok(Self {
            path: path.to_owned(),
            connection,
            upgraded_from: was,
            lock_timeout: LOCK_TIMEOUT,
            _lock: Some(lock),
        })
    }

    /// Opens an existing history for reading only, also one of an older version, whose tables hold
    /// less.
    pub fn open_read_only(path: &Path) -> Result<Self, HistoryError> {
        Self::open_read_only_within(path, LOCK_TIMEOUT)
    }

    /// The same, waiting at most `patience` for a writer.
    pub fn open_read_only_within(path: &Path, patience: Duration) -> Result<Self, HistoryError> {
        if !path.try_exists().map_err(|source| io_error(path, source))? {
            return Err(HistoryError::Missing { path: path.to_owned() });
        }
        check_regular_file(path)?;
        let read = |immutable: bool| -> Result<Self, HistoryError> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            let shown = path.display().to_string();
            let name = shown.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let name = format!("file:{name}{}", if immutable { "?immutable=1" } else { "" });
            let opened = Connection::open_with_flags(name, flags);
            let connection = opened.map_err(|source| explain_sqlite_error(path, source))?;
            restrict_connection(&connection)
                .map_err(|source| explain_sqlite_error(path, source))?;
            connection
                .busy_timeout(patience)
                .map_err(|source| explain_sqlite_error(path, source))?;
            if read_version(&connection, path)? == 0 {
                return Err(HistoryError::Missing { path: path.to_owned() });
            }
            Ok(Self {
                path: path.to_owned(),
                connection,
                upgraded_from: None,
                lock_timeout: patience,
                _lock: None,
            })
        };
        let opened = match read(false) {
            // A read-only folder holds no shared memory for the log. Without a log the file alone
            // is complete.
            Err(HistoryError::Database { .. } | HistoryError::Full { .. })
                if !has_write_ahead_log(path) =>
            {
                read(true)
            }
            other => other,
        };
        opened.map_err(|error| with_lock_timeout(patience, error))
    }
}

/// Reading anything else, such as a pipe, may block forever.
fn check_regular_file(path: &Path) -> Result<(), HistoryError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(io_error(path, std::io::Error::new(ErrorKind::InvalidInput, "not a regular file")))
        }
        _ => Ok(()),
    }
}

/// A foreign file may bring views and triggers: only fabricgate's own queries run, and nothing in
/// the file may change the schema (sqlite.org/security.html, "untrusted database files").
fn restrict_connection(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).map(drop)
}

/// Whether the file's views are exactly those of fabricgate: a query runs the views that it names,
/// and a foreign view may run without end.
fn has_expected_views(connection: &Connection) -> rusqlite::Result<bool> {
    let views = |connection: &Connection| -> rusqlite::Result<BTreeSet<String>> {
        let sql = "SELECT sql FROM sqlite_master WHERE type IN ('view', 'trigger')";
        let mut statement = connection.prepare(sql)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0))?;
        found.map(|sql| Ok(sql?.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
    };
    let mut own = Connection::open_in_memory()?;
    let transaction = own.transaction()?;
    schema::create_tables(&transaction)?;
    Ok(views(&transaction)? == views(connection)?)
}

/// Renames a damaged file so that a new one can be created, and returns its new name.
pub fn set_aside(path: &Path) -> Result<PathBuf, HistoryError> {
    let _lock = lock_file(path)?;
    let free =
        (1u32..).map(|n| path_with_suffix(path, &format!(".damaged-{n}"))).find(|p| !p.exists());
    let aside = free.expect("one of four billion names is free");
    fs::rename(path, &aside).map_err(|source| io_error(path, source))?;
    for end in ["-wal", "-shm"] {
        // The log belongs to the damaged file, not to the new one.
        let (from, to) = (path_with_suffix(path, end), path_with_suffix(&aside, end));
        if from.exists() {
            fs::rename(&from, to).map_err(|source| io_error(&from, source))?;
        }
    }
    Ok(aside)
}

/// The version of a fabricgate history; 0 for an empty file.
fn read_version(connection: &Connection, path: &Path) -> Result<i64, HistoryError> {
    let wrong = |source| explain_sqlite_error(path, source);
    let number = |pragma: &str| {
        connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).map_err(wrong)
    };
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(wrong)?;
    let (found, whose) = (number("user_version")?, number("application_id")?);
    match (tables, whose) {
        (0, 0) => Ok(0),
        (_, schema::APPLICATION_ID) if schema::VERSION < found => {
            Err(HistoryError::Newer { path: path.to_owned(), found, known: schema::VERSION })
        }
        // All versions so far have the same views.
        (_, schema::APPLICATION_ID) if 0 < found => {
            if !has_expected_views(connection).map_err(wrong)? {
                return Err(HistoryError::Foreign { path: path.to_owned() });
            }
            Ok(found)
        }
        _ => Err(HistoryError::Foreign { path: path.to_owned() }),
    }
}

fn check_integrity(connection: &Connection, path: &Path) -> Result<(), HistoryError> {
    let result: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|source| explain_sqlite_error(path, source))?;
    match result.as_str() {
        "ok" => Ok(()),
        _ => Err(HistoryError::Damaged { path: path.to_owned(), why: result }),
    }
}

/// Locks the file for one writer.
fn lock_file(path: &Path) -> Result<File, HistoryError> {
    let name = path_with_suffix(path, ".lock");
    let opened = run_folder::open_options().create(true).truncate(false).write(true).open(&name);
    let file = opened.map_err(|source| io_error(&name, source))?;
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if waited < LOCK_TIMEOUT => {
                std::thread::sleep(LOCK_POLL_INTERVAL);
                waited += LOCK_POLL_INTERVAL;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let seconds = LOCK_TIMEOUT.as_secs();
                return Err(HistoryError::Busy { path: path.to_owned(), seconds });
            }
            Err(error) => return Err(io_error(&name, error.into())),
        }
    }
}

fn path_with_suffix(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Whether the write-ahead log of a file holds data.
fn has_write_ahead_log(path: &Path) -> bool {
    fs::metadata(path_with_suffix(path, "-wal")).is_ok_and(|found| 0 < found.len())
}

/// Shared file systems, by the numbers of statfs(2) and the kernel's magic.h: a write-ahead log
/// needs shared memory, which machines do not share (sqlite.org/wal.html).
const REMOTE_FILE_SYSTEMS: &[u32] = &[
    0x6969,      // NFS
    0x0BD0_0BD0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x00C3_6400, // Ceph
    0xFF53_4D42, // CIFS
    0xFE53_4D42, // SMB2
    0x0102_1997, // 9p
    0x6573_5546, // FUSE
];

/// Whether the folder of a file may be shared with other machines.
fn is_remote(path: &Path) -> bool {
    let found = rustix::fs::statfs(parent_folder(path));
    // The numbers have 32 bits; the field is wider, and signed on some architectures.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits count")]
    found.is_ok_and(|found| REMOTE_FILE_SYSTEMS.contains(&(found.f_type as u32)))
}

/// Whether the disk of a file is full.
fn is_full(path: &Path) -> bool {
    // Less than a few pages counts as full.
    rustix::fs::statvfs(parent_folder(path))
        .is_ok_and(|found| found.f_bavail * found.f_frsize < 64 << 10)
}

pub(super) fn io_error(path: &Path, source: std::io::Error) -> HistoryError {
    match source.kind() {
        ErrorKind::StorageFull => HistoryError::Full { path: path.to_owned() },
        _ => HistoryError::Io { path: path.to_owned(), source },
    }
}

/// The same error, with the time that this reader waited.
pub(super) fn with_lock_timeout(patience: Duration, error: HistoryError) -> HistoryError {
    match error {
        HistoryError::Busy { path, .. } => HistoryError::Busy { path, seconds: patience.as_secs() },
        other => other,
    }
}

/// The meaning of an SQLite error for a process that waited [`LOCK_TIMEOUT`].
pub(super) fn explain_sqlite_error(path: &Path, source: rusqlite::Error) -> HistoryError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            HistoryError::Damaged { path, why: source.to_string() }
        }
        Some(ErrorCode::DiskFull) => HistoryError::Full { path },
        // Without room for shared memory, SQLite reports only this code.
        Some(ErrorCode::SystemIoFailure) if is_full(&path) => HistoryError::Full { path },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            HistoryError::Busy { path, seconds: LOCK_TIMEOUT.as_secs() }
        }
        _ => HistoryError::Database { path, source },
    }
}
