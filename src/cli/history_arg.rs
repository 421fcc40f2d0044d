//! `--history RUN...`: earlier run folders as a reference of parts of their own.
//!
//! Opens folders; what of them is comparable and what is made of it is the
//! judge's.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use super::expectations::InForce;
use super::failure::Failure;
use super::runs;
use super::stdout::note;
use super::stored;
use control::store::file;
use control::store::stored::Stored;
use control::store::stored::runs_in;
use engine::judge::Case;
use engine::judge::past;
use model::history::History;

/// Earlier runs that parts are compared with.
#[derive(Debug, clap::Args)]
pub struct Earlier {
    /// Earlier runs by folder, id or `latest`, or folders of runs: what a part showed there, under
    /// the same platform and driver, is a reference beside the fleet and the expectation.
    #[arg(long, value_name = "RUN", num_args = 1..)]
    history: Vec<PathBuf>,
}

impl Earlier {
    /// Reads them all. The run that is judged, `own`, is no history of itself.
    pub fn load(
        &self,
        in_force: &InForce,
        own: Option<&PathBuf>,
        config: Option<&Path>,
    ) -> Result<History, Failure> {
        let own = own.and_then(|path| fs::canonicalize(path).ok());
        let mut earlier = Vec::new();
        for named in &self.history {
            for path in folders(&runs::folder(named, config)?) {
                if own.is_some() && fs::canonicalize(&path).ok() == own {
                    continue;
                }
                let stored = stored::open_quietly(&path)?;
                earlier.push((stored.record.info.created.clone(), of(&stored, in_force)?));
            }
        }
        if !self.history.is_empty() {
            note(&format!("history: {} earlier runs", earlier.len()));
        }
        Ok(past::history(&earlier))
    }
}

/// A run folder, or the run folders in a folder, in order of their names.
fn folders(path: &Path) -> Vec<PathBuf> {
    if path.join(file::RUN).is_file() {
        return vec![path.to_owned()];
    }
    // What is neither is named by the error of opening it.
    match runs_in(path) {
        Ok(runs) if !runs.is_empty() => runs,
        _ => vec![path.to_owned()],
    }
}

/// What parts showed in a stored run.
fn of(stored: &Stored, in_force: &InForce) -> Result<past::Run, Failure> {
    let recordings = stored.recordings().map_err(stored::failure)?;
    Ok(past::shown(&Case {
        claims: &stored.claims,
        recordings: &recordings,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform: stored.record.platform.as_deref(),
        cells: false,
        sampled: stored.plan.sampled,
    }))
}
