//! `fabricgate apply`: prints the scheduler actions that a run proposes, and with `--apply` carries
//! them out.

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

/// Show the scheduler actions that a run proposes; with --apply, carry them out.
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Carry out drains, marks and releases, within the budgets of the policy.
    #[arg(long)]
    apply: bool,
    /// Instead, print the proposed change of this topology file (topology.yaml or topology.conf) as
    /// a diff; nothing is written.
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    topology: Option<PathBuf>,
    /// Which topology of the file; by default the cluster's default.
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
                "--apply: expected --config FILE (or FABRICGATE_CONFIG) with a [gate], which names \
                 the scheduler",
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
    // The actions are part of the run. The process may lack write access to the run folder; the
    // journal has the actions in any case.
    match RunFolder::open(stored.path()).write_json(file::ACTIONS, &plan) {
        Err(RecordError::Io { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
        {
            note("the run folder cannot be written to; the actions are only in the journal");
        }
        written => written.map_err(CommandError::environment)?,
    }
    Ok(gate_apply::exit_code(&plan))
}

/// Proposes a topology file after this run.
fn propose_topology(
    args: &ApplyArgs,
    file: &Path,
    stored: &StoredRun,
    config: Option<&Config>,
    globals: &Globals,
) -> anyhow::Result<u8> {
    let config = config.ok_or_else(|| {
        CommandError::usage(
            "--topology: expected --config FILE with a [gate], which names the scheduler",
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
    let request = TopologyUpdateRequest {
        file,
        topology: args.topology_name.as_deref(),
        verdicts: &run.verdicts,
        claims: &stored.claims,
        scheduler: scheduler.as_ref(),
        scontrol: &scontrol,
    };
    let answer = topology::propose_topology(&request)?;
    if globals.json {
        stdout::write_json(&answer)?;
    } else {
        stdout::write_text(&answer.render())?;
    }
    Ok(answer.exit_code())
}

/// Runs one gate turn for this run.
fn reconcile_run(
    stored: &StoredRun,
    config: &Config,
    apply: bool,
) -> Result<ReconcileOutcome, CommandError> {
    let run = stored_run::read_run(stored)?;
    gate_apply::run_gate(config, &GateRunInput { stored, run: &run, fleet: &stored.claims }, apply)
}

/// A drain names its run, so the run's verdicts must be on disk before.
fn require_verdicts(stored: &StoredRun) -> Result<(), CommandError> {
    let verdicts = stored.verdicts().map_err(stored_run::record_error)?;
    if verdicts.is_some() && stored.record.state != RunState::Running {
        return Ok(());
    }
    Err(CommandError::Refused(format!(
        "{}: its run is unfinished, or ended before its verdicts were written, so nothing is \
         carried out; `fabricgate {} --resume {0}` continues it",
        stored.path().display(),
        stored.record.info.profile
    )))
}

/// Prints the actions that the verdicts alone propose, without a scheduler.
fn show_verdict_actions(stored: &StoredRun, globals: &Globals) -> anyhow::Result<u8> {
    let run = stored_run::read_run(stored)?;
    if let Some(actions) = &run.actions {
        print_plan(actions, &[], globals)?;
        note("the scheduler was not queried; pass --config FILE with a [gate] to query it");
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
