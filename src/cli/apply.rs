//! `fabricgate apply`: what a run asks the scheduler for, shown, and with
//! `--apply` carried out.

use std::path::PathBuf;

use super::Globals;
use super::acting;
use super::acting::Judged;
use super::config;
use super::config::Config;
use super::exit;
use super::failure::Failure;
use super::show;
use super::stdout;
use super::stdout::note;
use super::stored;
use crate::model::action::ActionPlan;
use crate::record::file;
use crate::record::folder::Folder;
use crate::record::stored::Stored;

/// Show what a run's verdicts ask the scheduler for; with --apply, carry it out.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Carry it out: drains, marks and releases, within the budgets of the policy.
    #[arg(long)]
    apply: bool,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let stored = stored::open(&args.run)?;
    let config = match &globals.config {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    let Some(config) = config.filter(|config| args.apply || config.gate.is_some()) else {
        if args.apply {
            return Err(Failure::usage(
                "--apply: expected --config FILE (or FABRICGATE_CONFIG) with a [gate], which says \
                 who is told",
            )
            .into());
        }
        return verdicts_alone(&stored, globals);
    };
    let plan = turned(&stored, &config, args.apply)?;
    tell(&plan, globals)?;
    if !args.apply {
        return Ok(exit::PASS);
    }
    // What was done is part of the run.
    Folder::at(stored.path()).write_json(file::ACTIONS, &plan).map_err(Failure::environment)?;
    Ok(acting::code(&plan))
}

/// What the scheduler is told about this run, now.
fn turned(stored: &Stored, config: &Config, apply: bool) -> Result<ActionPlan, Failure> {
    let run = stored::run(stored)?;
    acting::turn(config, &Judged { stored, run: &run, fleet: &stored.claims }, apply)
}

/// Without a scheduler to ask: what verdicts alone ask for.
fn verdicts_alone(stored: &Stored, globals: &Globals) -> anyhow::Result<u8> {
    let run = stored::run(stored)?;
    if let Some(actions) = &run.actions {
        tell(actions, globals)?;
        note(
            "the scheduler was not asked how the nodes stand; --config FILE with a [gate] asks it",
        );
    }
    Ok(exit::PASS)
}

fn tell(plan: &ActionPlan, globals: &Globals) -> anyhow::Result<()> {
    if globals.json { stdout::json(plan) } else { stdout::text(&show::actions(plan, &[])) }
}
