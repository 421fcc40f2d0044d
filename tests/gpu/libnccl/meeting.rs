//! A folder in which the ranks of a communicator leave files for each other.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::description::{VARIABLE, wrong};

/// Poll interval of a waiting rank.
const LOOK: Duration = Duration::from_micros(300);

/// The folder, and the ranks in it.
#[derive(Debug)]
pub struct Meeting {
    folder: PathBuf,
    pub rank: u32,
    pub ranks: u32,
    pub aborted: AtomicBool,
    /// Process IDs by rank, once known.
    processes: Vec<AtomicU32>,
    deaf: bool,
}

/// Reason of a wait that cannot succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vain {
    /// This communicator was aborted.
    Aborted,
    /// Another rank is dead.
    Dead(u32),
}

/// A new folder next to the machine's description, which is deleted with it.
pub fn folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let beside = std::env::var_os(VARIABLE).map(PathBuf::from);
    let beside = beside.and_then(|file| Some(file.parent()?.to_owned()));
    let beside = beside.unwrap_or_else(std::env::temp_dir);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = beside.join(format!("nccl-{}-{number}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&folder) {
        wrong(&format!("NCCL: {}: {error}", folder.display()));
    }
    folder
}

impl Meeting {
    pub fn new(folder: PathBuf, rank: u32, ranks: u32, deaf: bool) -> Self {
        let processes = (0..ranks).map(|_| AtomicU32::new(0)).collect();
        Self { folder, rank, ranks, aborted: AtomicBool::new(false), processes, deaf }
    }

    /// Registers this rank, and waits for all others.
    pub fn come(&self) -> Result<(), Vain> {
        self.leave(&format!("rank-{}", self.rank), std::process::id().to_string().as_bytes());
        for rank in 0..self.ranks {
            let share = self.take(&format!("rank-{rank}"), None)?;
            let process = String::from_utf8_lossy(&share).parse().unwrap_or(0);
            self.processes[rank as usize].store(process, Ordering::Release);
        }
        Ok(())
    }

    /// Writes a file under a name; no reader sees half of it.
    pub fn leave(&self, name: &str, bytes: &[u8]) {
        let part = self.folder.join(format!("{name}.part-{}", self.rank));
        let whole = self.folder.join(name);
        let left = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, &whole));
        if left.is_err() && self.folder.exists() {
            wrong(&format!("NCCL: {} cannot be written", whole.display()));
        }
    }

    /// Waits for a file that `from` writes.
    pub fn take(&self, name: &str, from: Option<u32>) -> Result<Vec<u8>, Vain> {
        let path = self.folder.join(name);
        loop {
            if let Ok(bytes) = std::fs::read(&path) {
                return Ok(bytes);
            }
            if self.aborted.load(Ordering::Acquire) {
                return Err(Vain::Aborted);
            }
            if let Some(rank) = from.filter(|rank| !self.deaf && self.is_dead(*rank)) {
                // It may have written the file and died.
                return std::fs::read(&path).map_err(|_| Vain::Dead(rank));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Deletes files that no rank needs any more.
    pub fn forget(&self, name: &str) {
        let _ = std::fs::remove_file(self.folder.join(name));
    }

    fn is_dead(&self, rank: u32) -> bool {
        let process = self.processes[rank as usize].load(Ordering::Acquire);
        let stat = Path::new("/proc").join(process.to_string()).join("stat");
        match std::fs::read_to_string(stat) {
            // The state follows the name, which may contain any character.
            Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")),
            Err(_) => true,
        }
    }
}
