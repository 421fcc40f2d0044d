//! Unifies different names of the same machine: short name and FQDN, hostname and address.
//!
//! Sources are read in the order of their priority, and the first name of a machine stays. A name
//! that may mean two machines is kept and reported: a wrong merge hides a node, a missing one
//! only duplicates it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::messages::{list_nodes, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity, DisagreementSide};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, SourceReport};

/// Machines kept per name or alias: more than one is already ambiguous.
const MAX_CANDIDATES: usize = 4;

#[derive(Default)]
struct KnownNodeNames {
    names: BTreeSet<NodeName>,
    /// Machines by each prefix of their names that ends at a dot, in lower case.
    prefixes: BTreeMap<String, Vec<NodeName>>,
    /// Machines by name, lower case.
    lower: BTreeMap<String, Vec<NodeName>>,
    /// Machines by alias, lower case.
    aliases: BTreeMap<String, Vec<NodeName>>,
}

enum NodeNameMatch {
    Unique(NodeName),
    Ambiguous(Vec<NodeName>),
    Unknown,
}

fn push_candidate(index: &mut BTreeMap<String, Vec<NodeName>>, key: String, node: &NodeName) {
    let machines = index.entry(key).or_default();
    if machines.len() < MAX_CANDIDATES && !machines.contains(node) {
        machines.push(node.clone());
    }
}

/// The part of a name before each of its dots. An address has none: its dots do not separate a
/// host from a domain.
fn name_prefixes(name: &str) -> impl Iterator<Item = &str> {
    let ends = name.match_indices('.').map(|(at, _)| at);
    let is_address = name.parse::<IpAddr>().is_ok();
    ends.filter(move |at| !is_address && 0 < *at).map(|at| &name[..at])
}

/// Whether an alias identifies a machine.
fn is_distinctive(alias: &str) -> bool {
    let loopback = alias.parse::<IpAddr>().is_ok_and(|a| a.is_loopback() || a.is_unspecified());
    !alias.is_empty() && !loopback && !alias.starts_with("localhost")
}

impl KnownNodeNames {
    fn add(&mut self, node: &NodeName) {
        if self.names.insert(node.clone()) {
            let lower = node.as_str().to_lowercase();
            for beginning in name_prefixes(&lower) {
                push_candidate(&mut self.prefixes, beginning.to_owned(), node);
            }
            push_candidate(&mut self.lower, lower, node);
        }
    }

    /// The machines with this name or prefix.
    fn by_name(&self, word: &str) -> Vec<NodeName> {
        let own = [word].into_iter().chain(name_prefixes(word)).filter_map(|w| self.lower.get(w));
        let longer = self.prefixes.get(word).into_iter();
        let all: BTreeSet<&NodeName> = own.chain(longer).flatten().collect();
        all.into_iter().cloned().collect()
    }

    fn find(&self, name: &NodeName, aliases: &[String]) -> NodeNameMatch {
        let name = name.as_str().to_lowercase();
        let mut clues = vec![self.by_name(&name)];
        clues.extend(self.aliases.get(&name).cloned());
        for alias in aliases.iter().filter(|alias| is_distinctive(alias)) {
            let alias = alias.to_lowercase();
            clues.push(self.by_name(&alias));
            clues.extend(self.aliases.get(&alias).cloned());
        }
        let single: BTreeSet<&NodeName> =
            clues.iter().filter(|clue| clue.len() == 1).flatten().collect();
        match (single.first(), clues.iter().find(|clue| 1 < clue.len())) {
            (Some(only), _) if single.len() == 1 => NodeNameMatch::Unique((*only).clone()),
            (Some(_), _) => NodeNameMatch::Ambiguous(single.into_iter().cloned().collect()),
            (None, Some(several)) => NodeNameMatch::Ambiguous(several.clone()),
            (None, None) => NodeNameMatch::Unknown,
        }
    }
}

/// Gives every machine one name in all sources. `order` is the order of their priority.
pub(super) fn unify_names(
    reports: &mut [SourceReport],
    order: &[usize],
    found: &mut Vec<Disagreement>,
) {
    let mut known = KnownNodeNames::default();
    let mut unclear: BTreeMap<usize, BTreeMap<NodeName, Vec<NodeName>>> = BTreeMap::new();
    for &at in order {
        let source = &mut reports[at];
        let mut meant: BTreeMap<NodeName, Vec<NodeName>> = BTreeMap::new();
        let names = all_node_names(source);
        for name in names.iter().filter(|name| !known.names.contains(*name)) {
            let aliases = source.nodes.get(name).map_or(&[][..], |node| &node.aliases);
            match known.find(name, aliases) {
                // A source with two names means two machines.
                NodeNameMatch::Unique(machine) if names.contains(&machine) => {
                    unclear.entry(at).or_default().insert(name.clone(), vec![machine]);
                }
                NodeNameMatch::Unique(machine) => {
                    meant.entry(machine).or_default().push(name.clone());
                }
                NodeNameMatch::Ambiguous(machines) => {
                    unclear.entry(at).or_default().insert(name.clone(), machines);
                }
                NodeNameMatch::Unknown => {}
            }
        }
        let mut renamed = BTreeMap::new();
        for (machine, mut names) in meant {
            match (names.pop(), names.is_empty()) {
                (Some(name), true) => {
                    renamed.insert(name, machine);
                }
                (last, _) => {
                    for name in names.into_iter().chain(last) {
                        unclear.entry(at).or_default().insert(name, vec![machine.clone()]);
                    }
                }
            }
        }
        rename_nodes(source, &renamed);
        for name in all_node_names(source) {
            known.add(&name);
        }
        for (name, node) in &source.nodes {
            for alias in node.aliases.iter().filter(|alias| is_distinctive(alias)) {
                push_candidate(&mut known.aliases, alias.to_lowercase(), name);
            }
        }
    }
    found.extend(unclear.iter().map(|(at, names)| describe_ambiguous_name(&reports[*at], names)));
}

fn all_node_names(report: &SourceReport) -> BTreeSet<NodeName> {
    let groups = report.groups.iter().flat_map(|group| &group.nodes);
    let beliefs = report.beliefs.iter().flat_map(|belief| &belief.nodes);
    report.nodes.keys().chain(groups).chain(beliefs).cloned().collect()
}

fn rename_nodes(report: &mut SourceReport, renamed: &BTreeMap<NodeName, NodeName>) {
    if renamed.is_empty() {
        return;
    }
    let lists = report.groups.iter_mut().map(|group| &mut group.nodes);
    let lists = lists.chain(report.beliefs.iter_mut().map(|belief| &mut belief.nodes));
    for name in lists.flatten() {
        if let Some(machine) = renamed.get(name) {
            *name = machine.clone();
        }
    }
    for (name, machine) in renamed {
        if let Some(mut node) = report.nodes.remove(name) {
            // The original name stays searchable.
            let alias = name.as_str().to_owned();
            if !node.aliases.contains(&alias) {
                node.aliases.push(alias);
            }
            report.nodes.insert(machine.clone(), node);
        }
    }
}

/// `ambiguous-name`: a name that may mean several machines, or a machine that the same source
/// already has under another name.
fn describe_ambiguous_name(
    report: &SourceReport,
    names: &BTreeMap<NodeName, Vec<NodeName>>,
) -> Disagreement {
    let of_one = |(name, machines): (&NodeName, &Vec<NodeName>)| {
        format!("{name} may be {}", list_some(machines.iter().map(NodeName::as_str)))
    };
    let statement = list_some(names.iter().map(of_one));
    let summary = format!(
        "{} names {} ambiguously: {statement}",
        report.source.kind.label(),
        list_nodes(names.keys()),
    );
    new_disagreement(DisagreementClass::AmbiguousName, DisagreementSeverity::Doubt, summary)
        .with_nodes(names.keys())
        .with_side(DisagreementSide {
            source: report.source.clone(),
            at: None,
            basis: ClaimBasis::Asserted,
            text: format!("existing nodes: {}", list_nodes(names.keys())),
        })
        .with_remedy("use one name per machine in all sources, or fully qualified names everywhere")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::source_report::{NodeGroup, NodeGroupKind, SourceKind};

    fn names(list: &[&str]) -> Vec<NodeName> {
        list.iter().map(|name| NodeName::from(*name)).collect()
    }

    fn source(kind: SourceKind, list: &[&str]) -> SourceReport {
        let mut report = SourceReport::new(kind, "here");
        report.groups.push(NodeGroup::new(NodeGroupKind::Domain, "block", "b", names(list)));
        report
    }

    fn unified(mut reports: Vec<SourceReport>) -> (Vec<Vec<NodeName>>, Vec<Disagreement>) {
        let mut found = Vec::new();
        let order: Vec<usize> = (0..reports.len()).collect();
        unify_names(&mut reports, &order, &mut found);
        (reports.iter().map(|s| s.groups[0].nodes.clone()).collect(), found)
    }

    #[test]
    fn short_names_long_names_and_other_cases_are_one_machine() {
        let (nodes, found) = unified(vec![
            source(SourceKind::ClaimsFile, &["n1", "n2.rack.example"]),
            source(SourceKind::KubernetesNodes, &["n1.cluster.example", "n2", "N3"]),
            source(SourceKind::NodeFacts, &["n3"]),
        ]);
        assert_eq!(nodes[1], names(&["n1", "n2.rack.example", "N3"]));
        assert_eq!(nodes[2], names(&["N3"]));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn addresses_and_hostnames_find_their_machine() {
        let first = {
            let mut report = source(SourceKind::SlurmNodes, &["n1", "n2"]);
            report.node_mut(&"n1".into()).aliases =
                vec!["10.7.0.1".to_owned(), "127.0.0.1".to_owned()];
            report.node_mut(&"n2".into()).aliases =
                vec!["10.7.0.2".to_owned(), "127.0.0.1".to_owned()];
            report
        };
        let second = {
            let mut report = source(SourceKind::Ray, &["10.7.0.2", "ip-7"]);
            report.node_mut(&"ip-7".into()).aliases = vec!["N1".to_owned()];
            report
        };
        let (nodes, found) = unified(vec![first, second]);
        assert_eq!(nodes[1], names(&["n2", "n1"]));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn ambiguous_names_are_reported_and_not_merged() {
        let (nodes, found) = unified(vec![
            source(SourceKind::ClaimsFile, &["n1.a", "n1.b", "n2"]),
            source(SourceKind::NodeFacts, &["n1", "n2.x", "n2.y"]),
        ]);
        assert_eq!(nodes[1], names(&["n1", "n2.x", "n2.y"]));
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (one.class.as_str(), one.severity),
            ("ambiguous-name", DisagreementSeverity::Doubt)
        );
        assert_eq!(one.nodes, names(&["n1", "n2.x", "n2.y"]));
        assert!(one.summary.contains("n1 may be n1.a, n1.b"), "{}", one.summary);
    }

    #[test]
    fn parts_of_addresses_are_not_hosts_and_shared_hostnames_identify_none() {
        let mut slurm = source(SourceKind::SlurmNodes, &["n1", "n2", "10.7"]);
        for node in ["n1", "n2"] {
            slurm.node_mut(&node.into()).aliases = vec!["lab".to_owned()];
        }
        let (nodes, found) =
            unified(vec![slurm, source(SourceKind::NodeFacts, &["n2", "10.7.0.1", "n1"])]);
        assert_eq!(nodes[1], names(&["n2", "10.7.0.1", "n1"]));
        assert!(found.is_empty(), "{found:?}");
    }
}
