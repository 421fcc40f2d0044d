//! The small heatmap of a terminal: one or two characters per spot.
//!
//! Glyphs alone carry the meaning; colour only repeats it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use anstyle::{AnsiColor, Style};

use super::blame_marks::{BlameFinder, blame_grid, names_test};
use super::colour_scale;
use super::grid::{GridReference, GridShape, GridSpot, HeatmapGrid, build_grids};
use super::overview::{count_low, fleet_grids};
use super::plain_text::{clip, format_quantity, rail_name};
use model::id::DomainName;
use model::run::Run;
use model::verdict::Outcome;

/// Grids with more columns are folded by node.
const MOST_COLUMNS: usize = 40;
/// More lines would push the rest of the report off the screen.
const MOST_LINES: usize = 24;
/// Longest label in front of a line.
const LABEL: usize = 18;

/// A heatmap as lines of styled pieces.
#[derive(Debug)]
pub(super) struct TextHeatmap {
    pub(super) title: String,
    /// The lines below, as (style, text) pieces.
    pub(super) lines: Vec<Vec<(Style, String)>>,
}

/// The most relevant grid: the one with the worst finding's part, else with low cells, else (if
/// something is unknown) with missing cells. `None` if there is nothing to draw.
pub(super) fn worst_heatmap(run: &Run, width: usize) -> Option<TextHeatmap> {
    let verdicts = &run.verdicts;
    let grids = build_grids(run);
    let joined = fleet_grids(&grids, &run.claims);
    let mut grids: Vec<HeatmapGrid> = grids
        .into_iter()
        .flat_map(|mut grid| {
            let inside = std::mem::take(&mut grid.inside);
            std::iter::once(grid).chain(inside)
        })
        .chain(joined)
        .filter(|grid| grid.spots.iter().any(Option::is_some))
        .collect();
    let numbers: usize = run.cells.iter().filter(|c| c.value.is_some()).count();
    // Findings by domain: those without one apply to every domain.
    let mut homes: BTreeMap<Option<&DomainName>, Vec<usize>> = BTreeMap::new();
    for (at, finding) in verdicts.findings.iter().enumerate() {
        homes.entry(finding.locus.domain.as_ref()).or_default().push(at);
    }
    let all: Vec<usize> = (0..verdicts.findings.len()).collect();
    let shows = |grid: &HeatmapGrid| {
        let of = |name| homes.get(&name).map_or(&[][..], Vec::as_slice);
        let wanted = match &grid.domain {
            Some(domain) => [of(Some(domain)), of(None)],
            None => [all.as_slice(), &[]],
        };
        let marked = BlameFinder::new(grid, wanted.iter().map(|it| it.len()).sum());
        let shown = |at: &&usize| !marked.find(&verdicts.findings[**at]).is_empty();
        let at = wanted.iter().filter_map(|it| it.iter().find(shown)).min().copied();
        at.map_or((usize::MAX, false), |at| (at, !names_test(&verdicts.findings[at], grid)))
    };
    let unknown = verdicts.outcome == Outcome::Unknown;
    let mut ranked: Vec<_> = grids
        .drain(..)
        .map(|grid| {
            let nodes = grid.rows.iter().filter_map(|e| e.node.as_ref()).collect::<BTreeSet<_>>();
            // A cross between nodes is the clearest. A finding inside a node is clearer in its own
            // square, and a healthy fleet in a strip of all nodes.
            let pairs = grid.shape == GridShape::Pairs;
            let shown = shows(&grid);
            let alone = shown.0 == usize::MAX;
            let kind = match (pairs, 1 < nodes.len()) {
                (true, true) => 0,
                (true, false) if !alone => 1,
                (false, true) => 2,
                _ => 3,
            };
            let compared =
                matches!(grid.reference, GridReference::Expectation(low, high) if low == high);
            let lows = count_low(&grid).min(1);
            let missing = if unknown { grid.missing_count() } else { 0 };
            let rank =
                (shown, Reverse(lows), Reverse(missing), kind, !compared, grid.summed.is_none());
            (rank, grid)
        })
        .collect();
    ranked.sort_by(|(a, a_grid), (b, b_grid)| {
        let lowest = |g: &HeatmapGrid| g.lowest_ratio().unwrap_or(f64::INFINITY);
        a.cmp(b).then(lowest(a_grid).total_cmp(&lowest(b_grid)))
    });
    let (rank, grid) = ranked.into_iter().next()?;
    let has_blame = verdicts.findings.iter().any(|f| Outcome::Unknown < f.outcome);
    if has_blame && rank.0.0 == usize::MAX && rank.1 == Reverse(0) {
        let title = format!(
            "no matrix shows the findings: the {numbers} cells with a number are as expected"
        );
        return (0 < numbers).then(|| TextHeatmap { title, lines: Vec::new() });
    }
    Some(draw_heatmap(run, grid, width))
}

fn draw_heatmap(run: &Run, grid: HeatmapGrid, width: usize) -> TextHeatmap {
    let grid = if MOST_COLUMNS < grid.cols.len() { grid.fold_by_node() } else { grid };
    let room = width.saturating_sub(LABEL + 6).max(16);
    let grid = if room < grid.cols.len() || MOST_LINES < grid.rows.len() {
        grid.keep_worst(MOST_LINES.min(room))
    } else {
        grid
    };
    let wide = 2 * grid.cols.len() <= room;
    let blame = blame_grid(&run.verdicts.findings, &grid);
    let plain = Style::new();
    let bold = Style::new().bold();
    let label = grid.rows.iter().map(|e| e.name().chars().count()).max().unwrap_or(0).min(LABEL);

    let mut lines = Vec::new();
    lines.extend(column_header(&grid, label, wide));
    for (row, end) in grid.rows.iter().enumerate() {
        let is_blamed = blame.rows.contains(&row) || blame.cells.iter().any(|c| c.0 == row);
        let (mark, style) = if is_blamed { ('>', bold) } else { (' ', plain) };
        let mut line = vec![(style, format!("{mark} {:<label$} ", clip(&end.name(), label)))];
        for col in 0..grid.cols.len() {
            let (style, glyph) = spot_glyph(grid.at(row, col));
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
        .map(|(r, c)| spot_glyph(grid.at(r, c)).1)
        .collect();
    let keys: Vec<String> = colour_scale::GLYPHS
        .iter()
        .filter(|(glyph, _)| shown.contains(glyph))
        .map(|(glyph, words)| format!("{glyph} {words}"))
        .collect();
    for key in fold_legend(&keys, width.saturating_sub(4)) {
        lines.push(vec![(plain, format!("  {key}"))]);
    }
    TextHeatmap { title: heatmap_title(&grid), lines }
}

/// GPU numbers above their columns, if the columns are the GPUs of one node and the numbers fit.
fn column_header(grid: &HeatmapGrid, label: usize, wide: bool) -> Option<Vec<(Style, String)>> {
    let one_node = grid.cols.iter().all(|end| end.node == grid.cols[0].node);
    let gpus: Option<Vec<u32>> = grid.cols.iter().map(|end| end.gpu).collect();
    let gpus =
        gpus.filter(|gpus| one_node && gpus.iter().all(|g| *g < if wide { 100 } else { 10 }))?;
    let fill = if wide { 2 } else { 1 };
    let numbers: String = gpus.iter().map(|gpu| format!("{gpu:<fill$}")).collect();
    let text = format!("  {:label$} {}", "GPU", numbers.trim_end());
    Some(vec![(Style::new().dimmed(), text)])
}

/// The subject of the grid, and its reference.
fn heatmap_title(grid: &HeatmapGrid) -> String {
    let mut title = clip(&grid.testcase, 60);
    if let Some(domain) = &grid.domain {
        title.push_str(&format!(" in {}", clip(domain.as_str(), 40)));
    }
    if 1 < grid.joined {
        title.push_str(&format!(" in {} nodes", grid.joined));
    }
    if let Some(rail) = &grid.rail {
        title.push_str(&format!(", {}", rail_name(&clip(rail, 20))));
    }
    title.push_str(match grid.shape {
        GridShape::Pairs => ": lines send, columns receive",
        GridShape::PerGpu => ": one line per node, one column per GPU",
        GridShape::PerRail => ": one line per node, one column per rail",
        GridShape::Leaves => ": lines send, columns receive, leaf by leaf",
    });
    if let Some(summed) = grid.summed {
        title.push_str(&format!("; {summed}"));
    }
    if let Some(left_out) = &grid.left_out {
        title.push_str(&format!("; {left_out}"));
    }
    let unit = Some(grid.unit);
    match grid.reference {
        GridReference::Expectation(low, high) if low == high => {
            title.push_str(&format!("; relative to the expected {}", format_quantity(low, unit)));
        }
        GridReference::Expectation(low, high) => title.push_str(&format!(
            "; relative to the expected {} to {}",
            format_quantity(low, unit),
            format_quantity(high, unit)
        )),
        GridReference::Median(median) => title.push_str(&format!(
            "; without an expectation, so relative to the peers' median {}",
            format_quantity(median, unit)
        )),
        GridReference::Nothing => {}
    }
    title
}

fn spot_glyph(spot: Option<&GridSpot>) -> (Style, char) {
    let Some(spot) = spot else { return (Style::new(), ' ') };
    let colour = |c: AnsiColor| Style::new().fg_color(Some(c.into()));
    match spot.ratio.and_then(colour_scale::find_band) {
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

/// The keys on as few lines as possible.
fn fold_legend(keys: &[String], width: usize) -> Vec<String> {
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
