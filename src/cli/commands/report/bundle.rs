//! `fabricgate report RUN --bundle NODE`: an archive of everything a run knows about one node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::commands::report::comparison_page;
use crate::cli::output::OutputFile;
use crate::cli::stdout::Globals;
use crate::cli::{report_output, stdout, stored_run};
use crate::exit;
use crate::exit::CommandError;
use control::sources::input_file;
use control::store::history::{HistoryError, RunHistory, SeriesSelection};
use control::store::lenient_reader::PartialRun;
use control::store::{RunState, archive, lenient_reader};
use engine::judge::drift;
use engine::report::bundle;
use engine::report::bundle::{BundleCase, BundleRawOutput, Excerpt, PackedFile};
use model::id::NodeName;
use model::node_facts::{NODE_FACTS_FORMAT, NodeFacts, NodeFactsLine};
use model::run::Run;
use model::trend::{FabricPartKind, Trend};
use model::verdict::{Outcome, Verdicts};

/// The inputs and the output of a bundle.
#[derive(Debug)]
pub(crate) struct BundleRequest<'a> {
    /// The run folder.
    pub run: &'a Path,
    /// The node.
    pub node: &'a str,
    /// The archive; by default named after the run and the node.
    pub output: Option<&'a Path>,
    /// Whether names and addresses of other nodes are removed.
    pub redact: bool,
    /// Files with node facts.
    pub facts: &'a [PathBuf],
}

/// The format of `report --bundle --json`.
pub(crate) const PACKED_FORMAT: &str = "fabricgate.packed/1";

/// The result of `report --bundle --json`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PackedDocument<'a> {
    /// `fabricgate.packed/1`.
    format: &'static str,
    /// The run.
    run: &'a str,
    /// The node.
    node: &'a str,
    /// The outcome of the node; null if nothing was judged.
    outcome: Option<Outcome>,
    /// Path of the archive.
    archive: String,
    /// Size of the archive.
    bytes: usize,
    /// SHA-256 of the archive, hexadecimal.
    sha256: String,
    /// Whether names and addresses of other nodes were removed.
    redacted: bool,
    /// The files in the archive.
    files: Vec<PackedFile>,
    /// What could not be packed, and why.
    missing: &'a [String],
}

/// Writes the archive and prints its contents.
pub(crate) fn run(request: &BundleRequest<'_>, globals: &Globals) -> anyhow::Result<u8> {
    let output = OutputFile::open_optional(request.output.map(Path::to_owned).as_ref())?;
    let partial =
        lenient_reader::read_partial_run(request.run).map_err(stored_run::record_error)?;
    let facts = read_node_facts(request)?;
    let mut case = collect_case(request, partial, facts)?;
    if let Some(file) = comparison_page::find_history_index(request.run, globals)? {
        match read_node_trends(&case, &file) {
            Ok(trends) => case.trends = trends,
            Err(why) => case.missing.push(format!("the history {}: {why}", file.display())),
        }
    }
    let created = case.run.info.created.clone();
    let run = case.run.info.id.clone();
    let pieces = read_raw_outputs(request.run, bundle::list_wanted_outputs(&case));
    let bundle = bundle::pack(case, pieces)?;
    let bytes = archive::build_archive(&bundle.name, &bundle.files, to_unix_seconds(&created))?;
    let path = match request.output {
        Some(path) => path.to_owned(),
        None => PathBuf::from(format!("{}.tar.gz", bundle.name)),
    };
    match output {
        Some(output) => output.write(&bytes)?,
        None => report_output::write_file(&path, &bytes)?,
    }
    for missing in &bundle.missing {
        stdout::note(&format!("not in the bundle: {missing}"));
    }
    let archive_path = path.display().to_string();
    if globals.json {
        stdout::write_json(&PackedDocument {
            format: PACKED_FORMAT,
            run: &run,
            node: request.node,
            outcome: bundle.outcome,
            archive: archive_path,
            bytes: bytes.len(),
            sha256: bundle::sha256_hex(&bytes),
            redacted: request.redact,
            files: bundle.manifest(),
            missing: &bundle.missing,
        })?;
    } else {
        let count = bundle.files.len();
        stdout::write_text(&format!("{archive_path}: {count} files, {} bytes\n", bytes.len()))?;
    }
    if request.redact {
        stdout::note(&format!("review it before sending it. {}", bundle::NOT_CAUGHT));
    }
    Ok(exit::PASS)
}

/// Everything known about the node; an error if the run does not know the node.
fn collect_case(
    request: &BundleRequest<'_>,
    salvage: PartialRun,
    facts: Option<NodeFacts>,
) -> Result<BundleCase, CommandError> {
    let PartialRun { record, claims, verdicts, cells, results, machines, recordings, missing } =
        salvage;
    let judged = verdicts.is_some();
    let verdicts = verdicts.unwrap_or_else(|| Verdicts::empty(Outcome::Unknown));
    let case = BundleCase {
        node: NodeName::from(request.node),
        run: Run { info: record.info, claims, cells, verdicts, actions: None },
        judged,
        state: match record.state {
            RunState::Complete => "complete",
            RunState::Partial => "interrupted, partial",
            RunState::Running => "running or killed, partial",
        }
        .to_owned(),
        ended: record.ended,
        results,
        machines,
        recordings,
        facts,
        trends: Vec::new(),
        missing,
        redact: request.redact,
    };
    let nodes = bundle::named_nodes(&case);
    if nodes.contains(&case.node) {
        return Ok(case);
    }
    let run_path = request.run.display();
    if nodes.is_empty() {
        let why = case.missing.join("; ");
        return Err(CommandError::usage(format!(
            "{run_path}: nothing is known about any node: {why}"
        )));
    }
    let near = bundle::nearest_names(request.node, &nodes);
    let near: Vec<&str> = near.into_iter().map(NodeName::as_str).collect();
    Err(CommandError::usage(format!(
        "--bundle {:?}: no such node in {run_path}; expected one of its {}, such as {}",
        request.node,
        nodes.len(),
        near.join(", ")
    )))
}

/// The trends of the node's parts up to this run: later runs would make a different bundle of the
/// same run.
fn read_node_trends(case: &BundleCase, file: &Path) -> Result<Vec<Trend>, String> {
    let to_text = |error: HistoryError| error.to_string();
    let history = RunHistory::open_read_only(file).map_err(to_text)?;
    let runs = history.runs().map_err(to_text)?;
    // Simulated runs are not history of real machines, nor the other way round.
    let Some(this_run) = runs.into_iter().find(|it| it.run == case.run.info.id) else {
        return Err("the history does not count this run; `fabricgate history` adds missing runs"
            .to_owned());
    };
    let nodes = BTreeSet::from([case.node.clone()]);
    let selection = SeriesSelection {
        nodes,
        ..SeriesSelection::with_kinds([
            FabricPartKind::Node,
            FabricPartKind::Gpu,
            FabricPartKind::Rail,
        ])
    };
    let whole = history.full_resolution_since().map_err(to_text)?;
    let mut trends = history.trends(&selection).map_err(to_text)?;
    for trend in &mut trends {
        trend.points.retain(|point| point.at_unix <= this_run.at_unix);
        trend.alarms.retain(|alarm| alarm.at <= this_run.at);
        trend.changes.retain(|changed| changed.at <= this_run.at);
        drift::assess_since(trend, whole);
    }
    trends.retain(|trend| !trend.points.is_empty());
    Ok(trends)
}

/// The node's facts, if a file has them; the last match counts.
fn read_node_facts(request: &BundleRequest<'_>) -> Result<Option<NodeFacts>, CommandError> {
    let mut found = None;
    for path in request.facts {
        let path_text = path.display();
        let bytes = input_file::read(path).map_err(CommandError::environment)?;
        let text = String::from_utf8_lossy(&bytes);
        let is_node_facts = |facts: &NodeFacts| facts.format == NODE_FACTS_FORMAT;
        if let Ok(facts) = serde_json::from_str::<NodeFacts>(&text)
            && is_node_facts(&facts)
        {
            let hostname = facts.hostname.clone().unwrap_or_default();
            if NodeName::from(request.node).matches_host(&hostname) {
                found = Some(facts);
            } else {
                stdout::note(&format!(
                    "{path_text}: facts of {hostname:?}, not of {}",
                    request.node
                ));
            }
            continue;
        }
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let line: NodeFactsLine = serde_json::from_str(line).map_err(|error| {
                CommandError::usage(format!(
                    "{path_text}:{number}: {error}; expected the output of `fabricgate node facts \
                     --json` ({NODE_FACTS_FORMAT})"
                ))
            })?;
            if !is_node_facts(&line.facts) {
                let format = line.facts.format;
                return Err(CommandError::usage(format!(
                    "{path_text}:{number}: format {format:?}, expected {NODE_FACTS_FORMAT:?}"
                )));
            }
            if line.node == request.node {
                found = Some(line.facts);
            }
        }
    }
    Ok(found)
}

/// The raw outputs that fit into the size limit.
fn read_raw_outputs(folder: &Path, wanted: Vec<String>) -> Vec<BundleRawOutput> {
    let mut left = bundle::MAX_BYTES;
    let one = |name: String| {
        let found = if left == 0 {
            Err(format!(
                "left out: a bundle holds {} bytes of raw outputs at most",
                bundle::MAX_BYTES
            ))
        } else {
            let first = bundle::HEAD_BYTES.min(left);
            lenient_reader::read_head_and_tail(
                folder,
                &name,
                first,
                bundle::TAIL_BYTES.min(left - first),
            )
            .map(|(head, tail, left_out)| Excerpt { head, tail, left_out })
            .map_err(|error| format!("cannot be read: {error}"))
        };
        if let Ok(excerpt) = &found {
            let taken = (excerpt.head.len() + excerpt.tail.len()) as u64;
            left = left.saturating_sub(taken);
        }
        BundleRawOutput { name, found }
    };
    wanted.into_iter().map(one).collect()
}

/// A timestamp in seconds since 1970; 0 if it cannot be parsed.
fn to_unix_seconds(moment: &str) -> u64 {
    let at: Option<jiff::Timestamp> = moment.parse().ok();
    at.and_then(|it| u64::try_from(it.as_second()).ok()).unwrap_or(0)
}
