//! fabricgate's GPU probes: failed measurements, wrong data, driver telemetry, concurrent pairs,
//! and requested paths.

use super::test_machine::{TestMachine, WRITE, loci, outcome_of, ranks, share};
use crate::judge::Judgement;
use model::id::DomainName;
use model::measurement::{Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::{DriverTelemetry, GpuTelemetry, GpuTelemetrySample};
use model::throttle_reason::ThrottleReason;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unit::Unit;
use model::verdict::Outcome;

const AT_ONCE: &str = "device_to_device_concurrent_memcpy_write_ce";

/// The same machine, measured by fabricgate's probe.
fn record_native(bench: &mut TestMachine) -> Vec<ToolRecording> {
    let mut recordings = bench.record();
    for recording in &mut recordings {
        recording.parsed.tool = Some(Tool::FabricgateCopy);
    }
    recordings
}

fn problem(kind: OutputProblemKind, class: &str, test: &str, gpu: u32) -> OutputProblem {
    OutputProblem {
        testcase: Some(test.to_owned()),
        gpu: Some(gpu),
        class: Some(ProbeProblemClass::from_name(class)),
        ..OutputProblem::new(kind, format!("{class}: something"))
    }
}

/// Driver telemetry: all GPUs alike except one.
fn telemetry(gpus: u32, odd: u32, change: impl Fn(&mut GpuTelemetry)) -> DriverTelemetry {
    let gpu = |index| {
        let load = GpuTelemetrySample {
            pcie_generation: Some(5),
            pcie_width: Some(16),
            ..GpuTelemetrySample::default()
        };
        let mut gpu = GpuTelemetry {
            index,
            under_load: Some(load),
            pcie_replays: Some(0),
            ..Default::default()
        };
        if index == odd {
            change(&mut gpu);
        }
        gpu
    };
    DriverTelemetry { samples: 9, gpus: (0..gpus).map(gpu).collect(), missing: Vec::new() }
}

fn around(mut bench: TestMachine, change: impl Fn(&mut GpuTelemetry)) -> Judgement {
    let mut recordings = record_native(&mut bench);
    let facts = &mut recordings[0].parsed.facts;
    facts.around.insert("node0001".to_owned(), telemetry(8, 2, change));
    bench.judge_these(&recordings)
}

fn slow_host() -> TestMachine {
    TestMachine::hgx(1).host(|_, gpu, _| if gpu == 2 { 0.5 } else { 1.0 })
}

#[test]
fn a_slow_host_copy_of_memory_on_another_numa_node_blames_no_gpu() {
    let judged = |far: &[usize]| {
        let mut machine = slow_host();
        let mut recordings = record_native(&mut machine);
        for recording in &mut recordings {
            for gpu in far {
                recording.parsed.facts.devices[*gpu].unreachable_numa_node = Some(1);
            }
        }
        machine.judge_these(&recordings)
    };
    assert_eq!(loci(&judged(&[])).len(), 1, "near memory: the GPU is slow");
    for far in [&[2][..], &[0, 1, 2, 3, 4, 5, 6, 7]] {
        let judged = judged(far);
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
    }
    // Far memory of sound GPUs is no reason to doubt another one.
    assert_eq!(loci(&judged(&[5])).len(), 1);
    // A slow host stays a finding where one of its GPUs has far memory.
    let mut machine = TestMachine::hgx(1).host(|_, _, _| 0.5);
    let mut recordings = record_native(&mut machine);
    for recording in &mut recordings {
        recording.parsed.facts.devices[0].unreachable_numa_node = Some(1);
    }
    let judged = machine.judge_these(&recordings);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Degraded, "{:?}", loci(&judged));
}

#[test]
fn the_same_numbers_give_the_same_verdict_from_either_tool() {
    let machines = || {
        let low = TestMachine::hgx(2)
            .capacity(|s, d| Some(if s == (1, 2) || d == (1, 2) { share(1) } else { 1.0 }));
        [TestMachine::hgx(1), TestMachine::rack(), low, slow_host()]
    };
    for (mut with_tools, mut without) in machines().into_iter().zip(machines()) {
        let recordings = record_native(&mut without);
        let native = without.judge_these(&recordings).verdicts;
        let external = with_tools.record();
        let external = with_tools.judge_these(&external).verdicts;
        assert_eq!(native.outcome, external.outcome);
        assert_eq!(native.findings, external.findings);
    }
}

#[test]
fn failed_measurements_of_the_native_probe_are_unknown_and_never_a_fault() {
    let codes = [None, Some("CUDA_ERROR_ECC_UNCORRECTABLE"), Some("CUDA_ERROR_UNKNOWN")];
    let other = ProbeProblemClass::from_name("of-another-version");
    let classes = ProbeProblemClass::LISTED.iter().chain([&other]);
    for (class, code) in classes.flat_map(|class| codes.map(|code| (class.as_str(), code))) {
        let mut bench = TestMachine::hgx(1);
        let mut recordings = record_native(&mut bench);
        let reported = problem(OutputProblemKind::Error, class, WRITE, 3);
        let code = code.map(str::to_owned);
        recordings[0].parsed.problems.push(OutputProblem { code, ..reported });
        recordings[0].parsed.complete = false;
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), Vec::<String>::new(), "{class}");
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown, "{class}");
    }
}

#[test]
fn wrong_data_with_the_host_names_the_gpu_and_between_gpus_the_node() {
    let corrupt = |tests: &[(&str, u32)]| {
        let mut bench = TestMachine::hgx(1);
        let mut recordings = record_native(&mut bench);
        for (test, gpu) in tests {
            let reported = problem(OutputProblemKind::Corrupt, "wrong-data", test, *gpu);
            recordings[0].parsed.problems.push(reported);
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Failed);
        loci(&judged)
    };
    let host = "host_to_device_memcpy_ce";
    // GPU 3 is wrong; 0 and 5 only copied from and to it.
    assert_eq!(
        corrupt(&[(host, 3), (WRITE, 0), (WRITE, 3), (WRITE, 5)]),
        ["failed data-corruption gpu node0001:3"]
    );
    assert_eq!(corrupt(&[(WRITE, 0), (WRITE, 5)]), ["failed data-corruption node node0001"]);
}

#[test]
fn wrong_data_between_two_nodes_names_the_pair_until_one_fails_with_all() {
    let mut bench = TestMachine::rack();
    let mut recordings = record_native(&mut bench);
    let mut add = |a: u32, b: u32, wrong: bool| {
        let mut run = bench.record_siblings(a, b);
        run.parsed.tool = Some(Tool::FabricgateCopy);
        if wrong {
            let reported =
                problem(OutputProblemKind::Corrupt, "wrong-data", super::test_machine::BISECT, 1);
            let host = Some(TestMachine::node(a).to_string());
            run.parsed.problems.push(OutputProblem { host, ..reported });
        }
        recordings.push(run);
    };
    for (a, b) in [(0, 2), (1, 3), (4, 5)] {
        add(a, b, false);
    }
    add(0, 1, true);
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), ["failed data-corruption pair node0001 - node0002"]);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
}

#[test]
fn wrong_elements_of_a_collective_blame_no_member() {
    let mut bench = TestMachine::rack();
    let mut recordings = record_native(&mut bench);
    let mut run = all_reduce(838.0);
    for node in 0..18 {
        let reported = problem(OutputProblemKind::Corrupt, "wrong-data", "all_reduce_perf", 1);
        let host = Some(TestMachine::node(node).to_string());
        run.parsed.problems.push(OutputProblem { host, ..reported });
    }
    recordings.push(run);
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), ["failed data-corruption domain block01"]);
    assert!(judged.verdicts.nodes.iter().all(|node| node.outcome == Outcome::Unknown));
}

#[test]
fn the_evidence_of_a_slow_host_link_includes_its_trained_generation() {
    let judged = around(slow_host(), |gpu| {
        gpu.under_load.as_mut().expect("a state").pcie_generation = Some(4);
    });
    assert_eq!(loci(&judged), ["degraded host-link-low gpu node0001:2"]);
    let detail = &judged.verdicts.findings[0].evidence.last().expect("evidence").detail;
    assert!(detail.contains("PCIe generation 4 with 16 lanes, others at 5 with 16"), "{detail}");
}

#[test]
fn throttling_and_link_errors_are_named() {
    let low = || {
        TestMachine::hgx(1).capacity(|s, d| Some(if s.1 == 2 || d.1 == 2 { share(1) } else { 1.0 }))
    };
    let judged = around(low(), |gpu| {
        let load = gpu.under_load.as_mut().expect("a state");
        load.throttled =
            ["software power cap", "hardware thermal slowdown"].map(ThrottleReason::parse).into();
        gpu.link_errors.entry(7).or_default().insert("crc".to_owned(), 12);
    });
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0001:2"]);
    let summary = &judged.verdicts.findings[0].summary;
    assert!(summary.contains("throttled (hardware thermal slowdown)"), "{summary}");
    assert!(summary.contains("NVLink 7 12 (crc)") && !summary.contains("power cap"), "{summary}");
    // Nothing is low: a note.
    let judged = around(TestMachine::hgx(1), |gpu| {
        gpu.link_errors.entry(7).or_default().insert("crc".to_owned(), 12);
    });
    assert_eq!(judged.verdicts.outcome, Outcome::Pass);
    assert!(judged.verdicts.notes.iter().any(|note| note.contains("none of its numbers is low")));
    // Corrected errors also grow on a sound link.
    let judged = around(TestMachine::hgx(1), |gpu| {
        gpu.link_errors.entry(7).or_default().insert("effective_errors".to_owned(), 12);
    });
    assert!(!judged.verdicts.notes.iter().any(|note| note.contains("NVLink 7")));
}

#[test]
fn a_low_number_while_another_process_computed_is_unknown() {
    let judged = around(slow_host(), |gpu| gpu.others = vec![4711]);
    assert_eq!(loci(&judged), ["unknown host-link-low gpu node0001:2"]);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
    assert!(judged.verdicts.findings[0].summary.contains("process 4711"));
    let judged = around(TestMachine::hgx(1), |gpu| gpu.others = vec![4711]);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "it was not low");
}

/// All pairs concurrently, in addition to each pair alone.
fn judge_concurrent(mut bench: TestMachine, level: f64, low: bool) -> Judgement {
    let mut recordings = record_native(&mut bench);
    let ends: Vec<(u32, u32)> = (0..8).map(|gpu| (0, gpu)).collect();
    let mut matrix = bench.matrix(AT_ONCE, &ends, level);
    if let (Measurement::Matrix(matrix), true) = (&mut matrix, low) {
        for gpu in 0..8 {
            for (row, col) in [(gpu, 5), (5, gpu)] {
                matrix.cells[row][col] = matrix.cells[row][col].map(|value| value * 0.6);
            }
        }
    }
    recordings[0].parsed.measurements.push(matrix);
    bench.judge_these(&recordings)
}

#[test]
fn concurrent_pairs_are_judged_behind_a_switch_and_only_reported_elsewhere() {
    assert_eq!(judge_concurrent(TestMachine::hgx(1), 396.0, false).verdicts.outcome, Outcome::Pass);
    let judged = judge_concurrent(TestMachine::hgx(1), 396.0, true);
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0001:5"]);
    let bridged = || {
        let mut bench = TestMachine::hgx(1);
        bench.platform.nvlink.as_mut().expect("links").switched = false;
        bench
    };
    for low in [false, true] {
        let judged = judge_concurrent(bridged(), 150.0, low);
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts);
    }
}

/// An all-reduce of 8 GiB over a rack by fabricgate's probe.
fn all_reduce(busbw: f64) -> ToolRecording {
    let ends: Vec<(u32, u32)> = (0..18).flat_map(|n| (0..4).map(move |g| (n, g))).collect();
    let mut parsed =
        ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::FabricgateCollective) };
    parsed.facts.ranks = ranks(&ends);
    let point = SeriesPoint {
        bytes: 8 << 30,
        busbw: Some(busbw),
        wrong: Some(0.0),
        ..SeriesPoint::default()
    };
    parsed.measurements = vec![Measurement::Series(MeasurementSeries {
        run: 0,
        testcase: Some("all_reduce_perf".to_owned()),
        unit: Some(Unit::GigabytesPerSecond),
        points: vec![point],
        average_busbw: None,
    })];
    let scope = RecordingScope::Domain(DomainName::from("block01"));
    ToolRecording::new(scope, "domains/block01/collective-1.json", parsed)
}

#[test]
fn a_native_collective_is_judged_like_one_of_nccl_tests() {
    let judge = |busbw: f64, transports: &[&str], asserted: Option<&str>| {
        let mut bench = TestMachine::rack();
        let mut recordings = record_native(&mut bench);
        let mut run = all_reduce(busbw);
        run.parsed.facts.transports = transports.iter().map(|t| (*t).to_owned()).collect();
        let parameter = asserted.map(|path| ("asserted".to_owned(), path.to_owned()));
        run.parsed.facts.parameters.extend(parameter);
        recordings.push(run);
        bench.judge_these(&recordings)
    };
    assert_eq!(judge(838.0, &["MNNVL", "NVLS"], None).verdicts.outcome, Outcome::Pass);
    assert_eq!(
        loci(&judge(500.0, &["MNNVL", "NVLS"], None)),
        ["degraded collective-low domain block01"]
    );
    let off = judge(838.0, &["P2P/CUMEM", "NET/IB"], Some("mnnvl"));
    assert_eq!(loci(&off), ["degraded mnnvl-off domain block01"]);
    // A run that asked for the network gets the network's rate.
    for (path, transports) in [("ib", &["NET/IB"]), ("socket", &["NET/Socket"])] {
        let judged = judge(90.0, transports, Some(path));
        assert_eq!(loci(&judged), Vec::<String>::new(), "{path}");
        assert_eq!(judged.verdicts.outcome, Outcome::Pass);
    }
    let ring = judge(600.0, &["MNNVL", "P2P/CUMEM"], Some("p2p"));
    assert_eq!(loci(&ring), Vec::<String>::new());
}
