//! Problems of a run: wrong elements, missing checks, failures of launchers and libraries,
//! contradictory numbers.

use super::render::{NcclTestsRelease, RenderedNcclOutput};
use super::{problem, problem_kinds, read, series};
use model::parse_output::OutputProblemKind;

#[test]
fn wrong_elements_and_the_tools_own_verdict_are_corrupt() {
    let mut output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    output.rows[2].1[1].wrong = Some(12);
    let text = output.text().replace("values : 0 OK", "values : 3 FAILED")
        + " .. gpu-0 pid 40: Test failure common.cu:9\n";
    let parsed = read(&text);
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Corrupt, OutputProblemKind::Corrupt]);
    assert_eq!(series(&parsed, 0).points[5].wrong, Some(12.0));
    assert!(parsed.complete && !parsed.is_sound());
    let old = RenderedNcclOutput::new(NcclTestsRelease::Old)
        .text()
        .replace("values : 0 OK", "values : 8 FAILED");
    assert_eq!(problem_kinds(&read(&old)), [OutputProblemKind::Corrupt]);
}

#[test]
fn bitwise_mismatches_are_corrupt_when_the_tool_says_failed() {
    let line = |verdict: &str| format!("# Bitwise mismatches   : {verdict}\n# Avg");
    let text = RenderedNcclOutput::new(NcclTestsRelease::Bitwise).text();
    assert_eq!(problem_kinds(&read(&text.replace("# Avg", &line("0 OK")))), []);
    let failed = read(&text.replace("# Avg", &line("4 FAILED")));
    assert_eq!(problem_kinds(&failed), [OutputProblemKind::Corrupt]);
}

#[test]
fn an_average_below_the_sites_limit_is_an_error_and_not_corrupt() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    let at = text.find(" \n#\n").filter(|_| text.ends_with(" \n#\n")).expect("an open verdict");
    assert!(text[..at].contains("Avg"));
    let failed = format!("{} FAILED\n .. gpu-0 pid 40: Test failure common.cu:9\n", &text[..at]);
    let parsed = read(&failed);
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Error]);
    assert!(parsed.problems[0].detail.contains("NCCL_TESTS_MIN_BW"));
    assert!(series(&parsed, 0).average_busbw.is_some());
}

#[test]
fn unchecked_data_is_unverified_once_and_named() {
    let mut output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    for (_, halves) in &mut output.rows {
        halves.iter_mut().for_each(|half| half.wrong = None);
    }
    let parsed = read(&output.text().replace("validation: 1", "validation: 0"));
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Unverified]);
    assert_eq!(parsed.problems[0].testcase.as_deref(), Some("all_reduce_perf"));
    assert!(series(&parsed, 0).points.iter().all(|p| p.wrong.is_none()));
    assert!(parsed.is_sound());
}

#[test]
fn in_place_without_a_check_is_not_a_gap_where_the_test_has_none() {
    let mut output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    for (_, halves) in &mut output.rows {
        for half in halves.iter_mut() {
            half.busbw = half.algbw * 0.875;
        }
        halves[1].wrong = None;
    }
    let alltoall = output.text().replace("all_reduce_perf", "alltoall_perf");
    let parsed = read(&alltoall);
    assert_eq!(problem_kinds(&parsed), []);
    let gather = alltoall.replace("alltoall_perf", "all_gather_perf");
    assert_eq!(problem_kinds(&read(&gather)), [OutputProblemKind::Unverified]);
}

#[test]
fn a_cuda_failure_in_the_middle_of_a_row_names_its_host() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
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
    let errors: Vec<_> =
        parsed.problems.iter().filter(|p| p.kind == OutputProblemKind::Error).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors.iter().all(|p| p.host.as_deref() == Some("gpu-1")));
    assert_eq!((errors[0].gpu, errors[2].rank), (Some(2), Some(6)));
    assert_eq!(errors[1].code.as_deref(), Some("cudaErrorNvlinkUncorrectable"));
    assert_eq!(errors[1].testcase.as_deref(), Some("all_reduce_perf"));
    assert_eq!(series(&parsed, 0).points.len(), 6);
    assert!(parsed.has_problem(OutputProblemKind::Truncated));
    // A process with two GPUs is not a rank.
    let parsed = read(&broken.replace("nGpus 1", "nGpus 2"));
    assert!(parsed.problems.iter().all(|p| p.rank.is_none()), "{:?}", parsed.problems);
}

#[test]
fn the_librarys_own_version_line_is_kept_over_a_version_code() {
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong)
        .text()
        .replace("#  size", "NCCL version 2.27.3+cuda12.9\n#  size");
    assert_eq!(read(&text).facts.nccl.as_deref(), Some("2.27.3+cuda12.9"));
}

#[test]
fn a_warning_of_a_successful_run_is_not_an_error() {
    let warning = "gpu-0:40:41 [0] net.cc:5 NCCL WARN no such plugin\n";
    let parsed =
        read(&format!("{warning}{}", RenderedNcclOutput::new(NcclTestsRelease::Wrong).text()));
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
        assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Error], "{text}");
        assert!(!parsed.complete && parsed.measurements.is_empty());
    }
}

#[test]
fn an_impossible_factor_is_inconsistent() {
    let mut output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    for (_, halves) in &mut output.rows {
        // Larger numbers, so that rounding explains no difference.
        halves.iter_mut().for_each(|half| {
            half.time /= 100.0;
            half.algbw *= 100.0;
            half.busbw = half.algbw * 0.99;
        });
    }
    let parsed = read(&output.text());
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Inconsistent]);
    assert!(parsed.problems[0].detail.contains("on 8 ranks"), "{:?}", parsed.problems);
    let table = output.table() + &output.footer();
    let parsed = read(&table);
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Inconsistent], "without ranks and name");
    assert_eq!(series(&parsed, 0).testcase, None);
}

#[test]
fn a_changed_row_or_average_is_inconsistent() {
    let output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    let text = output.text();
    let average = format!("{:.4}", output.average());
    let parsed = read(&text.replace(&average, "9.5"));
    assert!(problem(&parsed, OutputProblemKind::Inconsistent).detail.contains("mean"));
    let mut output = RenderedNcclOutput::new(NcclTestsRelease::Wrong);
    for (_, halves) in &mut output.rows {
        halves[0].time /= 2.0;
    }
    let parsed = read(&output.text());
    assert!(problem(&parsed, OutputProblemKind::Inconsistent).detail.contains("size over time"));
    let cpu = output.text().replace("  time ", "  cputime ");
    assert_eq!(read(&cpu).problems, []);
}
