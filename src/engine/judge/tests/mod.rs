//! Tests the judge with simulated machines: it must report the faulty part, and no other.

mod ambiguity;
mod claims;
mod collectives;
mod confirmation;
mod coverage;
mod instruments;
mod levels;
mod names;
mod native_probes;
mod network;
mod own_history;
mod rails;
mod several_faults;
mod split_domains;
mod stability;
mod states;
mod test_machine;
mod two_node_runs;
mod validity;

use super::*;
use model::id::DomainName;
use model::measurement::{BufferPlacement, Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::tool_facts::{GpuLinks, ToolNvlink};
use model::tool_recording::RecordingScope;
use model::unit::Unit;
use model::verdict::{Direction, Outcome};
use std::sync::Arc;
use test_machine::{READ, TestMachine, loci, outcome_of, platform, ranks, share, unknown_nodes};

#[test]
fn a_healthy_node_and_a_healthy_rack_pass() {
    for bench in [
        TestMachine::hgx(1),
        TestMachine::hgx(4),
        TestMachine::rack(),
        TestMachine::rack().noise(0.01, 0.0, 3),
    ] {
        let judged = bench.judge();
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts);
        assert!(judged.verdicts.nodes.iter().all(|n| n.detectable.is_some_and(|d| d < 1.0 / 18.0)));
    }
}

#[test]
fn one_lost_link_names_only_its_gpu() {
    let hgx = TestMachine::hgx(1)
        .capacity(|s, d| Some(if s.1 == 2 || d.1 == 2 { share(1) } else { 1.0 }));
    let judged = hgx.judge();
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0001:2"]);
    assert_eq!(judged.verdicts.outcome, Outcome::Degraded);
    let found = &judged.verdicts.findings[0];
    assert!((found.ratio.expect("a ratio") - share(1)).abs() < 0.003);
    assert!(!found.confirmed && found.summary.contains("1 of 18 links"), "{}", found.summary);

    let bad = (6, 1);
    let rack = TestMachine::rack().noise(0.01, 0.0, 11);
    let judged =
        rack.capacity(move |s, d| Some(if s == bad || d == bad { share(1) } else { 1.0 })).judge();
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"]);
    assert_eq!(outcome_of(&judged, "node0007"), Outcome::Degraded);
    assert_eq!(outcome_of(&judged, "node0008"), Outcome::Pass);
}

#[test]
fn one_slow_direction_is_distinguished_from_both() {
    for (pull, text) in [(false, "tx"), (true, "rx")] {
        let judged = TestMachine::hgx(1)
            .capacity(move |s, d| {
                Some(if (if pull { d } else { s }).1 == 5 { share(2) } else { 1.0 })
            })
            .judge();
        assert_eq!(loci(&judged), [format!("degraded nvlink-low direction node0001:5 {text}")]);
    }
}

#[test]
fn one_bad_gpu_of_four_is_named_with_half_of_all_cells_low() {
    let bench = TestMachine::with_platform(platform("tray", 4, 1, 770.0), 1, 4);
    let judged =
        bench.capacity(|s, d| Some(if s.1 == 3 || d.1 == 3 { share(1) } else { 1.0 })).judge();
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0001:3"]);
}

#[test]
fn several_faulty_gpus_are_all_named_and_their_partners_are_not() {
    let bad = [(1, 0), (4, 3), (9, 2), (16, 1), (17, 0)];
    let judged = TestMachine::rack()
        .noise(0.01, 0.0, 5)
        .capacity(move |s, d| {
            let lost = [s, d].iter().filter(|e| bad.contains(e)).count();
            Some(share(u32::try_from(lost).expect("two at most")))
        })
        .judge();
    let expected: Vec<String> = bad
        .iter()
        .map(|(node, gpu)| format!("degraded nvlink-low gpu {}:{gpu}", TestMachine::node(*node)))
        .collect();
    assert_eq!(loci(&judged), expected);
}

#[test]
fn a_slow_pair_is_a_pair_and_a_dip_is_not() {
    let (a, b) = ((2, 1), (11, 3));
    let slow = TestMachine::rack()
        .readings(2)
        .capacity(move |s, d| Some(if (s, d) == (a, b) || (s, d) == (b, a) { 0.75 } else { 1.0 }));
    let judged = slow.judge();
    assert_eq!(loci(&judged), ["degraded nvlink-low pair node0003:1 - node0012:3"]);
    assert_eq!(outcome_of(&judged, "node0003"), Outcome::Unknown);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);

    // Of one direction there are two readings: enough for a hard fault only.
    for (depth, expected) in [(0.75, "unknown"), (0.5, "degraded")] {
        let slow = TestMachine::rack().readings(2);
        let slow = slow.capacity(move |s, d| Some(if (s, d) == (a, b) { depth } else { 1.0 }));
        let judged = slow.judge();
        assert_eq!(
            loci(&judged),
            [format!("{expected} nvlink-low pair node0003:1 - node0012:3 tx")]
        );
        let found = &judged.verdicts.findings[0];
        assert!(!found.confirmed);
        let asks_again = found.summary.contains("read this pair again");
        assert_eq!(asks_again, expected == "unknown", "{}", found.summary);
        assert_eq!(outcome_of(&judged, "node0003"), Outcome::Unknown);
    }

    let dip = TestMachine::rack()
        .capacity(move |s, d| Some(if (s, d) == (a, b) { 0.8 } else { 1.0 }))
        .judge();
    assert_eq!(loci(&dip), Vec::<String>::new());
    assert_eq!(dip.verdicts.outcome, Outcome::Pass);
    assert!(
        dip.verdicts.notes.iter().any(|n| n.contains("read low once")),
        "{:?}",
        dip.verdicts.notes
    );
}

#[test]
fn healthy_racks_with_left_tailed_noise_have_no_finding() {
    let sigmas = [0.001, 0.003, 0.01, 0.02];
    for (seed, sigma) in (0..40).zip(sigmas.into_iter().cycle()) {
        let judged = TestMachine::rack().noise(sigma, 0.005, seed).judge();
        assert_eq!(loci(&judged), Vec::<String>::new(), "seed {seed} sigma {sigma}");
        let judged = TestMachine::hgx(4).noise(sigma / 2.0, 0.005, seed).judge();
        assert_eq!(loci(&judged), Vec::<String>::new(), "seed {seed} sigma {sigma}");
    }
}

#[test]
fn lost_links_are_found_under_noise_with_a_left_tail() {
    for seed in 100..120 {
        let bad =
            (u32::try_from(seed % 18).expect("small"), u32::try_from(seed % 4).expect("small"));
        let judged = TestMachine::rack()
            .noise(0.01, 0.005, seed)
            .capacity(move |s, d| Some(if s == bad || d == bad { share(1) } else { 1.0 }))
            .judge();
        let expected = format!("degraded nvlink-low gpu {}:{}", TestMachine::node(bad.0), bad.1);
        assert_eq!(loci(&judged), [expected], "seed {seed}");
    }
}

#[test]
fn a_whole_tray_low_by_one_plane_is_the_tray() {
    let judged = TestMachine::rack()
        .capacity(|s, d| Some(if s.0 == 4 || d.0 == 4 { share(1) } else { 1.0 }))
        .judge();
    assert_eq!(loci(&judged), ["degraded nvlink-low tray node0005"]);
    assert_eq!(outcome_of(&judged, "node0005"), Outcome::Degraded);
}

#[test]
fn a_plane_out_blames_the_plane_and_no_node() {
    let judged = TestMachine::rack().capacity(|_, _| Some(share(1))).judge();
    assert_eq!(loci(&judged), ["degraded plane-low plane block01"]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
}

#[test]
fn a_node_that_is_low_as_a_whole_is_found_by_comparison_with_its_fleet() {
    let judged =
        TestMachine::hgx(5).capacity(|s, _| Some(if s.0 == 3 { 0.965 } else { 1.0 })).judge();
    assert_eq!(loci(&judged), ["degraded nvlink-low node node0004"]);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
}

#[test]
fn a_node_of_another_domain_has_failed_and_the_others_pass() {
    let judged = TestMachine::rack()
        .capacity(|s, d| Some(if (s.0 == 8) != (d.0 == 8) { 0.065 } else { 1.0 }))
        .judge();
    assert_eq!(loci(&judged), ["failed wrong-domain node node0009"]);
    assert_eq!(outcome_of(&judged, "node0009"), Outcome::Failed);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
}

#[test]
fn a_domain_cut_in_halves_blames_no_node() {
    let judged = TestMachine::rack()
        .capacity(|s, d| Some(if (s.0 < 9) == (d.0 < 9) { 1.0 } else { 0.065 }))
        .judge();
    assert_eq!(loci(&judged), ["failed split-domain domain block01"]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
}

#[test]
fn a_domain_without_any_path_between_nodes_blames_no_node() {
    let judged =
        TestMachine::rack().capacity(|s, d| Some(if s.0 == d.0 { 1.0 } else { 0.065 })).judge();
    assert_eq!(loci(&judged), ["failed multi-node-nvlink-off domain block01"]);
}

#[test]
fn a_parked_gpu_and_an_unconfigured_fabric_have_failed() {
    let judged = TestMachine::hgx(1)
        .capacity(|s, d| Some(if s.1 == 6 || d.1 == 6 { 0.1 } else { 1.0 }))
        .judge();
    assert_eq!(loci(&judged), ["failed nvlink-absent gpu node0001:6"]);
    let judged = TestMachine::hgx(1).capacity(|_, _| Some(0.11)).judge();
    assert_eq!(loci(&judged)[0], "failed fabric-not-configured node node0001");
    assert_eq!(judged.verdicts.outcome, Outcome::Failed);
}

#[test]
fn half_the_pcie_lanes_name_the_gpu_and_its_direction() {
    let judged = TestMachine::hgx(2)
        .host(|node, gpu, way| if (node, gpu, way) == (1, 3, Direction::H2d) { 0.5 } else { 1.0 })
        .judge();
    assert_eq!(loci(&judged), ["degraded host-link-low gpu node0002:3 h2d"]);
    let judged = TestMachine::hgx(2)
        .host(|node, gpu, _| if (node, gpu) == (1, 3) { 0.5 } else { 1.0 })
        .judge();
    assert_eq!(loci(&judged), ["degraded host-link-low gpu node0002:3"]);
}

#[test]
fn every_output_that_shows_a_host_link_to_be_low_is_named() {
    let narrow = |node, gpu, _| if (node, gpu) == (1, 3) { 0.5 } else { 1.0 };
    let judged = TestMachine::hgx(2).readings(3).host(narrow).judge();
    let [found] = judged.verdicts.findings.as_slice() else { panic!("{:?}", loci(&judged)) };
    let files: BTreeSet<&str> =
        found.evidence.iter().map(|evidence| evidence.file.as_str()).collect();
    assert_eq!(files.len(), 3, "{:#?}", found.evidence);
    // In both directions.
    assert_eq!(found.evidence.len(), 6);
}

#[test]
fn missing_cells_make_as_few_parts_unknown_as_possible() {
    let judged =
        TestMachine::rack().capacity(|s, d| (s != (3, 2) && d != (3, 2)).then_some(1.0)).judge();
    assert_eq!(loci(&judged), Vec::<String>::new());
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    assert_eq!(unknown_nodes(&judged), ["node0004"]);
}

#[test]
fn an_unmeasured_node_is_unknown_and_the_others_are_not() {
    let mut bench = TestMachine::hgx(3);
    let mut recordings = bench.record();
    recordings.retain(|r| !r.file.contains("node0002"));
    let judged = bench.judge_these(&recordings);
    assert_eq!(outcome_of(&judged, "node0002"), Outcome::Unknown);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);

    let nothing = bench.judge_these(&[]);
    assert_eq!(nothing.verdicts.outcome, Outcome::Unknown);
}

#[test]
fn a_rack_needs_own_and_cross_node_measurements() {
    let mut bench = TestMachine::rack();
    let own = bench.record_nodes();
    assert_eq!(bench.judge_these(&own).verdicts.outcome, Outcome::Unknown);
    let across = bench.record_domain();
    assert_eq!(bench.judge_these(&across).verdicts.outcome, Outcome::Unknown);
}

#[test]
fn corrupt_data_has_failed_and_cut_waived_or_unchecked_data_is_unknown() {
    for (kind, outcome) in [
        (OutputProblemKind::Corrupt, Outcome::Failed),
        (OutputProblemKind::Truncated, Outcome::Unknown),
        (OutputProblemKind::Waived, Outcome::Unknown),
        (OutputProblemKind::Unverified, Outcome::Unknown),
        (OutputProblemKind::Inconsistent, Outcome::Unknown),
        (OutputProblemKind::Unrecognised, Outcome::Unknown),
        (OutputProblemKind::Error, Outcome::Unknown),
    ] {
        let mut bench = TestMachine::hgx(2);
        let mut recordings = bench.record();
        recordings[1]
            .parsed
            .problems
            .push(OutputProblem::new(kind, "something").in_test(Some(READ)));
        let judged = bench.judge_these(&recordings);
        assert_eq!(outcome_of(&judged, "node0002"), outcome, "{kind:?}");
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass, "{kind:?}");
        assert_eq!(judged.verdicts.outcome, outcome, "{kind:?}");
    }
}

#[test]
fn an_error_of_the_gpu_library_fails_its_node_and_a_missing_tool_does_not() {
    let mut bench = TestMachine::hgx(1);
    let mut recordings = bench.record();
    let mut problem = OutputProblem::new(OutputProblemKind::Error, "uncorrectable NVLink error");
    problem.code = Some("CUDA_ERROR_NVLINK_UNCORRECTABLE".to_owned());
    recordings[0].parsed.problems.push(problem);
    assert_eq!(loci(&bench.judge_these(&recordings)), ["failed tool-error node node0001"]);
    recordings[0].parsed.problems[0].code = Some("CUDA_ERROR_OUT_OF_MEMORY".to_owned());
    let judged = bench.judge_these(&recordings);
    assert_eq!((loci(&judged).len(), judged.verdicts.outcome), (0, Outcome::Unknown));
}

#[test]
fn an_error_is_the_same_under_each_of_its_names_and_a_library_may_cause_some_itself() {
    let nvbandwidth = |code: &str| {
        format!("[{code}] something in expression cuMemcpyAsync(a) in run() : /src/memcpy.cpp:77\n")
    };
    let nccl = |text: &str| {
        format!(
            "# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 1 \
             agg iters: 1 validate: 1 graph: 0\nn7: Test CUDA failure common.cu:9 '{text}'\n"
        )
    };
    let warning = |text: &str| {
        nccl("unspecified launch failure")
            + &format!("n7:1:2 [3] init.cc:9 NCCL WARN Cuda failure 214 '{text}'\n")
    };
    let ecc = "uncorrectable ECC error encountered";
    for (output, outcome) in [
        (nvbandwidth("CUDA_ERROR_ECC_UNCORRECTABLE"), Outcome::Failed),
        (nvbandwidth("cudaErrorECCUncorrectable"), Outcome::Failed),
        (nvbandwidth("cudaErrorLaunchFailure"), Outcome::Failed),
        (nvbandwidth("cudaErrorMemoryAllocation"), Outcome::Unknown),
        (nccl(ecc), Outcome::Failed),
        (nccl("uncorrectable NVLink error detected during the execution"), Outcome::Failed),
        (nccl("no CUDA-capable device is detected"), Outcome::Failed),
        (warning(ecc), Outcome::Failed),
        (nccl("unspecified launch failure"), Outcome::Unknown),
        (nccl("an illegal memory access was encountered"), Outcome::Unknown),
        (nccl("out of memory"), Outcome::Unknown),
    ] {
        let mut bench = TestMachine::hgx(2);
        let mut recordings = bench.record();
        let parsed = readers::outputs::parse_output(output.as_bytes());
        let scope = RecordingScope::Node("node0002".into());
        recordings.push(ToolRecording::new(scope, "nodes/node0002/error.txt".to_owned(), parsed));
        let judged = bench.judge_these(&recordings);
        assert_eq!(outcome_of(&judged, "node0002"), outcome, "{output}");
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass, "{output}");
    }
}

#[test]
fn a_platform_without_expectations_cannot_pass() {
    let mut bench = TestMachine::hgx(2);
    let recordings = bench.record();
    bench.platform.expectations.clear();
    let judged = bench.judge_these(&recordings);
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    assert!(
        judged.verdicts.nodes[0].reason.contains("its level had no reference"),
        "{:?}",
        judged.verdicts.nodes
    );
}

#[test]
fn fewer_gpus_than_claimed_have_failed() {
    let mut bench = TestMachine::hgx(1);
    bench.gpus = 7;
    let recordings = bench.record();
    bench.gpus = 8;
    let judged = bench.judge_these(&recordings);
    assert!(
        loci(&judged).contains(&"failed gpu-missing node node0001".to_owned()),
        "{:?}",
        loci(&judged)
    );
}

#[test]
fn an_inactive_link_is_found_even_where_bandwidth_was_not_measured() {
    let mut bench = TestMachine::hgx(1);
    let mut recordings = bench.record();
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NvidiaSmiNvlink) };
    let link = |link| ToolNvlink {
        link,
        active: Some(link != 4),
        rate: Some(53.125),
        ..ToolNvlink::default()
    };
    parsed.facts.nvlinks = (0..8)
        .map(|gpu| GpuLinks {
            gpu,
            links: (0..18).filter(|l| gpu == 2 || *l != 99).map(link).collect(),
            ..GpuLinks::default()
        })
        .collect();
    for links in parsed.facts.nvlinks.iter_mut().filter(|l| l.gpu != 2) {
        links.links.iter_mut().for_each(|l| l.active = Some(true));
    }
    let file = "nodes/node0001/nvlink.txt".to_owned();
    recordings.push(ToolRecording::new(RecordingScope::Node("node0001".into()), file, parsed));
    assert_eq!(loci(&bench.judge_these(&recordings)), ["degraded nvlink-inactive gpu node0001:2"]);
}

#[test]
fn a_sweep_too_noisy_for_one_link_does_not_pass() {
    let judged = TestMachine::hgx(1).noise(0.03, 0.0, 9).judge();
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    assert!(judged.verdicts.nodes[0].reason.contains("too noisy"), "{:?}", judged.verdicts.nodes);
}

#[test]
fn a_collective_at_nic_rate_is_a_finding_about_the_domain() {
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record();
    let ends: Vec<(u32, u32)> = (0..18).flat_map(|n| (0..4).map(move |g| (n, g))).collect();
    let point = |busbw| SeriesPoint {
        bytes: 8 << 30,
        placement: Some(BufferPlacement::OutOfPlace),
        busbw: Some(busbw),
        algbw: Some(busbw / 2.0),
        wrong: Some(0.0),
        ..SeriesPoint::default()
    };
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NcclTests) };
    parsed.facts.ranks = ranks(&ends);
    for (busbw, expected) in
        [(842.0, vec![]), (85.0, vec!["degraded collective-fallback domain block01"])]
    {
        parsed.measurements = vec![Measurement::Series(MeasurementSeries {
            run: 0,
            testcase: Some("all_reduce_perf".to_owned()),
            unit: Some(Unit::GigabytesPerSecond),
            points: vec![point(busbw)],
            average_busbw: None,
        })];
        let scope = RecordingScope::Domain(DomainName::from("block01"));
        recordings.push(ToolRecording::new(scope, "domains/block01/nccl.txt", parsed.clone()));
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), expected);
        assert!(judged.verdicts.nodes.iter().all(|n| n.outcome < Outcome::Degraded));
        recordings.pop();
    }
}

#[test]
fn cells_have_the_direction_of_the_data() {
    let judged =
        TestMachine::hgx(1).capacity(|s, _| Some(if s.1 == 0 { share(3) } else { 1.0 })).judge();
    let low: Vec<&MeasuredCell> =
        judged.cells.iter().filter(|c| c.outcome == Outcome::Degraded).collect();
    assert_eq!(low.len(), 14);
    assert!(low.iter().all(|c| c.src_gpu == Some(0)));
    let host: Vec<&MeasuredCell> =
        judged.cells.iter().filter(|c| *c.testcase == *"host_to_device_memcpy_ce").collect();
    assert!(
        host.iter().all(|c| c.src_gpu.is_none() && c.dst_gpu.is_some() && c.src_node.is_some())
    );
    let _: &Arc<str> = &low[0].testcase;
}

#[test]
fn a_blank_in_one_test_is_not_filled_by_another_test() {
    let mut bench = TestMachine::hgx(2);
    let mut recordings = bench.record();
    for measurement in &mut recordings[0].parsed.measurements {
        if let Measurement::Matrix(m) = measurement
            && m.testcase.as_deref() == Some(READ)
        {
            m.cells[3][5] = None;
        }
    }
    let judged = bench.judge_these(&recordings);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
    assert_eq!(outcome_of(&judged, "node0002"), Outcome::Pass);
    assert!(judged.verdicts.nodes[0].reason.contains("was not measured"));
}

#[test]
fn a_blank_host_copy_is_unknown() {
    let mut bench = TestMachine::hgx(2);
    let mut recordings = bench.record();
    for measurement in &mut recordings[1].parsed.measurements {
        if let Measurement::Matrix(m) = measurement
            && m.testcase.as_deref() == Some("host_to_device_memcpy_ce")
        {
            m.cells[0][2] = None;
        }
    }
    let judged = bench.judge_these(&recordings);
    assert_eq!(outcome_of(&judged, "node0002"), Outcome::Unknown);
}

#[test]
fn the_rule_of_a_host_copy_names_the_allowed_deviation() {
    let mut bench = TestMachine::hgx(1).host(|_, _, _| 0.7);
    for testcase in ["host_to_device_memcpy_ce", "device_to_host_memcpy_ce"] {
        bench.platform.expectations.get_mut(testcase).expect("it is expected").tolerance = 0.25;
    }
    let judged = bench.judge();
    assert_eq!(loci(&judged), ["degraded host-link-low node node0001"]);
    let rule = &judged.verdicts.findings[0].rule;
    assert!(rule.to_string().contains("more than 25"), "{rule}");
}

/// Output of `nvidia-smi nvlink -s` on every node, with some links inactive.
fn with_links(
    recordings: &mut Vec<ToolRecording>,
    nodes: u32,
    inactive: impl Fn(u32, u32, u32) -> bool,
) {
    for node in 0..nodes {
        let mut parsed =
            ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NvidiaSmiNvlink) };
        let link = |gpu, link| ToolNvlink {
            link,
            active: Some(!inactive(node, gpu, link)),
            ..ToolNvlink::default()
        };
        let gpus = 0..4;
        parsed.facts.nvlinks = gpus
            .map(|gpu| GpuLinks {
                gpu,
                links: (0..18).map(|l| link(gpu, l)).collect(),
                ..GpuLinks::default()
            })
            .collect();
        let node = TestMachine::node(node);
        let file = format!("nodes/{node}/nvlink.txt");
        recordings.push(ToolRecording::new(RecordingScope::Node(node), file, parsed));
    }
}

#[test]
fn links_missing_on_all_gpus_are_one_plane_and_a_further_one_is_its_gpu() {
    let mut bench = TestMachine::rack().capacity(|_, _| Some(share(2)));
    let mut recordings = bench.record();
    with_links(&mut recordings, 18, |node, gpu, link| {
        link == 10 || link == 11 || (node, gpu, link) == (3, 1, 5)
    });
    let judged = bench.judge_these(&recordings);
    let found = ["degraded nvlink-inactive gpu node0004:1", "degraded plane-low plane block01"];
    assert_eq!(loci(&judged), found);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
}

#[test]
fn an_inactive_link_and_the_bandwidth_it_costs_are_one_finding() {
    let bad = (6, 1);
    let mut bench = TestMachine::rack()
        .capacity(move |s, d| Some(if s == bad || d == bad { share(1) } else { 1.0 }));
    let mut recordings = bench.record();
    with_links(&mut recordings, 18, |node, gpu, link| (node, gpu, link) == (6, 1, 9));
    let judged = bench.judge_these(&recordings);
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"]);
    let evidence = &judged.verdicts.findings[0].evidence;
    assert!(evidence.iter().any(|e| e.file.ends_with("nvlink.txt")), "{evidence:?}");
}

#[test]
fn evidence_against_a_gpu_names_files_of_its_own_node() {
    let bad = (6, 1);
    let judged = TestMachine::rack()
        .capacity(move |s, d| Some(if s == bad || d == bad { share(1) } else { 1.0 }))
        .judge();
    let files: Vec<&str> =
        judged.verdicts.findings[0].evidence.iter().map(|e| e.file.as_str()).collect();
    assert!(files.iter().any(|f| f.starts_with("nodes/node0007/")), "{files:?}");
    let others = files.iter().filter(|f| f.starts_with("nodes/") && !f.contains("node0007"));
    assert_eq!(others.count(), 0, "{files:?}");
}
