//! Claims read from a real API server that this test filled: they are exactly its content. The
//! server is started for this test, empty at first and without any definition.

use std::time::Duration;

use control::sources::kubernetes::fetch_claims;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroup, SourceKind, SourceProblemKind, SourceReport};
use serde_json::{Value, json};

use super::lab::{Lab, Server, fabricgate, own_lab, wait_for};

const RACK_A: &str = "11111111-2222-3333-4444-555555555555.1";
const RACK_B: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa.2";
const DEFAULT: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa.32766";

/// Writer of the labels.
const LABELLER: &str = "gpu-feature-discovery";

/// More than two pages of the client.
const FILLERS: usize = 1_100;

impl Server {
    /// A definition is served a moment after it is made.
    async fn define(&self, group: &str, versions: &[&str], kind: &str, plural: &str, scope: &str) {
        let versions: Vec<Value> = versions
            .iter()
            .enumerate()
            .map(|(number, version)| {
                json!({"name": version, "served": true, "storage": number == 0,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object",
                        "x-kubernetes-preserve-unknown-fields": true}}})
            })
            .collect();
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "scope": scope, "versions": versions,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()}},
        });
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
        let version = &definition["spec"]["versions"][0]["name"].as_str().expect("a version");
        let path = format!("/apis/{group}/{version}");
        wait_for(&format!("{path} is served"), async || {
            let found = self.get(&path).await.ok_or("nothing")?;
            match found["resources"].to_string().contains(plural) {
                true => Ok(()),
                false => Err(found.to_string()),
            }
        })
        .await;
    }

    async fn make_node(&self, name: &str, labels: &Value) {
        let made = self.try_create_by(LABELLER, "/api/v1/nodes", &node(name, labels)).await;
        made.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn node(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

fn tray(clique: &str, domain: &str, leaf: &str) -> Value {
    json!({"nvidia.com/gpu.clique": clique, "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "4", "nvidia.com/gpu.product": "NVIDIA-GB200",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
        "accelerator.topograph.run/domain": domain,
        "fabric.topograph.run/tier-0": leaf, "fabric.topograph.run/tier-1": "spine",
        "cloud.example.com/rack": leaf})
}

/// `kind scheme name: nodes`, one line a group.
fn group_lines(report: &SourceReport) -> Vec<String> {
    let line = |group: &NodeGroup| {
        let nodes: Vec<&str> = group.nodes.iter().map(NodeName::as_str).collect();
        format!("{:?} {} {}: {}", group.kind, group.scheme, group.name, nodes.join(" "))
    };
    report.groups.iter().map(line).collect()
}

fn kinds(reports: &[SourceReport]) -> Vec<(SourceKind, Vec<SourceProblemKind>)> {
    let kinds =
        |report: &SourceReport| report.problems.iter().map(|problem| problem.kind).collect();
    reports.iter().map(|report| (report.source.kind, kinds(report))).collect()
}

#[tokio::test]
async fn a_real_server_reports_exactly_its_content() {
    use SourceKind::*;
    use SourceProblemKind::*;
    let Some(lab) = own_lab(&[("FABRICGATE_LAB_BARE", "1")]) else { return };
    let server = lab.admin().await;

    // Empty, and without any of the definitions.
    let reports = fetch_claims(&lab.asks_as("admin")).await;
    let missing = [
        (KubernetesNodes, vec![]),
        (ComputeDomains, vec![Missing]),
        (KubernetesTopologies, vec![Missing]),
        (KubernetesTopologies, vec![Missing]),
    ];
    assert_eq!(kinds(&reports), missing);
    assert_eq!(reports[0].notes, ["no node is listed"]);

    fill(&server).await;
    let reports = fetch_claims(&lab.asks_as("admin")).await;
    nodes_are_as_filled(&reports[0]);
    others_are_as_filled(&reports);

    // A user without rights, one with nodes only, and an unknown one.
    for (user, words) in [("unprivileged", "nodes is forbidden"), ("expired", "expired token?")] {
        let reports = fetch_claims(&lab.asks_as(user)).await;
        assert_eq!(reports[0].problems.len(), 1, "{user}: {:?}", reports[0].problems);
        assert_eq!(reports[0].problems[0].kind, Denied, "{user}");
        assert!(reports[0].problems[0].message.contains(words), "{:?}", reports[0].problems);
        assert!(reports.iter().all(|reports| reports.groups.is_empty()), "{user}");
    }
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]);
    let rbac = "rbac.authorization.k8s.io";
    server
        .create(
            &format!("/apis/{rbac}/v1/clusterroles"),
            &json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
                "metadata": {"name": "nodes-only"}, "rules": rules}),
        )
        .await;
    server
        .create(
            &format!("/apis/{rbac}/v1/clusterrolebindings"),
            &json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
                "metadata": {"name": "nodes-only"},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "nodes-only"},
                "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "gate-users"}]}),
        )
        .await;
    let reports = as_soon_as_allowed(&lab).await;
    let denied = [
        (KubernetesNodes, vec![Malformed]),
        (ComputeDomains, vec![Denied, Denied]),
        (KubernetesTopologies, vec![Denied]),
        (KubernetesTopologies, vec![Denied]),
    ];
    assert_eq!(kinds(&reports), denied);
    nodes_are_as_filled(&reports[0]);
    the_program_reports_the_same(&lab);
}

/// The program's output for the same cluster. Nodes of several cliques are not a clean answer,
/// and a user without rights gets a refusal.
fn the_program_reports_the_same(lab: &Lab) {
    let asked_as = |user: &str| {
        let config = format!(
            "[sources.kubernetes]\nkubeconfig = {:?}\n",
            lab.kubeconfig(user).display().to_string()
        );
        let path = lab.folder.join("fabricgate.toml");
        std::fs::write(&path, config).expect("written");
        let path = path.display().to_string();
        fabricgate(&lab.folder, &["claims", "--from", "kubernetes", "--json", "--config", &path])
    };
    let output = asked_as("admin");
    assert!(matches!(output.code, Some(0 | 3 | 4)), "{output:?}");
    assert!(output.stdout.contains("\"scheme\": \"clique\""), "{output:?}");
    assert!(output.stdout.contains("\"kind\": \"kubernetes-nodes\""), "{output:?}");
    let output = asked_as("unprivileged");
    output.expect(5);
    assert!(output.stdout.contains("\"kind\": \"denied\""), "{output:?}");
}

/// Rights are in force a moment after they are given.
async fn as_soon_as_allowed(lab: &Lab) -> Vec<SourceReport> {
    for _ in 0..100 {
        let reports = fetch_claims(&lab.asks_as("gate")).await;
        if reports[0].problems.iter().all(|problem| problem.kind != SourceProblemKind::Denied) {
            return reports;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the rights of the group gate-users never came into force");
}

async fn fill(server: &Server) {
    server.make_node("t1", &tray(RACK_A, RACK_A, "leaf1")).await;
    server.make_node("t2", &tray(RACK_A, RACK_A, "leaf1")).await;
    server.make_node("t3", &tray(RACK_B, "rack-b", "leaf2")).await;
    server.make_node("t4", &tray(DEFAULT, "rack-b", "leaf2")).await;
    server.make_node("odd", &tray("nonsense", "rack-c", "leaf3")).await;
    let mut ill = node("ill", &json!({"remediation.medik8s.io/exclude-from-remediation": "true"}));
    ill["metadata"]["annotations"] =
        json!({"topology.slinky.slurm.net/spec": "topo-switch:s9,topo-block:b9"});
    ill["spec"] = json!({"unschedulable": true, "providerID": "lab:///ill",
        "taints": [{"key": "medik8s.io/drain", "effect": "NoSchedule"}]});
    server.create("/api/v1/nodes", &ill).await;
    let status = json!({
        "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"},
        "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}],
        "nodeInfo": {"bootID": "boot-1", "architecture": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
            "operatingSystem": "", "osImage": "", "systemUUID": ""},
        "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}],
    });
    server.merge_status("/api/v1/nodes/ill", &status).await;
    for number in 0..FILLERS {
        server.make_node(&format!("z{number:04}"), &json!({})).await;
    }

    let nvidia = "resource.nvidia.com";
    for (kind, plural) in
        [("ComputeDomain", "computedomains"), ("ComputeDomainClique", "computedomaincliques")]
    {
        server.define(nvidia, &["v1beta1"], kind, plural, "Namespaced").await;
    }
    let domains = format!("/apis/{nvidia}/v1beta1/namespaces/default/computedomains");
    for (name, members) in [
        (
            "both",
            json!([{"name": "t1", "cliqueID": RACK_A, "index": 0, "status": "Ready"},
            {"name": "t2", "cliqueID": RACK_A, "index": 1, "status": "NotReady"}]),
        ),
        ("none", json!([{"name": "ill", "cliqueID": "", "index": 0, "status": "Ready"}])),
    ] {
        let domain = json!({"apiVersion": format!("{nvidia}/v1beta1"), "kind": "ComputeDomain",
            "metadata": {"name": name}, "spec": {"numNodes": 2}});
        server.create(&domains, &domain).await;
        let status = json!({"status": "Ready", "nodes": members});
        server.merge_status(&format!("{domains}/{name}"), &status).await;
    }

    let levels =
        json!([{"nodeLabel": "cloud.example.com/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]);
    for (group, versions) in [
        ("kueue.x-k8s.io", &["v1beta2", "v1beta1", "v1alpha1"][..]),
        ("kai.scheduler", &["v1alpha1"][..]),
    ] {
        server.define(group, versions, "Topology", "topologies", "Cluster").await;
        let topology = json!({"apiVersion": format!("{group}/{}", versions[0]), "kind": "Topology",
            "metadata": {"name": "racks"}, "spec": {"levels": levels}});
        server.create(&format!("/apis/{group}/{}/topologies", versions[0]), &topology).await;
    }
}

fn nodes_are_as_filled(report: &SourceReport) {
    assert_eq!(report.nodes.len(), FILLERS + 6);
    assert_eq!(
        group_lines(report),
        [
            format!("Domain clique {RACK_A}: t1 t2"),
            format!("Domain clique {RACK_B}: t3"),
            format!("Domain clique {DEFAULT}: t4"),
            "Domain slinky-block b9: ill".to_owned(),
            format!("Domain topograph-domain {RACK_A}: t1 t2"),
            "Domain topograph-domain rack-b: t3 t4".to_owned(),
            "Domain topograph-domain rack-c: odd".to_owned(),
            "Leaf slinky-switch s9: ill".to_owned(),
            "Leaf topograph-tier-0 leaf1: t1 t2".to_owned(),
            "Leaf topograph-tier-0 leaf2: t3 t4".to_owned(),
            "Leaf topograph-tier-0 leaf3: odd".to_owned(),
            "Switch topograph-tier-1 spine: odd t1 t2 t3 t4".to_owned(),
        ]
    );
    let copied = ClaimBasis::Copied { from: "label nvidia.com/gpu.clique".to_owned() };
    assert_eq!(
        (&report.groups[4].basis, &report.groups[5].basis),
        (&copied, &ClaimBasis::Asserted)
    );
    assert!(report.groups[0].since.is_some(), "the server reports the time of a label");
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
    let at = report.problems[0].at.as_deref().expect("a place");
    assert!(at.ends_with("/api/v1/nodes: node odd: label nvidia.com/gpu.clique"), "{at}");
    assert!(report.notes.iter().any(|note| note.contains("clique 32766")), "{:?}", report.notes);

    let t1 = &report.nodes[&NodeName::from("t1")];
    assert_eq!((t1.gpus, t1.driver.as_deref()), (Some(4), Some("580.95.05")));
    assert_eq!(t1.fabric[0].clique().as_deref(), Some(RACK_A));
    let at = "label nvidia.com/gpu.clique, written by gpu-feature-discovery";
    assert_eq!(t1.fabric[0].at.as_deref(), Some(at));
    let ill = &report.nodes[&NodeName::from("ill")];
    assert_eq!(ill.gpus, Some(8));
    assert_eq!(ill.state, ["NotReady", "SchedulingDisabled"]);
    assert_eq!(ill.reason.as_deref(), Some("KubeletNotReady"));
    assert_eq!(ill.aliases, ["10.9.9.9", "lab:///ill"]);
    assert_eq!(ill.boot_id.as_deref(), Some("boot-1"));
    assert_eq!(ill.opt_out, ["label remediation.medik8s.io/exclude-from-remediation=true"]);
    assert_eq!(ill.marks["taint medik8s.io/drain"], "NoSchedule");
    assert_eq!(ill.marks["allocatable nvidia.com/gpu"], "7");
    // The server adds this to every node that has not reported yet.
    assert_eq!(ill.marks["taint node.kubernetes.io/not-ready"], "NoSchedule");
}

fn others_are_as_filled(reports: &[SourceReport]) {
    let domains = &reports[1];
    assert_eq!(domains.problems, []);
    assert_eq!(
        group_lines(domains),
        ["Imex ComputeDomain default/both: t1 t2", "Imex ComputeDomain default/none: ill"]
    );
    assert_eq!(domains.groups[0].above, [RACK_A]);
    let t2 = &domains.nodes[&NodeName::from("t2")].marks["ComputeDomain default/both"];
    assert_eq!(t2, &format!("NotReady, {RACK_A}, index 1"));
    assert!(domains.notes[0].contains("1 nodes without a clique (1 of them Ready)"));
    for (topologies, name) in reports[2..].iter().zip(["kueue/racks", "kai/racks"]) {
        assert_eq!(topologies.problems, []);
        let setting = &topologies.settings[&format!("Topology {name}")];
        assert_eq!(setting, "cloud.example.com/rack > kubernetes.io/hostname");
        assert_eq!(
            group_lines(topologies),
            [
                "Rack cloud.example.com/rack leaf1: t1 t2",
                "Rack cloud.example.com/rack leaf2: t3 t4",
                "Rack cloud.example.com/rack leaf3: odd",
            ]
        );
        assert_eq!(topologies.groups[0].topology.as_deref(), Some(name));
    }
}
