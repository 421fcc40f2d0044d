//! `fabricgate metrics`: the state of nodes, runs and the gate for Prometheus, as
//! text or as a file for node-exporter's textfile collector.
//!
//! Opens records; what the numbers mean is said in `report::metrics`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cli::post_run::FinishedRun;
use crate::cli::stdout;
use crate::cli::stdout::{Globals, note};
use crate::config::Config;
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::metrics_source::MetricsSources;
use control::gate::{clock, metrics_source};
use control::store::file;
use control::store::history::DriftAlarms;
use control::store::latest_verdicts::LatestRuns;
use control::store::run_folder::{RunFolder, parent_folder};
use engine::report::metrics;
use engine::report::metrics::levels::compute_levels;
use engine::report::metrics::{MetricsState, exposition};

/// Show the state of nodes, runs and the gate as Prometheus takes it: the newest verdict of each
/// node, its worst ratios, its certificate, the last run of each profile, budgets, the breaker.
#[derive(Debug, clap::Args)]
pub struct MetricsArgs {
    /// Write a file for node-exporter's textfile collector instead, as the configuration's [metrics]
    /// textfile; its name ends with .prom.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// Where run folders are, instead of the configuration's run_dir.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// How the text is written.
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        default_value = "openmetrics",
        conflicts_with = "textfile"
    )]
    format: MetricsFormat,
}

/// How the text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MetricsFormat {
    /// OpenMetrics 1.0.
    Openmetrics,
    /// Prometheus' text format 0.0.4, as a textfile has it.
    Text,
}

/// Runs the command. The numbers are no verdict: the exit code says only whether
/// they could be shown.
pub fn run(args: &MetricsArgs, globals: &Globals) -> anyhow::Result<u8> {
    if globals.json {
        let text = "--json: metrics are no JSON document, see --format";
        return Err(CommandError::usage(text).into());
    }
    if let Some(file) = &args.textfile {
        config::metrics::check_textfile(file)
            .map_err(|why| CommandError::usage(format!("--{why}")))?;
    }
    let config = config::open(globals.config.as_deref())?;
    let runs = args.run_dir.as_deref().unwrap_or(&config.run_dir);
    let state = collect_state(&config, runs, &read_alarms(&config, runs));
    let families = metrics::build_families(&state, config.metrics.nodes);
    match (&args.textfile, args.format) {
        (Some(file), _) => write_textfile(file, &exposition::render_classic(&families))
            .map_err(|error| CommandError::Environment(format!("{}: {error}", file.display())))?,
        (None, MetricsFormat::Text) => stdout::write_text(&exposition::render_classic(&families))?,
        (None, MetricsFormat::Openmetrics) => {
            stdout::write_text(&exposition::render_openmetrics(families))?;
        }
    }
    Ok(exit::PASS)
}

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
            max_runs: config.metrics.runs,
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

/// What a run leaves for monitoring: its levels in its folder, and the textfile.
pub fn update_metrics(ended: &FinishedRun<'_>) {
    let folder = RunFolder::open(ended.folder);
    if let Err(error) = folder.write_json(file::LEVELS, &compute_levels(&ended.run.cells)) {
        note(&format!("metrics: {error}"));
    }
    let Some(textfile) = &ended.config.metrics.textfile else { return };
    if ended.config.launcher_from == "--sim" {
        note("metrics: a run under --sim is no state of nodes; the textfile stays as it is");
        return;
    }
    let families = metrics::build_families(ended.state(), ended.config.metrics.nodes);
    if let Err(error) = write_textfile(textfile, &exposition::render_classic(&families)) {
        let file = textfile.display();
        note(&format!("metrics: {file}: {error}; is its folder there, and may we write to it?"));
    }
}

/// Puts a textfile in place at one go, readable for node-exporter, whoever that
/// runs as. Between two scrapes nothing needs it, so that it is not forced to disk.
fn write_textfile(path: &Path, text: &str) -> io::Result<()> {
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
