//! The map as labels of Kubernetes nodes, all under our own prefix: commands for a
//! person, and patches for a program.
//!
//! A node is labelled with what a run showed of it. Of a node that the run says nothing
//! about nothing is written: labels of earlier runs stay as they are. No command here
//! makes a node: one that the cluster does not know is an error of `kubectl`.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse, selection,
};
use crate::place::map::{MapMember, MeasuredReach, VerifiedMap};
use crate::policy::kubernetes_label;
use model::id::NodeName;
use model::kubernetes_node::{VERDICT, VERIFIED_DOMAIN};
use model::shell_quote;
use model::text::clean;
use model::verdict::Outcome;

/// The NVLink domain a node was measured to be in, whatever its verdict.
pub const MEASURED_DOMAIN: &str = "fabricgate.io/measured-domain";
/// The clique that all of its GPUs reported when it was measured.
pub const MEASURED_CLIQUE: &str = "fabricgate.io/measured-clique";
/// The worst share of what its links must deliver, as a class.
pub const RATIO_CLASS: &str = "fabricgate.io/ratio-class";
/// The run that the other labels are from.
pub const MEASURED_RUN: &str = "fabricgate.io/measured-run";

/// Classes of shares, best first: above which share, and what they are called. The
/// bounds are those of the scale that reports use.
const RATIO_CLASSES: [(f64, &str); 5] = [
    (0.98, "at-least-98"),
    (0.95, "at-least-95"),
    (0.85, "at-least-85"),
    (0.50, "at-least-50"),
    (0.0, "below-50"),
];

/// `--to kubernetes-labels`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "kubernetes-labels",
    about: "labels of Kubernetes nodes: kubectl commands, and patches",
    takes: &["nodes", "domain"],
    write,
};

/// What a label is to be; `None` takes it away.
pub(super) type ExportNodeLabels = BTreeMap<&'static str, Option<String>>;

/// The labels of every node that something is to be said of, and remarks on others.
pub(super) struct ExportLabelSet {
    pub(super) nodes: BTreeMap<NodeName, ExportNodeLabels>,
    pub(super) remarks: Vec<String>,
}

/// What is to be said of nodes.
pub(super) fn collect_labels(
    map: &VerifiedMap,
    options: &ExportOptions,
) -> Result<ExportLabelSet, ExportRefusal> {
    let mut said = ExportLabelSet { nodes: BTreeMap::new(), remarks: Vec::new() };
    let (mut silent, mut nameless) = (Vec::new(), Vec::new());
    for (node, member) in selection::select_members(map, options)? {
        if !is_object_name(node.as_str()) {
            nameless.push(clean(node.as_str()));
        } else if is_unknown(member) {
            silent.push(node.to_string());
        } else {
            said.nodes.insert(node.clone(), node_labels(map, node, member));
        }
    }
    let mut told = |names: &[String], why: &str| {
        if !names.is_empty() {
            said.remarks.push(format!("{why}: {}", names.join(", ")));
        }
    };
    told(&silent, "nothing is said of nodes that this run does not know, their labels stay");
    told(&nameless, "left out, since these can be no names of nodes in Kubernetes");
    if said.nodes.is_empty() {
        let why = said.remarks.join("; ");
        return refuse(format!("there is no node to label. {why}"));
    }
    Ok(said)
}

/// Whether a run says nothing of a node. One that was found at fault without a number
/// of any link (a GPU is gone, every copy ends in an error) is known: the labels of an
/// earlier pass would send jobs to it.
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
        // As the gate writes it: a node that did not pass is verified in no domain.
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

/// Whether a node of Kubernetes can have this name (RFC 1123, as `apimachinery` asks).
pub(super) fn is_object_name(name: &str) -> bool {
    const LONGEST: usize = 253;
    let is_part = |part: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(fits) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= LONGEST && name.split('.').all(is_part)
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let said = collect_labels(map, options)?;
    Ok(ExportOutput { files: label_files(map, &said), remarks: said.remarks })
}

/// The commands and the patches.
pub(super) fn label_files(map: &VerifiedMap, said: &ExportLabelSet) -> Vec<ExportFile> {
    let mut alike: BTreeMap<&ExportNodeLabels, Vec<&NodeName>> = BTreeMap::new();
    for (node, labels) in &said.nodes {
        alike.entry(labels).or_default().push(node);
    }
    let mut groups: Vec<_> = alike.into_iter().collect();
    groups.sort_by(|a, b| a.1.cmp(&b.1));
    let mut script = format!("#!/bin/sh\n{}", map.comment_lines("#"));
    script.push_str("# Labels under fabricgate.io/ only; KEY- takes one away.\nset -eu\n");
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
    for (node, labels) in &said.nodes {
        let line = json!({
            "run": map.run.id, "node": node.as_str(), "patch": { "metadata": { "labels": labels } },
        });
        patches.push_str(&format!("{line}\n"));
    }
    vec![ExportFile::text("labels.sh", script), ExportFile::text("patches.jsonl", patches)]
}
