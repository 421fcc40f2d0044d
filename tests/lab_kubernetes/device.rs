//! One GPU that goes instead of its node: what the scheduler gives to claims then,
//! what of others stays, and how it comes back.

use std::fs;
use std::path::Path;

use control::gate::kubernetes::KubernetesScheduler;
use control::gate::scheduler::Scheduler;
use model::action::{ActionKind, ActionResult};
use model::kubernetes_node::{DEVICE, DEVICE_CORDON, GpuCordon, GpuCordonMethod, REASON};
use serde_json::{Value, json};

use super::carry::{action, records};
use super::changes::{add, plain_node};
use super::gate::{scenario, site_with};
use super::lab::{Lab, Server, lab, own_lab, wait_for};
use super::turns::plan;

const RULES: &str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const DRIVER: &str = "gpu.nvidia.com";

/// What a driver of these GPUs says of a node.
async fn offer(server: &Server, node: &str, uuids: &[String]) {
    let owner = server.node(node).await["metadata"]["uid"].clone();
    let device = |(index, uuid): (usize, &String)| {
        json!({"name": format!("gpu-{index}"),
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}}})
    };
    let devices: Vec<Value> = uuids.iter().enumerate().map(device).collect();
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-offered"), "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}]},
        "spec": {"driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
    server.create(SLICES, &slice).await;
}

/// A pod on this node with a claim for one GPU.
async fn claim(server: &Server, namespace: &str, name: &str, node: &str) {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name}, "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}});
    let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
    server.create(&path, &claim).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "lab:1", "command": ["sleep", "600"],
                "resources": {"claims": [{"name": "gpu"}]}}]}});
    server.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await;
}

/// The device that the scheduler gave to a claim.
async fn given(server: &Server, namespace: &str, name: &str) -> String {
    let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
    wait_for("a device", async || {
        let claim = server.get(&path).await.unwrap_or_default();
        let device = &claim["status"]["allocation"]["devices"]["results"][0]["device"];
        device.as_str().map(str::to_owned).ok_or_else(|| claim["status"].to_string())
    })
    .await
}

/// What the scheduler says of a pod that it cannot place.
async fn refused(server: &Server, namespace: &str, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    wait_for("a refusal", async || {
        let pod = server.get(&path).await.unwrap_or_default();
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_it = |it: &&Value| it["type"] == "PodScheduled" && it["status"] == "False";
        let told = all.iter().find(is_it).and_then(|it| it["message"].as_str().map(str::to_owned));
        told.ok_or_else(|| pod["status"].to_string())
    })
    .await
}

/// Rules about devices of this node: name and device.
async fn rules(server: &Server, node: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = server.list(RULES).await;
    let of_node = all.iter().filter(|it| it["spec"]["deviceSelector"]["pool"] == node);
    of_node
        .map(|it| (text(&it["metadata"]["name"]), text(&it["spec"]["deviceSelector"]["device"])))
        .collect()
}

/// An operator's own rule about one device.
async fn operators_rule(server: &Server, name: &str, node: &str, device: &str) {
    let rule = json!({"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule",
        "metadata": {"name": name}, "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": node, "device": device},
            "taint": {"key": "ops.example.com/fan", "value": "loud", "effect": "NoSchedule"}}});
    server.create(RULES, &rule).await;
}

#[tokio::test]
async fn claims_get_other_gpus_of_the_node_until_the_bad_one_is_repaired() {
    let Some(lab) = lab() else { return };
    let site = site_with(&lab, 4, &json!({}), "device = \"taint-rule\"\nsoft = \"drain\"\n").await;
    let (server, namespace, bad) = (&site.server, site.namespace.clone(), site.names[1].clone());
    site.simulated.rewrite(&scenario(&site.rack, 4, &[&bad]));
    site.run(&["audit"]).expect(3);
    let run = site.newest();
    let machines = fs::read_to_string(Path::new(&run).join("machines.jsonl")).expect("machines");
    let machine = machines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let machine = machine.into_iter().find(|it| it["node"] == json!(bad)).expect("the node");
    let lines = machine["environment"]["gpus"].as_array().expect("GPUs").clone();
    let uuid = |line: &Value| line.as_str()?.split(',').nth(1).map(|it| it.trim().to_owned());
    let uuids: Vec<String> = lines.iter().filter_map(uuid).collect();
    assert_eq!(uuids.len(), 4, "{lines:?}");
    offer(server, &bad, &uuids).await;
    let theirs = lab.name("ops");
    operators_rule(server, &theirs, &bad, "gpu-0").await;

    let told = site.run(&["apply", &run, "--apply"]);
    told.expect(0);
    let taints = site.taints(&bad).await;
    assert!(taints.len() == 1 && taints[0].ends_with(":PreferNoSchedule"), "{taints:?} {told:?}");
    let node = site.node(&bad).await;
    assert_eq!(node["metadata"]["labels"]["fabricgate.io/verdict"], json!("degraded"));
    let marked = node["metadata"]["annotations"][DEVICE].as_str().map(str::to_owned);
    assert_eq!(marked, Some(format!("taint-rule:2:{}", uuids[2])));
    let mut devices: Vec<String> =
        rules(server, &bad).await.into_iter().map(|(_, device)| device).collect();
    devices.sort();
    assert_eq!(devices, ["gpu-0", "gpu-2"]);
    // A second time changes nothing.
    site.run(&["apply", &run, "--apply"]).expect(0);
    assert_eq!(rules(server, &bad).await.len(), 2);

    for name in ["one", "two", "three"] {
        claim(server, &namespace, name, &bad).await;
    }
    let waits = wait_for("one of three to wait", async || {
        for name in ["one", "two", "three"] {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let pod = server.get(&path).await.unwrap_or_default();
            let all = pod["status"]["conditions"].to_string();
            if all.contains("Unschedulable") {
                return Ok(name);
            }
        }
        Err("all are placed or none was tried".to_owned())
    })
    .await;
    let mut got = Vec::new();
    for name in ["one", "two", "three"].into_iter().filter(|name| *name != waits) {
        got.push(given(server, &namespace, name).await);
    }
    got.sort();
    assert_eq!(got, ["gpu-1", "gpu-3"]);
    let why = refused(server, &namespace, waits).await;
    assert!(why.contains("cannot allocate all claims"), "{why}");
    for name in ["one", "two", "three"] {
        let pod = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        server.delete(&pod).await;
        server.wait_until_gone(&pod).await;
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        server.delete(&path).await;
        server.wait_until_gone(&path).await;
    }

    // Measured again without a repair, nothing changes; after it, two runs do.
    site.run(&["recertify", &bad, "--with-domain", "--apply"]).expect(3);
    assert_eq!(rules(server, &bad).await.len(), 2);
    site.simulated.rewrite(&scenario(&site.rack, 4, &[]));
    site.run(&["recertify", &bad, "--with-domain", "--apply"]).expect(0);
    assert_eq!(rules(server, &bad).await.len(), 2, "one clean run is not two");
    let told = site.run(&["recertify", &bad, "--with-domain", "--apply"]);
    told.expect(0);
    assert_eq!(rules(server, &bad).await, [(theirs.clone(), "gpu-0".to_owned())], "{told:?}");
    assert_eq!(site.taints(&bad).await, [""; 0]);
    let node = site.node(&bad).await;
    for key in [DEVICE, REASON] {
        assert_eq!(node["metadata"]["annotations"][key], Value::Null);
    }
    let mut got = Vec::new();
    for name in ["four", "five", "six"] {
        claim(server, &namespace, name, &bad).await;
        got.push(given(server, &namespace, name).await);
    }
    got.sort();
    assert_eq!(got, ["gpu-1", "gpu-2", "gpu-3"]);
    server.delete(&format!("{RULES}/{theirs}")).await;
}

/// One turn of a run in which one node is drained, whole or for a GPU, or released.
async fn carried(
    lab: &Lab,
    folder: &Path,
    run: &str,
    node: &str,
    kind: ActionKind,
    device: Option<&GpuCordon>,
) -> ActionResult {
    let mut action = action(kind, node);
    action.device = device.cloned();
    records(lab, folder, run, &plan(vec![action])).await[0].result
}

/// The state of a node as the gate reads it, and its reason.
async fn told(lab: &Lab, node: &str) -> (String, Option<String>) {
    let gate = KubernetesScheduler::new(lab.asks_as("admin"));
    let live = gate.read_nodes(&[node.into()]).await.expect("a server");
    let node = live.nodes.values().next().expect("the node");
    (node.state.join("+"), node.reason.clone())
}

fn of(way: GpuCordonMethod, uuid: &str) -> GpuCordon {
    GpuCordon { way, index: 1, uuid: uuid.to_owned() }
}

#[tokio::test]
async fn of_hami_s_list_only_our_gpu_comes_and_goes() {
    let Some(lab) = lab() else { return };
    let (server, folder) = (lab.admin().await, tempfile::tempdir().expect("a folder"));
    let name = lab.name("hami");
    add(&server, &plain_node(&name)).await;
    let path = format!("/api/v1/nodes/{name}");
    let theirs = |list: &str| json!({"metadata": {"annotations": {DEVICE_CORDON: list}}});
    server.merge(&path, &theirs("GPU-x")).await;
    let mark = of(GpuCordonMethod::Hami, "GPU-1a");
    let list = async || server.node(&name).await["metadata"]["annotations"][DEVICE_CORDON].clone();

    let done = carried(&lab, folder.path(), "r1", &name, ActionKind::Drain, Some(&mark)).await;
    assert_eq!((done, list().await), (ActionResult::Done, json!("GPU-x,GPU-1a")));
    assert!(told(&lab, &name).await.0.contains("DRAIN"));
    let taints = server.node(&name).await["spec"]["taints"].to_string();
    assert!(taints.contains("PreferNoSchedule") && !taints.contains("\"NoSchedule\""), "{taints}");
    // HAMi's own people go on.
    server.merge(&path, &theirs("GPU-x,GPU-1a,GPU-y")).await;
    let done = carried(&lab, folder.path(), "r2", &name, ActionKind::Release, None).await;
    assert_eq!((done, list().await), (ActionResult::Done, json!("GPU-x,GPU-y")));
    assert!(!told(&lab, &name).await.0.contains("DRAIN"));
    server.delete(&path).await;
}

#[tokio::test]
async fn a_rule_that_a_person_deletes_is_undone_and_one_that_follows_a_whole_drain_comes_back() {
    let Some(lab) = lab() else { return };
    let (server, folder) = (lab.admin().await, tempfile::tempdir().expect("a folder"));
    let name = lab.name("rule");
    add(&server, &plain_node(&name)).await;
    let uuids = ["GPU-0a".to_owned(), "GPU-1a".to_owned()];
    offer(&server, &name, &uuids).await;
    let mark = of(GpuCordonMethod::TaintRule, "GPU-1a");
    let carried = async |run: &str, kind: ActionKind, device: Option<&GpuCordon>| {
        carried(&lab, folder.path(), run, &name, kind, device).await
    };
    assert_eq!(carried("r1", ActionKind::Drain, Some(&mark)).await, ActionResult::Done);
    let (state, reason) = told(&lab, &name).await;
    assert!(state.contains("DRAIN") && reason.is_some(), "{state}");
    let ours = rules(&server, &name).await;
    let [(rule, device)] = ours.as_slice() else { panic!("{ours:?}") };
    assert_eq!(device, "gpu-1");
    let whole = server.get(&format!("{RULES}/{rule}")).await.expect("the rule");
    let words = reason.expect("a reason");
    assert_eq!(whole["metadata"]["annotations"][REASON], json!(words));
    assert_eq!(whole["metadata"]["labels"]["fabricgate.io/run"], json!("r1"));
    assert_eq!(whole["metadata"]["ownerReferences"][0]["kind"], json!("Node"));

    // More is accused: the node goes, the GPU stays out, and both come back.
    assert_eq!(carried("r2", ActionKind::Drain, None).await, ActionResult::Done);
    let taints = server.node(&name).await["spec"]["taints"].to_string();
    assert!(taints.contains("\"NoSchedule\"") && !taints.contains("Prefer"), "{taints}");
    assert_eq!(rules(&server, &name).await, ours);
    assert_eq!(carried("r3", ActionKind::Release, None).await, ActionResult::Done);
    assert_eq!(rules(&server, &name).await, []);
    assert_eq!(told(&lab, &name).await.1, None);
    let left = server.node(&name).await["metadata"]["annotations"].to_string();
    assert!(!left.contains(DEVICE) && !left.contains(REASON), "{left}");

    assert_eq!(carried("r4", ActionKind::Drain, Some(&mark)).await, ActionResult::Done);
    server.delete(&format!("{RULES}/{rule}")).await;
    let (state, reason) = told(&lab, &name).await;
    assert!(!state.contains("DRAIN") && reason.is_none(), "{state}: a word without a rule");

    // A rule of its name that is not ours is neither taken for ours nor deleted.
    operators_rule(&server, rule, &name, "gpu-1").await;
    assert!(!told(&lab, &name).await.0.contains("DRAIN"));
    assert_ne!(carried("r5", ActionKind::Drain, Some(&mark)).await, ActionResult::Done);
    let there = server.get(&format!("{RULES}/{rule}")).await.expect("the rule");
    assert_eq!(there["spec"]["taint"]["key"], json!("ops.example.com/fan"));
    server.delete(&format!("{RULES}/{rule}")).await;
    server.delete(&format!("/api/v1/nodes/{name}")).await;
}

async fn stays(lab: &Lab, server: &Server, why: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let name = lab.name("stays");
    add(server, &plain_node(&name)).await;
    let mark = of(GpuCordonMethod::TaintRule, "GPU-1a");
    let done = carried(lab, folder.path(), "r1", &name, ActionKind::Drain, Some(&mark)).await;
    assert_eq!(done, ActionResult::Failed);
    let node = server.node(&name).await;
    let taints = node["spec"]["taints"].to_string();
    assert!(taints.contains("PreferNoSchedule") && !taints.contains("\"NoSchedule\""), "{taints}");
    let annotations = node["metadata"]["annotations"].to_string();
    assert!(!annotations.contains(DEVICE) && !annotations.contains(REASON), "{annotations}");
    let conditions = node["status"]["conditions"].to_string();
    assert!(conditions.contains(why), "{conditions}");
    assert!(!told(lab, &name).await.0.contains("DRAIN"));
    server.delete(&format!("/api/v1/nodes/{name}")).await;
}

#[tokio::test]
async fn where_nobody_offers_the_gpu_it_stays_and_the_node_says_so() {
    let Some(lab) = lab() else { return };
    let server = lab.admin().await;
    stays(&lab, &server, "no ResourceSlice of the node has a device with UUID GPU-1a").await;
}

#[tokio::test]
async fn a_cluster_without_such_rules_keeps_the_gpu_and_the_node_says_so() {
    let Some(lab) = own_lab(&[("FABRICGATE_LAB_PLAIN", "1")]) else { return };
    let server = lab.admin().await;
    stays(&lab, &server, "does not serve DeviceTaintRule").await;
}
