//! The marks over the cells: crosses on bad cells, outlines and names around blamed parts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::blame_marks::GridBlame;
use super::super::chart::{DrawResult, PlotArea, label_style};
use super::super::grid::{GridEnd, HeatmapGrid};
use super::super::plain_text::clip;
use super::{HeatmapLayout, INK, LABEL, MOST_CROSSES, TEXT, spot_colour, text_colour, to_hex};
use model::verdict::Outcome;

/// All spots that are not as expected, by row and column.
pub(super) fn find_bad_spots(grid: &HeatmapGrid) -> Vec<(usize, usize)> {
    (0..grid.rows.len())
        .flat_map(|r| (0..grid.cols.len()).map(move |c| (r, c)))
        .filter(|&(r, c)| grid.at(r, c).is_some_and(|s| Outcome::Degraded <= s.outcome))
        .collect()
}

/// Whether there are too many crosses to draw.
pub(in crate::report) fn has_too_many_crosses(grid: &HeatmapGrid) -> bool {
    MOST_CROSSES < find_bad_spots(grid).len()
}

/// A cross in each cell that is not as expected, one path per colour.
pub(super) fn cross_paths(grid: &HeatmapGrid, at: &HeatmapLayout) -> String {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    let bad = if has_too_many_crosses(grid) { Vec::new() } else { find_bad_spots(grid) };
    for (row, col) in bad {
        let colour = spot_colour(grid.at(row, col)).map_or(INK, text_colour);
        let half = if at.numbers { 3 } else { (at.cell.0 / 3).clamp(2, 6) };
        let (x, y) = if at.numbers {
            (at.x(col + 1) - 7, at.y(row) + 7)
        } else {
            (at.x(col) + at.cell.0 / 2, at.y(row) + at.cell.1 / 2)
        };
        let (l, t, side) = (x - half, y - half, 2 * half);
        let path = paths.entry(to_hex(colour)).or_default();
        let _ = write!(path, "M{l} {t}l{side} {side}m0-{side}l-{side} {side}");
    }
    let paths =
        paths.iter().map(|(stroke, path)| format!("<path stroke=\"{stroke}\" d=\"{path}\"/>"));
    format!("<g class=\"crosses\" fill=\"none\">{}</g>", paths.collect::<String>())
}

/// A cross as one stroke: down, back to the middle, and across.
pub(super) fn draw_cross(
    area: &PlotArea<'_>,
    (x, y): (i32, i32),
    half: i32,
    colour: RGBColor,
) -> DrawResult {
    let (l, r, t, b) = (x - half, x + half, y - half, y + half);
    let path = [(l, t), (r, b), (x, y), (l, b), (r, t)];
    area.draw(&PathElement::new(path, colour.stroke_width(1)))?;
    Ok(())
}

/// Black and white next to each other are visible on every cell and in both themes.
pub(super) fn draw_outline(area: &PlotArea<'_>, from: (i32, i32), to: (i32, i32)) -> DrawResult {
    let frame = |by: i32| [(from.0 - by, from.1 - by), (to.0 + by, to.1 + by)];
    area.draw(&Rectangle::new(frame(2), BLACK.stroke_width(1)))?;
    area.draw(&Rectangle::new(frame(1), WHITE.stroke_width(1)))?;
    Ok(())
}

/// Blamed lines as first index, length and name: all lines of a node form one group.
pub(super) fn group_blamed(ends: &[GridEnd], blamed: &[usize]) -> Vec<(usize, usize, String)> {
    let mut out = Vec::new();
    let mut first = 0;
    for group in ends.chunk_by(|a, b| a.node.is_some() && a.node == b.node) {
        let here: Vec<usize> =
            (first..first + group.len()).filter(|i| blamed.binary_search(i).is_ok()).collect();
        match (&group[0].node, here.len()) {
            (Some(node), all @ 2..) if all == group.len() => {
                out.push((first, all, node.to_string()));
            }
            _ => out.extend(here.into_iter().map(|i| (i, 1, ends[i].name()))),
        }
        first += group.len();
    }
    out
}

pub(super) fn draw_outlines(
    area: &PlotArea<'_>,
    grid: &HeatmapGrid,
    blame: &GridBlame,
    at: &HeatmapLayout,
) -> DrawResult {
    let bold = |h, v| {
        let mut style = label_style(TEXT, INK, h, v);
        style.font = style.font.style(FontStyle::Bold);
        style
    };
    let mut next = i32::MIN;
    for (row, lines, name) in group_blamed(&grid.rows, &blame.rows) {
        draw_outline(area, (at.left, at.y(row)), (at.right(), at.y(row + lines)))?;
        let y = i32::midpoint(at.y(row), at.y(row + lines));
        let name = if next <= y { clip(&name, LABEL + 3) } else { String::new() };
        let style = bold(HPos::Left, VPos::Center);
        area.draw(&Text::new(format!("◀ {name}"), (at.right() + 6, y), style))?;
        if next <= y {
            next = y + 12;
        }
    }
    let cols = group_blamed(&grid.cols, &blame.cols);
    let alone = cols.len() == 1;
    for (col, lines, name) in cols {
        draw_outline(area, (at.x(col), at.top), (at.x(col + lines), at.bottom()))?;
        let x = i32::midpoint(at.x(col), at.x(col + lines));
        let name = if alone { name } else { String::new() };
        let style = bold(HPos::Center, VPos::Top);
        let text = format!("▲ {}", clip(&name, LABEL + 3));
        area.draw(&Text::new(text.trim_end(), (x, at.bottom() + 4), style))?;
    }
    let mut named = Vec::new();
    for &(row, col) in &blame.cells {
        draw_outline(area, (at.x(col), at.y(row)), (at.x(col + 1), at.y(row + 1)))?;
        if !named.contains(&row) && !blame.rows.contains(&row) {
            named.push(row);
            let y = i32::midpoint(at.y(row), at.y(row + 1));
            let text = format!("◀ {}", clip(&grid.rows[row].name(), LABEL + 3));
            let style = bold(HPos::Left, VPos::Center);
            area.draw(&Text::new(text, (at.right() + 6, y), style))?;
        }
    }
    Ok(())
}
