//! The capabilities and limits of each tool: host copies, NIC ports, truncated matrices, readings
//! of several versions.

use super::test_machine::{
    READ, TestMachine, WRITE, loci, matrix, outcome_of, platform, share, unknown_nodes,
};
use crate::judge::Judgement;
use model::measurement::{Measurement, MeasurementMatrix, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblemKind, ParseOutput, Tool};
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unit::Unit;
use model::verdict::{Direction, LocusKind, Outcome};

fn notes_say(judged: &Judgement, text: &str) -> bool {
    judged.verdicts.notes.iter().any(|n| n.contains(text))
}

#[test]
fn a_low_copy_is_a_note_if_another_copy_in_its_direction_is_normal() {
    for (name, outcome) in [
        ("host_to_device_memcpy_sm", Outcome::Pass),
        ("device_to_host_memcpy_sm", Outcome::Unknown),
    ] {
        let mut bench = TestMachine::hgx(1)
            .host(|_, gpu, way| if gpu == 3 && way == Direction::H2d { 0.75 } else { 1.0 });
        let mut recordings = bench.record();
        let gpus = (0..8).map(|gpu| gpu.to_string()).collect();
        let fine = matrix(name, vec!["0".to_owned()], gpus, vec![vec![Some(54.0); 8]]);
        recordings[0].parsed.measurements.push(fine);
        let judged = bench.judge_these(&recordings);
        assert_eq!(judged.verdicts.outcome, outcome, "{name}");
        assert_eq!(
            notes_say(&judged, "in this direction read normally"),
            outcome == Outcome::Pass,
            "{name}"
        );
    }
    // Lower than any dip: not by chance.
    let judged = TestMachine::hgx(1)
        .host(|_, gpu, way| if gpu == 0 && way == Direction::D2h { 0.5 } else { 1.0 })
        .judge();
    assert_eq!(loci(&judged), ["degraded host-link-low gpu node0001:0 d2h"]);
}

#[test]
fn a_copy_that_is_low_once_is_unknown_until_it_is_read_again() {
    for way in [Direction::H2d, Direction::D2h] {
        for share in [0.6, 0.7, 0.8] {
            let one = move |node: u32, gpu: u32, direction: Direction| {
                if (node, gpu) == (1, 2) && direction == way { share } else { 1.0 }
            };
            let judged = TestMachine::hgx(3).host(one).judge();
            assert_eq!(loci(&judged), Vec::<String>::new(), "{share}");
            assert_eq!(unknown_nodes(&judged), ["node0002"], "{share}");
            let why = &judged.verdicts.nodes[1].reason;
            assert!(why.contains("read only once, read it again"), "{why}");
            // A slow link stays slow; a dip does not repeat.
            let again = TestMachine::hgx(3).host(one).readings(2).judge();
            let found = format!("degraded host-link-low gpu node0002:2 {}", way.as_str());
            assert_eq!(loci(&again), [found]);
            let mut bench = TestMachine::hgx(3).host(one);
            let mut recordings = bench.record();
            recordings.extend(TestMachine::hgx(3).record().into_iter().map(|mut second| {
                second.file = second.file.replace("-0", "-1");
                second
            }));
            let judged = bench.judge_these(&recordings);
            assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.nodes);
        }
    }
}

#[test]
fn a_slow_link_and_a_dip_on_the_other_gpu_are_not_the_host() {
    let judged = TestMachine::with_platform(platform("pair", 2, 1, 257.0), 1, 2)
        .host(|_, gpu, way| match (gpu, way) {
            (0, _) => 0.49,
            (1, Direction::H2d) => 0.8,
            _ => 1.0,
        })
        .judge();
    assert_eq!(loci(&judged), ["degraded host-link-low gpu node0001:0"]);
}

#[test]
fn a_dip_does_not_hide_a_slow_host() {
    let judged = TestMachine::hgx(3)
        .host(|node, gpu, way| match (node, gpu, way) {
            (2, 7, Direction::H2d) => 0.34,
            (2, _, _) => 0.5,
            _ => 1.0,
        })
        .judge();
    assert_eq!(loci(&judged), ["degraded host-link-low node node0003"]);
}

#[test]
fn a_bad_gpu_of_four_is_named_from_several_readings() {
    for seed in 0..40 {
        let judged = TestMachine::with_platform(platform("tray", 4, 1, 770.0), 1, 4)
            .readings(3)
            .noise(0.002, 0.02, seed)
            .capacity(|s, d| Some(if s.1 == 0 || d.1 == 0 { share(3) } else { 1.0 }))
            .judge();
        assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0001:0"], "seed {seed}");
    }
}

#[test]
fn three_bad_gpus_of_eight_are_named() {
    let bad = [(1, 1), (4, 2), (6, 1)];
    let judged = TestMachine::hgx(1)
        .capacity(move |s, d| {
            let lost = |gpu: u32| bad.iter().find(|(b, _)| *b == gpu).map_or(0, |(_, lost)| *lost);
            Some(share(lost(s.1) + lost(d.1)))
        })
        .judge();
    let expected: Vec<String> =
        bad.iter().map(|(gpu, _)| format!("degraded nvlink-low gpu node0001:{gpu}")).collect();
    let mut found = loci(&judged);
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn one_good_reading_clears_a_gpu_with_two_partners() {
    let mut bench = TestMachine::hgx(1);
    let mut recordings = bench.record();
    let parsed = &mut recordings[0].parsed;
    parsed.measurements.retain(|m| m.testcase() == Some(READ));
    let [Measurement::Matrix(matrix)] = parsed.measurements.as_mut_slice() else {
        panic!("one matrix")
    };
    // Two rows were printed before the output stopped; one cell dipped.
    matrix.cells.iter_mut().skip(2).for_each(|row| row.fill(None));
    matrix.cells[1][2] = Some(370.0);
    parsed.complete = false;
    let cut = model::parse_output::OutputProblem::new(OutputProblemKind::Truncated, "stops early");
    parsed.problems.push(cut);
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), Vec::<String>::new());
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
}

#[test]
fn readings_of_versions_with_other_buffers_are_not_noise() {
    let lost =
        |s: (u32, u32), d: (u32, u32)| Some(if s.1 == 5 || d.1 == 5 { share(1) } else { 1.0 });
    for (expected, capacity) in
        [(Vec::new(), None), (vec!["degraded nvlink-low gpu node0001:5".to_owned()], Some(lost))]
    {
        let mut bench = TestMachine::hgx(1).readings(2);
        if let Some(lost) = capacity {
            bench = bench.capacity(lost);
        }
        for test in [WRITE, READ] {
            let expectation = bench.platform.expectations.get_mut(test).expect("known");
            expectation.tolerance_small_buffer = Some(0.09);
        }
        let mut recordings = bench.record();
        recordings[0].parsed.tool_version = Some("0.6".to_owned());
        recordings[1].parsed.tool_version = Some("0.8".to_owned());
        for measurement in &mut recordings[0].parsed.measurements {
            let Measurement::Matrix(MeasurementMatrix { testcase, cells, .. }) = measurement else {
                continue;
            };
            if testcase.as_deref().is_some_and(|t| t.starts_with("device_to_device")) {
                cells.iter_mut().flatten().flatten().for_each(|cell| *cell *= 0.94);
            }
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), expected);
        let node = &judged.verdicts.nodes[0];
        assert!(node.outcome != Outcome::Unknown, "{}", node.reason);
    }
}

#[test]
fn a_slightly_low_row_is_not_a_fault_in_a_tool_without_warm_up() {
    for (share, class) in [(0.965, None), (0.85, Some("nvlink-low"))] {
        let mut bench = TestMachine::hgx(1);
        let mut parsed =
            ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::P2pBandwidthLatencyTest) };
        let labels: Vec<String> = (0..8).map(|gpu| gpu.to_string()).collect();
        let cell = |row: u32, col: u32| {
            let ripple = 1.0 + 0.001 * f64::from((row * 3 + col * 5) % 7);
            (row != col).then_some(376.0 * ripple * if row == 0 { share } else { 1.0 })
        };
        let cells = (0..8).map(|row| (0..8).map(|col| cell(row, col)).collect()).collect();
        let name = "p2p_unidirectional_write_enabled";
        parsed.measurements = vec![matrix(name, labels.clone(), labels, cells)];
        let mut expectation = bench.platform.expectations[WRITE].clone();
        (expectation.testcase, expectation.value) = (name.to_owned(), Some(376.0));
        bench.platform.expectations.insert(name.to_owned(), expectation);
        let file = "nodes/node0001/p2p.txt".to_owned();
        let recording = ToolRecording::new(RecordingScope::Node("node0001".into()), file, parsed);
        let judged = bench.judge_these(&[recording]);
        let found = judged.verdicts.findings.first().map(|f| f.class.as_str());
        assert_eq!(found, class, "{:?}", judged.verdicts);
        assert_ne!(judged.verdicts.outcome, Outcome::Pass);
    }
}

/// Output of `ib_write_bw` for eight ports of a node.
fn ports(node: &str, rate: impl Fn(u32) -> f64) -> Vec<ToolRecording> {
    let port = |at: u32| {
        let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Perftest) };
        parsed.facts.parameters.insert("device".to_owned(), format!("mlx5_{at}"));
        parsed.measurements = vec![Measurement::Series(MeasurementSeries {
            run: 0,
            testcase: Some("ib_write_bw".to_owned()),
            unit: Some(Unit::GigabitsPerSecond),
            points: vec![SeriesPoint {
                bytes: 8 << 20,
                algbw: Some(rate(at)),
                ..SeriesPoint::default()
            }],
            average_busbw: None,
        })];
        let file = format!("nodes/{node}/ib-{at}.txt");
        ToolRecording::new(RecordingScope::Node(node.into()), file, parsed)
    };
    (0..8).map(port).collect()
}

#[test]
fn a_port_at_half_the_rate_of_its_siblings_is_named() {
    let mut bench = TestMachine::hgx(2);
    for (share, expected) in
        [(1.0, Outcome::Pass), (0.5, Outcome::Degraded), (0.7, Outcome::Unknown)]
    {
        let mut recordings = bench.record();
        recordings.extend(ports("node0001", |_| 394.0));
        recordings.extend(ports("node0002", |at| if at == 3 { 394.0 * share } else { 393.0 }));
        let judged = bench.judge_these(&recordings);
        assert_eq!(outcome_of(&judged, "node0002"), expected, "{:?}", judged.verdicts);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
        for found in &judged.verdicts.findings {
            assert_eq!(found.locus.kind, LocusKind::Rail);
            assert_eq!(found.locus.rail.as_deref(), Some("mlx5_3"));
        }
    }
}

#[test]
fn nics_are_not_links_between_gpus() {
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record_domain();
    recordings.extend(ports("node0001", |_| 394.0));
    let judged = bench.judge_these(&recordings);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
}

#[test]
fn a_level_above_what_the_links_carry_names_its_files() {
    let mut bench = TestMachine::hgx(1);
    let recordings = bench.record();
    let links = bench.platform.nvlink.as_mut().expect("has links");
    links.rate /= 2.0;
    let judged = bench.judge_these(&recordings);
    let found = judged.verdicts.findings.iter().find(|f| f.class.as_str() == "above-nominal");
    assert!(!found.expect("found").evidence.is_empty());
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
}
