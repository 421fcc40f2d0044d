//! Node objects: labels, annotations, taints, conditions.
//!
//! Reads `kubectl get nodes -o json` (or `-o yaml`), single nodes, the labels of
//! one node alone, tables of `kubectl get nodes`, and the configuration of a kind
//! cluster. A label with nonsense in it costs that label, never its node, and
//! never another node.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde_json::Map;
use serde_json::Value;

use super::gpu_labels;
use super::kind_cluster;
use super::levels;
use super::levels::Labelled;
use super::marks;
use super::objects;
use super::objects::Object;
use super::objects::at;
use super::objects::list_at;
use super::objects::text_at;
use super::tables;
use crate::claims::reading::bounded;
use crate::claims::reading::plain;
use model::id::NodeName;
use model::said::NodeSaid;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;
use model::said::SourceProblem;

/// The labels of every node.
pub type Labels = BTreeMap<NodeName, BTreeMap<String, String>>;

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    // Cheaper than reading, and every form has one of them.
    if !["Node", "kind.x-k8s.io", "nvidia.com/", "kubernetes.io/", "CLIQUE", "LABELS"]
        .iter()
        .any(|word| text.contains(word))
    {
        return false;
    }
    tables::recognises(text) || objects::read("", text).objects.iter().any(speaks_of_nodes)
}

fn speaks_of_nodes(object: &Object) -> bool {
    is_node(object) || kind_cluster::is_one(object) || bare_labels(object).is_some()
}

fn is_node(object: &Object) -> bool {
    object.kind == "Node" && object.group.is_empty()
}

/// The labels of one node without the node, as `-o jsonpath='{.metadata.labels}'`
/// prints them.
fn bare_labels(object: &Object) -> Option<BTreeMap<String, String>> {
    let known = |key: &String| {
        [gpu_labels::PREFIX, "kubernetes.io/"].iter().any(|prefix| key.contains(prefix))
    };
    let is_bare = object.kind.is_empty() && object.map.keys().any(known);
    let pairs = object.map.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.into())));
    if is_bare { pairs.collect() } else { None }
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> Said {
    let mut nodes = Nodes::at(place);
    if nodes.add(text).is_some() {
        nodes.trouble(objects::cut(place));
    }
    nodes.said()
}

/// Nodes while they are read, page by page.
#[derive(Debug)]
pub struct Nodes {
    place: String,
    said: Said,
    labelled: BTreeMap<NodeName, Labelled>,
    order: Vec<NodeName>,
}

impl Nodes {
    /// No nodes yet. `place` is their name in messages.
    pub fn at(place: &str) -> Self {
        Self {
            place: place.to_owned(),
            said: Said::nothing(SourceKind::KubernetesNodes, place),
            labelled: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    /// Adds what is in a text; gives the token with which a server's list goes on.
    pub fn add(&mut self, text: &str) -> Option<String> {
        if tables::recognises(text) {
            let place = self.place.clone();
            for row in tables::rows(&place, text, &mut self.said.problems) {
                self.add_labels(&row.node, row.labels, NodeSaid::default());
            }
            return None;
        }
        let read = objects::read(&self.place, text);
        self.said.problems.extend(read.problems);
        let mut strange = BTreeSet::new();
        for object in &read.objects {
            if is_node(object) {
                self.add_node(object);
            } else if kind_cluster::is_one(object) {
                for node in kind_cluster::nodes(object) {
                    let aliases = node.alias.into_iter().collect();
                    let said = NodeSaid { aliases, ..NodeSaid::default() };
                    self.add_labels(&node.name, node.labels, said);
                }
            } else if let Some(labels) = bare_labels(object) {
                match labels.get("kubernetes.io/hostname").cloned() {
                    Some(name) => self.add_labels(&name, labels, NodeSaid::default()),
                    None => self.said.trouble(
                        ProblemKind::Incomplete,
                        self.place.clone(),
                        "labels of a node that does not say its name (kubernetes.io/hostname)",
                    ),
                }
            } else {
                strange.insert(if object.kind.is_empty() { "no kind" } else { &object.kind });
            }
        }
        if !strange.is_empty() {
            let kinds: Vec<String> = strange.into_iter().map(plain).collect();
            self.said.notes.push(format!("not nodes, and not read here: {}", kinds.join(", ")));
        }
        read.more
    }

    /// Adds a problem.
    pub fn trouble(&mut self, problem: SourceProblem) {
        self.said.problems.push(problem);
    }

    /// The labels of all nodes.
    pub fn labels(&self) -> Labels {
        let labels =
            |(node, labelled): (&NodeName, &Labelled)| (node.clone(), labelled.labels.clone());
        self.labelled.iter().map(labels).collect()
    }

    /// What they say.
    pub fn said(mut self) -> Said {
        if self.order.is_empty() && self.said.problems.is_empty() {
            self.said.notes.push("no node is listed".to_owned());
        }
        let nodes: Vec<(&NodeName, &Labelled)> =
            self.order.iter().filter_map(|node| self.labelled.get_key_value(node)).collect();
        levels::groups(&nodes, &mut self.said);
        gpu_labels::remarks(&nodes, &mut self.said);
        bounded(self.said)
    }

    fn add_node(&mut self, object: &Object) {
        let Some(name) = object.name() else {
            let message = "a Node without a name";
            self.said.trouble(ProblemKind::Malformed, self.place.clone(), message);
            return;
        };
        let place = format!("{}: node {}", self.place, plain(name));
        let labels = texts(&object.map, "labels", &place, &mut self.said.problems);
        let annotations = texts(&object.map, "annotations", &place, &mut self.said.problems);
        let mut said = NodeSaid::default();
        whereabouts(name, &labels, object, &mut said);
        condition(object, &mut said);
        devices(object, &mut said);
        marks::read(&labels, &annotations, object, &mut said);
        let annotated = self.add_labelled(
            name,
            Labelled { labels, annotations, written: written(&object.map) },
            said,
        );
        if let Some((node, labelled)) = annotated {
            let mut problems = Vec::new();
            let place = format!("{}: node {node}", self.place);
            let said = self.said.nodes.entry(node).or_default();
            marks::pair_scores(&labelled, &place, said, &mut problems);
            self.said.problems.extend(problems);
        }
    }

    fn add_labels(&mut self, name: &str, labels: BTreeMap<String, String>, said: NodeSaid) {
        let labelled = Labelled { labels, ..Labelled::default() };
        self.add_labelled(name, labelled, said);
    }

    /// Adds one node, unless it is there: then both must say the same.
    fn add_labelled(
        &mut self,
        name: &str,
        labelled: Labelled,
        mut said: NodeSaid,
    ) -> Option<(NodeName, Labelled)> {
        let node = NodeName::from(plain(name));
        if node.as_str().is_empty() {
            let message = "a node whose name holds nothing that can be shown";
            self.said.trouble(ProblemKind::Malformed, self.place.clone(), message);
            return None;
        }
        if let Some(known) = self.labelled.get(&node) {
            if known.labels != labelled.labels {
                self.said.trouble(
                    ProblemKind::Contradictory,
                    format!("{}: node {node}", self.place),
                    "is listed twice with different labels; the first counts",
                );
            }
            return None;
        }
        let place = format!("{}: node {node}", self.place);
        gpu_labels::read(&labelled, &place, &mut said, &mut self.said.problems);
        self.said.nodes.insert(node.clone(), said);
        self.order.push(node.clone());
        self.labelled.insert(node.clone(), labelled.clone());
        Some((node, labelled))
    }
}

/// Labels or annotations. One that is no text is a problem.
fn texts(
    map: &Map<String, Value>,
    field: &str,
    place: &str,
    problems: &mut Vec<SourceProblem>,
) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut wrong = |at: String, found: &Value| {
        problems.push(SourceProblem {
            kind: ProblemKind::Malformed,
            at: Some(at),
            message: format!("expected text, found {}", plain(&found.to_string())),
        });
    };
    match at(map, &["metadata", field]) {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) => drop(texts.insert(key.clone(), text.clone())),
                    other => wrong(format!("{place}: {field} {}", plain(key)), other),
                }
            }
        }
        Some(other) => wrong(format!("{place}: {field}"), other),
    }
    texts
}

/// Who wrote each label, and when that writer last wrote any, from
/// `managedFields`. The API server gives them, `kubectl` leaves them out.
fn written(map: &Map<String, Value>) -> BTreeMap<String, levels::Written> {
    let mut written = BTreeMap::new();
    for entry in list_at(map, &["metadata", "managedFields"]) {
        let Some(entry) = entry.as_object() else { continue };
        let Some(fields) = at(entry, &["fieldsV1", "f:metadata", "f:labels"]) else { continue };
        let manager = text_at(entry, &["manager"]).unwrap_or_default();
        let time = text_at(entry, &["time"]).map(plain);
        for key in fields.as_object().into_iter().flat_map(Map::keys) {
            if let Some(label) = key.strip_prefix("f:") {
                let by = levels::Written { manager: plain(manager), time: time.clone() };
                written.insert(label.to_owned(), by);
            }
        }
    }
    written
}

/// Other names of the machine, and its boot.
fn whereabouts(
    name: &str,
    labels: &BTreeMap<String, String>,
    object: &Object,
    said: &mut NodeSaid,
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
        // topograph and Slinky keep the name that a provider or Slurm uses.
        .chain(text_at(map, &["metadata", "annotations", "topograph.run/instance"]))
        .chain(text_at(map, &["metadata", "annotations", "topograph.nvidia.com/instance"]))
        .chain(text_at(map, &["metadata", "annotations", "slurm.node.name"]));
    for alias in names.filter(|alias| !alias.is_empty() && *alias != name) {
        let alias = plain(alias);
        if !said.aliases.contains(&alias) {
            said.aliases.push(alias);
        }
    }
    said.boot_id =
        text_at(map, &["status", "nodeInfo", "bootID"]).filter(|boot| !boot.is_empty()).map(plain);
}

/// Ready or not, cordoned or not, and why.
fn condition(object: &Object, said: &mut NodeSaid) {
    let conditions = list_at(&object.map, &["status", "conditions"]);
    for condition in conditions.iter().filter_map(Value::as_object) {
        if text_at(condition, &["type"]) != Some("Ready") {
            continue;
        }
        let word = match text_at(condition, &["status"]) {
            Some("True") => "Ready",
            Some("False") => "NotReady",
            // The node's agent has stopped reporting.
            _ => "Unknown",
        };
        said.state.push(word.to_owned());
        if word != "Ready" {
            let why = ["reason", "message"].iter().filter_map(|key| text_at(condition, &[key]));
            let why: Vec<&str> = why.filter(|text| !text.is_empty()).collect();
            said.reason = (!why.is_empty()).then(|| plain(&why.join(": ")));
        }
    }
    if at(&object.map, &["spec", "unschedulable"]).and_then(Value::as_bool) == Some(true) {
        said.state.push("SchedulingDisabled".to_owned());
    }
    if at(&object.map, &["metadata", "deletionTimestamp"]).is_some_and(|at| !at.is_null()) {
        said.state.push("Deleting".to_owned());
    }
}

/// GPUs as the device plugin offers them. Its count is that of the machine only
/// where nothing is shared or split, which the labels tell.
fn devices(object: &Object, said: &mut NodeSaid) {
    for (field, of) in [("capacity", "capacity"), ("allocatable", "allocatable")] {
        let Some(count) = at(&object.map, &["status", field, gpu_labels::RESOURCE]) else {
            continue;
        };
        let text = count.as_str().map_or_else(|| count.to_string(), ToOwned::to_owned);
        said.marks.insert(format!("{of} {}", gpu_labels::RESOURCE), plain(&text));
    }
}
