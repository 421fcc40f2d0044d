//! The history, for a terminal and as CSV: nodes with when they were last measured,
//! series against what is usual for them, and alarms with what changed beside them.
//!
//! Shows what `judge::drift` said and says nothing itself.

use std::fmt::Write as _;

use anstyle::Style;
use comfy_table::CellAlignment;
use comfy_table::Table;
use comfy_table::presets;

use super::TerminalStyle;
use super::csv;
use super::page::Page;
use super::plain::clip;
use super::plain::counted;
use super::plain::percent;
use super::plain::plain;
use super::plain::quantity;
use super::plain::rail_name;
use crate::model::id::NodeName;
use crate::model::trend::Alarm;
use crate::model::trend::Changed;
use crate::model::trend::HistoryDocument;
use crate::model::trend::Part;
use crate::model::trend::PartKind;
use crate::model::trend::Trend;

/// Series that are shown before the rest is only counted.
const MOST: usize = 100;

/// Alarms that are shown.
const MOST_ALARMS: usize = 40;

/// Changes that are named beside one alarm.
const MOST_CHANGES: usize = 4;

/// Characters of a name.
const NAME: usize = 40;

/// All of it. `overview` is nodes and domains, not the series one by one.
pub fn render(document: &HistoryDocument, overview: bool, style: &TerminalStyle) -> String {
    let mut page = Page::new(style);
    let span = match (&document.first, &document.last) {
        (Some(first), Some(last)) => format!(", {} to {}", day(first), day(last)),
        _ => String::new(),
    };
    let nodes = counted(document.nodes.len(), "node", "nodes");
    let runs = counted(document.runs, "run", "runs");
    page.styled(Style::new().bold(), &plain(&format!("{runs}, {nodes}{span}")));
    page.end();
    page.faint(&plain(&document.file), 0);
    if overview {
        of_nodes(&mut page, document);
        let domains: Vec<&Trend> = of_kind(document, PartKind::Domain).collect();
        if !domains.is_empty() {
            page.section("Domains: the level of each test");
            series(&mut page, &domains);
        }
    } else {
        page.section("Series");
        series(&mut page, &document.trends.iter().collect::<Vec<_>>());
    }
    alarms(&mut page, document);
    if !document.notes.is_empty() {
        page.section("Remarks");
        for note in &document.notes {
            page.paragraph("- ", &plain(note), 2);
        }
    }
    page.out
}

fn of_kind(document: &HistoryDocument, kind: PartKind) -> impl Iterator<Item = &Trend> {
    document.trends.iter().filter(move |trend| trend.part.kind == kind)
}

fn of_nodes(page: &mut Page, document: &HistoryDocument) {
    if document.nodes.is_empty() {
        return;
    }
    page.section("Nodes: the last time each was measured");
    let header =
        ["", "runs", "last measured", "profile", "outcome", "of expected", "of usual", "alarms"];
    let mut table = table(&header);
    for node in document.nodes.iter().take(MOST) {
        let own = || {
            let is_own = |trend: &&Trend| trend.part.node.as_ref() == Some(&node.node);
            of_kind(document, PartKind::Node).filter(is_own)
        };
        let usual = own().filter_map(Trend::of_usual).reduce(f64::min);
        let alarms: usize = own().map(|trend| trend.alarms.len()).sum();
        table.add_row([
            clip(&plain(node.node.as_str()), NAME),
            node.runs.to_string(),
            minute(&node.last_at).to_owned(),
            plain(&node.profile).into_owned(),
            node.outcome.to_string(),
            share(node.worst),
            share(usual),
            count(alarms),
        ]);
    }
    put(page, &table);
    rest(page, document.nodes.len());
}

/// Series, one a line.
fn series(page: &mut Page, trends: &[&Trend]) {
    if trends.is_empty() {
        page.paragraph("", "there are none", 1);
        return;
    }
    let mut table = table(&["", "test", "runs", "last", "usual", "± ", "of usual", "alarms"]);
    for trend in trends.iter().take(MOST) {
        let last = trend.last().map(|point| quantity(point.value, Some(trend.unit)));
        let baseline = trend.baseline.as_ref();
        table.add_row([
            clip(&plain(&name(&trend.part)), NAME),
            clip(&plain(&trend.testcase), NAME),
            trend.points.len().to_string(),
            last.unwrap_or_default(),
            baseline.map_or("too few".to_owned(), |b| quantity(b.mean, Some(trend.unit))),
            share(baseline.map(|b| b.spread)),
            share(trend.of_usual()),
            count(trend.alarms.len()),
        ]);
    }
    put(page, &table);
    rest(page, trends.len());
}

fn rest(page: &mut Page, all: usize) {
    if MOST < all {
        let text =
            format!("and {} more; --json and --csv have all, NODE and --domain select", all - MOST);
        page.faint(&text, 1);
    }
}

fn alarms(page: &mut Page, document: &HistoryDocument) {
    let mut all: Vec<(&Trend, &Alarm)> = document
        .trends
        .iter()
        .flat_map(|trend| trend.alarms.iter().map(move |alarm| (trend, alarm)))
        .collect();
    all.sort_by(|a, b| {
        (&b.1.at, &a.0.part, &a.0.testcase).cmp(&(&a.1.at, &b.0.part, &b.0.testcase))
    });
    page.section("Alarms: where a series left what is usual for it");
    if all.is_empty() {
        page.paragraph("", "there are none", 1);
    }
    for (trend, alarm) in all.iter().take(MOST_ALARMS) {
        page.paragraph("- ", &plain(&alarm_words(trend, alarm)), 1);
    }
    if MOST_ALARMS < all.len() {
        page.faint(&format!("and {} before these", all.len() - MOST_ALARMS), 1);
    }
    if let Some(runs) = document.runs_per_false_alarm {
        let text = format!(
            "An alarm is a remark: nothing is done about a node because of one. Of {}, one false \
             alarm for less is expected in {runs:.0} runs.",
            counted(document.trends.len(), "series", "series")
        );
        page.faint(&text, 1);
    }
}

/// An alarm in a sentence, with what changed at that time.
pub fn alarm_words(trend: &Trend, alarm: &Alarm) -> String {
    let way = if alarm.shift < 0.0 { "less" } else { "more" };
    let chart = if alarm.chart == "slow" { "a drift" } else { "a step" };
    let changes = trend.beside(alarm);
    let beside = match changes.as_slice() {
        [] => "nothing else is known to have changed then".to_owned(),
        some => {
            let of = trend.part.node.as_ref();
            let named: Vec<String> =
                some.iter().take(MOST_CHANGES).map(|c| change_words(c, of)).collect();
            let more = match some.len().saturating_sub(MOST_CHANGES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("at that time: {}{more}", named.join("; "))
        }
    };
    format!(
        "{} {}, {}: {} {way} than usual from run {} on, seen in {}, {chart}; {beside}",
        day(&alarm.at),
        name(&trend.part),
        trend.testcase,
        percent(alarm.shift.abs()),
        alarm.since,
        alarm.run,
    )
}

/// A change in words: `driver 580.1 -> 580.2`.
fn change_words(changed: &Changed, of: Option<&NodeName>) -> String {
    let node = changed.node.as_ref().filter(|node| Some(*node) != of);
    let node = node.map(|node| format!("{node} ")).unwrap_or_default();
    format!(
        "{node}{} {} -> {}",
        changed.what,
        clip(&changed.before, NAME),
        clip(&changed.after, NAME)
    )
}

/// A part as people call it: `node0001:2 tx`.
pub fn name(part: &Part) -> String {
    let mut name = match (&part.node, part.gpu) {
        (Some(node), Some(gpu)) => format!("{node}:{gpu}"),
        (Some(node), None) => node.to_string(),
        (None, _) => part.domain.as_ref().map_or_else(String::new, ToString::to_string),
    };
    if let Some(peer) = &part.peer {
        let _ = write!(name, " -> {peer}");
    }
    if let Some(rail) = &part.rail {
        let _ = write!(name, " {}", rail_name(rail));
    }
    if let Some(direction) = part.direction {
        let _ = write!(name, " {}", direction.as_str());
    }
    name
}

/// The columns of `--csv`.
pub const COLUMNS: [&str; 20] = [
    "run",
    "at",
    "kind",
    "domain",
    "node",
    "gpu",
    "peer",
    "rail",
    "direction",
    "testcase",
    "unit",
    "value",
    "error",
    "expected",
    "outcome",
    "usual",
    "spread",
    "alarm",
    "shift",
    "changed",
];

/// Every point of every series, with what was usual and what rang there.
pub fn csv(document: &HistoryDocument) -> Vec<u8> {
    let points: usize = document.trends.iter().map(|trend| trend.points.len()).sum();
    let mut rows = csv::Table::new(160 * (points + 1));
    for column in COLUMNS {
        rows.text(Some(column));
    }
    rows.end();
    for trend in &document.trends {
        let (part, usual) = (&trend.part, trend.baseline.as_ref());
        for point in &trend.points {
            let alarm = trend.alarms.iter().find(|alarm| alarm.run == point.run);
            let changed: Vec<String> = trend
                .changes
                .iter()
                .filter(|changed| changed.run == point.run)
                .map(|changed| change_words(changed, part.node.as_ref()))
                .collect();
            rows.text(Some(&point.run));
            rows.text(Some(&point.at));
            rows.text(Some(kind(part.kind)));
            rows.text(part.domain.as_ref().map(|domain| domain.as_str()));
            rows.text(part.node.as_ref().map(NodeName::as_str));
            rows.whole(part.gpu);
            rows.text(part.peer.as_deref());
            rows.text(part.rail.as_deref());
            rows.text(part.direction.map(|direction| direction.as_str()));
            rows.text(Some(&trend.testcase));
            rows.text(Some(trend.unit.as_str()));
            rows.real(Some(point.value));
            rows.real(point.error);
            rows.real(point.expected);
            rows.text(point.outcome.map(|outcome| outcome.as_str()));
            rows.real(usual.map(|usual| usual.mean));
            rows.real(usual.map(|usual| usual.spread));
            rows.text(alarm.map(|alarm| alarm.chart.as_str()));
            rows.real(alarm.map(|alarm| alarm.shift));
            rows.text(Some(&plain(&changed.join("; "))));
            rows.end();
        }
    }
    rows.bytes()
}

/// The name of a kind in documents.
pub fn kind(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Link => "link",
        PartKind::Gpu => "gpu",
        PartKind::Node => "node",
        PartKind::Rail => "rail",
        PartKind::Domain => "domain",
    }
}

/// The day of a moment in RFC 3339.
fn day(at: &str) -> &str {
    at.get(..10).unwrap_or(at)
}

/// Its minute.
fn minute(at: &str) -> &str {
    at.get(..16).unwrap_or(at)
}

fn share(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), percent)
}

fn count(count: usize) -> String {
    if count == 0 { "-".to_owned() } else { count.to_string() }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn put(page: &mut Page, table: &Table) {
    for line in table.lines() {
        let _ = write!(page.out, " {line}");
        page.end();
    }
}
