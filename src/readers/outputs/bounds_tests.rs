//! Small outputs that expand: the parsed result must not be many times larger than the output, and
//! parsing must not take quadratic time.

use std::fmt::Write;

use super::parse_output;
use model::measurement::Measurement;
use model::parse_output::{OutputProblemKind, ParseOutput};

/// More table labels than any fabric has.
const MANY: usize = 8_000;

/// Far more than any fabric has, and far less than `MANY` by `MANY`.
const BEARABLE: usize = 10_000_000;

fn text(start: &str, lines: impl Iterator<Item = String>, end: &str) -> String {
    let mut text = start.to_owned();
    lines.for_each(|line| writeln!(text, "{line}").expect("a string takes all"));
    text + end
}

fn cells(parsed: &ParseOutput) -> usize {
    let of = |measurement: &Measurement| match measurement {
        Measurement::Matrix(matrix) => matrix.cells.iter().map(Vec::len).sum(),
        _ => 0,
    };
    parsed.measurements.iter().map(of).sum()
}

fn assert_bounded(text: &str) {
    let parsed = parse_output(text.as_bytes());
    assert!(cells(&parsed) < BEARABLE, "{} cells", cells(&parsed));
    let is_reported = parsed.has_problem(OutputProblemKind::Truncated)
        || parsed.has_problem(OutputProblemKind::Unrecognised);
    assert!(!parsed.complete && is_reported, "{:?}", parsed.problems);
}

#[test]
fn wide_labels_over_short_rows_are_not_a_matrix_of_empty_cells() {
    let labels: Vec<String> = (0..MANY).map(|at| at.to_string()).collect();
    let head = "nvbandwidth Version: v0.8\nRunning all_to_one_write_ce.\n\
                memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n";
    let rows = (0..MANY).map(|at| format!("{at} 1.00"));
    let end = "SUM all_to_one_write_ce 3.00\n\n";
    assert_bounded(&text(&format!("{head}{}\n", labels.join(" ")), rows, end));
    let head = "nvloom_cli 1.3.0\nRunning gpu_to_rack_unidir_write_ce\n";
    let rows = (0..MANY).map(|at| format!("{at}\t1.00"));
    let end = "Done gpu_to_rack_unidir_write_ce\n";
    assert_bounded(&text(&format!("{head}\t{}\n", labels.join("\t")), rows, end));
}

#[test]
fn one_row_of_a_document_does_not_make_its_empty_rows_wide() {
    let wide = vec!["\"1\""; MANY].join(",");
    let empty = ",[]".repeat(MANY);
    assert_bounded(&format!(
        "{{\"nvbandwidth\":{{\"testcases\":[{{\"name\":\"all_to_one_write_ce\",\
         \"status\":\"Passed\",\"bandwidth_matrix\":[[{wide}]{empty}],\"sum\":1}}]}}}}\n"
    ));
}

#[test]
fn many_tests_of_labels_alone_are_not_many_matrices() {
    let labels: Vec<String> = (0..1_000).map(|at| at.to_string()).collect();
    let tests: Vec<_> = (0..20)
        .map(|at| {
            serde_json::json!({"testcase": format!("t{at}"), "unit": "GB/s", "readings": [],
                "rows": labels, "cols": labels})
        })
        .collect();
    let document = serde_json::json!({"format": "fabricgate.copy/1", "version": "0.1.0",
        "node": "n1", "complete": true, "gpus": [], "tests": tests, "problems": []});
    assert_bounded(&format!("{document}\n"));
}

#[test]
fn a_result_is_kept_for_gpus_that_a_machine_can_have() {
    let ids: Vec<String> = (0..20_000).map(|at| at.to_string()).collect();
    let result = |ids: &str| {
        let result = serde_json::json!({"gpu_ids": ids, "status": "Fail", "warnings": ["hot"]});
        let test = serde_json::json!({"name": "memory", "results": [result]});
        let category = serde_json::json!({"category": "Hardware", "tests": [test]});
        let document = serde_json::json!({"DCGM Diagnostic": {"test_categories": [category]}});
        parse_output(format!("{document}\n").as_bytes())
    };
    assert_eq!(result(&ids.join(",")).facts.diagnostics.len(), 1024);
    // A failure of a part without a valid GPU index is still a failure.
    let parsed = result("20000");
    assert_eq!((parsed.facts.diagnostics.len(), parsed.facts.diagnostics[0].gpu), (1, None));
    assert!(parsed.has_problem(OutputProblemKind::Error));
}

#[test]
fn endless_warnings_are_truncated() {
    let warnings = (0..5_000).map(|at| format!("WARNING: MNNVL fabric not available {at}"));
    let parsed = parse_output(text("nvloom_cli 1.3.0\n", warnings, "").as_bytes());
    assert!(parsed.facts.parameters["warning"].len() < 4_000);
}

/// Each of these takes minutes if lists are searched linearly.
#[test]
fn long_lists_are_read_in_time() {
    let ranks =
        (0..20_000).map(|at| format!("Process {at} (n{at}): device 0: NVIDIA Z1 (00000008:01:00)"));
    let parsed = parse_output(text("nvbandwidth Version: v0.8\n", ranks, "").as_bytes());
    let facts = &parsed.facts;
    assert_eq!(
        (facts.ranks.len(), facts.devices.len(), facts.hosts.len()),
        (20_000, 20_000, 20_000)
    );
    let table = [
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
        "4194304 1048576 float sum -1 100.00 41.94 41.94 0 100.00 41.94 41.94 0",
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 41.94",
    ];
    let tasks = (0..3_000).flat_map(|task| table.map(|line| format!("{task}: {line}")));
    assert_eq!(parse_output(text("", tasks, "").as_bytes()).measurements.len(), 3_000);
}
