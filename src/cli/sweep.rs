//! `fabricgate admit|burn-in|recertify|audit`: the whole pipeline under a
//! profile.

use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;

use super::Globals;
use super::acting;
use super::acting::Judged;
use super::afterwards::Ended;
use super::afterwards::afterwards;
use super::config;
use super::config::Config;
use super::earlier::Past;
use super::exit;
use super::expectations::InForce;
use super::failure::Failure;
use super::holding;
use super::holding::Hold;
use super::judge;
use super::partners;
use super::plan;
use super::plan::Basis;
use super::plan::Chosen;
use super::plan::Profile;
use super::runs;
use super::show;
use super::show::Repaired;
use super::site::Site;
use super::stdout;
use super::stdout::note;
use super::stored;
use super::tenancy::Tenanted;
use crate::coordinator;
use crate::coordinator::Place;
use crate::coordinator::Progress;
use crate::coordinator::Sweep;
use crate::coordinator::SweepError;
use crate::exec;
use crate::exec::own;
use crate::gate::stamp;
use crate::gate::turn::Turned;
use crate::launch::Launcher;
use crate::launch::Program;
use crate::launch::held::Held;
use crate::launch::slurm::WhenBusy;
use crate::model::claims::Claims;
use crate::model::hostlist;
use crate::model::id::NodeName;
use crate::model::run::Run;
use crate::model::run::RunInfo;
use crate::model::words;
use crate::plan::Plan;
use crate::plan::lint;
use crate::record::State;
use crate::record::file;
use crate::record::id::run_id;
use crate::record::stored::Stored;
use crate::record::stored::is_simulated;
use crate::sim;
use crate::thresholds::Catalogue;

/// Measure the claimed nodes, judge, and propose; change nothing, unless --apply says so.
#[derive(Debug, clap::Args)]
// Commands that have more besides flatten it into a struct of the same name.
#[group(id = "sweep")]
pub struct Args {
    #[command(flatten)]
    pub(super) selection: plan::Selection,
    #[command(flatten)]
    pub(super) simulated: config::Simulated,
    /// Where run folders go, instead of the configuration's run_dir.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(super) run_dir: Option<PathBuf>,
    /// The seed of the order of nodes and pairs.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "resume")]
    pub(super) seed: u64,
    /// Go on with a run that did not come to its end; finished readings are not repeated.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["nodes", "with_domain", "partners"])]
    pub(super) resume: Option<PathBuf>,
    /// Measure nodes whose GPUs somebody uses: their work suffers, and so do the readings.
    #[arg(long)]
    pub(super) even_if_busy: bool,
    /// Measure across NVLink domains in which a tenant's ComputeDomain, or a job with an IMEX
    /// channel, is active: their work can be disturbed.
    #[arg(long)]
    pub(super) even_if_tenants: bool,
    /// Measure by fabricgate itself instead of by nvbandwidth and nccl-tests, whether they are there
    /// or not.
    #[arg(long)]
    pub(super) own_probes: bool,
    /// Carry out what the verdicts ask for, through the [gate] of the configuration and within the
    /// budgets of its policy.
    #[arg(long)]
    pub(super) apply: bool,
    /// What to do about nodes that jobs or pods use, where Slurm or Kubernetes is the launcher;
    /// instead of the configuration's busy.
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) when_busy: Option<WhenBusy>,
    #[command(flatten)]
    pub(super) files: show::Files,
}

impl Args {
    /// Whether somebody names the nodes.
    pub fn names_nodes(&self) -> bool {
        !self.selection.nodes.is_empty()
    }

    /// Whether somebody says what to do about nodes that are used.
    pub fn says_when_busy(&self) -> bool {
        self.when_busy.is_some()
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The nodes that are asked for, of all, and their partners.
    pub(super) fn chosen(
        &self,
        config: &Config,
        catalogue: &Catalogue,
        fleet: Claims,
    ) -> Result<Chosen, Failure> {
        let past = match self.names_nodes() {
            true => Past::of(config, self.run_dir.as_deref()),
            false => Past::default(),
        };
        partners::choose(config, catalogue, fleet, &self.selection, &past)
    }
}

/// Chooses among all that are claimed; nobody may be left.
pub(super) type Choose<'a> =
    &'a mut dyn FnMut(&mut Config, &Catalogue, Claims) -> Result<Chosen, Failure>;

/// Runs the command under a profile.
pub fn run(args: &Args, globals: &Globals, profile: Profile) -> anyhow::Result<u8> {
    run_of(args, globals, profile, &mut |config, catalogue, fleet| {
        args.chosen(config, catalogue, fleet)
    })
}

/// Runs it on those that are chosen.
pub(super) fn run_of(
    args: &Args,
    globals: &Globals,
    profile: Profile,
    choose: Choose<'_>,
) -> anyhow::Result<u8> {
    match measured(args, globals, profile, choose)? {
        Some(mut swept) => told(&mut swept, args, globals, profile, None),
        None => {
            note("nobody can be measured now, so nothing is known");
            Ok(exit::INCONCLUSIVE)
        }
    }
}

/// A sweep that was carried out and not told of yet.
#[derive(Debug)]
pub(super) struct Swept {
    pub(super) site: Site,
    pub(super) done: coordinator::Done,
    fleet: Claims,
    /// The nodes that a person named; none where all that took part are meant.
    named: BTreeSet<NodeName>,
    files: show::Opened,
}

/// Measures. Which nodes, `choose` says of all that are claimed; nothing where
/// nobody is left.
pub(super) fn measured(
    args: &Args,
    globals: &Globals,
    profile: Profile,
    choose: Choose<'_>,
) -> anyhow::Result<Option<Swept>> {
    // An hour of measuring must not end with "cannot write".
    let files = args.files.open()?;
    let resumed = match &args.resume {
        Some(run) => {
            let run = runs::folder(run, globals.config.as_deref())?;
            Some(interrupted(&run, profile, args)?)
        }
        None => None,
    };
    let Site { mut config, in_force } = Site::of(args, globals, resumed.as_ref())?;
    let mut named = BTreeSet::new();
    let (fleet, claims, seed) = match &resumed {
        Some(stored) => then(stored, &mut config, &in_force)?,
        None => {
            let fleet = config.measurable(&in_force.catalogue)?;
            let chosen = choose(&mut config, &in_force.catalogue, fleet)?;
            if chosen.claims.domains.is_empty() {
                return Ok(None);
            }
            named = chosen.named;
            (chosen.fleet, chosen.claims, args.seed)
        }
    };
    holding::say_when_busy(&mut config, args.when_busy)?;
    let site = Site { config, in_force };
    let done = one(&One {
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
    Ok(Some(Swept { site, done, fleet, named, files }))
}

/// Tells what came of it, and carries out what is asked for.
pub(super) fn told(
    swept: &mut Swept,
    args: &Args,
    globals: &Globals,
    profile: Profile,
    repaired: Option<&Repaired>,
) -> anyhow::Result<u8> {
    let Swept { site, done, fleet, named, files } = swept;
    let files = std::mem::take(files);
    let config = &site.config;
    let acted = acted(config, fleet, done, args.apply);
    let kept = kept(done, repaired);
    let shown = shown(&done.run, files, globals, repaired);
    if done.partial {
        note("interrupted: the run is partial, what was not measured is unknown");
        note(&format!("go on with `{}`", again(done.folder.path(), args, globals, profile)));
    }
    note(&format!("run folder {}", done.folder.path().display()));
    // Whatever went wrong above: the run was measured and judged, and people, history
    // and monitoring must not lack it because a scheduler was down. What was not done
    // is no action that they are told of.
    let carried_out = done.run.actions.as_ref().filter(|_| args.apply && acted.is_ok());
    afterwards(&Ended::of(config, done, carried_out));
    kept?;
    let acted = acted?;
    let outcome = partners::outcome(&done.run.verdicts, named);
    let code = judge::code(outcome, done.out_of_reach || !shown?);
    Ok(acted.unwrap_or(code))
}

/// Shows a run where it was asked for; false where a file could not be written.
fn shown(
    run: &Run,
    files: show::Opened,
    globals: &Globals,
    repaired: Option<&Repaired>,
) -> anyhow::Result<bool> {
    if globals.json {
        stdout::document(&show::render_with(run, show::Format::Json, repaired)?)?;
    } else {
        let told = show::render_with(run, show::Format::Terminal, repaired)?;
        stdout::text(&String::from_utf8_lossy(&told))?;
    }
    show::files(run, files, repaired)
}

/// Fleet, claims and seed of a run that is gone on with: what was claimed and
/// planned then is what is finished now.
fn then(
    stored: &Stored,
    config: &mut Config,
    in_force: &InForce,
) -> Result<(Claims, Claims, u64), Failure> {
    let then = &stored.record.launcher;
    if !(is_sim(then) && is_sim(&config.launcher)) {
        config.launcher = then.clone();
        config.launcher.carry(exec::secrets::carried());
    }
    let fleet =
        config.measurable(&in_force.catalogue).or_else(|error| fleet_then(stored, error))?;
    Ok((fleet, stored.claims.clone(), stored.record.seed))
}

/// One sweep to carry out.
struct One<'a> {
    site: &'a Site,
    args: &'a Args,
    globals: &'a Globals,
    profile: Profile,
    fleet: &'a Claims,
    claims: Claims,
    named: &'a BTreeSet<NodeName>,
    seed: u64,
    resumed: Option<&'a Stored>,
}

/// Holds the nodes where a scheduler has them, measures, and lets them go.
fn one(one: &One<'_>) -> anyhow::Result<coordinator::Done> {
    let One { site, args, globals, profile, fleet, seed, resumed, .. } = *one;
    let (config, in_force) = (&site.config, &site.in_force);
    let tenanted = match args.even_if_tenants {
        true => Tenanted::default(),
        false => Tenanted::of(config, &in_force.catalogue, fleet, &one.claims)?,
    };
    if resumed.is_some() {
        tenanted.is_none()?;
    }
    let mut claims = tenanted.without(&one.claims);
    partners::still_for_some(&claims, one.named)?;
    let mut plan = match resumed {
        Some(stored) => stored.plan.clone(),
        None => Basis::new(config, &claims, &in_force.catalogue, profile, seed)?.plan()?,
    };
    if let Some(stored) = resumed {
        check_plan(stored, &plan, &claims)?;
    }
    check(config, &plan, profile)?;
    let (mut program, _links) = program(config, args.even_if_busy)?;
    let info = info(config, &claims, profile);
    let run = resumed.map_or(info.id.as_str(), |stored| &stored.record.info.id);
    let hold = Hold::take(config, &claims, &plan, run, profile)?;
    if let Some(hold) = &hold {
        program.held = hold.held().clone();
        if resumed.is_none() {
            claims = hold.measurable(&claims);
            partners::still_for_some(&claims, one.named)?;
        }
    }
    let basis = Basis::new(config, &claims, &in_force.catalogue, profile, seed)?;
    if let Some(hold) = hold.as_ref().filter(|_| resumed.is_none()) {
        plan = hold.plan(&basis)?;
    }
    if resumed.is_none() {
        tenanted.tell(&mut plan);
    }
    let runs = args.run_dir.as_ref().unwrap_or(&config.run_dir);
    let place = resumed.map_or(Place::New(runs), Place::Resume);
    let swept = coordinator::sweep(&Sweep {
        info,
        claims: &claims,
        fleet,
        plan: &plan,
        request: &basis.request(),
        launcher: &config.launcher,
        program: &program,
        tools: stored::simulated_tools(&config.launcher, &program)?,
        connect: config.connect,
        confirm: &config.confirm,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform: config.platform.as_deref(),
        policy: &config.policy,
        place,
        progress: progress(globals),
        again: None,
    });
    // Whatever became of the sweep: others wait for the nodes.
    drop(hold);
    swept.map_err(failed)
}

/// Whether a plan that was stored still keeps its rules.
pub(super) fn check_plan(stored: &Stored, plan: &Plan, claims: &Claims) -> Result<(), Failure> {
    let Some(wrong) = lint::lint(plan, claims).into_iter().next() else { return Ok(()) };
    let file = stored.path().join(file::PLAN);
    Err(Failure::Usage(format!("{}: the plan breaks its own rules: {wrong}", file.display())))
}

/// Whether there is anything to run, and anything to run it on.
pub(super) fn check(config: &Config, plan: &Plan, profile: Profile) -> Result<(), Failure> {
    config.check_stand_in()?;
    if plan.rounds.is_empty() {
        return Err(Failure::Usage(format!(
            "nothing can be run: every probe is left out on every node, see `fabricgate plan {}`",
            profile.as_str()
        )));
    }
    if config.launcher == Launcher::Local {
        check_local(plan);
    }
    Ok(())
}

pub(super) fn progress(globals: &Globals) -> Progress {
    if globals.no_progress { Progress::silent() } else { Progress::lines() }
}

/// Whose fault it is that there was no sweep.
pub(super) fn failed(error: SweepError) -> anyhow::Error {
    match error {
        // A full or read-only disk is no bug of ours.
        SweepError::Record(error) => {
            Failure::Environment(format!("the run cannot be recorded: {error}")).into()
        }
        SweepError::Taken { .. } | SweepError::Unreachable { .. } => {
            Failure::Environment(error.to_string()).into()
        }
        SweepError::Complete { .. } => Failure::Usage(error.to_string()).into(),
        SweepError::Answers(error) => stored::failure(error).into(),
        other => anyhow::Error::from(other),
    }
}

/// Puts into a run's folder what every run folder holds.
pub(super) fn keep(done: &coordinator::Done) -> anyhow::Result<()> {
    kept(done, None)
}

/// The same, and what a repair changed.
fn kept(done: &coordinator::Done, repaired: Option<&Repaired>) -> anyhow::Result<()> {
    for (name, bytes) in show::kept(&done.run, repaired)? {
        done.folder.write(name, &bytes).map_err(Failure::environment)?;
    }
    if let Some(Repaired { repairs, .. }) = repaired {
        done.folder.write_json(file::COMPARISON, repairs).map_err(Failure::environment)?;
    }
    Ok(())
}

/// Takes a turn of the gate where there is one, and puts what it proposes and
/// did in the place of what verdicts alone propose. The exit code where it
/// overrides that of the verdicts: something was not done as asked for.
pub(super) fn acted(
    config: &Config,
    fleet: &Claims,
    done: &mut coordinator::Done,
    apply: bool,
) -> anyhow::Result<Option<u8>> {
    if config.gate.is_none() {
        return Ok(None);
    }
    let stored = stored::open_quietly(done.folder.path())?;
    let judged = Judged { stored: &stored, run: &done.run, fleet };
    match acting::turn(config, &judged, apply) {
        Ok(Turned { plan, .. }) => {
            let mut code = acting::code(&plan);
            // It was carried out all the same, and stands in the journal.
            if let Err(error) = done.folder.write_json(file::ACTIONS, &plan) {
                note(&format!("what was decided is not in the run folder: {error}"));
                code = exit::ENVIRONMENT;
            }
            done.run.actions = Some(plan);
            let is_told = apply || code == exit::ENVIRONMENT;
            Ok(Some(code).filter(|code| is_told && *code != exit::PASS))
        }
        Err(error) if apply => Err(error.into()),
        Err(error) => {
            note(&format!("what is proposed rests on the verdicts alone: {error}"));
            Ok(None)
        }
    }
}

/// The command that goes on with a run.
pub(super) fn again(folder: &Path, args: &Args, globals: &Globals, profile: Profile) -> String {
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
    words::line(&words)
}

/// The scenario that a simulated run measured, as it was then, unless another
/// is asked for.
pub(super) fn scenario_of(stored: &Stored, args: &Args) -> Option<PathBuf> {
    let scenario = stored.path().join(file::SCENARIO);
    (is_sim(&stored.record.launcher) && !args.simulated.is_asked() && scenario.exists())
        .then_some(scenario)
}

pub(super) fn is_sim(launcher: &Launcher) -> bool {
    matches!(launcher, Launcher::Sim { .. })
}

/// The fleet of a run that is gone on with while nobody says how large it is
/// today: what was claimed of the nodes it covers. Budgets are shares of it, so
/// a smaller fleet allows less.
fn fleet_then(stored: &Stored, error: Failure) -> Result<Claims, Failure> {
    match error {
        Failure::Environment(why) => {
            note(&format!("{why}; going on with what was claimed when the run began"));
            Ok(stored.claims.clone())
        }
        error @ (Failure::Usage(_) | Failure::Refused(_)) => Err(error),
    }
}

/// A run that can be gone on with.
pub(super) fn interrupted(path: &Path, profile: Profile, args: &Args) -> Result<Stored, Failure> {
    let stored = stored::open_quietly(path)?;
    let shown = path.display();
    if stored.record.state == State::Complete {
        return Err(Failure::Usage(format!("--resume {shown}: this run is complete")));
    }
    if args.simulated.is_asked() && !is_sim(&stored.record.launcher) {
        let text = "it is a run of real nodes, which --sim cannot go on with";
        return Err(Failure::Usage(format!("--resume {shown}: {text}")));
    }
    if stored.record.info.profile != profile.as_str() {
        let was = &stored.record.info.profile;
        return Err(Failure::Usage(format!(
            "--resume {shown}: it is a run of profile {was}, use `fabricgate {was} --resume`"
        )));
    }
    Ok(stored)
}

pub(super) fn info(config: &Config, claims: &Claims, profile: Profile) -> RunInfo {
    let now = coordinator::now();
    let nodes = claims.domains.iter().flat_map(|d| &d.nodes);
    let folded = hostlist::fold(nodes.map(|n| n.as_str()));
    RunInfo {
        id: run_id(now, super::entropy()),
        created: coordinator::shown(now),
        profile: profile.as_str().to_owned(),
        source: format!("{folded} through launcher {}", config.launcher.as_str()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        simulated: is_simulated(&config.launcher),
    }
}

/// What workers are started with. The folder of simulated tools goes when the
/// second part is dropped.
pub(super) fn program(
    config: &Config,
    even_if_busy: bool,
) -> anyhow::Result<(Program, Option<tempfile::TempDir>)> {
    let here = own::executable()?;
    let links = match &config.launcher {
        Launcher::Sim { .. } => {
            let folder = config::simulated::folder()?;
            for name in sim::tool::NAMES {
                std::os::unix::fs::symlink(&here, folder.path().join(name))?;
            }
            Some(folder)
        }
        _ => None,
    };
    let program = Program {
        here: here.display().to_string(),
        there: config.worker.clone(),
        links: links.as_ref().map(|folder| folder.path().to_owned()),
        path: std::env::var("PATH").unwrap_or_default(),
        even_if_busy,
        held: Held::default(),
        age: None,
    };
    Ok((program, links))
}

/// Tells people when the local launcher measures under another name.
fn check_local(plan: &Plan) {
    let host = stamp::host();
    for node in plan.nodes() {
        if !node.matches_host(&host) {
            note(&format!("this machine ({host}) is measured as node {node}"));
        }
    }
}
