//! This process as a simulated node: as a tool there, as its worker, as a native probe.
//!
//! The crate `sim` computes the output; this module prints, serves and connects.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::stdout::note;
use crate::exit;
use control::launch::SIM_AGE_VARIABLE;
use control::sources::input_file;
use model::collective::CollectiveDocument;
use model::copy::CopyDocument;
use model::hostlist;
use model::worker_protocol::STEP_VARIABLE;
use node::probes::task;
use sim::fabric::SimFabric;
use sim::fault::BurnInAge;
use sim::invocation::ToolInvocation;
use sim::native_probes::NativeProbeSite;
use sim::noise::NoiseKey;
use sim::render::SimToolOutput;
use sim::scenario::Scenario;
use sim::tool_dispatch::SimToolReply;
use sim::{misbehaviour, native_probes, tcp, tool_dispatch};

/// Environment variable: the scenario in which this process plays a part.
pub(crate) const SCENARIO: &str = "FABRICGATE_SIM";
/// Environment variable: the node that this process plays.
pub(crate) const NODE: &str = "FABRICGATE_SIM_NODE";
/// Environment variable: seed of the noise, instead of the scenario's.
const SEED: &str = "FABRICGATE_SIM_SEED";
/// Environment variable: which reading, from 0.
const READING: &str = "FABRICGATE_SIM_READING";

/// Print what one tool prints on one node of a scenario.
#[derive(Debug, clap::Args)]
pub(crate) struct SimToolArgs {
    /// The tool: nvbandwidth, all_reduce_perf, nvidia-smi, ...
    #[arg(value_name = "NAME")]
    name: String,
    /// The scenario, a TOML file.
    #[arg(long, env = SCENARIO, value_name = "FILE")]
    scenario: PathBuf,
    /// The node it runs on, or the claimed domain it runs across.
    #[arg(long, env = NODE, value_name = "NODE")]
    node: String,
    /// Which reading, from 0: each reading has different noise.
    #[arg(long, env = READING, default_value_t = 0)]
    reading: u32,
    /// Seed of the noise, instead of the scenario's.
    #[arg(long, env = SEED)]
    seed: Option<u64>,
    /// Arguments of the tool.
    #[arg(last = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The scenario in this file; on failure prints a message and returns the exit code.
pub(crate) fn load_scenario(path: &Path) -> Result<Scenario, u8> {
    let bytes = input_file::read(path).map_err(|error| {
        note(&error.to_string());
        exit::ENVIRONMENT
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let scenario = Scenario::parse(&text).map_err(|error| {
        note(&format!("{}: {error}", path.display()));
        exit::USAGE
    })?;
    let age = std::env::var(SIM_AGE_VARIABLE).ok().and_then(|word| BurnInAge::parse(&word));
    Ok(scenario.at_age(age.unwrap_or_default()))
}

pub(crate) fn print_usage_error(message: &str) -> anyhow::Result<u8> {
    note(message);
    Ok(exit::USAGE)
}

/// Runs as the simulated tool under whose name the program was started, if a scenario is set;
/// `None` otherwise, and then the process is fabricgate.
pub(crate) fn answer_by_name() -> Option<anyhow::Result<u8>> {
    let mut words = std::env::args_os();
    let program = PathBuf::from(words.next()?);
    let name = tool_dispatch::NAMES
        .iter()
        .find(|name| program.file_name().is_some_and(|f| f == **name))?;
    let scenario = std::env::var_os(SCENARIO)?;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let program_args: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let (name, words) = match parse_rank_command(name, &program_args) {
        None => ((*name).to_owned(), program_args),
        // Rank 0 prints the results of all ranks; the others print nothing.
        Some(None) => return Some(Ok(exit::PASS)),
        Some(Some(launched)) => ("mpirun".to_owned(), launched),
    };
    let args = SimToolArgs {
        name,
        scenario: PathBuf::from(scenario),
        node: std::env::var(NODE).unwrap_or_default(),
        reading: number(READING).and_then(|reading| u32::try_from(reading).ok()).unwrap_or(0),
        seed: number(SEED),
        args: words,
    };
    Some(answer_tool(&args))
}

/// For one of several ranks that srun started: the equivalent mpirun call for rank 0, and
/// `Some(None)` for the others. `None` if this process is not such a rank.
fn parse_rank_command(name: &str, words: &[String]) -> Option<Option<Vec<String>>> {
    let variable = |name: &str| std::env::var(name).ok();
    let ranks: u32 = variable("SLURM_STEP_NUM_TASKS")?.parse().ok().filter(|ranks| 1 < *ranks)?;
    if variable("SLURM_PROCID")? != "0" {
        return Some(None);
    }
    let nodes = hostlist::expand(&variable("SLURM_STEP_NODELIST")?).ok()?;
    let each = ranks.div_ceil(u32::try_from(nodes.len()).ok()?);
    let hosts: Vec<String> = nodes.iter().map(|node| format!("{node}:{each}")).collect();
    let mut argv = vec!["-np".to_owned(), ranks.to_string(), "--host".to_owned(), hosts.join(",")];
    let nccl_variables = std::env::vars().filter(|(name, _)| name.starts_with("NCCL_"));
    argv.extend(
        nccl_variables.flat_map(|(name, value)| ["-x".to_owned(), format!("{name}={value}")]),
    );
    argv.push(name.to_owned());
    argv.extend_from_slice(words);
    Some(Some(argv))
}

/// Whether this process plays a simulated node.
pub(crate) fn is_simulated() -> bool {
    std::env::var_os(SCENARIO).is_some()
}

/// The scenario and the node that this process plays, if it plays one.
fn read_role() -> Option<Result<(Scenario, String), u8>> {
    let path = PathBuf::from(std::env::var_os(SCENARIO)?);
    let node = std::env::var(NODE).unwrap_or_default();
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    Some(load_scenario(&path).map(|scenario| {
        let seed = seed.unwrap_or(scenario.seed);
        (Scenario { seed, ..scenario }, node)
    }))
}

/// The exit code of a worker that must not start because its simulated node is unreachable; stderr
/// gets the message that ssh or srun would print.
pub(crate) fn refused_worker_code() -> Option<u8> {
    match read_role()? {
        Err(code) => Some(code),
        Ok((scenario, node)) => {
            let why = misbehaviour::refuse_worker(&scenario, &node)?;
            anstream::eprintln!("{why}");
            Some(misbehaviour::REFUSED)
        }
    }
}

/// The arguments of the native TCP probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimTcpRequest<'a> {
    /// `PEER:PORT`; `None` on the server's side.
    pub connect: Option<&'a str>,
    /// The other node's name, if it differs from the host in `connect`.
    pub peer: Option<&'a str>,
    /// The rail's name.
    pub rail: Option<&'a str>,
    /// Readings to take.
    pub readings: u32,
    /// Seconds of each.
    pub seconds: f64,
}

/// Runs the native TCP probe on a simulated node; `None` without a simulated node.
pub(crate) fn answer_tcp_probe(request: &SimTcpRequest<'_>) -> Option<anyhow::Result<u8>> {
    Some(match read_role()? {
        Err(code) => Ok(code),
        Ok((scenario, node)) => {
            let misbehaving =
                tool_dispatch::node_misbehaviour(&scenario, &[&node], tool_dispatch::TCP_PROBE);
            match (misbehaving, request.connect) {
                (Some(reply), _) => perform_reply(reply),
                (None, None) => serve_tcp(),
                (None, Some(server)) => measure_tcp(&scenario, &node, server, request),
            }
        }
    })
}

/// The result of a native GPU probe on a simulated node.
#[derive(Debug)]
pub(crate) enum SimProbeAnswer<D> {
    /// The probe returned this document.
    Document(D),
    /// The probe ended without a document, with this exit code.
    Ended(u8),
}

/// Runs the native copy probe on a simulated node, alone or with `nodes`; `None` without a
/// simulated node.
pub(crate) fn answer_copy_probe(
    task: &task::CopyTask,
    nodes: &[String],
) -> Option<anyhow::Result<SimProbeAnswer<CopyDocument>>> {
    let request = native_probes::copy::SimCopyRequest {
        tests: &task.tests,
        readings: task.readings,
        buffer_bytes: task.buffer_bytes,
        copies: task.copies,
        warmup: task.warmup,
        lane: task.across == Some(task::CrossNodePairs::Lane),
    };
    let play = |place: &NativeProbeSite<'_>| native_probes::copy::build_document(place, &request);
    answer_probe(tool_dispatch::COPY_PROBE, nodes, &task.gpus, &BTreeMap::new(), &play)
}

/// Runs the native NCCL probe on a simulated node, alone or with `nodes`. `environment` holds NCCL
/// variables set in addition to the process's own. `None` without a simulated node.
pub(crate) fn answer_collective_probe(
    request: &native_probes::collective::SimCollectiveRequest<'_>,
    gpus: &[u32],
    nodes: &[String],
    environment: &BTreeMap<String, String>,
) -> Option<anyhow::Result<SimProbeAnswer<CollectiveDocument>>> {
    let play =
        |place: &NativeProbeSite<'_>| native_probes::collective::build_document(place, request);
    answer_probe(tool_dispatch::COLLECTIVE_PROBE, nodes, gpus, environment, &play)
}

fn answer_probe<D>(
    probe: &str,
    nodes: &[String],
    gpus: &[u32],
    environment: &BTreeMap<String, String>,
    play: &dyn Fn(&NativeProbeSite<'_>) -> D,
) -> Option<anyhow::Result<SimProbeAnswer<D>>> {
    let (scenario, node) = match read_role()? {
        Ok(role) => role,
        Err(code) => return Some(Ok(SimProbeAnswer::Ended(code))),
    };
    if let Some(reply) = tool_dispatch::node_misbehaviour(&scenario, &[&node], probe) {
        return Some(perform_reply(reply).map(SimProbeAnswer::Ended));
    }
    let fabric = match SimFabric::build(&scenario) {
        Ok(fabric) => fabric,
        Err(why) => return Some(print_usage_error(&why).map(SimProbeAnswer::Ended)),
    };
    if let Some(name) = nodes.iter().chain([&node]).find(|name| fabric.node(name).is_err()) {
        let why = format!("{name} is not a node of the scenario");
        return Some(print_usage_error(&why).map(SimProbeAnswer::Ended));
    }
    let mut environment = environment.clone();
    for (name, value) in steering_variables() {
        environment.entry(name).or_insert(value);
    }
    Some(Ok(SimProbeAnswer::Document(play(&NativeProbeSite {
        scenario: &scenario,
        fabric: &fabric,
        node: &node,
        nodes,
        gpus,
        environment,
        noise: noise_number,
        prior_runs: readings_before(0),
    }))))
}

/// The environment variables that the simulated tools read; they ignore the others.
fn steering_variables() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| {
            ["NCCL_", "CUDA_", "FABRICGATE_SIM_"].iter().any(|p| name.starts_with(p))
        })
        .collect()
}

fn serve_tcp() -> anyhow::Result<u8> {
    tcp::serve(&mut std::io::stdout())?;
    Ok(exit::PASS)
}

fn measure_tcp(
    scenario: &Scenario,
    node: &str,
    server: &str,
    request: &SimTcpRequest<'_>,
) -> anyhow::Result<u8> {
    let SimTcpRequest { rail, readings, seconds, .. } = *request;
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let peer = request.peer.unwrap_or(host);
    let connected = port.parse().is_ok_and(|port| tcp::connect_once(port).is_ok());
    let step = std::env::var(STEP_VARIABLE).ok();
    let document = match connected {
        true => tcp::build_document(scenario, node, peer, rail, readings, seconds, step.as_deref()),
        false => tcp::unanswered_document(scenario, node, peer, rail, seconds),
    };
    print(&format!("{document}\n"))?;
    let complete = document["complete"] == true;
    Ok(if complete { exit::PASS } else { exit::INCONCLUSIVE })
}

/// A different number for every reading and every step, so that their noise differs.
fn noise_number(reading: u32) -> u32 {
    let Ok(step) = std::env::var(STEP_VARIABLE) else { return reading };
    let key = NoiseKey::from_seed(u64::from(reading)).with_name(&step).value();
    u32::try_from(key >> 32).unwrap_or(reading)
}

/// Readings of the same step before this one: workers receive `STEP.READING`.
fn readings_before(reading: u32) -> u32 {
    let step = std::env::var(STEP_VARIABLE).ok();
    step.and_then(|step| step.rsplit_once('.')?.1.parse().ok()).unwrap_or(reading)
}

pub(crate) fn answer_tool(args: &SimToolArgs) -> anyhow::Result<u8> {
    let scenario = match load_scenario(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
    if let Some(why) = misbehaviour::refuse_worker(&scenario, &args.node) {
        anstream::eprintln!("{why}");
        return Ok(misbehaviour::REFUSED);
    }
    let fabric = match SimFabric::build(&scenario) {
        Ok(fabric) => fabric,
        Err(why) => return print_usage_error(&format!("{}: {why}", args.scenario.display())),
    };
    let across = fabric.node(&args.node).is_err();
    if across && !fabric.claims.iter().any(|claim| claim.name == args.node) {
        return print_usage_error(&format!(
            "--node {}: not a node or claimed domain of the scenario",
            args.node
        ));
    }
    let bench = ToolInvocation {
        scenario: &scenario,
        fabric: &fabric,
        scope: &args.node,
        spans_domain: across,
        seed: args.seed.unwrap_or(scenario.seed),
        reading: noise_number(args.reading),
        prior_readings: readings_before(args.reading),
        job: None,
    };
    match tool_dispatch::call_tool(&bench, &args.name, &args.args, &steering_variables()) {
        None => print_usage_error(&format!("no simulated tool `{}`", args.name)),
        Some(reply) => perform_reply(reply),
    }
}

/// Prints, serves, hangs or floods as the reply requires.
fn perform_reply(reply: SimToolReply) -> anyhow::Result<u8> {
    match reply {
        SimToolReply::Prints(answer) => print_answer(&answer),
        SimToolReply::Serves { port, before, answer } => {
            print(&before)?;
            match tcp::serve_at(port) {
                Ok(()) => print_answer(&answer),
                Err(error) => {
                    anstream::eprintln!("Couldn't listen to port {port}: {error}");
                    Ok(1)
                }
            }
        }
        SimToolReply::Connects { port, answer, refused } => {
            print_answer(if tcp::connect_once(port).is_ok() { &answer } else { &refused })
        }
        SimToolReply::Hangs => loop {
            std::thread::park();
        },
        SimToolReply::Floods => {
            let mut out = anstream::stdout().lock();
            let piece = misbehaviour::FLOOD_LINE.repeat(1000);
            for _ in 0..misbehaviour::FLOOD / piece.len() {
                out.write_all(piece.as_bytes())?;
            }
            Ok(exit::PASS)
        }
    }
}

fn print_answer(answer: &SimToolOutput) -> anyhow::Result<u8> {
    if let Some((path, text)) = &answer.file
        && let Err(error) = fs::write(path, text)
    {
        anstream::eprintln!("fabricgate: {path}: {error}");
        return Ok(exit::ENVIRONMENT);
    }
    print(&answer.stdout)?;
    anstream::eprint!("{}", answer.stderr);
    Ok(answer.code)
}

pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
