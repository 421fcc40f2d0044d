//! `fabricgate explain`: the chain from a verdict to its evidence, as text.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::stdout::{Globals, note};
use crate::cli::{run_lookup, stdout, stored_run};
use crate::exit;
use crate::exit::CommandError;
use engine::policy::drain_reason;
use engine::report::explain::{explain, with_dates};
use model::hostlist;
use model::id::NodeName;
use model::run::Run;
use model::verdict::{Finding, Outcome};

/// Show the chain from a verdict to its evidence.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain. Or only a node: the newest
    /// run that measured it.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// A node, NODE:GPU, a domain, or the id of a finding. Not needed after the reason of a drain
    /// that names one node.
    #[arg(value_name = "LOCUS")]
    locus: Option<String>,
}

/// The format of `explain --json`.
pub(crate) const EXPLAIN_FORMAT: &str = "fabricgate.explain/1";

/// The result of `explain --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExplainDocument<'a> {
    /// `fabricgate.explain/1`.
    format: &'static str,
    /// The run that contains the evidence.
    run: &'a str,
    /// Whether the run measured a simulated fabric: no hardware was measured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    simulated: bool,
    /// The requested locus.
    locus: &'a str,
    /// The chain, line by line.
    text: Vec<&'a str>,
}

/// Runs the command.
pub fn run(args: &ExplainArgs, globals: &Globals) -> anyhow::Result<u8> {
    let (folder, target) = resolve_target(args, globals.config.as_deref())?;
    let stored = stored_run::open_run(&folder)?;
    let results = stored.results().map_err(stored_run::record_error)?;
    let dates =
        results.into_iter().filter_map(|r| Some((r.stdout?, (r.started, r.stage)))).collect();
    let run = with_dates(stored_run::read_run(&stored)?, &dates);
    let locus = match target {
        ExplainTarget::Locus(locus) => locus,
        ExplainTarget::Class(class) => node_with_class(&run, &class)?,
        ExplainTarget::Nothing => return Err(missing_locus(&run).into()),
    };
    let Some(text) = explain(&run, &locus) else {
        let text = format!(
            "LOCUS {:?}: this run has no such node, domain or finding; expected NODE, NODE:GPU, \
             DOMAIN or the id of a finding",
            locus
        );
        return Err(CommandError::Usage(text).into());
    };
    if globals.json {
        stdout::write_json(&ExplainDocument {
            format: EXPLAIN_FORMAT,
            run: &run.info.id,
            simulated: run.info.simulated,
            locus: &locus,
            text: text.lines().collect(),
        })?;
    } else {
        stdout::write_text(&text)?;
    }
    Ok(exit::PASS)
}

/// The part of a run to explain.
enum ExplainTarget {
    /// This locus.
    Locus(String),
    /// The node that a reason with this class drained.
    Class(String),
    /// No locus was given.
    Nothing,
}

/// The requested run, and its part.
fn resolve_target(
    args: &ExplainArgs,
    config: Option<&Path>,
) -> Result<(PathBuf, ExplainTarget), CommandError> {
    let folder = run_lookup::find_run(&args.run, config)?;
    if let Some(locus) = &args.locus {
        return Ok((folder, ExplainTarget::Locus(locus.clone())));
    }
    let text = args.run.to_string_lossy();
    if drain_reason::is_ours(&text) && !args.run.exists() {
        return Ok((folder, ExplainTarget::Class(run_lookup::parse_drain_reason(&text)?.class)));
    }
    if folder.exists() {
        return Ok((folder, ExplainTarget::Nothing));
    }
    // `node0007:2` is a GPU of `node0007`.
    let node = text.split(':').next().unwrap_or_default();
    let folder = run_lookup::find_run_of_node(&NodeName::from(node), config)?;
    note(&format!("{}: the newest run that measured {node}", folder.display()));
    Ok((folder, ExplainTarget::Locus(text.into_owned())))
}

/// The node about which a run has findings of this class.
fn node_with_class(run: &Run, class: &str) -> Result<String, CommandError> {
    let is_named = |f: &&Finding| drain_reason::is_same_class(class, f.class.as_str());
    let nodes: BTreeSet<&str> = blamed_nodes(run, is_named);
    match nodes.iter().collect::<Vec<_>>().as_slice() {
        [one] => Ok((**one).to_owned()),
        [] => Err(CommandError::Usage(format!(
            "run {} found nothing of class {class} about a node; expected LOCUS after the reason",
            run.info.id
        ))),
        several => Err(CommandError::Usage(format!(
            "run {} found {class} about {} nodes; expected one of them after the reason: {}",
            run.info.id,
            several.len(),
            fold_nodes(&nodes)
        ))),
    }
}

/// The error for a missing LOCUS, with the possible ones.
fn missing_locus(run: &Run) -> CommandError {
    let nodes = blamed_nodes(run, |f| Outcome::Unknown < f.outcome);
    let what = match nodes.is_empty() {
        true => "it found nothing about a node".to_owned(),
        false => format!("it found something about {}", fold_nodes(&nodes)),
    };
    CommandError::Usage(format!("LOCUS is missing after run {}: {what}", run.info.id))
}

/// Nodes that these findings are about.
fn blamed_nodes(run: &Run, is_meant: impl Fn(&&Finding) -> bool) -> BTreeSet<&str> {
    let findings = run.verdicts.findings.iter().filter(is_meant);
    findings.filter_map(|f| f.locus.node.as_ref()).map(NodeName::as_str).collect()
}

/// Formats nodes as a host list.
fn fold_nodes(nodes: &BTreeSet<&str>) -> String {
    hostlist::fold(nodes.iter().copied())
}
