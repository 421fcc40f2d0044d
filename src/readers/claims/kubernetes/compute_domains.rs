//! ComputeDomain objects and their status.
//!
//! A ComputeDomain lists the nodes that run one IMEX domain for a workload. There is one IMEX
//! domain per clique: nodes of two cliques never share one, and a node without a clique takes
//! part without a fabric. `Ready` is reported by each node's own daemon and does not cover
//! bandwidth.
//!
//! Sources: `api/nvidia.com/resource/v1beta1` of the DRA driver (`computedomain.go`,
//! `computedomainclique.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::gpu_labels::CliqueLabel;
use super::objects;
use super::objects::{KubernetesObject, list_at, text_at, value_at};
use crate::claims::reader_util::{limit_notes, sanitize_text};
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, FabricReport, NodeGroup, NodeGroupKind, SourceKind, SourceProblem,
    SourceProblemKind, SourceReport,
};

pub(super) const GROUP: &str = "resource.nvidia.com";

/// Whether a text contains ComputeDomains.
pub fn recognises(text: &str) -> bool {
    text.contains(GROUP) && objects::read("", text).objects.iter().any(is_compute_domain)
}

fn is_compute_domain(object: &KubernetesObject) -> bool {
    object.group == GROUP && matches!(object.kind.as_str(), "ComputeDomain" | "ComputeDomainClique")
}

/// Parses ComputeDomains. `place` is their name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut domains = ComputeDomainReader::new(place);
    if domains.add_page(text).is_some() {
        domains.push_problem(objects::truncated_list_problem(place));
    }
    domains.into_report()
}

/// One member node of a ComputeDomain.
#[derive(Clone, Debug)]
struct ComputeDomainMember {
    node: NodeName,
    clique: String,
    status: String,
    index: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct ComputeDomain {
    status: String,
    size: Option<u32>,
    since: Option<String>,
    members: Vec<ComputeDomainMember>,
}

/// Parses ComputeDomains, page by page.
#[derive(Debug)]
pub struct ComputeDomainReader {
    place: String,
    report: SourceReport,
    domains: BTreeMap<String, ComputeDomain>,
    /// Name of a domain by its UID.
    by_uid: BTreeMap<String, String>,
    /// Members in separate objects, by the UID of their domain.
    cliques: Vec<(String, Vec<ComputeDomainMember>)>,
}

impl ComputeDomainReader {
    /// A reader without objects. `place` is their name in messages.
    pub fn new(place: &str) -> Self {
        Self {
            place: place.to_owned(),
            report: SourceReport::new(SourceKind::ComputeDomains, place),
            domains: BTreeMap::new(),
            by_uid: BTreeMap::new(),
            cliques: Vec::new(),
        }
    }

    /// Adds the objects of a text; returns the continue token of a server's list.
    pub fn add_page(&mut self, text: &str) -> Option<String> {
        let read = objects::read(&self.place, text);
        self.report.problems.extend(read.problems);
        for object in read.objects.iter().filter(|object| is_compute_domain(object)) {
            let Some(name) = object.name() else {
                let message = format!("a {} without a name", object.kind);
                self.report.push_problem(SourceProblemKind::Malformed, self.place.clone(), message);
                continue;
            };
            if object.kind == "ComputeDomain" {
                self.add_domain(name, object);
            } else {
                // Named `<UID of the ComputeDomain>.<cliqueID>`.
                let uid = name.split_once('.').map_or(name, |(uid, _)| uid).to_owned();
                let members =
                    self.read_members(name, list_at(&object.map, &["daemons"]), "nodeName");
                self.cliques.push((uid, members));
            }
        }
        read.continue_token
    }

    /// Adds a problem of the source.
    pub fn push_problem(&mut self, problem: SourceProblem) {
        self.report.problems.push(problem);
    }

    fn add_domain(&mut self, name: &str, object: &KubernetesObject) {
        let namespace = text_at(&object.map, &["metadata", "namespace"]).unwrap_or("default");
        let name = format!("{}/{}", sanitize_text(namespace), sanitize_text(name));
        if let Some(uid) = text_at(&object.map, &["metadata", "uid"]) {
            self.by_uid.insert(uid.to_owned(), name.clone());
        }
        let members = self.read_members(&name, list_at(&object.map, &["status", "nodes"]), "name");
        let size = value_at(&object.map, &["spec", "numNodes"]).and_then(Value::as_u64);
        let domain = ComputeDomain {
            status: sanitize_text(text_at(&object.map, &["status", "status"]).unwrap_or_default()),
            // 0, the default, means no expected size.
            size: size.and_then(|size| u32::try_from(size).ok()).filter(|size| 0 < *size),
            since: text_at(&object.map, &["metadata", "creationTimestamp"]).map(sanitize_text),
            members,
        };
        if self.domains.insert(name.clone(), domain).is_some() {
            let message = format!("{name} is listed twice; the last counts");
            self.report.push_problem(SourceProblemKind::Contradictory, self.place.clone(), message);
        }
    }

    fn read_members(
        &mut self,
        domain: &str,
        nodes: &[Value],
        name: &str,
    ) -> Vec<ComputeDomainMember> {
        let mut members = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let place =
                format!("{}: ComputeDomain {}, node {number}", self.place, sanitize_text(domain));
            let empty = Map::new();
            let node = node.as_object().unwrap_or(&empty);
            let Some(node_name) =
                text_at(node, &[name]).filter(|name| !sanitize_text(name).is_empty())
            else {
                self.report.push_problem(
                    SourceProblemKind::Malformed,
                    place,
                    "a node without a name",
                );
                continue;
            };
            let clique = text_at(node, &["cliqueID"]).unwrap_or_default();
            if !clique.is_empty()
                && let Err(message) = CliqueLabel::parse(clique)
            {
                self.report.push_problem(
                    SourceProblemKind::Malformed,
                    place,
                    format!("cliqueID: {message}"),
                );
            }
            members.push(ComputeDomainMember {
                node: NodeName::from(sanitize_text(node_name)),
                clique: sanitize_text(clique),
                status: sanitize_text(text_at(node, &["status"]).unwrap_or_default()),
                index: node.get("index").and_then(Value::as_u64),
            });
        }
        members
    }

    /// The claims of all objects.
    pub fn into_report(mut self) -> SourceReport {
        for (uid, members) in std::mem::take(&mut self.cliques) {
            // Without the domain object, the UID is the only name.
            let name = self.by_uid.get(&uid).cloned().unwrap_or_else(|| sanitize_text(&uid));
            self.domains.entry(name).or_default().members.extend(members);
        }
        let mut owners: BTreeMap<NodeName, String> = BTreeMap::new();
        for (name, mut domain) in std::mem::take(&mut self.domains) {
            // Newer drivers list a node both in its clique and in the domain's status.
            let mut seen = BTreeSet::new();
            domain
                .members
                .retain(|member| seen.insert((member.node.clone(), member.clique.clone())));
            for member in &domain.members {
                if let Some(owner) = owners.insert(member.node.clone(), name.clone())
                    && owner != name
                {
                    let message = format!(
                        "node {} is in two ComputeDomains, {owner} and {name}; it can serve one",
                        member.node
                    );
                    self.report.push_problem(
                        SourceProblemKind::Contradictory,
                        self.place.clone(),
                        message,
                    );
                }
            }
            add_to_report(&name, &domain, &mut self.report);
        }
        limit_notes(self.report)
    }
}

/// Adds the claims of one ComputeDomain.
fn add_to_report(name: &str, domain: &ComputeDomain, report: &mut SourceReport) {
    let status = if domain.status.is_empty() { "not reported" } else { &domain.status };
    report.settings.insert(format!("ComputeDomain {name} status"), status.to_owned());
    let mut cliques: BTreeMap<&str, Vec<&ComputeDomainMember>> = BTreeMap::new();
    for member in &domain.members {
        cliques.entry(&member.clique).or_default().push(member);
    }
    let is_one = cliques.len() == 1;
    for (clique, members) in &cliques {
        let part = if clique.is_empty() { "no clique" } else { clique };
        let part = if is_one { name.to_owned() } else { format!("{name} ({part})") };
        let nodes = members.iter().map(|member| member.node.clone()).collect();
        let mut group = NodeGroup::new(NodeGroupKind::Imex, "ComputeDomain", part, nodes);
        group.topology = Some(name.to_owned());
        group.size = domain.size.filter(|_| is_one);
        group.since.clone_from(&domain.since);
        group.at = Some(format!("ComputeDomain {name}: status.nodes"));
        if !clique.is_empty() {
            group.above.push((*clique).to_owned());
        }
        report.groups.push(group);
    }
    if domain.members.is_empty() {
        let mut group = NodeGroup::new(NodeGroupKind::Imex, "ComputeDomain", name, Vec::new());
        group.size = domain.size;
        group.since.clone_from(&domain.since);
        group.at = Some(format!("ComputeDomain {name}: status.nodes"));
        report.groups.push(group);
    }
    if let Some(without) = cliques.get("") {
        let ready = without.iter().filter(|member| member.status == "Ready").count();
        report.notes.push(format!(
            "ComputeDomain {name}: {} nodes without a clique ({ready} of them Ready): they take part without a fabric",
            without.len()
        ));
    }
    for member in &domain.members {
        let clique = CliqueLabel::parse(&member.clique).ok();
        let node = report.node_mut(&member.node);
        node.busy = Some(true);
        let index = member.index.map_or_else(String::new, |index| format!(", index {index}"));
        let clique_words = if member.clique.is_empty() { "no clique" } else { &member.clique };
        let status = if member.status.is_empty() { "no status" } else { &member.status };
        node.marks
            .insert(format!("ComputeDomain {name}"), format!("{status}, {clique_words}{index}"));
        if let Some(clique) = clique {
            node.fabric.push(FabricReport {
                cluster_uuid: Some(clique.uuid),
                clique_id: Some(clique.id.to_string()),
                basis: Some(ClaimBasis::Asserted),
                at: Some(format!("ComputeDomain {name}: status.nodes")),
                ..FabricReport::default()
            });
        }
    }
}
