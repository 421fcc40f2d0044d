//! The evidence bundle: the content of a run about one node, as files for a vendor's ticket.
//!
//! Values in, names and bytes out. Nothing is judged or drawn here: the page is the run's page,
//! limited to the part of the run that is about the node. The documents mark unknown values and cut
//! texts, and hold nothing about nodes that were never measured with this one.

mod evidence;
mod filtered;
#[cfg(test)]
mod fixture;
mod raw_outputs;
mod redaction;
mod serials;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::html::HtmlPageContext;
use super::plain_text::to_plain;
use super::{ReportError, csv, html, trend};
use model::id::NodeName;
use model::node_facts::NodeFacts;
use model::raw_result::RawResult;
use model::run::{Run, RunInfo};
use model::text::edit_distance;
use model::tool_recording::ToolRecording;
use model::trend::{HISTORY_FORMAT, HistoryDocument, Trend};
use model::verdict::{Finding, NodeVerdict, Outcome, UnknownEntry};
use model::worker_protocol::MachineRecord;

use evidence::NodeEvidence;
pub use raw_outputs::{
    BundleRawOutput, Excerpt, HEAD_BYTES, MAX_BYTES, TAIL_BYTES, list_wanted_outputs,
};
pub use redaction::NOT_CAUGHT;
use serials::HardwareSerials;

/// The format of `bundle.json`.
pub const BUNDLE_FORMAT: &str = "fabricgate.bundle/2";
/// Digests of all other files, as `sha256sum -c` reads them.
pub const MANIFEST: &str = "MANIFEST.sha256";

/// A run with its context, and the node of the bundle.
#[derive(Clone, Debug)]
pub struct BundleCase {
    /// The node.
    pub node: NodeName,
    /// The run; its findings are empty if it was never judged.
    pub run: Run,
    /// Whether the run contains verdicts.
    pub judged: bool,
    /// How far the run got, as text.
    pub state: String,
    /// When it ended, RFC 3339.
    pub ended: Option<String>,
    /// The results of completed steps.
    pub results: Vec<RawResult>,
    /// The workers' reports about their machines.
    pub machines: Vec<MachineRecord>,
    /// The parsed outputs.
    pub recordings: Vec<ToolRecording>,
    /// The node's own facts, if they were collected.
    pub facts: Option<NodeFacts>,
    /// Readings of its parts over earlier runs, if the history has them.
    pub trends: Vec<Trend>,
    /// Parts of the run that could not be read.
    pub missing: Vec<String>,
    /// Whether to remove names and addresses of other machines.
    pub redact: bool,
}

/// A bundle: one folder of files.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The folder's name.
    pub name: String,
    /// The node's outcome; absent if the run was not judged.
    pub outcome: Option<Outcome>,
    /// Names and contents, including the manifest.
    pub files: Vec<(String, Vec<u8>)>,
    /// Files that could not be packed, and why.
    pub missing: Vec<String>,
}

/// One packed file (a line of the manifest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PackedFile {
    /// Its name inside the bundle's folder.
    pub name: String,
    /// Its size.
    pub bytes: usize,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

impl Bundle {
    /// Every file with its digest, in order of name.
    pub fn manifest(&self) -> Vec<PackedFile> {
        let one = |(name, bytes): &(String, Vec<u8>)| PackedFile {
            name: name.clone(),
            bytes: bytes.len(),
            sha256: sha256_hex(bytes),
        };
        let mut packed: Vec<PackedFile> = self.files.iter().map(one).collect();
        packed.sort_by(|a, b| a.name.cmp(&b.name));
        packed
    }
}

/// Every node that this run names in any way.
pub fn named_nodes(case: &BundleCase) -> BTreeSet<NodeName> {
    let claims = &case.run.claims;
    let claimed = claims.domains.iter().flat_map(|it| &it.nodes);
    let leaves = claims.leaves.iter().flat_map(|it| &it.nodes);
    let reported = claims.nodes.keys();
    let judged = case.run.verdicts.nodes.iter().map(|it| &it.node);
    let measured = case.results.iter().flat_map(|it| &it.nodes);
    let cells = case.run.cells.iter().flat_map(|it| [&it.src_node, &it.dst_node]).flatten();
    let machines = case.machines.iter().map(|it| &it.node);
    let all = claimed.chain(leaves).chain(reported).chain(judged).chain(measured).chain(machines);
    let mut nodes: BTreeSet<NodeName> = all.cloned().collect();
    for node in cells {
        if !nodes.contains(node) {
            nodes.insert(node.clone());
        }
    }
    nodes
}

/// Builds the bundle of a node. `pieces` are the raw outputs that [`list_wanted_outputs`] names.
pub fn pack(mut case: BundleCase, pieces: Vec<BundleRawOutput>) -> Result<Bundle, ReportError> {
    let veil = case.redact.then(|| redaction::Redactor::new(&case));
    let (raw_files, index) = raw_outputs::pack_outputs(&case, pieces, veil.as_ref());
    case.missing.extend(index.missing.iter().cloned());
    if let Some(veil) = &veil {
        veil.redact_case(&mut case);
    }
    let sides = NodeEvidence::from_case(&case);
    let run = filtered::run(&case, &sides);
    let serials = serials::collect_serials(&case, &raw_files);
    let page = html::render(
        &run,
        &HtmlPageContext { trends: &case.trends, ..HtmlPageContext::default() },
    )?;
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut put = |name: &str, bytes: Vec<u8>| files.push((name.to_owned(), bytes));
    put("report.html", page.into_bytes());
    put("bundle.json", to_pretty_json(&build_document(&case, &sides, &serials)));
    put("matrix.csv", csv::render_matrix(&run));
    put("serials.csv", serials::render_csv(&serials));
    if let Some(table) = render_history(&case) {
        put("history.csv", table);
    }
    put("raw/index.csv", raw_outputs::render_csv(&index));
    files.extend(raw_files);
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let lines: String =
        files.iter().map(|(name, bytes)| format!("{}  {name}\n", sha256_hex(bytes))).collect();
    files.push((MANIFEST.to_owned(), lines.into_bytes()));
    let missing = case.missing;
    let outcome = sides.verdict.as_ref().map(|it| it.outcome);
    Ok(Bundle { name: bundle_name(&case.run.info.id, &case.node), outcome, files, missing })
}

/// The name of a bundle's folder; it contains no path separator.
pub fn bundle_name(run: &str, node: &NodeName) -> String {
    let safe = |text: &str| -> String {
        let kept = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        text.chars().take(100).map(kept).collect()
    };
    format!("fabricgate-{}-{}", safe(run), safe(node.as_str()))
}

fn to_pretty_json<T: Serialize>(document: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document)
        .expect("documents are structs, lists and numbers, all of which JSON has");
    bytes.push(b'\n');
    bytes
}

/// SHA-256, hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The complete evidence about the node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BundleDocument<'a> {
    /// `fabricgate.bundle/2`.
    format: &'static str,
    /// The node.
    node: &'a str,
    /// The run.
    run: &'a RunInfo,
    /// How far the run got, as text.
    state: &'a str,
    /// When it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'a str>,
    /// The node's outcome; absent if the run was not judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a NodeVerdict>,
    /// Findings about the node or a part of it.
    against: &'a [Finding],
    /// Findings about something larger that contains the node.
    larger: &'a [Finding],
    /// Unknowns about the node.
    unknown: &'a [UnknownEntry],
    /// The identity of its hardware.
    serials: &'a HardwareSerials,
    /// Files that could not be packed, and why.
    missing: &'a [String],
    /// Whether names and addresses of other machines were removed.
    redacted: bool,
}

fn build_document<'a>(
    case: &'a BundleCase,
    sides: &'a NodeEvidence,
    serials: &'a HardwareSerials,
) -> BundleDocument<'a> {
    BundleDocument {
        format: BUNDLE_FORMAT,
        node: case.node.as_str(),
        run: &case.run.info,
        state: &case.state,
        ended: case.ended.as_deref(),
        verdict: sides.verdict.as_ref(),
        against: &sides.against,
        larger: &sides.larger,
        unknown: &sides.unknown,
        serials,
        missing: &case.missing,
        redacted: case.redact,
    }
}

/// Every point of every series of the node as a table; `None` without a series.
fn render_history(case: &BundleCase) -> Option<Vec<u8>> {
    let document = HistoryDocument {
        format: HISTORY_FORMAT.to_owned(),
        file: String::new(),
        runs: 0,
        simulated: case.run.info.simulated,
        first: None,
        last: None,
        nodes: Vec::new(),
        trends: case.trends.clone(),
        runs_per_false_alarm: None,
        notes: Vec::new(),
    };
    (!document.trends.is_empty()).then(|| trend::render_csv(&document))
}

/// Rows as CSV; a field that a spreadsheet would run as a formula gets a leading quote, as in
/// `matrix.csv`.
fn render_table(rows: &[Vec<String>]) -> Vec<u8> {
    const IN_MEMORY: &str = "a vector takes every byte, and all rows have as many fields";
    let mut writer = ::csv::WriterBuilder::new().from_writer(Vec::new());
    for row in rows {
        let safe = row.iter().map(|field| {
            let field = to_plain(field);
            let is_formula = field.starts_with(['=', '+', '-', '@']);
            if is_formula { format!("'{field}") } else { field.into_owned() }
        });
        writer.write_record(safe).expect(IN_MEMORY);
    }
    writer.into_inner().unwrap_or_default()
}

const MOST_NAMES: usize = 5;

/// The names that differ least from this one, the nearest first.
pub fn nearest_names<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a NodeName>,
) -> Vec<&'a NodeName> {
    let mut all: Vec<(usize, &NodeName)> =
        known.into_iter().map(|it| (edit_distance(name, it.as_str()), it)).collect();
    all.sort();
    all.into_iter().take(MOST_NAMES).map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_node() {
        let known: Vec<NodeName> = ["node0001", "node0010", "gpu7"].map(NodeName::from).to_vec();
        assert_eq!(nearest_names("node001", &known)[0].as_str(), "node0001");
        assert_eq!(nearest_names("gpu-7", &known)[0].as_str(), "gpu7");
    }
}
