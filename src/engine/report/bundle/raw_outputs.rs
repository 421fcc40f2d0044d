//! The raw outputs that concern a node, and the index that describes them.
//!
//! Packed are the outputs of the node itself and of pairs with it. Outputs of more nodes are packed
//! if a finding about this node cites them; otherwise the index only names them.

use std::collections::{BTreeMap, BTreeSet};

use super::evidence::NodeEvidence;
use super::redaction::Redactor;
use super::{BundleCase, render_table};
use model::raw_result::{ProcessEnding, RawResult};

/// Bytes kept of the beginning of one output.
pub const HEAD_BYTES: u64 = 1 << 20;
/// Bytes kept of its end, if it is longer.
pub const TAIL_BYTES: u64 = 1 << 18;
/// Most bytes of raw outputs in one bundle; ticket systems accept some tens of megabytes, and text
/// compresses to a tenth of its size.
pub const MAX_BYTES: u64 = 64 << 20;

/// A raw output of the run folder.
#[derive(Clone, Debug)]
pub struct BundleRawOutput {
    /// Its name in the run folder.
    pub name: String,
    /// Its bytes, or why they are missing.
    pub found: Result<Excerpt, String>,
}

/// An output, without its middle if it is long.
#[derive(Clone, Debug)]
pub struct Excerpt {
    /// Its beginning, or all of it.
    pub head: Vec<u8>,
    /// Its end, if the middle is left out.
    pub tail: Vec<u8>,
    /// Bytes left out between them.
    pub left_out: u64,
}

#[derive(Clone, Debug)]
pub(super) struct RawIndexEntry {
    /// Its name in the bundle; absent if it is not packed.
    pub(super) file: Option<String>,
    pub(super) stream: &'static str,
    pub(super) probe: String,
    pub(super) stage: u8,
    pub(super) step: usize,
    pub(super) reading: u32,
    pub(super) nodes: Vec<String>,
    pub(super) rail: Option<String>,
    pub(super) command: String,
    pub(super) ending: String,
    pub(super) exit: Option<i32>,
    pub(super) started: String,
    pub(super) seconds: f64,
    /// Whether a finding about the node cites it.
    pub(super) cited: bool,
    /// The deviation from a complete copy: cut, or not packed, and why.
    pub(super) remark: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RawIndex {
    pub(super) entries: Vec<RawIndexEntry>,
    /// Expected outputs that are missing.
    pub(super) missing: Vec<String>,
}

/// The raw outputs to pack, by their names in the run folder; those that findings cite come first,
/// so that a full bundle keeps them.
pub fn list_wanted_outputs(case: &BundleCase) -> Vec<String> {
    let cited = cited_files(case);
    let mut names = Vec::new();
    for result in node_results(case).filter(|it| is_packed(it, &cited)) {
        names.extend([&result.stdout, &result.stderr].into_iter().flatten().cloned());
    }
    names.sort_by_key(|name| !cited.contains(name));
    names
}

/// Files that findings about the node cite.
fn cited_files(case: &BundleCase) -> BTreeSet<String> {
    let sides = NodeEvidence::from_case(case);
    sides.against.iter().flat_map(|it| &it.evidence).map(|it| it.file.clone()).collect()
}

fn node_results(case: &BundleCase) -> impl Iterator<Item = &RawResult> {
    case.results.iter().filter(|it| it.nodes.contains(&case.node))
}

fn is_packed(result: &RawResult, cited: &BTreeSet<String>) -> bool {
    result.nodes.len() <= 2 || result.stdout.as_ref().is_some_and(|name| cited.contains(name))
}

/// The packed outputs by name, and the index of all outputs.
pub(super) fn pack_outputs(
    case: &BundleCase,
    pieces: Vec<BundleRawOutput>,
    veil: Option<&Redactor>,
) -> (Vec<(String, Vec<u8>)>, RawIndex) {
    let cited = cited_files(case);
    let mut found: BTreeMap<String, Result<Excerpt, String>> =
        pieces.into_iter().map(|piece| (piece.name, piece.found)).collect();
    let redacted = |text: &str| veil.map_or_else(|| text.to_owned(), |veil| veil.redact_text(text));
    let (mut files, mut index) = (Vec::new(), RawIndex::default());
    let mut results: Vec<&RawResult> = node_results(case).collect();
    results.sort_by(|a, b| (&a.started, a.step, a.reading).cmp(&(&b.started, b.step, b.reading)));
    for result in results {
        let streams = [
            ("stdout", &result.stdout, result.stdout_dropped),
            ("stderr", &result.stderr, result.stderr_dropped),
        ];
        let is_cited = result.stdout.as_ref().is_some_and(|name| cited.contains(name));
        let mut entry = |stream, file: Option<String>, remark: String| {
            index.entries.push(RawIndexEntry {
                file,
                stream,
                probe: redacted(&result.probe),
                stage: result.stage,
                step: result.step,
                reading: result.reading,
                nodes: result.nodes.iter().map(|it| redacted(it.as_str())).collect(),
                rail: result.rail.clone(),
                command: redacted(&result.argv.join(" ")),
                ending: redacted(&result.ending.to_string()),
                exit: match result.ending {
                    ProcessEnding::Exited { code } => Some(code),
                    _ => None,
                },
                started: result.started.clone(),
                seconds: result.duration_s,
                cited: is_cited,
                remark: redacted(&remark),
            });
        };
        if result.stdout.is_none() && result.stderr.is_none() {
            entry("none", None, "no process was started, or it printed nothing".to_owned());
        }
        for (stream, name, dropped) in streams {
            let Some(name) = name else { continue };
            if !is_packed(result, &cited) {
                let nodes = result.nodes.len();
                let why = format!(
                    "not packed: it is about {nodes} nodes, and no finding about this node cites it"
                );
                entry(stream, None, why);
                continue;
            }
            let mut remark = match dropped {
                0 => String::new(),
                more => format!("the tool printed {more} bytes more than the run kept; "),
            };
            let excerpt = match found.remove(name) {
                Some(Ok(excerpt)) => excerpt,
                Some(Err(why)) => {
                    index.missing.push(redacted(&format!("{name}: {why}")));
                    entry(stream, None, format!("{remark}{why}"));
                    continue;
                }
                None => {
                    entry(stream, None, format!("{remark}not packed"));
                    continue;
                }
            };
            let Excerpt { mut head, tail, left_out } = excerpt;
            if 0 < left_out {
                let mark = format!("\n[fabricgate: {left_out} bytes are left out here]\n");
                remark.push_str(&format!("{left_out} bytes of its middle are left out; "));
                head.extend(mark.bytes());
                head.extend(tail);
            }
            if let Some(veil) = veil {
                head = veil.redact_text(&String::from_utf8_lossy(&head)).into_bytes();
            }
            let packed = path_below_raw(&redacted(name));
            entry(stream, Some(packed.clone()), remark.trim_end_matches("; ").to_owned());
            files.push((packed, head));
        }
    }
    (files, index)
}

/// A name inside the bundle: as in the run folder, which has the outputs in `raw`.
fn path_below_raw(name: &str) -> String {
    let safe: Vec<&str> =
        name.split('/').filter(|part| !part.is_empty() && !matches!(*part, "." | "..")).collect();
    let name = safe.join("/");
    if name.starts_with("raw/") { name } else { format!("raw/{name}") }
}

pub(super) fn render_csv(index: &RawIndex) -> Vec<u8> {
    let header = [
        "file",
        "stream",
        "probe",
        "stage",
        "step",
        "reading",
        "nodes",
        "rail",
        "started",
        "seconds",
        "exit_code",
        "ending",
        "cited_by_a_finding",
        "command",
        "remark",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for it in &index.entries {
        let nodes = match it.nodes.as_slice() {
            few @ ([_] | [_, _]) => few.join(" "),
            many => format!("{} nodes", many.len()),
        };
        rows.push(vec![
            it.file.clone().unwrap_or_default(),
            it.stream.to_owned(),
            it.probe.clone(),
            it.stage.to_string(),
            it.step.to_string(),
            it.reading.to_string(),
            nodes,
            it.rail.clone().unwrap_or_default(),
            it.started.clone(),
            format!("{:.3}", it.seconds),
            it.exit.map(|code| code.to_string()).unwrap_or_default(),
            it.ending.clone(),
            if it.cited { "yes" } else { "no" }.to_owned(),
            it.command.clone(),
            it.remark.clone(),
        ]);
    }
    render_table(&rows)
}
