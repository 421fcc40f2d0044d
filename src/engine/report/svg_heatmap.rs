//! One heatmap as SVG: axes, outlines and legend drawn with plotters, cells as one path per colour.
//!
//! Cells keep their colours in light and dark mode; text and lines take the page's colour. Colour
//! is never the only sign: cells that are not as expected carry a cross, blamed parts an outline
//! and their name. The page's script redraws the groups `cells`, `numbers` and `crosses` when it
//! shows other numbers of the same grid.

mod marks;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, VPos};

pub(super) use self::marks::has_too_many_crosses;
use self::marks::{cross_paths, draw_cross, draw_outline, draw_outlines};
use super::blame_marks::GridBlame;
use super::chart::{DrawResult, PlotArea, draw_svg, label_style};
use super::grid::{GridEnd, GridReference, GridShape, GridSpot, HeatmapGrid};
use super::plain_text::{clip, format_number, format_quantity};
use super::{ReportError, colour_scale};
use model::verdict::Outcome;

/// Stand-ins for colours of the stylesheet, because plotters only supports RGB. [`apply_theme`]
/// replaces them.
const INK: RGBColor = RGBColor(1, 1, 1);
const HATCH: RGBColor = RGBColor(2, 2, 2);
const MUTED: RGBColor = RGBColor(3, 3, 3);
/// The legend's texts, which a page's script finds by their class.
const TICK: RGBColor = RGBColor(4, 4, 4);
const KEY: RGBColor = RGBColor(5, 5, 5);
/// More crosses than this would hide the image.
const MOST_CROSSES: usize = 600;
/// Most characters of a label.
const LABEL: usize = 22;
/// Width of one character of the labels, at 11 pixels.
const GLYPH: i32 = 7;
/// Height of labels, in pixels.
const TEXT: i32 = 11;

/// A drawn grid and the position of its cells, for the page's readout.
#[derive(Clone, Debug)]
pub(super) struct SvgFigure {
    pub(super) svg: String,
    /// Left edge, top edge, width and height of one cell, in the image's units.
    pub(super) cells: [i32; 4],
    /// Whether cells are large enough to hold their number.
    pub(super) numbers: bool,
    /// Whether the image must scroll on a narrow screen to be legible.
    pub(super) wide: bool,
}

struct HeatmapLayout {
    left: i32,
    top: i32,
    cell: (i32, i32),
    cols: i32,
    rows: i32,
    size: (u32, u32),
    numbers: bool,
}

impl HeatmapLayout {
    fn new(grid: &HeatmapGrid, blame: &GridBlame) -> Self {
        let (rows, cols) = (grid.rows.len(), grid.cols.len());
        let side = rows.max(cols);
        let cell = match grid.shape {
            GridShape::PerGpu | GridShape::PerRail if rows <= 60 => (46, 20),
            GridShape::PerGpu | GridShape::PerRail => (46, 14),
            _ if side <= 10 => (48, 28),
            _ if side <= 20 => (24, 24),
            _ if side <= 40 => (16, 16),
            _ => (9, 9),
        };
        let longest = |ends: &[GridEnd]| {
            ends.iter().map(|e| clip(&group_name(e, grid), LABEL).chars().count()).max()
        };
        let wide = |chars: Option<usize>| to_pixels(chars.unwrap_or(0)) * GLYPH;
        let left = 34 + wide(longest(&grid.rows)).max(30);
        let top = if is_grouped(&grid.cols) { 30 + wide(longest(&grid.cols)) } else { 42 };
        let right = if blame.rows.is_empty() && blame.cells.is_empty() {
            24
        } else {
            34 + wide(longest(&grid.rows)) + 3 * GLYPH
        };
        let (cols, rows) = (to_pixels(cols), to_pixels(rows));
        let width = (left + cols * cell.0 + right).max(LEGEND_WIDTH);
        let height = top + rows * cell.1 + 20 + LEGEND_HEIGHT;
        let size = (width.unsigned_abs(), height.unsigned_abs());
        Self { left, top, cell, cols, rows, size, numbers: 40 <= cell.0 && 14 <= cell.1 }
    }

    fn x(&self, col: usize) -> i32 {
        self.left + to_pixels(col) * self.cell.0
    }

    fn y(&self, row: usize) -> i32 {
        self.top + to_pixels(row) * self.cell.1
    }

    fn right(&self) -> i32 {
        self.left + self.cols * self.cell.0
    }

    fn bottom(&self) -> i32 {
        self.top + self.rows * self.cell.1
    }
}

/// A count as pixels; grids are bounded long before this saturates.
fn to_pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX / 64)
}

/// Draws a grid. `id` makes the image's ids unique on a page; `about` is its description for screen
/// readers.
pub(super) fn draw_heatmap(
    grid: &HeatmapGrid,
    blame: &GridBlame,
    id: &str,
    about: &str,
) -> Result<SvgFigure, ReportError> {
    let layout = HeatmapLayout::new(grid, blame);
    let svg = draw_svg(layout.size, |area| {
        draw_separators(area, grid, &layout)?;
        draw_axes(area, grid, &layout)?;
        draw_outlines(area, grid, blame, &layout)?;
        draw_legend(area, grid, blame, &layout)
    })?;
    let title = clip(&format!("{} heatmap", grid.testcase), 200);
    let under = format!("{}{}", cell_paths(grid, &layout), number_texts(grid, &layout));
    let over = cross_paths(grid, &layout);
    let titles = tooltip_shapes(grid, &layout);
    let cells = [layout.left, layout.top, layout.cell.0, layout.cell.1];
    Ok(SvgFigure {
        svg: apply_theme(&svg, id, [&title, about], &under, &format!("{over}{titles}")),
        cells,
        numbers: layout.numbers,
        wide: 640 < layout.size.0,
    })
}

/// The colour of a spot; `None` for an empty spot.
fn spot_colour(spot: Option<&GridSpot>) -> Option<RGBColor> {
    let spot = spot?;
    let (r, g, b) = match spot.ratio.and_then(colour_scale::find_band) {
        Some(band) => band.colour,
        // A failure without a number has the worst colour.
        None if spot.outcome == Outcome::Failed => {
            colour_scale::BANDS[colour_scale::BANDS.len() - 1].colour
        }
        None => return Some(HATCH),
    };
    Some(RGBColor(r, g, b))
}

/// A colour in SVG notation.
fn to_hex(colour: RGBColor) -> String {
    match colour {
        HATCH => "url(#hatch)".to_owned(),
        INK => "currentColor".to_owned(),
        RGBColor(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
    }
}

/// All cells, one path per colour. Adjacent cells of one colour form one rectangle: a healthy rack
/// of 5,184 cells then needs a few hundred rectangles.
fn cell_paths(grid: &HeatmapGrid, at: &HeatmapLayout) -> String {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    for row in 0..grid.rows.len() {
        let colours: Vec<_> =
            (0..grid.cols.len()).map(|col| spot_colour(grid.at(row, col))).collect();
        let mut col = 0;
        for run in colours.chunk_by(|a, b| a == b) {
            if let Some(colour) = run[0] {
                let (x, y) = (at.x(col), at.y(row));
                let (w, h) = (to_pixels(run.len()) * at.cell.0, at.cell.1);
                let path = paths.entry(to_hex(colour)).or_default();
                let _ = write!(path, "M{x} {y}h{w}v{h}h-{w}z");
            }
            col += run.len();
        }
    }
    let paths = paths.iter().map(|(fill, path)| format!("<path fill=\"{fill}\" d=\"{path}\"/>"));
    format!("<g class=\"cells\" shape-rendering=\"crispEdges\">{}</g>", paths.collect::<String>())
}

/// The numbers inside cells, if cells are large enough.
fn number_texts(grid: &HeatmapGrid, at: &HeatmapLayout) -> String {
    let mut out = String::from(
        "<g class=\"numbers\" font-size=\"10\" text-anchor=\"middle\" \
         dominant-baseline=\"central\">",
    );
    for row in 0..if at.numbers { grid.rows.len() } else { 0 } {
        for col in 0..grid.cols.len() {
            let spot = grid.at(row, col);
            let (Some(value), Some(colour)) = (spot.and_then(|s| s.value), spot_colour(spot))
            else {
                continue;
            };
            let (x, y) = (at.x(col) + at.cell.0 / 2, at.y(row) + at.cell.1 / 2);
            let (ink, value) = (to_hex(text_colour(colour)), format_number(value));
            let _ = write!(out, "<text x=\"{x}\" y=\"{y}\" fill=\"{ink}\">{value}</text>");
        }
    }
    out.push_str("</g>");
    out
}

/// Black or white, whichever is more legible on a cell; the page's ink without a cell.
fn text_colour(colour: RGBColor) -> RGBColor {
    if colour == HATCH {
        INK
    } else if colour_scale::takes_dark_text((colour.0, colour.1, colour.2)) {
        BLACK
    } else {
        WHITE
    }
}

/// Thin lines between nodes (between all cells if those are large).
fn draw_separators(area: &PlotArea<'_>, grid: &HeatmapGrid, at: &HeatmapLayout) -> DrawResult {
    let style = WHITE.mix(0.35).stroke_width(1);
    let starts = |ends: &[GridEnd]| -> Vec<usize> {
        let new = |i: usize| at.numbers || ends[i].node != ends[i - 1].node;
        (1..ends.len()).filter(|i| new(*i)).collect()
    };
    // Lines per GPU already separate; with one line per node they would only form a mesh.
    let mesh = |ends: &[GridEnd], starts: &[usize]| !at.numbers && starts.len() + 1 == ends.len();
    let (rows, cols) = (starts(&grid.rows), starts(&grid.cols));
    for &col in cols.iter().filter(|_| !mesh(&grid.cols, &cols)) {
        let x = at.x(col);
        area.draw(&PathElement::new([(x, at.top), (x, at.bottom())], style))?;
    }
    for &row in rows.iter().filter(|_| !mesh(&grid.rows, &rows)) {
        let y = at.y(row);
        area.draw(&PathElement::new([(at.left, y), (at.right(), y)], style))?;
    }
    let frame = [(at.left, at.top), (at.right(), at.bottom())];
    area.draw(&Rectangle::new(frame, MUTED.stroke_width(1)))?;
    Ok(())
}

/// Whether several nodes share an axis, so that labels are node names.
fn is_grouped(ends: &[GridEnd]) -> bool {
    ends.windows(2).any(|pair| pair[0].node != pair[1].node)
}

/// The name of a label's group.
fn group_name(end: &GridEnd, grid: &HeatmapGrid) -> String {
    let ends = if grid.cols.contains(end) { &grid.cols } else { &grid.rows };
    match (&end.node, end.gpu) {
        (Some(node), _) if is_grouped(ends) => node.to_string(),
        (_, Some(gpu)) => gpu.to_string(),
        _ => end.name(),
    }
}

fn draw_axes(area: &PlotArea<'_>, grid: &HeatmapGrid, at: &HeatmapLayout) -> DrawResult {
    let middle = |from: i32, to: i32| i32::midpoint(from, to);
    let mut next = i32::MIN;
    for (first, count, name) in group_ends(&grid.rows, grid) {
        let y = middle(at.y(first), at.y(first + count));
        // Labels keep a line's height of distance; if lines are lower, some have no label.
        if next <= y {
            let style = label_style(TEXT, INK, HPos::Right, VPos::Center);
            area.draw(&Text::new(name, (at.left - 6, y), style))?;
            next = y + 12;
        }
    }
    let mut next = i32::MIN;
    let upright = is_grouped(&grid.cols);
    for (first, count, name) in group_ends(&grid.cols, grid) {
        let x = middle(at.x(first), at.x(first + count));
        if next <= x {
            let (h, v) =
                if upright { (HPos::Left, VPos::Center) } else { (HPos::Center, VPos::Bottom) };
            let mut style = label_style(TEXT, INK, h, v);
            if upright {
                style.font = style.font.transform(FontTransform::Rotate270);
            }
            area.draw(&Text::new(name, (x, at.top - 6), style))?;
            next = x + 12;
        }
    }
    let (down, across) = match grid.shape {
        GridShape::Pairs if is_grouped(&grid.rows) => ("sends", "receives"),
        GridShape::Pairs => ("GPU that sends", "GPU that receives"),
        GridShape::PerGpu => ("node", "GPU"),
        GridShape::PerRail => ("node", "rail"),
        GridShape::Leaves => ("leaf that sends", "leaf that receives"),
    };
    let style = label_style(TEXT, MUTED, HPos::Center, VPos::Top);
    let centre = middle(at.left, at.right());
    area.draw(&Text::new(format!("{across} →"), (centre, 6), style.clone()))?;
    let mut style = style;
    style.font = style.font.transform(FontTransform::Rotate270);
    let centre = middle(at.top, at.bottom());
    area.draw(&Text::new(format!("← {down}"), (6, centre), style))?;
    Ok(())
}

/// Runs of lines under one label: first index, length, label.
fn group_ends(ends: &[GridEnd], grid: &HeatmapGrid) -> Vec<(usize, usize, String)> {
    let together = is_grouped(ends);
    let mut out = Vec::new();
    let mut first = 0;
    for run in ends.chunk_by(|a, b| together && a.node == b.node) {
        out.push((first, run.len(), clip(&group_name(&run[0], grid), LABEL)));
        first += run.len();
    }
    out
}

/// Width of one colour of the legend.
const STEP: i32 = 38;
const LEGEND_WIDTH: i32 = 470;
const LEGEND_HEIGHT: i32 = 96;

fn draw_legend(
    area: &PlotArea<'_>,
    grid: &HeatmapGrid,
    blame: &GridBlame,
    at: &HeatmapLayout,
) -> DrawResult {
    let top = at.bottom() + 30;
    let left = 16;
    let small = |h, ink| label_style(10, ink, h, VPos::Top);
    let title = match grid.reference {
        GridReference::Expectation(low, high) if low == high => {
            format!("Ratio to the expected {}", format_quantity(low, Some(grid.unit)))
        }
        GridReference::Expectation(low, high) => {
            format!(
                "Ratio to the expected {} to {}",
                format_number(low),
                format_quantity(high, Some(grid.unit))
            )
        }
        GridReference::Median(median) => format!(
            "No expectation: ratio to the peers' median {}",
            format_quantity(median, Some(grid.unit))
        ),
        GridReference::Nothing => "No number was measured".to_owned(),
    };
    area.draw(&Text::new(title, (left, top), label_style(TEXT, KEY, HPos::Left, VPos::Top)))?;
    let y = top + 18;
    let mut x = left;
    // Worst on the left, as a ratio grows.
    for band in colour_scale::BANDS.iter().rev() {
        let (r, g, b) = band.colour;
        area.draw(&Rectangle::new([(x, y), (x + STEP, y + 14)], RGBColor(r, g, b).filled()))?;
        if band.from.is_finite() {
            area.draw(&PathElement::new([(x, y + 14), (x, y + 18)], INK.stroke_width(1)))?;
            let text = format!("{:.2}", band.from);
            area.draw(&Text::new(text, (x, y + 19), small(HPos::Center, TICK)))?;
        }
        x += STEP;
    }
    area.draw(&Rectangle::new([(left, y), (x, y + 14)], MUTED.stroke_width(1)))?;
    let y = y + 38;
    area.draw(&Rectangle::new([(left, y), (left + 14, y + 12)], HATCH.filled()))?;
    area.draw(&Rectangle::new([(left, y), (left + 14, y + 12)], MUTED.stroke_width(1)))?;
    area.draw(&Text::new("no number", (left + 20, y + 2), small(HPos::Left, INK)))?;
    draw_cross(area, (left + 101, y + 6), 4, INK)?;
    area.draw(&Text::new("degraded or failed", (left + 112, y + 2), small(HPos::Left, INK)))?;
    if !blame.is_empty() {
        draw_outline(area, (left + 224, y + 2), (left + 240, y + 10))?;
        area.draw(&Text::new("blamed part", (left + 250, y + 2), small(HPos::Left, INK)))?;
    }
    Ok(())
}

/// Tooltips, as invisible shapes above the cells: for every cell if there are few, else for those
/// that are not as expected.
fn tooltip_shapes(grid: &HeatmapGrid, at: &HeatmapLayout) -> String {
    let mut out = String::from("<g class=\"tips\" fill=\"none\" pointer-events=\"all\">");
    let few = grid.spots.len() <= 400;
    let mut left = MOST_CROSSES;
    for row in 0..grid.rows.len() {
        for col in 0..grid.cols.len() {
            let Some(spot) = grid.at(row, col) else { continue };
            let worth = few || Outcome::Degraded <= spot.outcome || spot.value.is_none();
            if !worth || left == 0 {
                continue;
            }
            left -= 1;
            let [x, y] = [at.x(col), at.y(row)];
            let (w, h) = at.cell;
            let _ = write!(out, "<path d=\"M{x} {y}h{w}v{h}h-{w}z\"><title>");
            escape_markup(&describe_spot(grid, row, col, spot), &mut out);
            out.push_str("</title></path>");
        }
    }
    out.push_str("</g>");
    out
}

pub(super) fn describe_spot(grid: &HeatmapGrid, row: usize, col: usize, spot: &GridSpot) -> String {
    let (from, to) = (clip(&grid.rows[row].name(), 80), clip(&grid.cols[col].name(), 80));
    let ends = match grid.shape {
        GridShape::Pairs | GridShape::Leaves => format!("{from} → {to}"),
        GridShape::PerGpu | GridShape::PerRail => format!("{from}, {to}"),
    };
    let value = spot.value.map_or("no number".to_owned(), |v| format_quantity(v, Some(grid.unit)));
    let ratio = spot.ratio.map(|r| format!(", ratio {r:.3}")).unwrap_or_default();
    format!("{ends}: {value}{ratio}, {}", spot.outcome)
}

/// Escapes `text` for markup, including attributes.
pub(super) fn escape_markup(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
}

/// The image with its description, the shapes below and above the drawing of plotters (cells;
/// crosses and tooltips), and the page's colours in place of the stand-ins. Quotes in text are
/// escaped, so that no text can look like one of the attributes replaced here.
fn apply_theme(svg: &str, id: &str, words: [&str; 2], under: &str, over: &str) -> String {
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let head = svg.split_once("viewBox=\"").and_then(|(_, rest)| rest.split_once('"'));
    let view = head.map_or("0 0 1 1", |(view, _)| view);
    let size = view.rsplit(' ').take(2).collect::<Vec<_>>();
    let (height, width) =
        (size.first().copied().unwrap_or("1"), size.get(1).copied().unwrap_or("1"));
    let body = body
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(" font-family=\"sans-serif\"", "")
        .replace(" fill=\"#010101\"", " fill=\"currentColor\"")
        .replace(" stroke=\"#010101\"", " stroke=\"currentColor\"")
        .replace(" fill=\"#020202\"", " fill=\"url(#hatch)\"")
        .replace(" fill=\"#030303\"", " fill=\"currentColor\" fill-opacity=\".7\"")
        .replace(" fill=\"#040404\"", " fill=\"currentColor\" class=\"tick\"")
        .replace(" fill=\"#050505\"", " fill=\"currentColor\" class=\"key\"")
        .replace(" stroke=\"#030303\"", " stroke=\"currentColor\" stroke-opacity=\".5\"")
        .replace("\n</text>", "</text>");
    let body = body.trim_end().strip_suffix("</svg>").unwrap_or(&body);
    let mut out = format!(
        "<svg viewBox=\"{view}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">"
    );
    escape_markup(words[0], &mut out);
    let _ = write!(out, "</title><desc id=\"{id}-d\">");
    escape_markup(words[1], &mut out);
    out.push_str("</desc>");
    out.push_str(under);
    out.push_str(body);
    out.push_str(over);
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::marks::group_blamed;
    use super::*;
    use crate::report::blame_marks::blame_grid;
    use crate::report::fixture;
    use crate::report::grid::build_grids;

    fn draw_test_figure(run: &model::run::Run, at: usize) -> String {
        let grid = &build_grids(run)[at];
        draw_heatmap(grid, &blame_grid(&run.verdicts.findings, grid), "f1", "a test")
            .expect("svg")
            .svg
    }

    #[test]
    fn a_rack_marks_its_bad_gpu_by_name_outline_and_crosses() {
        let svg = draw_test_figure(&fixture::rack(), 1);
        assert!(svg.contains("◀ node0007:2") && svg.contains("▲ node0007:2"));
        // 142 cells of the bad GPU, all crossed by one path.
        let (_, crosses) = svg.split_once("class=\"crosses\"").expect("the group");
        assert_eq!(crosses.split('"').nth(5).map(|d| d.matches('M').count()), Some(142));
        assert_eq!(svg.matches("<path fill=").count(), 2, "healthy and one link lost");
        assert!(svg.len() < 200_000, "{}", svg.len());
    }

    #[test]
    fn all_lines_of_a_blamed_node_share_one_outline_and_its_name() {
        let run = fixture::rack();
        let grid = &build_grids(&run)[1];
        assert_eq!(group_blamed(&grid.rows, &[4, 5, 6, 7]), [(4, 4, "node0002".to_owned())]);
        let some = group_blamed(&grid.rows, &[5, 6]);
        assert_eq!(some, [(5, 1, "node0002:1".to_owned()), (6, 1, "node0002:2".to_owned())]);
    }

    #[test]
    fn no_stand_in_colour_is_left_and_all_tags_close() {
        for run in fixture::all() {
            for grid in 0..build_grids(&run).len() {
                let svg = draw_test_figure(&run, grid);
                for left in ["#010101", "#020202", "#030303", "#040404", "#050505", "NaN"] {
                    assert!(!svg.contains(left), "{left}");
                }
                assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
                assert_eq!(svg.matches("<title").count(), svg.matches("</title>").count());
                assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>"));
            }
        }
    }

    #[test]
    fn hostile_names_are_text_and_nothing_else() {
        let svg = draw_test_figure(&fixture::hostile(), 0);
        assert!(!svg.contains("<script") && !svg.contains("<img") && !fixture::steers(&svg));
        assert!(svg.contains("&lt;script&gt;"));
    }
}
