//! Parameters of a worker.

use std::path::PathBuf;

/// Parameters of a worker.
#[derive(Clone, Debug)]
pub struct WorkerSetup {
    /// The worker's executable: `{self}`, and the guard of its children.
    pub executable: PathBuf,
    /// Run even if the GPUs are in use.
    pub even_if_busy: bool,
    /// The folder of `/proc`, for processes and sockets.
    pub proc: PathBuf,
    /// The node is this machine, so local jobs use it. A simulated node shares the machine with
    /// unrelated jobs.
    pub is_machine: bool,
}
