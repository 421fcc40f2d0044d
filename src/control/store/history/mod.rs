//! What all runs showed, in one SQLite file, so that a part can be looked at over time.
//!
//! An index: the run folders are the truth, and everything here is made again
//! from them at any time. Nothing here judges, and a run's verdict and the gate
//! never wait for it: whoever adds a run has its verdict already.

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

/// A history that was opened.
#[derive(Debug)]
pub struct RunHistory {
    path: PathBuf,
    connection: Connection,
    /// The older version that it had until it was opened.
    upgraded_from: Option<i64>,
    /// How long it waits for others.
    lock_timeout: Duration,
    /// Held by the one who writes, until it is closed.
    _lock: Option<File>,
}

/// Why a history could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// It is not there.
    #[error("{}: there is no history yet; `fabricgate history --rebuild` makes one from run folders", path.display())]
    Missing {
        /// The file.
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
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest one known here.
        known: i64,
    },
    /// It is an SQLite file of somebody else.
    #[error("{}: an SQLite file that is no history of fabricgate; it is left as it is", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    #[error(
        "{}: damaged ({why}); `fabricgate history --rebuild` sets it aside and makes it again from \
         the run folders",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        why: String,
    },
    /// Another process writes it.
    #[error("{}: another process has been writing it for {seconds} s", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// There is no room.
    #[error("{}: no room left on the disk; the history is as it was before", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The database says no.
    #[error("{}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
    /// The system says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// A run folder cannot be read.
    #[error(transparent)]
    Run(#[from] RecordError),
}

impl HistoryError {
    /// Whether the file itself is broken, so that making it again helps.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

impl RunHistory {
    /// Where it is.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The older version that it had until it was opened now, and the present one.
    pub fn upgraded_versions(&self) -> Option<(i64, i64)> {
        self.upgraded_from.map(|was| (was, schema::VERSION))
    }

    /// What an error of the database means for this file.
    fn to_history_error(&self, source: rusqlite::Error) -> HistoryError {
        connection::with_lock_timeout(
            self.lock_timeout,
            connection::explain_sqlite_error(&self.path, source),
        )
    }
}
