//! KAI-Scheduler's Topology over verified nodes, and the node labels that it references
//! (`kai.scheduler/v1alpha1`).
//!
//! As with Kueue, the object is the same for every run, and only labels change.

use serde_json::json;

use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, kueue, labels, yaml,
};
use crate::place::map::VerifiedMap;
use model::kubernetes_node::VERIFIED_DOMAIN;

/// Target `--to kai`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "kai",
    about: "KAI-Scheduler: Topology, and the node labels it references",
    takes: &["nodes", "domain"],
    write,
};

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let said = labels::collect_labels(map, options)?;
    let topology = json!({
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": { "name": kueue::TOPOLOGY },
        "spec": { "levels": kueue::topology_levels() },
    });
    let comment = format!(
        "{}# Nodes join by their labels (labels.sh); nodes without {VERIFIED_DOMAIN} are in no \
         domain.\n\
         # Pods of one domain: annotations kai.scheduler/topology: {}\n\
         # and kai.scheduler/topology-required-placement: {VERIFIED_DOMAIN}\n{}",
        map.comment_lines("#"),
        kueue::TOPOLOGY,
        kueue::count_comments(map, &said)
    );
    let mut files =
        vec![ExportFile::text("kai.yaml", yaml::render_documents(&comment, &[topology]))];
    files.extend(labels::label_files(map, &said));
    Ok(ExportOutput { files, remarks: said.remarks })
}
