//! `fabricgate node`: the commands that run on nodes. Coordinators start them; operators use them
//! to check one node by hand.

pub mod attach;
pub mod facts;
pub mod probe;
pub mod token;

use std::io::BufReader;
use std::path::PathBuf;

use crate::cli::commands::node::attach::{AttachArgs, WaitArgs};
use crate::cli::commands::node::facts::{DriverArgs, FactsArgs};
use crate::cli::commands::node::probe::children::ChildArgs;
use crate::cli::commands::node::probe::children::LibraryArgs;
use crate::cli::commands::node::probe::{ProbeArgs, children};
use crate::cli::simulated_node;
use crate::cli::stdout::{Globals, note};
use crate::exit;
use node::exec::{executable, guard};
use node::worker;
use node::worker::{WorkerEnd, WorkerSetup};

/// The commands that run on nodes: facts, workers, native probes.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    Facts(FactsArgs),
    #[command(hide = true)]
    DriverFacts(DriverArgs),
    Worker(WorkerArgs),
    Probe(ProbeArgs),
    #[command(hide = true)]
    Guard(GuardArgs),
    #[command(hide = true)]
    Attach(AttachArgs),
    #[command(hide = true)]
    Wait(WaitArgs),
    #[command(hide = true)]
    Token(token::TokenArgs),
    #[command(hide = true)]
    CopyChild(ChildArgs),
    #[command(hide = true)]
    FabricChild(ChildArgs),
    #[command(hide = true)]
    CollectiveChild(ChildArgs),
    #[command(hide = true)]
    GpuList(children::ListArgs),
    #[command(hide = true)]
    GpuAround(children::TelemetryArgs),
    #[command(hide = true)]
    GpuLibrary(LibraryArgs),
}

/// Run probes for a coordinator that sends requests on stdin and reads stdout.
///
/// Exchanges one JSON document per line; each side begins with a hello. Exits at the end of its
/// input and leaves no process running. `fabricgate audit` starts it through its launcher; there is
/// no need to start it by hand.
#[derive(Debug, clap::Args)]
struct WorkerArgs {
    /// Run probes on GPUs that a process or a job uses.
    #[arg(long)]
    even_if_busy: bool,
}

/// Exec a tool that dies with its parent, or clean up after a worker.
#[derive(Debug, clap::Args)]
struct GuardArgs {
    /// Read process groups on stdin and kill the remaining processes at the end of input.
    #[arg(long, conflicts_with_all = ["parent", "argv"])]
    groups: bool,
    /// The process id of the expected parent.
    #[arg(long, value_name = "PID", required_unless_present = "groups")]
    parent: Option<u32>,
    /// The tool and its arguments.
    #[arg(last = true, value_name = "ARGV")]
    argv: Vec<String>,
}

/// Runs the command.
pub fn run(args: &NodeArgs, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        NodeCommand::Facts(args) => facts::run(args, globals.json),
        NodeCommand::DriverFacts(args) => facts::ask_driver(args),
        NodeCommand::Worker(args) => run_worker(args),
        NodeCommand::Probe(args) => probe::run(args, globals),
        NodeCommand::Guard(args) => Ok(guard_process(args)),
        NodeCommand::Attach(args) => attach::attach(args),
        NodeCommand::Wait(args) => attach::wait(args),
        NodeCommand::Token(args) => token::run(args),
        NodeCommand::CopyChild(args) => children::run_copy(args),
        NodeCommand::FabricChild(args) => children::run_fabric(args),
        NodeCommand::CollectiveChild(args) => children::run_collective_rank(args),
        NodeCommand::GpuList(args) => children::list_gpus(args),
        NodeCommand::GpuAround(args) => children::watch_gpus(args),
        NodeCommand::GpuLibrary(args) => children::run_library_check(args),
    }
}

fn run_worker(args: &WorkerArgs) -> anyhow::Result<u8> {
    if let Some(code) = simulated_node::refused_worker_code() {
        return Ok(code);
    }
    let setup = WorkerSetup {
        executable: executable::current_executable()?,
        even_if_busy: args.even_if_busy,
        proc: PathBuf::from("/proc"),
        is_machine: !simulated_node::is_simulated(),
    };
    // The worker's children die with this thread, so it must be the main one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(worker::run_worker(std::io::stdin(), std::io::stdout(), setup));
    // The writer may block on a peer that never reads.
    runtime.shutdown_background();
    match ended {
        WorkerEnd::Dismissed => Ok(exit::PASS),
        WorkerEnd::Fault(why) => Err(anyhow::anyhow!("worker: {why}")),
    }
}

fn guard_process(args: &GuardArgs) -> u8 {
    if args.groups {
        guard::guard_groups(BufReader::new(std::io::stdin()));
        return exit::PASS;
    }
    let (code, why) = guard::exec_guarded(args.parent.unwrap_or(0), &args.argv);
    note(&why);
    code
}
