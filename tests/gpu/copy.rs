//! `fabricgate node probe copy` on simulated machines that work: the numbers are the machine's,
//! each in its place, and wrong data is reported.

use std::path::Path;

use model::copy::{CopyDocument, CopyTest};
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;

use crate::program::{Place, Ran};
use crate::stub::{Library, Machine};

/// Few and small copies.
const SMALL: [&str; 10] = [
    "--json",
    "node",
    "probe",
    "copy",
    "--buffer=1",
    "--copies=2",
    "--warmup=1",
    "--warmup-ms=0",
    "--node=n1",
    "--no-around",
];

/// A machine without a cache to bypass, on which small copies take no longer than large ones.
pub(crate) fn machine(gpus: u32) -> Machine {
    Machine::of(gpus).with("gpu cache = 1048576").with("latency = 0.001")
}

/// The document of these tests' probe on that machine, with two readings by default.
pub(crate) fn probe(place: &Place, tests: &str, words: &[&str]) -> (Ran, CopyDocument) {
    let tests = format!("--tests={tests}");
    let is_told = words.iter().any(|word| word.starts_with("--readings"));
    let readings: &[&str] = if is_told { &[] } else { &["--readings=2"] };
    let ran = place.run(&[&SMALL[..], &[&tests], readings, words].concat());
    let document: CopyDocument = ran.document();
    assert_eq!(document.node, "n1");
    (ran, document)
}

/// A table of numbers as printed, with `-` for a missing one.
pub(crate) fn table(document: &CopyDocument, test: &str, reading: usize) -> String {
    let found = document.tests.iter().find(|it| it.testcase == test);
    let found: &CopyTest = found.unwrap_or_else(|| panic!("{test}: {document:#?}"));
    let cell = |value: &Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let row = |row: &Vec<Option<f64>>| row.iter().map(cell).collect::<Vec<_>>().join(" ");
    let rows = found.readings.get(reading).map(|rows| rows.iter().map(row).collect::<Vec<_>>());
    rows.unwrap_or_default().join(" | ")
}

pub(crate) fn only(document: &CopyDocument) -> &ProbeProblem {
    match document.problems.as_slice() {
        [only] => only,
        others => panic!("not one problem: {others:#?}"),
    }
}

const DOWN: &str = "host_to_device_memcpy_ce";
const READ: &str = "device_to_device_memcpy_read_ce";
const WRITE: &str = "device_to_device_memcpy_write_ce";

#[test]
fn each_number_is_the_machines_and_in_its_place() {
    let machine = machine(3)
        .with("gpu 1 down = 20")
        .with("gpu 2 up = 10")
        .with("local = 900")
        .with("pair = 400")
        .with("pair 0 1 = 350")
        .with("gpu 2 name = Stub H200");
    let tests = format!(
        "host_to_device_memcpy_ce,device_to_host_memcpy_ce,{READ},{WRITE},device_local_copy"
    );
    let (ran, document) = probe(&Place::of(&machine), &tests, &[]);
    assert_eq!((ran.code, document.complete), (Some(0), true), "{document:#?}");
    assert_eq!(document.problems, []);
    assert_eq!(document.cuda.as_deref(), Some("13.0"));
    for reading in 0..2 {
        let of = |test: &str| table(&document, test, reading);
        assert_eq!(of("host_to_device_memcpy_ce"), "55.0 20.0 55.0");
        assert_eq!(of("device_to_host_memcpy_ce"), "55.0 55.0 10.0");
        // GPU 1 pulls from GPU 0; GPU 0 writes to GPU 1.
        assert_eq!(of(READ), "- 400.0 400.0 | 350.0 - 400.0 | 400.0 400.0 -");
        assert_eq!(of(WRITE), "- 350.0 400.0 | 400.0 - 400.0 | 400.0 400.0 -");
        assert_eq!(of("device_local_copy"), "900.0 900.0 900.0");
    }
    let gpus: Vec<_> = document.gpus.iter().map(|gpu| (gpu.index, gpu.name.as_deref())).collect();
    assert_eq!(gpus, [(0, Some("Stub H100")), (1, Some("Stub H100")), (2, Some("Stub H200"))]);
    assert_eq!(document.gpus[1].bus_id.as_deref(), Some("0000:2b:00.0"));
    let uuid = document.gpus[1].uuid.as_deref();
    assert_eq!(uuid, Some("GPU-abababab-abab-abab-0000-0001abababab"));
}

#[test]
fn gpus_are_counted_along_the_bus_whatever_the_driver_thinks() {
    let machine = machine(2).with("gpu 0 bus = 0000:C1:00.0").with("gpu 0 down = 20");
    let place = Place::of(&machine);
    let (_, document) = probe(&place, "host_to_device_memcpy_ce", &[]);
    assert_eq!(document.gpus[0].bus_id.as_deref(), Some("0000:2b:00.0"));
    assert_eq!(table(&document, "host_to_device_memcpy_ce", 0), "55.0 20.0");
    // Requested by that number.
    let (ran, document) = probe(&place, "host_to_device_memcpy_ce", &["--gpus=1,4"]);
    assert_eq!(document.gpus[0].bus_id.as_deref(), Some("0000:c1:00.0"));
    assert_eq!(table(&document, "host_to_device_memcpy_ce", 1), "20.0");
    let problem = only(&document);
    assert_eq!((problem.class.as_str(), problem.gpu), ("no-such-gpu", Some(4)));
    assert_eq!((ran.code, document.complete), (Some(4), false));
}

#[test]
fn a_gpu_has_the_same_number_whichever_are_shown() {
    let machine = machine(3).with("gpu 2 down = 20");
    let place = Place::of(&machine).with("CUDA_VISIBLE_DEVICES", Path::new("2"));
    // As the driver's kernel module lists all of them.
    for gpu in 0..3 {
        let gpus = format!("proc/driver/nvidia/gpus/0000:{:02x}:00.0", 0x1b + 0x10 * gpu);
        std::fs::create_dir_all(place.folder().join(gpus)).expect("made");
    }
    let root = format!("--root={}", place.folder().display());
    let (ran, document) = probe(&place, DOWN, &[&root]);
    let gpus: Vec<_> = document.gpus.iter().map(|gpu| (gpu.index, gpu.bus_id.as_deref())).collect();
    assert_eq!(gpus, [(2, Some("0000:3b:00.0"))]);
    assert_eq!(document.tests[0].cols, ["2"]);
    assert_eq!(table(&document, DOWN, 0), "20.0");
    assert_eq!(ran.code, Some(0));
}

#[test]
fn copies_at_the_same_time_show_what_a_single_one_hides() {
    // Two GPUs below a root port that is too narrow for both; a switch that is too narrow for all
    // pairs at the same time.
    let machine = machine(4)
        .with("gpu 0 root = a")
        .with("gpu 1 root = a")
        .with("root a = 60")
        .with("pair = 400")
        .with("switch = 600");
    let tests = format!(
        "host_to_device_memcpy_ce,host_to_all_memcpy_ce,{READ},\
         device_to_device_concurrent_memcpy_read_ce,device_to_device_bidirectional_memcpy_read_ce"
    );
    let (_, document) = probe(&Place::of(&machine), &tests, &["--readings=1"]);
    assert!(document.complete, "{document:#?}");
    let of = |test: &str| table(&document, test, 0);
    assert_eq!(of("host_to_device_memcpy_ce"), "55.0 55.0 55.0 55.0");
    assert_eq!(of("host_to_all_memcpy_ce"), "30.0 30.0 55.0 55.0");
    let all = |own: &str| {
        let row =
            |at: usize| (0..4).map(|col| if col == at { "-" } else { own }).collect::<Vec<_>>();
        (0..4).map(|at| row(at).join(" ")).collect::<Vec<_>>().join(" | ")
    };
    assert_eq!(of(READ), all("400.0"));
    assert_eq!(of("device_to_device_concurrent_memcpy_read_ce"), all("300.0"));
    // Both directions of one pair go through the switch too.
    let both = "device_to_device_bidirectional_memcpy_read_ce";
    assert_eq!(of(&format!("{both}_read1")), all("300.0"));
    assert_eq!(of(&format!("{both}_total")), all("600.0"));
}

#[test]
fn a_latency_is_that_of_a_small_copy() {
    let machine = machine(2).with("latency = 4.5");
    let tests = "host_to_device_latency_ce,device_to_device_latency_ce";
    let (_, document) = probe(&Place::of(&machine), tests, &["--readings=1"]);
    assert!(document.tests.iter().all(|test| test.unit == "us"), "{document:#?}");
    assert_eq!(table(&document, "host_to_device_latency_ce", 0), "4.5 4.5");
    assert_eq!(table(&document, "device_to_device_latency_ce", 0), "- 4.5 | 4.5 -");
}

#[test]
fn wrong_data_is_reported_for_its_path_and_the_numbers_stay() {
    let place = Place::of(&machine(3).with("wrong-data 2 0"));
    let (ran, document) = probe(&place, READ, &[]);
    let problem = only(&document);
    assert_eq!(problem.kind, OutputProblemKind::Corrupt);
    assert_eq!((problem.class.as_str(), problem.gpu), ("wrong-data", Some(0)));
    assert_eq!(problem.testcase.as_deref(), Some(READ));
    assert!(problem.detail.contains("from GPU 2 to GPU 0"), "{}", problem.detail);
    assert_eq!(table(&document, READ, 1), "- 390.0 390.0 | 390.0 - 390.0 | 390.0 390.0 -");
    assert_eq!((ran.code, document.complete), (Some(3), true));
    let place = Place::of(&machine(1).with("wrong-data host 0"));
    let tests = "host_to_device_memcpy_ce,device_local_copy";
    let (ran, document) = probe(&place, tests, &["--readings=1"]);
    let reported = document.problems.iter().any(|it| it.testcase.as_deref() == Some(DOWN));
    assert!(reported, "{document:#?}");
    assert_eq!(ran.code, Some(3));
}

#[test]
fn one_gpu_has_no_pairs_and_that_is_no_fault() {
    let tests = format!("host_to_device_memcpy_ce,{READ},device_local_copy");
    let (ran, document) = probe(&Place::of(&machine(1)), &tests, &[]);
    let problem = only(&document);
    assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Waived, "one-gpu"));
    assert_eq!((ran.code, document.complete), (Some(0), true), "{document:#?}");
    assert_eq!(table(&document, "host_to_device_memcpy_ce", 0), "55.0");
    assert!(document.tests.iter().all(|test| test.testcase != READ), "no numbers of nothing");
}

#[test]
fn pairs_that_do_not_reach_each_other_have_no_number() {
    let place = Place::of(&machine(3).with("no-peer 0 2").with("no-peer 2 0"));
    let (ran, document) = probe(&place, READ, &[]);
    let problem = only(&document);
    assert_eq!(
        (problem.kind, problem.class.as_str()),
        (OutputProblemKind::Waived, "no-peer-access")
    );
    assert_eq!(table(&document, READ, 0), "- 390.0 - | 390.0 - 390.0 | - 390.0 -");
    assert_eq!((ran.code, document.complete), (Some(0), true));
}

#[test]
fn a_driver_whose_streams_cannot_wait_for_the_host_measures_the_same() {
    let symbol = "cuStreamWaitValue32_v2";
    for machine in [
        machine(2).with("stream-memory = no"),
        machine(2).without(Library::Cuda, &[symbol, "cuDeviceGetUuid_v2", "cuGetErrorName"]),
    ] {
        let tests = format!("host_to_device_memcpy_ce,{READ}");
        let (_, document) = probe(&Place::of(&machine), &tests, &[]);
        assert_eq!((document.complete, document.problems.len()), (true, 0), "{document:#?}");
        assert_eq!(table(&document, "host_to_device_memcpy_ce", 0), "55.0 55.0");
        assert_eq!(table(&document, READ, 1), "- 390.0 | 390.0 -");
    }
}

#[test]
fn nothing_is_left_when_it_has_ended() {
    // The driver refuses to free memory that it did not allocate, and to free it twice; the
    // recorded calls show memory that was never freed.
    let place = Place::of(&machine(2).with("calls = {folder}/calls"));
    let kept = place.folder().join("calls");
    let (ran, _) = probe(&place, &format!("{DOWN},{READ}"), &[]);
    assert_eq!(ran.code, Some(0));
    let kept = std::fs::read_to_string(kept).expect("kept");
    let count =
        |call: &str| kept.lines().filter(|line| line.ends_with(&format!(" {call}"))).count();
    for (taken, given) in [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
    ] {
        assert!(0 < count(taken), "{taken} is called");
        assert_eq!(count(taken), count(given), "{taken} and {given}");
    }
}
