//! `fabricgate node probe`: measuring with what is built in.

pub mod children;
pub mod tcp;

use tcp::TcpArgs;

/// Measure with what is built in, without any tool.
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    #[command(subcommand)]
    probe: Probe,
}

#[derive(Debug, clap::Subcommand)]
enum Probe {
    Tcp(TcpArgs),
}

/// Runs a probe.
pub fn run(args: &ProbeArgs, _json: bool) -> anyhow::Result<u8> {
    match &args.probe {
        Probe::Tcp(args) => tcp::run(args),
    }
}
