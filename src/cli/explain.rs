//! `fabricgate explain`: from a verdict to its evidence, in words.

use std::path::PathBuf;

use super::exit;
use super::failure::Failure;
use super::stdout;
use super::stored;
use crate::report::explain::explain;

/// Show the chain from a verdict to its evidence.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// A node, NODE:GPU, a domain, or the id of a finding.
    #[arg(value_name = "LOCUS")]
    locus: String,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let stored = stored::open(&args.run)?;
    let run = stored::run(&stored)?;
    let Some(text) = explain(&run, &args.locus) else {
        let text = format!(
            "LOCUS {:?}: this run has no such node, domain or finding; expected NODE, NODE:GPU, \
             DOMAIN or the id of a finding",
            args.locus
        );
        return Err(Failure::Usage(text).into());
    };
    stdout::text(&text)?;
    Ok(exit::PASS)
}
