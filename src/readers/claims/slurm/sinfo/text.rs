//! Tables of `sinfo`: the default one, `-N`, `-l`, `-R`, and any `-o` or `-O` whose columns are
//! identifiable by their header or their content.

use super::super::host_list_budget::{HostListBudget, SlurmTextPosition};
use super::super::{json_response, node_states};
use super::SinfoRow;
use crate::claims::reader_util::sanitize_text;
use model::hostlist;
use model::source_report::{SourceProblemKind, SourceReport};

/// Known headers, as `sinfo` writes them (compared in capitals).
const NODE_HEADERS: &[&str] = &["NODELIST", "HOSTNAMES", "NODE_ADDR"];
const STATE_HEADERS: &[&str] = &["STATE", "STATECOMPLETE", "STATELONG", "STATECOMPACT"];

/// All headers, of which a header line contains at least two.
const HEADERS: &[&str] = &[
    "NODELIST",
    "HOSTNAMES",
    "STATE",
    "PARTITION",
    "AVAIL",
    "TIMELIMIT",
    "NODES",
    "REASON",
    "USER",
    "TIMESTAMP",
    "GRES",
    "AVAIL_FEATURES",
    "ACTIVE_FEATURES",
    "CPUS",
    "MEMORY",
];

/// `sinfo` also writes `none` for an absent reason.
fn is_nothing(cell: &str) -> bool {
    json_response::is_null_text(cell) || cell.eq_ignore_ascii_case("none")
}

/// Without a width, `sinfo -R` truncates reasons here.
const REASON_WIDTH: usize = 20;

/// `sinfo` has some 80 fields.
const MAX_COLUMNS: usize = 100;

/// Number of rows that determine the content of columns.
const SAMPLE_ROWS: usize = 50;

pub(super) fn recognises(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let Some(first) = lines.next() else { return false };
    if is_header(first) {
        return true;
    }
    // `sinfo -l` prints the time first.
    if lines.clone().next().is_some_and(is_header) && first.contains(':') {
        return true;
    }
    // Without a header, every line must contain a state and a name.
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(SAMPLE_ROWS)
        .map(|line| split_cells(line, line.contains('|')))
        .collect();
    1 < rows.first().map_or(0, Vec::len) && !find_state_columns(&rows).is_empty()
}

fn is_header(line: &str) -> bool {
    let cells = split_cells(line, line.contains('|'));
    let known = cells.iter().filter(|cell| HEADERS.contains(&cell.to_ascii_uppercase().as_str()));
    let is_in_capitals = !line.chars().any(char::is_lowercase);
    is_in_capitals
        && 1 < known.count()
        && cells.iter().any(|cell| *cell == "NODELIST" || *cell == "STATE" || *cell == "HOSTNAMES")
}

/// The cells of a line, separated by bars or by blanks.
fn split_cells(line: &str, has_bars: bool) -> Vec<&str> {
    if has_bars {
        line.split('|').map(str::trim).collect()
    } else {
        line.split_whitespace().collect()
    }
}

/// Columns with a state in every row.
fn find_state_columns(rows: &[Vec<&str>]) -> Vec<usize> {
    let width = rows.iter().map(Vec::len).min().unwrap_or(0).min(MAX_COLUMNS);
    (0..width).filter(|column| rows.iter().all(|row| node_states::is_state(row[*column]))).collect()
}

pub(super) fn read(report: &mut SourceReport, place: &str, text: &str) {
    let lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| (index + 1, line))
        .collect();
    match lines.iter().position(|(_, line)| is_header(line)) {
        Some(header) => read_with_header(report, place, lines[header].1, &lines[header + 1..]),
        None => read_without_header(report, place, &lines),
    }
}

#[derive(Debug, Default)]
struct SinfoColumns {
    count: usize,
    nodes: Option<usize>,
    states: Vec<usize>,
    reason: Option<usize>,
    gres: Option<usize>,
    features: Option<usize>,
    partition: Option<usize>,
}

impl SinfoColumns {
    fn from_header(header: &[&str]) -> Self {
        let find = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| header.iter().position(|cell| cell.eq_ignore_ascii_case(name)))
        };
        let is_state = |cell: &&str| STATE_HEADERS.contains(&cell.to_ascii_uppercase().as_str());
        let states = header.iter().enumerate().filter(|(_, cell)| is_state(cell));
        Self {
            count: header.len(),
            nodes: find(NODE_HEADERS),
            states: states.map(|(index, _)| index).collect(),
            reason: find(&["REASON"]),
            gres: find(&["GRES"]),
            features: find(&["AVAIL_FEATURES"]),
            partition: find(&["PARTITION"]),
        }
    }

    /// Parses one row. Of several state columns, the most detailed one counts.
    fn parse_row(&self, cells: &[&str]) -> SinfoRow {
        let text = |column: Option<usize>| {
            column
                .and_then(|column| cells.get(column))
                .filter(|cell| !is_nothing(cell))
                .map(|cell| (*cell).to_owned())
        };
        let states = self.states.iter().filter_map(|column| cells.get(*column));
        let fullest = states.max_by_key(|state| (state.contains('+'), state.len()));
        SinfoRow {
            nodes: text(self.nodes).unwrap_or_default(),
            state: fullest.map(|state| node_states::split_sinfo_state(state)).unwrap_or_default(),
            reason: text(self.reason),
            gres: text(self.gres),
            features: text(self.features),
            partition: text(self.partition).map(|name| name.trim_end_matches('*').to_owned()),
        }
    }
}

fn read_with_header(report: &mut SourceReport, place: &str, header: &str, lines: &[(usize, &str)]) {
    let has_bars = header.contains('|');
    let names = split_cells(header, has_bars);
    let columns = SinfoColumns::from_header(&names);
    if columns.nodes.is_none() {
        let message = "no column with node names (NODELIST or HOSTNAMES)";
        report.push_problem(SourceProblemKind::Unsupported, None, message);
        return;
    }
    let is_reasons = names.first() == Some(&"REASON") && names.last() == Some(&"NODELIST");
    let mut listed = HostListBudget::new();
    let mut cut = false;
    for (number, line) in lines {
        let spot = SlurmTextPosition::new(place, *number, 1);
        let row = if is_reasons && !has_bars {
            parse_reason_row(line, names.len())
        } else {
            parse_full_row(line, has_bars, &names, &columns)
        };
        let Some(row) = row else {
            let message = format!("this line does not fit the table: {}", sanitize_text(line));
            report.push_problem(SourceProblemKind::Malformed, spot.to_string(), message);
            continue;
        };
        let length = row.reason.as_ref().map_or(0, |reason| reason.chars().count());
        cut |= is_reasons && REASON_WIDTH <= length;
        super::add_row(report, &mut listed, spot, &row, columns.partition.is_some());
    }
    if cut {
        report.notes.push(format!("reasons may be truncated at {REASON_WIDTH} characters"));
    }
}

/// A row of `sinfo -R`: the reason comes first and may contain blanks, so the other columns are
/// split off the end.
fn parse_reason_row(line: &str, columns: usize) -> Option<SinfoRow> {
    let mut rest = line.trim();
    let mut nodes = None;
    for _ in 1..columns {
        let before = &rest[..rest.rfind(char::is_whitespace)?];
        nodes = nodes.or_else(|| rest[before.len()..].split_whitespace().next());
        rest = before.trim_end();
    }
    Some(SinfoRow {
        nodes: nodes?.to_owned(),
        reason: Some(rest.to_owned()).filter(|reason| !is_nothing(reason)),
        ..SinfoRow::default()
    })
}

/// A row with as many cells as the table has columns, or nearly as many: with blanks as
/// separators, a reason at the end adds cells, and an empty cell removes one.
fn parse_full_row(
    line: &str,
    has_bars: bool,
    names: &[&str],
    columns: &SinfoColumns,
) -> Option<SinfoRow> {
    let found = split_cells(line, has_bars);
    let last_is = |name: &str| names.last().is_some_and(|last| *last == name);
    if found.len() == columns.count || (has_bars && columns.nodes? < found.len()) {
        return Some(columns.parse_row(&found));
    }
    if has_bars {
        return None;
    }
    if columns.count < found.len() && last_is("REASON") {
        let mut row = columns.parse_row(&found[..columns.count]);
        let rest = found[columns.count - 1..].join(" ");
        row.reason = Some(rest).filter(|reason| !is_nothing(reason));
        return Some(row);
    }
    if 2 < found.len() && last_is("NODELIST") {
        let state =
            found[..found.len() - 1].iter().rev().find(|cell| node_states::is_state(cell))?;
        return Some(SinfoRow {
            nodes: (*found.last()?).to_owned(),
            state: node_states::split_sinfo_state(state),
            partition: columns
                .partition
                .filter(|column| *column == 0)
                .map(|_| found[0].trim_end_matches('*').to_owned()),
            ..SinfoRow::default()
        });
    }
    None
}

/// `sinfo -h`: the content identifies the columns.
fn read_without_header(report: &mut SourceReport, place: &str, lines: &[(usize, &str)]) {
    let has_bars = lines.iter().all(|(_, line)| line.contains('|'));
    let rows: Vec<Vec<&str>> = lines.iter().map(|(_, line)| split_cells(line, has_bars)).collect();
    let states = find_state_columns(&rows);
    let width = rows.iter().map(Vec::len).min().unwrap_or(0).min(MAX_COLUMNS);
    let Some(nodes) = find_node_column(&rows, width, &states).filter(|_| !states.is_empty()) else {
        if lines.is_empty() {
            report.push_problem(SourceProblemKind::Incomplete, None, "an empty answer");
        } else {
            let message = "no header, and no column is recognisable as nodes or states";
            report.push_problem(SourceProblemKind::Unsupported, None, message);
        }
        return;
    };
    let columns =
        SinfoColumns { count: width, nodes: Some(nodes), states, ..SinfoColumns::default() };
    let mut listed = HostListBudget::new();
    for ((number, _), row) in lines.iter().zip(&rows) {
        let spot = SlurmTextPosition::new(place, *number, 1);
        super::add_row(report, &mut listed, spot, &columns.parse_row(row), false);
    }
}

/// The column of nodes: host lists whose lengths match another column, or with brackets, or, with
/// `-N`, the first.
fn find_node_column(rows: &[Vec<&str>], width: usize, states: &[usize]) -> Option<usize> {
    let rows = &rows[..rows.len().min(SAMPLE_ROWS)];
    let mut left = hostlist::MAX_NAMES;
    let mut lengths = |column: usize| -> Option<Vec<usize>> {
        let mut found = Vec::new();
        for row in rows {
            if left == 0 {
                break;
            }
            let names = hostlist::expand(row[column]).ok()?;
            left = left.saturating_sub(names.len());
            found.push(names.len());
        }
        Some(found)
    };
    let is_number = |column: usize| rows.iter().all(|row| row[column].parse::<usize>().is_ok());
    let is_counted = |lengths: &[usize]| {
        (0..width).any(|other| {
            rows.iter().zip(lengths).all(|(row, length)| row[other].parse() == Ok(*length))
        })
    };
    let candidates: Vec<(usize, Vec<usize>)> = (0..width)
        .filter(|column| !states.contains(column) && !is_number(*column))
        .filter_map(|column| Some((column, lengths(column)?)))
        .collect();
    let has_brackets = |column: usize| rows.iter().any(|row| row[column].contains('['));
    candidates
        .iter()
        .find(|(column, _)| has_brackets(*column))
        .or_else(|| candidates.iter().find(|(_, lengths)| is_counted(lengths)))
        .or_else(|| candidates.iter().find(|(column, _)| *column == 0))
        .map(|(column, _)| *column)
}

#[cfg(test)]
mod tests {
    use super::super::{read as read_sinfo, recognises};
    use model::id::NodeName;
    use model::source_report::{NodeReport, SourceProblemKind, SourceReport};

    fn node(report: &SourceReport, name: &str) -> NodeReport {
        report
            .nodes
            .get(&NodeName::from(name))
            .cloned()
            .unwrap_or_else(|| panic!("{name}: {report:?}"))
    }

    fn state(report: &SourceReport, name: &str) -> String {
        node(report, name).state.join("+")
    }

    fn good(text: &str) -> SourceReport {
        assert!(recognises(text), "{text}");
        let report = read_sinfo("f", text);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        report
    }

    #[test]
    fn the_default_table_is_read_partition_by_partition() {
        let report = good(
            "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n\
             main*        up   infinite      1   drng t4\n\
             main*        up   infinite      3   idle t[1-3]\n\
             probe        up    1:00:00      1   drng t4\n\
             empty        up   infinite      0    n/a\n"
                .replace("0    n/a", "0    n/a n/a")
                .as_str(),
        );
        assert_eq!(state(&report, "t4"), "DRAINING");
        assert_eq!((node(&report, "t4").busy, node(&report, "t2").busy), (Some(true), Some(false)));
        let names: Vec<(&str, usize)> =
            report.groups.iter().map(|g| (g.name.as_str(), g.nodes.len())).collect();
        assert_eq!(names, [("main", 4), ("probe", 1), ("empty", 0)]);
    }

    #[test]
    fn a_node_that_a_partition_lists_in_two_rows_is_in_it_once() {
        let report = good(
            "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n\
             main*        up   infinite      1   drng t2\n\
             main*        up   infinite      3   idle t[1-3]\n",
        );
        let [main] = report.groups.as_slice() else { panic!("{:?}", report.groups) };
        let nodes: Vec<&str> = main.nodes.iter().map(|node| node.as_str()).collect();
        assert_eq!(nodes, ["t2", "t1", "t3"]);
    }

    #[test]
    fn tables_by_node_are_read_with_and_without_a_header() {
        let report =
            good("NODELIST   NODES PARTITION STATE\nt1  1  main*  idle*\nt2  1  main* mix\n");
        assert_eq!(state(&report, "t1"), "IDLE+NOT_RESPONDING");
        let report = good("t3   drained   idle+drain   drain\nt4   draining   mixed+drain  drng\n");
        assert_eq!(state(&report, "t3"), "IDLE+DRAIN");
        assert_eq!(state(&report, "t4"), "MIXED+DRAIN");
        let report = good(
            "Sat Nov 21 04:00:00 2026\nNODELIST NODES PARTITION STATE CPUS MEMORY REASON\n\
             t1 1 main drained 4 1000 bad psu here\nt2 1 main idle 4 1000 none\n",
        );
        assert_eq!(node(&report, "t1").reason.as_deref(), Some("bad psu here"));
        assert_eq!(node(&report, "t2").reason, None);
    }

    #[test]
    fn tables_with_bars_are_read_with_and_without_a_header() {
        let report = good(
            "HOSTNAMES|STATE|REASON |GRES |AVAIL_FEATURES|NODELIST |PARTITION \n\
             t1|drain*|swap it |gpu:gb200:4(S:0-1) |gb200,row1|t1 |main* \n\
             t2|alloc|none |gpu:gb200:4 |gb200|t2\n",
        );
        assert_eq!(state(&report, "t1"), "DRAINED+NOT_RESPONDING");
        assert_eq!(node(&report, "t1").gpus, Some(4));
        assert_eq!(node(&report, "t1").reason.as_deref(), Some("swap it"));
        assert_eq!(node(&report, "t1").marks["features"], "gb200,row1");
        assert_eq!(node(&report, "t2").busy, Some(true));
        let report = good("t[01-02]|2|part1|None|idle\nt03|1|part2|down|down*");
        assert_eq!(state(&report, "t02"), "IDLE");
        assert_eq!(state(&report, "t03"), "DOWN+NOT_RESPONDING");
        let report = good("part1|t01|1|idle\npart2|t02|1|alloc\n");
        assert_eq!(report.nodes.len(), 2);
        let long = "part|t[1-100000]|100000|idle\n".repeat(3);
        assert_eq!(good(&long).nodes.len(), 100_000);
    }

    #[test]
    fn reasons_keep_their_blanks_and_broken_lines_are_reported() {
        let text = "REASON               USER      TIMESTAMP           NODELIST\n\
                    hw ticket 4711: swap slurm     2026-11-21T04:53:58 t4\n\
                    gate: line one\n\
                    line  root      2026-11-21T05:34:24 t2\n";
        assert!(recognises(text));
        let report = read_sinfo("f", text);
        assert_eq!(node(&report, "t4").reason.as_deref(), Some("hw ticket 4711: swap"));
        assert_eq!(node(&report, "t2").reason.as_deref(), Some("line"));
        assert_eq!(report.problems[0].at.as_deref(), Some("f:3:1"));
        assert_eq!(report.notes, ["reasons may be truncated at 20 characters"]);
        assert!(node(&report, "t4").state.is_empty() && node(&report, "t4").busy.is_none());
    }

    #[test]
    fn unrecognisable_tables_are_reported() {
        for (text, kind) in [
            ("", SourceProblemKind::Incomplete),
            ("PARTITION STATE\nmain idle\n", SourceProblemKind::Unsupported),
            ("a b c\nd e f\n", SourceProblemKind::Unsupported),
            ("NODELIST STATE\n", SourceProblemKind::Incomplete),
            ("NODELIST STATE\nt[1- idle\n", SourceProblemKind::Malformed),
        ] {
            assert_eq!(read_sinfo("f", text).problems[0].kind, kind, "{text:?}");
        }
        for text in ["", "hello world\n", "a b c\n", "NodeName=a State=IDLE\n", "host: uuid\n"] {
            assert!(!recognises(text), "{text:?}");
        }
    }
}
