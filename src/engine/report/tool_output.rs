//! One tool output for readers: the tool, its measurements, its problems.
//!
//! Numbers keep the tool's own rows and columns, rounded to about four digits. Large tables are
//! folded and marked as such. Nothing is judged.

use std::collections::BTreeMap;

use anstyle::Style;

use super::plain_text::{clip, count_noun, format_number, to_plain};
use super::terminal_page::{TerminalPage, outcome_colour};
use super::{TerminalStyle, output_facts};
use model::measurement::{
    BufferPlacement, Measurement, MeasurementMatrix, MeasurementScalar, MeasurementSeries,
    SeriesPoint,
};
use model::parse_output::{OutputProblemKind, ParseDocument};
use model::stats::sort_median;
use model::unit::Unit;
use model::verdict::Outcome;

/// Most rows of a matrix that is printed whole.
const WHOLE: usize = 10;
/// Most rows of a folded matrix.
const FOLDED: usize = 10;
/// Most points of a series.
const POINTS: usize = 40;
/// Most problems of one file.
const PROBLEMS: usize = 40;
/// Most measurements of one file that get a table.
const TABLES: usize = 200;

/// The text for one file.
pub fn render(document: &ParseDocument, style: &TerminalStyle) -> String {
    let mut page = TerminalPage::new(style);
    write_opening(&mut page, document);
    let facts = output_facts::describe_facts(&document.facts);
    let depth = facts.iter().map(|(what, _)| what.chars().count()).max().unwrap_or(0);
    for (what, text) in &facts {
        page.paragraph(&format!("{what:<depth$}  "), text, 2);
    }
    let ranks: BTreeMap<String, String> = document
        .facts
        .ranks
        .iter()
        .map(|r| (r.rank.to_string(), clip(&format!("{}:{}", r.host, r.device), 40)))
        .collect();
    for measurement in document.measurements.iter().take(TABLES) {
        page.out.push('\n');
        match measurement {
            Measurement::Matrix(m) => write_matrix(&mut page, m, &ranks),
            Measurement::Series(s) => write_series(&mut page, s),
            Measurement::Scalar(s) => write_scalar(&mut page, s),
        }
    }
    if TABLES < document.measurements.len() {
        let more = document.measurements.len() - TABLES;
        page.paragraph("", &format!("and {more} more measurements; --json has all"), 2);
    }
    write_problems(&mut page, document);
    page.out
}

fn write_opening(page: &mut TerminalPage, document: &ParseDocument) {
    let tool = document.tool.map_or("not the output of a known tool", |t| t.as_str());
    let version = document.tool_version.as_deref().map(|v| format!(" {}", clip(v, 40)));
    page.styled(Style::new().bold(), &to_plain(&document.file));
    page.end_line();
    let (outcome, word) = match (document.tool, document.complete) {
        (None, _) => (Outcome::Unknown, ""),
        (_, true) => (Outcome::Pass, "complete"),
        (_, false) => (Outcome::Unknown, "not complete"),
    };
    page.out.push_str(&format!("  {tool}{}", version.unwrap_or_default()));
    if !word.is_empty() {
        page.out.push_str(", ");
        page.styled(outcome_colour(outcome), word);
    }
    let count = document.measurements.len();
    if 0 < count {
        page.out.push_str(&format!(", {}", count_noun(count, "measurement", "measurements")));
    }
    let wrong = document.problems.len();
    if 0 < wrong {
        page.out.push_str(", ");
        let words = count_noun(wrong, "problem", "problems");
        page.styled(outcome_colour(worst_outcome(document)), &words);
    }
    page.end_line();
}

fn worst_outcome(document: &ParseDocument) -> Outcome {
    document.problems.iter().map(|p| problem_outcome(p.kind)).max().unwrap_or(Outcome::Pass)
}

/// The colour of a problem, which does not imply a hardware problem.
fn problem_outcome(kind: OutputProblemKind) -> Outcome {
    match kind {
        OutputProblemKind::Error | OutputProblemKind::Corrupt => Outcome::Failed,
        OutputProblemKind::Truncated
        | OutputProblemKind::Inconsistent
        | OutputProblemKind::Unrecognised => Outcome::Degraded,
        OutputProblemKind::Waived | OutputProblemKind::Unverified => Outcome::Unknown,
    }
}

/// The name of a measurement, with its attributes.
fn write_title(page: &mut TerminalPage, testcase: Option<&str>, run: u32, rest: &str) {
    page.out.push_str("  ");
    page.styled(Style::new().bold(), &testcase.map_or("no name".into(), |t| clip(t, 80)));
    let run = if run == 0 { String::new() } else { format!(", run {run}") };
    page.end_line();
    page.paragraph("", &format!("{rest}{run}"), 4);
}

fn unit_text(unit: Option<Unit>) -> &'static str {
    unit.map_or("unit not reported", Unit::as_str)
}

/// For example `lowest 1, median 2, highest 3`.
fn format_spread(values: &mut [f64]) -> Option<String> {
    let middle = sort_median(values)?;
    let (low, high) = (values.first()?, values.last()?);
    Some(if low == high {
        format!("all {}", format_number(*low))
    } else {
        format!(
            "lowest {}, median {}, highest {}",
            format_number(*low),
            format_number(middle),
            format_number(*high)
        )
    })
}

fn write_matrix(
    page: &mut TerminalPage,
    matrix: &MeasurementMatrix,
    ranks: &BTreeMap<String, String>,
) {
    let mut values: Vec<f64> = matrix.numbers().map(|(_, _, v)| v).collect();
    let cells: usize = matrix.cells.iter().map(Vec::len).sum();
    let mut rest = format!(
        "{} x {} in {}: {}",
        matrix.rows.len(),
        matrix.cols.len(),
        unit_text(matrix.unit),
        count_noun(values.len(), "number", "numbers")
    );
    let square = matrix.rows.len() == matrix.cols.len();
    let blank = cells - values.len();
    if 0 < blank && square && blank == matrix.rows.len() {
        rest.push_str(" and an empty diagonal");
    } else if 0 < blank {
        rest.push_str(&format!(", {blank} without"));
    }
    if let Some(spread) = format_spread(&mut values) {
        rest.push_str(&format!("; {spread}"));
    }
    if let Some(sum) = matrix.sum {
        rest.push_str(&format!("; sum as printed {}", format_number(sum)));
    }
    write_title(page, matrix.testcase.as_deref(), matrix.run, &rest);
    if values.is_empty() {
        return;
    }
    let cell = |v: &Option<f64>| v.map_or_else(|| "-".to_owned(), format_number);
    let texts: Vec<Vec<String>> =
        matrix.cells.iter().map(|row| row.iter().map(cell).collect()).collect();
    let wide = texts.iter().flatten().map(|t| t.chars().count()).max().unwrap_or(1);
    let label = label_width(&matrix.rows);
    let heads: Vec<String> = matrix.cols.iter().map(|c| clip(c, wide.max(4))).collect();
    let wide = heads.iter().map(|h| h.chars().count()).max().unwrap_or(1).max(wide);
    if matrix.rows.len() <= WHOLE && 4 + label + matrix.cols.len() * (wide + 2) <= page.width {
        let rows = matrix.rows.iter().zip(&texts).map(|(row, texts)| (row.as_str(), texts.clone()));
        write_table(page, label, &heads, rows.collect());
    } else if 1 < matrix.rows.len() {
        write_folded_matrix(page, matrix, ranks);
    }
}

fn label_width(rows: &[String]) -> usize {
    rows.iter().map(|r| r.chars().count()).max().unwrap_or(0).min(20)
}

/// A table with right-aligned numbers.
fn write_table(
    page: &mut TerminalPage,
    label: usize,
    heads: &[String],
    rows: Vec<(&str, Vec<String>)>,
) {
    let widths: Vec<usize> = (0..heads.len())
        .map(|i| {
            let cells = rows.iter().filter_map(|(_, r)| r.get(i)).map(|t| t.chars().count());
            cells.chain([heads[i].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| -> String {
        cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect()
    };
    page.out.push_str("    ");
    page.styled(Style::new().dimmed(), &format!("{:label$}{}", "", line(heads)));
    page.end_line();
    for (name, cells) in rows {
        page.out.push_str(&format!("    {:<label$}{}", clip(name, label), line(&cells)));
        page.end_line();
    }
}

/// One line per row with its spread; of many rows those with the lowest (for latencies the highest)
/// median. A row that is a rank also has the name of the GPU that the output gives for it.
fn write_folded_matrix(
    page: &mut TerminalPage,
    matrix: &MeasurementMatrix,
    ranks: &BTreeMap<String, String>,
) {
    let latency = matrix.unit.is_some_and(|u| !u.is_bandwidth() && u != Unit::Count);
    let mut rows: Vec<(usize, [f64; 3], usize)> = Vec::new();
    for (at, row) in matrix.cells.iter().enumerate() {
        let mut values: Vec<f64> = row.iter().flatten().copied().collect();
        let Some(middle) = sort_median(&mut values) else { continue };
        rows.push((at, [values[0], middle, values[values.len() - 1]], values.len()));
    }
    let all = rows.len();
    if FOLDED < all {
        rows.sort_by(|a, b| a.1[1].total_cmp(&b.1[1]).then(a.0.cmp(&b.0)));
        if latency {
            rows.reverse();
        }
        rows.truncate(FOLDED);
        rows.sort_by_key(|r| r.0);
    }
    let shown = rows.len();
    let names: Vec<String> = rows
        .iter()
        .map(|(at, ..)| {
            let row = matrix.rows.get(*at).map_or("", String::as_str);
            ranks.get(row).map_or_else(|| row.to_owned(), |gpu| format!("{row} {gpu}"))
        })
        .collect();
    let label = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).min(40);
    let lines = rows.iter().zip(&names).map(|((_, spread, count), name)| {
        let mut cells: Vec<String> = spread.iter().map(|v| format_number(*v)).collect();
        cells.push(count.to_string());
        (name.as_str(), cells)
    });
    let heads = ["lowest", "median", "highest", "numbers"].map(str::to_owned);
    write_table(page, label, &heads, lines.collect());
    if shown < all {
        let which = if latency { "highest" } else { "lowest" };
        let text =
            format!("the {shown} rows with the {which} medians of {all}; --json has every cell");
        page.paragraph("", &text, 4);
    } else {
        page.paragraph("", "row by row; --json has every cell", 4);
    }
}

fn write_series(page: &mut TerminalPage, series: &MeasurementSeries) {
    let mut rest = format!(
        "{} in {}",
        count_noun(series.points.len(), "point", "points"),
        unit_text(series.unit)
    );
    if let Some(average) = series.average_busbw {
        rest.push_str(&format!("; average busbw as printed {}", format_number(average)));
    }
    write_title(page, series.testcase.as_deref(), series.run, &rest);
    // Only columns with content.
    type SeriesColumn = (&'static str, fn(&SeriesPoint) -> Option<f64>);
    const COLUMNS: [SeriesColumn; 9] = [
        ("time us", |p| p.time_us),
        ("algbw", |p| p.algbw),
        ("busbw", |p| p.busbw),
        ("peak", |p| p.peak),
        ("Mmsg/s", |p| p.msgrate),
        ("min us", |p| p.min_us),
        ("max us", |p| p.max_us),
        ("p99 us", |p| p.p99_us),
        ("wrong", |p| p.wrong),
    ];
    let used: Vec<SeriesColumn> =
        COLUMNS.into_iter().filter(|c| series.points.iter().any(|p| c.1(p).is_some())).collect();
    let placed = series.points.iter().any(|p| p.placement.is_some());
    let mut heads: Vec<String> = if placed { vec!["placement".to_owned()] } else { Vec::new() };
    heads.extend(used.iter().map(|c| c.0.to_owned()));
    // Of many points the largest sizes, where bandwidth has converged.
    let skipped = series.points.len().saturating_sub(POINTS);
    let sizes: Vec<String> = series.points.iter().map(|p| format_size(p.bytes)).collect();
    let rows: Vec<(&str, Vec<String>)> = series
        .points
        .iter()
        .zip(&sizes)
        .skip(skipped)
        .map(|(point, size)| {
            let mut cells = Vec::new();
            if placed {
                cells.push(
                    match point.placement {
                        Some(BufferPlacement::OutOfPlace) => "out",
                        Some(BufferPlacement::InPlace) => "in",
                        None => "-",
                    }
                    .to_owned(),
                );
            }
            cells.extend(used.iter().map(|(name, of)| match of(point) {
                Some(wrong) if *name == "wrong" => format!("{wrong:.0}"),
                Some(value) => format_number(value),
                None => "-".to_owned(),
            }));
            (size.as_str(), cells)
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    let label = sizes.iter().map(String::len).max().unwrap_or(0);
    write_table(page, label, &heads, rows);
    if 0 < skipped {
        page.paragraph("", &format!("{skipped} smaller points left out; --json has all"), 4);
    }
}

/// Bytes, as a power of two if they are one.
fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if 1 << shift <= bytes && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

fn write_scalar(page: &mut TerminalPage, scalar: &MeasurementScalar) {
    let name = scalar.testcase.as_deref().map_or("no name".into(), |t| clip(t, 80));
    page.out.push_str("  ");
    page.styled(Style::new().bold(), &name);
    page.out.push_str(&format!("  {} {}", format_number(scalar.value), unit_text(scalar.unit)));
    page.end_line();
}

fn write_problems(page: &mut TerminalPage, document: &ParseDocument) {
    if document.problems.is_empty() {
        return;
    }
    page.section("  Problems");
    for problem in document.problems.iter().take(PROBLEMS) {
        let mut place = Vec::new();
        place.extend(problem.line.map(|line| format!("line {line}")));
        place.extend(problem.testcase.as_deref().map(|t| clip(t, 80)));
        place.extend(problem.host.as_deref().map(|h| clip(h, 60)));
        place.extend(problem.rank.map(|rank| format!("rank {rank}")));
        place.extend(problem.gpu.map(|gpu| format!("GPU {gpu}")));
        let place = place.join(", ");
        let colon = if place.is_empty() { "" } else { ": " };
        page.out.push_str("    ");
        page.styled(outcome_colour(problem_outcome(problem.kind)), problem.kind.as_str());
        page.end_line();
        page.paragraph("", &format!("{place}{colon}{}", problem.detail), 6);
    }
    if PROBLEMS < document.problems.len() {
        let more = document.problems.len() - PROBLEMS;
        page.paragraph("", &format!("and {more} more; --json has all"), 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use model::parse_output::{OutputProblem, ParseOutput, Tool};
    use model::tool_facts::ToolFacts;

    fn render_text(parsed: ParseOutput) -> String {
        let document = ParseDocument::new("nodes/n1/out.txt".to_owned(), parsed);
        render(&document, &TerminalStyle { width: 80, colour: false })
    }

    fn square(side: usize) -> MeasurementMatrix {
        let name = |i: usize| i.to_string();
        let step = |i: usize, j: usize| f64::from(u32::try_from(i * side + j).unwrap_or(0)) / 100.0;
        let row = |i: usize| (0..side).map(|j| (i != j).then(|| 395.0 + step(i, j))).collect();
        MeasurementMatrix {
            run: 0,
            testcase: Some("device_to_device_memcpy_read_ce".to_owned()),
            unit: Some(Unit::GigabytesPerSecond),
            rows: (0..side).map(name).collect(),
            cols: (0..side).map(name).collect(),
            cells: (0..side).map(row).collect(),
            sum: Some(4321.0),
            coefficient_of_variation: None,
        }
    }

    #[test]
    fn small_tables_are_whole_and_large_ones_folded() {
        let mut parsed = ParseOutput::for_tool(Tool::Nvbandwidth);
        (parsed.tool_version, parsed.complete) = (Some("0.8".to_owned()), true);
        parsed.facts = ToolFacts { driver: Some("570.26".to_owned()), ..ToolFacts::default() };
        parsed.measurements = vec![Measurement::Matrix(square(4)), Measurement::Matrix(square(24))];
        insta::assert_snapshot!("matrices", render_text(parsed));
    }

    #[test]
    fn series_scalars_and_problems_are_listed() {
        let point = |bytes, placement, wrong| SeriesPoint {
            bytes,
            placement: Some(placement),
            time_us: Some(61.25),
            algbw: Some(137.0),
            busbw: Some(239.75),
            wrong,
            ..SeriesPoint::default()
        };
        let mut parsed = ParseOutput::for_tool(Tool::NcclTests);
        parsed.measurements = vec![
            Measurement::Series(MeasurementSeries {
                run: 1,
                testcase: Some("all_reduce_perf".to_owned()),
                unit: Some(Unit::GigabytesPerSecond),
                points: vec![
                    point(8 << 20, BufferPlacement::OutOfPlace, Some(0.0)),
                    point(8 << 20, BufferPlacement::InPlace, None),
                ],
                average_busbw: Some(239.7),
            }),
            Measurement::Scalar(MeasurementScalar {
                run: 0,
                testcase: None,
                unit: None,
                value: 3.5,
            }),
        ];
        parsed.problems = vec![
            OutputProblem::new(OutputProblemKind::Truncated, "the end of the output is missing")
                .at_line(41),
            OutputProblem::new(OutputProblemKind::Corrupt, "2 wrong elements")
                .in_test(Some("all_reduce_perf")),
        ];
        insta::assert_snapshot!("series", render_text(parsed));
    }

    #[test]
    fn unreadable_and_control_text_is_escaped() {
        let problem =
            OutputProblem::new(OutputProblemKind::Unrecognised, "\x1b[2Jnot\u{202e} a tool");
        let text = render_text(ParseOutput { problems: vec![problem], ..ParseOutput::default() });
        assert!(text.contains("not the output of a known tool, 1 problem"), "{text}");
        assert!(!fixture::steers(&text), "{text:?}");
    }

    #[test]
    fn sizes_are_whole_units_or_bytes() {
        let all = [8, 1 << 10, 3 << 20, 16 << 30, 1025].map(format_size);
        assert_eq!(all, ["8 B", "1 KiB", "3 MiB", "16 GiB", "1025 B"]);
    }
}
