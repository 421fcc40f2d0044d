//! Overviews of the scale-out network: each node's rails next to each other, and each leaf against
//! each leaf.
//!
//! Both combine cells of single rails by medians; nothing is compared again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::grid::{GridEnd, GridReference, GridShape, GridSpot, HeatmapGrid, worse_spot};
use model::claim_index::ClaimIndex;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::stats::sort_median;
use model::verdict::Outcome;

/// The meaning of a spot of a node's port, which has several partners.
const PORT: &str = "the worse of a port's medians over its partners, sending and receiving";
/// The meaning of a spot of two leaves.
const LEAVES: &str = "the median of all paths from nodes of one leaf to nodes of the other";

#[derive(Default)]
struct SpotSum {
    values: Vec<f64>,
    ratios: Vec<f64>,
    outcomes: Vec<Outcome>,
}

impl SpotSum {
    fn add(&mut self, cell: &MeasuredCell) {
        self.values.extend(cell.value.filter(|v| v.is_finite()));
        self.ratios.extend(cell.ratio.filter(|r| r.is_finite()));
        self.outcomes.push(cell.outcome);
    }

    fn into_spot(mut self) -> GridSpot {
        self.outcomes.sort_unstable();
        // Every healthy port has a low path to the faulty one and is still healthy.
        let outcome = self.outcomes.get(self.outcomes.len() / 2).copied();
        GridSpot {
            value: sort_median(&mut self.values),
            ratio: sort_median(&mut self.ratios),
            outcome: outcome.unwrap_or(Outcome::Unknown),
        }
    }
}

fn grid_end(name: &str) -> GridEnd {
    GridEnd { node: Some(NodeName::from(name)), gpu: None }
}

/// Node by rail and leaf by leaf, for every test that names rails and has a reference.
pub(super) fn build_network_grids(run: &Run) -> Vec<HeatmapGrid> {
    let mut tests: BTreeMap<(Arc<str>, &'static str), Vec<&MeasuredCell>> = BTreeMap::new();
    let between = |c: &&MeasuredCell| c.rail.is_some() && c.src_node != c.dst_node;
    for cell in run.cells.iter().filter(between) {
        tests.entry((cell.testcase.clone(), cell.unit.as_str())).or_default().push(cell);
    }
    let claim_index = ClaimIndex::from_claims(&run.claims);
    let mut out = Vec::new();
    for cells in tests.values() {
        let expected = || cells.iter().filter_map(|c| c.expected).filter(|e| e.is_finite());
        let (low, high) = (expected().reduce(f64::min), expected().reduce(f64::max));
        let Some(reference) = low.zip(high).map(|(l, h)| GridReference::Expectation(l, h)) else {
            continue;
        };
        out.extend(rail_grid(cells, reference));
        out.extend(leaf_grid(cells, reference, &claim_index));
    }
    out
}

fn build_table(
    cells: &[&MeasuredCell],
    reference: GridReference,
    shape: GridShape,
    spots: &BTreeMap<(&str, &str), GridSpot>,
    summed: &'static str,
) -> Option<HeatmapGrid> {
    let first = cells.first()?;
    let mut rows: BTreeSet<&str> = spots.keys().map(|(row, _)| *row).collect();
    let mut cols: BTreeSet<&str> = spots.keys().map(|(_, col)| *col).collect();
    if shape == GridShape::Leaves {
        // A leaf that only receives gets a line as well.
        rows.append(&mut cols.clone());
        cols.clone_from(&rows);
    }
    // A single rail, or a single leaf, needs no figure.
    if cols.len() < 2 {
        return None;
    }
    let each = rows.iter().flat_map(|r| cols.iter().map(move |c| (*r, *c)));
    let spots = each.map(|at| spots.get(&at).copied()).collect();
    Some(HeatmapGrid {
        domain: None,
        testcase: first.testcase.clone(),
        rail: None,
        unit: first.unit,
        shape,
        rows: rows.iter().map(|r| grid_end(r)).collect(),
        cols: cols.iter().map(|c| grid_end(c)).collect(),
        spots,
        reference,
        joined: 1,
        summed: Some(summed),
        left_out: None,
        inside: Vec::new(),
    })
}

/// One line per node, one column per rail.
fn rail_grid(cells: &[&MeasuredCell], reference: GridReference) -> Option<HeatmapGrid> {
    let mut sent: BTreeMap<(&str, &str), SpotSum> = BTreeMap::new();
    let mut received: BTreeMap<(&str, &str), SpotSum> = BTreeMap::new();
    for cell in cells {
        let Some(rail) = cell.rail.as_deref() else { continue };
        let ends = [(&cell.src_node, &mut sent), (&cell.dst_node, &mut received)];
        for (node, sums) in ends {
            if let Some(node) = node {
                sums.entry((node.as_str(), rail)).or_default().add(cell);
            }
        }
    }
    let mut ports: BTreeMap<(&str, &str), GridSpot> = BTreeMap::new();
    for (port, sum) in sent.into_iter().chain(received) {
        let spot = sum.into_spot();
        ports.entry(port).and_modify(|other| *other = worse_spot(*other, spot)).or_insert(spot);
    }
    build_table(cells, reference, GridShape::PerRail, &ports, PORT)
}

/// One line and one column per leaf.
fn leaf_grid(
    cells: &[&MeasuredCell],
    reference: GridReference,
    claim_index: &ClaimIndex<'_>,
) -> Option<HeatmapGrid> {
    let mut sums: BTreeMap<(&str, &str), SpotSum> = BTreeMap::new();
    for cell in cells {
        let leaf = |n: &Option<NodeName>| n.as_ref().and_then(|n| claim_index.leaf_of(n));
        if let Some(pair) = leaf(&cell.src_node).zip(leaf(&cell.dst_node)) {
            sums.entry(pair).or_default().add(cell);
        }
    }
    let spots = sums.into_iter().map(|(pair, sum)| (pair, sum.into_spot())).collect();
    build_table(cells, reference, GridShape::Leaves, &spots, LEAVES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_slow_port_is_one_spot_among_the_rails_of_all_nodes() {
        let grids = build_network_grids(&fixture::rails());
        assert_eq!(
            (grids[0].shape, grids[0].rows.len(), grids[0].cols.len()),
            (GridShape::PerRail, 4, 2)
        );
        let low: Vec<(usize, usize)> = (0..4)
            .flat_map(|r| (0..2).map(move |c| (r, c)))
            .filter(|&(r, c)| grids[0].at(r, c).is_some_and(|s| !s.is_as_expected()))
            .collect();
        assert_eq!(low, [(3, 1)]);
    }

    #[test]
    fn leaves_are_a_square_of_medians() {
        let grids = build_network_grids(&fixture::rails());
        assert_eq!((grids[1].shape, grids[1].rows.len()), (GridShape::Leaves, 2));
        assert_eq!(grids[1].rows[1].name(), "leaf2");
        assert_eq!(grids[1].at(0, 0).and_then(|s| s.ratio), Some(1.0));
        // Inside the second leaf half of all readings cross the slow port.
        assert_eq!(grids[1].at(1, 1).and_then(|s| s.ratio), Some(0.75));
    }

    #[test]
    fn without_rails_or_leaves_there_is_nothing_to_draw() {
        assert!(build_network_grids(&fixture::rack()).is_empty());
        let mut run = fixture::rails();
        run.claims.leaves.clear();
        run.cells.retain(|c| c.rail.as_deref() == Some("rail0"));
        assert!(build_network_grids(&run).is_empty());
    }
}
