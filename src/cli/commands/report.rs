//! `fabricgate report`: renders a stored run in any format.

pub mod bundle;
pub mod comparison_page;

use std::path::PathBuf;

use crate::cli::output::OutputFile;
use crate::cli::report_output::ReportFormat;
use crate::cli::stdout::Globals;
use crate::cli::{report_output, run_lookup, stdout, stored_run};
use crate::exit;
use crate::exit::CommandError;

/// Show a stored run again, in any format.
///
/// With --bundle it packs everything the run knows about one node into an archive for a ticket:
/// serial numbers, raw outputs, the node's readings and those of its partners with each other, and
/// the part of the run's page about the node.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The format; by default terminal, or json with --json.
    #[arg(long, value_enum, value_name = "FORM", conflicts_with = "bundle")]
    format: Option<ReportFormat>,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// An earlier run to compare with, such as the one before a repair; with --format html. Every
    /// matrix gets a switch between before, now and the change. (The page has the trends of parts
    /// whenever a history is found, as `fabricgate history` finds it.)
    #[arg(long, value_name = "RUN", conflicts_with = "bundle")]
    before: Option<PathBuf>,
    /// Pack an archive (.tar.gz) about this node; by default into the current folder, named after
    /// the run and the node.
    #[arg(long, value_name = "NODE")]
    bundle: Option<String>,
    /// Remove names of other nodes, addresses, users and home folders from the bundle.
    #[arg(long, requires = "bundle")]
    redact: bool,
    /// Node facts (the output of `fabricgate node facts --json`), for serial numbers.
    #[arg(long, value_name = "FILE", requires = "bundle")]
    facts: Vec<PathBuf>,
}

/// Runs the command. Showing a run is not a verdict: the exit code reports only whether it could be
/// shown.
pub fn run(args: &ReportArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = globals.config.as_deref();
    let folder = run_lookup::find_run(&args.run, config)?;
    let before = args.before.as_ref().map(|run| run_lookup::find_run(run, config)).transpose()?;
    if let Some(node) = &args.bundle {
        let request = bundle::BundleRequest {
            run: &folder,
            node,
            output: args.output.as_deref(),
            redact: args.redact,
            facts: &args.facts,
        };
        return bundle::run(&request, globals);
    }
    let format = match (globals.json, args.format) {
        (true, None | Some(ReportFormat::Json)) => ReportFormat::Json,
        (true, Some(_)) => {
            return Err(CommandError::usage(
                "--format: --json means json, expected one of the two",
            )
            .into());
        }
        (false, format) => format.unwrap_or(ReportFormat::Terminal),
    };
    if args.before.is_some() && format != ReportFormat::Html {
        return Err(CommandError::usage("--before: expected --format html as well").into());
    }
    // `-` stands for standard output, the default.
    let output = args.output.as_ref().filter(|path| path.as_os_str() != "-");
    let output = OutputFile::open_optional(output)?;
    let stored = stored_run::open_run(&folder)?;
    let run = stored_run::read_run(&stored)?;
    let bytes = match format {
        ReportFormat::Html => comparison_page::render_comparison_page(
            &run,
            &stored,
            &folder,
            before.as_deref(),
            globals,
        )?,
        _ => report_output::render_with_repair(
            &run,
            format,
            comparison_page::read_repair(&folder).as_ref(),
        )?,
    };
    match output {
        Some(output) => output.write(&bytes)?,
        None if format == ReportFormat::Json => stdout::write_document(&bytes)?,
        None if format == ReportFormat::Terminal => {
            stdout::write_text(&String::from_utf8_lossy(&bytes))?;
        }
        None => stdout::write_bytes(&bytes)?,
    }
    Ok(exit::PASS)
}
