//! The measurements of fabricgate's copy-engine probe, as tables.
//!
//! Displays numbers without their expected values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plain_text::{format_number, to_plain};
use super::probe_table;
use super::probe_table::{NOTHING, ReadingSpread, UNKNOWN, render_table};
use model::copy::{CopyDocument, CopyTest};
use model::probe_report::ProbedGpu;
use model::text::format_percent;

/// Matrices with more columns are summarised: no terminal is wide enough.
const MOST_COLUMNS: usize = 18;

/// Number of the lowest values of a large matrix that are named.
const LEAST: usize = 5;

/// Renders the whole report.
pub fn render(document: &CopyDocument) -> String {
    let mut text = render_head(document);
    let listed =
        if document.gpus.is_empty() { local_gpus(document) } else { document.gpus.clone() };
    if !listed.is_empty() {
        text.push('\n');
        text.push_str(&probe_table::render_gpus(&listed, document.around.as_ref()));
    }
    let (rows, matrices): (Vec<&CopyTest>, Vec<&CopyTest>) =
        document.tests.iter().partition(|test| test.rows.len() <= 1);
    let mut groups: BTreeMap<(&[String], &str), Vec<&CopyTest>> = BTreeMap::new();
    for test in rows {
        groups.entry((&test.cols, &test.unit)).or_default().push(test);
    }
    for ((cols, unit), tests) in groups {
        write_per_gpu(&mut text, cols, unit, &tests);
    }
    for test in matrices {
        write_matrix(&mut text, test);
    }
    probe_table::write_telemetry(&mut text, document.around.as_ref());
    probe_table::write_problems(&mut text, &document.problems);
    probe_table::write_conclusion(&mut text, document.complete);
    text
}

fn render_head(document: &CopyDocument) -> String {
    let cuda = document.cuda.as_deref().map_or(UNKNOWN.into(), to_plain);
    let mib = document.buffer_bytes >> 20;
    let mut text = format!(
        "{}   CUDA {cuda}   {} copies of {mib} MiB for a number, {} and {} ms of copies before them\n",
        to_plain(&document.node),
        document.copies,
        document.warmup,
        document.warmup_ms
    );
    if !document.ranks.is_empty() {
        let mut nodes: Vec<&str> = document.ranks.iter().map(|rank| rank.node.as_str()).collect();
        nodes.dedup();
        let _ = writeln!(text, "  {} GPUs of {} nodes", document.ranks.len(), nodes.len());
    }
    text
}

fn local_gpus(document: &CopyDocument) -> Vec<ProbedGpu> {
    let own = document.ranks.iter().filter(|rank| rank.node == document.node);
    let gpu = own.map(|rank| ProbedGpu {
        index: rank.gpu,
        name: rank.name.clone(),
        bus_id: rank.bus_id.clone(),
        ..ProbedGpu::default()
    });
    gpu.collect()
}

fn cell_spread(test: &CopyTest, row: usize, col: usize) -> Option<ReadingSpread> {
    let readings = test.readings.iter();
    let values = readings.filter_map(|matrix| matrix.get(row).and_then(|it| it.get(col)).copied());
    ReadingSpread::from_readings(values.flatten())
}

fn format_spread(spread: Option<ReadingSpread>) -> String {
    spread.map_or(NOTHING.to_owned(), |spread| format_number(spread.median))
}

/// The worse value: the lowest bandwidth, or the longest time.
fn worse_value(unit: &str, spread: ReadingSpread) -> f64 {
    if unit == "us" { spread.most } else { spread.least }
}

fn worst_word(unit: &str) -> &'static str {
    if unit == "us" { "most" } else { "least" }
}

/// Tests of one row: one line per test, one column per GPU.
fn write_per_gpu(text: &mut String, cols: &[String], unit: &str, tests: &[&CopyTest]) {
    let readings = tests.iter().map(|test| test.readings.len()).max().unwrap_or(0);
    let mut header = vec![format!("{unit}, {}", median_label(readings))];
    header.extend(cols.iter().map(|col| format!("GPU {col}")));
    header.extend([worst_word(unit).to_owned(), "spread".to_owned()]);
    let rows = tests.iter().map(|test| {
        let cells: Vec<Option<ReadingSpread>> =
            (0..cols.len()).map(|col| cell_spread(test, 0, col)).collect();
        let mut row = vec![test.testcase.clone()];
        row.extend(cells.iter().map(|it| format_spread(*it)));
        let known: Vec<ReadingSpread> = cells.into_iter().flatten().collect();
        let ends = known.iter().map(|it| worse_value(unit, *it));
        let worst = if unit == "us" { ends.reduce(f64::max) } else { ends.reduce(f64::min) };
        row.push(worst.map_or(NOTHING.to_owned(), format_number));
        let spread = known.iter().map(|it| it.relative_range()).reduce(f64::max);
        // A single reading has no spread.
        let spread = spread.filter(|_| 1 < test.readings.len());
        row.push(spread.map_or(NOTHING.to_owned(), format_percent));
        row
    });
    text.push('\n');
    text.push_str(&render_table(&header, 1, rows.collect()));
}

fn median_label(readings: usize) -> String {
    match readings {
        0 => "not measured".to_owned(),
        1 => "one reading".to_owned(),
        more => format!("median of {more} readings"),
    }
}

/// A matrix: the row issues the copy.
fn write_matrix(text: &mut String, test: &CopyTest) {
    let name = to_plain(&test.testcase);
    let unit = to_plain(&test.unit);
    let _ = writeln!(
        text,
        "\n{name}, {unit}, {}; the row issues the copy",
        median_label(test.readings.len())
    );
    let mut known = Vec::new();
    let mut missing = 0usize;
    for (row, from) in test.rows.iter().enumerate() {
        for (col, to) in test.cols.iter().enumerate() {
            match cell_spread(test, row, col) {
                Some(spread) => known.push((spread, from, to)),
                // A GPU does not copy to itself here.
                None if from == to => {}
                None => missing += 1,
            }
        }
    }
    if test.cols.len() <= MOST_COLUMNS {
        let mut header = vec![String::new()];
        header.extend(test.cols.iter().cloned());
        let rows = test.rows.iter().enumerate().map(|(row, label)| {
            let cells = (0..test.cols.len()).map(|col| format_spread(cell_spread(test, row, col)));
            std::iter::once(label.clone()).chain(cells).collect()
        });
        text.push_str(&render_table(&header, 1, rows.collect()));
    }
    known.sort_by(|(a, ..), (b, ..)| {
        let order = worse_value(&test.unit, *a).total_cmp(&worse_value(&test.unit, *b));
        if test.unit == "us" { order.reverse() } else { order }
    });
    let count = if test.cols.len() <= MOST_COLUMNS { 1 } else { LEAST };
    for (spread, from, to) in known.iter().take(count) {
        let value = format_number(worse_value(&test.unit, *spread));
        let word = worst_word(&test.unit);
        let _ =
            writeln!(text, "  {word} {value} (row {}, column {})", to_plain(from), to_plain(to));
    }
    let widest =
        known.iter().max_by(|(a, ..), (b, ..)| a.relative_range().total_cmp(&b.relative_range()));
    if let Some((spread, from, to)) = widest.filter(|_| 1 < test.readings.len()) {
        let spread = format_percent(spread.relative_range());
        let _ = writeln!(
            text,
            "  spread up to {spread} (row {}, column {})",
            to_plain(from),
            to_plain(to)
        );
    }
    if 0 < missing {
        let _ = writeln!(text, "  {missing} not measured");
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe_table::fixture;
    use super::*;
    use model::copy::COPY_FORMAT;
    use model::parse_output::OutputProblemKind;
    use model::probe_problem_class::ProbeProblemClass;
    use model::probe_report::ProbeProblem;

    fn test(name: &str, unit: &str, rows: usize, readings: Vec<Vec<Vec<Option<f64>>>>) -> CopyTest {
        let labels = |count: usize| (0..count).map(|at| at.to_string()).collect();
        CopyTest {
            testcase: name.to_owned(),
            unit: unit.to_owned(),
            rows: labels(rows),
            cols: labels(2),
            readings,
        }
    }

    fn document() -> CopyDocument {
        let pair = |a: f64, b: Option<f64>| vec![vec![None, Some(a)], vec![b, None]];
        CopyDocument {
            format: COPY_FORMAT.to_owned(),
            version: "0.1.0".to_owned(),
            node: "n1".to_owned(),
            cuda: Some("13.0".to_owned()),
            buffer_bytes: 512 << 20,
            copies: 16,
            warmup: 4,
            warmup_ms: 50,
            gpus: fixture::two(),
            ranks: Vec::new(),
            tests: vec![
                test(
                    "host_to_device_memcpy_ce",
                    "GB/s",
                    1,
                    vec![vec![vec![Some(55.1), Some(55.3)]], vec![vec![Some(54.9), None]]],
                ),
                test("device_local_copy", "GB/s", 1, vec![vec![vec![Some(1890.0), Some(1891.5)]]]),
                test("host_to_device_latency_ce", "us", 1, vec![vec![vec![Some(1.9), Some(2.4)]]]),
                test(
                    "device_to_device_memcpy_read_ce",
                    "GB/s",
                    2,
                    vec![pair(391.0, Some(388.1)), pair(390.0, None), pair(389.5, None)],
                ),
                test("device_to_device_memcpy_write_ce", "GB/s", 2, vec![pair(390.0, None)]),
            ],
            around: Some(fixture::around()),
            problems: vec![
                ProbeProblem::new(
                    OutputProblemKind::Error,
                    ProbeProblemClass::Hung,
                    "the call hangs",
                ),
                ProbeProblem {
                    gpu: Some(1),
                    testcase: Some("device_local_copy".to_owned()),
                    ..ProbeProblem::new(
                        OutputProblemKind::Corrupt,
                        ProbeProblemClass::WrongData,
                        "word 7 is \u{1b}[2J0",
                    )
                },
            ],
            complete: false,
        }
    }

    #[test]
    fn a_node_is_shown_with_what_was_measured_and_what_was_not() {
        insta::assert_snapshot!(render(&document()));
    }

    #[test]
    fn a_whole_rack_is_summed_up() {
        let labels: Vec<String> = (0..72).map(|at| at.to_string()).collect();
        let row = |row: usize| (0..72).map(|col| (col != row).then_some(700.0)).collect();
        let mut matrix: Vec<Vec<Option<f64>>> = (0..72).map(row).collect();
        matrix[3][70] = Some(512.5);
        let test = CopyTest {
            testcase: "multinode_device_to_device_memcpy_read_ce".to_owned(),
            unit: "GB/s".to_owned(),
            rows: labels.clone(),
            cols: labels,
            readings: vec![matrix],
        };
        let mut out = String::new();
        write_matrix(&mut out, &test);
        assert!(out.contains("least 512.5 (row 3, column 70)"), "{out}");
        assert!(out.lines().count() < 10, "{out}");
    }

    #[test]
    fn an_empty_document_is_reported_as_empty() {
        let empty = CopyDocument {
            gpus: Vec::new(),
            tests: Vec::new(),
            around: None,
            problems: vec![ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::NoDriver,
                "no libcuda.so.1",
            )],
            ..document()
        };
        let text = render(&empty);
        assert!(text.contains("no-driver: no libcuda.so.1"), "{text}");
        assert!(text.ends_with("unknown, not slow.\n"), "{text}");
    }
}
