//! KAI-Scheduler's Topology over verified nodes, and the labels of nodes that it points
//! at (`kai.scheduler/v1alpha1`).
//!
//! As with Kueue the object is the same for every run, and labels change.

use serde_json::json;

use super::Export;
use super::Exported;
use super::Options;
use super::Refused;
use super::Target;
use super::kueue;
use super::labels;
use super::yaml;
use crate::place::map::Verified;
use model::kubernetes_node::VERIFIED_DOMAIN;

/// `--to kai`.
pub(super) const TARGET: Target = Target {
    name: "kai",
    about: "KAI-Scheduler: Topology, and the node labels it points at",
    takes: &["nodes", "domain"],
    write,
};

fn write(map: &Verified, options: &Options) -> Result<Export, Refused> {
    let said = labels::said(map, options)?;
    let topology = json!({
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": { "name": kueue::TOPOLOGY },
        "spec": { "levels": kueue::levels() },
    });
    let comment = format!(
        "{}# Nodes enter by their labels (labels.sh); those without {VERIFIED_DOMAIN} are in no domain.\n\
         # Pods of one domain: annotations kai.scheduler/topology: {}\n\
         # and kai.scheduler/topology-required-placement: {VERIFIED_DOMAIN}\n{}",
        map.comment("#"),
        kueue::TOPOLOGY,
        kueue::counts(map, &said)
    );
    let mut files = vec![Exported::text("kai.yaml", yaml::documents(&comment, &[topology]))];
    files.extend(labels::files(map, &said));
    Ok(Export { files, remarks: said.remarks })
}
