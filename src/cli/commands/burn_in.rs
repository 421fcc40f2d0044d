//! `fabricgate burn-in`: repeated complete sweeps with load in between, a comparison of the last
//! with the first, and an acceptance document at the end.
//!
//! Without a number of rounds or hours it is one complete sweep, like every other profile.

pub mod rounds;

use std::path::{Path, PathBuf};

use crate::cli::output::OutputFile;
use crate::cli::plan_scope;
use crate::cli::plan_scope::PlanBasis;
use crate::cli::stdout::{Globals, note};
use crate::cli::sweep;
use crate::cli::sweep_setup::SweepSetup;
use crate::cli::tenancy::TenantExclusions;
use crate::cli::{report_output, stdout, stored_run};
use crate::config::burn_in::{BurnInHours, BurnInRounds, SoakMinutes};
use crate::exit;
use crate::exit::CommandError;
use control::launch::Launcher;
use control::store::run_folder::RunFolder;
use control::store::run_id::new_run_id;
use control::store::{acceptance, file};
use engine::policy::acceptance as accept;
use engine::report;
use model::acceptance::{
    ACCEPTANCE_FORMAT, Acceptance, AcceptanceOutcome, BurnInRequest, BurnInState, StopRule,
};
use model::claims::Claims;
use model::hostlist;
use model::profile::Profile;

use rounds::BurnInSession;

/// Measure everything and every pair, repeatedly, with load in between.
///
/// Without --rounds or --hours, on the command line or in [burn_in], it is one complete sweep. With
/// them it repeats sweeps, loads all nodes at the same time between two sweeps, compares the last
/// sweep with the first, and writes an acceptance document: pass, fail or unknown for every node.
/// The exit code is 0 when everything is accepted, 3 when something fails, 4 when something is
/// unknown, 5 when a node, tool or file could not be reached, 6 when an action was refused.
#[derive(Debug, clap::Args)]
pub struct BurnInArgs {
    #[command(flatten)]
    sweep: sweep::SweepArgs,
    /// Number of complete sweeps, instead of the configuration's [burn_in] rounds.
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    rounds: Option<BurnInRounds>,
    /// Repeat sweeps for this many hours, instead of the configuration's [burn_in] hours. With
    /// --rounds, the burn-in ends at the first of the two.
    #[arg(long, value_name = "H", conflicts_with = "resume")]
    hours: Option<BurnInHours>,
    /// Minutes of load on all nodes between two sweeps, instead of the configuration's [burn_in]
    /// soak_minutes; 0 for no load.
    #[arg(long, value_name = "MIN", conflicts_with = "resume")]
    soak_minutes: Option<SoakMinutes>,
    /// Write the acceptance document as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &BurnInArgs, globals: &Globals) -> anyhow::Result<u8> {
    let files = &args.sweep.files;
    let named = [&files.html, &files.csv, &files.junit, &args.markdown];
    report_output::check_distinct(named.into_iter().flatten().map(PathBuf::as_path))?;
    let begun = args.sweep.resume.as_deref().filter(|path| acceptance::is_burn_in_folder(path));
    let burn = match begun {
        Some(path) => {
            let files = BurnInFiles::open(args)?;
            Some((resume_burn_in(path, args, globals)?, files))
        }
        None if args.sweep.resume.is_some() => None,
        None => begin_burn_in(args, globals)?,
    };
    match burn {
        Some((mut burn, files)) => {
            let ended = burn.run();
            // Release the nodes on success and on failure.
            burn.release_nodes();
            report_outcome(&mut burn, ended, files, args, globals)
        }
        None => {
            if let Some(path) = &args.markdown {
                let text = format!(
                    "--markdown {}: one sweep has no acceptance; add --rounds or --hours",
                    path.display()
                );
                return Err(CommandError::Usage(text).into());
            }
            sweep::run(&args.sweep, globals, Profile::BurnIn)
        }
    }
}

/// Starts a new burn-in; `None` if one sweep is requested.
fn begin_burn_in<'a>(
    args: &'a BurnInArgs,
    globals: &'a Globals,
) -> anyhow::Result<Option<(BurnInSession<'a>, BurnInFiles)>> {
    let mut site = SweepSetup::from_args(&args.sweep, globals, None)?;
    let set = &site.config.burn_in;
    let asked = BurnInRequest {
        rounds: args.rounds.or(set.rounds.filter(|_| args.hours.is_none())).map(|it| it.get()),
        hours: args.hours.or(set.hours.filter(|_| args.rounds.is_none())).map(|it| it.get()),
        budget_hours: set.budget_hours.map(|it| it.get()),
        clean_rounds: set.clean_rounds.map(|it| it.get()),
        soak_minutes: args.soak_minutes.unwrap_or(set.soak_minutes).get(),
        drift: set.drift.get(),
        seed: args.sweep.seed,
    };
    if asked.rounds.is_none() && asked.hours.is_none() {
        if args.soak_minutes.is_some() {
            let text = "--soak-minutes: load runs between sweeps; add --rounds or --hours";
            return Err(CommandError::usage(text).into());
        }
        return Ok(None);
    }
    let files = BurnInFiles::open(args)?;
    crate::cli::allocation::override_when_busy(
        &mut site.config,
        args.sweep.when_busy.map(|it| it.0),
    )?;
    let (config, catalogue) = (&site.config, &site.in_force.catalogue);
    let fleet = config.collect_measurable_claims(catalogue)?;
    let selection = &args.sweep.selection;
    let chosen = if selection.partners.is_some() {
        args.sweep.select_nodes(config, catalogue, fleet)?
    } else {
        // A burn-in loads nodes for hours, so partners need an explicit option.
        plan_scope::select_nodes(fleet, selection)?
    };
    if !args.sweep.even_if_tenants {
        TenantExclusions::query(config, catalogue, &chosen.fleet, &chosen.claims)?.check_empty()?;
    }
    if !chosen.claims.left_out.is_empty() && selection.partners.is_none() {
        note(
            "a burn-in of several rounds adds no partners: if a domain or rails are claimed, a \
             pass needs --partners N or --with-domain",
        );
    }
    let profile = Profile::BurnIn;
    let plan =
        PlanBasis::new(config, &chosen.claims, catalogue, profile, asked.seed)?.make_plan()?;
    sweep::check_runnable(config, &plan, profile)?;
    let now = control::sweep::now();
    let runs = args.sweep.run_dir.as_ref().unwrap_or(&config.run_dir).clone();
    let begun = Acceptance {
        format: ACCEPTANCE_FORMAT.to_owned(),
        id: new_run_id(now, crate::cli::runtime::random_number()),
        created: control::sweep::format_timestamp(now),
        ended: None,
        state: BurnInState::Running,
        real: !config.launcher.is_stand_in(),
        source: describe_source(&chosen.claims, &config.launcher),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        asked,
        accepted: AcceptanceOutcome::Unknown,
        stop: None,
        rounds: Vec::new(),
        soaks: Vec::new(),
        nodes: accept::new_acceptances(&chosen.claims),
        comparison: None,
        since_anew: Vec::new(),
        versions: std::collections::BTreeMap::new(),
        thresholds_digest: None,
        notes: Vec::new(),
        signature: None,
    };
    let folder = acceptance::create_folder(&runs, &begun, &chosen.claims, &config.launcher)
        .map_err(|error| write_failure(&error))?;
    let burn =
        BurnInSession::new(site, args, globals, chosen.fleet, chosen.claims, begun, folder, runs)?;
    Ok(Some((burn, files)))
}

/// Resumes a burn-in that was interrupted or killed.
fn resume_burn_in<'a>(
    path: &Path,
    args: &'a BurnInArgs,
    globals: &'a Globals,
) -> anyhow::Result<BurnInSession<'a>> {
    let path_text = path.display();
    let opened = acceptance::open_folder(path).map_err(stored_run::record_error)?;
    if opened.acceptance.state == BurnInState::Complete {
        return Err(
            CommandError::Usage(format!("--resume {path_text}: this burn-in is complete")).into()
        );
    }
    let is_simulated = sweep::is_sim(&opened.resume_state.launcher);
    if args.sweep.simulated.is_requested() && !is_simulated {
        let text = "it is a burn-in of real nodes, which --sim cannot continue";
        return Err(CommandError::Usage(format!("--resume {path_text}: {text}")).into());
    }
    let scenario = path.join(file::SCENARIO);
    let mut site = match is_simulated && !args.sweep.simulated.is_requested() && scenario.exists() {
        true => SweepSetup::from_scenario(&args.sweep, globals, scenario)?,
        false => SweepSetup::from_args(&args.sweep, globals, None)?,
    };
    if !(is_simulated && sweep::is_sim(&site.config.launcher)) {
        site.config.launcher = opened.resume_state.launcher.clone();
    }
    crate::cli::allocation::override_when_busy(
        &mut site.config,
        args.sweep.when_busy.map(|it| it.0),
    )?;
    let fleet = site.config.collect_measurable_claims(&site.in_force.catalogue).or_else(
        |error| match error {
            CommandError::Environment(why) => {
                note(&format!("{why}; continuing with the claims from the start of the burn-in"));
                Ok(opened.claims.clone())
            }
            error @ (CommandError::Usage(_) | CommandError::Refused(_)) => Err(error),
        },
    )?;
    site.config.check_stand_in()?;
    if !args.sweep.even_if_tenants {
        let catalogue = &site.in_force.catalogue;
        TenantExclusions::query(&site.config, catalogue, &fleet, &opened.claims)?.check_empty()?;
    }
    let mut begun = opened.acceptance;
    begun.state = BurnInState::Running;
    begun.stop = None;
    begun.ended = None;
    let runs = opened.resume_state.run_dir;
    BurnInSession::new(site, args, globals, fleet, opened.claims, begun, opened.folder, runs)
}

/// Prints the result, and carries out its actions if requested.
fn report_outcome(
    burn: &mut BurnInSession<'_>,
    ended: anyhow::Result<()>,
    files: BurnInFiles,
    args: &BurnInArgs,
    globals: &Globals,
) -> anyhow::Result<u8> {
    let folder = burn.folder.path().to_owned();
    let resume = sweep::resume_command(&folder, &args.sweep, globals, Profile::BurnIn);
    if let Err(error) = ended {
        note(&format!(
            "the burn-in ended after {} rounds; continue with `{resume}`",
            burn.completed_rounds()
        ));
        return Err(error);
    }
    // The result of days of measuring is printed even if the scheduler is down.
    let gate_code = if args.sweep.apply && burn.acceptance.state == BurnInState::Complete {
        burn.apply()
    } else {
        Ok(None)
    };
    let acceptance = &burn.acceptance;
    if globals.json {
        stdout::write_json(acceptance)?;
    } else {
        stdout::write_text(&report::acceptance::render_terminal(
            acceptance,
            &report_output::terminal_style(),
        ))?;
    }
    let written = files.write(acceptance, burn)?;
    if acceptance.stop.as_ref().is_some_and(|stop| stop.rule == StopRule::Interrupted) {
        note("interrupted: the results of the completed rounds are kept");
        note(&format!("continue with `{resume}`"));
    }
    note(&format!("burn-in folder {}", folder.display()));
    let code = match acceptance.accepted {
        AcceptanceOutcome::Fail => exit::GATE_CLOSED,
        _ if !written => exit::ENVIRONMENT,
        AcceptanceOutcome::Unknown if burn.out_of_reach => exit::ENVIRONMENT,
        AcceptanceOutcome::Unknown => exit::INCONCLUSIVE,
        AcceptanceOutcome::Pass => exit::PASS,
    };
    Ok(gate_code?.unwrap_or(code))
}

/// The requested output files, opened.
struct BurnInFiles {
    opened: report_output::ReportFiles,
    markdown: Option<OutputFile>,
}

impl BurnInFiles {
    /// Opens the files before the measurement: a burn-in of days must not end with "cannot write".
    fn open(args: &BurnInArgs) -> Result<Self, CommandError> {
        let opened = args.sweep.files.open()?;
        Ok(Self { opened, markdown: OutputFile::open_optional(args.markdown.as_ref())? })
    }

    /// Writes the files; false if one could not be written.
    fn write(self, acceptance: &Acceptance, burn: &BurnInSession<'_>) -> anyhow::Result<bool> {
        let Self { opened: report_output::ReportFiles { html, csv, junit }, markdown } = self;
        let mut written = true;
        let mut put = |output: Option<OutputFile>, bytes: Vec<u8>| {
            written &= output.is_none_or(|output| report_output::write_output(output, &bytes));
        };
        put(html, report::acceptance::render_page(acceptance)?.into_bytes());
        put(junit, report::acceptance::render_junit(acceptance).into_bytes());
        put(markdown, report::acceptance::render_markdown(acceptance).into_bytes());
        match (csv, burn.last.as_ref()) {
            (csv @ Some(_), Some(run)) => {
                put(csv, report_output::render(run, report_output::ReportFormat::Csv)?);
            }
            (Some(_), None) => {
                note("no cells are written: this process completed no round");
                written = false;
            }
            (None, _) => {}
        }
        Ok(written)
    }
}

fn describe_source(claims: &Claims, launcher: &Launcher) -> String {
    let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes);
    let folded = hostlist::fold(nodes.map(|node| node.as_str()));
    format!("{folded} through launcher {}", launcher.as_str())
}

/// A full or read-only disk is a failure of the environment.
fn write_failure(error: &dyn std::fmt::Display) -> CommandError {
    CommandError::Environment(format!("the burn-in cannot be recorded: {error}"))
}

/// Writes the document into its folder as JSON, text and page.
fn write_acceptance(folder: &RunFolder, acceptance: &Acceptance) -> anyhow::Result<()> {
    let wrong = |error: control::store::RecordError| write_failure(&error);
    folder.write_json(acceptance::DOCUMENT_FILE, acceptance).map_err(wrong)?;
    let text = report::acceptance::render_markdown(acceptance);
    folder.write(acceptance::TEXT_FILE, text.as_bytes()).map_err(wrong)?;
    let page = report::acceptance::render_page(acceptance)?;
    folder.write(acceptance::PAGE_FILE, page.as_bytes()).map_err(wrong)?;
    Ok(())
}
