//! `fabricgate audit`: the whole pipeline under the audit profile.

use std::path::PathBuf;

use super::Globals;
use super::config;
use super::expectations;
use super::failure::Failure;
use super::judge;
use super::plan;
use super::plan::Profile;
use super::show;
use super::stdout;
use super::stdout::note;
use crate::coordinator;
use crate::coordinator::Audit;
use crate::coordinator::AuditError;
use crate::coordinator::Progress;
use crate::launch::Launcher;
use crate::model::run::RunInfo;
use crate::record::id::run_id;

/// Measure every claimed node, judge, and propose; change nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Nodes or host lists, such as node[0001-0018]; all claimed ones where none is given.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Where run folders go, instead of the configuration's run_dir.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// The seed of the order of nodes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let config = config::open(globals.config.as_deref())?;
    let chosen = plan::choose(config::claims(&config.claims)?, &args.nodes)?;
    let in_force = expectations::load(&config.thresholds)?;
    if let Some(name) = &config.platform {
        let place = format!("{}: platform", config.path.display());
        expectations::check_platform(&in_force.catalogue, name, &place)?;
    }
    let plan = plan::make(&config, &chosen.claims, &in_force.catalogue, Profile::Audit, args.seed)?;
    if plan.rounds.is_empty() {
        return Err(Failure::usage("nothing can be run: every probe is left out on every node, see `fabricgate plan audit`").into());
    }
    if config.launcher == Launcher::Local {
        check_local(&plan);
    }
    let now = coordinator::now();
    let folded = {
        let nodes = chosen.claims.domains.iter().flat_map(|d| &d.nodes);
        crate::inventory::hostlist::fold(nodes.map(|n| n.as_str()))
    };
    let info = RunInfo {
        id: run_id(now, super::entropy()),
        created: coordinator::shown(now),
        profile: Profile::Audit.as_str().to_owned(),
        source: format!("{folded} through launcher {}", config.launcher.as_str()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let progress = if globals.no_progress { Progress::Silent } else { Progress::Lines };
    let runs = args.run_dir.as_ref().unwrap_or(&config.run_dir);
    let done = coordinator::audit(&Audit {
        info,
        claims: &chosen.claims,
        fleet: &chosen.fleet,
        plan: &plan,
        launcher: &config.launcher,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform: config.platform.as_deref(),
        policy: &config.policy,
        runs,
        progress,
    })
    .map_err(|error| match error {
        // A full or read-only disk is no bug of ours.
        AuditError::Record(error) => {
            Failure::Environment(format!("the run cannot be recorded: {error}")).into()
        }
        other => anyhow::Error::from(other),
    })?;
    for (name, bytes) in show::kept(&done.run)? {
        done.folder.write(name, &bytes).map_err(Failure::environment)?;
    }
    if globals.json {
        stdout::bytes(&show::render(&done.run, show::Format::Json)?)?;
    } else {
        stdout::bytes(&show::render(&done.run, show::Format::Terminal)?)?;
    }
    if done.partial {
        note("interrupted: the run is partial, what was not measured is unknown");
    }
    note(&format!("run folder {}", done.folder.path().display()));
    Ok(judge::code(done.run.verdicts.outcome, done.out_of_reach))
}

/// Tells people when the local launcher measures under another name.
fn check_local(plan: &crate::plan::Plan) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    for node in plan.nodes() {
        if !node.matches_host(host) {
            note(&format!("this machine ({host}) is measured as node {node}"));
        }
    }
}
