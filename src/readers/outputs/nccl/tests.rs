//! Complete outputs in the tool's grammar, with generated numbers and hosts.

mod failures;
mod json;
mod properties;
mod render;

use render::{NcclTestsRelease, RELEASES, RenderedNcclOutput, half};

use crate::outputs;
use crate::outputs::fixture::problem_kinds;
use model::measurement::{BufferPlacement, Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::NcclTests), "{text}");
    parsed
}

fn series(parsed: &ParseOutput, at: usize) -> &MeasurementSeries {
    match &parsed.measurements[at] {
        Measurement::Series(series) => series,
        other => panic!("no series: {other:?}"),
    }
}

fn problem(parsed: &ParseOutput, kind: OutputProblemKind) -> &OutputProblem {
    parsed.problems.iter().find(|p| p.kind == kind).unwrap_or_else(|| panic!("{parsed:?}"))
}

#[test]
fn every_release_gives_the_same_points() {
    for release in RELEASES {
        let output = RenderedNcclOutput::new(release);
        let parsed = read(&output.text());
        assert!(parsed.complete, "{release:?}: {:?}", parsed.problems);
        assert_eq!(parsed.problems, [], "{release:?}");
        let series = series(&parsed, 0);
        assert_eq!(series.testcase.as_deref(), Some("all_reduce_perf"));
        assert_eq!(series.points.len(), 8);
        let last = &series.points[7];
        assert_eq!((last.bytes, last.placement), (32768, Some(BufferPlacement::InPlace)));
        assert_eq!((last.time_us, last.algbw, last.busbw), (Some(21.5), Some(1.52), Some(2.67)));
        // The old column is a relative difference, not a count.
        let wrong = if release == NcclTestsRelease::Old { None } else { Some(0.0) };
        assert_eq!(last.wrong, wrong, "{release:?}");
        let p99 = if release == NcclTestsRelease::Iterations { Some(24.9) } else { None };
        assert_eq!(last.p99_us, p99);
        let iterations = if release == NcclTestsRelease::Bitwise { Some(20) } else { None };
        assert_eq!(last.iterations, iterations);
    }
}

#[test]
fn the_preamble_becomes_facts() {
    let parsed = read(&RenderedNcclOutput::new(NcclTestsRelease::Wrong).text());
    assert_eq!(parsed.tool_version.as_deref(), Some("2.17.5"));
    let facts = &parsed.facts;
    assert_eq!(facts.nccl.as_deref(), Some("2.27.3"));
    assert_eq!(facts.hosts, ["gpu-0", "gpu-1"]);
    assert_eq!((facts.ranks.len(), facts.devices.len()), (8, 8));
    assert_eq!((facts.ranks[5].host.as_str(), facts.ranks[5].device), ("gpu-1", 1));
    assert_eq!(facts.parameters["maxBytes"], "32768");
    assert_eq!(facts.parameters.get("testcase"), None);
}

#[test]
fn a_test_without_a_name_is_inferred_and_marked() {
    let parsed = read(&RenderedNcclOutput::new(NcclTestsRelease::Old).text());
    assert_eq!(series(&parsed, 0).testcase.as_deref(), Some("all_reduce_perf"));
    assert_eq!(parsed.facts.parameters["testcase"], "inferred");
}

#[test]
fn one_program_named_before_the_table_is_the_test_and_two_are_not() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Old);
    let small = output.text().replace("  sum", "     ").replace("  redop", "       ");
    let with = |noise: &str| {
        let parsed = read(&format!("{noise}{small}"));
        series(&parsed, 0).testcase.clone()
    };
    assert_eq!(with("$ ./build/all_gather_perf -b 4K\n").as_deref(), Some("all_gather_perf"));
    assert_eq!(with("$ ls\nall_gather_perf  sendrecv_perf\n"), None);
}

#[test]
fn a_command_names_the_table_below_it_and_no_other() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Old);
    let small = output.text().replace("  sum", "     ").replace("  redop", "       ");
    let text = format!("$ ./all_gather_perf\n{small}$ ./alltoall_perf\n{small}{small}");
    let parsed = read(&text);
    let names: Vec<_> = (0..3).map(|at| series(&parsed, at).testcase.as_deref()).collect();
    assert_eq!(names, [Some("all_gather_perf"), Some("alltoall_perf"), None]);
}

#[test]
fn the_end_of_one_test_does_not_name_the_next() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let quiet = |text: String| -> String {
        let lines = text.lines().filter(|line| !line.contains("Collective test"));
        lines.map(|line| line.replace("  sum ", " none ") + "\n").collect()
    };
    let named = quiet(output.text()) + "# Collective test concluded: gather_perf\n";
    let parsed = read(&(named + &quiet(output.text())));
    let names: Vec<_> = (0..2).map(|at| series(&parsed, at).testcase.as_deref()).collect();
    assert_eq!(names[0], Some("gather_perf"));
    assert_ne!(names[1], Some("gather_perf"));
}

#[test]
fn a_word_lost_in_a_row_moves_no_number_into_another_column() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let row = text.lines().find(|line| line.contains(" 8192 ")).expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    for lost in 5..words.len() {
        let at = row
            .match_indices(words[lost])
            .map(|(at, _)| at)
            .filter(|at| row[..*at].split_whitespace().count() == lost);
        let at = at.last().expect("the word");
        let short = format!("{}{}", &row[..at], &row[at + words[lost].len()..]);
        let parsed = read(&text.replace(row, &short));
        let whole = read(&text);
        for point in series(&parsed, 0).points.iter().filter(|p| p.bytes == 8192) {
            let same = |p: &&SeriesPoint| p.bytes == 8192 && p.placement == point.placement;
            let printed = series(&whole, 0).points.iter().find(same).expect("the point");
            assert_eq!(
                (point.time_us, point.algbw, point.busbw),
                (printed.time_us, printed.algbw, printed.busbw),
                "{short}"
            );
            assert!(point.wrong.is_none() || point.wrong == printed.wrong, "{short}");
        }
        assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated), "{short}");
    }
}

#[test]
fn a_header_whose_halves_differ_is_not_a_header() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let header = text.lines().find(|line| line.contains("size")).expect("a header");
    let short = header.replacen(" #wrong", "", 1);
    let parsed = read(&text.replace(header, &short));
    assert_eq!(series(&parsed, 0).points, series(&read(&text), 0).points);
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated]);
}

#[test]
fn a_split_size_is_not_a_smaller_size() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let parsed = read(&text.replace("  32768  ", "  3 768  "));
    assert!(series(&parsed, 0).points.iter().all(|point| point.bytes != 768));
    assert!(parsed.has_problem(OutputProblemKind::Unrecognised) && !parsed.complete);
    let parsed = read(&text.replace("  32768  ", "   3276  "));
    assert!(parsed.has_problem(OutputProblemKind::Inconsistent));
}

#[test]
fn launchers_prompts_and_fences_change_nothing() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let plain = read(&text);
    let tagged: String = text.lines().map(|l| format!("[1,0]<stdout>:{l}\n")).collect();
    let fenced = format!("$ mpirun -np 8 ./all_reduce_perf\n```\n{text}```\n");
    let quoted: String = text.lines().map(|l| format!("> {l}\n")).collect();
    for wrapped in [tagged, fenced, quoted, text.replace('\n', "\r\n")] {
        let parsed = read(&wrapped);
        assert!(parsed.complete, "{:?}", parsed.problems);
        assert_eq!(series(&parsed, 0).points, series(&plain, 0).points);
        assert_eq!(parsed.facts.ranks, plain.facts.ranks);
    }
}

#[test]
fn records_of_nccl_in_the_middle_of_a_row_do_not_cost_the_row() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let plain = read(&output.text());
    let record = "gpu-1:40:41 [2] NCCL INFO Channel 00/0 : 4[0] -> 5[1] via P2P/CUMEM\n";
    let lead = "      -1";
    let at = output.text().rfind(lead).expect("a root") + lead.len();
    let text = output.text();
    let second = at + 32;
    for cuts in [vec![at], vec![second], vec![at, second]] {
        let mut split = text.clone();
        for cut in cuts.iter().rev() {
            split.insert_str(*cut, record);
        }
        let parsed = read(&split);
        assert_eq!(parsed.problems, [], "{cuts:?}");
        assert!(parsed.complete);
        assert_eq!(series(&parsed, 0).points, series(&plain, 0).points, "{cuts:?}");
        assert_eq!(parsed.facts.transports, ["P2P"]);
    }
}

#[test]
fn pieces_that_do_not_fit_are_not_joined() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.text();
    let at = text.rfind("      -1").expect("a root") + 8;
    let split = format!("{}\n   1.00{}", &text[..at], &text[at..]);
    let parsed = read(&split);
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
    assert_eq!(series(&parsed, 0).points.len(), 6);
}

#[test]
fn a_row_with_one_half_keeps_it() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.preamble() + &output.table();
    let end = text.trim_end().len() - 32;
    let parsed = read(&format!("{}\n", &text[..end]));
    let points = &series(&parsed, 0).points;
    assert_eq!(points.len(), 7);
    assert_eq!(points[6].placement, Some(BufferPlacement::OutOfPlace));
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
}

#[test]
fn a_number_at_the_end_of_the_file_is_not_used() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.preamble() + &output.table();
    let cut = text.trim_end().len() - "  2.67       0".len() + 3;
    let parsed = read(&text[..cut]);
    assert_eq!(series(&parsed, 0).points.len(), 7);
    let text = output.text();
    let cut = text.find("Avg bus bandwidth    : ").expect("a footer") + 24;
    let parsed = read(&text[..cut]);
    assert_eq!(series(&parsed, 0).average_busbw, None);
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated]);
}

#[test]
fn a_last_row_without_a_line_end_is_whole_where_its_count_cannot_go_on() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.preamble() + &output.table();
    let parsed = read(text.trim_end());
    let points = &series(&parsed, 0).points;
    assert_eq!((points.len(), points[7].wrong), (8, Some(0.0)));
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated]);
    let parsed = read(&(text.trim_end().strip_suffix('0').expect("a count").to_owned() + "1"));
    assert_eq!(series(&parsed, 0).points[7].wrong, None);
}

#[test]
fn an_average_that_does_not_begin_the_mean_was_not_cut() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let (start, end) = text.split_once("Avg bus bandwidth    : ").expect("a footer");
    let number = end.split_whitespace().next().expect("an average");
    for (written, kind) in [
        ("1234.5", OutputProblemKind::Inconsistent),
        (&number[..number.len() - 3], OutputProblemKind::Truncated),
    ] {
        let parsed = read(&format!("{start}Avg bus bandwidth    : {written}"));
        let kept = (kind == OutputProblemKind::Inconsistent).then_some(1234.5);
        assert_eq!(series(&parsed, 0).average_busbw, kept);
        assert_eq!(problem_kinds(&parsed), [kind], "{written}");
    }
}

#[test]
fn a_missing_footer_or_row_or_device_line_is_truncated() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.text();
    let without = |part: &str| -> String {
        text.lines().filter(|l| !l.contains(part)).map(|l| format!("{l}\n")).collect()
    };
    for part in ["Out of bounds", "Avg bus", "       16384  ", "Rank  3", "#  size"] {
        let parsed = read(&without(part));
        assert!(parsed.has_problem(OutputProblemKind::Truncated), "{part}");
        assert!(
            !parsed.has_problem(OutputProblemKind::Inconsistent),
            "{part}: {:?}",
            parsed.problems
        );
        assert!(!parsed.complete, "{part}");
    }
}

#[test]
fn an_elision_is_truncated_and_the_average_is_not_recomputed() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let row = text.lines().find(|l| l.contains(" 8192 ")).expect("a row");
    for mark in ["...", "  [...]", "# ... more rows ...", "(rows omitted)"] {
        let parsed = read(&text.replace(row, mark));
        assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated], "{mark}");
        assert!(!parsed.complete);
    }
}

#[test]
fn a_row_or_footer_with_dots_for_numbers_is_an_elision() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.text();
    let dotted =
        "        8192          2048     float     sum      -1   ...  ...  ...  0  ...  ...  ...  0";
    let row = text.lines().find(|l| l.contains(" 8192 ")).expect("a row");
    let parsed = read(&text.replace(row, dotted));
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated]);
    assert_eq!(series(&parsed, 0).points.len(), 6);
    let average = format!("{:.4}", output.average());
    let parsed = read(&text.replace(&average, "..."));
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated]);
    let short = read(&text.replace("          2048  ", "        2.0e+3  "));
    assert!(short.complete, "{:?}", short.problems);
}

#[test]
fn several_runs_in_one_file_are_separate() {
    let one = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let bare = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = format!("{one}+ next\n{one}{}{}", bare.table(), bare.footer());
    let parsed = read(&text);
    let runs: Vec<u32> = parsed.measurements.iter().map(Measurement::run).collect();
    assert_eq!(runs, [0, 1, 2]);
    assert!(parsed.complete, "{:?}", parsed.problems);
    assert_eq!(parsed.facts.ranks.len(), 8);
}

#[test]
fn a_failed_run_before_a_good_one_does_not_shift_numbers() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let broken = output.preamble() + "gpu-0: Test timeout (9s) common.cu:7\n";
    let parsed = read(&(broken + &output.text()));
    assert_eq!(parsed.measurements.len(), 1);
    assert_eq!(series(&parsed, 0).run, 0);
    assert!(!parsed.complete);
}

#[test]
fn run_cycles_repeat_the_sweep_in_the_same_run() {
    let mut output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    output.rows.extend(output.rows.clone());
    let parsed = read(&output.text());
    assert_eq!((parsed.measurements.len(), series(&parsed, 0).points.len()), (1, 16));
    assert!(parsed.complete, "{:?}", parsed.problems);
}

#[test]
fn tasks_that_each_print_a_table_are_separate_runs() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let tagged: String = text
        .lines()
        .flat_map(|l| (0..2).map(move |task| format!("[1,{task}]<stdout>:{l}\n")))
        .collect();
    let parsed = read(&tagged);
    assert_eq!(parsed.measurements.len(), 2);
    assert!(parsed.complete, "{:?}", parsed.problems);
}

#[test]
fn one_rank_has_no_bus_bandwidth_and_that_is_not_a_contradiction() {
    let output = RenderedNcclOutput {
        release: NcclTestsRelease::Wrong,
        rows: vec![(1 << 25, [half(1 << 25, 25.0, 1), half(1 << 25, 0.25, 1)])],
    };
    let first_rank: String = output
        .preamble()
        .replace("minBytes 4096 maxBytes 32768", "minBytes 33554432 maxBytes 33554432")
        .lines()
        .filter(|l| !l.contains("Rank") || l.contains("Rank  0"))
        .map(|l| format!("{l}\n"))
        .collect();
    let parsed = read(&(first_rank + &output.table() + &output.footer()));
    assert_eq!(parsed.problems, []);
    assert_eq!(series(&parsed, 0).average_busbw, Some(0.0));
}

#[test]
fn early_releases_had_another_all_gather_and_rows_of_no_bytes() {
    let text = "# nThread 1 nGpus 4 minBytes 1 maxBytes 64 step: 8(factor) warmup iters: 5 iters: 20 validation: 1 \n\
        # Using devices\n\
        #   Rank  0 Pid  9 on n1 device  0 [0x1a] Made Up GPU\n\
        #   Rank  1 Pid  9 on n1 device  1 [0x1b] Made Up GPU\n\
        #   Rank  2 Pid  9 on n1 device  2 [0x1c] Made Up GPU\n\
        #   Rank  3 Pid  9 on n1 device  3 [0x1d] Made Up GPU\n\
        #       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n\
        \u{20}          0             0   float     9.00    0.00    0.00  0e+00     9.00    0.00    0.00  0e+00\n\
        \u{20}          0             0   float     9.00    0.00    0.00  0e+00     9.00    0.00    0.00  0e+00\n\
        \u{20}         64             4   float     0.01    4.80    4.80  0e+00     0.01    4.80    4.80  0e+00\n\
        # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.6 \n#\n";
    let parsed = read(text);
    assert_eq!(parsed.problems, []);
    assert_eq!(series(&parsed, 0).points.iter().filter(|p| p.bytes == 0).count(), 4);
}

#[test]
fn the_first_release_has_other_names_and_times_that_are_not_kept() {
    let text = "nThread 1 nGpus 4 minBytes 8388608 maxBytes 8388608 step: 1048576(bytes) \
                warmup iters: 5 iters: 20 validation: 1 \n\
                # NCCL Tests compiled with NCCL 2.1\n# Using devices\n\
                #   Rank  0 on      old-1 device  0 [0x05] Tesla Old\n\
                #   Rank  1 on      old-1 device  1 [0x06] Tesla Old\n\
                #   Rank  2 on      old-1 device  2 [0x07] Tesla Old\n\
                #   Rank  3 on      old-1 device  3 [0x08] Tesla Old\n\n\
                #      bytes             N    type      op     time  algbw  busbw      res     \
                time  algbw  busbw      res\n\
                     8388608       2097152   float     sum    0.800  10.49  15.73    1e-07    \
                0.810  10.36  15.53    1e-07\n \
                Out of bounds values : 0 OK\n Avg bus bandwidth    : 15.63\n\n";
    let parsed = read(text);
    let points = &series(&parsed, 0).points;
    assert_eq!((points.len(), points[0].algbw, points[1].busbw), (2, Some(10.49), Some(15.53)));
    assert!(points.iter().all(|point| point.time_us.is_none()));
    assert_eq!(series(&parsed, 0).testcase.as_deref(), Some("all_reduce_perf"));
    assert_eq!(series(&parsed, 0).average_busbw, Some(15.63));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn a_memory_limit_shortens_the_sweep() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong)
        .text()
        .replace("maxBytes 32768", "maxBytes 1048576");
    assert!(read(&text).has_problem(OutputProblemKind::Truncated));
    let reduced = "#\n# Reducing maxBytes to 40000 due to memory limitation\n#  size";
    assert_eq!(read(&text.replace("#  size", reduced)).problems, []);
}
