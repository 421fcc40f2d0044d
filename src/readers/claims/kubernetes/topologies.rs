//! Topology objects of Kueue and KAI.
//!
//! Such an object is an ordered list of node labels and asserts that their values nest. The
//! groups are the nodes with a common value, so they are copies of the labels and no confirmation
//! of them.
//!
//! Sources: Kueue `apis/kueue/v1beta2/topology_types.go` (the same fields in v1beta1 and
//! v1alpha1), KAI-Scheduler `crds/kai.scheduler_topologies.yaml`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::nodes::{LabelsByNode, NodeObjectReader};
use super::objects;
use super::objects::{KubernetesObject, text_at, value_at};
use super::topology_labels::known_kind;
use crate::claims::reader_util::{limit_notes, sanitize_text};
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, NodeGroup, NodeGroupKind, SourceKind, SourceProblem, SourceProblemKind,
    SourceReport,
};

/// The API groups with an object of this kind, and the names of their schedulers.
const TOPOLOGY_API_GROUPS: [(&str, &str); 2] =
    [("kueue.x-k8s.io", "kueue"), ("kai.scheduler", "kai")];

/// The label with a node's own name; allowed only as the last level.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Limit for levels in either scheduler (Kueue's v1alpha1 allowed 8).
const MAX_LEVELS: usize = 16;

/// Whether a text contains topologies.
pub fn recognises(text: &str) -> bool {
    text.contains("Topology")
        && objects::read("", text).objects.iter().any(|object| scheduler(object).is_some())
}

/// The scheduler that an object belongs to.
fn scheduler(object: &KubernetesObject) -> Option<&'static str> {
    let known = TOPOLOGY_API_GROUPS.iter().find(|(group, _)| object.group == *group)?;
    (object.kind == "Topology").then_some(known.1)
}

/// Parses topologies. `place` is their name in messages. Nodes in the same text provide the
/// labels for the levels; without nodes, only the levels are known.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut nodes = NodeObjectReader::new(place);
    nodes.add_page(text);
    read_with_labels(place, text, &nodes.labels())
}

/// Parses topologies, with the labels of the nodes of the same cluster.
pub fn read_with_labels(place: &str, text: &str, labels: &LabelsByNode) -> SourceReport {
    let mut topologies = TopologyObjectReader::new(place);
    if topologies.add_page(text).is_some() {
        topologies.push_problem(objects::truncated_list_problem(place));
    }
    topologies.into_report(labels)
}

/// One topology: its scheduler, its name, its labels from the outermost inwards.
#[derive(Debug)]
struct TopologyObject {
    name: String,
    levels: Vec<String>,
}

/// Parses topologies, page by page.
#[derive(Debug)]
pub struct TopologyObjectReader {
    place: String,
    report: SourceReport,
    topologies: Vec<TopologyObject>,
}

impl TopologyObjectReader {
    /// A reader without objects. `place` is their name in messages.
    pub fn new(place: &str) -> Self {
        let report = SourceReport::new(SourceKind::KubernetesTopologies, place);
        Self { place: place.to_owned(), report, topologies: Vec::new() }
    }

    /// Adds the objects of a text; returns the continue token of a server's list.
    pub fn add_page(&mut self, text: &str) -> Option<String> {
        let read = objects::read(&self.place, text);
        self.report.problems.extend(read.problems);
        for object in &read.objects {
            if let Some(scheduler) = scheduler(object) {
                self.add_topology(scheduler, object);
            }
        }
        read.continue_token
    }

    /// Adds a problem of the source.
    pub fn push_problem(&mut self, problem: SourceProblem) {
        self.report.problems.push(problem);
    }

    fn add_topology(&mut self, scheduler: &str, object: &KubernetesObject) {
        let Some(name) = object.name() else {
            let message = "a Topology without a name";
            self.report.push_problem(SourceProblemKind::Malformed, self.place.clone(), message);
            return;
        };
        let name = format!("{scheduler}/{}", sanitize_text(name));
        let place = format!("{}: Topology {name}", self.place);
        let mut wrong =
            |kind, message: String| self.report.push_problem(kind, place.clone(), message);
        let Some(levels) = value_at(&object.map, &["spec", "levels"]).and_then(Value::as_array)
        else {
            wrong(SourceProblemKind::Malformed, "has no spec.levels".to_owned());
            return;
        };
        let mut labels: Vec<String> = Vec::new();
        for (number, level) in levels.iter().enumerate() {
            let label = level.as_object().and_then(|level| text_at(level, &["nodeLabel"]));
            match label.filter(|label| !sanitize_text(label).is_empty()) {
                None => {
                    wrong(SourceProblemKind::Malformed, format!("level {number} has no nodeLabel"));
                }
                Some(label) if labels.iter().any(|known| known == label) => {
                    wrong(
                        SourceProblemKind::Contradictory,
                        format!("has {} twice", sanitize_text(label)),
                    );
                }
                Some(label) => labels.push(sanitize_text(label)),
            }
        }
        if labels.is_empty() {
            wrong(SourceProblemKind::Malformed, "has no level".to_owned());
            return;
        }
        if MAX_LEVELS < labels.len() {
            let message = format!("has {} levels, more than {MAX_LEVELS}", labels.len());
            wrong(SourceProblemKind::Malformed, message);
            return;
        }
        if labels[..labels.len() - 1].iter().any(|label| label == HOSTNAME) {
            let message = format!("{HOSTNAME} is not its last level");
            wrong(SourceProblemKind::Contradictory, message);
        }
        self.report.settings.insert(format!("Topology {name}"), labels.join(" > "));
        self.topologies.push(TopologyObject { name, levels: labels });
    }

    /// The claims about nodes with these labels.
    pub fn into_report(mut self, labels: &LabelsByNode) -> SourceReport {
        for topology in &self.topologies {
            add_level_groups(topology, labels, &mut self.report);
        }
        if !self.topologies.is_empty() && labels.is_empty() {
            self.report.notes.push(
                "no nodes are known here: only the levels are read, not the nodes that share them"
                    .to_owned(),
            );
        }
        limit_notes(self.report)
    }
}

/// One value of one level.
#[derive(Debug, Default)]
struct LevelGroup {
    nodes: Vec<NodeName>,
    parent: Option<String>,
}

/// Compares the levels of a topology with the labels of nodes.
fn add_level_groups(topology: &TopologyObject, labels: &LabelsByNode, report: &mut SourceReport) {
    // Levels with one node per value make no claim about several nodes.
    let levels: Vec<&String> = topology.levels.iter().filter(|l| *l != HOSTNAME).collect();
    // A value under two parents is two groups: schedulers use the whole path.
    let mut parents: BTreeMap<(usize, &str), BTreeSet<Vec<&str>>> = BTreeMap::new();
    let mut paths: Vec<(&NodeName, Vec<&str>)> = Vec::new();
    let (mut partly, mut outside) = (Vec::new(), 0_usize);
    for (node, labels) in labels {
        let path: Vec<&str> = levels
            .iter()
            .map_while(|label| {
                labels.get(*label).map(String::as_str).filter(|v| !sanitize_text(v).is_empty())
            })
            .collect();
        if path.len() < levels.len() {
            let carries = |label: &&String| labels.contains_key(label.as_str());
            if levels.iter().any(carries) {
                partly.push(node.as_str());
            } else {
                outside += 1;
            }
            continue;
        }
        for (level, value) in path.iter().enumerate() {
            parents.entry((level, value)).or_default().insert(path[..level].to_vec());
        }
        paths.push((node, path));
    }
    let mut groups: BTreeMap<(usize, String), LevelGroup> = BTreeMap::new();
    let name_of = |path: &[&str], level: usize| -> String {
        let value = path[level];
        let alone = parents.get(&(level, value)).is_none_or(|parents| parents.len() < 2);
        sanitize_text(&if alone { value.to_owned() } else { path[..=level].join("/") })
    };
    for (node, path) in &paths {
        for level in 0..path.len() {
            let shared = groups.entry((level, name_of(path, level))).or_default();
            shared.nodes.push((*node).clone());
            shared.parent = level.checked_sub(1).map(|above| name_of(path, above));
        }
    }
    for ((level, name), shared) in groups {
        let label = levels[level];
        let innermost = level + 1 == levels.len();
        let mut group = NodeGroup::new(level_kind(label, innermost), label, name, shared.nodes);
        group.topology = Some(topology.name.clone());
        group.above.extend(shared.parent);
        group.basis = ClaimBasis::Copied { from: format!("label {label}") };
        group.at = Some(format!("Topology {}", topology.name));
        report.groups.push(group);
    }
    let twice: Vec<String> = parents
        .iter()
        .filter(|(_, parents)| 1 < parents.len())
        .map(|((level, value), _)| format!("{}={}", levels[*level], sanitize_text(value)))
        .collect();
    if !twice.is_empty() {
        report.notes.push(format!(
            "Topology {}: values under several parents are several groups: {}",
            topology.name,
            sanitize_text(&twice.join(", "))
        ));
    }
    if !partly.is_empty() {
        report.notes.push(format!(
            "Topology {}: {} nodes carry only some of its labels and are outside it: {}",
            topology.name,
            partly.len(),
            model::hostlist::fold(partly.iter().copied())
        ));
    }
    if 0 < outside {
        report
            .notes
            .push(format!("Topology {}: {outside} nodes carry none of its labels", topology.name));
    }
}

/// The kind of groups with a common value of this label: for a known label its kind, else a guess
/// from its name.
fn level_kind(label: &str, innermost: bool) -> NodeGroupKind {
    if let Some(kind) = known_kind(label) {
        return kind;
    }
    let has = |word: &str| label.to_ascii_lowercase().contains(word);
    if ["nvlink", "clique", "accelerator", "nvl-"].iter().any(|word| has(word)) {
        NodeGroupKind::Domain
    } else if has("rack") {
        NodeGroupKind::Rack
    } else if has("leaf") {
        NodeGroupKind::Leaf
    } else if innermost || ["zone", "region"].iter().any(|word| has(word)) {
        // Unknown meaning: no claim about the fabric.
        NodeGroupKind::Partition
    } else {
        NodeGroupKind::Switch
    }
}
