//! Checks which requirements of each probe this machine meets.
//!
//! The check reads files, devices and programs and queries the scheduler. It changes nothing and
//! measures nothing. Every query has a time limit.

pub mod library_check;

mod devices;
mod gpu;
mod programs;
mod scheduler;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use crate::exec;
use crate::exec::ProcessRequest;
use model::checkup::Checkup;
use model::probe::Probe;
use model::raw_result::ProcessEnding;

pub use gpu::LibraryPaths;

/// Time limit of one query to a program. Without persistence mode the driver initializes every GPU
/// first, which takes seconds; Slurm's timeout is 10 s.
const LIMIT: Duration = Duration::from_secs(15);

/// Bytes of an answer to keep.
const ANSWER_BYTES: usize = 1 << 16;

/// Input of a check.
#[derive(Debug)]
pub struct CheckupContext<'l> {
    /// Host name of the machine.
    pub machine: String,
    /// The folder that contains `proc`, `sys`, `dev` and `etc`.
    pub root: PathBuf,
    /// `PATH` to search for programs.
    pub path: String,
    /// The active probes.
    pub probes: Vec<&'l Probe>,
    /// Names of the probes that run by default.
    pub default_probes: Vec<&'static str>,
    /// The driver's libraries; absent to skip them.
    pub libraries: Option<LibraryPaths>,
}

#[cfg(test)]
impl CheckupContext<'static> {
    /// A machine with only the files in this folder, and no probes.
    fn with_root(root: &std::path::Path) -> Self {
        Self {
            machine: "n1".to_owned(),
            root: root.to_owned(),
            path: root.display().to_string(),
            probes: Vec::new(),
            default_probes: Vec::new(),
            libraries: None,
        }
    }
}

/// Runs all checks.
pub async fn run_checkup(context: &CheckupContext<'_>) -> Checkup {
    let mut checks = devices::check_driver(context).await;
    checks.extend(gpu::check_gpu_libraries(context).await);
    checks.extend(programs::check_programs(context));
    checks.extend(devices::check_imex(context));
    checks.extend(devices::check_rdma(context));
    checks.extend(scheduler::check_schedulers(context).await);
    checks.extend(devices::check_limits());
    Checkup { machine: context.machine.clone(), checks }
}

/// Runs a program and returns its output, or the reason for its failure.
async fn query_program(argv: &[&str]) -> Result<String, String> {
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    let shown = argv.join(" ");
    let request = ProcessRequest { argv, limit: LIMIT, capture: ANSWER_BYTES };
    let (_stop, never) = watch::channel(false);
    let done = exec::run(&request, never).await.map_err(|error| error.to_string())?;
    let out = String::from_utf8_lossy(&done.stdout.bytes).into_owned();
    let last = |text: &str| {
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
    };
    match done.ending {
        ProcessEnding::Exited { code: 0 } => Ok(out),
        ProcessEnding::Exited { code } => {
            let message = last(&String::from_utf8_lossy(&done.stderr.bytes));
            let message = if message.is_empty() { last(&out) } else { message };
            Err(format!("`{shown}` ended with {code}: {message}"))
        }
        ProcessEnding::TimedOut => {
            Err(format!("`{shown}` gave no answer in {} s", LIMIT.as_secs()))
        }
        other => Err(format!("`{shown}`: {other}")),
    }
}
