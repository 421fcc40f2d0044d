//! What this machine has and lacks to run which probes.
//!
//! Looks at files, devices and programs, and asks a scheduler whether it is
//! there; changes nothing and measures nothing. Everything it asks is bounded
//! in time.

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

/// How long one question to a program may take. Without persistence mode the
/// driver brings up every GPU first, which takes seconds; Slurm gives up after
/// ten.
const LIMIT: Duration = Duration::from_secs(15);

/// Bytes of an answer that are kept.
const ANSWER_BYTES: usize = 1 << 16;

/// What is looked at.
#[derive(Debug)]
pub struct CheckupContext<'l> {
    /// What the machine is called.
    pub machine: String,
    /// The folder under which `proc`, `sys`, `dev` and `etc` lie.
    pub root: PathBuf,
    /// Where programs are searched.
    pub path: String,
    /// The probes in force.
    pub probes: Vec<&'l Probe>,
    /// The names of those that run where nobody names any.
    pub default_probes: Vec<&'static str>,
    /// The driver's libraries, where they are to be looked at.
    pub libraries: Option<LibraryPaths>,
}

#[cfg(test)]
impl CheckupContext<'static> {
    /// A machine that has what lies in this folder, and no probes.
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

/// Looks at everything.
pub async fn run_checkup(look: &CheckupContext<'_>) -> Checkup {
    let mut checks = devices::check_driver(look).await;
    checks.extend(gpu::check_gpu_libraries(look).await);
    checks.extend(programs::check_programs(look));
    checks.extend(devices::check_imex(look));
    checks.extend(devices::check_rdma(look));
    checks.extend(scheduler::check_schedulers(look).await);
    checks.extend(devices::check_limits());
    Checkup { machine: look.machine.clone(), checks }
}

/// What a program answers, or why it does not.
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
            let said = last(&String::from_utf8_lossy(&done.stderr.bytes));
            let said = if said.is_empty() { last(&out) } else { said };
            Err(format!("`{shown}` ended with {code}: {said}"))
        }
        ProcessEnding::TimedOut => {
            Err(format!("`{shown}` gave no answer in {} s", LIMIT.as_secs()))
        }
        other => Err(format!("`{shown}`: {other}")),
    }
}
