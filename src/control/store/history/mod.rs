//! The results of all runs in one SQLite file, for the course of a part over time.
//!
//! An index: the run folders are the truth, and the history can be rebuilt from them at any time.
//! It judges nothing, and neither a verdict nor the gate waits for it: a run is added after its
//! verdict.

mod changes;
mod connection;
mod drift_alarms;
mod ingest;
pub mod node_identity;
mod queries;
mod retention;
mod rollup;
mod schema;
#[cfg(test)]
mod tests;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;

pub use connection::set_aside;
pub use drift_alarms::{DriftAlarms, DriftSummary};
pub use ingest::{IngestResult, IngestSummary};
pub use queries::{HistoryRun, LastMeasurement, NodeRunSummary, SeriesSelection};
pub use retention::{CompactionSummary, RetentionPolicy};

use super::RecordError;

/// An opened history.
#[derive(Debug)]
pub struct RunHistory {
    path: PathBuf,
    connection: Connection,
    /// The older version that the file had before it was opened.
    upgraded_from: Option<i64>,
    lock_timeout: Duration,
    /// Held by the writer until the history is closed.
    _lock: Option<File>,
}

/// Why a history could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file is missing.
    #[error("{}: there is no history yet; `fabricgate history --rebuild` makes one from run folders", path.display())]
    Missing {
        /// The path of the file.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error(
        "{}: a history of version {found}, written by a newer fabricgate; this one knows up to \
         {known}: use the newer program, or name another file in [history] path, which `fabricgate \
         history --rebuild` fills from the run folders",
        path.display()
    )]
    Newer {
        /// The path of the file.
        path: PathBuf,
        /// The version of the file.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// Another program's SQLite file.
    #[error("{}: an SQLite file that is not a fabricgate history; left unchanged", path.display())]
    Foreign {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{}: damaged ({why}); `fabricgate history --rebuild` sets it aside and makes it again from \
         the run folders",
        path.display()
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The message of SQLite.
        why: String,
    },
    /// Another process writes it.
    #[error("{}: another process has been writing it for {seconds} s", path.display())]
    Busy {
        /// The path of the file.
        path: PathBuf,
        /// How long this process waited.
        seconds: u64,
    },
    /// The disk is full.
    #[error("{}: no room left on the disk; the history is unchanged", path.display())]
    Full {
        /// The path of the file.
        path: PathBuf,
    },
    /// An error of the database.
    #[error("{}: {source}", path.display())]
    Database {
        /// The path of the file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// An error of the operating system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A run folder cannot be read.
    #[error(transparent)]
    Run(#[from] RecordError),
}

impl HistoryError {
    /// Whether the file itself is damaged, so that a rebuild helps.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

impl RunHistory {
    /// The path of the file.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The older version that the file had before it was opened, and the present one.
    pub fn upgraded_versions(&self) -> Option<(i64, i64)> {
        self.upgraded_from.map(|was| (was, schema::VERSION))
    }

    fn to_history_error(&self, source: rusqlite::Error) -> HistoryError {
        connection::with_lock_timeout(
            self.lock_timeout,
            connection::explain_sqlite_error(&self.path, source),
        )
    }
}
