//! Which stored run a person names: by its folder, its id, `latest`, or the reason
//! of a drain.
//!
//! Reads `run_dir`. What is there by the name that was given is taken as it is.

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

/// The newest run.
const LATEST: &str = "latest";

/// The folder of run folders where no configuration says it.
const DEFAULT_RUN_DIR: &str = "runs";

/// Run folders that are searched, the newest first.
const MOST: usize = 1_500;

/// The run folder that is meant. One that is not found stays as it was named, for the
/// error of opening it.
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
    // Without a configuration that can be read, a folder that is missing is all there is to tell.
    let found =
        is_name.then(|| find_runs_folder(config).ok().map(|runs| runs.join(named))).flatten();
    Ok(found.filter(|it| it.join(file::RUN).is_file()).unwrap_or_else(|| named.to_owned()))
}

/// The folder of a run that a reason names.
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

/// A reason that was pasted, taken apart.
pub fn parse_drain_reason(text: &str) -> Result<OwnReason, CommandError> {
    let is_whole = |own: &OwnReason| drain_reason::is_run_id(&own.run);
    drain_reason::parse_reason(text.trim()).filter(is_whole).ok_or_else(|| {
        CommandError::Usage(format!(
            "{text:?} is not the whole reason of a drain ({}CLASS:RUN eEPOCH): `sinfo -R` shows 20 \
             characters of it, `scontrol show node` all; `fabricgate explain NODE` needs none",
            drain_reason::PREFIX
        ))
    })
}

/// The newest run that has a verdict for this node.
pub fn find_run_of_node(node: &NodeName, config: Option<&Path>) -> Result<PathBuf, CommandError> {
    let runs = find_runs_folder(config)?;
    for folder in list_runs(&runs)?.into_iter().rev().take(MOST) {
        match read_json::<Verdicts>(&folder.join(file::VERDICTS), VERDICTS_FORMAT) {
            Ok(Some(said)) if said.nodes.iter().any(|it| it.node == *node) => return Ok(folder),
            Ok(_) => {}
            Err(error) => note(&format!("passed over: {error}")),
        }
    }
    Err(CommandError::Usage(format!(
        "{:?} is no run, and no run in {} measured a node of that name; expected RUN LOCUS (a \
         folder, an id or `latest`, then what is explained), the reason of a drain, or NODE",
        node.as_str(),
        runs.display()
    )))
}

/// The newest run that ended, or the newest one.
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

/// Where run folders are.
fn find_runs_folder(config: Option<&Path>) -> Result<PathBuf, CommandError> {
    Ok(match config {
        Some(path) => config::open(Some(path))?.run_dir,
        None => PathBuf::from(DEFAULT_RUN_DIR),
    })
}
