//! The measurements of fabricgate's NCCL probe, as tables.
//!
//! Displays numbers without their expected values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plain_text::{format_number, to_plain};
use super::probe_table;
use super::probe_table::{NOTHING, ReadingSpread, UNKNOWN, render_table};
use model::collective::{CollectiveDocument, CollectivePoint};
use model::probe_report::ProbedGpu;
use model::text::format_percent;

/// Renders the whole report.
pub fn render(document: &CollectiveDocument) -> String {
    let mut text = render_head(document);
    let own = document.ranks.iter().filter(|rank| rank.node == document.node);
    let gpus: Vec<ProbedGpu> = own
        .map(|rank| ProbedGpu {
            index: rank.gpu,
            name: rank.name.clone(),
            bus_id: rank.bus_id.clone(),
            ..ProbedGpu::default()
        })
        .collect();
    if !gpus.is_empty() {
        text.push('\n');
        text.push_str(&probe_table::render_gpus(&gpus, document.around.as_ref()));
    }
    let mut names: Vec<&str> = Vec::new();
    for test in &document.tests {
        if !names.contains(&test.testcase.as_str()) {
            names.push(&test.testcase);
        }
    }
    for name in names {
        write_series(&mut text, document, name);
    }
    probe_table::write_telemetry(&mut text, document.around.as_ref());
    probe_table::write_problems(&mut text, &document.problems);
    probe_table::write_conclusion(&mut text, document.complete);
    text
}

fn render_head(document: &CollectiveDocument) -> String {
    let word =
        |text: &Option<String>| text.as_deref().map_or(UNKNOWN.into(), to_plain).into_owned();
    let mut nodes: Vec<&str> = document.ranks.iter().map(|rank| rank.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut text = format!(
        "{}   CUDA {}   NCCL {} ({})\n",
        to_plain(&document.node),
        word(&document.cuda),
        word(&document.nccl),
        word(&document.library)
    );
    if !document.ranks.is_empty() {
        let (ranks, nodes) = (document.ranks.len(), nodes.len());
        let _ = writeln!(text, "  ranks       {ranks} on {nodes} node{}", plural_suffix(nodes));
    }
    if !document.transports.is_empty() {
        let transports: Vec<_> = document.transports.iter().map(|it| to_plain(it)).collect();
        let _ = writeln!(text, "  NCCL uses   {}", transports.join(", "));
    }
    if let Some(asserted) = &document.asserted {
        let _ = writeln!(text, "  requested   {}", to_plain(asserted));
    }
    if !document.environment.is_empty() {
        let set = document.environment.iter();
        let set: Vec<String> =
            set.map(|(name, value)| format!("{}={}", to_plain(name), to_plain(value))).collect();
        let _ = writeln!(text, "  set         {}", set.join(" "));
    }
    text
}

fn plural_suffix(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A test: one line per size.
fn write_series(text: &mut String, document: &CollectiveDocument, name: &str) {
    let tests: Vec<_> = document.tests.iter().filter(|test| test.testcase == name).collect();
    let mut sizes: BTreeMap<u64, Vec<&CollectivePoint>> = BTreeMap::new();
    for point in tests.iter().flat_map(|test| &test.points) {
        sizes.entry(point.bytes).or_default().push(point);
    }
    let algorithm = document.algorithms.iter().find(|(test, _)| test == name);
    let algorithm = algorithm.map(|(_, it)| format!(", algorithm {}", to_plain(it)));
    let datatype = tests.first().map_or(UNKNOWN, |test| test.datatype.as_str());
    let readings = match tests.len() {
        1 => "one reading".to_owned(),
        more => format!("median of {more} readings"),
    };
    let _ = writeln!(
        text,
        "\n{}, {}, {readings}{}",
        to_plain(name),
        to_plain(datatype),
        algorithm.unwrap_or_default()
    );
    let header =
        ["size", "us", "slowest us", "algbw GB/s", "busbw GB/s", "least busbw", "spread", "wrong"];
    let rows = sizes.iter().map(|(bytes, points)| {
        let of = |value: fn(&CollectivePoint) -> f64| {
            ReadingSpread::from_readings(points.iter().map(|point| value(point)))
        };
        let shown = |spread: Option<ReadingSpread>| {
            spread.map_or(NOTHING.into(), |it| format_number(it.median))
        };
        let busbw = of(|point| point.busbw);
        let wrong = points.iter().filter_map(|point| point.wrong).reduce(u64::saturating_add);
        vec![
            format_size(*bytes),
            shown(of(|point| point.time_us)),
            shown(of(|point| point.slowest_us)),
            shown(of(|point| point.algbw)),
            shown(busbw),
            busbw.map_or(NOTHING.to_owned(), |it| format_number(it.least)),
            busbw.map_or(NOTHING.to_owned(), |it| format_percent(it.relative_range())),
            wrong.map_or("not checked".to_owned(), |wrong| wrong.to_string()),
        ]
    });
    text.push_str(&render_table(&header.map(str::to_owned), 0, rows.collect()));
}

/// Bytes with nccl-tests' suffixes, if they are whole.
fn format_size(bytes: u64) -> String {
    for (shift, suffix) in [(30, "G"), (20, "M"), (10, "K")] {
        let unit = 1u64 << shift;
        if unit <= bytes && bytes.is_multiple_of(unit) {
            return format!("{}{suffix}", bytes / unit);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::probe_table::fixture;
    use super::*;
    use model::collective::{COLLECTIVE_FORMAT, CollectiveTest};
    use model::parse_output::OutputProblemKind;
    use model::probe_problem_class::ProbeProblemClass;
    use model::probe_report::{ProbeProblem, ProbedRank};

    fn point(bytes: u64, time_us: f64, wrong: Option<u64>) -> CollectivePoint {
        let algbw = 1000.0 / time_us;
        let (slowest_us, busbw) = (time_us + 1.0, algbw * 1.75);
        let checked = 100;
        CollectivePoint { bytes, iterations: 20, time_us, slowest_us, algbw, busbw, wrong, checked }
    }

    fn document() -> CollectiveDocument {
        let rank = |rank: u32| ProbedRank {
            rank,
            node: "n1".to_owned(),
            gpu: rank,
            bus_id: Some(format!("0000:{rank}b:00.0")),
            name: Some("NVIDIA H200".to_owned()),
        };
        let test = |reading: u32, time: f64| CollectiveTest {
            testcase: "all_reduce_perf".to_owned(),
            reading,
            datatype: "float".to_owned(),
            points: vec![point(8 << 20, time, Some(0)), point(1_000_000, time, None)],
        };
        CollectiveDocument {
            format: COLLECTIVE_FORMAT.to_owned(),
            version: "0.1.0".to_owned(),
            node: "n1".to_owned(),
            cuda: Some("13.0".to_owned()),
            nccl: Some("2.28.3".to_owned()),
            library: Some("/usr/lib/libnccl.so.2".to_owned()),
            ranks: vec![rank(0), rank(1)],
            transports: vec!["NVLS".to_owned(), "P2P/CUMEM".to_owned()],
            algorithms: vec![("all_reduce_perf".to_owned(), "NVLS".to_owned())],
            asserted: Some("nvls".to_owned()),
            environment: BTreeMap::from([("NCCL_NVLS_ENABLE".to_owned(), "1".to_owned())]),
            tests: vec![test(0, 10.0), test(1, 12.5), test(2, 10.0)],
            around: Some(fixture::around()),
            problems: vec![ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::TimeOut,
                "rank 1 never came",
            )],
            complete: false,
        }
    }

    #[test]
    fn a_node_is_shown_with_its_sizes_and_paths() {
        insta::assert_snapshot!(render(&document()));
    }

    #[test]
    fn sizes_are_whole_or_bytes() {
        assert_eq!(format_size(8 << 30), "8G");
        assert_eq!(format_size(1536 << 10), "1536K");
        assert_eq!(format_size(1_000_001), "1000001");
    }
}
