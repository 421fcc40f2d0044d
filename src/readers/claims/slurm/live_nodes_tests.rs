//! Nodes for actions, as recorded from two Slurm versions (`tests/recorded/slurm`), and malformed
//! ones.

use std::fs;
use std::path::Path;

use super::*;

fn recorded(name: &str) -> SchedulerSnapshot {
    let folder =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/recorded/slurm");
    let text = fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{error}"));
    read(name, &text)
}

fn node<'a>(live: &'a SchedulerSnapshot, name: &str) -> &'a SchedulerNode {
    &live.nodes[&NodeName::from(name)]
}

/// One node with these keys in addition to its name.
fn read_item(keys: &str) -> SchedulerSnapshot {
    read("f", &format!(r#"{{"nodes":[{{"name":"n1",{keys}}}]}}"#))
}

#[test]
fn drained_and_draining_nodes_are_read() {
    let live = recorded("26.05-nodes-drained-and-draining.json");
    assert_eq!(live.troubles, Vec::<String>::new());
    let states: Vec<String> = live.nodes.values().map(|it| it.state.join("+")).collect();
    assert_eq!(states, ["IDLE+DRAIN", "MIXED+DRAIN"]);
    let drained = live.nodes.values().next().expect("a node");
    assert!(drained.reason.is_some() && drained.reason_at.is_some() && drained.booted.is_some());
    assert_eq!(drained.reason_by.as_deref(), Some("root"));
    assert_eq!(drained.active_features, ["gb200"]);
    assert_eq!(drained.topology, None, "an empty text is none");
    assert!(drained.after_reboot.is_empty(), "INVALID is none");
    let draining = live.nodes.values().nth(1).expect("a node");
    assert!(0 < draining.allocated_cpus.expect("a number"));
}

#[test]
fn an_older_slurm_leaves_keys_out() {
    let live = recorded("24.11-scontrol-show-node-2.json");
    assert_eq!((live.nodes.len(), live.troubles.len()), (2, 0), "{:?}", live.troubles);
    assert!(live.nodes.values().all(|it| it.topology.is_none()));
}

#[test]
fn lines_of_a_reason_stay_lines() {
    let live = recorded("26.05-node-reason-newline.json");
    let reasons: Vec<&str> = live.nodes.values().filter_map(|it| it.reason.as_deref()).collect();
    assert!(reasons.iter().any(|it| it.contains('\n')), "{reasons:?}");
}

#[test]
fn a_reason_that_slurm_added_to_is_read_whole() {
    let live = recorded("26.05-nodes-not-responding-reason-appended.json");
    assert_eq!(live.troubles, Vec::<String>::new());
    let found =
        live.nodes.values().find(|it| it.has_state("DOWN") && it.has_state("DRAIN")).expect("one");
    assert!(found.reason.as_deref().expect("a reason").contains(" : Not responding"));
    assert_eq!(found.reason_by.as_deref(), Some("slurm"));
}

#[test]
fn slurmrestd_writes_nodes_alike() {
    for name in
        ["26.05-slurmrestd-v0.0.45-node0003.json", "24.11-slurmrestd-v0.0.42-nodes-2of36.json"]
    {
        let live = recorded(name);
        assert!(!live.nodes.is_empty() && live.troubles.is_empty(), "{name}: {live:?}");
    }
}

#[test]
fn a_failure_with_http_200_is_a_trouble() {
    let live = recorded("26.05-slurmrestd-v0.0.45-node-nosuch-http200.json");
    assert!(live.nodes.is_empty());
    assert!(live.troubles[0].contains("Failure to query node nosuch"), "{:?}", live.troubles);
    let none = read("f", r#"{"nodes":[],"warnings":[{"description":"No nodes to dump"}]}"#);
    assert_eq!(none, SchedulerSnapshot::default(), "a missing node is not a trouble");
}

#[test]
fn a_state_that_cannot_be_read_is_never_idle() {
    for keys in [
        r#""state":null"#,
        r#""state":[]"#,
        r#""state":7"#,
        r#""state":["IDLE",7]"#,
        r#""state":["IDLE",null]"#,
        r#""state":["IDLE",{"flag":"DRAIN"}]"#,
        r#""state":{"IDLE":true}"#,
        r#""state":"""#,
        r#""state":"idle","state_flags":{"DRAIN":true}"#,
        r#""reason":"x""#,
    ] {
        let live = read_item(keys);
        assert_eq!(node(&live, "n1").state, ["UNKNOWN"], "{keys}");
        assert_eq!(live.troubles.len(), 1, "{keys}");
        assert!(live.troubles[0].starts_with("f: nodes[0] (n1): `state` is"), "{live:?}");
    }
    // An unknown flag is kept, so that decisions can take it into account.
    assert_eq!(
        node(&read_item(r#""state":["IDLE","BRAND_NEW"]"#), "n1").state,
        ["IDLE", "BRAND_NEW"]
    );
}

#[test]
fn a_reason_of_another_type_still_counts_as_another_users() {
    let live = read_item(r#""state":["IDLE","DRAIN"],"reason":{"text":"mine"}"#);
    assert_eq!(node(&live, "n1").reason.as_deref(), Some(r#"{"text":"mine"}"#));
    assert_eq!(live.troubles.len(), 1);
    let live = read_item(r#""state":["IDLE","DRAIN"],"reason":"N/A""#);
    assert_eq!(node(&live, "n1").reason.as_deref(), Some("N/A"), "a user wrote it");
    let live = read_item(r#""state":["IDLE","DRAIN"],"reason":"""#);
    assert_eq!(node(&live, "n1").reason, None);
}

#[test]
fn the_reason_of_a_drain_that_is_over_is_none() {
    let keys = |state: &str| format!(r#""state":{state},"reason":"old","reason_set_by_user":"x""#);
    for over in [r#"["IDLE"]"#, r#"["MIXED","NOT_RESPONDING"]"#, r#"["ALLOCATED","RESERVED"]"#] {
        let live = read_item(&keys(over));
        let node = node(&live, "n1");
        assert_eq!((&node.reason, &node.reason_by), (&None, &None), "{over}");
    }
    for holds in [r#"["IDLE","DRAIN"]"#, r#"["DOWN"]"#, r#"["IDLE","NEW"]"#, "[]"] {
        assert_eq!(node(&read_item(&keys(holds)), "n1").reason.as_deref(), Some("old"), "{holds}");
    }
}

#[test]
fn values_of_another_type_are_reported_and_the_rest_stays() {
    let live = read_item(
        r#""state":["IDLE"],"boot_time":"yesterday","features":[1,"a"],"active_features":"a,b",
           "comment":5,"alloc_cpus":-1,"extra":"{}""#,
    );
    let node = node(&live, "n1");
    assert_eq!((node.booted, node.allocated_cpus), (None, None));
    assert_eq!(
        (node.available_features.join(","), node.active_features.join(",")),
        ("a".to_owned(), "a,b".to_owned())
    );
    assert_eq!((node.comment.as_str(), node.extra.as_str()), ("", "{}"));
    assert_eq!(live.troubles.len(), 4, "{:?}", live.troubles);
    assert!(live.troubles.iter().all(|it| it.starts_with("f: nodes[0] (n1): ")));
}

#[test]
fn times_are_read_in_every_form() {
    for (written, read) in [
        (r#"{"set":true,"infinite":false,"number":7}"#, Some(7)),
        (r#"{"set":false,"infinite":false,"number":7}"#, None),
        (r#"{"set":true,"infinite":true,"number":7}"#, None),
        (r#"{"set":true,"infinite":false,"number":0}"#, None),
        ("9", Some(9)),
        ("null", None),
    ] {
        let live = read_item(&format!(r#""state":["IDLE"],"boot_time":{written}"#));
        assert_eq!((node(&live, "n1").booted, live.troubles.len()), (read, 0), "{written}");
    }
}

#[test]
fn two_nodes_of_one_name_that_differ_are_neither() {
    let live = read(
        "f",
        r#"{"nodes":[{"name":"n1","state":["IDLE"]},{"name":"n1","state":["DOWN"]},
                     {"name":"n2","state":["IDLE"]},{"name":"n2","state":["IDLE"]},
                     {"name":"n[1-2]","state":["IDLE"]},{"state":["IDLE"]},7]}"#,
    );
    assert_eq!(node(&live, "n1").state, ["UNKNOWN"]);
    assert_eq!(node(&live, "n2").state, ["IDLE"]);
    assert_eq!((live.nodes.len(), live.troubles.len()), (2, 4), "{:?}", live.troubles);
}

#[test]
fn invalid_answers_are_troubles() {
    for text in ["", "{", "null", "[]x", "{\"nodes\":7}", "{}", "Node n1 not found", "\u{fffd}"] {
        let live = read("f", text);
        assert!(live.nodes.is_empty(), "{text}");
        assert!(!live.troubles.is_empty(), "{text}");
    }
    // Bytes that were not UTF-8 were replaced earlier, and are part of a reason.
    let live = read_item("\"state\":[\"IDLE\",\"DRAIN\"],\"reason\":\"a\u{fffd}b\"");
    assert_eq!(node(&live, "n1").reason.as_deref(), Some("a\u{fffd}b"));
}
