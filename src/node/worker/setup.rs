//! How a worker was started.

use std::path::PathBuf;

/// How a worker was started.
#[derive(Clone, Debug)]
pub struct WorkerSetup {
    /// The worker's own executable: `{self}`, and the guard of what it runs.
    pub executable: PathBuf,
    /// Run on GPUs that somebody uses.
    pub even_if_busy: bool,
    /// Where the kernel tells about processes and sockets: `/proc`.
    pub proc: PathBuf,
    /// The node is this machine: jobs that run here use it. A simulated node
    /// shares the machine with whatever else runs there.
    pub is_machine: bool,
}
