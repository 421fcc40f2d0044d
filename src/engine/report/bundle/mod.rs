//! The evidence bundle: the content of a run about one node, as files for a vendor's ticket.
//!
//! Values in, names and bytes out. Nothing is judged or drawn here: the page is the
//! run's own, of the part of the run that is about the node. The documents mark unknown
//! values and cut texts, and hold nothing about nodes that were never measured with this one.

mod csv_tables;
mod document;
mod evidence;
mod filtered;
#[cfg(test)]
mod fixture;
mod near;
mod raw_outputs;
mod redaction;
mod serials;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::html::HtmlPageContext;
use super::{ReportError, csv, html};
use model::id::NodeName;
use model::node_facts::NodeFacts;
use model::raw_result::RawResult;
use model::run::Run;
use model::tool_recording::ToolRecording;
use model::trend::Trend;
use model::verdict::Outcome;
use model::worker_protocol::MachineRecord;

pub use document::BundleDocument;
pub use near::nearest_names;
pub use raw_outputs::{
    BundleRawOutput, Excerpt, HEAD_BYTES, MAX_BYTES, TAIL_BYTES, list_wanted_outputs,
};
pub use redaction::NOT_CAUGHT;

/// The format of `bundle.json`.
pub const BUNDLE_FORMAT: &str = "fabricgate.bundle/2";
/// Digests of all other files, as `sha256sum -c` reads them.
pub const MANIFEST: &str = "MANIFEST.sha256";

/// Everything that is known of a run whose node a bundle is about.
#[derive(Clone, Debug)]
pub struct BundleCase {
    /// The node.
    pub node: NodeName,
    /// The run; its findings are empty where it was never judged.
    pub run: Run,
    /// Whether the judge's word is among it.
    pub judged: bool,
    /// How far the run came, in words.
    pub state: String,
    /// When it ended, RFC 3339.
    pub ended: Option<String>,
    /// The readings that ended.
    pub results: Vec<RawResult>,
    /// The workers' reports of their machines.
    pub machines: Vec<MachineRecord>,
    /// Outputs as they were read.
    pub recordings: Vec<ToolRecording>,
    /// The node's own facts, where they were collected.
    pub facts: Option<NodeFacts>,
    /// How its parts read over earlier runs, where history knows.
    pub trends: Vec<Trend>,
    /// What of the run could not be read.
    pub missing: Vec<String>,
    /// Names and addresses of others are taken out.
    pub redact: bool,
}

/// A bundle: one folder of files.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The folder's name.
    pub name: String,
    /// How the node came out; absent where nothing was judged.
    pub outcome: Option<Outcome>,
    /// Names and contents, the manifest among them.
    pub files: Vec<(String, Vec<u8>)>,
    /// What could not be packed, and why.
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

/// Makes the bundle of a node. `pieces` are the raw outputs that [`wanted`] asked for.
pub fn pack(mut case: BundleCase, pieces: Vec<BundleRawOutput>) -> Result<Bundle, ReportError> {
    let veil = case.redact.then(|| redaction::Redactor::new(&case));
    let (raw_files, index) = raw_outputs::pack_outputs(&case, pieces, veil.as_ref());
    case.missing.extend(index.missing.iter().cloned());
    if let Some(veil) = &veil {
        veil.redact_case(&mut case);
    }
    let sides = evidence::NodeEvidence::from_case(&case);
    let run = filtered::run(&case, &sides);
    let serials = serials::collect_serials(&case, &raw_files);
    let page = html::render(
        &run,
        &HtmlPageContext { trends: &case.trends, ..HtmlPageContext::default() },
    )?;
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut put = |name: &str, bytes: Vec<u8>| files.push((name.to_owned(), bytes));
    put("report.html", page.into_bytes());
    put("bundle.json", to_pretty_json(&document::document(&case, &sides, &serials)));
    put("matrix.csv", csv::render_matrix(&run));
    put("serials.csv", serials::render_csv(&serials));
    if let Some(table) = csv_tables::history(&case) {
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

/// The name of a bundle's folder: nothing in it leads elsewhere.
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
