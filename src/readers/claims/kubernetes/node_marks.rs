//! Marks of other tools on nodes: taints, conditions, labels and annotations, including requests
//! to leave a node alone and repairs in progress.
//!
//! Sources: Kubernetes' well-known taints; NVIDIA NVSentinel (`common` constants of
//! fault-quarantine); medik8s; IBM Autopilot (label values of its daemon); the DRA driver's
//! ComputeDomain label; HAMi's score table.

use std::collections::BTreeMap;

use serde_json::Value;

use super::objects::{KubernetesObject, list_at, text_at};
use super::topology_labels::NodeMetadata;
use crate::claims::reader_util::sanitize_text;
use model::source_report::{NodeReport, SourceProblem, SourceProblemKind};

/// Labels that ask to leave a node alone.
const OPT_OUT_LABELS: &[(&str, &str)] = &[
    ("nvsentinel.dgxc.nvidia.com/managed", "false"),
    ("k8saas.nvidia.com/ManagedByNVSentinel", "false"),
    ("remediation.medik8s.io/exclude-from-remediation", "true"),
];

/// The label with the UID of the ComputeDomain that owns a node.
const COMPUTE_DOMAIN: &str = "resource.nvidia.com/computeDomain";

/// Autopilot's label for the health of the GPUs.
const AUTOPILOT_LABEL: &str = "autopilot.ibm.com/gpuhealth";

/// NVSentinel's label for its current operation on a node.
const NVSENTINEL_LABEL: &str = "dgxc.nvidia.com/nvsentinel-state";

/// Other kept labels, by prefix.
const KEPT_LABELS: &[&str] = &[
    "autopilot.ibm.com/",
    "dgxc.nvidia.com/nvsentinel-",
    "k8saas.nvidia.com/",
    "nvsentinel.dgxc.nvidia.com/",
    "nvidia.com/gpu-driver-upgrade-state",
    "oci.oraclecloud.com/host.fault.",
    "oci.oraclecloud.com/host.health",
    "oci.oraclecloud.com/host.gpu_memory_cluster_id",
    "oci.oraclecloud.com/host.maintenance.",
    "oci.oraclecloud.com/rdma.host_id",
    "remediation.medik8s.io/",
    "resource.nvidia.com/computeDomain",
    "sagemaker.amazonaws.com/node-health-status",
    "cloud.google.com/gce-topology-host",
    "node.kubernetes.io/instance-type",
    "fabricgate.io/",
];

/// Kept annotations, by prefix.
const KEPT_ANNOTATIONS: &[&str] = &[
    "fabricgate.io/",
    "nodeset.slinky.slurm.net/node-cordon-reason",
    "quarantineHealthEvent",
    "quarantinedNode",
    "latestFaultRemediationState",
    "remediation.medik8s.io/",
    "topograph.run/cluster-id",
];

const SLINKY_DOMAIN: &str = "slinky.slurm.net";

/// HAMi's table of scores between pairs of GPUs.
const HAMI_SCORES: &str = "hami.io/node-nvidia-score";

/// Conditions that every node has; only values other than these are kept.
const HEALTHY_CONDITIONS: &[(&str, &str)] = &[
    ("Ready", "True"),
    ("MemoryPressure", "False"),
    ("DiskPressure", "False"),
    ("PIDPressure", "False"),
    ("NetworkUnavailable", "False"),
];

/// Adds the marks of one node.
pub(super) fn read(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    object: &KubernetesObject,
    node_report: &mut NodeReport,
) {
    for (label, value) in labels {
        if KEPT_LABELS.iter().any(|known| label.starts_with(known)) {
            node_report.marks.insert(format!("label {label}"), sanitize_text(value));
        }
    }
    for (annotation, value) in annotations {
        if KEPT_ANNOTATIONS.iter().any(|known| annotation.starts_with(known)) {
            node_report.marks.insert(format!("annotation {annotation}"), sanitize_text(value));
        }
    }
    node_report.opt_out.extend(opt_outs(labels));
    // Both test or repair the node at present; a further test would interfere.
    if let Some(mark) = active_tester(labels) {
        node_report.opt_out.push(mark);
        node_report.busy = Some(true);
    }
    node_report.opt_out.extend(active_repairer(labels));
    // Its IMEX domain holds the node for a workload, and a node has only one.
    if compute_domain_uid(labels).is_some() {
        node_report.busy = Some(true);
    }
    read_taints(object, node_report);
    read_conditions(object, node_report);
}

/// The labels that ask to leave this node alone.
pub(super) fn opt_outs(labels: &BTreeMap<String, String>) -> Vec<String> {
    let is_opt_out = |(label, value): &(&String, &String)| {
        OPT_OUT_LABELS.contains(&(label.as_str(), value.as_str()))
    };
    let to_text = |(label, value)| format!("label {label}={value}");
    labels.iter().filter(is_opt_out).map(to_text).collect()
}

/// The tool that currently tests the GPUs of this node.
pub(super) fn active_tester(labels: &BTreeMap<String, String>) -> Option<String> {
    let word = labels.get(AUTOPILOT_LABEL).filter(|word| *word == "TESTING")?;
    Some(format!("Autopilot is testing it: label {AUTOPILOT_LABEL}={word}"))
}

/// The tool that currently repairs this node.
pub(super) fn active_repairer(labels: &BTreeMap<String, String>) -> Option<String> {
    let state = labels.get(NVSENTINEL_LABEL).filter(|state| !state.is_empty())?;
    Some(format!("NVSentinel is at work: label {NVSENTINEL_LABEL}={}", sanitize_text(state)))
}

/// UID of the ComputeDomain that holds this node.
pub(super) fn compute_domain_uid(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(COMPUTE_DOMAIN).map(String::as_str).filter(|uid| !uid.is_empty())
}

fn read_taints(object: &KubernetesObject, node_report: &mut NodeReport) {
    for taint in list_at(&object.map, &["spec", "taints"]).iter().filter_map(Value::as_object) {
        let Some(key) = text_at(taint, &["key"]).filter(|key| !key.is_empty()) else { continue };
        let effect = text_at(taint, &["effect"]).unwrap_or_default();
        let value = text_at(taint, &["value"]).filter(|value| !value.is_empty());
        let text = value.map_or_else(|| effect.to_owned(), |value| format!("{value}:{effect}"));
        // One key may occur with several effects.
        let mark = node_report.marks.entry(format!("taint {}", sanitize_text(key))).or_default();
        if !mark.is_empty() {
            mark.push_str(", ");
        }
        mark.push_str(&sanitize_text(&text));
    }
}

fn read_conditions(object: &KubernetesObject, node_report: &mut NodeReport) {
    let conditions = list_at(&object.map, &["status", "conditions"]);
    for condition in conditions.iter().filter_map(Value::as_object) {
        let Some(kind) = text_at(condition, &["type"]).filter(|kind| !kind.is_empty()) else {
            continue;
        };
        let status = text_at(condition, &["status"]).unwrap_or("Unknown");
        if HEALTHY_CONDITIONS.contains(&(kind, status)) {
            continue;
        }
        let reason = text_at(condition, &["reason"]).filter(|reason| !reason.is_empty());
        let text =
            reason.map_or_else(|| status.to_owned(), |reason| format!("{status} ({reason})"));
        node_report
            .marks
            .insert(format!("condition {}", sanitize_text(kind)), sanitize_text(&text));
    }
}

/// Whether Slinky runs slurmd on a node, or is configured to: it has Slinky's prefixes on labels
/// and annotations (`api/v1beta1/well_known.go` of slurm-operator). A node without them may still
/// run slurmd, which its pod reveals ([`NodePods::slinky`](super::pods::NodePods::slinky)).
pub fn is_slinky_node(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> bool {
    labels.keys().chain(annotations.keys()).any(|key| is_slinky_key(key))
}

/// Whether a key belongs to Slinky, such as `nodeset.slinky.slurm.net/...`.
pub fn is_slinky_key(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    prefix == SLINKY_DOMAIN
        || prefix.strip_suffix(SLINKY_DOMAIN).is_some_and(|rest| rest.ends_with('.'))
}

/// NVLinks according to HAMi's scores, as a mark: 100 for each link, and less than 100 for a PCIe
/// path.
pub(super) fn read_pair_scores(
    labelled: &NodeMetadata,
    place: &str,
    node_report: &mut NodeReport,
    problems: &mut Vec<SourceProblem>,
) {
    let Some(text) = labelled.annotations.get(HAMI_SCORES) else { return };
    match summarise_links(text) {
        Ok(words) => {
            drop(
                node_report
                    .marks
                    .insert(format!("annotation {HAMI_SCORES}"), sanitize_text(&words)),
            );
        }
        Err(message) => problems.push(SourceProblem {
            kind: SourceProblemKind::Malformed,
            at: Some(format!("{place}: annotation {HAMI_SCORES}")),
            message,
        }),
    }
}

/// The usual number of NVLinks between pairs, and the pairs that differ from it.
fn summarise_links(text: &str) -> Result<String, String> {
    let expected = "expected [{\"uuid\": ..., \"score\": {PEER: NUMBER}}]";
    let table: Vec<Value> =
        serde_json::from_str(text).map_err(|error| format!("{expected}: {error}"))?;
    let mut directed: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in table.iter().filter_map(Value::as_object) {
        let gpu = text_at(row, &["uuid"]).ok_or_else(|| format!("{expected}: no uuid"))?;
        let scores = row.get("score").and_then(Value::as_object);
        for (peer, score) in scores.ok_or_else(|| format!("{expected}: no score of {gpu}"))? {
            let score = score.as_u64().ok_or_else(|| format!("{expected}: {score} to {peer}"))?;
            if gpu != peer {
                directed.insert((gpu, peer), score);
            }
        }
    }
    // HAMi scores a pair with one direction missing, or with different directions, as 0; the
    // lower value is the one it would use.
    let mut pairs: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for ((from, to), score) in directed {
        let pair = (from.min(to), from.max(to));
        let links = score / 100;
        pairs.entry(pair).and_modify(|known| *known = links.min(*known)).or_insert(links);
    }
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for links in pairs.values() {
        *counts.entry(*links).or_default() += 1;
    }
    let Some((&usual, &count)) = counts.iter().max_by_key(|(links, count)| (**count, **links))
    else {
        return Ok("no pairs".to_owned());
    };
    let mut words = format!("{usual} NVLinks between {count} of {} pairs", pairs.len());
    for ((a, b), links) in pairs.iter().filter(|(_, links)| **links != usual) {
        words.push_str(&format!("; {links} between {} and {}", sanitize_text(a), sanitize_text(b)));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_counts_of_links_and_name_the_odd_pair() {
        let text = r#"[{"uuid":"GPU-0","score":{"GPU-1":1820,"GPU-2":1810}},
            {"uuid":"GPU-1","score":{"GPU-0":1820,"GPU-2":1720}},
            {"uuid":"GPU-2","score":{"GPU-0":1810,"GPU-1":1820}}]"#;
        let words = summarise_links(text).expect("a table");
        assert_eq!(words, "18 NVLinks between 2 of 3 pairs; 17 between GPU-1 and GPU-2");
    }

    #[test]
    fn slinkys_keys_are_known_by_their_prefix() {
        let keys = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        let none = BTreeMap::new();
        for key in ["nodeset.slinky.slurm.net/node-cordon-reason", "topology.slinky.slurm.net/spec"]
        {
            assert!(is_slinky_node(&none, &keys(key)), "{key}");
        }
        assert!(is_slinky_node(&keys("slinky.slurm.net/cluster"), &none));
        for key in ["slinky.slurm.net", "notslinky.slurm.net/x", "example.com/slinky.slurm.net"] {
            assert!(!is_slinky_node(&keys(key), &none), "{key}");
        }
    }

    #[test]
    fn pcie_scores_are_not_links() {
        let text = r#"[{"uuid":"a","score":{"b":10}},{"uuid":"b","score":{"a":10}}]"#;
        assert_eq!(summarise_links(text).expect("a table"), "0 NVLinks between 1 of 1 pairs");
        assert_eq!(summarise_links("[]").expect("a table"), "no pairs");
    }

    #[test]
    fn invalid_scores_are_reported() {
        for text in ["", "{}", r#"[{"score":{}}]"#, r#"[{"uuid":"a","score":{"b":"x"}}]"#] {
            assert!(summarise_links(text).is_err(), "{text}");
        }
    }
}
