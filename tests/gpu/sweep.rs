//! Whole sweeps over machines of stubs that have only the driver: a real coordinator, real
//! workers, the native probes in their processes, and a verdict. No tool is on PATH.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::Place;
use crate::stub::Machine;

/// A built-in probe file with copies of 1 MiB: a driver in real memory needs minutes for larger
/// ones.
fn small(place: &Path, probe: &str) {
    let file = format!("{probe}.toml");
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("probes").join(&file);
    let text = fs::read_to_string(built_in).expect("a probe");
    let options = "\"copy\", \"--buffer\", \"1\", \"--copies\", \"2\", \"--node\"";
    let smaller = text.replace("\"copy\", \"--node\"", options);
    assert_ne!(text, smaller, "{file} has no copies to make small");
    fs::create_dir_all(place.join("probes")).expect("a folder");
    fs::write(place.join("probes").join(file), smaller).expect("written");
}

/// Sweeps these nodes; their outcomes, the findings, and stderr.
fn swept(place: &Place, claims: &str, config: &str) -> (BTreeMap<String, String>, Value, String) {
    let folder = place.folder();
    fs::write(folder.join("claims.toml"), claims).expect("written");
    let config = format!("claims = \"claims.toml\"\nrun_dir = \"runs\"\n{config}");
    fs::write(folder.join("fabricgate.toml"), config).expect("written");
    let file = folder.join("fabricgate.toml").display().to_string();
    let words = ["burn-in", "--even-if-busy", "--no-progress", "--config", &file];
    let ran = place.run(&words);
    let run = fs::read_dir(folder.join("runs")).expect("runs").next().expect("a run");
    let verdicts = run.expect("readable").path().join("verdicts.json");
    let text = fs::read_to_string(verdicts).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let verdicts: Value = serde_json::from_str(&text).expect("a document");
    let nodes = verdicts["nodes"].as_array().expect("nodes").iter().map(|node| {
        let text = |key: &str| node[key].as_str().expect("text").to_owned();
        (text("node"), text("outcome"))
    });
    (nodes.collect(), verdicts["findings"].clone(), format!("{} {}", ran.out, ran.err))
}

/// The blamed GPUs, as `node:gpu`.
fn blamed(findings: &Value) -> Vec<String> {
    let gpu = |finding: &Value| {
        let locus = &finding["locus"];
        let of = |key: &str| locus[key].as_str().map(str::to_owned);
        Some(format!("{}:{}", of("node")?, locus["gpu"].as_u64()?))
    };
    findings.as_array().expect("findings").iter().filter_map(gpu).collect()
}

#[test]
fn a_node_with_only_the_driver_is_measured_and_its_lost_link_found() {
    let claims = "[[domain]]\nname = \"board\"\nnodes = \"n1\"\nplatform = \"hgx-h100\"\n\
                  gpus_per_node = 8\n";
    let machine = Machine::of(8).with("node = n1").with("pair = 395").with("port 5 = 350");
    let place = Place::of(&machine).with("PATH", Path::new("/nowhere"));
    small(place.folder(), "nvbandwidth-ce");
    let config = "[confirm]\nwait_s = 0\n[probes]\nrun = [\"nvbandwidth-ce\"]\ndir = \"probes\"\n";
    let (nodes, findings, stderr) = swept(&place, claims, config);
    assert_eq!(nodes["n1"], "degraded", "{stderr}");
    let mut blamed = blamed(&findings);
    blamed.dedup();
    assert_eq!(blamed, ["n1:5"], "{stderr}");
}

#[test]
fn nodes_of_a_rack_are_measured_across_and_the_gpu_with_a_slow_port_is_found() {
    let place = Place::of(&Machine::of(4)).with("PATH", Path::new("/nowhere"));
    let folder = place.folder();
    // A rack a thousand times slower: the driver of these tests moves every byte, and a round
    // copies for as long as the starts of nodes may differ.
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("thresholds/gb200-nvl72.toml");
    let platform = fs::read_to_string(built_in).expect("a platform");
    let slow = [
        ("gb200-nvl72", "slow-rack"),
        ("50.0", "0.05"),
        ("53.125", "0.053125"),
        ("NVIDIA GB200", "Stub H100"),
    ];
    let platform = slow.iter().fold(platform, |text, (from, to)| text.replacen(from, to, 2));
    fs::write(folder.join("slow-rack.toml"), platform).expect("written");
    // Each node sees the slow port: its own process copies to and from it.
    let port = |node: &str, port: &str| {
        let lines =
            [format!("node = {node}"), "pair = 0.78".to_owned(), format!("port {port} = 0.6")];
        let machine = lines.iter().fold(Machine::of(4), |machine, line| machine.with(line));
        fs::create_dir_all(folder.join(node)).expect("a folder");
        machine.write(&folder.join(node));
    };
    // With one other node either could be faulty: a finding about a node takes two.
    port("n1", "n2:1");
    port("n2", "1");
    port("n3", "n2:1");
    small(folder, "copy-lane");
    small(folder, "copy-pair");
    let stub = format!("FABRICGATE_STUB={}/{{node}}/machine.txt", folder.display());
    let program = assert_cmd::cargo::cargo_bin!("fabricgate").display().to_string();
    let config = format!(
        "thresholds = [\"slow-rack.toml\"]\n[confirm]\nwait_s = 0\n[probes]\n\
         run = [\"copy-lane\", \"copy-pair\"]\ndir = \"probes\"\n\
         [launcher]\nkind = \"command\"\ntemplate = [\"/usr/bin/env\", {stub:?}]\n\
         worker = {program:?}\n"
    );
    let claims = "[[domain]]\nname = \"rack\"\nnodes = \"n[1-3]\"\nplatform = \"slow-rack\"\n\
                  gpus_per_node = 4\n";
    let (nodes, findings, stderr) = swept(&place, claims, &config);
    let mut blamed = blamed(&findings);
    blamed.dedup();
    assert_eq!(blamed, ["n2:1"], "{stderr}");
    assert_eq!(nodes["n2"], "degraded", "{stderr}");
    assert_ne!(nodes["n1"], "degraded", "{stderr}");
    assert_ne!(nodes["n3"], "degraded", "{stderr}");
}
