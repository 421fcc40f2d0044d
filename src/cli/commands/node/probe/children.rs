//! The processes that make the GPU calls of a probe. An attendant starts them
//! (`probe::attend`); nobody has to start one by hand.
//!
//! They may hang or die at any moment, which is why they are processes.

use std::io;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;

use crate::exit;
use crate::exit::CommandError;
use node::facts::nvml::NvmlLibrary;
use node::facts::telemetry;
use node::probes::copy::listing;
use node::probes::protocol::ProbeEmitter;
use node::probes::{collective, copy, fabric};

/// Do a part of a probe, and say what comes of it one document a line.
#[derive(Debug, clap::Args)]
pub struct ChildArgs {
    /// What to do, as JSON.
    #[arg(long, value_name = "JSON")]
    task: String,
}

/// Say which GPUs the driver would let us use, one document a line.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// The driver's library, where it is not the one that the system finds.
    #[arg(long, value_name = "PATH")]
    cuda: Option<PathBuf>,
    /// The root that proc is below.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Ask the driver what GPUs do until standard input ends, one document a line.
#[derive(Debug, clap::Args)]
pub struct TelemetryArgs {
    /// The driver's library, where it is not the one that the system finds.
    #[arg(long, value_name = "PATH")]
    nvml: Option<PathBuf>,
    /// The root that proc is below.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Watches.
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

/// Copies.
pub fn run_copy(args: &ChildArgs) -> anyhow::Result<u8> {
    run_task(args, copy::measure)
}

/// Tries what may be shared.
pub fn run_fabric(args: &ChildArgs) -> anyhow::Result<u8> {
    run_task(args, fabric::run_trials)
}

/// Is one rank of collectives.
pub fn run_collective_rank(args: &ChildArgs) -> anyhow::Result<u8> {
    run_task(args, collective::measure)
}

fn run_task<T: DeserializeOwned>(
    args: &ChildArgs,
    work: impl FnOnce(&T, &mut ProbeEmitter<'_>) -> io::Result<()>,
) -> anyhow::Result<u8> {
    let task = serde_json::from_str(&args.task)
        .map_err(|error| CommandError::usage(format!("--task: {error}")))?;
    with_emitter(|mouth| work(&task, mouth))?;
    Ok(exit::PASS)
}

/// Runs something that speaks on the standard streams.
fn with_emitter(work: impl FnOnce(&mut ProbeEmitter<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut input: Box<dyn BufRead> = Box::new(io::stdin().lock());
    let mut out: Box<dyn Write> = Box::new(io::stdout().lock());
    // Not locked: what panics must be able to say so.
    let mut progress: Box<dyn Write> = Box::new(io::stderr());
    work(&mut ProbeEmitter::new(&mut *out, &mut *progress, &mut *input))
}

/// Lists GPUs.
pub fn list_gpus(args: &ListArgs) -> anyhow::Result<u8> {
    with_emitter(|mouth| listing::list_gpus(args.cuda.as_deref(), &args.root, mouth))?;
    Ok(exit::PASS)
}
