//! `fabricgate node facts`: prints the facts of this machine.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::{report_output, stdout};
use crate::exit;
use crate::exit::CommandError;
use control::launch::SIM_VARIABLE;
use engine::report::node_facts;
use node::exec::executable;
use node::facts;
use node::facts::gpu_library::GpuLibrary;
use node::facts::library_record::RecordingLibrary;
use node::facts::nvml::NvmlLibrary;
use node::facts::{FactsRequest, driver};

/// Print the facts of this machine: GPUs, fabric, links, NICs, IMEX.
///
/// Reads the NVIDIA driver's library, sysfs and the kernel's log; starts no work and changes
/// nothing. The output lists what cannot be read, with the reason. Without a driver, or if the
/// driver does not answer in time, it prints what it can and exits with 5.
#[derive(Debug, clap::Args)]
pub struct FactsArgs {
    /// The driver's library, if it is not the one that the system finds.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_NVML")]
    nvml: Option<PathBuf>,
    /// The root directory that contains proc, sys and dev, to read a copy.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Seconds that the driver may take to answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Record every answer of the driver's library in this file, for tests.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Query the driver, and print one document per line.
#[derive(Debug, clap::Args)]
pub struct DriverArgs {
    #[arg(long)]
    nvml: Option<PathBuf>,
    #[arg(long, default_value = "/")]
    root: PathBuf,
    #[arg(long)]
    record: Option<PathBuf>,
}

/// Collects the facts and prints them.
pub fn run(args: &FactsArgs, json: bool) -> anyhow::Result<u8> {
    if std::env::var_os(SIM_VARIABLE).is_some() {
        let why = "a simulated node has no facts: its hardware is this machine's";
        return Err(CommandError::environment(why).into());
    }
    let executable = executable::current_executable()?;
    let request = FactsRequest {
        executable: &executable,
        nvml: args.nvml.as_deref(),
        record: args.record.as_deref(),
        root: &args.root,
        limit: Duration::from_secs(args.limit),
    };
    // The process that queries the driver dies with this thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let collected = runtime.block_on(facts::collect_facts(&request));
    // A process that hangs in the kernel must not delay the exit.
    runtime.shutdown_background();
    if json {
        stdout::write_json(&collected.facts)?;
    } else {
        stdout::write_text(&node_facts::render(&collected.facts))?;
    }
    match collected.trouble {
        None => Ok(exit::PASS),
        Some(why) => {
            stdout::note(&why);
            Ok(exit::ENVIRONMENT)
        }
    }
}

/// Runs the process that queries the driver.
pub fn ask_driver(args: &DriverArgs) -> anyhow::Result<u8> {
    let out = &mut BufWriter::new(std::io::stdout().lock());
    let library = match NvmlLibrary::load(args.nvml.as_deref()) {
        Ok(library) => library,
        Err(error) => {
            driver::write_no_driver(&error.to_string(), out)?;
            return Ok(exit::PASS);
        }
    };
    let proc = args.root.join("proc");
    match &args.record {
        None => write_driver_facts(&library, &proc, out)?,
        Some(path) => {
            let recording = RecordingLibrary::new(&library);
            write_driver_facts(&recording, &proc, out)?;
            let record = serde_json::to_vec(&recording.into_record())?;
            report_output::write_file(path, &record)?;
        }
    }
    Ok(exit::PASS)
}

fn write_driver_facts(
    library: &dyn GpuLibrary,
    proc: &Path,
    out: &mut dyn std::io::Write,
) -> std::io::Result<()> {
    driver::write_driver_facts(library, proc, out, &mut std::io::stderr().lock())
}
