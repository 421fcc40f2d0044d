//! The trends of the page, and their sparklines with the usual band, alarms and changes. Nothing
//! is judged.

use std::fmt::Write as _;

use minijinja::Value;

use super::clip_text;
use crate::report::chart::Sparkline;
use crate::report::plain_text::{count_noun, format_number, format_quantity};
use model::trend::{FabricPart, FabricPartKind, RunChangeKind, Trend, TrendPoint};
use model::verdict::{Locus, LocusKind};

/// Most lines of parts with an event; the rest are counted.
const ROWS: usize = 120;
/// Most lines of parts without an event.
const CALM: usize = 12;
/// Most points of one line; older points are left out.
const POINTS: usize = 120;

/// The trends of the page, those with alarms first; and the number of trends left out.
pub(super) fn select_trends(trends: &[Trend]) -> (Vec<&Trend>, usize) {
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
    order.truncate(most);
    (order, more)
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
pub(super) fn sparkline_for_locus(locus: &Locus, trends: &[Trend]) -> Option<Value> {
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
pub(super) fn sparkline_for_node(own: &[&Trend]) -> Option<Value> {
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

pub(super) fn draw_sparkline(trend: &Trend) -> Value {
    let points = &trend.points[trend.points.len().saturating_sub(POINTS)..];
    let at = |run: &str| points.iter().position(|p| p.run == run);
    let band = trend.baseline.as_ref().filter(|b| b.mean.is_finite() && b.spread.is_finite());
    let changes = trend.changes.iter().filter(|c| c.kind != RunChangeKind::Boot);
    let sparkline = Sparkline {
        values: points.iter().map(|p| p.value).collect(),
        band: band.map(|b| {
            // Three standard deviations: chance seldom exceeds them.
            let half = (3.0 * b.spread * b.mean).abs();
            (b.mean - half, b.mean + half)
        }),
        changes: changes.filter_map(|change| at(&change.run)).collect(),
        alarms: trend.alarms.iter().filter_map(|alarm| at(&alarm.run)).collect(),
    };
    Value::from_safe_string(sparkline.draw(&describe_trend(trend, points)))
}

fn describe_trend(trend: &Trend, points: &[TrendPoint]) -> String {
    let values: Vec<f64> = points.iter().map(|p| p.value).filter(|v| v.is_finite()).collect();
    let unit = Some(trend.unit);
    let mut out = format!("{} of {}", clip_text(&trend.testcase), part_name(&trend.part));
    if let (Some(first), Some(last)) = (values.first(), values.last()) {
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
