//! Requirements of a pass: the links between the GPUs of a node were measured, if it has such
//! links.

use super::test_machine::{TestMachine, loci, matrix};
use super::*;
use crate::thresholds::{MeasurementConditions, Platform, builtin};
use model::claims::ClaimedDomain;
use model::measurement::Measurement;
use model::parse_output::{ParseOutput, Tool};
use model::tool_recording::RecordingScope;
use model::verdict::Outcome;

/// Tests that do not measure the links between GPUs.
const OTHERS: [&str; 4] = [
    "host_to_device_memcpy_ce",
    "device_to_host_memcpy_ce",
    "host_to_device_memcpy_sm",
    "device_local_copy",
];

/// A node of this platform on which these tests read the expected values.
fn judge_tests(platform: &Platform, gpus: u32, tests: &[&str]) -> Judgement {
    let level = |test: &str| {
        let expected = platform.expectation(&MeasurementConditions::with_default_size(test)).ok();
        expected.and_then(|e| e.value).unwrap_or(60.0)
    };
    let labels: Vec<String> = (0..gpus).map(|gpu| gpu.to_string()).collect();
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Nvbandwidth) };
    let measured = |test: &&str| -> Measurement {
        if !test.starts_with("device_to_device") {
            let cells = labels.iter().map(|_| Some(level(test))).collect();
            return matrix(test, vec!["0".to_owned()], labels.clone(), vec![cells]);
        }
        let cell = |row: u32, col: u32| (row != col).then(|| level(test));
        let cells = (0..gpus).map(|row| (0..gpus).map(|col| cell(row, col)).collect()).collect();
        matrix(test, labels.clone(), labels.clone(), cells)
    };
    parsed.measurements = tests.iter().map(measured).collect();
    let domain = ClaimedDomain {
        name: "node0001".into(),
        nodes: vec![TestMachine::node(0)],
        platform: Some(platform.name.clone()),
        gpus_per_node: Some(gpus),
        nic: None,
    };
    let recording = ToolRecording::new(
        RecordingScope::Node(TestMachine::node(0)),
        "nodes/node0001/out.txt".to_owned(),
        parsed,
    );
    judge_without_history(&JudgeInput {
        claims: &Claims { domains: vec![domain], ..Claims::default() },
        recordings: &[recording],
        catalogue: builtin::builtin_catalogue(),
        thresholds_digest: "t",
        platform: None,
        cells: true,
        sampled: false,
    })
}

#[test]
fn host_copies_alone_do_not_pass_a_node_with_connected_gpus() {
    let (mut joined, mut apart) = (0, 0);
    for platform in
        builtin::builtin_catalogue().platforms.values().filter(|p| !p.devices.is_empty())
    {
        let gpus = platform.gpus_per_node.unwrap_or(4);
        for count in 1..=OTHERS.len() {
            let judged = judge_tests(platform, gpus, &OTHERS[..count]);
            assert_eq!(loci(&judged), Vec::<String>::new(), "{}", platform.name);
            let verdict = &judged.verdicts.nodes[0];
            if platform.joins_gpus() {
                joined += 1;
                assert_eq!(verdict.outcome, Outcome::Unknown, "{}", platform.name);
                let remedy = verdict.reason.contains("nvbandwidth");
                assert!(
                    remedy && verdict.reason.contains("between its GPUs"),
                    "{}",
                    verdict.reason
                );
            } else {
                apart += 1;
                assert_eq!(verdict.outcome, Outcome::Pass, "{}: {}", platform.name, verdict.reason);
            }
        }
    }
    assert!(20 < joined && 4 < apart, "{joined} {apart}");
}

#[test]
fn gpu_copies_pass_a_node_with_and_without_host_copies() {
    for platform in ["hgx-a100", "hgx-h100", "hgx-h200", "h100-nvl"] {
        let platform = builtin::builtin_catalogue().platform(platform).expect("a shipped platform");
        let gpus = platform.gpus_per_node.expect("known");
        let pairs = "device_to_device_memcpy_read_ce";
        for tests in [&[pairs][..], &[pairs, OTHERS[0], OTHERS[1]]] {
            let judged = judge_tests(platform, gpus, tests);
            assert_eq!(
                judged.verdicts.outcome,
                Outcome::Pass,
                "{}: {:?}",
                platform.name,
                judged.verdicts
            );
        }
    }
}

#[test]
fn a_node_with_one_gpu_passes_by_its_host_link() {
    let platform = builtin::builtin_catalogue().platform("gh200").expect("a shipped platform");
    let judged = judge_tests(platform, 1, &OTHERS[..2]);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts);
}

#[test]
fn nodes_of_one_domain_whose_nvlink_ends_at_the_node_need_no_partner() {
    let mut bench = TestMachine::hgx(3);
    let recordings = bench.record();
    let mut claims = bench.claims();
    let nodes = claims.domains.drain(..).flat_map(|domain| domain.nodes).collect();
    claims.domains.push(ClaimedDomain {
        name: "pod".into(),
        nodes,
        platform: Some("hgx".to_owned()),
        gpus_per_node: Some(8),
        nic: None,
    });
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts);
    // The same claim of a rack still needs them.
    let mut rack = TestMachine::rack();
    let own = rack.record_nodes();
    let judged = rack.judge_these(&own);
    assert!(judged.verdicts.nodes.iter().all(|node| node.outcome == Outcome::Unknown));
}
