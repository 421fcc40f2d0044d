//! The copy-engine probe on simulated machines: its numbers per cell, its reports of faults, and
//! the release of every resource.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;
use node::probes::copy;
use node::probes::protocol::{ProbeEmitter, ProbeMessage};
use node::probes::task::CopyTask;

use crate::stub::{Library, Machine};

/// Output of a probe, and its progress messages.
#[derive(Debug)]
struct ProbeOutput {
    lines: Vec<ProbeMessage>,
    progress: String,
}

fn task(tests: &[&str]) -> CopyTask {
    CopyTask {
        cuda: None,
        root: crate::root_with_module(),
        node: "n1".to_owned(),
        gpus: Vec::new(),
        tests: tests.iter().map(|test| (*test).to_owned()).collect(),
        readings: 1,
        buffer_bytes: 64 << 10,
        copies: 2,
        warmup: 1,
        warmup_ms: 0,
        across: None,
    }
}

fn measured(machine: &Machine, task: CopyTask) -> ProbeOutput {
    let folder = tempfile::tempdir().expect("a folder");
    let library = machine.driver(folder.path(), Library::Cuda);
    outcome_of(&CopyTask { cuda: Some(library), ..task })
}

fn outcome_of(task: &CopyTask) -> ProbeOutput {
    let (mut out, mut progress) = (Vec::new(), Vec::new());
    let mut input: &[u8] = b"";
    let mut emitter = ProbeEmitter::new(&mut out, &mut progress, &mut input);
    copy::measure(task, &mut emitter).expect("the receiver exists");
    let text = String::from_utf8(out).expect("text");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    ProbeOutput { lines, progress: String::from_utf8(progress).expect("text") }
}

impl ProbeOutput {
    /// The numbers of a test by row and column, one per reading.
    fn cells(&self, test: &str) -> BTreeMap<(String, String), Vec<f64>> {
        let mut cells: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for line in &self.lines {
            if let ProbeMessage::Cell(cell) = line
                && cell.testcase == test
            {
                let values = cells.entry((cell.row.clone(), cell.col.clone())).or_default();
                assert_eq!(values.len(), cell.reading as usize, "in order: {cell:?}");
                values.push((cell.value * 1000.0).round() / 1000.0);
            }
        }
        cells
    }

    fn at(&self, test: &str, row: u32, col: u32) -> Option<f64> {
        Some(self.cells(test).get(&(row.to_string(), col.to_string()))?[0])
    }

    fn row(&self, test: &str) -> Vec<f64> {
        self.cells(test).into_values().map(|values| values[0]).collect()
    }

    fn problems(&self) -> Vec<&ProbeProblem> {
        let problems = self.lines.iter().filter_map(|line| match line {
            ProbeMessage::Problem(problem) => Some(problem),
            _ => None,
        });
        problems.collect()
    }

    fn only_problem(&self) -> &ProbeProblem {
        let problems = self.problems();
        assert_eq!(problems.len(), 1, "{problems:#?}");
        problems[0]
    }

    fn is_complete(&self) -> bool {
        self.lines.contains(&ProbeMessage::End)
    }
}

/// A machine whose copies cost only their bytes.
fn machine(gpus: u32) -> Machine {
    Machine::of(gpus).with("latency = 0").with("pair = 400").with("local = 1500")
}

#[test]
fn every_test_gives_every_cell_at_the_machine_s_rates() {
    let machine = machine(3).with("gpu down = 50").with("gpu up = 40").with("port = 600");
    let names: Vec<&str> = copy::cases::case_names().collect();
    let outcome = measured(&machine, CopyTask { readings: 2, ..task(&names) });
    assert!(outcome.problems().is_empty() && outcome.is_complete(), "{:#?}", outcome.problems());
    for (test, rate) in [
        ("host_to_device_memcpy_ce", 50.0),
        ("device_to_host_memcpy_ce", 40.0),
        ("host_to_device_bidirectional_memcpy_ce", 50.0),
        ("device_to_host_bidirectional_memcpy_ce", 40.0),
        ("all_to_host_memcpy_ce", 40.0),
        ("all_to_host_bidirectional_memcpy_ce", 40.0),
        ("host_to_all_memcpy_ce", 50.0),
        ("host_to_all_bidirectional_memcpy_ce", 50.0),
        // Two others at 400, and a port that carries 600.
        ("all_to_one_write_ce", 600.0),
        ("all_to_one_read_ce", 600.0),
        ("one_to_all_write_ce", 600.0),
        ("one_to_all_read_ce", 600.0),
        ("device_local_copy", 1500.0),
    ] {
        let cells = outcome.cells(test);
        assert_eq!(cells.len(), 3, "{test}");
        for (at, values) in cells {
            assert_eq!((at.0.as_str(), values), ("0", vec![rate; 2]), "{test}");
        }
    }
    for (test, rate) in [
        ("device_to_device_memcpy_read_ce", 400.0),
        ("device_to_device_memcpy_write_ce", 400.0),
        ("device_to_device_bidirectional_memcpy_read_ce_read1", 400.0),
        ("device_to_device_bidirectional_memcpy_write_ce_write2", 400.0),
        ("device_to_device_bidirectional_memcpy_write_ce_total", 800.0),
        ("device_to_device_concurrent_memcpy_read_ce", 400.0),
        ("device_to_device_concurrent_memcpy_write_ce", 400.0),
    ] {
        let cells = outcome.cells(test);
        assert_eq!(cells.len(), 6, "{test}");
        for ((row, col), values) in cells {
            assert!(row != col, "{test}");
            assert_eq!(values, [rate; 2], "{test}");
        }
    }
}

#[test]
fn a_write_goes_from_row_to_column_and_a_read_comes_from_column_to_row() {
    let outcome = measured(
        &machine(2).with("pair 0 1 = 200"),
        task(&[
            "device_to_device_memcpy_write_ce",
            "device_to_device_memcpy_read_ce",
            "device_to_device_bidirectional_memcpy_read_ce",
            "device_to_device_bidirectional_memcpy_write_ce",
            "all_to_one_write_ce",
            "all_to_one_read_ce",
        ]),
    );
    let both = |test: &str| [outcome.at(test, 0, 1), outcome.at(test, 1, 0)].map(Option::unwrap);
    assert_eq!(both("device_to_device_memcpy_write_ce"), [200.0, 400.0]);
    assert_eq!(both("device_to_device_memcpy_read_ce"), [400.0, 200.0]);
    assert_eq!(both("device_to_device_bidirectional_memcpy_read_ce_read1"), [400.0, 200.0]);
    assert_eq!(both("device_to_device_bidirectional_memcpy_write_ce_write1"), [400.0, 200.0]);
    assert_eq!(both("device_to_device_bidirectional_memcpy_write_ce_total"), [600.0, 600.0]);
    // Data sent to the one, and data that the others read from it.
    assert_eq!(outcome.row("all_to_one_write_ce"), [400.0, 200.0]);
    assert_eq!(outcome.row("all_to_one_read_ce"), [200.0, 400.0]);
}

#[test]
fn a_switch_or_a_root_port_that_single_copies_do_not_fill_shows_when_all_copy() {
    let mut machine = machine(4).with("switch = 500").with("gpu up = 50").with("root a = 60");
    for gpu in [0, 1] {
        machine = machine.with(&format!("gpu {gpu} root = a"));
    }
    let outcome = measured(
        &machine,
        task(&[
            "device_to_device_memcpy_write_ce",
            "device_to_device_concurrent_memcpy_write_ce",
            "device_to_host_memcpy_ce",
            "all_to_host_memcpy_ce",
        ]),
    );
    assert_eq!(outcome.row("device_to_device_memcpy_write_ce"), [400.0; 12]);
    assert_eq!(outcome.row("device_to_device_concurrent_memcpy_write_ce"), [250.0; 12]);
    assert_eq!(outcome.row("device_to_host_memcpy_ce"), [50.0; 4]);
    assert_eq!(outcome.row("all_to_host_memcpy_ce"), [30.0, 30.0, 50.0, 50.0]);
}

#[test]
fn the_time_of_a_small_copy_is_in_microseconds() {
    let machine = Machine::of(2).with("latency = 2.5");
    let tests =
        ["host_to_device_latency_ce", "device_to_host_latency_ce", "device_to_device_latency_ce"];
    let outcome = measured(&machine, task(&tests));
    for test in tests {
        assert_eq!(outcome.row(test), [2.5; 2], "{test}");
    }
    let units = outcome.lines.iter().filter_map(|line| match line {
        ProbeMessage::Test(shape) => Some(shape.unit.as_str()),
        _ => None,
    });
    assert_eq!(units.collect::<Vec<_>>(), ["us"; 3]);
}

#[test]
fn wrong_data_fails_its_copy_and_the_number_stays() {
    let tests = ["device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"];
    let machine = machine(3).with("wrong-data 1 2");
    let outcome = measured(&machine, CopyTask { readings: 3, ..task(&tests) });
    let problems = outcome.problems();
    assert_eq!(problems.len(), 2, "{problems:#?}");
    for (problem, (test, by)) in problems.iter().zip(tests.iter().zip([1, 2])) {
        assert_eq!(
            (problem.kind, problem.class.as_str()),
            (OutputProblemKind::Corrupt, "wrong-data")
        );
        assert_eq!((problem.testcase.as_deref(), problem.gpu), (Some(*test), Some(by)));
        // One bit of one word in the middle of each of three copies of 64 KiB.
        let start = "3 words were wrong (first at byte 32768: 0x";
        assert!(problem.detail.starts_with(start), "{}", problem.detail);
        assert!(problem.detail.contains("from GPU 1 to GPU 2"), "{}", problem.detail);
    }
    assert_eq!(outcome.cells(tests[0])[&("1".to_owned(), "2".to_owned())], [400.0; 3]);
    assert!(outcome.is_complete(), "it was measured");
}

#[test]
fn a_host_link_that_spoils_data_is_not_blamed_on_the_fabric() {
    for fault in ["wrong-data host 1", "wrong-data 1 host"] {
        let tests = ["device_to_device_memcpy_read_ce", "host_to_device_memcpy_ce"];
        let outcome = measured(&machine(2).with(fault), task(&tests));
        assert_eq!(outcome.row(tests[0]), [400.0; 2], "{fault}");
        assert!(!outcome.problems().is_empty(), "{fault}");
        for problem in outcome.problems() {
            assert_eq!(
                (problem.kind, problem.gpu),
                (OutputProblemKind::Corrupt, Some(1)),
                "{problem:#?}"
            );
        }
    }
}

#[test]
fn gpus_without_a_way_to_each_other_have_no_number() {
    let tests = ["device_to_device_memcpy_write_ce", "device_to_device_concurrent_memcpy_write_ce"];
    let outcome = measured(&machine(3).with("no-peer 0 2"), task(&tests));
    let problem = outcome.only_problem();
    assert_eq!(
        (problem.kind, problem.class.as_str()),
        (OutputProblemKind::Waived, "no-peer-access")
    );
    assert!(problem.detail.starts_with("GPU 0 and GPU 2 have no peer"), "{}", problem.detail);
    for test in tests {
        assert_eq!(outcome.cells(test).len(), 4, "{test}");
        assert_eq!((outcome.at(test, 0, 2), outcome.at(test, 2, 0)), (None, None));
    }
    assert!(outcome.is_complete());
    let machine = machine(2).with("no-peer 0 1");
    let outcome = measured(&machine, task(&["one_to_all_write_ce"]));
    assert_eq!(outcome.only_problem().testcase.as_deref(), Some("one_to_all_write_ce"));
    assert!(outcome.cells("one_to_all_write_ce").is_empty());
}

#[test]
fn one_gpu_has_everything_but_pairs() {
    let tests = ["device_local_copy", "device_to_device_memcpy_read_ce", "all_to_one_read_ce"];
    let outcome = measured(&machine(1), task(&tests));
    assert_eq!(outcome.row("device_local_copy"), [1500.0]);
    let problems = outcome.problems();
    assert_eq!(problems.len(), 2);
    for problem in problems {
        assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Waived, "one-gpu"));
    }
    assert!(outcome.is_complete());
}

#[test]
fn an_obstacle_to_a_measurement_is_one_problem_with_a_class() {
    let one = || machine(1);
    for (machine, class, code) in [
        (machine(0), "no-device", "CUDA_ERROR_NO_DEVICE"),
        (one().with("fail cuInit = 34"), "stub-library", "CUDA_ERROR_STUB_LIBRARY"),
        (one().with("fail cuInit = 100"), "no-device", "CUDA_ERROR_NO_DEVICE"),
        (one().with("fail cuInit = 803"), "driver-mismatch", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (one().with("fail cuInit = 999"), "driver-failed", "CUDA_ERROR_UNKNOWN"),
        (
            machine(8).with("fail cuDevicePrimaryCtxRetain = 802"),
            "system-not-ready",
            "CUDA_ERROR_SYSTEM_NOT_READY",
        ),
        (
            one().without(Library::Cuda, &["cuDeviceGetPCIBusId"]),
            "driver-too-old",
            "cuDeviceGetPCIBusId",
        ),
        (one().with("gpu compute-mode = 2"), "prohibited-mode", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        (
            one().with("gpu compute-mode = 3").with("gpu busy"),
            "exclusive-mode",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
    ] {
        let outcome = measured(&machine, task(&["device_local_copy"]));
        let problem = outcome.only_problem();
        assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Error, class));
        assert_eq!(problem.code.as_deref(), Some(code), "{class}");
        assert!(!outcome.is_complete(), "{class}");
    }
    // The real library answers so without its kernel module, too.
    let no_module = CopyTask { root: "/no/such/root".into(), ..task(&["device_local_copy"]) };
    let outcome = measured(&machine(0), no_module);
    assert_eq!(outcome.only_problem().class.as_str(), "driver-failed");
    let outcome = measured(&one().with("gpu mig"), task(&["device_local_copy"]));
    assert_eq!(
        (outcome.only_problem().class.as_str(), outcome.only_problem().gpu),
        ("mig", Some(0))
    );
    let nowhere = CopyTask { cuda: Some("/no/such/libcuda.so.1".into()), ..task(&[]) };
    assert_eq!(outcome_of(&nowhere).only_problem().class.as_str(), "no-driver");
}

#[test]
fn a_gpu_that_cannot_be_opened_leaves_the_others() {
    let machine = machine(3).with("gpu 1 compute-mode = 2");
    let outcome = measured(&machine, task(&["device_to_device_memcpy_write_ce"]));
    assert_eq!((outcome.only_problem().gpu, outcome.is_complete()), (Some(1), false));
    let cells = outcome.cells("device_to_device_memcpy_write_ce");
    let places: Vec<_> = cells.keys().map(|(row, col)| format!("{row}{col}")).collect();
    assert_eq!(places, ["02", "20"]);
}

#[test]
fn too_little_memory_is_reported_with_the_available_amount() {
    let machine = machine(2).with("gpu 1 memory = 2097152").with("gpu 1 used = 1048576");
    let wanted = CopyTask { buffer_bytes: 8 << 20, ..task(&["device_local_copy"]) };
    let outcome = measured(&machine, wanted);
    let problem = outcome.only_problem();
    assert_eq!((problem.class.as_str(), problem.gpu), ("no-memory", Some(1)));
    assert!(problem.detail.contains("on GPU 1 (1 of 1 MiB are free)"), "{}", problem.detail);
    assert_eq!(outcome.at("device_local_copy", 0, 0), Some(1500.0));
    assert_eq!(outcome.at("device_local_copy", 0, 1), None);
    let root = tempfile::tempdir().expect("a folder");
    fs::create_dir(root.path().join("proc")).expect("made");
    fs::write(root.path().join("proc/meminfo"), "MemAvailable:  4096 kB\n").expect("written");
    let task = CopyTask { root: root.path().to_owned(), ..task(&["host_to_device_memcpy_ce"]) };
    // The first word is the one that streams wait for.
    let outcome = measured(&self::machine(1).with("fail cuMemHostAlloc = 2 from 2"), task);
    let problem = outcome.only_problem();
    assert_eq!(problem.class.as_str(), "no-host-memory");
    assert!(problem.detail.contains("near GPU 0 (4 MiB are available)"), "{}", problem.detail);
}

#[test]
fn a_gpu_that_is_lost_on_the_way_is_named_once_and_the_others_go_on() {
    let tests = ["host_to_device_memcpy_ce", "device_local_copy", "device_to_host_memcpy_ce"];
    let machine = machine(3).with("lost 1 = 999 after 40");
    let outcome = measured(&machine, CopyTask { readings: 3, ..task(&tests) });
    let problem = outcome.only_problem();
    assert_eq!((problem.class.as_str(), problem.gpu), ("gpu-lost", Some(1)));
    assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_UNKNOWN"));
    for test in tests {
        let cells = outcome.cells(test);
        for gpu in ["0", "2"] {
            assert_eq!(cells[&("0".to_owned(), gpu.to_owned())].len(), 3, "{test}");
        }
    }
    assert!(outcome.cells(tests[2]).len() == 2 && !outcome.is_complete());
}

#[test]
fn streams_that_cannot_be_held_are_a_note_and_not_an_error() {
    let machines = [
        machine(2).with("stream-memory = no"),
        machine(2).without(Library::Cuda, &["cuStreamWaitValue32_v2"]),
    ];
    for machine in machines {
        let outcome = measured(&machine, task(&["device_local_copy"]));
        let note = outcome.lines.iter().find_map(|line| match line {
            ProbeMessage::Note { name, value } => Some((name.as_str(), value.as_str())),
            _ => None,
        });
        let value =
            "copies start as they are enqueued: the driver does not support stream waits here";
        assert_eq!(note, Some(("start", value)));
        assert_eq!(outcome.row("device_local_copy"), [1500.0; 2]);
        assert!(outcome.problems().is_empty() && outcome.is_complete());
    }
}

#[test]
fn gpus_are_numbered_along_the_bus_and_only_those_asked_for_are_used() {
    let machine = machine(3)
        .with("gpu 0 bus = 0000:9B:00.0")
        .with("gpu 1 bus = 0000:1B:00.0")
        .with("gpu 0 local = 1000")
        .with("gpu 2 bus = 0000:3B:00.0")
        .with("gpu 0 down = 30");
    let outcome =
        measured(&machine, CopyTask { gpus: vec![2, 0], ..task(&["host_to_device_memcpy_ce"]) });
    let gpus = outcome.lines.iter().filter_map(|line| match line {
        ProbeMessage::Gpu(gpu) => Some((gpu.index, gpu.bus_id.clone().expect("an address"))),
        _ => None,
    });
    let gpus: Vec<_> = gpus.collect();
    assert_eq!(gpus, [(0, "0000:1b:00.0".to_owned()), (2, "0000:9b:00.0".to_owned())]);
    assert_eq!(outcome.at("host_to_device_memcpy_ce", 0, 2), Some(30.0));
    assert_eq!(outcome.cells("host_to_device_memcpy_ce").len(), 2);
}

#[test]
fn host_memory_is_near_the_gpu_where_the_system_reports_it() {
    let root = tempfile::tempdir().expect("a folder");
    let write = |path: &str, text: &str| {
        let path = root.path().join("sys").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    };
    write("bus/pci/devices/0000:1b:00.0/numa_node", "1\n");
    // All processors there may be: this thread may run on some of them.
    write("devices/system/node/node1/cpulist", "0-1023\n");
    let task = CopyTask { root: root.path().to_owned(), ..task(&["host_to_device_memcpy_ce"]) };
    let outcome = measured(&machine(2), task);
    let nodes = outcome.lines.iter().filter_map(|line| match line {
        ProbeMessage::Gpu(gpu) => Some(gpu.numa_node),
        _ => None,
    });
    assert_eq!(nodes.collect::<Vec<_>>(), [Some(1), None]);
}

/// Number of calls by name.
fn calls(file: &Path) -> BTreeMap<String, usize> {
    let mut calls = BTreeMap::new();
    for line in fs::read_to_string(file).expect("calls").lines() {
        let call = line.split_whitespace().last().unwrap_or_default();
        *calls.entry(call.to_owned()).or_default() += 1;
    }
    calls
}

/// Pairs of calls: one allocates, the other releases.
const TAKEN: &[(&str, &str)] = &[
    ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ("cuMemAlloc_v2", "cuMemFree_v2"),
    ("cuMemHostAlloc", "cuMemFreeHost"),
    ("cuStreamCreate", "cuStreamDestroy_v2"),
    ("cuEventCreate", "cuEventDestroy_v2"),
];

#[test]
fn when_any_call_fails_all_resources_are_released_and_no_gpu_is_blamed() {
    let tests = ["host_to_device_memcpy_ce", "device_to_device_concurrent_memcpy_write_ce"];
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("calls.txt");
    let noted = || machine(2).with(&format!("calls = {}", log.display()));
    let whole = measured(&noted(), task(&tests));
    assert!(whole.is_complete() && whole.problems().is_empty(), "{:#?}", whole.problems());
    let made = calls(&log);
    let mut silent = BTreeSet::new();
    for (call, times) in &made {
        // A failing release call cannot have released anything.
        let gives_back = TAKEN.iter().any(|(_, back)| back == call);
        let once = BTreeSet::from([1, times.div_ceil(2), *times]);
        let faults = once.iter().map(|nth| format!("1 at {nth}"));
        // A lost context answers every later call with that code.
        for fault in faults.chain([format!("719 from {}", times.div_ceil(2))]) {
            fs::remove_file(&log).expect("removed");
            let outcome = measured(&noted().with(&format!("fail {call} = {fault}")), task(&tests));
            let again = calls(&log);
            for (takes, back) in TAKEN.iter().filter(|_| !gives_back) {
                let count = |name: &str| again.get(name).copied().unwrap_or(0);
                let failed = match takes == call {
                    true if fault.contains("from") => count(takes) + 1 - times.div_ceil(2),
                    is_it => usize::from(is_it),
                };
                assert_eq!(count(takes) - failed, count(back), "{call} {fault}: {takes}");
            }
            for problem in outcome.problems() {
                assert_eq!(problem.kind, OutputProblemKind::Error, "{call} {fault}: {problem:#?}");
            }
            assert_eq!(outcome.is_complete(), outcome.problems().is_empty(), "{call} {fault}");
            let noted = outcome.lines.iter().any(|line| matches!(line, ProbeMessage::Note { .. }));
            if outcome.problems().is_empty() && !noted {
                silent.insert(call.as_str());
            }
            assert!(!outcome.progress.is_empty());
        }
    }
    // Optional facts, calls that only release, and the final wait.
    let may_fail = [
        "cuCtxSetCurrent",
        "cuDeviceGetAttribute",
        "cuDeviceGetName",
        "cuDeviceGetUuid_v2",
        "cuDeviceTotalMem_v2",
        "cuDriverGetVersion",
        "cuMemGetInfo_v2",
        "cuStreamSynchronize",
    ];
    let backs = TAKEN.iter().map(|(_, back)| *back);
    let allowed: BTreeSet<&str> = may_fail.into_iter().chain(backs).collect();
    let strange: Vec<_> = silent.difference(&allowed).collect();
    assert!(strange.is_empty(), "these failures were not noticed: {strange:?}");
}
