//! Tests of `topology_yaml`.

use super::*;
use model::hostlist;
use model::id::NodeName;
use model::source_report::NodeGroup;

fn group_lines(report: &SourceReport) -> Vec<String> {
    let line = |g: &NodeGroup| {
        let nodes = hostlist::fold(g.nodes.iter().map(NodeName::as_str));
        let topology = g.topology.as_deref().unwrap_or("-");
        format!("{topology} {} {:?} {} {nodes}", g.in_force, g.kind, g.name)
    };
    report.groups.iter().map(line).collect()
}

fn messages(report: &SourceReport) -> Vec<String> {
    report.problems.iter().map(ToString::to_string).collect()
}

const GOOD: &str = "---
# racks
- topology: racks
  cluster_default: true
  block:
    block_sizes: [3, 6]
    blocks:
      - block: r1
        nodes: tray[01-04]
      - block: r2
        nodes: tray[05-06]
      - block: spare
- topology: fabric
  cluster_default: false
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - {switch: leaf1, nodes: 'tray[01-02]'}
      - switch: leaf2
        nodes: [tray03, 'tray[04-06]']
- topology: none
  flat: true
- topology: circle
  ring: {rings: [{ring: r, nodes: 'tray[01-06]'}]}
";

#[test]
fn all_topologies_of_a_file_are_read_and_one_is_in_force() {
    for text in
        [GOOD.to_owned(), GOOD.replace('\n', "\r\n"), format!("\u{feff}{}", GOOD.trim_end())]
    {
        assert!(recognises(&text));
        let report = read("topology.yaml", &text);
        assert_eq!(
            group_lines(&report),
            [
                "racks true Domain r1 tray[01-04]",
                "racks true Domain r2 tray[05-06]",
                "racks true Domain spare ",
                "fabric false Switch spine tray[01-06]",
                "fabric false Leaf leaf1 tray[01-02]",
                "fabric false Leaf leaf2 tray[03-06]",
            ]
        );
        assert!(report.problems.is_empty(), "{:?}", messages(&report));
        assert_eq!(report.groups[0].at.as_deref(), Some("topology.yaml:8:16"));
        assert_eq!(report.groups[0].size, Some(3));
        assert_eq!(
            report.notes,
            [
                "topology racks: aggregates of 6 nodes are for scheduling, they are not domains",
                "topology racks: blocks without nodes: spare",
                "topology racks: fewer nodes than the base block size 3: r2 (2)",
                "topology racks: spare nodes above the base block size 3: r1 (4)",
                "topology none: flat, it makes no claim",
                "topology circle: ring topologies are ignored",
            ]
        );
    }
}

#[test]
fn scontrol_show_topoconf_reads_the_same() {
    let text = "%YAML 1.1\n---\n- topology: a\n  cluster_default: true\n  block:\n    \
                block_sizes:\n    - 2\n    blocks:\n    - block: b\n      nodes: n[1-2]\n  \
                flat: {}\n  ring: {}\n  torus3d: {}\n  tree: {}\n- topology: f\n  \
                cluster_default: false\n  block: {}\n  flat: true\n  tree: {}\n...\n";
    assert!(recognises(text));
    let report = read("scontrol show topoconf", text);
    assert_eq!(group_lines(&report), ["a true Domain b n[1-2]"]);
    assert!(report.problems.is_empty(), "{:?}", messages(&report));
}

#[test]
fn a_syntax_error_has_a_position_and_costs_only_the_rest() {
    let text = "- topology: a\n  block:\n    blocks:\n      - {block: b, nodes: 'n[1-2]'}\n\
                - topology: c\n  block: [1, 2\n- topology: d\n  flat: true\n";
    let report = read("t.yaml", text);
    assert_eq!(group_lines(&report), ["a true Domain b n[1-2]"]);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
    let at = report.problems[0].at.as_deref().expect("a place");
    assert!(at.starts_with("t.yaml:6") || at.starts_with("t.yaml:7"), "{at}");
    let report = read("t.yaml", "- topology: a\n  block:\n\tblocks: []\n");
    assert!(report.problems[0].at.as_deref().is_some_and(|at| at.starts_with("t.yaml:3:")));
}

#[test]
fn a_broken_topology_leaves_the_others_usable() {
    let good = "- topology: good\n  cluster_default: true\n  block:\n    blocks:\n      \
                - {block: b, nodes: n1}\n";
    let broken = [
        (
            "- topology: x\n  block: {blocks: [{block: b, nodes: n1}]}\n  flat: true\n",
            "several kinds",
        ),
        ("- topology: x\n  block: {blocks: 'b1=n1'}\n", "must be a list"),
        ("- topology: x\n  block: {block_sizes: [1]}\n", "blocks is missing"),
        ("- topology: x\n  block: {blocks: []}\n", "no block is defined"),
        ("- topology: x\n  tree: {switches: nothing}\n", "must be a list"),
        ("- topology: x\n", "no kind is given"),
        ("- topology: good\n  flat: true\n", "defined twice"),
        ("- topology: x\n  cluster_default: true\n  flat: true\n", "both cluster_default"),
        ("- topology: x\n  cluster_default: perhaps\n  flat: true\n", "true or false"),
        ("- block: {blocks: [{block: b, nodes: n1}]}\n", "without a name"),
        ("- topology:\n  flat: true\n", "without a name"),
        ("- just text\n", "expected a topology"),
        ("- topology: x\n  flat: true\n  flat: true\n", "given twice"),
    ];
    for (text, expected) in broken {
        for file in [format!("{good}{text}"), format!("{text}{good}")] {
            let report = read("t.yaml", &file);
            let is_second_of_its_name = expected == "defined twice" && file.starts_with(text);
            let is_read = group_lines(&report).iter().any(|line| line.ends_with("Domain b n1"));
            assert!(is_read || is_second_of_its_name, "{file}");
            let found = messages(&report);
            assert!(found.iter().any(|m| m.contains(expected)), "{expected:?} in {found:?}");
            assert!(report.problems.iter().all(|p| p.at.is_some()), "{found:?}");
        }
    }
}

#[test]
fn a_broken_entry_costs_only_itself() {
    let text = "- topology: x\n  block:\n    block_sizes: [4, 12, many]\n    blocks:\n    \
                - {block: a, nodes: 'n[1-'}\n    - {nodes: n2}\n    - {block: c, nodes: {a: b}}\n    \
                - {block: d, nodes: n4}\n    - {block: d, nodes: n5}\n";
    let report = read("t.yaml", text);
    assert_eq!(group_lines(&report), ["x true Domain d n4"]);
    let found = messages(&report).join("\n");
    for expected in [
        "t.yaml:3:26: topology x: block_sizes must be numbers",
        "t.yaml:3:18: topology x: block size 12 is not 4 times",
        "t.yaml:5:26: host list: this [ is never closed",
        "a block without a name is skipped",
        "expected a host list, found keys and values",
        "block d is defined twice",
    ] {
        assert!(found.contains(expected), "{expected:?} in {found}");
    }
}

#[test]
fn a_default_that_is_broken_leaves_nothing_in_force() {
    let report = read(
        "t.yaml",
        "- topology: x\n  cluster_default: true\n  block: {blocks: 7}\n\
         - topology: y\n  block: {blocks: [{block: b, nodes: n1}]}\n",
    );
    assert_eq!(group_lines(&report), ["y false Domain b n1"]);
    let report = read("t.yaml", "- topology: y\n  block: {blocks: {block: b, nodes: n1}}\n");
    assert_eq!(group_lines(&report), ["y true Domain b n1"]);
    assert!(report.notes[0].contains("no topology is cluster_default"));
}

#[test]
fn unknown_kinds_are_named_and_skipped() {
    let report = read("t.yaml", "- topology: x\n  dragonfly: {groups: 4}\n");
    assert_eq!(report.notes, ["topology x: no known kind (dragonfly); skipped"]);
    let report = read("t.yaml", "- topology: x\n  flat: true\n  colour: red\n");
    assert_eq!(report.notes[0], "topology x: unknown keys: colour");
}

#[test]
fn long_lists_and_alias_bombs_end() {
    let report = read(
        "t.yaml",
        "- topology: x\n  block:\n    blocks:\n      - {block: b, nodes: 'n[1-100000]'}\n",
    );
    assert_eq!(report.groups[0].nodes.len(), 100_000);
    let names: String = (0..50_000).map(|n| format!("        - n{n}\n")).collect();
    let text =
        format!("- topology: x\n  block:\n    blocks:\n      - block: b\n        nodes:\n{names}");
    assert_eq!(read("t.yaml", &text).groups[0].nodes.len(), 50_000);
    let mut bomb =
        "- topology: x\n  block:\n    blocks:\n      - &b {block: b, nodes: &n 'n[1-100000]'}\n"
            .to_owned();
    for number in 0..2_000 {
        bomb.push_str(&format!("      - {{block: c{number}, nodes: [*n, *n, *n]}}\n      - *b\n"));
    }
    let report = read("t.yaml", &bomb);
    assert!(messages(&report).iter().any(|m| m.contains("more than 1000000 names")));
    assert!(report.problems.len() <= 201);
}

#[test]
fn other_files_are_not_recognised() {
    for text in [
        "",
        "hello\n",
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  topology: x\n",
        "- name: a\n  value: b\n",
        "{\"topology\": 1",
        "topologyName: x\n",
        "BlockName=a Nodes=n1\n",
    ] {
        let wrong = recognises(text) && !text.starts_with('{');
        assert!(!wrong, "{text:?}");
    }
    assert!(recognises("[{topology: a, flat: true}]"));
    assert!(recognises("- cluster_default: true\n  topology: a\n  flat: true\n"));
    assert!(recognises("- topology: [broken\n"));
}

#[test]
fn an_empty_file_is_incomplete() {
    for text in ["", "---\n", "[]\n", "# nothing\n"] {
        let report = read("t.yaml", text);
        assert_eq!(report.problems[0].kind, SourceProblemKind::Incomplete, "{text:?}");
    }
    assert_eq!(read("t.yaml", "text\n").problems[0].kind, SourceProblemKind::Malformed);
}
