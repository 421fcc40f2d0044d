//! Which lines, columns and cells of a grid a finding points at.

use super::grid::End;
use super::grid::Grid;
use super::grid::Shape;
use crate::model::verdict::Direction;
use crate::model::verdict::Finding;
use crate::model::verdict::LocusKind;

/// The blamed parts of one grid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Blame {
    /// Lines (sources, or nodes).
    pub(super) rows: Vec<usize>,
    /// Columns (destinations).
    pub(super) cols: Vec<usize>,
    /// Single cells.
    pub(super) cells: Vec<(usize, usize)>,
}

impl Blame {
    /// Whether nothing here is blamed.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.cols.is_empty() && self.cells.is_empty()
    }
}

/// Whether a finding rests on this grid's test, as far as it tells.
pub(super) fn concerns(finding: &Finding, grid: &Grid) -> bool {
    let domain = finding.locus.domain.as_ref().zip(grid.domain.as_ref());
    if domain.is_some_and(|(a, b)| a != b) {
        return false;
    }
    let mut tests = finding.evidence.iter().filter_map(|e| e.testcase.as_deref()).peekable();
    // One test may appear with and without the suffix of its part.
    tests.peek().is_none()
        || tests.any(|t| grid.testcase.starts_with(t) || t.starts_with(&*grid.testcase))
}

/// What the findings blame in this grid.
pub(super) fn blame(findings: &[Finding], grid: &Grid) -> Blame {
    let mut blame = Blame::default();
    for finding in findings.iter().filter(|f| concerns(f, grid)) {
        let locus = &finding.locus;
        let Some(node) = &locus.node else { continue };
        let part = End { node: Some(node.clone()), gpu: locus.gpu };
        let rows = places(&grid.rows, &part);
        let cols = places(&grid.cols, &part);
        match (grid.shape, locus.kind) {
            (Shape::PerGpu, _) => {
                let row = grid.rows.iter().position(|e| e.node.as_ref() == Some(node));
                let col = grid.cols.iter().position(|e| locus.gpu.is_some() && e.gpu == locus.gpu);
                match (row, col) {
                    (Some(row), Some(col)) => blame.cells.push((row, col)),
                    (Some(row), None) if locus.gpu.is_none() => blame.rows.push(row),
                    _ => {}
                }
            }
            (Shape::Pairs, LocusKind::Pair) => {
                let Some(peer) = locus.peer.as_deref() else { continue };
                let there = |ends: &[End]| -> Vec<usize> {
                    let fits = |e: &End| {
                        e.name() == peer || e.node.as_ref().is_some_and(|n| n.as_str() == peer)
                    };
                    ends.iter().enumerate().filter(|(_, e)| fits(e)).map(|(i, _)| i).collect()
                };
                let (peer_rows, peer_cols) = (there(&grid.rows), there(&grid.cols));
                if locus.direction != Some(Direction::Rx) {
                    blame.cells.extend(crossed(&rows, &peer_cols));
                }
                if locus.direction != Some(Direction::Tx) {
                    blame.cells.extend(crossed(&peer_rows, &cols));
                }
            }
            (Shape::Pairs, _) => {
                if locus.direction != Some(Direction::Rx) {
                    blame.rows.extend(rows);
                }
                if locus.direction != Some(Direction::Tx) {
                    blame.cols.extend(cols);
                }
            }
        }
    }
    for list in [&mut blame.rows, &mut blame.cols] {
        list.sort_unstable();
        list.dedup();
    }
    blame.cells.sort_unstable();
    blame.cells.dedup();
    blame
}

/// Where a part sits: its own line, all lines of its node where no GPU is
/// named, or its node's one line in a grid of nodes.
fn places(ends: &[End], part: &End) -> Vec<usize> {
    let fits = |end: &End| {
        end.node == part.node && (end.gpu == part.gpu || part.gpu.is_none() || end.gpu.is_none())
    };
    ends.iter().enumerate().filter(|(_, end)| fits(end)).map(|(i, _)| i).collect()
}

fn crossed(rows: &[usize], cols: &[usize]) -> Vec<(usize, usize)> {
    rows.iter().flat_map(|&r| cols.iter().map(move |&c| (r, c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::NodeName;
    use crate::report::fixture;
    use crate::report::grid::grids;

    #[test]
    fn a_blamed_gpu_is_its_row_and_column_where_its_evidence_is_and_nowhere_else() {
        let run = fixture::rack();
        let grids = grids(&run);
        let square = blame(&run.verdicts.findings, &grids[1]);
        assert_eq!(square, Blame { rows: vec![26], cols: vec![26], cells: vec![] });
        assert!(blame(&run.verdicts.findings, &grids[0]).is_empty());
    }

    #[test]
    fn a_direction_is_a_row_or_a_column_and_a_pair_is_two_cells() {
        let mut run = fixture::rack();
        let grids = grids(&run);
        run.verdicts.findings[0].locus.direction = Some(Direction::Tx);
        let sent = blame(&run.verdicts.findings, &grids[1]);
        assert_eq!((sent.rows, sent.cols), (vec![26], vec![]));

        let locus = &mut run.verdicts.findings[0].locus;
        locus.kind = LocusKind::Pair;
        locus.direction = None;
        locus.peer = Some("node0001:3".to_owned());
        let pair = blame(&run.verdicts.findings, &grids[1]);
        assert_eq!(pair.cells, [(3, 26), (26, 3)]);
        assert!(pair.rows.is_empty() && pair.cols.is_empty());
    }

    #[test]
    fn a_node_blames_all_lines_of_its_gpus() {
        let mut run = fixture::rack();
        let grids = grids(&run);
        let locus = &mut run.verdicts.findings[0].locus;
        locus.kind = LocusKind::Node;
        locus.node = Some(NodeName::from("node0002"));
        locus.gpu = None;
        assert_eq!(blame(&run.verdicts.findings, &grids[1]).rows, [4, 5, 6, 7]);
    }
}
