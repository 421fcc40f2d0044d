//! An expectation applies only where it was stated: to sizes, and GPUs of its platform. Elsewhere
//! it finds nothing and passes nothing.

use super::test_machine::{TestMachine, loci, outcome_of};
use super::*;
use crate::thresholds::builtin;
use model::claims::ClaimedDomain;
use model::measurement::{Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{ParseOutput, Tool};
use model::tool_facts::ToolDevice;
use model::tool_recording::RecordingScope;
use model::unit::Unit;
use model::verdict::Outcome;

/// Sizes below the smallest one with a stated rate in any NIC class.
const SMALL: [u64; 4] = [8, 64, 4 << 10, 32 << 10];

/// perftest's output for one device at this message size.
fn message(scope: RecordingScope, device: &str, bytes: u64, gigabits: f64) -> ToolRecording {
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Perftest) };
    parsed.facts.parameters.insert("device".to_owned(), device.to_owned());
    parsed.measurements = vec![Measurement::Series(MeasurementSeries {
        run: 0,
        testcase: Some("ib_write_bw".to_owned()),
        unit: Some(Unit::GigabitsPerSecond),
        points: vec![SeriesPoint { bytes, algbw: Some(gigabits), ..SeriesPoint::default() }],
        average_busbw: None,
    })];
    let file = format!("{scope:?}/{device}-{bytes}.txt");
    ToolRecording::new(scope, file, parsed)
}

/// Hosts without GPUs, of which a class of NIC may be claimed.
fn hosts(count: u32, nic: Option<&str>) -> Claims {
    let domain = ClaimedDomain {
        name: "lab".into(),
        nodes: (0..count).map(TestMachine::node).collect(),
        platform: None,
        gpus_per_node: Some(0),
        nic: nic.map(str::to_owned),
    };
    Claims { domains: vec![domain], ..Claims::default() }
}

fn judged(claims: &Claims, recordings: &[ToolRecording], platform: Option<&str>) -> Judgement {
    judge_without_history(&JudgeInput {
        claims,
        recordings,
        catalogue: builtin::builtin_catalogue(),
        thresholds_digest: "t",
        platform,
        cells: true,
        sampled: false,
    })
}

#[test]
fn small_messages_do_not_measure_the_rate_of_a_port() {
    for nic in [Some("nic-ndr-400"), None] {
        for bytes in SMALL {
            // A few thousandths of the port's rate, on all and on one.
            for slow in [0..6, 2..3] {
                let ports = (0..6).map(|at| {
                    let small = slow.contains(&at);
                    let (bytes, rate) = if small { (bytes, 0.4) } else { (8 << 20, 394.0) };
                    let node = RecordingScope::Node(TestMachine::node(at));
                    [
                        message(node.clone(), "mlx5_0", bytes, rate),
                        message(node, "mlx5_0", bytes, rate),
                    ]
                });
                let recordings: Vec<ToolRecording> = ports.flatten().collect();
                let judged = judged(&hosts(6, nic), &recordings, None);
                assert_eq!(loci(&judged), Vec::<String>::new(), "{nic:?} {bytes}");
                let verdict = &judged.verdicts.nodes[2];
                assert_eq!(verdict.outcome, Outcome::Unknown, "{nic:?} {bytes}");
                let size = crate::thresholds::format_size(bytes);
                assert!(
                    verdict.reason.contains(&size) && verdict.reason.contains("64 KiB"),
                    "{}",
                    verdict.reason
                );
            }
        }
    }
}

#[test]
fn a_port_that_is_slow_with_large_messages_is_found_next_to_small_ones() {
    for nic in [Some("nic-ndr-400"), None] {
        let mut recordings = Vec::new();
        for at in 0..6 {
            let rate = if at == 2 { 197.0 } else { 394.0 };
            for (bytes, rate) in [(8, 0.4), (64 << 10, rate), (8 << 20, rate)] {
                recordings.push(message(
                    RecordingScope::Node(TestMachine::node(at)),
                    "mlx5_0",
                    bytes,
                    rate,
                ));
            }
        }
        let judged = judged(&hosts(6, nic), &recordings, None);
        assert_eq!(loci(&judged), ["degraded nic-low rail node0003 rail mlx5_0"], "{nic:?}");
    }
}

#[test]
fn small_messages_do_not_measure_the_rate_of_a_path() {
    for nic in [Some("nic-ndr-400"), None] {
        for bytes in SMALL {
            let mut recordings = Vec::new();
            for a in 0..4 {
                for b in (0..4).filter(|b| *b != a) {
                    // Node 0 was measured with small messages only.
                    let small = a == 0 || b == 0;
                    let (bytes, rate) = if small { (bytes, 0.4) } else { (8 << 20, 394.0) };
                    let scope = RecordingScope::Pair(TestMachine::node(a), TestMachine::node(b));
                    recordings
                        .extend((0..3).map(|_| message(scope.clone(), "mlx5_0", bytes, rate)));
                }
            }
            let judged = judged(&hosts(4, nic), &recordings, None);
            let found: Vec<_> =
                judged.verdicts.findings.iter().filter(|f| Outcome::Unknown < f.outcome).collect();
            assert!(found.is_empty(), "{nic:?} {bytes}: {found:?}");
            assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown, "{nic:?} {bytes}");
        }
    }
}

#[test]
fn copies_of_small_buffers_have_no_expectation() {
    for bytes in [4 << 10, 1 << 20, 32 << 20] {
        let mut bench = TestMachine::hgx(3).capacity(|_, _| Some(0.4)).host(|_, _, _| 0.4);
        let mut recordings = bench.record();
        for recording in &mut recordings {
            recording.parsed.tool = Some(Tool::FabricgateCopy);
            let parameters = &mut recording.parsed.facts.parameters;
            parameters.insert("buffer_bytes".to_owned(), u64::to_string(&bytes));
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), Vec::<String>::new(), "{bytes}");
        assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown), "{bytes}");
    }
}

/// A full HGX board at this share of the shipped platform's rates, whose GPUs have this name in one
/// of the outputs.
fn board(share: f64, product: &str, which: usize) -> Vec<ToolRecording> {
    let platform =
        builtin::builtin_catalogue().platform("hgx-h100").expect("a shipped platform").clone();
    let mut bench = TestMachine::with_platform(platform, 1, 8)
        .readings(3)
        .capacity(move |_, _| Some(share))
        .host(move |_, _, _| share);
    let mut recordings = bench.record_nodes();
    for (at, recording) in recordings.iter_mut().enumerate() {
        recording.parsed.facts.devices = Vec::new();
        if at == which {
            let device =
                ToolDevice { index: 0, name: Some(product.to_owned()), ..ToolDevice::default() };
            recording.parsed.facts.devices.push(device);
        }
    }
    recordings
}

#[test]
fn outputs_of_another_gpu_neither_pass_nor_blame_on_a_named_or_claimed_platform() {
    let claimed = |platform: &str| Claims {
        domains: vec![ClaimedDomain {
            name: "node0001".into(),
            nodes: vec![TestMachine::node(0)],
            platform: Some(platform.to_owned()),
            gpus_per_node: Some(8),
            nic: None,
        }],
        ..Claims::default()
    };
    let products =
        ["AMD Instinct MI300X", "Tesla V100-SXM2-16GB", "NVIDIA H100 PCIe", "NVIDIA H200"];
    for product in products {
        for (share, which) in [(1.0, 0), (0.3, 1), (0.1, 2)] {
            let recordings = board(share, product, which);
            for (claims, platform) in
                [(Claims::default(), Some("hgx-h100")), (claimed("hgx-h100"), None)]
            {
                let judged = judged(&claims, &recordings, platform);
                assert_eq!(loci(&judged), Vec::<String>::new(), "{product} {share}");
                let verdict = &judged.verdicts.nodes[0];
                assert_eq!(verdict.outcome, Outcome::Unknown, "{product} {share}");
                let names = verdict.reason.contains(product) && verdict.reason.contains("hgx-h100");
                assert!(names, "{}", verdict.reason);
            }
        }
    }
    // The same outputs with a GPU of the platform, or with a name that does not contradict it.
    for product in ["NVIDIA H100 80GB HBM3", "NVIDIA Graphics Device"] {
        let sound = judged(&claimed("hgx-h100"), &board(1.0, product, 0), None);
        assert_eq!(
            outcome_of(&sound, "node0001"),
            Outcome::Pass,
            "{product}: {:?}",
            sound.verdicts
        );
        let slow = judged(&claimed("hgx-h100"), &board(0.5, product, 0), None);
        assert_eq!(outcome_of(&slow, "node0001"), Outcome::Degraded, "{product}");
    }
}

#[test]
fn one_node_with_other_gpus_is_unknown_and_the_others_are_judged() {
    let mut bench = TestMachine::hgx(4).capacity(|s, _| Some(if s.0 == 2 { 0.5 } else { 1.0 }));
    let mut recordings = bench.record();
    for device in &mut recordings[2].parsed.facts.devices {
        device.name = Some("AMD Instinct MI300X".to_owned());
    }
    // A name that no platform lists is compared with the names of its own.
    bench.platform.devices = vec!["NVIDIA H100 80GB HBM3".to_owned()];
    for at in [0, 1, 3] {
        for device in &mut recordings[at].parsed.facts.devices {
            device.name = Some("NVIDIA H100 80GB HBM3".to_owned());
        }
    }
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), Vec::<String>::new());
    let outcomes: Vec<Outcome> = judged.verdicts.nodes.iter().map(|n| n.outcome).collect();
    assert_eq!(outcomes, [Outcome::Pass, Outcome::Pass, Outcome::Unknown, Outcome::Pass]);
}

#[test]
fn a_run_across_a_rack_in_which_another_gpu_took_part_is_not_judged() {
    let mut bench =
        TestMachine::rack().capacity(|s, d| Some(if s.0 == 4 || d.0 == 4 { 0.5 } else { 1.0 }));
    bench.platform.devices = vec!["NVIDIA GB200".to_owned()];
    let mut recordings = bench.record_domain();
    for recording in &mut recordings {
        for rank in &mut recording.parsed.facts.ranks {
            let other = rank.host == "node0005";
            rank.name = Some(if other { "NVIDIA B200" } else { "NVIDIA GB200" }.to_owned());
        }
    }
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), Vec::<String>::new());
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
    let node =
        judged.verdicts.nodes.iter().find(|n| n.node.as_str() == "node0005").expect("it is judged");
    assert!(node.reason.contains("NVIDIA B200") && node.reason.contains("rack"), "{}", node.reason);
}
