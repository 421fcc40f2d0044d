//! `fabricgate burn-in`: the pipeline under that profile, and what only it does.

use super::Globals;
use super::plan::Profile;
use super::sweep;

/// Measure everything and every pair, after building or repair.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sweep: sweep::Args,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    sweep::run(&args.sweep, globals, Profile::BurnIn)
}
