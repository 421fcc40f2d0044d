//! `fabricgate node probe` by hand on simulated machines: tables and documents of all probes,
//! their gaps, and their ends. `copy` and `broken` test the copy probe's measurements;
//! `Place::ended` checks in every test that no process is left running.

use model::collective::CollectiveDocument;
use model::copy::CopyDocument;
use model::fabric_probe::FabricProbeDocument;
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;
use rustix::process::{Pid, Signal, kill_process};

use crate::copy::machine;
use crate::program::{Place, Ran};
use crate::stub::Machine;

const COLLECTIVE: [&str; 10] = [
    "node",
    "probe",
    "collective",
    "--node=n1",
    "--min=4K",
    "--max=16K",
    "--factor=2",
    "--iterations=2",
    "--warmup=1",
    "--no-around",
];

fn collective(place: &Place, words: &[&str]) -> (Ran, CollectiveDocument) {
    let ran = place.run(&[&["--json"], &COLLECTIVE[..], words].concat());
    let document = ran.document();
    (ran, document)
}

fn fabric(place: &Place, words: &[&str]) -> (Ran, FabricProbeDocument) {
    let ran = place.run(&[&["--json", "node", "probe", "fabric", "--node=n1"], words].concat());
    let document = ran.document();
    (ran, document)
}

fn classes(problems: &[ProbeProblem]) -> Vec<&str> {
    problems.iter().map(|problem| problem.class.as_str()).collect()
}

#[test]
fn collectives_of_a_node_are_one_document() {
    let place = Place::of(&machine(3));
    let (ran, document) =
        collective(&place, &["--tests=all_reduce_perf,sendrecv_perf", "--readings=2"]);
    assert_eq!((ran.code, document.complete), (Some(0), true), "{document:#?}");
    assert_eq!(document.problems, []);
    let ranks: Vec<_> =
        document.ranks.iter().map(|it| (it.rank, it.node.as_str(), it.gpu)).collect();
    assert_eq!(ranks, [(0, "n1", 0), (1, "n1", 1), (2, "n1", 2)]);
    let series: Vec<_> = document
        .tests
        .iter()
        .map(|test| (test.testcase.as_str(), test.reading, test.points.len()))
        .collect();
    let (all, send) = ("all_reduce_perf", "sendrecv_perf");
    assert_eq!(series, [(all, 0, 3), (all, 1, 3), (send, 0, 3), (send, 1, 3)]);
    assert!(document.tests.iter().flat_map(|test| &test.points).all(|it| it.wrong == Some(0)));
    assert!(document.nccl.is_some() && !document.transports.is_empty(), "{document:#?}");
    assert_eq!(document.environment["NCCL_DEBUG_FILE"], "/dev/stderr");
}

#[test]
fn some_gpus_of_a_node_are_separate_ranks() {
    let place = Place::of(&machine(3));
    let (ran, document) = collective(&place, &["--gpus=1-2,7", "--readings=1"]);
    let gpus: Vec<u32> = document.ranks.iter().map(|rank| rank.gpu).collect();
    assert_eq!(gpus, [1, 2]);
    assert_eq!(classes(&document.problems), ["no-such-gpu"]);
    assert_eq!((ran.code, document.complete), (Some(4), false));
}

#[test]
fn another_path_than_the_asserted_one_gives_no_measurement() {
    let place = Place::of(&machine(2).with("nccl transport = NET/Socket/0"));
    let (ran, document) = collective(&place, &["--assert=p2p", "--readings=1"]);
    assert_eq!(document.asserted.as_deref(), Some("p2p"));
    assert_eq!(classes(&document.problems), ["another-path"], "{document:#?}");
    assert_eq!(ran.code, Some(4));
}

#[test]
fn a_rank_that_dies_or_hangs_is_named_and_ends_in_time() {
    for (line, class, detail) in [
        ("nccl die 1 = 3", "child-died", "GPU 1 was killed by SIG"),
        ("hang cuDevicePrimaryCtxRetain = 1", "hung", "creating a context on GPU"),
    ] {
        let place = Place::of(&machine(2).with(line).with("nccl deaf = yes"));
        let words = ["--readings=1", "--patience=2", "--silence=2", "--limit=60"];
        let (ran, document) = collective(&place, &words);
        let found = document.problems.iter().find(|it| it.class.as_str() == class);
        let problem = found.unwrap_or_else(|| panic!("{line}: {document:#?}"));
        assert!(problem.detail.contains(detail), "{}", problem.detail);
        assert!(!document.complete);
        assert!(matches!(ran.code, Some(4 | 5)), "{ran:?}");
    }
}

#[test]
fn wrong_results_are_reported_and_end_with_the_code_for_them() {
    let place = Place::of(&machine(2).with("nccl wrong 1 = 2"));
    let (ran, document) = collective(&place, &["--readings=1"]);
    let corrupt = document.problems.iter().find(|it| it.kind == OutputProblemKind::Corrupt);
    assert_eq!(corrupt.expect("reported").gpu, Some(1), "{document:#?}");
    assert_eq!(ran.code, Some(3));
}

#[test]
fn a_missing_part_of_a_node_is_one_clear_message() {
    let place = Place::of(&machine(2));
    let nowhere = place.folder().join("libnccl.so.2");
    let (ran, document) = collective(&place.with("FABRICGATE_NCCL", &nowhere), &[]);
    assert_eq!(classes(&document.problems), ["no-nccl"], "{document:#?}");
    assert_eq!(ran.code, Some(5));
    let place = Place::of(&machine(2));
    let nowhere = place.folder().join("libcuda.so.1");
    let place = place.with("FABRICGATE_CUDA", &nowhere);
    let (ran, document) = collective(&place, &[]);
    assert_eq!((classes(&document.problems), ran.code), (vec!["no-driver"], Some(5)));
    let (ran, document) = fabric(&place, &[]);
    assert_eq!((classes(&document.problems), ran.code), (vec!["no-driver"], Some(5)));
}

#[test]
fn a_driver_that_hangs_while_gpus_are_listed_is_reported() {
    let place = Place::of(&machine(2).with("hang cuInit = 1"));
    let (ran, document) = collective(&place, &["--silence=2"]);
    assert_eq!(classes(&document.problems), ["hung"]);
    assert!(document.problems[0].detail.contains("initializing the driver"), "{document:#?}");
    assert_eq!(ran.code, Some(5));
}

#[test]
fn ways_of_sharing_memory_are_reported_step_by_step() {
    let (ran, document) = fabric(&Place::of(&machine(2)), &[]);
    assert_eq!(document.gpus.len(), 2);
    let result = |step: &str, gpu: u32| {
        let found = document.steps.iter().find(|it| it.step == step && it.gpu == Some(gpu));
        found.map_or("", |it| it.message.as_str())
    };
    for gpu in 0..2 {
        for step in ["ipc-create", "ipc-open", "ipc-data", "fabric-create", "fabric-data"] {
            assert_eq!(result(step, gpu), "ok", "{step}: {document:#?}");
        }
    }
    assert_eq!((ran.code, document.complete), (Some(0), true), "{document:#?}");
}

#[test]
fn a_fabric_without_permission_is_a_result_and_not_a_fault() {
    let place = Place::of(&machine(1).with("fail cuMemCreate = 800"));
    let (ran, document) = fabric(&place, &[]);
    let step = document.steps.iter().find(|it| it.step == "fabric-create").expect("tried");
    assert!(step.message.contains("800"), "{}", step.message);
    assert!(
        document.problems.iter().all(|it| it.kind == OutputProblemKind::Error),
        "{document:#?}"
    );
    assert_eq!((ran.code, document.complete), (Some(4), false));
}

#[test]
fn processes_that_die_leave_the_steps_until_then() {
    let place = Place::of(&machine(1).with("die cuIpcOpenMemHandle_v2 = 1"));
    let (ran, document) = fabric(&place, &[]);
    let died =
        document.problems.iter().find(|it| it.class.as_str() == "child-died").expect("it died");
    assert!(died.detail.contains("process was killed by SIGABRT"), "{died:?}");
    let created =
        document.steps.iter().find(|it| it.step == "ipc-create").expect("reported earlier");
    assert_eq!(created.message, "ok");
    assert_eq!(ran.code, Some(4));
}

#[test]
fn everything_is_one_readable_account() {
    let place = Place::of(&machine(2).with("gpu memory = 67108864"));
    let words = ["node", "probe", "all", "--node=n1", "--buffer=1", "--readings=2", "--max=8M"];
    let ran = place.run(&words);
    for part in [
        "== Copies\n",
        "== Sharing of memory\n",
        "== Collectives\n",
        "host_to_device_memcpy_ce",
        "device_to_device_memcpy_read_ce, GB/s, median of 2 readings; the row issues the copy",
        "PCIe under load",
        "fabric-create",
        "all_reduce_perf, float, median of 2 readings",
        "alltoall_perf",
        "busbw GB/s",
    ] {
        assert!(ran.out.contains(part), "{part}: {} {}", ran.out, ran.err);
    }
    assert!(!ran.out.contains('\u{1b}'), "no colours without a terminal");
    assert!(matches!(ran.code, Some(0 | 4)), "{ran:?}");
}

#[test]
fn a_machine_without_a_driver_gets_one_reason_for_each_part() {
    let place = Place::of(&Machine::of(1));
    let nowhere = place.folder().join("libcuda.so.1");
    let place = place.with("FABRICGATE_CUDA", &nowhere);
    let ran = place.run(&["node", "probe", "all", "--node=n1", "--no-around"]);
    assert_eq!(ran.out.matches("no-driver: ").count(), 3, "{}", ran.out);
    assert_eq!(ran.code, Some(5));
    let ran = place.run(&["--json", "node", "probe", "all", "--node=n1", "--no-around"]);
    let lines: Vec<serde_json::Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).expect("a document")).collect();
    let formats: Vec<_> = lines.iter().filter_map(|it| it["format"].as_str()).collect();
    let expected = ["fabricgate.copy/1", "fabricgate.fabric/1", "fabricgate.collective/1"];
    assert_eq!(formats, expected);
}

const COPY: [&str; 7] = [
    "node",
    "probe",
    "copy",
    "--buffer=1",
    "--copies=2",
    "--tests=host_to_device_memcpy_ce",
    "--node=n1",
];

#[test]
fn the_drivers_telemetry_around_a_measurement_is_in_its_document() {
    let place = Place::of(&machine(2));
    let ran = place.run(&[&["--json"], &COPY[..]].concat());
    let document: CopyDocument = ran.document();
    assert!(document.complete, "{document:#?}");
    let around = document.around.expect("it was asked");
    let indices: Vec<u32> = around.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!(indices, [0, 1], "{around:#?}");
    assert!(around.gpus[0].others.is_empty(), "fabricgate's processes do not count: {around:#?}");
}

#[test]
fn a_silent_driver_around_a_probe_does_not_prevent_it() {
    let place = Place::of(&machine(2));
    let nowhere = place.folder().join("libnvidia-ml.so.1");
    let ran = place.with("FABRICGATE_NVML", &nowhere).run(&[&["--json"], &COPY[..]].concat());
    let document: CopyDocument = ran.document();
    assert!(document.complete, "{document:#?}");
    let around = document.around.expect("reported");
    assert!(around.gpus.is_empty() && !around.missing.is_empty(), "{around:#?}");
}

#[test]
fn control_c_prints_the_measurements() {
    let machine = machine(2).with("hang cuEventElapsedTime = 9").with("calls = {folder}/calls");
    let place = Place::of(&machine);
    interrupted_at_the_hang(&place, &[&COPY[..], &["--no-around"]].concat());
}

#[test]
fn control_c_ends_all_processes() {
    let machine = machine(2).with("hang cuEventElapsedTime = 9").with("calls = {folder}/calls");
    let place = Place::of(&machine);
    let output = interrupted_at_the_hang(&place, &["node", "probe", "all", "--buffer=1"]);
    assert!(!output.contains("Sharing") && !output.contains("Collectives"), "{output}");
}

/// Interrupts a probe when its copies hang; its output then.
fn interrupted_at_the_hang(place: &Place, words: &[&str]) -> String {
    let started = place.start(words);
    let calls = place.folder().join("calls");
    let since = std::time::Instant::now();
    let times = |text: String| text.matches(" cuEventElapsedTime").count();
    while std::fs::read_to_string(&calls).map_or(0, times) < 9 {
        assert!(since.elapsed() < std::time::Duration::from_secs(60), "it does not come that far");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let attendant = Pid::from_raw(i32::try_from(started.id()).expect("small")).expect("a process");
    kill_process(attendant, Signal::INT).expect("reported");
    let ran = place.ended(started);
    let measured = ran.out.lines().find(|line| line.contains("host_to_device_memcpy_ce"));
    assert!(measured.is_some_and(|line| line.contains("55.00")), "{}", ran.out);
    assert!(ran.out.contains("because the probe was interrupted"), "{}", ran.out);
    assert_eq!(ran.code, Some(4));
    ran.out
}

#[test]
fn a_dry_run_lists_the_measurements_and_measures_nothing() {
    let machine = machine(2).with("fail cuDevicePrimaryCtxRetain = 999");
    let place = Place::of(&machine);
    let ran = place.run(&["node", "probe", "copy", "--set=full", "--dry-run"]);
    assert!(ran.out.contains("device_to_device_latency_ce"), "{}", ran.out);
    assert!(ran.out.contains("2 GPUs: about "), "{}", ran.out);
    assert_eq!(ran.code, Some(0));
    let ran = place.run(&["node", "probe", "collective", "--dry-run", "--tests=all"]);
    assert!(ran.out.contains("reduce_scatter_perf") && ran.out.contains("[0, 1]"), "{}", ran.out);
}

#[test]
fn contradictory_options_are_refused() {
    let place = Place::of(&machine(1));
    for (words, message) in [
        (&["collective", "--assert=nvls", "--no-nvls"][..], "exclude each other"),
        (&["collective", "--min=1G", "--max=1M"], "is above --max"),
        (&["collective", "--min=1X"], "expected bytes"),
        (&["copy", "--gpus=3-1"], "is less than"),
        (&["copy", "--set=full", "--tests=x"], "cannot be used with"),
        (&["all", "--max=much"], "expected bytes"),
    ] {
        let ran = place.run(&[&["node", "probe"], words].concat());
        assert_eq!(ran.code, Some(2), "{words:?}: {ran:?}");
        assert!(ran.err.contains(message), "{words:?}: {}", ran.err);
    }
}
