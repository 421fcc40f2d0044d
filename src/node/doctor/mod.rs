//! What this machine has and lacks to run which probes.
//!
//! Looks at files, devices and programs, and asks a scheduler whether it is
//! there; changes nothing and measures nothing. Everything it asks is bounded
//! in time.

pub mod library;

mod devices;
mod gpu;
mod programs;
mod scheduler;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use crate::exec;
use crate::exec::Request;
use model::checkup::Checkup;
use model::probe::Probe;
use model::raw::Ending;

pub use gpu::Libraries;

/// How long one question to a program may take. Without persistence mode the
/// driver brings up every GPU first, which takes seconds; Slurm gives up after
/// ten.
const LIMIT: Duration = Duration::from_secs(15);

/// Bytes of an answer that are kept.
const ANSWER: usize = 1 << 16;

/// What is looked at.
#[derive(Debug)]
pub struct Look<'l> {
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
    pub libraries: Option<Libraries>,
}

#[cfg(test)]
impl Look<'static> {
    /// A machine that has what lies in this folder, and no probes.
    fn only(root: &std::path::Path) -> Self {
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
pub async fn look(look: &Look<'_>) -> Checkup {
    let mut checks = devices::driver(look).await;
    checks.extend(gpu::all(look).await);
    checks.extend(programs::all(look));
    checks.extend(devices::imex(look));
    checks.extend(devices::rdma(look));
    checks.extend(scheduler::all(look).await);
    checks.extend(devices::limits());
    Checkup { machine: look.machine.clone(), checks }
}

/// What a program answers, or why it does not.
async fn answer(argv: &[&str]) -> Result<String, String> {
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    let shown = argv.join(" ");
    let request = Request { argv, limit: LIMIT, capture: ANSWER };
    let (_stop, never) = watch::channel(false);
    let done = exec::run(&request, never).await.map_err(|error| error.to_string())?;
    let out = String::from_utf8_lossy(&done.stdout.bytes).into_owned();
    let last = |text: &str| {
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
    };
    match done.ending {
        Ending::Exited { code: 0 } => Ok(out),
        Ending::Exited { code } => {
            let said = last(&String::from_utf8_lossy(&done.stderr.bytes));
            let said = if said.is_empty() { last(&out) } else { said };
            Err(format!("`{shown}` ended with {code}: {said}"))
        }
        Ending::TimedOut => Err(format!("`{shown}` gave no answer in {} s", LIMIT.as_secs())),
        other => Err(format!("`{shown}`: {other}")),
    }
}
