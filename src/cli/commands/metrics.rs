//! `fabricgate metrics`: the state of nodes, runs and the gate for Prometheus, as text or as a file
//! for node-exporter's textfile collector.
//!
//! Opens records; `report::metrics` documents the numbers.

use std::path::PathBuf;

use crate::cli::metrics_state::{collect_state, read_alarms, write_textfile};
use crate::cli::stdout;
use crate::cli::stdout::Globals;
use crate::exit::CommandError;
use crate::{config, exit};
use engine::report::metrics;
use engine::report::metrics::exposition;

/// Print the state of nodes, runs and the gate as Prometheus metrics: the newest verdict of each
/// node, its worst ratios, its certificate, the last run of each profile, budgets, the breaker.
#[derive(Debug, clap::Args)]
pub struct MetricsArgs {
    /// Write a file for node-exporter's textfile collector instead, like the configuration's
    /// [metrics] textfile; its name ends with .prom.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// The folder of the runs, instead of the configuration's run_dir.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// The format of the text.
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        default_value = "openmetrics",
        conflicts_with = "textfile"
    )]
    format: MetricsFormat,
}

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MetricsFormat {
    /// OpenMetrics 1.0.
    Openmetrics,
    /// Prometheus' text format 0.0.4, the format of textfiles.
    Text,
}

/// Runs the command. The exit code is not a verdict: it reports only whether the numbers could be
/// printed.
pub fn run(args: &MetricsArgs, globals: &Globals) -> anyhow::Result<u8> {
    if globals.json {
        let text = "--json: metrics have no JSON format, see --format";
        return Err(CommandError::usage(text).into());
    }
    if let Some(file) = &args.textfile {
        config::metrics::check_textfile(file)
            .map_err(|why| CommandError::usage(format!("--textfile {why}")))?;
    }
    let config = config::open(globals.config.as_deref())?;
    let runs = args.run_dir.as_deref().unwrap_or(&config.run_dir);
    let state = collect_state(&config, runs, &read_alarms(&config, runs));
    let families = metrics::build_families(&state, config.metrics.nodes.size());
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
