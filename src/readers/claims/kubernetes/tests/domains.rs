//! Tests of ComputeDomains and topology objects.

use serde_json::{Value, json};

use super::{A, B, group_lines, list, node, problems};
use crate::claims::kubernetes::{compute_domains, nodes, topologies};
use model::id::NodeName;
use model::source_report::{ClaimBasis, SourceProblemKind};

fn compute_domain(name: &str, nodes: &Value) -> Value {
    json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-11-02T03:04:05Z"},
        "spec": {"numNodes": 2}, "status": {"status": "Ready", "nodes": nodes}})
}

fn member(name: &str, clique: &str) -> Value {
    json!({"name": name, "ipAddress": "10.0.0.1", "cliqueID": clique, "index": 1, "status": "Ready"})
}

#[test]
fn a_compute_domain_is_one_imex_domain_for_each_clique() {
    let text = list(&[
        compute_domain("one", &json!([member("a", A), member("b", A)])),
        compute_domain("two", &json!([member("c", A), member("d", B), member("e", "")])),
        compute_domain("none", &json!([])),
    ]);
    assert!(compute_domains::recognises(&text) && !nodes::recognises(&text));
    let report = compute_domains::read("cd.json", &text);
    assert_eq!(
        group_lines(&report.groups),
        [
            "Imex ComputeDomain ns/none: ".to_owned(),
            format!("Imex ComputeDomain ns/one: a b under {A}"),
            "Imex ComputeDomain ns/two (no clique): e".to_owned(),
            format!("Imex ComputeDomain ns/two ({A}): c under {A}"),
            format!("Imex ComputeDomain ns/two ({B}): d under {B}"),
        ]
    );
    assert_eq!(report.groups[1].size, Some(2));
    assert_eq!(report.groups[1].since.as_deref(), Some("2026-11-02T03:04:05Z"));
    assert_eq!(report.settings["ComputeDomain ns/one status"], "Ready");
    assert!(report.notes[0].contains("1 nodes without a clique (1 of them Ready)"));
    let a = &report.nodes[&NodeName::from("a")];
    assert_eq!(a.fabric[0].clique().as_deref(), Some(A));
    assert_eq!(a.busy, Some(true));
    assert_eq!(a.marks["ComputeDomain ns/one"], format!("Ready, {A}, index 1"));
    assert_eq!(
        report.nodes[&NodeName::from("e")].marks["ComputeDomain ns/two"],
        "Ready, no clique, index 1"
    );
    assert_eq!(problems(&report), []);
}

#[test]
fn members_in_clique_objects_belong_to_the_domain_of_their_uid() {
    let clique = |uid: &str, node: &str| {
        json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainClique",
            "metadata": {"name": format!("{uid}.{A}"), "namespace": "driver"},
            "daemons": [{"nodeName": node, "cliqueID": A, "index": 0, "status": "Ready"}]})
    };
    let text = list(&[
        clique("uid-one", "a"),
        compute_domain("one", &json!([member("a", A)])),
        clique("uid-one", "b"),
        clique("uid-lost", "z"),
    ]);
    let report = compute_domains::read("cd.json", &text);
    assert_eq!(
        group_lines(&report.groups),
        [
            format!("Imex ComputeDomain ns/one: a b under {A}"),
            format!("Imex ComputeDomain uid-lost: z under {A}"),
        ]
    );
}

#[test]
fn a_node_in_two_compute_domains_is_a_contradiction() {
    let text = list(&[
        compute_domain("one", &json!([member("a", A)])),
        compute_domain("two", &json!([member("a", A), json!({"cliqueID": A}), member("b", "x.y")])),
    ]);
    let report = compute_domains::read("cd.json", &text);
    let kinds: Vec<SourceProblemKind> =
        report.problems.iter().map(|problem| problem.kind).collect();
    use SourceProblemKind::*;
    assert_eq!(kinds, [Malformed, Malformed, Contradictory]);
    assert!(report.problems[2].message.contains("node a is in two ComputeDomains"));
}

fn topology(group: &str, version: &str, levels: &[&str]) -> Value {
    let levels: Vec<Value> = levels.iter().map(|label| json!({"nodeLabel": label})).collect();
    json!({"apiVersion": format!("{group}/{version}"), "kind": "Topology",
        "metadata": {"name": "t"}, "spec": {"levels": levels}})
}

#[test]
fn topology_objects_group_nodes_by_their_labels_and_copy_them() {
    let placed = |block: &str, rack: &str| json!({"x/block": block, "x/rack": rack});
    let labels = list(&[
        node("a", &placed("b1", "r1")),
        node("b", &placed("b1", "r1")),
        node("c", &placed("b2", "r1")),
        node("d", &placed("b2", "r2")),
        node("e", &json!({"x/rack": "r2"})),
        node("f", &json!({})),
    ]);
    let mut nodes = nodes::NodeObjectReader::new("n");
    assert_eq!(nodes.add_page(&labels), None);
    for version in ["v1alpha1", "v1beta1", "v1beta2"] {
        let levels = ["x/block", "x/rack", "kubernetes.io/hostname"];
        let text = list(&[topology("kueue.x-k8s.io", version, &levels)]);
        assert!(topologies::recognises(&text) && !nodes::recognises(&text));
        let report = topologies::read_with_labels("k.json", &text, &nodes.labels());
        assert_eq!(
            group_lines(&report.groups),
            [
                "Switch x/block b1: a b",
                "Switch x/block b2: c d",
                "Rack x/rack b1/r1: a b under b1",
                "Rack x/rack b2/r1: c under b2",
                "Rack x/rack r2: d under b2",
            ]
        );
        assert_eq!(report.groups[0].topology.as_deref(), Some("kueue/t"));
        assert_eq!(report.groups[0].basis, ClaimBasis::Copied { from: "label x/block".to_owned() });
        assert_eq!(
            report.settings["Topology kueue/t"],
            "x/block > x/rack > kubernetes.io/hostname"
        );
        assert_eq!(report.notes.len(), 3, "{:?}", report.notes);
        assert!(
            report.notes[1].contains("1 nodes carry only some of its labels")
                && report.notes[1].contains('e')
        );
        assert_eq!(problems(&report), []);
    }
}

#[test]
fn kai_levels_have_the_kinds_of_their_labels() {
    let levels = ["topology.nebius.com/tier-1", "nvidia.com/gpu.clique"];
    let text = list(&[
        topology("kai.scheduler", "v1alpha1", &levels),
        node("a", &json!({"nvidia.com/gpu.clique": A, "topology.nebius.com/tier-1": "l1"})),
    ]);
    let report = topologies::read("k.json", &text);
    assert_eq!(
        group_lines(&report.groups),
        [
            "Leaf topology.nebius.com/tier-1 l1: a".to_owned(),
            format!("Domain nvidia.com/gpu.clique {A}: a under l1"),
        ]
    );
    assert_eq!(report.groups[1].topology.as_deref(), Some("kai/t"));
}

#[test]
fn topologies_that_contradict_themselves_leave_the_others() {
    let good = topology("kueue.x-k8s.io", "v1beta2", &["x/rack"]);
    let text = list(&[
        topology("kueue.x-k8s.io", "v1beta2", &[]),
        topology("kueue.x-k8s.io", "v1beta2", &["x", "x"]),
        topology("kueue.x-k8s.io", "v1beta2", &["kubernetes.io/hostname", "y"]),
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "metadata": {"name": "n"}}),
        good,
    ]);
    let report = topologies::read("k.json", &text);
    let kinds: Vec<SourceProblemKind> =
        report.problems.iter().map(|problem| problem.kind).collect();
    use SourceProblemKind::*;
    assert_eq!(kinds, [Malformed, Contradictory, Contradictory, Malformed]);
    assert_eq!(report.settings["Topology kueue/t"], "x/rack");
    assert!(report.notes[0].contains("no nodes are known here"));
}
