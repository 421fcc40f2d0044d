//! Readings of parts over runs as sparklines, with the usual band, alarms and changes. Nothing is
//! judged.

use std::fmt::Write as _;

use minijinja::Value;
use serde::Serialize;

use super::clip_text;
use crate::report::plain_text::{clip, count_noun, format_number, format_quantity};
use model::text::format_percent;
use model::trend::{FabricPart, FabricPartKind, RunChangeKind, Trend, TrendPoint};
use model::verdict::{Locus, LocusKind};

/// Most lines of parts with an event; the rest are counted.
const ROWS: usize = 120;
/// Most lines of parts without an event.
const CALM: usize = 12;
/// Most points of one line; older points are left out.
const POINTS: usize = 120;
/// Size of a line, in pixels.
const WIDTH: f64 = 160.0;
const HEIGHT: f64 = 30.0;
const EDGE: f64 = 4.0;

/// A drawn line and its description.
#[derive(Clone, Serialize)]
pub(super) struct Sparkline {
    svg: Value,
    words: String,
}

/// One part's line in the section on history.
#[derive(Serialize)]
pub(super) struct HtmlTrendRow {
    part: String,
    test: String,
    line: Sparkline,
    last: String,
    usual: String,
    alarms: Vec<String>,
    changes: Vec<String>,
}

/// The history of parts, those with alarms first; and the number of lines left out.
pub(super) fn build_history(trends: &[Trend]) -> (Vec<HtmlTrendRow>, usize) {
    // A single point is not a history.
    let mut order: Vec<&Trend> = trends.iter().filter(|t| 1 < t.points.len()).collect();
    order.sort_by(|a, b| {
        let shift = |t: &Trend| t.alarms.iter().map(|a| a.shift.abs()).fold(0.0, f64::max);
        let changed = a.changes.is_empty().cmp(&b.changes.is_empty());
        let name = || (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase));
        shift(b).total_cmp(&shift(a)).then(changed).then_with(name)
    });
    let eventful = order.iter().filter(|t| !t.alarms.is_empty() || !t.changes.is_empty()).count();
    let most = ROWS.min(eventful + CALM);
    let more = order.len().saturating_sub(most);
    (order.into_iter().take(most).map(build_row).collect(), more)
}

fn build_row(trend: &Trend) -> HtmlTrendRow {
    let unit = Some(trend.unit);
    HtmlTrendRow {
        part: part_name(&trend.part),
        test: clip_text(&trend.testcase),
        line: draw_sparkline(trend),
        last: trend
            .points
            .last()
            .map_or_else(|| "–".to_owned(), |p| format_quantity(p.value, unit)),
        usual: trend.baseline.as_ref().map_or_else(
            || "unknown yet".to_owned(),
            |b| format!("{} ± {}", format_quantity(b.mean, unit), format_percent(b.spread)),
        ),
        alarms: trend
            .alarms
            .iter()
            .map(|a| {
                let way = if a.shift < 0.0 { "below" } else { "above" };
                let (size, since) = (format_percent(a.shift.abs()), clip_text(&a.since));
                format!("{size} {way} the usual level, since {since} ({})", clip_text(&a.at))
            })
            .collect(),
        changes: trend
            .changes
            .iter()
            .map(|c| {
                let what = clip(&c.what, 80);
                let (before, after) = (clip(&c.before, 60), clip(&c.after, 60));
                format!("{}: {what} from {before} to {after}", clip_text(&c.at))
            })
            .collect(),
    }
}

/// A part as users write it.
pub(super) fn part_name(part: &FabricPart) -> String {
    let mut out = match (&part.node, part.gpu, &part.domain) {
        (Some(node), Some(gpu), _) => format!("{node}:{gpu}"),
        (Some(node), None, _) => node.to_string(),
        (None, _, Some(domain)) => domain.to_string(),
        (None, _, None) => "all".to_owned(),
    };
    if let Some(peer) = &part.peer {
        let _ = write!(out, " → {peer}");
    }
    if let Some(rail) = &part.rail {
        let _ = write!(out, ", {}", crate::report::plain_text::rail_name(rail));
    }
    if let Some(direction) = part.direction {
        let _ = write!(out, ", {}", direction.as_str());
    }
    clip_text(&out)
}

/// The line of a finding's part, if it has one.
pub(super) fn sparkline_for_locus(locus: &Locus, trends: &[Trend]) -> Option<Sparkline> {
    let kind = match locus.kind {
        LocusKind::Gpu | LocusKind::Direction => FabricPartKind::Gpu,
        LocusKind::Node | LocusKind::Tray => FabricPartKind::Node,
        LocusKind::Rail => FabricPartKind::Rail,
        LocusKind::Domain | LocusKind::Plane => FabricPartKind::Domain,
        LocusKind::Pair | LocusKind::Leaf | LocusKind::Instrument => return None,
    };
    let fits = |t: &&Trend| {
        let part = &t.part;
        part.kind == kind
            && part.node == locus.node
            && part.gpu == locus.gpu
            && (kind != FabricPartKind::Rail || part.rail == locus.rail)
            && (kind != FabricPartKind::Domain || part.domain == locus.domain)
    };
    strongest_alarm(trends.iter().filter(fits)).map(draw_sparkline)
}

/// A node's line: of its part with the strongest alarm.
pub(super) fn sparkline_for_node(own: &[&Trend]) -> Option<Sparkline> {
    let own = |kind: FabricPartKind| own.iter().copied().filter(move |t| t.part.kind == kind);
    strongest_alarm(own(FabricPartKind::Node))
        .or_else(|| strongest_alarm(own(FabricPartKind::Gpu)))
        .map(draw_sparkline)
}

fn strongest_alarm<'t>(trends: impl Iterator<Item = &'t Trend>) -> Option<&'t Trend> {
    let loud = |t: &Trend| t.alarms.iter().map(|a| a.shift.abs()).fold(0.0, f64::max);
    trends
        .filter(|t| 1 < t.points.len())
        // Of equal parts the first, so that the page is deterministic.
        .reduce(|best, t| if loud(best) < loud(t) { t } else { best })
}

/// Draws one line. Only fabricgate's own numbers enter the markup.
fn draw_sparkline(trend: &Trend) -> Sparkline {
    let from = trend.points.len().saturating_sub(POINTS);
    let points = &trend.points[from..];
    let finite = |p: &&TrendPoint| p.value.is_finite();
    let values: Vec<(usize, f64)> =
        points.iter().enumerate().filter(|(_, p)| finite(p)).map(|(i, p)| (i, p.value)).collect();
    let band = trend.baseline.as_ref().filter(|b| b.mean.is_finite() && b.spread.is_finite());
    let band = band.map(|b| {
        // Three standard deviations: chance seldom exceeds them.
        let half = (3.0 * b.spread * b.mean).abs();
        (b.mean - half, b.mean + half)
    });
    let ends = values.iter().map(|(_, v)| *v).chain(band.iter().flat_map(|(a, b)| [*a, *b]));
    let low = ends.clone().fold(f64::INFINITY, f64::min);
    let high = ends.fold(f64::NEG_INFINITY, f64::max);
    // A constant part is a line in the middle, not enlarged noise.
    let room = (high - low).max(0.02 * high.abs()).max(f64::MIN_POSITIVE);
    let middle = f64::midpoint(low, high);
    let y = |v: f64| HEIGHT / 2.0 - (v - middle) / room * (HEIGHT - 2.0 * EDGE);
    let last = u32::try_from(points.len().saturating_sub(1)).unwrap_or(u32::MAX).max(1);
    let x = |i: usize| {
        let i = f64::from(u32::try_from(i).unwrap_or(u32::MAX));
        EDGE + i / f64::from(last) * (WIDTH - 2.0 * EDGE)
    };
    let mut body = String::new();
    if let Some((a, b)) = band {
        let (top, height) = (y(b), (y(a) - y(b)).max(1.0));
        let _ = write!(
            body,
            "<rect class=\"usual\" x=\"0\" y=\"{top:.1}\" width=\"{WIDTH:.0}\" \
             height=\"{height:.1}\"/>"
        );
    }
    let at = |run: &str| points.iter().position(|p| p.run == run);
    for change in trend.changes.iter().filter(|c| c.kind != RunChangeKind::Boot) {
        if let Some(i) = at(&change.run) {
            let x = x(i);
            let _ = write!(body, "<path class=\"change\" d=\"M{x:.1} 0v{HEIGHT:.0}\"/>");
        }
    }
    let path: Vec<String> =
        values.iter().map(|(i, v)| format!("{:.1} {:.1}", x(*i), y(*v))).collect();
    let _ = write!(body, "<path class=\"line\" d=\"M{}\"/>", path.join("L"));
    for alarm in &trend.alarms {
        let point = at(&alarm.run).and_then(|i| points.get(i).map(|p| (i, p)));
        if let Some((i, point)) = point.filter(|(_, p)| p.value.is_finite()) {
            let (x, y) = (x(i), y(point.value));
            let t = y - 3.5;
            // A diamond, so that its colour is not the only sign.
            let _ = write!(
                body,
                "<path class=\"alarm\" d=\"M{x:.1} {t:.1}l3.5 3.5-3.5 3.5-3.5-3.5z\"/>"
            );
        }
    }
    if let Some((i, v)) = values.last() {
        let _ =
            write!(body, "<circle class=\"now\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2\"/>", x(*i), y(*v));
    }
    let words = describe_trend(trend, &values);
    let mut name = String::new();
    crate::report::svg_heatmap::escape_markup(&words, &mut name);
    let svg = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" width=\"{WIDTH:.0}\" \
         height=\"{HEIGHT:.0}\" role=\"img\" \
         aria-label=\"{name}\"><title>{name}</title>{body}</svg>"
    );
    Sparkline { svg: Value::from_safe_string(svg), words }
}

fn describe_trend(trend: &Trend, values: &[(usize, f64)]) -> String {
    let unit = Some(trend.unit);
    let mut out = format!("{} of {}", clip_text(&trend.testcase), part_name(&trend.part));
    if let (Some((_, first)), Some((_, last))) = (values.first(), values.last()) {
        let runs = count_noun(values.len(), "run", "runs");
        let _ = write!(
            out,
            ", {runs}: {} then, {} now",
            format_number(*first),
            format_quantity(*last, unit)
        );
    }
    if !trend.alarms.is_empty() {
        let _ = write!(out, "; {}", count_noun(trend.alarms.len(), "alarm", "alarms"));
    }
    if !trend.changes.is_empty() {
        let _ = write!(out, "; {}", count_noun(trend.changes.len(), "change", "changes"));
    }
    out
}
