//! Tests of node objects, with synthetic objects; `domains` tests the other kinds.

mod domains;
mod forms;

use serde_json::{Value, json};

use super::nodes;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroup, SourceProblemKind, SourceReport};

const A: &str = "11111111-2222-3333-4444-555555555555.7";
const B: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa.0";

fn node(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "items": items, "kind": "List"}).to_string()
}

fn read(items: &[Value]) -> SourceReport {
    let text = list(items);
    assert!(nodes::recognises(&text), "{text}");
    nodes::read("n.json", &text)
}

/// `kind scheme name: nodes`, one line per group.
fn group_lines(groups: &[NodeGroup]) -> Vec<String> {
    let nodes =
        |group: &NodeGroup| group.nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(" ");
    groups
        .iter()
        .map(|group| {
            let above = if group.above.is_empty() {
                String::new()
            } else {
                format!(" under {}", group.above.join("+"))
            };
            format!("{:?} {} {}: {}{above}", group.kind, group.scheme, group.name, nodes(group))
        })
        .collect()
}

fn problems(report: &SourceReport) -> Vec<(SourceProblemKind, String)> {
    report.problems.iter().map(|problem| (problem.kind, problem.to_string())).collect()
}

fn clique(value: &str) -> Value {
    json!({"nvidia.com/gpu.clique": value, "nvidia.com/gpu.count": "4"})
}

#[test]
fn the_whole_clique_is_the_name_of_a_domain() {
    let report = read(&[
        node("t1", &clique(A)),
        node("t2", &clique(B)),
        node("t3", &clique(A)),
        node("t4", &clique("11111111-2222-3333-4444-555555555555.8")),
    ]);
    assert_eq!(
        group_lines(&report.groups),
        [
            format!("Domain clique {A}: t1 t3"),
            "Domain clique 11111111-2222-3333-4444-555555555555.8: t4".to_owned(),
            format!("Domain clique {B}: t2"),
        ]
    );
    let fabric = &report.nodes[&NodeName::from("t3")].fabric[0];
    assert_eq!(fabric.clique().as_deref(), Some(A));
    assert_eq!(fabric.basis, Some(ClaimBasis::Asserted));
    assert_eq!(report.groups[0].at.as_deref(), Some("label nvidia.com/gpu.clique"));
    assert_eq!(problems(&report), []);
}

#[test]
fn an_invalid_clique_drops_only_its_label() {
    let values = [
        "",
        "x",
        "11111111-2222-3333-4444-555555555555",
        "11111111-2222-3333-4444-555555555555.",
        "11111111-2222-3333-4444-555555555555.-1",
        "11111111-2222-3333-4444-555555555555.+1",
        "11111111-2222-3333-4444-555555555555.99999999999",
        "11111111222233334444555555555555.1",
        "gggggggg-2222-3333-4444-555555555555.1",
    ];
    let mut items = vec![node("good", &clique(A))];
    for (number, value) in values.iter().enumerate() {
        items.push(node(&format!("bad{number}"), &clique(value)));
    }
    let report = read(&items);
    assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: good")]);
    assert_eq!(report.problems.len(), values.len());
    for (number, problem) in report.problems.iter().enumerate() {
        assert_eq!(problem.kind, SourceProblemKind::Malformed);
        let at = format!("n.json: node bad{number}: label nvidia.com/gpu.clique");
        assert_eq!(problem.at.as_deref(), Some(at.as_str()));
    }
    // The rest of a node with a bad label is read.
    assert_eq!(report.nodes[&NodeName::from("bad1")].gpus, Some(4));
    assert!(report.nodes[&NodeName::from("bad1")].fabric.is_empty());
}

#[test]
fn sentinel_cliques_are_kept_with_a_note() {
    let zero = "00000000-0000-0000-0000-000000000000.0";
    let default = "11111111-2222-3333-4444-555555555555.32766";
    let report = read(&[
        node("z1", &clique(zero)),
        node("z2", &clique(zero)),
        node("d1", &clique(default)),
        node("w1", &json!({"nvidia.com/gpu.count": "4"})),
    ]);
    assert_eq!(
        group_lines(&report.groups),
        [format!("Domain clique {zero}: z1 z2"), format!("Domain clique {default}: d1")]
    );
    assert!(report.notes[0].contains(zero) && report.notes[0].contains("on 2 of the nodes"));
    assert!(report.notes[1].contains(default) && report.notes[1].contains("unpartitioned"));
    assert!(
        report.notes[2].contains("1 of the nodes with GPUs have no label"),
        "{:?}",
        report.notes
    );
    assert_eq!(problems(&report), []);
}

#[test]
fn gpu_feature_discovery_labels_are_read() {
    let labels = json!({
        "nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/cuda.driver.major": "550", "nvidia.com/cuda.driver.minor": "54",
        "nvidia.com/cuda.driver.rev": "15", "nvidia.com/mig.strategy": "none",
    });
    let mut one = node("n1", &labels);
    one["status"] = json!({
        "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"},
        "nodeInfo": {"bootID": "b-1"},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "Hostname", "address": "n1"}, {"type": "InternalDNS", "address": "n1.x"}],
    });
    one["spec"] = json!({"providerID": "cloud:///i-1"});
    let report = read(&[one]);
    let n1 = &report.nodes[&NodeName::from("n1")];
    assert_eq!((n1.gpus, n1.driver.as_deref()), (Some(8), Some("550.54.15")));
    assert_eq!(n1.product.as_deref(), Some("NVIDIA-H100-80GB-HBM3"));
    assert_eq!(n1.boot_id.as_deref(), Some("b-1"));
    assert_eq!(n1.aliases, ["10.0.0.1", "n1.x", "cloud:///i-1"]);
    assert_eq!(n1.marks["allocatable nvidia.com/gpu"], "7");
    assert_eq!(n1.marks["label nvidia.com/mig.strategy"], "none");
}

#[test]
fn slices_and_shares_are_not_counted_as_gpus() {
    let slices = json!({"nvidia.com/gpu.count": "7",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"});
    let mut shared = node("s", &json!({"nvidia.com/gpu.sharing-strategy": "time-slicing"}));
    shared["status"] = json!({"capacity": {"nvidia.com/gpu": "80"}});
    let mut plain = node("p", &json!({}));
    plain["status"] = json!({"capacity": {"nvidia.com/gpu": "8"}});
    let wrong = node("w", &json!({"nvidia.com/gpu.count": "eight"}));
    let report = read(&[node("m", &slices), shared, plain, wrong]);
    let gpus = |name: &str| report.nodes[&NodeName::from(name)].gpus;
    assert_eq!([gpus("m"), gpus("s"), gpus("p"), gpus("w")], [None, None, Some(8), None]);
    assert_eq!(report.problems.len(), 1);
}

#[test]
fn a_topograph_domain_that_repeats_the_clique_is_a_copy() {
    let domain = |value: &str, of: &str| {
        json!({"nvidia.com/gpu.clique": value, "accelerator.topograph.run/domain": of,
            "fabric.topograph.run/tier-0": "leaf1", "fabric.topograph.run/tier-1": "spine1",
            "fabric.topograph.run/tier-10": "core"})
    };
    let report = read(&[
        node("a", &domain(A, A)),
        node("b", &domain(B, A)),
        node("c", &domain(B, "rack-9")),
        node("d", &domain(B, "66666666-7777-8888-9999-aaaaaaaaaaaa")),
    ]);
    assert_eq!(
        group_lines(&report.groups),
        [
            format!("Domain clique {A}: a"),
            format!("Domain clique {B}: b c d"),
            format!("Domain topograph-domain {A}: a b"),
            "Domain topograph-domain 66666666-7777-8888-9999-aaaaaaaaaaaa: d".to_owned(),
            "Domain topograph-domain rack-9: c".to_owned(),
            "Leaf topograph-tier-0 leaf1: a b c d under spine1".to_owned(),
            "Switch topograph-tier-1 spine1: a b c d under core".to_owned(),
            "Switch topograph-tier-10 core: a b c d".to_owned(),
        ]
    );
    let copied = ClaimBasis::Copied { from: "label nvidia.com/gpu.clique".to_owned() };
    let basis: Vec<&ClaimBasis> = report.groups.iter().map(|group| &group.basis).collect();
    assert_eq!(basis[2], &copied);
    assert_eq!(basis[3], &copied);
    assert_eq!(basis[4], &ClaimBasis::Asserted);
}

#[test]
fn a_tier_above_a_missing_one_is_not_a_leaf() {
    let report = read(&[node("a", &json!({"fabric.topograph.run/tier-1": "s"}))]);
    assert_eq!(group_lines(&report.groups), ["Switch topograph-tier-1 s: a"]);
    let report = read(&[node(
        "a",
        &json!({"topology.nebius.com/tier-0": "x",
        "topology.nebius.com/tier-1": "y"}),
    )]);
    assert_eq!(
        group_lines(&report.groups),
        ["Leaf nebius-tier-0 x: a under y", "Switch nebius-tier-1 y: a"]
    );
}

#[test]
fn a_sub_domain_lies_in_its_domain() {
    let report = read(&[node(
        "a",
        &json!({"accelerator.topograph.run/domain": "d", "accelerator.topograph.run/sub-domain": "s"}),
    )]);
    assert_eq!(
        group_lines(&report.groups),
        ["Domain topograph-domain d: a", "Domain topograph-sub-domain s: a under d"]
    );
}

#[test]
fn every_provider_s_labels_place_nodes() {
    let report = read(&[
        node(
            "gke",
            &json!({"cloud.google.com/gce-topology-block": "b",
            "cloud.google.com/gce-topology-subblock": "sb",
            "cloud.google.com/gce-topology-host": "h", "cloud.google.com/gke-nodepool": "p"}),
        ),
        node(
            "a4x",
            &json!({"cloud.google.com/gce-topology-block": "b",
            "cloud.google.com/gce-topology-subblock": "sx",
            "node.kubernetes.io/instance-type": "a4x-highgpu-4g"}),
        ),
        node(
            "eks",
            &json!({"topology.k8s.aws/network-node-layer-1": "nn-1",
            "topology.k8s.aws/network-node-layer-2": "nn-2",
            "topology.k8s.aws/network-node-layer-3": "nn-3",
            "topology.k8s.aws/ultraserver-id": "us-1"}),
        ),
        node(
            "oke",
            &json!({"oci.oraclecloud.com/rdma.local_block_id": "lb",
            "oci.oraclecloud.com/rdma.network_block_id": "nb",
            "oci.oraclecloud.com/rdma.hpc_island_id": "hi",
            "oci.oraclecloud.com/host.gpu_memory_fabric_id": "mf",
            "oci.oraclecloud.com/host.tray_index": "13"}),
        ),
        node(
            "neb",
            &json!({"topology.nebius.com/tier-0": "nvl", "topology.nebius.com/tier-1": "t1",
            "topology.nebius.com/tier-2": "t2", "nvidia.com/gpu.product": "NVIDIA-GB300"}),
        ),
        node(
            "neb1",
            &json!({"topology.nebius.com/tier-1": "t1", "topology.nebius.com/tier-2": "t2"}),
        ),
        node(
            "cw",
            &json!({"backend.coreweave.cloud/leafgroup": "3",
            "backend.coreweave.cloud/superpod": "1", "backend.coreweave.cloud/fabric": "f",
            "ds.coreweave.com/nvlink.domain": "d7", "node.coreweave.cloud/rack": "r12"}),
        ),
    ]);
    let expected = [
        "Domain gce-topology-subblock sx: a4x under b",
        "Domain gpu-memory-fabric mf: oke",
        "Domain nebius-tier-0 nvl: neb under t1",
        "Domain nvlink.domain d7: cw",
        "Domain ultraserver us-1: eks",
        "Leaf coreweave-leafgroup f/1/3: cw under f/1",
        "Leaf nebius-tier-1 t1: neb neb1 under t2",
        "Leaf network-node-layer-3 nn-3: eks under nn-2",
        "Leaf oci-local-block lb: oke under nb",
        "Switch coreweave-fabric f: cw",
        "Switch coreweave-superpod f/1: cw under f",
        "Switch gce-topology-block b: gke a4x",
        "Switch nebius-tier-2 t2: neb neb1",
        "Switch network-node-layer-1 nn-1: eks",
        "Switch network-node-layer-2 nn-2: eks under nn-1",
        "Switch oci-hpc-island hi: oke",
        "Switch oci-network-block nb: oke under hi",
        "Rack coreweave-rack r12: cw",
        "Rack gce-topology-subblock sb: gke under b",
        "Partition gke-nodepool p: gke",
    ];
    assert_eq!(group_lines(&report.groups), expected);
    assert_eq!(report.nodes[&NodeName::from("oke")].slot.as_deref(), Some("13"));
    assert_eq!(report.nodes[&NodeName::from("cw")].rack.as_deref(), Some("r12"));
    assert_eq!(problems(&report), []);
}

#[test]
fn neighbour_labels_give_the_cables_of_interfaces() {
    let report = read(&[node(
        "n",
        &json!({"backend.coreweave.cloud/neighbors.expected.ibp0.device": "leaf1",
            "backend.coreweave.cloud/neighbors.expected.ibp0.port-id": "7",
            "backend.coreweave.cloud/neighbors.current.ibp0.device": "leaf2",
            "backend.coreweave.cloud/neighbors.odd": "x",
            "backend.coreweave.cloud/neighbors.current.": "x"}),
    )]);
    let nics = &report.nodes[&NodeName::from("n")].nics;
    let cables: Vec<_> = nics
        .iter()
        .map(|nic| (nic.device.as_deref(), nic.leaf.as_deref(), nic.port.as_deref(), &nic.basis))
        .collect();
    let (ibp0, leaf1, leaf2) = (Some("ibp0"), Some("leaf1"), Some("leaf2"));
    assert_eq!(
        cables,
        [
            (ibp0, leaf2, None, &Some(ClaimBasis::Reported)),
            (ibp0, leaf1, Some("7"), &Some(ClaimBasis::Asserted)),
        ]
    );
}

#[test]
fn a_leaf_under_two_switches_contradicts_itself() {
    let under = |spine: &str| json!({"network.topology.nvidia.com/leaf": "l1", "network.topology.nvidia.com/spine": spine});
    let report = read(&[node("a", &under("s1")), node("b", &under("s2"))]);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Contradictory);
    assert_eq!(report.problems[0].message, "l1 is in s1 and s2 at the same time");
}

#[test]
fn slinky_s_annotation_is_slurm_s_view() {
    let annotated = |name: &str, spec: &str| {
        let mut node = node(name, &json!({}));
        node["metadata"]["annotations"] = json!({"topology.slinky.slurm.net/spec": spec});
        node
    };
    let report = read(&[
        annotated("a", "topo-switch:root:s2,topo-block:b2"),
        annotated("b", "topo-block:b2"),
        annotated("c", "topo-block"),
    ]);
    assert_eq!(
        group_lines(&report.groups),
        [
            "Domain slinky-block b2: a b",
            "Leaf slinky-switch s2: a under root",
            "Switch slinky-switch root: a",
        ]
    );
    assert_eq!(report.groups[0].topology.as_deref(), Some("topo-block"));
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].to_string().starts_with("n.json: node c: annotation"));
}

#[test]
fn state_marks_and_opt_outs_are_kept() {
    let mut ill = node(
        "ill",
        &json!({"nvsentinel.dgxc.nvidia.com/managed": "false",
            "dgxc.nvidia.com/nvsentinel-state": "draining",
            "autopilot.ibm.com/gpuhealth": "TESTING",
            "resource.nvidia.com/computeDomain": "uid-1"}),
    );
    ill["metadata"]["annotations"] = json!({"quarantineHealthEventIsCordoned": "True",
        "hami.io/node-nvidia-score": "[{\"uuid\":\"a\",\"score\":{\"b\":1820}}]"});
    ill["spec"] = json!({"unschedulable": true, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "x", "value": "y", "effect": "NoExecute"}, {"key": "x", "effect": "NoSchedule"}]});
    ill["status"] = json!({"conditions": [
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no CNI"},
        {"type": "DiskPressure", "status": "False"},
        {"type": "GpuNvlinkWatch", "status": "True", "reason": "NvlinkDown"}]});
    let report = read(&[ill]);
    let ill = &report.nodes[&NodeName::from("ill")];
    assert_eq!(ill.state, ["NotReady", "SchedulingDisabled"]);
    assert_eq!(ill.reason.as_deref(), Some("KubeletNotReady: no CNI"));
    assert_eq!(ill.busy, Some(true));
    assert_eq!(
        ill.opt_out,
        [
            "label nvsentinel.dgxc.nvidia.com/managed=false",
            "Autopilot is testing it: label autopilot.ibm.com/gpuhealth=TESTING",
            "NVSentinel is at work: label dgxc.nvidia.com/nvsentinel-state=draining",
        ]
    );
    for (mark, value) in [
        ("taint node.kubernetes.io/unschedulable", "NoSchedule"),
        ("taint x", "y:NoExecute, NoSchedule"),
        ("condition GpuNvlinkWatch", "True (NvlinkDown)"),
        ("condition Ready", "False (KubeletNotReady)"),
        ("annotation quarantineHealthEventIsCordoned", "True"),
        ("annotation hami.io/node-nvidia-score", "18 NVLinks between 1 of 1 pairs"),
        ("label resource.nvidia.com/computeDomain", "uid-1"),
    ] {
        assert_eq!(ill.marks.get(mark).map(String::as_str), Some(value), "{mark}");
    }
    assert!(!ill.marks.contains_key("condition DiskPressure"));
}

#[test]
fn the_writer_and_time_of_a_clique_label_are_kept() {
    let mut one = node("a", &clique(A));
    one["metadata"]["managedFields"] = json!([{"manager": "kubectl-label", "operation": "Update",
        "time": "2026-11-01T00:00:00Z",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:nvidia.com/gpu.clique": {}}}}}]);
    let report = read(&[one]);
    assert_eq!(report.groups[0].since.as_deref(), Some("2026-11-01T00:00:00Z"));
    let at = report.nodes[&NodeName::from("a")].fabric[0].at.as_deref();
    assert_eq!(at, Some("label nvidia.com/gpu.clique, written by kubectl-label"));
}

#[test]
fn names_of_control_characters_are_rejected() {
    let report = read(&[
        node("\u{7}", &clique(A)),
        node("a", &json!({"ds.coreweave.com/nvlink.domain": "\u{7}", "x": "y"})),
    ]);
    assert!(report.groups.is_empty(), "{:?}", report.groups);
    assert_eq!(report.problems.len(), 1);
    let report = nodes::read("t", "NAME LABELS\n\u{7} a=b\n");
    assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
}

#[test]
fn a_node_listed_twice_must_have_equal_labels() {
    let report = read(&[node("a", &clique(A)), node("a", &clique(A)), node("a", &clique(B))]);
    assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: a")]);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Contradictory);
}

#[test]
fn fields_of_the_wrong_kind_are_problems_of_their_node() {
    let report = read(&[
        node("a", &json!({"nvidia.com/gpu.clique": 7, "nvidia.com/gpu.count": "4"})),
        node("b", &json!(["x"])),
        json!({"kind": "Node", "apiVersion": "v1", "metadata": "x"}),
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}),
        node("c", &clique(A)),
    ]);
    assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: c")]);
    let label_at: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        label_at,
        [
            "n.json: node a: labels nvidia.com/gpu.clique: expected text, found 7",
            "n.json: node b: labels: expected text, found [\"x\"]",
            "n.json: a Node without a name",
        ]
    );
    assert_eq!(report.notes[0], "not nodes, and ignored here: Pod");
    assert_eq!(report.nodes[&NodeName::from("a")].gpus, Some(4));
}

#[test]
fn the_first_page_of_a_list_is_reported_as_partial() {
    let page = |more: &str| {
        let items = [node("n1", &json!({}))];
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": more},
            "items": items})
        .to_string()
    };
    let report = nodes::read("n.json", &page("abc"));
    let found = problems(&report);
    assert_eq!(
        (report.nodes.len(), found.len(), found[0].0),
        (1, 1, SourceProblemKind::Incomplete)
    );
    assert!(found[0].1.starts_with("n.json: only a part of the list"), "{found:?}");
    assert!(nodes::read("n.json", &page("")).problems.is_empty());
}
