//! The groups and problems derived from the facts of small machines.

use super::*;
use model::gpu_facts::{FabricHealth, HealthCondition, PlatformFacts, ProcessFacts};
use model::node_facts::{DriverFacts, MissingFact, NicNeighbour};

const UUID: &str = "5000a718-30a5-4f6d-8d9e-1d2c3b4a5968";

fn member(clique: u32) -> FabricFacts {
    FabricFacts {
        state: FabricState::Completed,
        status: Some("success".to_owned()),
        cluster_uuid: Some(UUID.to_owned()),
        clique_id: Some(clique),
        ..FabricFacts::default()
    }
}

fn gpu(index: u32, fabric: FabricFacts) -> GpuFacts {
    GpuFacts {
        index,
        product: Some("NVIDIA GB200".to_owned()),
        fabric: Some(fabric),
        platform: Some(PlatformFacts {
            chassis_serial: Some("1821225190042".to_owned()),
            slot: 7,
            ..PlatformFacts::default()
        }),
        processes: Some(Vec::new()),
        ..GpuFacts::default()
    }
}

fn node(name: &str, gpus: Vec<GpuFacts>) -> NodeFacts {
    NodeFacts {
        format: NODE_FACTS_FORMAT.to_owned(),
        hostname: Some(name.to_owned()),
        boot_id: Some("b-1".to_owned()),
        driver: Some(DriverFacts {
            version: Some("570.86.15".to_owned()),
            ..DriverFacts::default()
        }),
        gpus: Some(gpus),
        ..NodeFacts::default()
    }
}

fn rack(name: &str, cliques: [u32; 4]) -> NodeFacts {
    node(name, (0..).zip(cliques).map(|(index, clique)| gpu(index, member(clique))).collect())
}

fn pretty(facts: &NodeFacts) -> String {
    serde_json::to_string_pretty(facts).expect("json")
}

fn line(name: &str, facts: NodeFacts) -> String {
    let line = NodeFactsLine { node: name.to_owned(), facts };
    format!("{}\n", serde_json::to_string(&line).expect("json"))
}

fn messages(report: &SourceReport) -> Vec<String> {
    report.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn one_document_is_one_node_and_its_clique() {
    let text = pretty(&rack("n1", [7; 4]));
    assert!(recognises(&text));
    let report = read("n1.json", &text);
    assert_eq!(messages(&report), Vec::<String>::new());
    let of = &report.nodes[&NodeName::from("n1")];
    assert_eq!((of.gpus, of.driver.as_deref()), (Some(4), Some("570.86.15")));
    assert_eq!((of.rack.as_deref(), of.slot.as_deref()), (Some("1821225190042"), Some("7")));
    assert_eq!((of.product.as_deref(), of.busy), (Some("NVIDIA GB200"), Some(false)));
    assert_eq!((of.boot_id.as_deref(), of.aliases.len()), (Some("b-1"), 0));
    assert_eq!(of.fabric[3].clique(), Some(format!("{UUID}.7")));
    assert_eq!(of.fabric[3].basis, Some(ClaimBasis::Reported));
    let group = &report.groups[0];
    assert_eq!((group.kind, group.scheme.as_str()), (NodeGroupKind::Domain, "clique"));
    assert_eq!((group.name.clone(), group.gpus_per_node), (format!("{UUID}.7"), Some(4)));
    assert_eq!(group.basis, ClaimBasis::Reported);
}

#[test]
fn lines_of_many_nodes_are_grouped_under_the_collectors_names() {
    let text = ["a", "b", "c"].map(|name| {
        let clique = if name == "c" { 9 } else { 7 };
        line(&format!("rack-{name}"), rack(name, [clique; 4]))
    });
    let text = text.concat();
    assert!(recognises(&text));
    let report = read("facts.jsonl", &text);
    let of: Vec<(&str, usize)> =
        report.groups.iter().map(|group| (group.name.as_str(), group.nodes.len())).collect();
    assert_eq!(of, [(format!("{UUID}.7").as_str(), 2), (format!("{UUID}.9").as_str(), 1)]);
    assert_eq!(report.nodes[&NodeName::from("rack-a")].aliases, ["a"]);
}

#[test]
fn disagreeing_gpus_are_reported_and_keep_their_node_out_of_groups() {
    let report = read("n1.json", &pretty(&rack("n1", [7, 7, 8, 7])));
    assert!(report.groups.is_empty());
    assert_eq!(report.problems[0].kind, SourceProblemKind::Contradictory);
    let message = &report.problems[0].message;
    assert!(message.contains("GPU 0, 1, 3 in") && message.contains("GPU 2 in"), "{message}");
}

#[test]
fn an_unregistered_gpu_is_reported_and_keeps_its_node_out() {
    let mut facts = rack("n1", [7; 4]);
    let late = FabricFacts { state: FabricState::InProgress, ..FabricFacts::default() };
    facts.gpus.as_mut().expect("gpus")[1].fabric = Some(late);
    let report = read("n1.json", &pretty(&facts));
    assert!(report.groups.is_empty());
    assert!(report.problems[0].message.contains("GPU 1 is in progress"), "{:?}", report.problems);
    // Likewise a GPU that does not report its fabric at all.
    facts.gpus.as_mut().expect("gpus")[1].fabric = None;
    let report = read("n1.json", &pretty(&facts));
    assert!(report.groups.is_empty());
    assert!(report.problems[0].message.contains("1 do not report it"), "{:?}", report.problems);
}

#[test]
fn an_unsupported_fabric_gives_neither_a_problem_nor_a_group() {
    let alone = FabricFacts { state: FabricState::NotSupported, ..FabricFacts::default() };
    let report = read("n1.json", &pretty(&node("n1", vec![gpu(0, alone)])));
    assert_eq!((report.groups.len(), report.problems.len()), (0, 0));
    let fabric = &report.nodes[&NodeName::from("n1")].fabric[0];
    assert_eq!((fabric.state.as_deref(), fabric.clique()), (Some("not supported"), None));
    assert!(fabric.unhealthy.is_empty());
}

#[test]
fn a_failed_registration_is_unhealthy_and_not_a_clique() {
    let zeros = "00000000-0000-0000-0000-000000000000".to_owned();
    let failed = FabricFacts {
        status: Some("insufficient resources".to_owned()),
        cluster_uuid: Some(zeros.clone()),
        ..member(0)
    };
    let report = read("n1.json", &pretty(&node("n1", vec![gpu(0, failed)])));
    let fabric = &report.nodes[&NodeName::from("n1")].fabric[0];
    assert_eq!(fabric.unhealthy, ["registration ended with: insufficient resources"]);
    assert_eq!((fabric.clique(), report.groups.len()), (None, 0));
    // A successful registration without a multi-node fabric is fine.
    let inside = FabricFacts { cluster_uuid: Some(zeros), ..member(0) };
    let report = read("n1.json", &pretty(&node("n1", vec![gpu(0, inside)])));
    assert!(report.nodes[&NodeName::from("n1")].fabric[0].unhealthy.is_empty());
    assert!(report.groups.is_empty() && report.problems.is_empty());
}

#[test]
fn fabric_health_problems_are_listed_and_unknown_health_is_not() {
    let health = FabricHealth {
        degraded_bandwidth: HealthCondition::Yes,
        route_unhealthy: HealthCondition::Unknown,
        route_recovery: HealthCondition::No,
        incorrect_configuration: Some("too few NVLinks".to_owned()),
        ..FabricHealth::default()
    };
    let sick = FabricFacts { health: Some(health), ..member(7) };
    let report = read("n1.json", &pretty(&node("n1", vec![gpu(0, sick)])));
    let words = &report.nodes[&NodeName::from("n1")].fabric[0].unhealthy;
    assert_eq!(words, &["degraded bandwidth", "incorrect configuration: too few NVLinks"]);
}

#[test]
fn a_node_without_a_driver_has_an_unknown_number_of_gpus() {
    let why = "there is no NVIDIA driver".to_owned();
    let missing = MissingFact { what: "GPUs".to_owned(), why, ..MissingFact::default() };
    let facts = NodeFacts { gpus: None, missing: vec![missing], ..node("n1", Vec::new()) };
    let report = read("n1.json", &pretty(&facts));
    assert_eq!(report.nodes[&NodeName::from("n1")].gpus, None);
    assert!(report.problems[0].message.contains("no NVIDIA driver"), "{:?}", report.problems);
    let none = read("n1.json", &pretty(&node("n1", Vec::new())));
    assert_eq!((none.nodes[&NodeName::from("n1")].gpus, none.problems.len()), (Some(0), 0));
}

#[test]
fn mixed_products_and_slots_are_named() {
    let mut facts = rack("n1", [7; 4]);
    let gpus = facts.gpus.as_mut().expect("gpus");
    gpus[2].product = Some("NVIDIA GB300".to_owned());
    gpus[3].platform.as_mut().expect("a place").slot = 8;
    let report = read("n1.json", &pretty(&facts));
    let of = &report.nodes[&NodeName::from("n1")];
    assert_eq!((of.product.as_deref(), of.slot.as_deref()), (None, None));
    let messages = messages(&report);
    assert!(messages[0].contains("GPU 2 reports NVIDIA GB300"), "{messages:?}");
    assert!(messages[1].contains("GPU 3 reports 8"), "{messages:?}");
}

#[test]
fn a_process_on_one_gpu_makes_the_node_busy_and_a_missing_report_makes_it_unknown() {
    let mut facts = rack("n1", [7; 4]);
    let gpus = facts.gpus.as_mut().expect("gpus");
    gpus[1].processes = None;
    assert_eq!(is_busy(gpus), None);
    gpus[3].processes = Some(vec![ProcessFacts::default()]);
    assert_eq!(is_busy(gpus), Some(true));
    assert_eq!(is_busy(&[]), None);
}

#[test]
fn an_interface_has_its_switch() {
    let mut facts = rack("n1", [7; 4]);
    facts.nics.push(NicFacts {
        device: "mlx5_0".to_owned(),
        net_devices: vec!["eth1".to_owned()],
        mac: Some("02:00:00:00:00:01".to_owned()),
        rate_mbit_s: Some(400_000),
        ..NicFacts::default()
    });
    facts.neighbours.push(NicNeighbour {
        device_port: None,
        device: "eth1".to_owned(),
        switch: Some("leaf01".to_owned()),
        port: Some("Ethernet8".to_owned()),
    });
    let report = read("n1.json", &pretty(&facts));
    let nic = &report.nodes[&NodeName::from("n1")].nics[0];
    assert_eq!((nic.leaf.as_deref(), nic.port.as_deref()), (Some("leaf01"), Some("Ethernet8")));
    assert_eq!((nic.rate_mbit_s, nic.guid.as_deref()), (Some(400_000), Some("02:00:00:00:00:01")));
}

#[test]
fn a_broken_line_is_reported_with_its_position_and_leaves_the_others() {
    let good = line("n1", rack("n1", [7; 4]));
    let text = format!("{good}{{\"node\": \"n2\", oops}}\n{}", line("n3", rack("n3", [7; 4])));
    let report = read("facts.jsonl", &text);
    assert_eq!(report.nodes.len(), 2);
    let at = report.problems[0].at.clone().unwrap_or_default();
    assert!(at.starts_with("facts.jsonl:2:"), "{at}");
    assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
    let cut = read("facts.jsonl", &text[..text.len() - 9]);
    assert_eq!(cut.problems[1].kind, SourceProblemKind::Incomplete);
    assert_eq!(cut.nodes.len(), 1);
}

#[test]
fn a_node_listed_twice_contradicts_itself() {
    let text = format!("{}{}", line("n1", rack("a", [7; 4])), line("n1", rack("b", [8; 4])));
    let report = read("facts.jsonl", &text);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Contradictory);
    assert_eq!(report.groups[0].name, format!("{UUID}.7"));
}

#[test]
fn other_versions_other_kinds_and_empty_text_are_distinguished() {
    let newer = pretty(&rack("n1", [7; 4])).replace("node-facts/1", "node-facts/2");
    assert!(recognises(&newer));
    assert_eq!(read("x", &newer).problems[0].kind, SourceProblemKind::Unsupported);
    let verdicts = "{\"format\": \"fabricgate.verdicts/1\"}";
    assert!(!recognises(verdicts));
    assert_eq!(read("x", verdicts).problems[0].kind, SourceProblemKind::Malformed);
    assert!(!recognises("") && !recognises("SwitchName=s1 Nodes=n[1-4]"));
    assert_eq!(read("x", "").problems[0].kind, SourceProblemKind::Malformed);
    let wrong = pretty(&rack("n1", [7; 4])).replacen("\"index\": 0", "\"index\": \"first\"", 1);
    let report = read("x", &wrong);
    assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
    assert!(report.nodes.is_empty());
}

#[test]
fn a_document_in_another_order_is_recognised() {
    let sorted: BTreeMap<String, Value> =
        serde_json::from_str(&pretty(&rack("n1", [7; 4]))).expect("a document");
    let text = serde_json::to_string(&sorted).expect("json");
    // The GPUs come before the hostname and fill more than the beginning.
    assert!(recognises(&text.replacen('{', "{\"a\": \"", 1).replacen(
        "\"boot_id",
        "\",\"boot_id",
        1
    )));
    assert!(recognises(&text));
}

#[test]
fn names_with_control_characters_lose_them() {
    let report = read("x", &pretty(&rack("n\u{1b}1", [7; 4])));
    assert!(report.nodes.contains_key(&NodeName::from("n1")));
}

#[test]
fn a_truncated_document_is_incomplete_without_a_panic() {
    let first = line("n1", rack("n1", [7; 4]));
    let text = format!("{first}{}", pretty(&rack("n2", [7; 4])));
    for end in (0..text.len()).step_by(7).chain([first.len() - 1, first.len()]) {
        let report = read("x", &text[..end]);
        // Between the two, only the document separator is missing.
        let is_whole = [first.len() - 1, first.len()].contains(&end);
        assert_eq!(report.problems.is_empty(), is_whole, "cut at {end}: {:?}", report.problems);
        assert_eq!(report.nodes.len(), usize::from(first.len() <= end + 1), "cut at {end}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_causes_a_panic(text in "[{}\\[\\]\",:a-z0-9\\n\u{e9} ]{0,200}") {
        let _ = recognises(&text);
        let report = read("x", &text);
        proptest::prop_assert!(!report.problems.is_empty());
    }
}
