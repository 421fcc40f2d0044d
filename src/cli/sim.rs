//! `fabricgate sim`: the embedded simulated fabric.
//!
//! Reads scenarios, writes recordings, answers as a tool. What it answers is
//! made in `crate::sim`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use super::exit;
use super::input;
use crate::sim::bench::Bench;
use crate::sim::fabric::Fabric;
use crate::sim::record;
use crate::sim::scenario::Scenario;
use crate::sim::tool;

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
    #[arg(long, env = "FABRICGATE_SIM", value_name = "FILE")]
    scenario: PathBuf,
    /// The node it runs on, or the claimed domain it runs across.
    #[arg(long, env = "FABRICGATE_SIM_NODE", value_name = "NODE")]
    node: String,
    /// Which reading, from 0: another reading has other noise.
    #[arg(long, env = "FABRICGATE_SIM_READING", default_value_t = 0)]
    reading: u32,
    /// Seed of the noise, instead of the scenario's.
    #[arg(long, env = "FABRICGATE_SIM_SEED")]
    seed: Option<u64>,
    /// Arguments of the tool.
    #[arg(last = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    match &args.command {
        Command::Record(args) => record(args),
        Command::Tool(args) => answer(args),
    }
}

/// The scenario in this file, or the exit code and after a message.
fn load(path: &Path) -> Result<Scenario, u8> {
    let bytes = input::read(path).map_err(|error| {
        anstream::eprintln!("fabricgate: {error}");
        exit::ENVIRONMENT
    })?;
    let text = String::from_utf8_lossy(&bytes);
    Scenario::read(&text).map_err(|error| {
        anstream::eprintln!("fabricgate: {}: {error}", path.display());
        exit::USAGE
    })
}

fn refuse(message: &str) -> anyhow::Result<u8> {
    anstream::eprintln!("fabricgate: {message}");
    Ok(exit::USAGE)
}

fn record(args: &RecordArgs) -> anyhow::Result<u8> {
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
        anstream::eprintln!("fabricgate: writing {}: {error}", target.display());
        return Ok(exit::ENVIRONMENT);
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

fn answer(args: &ToolArgs) -> anyhow::Result<u8> {
    let scenario = match load(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
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
        reading: args.reading,
    };
    let Some(answer) = tool::run(&bench, &args.name, &args.args) else {
        return refuse(&format!("no simulated tool `{}`", args.name));
    };
    if let Some((path, text)) = &answer.file
        && let Err(error) = fs::write(path, text)
    {
        anstream::eprintln!("fabricgate: {path}: {error}");
        return Ok(exit::ENVIRONMENT);
    }
    let mut out = anstream::stdout().lock();
    out.write_all(answer.stdout.as_bytes())?;
    out.flush()?;
    anstream::eprint!("{}", answer.stderr);
    Ok(answer.code)
}
