//! Node objects: labels, annotations, taints, conditions.
//!
//! Reads `kubectl get nodes -o json` (or `-o yaml`), single nodes, the labels of one node alone,
//! tables of `kubectl get nodes`, and the configuration of a kind cluster. An invalid label is
//! dropped alone: its node and other nodes are kept.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::objects::{KubernetesObject, list_at, text_at, value_at};
use super::topology_labels::NodeMetadata;
use super::{gpu_labels, kind_cluster, kubectl_tables, node_marks, objects, topology_labels};
use crate::claims::reader_util::{limit_notes, sanitize_text};
use model::id::NodeName;
use model::source_report::{
    NodeReport, SourceKind, SourceProblem, SourceProblemKind, SourceReport,
};

/// The labels of every node.
pub type LabelsByNode = BTreeMap<NodeName, BTreeMap<String, String>>;

/// Whether a text contains nodes.
pub fn recognises(text: &str) -> bool {
    // A cheap check before parsing: every form contains one of these.
    if !["Node", "kind.x-k8s.io", "nvidia.com/", "kubernetes.io/", "CLIQUE", "LABELS"]
        .iter()
        .any(|word| text.contains(word))
    {
        return false;
    }
    kubectl_tables::recognises(text) || objects::read("", text).objects.iter().any(describes_nodes)
}

fn describes_nodes(object: &KubernetesObject) -> bool {
    is_node(object) || kind_cluster::is_kind_cluster(object) || bare_labels(object).is_some()
}

fn is_node(object: &KubernetesObject) -> bool {
    object.kind == "Node" && object.group.is_empty()
}

/// The labels of one node without the node, as printed by `-o jsonpath='{.metadata.labels}'`.
fn bare_labels(object: &KubernetesObject) -> Option<BTreeMap<String, String>> {
    let known = |key: &String| {
        [gpu_labels::LABEL_PREFIX, "kubernetes.io/"].iter().any(|prefix| key.contains(prefix))
    };
    let is_bare = object.kind.is_empty() && object.map.keys().any(known);
    let pairs = object.map.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.into())));
    if is_bare { pairs.collect() } else { None }
}

/// Parses nodes. `place` is their name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut nodes = NodeObjectReader::new(place);
    if nodes.add_page(text).is_some() {
        nodes.push_problem(objects::truncated_list_problem(place));
    }
    nodes.into_report()
}

/// Parses nodes, page by page.
#[derive(Debug)]
pub struct NodeObjectReader {
    place: String,
    report: SourceReport,
    metadata: BTreeMap<NodeName, NodeMetadata>,
    order: Vec<NodeName>,
}

impl NodeObjectReader {
    /// A reader without nodes. `place` is their name in messages.
    pub fn new(place: &str) -> Self {
        Self {
            place: place.to_owned(),
            report: SourceReport::new(SourceKind::KubernetesNodes, place),
            metadata: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    /// Adds the objects of a text; returns the continue token of a server's list.
    pub fn add_page(&mut self, text: &str) -> Option<String> {
        if kubectl_tables::recognises(text) {
            let place = self.place.clone();
            for row in kubectl_tables::read_rows(&place, text, &mut self.report.problems) {
                self.add_labels(&row.node, row.labels, NodeReport::default());
            }
            return None;
        }
        let read = objects::read(&self.place, text);
        self.report.problems.extend(read.problems);
        let mut strange = BTreeSet::new();
        for object in &read.objects {
            if is_node(object) {
                self.add_node(object);
            } else if kind_cluster::is_kind_cluster(object) {
                for node in kind_cluster::nodes(object) {
                    let aliases = node.alias.into_iter().collect();
                    let node_report = NodeReport { aliases, ..NodeReport::default() };
                    self.add_labels(&node.name, node.labels, node_report);
                }
            } else if let Some(labels) = bare_labels(object) {
                match labels.get("kubernetes.io/hostname").cloned() {
                    Some(name) => self.add_labels(&name, labels, NodeReport::default()),
                    None => self.report.push_problem(
                        SourceProblemKind::Incomplete,
                        self.place.clone(),
                        "labels of a node without its name (kubernetes.io/hostname)",
                    ),
                }
            } else {
                strange.insert(if object.kind.is_empty() { "no kind" } else { &object.kind });
            }
        }
        if !strange.is_empty() {
            let kinds: Vec<String> = strange.into_iter().map(sanitize_text).collect();
            self.report.notes.push(format!("not nodes, and ignored here: {}", kinds.join(", ")));
        }
        read.continue_token
    }

    /// Adds a problem of the source.
    pub fn push_problem(&mut self, problem: SourceProblem) {
        self.report.problems.push(problem);
    }

    /// The labels of every node.
    pub fn labels(&self) -> LabelsByNode {
        let labels =
            |(node, labelled): (&NodeName, &NodeMetadata)| (node.clone(), labelled.labels.clone());
        self.metadata.iter().map(labels).collect()
    }

    /// The claims of all nodes.
    pub fn into_report(mut self) -> SourceReport {
        if self.order.is_empty() && self.report.problems.is_empty() {
            self.report.notes.push("no node is listed".to_owned());
        }
        let nodes: Vec<(&NodeName, &NodeMetadata)> =
            self.order.iter().filter_map(|node| self.metadata.get_key_value(node)).collect();
        topology_labels::add_groups(&nodes, &mut self.report);
        gpu_labels::add_notes(&nodes, &mut self.report);
        limit_notes(self.report)
    }

    fn add_node(&mut self, object: &KubernetesObject) {
        let Some(name) = object.name() else {
            let message = "a Node without a name";
            self.report.push_problem(SourceProblemKind::Malformed, self.place.clone(), message);
            return;
        };
        let place = format!("{}: node {}", self.place, sanitize_text(name));
        let labels = read_string_map(&object.map, "labels", &place, &mut self.report.problems);
        let annotations =
            read_string_map(&object.map, "annotations", &place, &mut self.report.problems);
        let mut node_report = NodeReport::default();
        read_identity(name, &labels, object, &mut node_report);
        read_condition(object, &mut node_report);
        read_gpu_capacity(object, &mut node_report);
        node_marks::read(&labels, &annotations, object, &mut node_report);
        let annotated = self.add_metadata(
            name,
            NodeMetadata { labels, annotations, writers: label_writers(&object.map) },
            node_report,
        );
        if let Some((node, labelled)) = annotated {
            let mut problems = Vec::new();
            let place = format!("{}: node {node}", self.place);
            let node_report = self.report.nodes.entry(node).or_default();
            node_marks::read_pair_scores(&labelled, &place, node_report, &mut problems);
            self.report.problems.extend(problems);
        }
    }

    fn add_labels(
        &mut self,
        name: &str,
        labels: BTreeMap<String, String>,
        node_report: NodeReport,
    ) {
        let labelled = NodeMetadata { labels, ..NodeMetadata::default() };
        self.add_metadata(name, labelled, node_report);
    }

    /// Adds one node. A node that is already present must have the same labels.
    fn add_metadata(
        &mut self,
        name: &str,
        labelled: NodeMetadata,
        mut node_report: NodeReport,
    ) -> Option<(NodeName, NodeMetadata)> {
        let node = NodeName::from(sanitize_text(name));
        if node.as_str().is_empty() {
            let message = "a node whose name has no printable character";
            self.report.push_problem(SourceProblemKind::Malformed, self.place.clone(), message);
            return None;
        }
        if let Some(known) = self.metadata.get(&node) {
            if known.labels != labelled.labels {
                self.report.push_problem(
                    SourceProblemKind::Contradictory,
                    format!("{}: node {node}", self.place),
                    "is listed twice with different labels; the first counts",
                );
            }
            return None;
        }
        let place = format!("{}: node {node}", self.place);
        gpu_labels::read(&labelled, &place, &mut node_report, &mut self.report.problems);
        self.report.nodes.insert(node.clone(), node_report);
        self.order.push(node.clone());
        self.metadata.insert(node.clone(), labelled.clone());
        Some((node, labelled))
    }
}

/// Labels or annotations. A value that is not text is a problem.
fn read_string_map(
    map: &Map<String, Value>,
    field: &str,
    place: &str,
    problems: &mut Vec<SourceProblem>,
) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut wrong = |at: String, found: &Value| {
        problems.push(SourceProblem {
            kind: SourceProblemKind::Malformed,
            at: Some(at),
            message: format!("expected text, found {}", sanitize_text(&found.to_string())),
        });
    };
    match value_at(map, &["metadata", field]) {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) => drop(texts.insert(key.clone(), text.clone())),
                    other => wrong(format!("{place}: {field} {}", sanitize_text(key)), other),
                }
            }
        }
        Some(other) => wrong(format!("{place}: {field}"), other),
    }
    texts
}

/// The writer of each label and the time of that writer's last change, from `managedFields`. The
/// API server returns them, `kubectl` omits them.
fn label_writers(map: &Map<String, Value>) -> BTreeMap<String, topology_labels::LabelWriter> {
    let mut written = BTreeMap::new();
    for entry in list_at(map, &["metadata", "managedFields"]) {
        let Some(entry) = entry.as_object() else { continue };
        let Some(fields) = value_at(entry, &["fieldsV1", "f:metadata", "f:labels"]) else {
            continue;
        };
        let manager = text_at(entry, &["manager"]).unwrap_or_default();
        let time = text_at(entry, &["time"]).map(sanitize_text);
        for key in fields.as_object().into_iter().flat_map(Map::keys) {
            if let Some(label) = key.strip_prefix("f:") {
                let by = topology_labels::LabelWriter {
                    manager: sanitize_text(manager),
                    time: time.clone(),
                };
                written.insert(label.to_owned(), by);
            }
        }
    }
    written
}

/// Other names of the machine, and its boot id.
fn read_identity(
    name: &str,
    labels: &BTreeMap<String, String>,
    object: &KubernetesObject,
    node_report: &mut NodeReport,
) {
    let map = &object.map;
    let addresses = list_at(map, &["status", "addresses"]).iter();
    let addresses = addresses.filter_map(|address| text_at(address.as_object()?, &["address"]));
    let names = labels
        .get("kubernetes.io/hostname")
        .map(String::as_str)
        .into_iter()
        .chain(addresses)
        .chain(text_at(map, &["spec", "providerID"]))
        // topograph and Slinky store the name in the provider or in Slurm.
        .chain(text_at(map, &["metadata", "annotations", "topograph.run/instance"]))
        .chain(text_at(map, &["metadata", "annotations", "topograph.nvidia.com/instance"]))
        .chain(text_at(map, &["metadata", "annotations", "slurm.node.name"]));
    for alias in names.filter(|alias| !alias.is_empty() && *alias != name) {
        let alias = sanitize_text(alias);
        if !node_report.aliases.contains(&alias) {
            node_report.aliases.push(alias);
        }
    }
    node_report.boot_id = text_at(map, &["status", "nodeInfo", "bootID"])
        .filter(|boot| !boot.is_empty())
        .map(sanitize_text);
}

/// Readiness and cordon, with the reasons.
fn read_condition(object: &KubernetesObject, node_report: &mut NodeReport) {
    let conditions = list_at(&object.map, &["status", "conditions"]);
    for condition in conditions.iter().filter_map(Value::as_object) {
        if text_at(condition, &["type"]) != Some("Ready") {
            continue;
        }
        let word = match text_at(condition, &["status"]) {
            Some("True") => "Ready",
            Some("False") => "NotReady",
            // The kubelet has stopped reporting.
            _ => "Unknown",
        };
        node_report.state.push(word.to_owned());
        if word != "Ready" {
            let why = ["reason", "message"].iter().filter_map(|key| text_at(condition, &[key]));
            let why: Vec<&str> = why.filter(|text| !text.is_empty()).collect();
            node_report.reason = (!why.is_empty()).then(|| sanitize_text(&why.join(": ")));
        }
    }
    if value_at(&object.map, &["spec", "unschedulable"]).and_then(Value::as_bool) == Some(true) {
        node_report.state.push("SchedulingDisabled".to_owned());
    }
    if value_at(&object.map, &["metadata", "deletionTimestamp"]).is_some_and(|at| !at.is_null()) {
        node_report.state.push("Deleting".to_owned());
    }
}

/// The GPU capacity of the device plugin. It equals the number of GPUs only if nothing is shared
/// or sliced, which the labels reveal.
fn read_gpu_capacity(object: &KubernetesObject, node_report: &mut NodeReport) {
    for (field, of) in [("capacity", "capacity"), ("allocatable", "allocatable")] {
        let Some(count) = value_at(&object.map, &["status", field, gpu_labels::GPU_RESOURCE])
        else {
            continue;
        };
        let text = count.as_str().map_or_else(|| count.to_string(), ToOwned::to_owned);
        node_report
            .marks
            .insert(format!("{of} {}", gpu_labels::GPU_RESOURCE), sanitize_text(&text));
    }
}
