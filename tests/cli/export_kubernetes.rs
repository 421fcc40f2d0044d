//! `fabricgate export` for Kubernetes and Ray from outside: from a run of a simulated fabric to
//! files, and how a shell runs those that are scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use assert_cmd::Command;
use serde_json::{Value, json};

/// `node0006` is in another rack than claimed, a GPU of `node0002` has lost a link.
const SCENARIO: &str = r#"
title = "Two small domains, one lost link, one node in the wrong domain"
seed = 7
readings = 3

[noise]
sigma = 0.003

[[domain]]
name = "rack-a"
platform = "gb200-nvl72"
nodes = "node[0001-0005]"

[[domain]]
name = "rack-b"
platform = "gb200-nvl72"
nodes = "node[0006-0010]"

[[claim]]
name = "block01"
nodes = "node[0001-0006]"
platform = "gb200-nvl72"

[[claim]]
name = "block02"
nodes = "node[0007-0010]"
platform = "gb200-nvl72"

[[fault]]
kind = "lost-links"
gpu = "node0002:1"
count = 1
"#;

fn binary() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
}

fn run() -> &'static Path {
    static RUN: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, run) = RUN.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let scenario = dir.path().join("scenario.toml");
        fs::write(&scenario, SCENARIO).expect("written");
        let mut sweep = binary();
        sweep.args(["admit", "--no-progress", "--sim"]).arg(scenario);
        sweep.arg("--run-dir").arg(dir.path().join("runs")).assert().code(3);
        let mut inside = fs::read_dir(dir.path().join("runs")).expect("readable");
        let run = inside.next().expect("a run").expect("an entry").path();
        (dir, run)
    });
    run
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name of text")
}

/// Exports into a new folder; the files by name.
fn exported(target: &str, more: &[&str]) -> (tempfile::TempDir, BTreeMap<String, String>) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut export = binary();
    export.args([
        "export",
        text(run()),
        "--to",
        target,
        "--even-if-simulated",
        "--output",
        text(dir.path()),
    ]);
    export.args(more).assert().success();
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir.path()).expect("readable") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
        files.insert(name, fs::read_to_string(&path).expect("text"));
    }
    (dir, files)
}

/// Runs an exported script with a stand-in for the program it calls, which records its arguments,
/// one a line, calls separated by empty lines.
fn calls(dir: &Path, script: &str, program: &str, words: &[&str], node: &str) -> Vec<Vec<String>> {
    let tools = dir.join("tools");
    fs::create_dir_all(&tools).expect("made");
    let tool = tools.join(program);
    let kept = dir.join("calls");
    let body = format!(
        "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done >>{0}\necho >>{0}\n",
        text(&kept)
    );
    fs::write(&tool, body).expect("written");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("set");
    let path = format!("{}:{}", text(&tools), std::env::var("PATH").expect("a path"));
    let mut shell = Command::new("sh");
    shell.arg(dir.join(script)).args(words).env("PATH", path).env("NODE", node).assert().success();
    let log = fs::read_to_string(&kept).expect("calls");
    fs::remove_file(&kept).expect("removed");
    log.trim_end().split("\n\n").map(|it| it.lines().map(str::to_owned).collect()).collect()
}

#[test]
fn a_shell_labels_measured_nodes_with_fabricgates_labels_and_leaves_out_the_others() {
    let (dir, files) = exported("kubernetes-labels", &[]);
    let mut by_node: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for call in calls(dir.path(), "labels.sh", "kubectl", &[], "") {
        assert_eq!(call[..3], ["label", "--overwrite", "node"].map(str::to_owned));
        let (nodes, labels): (Vec<&String>, Vec<&String>) =
            call[3..].iter().partition(|word| word.starts_with("node0"));
        assert!(labels.iter().all(|word| word.starts_with("fabricgate.io/")), "{call:?}");
        for node in nodes {
            by_node.entry(node.clone()).or_default().extend(labels.iter().map(|it| (*it).clone()));
        }
    }
    let has = |node: &str, label: &str| by_node[node].contains(label);
    assert!(has("node0007", "fabricgate.io/verified-domain=block02"), "{by_node:?}");
    assert!(has("node0007", "fabricgate.io/verdict=pass"));
    // A degraded node is in its domain, and not in any list of verified nodes.
    assert!(has("node0002", "fabricgate.io/verdict=degraded"));
    assert!(has("node0002", "fabricgate.io/verified-domain-"));
    assert!(has("node0002", "fabricgate.io/measured-domain=block01"));
    assert!(!has("node0006", "fabricgate.io/measured-domain=block01"));
    for line in files["patches.jsonl"].lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let labels = line["patch"]["metadata"]["labels"].as_object().expect("labels");
        assert!(labels.keys().all(|key| key.starts_with("fabricgate.io/")), "{line}");
        assert_eq!(line["patch"].as_object().expect("a patch").len(), 1);
    }
}

#[test]
fn exports_name_their_run_and_are_the_same_every_time() {
    let id = run().file_name().expect("a name").to_str().expect("text");
    let slices = tempfile::NamedTempFile::new().expect("a file");
    fs::write(slices.path(), "{\"items\": []}").expect("written");
    for target in ["kubernetes-labels", "kueue", "kai", "hami-scores", "ray", "device-taint-rules"]
    {
        let more = ["--slices", text(slices.path())];
        let more = if target == "device-taint-rules" { &more[..] } else { &[] };
        let (_first, files) = exported(target, more);
        let (_second, again) = exported(target, more);
        assert_eq!(files, again, "{target}");
        assert!(!files.is_empty(), "{target}");
        for (name, file) in &files {
            assert!(file.contains(id), "{target}: {name} does not say its run");
            // Patches have the run on every line; other lines name the measurement.
            assert!(file.contains("SIMULATED") || name == "patches.jsonl", "{target}: {name}");
        }
    }
}

#[test]
fn a_simulated_run_and_options_of_another_target_are_refused() {
    let refused = |args: &[&str], words: &[&str]| {
        let ended = binary().args(["export", text(run())]).args(args).assert().code(2);
        let stderr = String::from_utf8_lossy(&ended.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| stderr.contains(word)), "{stderr}");
    };
    refused(&["--to", "ray"], &["--even-if-simulated"]);
    refused(&["--to", "ray", "--even-if-simulated", "--effect", "None"], &["--effect", "ray"]);
    refused(
        &["--to", "device-taint-rules", "--even-if-simulated"],
        &["--slices", "resourceslices"],
    );
    refused(
        &["--to", "kubernetes-labels", "--even-if-simulated", "--nodes", "nope"],
        &["the run has no nope"],
    );
    refused(&["--to", "hami-scores", "--even-if-simulated", "--hami", "/dev/null"], &["--hami"]);
}

#[test]
fn a_shell_passes_ray_one_json_text_with_a_unique_rank() {
    let (dir, files) = exported("ray", &[]);
    let all: Value = serde_json::from_str(&files["ray.json"]).expect("JSON");
    let nodes = all["nodes"].as_object().expect("nodes");
    assert_eq!(nodes.len(), 10);
    let mut ranks = BTreeSet::new();
    for (node, words) in nodes {
        let calls = calls(dir.path(), "ray-start.sh", "ray", &["--address=head:6379", "a b"], node);
        let [call] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!(call[..3], ["start", "--address=head:6379", "a b"].map(str::to_owned));
        let given = call[3].strip_prefix("--resources=").expect("resources");
        assert_eq!(serde_json::from_str::<Value>(given).expect("JSON"), *words);
        let rank = words["topo_rank"].as_u64().expect("a number");
        assert!(0 < rank && ranks.insert(rank), "{node}");
    }
    assert_eq!(nodes["node0002"]["nvlink_domain_block01"], 1);
    // It is claimed for block01 and was measured to be elsewhere.
    assert!(nodes["node0006"].get("nvlink_domain_block01").is_none());
    let unrelated =
        Command::new("sh").arg(dir.path().join("ray-start.sh")).env("NODE", "x").assert();
    unrelated.failure();
}

#[test]
fn hami_learns_which_pairs_have_fewer_links_than_it_counted() {
    let (_dir, files) = exported("hami-scores", &[]);
    let all: Value = serde_json::from_str(&files["hami-scores.json"]).expect("JSON");
    let mut beliefs = serde_json::Map::new();
    for (node, list) in all["nodes"].as_object().expect("nodes") {
        let mut list = list.clone();
        for gpu in list.as_array_mut().expect("a list") {
            gpu["score"]
                .as_object_mut()
                .expect("scores")
                .values_mut()
                .for_each(|it| *it = json!(1810));
        }
        beliefs.insert(node.clone(), Value::from(list.to_string()));
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), Value::from(beliefs).to_string()).expect("written");
    let (_dir, files) = exported("hami-scores", &["--hami", text(file.path())]);
    let table = &files["hami-comparison.csv"];
    let lower: Vec<&str> = table.lines().filter(|row| row.ends_with(",lower")).collect();
    // The GPU with 17 of 18 links, with each of the three others.
    assert!(lower.len() == 3 && lower.iter().all(|row| row.starts_with("node0002,")), "{table}");
}

#[test]
fn a_rule_names_the_device_of_the_gpu_to_blame() {
    let (_dir, files) = exported("hami-scores", &["--nodes", "node0002"]);
    let all: Value = serde_json::from_str(&files["hami-scores.json"]).expect("JSON");
    let list = all["nodes"]["node0002"].as_array().expect("a list");
    let devices: Vec<Value> = list
        .iter()
        .zip(0..)
        .map(|(gpu, at)| json!({"name": format!("gpu-{at}"), "attributes": {"uuid": {"string": gpu["uuid"]}}}))
        .collect();
    let slices = json!({"items": [{"kind": "ResourceSlice", "spec":
        {"driver": "gpu.nvidia.com", "pool": {"name": "node0002"}, "devices": devices}}]});
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), slices.to_string()).expect("written");
    let (_dir, files) = exported("device-taint-rules", &["--slices", text(file.path())]);
    let rules = &files["device-taint-rules.yaml"];
    assert_eq!(rules.matches("kind: DeviceTaintRule").count(), 1, "{rules}");
    assert!(rules.contains("effect: None") && rules.contains("pool: node0002"), "{rules}");
}
