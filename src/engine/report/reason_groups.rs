//! Groups texts that differ only in a node's name: equal reasons are listed once, with their nodes
//! as a host list.

use std::collections::{BTreeMap, BTreeSet};

use super::plain_text::to_plain;
use model::hostlist;

/// Placeholder of the only node's name in a text.
const NODE: &str = "\u{1}";

/// Longest host list inside a sentence.
const LONGEST: usize = 80;

/// Subjects with the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonGroup {
    /// The reason.
    pub why: String,
    /// The subjects, with nodes folded.
    pub whats: Vec<String>,
    /// The number of subjects.
    pub count: usize,
}

/// Groups pairs of a subject and its reason, in the order in which reasons first appear. `names`
/// are all known nodes.
pub fn group_by_reason<'t>(
    pairs: impl IntoIterator<Item = (&'t str, &'t str)>,
    names: &BTreeSet<&str>,
) -> Vec<ReasonGroup> {
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    let mut all: Vec<ReasonGroupBuilder<'t>> = Vec::new();
    for (what, why) in pairs {
        let node = find_single_name(what, names);
        let of = |text: &str| node.map_or_else(|| text.to_owned(), |node| remove_name(text, node));
        let (what, why) = (of(what), of(why));
        let index = *at.entry(why.clone()).or_insert_with(|| {
            all.push(ReasonGroupBuilder { why, ..ReasonGroupBuilder::default() });
            all.len() - 1
        });
        all[index].add(what, node);
    }
    all.into_iter().map(ReasonGroupBuilder::finish).collect()
}

#[derive(Debug, Default)]
struct ReasonGroupBuilder<'t> {
    why: String,
    /// Each subject once, with its nodes.
    whats: Vec<(String, BTreeSet<&'t str>)>,
    places: BTreeMap<String, usize>,
    count: usize,
}

impl<'t> ReasonGroupBuilder<'t> {
    fn add(&mut self, what: String, node: Option<&'t str>) {
        self.count += 1;
        let whats = &mut self.whats;
        let index = *self.places.entry(what.clone()).or_insert_with(|| {
            whats.push((what, BTreeSet::new()));
            whats.len() - 1
        });
        self.whats[index].1.extend(node);
    }

    fn finish(self) -> ReasonGroup {
        let all: BTreeSet<&str> =
            self.whats.iter().flat_map(|(_, nodes)| nodes.iter().copied()).collect();
        let whats = self.whats.iter().map(|(what, nodes)| what.replace(NODE, &fold_list(nodes)));
        ReasonGroup {
            whats: whats.collect(),
            why: self.why.replace(NODE, &fold_list(&all)),
            count: self.count,
        }
    }
}

fn fold_list(nodes: &BTreeSet<&str>) -> String {
    let list = hostlist::fold(nodes.iter().copied());
    let list = to_plain(&list);
    match list.chars().count() <= LONGEST {
        true => list.into_owned(),
        false => format!("{} nodes", nodes.len()),
    }
}

/// The only node that a text names; `None` if it names none or several.
fn find_single_name<'t>(text: &'t str, names: &BTreeSet<&str>) -> Option<&'t str> {
    let mut found = candidate_names(text).map(|(_, word)| word).filter(|word| names.contains(word));
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

/// The text without this name, wherever it is a separate token.
fn remove_name(text: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (at, word) in candidate_names(text).filter(|(_, word)| *word == name) {
        out.push_str(&text[from..at]);
        out.push_str(NODE);
        from = at + word.len();
    }
    out.push_str(&text[from..]);
    out
}

/// The text without any of these names: two texts belong together if the results are equal.
pub fn remove_names(text: &str, names: &BTreeSet<&str>) -> String {
    names.iter().fold(text.to_owned(), |text, name| remove_name(&text, name))
}

/// Tokens that may be names, and their positions.
fn candidate_names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.split(move |c: char| !is_part(c)).filter_map(move |word| {
        let word = word.trim_end_matches('.');
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        (!word.is_empty()).then_some((at, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped_lines(pairs: &[(&str, &str)]) -> Vec<String> {
        let names = ["node0001", "node0002", "node0003", "n.example.org"].into();
        let all = group_by_reason(pairs.iter().copied(), &names);
        let line = |it: &ReasonGroup| format!("{} ({}): {}", it.whats.join(", "), it.count, it.why);
        all.iter().map(line).collect()
    }

    #[test]
    fn one_reason_that_names_each_node_is_one_line() {
        let ssh = |node: &str| format!("ssh: Could not resolve hostname {node}: not known");
        let (a, b) = (ssh("node0001"), ssh("node0002"));
        assert_eq!(
            grouped_lines(&[("q on node0001", &a), ("q on node0002", &b), ("node node0002", &b)]),
            ["q on node[0001-0002], node node0002 (3): \
              ssh: Could not resolve hostname node[0001-0002]: not known"]
        );
    }

    #[test]
    fn different_texts_stay_separate_and_longer_names_are_other_names() {
        assert_eq!(
            grouped_lines(&[
                ("node0001", "busy"),
                ("node0002", "node0001 is busy"),
                ("node0003", "node00030 is down"),
                ("tcp between node0001 and node0002", "node0001 hung"),
                ("n.example.org", "see n.example.org."),
                ("block01", "nothing was measured"),
            ]),
            [
                "node0001 (1): busy",
                "node0002 (1): node0001 is busy",
                "node0003 (1): node00030 is down",
                "tcp between node0001 and node0002 (1): node0001 hung",
                "n.example.org (1): see n.example.org.",
                "block01 (1): nothing was measured",
            ]
        );
    }
}
