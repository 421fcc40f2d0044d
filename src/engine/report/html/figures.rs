//! One figure: its image, its description, and the data for the page's script (readings, an earlier
//! run's numbers, outlines with their findings).

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use serde::Serialize;

use super::clip_text;
use super::findings::HtmlFinding;
use crate::report::blame_marks::{BlameFinder, GridBlame, blame_grid};
use crate::report::grid::{GridEnd, GridReference, GridShape, GridSpot, HeatmapGrid, build_grids};
use crate::report::overview::fleet_grids;
use crate::report::plain_text::{clip, format_number, format_quantity, list_names, rail_name};
use crate::report::{ReportError, svg_heatmap};
use model::id::DomainName;
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Finding;

/// Most lines and columns of a legible figure with one line per GPU.
const LEGIBLE: usize = 144;
/// Most lines of a figure with one line per node.
const STRIP: usize = 72;
/// Most single readings of one figure; matrix.csv has them all.
const READINGS: usize = 60_000;

/// The visible parts of a figure.
#[derive(Serialize)]
pub(super) struct FigureText {
    pub(super) svg: Value,
    pub(super) id: String,
    pub(super) test: String,
    pub(super) caption: String,
    pub(super) notes: Vec<String>,
    /// The outlined findings: anchor and name.
    pub(super) blamed: Vec<(String, String)>,
    pub(super) wide: bool,
}

/// One outlined part of a figure.
#[derive(Serialize)]
struct FigureOutline {
    name: String,
    at: String,
    rows: Vec<usize>,
    cols: Vec<usize>,
    cells: Vec<(usize, usize)>,
    files: Vec<String>,
}

/// The script's data for one figure. Numbers of all spots are one text separated by spaces, `-` for
/// none: a third of the size of a list of numbers.
#[derive(Serialize)]
pub(super) struct FigureData {
    id: String,
    rows: Vec<String>,
    /// Absent if columns have the same names as lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    cols: Option<Vec<String>>,
    values: String,
    /// In thousandths.
    ratios: String,
    /// All readings of each spot separated by commas, if any spot has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    readings: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before_ratios: Option<String>,
    unit: &'static str,
    more: bool,
    reference: String,
    joint: &'static str,
    cells: [i32; 4],
    numbers: bool,
    outlines: Vec<FigureOutline>,
}

impl FigureData {
    /// Approximate size in the page, in bytes.
    pub(super) fn byte_size(&self) -> usize {
        let some = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let texts = some(&self.readings) + some(&self.before) + some(&self.before_ratios);
        self.values.len() + self.ratios.len() + texts
    }
}

type FigureKey<'a> = (Option<&'a DomainName>, &'a str, Option<&'a str>, Unit);

/// All cells, by the grid that shows them.
#[derive(Default)]
pub(super) struct FigureReadings<'a> {
    cells: BTreeMap<FigureKey<'a>, Vec<&'a MeasuredCell>>,
}

impl<'a> FigureReadings<'a> {
    pub(super) fn from_run(run: &'a Run) -> Self {
        // Without repeated readings, the numbers are the readings.
        if run.cells.iter().all(|c| c.reading == 0) {
            return Self::default();
        }
        let mut cells: BTreeMap<FigureKey<'a>, Vec<&'a MeasuredCell>> = BTreeMap::new();
        for cell in &run.cells {
            let key = (cell.domain.as_ref(), &*cell.testcase, cell.rail.as_deref(), cell.unit);
            cells.entry(key).or_default().push(cell);
        }
        Self { cells }
    }

    /// The readings of each spot of a grid, in order; `None` if each spot has one, if a spot
    /// combines several cells, or if there are too many.
    fn readings_at(&self, grid: &HeatmapGrid) -> Option<String> {
        if grid.summed.is_some() || 1 < grid.joined {
            return None;
        }
        let key = (grid.domain.as_ref(), &*grid.testcase, grid.rail.as_deref(), grid.unit);
        let cells = self.cells.get(&key)?;
        let places = |ends: &[GridEnd]| -> BTreeMap<GridEnd, usize> {
            ends.iter().cloned().zip(0..).collect()
        };
        let (rows, cols) = (places(&grid.rows), places(&grid.cols));
        let mut spots: Vec<Vec<String>> = vec![Vec::new(); grid.spots.len()];
        let mut count = 0;
        for cell in cells {
            let (mut src, mut dst) = (
                GridEnd { node: cell.src_node.clone(), gpu: cell.src_gpu },
                GridEnd { node: cell.dst_node.clone(), gpu: cell.dst_gpu },
            );
            if grid.shape == GridShape::PerGpu {
                let gpu = src.gpu.or(dst.gpu);
                (src, dst) = (
                    GridEnd { node: src.node.or(dst.node), gpu: None },
                    GridEnd { node: None, gpu },
                );
            }
            let (Some(row), Some(col)) = (rows.get(&src), cols.get(&dst)) else { continue };
            count += 1;
            let text = cell.value.map_or_else(|| "x".to_owned(), format_number);
            spots[row * grid.cols.len() + col].push(text);
        }
        let several = spots.iter().any(|s| 1 < s.len());
        let each = |s: &Vec<String>| if s.is_empty() { "-".to_owned() } else { s.join(",") };
        (several && count <= READINGS).then(|| spots.iter().map(each).collect::<Vec<_>>().join(" "))
    }
}

pub(super) struct FigureRenderer<'a> {
    pub(super) findings: &'a [Finding],
    /// The listed findings, in order.
    pub(super) places: &'a [HtmlFinding<'a>],
    pub(super) earlier: &'a PriorGrids,
    pub(super) readings: FigureReadings<'a>,
}

pub(super) fn test_name(grid: &HeatmapGrid) -> String {
    match &grid.rail {
        Some(rail) => format!("{}, {}", clip_text(&grid.testcase), rail_name(rail)),
        None => clip_text(&grid.testcase),
    }
}

impl FigureRenderer<'_> {
    /// Draws a grid, reduced if it would not be legible.
    pub(super) fn draw_figure(
        &self,
        grid: &HeatmapGrid,
        marked: GridBlame,
        index: usize,
    ) -> Result<(FigureText, FigureData), ReportError> {
        let too_wide = grid.shape == GridShape::Pairs && LEGIBLE < grid.rows.len();
        let strip = matches!(grid.shape, GridShape::PerGpu | GridShape::PerRail);
        let smaller = if too_wide {
            let by_node = grid.fold_by_node();
            Some(if LEGIBLE < by_node.rows.len() { by_node.keep_worst(STRIP) } else { by_node })
        } else if (strip || grid.shape == GridShape::Leaves) && STRIP < grid.rows.len() {
            Some(grid.keep_worst(STRIP))
        } else {
            None
        };
        let (grid, marked) = match &smaller {
            Some(smaller) => (smaller, blame_grid(self.findings, smaller)),
            None => (grid, marked),
        };
        let id = format!("figure-{index}");
        let caption = figure_caption(grid);
        let outlines = self.build_outlines(grid);
        let drawn = svg_heatmap::draw_heatmap(grid, &marked, &id, &describe_figure(grid, &marked))?;
        let names = |ends: &[GridEnd]| ends.iter().map(|e| clip(&e.name(), 80)).collect::<Vec<_>>();
        let before = self.earlier.spots(grid);
        let text = FigureText {
            svg: Value::from_safe_string(drawn.svg),
            id: id.clone(),
            test: test_name(grid),
            caption,
            notes: figure_notes(grid),
            blamed: outlines.iter().map(|o| (o.at.clone(), o.name.clone())).collect(),
            wide: drawn.wide,
        };
        let unit = Some(grid.unit);
        let data = FigureData {
            id,
            rows: names(&grid.rows),
            cols: (grid.rows != grid.cols).then(|| names(&grid.cols)),
            values: join_values(&grid.spots),
            ratios: join_ratios(&grid.spots),
            readings: self.readings.readings_at(grid),
            before: before.as_deref().map(join_values),
            before_ratios: before.as_deref().map(join_ratios),
            unit: crate::report::plain_text::unit_name(unit),
            more: grid.unit.is_bandwidth(),
            reference: match grid.reference {
                GridReference::Expectation(low, high) if low == high => {
                    format!("expected {}", format_quantity(low, unit))
                }
                GridReference::Expectation(low, high) => {
                    format!("expected {} to {}", format_number(low), format_quantity(high, unit))
                }
                GridReference::Median(median) => {
                    format!("peers' median {}", format_quantity(median, unit))
                }
                GridReference::Nothing => String::new(),
            },
            joint: match grid.shape {
                GridShape::Pairs | GridShape::Leaves => " → ",
                GridShape::PerGpu | GridShape::PerRail => ", ",
            },
            cells: drawn.cells,
            numbers: drawn.numbers,
            outlines,
        };
        Ok((text, data))
    }

    /// The outlines of all listed findings.
    fn build_outlines(&self, grid: &HeatmapGrid) -> Vec<FigureOutline> {
        let mut out = Vec::new();
        let marked = BlameFinder::new(grid, self.places.len());
        for (finding, place) in self.findings.iter().zip(self.places) {
            let GridBlame { rows, cols, cells } = marked.find(finding);
            if rows.is_empty() && cols.is_empty() && cells.is_empty() {
                continue;
            }
            let files: BTreeSet<&str> = finding.evidence.iter().map(|e| e.file.as_str()).collect();
            let files = files.into_iter().take(super::FILES).map(clip_text).collect();
            let (name, at) = (place.name.clone(), place.anchor.clone());
            out.push(FigureOutline { name, at, rows, cols, cells, files });
        }
        out
    }
}

/// The numbers of all spots, `-` for none.
fn join_values(spots: &[Option<GridSpot>]) -> String {
    join_spots(spots, |s| s.value.map(format_number))
}

fn join_ratios(spots: &[Option<GridSpot>]) -> String {
    join_spots(spots, |s| s.ratio.map(|r| format!("{:.0}", (r * 1000.0).clamp(0.0, 1e6))))
}

fn join_spots(spots: &[Option<GridSpot>], of: fn(&GridSpot) -> Option<String>) -> String {
    // A spot without a number was planned; an absent spot was not.
    let each = spots.iter().map(|s| match s {
        Some(s) => of(s).unwrap_or_else(|| "-".to_owned()),
        None => String::from("."),
    });
    each.collect::<Vec<_>>().join(" ")
}

fn figure_notes(grid: &HeatmapGrid) -> Vec<String> {
    let mut notes = Vec::new();
    let per_node = grid.rows.chunk_by(|a, b| a.node == b.node).map(<[_]>::len).max();
    if grid.shape == GridShape::Pairs && per_node.is_some_and(|n| 1 < n && n < grid.rows.len()) {
        notes.push("Thin lines separate nodes; between them are their GPUs in order.".to_owned());
    }
    if let Some(summed) = grid.summed {
        notes.push(format!("Each cell: {summed}."));
    }
    if let Some(left_out) = &grid.left_out {
        notes.push(format!("Shown: {left_out}."));
    }
    if svg_heatmap::has_too_many_crosses(grid) {
        notes.push("Too many cells differ from the expectation to cross each of them.".to_owned());
    }
    notes
}

fn figure_caption(grid: &HeatmapGrid) -> String {
    let place = match (&grid.domain, grid.shape, grid.rows.first()) {
        (_, GridShape::Pairs, Some(end)) if grid.rows.iter().all(|e| e.node == end.node) => {
            end.node.as_ref().map_or("one node".to_owned(), |n| clip_text(n.as_str()))
        }
        (Some(domain), ..) => clip_text(domain.as_str()),
        _ if 1 < grid.joined => format!("{} nodes", grid.joined),
        _ => "no single domain".to_owned(),
    };
    let what = match grid.shape {
        GridShape::Pairs => "from each line to each column",
        GridShape::PerGpu => "GPU by GPU",
        GridShape::PerRail => return format!("{}, rail by rail", test_name(grid)),
        GridShape::Leaves => return format!("{}, leaf by leaf", test_name(grid)),
    };
    // Between nodes of several domains, only the rail names the place.
    match (&grid.domain, &grid.rail) {
        (None, Some(_)) => format!("{}, {what}", test_name(grid)),
        _ => format!("{} in {place}, {what}", test_name(grid)),
    }
}

/// A description of the figure for screen readers.
fn describe_figure(grid: &HeatmapGrid, marked: &GridBlame) -> String {
    let mut values = grid.values();
    let middle = sort_median(&mut values).map(|m| format_quantity(m, Some(grid.unit)));
    format!(
        "{} cells of {}; median {}; lowest ratio {}; {} blamed.",
        values.len(),
        test_name(grid),
        middle.unwrap_or_else(|| "unknown".to_owned()),
        grid.lowest_ratio().map_or_else(|| "unknown".to_owned(), |r| format!("{r:.3}")),
        describe_blame(grid, marked),
    )
}

fn describe_blame(grid: &HeatmapGrid, blame: &GridBlame) -> String {
    let rows = blame.rows.iter().map(|&r| grid.rows[r].name());
    let cols = blame.cols.iter().map(|&c| grid.cols[c].name());
    let cells = blame
        .cells
        .iter()
        .map(|&(r, c)| format!("{} with {}", grid.rows[r].name(), grid.cols[c].name()));
    let names: BTreeSet<String> = rows.chain(cols).chain(cells).collect();
    if names.is_empty() {
        return "nothing".to_owned();
    }
    list_names(&names.into_iter().collect::<Vec<_>>(), 12)
}

/// All grids of an earlier run.
#[derive(Debug, Default)]
pub(super) struct PriorGrids {
    grids: Vec<HeatmapGrid>,
}

impl PriorGrids {
    pub(super) fn from_run(run: &Run) -> Self {
        let mut all = build_grids(run);
        let inside: Vec<HeatmapGrid> = all.iter().flat_map(|g| g.inside.clone()).collect();
        let fleet = fleet_grids(&all, &run.claims);
        all.extend(inside);
        all.extend(fleet);
        all.extend(crate::report::network::build_network_grids(run));
        Self { grids: all }
    }

    /// The earlier run's value at each spot of `grid`, if it has any. Ends are matched by name, so
    /// that added or removed nodes shift nothing.
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
        // One node did not exist then: its cells are unknown, the others keep theirs.
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
