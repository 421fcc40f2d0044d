//! Generated outputs in the grammar of the tool's sources. No output of a real run was available.

use proptest::prelude::*;

use super::*;
use crate::outputs::fixture::{matrices, problem_kinds, scar_lines};
use crate::outputs::parse_output;
use model::unit::Unit;

fn head(ranks: u32) -> String {
    let mut out = "nvloom_cli 1.3.0\ngit commit: unknown\nNVCC version: 12.9\nCUDA version: 12.9\n\
                   Driver version: 580.11\nAllocation strategy: reuse\nBuffer size: 512 MiB\n\
                   Iteration count: 16\n"
        .to_owned();
    for rank in 0..ranks {
        let (host, device, rack) = (rank / 2, rank % 2, rank / 4);
        out += &format!(
            "Process {rank} (tray{host}): device {device}: NVIDIA Z9 (0000000{device}:0{device}:00); \
             rackGuid: 77{rack}\n"
        );
    }
    out + "\n"
}

fn statistics(name: &str, cells: &[Vec<f64>], unit: &str) -> String {
    let all: Vec<f64> = cells.iter().flatten().copied().filter(|c| *c != 0.0).collect();
    let sum: f64 = all.iter().sum();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    let mean = sum / all.len() as f64;
    format!(
        "\nMin {name} {least:.2} {unit}\nAvg {name} {mean:.2} {unit}\nMax {name} {most:.2} {unit}\n\
         Total {name} {sum:.2} {unit}\n\n"
    )
}

/// One test as the tool prints it.
fn test(name: &str, columns: &[&str], rows: &[&str], cells: &[Vec<f64>], unit: &str) -> String {
    let mut out = format!("Running {name}\n\t{}\t\n", columns.join("\t"));
    for (label, row) in rows.iter().zip(cells) {
        out += &format!("{label}\t");
        for cell in row {
            out += &if *cell == 0.0 { "N/A\t".to_owned() } else { format!("{cell:.2}\t") };
        }
        out.push('\n');
    }
    out + &statistics(name, cells, unit) + &format!("ExecutionTime {name} 1.25 s\nDone {name}\n\n")
}

const PAIRS: &str = "device_to_device_unidir_write_ce";

fn pairs() -> String {
    let cells = vec![vec![0.0, 741.5, 742.25], vec![743.0, 0.0, 744.5], vec![745.0, 746.75, 0.0]];
    test(PAIRS, &["0", "1", "2"], &["0", "1", "2"], &cells, "GB/s")
}

#[test]
fn a_pairwise_table_is_read_with_its_head_and_its_total() {
    let parsed = parse_output((head(3) + &pairs()).as_bytes());
    assert_eq!((parsed.tool, parsed.complete), (Some(Tool::Nvloom), true), "{parsed:#?}");
    assert_eq!(parsed.tool_version.as_deref(), Some("1.3.0"));
    let found = matrices(&parsed)[0];
    assert_eq!(
        (found.testcase.as_deref(), found.unit),
        (Some(PAIRS), Some(Unit::GigabytesPerSecond))
    );
    assert_eq!(found.cells[0], [None, Some(741.5), Some(742.25)]);
    assert_eq!((found.sum, found.cols.len()), (Some(4463.0), 3));
    let facts = &parsed.facts;
    assert_eq!(
        (facts.driver.as_deref(), facts.cuda_driver.as_deref()),
        (Some("580.11"), Some("12.9"))
    );
    let expected = ToolRank {
        rank: 2,
        host: "tray1".to_owned(),
        device: 0,
        name: Some("NVIDIA Z9".to_owned()),
        bus_id: Some("00000000:00:00".to_owned()),
        group: None,
    };
    assert_eq!(facts.ranks[2], expected);
    assert_eq!(facts.hosts, ["tray0", "tray1"]);
    assert_eq!(facts.parameters["rack 770"], "0 1 2");
    assert_eq!(facts.parameters["Buffer size"], "512 MiB");
}

#[test]
fn bisect_and_rack_tables_keep_the_tools_labels() {
    let bisect = test(
        "bisect_device_to_device_write_sm",
        &["0"],
        &["0->2", "1->3", "2->0", "3->1"],
        &[vec![700.0], vec![701.0], vec![702.0], vec![703.5]],
        "GB/s",
    );
    let racks = test(
        "rack_to_rack_bidir_device_to_device_read_ce",
        &["770", "771"],
        &["770", "771"],
        &[vec![0.0, 11_000.5], vec![11_000.5, 0.0]],
        "GB/s",
    );
    let parsed = parse_output((head(8) + &bisect + &racks).as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!(matrices(&parsed)[0].rows, ["0->2", "1->3", "2->0", "3->1"]);
    assert_eq!(matrices(&parsed)[1].cols, ["770", "771"]);
}

#[test]
fn rich_output_has_notes_and_bars_that_are_not_cells() {
    let name = "gpu_to_rack_device_to_device_unidir_read_sm";
    let text = format!(
        "Running {name}\n\t770-0\t770-1\t| \t771-0\t771-1\t\n\
         0\t701.25;(0-1)\t702.25;(0-3)\t|\t703.25;(0-5)\tN/A\t\n\
         1\t704.25;(1-0)\t705.25;(1-2)\t|\t706.25;(1-7)\tN/A\t\n{}Done {name}\n",
        statistics(name, &[vec![701.25, 702.25, 703.25, 704.25, 705.25, 706.25]], "GB/s")
    );
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!(matrices(&parsed)[0].cols, ["770-0", "770-1", "771-0", "771-1"]);
    assert_eq!(matrices(&parsed)[0].cells[1], [Some(704.25), Some(705.25), Some(706.25), None]);
}

#[test]
fn a_copy_that_has_lost_its_tabs_reads_the_same() {
    let text = head(3) + &pairs();
    let spaces = text.replace('\t', "    ");
    assert_eq!(parse_output(text.as_bytes()), parse_output(spaces.as_bytes()));
}

#[test]
fn racks_without_a_serial_number_have_empty_labels() {
    let name = "gpu_to_rack_device_to_device_bidir_read_ce";
    let text = test(name, &[""], &["0", "1"], &[vec![700.5], vec![701.5]], "GB/s");
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!(
        (&matrices(&parsed)[0].cols, matrices(&parsed)[0].rows.len()),
        (&vec![String::new()], 2)
    );
}

#[test]
fn the_first_release_names_no_unit_and_latencies_are_in_nanoseconds() {
    let old = pairs()
        .replace("Min ", "MinBW ")
        .replace("Avg ", "AvgBW ")
        .replace("Max ", "MaxBW ")
        .replace("Total ", "TotalBW ")
        .replace(" GB/s", "");
    let parsed = parse_output(old.as_bytes());
    assert_eq!((parsed.tool, parsed.complete), (Some(Tool::Nvloom), true), "{parsed:#?}");
    assert_eq!(matrices(&parsed)[0].unit, Some(Unit::GigabytesPerSecond));
    let latency = test(
        "latency_device",
        &["0", "1"],
        &["0", "1"],
        &[vec![0.0, 1210.5], vec![1220.5, 0.0]],
        "ns",
    );
    assert_eq!(matrices(&parse_output(latency.as_bytes()))[0].unit, Some(Unit::Nanoseconds));
}

#[test]
fn repetitions_are_runs_of_one_test() {
    let one = |i: u32| {
        pairs()
            .replace(&format!("Running {PAIRS}"), &format!("Running {PAIRS}_iter_{i}"))
            .replace(&format!("Done {PAIRS}"), &format!("Done {PAIRS}_iter_{i}"))
    };
    let parsed = parse_output((head(3) + &one(0) + &one(1)).as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    let runs: Vec<_> = parsed.measurements.iter().map(|m| (m.testcase(), m.run())).collect();
    assert_eq!(runs, [(Some(PAIRS), 0), (Some(PAIRS), 1)]);
}

#[test]
fn a_waived_test_measures_nothing_and_the_run_is_complete() {
    let text = head(1) + &format!("Running {PAIRS}\ntestcase WAIVED\nDone {PAIRS}\n\n");
    let parsed = parse_output(text.as_bytes());
    assert_eq!((parsed.complete, problem_kinds(&parsed)), (true, vec![OutputProblemKind::Waived]));
    assert_eq!(parsed.problems[0].testcase.as_deref(), Some(PAIRS));
}

#[test]
fn failures_name_the_place_the_code_and_the_test() {
    let start = head(2) + &format!("Running {PAIRS}\n\t0\t1\t\n0\tN/A\t");
    // Output is not flushed line by line: the message follows half a row.
    for gap in ["", "\n"] {
        let message =
            "[tray0:1]: [CUDA_ERROR_INVALID_HANDLE] bad in expression cuX() in f() : a.cpp:7\n";
        let parsed = parse_output(format!("{start}{gap}{message}").as_bytes());
        let error =
            parsed.problems.iter().find(|p| p.kind == OutputProblemKind::Error).expect("an error");
        assert_eq!((error.gpu, error.host.as_deref()), (Some(1), Some("tray0")));
        assert_eq!(error.code.as_deref(), Some("CUDA_ERROR_INVALID_HANDLE"));
        assert_eq!(error.testcase.as_deref(), Some(PAIRS));
        assert!(!parsed.complete);
    }

    let wrong = "\n[tray0:0]: ASSERT in expression 0 == copy.dst->check(id) in f() : b.cpp:9\n";
    assert!(parse_output((start + wrong).as_bytes()).has_problem(OutputProblemKind::Corrupt));

    let split = head(2) + "Process 1 cliqueId=7 is different than process 0 cliqueId=4\n";
    let parsed = parse_output(split.as_bytes());
    assert_eq!(
        (parsed.problems[0].kind, parsed.problems[0].rank),
        (OutputProblemKind::Error, Some(1))
    );
    for line in ["No such testcase as \"x\"", "Error running testcase csv_pattern: no file"] {
        assert_eq!(
            problem_kinds(&parse_output((head(2) + line + "\n").as_bytes())),
            [OutputProblemKind::Error]
        );
    }
}

#[test]
fn a_lost_row_is_missing_and_a_wrong_total_is_inconsistent() {
    let text = head(3) + &pairs();
    let lost: String =
        text.lines().filter(|l| !l.starts_with("1\t")).map(|l| l.to_owned() + "\n").collect();
    let parsed = parse_output(lost.as_bytes());
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
    assert!(parsed.has_problem(OutputProblemKind::Inconsistent));
    assert_eq!(matrices(&parsed)[0].rows, ["0", "1", "2"]);
    assert_eq!(matrices(&parsed)[0].cells[1], [None; 3]);
    let edited = parse_output(text.replace("742.25", "842.25").as_bytes());
    assert_eq!(
        (edited.complete, problem_kinds(&edited)),
        (true, vec![OutputProblemKind::Inconsistent])
    );
}

const CSV: &str = "measurement_id, bandwidth/latency, gpu_src_id, gpu_dst_id, iteration_count, \
                   mem_src_type, mem_dst_type, write/read, ce/sm/multicast, buffer_size, comment, \
                   result [GB/s] [ns]\n";

#[test]
fn the_csv_test_gives_a_matrix_per_concurrent_group() {
    let rows = "0, bandwidth, 1, 0, 16, device, device, write, ce, 1048576, fan_in, 401.5\n\
                0, bandwidth, 2, 0, 16, device, device, write, ce, 1048576, fan_in, 402.5\n\
                1, latency, 3, 0, 4096, device, ignored, ignored, ignored, ignored, far, 1.3e+03\n\
                2, bandwidth, 0, 1, 16, egm, device, read, sm, 1048576, , 88.25\n";
    let file = CSV.to_owned() + rows;
    let inside = head(4) + "Running csv_pattern\n" + &file + "\nDone csv_pattern\n";
    for text in [file, inside] {
        let parsed = parse_output(text.as_bytes());
        assert_eq!((parsed.tool, parsed.complete), (Some(Tool::Nvloom), true), "{parsed:#?}");
        let found = matrices(&parsed);
        let names: Vec<_> = found.iter().filter_map(|m| m.testcase.as_deref()).collect();
        assert_eq!(names, ["csv_pattern_0_fan_in", "csv_pattern_1_far", "csv_pattern_2"]);
        assert_eq!(found[0].rows, ["1->0", "2->0"]);
        assert_eq!(found[0].cells, [[Some(401.5)], [Some(402.5)]]);
        assert_eq!((found[1].unit, found[1].cells[0][0]), (Some(Unit::Nanoseconds), Some(1300.0)));
    }
}

#[test]
fn a_csv_of_input_measured_nothing() {
    let text =
        CSV.to_owned() + "0, bandwidth, 0, 1, default, device, device, write, ce, default, a\n";
    let parsed = parse_output(text.as_bytes());
    assert_eq!(
        (parsed.complete, problem_kinds(&parsed)),
        (false, vec![OutputProblemKind::Truncated])
    );
    assert!(parsed.measurements.is_empty());
}

#[test]
fn outputs_of_similar_tools_are_not_recognised() {
    for text in ["Running device_to_device_memcpy_read_ce.\n", "Total 3 files\nRunning fast\n"] {
        assert_ne!(parse_output(text.as_bytes()).tool, Some(Tool::Nvloom), "{text}");
    }
}

#[test]
fn a_cut_text_gives_only_numbers_of_the_whole_text() {
    let text = head(3)
        + &pairs()
        + CSV
        + "0, bandwidth, 0, 1, 16, device, device, write, ce, 64, a, 7.125\n";
    let whole = parse_output(text.as_bytes());
    for end in 0..text.len() {
        let part = parse_output(&text.as_bytes()[..end]);
        for (found, full) in matrices(&part).iter().zip(matrices(&whole)) {
            let same = found.numbers().all(|(i, j, v)| full.cells[i][j] == Some(v));
            assert!(same && found.testcase == full.testcase, "cut at {end}: {part:#?}");
            assert!(found.sum.is_none() || found.sum == full.sum, "cut at {end}");
        }
    }
}

proptest! {
    #[test]
    fn a_printed_table_is_read_back(
        cells in (2usize..12).prop_flat_map(|n| {
            prop::collection::vec(prop::collection::vec(0u32..200_000, n), n)
        }),
    ) {
        let cells: Vec<Vec<f64>> = cells
            .into_iter()
            .map(|row| row.into_iter().map(|c| f64::from(c) / 100.0).collect())
            .collect();
        prop_assume!(cells.iter().flatten().any(|c| *c != 0.0));
        let labels: Vec<String> = (0..cells.len()).map(|i| i.to_string()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let parsed = parse_output(test(PAIRS, &labels, &labels, &cells, "GB/s").as_bytes());
        prop_assert!(parsed.complete && parsed.problems.is_empty(), "{:#?}", parsed);
        for (i, row) in cells.iter().enumerate() {
            for (j, cell) in row.iter().enumerate() {
                let printed = (*cell != 0.0).then_some(*cell);
                prop_assert_eq!(matrices(&parsed)[0].cells[i][j], printed);
            }
        }
    }

    #[test]
    fn no_input_makes_it_panic(text in "\\PC{0,200}") {
        let input = ParserInput::new(&text);
        let _ = recognises(&input);
        let _ = parse(&input);
    }

    #[test]
    fn no_damage_makes_it_panic_or_break_a_matrix(
        at in prop::collection::vec((0usize..1500, any::<u8>()), 1..12),
        lost in prop::collection::vec(0usize..30, 0..6),
    ) {
        let text = head(3) + &pairs() + CSV + "0, bandwidth, 0, 1, 16, device, egm, write, ce, 64, a, 7.1\n";
        let bytes = scar_lines(&text, &lost, &at);
        let text = text::decode(&bytes);
        for found in matrices(&parse(&ParserInput::new(&text))) {
            prop_assert_eq!(found.rows.len(), found.cells.len());
            prop_assert!(found.cells.iter().all(|row| row.len() == found.cols.len()));
        }
    }
}
