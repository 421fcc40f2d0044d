//! Tests of `topology_conf`.

use std::collections::BTreeMap;

use super::*;
use model::hostlist;
use model::source_report::NodeGroupKind;

fn read_alone(text: &str) -> SourceReport {
    read("topology.conf", text, &mut |file| Err(format!("no {file} here")))
}

fn group_lines(report: &SourceReport) -> Vec<String> {
    let line = |g: &model::source_report::NodeGroup| {
        let nodes = hostlist::fold(g.nodes.iter().map(NodeName::as_str));
        format!("{:?} {} {nodes}", g.kind, g.name)
    };
    report.groups.iter().map(line).collect()
}

fn kinds(report: &SourceReport) -> Vec<SourceProblemKind> {
    report.problems.iter().map(|p| p.kind).collect()
}

#[test]
fn blocks_are_read_with_sizes_comments_and_joined_lines() {
    let text = "# racks\r\nblockname=r1 nodes=tray[01-02,\\\r\n04] # one is out\r\n\r\n\
                BlockName = r2 \\\n  Nodes = r[1-2]t[1-2].lab\nBLOCKSIZES=2,4";
    let report = read_alone(text);
    assert_eq!(
        group_lines(&report),
        ["Domain r1 tray[01-02,04]", "Domain r2 r1t[1-2].lab,r2t[1-2].lab"]
    );
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(report.groups.iter().all(|g| g.size == Some(2) && g.in_force && g.scheme == "block"));
    assert_eq!(report.groups[0].at.as_deref(), Some("topology.conf:2:11"));
    assert_eq!(report.groups[1].at.as_deref(), Some("topology.conf:5:13"));
    assert!(recognises(text));
}

#[test]
fn switches_with_dots_and_ranges_are_a_tree() {
    let text = "\u{feff}SwitchName=sw.2.1 Switches=sw.1.[09-10] LinkSpeed=900\n\
                SwitchName=sw.1.09 Nodes=a[1-2]\nSwitchName=sw.1.10 Nodes=a[3-4]\n";
    let report = read_alone(text);
    assert_eq!(
        group_lines(&report),
        ["Switch sw.2.1 a[1-4]", "Leaf sw.1.09 a[1-2]", "Leaf sw.1.10 a[3-4]"]
    );
    assert_eq!(report.groups[1].above, ["sw.2.1"]);
    assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
}

#[test]
fn blocks_that_are_all_commented_out_are_incomplete() {
    let report =
        read_alone("# x\n#BlockName=a Nodes=n[1-2]\n# BlockName=b Nodes=n3\nBlockSizes=4\n");
    assert!(report.groups.is_empty());
    assert_eq!(kinds(&report), [SourceProblemKind::Incomplete]);
    assert!(report.problems[0].message.contains("a (topology.conf:2), b (topology.conf:3)"));
    assert!(recognises("#BlockName=a Nodes=n[1-2]\n"));
    let report = read_alone("BlockName=a Nodes=n1\n#BlockName=b Nodes=n2\n");
    assert_eq!(report.notes, ["commented out: b (topology.conf:2)"]);
    assert_eq!(kinds(&read_alone("\n \n# nothing\n")), [SourceProblemKind::Incomplete]);
}

#[test]
fn a_clique_in_the_comment_above_is_the_origin_of_a_block() {
    let report = read_alone(
        "# r1=uuid-a.7\nBlockName=r1 Nodes=n1\nBlockName=r2 Nodes=n2\n\
         # Nodes: 1\n# ClusterUUID and CliqueID: uuid-b\n# note: less\nBlockName=r3 Nodes=n3\n\
         # r4=uuid-c\n\nBlockName=r4 Nodes=n4\n# size=4\nBlockName=r5 Nodes=n5\n\
         # r6=uuid-d\n#BlockName=r6 Nodes=n6\nBlockName=r6 Nodes=n7\n",
    );
    let from = |from: &str| ClaimBasis::Copied { from: from.to_owned() };
    let bases: Vec<&ClaimBasis> = report.groups.iter().map(|g| &g.basis).collect();
    assert_eq!(
        bases,
        [
            &from("uuid-a.7, according to a comment"),
            &ClaimBasis::Asserted,
            &from("ClusterUUID uuid-b, according to a comment"),
            &ClaimBasis::Asserted,
            &ClaimBasis::Asserted,
            &ClaimBasis::Asserted,
        ]
    );
}

#[test]
fn includes_are_followed_and_cycles_are_reported() {
    let files: BTreeMap<&str, &str> = [
        ("a.conf", "BlockName=a Nodes=n1\ninclude b.conf\n"),
        ("b.conf", "BlockName=b Nodes=n2\nInclude a.conf\nInclude topology.conf\n"),
    ]
    .into();
    let mut opened = Vec::new();
    let report = read("topology.conf", "Include a.conf\nINCLUDE gone.conf\n", &mut |file| {
        opened.push(file.to_owned());
        files.get(file).map(|text| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    });
    assert_eq!(opened, ["a.conf", "b.conf", "gone.conf"]);
    assert_eq!(group_lines(&report), ["Domain a n1", "Domain b n2"]);
    assert_eq!(report.groups[1].at.as_deref(), Some("b.conf:1:11"));
    assert_eq!(
        kinds(&report),
        [
            SourceProblemKind::Contradictory,
            SourceProblemKind::Contradictory,
            SourceProblemKind::Missing
        ]
    );
    assert_eq!(report.problems[0].at.as_deref(), Some("b.conf:2:9"));
    assert_eq!(report.problems[2].at.as_deref(), Some("topology.conf:2:9"));
}

#[test]
fn endless_includes_stop() {
    let mut count = 0;
    let report = read("topology.conf", "Include 0\nBlockName=a Nodes=n1\n", &mut |_| {
        count += 1;
        Ok(format!("Include {count}\nInclude x{count}\n"))
    });
    assert_eq!(group_lines(&report), ["Domain a n1"]);
    assert!(count < MAX_FILES);
    assert!(kinds(&report).contains(&SourceProblemKind::Unsupported));
}

#[test]
fn port_guids_are_not_nodes() {
    let report = read_alone(
        "SwitchName=a Nodes=0x155dfffd33ff01,0x155dfffd33ff02\nSwitchName=r Switches=a\n",
    );
    assert!(report.groups.is_empty());
    assert_eq!(kinds(&report), [SourceProblemKind::Unsupported]);
    assert!(report.problems[0].message.contains("GUIDs"));
}

#[test]
fn rings_are_named_and_skipped() {
    let report = read_alone("RingName=r0 Nodes=n[1-8]\nRingName=r1 Nodes=n[9-16]\n");
    assert_eq!(report.notes, ["rings are ignored: r0, r1"]);
    assert!(report.groups.is_empty() && report.problems.is_empty());
}

#[test]
fn a_bad_line_costs_only_itself() {
    let report = read_alone(
        "BlockName=a Nodes=n[1-\nBlockName=b Nodes=n2 Colour=red\nwhat is this\nNodeName=x\n\
         BlockName= Nodes=n9\nSwitchName=s Nodes=n[5-6] Switches=t\nBlockSizes=two\n",
    );
    let groups: Vec<NodeGroupKind> = report.groups.iter().map(|g| g.kind).collect();
    assert_eq!(groups, [NodeGroupKind::Domain, NodeGroupKind::Switch]);
    let places: Vec<&str> = report.problems.iter().filter_map(|p| p.at.as_deref()).collect();
    for line in ["1:20", "2:29", "3:1", "4:10", "5:11", "6:12", "7:12"] {
        let at = format!("topology.conf:{line}");
        assert!(places.contains(&at.as_str()), "{at} in {:#?}", report.problems);
    }
}

#[test]
fn a_controllers_answer_is_not_recognised() {
    assert!(!recognises("BlockName=b BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"));
    assert!(!recognises("SwitchName=s Level=0 LinkSpeed=1 Nodes=n1\n"));
    assert!(!recognises("NodeName=n1 Arch=x86_64\n"));
    assert!(!recognises("") && !recognises("hello\n") && !recognises("key: value\n"));
}
