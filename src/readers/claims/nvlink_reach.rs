//! Nodes that reach each other over NVLink according to a run: the only source that is measured.
//!
//! Pure: cells of a stored run in, [`SourceReport`] out. A node without a measured partner is
//! omitted; the judge decides which nodes are slow.

use std::collections::{BTreeMap, BTreeSet};

use model::claims::Claims;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::source_report::{ClaimBasis, NodeGroup, NodeGroupKind, SourceKind, SourceReport};

/// Below this share of the NVLink rate, the data took another path: the judge uses the same limit
/// for membership. PCIe and NICs are below a tenth.
const MIN_NVLINK_SHARE: f64 = 0.3;

/// Two nodes, and whether NVLink connects them.
type ReachPair<'n> = ((&'n NodeName, &'n NodeName), bool);

/// The measurements of a run that started at `since`.
pub fn read(place: &str, since: &str, claims: &Claims, cells: &[MeasuredCell]) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::MeasuredRun, place);
    // Best share of the expectation between two nodes, either way.
    let mut best: BTreeMap<(&NodeName, &NodeName), f64> = BTreeMap::new();
    for cell in cells {
        let is_between_gpus =
            cell.rail.is_none() && cell.src_gpu.is_some() && cell.dst_gpu.is_some();
        let (Some(a), Some(b), Some(ratio)) = (&cell.src_node, &cell.dst_node, cell.ratio) else {
            continue;
        };
        if is_between_gpus && a != b {
            let best = best.entry((a.min(b), a.max(b))).or_insert(0.0);
            *best = best.max(ratio);
        }
    }
    let mut homes: BTreeMap<&NodeName, BTreeSet<usize>> = BTreeMap::new();
    for (at, domain) in claims.domains.iter().enumerate() {
        for node in &domain.nodes {
            homes.entry(node).or_default().insert(at);
        }
    }
    // The pairs within each domain; a node may be claimed by several.
    let mut inside: BTreeMap<usize, Vec<ReachPair<'_>>> = BTreeMap::new();
    for ((a, b), ratio) in &best {
        let (Some(one), Some(other)) = (homes.get(a), homes.get(b)) else { continue };
        for at in one.intersection(other) {
            inside.entry(*at).or_default().push(((*a, *b), MIN_NVLINK_SHARE <= *ratio));
        }
    }
    for (at, domain) in claims.domains.iter().enumerate() {
        let pairs = inside.remove(&at).unwrap_or_default();
        let parts = connected_sets(&pairs);
        let is_one = parts.len() == 1;
        for (number, part) in parts.into_iter().enumerate() {
            let name = match is_one {
                true => domain.name.to_string(),
                false => format!("{}.part{}", domain.name, number + 1),
            };
            let nodes = part.into_iter().cloned().collect();
            report.groups.push(NodeGroup {
                basis: ClaimBasis::Measured,
                since: Some(since.to_owned()),
                platform: domain.platform.clone(),
                gpus_per_node: domain.gpus_per_node,
                ..NodeGroup::new(NodeGroupKind::Domain, "measured domain", name, nodes)
            });
        }
    }
    if report.groups.is_empty() {
        report.notes.push("no two nodes were measured over NVLink".to_owned());
    }
    report
}

/// The groups of nodes that reach each other, directly or through others, largest first.
fn connected_sets<'n>(pairs: &[ReachPair<'n>]) -> Vec<BTreeSet<&'n NodeName>> {
    let mut of: BTreeMap<&NodeName, usize> = BTreeMap::new();
    let mut parts: Vec<BTreeSet<&NodeName>> = Vec::new();
    for ((a, b), reached) in pairs {
        for node in [a, b] {
            of.entry(node).or_insert_with(|| {
                parts.push(BTreeSet::from([*node]));
                parts.len() - 1
            });
        }
        let (into, from) = (of[a], of[b]);
        if *reached && into != from {
            for node in std::mem::take(&mut parts[from]) {
                of.insert(node, into);
                parts[into].insert(node);
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.sort_by_key(|part| (std::cmp::Reverse(part.len()), part.first().copied()));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::claims_file;
    use model::unit::Unit;
    use model::verdict::Outcome;

    fn cell(from: &str, to: &str, ratio: Option<f64>) -> MeasuredCell {
        MeasuredCell {
            domain: Some("rack".into()),
            stage: Some(2),
            testcase: "multinode_bisect_write_ce".into(),
            src_node: Some(from.into()),
            src_gpu: Some(0),
            dst_node: Some(to.into()),
            dst_gpu: Some(0),
            rail: None,
            reading: 0,
            value: ratio.map(|ratio| ratio * 770.0),
            unit: Unit::GigabytesPerSecond,
            expected: Some(770.0),
            ratio,
            outcome: Outcome::Pass,
        }
    }

    fn groups(cells: &[MeasuredCell]) -> Vec<(String, Vec<String>)> {
        let text = "[[domain]]\nname = \"rack\"\nnodes = \"n[1-5]\"\n";
        let claims = claims_file::parse("c", text).expect("good");
        let report = read("runs/x", "2026-01-01T00:00:00Z", &claims, cells);
        assert!(report.groups.iter().all(|group| group.basis == ClaimBasis::Measured));
        let names = |group: &NodeGroup| group.nodes.iter().map(ToString::to_string).collect();
        report.groups.iter().map(|group| (group.name.clone(), names(group))).collect()
    }

    #[test]
    fn nodes_that_reach_each_other_are_one_domain_through_others_too() {
        let cells = [cell("n1", "n2", Some(0.99)), cell("n3", "n2", Some(0.94))];
        let expected = ("rack".to_owned(), vec!["n1".to_owned(), "n2".into(), "n3".into()]);
        assert_eq!(groups(&cells), [expected], "n4 and n5 were not measured");
    }

    #[test]
    fn a_path_at_network_rate_or_a_cell_without_number_joins_no_nodes() {
        let cells = [
            cell("n1", "n2", Some(0.99)),
            cell("n2", "n3", Some(0.06)),
            cell("n1", "n4", None),
            MeasuredCell { rail: Some("rail0".to_owned()), ..cell("n1", "n5", Some(1.0)) },
        ];
        let found = groups(&cells);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["rack.part1", "rack.part2"]);
        assert_eq!(found[0].1, ["n1", "n2"]);
        assert_eq!(found[1].1, ["n3"]);
    }
}
