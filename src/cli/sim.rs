//! `fabricgate sim`: the embedded simulated fabric.
//!
//! Reads scenarios, writes recordings, answers as a tool. What it answers is
//! made in `sim`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::Globals;
use super::exit;
use super::stdout;
use super::stdout::note;
use control::launch::SIM_AGE_VARIABLE;
use control::sources::input;
use model::collective::CollectiveDocument;
use model::copy::CopyDocument;
use model::hostlist;
use model::worker::STEP_VARIABLE;
use node::probes::copy;
use sim::bench::Bench;
use sim::fabric::Fabric;
use sim::fault::Age;
use sim::noise::Key;
use sim::own;
use sim::own::Place;
use sim::record;
use sim::render::Answer;
use sim::scenario::Scenario;
use sim::tcp;
use sim::tool;
use sim::tool::Reply;
use sim::unwell;

/// The scenario that this process plays a part of.
pub const SCENARIO: &str = "FABRICGATE_SIM";
/// The node it plays.
pub const NODE: &str = "FABRICGATE_SIM_NODE";
/// Seed of the noise, instead of the scenario's.
const SEED: &str = "FABRICGATE_SIM_SEED";
/// Which reading, from 0.
const READING: &str = "FABRICGATE_SIM_READING";

/// Record or answer from a simulated fabric.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Record(RecordArgs),
    Tool(ToolArgs),
    Claims(ClaimsArgs),
}

/// Write what the tools would print in a scenario, ready to be judged.
#[derive(Debug, clap::Args)]
struct RecordArgs {
    /// The scenario, a TOML file.
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// The directory to write. What is really wrong goes to DIR.truth.toml.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Seed of the noise, instead of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// How often every measuring tool is run, instead of the scenario's number.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: Option<u32>,
    /// Replace what is in DIR.
    #[arg(long)]
    force: bool,
}

/// Answer as one tool on one node of a scenario.
#[derive(Debug, clap::Args)]
struct ToolArgs {
    /// The tool: nvbandwidth, all_reduce_perf, nvidia-smi, ...
    #[arg(value_name = "NAME")]
    name: String,
    /// The scenario.
    #[arg(long, env = SCENARIO, value_name = "FILE")]
    scenario: PathBuf,
    /// The node it runs on, or the claimed domain it runs across.
    #[arg(long, env = NODE, value_name = "NODE")]
    node: String,
    /// Which reading, from 0: another reading has other noise.
    #[arg(long, env = READING, default_value_t = 0)]
    reading: u32,
    /// Seed of the noise, instead of the scenario's.
    #[arg(long, env = SEED)]
    seed: Option<u64>,
    /// Arguments of the tool.
    #[arg(last = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Print the claims of a scenario, as `claims.toml`.
#[derive(Debug, clap::Args)]
struct ClaimsArgs {
    /// The scenario.
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        Command::Record(args) => record(args, globals.json),
        Command::Tool(args) => answer(args),
        Command::Claims(args) => claims(args),
    }
}

/// The scenario in this file, or the exit code and after a message.
fn load(path: &Path) -> Result<Scenario, u8> {
    let bytes = input::read(path).map_err(|error| {
        note(&error.to_string());
        exit::ENVIRONMENT
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let scenario = Scenario::read(&text).map_err(|error| {
        note(&format!("{}: {error}", path.display()));
        exit::USAGE
    })?;
    let age = std::env::var(SIM_AGE_VARIABLE).ok().and_then(|word| Age::read(&word));
    Ok(scenario.at(age.unwrap_or_default()))
}

fn refuse(message: &str) -> anyhow::Result<u8> {
    note(message);
    Ok(exit::USAGE)
}

/// The format of `sim record --json`.
pub(super) const RECORDED_FORMAT: &str = "fabricgate.sim-record/1";

/// What was written, for machines.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RecordedDocument<'a> {
    /// `fabricgate.sim-record/1`.
    format: &'a str,
    /// The recording, ready to be judged.
    folder: String,
    /// The files in it.
    files: Vec<&'a String>,
    /// What is really wrong, beside the folder.
    truth: String,
}

fn record(args: &RecordArgs, json: bool) -> anyhow::Result<u8> {
    let scenario = match load(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
    let recording = match record::record(&scenario, args.seed, args.readings) {
        Ok(recording) => recording,
        Err(why) => return refuse(&format!("{}: {why}", args.scenario.display())),
    };
    let target = &args.directory;
    let Some(name) = target.file_name() else {
        return refuse(&format!("{}: expected a directory with a name", target.display()));
    };
    let occupied = match fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return refuse(&format!("{}: {error}", target.display())),
    };
    if occupied && !args.force {
        return refuse(&format!("{}: is not empty; --force replaces it", target.display()));
    }
    // --force is for recordings, not for whatever a typo points at.
    if occupied && !target.join("claims.toml").is_file() {
        return refuse(&format!(
            "{}: holds no claims.toml, so it is no recording and is not replaced",
            target.display()
        ));
    }
    let beside = |suffix: &str| {
        let mut name = name.to_owned();
        name.push(suffix);
        target.with_file_name(name)
    };
    // Everything is written beside and moved in one step, so that a judge
    // never meets half a recording.
    let fresh = beside(&format!(".new-{}", std::process::id()));
    let written = write_files(&fresh, &recording.files).and_then(|()| {
        if target.exists() {
            fs::remove_dir_all(target)?;
        }
        fs::rename(&fresh, target)
    });
    if written.is_err() {
        let _ = fs::remove_dir_all(&fresh);
    }
    let truth = beside(".truth.toml");
    if let Err(error) = written.and_then(|()| fs::write(&truth, &recording.truth)) {
        note(&format!("writing {}: {error}", target.display()));
        return Ok(exit::ENVIRONMENT);
    }
    if json {
        let document = RecordedDocument {
            format: RECORDED_FORMAT,
            folder: target.display().to_string(),
            files: recording.files.keys().collect(),
            truth: truth.display().to_string(),
        };
        stdout::json(&document)?;
        return Ok(exit::PASS);
    }
    anstream::eprintln!(
        "{}: {} files; what is really wrong: {}",
        target.display(),
        recording.files.len(),
        truth.display()
    );
    Ok(exit::PASS)
}

fn write_files(root: &Path, files: &BTreeMap<String, String>) -> std::io::Result<()> {
    for (path, text) in files {
        let file = root.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&file, text)?;
    }
    Ok(())
}

fn claims(args: &ClaimsArgs) -> anyhow::Result<u8> {
    let scenario = match load(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
    let fabric = match Fabric::build(&scenario) {
        Ok(fabric) => fabric,
        Err(why) => return refuse(&format!("{}: {why}", args.scenario.display())),
    };
    print(&record::claims_of_network(&fabric))?;
    Ok(exit::PASS)
}

/// Answers as the tool under whose name the program was started, where a
/// scenario is set; `None` otherwise, and then this is fabricgate.
pub fn by_name() -> Option<anyhow::Result<u8>> {
    let mut words = std::env::args_os();
    let program = PathBuf::from(words.next()?);
    let name = tool::NAMES.iter().find(|name| program.file_name().is_some_and(|f| f == **name))?;
    let scenario = std::env::var_os(SCENARIO)?;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let own: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let (name, words) = match ranks(name, &own) {
        None => ((*name).to_owned(), own),
        // Rank 0 of a tool collects what the others measured, and prints it.
        Some(None) => return Some(Ok(exit::PASS)),
        Some(Some(launched)) => ("mpirun".to_owned(), launched),
    };
    let args = ToolArgs {
        name,
        scenario: PathBuf::from(scenario),
        node: std::env::var(NODE).unwrap_or_default(),
        reading: number(READING).and_then(|reading| u32::try_from(reading).ok()).unwrap_or(0),
        seed: number(SEED),
        args: words,
    };
    Some(answer(&args))
}

/// As one of several ranks that srun started: the call of mpirun that would have
/// started the same, for rank 0; nothing for the others. `None` where this is
/// no such rank.
fn ranks(name: &str, words: &[String]) -> Option<Option<Vec<String>>> {
    let says = |name: &str| std::env::var(name).ok();
    let ranks: u32 = says("SLURM_STEP_NUM_TASKS")?.parse().ok().filter(|ranks| 1 < *ranks)?;
    if says("SLURM_PROCID")? != "0" {
        return Some(None);
    }
    let nodes = hostlist::expand(&says("SLURM_STEP_NODELIST")?).ok()?;
    let each = ranks.div_ceil(u32::try_from(nodes.len()).ok()?);
    let hosts: Vec<String> = nodes.iter().map(|node| format!("{node}:{each}")).collect();
    let mut argv = vec!["-np".to_owned(), ranks.to_string(), "--host".to_owned(), hosts.join(",")];
    let steered = std::env::vars().filter(|(name, _)| name.starts_with("NCCL_"));
    argv.extend(steered.flat_map(|(name, value)| ["-x".to_owned(), format!("{name}={value}")]));
    argv.push(name.to_owned());
    argv.extend_from_slice(words);
    Some(Some(argv))
}

/// Whether this process stands for a simulated node.
pub fn is_simulated() -> bool {
    std::env::var_os(SCENARIO).is_some()
}

/// The scenario and the node that this process plays, where it plays one.
fn role() -> Option<Result<(Scenario, String), u8>> {
    let path = PathBuf::from(std::env::var_os(SCENARIO)?);
    let node = std::env::var(NODE).unwrap_or_default();
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    Some(load(&path).map(|scenario| {
        let seed = seed.unwrap_or(scenario.seed);
        (Scenario { seed, ..scenario }, node)
    }))
}

/// The exit code of a worker that must not start: its simulated node cannot be
/// reached, which is told on stderr as the program that reaches nodes does.
pub fn refused_worker() -> Option<u8> {
    match role()? {
        Err(code) => Some(code),
        Ok((scenario, node)) => {
            let why = unwell::refuse_worker(&scenario, &node)?;
            anstream::eprintln!("{why}");
            Some(unwell::REFUSED)
        }
    }
}

/// What the native TCP probe is asked.
#[derive(Clone, Copy, Debug)]
pub struct TcpQuestion<'a> {
    /// `PEER:PORT`; the server's side where there is none.
    pub connect: Option<&'a str>,
    /// The other node's name, where it is not the one in `connect`.
    pub peer: Option<&'a str>,
    /// The rail's name.
    pub rail: Option<&'a str>,
    /// Readings to take.
    pub readings: u32,
    /// Seconds of each.
    pub seconds: f64,
}

/// The native TCP probe on a simulated node; `None` where none is simulated.
pub fn tcp_probe(question: &TcpQuestion<'_>) -> Option<anyhow::Result<u8>> {
    Some(match role()? {
        Err(code) => Ok(code),
        Ok((scenario, node)) => {
            let ailing = tool::ailing(&scenario, &[&node], tool::TCP_PROBE);
            match (ailing, question.connect) {
                (Some(reply), _) => act(reply),
                (None, None) => serve_tcp(),
                (None, Some(server)) => measure_tcp(&scenario, &node, server, question),
            }
        }
    })
}

/// What a native GPU probe does on a simulated node.
#[derive(Debug)]
pub enum Played<D> {
    /// It comes to this document.
    Document(D),
    /// It ended otherwise, with this code.
    Ended(u8),
}

/// The native copy probe on a simulated node, alone or with `nodes`; `None`
/// where none is simulated.
pub fn copy_probe(
    task: &copy::task::Task,
    nodes: &[String],
) -> Option<anyhow::Result<Played<CopyDocument>>> {
    let asked = own::copy::Asked {
        tests: &task.tests,
        readings: task.readings,
        buffer_bytes: task.buffer_bytes,
        copies: task.copies,
        warmup: task.warmup,
        lane: task.across == Some(copy::task::Across::Lane),
    };
    let play = |place: &Place<'_>| own::copy::document(place, &asked);
    played(tool::COPY_PROBE, nodes, &task.gpus, &BTreeMap::new(), &play)
}

/// The native NCCL probe on a simulated node, alone or with `nodes`, these
/// variables set for NCCL beside those of its own environment; `None` where none
/// is simulated.
pub fn collective_probe(
    asked: &own::collective::Asked<'_>,
    gpus: &[u32],
    nodes: &[String],
    environment: &BTreeMap<String, String>,
) -> Option<anyhow::Result<Played<CollectiveDocument>>> {
    let play = |place: &Place<'_>| own::collective::document(place, asked);
    played(tool::COLLECTIVE_PROBE, nodes, gpus, environment, &play)
}

fn played<D>(
    probe: &str,
    nodes: &[String],
    gpus: &[u32],
    environment: &BTreeMap<String, String>,
    play: &dyn Fn(&Place<'_>) -> D,
) -> Option<anyhow::Result<Played<D>>> {
    let (scenario, node) = match role()? {
        Ok(role) => role,
        Err(code) => return Some(Ok(Played::Ended(code))),
    };
    if let Some(reply) = tool::ailing(&scenario, &[&node], probe) {
        return Some(act(reply).map(Played::Ended));
    }
    let fabric = match Fabric::build(&scenario) {
        Ok(fabric) => fabric,
        Err(why) => return Some(refuse(&why).map(Played::Ended)),
    };
    if let Some(name) = nodes.iter().chain([&node]).find(|name| fabric.node(name).is_err()) {
        let why = format!("{name} is no node of the scenario");
        return Some(refuse(&why).map(Played::Ended));
    }
    let mut environment = environment.clone();
    for (name, value) in steering() {
        environment.entry(name).or_insert(value);
    }
    Some(Ok(Played::Document(play(&Place {
        scenario: &scenario,
        fabric: &fabric,
        node: &node,
        nodes,
        gpus,
        environment,
        noise: noise_number,
        before: readings_before(0),
    }))))
}

/// The variables that tools are steered with; the rest of an environment is
/// nobody's.
fn steering() -> BTreeMap<String, String> {
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
    question: &TcpQuestion<'_>,
) -> anyhow::Result<u8> {
    let TcpQuestion { rail, readings, seconds, .. } = *question;
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let peer = question.peer.unwrap_or(host);
    let knocked = port.parse().is_ok_and(|port| tcp::knock(port).is_ok());
    let step = std::env::var(STEP_VARIABLE).ok();
    let document = match knocked {
        true => tcp::document(scenario, node, peer, rail, readings, seconds, step.as_deref()),
        false => tcp::unanswered(scenario, node, peer, rail, seconds),
    };
    print(&format!("{document}\n"))?;
    let complete = document["complete"] == true;
    Ok(if complete { exit::PASS } else { exit::INCONCLUSIVE })
}

/// Another number for every reading and every step, so that their noise
/// differs.
fn noise_number(reading: u32) -> u32 {
    let Ok(step) = std::env::var(STEP_VARIABLE) else { return reading };
    let key = Key::of(u64::from(reading)).named(&step).value();
    u32::try_from(key >> 32).unwrap_or(reading)
}

/// Readings of the same step before this one: workers are told `STEP.READING`.
fn readings_before(reading: u32) -> u32 {
    let step = std::env::var(STEP_VARIABLE).ok();
    step.and_then(|step| step.rsplit_once('.')?.1.parse().ok()).unwrap_or(reading)
}

fn answer(args: &ToolArgs) -> anyhow::Result<u8> {
    let scenario = match load(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
    if let Some(why) = unwell::refuse_worker(&scenario, &args.node) {
        anstream::eprintln!("{why}");
        return Ok(unwell::REFUSED);
    }
    let fabric = match Fabric::build(&scenario) {
        Ok(fabric) => fabric,
        Err(why) => return refuse(&format!("{}: {why}", args.scenario.display())),
    };
    let across = fabric.node(&args.node).is_err();
    if across && !fabric.claims.iter().any(|claim| claim.name == args.node) {
        return refuse(&format!("--node {}: no node or claimed domain of the scenario", args.node));
    }
    let bench = Bench {
        scenario: &scenario,
        fabric: &fabric,
        scope: &args.node,
        across,
        seed: args.seed.unwrap_or(scenario.seed),
        reading: noise_number(args.reading),
        before: readings_before(args.reading),
        job: None,
    };
    match tool::call(&bench, &args.name, &args.args, &steering()) {
        None => refuse(&format!("no simulated tool `{}`", args.name)),
        Some(reply) => act(reply),
    }
}

/// Does what a tool does.
fn act(reply: Reply) -> anyhow::Result<u8> {
    match reply {
        Reply::Says(answer) => tell(&answer),
        Reply::Serves { port, before, answer } => {
            print(&before)?;
            match tcp::serve_at(port) {
                Ok(()) => tell(&answer),
                Err(error) => {
                    anstream::eprintln!("Couldn't listen to port {port}: {error}");
                    Ok(1)
                }
            }
        }
        Reply::Calls { port, answer, refused } => {
            tell(if tcp::knock(port).is_ok() { &answer } else { &refused })
        }
        Reply::Hangs => loop {
            std::thread::park();
        },
        Reply::Floods => {
            let mut out = anstream::stdout().lock();
            let piece = unwell::FLOOD_LINE.repeat(1000);
            for _ in 0..unwell::FLOOD / piece.len() {
                out.write_all(piece.as_bytes())?;
            }
            Ok(exit::PASS)
        }
    }
}

fn tell(answer: &Answer) -> anyhow::Result<u8> {
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

fn print(text: &str) -> std::io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
