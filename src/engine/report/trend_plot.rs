//! Series over time as an image: points, the usual band, alarms and changes, one panel per series.
//!
//! Colour is never the only sign: a blamed part is a cross, an alarm a flag with its shift, a
//! change a dashed line with a letter that is explained below.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::chart::{
    ChartAxis, ChartPanel, DrawResult, GRID, PALETTE, PlotArea, draw_svg, label_style,
};
use super::plain_text::{clip, format_number, to_plain};
use super::trend::part_name;
use model::text::format_percent;
use model::trend::{RunChange, Trend};
use model::verdict::Outcome;

/// Most panels of an image.
pub const MOST: usize = 24;

/// Width of the image and the horizontal range of panels, in pixels.
const WIDTH: u32 = 860;
const LEFT: i32 = 70;
const RIGHT: i32 = 830;
/// Height of a panel's plot and of the texts above and below it.
const PLOT: i32 = 150;
const ABOVE: i32 = 44;
const BELOW: i32 = 26;
/// Height of a line of text below a panel.
const LINE: i32 = 15;
const MOST_CHANGES: usize = 5;
const MARKS: i64 = 6;
/// Half the height of the band, in standard deviations.
const BAND: f64 = 3.0;

/// Heights of the labels and of a title.
const TEXT: i32 = 11;
const TITLE: i32 = 13;

const POINTS: RGBColor = PALETTE[0];
const BLAMED: RGBColor = PALETTE[1];
const MIDDLE: RGBColor = PALETTE[2];
const USUAL: RGBColor = RGBColor(220, 236, 229);
const CHANGE: RGBColor = RGBColor(110, 110, 110);

/// Draws the series, the first [`MOST`] of them; `None` without a series.
pub fn render_svg(trends: &[Trend]) -> Result<Option<String>, ReportError> {
    let trends: Vec<&Trend> = trends.iter().filter(|t| !t.points.is_empty()).take(MOST).collect();
    if trends.is_empty() {
        return Ok(None);
    }
    let height: i32 = trends.iter().map(|trend| panel_height(trend)).sum();
    draw_svg((WIDTH, height.unsigned_abs() + 10), |area| draw(area, &trends)).map(Some)
}

fn panel_height(trend: &Trend) -> i32 {
    let listed = changes_below(trend).len();
    ABOVE + PLOT + BELOW + LINE * i32::try_from(listed).unwrap_or(0)
}

/// The changes listed below a panel: by run, the last ones of many.
fn changes_below(trend: &Trend) -> Vec<(&str, Vec<&RunChange>)> {
    let mut runs: Vec<(&str, Vec<&RunChange>)> = Vec::new();
    for changed in &trend.changes {
        match runs.last_mut() {
            Some((run, all)) if *run == changed.run => all.push(changed),
            _ => runs.push((&changed.run, vec![changed])),
        }
    }
    runs.split_off(runs.len().saturating_sub(MOST_CHANGES))
}

fn draw(area: &PlotArea<'_>, trends: &[&Trend]) -> DrawResult {
    area.fill(&WHITE)?;
    let mut top = 0;
    for trend in trends {
        TrendPanel::new(trend, top + ABOVE).draw(area, trend)?;
        top += panel_height(trend);
    }
    Ok(())
}

struct TrendPanel {
    top: i32,
    time: (i64, i64),
    plot: ChartPanel,
}

impl TrendPanel {
    fn new(trend: &Trend, top: i32) -> Self {
        let times = || trend.points.iter().map(|point| point.at_unix);
        let first = times().min().unwrap_or(0);
        let last = times().max().unwrap_or(0).max(first + 1);
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        let band = trend.baseline.iter().flat_map(|usual| {
            [1.0 - BAND * usual.spread, 1.0 + BAND * usual.spread].map(|share| usual.mean * share)
        });
        for value in trend.points.iter().map(|point| point.value).chain(band) {
            (low, high) = (low.min(value), high.max(value));
        }
        // A constant series is drawn in the middle of the panel.
        let room = ((high - low) * 0.08).max(high.abs() * 0.005).max(f64::MIN_POSITIVE);
        let plot = ChartPanel {
            x: ChartAxis { values: (seconds(first), seconds(last)), pixels: (LEFT, RIGHT) },
            y: ChartAxis { values: (low - room, high + room), pixels: (top + PLOT, top) },
            text: TEXT,
        };
        Self { top, time: (first, last), plot }
    }

    fn x(&self, at_unix: i64) -> i32 {
        self.plot.x.position(seconds(at_unix))
    }

    fn y(&self, value: f64) -> i32 {
        self.plot.y.position(value)
    }

    fn draw(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        let title = format!("{}   {}", part_name(&trend.part), trend.testcase);
        let style = label_style(TITLE, BLACK, HPos::Left, VPos::Bottom);
        let title = clip(&to_plain(&title), 100);
        area.draw(&Text::new(title, (LEFT, self.top - 22), style))?;
        self.draw_band(area, trend)?;
        self.draw_axes(area, trend)?;
        self.draw_changes(area, trend)?;
        let path: Vec<(i32, i32)> =
            trend.points.iter().map(|point| (self.x(point.at_unix), self.y(point.value))).collect();
        area.draw(&PathElement::new(path.clone(), POINTS.mix(0.5).stroke_width(1)))?;
        for (point, at) in trend.points.iter().zip(path) {
            if point.outcome.is_some_and(|outcome| Outcome::Unknown < outcome) {
                area.draw(&Cross::new(at, 4, BLAMED.stroke_width(2)))?;
            } else {
                area.draw(&Circle::new(at, 2, POINTS.filled()))?;
            }
        }
        self.draw_alarms(area, trend)
    }

    /// The usual band and its middle.
    fn draw_band(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        let Some(usual) = &trend.baseline else { return Ok(()) };
        let since = trend.points.iter().find(|point| point.run == usual.since);
        let left = since.map_or(LEFT, |point| self.x(point.at_unix));
        let edge = |sign: f64| self.y(usual.mean * (1.0 + sign * BAND * usual.spread));
        area.draw(&Rectangle::new([(left, edge(1.0)), (RIGHT, edge(-1.0))], USUAL.filled()))?;
        let y = self.y(usual.mean);
        area.draw(&PathElement::new([(left, y), (RIGHT, y)], MIDDLE.stroke_width(1)))?;
        let text =
            format!("usual {} ± {}", format_number(usual.mean), format_percent(usual.spread));
        let style = (MIDDLE, HPos::Right, VPos::Bottom);
        self.plot.draw_text(area, text, (RIGHT, self.top - 6), style)
    }

    fn draw_axes(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        let (low, high) = self.plot.y.values;
        let corners = [(LEFT, self.top), (RIGHT, self.top + PLOT)];
        area.draw(&Rectangle::new(corners, GRID.stroke_width(1)))?;
        for share in [0.1, 0.5, 0.9] {
            let value = low + (high - low) * share;
            self.plot.draw_y_label(area, value, &format_number(value))?;
        }
        let style = (BLACK, HPos::Left, VPos::Bottom);
        self.plot.draw_text(area, trend.unit.as_str(), (LEFT, self.top - 6), style)?;
        let steps = if self.time.1 - self.time.0 < MARKS { 1 } else { MARKS };
        for mark in 0..=steps {
            let at = self.time.0 + (self.time.1 - self.time.0) * mark / steps;
            let date = model::time_format::format_rfc3339(at);
            // Within two days the labels show the hour.
            let date = match self.time.1 - self.time.0 {
                short if short < 2 * model::time_format::DAY_S => date.get(5..16),
                _ => date.get(..10),
            };
            let date = date.unwrap_or_default().replace('T', " ");
            self.plot.draw_x_tick(area, seconds(at), &date)?;
        }
        Ok(())
    }

    /// A dashed line at each change, with its letter in the list below.
    fn draw_changes(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        for (at, (run, all)) in changes_below(trend).into_iter().enumerate() {
            let Some(point) = trend.points.iter().find(|point| point.run == run) else { continue };
            let x = self.x(point.at_unix);
            for y in (self.top..self.top + PLOT).step_by(8) {
                let dash = [(x, y), (x, (y + 4).min(self.top + PLOT))];
                area.draw(&PathElement::new(dash, CHANGE.stroke_width(1)))?;
            }
            let mark = (b'a' + u8::try_from(at).unwrap_or(0)) as char;
            let style = (CHANGE, HPos::Left, VPos::Top);
            self.plot.draw_text(area, mark, (x + 3, self.top + 2), style)?;
            let words: Vec<String> = all
                .iter()
                .map(|c| format!("{} {} -> {}", c.what, clip(&c.before, 24), clip(&c.after, 24)))
                .collect();
            let line =
                format!("{mark}  {}: {}", point.at.get(..10).unwrap_or(""), words.join("; "));
            let line = clip(&to_plain(&line), 120);
            let y = self.top + PLOT + BELOW + LINE * i32::try_from(at).unwrap_or(0);
            self.plot.draw_text(area, line, (LEFT, y), style)?;
        }
        Ok(())
    }

    /// A flag with the shift at each alarm.
    fn draw_alarms(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        for alarm in &trend.alarms {
            let Some(point) = trend.points.iter().find(|point| point.run == alarm.run) else {
                continue;
            };
            let (x, y) = (self.x(point.at_unix), self.y(point.value));
            area.draw(&Circle::new((x, y), 7, BLAMED.stroke_width(2)))?;
            let sign = if alarm.shift < 0.0 { "-" } else { "+" };
            let text = format!("{sign}{}", format_percent(alarm.shift.abs()));
            // Towards the middle, so that it stays in the image.
            let near = if x < i32::midpoint(LEFT, RIGHT) { HPos::Left } else { HPos::Right };
            let off = if x < i32::midpoint(LEFT, RIGHT) { 10 } else { -10 };
            self.plot.draw_text(area, text, (x + off, y), (BLAMED, near, VPos::Center))?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds of some years")]
fn seconds(at_unix: i64) -> f64 {
    at_unix as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::trend::tests::document;

    #[test]
    fn a_picture_has_the_band_the_alarm_and_what_changed() {
        let svg = render_svg(&document().trends).expect("drawn").expect("there is a series");
        let read = roxmltree::Document::parse(&svg).expect("well-formed");
        let texts: Vec<&str> =
            read.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for part in ["node0007   write", "GB/s", "a", "2026-09-21"] {
            assert!(texts.contains(&part), "{part} is missing: {texts:?}");
        }
        assert!(texts.iter().any(|text| text.starts_with("usual 750.9 ±")), "{texts:?}");
        assert!(texts.iter().any(|text| text.starts_with("-5.")), "{texts:?}");
        assert!(
            texts
                .iter()
                .any(|text| text.contains("boot =aa -&gt; b") || text.contains("boot =aa -> b"))
        );
        assert!(!svg.contains('\u{1b}'));
        assert_eq!(render_svg(&[]).expect("nothing"), None);
    }

    #[test]
    fn one_point_and_a_flat_line_are_drawn() {
        let mut one = document().trends;
        one[0].points.truncate(1);
        (one[0].alarms, one[0].baseline) = (Vec::new(), None);
        assert!(render_svg(&one).expect("drawn").is_some());
        let mut flat = document().trends;
        flat[0].points.iter_mut().for_each(|point| point.value = 0.0);
        assert!(render_svg(&flat).expect("drawn").is_some());
    }
}
