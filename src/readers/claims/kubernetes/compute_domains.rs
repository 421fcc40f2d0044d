//! ComputeDomain objects and their status.
//!
//! A ComputeDomain says which nodes run one IMEX domain for a workload. It is
//! one IMEX domain per clique: nodes of two cliques never share one, and a node
//! without a clique takes part without a fabric. `Ready` is the word of each
//! node's own daemon, and says nothing about bandwidth.
//!
//! Sources: `api/nvidia.com/resource/v1beta1` of the DRA driver
//! (`computedomain.go`, `computedomainclique.go`).

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde_json::Map;
use serde_json::Value;

use super::gpu_labels::Clique;
use super::objects;
use super::objects::Object;
use super::objects::at;
use super::objects::list_at;
use super::objects::text_at;
use crate::claims::reading::bounded;
use crate::claims::reading::plain;
use model::id::NodeName;
use model::said::Basis;
use model::said::FabricSaid;
use model::said::Group;
use model::said::GroupKind;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;
use model::said::SourceProblem;

/// The API group.
pub(super) const GROUP: &str = "resource.nvidia.com";

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    text.contains(GROUP) && objects::read("", text).objects.iter().any(is_one)
}

fn is_one(object: &Object) -> bool {
    object.group == GROUP && matches!(object.kind.as_str(), "ComputeDomain" | "ComputeDomainClique")
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> Said {
    let mut domains = ComputeDomains::at(place);
    if domains.add(text).is_some() {
        domains.trouble(objects::cut(place));
    }
    domains.said()
}

/// One node of a ComputeDomain.
#[derive(Clone, Debug)]
struct Member {
    node: NodeName,
    clique: String,
    status: String,
    index: Option<u64>,
}

/// One ComputeDomain.
#[derive(Clone, Debug, Default)]
struct ComputeDomain {
    status: String,
    size: Option<u32>,
    since: Option<String>,
    members: Vec<Member>,
}

/// ComputeDomains while they are read, page by page.
#[derive(Debug)]
pub struct ComputeDomains {
    place: String,
    said: Said,
    domains: BTreeMap<String, ComputeDomain>,
    /// Name of a domain by its UID.
    by_uid: BTreeMap<String, String>,
    /// Members in objects of their own, by the UID of their domain.
    cliques: Vec<(String, Vec<Member>)>,
}

impl ComputeDomains {
    /// None yet. `place` is their name in messages.
    pub fn at(place: &str) -> Self {
        Self {
            place: place.to_owned(),
            said: Said::nothing(SourceKind::ComputeDomains, place),
            domains: BTreeMap::new(),
            by_uid: BTreeMap::new(),
            cliques: Vec::new(),
        }
    }

    /// Adds what is in a text; gives the token with which a server's list goes on.
    pub fn add(&mut self, text: &str) -> Option<String> {
        let read = objects::read(&self.place, text);
        self.said.problems.extend(read.problems);
        for object in read.objects.iter().filter(|object| is_one(object)) {
            let Some(name) = object.name() else {
                let message = format!("a {} without a name", object.kind);
                self.said.trouble(ProblemKind::Malformed, self.place.clone(), message);
                continue;
            };
            if object.kind == "ComputeDomain" {
                self.add_domain(name, object);
            } else {
                // Named `<UID of the ComputeDomain>.<cliqueID>`.
                let uid = name.split_once('.').map_or(name, |(uid, _)| uid).to_owned();
                let members = self.members(name, list_at(&object.map, &["daemons"]), "nodeName");
                self.cliques.push((uid, members));
            }
        }
        read.more
    }

    /// Adds a problem.
    pub fn trouble(&mut self, problem: SourceProblem) {
        self.said.problems.push(problem);
    }

    fn add_domain(&mut self, name: &str, object: &Object) {
        let namespace = text_at(&object.map, &["metadata", "namespace"]).unwrap_or("default");
        let name = format!("{}/{}", plain(namespace), plain(name));
        if let Some(uid) = text_at(&object.map, &["metadata", "uid"]) {
            self.by_uid.insert(uid.to_owned(), name.clone());
        }
        let members = self.members(&name, list_at(&object.map, &["status", "nodes"]), "name");
        let size = at(&object.map, &["spec", "numNodes"]).and_then(Value::as_u64);
        let domain = ComputeDomain {
            status: plain(text_at(&object.map, &["status", "status"]).unwrap_or_default()),
            // 0, the default, is no expectation.
            size: size.and_then(|size| u32::try_from(size).ok()).filter(|size| 0 < *size),
            since: text_at(&object.map, &["metadata", "creationTimestamp"]).map(plain),
            members,
        };
        if self.domains.insert(name.clone(), domain).is_some() {
            let message = format!("{name} is listed twice; the last counts");
            self.said.trouble(ProblemKind::Contradictory, self.place.clone(), message);
        }
    }

    fn members(&mut self, domain: &str, nodes: &[Value], name: &str) -> Vec<Member> {
        let mut members = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let place = format!("{}: ComputeDomain {}, node {number}", self.place, plain(domain));
            let empty = Map::new();
            let node = node.as_object().unwrap_or(&empty);
            let Some(node_name) = text_at(node, &[name]).filter(|name| !plain(name).is_empty())
            else {
                self.said.trouble(ProblemKind::Malformed, place, "a node without a name");
                continue;
            };
            let clique = text_at(node, &["cliqueID"]).unwrap_or_default();
            if !clique.is_empty()
                && let Err(message) = Clique::parse(clique)
            {
                self.said.trouble(ProblemKind::Malformed, place, format!("cliqueID: {message}"));
            }
            members.push(Member {
                node: NodeName::from(plain(node_name)),
                clique: plain(clique),
                status: plain(text_at(node, &["status"]).unwrap_or_default()),
                index: node.get("index").and_then(Value::as_u64),
            });
        }
        members
    }

    /// What they say.
    pub fn said(mut self) -> Said {
        for (uid, members) in std::mem::take(&mut self.cliques) {
            // Without its domain, the UID is all the name there is.
            let name = self.by_uid.get(&uid).cloned().unwrap_or_else(|| plain(&uid));
            self.domains.entry(name).or_default().members.extend(members);
        }
        let mut owners: BTreeMap<NodeName, String> = BTreeMap::new();
        for (name, mut domain) in std::mem::take(&mut self.domains) {
            // Newer drivers list a node in its clique and in the domain's status.
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
                    self.said.trouble(ProblemKind::Contradictory, self.place.clone(), message);
                }
            }
            speak(&name, &domain, &mut self.said);
        }
        bounded(self.said)
    }
}

/// Says what one ComputeDomain says.
fn speak(name: &str, domain: &ComputeDomain, said: &mut Said) {
    let status = if domain.status.is_empty() { "not said" } else { &domain.status };
    said.settings.insert(format!("ComputeDomain {name} status"), status.to_owned());
    let mut cliques: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in &domain.members {
        cliques.entry(&member.clique).or_default().push(member);
    }
    let is_one = cliques.len() == 1;
    for (clique, members) in &cliques {
        let part = if clique.is_empty() { "no clique" } else { clique };
        let part = if is_one { name.to_owned() } else { format!("{name} ({part})") };
        let nodes = members.iter().map(|member| member.node.clone()).collect();
        let mut group = Group::of(GroupKind::Imex, "ComputeDomain", part, nodes);
        group.topology = Some(name.to_owned());
        group.size = domain.size.filter(|_| is_one);
        group.since.clone_from(&domain.since);
        group.at = Some(format!("ComputeDomain {name}: status.nodes"));
        if !clique.is_empty() {
            group.above.push((*clique).to_owned());
        }
        said.groups.push(group);
    }
    if domain.members.is_empty() {
        let mut group = Group::of(GroupKind::Imex, "ComputeDomain", name, Vec::new());
        group.size = domain.size;
        group.since.clone_from(&domain.since);
        group.at = Some(format!("ComputeDomain {name}: status.nodes"));
        said.groups.push(group);
    }
    if let Some(without) = cliques.get("") {
        let ready = without.iter().filter(|member| member.status == "Ready").count();
        said.notes.push(format!(
            "ComputeDomain {name}: {} nodes without a clique ({ready} of them Ready): they take part without a fabric",
            without.len()
        ));
    }
    for member in &domain.members {
        let clique = Clique::parse(&member.clique).ok();
        let node = said.node(&member.node);
        node.busy = Some(true);
        let index = member.index.map_or_else(String::new, |index| format!(", index {index}"));
        let clique_words = if member.clique.is_empty() { "no clique" } else { &member.clique };
        let status = if member.status.is_empty() { "no status" } else { &member.status };
        node.marks
            .insert(format!("ComputeDomain {name}"), format!("{status}, {clique_words}{index}"));
        if let Some(clique) = clique {
            node.fabric.push(FabricSaid {
                cluster_uuid: Some(clique.uuid),
                clique_id: Some(clique.id.to_string()),
                basis: Some(Basis::Asserted),
                at: Some(format!("ComputeDomain {name}: status.nodes")),
                ..FabricSaid::default()
            });
        }
    }
}
