//! `fabricgate apply`: what a run asks the scheduler for, shown, and with
//! `--apply` carried out.

pub mod topology;

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::commands::apply::topology::TopologyUpdateRequest;
use crate::cli::gate_apply::GateRunInput;
use crate::cli::stdout::{Globals, note};
use crate::cli::{gate_apply, report_output, run_lookup, stdout, stored_run};
use crate::config::Config;
use crate::config::gate::GateBackend;
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::reconciler::ReconcileOutcome;
use control::gate::scontrol::ScontrolScheduler;
use control::store::run_folder::RunFolder;
use control::store::run_reader::StoredRun;
use control::store::{RecordError, RunState, file};
use model::action::ActionPlan;

/// Show what a run's verdicts ask the scheduler for; with --apply, carry it out.
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
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
pub fn run(args: &ApplyArgs, globals: &Globals) -> anyhow::Result<u8> {
    let stored =
        stored_run::open_run(&run_lookup::find_run(&args.run, globals.config.as_deref())?)?;
    let config = match &globals.config {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    if let Some(file) = &args.topology {
        return propose_topology(args, file, &stored, config.as_ref(), globals);
    }
    let Some(config) = config.filter(|config| args.apply || config.gate.is_some()) else {
        if args.apply {
            return Err(CommandError::usage(
                "--apply: expected --config FILE (or FABRICGATE_CONFIG) with a [gate], which says \
                 who is told",
            )
            .into());
        }
        return show_verdict_actions(&stored, globals);
    };
    if args.apply {
        require_verdicts(&stored)?;
    }
    let ReconcileOutcome { plan, budgets, .. } = reconcile_run(&stored, &config, args.apply)?;
    print_plan(&plan, &budgets, globals)?;
    if !args.apply {
        return Ok(exit::PASS);
    }
    // What was done is part of the run. Who acts may have no right to write to what was
    // measured: the journal has it all the same.
    match RunFolder::open(stored.path()).write_json(file::ACTIONS, &plan) {
        Err(RecordError::Io { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
        {
            note("the run folder cannot be written to; what was done is in the journal alone");
        }
        written => written.map_err(CommandError::environment)?,
    }
    Ok(gate_apply::exit_code(&plan))
}

/// What a topology file should be after this run.
fn propose_topology(
    args: &ApplyArgs,
    file: &Path,
    stored: &StoredRun,
    config: Option<&Config>,
    globals: &Globals,
) -> anyhow::Result<u8> {
    let config = config.ok_or_else(|| {
        CommandError::usage(
            "--topology: expected --config FILE with a [gate], which says who is asked",
        )
    })?;
    let gate = gate_apply::require_gate(config)?;
    let run = stored_run::read_run(stored)?;
    let scheduler = gate_apply::scheduler_for(gate);
    let scontrol = match &gate.backend {
        GateBackend::Scontrol(scontrol) => scontrol.clone(),
        GateBackend::Slurmrestd(_) | GateBackend::Kubernetes(_) => {
            ScontrolScheduler { limit: gate.timeouts.limit, ..ScontrolScheduler::default() }
        }
    };
    let asked = TopologyUpdateRequest {
        file,
        topology: args.topology_name.as_deref(),
        verdicts: &run.verdicts,
        claims: &stored.claims,
        scheduler: scheduler.as_ref(),
        scontrol: &scontrol,
    };
    let answer = topology::propose_topology(&asked)?;
    if globals.json {
        stdout::write_json(&answer)?;
    } else {
        stdout::write_text(&answer.render())?;
    }
    Ok(answer.exit_code())
}

/// What the scheduler is told about this run, now.
fn reconcile_run(
    stored: &StoredRun,
    config: &Config,
    apply: bool,
) -> Result<ReconcileOutcome, CommandError> {
    let run = stored_run::read_run(stored)?;
    gate_apply::run_gate(config, &GateRunInput { stored, run: &run, fleet: &stored.claims }, apply)
}

/// A drain names its run, so the verdicts that ask for it are in the folder before.
fn require_verdicts(stored: &StoredRun) -> Result<(), CommandError> {
    let verdicts = stored.verdicts().map_err(stored_run::record_error)?;
    if verdicts.is_some() && stored.record.state != RunState::Running {
        return Ok(());
    }
    Err(CommandError::Refused(format!(
        "{}: its run is under way or was ended before its verdicts were written, so nothing is carried out; \
         `fabricgate {} --resume {0}` goes on with it",
        stored.path().display(),
        stored.record.info.profile
    )))
}

/// Without a scheduler to ask: what verdicts alone ask for.
fn show_verdict_actions(stored: &StoredRun, globals: &Globals) -> anyhow::Result<u8> {
    let run = stored_run::read_run(stored)?;
    if let Some(actions) = &run.actions {
        print_plan(actions, &[], globals)?;
        note(
            "the scheduler was not asked how the nodes stand; --config FILE with a [gate] asks it",
        );
    }
    Ok(exit::PASS)
}

fn print_plan(plan: &ActionPlan, budgets: &[String], globals: &Globals) -> anyhow::Result<()> {
    if globals.json {
        stdout::write_json(plan)
    } else {
        stdout::write_text(&report_output::render_actions(plan, budgets))
    }
}
