//! The small heatmap of a terminal: one or two characters per spot.
//!
//! Glyphs alone carry the meaning; colour only repeats it.

use anstyle::AnsiColor;
use anstyle::Style;

use super::blame::blame;
use super::blame::concerns;
use super::grid::Grid;
use super::grid::Reference;
use super::grid::Shape;
use super::grid::Spot;
use super::grid::grids;
use super::plain::clip;
use super::plain::quantity;
use super::scale;
use crate::model::run::Run;
use crate::model::verdict::Outcome;

/// More columns than this are put together node by node.
const MOST_COLUMNS: usize = 40;
/// More lines than this push the rest of the report off the screen.
const MOST_LINES: usize = 24;
/// Longest label in front of a line.
const LABEL: usize = 18;

/// A heatmap as lines of styled pieces.
#[derive(Debug)]
pub(super) struct Heat {
    /// What it shows.
    pub(super) title: String,
    /// The lines below, as (style, text) pieces.
    pub(super) lines: Vec<Vec<(Style, String)>>,
}

/// The grid that shows most: where a finding rests, else the lowest ratio.
/// `None` where nothing has numbers.
pub(super) fn worst(run: &Run, width: usize) -> Option<Heat> {
    let mut grids: Vec<Grid> = grids(run)
        .into_iter()
        .flat_map(|mut grid| {
            let inside = std::mem::take(&mut grid.inside);
            std::iter::once(grid).chain(inside)
        })
        .filter(|grid| grid.spots.iter().any(Option::is_some))
        .collect();
    let rank = |grid: &Grid| {
        let first =
            run.verdicts.findings.iter().position(|f| {
                concerns(f, grid) && !blame(std::slice::from_ref(f), grid).is_empty()
            });
        // Between pairs a part shows as a cross, which says more than a strip,
        // and a comparison with an expectation more than one with a median.
        let compared = matches!(grid.reference, Reference::Expectation(..));
        (first.unwrap_or(usize::MAX), !compared, grid.shape != Shape::Pairs)
    };
    grids.sort_by(|a, b| {
        let lowest = |g: &Grid| g.lowest().unwrap_or(f64::INFINITY);
        rank(a).cmp(&rank(b)).then(lowest(a).total_cmp(&lowest(b)))
    });
    grids.into_iter().next().map(|grid| draw(run, grid, width))
}

fn draw(run: &Run, grid: Grid, width: usize) -> Heat {
    let grid = if MOST_COLUMNS < grid.cols.len() { grid.by_node() } else { grid };
    let room = width.saturating_sub(LABEL + 6).max(16);
    let grid = if room < grid.cols.len() || MOST_LINES < grid.rows.len() {
        grid.worst(MOST_LINES.min(room))
    } else {
        grid
    };
    let wide = 2 * grid.cols.len() <= room;
    let blame = blame(&run.verdicts.findings, &grid);
    let plain = Style::new();
    let bold = Style::new().bold();
    let label = grid.rows.iter().map(|e| e.name().chars().count()).max().unwrap_or(0).min(LABEL);

    let mut lines = Vec::new();
    for (row, end) in grid.rows.iter().enumerate() {
        let guilty = blame.rows.contains(&row) || blame.cells.iter().any(|c| c.0 == row);
        let (mark, style) = if guilty { ('>', bold) } else { (' ', plain) };
        let mut line = vec![(style, format!("{mark} {:<label$} ", clip(&end.name(), label)))];
        for col in 0..grid.cols.len() {
            let (style, glyph) = glyph(grid.at(row, col));
            let text: String = std::iter::repeat_n(glyph, if wide { 2 } else { 1 }).collect();
            match line.last_mut() {
                Some((last, before)) if *last == style && 0 < col => before.push_str(&text),
                _ => line.push((style, text)),
            }
        }
        lines.push(line);
    }
    if !blame.cols.is_empty() {
        let mut marks = String::new();
        for col in 0..grid.cols.len() {
            let mark = if blame.cols.contains(&col) { '^' } else { ' ' };
            marks.extend(std::iter::repeat_n(mark, if wide { 2 } else { 1 }));
        }
        lines.push(vec![(bold, format!("  {:label$} {}", "", marks.trim_end()))]);
    }
    let shown: Vec<char> = (0..grid.rows.len())
        .flat_map(|r| (0..grid.cols.len()).map(move |c| (r, c)))
        .map(|(r, c)| glyph(grid.at(r, c)).1)
        .collect();
    let keys: Vec<String> = scale::GLYPHS
        .iter()
        .filter(|(glyph, _)| shown.contains(glyph))
        .map(|(glyph, words)| format!("{glyph} {words}"))
        .collect();
    for key in fold(&keys, width.saturating_sub(4)) {
        lines.push(vec![(plain, format!("  {key}"))]);
    }
    Heat { title: title(&grid), lines }
}

/// What the grid shows, relative to what.
fn title(grid: &Grid) -> String {
    let mut title = clip(&grid.testcase, 60);
    if let Some(domain) = &grid.domain {
        title.push_str(&format!(" in {}", clip(domain.as_str(), 40)));
    }
    if let Some(rail) = &grid.rail {
        title.push_str(&format!(", rail {}", clip(rail, 20)));
    }
    title.push_str(match grid.shape {
        Shape::Pairs => ": lines send, columns receive",
        Shape::PerGpu => ": one line a node, one column a GPU",
    });
    if let Some(summed) = grid.summed {
        title.push_str(&format!("; {summed}"));
    }
    if let Some(left_out) = &grid.left_out {
        title.push_str(&format!("; {left_out}"));
    }
    let unit = Some(grid.unit);
    match grid.reference {
        Reference::Expectation(low, high) if low == high => {
            title.push_str(&format!("; relative to the expected {}", quantity(low, unit)));
        }
        Reference::Expectation(low, high) => title.push_str(&format!(
            "; relative to the expected {} to {}",
            quantity(low, unit),
            quantity(high, unit)
        )),
        Reference::Median(median) => title.push_str(&format!(
            "; nothing is expected here, so relative to the median {}",
            quantity(median, unit)
        )),
        Reference::Nothing => {}
    }
    title
}

fn glyph(spot: Option<&Spot>) -> (Style, char) {
    let Some(spot) = spot else { return (Style::new(), ' ') };
    let colour = |c: AnsiColor| Style::new().fg_color(Some(c.into()));
    match spot.ratio.and_then(scale::band) {
        Some(band) => {
            let style = match band.from {
                from if 1.05 <= from => colour(AnsiColor::Cyan),
                from if 0.98 <= from => Style::new(),
                from if 0.96 <= from => colour(AnsiColor::Magenta),
                from if 0.70 <= from => colour(AnsiColor::Yellow),
                _ => colour(AnsiColor::Red).bold(),
            };
            (style, band.glyph)
        }
        None if spot.outcome == Outcome::Failed => (colour(AnsiColor::Red).bold(), '×'),
        None => (colour(AnsiColor::Cyan), '?'),
    }
}

/// Keys put on as few lines as fit.
fn fold(keys: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for key in keys {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + key.chars().count() <= width => {
                line.push_str("   ");
                line.push_str(key);
            }
            _ => lines.push(key.clone()),
        }
    }
    lines
}
