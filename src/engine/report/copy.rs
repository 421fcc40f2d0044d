//! What our own copy-engine probe measured, as tables for people.
//!
//! Shows numbers; what they should be is not known here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plain::number;
use super::plain::plain;
use super::probed;
use super::probed::NOTHING;
use super::probed::Spread;
use super::probed::UNKNOWN;
use super::probed::table;
use model::copy::CopyDocument;
use model::copy::CopyTest;
use model::probed::ProbedGpu;
use model::text::percent;

/// More columns than this are summed up: no terminal shows them.
const MOST_COLUMNS: usize = 18;

/// How many of the least numbers of a large matrix are named.
const LEAST: usize = 5;

/// The whole account.
pub fn text(document: &CopyDocument) -> String {
    let mut text = head(document);
    let listed = if document.gpus.is_empty() { own_ranks(document) } else { document.gpus.clone() };
    if !listed.is_empty() {
        text.push('\n');
        text.push_str(&probed::gpus(&listed, document.around.as_ref()));
    }
    let (rows, matrices): (Vec<&CopyTest>, Vec<&CopyTest>) =
        document.tests.iter().partition(|test| test.rows.len() <= 1);
    let mut groups: BTreeMap<(&[String], &str), Vec<&CopyTest>> = BTreeMap::new();
    for test in rows {
        groups.entry((&test.cols, &test.unit)).or_default().push(test);
    }
    for ((cols, unit), tests) in groups {
        per_gpu(&mut text, cols, unit, &tests);
    }
    for test in matrices {
        matrix(&mut text, test);
    }
    probed::beside(&mut text, document.around.as_ref());
    probed::problems(&mut text, &document.problems);
    probed::conclusion(&mut text, document.complete);
    text
}

fn head(document: &CopyDocument) -> String {
    let cuda = document.cuda.as_deref().map_or(UNKNOWN.into(), plain);
    let mib = document.buffer_bytes >> 20;
    let mut text = format!(
        "{}   CUDA {cuda}   {} copies of {mib} MiB for a number, {} before them\n",
        plain(&document.node),
        document.copies,
        document.warmup
    );
    if !document.ranks.is_empty() {
        let mut nodes: Vec<&str> = document.ranks.iter().map(|rank| rank.node.as_str()).collect();
        nodes.dedup();
        let _ = writeln!(text, "  {} GPUs of {} nodes", document.ranks.len(), nodes.len());
    }
    text
}

fn own_ranks(document: &CopyDocument) -> Vec<ProbedGpu> {
    let own = document.ranks.iter().filter(|rank| rank.node == document.node);
    let gpu = own.map(|rank| ProbedGpu {
        index: rank.gpu,
        name: rank.name.clone(),
        bus_id: rank.bus_id.clone(),
        ..ProbedGpu::default()
    });
    gpu.collect()
}

/// The readings of a cell.
fn cell(test: &CopyTest, row: usize, col: usize) -> Option<Spread> {
    let readings = test.readings.iter();
    let values = readings.filter_map(|matrix| matrix.get(row).and_then(|it| it.get(col)).copied());
    Spread::of(values.flatten())
}

fn shown(spread: Option<Spread>) -> String {
    spread.map_or(NOTHING.to_owned(), |spread| number(spread.median))
}

/// Which is worse: bandwidth that is small, time that is long.
fn worse(unit: &str, spread: Spread) -> f64 {
    if unit == "us" { spread.most } else { spread.least }
}

fn worst_word(unit: &str) -> &'static str {
    if unit == "us" { "most" } else { "least" }
}

/// Tests of one row: a line per test, a column per GPU.
fn per_gpu(text: &mut String, cols: &[String], unit: &str, tests: &[&CopyTest]) {
    let readings = tests.iter().map(|test| test.readings.len()).max().unwrap_or(0);
    let mut header = vec![format!("{unit}, {}", middle(readings))];
    header.extend(cols.iter().map(|col| format!("GPU {col}")));
    header.extend([worst_word(unit).to_owned(), "spread".to_owned()]);
    let rows = tests.iter().map(|test| {
        let cells: Vec<Option<Spread>> = (0..cols.len()).map(|col| cell(test, 0, col)).collect();
        let mut row = vec![test.testcase.clone()];
        row.extend(cells.iter().map(|it| shown(*it)));
        let known: Vec<Spread> = cells.into_iter().flatten().collect();
        let ends = known.iter().map(|it| worse(unit, *it));
        let worst = if unit == "us" { ends.reduce(f64::max) } else { ends.reduce(f64::min) };
        row.push(worst.map_or(NOTHING.to_owned(), number));
        let spread = known.iter().map(|it| it.relative()).reduce(f64::max);
        // One reading says nothing of how far apart readings are.
        let spread = spread.filter(|_| 1 < test.readings.len());
        row.push(spread.map_or(NOTHING.to_owned(), percent));
        row
    });
    text.push('\n');
    text.push_str(&table(&header, 1, rows.collect()));
}

fn middle(readings: usize) -> String {
    match readings {
        0 => "not measured".to_owned(),
        1 => "one reading".to_owned(),
        more => format!("median of {more} readings"),
    }
}

/// A matrix: the row issues the copy.
fn matrix(text: &mut String, test: &CopyTest) {
    let name = plain(&test.testcase);
    let unit = plain(&test.unit);
    let _ = writeln!(
        text,
        "\n{name}, {unit}, {}; the row issues the copy",
        middle(test.readings.len())
    );
    let mut known = Vec::new();
    let mut missing = 0usize;
    for (row, from) in test.rows.iter().enumerate() {
        for (col, to) in test.cols.iter().enumerate() {
            match cell(test, row, col) {
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
            let cells = (0..test.cols.len()).map(|col| shown(cell(test, row, col)));
            std::iter::once(label.clone()).chain(cells).collect()
        });
        text.push_str(&table(&header, 1, rows.collect()));
    }
    known.sort_by(|(a, ..), (b, ..)| {
        let order = worse(&test.unit, *a).total_cmp(&worse(&test.unit, *b));
        if test.unit == "us" { order.reverse() } else { order }
    });
    let count = if test.cols.len() <= MOST_COLUMNS { 1 } else { LEAST };
    for (spread, from, to) in known.iter().take(count) {
        let value = number(worse(&test.unit, *spread));
        let word = worst_word(&test.unit);
        let _ = writeln!(text, "  {word} {value} (row {}, column {})", plain(from), plain(to));
    }
    let widest = known.iter().max_by(|(a, ..), (b, ..)| a.relative().total_cmp(&b.relative()));
    if let Some((spread, from, to)) = widest.filter(|_| 1 < test.readings.len()) {
        let spread = percent(spread.relative());
        let _ =
            writeln!(text, "  spread up to {spread} (row {}, column {})", plain(from), plain(to));
    }
    if 0 < missing {
        let _ = writeln!(text, "  {missing} not measured");
    }
}

#[cfg(test)]
mod tests {
    use super::super::probed::fixture;
    use super::*;
    use model::copy::COPY_FORMAT;
    use model::parsed::ProblemKind;
    use model::probed::ProbeProblem;

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
            warmup: 2,
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
                ProbeProblem::new(ProblemKind::Error, "hung", "the call hangs"),
                ProbeProblem {
                    gpu: Some(1),
                    testcase: Some("device_local_copy".to_owned()),
                    ..ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", "word 7 is \u{1b}[2J0")
                },
            ],
            complete: false,
        }
    }

    #[test]
    fn a_node_is_shown_with_what_was_measured_and_what_was_not() {
        insta::assert_snapshot!(text(&document()));
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
        super::matrix(&mut out, &test);
        assert!(out.contains("least 512.5 (row 3, column 70)"), "{out}");
        assert!(out.lines().count() < 10, "{out}");
    }

    #[test]
    fn nothing_at_all_is_said_as_that() {
        let empty = CopyDocument {
            gpus: Vec::new(),
            tests: Vec::new(),
            around: None,
            problems: vec![ProbeProblem::new(ProblemKind::Error, "no-driver", "no libcuda.so.1")],
            ..document()
        };
        let text = text(&empty);
        assert!(text.contains("no-driver: no libcuda.so.1"), "{text}");
        assert!(text.ends_with("unknown, not slow.\n"), "{text}");
    }
}
