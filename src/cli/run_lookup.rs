//! Finds the stored run that an argument names: by its folder, its id, `latest`, or the reason of a
//! drain.
//!
//! Reads `run_dir`. An existing path takes precedence.

use std::path::{Path, PathBuf};

use crate::cli::stdout::note;
use crate::config;
use crate::exit::CommandError;
use control::store::run_reader::{find_run_folders, read_json};
use control::store::{RUN_FORMAT, RunRecord, RunState, file};
use engine::policy::drain_reason;
use engine::policy::drain_reason::OwnReason;
use model::id::NodeName;
use model::verdict::{VERDICTS_FORMAT, Verdicts};

/// The argument for the newest run.
const LATEST: &str = "latest";

/// The folder of the runs without a configuration.
const DEFAULT_RUN_DIR: &str = "runs";

/// Most run folders to search, the newest first.
const MOST: usize = 1_500;

/// Finds the run folder. Returns the argument itself if there is none, so that opening it returns
/// the error.
pub fn find_run(named: &Path, config: Option<&Path>) -> Result<PathBuf, CommandError> {
    if named.exists() {
        return Ok(named.to_owned());
    }
    let Some(text) = named.to_str() else { return Ok(named.to_owned()) };
    if text == LATEST {
        return find_latest_run(&find_runs_folder(config)?);
    }
    if drain_reason::is_ours(text) {
        return find_run_of_drain(&parse_drain_reason(text)?, config);
    }
    let is_name = named.components().count() == 1;
    // Without a readable configuration, the missing folder is the only error to report.
    let found =
        is_name.then(|| find_runs_folder(config).ok().map(|runs| runs.join(named))).flatten();
    Ok(found.filter(|it| it.join(file::RUN).is_file()).unwrap_or_else(|| named.to_owned()))
}

/// The folder of the run in a drain reason.
pub fn find_run_of_drain(own: &OwnReason, config: Option<&Path>) -> Result<PathBuf, CommandError> {
    let runs = find_runs_folder(config)?;
    let folder = runs.join(&own.run);
    if folder.join(file::RUN).is_file() {
        return Ok(folder);
    }
    Err(CommandError::Environment(format!(
        "run {} of this reason is not in {}: expected --config FILE with the run_dir of the gate \
         that wrote it",
        own.run,
        runs.display()
    )))
}

/// Parses a pasted drain reason.
pub fn parse_drain_reason(text: &str) -> Result<OwnReason, CommandError> {
    let is_whole = |own: &OwnReason| drain_reason::is_run_id(&own.run);
    drain_reason::parse_reason(text.trim()).filter(is_whole).ok_or_else(|| {
        CommandError::Usage(format!(
            "{text:?} is not the whole reason of a drain ({}CLASS:RUN eEPOCH): `sinfo -R` prints \
             20 characters of it, `scontrol show node` prints all; `fabricgate explain NODE` needs \
             none",
            drain_reason::PREFIX
        ))
    })
}

/// The newest run that has a verdict for this node.
pub fn find_run_of_node(node: &NodeName, config: Option<&Path>) -> Result<PathBuf, CommandError> {
    let runs = find_runs_folder(config)?;
    for folder in list_runs(&runs)?.into_iter().rev().take(MOST) {
        match read_json::<Verdicts>(&folder.join(file::VERDICTS), VERDICTS_FORMAT) {
            Ok(Some(verdicts)) if verdicts.nodes.iter().any(|it| it.node == *node) => {
                return Ok(folder);
            }
            Ok(_) => {}
            Err(error) => note(&format!("skipped: {error}")),
        }
    }
    Err(CommandError::Usage(format!(
        "{:?} is not a run, and no run in {} measured a node of that name; expected RUN LOCUS (a \
         folder, an id or `latest`, then the locus to explain), the reason of a drain, or NODE",
        node.as_str(),
        runs.display()
    )))
}

/// The newest run that ended, else the newest one.
fn find_latest_run(runs: &Path) -> Result<PathBuf, CommandError> {
    let all = list_runs(runs)?;
    let is_over = |folder: &&PathBuf| {
        let record = read_json::<RunRecord>(&folder.join(file::RUN), RUN_FORMAT);
        record.is_ok_and(|it| it.is_some_and(|it| it.state != RunState::Running))
    };
    all.iter().rev().find(is_over).or(all.last()).cloned().ok_or_else(|| {
        CommandError::Environment(format!("{LATEST}: there is no run in {}", runs.display()))
    })
}

fn list_runs(runs: &Path) -> Result<Vec<PathBuf>, CommandError> {
    find_run_folders(runs).map_err(CommandError::environment)
}

fn find_runs_folder(config: Option<&Path>) -> Result<PathBuf, CommandError> {
    Ok(match config {
        Some(path) => config::open(Some(path))?.run_dir,
        None => PathBuf::from(DEFAULT_RUN_DIR),
    })
}
