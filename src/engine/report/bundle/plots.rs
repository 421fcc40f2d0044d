//! The pictures of a bundle: matrices with the node's lines marked, and its cells
//! beside what is expected of them. Each is a file that any browser shows.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::BundleCase;
use super::evidence::NodeEvidence;
use crate::report::blame_marks::GridBlame;
use crate::report::grid::{GridEnd, GridReference, GridShape, HeatmapGrid, build_grids};
use crate::report::plain_text::{clip, format_number, format_quantity};
use crate::report::svg_heatmap::{DrawResult, PlotArea, label_style};
use crate::report::{ReportError, svg_heatmap};
use model::id::NodeName;
use model::stats::sort_median;
use model::verdict::Outcome;

/// Matrices and charts that are drawn, the tests that convict first.
const FIGURES: usize = 4;
/// Lines of a matrix drawn GPU by GPU; beyond that one line is a node.
const LEGIBLE: usize = 144;
/// Lines of a matrix that is still drawn.
const LINES: usize = 144;
/// Bars of one chart, the lowest.
const BARS: usize = 48;
/// Bars of the chart on the page.
const ON_THE_PAGE: usize = 10;

/// The pictures, and what they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Plots {
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// The chart for the page: its markup, without a head of its own.
    pub(super) chart: Option<String>,
    /// What is in which file.
    pub(super) captions: Vec<(String, String)>,
}

/// Draws what concerns the node.
pub(super) fn plots(case: &BundleCase, sides: &NodeEvidence) -> Result<Plots, ReportError> {
    let node = &case.node;
    let all = build_grids(&case.run);
    let mut order: Vec<(&HeatmapGrid, usize, usize)> = all
        .iter()
        .flat_map(|grid| {
            let own = grid.inside.iter().filter(|it| has(&it.rows, node));
            let whole = std::iter::once(grid).filter(|it| it.inside.is_empty());
            own.chain(whole)
        })
        .filter(|grid| has(&grid.rows, node) || has(&grid.cols, node))
        .map(|grid| (grid, low(grid, node), grid.rows.len()))
        .collect();
    // What convicts, then what shows more of the surroundings.
    order.sort_by(|a, b| {
        let low = (0 < b.1).cmp(&(0 < a.1));
        let pairs = (b.0.shape == GridShape::Pairs).cmp(&(a.0.shape == GridShape::Pairs));
        low.then(pairs).then(b.2.cmp(&a.2)).then(a.0.testcase.cmp(&b.0.testcase))
    });
    let mut plots = Plots::default();
    // A matrix without a chart has its number as well.
    for (number, (grid, low, _)) in (1..).zip(order.into_iter().take(FIGURES)) {
        let test = file_word(&grid.testcase);
        let grid_drawn = legible(grid);
        let marked = marks(&grid_drawn, sides, node);
        let about = format!("{low} cells of {node} are not as expected");
        let figure =
            svg_heatmap::draw_heatmap(&grid_drawn, &marked, &format!("m{number}"), &about)?;
        let name = format!("plots/{number}-matrix-{test}.svg");
        plots.captions.push((name.clone(), format!("{}: all cells, {node} marked", grid.testcase)));
        plots.files.push((name, alone(&figure.svg).into_bytes()));

        let bars = bars(grid, sides, node, BARS);
        if bars.is_empty() {
            continue;
        }
        let drawn = |bars: &[Bar]| {
            chart(grid, node, bars).map_err(|it| ReportError::Figure(it.to_string()))
        };
        let svg = drawn(&bars)?;
        let name = format!("plots/{number}-cells-{test}.svg");
        let what = format!("{}: cells of {node} against expectation", grid.testcase);
        plots.captions.push((name.clone(), what));
        if plots.chart.is_none() {
            plots.chart = Some(drawn(&self::bars(grid, sides, node, ON_THE_PAGE))?);
        }
        plots.files.push((name, svg.into_bytes()));
    }
    Ok(plots)
}

fn has(ends: &[GridEnd], node: &NodeName) -> bool {
    ends.iter().any(|end| end.node.as_ref() == Some(node))
}

/// How many cells of the node are not as expected.
fn low(grid: &HeatmapGrid, node: &NodeName) -> usize {
    let mine = |end: &GridEnd| end.node.as_ref() == Some(node);
    let mut count = 0;
    for row in 0..grid.rows.len() {
        for col in 0..grid.cols.len() {
            let is_bad = grid.at(row, col).is_some_and(|it| Outcome::Degraded <= it.outcome);
            count += usize::from(is_bad && (mine(&grid.rows[row]) || mine(&grid.cols[col])));
        }
    }
    count
}

fn legible(grid: &HeatmapGrid) -> HeatmapGrid {
    let side = |it: &HeatmapGrid| it.rows.len().max(it.cols.len());
    if side(grid) <= LEGIBLE || grid.shape != GridShape::Pairs {
        return if side(grid) <= LEGIBLE { grid.clone() } else { grid.keep_worst(LINES) };
    }
    let by_node = grid.fold_by_node();
    if side(&by_node) <= LINES { by_node } else { by_node.keep_worst(LINES) }
}

/// The node's lines: those of blamed GPUs, or all where no single GPU is blamed.
fn marks(grid: &HeatmapGrid, sides: &NodeEvidence, node: &NodeName) -> GridBlame {
    let gpus = sides.blamed_gpus();
    let mine = |end: &GridEnd| {
        let blamed = end.gpu.is_none_or(|gpu| gpus.is_empty() || gpus.contains(&gpu));
        end.node.as_ref() == Some(node) && blamed
    };
    let lines = |ends: &[GridEnd]| {
        ends.iter().enumerate().filter(|(_, end)| mine(end)).map(|(at, _)| at).collect()
    };
    let cols = if grid.shape == GridShape::Pairs { lines(&grid.cols) } else { Vec::new() };
    GridBlame { rows: lines(&grid.rows), cols, cells: Vec::new() }
}

/// A word for the name of a file.
fn file_word(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    text.chars().take(60).map(kept).collect()
}

/// A picture of a page as a file of its own: with its namespace, a page's colours, and
/// the hatching that pages define once.
fn alone(svg: &str) -> String {
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" color=\"#111\" ";
    let inside = "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
                  patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#fff\"/>\
                  <rect width=\"2\" height=\"6\" fill=\"#999\"/></pattern></defs>\
                  <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/><g font-family=\"sans-serif\">";
    let svg = svg.replacen("<svg ", head, 1).replacen("<title", &format!("{inside}<title"), 1);
    let svg = svg.strip_suffix("</svg>").unwrap_or(&svg);
    format!("{svg}</g></svg>\n")
}

/// One cell of the node as a bar.
struct Bar {
    name: String,
    value: f64,
    outcome: Outcome,
}

/// The cells of what is blamed, the lowest where they are too many, in their order;
/// below them what others show with each other.
fn bars(grid: &HeatmapGrid, sides: &NodeEvidence, node: &NodeName, most: usize) -> Vec<Bar> {
    let blamed = |end: &GridEnd| {
        let is = end.node.clone().is_some_and(|it| sides.blames(node, &(it, end.gpu)));
        is || (end.node.as_ref() == Some(node) && end.gpu.is_none())
    };
    let mut bars = Vec::new();
    let mut others = Vec::new();
    for (row, from) in grid.rows.iter().enumerate() {
        for (col, to) in grid.cols.iter().enumerate() {
            let Some(spot) = grid.at(row, col) else { continue };
            let Some(value) = spot.value else { continue };
            let is_own = match grid.shape {
                GridShape::Pairs => blamed(from) || blamed(to),
                // A column is a GPU of the line's node.
                GridShape::PerGpu => blamed(&GridEnd { node: from.node.clone(), gpu: to.gpu }),
                GridShape::PerRail => from.node.as_ref() == Some(node),
                // A leaf is nobody's part.
                GridShape::Leaves => false,
            };
            if !is_own {
                others.push(value);
                continue;
            }
            let arrow = if grid.shape == GridShape::Pairs { " > " } else { ", " };
            let name = format!("{}{arrow}{}", from.name(), to.name());
            bars.push((spot.ratio.unwrap_or(1.0), Bar { name, value, outcome: spot.outcome }));
        }
    }
    if most < bars.len() {
        // Of a whole node the worst are enough; the table has all.
        let mut ratios: Vec<f64> = bars.iter().map(|it| it.0).collect();
        ratios.sort_by(f64::total_cmp);
        let line = ratios[most - 1];
        bars.retain(|it| it.0 <= line);
        bars.truncate(most);
    }
    let mut bars: Vec<Bar> = bars.into_iter().map(|(_, bar)| bar).collect();
    if let (false, Some(value)) = (bars.is_empty(), sort_median(&mut others)) {
        let name = format!("median of {} others", others.len());
        bars.push(Bar { name, value, outcome: Outcome::Pass });
    }
    bars
}

const WIDTH: i32 = 720;
const LEFT: i32 = 210;
const RIGHT: i32 = 640;
const TOP: i32 = 52;
const STEP: i32 = 13;
/// plotters divides by 1.24 when it writes.
const TEXT: f64 = 10.0 * 1.24;
/// Okabe and Ito 2008: told apart also by those who see colours differently.
const FINE: RGBColor = RGBColor(0, 114, 178);
const LOW: RGBColor = RGBColor(213, 94, 0);
const MUTED: RGBColor = RGBColor(110, 110, 110);

fn chart(
    grid: &HeatmapGrid,
    node: &NodeName,
    bars: &[Bar],
) -> Result<String, Box<dyn std::error::Error>> {
    let height = TOP + STEP * i32::try_from(bars.len())? + 40;
    let mut svg = String::new();
    let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&area, grid, node, bars)?;
    drop(area);
    Ok(svg)
}

fn draw(area: &PlotArea<'_>, grid: &HeatmapGrid, node: &NodeName, bars: &[Bar]) -> DrawResult {
    area.fill(&WHITE)?;
    let expected = match grid.reference {
        GridReference::Expectation(low, high) => Some((f64::midpoint(low, high), "expected")),
        GridReference::Median(median) => Some((median, "median of all")),
        GridReference::Nothing => None,
    };
    let most = bars.iter().map(|it| it.value).chain(expected.map(|it| it.0)).fold(0.0, f64::max);
    let scale = if 0.0 < most { f64::from(RIGHT - LEFT) / (1.05 * most) } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, reason = "a share of the picture's width")]
    let x = |value: f64| LEFT + (value.max(0.0) * scale).round() as i32;
    let text = |size: f64, h| label_style(size, BLACK, h, VPos::Center);
    let title = format!("{}: cells of {}", clip(&grid.testcase, 60), clip(node.as_str(), 40));
    area.draw(&Text::new(title, (8, 14), text(13.0 * 1.24, HPos::Left)))?;
    let bottom = TOP + STEP * i32::try_from(bars.len())?;
    let mut y = TOP;
    for bar in bars {
        let is_low = Outcome::Degraded <= bar.outcome;
        let colour = if is_low { LOW } else { FINE };
        let corners = [(LEFT, y + 2), (x(bar.value), y + STEP - 2)];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        let middle = y + STEP / 2;
        area.draw(&Text::new(clip(&bar.name, 34), (LEFT - 6, middle), text(TEXT, HPos::Right)))?;
        let mark = if is_low { " x" } else { "" };
        let value = format!("{}{mark}", format_number(bar.value));
        area.draw(&Text::new(value, (RIGHT + 6, middle), text(TEXT, HPos::Left)))?;
        y += STEP;
    }
    if let Some((value, word)) = expected {
        let at = x(value);
        area.draw(&PathElement::new([(at, TOP - 6), (at, bottom)], BLACK.stroke_width(1)))?;
        let says = format!("{word} {}", format_quantity(value, Some(grid.unit)));
        area.draw(&Text::new(says, (at, TOP - 14), text(TEXT, HPos::Center)))?;
    }
    area.draw(&PathElement::new([(LEFT, TOP), (LEFT, bottom)], MUTED.stroke_width(1)))?;
    let legend = format!(
        "in {}; orange with x: not as expected, blue: as expected; the lowest {} of its cells",
        grid.unit,
        bars.len().saturating_sub(1)
    );
    area.draw(&Text::new(legend, (8, bottom + 20), text(TEXT, HPos::Left)))?;
    Ok(area.present()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn every_matrix_has_a_number_of_its_own_also_where_it_has_no_chart() {
        let mut run = fixture::rack();
        let node = NodeName::from("node0012");
        // Nothing was read of this node: there is nothing to chart.
        for cell in &mut run.cells {
            if [&cell.src_node, &cell.dst_node].into_iter().flatten().any(|it| *it == node) {
                (cell.value, cell.ratio) = (None, None);
            }
        }
        let case = super::super::fixture::build_case(run, "node0012");
        let drawn = plots(&case, &NodeEvidence::from_case(&case)).expect("drawn");
        let numbers: Vec<Option<&str>> = drawn
            .files
            .iter()
            .map(|(name, _)| name.strip_prefix("plots/")?.split_once('-').map(|it| it.0))
            .collect();
        assert_eq!(numbers, [Some("1"), Some("2")], "{:?}", drawn.captions);
    }
}
