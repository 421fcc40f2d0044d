//! Tables of `kubectl get nodes`: with `--show-labels`, with the clique as a
//! column (`-L nvidia.com/gpu.clique`), or with columns of one's own.
//!
//! Only tables whose first column names nodes and that have a column with labels
//! or cliques are taken for one.

use std::collections::BTreeMap;

use super::gpu_labels::CLIQUE;
use super::objects::shown;
use crate::model::said::ProblemKind;
use crate::model::said::SourceProblem;

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) labels: BTreeMap<String, String>,
}

/// Which column says what.
enum Column {
    Labels,
    Clique,
}

/// Whether a text is such a table.
pub(super) fn recognises(text: &str) -> bool {
    text.lines().find(|line| !line.trim().is_empty()).and_then(columns).is_some()
}

/// The column with labels or the clique, by the header.
fn columns(header: &str) -> Option<(usize, Column)> {
    let words: Vec<&str> = header.split_whitespace().collect();
    if !matches!(words.first(), Some(&("NAME" | "NODE"))) {
        return None;
    }
    let column = |word: &str| words.iter().position(|at| *at == word);
    // kubectl heads the column of a label with its last part, in capitals.
    column("LABELS").map(|at| (at, Column::Labels)).or_else(|| {
        column("GPU.CLIQUE").or_else(|| column("CLIQUE")).map(|at| (at, Column::Clique))
    })
}

/// Its rows. Rows without the column are problems.
pub(super) fn rows(place: &str, text: &str, problems: &mut Vec<SourceProblem>) -> Vec<Row> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((column, what)) = lines.next().and_then(|(_, header)| columns(header)) else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    for (number, line) in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Ages such as "5d (2m ago)" shift what is behind them; labels are last.
        let cell = match what {
            Column::Labels => words.last().filter(|_| column < words.len()),
            Column::Clique => words.get(column),
        };
        // kubectl prints nothing, or <none>, for a label that is not there.
        let cell = cell.or(matches!(what, Column::Clique).then_some(&"<none>"));
        let (Some(node), Some(cell)) = (words.first(), cell) else {
            problems.push(SourceProblem {
                kind: ProblemKind::Incomplete,
                at: Some(format!("{place}:{}:1", number + 1)),
                message: format!("a row without its column {}", column + 1),
            });
            continue;
        };
        let mut labels = BTreeMap::new();
        match what {
            Column::Labels => {
                let pairs = cell.split(',').filter_map(|pair| pair.split_once('='));
                labels.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
            }
            Column::Clique if *cell != "<none>" => {
                labels.insert(CLIQUE.to_owned(), (*cell).to_owned());
            }
            Column::Clique => {}
        }
        rows.push(Row { node: shown(node), labels });
    }
    rows
}
