//! `fabricgate explain`: from a verdict to its evidence, in words.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::exit;
use super::failure::Failure;
use super::stdout;
use super::stored;
use crate::report::explain::dated;
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

/// The format of `explain --json`.
pub(super) const EXPLAIN_FORMAT: &str = "fabricgate.explain/1";

/// One explanation.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ExplainDocument<'a> {
    /// `fabricgate.explain/1`.
    format: &'static str,
    /// The run it is taken from.
    run: &'a str,
    /// It measured a simulated fabric: no hardware was measured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    simulated: bool,
    /// What was asked for.
    locus: &'a str,
    /// The chain in words, line by line.
    text: Vec<&'a str>,
}

/// Runs the command.
pub fn run(args: &Args, json: bool) -> anyhow::Result<u8> {
    let stored = stored::open(&args.run)?;
    let results = stored.results().map_err(stored::failure)?;
    let taken =
        results.into_iter().filter_map(|r| Some((r.stdout?, (r.started, r.stage)))).collect();
    let run = dated(stored::run(&stored)?, &taken);
    let Some(text) = explain(&run, &args.locus) else {
        let text = format!(
            "LOCUS {:?}: this run has no such node, domain or finding; expected NODE, NODE:GPU, \
             DOMAIN or the id of a finding",
            args.locus
        );
        return Err(Failure::Usage(text).into());
    };
    if json {
        stdout::json(&ExplainDocument {
            format: EXPLAIN_FORMAT,
            run: &run.info.id,
            simulated: run.info.simulated,
            locus: &args.locus,
            text: text.lines().collect(),
        })?;
    } else {
        stdout::text(&text)?;
    }
    Ok(exit::PASS)
}
