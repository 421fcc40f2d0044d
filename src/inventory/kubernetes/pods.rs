//! What the pods of a cluster say of its nodes: which hold GPUs.
//!
//! Pure: pods in, facts out. Decides nothing.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use crate::measure::text::clean;
use crate::model::id::NodeName;

/// What runs on one node, as far as it matters to whoever gates it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnNode {
    /// Pods that hold GPUs or may hold some, `namespace/name`.
    pub gpu_pods: BTreeSet<String>,
    /// The gangs of those.
    pub gangs: BTreeSet<String>,
}

/// What runs on every node that a pod is bound to. Pods without a node, pods that
/// ended, and pods that hold no GPU count for nothing.
pub fn read<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<NodeName, OnNode> {
    let mut nodes: BTreeMap<NodeName, OnNode> = BTreeMap::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let Some(node) = &spec.node_name else { continue };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let mut resources = containers.filter_map(|it| it.resources.as_ref());
        let holds = resources.any(|it| {
            let named = it.limits.iter().chain(&it.requests).flatten();
            named.map(|(name, _)| name).any(|name| name.contains("gpu"))
        });
        if holds || spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
            let meta = &pod.metadata;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            let name = format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default());
            let on_node = nodes.entry(NodeName::from(node.as_str())).or_default();
            on_node.gpu_pods.insert(clean(&name));
        }
    }
    nodes
}
