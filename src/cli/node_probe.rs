//! `fabricgate node probe`: measuring with what is built in.

pub mod attending;
pub mod children;
pub mod copy;
pub mod tcp;

use super::Globals;
use attending::Telling;
use copy::CopyArgs;
use tcp::TcpArgs;

/// Measure with what is built in, without any tool.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    #[command(subcommand)]
    probe: Probe,
}

#[derive(Debug, clap::Subcommand)]
enum Probe {
    Copy(CopyArgs),
    Tcp(TcpArgs),
}

/// Runs a probe.
pub fn run(args: &ProbeArgs, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    let mut telling = Telling::of(globals.no_progress);
    match &args.probe {
        Probe::Copy(args) => copy::run(args, json, &mut telling),
        Probe::Tcp(args) => tcp::run(args),
    }
}
