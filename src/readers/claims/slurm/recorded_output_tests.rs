//! Recorded answers of real Slurm daemons (`tests/recorded/slurm`), tried with every reader:
//! exactly one recognises each.

use std::fs;
use std::path::Path;

use super::*;
use model::hostlist;
use model::id::NodeName;
use model::source_report::{NodeGroup, NodeGroupKind, SourceProblemKind, SourceReport};

fn recorded(name: &str) -> String {
    let folder =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/recorded/slurm");
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The report and the name of the one reader that recognises it.
fn read(name: &str) -> (&'static str, SourceReport) {
    let text = recorded(name);
    let mut nothing = |file: &str| Err(format!("{file} is not here"));
    let mut found = Vec::new();
    if topology_yaml::recognises(&text) {
        found.push(("topology.yaml", topology_yaml::read(name, &text)));
    }
    if topology_conf::recognises(&text) {
        found.push(("topology.conf", topology_conf::read(name, &text, &mut nothing)));
    }
    if show_topology::recognises(&text) {
        found.push(("topology", show_topology::read(name, &text)));
    }
    if nodes::recognises(&text) {
        found.push(("nodes", nodes::read(name, &text)));
    }
    if partitions::recognises(&text) {
        found.push(("partitions", partitions::read(name, &text)));
    }
    if config::recognises(&text) {
        found.push(("config", config::read(name, &text)));
    }
    if sinfo::recognises(&text) {
        found.push(("sinfo", sinfo::read(name, &text)));
    }
    assert_eq!(
        found.len(),
        1,
        "{name}: {:?}",
        found.iter().map(|(reader_name, _)| reader_name).collect::<Vec<_>>()
    );
    found.remove(0)
}

fn domains(report: &SourceReport) -> Vec<String> {
    let line = |g: &NodeGroup| {
        let nodes = hostlist::fold(g.nodes.iter().map(NodeName::as_str));
        format!("{} {nodes} of {:?}", g.name, g.size)
    };
    report
        .groups
        .iter()
        .filter(|g| g.kind == NodeGroupKind::Domain && g.in_force)
        .map(line)
        .collect()
}

const WHOLE: [&str; 2] =
    ["block01 node[0001-0018] of Some(18)", "block02 node[0019-0036] of Some(18)"];

#[test]
fn files_and_controllers_of_both_versions_give_the_same_blocks() {
    for (name, reader) in [
        ("26.05-topology.yaml", "topology.yaml"),
        ("26.05-scontrol-show-topoconf.yaml", "topology.yaml"),
        ("24.11-topology.conf", "topology.conf"),
        ("24.11-scontrol-show-topology.txt", "topology"),
    ] {
        let (reader_name, report) = read(name);
        assert_eq!(reader_name, reader, "{name}");
        assert_eq!(domains(&report), WHOLE, "{name}");
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
    }
}

#[test]
fn a_node_that_was_moved_shows_in_the_topology_in_force() {
    let (_, report) = read("26.05-scontrol-show-topology-after-override.txt");
    assert_eq!(
        domains(&report),
        ["block01 node[0001-0017] of Some(18)", "block02 node[0018-0036] of Some(18)"]
    );
}

#[test]
fn drained_and_draining_are_distinguished() {
    let (reader_name, report) = read("26.05-nodes-drained-and-draining.json");
    assert_eq!(reader_name, "nodes");
    let [(_, drained), (_, draining)] = report.nodes.iter().collect::<Vec<_>>()[..] else {
        panic!("{report:?}")
    };
    assert_eq!((drained.state.join("+").as_str(), drained.busy), ("IDLE+DRAIN", Some(false)));
    assert_eq!((draining.state.join("+").as_str(), draining.busy), ("MIXED+DRAIN", Some(true)));
    assert_eq!(draining.reason.as_deref(), Some("hw ticket 4711: swap PSU"));
    assert_eq!(drained.gpus, Some(4));
    assert!(drained.aliases.is_empty(), "one host runs them all: {:?}", drained.aliases);
    assert_eq!(report.settings["SLURM_VERSION"], "26.05.5");
}

#[test]
fn text_and_json_of_one_version_give_the_same_nodes() {
    let (_, text) = read("24.11-scontrol-show-node-2.txt");
    let (_, json) = read("24.11-scontrol-show-node-2.json");
    assert_eq!(text.nodes, json.nodes);
    assert_eq!(text.nodes.len(), 2);
}

#[test]
fn a_reason_of_two_lines_is_whole_in_both_forms_of_text() {
    for name in ["26.05-node-reason-newline.txt", "26.05-node-reason-newline-oneliner.txt"] {
        let (_, report) = read(name);
        let node = &report.nodes[&NodeName::from("node0002")];
        let reason = "gate: line one\nline two with \"quotes\" and = signs";
        assert_eq!(node.reason.as_deref(), Some(reason), "{name}");
        assert_eq!(node.marks["reason by"], "root");
    }
}

#[test]
fn an_error_under_status_200_is_a_problem() {
    let (reader_name, report) = read("26.05-slurmrestd-v0.0.45-node-nosuch-http200.json");
    assert_eq!((reader_name, report.nodes.len()), ("nodes", 0));
    assert_eq!(report.problems[0].kind, SourceProblemKind::Incomplete);
}

#[test]
fn tables_of_sinfo_are_read_and_a_broken_one_is_reported() {
    let (reader_name, report) = read("26.05-sinfo-blocked.txt");
    assert_eq!((reader_name, report.nodes.len()), ("sinfo", 36));
    assert_eq!(report.nodes[&NodeName::from("node0023")].state, ["BLOCKED"]);
    assert_eq!(report.nodes[&NodeName::from("node0019")].busy, Some(true));
    let (_, report) = read("26.05-sinfo-R-appended.txt");
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.nodes.len(), 3);
}
