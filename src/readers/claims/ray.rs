//! Resources of a Ray cluster: the nodes that a framework places in one NVLink domain
//! (`nvlink_domain_<uuid>`), and their order (`topo_rank`).
//!
//! Reads `ray list nodes --format json`, `json.dumps(ray.nodes())`, and the answers of the
//! dashboard to `/api/v0/nodes` and `/nodes?view=summary`. Ray does not determine domains itself:
//! a launcher copied them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::reader_util::{
    check_text_size, first_line, is_zero_uuid, parse_node_name, push_note, push_problem,
    quote_text, sanitize_text,
};
use model::id::NodeName;
use model::source_report::{
    ClaimBasis, FabricReport, JobAssumption, NodeGroup, NodeGroupKind, SourceKind,
    SourceProblemKind, SourceReport,
};

/// Prefix of the resource in NeMo-RL's launcher, before the ClusterUUID.
const DOMAIN_RESOURCE_PREFIX: &str = "nvlink_domain_";

/// Origin of that launcher's value.
const DOMAIN_ORIGIN: &str = "nvidia-smi ClusterUUID of the first GPU";

/// Above 2^53, Ray's numbers (doubles) no longer represent every integer.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// The names of resources in Ray's four answer formats.
const RESOURCE_KEYS: [&str; 3] = ["resources_total", "resourcesTotal", "Resources"];

/// Limit for names, and for domains, of one node: two raylets may share a machine, a hundred do
/// not.
const MAX_ALIASES: usize = 8;

/// Whether a text is an answer of Ray.
pub fn recognises(text: &str) -> bool {
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let has = |word: &str| text.contains(word);
    let is_list = has("\"node_id\"") && has("\"resources_total\"");
    let is_summary = has("\"raylet\"") && (has("\"resourcesTotal\"") || has("\"summary\""));
    let is_dump = has("NodeManagerAddress") && has("Resources");
    text.starts_with(['[', '{']) && (is_list || is_summary || is_dump)
}

/// Parses an answer. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::Ray, place);
    if !check_text_size(&mut report, text) {
        return report;
    }
    let text = text.trim_start_matches('\u{feff}');
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let at = format!("{place}:{}:{}", error.line(), error.column());
            let hint = if text.contains("'NodeManagerAddress'") {
                "; this is Python notation, expected json.dumps(ray.nodes())"
            } else {
                ""
            };
            push_problem(&mut report, SourceProblemKind::Malformed, at, first_line(&error) + hint);
            return report;
        }
    };
    let Some(items) = node_items(&mut report, &value) else {
        let message = "no list of nodes, expected ray list nodes --format json or the dashboard's \
                       /api/v0/nodes or /nodes?view=summary";
        push_problem(&mut report, SourceProblemKind::Malformed, place.to_owned(), message);
        return report;
    };
    let nodes = alive_nodes(&mut report, items);
    add_domains(&mut report, &nodes);
    add_ranks(&mut report, &nodes);
    report
}

/// The list of nodes in an answer, and the answer's own remarks.
fn node_items<'v>(report: &mut SourceReport, value: &'v Value) -> Option<&'v Vec<Value>> {
    let place = report.source.place.clone();
    let mut value = value;
    // Answers nest: data, then result or summary, then result.
    for _ in 0..4 {
        let object = match value {
            Value::Array(items) => return Some(items),
            Value::Object(object) => object,
            _ => return None,
        };
        if object.get("result") == Some(&Value::Bool(false)) {
            let why = first_text(object, &["msg"]).unwrap_or_default();
            push_problem(
                report,
                SourceProblemKind::Incomplete,
                place.clone(),
                format!("Ray reports: {why}"),
            );
        }
        if let Some(why) = first_text(object, &["partial_failure_warning"]) {
            let message = format!("Ray reports missing nodes: {why}");
            push_problem(report, SourceProblemKind::Incomplete, place.clone(), message);
        }
        let number = |key: &str| object.get(key).and_then(Value::as_u64);
        if let (Some(total), Some(kept)) = (number("total"), number("num_after_truncation"))
            && kept < total
        {
            let message = format!("{kept} of {total} nodes, expected all");
            push_problem(report, SourceProblemKind::Incomplete, place.clone(), message);
        }
        value = ["data", "summary", "result", "nodes"]
            .iter()
            .filter_map(|key| object.get(*key))
            .find(|value| value.is_array() || value.is_object())?;
    }
    value.as_array()
}

/// The first of these keys with a text value.
fn first_text(object: &Map<String, Value>, keys: &[&str]) -> Option<String> {
    let found = keys.iter().find_map(|key| object.get(*key)?.as_str());
    found.map(sanitize_text).filter(|text| !text.is_empty())
}

/// One node that is alive.
struct RayNode<'v> {
    name: NodeName,
    resources: &'v Map<String, Value>,
}

impl RayNode<'_> {
    /// Number of GPUs in Ray's resources.
    fn gpus(&self) -> Option<u32> {
        let gpus = self.resources.get("GPU")?.as_f64()?;
        let is_count = (0.0..=1024.0).contains(&gpus) && gpus.fract() == 0.0;
        is_count.then(|| format!("{gpus:.0}").parse().ok()).flatten()
    }
}

/// The nodes that are alive, each with its names.
fn alive_nodes<'v>(report: &mut SourceReport, items: &'v [Value]) -> Vec<RayNode<'v>> {
    let place = report.source.place.clone();
    let mut nodes: Vec<RayNode<'v>> = Vec::new();
    let (mut dead, mut bare) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        let Some(outer) = item.as_object() else {
            let message = "no node, expected an object";
            push_problem(
                report,
                SourceProblemKind::Malformed,
                format!("{place}: node {index}"),
                message,
            );
            continue;
        };
        let inner = outer.get("raylet").and_then(Value::as_object).unwrap_or(outer);
        let either = |keys: &[&str]| first_text(outer, keys).or_else(|| first_text(inner, keys));
        let is_dead = either(&["state"]).is_some_and(|state| state.eq_ignore_ascii_case("dead"))
            || ["Alive", "alive"].iter().any(|key| inner.get(*key) == Some(&Value::Bool(false)));
        if is_dead {
            dead += 1;
            continue;
        }
        let address = either(&["node_ip", "ip", "NodeManagerAddress", "nodeManagerAddress"]);
        // A node's name is its address, unless the user set one.
        let given = either(&["node_name", "NodeName", "nodeName"]).filter(|name| !is_address(name));
        let host = either(&["hostname", "NodeManagerHostname", "nodeManagerHostname"]).or(given);
        let called = host.or_else(|| address.clone());
        let Some(name) = called.as_deref().and_then(parse_node_name) else {
            let message = "no usable name, expected a host name or an IPv4 address";
            push_problem(
                report,
                SourceProblemKind::Malformed,
                format!("{place}: node {index}"),
                message,
            );
            continue;
        };
        let resources = RESOURCE_KEYS
            .iter()
            .find_map(|key| outer.get(*key).or_else(|| inner.get(*key))?.as_object());
        let Some(resources) = resources else {
            bare += 1;
            continue;
        };
        let node = RayNode { name, resources };
        if nodes.len() < 100_000 {
            let count = node.gpus();
            let entry = report.node_mut(&node.name);
            entry.gpus = count.or(entry.gpus);
            let id = either(&["node_id", "NodeID", "nodeId"]);
            for alias in [address, id].into_iter().flatten() {
                let is_new = alias != node.name.as_str() && !entry.aliases.contains(&alias);
                if is_new && entry.aliases.len() < MAX_ALIASES {
                    entry.aliases.push(alias);
                }
            }
            nodes.push(node);
        }
    }
    if 0 < dead {
        report.notes.push(format!("{dead} dead nodes are ignored"));
    }
    if 0 < bare {
        let message = format!("{bare} nodes without resources, expected resources_total");
        push_problem(report, SourceProblemKind::Incomplete, place, message);
    }
    nodes
}

fn is_address(name: &str) -> bool {
    name.contains(':') || name.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// Whether this is a UUID in its usual form.
fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// Adds the groups that share a domain.
fn add_domains(report: &mut SourceReport, nodes: &[RayNode<'_>]) {
    let place = report.source.place.clone();
    let basis = ClaimBasis::Copied { from: DOMAIN_ORIGIN.to_owned() };
    let mut domains: BTreeMap<String, Vec<&RayNode<'_>>> = BTreeMap::new();
    let mut outside = Vec::new();
    for node in nodes {
        let own: Vec<String> = node
            .resources
            .keys()
            .filter_map(|key| {
                Some(sanitize_text(&key.strip_prefix(DOMAIN_RESOURCE_PREFIX)?.to_ascii_lowercase()))
            })
            .collect();
        if 1 < own.len() {
            let some = own.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("{} is in {} domains, such as {some}", node.name, own.len());
            push_problem(report, SourceProblemKind::Contradictory, place.clone(), message);
        }
        if own.is_empty() && node.gpus() != Some(0) && node.resources.contains_key("GPU") {
            outside.push(node.name.to_string());
        }
        for name in own {
            if is_uuid(&name) && name.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0') {
                let fabric = FabricReport {
                    cluster_uuid: Some(name.clone()),
                    basis: Some(basis.clone()),
                    at: Some(format!("{place}: {DOMAIN_RESOURCE_PREFIX}{name}")),
                    ..FabricReport::default()
                };
                let known = &mut report.node_mut(&node.name).fabric;
                if known.len() < MAX_ALIASES && !known.contains(&fabric) {
                    known.push(fabric);
                }
            }
            domains.entry(name).or_default().push(node);
        }
    }
    if !domains.is_empty() && !outside.is_empty() {
        let message = format!(
            "{} nodes with GPUs are in no {DOMAIN_RESOURCE_PREFIX}*, such as {}",
            outside.len(),
            outside[0]
        );
        push_problem(report, SourceProblemKind::Incomplete, place.clone(), message);
    }
    for (name, members) in domains {
        let at = format!("{place}: {DOMAIN_RESOURCE_PREFIX}{name}");
        if name.is_empty() || is_zero_uuid(&name) || name == "unknown" {
            let message = format!(
                "{} nodes share {}, which is not a domain: their driver did not report one",
                members.len(),
                quote_text(&name)
            );
            push_problem(report, SourceProblemKind::Malformed, at, message);
            continue;
        }
        if !is_uuid(&name) {
            // A fork puts the leaf switch there on machines without a domain.
            let note = format!(
                "{DOMAIN_RESOURCE_PREFIX}{name} is not a ClusterUUID: the launcher defines what \
                its nodes share"
            );
            push_note(report, note);
        }
        let mut names: Vec<NodeName> = members.iter().map(|node| node.name.clone()).collect();
        names.sort();
        names.dedup();
        let gpus = members
            .iter()
            .map(|node| node.gpus())
            .try_fold(0u32, |sum, gpus| sum.checked_add(gpus?))
            .filter(|sum| 0 < *sum);
        let count = gpus.map_or_else(|| "unknown".to_owned(), |gpus| gpus.to_string());
        report.beliefs.push(JobAssumption {
            subject: "Ray nvlink_domain".to_owned(),
            ranks_per_domain: gpus,
            multi_node_nvlink: Some(1 < names.len()),
            nodes: names.clone(),
            at: Some(at.clone()),
            text: format!(
                "{DOMAIN_RESOURCE_PREFIX}{name} on {} nodes (GPUs: {count}), regardless of the \
                CliqueId",
                names.len()
            ),
        });
        let mut group = NodeGroup::new(NodeGroupKind::Domain, "nvlink_domain", name, names);
        group.basis = basis.clone();
        group.at = Some(at);
        report.groups.push(group);
    }
}

/// Adds the rank order of the nodes.
fn add_ranks(report: &mut SourceReport, nodes: &[RayNode<'_>]) {
    let place = report.source.place.clone();
    let at = || format!("{place}: topo_rank");
    let mut owners: BTreeMap<String, Vec<NodeName>> = BTreeMap::new();
    let mut without = Vec::new();
    for node in nodes {
        let rank = match node.resources.get("topo_rank") {
            None | Some(Value::Null) => {
                if node.gpus() != Some(0) && node.resources.contains_key("GPU") {
                    without.push(node.name.to_string());
                }
                continue;
            }
            Some(rank) => rank,
        };
        let number = rank.as_f64().filter(|n| n.is_finite());
        let written = match (rank, number) {
            (Value::String(word), _) => sanitize_text(word),
            (_, Some(number)) if number.fract() == 0.0 => format!("{number:.0}"),
            _ => sanitize_text(&rank.to_string()),
        };
        let whole = number.filter(|n| 0.0 <= *n && n.fract() == 0.0);
        let message = match whole {
            None => {
                Some(format!("{} has {}, expected a whole number", node.name, quote_text(&written)))
            }
            Some(number) if MAX_EXACT_INTEGER <= number => Some(format!(
                "{} has {written}, which Ray cannot distinguish from adjacent numbers: it is \
                 exact only to 2^53",
                node.name
            )),
            Some(_) => None,
        };
        if let Some(message) = message {
            push_problem(report, SourceProblemKind::Malformed, at(), message);
        }
        report.node_mut(&node.name).topo_rank = Some(written.clone());
        owners.entry(written).or_default().push(node.name.clone());
    }
    let with: usize = owners.values().map(Vec::len).sum();
    if 0 < with && !without.is_empty() {
        let message = format!(
            "{} of {} nodes with GPUs have none, such as {}: Ray drops resources of value 0",
            without.len(),
            without.len() + with,
            without[0]
        );
        push_problem(report, SourceProblemKind::Incomplete, at(), message);
    }
    for (rank, mut nodes) in owners {
        nodes.sort();
        nodes.dedup();
        if let [first, second, ..] = nodes.as_slice() {
            let message = format!(
                "{rank} is assigned to {} nodes, such as {first} and {second}: their order is \
                 undefined",
                nodes.len()
            );
            push_problem(report, SourceProblemKind::Contradictory, at(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "11111111-2222-3333-4444-555555555555";
    const B: &str = "AAAAAAAA-2222-3333-4444-555555555555";

    /// `ray list nodes --format json` of these nodes: name, domain, rank.
    fn list(nodes: &[(&str, &str, &str)]) -> String {
        let node = |(at, (name, domain, rank)): (usize, &(&str, &str, &str))| {
            let rank =
                if rank.is_empty() { String::new() } else { format!(", \"topo_rank\": {rank}") };
            format!(
                "{{\"node_id\": \"id{at}\", \"node_ip\": \"10.0.0.{at}\", \"node_name\": \"{name}\", \
                 \"state\": \"ALIVE\", \"resources_total\": {{\"CPU\": 72.0, \"GPU\": 4.0, \
                 \"memory\": \"900 GiB\", \"{DOMAIN_RESOURCE_PREFIX}{domain}\": 1.0{rank}}}}}"
            )
        };
        format!("[{}]", nodes.iter().enumerate().map(node).collect::<Vec<_>>().join(","))
    }

    fn problem_lines(report: &SourceReport) -> Vec<(SourceProblemKind, String)> {
        report.problems.iter().map(|problem| (problem.kind, problem.to_string())).collect()
    }

    #[test]
    fn nodes_of_a_domain_are_grouped_as_a_copy_of_the_driver() {
        let text = list(&[("n1", A, "10000000001.0"), ("n2", A, "10000000002"), ("n3", B, "3")]);
        assert!(recognises(&text));
        let report = read("ray.json", &text);
        assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
        let [first, second] = report.groups.as_slice() else { panic!("{report:?}") };
        assert_eq!((first.name.as_str(), first.nodes.len()), (A, 2));
        assert_eq!((first.kind, first.scheme.as_str()), (NodeGroupKind::Domain, "nvlink_domain"));
        assert_eq!(first.basis, ClaimBasis::Copied { from: DOMAIN_ORIGIN.to_owned() });
        assert_eq!(second.name, B.to_ascii_lowercase());
        let node = &report.nodes[&"n1".into()];
        assert_eq!((node.gpus, node.topo_rank.as_deref()), (Some(4), Some("10000000001")));
        assert_eq!(node.aliases, ["10.0.0.0", "id0"]);
        assert_eq!(node.fabric[0].cluster_uuid.as_deref(), Some(A));
        assert_eq!(node.fabric[0].clique_id, None);
        let belief = &report.beliefs[0];
        assert_eq!((belief.ranks_per_domain, belief.multi_node_nvlink), (Some(8), Some(true)));
        assert_eq!(report.beliefs[1].multi_node_nvlink, Some(false));
    }

    #[test]
    fn unusable_ranks_are_reported() {
        let text = list(&[("n1", A, "5"), ("n2", A, "5.0"), ("n3", A, ""), ("n4", A, "\"x\"")]);
        let report = read("ray.json", &text);
        let [word, missing, twice] = &problem_lines(&report)[..] else { panic!("{report:?}") };
        assert_eq!(word.1, "ray.json: topo_rank: n4 has \"x\", expected a whole number");
        assert_eq!(missing.0, SourceProblemKind::Incomplete);
        assert!(missing.1.contains("1 of 4 nodes") && missing.1.contains("n3"), "{missing:?}");
        assert_eq!(twice.0, SourceProblemKind::Contradictory);
        assert!(twice.1.contains("5 is assigned to 2 nodes, such as n1 and n2"), "{twice:?}");
        assert_eq!(report.nodes[&"n4".into()].topo_rank.as_deref(), Some("x"));
        for (rank, written) in
            [("1.5", "1.5"), ("-3", "-3"), ("9007199254740993", "9007199254740992")]
        {
            let report = read("ray.json", &list(&[("n1", A, rank)]));
            assert_eq!(problem_lines(&report)[0].0, SourceProblemKind::Malformed, "{rank}");
            assert_eq!(report.nodes[&"n1".into()].topo_rank.as_deref(), Some(written), "{rank}");
        }
    }

    #[test]
    fn a_cluster_without_any_rank_or_domain_is_valid() {
        let text = list(&[("n1", A, ""), ("n2", A, "")]);
        assert!(read("ray.json", &text).problems.is_empty());
        let report = read("ray.json", &text.replace(DOMAIN_RESOURCE_PREFIX, "other_"));
        assert!(report.problems.is_empty() && report.groups.is_empty() && report.nodes.len() == 2);
    }

    #[test]
    fn keys_other_than_a_cluster_uuid_identify_no_fabric() {
        let zero = "00000000-0000-0000-0000-000000000000";
        let report =
            read("r", &list(&[("n1", zero, "1"), ("n2", "unknown", "2"), ("n3", "leaf/7", "3")]));
        assert_eq!(
            problem_lines(&report).iter().filter(|t| t.0 == SourceProblemKind::Malformed).count(),
            2
        );
        let [group] = report.groups.as_slice() else { panic!("{report:?}") };
        assert_eq!(group.name, "leaf/7");
        assert!(report.notes[0].contains("is not a ClusterUUID"));
        assert!(report.nodes.values().all(|node| node.fabric.is_empty()));
    }

    #[test]
    fn a_node_of_two_domains_or_of_none_is_reported() {
        let text = list(&[("n1", A, "1"), ("n2", A, "2")]);
        let two =
            text.replacen("\"GPU\"", &format!("\"{DOMAIN_RESOURCE_PREFIX}{B}\": 1.0, \"GPU\""), 1);
        let problems = problem_lines(&read("r", &two));
        assert_eq!(problems[0].0, SourceProblemKind::Contradictory);
        assert!(problems[0].1.contains("n1 is in 2 domains"), "{problems:?}");
        let none = text.replacen(DOMAIN_RESOURCE_PREFIX, "other_", 1);
        assert_eq!(problem_lines(&read("r", &none))[0].0, SourceProblemKind::Incomplete);
    }

    #[test]
    fn every_answer_of_ray_reads_the_same() {
        let resources =
            format!("{{\"GPU\": 4.0, \"{DOMAIN_RESOURCE_PREFIX}{A}\": 1.0, \"topo_rank\": 7.0}}");
        let answers = [
            format!(
                "[{{\"NodeID\": \"i\", \"Alive\": true, \"NodeManagerAddress\": \"10.0.0.1\", \
                 \"NodeManagerHostname\": \"n1\", \"Resources\": {resources}}}, \
                 {{\"NodeID\": \"j\", \"Alive\": false, \"NodeManagerAddress\": \"10.0.0.2\", \
                 \"NodeManagerHostname\": \"n2\", \"Resources\": {{}}}}]"
            ),
            format!(
                "{{\"result\": true, \"msg\": \"\", \"data\": {{\"result\": {{\"total\": 2, \
                 \"num_after_truncation\": 2, \"partial_failure_warning\": \"\", \"result\": [\
                 {{\"node_id\": \"i\", \"node_ip\": \"10.0.0.1\", \"node_name\": \"n1\", \
                 \"state\": \"ALIVE\", \"resources_total\": {resources}}}, \
                 {{\"node_id\": \"j\", \"node_ip\": \"10.0.0.2\", \"state\": \"DEAD\", \
                 \"resources_total\": {{}}}}]}}}}}}"
            ),
            format!(
                "{{\"result\": true, \"msg\": \"Node summary fetched.\", \"data\": {{\"summary\": [\
                 {{\"hostname\": \"n1\", \"ip\": \"10.0.0.1\", \"raylet\": {{\"nodeId\": \"i\", \
                 \"state\": \"ALIVE\", \"resourcesTotal\": {resources}}}}}, \
                 {{\"hostname\": \"n2\", \"ip\": \"10.0.0.2\", \"raylet\": {{\"nodeId\": \"j\", \
                 \"state\": \"DEAD\"}}}}]}}}}"
            ),
        ];
        for text in answers {
            assert!(recognises(&text), "{text}");
            let report = read("r", &text);
            assert!(report.problems.is_empty(), "{report:?}");
            assert_eq!(report.notes, ["1 dead nodes are ignored"], "{text}");
            let [(name, node)] = &report.nodes.iter().collect::<Vec<_>>()[..] else {
                panic!("{report:?}")
            };
            assert_eq!((name.as_str(), node.topo_rank.as_deref()), ("n1", Some("7")));
            assert_eq!(node.aliases, ["10.0.0.1", "i"]);
        }
    }

    #[test]
    fn an_address_is_the_name_by_default() {
        let report = read("r", &list(&[("10.0.0.0", A, "1")]));
        assert_eq!(report.nodes.keys().map(NodeName::as_str).collect::<Vec<_>>(), ["10.0.0.0"]);
    }

    #[test]
    fn invalid_answers_are_reported_with_their_position() {
        let cut = &list(&[("n1", A, "1")])[..60];
        assert!(
            problem_lines(&read("r", cut))[0].1.starts_with("r:1:60: "),
            "{:?}",
            read("r", cut)
        );
        let python = "[{'NodeID': 'i', 'NodeManagerAddress': '10.0.0.1', 'Resources': {}}]";
        assert!(recognises(python));
        assert!(
            problem_lines(&read("r", python))[0].1.contains("json.dumps"),
            "{:?}",
            read("r", python)
        );
        for other in ["{}", "3", "[3]", "{\"data\": 4}", "[{\"node_ip\": \"::1\"}]", ""] {
            assert_eq!(
                problem_lines(&read("r", other))[0].0,
                SourceProblemKind::Malformed,
                "{other}"
            );
        }
        let failed = "{\"result\": false, \"msg\": \"GCS is gone\", \"data\": {\"result\": []}}";
        assert!(problem_lines(&read("r", failed))[0].1.contains("GCS is gone"));
        let deep = "[".repeat(200_000);
        assert_eq!(problem_lines(&read("r", &deep))[0].0, SourceProblemKind::Malformed);
        let short = "{\"total\": 9, \"num_after_truncation\": 5, \"result\": []}";
        assert!(problem_lines(&read("r", short))[0].1.contains("5 of 9 nodes"));
    }
}
