//! The development program: it counts how often the scheme finds faults and how often it
//! blames healthy parts, over simulated sweeps (`sweeps`) and over simulated years (`year`).
//! It is not part of the product.

mod commands;

use std::process::ExitCode;

use clap::Parser;
use fabricgate::cli::stdout;
use fabricgate::exit;

use commands::{sweeps, year};

/// Count found faults and false blames over simulated fabrics.
#[derive(Debug, Parser)]
#[command(name = "fabricgate-study", version, about, max_term_width = 100)]
struct StudyCli {
    #[command(flatten)]
    globals: StudyOptions,
    #[command(subcommand)]
    command: StudyCommand,
}

/// Options of both commands.
#[derive(Debug, clap::Args)]
struct StudyOptions {
    /// Print one JSON document on stdout and nothing else there.
    #[arg(long, global = true)]
    json: bool,
    /// Hide progress output.
    #[arg(long, global = true)]
    no_progress: bool,
}

#[derive(Debug, clap::Subcommand)]
enum StudyCommand {
    Sweeps(sweeps::StudyArgs),
    Year(year::YearArgs),
}

fn main() -> ExitCode {
    let cli = match StudyCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { exit::USAGE } else { exit::PASS };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let globals = &cli.globals;
    if globals.json {
        stdout::reserve_for_document();
    }
    let result = match &cli.command {
        StudyCommand::Sweeps(args) => sweeps::run(args, globals),
        StudyCommand::Year(args) => year::run(args, globals),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            stdout::note(&format!("{error:#}"));
            ExitCode::from(exit::exit_code_of(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_ends_before_anything_is_simulated() {
        for words in [
            "fabricgate-study sweeps --trials 0 --healthy 0 --svg /nowhere/found.svg",
            "fabricgate-study year --racks 1 --days 1 --rules floor90 --csv /nowhere/found.csv",
        ] {
            let cli = StudyCli::parse_from(words.split(' '));
            let result = match &cli.command {
                StudyCommand::Sweeps(args) => sweeps::run(args, &cli.globals),
                StudyCommand::Year(args) => year::run(args, &cli.globals),
            };
            let error = result.expect_err("there is no such folder");
            assert_eq!(exit::exit_code_of(&error), exit::ENVIRONMENT, "{words}: {error:#}");
        }
    }
}
