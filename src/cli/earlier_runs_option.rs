//! `--history RUN...`: earlier run folders as a per-part reference.
//!
//! Opens folders; the judge decides which runs are comparable and how to use them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::expectations::ActiveThresholds;
use crate::cli::stdout::note;
use crate::cli::{run_lookup, stored_run};
use crate::exit::CommandError;
use control::store::file;
use control::store::run_reader::{StoredRun, find_run_folders};
use engine::judge::{JudgeInput, run_summary};
use model::part_history::PartHistory;

/// Earlier runs to compare parts with.
#[derive(Debug, clap::Args)]
pub struct EarlierRunsArgs {
    /// Earlier runs by folder, id or `latest`, or folders of runs: the results of a part under the
    /// same platform and driver are a reference in addition to the fleet and the expectation.
    #[arg(long, value_name = "RUN", num_args = 1..)]
    history: Vec<PathBuf>,
}

impl EarlierRunsArgs {
    /// Reads all earlier runs, except the judged run itself (`own`).
    pub fn load(
        &self,
        in_force: &ActiveThresholds,
        own: Option<&PathBuf>,
        config: Option<&Path>,
    ) -> Result<PartHistory, CommandError> {
        let own = own.and_then(|path| fs::canonicalize(path).ok());
        let mut earlier = Vec::new();
        for named in &self.history {
            for path in list_run_folders(&run_lookup::find_run(named, config)?) {
                if own.is_some() && fs::canonicalize(&path).ok() == own {
                    continue;
                }
                let stored = stored_run::open_run_quietly(&path)?;
                earlier
                    .push((stored.record.info.created.clone(), summarize_run(&stored, in_force)?));
            }
        }
        if !self.history.is_empty() {
            note(&format!("history: {} earlier runs", earlier.len()));
        }
        Ok(run_summary::build_history(&earlier))
    }
}

/// A run folder, or the run folders in a folder, in order of their names.
fn list_run_folders(path: &Path) -> Vec<PathBuf> {
    if path.join(file::RUN).is_file() {
        return vec![path.to_owned()];
    }
    // If it is neither, opening it returns the error.
    match find_run_folders(path) {
        Ok(runs) if !runs.is_empty() => runs,
        _ => vec![path.to_owned()],
    }
}

/// The results of the parts in a stored run.
fn summarize_run(
    stored: &StoredRun,
    in_force: &ActiveThresholds,
) -> Result<run_summary::RunSummary, CommandError> {
    let recordings = stored.recordings().map_err(stored_run::record_error)?;
    Ok(run_summary::summarize_sound_parts(&JudgeInput {
        claims: &stored.claims,
        recordings: &recordings,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform: stored.record.platform.as_deref(),
        cells: false,
        sampled: stored.plan.sampled,
    }))
}
