//! Nodes in JSON, from `scontrol show node --json` and slurmrestd.

use serde_json::Value;

use super::super::{json_response, node_states};
use super::SlurmNodeListing;
use model::source_report::{SourceProblemKind, SourceReport};

/// Keys of other answers, which may contain nodes too.
const OTHER_ANSWER_KEYS: [&str; 5] = ["sinfo", "partitions", "jobs", "reservations", "items"];

/// Keys that only Slurm's nodes have.
const NODE_KEYS: [&str; 3] = ["slurmd_start_time", "next_state_after_reboot", "real_memory"];

pub(super) fn recognises(text: &str) -> bool {
    let Some(keys) = json_response::top_level_keys(text) else {
        let begins = json_response::starts_with_key(text, "nodes")
            || json_response::starts_with_key(text, "architecture");
        return begins && NODE_KEYS.iter().any(|key| text.contains(key));
    };
    let has = |key: &str| keys.contains(key);
    let is_slurm = NODE_KEYS.iter().any(|key| text.contains(key)) || text.contains("data_parser");
    let is_node = has("name") && has("state") && NODE_KEYS.iter().any(|key| has(key));
    let is_error = has("errors") && has("meta") && text.contains("node");
    let is_other = OTHER_ANSWER_KEYS.iter().any(|key| keys.contains(*key));
    is_slurm && (is_node || (!is_other && (has("nodes") || is_error)))
}

pub(super) fn read(report: &mut SourceReport, place: &str, text: &str) -> Vec<SlurmNodeListing> {
    let Some(answer) = json_response::read(report, place, text) else { return Vec::new() };
    let nodes = node_items(report, &answer);
    let mut listings = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        match json_response::as_text(&node["name"]) {
            Some(name) => listings.push(parse_listing(name, index, node)),
            None => {
                let at = format!("nodes[{index}]");
                report.push_problem(
                    SourceProblemKind::Malformed,
                    at,
                    "a node without a name is skipped",
                );
            }
        }
    }
    listings
}

/// The nodes of an answer, in its order.
pub(in crate::claims::slurm) fn node_items<'a>(
    report: &mut SourceReport,
    answer: &'a Value,
) -> &'a [Value] {
    match answer {
        Value::Array(nodes) => nodes,
        Value::Object(keys) => match keys.get("nodes") {
            Some(Value::Array(nodes)) => nodes,
            Some(_) => {
                let message = "`nodes` is not a list of nodes";
                report.push_problem(SourceProblemKind::Malformed, None, message);
                &[]
            }
            None if keys.contains_key("name") => std::slice::from_ref(answer),
            None => {
                if report.problems.is_empty() {
                    let message = "the answer has no `nodes`, and no error that explains it";
                    report.push_problem(SourceProblemKind::Incomplete, None, message);
                }
                &[]
            }
        },
        _ => {
            report.push_problem(SourceProblemKind::Malformed, None, "it is not a list of nodes");
            &[]
        }
    }
}

fn parse_listing(name: &str, index: usize, node: &Value) -> SlurmNodeListing {
    let text = |key: &str| json_response::as_text(&node[key]).map(str::to_owned);
    SlurmNodeListing {
        name: name.to_owned(),
        at: format!("nodes[{index}]"),
        hostname: text("hostname"),
        address: text("address"),
        instance: text("instance_id"),
        instance_type: text("instance_type"),
        gres: text("gres"),
        tres: text("tres"),
        features: json_response::as_words(&node["features"]),
        active: json_response::as_words(&node["active_features"]),
        comment: text("comment"),
        extra: text("extra"),
        reason: text("reason"),
        reason_by: text("reason_set_by_user"),
        reservation: text("reservation"),
        state: parse_state(node),
        allocated_cpus: json_response::as_number(&node["alloc_cpus"]),
        topology: text("topology").or_else(|| text("topology_str")),
        partitions: json_response::as_words(&node["partitions"]),
        version: text("version"),
    }
}

/// A list of flags since v0.0.40; before, one flag and `state_flags` next to it.
pub(in crate::claims::slurm) fn parse_state(node: &Value) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let flags = json_response::as_words(&node["state_flags"]);
    let many = 1 < json_response::as_list(&node["state"]).len() || !flags.is_empty();
    for word in json_response::as_words(&node["state"]).into_iter().chain(flags) {
        // One flag of several is part of a combination.
        let combined = if many { format!("{word}+") } else { word };
        for word in node_states::split_state(&combined) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::read as read_nodes;
    use super::*;
    use model::id::NodeName;
    use model::source_report::{NodeGroupKind, NodeReport};

    const NEW: &str = r#"{"nodes":[
        {"name":"tray01","hostname":"tray01.lab","address":"10.1.0.1","state":["MIXED","DRAIN"],
         "gres":"gpu:gb200:4(S:0-1)","tres":"cpu=4,gres/gpu=4","features":["gb200","row2"],
         "active_features":["gb200"],"comment":"rack visit","extra":"{\"a\":1}",
         "reason":"psu: swap","reason_set_by_user":"ann","reservation":"maint7",
         "alloc_cpus":2,"topology":"racks:r2","partitions":["main","probe"],"version":"26.05.5",
         "instance_id":"","boot_time":{"set":true,"infinite":false,"number":1795233402},
         "slurmd_start_time":{"set":true,"infinite":false,"number":1}},
        {"name":"tray02","state":["SHINY"],"topology":"","gres":"","alloc_cpus":0}],
        "meta":{"plugin":{"data_parser":"data_parser/v0.0.45"},
                "slurm":{"release":"26.05.5","cluster":"lab"}},"errors":[],"warnings":[]}"#;

    fn node(report: &SourceReport, name: &str) -> NodeReport {
        report.nodes[&NodeName::from(name)].clone()
    }

    #[test]
    fn a_node_is_read_with_all_fields_for_a_gate() {
        assert!(recognises(NEW));
        let report = read_nodes("f", NEW);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let first = node(&report, "tray01");
        assert_eq!((first.gpus, first.product.as_deref()), (Some(4), Some("gb200")));
        assert_eq!(first.aliases, ["tray01.lab", "10.1.0.1"]);
        assert_eq!(first.state, ["MIXED", "DRAIN"]);
        assert_eq!((first.busy, first.reason.as_deref()), (Some(true), Some("psu: swap")));
        assert!(first.boot_id.is_none(), "a boot time is not a boot id");
        assert_eq!(first.marks["features"], "gb200,row2");
        assert_eq!(first.marks["active features"], "gb200");
        assert_eq!(first.marks["reason by"], "ann");
        assert_eq!(first.marks["reservation"], "maint7");
        assert_eq!(first.marks["partitions"], "main,probe");
        let second = node(&report, "tray02");
        assert_eq!((second.gpus, second.busy), (None, None));
        assert_eq!(second.state, ["SHINY"]);
        assert_eq!(report.settings["slurmd"], "26.05.5");
        let [group] = report.groups.as_slice() else { panic!("{:?}", report.groups) };
        assert_eq!((group.kind, group.name.as_str()), (NodeGroupKind::Domain, "r2"));
        assert_eq!(group.topology.as_deref(), Some("racks"));
        assert_eq!(group.scheme, super::super::SCHEME);
    }

    #[test]
    fn older_layouts_are_read_too() {
        let old = r#"{"meta":{"plugin":{"type":"openapi/v0.0.39","data_parser":"v0.0.39"},
            "Slurm":{"release":"23.02.7"}},"errors":[],"nodes":[
            {"name":"n1","state":"idle","state_flags":["DRAIN"],"features":"a,b","cpus":4,
             "alloc_cpus":0,"gres":"gpu:8","slurmd_start_time":12},
            {"name":"n2","state":["DOWN*"],"gres":"gpu:8"}]}"#;
        assert!(recognises(old));
        let report = read_nodes("f", old);
        assert_eq!(node(&report, "n1").state, ["IDLE", "DRAIN"]);
        assert_eq!(node(&report, "n1").busy, Some(false));
        assert_eq!(node(&report, "n1").marks["features"], "a,b");
        assert_eq!(node(&report, "n2").state, ["DOWN", "NOT_RESPONDING"]);
        assert_eq!(report.settings["SLURM_VERSION"], "23.02.7");
        assert!(report.groups.is_empty());
    }

    #[test]
    fn one_node_alone_and_a_bare_list_are_nodes() {
        let one = r#"{"name":"w1","state":["IDLE","DYNAMIC_NORM"],"partitions":["a"],"real_memory":1,"gres":"gpu:h100:1"}"#;
        assert!(recognises(one));
        assert_eq!(node(&read_nodes("f", one), "w1").product.as_deref(), Some("h100"));
        assert_eq!(read_nodes("f", &format!("[{one}]")).nodes.len(), 1);
    }

    #[test]
    fn an_answer_without_nodes_is_never_an_empty_cluster() {
        let refused = r#"{"errors":[{"description":"Failure to query node x","error_number":0,
            "error":"No error"}],"meta":{"plugin":{"data_parser":"v"}}}"#;
        assert!(recognises(refused));
        for text in [
            refused,
            r#"{"nodes":[],"warnings":[{"description":"No nodes to dump"}],"errors":[]}"#,
            r#"{"meta":{}}"#,
            r#"{"nodes":{"a":1}}"#,
            r#"{"nodes":[{"state":["IDLE"]}]}"#,
            r#"{"nodes":[{"name":"n1"}"#,
            "[]",
            "{}",
        ] {
            let report = read_nodes("f", text);
            assert!(report.nodes.is_empty() && !report.problems.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_node_listed_twice_counts_once() {
        let report = read_nodes("f", r#"{"nodes":[{"name":"a","gres":"gpu:4"},{"name":"a"}]}"#);
        assert_eq!(node(&report, "a").gpus, Some(4));
        assert_eq!(report.problems[0].kind, SourceProblemKind::Contradictory);
    }

    #[test]
    fn slices_are_reported_instead_of_counted() {
        let report = read_nodes("f", r#"{"nodes":[{"name":"a","gres":"gpu:1g.10gb:7"}]}"#);
        assert_eq!(node(&report, "a").gpus, None);
        assert_eq!(report.notes, ["GPUs are not counted on nodes with MIG slices: a"]);
    }

    #[test]
    fn other_answers_are_not_recognised_as_nodes() {
        for text in [
            r#"{"sinfo":[],"meta":{"plugin":{"data_parser":"v"}}}"#,
            r#"{"partitions":[],"meta":{"plugin":{"data_parser":"v"}},"errors":[]}"#,
            r#"{"nodes":{"0":{"status":"READY"}},"connections":[]}"#,
            r#"{"kind":"NodeList","items":[]}"#,
            "",
            "hello",
        ] {
            assert!(!recognises(text), "{text}");
        }
    }
}
