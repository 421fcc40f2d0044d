//! Node labels of GPU feature discovery: products, counts, drivers, and the clique.
//!
//! Sources: NVIDIA/k8s-device-plugin `internal/lm` (labels, and when the clique is omitted), its
//! documentation for MIG and sharing.

use std::collections::BTreeMap;

use super::topology_labels::NodeMetadata;
use crate::claims::reader_util::{is_zero_uuid, sanitize_text};
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, FabricReport, NodeReport, SourceProblem, SourceProblemKind, SourceReport,
};

pub(super) const LABEL_PREFIX: &str = "nvidia.com/";

/// The resource of the device plugin.
pub(super) const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// The label with `<ClusterUUID>.<CliqueID>`.
pub(super) const CLIQUE_LABEL: &str = "nvidia.com/gpu.clique";

/// The clique id that every rack of an unpartitioned fabric may have: equal values do not show a
/// common domain.
pub(super) const DEFAULT_CLIQUE_ID: u32 = 32_766;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CliqueLabel {
    /// ClusterUUID, in lower case.
    pub(super) uuid: String,
    pub(super) id: u32,
}

impl CliqueLabel {
    /// Parses a value; the error describes the expected form.
    pub(super) fn parse(value: &str) -> Result<Self, String> {
        let expected = "expected <ClusterUUID>.<CliqueID>";
        let Some((uuid, id)) = value.rsplit_once('.') else {
            return Err(format!("{expected}, found {:?}", sanitize_text(value)));
        };
        let groups: Vec<&str> = uuid.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let is_hex = groups.iter().all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()));
        if lengths != [8, 4, 4, 4, 12] || !is_hex {
            return Err(format!("{expected}, but {:?} is not a UUID", sanitize_text(uuid)));
        }
        let digits = !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
        let Some(id) = id.parse().ok().filter(|_| digits) else {
            return Err(format!("{expected}, but {:?} is not a clique id", sanitize_text(id)));
        };
        Ok(Self { uuid: uuid.to_ascii_lowercase(), id })
    }

    /// Why the value does not identify a domain, if so.
    fn doubt_reason(&self) -> Option<&'static str> {
        if is_zero_uuid(&self.uuid) {
            Some("a ClusterUUID of zeros: the fabric was not configured when the label was written")
        } else if self.id == DEFAULT_CLIQUE_ID {
            Some(
                "clique 32766 is the default of an unpartitioned fabric: other racks may have \
                it too",
            )
        } else {
            None
        }
    }
}

/// The clique in a node's label, where it is valid.
pub(super) fn parse_clique(labels: &BTreeMap<String, String>) -> Option<CliqueLabel> {
    CliqueLabel::parse(labels.get(CLIQUE_LABEL)?).ok()
}

/// Adds the labels of one node.
pub(super) fn read(
    labelled: &NodeMetadata,
    place: &str,
    node_report: &mut NodeReport,
    problems: &mut Vec<SourceProblem>,
) {
    let labels = &labelled.labels;
    let text = |key: &str| labels.get(&format!("{LABEL_PREFIX}{key}")).map(String::as_str);
    let mut wrong = |key: &str, message: String| {
        problems.push(SourceProblem {
            kind: SourceProblemKind::Malformed,
            at: Some(format!("{place}: label {key}")),
            message,
        });
    };
    node_report.product =
        text("gpu.product").filter(|product| !product.is_empty()).map(sanitize_text);
    node_report.driver = driver_version(labels);
    // With MIG's single strategy, product and count describe the slices.
    let is_sliced = node_report.product.as_deref().is_some_and(|product| product.contains("-MIG-"));
    let is_shared = text("gpu.sharing-strategy").is_some_and(|strategy| strategy != "none");
    match text("gpu.count").map(|count| (count, count.parse::<u32>())) {
        Some((_, Ok(count))) if !is_sliced => node_report.gpus = Some(count),
        Some((count, Err(_))) => {
            wrong(
                "nvidia.com/gpu.count",
                format!("expected a number, found {:?}", sanitize_text(count)),
            );
        }
        Some(_) => {}
        // Without the label, the capacity that the device plugin registered at start-up.
        None if !is_shared => {
            let capacity = node_report.marks.get(&format!("capacity {GPU_RESOURCE}"));
            node_report.gpus = capacity.and_then(|count| count.parse().ok());
        }
        None => {}
    }
    for key in ["gpu.present", "mig.strategy", "mig.config", "mig.config.state", "vgpu.present"] {
        add_mark(node_report, labels, key);
    }
    if is_shared {
        add_mark(node_report, labels, "gpu.sharing-strategy");
        add_mark(node_report, labels, "gpu.replicas");
    }
    if let Some(value) = labels.get(CLIQUE_LABEL) {
        match CliqueLabel::parse(value) {
            Ok(clique) => {
                let by = labelled.writers.get(CLIQUE_LABEL).filter(|by| !by.manager.is_empty());
                let by = by.map_or_else(String::new, |by| format!(", written by {}", by.manager));
                node_report.fabric.push(FabricReport {
                    cluster_uuid: Some(clique.uuid),
                    clique_id: Some(clique.id.to_string()),
                    basis: Some(ClaimBasis::Asserted),
                    at: Some(format!("label {CLIQUE_LABEL}{by}")),
                    ..FabricReport::default()
                });
            }
            Err(message) => {
                node_report.marks.insert(format!("label {CLIQUE_LABEL}"), sanitize_text(value));
                wrong(CLIQUE_LABEL, message);
            }
        }
    }
}

fn add_mark(node_report: &mut NodeReport, labels: &BTreeMap<String, String>, key: &str) {
    let key = format!("{LABEL_PREFIX}{key}");
    if let Some(value) = labels.get(&key) {
        node_report.marks.insert(format!("label {key}"), sanitize_text(value));
    }
}

/// The driver version: in one label, or in three with older versions.
fn driver_version(labels: &BTreeMap<String, String>) -> Option<String> {
    let text = |key: &str| labels.get(key).map(String::as_str).filter(|text| !text.is_empty());
    if let Some(full) = text("nvidia.com/cuda.driver-version.full") {
        return Some(sanitize_text(full));
    }
    let major = text("nvidia.com/cuda.driver.major")?;
    let minor = text("nvidia.com/cuda.driver.minor")?;
    let whole = [Some(major), Some(minor), text("nvidia.com/cuda.driver.rev")];
    Some(sanitize_text(&whole.into_iter().flatten().collect::<Vec<_>>().join(".")))
}

/// Whether a node belongs to a rack-scale NVLink domain, by its product or the name of its
/// machine type: there, a cloud's sub-block is the domain.
pub(super) fn is_rack_scale(labels: &BTreeMap<String, String>) -> bool {
    let product = labels.get("nvidia.com/gpu.product").map_or("", String::as_str);
    let machine = labels.get("node.kubernetes.io/instance-type").map_or("", String::as_str);
    ["GB200", "GB300"].iter().any(|name| product.contains(name) || machine.contains(name))
        || ["gb200", "gb300"].iter().any(|name| machine.contains(name))
        // Google's names for GB200 and GB300 machines.
        || machine.starts_with("a4x-")
}

/// Adds remarks about the cliques of all nodes together.
pub(super) fn add_notes(nodes: &[(&NodeName, &NodeMetadata)], report: &mut SourceReport) {
    let mut doubts: BTreeMap<(&str, &'static str), usize> = BTreeMap::new();
    let (mut with, mut without) = (0_usize, Vec::new());
    for (node, labelled) in nodes {
        match labelled.labels.get(CLIQUE_LABEL) {
            Some(value) => {
                with += 1;
                if let Some(doubt) =
                    CliqueLabel::parse(value).ok().and_then(|clique| clique.doubt_reason())
                {
                    *doubts.entry((value, doubt)).or_default() += 1;
                }
            }
            None if report.nodes.get(*node).and_then(|n| n.gpus).is_some_and(|gpus| 0 < gpus) => {
                without.push(node.as_str());
            }
            None => {}
        }
    }
    for ((value, doubt), count) in doubts {
        report.notes.push(format!("{CLIQUE_LABEL}={value} on {count} of the nodes: {doubt}"));
    }
    // The label also disappears when the GPUs of one node disagree, or one of them is not
    // attached; discovery only logs that.
    if 0 < with && !without.is_empty() {
        report.notes.push(format!(
            "{} of the nodes with GPUs have no label {CLIQUE_LABEL}, {with} have one; without it: {}",
            without.len(),
            model::hostlist::fold(without.iter().copied())
        ));
    }
}
