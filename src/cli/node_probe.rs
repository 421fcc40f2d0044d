//! `fabricgate node probe`: measuring with what is built in.

pub mod all;
pub mod attending;
pub mod children;
pub mod collective;
pub mod copy;
pub mod fabric;
pub mod tcp;

use super::Globals;
use all::AllArgs;
use attending::Telling;
use collective::CollectiveArgs;
use copy::CopyArgs;
use fabric::FabricArgs;
use tcp::TcpArgs;

/// Measure with what is built in, without any tool.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    #[command(subcommand)]
    probe: Probe,
}

#[derive(Debug, clap::Subcommand)]
enum Probe {
    All(Box<AllArgs>),
    Copy(Box<CopyArgs>),
    Collective(Box<CollectiveArgs>),
    Fabric(FabricArgs),
    Tcp(TcpArgs),
}

/// Runs a probe.
pub fn run(args: &ProbeArgs, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    let mut telling = Telling::of(globals.no_progress);
    match &args.probe {
        Probe::All(args) => all::run(args, json, &mut telling),
        Probe::Collective(args) => collective::run(args, json, &mut telling),
        Probe::Fabric(args) => fabric::run(args, json, &mut telling),
        Probe::Copy(args) => copy::run(args, json, &mut telling),
        Probe::Tcp(args) => tcp::run(args),
    }
}
