//! `fabricgate admit|burn-in|recertify|audit`: the whole pipeline under a profile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cli::allocation::{NodeAllocation, WhenBusyArg};
use crate::cli::expectations::ActiveThresholds;
use crate::cli::gate_apply::GateRunInput;
use crate::cli::past_runs::PastRuns;
use crate::cli::plan_scope::{NodeSelectionArgs, PlanBasis, PlanScope};
use crate::cli::post_run::{FinishedRun, run_hooks};
use crate::cli::report_output::RepairComparison;
use crate::cli::simulation_option::{SimulationArgs, private_temp_dir};
use crate::cli::stdout::{Globals, note};
use crate::cli::sweep_setup::SweepSetup;
use crate::cli::tenancy::TenantExclusions;
use crate::cli::{
    allocation, gate_apply, partner_selection, report_output, run_lookup, stdout, stored_run,
};
use crate::config::Config;
use crate::exit;
use crate::exit::CommandError;
use control::gate::clock;
use control::gate::reconciler::ReconcileOutcome;
use control::launch::HeldNodes;
use control::launch::{Launcher, WorkerProgram};
use control::store::run_id::new_run_id;
use control::store::run_reader::{StoredRun, is_simulated};
use control::store::{RunState, file};
use control::sweep;
use control::sweep::{RunLocation, SweepError, SweepProgress, SweepRequest};
use engine::plan::{Plan, lint};
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::id::NodeName;
use model::profile::Profile;
use model::run::{Run, RunInfo};
use model::{hostlist, shell_quote};
use node::exec;
use node::exec::executable;
use sim;

/// Measure the claimed nodes, judge them, and propose actions; change nothing without --apply.
#[derive(Debug, clap::Args)]
// Commands with further options flatten it into a struct of the same name.
#[group(id = "sweep")]
pub struct SweepArgs {
    #[command(flatten)]
    pub(crate) selection: NodeSelectionArgs,
    #[command(flatten)]
    pub(crate) simulated: SimulationArgs,
    /// The folder of the runs, instead of the configuration's run_dir.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Seed for the order of nodes and pairs.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "resume")]
    pub(crate) seed: u64,
    /// Continue an interrupted run; finished readings are not repeated.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["nodes", "with_domain", "partners"])]
    pub(crate) resume: Option<PathBuf>,
    /// Measure nodes whose GPUs are in use: the running work slows down, and the readings suffer.
    #[arg(long)]
    pub(crate) even_if_busy: bool,
    /// Measure across NVLink domains in which a tenant's ComputeDomain, or a job with an IMEX
    /// channel, is active: this can disturb their work.
    #[arg(long)]
    pub(crate) even_if_tenants: bool,
    /// Measure with the native probes instead of nvbandwidth and nccl-tests, whether those are
    /// installed or not.
    #[arg(long)]
    pub(crate) own_probes: bool,
    /// Carry out the actions of the verdicts, through the [gate] of the configuration and within
    /// the budgets of its policy.
    #[arg(long)]
    pub(crate) apply: bool,
    /// How to treat nodes that jobs or pods use, if Slurm or Kubernetes is the launcher; instead of
    /// the configuration's busy.
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) when_busy: Option<WhenBusyArg>,
    #[command(flatten)]
    pub(crate) files: report_output::ReportFileArgs,
}

impl SweepArgs {
    /// Whether the operator names the nodes.
    pub fn names_nodes(&self) -> bool {
        !self.selection.nodes.is_empty()
    }

    /// Whether --when-busy is given.
    pub fn has_when_busy(&self) -> bool {
        self.when_busy.is_some()
    }

    /// The seed of a new plan.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The requested nodes and their partners.
    pub(crate) fn select_nodes(
        &self,
        config: &Config,
        catalogue: &PlatformCatalogue,
        fleet: Claims,
    ) -> Result<PlanScope, CommandError> {
        let past = match self.names_nodes() {
            true => PastRuns::read(config, self.run_dir.as_deref()),
            false => PastRuns::default(),
        };
        partner_selection::choose_partners(config, catalogue, fleet, &self.selection, &past)
    }
}

/// Chooses nodes among the claimed ones; the choice may be empty.
pub(crate) type NodeSelector<'a> =
    &'a mut dyn FnMut(&mut Config, &PlatformCatalogue, Claims) -> Result<PlanScope, CommandError>;

/// Runs the command under a profile.
pub fn run(args: &SweepArgs, globals: &Globals, profile: Profile) -> anyhow::Result<u8> {
    run_with(args, globals, profile, &mut |config, catalogue, fleet| {
        args.select_nodes(config, catalogue, fleet)
    })
}

/// Runs the command on the chosen nodes.
pub(crate) fn run_with(
    args: &SweepArgs,
    globals: &Globals,
    profile: Profile,
    choose: NodeSelector<'_>,
) -> anyhow::Result<u8> {
    match measure_sweep(args, globals, profile, choose)? {
        Some(mut swept) => report_outcome(&mut swept, args, globals, profile, None),
        None => {
            note("no node can be measured now, so nothing is known");
            Ok(exit::INCONCLUSIVE)
        }
    }
}

/// A sweep that ran and is not reported yet.
#[derive(Debug)]
pub(crate) struct SweepOutput {
    pub(crate) site: SweepSetup,
    pub(crate) done: sweep::SweepResult,
    fleet: Claims,
    /// The nodes that the operator named; empty if all nodes count.
    named: BTreeSet<NodeName>,
    files: report_output::ReportFiles,
}

/// Measures the nodes that `choose` selects among the claimed ones; `None` if it selects none.
pub(crate) fn measure_sweep(
    args: &SweepArgs,
    globals: &Globals,
    profile: Profile,
    choose: NodeSelector<'_>,
) -> anyhow::Result<Option<SweepOutput>> {
    // A file that cannot be written must fail before an hour of measuring.
    let files = args.files.open()?;
    let resumed = match &args.resume {
        Some(run) => {
            let run = run_lookup::find_run(run, globals.config.as_deref())?;
            Some(open_interrupted(&run, profile, args)?)
        }
        None => None,
    };
    let SweepSetup { mut config, in_force } =
        SweepSetup::from_args(args, globals, resumed.as_ref())?;
    let mut named = BTreeSet::new();
    let (fleet, claims, seed) = match &resumed {
        Some(stored) => resume_inputs(stored, &mut config, &in_force)?,
        None => {
            let fleet = config.collect_measurable_claims(&in_force.catalogue)?;
            let chosen = choose(&mut config, &in_force.catalogue, fleet)?;
            if chosen.claims.domains.is_empty() {
                return Ok(None);
            }
            named = chosen.named;
            (chosen.fleet, chosen.claims, args.seed)
        }
    };
    allocation::override_when_busy(&mut config, args.when_busy.map(|it| it.0))?;
    let site = SweepSetup { config, in_force };
    let done = run_sweep(&SweepTask {
        site: &site,
        args,
        globals,
        profile,
        fleet: &fleet,
        claims,
        named: &named,
        seed,
        resumed: resumed.as_ref(),
    })?;
    Ok(Some(SweepOutput { site, done, fleet, named, files }))
}

/// Reports a sweep: gate, artifacts, reports, hooks, exit code.
pub(crate) fn report_outcome(
    swept: &mut SweepOutput,
    args: &SweepArgs,
    globals: &Globals,
    profile: Profile,
    repaired: Option<&RepairComparison>,
) -> anyhow::Result<u8> {
    let SweepOutput { site, done, fleet, named, files } = swept;
    let files = std::mem::take(files);
    let config = &site.config;
    let gate_code = apply_gate(config, fleet, done, args.apply);
    let artifacts = write_artifacts(done, repaired);
    let is_shown = show_run(&done.run, files, globals, repaired);
    if done.partial {
        note("interrupted: the run is partial, unmeasured nodes are unknown");
        note(&format!(
            "continue with `{}`",
            resume_command(done.folder.path(), args, globals, profile)
        ));
    }
    note(&format!("run folder {}", done.folder.path().display()));
    // An error above must not keep the run from receivers, history and monitoring: it was measured
    // and judged. Actions that failed are not announced.
    let carried_out = done.run.actions.as_ref().filter(|_| args.apply && gate_code.is_ok());
    run_hooks(&FinishedRun::new(config, done, carried_out));
    artifacts?;
    let gate_code = gate_code?;
    let outcome = partner_selection::named_outcome(&done.run.verdicts, named);
    let code = exit::outcome_exit_code(outcome, done.out_of_reach || !is_shown?);
    Ok(gate_code.unwrap_or(code))
}

/// Prints the run and writes the report files; false if a file could not be written.
fn show_run(
    run: &Run,
    files: report_output::ReportFiles,
    globals: &Globals,
    repaired: Option<&RepairComparison>,
) -> anyhow::Result<bool> {
    if globals.json {
        stdout::write_document(&report_output::render_with_repair(
            run,
            report_output::ReportFormat::Json,
            repaired,
        )?)?;
    } else {
        let text = report_output::render_with_repair(
            run,
            report_output::ReportFormat::Terminal,
            repaired,
        )?;
        stdout::write_text(&String::from_utf8_lossy(&text))?;
    }
    report_output::write_files(run, files, repaired)
}

/// Fleet, claims and seed of a resumed run: it continues with the claims and the plan of
/// its start.
fn resume_inputs(
    stored: &StoredRun,
    config: &mut Config,
    in_force: &ActiveThresholds,
) -> Result<(Claims, Claims, u64), CommandError> {
    let stored_launcher = &stored.record.launcher;
    if !(is_sim(stored_launcher) && is_sim(&config.launcher)) {
        config.launcher = stored_launcher.clone();
        config.launcher.set_carried_variables(exec::child_environment::srun_export_names());
    }
    let fleet = config
        .collect_measurable_claims(&in_force.catalogue)
        .or_else(|error| stored_fleet(stored, error))?;
    Ok((fleet, stored.claims.clone(), stored.record.seed))
}

/// The input of [`run_sweep`].
struct SweepTask<'a> {
    site: &'a SweepSetup,
    args: &'a SweepArgs,
    globals: &'a Globals,
    profile: Profile,
    fleet: &'a Claims,
    claims: Claims,
    named: &'a BTreeSet<NodeName>,
    seed: u64,
    resumed: Option<&'a StoredRun>,
}

/// Plans, allocates the nodes if a scheduler manages them, measures, and releases the nodes.
fn run_sweep(task: &SweepTask<'_>) -> anyhow::Result<sweep::SweepResult> {
    let SweepTask { site, args, globals, profile, fleet, seed, resumed, .. } = *task;
    let (config, in_force) = (&site.config, &site.in_force);
    let tenanted = match args.even_if_tenants {
        true => TenantExclusions::default(),
        false => TenantExclusions::query(config, &in_force.catalogue, fleet, &task.claims)?,
    };
    if resumed.is_some() {
        tenanted.check_empty()?;
    }
    let mut claims = tenanted.restrict_claims(&task.claims);
    partner_selection::check_named_left(&claims, task.named)?;
    let mut plan = match resumed {
        Some(stored) => stored.plan.clone(),
        None => PlanBasis::new(config, &claims, &in_force.catalogue, profile, seed)?.make_plan()?,
    };
    if let Some(stored) = resumed {
        check_plan(stored, &plan, &claims)?;
    }
    check_runnable(config, &plan, profile)?;
    let (mut program, _links) = worker_program(config, args.even_if_busy)?;
    let info = new_run_info(config, &claims, profile);
    let run = resumed.map_or(info.id.as_str(), |stored| &stored.record.info.id);
    let hold = NodeAllocation::allocate_for_plan(config, &claims, &plan, run, profile)?;
    if let Some(hold) = &hold {
        program.held = hold.launch_allocation().clone();
        if resumed.is_none() {
            claims = hold.restrict_claims(&claims);
            partner_selection::check_named_left(&claims, task.named)?;
        }
    }
    let basis = PlanBasis::new(config, &claims, &in_force.catalogue, profile, seed)?;
    if let Some(hold) = hold.as_ref().filter(|_| resumed.is_none()) {
        plan = hold.make_plan(&basis)?;
    }
    if resumed.is_none() {
        tenanted.mark_plan(&mut plan);
    }
    let runs = args.run_dir.as_ref().unwrap_or(&config.run_dir);
    let place = resumed.map_or(RunLocation::New(runs), RunLocation::Resume);
    let swept = sweep::run_sweep(&SweepRequest {
        info,
        claims: &claims,
        fleet,
        plan: &plan,
        request: &basis.request(),
        launcher: &config.launcher,
        program: &program,
        tools: stored_run::simulated_tools(&config.launcher, &program)?,
        connect_timeout: config.connect,
        confirm: &config.confirm,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform: config.platform.as_deref(),
        policy: &config.policy,
        run_location: place,
        progress: new_progress(globals),
        repeat: None,
    });
    // Also after an error: other jobs wait for the nodes.
    drop(hold);
    swept.map_err(sweep_error)
}

/// Checks that a stored plan keeps its rules.
pub(crate) fn check_plan(
    stored: &StoredRun,
    plan: &Plan,
    claims: &Claims,
) -> Result<(), CommandError> {
    let Some(wrong) = lint::lint_plan(plan, claims).into_iter().next() else { return Ok(()) };
    let file = stored.path().join(file::PLAN);
    Err(CommandError::Usage(format!("{}: the plan breaks its own rules: {wrong}", file.display())))
}

/// Checks that the plan has steps and the launcher can run them.
pub(crate) fn check_runnable(
    config: &Config,
    plan: &Plan,
    profile: Profile,
) -> Result<(), CommandError> {
    config.check_stand_in()?;
    if plan.rounds.is_empty() {
        return Err(CommandError::Usage(format!(
            "nothing can be run: every probe is left out on every node, see `fabricgate plan {}`",
            profile.as_str()
        )));
    }
    if config.launcher == Launcher::Local {
        warn_local_names(plan);
    }
    Ok(())
}

pub(crate) fn new_progress(globals: &Globals) -> SweepProgress {
    if globals.no_progress { SweepProgress::silent() } else { SweepProgress::to_stderr() }
}

/// The error class, and so the exit code, of a sweep that did not run.
pub(crate) fn sweep_error(error: SweepError) -> anyhow::Error {
    match error {
        // A full or read-only disk is a fault of the environment.
        SweepError::Record(error) => {
            CommandError::Environment(format!("the run cannot be recorded: {error}")).into()
        }
        SweepError::Locked { .. } | SweepError::Unreachable { .. } => {
            CommandError::Environment(error.to_string()).into()
        }
        SweepError::Complete { .. } => CommandError::Usage(error.to_string()).into(),
        SweepError::ReplaySource(error) => stored_run::record_error(error).into(),
        other => anyhow::Error::from(other),
    }
}

/// Writes the rendered forms of a run to its folder, and the comparison with the run before a
/// repair.
pub(crate) fn write_artifacts(
    result: &sweep::SweepResult,
    repaired: Option<&RepairComparison>,
) -> anyhow::Result<()> {
    for (name, bytes) in report_output::render_stored_forms(&result.run, repaired)? {
        result.folder.write(name, &bytes).map_err(CommandError::environment)?;
    }
    if let Some(RepairComparison { repairs, .. }) = repaired {
        result.folder.write_json(file::COMPARISON, repairs).map_err(CommandError::environment)?;
    }
    Ok(())
}

/// Runs the gate if one is configured; its plan replaces the one proposed from the verdicts alone.
/// Returns an exit code if an action was not carried out as requested.
pub(crate) fn apply_gate(
    config: &Config,
    fleet: &Claims,
    done: &mut sweep::SweepResult,
    apply: bool,
) -> anyhow::Result<Option<u8>> {
    if config.gate.is_none() {
        return Ok(None);
    }
    let stored = stored_run::open_run_quietly(done.folder.path())?;
    let judged = GateRunInput { stored: &stored, run: &done.run, fleet };
    match gate_apply::run_gate(config, &judged, apply) {
        Ok(ReconcileOutcome { plan, .. }) => {
            let mut code = gate_apply::exit_code(&plan);
            // The journal has the actions that were carried out.
            if let Err(error) = done.folder.write_json(file::ACTIONS, &plan) {
                note(&format!("the actions are not in the run folder: {error}"));
                code = exit::ENVIRONMENT;
            }
            done.run.actions = Some(plan);
            let counts = apply || code == exit::ENVIRONMENT;
            Ok(Some(code).filter(|code| counts && *code != exit::PASS))
        }
        Err(error) if apply => Err(error.into()),
        Err(error) => {
            note(&format!("the proposed actions are based on the verdicts alone: {error}"));
            Ok(None)
        }
    }
}

/// The command that resumes a run.
pub(crate) fn resume_command(
    folder: &Path,
    args: &SweepArgs,
    globals: &Globals,
    profile: Profile,
) -> String {
    let mut words = vec!["fabricgate".to_owned(), profile.as_str().to_owned()];
    if let Some(config) = &globals.config {
        words.extend(["--config".to_owned(), config.display().to_string()]);
    }
    if args.even_if_busy {
        words.push("--even-if-busy".to_owned());
    }
    if args.own_probes {
        words.push("--own-probes".to_owned());
    }
    if args.apply {
        words.push("--apply".to_owned());
    }
    words.extend(["--resume".to_owned(), folder.display().to_string()]);
    shell_quote::join_quoted(&words)
}

/// The scenario that a simulated run stored, unless the operator requests another one.
pub(crate) fn stored_scenario(stored: &StoredRun, args: &SweepArgs) -> Option<PathBuf> {
    let scenario = stored.path().join(file::SCENARIO);
    (is_sim(&stored.record.launcher) && !args.simulated.is_requested() && scenario.exists())
        .then_some(scenario)
}

pub(crate) fn is_sim(launcher: &Launcher) -> bool {
    matches!(launcher, Launcher::Sim { .. })
}

/// The fleet of a resumed run while no source is reachable: the claims about the nodes of
/// the run. Budgets are shares of the fleet, so a smaller fleet allows less.
fn stored_fleet(stored: &StoredRun, error: CommandError) -> Result<Claims, CommandError> {
    match error {
        CommandError::Environment(why) => {
            note(&format!("{why}; continuing with the claims from the start of the run"));
            Ok(stored.claims.clone())
        }
        error @ (CommandError::Usage(_) | CommandError::Refused(_)) => Err(error),
    }
}

/// Opens a run that can be resumed.
pub(crate) fn open_interrupted(
    path: &Path,
    profile: Profile,
    args: &SweepArgs,
) -> Result<StoredRun, CommandError> {
    let stored = stored_run::open_run_quietly(path)?;
    let path_text = path.display();
    if stored.record.state == RunState::Complete {
        return Err(CommandError::Usage(format!("--resume {path_text}: this run is complete")));
    }
    if args.simulated.is_requested() && !is_sim(&stored.record.launcher) {
        let text = "it is a run of real nodes, which --sim cannot continue";
        return Err(CommandError::Usage(format!("--resume {path_text}: {text}")));
    }
    if stored.record.info.profile != profile.as_str() {
        let was = &stored.record.info.profile;
        return Err(CommandError::Usage(format!(
            "--resume {path_text}: it is a run of profile {was}, use `fabricgate {was} --resume`"
        )));
    }
    Ok(stored)
}

pub(crate) fn new_run_info(config: &Config, claims: &Claims, profile: Profile) -> RunInfo {
    let now = sweep::now();
    let nodes = claims.domains.iter().flat_map(|d| &d.nodes);
    let folded = hostlist::fold(nodes.map(|n| n.as_str()));
    RunInfo {
        id: new_run_id(now, crate::cli::runtime::random_number()),
        created: sweep::format_timestamp(now),
        profile: profile.as_str().to_owned(),
        source: format!("{folded} through launcher {}", config.launcher.as_str()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        simulated: is_simulated(&config.launcher),
    }
}

/// How workers are started. Dropping the second value removes the folder of simulated tools.
pub(crate) fn worker_program(
    config: &Config,
    even_if_busy: bool,
) -> anyhow::Result<(WorkerProgram, Option<tempfile::TempDir>)> {
    let exe = executable::current_executable()?;
    let links = match &config.launcher {
        Launcher::Sim { .. } => {
            let folder = private_temp_dir()?;
            for name in sim::tool_dispatch::NAMES {
                std::os::unix::fs::symlink(&exe, folder.path().join(name))?;
            }
            Some(folder)
        }
        _ => None,
    };
    let program = WorkerProgram {
        local_exe: exe.display().to_string(),
        node_exe: config.worker.clone(),
        links: links.as_ref().map(|folder| folder.path().to_owned()),
        path: std::env::var("PATH").unwrap_or_default(),
        even_if_busy,
        held: HeldNodes::default(),
        age: None,
    };
    Ok((program, links))
}

/// Notes nodes that the local launcher measures under another name than this host's.
fn warn_local_names(plan: &Plan) {
    let host = clock::host_name();
    for node in plan.nodes() {
        if !node.matches_host(&host) {
            note(&format!("this machine ({host}) is measured as node {node}"));
        }
    }
}
