//! Capacity as a picture: expected usable nodes against unavailability, and the
//! price of the next drain against nodes that are out already, a line for each
//! segment.
//!
//! Every line ends at its name, so that colour is never the only sign.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::svg_heatmap::{DrawResult, PlotArea, label_style};
use crate::policy::capacity::{
    CapacityBlock, CapacitySurvey, OutageAssumption, Outages, format_percent,
};

/// The picture and its margins, in pixels.
const WIDTH: i32 = 640;
const HEIGHT: i32 = 620;
const LEFT: i32 = 56;
const RIGHT: i32 = 530;
/// Tops and bottoms of the two panels.
const UPPER: (i32, i32) = (44, 270);
const LOWER: (i32, i32) = (352, 572);

/// plotters divides by 1.24 when it writes.
const TEXT: f64 = 12.0 * 1.24;
/// Height of a line's name.
const LINE: i32 = 14;

/// Unavailabilities that are drawn, and steps between them.
const MOST: f64 = 0.10;
const STEPS: u32 = 100;
/// Nodes out already that are drawn.
const OUT: u32 = 6;

/// Colours that people who see colours differently can tell (Okabe and Ito 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const GRID: RGBColor = RGBColor(221, 221, 221);

/// One segment's points, in a panel's units.
struct CapacityLine {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws the kind of block that most blocks are; nothing where there is none.
pub fn render_svg(survey: &CapacitySurvey) -> Result<Option<String>, ReportError> {
    let Some(block) = most_common_block(survey) else { return Ok(None) };
    let mut svg = String::new();
    let size = (WIDTH.unsigned_abs(), HEIGHT.unsigned_abs());
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&area, survey, block).map_err(|error| ReportError::Figure(error.to_string()))?;
    drop(area);
    Ok(Some(svg))
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
        .zip(COLOURS.iter().copied().cycle())
        .collect();
    let out = match block.out {
        0 => String::new(),
        out => format!(", {out} of them out"),
    };
    let title = format!("Expected usable nodes of a block of {}{out}", block.nodes);
    let nodes = f64::from(block.nodes.max(1));
    let upper = CapacityPanel { top: UPPER.0, bottom: UPPER.1, x_most: MOST, y_most: nodes };
    upper.draw_frame(area, &title, "nodes out at a time, each by itself")?;
    for step in 0..=5_u32 {
        let share = MOST * f64::from(step) / 5.0;
        upper.draw_mark(area, share, &format_percent(share))?;
    }
    let usable = |segment| {
        let at = |step| MOST * f64::from(step) / f64::from(STEPS);
        let point = |step| Some((at(step), Outages::from_unavailability(block.up(), at(step))?));
        let points = (0..=STEPS).filter_map(point);
        points.map(|(share, outages)| (share, outages.usable(segment))).collect()
    };
    upper.draw_lines(area, &build_lines(&segments, &usable), false)?;

    // What is out already is the axis here.
    let whole = match survey.assumptions.first() {
        Some(OutageAssumption::Observed { shares }) => {
            Outages::from_observation(block.nodes, shares).ok()
        }
        Some(OutageAssumption::Independent { unavailable }) => {
            Outages::from_unavailability(block.nodes, *unavailable)
        }
        None => None,
    };
    let Some(whole) = whole else { return Ok(area.present()?) };
    let most = OUT.min(block.nodes.saturating_sub(1));
    let price = |segment| {
        (0..=most).map(|out| (f64::from(out), whole.without(out).price(segment))).collect()
    };
    let lines = build_lines(&segments, &price);
    let highest = lines.iter().flat_map(|line| &line.points).fold(1.0, |a: f64, p| a.max(p.1));
    let assumed = match survey.assumptions.first() {
        Some(OutageAssumption::Independent { unavailable }) => {
            format!("{} of nodes out besides", format_percent(*unavailable))
        }
        _ => "others out as observed".to_owned(),
    };
    let x_most = f64::from(most.max(1));
    let lower = CapacityPanel { top: LOWER.0, bottom: LOWER.1, x_most, y_most: highest };
    lower.draw_frame(
        area,
        &format!("Price of the next drain in nodes, {assumed}"),
        "nodes out already",
    )?;
    for out in 0..=most {
        lower.draw_mark(area, f64::from(out), &out.to_string())?;
    }
    lower.draw_lines(area, &lines, true)?;
    Ok(area.present()?)
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

/// One of the two pictures.
struct CapacityPanel {
    top: i32,
    bottom: i32,
    x_most: f64,
    y_most: f64,
}

impl CapacityPanel {
    fn x(&self, value: f64) -> i32 {
        LEFT + to_pixels(value / self.x_most, RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> i32 {
        self.bottom - to_pixels(value / self.y_most, self.bottom - self.top)
    }

    /// Title, axis and what the heights are.
    fn draw_frame(&self, area: &PlotArea<'_>, title: &str, axis: &str) -> DrawResult {
        let text = |h, v| label_style(TEXT, BLACK, h, v);
        area.draw(&Text::new(title, (LEFT, self.top - 14), text(HPos::Left, VPos::Bottom)))?;
        let middle = i32::midpoint(LEFT, RIGHT);
        let below = (middle, self.bottom + 24);
        area.draw(&Text::new(axis, below, text(HPos::Center, VPos::Top)))?;
        let step = axis_step(self.y_most);
        let mut value = 0.0;
        while value <= self.y_most + step / 1e3 {
            let y = self.y(value);
            area.draw(&PathElement::new([(LEFT, y), (RIGHT, y)], GRID.stroke_width(1)))?;
            let style = text(HPos::Right, VPos::Center);
            area.draw(&Text::new(format!("{value}"), (LEFT - 6, y), style))?;
            value += step;
        }
        Ok(())
    }

    /// A mark of the axis.
    fn draw_mark(&self, area: &PlotArea<'_>, value: f64, name: &str) -> DrawResult {
        let x = self.x(value);
        let tick = [(x, self.bottom), (x, self.bottom + 5)];
        area.draw(&PathElement::new(tick, BLACK.stroke_width(1)))?;
        let style = label_style(TEXT, BLACK, HPos::Center, VPos::Top);
        area.draw(&Text::new(name, (x, self.bottom + 8), style))?;
        Ok(())
    }

    /// The lines, each with its name at its end.
    fn draw_lines(
        &self,
        area: &PlotArea<'_>,
        lines: &[CapacityLine],
        is_dotted: bool,
    ) -> DrawResult {
        let mut names: Vec<(i32, &CapacityLine)> = Vec::new();
        for line in lines {
            let path: Vec<(i32, i32)> =
                line.points.iter().map(|(x, y)| (self.x(*x), self.y(*y))).collect();
            for at in path.iter().filter(|_| is_dotted) {
                area.draw(&Circle::new(*at, 3, line.colour.filled()))?;
            }
            if let Some(end) = path.last() {
                names.push((end.1, line));
            }
            area.draw(&PathElement::new(path, line.colour.stroke_width(2)))?;
        }
        // Names keep a line's height apart, and within the picture.
        names.sort_by_key(|(y, _)| *y);
        let all = i32::try_from(names.len()).unwrap_or(i32::MAX / LINE) * LINE;
        let mut next = i32::MIN;
        for (at, (y, line)) in (0..).zip(names) {
            let lowest = self.bottom + LINE - all + at * LINE;
            let place = y.min(lowest).max(next);
            next = place + LINE;
            let style = label_style(TEXT, line.colour, HPos::Left, VPos::Center);
            area.draw(&PathElement::new([(RIGHT + 2, y), (RIGHT + 14, place)], line.colour))?;
            area.draw(&Text::new(line.name.clone(), (RIGHT + 18, place), style))?;
        }
        Ok(())
    }
}

/// Steps of an axis: one, two or five of a power of ten, at most ten of them.
fn axis_step(most: f64) -> f64 {
    let mut step = 0.1;
    for factor in [2.0, 2.5, 2.0].iter().cycle() {
        if most / step <= 10.0 || 1e9 < step {
            break;
        }
        step *= factor;
    }
    step
}

/// A share of a length in pixels.
#[expect(clippy::cast_possible_truncation, reason = "a share of some hundred pixels")]
fn to_pixels(share: f64, length: i32) -> i32 {
    (share.clamp(0.0, 1.0) * f64::from(length)).round() as i32
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
        // All nodes at none out is at the top left.
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

    #[test]
    fn an_axis_has_few_steps() {
        for (most, step) in [(1.0, 0.1), (13.6, 2.0), (18.0, 2.0), (72.0, 10.0), (2000.0, 200.0)] {
            assert!((axis_step(most) - step).abs() < 1e-9, "{most}: {}", axis_step(most));
        }
    }
}
