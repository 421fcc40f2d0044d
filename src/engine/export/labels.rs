//! The map as labels of Kubernetes nodes, all under fabricgate's prefix: commands for an operator,
//! and patches for a program.
//!
//! The labels of a node come from one run. A node that the run does not cover gets no change:
//! labels of earlier runs stay. No command creates a node: `kubectl` reports an error for a node
//! that the cluster does not know.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse, select_members,
};
use crate::place::map::{MapMember, MeasuredReach, VerifiedMap};
use crate::policy::kubernetes_label;
use model::id::NodeName;
use model::kubernetes_node::{VERDICT, VERIFIED_DOMAIN};
use model::shell_quote;
use model::text::clean;
use model::verdict::Outcome;

/// The NVLink domain in which a node was measured, regardless of its verdict.
pub const MEASURED_DOMAIN: &str = "fabricgate.io/measured-domain";
/// The clique that all of its GPUs reported during the measurement.
pub const MEASURED_CLIQUE: &str = "fabricgate.io/measured-clique";
/// The worst share of the expected link rate, as a class.
pub const RATIO_CLASS: &str = "fabricgate.io/ratio-class";
/// The run behind the other labels.
pub const MEASURED_RUN: &str = "fabricgate.io/measured-run";

/// Classes of shares, best first: lower bound and name. The bounds match the scale in reports.
const RATIO_CLASSES: [(f64, &str); 5] = [
    (0.98, "at-least-98"),
    (0.95, "at-least-95"),
    (0.85, "at-least-85"),
    (0.50, "at-least-50"),
    (0.0, "below-50"),
];

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "kubernetes-labels",
    about: "labels of Kubernetes nodes: kubectl commands, and patches",
    takes: &["nodes", "domain"],
    write,
};

/// The value of each label; `None` removes it.
pub(super) type ExportNodeLabels = BTreeMap<&'static str, Option<String>>;

/// The labels of every node with a change, and notes on the others.
pub(super) struct ExportLabelSet {
    pub(super) nodes: BTreeMap<NodeName, ExportNodeLabels>,
    pub(super) remarks: Vec<String>,
}

pub(super) fn collect_labels(
    map: &VerifiedMap,
    options: &ExportOptions,
) -> Result<ExportLabelSet, ExportRefusal> {
    let mut label_set = ExportLabelSet { nodes: BTreeMap::new(), remarks: Vec::new() };
    let (mut silent, mut nameless) = (Vec::new(), Vec::new());
    for (node, member) in select_members(map, options)? {
        if !is_object_name(node.as_str()) {
            nameless.push(clean(node.as_str()));
        } else if is_unknown(member) {
            silent.push(node.to_string());
        } else {
            label_set.nodes.insert(node.clone(), node_labels(map, node, member));
        }
    }
    let mut remark = |names: &[String], why: &str| {
        if !names.is_empty() {
            label_set.remarks.push(format!("{why}: {}", names.join(", ")));
        }
    };
    remark(&silent, "this run does not cover these nodes, their labels stay");
    remark(&nameless, "left out because these are not valid Kubernetes node names");
    if label_set.nodes.is_empty() {
        let why = label_set.remarks.join("; ");
        return refuse(format!("no node to label. {why}"));
    }
    Ok(label_set)
}

/// Whether the run has no result for a node. A node with a finding but without a number for any
/// link (a GPU is gone, every copy fails) has a result: the labels of an earlier pass would send
/// jobs to it.
fn is_unknown(member: &MapMember) -> bool {
    match member.outcome {
        Outcome::Unknown => true,
        Outcome::Pass => member.reach == MeasuredReach::Nothing,
        Outcome::Degraded | Outcome::Failed => false,
    }
}

fn node_labels(map: &VerifiedMap, node: &NodeName, member: &MapMember) -> ExportNodeLabels {
    let measured = map.domain_of(node).filter(|domain| domain.measured.contains(node));
    let domain = measured.map(|domain| kubernetes_label::label_value(&domain.name));
    let class =
        member.worst.and_then(|worst| RATIO_CLASSES.iter().find(|(from, _)| *from <= worst));
    let is_verified = member.is_verified() && !member.is_misplaced && !member.is_apart;
    BTreeMap::from([
        (VERDICT, Some(member.outcome.to_string())),
        // Like the gate's labels: a node that did not pass is verified in no domain.
        (VERIFIED_DOMAIN, domain.clone().filter(|_| is_verified)),
        (MEASURED_DOMAIN, domain),
        (
            MEASURED_CLIQUE,
            member.clique().filter(|_| measured.is_some()).map(kubernetes_label::label_value),
        ),
        (RATIO_CLASS, class.map(|(_, name)| (*name).to_owned())),
        (MEASURED_RUN, Some(kubernetes_label::label_value(&map.run.id))),
    ])
}

/// Whether a Kubernetes node can have this name (RFC 1123, as `apimachinery` requires).
pub(super) fn is_object_name(name: &str) -> bool {
    const LONGEST: usize = 253;
    let is_part = |part: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(fits) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= LONGEST && name.split('.').all(is_part)
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let label_set = collect_labels(map, options)?;
    Ok(ExportOutput { files: label_files(map, &label_set), remarks: label_set.remarks })
}

pub(super) fn label_files(map: &VerifiedMap, label_set: &ExportLabelSet) -> Vec<ExportFile> {
    let mut alike: BTreeMap<&ExportNodeLabels, Vec<&NodeName>> = BTreeMap::new();
    for (node, labels) in &label_set.nodes {
        alike.entry(labels).or_default().push(node);
    }
    let mut groups: Vec<_> = alike.into_iter().collect();
    groups.sort_by(|a, b| a.1.cmp(&b.1));
    let mut script = format!("#!/bin/sh\n{}", map.comment_lines("#"));
    script.push_str("# Labels under fabricgate.io/ only; KEY- removes one.\nset -eu\n");
    for (labels, nodes) in groups {
        let mut words: Vec<String> =
            ["kubectl", "label", "--overwrite", "node"].map(str::to_owned).to_vec();
        words.extend(nodes.iter().map(ToString::to_string));
        script.push_str(&shell_quote::join_quoted(&words));
        for (key, value) in labels {
            let word = match value {
                Some(value) => format!("{key}={value}"),
                None => format!("{key}-"),
            };
            script.push_str(" \\\n  ");
            script.push_str(&shell_quote::join_quoted(&[word]));
        }
        script.push('\n');
    }
    let mut patches = String::new();
    for (node, labels) in &label_set.nodes {
        let line = json!({
            "run": map.run.id, "node": node.as_str(), "patch": { "metadata": { "labels": labels } },
        });
        patches.push_str(&format!("{line}\n"));
    }
    vec![ExportFile::text("labels.sh", script), ExportFile::text("patches.jsonl", patches)]
}
