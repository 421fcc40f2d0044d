//! The record of sent notifications, on disk: read and written by one process at a time.
//!
//! An unreadable record is replaced by a new one: a duplicate message is better than a missing
//! one.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::run_folder::RunFolder;
use crate::store::{RecordError, run_folder, run_reader};
use engine::report::notice::changes::{DeliveryState, NOTIFIED_FORMAT};

/// The file with the state of each receiver, in the gate's folder.
pub const STATE_FILE: &str = "notified.json";

/// Interval between attempts to take the lock.
pub(super) const LOCK_POLL: Duration = Duration::from_millis(50);

/// The record's location.
#[derive(Clone, Debug)]
pub struct NotifyStateStore {
    /// The folder.
    pub folder: PathBuf,
}

/// The record, locked by this process.
#[derive(Debug)]
pub struct LockedNotifyState {
    /// Deliveries to every receiver.
    pub notified: DeliveryState,
    /// The problem with the record, if any.
    pub note: Option<String>,
    /// Released when it is closed.
    _lock: File,
}

impl NotifyStateStore {
    /// Locks the record, waiting for other processes at most this long.
    pub async fn lock_state(&self, patience: Duration) -> Result<LockedNotifyState, String> {
        let until = Instant::now() + patience;
        let shown = self.folder.display();
        run_folder::create_folder(&self.folder).map_err(|error| format!("{shown}: {error}"))?;
        let path = self.folder.join(".notified.lock");
        let lock = loop {
            match lock_file(&path) {
                Ok(Some(file)) => break file,
                Ok(None) if until <= Instant::now() => {
                    let path = path.display();
                    return Err(format!("{path}: another process has held the lock for too long"));
                }
                Ok(None) => tokio::time::sleep(LOCK_POLL).await,
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        };
        let file = self.folder.join(STATE_FILE);
        let (notified, note) = match run_reader::read_json::<DeliveryState>(&file, NOTIFIED_FORMAT)
        {
            Ok(known) => (known.unwrap_or_default(), None),
            // The record of a newer program is not discarded.
            Err(error @ RecordError::Newer { .. }) => return Err(error.to_string()),
            Err(error) => {
                (DeliveryState::default(), Some(format!("{error}; replaced by a new record")))
            }
        };
        Ok(LockedNotifyState { notified, note, _lock: lock })
    }

    /// Writes the whole record.
    pub fn save(&self, taken: &LockedNotifyState) -> Result<(), RecordError> {
        RunFolder::open(&self.folder).write_json(STATE_FILE, &taken.notified)
    }
}

/// Takes the lock, unless another process has it. It is released however the process ends.
fn lock_file(path: &std::path::Path) -> std::io::Result<Option<File>> {
    let file = run_folder::open_options().create(true).truncate(false).write(true).open(path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
