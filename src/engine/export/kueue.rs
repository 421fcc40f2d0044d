//! Kueue's Topology and ResourceFlavor over verified nodes, and the node labels that both reference
//! (`kueue.x-k8s.io/v1beta2`).
//!
//! The objects are the same for every run, since Kueue forbids changes to both. A run only changes
//! labels, so a node that is no longer verified leaves the topology.

use serde_json::{Value, json};

use super::labels::ExportLabelSet;
use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, labels, yaml};
use crate::place::map::VerifiedMap;
use model::kubernetes_node::{VERDICT, VERIFIED_DOMAIN};

/// The topology's name, also used for KAI.
pub(super) const TOPOLOGY: &str = "fabricgate-nvlink";
const FLAVOR: &str = "fabricgate-verified";
/// The label that every node has, and the lowest level that Kueue allows.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Target `--to kueue`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "kueue",
    about: "Kueue: Topology, ResourceFlavor, and the node labels they reference",
    takes: &["nodes", "domain"],
    write,
};

/// The levels of a topology: verified NVLink domains, and nodes.
pub(super) fn topology_levels() -> Value {
    json!([{ "nodeLabel": VERIFIED_DOMAIN }, { "nodeLabel": HOSTNAME }])
}

/// The number of verified nodes per domain, as comment lines.
pub(super) fn count_comments(map: &VerifiedMap, label_set: &ExportLabelSet) -> String {
    let mut out = String::new();
    for domain in &map.domains {
        let nodes = domain.nodes();
        let is_verified = |node: &&&model::id::NodeName| {
            label_set.nodes.get(**node).is_some_and(|it| it[VERIFIED_DOMAIN].is_some())
        };
        let verified = nodes.iter().filter(is_verified).count();
        let name = model::text::clean(&domain.name);
        out.push_str(&format!("# domain {name}: {verified} of {} nodes verified\n", nodes.len()));
    }
    out
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let label_set = labels::collect_labels(map, options)?;
    let topology = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": { "name": TOPOLOGY },
        "spec": { "levels": topology_levels() },
    });
    let flavor = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": { "name": FLAVOR },
        "spec": { "nodeLabels": { VERDICT: "pass" }, "topologyName": TOPOLOGY },
    });
    let comment = format!(
        "{}# Nodes join by their labels (labels.sh); nodes without {VERIFIED_DOMAIN} are in no \
         domain.\n\
         # Pods of one domain: annotation kueue.x-k8s.io/podset-required-topology: \
         {VERIFIED_DOMAIN}\n{}",
        map.comment_lines("#"),
        count_comments(map, &label_set)
    );
    let mut files =
        vec![ExportFile::text("kueue.yaml", yaml::render_documents(&comment, &[topology, flavor]))];
    files.extend(labels::label_files(map, &label_set));
    Ok(ExportOutput { files, remarks: label_set.remarks })
}

/// Target `--to kai`: KAI-Scheduler's Topology (`kai.scheduler/v1alpha1`) over the same labels.
pub(super) const KAI_TARGET: ExportTarget = ExportTarget {
    name: "kai",
    about: "KAI-Scheduler: Topology, and the node labels it references",
    takes: &["nodes", "domain"],
    write: write_kai,
};

fn write_kai(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let collected = labels::collect_labels(map, options)?;
    let topology = json!({
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": { "name": TOPOLOGY },
        "spec": { "levels": topology_levels() },
    });
    let comment = format!(
        "{}# Nodes join by their labels (labels.sh); nodes without {VERIFIED_DOMAIN} are in no \
         domain.\n\
         # Pods of one domain: annotations kai.scheduler/topology: {}\n\
         # and kai.scheduler/topology-required-placement: {VERIFIED_DOMAIN}\n{}",
        map.comment_lines("#"),
        TOPOLOGY,
        count_comments(map, &collected)
    );
    let mut files =
        vec![ExportFile::text("kai.yaml", yaml::render_documents(&comment, &[topology]))];
    files.extend(labels::label_files(map, &collected));
    Ok(ExportOutput { files, remarks: collected.remarks })
}
