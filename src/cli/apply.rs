//! `fabricgate apply`: what a run asks the scheduler for, shown, and with
//! `--apply` carried out.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use super::Globals;
use super::acting;
use super::acting::Judged;
use super::config;
use super::config::Config;
use super::exit;
use super::failure::Failure;
use super::gating::Told;
use super::runs;
use super::show;
use super::stdout;
use super::stdout::note;
use super::stored;
use super::topology;
use super::topology::Asked;
use crate::gate::scontrol::Scontrol;
use crate::gate::turn::Turned;
use crate::model::action::ActionPlan;
use crate::record::RecordError;
use crate::record::State;
use crate::record::file;
use crate::record::folder::Folder;
use crate::record::stored::Stored;

/// Show what a run's verdicts ask the scheduler for; with --apply, carry it out.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Carry it out: drains, marks and releases, within the budgets of the policy.
    #[arg(long)]
    apply: bool,
    /// Instead, show what this topology file (topology.yaml or topology.conf) should be, as a diff;
    /// nothing is written.
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    topology: Option<PathBuf>,
    /// Which topology of the file; the cluster's default where none is named.
    #[arg(long, value_name = "NAME", requires = "topology")]
    topology_name: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let stored = stored::open(&runs::folder(&args.run, globals.config.as_deref())?)?;
    let config = match &globals.config {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    if let Some(file) = &args.topology {
        return better_topology(args, file, &stored, config.as_ref(), globals);
    }
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
    if args.apply {
        is_judged(&stored)?;
    }
    let Turned { plan, budgets, .. } = turned(&stored, &config, args.apply)?;
    tell(&plan, &budgets, globals)?;
    if !args.apply {
        return Ok(exit::PASS);
    }
    // What was done is part of the run. Who acts may have no right to write to what was
    // measured: the journal has it all the same.
    match Folder::at(stored.path()).write_json(file::ACTIONS, &plan) {
        Err(RecordError::Io { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
        {
            note("the run folder cannot be written to; what was done is in the journal alone");
        }
        written => written.map_err(Failure::environment)?,
    }
    Ok(acting::code(&plan))
}

/// What a topology file should be after this run.
fn better_topology(
    args: &Args,
    file: &Path,
    stored: &Stored,
    config: Option<&Config>,
    globals: &Globals,
) -> anyhow::Result<u8> {
    let config = config.ok_or_else(|| {
        Failure::usage("--topology: expected --config FILE with a [gate], which says who is asked")
    })?;
    let gate = acting::gate(config)?;
    let run = stored::run(stored)?;
    let scheduler = acting::scheduler(gate);
    let scontrol = match &gate.told {
        Told::Scontrol(scontrol) => scontrol.clone(),
        Told::Slurmrestd(_) | Told::Kubernetes(_) => {
            Scontrol { limit: gate.pace.limit, ..Scontrol::default() }
        }
    };
    let asked = Asked {
        file,
        topology: args.topology_name.as_deref(),
        verdicts: &run.verdicts,
        claims: &stored.claims,
        scheduler: scheduler.as_ref(),
        scontrol: &scontrol,
    };
    let answer = topology::show(&asked)?;
    if globals.json {
        stdout::json(&answer)?;
    } else {
        stdout::text(&answer.text())?;
    }
    Ok(answer.code())
}

/// What the scheduler is told about this run, now.
fn turned(stored: &Stored, config: &Config, apply: bool) -> Result<Turned, Failure> {
    let run = stored::run(stored)?;
    acting::turn(config, &Judged { stored, run: &run, fleet: &stored.claims }, apply)
}

/// A drain names its run, so the verdicts that ask for it are in the folder before.
fn is_judged(stored: &Stored) -> Result<(), Failure> {
    let verdicts = stored.verdicts().map_err(stored::failure)?;
    if verdicts.is_some() && stored.record.state != State::Running {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{}: its run is under way or was ended before its verdicts were written, so nothing is carried out; \
         `fabricgate {} --resume {0}` goes on with it",
        stored.path().display(),
        stored.record.info.profile
    )))
}

/// Without a scheduler to ask: what verdicts alone ask for.
fn verdicts_alone(stored: &Stored, globals: &Globals) -> anyhow::Result<u8> {
    let run = stored::run(stored)?;
    if let Some(actions) = &run.actions {
        tell(actions, &[], globals)?;
        note(
            "the scheduler was not asked how the nodes stand; --config FILE with a [gate] asks it",
        );
    }
    Ok(exit::PASS)
}

fn tell(plan: &ActionPlan, budgets: &[String], globals: &Globals) -> anyhow::Result<()> {
    if globals.json { stdout::json(plan) } else { stdout::text(&show::actions(plan, budgets)) }
}
