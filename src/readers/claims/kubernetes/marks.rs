//! Marks that other tools leave on nodes: taints, conditions, labels and
//! annotations; who asks to be left alone, and who is at work there.
//!
//! Sources: Kubernetes' well-known taints; NVIDIA NVSentinel (`common` constants
//! of fault-quarantine); medik8s; IBM Autopilot (label values of its daemon);
//! the DRA driver's ComputeDomain label; HAMi's score table.

use std::collections::BTreeMap;

use serde_json::Value;

use super::levels::Labelled;
use super::objects::Object;
use super::objects::list_at;
use super::objects::text_at;
use crate::claims::reading::plain;
use model::said::NodeSaid;
use model::said::ProblemKind;
use model::said::SourceProblem;

/// Labels with which people ask that a node be left alone.
const OPT_OUTS: &[(&str, &str)] = &[
    ("nvsentinel.dgxc.nvidia.com/managed", "false"),
    ("k8saas.nvidia.com/ManagedByNVSentinel", "false"),
    ("remediation.medik8s.io/exclude-from-remediation", "true"),
];

/// The label of the ComputeDomain that owns a node: its UID.
const COMPUTE_DOMAIN: &str = "resource.nvidia.com/computeDomain";

/// Autopilot's word about the GPUs.
const AUTOPILOT: &str = "autopilot.ibm.com/gpuhealth";

/// What NVSentinel is doing with a node.
const NVSENTINEL: &str = "dgxc.nvidia.com/nvsentinel-state";

/// Other labels that are kept, by their beginning.
const LABELS: &[&str] = &[
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

/// Annotations that are kept, by their beginning.
const ANNOTATIONS: &[&str] = &[
    "fabricgate.io/",
    "nodeset.slinky.slurm.net/node-cordon-reason",
    "quarantineHealthEvent",
    "quarantinedNode",
    "latestFaultRemediationState",
    "remediation.medik8s.io/",
    "topograph.run/cluster-id",
];

/// The domain of Slinky's keys.
const SLINKY: &str = "slinky.slurm.net";

/// HAMi's table of scores between GPUs.
const SCORES: &str = "hami.io/node-nvidia-score";

/// Conditions that every node has: worth a word only when they are not as here.
const USUAL: &[(&str, &str)] = &[
    ("Ready", "True"),
    ("MemoryPressure", "False"),
    ("DiskPressure", "False"),
    ("PIDPressure", "False"),
    ("NetworkUnavailable", "False"),
];

/// Reads the marks of one node.
pub(super) fn read(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    object: &Object,
    said: &mut NodeSaid,
) {
    for (label, value) in labels {
        if LABELS.iter().any(|known| label.starts_with(known)) {
            said.marks.insert(format!("label {label}"), plain(value));
        }
    }
    for (annotation, value) in annotations {
        if ANNOTATIONS.iter().any(|known| annotation.starts_with(known)) {
            said.marks.insert(format!("annotation {annotation}"), plain(value));
        }
    }
    said.opt_out.extend(opt_outs(labels));
    // Both probe or repair the node at this moment; one more would disturb.
    if let Some(told) = tested(labels) {
        said.opt_out.push(told);
        said.busy = Some(true);
    }
    said.opt_out.extend(repaired(labels));
    // Its IMEX domain holds the node for a workload, and there can be only one.
    if in_compute_domain(labels).is_some() {
        said.busy = Some(true);
    }
    taints(object, said);
    conditions(object, said);
}

/// The labels with which people ask that this node be left alone.
pub(super) fn opt_outs(labels: &BTreeMap<String, String>) -> Vec<String> {
    let asks =
        |(label, value): &(&String, &String)| OPT_OUTS.contains(&(label.as_str(), value.as_str()));
    let told = |(label, value)| format!("label {label}={value}");
    labels.iter().filter(asks).map(told).collect()
}

/// Who tests the GPUs of this node now.
pub(super) fn tested(labels: &BTreeMap<String, String>) -> Option<String> {
    let word = labels.get(AUTOPILOT).filter(|word| *word == "TESTING")?;
    Some(format!("Autopilot tests it: label {AUTOPILOT}={word}"))
}

/// Who repairs this node now.
pub(super) fn repaired(labels: &BTreeMap<String, String>) -> Option<String> {
    let state = labels.get(NVSENTINEL).filter(|state| !state.is_empty())?;
    Some(format!("NVSentinel is at work: label {NVSENTINEL}={}", plain(state)))
}

/// The ComputeDomain that holds this node, by its UID.
pub(super) fn in_compute_domain(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(COMPUTE_DOMAIN).map(String::as_str).filter(|uid| !uid.is_empty())
}

fn taints(object: &Object, said: &mut NodeSaid) {
    for taint in list_at(&object.map, &["spec", "taints"]).iter().filter_map(Value::as_object) {
        let Some(key) = text_at(taint, &["key"]).filter(|key| !key.is_empty()) else { continue };
        let effect = text_at(taint, &["effect"]).unwrap_or_default();
        let value = text_at(taint, &["value"]).filter(|value| !value.is_empty());
        let text = value.map_or_else(|| effect.to_owned(), |value| format!("{value}:{effect}"));
        // One key may stand with several effects.
        let mark = said.marks.entry(format!("taint {}", plain(key))).or_default();
        if !mark.is_empty() {
            mark.push_str(", ");
        }
        mark.push_str(&plain(&text));
    }
}

fn conditions(object: &Object, said: &mut NodeSaid) {
    let conditions = list_at(&object.map, &["status", "conditions"]);
    for condition in conditions.iter().filter_map(Value::as_object) {
        let Some(kind) = text_at(condition, &["type"]).filter(|kind| !kind.is_empty()) else {
            continue;
        };
        let status = text_at(condition, &["status"]).unwrap_or("Unknown");
        if USUAL.contains(&(kind, status)) {
            continue;
        }
        let reason = text_at(condition, &["reason"]).filter(|reason| !reason.is_empty());
        let text =
            reason.map_or_else(|| status.to_owned(), |reason| format!("{status} ({reason})"));
        said.marks.insert(format!("condition {}", plain(kind)), plain(&text));
    }
}

/// Whether Slinky runs Slurm's daemon on a node, or is told how to: its prefixes
/// on labels and annotations (`api/v1beta1/well_known.go` of slurm-operator). A
/// node without them may have a daemon too, which its pod tells
/// ([`OnNode::slinky`](super::pods::OnNode::slinky)).
pub fn slinky(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> bool {
    labels.keys().chain(annotations.keys()).any(|key| is_slinky(key))
}

/// Whether a key is Slinky's: `nodeset.slinky.slurm.net/...` and its like.
pub fn is_slinky(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    prefix == SLINKY || prefix.strip_suffix(SLINKY).is_some_and(|rest| rest.ends_with('.'))
}

/// What HAMi's score says about NVLinks, as a mark: 100 for each link, and less
/// than 100 for the way over PCIe.
pub(super) fn pair_scores(
    labelled: &Labelled,
    place: &str,
    said: &mut NodeSaid,
    problems: &mut Vec<SourceProblem>,
) {
    let Some(text) = labelled.annotations.get(SCORES) else { return };
    match links(text) {
        Ok(words) => drop(said.marks.insert(format!("annotation {SCORES}"), plain(&words))),
        Err(message) => problems.push(SourceProblem {
            kind: ProblemKind::Malformed,
            at: Some(format!("{place}: annotation {SCORES}")),
            message,
        }),
    }
}

/// How many NVLinks every pair has, the pairs that differ from most by name.
fn links(text: &str) -> Result<String, String> {
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
    // A pair with one direction missing, or two that differ, is what HAMi
    // scores with 0; the lower of both is what it would use.
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
        words.push_str(&format!("; {links} between {} and {}", plain(a), plain(b)));
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
        let words = links(text).expect("a table");
        assert_eq!(words, "18 NVLinks between 2 of 3 pairs; 17 between GPU-1 and GPU-2");
    }

    #[test]
    fn slinkys_keys_are_known_by_their_prefix() {
        let keys = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        let none = BTreeMap::new();
        for key in ["nodeset.slinky.slurm.net/node-cordon-reason", "topology.slinky.slurm.net/spec"]
        {
            assert!(slinky(&none, &keys(key)), "{key}");
        }
        assert!(slinky(&keys("slinky.slurm.net/cluster"), &none));
        for key in ["slinky.slurm.net", "notslinky.slurm.net/x", "example.com/slinky.slurm.net"] {
            assert!(!slinky(&keys(key), &none), "{key}");
        }
    }

    #[test]
    fn scores_over_pcie_only_are_no_links() {
        let text = r#"[{"uuid":"a","score":{"b":10}},{"uuid":"b","score":{"a":10}}]"#;
        assert_eq!(links(text).expect("a table"), "0 NVLinks between 1 of 1 pairs");
        assert_eq!(links("[]").expect("a table"), "no pairs");
    }

    #[test]
    fn scores_that_are_none_are_said_to_be_so() {
        for text in ["", "{}", r#"[{"score":{}}]"#, r#"[{"uuid":"a","score":{"b":"x"}}]"#] {
            assert!(links(text).is_err(), "{text}");
        }
    }
}
