//! `fabricgate node probe fabric`: tries the ways of sharing GPU memory on this node.

use crate::cli::commands::node::probe::common;
use crate::cli::commands::node::probe::common::{GpuProbeOptions, ProbeProgress};
use crate::cli::simulated_node;
use crate::cli::stdout;
use crate::exit;
use crate::exit::CommandError;
use engine::report;
use model::fabric_probe::FabricProbeDocument;
use node::probes::supervisor::{ProbeChildSpec, fabric_document};
use node::probes::task::FabricTask;

/// Try which ways of sharing GPU memory work here: between processes, and over the NVLink fabric
/// between nodes.
///
/// Two processes on this node create, export, import and map memory of each GPU and write into it.
/// Every step reports `ok` or the driver's own error, which distinguishes a missing IMEX channel, a
/// fabric that is not up and an old driver. Measures nothing. Needs the NVIDIA driver and nothing
/// else.
///
/// The exit code is 0 when everything works, 3 when wrong data arrived, 4 when something does not
/// work, and 5 when nothing could be tried.
#[derive(Clone, Debug, clap::Args)]
pub struct FabricArgs {
    #[command(flatten)]
    pub(crate) common: GpuProbeOptions,
    /// Size of the shared memory, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=4_096))]
    size: u64,
}

/// Tries the ways of sharing and prints the results.
pub fn run(args: &FabricArgs, json: bool, progress: &mut ProbeProgress) -> anyhow::Result<u8> {
    if args.common.dry_run {
        let size = args.size;
        stdout::write_text(&format!(
            "two processes share {size} MiB of every GPU; a few seconds\n"
        ))?;
        return Ok(exit::PASS);
    }
    if simulated_node::is_simulated() {
        let why = "a simulated node has no driver to try";
        return Err(CommandError::environment(why).into());
    }
    let document = probe_fabric(args, progress)?;
    if json {
        common::print_line(&document)?;
    } else {
        stdout::write_text(&report::fabric_probe::render(&document))?;
    }
    Ok(common::exit_code(document.complete, !document.steps.is_empty(), &document.problems))
}

fn probe_fabric(
    args: &FabricArgs,
    progress: &mut ProbeProgress,
) -> anyhow::Result<FabricProbeDocument> {
    let task = FabricTask {
        cuda: args.common.cuda.clone(),
        root: args.common.root.clone(),
        node: args.common.node_name(),
        bytes: args.size << 20,
    };
    let mut work = args.common.build_work()?;
    work.sampler = None;
    for name in ["the first process", "the second process"] {
        work.children.push(ProbeChildSpec {
            name: name.to_owned(),
            args: common::child_command("fabric-child", &task)?,
            env: common::child_environment(),
            ..ProbeChildSpec::default()
        });
    }
    let output = common::run_supervised(&work, false, progress)?;
    Ok(fabric_document::build_document(&task, &output))
}
