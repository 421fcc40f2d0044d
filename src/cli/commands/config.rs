//! `fabricgate config`: what can be configured, and what a configuration means.
//!
//! Says and changes nothing: keys come from the types that a file is read into,
//! so that what is told here is what is read.

pub mod check;
pub mod keys;

use std::path::PathBuf;

use crate::cli::stdout;
use crate::cli::stdout::Globals;
use crate::{config, exit};

/// Tell what can be configured, and check a configuration.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
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
pub fn run(args: &ConfigArgs, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        ConfigCommand::Check { file } => {
            let file = file.as_deref().or(globals.config.as_deref());
            return check::check_config(file, globals.json);
        }
        ConfigCommand::Keys { below, markdown } => {
            let all = keys::list_keys(&config::json_schema());
            let chosen = match below {
                None => all,
                Some(below) => keys::keys_below(all, below)?,
            };
            if globals.json {
                stdout::write_json(&keys::keys_document(chosen))?;
            } else if *markdown {
                stdout::write_text(&keys::render_page(&chosen))?;
            } else {
                stdout::write_text(&keys::render_list(&chosen))?;
            }
        }
        ConfigCommand::Schema => stdout::write_json(&config::json_schema())?,
    }
    Ok(exit::PASS)
}
