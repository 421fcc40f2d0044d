//! Failures of the tool and the launcher, and truncated outputs.

use super::render::{DEVICES, H2D, NOTE, READ, head, line, multinode, old_head, square};
use super::{matrices, matrix, names, problems, read};
use model::parse_output::OutputProblemKind::{
    Corrupt, Error, Inconsistent, Truncated, Unrecognised,
};

const NAME: &str = "multinode_device_to_device_memcpy_write_ce";
const H2D_CE: &str = "host_to_device_memcpy_ce";

#[test]
fn a_driver_error_of_a_rank_names_code_host_rank_and_test() {
    let message = "[CUDA_ERROR_INVALID_VALUE] invalid argument in expression cuMemSetAccess(a, b, \
        &desc, 1 ) on tray01.example, rank = 6 in Unicast::Unicast(size_t, int)() : /b/multi.cpp:76";
    let first = square("multinode_device_to_device_memcpy_read_ce", READ, 8).test(2);
    let whole = multinode(2, &format!("{first}Running {NAME}.\n{message}\n\n"));
    let parsed = read(whole.strip_suffix(NOTE).expect("a note"));
    assert_eq!(problems(&parsed), [(Error, Some(NAME)), (Truncated, Some(NAME))]);
    let error = &parsed.problems[0];
    assert_eq!(error.code.as_deref(), Some("CUDA_ERROR_INVALID_VALUE"));
    assert_eq!((error.host.as_deref(), error.rank), (Some("tray01.example"), Some(6)));
    assert!(error.line.is_some());
    assert!(!parsed.complete && matrices(&parsed).len() == 1);
}

#[test]
fn the_rank_of_an_error_can_come_from_the_launchers_tag() {
    let text = format!(
        "[1,0]<stdout>:Running {NAME}.\n[1,3]<stderr>:[cudaErrorNoDevice] no CUDA-capable device is \
         detected in expression cudaSetDevice(0) in main() : /b/main.cpp:9\n"
    );
    let parsed = read(&text);
    assert_eq!(parsed.problems[0].rank, Some(3));
    assert_eq!(parsed.problems[0].code.as_deref(), Some("cudaErrorNoDevice"));
}

#[test]
fn wrong_data_is_corrupt_in_every_version() {
    for (head, message) in [
        (
            old_head("v0.4"),
            " Invalid value when checking the pattern at <0x7f00>\n Current offset [ 8/4096]",
        ),
        (
            head("v0.8", DEVICES),
            "ASSERT in expression h_errorFlag == 0 on tray03, rank = 9 in \
             memcmpPatternHelper() : /b/memcpy.cpp:165",
        ),
    ] {
        let parsed = read(&format!("{head}Running {H2D_CE}.\n{message}\n"));
        assert_eq!(problems(&parsed), [(Corrupt, Some(H2D_CE)), (Truncated, Some(H2D_CE))]);
        assert!(!parsed.complete && !parsed.is_sound());
    }
}

#[test]
fn errors_before_any_test_stand_alone() {
    for (message, code) in [
        (
            "[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized",
            Some("CUDA_ERROR_SYSTEM_NOT_READY"),
        ),
        (
            "NVML_ERROR: [Driver/library version mismatch] in expression nvmlInit()",
            Some("NVML_ERROR"),
        ),
        ("You cannot specify both testcase and testcasePrefix options at the same time", None),
        ("Specified list of testcase prefixes did not match any testcases", None),
    ] {
        let text =
            format!("nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\n{message}\n");
        let parsed = read(&text);
        assert_eq!(problems(&parsed), [(Error, None)], "{message}");
        assert_eq!(parsed.problems[0].code.as_deref(), code);
        assert!(!parsed.complete);
    }
    let usage = "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nERROR: Invalid Arguments \n\
        ./nvbandwidth --fast :\n\nnvbandwidth CLI:\n  -h [ --help ]    Produce help message\n";
    assert_eq!(problems(&read(usage)), [(Error, None)]);
}

#[test]
fn an_unknown_test_is_an_error_and_the_others_count() {
    let body = format!("ERROR: Testcase all_to_none not found!\n{}", line(H2D_CE, H2D, 2).test(2));
    let parsed = read(&format!("{}{body}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(problems(&parsed), [(Error, Some("all_to_none"))]);
    assert!(parsed.complete && !parsed.is_sound());
    let text = format!("{}ERROR: Testcase all_to_none not found!\n{NOTE}", head("v0.8", DEVICES));
    let parsed = read(&text);
    assert!(!parsed.complete && parsed.has_problem(Error) && parsed.measurements.is_empty());
}

#[test]
fn a_test_that_threw_has_no_result_and_the_next_one_has() {
    let body = format!(
        "Running all_to_host_memcpy_ce.\nError: no suitable buffer\n{}",
        line(H2D_CE, H2D, 2).test(2)
    );
    let parsed = read(&format!("{}{body}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(problems(&parsed), [(Error, Some("all_to_host_memcpy_ce"))]);
    assert_eq!(names(&parsed), [H2D_CE]);
    assert!(!parsed.complete);
}

#[test]
fn launcher_messages_about_dead_processes_are_errors() {
    for (message, host, rank) in [
        ("MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD", None, Some(5)),
        (
            "mpirun noticed that process rank 2 with PID 91 on node tray01 exited on signal 9.",
            Some("tray01"),
            Some(2),
        ),
        ("srun: error: tray04: task 17: Exited with exit code 1", Some("tray04"), Some(17)),
        ("slurmstepd: error: *** STEP 12.0 ON tray00 CANCELLED DUE TO TIME LIMIT ***", None, None),
    ] {
        let text = multinode(1, &format!("Running {NAME}.\n{message}\n"));
        let parsed = read(text.strip_suffix(NOTE).expect("a note"));
        let error = &parsed.problems[0];
        assert_eq!(error.kind, Error, "{message}");
        assert_eq!((error.host.as_deref(), error.rank), (host, rank), "{message}");
        assert!(!parsed.complete);
    }
    let parsed = read("bash: ./nvbandwidth: No such file or directory\n");
    assert_eq!(problems(&parsed), [(Error, None)]);
}

#[test]
fn more_ranks_than_gpus_make_the_numbers_meaningless() {
    let warning = "Warning: there are more processes than GPUs on tray00. Please reduce number of \
        processes to match GPU count.\n";
    let text = multinode(1, &square(NAME, READ, 4).test(2));
    let parsed = read(&text.replace("Process 0", &format!("{warning}Process 0")));
    assert_eq!(problems(&parsed), [(Inconsistent, None)]);
    assert_eq!(parsed.problems[0].host.as_deref(), Some("tray00"));
}

#[test]
fn an_output_cut_at_any_byte_keeps_only_what_was_whole() {
    let printed = square(NAME, READ, 4);
    let text = multinode(1, &printed.test(2));
    let start = text.find("Running").expect("a test");
    let end = text.find("NOTE").expect("a note");
    for cut in start + 8..end {
        let parsed = read(&text[..cut]);
        assert!(!parsed.complete, "{cut}");
        assert!(parsed.has_problem(Truncated), "{cut}");
        assert!(
            !parsed.has_problem(Unrecognised) && !parsed.has_problem(Inconsistent),
            "{:?}",
            parsed.problems
        );
        for m in matrices(&parsed) {
            assert_eq!(m.testcase.as_deref(), Some(NAME));
            assert!(m.sum.is_none_or(|sum| (sum - printed.sum()).abs() < 0.01), "{cut}");
            for (i, j, value) in m.numbers() {
                assert_eq!(Some(value), printed.cells[i][j], "{cut}");
            }
        }
    }
    // One byte before the end of the last row, and at it.
    let row = text.find("\n\nSUM").expect("a sum");
    let got = |cut: usize| matrix(&read(&text[..cut]), NAME).cells[3][2];
    assert_eq!(
        (got(row), got(row - "       N/A".len())),
        (printed.cells[3][2], printed.cells[3][2])
    );
    assert_eq!(got(row - "       N/A".len() - 1), None);
}

#[test]
fn the_cut_name_of_a_test_is_not_a_name() {
    let text = format!("{}{}Running all_to_ho", old_head("v0.2"), line(H2D_CE, H2D, 2).test(1));
    let parsed = read(&text);
    assert_eq!(problems(&parsed), [(Truncated, None)]);
    let parsed = read(&(text + "st_memcpy_ce."));
    assert_eq!(problems(&parsed), [(Truncated, Some("all_to_host_memcpy_ce"))]);
}

#[test]
fn a_damaged_name_is_read_from_the_sum() {
    let text = line(H2D_CE, H2D, 2).test(2).replacen("host_to_device", "host_\u{0}to_device", 1);
    let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(names(&parsed), [H2D_CE]);
    assert_eq!(problems(&parsed), [(Unrecognised, None)]);
}

#[test]
fn an_error_without_a_text_is_still_an_error() {
    let parsed = read(r#"{"nvbandwidth": {"error": " ", "version": "v0.8", "testcases": []}}"#);
    let [problem] = parsed.problems.as_slice() else { panic!("{:?}", parsed.problems) };
    assert_eq!(problem.kind, Error);
    assert_eq!(problem.detail, "error, no reason given");
    assert!(!parsed.complete);
}
