//! `fabricgate claims` from outside: sources in files and behind sockets that agree, contradict
//! each other, are broken, or never answer; and sweeps that take their domains from them.

mod fleets;
mod per_node;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

/// Time after which a command counts as hanging.
const HANG: Duration = Duration::from_secs(120);

const BLOCKS: &str = "- topology: nvl\n  cluster_default: true\n  block:\n    block_sizes: [2]\n    blocks:\n\
    \u{20}     - block: b1\n        nodes: n[1-2]\n      - block: b2\n        nodes: n[3-4]\n";

const ONE: &str = "aaaaaaaa-0000-4000-8000-000000000001.1";
const TWO: &str = "bbbbbbbb-0000-4000-8000-000000000002.1";

/// Node objects as `kubectl get nodes -o json` prints them, with these cliques.
fn nodes(cliques: &[(&str, &str)]) -> String {
    let items: Vec<Value> = cliques
        .iter()
        .map(|(name, clique)| {
            serde_json::json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {
                    "nvidia.com/gpu.present": "true",
                    "nvidia.com/gpu.product": "NVIDIA-GB200",
                    "nvidia.com/gpu.count": "4",
                    "nvidia.com/gpu.clique": clique,
                }},
                "status": {"allocatable": {"nvidia.com/gpu": "4"}},
            })
        })
        .collect();
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A folder of its own in which the program runs.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
            .args(words)
            .current_dir(self.dir.path())
            .env_remove("FABRICGATE_CONFIG")
            .env_remove("KUBECONFIG")
            .env_remove("SLURM_JWT")
            .env("NO_COLOR", "1")
            .timeout(HANG)
            .output()
            .expect("the program starts")
    }

    /// The claims that these arguments print, with this exit code.
    fn claims(&self, words: &[&str], code: i32) -> Value {
        let words: Vec<&str> = ["claims", "--json"].iter().chain(words).copied().collect();
        let output = self.run(&words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}{}", text(&output));
        let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
        assert_eq!(document["format"], "fabricgate.claims/1");
        document["claims"].clone()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Nodes of the domain of this name.
fn of_domain(claims: &Value, name: &str) -> Vec<String> {
    let domains = claims["domains"].as_array().expect("domains");
    let domain =
        domains.iter().find(|d| d["name"] == name).unwrap_or_else(|| panic!("{domains:?}"));
    let nodes = domain["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node.as_str().expect("a name").to_owned()).collect()
}

fn disagreements(claims: &Value) -> Vec<Value> {
    claims["disagreements"].as_array().cloned().unwrap_or_default()
}

#[test]
fn sources_that_agree_pass_and_give_platform_and_gpus() {
    let place = Place::new();
    place.put("topology.yaml", BLOCKS);
    place.put("nodes.json", &nodes(&[("n1", ONE), ("n2", ONE), ("n3", TWO), ("n4", TWO)]));
    let claims = place.claims(&["topology.yaml", "nodes.json"], 0);
    assert_eq!(of_domain(&claims, "b1"), ["n1", "n2"]);
    assert_eq!(claims["domains"][0]["platform"], "gb200-nvl72");
    assert_eq!(claims["domains"][0]["gpus_per_node"], 4);
    assert_eq!(claims["sources"].as_array().expect("sources").len(), 2);
    assert!(claims["sources"][0]["read_at"].is_string());
    let shown = text(&place.run(&["claims", "topology.yaml", "nodes.json"]));
    assert!(shown.starts_with("2 domains, 4 nodes, reported by 2 sources\n"), "{shown}");
    assert!(shown.contains("b1: 2 nodes, n[1-2], gb200-nvl72, 4 GPUs per node"), "{shown}");
    assert!(shown.contains(&format!("clique {ONE}: the same nodes")), "{shown}");
}

#[test]
fn a_block_against_a_clique_names_both_sides_and_closes_the_gate() {
    let place = Place::new();
    place.put("topology.yaml", BLOCKS);
    place.put("nodes.json", &nodes(&[("n1", ONE), ("n2", TWO), ("n3", TWO), ("n4", TWO)]));
    let claims = place.claims(&["topology.yaml", "nodes.json"], 3);
    let found = disagreements(&claims);
    let one = found
        .iter()
        .find(|d| d["severity"] == "contradiction" && d["nodes"].to_string().contains("n2"))
        .unwrap_or_else(|| panic!("{found:?}"));
    let sides = one["sides"].to_string();
    assert!(sides.contains("slurm-topology-yaml") && sides.contains("kubernetes-nodes"), "{sides}");
    let shown = text(&place.run(&["claims", "topology.yaml", "nodes.json"]));
    assert!(shown.contains("Disagreements (") && shown.contains("contradiction"), "{shown}");
    assert!(shown.contains("do: "), "{shown}");
    // The order of the files does not matter.
    let turned = place.claims(&["nodes.json", "topology.yaml"], 3);
    assert_eq!(disagreements(&turned).len(), found.len());
}

#[test]
fn a_broken_source_is_reported_with_its_place_and_leaves_the_others_usable() {
    let place = Place::new();
    place.put(
        "topology.conf",
        "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n",
    );
    place.put("broken.yaml", "- topology: x\n  block:\n    block_sizes: [2]\n    blocks: {\n");
    let claims = place.claims(&["topology.conf", "broken.yaml"], 4);
    assert_eq!(of_domain(&claims, "b2"), ["n3", "n4"]);
    let problems = claims["sources"][1]["problems"].as_array().expect("problems");
    assert!(problems[0].to_string().contains("broken.yaml:"), "{problems:?}");
    let alone = place.run(&["claims", "broken.yaml"]);
    assert_eq!(alone.status.code(), Some(5), "{}", text(&alone));
    assert!(text(&alone).contains("broken.yaml:"), "{}", text(&alone));
}

#[test]
fn missing_and_unrecognised_sources_are_reported() {
    let place = Place::new();
    place.put("diary.txt", "dear diary\n");
    let output = place.claims(&["diary.txt", "none.yaml"], 5);
    let kinds: Vec<&str> = output["sources"]
        .as_array()
        .expect("sources")
        .iter()
        .map(|source| source["problems"][0]["kind"].as_str().expect("a kind"))
        .collect();
    assert_eq!(kinds, ["unsupported", "missing"]);
    // Agreement of the others does not count: not every source was readable.
    place.put("topology.yaml", BLOCKS);
    place.claims(&["topology.yaml"], 0);
    place.claims(&["topology.yaml", "diary.txt"], 4);
    place.claims(&["topology.yaml", "none.yaml"], 4);
    let unknown_source = place.run(&["claims", "--from", "nowhere"]);
    assert_eq!(unknown_source.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&unknown_source.stderr).into_owned();
    assert!(stderr.contains("--from nowhere: expected slurm"), "{stderr}");
}

#[test]
fn a_server_that_never_answers_ends_in_time_and_hides_no_other() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    // Accepts and sends nothing, until the test ends.
    std::thread::spawn(move || silent.incoming().flatten().collect::<Vec<_>>());
    place.put("topology.yaml", BLOCKS);
    place.put(
        "fabricgate.toml",
        &format!(
            "claims = \"topology.yaml\"\n[sources]\nlimit_s = 0.5\n\
             [sources.slurmrestd]\naddress = \"http://{address}\"\n\
             [sources.ray]\naddress = \"http://{address}\"\n"
        ),
    );
    let claims = place.claims(&["--config", "fabricgate.toml"], 4);
    assert_eq!(of_domain(&claims, "b1"), ["n1", "n2"]);
    let unreachable = claims["sources"].to_string().matches("unreachable").count();
    assert!(2 <= unreachable, "{}", claims["sources"]);
}

#[test]
fn a_refusing_server_is_reported_as_refusing() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = server.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in server.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(
                b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
            );
        }
    });
    let from = format!("slurmrestd=http://{address}");
    let claims = place.claims(&["--from", &from], 5);
    assert!(claims["sources"].to_string().contains("denied"), "{}", claims["sources"]);
}

#[test]
fn a_sweep_takes_its_domains_from_the_topology_that_slurm_has() {
    let place = Place::new();
    place.put(
        "rack.toml",
        "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.002\n[[domain]]\nname = \"rack\"\n\
         nodes = \"n[1-4]\"\nplatform = \"gb200-nvl72\"\n",
    );
    place.put("topology.conf", "BlockName=slurmblock Nodes=n[1-4]\nBlockSizes=4\n");
    place.put(
        "fabricgate.toml",
        "claims = \"topology.conf\"\nrun_dir = \"runs\"\nplatform = \"gb200-nvl72\"\n\
         [sources]\ngpus_per_node = 4\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
         [probes]\nrun = [\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n",
    );
    let output = place.run(&["audit", "--config", "fabricgate.toml", "--json", "--no-progress"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let verdicts: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    let nodes = verdicts["verdicts"]["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 4, "{verdicts}");
    assert!(nodes.iter().all(|node| node["domain"] == "slurmblock"), "{verdicts}");
    assert_eq!(output.status.code(), Some(0), "{verdicts}{stderr}");
    let run = fs::read_dir(place.path("runs")).expect("runs").next().expect("one").expect("read");
    let kept = fs::read_to_string(run.path().join("claims.json")).expect("claims.json");
    assert!(kept.contains("slurm-topology-conf") && kept.contains("topology.conf:1"), "{kept}");
}

#[test]
fn a_sweep_that_could_not_read_all_of_its_claims_does_not_pass() {
    let place = Place::new();
    place.put(
        "rack.toml",
        "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.002\n[[domain]]\nname = \"rack\"\n\
         nodes = \"n[1-4]\"\nplatform = \"gb200-nvl72\"\n",
    );
    place.put("topology.conf", "BlockName=b1 Nodes=n[1-4]\nBlockSizes=4\n");
    place.put(
        "fabricgate.toml",
        "claims = [\"topology.conf\", \"missing.yaml\"]\nplatform = \"gb200-nvl72\"\n\
         [sources]\ngpus_per_node = 4\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
         [probes]\nrun = [\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n",
    );
    let output = place.run(&["audit", "--config", "fabricgate.toml", "--json", "--no-progress"]);
    let run: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(output.status.code(), Some(4), "{}", run["verdicts"]["unknown"]);
    assert!(run["verdicts"]["unknown"].to_string().contains("missing.yaml"), "{run}");
    let nodes = run["verdicts"]["nodes"].as_array().expect("nodes");
    let outcomes: Vec<&Value> = nodes.iter().map(|node| &node["outcome"]).collect();
    assert_eq!(outcomes, ["pass"; 4], "the measured domains: {run}");
}

#[test]
fn a_runs_measurements_are_compared_with_the_claims() {
    let place = Place::new();
    place.put("topology.conf", "BlockName=block01 Nodes=node[0001-0018]\nBlockSizes=18\n");
    let measured = |scenario: &str| {
        let runs = format!("runs-{scenario}");
        place.run(&["audit", "--sim", scenario, "--run-dir", &runs, "--no-progress"]);
        let mut runs = fs::read_dir(place.path(&runs)).expect("runs");
        runs.next().expect("one").expect("read").path().display().to_string()
    };
    let split = place.claims(&["topology.conf", &measured("split-clique")], 3);
    let found = disagreements(&split);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0]["sides"].to_string().contains("measured-run"), "{found:?}");
    let whole = place.claims(&["topology.conf", &measured("rack-lost-link")], 0);
    assert!(disagreements(&whole).is_empty(), "a slow GPU is not a different domain");
    assert!(whole["assertions"].to_string().contains("\"how\":\"measured\""));
}

#[test]
fn a_sweep_without_any_claimed_domain_is_refused() {
    let place = Place::new();
    place.put("topology.conf", "# BlockName=b1 Nodes=n[1-4]\n");
    place.put("fabricgate.toml", "claims = \"topology.conf\"\n");
    let output = place.run(&["audit", "--config", "fabricgate.toml"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("no source claims a domain"), "{stderr}");
}

#[test]
fn two_moments_are_compared() {
    let place = Place::new();
    place.put("topology.yaml", BLOCKS);
    let before = place.run(&["claims", "--json", "topology.yaml"]);
    fs::write(place.path("before.json"), &before.stdout).expect("written");
    let same = place.run(&["claims", "topology.yaml", "--against", "before.json"]);
    assert_eq!(same.status.code(), Some(0));
    assert!(text(&same).contains("nothing has changed"), "{}", text(&same));
    place.put("topology.yaml", &BLOCKS.replace("n[1-2]", "n1").replace("n[3-4]", "n[2-4]"));
    let moved = place.run(&["claims", "topology.yaml", "--against", "before.json"]);
    assert!(text(&moved).contains("n2"), "{}", text(&moved));
    let json = place.claims_with_changes(&["topology.yaml", "--against", "before.json"]);
    assert!(!json.is_empty());
    let bad = place.run(&["claims", "topology.yaml", "--against", "topology.yaml"]);
    assert_eq!(bad.status.code(), Some(2), "{}", text(&bad));
}

impl Place {
    /// The changes that these arguments print.
    fn claims_with_changes(&self, words: &[&str]) -> Vec<Value> {
        let words: Vec<&str> = ["claims", "--json"].iter().chain(words).copied().collect();
        let output = self.run(&words);
        let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
        document["changes"].as_array().cloned().unwrap_or_default()
    }
}
