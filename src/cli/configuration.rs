//! `fabricgate config`: what can be configured, and what a configuration means.
//!
//! Says and changes nothing: keys come from the types that a file is read into,
//! so that what is told here is what is read.

pub mod check;
pub mod keys;

use std::path::PathBuf;

use super::Globals;
use super::config;
use super::exit;
use super::stdout;

/// Tell what can be configured, and check a configuration.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Read a configuration and tell what it means; exit code 2 names line and column of a mistake.
    Check {
        /// The configuration, instead of --config.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// List every key with its type, its default and what it says.
    Keys {
        /// Only this key or section, and what is below it, such as `watch` or `launcher.kubernetes`.
        #[arg(value_name = "KEY")]
        below: Option<String>,
        /// As the page docs/configuration.md.
        #[arg(long, conflicts_with = "json")]
        markdown: bool,
    },
    /// Print the JSON Schema, for editors that complete and check while one writes.
    Schema,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        Command::Check { file } => {
            let file = file.as_deref().or(globals.config.as_deref());
            return check::check(file, globals.json);
        }
        Command::Keys { below, markdown } => {
            let all = keys::of(&config::schema());
            let chosen = match below {
                None => all,
                Some(below) => keys::below(all, below)?,
            };
            if globals.json {
                stdout::json(&keys::document(chosen))?;
            } else if *markdown {
                stdout::text(&keys::page(&chosen))?;
            } else {
                stdout::text(&keys::listed(&chosen))?;
            }
        }
        Command::Schema => stdout::json(&config::schema())?,
    }
    Ok(exit::PASS)
}
