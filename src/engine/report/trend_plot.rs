//! Series over time as a picture: points, the band of what is usual, alarms and what
//! changed, a panel for each series.
//!
//! Colour is never the only sign: what was found guilty is a cross, an alarm a
//! flag with its shift, a change a dashed line with a number that is told below.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::plain_text::{clip, format_number, to_plain};
use super::svg_heatmap::{DrawResult, PlotArea, label_style};
use super::trend::part_name;
use model::text::format_percent;
use model::trend::{RunChange, Trend};
use model::verdict::Outcome;

/// More panels than this are no picture any more.
pub const MOST: usize = 24;

/// Width of the picture and where panels begin and end, in pixels.
const WIDTH: i32 = 860;
const LEFT: i32 = 70;
const RIGHT: i32 = 830;
/// Height of a panel's plot, of what is above it and below it.
const PLOT: i32 = 150;
const ABOVE: i32 = 44;
const BELOW: i32 = 26;
/// Height of a line of text below a panel.
const LINE: i32 = 15;
/// Changes that are told below a panel.
const MOST_CHANGES: usize = 5;
/// Moments on the axis.
const MARKS: i64 = 6;
/// Standard deviations of the band.
const BAND: f64 = 3.0;

/// plotters divides by 1.24 when it writes.
const TEXT: f64 = 11.0 * 1.24;
const TITLE: f64 = 13.0 * 1.24;

/// Colours that people who see colours differently can tell (Okabe and Ito 2008).
const POINTS: RGBColor = RGBColor(0, 114, 178);
const GUILTY: RGBColor = RGBColor(213, 94, 0);
const USUAL: RGBColor = RGBColor(220, 236, 229);
const MIDDLE: RGBColor = RGBColor(0, 158, 115);
const CHANGE: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(221, 221, 221);

/// Draws the series, the first [`MOST`] of them; nothing where there is none.
pub fn render_svg(trends: &[Trend]) -> Result<Option<String>, ReportError> {
    let trends: Vec<&Trend> = trends.iter().filter(|t| !t.points.is_empty()).take(MOST).collect();
    if trends.is_empty() {
        return Ok(None);
    }
    let height: i32 = trends.iter().map(|trend| panel_height(trend)).sum();
    let mut svg = String::new();
    let size = (WIDTH.unsigned_abs(), height.unsigned_abs() + 10);
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&area, &trends).map_err(|error| ReportError::Figure(error.to_string()))?;
    drop(area);
    Ok(Some(svg))
}

fn panel_height(trend: &Trend) -> i32 {
    let told = changes_below(trend).len();
    ABOVE + PLOT + BELOW + LINE * i32::try_from(told).unwrap_or(0)
}

/// What is told below a panel: changes by run, the last ones of many.
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
    Ok(area.present()?)
}

/// Where the values and moments of one series are.
struct TrendPanel {
    top: i32,
    time: (i64, i64),
    value: (f64, f64),
}

impl TrendPanel {
    fn new(trend: &Trend, top: i32) -> Self {
        let times = || trend.points.iter().map(|point| point.at_unix);
        let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        let band = trend.baseline.iter().flat_map(|usual| {
            [1.0 - BAND * usual.spread, 1.0 + BAND * usual.spread].map(|share| usual.mean * share)
        });
        for value in trend.points.iter().map(|point| point.value).chain(band) {
            (low, high) = (low.min(value), high.max(value));
        }
        // A flat line is in the middle, not everywhere.
        let room = ((high - low) * 0.08).max(high.abs() * 0.005).max(f64::MIN_POSITIVE);
        Self { top, time: (first, last.max(first + 1)), value: (low - room, high + room) }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of some years")]
    fn x(&self, at_unix: i64) -> i32 {
        let share = (at_unix - self.time.0) as f64 / (self.time.1 - self.time.0) as f64;
        LEFT + to_pixels(share, RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> i32 {
        let (low, high) = self.value;
        self.top + PLOT - to_pixels((value - low) / (high - low), PLOT)
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
                area.draw(&Cross::new(at, 4, GUILTY.stroke_width(2)))?;
            } else {
                area.draw(&Circle::new(at, 2, POINTS.filled()))?;
            }
        }
        self.draw_alarms(area, trend)
    }

    /// The band of what is usual, and its middle.
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
        let style = label_style(TEXT, MIDDLE, HPos::Right, VPos::Bottom);
        Ok(area.draw(&Text::new(text, (RIGHT, self.top - 6), style))?)
    }

    fn draw_axes(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        let (low, high) = self.value;
        let corners = [(LEFT, self.top), (RIGHT, self.top + PLOT)];
        area.draw(&Rectangle::new(corners, GRID.stroke_width(1)))?;
        for share in [0.1, 0.5, 0.9] {
            let value = low + (high - low) * share;
            let style = label_style(TEXT, BLACK, HPos::Right, VPos::Center);
            area.draw(&Text::new(format_number(value), (LEFT - 6, self.y(value)), style))?;
        }
        let style = label_style(TEXT, BLACK, HPos::Left, VPos::Bottom);
        area.draw(&Text::new(trend.unit.as_str(), (LEFT, self.top - 6), style))?;
        let steps = if self.time.1 - self.time.0 < MARKS { 1 } else { MARKS };
        for mark in 0..=steps {
            let at = self.time.0 + (self.time.1 - self.time.0) * mark / steps;
            let shown = model::time_format::format_rfc3339(at);
            // Within two days the hour says more.
            let shown = match self.time.1 - self.time.0 {
                short if short < 2 * model::time_format::DAY_S => shown.get(5..16),
                _ => shown.get(..10),
            };
            let shown = shown.unwrap_or_default().replace('T', " ");
            let x = self.x(at);
            let tick = [(x, self.top + PLOT), (x, self.top + PLOT + 4)];
            area.draw(&PathElement::new(tick, BLACK.stroke_width(1)))?;
            let style = label_style(TEXT, BLACK, HPos::Center, VPos::Top);
            area.draw(&Text::new(shown, (x, self.top + PLOT + 7), style))?;
        }
        Ok(())
    }

    /// A dashed line where something changed, numbered as it is told below.
    fn draw_changes(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        for (at, (run, all)) in changes_below(trend).into_iter().enumerate() {
            let Some(point) = trend.points.iter().find(|point| point.run == run) else { continue };
            let x = self.x(point.at_unix);
            for y in (self.top..self.top + PLOT).step_by(8) {
                let dash = [(x, y), (x, (y + 4).min(self.top + PLOT))];
                area.draw(&PathElement::new(dash, CHANGE.stroke_width(1)))?;
            }
            let mark = (b'a' + u8::try_from(at).unwrap_or(0)) as char;
            let style = label_style(TEXT, CHANGE, HPos::Left, VPos::Top);
            area.draw(&Text::new(mark.to_string(), (x + 3, self.top + 2), style.clone()))?;
            let words: Vec<String> = all
                .iter()
                .map(|c| format!("{} {} -> {}", c.what, clip(&c.before, 24), clip(&c.after, 24)))
                .collect();
            let line =
                format!("{mark}  {}: {}", point.at.get(..10).unwrap_or(""), words.join("; "));
            let line = clip(&to_plain(&line), 120);
            let y = self.top + PLOT + BELOW + LINE * i32::try_from(at).unwrap_or(0);
            area.draw(&Text::new(line, (LEFT, y), style))?;
        }
        Ok(())
    }

    /// A flag with the shift where an alarm rang.
    fn draw_alarms(&self, area: &PlotArea<'_>, trend: &Trend) -> DrawResult {
        for alarm in &trend.alarms {
            let Some(point) = trend.points.iter().find(|point| point.run == alarm.run) else {
                continue;
            };
            let (x, y) = (self.x(point.at_unix), self.y(point.value));
            area.draw(&Circle::new((x, y), 7, GUILTY.stroke_width(2)))?;
            let sign = if alarm.shift < 0.0 { "-" } else { "+" };
            let text = format!("{sign}{}", format_percent(alarm.shift.abs()));
            // Towards the middle, so that it stays in the picture.
            let near = if x < i32::midpoint(LEFT, RIGHT) { HPos::Left } else { HPos::Right };
            let off = if x < i32::midpoint(LEFT, RIGHT) { 10 } else { -10 };
            let style = label_style(TEXT, GUILTY, near, VPos::Center);
            area.draw(&Text::new(text, (x + off, y), style))?;
        }
        Ok(())
    }
}

/// A share of a length in pixels.
#[expect(clippy::cast_possible_truncation, reason = "a share of some hundred pixels")]
fn to_pixels(share: f64, length: i32) -> i32 {
    if !share.is_finite() {
        return 0;
    }
    (share.clamp(0.0, 1.0) * f64::from(length)).round() as i32
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
