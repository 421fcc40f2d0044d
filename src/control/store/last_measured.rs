//! The time of each node's last measurement, and the number of failed attempts since, from run
//! folders.
//!
//! Reads the newest runs first, and only as many as needed. Unreadable runs are reported and do not
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::{RUN_FORMAT, RecordError, RunRecord, file, run_reader};
use crate::launch::Launcher;
use engine::plan::PLAN_FORMAT;
use model::id::NodeName;
use model::verdict::{Outcome, VERDICTS_FORMAT, Verdicts};

/// The maximum number of runs read: daily audits of three years.
const MAX_RUNS: usize = 1_000;

/// The measurements of one node. Times are in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMeasurementHistory {
    /// Time of the last measurement with a result.
    pub last_result: Option<i64>,
    /// Time of the last attempt.
    pub last_attempt: Option<i64>,
    /// Failed attempts since the last result.
    pub failures_since: u32,
}

/// The measurements of these nodes in the runs of a folder, and the unreadable runs. Simulated runs
/// count for simulated nodes only.
pub fn read_last_measured(
    runs: &Path,
    nodes: &BTreeSet<NodeName>,
    launcher: &Launcher,
) -> (BTreeMap<NodeName, NodeMeasurementHistory>, Vec<String>) {
    let (mut known, mut problems) =
        (BTreeMap::<NodeName, NodeMeasurementHistory>::new(), Vec::new());
    let mut open = nodes.clone();
    let folders = match run_reader::find_run_folders(runs) {
        Ok(folders) => folders,
        Err(error) => {
            problems.push(error.to_string());
            return (known, problems);
        }
    };
    for folder in folders.into_iter().rev().take(MAX_RUNS) {
        if open.is_empty() {
            break;
        }
        match read_run(&folder, launcher) {
            Ok(None) => {}
            Ok(Some(RunMeasurements { at, measured, failed })) => {
                for node in measured.iter().filter(|node| open.remove(*node)) {
                    let it = known.entry(node.clone()).or_default();
                    it.last_result = Some(at);
                    it.last_attempt = it.last_attempt.max(Some(at));
                }
                for node in failed.iter().filter(|node| open.contains(*node)) {
                    let it = known.entry(node.clone()).or_default();
                    it.last_attempt = it.last_attempt.max(Some(at));
                    it.failures_since += 1;
                }
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    (known, problems)
}

/// The measurements of one run.
struct RunMeasurements {
    at: i64,
    measured: BTreeSet<NodeName>,
    failed: BTreeSet<NodeName>,
}

/// The part of a plan that lists skipped nodes.
#[derive(Deserialize)]
struct PlanSkippedPart {
    #[serde(default)]
    skipped: Vec<engine::plan::SkippedProbe>,
}

/// `None` if the folder holds no run of such nodes.
fn read_run(folder: &Path, launcher: &Launcher) -> Result<Option<RunMeasurements>, RecordError> {
    let is_sim = |launcher: &Launcher| matches!(launcher, Launcher::Sim { .. });
    let Some(record) = run_reader::read_json::<RunRecord>(&folder.join(file::RUN), RUN_FORMAT)?
    else {
        return Ok(None);
    };
    let is_replay = matches!(record.launcher, Launcher::Replay { .. });
    if is_replay || is_sim(&record.launcher) != is_sim(launcher) {
        return Ok(None);
    }
    let Ok(created) = record.info.created.parse::<jiff::Timestamp>() else { return Ok(None) };
    // A run without verdicts, such as one in progress, does not count.
    let verdicts: Option<Verdicts> =
        run_reader::read_json(&folder.join(file::VERDICTS), VERDICTS_FORMAT)?;
    let Some(verdicts) = verdicts else { return Ok(None) };
    let left: Option<PlanSkippedPart> =
        run_reader::read_json(&folder.join(file::PLAN), PLAN_FORMAT)?;
    let (mut measured, mut failed) = (BTreeSet::new(), BTreeSet::new());
    for verdict in verdicts.nodes {
        let set = if verdict.outcome == Outcome::Unknown { &mut failed } else { &mut measured };
        set.insert(verdict.node);
    }
    // Nodes that could not be allocated have no verdict.
    let left = left.into_iter().flat_map(|it| it.skipped).filter(|it| !it.not_applicable);
    failed.extend(left.flat_map(|it| it.nodes).filter(|node| !measured.contains(node)));
    Ok(Some(RunMeasurements { at: created.as_second(), measured, failed }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use engine::policy::action_policy::Policy;

    const SIM: &str = "sim";

    fn launcher(kind: &str) -> Launcher {
        match kind {
            SIM => Launcher::Sim { scenario: PathBuf::new(), workers: true },
            "replay" => Launcher::Replay { run: PathBuf::new() },
            _ => Launcher::Local,
        }
    }

    /// A run of that day with these outcomes.
    fn write_run(runs: &Path, day: u32, kind: &str, outcomes: &[(&str, &str)], left: &[&str]) {
        let folder = runs.join(format!("202603{day:02}-000000-aaaaaa"));
        fs::create_dir_all(&folder).expect("made");
        let put = |name: &str, value: &serde_json::Value| {
            fs::write(folder.join(name), value.to_string()).expect("written");
        };
        let created = format!("2026-03-{day:02}T00:00:00Z");
        put(
            file::RUN,
            &json!({
                "format": RUN_FORMAT, "state": "complete", "seed": 0, "fleet": 9,
                "info": {"id": "r", "created": created, "profile": "audit", "source": "",
                         "version": ""},
                "launcher": launcher(kind), "policy": Policy::default(),
                "claims_digest": "", "thresholds_digest": "",
            }),
        );
        let nodes: Vec<_> = outcomes
            .iter()
            .map(|(node, outcome)| json!({"node": node, "outcome": outcome, "reason": ""}))
            .collect();
        put(
            file::VERDICTS,
            &json!({
                "format": VERDICTS_FORMAT, "platform": null, "thresholds_digest": "",
                "outcome": "pass", "findings": [], "nodes": nodes, "unknown": [], "notes": [],
            }),
        );
        let left = json!({"probe": "every probe", "nodes": left, "why": "busy",
                          "not_applicable": false});
        put(file::PLAN, &json!({"format": PLAN_FORMAT, "rounds": [], "skipped": [left]}));
    }

    fn seconds(day: u32) -> Option<i64> {
        let moment = format!("2026-03-{day:02}T00:00:00Z");
        Some(moment.parse::<jiff::Timestamp>().expect("a moment").as_second())
    }

    fn read_for_kind(
        runs: &Path,
        kind: &str,
    ) -> (BTreeMap<NodeName, NodeMeasurementHistory>, Vec<String>) {
        let nodes = ["n1", "n2", "n3", "n4"].map(NodeName::from).into();
        read_last_measured(runs, &nodes, &launcher(kind))
    }

    #[test]
    fn the_last_result_counts_and_later_failures_are_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        write_run(
            dir.path(),
            1,
            "local",
            &[("n1", "pass"), ("n2", "degraded"), ("n9", "pass")],
            &[],
        );
        write_run(dir.path(), 2, "local", &[("n1", "pass"), ("n2", "unknown")], &["n3"]);
        write_run(dir.path(), 3, "local", &[("n1", "failed")], &["n2"]);
        let (known, problems) = read_for_kind(dir.path(), "local");
        assert!(problems.is_empty(), "{problems:?}");
        let of = |measured: Option<u32>, tried: u32, misses| NodeMeasurementHistory {
            last_result: measured.and_then(seconds),
            last_attempt: seconds(tried),
            failures_since: misses,
        };
        let expected =
            [("n1", of(Some(3), 3, 0)), ("n2", of(Some(1), 3, 2)), ("n3", of(None, 2, 1))];
        assert_eq!(known, expected.map(|(node, it)| (node.into(), it)).into());
    }

    #[test]
    fn simulated_and_replayed_runs_measured_no_node() {
        let dir = tempfile::tempdir().expect("a folder");
        write_run(dir.path(), 1, SIM, &[("n1", "pass")], &[]);
        write_run(dir.path(), 2, "replay", &[("n2", "pass")], &[]);
        assert_eq!(read_for_kind(dir.path(), "local").0, BTreeMap::new());
        assert_eq!(read_for_kind(dir.path(), SIM).0.len(), 1);
    }

    #[test]
    fn an_unreadable_run_is_reported_and_the_others_count() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(read_for_kind(&dir.path().join("none"), "local"), (BTreeMap::new(), Vec::new()));
        write_run(dir.path(), 1, "local", &[("n1", "pass")], &[]);
        write_run(dir.path(), 2, "local", &[("n1", "pass")], &[]);
        let newer = dir.path().join("20260302-000000-aaaaaa");
        fs::write(newer.join(file::VERDICTS), "{\"format\": \"fabricgate.verdicts/9\"}")
            .expect("written");
        fs::write(dir.path().join("notes.txt"), "a person's").expect("written");
        let (known, problems) = read_for_kind(dir.path(), "local");
        assert_eq!(known[&"n1".into()].last_result, seconds(1));
        assert!(problems.len() == 1 && problems[0].contains("newer"), "{problems:?}");
    }
}
