//! Output of `fabricgate export` for Kubernetes, sent to a real API server: labels on nodes,
//! Kueue's and KAI's objects against the definitions that these projects publish, rules about
//! single devices.

use std::fs;
use std::path::{Path, PathBuf};

use kube::core::Request;
use kube::core::params::PostParams;
use serde_json::{Value, json};

use super::lab::{Lab, Server, fabricgate, lab, own_lab, wait_for};

const NODES: &str = "/api/v1/nodes";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RULES: &str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";

/// Two domains of the same kind; a GPU of `export-b2` has lost a link.
const SCENARIO: &str = r#"
title = "Two small domains and a lost link"
seed = 11
readings = 3

[noise]
sigma = 0.003

[[domain]]
name = "Block_A-"
platform = "gb200-nvl72"
nodes = "export-a[1-3]"

[[domain]]
name = "block-b"
platform = "gb200-nvl72"
nodes = "export-b[1-4]"

[[fault]]
kind = "lost-links"
gpu = "export-b2:1"
count = 1
"#;

/// Measures the simulated fabric; the folder of its run.
fn run(folder: &Path) -> PathBuf {
    fs::write(folder.join("scenario.toml"), SCENARIO).expect("written");
    let words = ["admit", "--no-progress", "--sim", "scenario.toml", "--run-dir", "runs"];
    fabricgate(folder, &words).expect(3);
    let mut runs = fs::read_dir(folder.join("runs")).expect("readable");
    runs.next().expect("a run").expect("an entry").path()
}

/// Exports a run; the contents of its files by name.
fn exported(folder: &Path, run: &Path, target: &str, more: &[&str]) -> impl Fn(&str) -> String {
    let run = run.display().to_string();
    let to = folder.join(format!("to-{target}"));
    fs::create_dir_all(&to).expect("made");
    let output = to.display().to_string();
    let mut words =
        vec!["export", &run, "--to", target, "--even-if-simulated", "--output", &output];
    words.extend(more);
    fabricgate(folder, &words).expect(0);
    move |name| fs::read_to_string(to.join(name)).expect("a file")
}

fn documents(text: &str) -> Vec<Value> {
    let parts = text.split("---\n").skip(1);
    parts.map(|part| serde_saphyr::from_str(part).expect("YAML")).collect()
}

/// Creates an object, or runs a dry run of it; every field that the server does not know is an
/// error, which the server otherwise drops silently.
async fn create(
    server: &Server,
    path: &str,
    object: &Value,
    dry_run: bool,
) -> Result<Value, kube::Error> {
    let by = PostParams { dry_run, field_manager: Some("export".to_owned()) };
    let body = serde_json::to_vec(object).expect("JSON");
    let mut request = Request::new(path).create(&by, body).expect("a request");
    let uri = request.uri().to_string();
    let mark = if uri.contains('?') { '&' } else { '?' };
    *request.uri_mut() = format!("{uri}{mark}fieldValidation=Strict").parse().expect("a path");
    server.0.request(request).await
}

#[tokio::test]
async fn a_real_server_takes_labels_of_measured_nodes_and_keeps_those_of_others() {
    let Some(lab) = own_lab(&[("FABRICGATE_LAB_BARE", "1")]) else { return };
    let server = lab.admin().await;
    let dir = tempfile::tempdir().expect("a folder");
    let run = run(dir.path());
    for name in ["a1", "a2", "a3", "b1", "b2", "b3", "b4"] {
        let labels =
            json!({"nvidia.com/gpu.clique": "theirs.1", "fabricgate.io/verified-domain": "old"});
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("export-{name}"), "labels": labels}});
        server.create(NODES, &node).await;
    }
    let file = exported(dir.path(), &run, "kubernetes-labels", &[]);
    for line in file("patches.jsonl").lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let name = line["node"].as_str().expect("a name");
        server.merge(&format!("{NODES}/{name}"), &line["patch"]).await;
    }
    let labels = async |name: &str| {
        let node = server.get(&format!("{NODES}/{name}")).await.expect("a node");
        node["metadata"]["labels"].clone()
    };
    let (fine, low) = (labels("export-b1").await, labels("export-b2").await);
    assert_eq!(fine["fabricgate.io/verified-domain"], "block-b", "{fine}");
    assert_eq!(fine["fabricgate.io/verdict"], "pass");
    assert_eq!(fine["nvidia.com/gpu.clique"], "theirs.1");
    assert_eq!(low["fabricgate.io/verdict"], "degraded", "{low}");
    assert!(low["fabricgate.io/verified-domain"].is_null(), "{low}");
    assert_eq!(low["fabricgate.io/measured-domain"], "block-b");
    // A name that is not valid as a label value gets a digest.
    let other = labels("export-a1").await["fabricgate.io/measured-domain"].clone();
    assert!(
        other.as_str().is_some_and(|it| it.starts_with("Block_A-") && it != "Block_A-"),
        "{other}"
    );
}

/// Installs a published definition; `None` where the lab has none.
async fn define(lab: &Lab, server: &Server, name: &str, plural: &str) -> Option<()> {
    let text = fs::read_to_string(lab.folder.join("published").join(name)).ok()?;
    let definition: Value = documents(&text).into_iter().next().expect("a definition");
    server.create(DEFINITIONS, &definition).await;
    let path = format!("{DEFINITIONS}/{plural}");
    wait_for("the definition is in force", async || {
        let seen = server.get(&path).await.unwrap_or_default();
        let conditions = seen["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is = |it: &Value| it["type"] == "Established" && it["status"] == "True";
        conditions.iter().any(is).then_some(()).ok_or_else(|| seen["status"].to_string())
    })
    .await;
    Some(())
}

#[tokio::test]
async fn a_real_server_takes_topologies_by_the_definitions_that_kueue_and_kai_publish() {
    let Some(lab) = own_lab(&[("FABRICGATE_LAB_BARE", "1")]) else { return };
    let server = lab.admin().await;
    let dir = tempfile::tempdir().expect("a folder");
    let run = run(dir.path());
    for (name, plural) in [
        ("kueue.x-k8s.io_topologies.yaml", "topologies.kueue.x-k8s.io"),
        ("kueue.x-k8s.io_resourceflavors.yaml", "resourceflavors.kueue.x-k8s.io"),
        ("kai.scheduler_topologies.yaml", "topologies.kai.scheduler"),
    ] {
        if define(&lab, &server, name, plural).await.is_none() {
            println!("SKIPPED: {name} could not be fetched, see ci/lab-kubernetes");
            return;
        }
    }
    let kueue = documents(&exported(dir.path(), &run, "kueue", &[])("kueue.yaml"));
    let kai = documents(&exported(dir.path(), &run, "kai", &[])("kai.yaml"));
    assert_eq!((kueue.len(), kai.len()), (2, 1));
    for object in kueue.iter().chain(&kai) {
        let kind = object["kind"].as_str().expect("a kind").to_lowercase();
        let plural = kind.strip_suffix('y').map_or(format!("{kind}s"), |stem| format!("{stem}ies"));
        let version = object["apiVersion"].as_str().expect("a version");
        let path = format!("/apis/{version}/{plural}");
        // The kind may be served a moment after its definition is in force.
        wait_for("the kind is served", async || {
            create(&server, &path, object, true).await.map_err(|error| error.to_string())
        })
        .await;
        let made = create(&server, &path, object, false).await.expect("it is made");
        assert_eq!(made["spec"], object["spec"], "nothing of it was dropped or added");
        // The check can fail: a field outside the definition is refused.
        let mut odd = object.clone();
        odd["metadata"]["name"] = json!("odd");
        odd["spec"]["nodeLabel"] = json!("x");
        let refused = create(&server, &path, &odd, true).await.expect_err("an unknown field");
        assert!(refused.to_string().contains("nodeLabel"), "{refused}");
    }
}

#[tokio::test]
async fn a_real_server_takes_rules_about_devices_in_either_effect() {
    let Some(lab) = lab() else { return };
    let server = lab.admin().await;
    let dir = tempfile::tempdir().expect("a folder");
    let run = run(dir.path());
    let scores =
        exported(dir.path(), &run, "hami-scores", &["--nodes", "export-b2"])("hami-scores.json");
    let scores: Value = serde_json::from_str(&scores).expect("JSON");
    let gpus = scores["nodes"]["export-b2"].as_array().expect("GPUs");
    let devices: Vec<Value> = gpus
        .iter()
        .zip(0..)
        .map(|(gpu, at)| json!({"name": format!("gpu-{at}"), "attributes": {"uuid": {"string": gpu["uuid"]}}}))
        .collect();
    let slices = json!({"items": [{"kind": "ResourceSlice", "spec":
        {"driver": "gpu.nvidia.com", "pool": {"name": "export-b2"}, "devices": devices}}]});
    let path = dir.path().join("slices.json");
    fs::write(&path, slices.to_string()).expect("written");
    let slices = path.display().to_string();
    for effect in ["None", "NoSchedule"] {
        let words = ["--slices", &slices, "--effect", effect];
        let rules =
            exported(dir.path(), &run, "device-taint-rules", &words)("device-taint-rules.yaml");
        let rules = documents(&rules);
        let [rule] = rules.as_slice() else { panic!("{rules:?}") };
        create(&server, RULES, rule, true).await.expect("it could be made");
        let made = create(&server, RULES, rule, false).await.expect("it is made");
        assert_eq!(made["spec"]["taint"]["effect"], effect);
        assert_eq!(made["spec"]["deviceSelector"], rule["spec"]["deviceSelector"]);
        let name = made["metadata"]["name"].as_str().expect("a name");
        server.delete(&format!("{RULES}/{name}")).await;
    }
}
