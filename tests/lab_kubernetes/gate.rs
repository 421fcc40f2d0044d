//! The gate as a whole: nodes that join, fail, are repaired and returned, and a scheduler that
//! follows the gate's marks. Measurements are simulated; the cluster is real.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::lab::{Lab, Nodes, ProgramOutput, Server, Simulated, clique, fabricgate, lab};

const UNVERIFIED: &str = "fabricgate.io/unverified";
const DEGRADED: &str = "fabricgate.io/degraded";

/// A rack with a configuration that measures and gates it.
pub(super) struct Site {
    pub(super) server: Server,
    pub(super) namespace: String,
    pub(super) rack: String,
    pub(super) names: Vec<String>,
    pub(super) simulated: Simulated,
    folder: tempfile::TempDir,
    _nodes: Nodes,
}

/// Name of the rack, valid as the value of a label.
fn domain(rack: &str) -> &str {
    rack.trim_end_matches('-')
}

/// The rack with half the links of a GPU lost on each of these nodes.
pub(super) fn scenario(rack: &str, count: usize, bad: &[&str]) -> String {
    let fault = |node: &&str| {
        format!("\n[[fault]]\nkind = \"lost-links\"\ngpu = \"{node}:2\"\ncount = 9\n")
    };
    let healthy = format!(
        "title = \"A rack of the lab\"\nseed = 61\n[noise]\nsigma = 0.002\n\
         [[domain]]\nname = \"{}\"\nnodes = \"{rack}[01-{count:02}]\"\n\
         platform = \"gb200-nvl72\"\n",
        domain(rack)
    );
    bad.iter().map(fault).fold(healthy, |text, fault| text + &fault)
}

async fn site(lab: &Lab, count: usize, more: &Value) -> Site {
    site_with(lab, count, more, "").await
}

/// The same with more lines of its policy.
pub(super) async fn site_with(lab: &Lab, count: usize, more: &Value, policy: &str) -> Site {
    let server = lab.admin().await;
    let namespace = lab.namespace("gate").await;
    let rack = format!("{namespace}-");
    let mut nodes = lab.nodes();
    let names = nodes.rack(&rack, count, more);
    server.wait_until_ready(&names).await;
    let simulated = Simulated::new(&scenario(&rack, count, &[]));
    let folder = tempfile::tempdir().expect("a folder");
    let claims = format!(
        "[[domain]]\nname = \"{}\"\nnodes = \"{rack}[01-{count:02}]\"\n\
         platform = \"gb200-nvl72\"\ngpus_per_node = 4\n",
        domain(&rack)
    );
    fs::write(folder.path().join("claims.toml"), claims).expect("written");
    let kubeconfig = lab.kubeconfig("admin");
    let config = format!(
        "claims = \"claims.toml\"\n\
         [launcher]\nkind = \"kubernetes\"\nworker = {:?}\n\
         [launcher.kubernetes]\nkubeconfig = {kubeconfig:?}\nnamespace = {namespace:?}\n\
         image = \"lab:1\"\ncapabilities = []\nranks = \"names\"\n\
         [gate]\nstate = \"gate\"\nthrough = \"kubernetes\"\n\
         [gate.kubernetes]\nkubeconfig = {kubeconfig:?}\n\
         [policy]\nsimulated = true\nclean_hours = 0\n{policy}\
         [probes]\nrun = [\"nvbandwidth-ce\", \"nvidia-smi-nvlink\", \"nvbandwidth-lane\"]\n\
         [sweep]\nmatchings = 2\n[confirm]\nwait_s = 0\n",
        simulated.worker()
    );
    fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
    Site { server, namespace, rack, names, simulated, folder, _nodes: nodes }
}

impl Site {
    pub(super) fn run(&self, words: &[&str]) -> ProgramOutput {
        let words = [words, &["--config", "fabricgate.toml", "--no-progress"]].concat();
        fabricgate(self.folder.path(), &words)
    }

    pub(super) fn newest(&self) -> String {
        let runs = fs::read_dir(self.folder.path().join("runs")).expect("runs");
        let mut runs: Vec<PathBuf> = runs.map(|run| run.expect("a run").path()).collect();
        runs.sort();
        runs.pop().expect("a run").display().to_string()
    }

    pub(super) async fn node(&self, name: &str) -> Value {
        self.server.node(name).await
    }

    /// fabricgate's taints: key, value and effect.
    pub(super) async fn taints(&self, name: &str) -> Vec<String> {
        let node = self.node(name).await;
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = taints.iter().filter(|taint| {
            taint["key"].as_str().is_some_and(|key| key.starts_with("fabricgate.io/"))
        });
        let text = |taint: &Value, part: &str| taint[part].as_str().unwrap_or("").to_owned();
        let words = ours.map(|taint| {
            format!("{}={}:{}", text(taint, "key"), text(taint, "value"), text(taint, "effect"))
        });
        words.collect()
    }

    async fn is_drained(&self, name: &str) -> bool {
        self.taints(name).await.iter().any(|taint| taint.starts_with(DEGRADED))
    }

    /// A pod that requests GPUs, on nodes with these labels.
    async fn ask_for_gpus(&self, pod: &str, gpus: u32, labels: Value) {
        let container = json!({"name": "main", "image": "lab:1", "command": ["sleep", "600"],
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
            "spec": {"nodeSelector": labels, "terminationGracePeriodSeconds": 0,
                "restartPolicy": "Never", "containers": [container]}});
        self.server.create(&format!("/api/v1/namespaces/{}/pods", self.namespace), &pod).await;
    }

    /// Waits until the scheduler reports that a pod fits on no node; its message.
    async fn refused(&self, pod: &str) -> String {
        let refused = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.into_iter().find(|it| it["reason"] == "Unschedulable")
        };
        let is_so = |pod: &Value| refused(pod).is_some();
        let pod = self.server.wait_for_pod(&self.namespace, pod, "refused", is_so).await;
        refused(&pod).expect("a condition")["message"].as_str().expect("words").to_owned()
    }
}

fn condition(node: &Value) -> (String, String) {
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    let ours = conditions.iter().find(|it| it["type"] == "GpuFabricVerified");
    let text = |part: &str| ours.and_then(|it| it[part].as_str()).unwrap_or("absent").to_owned();
    (text("status"), text("reason"))
}

fn unverified() -> Value {
    json!({"taints": [{"key": UNVERIFIED, "effect": "NoSchedule"}]})
}

#[tokio::test]
async fn a_node_that_joins_is_certified_and_then_gets_the_pod_that_waited() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 3, &unverified()).await;
    site.ask_for_gpus("waits", 4, json!({"nvidia.com/gpu.clique": clique(&site.rack)})).await;
    let words = site.refused("waits").await;
    assert!(words.contains("taint"), "{words}");

    // Without --apply it is measured, and nothing is written.
    let before = site.node(&site.names[0]).await;
    site.run(&["admit"]).expect(0);
    let after = site.node(&site.names[0]).await;
    for part in ["labels", "annotations"] {
        assert_eq!(before["metadata"][part], after["metadata"][part]);
    }
    assert_eq!((&before["spec"], condition(&before)), (&after["spec"], condition(&after)));

    let output = site.run(&["admit", "--apply"]);
    output.expect(0);
    for name in &site.names {
        let node = site.node(name).await;
        assert_eq!(site.taints(name).await, [""; 0], "{name}: {output:?}");
        let labels = &node["metadata"]["labels"];
        assert_eq!(labels["fabricgate.io/verdict"], json!("pass"));
        assert_eq!(labels["fabricgate.io/verified-domain"], json!(domain(&site.rack)), "{labels}");
        assert_eq!(condition(&node).0, "True");
        let certificate = node["metadata"]["annotations"]["fabricgate.io/certificate"].as_str();
        let certificate: Value =
            serde_json::from_str(certificate.expect("a certificate")).expect("JSON");
        assert!(certificate["expires"].is_string(), "{certificate}");
    }
    let pod = site.server.wait_for_phase(&site.namespace, "waits", "Running").await;
    let on = pod["spec"]["nodeName"].as_str().expect("a node");
    assert!(site.names.iter().any(|name| name == on), "{on}");
}

#[tokio::test]
async fn a_degraded_node_is_kept_from_new_pods_until_two_clean_runs_after_its_repair() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 4, &json!({})).await;
    let (bad, hostname) = (site.names[1].clone(), json!({"kubernetes.io/hostname": site.names[1]}));
    site.simulated.rewrite(&scenario(&site.rack, 4, &[&bad]));
    site.run(&["audit"]).expect(3);
    let run = site.newest();
    // Measured while it was free; a job runs on it when the verdict is applied.
    site.ask_for_gpus("works", 1, hostname.clone()).await;
    site.server.wait_for_phase(&site.namespace, "works", "Running").await;
    let output = site.run(&["apply", &run, "--apply"]);
    output.expect(0);
    let taints = site.taints(&bad).await;
    assert!(
        taints.len() == 1 && taints[0].starts_with(DEGRADED) && taints[0].ends_with(":NoSchedule"),
        "{taints:?} {output:?}"
    );
    let node = site.node(&bad).await;
    let reason = node["metadata"]["annotations"]["fabricgate.io/reason"].as_str();
    assert!(reason.is_some_and(|reason| reason.starts_with("fabricgate:")), "{reason:?}");
    assert_eq!(condition(&node).0, "False");
    assert_eq!(node["spec"]["unschedulable"], Value::Null, "a cordon is a person's");
    for name in site.names.iter().filter(|name| **name != bad) {
        assert_eq!(site.taints(name).await, [""; 0]);
    }

    // The scheduler keeps new pods off, and running pods continue.
    site.ask_for_gpus("waits", 1, hostname).await;
    let words = site.refused("waits").await;
    // The only node that fits; nodes of other tests may have taints too.
    let is_so = words.contains("had untolerated taint") && !words.contains("Insufficient");
    assert!(is_so, "{words}");
    let works = format!("/api/v1/namespaces/{}/pods/works", site.namespace);
    let pod = site.server.get(&works).await.expect("the pod");
    assert_eq!(pod["status"]["phase"], json!("Running"));
    site.server.delete(&works).await;
    site.server.wait_until_gone(&works).await;

    // Measured again without a repair, nothing changes.
    site.run(&["recertify", &bad, "--with-domain", "--apply"]).expect(3);
    assert_eq!(site.taints(&bad).await, taints);

    site.simulated.rewrite(&scenario(&site.rack, 4, &[]));
    site.run(&["recertify", &bad, "--with-domain", "--apply"]).expect(0);
    assert_eq!(site.taints(&bad).await, taints, "one clean run is not two");
    let output = site.run(&["recertify", &bad, "--with-domain", "--apply"]);
    output.expect(0);
    assert_eq!(site.taints(&bad).await, [""; 0], "{output:?}");
    let node = site.node(&bad).await;
    assert_eq!(node["metadata"]["annotations"]["fabricgate.io/reason"], Value::Null);
    assert_eq!(node["metadata"]["labels"]["fabricgate.io/verdict"], json!("pass"));
    assert_eq!(condition(&node).0, "True");
    site.server.wait_for_phase(&site.namespace, "waits", "Running").await;
}

/// An operator's fields on a node.
fn theirs(node: &Value) -> Value {
    let others = |map: &Value| {
        let map = map.as_object().cloned().unwrap_or_default();
        map.into_iter().filter(|(key, _)| !key.starts_with("fabricgate.io/")).collect::<Vec<_>>()
    };
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let taints: Vec<Value> = taints
        .into_iter()
        .filter(|taint| !taint["key"].to_string().contains("fabricgate.io/"))
        .collect();
    json!({"labels": others(&node["metadata"]["labels"]), "taints": taints,
        "annotations": others(&node["metadata"]["annotations"]),
        "cordoned": node["spec"]["unschedulable"]})
}

#[tokio::test]
async fn an_operators_fields_on_nodes_survive_every_action() {
    let Some(lab) = lab() else { return };
    let more = json!({"labels": {"ops.example.com/row": "7"},
        "annotations": {"ops.example.com/ticket": "4711"}});
    let site = site(&lab, 6, &more).await;
    let path = |name: &str| format!("/api/v1/nodes/{name}");
    let theirs_to_keep = json!({"spec": {"taints": [
        {"key": "ops.example.com/psu", "value": "swap", "effect": "NoSchedule"}]}});
    site.server.merge(&path(&site.names[4]), &theirs_to_keep).await;
    site.server.merge(&path(&site.names[5]), &json!({"spec": {"unschedulable": true}})).await;
    // A cordon adds a taint, a moment later.
    super::lab::wait_for("the cordon's taint", async || {
        let taints = site.node(&site.names[5]).await["spec"]["taints"].to_string();
        if taints.contains("node.kubernetes.io/unschedulable") { Ok(()) } else { Err(taints) }
    })
    .await;
    let mut before = Vec::new();
    for name in &site.names {
        before.push(theirs(&site.node(name).await));
    }
    let bad = site.names[1].clone();
    site.simulated.rewrite(&scenario(&site.rack, 6, &[&bad]));
    let output = site.run(&["audit", "--apply"]);
    assert!(site.is_drained(&bad).await, "{output:?}");
    // They work on the drained node too: that is not a reason to keep it.
    let also = json!({"metadata": {"annotations": {"ops.example.com/seen": "yes"}}});
    site.server.merge(&path(&bad), &also).await;
    before[1]["annotations"] = theirs(&site.node(&bad).await)["annotations"].clone();
    site.simulated.rewrite(&scenario(&site.rack, 6, &[]));
    // Two clean runs return it; a third is needed where the first began too soon after the drain
    // to count.
    let mut output = Vec::new();
    for _ in 0..3 {
        output.push(site.run(&["recertify", &bad, "--with-domain", "--apply"]));
        if !site.is_drained(&bad).await {
            break;
        }
    }
    assert!(!site.is_drained(&bad).await, "{output:?}");
    for (name, before) in site.names.iter().zip(before) {
        assert_eq!(theirs(&site.node(name).await), before, "{name}");
    }
    for name in &site.names[4..] {
        assert_eq!(site.taints(name).await, [""; 0], "nothing is known of {name}");
        assert_ne!(condition(&site.node(name).await).0, "True", "{name} was not measured");
    }
}

#[tokio::test]
async fn three_suspects_of_one_rack_freeze_the_gate_and_taint_no_node() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 6, &json!({})).await;
    let bad: Vec<&str> = site.names.iter().step_by(2).map(String::as_str).collect();
    site.simulated.rewrite(&scenario(&site.rack, 6, &bad));
    let output = site.run(&["audit", "--apply"]);
    output.expect(6);
    for name in &site.names {
        assert!(!site.is_drained(name).await, "{output:?}");
    }
    assert!(output.stdout.contains("frozen") || output.stderr.contains("frozen"), "{output:?}");
}

#[tokio::test]
async fn a_removed_taint_counts_as_an_operators_decision() {
    let Some(lab) = lab() else { return };
    let site = site(&lab, 4, &json!({})).await;
    let bad = site.names[1].clone();
    site.simulated.rewrite(&scenario(&site.rack, 4, &[&bad]));
    site.run(&["audit", "--apply"]).expect(3);
    assert!(site.is_drained(&bad).await);
    let path = format!("/api/v1/nodes/{bad}");
    site.server.merge(&path, &json!({"spec": {"taints": null}})).await;
    let run = site.newest();
    for words in [&["apply", &run, "--apply"][..], &["audit", "--apply"]] {
        let output = site.run(words);
        assert!(!site.is_drained(&bad).await, "{words:?}: {output:?}");
    }
    // A worse fault is a new matter: no operator has acknowledged it.
    let status = site.run(&["gate", "status"]);
    assert!(status.stdout.contains(&bad), "{status:?}");
}
