//! Node labels with a location: the keys of domains, leaves, switches and racks, and the groups
//! that follow from their values.
//!
//! Sources of the keys, by writer: GPU feature discovery (NVIDIA/k8s-device-plugin
//! `internal/lm/imex.go`); topograph (`pkg/topology` constants, and its names before 1.0);
//! Google, EKS and HyperPod, OKE (`oci-hpc-oke` labeler), Nebius (soperator's topology reader:
//! tier 0 is the NVLink domain on GB200 and GB300), CoreWeave and Crusoe (their label
//! references).

use std::collections::BTreeMap;

use super::gpu_labels;
use super::gpu_labels::CLIQUE_LABEL;
use crate::claims::reader_util::sanitize_text;
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, NicReport, NodeGroup, NodeGroupKind, SourceProblem, SourceProblemKind, SourceReport,
};

/// The writer of a label, and the time of its last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelWriter {
    pub(super) manager: String,
    pub(super) time: Option<String>,
}

/// The labels and annotations of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeMetadata {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) writers: BTreeMap<String, LabelWriter>,
}

/// A label key, the scheme of its groups, and their kind.
type LabelScheme = (&'static str, &'static str, NodeGroupKind);

/// Labels without nesting.
const SINGLE_LABELS: &[LabelScheme] = &[
    (CLIQUE_LABEL, "clique", NodeGroupKind::Domain),
    ("network.topology.nvidia.com/accelerator", "topograph-accelerator", NodeGroupKind::Domain),
    ("topology.k8s.aws/ultraserver-id", "ultraserver", NodeGroupKind::Domain),
    ("oci.oraclecloud.com/host.gpu_memory_fabric_id", "gpu-memory-fabric", NodeGroupKind::Domain),
    ("topology.nebius.com/nvl-instance-group-id", "nvl-instance-group", NodeGroupKind::Domain),
    ("ds.coreweave.com/nvlink.domain", "nvlink.domain", NodeGroupKind::Domain),
    ("node.coreweave.cloud/rack", "coreweave-rack", NodeGroupKind::Rack),
    ("topology.nebius.com/gpu-cluster-id", "nebius-gpu-cluster", NodeGroupKind::Partition),
    ("cloud.google.com/gke-nodepool", "gke-nodepool", NodeGroupKind::Partition),
    ("eks.amazonaws.com/nodegroup", "eks-nodegroup", NodeGroupKind::Partition),
    ("karpenter.sh/nodepool", "karpenter-nodepool", NodeGroupKind::Partition),
    ("kubernetes.azure.com/agentpool", "aks-agentpool", NodeGroupKind::Partition),
];

/// Labels that nest, the innermost first.
const NESTED_LABELS: &[&[LabelScheme]] = &[
    &[
        ("accelerator.topograph.run/sub-domain", "topograph-sub-domain", NodeGroupKind::Domain),
        ("accelerator.topograph.run/domain", "topograph-domain", NodeGroupKind::Domain),
    ],
    &[
        ("network.topology.nvidia.com/leaf", "topograph-leaf", NodeGroupKind::Leaf),
        ("network.topology.nvidia.com/spine", "topograph-spine", NodeGroupKind::Switch),
        ("network.topology.nvidia.com/core", "topograph-core", NodeGroupKind::Switch),
        // Its name before it was called core.
        ("network.topology.nvidia.com/datacenter", "topograph-datacenter", NodeGroupKind::Switch),
    ],
    &[
        ("cloud.google.com/gce-topology-subblock", "gce-topology-subblock", NodeGroupKind::Rack),
        ("cloud.google.com/gce-topology-block", "gce-topology-block", NodeGroupKind::Switch),
    ],
    &[
        ("topology.gke.io/rack", "gke-rack", NodeGroupKind::Rack),
        ("topology.gke.io/cluster", "gke-cluster", NodeGroupKind::Switch),
    ],
    &[
        ("oci.oraclecloud.com/rdma.local_block_id", "oci-local-block", NodeGroupKind::Leaf),
        ("oci.oraclecloud.com/rdma.network_block_id", "oci-network-block", NodeGroupKind::Switch),
        ("oci.oraclecloud.com/rdma.hpc_island_id", "oci-hpc-island", NodeGroupKind::Switch),
    ],
    &[
        ("crusoe.ai/pod.id", "crusoe-pod", NodeGroupKind::Leaf),
        ("crusoe.ai/ib.partition.id", "crusoe-partition", NodeGroupKind::Switch),
    ],
];

/// Labels that nest and whose values are small numbers, reused under every parent: only the whole
/// path identifies a group.
const NUMBERED_LABELS: &[&[LabelScheme]] = &[
    &[
        ("backend.coreweave.cloud/leafgroup", "coreweave-leafgroup", NodeGroupKind::Leaf),
        ("backend.coreweave.cloud/superpod", "coreweave-superpod", NodeGroupKind::Switch),
        ("backend.coreweave.cloud/fabric", "coreweave-fabric", NodeGroupKind::Switch),
    ],
    &[
        ("ib.coreweave.cloud/leafgroup", "coreweave-ib-leafgroup", NodeGroupKind::Leaf),
        ("ib.coreweave.cloud/superpod", "coreweave-ib-superpod", NodeGroupKind::Switch),
        ("ib.coreweave.cloud/fabric", "coreweave-ib-fabric", NodeGroupKind::Switch),
    ],
];

/// Families of labels that end in a number.
const TOPOGRAPH_TIER: &str = "fabric.topograph.run/tier-";
const NEBIUS_TIER: &str = "topology.nebius.com/tier-";
const EKS_LAYER: &str = "topology.k8s.aws/network-node-layer-";

/// Slinky's annotation with the node's place in Slurm's topology.
const SLINKY_SPEC: &str = "topology.slinky.slurm.net/spec";

/// One label of one node, and the group it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelGroup {
    key: String,
    scheme: String,
    kind: NodeGroupKind,
    name: String,
    topology: Option<String>,
}

impl LabelGroup {
    fn from_label((key, scheme, kind): LabelScheme, value: &str) -> Self {
        Self {
            key: format!("label {key}"),
            scheme: scheme.to_owned(),
            kind,
            name: sanitize_text(value),
            topology: None,
        }
    }
}

/// The kind of groups of a label key, where known.
pub(super) fn known_kind(key: &str) -> Option<NodeGroupKind> {
    let nested = NESTED_LABELS.iter().chain(NUMBERED_LABELS).flat_map(|family| family.iter());
    if let Some((_, _, kind)) = SINGLE_LABELS.iter().chain(nested).find(|(known, ..)| *known == key)
    {
        return Some(*kind);
    }
    match (key.strip_prefix(TOPOGRAPH_TIER), key.strip_prefix(NEBIUS_TIER)) {
        (Some("0"), _) | (_, Some("1")) => Some(NodeGroupKind::Leaf),
        (_, Some("0")) => Some(NodeGroupKind::Domain),
        (Some(_), _) | (_, Some(_)) => Some(NodeGroupKind::Switch),
        // The lowest layer depends on the machine type.
        _ => key.starts_with(EKS_LAYER).then_some(NodeGroupKind::Switch),
    }
}

/// Adds the groups that follow from the labels of all nodes.
pub(super) fn add_groups(nodes: &[(&NodeName, &NodeMetadata)], report: &mut SourceReport) {
    let mut groups: BTreeMap<(NodeGroupKind, String, String), NodeGroup> = BTreeMap::new();
    let place = report.source.place.clone();
    for (node, labelled) in nodes {
        for chain in group_chains(labelled, &place, node, report) {
            let above = chain.iter().skip(1).map(|place| Some(place.name.clone()));
            let above: Vec<Option<String>> = above.chain([None]).collect();
            for (place, above) in chain.into_iter().zip(above) {
                let key = (place.kind, place.scheme.clone(), place.name.clone());
                let group = groups.entry(key).or_insert_with(|| {
                    let mut group =
                        NodeGroup::new(place.kind, &place.scheme, place.name, Vec::new());
                    group.at = Some(place.key.clone());
                    group.topology = place.topology;
                    group
                });
                group.nodes.push((*node).clone());
                if let Some(above) = above.filter(|above| !group.above.contains(above)) {
                    group.above.push(above);
                }
                let label = place.key.strip_prefix("label ").unwrap_or_default();
                let time = labelled.writers.get(label).and_then(|by| by.time.clone());
                // The group is complete only since its last node.
                group.since = group.since.take().max(time);
            }
        }
    }
    let labels: BTreeMap<&NodeName, &NodeMetadata> = nodes.iter().copied().collect();
    for mut group in groups.into_values() {
        if 1 < group.above.len() {
            report.push_problem(
                SourceProblemKind::Contradictory,
                format!("{place}: {}", group.at.as_deref().unwrap_or_default()),
                format!("{} is in {} at the same time", group.name, group.above.join(" and ")),
            );
        }
        if group.kind == NodeGroupKind::Domain
            && group.scheme != "clique"
            && is_clique_copy(&group, &labels)
        {
            group.basis = ClaimBasis::Copied { from: format!("label {CLIQUE_LABEL}") };
        }
        report.groups.push(group);
    }
    add_racks(nodes, report);
}

/// Whether a group's name is the clique, or the ClusterUUID, of one of its nodes.
fn is_clique_copy(group: &NodeGroup, labels: &BTreeMap<&NodeName, &NodeMetadata>) -> bool {
    group.nodes.iter().filter_map(|node| labels.get(node)).any(|labelled| {
        labelled.labels.get(CLIQUE_LABEL) == Some(&group.name)
            || gpu_labels::parse_clique(&labelled.labels)
                .is_some_and(|clique| clique.uuid == group.name)
    })
}

/// The groups of one node's labels, as chains of nested groups.
fn group_chains(
    labelled: &NodeMetadata,
    place: &str,
    node: &NodeName,
    report: &mut SourceReport,
) -> Vec<Vec<LabelGroup>> {
    let labels = &labelled.labels;
    let value = |key: &str| labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
    let mut chains = Vec::new();
    for key in SINGLE_LABELS {
        if let Some(value) = value(key.0) {
            // An invalid value is already reported as a problem.
            if key.0 != CLIQUE_LABEL || gpu_labels::parse_clique(labels).is_some() {
                chains.push(vec![LabelGroup::from_label(*key, value)]);
            }
        }
    }
    let family = |keys: &[LabelScheme]| -> Vec<LabelGroup> {
        keys.iter().filter_map(|key| Some(LabelGroup::from_label(*key, value(key.0)?))).collect()
    };
    chains.extend(NESTED_LABELS.iter().map(|keys| family(keys)));
    for keys in NUMBERED_LABELS {
        let mut chain = family(keys);
        for inner in (0..chain.len().saturating_sub(1)).rev() {
            chain[inner].name = format!("{}/{}", chain[inner + 1].name, chain[inner].name);
        }
        chains.push(chain);
    }
    let mut tiers = numbered_chain(labels, TOPOGRAPH_TIER, "topograph-tier-");
    // Tier 0 may be missing; the first tier is then not a leaf.
    if let Some(first) = tiers.first_mut().filter(|first| first.scheme != "topograph-tier-0") {
        first.kind = NodeGroupKind::Switch;
    }
    chains.push(tiers);
    let mut nebius = numbered_chain(labels, NEBIUS_TIER, "nebius-tier-");
    // On a rack, tier 0 is its NVLink domain, and the leaf is above it.
    if gpu_labels::is_rack_scale(labels)
        && let [domain, rest @ ..] = nebius.as_mut_slice()
        && domain.scheme == "nebius-tier-0"
    {
        domain.kind = NodeGroupKind::Domain;
        if let Some(leaf) = rest.first_mut() {
            leaf.kind = NodeGroupKind::Leaf;
        }
    }
    chains.push(nebius);
    // The lowest layer, to which the machine is connected, is the last.
    let mut layers = numbered_chain(labels, EKS_LAYER, "network-node-layer-");
    layers.reverse();
    for (at, layer) in layers.iter_mut().enumerate() {
        layer.kind = if at == 0 { NodeGroupKind::Leaf } else { NodeGroupKind::Switch };
    }
    chains.push(layers);
    if gpu_labels::is_rack_scale(labels) {
        // On GB200 and GB300 machines a sub-block is one NVLink domain.
        let subblocks = chains.iter_mut().flatten();
        for subblock in subblocks.filter(|place| place.scheme == "gce-topology-subblock") {
            subblock.kind = NodeGroupKind::Domain;
        }
    }
    if let Some(spec) = labelled.annotations.get(SLINKY_SPEC) {
        match parse_slinky_spec(spec) {
            Ok(found) => chains.extend(found),
            Err(message) => report.problems.push(SourceProblem {
                kind: SourceProblemKind::Malformed,
                at: Some(format!("{place}: node {node}: annotation {SLINKY_SPEC}")),
                message,
            }),
        }
    }
    // A value that consists of control characters names no group.
    for chain in &mut chains {
        chain.retain(|place: &LabelGroup| !place.name.is_empty());
    }
    chains.retain(|chain| !chain.is_empty());
    chains
}

/// Labels numbered from the innermost outwards; the first is a leaf.
fn numbered_chain(
    labels: &BTreeMap<String, String>,
    prefix: &str,
    scheme: &str,
) -> Vec<LabelGroup> {
    let mut tiers: Vec<(u32, LabelGroup)> = labels
        .range(prefix.to_owned()..)
        .take_while(|(key, _)| key.starts_with(prefix))
        .filter_map(|(key, value)| {
            let tier: u32 = key[prefix.len()..].parse().ok()?;
            let place = LabelGroup {
                key: format!("label {key}"),
                scheme: format!("{scheme}{tier}"),
                kind: NodeGroupKind::Switch,
                name: sanitize_text(value),
                topology: None,
            };
            (!value.is_empty()).then_some((tier, place))
        })
        .collect();
    tiers.sort_by_key(|(tier, _)| *tier);
    let mut chain: Vec<LabelGroup> = tiers.into_iter().map(|(_, place)| place).collect();
    if let Some(first) = chain.first_mut() {
        first.kind = NodeGroupKind::Leaf;
    }
    chain
}

/// Slurm's view of a dynamic node, `topo-switch:s2,topo-block:b2`: names of topologies, each with
/// its unit; of a tree all switches down to the leaf. Only the name distinguishes a block from a
/// switch.
fn parse_slinky_spec(spec: &str) -> Result<Vec<Vec<LabelGroup>>, String> {
    let mut chains = Vec::new();
    for part in spec.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let mut words = part.split(':').map(str::trim);
        let topology = words.next().unwrap_or_default();
        let units: Vec<&str> = words.collect();
        if topology.is_empty() || units.is_empty() || units.contains(&"") {
            let expected = "expected <topology>:<unit>, several separated by commas";
            return Err(format!("{expected}, found {:?}", sanitize_text(part)));
        }
        let (kind, outer, scheme) = if topology.contains("block") {
            (NodeGroupKind::Domain, NodeGroupKind::Domain, "slinky-block")
        } else if ["switch", "tree", "leaf"].iter().any(|word| topology.contains(word)) {
            (NodeGroupKind::Leaf, NodeGroupKind::Switch, "slinky-switch")
        } else {
            (NodeGroupKind::Partition, NodeGroupKind::Partition, "slinky-topology")
        };
        let place = |(at, unit): (usize, &&str)| LabelGroup {
            key: format!("annotation {SLINKY_SPEC}"),
            scheme: scheme.to_owned(),
            kind: if at == 0 { kind } else { outer },
            name: sanitize_text(unit),
            topology: Some(sanitize_text(topology)),
        };
        chains.push(units.iter().rev().enumerate().map(place).collect());
    }
    Ok(chains)
}

/// Adds racks and slots from labels that contain only those.
fn add_racks(nodes: &[(&NodeName, &NodeMetadata)], report: &mut SourceReport) {
    const RACKS: [&str; 3] =
        ["node.coreweave.cloud/rack", "topology.gke.io/rack", "topology.kubernetes.io/rack"];
    const SLOT: &str = "oci.oraclecloud.com/host.tray_index";
    for (node, labelled) in nodes {
        let report = report.nodes.entry((*node).clone()).or_default();
        report.rack =
            RACKS.iter().find_map(|key| labelled.labels.get(*key)).map(|rack| sanitize_text(rack));
        report.slot = labelled.labels.get(SLOT).map(|slot| sanitize_text(slot));
        report.nics.extend(nics_from_labels(&labelled.labels));
    }
}

/// The expected and the observed leaf and port of each interface, in CoreWeave's labels:
/// `neighbors.expected.<interface>.device`, `.port-id`.
fn nics_from_labels(labels: &BTreeMap<String, String>) -> Vec<NicReport> {
    const PREFIXES: [&str; 2] =
        ["backend.coreweave.cloud/neighbors.", "ib.coreweave.cloud/neighbors."];
    let mut nics: BTreeMap<(&str, &str), NicReport> = BTreeMap::new();
    for (key, value) in labels {
        let Some(rest) = PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)) else {
            continue;
        };
        let Some((how, (interface, what))) =
            rest.split_once('.').and_then(|(how, rest)| Some((how, rest.rsplit_once('.')?)))
        else {
            continue;
        };
        let basis = match how {
            "expected" => ClaimBasis::Asserted,
            "current" => ClaimBasis::Reported,
            _ => continue,
        };
        let nic = nics.entry((interface, how)).or_default();
        match what {
            "device" => nic.leaf = Some(sanitize_text(value)),
            "port-id" => nic.port = Some(sanitize_text(value)),
            _ => {}
        }
        nic.device = Some(sanitize_text(interface));
        nic.basis = Some(basis);
        nic.at = Some(format!("label {key}"));
    }
    nics.into_values().filter(|nic| nic.leaf.is_some() || nic.port.is_some()).collect()
}
