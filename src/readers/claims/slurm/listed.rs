//! Places in Slurm's texts, and the host lists there, expanded within one
//! budget: no file, however it is written, may stand for names without end.

use std::collections::HashSet;
use std::fmt;

use model::hostlist;
use model::id::NodeName;
use model::said::ProblemKind;
use model::said::Said;

/// The most names that all lists of one source may stand for together: ten
/// times the largest single list.
const MOST_NAMES: usize = 10 * hostlist::MOST;

/// The most names that a remark spells out.
const SHOWN: usize = 8;

/// A place in a text, as messages show it: `topology.yaml:7:9`, or, in JSON,
/// whose values have no places, `partitions[3]`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spot<'p> {
    At { place: &'p str, line: usize, column: usize },
    Item { list: &'static str, index: usize },
}

impl<'p> Spot<'p> {
    pub(super) fn at(place: &'p str, line: usize, column: usize) -> Self {
        Self::At { place, line, column }
    }

    /// This many characters to the right.
    fn right(self, characters: usize) -> Self {
        match self {
            Self::At { place, line, column } => Self::at(place, line, column + characters),
            Self::Item { .. } => self,
        }
    }
}

impl fmt::Display for Spot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { place, line, column } => write!(f, "{place}:{line}:{column}"),
            Self::Item { list, index } => write!(f, "{list}[{index}]"),
        }
    }
}

/// What is left of a source's budget of names.
#[derive(Debug)]
pub(super) struct Listed {
    left: usize,
    /// It was spent, and `said` says so.
    spent: bool,
}

impl Listed {
    pub(super) fn new() -> Self {
        Self { left: MOST_NAMES, spent: false }
    }

    /// The names of a list, each once. `None` where they cannot be told; the
    /// problem is in `said`. An empty list (`""`, `(null)`) has no names.
    pub(super) fn names(
        &mut self,
        said: &mut Said,
        spot: Spot<'_>,
        list: &str,
    ) -> Option<Vec<String>> {
        // Slurm reads over a comma too many at the end.
        let list = list.trim_end().trim_end_matches(',');
        if matches!(list.trim_start(), "" | "(null)" | "N/A" | "n/a") {
            return Some(Vec::new());
        }
        if self.spent {
            return None;
        }
        let names = match hostlist::expand(list) {
            Ok(names) => names,
            Err(error) => {
                let before = list.get(..error.offset).map_or(0, |text| text.chars().count());
                let at = spot.right(before).to_string();
                said.trouble(ProblemKind::Malformed, at, format!("host list: {}", error.message));
                return None;
            }
        };
        if names.iter().any(|name| name.eq_ignore_ascii_case("ALL")) {
            let message = "ALL stands for every node, and which these are is said elsewhere";
            said.trouble(ProblemKind::Unsupported, spot.to_string(), message);
            return None;
        }
        if self.left < names.len() {
            self.spent = true;
            let message = format!(
                "the lists of this source stand for more than {MOST_NAMES} names; those from here \
                 on are not read"
            );
            said.trouble(ProblemKind::Unsupported, spot.to_string(), message);
            return None;
        }
        self.left -= names.len();
        let mut seen = HashSet::new();
        let twice: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| !seen.insert(*name)).collect();
        if twice.is_empty() {
            return Some(names);
        }
        said.notes.push(format!("{spot}: listed more than once: {}", some(twice)));
        let mut seen = HashSet::new();
        Some(names.iter().filter(|name| seen.insert(name.as_str())).cloned().collect())
    }

    /// The same, as nodes.
    pub(super) fn nodes(
        &mut self,
        said: &mut Said,
        spot: Spot<'_>,
        list: &str,
    ) -> Option<Vec<NodeName>> {
        let names = self.names(said, spot, list)?;
        Some(names.into_iter().map(NodeName::from).collect())
    }
}

/// Names in a remark: the first few, and how many more there are.
pub(super) fn some<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let first: Vec<&str> = names.by_ref().take(SHOWN).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Nodes in a remark: a host list, cut where it is long.
pub(super) fn folded<'a>(nodes: impl IntoIterator<Item = &'a NodeName>) -> String {
    const LONGEST: usize = 200;
    let list = hostlist::fold(nodes.into_iter().map(NodeName::as_str));
    match list.char_indices().nth(LONGEST) {
        None => list,
        Some((end, _)) => format!("{}…", &list[..end]),
    }
}

/// A text without the mark that some editors put in front.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::said::SourceKind;

    fn spot() -> Spot<'static> {
        Spot::at("f", 3, 7)
    }

    fn said() -> Said {
        Said::nothing(SourceKind::SlurmTopology, "f")
    }

    #[test]
    fn a_mistake_is_named_where_it_is_in_the_text() {
        let mut said = said();
        assert_eq!(Listed::new().names(&mut said, spot(), "n[1-"), None);
        assert_eq!(said.problems[0].at.as_deref(), Some("f:3:8"));
        assert_eq!(said.problems[0].kind, ProblemKind::Malformed);
    }

    #[test]
    fn nothing_and_everything_are_told_apart() {
        let mut said = said();
        let mut listed = Listed::new();
        assert_eq!(listed.names(&mut said, spot(), " (null)"), Some(Vec::new()));
        assert!(said.problems.is_empty());
        assert_eq!(listed.names(&mut said, spot(), "ALL"), None);
        assert_eq!(said.problems[0].kind, ProblemKind::Unsupported);
    }

    #[test]
    fn a_name_listed_twice_is_a_remark_and_counts_once() {
        let mut said = said();
        let names = Listed::new().names(&mut said, spot(), "a[1-3],a2").expect("good");
        assert_eq!(names, ["a1", "a2", "a3"]);
        assert_eq!(said.notes, ["f:3:7: listed more than once: a2"]);
    }

    #[test]
    fn all_lists_together_have_a_limit() {
        let mut said = said();
        let mut listed = Listed::new();
        for _ in 0..10 {
            assert!(listed.names(&mut said, spot(), "n[1-100000]").is_some());
        }
        assert!(said.problems.is_empty(), "the budget was met exactly");
        assert!(listed.names(&mut said, spot(), "n1").is_none());
        assert!(listed.names(&mut said, spot(), "n2").is_none());
        assert_eq!(said.problems.len(), 1, "said once: {:?}", said.problems);
    }
}
