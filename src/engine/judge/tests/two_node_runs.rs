//! A domain measured two nodes at a time: pairs of GPUs are sampled, and a run
//! that fails has two nodes in it.

use super::test_machine::{TestMachine, loci, outcome_of, ranks, share, unknown_nodes};
use crate::judge::Judgement;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::tool_recording::ToolRecording;
use model::verdict::{LocusKind, Outcome};

const NODES: u32 = 18;

/// The first `rounds` rounds of the circle method, as pairs of nodes.
fn rounds(rounds: u32) -> Vec<(u32, u32)> {
    let last = NODES - 1;
    let round = |r: u32| {
        let others = (1..NODES / 2).map(move |k| ((r + k) % last, (r + last - k) % last));
        std::iter::once((r % last, last)).chain(others)
    };
    (0..rounds).flat_map(round).collect()
}

fn sweep(bench: &mut TestMachine, count: u32) -> Vec<ToolRecording> {
    let mut recordings = bench.record_nodes();
    recordings.extend(rounds(count).into_iter().map(|(a, b)| bench.record_siblings(a, b)));
    recordings
}

fn judged(mut bench: TestMachine, count: u32) -> Judgement {
    let recordings = sweep(&mut bench, count);
    bench.judge_sampled(&bench.claims(), &recordings, true)
}

/// Turns the runs that `fails` selects into failed ones.
fn fail(recordings: &mut [ToolRecording], code: &str, fails: impl Fn(&str, &str) -> bool) {
    for recording in recordings.iter_mut().filter(|r| r.stage == Some(2)) {
        let hosts: Vec<&str> =
            recording.parsed.facts.ranks.iter().map(|r| r.host.as_str()).collect();
        let (first, last) = (hosts[0].to_owned(), hosts[hosts.len() - 1].to_owned());
        if fails(&first, &last) {
            recording.parsed.measurements.clear();
            recording.parsed.complete = false;
            let mut problem =
                OutputProblem::new(OutputProblemKind::Error, "an error in the library");
            (problem.code, problem.host) = (Some(code.to_owned()), Some(first));
            recording.parsed.problems = vec![problem];
        }
    }
}

#[test]
fn the_circle_method_visits_every_pair_once() {
    let mut met = rounds(17);
    met.iter_mut().for_each(|(a, b)| (*a, *b) = (*a.min(b), *a.max(b)));
    met.sort_unstable();
    met.dedup();
    assert_eq!(met.len(), 153);
}

#[test]
fn a_healthy_rack_passes_from_runs_of_two() {
    for (seed, sigma) in [(1, 0.002), (2, 0.01)] {
        let judged = judged(TestMachine::rack().noise(sigma, 0.0, seed), 17);
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.nodes);
        let readings = judged.cells.iter().filter(|c| c.stage == Some(2)).map(|c| c.reading);
        assert_eq!(readings.max(), Some(0));
    }
}

#[test]
fn omitted_pairs_are_a_gap_only_in_a_complete_sweep() {
    let mut bench = TestMachine::rack();
    let recordings = sweep(&mut bench, 17);
    assert_eq!(bench.judge_these(&recordings).verdicts.outcome, Outcome::Unknown);

    // A gap needs a measurement, and a GPU without partners is missing.
    let mut holed = recordings.clone();
    for recording in holed.iter_mut().filter(|r| r.stage == Some(2)) {
        let at = recording.parsed.facts.ranks.iter().position(|r| r.host == "node0004");
        if let (Some(at), Some(model::measurement::Measurement::Matrix(matrix))) =
            (at, recording.parsed.measurements.first_mut())
        {
            matrix.cells[at + 1][0] = None;
        }
    }
    let judged = bench.judge_sampled(&bench.claims(), &holed, true);
    assert_eq!(unknown_nodes(&judged), ["node0004"]);

    let mut alone = recordings;
    alone.retain(|r| {
        r.stage.is_none() || r.parsed.facts.ranks.iter().all(|rank| rank.host != "node0009")
    });
    let judged = bench.judge_sampled(&bench.claims(), &alone, true);
    assert_eq!(outcome_of(&judged, "node0009"), Outcome::Unknown);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
}

#[test]
fn a_gpu_with_one_lost_link_is_named_from_runs_of_two() {
    let bad = (6, 1);
    for (seed, sigma, count) in [(3, 0.002, 17), (4, 0.01, 17), (5, 0.002, 4)] {
        let bench = TestMachine::rack().noise(sigma, 0.0, seed);
        let judged = judged(
            bench.capacity(move |s, d| Some(if s == bad || d == bad { share(1) } else { 1.0 })),
            count,
        );
        assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"], "seed {seed}");
        assert_eq!(outcome_of(&judged, "node0008"), Outcome::Pass);
        let files = &judged.verdicts.findings[0].evidence;
        let of_two: Vec<&str> =
            files.iter().map(|e| e.file.as_str()).filter(|f| f.starts_with("domains")).collect();
        assert!(of_two.iter().all(|f| f.contains("07")) && !of_two.is_empty(), "{files:?}");
    }
}

#[test]
fn a_mislabelled_node_is_found_by_its_rate_and_by_its_errors() {
    for count in [17, 3] {
        let rate = TestMachine::rack()
            .capacity(|s, d| Some(if (s.0 == 8) != (d.0 == 8) { 0.065 } else { 1.0 }));
        let judged = judged(rate, count);
        assert_eq!(loci(&judged), ["failed wrong-domain node node0009"]);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass, "{:?}", judged.verdicts.nodes);

        let mut bench = TestMachine::rack();
        let mut recordings = sweep(&mut bench, count);
        fail(&mut recordings, "CUDA_ERROR_INVALID_HANDLE", |a, b| {
            (a == "node0009") != (b == "node0009")
        });
        let judged = bench.judge_sampled(&bench.claims(), &recordings, true);
        assert_eq!(loci(&judged), ["failed wrong-domain node node0009"]);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass, "{:?}", judged.verdicts);
    }
}

#[test]
fn a_split_clique_blames_no_node_and_a_small_part_of_it_is_named() {
    for (first, expected) in [
        (9, vec!["failed split-domain domain block01".to_owned()]),
        (
            16,
            vec![
                "failed wrong-domain node node0017".to_owned(),
                "failed wrong-domain node node0018".to_owned(),
            ],
        ),
    ] {
        let rate = TestMachine::rack()
            .capacity(move |s, d| Some(if (s.0 < first) == (d.0 < first) { 1.0 } else { 0.065 }));
        assert_eq!(loci(&judged(rate, 17)), expected);
        let mut bench = TestMachine::rack();
        let mut recordings = sweep(&mut bench, 17);
        let is_first = move |host: &str| {
            host.trim_start_matches("node").parse::<u32>().expect("a number") <= first
        };
        fail(&mut recordings, "CUDA_ERROR_INVALID_HANDLE", |a, b| is_first(a) != is_first(b));
        let judged = bench.judge_sampled(&bench.claims(), &recordings, true);
        assert_eq!(loci(&judged), expected);
    }
}

#[test]
fn one_matching_blames_neither_end() {
    let pair = rounds(1)[3];
    let ends = [TestMachine::node(pair.0), TestMachine::node(pair.1)];
    let slow = TestMachine::rack().capacity(move |s, d| {
        Some(if s.0 != d.0 && [s.0, d.0].contains(&pair.0) { 0.065 } else { 1.0 })
    });
    let by_rate = judged(slow, 1);
    let mut bench = TestMachine::rack();
    let mut recordings = sweep(&mut bench, 1);
    fail(&mut recordings, "CUDA_ERROR_NOT_PERMITTED", |a, b| {
        ends.iter().any(|e| e.as_str() == a || e.as_str() == b)
    });
    let by_error = bench.judge_sampled(&bench.claims(), &recordings, true);
    for judged in [by_rate, by_error] {
        assert_eq!(judged.verdicts.findings.len(), 1, "{:?}", loci(&judged));
        assert_eq!(judged.verdicts.findings[0].locus.kind, LocusKind::Pair);
        for verdict in &judged.verdicts.nodes {
            let expected =
                if ends.contains(&verdict.node) { Outcome::Unknown } else { Outcome::Pass };
            assert_eq!(verdict.outcome, expected, "{verdict:?}");
        }
    }
}

#[test]
fn a_node_that_fails_with_all_partners_has_failed_and_they_pass() {
    for (code, expected) in [
        ("CUDA_ERROR_NVLINK_UNCORRECTABLE", Outcome::Failed),
        ("CUDA_ERROR_OUT_OF_MEMORY", Outcome::Unknown),
    ] {
        let mut bench = TestMachine::rack();
        let mut recordings = sweep(&mut bench, 17);
        fail(&mut recordings, code, |a, b| a == "node0005" || b == "node0005");
        let judged = bench.judge_sampled(&bench.claims(), &recordings, true);
        for verdict in &judged.verdicts.nodes {
            let wanted = if verdict.node.as_str() == "node0005" { expected } else { Outcome::Pass };
            assert_eq!(verdict.outcome, wanted, "{code}: {verdict:?}");
        }
        let mut recordings = sweep(&mut bench, 17);
        fail(&mut recordings, code, |a, b| {
            ["node0005", "node0011"].contains(&a) && ["node0005", "node0011"].contains(&b)
        });
        let judged = bench.judge_sampled(&bench.claims(), &recordings, true);
        assert_eq!(loci(&judged), Vec::<String>::new());
        for verdict in &judged.verdicts.nodes {
            let pair = ["node0005", "node0011"].contains(&verdict.node.as_str());
            let wanted = if pair { Outcome::Unknown } else { Outcome::Pass };
            assert_eq!(verdict.outcome, wanted, "{code}: {verdict:?}");
        }
    }
}

#[test]
fn a_truncated_output_puts_its_planned_nodes_in_doubt() {
    let mut bench = TestMachine::rack();
    let mut recordings = sweep(&mut bench, 17);
    let broken = recordings.last_mut().expect("a run");
    broken.nodes = vec![TestMachine::node(2), TestMachine::node(3)];
    broken.parsed.measurements.clear();
    broken.parsed.facts.ranks.clear();
    broken.parsed.complete = false;
    let judged = bench.judge_sampled(&bench.claims(), &recordings, true);
    assert_eq!(unknown_nodes(&judged), ["node0003", "node0004"]);
}

#[test]
fn a_complete_sweep_of_matrices_of_two_nodes_is_complete() {
    for (lost, expected) in
        [(0, vec![]), (2, vec!["degraded nvlink-low gpu node0012:3".to_owned()])]
    {
        let bad = (11, 3);
        let mut bench = TestMachine::rack()
            .capacity(move |s, d| Some(if s == bad || d == bad { share(lost) } else { 1.0 }));
        let mut recordings = bench.record_nodes();
        for (a, b) in rounds(17) {
            let ends: Vec<(u32, u32)> =
                [a, b].into_iter().flat_map(|n| (0..4).map(move |g| (n, g))).collect();
            let mut recording = bench.record_siblings(a, b);
            recording.parsed.facts.ranks = ranks(&ends);
            recording.parsed.measurements = vec![
                bench.matrix("multinode_device_to_device_memcpy_read_ce", &ends, 770.0),
                bench.matrix("multinode_device_to_device_memcpy_write_ce", &ends, 770.0),
            ];
            recordings.push(recording);
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), expected);
        let outcome = if lost == 0 { Outcome::Pass } else { Outcome::Degraded };
        assert_eq!(judged.verdicts.outcome, outcome, "{:?}", judged.verdicts.nodes);
    }
}

#[test]
fn a_broken_node_fails_alone_whatever_ran_with_it() {
    for (count, of_many) in [(17, false), (3, false), (1, true), (17, true)] {
        let mut bench = TestMachine::rack();
        let mut recordings = sweep(&mut bench, count);
        if of_many {
            let mut all = bench.record_domain();
            all[0].parsed.complete = false;
            all[0].parsed.problems =
                vec![OutputProblem::new(OutputProblemKind::Error, "exit code 1")];
            recordings.extend(all);
        }
        // Its own outputs name the error; those of two report that a rank ended early.
        let mut problem = OutputProblem::new(OutputProblemKind::Error, "uncorrectable ECC error");
        problem.code = Some("CUDA_ERROR_ECC_UNCORRECTABLE".to_owned());
        let own = |r: &&mut ToolRecording| r.file.starts_with("nodes/node0007/");
        for recording in recordings.iter_mut().filter(own) {
            recording.parsed.measurements.clear();
            recording.parsed.complete = false;
            recording.parsed.problems = vec![problem.clone()];
        }
        fail(&mut recordings, "", |a, b| a == "node0007" || b == "node0007");
        let judged = bench.judge_sampled(&bench.claims(), &recordings, true);
        assert_eq!(loci(&judged), ["failed tool-error node node0007"], "{count} {of_many}");
        assert_eq!(outcome_of(&judged, "node0007"), Outcome::Failed);
        assert_eq!(unknown_nodes(&judged), Vec::<&str>::new(), "{:?}", judged.verdicts.nodes);
    }
}
