//! The texts of disagreements, and their order.
//!
//! Nothing is decided here: the checks decide, this file formats sentences.

use std::collections::{BTreeMap, BTreeSet};

use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::hostlist;
use model::id::{DomainName, NodeName};

/// A longer list of nodes is shortened.
const MAX_LIST_LENGTH: usize = 72;

/// A disagreement with only its sentence.
pub(super) fn new_disagreement(
    class: DisagreementClass,
    severity: DisagreementSeverity,
    summary: impl Into<String>,
) -> Disagreement {
    Disagreement {
        class,
        severity,
        domain: None,
        nodes: Vec::new(),
        sides: Vec::new(),
        summary: summary.into(),
        remedy: None,
    }
}

/// Nodes as a folded host list, shortened if it is long.
pub(super) fn list_nodes<'n>(nodes: impl IntoIterator<Item = &'n NodeName>) -> String {
    let nodes: BTreeSet<&NodeName> = nodes.into_iter().collect();
    let folded = hostlist::fold(nodes.iter().map(|node| node.as_str()));
    if folded.len() <= MAX_LIST_LENGTH {
        return folded;
    }
    let first: Vec<&str> = nodes.iter().take(3).map(|node| node.as_str()).collect();
    format!("{} nodes ({} ...)", nodes.len(), first.join(", "))
}

/// A count with its noun.
pub(super) fn count_of(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

pub(super) fn is_or_are(number: usize) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// Joins the first few names.
pub(super) fn list_some(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    const MAX_LISTED: usize = 4;
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.len() <= MAX_LISTED {
        return names.join(", ");
    }
    format!("{} and {} more", names[..MAX_LISTED].join(", "), names.len() - MAX_LISTED)
}

/// Sorts worst first. Disagreements that differ only in their sources are merged, with all sides:
/// two sources that repeat one cause are not two causes.
pub(super) fn sort_and_merge(found: Vec<Disagreement>) -> Vec<Disagreement> {
    type DisagreementMergeKey =
        (DisagreementClass, Option<DomainName>, Vec<NodeName>, Option<String>);
    let mut kept: Vec<Disagreement> = Vec::new();
    let mut known: BTreeMap<DisagreementMergeKey, usize> = BTreeMap::new();
    for one in found {
        // Without a node or a domain, only the sentence distinguishes causes.
        let specific = !one.nodes.is_empty() || one.domain.is_some();
        let sentence = (!specific).then(|| one.summary.clone());
        let key = (one.class.clone(), one.domain.clone(), one.nodes.clone(), sentence);
        match known.get(&key) {
            Some(at) => {
                let first = &mut kept[*at];
                first.severity = first.severity.max(one.severity);
                for side in one.sides {
                    if !first.sides.contains(&side) {
                        first.sides.push(side);
                    }
                }
            }
            None => {
                known.insert(key, kept.len());
                kept.push(one);
            }
        }
    }
    kept.sort_by(|a, b| {
        let key = |d: &Disagreement| (d.class.clone(), d.domain.clone(), d.nodes.first().cloned());
        b.severity.cmp(&a.severity).then_with(|| key(a).cmp(&key(b)))
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_one_cause_is_reported_once_with_all_sides() {
        let node = NodeName::from("n1");
        let note =
            new_disagreement(DisagreementClass::from_name("b"), DisagreementSeverity::Note, "x");
        let bad = new_disagreement(
            DisagreementClass::from_name("a"),
            DisagreementSeverity::Contradiction,
            "y",
        )
        .with_nodes([&node]);
        let doubt =
            new_disagreement(DisagreementClass::from_name("a"), DisagreementSeverity::Doubt, "z")
                .with_nodes([&node]);
        let merged = sort_and_merge(vec![note, doubt, bad]);
        let seen: Vec<(&str, DisagreementSeverity)> =
            merged.iter().map(|d| (d.class.as_str(), d.severity)).collect();
        assert_eq!(
            seen,
            [("a", DisagreementSeverity::Contradiction), ("b", DisagreementSeverity::Note)]
        );
    }

    #[test]
    fn long_lists_of_nodes_are_shortened() {
        let odd: Vec<NodeName> =
            (0..60).map(|n| NodeName::from(format!("{}x{n}", n * 7919 % 97))).collect();
        assert!(list_nodes(&odd).starts_with("60 nodes ("), "{}", list_nodes(&odd));
        let few = [NodeName::from("n1"), NodeName::from("n2")];
        assert_eq!(list_nodes(&few), "n[1-2]");
    }
}
