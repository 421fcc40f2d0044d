//! `[launcher]` of the configuration: how nodes are reached, and how many at a
//! time.
//!
//! Checks what a person wrote and opens nothing.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::config::Mistake;
use super::config::duration;
use crate::launch::Launcher;

/// Steps that run at the same time where nothing is said. The tools run on the
/// nodes; here each costs a process and its output.
const PARALLEL: usize = 1_024;

/// The same for simulated nodes, which all run on this machine.
pub const PARALLEL_HERE: usize = 16;

/// How long a worker may take to answer where nothing is said: a login through
/// a busy head node takes seconds.
const CONNECT: Duration = Duration::from_secs(30);

/// `[launcher]` of the configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    kind: Spanned<LauncherKind>,
    template: Option<Spanned<Vec<String>>>,
    scenario: Option<Spanned<PathBuf>>,
    run: Option<Spanned<PathBuf>>,
    parallel: Option<Spanned<u32>>,
    worker: Option<Spanned<String>>,
    connect_s: Option<Spanned<f64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LauncherKind {
    Local,
    Command,
    Sim,
    Replay,
}

impl LauncherKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Command => "command",
            Self::Sim => "sim",
            Self::Replay => "replay",
        }
    }
}

/// How nodes are reached, as configured.
#[derive(Debug)]
pub struct Reach {
    /// Through what.
    pub launcher: Launcher,
    /// How many steps run at the same time.
    pub parallel: usize,
    /// What the nodes call fabricgate.
    pub worker: String,
    /// How long a worker may take to answer.
    pub connect: Duration,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            launcher: Launcher::Local,
            parallel: PARALLEL,
            worker: "fabricgate".to_owned(),
            connect: CONNECT,
        }
    }
}

/// Reads `[launcher]`; the section itself is at `at`.
pub fn reach(section: Section, at: usize, base: &Path) -> Result<Reach, Mistake> {
    let mut reach = Reach::default();
    if let Some(n) = &section.parallel {
        if *n.get_ref() == 0 {
            return Err((n.span().start, "parallel 0, expected 1 or more".to_owned()));
        }
        reach.parallel = usize::try_from(*n.get_ref()).unwrap_or(usize::MAX);
    }
    if let Some(seconds) = &section.connect_s {
        reach.connect = duration("connect_s", seconds)?;
    }
    if let Some(worker) = &section.worker {
        if worker.get_ref().is_empty() {
            let message = "worker is empty, expected what the nodes call fabricgate".to_owned();
            return Err((worker.span().start, message));
        }
        reach.worker.clone_from(worker.get_ref());
    }
    let kind = *section.kind.get_ref();
    let only = |at: Option<usize>, key: &str, own: LauncherKind| match at {
        Some(at) if kind != own => {
            Err((at, format!("{key}: belongs to kind = \"{}\"", own.as_str())))
        }
        _ => Ok(()),
    };
    only(section.template.as_ref().map(|s| s.span().start), "template", LauncherKind::Command)?;
    only(section.scenario.as_ref().map(|s| s.span().start), "scenario", LauncherKind::Sim)?;
    only(section.run.as_ref().map(|s| s.span().start), "run", LauncherKind::Replay)?;
    let missing =
        |example: &str| (at, format!("launcher of kind \"{}\": expected {example}", kind.as_str()));
    reach.launcher = match kind {
        LauncherKind::Local => Launcher::Local,
        LauncherKind::Command => {
            let example = "template = [\"ssh\", \"{node}\"] or the like";
            let template = section.template.ok_or_else(|| missing(example))?;
            let at = template.span().start;
            let launcher = Launcher::Command { template: template.into_inner() };
            launcher.check(1).map_err(|error| (at, error.to_string()))?;
            launcher
        }
        LauncherKind::Sim => {
            let scenario = section.scenario.ok_or_else(|| missing("scenario = \"FILE\""))?;
            if section.parallel.is_none() {
                reach.parallel = PARALLEL_HERE;
            }
            Launcher::Sim { scenario: base.join(scenario.into_inner()) }
        }
        LauncherKind::Replay => {
            let run = section.run.ok_or_else(|| missing("run = \"RUN FOLDER\""))?;
            Launcher::Replay { run: base.join(run.into_inner()) }
        }
    };
    Ok(reach)
}
