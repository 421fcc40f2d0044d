//! The JSON output: statuses, parts, truncation, and surrounding text.

use super::render::{READ, RenderedMatrix, line, square};
use super::{matrices, matrix, names, problems, read};
use model::parse_output::OutputProblemKind::{
    Corrupt, Error, Inconsistent, Truncated, Unrecognised, Waived,
};
use model::unit::Unit;

const READ_CE: &str = "device_to_device_memcpy_read_ce";

/// A test as the tool prints it: sorted keys, cells as strings.
fn test(printed: &RenderedMatrix) -> String {
    rows(&printed.name, &printed.title, &printed.cells, printed.sum())
}

fn rows(name: &str, title: &str, cells: &[Vec<Option<f64>>], sum: f64) -> String {
    let rows: Vec<String> = cells
        .iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .map(|c| c.map_or("\t\t\t\"N/A\"".to_owned(), |v| format!("\t\t\t\"{v}\"")))
                .collect();
            format!("\t\t[\n{}\n\t\t]", cells.join(",\n"))
        })
        .collect();
    format!(
        "{{\n\t\"bandwidth_description\" : \"{title}\",\n\t\"bandwidth_matrix\" : \n\t[\n{}\n\t],\n\
         \t\"name\" : \"{name}\",\n\t\"status\" : \"Passed\",\n\t\"sum\" : {sum}\n}}",
        rows.join(",\n")
    )
}

fn status(name: &str, status: &str) -> String {
    format!("{{\n\t\"name\" : \"{name}\",\n\t\"status\" : \"{status}\"\n}}")
}

/// The document around these tests, with more keys in front of them.
fn document(keys: &str, tests: &[String]) -> String {
    format!(
        "{{\n\"nvbandwidth\" : \n{{\n\t\"CUDA Runtime Version\" : 12080,\n\
         \t\"Driver Version\" : \"570.86.10\",\n\
         \t\"GPU Device list\" : \n\t[\n\t\t\"0: NVIDIA GB200 (00000008:01:00): (tray07)\",\n\
         \t\t\"1: NVIDIA GB200 (00000009:01:00): (tray07)\"\n\t],\n{keys}\
         \t\"git_version\" : \"v0.8\",\n\t\"testcases\" : \n\t[\n{}\n\t],\n\
         \t\"version\" : \"v0.8\"\n}}\n}}\n\n",
        tests.join(",\n")
    )
}

#[test]
fn a_whole_document_is_read() {
    let printed = square(READ_CE, READ, 4);
    let latency = line("host_device_latency_sm", "memory latency SM CPU(row) (ns)", 2);
    let text =
        document("", &[test(&printed), test(&latency), status("all_to_one_read_ce", "Waived")]);
    let parsed = read(&text);
    assert_eq!(parsed.tool_version.as_deref(), Some("0.8"));
    assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells);
    assert_eq!(matrix(&parsed, READ_CE).rows, ["0", "1", "2", "3"]);
    assert_eq!(matrix(&parsed, "host_device_latency_sm").unit, Some(Unit::Nanoseconds));
    assert_eq!(problems(&parsed), [(Waived, Some("all_to_one_read_ce"))]);
    assert_eq!(parsed.facts.cuda_runtime.as_deref(), Some("12080"));
    assert_eq!(parsed.facts.driver.as_deref(), Some("570.86.10"));
    assert_eq!(parsed.facts.hosts, ["tray07"]);
    assert_eq!(parsed.facts.devices[1].bus_id.as_deref(), Some("00000009:01:00"));
    assert_eq!(parsed.facts.devices[1].host.as_deref(), Some("tray07"));
    assert!(parsed.complete && parsed.is_sound());
}

#[test]
fn three_matrices_appended_to_one_entry_are_taken_apart() {
    for (name, parts) in [
        ("device_to_device_bidirectional_memcpy_read_ce", ["_read1", "_read2", "_total"]),
        (
            "multinode_device_to_device_bidirectional_memcpy_write_sm",
            ["_write1", "_write2", "_total"],
        ),
    ] {
        let part = square(name, READ, 5).cells;
        let total: Vec<Vec<_>> =
            part.iter().map(|row| row.iter().map(|c| c.map(|v| v * 2.0)).collect()).collect();
        let sum: f64 = total.iter().flatten().flatten().sum();
        let all: Vec<_> = [part.clone(), part.clone(), total.clone()].concat();
        let parsed = read(&document("", &[rows(name, READ, &all, sum)]));
        assert_eq!(names(&parsed), parts.map(|part| format!("{name}{part}")));
        let got = matrices(&parsed);
        assert_eq!((&got[1].cells, &got[2].cells), (&part, &total));
        assert_eq!((got[0].sum, got[1].sum, got[2].sum), (None, None, Some(sum)));
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        // v0.5 has one matrix; two thirds of three matrices are invalid.
        let parsed = read(&document("", &[rows(name, READ, &part, sum / 2.0)]));
        assert_eq!(names(&parsed), [name]);
        let parsed = read(&document("", &[rows(name, READ, &all[..10], sum)]));
        assert!(
            parsed.measurements.is_empty() && parsed.has_problem(Unrecognised) && !parsed.complete
        );
    }
}

#[test]
fn a_sum_has_all_digits_and_cells_have_six() {
    let mut printed = line("host_to_device_memcpy_ce", "bandwidth (GB/s)", 1);
    printed.cells = vec![vec![Some(1234.57)]];
    for (sum, wrong) in [(1_234.574_9, false), (1_234.56, false), (1_235.57, true)] {
        let text = rows(&printed.name, &printed.title, &printed.cells, sum);
        let parsed = read(&document("", &[text]));
        assert_eq!(parsed.has_problem(Inconsistent), wrong, "{sum}");
    }
}

#[test]
fn statuses_become_their_kind_of_problem() {
    let printed = square(READ_CE, READ, 2);
    let passed = || test(&printed);
    let parsed = read(&document("", &[passed(), status("all_to_all_x", "ERROR")]));
    assert_eq!(problems(&parsed), [(Error, Some("all_to_all_x"))]);
    assert!(parsed.complete && !parsed.is_sound());

    let name = "all_to_host_memcpy_ce";
    let parsed = read(&document("", &[passed(), status(name, "Running"), status(name, "Error")]));
    assert_eq!(problems(&parsed), [(Error, Some(name))], "one failed test, two entries");
    assert!(!parsed.complete);

    let parsed = read(&document("", &[passed(), status(name, "Running")]));
    assert_eq!(problems(&parsed), [(Truncated, Some(name))]);
    assert!(!parsed.complete);

    let parsed = read(&document("", &[status(name, "Waived")]));
    assert!(!parsed.complete, "nothing was measured");

    let parsed = read(&document("", &[passed(), status(name, "Postponed")]));
    assert!(parsed.has_problem(Unrecognised) && !parsed.complete);
}

#[test]
fn a_recorded_error_belongs_to_the_test_that_was_running() {
    let error = "\t\"error\" : \"[CUDA_ERROR_LAUNCH_FAILED] unspecified launch failure in expression \
        cuCtxSynchronize() on tray02, rank = 3 in run() : /b/t.cpp:5\\n\",\n";
    let name = "multinode_device_to_device_memcpy_write_sm";
    let text = document(error, &[test(&square(READ_CE, READ, 2)), status(name, "Running")])
        .replacen("\n}\n\n", ",\n\"testcases\" : null\n}\n\n", 1);
    let parsed = read(&text);
    assert_eq!(problems(&parsed), [(Truncated, Some(name)), (Error, Some(name))]);
    let problem = &parsed.problems[1];
    assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_LAUNCH_FAILED"));
    assert_eq!((problem.host.as_deref(), problem.rank), (Some("tray02"), Some(3)));
    assert!(!parsed.complete && matrices(&parsed).len() == 1);
}

#[test]
fn wrong_data_is_corrupt_and_a_warning_is_a_fact() {
    let keys =
        "\t\"error\" : \" Invalid value when checking the pattern at <0x7f>: Current offset\",\n";
    let parsed = read(&document(keys, &[status("one_to_all_read_ce", "Running")]));
    assert!(problems(&parsed).contains(&(Corrupt, Some("one_to_all_read_ce"))));
    let keys = "\t\"warning\" : \"NOTE: You have chosen a buffer size that is smaller\",\n";
    let parsed = read(&document(keys, &[test(&square(READ_CE, READ, 2))]));
    assert!(parsed.complete && parsed.facts.parameters["warning"].starts_with("NOTE"));
}

#[test]
fn no_tests_at_all_are_not_a_complete_run() {
    let null = "{\"nvbandwidth\" : {\"testcases\" : null, \"version\" : \"v0.8\"}}\n";
    for text in [document("", &[]), null.to_owned()] {
        let parsed = read(&text);
        assert_eq!(problems(&parsed), [(Truncated, None)]);
        assert!(!parsed.complete);
    }
}

#[test]
fn lines_around_and_inside_the_object_are_ignored() {
    let printed = square(READ_CE, READ, 3);
    let text = document("", &[test(&printed)]);
    let around = format!("WARNING: lock {{\nWARNING: {{{{}}}}}}\n{text}WARNING: }}}}{{\n");
    let prefixed: String = text.lines().flat_map(|l| ["[pod/bench-0/run] ", l, "\n"]).collect();
    let tagged: String =
        text.lines().flat_map(|l| ["[1,0]<stdout>:", l, "\n[1,2]<stderr>:{ \"x\": \n"]).collect();
    let inside = text.replacen("\t\t[\n", "\t\t[\nnode7:31:44 [0] NCCL INFO {done\n", 2);
    for text in [around, prefixed, tagged, inside, text.replace('\n', "\r\n"), text] {
        let parsed = read(&text);
        assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells, "{text}");
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}\n{text}", parsed.problems);
    }
}

#[test]
fn several_documents_are_several_runs() {
    let text = document("", &[test(&square(READ_CE, READ, 2))]);
    let parsed = read(&text.repeat(3));
    assert_eq!(matrices(&parsed).iter().map(|m| m.run).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(parsed.complete);
    let broken = format!("{}\n{text}", &text[..text.len() / 2]);
    let parsed = read(&broken);
    assert_eq!(matrices(&parsed).len(), 1);
    assert!(parsed.has_problem(Truncated) && !parsed.complete);
}

#[test]
fn a_cut_document_keeps_its_whole_tests() {
    let first = square(READ_CE, READ, 3);
    let second = square("device_to_device_memcpy_write_ce", READ, 3);
    let text = document("", &[test(&first), status("all_to_one_read_sm", "Waived"), test(&second)]);
    let start = text.find("testcases").expect("tests") + 12;
    let end = text.trim_end().len() - 1;
    for cut in start..end {
        let parsed = read(&text[..cut]);
        assert!(!parsed.complete && parsed.has_problem(Truncated), "{cut}");
        for m in matrices(&parsed) {
            let want = if m.testcase.as_deref() == Some(READ_CE) { &first } else { &second };
            assert_eq!(m.cells, want.cells, "{cut}");
            assert!(m.sum.is_none_or(|sum| (sum - want.sum()).abs() < 1e-6), "{cut}");
        }
    }
    let parsed = read(&text[..text.rfind("\"device_to_device").expect("a name")]);
    assert_eq!(names(&parsed), [READ_CE]);
}

#[test]
fn non_numeric_cells_are_null_and_reported() {
    let printed = square(READ_CE, READ, 3);
    let right = format!("\"{}\"", printed.cells[0][1].expect("a number"));
    for wrong in ["\"inf\"", "\"nan\"", "inf", "\"12,5\"", "null", "{}"] {
        let text = document("", &[test(&printed).replacen(&right, wrong, 1)]);
        let parsed = read(&text);
        assert_eq!(matrix(&parsed, READ_CE).cells[0][1], None, "{wrong}");
        assert_eq!(matrix(&parsed, READ_CE).cells[2], printed.cells[2]);
        assert_eq!(problems(&parsed), [(Unrecognised, Some(READ_CE))], "{wrong}");
        assert!(!parsed.complete);
    }
}

#[test]
fn lines_of_other_programs_inside_the_object_are_ignored() {
    let printed = square(READ_CE, READ, 4);
    let text = document("", &[test(&printed)]);
    for noise in [
        "tray07:12:34 [1] NCCL INFO Connected all rings",
        "[1741236511.646130] [tray07:364800:0]  ucp_context.c:1192 UCX  WARN  transport 'rc'",
        "[tray07:597866] MCW rank 0 bound to socket 0[core 0[hwt 0]]: [BB/..][../..]",
    ] {
        let mixed: String = text.lines().flat_map(|l| [l, "\n", noise, "\n"]).collect();
        let parsed = read(&mixed);
        assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells, "{noise}");
        assert!(parsed.complete, "{noise}: {:?}", parsed.problems);
    }
}
