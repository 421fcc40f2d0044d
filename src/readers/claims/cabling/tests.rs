//! Valid and invalid cabling files in both formats.

use super::*;
use model::source_report::{NodeGroupKind, NodeReport, SourceProblemKind};

const EXAMPLE: &str = include_str!("../../../../examples/cabling.csv");

fn node_report<'s>(report: &'s SourceReport, node: &str) -> &'s NodeReport {
    report.nodes.get(&node.into()).unwrap_or_else(|| panic!("{node}: {report:?}"))
}

fn groups(
    report: &SourceReport,
    kind: NodeGroupKind,
) -> Vec<(String, Option<String>, Vec<String>)> {
    let of_kind = report.groups.iter().filter(|group| group.kind == kind);
    of_kind
        .map(|group| {
            let nodes = group.nodes.iter().map(ToString::to_string).collect();
            (group.name.clone(), group.rail.clone(), nodes)
        })
        .collect()
}

/// The only problem: its kind, its place and its message.
fn complaint(text: &str) -> (SourceProblemKind, String, String) {
    let report = read("c.csv", text);
    let [problem] = report.problems.as_slice() else { panic!("{text}: {:?}", report.problems) };
    (problem.kind, problem.at.clone().unwrap_or_default(), problem.message.clone())
}

#[test]
fn the_example_lists_every_cable() {
    assert!(recognises(EXAMPLE));
    let report = read("examples/cabling.csv", EXAMPLE);
    assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
    let second = node_report(&report, "node0002");
    assert_eq!((second.rack.as_deref(), second.slot.as_deref()), (Some("r01"), Some("2")));
    let [first_nic, second_nic] = second.nics.as_slice() else { panic!("{second:?}") };
    assert_eq!(first_nic.device.as_deref(), Some("mlx5_0"));
    assert_eq!(second_nic.leaf.as_deref(), Some("leaf-r1"));
    assert_eq!(second_nic.port.as_deref(), Some("1/2"));
    assert_eq!(second_nic.at.as_deref(), Some("examples/cabling.csv:7"));
    let both = vec!["node0001".to_owned(), "node0002".to_owned()];
    assert_eq!(
        groups(&report, NodeGroupKind::Leaf),
        [
            ("leaf-r0".to_owned(), Some("rail0".to_owned()), both.clone()),
            ("leaf-r1".to_owned(), Some("rail1".to_owned()), both.clone())
        ]
    );
    assert_eq!(groups(&report, NodeGroupKind::Rack), [("r01".to_owned(), None, both)]);
    let rails: Vec<_> = report.rails.iter().map(|r| (r.name.as_str(), r.rdma.as_deref())).collect();
    assert_eq!(rails, [("rail0", Some("mlx5_0")), ("rail1", Some("mlx5_1"))]);
}

#[test]
fn a_spreadsheet_with_semicolons_reads_the_same() {
    let text = "\u{feff}\"Port\";\"LEAF\";\"Owner\";\"Node\"\r\n\r\n# a remark\r\n1;\"leaf 1\";me;n1\r\n2;leaf 1;;n2";
    assert!(recognises(text));
    let report = read("c.csv", text);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.notes, ["ignored columns: Owner"]);
    assert_eq!(node_report(&report, "n1").nics[0].leaf.as_deref(), Some("leaf 1"));
    assert_eq!(node_report(&report, "n2").nics[0].at.as_deref(), Some("c.csv:5"));
    assert!(recognises("node\tleaf\nn1\tl1\n"));
}

#[test]
fn a_line_may_list_many_nodes() {
    let report = read("c.csv", "node,rack,rail,leaf\n\"n[1-3,5]\",r1,0,l0\n");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(groups(&report, NodeGroupKind::Leaf)[0].2, ["n1", "n2", "n3", "n5"]);
    assert_eq!(groups(&report, NodeGroupKind::Rack)[0].2.len(), 4);
    let (kind, at, message) = complaint("node,leaf,port\nn[1-2],l1,7\n");
    assert_eq!((kind, at.as_str()), (SourceProblemKind::Contradictory, "c.csv:2"));
    assert_eq!(
        message,
        "column port: \"7\" for 2 nodes, expected one node per line where it is set"
    );
}

#[test]
fn contradictions_name_both_lines() {
    let contradiction = |text: &str, at: &str, words: &[&str]| {
        let (kind, place, message) = complaint(text);
        assert_eq!((kind, place.as_str()), (SourceProblemKind::Contradictory, at), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    contradiction("node,rack,slot\nn1,r1,1\nn1,r1,2\n", "c.csv:3", &["slot \"2\"", "line 2"]);
    contradiction("node,rack\n\nn1,r1\n# x\nn1,r2\n", "c.csv:5", &["rack \"r2\"", "line 3"]);
    let twice = "node,leaf,port\nn1,l1,1\nn2,l1,2\nn3,l1,1\n";
    contradiction(twice, "c.csv:4", &["port \"1\" of leaf \"l1\"", "n3", "n1 on line 2"]);
    contradiction("node,rail,leaf\nn1,0,a\nn1,0,b\n", "c.csv:3", &["rail \"0\"", "line 2"]);
    contradiction("node,device,leaf\nn1,e0,a\nn1,e0,b\n", "c.csv:3", &["device \"e0\""]);
    contradiction("node,leaf,leaf\nn1,a,b\n", "c.csv:1", &["column leaf occurs twice"]);
}

#[test]
fn a_contradiction_leaves_the_rest_usable() {
    let report = read("c.csv", "node,rack,leaf\nn1,r1,a\nn1,r2,b\nn2,r1,a\n");
    assert_eq!(report.problems.len(), 1);
    assert_eq!(node_report(&report, "n1").rack.as_deref(), Some("r1"));
    assert_eq!(node_report(&report, "n1").nics.len(), 2);
    assert_eq!(groups(&report, NodeGroupKind::Rack)[0].2, ["n1", "n2"]);
}

#[test]
fn malformed_lines_are_reported_with_line_and_column() {
    let malformed = |text: &str, at: &str, words: &str| {
        let (kind, place, message) = complaint(text);
        assert_eq!((kind, place.as_str()), (SourceProblemKind::Malformed, at), "{message}");
        assert!(message.contains(words), "{message}");
    };
    malformed("host,leaf\nn1,l1\n", "c.csv:1", "expected column node and at least one other");
    malformed("", "c.csv:1", "empty");
    malformed("node,leaf\n,l1\n", "c.csv:2", "column node: empty");
    malformed("node,leaf\n\"n[1-\",l1\n", "c.csv:2", "column node: \"n[1-\": character 2");
    malformed("node,leaf\nn[1,2],l1,\n", "c.csv:2", "needs quotes");
    malformed("node,leaf,port\nn1,,4\n", "c.csv:2", "column port: a port without a leaf");
    malformed("node,rack,leaf\nn1,\"a\nb\",l\n../x,r,l\n", "c.csv:4", "column node");
    let (kind, at, _) = complaint("node,leaf\nn1,\n");
    assert_eq!((kind, at.as_str()), (SourceProblemKind::Incomplete, "c.csv:2"));
}

#[test]
fn leaves_of_several_rails_and_partial_rails_claim_none() {
    let report = read("c.csv", "node,rail,device,leaf\nn1,0,e0,a\nn1,1,e1,a\nn2,0,e9,a\n");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(groups(&report, NodeGroupKind::Leaf)[0].1, None);
    // Rail 0 is on two devices, rail 1 is not on every node.
    assert!(report.rails.is_empty(), "{:?}", report.rails);
}

const DOCUMENT: &str = "[[leaf]]\nname = \"l0\"\nrail = 0\nnodes = \"n[1-2]\"\n\n\
    [[node]]\nname = \"n1\"\nrack = \"r1\"\nslot = 3\n\
    [[node.nic]]\ndevice = \"eth1\"\nrail = 0\nleaf = \"l0\"\nport = \"1/1\"\n\
    [[node]]\nname = \"n2\"\n[[node.nic]]\ndevice = \"eth1\"\nrail = 0\nleaf = \"l0\"\nport = 7\n";

#[test]
fn toml_reads_the_same_as_csv() {
    assert!(recognises(DOCUMENT));
    let report = read("c.toml", DOCUMENT);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let first = node_report(&report, "n1");
    assert_eq!((first.rack.as_deref(), first.slot.as_deref()), (Some("r1"), Some("3")));
    assert_eq!(node_report(&report, "n2").nics[0].port.as_deref(), Some("7"));
    let leaf = &groups(&report, NodeGroupKind::Leaf)[0];
    assert_eq!((leaf.1.as_deref(), leaf.2.len()), (Some("0"), 2));
    assert_eq!(report.rails[0].device.as_deref(), Some("eth1"));
}

#[test]
fn mistakes_in_toml_are_reported_with_their_position() {
    let error = |text: &str| {
        let (kind, at, message) = complaint(text);
        format!("{kind:?} {at} {message}")
    };
    let typo = error("[[node]]\nname = \"n1\"\nrak = \"r\"\n");
    assert!(typo.starts_with("Malformed c.csv:3:1 ") && typo.contains("rak"), "{typo}");
    let cable = DOCUMENT.replace("nodes = \"n[1-2]\"", "nodes = \"n1\"");
    let lacks = error(&cable);
    assert!(lacks.starts_with("Contradictory c.csv:17 ") && lacks.contains("lacks it"), "{lacks}");
    let rail = error(&DOCUMENT.replace("rail = 0\nnodes", "rail = 5\nnodes"));
    assert!(rail.contains("serves rail \"5\""), "{rail}");
    let twice = error("[[node]]\nname=\"a\"\nrack=1\n[[leaf]]\nname=1\n[[leaf]]\nname=1\n");
    assert!(twice.starts_with("Contradictory c.csv:6 "), "{twice}");
}

#[test]
fn claims_and_other_tables_are_not_recognised_as_cabling() {
    assert!(!recognises("[[domain]]\nname = \"a\"\nnodes = \"n1\"\n[[node]]\n"));
    assert!(!recognises("run,domain,stage,testcase,src_node,src_gpu\n"));
    assert!(!recognises("") && !recognises("node\nn1\n") && !recognises("\u{0}\u{1}"));
}

#[test]
fn host_lists_cannot_make_a_small_file_a_large_cluster() {
    let mut text = "node,rack\n".to_owned();
    for rack in 0..40 {
        text.push_str(&format!("n[1-100000],r{rack}\n"));
    }
    let report = read("c.csv", &text);
    assert_eq!(report.nodes.len(), 100_000);
    assert!(
        report
            .problems
            .iter()
            .any(|p| p.kind == SourceProblemKind::Unsupported || p.message.contains("omitted"))
    );
}
