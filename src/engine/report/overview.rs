//! Overviews of many small grids: one line per node, one column per GPU.
//!
//! A test inside nodes has a square per node; a fleet of nodes that are their own domain has a grid
//! per domain. Both are combined here by medians, and nothing is compared again.

use std::collections::{BTreeMap, BTreeSet};

use super::grid::{
    GridEnd, GridReference, GridShape, GridSpot, HeatmapGrid, order_ends, worse_spot,
};
use model::claims::{ClaimedDomain, Claims};
use model::id::NodeName;
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Outcome;

/// The meaning of a spot for a GPU with several partners.
const WORSE_MEDIAN: &str = "the worse of a GPU's medians, sending and receiving, inside its node";

/// One line per node and one column per GPU: the worse of the medians of the GPU's sends and
/// receives inside its node. Nodes without any cell have a line that is marked so.
pub(super) fn build_overview(
    whole: &HeatmapGrid,
    inside: &[HeatmapGrid],
    absent: &[NodeName],
    claimed: Option<&ClaimedDomain>,
) -> HeatmapGrid {
    let lines: Vec<(GridEnd, &HeatmapGrid)> = inside
        .iter()
        .map(|grid| {
            let node = grid.rows.first().and_then(|e| e.node.clone());
            (GridEnd { node, gpu: None }, grid)
        })
        .collect();
    let gpus: BTreeSet<Option<u32>> =
        inside.iter().flat_map(|g| g.rows.iter().chain(&g.cols)).map(|end| end.gpu).collect();
    let cols: Vec<GridEnd> = gpus.iter().map(|&gpu| GridEnd { node: None, gpu }).collect();
    let known = lines.iter().map(|(end, _)| end.clone());
    let unknown = absent.iter().map(|n| GridEnd { node: Some(n.clone()), gpu: None });
    let ends: BTreeMap<GridEnd, usize> = known.chain(unknown).zip(0..).collect();
    let (rows, _) = order_ends(ends, claimed);
    // A domain can contain all nodes of a fleet.
    let grids: BTreeMap<&GridEnd, &HeatmapGrid> =
        lines.iter().rev().map(|(end, grid)| (end, *grid)).collect();
    let mut spots = Vec::with_capacity(rows.len() * cols.len());
    for row in &rows {
        let grid = grids.get(row);
        spots.extend(cols.iter().map(|col| match grid {
            Some(grid) => gpu_spot(grid, col.gpu),
            None => Some(GridSpot::MISSING),
        }));
    }
    HeatmapGrid {
        shape: GridShape::PerGpu,
        rows,
        cols,
        spots,
        summed: Some(WORSE_MEDIAN),
        ..whole.clone()
    }
}

/// The worse of the medians of a GPU's line and column.
fn gpu_spot(grid: &HeatmapGrid, gpu: Option<u32>) -> Option<GridSpot> {
    let row = grid.rows.iter().position(|end| end.gpu == gpu);
    let out = row.map(|r| (0..grid.cols.len()).filter_map(|c| grid.at(r, c)).collect());
    let col = grid.cols.iter().position(|end| end.gpu == gpu);
    let back = col.map(|c| (0..grid.rows.len()).filter_map(|r| grid.at(r, c)).collect());
    [out, back].into_iter().flatten().filter_map(|s: Vec<_>| median_spot(&s)).reduce(worse_spot)
}

/// The median spot of a line, and the median of its outcomes: every healthy GPU has a low reading
/// with the faulty one, and is still healthy.
fn median_spot(line: &[&GridSpot]) -> Option<GridSpot> {
    let mut outcomes: Vec<Outcome> = line.iter().map(|s| s.outcome).collect();
    outcomes.sort_unstable();
    let outcome = *outcomes.get(outcomes.len() / 2)?;
    let of = |number: fn(&GridSpot) -> Option<f64>| {
        sort_median(&mut line.iter().filter_map(|s| number(s)).collect::<Vec<_>>())
    };
    Some(GridSpot { value: of(|s| s.value), ratio: of(|s| s.ratio), outcome })
}

/// Whether a grid covers one node, in a domain of its own.
fn is_single(grid: &HeatmapGrid) -> bool {
    let mut nodes = grid.rows.iter().chain(&grid.cols).filter_map(|e| e.node.as_ref());
    let first = nodes.next();
    first.is_some() && nodes.all(|node| Some(node) == first) && grid.inside.is_empty()
}

/// Nodes that are their own domain, test by test in one grid. Only tests with an expectation:
/// nothing else makes different nodes comparable.
pub(super) fn fleet_grids(grids: &[HeatmapGrid], claims: &Claims) -> Vec<HeatmapGrid> {
    let mut tests: BTreeMap<(&str, Option<&str>, Unit), Vec<&HeatmapGrid>> = BTreeMap::new();
    for grid in grids {
        let expected = matches!(grid.reference, GridReference::Expectation(..));
        if expected && is_single(grid) {
            let key = (&*grid.testcase, grid.rail.as_deref(), grid.unit);
            tests.entry(key).or_default().push(grid);
        }
    }
    tests
        .into_values()
        .filter(|grids| 1 < grids.len())
        .filter_map(|g| join_grids(&g, claims))
        .collect()
}

fn join_grids(grids: &[&HeatmapGrid], claims: &Claims) -> Option<HeatmapGrid> {
    let first = grids.first()?;
    let pairs = first.shape == GridShape::Pairs;
    let gpus: BTreeSet<Option<u32>> = grids
        .iter()
        .flat_map(|g| g.cols.iter().chain(if pairs { g.rows.as_slice() } else { &[] }))
        .map(|end| end.gpu)
        .collect();
    let cols: Vec<GridEnd> = gpus.iter().map(|&gpu| GridEnd { node: None, gpu }).collect();
    let mut rows = Vec::with_capacity(grids.len());
    let mut spots = Vec::with_capacity(grids.len() * cols.len());
    let mut range = (f64::INFINITY, f64::NEG_INFINITY);
    for grid in grids {
        rows.push(GridEnd { node: grid.rows.first()?.node.clone(), gpu: None });
        for col in &cols {
            let at = grid.cols.iter().position(|end| end.gpu == col.gpu);
            spots.push(match grid.shape {
                GridShape::Pairs => gpu_spot(grid, col.gpu),
                _ => at.and_then(|at| grid.at(0, at).copied()),
            });
        }
        if let GridReference::Expectation(low, high) = grid.reference {
            range = (range.0.min(low), range.1.max(high));
        }
    }
    let absent = unseen_ends(&rows, claims);
    if absent.len() < rows.len() {
        spots.extend(std::iter::repeat_n(Some(GridSpot::MISSING), absent.len() * cols.len()));
        rows.extend(absent);
    }
    Some(HeatmapGrid {
        domain: None,
        shape: GridShape::PerGpu,
        joined: rows.len(),
        rows,
        cols,
        spots,
        reference: GridReference::Expectation(range.0, range.1),
        summed: pairs.then_some(WORSE_MEDIAN),
        ..(*first).clone()
    })
}

/// Nodes that are claimed as their own domain, have a platform with cells here, and have no cell.
fn unseen_ends(rows: &[GridEnd], claims: &Claims) -> Vec<GridEnd> {
    let single = || claims.domains.iter().filter(|d| d.nodes.len() == 1);
    let end = |node: &NodeName| GridEnd { node: Some(node.clone()), gpu: None };
    let rows: BTreeSet<&GridEnd> = rows.iter().collect();
    let platforms: BTreeSet<Option<&str>> = single()
        .filter(|d| rows.contains(&end(&d.nodes[0])))
        .map(|d| d.platform.as_deref())
        .collect();
    single()
        .filter(|d| platforms.contains(&d.platform.as_deref()))
        .map(|d| end(&d.nodes[0]))
        .filter(|end| !rows.contains(end))
        .collect()
}

/// Number of these spots with a loss that is judged.
pub(super) fn count_low(grid: &HeatmapGrid) -> usize {
    grid.spots.iter().flatten().filter(|s| Outcome::Degraded <= s.outcome).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use crate::report::grid::build_grids;
    use model::id::DomainName;

    /// The two nodes of the fixture, each its own domain.
    fn apart(run: &mut model::run::Run) -> Vec<HeatmapGrid> {
        for cell in &mut run.cells {
            cell.domain = cell.src_node.as_ref().map(|n| DomainName::from(n.as_str()));
        }
        build_grids(run)
    }

    #[test]
    fn nodes_that_are_domains_of_their_own_share_one_grid_where_something_is_expected() {
        let mut run = fixture::hgx();
        let grids = apart(&mut run);
        let fleet = fleet_grids(&grids, &run.claims);
        let shapes: Vec<_> =
            fleet.iter().map(|g| (&*g.testcase, g.rows.len(), g.cols.len(), g.joined)).collect();
        assert_eq!(shapes, [("device_to_device_memcpy_read_ce", 2, 8, 2)]);
        assert!(fleet[0].spots.iter().all(|s| s.is_some_and(|s| s.is_as_expected())));
        assert_eq!(count_low(&fleet[0]), 0);
    }

    #[test]
    fn a_claimed_node_that_ran_nothing_has_its_line_in_the_fleet() {
        let mut run = fixture::hgx();
        let grids = apart(&mut run);
        let proto = run.claims.domains[0].clone();
        let domain = |name: &str| ClaimedDomain {
            name: DomainName::from(name),
            nodes: vec![NodeName::from(name)],
            ..proto.clone()
        };
        run.claims.domains = ["hgx0101", "hgx0102", "hgx0103"].map(domain).to_vec();
        let fleet = fleet_grids(&grids, &run.claims);
        assert_eq!((fleet[0].rows.len(), fleet[0].missing_count()), (3, 8));
    }

    #[test]
    fn the_healthy_mates_of_a_bad_gpu_are_not_marked_with_it() {
        let mut run = fixture::hgx();
        for cell in &mut run.cells {
            if cell.expected.is_some() && (cell.src_gpu == Some(5) || cell.dst_gpu == Some(5)) {
                cell.outcome = Outcome::Degraded;
            }
        }
        let grids = apart(&mut run);
        let fleet = fleet_grids(&grids, &run.claims);
        let marked: Vec<usize> = (0..8)
            .filter(|c| fleet[0].at(0, *c).is_some_and(|s| s.outcome == Outcome::Degraded))
            .collect();
        assert_eq!(marked, [5]);
    }

    #[test]
    fn one_domain_of_many_nodes_is_no_fleet() {
        assert!(fleet_grids(&build_grids(&fixture::hgx()), &fixture::hgx().claims).is_empty());
        assert!(fleet_grids(&build_grids(&fixture::rack()), &fixture::rack().claims).is_empty());
    }

    #[test]
    fn a_node_without_any_cell_has_a_marked_line() {
        let mut run = fixture::hgx();
        run.cells.retain(|c| {
            c.src_node.as_ref().is_some_and(|n| n.as_str() == "hgx0101") || c.src_gpu == Some(0)
        });
        run.claims.domains[0].nodes.push(NodeName::from("hgx0103"));
        let grids = build_grids(&run);
        let read = grids.iter().find(|g| g.testcase.contains("read")).expect("the test");
        assert_eq!((read.rows.len(), read.rows[2].name()), (3, "hgx0103".to_owned()));
        assert_eq!(read.at(2, 0), Some(&GridSpot::MISSING));
    }
}
