//! The configuration of a kind cluster: nodes in containers, with their future labels. Fabric
//! test labs are often defined this way.
//!
//! Source of the names: kind names its nodes `<cluster>-<role>`, with a number from the second
//! node of a role on.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::objects::{KubernetesObject, list_at, text_at};
use crate::claims::reader_util::sanitize_text;

/// Whether an object is a kind configuration.
pub(super) fn is_kind_cluster(object: &KubernetesObject) -> bool {
    object.kind == "Cluster" && object.group == "kind.x-k8s.io"
}

#[derive(Debug)]
pub(super) struct KindNode {
    pub(super) name: String,
    /// The container name, where the node registers under another name.
    pub(super) alias: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
}

pub(super) fn nodes(object: &KubernetesObject) -> Vec<KindNode> {
    let cluster = text_at(&object.map, &["name"]).unwrap_or("kind");
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let nodes = list_at(&object.map, &["nodes"]).iter().filter_map(Value::as_object);
    nodes
        .map(|node| {
            let role = text_at(node, &["role"]).unwrap_or("control-plane");
            let count = counts.entry(role).or_default();
            *count += 1;
            let number = if *count == 1 { String::new() } else { count.to_string() };
            let container = format!("{}-{}{number}", sanitize_text(cluster), sanitize_text(role));
            let labels = node.get("labels").and_then(Value::as_object);
            let labels = labels.into_iter().flatten();
            let labels =
                labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            let registered = registered_name(node);
            KindNode {
                labels: labels.collect(),
                alias: registered.is_some().then(|| container.clone()),
                name: registered.unwrap_or(container),
            }
        })
        .collect()
}

/// The name under which a node registers, from its patches of kubeadm's configuration.
fn registered_name(node: &Map<String, Value>) -> Option<String> {
    let patches = list_at(node, &["kubeadmConfigPatches"]).iter().filter_map(Value::as_str);
    let documents = patches.filter_map(|text| serde_saphyr::from_multiple::<Value>(text).ok());
    let mut names = documents.flatten().filter_map(|patch| {
        Some(text_at(patch.as_object()?, &["nodeRegistration", "name"])?.to_owned())
    });
    names.next()
}
