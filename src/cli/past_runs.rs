//! The earlier runs in `run_dir`: the last outcome of each node, and its run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cli::stdout::note;
use crate::cli::sweep;
use crate::config::Config;
use control::store::{RUN_FORMAT, RunRecord, file};
use model::id::NodeName;
use model::verdict::{Outcome, VERDICTS_FORMAT, Verdicts};

/// Most run folders to read, the newest first: a year with four runs a day.
const MOST: usize = 1_500;

/// The results of earlier runs, the newest first.
#[derive(Debug, Default)]
pub(crate) struct PastRuns {
    /// The last run that measured a node, and its outcome.
    last: BTreeMap<NodeName, (PathBuf, Outcome)>,
    /// The last run that found a fault in a node.
    against: BTreeMap<NodeName, PathBuf>,
    /// Every run by its id.
    runs: BTreeMap<String, PathBuf>,
}

impl PastRuns {
    /// Reads the run folders. Unreadable ones are reported and skipped.
    pub(crate) fn read(config: &Config, run_dir: Option<&Path>) -> Self {
        let mut past = Self::default();
        let runs = run_dir.unwrap_or(&config.run_dir);
        let folders = control::store::run_reader::find_run_folders(runs).unwrap_or_else(|error| {
            note(&format!("the earlier runs are unknown: {error}"));
            Vec::new()
        });
        for folder in folders.into_iter().rev().take(MOST) {
            if let Err(error) = past.add(&folder, config) {
                note(&format!("skipped: {error}"));
            }
        }
        past
    }

    fn add(&mut self, folder: &Path, config: &Config) -> Result<(), control::store::RecordError> {
        let read = |name| folder.join(name);
        let record: Option<RunRecord> =
            control::store::run_reader::read_json(&read(file::RUN), RUN_FORMAT)?;
        let verdicts: Option<Verdicts> =
            control::store::run_reader::read_json(&read(file::VERDICTS), VERDICTS_FORMAT)?;
        let (Some(record), Some(verdicts)) = (record, verdicts) else { return Ok(()) };
        // A simulated run is not evidence about real nodes, nor the other way round.
        if sweep::is_sim(&record.launcher) != sweep::is_sim(&config.launcher) {
            return Ok(());
        }
        self.runs.insert(record.info.id, folder.to_owned());
        for verdict in verdicts.nodes {
            // A node with an unknown outcome may not have been measured at all.
            if verdict.outcome == Outcome::Unknown {
                continue;
            }
            if Outcome::Unknown < verdict.outcome {
                self.against.entry(verdict.node.clone()).or_insert_with(|| folder.to_owned());
            }
            self.last.entry(verdict.node).or_insert_with(|| (folder.to_owned(), verdict.outcome));
        }
        Ok(())
    }

    /// Whether a node passed its last run; `None` if no run measured it.
    pub(crate) fn passed_last(&self, node: &NodeName) -> Option<bool> {
        self.last.get(node).map(|(_, outcome)| *outcome == Outcome::Pass)
    }

    /// The run to compare a node with: that of its drain, else the last that found a fault in it,
    /// else the last.
    pub(crate) fn run_to_compare(
        &self,
        node: &NodeName,
        drained: &BTreeMap<NodeName, String>,
    ) -> Option<&PathBuf> {
        let by_drain = drained.get(node).and_then(|run| self.runs.get(run));
        by_drain
            .or_else(|| self.against.get(node))
            .or_else(|| self.last.get(node).map(|(folder, _)| folder))
    }
}
