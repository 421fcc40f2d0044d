//! Facts of nodes: one document of `fabricgate node facts --json`, or many, each preceded by the
//! name of its node.
//!
//! A driver's information about its own GPU is a report, not an assertion. A node whose GPUs
//! disagree is not in any group.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::claims::reader_util::sanitize_text;
use model::gpu_facts::{FabricFacts, FabricState, GpuFacts};
use model::id::NodeName;
use model::node_facts::{NODE_FACTS_FORMAT, NicFacts, NodeFacts, NodeFactsLine};
use model::source_report::{
    ClaimBasis, FabricReport, NicReport, NodeGroup, NodeGroupKind, NodeReport, SourceKind,
    SourceProblemKind, SourceReport,
};
use model::text_error::line_column;

/// The format without its version.
const FORMAT: &str = "fabricgate.node-facts/";

/// Search window for the format at the start of a document that fabricgate wrote.
const FORMAT_WINDOW: usize = 1_000;

/// Scheme of the groups that the driver reports.
const SCHEME: &str = "clique";

/// Whether a text contains node facts.
pub fn recognises(text: &str) -> bool {
    let text = text.trim_start();
    if !text.starts_with('{') {
        return false;
    }
    let mut end = text.len().min(FORMAT_WINDOW);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let names_it = |text: &str| text.contains(&format!("\"{FORMAT}"));
    if names_it(&text[..end]) {
        return true;
    }
    // Another tool may have reordered the fields.
    names_it(text)
        && split_documents(text).first().is_some_and(|(_, chunk)| {
            serde_json::from_str::<Value>(chunk)
                .is_ok_and(|document| format_name(&document).is_some())
        })
}

/// The format named by a document, or by the document that it wraps.
fn format_name(document: &Value) -> Option<&str> {
    let named = document.get("format").or_else(|| document.get("facts")?.get("format"));
    named?.as_str().filter(|format| format.starts_with(FORMAT))
}

/// Documents with their offsets: each starts at the beginning of a line, and no line within one
/// starts with a brace.
fn split_documents(text: &str) -> Vec<(usize, &str)> {
    let mut starts: Vec<usize> = text.match_indices("\n{").map(|(at, _)| at + 1).collect();
    starts.insert(0, 0);
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let all = starts.iter().copied().zip(ends).map(|(start, end)| (start, &text[start..end]));
    all.filter(|(_, chunk)| !chunk.trim().is_empty()).collect()
}

/// Parses the facts. `place` is their name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut documents = Vec::new();
    let mut report = SourceReport::new(SourceKind::NodeFacts, place);
    for (start, chunk) in split_documents(text) {
        let at = |offset: usize| {
            let (line, column) = line_column(text, offset);
            format!("{place}:{line}:{column}")
        };
        match parse_document(chunk) {
            Ok((node, facts)) => documents.push((at(start), node, facts)),
            Err(NodeFactsReadError { kind, offset, message }) => {
                report.push_problem(kind, at(start + offset), message);
            }
        }
    }
    if documents.is_empty() && report.problems.is_empty() {
        report.push_problem(SourceProblemKind::Malformed, place.to_owned(), "no document found");
    }
    for (at, node, facts) in documents {
        let node = node.or_else(|| facts.hostname.clone()).map(|name| sanitize_text(&name));
        let Some(node) = node.filter(|name| !name.is_empty()) else {
            let message = "the document names neither a node nor a host, so its node is unknown";
            report.push_problem(SourceProblemKind::Incomplete, at, message);
            continue;
        };
        add_node(&mut report, &at, &NodeName::from(node), &facts);
    }
    add_clique_groups(&mut report);
    report
}

/// Adds the facts of one node under the name that the collector used for it.
pub fn add_node(report: &mut SourceReport, at: &str, node: &NodeName, facts: &NodeFacts) {
    if report.nodes.contains_key(node) {
        let message = format!("{node} occurs twice; the first is used");
        report.push_problem(SourceProblemKind::Contradictory, at.to_owned(), message);
        return;
    }
    let of = node_report(report, at, node, facts);
    report.nodes.insert(node.clone(), of);
}

/// Groups the nodes whose GPUs agree on a clique.
pub fn add_clique_groups(report: &mut SourceReport) {
    let mut cliques: BTreeMap<String, Vec<(NodeName, Option<u32>)>> = BTreeMap::new();
    let mut troubles = Vec::new();
    for (node, of) in &report.nodes {
        match node_clique(of) {
            NodeClique::None => {}
            NodeClique::One(name) => cliques.entry(name).or_default().push((node.clone(), of.gpus)),
            NodeClique::Several(which) => {
                let message = format!("the GPUs of {node} are in different cliques: {which}");
                troubles.push((SourceProblemKind::Contradictory, message));
            }
            NodeClique::Partly { name, others } => {
                let message = format!(
                    "{node}: not all GPUs are in clique {name}: {others}; the node is not counted as \
                     a member"
                );
                troubles.push((SourceProblemKind::Incomplete, message));
            }
        }
    }
    for (kind, message) in troubles {
        report.push_problem(kind, None, message);
    }
    for (name, members) in cliques {
        let counts: Vec<Option<u32>> = members.iter().map(|(_, gpus)| *gpus).collect();
        let alike = counts.windows(2).all(|pair| pair[0] == pair[1]);
        let nodes = members.into_iter().map(|(node, _)| node).collect();
        let mut group = NodeGroup::new(NodeGroupKind::Domain, SCHEME, name, nodes);
        group.gpus_per_node = counts.first().copied().flatten().filter(|_| alike);
        group.basis = ClaimBasis::Reported;
        group.at = Some("the driver's fabric information".to_owned());
        report.groups.push(group);
    }
}

/// The cliques of all GPUs of a node.
enum NodeClique {
    /// No GPU reports a clique.
    None,
    /// All GPUs report the same clique.
    One(String),
    /// The GPUs report different cliques.
    Several(String),
    /// Some GPUs report one clique, and the others none.
    Partly { name: String, others: String },
}

fn node_clique(of: &NodeReport) -> NodeClique {
    let mut by_clique: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for fabric in &of.fabric {
        let gpu = fabric.gpu.map_or_else(|| "?".to_owned(), |gpu| gpu.to_string());
        match fabric.clique() {
            Some(clique) => by_clique.entry(clique).or_default().push(gpu),
            None => without.push((gpu, fabric.state.clone().unwrap_or_default())),
        }
    }
    let unreported =
        usize::try_from(of.gpus.unwrap_or(0)).unwrap_or(0).saturating_sub(of.fabric.len());
    let mut all = by_clique.iter();
    match (all.next(), all.next()) {
        (None, _) => NodeClique::None,
        (Some((name, _)), None) if without.is_empty() && unreported == 0 => {
            NodeClique::One(name.clone())
        }
        (Some((name, _)), None) => {
            let mut others: Vec<String> =
                without.into_iter().map(|(gpu, state)| format!("GPU {gpu} is {state}")).collect();
            if 0 < unreported {
                others.push(format!("{unreported} do not report it"));
            }
            NodeClique::Partly { name: name.clone(), others: others.join(", ") }
        }
        _ => {
            let each =
                by_clique.iter().map(|(name, gpus)| format!("GPU {} in {name}", gpus.join(", ")));
            NodeClique::Several(each.collect::<Vec<_>>().join("; "))
        }
    }
}

fn node_report(
    report: &mut SourceReport,
    at: &str,
    node: &NodeName,
    facts: &NodeFacts,
) -> NodeReport {
    let gpus = facts.gpus.as_deref().unwrap_or_default();
    let mut of = NodeReport {
        gpus: facts.gpus.as_ref().and_then(|gpus| u32::try_from(gpus.len()).ok()),
        driver: facts
            .driver
            .as_ref()
            .and_then(|driver| driver.version.as_deref())
            .map(sanitize_text),
        boot_id: facts.boot_id.as_deref().map(sanitize_text),
        fabric: gpus.iter().filter_map(|gpu| fabric_report(gpu, at)).collect(),
        nics: facts.nics.iter().map(|it| nic_report(it, facts, at)).collect(),
        busy: is_busy(gpus),
        ..NodeReport::default()
    };
    if facts.gpus.is_none() {
        // An unreported list of GPUs does not mean that the node has none.
        let why = facts.missing.iter().find(|missing| missing.what == "GPUs");
        let why = why.map_or("no reason is given", |missing| missing.why.as_str());
        let message = format!("the GPUs of {node} are unknown: {}", sanitize_text(why));
        report.push_problem(SourceProblemKind::Incomplete, at.to_owned(), message);
    }
    let host = facts.hostname.as_deref().map(sanitize_text);
    of.aliases = host.into_iter().filter(|host| host != node.as_str()).collect();
    let mut agreed = |what: &str, of: &dyn Fn(&GpuFacts) -> Option<String>| {
        let (value, disagreement) = find_agreement(gpus, of);
        if let Some(values) = disagreement {
            let message = format!("the GPUs of {node} disagree on {what}: {values}");
            report.push_problem(SourceProblemKind::Contradictory, at.to_owned(), message);
        }
        value
    };
    of.product = agreed("their product", &|gpu| gpu.product.clone());
    of.rack = agreed("their chassis", &|gpu| gpu.platform.as_ref()?.chassis_serial.clone());
    of.slot = agreed("their slot", &|gpu| gpu.platform.as_ref().map(|it| it.slot.to_string()));
    of
}

/// The value that all reporting GPUs share; otherwise the value of each.
fn find_agreement(
    gpus: &[GpuFacts],
    of: &dyn Fn(&GpuFacts) -> Option<String>,
) -> (Option<String>, Option<String>) {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for gpu in gpus {
        if let Some(value) = of(gpu) {
            values.entry(sanitize_text(&value)).or_default().push(gpu.index.to_string());
        }
    }
    if values.len() < 2 {
        return (values.into_keys().next(), None);
    }
    let each = values.iter().map(|(value, gpus)| {
        format!(
            "GPU {} reports \
        {value}",
            gpus.join(", ")
        )
    });
    (None, Some(each.collect::<Vec<_>>().join("; ")))
}

/// Whether a compute process runs; unknown if one GPU does not report it and no other is in use.
fn is_busy(gpus: &[GpuFacts]) -> Option<bool> {
    let in_use = |gpu: &GpuFacts| gpu.processes.as_ref().map(|them| !them.is_empty());
    let all: Vec<Option<bool>> = gpus.iter().map(in_use).collect();
    if all.contains(&Some(true)) {
        return Some(true);
    }
    let all: Option<Vec<bool>> = all.into_iter().collect();
    all.filter(|all| !all.is_empty()).map(|_| false)
}

fn fabric_report(gpu: &GpuFacts, at: &str) -> Option<FabricReport> {
    let facts: &FabricFacts = gpu.fabric.as_ref()?;
    // An all-zero ClusterUUID means no multi-node fabric, and a failed registration leaves
    // undefined values.
    let is_member = facts.state == FabricState::Completed
        && facts.is_multi_node()
        && facts.status.as_deref().is_none_or(|status| status == "success");
    let uuid = facts.cluster_uuid.as_deref().filter(|_| is_member);
    Some(FabricReport {
        gpu: Some(gpu.index),
        cluster_uuid: uuid.map(|uuid| sanitize_text(uuid).to_ascii_lowercase()),
        clique_id: facts.clique_id.filter(|_| is_member).map(|id| id.to_string()),
        state: Some(facts.state.label().to_owned()),
        unhealthy: facts.health_problems().iter().map(|words| sanitize_text(words)).collect(),
        basis: Some(ClaimBasis::Reported),
        at: Some(format!("{at}: GPU {}", gpu.index)),
    })
}

fn nic_report(nic: &NicFacts, facts: &NodeFacts, at: &str) -> NicReport {
    let neighbour = facts.neighbours.iter().find(|neighbour| neighbour.is_attached_to(nic));
    // The same notation as the readers of neighbours: the first port has no number.
    let port = nic.port.filter(|port| *port != 1);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    NicReport {
        device: Some(sanitize_text(&format!("{}{port}", nic.device))),
        rail: None,
        leaf: neighbour.and_then(|it| it.switch.as_deref()).map(sanitize_text),
        port: neighbour.and_then(|it| it.port.as_deref()).map(sanitize_text),
        guid: nic.port_guid.as_deref().or(nic.mac.as_deref()).map(sanitize_text),
        state: nic.state.as_deref().map(sanitize_text),
        rate_mbit_s: nic.rate_mbit_s,
        basis: Some(ClaimBasis::Reported),
        at: Some(at.to_owned()),
    }
}

struct NodeFactsReadError {
    kind: SourceProblemKind,
    /// Offset within the document.
    offset: usize,
    message: String,
}

fn parse_document(chunk: &str) -> Result<(Option<String>, NodeFacts), NodeFactsReadError> {
    let document: Value = serde_json::from_str(chunk).map_err(|error| {
        let kind = if error.is_eof() {
            SourceProblemKind::Incomplete
        } else {
            SourceProblemKind::Malformed
        };
        let message = if error.is_eof() {
            "the document is truncated".to_owned()
        } else {
            format!("not valid JSON: {}", message_without_position(&error))
        };
        NodeFactsReadError {
            kind,
            offset: byte_offset(chunk, error.line(), error.column()),
            message,
        }
    })?;
    let unread = |kind, message| NodeFactsReadError { kind, offset: 0, message };
    let Some(format) = format_name(&document) else {
        let message = format!("expected a document of format {NODE_FACTS_FORMAT}");
        return Err(unread(SourceProblemKind::Malformed, message));
    };
    if format != NODE_FACTS_FORMAT {
        let message =
            format!("format {} is unknown, expected {NODE_FACTS_FORMAT}", sanitize_text(format));
        return Err(unread(SourceProblemKind::Unsupported, message));
    }
    let wrong = |error: serde_json::Error| {
        unread(
            SourceProblemKind::Malformed,
            format!("invalid field: {}", message_without_position(&error)),
        )
    };
    if document.get("node").is_some() {
        let line = NodeFactsLine::deserialize(document).map_err(wrong)?;
        return Ok((Some(line.node), line.facts));
    }
    Ok((None, NodeFacts::deserialize(document).map_err(wrong)?))
}

/// The JSON parser's message without its line and column.
fn message_without_position(error: &serde_json::Error) -> String {
    let words = sanitize_text(&error.to_string());
    words.split(" at line ").next().unwrap_or(&words).to_owned()
}

/// The byte offset of a line and column (in bytes, from 1).
fn byte_offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

#[cfg(test)]
#[path = "node_facts_tests.rs"]
mod tests;
