//! Since when: how the convicted parts read over earlier runs, what is usual for
//! them, where they left it, and what changed at that time.
//!
//! What history knows is laid out; where a series left what is usual, the judge said.

use std::cmp::Reverse;

use super::BundleCase;
use super::evidence::NodeEvidence;
use super::plots::Plots;
use super::serials::NOT_KNOWN;
use crate::report::plain_text::{clip, count_noun, format_quantity};
use crate::report::{ReportError, trend, trend_plot};
use model::text::format_percent;
use model::trend::{
    FabricPart, FabricPartKind, HISTORY_FORMAT, HistoryDocument, Trend, TrendAlarm, TrendPoint,
};
use model::verdict::{LocusKind, Outcome};

/// Series told on the page.
const DESCRIBED: usize = 3;
/// Series drawn, and whole in `bundle.json`.
pub(super) const DRAWN: usize = 6;

/// The series, those of convicted parts first, and of these those that left what is
/// usual for the worse by most.
pub(super) fn order_trends<'c>(case: &'c BundleCase, sides: &NodeEvidence) -> Vec<&'c Trend> {
    let mut all: Vec<&Trend> = case.trends.iter().filter(|it| !it.points.is_empty()).collect();
    let least = |it: &Trend| {
        let worse = it.alarms.iter().filter(|alarm| it.is_worse(alarm));
        worse.map(|alarm| -alarm.shift.abs()).fold(0.0, f64::min)
    };
    // A stable sort: of equals the order of the history stays.
    all.sort_by(|a, b| {
        let convicted = |it: &&Trend| Reverse(is_convicted(&it.part, sides));
        convicted(a).cmp(&convicted(b)).then(least(a).total_cmp(&least(b)))
    });
    all
}

/// Whether a finding against the node is about this part.
fn is_convicted(part: &FabricPart, sides: &NodeEvidence) -> bool {
    sides.against.iter().map(|it| &it.locus).any(|locus| {
        let direction = locus.direction.is_none() || locus.direction == part.direction;
        match (part.kind, locus.kind) {
            (FabricPartKind::Gpu, LocusKind::Gpu | LocusKind::Direction) => {
                locus.gpu == part.gpu && direction
            }
            (FabricPartKind::Node, LocusKind::Node | LocusKind::Tray) => true,
            (FabricPartKind::Rail, LocusKind::Rail) => locus.rail == part.rail && direction,
            _ => false,
        }
    })
}

/// The answer for the page.
pub(super) fn describe_trends(case: &BundleCase, sides: &NodeEvidence) -> Vec<String> {
    let all = order_trends(case, sides);
    if all.is_empty() {
        return vec![format!("{NOT_KNOWN}: no history of this node was found")];
    }
    let convicted = all.iter().filter(|it| is_convicted(&it.part, sides)).count();
    let rung = all.iter().filter(|it| !it.alarms.is_empty()).count();
    let mut says: Vec<String> = Vec::new();
    for it in all.iter().take(if 0 < convicted { convicted.min(DESCRIBED) } else { DESCRIBED }) {
        if 0 < convicted || !it.alarms.is_empty() {
            says.push(describe_series(it));
        }
    }
    if says.is_empty() {
        let points = all.iter().map(|it| it.points.len()).max().unwrap_or(0);
        says.push(format!(
            "no step or drift in any of its {} over {}",
            count_noun(all.len(), "series", "series"),
            count_noun(points, "run", "runs")
        ));
    } else if says.len() < rung {
        says.push(format!("{rung} series of the node have an alarm: see history.csv"));
    }
    says
}

/// One series in a sentence.
fn describe_series(it: &Trend) -> String {
    let name = match it.part.gpu {
        Some(gpu) => format!("GPU {gpu}"),
        None => it.part.rail.clone().map_or_else(|| "the node".to_owned(), |rail| clip(&rail, 40)),
    };
    let way = it.part.direction.map(|way| format!(" {}", way.as_str())).unwrap_or_default();
    let usual = match &it.baseline {
        Some(usual) => format!(
            "usual is {} ± {} (of {} since run {})",
            format_quantity(usual.mean, Some(it.unit)),
            format_percent(usual.spread),
            count_noun(usual.count, "run", "runs"),
            usual.since
        ),
        None => format!(
            "too little for what is usual: {} measured it",
            count_noun(it.points.len(), "run", "runs")
        ),
    };
    let left = match it.alarms.as_slice() {
        [] => "no alarm of its history".to_owned(),
        [one] => describe_alarm(it, one),
        [first, .., last] => format!(
            "{}; first alarm of {} on {}",
            describe_alarm(it, last),
            it.alarms.len(),
            trend::trim_to_day(&first.at)
        ),
    };
    let now =
        it.last_point().map(|last| format_quantity(last.value, Some(it.unit))).unwrap_or_default();
    let share = it.ratio_to_usual().map(|share| format!(", {} of usual", format_percent(share)));
    let share = share.unwrap_or_default();
    // The last runs without one that had nothing to say against it.
    let is_guilty = |point: &&TrendPoint| point.outcome.is_some_and(|it| Outcome::Unknown < it);
    let found = it.points.iter().rev().take_while(is_guilty).last();
    let found = found.map(|first| {
        let day = trend::trim_to_day(&first.at);
        format!("; found so in every run since {} of {day}", first.run)
    });
    let found = found.unwrap_or_default();
    format!(
        "{name}{way}, {}: in this run {now}{share}; {usual}; {left}{found}",
        clip(&it.testcase, 60)
    )
}

fn describe_alarm(of: &Trend, alarm: &TrendAlarm) -> String {
    let since = of.points.iter().find(|point| point.run == alarm.since);
    let day =
        since.map(|point| format!(" of {}", trend::trim_to_day(&point.at))).unwrap_or_default();
    let stands = if alarm.stands { "" } else { ", ended since" };
    let way = if alarm.shift < 0.0 { "less" } else { "more" };
    let beside =
        trend::describe_changes(of.changes_during(alarm).into_iter(), of.part.node.as_ref());
    format!(
        "{} {way} from run {}{day} on{stands} (alarm in run {} on {}); {beside}",
        format_percent(alarm.shift.abs()),
        alarm.since,
        alarm.run,
        trend::trim_to_day(&alarm.at)
    )
}

/// Every point of every series as a table; nothing where there is no series.
pub(super) fn render_csv(case: &BundleCase, sides: &NodeEvidence) -> Option<Vec<u8>> {
    let trends: Vec<Trend> = order_trends(case, sides).into_iter().cloned().collect();
    let document = HistoryDocument {
        format: HISTORY_FORMAT.to_owned(),
        file: String::new(),
        runs: 0,
        simulated: case.run.info.simulated,
        first: None,
        last: None,
        nodes: Vec::new(),
        trends,
        runs_per_false_alarm: None,
        notes: Vec::new(),
    };
    (!document.trends.is_empty()).then(|| trend::render_csv(&document))
}

/// Draws the first of them.
pub(super) fn draw_plots(
    case: &BundleCase,
    sides: &NodeEvidence,
    plots: &mut Plots,
) -> Result<(), ReportError> {
    let first: Vec<Trend> = order_trends(case, sides).into_iter().take(DRAWN).cloned().collect();
    let Some(svg) = trend_plot::render_svg(&first)? else { return Ok(()) };
    let name = "plots/history.svg".to_owned();
    plots.captions.push((name.clone(), "how its parts read over earlier runs".to_owned()));
    plots.files.push((name, svg.into_bytes()));
    Ok(())
}
