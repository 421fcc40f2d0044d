//! Levels: of runs, of tools that disagree, of nodes that share a cause, and losses common to all
//! parts.

use super::*;
use model::measurement::MeasurementMatrix;

/// Scales all pair matrices of a recording.
fn scale(recording: &mut ToolRecording, of: impl Fn(&MeasurementMatrix, usize, usize) -> f64) {
    for measurement in &mut recording.parsed.measurements {
        let Measurement::Matrix(matrix) = measurement else { continue };
        let shares: Vec<Vec<f64>> = (0..matrix.rows.len())
            .map(|row| (0..matrix.cols.len()).map(|col| of(matrix, row, col)).collect())
            .collect();
        for (cells, shares) in matrix.cells.iter_mut().zip(shares) {
            for (cell, share) in cells.iter_mut().zip(shares) {
                *cell = cell.map(|value| value * share);
            }
        }
    }
}

fn is_pair(matrix: &MeasurementMatrix) -> bool {
    1 < matrix.rows.len()
}

#[test]
fn a_run_disturbed_as_a_whole_is_neither_noise_nor_a_fault() {
    for low in [0.92, 0.8] {
        let mut bench = TestMachine::hgx(8).readings(5).noise(0.003, 0.0, 5);
        let mut recordings = bench.record();
        for recording in &mut recordings {
            if recording.file.ends_with("nvbandwidth-3.txt") {
                scale(recording, |matrix, _, _| if is_pair(matrix) { low } else { 1.0 });
            }
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), Vec::<String>::new(), "{low}");
        assert_eq!(judged.verdicts.outcome, Outcome::Pass);
        let notes = judged.verdicts.notes.iter().filter(|n| n.contains("nvbandwidth-3.txt"));
        assert!(0 < notes.count(), "no note names the disturbed run");
    }
    // A lost link in addition is found, whichever runs are disturbed.
    let lost =
        |s: (u32, u32), d: (u32, u32)| Some(if s.1 == 2 || d.1 == 2 { share(1) } else { 1.0 });
    let mut bench = TestMachine::hgx(1).readings(3).noise(0.003, 0.0, 6).capacity(lost);
    let mut recordings = bench.record();
    scale(&mut recordings[1], |matrix, _, _| if is_pair(matrix) { 0.9 } else { 1.0 });
    assert_eq!(loci(&bench.judge_these(&recordings)), ["degraded nvlink-low gpu node0001:2"]);
}

/// A recording of p2pBandwidthLatencyTest in which one GPU reads this share.
fn p2p(bench: &mut TestMachine, gpu: usize, share: f64) -> ToolRecording {
    let mut recording = bench.record_nodes().swap_remove(0);
    recording.file = "nodes/node0001/p2p.txt".to_owned();
    recording.parsed.tool = Some(Tool::P2pBandwidthLatencyTest);
    recording.parsed.measurements.truncate(1);
    if let Measurement::Matrix(matrix) = &mut recording.parsed.measurements[0] {
        matrix.testcase = Some("p2p_unidirectional_write_enabled".to_owned());
    }
    scale(&mut recording, |_, row, col| if row == gpu || col == gpu { share } else { 1.0 });
    recording
}

#[test]
fn two_tools_that_disagree_make_a_gpu_unknown_whatever_their_run_counts() {
    for (nvbandwidth, others) in [(3, 1), (1, 1), (1, 3)] {
        let mut bench = TestMachine::hgx(1).readings(nvbandwidth);
        let mut recordings = bench.record();
        for at in 0..others {
            let mut recording = p2p(&mut bench, 5, 0.75);
            recording.file = format!("nodes/node0001/p2p-{at}.txt");
            recordings.push(recording);
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), ["unknown matrix-contradicted gpu node0001:5"]);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
    }
    // Tools that agree blame the GPU.
    let lost = |s: (u32, u32), d: (u32, u32)| Some(if s.1 == 5 || d.1 == 5 { 0.75 } else { 1.0 });
    let mut bench = TestMachine::hgx(1).readings(3).capacity(lost);
    let mut recordings = bench.record();
    recordings.push(p2p(&mut bench, 5, 1.0));
    assert_eq!(loci(&bench.judge_these(&recordings)), ["degraded nvlink-low gpu node0001:5"]);
    // A low reading in one direction from a tool without warm-up is not a dispute.
    let mut bench = TestMachine::hgx(1).readings(3);
    let mut recordings = bench.record();
    let mut cold = p2p(&mut bench, 0, 1.0);
    scale(&mut cold, |_, row, _| if row == 0 { 0.96 } else { 1.0 });
    recordings.push(cold);
    assert_eq!(loci(&bench.judge_these(&recordings)), Vec::<String>::new());
}

/// Twelve boxes of which the first five have another driver and read this share.
fn mixed_drivers(share: f64, old: impl Fn(u32) -> bool) -> Judgement {
    let low = move |s: (u32, u32), _: (u32, u32)| Some(if s.0 < 5 { share } else { 1.0 });
    let mut bench = TestMachine::hgx(12).readings(3).capacity(low);
    let mut recordings = bench.record();
    for recording in &mut recordings {
        let RecordingScope::Node(node) = &recording.scope else { continue };
        let at: u32 = node.as_str().trim_start_matches("node").parse().expect("a number");
        let driver = if old(at - 1) { "550.54.15" } else { "570.124.06" };
        recording.parsed.facts.driver = Some(driver.to_owned());
    }
    bench.judge_these(&recordings)
}

#[test]
fn equally_low_nodes_that_share_a_driver_have_one_cause() {
    // Within the tolerance of the expectation: a remark.
    let judged = mixed_drivers(0.965, |at| at < 5);
    assert_eq!(loci(&judged), Vec::<String>::new());
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.unknown);
    let named = judged.verdicts.notes.iter().any(|note| note.contains("driver 550.54.15"));
    assert!(named, "{:?}", judged.verdicts.notes);
    // Below the expectation: unknown, and no node is blamed.
    let judged = mixed_drivers(0.9, |at| at < 5);
    assert_eq!(loci(&judged), ["unknown all-low-alike instrument - driver 550.54.15"]);
    assert_eq!(unknown_nodes(&judged).len(), 5);
    // A driver that good nodes share explains nothing.
    for old in [|at: u32| at < 9, |at: u32| at.is_multiple_of(2), |at: u32| at < 3] {
        let judged = mixed_drivers(0.9, old);
        let low = loci(&judged);
        assert_eq!(low.len(), 5, "{low:?}");
        assert!(low.iter().all(|it| it.starts_with("degraded nvlink-low node")), "{low:?}");
    }
}

#[test]
fn vbios_and_firmware_versions_are_compared_like_the_driver() {
    let log = |version: &str, key: &str| {
        let gpu = |at: u32| {
            format!(
                "GPU 00000000:{at:02X}:00.0\n    Product Name                      : hgx GPU\n    \
                     {key:<33} : {version}\n"
            )
        };
        let gpus: String = (1..=8).map(gpu).collect();
        format!(
            "==============NVSMI LOG==============\n\n\
                 Driver Version                        : 570.1\n\
                 Attached GPUs                         : 8\n{gpus}"
        )
    };
    for (key, name) in [("VBIOS Version", "VBIOS"), ("GSP Firmware Version", "GSP firmware")] {
        for (old, expected) in [(5, 1), (9, 5)] {
            let low = move |s: (u32, u32), _: (u32, u32)| Some(if s.0 < 5 { 0.9 } else { 1.0 });
            let mut bench = TestMachine::hgx(12).readings(3).capacity(low);
            let mut recordings = bench.record();
            for at in 0..12 {
                let version = if at < old { "96.00.74.00.01" } else { "96.00.89.00.01" };
                let parsed = readers::outputs::parse_output(log(version, key).as_bytes());
                let node = TestMachine::node(at);
                let file = format!("nodes/{node}/nvidia-smi-q.txt");
                recordings.push(ToolRecording::new(RecordingScope::Node(node), file, parsed));
            }
            let found = loci(&bench.judge_these(&recordings));
            assert_eq!(found.len(), expected, "{found:?}");
            if old == 5 {
                let cause = format!("unknown all-low-alike instrument - {name} 96.00.74.00.01");
                assert_eq!(found, [cause]);
            }
        }
    }
}

#[test]
fn a_loss_common_to_all_parts_has_its_own_detection_limit() {
    let judged = TestMachine::rack().judge();
    let limit =
        judged.verdicts.nodes[0].detectable_together.expect("a limit, given an expectation");
    // Tolerance of the expectation: 4 %.
    assert!((0.035..0.05).contains(&limit), "{limit}");
    // A loss of that size or more in one test is detected, and no node passes with it.
    for lost in [limit + 0.004, 1.0 / 18.0] {
        let mut bench = TestMachine::rack().readings(2);
        let mut recordings = bench.record();
        for recording in
            recordings.iter_mut().filter(|r| matches!(r.scope, RecordingScope::Node(_)))
        {
            let is_read = |matrix: &MeasurementMatrix| matrix.testcase.as_deref() == Some(READ);
            scale(recording, |matrix, _, _| if is_read(matrix) { 1.0 - lost } else { 1.0 });
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(judged.verdicts.outcome, Outcome::Unknown, "{lost}");
        assert_eq!(unknown_nodes(&judged).len(), 18);
    }
    // Without an expectation, a common loss is not detectable.
    let mut bench = TestMachine::hgx(2);
    bench.platform.expectations.clear();
    let recordings = TestMachine::hgx(2).record();
    let judged = bench.judge_these(&recordings);
    assert_eq!(judged.verdicts.nodes[0].detectable_together, None);
}

#[test]
fn a_file_that_was_copied_is_one_reading() {
    // A pair that dipped once is not a slow pair, however often its file was copied.
    let mut bench = TestMachine::hgx(1).noise(0.003, 0.0, 9);
    let mut recordings = bench.record();
    scale(
        &mut recordings[0],
        |matrix, row, col| {
            if is_pair(matrix) && (row, col) == (2, 6) { 0.857 } else { 1.0 }
        },
    );
    let once = bench.judge_these(&recordings);
    for at in 1..5 {
        let mut copy = recordings[0].clone();
        copy.file = format!("nodes/node0001/copy-{at}.txt");
        recordings.push(copy);
    }
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), loci(&once));
    assert_eq!(judged.verdicts.outcome, once.verdicts.outcome);
}
