//! Whole outputs in the tool's grammar, with numbers and hosts of our own.

use proptest::prelude::*;

use crate::measure;
use crate::model::measurement::Measurement;
use crate::model::measurement::Placement;
use crate::model::measurement::Point;
use crate::model::measurement::Series;
use crate::model::parsed::Parsed;
use crate::model::parsed::Problem;
use crate::model::parsed::ProblemKind;
use crate::model::parsed::Tool;

fn read(text: &str) -> Parsed {
    let parsed = measure::read(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::NcclTests), "{text}");
    parsed
}

fn series(parsed: &Parsed, at: usize) -> &Series {
    match &parsed.measurements[at] {
        Measurement::Series(series) => series,
        other => panic!("no series: {other:?}"),
    }
}

fn kinds(parsed: &Parsed) -> Vec<ProblemKind> {
    parsed.problems.iter().map(|p| p.kind).collect()
}

fn problem(parsed: &Parsed, kind: ProblemKind) -> &Problem {
    parsed.problems.iter().find(|p| p.kind == kind).unwrap_or_else(|| panic!("{parsed:?}"))
}

/// The columns of one release.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Release {
    /// 2.0 to 2.11: `error`, columns as the test needs them.
    Old,
    /// 2.13 to 2.16.
    Wrong,
    /// 2.19 with -I 1 and -S 1.
    Iterations,
    /// With a bitwise check, and DCGM's last column.
    Bitwise,
}

const RELEASES: [Release; 4] =
    [Release::Old, Release::Wrong, Release::Iterations, Release::Bitwise];

/// One half as a release would print it.
#[derive(Clone, Debug)]
struct HalfRow {
    time: f64,
    algbw: f64,
    busbw: f64,
    wrong: Option<u32>,
}

/// The half of a row of `bytes` that took `time` on `ranks` ranks.
fn half(bytes: u64, time: f64, ranks: u32) -> HalfRow {
    let algbw = bytes as f64 / time / 1e3;
    let busbw = algbw * 2.0 * f64::from(ranks - 1) / f64::from(ranks);
    HalfRow { time, algbw, busbw, wrong: Some(0) }
}

fn fit(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:width$.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    format!("{value:.0e}").replace('e', "e+0")
}

fn render_half(half: &HalfRow, release: Release) -> String {
    let check = match (half.wrong, release) {
        (None, _) => "N/A".to_owned(),
        (Some(_), Release::Old) => "3e-07".to_owned(),
        (Some(wrong), _) => wrong.to_string(),
    };
    let (time, algbw, busbw) = (fit(half.time, 7), fit(half.algbw, 6), fit(half.busbw, 6));
    let mut text = format!("  {time}  {algbw}  {busbw}  {check:>6}");
    match release {
        Release::Iterations => text.push_str("    18.10    25.00    24.90     3.10"),
        Release::Bitwise => text.push_str("        0"),
        _ => {}
    }
    text
}

fn header(release: Release) -> String {
    let half = match release {
        Release::Old => "time   algbw   busbw  error",
        Release::Wrong => "time   algbw   busbw #wrong",
        Release::Iterations => "time  algbw  busbw  #wrong  i_min  i_max  i_p99  i_cv%",
        Release::Bitwise => "time  algbw  busbw  #wrong  #bitdiff",
    };
    let (lead, trail) = match release {
        Release::Old => ("size  count  type  redop", ""),
        Release::Wrong => ("size  count  type  redop  root", ""),
        Release::Iterations => ("size  count  type  redop  root", " timestamp"),
        Release::Bitwise => ("size  count  type  redop  root", " #iters"),
    };
    format!("#  {lead}  {half}  {half}{trail}\n#  (B)  (elements)  (us)  (GB/s)\n")
}

fn render_row(bytes: u64, halves: &[HalfRow; 2], release: Release) -> String {
    let root = if release == Release::Old { "" } else { "      -1" };
    let lead = format!("{bytes:12}  {:12}  {:>8}  {:>6}{root}", bytes / 4, "float", "sum");
    let trail = match release {
        Release::Iterations => "  2026-01-02 03:04:05",
        Release::Bitwise => "  20",
        _ => "",
    };
    let [out, within] = halves;
    format!("{lead}{}{}{trail}\n", render_half(out, release), render_half(within, release))
}

/// A whole run of all_reduce_perf on eight GPUs of two hosts.
struct Output {
    release: Release,
    rows: Vec<(u64, [HalfRow; 2])>,
}

impl Output {
    fn new(release: Release) -> Self {
        let sizes = [4096u64, 8192, 16384, 32768];
        let row =
            |bytes: u64| (bytes, [half(bytes, 20.0 + bytes as f64 / 3e3, 8), half(bytes, 21.5, 8)]);
        Self { release, rows: sizes.into_iter().map(row).collect() }
    }

    fn preamble(&self) -> String {
        let mut text = String::new();
        if self.release != Release::Old {
            text.push_str("# nccl-tests version 2.17.5 nccl-headers=22703 nccl-library=22703\n");
            text.push_str("# Collective test starting: all_reduce_perf\n");
        }
        text.push_str(
            "# nThread 1 nGpus 1 minBytes 4096 maxBytes 32768 step: 2(factor) warmup iters: 5 \
             iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n",
        );
        for rank in 0..8 {
            let (host, device) = (format!("gpu-{}", rank / 4), rank % 4);
            let group = if self.release == Release::Old { "" } else { " Group  0" };
            text.push_str(&format!(
                "#  Rank {rank:2}{group} Pid   4{rank} on {host:>10} device {device:2} \
                 [0000:{device}b:00] Made Up GPU\n"
            ));
        }
        text + "#\n"
    }

    fn table(&self) -> String {
        let rows = self.rows.iter().map(|(bytes, halves)| render_row(*bytes, halves, self.release));
        header(self.release) + &rows.collect::<String>()
    }

    fn average(&self) -> f64 {
        let halves: Vec<f64> = self.rows.iter().flat_map(|r| &r.1).map(|h| h.busbw).collect();
        halves.iter().sum::<f64>() / halves.len() as f64
    }

    fn footer(&self) -> String {
        let average = format!("{:.4}", self.average());
        format!("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {average} \n#\n")
    }

    fn text(&self) -> String {
        self.preamble() + &self.table() + &self.footer()
    }
}

#[test]
fn every_release_gives_the_same_points() {
    for release in RELEASES {
        let output = Output::new(release);
        let parsed = read(&output.text());
        assert!(parsed.complete, "{release:?}: {:?}", parsed.problems);
        assert_eq!(parsed.problems, [], "{release:?}");
        let series = series(&parsed, 0);
        assert_eq!(series.testcase.as_deref(), Some("all_reduce_perf"));
        assert_eq!(series.points.len(), 8);
        let last = &series.points[7];
        assert_eq!((last.bytes, last.placement), (32768, Some(Placement::InPlace)));
        assert_eq!((last.time_us, last.algbw, last.busbw), (Some(21.5), Some(1.52), Some(2.67)));
        // The old column is a relative difference, which is no count.
        let wrong = if release == Release::Old { None } else { Some(0.0) };
        assert_eq!(last.wrong, wrong, "{release:?}");
        let p99 = if release == Release::Iterations { Some(24.9) } else { None };
        assert_eq!(last.p99_us, p99);
        let iterations = if release == Release::Bitwise { Some(20) } else { None };
        assert_eq!(last.iterations, iterations);
    }
}

#[test]
fn the_preamble_becomes_facts() {
    let parsed = read(&Output::new(Release::Wrong).text());
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
fn a_test_without_a_name_is_inferred_and_says_so() {
    let parsed = read(&Output::new(Release::Old).text());
    assert_eq!(series(&parsed, 0).testcase.as_deref(), Some("all_reduce_perf"));
    assert_eq!(parsed.facts.parameters["testcase"], "inferred");
}

#[test]
fn one_program_named_before_the_table_is_the_test_and_two_are_not() {
    let output = Output::new(Release::Old);
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
    let output = Output::new(Release::Old);
    let small = output.text().replace("  sum", "     ").replace("  redop", "       ");
    let text = format!("$ ./all_gather_perf\n{small}$ ./alltoall_perf\n{small}{small}");
    let parsed = read(&text);
    let names: Vec<_> = (0..3).map(|at| series(&parsed, at).testcase.as_deref()).collect();
    assert_eq!(names, [Some("all_gather_perf"), Some("alltoall_perf"), None]);
}

#[test]
fn the_end_of_one_test_does_not_name_the_next() {
    let output = Output::new(Release::Wrong);
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
    let text = Output::new(Release::Wrong).text();
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
            let same = |p: &&Point| p.bytes == 8192 && p.placement == point.placement;
            let printed = series(&whole, 0).points.iter().find(same).expect("the point");
            assert_eq!(
                (point.time_us, point.algbw, point.busbw),
                (printed.time_us, printed.algbw, printed.busbw),
                "{short}"
            );
            assert!(point.wrong.is_none() || point.wrong == printed.wrong, "{short}");
        }
        assert!(!parsed.complete && parsed.has(ProblemKind::Truncated), "{short}");
    }
}

#[test]
fn a_header_whose_halves_differ_is_no_header() {
    let text = Output::new(Release::Wrong).text();
    let header = text.lines().find(|line| line.contains("size")).expect("a header");
    let short = header.replacen(" #wrong", "", 1);
    let parsed = read(&text.replace(header, &short));
    assert_eq!(series(&parsed, 0).points, series(&read(&text), 0).points);
    assert_eq!(kinds(&parsed), [ProblemKind::Truncated]);
}

#[test]
fn a_size_that_fell_apart_is_no_smaller_size() {
    let text = Output::new(Release::Wrong).text();
    let parsed = read(&text.replace("  32768  ", "  3 768  "));
    assert!(series(&parsed, 0).points.iter().all(|point| point.bytes != 768));
    assert!(parsed.has(ProblemKind::Unrecognised) && !parsed.complete);
    let parsed = read(&text.replace("  32768  ", "   3276  "));
    assert!(parsed.has(ProblemKind::Inconsistent));
}

#[test]
fn launchers_prompts_and_fences_change_nothing() {
    let text = Output::new(Release::Wrong).text();
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
    let output = Output::new(Release::Wrong);
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
    let output = Output::new(Release::Wrong);
    let text = output.text();
    let at = text.rfind("      -1").expect("a root") + 8;
    let split = format!("{}\n   1.00{}", &text[..at], &text[at..]);
    let parsed = read(&split);
    assert!(!parsed.complete && parsed.has(ProblemKind::Truncated));
    assert_eq!(series(&parsed, 0).points.len(), 6);
}

#[test]
fn a_row_with_one_half_keeps_it() {
    let output = Output::new(Release::Wrong);
    let text = output.preamble() + &output.table();
    let end = text.trim_end().len() - 32;
    let parsed = read(&format!("{}\n", &text[..end]));
    let points = &series(&parsed, 0).points;
    assert_eq!(points.len(), 7);
    assert_eq!(points[6].placement, Some(Placement::OutOfPlace));
    assert!(!parsed.complete && parsed.has(ProblemKind::Truncated));
}

#[test]
fn a_number_the_file_ends_on_is_not_believed() {
    let output = Output::new(Release::Wrong);
    let text = output.preamble() + &output.table();
    let cut = text.trim_end().len() - "  2.67       0".len() + 3;
    let parsed = read(&text[..cut]);
    assert_eq!(series(&parsed, 0).points.len(), 7);
    let text = output.text();
    let cut = text.find("Avg bus bandwidth    : ").expect("a footer") + 24;
    let parsed = read(&text[..cut]);
    assert_eq!(series(&parsed, 0).average_busbw, None);
    assert_eq!(kinds(&parsed), [ProblemKind::Truncated]);
}

#[test]
fn a_last_row_without_a_line_end_is_whole_where_its_count_cannot_go_on() {
    let output = Output::new(Release::Wrong);
    let text = output.preamble() + &output.table();
    let parsed = read(text.trim_end());
    let points = &series(&parsed, 0).points;
    assert_eq!((points.len(), points[7].wrong), (8, Some(0.0)));
    assert_eq!(kinds(&parsed), [ProblemKind::Truncated]);
    let parsed = read(&(text.trim_end().strip_suffix('0').expect("a count").to_owned() + "1"));
    assert_eq!(series(&parsed, 0).points[7].wrong, None);
}

#[test]
fn an_average_that_does_not_begin_the_mean_was_not_cut() {
    let text = Output::new(Release::Wrong).text();
    let (start, end) = text.split_once("Avg bus bandwidth    : ").expect("a footer");
    let number = end.split_whitespace().next().expect("an average");
    for (written, kind) in [
        ("1234.5", ProblemKind::Inconsistent),
        (&number[..number.len() - 3], ProblemKind::Truncated),
    ] {
        let parsed = read(&format!("{start}Avg bus bandwidth    : {written}"));
        let kept = (kind == ProblemKind::Inconsistent).then_some(1234.5);
        assert_eq!(series(&parsed, 0).average_busbw, kept);
        assert_eq!(kinds(&parsed), [kind], "{written}");
    }
}

#[test]
fn a_missing_footer_or_row_or_device_line_is_truncated() {
    let output = Output::new(Release::Wrong);
    let text = output.text();
    let without = |part: &str| -> String {
        text.lines().filter(|l| !l.contains(part)).map(|l| format!("{l}\n")).collect()
    };
    for part in ["Out of bounds", "Avg bus", "       16384  ", "Rank  3", "#  size"] {
        let parsed = read(&without(part));
        assert!(parsed.has(ProblemKind::Truncated), "{part}");
        assert!(!parsed.has(ProblemKind::Inconsistent), "{part}: {:?}", parsed.problems);
        assert!(!parsed.complete, "{part}");
    }
}

#[test]
fn an_elision_is_truncated_and_the_average_is_not_recomputed() {
    let text = Output::new(Release::Wrong).text();
    let row = text.lines().find(|l| l.contains(" 8192 ")).expect("a row");
    for mark in ["...", "  [...]", "# ... more rows ...", "(rows omitted)"] {
        let parsed = read(&text.replace(row, mark));
        assert_eq!(kinds(&parsed), [ProblemKind::Truncated], "{mark}");
        assert!(!parsed.complete);
    }
}

#[test]
fn a_row_or_footer_with_dots_for_numbers_is_an_elision() {
    let output = Output::new(Release::Wrong);
    let text = output.text();
    let dotted =
        "        8192          2048     float     sum      -1   ...  ...  ...  0  ...  ...  ...  0";
    let row = text.lines().find(|l| l.contains(" 8192 ")).expect("a row");
    let parsed = read(&text.replace(row, dotted));
    assert_eq!(kinds(&parsed), [ProblemKind::Truncated]);
    assert_eq!(series(&parsed, 0).points.len(), 6);
    let average = format!("{:.4}", output.average());
    let parsed = read(&text.replace(&average, "..."));
    assert_eq!(kinds(&parsed), [ProblemKind::Truncated]);
    let short = read(&text.replace("          2048  ", "        2.0e+3  "));
    assert!(short.complete, "{:?}", short.problems);
}

#[test]
fn several_runs_in_one_file_are_told_apart() {
    let one = Output::new(Release::Wrong).text();
    let bare = Output::new(Release::Wrong);
    let text = format!("{one}+ next\n{one}{}{}", bare.table(), bare.footer());
    let parsed = read(&text);
    let runs: Vec<u32> = parsed.measurements.iter().map(Measurement::run).collect();
    assert_eq!(runs, [0, 1, 2]);
    assert!(parsed.complete, "{:?}", parsed.problems);
    assert_eq!(parsed.facts.ranks.len(), 8);
}

#[test]
fn a_failed_run_before_a_good_one_does_not_shift_numbers() {
    let output = Output::new(Release::Wrong);
    let broken = output.preamble() + "gpu-0: Test timeout (9s) common.cu:7\n";
    let parsed = read(&(broken + &output.text()));
    assert_eq!(parsed.measurements.len(), 1);
    assert_eq!(series(&parsed, 0).run, 0);
    assert!(!parsed.complete);
}

#[test]
fn run_cycles_repeat_the_sweep_in_the_same_run() {
    let mut output = Output::new(Release::Wrong);
    output.rows.extend(output.rows.clone());
    let parsed = read(&output.text());
    assert_eq!((parsed.measurements.len(), series(&parsed, 0).points.len()), (1, 16));
    assert!(parsed.complete, "{:?}", parsed.problems);
}

#[test]
fn tasks_that_each_print_a_table_are_runs_of_their_own() {
    let text = Output::new(Release::Wrong).text();
    let tagged: String = text
        .lines()
        .flat_map(|l| (0..2).map(move |task| format!("[1,{task}]<stdout>:{l}\n")))
        .collect();
    let parsed = read(&tagged);
    assert_eq!(parsed.measurements.len(), 2);
    assert!(parsed.complete, "{:?}", parsed.problems);
}

#[test]
fn wrong_elements_and_the_tools_own_verdict_are_corrupt() {
    let mut output = Output::new(Release::Wrong);
    output.rows[2].1[1].wrong = Some(12);
    let text = output.text().replace("values : 0 OK", "values : 3 FAILED")
        + " .. gpu-0 pid 40: Test failure common.cu:9\n";
    let parsed = read(&text);
    assert_eq!(kinds(&parsed), [ProblemKind::Corrupt, ProblemKind::Corrupt]);
    assert_eq!(series(&parsed, 0).points[5].wrong, Some(12.0));
    assert!(parsed.complete && !parsed.is_sound());
    let old = Output::new(Release::Old).text().replace("values : 0 OK", "values : 8 FAILED");
    assert_eq!(kinds(&read(&old)), [ProblemKind::Corrupt]);
}

#[test]
fn bitwise_mismatches_are_corrupt_when_the_tool_says_failed() {
    let line = |verdict: &str| format!("# Bitwise mismatches   : {verdict}\n# Avg");
    let text = Output::new(Release::Bitwise).text();
    assert_eq!(kinds(&read(&text.replace("# Avg", &line("0 OK")))), []);
    let failed = read(&text.replace("# Avg", &line("4 FAILED")));
    assert_eq!(kinds(&failed), [ProblemKind::Corrupt]);
}

#[test]
fn an_average_below_the_sites_limit_is_an_error_and_not_corrupt() {
    let text = Output::new(Release::Wrong).text();
    let at = text.find(" \n#\n").filter(|_| text.ends_with(" \n#\n")).expect("an open verdict");
    assert!(text[..at].contains("Avg"));
    let failed = format!("{} FAILED\n .. gpu-0 pid 40: Test failure common.cu:9\n", &text[..at]);
    let parsed = read(&failed);
    assert_eq!(kinds(&parsed), [ProblemKind::Error]);
    assert!(parsed.problems[0].detail.contains("NCCL_TESTS_MIN_BW"));
    assert!(series(&parsed, 0).average_busbw.is_some());
}

#[test]
fn unchecked_data_is_unverified_once_and_named() {
    let mut output = Output::new(Release::Wrong);
    for (_, halves) in &mut output.rows {
        halves.iter_mut().for_each(|half| half.wrong = None);
    }
    let parsed = read(&output.text().replace("validation: 1", "validation: 0"));
    assert_eq!(kinds(&parsed), [ProblemKind::Unverified]);
    assert_eq!(parsed.problems[0].testcase.as_deref(), Some("all_reduce_perf"));
    assert!(series(&parsed, 0).points.iter().all(|p| p.wrong.is_none()));
    assert!(parsed.is_sound());
}

#[test]
fn in_place_without_a_check_is_no_gap_where_the_test_has_none() {
    let mut output = Output::new(Release::Wrong);
    for (_, halves) in &mut output.rows {
        for half in halves.iter_mut() {
            half.busbw = half.algbw * 0.875;
        }
        halves[1].wrong = None;
    }
    let alltoall = output.text().replace("all_reduce_perf", "alltoall_perf");
    let parsed = read(&alltoall);
    assert_eq!(kinds(&parsed), []);
    let gather = alltoall.replace("alltoall_perf", "all_gather_perf");
    assert_eq!(kinds(&read(&gather)), [ProblemKind::Unverified]);
}

#[test]
fn a_cuda_failure_in_the_middle_of_a_row_names_its_host() {
    let output = Output::new(Release::Wrong);
    let text = output.preamble() + &output.table();
    let at = text.rfind("      -1").expect("a root") + 8;
    let broken = format!(
        "{}gpu-1: Test CUDA failure common.cu:303 'uncorrectable NVLink error detected during \
         the execution'\n .. gpu-1 pid 44: Test failure common.cu:480\n\
         gpu-1:44:45 [2] transport.cc:11 NCCL WARN link went away\n\
         srun: error: gpu-1: task 6: Exited with exit code 2\n",
        &text[..at]
    );
    let parsed = read(&broken);
    let errors: Vec<_> = parsed.problems.iter().filter(|p| p.kind == ProblemKind::Error).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors.iter().all(|p| p.host.as_deref() == Some("gpu-1")));
    assert_eq!((errors[0].gpu, errors[2].rank), (Some(2), Some(6)));
    assert_eq!(errors[1].code.as_deref(), Some("cudaErrorNvlinkUncorrectable"));
    assert_eq!(errors[1].testcase.as_deref(), Some("all_reduce_perf"));
    assert_eq!(series(&parsed, 0).points.len(), 6);
    assert!(parsed.has(ProblemKind::Truncated));
    // A process with two GPUs is no rank.
    let parsed = read(&broken.replace("nGpus 1", "nGpus 2"));
    assert!(parsed.problems.iter().all(|p| p.rank.is_none()), "{:?}", parsed.problems);
}

#[test]
fn the_librarys_own_version_line_is_kept_over_a_version_code() {
    let text = Output::new(Release::Wrong)
        .text()
        .replace("#  size", "NCCL version 2.27.3+cuda12.9\n#  size");
    assert_eq!(read(&text).facts.nccl.as_deref(), Some("2.27.3+cuda12.9"));
}

#[test]
fn a_warning_of_a_run_that_went_well_is_no_error() {
    let warning = "gpu-0:40:41 [0] net.cc:5 NCCL WARN no such plugin\n";
    let parsed = read(&format!("{warning}{}", Output::new(Release::Wrong).text()));
    assert_eq!(parsed.problems, []);
}

#[test]
fn a_launcher_that_fails_is_an_error_without_numbers() {
    for text in [
        "There are not enough slots available in the system to satisfy the 9\nslots:\n\n  ./all_reduce_perf\n",
        "USAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>]\n",
        "+ srun ./all_reduce_perf\nsrun: error: n1: task 0: Exited with exit code 3\n",
    ] {
        let parsed = read(text);
        assert_eq!(kinds(&parsed), [ProblemKind::Error], "{text}");
        assert!(!parsed.complete && parsed.measurements.is_empty());
    }
}

#[test]
fn an_impossible_factor_is_inconsistent() {
    let mut output = Output::new(Release::Wrong);
    for (_, halves) in &mut output.rows {
        // Larger numbers, so that rounding explains nothing.
        halves.iter_mut().for_each(|half| {
            half.time /= 100.0;
            half.algbw *= 100.0;
            half.busbw = half.algbw * 0.99;
        });
    }
    let parsed = read(&output.text());
    assert_eq!(kinds(&parsed), [ProblemKind::Inconsistent]);
    assert!(parsed.problems[0].detail.contains("on 8 ranks"), "{:?}", parsed.problems);
    let table = output.table() + &output.footer();
    let parsed = read(&table);
    assert_eq!(kinds(&parsed), [ProblemKind::Inconsistent], "without ranks and name");
    assert_eq!(series(&parsed, 0).testcase, None);
}

#[test]
fn a_changed_row_or_average_is_inconsistent() {
    let output = Output::new(Release::Wrong);
    let text = output.text();
    let average = format!("{:.4}", output.average());
    let parsed = read(&text.replace(&average, "9.5"));
    assert!(problem(&parsed, ProblemKind::Inconsistent).detail.contains("mean"));
    let mut output = Output::new(Release::Wrong);
    for (_, halves) in &mut output.rows {
        halves[0].time /= 2.0;
    }
    let parsed = read(&output.text());
    assert!(problem(&parsed, ProblemKind::Inconsistent).detail.contains("size over time"));
    let cpu = output.text().replace("  time ", "  cputime ");
    assert_eq!(read(&cpu).problems, []);
}

#[test]
fn one_rank_has_no_bus_bandwidth_and_that_is_no_contradiction() {
    let output = Output {
        release: Release::Wrong,
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
    let text = Output::new(Release::Wrong).text().replace("maxBytes 32768", "maxBytes 1048576");
    assert!(read(&text).has(ProblemKind::Truncated));
    let reduced = "#\n# Reducing maxBytes to 40000 due to memory limitation\n#  size";
    assert_eq!(read(&text.replace("#  size", reduced)).problems, []);
}

const SECRET: &str = "hunter2-of-the-environment";

/// A `-J` file of two rows on 16 ranks.
fn json(version: u32) -> String {
    let half = |time: f64, bytes: u64| {
        let algbw = bytes as f64 / time / 1e3;
        format!(
            "{{\"time\":{time:.6},\"alg_bw\":{algbw:.6},\"bus_bw\":{:.6},\"nwrong\":0.000000}}",
            algbw * 1.875
        )
    };
    let statistics = "{\"skipped_iterations\":0,\"min_us\":9.500000,\"max_us\":12.250000,\
                      \"p99_us\":12.125000,\"times_us\":[9.500000,12.250000]}";
    let extra = if 2 <= version {
        format!(",\"out_of_place_per_iter\":{statistics},\"in_place_per_iter\":{statistics}")
    } else {
        String::new()
    };
    let row = |bytes: u64| {
        format!(
            "{{\"size\":{bytes},\"count\":{},\"type\":\"float\",\"redop\":\"sum\",\"root\":\"    -1\",\
             \"out_of_place\":{},\"in_place\":{}{extra},\"actual_iterations\":20,\
             \"experiment_name\":\"\"}}",
            bytes / 4,
            half(10.0, bytes),
            half(10.5, bytes)
        )
    };
    let word = if version == 1 { "bandwidith" } else { "bandwidth" };
    let mean = (2048.0 / 10e3 + 2048.0 / 10.5e3) * 1.875 * 1.5 / 2.0 * 1.0;
    format!(
        "{{\"version\":{version},\"start_time\":\"2026-01-02 03:04:05\",\
         \"args\":[\"/opt/t/all_reduce_perf_mpi\",\"-b\",\"2048\"],\
         \"env\":[\"TOKEN={SECRET}\",\"X={{\\\"version\\\":9\"],\"nccl_version\":22809,\
         \"config\":{{\"nthreads\":1,\"ngpus\":8,\"minimum_bytes\":2048,\"maximum_bytes\":4096,\
         \"step_factor\":2,\"warmup_iters\":1,\"iterations\":20,\"aggregated_iterations\":1,\
         \"validation\":1,\"graph\":0,\"blocking_collectives\":\"false\",\"parallel_init\":\"false\",\
         \"devices\":[{{\"rank\":0,\"group\":0,\"pid\":7,\"hostname\":\"n1\",\"device\":0,\
         \"device_hex\":\"0000:1b:00\",\"device_info\":\"Made Up GPU\"}},{{\"rank\":8,\"group\":0,\
         \"pid\":8,\"hostname\":\"n2\",\"device\":0,\"device_hex\":\"0000:1b:00\",\
         \"device_info\":\"Made Up GPU\"}}]}},\"results\":[{},{}],\
         \"out_of_bounds\":{{\"count\":0,\"okay\":\"true\"}},\
         \"average_bus_{word}\":{{\"{word}\":{mean:.6},\"okay\":\"unchecked\"}},\
         \"errors\":[\"\"],\"end_time\":\"2026-01-02 03:05:05\"}}",
        row(2048),
        row(4096)
    )
}

#[test]
fn the_json_file_of_every_version_is_read_and_its_environment_is_not() {
    for version in 1..=4 {
        let parsed = read(&json(version));
        assert_eq!(parsed.problems, [], "version {version}");
        assert!(parsed.complete);
        let series = series(&parsed, 0);
        assert_eq!(series.testcase.as_deref(), Some("all_reduce_perf"));
        let point = &series.points[3];
        assert_eq!((point.bytes, point.placement), (4096, Some(Placement::InPlace)));
        assert_eq!(
            (point.time_us, point.wrong, point.iterations),
            (Some(10.5), Some(0.0), Some(20))
        );
        assert_eq!(point.p99_us, (2 <= version).then_some(12.125));
        assert_eq!(parsed.facts.hosts, ["n1", "n2"]);
        assert_eq!(parsed.facts.nccl.as_deref(), Some("2.28.9"));
        assert_eq!(parsed.facts.parameters["nGpus"], "8");
        assert!(!format!("{parsed:?}").contains(SECRET));
    }
}

#[test]
fn strings_of_a_json_file_laid_out_beside_the_text_are_not_read() {
    let environment = format!(
        "{{\n  \"env\": [\n    \"A=srun: error: {SECRET}\",\n    \"B=x: Test CUDA failure a.cu:1 \
         '{SECRET}'\"\n  ]\n}}\n"
    );
    let text = Output::new(Release::Wrong).text();
    for text in [environment.clone() + &text, text + &environment] {
        let parsed = read(&text);
        assert!(!format!("{parsed:?}").contains(SECRET) && parsed.complete, "{parsed:#?}");
    }
}

#[test]
fn a_json_file_behind_a_launchers_margin_is_read() {
    let text: String =
        json(3).replace(',', ",\n").lines().map(|l| format!("[pod/a/b] {l}\n")).collect();
    let parsed = read(&text);
    assert_eq!(series(&parsed, 0).points, series(&read(&json(3)), 0).points);
    assert!(parsed.complete, "{:?}", parsed.problems);
}

#[test]
fn a_json_file_cut_anywhere_is_truncated_and_leaks_nothing() {
    let whole = json(3);
    let args = whole.find("\"args\"").expect("args");
    for end in args..whole.len() {
        let parsed = measure::read(&whole.as_bytes()[..end]);
        assert!(!parsed.complete, "{end}");
        assert!(!format!("{parsed:?}").contains(SECRET), "{end}");
        if parsed.tool == Some(Tool::NcclTests) {
            assert!(parsed.has(ProblemKind::Truncated), "{end}");
        }
    }
    let parsed = read(&whole[..whole.find("\"out_of_bounds\"").expect("a footer")]);
    assert_eq!(series(&parsed, 0).points.len(), 4);
}

#[test]
fn several_json_files_in_one_are_several_runs() {
    let killed = json(2);
    let killed = &killed[..killed.find("\"in_place\"").expect("a half")];
    let parsed = read(&format!("{}{killed}{}\nlog line\n{}", json(1), json(3), json(4)));
    let runs: Vec<u32> = parsed.measurements.iter().map(Measurement::run).collect();
    assert_eq!(runs, [0, 1, 2, 3]);
    assert_eq!(kinds(&parsed), [ProblemKind::Truncated]);
}

#[test]
fn json_verdicts_are_strings_and_unchecked_data_is_null() {
    let failed = json(3).replace("\"count\":0,\"okay\":\"true\"", "\"count\":4,\"okay\":\"false\"");
    assert_eq!(kinds(&read(&failed)), [ProblemKind::Corrupt]);
    let slow = json(3).replace("\"unchecked\"", "\"false\"");
    assert_eq!(kinds(&read(&slow)), [ProblemKind::Error]);
    let unchecked = json(3)
        .replace("\"nwrong\":0.000000", "\"nwrong\":null")
        .replace("\"validation\":1", "\"validation\":0");
    let parsed = read(&unchecked);
    assert_eq!(kinds(&parsed), [ProblemKind::Unverified]);
    let errors = json(3).replace("\"errors\":[\"\"]", "\"errors\":[\"socket gone\"]");
    assert_eq!(kinds(&read(&errors)), [ProblemKind::Error]);
}

#[test]
fn numbers_that_are_not_finite_become_null() {
    for word in ["inf", "\"nan\""] {
        let text = json(3).replacen("\"alg_bw\":0.204800", &format!("\"alg_bw\":{word}"), 1);
        let parsed = read(&text);
        assert_eq!(kinds(&parsed), [ProblemKind::Unrecognised], "{word}");
        assert_eq!(series(&parsed, 0).points[0].algbw, None);
    }
}

/// What a text can be damaged with.
fn damage() -> impl Strategy<Value = (usize, usize, String)> {
    let garbage = prop_oneof![
        Just(String::new()),
        "[\\x00-\\x7f]{0,8}",
        Just("n1:1:2 [0] NCCL INFO via NET/IB/0\n".to_owned()),
        Just("NaN".to_owned()),
        Just("\u{fffd}-{]".to_owned()),
        Just("\n".to_owned()),
    ];
    (any::<prop::sample::Index>(), 0usize..200, garbage)
        .prop_map(|(at, length, text)| (at.index(usize::MAX), length, text))
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let input = measure::text::decode(&bytes);
        super::parse(&measure::Input::new(&input));
    }

    #[test]
    fn damaged_outputs_are_survived(
        which in 0usize..5,
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let mut text = match RELEASES.get(which) {
            Some(release) => Output::new(*release).text(),
            None => json(3),
        };
        for (at, length, garbage) in damages {
            let floor = |mut at: usize| {
                while !text.is_char_boundary(at) {
                    at -= 1;
                }
                at
            };
            let start = floor(at % (text.len() + 1));
            let end = floor((start + length).min(text.len())).max(start);
            text.replace_range(start..end, &garbage);
        }
        let input = measure::text::decode(text.as_bytes());
        let parsed = super::parse(&measure::Input::new(&input));
        let shown = format!("{parsed:?}");
        prop_assert!(!shown.contains(SECRET));
    }

    #[test]
    fn rendered_rows_are_read_back(
        which in 0usize..4,
        rows in prop::collection::vec(
            (1u64..1 << 30, 1u32..40_000_000, 1u32..40_000_000, prop::option::of(0u32..9000)),
            1..12,
        ),
    ) {
        let release = RELEASES[which];
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(elements, out, within, wrong)| {
                let bytes = elements * 4;
                let make = |hundredths: u32| HalfRow {
                    wrong,
                    ..half(bytes, f64::from(hundredths) / 100.0, 8)
                };
                (bytes, [make(out), make(within)])
            })
            .collect();
        let output = Output { release, rows };
        let parsed = read(&(output.table() + &output.footer()));
        let have: Vec<&Point> = series(&parsed, 0).points.iter().collect();
        let want = output.rows.iter().flat_map(|(bytes, halves)| {
            halves.iter().map(move |half| (*bytes, half))
        });
        prop_assert_eq!(have.len(), output.rows.len() * 2);
        for (point, (bytes, half)) in have.into_iter().zip(want) {
            let printed = |value: f64, width| fit(value, width).trim().parse::<f64>().ok();
            prop_assert_eq!(point.bytes, bytes);
            prop_assert_eq!(point.time_us, printed(half.time, 7));
            prop_assert_eq!(point.algbw, printed(half.algbw, 6));
            prop_assert_eq!(point.busbw, printed(half.busbw, 6));
            let wrong = half.wrong.filter(|_| release != Release::Old).map(f64::from);
            prop_assert_eq!(point.wrong, wrong);
        }
        prop_assert!(!parsed.has(ProblemKind::Inconsistent), "{:?}", parsed.problems);
    }
}
