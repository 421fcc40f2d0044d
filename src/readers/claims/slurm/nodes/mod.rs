//! Slurm's nodes, as `scontrol show node` prints them (JSON, one line per node, or several) or
//! slurmrestd returns them.
//!
//! A node's `Topology=` exists only where it was set explicitly (`scontrol update`, slurm.conf);
//! nodes placed by a topology file have none. Each becomes a group of the scheme `node topology`,
//! so that an override that contradicts the file is visible. Such a unit counts as a block,
//! because the kind of its topology is unknown here: compare it with the topology of that name.

pub(super) mod json;
mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::host_list_budget::list_some;
use super::{gres, node_states};
use crate::claims::reader_util::limit_notes;
use model::id::NodeName;
use model::source_report::{
    NodeGroup, NodeGroupKind, NodeReport, SourceKind, SourceProblemKind, SourceReport,
};

/// The scheme of groups from nodes' own settings.
pub const SCHEME: &str = "node topology";

/// Features that a gate sets; they do not come from the site.
const OWN_FEATURES: [&str; 2] = ["fabric_verified", "fabric_degraded"];

/// Prefix of comments written by fabricgate.
const OWN_COMMENT_PREFIX: &str = "fabricgate";

/// Whether a text lists nodes.
pub fn recognises(text: &str) -> bool {
    json::recognises(text) || text::recognises(text)
}

/// Parses nodes. `place` is their name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmNodes, place);
    let is_json = super::host_list_budget::strip_bom(text).trim_start().starts_with(['{', '[']);
    let nodes = if is_json {
        json::read(&mut report, place, text)
    } else {
        text::read(&mut report, place, text)
    };
    if nodes.is_empty() && report.problems.is_empty() {
        report.push_problem(SourceProblemKind::Incomplete, None, "it contains no node");
    }
    add_to_report(&mut report, nodes);
    limit_notes(report)
}

/// One node in either form. Empty texts are absent.
#[derive(Debug, Default)]
struct SlurmNodeListing {
    name: String,
    at: String,
    hostname: Option<String>,
    address: Option<String>,
    instance: Option<String>,
    instance_type: Option<String>,
    gres: Option<String>,
    tres: Option<String>,
    features: Vec<String>,
    active: Vec<String>,
    comment: Option<String>,
    extra: Option<String>,
    reason: Option<String>,
    reason_by: Option<String>,
    reservation: Option<String>,
    /// Flags of the state, in the long form.
    state: Vec<String>,
    allocated_cpus: Option<u64>,
    topology: Option<String>,
    partitions: Vec<String>,
    version: Option<String>,
}

/// Adds nodes and the groups they name.
fn add_to_report(report: &mut SourceReport, nodes: Vec<SlurmNodeListing>) {
    let mut shared: HashMap<String, u32> = HashMap::new();
    for other in nodes.iter().flat_map(other_names) {
        *shared.entry(other.to_owned()).or_default() += 1;
    }
    let mut groups: BTreeMap<(String, String), (NodeGroupKind, Vec<NodeName>)> = BTreeMap::new();
    let mut versions = BTreeSet::new();
    let mut slices = Vec::new();
    for listing in nodes {
        let name = NodeName::from(listing.name.as_str());
        if report.nodes.contains_key(&name) {
            let message = format!("node {name} is listed twice; the first listing is used");
            report.push_problem(SourceProblemKind::Contradictory, listing.at, message);
            continue;
        }
        for unit in listing.topology.iter().flat_map(|units| units.split(',')) {
            match parse_unit(unit.trim()) {
                Some((key, kind)) => {
                    let nodes = &mut groups.entry(key).or_insert_with(|| (kind, Vec::new())).1;
                    // A node may name a unit twice.
                    if nodes.last() != Some(&name) {
                        nodes.push(name.clone());
                    }
                }
                None => report.notes.push(format!("node {name}: Topology={unit} is ignored")),
            }
        }
        versions.extend(listing.version.clone());
        let node = node_report(&listing, &shared);
        if node.gpus.is_none() && node.marks.contains_key("gres") {
            slices.push(listing.name.clone());
        }
        report.nodes.insert(name, node);
    }
    if !slices.is_empty() {
        report.notes.push(format!(
            "GPUs are not counted on nodes with MIG slices: {}",
            list_some(slices.iter().map(String::as_str))
        ));
    }
    if !versions.is_empty() {
        let versions: Vec<String> = versions.into_iter().collect();
        report.settings.insert("slurmd".to_owned(), versions.join(", "));
    }
    for ((topology, unit), (kind, nodes)) in groups {
        let mut group = NodeGroup::new(kind, SCHEME, unit.clone(), nodes);
        group.at = Some(format!("Topology={topology}:{unit}"));
        group.topology = Some(topology);
        report.groups.push(group);
    }
}

/// Topology and unit of `topo:unit`. `topo:top:mid:leaf` is a path in a tree, `topo:ring:3` a
/// position, which is not a unit.
fn parse_unit(text: &str) -> Option<((String, String), NodeGroupKind)> {
    let mut parts = text.split(':');
    let topology = parts.next().filter(|part| !part.is_empty())?;
    let units: Vec<&str> = parts.collect();
    let last = units.last().filter(|part| !part.is_empty())?;
    let kind = match units.len() {
        1 => NodeGroupKind::Domain,
        _ if last.bytes().all(|b| b.is_ascii_digit()) => return None,
        _ => NodeGroupKind::Leaf,
    };
    Some(((topology.to_owned(), (*last).to_owned()), kind))
}

/// Hostname, address and instance id, where they differ from the name.
fn other_names(listing: &SlurmNodeListing) -> impl Iterator<Item = &str> {
    let is_local = |name: &str| name.starts_with("127.") || matches!(name, "localhost" | "::1");
    let names = [&listing.hostname, &listing.address, &listing.instance];
    let mut seen = Vec::new();
    names.into_iter().flatten().map(String::as_str).filter(move |name| {
        let is_new = *name != listing.name && !is_local(name) && !seen.contains(name);
        seen.push(*name);
        is_new
    })
}

fn node_report(listing: &SlurmNodeListing, shared: &HashMap<String, u32>) -> NodeReport {
    let mut node = NodeReport::default();
    let by_gres = listing.gres.as_deref().and_then(gres::from_gres);
    if let Some(gpus) = &by_gres
        && gpus.count.is_none()
        && let Some(gres) = &listing.gres
    {
        node.marks.insert("gres".to_owned(), gres.clone());
    }
    let by_tres = listing.tres.as_deref().and_then(gres::from_tres);
    if let Some(gpus) = by_gres.or(by_tres) {
        node.gpus = gpus.count;
        node.product = gpus.product;
    }
    // A name that several nodes share (all slurmds of a test on one host) identifies none of
    // them.
    node.aliases = other_names(listing)
        .filter(|name| shared.get(*name).is_none_or(|count| *count < 2))
        .map(str::to_owned)
        .collect();
    node.busy = match listing.allocated_cpus {
        Some(cpus) if 0 < cpus => Some(true),
        _ => node_states::is_busy(&listing.state),
    };
    node.state.clone_from(&listing.state);
    node.reason.clone_from(&listing.reason);
    let is_foreign = |text: &&String| !text.starts_with(OWN_COMMENT_PREFIX);
    let features = |features: &[String]| {
        let kept = features.iter().filter(|feature| !OWN_FEATURES.contains(&feature.as_str()));
        Some(kept.cloned().collect::<Vec<_>>().join(",")).filter(|text| !text.is_empty())
    };
    let available = features(&listing.features);
    let active = features(&listing.active).filter(|active| Some(active) != available.as_ref());
    let partitions = Some(listing.partitions.join(",")).filter(|text| !text.is_empty());
    let extra = listing.extra.as_ref().filter(|text| !text.contains("\"fabricgate\""));
    for (mark, text) in [
        ("features", available),
        ("active features", active),
        ("comment", listing.comment.as_ref().filter(is_foreign).cloned()),
        ("extra", extra.filter(is_foreign).cloned()),
        ("instance type", listing.instance_type.clone()),
        ("partitions", partitions),
        ("reason by", listing.reason_by.clone()),
        ("reservation", listing.reservation.clone()),
    ] {
        if let Some(text) = text {
            node.marks.insert(mark.to_owned(), text);
        }
    }
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_units_are_distinguished_from_positions() {
        let parsed =
            |text: &str| parse_unit(text).map(|((t, u), kind)| format!("{t}|{u}|{kind:?}"));
        assert_eq!(parsed("racks:r1").as_deref(), Some("racks|r1|Domain"));
        assert_eq!(parsed("fabric:top:mid:leaf7").as_deref(), Some("fabric|leaf7|Leaf"));
        for none in ["", "racks", ":r1", "racks:", "circle:r:3"] {
            assert_eq!(parsed(none), None, "{none:?}");
        }
    }

    #[test]
    fn shared_names_identify_no_node() {
        let listing = |name: &str, host: &str| SlurmNodeListing {
            name: name.to_owned(),
            hostname: Some(host.to_owned()),
            address: Some("127.0.0.1".to_owned()),
            instance: Some(format!("i-{name}")),
            ..SlurmNodeListing::default()
        };
        let mut report = SourceReport::new(SourceKind::SlurmNodes, "f");
        add_to_report(
            &mut report,
            vec![listing("a", "lab"), listing("b", "lab"), listing("c", "c.lab")],
        );
        let aliases: Vec<&[String]> = report.nodes.values().map(|n| n.aliases.as_slice()).collect();
        assert_eq!(aliases, [&["i-a"][..], &["i-b"], &["c.lab", "i-c"]]);
    }

    #[test]
    fn values_written_by_a_gate_are_not_marks_of_the_site() {
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let listing = SlurmNodeListing {
            features: words(&["gb200", "fabric_verified", "fabric_layer3"]),
            active: words(&["gb200", "fabric_layer3"]),
            comment: Some("fabricgate: verified".to_owned()),
            extra: Some("{\"fabricgate\":{}}".to_owned()),
            ..SlurmNodeListing::default()
        };
        let marks = node_report(&listing, &HashMap::new()).marks;
        assert_eq!(marks, [("features".to_owned(), "gb200,fabric_layer3".to_owned())].into());
    }
}
