//! `fabricgate sim`: the embedded simulated fabric.
//!
//! Reads scenarios, writes recordings and acts as a simulated tool. The crate `sim` computes the
//! output.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::simulated_node::{
    SimToolArgs, answer_tool, load_scenario, print, print_usage_error,
};
use crate::cli::stdout;
use crate::cli::stdout::{Globals, note};
use crate::exit;
use sim::fabric::SimFabric;
use sim::recorded_files;

/// Record a simulated fabric, or run one of its tools.
#[derive(Debug, clap::Args)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SimCommand {
    Record(SimRecordArgs),
    Tool(SimToolArgs),
    Claims(SimClaimsArgs),
}

/// Write the output of every tool in a scenario, ready for `judge`.
#[derive(Debug, clap::Args)]
struct SimRecordArgs {
    /// The scenario, a TOML file.
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// The directory to write. The true faults go to DIR.truth.toml.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Seed of the noise, instead of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// How often every measuring tool runs, instead of the scenario's number.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: Option<u32>,
    /// Replace the contents of DIR.
    #[arg(long)]
    force: bool,
}

/// Print the claims of a scenario, as `claims.toml`.
#[derive(Debug, clap::Args)]
struct SimClaimsArgs {
    /// The scenario, a TOML file.
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
}

/// Runs the command.
pub fn run(args: &SimArgs, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        SimCommand::Record(args) => record_scenario(args, globals.json),
        SimCommand::Tool(args) => answer_tool(args),
        SimCommand::Claims(args) => print_claims(args),
    }
}

/// The format of `sim record --json`.
pub(crate) const RECORDED_FORMAT: &str = "fabricgate.sim-record/1";

/// The result of `sim record --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RecordedDocument<'a> {
    /// `fabricgate.sim-record/1`.
    format: &'a str,
    /// The recording, ready to be judged.
    folder: String,
    /// The files in it.
    files: Vec<&'a String>,
    /// The file with the true faults, next to the folder.
    truth: String,
}

fn record_scenario(args: &SimRecordArgs, json: bool) -> anyhow::Result<u8> {
    let scenario = match load_scenario(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
    let recording = match recorded_files::record_scenario(&scenario, args.seed, args.readings) {
        Ok(recording) => recording,
        Err(why) => return print_usage_error(&format!("{}: {why}", args.scenario.display())),
    };
    let target = &args.directory;
    let Some(name) = target.file_name() else {
        return print_usage_error(&format!(
            "{}: expected a directory with a name",
            target.display()
        ));
    };
    let occupied = match fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return print_usage_error(&format!("{}: {error}", target.display())),
    };
    if occupied && !args.force {
        return print_usage_error(&format!(
            "{}: is not empty; --force replaces it",
            target.display()
        ));
    }
    // --force replaces recordings only, not any folder that a typo names.
    if occupied && !target.join("claims.toml").is_file() {
        return print_usage_error(&format!(
            "{}: holds no claims.toml, so it is not a recording and is not replaced",
            target.display()
        ));
    }
    let sibling = |suffix: &str| {
        let mut name = name.to_owned();
        name.push(suffix);
        target.with_file_name(name)
    };
    // Files are written to a sibling folder and moved in one step, so that a judge never reads half
    // a recording.
    let fresh = sibling(&format!(".new-{}", std::process::id()));
    let written = write_files(&fresh, &recording.files).and_then(|()| {
        if target.exists() {
            fs::remove_dir_all(target)?;
        }
        fs::rename(&fresh, target)
    });
    if written.is_err() {
        let _ = fs::remove_dir_all(&fresh);
    }
    let truth = sibling(".truth.toml");
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
        stdout::write_json(&document)?;
        return Ok(exit::PASS);
    }
    anstream::eprintln!(
        "{}: {} files; true faults: {}",
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

fn print_claims(args: &SimClaimsArgs) -> anyhow::Result<u8> {
    let scenario = match load_scenario(&args.scenario) {
        Ok(scenario) => scenario,
        Err(code) => return Ok(code),
    };
    let fabric = match SimFabric::build(&scenario) {
        Ok(fabric) => fabric,
        Err(why) => return print_usage_error(&format!("{}: {why}", args.scenario.display())),
    };
    print(&recorded_files::network_claims_toml(&fabric))?;
    Ok(exit::PASS)
}
