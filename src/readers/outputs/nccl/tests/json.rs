//! The file of `-J`: every version, truncated and unusual files, and several in one.

use super::render::{NcclTestsRelease, RenderedNcclOutput};
use super::{problem_kinds, read, series};
use crate::outputs;
use model::measurement::{BufferPlacement, Measurement};
use model::parse_output::{OutputProblemKind, Tool};

/// A `-J` file of two rows on 16 ranks.
pub(super) fn json(version: u32) -> String {
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
        assert_eq!((point.bytes, point.placement), (4096, Some(BufferPlacement::InPlace)));
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
fn strings_of_a_pretty_printed_json_file_next_to_the_text_are_not_read() {
    let environment = format!(
        "{{\n  \"env\": [\n    \"A=srun: error: {SECRET}\",\n    \"B=x: Test CUDA failure a.cu:1 \
         '{SECRET}'\"\n  ]\n}}\n"
    );
    let text = RenderedNcclOutput::new(NcclTestsRelease::Wrong).text();
    for text in [environment.clone() + &text, text + &environment] {
        let parsed = read(&text);
        assert!(!format!("{parsed:?}").contains(SECRET) && parsed.complete, "{parsed:#?}");
    }
}

#[test]
fn a_json_file_behind_a_launchers_prefix_is_read() {
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
        let parsed = outputs::parse_output(&whole.as_bytes()[..end]);
        assert!(!parsed.complete, "{end}");
        assert!(!format!("{parsed:?}").contains(SECRET), "{end}");
        if parsed.tool == Some(Tool::NcclTests) {
            assert!(parsed.has_problem(OutputProblemKind::Truncated), "{end}");
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
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Truncated]);
}

#[test]
fn json_verdicts_are_strings_and_unchecked_data_is_null() {
    let failed = json(3).replace("\"count\":0,\"okay\":\"true\"", "\"count\":4,\"okay\":\"false\"");
    assert_eq!(problem_kinds(&read(&failed)), [OutputProblemKind::Corrupt]);
    let slow = json(3).replace("\"unchecked\"", "\"false\"");
    assert_eq!(problem_kinds(&read(&slow)), [OutputProblemKind::Error]);
    let unchecked = json(3)
        .replace("\"nwrong\":0.000000", "\"nwrong\":null")
        .replace("\"validation\":1", "\"validation\":0");
    let parsed = read(&unchecked);
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Unverified]);
    let errors = json(3).replace("\"errors\":[\"\"]", "\"errors\":[\"socket gone\"]");
    assert_eq!(problem_kinds(&read(&errors)), [OutputProblemKind::Error]);
}

#[test]
fn numbers_that_are_not_finite_become_null() {
    for word in ["inf", "\"nan\""] {
        let text = json(3).replacen("\"alg_bw\":0.204800", &format!("\"alg_bw\":{word}"), 1);
        let parsed = read(&text);
        assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Unrecognised], "{word}");
        assert_eq!(series(&parsed, 0).points[0].algbw, None);
    }
}

pub(super) const SECRET: &str = "hunter2-of-the-environment";
