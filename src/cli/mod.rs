//! The command line: one file per subcommand, thin.
//!
//! This is the shell around the stages: it opens files, reads the clock,
//! prints, and turns outcomes into exit codes. It decides nothing else.

pub mod exit;
pub mod input;
pub mod parse;
pub mod sim;
pub mod thresholds;

use std::process::ExitCode;

use clap::Parser;
use clap::Subcommand;

/// Measure the GPU fabric of a cluster before anybody trusts it.
#[derive(Debug, Parser)]
#[command(name = "fabricgate", version, about, max_term_width = 100)]
pub struct Cli {
    /// Print one JSON document (or JSON lines) on stdout and nothing else there.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Parse(parse::Args),
    Thresholds(thresholds::Args),
    Sim(sim::Args),
}

/// Parses the command line, runs the command, and gives its exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with 0, everything else is usage.
            let code = if error.use_stderr() { exit::USAGE } else { exit::PASS };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match &cli.command {
        Command::Parse(args) => parse::run(args, cli.json),
        Command::Thresholds(args) => thresholds::run(args, cli.json),
        Command::Sim(args) => sim::run(args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            anstream::eprintln!("fabricgate: {error:#}");
            ExitCode::from(exit::INTERNAL)
        }
    }
}
