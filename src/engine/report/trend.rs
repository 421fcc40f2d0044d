//! The history, for a terminal and as CSV: nodes with their last measurement, series compared with
//! their usual level, and alarms with the changes at that time.
//!
//! Displays the results of `judge::drift` and adds no judgement.

use std::fmt::Write as _;

use anstyle::Style;

use super::plain_text::{clip, count_noun, format_quantity, rail_name, to_plain};
use super::terminal_page::{TerminalPage, new_table};
use super::{TerminalStyle, csv};
use model::id::NodeName;
use model::run::simulation_notice;
use model::text::format_percent;
use model::trend::{
    FabricPart, FabricPartKind, HistoryDocument, OpenAlarm, RunChange, Trend, TrendAlarm,
};

/// Most displayed series; the rest are counted.
const MOST: usize = 100;

const MOST_ALARMS: usize = 40;

/// Most changes named with one alarm.
const MOST_CHANGES: usize = 4;

/// Most characters of a name.
const NAME: usize = 40;

/// Title of the lowest ratio to expectation over all parts and tests of a node.
const LEAST: &str = "least of expected";

/// Renders the history. With `overview`, nodes and domains instead of every series.
pub fn render(document: &HistoryDocument, overview: bool, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    let span = match (&document.first, &document.last) {
        (Some(first), Some(last)) => format!(", {} to {}", trim_to_day(first), trim_to_day(last)),
        _ => String::new(),
    };
    let nodes = count_noun(document.nodes.len(), "node", "nodes");
    let runs = count_noun(document.runs, "run", "runs");
    page.styled(Style::new().bold(), &to_plain(&format!("{runs}, {nodes}{span}")));
    page.end_line();
    if let Some(text) = simulation_notice(document.simulated) {
        page.warning(text);
    }
    page.faint(&to_plain(&document.file), 0);
    if overview {
        write_nodes(&mut page, document);
        let domains: Vec<&Trend> = trends_of_kind(document, FabricPartKind::Domain).collect();
        if !domains.is_empty() {
            page.section("Domains: the level of each test");
            write_series(&mut page, &domains);
        }
    } else {
        page.section("Series");
        write_series(&mut page, &document.trends.iter().collect::<Vec<_>>());
    }
    write_alarms(&mut page, document);
    if !document.notes.is_empty() {
        page.section("Remarks");
        for note in &document.notes {
            page.paragraph("- ", &to_plain(note), 2);
        }
    }
    page.out
}

fn trends_of_kind(
    document: &HistoryDocument,
    kind: FabricPartKind,
) -> impl Iterator<Item = &Trend> {
    document.trends.iter().filter(move |trend| trend.part.kind == kind)
}

fn write_nodes(page: &mut TerminalPage, document: &HistoryDocument) {
    if document.nodes.is_empty() {
        return;
    }
    page.section("Nodes: the last time each was measured");
    let header =
        ["", "runs", "last measured", "profile", "outcome", LEAST, "least of usual", "alarms"];
    let mut table = new_table(header);
    for node in document.nodes.iter().take(MOST) {
        let own = || {
            let is_own = |trend: &&Trend| trend.part.node.as_ref() == Some(&node.node);
            trends_of_kind(document, FabricPartKind::Node).filter(is_own)
        };
        let usual = own().filter_map(Trend::ratio_to_usual).reduce(f64::min);
        let alarms: usize = own().map(|trend| trend.alarms.len()).sum();
        table.add_row([
            clip(&to_plain(node.node.as_str()), NAME),
            node.runs.to_string(),
            trim_to_minute(&node.last_at).to_owned(),
            to_plain(&node.profile).into_owned(),
            node.outcome.to_string(),
            format_share(node.worst),
            format_share(usual),
            format_count(alarms),
        ]);
    }
    page.table(" ", &table);
    write_rest(page, document.nodes.len());
}

fn write_series(page: &mut TerminalPage, trends: &[&Trend]) {
    if trends.is_empty() {
        page.paragraph("", "there are none", 1);
        return;
    }
    let mut table = new_table(["", "test", "runs", "last", "usual", "± ", "of usual", "alarms"]);
    for trend in trends.iter().take(MOST) {
        let last = trend.last_point().map(|point| format_quantity(point.value, Some(trend.unit)));
        let baseline = trend.baseline.as_ref();
        table.add_row([
            clip(&to_plain(&part_name(&trend.part)), NAME),
            clip(&to_plain(&trend.testcase), NAME),
            trend.points.len().to_string(),
            last.unwrap_or_default(),
            baseline.map_or("too few".to_owned(), |b| format_quantity(b.mean, Some(trend.unit))),
            format_share(baseline.map(|b| b.spread)),
            format_share(trend.ratio_to_usual()),
            format_count(trend.alarms.len()),
        ]);
    }
    page.table(" ", &table);
    write_rest(page, trends.len());
}

fn write_rest(page: &mut TerminalPage, all: usize) {
    if MOST < all {
        let text =
            format!("and {} more; --json and --csv have all, NODE and --domain select", all - MOST);
        page.faint(&text, 1);
    }
}

fn write_alarms(page: &mut TerminalPage, document: &HistoryDocument) {
    let mut all: Vec<(&Trend, &TrendAlarm)> = document
        .trends
        .iter()
        .flat_map(|trend| trend.alarms.iter().map(move |alarm| (trend, alarm)))
        .collect();
    all.sort_by(|a, b| {
        (&b.1.at, &a.0.part, &a.0.testcase).cmp(&(&a.1.at, &b.0.part, &b.0.testcase))
    });
    page.section("Alarms: series that drifted away from their usual level");
    if all.is_empty() {
        page.paragraph("", "there are none", 1);
    }
    for (trend, alarm) in all.iter().take(MOST_ALARMS) {
        page.paragraph("- ", &to_plain(&describe_alarm(trend, alarm)), 1);
    }
    if MOST_ALARMS < all.len() {
        page.faint(&format!("and {} before these", all.len() - MOST_ALARMS), 1);
    }
    if let Some(runs) = document.runs_per_false_alarm {
        let text = format!(
            "An alarm causes no action. With {}, one false alarm for a loss is expected in \
             {runs:.0} runs.",
            count_noun(document.trends.len(), "series", "series")
        );
        page.faint(&text, 1);
    }
}

/// An alarm as a sentence, with the changes at that time.
pub fn describe_alarm(trend: &Trend, alarm: &TrendAlarm) -> String {
    let of = trend.part.node.as_ref();
    format!(
        "{} {}, {}: {}; {}",
        trim_to_day(&alarm.at),
        part_name(&trend.part),
        trend.testcase,
        describe_shift(alarm),
        describe_changes(trend.changes_during(alarm).into_iter(), of),
    )
}

/// An active alarm for a sentence that already names its node.
pub fn describe_standing(standing: &OpenAlarm) -> String {
    let OpenAlarm { part, testcase, alarm, beside } = standing;
    let changes = describe_changes(beside.iter(), part.node.as_ref());
    format!("{testcase}: {} ({}); {changes}", describe_shift(alarm), trim_to_day(&alarm.at))
}

/// The size of a series' shift, and its beginning.
fn describe_shift(alarm: &TrendAlarm) -> String {
    let way = if alarm.shift < 0.0 { "less" } else { "more" };
    let chart = if alarm.chart == "slow" { "a drift" } else { "a step" };
    format!(
        "{} {way} than usual from run {} on, detected in {}, {chart}",
        format_percent(alarm.shift.abs()),
        alarm.since,
        alarm.run,
    )
}

/// The changes at that time; without the node's name if it is named already.
pub fn describe_changes<'c>(
    changes: impl ExactSizeIterator<Item = &'c RunChange>,
    of: Option<&NodeName>,
) -> String {
    let all = changes.len();
    if all == 0 {
        return "no other change is known at that time".to_owned();
    }
    let named: Vec<String> = changes.take(MOST_CHANGES).map(|c| describe_change(c, of)).collect();
    let more = match all.saturating_sub(MOST_CHANGES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("at that time: {}{more}", named.join("; "))
}

/// A change as text: `driver 580.1 -> 580.2`.
fn describe_change(changed: &RunChange, of: Option<&NodeName>) -> String {
    let node = changed.node.as_ref().filter(|node| Some(*node) != of);
    let node = node.map(|node| format!("{node} ")).unwrap_or_default();
    format!(
        "{node}{} {} -> {}",
        changed.what,
        clip(&changed.before, NAME),
        clip(&changed.after, NAME)
    )
}

/// A part as users write it: `node0001:2 tx`.
pub fn part_name(part: &FabricPart) -> String {
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

/// Every point of every series, with the usual level and the alarms.
pub fn render_csv(document: &HistoryDocument) -> Vec<u8> {
    let points: usize = document.trends.iter().map(|trend| trend.points.len()).sum();
    let mut rows = csv::CsvTable::new(160 * (points + 1));
    for column in COLUMNS {
        rows.push_text(Some(column));
    }
    rows.end_row();
    for trend in &document.trends {
        let (part, usual) = (&trend.part, trend.baseline.as_ref());
        for point in &trend.points {
            let alarm = trend.alarms.iter().find(|alarm| alarm.run == point.run);
            let changed: Vec<String> = trend
                .changes
                .iter()
                .filter(|changed| changed.run == point.run)
                .map(|changed| describe_change(changed, part.node.as_ref()))
                .collect();
            rows.push_text(Some(&point.run));
            rows.push_text(Some(&point.at));
            rows.push_text(Some(kind_name(part.kind)));
            rows.push_text(part.domain.as_ref().map(|domain| domain.as_str()));
            rows.push_text(part.node.as_ref().map(NodeName::as_str));
            rows.push_integer(part.gpu);
            rows.push_text(part.peer.as_deref());
            rows.push_text(part.rail.as_deref());
            rows.push_text(part.direction.map(|direction| direction.as_str()));
            rows.push_text(Some(&trend.testcase));
            rows.push_text(Some(trend.unit.as_str()));
            rows.push_float(Some(point.value));
            rows.push_float(point.error);
            rows.push_float(point.expected);
            rows.push_text(point.outcome.map(|outcome| outcome.as_str()));
            rows.push_float(usual.map(|usual| usual.mean));
            rows.push_float(usual.map(|usual| usual.spread));
            rows.push_text(alarm.map(|alarm| alarm.chart.as_str()));
            rows.push_float(alarm.map(|alarm| alarm.shift));
            rows.push_text(Some(&to_plain(&changed.join("; "))));
            rows.end_row();
        }
    }
    rows.into_bytes()
}

/// The name of a kind in documents.
pub fn kind_name(kind: FabricPartKind) -> &'static str {
    match kind {
        FabricPartKind::Link => "link",
        FabricPartKind::Gpu => "gpu",
        FabricPartKind::Node => "node",
        FabricPartKind::Rail => "rail",
        FabricPartKind::Domain => "domain",
    }
}

/// The day of a time in RFC 3339.
pub(super) fn trim_to_day(at: &str) -> &str {
    at.get(..10).unwrap_or(at)
}

fn trim_to_minute(at: &str) -> &str {
    at.get(..16).unwrap_or(at)
}

fn format_share(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), format_percent)
}

fn format_count(count: usize) -> String {
    if count == 0 { "-".to_owned() } else { count.to_string() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::judge::drift;
    use model::id::DomainName;
    use model::time_format::format_rfc3339;
    use model::trend::{HISTORY_FORMAT, NodeHistory, RunChangeKind, TrendPoint};
    use model::unit::Unit;
    use model::verdict::Outcome;

    const STYLE: TerminalStyle = TerminalStyle { width: 120, colour: false };

    /// A node that lost a link on the day of a driver change.
    pub(in crate::report) fn document() -> HistoryDocument {
        let point = |n: i64| TrendPoint {
            run: format!("run-{n:02}"),
            at: format_rfc3339(1_790_000_000 + n * 86_400),
            at_unix: 1_790_000_000 + n * 86_400,
            value: if n < 20 { 750.0 + (n % 3) as f64 } else { 708.0 },
            error: None,
            expected: Some(760.0),
            outcome: Some(if n < 20 { Outcome::Pass } else { Outcome::Degraded }),
        };
        let part = FabricPart {
            kind: FabricPartKind::Node,
            domain: Some(DomainName::from("block01")),
            node: Some(NodeName::from("node0007")),
            gpu: None,
            peer: None,
            rail: None,
            direction: None,
        };
        let changed = RunChange {
            run: "run-20".to_owned(),
            at: point(20).at,
            node: Some(NodeName::from("node0007")),
            kind: RunChangeKind::Boot,
            what: "boot".to_owned(),
            before: "=aa".to_owned(),
            after: "b\u{1b}[2Jb".to_owned(),
        };
        let mut trend = Trend {
            part,
            testcase: "write".to_owned(),
            unit: Unit::GigabytesPerSecond,
            points: (0..24).map(point).collect(),
            baseline: None,
            alarms: Vec::new(),
            changes: vec![changed],
        };
        drift::assess(&mut trend);
        HistoryDocument {
            simulated: false,
            format: HISTORY_FORMAT.to_owned(),
            file: "runs-history.sqlite".to_owned(),
            runs: 24,
            first: Some(point(0).at),
            last: Some(point(23).at),
            nodes: vec![NodeHistory {
                node: NodeName::from("node0007"),
                domain: Some(DomainName::from("block01")),
                runs: 24,
                last_run: "run-23".to_owned(),
                last_at: point(23).at,
                profile: "audit".to_owned(),
                outcome: Outcome::Degraded,
                worst: Some(0.9316),
            }],
            trends: vec![trend],
            runs_per_false_alarm: Some(drift::FALSE_ALARM_INTERVAL),
            notes: Vec::new(),
        }
    }

    #[test]
    fn nodes_series_and_alarms_are_listed_with_changes() {
        let text = render(&document(), true, &STYLE);
        for part in [
            "24 runs, 1 node, 2026-09-21 to 2026-10-14",
            "node0007",
            "93.2 %",
            "94.3 %",
            "less than usual from run run-20 on, detected in run-20, a step; at that time: boot \
             =aa ->",
            "one false alarm for a loss is expected in 43400 runs",
        ] {
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "what comes from outside is cleaned");
        let series = render(&document(), false, &STYLE);
        assert!(series.contains("Series") && series.contains("708.0 GB/s"), "{series}");
    }

    #[test]
    fn a_table_for_spreadsheets_has_every_point_and_runs_no_formula() {
        let mut document = document();
        document.trends[0].testcase = "=cmd()".to_owned();
        let text = String::from_utf8(render_csv(&document)).expect("utf-8");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 25);
        assert_eq!(lines[0], COLUMNS.join(","));
        assert!(lines.iter().all(|line| line.split(',').count() == COLUMNS.len()));
        assert!(lines[1].contains(",'=cmd(),GB/s,750,"), "{}", lines[1]);
        assert!(lines[21].contains(",degraded,") && lines[21].contains(",fast,-0.0"));
    }
}
