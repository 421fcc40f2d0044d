//! The lines, columns and cells of a grid that a finding blames.
//!
//! A mark is drawn only if the cells confirm the finding: a blamed GPU is not marked in a matrix
//! that shows it healthy.

use std::collections::BTreeMap;

use super::grid::{GridEnd, GridShape, HeatmapGrid};
use model::id::NodeName;
use model::verdict::{Direction, Finding, Locus, LocusKind};

/// The blamed parts of one grid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GridBlame {
    /// Sources, or nodes.
    pub(super) rows: Vec<usize>,
    /// Destinations.
    pub(super) cols: Vec<usize>,
    pub(super) cells: Vec<(usize, usize)>,
}

impl GridBlame {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.cols.is_empty() && self.cells.is_empty()
    }

    /// Sorts all lists and removes duplicates.
    fn normalize(&mut self) {
        for list in [&mut self.rows, &mut self.cols] {
            list.sort_unstable();
            list.dedup();
        }
        self.cells.sort_unstable();
        self.cells.dedup();
    }
}

/// Whether a finding is about the domain of this grid, as far as both name one.
fn is_same_domain(finding: &Finding, grid: &HeatmapGrid) -> bool {
    finding.locus.domain.as_ref().zip(grid.domain.as_ref()).is_none_or(|(a, b)| a == b)
}

/// Whether a finding's evidence names this grid's test.
pub(super) fn names_test(finding: &Finding, grid: &HeatmapGrid) -> bool {
    // One test may appear with and without the suffix of its part.
    let same = |t: &str| grid.testcase.starts_with(t) || t.starts_with(&*grid.testcase);
    finding.evidence.iter().filter_map(|e| e.testcase.as_deref()).any(same)
}

/// A grid in which findings are located.
pub(super) struct BlameFinder<'g> {
    grid: &'g HeatmapGrid,
    lines: [GridLines<'g>; 2],
}

impl<'g> BlameFinder<'g> {
    pub(super) fn new(grid: &'g HeatmapGrid, findings: usize) -> Self {
        Self { grid, lines: [&grid.rows, &grid.cols].map(|ends| GridLines::new(ends, findings)) }
    }

    pub(super) fn find(&self, finding: &Finding) -> GridBlame {
        if !is_same_domain(finding, self.grid) {
            return GridBlame::default();
        }
        let mut one = locate_part(finding, self.grid, &self.lines);
        if !is_borne_out(finding, &one, self.grid) {
            return GridBlame::default();
        }
        one.normalize();
        one
    }
}

/// The parts of this grid that the findings blame.
pub(super) fn blame_grid(findings: &[Finding], grid: &HeatmapGrid) -> GridBlame {
    let mut blame = GridBlame::default();
    let marked = BlameFinder::new(grid, findings.len());
    for one in findings.iter().map(|finding| marked.find(finding)) {
        blame.rows.extend(one.rows);
        blame.cols.extend(one.cols);
        blame.cells.extend(one.cells);
    }
    blame.normalize();
    blame
}

/// Whether the cells of a part are not as expected: any of them if the finding cites this test,
/// most of them in any other test.
fn is_borne_out(finding: &Finding, part: &GridBlame, grid: &HeatmapGrid) -> bool {
    let (mut all, mut bad) = (0, 0);
    let mut count_spot = |row: usize, col: usize| {
        if let Some(spot) = grid.at(row, col) {
            all += 1;
            bad += usize::from(!spot.is_as_expected());
        }
    };
    for &row in &part.rows {
        (0..grid.cols.len()).for_each(|col| count_spot(row, col));
    }
    for &col in &part.cols {
        (0..grid.rows.len()).for_each(|row| count_spot(row, col));
    }
    part.cells.iter().for_each(|&(row, col)| count_spot(row, col));
    if names_test(finding, grid) { 0 < bad } else { all < 2 * bad }
}

/// The lines, or the columns, of a grid by their nodes. A grid can contain all nodes of a fleet,
/// and as many findings may be located in it.
struct GridLines<'g> {
    ends: &'g [GridEnd],
    /// Not built for a few findings.
    by_node: Option<BTreeMap<&'g NodeName, Vec<usize>>>,
}

impl<'g> GridLines<'g> {
    fn new(ends: &'g [GridEnd], findings: usize) -> Self {
        const FEW: usize = 4;
        let by_node = (FEW < findings).then(|| {
            let mut of: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
            for (at, node) in
                ends.iter().enumerate().filter_map(|(i, e)| Some((i, e.node.as_ref()?)))
            {
                of.entry(node).or_default().push(at);
            }
            of
        });
        Self { ends, by_node }
    }

    /// The lines of a node, in order.
    fn lines_of_node(&self, node: &NodeName) -> Vec<usize> {
        match &self.by_node {
            Some(of) => of.get(node).cloned().unwrap_or_default(),
            None => {
                let own =
                    self.ends.iter().enumerate().filter(|(_, e)| e.node.as_ref() == Some(node));
                own.map(|(at, _)| at).collect()
            }
        }
    }

    /// The position of a part: its own line, all lines of its node if no GPU is named, or its
    /// node's one line in a grid of nodes.
    fn lines_of_part(&self, node: &NodeName, gpu: Option<u32>) -> Vec<usize> {
        let mut own = self.lines_of_node(node);
        own.retain(|at| {
            let there = self.ends[*at].gpu;
            there == gpu || gpu.is_none() || there.is_none()
        });
        own
    }

    /// Lines with this name: `node`, or `node:gpu`.
    fn lines_named(&self, name: &str) -> Vec<usize> {
        let host = name.rsplit_once(':').map(|(node, _)| NodeName::from(node));
        let mut all = self.lines_of_node(&NodeName::from(name));
        let of_host = host.map(|host| self.lines_of_node(&host)).unwrap_or_default();
        all.extend(of_host.into_iter().filter(|at| self.ends[*at].name() == name));
        all.sort_unstable();
        all
    }
}

/// The position of a finding's part in a grid of these lines and columns.
fn locate_part(
    finding: &Finding,
    grid: &HeatmapGrid,
    [lines, columns]: &[GridLines<'_>; 2],
) -> GridBlame {
    let mut out = GridBlame::default();
    let locus = &finding.locus;
    if grid.shape == GridShape::Leaves {
        return locate_leaf(locus, grid);
    }
    let Some(node) = &locus.node else { return out };
    let rows = lines.lines_of_part(node, locus.gpu);
    let cols = columns.lines_of_part(node, locus.gpu);
    match (grid.shape, locus.kind) {
        (GridShape::Leaves, _) => {}
        (GridShape::PerRail, _) => {
            let named =
                |e: &GridEnd, name: &str| e.node.as_ref().is_some_and(|n| n.as_str() == name);
            let row = lines.lines_of_node(node).first().copied();
            let rail = locus.rail.as_deref();
            let col = grid.cols.iter().position(|e| rail.is_some_and(|rail| named(e, rail)));
            match (row, col) {
                (Some(row), Some(col)) => out.cells.push((row, col)),
                (Some(row), None) if rail.is_none() => out.rows.push(row),
                _ => {}
            }
        }
        (GridShape::PerGpu, _) => {
            let row = lines.lines_of_node(node).first().copied();
            let col = grid.cols.iter().position(|e| locus.gpu.is_some() && e.gpu == locus.gpu);
            match (row, col) {
                (Some(row), Some(col)) => out.cells.push((row, col)),
                (Some(row), None) if locus.gpu.is_none() => out.rows.push(row),
                _ => {}
            }
        }
        (GridShape::Pairs, LocusKind::Pair) => {
            let Some(peer) = locus.peer.as_deref() else { return out };
            let (peer_rows, peer_cols) = (lines.lines_named(peer), columns.lines_named(peer));
            if locus.direction != Some(Direction::Rx) {
                out.cells.extend(cross_cells(&rows, &peer_cols));
            }
            if locus.direction != Some(Direction::Tx) {
                out.cells.extend(cross_cells(&peer_rows, &cols));
            }
        }
        (GridShape::Pairs, _) => {
            if locus.direction != Some(Direction::Rx) {
                out.rows.extend(rows);
            }
            if locus.direction != Some(Direction::Tx) {
                out.cols.extend(cols);
            }
        }
    }
    out
}

/// The position of a leaf: its line and column, or its crossing with the other leaf.
fn locate_leaf(locus: &Locus, grid: &HeatmapGrid) -> GridBlame {
    let place = |name: &str| {
        grid.rows.iter().position(|e| e.node.as_ref().is_some_and(|n| n.as_str() == name))
    };
    let mut out = GridBlame::default();
    // A spine is named by all leaves below it, separated by commas.
    for leaf in locus.leaf.iter().flat_map(|l| l.split(',')).filter_map(place) {
        match locus.peer.as_deref().and_then(place) {
            Some(peer) => out.cells.extend([(leaf, peer), (peer, leaf)]),
            None => {
                out.rows.push(leaf);
                out.cols.push(leaf);
            }
        }
    }
    out
}

fn cross_cells(rows: &[usize], cols: &[usize]) -> Vec<(usize, usize)> {
    rows.iter().flat_map(|&r| cols.iter().map(move |&c| (r, c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use crate::report::grid::build_grids;

    #[test]
    fn a_blamed_gpu_is_its_row_and_column_where_its_evidence_is_and_nowhere_else() {
        let run = fixture::rack();
        let grids = build_grids(&run);
        let square = blame_grid(&run.verdicts.findings, &grids[1]);
        assert_eq!(square, GridBlame { rows: vec![26], cols: vec![26], cells: vec![] });
        assert!(blame_grid(&run.verdicts.findings, &grids[0]).is_empty());
    }

    #[test]
    fn a_part_with_expected_readings_is_not_marked_despite_other_findings() {
        let mut run = fixture::rack();
        let grids = build_grids(&run);
        let finding = &mut run.verdicts.findings[0];
        finding.evidence.iter_mut().for_each(|e| e.testcase = None);
        let square = blame_grid(&run.verdicts.findings, &grids[1]);
        assert_eq!(square.rows, [26], "most of its cells are low, so it is marked unnamed");
        assert!(blame_grid(&run.verdicts.findings, &grids[0]).is_empty(), "host copies are fine");
        run.verdicts.findings[0].locus.gpu = Some(1);
        let healthy = blame_grid(&run.verdicts.findings, &grids[1]);
        assert!(healthy.is_empty(), "two low cells of 142 belong to another GPU: {healthy:?}");
    }

    #[test]
    fn a_direction_is_a_row_or_a_column_and_a_pair_is_two_cells() {
        let mut run = fixture::rack();
        let grids = build_grids(&run);
        run.verdicts.findings[0].locus.direction = Some(Direction::Tx);
        let sent = blame_grid(&run.verdicts.findings, &grids[1]);
        assert_eq!((sent.rows, sent.cols), (vec![26], vec![]));

        let locus = &mut run.verdicts.findings[0].locus;
        locus.kind = LocusKind::Pair;
        locus.direction = None;
        locus.peer = Some("node0001:3".to_owned());
        let pair = blame_grid(&run.verdicts.findings, &grids[1]);
        assert_eq!(pair.cells, [(3, 26), (26, 3)]);
        assert!(pair.rows.is_empty() && pair.cols.is_empty());
    }

    #[test]
    fn a_node_blames_all_lines_of_its_gpus() {
        let mut run = fixture::rack();
        let grids = build_grids(&run);
        let locus = &mut run.verdicts.findings[0].locus;
        locus.kind = LocusKind::Node;
        locus.node = Some(NodeName::from("node0002"));
        locus.gpu = None;
        assert_eq!(blame_grid(&run.verdicts.findings, &grids[1]).rows, [4, 5, 6, 7]);
    }
}
