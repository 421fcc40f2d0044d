//! `fabricgate report`: a stored run again, in any form.

use std::path::Path;
use std::path::PathBuf;

use super::Globals;
use super::bundling;
use super::exit;
use super::failure::Failure;
use super::show;
use super::show::Format;
use super::stdout;
use super::stored;
use crate::judge::compared;
use crate::judge::compared::Side;
use crate::model::recording::Recording;
use crate::model::run::Run;
use crate::model::run::RunInfo;
use crate::record::stored::Stored;
use crate::report::html::Beside;

/// Show a stored run again, in any form.
///
/// With --bundle all that it says of one node is packed into an archive for a ticket:
/// serial numbers, raw outputs, the cells that convict, the partners that acquit,
/// pictures and a page that sums it up.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The form, terminal where none is named; --json means json.
    #[arg(long, value_enum, value_name = "FORM", conflicts_with = "bundle")]
    format: Option<Format>,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// An earlier run to hold this one against, such as that before a repair; with --format
    /// html. Every matrix gets a switch between before, now and the change.
    #[arg(long, value_name = "RUN", conflicts_with = "bundle")]
    before: Option<PathBuf>,
    /// Pack an archive (.tar.gz) about this node; without --output it is named after run and
    /// node and put here.
    #[arg(long, value_name = "NODE")]
    bundle: Option<String>,
    /// Take names of other nodes, addresses, users and home folders out of the bundle.
    #[arg(long, requires = "bundle")]
    redact: bool,
    /// What nodes said of themselves (`fabricgate node facts --json`), for serial numbers.
    #[arg(long, value_name = "FILE", requires = "bundle")]
    facts: Vec<PathBuf>,
}

/// Runs the command. Showing a run is no verdict: the exit code says only
/// whether it could be shown.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    if let Some(node) = &args.bundle {
        let order = bundling::Order {
            run: &args.run,
            node,
            output: args.output.as_deref(),
            redact: args.redact,
            facts: &args.facts,
        };
        return bundling::run(&order, globals);
    }
    let format = match (globals.json, args.format) {
        (true, None | Some(Format::Json)) => Format::Json,
        (true, Some(_)) => {
            return Err(
                Failure::usage("--format: --json means json, expected one of the two").into()
            );
        }
        (false, format) => format.unwrap_or(Format::Terminal),
    };
    if args.before.is_some() && format != Format::Html {
        return Err(Failure::usage("--before: expected --format html beside it").into());
    }
    let stored = stored::open(&args.run)?;
    let run = stored::run(&stored)?;
    let bytes = match &args.before {
        Some(before) => beside(&run, &stored, before)?,
        None => show::render(&run, format)?,
    };
    match &args.output {
        Some(path) => show::write(path, &bytes)?,
        None => stdout::bytes(&bytes)?,
    }
    Ok(exit::PASS)
}

/// The page of a run beside an earlier one.
fn beside(run: &Run, stored: &Stored, before: &Path) -> anyhow::Result<Vec<u8>> {
    let earlier = stored::open(before)?;
    let then = stored::run(&earlier)?;
    let recordings = [&earlier, stored].map(|s| s.recordings().map_err(stored::failure));
    let [of_then, of_now] = recordings;
    let (of_then, of_now) = (of_then?, of_now?);
    let comparison = compared::compare(&side(&then, &of_then), &side(run, &of_now), &|_| true);
    let beside = Beside { before: Some(&then), comparison: Some(&comparison), ..Beside::default() };
    show::page(run, &beside)
}

fn side<'r>(run: &'r Run, recordings: &'r [Recording]) -> Side<'r> {
    let RunInfo { id, created, .. } = &run.info;
    Side { run: id, created, cells: &run.cells, recordings }
}
