//! The state of nodes, runs and the gate that `metrics`, reports and notifications read, and the
//! textfile for node-exporter.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{fs, io};

use crate::cli::stdout::note;
use crate::config::Config;
use control::gate::metrics_source::MetricsSources;
use control::gate::{clock, metrics_source};
use control::store::history::DriftAlarms;
use control::store::latest_verdicts::LatestRuns;
use control::store::run_folder::parent_folder;
use engine::report::metrics::MetricsState;

/// The open drift alarms, if the history covers this folder of runs.
pub(crate) fn read_alarms(config: &Config, runs: &Path) -> DriftAlarms {
    let mut alarms = DriftAlarms::default();
    if let Some(file) = config.history_path(runs) {
        alarms.refresh(&file);
    }
    alarms
}

/// The current state from the records; unreadable records are printed and counted.
pub(crate) fn collect_state(config: &Config, runs: &Path, alarms: &DriftAlarms) -> MetricsState {
    let mut latest = LatestRuns::default();
    let keys = config.certificates.read_keys();
    let read = metrics_source::read_metrics_state(
        &mut latest,
        &MetricsSources {
            runs,
            max_runs: config.metrics.runs.size(),
            is_simulated: config.launcher.is_stand_in(),
            gate: config.gate.as_ref().map(|gate| gate.folder.as_path()),
            fleet: None,
            policy: &config.policy,
            trust: &keys.trust,
            unread_keys: &keys.problems,
            alarms,
            now: &clock::now(),
        },
    );
    for trouble in &read.troubles {
        note(&format!("metrics: {trouble}"));
    }
    read.state
}

/// Replaces a textfile atomically, readable for node-exporter under any user. It is not synced to
/// disk: after a crash the next run rewrites it.
pub(crate) fn write_textfile(path: &Path, text: &str) -> io::Result<()> {
    // Before the rename, the suffix keeps node-exporter from reading it.
    let mut temporary = tempfile::Builder::new()
        .prefix(".fabricgate-")
        .suffix(".tmp")
        .tempfile_in(parent_folder(path))?;
    temporary.write_all(text.as_bytes())?;
    fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o644))?;
    temporary.persist(path).map_err(|error| error.error)?;
    Ok(())
}
