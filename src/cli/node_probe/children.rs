//! The processes that make the GPU calls of a probe. An attendant starts them
//! (`probe::attend`); nobody has to start one by hand.
//!
//! They may hang or die at any moment, which is why they are processes.

use std::io;
use std::io::BufRead;
use std::io::Write;
use std::path::PathBuf;

use serde::de::DeserializeOwned;

use crate::cli::exit;
use crate::cli::failure::Failure;
use node::facts::around;
use node::facts::nvml::NvmlLibrary;
use node::probes::collective;
use node::probes::copy;
use node::probes::copy::listing;
use node::probes::fabric;
use node::probes::said::Mouth;

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
pub struct AroundArgs {
    /// The driver's library, where it is not the one that the system finds.
    #[arg(long, value_name = "PATH")]
    nvml: Option<PathBuf>,
    /// The root that proc is below.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Watches.
pub fn around(args: &AroundArgs) -> anyhow::Result<u8> {
    let out = &mut io::stdout().lock();
    match NvmlLibrary::load(args.nvml.as_deref()) {
        Err(error) => around::refuse(&error.to_string(), out)?,
        Ok(library) => {
            let rest = around::until_closed(io::stdin());
            let proc = args.root.join("proc");
            around::watch(&library, &proc, out, &mut io::stderr(), rest)?;
        }
    }
    Ok(exit::PASS)
}

/// Copies.
pub fn copy(args: &ChildArgs) -> anyhow::Result<u8> {
    speak(args, copy::measure)
}

/// Tries what may be shared.
pub fn fabric(args: &ChildArgs) -> anyhow::Result<u8> {
    speak(args, fabric::explore)
}

/// Is one rank of collectives.
pub fn collective(args: &ChildArgs) -> anyhow::Result<u8> {
    speak(args, collective::measure)
}

fn speak<T: DeserializeOwned>(
    args: &ChildArgs,
    work: impl FnOnce(&T, &mut Mouth<'_>) -> io::Result<()>,
) -> anyhow::Result<u8> {
    let task = serde_json::from_str(&args.task)
        .map_err(|error| Failure::usage(format!("--task: {error}")))?;
    with_mouth(|mouth| work(&task, mouth))?;
    Ok(exit::PASS)
}

/// Runs something that speaks on the standard streams.
fn with_mouth(work: impl FnOnce(&mut Mouth<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut input: Box<dyn BufRead> = Box::new(io::stdin().lock());
    let mut out: Box<dyn Write> = Box::new(io::stdout().lock());
    // Not locked: what panics must be able to say so.
    let mut progress: Box<dyn Write> = Box::new(io::stderr());
    work(&mut Mouth::new(&mut *out, &mut *progress, &mut *input))
}

/// Lists GPUs.
pub fn list(args: &ListArgs) -> anyhow::Result<u8> {
    with_mouth(|mouth| listing::list(args.cuda.as_deref(), &args.root, mouth))?;
    Ok(exit::PASS)
}
