//! Kueue's Topology and ResourceFlavor over verified nodes, and the labels of nodes that
//! both point at (`kueue.x-k8s.io/v1beta2`).
//!
//! The objects are the same for every run: Kueue forbids changes of either. What a run
//! changes are labels, so that a node which is no longer verified leaves the topology.

use serde_json::{Value, json};

use super::labels::ExportLabelSet;
use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, labels, yaml};
use crate::place::map::VerifiedMap;
use model::kubernetes_node::{VERDICT, VERIFIED_DOMAIN};

/// The topology's name, for KAI too.
pub(super) const TOPOLOGY: &str = "fabricgate-nvlink";
const FLAVOR: &str = "fabricgate-verified";
/// The label that every node has, and the lowest level there may be.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// `--to kueue`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "kueue",
    about: "Kueue: Topology, ResourceFlavor, and the node labels they point at",
    takes: &["nodes", "domain"],
    write,
};

/// The levels of a topology: NVLink domains as they were verified, and nodes.
pub(super) fn topology_levels() -> Value {
    json!([{ "nodeLabel": VERIFIED_DOMAIN }, { "nodeLabel": HOSTNAME }])
}

/// How many verified nodes domains have, as comment lines.
pub(super) fn count_comments(map: &VerifiedMap, said: &ExportLabelSet) -> String {
    let mut out = String::new();
    for domain in &map.domains {
        let nodes = domain.nodes();
        let is_verified = |node: &&&model::id::NodeName| {
            said.nodes.get(**node).is_some_and(|it| it[VERIFIED_DOMAIN].is_some())
        };
        let verified = nodes.iter().filter(is_verified).count();
        let name = model::text::clean(&domain.name);
        out.push_str(&format!("# domain {name}: {verified} of {} nodes verified\n", nodes.len()));
    }
    out
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let said = labels::collect_labels(map, options)?;
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
        "{}# Nodes enter by their labels (labels.sh); those without {VERIFIED_DOMAIN} are in no domain.\n\
         # Pods of one domain: annotation kueue.x-k8s.io/podset-required-topology: {VERIFIED_DOMAIN}\n{}",
        map.comment_lines("#"),
        count_comments(map, &said)
    );
    let mut files =
        vec![ExportFile::text("kueue.yaml", yaml::render_documents(&comment, &[topology, flavor]))];
    files.extend(labels::label_files(map, &said));
    Ok(ExportOutput { files, remarks: said.remarks })
}
