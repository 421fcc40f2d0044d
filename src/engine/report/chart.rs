//! The common part of all charts: the canvas, the text styles, the colours and the axes of figures,
//! and the sparkline. The modules that use it only supply data.

use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ReportError;

pub(super) type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The outcome of a drawing step.
pub(super) type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Colours that remain distinct for colour-blind readers (Okabe and Ito 2008).
pub(super) const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
pub(super) const GRID: RGBColor = RGBColor(221, 221, 221);

/// Draws on a canvas of `width` by `height` pixels and returns the SVG text.
pub(super) fn draw_svg(
    (width, height): (u32, u32),
    draw: impl FnOnce(&PlotArea<'_>) -> DrawResult,
) -> Result<String, ReportError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
    let drawn = draw(&area).and_then(|()| Ok(area.present()?));
    drop(area);
    drawn.map(|()| svg).map_err(|error| ReportError::Figure(error.to_string()))
}

/// A text style; plotters divides the size by 1.24 when it writes SVG.
pub(super) fn label_style(pixels: i32, colour: RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    let font = ("sans-serif", f64::from(pixels) * 1.24).into_font();
    TextStyle { font, color: colour.to_backend_color(), pos: Pos::new(h, v) }
}

/// A linear axis: a range of values on a range of pixels.
pub(super) struct ChartAxis {
    pub(super) values: (f64, f64),
    /// The positions of the two values.
    pub(super) pixels: (i32, i32),
}

impl ChartAxis {
    /// The position of a value; values outside the range are placed at its ends.
    #[expect(clippy::cast_possible_truncation, reason = "a share of some hundred pixels")]
    pub(super) fn position(&self, value: f64) -> i32 {
        let ((low, high), (start, end)) = (self.values, self.pixels);
        let share = (value - low) / (high - low);
        if !share.is_finite() {
            return start;
        }
        start + (share.clamp(0.0, 1.0) * f64::from(end - start)).round() as i32
    }
}

/// A plot with its two axes.
pub(super) struct ChartPanel {
    pub(super) x: ChartAxis,
    pub(super) y: ChartAxis,
    /// Height of the labels in pixels.
    pub(super) text: i32,
}

impl ChartPanel {
    pub(super) fn position(&self, x: f64, y: f64) -> (i32, i32) {
        (self.x.position(x), self.y.position(y))
    }

    pub(super) fn draw_text(
        &self,
        area: &PlotArea<'_>,
        text: impl Into<String>,
        at: (i32, i32),
        (colour, h, v): (RGBColor, HPos, VPos),
    ) -> DrawResult {
        let text: String = text.into();
        Ok(area.draw(&Text::new(text, at, label_style(self.text, colour, h, v)))?)
    }

    /// A tick of the x axis with its label.
    pub(super) fn draw_x_tick(&self, area: &PlotArea<'_>, value: f64, label: &str) -> DrawResult {
        let (x, bottom) = (self.x.position(value), self.y.pixels.0);
        let tick = [(x, bottom), (x, bottom + self.text - 7)];
        area.draw(&PathElement::new(tick, BLACK.stroke_width(1)))?;
        self.draw_text(area, label, (x, bottom + self.text - 4), (BLACK, HPos::Center, VPos::Top))
    }

    /// A label of the y axis.
    pub(super) fn draw_y_label(&self, area: &PlotArea<'_>, value: f64, label: &str) -> DrawResult {
        let at = (self.x.pixels.0 - 6, self.y.position(value));
        self.draw_text(area, label, at, (BLACK, HPos::Right, VPos::Center))
    }

    /// Horizontal lines with their labels at rounded steps from zero.
    pub(super) fn draw_y_grid(&self, area: &PlotArea<'_>) -> DrawResult {
        let most = self.y.values.1;
        let step = axis_step(most);
        let mut value = 0.0;
        while value <= most + step / 1e3 {
            let y = self.y.position(value);
            let line = [(self.x.pixels.0, y), (self.x.pixels.1, y)];
            area.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
            self.draw_y_label(area, value, &value.to_string())?;
            value += step;
        }
        Ok(())
    }
}

/// The step of an axis: one, two or five of a power of ten, at most ten steps.
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

/// A line of values without axes. The page's stylesheet gives it its colours, so plotters, which
/// writes no classes, does not draw it.
pub(super) struct Sparkline {
    /// Values that are not finite leave their place empty.
    pub(super) values: Vec<f64>,
    /// The usual range.
    pub(super) band: Option<(f64, f64)>,
    /// The points of changes and alarms.
    pub(super) changes: Vec<usize>,
    pub(super) alarms: Vec<usize>,
}

impl Sparkline {
    /// The SVG element; `description` is its text for screen readers.
    pub(super) fn draw(&self, description: &str) -> String {
        const WIDTH: f64 = 160.0;
        const HEIGHT: f64 = 30.0;
        const EDGE: f64 = 4.0;
        let values: Vec<(usize, f64)> =
            self.values.iter().copied().enumerate().filter(|(_, v)| v.is_finite()).collect();
        let band_ends = self.band.iter().flat_map(|(a, b)| [*a, *b]);
        let ends = values.iter().map(|(_, v)| *v).chain(band_ends);
        let low = ends.clone().fold(f64::INFINITY, f64::min);
        let high = ends.fold(f64::NEG_INFINITY, f64::max);
        // A constant part is a line in the middle, not enlarged noise.
        let room = (high - low).max(0.02 * high.abs()).max(f64::MIN_POSITIVE);
        let middle = f64::midpoint(low, high);
        let y = |v: f64| HEIGHT / 2.0 - (v - middle) / room * (HEIGHT - 2.0 * EDGE);
        let number = |i: usize| f64::from(u32::try_from(i).unwrap_or(u32::MAX));
        let last = number(self.values.len().saturating_sub(1)).max(1.0);
        let x = |i: usize| EDGE + number(i) / last * (WIDTH - 2.0 * EDGE);
        let mut name = String::new();
        super::svg_heatmap::escape_markup(description, &mut name);
        let mut svg = format!(
            "<svg class=\"spark\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" width=\"{WIDTH:.0}\" \
             height=\"{HEIGHT:.0}\" role=\"img\" aria-label=\"{name}\"><title>{name}</title>"
        );
        if let Some((a, b)) = self.band {
            let (top, height) = (y(b), (y(a) - y(b)).max(1.0));
            let _ = write!(
                svg,
                "<rect class=\"usual\" x=\"0\" y=\"{top:.1}\" width=\"{WIDTH:.0}\" height=\"{height:.1}\"/>"
            );
        }
        for &i in &self.changes {
            let _ = write!(svg, "<path class=\"change\" d=\"M{:.1} 0v{HEIGHT:.0}\"/>", x(i));
        }
        let path: Vec<String> =
            values.iter().map(|(i, v)| format!("{:.1} {:.1}", x(*i), y(*v))).collect();
        let _ = write!(svg, "<path class=\"line\" d=\"M{}\"/>", path.join("L"));
        for &i in self.alarms.iter().filter(|i| self.values[**i].is_finite()) {
            let (x, top) = (x(i), y(self.values[i]) - 3.5);
            // A diamond, so that its colour is not the only sign.
            let _ = write!(
                svg,
                "<path class=\"alarm\" d=\"M{x:.1} {top:.1}l3.5 3.5-3.5 3.5-3.5-3.5z\"/>"
            );
        }
        if let Some(&(i, v)) = values.last() {
            let (x, y) = (x(i), y(v));
            let _ = write!(svg, "<circle class=\"now\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>");
        }
        svg + "</svg>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_steps() {
        for (most, step) in [(1.0, 0.1), (13.6, 2.0), (18.0, 2.0), (72.0, 10.0), (2000.0, 200.0)] {
            assert!((axis_step(most) - step).abs() < 1e-9, "{most}: {}", axis_step(most));
        }
    }

    #[test]
    fn positions_stay_within_the_axis_in_both_directions() {
        let up = ChartAxis { values: (0.0, 4.0), pixels: (100, 20) };
        let found = [0.0, 1.0, 4.0, 9.0, -1.0, f64::NAN].map(|value| up.position(value));
        assert_eq!(found, [100, 80, 20, 20, 100, 100]);
    }
}
