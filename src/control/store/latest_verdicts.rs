//! The verdicts and levels of the newest runs of a folder, for monitoring. Each complete run is
//! read once; unreadable runs are reported.

use std::collections::BTreeMap;
use std::path::Path;

use super::{RUN_FORMAT, RecordError, RunRecord, RunState, file, run_reader};
use engine::report::metrics::ProfileMetricsState;
use engine::report::metrics::inputs::{RunMetrics, newest_runs};
use engine::report::metrics::levels::{LEVELS_FORMAT, PathClass, RunLevels, compute_levels};
use model::action::{ACTIONS_FORMAT, ActionPlan};
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::verdict::{VERDICTS_FORMAT, Verdicts};

/// The levels of the nodes of one run.
type NodeLevels = BTreeMap<NodeName, BTreeMap<PathClass, f64>>;

/// The newest runs that were read.
#[derive(Debug, Default)]
pub struct LatestRuns {
    runs: BTreeMap<String, RunMetrics>,
    levels: BTreeMap<String, NodeLevels>,
    /// The problems of the last refresh.
    pub problems: Vec<String>,
}

impl LatestRuns {
    /// Reads new runs among the `most` newest of a folder.
    pub fn refresh(&mut self, folder: &Path, most: usize) {
        self.problems.clear();
        let runs = match run_reader::find_run_folders(folder) {
            Ok(runs) => runs,
            Err(error) => {
                self.problems.push(error.to_string());
                return;
            }
        };
        let mut names: Vec<String> = runs
            .iter()
            .filter_map(|run| run.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        let newest = names.split_off(names.len().saturating_sub(most));
        self.runs.retain(|name, _| newest.contains(name));
        self.levels.retain(|name, _| newest.contains(name));
        for name in newest {
            if self.runs.get(&name).is_some_and(|run| run.is_complete) {
                continue;
            }
            match read_run_metrics(&folder.join(&name)) {
                Ok(Some(run)) => {
                    // A resumed run has measured more.
                    if self.runs.get(&name) != Some(&run) {
                        self.levels.remove(&name);
                    }
                    self.runs.insert(name, run);
                }
                Ok(None) => {}
                Err(error) => self.problems.push(error.to_string()),
            }
        }
    }

    /// The runs of real nodes or of a simulated fabric, newest first.
    pub fn runs(&self, simulated: bool) -> Vec<&RunMetrics> {
        self.named_runs(simulated).into_iter().map(|(_, run)| run).collect()
    }

    fn named_runs(&self, simulated: bool) -> Vec<(&String, &RunMetrics)> {
        let mut runs: Vec<(&String, &RunMetrics)> =
            self.runs.iter().rev().filter(|(_, run)| run.is_simulated == simulated).collect();
        // A resumed run keeps its time.
        runs.sort_by_key(|(_, run)| std::cmp::Reverse(run.at));
        runs
    }

    /// The levels of each run that is the newest of some node, by position in [`Self::runs`].
    pub fn levels(&mut self, folder: &Path, simulated: bool) -> BTreeMap<usize, NodeLevels> {
        let places = newest_runs(&self.runs(simulated));
        let names: BTreeMap<usize, String> = {
            let named = self.named_runs(simulated);
            places.values().map(|at| (*at, named[*at].0.clone())).collect()
        };
        let mut levels = BTreeMap::new();
        for (at, name) in names {
            if !self.levels.contains_key(&name) {
                match read_node_levels(&folder.join(&name)) {
                    Ok(read) => drop(self.levels.insert(name.clone(), read)),
                    Err(error) => self.problems.push(error.to_string()),
                }
            }
            if let Some(found) = self.levels.get(&name) {
                levels.insert(at, found.clone());
            }
        }
        levels
    }
}

/// One run; `None` if it is in progress or was killed, and thus has no verdicts.
fn read_run_metrics(path: &Path) -> Result<Option<RunMetrics>, RecordError> {
    let Some(record) = run_reader::read_json::<RunRecord>(&path.join(file::RUN), RUN_FORMAT)?
    else {
        return Ok(None);
    };
    if record.state == RunState::Running {
        return Ok(None);
    }
    let verdicts: Option<Verdicts> =
        run_reader::read_json(&path.join(file::VERDICTS), VERDICTS_FORMAT)?;
    let actions: Option<ActionPlan> =
        run_reader::read_json(&path.join(file::ACTIONS), ACTIONS_FORMAT)?;
    let moment = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let began = moment(&record.info.created);
    let ended = record.ended.as_deref().and_then(moment).filter(|_| record.resumed.is_empty());
    let seconds = began.zip(ended).map(|(began, ended)| ended.duration_since(began).as_secs_f64());
    let mut ran = RunMetrics {
        profile: record.info.profile,
        at: began.map_or(0, jiff::Timestamp::as_second),
        seconds: seconds.filter(|it| 0.0 <= *it),
        is_complete: record.state == RunState::Complete,
        is_simulated: record.launcher.is_stand_in(),
        fleet: record.fleet,
        is_frozen: actions.is_some_and(|plan| plan.frozen.is_some()),
        counts: ProfileMetricsState::default(),
        nodes: BTreeMap::new(),
    };
    if let Some(verdicts) = &verdicts {
        ran.record_verdicts(verdicts);
    }
    Ok(Some(ran))
}

/// The levels of the nodes of a run: stored, or else computed from its cells.
fn read_node_levels(path: &Path) -> Result<NodeLevels, RecordError> {
    if let Some(kept) = run_reader::read_json::<RunLevels>(&path.join(file::LEVELS), LEVELS_FORMAT)?
    {
        return Ok(kept.nodes);
    }
    let cells: Vec<MeasuredCell> = run_reader::read_lines(&path.join(file::CELLS), None)?;
    Ok(compute_levels(&cells).nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::run_folder::RunFolder;
    use model::verdict::{NodeVerdict, Outcome};

    /// A run of one degraded node with this level.
    fn write_run(folder: &RunFolder, state: &str, share: f64) {
        let run = serde_json::json!({
            "format": RUN_FORMAT, "state": state, "seed": 0, "fleet": 1, "policy": {},
            "launcher": {"kind": "local"}, "claims_digest": "c", "thresholds_digest": "t",
            "info": {"id": "r", "created": "2026-03-04T05:06:07Z", "profile": "audit",
                "source": "s", "version": "0.1.0"},
        });
        folder.write_json(file::RUN, &run).expect("written");
        let node = NodeVerdict {
            node: "n1".into(),
            domain: None,
            outcome: Outcome::Degraded,
            reason: "r".to_owned(),
            kept_by: None,
            detectable: None,
            detectable_together: None,
            fabric_detectable: None,
            scope: None,
        };
        let verdicts = Verdicts { nodes: vec![node], ..Verdicts::empty(Outcome::Degraded) };
        folder.write_json(file::VERDICTS, &verdicts).expect("written");
        let levels = RunLevels {
            format: LEVELS_FORMAT.to_owned(),
            nodes: [("n1".into(), [(PathClass::Inside, share)].into())].into(),
        };
        folder.write_json(file::LEVELS, &levels).expect("written");
    }

    #[test]
    fn a_resumed_run_has_its_new_levels() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(dir.path(), "r").expect("a folder");
        let mut latest = LatestRuns::default();
        let mut shown = || {
            latest.refresh(dir.path(), 10);
            let levels = latest.levels(dir.path(), false);
            assert_eq!(latest.problems, Vec::<String>::new());
            levels[&0][&NodeName::from("n1")][&PathClass::Inside]
        };
        write_run(&folder, "partial", 0.9);
        assert_eq!(shown(), 0.9);
        write_run(&folder, "complete", 0.5);
        assert_eq!(shown(), 0.5);
    }
}
