//! The processes that make the GPU calls of a probe. A supervisor starts them (`probe::attend`);
//! there is no need to start one by hand.
//!
//! GPU calls may hang or crash at any moment, which is why they run in child processes.

use std::io;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;

use crate::exit;
use crate::exit::CommandError;
use node::doctor::library_check;
use node::doctor::library_check::ProbeLibrary;
use node::facts::nvml::NvmlLibrary;
use node::facts::telemetry;
use node::probes::copy::devices;
use node::probes::protocol::ProbeEmitter;
use node::probes::{collective, copy, fabric};

/// Run a part of a probe, and print its results, one document per line.
#[derive(Debug, clap::Args)]
pub struct ChildArgs {
    /// The task, as JSON.
    #[arg(long, value_name = "JSON")]
    task: String,
}

/// List the GPUs that the driver makes available, one document per line.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// The driver's library, if it is not the one that the system finds.
    #[arg(long, value_name = "PATH")]
    cuda: Option<PathBuf>,
    /// The root directory that contains proc.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Sample the GPUs through the driver until standard input ends, one document per line.
#[derive(Debug, clap::Args)]
pub struct TelemetryArgs {
    /// The driver's library, if it is not the one that the system finds.
    #[arg(long, value_name = "PATH")]
    nvml: Option<PathBuf>,
    /// The root directory that contains proc.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Samples the GPUs.
pub fn watch_gpus(args: &TelemetryArgs) -> anyhow::Result<u8> {
    let out = &mut io::stdout().lock();
    match NvmlLibrary::load(args.nvml.as_deref()) {
        Err(error) => telemetry::write_no_telemetry(&error.to_string(), out)?,
        Ok(library) => {
            let rest = telemetry::wait_until_closed(io::stdin());
            let proc = args.root.join("proc");
            telemetry::watch_gpus(&library, &proc, out, &mut io::stderr(), rest)?;
        }
    }
    Ok(exit::PASS)
}

/// Measures copies.
pub fn run_copy(args: &ChildArgs) -> anyhow::Result<u8> {
    run_task(args, copy::measure)
}

/// Tries the ways of sharing memory.
pub fn run_fabric(args: &ChildArgs) -> anyhow::Result<u8> {
    run_task(args, fabric::run_trials)
}

/// Runs one rank of the collectives.
pub fn run_collective_rank(args: &ChildArgs) -> anyhow::Result<u8> {
    run_task(args, collective::measure)
}

fn run_task<T: DeserializeOwned>(
    args: &ChildArgs,
    work: impl FnOnce(&T, &mut ProbeEmitter<'_>) -> io::Result<()>,
) -> anyhow::Result<u8> {
    let task = serde_json::from_str(&args.task)
        .map_err(|error| CommandError::usage(format!("--task: {error}")))?;
    with_emitter(|emitter| work(&task, emitter))?;
    Ok(exit::PASS)
}

/// Runs `work` with an emitter on the standard streams.
fn with_emitter(work: impl FnOnce(&mut ProbeEmitter<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut input: Box<dyn BufRead> = Box::new(io::stdin().lock());
    let mut out: Box<dyn Write> = Box::new(io::stdout().lock());
    // Not locked, so that a panic can still print its message.
    let mut progress: Box<dyn Write> = Box::new(io::stderr());
    work(&mut ProbeEmitter::new(&mut *out, &mut *progress, &mut *input))
}

/// Lists the GPUs.
pub fn list_gpus(args: &ListArgs) -> anyhow::Result<u8> {
    with_emitter(|emitter| devices::list_gpus(args.cuda.as_deref(), &args.root, emitter))?;
    Ok(exit::PASS)
}

/// Print what is known about a library; each line repeats and extends the previous one.
#[derive(Debug, clap::Args)]
pub struct LibraryArgs {
    /// The kind of library.
    #[arg(value_parser = parse_library)]
    library: ProbeLibrary,
    /// Path of the library, if it is not the one that the system finds.
    path: Option<PathBuf>,
}

fn parse_library(word: &str) -> Result<ProbeLibrary, String> {
    ProbeLibrary::from_name(word)
        .ok_or_else(|| "expected a library that the native probes use".to_owned())
}

/// Loads the library and prints its properties.
pub fn run_library_check(args: &LibraryArgs) -> anyhow::Result<u8> {
    let (mut out, mut progress) = (io::stdout().lock(), io::stderr());
    library_check::write_library_report(
        args.library,
        args.path.as_deref(),
        &mut out,
        &mut progress,
    )?;
    Ok(exit::PASS)
}
