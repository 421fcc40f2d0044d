//! Tables of `kubectl get nodes`: with `--show-labels`, with the clique as a column (`-L
//! nvidia.com/gpu.clique`), or with custom columns.
//!
//! A table must have node names in the first column, and a column with labels or cliques. Cells
//! may be empty or contain blanks, so that the position of the heading identifies the column.

use std::collections::BTreeMap;

use super::gpu_labels::CLIQUE_LABEL;
use crate::claims::reader_util::sanitize_text;
use model::source_report::{SourceProblem, SourceProblemKind};

#[derive(Debug)]
pub(super) struct KubectlNodeRow {
    pub(super) node: String,
    pub(super) labels: BTreeMap<String, String>,
}

enum LabelColumnKind {
    Labels,
    Clique,
}

/// The column with labels or the clique.
struct LabelColumn {
    kind: LabelColumnKind,
    /// Its index, from 0.
    number: usize,
    /// Start position, in characters.
    start: usize,
    /// Start of the next column.
    end: usize,
}

/// Whether a text is a table of nodes.
pub(super) fn recognises(text: &str) -> bool {
    text.lines().find(|line| !line.trim().is_empty()).and_then(find_column).is_some()
}

/// Finds the column with labels or the clique in the header.
fn find_column(header: &str) -> Option<LabelColumn> {
    let mut words: Vec<(usize, &str)> = Vec::new();
    for word in header.split_whitespace() {
        let from = words.last().map_or(0, |(at, word)| at + word.len());
        words.push((from + header[from..].find(word)?, word));
    }
    if !matches!(words.first(), Some((_, "NAME" | "NODE"))) {
        return None;
    }
    let find = |name: &str| words.iter().position(|(_, word)| *word == name);
    // kubectl's heading for a label column is the last part of the key, in capitals.
    let (number, kind) = match find("LABELS") {
        Some(number) => (number, LabelColumnKind::Labels),
        None => (find("GPU.CLIQUE").or_else(|| find("CLIQUE"))?, LabelColumnKind::Clique),
    };
    let characters = |at: usize| header[..at].chars().count();
    let end = words.get(number + 1).map_or(usize::MAX, |(at, _)| characters(*at));
    Some(LabelColumn { kind, number, start: characters(words[number].0), end })
}

impl LabelColumn {
    /// The cell in a row: the text below the heading, or the word with the column's index if the
    /// table is not aligned.
    fn cell<'l>(&self, line: &'l str) -> Option<&'l str> {
        let at = |number: usize| line.char_indices().nth(number).map_or(line.len(), |(at, _)| at);
        let (before, under) = line.split_at(at(self.start));
        if before.ends_with(char::is_whitespace) {
            let cell = under[..at(self.end) - before.len()].trim();
            return (!cell.is_empty()).then_some(cell);
        }
        line.split_whitespace().nth(self.number)
    }
}

/// The rows of the table. Rows without labels are problems.
pub(super) fn read_rows(
    place: &str,
    text: &str,
    problems: &mut Vec<SourceProblem>,
) -> Vec<KubectlNodeRow> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some(column) = lines.next().and_then(|(_, header)| find_column(header)) else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    for (number, line) in lines {
        let Some(node) = line.split_whitespace().next() else { continue };
        let cell = column.cell(line);
        let mut labels = BTreeMap::new();
        match (&column.kind, cell) {
            (LabelColumnKind::Labels, Some(cell)) => {
                let pairs = cell.split(',').filter_map(|pair| pair.split_once('='));
                labels.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
            }
            // kubectl prints <none> for a node without labels.
            (LabelColumnKind::Labels, None) => {
                problems.push(SourceProblem {
                    kind: SourceProblemKind::Incomplete,
                    at: Some(format!("{place}:{}:1", number + 1)),
                    message: format!("a row without its column {}", column.number + 1),
                });
                continue;
            }
            // Empty, or <none>, for a missing label.
            (LabelColumnKind::Clique, None | Some("<none>")) => {}
            (LabelColumnKind::Clique, Some(clique)) => {
                labels.insert(CLIQUE_LABEL.to_owned(), clique.to_owned());
            }
        }
        rows.push(KubectlNodeRow { node: sanitize_text(node), labels });
    }
    rows
}
