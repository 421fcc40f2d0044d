//! `fabricgate completions` and `fabricgate man`, generated from the commands.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::cli::{Cli, stdout};
use crate::exit;
use crate::exit::CommandError;

/// Print the completions of a shell.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: clap_complete::Shell,
}

/// Print the manual page, or write all pages into a folder.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The folder, which must exist.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions of a shell.
pub fn print_completions(args: &CompletionsArgs) -> anyhow::Result<u8> {
    let mut bytes = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fabricgate", &mut bytes);
    stdout::write_bytes(&bytes)?;
    Ok(exit::PASS)
}

/// Prints or writes manual pages.
pub fn print_man_pages(args: &ManArgs) -> anyhow::Result<u8> {
    match &args.dir {
        None => {
            let mut bytes = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut bytes)?;
            stdout::write_bytes(&bytes)?;
        }
        Some(dir) => clap_mangen::generate_to(Cli::command(), dir)
            .map_err(|error| CommandError::Environment(format!("{}: {error}", dir.display())))?,
    }
    Ok(exit::PASS)
}
