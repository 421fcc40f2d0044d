//! Cells arranged as tables to draw: one grid per domain and test.
//!
//! Readings of one cell become their median. A grid names the reference of its ratios; without an
//! expectation the reference is its own median. Nothing is judged here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::overview::build_overview;
use super::reference_text;
use model::claims::ClaimedDomain;
use model::id::{DomainName, NodeName};
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Outcome;

/// One line or column of a grid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GridEnd {
    /// The node; absent if the columns are GPU numbers alone.
    pub(super) node: Option<NodeName>,
    /// The GPU; absent for host memory, NICs and whole nodes.
    pub(super) gpu: Option<u32>,
}

impl GridEnd {
    /// The end as users write it: `node0007:2`, `node0007`, `GPU 2`.
    pub(super) fn name(&self) -> String {
        match (&self.node, self.gpu) {
            (Some(node), Some(gpu)) => format!("{node}:{gpu}"),
            (Some(node), None) => node.to_string(),
            (None, Some(gpu)) => format!("GPU {gpu}"),
            (None, None) => "not named".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GridShape {
    /// Lines are sources, columns destinations.
    Pairs,
    /// Lines are nodes, columns their GPUs.
    PerGpu,
    /// Lines are nodes, columns rails.
    PerRail,
    /// Lines and columns are leaf switches.
    Leaves,
}

/// The reference of the ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GridReference {
    /// The platform's expectation (lowest and highest of this grid).
    Expectation(f64, f64),
    /// The median of the grid's own numbers; no expectation exists.
    Median(f64),
    /// No number exists.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GridSpot {
    pub(super) value: Option<f64>,
    /// Relative to the reference; below 1 is worse, for latencies too.
    pub(super) ratio: Option<f64>,
    /// The worst outcome of the readings.
    pub(super) outcome: Outcome,
}

impl GridSpot {
    /// A planned measurement without a result.
    pub(super) const MISSING: Self = Self { value: None, ratio: None, outcome: Outcome::Unknown };

    /// Whether it was measured and is as expected.
    pub(super) fn is_as_expected(&self) -> bool {
        let low = self.ratio.is_some_and(|r| r < super::colour_scale::MIN_EXPECTED_RATIO);
        self.value.is_some() && !low && self.outcome < Outcome::Degraded
    }
}

#[derive(Clone, Debug)]
pub(super) struct HeatmapGrid {
    pub(super) domain: Option<DomainName>,
    pub(super) testcase: Arc<str>,
    pub(super) rail: Option<String>,
    pub(super) unit: Unit,
    pub(super) shape: GridShape,
    pub(super) rows: Vec<GridEnd>,
    pub(super) cols: Vec<GridEnd>,
    /// One per row and column; `None` if it was never attempted or not recorded.
    pub(super) spots: Vec<Option<GridSpot>>,
    pub(super) reference: GridReference,
    /// Number of domains of one node each that are drawn together; 1 for a grid of its own domain.
    pub(super) joined: usize,
    /// The meaning of one spot, if it combines several cells.
    pub(super) summed: Option<&'static str>,
    /// The parts that were left out to limit the size.
    pub(super) left_out: Option<String>,
    /// A grid per node, if the test stays inside nodes.
    pub(super) inside: Vec<HeatmapGrid>,
}

impl HeatmapGrid {
    /// The spot at a row and column.
    pub(super) fn at(&self, row: usize, col: usize) -> Option<&GridSpot> {
        self.spots.get(row * self.cols.len() + col).and_then(Option::as_ref)
    }

    pub(super) fn values(&self) -> Vec<f64> {
        self.spots.iter().flatten().filter_map(|s| s.value).collect()
    }

    /// The lowest ratio, if any.
    pub(super) fn lowest_ratio(&self) -> Option<f64> {
        self.spots.iter().flatten().filter_map(|s| s.ratio).reduce(f64::min)
    }

    /// Number of planned spots without a number.
    pub(super) fn missing_count(&self) -> usize {
        self.spots.iter().flatten().filter(|s| s.value.is_none()).count()
    }

    /// The grid with one line and column per node, each spot the worst of the GPU pairs between two
    /// nodes.
    pub(super) fn fold_by_node(&self) -> Self {
        let nodes = |ends: &[GridEnd]| {
            let mut out: Vec<GridEnd> = Vec::new();
            for end in ends {
                if out.last().is_none_or(|last| last.node != end.node) {
                    out.push(GridEnd { node: end.node.clone(), gpu: None });
                }
            }
            out
        };
        let place = |out: &[GridEnd], ends: &[GridEnd]| -> Vec<usize> {
            ends.iter().map(|e| out.iter().position(|o| o.node == e.node).unwrap_or(0)).collect()
        };
        let (rows, cols) = (nodes(&self.rows), nodes(&self.cols));
        let (row_of, col_of) = (place(&rows, &self.rows), place(&cols, &self.cols));
        let mut spots: Vec<Option<GridSpot>> = vec![None; rows.len() * cols.len()];
        for (row, &to_row) in row_of.iter().enumerate() {
            for (col, &to_col) in col_of.iter().enumerate() {
                let Some(spot) = self.at(row, col) else { continue };
                let kept = &mut spots[to_row * cols.len() + to_col];
                *kept = Some(kept.map_or(*spot, |kept| worse_spot(kept, *spot)));
            }
        }
        let summed = Some("the worst GPU pair of two nodes");
        Self { rows, cols, spots, summed, inside: Vec::new(), ..self.clone() }
    }

    /// The grid with at most `most` lines (and, between pairs, columns): those with the lowest
    /// ratios, in their original order.
    pub(super) fn keep_worst(&self, most: usize) -> Self {
        let keep = |count: usize, lowest: &dyn Fn(usize) -> f64| -> Vec<usize> {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| lowest(*a).total_cmp(&lowest(*b)).then(a.cmp(b)));
            order.truncate(most);
            order.sort_unstable();
            order
        };
        // The mean, because every line crosses the single column of a bad part.
        let mean = |line: &mut dyn Iterator<Item = Option<&GridSpot>>| {
            let (mut sum, mut count) = (0.0, 0_u32);
            for spot in line.flatten() {
                let failed = spot.outcome == Outcome::Failed;
                if let Some(ratio) = if failed { Some(0.0) } else { spot.ratio } {
                    sum += ratio;
                    count += 1;
                }
            }
            if count == 0 { f64::INFINITY } else { sum / f64::from(count) }
        };
        let of_row = |r: usize| mean(&mut (0..self.cols.len()).map(|c| self.at(r, c)));
        let of_col = |c: usize| mean(&mut (0..self.rows.len()).map(|r| self.at(r, c)));
        let rows = keep(self.rows.len(), &of_row);
        let cols = match self.shape {
            GridShape::Pairs | GridShape::Leaves => keep(self.cols.len(), &of_col),
            GridShape::PerGpu | GridShape::PerRail => (0..self.cols.len()).collect(),
        };
        let gone = self.rows.len() - rows.len();
        let mut spots = Vec::with_capacity(rows.len() * cols.len());
        for &r in &rows {
            spots.extend(cols.iter().map(|&c| self.at(r, c).copied()));
        }
        Self {
            rows: rows.iter().map(|&r| self.rows[r].clone()).collect(),
            cols: cols.iter().map(|&c| self.cols[c].clone()).collect(),
            spots,
            left_out: (0 < gone).then(|| {
                format!("the {} lines with the lowest ratios; {gone} others left out", rows.len())
            }),
            inside: Vec::new(),
            ..self.clone()
        }
    }
}

pub(super) fn worse_spot(a: GridSpot, b: GridSpot) -> GridSpot {
    let ratio = |s: GridSpot| s.ratio.unwrap_or(f64::INFINITY);
    let low = if ratio(b) < ratio(a) { b } else { a };
    GridSpot { outcome: a.outcome.max(b.outcome), ..low }
}

/// The identity of a grid, in display order.
type GridKey<'a> = (Option<&'a DomainName>, &'a str, Option<&'a str>, Unit);

/// Most ends of a square that is kept whole: 640,000 spots.
const MOST_ENDS: usize = 800;
/// Ends that are kept of a larger square.
const KEPT_ENDS: usize = 144;

/// All grids of a run, by domain, test and rail.
pub(super) fn build_grids(run: &Run) -> Vec<HeatmapGrid> {
    let mut index: BTreeMap<GridKey<'_>, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&MeasuredCell>> = Vec::new();
    let mut last: Option<(GridKey<'_>, usize)> = None;
    for cell in &run.cells {
        let key = (cell.domain.as_ref(), &*cell.testcase, cell.rail.as_deref(), cell.unit);
        // Cells are ordered by test, so checking the last grid first saves a search.
        let at = match last {
            Some((same, at)) if same == key => at,
            _ => *index.entry(key).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            }),
        };
        last = Some((key, at));
        groups[at].push(cell);
    }
    // A fleet of single nodes has as many domains as nodes.
    let mut claims: BTreeMap<&DomainName, &ClaimedDomain> = BTreeMap::new();
    for claimed in &run.claims.domains {
        claims.entry(&claimed.name).or_insert(claimed);
    }
    let claimed = |key: &GridKey<'_>| key.0.and_then(|domain| claims.get(domain).copied());
    let grids = index.iter().map(|(key, &at)| build_grid(&groups[at], claimed(key)));
    grids.map(|grid| reference_text::with_peer_reference(grid, &run.verdicts.findings)).collect()
}

struct GridCellReadings {
    values: Vec<f64>,
    ratios: Vec<f64>,
    outcome: Outcome,
}

fn build_grid(cells: &[&MeasuredCell], claimed: Option<&ClaimedDomain>) -> HeatmapGrid {
    let one_ended = cells.iter().all(|c| has_one_gpu(c));
    let local = cells.iter().all(|c| c.src_node == c.dst_node);
    let nodes: BTreeSet<&NodeName> = cells.iter().filter_map(|c| c.src_node.as_ref()).collect();
    if one_ended {
        return table_grid(cells, claimed, GridShape::PerGpu);
    }
    if !local || nodes.len() < 2 {
        return pair_grid(cells, claimed);
    }
    // One square over all nodes would be empty except for its diagonal, and too large for a big
    // fleet. Only its reference is needed here.
    let whole = HeatmapGrid {
        reference: choose_reference(
            cells,
            &mut cells.iter().filter_map(|c| c.value).collect::<Vec<_>>(),
        ),
        ..table_grid(cells, claimed, GridShape::PerGpu)
    };
    let mut by_node: BTreeMap<&NodeName, Vec<&MeasuredCell>> = BTreeMap::new();
    for cell in cells {
        if let Some(node) = &cell.src_node {
            by_node.entry(node).or_default().push(cell);
        }
    }
    let inside: Vec<HeatmapGrid> = by_node
        .values()
        .map(|cells| {
            let mut grid = table_grid(cells, claimed, GridShape::Pairs);
            if matches!(whole.reference, GridReference::Median(_)) {
                relate_to_median(&mut grid.spots, whole.reference, whole.unit);
                grid.reference = whole.reference;
            }
            grid
        })
        .collect();
    let absent = unseen_nodes(&nodes, claimed);
    let overview = build_overview(&whole, &inside, &absent, claimed);
    HeatmapGrid { inside, ..overview }
}

/// Pairs as a square. If it would be too large, only the ends of the worst cells are kept.
fn pair_grid(cells: &[&MeasuredCell], claimed: Option<&ClaimedDomain>) -> HeatmapGrid {
    let ends =
        |c: &MeasuredCell| [(c.src_node.clone(), c.src_gpu), (c.dst_node.clone(), c.dst_gpu)];
    let all: BTreeSet<_> = cells.iter().flat_map(|c| ends(c)).collect();
    if all.len() <= MOST_ENDS {
        return table_grid(cells, claimed, GridShape::Pairs);
    }
    let mut worst: Vec<&MeasuredCell> = cells.to_vec();
    let ratio = |c: &MeasuredCell| c.ratio.filter(|r| r.is_finite()).unwrap_or(f64::INFINITY);
    worst.sort_by(|a, b| b.outcome.cmp(&a.outcome).then(ratio(a).total_cmp(&ratio(b))));
    let mut kept = BTreeSet::new();
    for cell in worst {
        if KEPT_ENDS <= kept.len() {
            break;
        }
        kept.extend(ends(cell));
    }
    let cells: Vec<&MeasuredCell> =
        cells.iter().filter(|c| ends(c).iter().all(|end| kept.contains(end))).copied().collect();
    let gone = all.len() - kept.len();
    HeatmapGrid {
        left_out: Some(format!(
            "the {} ends of the worst cells; {gone} others left out",
            kept.len()
        )),
        ..table_grid(&cells, claimed, GridShape::Pairs)
    }
}

/// Whether a cell is about one GPU: a copy to or from its host, inside itself, or with all GPUs
/// concurrently (an end without a name).
fn has_one_gpu(cell: &MeasuredCell) -> bool {
    let is_unnamed = |node: &Option<NodeName>, gpu: Option<u32>| node.is_none() && gpu.is_none();
    if is_unnamed(&cell.src_node, cell.src_gpu) || is_unnamed(&cell.dst_node, cell.dst_gpu) {
        return cell.src_gpu.is_some() || cell.dst_gpu.is_some();
    }
    let both = cell.src_gpu.is_some() && cell.dst_gpu.is_some();
    cell.src_node == cell.dst_node && (cell.src_gpu != cell.dst_gpu) != both
}

/// Nodes that a domain claims and that have no cell here, if most of its nodes have one.
fn unseen_nodes(seen: &BTreeSet<&NodeName>, claimed: Option<&ClaimedDomain>) -> Vec<NodeName> {
    let Some(claimed) = claimed else { return Vec::new() };
    let absent: Vec<NodeName> =
        claimed.nodes.iter().filter(|n| !seen.contains(n)).cloned().collect();
    if 2 * absent.len() < claimed.nodes.len() { absent } else { Vec::new() }
}

/// Cells as a table of this shape.
fn table_grid(
    cells: &[&MeasuredCell],
    claimed: Option<&ClaimedDomain>,
    shape: GridShape,
) -> HeatmapGrid {
    let ends = |cell: &MeasuredCell| {
        let src = GridEnd { node: cell.src_node.clone(), gpu: cell.src_gpu };
        let dst = GridEnd { node: cell.dst_node.clone(), gpu: cell.dst_gpu };
        match shape {
            GridShape::Pairs | GridShape::Leaves => (src, dst),
            GridShape::PerGpu | GridShape::PerRail => {
                let gpu = cell.src_gpu.or(cell.dst_gpu);
                (GridEnd { node: src.node.or(dst.node), gpu: None }, GridEnd { node: None, gpu })
            }
        }
    };
    let mut rows: BTreeMap<GridEnd, usize> = BTreeMap::new();
    let mut cols: BTreeMap<GridEnd, usize> = BTreeMap::new();
    let mut placed = Vec::with_capacity(cells.len());
    for cell in cells {
        let (row, col) = ends(cell);
        let (r, c) = (rows.len(), cols.len());
        let at = (*rows.entry(row).or_insert(r), *cols.entry(col).or_insert(c));
        placed.push(at);
    }
    let domain = cells.first().and_then(|c| c.domain.clone());
    let seen: BTreeSet<&NodeName> =
        cells.iter().flat_map(|c| [&c.src_node, &c.dst_node]).flatten().collect();
    let mut absent = BTreeSet::new();
    if shape == GridShape::PerGpu {
        for node in unseen_nodes(&seen, claimed) {
            let row = rows.len();
            let end = GridEnd { node: Some(node), gpu: None };
            rows.entry(end.clone()).or_insert(row);
            absent.insert(end);
        }
    }
    if shape == GridShape::Pairs {
        // A square with the same order on both sides, so that a bad part is a cross. Ends that only
        // receive (or only send) get a line as well.
        for end in rows.keys().chain(cols.keys()).cloned().collect::<BTreeSet<GridEnd>>() {
            let (r, c) = (rows.len(), cols.len());
            rows.entry(end.clone()).or_insert(r);
            cols.entry(end).or_insert(c);
        }
    }
    let (rows, row_at) = order_ends(rows, claimed);
    let (cols, col_at) = order_ends(cols, claimed);
    let mut readings: Vec<Option<GridCellReadings>> = Vec::new();
    readings.resize_with(rows.len() * cols.len(), || None);
    for (cell, (row, col)) in cells.iter().zip(placed) {
        let slot = &mut readings[row_at[row] * cols.len() + col_at[col]];
        let slot = slot.get_or_insert_with(|| GridCellReadings {
            values: Vec::new(),
            ratios: Vec::new(),
            outcome: Outcome::Pass,
        });
        slot.values.extend(cell.value.filter(|v| v.is_finite()));
        slot.ratios.extend(cell.ratio.filter(|r| r.is_finite()));
        slot.outcome = slot.outcome.max(cell.outcome);
    }
    let mut spots: Vec<Option<GridSpot>> = readings
        .into_iter()
        .enumerate()
        .map(|(at, slot)| match slot {
            Some(mut slot) => Some(GridSpot {
                value: sort_median(&mut slot.values),
                ratio: sort_median(&mut slot.ratios),
                outcome: slot.outcome,
            }),
            None => absent.contains(&rows[at / cols.len()]).then_some(GridSpot::MISSING),
        })
        .collect();
    let unit = cells.first().map_or(Unit::Count, |c| c.unit);
    let mut values: Vec<f64> = spots.iter().flatten().filter_map(|s| s.value).collect();
    let reference = choose_reference(cells, &mut values);
    relate_to_median(&mut spots, reference, unit);
    HeatmapGrid {
        domain,
        testcase: cells.first().map_or_else(|| Arc::from(""), |c| c.testcase.clone()),
        rail: cells.first().and_then(|c| c.rail.clone()),
        unit,
        shape,
        rows,
        cols,
        spots,
        reference,
        joined: 1,
        summed: None,
        left_out: None,
        inside: Vec::new(),
    }
}

/// The reference of these cells: their expectation, or else the median of `values`.
fn choose_reference(cells: &[&MeasuredCell], values: &mut [f64]) -> GridReference {
    let expected = || cells.iter().filter_map(|c| c.expected).filter(|e| e.is_finite());
    match (expected().reduce(f64::min), expected().reduce(f64::max)) {
        (Some(low), Some(high)) => GridReference::Expectation(low, high),
        _ => sort_median(values).map_or(GridReference::Nothing, GridReference::Median),
    }
}

/// Sets every spot's ratio to the median, if that is the reference.
pub(super) fn relate_to_median(
    spots: &mut [Option<GridSpot>],
    reference: GridReference,
    unit: Unit,
) {
    let GridReference::Median(middle) = reference else { return };
    for spot in spots.iter_mut().flatten() {
        spot.ratio = spot.value.and_then(|value| {
            let (over, under) = if unit.is_bandwidth() { (value, middle) } else { (middle, value) };
            (under != 0.0).then(|| over / under).filter(|r| r.is_finite())
        });
    }
}

/// Ends in the order of the claim if there is one, then by name; and the new position of each old
/// index.
pub(super) fn order_ends(
    ends: BTreeMap<GridEnd, usize>,
    claimed: Option<&ClaimedDomain>,
) -> (Vec<GridEnd>, Vec<usize>) {
    let place: BTreeMap<&NodeName, usize> = claimed
        .map(|d| d.nodes.iter().enumerate().map(|(i, n)| (n, i)).collect())
        .unwrap_or_default();
    let mut list: Vec<(GridEnd, usize)> = ends.into_iter().collect();
    list.sort_by_key(|(end, _)| {
        end.node.as_ref().and_then(|n| place.get(n)).copied().unwrap_or(usize::MAX)
    });
    let mut went = vec![0; list.len()];
    for (new, (_, old)) in list.iter().enumerate() {
        went[*old] = new;
    }
    (list.into_iter().map(|(end, _)| end).collect(), went)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_rack_is_one_square_and_its_host_copies_are_a_strip() {
        let grids = build_grids(&fixture::rack());
        let shapes: Vec<_> = grids
            .iter()
            .map(|g| (g.shape, g.rows.len(), g.cols.len(), g.missing_count()))
            .collect();
        assert_eq!(shapes, [(GridShape::PerGpu, 18, 4, 4), (GridShape::Pairs, 72, 72, 0)]);
        let square = &grids[1];
        assert_eq!(square.at(0, 0), None);
        assert_eq!(square.rows[26].name(), "node0007:2");
        assert!(square.at(26, 3).expect("a spot").ratio.expect("a ratio") < 0.95);
    }

    #[test]
    fn a_node_is_as_bad_as_its_worst_gpu_pair() {
        let grids = build_grids(&fixture::rack());
        let nodes = grids[1].fold_by_node();
        assert_eq!((nodes.rows.len(), nodes.cols.len()), (18, 18));
        let ratio = |r: usize, c: usize| nodes.at(r, c).and_then(|s| s.ratio).expect("a ratio");
        assert!(ratio(6, 0) < 0.95 && ratio(0, 6) < 0.95 && 0.99 < ratio(0, 1));
    }

    #[test]
    fn tests_inside_nodes_become_an_overview_with_a_grid_per_node() {
        let grids = build_grids(&fixture::hgx());
        let read = grids.iter().find(|g| g.testcase.contains("read")).expect("the test");
        assert_eq!((read.shape, read.rows.len(), read.cols.len()), (GridShape::PerGpu, 2, 8));
        assert_eq!(read.inside.len(), 2);
        assert_eq!((read.inside[0].shape, read.inside[0].rows.len()), (GridShape::Pairs, 8));
    }

    #[test]
    fn without_expectation_ratios_are_relative_to_the_median_and_slow_is_below_one() {
        let grids = build_grids(&fixture::hgx());
        let latency = grids.iter().find(|g| g.testcase.contains("latency")).expect("the test");
        assert!(
            matches!(latency.reference, GridReference::Median(m) if (740.0..760.0).contains(&m))
        );
        let inside = &latency.inside[1];
        let slowest = inside
            .spots
            .iter()
            .flatten()
            .max_by(|a, b| a.value.unwrap_or(0.0).total_cmp(&b.value.unwrap_or(0.0)))
            .expect("a spot");
        assert!(slowest.ratio.expect("a ratio") < 1.0);
    }

    #[test]
    fn the_worst_lines_survive_when_a_grid_must_shrink() {
        let small = build_grids(&fixture::rack())[1].keep_worst(5);
        assert_eq!((small.rows.len(), small.cols.len()), (5, 5));
        assert!(small.rows.iter().any(|end| end.name() == "node0007:2"));
        assert!(small.left_out.expect("a note").contains("67 others"));
    }

    #[test]
    fn a_square_too_large_to_hold_keeps_the_ends_of_its_worst_cells() {
        let test: Arc<str> = Arc::from("ib_write_bw");
        let node = |i: usize| NodeName::from(format!("n{i:05}").as_str());
        let mut run = fixture::empty();
        run.cells = (0..5_000)
            .map(|i| {
                let value = if i == 4_321 { 20.0 } else { 48.0 };
                let (src, dst) = (node(i), node(i + 1));
                fixture::cell("all", &test, (&src, None), (&dst, None), Some(value), Some(48.0))
            })
            .collect();
        let grid = &build_grids(&run)[0];
        assert!(grid.rows.len() <= KEPT_ENDS + 1, "{}", grid.rows.len());
        assert!(grid.rows.iter().any(|end| end.name() == "n04321"));
        assert!(grid.left_out.as_ref().is_some_and(|note| note.contains("others left out")));
    }

    #[test]
    fn a_fleet_of_nodes_is_an_overview_and_not_a_square_of_all_gpus() {
        let mut run = fixture::hgx();
        let cells = std::mem::take(&mut run.cells);
        for i in 0..400 {
            run.cells.extend(cells.iter().filter(|c| c.expected.is_some()).cloned().map(
                |mut c| {
                    let node = NodeName::from(
                        format!("{}-{i}", c.src_node.as_ref().expect("a node")).as_str(),
                    );
                    (c.src_node, c.dst_node) = (Some(node.clone()), Some(node));
                    c
                },
            ));
        }
        let grid = &build_grids(&run)[0];
        assert_eq!((grid.rows.len(), grid.cols.len(), grid.inside.len()), (800, 8, 800));
    }

    #[test]
    fn several_readings_of_a_cell_become_their_median() {
        let mut run = fixture::rack();
        let mut again = run.cells[0].clone();
        run.cells[0].value = Some(100.0);
        again.value = Some(300.0);
        run.cells.push(again);
        let grids = build_grids(&run);
        assert_eq!(grids[1].at(0, 1).and_then(|s| s.value), Some(200.0));
    }
}
