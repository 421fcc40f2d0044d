//! `sinfo`, as JSON or text: the state of each node, as far as it is listed.
//!
//! Its rows are grouped by partition and by equal nodes; a node may occur several times. The JSON
//! form has the most detail, followed by `-N` and `-o` with a header.

mod json;
mod text;

use std::collections::BTreeSet;

use super::host_list_budget::{HostListBudget, SlurmTextPosition, strip_bom};
use super::{gres, json_response, node_states};
use crate::claims::reader_util::limit_notes;
use model::source_report::{NodeGroup, NodeGroupKind, SourceKind, SourceProblemKind, SourceReport};

/// Whether a text is the output of `sinfo`.
pub fn recognises(text: &str) -> bool {
    if let Some(keys) = json_response::top_level_keys(text) {
        return keys.contains("sinfo");
    }
    json_response::starts_with_key(text, "sinfo") || text::recognises(text)
}

/// Parses the output. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::Sinfo, place);
    let text = strip_bom(text);
    if text.trim_start().starts_with('{') {
        json::read(&mut report, place, text);
    } else {
        text::read(&mut report, place, text);
    }
    // Rows of one partition may contain a node more than once, for example in two states.
    for group in &mut report.groups {
        let mut seen = BTreeSet::new();
        group.nodes.retain(|node| seen.insert(node.clone()));
    }
    if report.nodes.is_empty() && report.problems.is_empty() {
        report.push_problem(SourceProblemKind::Incomplete, None, "it contains no node");
    }
    limit_notes(report)
}

/// One line or record for its nodes.
#[derive(Debug, Default)]
struct SinfoRow {
    nodes: String,
    /// Flags of the state, in the long form.
    state: Vec<String>,
    reason: Option<String>,
    gres: Option<String>,
    features: Option<String>,
    partition: Option<String>,
}

/// Adds a row. A partition is a group only if its rows are complete (`partitions`).
fn add_row(
    report: &mut SourceReport,
    listed: &mut HostListBudget,
    spot: SlurmTextPosition<'_>,
    row: &SinfoRow,
    partitions: bool,
) {
    let Some(nodes) = listed.expand_nodes(report, spot, &row.nodes) else { return };
    for name in &nodes {
        let node = report.node_mut(name);
        for word in &row.state {
            if !node.state.contains(word) {
                node.state.push(word.clone());
            }
        }
        if node.reason.is_none() {
            node.reason.clone_from(&row.reason);
        }
        if node.gpus.is_none()
            && let Some(gpus) = row.gres.as_deref().and_then(gres::from_gres)
        {
            node.gpus = gpus.count;
            node.product = gpus.product;
        }
        if let Some(features) = &row.features {
            node.marks.entry("features".to_owned()).or_insert_with(|| features.clone());
        }
        node.busy = node_states::is_busy(&node.state);
    }
    let Some(partition) = row.partition.as_ref().filter(|_| partitions) else { return };
    let is_it = |g: &&mut NodeGroup| g.kind == NodeGroupKind::Partition && g.name == *partition;
    if let Some(group) = report.groups.iter_mut().find(is_it) {
        group.nodes.extend(nodes);
    } else {
        let mut group =
            NodeGroup::new(NodeGroupKind::Partition, "partition", partition.clone(), nodes);
        group.at = Some(spot.to_string());
        report.groups.push(group);
    }
}
