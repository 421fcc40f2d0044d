//! Capacity as an image: expected usable nodes against unavailability, and the price of the next
//! drain against the nodes that are out already, one line per segment.
//!
//! Every line ends at its name, so that colour is never the only sign.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::chart::{ChartAxis, ChartPanel, DrawResult, PALETTE, PlotArea, draw_svg};
use crate::policy::capacity::{
    CapacityBlock, CapacitySurvey, OutageAssumption, Outages, format_percent,
};

/// The image and its margins, in pixels.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 620;
const LEFT: i32 = 56;
const RIGHT: i32 = 530;
/// Tops and bottoms of the two panels.
const UPPER: (i32, i32) = (44, 270);
const LOWER: (i32, i32) = (352, 572);

/// In pixels.
const TEXT: i32 = 12;
/// In pixels.
const LINE: i32 = 14;

/// The greatest unavailability drawn, and the number of steps up to it.
const MOST: f64 = 0.10;
const STEPS: u32 = 100;
/// The greatest number of nodes that are out already.
const OUT: u32 = 6;

/// One segment's points, in a panel's units.
struct CapacityLine {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws the most common kind of block; `None` without blocks.
pub fn render_svg(survey: &CapacitySurvey) -> Result<Option<String>, ReportError> {
    let Some(block) = most_common_block(survey) else { return Ok(None) };
    draw_svg((WIDTH, HEIGHT), |area| draw(area, survey, block)).map(Some)
}

/// The kind with the most blocks, the first of several.
fn most_common_block(survey: &CapacitySurvey) -> Option<&CapacityBlock> {
    let alike = |block: &CapacityBlock| {
        let is_like = |other: &&CapacityBlock| (other.nodes, other.out) == (block.nodes, block.out);
        survey.blocks.iter().map(|it| &it.block).filter(is_like).count()
    };
    let mut best: Option<(&CapacityBlock, usize)> = None;
    for block in survey.blocks.iter().map(|it| &it.block) {
        let count = alike(block);
        if best.is_none_or(|(_, most)| most < count) {
            best = Some((block, count));
        }
    }
    best.map(|(block, _)| block)
}

fn draw(area: &PlotArea<'_>, survey: &CapacitySurvey, block: &CapacityBlock) -> DrawResult {
    area.fill(&WHITE)?;
    let segments = survey.blocks.first().and_then(|it| it.outlooks.first());
    let segments: Vec<(u32, RGBColor)> = segments
        .iter()
        .flat_map(|outlook| outlook.segments.iter().map(|left| left.segment))
        .zip(PALETTE.iter().copied().cycle())
        .collect();
    let out = match block.out {
        0 => String::new(),
        out => format!(", {out} of them out"),
    };
    let title = format!("Expected usable nodes of a block of {}{out}", block.nodes);
    let nodes = f64::from(block.nodes.max(1));
    let upper = new_panel(UPPER, MOST, nodes);
    draw_frame(&upper, area, &title, "nodes out at a time, independently")?;
    for step in 0..=5_u32 {
        let share = MOST * f64::from(step) / 5.0;
        upper.draw_x_tick(area, share, &format_percent(share))?;
    }
    let usable = |segment| {
        let at = |step| MOST * f64::from(step) / f64::from(STEPS);
        let point = |step| Some((at(step), Outages::from_unavailability(block.up(), at(step))?));
        let points = (0..=STEPS).filter_map(point);
        points.map(|(share, outages)| (share, outages.usable(segment))).collect()
    };
    draw_lines(&upper, area, &build_lines(&segments, &usable), false)?;

    // The nodes that are out already are the x axis here.
    let whole = match survey.assumptions.first() {
        Some(OutageAssumption::Observed { shares }) => {
            Outages::from_observation(block.nodes, shares).ok()
        }
        Some(OutageAssumption::Independent { unavailable }) => {
            Outages::from_unavailability(block.nodes, *unavailable)
        }
        None => None,
    };
    let Some(whole) = whole else { return Ok(()) };
    let most = OUT.min(block.nodes.saturating_sub(1));
    let price = |segment| {
        (0..=most).map(|out| (f64::from(out), whole.without(out).price(segment))).collect()
    };
    let lines = build_lines(&segments, &price);
    let highest = lines.iter().flat_map(|line| &line.points).fold(1.0, |a: f64, p| a.max(p.1));
    let assumed = match survey.assumptions.first() {
        Some(OutageAssumption::Independent { unavailable }) => {
            format!("{} of other nodes out", format_percent(*unavailable))
        }
        _ => "others out as observed".to_owned(),
    };
    let lower = new_panel(LOWER, f64::from(most.max(1)), highest);
    draw_frame(
        &lower,
        area,
        &format!("Price of the next drain in nodes, {assumed}"),
        "nodes out already",
    )?;
    for out in 0..=most {
        lower.draw_x_tick(area, f64::from(out), &out.to_string())?;
    }
    draw_lines(&lower, area, &lines, true)
}

fn build_lines(
    segments: &[(u32, RGBColor)],
    points: &impl Fn(u32) -> Vec<(f64, f64)>,
) -> Vec<CapacityLine> {
    let line = |(segment, colour): &(u32, RGBColor)| CapacityLine {
        name: format!("segment {segment}"),
        colour: *colour,
        points: points(*segment),
    };
    segments.iter().map(line).collect()
}

fn new_panel((top, bottom): (i32, i32), x_most: f64, y_most: f64) -> ChartPanel {
    ChartPanel {
        x: ChartAxis { values: (0.0, x_most), pixels: (LEFT, RIGHT) },
        y: ChartAxis { values: (0.0, y_most), pixels: (bottom, top) },
        text: TEXT,
    }
}

/// Title, name of the x axis and the heights.
fn draw_frame(panel: &ChartPanel, area: &PlotArea<'_>, title: &str, axis: &str) -> DrawResult {
    let (bottom, top) = panel.y.pixels;
    panel.draw_text(area, title, (LEFT, top - 14), (BLACK, HPos::Left, VPos::Bottom))?;
    let middle = i32::midpoint(LEFT, RIGHT);
    panel.draw_text(area, axis, (middle, bottom + 24), (BLACK, HPos::Center, VPos::Top))?;
    panel.draw_y_grid(area)
}

/// The lines, each with its name at its end.
fn draw_lines(
    panel: &ChartPanel,
    area: &PlotArea<'_>,
    lines: &[CapacityLine],
    is_dotted: bool,
) -> DrawResult {
    let mut names: Vec<(i32, &CapacityLine)> = Vec::new();
    for line in lines {
        let path: Vec<_> = line.points.iter().map(|(x, y)| panel.position(*x, *y)).collect();
        for at in path.iter().filter(|_| is_dotted) {
            area.draw(&Circle::new(*at, 3, line.colour.filled()))?;
        }
        if let Some(end) = path.last() {
            names.push((end.1, line));
        }
        area.draw(&PathElement::new(path, line.colour.stroke_width(2)))?;
    }
    // Names keep a line's height of distance, and stay within the image.
    names.sort_by_key(|(y, _)| *y);
    let all = i32::try_from(names.len()).unwrap_or(i32::MAX / LINE) * LINE;
    let mut next = i32::MIN;
    for (at, (y, line)) in (0..).zip(names) {
        let lowest = panel.y.pixels.0 + LINE - all + at * LINE;
        let place = y.min(lowest).max(next);
        next = place + LINE;
        area.draw(&PathElement::new([(RIGHT + 2, y), (RIGHT + 14, place)], line.colour))?;
        let style = (line.colour, HPos::Left, VPos::Center);
        panel.draw_text(area, line.name.as_str(), (RIGHT + 18, place), style)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::capacity::{CapacityQuestion, survey_capacity};

    fn drawn(blocks: Vec<CapacityBlock>, segments: Vec<u32>) -> Option<String> {
        let question = CapacityQuestion {
            blocks,
            segments,
            at_least: None,
            mix: None,
            assumptions: vec![OutageAssumption::Independent { unavailable: 0.01 }],
            degraded: 0.05,
            exposed: 0.3,
        };
        render_svg(&survey_capacity(&question).expect("a survey")).expect("a figure")
    }

    #[test]
    fn every_segment_has_its_line_in_both_panels() {
        let svg =
            drawn(vec![CapacityBlock::new(18, 0)], vec![1, 2, 4, 8, 9, 16, 18]).expect("a picture");
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 14);
        assert_eq!(svg.matches("segment 16\n").count(), 2, "{svg}");
        // Seven prices of seven segments.
        assert_eq!(svg.matches("<circle").count(), 49);
        assert!(svg.contains("Expected usable nodes of a block of 18"));
        // All nodes usable, with none out, is at the top left.
        assert!(svg.contains("points=\"56,44 "), "{svg}");
    }

    #[test]
    fn the_kind_that_most_blocks_are_is_drawn() {
        let blocks =
            vec![CapacityBlock::new(18, 1), CapacityBlock::new(16, 2), CapacityBlock::new(16, 2)];
        let svg = drawn(blocks, vec![8]).expect("a picture");
        assert!(svg.contains("block of 16, 2 of them out"), "{svg}");
        assert_eq!(drawn(Vec::new(), vec![8]), None);
        for (nodes, out) in [(0, 0), (1, 0), (1, 1), (2000, 0)] {
            assert!(
                drawn(vec![CapacityBlock::new(nodes, out)], vec![1, 5000]).is_some(),
                "{nodes}"
            );
        }
    }
}
