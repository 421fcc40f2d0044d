//! Who was told what, on disk: read and written by one process at a time.
//!
//! A memory that cannot be read is begun anew: something told twice is better than
//! something never told.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::run_folder::RunFolder;
use crate::store::{RecordError, run_folder, run_reader};
use engine::report::notice::changes::{DeliveryState, NOTIFIED_FORMAT};

/// The name of the file.
pub const STATE_FILE: &str = "notified.json";

/// How often it is looked whether another process is done.
pub(super) const LOCK_POLL: Duration = Duration::from_millis(50);

/// Where it is kept.
#[derive(Clone, Debug)]
pub struct NotifyStateStore {
    /// The folder.
    pub folder: PathBuf,
}

/// The memory, while nobody else has it.
#[derive(Debug)]
pub struct LockedNotifyState {
    /// What everybody was told.
    pub notified: DeliveryState,
    /// What was wrong with it.
    pub note: Option<String>,
    /// Given back when it is closed.
    _lock: File,
}

impl NotifyStateStore {
    /// Takes the memory, waiting for others that have it at most so long.
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
                    return Err(format!("{path}: another process is telling, for too long"));
                }
                Ok(None) => tokio::time::sleep(LOCK_POLL).await,
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        };
        let file = self.folder.join(STATE_FILE);
        let (notified, note) = match run_reader::read_json::<DeliveryState>(&file, NOTIFIED_FORMAT)
        {
            Ok(known) => (known.unwrap_or_default(), None),
            // What a newer program remembers is not thrown away.
            Err(error @ RecordError::Newer { .. }) => return Err(error.to_string()),
            Err(error) => (DeliveryState::default(), Some(format!("{error}; begun anew"))),
        };
        Ok(LockedNotifyState { notified, note, _lock: lock })
    }

    /// Writes it whole.
    pub fn save(&self, taken: &LockedNotifyState) -> Result<(), RecordError> {
        RunFolder::open(&self.folder).write_json(STATE_FILE, &taken.notified)
    }
}

/// The lock, unless another process has it. It is given back however that ends.
fn lock_file(path: &std::path::Path) -> std::io::Result<Option<File>> {
    let file = run_folder::open_options().create(true).truncate(false).write(true).open(path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
