//! Input forms of nodes: lists and single nodes, tables of kubectl, YAML, and text that is
//! truncated or contains no node.

use serde_json::json;

use super::{A, clique, group_lines, list, node, problems};
use crate::claims::kubernetes::nodes;
use model::id::NodeName;
use model::source_report::SourceProblemKind;

#[test]
fn a_truncated_list_keeps_its_complete_nodes() {
    let text = list(&[node("a", &clique(A)), node("b", &clique(A)), node("c", &clique(A))]);
    let cut = text.find("\"name\":\"c\"").expect("node c");
    let report = nodes::read("n.json", &text[..cut]);
    assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: a b")]);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Incomplete);
    assert!(report.problems[0].at.as_deref().is_some_and(|at| at.starts_with("n.json:1:")));
    assert!(nodes::recognises(&text[..cut]));
}

#[test]
fn typed_lists_single_nodes_and_several_documents_are_read() {
    let mut bare = node("a", &clique(A));
    bare.as_object_mut().expect("an object").retain(|key, _| key == "metadata");
    let typed = json!({"kind": "NodeList", "apiVersion": "v1", "items": [bare]}).to_string();
    let single = node("a", &clique(A)).to_string();
    let two = format!("{single}\n{}", node("b", &clique(A)));
    let yaml = format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels:\n    nvidia.com/gpu.clique: {A}\n"
    );
    let yamls = format!("{yaml}---\n{}", yaml.replace("name: a", "name: b"));
    for (text, names) in
        [(&typed, "a"), (&single, "a"), (&two, "a b"), (&yaml, "a"), (&yamls, "a b")]
    {
        assert!(nodes::recognises(text), "{text}");
        let report = nodes::read("n", text);
        assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: {names}")], "{text}");
        assert_eq!(problems(&report), []);
    }
}

#[test]
fn bare_labels_are_a_node_if_they_name_it() {
    let named = json!({"kubernetes.io/hostname": "h7", "nvidia.com/gpu.clique": A}).to_string();
    assert!(nodes::recognises(&named));
    assert_eq!(group_lines(&nodes::read("l", &named).groups), [format!("Domain clique {A}: h7")]);
    let unnamed = json!({"nvidia.com/gpu.clique": A}).to_string();
    let report = nodes::read("l", &unnamed);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Incomplete);
    assert!(report.nodes.is_empty());
}

#[test]
fn tables_of_kubectl_are_read() {
    let clique = format!(
        "NAME  STATUS  ROLES  AGE  VERSION  GPU.CLIQUE\nn1 Ready <none> 5d v1.36.4 {A}\nn2 Ready <none> 5d v1.36.4\n"
    );
    let own = format!(
        "NODE   LABEL   CLIQUE\nn1 nvidia.com/gpu.clique {A}\nn2 nvidia.com/gpu.clique <none>\n"
    );
    let labels = format!(
        "NAME STATUS ROLES AGE VERSION LABELS\nn1 Ready <none> 5d v1 a=b,nvidia.com/gpu.clique={A}\nn2 Ready <none> 5d v1 a=b\n"
    );
    for text in [&clique, &own, &labels] {
        assert!(nodes::recognises(text), "{text}");
        let report = nodes::read("t", text);
        assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: n1")], "{text}");
        assert_eq!(report.nodes.len(), 2);
        assert_eq!(problems(&report), []);
    }
    let cut = nodes::read("t", "NAME STATUS LABELS\nn1 Rea\n");
    assert_eq!(cut.problems[0].kind, SourceProblemKind::Incomplete);
    assert_eq!(cut.problems[0].at.as_deref(), Some("t:2:1"));
}

#[test]
fn empty_cells_and_cells_with_blanks_do_not_shift_a_table() {
    let text = format!(
        "NAME   AGE   VERSION   OS-IMAGE         GPU.CLIQUE                               ZONE\n\
         n1     1s              Debian Linux 12  {A}   z1\n\
         plain  1s    v1.36.4   Ubuntu           {:40} z1\n",
        ""
    );
    let report = nodes::read("t", &text);
    assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: n1")], "{text}");
    assert_eq!(report.nodes.len(), 2);
    assert_eq!(problems(&report), []);
}

#[test]
fn a_kind_cluster_names_nodes_as_they_register() {
    let text = format!(
        "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: lab\nnodes:\n\
         - role: control-plane\n\
         - role: worker\n  labels: {{nvidia.com/gpu.clique: \"{A}\"}}\n\
         - role: worker\n  labels: {{nvidia.com/gpu.clique: \"{A}\"}}\n  kubeadmConfigPatches:\n  - |\n    \
         kind: JoinConfiguration\n    nodeRegistration:\n      name: tray2\n"
    );
    assert!(nodes::recognises(&text));
    let report = nodes::read("kind.yaml", &text);
    assert_eq!(group_lines(&report.groups), [format!("Domain clique {A}: lab-worker tray2")]);
    assert_eq!(report.nodes[&NodeName::from("tray2")].aliases, ["lab-worker2"]);
    assert!(report.nodes.contains_key(&NodeName::from("lab-control-plane")));
}

#[test]
fn other_text_is_not_recognised_as_nodes() {
    for text in [
        "",
        "{",
        "nvidia\\.com\\/gpu\\.count=[0-9]+\nnvidia\\.com\\/gpu\\.product=[A-Za-z_-]+\n",
        "NodeName=n1 CPUs=4\n",
        "{\"nodes\": [{\"name\": \"n1\"}]}",
        "---\ntopologies: []\n# Node\n",
    ] {
        assert!(!nodes::recognises(text), "{text}");
        assert!(nodes::read("x", text).nodes.is_empty(), "{text}");
    }
    let bad = nodes::read("x.yaml", "kind: Node\nmetadata: [\n");
    assert_eq!(bad.problems[0].kind, SourceProblemKind::Malformed);
    assert!(bad.problems[0].at.as_deref().is_some_and(|at| at.starts_with("x.yaml:")));
}

#[test]
fn a_cluster_of_many_nodes_is_read_from_yaml_too() {
    let mut text = String::new();
    for number in 0..3_000 {
        let noise: String =
            (0..40).map(|label| format!("    x.example/l{label}: \"{number}\"\n")).collect();
        text.push_str(&format!(
            "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n{number}\n  labels:\n\
             {noise}    nvidia.com/gpu.clique: {A}\n"
        ));
    }
    let report = nodes::read("n.yaml", &text);
    assert_eq!(problems(&report), []);
    assert_eq!(report.groups[0].nodes.len(), 3_000);
}

#[test]
fn aliases_that_multiply_are_refused() {
    let mut text = "kind: Node\na: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (this, last) in ('b'..='j').zip('a'..) {
        let ten = vec![format!("*{last}"); 10].join(", ");
        text.push_str(&format!("{this}: &{this} [{ten}]\n"));
    }
    let report = nodes::read("n.yaml", &text);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
}
