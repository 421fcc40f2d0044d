//! `fabricgate replay`: a stored run, read and judged again with today's
//! expectations. The folder is not changed.

use std::path::PathBuf;

use super::Globals;
use super::expectations;
use super::history_arg::Earlier;
use super::judge;
use super::runs;
use super::show;
use super::stdout::note;
use super::stored;
use super::thresholds::Overrides;
use control::store::State;

/// Read and judge a stored run again with today's expectations.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    earlier: Earlier,
    #[command(flatten)]
    files: show::Files,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let files = args.files.open()?;
    let run = runs::folder(&args.run, globals.config.as_deref())?;
    let stored = stored::open(&run)?;
    let in_force = expectations::load(&args.overrides.files)?;
    let history = args.earlier.load(&in_force, Some(&run), globals.config.as_deref())?;
    let results = stored.results().map_err(stored::failure)?;
    let recordings = stored::reread(&stored, &results)?;
    let run = stored::rejudged(&stored, &results, recordings, &in_force, &history);
    let then = match stored.record.state {
        // What an earlier attempt said is no word on what came after it.
        State::Running => None,
        State::Partial | State::Complete => stored.verdicts().map_err(stored::failure)?,
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
    let written = show::run(&run, files, globals.json)?;
    Ok(judge::code(run.verdicts.outcome, !written))
}
