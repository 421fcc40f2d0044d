//! `fabricgate apply`: what a run asks the scheduler for. Shows it only; this
//! version carries nothing out.

use std::path::PathBuf;

use super::Globals;
use super::exit;
use super::show;
use super::stdout;
use super::stored;

/// Show what a run's verdicts ask the scheduler for; nothing is carried out.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let stored = stored::open(&args.run)?;
    let run = stored::run(&stored)?;
    if let Some(actions) = &run.actions {
        if globals.json {
            stdout::json(actions)?;
        } else {
            stdout::text(&show::actions(actions, &[]))?;
        }
    }
    Ok(exit::PASS)
}
