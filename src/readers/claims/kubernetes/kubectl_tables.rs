//! Tables of `kubectl get nodes`: with `--show-labels`, with the clique as a
//! column (`-L nvidia.com/gpu.clique`), or with columns of one's own.
//!
//! Only tables whose first column names nodes and that have a column with labels
//! or cliques are taken for one. Cells may be empty or have blanks in them, so
//! that columns are told by where their heading stands.

use std::collections::BTreeMap;

use super::gpu_labels::CLIQUE_LABEL;
use crate::claims::reader_util::sanitize_text;
use model::source_report::{SourceProblem, SourceProblemKind};

/// One row.
#[derive(Debug)]
pub(super) struct KubectlNodeRow {
    pub(super) node: String,
    pub(super) labels: BTreeMap<String, String>,
}

/// What the column says that is read.
enum LabelColumnKind {
    Labels,
    Clique,
}

/// The column that is read.
struct LabelColumn {
    kind: LabelColumnKind,
    /// Its number, from 0.
    number: usize,
    /// Where it begins, in characters.
    start: usize,
    /// Where the next begins.
    end: usize,
}

/// Whether a text is such a table.
pub(super) fn recognises(text: &str) -> bool {
    text.lines().find(|line| !line.trim().is_empty()).and_then(find_column).is_some()
}

/// The column with labels or the clique, by the header.
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
    // kubectl heads the column of a label with its last part, in capitals.
    let (number, says) = match find("LABELS") {
        Some(number) => (number, LabelColumnKind::Labels),
        None => (find("GPU.CLIQUE").or_else(|| find("CLIQUE"))?, LabelColumnKind::Clique),
    };
    let characters = |at: usize| header[..at].chars().count();
    let end = words.get(number + 1).map_or(usize::MAX, |(at, _)| characters(*at));
    Some(LabelColumn { kind: says, number, start: characters(words[number].0), end })
}

impl LabelColumn {
    /// Its cell in a row: what stands under its heading, or in a table that is not
    /// aligned the word with its number.
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

/// Its rows. Rows without labels are problems.
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
            // kubectl prints <none> where there are none.
            (LabelColumnKind::Labels, None) => {
                problems.push(SourceProblem {
                    kind: SourceProblemKind::Incomplete,
                    at: Some(format!("{place}:{}:1", number + 1)),
                    message: format!("a row without its column {}", column.number + 1),
                });
                continue;
            }
            // Nothing, or <none>, for a label that is not there.
            (LabelColumnKind::Clique, None | Some("<none>")) => {}
            (LabelColumnKind::Clique, Some(clique)) => {
                labels.insert(CLIQUE_LABEL.to_owned(), clique.to_owned());
            }
        }
        rows.push(KubectlNodeRow { node: sanitize_text(node), labels });
    }
    rows
}
