//! `fabricgate node probe fabric`: which ways of sharing GPU memory this node
//! allows.

use super::attending;
use super::attending::Common;
use super::attending::Telling;
use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::sim;
use crate::cli::stdout;
use engine::report;
use model::fabric_probe::FabricProbeDocument;
use node::probes::attend::Part;
use node::probes::attend::fabrics;
use node::probes::fabric::task::Task;

/// Try which ways of sharing GPU memory work here: between processes, and over
/// the NVLink fabric between nodes.
///
/// Two processes on this node create, export, import and map memory of each GPU
/// and write into it. Every step says `ok` or the driver's own error, so that a
/// missing IMEX channel, a fabric that is not up and an old driver are told
/// apart. Nothing is measured. Needs the NVIDIA driver and nothing else.
///
/// Ends with 0 when everything works, 3 when wrong data arrived, 4 when something
/// does not work and 5 when nothing could be tried.
#[derive(Clone, Debug, clap::Args)]
pub struct FabricArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Size of what is shared, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=4_096))]
    size: u64,
}

/// Tries and prints.
pub fn run(args: &FabricArgs, json: bool, telling: &mut Telling) -> anyhow::Result<u8> {
    if args.common.dry_run {
        let size = args.size;
        stdout::text(&format!("two processes share {size} MiB of every GPU; a few seconds\n"))?;
        return Ok(exit::PASS);
    }
    if sim::is_simulated() {
        let why = "a simulated node has no driver whose calls could be tried";
        return Err(Failure::environment(why).into());
    }
    let document = explore(args, telling)?;
    if json {
        attending::line(&document)?;
    } else {
        stdout::text(&report::fabric_probe::text(&document))?;
    }
    Ok(attending::code(document.complete, !document.steps.is_empty(), &document.problems))
}

fn explore(args: &FabricArgs, telling: &mut Telling) -> anyhow::Result<FabricProbeDocument> {
    let task = Task {
        cuda: args.common.cuda.clone(),
        root: args.common.root.clone(),
        node: args.common.node(),
        bytes: args.size << 20,
    };
    let mut work = args.common.work()?;
    work.watching = None;
    for name in ["the first process", "the second process"] {
        work.parts.push(Part {
            name: name.to_owned(),
            words: attending::task("fabric-child", &task)?,
            env: attending::environment(),
            ..Part::default()
        });
    }
    let attended = attending::attended(&work, false, telling)?;
    Ok(fabrics::document(&task, &attended))
}
