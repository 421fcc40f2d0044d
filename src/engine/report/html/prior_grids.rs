//! The same grids in an earlier run, cell by cell, so that a figure can show
//! before and after.

use std::collections::BTreeMap;

use crate::report::grid::{GridEnd, GridSpot, HeatmapGrid, build_grids};
use crate::report::overview::fleet_grids;
use model::run::Run;

/// All grids of an earlier run.
#[derive(Debug, Default)]
pub(super) struct PriorGrids {
    grids: Vec<HeatmapGrid>,
}

impl PriorGrids {
    /// Lays out the earlier run.
    pub(super) fn from_run(run: &Run) -> Self {
        let mut all = build_grids(run);
        let inside: Vec<HeatmapGrid> = all.iter().flat_map(|g| g.inside.clone()).collect();
        let fleet = fleet_grids(&all, &run.claims);
        all.extend(inside);
        all.extend(fleet);
        all.extend(crate::report::network::build_network_grids(run));
        Self { grids: all }
    }

    /// What the earlier run shows at each spot of `grid`, where it has any of
    /// it. Ends are found by name: a node that came or went moves nothing.
    pub(super) fn spots(&self, grid: &HeatmapGrid) -> Option<Vec<Option<GridSpot>>> {
        let node = |g: &HeatmapGrid| g.rows.first().and_then(|end| end.node.clone());
        let one_node = |g: &HeatmapGrid| g.rows.iter().all(|end| end.node == node(g));
        let like = |g: &&HeatmapGrid| {
            g.domain == grid.domain
                && g.testcase == grid.testcase
                && g.rail == grid.rail
                && g.unit == grid.unit
                && g.shape == grid.shape
                && (g.joined == 1) == (grid.joined == 1)
                && (!one_node(grid) || !one_node(g) || node(g) == node(grid))
        };
        let found = self.grids.iter().find(like)?;
        let gpus = |g: &HeatmapGrid| g.rows.iter().any(|end| end.gpu.is_some());
        let by_node = (gpus(found) && !gpus(grid)).then(|| found.fold_by_node());
        let found = by_node.as_ref().unwrap_or(found);
        let places = |ends: &[GridEnd]| -> BTreeMap<GridEnd, usize> {
            ends.iter().cloned().zip(0..).collect()
        };
        let (rows, cols) = (places(&found.rows), places(&found.cols));
        let spots: Vec<Option<GridSpot>> = grid
            .rows
            .iter()
            .flat_map(|row| grid.cols.iter().map(move |col| (row, col)))
            .map(|(row, col)| found.at(*rows.get(row)?, *cols.get(col)?).copied())
            .collect();
        spots.iter().any(Option::is_some).then_some(spots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn spots_are_found_by_the_names_of_their_ends() {
        let now = build_grids(&fixture::rack());
        let mut before = fixture::rack();
        for cell in before.cells.iter_mut().filter(|c| c.dst_gpu.is_some()) {
            cell.value = cell.value.map(|v| v / 2.0);
        }
        // One node was not there then: its cells are not known, others keep theirs.
        before.cells.retain(|c| c.src_node.as_ref().is_none_or(|n| n.as_str() != "node0001"));
        before.cells.retain(|c| c.dst_node.as_ref().is_none_or(|n| n.as_str() != "node0001"));
        let earlier = PriorGrids::from_run(&before);
        let spots = earlier.spots(&now[1]).expect("the same test");
        assert_eq!(spots[1], None);
        let at = 26 * 72 + 10;
        let (then, now) = (spots[at].and_then(|s| s.value), now[1].spots[at].and_then(|s| s.value));
        assert_eq!(then.map(|v| 2.0 * v), now);
    }

    #[test]
    fn another_test_is_no_before() {
        let earlier = PriorGrids::from_run(&fixture::hgx());
        assert_eq!(earlier.spots(&build_grids(&fixture::rack())[0]), None);
    }
}
