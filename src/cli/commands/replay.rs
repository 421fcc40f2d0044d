//! `fabricgate replay`: parses and judges a stored run again with the current expectations. The
//! folder is not changed.

use std::path::PathBuf;

use crate::cli::earlier_runs_option::EarlierRunsArgs;
use crate::cli::expectations::Overrides;
use crate::cli::stdout::{Globals, note};
use crate::cli::{expectations, report_output, run_lookup, stored_run};
use crate::exit;
use control::store::RunState;

/// Parse and judge a stored run again with the current expectations.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    earlier: EarlierRunsArgs,
    #[command(flatten)]
    files: report_output::ReportFileArgs,
}

/// Runs the command.
pub fn run(args: &ReplayArgs, globals: &Globals) -> anyhow::Result<u8> {
    let files = args.files.open()?;
    let run = run_lookup::find_run(&args.run, globals.config.as_deref())?;
    let stored = stored_run::open_run(&run)?;
    let in_force = expectations::load_thresholds(&args.overrides.files)?;
    let history = args.earlier.load(&in_force, Some(&run), globals.config.as_deref())?;
    let results = stored.results().map_err(stored_run::record_error)?;
    let recordings = stored_run::reparse_outputs(&stored, &results)?;
    let run = stored_run::rejudge_run(&stored, &results, recordings, &in_force, &history);
    let earlier_verdicts = match stored.record.state {
        // The verdicts of an earlier attempt do not cover the later one.
        RunState::Running => None,
        RunState::Partial | RunState::Complete => {
            stored.verdicts().map_err(stored_run::record_error)?
        }
    };
    match earlier_verdicts {
        None => note("this run was never judged"),
        Some(earlier) if earlier == run.verdicts => note("the verdicts are unchanged"),
        Some(earlier) => {
            let expectations = if earlier.thresholds_digest == run.verdicts.thresholds_digest {
                "the expectations are the same"
            } else {
                "the expectations differ"
            };
            note(&format!(
                "the verdicts differ from the stored ones ({} then, {} now); {expectations}",
                earlier.outcome, run.verdicts.outcome
            ));
        }
    }
    let written = report_output::show_run(&run, files, globals.json)?;
    Ok(exit::outcome_exit_code(run.verdicts.outcome, !written))
}
