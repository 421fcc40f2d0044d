//! `fabricgate node probe`: measures with the native probes.

pub mod all;
pub mod children;
pub mod collective;
pub mod common;
pub mod copy;
pub mod fabric;
pub mod tcp;

use crate::cli::stdout::Globals;
use all::AllArgs;
use collective::CollectiveArgs;
use common::ProbeProgress;
use copy::CopyArgs;
use fabric::FabricArgs;
use tcp::TcpArgs;

/// Measure with the native probes, without other tools.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    #[command(subcommand)]
    probe: NodeProbeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeProbeCommand {
    All(Box<AllArgs>),
    Copy(Box<CopyArgs>),
    Collective(Box<CollectiveArgs>),
    Fabric(FabricArgs),
    Tcp(TcpArgs),
}

/// Runs a probe.
pub fn run(args: &ProbeArgs, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    let mut progress = ProbeProgress::new(globals.no_progress);
    match &args.probe {
        NodeProbeCommand::All(args) => all::run(args, json, &mut progress),
        NodeProbeCommand::Collective(args) => collective::run(args, json, &mut progress),
        NodeProbeCommand::Fabric(args) => fabric::run(args, json, &mut progress),
        NodeProbeCommand::Copy(args) => copy::run(args, json, &mut progress),
        NodeProbeCommand::Tcp(args) => tcp::run(args),
    }
}
