//! Locations in Slurm's texts, and expansion of host lists within one budget: a short file must
//! not expand to an unlimited number of names.

use std::collections::HashSet;
use std::fmt;

use model::hostlist;
use model::id::NodeName;
use model::source_report::{SourceProblemKind, SourceReport};

/// Limit for the names in all lists of one source together: ten times the largest single list.
const MAX_NAMES: usize = 10 * hostlist::MAX_NAMES;

/// The most names in one remark.
const MAX_SHOWN: usize = 8;

/// A location in a text, as messages show it: `topology.yaml:7:9`, or, for JSON, whose parser
/// keeps no positions, `partitions[3]`.
#[derive(Clone, Copy, Debug)]
pub(super) enum SlurmTextPosition<'p> {
    LineColumn { place: &'p str, line: usize, column: usize },
    Item { list: &'static str, index: usize },
}

impl<'p> SlurmTextPosition<'p> {
    pub(super) fn new(place: &'p str, line: usize, column: usize) -> Self {
        Self::LineColumn { place, line, column }
    }

    /// Moves the position to the right.
    fn offset_by(self, characters: usize) -> Self {
        match self {
            Self::LineColumn { place, line, column } => Self::new(place, line, column + characters),
            Self::Item { .. } => self,
        }
    }
}

impl fmt::Display for SlurmTextPosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineColumn { place, line, column } => write!(f, "{place}:{line}:{column}"),
            Self::Item { list, index } => write!(f, "{list}[{index}]"),
        }
    }
}

/// The remaining budget of a source.
#[derive(Debug)]
pub(super) struct HostListBudget {
    names_left: usize,
    /// The budget is exhausted, and the problem is reported.
    spent: bool,
}

impl HostListBudget {
    pub(super) fn new() -> Self {
        Self { names_left: MAX_NAMES, spent: false }
    }

    /// The names of a list, without duplicates. `None` on an error, which is added to `report`. An
    /// empty list (`""`, `(null)`) has no names.
    pub(super) fn expand_names(
        &mut self,
        report: &mut SourceReport,
        spot: SlurmTextPosition<'_>,
        list: &str,
    ) -> Option<Vec<String>> {
        // Slurm ignores a trailing comma.
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
                let at = spot.offset_by(before).to_string();
                report.push_problem(
                    SourceProblemKind::Malformed,
                    at,
                    format!("host list: {}", error.message),
                );
                return None;
            }
        };
        if names.iter().any(|name| name.eq_ignore_ascii_case("ALL")) {
            let message = "ALL stands for every node, and this text does not list the nodes";
            report.push_problem(SourceProblemKind::Unsupported, spot.to_string(), message);
            return None;
        }
        if self.names_left < names.len() {
            self.spent = true;
            let message = format!(
                "the lists of this source contain more than {MAX_NAMES} names; those from here \
                 on are ignored"
            );
            report.push_problem(SourceProblemKind::Unsupported, spot.to_string(), message);
            return None;
        }
        self.names_left -= names.len();
        let mut seen = HashSet::new();
        let twice: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| !seen.insert(*name)).collect();
        if twice.is_empty() {
            return Some(names);
        }
        report.notes.push(format!("{spot}: listed more than once: {}", list_some(twice)));
        let mut seen = HashSet::new();
        Some(names.iter().filter(|name| seen.insert(name.as_str())).cloned().collect())
    }

    pub(super) fn expand_nodes(
        &mut self,
        report: &mut SourceReport,
        spot: SlurmTextPosition<'_>,
        list: &str,
    ) -> Option<Vec<NodeName>> {
        let names = self.expand_names(report, spot, list)?;
        Some(names.into_iter().map(NodeName::from).collect())
    }
}

/// Names in a remark: the first few, and the number of others.
pub(super) fn list_some<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let first: Vec<&str> = names.by_ref().take(MAX_SHOWN).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Nodes in a remark: a host list, truncated if it is long.
pub(super) fn fold_nodes<'a>(nodes: impl IntoIterator<Item = &'a NodeName>) -> String {
    const LONGEST: usize = 200;
    let list = hostlist::fold(nodes.into_iter().map(NodeName::as_str));
    match list.char_indices().nth(LONGEST) {
        None => list,
        Some((end, _)) => format!("{}…", &list[..end]),
    }
}

/// The text without a byte order mark.
pub(super) fn strip_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::source_report::SourceKind;

    fn spot() -> SlurmTextPosition<'static> {
        SlurmTextPosition::new("f", 3, 7)
    }

    fn empty_report() -> SourceReport {
        SourceReport::new(SourceKind::SlurmTopology, "f")
    }

    #[test]
    fn a_mistake_is_reported_with_its_position() {
        let mut report = empty_report();
        assert_eq!(HostListBudget::new().expand_names(&mut report, spot(), "n[1-"), None);
        assert_eq!(report.problems[0].at.as_deref(), Some("f:3:8"));
        assert_eq!(report.problems[0].kind, SourceProblemKind::Malformed);
    }

    #[test]
    fn empty_lists_and_all_are_distinguished() {
        let mut report = empty_report();
        let mut listed = HostListBudget::new();
        assert_eq!(listed.expand_names(&mut report, spot(), " (null)"), Some(Vec::new()));
        assert!(report.problems.is_empty());
        assert_eq!(listed.expand_names(&mut report, spot(), "ALL"), None);
        assert_eq!(report.problems[0].kind, SourceProblemKind::Unsupported);
    }

    #[test]
    fn a_name_listed_twice_is_a_remark_and_counts_once() {
        let mut report = empty_report();
        let names =
            HostListBudget::new().expand_names(&mut report, spot(), "a[1-3],a2").expect("good");
        assert_eq!(names, ["a1", "a2", "a3"]);
        assert_eq!(report.notes, ["f:3:7: listed more than once: a2"]);
    }

    #[test]
    fn all_lists_together_have_a_limit() {
        let mut report = empty_report();
        let mut listed = HostListBudget::new();
        for _ in 0..10 {
            assert!(listed.expand_names(&mut report, spot(), "n[1-100000]").is_some());
        }
        assert!(report.problems.is_empty(), "the budget was met exactly");
        assert!(listed.expand_names(&mut report, spot(), "n1").is_none());
        assert!(listed.expand_names(&mut report, spot(), "n2").is_none());
        assert_eq!(report.problems.len(), 1, "reported once: {:?}", report.problems);
    }
}
