//! `fabricgate config`: lists the configuration's keys, and checks a configuration.
//!
//! Only prints. The keys come from the types that the file is parsed into, so the list matches the
//! parser.

pub mod check;
pub mod keys;

use std::path::PathBuf;

use crate::cli::stdout;
use crate::cli::stdout::Globals;
use crate::{config, exit};

/// List the configuration's keys, and check a configuration.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Check a configuration and print its effective settings; with exit code 2 the message names
    /// line and column of a mistake.
    Check {
        /// The configuration, instead of --config.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// List every key with its type, its default and its meaning.
    Keys {
        /// Only this key or section and the keys below it, such as `watch` or
        /// `launcher.kubernetes`.
        #[arg(value_name = "KEY")]
        below: Option<String>,
        /// Print the page docs/configuration.md.
        #[arg(long, conflicts_with = "json")]
        markdown: bool,
    },
    /// Print the JSON Schema, for completion and checks in editors.
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
