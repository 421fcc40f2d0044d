//! `fabricgate replay`: a stored run, read and judged again with today's
//! expectations. The folder is not changed.

use std::path::PathBuf;

use super::history_arg::EarlierRunsArgs;
use super::stdout::note;
use super::thresholds::Overrides;
use super::{Globals, expectations, judge, runs, show, stored};
use control::store::RunState;

/// Read and judge a stored run again with today's expectations.
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
    files: show::ReportFileArgs,
}

/// Runs the command.
pub fn run(args: &ReplayArgs, globals: &Globals) -> anyhow::Result<u8> {
    let files = args.files.open()?;
    let run = runs::find_run(&args.run, globals.config.as_deref())?;
    let stored = stored::open_run(&run)?;
    let in_force = expectations::load_thresholds(&args.overrides.files)?;
    let history = args.earlier.load(&in_force, Some(&run), globals.config.as_deref())?;
    let results = stored.results().map_err(stored::record_error)?;
    let recordings = stored::reparse_outputs(&stored, &results)?;
    let run = stored::rejudge_run(&stored, &results, recordings, &in_force, &history);
    let then = match stored.record.state {
        // What an earlier attempt said is no word on what came after it.
        RunState::Running => None,
        RunState::Partial | RunState::Complete => {
            stored.verdicts().map_err(stored::record_error)?
        }
    };
    match then {
        None => note("this run was never judged"),
        Some(then) if then == run.verdicts => note("the verdicts are those of then"),
        Some(then) => {
            let expectations = if then.thresholds_digest == run.verdicts.thresholds_digest {
                "the expectations are the same"
            } else {
                "the expectations differ"
            };
            note(&format!(
                "the verdicts differ from those of then ({} then, {} now); {expectations}",
                then.outcome, run.verdicts.outcome
            ));
        }
    }
    let written = show::show_run(&run, files, globals.json)?;
    Ok(judge::outcome_exit_code(run.verdicts.outcome, !written))
}
