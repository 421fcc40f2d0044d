//! Resources of Ray nodes: the measured NVLink domain of a node (`nvlink_domain_<name>`: 1), and
//! its position in the order (`topo_rank`), with a script that starts Ray with them.
//!
//! A domain has its name from the map: a ClusterUUID alone would merge several cliques. Ray
//! silently drops a resource of value 0, and two nodes with the same rank collide; so ranks start
//! at 1, and are counted over the whole map, even if only a part of it is selected.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse, select_members,
};
use crate::place::map::{MapDomain, VerifiedMap};
use crate::policy::kubernetes_label;
use model::id::NodeName;
use model::shell_quote;
use model::text::clean;
use model::verdict::Outcome;

/// The prefix that frameworks look for.
const DOMAIN_RESOURCE_PREFIX: &str = "nvlink_domain_";
const RANK_RESOURCE: &str = "topo_rank";

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "ray",
    about: "Ray: resources by node (NVLink domain, rank), and a script that starts it",
    takes: &["nodes", "domain"],
    write,
};

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let ranks = rank_nodes(map);
    let mut resources: BTreeMap<&NodeName, Value> = BTreeMap::new();
    let (mut unmeasured, mut faulty, mut strange) = (Vec::new(), Vec::new(), Vec::new());
    for (node, member) in select_members(map, options)? {
        if !node.is_one_node() {
            strange.push(clean(node.as_str()));
            continue;
        }
        let Some(rank) = ranks.get(node) else { continue };
        let mut words = serde_json::Map::new();
        match map.domain_of(node).filter(|domain| domain.measured.contains(node)) {
            // A node that is not usable as claimed must not receive a piece of a job.
            Some(_) if member.outcome == Outcome::Failed => faulty.push(node.to_string()),
            Some(domain) => {
                words.insert(
                    format!(
                        "{DOMAIN_RESOURCE_PREFIX}{}",
                        kubernetes_label::label_value(&domain.name)
                    ),
                    json!(1),
                );
            }
            None => unmeasured.push(node.to_string()),
        }
        words.insert(RANK_RESOURCE.to_owned(), json!(rank));
        resources.insert(node, Value::Object(words));
    }
    if resources.is_empty() {
        return refuse("no node to start Ray on");
    }
    let mut remarks = Vec::new();
    let mut remark = |names: &[String], why: &str| {
        if !names.is_empty() {
            remarks.push(format!("{why}: {}", names.join(", ")));
        }
    };
    remark(&unmeasured, "in no measured domain, so without a domain resource");
    remark(&faulty, "failed, so without a domain resource");
    remark(&strange, "left out because these can name more than one node");

    let document = json!({ "note": map.header_lines(), "run": map.run.id, "nodes": resources });
    let files = vec![
        ExportFile::text("ray-start.sh", render_script(map, &resources)),
        ExportFile::text("ray.json", format!("{document:#}\n")),
    ];
    Ok(ExportOutput { files, remarks })
}

/// A position for every node: domain by domain, nodes of a domain in numeric order, nodes without a
/// measured domain last.
fn rank_nodes(map: &VerifiedMap) -> BTreeMap<NodeName, usize> {
    let mut domains: Vec<&MapDomain> = map.domains.iter().collect();
    domains.sort_by_key(|domain| natural_key(&domain.name));
    let mut order: Vec<&NodeName> = Vec::new();
    for domain in domains {
        let mut nodes: Vec<&NodeName> = domain.measured.iter().collect();
        nodes.sort_by_key(|node| natural_key(node.as_str()));
        order.extend(nodes);
    }
    let placed: BTreeSet<&NodeName> = order.iter().copied().collect();
    let mut others: Vec<&NodeName> =
        map.members.keys().filter(|node| !placed.contains(node)).collect();
    others.sort_by_key(|node| natural_key(node.as_str()));
    order.extend(others);
    order.into_iter().cloned().zip(1..).collect()
}

/// A sort key that orders numbers in a name numerically; the name itself follows, to keep `n1` and
/// `n01` distinct.
fn natural_key(name: &str) -> (Vec<(String, u64)>, String) {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, behind) = rest.split_at(word);
        let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        let (number, behind) = behind.split_at(digits);
        parts.push((text.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = behind;
    }
    (parts, name.to_owned())
}

/// A script that starts Ray on the node it runs on, or on the node given in NODE.
fn render_script(map: &VerifiedMap, resources: &BTreeMap<&NodeName, Value>) -> String {
    let mut out = format!("#!/bin/sh\n{}", map.comment_lines("#"));
    out.push_str(
        "# Starts Ray with the resources of this node; all arguments go to `ray start`:\n\
         #   sh ray-start.sh --address=HEAD:6379\n\
         # NODE=name selects the node if the host name differs.\n\
         set -eu\n\
         case \"${NODE:-$(hostname -s)}\" in\n",
    );
    for (node, words) in resources {
        // The text is quoted as a whole, regardless of the domain's name.
        let text = shell_quote::join_quoted(&[words.to_string()]);
        out.push_str(&format!("{node}) resources={text} ;;\n"));
    }
    out.push_str(
        "*)\n    echo \"${NODE:-$(hostname -s)} is not among the nodes of this map\" >&2\n    \
         exit 1\n    ;;\nesac\nexec ray start \"$@\" --resources=\"$resources\"\n",
    );
    out
}
