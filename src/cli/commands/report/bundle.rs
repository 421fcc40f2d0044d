//! `fabricgate report RUN --bundle NODE`: an archive of all that a run says of one node.

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

/// What a bundle is made of, and where it goes.
#[derive(Debug)]
pub(crate) struct BundleRequest<'a> {
    /// The run folder.
    pub run: &'a Path,
    /// The node.
    pub node: &'a str,
    /// The archive; named after run and node where nobody says.
    pub output: Option<&'a Path>,
    /// Names and addresses of others are taken out.
    pub redact: bool,
    /// What nodes said of themselves.
    pub facts: &'a [PathBuf],
}

/// The format of what `report --bundle --json` prints.
pub(crate) const PACKED_FORMAT: &str = "fabricgate.packed/1";

/// What was packed, for programs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PackedDocument<'a> {
    /// `fabricgate.packed/1`.
    format: &'static str,
    /// The run.
    run: &'a str,
    /// The node.
    node: &'a str,
    /// How the node came out; null where nothing was judged.
    outcome: Option<Outcome>,
    /// Where the archive is.
    archive: String,
    /// Its size.
    bytes: usize,
    /// Its SHA-256, hexadecimal.
    sha256: String,
    /// Names and addresses of others were taken out.
    redacted: bool,
    /// The files in it.
    files: Vec<PackedFile>,
    /// What could not be packed, and why.
    missing: &'a [String],
}

/// Makes the archive and says what is in it.
pub(crate) fn run(order: &BundleRequest<'_>, globals: &Globals) -> anyhow::Result<u8> {
    let output = OutputFile::open_optional(order.output.map(Path::to_owned).as_ref())?;
    let salvage = lenient_reader::read_partial_run(order.run).map_err(stored_run::record_error)?;
    let facts = read_node_facts(order)?;
    let mut case = collect_case(order, salvage, facts)?;
    if let Some(file) = comparison_page::find_history_index(order.run, globals)? {
        match read_node_trends(&case, &file) {
            Ok(trends) => case.trends = trends,
            Err(why) => case.missing.push(format!("the history {}: {why}", file.display())),
        }
    }
    let created = case.run.info.created.clone();
    let run = case.run.info.id.clone();
    let pieces = read_raw_outputs(order.run, bundle::list_wanted_outputs(&case));
    let bundle = bundle::pack(case, pieces)?;
    let bytes = archive::build_archive(&bundle.name, &bundle.files, to_unix_seconds(&created))?;
    let path = match order.output {
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
    let shown = path.display().to_string();
    if globals.json {
        stdout::write_json(&PackedDocument {
            format: PACKED_FORMAT,
            run: &run,
            node: order.node,
            outcome: bundle.outcome,
            archive: shown,
            bytes: bytes.len(),
            sha256: bundle::sha256_hex(&bytes),
            redacted: order.redact,
            files: bundle.manifest(),
            missing: &bundle.missing,
        })?;
    } else {
        let count = bundle.files.len();
        stdout::write_text(&format!("{shown}: {count} files, {} bytes\n", bytes.len()))?;
    }
    if order.redact {
        stdout::note(&format!("read it before you send it. {}", bundle::NOT_CAUGHT));
    }
    Ok(exit::PASS)
}

/// All that is known of the node; an error where the run does not know it.
fn collect_case(
    order: &BundleRequest<'_>,
    salvage: PartialRun,
    facts: Option<NodeFacts>,
) -> Result<BundleCase, CommandError> {
    let PartialRun { record, claims, verdicts, cells, results, machines, recordings, missing } =
        salvage;
    let judged = verdicts.is_some();
    let verdicts = verdicts.unwrap_or_else(|| Verdicts::empty(Outcome::Unknown));
    let case = BundleCase {
        node: NodeName::from(order.node),
        run: Run { info: record.info, claims, cells, verdicts, actions: None },
        judged,
        state: match record.state {
            RunState::Complete => "complete",
            RunState::Partial => "interrupted, partial",
            RunState::Running => "under way or ended without notice, partial",
        }
        .to_owned(),
        ended: record.ended,
        results,
        machines,
        recordings,
        facts,
        trends: Vec::new(),
        missing,
        redact: order.redact,
    };
    let nodes = bundle::named_nodes(&case);
    if nodes.contains(&case.node) {
        return Ok(case);
    }
    let shown = order.run.display();
    if nodes.is_empty() {
        let why = case.missing.join("; ");
        return Err(CommandError::usage(format!(
            "{shown}: nothing can be said of any node: {why}"
        )));
    }
    let near = bundle::nearest_names(order.node, &nodes);
    let near: Vec<&str> = near.into_iter().map(NodeName::as_str).collect();
    Err(CommandError::usage(format!(
        "--bundle {:?}: {shown} knows no such node, expected one of its {}, such as {}",
        order.node,
        nodes.len(),
        near.join(", ")
    )))
}

/// How the parts of the node read until this run: what came later is another
/// story, and would make another bundle of the same run.
fn read_node_trends(case: &BundleCase, file: &Path) -> Result<Vec<Trend>, String> {
    let words = |error: HistoryError| error.to_string();
    let history = RunHistory::open_read_only(file).map_err(words)?;
    let runs = history.runs().map_err(words)?;
    // What was simulated is no past of machines, nor the other way round.
    let Some(own) = runs.into_iter().find(|it| it.run == case.run.info.id) else {
        return Err(
            "this run is not among those that count in it; `fabricgate history` adds what \
                    is missing"
                .to_owned(),
        );
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
    let whole = history.full_resolution_since().map_err(words)?;
    let mut trends = history.trends(&selection).map_err(words)?;
    for trend in &mut trends {
        trend.points.retain(|point| point.at_unix <= own.at_unix);
        trend.alarms.retain(|alarm| alarm.at <= own.at);
        trend.changes.retain(|changed| changed.at <= own.at);
        drift::assess_since(trend, whole);
    }
    trends.retain(|trend| !trend.points.is_empty());
    Ok(trends)
}

/// What the node said of itself, where a file has it; of several the last counts.
fn read_node_facts(order: &BundleRequest<'_>) -> Result<Option<NodeFacts>, CommandError> {
    let mut found = None;
    for path in order.facts {
        let shown = path.display();
        let bytes = input_file::read(path).map_err(CommandError::environment)?;
        let text = String::from_utf8_lossy(&bytes);
        let is_ours = |facts: &NodeFacts| facts.format == NODE_FACTS_FORMAT;
        if let Ok(facts) = serde_json::from_str::<NodeFacts>(&text)
            && is_ours(&facts)
        {
            let hostname = facts.hostname.clone().unwrap_or_default();
            if NodeName::from(order.node).matches_host(&hostname) {
                found = Some(facts);
            } else {
                stdout::note(&format!("{shown}: facts of {hostname:?}, not of {}", order.node));
            }
            continue;
        }
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let line: NodeFactsLine = serde_json::from_str(line).map_err(|error| {
                CommandError::usage(format!(
                    "{shown}:{number}: {error}; expected what `fabricgate node facts --json` \
                     prints ({NODE_FACTS_FORMAT})"
                ))
            })?;
            if !is_ours(&line.facts) {
                let format = line.facts.format;
                return Err(CommandError::usage(format!(
                    "{shown}:{number}: format {format:?}, expected {NODE_FACTS_FORMAT:?}"
                )));
            }
            if line.node == order.node {
                found = Some(line.facts);
            }
        }
    }
    Ok(found)
}

/// The raw outputs, as far as there is room for them.
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

/// A moment in seconds since 1970; the beginning of 1970 where it is none.
fn to_unix_seconds(moment: &str) -> u64 {
    let at: Option<jiff::Timestamp> = moment.parse().ok();
    at.and_then(|it| u64::try_from(it.as_second()).ok()).unwrap_or(0)
}
