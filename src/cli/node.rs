//! `fabricgate node`: what runs on the nodes. Coordinators start these; people
//! need them to look at one node by hand.

use std::io::BufReader;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::entropy;
use super::exit;
use super::failure::Failure;
use super::node_attach;
use super::node_attach::AttachArgs;
use super::node_attach::WaitArgs;
use super::node_facts;
use super::node_facts::DriverArgs;
use super::node_facts::FactsArgs;
use super::sim;
use crate::exec::guard;
use crate::probe::tcp;
use crate::probe::worker;
use crate::probe::worker::Ended;
use crate::probe::worker::Setup;

/// What runs on the nodes: their account of themselves, workers, native probes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
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
}

/// Run probes for a coordinator that speaks on stdin and listens on stdout.
///
/// One JSON document a line, beginning with a hello from either side. Ends with
/// its input and leaves nothing running. Started by `fabricgate audit` through
/// its launcher; nobody has to start it by hand.
#[derive(Debug, clap::Args)]
struct WorkerArgs {
    /// Run probes on GPUs that a process or a job uses.
    #[arg(long)]
    even_if_busy: bool,
}

/// Measure with what is built in, without any tool.
#[derive(Debug, clap::Args)]
struct ProbeArgs {
    #[command(subcommand)]
    probe: Probe,
}

#[derive(Debug, clap::Subcommand)]
enum Probe {
    Tcp(TcpArgs),
}

/// Measure throughput both ways and latency between two nodes over TCP.
///
/// One node serves and prints `listening PORT`, the other connects and prints
/// one JSON document (fabricgate.tcp/1). Addresses and devices tell rails
/// apart; `-` stands for none. Ends with 5 when nothing could be begun and with
/// 4 when not everything could be measured.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("side").required(true).args(["serve", "connect"]))]
struct TcpArgs {
    /// Wait for one client at any free port and serve it.
    #[arg(long)]
    serve: bool,
    /// Measure against the node that serves here.
    #[arg(long, value_name = "ADDRESS:PORT")]
    connect: Option<String>,
    /// The address of this node to use.
    #[arg(long, value_name = "ADDRESS", default_value = "-")]
    bind: String,
    /// The network device of this node to use.
    #[arg(long, value_name = "DEVICE", default_value = "-")]
    device: String,
    /// What this node is called.
    #[arg(long, value_name = "NAME", default_value = "-")]
    node: String,
    /// What the other node is called; another answer is reported.
    #[arg(long, value_name = "NAME", default_value = "-")]
    peer: String,
    /// What the rail is called.
    #[arg(long, value_name = "NAME", default_value = "-")]
    rail: String,
    /// Connections that carry data at the same time.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(tcp::MOST_STREAMS)))]
    streams: u32,
    /// Seconds that each rate is taken over.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = some_seconds)]
    seconds: f64,
    /// Seconds of data before that.
    #[arg(long, value_name = "S", default_value_t = 0.2, value_parser = seconds)]
    warmup: f64,
    /// How often to measure.
    #[arg(long, value_name = "K", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(tcp::MOST_READINGS)))]
    readings: u32,
    /// Leave latency out.
    #[arg(long)]
    no_latency: bool,
    /// Seconds to wait for a client with --serve.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = some_seconds)]
    wait: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=tcp::MOST_SECONDS).contains(&value) => Ok(value),
        _ => Err(format!("expected seconds from 0 to {}", tcp::MOST_SECONDS)),
    }
}

fn some_seconds(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        0.0 => Err("expected more than no time".to_owned()),
        value => Ok(value),
    }
}

/// A word, where it is not `-` for none.
fn given(word: &str) -> Option<String> {
    (!matches!(word, "" | "-")).then(|| word.to_owned())
}

/// Become a tool that dies with its parent, or wait for the end of a worker.
#[derive(Debug, clap::Args)]
struct GuardArgs {
    /// Read process groups on stdin and kill what is left of them at its end.
    #[arg(long, conflicts_with_all = ["parent", "argv"])]
    groups: bool,
    /// Who must be the parent.
    #[arg(long, value_name = "PID", required_unless_present = "groups")]
    parent: Option<u32>,
    /// The tool and its arguments.
    #[arg(last = true, value_name = "ARGV")]
    argv: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args, json: bool) -> anyhow::Result<u8> {
    match &args.command {
        Command::Facts(args) => node_facts::run(args, json),
        Command::DriverFacts(args) => node_facts::ask_driver(args),
        Command::Worker(args) => work(args),
        Command::Probe(ProbeArgs { probe: Probe::Tcp(args) }) => probe_tcp(args),
        Command::Guard(args) => Ok(watch_over(args)),
        Command::Attach(args) => node_attach::attach(args),
        Command::Wait(args) => node_attach::wait(args),
    }
}

fn probe_tcp(args: &TcpArgs) -> anyhow::Result<u8> {
    if let Some(answer) = simulated(args) {
        return answer;
    }
    let address = match given(&args.bind) {
        None => None,
        Some(text) => Some(text.parse::<IpAddr>().map_err(|_| {
            Failure::usage(format!("--bind {text}: expected an IP address or `-`"))
        })?),
    };
    let local = tcp::Local {
        node: given(&args.node).unwrap_or_default(),
        address,
        device: given(&args.device),
    };
    if args.serve {
        let announce = |port| {
            let mut out = std::io::stdout().lock();
            writeln!(out, "listening {port}").and_then(|()| out.flush())
        };
        return match tcp::serve(&local, Duration::from_secs_f64(args.wait), announce) {
            Ok(()) => Ok(exit::PASS),
            Err(error) => Ok(unmeasured(&error)),
        };
    }
    let task = tcp::Task {
        peer: given(&args.peer).unwrap_or_default(),
        rail: given(&args.rail),
        streams: args.streams,
        seconds: Duration::from_secs_f64(args.seconds),
        warmup: Duration::from_secs_f64(args.warmup),
        readings: args.readings,
        latency: !args.no_latency,
        session: entropy(),
    };
    let peer = args.connect.as_deref().unwrap_or_default();
    match tcp::resolve(peer).and_then(|peer| tcp::measure(&local, peer, &task)) {
        Ok(document) => {
            super::stdout::json(&document)?;
            for problem in &document.problems {
                super::stdout::note(problem);
            }
            Ok(if document.complete { exit::PASS } else { exit::INCONCLUSIVE })
        }
        Err(error) => Ok(unmeasured(&error)),
    }
}

/// Says why nothing was measured.
fn unmeasured(error: &tcp::TcpError) -> u8 {
    super::stdout::note(&error.told());
    if error.had_begun() { exit::INCONCLUSIVE } else { exit::ENVIRONMENT }
}

/// The simulated fabric's answer, where one is simulated.
fn simulated(args: &TcpArgs) -> Option<anyhow::Result<u8>> {
    let (peer, rail) = (given(&args.peer), given(&args.rail));
    sim::tcp_probe(&sim::TcpQuestion {
        connect: args.connect.as_deref(),
        peer: peer.as_deref(),
        rail: rail.as_deref(),
        readings: args.readings,
        seconds: args.seconds,
    })
}

fn work(args: &WorkerArgs) -> anyhow::Result<u8> {
    if let Some(code) = sim::refused_worker() {
        return Ok(code);
    }
    let setup = Setup {
        executable: std::env::current_exe()?,
        even_if_busy: args.even_if_busy,
        proc: PathBuf::from("/proc"),
        is_machine: !sim::is_simulated(),
    };
    // What the worker starts dies with this thread, so it must be the main one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(worker::work(std::io::stdin(), std::io::stdout(), setup));
    // The writer may wait for somebody who never reads.
    runtime.shutdown_background();
    match ended {
        Ended::Dismissed => Ok(exit::PASS),
        Ended::Fault(why) => Err(anyhow::anyhow!("worker: {why}")),
    }
}

fn watch_over(args: &GuardArgs) -> u8 {
    if args.groups {
        guard::watch(BufReader::new(std::io::stdin()));
        return exit::PASS;
    }
    let (code, why) = guard::become_tool(args.parent.unwrap_or(0), &args.argv);
    anstream::eprintln!("fabricgate: {why}");
    code
}
