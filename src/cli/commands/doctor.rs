//! `fabricgate doctor`: checks which probes this machine, or these nodes, can run, and prints
//! remedies.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::allocation::{AllocationPurpose, NodeAllocation};
use crate::cli::stdout;
use crate::cli::stdout::Globals;
use crate::config::Config;
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::clock;
use control::launch::Launcher;
use control::sources::nodes;
use control::sources::nodes::NodeCommandRunner;
use control::store::run_id::new_run_id;
use control::sweep;
use engine::plan;
use engine::report::plain_text::to_plain;
use model::checkup::{
    CHECKUP_FORMAT, Checkup, CheckupArea, CheckupDocument, CheckupItem, CheckupState,
};
use model::claims::{ClaimedDomain, Claims};
use model::hostlist;
use model::id::NodeName;
use model::source_report::SourceProblemKind;
use node::doctor;
use node::doctor::{CheckupContext, LibraryPaths};
use node::exec::executable;
use readers::probe_catalog::ProbeCatalog;

/// Time limit for the check-up of a node, in addition to the connect time: three queries of at most
/// 15 s, and the end of a process that hangs.
const CHECKUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Lifetime of the check-up's pods, in addition to its time limit.
const EXTRA_MINUTES: u64 = 30;

/// Check which probes this machine can run, and print the remedy for what is missing.
///
/// Checks driver, devices, programs, IMEX, RDMA, limits and schedulers; measures and changes
/// nothing. The exit code is 5 when something is missing that the default profiles need, and 4 when
/// a node cannot be checked.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Nodes or host lists to check through the configuration's launcher; by default this machine.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Show missing and unknown items that no default profile needs, too.
    #[arg(long, short)]
    all: bool,
}

/// Runs the command.
pub fn run(args: &DoctorArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = match globals.config.as_deref() {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    let (machines, unreached) = if args.nodes.is_empty() {
        let catalog = config.map_or_else(ProbeCatalog::built_in, |config| config.catalog);
        (vec![check_this_machine(&catalog)?], false)
    } else {
        check_nodes(config.as_ref(), &args.nodes)?
    };
    let checks = || machines.iter().flat_map(|machine| &machine.checks);
    let lacks = checks().any(is_lacking);
    let unknown = checks().any(|check| check.needed && check.state == CheckupState::Unknown);
    if globals.json {
        stdout::write_json(&CheckupDocument { format: CHECKUP_FORMAT.to_owned(), machines })?;
    } else {
        stdout::write_text(&render_checkups(&machines, args.all))?;
    }
    Ok(match (lacks || unreached, unknown) {
        (true, _) => exit::ENVIRONMENT,
        (_, true) => exit::INCONCLUSIVE,
        _ => exit::PASS,
    })
}

fn check_this_machine(catalog: &ProbeCatalog) -> Result<Checkup, CommandError> {
    let libraries = LibraryPaths {
        executable: executable::current_executable().map_err(|error| {
            CommandError::Environment(format!("the path of this program: {error}"))
        })?,
        cuda: library_from_env("FABRICGATE_CUDA"),
        nvml: library_from_env("FABRICGATE_NVML"),
        nccl: library_from_env("FABRICGATE_NCCL"),
    };
    let context = CheckupContext {
        machine: clock::host_name(),
        root: PathBuf::from("/"),
        path: std::env::var("PATH").unwrap_or_default(),
        probes: catalog.probes.values().collect(),
        default_probes: plan::AUDIT_PROBES.to_vec(),
        libraries: Some(libraries),
    };
    Ok(crate::cli::runtime::build_runtime()?.block_on(doctor::run_checkup(&context)))
}

/// The library that this variable names, as for the native probes.
fn library_from_env(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Checks nodes with the fabricgate installed on each. A node that cannot be checked has unknown
/// items; the flag reports whether there is one.
fn check_nodes(
    config: Option<&Config>,
    lists: &[String],
) -> Result<(Vec<Checkup>, bool), CommandError> {
    let Some(config) = config else {
        let text = "checking nodes needs a configuration with a [launcher]";
        return Err(CommandError::Usage(text.to_owned()));
    };
    if config.launcher.is_stand_in() {
        let kind = config.launcher.as_str();
        return Err(CommandError::Usage(format!(
            "nodes of launcher {kind:?} have no hardware to check"
        )));
    }
    let mut names = Vec::new();
    for list in lists {
        let expanded = hostlist::expand(list)
            .map_err(|error| CommandError::Usage(format!("NODE {list:?}: {error}")))?;
        names.extend(expanded.into_iter().map(NodeName::from));
    }
    names.sort();
    names.dedup();
    let reached =
        |error| CommandError::Usage(format!("{}: [launcher]: {error}", config.path.display()));
    config.launcher.check(names.len()).map_err(reached)?;
    let hold = allocate_pods(config, &names)?;
    let executable = executable::current_executable()
        .map_err(|error| CommandError::Environment(format!("the path of this program: {error}")))?;
    let executable = executable.display().to_string();
    let nodes = NodeCommandRunner {
        launcher: &config.launcher,
        worker: &config.worker,
        parallel: config.parallel,
        limit: config.connect + CHECKUP_TIMEOUT,
        allocation: hold.as_ref().map(|hold| (hold.launch_allocation(), executable.as_str())),
    };
    let results = crate::cli::runtime::build_runtime()?.block_on(nodes::run_on_each(
        &nodes,
        &names,
        &["doctor", "--json"],
        parse_checks,
    ));
    let unreached = results.iter().any(Result::is_err);
    let machine =
        |(name, answer): (&NodeName, Result<Vec<CheckupItem>, nodes::NodeCommandProblem>)| {
            let checks = answer.unwrap_or_else(|(_, why)| {
                vec![
                    CheckupItem::unknown(CheckupArea::Machine, "fabricgate there", why)
                        .mark_needed(),
                ]
            });
            Checkup { machine: name.to_string(), checks }
        };
    Ok((names.iter().zip(results).map(machine).collect(), unreached))
}

/// Pods on these nodes, if the launcher is Kubernetes: one domain without claims.
fn allocate_pods(
    config: &Config,
    names: &[NodeName],
) -> Result<Option<NodeAllocation>, CommandError> {
    if !matches!(config.launcher, Launcher::Kubernetes(_)) {
        return Ok(None);
    }
    let domain = ClaimedDomain {
        name: "doctor".into(),
        nodes: names.to_vec(),
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    let minutes = (config.connect + CHECKUP_TIMEOUT).as_secs().div_ceil(60) + EXTRA_MINUTES;
    NodeAllocation::allocate(
        config,
        &AllocationPurpose {
            run: &new_run_id(sweep::now(), crate::cli::runtime::random_number()),
            claims: &Claims { domains: vec![domain], ..Claims::default() },
            nodes: &names.iter().cloned().collect(),
            drained: true,
            minutes,
            worker: &config.worker,
        },
    )
}

/// Parses the output of a node's `fabricgate doctor`.
fn parse_checks(bytes: &[u8]) -> Result<Vec<CheckupItem>, nodes::NodeCommandProblem> {
    let document: CheckupDocument = serde_json::from_slice(bytes).map_err(|error| {
        (SourceProblemKind::Malformed, format!("its output cannot be parsed ({error})"))
    })?;
    if document.format != CHECKUP_FORMAT {
        let why =
            format!("its output has format {:?}, expected {CHECKUP_FORMAT:?}", document.format);
        return Err((SourceProblemKind::Unsupported, why));
    }
    Ok(document.machines.into_iter().flat_map(|machine| machine.checks).collect())
}

fn is_lacking(check: &CheckupItem) -> bool {
    check.needed && check.state == CheckupState::Lacks
}

fn render_checkups(machines: &[Checkup], all: bool) -> String {
    let mut text = String::new();
    for machine in machines {
        let lacking = machine.checks.iter().filter(|check| is_lacking(check)).count();
        let unknown =
            machine.checks.iter().any(|check| check.needed && check.state == CheckupState::Unknown);
        let verdict = match lacking {
            0 if unknown => "cannot be checked".to_owned(),
            0 => "has what the default probes need".to_owned(),
            1 => "lacks one thing that the default probes need".to_owned(),
            n => format!("lacks {n} things that the default probes need"),
        };
        let _ = writeln!(text, "{}: {verdict}", to_plain(&machine.machine));
        let mut left_out = 0;
        for check in &machine.checks {
            if !all
                && !check.needed
                && matches!(check.state, CheckupState::Lacks | CheckupState::Unknown)
            {
                left_out += 1;
                continue;
            }
            write_check(&mut text, check);
        }
        if 0 < left_out {
            let _ = writeln!(text, "  {left_out} more that only some probes need, see --all");
        }
    }
    text
}

fn write_check(text: &mut String, check: &CheckupItem) {
    let (area, state) = (check.area.label(), check.state.as_str());
    let _ = writeln!(
        text,
        "  {state:<8} {area:<10} {}: {}",
        to_plain(&check.what),
        to_plain(&check.detail)
    );
    if check.state == CheckupState::Has {
        return;
    }
    if !check.probes.is_empty() {
        let _ = writeln!(text, "  {:20}needed by {}", "", to_plain(&check.probes.join(", ")));
    }
    if let Some(remedy) = &check.remedy {
        let _ = writeln!(text, "  {:20}{}", "", to_plain(remedy));
    }
}
