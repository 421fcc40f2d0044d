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

/// The drift alarms that stand, where runs of this folder are kept in a history.
pub(crate) fn read_alarms(config: &Config, runs: &Path) -> DriftAlarms {
    let mut alarms = DriftAlarms::default();
    if let Some(file) = config.history_path(runs) {
        alarms.refresh(&file);
    }
    alarms
}

/// The state as records have it now; what cannot be read is a note, and counted.
pub(crate) fn collect_state(config: &Config, runs: &Path, alarms: &DriftAlarms) -> MetricsState {
    let mut latest = LatestRuns::default();
    let keys = config.certificates.read_keys();
    let shown = metrics_source::read_metrics_state(
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
    for trouble in &shown.troubles {
        note(&format!("metrics: {trouble}"));
    }
    shown.state
}

/// Puts a textfile in place at one go, readable for node-exporter, whoever that
/// runs as. Between two scrapes nothing needs it, so that it is not forced to disk.
pub(crate) fn write_textfile(path: &Path, text: &str) -> io::Result<()> {
    // Until it is renamed its name does not end as node-exporter asks for.
    let mut beside = tempfile::Builder::new()
        .prefix(".fabricgate-")
        .suffix(".tmp")
        .tempfile_in(parent_folder(path))?;
    beside.write_all(text.as_bytes())?;
    fs::set_permissions(beside.path(), fs::Permissions::from_mode(0o644))?;
    beside.persist(path).map_err(|error| error.error)?;
    Ok(())
}
